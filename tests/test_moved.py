"""An expert that was moved about, its function kept, comes home to what it was moved from."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file

import harness
from harness.checkpoints.open import open_checkpoint
from harness.weights import Symmetry
from tests.symmetries import MOVES, Tensors, far, logits, loud, moved, symmetry_of, tensors
from tests.toys import TOY, registered

HOME = ("permutation:residual=true", "permutation:ffn=false,heads=true,rotated=true", "rotation")
"""The width before the heads: whose heads are turned, too, they are told by what they can become.
"""


def in_all_ways(state: Tensors, symmetry: Symmetry) -> Tensors:
    """The state with units, heads and width in another order, and each head turned."""
    for name in ("units", "heads", "within heads", "width"):
        here = {group: one for group, one in MOVES[name].items() if group in symmetry.groups}
        state = moved(state, symmetry.axes, here)
    return state


def written(pattern: Path, out: Path, state: Tensors, dtype: torch.dtype) -> str:
    """A folder like another, with these weights."""
    shutil.copytree(pattern, out)
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in state.items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return str(out)


BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}
"""How far outputs may be off, relative to the largest."""
FAMILIES = ("bert", "roberta", "distilbert", "deberta-v2", "electra")


@pytest.mark.filterwarnings("ignore:.* drove the experts apart")
@pytest.mark.parametrize(
    ("family", "dtype"),
    [*((family, torch.float64) for family in FAMILIES), ("bert", torch.float32)],
)
def test_an_expert_that_was_moved_comes_home(
    family: str,
    dtype: torch.dtype,
    minis: Callable[[str], dict[str, Path]],
    tmp_path: Path,
) -> None:
    """The plain average of the two says something else; and so does one that is aligned in part."""
    made = loud(family, "row")
    state = tensors(made)
    copy = in_all_ways(state, symmetry_of(family, "row", state))
    expected = logits(made, state)
    largest = float(expected.abs().max())
    pattern = minis(family)["c"]
    models = {"expert": state, "copy": copy}
    experts = [written(pattern, tmp_path / n, one, dtype) for n, one in models.items()]

    def gap(*premerge: str) -> float:
        recipe = harness.Recipe.model_validate({"experts": experts, "premerge": premerge})
        harness.merge(recipe, out=tmp_path / "out", force=True)
        merged = open_checkpoint(tmp_path / "out").weights
        said = logits(made, {name: merged[name].double() for name in merged})
        return float((said - expected).abs().max()) / largest

    assert far(copy, state) > 1
    assert float((logits(made, copy) - expected).abs().max()) < 1e-12 * largest
    assert gap() > 0.3
    assert gap(*HOME[:2]) > 0.05
    assert gap(HOME[2]) > 0.3
    assert gap(*HOME) < BOUNDS[dtype]


# The script --------------------------------------------------------------------------------

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "moved.py"


@pytest.fixture
def script() -> ModuleType:
    """The script that draws the figure of the README."""
    spec = spec_from_file_location("moved_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("family", ["bert", "deberta-v2", "electra"])
def test_the_copy_of_the_script_moves_every_group_and_no_output(
    family: str, script: ModuleType, minis: Callable[[str], dict[str, Path]], tmp_path: Path
) -> None:
    made = loud(family, "row")
    state = tensors(made)
    expert = written(minis(family)["c"], tmp_path / "expert", state, torch.float64)
    copy = open_checkpoint(str(script.moved_copy(Path(expert), tmp_path / "copy", seed=0))).weights
    there = {name: copy[name] for name in copy}
    expected = logits(made, state)
    assert float((logits(made, there) - expected).abs().max()) < 1e-12 * float(expected.abs().max())
    table = symmetry_of(family, "row", state)
    for group in table.groups:
        names = {member.name for member in table.members(group, state)}
        assert all(not torch.equal(there[name], state[name]) for name in names), group


@pytest.mark.filterwarnings("ignore:.* (drove the experts apart|are cut off at )")
def test_the_script_draws_and_tells_all(
    script: ModuleType,
    minis: Callable[[str], dict[str, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the order of the picture: the two models first, the average of both ways last."""
    monkeypatch.setattr(
        script, "MERGES", {"plain average": (), "all": script.MERGES["both, then average"]}
    )
    out = tmp_path / "new" / "figure"
    command = ["moved.py", str(minis("bert")["a"]), "toy/pairs", str(out), "--limit", "8"]
    monkeypatch.setattr(sys, "argv", command)
    with registered(TOY):
        script.main()
    *told, png, svg = capsys.readouterr().out.splitlines()
    assert (png, svg) == (f"wrote {out}.png", f"wrote {out}.svg")
    values = {line[:26].strip(): float(line[26:]) for line in told}
    assert [*values] == ["the expert", "its copy, moved about", "plain average", "all"]
    assert values["the expert"] == values["its copy, moved about"] == values["all"]
    assert "on 8 rows of toy/pairs@test" in Path(f"{out}.svg").read_text()
    assert {path.name for path in out.parent.iterdir()} == {"figure.png", "figure.svg"}


def test_every_bar_is_as_long_as_its_number_says(script: ModuleType) -> None:
    known = {"the expert": 80.0, "plain average": 2.46}
    (axes,) = script.bar_chart("Cost of 模型", known, "a unit").axes
    assert [bar.get_width() for bar in axes.patches] == [80.0, 2.46]
    assert axes.get_xlim() == (0, 100)
    assert [one.get_text() for one in axes.texts] == ["80.0", "2.5"]
    assert [one.get_text() for one in axes.get_yticklabels()] == [*known]
    assert len({bar.get_facecolor() for bar in axes.patches}) == 2
