"""Task vectors matrix by matrix, for methods that use rows and columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch

from harness.types import StateDict
from harness.weights.arithmetic import ScaledMerge, entrywise, total
from harness.weights.decompositions import EPSILON
from harness.weights.lazy import Lazy, specs

Matrices: TypeAlias = Literal["all", "linear"]
"""Which tensors count as matrices: all with two axes, or those except embedding tables."""
Others: TypeAlias = Literal["mean", "zero"]
"""The merged task vector of all other tensors: the mean, or zero."""
EMBEDDING = re.compile(
    r"embed|\b(shared|wte|wpe)\.weight$|relative_attention_bias|^transformer\.w\.weight$"
)
"""Finds the names of embedding tables, in all known architectures (`w` is that of CTRL)."""
PROJECTION = re.compile(
    r"embeddings_project\b|embedding_hidden_mapping_in|\bembed_proj\b"
    r"|\bembedding_transformation\b|\bembeddings\.projection\.weight$|\bentity_embedding_dense\b"
)
"""Finds the names of linear layers after an embedding table, which EMBEDDING finds too: of ELECTRA,
ALBERT, DeBERTa, MobileBERT, FNet and LUKE."""


class Vectors(Sequence[torch.Tensor]):
    """The task vectors of one matrix, in float64; each is computed when it is asked for.

    A task vector no larger than the rounding of the base's matrix is zero.
    """

    def __init__(self, experts: Sequence[StateDict], base: StateDict, name: str) -> None:
        self._experts, self._base, self._name = experts, base, name

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[index] for index in range(*place.indices(len(self)))]
        vector = self._experts[place][self._name].double() - self._base[self._name].double()
        return vector if float(vector.norm()) > EPSILON * self.origin else vector.zero_()

    def __len__(self) -> int:
        return len(self._experts)

    @cached_property
    def origin(self) -> float:
        """The norm of the base's matrix."""
        return float(self._base[self._name].double().norm())


def is_matrix(name: str, shape: tuple[int, ...], matrices: Matrices = "all") -> bool:
    """Whether a tensor of this name and shape is a matrix with entries."""
    table = EMBEDDING.search(name) and not PROJECTION.search(name)
    return len(shape) == 2 and 0 not in shape and (matrices == "all" or not table)


def by_matrix(
    merge: Callable[[str, Vectors], torch.Tensor],
    experts: Sequence[StateDict],
    base: StateDict,
    scale: float,
    *,
    matrices: Matrices = "all",
    others: Others = "mean",
    report: Mapping[str, Any] | None = None,
) -> ScaledMerge:
    """base + scale * (merged task vector), in at least float32.

    The merged task vector is `merge(name, vectors)` for every matrix, and the mean of the task
    vectors, or zero, for all other tensors. `merge` may use all cores.
    """

    def mean(origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
        return total([weight - origin for weight in tuned]).div_(len(tuned))

    averaged = entrywise(mean, base, *experts)
    headers = specs(averaged)

    def compute(name: str) -> torch.Tensor:
        shape, dtype = headers[name]
        if is_matrix(name, shape, matrices):
            return merge(name, Vectors(experts, base, name)).to(dtype)
        if others == "mean":
            return averaged[name]
        return torch.zeros(shape, dtype=dtype, device=base[name].device)

    return ScaledMerge(base, Lazy(headers, compute, report), scale)
