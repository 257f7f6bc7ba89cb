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

    T is orthogonal. First all are turned to a `reference`: the matrix of the first expert, of the
    base, or of an expert drawn once for all matrices (`random_shared`) or for each
    (`random_per_matrix`). With `both_ends` the first mean is that of turns to the first expert and
    to the last. Then all are turned to their mean, again and again, until the distance between
    successive means changes by less than `tol`. `variant="fixed_reference"` keeps the first mean. T
    mixes the inputs of a layer; with `orientation="out"` its outputs, W to T^T W, and with
    `rotate_bias` also the bias, b to b T.

    `matrix_set="paper"` turns queries, keys, values, both feed-forward layers, the embeddings of
    tokens and the matrices of the head; `all_2d` all matrices. Those of a head are turned only if
    all experts have them in one shape and for one task: kept heads of different tasks stay. With
    `layers` other than `all` (`first:N`, `last:N`, or a number) embeddings and head stay, too.
    Biases, gains and all else stay as they are.

    The outputs of an expert change: no other layer makes up for the turned inputs of a layer. For
    experts of one base T is near to the identity, except for a head: its few rows are turned into
    the row space of the reference, and the single row w of a head with one output becomes ||w||
    times the reference's direction. The task vectors of the turned experts have nonzero entries
    where the experts' were zero.

    The report has for each matrix the number of the reference, from 1, or `base`, the passes, and
    the sum of squared distances from the mean before and after. Raises BadOption for `rotate_bias`
    without `orientation="out"`, and for `max_iter` or `tol` with a fixed reference.

    By hand: heads (3, 0) and (0, 5) of two experts. The second is turned to (5, 0), and the mean is
    (4, 0). Turning both to it changes nothing: 2 passes, and the sum falls from 17 to 2.
    """
    rules, count = weights.Rules(variant, max_iter, tol), len(experts)
    if variant == "fixed_reference":
        condition = "variant=fixed_reference, whose second pass is the last"
        limits = {"max_iter": (max_iter, weights.Rules.max_iter), "tol": (tol, weights.Rules.tol)}
        weights.check_idle("procrustes", condition, "variant=algorithm1", **limits)
    if orientation == "in":
        condition, bias = "orientation=in, where a bias is not turned", (rotate_bias, False)
        weights.check_idle("procrustes", condition, "orientation=out", rotate_bias=bias)

    def starts(name: str) -> tuple[int, ...]:
        """The places of the references; the place after the last expert is the base's."""
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
    """`procrustes` with given references, to repeat a draw made elsewhere; only from Python.

    `references` has the place of an expert, from 0, by the name of each matrix to be turned.
    """
    starts = {name: (place,) for name, place in references.items()}
    return _aligned(experts, base, starts, weights.Rules())


# Which matrices ----------------------------------------------------------------------------


def _matrices(
    experts: Sequence[StateDict], symmetry: weights.Symmetry, matrix_set: str, layers: str
) -> list[str]:
    """The names of the matrices that are turned. Raises BadOption for layers that are not there."""
    chosen = symmetry.chosen(layers)
    specs = [weights.specs(expert) for expert in experts]

    def taken(name: str, shape: tuple[int, ...]) -> bool:
        axes = symmetry.axes[name]
        return (
            weights.is_matrix(name, shape)
            and all(name in one and one[name].shape == shape for one in specs)
            and (symmetry.one_task or name not in symmetry.head)
            and (matrix_set == "all_2d" or _of_the_paper(name, axes, symmetry))
            and (layers == "all" or _layer(axes) in chosen)
        )

    return [
        name for name, spec in specs[0].items() if name in symmetry.axes and taken(name, spec.shape)
    ]


def _of_the_paper(name: str, axes: Sequence[str | None], symmetry: weights.Symmetry) -> bool:
    """Whether a matrix computes queries, keys, values or feed-forward units, or reads the units, or
    is the table of tokens or part of the head.

    In DeBERTa queries and keys may be computed from relative positions, too.
    """
    if name in (*symmetry.words, *symmetry.head):
        return True
    computed, read = (weights.group_of(axis or "").partition(".")[0] for axis in axes)
    return computed in ("qk", "rope", "vo", "ffn") or read == "ffn"


def _layer(axes: Sequence[str | None]) -> weights.Layer | None:
    layers = [weights.layer_of(axis) for axis in axes if axis]
    return next((layer for layer in layers if layer is not None), None)


def _together(names: Sequence[str], symmetry: weights.Symmetry) -> dict[str, tuple[str, ...]]:
    """For each name, the names that are analysed together, on all cores, when it is asked for.

    They run over the same groups of a layer, and follow one another in a file. Empty on one core.
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
    """The experts, turned; with `rotate_bias`, which needs `out`, their biases as well.

    `starts` has the places of the references by the name of the matrix; the place after the last
    expert is the base's. With `out` matrices are analysed transposed. `together` has all names that
    are analysed with a name, itself included; a name that it lacks is analysed alone.
    """
    report: dict[str, Any] = {}
    biases = {f"{name.removesuffix('.weight')}.bias": name for name in starts if rotate_bias}

    def oriented(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.mT if out else tensor

    def analysed(name: str) -> weights.Generalized:
        places, count = starts[name], len(experts)
        fixed = oriented(base[name]) if count in places else None
        matrices = [oriented(expert[name]) for expert in experts]
        result = weights.generalized(matrices, places, rules, fixed, turns=rotate_bias)
        labels = [BASE if place == count else place + 1 for place in places]
        facts = {"iterations": result.iterations, "before": result.before, "after": result.after}
        reference = labels[0] if len(labels) == 1 else labels
        weights.tell(report, name, {"reference": reference, **facts})
        return result

    def all_analysed(names: Sequence[str]) -> dict[str, weights.Generalized]:
        return dict(zip(names, weights.spread(analysed, names), strict=True))

    latest = weights.latest(all_analysed)  # only the last analyses are kept

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
        weights.Lazy(weights.widened(expert), partial(compute, i), report)
        for i, expert in enumerate(experts)
    ]


BLOCK = 4096
"""How many rows are turned at a time."""


def _turned(
    matrix: torch.Tensor, analysis: weights.Generalized, place: int, dtype: torch.dtype
) -> torch.Tensor:
    """The turned matrix of the analysis; if it has none, the matrix with its rows turned."""
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
