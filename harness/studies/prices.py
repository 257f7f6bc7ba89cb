"""What a step takes on this machine, from how long others took here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from harness.errors import HarnessError
from harness.files import cache_dir, read_json, write_json
from harness.studies.steps import Step, digest_of

KEPT = 25
"""How many of the last times are kept of one kind of step."""


def price(step: Step) -> float | None:
    """Seconds that a step takes, by those most like it; None where none was timed here."""
    for kind in _kinds(step):
        if rates := _rates(kind):
            return median(rates) * step.size
    return None


def paid(step: Step, seconds: float) -> None:
    """Remember how long a step took."""
    for kind in _kinds(step):
        _remember(kind, seconds / step.size)


def _kinds(step: Step) -> Iterator[tuple[str, ...]]:
    """What a step is like, from most to least."""
    first = "later" if step.after else "first"
    yield step.verb, step.base, step.about, first
    yield step.verb, step.base, first
    yield step.verb, step.base


def _path(kind: Sequence[str]) -> Path:
    return cache_dir("times") / f"{digest_of(list(kind))}.json"


def _rates(kind: Sequence[str]) -> list[float]:
    """Seconds for each unit of size, of the last steps of a kind."""
    path = _path(kind)
    if not path.is_file():
        return []
    try:
        rates = read_json(path, "times of steps").get("rates", [])
        return [float(one) for one in rates if one > 0]
    except (HarnessError, TypeError, ValueError):  # of a cache: what is broken is made again
        return []


def _remember(kind: Sequence[str], rate: float) -> None:
    """Add one; of two at the same moment one may get lost."""
    rates = [*_rates(kind), rate][-KEPT:]
    write_json(_path(kind), {"kind": list(kind), "rates": rates})
