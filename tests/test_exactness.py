"""`exact=True` is proved on networks of every family; what is wrong on one of them is caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import harness
from harness import Choice, StateDict, weights
from harness.checking.battery import Finding, battery
from harness.checking.properties import PROPERTIES, families
from harness.checking.properties.families import CONFIGS, DRIFT, miniature, models
from harness.checking.properties.folders import gap, only, recipe_of
from harness.checkpoints.families import generic, known
from harness.checkpoints.families.generic import family_of
from harness.checkpoints.families.known import FAMILIES
from harness.checkpoints.open import open_checkpoint
from harness.entries import Premerge
from harness.weights import Permuted, Symmetry, Turned

Moved = Sequence[StateDict]


def turned(
    experts: Moved, base: StateDict, *, symmetry: Symmetry, heads: bool = True, share: float = 1.0
) -> list[StateDict]:
    """All but the first expert, with units and whole heads in another order, and each head turned
    by a rotation of its own."""

    def one(expert: StateDict) -> StateDict:
        maps: dict[str, weights.UnitMap] = {}
        for layer in symmetry.layers:
            size = weights.specs(expert)[symmetry.members(f"ffn.{layer}")[0].name].shape[0]
            maps[f"ffn.{layer}"] = Permuted(torch.arange(size).flip(0))
            for group in ("qk", "vo"):
                maps[f"{group}.{layer}"] = Turned(rotations(symmetry.heads, heads))
        return weights.moved(expert, symmetry, maps.get)

    return [weights.each(torch.clone, experts[0]), *(one(expert) for expert in experts[1:])]


def rotations(heads: int, within: bool) -> torch.Tensor:
    """A rotation for each head or, wrongly, one of all together."""
    size, blocks = (4, heads) if within else (8, 1)
    numbers = torch.Generator().manual_seed(0)
    drawn = torch.randn(blocks, size, size, generator=numbers, dtype=torch.float64)
    return torch.linalg.qr(drawn).Q


@pytest.fixture(autouse=True)
def _methods(as_found: None) -> None:
    harness.premerge("turned", exact=True)(turned)


def check(name: str = "turned", **options: Any) -> Finding:
    return battery("premerge", Choice(name, options), harness.PREMERGE[name]).find(
        PROPERTIES["family"]
    )


@pytest.fixture
def one_family(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A property on BERT and another architecture alone, which takes less."""

    def of(name: str) -> None:
        few = {key: CONFIGS[key] for key in ("bert", name)}
        monkeypatch.setattr(families, "CONFIGS", few)

    return of


def registered(function: Callable[..., Moved]) -> Finding:
    harness.premerge("wrong", exact=True)(function)
    return check("wrong")


def test_what_is_exact_is_so_on_every_family() -> None:
    finding = check()
    assert finding.verdict == "holds", finding
    assert f"on {len(CONFIGS)} architectures" in finding.detail


@pytest.mark.filterwarnings("ignore:.* drove the experts apart")
def test_what_is_exact_is_so_from_folder_to_folder(tmp_path: Path) -> None:
    """On every family: an expert alone, by weights that are 0 for the others, as it is written."""
    method = battery("premerge", Choice("turned")).method
    for number, (name, unit) in enumerate(models()):
        mini, place = miniature(name, unit, torch.float64, 3), number % 3
        out = tmp_path / str(number)
        recipe = recipe_of(method, *mini.written, merger=only(place, 3), heads="merge")
        harness.merge(recipe, out=out)
        moved = gap(mini.before[place], mini.outputs(open_checkpoint(out).weights))
        assert moved <= DRIFT[torch.float64], (name, unit)


def test_every_family_has_a_miniature_for_rows_and_words() -> None:
    """And every group of every family's table is in one of them."""
    assert {family_of(config).name for config in CONFIGS.values()} == {one.name for one in FAMILIES}
    made = [(unit, tuple(miniature(name, unit, torch.float64, 2).base)) for name, unit in models()]
    wordless = [one for one in CONFIGS.values() if family_of(one).word is None]
    assert len(set(made)) == len(made) == 2 * len(CONFIGS) - len(wordless)
    apart = miniature("deberta-v2, positions apart", "row", torch.float64, 2).base
    shared = miniature("deberta-v2", "row", torch.float64, 2).base
    assert any("pos_query_proj" in name for name in apart)
    assert not any("pos_query_proj" in name for name in shared)
    assert (
        "electra.embeddings_project.weight" in miniature("electra", "word", torch.float64, 2).base
    )


SEEN_BY_NO_SOFTMAX = ("key.bias", "k_lin.bias", "k_proj.bias", "key_proj.bias", "attn.k.bias")


def test_the_outputs_depend_on_every_parameter() -> None:
    """So none of them can be moved without being seen, but for what softmax takes away."""
    for name in CONFIGS:
        mini = miniature(name, "row", torch.float64, 2)
        expert = mini.experts[1]
        for key, tensor in expert.items():
            other = {**expert, key: tensor + torch.randn_like(tensor) / 3}
            gap = float((mini.outputs(other) - mini.before[1]).abs().max())
            assert gap > 1e-6 or key.endswith(SEEN_BY_NO_SOFTMAX), key


def test_the_need_is_that_of_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are made up; what is read off a configuration is not."""
    monkeypatch.setattr(families, "DRIFT", {torch.float32: 1e-5})
    seen = []

    def looks(experts: Moved, base: StateDict, *, symmetry: Symmetry, gram: Any) -> Moved:
        seen.append((experts, symmetry, gram))
        return [weights.each(torch.clone, expert) for expert in experts]

    finding = registered(looks)
    assert finding.verdict == "holds", finding
    _, *seen = seen  # to see how many experts it takes
    assert len(seen) == len(models())
    for experts, symmetry, gram in seen:
        assert symmetry.axes.keys() == {*experts[0]}
        assert len(gram) == len(experts) == 3


def test_what_matches_units_finds_some_to_move(one_family: Callable[[str], None]) -> None:
    """On experts that are near to one another it would find every unit in its place."""
    one_family("distilbert")
    finding = battery("premerge", Choice("permutation"), harness.PREMERGE["permutation"]).find(
        PROPERTIES["family"]
    )
    assert finding.verdict == "holds", finding
    assert "by 0 in float32" not in finding.detail


# Planted faults ----------------------------------------------------------------------------


@pytest.mark.fault
def test_a_rotation_across_heads_is_caught() -> None:
    finding = check(heads=False)
    assert finding.verdict == "breaks"
    assert "expert 2" in finding.detail or "expert 3" in finding.detail


def changed(change: Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor]) -> Finding:
    """Of a method that is right but for some tensors."""

    def wrong(experts: Moved, base: StateDict, *, symmetry: Symmetry) -> Moved:
        pairs = zip(experts, turned(experts, base, symmetry=symmetry), strict=True)
        return [weights.each_named(change, *pair) for pair in pairs]

    return registered(wrong)


@pytest.mark.fault
@pytest.mark.parametrize(
    ("part", "family"),
    [
        ("intermediate.dense.bias", "bert"),
        ("ffn.lin1.bias", "distilbert"),
        ("value_proj.bias", "deberta-v2"),
        ("pos_query_proj", "deberta-v2, positions apart"),
    ],
)
def test_a_forgotten_tensor_is_caught_on_the_family_that_has_it(
    part: str, family: str, one_family: Callable[[str], None]
) -> None:
    one_family(family)
    finding = changed(lambda name, old, new: old.clone() if part in name else new)
    assert finding.verdict == "breaks"
    assert f"a {family} for each" in finding.detail


@pytest.mark.fault
def test_a_wrong_axis_is_caught(one_family: Callable[[str], None]) -> None:
    one_family("distilbert")

    def wrong(name: str, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return new.mT.contiguous() if name.endswith("attention.out_lin.weight") else new

    assert "a distilbert for each" in changed(wrong).detail


@pytest.mark.fault
@pytest.mark.parametrize(
    "name", ["roberta", "electra", "distilbert", "deberta", "albert", "modernbert", "mpnet"]
)
def test_a_table_that_is_wrong_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch, one_family: Callable[[str], None]
) -> None:
    """Of one family alone: a bias, or a gate, that is said to stay."""
    right = next(one for one in FAMILIES if one.name == name)
    one_family(right.model_types[0])
    bias = next(key for key, axes in right.axes.items() if axes == ("ffn.{layer}",))
    one = "model.layers.{layer}.mlp.Wi.gate.weight" if name == "modernbert" else bias
    wrong = replace(right, axes={**right.axes, one: (None, *right.axes[one][1:])})
    table = {key: wrong if one is right else one for key, one in known.FAMILY_OF_TYPE.items()}
    monkeypatch.setattr(generic, "FAMILY_OF_TYPE", table)
    finding = check()
    assert finding.verdict == "breaks"
    assert f"a {right.model_types[0]} for each" in finding.detail


@pytest.mark.fault
def test_a_head_that_is_wrong_for_words_alone_is_caught() -> None:
    def of_words(experts: Moved, base: StateDict) -> Moved:
        words = not any("pooler" in name for name in experts[0])

        def fn(name: str, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.flip(0) if name == "classifier.bias" and words else tensor.clone()

        return [weights.each_named(fn, expert) for expert in experts]

    assert "a bert for each word" in registered(of_words).detail


@pytest.mark.fault
def test_float32_inside_is_caught_in_float64() -> None:
    def narrow(experts: Moved, base: StateDict) -> Moved:
        return [weights.each(lambda w: w.float().to(w.dtype), expert) for expert in experts]

    finding = registered(narrow)
    assert finding.verdict == "breaks"
    assert "in float64" in finding.detail


@pytest.mark.fault
def test_one_that_refuses_a_family_is_not_exact_on_it() -> None:
    def picky(experts: Moved, base: StateDict) -> Moved:
        if not next(iter(experts[0])).startswith("bert."):
            raise harness.HarnessError("expected a BERT")
        return [weights.each(torch.clone, expert) for expert in experts]

    finding = registered(picky)
    assert (finding.verdict, finding.detail) == ("breaks", "HarnessError: expected a BERT")


def test_what_is_not_said_to_be_exact_need_not_be() -> None:
    entry = Premerge("turned", turned)
    finding = battery("premerge", Choice("turned", {"heads": False}), entry).find(
        PROPERTIES["family"]
    )
    assert (finding.verdict, finding.ok) == ("breaks by design", True)
