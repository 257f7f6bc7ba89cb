"""Pure: what the numbers and marks of a board are, in words that every format shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.reporting.boards.best import WAYS
from harness.reporting.boards.board import HOW, Board
from harness.reporting.boards.gains import OPEN, OPEN_SAYS
from harness.reporting.grid import CONSTANT, Grid, Reading
from harness.reporting.lines import Line

BOLD = "Bold"
DETERMINED = "rows_per_dimension"
"""The fact that says, below one, that rows leave a fit open."""
ADAPTED = {
    "chose the rows": "adapted to drawn rows; their labels only stratify the draw",
    "chose the rows and were read": "tuned on drawn rows and their labels",
    "were read": "tuned on rows drawn without stratification, and on their labels",
    "were not read": "adapted to rows whose labels were not read",
}


def legend(board: Board, is_open: bool) -> list[tuple[str, str]]:
    """Each mark or row with what it is, only where there is any; `is_open`: a difference is."""
    said = []
    draws, experts, levels = board.spreads
    if draws:
        said.append(
            (
                "±",
                "standard deviation over draws (n - 1); of a mean over tasks, that of the means of "
                "each draw. It says nothing of other test rows or of another training.",
            )
        )
    if experts:
        said.append(("(sd)", "standard deviation over the experts of a task (n - 1)."))
    if levels:
        said.append(("[ ]", f"{100 * levels[0]:g} % interval {_over(board)}."))
    if ways := {way for best in board.best.values() for way in best.ways}:
        told = ", and those ".join(text for way, text in WAYS.items() if way in ways)
        these = " A mean is of these very tasks: of others, harness compare says more."
        several = these if len(board.scores.tasks) > 1 else ""
        floor = f" None that the {CONSTANT} reaches." if CONSTANT in board.scores.rows else ""
        said.append((BOLD, f"the best merge of a column, and those {told}.{floor}{several}"))
    if is_open:
        said.append((OPEN, OPEN_SAYS))
    return said + [(row, f"{text}.") for row, text in HOW.items() if row in board.scores.rows]


def _over(board: Board) -> str:
    """What the intervals of a board are over."""
    kept = {line.resamples is not None for line in board.scores.lines.values() if line.interval}
    if kept == {True}:
        return "over test units, and over draws where there are several"
    rows = "over test rows, with draws, training and model held"
    return rows if True not in kept else f"{rows}; of records that keep resamples, over draws too"


def seen(line: Line) -> list[str]:
    """What the protocol of a line saw beside the rows that it is scored on."""
    said = []
    if line.adapted:
        said.append(ADAPTED.get(line.adapted, line.adapted))
    if line.transductive:
        said.append("transductive: these rows are those that are scored")
    return said


def noted(line: Line) -> list[str]:
    """What a protocol saw, and whether that leaves its fit open."""
    is_open = dict(line.facts).get(DETERMINED, 1) < 1
    return seen(line) + (["fitted to fewer rows than features have dimensions"] if is_open else [])


def notes(scores: Grid, of: Callable[[Line], Sequence[str]] = noted) -> dict[Reading, str]:
    """What is said of the lines of each reading, '' if nothing."""
    said: dict[Reading, dict[str, None]] = {reading: {} for reading in scores.readings}
    for (_, reading, _), line in scores.lines.items():
        said[reading] |= dict.fromkeys(of(line))
    return {reading: "; ".join(texts) for reading, texts in said.items()}
