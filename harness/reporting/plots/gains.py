"""What a pre-merging method adds to the same merger without it (Procrustes, Figures 2 and 3)."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.boards.board import Board, board_of
from harness.reporting.difference import OPEN, Difference
from harness.reporting.figures import Axes, Figure, wrapped_title
from harness.reporting.grid import board_row_names
from harness.reporting.lines import CURRENT, Line, grouped
from harness.reporting.plots.marks import (
    BLACK,
    Mark,
    add_legend_entry,
    drawn_rows,
    height_of,
    marks,
    whisker,
)
from harness.reporting.plots.scores import View, lacking, lines_under, one_setting
from harness.text import few, plain

PALE_OPACITY = 0.35
"""The opacity of a bar that is not significant."""
BAR, CLOSER = 0.14, 0.05
"""Inches: the thickness of a bar, and how much closer bars of a merger are than other rows."""


def picture(lines: Sequence[Line], view: View) -> Figure:
    """The gains of a board: how far merges with a pre-merging stage are above those without it.

    Bars from zero below the name of each merger, with whiskers. Under Current Eval, unless the view
    names another protocol. Raises MissingScores where no such pair of merges has different scores.
    """
    board = board_of(lines_under(lines, view, CURRENT))
    scores, partners = board.scores, board.counterparts
    if not partners:
        same = f"only {few(sorted(board.unchanged))}, with the same scores as without"
        none = f"no such pair among {few(scores.models('merged')) or 'no merges'}"
        raise lacking(
            "gains",
            "merges with a pre-merging method beside the same merges without it",
            [same if board.unchanged else none],
            "make them with harness merge EXPERTS --merger M --out MERGED, once with --premerge P "
            "and once without, and harness evaluate of both",
        )
    setting = one_setting("gains", scores, view)
    columns = scores.columns_under(setting)
    drawn = [
        row for row in partners if any((row, setting, column) in board.gained for column in columns)
    ]
    plain_row, stages = _unfolded(board), _stages(board)
    rows: list[tuple[str, str | None]] = []
    for merger, group in grouped(drawn, partners.__getitem__).items():
        labels = [(row if row in plain_row else stages[row], row) for row in group]
        rows += [(plain_row.get(merger, merger), None), *labels]
    looks = marks(dict.fromkeys(stages[row] for row in drawn))
    title = f"Gain over the merger alone, under {setting}"
    with drawn_rows(
        title if len(columns) == 1 else f"{title} (each panel on a scale of its own)",
        [name for name, _ in rows],
        [(scores.title(column), scores.metric_label(column)) for column in columns],
        1.9,
        [height_of([name]) - (0 if row is None else CLOSER) for name, row in rows],
        most=6,
        sharex=False,
    ) as (figure, panels, places):
        for axes, column in zip(panels, columns, strict=True):
            axes.axvline(0, color=BLACK, linewidth=1)
            axes.margins(x=0.35)  # room for the numbers at the ends of the bars
            axes.use_sticky_edges = False
            names = axes.get_yticklabels()  # empty except in the first column
            for (_, row), name in zip(rows, names, strict=False):
                name.set_fontweight("bold" if row is None else "normal")
            for (_, row), y in zip(rows, places, strict=True):
                if row is not None and (gain := board.gained.get((row, setting, column))):
                    _bar(axes, gain, y, looks[stages[row]])
        if board.unchanged:
            silent = f"Not drawn, as no score changes: {', '.join(sorted(board.unchanged))}"
            text = wrapped_title(plain(silent), figure.get_figwidth())
            figure.suptitle(f"{figure.get_suptitle()}\n{text}")
    return figure


def _unfolded(board: Board) -> dict[str, str]:
    """By the name of a folded row, one of its rows that is not `unchanged`."""
    return {name: row for row, name in board.joint_names.items() if row not in board.unchanged}


def _stages(board: Board) -> dict[str, str]:
    """By row, the pre-merging stages that its counterpart lacks."""
    plain_row, partners = _unfolded(board), board.counterparts
    lines = dict(zip(board_row_names(board.lines), board.lines, strict=True))
    stages = {
        row: lines[plain_row.get(row, row)].premerge for row in (*partners, *partners.values())
    }
    return {
        row: "+".join(stages[row][: len(stages[row]) - len(stages[partners[row]])])
        for row in partners
    }


def _bar(axes: Axes, gain: Difference, y: float, look: Mark) -> None:
    unsure = gain.significant is False
    axes.barh(
        y,
        gain.points,
        height=BAR,
        facecolor=look.colour,
        edgecolor="white" if look.hatch else look.colour,
        hatch=look.hatch,
        linewidth=0,
        alpha=PALE_OPACITY if unsure else 1,
    )
    if unsure:
        add_legend_entry(axes, f"{OPEN} and pale: not significant", linewidth=6, alpha=PALE_OPACITY)
    whisker(axes, y, gain)
    right = gain.points >= 0
    ends = sorted((gain.points, *(gain.within or ())))
    axes.annotate(
        str(gain),
        (ends[-1 if right else 0], y),
        (4 if right else -4, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        fontsize=8,
    )
