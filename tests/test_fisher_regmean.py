"""The two mergers that ask for statistics: against least squares, float64 and by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import harness
from harness import Recipe, StateDict, merge
from harness.checkpoints.open import open_checkpoint
from harness.errors import BadOption
from tests.mistakes import mistake
from tests.states import close, few, models
from tests.test_statistics import reference_fisher, reference_gram, rows_of
from tests.toys import TOY, known

Array = np.ndarray[Any, Any]
REGMEAN = harness.MERGERS["regmean"].function
FISHER = harness.MERGERS["fisher"].function


def weight(*values: Any) -> StateDict:
    return {"w": torch.tensor(values, dtype=torch.float32)}


def grams(*matrices: Any) -> list[StateDict]:
    return [{"w": torch.tensor(matrix, dtype=torch.float64)} for matrix in matrices]


def positive(seed: int, width: int, rank: int | None = None) -> torch.Tensor:
    x = torch.randn(
        rank or 2 * width, width, generator=torch.Generator().manual_seed(seed)
    ).double()
    return x.T @ x


# RegMean -----------------------------------------------------------------------------------


def test_regmean_by_hand() -> None:
    experts = [weight([1.0, 0.0]), weight([0.0, 1.0])]
    merged = REGMEAN(experts, {}, gram=grams([[3, 0], [0, 1]], [[1, 0], [0, 1]]))
    assert merged["w"].tolist() == [[0.75, 0.5]]


def test_regmean_by_hand_with_off_diagonal() -> None:
    """G_1 = [[2, 1], [1, 2]] shrunk by half is [[2, .5], [.5, 2]]; G_2 is the identity.

    The sum is [[3, .5], [.5, 3]], sum G_i W_i^T is (2, .5) + (0, 1), so W = (5.25, 3.5) / 8.75.
    """
    experts = [weight([1.0, 0.0]), weight([0.0, 1.0])]
    given = grams([[2, 1], [1, 2]], [[1, 0], [0, 1]])
    merged = REGMEAN(experts, {}, gram=given, off_diagonal=0.5)
    np.testing.assert_allclose(merged["w"], [[0.6, 0.4]], rtol=1e-6)


def test_regmean_by_hand_with_a_constant_on_the_diagonal() -> None:
    """G_1 = diag(3, 1) and G_2 = I become diag(4, 2) and 2 I: W = (4 / 6, 2 / 4)."""
    experts = [weight([1.0, 0.0]), weight([0.0, 1.0])]
    given = grams([[3, 0], [0, 1]], [[1, 0], [0, 1]])
    merged = REGMEAN(experts, {}, gram=given, diagonal=1.0)
    np.testing.assert_allclose(merged["w"], [[2 / 3, 1 / 2]], rtol=1e-6)
    merged = REGMEAN(experts, {}, gram=given, diagonal=1e9)
    np.testing.assert_allclose(merged["w"], [[1 / 2, 1 / 2]], rtol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_regmean_is_one_least_squares_fit_to_all_outputs(count: int) -> None:
    """The map nearest to every expert's outputs on its own inputs."""
    numbers = np.random.default_rng(count)
    inputs = [numbers.normal(size=(30, 4)) for _ in range(count)]
    maps = [numbers.normal(size=(3, 4)).astype(np.float32) for _ in range(count)]
    outputs = [x @ w.T.astype(np.float64) for x, w in zip(inputs, maps, strict=True)]
    fitted, *_ = np.linalg.lstsq(np.concatenate(inputs), np.concatenate(outputs), rcond=None)
    experts = [{"w": torch.from_numpy(w)} for w in maps]
    merged = REGMEAN(experts, {}, gram=grams(*(x.T @ x for x in inputs)), off_diagonal=1.0)
    np.testing.assert_allclose(merged["w"], fitted.T, atol=1e-6)


def test_regmean_of_what_has_no_gram_is_the_mean() -> None:
    experts, base = models()
    close(
        REGMEAN(experts, base, gram=[{}] * len(experts)),
        harness.MERGERS["average"].function(experts, base),
    )


@few
@given(
    st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.floats(0, 0.95), st.floats(0, 9),
    st.integers(0, 99),
)  # fmt: skip
def test_regmean_agrees_with_numpy(
    count: int, out: int, width: int, share: float, added: float, seed: int
) -> None:
    numbers = np.random.default_rng(seed)
    maps = [numbers.normal(size=(3, width)).astype(np.float32) for _ in range(count)]
    given_grams = [positive(seed + i, width).numpy() for i in range(count)]
    merged = REGMEAN([{"w": torch.from_numpy(w)} for w in maps], {},
                     gram=grams(*given_grams), off_diagonal=share, diagonal=added)  # fmt: skip
    expected = reference_regmean(maps, given_grams, share, added)
    np.testing.assert_allclose(merged["w"], expected, atol=2e-6)


def reference_regmean(
    maps: Sequence[Array], given: Sequence[Array], share: float, added: float = 0.0
) -> Array:
    """The formula as it is printed, with an inverse."""
    scaled = [share * g + (1 - share) * np.diag(np.diag(g)) for g in given]
    shrunk = [g + added * np.eye(len(g)) for g in scaled]
    right = sum(g @ w.T.astype(np.float64) for g, w in zip(shrunk, maps, strict=True))
    found: Array = (np.linalg.inv(sum(shrunk)) @ right).T
    return found


def test_regmean_of_one_model_of_equal_models_and_of_equal_grams() -> None:
    first, second = weight([1.0, -2.0], [3.0, 0.5]), weight([0.0, 4.0], [1.0, 1.0])
    gram = positive(0, 2)
    close(REGMEAN([first], {}, gram=[{"w": gram}]), first)
    close(REGMEAN([first, first], {}, gram=[{"w": gram}, {"w": positive(1, 2)}]), first)
    close(
        REGMEAN([first, second], {}, gram=[{"w": gram}] * 2), {"w": (first["w"] + second["w"]) / 2}
    )


def test_regmean_does_not_move_with_the_scale_of_all_grams() -> None:
    experts = [weight([1.0, -2.0, 3.0]), weight([0.0, 4.0, 1.0])]
    given = [positive(i, 3) for i in range(2)]
    once = REGMEAN(experts, {}, gram=[{"w": g} for g in given])
    for factor in (1e-12, 7.0, 1e12):
        close(REGMEAN(experts, {}, gram=[{"w": factor * g} for g in given]), once)


def test_an_input_that_never_moves_keeps_the_mean() -> None:
    experts = [weight([1.0, 2.0, 0.0]), weight([3.0, 6.0, 1.0])]
    given = grams([[3, 0, 0], [0, 0, 0], [0, 0, 1]], [[1, 0, 0], [0, 0, 0], [0, 0, 1]])
    merged = REGMEAN(experts, {}, gram=given)
    np.testing.assert_allclose(merged["w"], [[1.5, 4.0, 0.5]], rtol=1e-6)
    assert merged.report["inputs that never move"] == {"w": 1}


def test_a_layer_that_never_ran_keeps_the_mean() -> None:
    experts = [weight([1.0, 2.0]), weight([3.0, 6.0])]
    merged = REGMEAN(experts, {}, gram=grams(np.zeros((2, 2)), np.zeros((2, 2))))
    assert merged["w"].tolist() == [[2.0, 4.0]]
    assert merged.report["inputs that never move"] == {"w": 2}


def test_a_singular_sum_is_solved_next_to_the_mean() -> None:
    """Both inputs are always equal: only the sum of the two weights is known, here 3/4 of 4."""
    experts = [weight([2.0, 2.0]), weight([0.0, 0.0])]
    given = grams([[3, 3], [3, 3]], [[1, 1], [1, 1]])
    merged = REGMEAN(experts, {}, gram=given, off_diagonal=1.0)
    np.testing.assert_allclose(merged["w"], [[1.5, 1.5]], rtol=1e-6)
    assert merged.report["directions that no input has"] == {"w": 1}
    other = [weight([2.0, 3.0]), weight([0.0, 1.0])]
    merged = REGMEAN(other, {}, gram=given, off_diagonal=1.0)
    # the mean (1, 2), plus the same to both: 3 (5 - s) = s - 1 gives s = 4
    np.testing.assert_allclose(merged["w"], [[1.5, 2.5]], rtol=1e-6)


def test_nearly_singular_is_singular() -> None:
    """Where Cholesky still succeeds on rounding noise, its answer would be noise as well."""
    x = np.random.default_rng(0).normal(size=(50, 3))
    x = np.concatenate([x, x[:, :1] + 1e-8 * x[:, 1:2]], axis=1)
    experts = [weight(*np.eye(4).tolist()), weight(*np.zeros((4, 4)).tolist())]
    merged = REGMEAN(experts, {}, gram=grams(x.T @ x, x.T @ x + 1e-9), off_diagonal=1.0)
    assert merged["w"].abs().max() < 2
    assert merged.report["directions that no input has"] == {"w": 1}


def test_the_condition_number_is_told() -> None:
    experts = [weight([1.0, 0.0]), weight([0.0, 1.0])]
    merged = REGMEAN(experts, {}, gram=grams([[100, 0], [0, 1]], [[100, 0], [0, 1]]))
    dict(merged)
    assert merged.report["condition"]["w"] == pytest.approx(100)


def test_regmean_counts_a_larger_gram_more_and_not_the_plain_average() -> None:
    """The fault of the published driver: statistics swallowed, the merge a plain average."""
    experts = [weight([1.0]), weight([0.0])]
    assert REGMEAN(experts, {}, gram=grams([[3]], [[1]]))["w"].item() == 0.75
    with pytest.raises(TypeError, match="gram"):
        REGMEAN(experts, {})


# Fisher ------------------------------------------------------------------------------------


def test_fisher_by_hand() -> None:
    experts = [weight(0.0), weight(4.0)]
    given = [weight(3.0), weight(1.0)]
    merged = FISHER(experts, {}, fisher=given, floor=0.0, normalize="none")
    assert merged["w"].item() == 1.0


def test_fisher_by_hand_with_normalisation() -> None:
    """Norms 5 and 10: F / N is (.6, .8) for both: the mean, though the second is twice as sure."""
    experts = [weight(0.0, 0.0), weight(4.0, 2.0)]
    given = [weight(3.0, 4.0), weight(6.0, 8.0)]
    merged = FISHER(experts, {}, fisher=given, floor=0.0)
    assert merged["w"].tolist() == [2.0, 1.0]
    plain = FISHER(experts, {}, fisher=given, floor=0.0, normalize="none")
    np.testing.assert_allclose(plain["w"], [8 / 3, 4 / 3], rtol=1e-6)


def reference_fisher_merge(
    thetas: Sequence[dict[str, Array]],
    given: Sequence[dict[str, Array]],
    normalize: str = "model",
    floor: float = 1e-6,
    floor_is: str = "added",
    scales: Sequence[float] = (),
) -> dict[str, Array]:
    merged = {}
    for name in thetas[0]:
        above = below = np.zeros_like(thetas[0][name], dtype=np.float64)
        for i, (theta, fisher) in enumerate(zip(thetas, given, strict=True)):
            parts = {"model": list(thetas[0]), "tensor": [name], "none": []}[normalize]
            norm = np.sqrt(sum(np.sum(fisher[part] ** 2) for part in parts))
            share = (scales[i] if scales else 1.0) / (norm + floor if parts else 1.0)
            lifted = (
                fisher[name] + floor if floor_is == "added" else np.maximum(fisher[name], floor)
            )
            above = above + share * lifted * theta[name]
            below = below + share * lifted
        merged[name] = above / below
    return merged


@few
@given(
    st.integers(1, 5),
    st.sampled_from(["model", "tensor", "none"]),
    st.sampled_from(["added", "minimum"]),
    st.sampled_from([1e-10, 1e-6, 1e-2]),
    st.booleans(),
    st.integers(0, 99),
)
def test_fisher_agrees_with_numpy(
    count: int, normalize: Any, floor_is: Any, floor: float, scaled: bool, seed: int
) -> None:
    numbers = np.random.default_rng(seed)
    shapes = {"a": (3, 2), "b": (), "c": (0, 2), "d": (5,)}
    size = 10.0 ** numbers.uniform(-9, 3, size=count)

    def one(scale: float = 1.0, positive: bool = False) -> dict[str, Array]:
        found = {n: scale * numbers.normal(size=shape) for n, shape in shapes.items()}
        return {n: np.float32(a**2 / scale if positive else a) for n, a in found.items()}

    thetas = [one() for _ in range(count)]
    given = [one(s, positive=True) for s in size]
    scales = [float(i + 1) for i in range(count)] if scaled else []
    options = {
        "normalize": normalize,
        "floor": floor,
        "floor_is": floor_is,
        "weights": scales or None,
    }

    def tensors(state: dict[str, Array]) -> StateDict:
        return {name: torch.from_numpy(np.array(array)) for name, array in state.items()}

    merged = FISHER([tensors(t) for t in thetas], {}, fisher=[tensors(f) for f in given], **options)
    wide = [{n: a.astype(np.float64) for n, a in f.items()} for f in given]
    expected = reference_fisher_merge(thetas, wide, normalize, floor, floor_is, scales)
    for name, array in expected.items():
        np.testing.assert_allclose(merged[name], array, rtol=2e-5, atol=2e-6, err_msg=name)


def test_no_fisher_anywhere_is_the_mean() -> None:
    experts, given = [weight(1.0, 2.0), weight(3.0, 6.0)], [weight(0.0, 0.0)] * 2
    for floor in (0.0, 1e-6):
        for how in ("model", "tensor", "none"):
            merged = FISHER(experts, {}, fisher=given, floor=floor, normalize=how)
            np.testing.assert_allclose(merged["w"], [2.0, 4.0], rtol=1e-6)
            assert merged.report["entries with no Fisher"] == {"w": 2}


def test_an_entry_that_no_expert_reaches_is_the_mean_without_a_floor() -> None:
    experts = [weight(1.0, 2.0), weight(3.0, 6.0)]
    merged = FISHER(experts, {}, fisher=[weight(1.0, 0.0)] * 2, floor=0.0, normalize="none")
    assert merged["w"].tolist() == [2.0, 4.0]
    assert merged.report["entries with no Fisher"] == {"w": 1}


def test_a_huge_norm_gives_no_nan() -> None:
    experts = [weight(1.0, 2.0), weight(3.0, 6.0)]
    merged = FISHER(experts, {}, fisher=[weight(1e30, 1e30), weight(1e-9, 1e-9)])
    assert torch.isfinite(merged["w"]).all()


def test_equal_fishers_give_the_mean_and_common_factors_nothing() -> None:
    experts, _ = models()
    one = {name: tensor.square() for name, tensor in experts[0].items()}
    mean = harness.MERGERS["average"].function(experts, {})
    close(FISHER(experts, {}, fisher=[one] * 3), mean)
    given = [{name: tensor.square() for name, tensor in e.items()} for e in experts]
    close(
        FISHER(experts, {}, fisher=given, weights=[0.3] * 3),
        FISHER(experts, {}, fisher=given),
    )


# Coefficients ------------------------------------------------------------------------------


def test_regmean_by_hand_with_weights() -> None:
    """G_1 = diag(3, 1) counts a quarter, the identity three: (3/4 / (3/2), 3/4 / 1)."""
    experts = [weight([1.0, 0.0]), weight([0.0, 1.0])]
    given = grams([[3, 0], [0, 1]], [[1, 0], [0, 1]])
    merged = REGMEAN(experts, {}, gram=given, weights=[0.25, 0.75])
    assert merged["w"].tolist() == [[0.5, 0.75]]


@few
@given(st.integers(1, 4), st.integers(1, 6), st.floats(0, 0.95), st.integers(0, 99))
def test_regmean_with_weights_agrees_with_numpy(
    count: int, width: int, share: float, seed: int
) -> None:
    numbers = np.random.default_rng(seed)
    maps = [numbers.normal(size=(3, width)).astype(np.float32) for _ in range(count)]
    biases = [numbers.normal(size=3).astype(np.float32) for _ in range(count)]
    products = [positive(seed + i, width).numpy() for i in range(count)]
    shares = numbers.dirichlet(np.ones(count)).tolist()
    experts = [
        {"w": torch.from_numpy(w), "b": torch.from_numpy(b)}
        for w, b in zip(maps, biases, strict=True)
    ]
    merged = REGMEAN(experts, {}, gram=grams(*products), off_diagonal=share, weights=shares)
    scaled = [g * c for g, c in zip(products, shares, strict=True)]
    np.testing.assert_allclose(merged["w"], reference_regmean(maps, scaled, share), atol=2e-6)
    np.testing.assert_allclose(merged["b"], np.tensordot(shares, biases, 1), atol=2e-6)


def test_regmean_with_equal_weights_is_regmean_and_with_one_alone_that_expert() -> None:
    experts = [weight([1.0, -2.0, 3.0]), weight([0.0, 4.0, 1.0])]
    given = [{"w": positive(i, 3)} for i in range(2)]
    plain = REGMEAN(experts, {}, gram=given)
    close(REGMEAN(experts, {}, gram=given, weights=[0.5, 0.5]), plain)
    close(REGMEAN(experts, {}, gram=given, weights=[0.0, 1.0]), experts[1])


def test_an_input_that_never_moves_keeps_the_weighted_mean() -> None:
    experts = [weight([1.0, 2.0]), weight([3.0, 6.0])]
    given = grams([[3, 0], [0, 0]], [[1, 0], [0, 0]])
    merged = REGMEAN(experts, {}, gram=given, weights=[0.25, 0.75])
    np.testing.assert_allclose(merged["w"], [[2.0, 5.0]], rtol=1e-6)


def test_weights_that_do_not_sum_to_one_are_said() -> None:
    experts = [weight([1.0]), weight([3.0])]
    with pytest.warns(UserWarning, match="the weights of regmean sum to 4, not 1"):
        merged = REGMEAN(experts, {}, gram=[{}, {}], weights=[1.0, 3.0])
    assert merged["w"].item() == 10


def test_a_report_does_not_depend_on_the_order_of_the_tensors() -> None:
    """Nor on the last digits of a condition number, which depend on the cores."""
    names = [f"w{i}" for i in range(9)]
    experts: list[StateDict] = [dict.fromkeys(names, torch.eye(3) * i) for i in (1.0, 2.0)]
    given = [{name: positive(int(name[1]) + i, 3) for name in names} for i in (0, 1)]
    told = []
    for order in (names, names[::-1], [*names[4:], *names[:4]]):
        merged = REGMEAN(experts, {}, gram=given)
        for name in order:
            merged[name]
        told.append(json.dumps(merged.report))
    assert len(set(told)) == 1
    for value in json.loads(told[0])["condition"].values():
        assert float(f"{value:.3g}") == value


BAD = [
    (REGMEAN, {"gram": grams([[1]]), "weights": [1.0, 2.0]}, "weights 2 1"),
    (REGMEAN, {"gram": grams([[1]]), "weights": [0.0]}, "0"),
    (FISHER, {"fisher": [weight([1.0])], "weights": [1.0, 2.0]}, "weights 2 1"),
    (FISHER, {"fisher": [weight([1.0])], "weights": [0.0]}, "0"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "options", "message"), BAD)
def test_bad_options(function: Any, options: dict[str, Any], message: str) -> None:
    with mistake(BadOption, message):
        function([weight([1.0])], {}, **options)


# Through the pipeline, against float64 from the text to the merge --------------------------

Loud = Callable[..., Path]
_toys = known(TOY)


def arrays(folder: Path) -> dict[str, Array]:
    state = open_checkpoint(folder).weights
    return {name: state[name].double().numpy() for name in state}


@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2", "distilbert", "electra"])
def test_merges_agree_with_float64_from_text_to_weights(
    family: str, loud: Loud, tmp_path: Path
) -> None:
    folders = [loud(family, which) for which in ("a", "b")]
    thetas = [arrays(folder) for folder in folders]
    rows = rows_of(TOY, 16)
    for merger, reference in (("regmean", reference_gram), ("fisher", reference_fisher)):
        recipe = Recipe(
            experts=tuple(map(str, folders)),
            merger=f"{merger}:examples=16",
            tasks=("toy/pairs",),
            device="cpu",
        )
        merge(recipe, out=tmp_path / merger)
        merged = arrays(tmp_path / merger)
        given = [reference(folder, rows) for folder in folders]
        expected = reference_fisher_merge(thetas, given) if merger == "fisher" else {
            name: reference_regmean([t[name] for t in thetas], [g[name] for g in given], 0.9)
            if name in given[0]
            else np.mean([t[name] for t in thetas], axis=0)
            for name in thetas[0]
        }  # fmt: skip
        for name, array in expected.items():
            # features are summed in float32, in an order of the processor's own
            np.testing.assert_allclose(merged[name], array, rtol=4e-6, atol=4e-6, err_msg=name)
        assert any(
            np.abs(merged[n] - np.mean([t[n] for t in thetas], axis=0)).max() > 1e-3 for n in merged
        )


def test_regmean_twice_gives_the_same_record(loud: Loud, tmp_path: Path) -> None:
    """With weights, from the recipe to the biases."""
    folders = [loud("bert", which) for which in ("a", "b")]
    recipe = Recipe(
        experts=tuple(map(str, folders)),
        merger="regmean:examples=8,weights=0.25:0.75",
        tasks=("toy/pairs",),
        device="cpu",
    )
    records = []
    for place in ("one", "two"):
        merge(recipe, out=tmp_path / place)
        records.append((tmp_path / place / "merge.json").read_bytes())
    assert records[0] == records[1]
    merged, thetas = arrays(tmp_path / "one"), [arrays(folder) for folder in folders]
    name = "bert.embeddings.LayerNorm.bias"
    expected = 0.25 * thetas[0][name] + 0.75 * thetas[1][name]
    np.testing.assert_allclose(merged[name], expected, atol=1e-6)
