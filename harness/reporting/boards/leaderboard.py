"""Shell: records -> the files of a board."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.files import check_ours, check_place, replacing, write_text
from harness.reporting.boards import latex, markdown, tidy
from harness.reporting.boards.board import Board, board_of
from harness.reporting.boards.gains import any_told
from harness.reporting.boards.page import page
from harness.reporting.boards.samples import beside
from harness.reporting.lines import Line, read_lines

MARKS = {
    "board.md": rb"\A- Values are x100\.\n",
    "board.csv": rb"\Atask,split,kind,metric,rows,protocol,",
    "board.tex": rb"\\boardfit",
    "index.html": rb"<title>Board: ",
    "board.parquet": rb"premerge",
}
"""What the files of every board have in them."""


def leaderboard(places: Sequence[str | Path], *, out: str | Path) -> list[Path]:
    """Write the board of all records in files and folders to a folder; the paths.

    board.md, board.csv, board.tex, index.html and board.parquet, in the place of those of another
    board. Raises BrokenRecord, and OutputExists for files of another origin, before anything is
    written.
    """
    import pyarrow.parquet

    folder = Path(out)
    check_place(folder.absolute())
    check_ours({folder / name: mark for name, mark in MARKS.items()})
    board = board_of(read_lines(places), beside())
    table = _table(board, folder)
    texts = _texts(board, folder, table)
    for name, text in texts.items():
        write_text(folder / name, text())  # one at a time: of many records, they are large
    with replacing(folder / "board.parquet") as file:
        pyarrow.parquet.write_table(tidy.as_table(table), file)
    return [folder / name for name in (*texts, "board.parquet")]


def rendered(board: Board, out: Path) -> dict[str, str]:
    """By name, the text of every file of a board whose links start in the folder `out`."""
    return {name: text() for name, text in _texts(board, out, _table(board, out)).items()}


def _table(board: Board, out: Path) -> tidy.Table:
    made = tidy.table(board.lines, board.rows_of_lines, files(board.lines, out))
    if not any_told(board.gained):
        return made
    rows = zip(board.rows_of_lines, board.lines, strict=True)
    return tidy.with_gains(made, [board.gain(row, line) for row, line in rows])


def _texts(board: Board, out: Path, table: tidy.Table) -> dict[str, Callable[[], str]]:
    return {
        "board.md": lambda: markdown.rendered(board),
        "board.csv": lambda: tidy.as_csv(table),
        "board.tex": lambda: latex.rendered(board),
        "index.html": lambda: page.rendered(board, table["record"]),
    }


def files(lines: Sequence[Line], start: Path) -> list[str]:
    """Where the record of each line lies, as seen from a folder, with / between the parts."""
    root = os.path.realpath(start)
    seen: dict[str, str] = {}

    def folder(path: str) -> str:
        if path not in seen:
            seen[path] = os.path.relpath(os.path.realpath(path), root).replace(os.sep, "/")
        return seen[path]

    split = (os.path.split(line.path) for line in lines)
    return [f"{folder(head or '.')}/{name}" for head, name in split]
