"""Pure: values that no record may have though their types are right: a score of 97.3, say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import fsum, isclose, isfinite
from typing import TYPE_CHECKING

from harness.errors import BrokenRecord
from harness.evaluation.resamples import MAX_SCORE, loss_of, range_of, to_estimate

if TYPE_CHECKING:
    from harness.evaluation.records import Adaptation, DrawScore, Record

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
    said = (*record.scores, *((record.majority,) if record.majority else ()))
    values = [value for one in said for value in (one.value, *one.parts.values())]
    values += [end for one in record.intervals for end in (one.low, one.high)]
    values += [fact for one in said for fact in one.facts.values() if not isfinite(fact)]
    if odd := [value for value in values if not abs(value) <= MAX_SCORE]:  # NaN fails as well
        yield f"has the score {odd[0]}, expected a number, usually of -1 to 1"
    yield from _in_settings(record)
    if record.adaptation is not None:
        yield from _in_adaptation(record.adaptation)
    yield from _in_draws(record)
    for one in said:
        yield from _in_score(one, record.metrics)
    yield from _in_intervals(record)
    yield from _in_resamples(record)
    yield from _in_loss(record)


def _in_settings(record: Record) -> Iterator[str]:
    if record.task in record.shown and not record.transductive:
        yield f"was shown {record.task}, which is scored, but has transductive false; expected true"
    limit, left = record.settings.get("limit"), record.settings.get("left_out")
    if limit is not None and (type(limit) is not int or limit < record.rows):
        yield f"has {record.rows} rows under the limit {limit!r}, expected as many or fewer"
    if "drawn" in record.settings and (limit is None or record.settings["drawn"] is not True):
        yield "has settings.drawn; expected true, beside settings.limit"
    lists = left.values() if isinstance(left, dict) else (left,)
    rows = [row for each in lists for row in (each if isinstance(each, list) else [each])]
    if left is not None and not (
        isinstance(left, dict)
        and all(map(_is_number, left))
        and all(type(row) is int and 0 <= row < record.rows for row in rows)
    ):
        yield "has settings.left_out, expected lists of its rows by seed"


def _in_adaptation(said: Adaptation) -> Iterator[str]:
    if not all(map(_is_number, said.drawn)):
        yield f"has an adaptation with the draws {', '.join(said.drawn)}; expected their seeds"


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _in_draws(record: Record) -> Iterator[str]:
    draws = [(one.shots, one.seed) for one in record.scores]
    if len({*draws}) < len(draws):
        yield "has two scores of one draw, expected one for each number of shots and seed"
    drawn = [count for count, _ in draws if count is not None]
    if any(count is not None and seed is None for count, seed in draws):
        yield "has a score with shots and no seed, expected both"
    said = record.adaptation
    if said is None and "pool" in record.settings:
        yield "has settings of draws and no adaptation; expected one with the rows that were drawn"
    if said is not None and not (said.transductive or drawn):
        yield "has an adaptation to drawn rows and scores without shots; expected both or neither"


def _in_score(one: DrawScore, metrics: Sequence[str]) -> Iterator[str]:
    if one.parts.keys() != {*metrics}:
        yield f"has scores of {', '.join(one.parts) or 'nothing'}, expected {', '.join(metrics)}"
        return
    for metric, value in one.parts.items():
        low, high = range_of([metric])
        if not low - CLOSE <= value <= high + CLOSE:
            yield f"has the {metric} {value:g}; expected {low:g} to {high:g}, not per cent"
    mean = fsum(one.parts.values()) / len(one.parts)
    if not isclose(one.value, mean, rel_tol=1e-9, abs_tol=CLOSE):
        yield f"has the score {one.value}, expected {mean}, the mean of its metrics"


def _in_intervals(record: Record) -> Iterator[str]:
    least, most = range_of(record.metrics)
    known = [one.shots for one in record.intervals]
    if len({*known}) < len(known) or not {*known} <= {*record.shots}:
        yield "has an interval without a score, or two for one; expected one for each of its shots"
        return
    for one in record.intervals:
        values = record.values(one.shots)
        mean = fsum(values) / len(values)
        within = least - CLOSE <= one.low <= one.high <= most + CLOSE
        if not (within and one.low - CLOSE <= mean <= one.high + CLOSE):
            yield (
                f"has the interval {one.low} to {one.high} ({one.level}) of the score {mean}, "
                "expected its ends around the score"
            )


def _in_resamples(record: Record) -> Iterator[str]:
    kept, shots = record.resamples, [*dict.fromkeys(one.shots for one in record.scores)]
    if [one.shots for one in kept] != shots:
        found = f"resamples of the shots {[one.shots for one in kept]}" if kept else "no resamples"
        yield f"keeps {found}; expected some for each number of shots, {shots}: evaluate again"
        return
    for one in kept:
        if one.units > record.rows or one.step > MAX_SCORE:
            counts = f"{one.units} units in steps of {one.step}"
            yield f"has resamples of {counts}; expected {record.rows} at most, in smaller steps"
            return
        if not DESIGN.fullmatch(one.design):
            yield f"has resamples of the design '{one.design:.40}', expected 16 hexadecimal digits"
        draws = record.values(one.shots)
        try:
            said = to_estimate(one, draws, record.metrics)
        except ValueError as error:
            yield f"has resamples that cannot be read: {error}"
            return
        alone = said.by_draw.shape
        if len(said.resamples) != one.count or (len(draws) == 1) != (alone == (1, 0)):
            found = f"{len(said.resamples)} and {alone[0]} x {alone[1]}"
            yield f"has {found} scores on resamples; expected {one.count}, of {len(draws)} draws"
            return


def _in_loss(record: Record) -> Iterator[str]:
    kept = record.loss_resamples
    try:
        found = loss_of(record)
    except (KeyError, ValueError) as error:
        yield f"has a loss on resampled units that cannot be read: {error}"
        return
    if found and kept and len(found.resamples) != kept.count:
        yield f"has {len(found.resamples)} losses on resamples; expected {kept.count}, as it says"
    if kept and kept.design not in {one.design for one in record.resamples}:
        yield "has a loss on other resamples than its scores, expected the same"
