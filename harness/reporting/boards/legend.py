"""Pure: the legend of a board and notes on its settings, in words that every format shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.reporting.boards.board import COMPUTED_ROW_NOTES, SAME, Board
from harness.reporting.difference import OPEN
from harness.reporting.grid import Grid
from harness.reporting.lines import Line, Setting, grouped
from harness.reporting.sentences import rendered
from harness.text import counted
from harness.types import ALL

BOLD = "Bold"
INTERVAL = "[ ]"
ADAPTED = {
    "chose the rows": "adapted to drawn rows; their labels only stratify the draw",
    "chose the rows and were read": "fitted to drawn rows and their labels",
    "were read": "fitted to rows drawn without stratification, and to their labels",
    "were not read": "adapted to rows without their labels",
}
"""Notes by what the labels of drawn rows did (`Line.adapted`)."""
ADAPTED_TO_ALL = ADAPTED | {
    "chose the rows": "adapted to all rows; their labels only order them",
    "chose the rows and were read": "fitted to all rows and their labels",
    "were read": "fitted to all rows and their labels",
}
"""The same notes where all rows are drawn."""


def legend(board: Board, is_open: bool) -> list[tuple[str, str]]:
    """The marks and computed rows of a board, explained; `is_open`: some difference has `OPEN`."""
    cells, rows = board.scores.cells.values(), board.scores.rows
    terms = {
        "±": rendered("over_draws", board) if any(len(cell.values) > 1 for cell in cells) else "",
        "(sd)": rendered("over_experts", board) if any(cell.experts for cell in cells) else "",
        INTERVAL: rendered(
            "over_rows", [line for line in board.scores.lines.values() if line.level]
        ),
        BOLD: rendered("bold", board),
        OPEN: rendered("open", board) if is_open else "",
        SAME.strip(): _folded(board) if board.joint_names else "",
        "base": BASE_HEADS_NOTE if _under_several_heads(board.scores) else "",
        **{row: f"{text}." for row, text in COMPUTED_ROW_NOTES.items() if row in rows},
    }
    return [(term, text) for term, text in terms.items() if text]


BASE_HEADS_NOTE = (
    "under heads of experts, which follow in brackets: own head, the mean of theirs, beside merges "
    "whose heads were merged; kept head, the one that the task keeps. A base without a pooler "
    "has theirs, too, and so other features."
)


def _under_several_heads(scores: Grid) -> bool:
    """Whether the board has several rows of a base, distinguished by their heads."""
    bases = {row: line for (row, _, _), line in scores.lines.items() if line.role == "base"}
    return len({line.head for row, line in bases.items() if f"{line.head} head" in row}) > 1


def _folded(board: Board) -> str:
    """A sentence that lists the rows that are folded into one."""
    groups = grouped(board.joint_names, board.joint_names.__getitem__).values()
    names = "; ".join(map(SAME.join, groups))
    return f"rows with the same score in every column are one: {names}."


def adaptation_notes(line: Line) -> list[str]:
    """Notes on a line: any half precision that models ran in, and what the protocol adapts to."""
    notes = []
    if line.half:
        notes.append(f"models ran in {line.half}")
    if line.adapted:
        note = (ADAPTED_TO_ALL if line.shots == ALL else ADAPTED)[line.adapted]
        if line.train_limit:  # a limit: there may be fewer, and it is not all rows
            some = f"{counted(line.train_limit, 'training row')} at most"
            note = note.replace("all rows", some) if line.shots == ALL else f"{note}, of {some}"
        notes.append(note)
    if line.transductive:
        notes.append("transductive: these are the scored rows")
    return notes


def line_notes(line: Line) -> list[str]:
    """The notes of `adaptation_notes`, and one on fits to fewer rows than features have
    dimensions."""
    few_rows = "fitted to fewer rows than features have dimensions"
    return adaptation_notes(line) + [few_rows] * (line.rows_per_dimension < 1)


def notes_by_setting(
    scores: Grid, notes_of: Callable[[Line], Sequence[str]] = line_notes
) -> dict[Setting, str]:
    """The notes on each setting, joined; '' if there are none."""
    notes: dict[Setting, dict[str, None]] = {setting: {} for setting in scores.settings}
    for (_, setting, _), line in scores.lines.items():
        notes[setting] |= dict.fromkeys(notes_of(line))
    return {setting: "; ".join(texts) for setting, texts in notes.items()}
