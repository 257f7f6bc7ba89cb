"""Pure, lazy formulas on state dicts, in at least float32."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import reduce

import torch

from harness.errors import BadOption, IncompatibleWeights
from harness.types import StateDict
from harness.weights.lazy import Lazy, Spec, report_of, select, spec, specs, union
from harness.weights.threads import T, by_piece, piece_size, spread


def each(fn: Callable[..., torch.Tensor], *states: StateDict) -> StateDict:
    """The lazy state dict of `fn(first[name], second[name], ...)`, in at least float32.

    Every input reaches `fn` in at least float32. Names are those of the first state; the others
    must have them.
    """
    return each_named(lambda _, *tensors: fn(*tensors), *states)


def where_shared(fn: Callable[..., torch.Tensor], expert: StateDict, base: StateDict) -> StateDict:
    """`fn(name, weight, origin)` for every tensor that the base has too, in at least float32.

    All other tensors, those of the head, stay as they are.
    """
    names = [name for name in expert if name in base]
    return select(union(each_named(fn, select(expert, names), base), expert), expert)


def each_named(fn: Callable[..., torch.Tensor], *states: StateDict) -> StateDict:
    """Like `each`, with the name of the tensor as first argument of `fn`."""
    return Lazy(widened(*states), lambda name: fn(name, *(wide(state[name]) for state in states)))


def _flat(states: Sequence[StateDict], name: str) -> list[torch.Tensor]:
    """The tensors of this name, flat; large ones are read, checked and hashed on all cores."""

    def read(state: StateDict) -> torch.Tensor:
        return state[name].reshape(-1)

    if math.prod(spec(states[0], name).shape) < piece_size():
        return [read(state) for state in states]
    return spread(read, states)


def entrywise(fn: Callable[..., torch.Tensor], *states: StateDict) -> StateDict:
    """Like `each`, for a formula that treats every entry alike: `fn` gets flat pieces of tensors.

    Besides the inputs and the output only a few pieces are in memory.
    """

    def compute(name: str) -> torch.Tensor:
        flat = _flat(states, name)
        shape, dtype = headers[name]
        result = torch.empty(shape, dtype=dtype, device=flat[0].device)
        pieces = result.view(-1)

        def fill(part: slice) -> None:
            pieces[part] = fn(*(wide(tensor[part]) for tensor in flat))

        by_piece(fill, result.numel(), result.device)
        return result

    headers = widened(*states)
    return Lazy(headers, compute)


def in_pieces(fn: Callable[..., T], *states: StateDict) -> Iterator[T]:
    """`fn` of the flat pieces of every tensor, in order, which are in at least float32.

    Names are those of the first state; one tensor of each state is in memory at a time.
    """

    def of_one(name: str) -> list[T]:
        flat = _flat(states, name)
        whole = flat[0]
        return by_piece(
            lambda part: fn(*(wide(t[part]) for t in flat)), whole.numel(), whole.device
        )

    for name in states[0]:
        yield from of_one(name)


def widened(*states: StateDict) -> dict[str, Spec]:
    """The shapes of the first state, with the widest type among all states, at least float32.

    Raises IncompatibleWeights, naming the tensor, if another state lacks one of its names.
    """
    first, *others = [specs(state) for state in states]
    for other in others:
        if lacking := next((name for name in first if name not in other), None):
            raise IncompatibleWeights(
                f"'{lacking}' is not in every state of an entrywise formula; expected it in all: "
                "the base has no head, and weights.where_shared leaves alone what the base lacks"
            )
    types = {name: [headers[name].dtype for headers in (first, *others)] for name in first}
    return {
        name: Spec(header.shape, reduce(torch.promote_types, types[name], torch.float32))
        for name, header in first.items()
    }


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in at least float32: itself if it is already."""
    if tensor.dtype is torch.float32:
        return tensor
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


def check_one_each(method: str, given: Sized, count: int, what: str = "weights") -> None:
    """Raise BadOption unless a method got one number for each expert."""
    if len(given) != count:
        raise BadOption(
            f"the number of {what} of {method} is {len(given)}, expected {count}: one for each "
            "expert"
        )


LARGEST = 1e18
"""The largest number that may multiply weights: its square still fits float32."""


def check_weights(method: str, given: Sequence[float], count: int, what: str = "weights") -> None:
    """Raise BadOption as `check_one_each` does, and for a number too large for float32."""
    check_one_each(method, given, count, what)
    if (largest := max(map(abs, given), default=0)) > LARGEST:
        raise BadOption(
            f"the {what} of {method} are as large as {largest:g}, expected {LARGEST:g} at most"
        )


def check_at_most_all(what: str, given: int, count: int) -> None:
    """Raise BadOption if an option asks for more experts than there are."""
    if given > count:
        raise BadOption(f"{what} is {given} for {count} experts, expected at most their number")


def check_idle(method: str, where: str, expected: str, **given: tuple[float, float]) -> None:
    """Raise BadOption for an option that is not at its default where it has no effect.

    `given` has the value and the default of each; `where` and `expected` complete the message.
    """
    for name, (value, default) in given.items():
        if value != default:
            fault = f"{name} of {method} is {str(value).lower()} and has no effect with {where}"
            raise BadOption(f"{fault}; expected {expected}, or leave {name} out")


def factors_of(method: str, given: Sequence[float] | None, count: int) -> Sequence[float]:
    """The weights of experts, by default 1 each.

    Raises BadOption as `check_weights`, and if all weights are 0.
    """
    values = [1.0] * count if given is None else given
    check_weights(method, values, count)
    if not any(values):
        raise BadOption(
            f"the weights of {method} are {':'.join(map(str, values))}, expected not all 0"
        )
    return values


def shares_of_mean(method: str, given: Sequence[float] | None, count: int) -> Sequence[float]:
    """The weights of a mean of experts, by default 1 / `count` each.

    Warns of weights that do not sum to 1: they scale the whole model. Raises BadOption as
    `factors_of`.
    """
    if given is None:
        return [1 / count] * count
    factors_of(method, given, count)
    if abs(sum(given) - 1) > 1e-6:
        warnings.warn(
            f"the weights of {method} sum to {sum(given):g}, not 1; used as given", stacklevel=3
        )
    return given


def total(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of the tensors, in order, as a new tensor."""
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        result.add_(tensor)
    return result


SCALE = "scale"
"""The option of a merger that only moves the result along a line: base + scale * direction."""


class ScaledMerge(Lazy):
    """The lazy state dict base + scale * direction, in at least float32.

    A search over scales computes the direction, the merged task vector, only once: a ScaledMerge of
    its copy on disk has the same bytes at the same scale. The report is the direction's.
    """

    def __init__(self, base: StateDict, direction: StateDict, scale: float) -> None:
        self.base, self.direction, self.scale = base, direction, scale

        def add(origin: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            return (step * scale).add_(origin)

        def compute(name: str) -> torch.Tensor:
            # outside of the pieces, so that a decomposition has all cores
            step = {name: direction[name]}
            return entrywise(add, select(base, [name]), step)[name]

        super().__init__(specs(entrywise(add, base, direction)), compute, report_of(direction))
