"""TALL-masks: the sum of the task vectors, with a mask for each task (Wang et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from harness.options import NotNegative
from harness.types import StateDict
from harness.weights import entrywise, total


def tall(
    experts: Sequence[StateDict], base: StateDict, *, threshold: NotNegative = 0.4
) -> list[StateDict]:
    """For each expert the encoder base + m_i * (sum of task vectors), in the widest type of all.

    The mask m_i keeps the entries where |v_i| >= threshold * |sum - v_i|: the expert's task vector
    v_i outweighs those of the others. The paper picks a threshold in 0.2, ..., 0.6 for each task on
    validation data; here, as in the merger `consensus`, 0.4 is the default for all tasks.
    arXiv:2405.07813, eq. 5.

    By hand: at threshold 1/2, task vectors (4, 1) and (3, -4), of sum (7, -3), have the masks
    (1, 0), as 1 < 4 / 2, and (1, 1); (7, 0) and (7, -3) are added to the base.
    """

    def masked(place: int, origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
        vectors = [weight - origin for weight in tuned]
        summed, own = total(vectors), vectors[place]
        keep = own.abs() >= (summed - own).abs_().mul_(threshold)
        return summed.mul_(keep).add_(origin)

    return [entrywise(partial(masked, place), base, *experts) for place in range(len(experts))]
