"""State dicts whose tensors are computed when they are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from harness.errors import IncompatibleWeights
from harness.types import StateDict

Digests: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, str]]
"""A function that gives the known digests of tensors; a tensor with a known digest is finite.

It maps {name that is part of the digest: the state's own name} to {name that is part of the digest:
digest}, without the tensors whose digest is not known.
"""


class Spec(NamedTuple):
    """The shape and type of a tensor, as in the header of its file."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """The size of the tensor in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Lazy(Mapping[str, torch.Tensor]):
    """A state dict whose tensors are computed by `compute(name)` on each access.

    `specs` gives shapes and types of all tensors without computing one. `report` is what a method
    reports about its work, as JSON values by name, or by name and tensor. It may be filled while
    tensors are computed, and is sorted by name when it is read. `digests` is for a state whose
    tensors lie in a file, where their digests may be known.
    """

    def __init__(
        self,
        specs: Mapping[str, Spec],
        compute: Callable[[str], torch.Tensor],
        report: Mapping[str, Any] | None = None,
        digests: Digests | None = None,
    ) -> None:
        self.specs = dict(specs)
        self.digests = digests
        self._report = {} if report is None else report
        self._compute = compute

    @property
    def report(self) -> dict[str, Any]:
        """What has been reported until now, sorted by name."""
        return {
            name: dict(sorted(value.items())) if isinstance(value, dict) else value
            for name, value in sorted(self._report.items())
        }

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


def spec(state: StateDict, name: str) -> Spec:
    """Shape and type of one tensor, from its header where the state is lazy."""
    if isinstance(state, Lazy):
        return state.specs[name]
    return Spec(tuple(state[name].shape), state[name].dtype)


def size(state: StateDict) -> int:
    """How many entries all tensors have together."""
    return sum(math.prod(spec.shape) for spec in specs(state).values())


def after(
    ready: Callable[[], object], state: StateDict, report: Mapping[str, Any] | None = None
) -> StateDict:
    """The state, with `ready` called before each tensor is computed.

    `ready` computes what a formula needs once for all tensors: here it has all cores, inside a
    piece of a tensor it would have one. `report` is the report of the result.
    """

    def compute(name: str) -> torch.Tensor:
        ready()
        return state[name]

    return Lazy(specs(state), compute, report)


def known_digests(state: StateDict, names: Mapping[str, str]) -> Mapping[str, str]:
    """The digests that a state knows of its tensors, which are then finite: see `Digests`."""
    if not names or not isinstance(state, Lazy) or state.digests is None:
        return {}
    return state.digests(names)


def report_of(state: StateDict) -> Mapping[str, Any] | None:
    """The report of a state, for a state derived from it to share; it may still be filled."""
    return state._report if isinstance(state, Lazy) else None


def stored(state: StateDict, read: Callable[[str], torch.Tensor]) -> StateDict:
    """The state with tensors from `read`, such as copies on disk; report and digests stay."""
    return Lazy(specs(state), read, report_of(state), lambda names: known_digests(state, names))


def renamed(state: StateDict, names: Mapping[str, str]) -> StateDict:
    """Tensors of a state under new names: `names` maps new names to the state's own."""
    return Lazy(
        {new: spec(state, old) for new, old in names.items()},
        lambda new: state[names[new]],
        digests=lambda pairs: known_digests(state, {c: names[new] for c, new in pairs.items()}),
    )


def select(state: StateDict, names: Iterable[str]) -> StateDict:
    """The part of a state dict with these names, in this order."""
    return renamed(state, {name: name for name in names})


def union(*states: StateDict) -> StateDict:
    """The tensors of several states; of a name that several have, the first state's tensor."""
    merged: dict[str, Spec] = {}
    owner: dict[str, int] = {}
    for number, state in enumerate(states):
        for name, spec in specs(state).items():
            if name not in merged:
                merged[name], owner[name] = spec, number

    def digests(pairs: Mapping[str, str]) -> Mapping[str, str]:
        known: dict[str, str] = {}
        for number, state in enumerate(states):
            mine = {called: name for called, name in pairs.items() if owner[name] == number}
            known |= known_digests(state, mine)
        return known

    return Lazy(merged, lambda name: states[owner[name]][name], digests=digests)


def cast_like(state: StateDict, template: StateDict) -> StateDict:
    """The state with every tensor in the template's type."""
    return cast(state, {name: spec.dtype for name, spec in specs(template).items()})


def cast(state: StateDict, types: Mapping[str, torch.dtype]) -> StateDict:
    """The state with the types of some tensors changed, by name."""
    headers = {
        name: Spec(spec.shape, types.get(name, spec.dtype)) for name, spec in specs(state).items()
    }
    return Lazy(headers, lambda name: state[name].to(headers[name].dtype))


def split(state: StateDict, parts: Mapping[str, Sequence[str]]) -> StateDict:
    """The state with some tensors cut into equal shares of their rows, which `parts` names."""
    if not parts:
        return state
    headers: dict[str, Spec] = {}
    place: dict[str, tuple[str, int]] = {}
    for name, (shape, dtype) in specs(state).items():
        names = parts.get(name, (name,))
        share = (shape[0] // len(names), *shape[1:]) if name in parts else shape
        for number, part in enumerate(names):
            headers[part], place[part] = Spec(share, dtype), (name, number)

    def compute(part: str) -> torch.Tensor:
        name, number = place[part]
        return state[name].chunk(len(parts[name]))[number] if name in parts else state[name]

    return Lazy(headers, compute)


def joined(state: StateDict, parts: Mapping[str, Sequence[str]]) -> StateDict:
    """The inverse of `split`: the state with the named parts of each tensor concatenated."""
    if not parts:
        return state
    headers, whole = specs(state), {part: name for name, names in parts.items() for part in names}
    result: dict[str, Spec] = {}
    for key, (shape, dtype) in headers.items():
        name = whole.get(key, key)
        rows = shape[:1] if name == key else (sum(headers[part].shape[0] for part in parts[name]),)
        result[name] = Spec((*rows, *shape[1:]), dtype)

    def compute(name: str) -> torch.Tensor:
        return torch.cat([state[part] for part in parts[name]]) if name in parts else state[name]

    return Lazy(result, compute, report_of(state))


def transposed(state: StateDict, which: Callable[[str], bool]) -> StateDict:
    """The state with the matrices whose names `which` selects transposed, in their place."""
    headers = specs(state)
    own = {name for name in filter(which, headers) if len(headers[name].shape) == 2}
    if not own:
        return state
    return Lazy(
        {
            n: Spec(spec.shape[::-1], spec.dtype) if n in own else spec
            for n, spec in headers.items()
        },
        lambda name: state[name].T.contiguous() if name in own else state[name],
        report_of(state),
        # known digests are of matrices as they lie in the file
        lambda names: known_digests(state, {c: n for c, n in names.items() if n not in own}),
    )


def on(device: torch.device, state: StateDict) -> StateDict:
    """The state with its tensors on a device, each moved there when it is asked for."""
    return stored(state, lambda name: state[name].to(device))


def floating(state: StateDict) -> list[str]:
    """Names of the tensors that take part in a merge: integer buffers never do."""
    return [name for name, spec in specs(state).items() if spec.dtype.is_floating_point]


def check_same(states: Sequence[StateDict], called: Sequence[str]) -> None:
    """Raise IncompatibleWeights, naming the tensor, unless names, shapes and kinds of type agree.

    `called` are the names of the states in the message.
    """
    first = specs(states[0])
    for state, name in zip(states[1:], called[1:], strict=True):
        other = specs(state)
        for missing in sorted(first.keys() - other.keys()):
            raise IncompatibleWeights(
                f"{name} has no tensor '{missing}', which {called[0]} has; expected the same "
                "tensors in both"
            )
        for extra in sorted(other.keys() - first.keys()):
            raise IncompatibleWeights(
                f"{name} has a tensor '{extra}' that {called[0]} does not have; expected the same "
                "tensors in both"
            )
        for key, spec in first.items():
            found = other[key]
            if found.shape != spec.shape:
                raise IncompatibleWeights(
                    f"'{key}' is {found.shape} in {name}, expected {spec.shape} as in {called[0]}"
                )
            if found.dtype.is_floating_point != spec.dtype.is_floating_point:
                raise IncompatibleWeights(
                    f"'{key}' is {found.dtype} in {name}, expected {spec.dtype} as in {called[0]}"
                )
