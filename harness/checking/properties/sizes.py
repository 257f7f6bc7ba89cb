"""The property `large`, and toys for it: tensors larger than the pieces that are worked on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from harness.checking import toys
from harness.checking.properties.compare import all_alike, copied
from harness.checking.properties.property import Broken, CheckedMethod, checks
from harness.checking.toys import Shapes, Tensors, ToyExperts
from harness.rng import rng
from harness.types import StateDict

MANY, TWIN = "odd.many", "odd.twin"
SIZES: Shapes = {
    "odd.some": (0x1555,),
    MANY: (0x15555,),
    TWIN: (0x15555,),
    "odd.most": (0x155555,),
    "odd.table": (311, 281),
}
"""Sizes whose binary digits alternate: cut into pieces of any power of two, the last piece has a
third of a piece or more; with a power of ten it has at least a thirtieth of the tensor."""

UNIT = 2.0**-21
"""All entries are multiples of it, so that task vectors are exact, without rounding."""

NEAR = 1e-3
"""The tolerance for sums in another order; a piece that is left out differs by far more."""

WINDOWS = 32
MIXED = (0.1, 0.9)
"""Between these shares of unchanged entries, a window counts as drawn at random."""


@checks("large")
def large(method: CheckedMethod) -> None:
    """A large tensor is treated as a small one is, whatever pieces it is worked on in.

    Catches a method with its own piece size: all other toys are smaller than a piece. Positions
    must not matter: reversed inputs give the reversed output. A method that draws, recognised by
    treating two copies of a tensor under two names differently, must draw in all parts of a tensor.
    """
    family = _family(method.experts, method.needs)
    states = [copied(state) for state in method(family)]
    if all(torch.allclose(state[MANY], state[TWIN], rtol=NEAR, atol=NEAR) for state in states):
        turned = [_turned(state) for state in method(family_turned(family))]
        all_alike(method, states, turned, tolerance=NEAR, when="beside worked on back to front, ")
        return
    for place, state in enumerate(states):
        experts = [family.experts[place]] if method.stage == "premerge" else []
        for name in ("odd.some", MANY, "odd.most"):
            for model in (family.base, *experts):
                _check_even(name, state[name] == model[name])


def _check_even(name: str, marked: torch.Tensor) -> None:
    """Raise Broken if entries are marked at random in one part, and all or none in another."""
    windows = marked[: len(marked) // WINDOWS * WINDOWS].view(WINDOWS, -1)
    last = marked[-windows.shape[1] :]
    shares = [*windows.double().mean(1).tolist(), float(last.double().mean())]
    mixed = [share for share in shares if MIXED[0] < share < MIXED[1]]
    plain = [place for place, share in enumerate(shares) if share in (0, 1)]
    if mixed and plain:
        start = min(plain[0], WINDOWS - 1) * windows.shape[1]
        raise Broken(
            f"'{name}' of {len(marked)} entries is unchanged in {shares[plain[0]]:.0%} of those "
            f"after entry {start}, and in {mixed[0]:.0%} of others"
        )


# Toys --------------------------------------------------------------------------------------


@cache
def _model(seed: int) -> Mapping[str, torch.Tensor]:
    """The base (seed 0) or an expert, whose entries all differ from the base by different amounts.

    Entries at the end have moved further than those at the start, so that no part is
    representative of the whole.
    """

    def tensor_of(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        count = torch.Size(shape).numel()
        name = MANY if name == TWIN else name
        numbers = rng(0, "base", name)
        base = torch.from_numpy(numbers.integers(-(2**21), 2**21, count)) * UNIT
        if seed:
            numbers = rng(seed, "moved", name)
            ranks = torch.from_numpy(numbers.random(count)).mul_(2)
            ranks = (ranks + torch.arange(count) / count).argsort().argsort() + 1
            signs = torch.from_numpy(numbers.integers(0, 2, count)) * 2 - 1
            base = base + ranks * signs * (UNIT * max(1, 2**20 // count))
        return base.float().view(shape)

    return {name: tensor_of(name, shape) for name, shape in SIZES.items()}


def _family(experts: int, needs: Sequence[str]) -> ToyExperts:
    """Experts of fresh copies, which a method may write to. Twins have the same statistics."""
    models = [copied(_model(seed)) for seed in range(experts + 1)]
    needed = toys.needed(needs, SIZES, experts)
    for entries in needed.values():
        if toys.are_states(entries):
            for state in entries:
                state.update({TWIN: state[MANY].clone()} if MANY in state else {})
    return ToyExperts(models[1:], models[0], needed)


def family_turned(family: ToyExperts) -> ToyExperts:
    """The experts with every tensor reversed; a score reverses a candidate before it scores it."""

    def turned(value: Any) -> Any:
        return (lambda state: value(_turned(state))) if callable(value) else value

    reversed_family = family.every(_turned)
    return replace(
        reversed_family,
        needs={name: turned(value) for name, value in reversed_family.needs.items()},
    )


def _turned(state: StateDict) -> Tensors:
    return {name: state[name].flip(tuple(range(state[name].ndim))) for name in state}
