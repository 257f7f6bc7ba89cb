"use strict";
(() => {
  // Everything of a record reaches the page as text: nothing here is ever read as HTML.
  const data = JSON.parse(document.getElementById("data").textContent);
  const MEAN = data.tasks.length;
  const AT_ONCE = 2500; // cells; the rest is drawn as somebody scrolls there
  const MOST_MARKS = 60;
  const OPEN = "?"; // behind a difference that is not significant
  const byId = (id) => document.getElementById(id);
  const body = document.querySelector("#board tbody");
  const root = document.documentElement;
  root.classList.add("script");

  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== null) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  };

  // cells by row, setting and task -------------------------------------------------------

  const width = MEAN + 1;
  const depth = data.settings.length * width;
  const places = new Map();
  data.cells.row.forEach((row, at) => {
    places.set(row * depth + data.cells.setting[at] * width + data.cells.task[at], at);
  });
  const cellAt = (row, setting, task) => places.get(row * depth + setting * width + task);
  const valueAt = (row, setting, task) => {
    const at = cellAt(row, setting, task);
    return at === undefined ? null : data.cells.value[at];
  };

  // what is asked for --------------------------------------------------------------------

  const state = {
    settings: new Set(data.settings.flatMap((one, at) => (one.headline ? [at] : []))),
    tasks: new Set(data.tasks.keys()),
    sort: null, // {setting, task, down}; setting -1: by name
    active: null, // the cell that the keyboard is on, as "row column" of what is shown
  };

  const shownTasks = () => {
    const kind = byId("kind").value;
    return data.tasks
      .map((task, at) => at)
      .filter((at) => state.tasks.has(at) && ["", data.tasks[at].kind].includes(kind));
  };

  // the mean is over the tasks that are shown, and known only where each of them is
  const shownValue = (row, column) => {
    if (column.task !== MEAN) return valueAt(row, column.setting, column.task);
    if (column.tasks.length === data.tasks.length) return valueAt(row, column.setting, MEAN);
    const values = column.tasks.map((task) => valueAt(row, column.setting, task));
    if (!values.length || values.includes(null)) return null;
    return values.reduce((sum, value) => sum + value, 0) / values.length;
  };

  const shownColumns = () => {
    const tasks = shownTasks();
    const columns = [];
    for (const setting of [...state.settings].sort((a, b) => a - b)) {
      for (const task of tasks) columns.push({ setting, task, tasks });
      if (tasks.length > 1) columns.push({ setting, task: MEAN, tasks });
    }
    return columns;
  };

  const shownRows = (columns) => {
    const premerge = byId("premerge").value;
    const words = byId("search").value.trim().toLowerCase();
    const references = byId("references").checked;
    const rows = [];
    data.rows.forEach((row, at) => {
      const merged = row.role === "merged";
      if (!merged && !references) return;
      if (merged && premerge !== "*" && row.premerge !== premerge) return;
      if (words && !row.name.toLowerCase().includes(words)) return;
      if (columns.some((column) => shownValue(at, column) !== null)) rows.push(at);
    });
    return sorted(rows, columns);
  };

  const sorted = (rows, columns) => {
    const sort = state.sort;
    if (!sort) return rows;
    if (sort.setting < 0) {
      rows.sort((a, b) => data.rows[a].name.localeCompare(data.rows[b].name));
      return sort.down ? rows.reverse() : rows;
    }
    const column = columns.find((one) => one.setting === sort.setting && one.task === sort.task);
    if (!column) return rows;
    const values = new Map(rows.map((row) => [row, shownValue(row, column)]));
    return rows.sort((a, b) => {
      const one = values.get(a);
      const other = values.get(b);
      if (one === null || other === null) return (one === null) - (other === null);
      return sort.down ? other - one : one - other;
    });
  };

  // the table ----------------------------------------------------------------------------

  let view = { rows: [], columns: [], drawn: 0 };

  const sortButton = (text, column) => {
    const button = element("button", { type: "button" }, text);
    button.addEventListener("click", () => {
      const held = state.sort;
      const same = held && held.setting === column.setting && held.task === column.task;
      const down = same ? !held.down : column.setting >= 0;
      state.sort = { setting: column.setting, task: column.task, down };
      draw();
      const again = document.querySelector("thead [aria-sort]:not([aria-sort=none]) button");
      if (again) again.focus();
    });
    return button;
  };

  const sortOf = (column) => {
    const sort = state.sort;
    if (!sort || sort.setting !== column.setting || sort.task !== column.task) return "none";
    return sort.down ? "descending" : "ascending";
  };

  const drawHead = (columns) => {
    const groups = element("tr");
    const heads = element("tr");
    const name = { setting: -1, task: -1 };
    const corner = { class: "corner", scope: "col", rowspan: 2, "aria-sort": sortOf(name) };
    groups.append(element("th", corner, sortButton("Row", name)));
    let last = null;
    for (const column of columns) {
      const first = column.setting !== last;
      last = column.setting;
      if (first) {
        const setting = data.settings[column.setting];
        const span = columns.filter((one) => one.setting === column.setting).length;
        const head = { class: "group first", scope: "colgroup", colspan: span };
        if (setting.note) head.title = setting.note;
        const mark = setting.note.includes("transductive")
          ? " (transductive)"
          : setting.note.startsWith("tuned") ? " (uses labels)" : "";
        groups.append(element("th", head, setting.name + mark));
      }
      const task = data.tasks[column.task];
      const text = task ? task.short : "mean";
      const more = task ? `${task.metric}, ${task.rows.toLocaleString("en")} rows` : `of ${column.tasks.length}`;
      const head = { scope: "col", "aria-sort": sortOf(column) };
      if (first) head.class = "first";
      if (task) head.title = task.name;
      heads.append(element("th", head, sortButton(text, column), element("small", {}, more)));
    }
    document.querySelector("#board thead").replaceChildren(groups, heads);
  };

  const least = (values) => values.reduce((a, b) => Math.min(a, b));
  const most = (values) => values.reduce((a, b) => Math.max(a, b));

  // the scale of colours is that of merges: a base far below them would take all of it
  const ranges = (rows, columns) => {
    const merges = rows.filter((row) => data.rows[row].role === "merged");
    const among = merges.length > 1 ? merges : rows;
    return columns.map((column) => {
      const values = among.map((row) => shownValue(row, column)).filter((value) => value !== null);
      return values.length ? [least(values), most(values)] : [0, 0];
    });
  };

  // halves go away from zero once six decimals have cleared the noise of floats, as everywhere else
  const tenth = (number) =>
    (Math.sign(number) * Math.round(Number((Math.abs(number) * 10).toFixed(5))) / 10).toFixed(1);

  const signed = (number) => {
    const text = tenth(Math.abs(number));
    return text === "0.0" ? text : (number > 0 ? "+" : "−") + text;
  };

  const fill = (cell, row, column, asked, range) => {
    const value = shownValue(row, column);
    if (value === null) return;
    const at = cellAt(row, column.setting, column.task);
    const whole = column.task !== MEAN || column.tasks.length === data.tasks.length;
    const own = whole && at !== undefined ? at : null;
    const text = tenth(value);
    cell.append(own !== null && data.cells.best[own] ? element("strong", {}, text) : text);
    if (asked.spread && own !== null && data.cells.sd[own] !== null) {
      cell.append(element("small", {}, ` ±${tenth(data.cells.sd[own])}`));
    }
    if (asked.spread && own !== null && data.cells.experts[own] !== null) {
      cell.append(element("small", {}, ` (sd ${tenth(data.cells.experts[own])})`));
    }
    if (asked.gains && data.rows[row].over >= 0) {
      const before = shownValue(data.rows[row].over, column);
      if (before !== null) {
        const gain = value - before;
        const open = data.open && (own === null || data.open[own]);
        const look = open ? "" : gain > 0.05 ? "up" : gain < -0.05 ? "down" : "";
        cell.append(element("small", { class: look }, ` ${signed(gain)}${open ? OPEN : ""}`));
      }
    }
    if (asked.intervals && own !== null && data.cells.low[own] !== null) {
      const ends = `[${tenth(data.cells.low[own])}, ${tenth(data.cells.high[own])}]`;
      cell.append(element("small", { class: "below" }, ends));
    }
    if (asked.heat && range[1] > range[0]) {
      cell.classList.add("heat");
      const share = (value - range[0]) / (range[1] - range[0]);
      cell.style.setProperty("--share", Math.min(1, Math.max(0, share)).toFixed(3));
    }
  };

  const lineOf = (row, rowAt) => {
    const one = data.rows[row];
    const line = element("tr", { class: one.role === "merged" ? false : "reference", "aria-rowindex": rowAt + 3 });
    const title = one.is ? `${one.name}: ${one.is}` : one.name;
    line.append(element("th", { scope: "row", title }, one.name));
    view.columns.forEach((column, columnAt) => {
      const cell = document.createElement("td");
      cell.tabIndex = rowAt || columnAt ? -1 : 0;
      if (!columnAt || view.columns[columnAt - 1].setting !== column.setting) cell.className = "first";
      fill(cell, row, column, view.asked, view.ranges[columnAt]);
      line.append(cell);
    });
    return line;
  };

  const drawMore = (count) => {
    const until = Math.min(view.rows.length, view.drawn + count);
    const lines = document.createDocumentFragment();
    for (let at = view.drawn; at < until; at += 1) lines.append(lineOf(view.rows[at], at));
    view.drawn = until;
    body.append(lines);
    byId("more").hidden = view.drawn === view.rows.length;
  };

  const draw = () => {
    const columns = shownColumns();
    const rows = shownRows(columns);
    const asked = {};
    for (const name of ["spread", "gains", "intervals", "heat"]) asked[name] = byId(name).checked;
    const step = Math.max(20, Math.ceil(AT_ONCE / Math.max(1, columns.length)));
    view = { rows, columns, asked, step, drawn: 0 };
    view.ranges = asked.heat ? ranges(rows, columns) : columns.map(() => [0, 0]);
    drawHead(columns);
    body.replaceChildren();
    byId("board").setAttribute("aria-rowcount", rows.length + 2);
    state.active = rows.length && columns.length ? [0, 0] : null;
    drawMore(step);
    byId("status").textContent = `${rows.length.toLocaleString("en")} rows, ${columns.length} columns`;
    drawGap(rows);
  };

  byId("scroll").addEventListener("scroll", (event) => {
    const box = event.currentTarget;
    if (box.scrollTop + 2 * box.clientHeight > box.scrollHeight) drawMore(view.step);
  }, { passive: true });

  // where a number comes from ------------------------------------------------------------

  const text = (name, at) => {
    const place = data.records[name][at];
    return place < 0 ? "" : data.texts[place];
  };

  const linkTo = (at) => {
    const parts = [...text("folder", at).split("/"), text("file", at)].filter((part) => part !== "");
    const pack = parts.findIndex((part) => part.endsWith(".parquet")); // there is no way into one
    const way = pack < 0 ? parts : parts.slice(0, pack + 1);
    const path = way.map((part) => encodeURIComponent(part)).join("/");
    return text("folder", at).startsWith("/") ? `/${path}` : `./${path}`;
  };

  const provenance = (row, column) => {
    const at = cellAt(row, column.setting, column.task);
    const value = shownValue(row, column);
    const task = data.tasks[column.task];
    const where = task ? `${task.name} (${task.metric}, ${task.rows.toLocaleString("en")} rows)`
      : `the mean of ${column.tasks.length} tasks`;
    const setting = data.settings[column.setting];
    const head = element("p", {}, element("b", {}, data.rows[row].name), ` on ${where}, ${setting.name}: `,
      element("b", {}, value === null ? "not evaluated" : value.toFixed(2)));
    const list = element("dl");
    const say = (term, ...said) =>
      list.append(element("div", {}, element("dt", {}, term), element("dd", {}, ...said)));
    if (value !== null && at !== undefined && task) {
      if (data.cells.experts[at] !== null) say("deviation over experts", data.cells.experts[at].toFixed(2));
      if (data.cells.low[at] !== null) say("95 % interval", `[${data.cells.low[at].toFixed(2)}, ${data.cells.high[at].toFixed(2)}]`);
      for (const name of ["draws", "parts", "facts", "model", "method", "head", "preset", "options", "digest"]) {
        const said = text(name, at);
        if (said && said !== "{}") say(name, said);
      }
      if (data.records.file[at] >= 0) say("record", element("a", { href: linkTo(at) }, text("file", at)));
      else if (data.rows[row].is) say("computed", data.rows[row].is);
      else say("computed", "from other rows of the table");
    }
    if (setting.note) say("protocol", setting.note);
    byId("provenance").replaceChildren(head, list);
    byId("provenance").classList.add("told");
  };

  const placeOf = (cell) => {
    const line = cell.parentElement;
    return [line.sectionRowIndex, cell.cellIndex - 1];
  };

  const show = (cell) => {
    const [rowAt, columnAt] = placeOf(cell);
    provenance(view.rows[rowAt], view.columns[columnAt]);
  };

  const cellIn = (rowAt, columnAt) => {
    const line = body.rows[rowAt];
    return line ? line.cells[columnAt + 1] : undefined;
  };

  body.addEventListener("pointerover", (event) => {
    const cell = event.target.closest("td");
    if (cell && document.activeElement.tagName !== "TD") show(cell);
  });
  body.addEventListener("focusin", (event) => {
    const cell = event.target.closest("td");
    if (!cell) return;
    const old = state.active && cellIn(...state.active);
    if (old) old.tabIndex = -1;
    cell.tabIndex = 0;
    state.active = placeOf(cell);
    show(cell);
  });
  body.addEventListener("keydown", (event) => {
    const cell = event.target.closest("td");
    if (!cell) return;
    const [rowAt, columnAt] = placeOf(cell);
    const last = view.columns.length - 1;
    const steps = {
      ArrowRight: [rowAt, columnAt + 1], ArrowLeft: [rowAt, columnAt - 1],
      ArrowDown: [rowAt + 1, columnAt], ArrowUp: [rowAt - 1, columnAt],
      Home: [rowAt, 0], End: [rowAt, last],
    };
    if (event.key === "Enter") {
      const link = document.querySelector("#provenance a");
      if (link) link.focus();
      event.preventDefault();
      return;
    }
    const step = steps[event.key];
    if (!step) return;
    if (step[0] === view.drawn) drawMore(view.step);
    const next = step[1] >= 0 && cellIn(...step);
    if (next) next.focus();
    event.preventDefault();
  });
  byId("provenance").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !state.active) return;
    const cell = cellIn(...state.active);
    if (cell) cell.focus();
  });

  // the gap between protocols ------------------------------------------------------------

  const SVG = "http://www.w3.org/2000/svg";
  const shape = (tag, attributes, ...children) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };

  const headlineOf = (test) => {
    const at = data.settings.findIndex((one) => one.headline && test(one));
    return at < 0 ? null : at;
  };
  const CURRENT = headlineOf((one) => one.plain === "current");
  const TUNED = headlineOf((one) => one.tuned);
  const KNN = headlineOf((one) => one.plain === "knn");

  const marks = (rows) => {
    const tasks = shownTasks();
    const column = (setting) => ({ setting, task: tasks.length > 1 ? MEAN : tasks[0], tasks });
    return rows
      .map((row) => ({
        row,
        current: CURRENT === null ? null : shownValue(row, column(CURRENT)),
        tuned: TUNED === null ? null : shownValue(row, column(TUNED)),
        knn: KNN === null ? null : shownValue(row, column(KNN)),
      }))
      .filter((one) => one.current !== null && one.tuned !== null);
  };

  const ticksOf = (low, high) => {
    const step = [1, 2, 5, 10, 20, 50].find((size) => (high - low) / size <= 7) || 100;
    const ticks = [];
    for (let at = Math.ceil(low / step) * step; at <= high; at += step) ticks.push(at);
    return ticks;
  };

  const cut = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

  // the board has no test for a mean over some of the tasks
  const openGap = (row) => {
    const tasks = shownTasks();
    if (!data.gaps || (tasks.length > 1 && tasks.length < MEAN)) return Boolean(data.gaps);
    return data.gaps[row][tasks.length > 1 ? MEAN : tasks[0]];
  };

  const drawGap = (rows) => {
    const every = shownTasks().length ? marks(rows) : [];
    byId("gap").hidden = !every.length;
    if (!every.length) return;
    const shown = every.slice(0, MOST_MARKS);
    const room = Math.max(300, byId("figure").clientWidth || 640);
    const total = Math.min(room, 1100);
    const left = Math.min(230, total * 0.36);
    const right = 58;
    const [top, step] = [46, 22];
    const height = top + step * shown.length + 26;
    const values = shown.flatMap((one) => [one.current, one.tuned, one.knn].filter((v) => v !== null));
    const spare = Math.max(1, (most(values) - least(values)) * 0.04);
    const low = least(values) - spare;
    const high = most(values) + spare;
    const x = (value) => left + ((value - low) / (high - low)) * (total - left - right);
    const words = shown.map((one) =>
      `${data.rows[one.row].name}: ${tenth(one.current)} to ${tenth(one.tuned)}`);
    const svg = shape("svg", { width: total, height, viewBox: `0 0 ${total} ${height}`, role: "img", "aria-labelledby": "gap-name gap-words" },
      shape("title", { id: "gap-name" }, "Current Eval and FT-Classifier Eval of each row"),
      shape("desc", { id: "gap-words" }, words.join("; ")));
    const key = [["circle", "current", "Current"], ["square", "tuned", data.settings[TUNED].name]];
    if (KNN !== null) key.push(["triangle", "other", data.settings[KNN].name]);
    let keyAt = 8;
    for (const [form, look, name] of key) {
      svg.append(mark(form, look, keyAt, 14), shape("text", { x: keyAt + 10, y: 18 }, name));
      keyAt += 30 + 6 * name.length;
    }
    for (const at of ticksOf(low, high)) {
      svg.append(shape("line", { class: "rule", x1: x(at), x2: x(at), y1: top - 8, y2: height - 22 }),
        shape("text", { class: "tick", x: x(at), y: height - 8, "text-anchor": "middle" }, String(at)));
    }
    shown.forEach((one, number) => {
      const y = top + step * number + 6;
      const name = data.rows[one.row].name;
      const label = shape("text", { x: left - 12, y: y + 4, "text-anchor": "end" }, cut(name, Math.floor((left - 12) / 6.7)));
      label.append(shape("title", {}, name));
      svg.append(label, shape("line", { class: "reach", x1: x(one.current), x2: x(one.tuned), y1: y, y2: y }));
      if (one.knn !== null) svg.append(mark("triangle", "other", x(one.knn), y));
      svg.append(mark("circle", "current", x(one.current), y), mark("square", "tuned", x(one.tuned), y));
      const change = signed(one.tuned - one.current) + (openGap(one.row) ? OPEN : "");
      svg.append(shape("text", { x: total - 4, y: y + 4, "text-anchor": "end" }, change));
    });
    const note = every.length > shown.length
      ? [element("figcaption", { class: "quiet" }, `The first ${shown.length} of ${every.length} rows, in the order of the table.`)]
      : [];
    byId("figure").replaceChildren(svg, ...note);
  };

  const mark = (form, look, x, y) => {
    if (form === "circle") return shape("circle", { class: look, cx: x, cy: y, r: 4.5 });
    if (form === "square") return shape("rect", { class: look, x: x - 4, y: y - 4, width: 8, height: 8 });
    return shape("path", { class: look, d: `M${x} ${y - 4.5} L${x + 4.5} ${y + 3.5} L${x - 4.5} ${y + 3.5} Z` });
  };

  // what can be asked for ----------------------------------------------------------------

  const choices = (into, names, chosen, titles) => {
    names.forEach((name, at) => {
      const box = element("input", { type: "checkbox", checked: chosen.has(at) });
      box.addEventListener("change", () => {
        if (box.checked) chosen.add(at);
        else chosen.delete(at);
        draw();
      });
      into.append(element("label", titles ? { title: titles[at] } : {}, box, name));
    });
  };

  const options = (select, pairs) => {
    select.append(...pairs.map(([value, name]) => element("option", { value }, name)));
    if (pairs.length < 3) select.parentElement.hidden = true;
    select.addEventListener("change", draw);
  };

  choices(byId("settings"), data.settings.map((one) => one.name), state.settings, data.settings.map((one) => one.note));
  choices(byId("tasks"), data.tasks.map((task) => task.short), state.tasks, data.tasks.map((task) => task.name));
  byId("tasks-field").hidden = data.tasks.length < 2;
  const kinds = [...new Set(data.tasks.map((task) => task.kind))].filter((kind) => kind).sort();
  options(byId("kind"), [["", "all"], ...kinds.map((kind) => [kind, kind])]);
  const merged = data.rows.filter((row) => row.role === "merged");
  const before = [...new Set(merged.map((row) => row.premerge))].sort();
  options(byId("premerge"), [["*", "all"], ...before.map((name) => [name, name || "nothing"])]);
  for (const name of ["references", "spread", "gains", "intervals", "heat"]) byId(name).addEventListener("change", draw);
  byId("gains").parentElement.hidden = !data.rows.some((row) => row.over >= 0);
  byId("intervals").parentElement.hidden = data.cells.low.every((low) => low === null);
  byId("spread").parentElement.hidden = [...data.cells.sd, ...data.cells.experts].every((sd) => sd === null);
  byId("search").addEventListener("input", draw);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", () => drawMore(view.rows.length));

  if (matchMedia("(max-width: 40rem)").matches) {
    for (const folded of document.querySelectorAll("main > details")) folded.open = false;
  }

  const themeButton = byId("theme");
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const sayTheme = () => { themeButton.textContent = isDark() ? "Light theme" : "Dark theme"; };
  themeButton.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("board-theme", root.dataset.theme); } catch { /* a page without storage */ }
    sayTheme();
  });
  try {
    const kept = localStorage.getItem("board-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* a page without storage */ }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", sayTheme);
  themeButton.hidden = false;
  sayTheme();

  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => drawGap(shownRows(shownColumns())), 150);
  });
  draw();
})();
