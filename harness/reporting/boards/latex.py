r"""Pure: a board -> LaTeX in the layouts of the papers, with booktabs.

For each protocol experts' min, mean and max above the merges, the gain of what was done before
merging as a subscript (Procrustes merging, Tables 1 to 3); methods x protocols with deviations
(FT-Classifier Eval, Table 2); in-domain and out-of-domain (rotation symmetry, Table 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from string import ascii_lowercase

from harness.reporting.boards.board import MEAN, Board
from harness.reporting.boards.gains import OPEN
from harness.reporting.boards.legend import BOLD, legend, notes
from harness.reporting.grid import Cell, Reading, short_task
from harness.text import points, tex

RULE = r"\midrule"
"""A line between groups of rows, as a row."""
ROWS = 30
"""Of one table: with its caption and note it fits on a page."""
COMMANDS = (
    r"\providecommand{\boardfit}[1]{\sbox0{#1}\ifdim\wd0>\linewidth"
    r"\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi}",
    r"\providecommand{\boardnote}[1]{\par\smallskip{\footnotesize\raggedright#1\par}}",
)
"""What tables are set with: no wider than the line, with a note below."""
OF_PDFLATEX = 0x17F
"""The last sign that pdflatex has without a package for a script of its own."""
SUBSCRIPTS = "Subscripts: points gained over the same merge without the first method before it."
PLUS_MINUS = r"$\pm$"
MARKS = {"±": PLUS_MINUS, BOLD: r"\textbf{", "(sd)": "(sd ", OPEN: f"{OPEN}}}$"}
"""How what a legend names stands in a row of a table, where not by its name."""


def rendered(board: Board) -> str:
    """The tables of a board, for a document that uses booktabs and graphicx."""
    tables = "\n".join([*_gains(board), *_protocols(board), *_domains(board)])
    head = [r"% \usepackage{booktabs,graphicx}; wide tables are shrunk to the line: turn the page"]
    if any(ord(sign) > OF_PDFLATEX for sign in tables):
        head.append("% names have signs that pdflatex has not: use xelatex or lualatex, and a font")
    return "\n".join([*head, *COMMANDS, tables]) + "\n"


def _gains(board: Board) -> Iterator[str]:
    """For each protocol a table of rows x tasks, merges by what was done before them."""
    for reading in board.headlines.values():
        rows = [name for name, _ in board.rows_under(reading)]
        groups: dict[str, list[str]] = {}
        for row in rows:
            line = board.of_row.get(row)
            merged = line is not None and line.role == "merged"
            groups.setdefault(line.premerge if line and merged else "references", []).append(row)
        lines = []
        for number, group in enumerate(groups.values()):
            lines += [RULE] if number else []
            lines += [_with_gains(board, row, reading) for row in group]
        heads = ["", *(_head(board, column) for column in board.scores.columns)]
        note = notes(board.scores)[reading]
        yield from _tables(board, f"{reading}: {_metrics(board)}", heads, lines, note=tex(note))


def _protocols(board: Board) -> Iterator[str]:
    """Methods x protocols, each with its deviation over draws."""
    if len(board.headlines) < 2:
        return
    said = notes(board.scores)
    distinct = dict.fromkeys(text for one in board.headlines.values() if (text := said[one]))
    letters = {
        text: f"$^{{{sign}}}$" for text, sign in zip(distinct, ascii_lowercase, strict=False)
    }
    lines: list[str] = []
    for row in board.scores.rows:
        read = [one for one in board.headlines.values() if any(board.scores.row(row, one))]
        if len(read) > 1:
            lines += [RULE] if lines else []
            lines += [
                f"{tex(row) if not number else ''} & "
                f"{tex(one)}{letters.get(said[one], '')} & {_with_spread(board, row, one)}"
                for number, one in enumerate(read)
            ]
    if lines:
        heads = ["", "protocol", *(_head(board, column) for column in board.scores.columns)]
        caption = f"Methods and protocols: {_metrics(board)}"
        note = ". ".join(f"{letter} {tex(text)}" for text, letter in letters.items())
        yield from _tables(board, caption, heads, lines, texts=2, note=note)


def _domains(board: Board) -> Iterator[str]:
    """Rows x tasks in the domains of experts and out of them, with the mean over each."""
    inside = {line.task for line in board.lines if line.role == "expert"}
    groups = {
        "in-domain": [task for task in board.scores.tasks if task in inside],
        "out-of-domain": [task for task in board.scores.tasks if task not in inside],
    }
    if not all(groups.values()):
        return
    for reading in board.headlines.values():
        lines = []
        for row in board.scores.rows:
            cells = [
                [board.scores.cells.get((row, reading, task)) for task in tasks]
                for tasks in groups.values()
            ]
            if any(cell for group in cells for cell in group):
                shown = [text for group in cells for text in (*map(_plain, group), _mean(group))]
                lines.append(f"{tex(row)} & {' & '.join(shown)}")
        heads = [""]
        for tasks in groups.values():
            heads += [*(_head(board, task) for task in tasks), MEAN]
        spans = [f"{name} ({len(tasks)})" for name, tasks in groups.items()]
        widths = [len(tasks) + 1 for tasks in groups.values()]
        above = " & ".join(
            ["", *(rf"\multicolumn{{{n}}}{{c}}{{{s}}}" for n, s in zip(widths, spans, strict=True))]
        )
        if lines:
            caption, note = f"{reading}, in and out of domain", tex(notes(board.scores)[reading])
            yield from _tables(board, caption, heads, lines, above=above, note=note)


# Cells -------------------------------------------------------------------------------------


def _texts(board: Board, row: str, reading: Reading) -> list[str]:
    """The values of a row, the best in bold."""
    shown = []
    for column, cell in zip(board.scores.columns, board.scores.row(row, reading), strict=True):
        best = board.best.get((reading, column))
        text = _plain(cell)
        text = rf"\textbf{{{text}}}" if cell and best and row in best.rows else text
        if cell and cell.across_experts is not None:
            text += rf" {{\scriptsize(sd {points(cell.across_experts)})}}"
        shown.append(text)
    return shown


def _with_gains(board: Board, row: str, reading: Reading) -> str:
    values = zip(_texts(board, row, reading), board.gains(row, reading), strict=True)
    cells = [text if gain is None else f"{text}$_{{{gain}}}$" for text, gain in values]
    return " & ".join([tex(row), *cells])


def _with_spread(board: Board, row: str, reading: Reading) -> str:
    values = zip(_texts(board, row, reading), board.scores.row(row, reading), strict=True)
    cells = [
        text
        if cell is None or cell.deviation is None
        else rf"{text}{{\scriptsize$\pm${points(cell.deviation)}}}"
        for text, cell in values
    ]
    return " & ".join(cells)


def _plain(cell: Cell | None) -> str:
    return "" if cell is None else points(cell.mean)


def _mean(cells: Sequence[Cell | None]) -> str:
    known = [cell.mean for cell in cells if cell is not None]
    return points(sum(known) / len(known)) if len(known) == len(cells) else ""


# Tables ------------------------------------------------------------------------------------


def _head(board: Board, column: str) -> str:
    """The name of a task, without its group and split where that is clear."""
    return tex(short_task(column, board.scores.tasks))


def _metrics(board: Board) -> str:
    """The metric of every task, and its rows."""
    return "; ".join(
        f"{short_task(task, board.scores.tasks)} {' + '.join(line.metrics)}, {line.rows:,} rows"
        for task, line in board.tasks.items()
    )


def _tables(
    board: Board,
    caption: str,
    heads: Sequence[str],
    rows: Sequence[str],
    *,
    note: str,
    above: str = "",
    texts: int = 1,
) -> Iterator[str]:
    """Rows as one table, or as several that each fit on a page; `note` is what else is said."""
    for number, page in enumerate(_pages(rows)):
        text = f"{_legend(board, page)} {note[:1].upper()}{note[1:]}{'.' if note else ''}".strip()
        called = f"{caption} (continued)" if number else caption
        yield _table(called, heads, page, above=above, texts=texts, note=text)


def _legend(board: Board, rows: Iterable[str]) -> str:
    """What marks and rows of a table are, of those that are in it."""
    body = "\n".join(rows)
    said = ["Values x100.", *([SUBSCRIPTS] if "$_{" in body else [])]
    for term, text in legend(board, is_open=True):
        if MARKS.get(term, tex(term)) in body:
            said.append(f"{PLUS_MINUS if term == '±' else tex(term)}: {tex(text)}")
    return " ".join(said)


def _pages(rows: Sequence[str]) -> Iterator[Sequence[str]]:
    """The rows in parts that fit on a page, cut between groups where there is a cut."""
    while len(rows) > ROWS:
        cut = max((at for at in range(1, ROWS + 1) if rows[at] == RULE), default=ROWS)
        yield rows[:cut]
        rows = rows[cut + (rows[cut] == RULE) :]
    yield rows


def _table(
    caption: str,
    heads: Sequence[str],
    rows: Sequence[str],
    *,
    above: str,
    texts: int,
    note: str,
) -> str:
    ended = [row if row == RULE else rf"{row} \\" for row in rows]
    columns = "l" * texts + "r" * (len(heads) - texts)
    return "\n".join(
        [
            "",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{tex(caption)}.}}",
            rf"\boardfit{{\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            *([rf"{above} \\"] if above else []),
            rf"{' & '.join(heads)} \\",
            RULE,
            *ended,
            r"\bottomrule",
            r"\end{tabular}}",
            rf"\boardnote{{{note}}}",
            r"\end{table}",
        ]
    )
