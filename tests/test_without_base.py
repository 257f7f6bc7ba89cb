"""Who reads no base asks for none, and makes of the experts what it makes beside one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import harness
from harness import Choice, Recipe, StateDict, merge, parse_choice, weights
from harness.cli import main
from harness.errors import BadRecipe
from harness.methods import reads_base, resolved_options
from tests.mistakes import mistake, refused
from tests.symmetries import MOVES, moved_folder
from tests.toys import TOY, registered

Minis = Callable[[str], dict[str, Path]]
Loud = Callable[..., Path]


@pytest.fixture(autouse=True)
def _toy(as_found: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("HARNESS_DATA_DIR", raising=False)
    with registered(TOY):
        yield


@pytest.fixture(scope="module")
def three(loud: Loud, minis: Minis, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Experts of one task; that in the middle is nearest to their mean, one is in another order."""
    moved = tmp_path_factory.mktemp("three") / "moved"
    moved_folder(loud("deberta-v2", "b"), moved, "deberta-v2", MOVES["units"])
    return str(loud("deberta-v2", "a")), str(minis("deberta-v2")["a"]), str(moved)


def merged(out: Path, experts: Sequence[str], **more: Any) -> dict[str, torch.Tensor]:
    recipe = Recipe(experts=tuple(experts), tasks=("toy/pairs",), drift=False, **more)
    merge(recipe, out=out)
    return load_file(out / "model.safetensors")


ALIGNERS = [
    "activation_matching:examples=8",
    "cca:examples=8",
    "ot_fusion",
    "permutation:heads=true,residual=true",
    "permutation:cycle_consistent=true",
    "procrustes",
    "procrustes:reference=both_ends",
    "rotation:scaling=true",
]


@pytest.mark.parametrize("premerge", ALIGNERS)
def test_a_base_that_is_not_read_changes_nothing(
    premerge: str, three: tuple[str, ...], minis: Minis, tmp_path: Path
) -> None:
    told, base = {"premerge": (premerge,)}, str(minis("deberta-v2")["base"])
    alone = merged(tmp_path / "alone", three, **told)
    beside = merged(tmp_path / "beside", three, base=base, **told)
    assert alone.keys() == beside.keys()
    assert all(torch.equal(alone[name], beside[name]) for name in alone)
    plain = merged(tmp_path / "plain", three)
    assert any(not torch.equal(alone[name], plain[name]) for name in alone)


def test_all_that_read_none_are_among_them() -> None:
    names = {parse_choice(text).name for text in ALIGNERS}
    readers = {"dare", "della"}
    assert names == {*harness.PREMERGE} - readers
    for name, entry in harness.PREMERGE.items():
        assert reads_base(entry, resolved_options(entry, Choice(name))) == (name in readers)


@pytest.mark.parametrize("merger", ["average", "regmean:examples=8", "fisher:examples=8"])
def test_the_command_asks_for_no_base(
    merger: str, minis: Minis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experts = [str(minis("bert")[name]) for name in ("a", "b")]
    stages = ["--premerge", "rotation", "--premerge", "procrustes", "--merger", merger]
    told = ["--tasks", "toy/pairs", "--out", str(tmp_path / "out")]
    assert main(["merge", *experts, *stages, *told]) == 0, capsys.readouterr().err


ASKS = [*(f"{name}:anchor=base" for name in ("rotation", "permutation", "ot_fusion"))]


@pytest.mark.parametrize("premerge", [*ASKS, "procrustes:reference=base", "dare"])
def test_who_reads_it_asks_for_it(premerge: str, minis: Minis, tmp_path: Path) -> None:
    experts = [str(minis("bert")[name]) for name in ("a", "b")]
    stages = ["--premerge", "rotation", "--premerge", premerge, "--merger", "average"]
    refused(["merge", *experts, *stages, "--out", tmp_path / "out"], BadRecipe, premerge, "--base")


def test_a_merger_of_task_vectors_asks_for_it_after_one_that_does_not(
    minis: Minis, tmp_path: Path
) -> None:
    experts = tuple(str(minis("bert")[name]) for name in ("a", "b"))
    recipe = Recipe(experts=experts, premerge=("rotation",), merger="ties")
    with mistake(BadRecipe, "ties --base"):
        merge(recipe, out=tmp_path / "out")


def test_what_is_said_to_read_none_is_given_none(minis: Minis, tmp_path: Path) -> None:
    """Even where there is one: what it makes cannot depend on it."""
    given = []

    @harness.premerge("looks", reads_base=False)
    def looks(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
        given.append(dict(base))
        return [weights.each(torch.clone, expert) for expert in experts]

    experts = [str(minis("bert")[name]) for name in ("a", "b")]
    merged(tmp_path / "out", experts, base=str(minis("bert")["base"]), premerge=("looks",))
    assert given == [{}]
