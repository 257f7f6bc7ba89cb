"""Opens the page of a board in Chromium and says, as JSON, what a person would see there.

drive.py PAGE BIG-PAGE CREDIT-PAGE [--shots FOLDER]; run by the environment that has Playwright.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

WIDE, PHONE = (1400, 1000), (390, 844)
CONTRAST = """() => {
  const parse = (text) => {
    const numbers = text.match(/[\\d.]+/g).map(Number);
    return text.startsWith("color(") ? numbers.map((c, i) => (i < 3 ? 255 * c : c)) : numbers;
  };
  const mixed = (top, under, share) => under.map((c, i) => top[i] * share + c * (1 - share));
  const over = (top, under) => mixed(top, under, top[3] ?? 1);
  const light = (rgb) => rgb.map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    let colour = parse(getComputedStyle(document.body).backgroundColor);
    const chain = [];
    for (let at = element; at; at = at.parentElement) chain.unshift(at);
    for (const one of chain) {
      const back = parse(getComputedStyle(one).backgroundColor);
      if (back.length === 3 || back[3] > 0) colour = over(back, colour);
    }
    return colour;
  };
  const least = {};
  const shown = "td, td small, th, th small, .quiet, label, button, dt, dd, a, li, #credit span";
  for (const one of document.querySelectorAll(shown)) {
    if (!one.textContent.trim() || !one.offsetParent) continue;
    const [a, b] = [light(parse(getComputedStyle(one).color).slice(0, 3)), light(behind(one))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const name = one.tagName.toLowerCase();
    least[name] = Math.min(least[name] ?? 99, ratio);
  }
  return least;
}"""

# on paper the table of all protocols may be wider: it has no bar to scroll it by
WIDER = """(printed) => (printed ? document.getElementById("credit")
  : document.documentElement).scrollWidth - innerWidth"""


@contextmanager
def opened(
    browser: Browser, path: Path, facts: dict[str, Any], size: tuple[int, int], theme: str = "light"
) -> Iterator[Page]:
    """A page, with what goes wrong in it noted among the facts."""
    view = {"width": size[0], "height": size[1]}
    context = browser.new_context(viewport=view, color_scheme=theme)  # type: ignore[arg-type]  # a literal
    page = context.new_page()
    page.on("console", lambda message: facts["errors"].append(message.text))
    page.on("pageerror", lambda error: facts["errors"].append(str(error)))
    page.on("dialog", lambda dialog: (facts["errors"].append("a dialog"), dialog.dismiss()))
    page.on("request", lambda request: facts["requests"].append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("#board tbody td")
    yield page
    context.close()


def table(page: Page) -> dict[str, Any]:
    """Names of rows, heads of columns and texts of cells, as they are shown."""
    shown: dict[str, Any] = page.evaluate(
        """() => {
          const all = (selector) => [...document.querySelectorAll(selector)];
          const texts = (selector) => all(selector).map((one) => one.textContent);
          return {
            rows: texts("#board tbody th"),
            groups: texts("th.group"),
            heads: texts("#board thead tr + tr button"),
            cells: all("#board tbody tr").map(
              (row) => [...row.cells].slice(1).map((one) => one.textContent)),
            sorts: all("#board thead th[aria-sort]").map((one) => one.getAttribute("aria-sort")),
          };
        }"""
    )
    return shown


def used(page: Page) -> dict[str, Any]:
    """The page after each thing that a person may do with it."""
    facts: dict[str, Any] = {"first": table(page)}
    head = page.locator("#board thead tr + tr button")
    head.nth(0).click()
    facts["descending"] = table(page)
    head.nth(0).press("Enter")
    facts["ascending"] = table(page)
    facts["sort keeps focus"] = page.evaluate("document.activeElement.textContent")
    page.locator(".corner button").click()
    facts["by name"] = table(page)
    page.get_by_label("mrpc").uncheck()
    facts["one task"] = table(page)
    page.get_by_label("mrpc").check()
    page.get_by_label("Before merging").select_option("dare")
    facts["dare"] = table(page)
    page.get_by_label("Before merging").select_option("*")
    page.get_by_label("Kind of task").select_option("tagging")
    facts["tagging"] = table(page)
    page.get_by_label("Kind of task").select_option("")
    page.get_by_label("Name has").fill("DARE")
    facts["named"] = table(page)
    page.get_by_label("Name has").fill("")
    page.get_by_label("References").uncheck()
    facts["merges"] = table(page)
    page.get_by_label("References").check()
    page.get_by_label("Gains").check()
    page.get_by_label("Intervals").check()
    page.get_by_label("± over draws").uncheck()
    facts["gains and intervals"] = table(page)
    page.get_by_label("knn, 1 shot").check()
    facts["another setting"] = table(page)["groups"]
    facts["status"] = page.locator("#status").text_content()
    return facts


def by_keys(page: Page) -> dict[str, Any]:
    """What the keyboard alone reaches."""
    stops = "document.querySelectorAll('#board tbody [tabindex=\"0\"]').length"
    facts: dict[str, Any] = {"stops": page.evaluate(stops)}
    page.locator("#board tbody td").first.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowLeft", "ArrowUp", "End", "Home", "ArrowLeft"):
        page.keyboard.press(key)
    facts["back at the first"] = page.evaluate(
        "document.activeElement === document.querySelector('#board tbody td')"
    )
    page.keyboard.press("ArrowDown")
    facts["stops after"] = page.evaluate(stops)
    facts["outline"] = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    facts["provenance"] = page.locator("#provenance").inner_text()
    page.keyboard.press("Enter")
    facts["link"] = page.evaluate("document.activeElement.href")
    page.keyboard.press("Escape")
    facts["back in the table"] = page.evaluate("document.activeElement.tagName")
    return facts


def looks(browser: Browser, path: Path, facts: dict[str, Any], shots: Path | None) -> None:
    """Both themes at both widths: colours, contrast, and whether the page is wider than it may."""
    for theme in ("light", "dark"):
        for name, size in (("wide", WIDE), ("phone", PHONE)):
            with opened(browser, path, facts, size, theme) as page:
                page.locator(
                    "summary", has_text="What is shown"
                ).click() if name == "phone" else None
                back = "getComputedStyle(document.body).backgroundColor"
                page.get_by_label("Gains").check()
                page.locator("#board tbody td").nth(1).focus()
                facts[f"{theme} {name}"] = {
                    "back": page.evaluate(back),
                    "contrast": page.evaluate(CONTRAST),
                    "wider": page.evaluate("document.documentElement.scrollWidth - innerWidth"),
                    "gap": page.locator("#gap svg").count(),
                }
                if shots is not None:
                    page.screenshot(path=shots / f"{theme}-{name}.png", full_page=True)
                if name == "wide":
                    page.locator("#theme").click()
                    facts[f"{theme} turned"] = page.evaluate(back)


def first_screens(browser: Browser, path: Path, shots: Path | None) -> dict[str, Any]:
    """What of a board with credit is in sight as it opens, at two widths, in every way to read it.

    By name: places in pixels, down the page, contrasts, and the bars that are seen whole.
    """
    facts: dict[str, Any] = {}
    ways: dict[str, dict[str, Any]] = {
        "light": {"color_scheme": "light"},
        "dark": {"color_scheme": "dark"},
        "no script": {"java_script_enabled": False},
        "print": {},
    }
    for width, height in ((1400, 1000), (400, 900)):
        for way, given in ways.items():
            view = {"width": width, "height": height}
            context = browser.new_context(viewport=view, **given)  # type: ignore[arg-type]  # so
            page = context.new_page()
            page.goto(path.as_uri())
            if way == "print":
                page.emulate_media(media="print")
            bars = [one.bounding_box() for one in page.locator(".bar:not(.head) svg").all()]
            filters = page.locator("summary", has_text="What is shown").bounding_box()
            seen: dict[str, Any] = {
                "bars": [[one["y"], one["y"] + one["height"], one["width"]] for one in bars if one],
                "filters": filters and filters["y"],
                "height": height,
                "table": page.locator("#board tbody td").count(),
                "without script": page.locator("noscript table").count(),
            }
            if way != "no script":  # where nothing is evaluated
                seen["contrast"] = page.evaluate(CONTRAST)
                seen["wider"] = page.evaluate(WIDER, way == "print")
            if shots is not None:
                page.screenshot(path=shots / f"credit-{way.replace(' ', '-')}-{width}.png")
            facts[f"{way} {width}"] = seen
            context.close()
    return facts


def big(page: Page) -> dict[str, Any]:
    """How much of a large board is in the page at once, and how long things take, in ms."""
    count = "document.querySelectorAll('#board tbody td').length"
    timed = """(selector) => new Promise((done) => {
      const start = performance.now();
      document.querySelector(selector).click();
      requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
    })"""
    facts: dict[str, Any] = {"cells": page.evaluate(count)}
    facts["columns"] = page.evaluate("document.querySelector('#board tbody tr').cells.length - 1")
    facts["sort"] = page.evaluate(timed, "#board thead tr + tr button")
    facts["gains"] = page.evaluate(timed, "#gains")
    facts["heat"] = page.evaluate(timed, "#heat")
    page.evaluate("document.getElementById('scroll').scrollTo(0, 1e6)")
    # waiting for a function would evaluate text, which the policy of the page refuses
    page.locator("#board tbody tr").nth(facts["cells"] // facts["columns"]).wait_for(
        state="attached"
    )
    facts["cells after scrolling"] = page.evaluate(count)
    rows = facts["cells after scrolling"] // facts["columns"]
    page.locator("#board tbody tr").nth(rows - 1).locator("td").first.focus()
    page.keyboard.press("ArrowDown")
    facts["below the last"] = page.evaluate("document.activeElement.parentElement.ariaRowIndex")
    facts["last before"] = rows
    page.locator("#more").click()
    facts["cells in all"] = page.evaluate(count)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("large", type=Path)
    parser.add_argument("credit", type=Path)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--shots", type=Path)
    asked = parser.parse_args()
    facts: dict[str, Any] = {"errors": [], "requests": []}
    with sync_playwright() as play:
        # in a container, root has no other way; the pages are our own
        browser = play.chromium.launch(executable_path=asked.chromium, args=["--no-sandbox"])
        with opened(browser, asked.page, facts, WIDE) as page:
            facts["used"] = used(page)
        with opened(browser, asked.page, facts, WIDE) as page:
            facts["keys"] = by_keys(page)
        looks(browser, asked.page, facts, asked.shots)
        with opened(browser, asked.large, facts, WIDE) as page:
            facts["big"] = big(page)
        facts["credit"] = first_screens(browser, asked.credit, asked.shots)
        browser.close()
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
