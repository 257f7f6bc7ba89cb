"""How far sets of experts differ, and how many a difference of some points would need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import isinf
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from harness.data.shots import counted
from harness.errors import BadRecipe
from harness.reporting.frame import read_records
from harness.stats.tests import sets_needed
from harness.studies.outcomes import Outcome
from harness.types import ALL

if TYPE_CHECKING:
    import pandas

OF = ["protocol", "options", "shots"]


@dataclass(frozen=True)
class SetSpread:
    """Of merges under a protocol: the sets there are, and the median deviation of differences.

    `deviation` is of the difference of two merges from set to set, in points; `needed` how many
    sets would make a difference of the points asked for significant, at 5 % with a power of 80 %.
    """

    protocol: str
    merges: int
    sets: int
    deviation: float
    needed: int


def spreads(known: Mapping[str, Outcome], folder: Path, points: float) -> list[SetSpread]:
    """As `spreads_of`, of the records of a study. Raises BadRecipe for one set."""
    paths = {path for one in known.values() for path in one.records}
    made = spreads_of(read_records(*(folder / path for path in sorted(paths))), points)
    if not made:
        raise BadRecipe(f"{folder} has no two merges of two sets of experts; expected more seeds")
    return made


def spreads_of(frame: pandas.DataFrame, points: float) -> list[SetSpread]:
    """One for every protocol of a frame of records, means over tasks and draws; [] of one set.

    Sets are experts of the same tasks. The deviation of few is small on average, and corrected.
    """
    of_sets = [*OF, "experts_digest", "method"]
    merged = frame[frame.role.astype(str) == "merged"].astype(dict.fromkeys(of_sets, str))
    by_experts = merged.groupby("experts_digest").task
    tasks = by_experts.transform(lambda one: " ".join(sorted({*map(str, one)})))
    means = merged.assign(tasks=tasks).groupby([*of_sets, "tasks"]).value.mean()
    made = []
    for of, values in means.groupby([*OF, "tasks"]):
        whole = values.unstack("method").dropna(axis="columns")
        if len(whole) < 2 or whole.shape[1] < 2:
            continue
        pairs = combinations(whole.columns, 2)
        apart = [float((whole[a] - whole[b]).std(ddof=1)) for a, b in pairs]
        deviation = median(apart) / (1 - 1 / (4 * (len(whole) - 1)))
        shots = float(of[2])
        name = f"{of[0]}, {counted(ALL if isinf(shots) else int(shots))}" if shots else of[0]
        needed = sets_needed(deviation, points) if deviation else 2
        made.append(SetSpread(name, whole.shape[1], len(whole), deviation, needed))
    return made
