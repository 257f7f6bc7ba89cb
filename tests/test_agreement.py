"""Merged folders of real architectures against float64 references, tensor by tensor.

Fisher and RegMean, which ask for data, have their own in test_fisher_regmean.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from harness import Recipe, merge
from tests.conftest import model
from tests.test_mergers import (
    Arrays,
    reference_arithmetic,
    reference_average,
    reference_breadcrumbs,
    reference_breadcrumbs_of_rows,
    reference_consensus,
    reference_linear,
    reference_model_stock,
    reference_slerp,
    reference_ties,
)
from tests.test_premergers import reference_dropped
from tests.test_spectral import (
    reference_actmat,
    reference_iso,
    reference_pcb,
    reference_tsv,
    reference_wudi,
)

Reference = Callable[[list[Arrays], Arrays], Arrays]

LABELS = ["entailment", "not_entailment"]

#: method -> the same in float64, of all tensors
WHOLE: dict[str, Reference] = {
    "average": reference_average,
    "linear:weights=3:-1:2": lambda experts, base: reference_linear(experts, [3, -1, 2], True),
    "slerp:t=0.3": lambda experts, base: reference_slerp(experts[0], experts[1], 0.3),
}
#: the same for methods of task vectors: of encoders, under the mean of the heads
VECTORS: dict[str, Reference] = {
    "task_arithmetic:scale=0.4": lambda experts, base: reference_arithmetic(
        experts, base, [0.4, 0.4, 0.4]
    ),
    "ties:density=0.3": lambda experts, base: reference_ties(
        experts, base, 30, 1.0, "global", "mergelm", "mean"
    ),
    "ties:density=0.6,scale=0.5,convention=original,combine=sum": lambda experts, base: (
        reference_ties(experts, base, 60, 0.5, "global", "original", "sum")
    ),
    "ties:density=0.5,trim=tensor,combine=max": lambda experts, base: reference_ties(
        experts, base, 50, 1.0, "tensor", "mergelm", "max"
    ),
    "breadcrumbs:density=0.5,gamma=0.1,scale=0.5": lambda experts, base: reference_breadcrumbs(
        experts, base, 0.5, 0.1, 0.5
    ),
    "breadcrumbs:density=0.5,gamma=0.1,per=row,scale=0.5": lambda experts, base: (
        reference_breadcrumbs_of_rows(experts, base, 0.5, 0.1, 0.5)
    ),
    "consensus:threshold=0.4,agree=2,scale=0.3": lambda experts, base: reference_consensus(
        experts, base, 0.4, 2, 0.3
    ),
    "model_stock": reference_model_stock,
    "tsv": reference_tsv,
    "tsv:keep=0.5,matrices=linear,scale=0.5": lambda experts, base: reference_tsv(
        experts, base, 0.5, 0.5, matrices="linear"
    ),
    "iso": reference_iso,
    "iso:variant=common_and_task,common=0.6": lambda experts, base: reference_iso(
        experts, base, variant="common_and_task", common=0.6
    ),
    "wudi": reference_wudi,
    "wudi:matrices=all,others=mean,scale=0.5": lambda experts, base: reference_wudi(
        experts, base, 0.5, matrices="all", others="mean"
    ),
    "wudi:solver=adam,steps=20,learning_rate=0.001": lambda experts, base: reference_wudi(
        experts, base, solver="adam", steps=20, learning_rate=1e-3
    ),
    "actmat": reference_actmat,
    "pcb:density=0.3,clamp=0.01": lambda experts, base: reference_pcb(
        experts, base, density=0.3, clamp=0.01
    ),
}


def arrays(folder: Path) -> Arrays:
    """The floating tensors of a folder in float64."""
    found = load_file(folder / "model.safetensors")
    return {name: a.astype(np.float64) for name, a in found.items() if a.dtype.kind == "f"}


@pytest.fixture(scope="module", params=["bert", "roberta", "deberta-v2"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A base and three experts of it."""
    root = tmp_path_factory.mktemp("family")
    base = model(root / "base", family=request.param)
    experts = [
        model(root / f"expert{i}", LABELS, family=request.param, seed=i + 1, near=base)
        for i in range(3)
    ]
    return [base, *experts]


def merged(
    family: Sequence[Path], method: str, out: Path, premerge: tuple[str, ...] = ()
) -> Arrays:
    experts = family[1:3] if method.startswith("slerp") else family[1:]
    recipe = Recipe(
        experts=tuple(map(str, experts)),
        base=str(family[0]),
        tasks=("glue/rte",),
        merger=method,
        premerge=premerge,
        seed=5,
    )
    merge(recipe, out=out)
    return arrays(out)


def of_encoder(family: Sequence[Path]) -> tuple[list[Arrays], Arrays]:
    """The encoders, by the names that they have in a classifier."""
    base = arrays(family[0])
    experts = [arrays(folder) for folder in family[1:]]
    prefix = next(iter(name for name in experts[0] if "embeddings" in name)).partition(".")[0]
    named = {f"{prefix}.{name}": array for name, array in base.items()}
    shared = [name for name in experts[0] if name in named]
    assert len(shared) > 30
    return [{n: e[n] for n in shared} for e in experts], {n: named[n] for n in shared}


def agree(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("method", WHOLE)
def test_a_merge_of_weights_agrees(method: str, family: list[Path], tmp_path: Path) -> None:
    experts = [arrays(folder) for folder in family[1:]]
    agree(merged(family, method, tmp_path / "out"), WHOLE[method](experts, experts[0]))


@pytest.mark.parametrize("method", VECTORS)
def test_a_merge_of_task_vectors_agrees(method: str, family: list[Path], tmp_path: Path) -> None:
    experts, base = of_encoder(family)
    heads = reference_average([arrays(folder) for folder in family[1:]], arrays(family[1]))
    expected = {**heads, **VECTORS[method](experts, base)}
    agree(merged(family, method, tmp_path / "out"), expected)


def test_a_merge_after_dare_agrees(family: list[Path], tmp_path: Path) -> None:
    experts, base = of_encoder(family)
    dropped = [
        {
            name: base[name]
            + np.where(reference_dropped(array.shape, 0.6, 5, index, name), 0, array - base[name])
            / 0.4
            for name, array in expert.items()
        }
        for index, expert in enumerate(experts)
    ]
    heads = reference_average([arrays(folder) for folder in family[1:]], arrays(family[1]))
    expected = {**heads, **reference_arithmetic(dropped, base, [0.4] * 3)}
    found = merged(family, "task_arithmetic:scale=0.4", tmp_path / "out", ("dare:drop_rate=0.6",))
    agree(found, expected)
