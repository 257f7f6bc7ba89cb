"""Pure: values that no record may have though their types are right: a score of 97.3, say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from math import fsum, isclose, isfinite
from typing import TYPE_CHECKING

from harness.errors import BrokenRecord
from harness.evaluation.resamples import MAX_SCORE, loss_of, range_of, to_estimate

if TYPE_CHECKING:
    from harness.evaluation.records import DrawScore, Record

CLOSE = 1e-6
"""The largest difference of equal scores: that of rounding."""
DESIGN = re.compile(r"[0-9a-f]{16}")
"""The digest of a design of resamples."""


def check_record(record: Record, where: str) -> None:
    """Raise BrokenRecord, naming `where` it lies, for a record that no evaluation writes."""
    if fault := next(_faults(record), None):
        raise BrokenRecord(f"{where} {fault}")


def _faults(record: Record) -> Iterator[str]:
    """What is wrong with a record, and what was expected: predicates, to follow its path."""
    scores = (*record.scores, *((record.majority,) if record.majority else ()))
    values = [value for score in scores for value in (score.value, *score.parts.values())]
    values += [end for interval in record.intervals for end in (interval.low, interval.high)]
    values += [fact for score in scores for fact in score.facts.values() if not isfinite(fact)]
    if wrong := [value for value in values if not abs(value) <= MAX_SCORE]:  # NaN fails as well
        yield f"has the score {wrong[0]}, expected a number, usually of -1 to 1"
    yield from _in_settings(record)
    seeds = record.adaptation.drawn if record.adaptation else {}
    if not all(map(_is_number, seeds)):
        yield f"has an adaptation with the draws {', '.join(seeds)}; expected their seeds"
    yield from _in_draws(record)
    for score in scores:
        yield from _in_score(score, record.metrics)
    yield from _in_intervals(record)
    yield from _in_resamples(record)
    yield from _in_loss(record)


def _in_settings(record: Record) -> Iterator[str]:
    if record.task in record.shown and not record.transductive:
        yield f"was shown {record.task}, which is scored, but has transductive false; expected true"
    limit, left_out = record.settings.get("limit"), record.settings.get("left_out")
    if limit is not None and (type(limit) is not int or limit < record.rows):
        yield f"has {record.rows} rows under the limit {limit!r}, expected as many or fewer"
    if "drawn" in record.settings and (limit is None or record.settings["drawn"] is not True):
        yield "has settings.drawn; expected true, beside settings.limit"
    if left_out is not None and not (
        isinstance(left_out, dict)
        and all(map(_is_number, left_out))
        and all(isinstance(rows, list) for rows in left_out.values())
        and all(type(row) is int and 0 <= row < record.rows for row in chain(*left_out.values()))
    ):
        yield "has settings.left_out, expected lists of its rows by seed"


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _in_draws(record: Record) -> Iterator[str]:
    draws = [(score.shots, score.seed) for score in record.scores]
    if len({*draws}) < len(draws):
        yield "has two scores of one draw, expected one for each number of shots and seed"
    drawn = [count for count, _ in draws if count is not None]
    if any(count is not None and seed is None for count, seed in draws):
        yield "has a score with shots and no seed, expected both"
    adaptation = record.adaptation
    if adaptation is None and "pool" in record.settings:
        yield "has settings of draws and no adaptation; expected one with the rows that were drawn"
    if adaptation is not None and not (adaptation.transductive or drawn):
        yield "has an adaptation to drawn rows and scores without shots; expected both or neither"


def _in_score(score: DrawScore, metrics: Sequence[str]) -> Iterator[str]:
    if score.parts.keys() != {*metrics}:
        yield f"has scores of {', '.join(score.parts) or 'nothing'}, expected {', '.join(metrics)}"
        return
    for metric, value in score.parts.items():
        low, high = range_of([metric])
        if not low - CLOSE <= value <= high + CLOSE:
            yield f"has the {metric} {value:g}; expected {low:g} to {high:g}, not per cent"
    mean = fsum(score.parts.values()) / len(score.parts)
    if not isclose(score.value, mean, rel_tol=1e-9, abs_tol=CLOSE):
        yield f"has the score {score.value}, expected {mean}, the mean of its metrics"


def _in_intervals(record: Record) -> Iterator[str]:
    least, most = range_of(record.metrics)
    shots = [interval.shots for interval in record.intervals]
    if len({*shots}) < len(shots) or not {*shots} <= {*record.shots}:
        yield "has an interval without a score, or two for one; expected one for each of its shots"
        return
    for interval in record.intervals:
        values = record.values(interval.shots)
        mean = fsum(values) / len(values)
        within = least - CLOSE <= interval.low <= interval.high <= most + CLOSE
        if not (within and interval.low - CLOSE <= mean <= interval.high + CLOSE):
            yield (
                f"has the interval {interval.low} to {interval.high} ({interval.level}) of the "
                f"score {mean}, expected its ends around the score"
            )


def _in_resamples(record: Record) -> Iterator[str]:
    kept, shots = record.resamples, [*dict.fromkeys(score.shots for score in record.scores)]
    if [entry.shots for entry in kept] != shots:
        found = (
            f"resamples of the shots {[entry.shots for entry in kept]}" if kept else "no resamples"
        )
        yield f"keeps {found}; expected some for each number of shots, {shots}: evaluate again"
        return
    for entry in kept:
        if entry.units > record.rows or entry.step > MAX_SCORE:
            counts = f"{entry.units} units in steps of {entry.step}"
            yield f"has resamples of {counts}; expected {record.rows} at most, in smaller steps"
            return
        if not DESIGN.fullmatch(entry.design):
            yield (
                f"has resamples of the design '{entry.design:.40}', expected 16 hexadecimal digits"
            )
        draws = record.values(entry.shots)
        try:
            estimate = to_estimate(entry, draws, record.metrics)
        except ValueError as error:
            yield f"has resamples that cannot be read: {error}"
            return
        alone = estimate.by_draw.shape
        if len(estimate.resamples) != entry.count or (len(draws) == 1) != (alone == (1, 0)):
            found = f"{len(estimate.resamples)} and {alone[0]} x {alone[1]}"
            yield f"has {found} scores on resamples; expected {entry.count}, of {len(draws)} draws"
            return


def _in_loss(record: Record) -> Iterator[str]:
    kept = record.loss_resamples
    try:
        loss = loss_of(record)
    except (KeyError, ValueError) as error:
        yield f"has a loss on resampled units that cannot be read: {error}"
        return
    if loss and kept and len(loss.resamples) != kept.count:
        yield f"has {len(loss.resamples)} losses on resamples; expected {kept.count}, as it says"
    if kept and kept.design not in {entry.design for entry in record.resamples}:
        yield "has a loss on other resamples than its scores, expected the same"
