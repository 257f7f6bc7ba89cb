"""What is nothing but rounding decides nothing: ranks, shares and directions of degenerate experts.

Every method that judges a rank, or divides by what experts may not have, is run on task vectors of
which parts are zero, cancel, or are the same, moved by single roundings and on one thread and two.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import harness
from harness import Recipe, merge
from harness.mergers.regmean import nearest
from harness.premergers.cca import mapped
from harness.weights import compact_svd, isometry, polar
from tests.conftest import threads
from tests.test_spectral import reference_iso

Vectors = list[torch.Tensor]
NAME = "encoder.layer.0.weight"
ULP = 2.0**-52
ROWS, COLUMNS = 24, 16


# Task vectors that leave something open ------------------------------------------------------


def drawn(seed: int, rows: int = ROWS, columns: int = COLUMNS) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=numbers, dtype=torch.float64) / 100


def of_rank(rank: int, seed: int) -> torch.Tensor:
    return 100 * drawn(seed, ROWS, rank) @ drawn(seed + 50, rank, COLUMNS)


def upper_rows(count: int, seed: int) -> torch.Tensor:
    """As tables of positions of which few were trained."""
    vector = drawn(seed)
    vector[count:] = 0
    return vector


def in_one_frame(*values: list[float]) -> Vectors:
    """Task vectors with the same singular vectors, of which each has some."""
    left, right = (torch.linalg.qr(drawn(s, n, n)).Q for s, n in ((70, ROWS), (71, COLUMNS)))
    known = [torch.tensor(one, dtype=torch.float64) / 10 for one in values]
    return [(left[:, : len(one)] * one) @ right[:, : len(one)].mT for one in known]


def kinds() -> dict[str, Vectors]:
    whole, other, low = drawn(1), drawn(2), of_rank(4, 3)
    return {
        "full rank": [whole, other, drawn(3)],
        "rows that nobody moved": [upper_rows(6, seed) for seed in (1, 2, 3)],
        "rows that some moved": [upper_rows(12, 1), upper_rows(6, 2), of_rank(2, 5)],
        "low rank": [of_rank(3, seed) for seed in (1, 2, 3)],
        "one is zero": [whole, torch.zeros_like(whole), other],
        "all are zero": [torch.zeros_like(whole)] * 2,
        "all are equal": [whole] * 3,
        "all are equal, of low rank": [low] * 3,
        "opposed": [whole, -whole],
        "the sum is zero": [whole, other, -whole - other],
        "a part cancels": [low + of_rank(3, 7), of_rank(3, 9) - low],
        "one is small": [of_rank(3, 1), of_rank(3, 2) * 1e-6],
        "in one frame": in_one_frame([3, 0, 1, 0, 2], [1, 2, 0, 0, 0.5], [0, 0, 0, 4, 0]),
        "of one size": [0.01 * whole.sign(), 0.01 * other.sign()],
    }


METHODS: list[tuple[str, dict[str, Any]]] = [
    ("iso", {}),
    ("iso", {"variant": "common_and_task"}),
    ("iso", {"variant": "common_and_task", "common": 0.3}),
    ("tsv", {}),
    ("tsv", {"keep": 1.0}),
    ("wudi", {}),
    ("wudi", {"ridge": 1e-4}),
    ("actmat", {}),
    ("model_stock", {}),
    ("pcb", {}),
    ("pcb", {"inter": "normalized"}),
    ("pcb", {"inter": "pairwise", "density": 0.5}),
    ("svc", {}),
    ("svc", {"floor": "mean"}),
    ("lines", {}),
]
BOUND = 1e-6
"""Of the norm of the largest task vector: how far a result may move when its inputs do by single
roundings. Of 2e-16 that is what directions with neighbouring singular values make of it; a
direction of noise that counts moves results by 0.01 to 1."""


def made(name: str, options: dict[str, Any], experts: Vectors, base: torch.Tensor) -> torch.Tensor:
    """What a method adds to the base."""
    states, origin = [{NAME: expert} for expert in experts], {NAME: base}
    if name in harness.MERGERS:
        merged = harness.MERGERS[name].function(states, origin, **options)
    else:
        summed = {NAME: base + sum(expert - base for expert in experts)}
        merged = harness.POSTMERGE[name].function(summed, states, origin, **options)
    return merged[NAME] - base


def rounded(tensor: torch.Tensor, size: torch.Tensor, seed: int) -> torch.Tensor:
    """Every entry moved by -1, 0 or 1 roundings of the size."""
    numbers = torch.Generator().manual_seed(seed)
    steps = torch.randint(-1, 2, tensor.shape, generator=numbers).double()
    return tensor + steps * ULP * size.abs()


@pytest.mark.parametrize(("name", "options"), METHODS, ids=str)
def test_a_rounding_moves_no_result_by_more(name: str, options: dict[str, Any]) -> None:
    """Those of the task vectors, and of the weights that they are the difference of."""
    base = 50 * drawn(90)
    for kind, vectors in kinds().items():
        experts = [base + vector for vector in vectors]
        with threads(1):
            found = made(name, options, experts, base)
            near = [base + rounded(vector, vector, i) for i, vector in enumerate(vectors)]
            others = [made(name, options, near, base)]
            moved = [rounded(expert, base, i) for i, expert in enumerate(experts)]
            if kind not in BY_WEIGHTS.get(name, ()):
                others.append(made(name, options, moved, base))
        with threads(2):
            others.append(made(name, options, experts, base))
        largest = max(float(vector.norm()) for vector in vectors)
        for other in others:
            apart = float((other - found).norm())
            assert apart <= BOUND * largest + 1e-12, f"{kind}: moved by {apart / largest:.1e}"


BY_WEIGHTS = {"pcb": ("one is zero", "rows that nobody moved", "rows that some moved")}
"""Where zeros are entries of their own, and a rounding of the weights in them is one of these."""


def test_lines_does_not_scale_up_what_is_rounding() -> None:
    """A merge that is the base but for single roundings has no norm to divide by."""
    base = 50 * drawn(90)
    states = [{NAME: base + drawn(seed)} for seed in (1, 2)]
    merged = {NAME: rounded(base, base, 3)}
    lined = harness.POSTMERGE["lines"].function(merged, states, {NAME: base})
    torch.testing.assert_close(lined[NAME], base, rtol=0, atol=1e-14)


# Iso-CTS with a rank that is known -----------------------------------------------------------


def test_iso_cts_of_an_expert_of_rank_one_by_hand() -> None:
    """T = 3 u v^T: 3 is the one singular value of three, and what is outside of u is rounding."""
    u, v = (torch.tensor(one, dtype=torch.float64) / 3 for one in ([1.0, 2, 2], [2.0, -1, 2]))
    options = {"variant": "common_and_task", "common": 1 / 3}
    vector = 3 * torch.outer(u, v)
    found = made("iso", options, [vector], torch.zeros_like(vector))
    torch.testing.assert_close(found, torch.outer(u, v), rtol=0, atol=1e-14)


@pytest.mark.parametrize("common", [0.8, 0.5, 0.25])
def test_iso_cts_agrees_where_the_common_part_spans_the_rows(common: float) -> None:
    """In float64, by the rows alone: of a table with 6 rows that moved nothing else is there."""
    vectors = [upper_rows(6, seed) for seed in (1, 2, 3)]
    own = round((COLUMNS - int(round(COLUMNS * common, 9))) / 3)
    shared = COLUMNS - 3 * own
    summed = sum(vectors)
    left, values, right = np.linalg.svd(summed[:6].numpy(), full_matrices=False)
    us, vs, sizes = [left[:, :shared]], [right[:shared]], [values[:shared]]
    for vector in vectors if shared < 6 else []:
        table = vector[:6].numpy()
        u, s, v = np.linalg.svd(table - us[0] @ us[0].T @ table, full_matrices=False)
        us.append(u[:, : min(own, 6 - shared)])
        vs.append(v[: min(own, 6 - shared)])
        sizes.append(s[: min(own, 6 - shared)])
    # the columns may be more than the 6 dimensions that they are in
    factors = [np.hstack(us), np.vstack(vs)]
    turns = [isometry(torch.from_numpy(one)).numpy() for one in factors]
    expected = np.zeros((ROWS, COLUMNS))
    expected[:6] = np.concatenate(sizes).sum() / COLUMNS * turns[0] @ turns[1]
    options = {"variant": "common_and_task", "common": common}
    found = made("iso", options, vectors, torch.zeros(ROWS, COLUMNS, dtype=torch.float64))
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-10)


def test_a_rest_of_rounding_has_no_rank() -> None:
    vector = of_rank(3, 1)
    left = compact_svd(vector)[0]
    rest = vector - left @ (left.mT @ vector)
    assert len(compact_svd(rest, part_of=float(vector.norm()))[1]) == 0
    assert len(compact_svd(rest)[1]) > 0


def test_two_vectors_that_are_one_are_one_direction() -> None:
    """Side by side, and apart by what neighbouring singular values make of a rounding."""
    one = drawn(1)[:, :1] / drawn(1)[:, :1].norm()
    found = isometry(torch.cat([one, one + 1e-11 * drawn(2)[:, :1]], dim=1))
    torch.testing.assert_close(found, torch.cat([one, one], dim=1) / 2**0.5, rtol=0, atol=1e-9)


# Through a folder ----------------------------------------------------------------------------


def position_rows(folder: Path, base: Path, out: Path, rows: int) -> Path:
    """The model with all but the first positions as the base has them."""
    out.mkdir()
    for file in folder.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    weights, origin = (load_file(one / "model.safetensors") for one in (folder, base))
    (name,) = (one for one in weights if "position_embeddings" in one)
    kept = next(one for one in origin if name.endswith(one) or one.endswith(name))
    weights[name][rows:] = origin[kept][rows:]
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return out


def test_a_table_of_few_trained_positions_is_merged_by_what_was_trained(
    minis: Callable[[str], dict[str, Path]], tmp_path: Path
) -> None:
    folders = minis("bert")
    experts = [
        position_rows(folders[name], folders["base"], tmp_path / name, 3) for name in ("a", "b")
    ]
    recipe = Recipe(
        experts=tuple(map(str, experts)),
        base=str(folders["base"]),
        merger="iso:variant=common_and_task",
        heads="average",
    )
    merge(recipe, out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "merge.json").read_text())["merger"]["name"] == "iso"
    base, merged, *tuned = (
        {
            name.removeprefix("bert."): tensor.double().numpy()
            for name, tensor in load_file(folder / "model.safetensors").items()
        }
        for folder in (folders["base"], tmp_path / "out", *experts)
    )
    (name,) = (one for one in merged if "position_embeddings" in one)
    moved = [expert[name][:3] - base[name][:3] for expert in tuned]
    # 3 of 4 in 5 dimensions are common, which is all that there are
    expected = reference_iso([{"w": one} for one in moved], {"w": 0 * moved[0]})["w"]
    short = min(base[name].shape)
    np.testing.assert_allclose(
        merged[name][:3] - base[name][:3], expected * 3 / short, rtol=0, atol=1e-6
    )
    np.testing.assert_array_equal(merged[name][3:], base[name][3:])


# Alignments ----------------------------------------------------------------------------------


def units() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Activations [tokens, units] of the anchor and of an expert."""
    x = 100 * drawn(1, 200, 16)
    y = x @ drawn(2, 16, 16) * 30 + 10 * drawn(3, 200, 16)
    silent, other = x.clone(), y.clone()
    silent[:, 3:9], other[:, 5:12] = 0, 0
    apart = x - x[:100].mean(0), y - y[100:].mean(0)
    apart[0][100:], apart[1][:100] = 0, 0
    return {
        "full rank": (x, y),
        "few tokens": (x[:10], y[:10]),
        "other units are silent": (silent, other),
        "nothing correlates": apart,
        "one is constant": (x[:1].expand_as(x), y),
    }


def covariances(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return first.mT @ second / len(first) - torch.outer(first.mean(0), second.mean(0))


@pytest.mark.parametrize("kind", units())
def test_a_rounding_moves_no_map_of_cca(kind: str) -> None:
    x, y = units()[kind]

    def found(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mapped(covariances(x, x), covariances(x, y), covariances(y, y), 0.1).blocks[0]

    first, second = found(x, y), found(rounded(x, x, 1), rounded(y, y, 2))
    assert float((first - second).norm()) < BOUND * float(first.norm())


def test_a_covariance_that_rounding_made_negative_has_a_map() -> None:
    """By hand: it has no Cholesky factor, and counts as 0. A = (2, 0), (0, 1)."""
    given = ([4, -1e-9], [2, 1e-9], [1, -4e-9])
    anchors, between, mine = (torch.tensor(one, dtype=torch.float64).diag() for one in given)
    found = mapped(anchors, between, mine, 1e-12)
    expected = torch.tensor([[[2.0, 0], [0, 1]]], dtype=torch.float64)
    torch.testing.assert_close(found.blocks, expected)
    torch.testing.assert_close(found.inverse, torch.linalg.inv(expected))


def test_what_leaves_a_polar_factor_open_is_the_same_each_time() -> None:
    """Null spaces at right angles: none is nearer to the identity than another."""
    matrix = torch.zeros(6, 6, dtype=torch.float64)
    matrix[0, 2] = matrix[1, 3] = 1.0  # rows 2 to 5 and columns 0, 1, 4, 5 are open
    turned = matrix.clone()
    turned[:2, 2:4] = torch.tensor([[1.0, 1e-16], [-1e-16, 1.0]])
    first, second = polar(matrix), polar(turned)
    torch.testing.assert_close(first @ first.mT, torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(first[4:, 4:], torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(first, second, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["all move", "few rows", "some never move"])
def test_a_rounding_moves_no_regression_mean(kind: str) -> None:
    weights = [100 * drawn(seed, 20, 32) for seed in (1, 2, 3)]
    inputs = [100 * drawn(seed, 5 if kind == "few rows" else 64, 32) for seed in (4, 5, 6)]
    if kind == "some never move":
        for one in inputs:
            one[:, 5:20] = 0

    def found(weights: Vectors, inputs: Vectors) -> torch.Tensor:
        return nearest(weights, [one.mT @ one for one in inputs], [1 / 3] * 3)[0]

    moved = [[rounded(one, one, i) for i, one in enumerate(many)] for many in (weights, inputs)]
    first, second = found(weights, inputs), found(*moved)
    assert float((first - second).norm()) < BOUND * float(first.norm())
