"""Pure: what the numbers and marks of a board are, in words that every format shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from harness.reporting.boards.board import HOW, SAME, Board
from harness.reporting.difference import OPEN, Way
from harness.reporting.grid import CONSTANT, Grid
from harness.reporting.lines import Line, Setting
from harness.stats.intervals import FEWEST_SETS

BOLD = "Bold"
INTERVAL = "[ ]"
DRAWS = (
    "standard deviation over draws (n - 1); of a mean over tasks, that of the means of each draw. "
    "Other test rows and another training are not in it."
)
EXPERTS = "standard deviation over the experts of a task (n - 1)."
SETS = "standard deviation over sets of experts, or over the experts of a task (n - 1)."
OVER_SETS = " With three sets of experts or more, the test is over these, too."
OF_THESE = " A mean is over these very tasks; harness compare tests a claim about others."
OPEN_SAYS = (
    "a difference that is not significant (paired test over test units and draws, Holm over the "
    "column; of records without resamples: intervals or draws overlap)."
)
WAYS: Mapping[Way, str] = {
    "paired": "that do not differ significantly from it (paired test over test units and draws, "
    "Holm over the column)",
    "intervals": "whose interval over test rows, or whose draws, overlap with those of the best "
    "(records without resamples)",
    "printed": "that are printed alike (records without an interval)",
}
ADAPTED = {
    "chose the rows": "adapted to drawn rows; their labels only stratify the draw",
    "chose the rows and were read": "tuned on drawn rows and their labels",
    "were read": "tuned on rows drawn without stratification, and on their labels",
    "were not read": "adapted to rows without their labels",
}


def legend(board: Board, is_open: bool) -> list[tuple[str, str]]:
    """Each mark and row of the board with what it means; `is_open`: some difference has OPEN."""
    cells, rows = board.scores.cells.values(), board.scores.rows
    spread = SETS if board.sets > 1 else EXPERTS
    levels = sorted({line.level for line in board.scores.lines.values() if line.level})
    said = {
        "±": DRAWS if any(len(cell.values) > 1 for cell in cells) else "",
        "(sd)": spread if any(cell.experts for cell in cells) else "",
        INTERVAL: f"{100 * levels[0]:g} % confidence interval {_over(board)}." if levels else "",
        BOLD: _best(board),
        OPEN: OPEN_SAYS if is_open else "",
        SAME.strip(): _folded(board) if board.called else "",
        **{row: f"{text}." for row, text in HOW.items() if row in rows},
    }
    return [(term, text) for term, text in said.items() if text]


def _folded(board: Board) -> str:
    """Which rows are one."""
    groups: dict[str, list[str]] = {}
    for row, name in board.called.items():
        groups.setdefault(name, []).append(row)
    each = "; ".join(SAME.join(rows) for rows in groups.values())
    return f"rows with the same score in every column are one: {each}."


def _best(board: Board) -> str:
    """What is bold."""
    used = {way for best in board.best.values() for way in best.ways}
    alike = ", and those ".join(text for way, text in WAYS.items() if way in used)
    floor = (
        f" Never one that does not beat the {CONSTANT}." if CONSTANT in board.scores.rows else ""
    )
    several = OF_THESE if len(board.scores.tasks) > 1 else ""
    sets = OVER_SETS if board.sets >= FEWEST_SETS else ""
    return f"the best merge of a column, and those {alike}.{sets}{floor}{several}" if used else ""


def _over(board: Board) -> str:
    """What the intervals of a board are over."""
    kept = {line.resamples is not None for line in board.scores.lines.values() if line.interval}
    if kept == {True}:
        return "over test units, and over draws where there are several"
    rows = "over test rows, of these very draws and models"
    return rows if True not in kept else f"{rows}; where records keep resamples, over draws, too"


def seen(line: Line) -> list[str]:
    """In which half precision models ran, if in one, and what the protocol adapts to."""
    said = []
    if line.half:
        said.append(f"models ran in {line.half}")
    if line.adapted:
        said.append(ADAPTED.get(line.adapted, line.adapted))
    if line.transductive:
        said.append("transductive: these are the scored rows")
    return said


def noted(line: Line) -> list[str]:
    """What a protocol saw, and whether that leaves its fit open."""
    is_open = line.fewest < 1
    return seen(line) + (["fitted to fewer rows than features have dimensions"] if is_open else [])


def notes(scores: Grid, of: Callable[[Line], Sequence[str]] = noted) -> dict[Setting, str]:
    """The notes on each setting, '' if there are none."""
    said: dict[Setting, dict[str, None]] = {setting: {} for setting in scores.settings}
    for (_, setting, _), line in scores.lines.items():
        said[setting] |= dict.fromkeys(of(line))
    return {setting: "; ".join(texts) for setting, texts in said.items()}
