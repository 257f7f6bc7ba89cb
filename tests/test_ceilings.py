"""Ceilings: against float64 loops over entries, and their way into records and tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import harness
from harness import Choice, Recipe, Run, cli, merge, weights
from harness.checkpoints.open import open_checkpoint
from harness.errors import BadOption, BadRecipe, UnknownName
from harness.evaluation import ceiling
from harness.evaluation.ceiling import CEILINGS
from harness.passes import features
from harness.reporting.grid import grid
from harness.weights import Lazy, specs
from tests.conftest import is_head, model
from tests.mistakes import mistake
from tests.resampled import read_records
from tests.toys import THREE, TOY, known, registered

Minis = Callable[[str], dict[str, Path]]
Arrays = dict[str, np.ndarray[Any, Any]]
_toys = known(TOY, THREE)


# Independent ones --------------------------------------------------------------------------


def reference_emr(experts: Sequence[Arrays], base: Arrays, rescale: str) -> list[Arrays]:
    """Entry by entry."""
    vectors = [{n: expert[n] - base[n] for n in base} for expert in experts]
    kept: list[Arrays] = [{n: np.zeros_like(base[n]) for n in base} for _ in experts]
    for name in base:
        for at in np.ndindex(base[name].shape):
            entries = [vector[name][at] for vector in vectors]
            sign = 1 if sum(entries) > 0 else -1
            agreeing = [i for i, entry in enumerate(entries) if entry * sign > 0]
            for i in agreeing:
                kept[i][name][at] = sign * max(abs(entries[j]) for j in agreeing)
    made = []
    for vector, one in zip(vectors, kept, strict=True):
        own, mine = (
            sum(abs(part[n]).sum() / (part[n].size if rescale == "tensors" else 1) for n in base)
            for part in (vector, one)
        )
        made.append({n: base[n] + own / mine * one[n] for n in base})
    return made


def reference_tall(experts: Sequence[Arrays], base: Arrays, threshold: float) -> list[Arrays]:
    """Entry by entry."""
    made: list[Arrays] = [{n: base[n].copy() for n in base} for _ in experts]
    for name in base:
        for at in np.ndindex(base[name].shape):
            entries = [expert[name][at] - base[name][at] for expert in experts]
            for i, entry in enumerate(entries):
                if abs(entry) >= threshold * abs(sum(entries) - entry):
                    made[i][name][at] += sum(entries)
    return made


REFERENCES: Mapping[str, Callable[[Sequence[Arrays], Arrays], list[Arrays]]] = {
    "emr": lambda experts, base: reference_emr(experts, base, "entries"),
    "emr:rescale=tensors": lambda experts, base: reference_emr(experts, base, "tensors"),
    "tall": lambda experts, base: reference_tall(experts, base, 0.4),
    "tall:threshold=1.5": lambda experts, base: reference_tall(experts, base, 1.5),
}


def drawn(seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    return {"a.weight": random.normal(size=(5, 7)), "a.bias": 0.1 * random.normal(size=3)}


def tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array).double() for name, array in arrays.items()}


def made_by(text: str, experts: Sequence[Any], base: Any) -> list[Any]:
    choice = harness.parse_choice(text)
    return list(CEILINGS[choice.name](experts, base, **ceiling.options_of(choice)))


@pytest.mark.parametrize("text", REFERENCES)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_ceilings_agree_with_a_loop_over_entries(text: str, count: int) -> None:
    base, experts = drawn(0), [drawn(seed) for seed in range(1, count + 1)]
    expected = REFERENCES[text](experts, base)
    with weights.pieces_of(4):
        found = made_by(text, [tensors(one) for one in experts], tensors(base))
        for state, arrays in zip(found, expected, strict=True):
            for name, array in arrays.items():
                np.testing.assert_allclose(state[name].numpy(), array, rtol=1e-12, atol=1e-14)


def row(*values: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values)}


@pytest.mark.parametrize(
    ("text", "vectors", "expected"),
    [
        ("emr", [(2, 1), (1, -3)], [(3, 0), (1.6, -2.4)]),
        ("emr", [(1, 2), (-1, 2)], [(0, 3), (-1, 2)]),
        ("tall:threshold=0.5", [(4, 1), (3, -4)], [(7, 0), (7, -3)]),
        ("tall:threshold=0", [(4, 1), (3, -4)], [(7, -3), (7, -3)]),
    ],
)
def test_cases_by_hand(text: str, vectors: Any, expected: Any) -> None:
    """The second: a sum of zero counts as negative."""
    base = row(1, -1)
    experts = [row(1 + a, -1 + b) for a, b in vectors]
    for state, (a, b) in zip(made_by(text, experts, base), expected, strict=True):
        assert state["w"].tolist() == pytest.approx([1 + a, -1 + b])


def test_an_expert_that_never_moved_is_the_base() -> None:
    found = made_by("emr", [row(0, 0), row(1, 2)], row(0, 0))
    assert [state["w"].tolist() for state in found] == [[0, 0], [1, 2]]


@pytest.mark.parametrize("text", REFERENCES)
def test_nothing_is_read_before_a_tensor_is_asked_for(text: str) -> None:
    def never(name: str) -> torch.Tensor:
        raise AssertionError(name)

    state = Lazy(specs(tensors(drawn(0))), never)
    found = made_by(text, [state, state], state)
    assert [specs(one) for one in found] == [state.specs] * 2


# Through the doors -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def merged(minis: Minis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A merge of an expert of pairs and one of three classes, which are far apart."""
    root, base = tmp_path_factory.mktemp("ceilings"), minis("bert")["base"]
    with registered(TOY, THREE):
        for seed, task in enumerate((TOY, THREE), start=1):
            folder = model(root / str(seed), list(task.labels), seed=seed, near=base)
            numbers = torch.Generator().manual_seed(seed)
            state = load_file(folder / "model.safetensors")
            far = {n: t + 0.3 * torch.randn(t.shape, generator=numbers) for n, t in state.items()}
            save_file(far, folder / "model.safetensors", metadata={"format": "pt"})
        recipe = Recipe(
            experts=(str(root / "1"), str(root / "2")), base=str(base), merger="task_arithmetic",
            tasks=(TOY.name, THREE.name), device="cpu",
        )  # fmt: skip
        merge(recipe, out=root / "merged")
    return root / "merged"


def run(merged: Path, out: Path, *ceilings: str, **fields: Any) -> list[harness.Record]:
    chosen = {"protocols": (Choice("current"),), "ceilings": ceilings, "device": "cpu", **fields}
    return harness.evaluate(
        Run.model_validate({"model": str(merged), "output": str(out), **chosen})
    )


@pytest.mark.parametrize("text", ["emr", "tall:threshold=0.6"])
def test_a_ceiling_is_what_its_formula_gives_under_the_experts_head(
    text: str, merged: Path, minis: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built as an ordinary folder by the reference, and read as an expert, it says the same."""
    outputs: dict[str, Any] = {}
    plain = features.one_pass

    def watched(checkpoint: harness.Checkpoint, *args: Any, **fields: Any) -> Any:
        read = plain(checkpoint, *args, **fields)
        outputs[checkpoint.source] = read[1]
        return read

    monkeypatch.setattr(features, "one_pass", watched)
    records = [r for r in run(merged, tmp_path / "r", text) if r.role == "ceiling"]
    assert [record.task for record in records] == ["toy/pairs@test", "toy/three@test"]
    folders = [merged.parent / name for name in ("1", "2")]
    states = [load_file(folder / "model.safetensors") for folder in folders]
    pretrained = open_checkpoint(minis("bert")["base"]).weights
    base = {n: pretrained[n.removeprefix("bert.")] for n in states[0] if not is_head(n)}
    arrays = [{n: one[n].double().numpy() for n in base} for one in (*states, base)]
    reference = {"emr": REFERENCES["emr"]}.get(text, lambda e, b: reference_tall(e, b, 0.6))
    expected = reference(arrays[:-1], arrays[-1])
    for place, record in enumerate(records):
        folder = tmp_path / str(place)
        folder.mkdir()
        for file in folders[place].iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        body = {n: torch.from_numpy(array).float() for n, array in expected[place].items()}
        whole = {**states[place], **body}
        save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
        (alone,) = run(folder, tmp_path / "alone", tasks=(record.task,))
        (mine,), (theirs,) = record.scores, alone.scores
        assert (mine.value, mine.parts) == (theirs.value, theirs.parts)
        assert mine.facts["loss"] == pytest.approx(theirs.facts["loss"], abs=1e-4)
        ours = outputs[f"{record.model} of {folders[place]}"]
        np.testing.assert_allclose(ours, outputs[str(folder)], atol=1e-4)
        assert record.method == text
        assert record.head == "own"


def test_ceilings_stand_in_records_and_tables(
    merged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--model", str(merged), "--output-path", str(tmp_path / "r"), "--device", "cpu"]
    code = cli.main(
        ["evaluate", *places, "--protocols", "current,knn", "--ceilings", "emr,tall:threshold=0.2"]
    )
    printed = capsys.readouterr().out
    assert code == 0
    records = read_records([tmp_path / "r"])
    ceilings = [record for record in records if record.role == "ceiling"]
    (whole,) = {tuple(r.experts) for r in records if r.role == "merged"}
    assert {(r.model, r.method, r.protocol) for r in ceilings} == {
        (name, method, protocol)
        for name, method in (("emr", "emr"), ("tall", "tall:threshold=0.2"))
        for protocol in ("current", "knn")
    }
    assert all(record.experts == whole and record.base for record in ceilings)
    assert len({record.digest for record in ceilings}) == 4
    rows = [name for name in grid(records, by_method=True).rows if name.startswith("ceiling")]
    assert rows == ["ceiling: emr (not one model)", "ceiling: tall:threshold=0.2 (not one model)"]
    assert "not one" in printed


def test_no_ceiling_is_read_unless_asked_for(merged: Path, tmp_path: Path) -> None:
    assert "ceiling" not in {record.role for record in run(merged, tmp_path / "r")}


def test_a_task_of_no_expert_has_no_ceiling(merged: Path, tmp_path: Path) -> None:
    records = run(merged, tmp_path / "r", "emr", tasks=("toy/pairs",))
    assert [r.task for r in records if r.role == "ceiling"] == ["toy/pairs@test"]


# What is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("which", "flags", "error", "said"),
    [
        ("abn", ("emr",), BadRecipe, "emr base a --base"),
        ("a", ("emr",), BadRecipe, "emr experts 1 --experts"),
        ("ab", ("emr", "tall"), BadRecipe, "emr tall 2 toy/pairs --ceilings"),
        ("ab", ("emmr",), UnknownName, "ceiling emmr emr"),
        ("ab", ("tall:threshold=-1",), BadOption, "threshold ceiling tall -1"),
        ("ab", ("emr:scale=1",), BadOption, "ceiling emr option scale"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is_read(
    which: str,
    flags: tuple[str, ...],
    error: type[Exception],
    said: str,
    minis: Minis,
    tmp_path: Path,
) -> None:
    known = minis("bert")
    experts = tuple(str(known[name]) for name in which if name != "n")
    base = None if "n" in which else str(known["base"])
    with mistake(error, said):
        run(known["a"], tmp_path / "r", *flags, experts=experts, base=base, tasks=("toy/pairs",))
    assert not (tmp_path / "r").exists()
