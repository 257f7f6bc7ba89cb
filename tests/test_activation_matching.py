"""Activations of hidden units on the same rows, and matching by them: float64, by hand, merged."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

import harness
from harness import Recipe, StateDict, merge
from harness.checkpoints.open import open_checkpoint
from harness.errors import BadRecipe, UnknownName
from harness.passes import activations as passes
from harness.passes.features import forward
from harness.passes.placement import CPU
from harness.passes.reading import Readings
from harness.passes.statistics import draw_rows
from harness.premergers.activation_matching import correlation
from harness.types import Products
from harness.weights import Symmetry, gainful
from tests.conftest import FAMILIES, model
from tests.mistakes import mistake
from tests.toys import TAGS, THREE, TOY, known

pytestmark = pytest.mark.filterwarnings("ignore:.* drove the experts apart")

Array = np.ndarray[Any, Any]
Loud = Callable[..., Path]
Minis = Callable[[str], dict[str, Path]]
EXAMPLES = 10
MATCHING = harness.PREMERGE["activation_matching"].function
METHOD = f"activation_matching:examples={EXAMPLES}"
_toys = known(TOY, THREE, TAGS)


def of(folders: Sequence[Path], task: harness.Task = TOY, size: int = 16) -> list[Any]:
    """What the need hands out, apart from any merge."""
    rows = draw_rows(task, EXAMPLES, 0, None)
    checkpoints = tuple(open_checkpoint(folder) for folder in folders)
    made = harness.NEEDS["activations"].function
    readings = Readings(checkpoints, lambda _: rows, CPU)
    found: list[Any] = made(readings, examples=EXAMPLES, seed=0, batch_size=size)
    return found


def reference(folder: Path, task: harness.Task = TOY) -> list[Array]:
    """Units after the activation function of every layer, [tokens, units], a row at a time."""
    kind = AutoModelForTokenClassification if task is TAGS else AutoModelForSequenceClassification
    network: Any = kind.from_pretrained(folder).double().eval()
    words = AutoTokenizer.from_pretrained(folder)
    seen: list[list[torch.Tensor]] = []
    for name, module in network.named_modules():
        # the module whose output they are: BERT's has the function in it, DistilBERT's has not
        if name.endswith((".intermediate", ".ffn.lin1")):
            seen.append([])
            after = torch.nn.functional.gelu if name.endswith("lin1") else lambda x: x

            def keep(_: Any, __: Any, out: Any, to: Any = seen[-1], after: Any = after) -> None:
                to.append(after(out)[0])

            module.register_forward_hook(keep)
    with torch.no_grad():
        for texts in draw_rows(task, EXAMPLES, 0, None).texts:
            split = task is TAGS
            given = [list(texts)] if split else texts
            network(**words(*given, is_split_into_words=split, return_tensors="pt"))
    return [torch.cat(parts).numpy() for parts in seen]


def near(found: torch.Tensor, expected: Array, tolerance: float = 1e-5) -> None:
    scale = max(float(np.abs(expected).max()), 1e-12)
    np.testing.assert_allclose(found.numpy() / scale, expected / scale, atol=tolerance)


# The need ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_products_are_those_of_ordinary_models(family: str, loud: Loud) -> None:
    folders = [loud(family, which) for which in ("a", "b")]
    first, second = of(folders)
    here, there = (reference(folder) for folder in folders)
    assert len(here) == 2
    for layer in range(2):
        found = first.products(second, f"ffn.{layer}")
        z, other = here[layer], there[layer]
        near(found.inner, z.T @ other)
        for got, units in zip(found.sums, (z, other), strict=True):
            near(got, units.sum(0))
        for got, units in zip(found.squares, (z, other), strict=True):
            near(got, (units**2).sum(0))
        assert found.count == len(z)


def test_words_are_rows_too(taggers: Minis) -> None:
    folders = [taggers("deberta-v2")[which] for which in ("a", "c")]
    first, second = of(folders, TAGS)
    here, there = (reference(folder, TAGS) for folder in folders)
    near(first.products(second, "ffn.1").inner, here[1].T @ there[1])


def test_a_classifier_of_words_is_shown_rows_of_a_classifier_of_rows(
    minis: Minis, taggers: Minis
) -> None:
    """The rows are of one task, the experts of any: only encoders are compared."""
    folders = [minis("bert")["a"], taggers("bert")["a"]]
    first, second = of(folders)
    assert first.products(second, "ffn.0").inner.abs().max() > 0


@pytest.mark.parametrize("family", ["bert", "deberta-v2"])
def test_roles_change_places(family: str, loud: Loud) -> None:
    first, second = of([loud(family, which) for which in ("a", "b")])
    one, other = first.products(second, "ffn.0"), second.products(first, "ffn.0")
    torch.testing.assert_close(one.inner, other.inner.T, rtol=1e-12, atol=1e-12)
    for have, want in ((one.sums, other.sums), (one.squares, other.squares)):
        torch.testing.assert_close(have, want[::-1], rtol=1e-12, atol=1e-12)


def test_padding_is_not_counted_and_batches_do_not_matter(loud: Loud) -> None:
    for family in ("bert", "deberta-v2", "distilbert"):
        folders = [loud(family, which) for which in ("a", "b")]
        expected = [z.T @ o for z, o in zip(*map(reference, folders), strict=True)]
        for size in (1, 3, 10):
            first, second = of(folders, size=size)
            for layer in range(2):
                near(first.products(second, f"ffn.{layer}").inner, expected[layer])


def permuted(folder: Path, out: Path, family: str, orders: Sequence[torch.Tensor]) -> Path:
    """A copy whose feed-forward units stand in another order: the same function."""
    import shutil

    shutil.copytree(folder, out)
    state = load_file(out / "model.safetensors")
    up, down = ("intermediate.dense", "output.dense")
    if family == "distilbert":
        up, down = "ffn.lin1", "ffn.lin2"
    for layer, order in enumerate(orders):
        for name in state:
            if f".layer.{layer}.{up}." in name:
                state[name] = state[name][order].contiguous()
            elif f".layer.{layer}.{down}.weight" in name:
                state[name] = state[name][:, order].contiguous()
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    return out


def shuffles(seed: int = 0) -> list[torch.Tensor]:
    numbers = torch.Generator().manual_seed(seed)
    return [torch.randperm(24, generator=numbers) for _ in range(2)]


def test_products_with_a_permuted_copy_are_the_permuted_gram(loud: Loud, tmp_path: Path) -> None:
    orders = shuffles()
    copy = permuted(loud("bert"), tmp_path / "copy", "bert", orders)
    first, second = of([loud("bert"), copy])
    for layer, order in enumerate(orders):
        group = f"ffn.{layer}"
        gram = first.products(first, group).inner
        expected = gram[:, order].numpy()
        assert np.abs(gram.numpy() - expected).max() > 1e-2
        near(first.products(second, group).inner, expected, 1e-6)


# By hand -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Given:
    """Activations as they are told, [tokens, units]."""

    units: torch.Tensor

    def products(self, other: Any, group: str) -> Products:
        z, o = self.units, other.units
        squares = (z.square().sum(0), o.square().sum(0))
        return Products(z.T @ o, (z.sum(0), o.sum(0)), squares, len(z))


def best_order(alike: torch.Tensor) -> torch.Tensor:
    return gainful(alike, float(alike.abs().sum()))


AXES = {"up": ("ffn.0", None), "bias": ("ffn.0",), "down": (None, "ffn.0*")}


def answers(*units: list[float]) -> Given:
    return Given(torch.tensor(units, dtype=torch.float64))


def state(first: float) -> StateDict:
    return {
        "up": torch.tensor([[first], [first + 1]]),
        "bias": torch.tensor([first, first + 1]),
        "down": torch.tensor([[first, first + 1]]),
    }


def test_by_hand() -> None:
    """C = ((0, 1), (6, 0)): the two units of the second expert change places."""
    given = [answers([0, 1], [3, 0]), answers([1, 0], [0, 2])]
    experts = [state(0.0), state(5.0)]
    product = given[1].products(given[0], "ffn.0").inner
    assert product.tolist() == [[0, 1], [6, 0]]
    first, second = MATCHING(
        experts, {}, activations=given, symmetry=Symmetry(AXES, heads=1), anchor=1
    )
    assert {n: first[n].tolist() for n in first} == {n: experts[0][n].tolist() for n in first}
    assert second["up"].tolist() == [[6.0], [5.0]]
    assert second["bias"].tolist() == [6.0, 5.0]
    assert second["down"].tolist() == [[6.0, 5.0]]
    # rows 5, 6 against 0, 1 in all three tensors, and 6, 5 against 0, 1
    before, after = (3 * (5**2 + 5**2)) ** 0.5, (3 * (6**2 + 4**2)) ** 0.5
    assert second.report == {
        "anchor": 1,
        "before": {"ffn.0": [0.0, pytest.approx(before)]},
        "after": {"ffn.0": [0.0, pytest.approx(after)]},
    }


def test_pearson_by_hand() -> None:
    """A unit that never moves, and one that falls as the anchor's rises: 0 and -1, both stay.

    Their products with the anchor's, (1, 2) and (9, 9), are ((27, 162), (-5, -27)): 162 - 5 is more
    than 27 - 27, and by those they change places.
    """
    anchor = Given(torch.tensor([[1.0, 2.0], [9.0, 9.0]], dtype=torch.float64).T)
    other = Given(torch.tensor([[9.0, 9.0], [-1.0, -2.0]], dtype=torch.float64).T)
    products = other.products(anchor, "")
    assert products.inner.tolist() == [[27, 162], [-5, -27]]
    assert best_order(products.inner).tolist() == [1, 0]
    found = correlation(products)
    assert found.tolist() == [[0, 0], [pytest.approx(-1), 0]]
    assert best_order(found).tolist() == [0, 1]


def test_correlations_agree_with_numpy() -> None:
    numbers = np.random.default_rng(0)
    z, other = (numbers.normal(size=(40, 5)) + numbers.normal(size=5) for _ in range(2))
    given = Given(torch.from_numpy(z)).products(Given(torch.from_numpy(other)), "")
    expected = np.corrcoef(z, other, rowvar=False)[:5, 5:]
    np.testing.assert_allclose(correlation(given), expected, atol=1e-12)


def test_units_that_gain_nothing_stay() -> None:
    """Dead units, and a model matched with itself."""
    assert best_order(torch.zeros(4, 4, dtype=torch.float64)).tolist() == [0, 1, 2, 3]
    z = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 6)))
    z[:, 2] = 0
    z[:, 4] = z[:, 5]
    assert best_order(z.T @ z).tolist() == list(range(6))


# Through the pipeline ----------------------------------------------------------------------


def asked(folders: Sequence[Path], base: Path, **fields: Any) -> Recipe:
    given = {"tasks": ("toy/pairs",), "premerge": [METHOD], "merger": "average", **fields}
    return Recipe.model_validate(
        {"experts": [str(one) for one in folders], "base": str(base), "device": "cpu", **given}
    )


@pytest.mark.parametrize("pearson", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_permuted_copy_comes_home(
    family: str, pearson: bool, loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    """The plain average of a model and its permuted copy is far from it; the aligned one is it."""
    original, base = loud(family), minis(family)["base"]
    copy = permuted(original, tmp_path / "copy", family, shuffles())
    method = f"{METHOD},pearson={str(pearson).lower()}"
    merge(asked([original, copy], base, premerge=[method]), out=tmp_path / "aligned")
    merge(asked([original, copy], base, premerge=[]), out=tmp_path / "plain")
    states = {n: open_checkpoint(tmp_path / n).weights for n in ("aligned", "plain")}
    own = open_checkpoint(original).weights
    far = {n: max(float((s[k] - own[k]).abs().max()) for k in own) for n, s in states.items()}
    assert far["aligned"] < 1e-5
    assert far["plain"] > 0.1


def test_experts_keep_their_outputs_and_only_feed_forward_layers_move(
    loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    """A merge of one tells what became of it: here of an expert in an order of its own."""
    base = minis("bert")["base"]
    copy = permuted(loud("bert", "b"), tmp_path / "copy", "bert", shuffles(1))
    folders = [loud("bert"), copy]
    merge(
        asked(folders, base, premerge=[f"{METHOD},anchor=1"], merger="linear:weights=0:1"),
        out=tmp_path / "out",
    )
    before, after = open_checkpoint(copy), open_checkpoint(tmp_path / "out")
    differ = {n for n in before.weights if not torch.equal(before.weights[n], after.weights[n])}
    assert differ
    assert all("intermediate.dense" in n or ".output.dense.weight" in n for n in differ)
    assert not any("attention" in name for name in differ)
    rows = draw_rows(TOY, EXAMPLES, 0, None)
    for one, other in zip(
        *(forward(c, rows, max_length=40, placement=CPU)[:2] for c in (before, after)), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_experts_of_different_tasks_see_rows_of_the_first(
    loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    folders, base = [loud("bert", which) for which in ("a", "c")], minis("bert")["base"]
    merge(asked(folders, base, tasks=("toy/pairs", "toy/three")), out=tmp_path / "m")
    record = json.loads((tmp_path / "m" / "merge.json").read_text())
    (stage,) = record["premerge"]
    rows = draw_rows(TOY, EXAMPLES, 0, None)
    assert [one["kind"] for one in stage["statistics"]] == ["activations", "activations"]
    assert {one["task"] for one in stage["statistics"]} == {"toy/pairs@train90"}
    assert {one["rows"] for one in stage["statistics"]} == {rows.digest}
    assert [one["digest"] for one in stage["statistics"]] == [
        one["digest"] for one in record["experts"]
    ]


def test_the_merge_is_that_of_the_assignment(loud: Loud, minis: Minis, tmp_path: Path) -> None:
    """Of two unlike experts, from text to the merged folder, in float64."""
    from scipy.optimize import linear_sum_assignment

    folders, base = [loud("bert", which) for which in ("a", "b")], minis("bert")["base"]
    copy = permuted(folders[1], tmp_path / "copy", "bert", shuffles(2))
    folders = [folders[0], copy]
    merge(asked(folders, base, premerge=[f"{METHOD},layers=1"]), out=tmp_path / "m")
    found = open_checkpoint(tmp_path / "m").weights
    own, other = (open_checkpoint(folder).weights for folder in folders)
    here, there = (reference(folder)[1] for folder in folders)
    places, goals = linear_sum_assignment(there.T @ here, maximize=True)
    order = np.empty(24, dtype=int)
    order[goals] = places
    assert (order != np.arange(24)).any()
    for name in found:
        moved = other[name].double().numpy()
        if ".layer.1.intermediate.dense" in name:
            moved = moved[order]
        if ".layer.1.output.dense.weight" in name and "attention" not in name:
            moved = moved[:, order]
        expected = (own[name].double().numpy() + moved) / 2
        np.testing.assert_allclose(found[name].double().numpy(), expected, atol=1e-6, err_msg=name)


def test_nothing_is_read_when_the_merge_is_composed(
    loud: Loud, minis: Minis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "harness.passes.statistics.load_rows", lambda *_, **__: pytest.fail("rows are read")
    )
    monkeypatch.setattr(passes, "hooked", lambda *_: pytest.fail("a model is built"))
    folders, base = [loud("bert", which) for which in ("a", "b")], minis("bert")["base"]
    merge(asked(folders, base), out=tmp_path / "m", dry_run=True)


@pytest.mark.parametrize("kept", [True, False], ids=["cached", "nowhere to cache"])
def test_a_pair_is_run_once(
    kept: bool, loud: Loud, minis: Minis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two models, once, for both layers; with a cache never again."""
    built = []
    watched = passes.hooked

    def hooked(checkpoint: Any, *args: Any) -> Any:
        built.append(checkpoint.name)
        return watched(checkpoint, *args)

    monkeypatch.setattr(passes, "hooked", hooked)
    if not kept:
        monkeypatch.setattr("harness.passes.cache.keep", lambda *_: False)
    folders, base = [loud("bert", which) for which in ("a", "b")], minis("bert")["base"]
    merge(asked(folders, base), out=tmp_path / "m")
    assert built == ["bert-b", "bert-a"]
    merge(asked(folders, base), out=tmp_path / "again")
    assert len(built) == (2 if kept else 4)
    one, other = (
        json.loads((tmp_path / which / "merge.json").read_text()) for which in ("m", "again")
    )
    assert one["digest"] == other["digest"]
    assert one["premerge"][0]["report"] == other["premerge"][0]["report"]


def test_three_experts_are_matched_to_the_most_central(
    loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    base = minis("bert")["base"]
    original = loud("bert")
    copies = [permuted(original, tmp_path / str(i), "bert", shuffles(i)) for i in (1, 2)]
    plan = merge(asked([*copies, original], base), out=tmp_path / "m")
    merged = open_checkpoint(tmp_path / "m").weights
    homes = [open_checkpoint(folder).weights for folder in (*copies, original)]
    far = [max(float((one[n] - merged[n]).abs().max()) for n in one) for one in homes]
    assert sorted(far)[0] < 1e-5
    assert sorted(far)[1] > 0.1
    assert plan.merger_inputs


# What is refused ---------------------------------------------------------------------------


def test_whose_rows_must_be_known(loud: Loud, minis: Minis, tmp_path: Path) -> None:
    folders, base = [loud("bert", which) for which in ("a", "b")], minis("bert")["base"]
    with mistake(BadRecipe, "--tasks"):
        merge(asked(folders, base, tasks=()), out=tmp_path / "m")


def test_an_architecture_without_a_table_is_named(tmp_path: Path) -> None:
    base = model(tmp_path / "base", family="ernie")
    folders = [model(tmp_path / str(i), ["no", "yes"], family="ernie", near=base) for i in range(2)]
    with mistake(UnknownName, "ernie bert"):
        merge(asked(folders, base), out=tmp_path / "m")
