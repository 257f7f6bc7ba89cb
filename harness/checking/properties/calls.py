"""Properties that are checked by calling the method alone."""

from __future__ import annotations

import random
import weakref
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from harness import weights
from harness.checking import toys
from harness.checking.properties.compare import alike, all_alike, copied, dtype_name, same_names
from harness.checking.properties.property import Broken, CheckedMethod, checks
from harness.checking.toys import ToyExperts
from harness.types import Choice, StateDict

ROUNDING = 1e-6
"""The tolerance for float32 sums in another order, relative and absolute."""


@checks("shapes")
def shapes(method: CheckedMethod) -> None:
    """Names, shapes and types are kept; the headers of a lazy result tell the truth."""
    family = method.family()
    states = method(family)
    expected = weights.specs(family.base)
    if len(states) != (1 if method.makes_one else method.experts):
        raise Broken(f"the method returned {len(states)} models for {method.experts} experts")
    for place, state in enumerate(states):
        same_names(state, family.base)
        for name in expected:
            if not isinstance(state[name], torch.Tensor):
                found = f"{method.which(place)}'{name}' is a {type(state[name]).__name__}"
                raise Broken(f"{found}, expected a torch.Tensor")
        headers = weights.specs(state)
        for name, spec in expected.items():
            actual = weights.Spec(tuple(state[name].shape), state[name].dtype)
            for suffix, have in (("", actual), (" by its header", headers[name])):
                if have != spec:
                    found = f"{method.which(place)}'{name}' is {_spec(have)}{suffix}"
                    raise Broken(f"{found}, expected {_spec(spec)}")


def _spec(spec: weights.Spec) -> str:
    return f"{dtype_name(spec.dtype)} {tuple(spec.shape)}"


@checks("inputs")
def inputs(method: CheckedMethod) -> None:
    """The inputs are untouched, and writing to the output does not reach them."""
    family, before = method.family(), method.family()
    states = method(family)
    for state in states:
        copied(state)
    _same_inputs(method, family, before, "after merging, ")
    for state in states:
        for name in state:
            state[name].fill_(7)
    _same_inputs(method, family, before, "after writing to the output, ")


def _same_inputs(method: CheckedMethod, family: ToyExperts, before: ToyExperts, when: str) -> None:
    alike(family.base, before.base, where=f"{when}base: ")
    compared = {"": (family.experts, before.experts)}
    for need in method.needs:
        if toys.are_states(family.needs[need]):
            compared[f"the {need} of "] = family.needs[need], before.needs[need]
    for label, pairs in compared.items():
        for place, (state, old) in enumerate(zip(*pairs, strict=True), start=1):
            alike(state, old, where=f"{when}{label}expert {place}: ")


@checks("order")
def order(method: CheckedMethod) -> None:
    """The order of the experts does not matter.

    A merge is the same; what a pre-merging method makes of an expert moves with it.
    """
    expected = [copied(state) for state in method(method.family())]
    count = range(method.experts)
    for places in (list(reversed(count)), [*count[1:], 0]):
        states = method(method.family().ordered(places))
        in_order = expected if method.makes_one else [expected[place] for place in places]
        numbers = ", ".join(str(place + 1) for place in places)
        when = f"with experts in order {numbers}, "
        all_alike(method, states, in_order, tolerance=ROUNDING, when=when)


@checks("copies")
def copies(method: CheckedMethod) -> None:
    """Copies of one model give that model."""
    family = method.family()
    model = family.experts[0]
    states = method(family.of([copied(model) for _ in family.experts]))
    all_alike(method, states, [model] * len(states), tolerance=ROUNDING)


@checks("zero")
def zero(method: CheckedMethod) -> None:
    """Zero task vectors, experts that equal the base, give the base."""
    family = method.family()
    states = method(family.of([copied(family.base) for _ in family.experts]))
    all_alike(method, states, [family.base] * len(states), tolerance=ROUNDING)


@checks("scale", "merger")
def scale(method: CheckedMethod) -> None:
    """Where a merge is base + scale * direction, the option `scale` moves nothing else.

    The harness relies on it: it computes the direction once and searches along it for a scale.
    """
    if weights.SCALE not in method.choice.options:
        return
    far, near = (_at_scale(method, value) for value in (2.0, 0.5))
    if not (isinstance(far, weights.ScaledMerge) and isinstance(near, weights.ScaledMerge)):
        return
    where = "the direction at scale 0.5, beside that at 2: "
    alike(near.direction, far.direction, where=where)
    for merged, value in ((far, 2.0), (near, 0.5)):
        if merged.scale != value:
            raise Broken(f"at scale {value:g} the direction is taken {merged.scale:g} times")


def _at_scale(method: CheckedMethod, value: float) -> StateDict:
    choice = Choice(method.choice.name, {**method.choice.options, weights.SCALE: value})
    return replace(method, choice=choice)(method.family())[0]


@checks("bytes")
def same_bytes(method: CheckedMethod) -> None:
    """The same seed gives the same bytes.

    This holds for any global random state, order of the tensors in the inputs, order in which
    outputs are read, and size of the pieces that are worked on.
    """
    with weights.seeded(1):
        expected = [copied(state) for state in method(method.family())]
    check = partial(all_alike, method, expected=expected)
    with weights.seeded(2):
        check(states=method(method.family()), when="run again, ")
    backwards = [
        {name: state[name].clone() for name in reversed(list(state))}
        for state in reversed(method(method.family()))
    ]
    check(states=backwards[::-1], when="asked for its tensors backwards, ")
    shuffled = method.family().every(partial(_shuffled, random.Random(0)))
    check(states=method(shuffled), when="with the tensors of the inputs in another order, ")
    with weights.pieces_of(17):
        check(states=method(method.family()), when="worked on in pieces of 17 entries, ")


def _shuffled(numbers: random.Random, state: StateDict) -> StateDict:
    return {name: state[name] for name in numbers.sample(list(state), len(state))}


@checks("memory")
def memory(method: CheckedMethod) -> None:
    """Memory stays inside the streaming bound.

    Nothing is read when the function is called, inputs are released as each output is made, and no
    output is kept. Input tensors that are alive at one time are counted: a merger or post-merging
    method may hold one of each input and two more, a pre-merging method four of each, since a
    symmetry of a layer moves two weights and their biases together. An output that is read again
    must be computed from its inputs again; if nothing is read, it was kept.
    """
    watch = LiveTensors()
    family = method.family().every(watch.state)
    states = method(family)
    for state in states:
        weights.specs(state)
    if watch.reads:
        raise Broken(
            f"{watch.reads} tensors are read when the function is called, expected none yet"
        )
    bound = watch.states + 2 if method.makes_one else 4 * watch.states
    for again in (False, True):
        for name in states[0]:
            before = watch.reads
            for state in states:
                state[name]
            if again and watch.reads == before:
                raise Broken(
                    f"'{name}' is asked for again and nothing is read: it was kept in memory"
                )
            if watch.most > bound:
                alive = f"{watch.most} tensors of {watch.states} inputs are alive"
                raise Broken(f"{alive} at '{name}', expected at most {bound} in memory")


class LiveTensors:
    """Counts the tensors that are read from its states and are still alive."""

    def __init__(self) -> None:
        self.states = self.reads = self.alive = self.most = 0

    def state(self, state: StateDict) -> StateDict:
        """A watched state dict that copies a tensor whenever it is read, like a file."""
        self.states += 1
        return weights.Lazy(weights.specs(state), lambda name: self._read(state[name]))

    def _read(self, tensor: torch.Tensor) -> torch.Tensor:
        # the array lives as long as the storage, and so as long as any view of the tensor
        array = np.array(tensor.numpy())
        weakref.finalize(array, self._let_go)
        self.reads += 1
        self.alive += 1
        self.most = max(self.most, self.alive)
        return torch.from_numpy(array)

    def _let_go(self) -> None:
        self.alive -= 1
