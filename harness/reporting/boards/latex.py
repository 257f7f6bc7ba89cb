r"""Pure: a board -> LaTeX in the layouts of the papers, with booktabs.

Three layouts: for each protocol, the experts' min, mean and max above the merges, with gains of
pre-merging methods as subscripts (Procrustes merging, Tables 1 to 3); methods x protocols with
deviations (FT-Classifier Eval, Table 2); in-domain and out-of-domain (rotation symmetry, Table 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase

from harness.reporting.boards.board import Board, ShownCell
from harness.reporting.boards.legend import BOLD, legend, notes_by_setting
from harness.reporting.boards.sections import heads_of
from harness.reporting.boards.templates import template
from harness.reporting.difference import OPEN
from harness.reporting.grid import MEAN, mean_cell, short_task
from harness.text import points, tex

RULE = r"\midrule"
"""A row that is a line between groups of rows."""
ROWS = 30
"""The most rows of one table: with its caption and note it fits on a page."""
MORE = " (continued)"
COMMANDS = (
    r"\providecommand{\boardfit}[1]{\sbox0{#1}\ifdim\wd0>\linewidth"
    r"\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi}",
    r"\providecommand{\boardnote}[1]{\par\smallskip{\footnotesize\raggedright#1\par}}",
)
"""LaTeX commands: a table that is no wider than the line, and a note below it."""
OF_PDFLATEX = 0x17F
"""The last code point that pdflatex sets without a package for its script."""
SUBSCRIPTS = "Subscripts: points gained over the same merge without the first method before it."
PLUS_MINUS = r"$\pm$"
TEX_OF_TERM = {"±": PLUS_MINUS, BOLD: r"\textbf{", "(sd)": "(sd ", OPEN: f"{OPEN}}}$"}
"""The LaTeX by which a term of the legend is found in rows, where it is not the term itself."""


@dataclass(frozen=True)
class TexTable:
    """Rows of LaTeX under heads, with `RULE` between groups of rows.

    The first `texts` columns are words. `note` stands below the table, `above` over the heads.
    """

    caption: str
    heads: Sequence[str]
    rows: Sequence[str]
    note: str = ""
    above: str = ""
    texts: int = 1

    @property
    def columns(self) -> str:
        """The column specification: words to the left, numbers to the right."""
        return "l" * self.texts + "r" * (len(self.heads) - self.texts)


def rendered(board: Board) -> str:
    """The tables of a board, for a document that uses booktabs and graphicx."""
    whole = [*_gains(board), *_protocols(board), *_domains(board)]
    tables = [_noted(board, page) for table in whole for page in _pages(table)]
    text = str([(table.caption, *table.heads, *table.rows, table.note) for table in tables])
    is_odd = any(ord(sign) > OF_PDFLATEX for sign in text)
    return template("board.tex").render(tables=tables, commands=COMMANDS, rule=RULE, is_odd=is_odd)


def _gains(board: Board) -> Iterator[TexTable]:
    """For each protocol a table of rows x tasks, merges grouped by their pre-merging methods."""
    notes = notes_by_setting(board.scores)
    for setting in board.scores.headlines.values():
        groups: dict[object, list[str]] = {}
        for row, cells in board.under(setting):
            line = board.scores.line_of_row.get(row)
            group = line.premerge if line and line.role == "merged" else "references"
            groups.setdefault(group, []).append(" & ".join([tex(row), *map(_with_gain, cells)]))
        caption, rows = f"{setting}: {_metrics(board)}", _grouped(groups.values())
        yield TexTable(caption, ["", *map(tex, heads_of(board))], rows, note=tex(notes[setting]))


def _protocols(board: Board) -> Iterator[TexTable]:
    """Methods x protocols with deviations over draws, of rows under two protocols or more."""
    notes = notes_by_setting(board.scores)
    headlines = board.scores.headlines.values()
    distinct = dict.fromkeys(text for setting in headlines if (text := notes[setting]))
    count = len(ascii_lowercase)  # after z come aa, bb, ...
    letters = {
        text: f"$^{{{ascii_lowercase[place % count] * (place // count + 1)}}}$"
        for place, text in enumerate(distinct)
    }
    groups = []
    for row in board.scores.rows:
        under = [(setting, cells) for setting in headlines if any(cells := board.row(row, setting))]
        names = [tex(row), *[""] * len(under)]
        lines = [
            " & ".join(
                [name, tex(setting) + letters.get(notes[setting], ""), *map(_with_spread, cells)]
            )
            for name, (setting, cells) in zip(names, under, strict=False)
        ]
        groups += [lines] if len(lines) > 1 else []
    if groups:
        heads = ["", "protocol", *map(tex, heads_of(board))]
        caption = f"Methods and protocols: {_metrics(board)}"
        note = ". ".join(f"{letter} {tex(text)}" for text, letter in letters.items())
        yield TexTable(caption, heads, _grouped(groups), texts=2, note=note)


def _domains(board: Board) -> Iterator[TexTable]:
    """For each protocol a table of rows x tasks with and without experts, with the mean of each."""
    inside = {line.task for line in board.lines if line.role == "expert"}
    groups = {
        "in-domain": [task for task in board.scores.tasks if task in inside],
        "out-of-domain": [task for task in board.scores.tasks if task not in inside],
    }
    if not all(groups.values()):
        return
    notes = notes_by_setting(board.scores)
    heads, above = [""], [""]
    for name, tasks in groups.items():
        heads += [*(tex(short_task(task, board.scores.tasks)) for task in tasks), MEAN]
        above.append(rf"\multicolumn{{{len(tasks) + 1}}}{{c}}{{{name} ({len(tasks)})}}")
    for setting in board.scores.headlines.values():
        rows = []
        for row in board.scores.rows:
            texts = []
            for tasks in groups.values():
                cells = [board.scores.cells.get((row, setting, task)) for task in tasks]
                present = [cell for cell in cells if cell is not None]
                mean = mean_cell(present) if len(present) == len(cells) else None
                texts += [points(cell.mean) if cell else "" for cell in (*cells, mean)]
            rows += [" & ".join([tex(row), *texts])] if any(texts) else []
        if rows:
            caption, note = f"{setting}, in and out of domain", tex(notes[setting])
            yield TexTable(caption, heads, rows, above=" & ".join(above), note=note)


# Cells and rows ----------------------------------------------------------------------------


def _text(cell: ShownCell | None) -> str:
    """The value of a cell, the best in bold, with its deviation over experts."""
    if cell is None:
        return ""
    text = points(cell.cell.mean)
    text = rf"\textbf{{{text}}}" if cell.best else text
    spread = cell.cell.across_experts
    return text if spread is None else rf"{text} {{\scriptsize(sd {points(spread)})}}"


def _with_gain(cell: ShownCell | None) -> str:
    text = _text(cell)
    return text if cell is None or cell.gain is None else f"{text}$_{{{cell.gain}}}$"


def _with_spread(cell: ShownCell | None) -> str:
    text, spread = _text(cell), cell and cell.cell.deviation
    return text if spread is None else rf"{text}{{\scriptsize$\pm${points(spread)}}}"


def _metrics(board: Board) -> str:
    """The metrics and the number of rows of every task."""
    return "; ".join(
        f"{short_task(task, board.scores.tasks)} {' + '.join(line.metrics)}, {line.rows:,} rows"
        for task, line in board.tasks.items()
    )


def _grouped(groups: Iterable[Sequence[str]]) -> list[str]:
    """All rows, with a rule between groups."""
    return [row for group in groups for row in (RULE, *group)][1:]


def _pages(table: TexTable) -> Iterator[TexTable]:
    """The table in parts that fit on a page, cut between groups where possible."""
    rows = table.rows
    while len(rows) > ROWS:
        cut = max((index for index in range(1, ROWS + 1) if rows[index] == RULE), default=ROWS)
        yield replace(table, rows=rows[:cut])
        table = replace(table, caption=f"{table.caption.removesuffix(MORE)}{MORE}")
        rows = rows[cut + (rows[cut] == RULE) :]
    yield replace(table, rows=rows)


def _noted(board: Board, table: TexTable) -> TexTable:
    """The table with its whole note: the legend of its marks and rows, then its own note."""
    body = "\n".join(table.rows)
    sentences = ["Values x100.", *([SUBSCRIPTS] if "$_{" in body else [])]
    for term, text in legend(board, is_open=True):
        if TEX_OF_TERM.get(term, tex(term)) in body:
            sentences.append(f"{PLUS_MINUS if term == '±' else tex(term)}: {tex(text)}")
    if table.note:
        sentences.append(f"{table.note[:1].upper()}{table.note[1:]}.")
    return replace(table, note=" ".join(sentences))
