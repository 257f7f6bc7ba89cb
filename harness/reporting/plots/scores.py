"""Pure: lines -> the scores that a picture shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from harness.errors import MissingScores
from harness.reporting.chosen import Chosen, takes_all_rows
from harness.reporting.grid import Grid
from harness.reporting.lines import Line, Setting, headlines, in_order
from harness.text import counted
from harness.types import Shots
from harness.values import PositiveWhole


class View(Chosen):
    """What a picture shows of records: by default, everything.

    `shots` is the number of shots (or `all`) of each protocol that adapts, by default the nearest
    to five. `rows` is how many units of each task `tsne` lays out. `option` is the
    option that `sweep` varies, and `loss` whether `sweep` shows the loss instead of the score.
    """

    shots: PositiveWhole | Literal["all"] | None = None
    rows: PositiveWhole = 500
    option: str = ""
    loss: bool = False


def lacking(picture: str, shows: str, shown: Iterable[object], do: str) -> MissingScores:
    """The error for a picture: what it shows, what of that was found, and what to do about it."""
    names = "; ".join(map(str, shown)) or "none"
    return MissingScores(f"{picture} shows {shows}, found {names}; {do}")


def lines_under(lines: Iterable[Line], view: View, *protocols: str) -> list[Line]:
    """The lines under some protocols, or under those that the view names."""
    return [line for line in lines if view.protocols or line.protocol in protocols]


def headline(settings: Iterable[Setting], shots: Shots | None = None) -> list[Setting]:
    """One setting of each protocol: that with `shots`, or by default nearest to the papers' five.

    Raises MissingScores where a protocol was not evaluated with `shots`.
    """
    settings = list(settings)
    chosen = in_order(headlines(settings, shots).values())
    for setting in chosen:
        if (
            shots is not None
            and setting.shots not in (0, shots)
            and not takes_all_rows(setting.protocol)
        ):
            counts = (str(other.shots) for other in settings if other.protocol == setting.protocol)
            raise MissingScores(
                f"no record of {setting.protocol} has {counted(shots, 'shot')}, found "
                f"{', '.join(counts)}; make them with harness evaluate --model MODEL --shots "
                f"{shots}"
            )
    return chosen


def one_setting(what: str, scores: Grid, view: View) -> Setting:
    """The one setting that a picture of one protocol shows.

    Raises MissingScores for none or several, and if the view asks for shots of a protocol that
    draws no rows.
    """
    settings = headline(scores.settings, view.shots)
    if len(settings) != 1:
        raise lacking(what, "one protocol", settings, "name one with --protocols and its options")
    if view.shots is not None and not settings[0].shots:
        raise MissingScores(
            f"{what} has {counted(view.shots, 'shot')}, and {settings[0]} adapts to no drawn rows; "
            "leave out --shots, or name another with --protocols"
        )
    return settings[0]
