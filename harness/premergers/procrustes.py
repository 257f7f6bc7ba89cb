"""Procrustes: each matrix of all experts turned to be nearest to their mean (Gower 1975)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Literal

import torch

from harness import StateDict, premerge, weights
from harness.options import Count, Layers, NotNegative
from harness.rng import rng

BASE = "base"


@premerge(
    "procrustes",
    paper="doi:10.1007/BF02291478",
    breaks=("order",),
    costly=True,
    reads_base=("reference=base",),
    breaks_with={"reference=base": ("copies",), "reference=random_per_matrix": ("tied",)},
)
def procrustes(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    symmetry: weights.Symmetry,
    reference: Literal[
        "first", "random_per_matrix", "random_shared", "base", "both_ends"
    ] = "first",
    orientation: Literal["in", "out"] = "in",
    rotate_bias: bool = False,
    matrix_set: Literal["paper", "all_2d"] = "paper",
    variant: Literal["algorithm1", "fixed_reference"] = "algorithm1",
    max_iter: Count = weights.Rules.max_iter,
    tol: NotNegative = weights.Rules.tol,
    layers: Layers = "all",
    seed: int = 0,
) -> list[StateDict]:
    """Experts with every matrix W turned to W T by its own Generalized Procrustes Analysis.

    T is orthogonal. All are turned to a `reference`: the matrix of the first expert, of an expert
    drawn for all matrices or for each, of the base, or the mean of turns to the first and to the
    last. Then all are turned to their mean, again and again, until the distance of two means in a
    row changes by less than `tol`. `variant="fixed_reference"` stays with the first mean. T mixes
    the inputs of a layer; with `orientation="out"` its outputs, T^T W, and with `rotate_bias` the
    bias b, to b T.

    `matrix_set="paper"` are queries, keys, values, both feed-forward layers, the embeddings of
    tokens and the matrices of the head; `all_2d` all matrices. Those of a head are turned only if
    all experts have them in one shape and for one task: kept heads of different tasks stay. With
    `layers` other than `all` (`first:N`, `last:N`, or a number) embeddings and head stay, too.
    Biases, gains and all else stay as they are.

    The outputs of an expert do not stay as they are: a layer reads turned inputs that nobody made.
    For experts of one base T is near to the identity. It is not for a head: its few rows are turned
    into the space of the reference's, with one output to ||w|| times its direction. Task vectors of
    what comes out have entries where the experts' had none.

    The report has by matrix the number of the reference, from 1, the passes, and the sum of squared
    distances from the mean before and after. Raises BadOption for a bias without `out`, and for
    `max_iter` or `tol` of a reference that is fixed.

    By hand: heads (3, 0) and (0, 5) of two experts: the second is turned to (5, 0), the mean is
    (4, 0), to which both are turned by nothing, twice: 2 passes, and from 17 to 2.
    """
    rules, count = weights.Rules(variant, max_iter, tol), len(experts)
    if variant == "fixed_reference":
        where = "variant=fixed_reference, whose second pass is the last"
        given = {"max_iter": (max_iter, weights.Rules.max_iter), "tol": (tol, weights.Rules.tol)}
        weights.check_idle("procrustes", where, "variant=algorithm1", **given)

    def starts(name: str) -> tuple[int, ...]:
        """The places of the references; the one after the last is the base's."""
        if reference == BASE and name in base:
            return (count,)
        drawn = [name] if reference == "random_per_matrix" else []
        if reference.startswith("random"):
            return (int(rng(seed, "procrustes", *drawn).integers(count)),)
        return (0, count - 1) if reference == "both_ends" else (0,)

    names = _matrices(experts, symmetry, matrix_set, layers)
    return _aligned(
        experts,
        base,
        {name: starts(name) for name in names},
        rules,
        out=orientation == "out",
        rotate_bias=rotate_bias,
        together=_together(names, symmetry),
    )


def with_references(
    experts: Sequence[StateDict], base: StateDict, references: Mapping[str, int]
) -> list[StateDict]:
    """`procrustes` of the matrices named, with the references given, for Python alone.

    `references` are places in the experts, from 0, by the name of the matrix, to repeat a draw that
    was made elsewhere.
    """
    starts = {name: (place,) for name, place in references.items()}
    return _aligned(experts, base, starts, weights.Rules())


# Which matrices ----------------------------------------------------------------------------


def _matrices(
    experts: Sequence[StateDict], symmetry: weights.Symmetry, matrix_set: str, layers: str
) -> list[str]:
    """The names of the matrices that are turned. Raises BadOption for layers that are not there."""
    chosen = symmetry.chosen(layers)
    known = [weights.specs(expert) for expert in experts]

    def taken(name: str, shape: tuple[int, ...]) -> bool:
        axes = symmetry.axes[name]
        alike = all(name in one and one[name].shape == shape for one in known)
        if len(shape) != 2 or 0 in shape or not alike:
            return False
        if name in symmetry.head and not symmetry.one_task:
            return False
        if matrix_set == "paper" and not _of_the_paper(name, axes, symmetry):
            return False
        return layers == "all" or _layer(axes) in chosen

    return [
        name for name, spec in known[0].items() if name in symmetry.axes and taken(name, spec.shape)
    ]


def _of_the_paper(name: str, axes: Sequence[str | None], symmetry: weights.Symmetry) -> bool:
    """Whether a matrix makes queries, keys, values or feed-forward units, or reads the units, or is
    that of the tokens or of the head.

    In DeBERTa queries and keys may be made of relative positions, too.
    """
    if name in (*symmetry.words, *symmetry.head):
        return True
    made, read = (_kind(axis) for axis in axes)
    return made in ("qk", "rope", "vo", "ffn") or read == "ffn"


def _kind(axis: str | None) -> str:
    return weights.group_of(axis or "").partition(".")[0]


def _layer(axes: Sequence[str | None]) -> weights.Layer | None:
    layers = [weights.layer_of(axis) for axis in axes if axis]
    return next((layer for layer in layers if layer is not None), None)


def _together(names: Sequence[str], symmetry: weights.Symmetry) -> dict[str, tuple[str, ...]]:
    """By each name those that are analysed when it is asked for, on all cores.

    They are of one hidden group, and come one after the other in a file.
    """

    def group(name: str) -> frozenset[str] | str:
        groups = frozenset(weights.group_of(axis) for axis in symmetry.axes[name] if axis)
        return frozenset(one for one in groups if "." in one) or name

    runs = [tuple(run) for _, run in groupby(sorted(names), group)]
    return {name: run for run in runs for name in run if weights.cores() > 1}


# Turning them ------------------------------------------------------------------------------


def _aligned(
    experts: Sequence[StateDict],
    base: StateDict,
    starts: Mapping[str, tuple[int, ...]],
    rules: weights.Rules,
    *,
    out: bool = False,
    rotate_bias: bool = False,
    together: Mapping[str, tuple[str, ...]] | None = None,
) -> list[StateDict]:
    """The experts, turned. Raises BadOption for biases that no turn of the outputs moves.

    `starts` are the places of the references by the names of the matrices, the one after the last
    expert that of the base; with `out` matrices are analysed transposed. `together` are the names
    that are analysed with a name, itself among them, unless it is alone.
    """
    if not out:
        where = "orientation=in, where a bias is not turned"
        bias = (rotate_bias, False)
        weights.check_idle("procrustes", where, "orientation=out", rotate_bias=bias)
    report: dict[str, Any] = {}
    biases = {f"{name.removesuffix('.weight')}.bias": name for name in starts if rotate_bias}

    def oriented(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.mT if out else tensor

    def analysed(name: str) -> weights.Generalized:
        places, count = starts[name], len(experts)
        fixed = oriented(base[name]) if count in places else None
        matrices = [oriented(expert[name]) for expert in experts]
        found = weights.generalized(matrices, places, rules, fixed, turns=rotate_bias)
        called = [BASE if place == count else place + 1 for place in places]
        facts = {"iterations": found.iterations, "before": found.before, "after": found.after}
        reference = called[0] if len(called) == 1 else called
        weights.tell(report, name, {"reference": reference, **facts})
        return found

    def all_analysed(names: Sequence[str]) -> dict[str, weights.Generalized]:
        return dict(zip(names, weights.spread(analysed, names), strict=True))

    latest = weights.latest(all_analysed)  # those that are handed out now; no tensor is kept

    def analysis(name: str) -> weights.Generalized:
        return latest((together or {}).get(name, (name,)))[name]

    def compute(place: int, name: str) -> torch.Tensor:
        tensor = experts[place][name]
        dtype = torch.promote_types(tensor.dtype, torch.float32)
        if name in starts:
            turned = _turned(oriented(tensor), analysis(name), place, dtype)
            return oriented(turned).contiguous()
        if name in biases and tensor.ndim == 1:
            return _rows_turned(tensor[None], analysis(biases[name]).turns[place], dtype)[0]
        return tensor.to(dtype).clone()

    return [
        weights.Lazy(weights.widened(one), partial(compute, i), report)
        for i, one in enumerate(experts)
    ]


BLOCK = 4096
"""How many rows are turned at a time."""


def _turned(
    matrix: torch.Tensor, analysis: weights.Generalized, place: int, dtype: torch.dtype
) -> torch.Tensor:
    """A matrix as the analysis has it, or with its rows turned."""
    if analysis.turned is not None:
        return analysis.turned[place].to(dtype, copy=True)
    return _rows_turned(matrix, analysis.turns[place], dtype)


@weights.one_thread()
def _rows_turned(rows: torch.Tensor, turn: weights.Turn, dtype: torch.dtype) -> torch.Tensor:
    result = torch.empty(rows.shape, dtype=dtype, device=rows.device)

    def fill(start: int) -> None:
        part = slice(start, start + BLOCK)
        result[part] = turn(rows[part].double())

    weights.spread(fill, range(0, len(rows), BLOCK))
    return result
