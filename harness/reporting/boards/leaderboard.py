"""Shell: records -> the files of a board."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from harness.errors import BadRecipe
from harness.evaluation.packs import SUFFIX
from harness.files import check_ours, check_place, write_files
from harness.reporting.bases import by_base
from harness.reporting.boards import latex, markdown, page
from harness.reporting.boards.about import summary
from harness.reporting.boards.board import Board, board_of
from harness.reporting.boards.over import BoardCredits, board_credits, credits_over_boards
from harness.reporting.boards.page import hash_of, shades
from harness.reporting.boards.templates import source, template
from harness.reporting.chosen import Chosen, read_lines
from harness.reporting.difference import Difference
from harness.reporting.frame import as_csv, table
from harness.reporting.grid import board_row_names
from harness.reporting.lines import Line, grouped
from harness.values import validated

if TYPE_CHECKING:
    import pandas

MARKS = {
    "board.md": rb"(?m)^- Values are x100\.\n",
    "board.csv": rb"\Atask,split,kind,metric,rows,protocol,",
    "board.tex": rb"\\boardfit",
    "index.html": rb"<title>Boards?(</title>|: )",
    "board.parquet": rb"premerge",
}
"""For each file of a board, a pattern that identifies it as one: only such files are replaced."""
INDEX = "index.html"


def leaderboard(
    places: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    tasks: Sequence[str] = (),
    protocols: Sequence[str] = (),
    limit: int | Literal["all"] | None = None,
    train_limit: int | Literal["all"] | None = None,
    draws: int | None = None,
    max_length: int | None = None,
    models: Sequence[str] = (),
    bases: Sequence[str] = (),
    each: bool = False,
) -> list[Path]:
    """Write the board of the records in files and folders to a folder; returns the paths.

    Writes board.md, board.csv, board.tex, index.html and board.parquet, all or none of them, over
    those of an older board. The other arguments choose records by task, protocol, limit (`all`:
    of all rows), draws, length of rows, model (whose references stay) and base. `each` makes a
    board for every place, and records of several bases make one for every base: each is in a folder
    of its name, with an index.html over them. Raises BrokenRecord, MissingScores for a choice that
    no record meets, and OutputExists for files of another origin, before anything is written.
    """
    folder, places = Path(out), [places] if isinstance(places, str | Path) else places
    check_place(folder.absolute())
    fields = {"tasks": tasks, "protocols": protocols, "limit": limit, "models": models}
    fields |= {"train_limit": train_limit, "draws": draws, "max_length": max_length, "bases": bases}
    chosen = validated(Chosen, fields, "leaderboard")
    groups = _by_name(places) if each else {"": [*places]}
    folders: dict[str, Path] = {}
    written: list[Path] = []

    def files() -> Iterator[tuple[Path, str | bytes]]:
        # one board at a time: with many records they are large
        summaries: dict[str, Mapping[str, str]] = {}
        credits: dict[str, BoardCredits] = {}
        for name, group in groups.items():
            for base, lines in by_base(read_lines(group, chosen)).items():
                board_name = "-".join(filter(None, (name, base)))
                place = folders.setdefault(board_name, folder / board_name)
                if board_name in summaries:
                    raise BadRecipe(
                        f"two boards would be {place}; expected records in folders of other names"
                    )
                check_ours({place / file_name: mark for file_name, mark in MARKS.items()})
                board = board_of(lines)
                summaries[board_name] = summary(board)
                credits[board_name] = board_credits(board)
                for file, content in rendered(board, place):
                    written.append(place / file)
                    yield place / file, content
        if [*summaries] != [""]:
            check_ours({folder / INDEX: MARKS[INDEX]})
            written.append(folder / INDEX)
            yield folder / INDEX, index(summaries, credits)

    write_files(files())
    if "" not in folders:
        _drop_single(folder)
    return written


def _by_name(places: Sequence[str | Path]) -> dict[str, list[str | Path]]:
    """The places by the name of their board. Raises BadRecipe for two places of one name."""
    boards = grouped(places, lambda place: Path(place).absolute().name.removesuffix(SUFFIX))
    if doubled := next((group for group in boards.values() if len(group) > 1), None):
        raise BadRecipe(
            f"{doubled[0]} and {doubled[1]} would be one board; expected folders of other names"
        )
    return boards


def _drop_single(folder: Path) -> None:
    """Remove the files of an older single board from a folder that now holds several boards."""
    for name, mark in MARKS.items():
        path = folder / name
        if name != INDEX and path.is_file() and re.search(mark, path.read_bytes()):
            path.unlink()


def rendered(board: Board, out: Path) -> Iterator[tuple[str, str | bytes]]:
    """The name and content of each file of a board; links are relative to the folder `out`."""
    tidy = _table(board, out)
    yield "board.md", markdown.rendered(board)
    yield "board.csv", as_csv(tidy)
    yield "board.tex", latex.rendered(board)
    yield "index.html", page.rendered(board, [*tidy["record"]])
    yield "board.parquet", tidy.to_parquet(compression="zstd")


def index(boards: Mapping[str, Mapping[str, str]], credits: Mapping[str, BoardCredits]) -> str:
    """The page over several boards, in folders of these names beside it, with their summaries."""
    style = source("board.css") + source("boards.css") + shades()
    boards = dict(sorted(boards.items()))
    return template("boards.html").render(
        style=style,
        style_hash=hash_of(style),
        boards=boards,
        links={name: f"{quote(name)}/{INDEX}" for name in boards},
        over=credits_over_boards({name: credits[name] for name in boards}),
    )


def _table(board: Board, out: Path) -> pandas.DataFrame:
    """The tidy table of a board, with a column of gains and one of their significance, if any."""
    frame = table(board.lines, board.rows_of_lines, relative_paths(board.lines, out))
    if not board.gained:
        return frame
    rows = zip(board.rows_of_lines, board_row_names(board.lines), board.lines, strict=True)
    gains = [
        Difference(0.0, significant=False)
        if own in board.unchanged
        else board.gained.get((row, line.setting, line.task))
        for row, own, line in rows
    ]
    points = [None if gain is None else gain.points for gain in gains]
    significant = [None if gain is None else gain.significant for gain in gains]
    frame = frame.assign(gain=points, significant=significant)
    return frame.astype({"gain": "float64", "significant": "boolean"})


def relative_paths(lines: Sequence[Line], start: Path) -> list[str]:
    """The path of the record of each line relative to the folder `start`, with / as separator."""
    root = os.path.realpath(start)

    @cache
    def folder(path: str) -> str:
        return os.path.relpath(os.path.realpath(path), root).replace(os.sep, "/")

    split = (os.path.split(line.path) for line in lines)
    return [f"{folder(head or '.')}/{name}" for head, name in split]
