"""Order statistics of a whole state dict, in few passes and little memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from harness.types import StateDict
from harness.weights.arithmetic import in_pieces, wide
from harness.weights.lazy import size
from harness.weights.threads import T

Magnitudes: TypeAlias = "npt.NDArray[np.float32]"
Counts: TypeAlias = "npt.NDArray[np.int64]"
_SAMPLE = 1 << 18
"""About how many entries are sampled, and how many may always be held."""
_HELD = 1 / 8
"""If more than this share of all entries is in the bracket, they are counted and not held."""


def smallest_magnitude(state: StateDict, rank: int, *, minus: StateDict | None = None) -> float:
    """The `rank`-th smallest absolute value (1-based) of all entries, exactly, as float32.

    The entries are those of the state, or of its difference from `minus`. A sample gives two values
    that the result lies between. One pass counts the smaller entries and holds those in between,
    about a hundredth, with one tensor of each state in memory at a time. If the sample was wrong,
    two more passes count. Of few entries the sample has all.
    """
    states, entries = [state] if minus is None else [state, minus], size(state)
    sample = _sample(states, entries)
    if len(sample) == entries and 0 < rank <= entries:
        return float(np.partition(sample, rank - 1)[rank - 1])
    low, high = _bracket(np.sort(sample), rank / entries)
    magnitude = _between(states, rank, low, high)
    return _counted(states, rank) if magnitude is None else magnitude


def _sample(states: Sequence[StateDict], entries: int) -> Magnitudes:
    """The magnitudes of evenly spaced entries, about `_SAMPLE` of them, or of all."""
    stride = (entries // _SAMPLE) | 1  # odd, as most rows have an even length
    rows = ((wide(state[name].reshape(-1)[::stride]) for state in states) for name in states[0])
    return np.concatenate([_magnitudes(*row) for row in rows])


def _bracket(ordered: Magnitudes, share: float) -> tuple[float, float]:
    """Two magnitudes, almost surely around the one that has this share of all entries below it."""
    # five standard deviations of the rank at share 1/2, where they are largest
    place, margin = round(share * len(ordered)), 1 + round(2.5 * math.sqrt(len(ordered)))
    low = ordered[place - margin] if place >= margin else 0.0
    high = ordered[place + margin] if place + margin < len(ordered) else math.inf
    return float(low), float(high)


def _between(states: Sequence[StateDict], rank: int, low: float, high: float) -> float | None:
    """The value of this rank; None if it is not from `low` to `high`, or too many entries are."""

    def sort_out(values: Magnitudes) -> tuple[int, int, Magnitudes, int]:
        near = values[(values >= low) & (values <= high)]
        inside = near[(near > low) & (near < high)]
        # entries equal to an end may be many, as the zeros of a sparse difference: not held
        at_low = int(np.count_nonzero(near == low))
        at_high = len(near) - len(inside) - at_low
        return int(np.count_nonzero(values < low)), at_low, inside, at_high

    most = max(_SAMPLE, _HELD * size(states[0]))
    smaller = at_low = held = at_high = 0
    parts: list[Magnitudes] = []
    for piece in _passed(sort_out, states):
        smaller, at_low, at_high = smaller + piece[0], at_low + piece[1], at_high + piece[3]
        parts.append(piece[2])
        held += len(piece[2])
        if held > most:
            return None
    place = rank - smaller
    if 0 < place <= at_low:
        return low
    place -= at_low
    if 0 < place <= held:
        return float(np.partition(np.concatenate(parts), place - 1)[place - 1])
    return high if 0 < place - held <= at_high else None


def _counted(states: Sequence[StateDict], rank: int) -> float:
    """The value of this rank, by counting the high 16 bits of all entries, then the low 16.

    The bits of non-negative float32 numbers, as integers, have the order of the numbers.
    """
    half = 1 << 16

    def high_halves(values: Magnitudes) -> Counts:
        return np.bincount(values.view(np.int32) >> 16, minlength=half)

    def ends_of(part: Callable[[Magnitudes], Counts]) -> Counts:
        counts = sum(_passed(part, states), np.zeros(half, dtype=np.int64))
        return counts.cumsum()

    ends = ends_of(high_halves)
    top = int(np.searchsorted(ends, rank))
    rank -= int(ends[top - 1]) if top else 0

    def low_halves(values: Magnitudes) -> Counts:
        bits = values.view(np.int32)
        return np.bincount(bits[bits >> 16 == top] & (half - 1), minlength=half)

    word = (top << 16) + int(np.searchsorted(ends_of(low_halves), rank))
    return float(np.array(word, dtype=np.int32).view(np.float32))


def _passed(fn: Callable[[Magnitudes], T], states: Sequence[StateDict]) -> Iterator[T]:
    """`fn` of the magnitudes of every piece of every tensor."""
    return in_pieces(lambda *piece: fn(_magnitudes(*piece)), *states)


def _magnitudes(*piece: torch.Tensor) -> Magnitudes:
    """The magnitudes of a piece, or of the difference of two, as a numpy array.

    numpy's comparisons and selections are several times as fast as torch's on a processor.
    """
    entries = piece[0] - piece[1] if len(piece) > 1 else piece[0]
    return entries.to(torch.float32).abs().cpu().numpy()
