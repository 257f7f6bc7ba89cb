"""Shell: records -> the files of a board."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from harness.files import check_place, replacing, write_text
from harness.reporting.boards import latex, markdown, tidy
from harness.reporting.boards.board import Board, board_of
from harness.reporting.boards.page import page
from harness.reporting.lines import Line, read_lines


def leaderboard(places: Sequence[str | Path], *, out: str | Path) -> list[Path]:
    """Write the board of all records in files and folders to a folder; the paths.

    board.md, board.csv, board.parquet, board.tex and index.html. Raises BrokenRecord, before
    anything is written.
    """
    import pyarrow.parquet

    folder = Path(out)
    check_place(folder.absolute())
    board = board_of(read_lines(places))
    texts = rendered(board, folder)
    for name, text in texts.items():
        write_text(folder / name, text)
    with replacing(folder / "board.parquet") as file:
        table = tidy.as_table(board.lines, board.rows_of_lines, files(board.lines, folder))
        pyarrow.parquet.write_table(table, file)
    return [folder / name for name in (*texts, "board.parquet")]


def rendered(board: Board, out: Path) -> dict[str, str]:
    """By name, the text of every file of a board whose links start in the folder `out`."""
    places = files(board.lines, out)
    return {
        "board.md": markdown.rendered(board),
        "board.csv": tidy.as_csv(board.lines, board.rows_of_lines, places),
        "board.tex": latex.rendered(board),
        "index.html": page.rendered(board, places),
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
