"""Pure: two models -> how many feed-forward units of a layer match themselves, and all cosines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy.optimize import linear_sum_assignment

from harness.checkpoints.families.family import FFN, Family
from harness.checkpoints.families.symmetry import axes_of, place_in, split_parts
from harness.inspecting.inspection import UnitsInPlace
from harness.types import StateDict
from harness.weights import Layer, Member, Symmetry, overlap, select, specs, units_of

TIED = 1e-9
"""The relative bonus for a unit that stays in place, so that ties move no unit."""


def feed_forward(family: Family, state: StateDict) -> dict[Layer, list[Member]]:
    """The axes over the feed-forward units of each layer; {} for a family without a table.

    The tensors are named as in the table (`split_parts`).
    """
    headers = specs(state)
    places = {name: place_in(family, name, spec) for name, spec in headers.items()}
    names = [n for n in headers if places[n].role in ("up", "down") and all(headers[n].shape)]
    if not names:
        return {}
    symmetry = Symmetry(axes_of(family, select(state, names)), heads=1)
    parts = split_parts(family, state)
    return {layer: symmetry.members(FFN.format(layer=layer), parts) for layer in symmetry.layers}


def units_kept(first: StateDict, second: StateDict, members: Sequence[Member]) -> UnitsInPlace:
    """How many units the best assignment of one model's units to the other's leaves in place.

    The assignment maximises the inner products of the units' incoming weights, biases and outgoing
    weights (Ainsworth et al. 2023, section 3.2), in float64. Of equally good assignments, the one
    that moves the fewest units: a dead unit fits any other equally well.

    By hand: for units (1, 0), (0, 1) and (0, 1), and (0, 2), (2, 0) and (0, 2) in the other model,
    the first goes to the second, and the second to the first; the third stays.
    """
    products = overlap(first, second, members).products[0]
    scale = float(products.abs().amax()) if products.numel() else 0.0
    products += TIED * scale * torch.eye(len(products), dtype=products.dtype)
    rows, columns = linear_sum_assignment(products.numpy(), maximize=True)
    return UnitsInPlace(len(products), int((rows == columns).sum()))


MOST = 256
"""The most cells along a side of a picture; with more units, a cell is a square of several."""


def unit_cosines(first: StateDict, second: StateDict, members: Sequence[Member]) -> torch.Tensor:
    """The cosines of every unit of one model with every unit of the other, [units, units].

    A unit is its incoming weights, bias and outgoing weights, in float64; the cosine is 0 where one
    of two units is dead (RegMean, Jin et al. 2023, Appendix D).

    By hand: units (1, 0) and (0, 2), with (3, 0) and (1, 1) in the other model, have cosines of
    (1, 0.707) and (0, 0.707).
    """
    squared = (
        [units_of(state, member).square().sum(1) for member in members] for state in (first, second)
    )
    norms = [torch.stack(squares).sum(0).sqrt() for squares in squared]
    scale = norms[0][:, None] * norms[1]
    return torch.where(scale > 0, overlap(first, second, members).products[0] / scale, 0.0)


def in_squares(values: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The largest entry of every square of units, at most `MOST` squares a side; and their size.

    A mean would hide a diagonal among many units.
    """
    side = -(-len(values) // MOST)
    padded = torch.nn.functional.pad(values, 2 * (0, -len(values) % side), value=-torch.inf)
    count = len(padded) // side
    return padded.reshape(count, side, count, side).amax((1, 3)), side
