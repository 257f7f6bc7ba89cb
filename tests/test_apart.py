"""An alignment that drives experts apart is called out, and no other stage."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Recipe, merge
from harness.cli import main
from tests.mistakes import names
from tests.toys import TOY, known

Minis = Callable[[str], dict[str, Path]]
MATCHING = "activation_matching:examples=10"
_toys = known(TOY)


def distance(folder: Path) -> tuple[float, float]:
    (stage,) = json.loads((folder / "merge.json").read_text())["premerge"]
    return stage["distance"]["before"], stage["distance"]["after"]


def recipe(minis: Minis, premerge: str) -> Recipe:
    found = minis("bert")
    return Recipe(
        experts=(str(found["a"]), str(found["b"])),
        base=str(found["base"]),
        tasks=("toy/pairs",),
        premerge=(premerge,),
        merger="average",
        device="cpu",
        drift=False,
    )


@pytest.mark.filterwarnings("default:.* drove the experts apart")
def test_the_command_line_says_so_in_a_line(
    minis: Minis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = minis("bert")
    experts = [str(found["a"]), str(found["b"])]
    flags = ["--base", str(found["base"]), "--tasks", "toy/pairs", "--premerge", MATCHING]
    flags += ["--merger", "average", "--no-drift", "--device", "cpu"]
    assert main(["merge", *experts, *flags, "--out", str(tmp_path / "out")]) == 0
    before, after = distance(tmp_path / "out")
    assert after > before * 1.01
    said = capsys.readouterr().err.splitlines()
    (line,) = [one for one in said if "drove the experts apart" in one]
    names(line, f"activation_matching {before:.4g} {after:.4g} layers=last:1 examples=N")


def test_python_warns_of_it(minis: Minis, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="activation_matching drove the experts apart, from"):
        merge(recipe(minis, MATCHING), out=tmp_path / "out")


@pytest.mark.parametrize(
    "premerge", ["permutation", "rotation", "procrustes", "dare:drop_rate=0.9", "della"]
)
def test_nothing_is_said_of_what_brings_together_or_does_not_claim_to(
    premerge: str, minis: Minis, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge(recipe(minis, premerge), out=tmp_path / "out")
    before, after = distance(tmp_path / "out")
    assert (after > before) is (premerge[0] == "d")
