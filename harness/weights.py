"""Pure, lazy arithmetic on state dicts: a tensor is computed when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import torch
import xxhash

from harness.errors import BrokenCheckpoint, IncompatibleWeights
from harness.types import StateDict

T = TypeVar("T")


class Spec(NamedTuple):
    """What a header says of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """The size of the tensor."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Lazy(Mapping[str, torch.Tensor]):
    """A state dict whose tensors are computed by `compute(name)` on each access.

    `specs` gives shapes and types of all tensors without computing one. `report` is what a merger
    tells about its work, as JSON values; it may be filled while tensors are computed.
    """

    def __init__(
        self,
        specs: Mapping[str, Spec],
        compute: Callable[[str], torch.Tensor],
        report: Mapping[str, Any] | None = None,
    ) -> None:
        self.specs = dict(specs)
        self.report = {} if report is None else report
        self._compute = compute

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.specs:
            raise KeyError(name)
        return self._compute(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def __contains__(self, name: object) -> bool:
        return name in self.specs


def specs(state: StateDict) -> dict[str, Spec]:
    """Shape and type of every tensor, from headers where the state is lazy."""
    if isinstance(state, Lazy):
        return state.specs
    return {name: Spec(tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}


def each(fn: Callable[..., torch.Tensor], *states: StateDict) -> StateDict:
    """The lazy state dict `fn(first[name], second[name], ...)`, in float32.

    Every input reaches `fn` in at least float32. Names are those of the first state; the others
    must have them.
    """
    return each_named(lambda _, *tensors: fn(*tensors), *states)


def each_named(fn: Callable[..., torch.Tensor], *states: StateDict) -> StateDict:
    """Like `each`, with the name of the tensor as first argument of `fn`."""
    found = _widened(states)
    return Lazy(found, lambda name: fn(name, *(_wide(state[name]) for state in states)))


PIECE = 1 << 15
"""Entries that an entrywise formula works on at a time.

Its temporaries stay in cache, and torch takes no second thread for so few: with larger pieces its
threads wait for one another at every operation, which on a busy machine is most of the time. The
cores share the pieces instead.
"""


def by_piece(fn: Callable[[slice], T], size: int, step: int | None = None) -> list[T]:
    """`fn` of every piece of a flat tensor of this size, in order, on all cores."""
    step = step or PIECE
    parts = [slice(start, start + step) for start in range(0, size, step)]
    workers = min(torch.get_num_threads(), len(parts))
    if workers < 2:
        return [fn(part) for part in parts]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(fn, parts))


def once(fn: Callable[[], T]) -> Callable[[], T]:
    """The function, which works when it is first called, even if two threads call at a time."""
    lock, known = Lock(), list[T]()

    def value() -> T:
        with lock:
            if not known:
                known.append(fn())
        return known[0]

    return value


def entrywise(fn: Callable[..., torch.Tensor], *states: StateDict) -> StateDict:
    """Like `each`, for a formula that treats every entry alike: it is given flat pieces.

    Besides the inputs and the output only a few pieces are in memory.
    """

    def compute(name: str) -> torch.Tensor:
        flat = [state[name].reshape(-1) for state in states]
        result = torch.empty(found[name].shape, dtype=found[name].dtype)
        pieces = result.view(-1)

        def fill(part: slice) -> None:
            pieces[part] = fn(*(_wide(tensor[part]) for tensor in flat))

        by_piece(fill, result.numel())
        return result

    found = _widened(states)
    return Lazy(found, compute)


def _widened(states: Sequence[StateDict]) -> dict[str, Spec]:
    """Shapes of the first state, and the widest type of all, at least float32."""
    known = [specs(state) for state in states]
    return {
        name: Spec(spec.shape, reduce(torch.promote_types, types, torch.float32))
        for name, spec in known[0].items()
        if (types := [other[name].dtype for other in known if name in other])
    }


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def task_vectors(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """expert - base, for each expert (Ilharco et al. 2023, eq. 1)."""
    return [entrywise(torch.sub, expert, base) for expert in experts]


def mean(states: Sequence[StateDict], coefficients: Sequence[float] | None = None) -> StateDict:
    """The entrywise mean of the states, or their sum with the given coefficients."""
    scales = coefficients or [1 / len(states)] * len(states)

    def weighted(*tensors: torch.Tensor) -> torch.Tensor:
        total = tensors[0] * scales[0]
        for tensor, scale in zip(tensors[1:], scales[1:], strict=True):
            total.add_(tensor, alpha=scale)
        return total

    return entrywise(weighted, *states)


def total(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of the tensors, in order, as a new tensor."""
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        result.add_(tensor)
    return result


def select(state: StateDict, names: Iterable[str]) -> StateDict:
    """The part of a state dict with these names, in this order."""
    known = specs(state)
    return Lazy({name: known[name] for name in names}, lambda name: state[name])


def union(*states: StateDict) -> StateDict:
    """One state dict of several; of a name that stands in two, the first one's tensor."""
    merged: dict[str, Spec] = {}
    owner: dict[str, StateDict] = {}
    for state in states:
        for name, spec in specs(state).items():
            if name not in merged:
                merged[name], owner[name] = spec, state
    return Lazy(merged, lambda name: owner[name][name])


def cast_like(state: StateDict, template: StateDict) -> StateDict:
    """The state with every tensor in the template's type."""
    types = specs(template)
    found = {name: Spec(spec.shape, types[name].dtype) for name, spec in specs(state).items()}
    return Lazy(found, lambda name: state[name].to(found[name].dtype))


def floating(state: StateDict) -> list[str]:
    """Names of the tensors that take part in a merge: integer buffers never do."""
    return [name for name, spec in specs(state).items() if spec.dtype.is_floating_point]


def check_same(states: Sequence[StateDict], called: Sequence[str]) -> None:
    """Raise IncompatibleWeights, naming the tensor, unless all names and shapes agree."""
    first = specs(states[0])
    for state, name in zip(states[1:], called[1:], strict=True):
        other = specs(state)
        for missing in sorted(first.keys() - other.keys()):
            raise IncompatibleWeights(f"{name} has no tensor '{missing}', which {called[0]} has")
        for extra in sorted(other.keys() - first.keys()):
            raise IncompatibleWeights(f"{name} has a tensor '{extra}', which {called[0]} has not")
        for key, spec in first.items():
            if spec.shape != other[key].shape:
                raise IncompatibleWeights(
                    f"'{key}' is {_shape(other[key])} in {name}, "
                    f"expected {_shape(spec)} as in {called[0]}"
                )
            if spec.dtype.is_floating_point != other[key].dtype.is_floating_point:
                raise IncompatibleWeights(
                    f"'{key}' is {other[key].dtype} in {name}, "
                    f"expected {spec.dtype} as in {called[0]}"
                )


def _shape(spec: Spec) -> str:
    return "(" + ", ".join(map(str, spec.shape)) + ")"


def tensor_digest(name: str, tensor: torch.Tensor) -> str:
    """A hash of a tensor's name, type, shape and bytes."""
    state = xxhash.xxh3_128(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
    if tensor.numel():
        flat = tensor.detach().contiguous().flatten().view(torch.uint8)
        state.update(flat.numpy().data)
    return str(state.hexdigest())


def join_digests(parts: Mapping[str, str]) -> str:
    """One hash of many, whatever the order they were made in."""
    text = "\n".join(f"{name} {parts[name]}" for name in sorted(parts))
    return str(xxhash.xxh3_128_hexdigest(text.encode()))


def digest(state: StateDict) -> str:
    """A hash of all tensors, whatever their order and however they are split over files."""
    return join_digests({name: tensor_digest(name, state[name]) for name in state})


def check_finite(name: str, tensor: torch.Tensor, where: str) -> None:
    """Raise BrokenCheckpoint, naming the tensor, if an entry is NaN or infinite."""
    if tensor.is_floating_point() and tensor.numel():
        low, high = torch.aminmax(tensor)
        if not (torch.isfinite(low) and torch.isfinite(high)):
            found = "NaN" if torch.isnan(low) or torch.isnan(high) else "infinite"
            raise BrokenCheckpoint(
                f"'{name}' of {where} has {found} entries, expected finite weights"
            )


class Observed(Mapping[str, torch.Tensor]):
    """A state dict that checks and hashes every tensor the first time it is read."""

    def __init__(self, state: StateDict, source: str) -> None:
        self._state = state
        self._source = source
        self._digests: dict[str, str] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._state[name]
        if name not in self._digests:
            check_finite(name, tensor, self._source)
            self._digests[name] = tensor_digest(name, tensor)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def digest(self) -> str:
        """The digest of all tensors, reading those nobody has read yet."""
        for name in self._state:
            if name not in self._digests:
                self[name]
        return join_digests(self._digests)


# Order statistics --------------------------------------------------------------------------

_HIGH = 1 << 15
_SAMPLE = 1 << 18
_COUNTED = 1 << 19
"""Entries that share a table of counts, which is larger than a piece."""


def smallest_magnitude(state: StateDict, rank: int, *, minus: StateDict | None = None) -> float:
    """The `rank`-th smallest absolute value (1-based) of all entries, exactly, as float32.

    Of the state, or of its difference from another. The bits of a non-negative float32 order as
    integers do. A sample tells the high half of the bits within one; one counting pass over the
    low halves of those three finds the value, with one tensor in memory at a time. Where the
    sample was wrong, a pass over the high halves comes before.
    """
    found = _within(state, minus, rank, max(0, _sampled(state, minus, rank) - 1), 3)
    if found is None:
        high = _count(state, minus, lambda bits: bits >> 16, _HIGH)
        found = _within(state, minus, rank, int(torch.searchsorted(high.cumsum(0), rank)), 1)
    assert found is not None, "the rank is not among the entries"
    return found


def _sampled(state: StateDict, minus: StateDict | None, rank: int) -> int:
    """The high half of the bits near which the value lies, by a sample of evenly spaced entries."""
    size = sum(torch.Size(spec.shape).numel() for spec in specs(state).values())
    stride = (size // _SAMPLE) | 1  # odd: rows of a matrix have an even width
    both = [one for one in (state, minus) if one is not None]
    picked = torch.cat([_bits([one[n].reshape(-1)[::stride] for one in both]) for n in state])
    place = min(len(picked), max(1, round(rank / size * len(picked))))
    return int(picked.kthvalue(place).values) >> 16


def _within(
    state: StateDict, minus: StateDict | None, rank: int, top: int, count: int
) -> float | None:
    """The value of this rank, if the high half of its bits is one of `count` from `top`."""
    start, size = (top << 16) - 1, count << 16  # what lies outside falls into the first or last
    found = _count(state, minus, lambda bits: (bits - start).clamp_(0, size + 1), size + 2)
    below, inside = int(found[0]), found[1:-1].cumsum(0)
    if not below < rank <= below + int(inside[-1]):
        return None
    word = start + 1 + int(torch.searchsorted(inside, rank - below))
    return float(torch.tensor(word, dtype=torch.int32).view(torch.float32))


def _count(
    state: StateDict,
    minus: StateDict | None,
    part: Callable[[torch.Tensor], torch.Tensor],
    size: int,
) -> torch.Tensor:
    """How many entries have each value of `part` of the bits of their magnitude."""
    counts = torch.zeros(size, dtype=torch.int64)
    both = [one for one in (state, minus) if one is not None]
    for name in state:
        _add_counts(counts, [one[name].reshape(-1) for one in both], part)
    return counts


def _add_counts(
    counts: torch.Tensor,
    flat: Sequence[torch.Tensor],
    part: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Add those of one tensor. A function, so that it is let go before the next is read."""

    def count(group: slice) -> torch.Tensor:
        pieces = zip(*(torch.split(tensor[group], PIECE) for tensor in flat), strict=True)
        return torch.bincount(torch.cat([part(_bits(p)) for p in pieces]), minlength=len(counts))

    for found in by_piece(count, flat[0].numel(), _COUNTED):
        counts += found


def _bits(piece: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bits of the magnitudes of a piece, or of the difference of two."""
    entries = _wide(piece[0]) - _wide(piece[1]) if len(piece) > 1 else piece[0]
    return entries.to(torch.float32).abs().view(torch.int32)
