"""Loss and score along the line between two models, and the barrier on it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import harness
from harness import Choice, Recipe, Run
from harness.cli import main
from harness.data.rows import load_rows
from harness.errors import BadOption, LabelMismatch, MissingScores, UnknownName
from harness.reporting.barrier import AS_THEY_ARE, BarrierLine, Curve, lines_between
from harness.stats.estimate import Estimate, rises
from tests.conftest import FAST, model
from tests.mistakes import mistake
from tests.resampled import read_records
from tests.test_beliefs import turned
from tests.toys import MOODS, THREE, TOY, known

_known = known(TOY, THREE, MOODS, scope="module")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two experts that learnt something, and the second with units and heads moved."""
    root = tmp_path_factory.mktemp("barrier")
    base = model(root / "base")
    for seed in (0, 1):
        settings = {**FAST, "epochs": 8, "seed": seed}
        harness.finetune(base, MOODS.name, out=root / f"e{seed}", **settings)
    moved = root / "moved"
    moved.mkdir()
    for file in (root / "e1").iterdir():
        if file.is_file():
            (moved / file.name).write_bytes(file.read_bytes())
    (moved / "expert.json").unlink()
    state = load_file(moved / "model.safetensors")
    for name in state:
        if "attention.self.value" in name or "attention.output.dense.weight" in name:
            state[name] = -state[name]  # half a turn of what heads hand on
    for name in [name for name in state if "intermediate.dense.weight" in name]:
        order = torch.randperm(len(state[name]), generator=torch.manual_seed(0))
        out = name.replace("intermediate", "output")
        state[name] = state[name][order].contiguous()
        bias = name.replace("weight", "bias")
        state[bias] = state[bias][order].contiguous()
        state[out] = state[out][:, order].contiguous()
    save_file(state, moved / "model.safetensors", {"format": "pt"})
    return root


def estimate(*rows: float) -> Estimate:
    """The mean of some rows, on resamples of them."""
    taken = np.random.default_rng(0).integers(len(rows), size=(2000, len(rows)))
    each = np.array(rows)
    return Estimate(np.array([each.mean()]), each[taken].mean(1), np.empty((1, 0)), len(rows))


def test_a_barrier_by_hand() -> None:
    along = [estimate(0.5, 1.5), estimate(3.0, 5.0), estimate(2.0, 2.0)]
    above = rises((0.0, 0.5, 1.0), along)
    assert [one.point for one in above] == [0, 2.5, 0]
    assert Curve((0.0, 0.5, 1.0), tuple(along)).height[::3] == (2.5, 0.5)
    # each row by itself: 3 - (0.5 + 2) / 2 and 5 - (1.5 + 2) / 2
    assert {*np.unique(above[1].resamples)} == {1.75, 2.5, 3.25}


def test_a_line_without_a_barrier_has_the_interval_of_its_places() -> None:
    """Its height of 0, at an end, is no chance: how high it may be, the places between say."""
    flat, rows = estimate(*np.zeros(50)), np.random.default_rng(1).normal(0, 1, 50)
    rows -= rows.mean()
    two = [estimate(*(rows - away)) for away in (0.1, 0.2)]
    curve = Curve((0.0, 1 / 3, 2 / 3, 1.0), (flat, *two, flat))
    assert 0 < curve.at(2)[-1] < curve.at(1)[-1]
    assert curve.height == (0, 0, curve.at(1)[-1], 0)


def test_the_interval_of_a_height_holds_the_true_one() -> None:
    """By simulation: of intervals of 95 %, 90 % or more do."""
    rng, hits = np.random.default_rng(2), 0
    for _ in range(200):
        row = rng.gamma(2, 0.5, 80)  # ends of one row move together
        curve = [row, row + rng.normal(0.3, 0.5, 80), row + rng.normal(0.5, 0.5, 80), row]
        along = tuple(estimate(*one) for one in curve)
        _, low, high, _ = Curve((0.0, 0.3, 0.6, 1.0), along).height
        hits += low <= 0.5 <= high
    assert hits / 200 >= 0.9, hits


@pytest.mark.parametrize("count", [100, 300, 1000])
def test_a_line_without_a_barrier_seldom_has_one(count: int) -> None:
    """By simulation: its interval begins above 0 in 2 to 7 of 100."""
    rng, places = np.random.default_rng(3), np.linspace(0, 1, 11)
    taken = rng.integers(count, size=(500, count))
    above = 0
    for _ in range(100):
        first = rng.random(count) < 0.8
        last = np.where(rng.random(count) < 0.2, rng.random(count) < 0.8, first)
        until = rng.random(count)  # each row is what it is at one end up to here, then at the other
        rows = [np.where(until > x, first, last).astype(float) for x in places]
        none = np.empty((1, 0))
        along = [Estimate(np.array([one.mean()]), one[taken].mean(1), none, count) for one in rows]
        above += Curve((*places.tolist(),), (*along,), -1).height[1] > 0
    assert above <= 12, above


def test_a_score_falls_where_a_loss_rises() -> None:
    along = (estimate(1.0, 0.0), estimate(0.0, 0.0), estimate(1.0, 1.0))
    height, low, high, at = Curve((0.0, 0.5, 1.0), along, -1, 100.0).height
    assert (height, at) == (75, 0.5)
    assert 0 <= low < 75 < high


def losses(room: Path, first: str, second: str, x: float) -> tuple[float, float]:
    """Loss and macro F1 on the line, by transformers and numpy alone."""
    import transformers
    from sklearn.metrics import f1_score

    states = [load_file(room / one / "model.safetensors") for one in (first, second)]
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(room / first).eval()
    line = {n: (1 - x) * states[0][n].double() + x * states[1][n].double() for n in states[0]}
    whole.load_state_dict(line, strict=False)
    tokenizer, rows = transformers.AutoTokenizer.from_pretrained(room / first), None
    rows = load_rows(MOODS, "test")
    with torch.no_grad():
        batch = tokenizer([one[0] for one in rows.texts], padding=True, return_tensors="pt")
        outputs = whole.double()(**batch).logits
    known, truth = torch.tensor(rows.labels != -100), torch.tensor(rows.labels)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs[known], truth[known])
    f1 = [
        f1_score(truth[k, c], outputs[k, c] >= 0) for c in range(3) for k in [known[:, c].numpy()]
    ]
    return float(loss), float(np.mean(f1))


def along(
    room: Path, first: str, second: str, out: Path, *names: str, points: int
) -> list[BarrierLine]:
    recipe = Recipe(experts=(str(room / first), str(room / second)))
    run = Run(model="", tasks=(MOODS.name,), output=str(out), device="cpu")
    return harness.barrier(recipe, run, alignments=tuple(map(Choice, names)), points=points)


def test_the_line_is_that_of_plain_interpolation(room: Path, tmp_path: Path) -> None:
    (line,) = along(room, "e0", "moved", tmp_path / "out", points=5)
    expected = [losses(room, "e0", "moved", x) for x in (0, 0.25, 0.5, 0.75, 1)]
    for curve, values in zip((line.loss, line.score), zip(*expected, strict=True), strict=True):
        np.testing.assert_allclose([one.point for one in curve.values], values, atol=1e-5)
    loss = [value for value, _ in expected]
    rise = [
        v - (1 - x) * loss[0] - x * loss[-1] for x, v in zip(line.loss.places, loss, strict=True)
    ]
    np.testing.assert_allclose([one.point for one in line.loss.above], rise, atol=1e-5)
    assert line.loss.height[0] == pytest.approx(max(rise), abs=1e-5)
    assert max(rise) > 0.05, "units in another order are in the way"


def test_labels_in_another_order_are_matched_by_name(room: Path, tmp_path: Path) -> None:
    """As in a merge, which the line is made of."""
    turned(room / "e1", tmp_path / "turned", [2, 0, 1], str.upper)
    heights = [
        along(room, "e0", str(second), tmp_path / f"out-{place}", points=3)[0].loss.height
        for place, second in enumerate((room / "e1", tmp_path / "turned"))
    ]
    np.testing.assert_allclose(*heights, atol=1e-6)


def test_an_alignment_that_finds_the_units_takes_the_barrier_away(
    room: Path, tmp_path: Path
) -> None:
    """e1 and itself with its units moved: the same function, far apart until they are aligned."""
    plain, aligned = along(room, "e1", "moved", tmp_path / "out", "rotation", points=5)
    assert (plain.alignment, aligned.alignment) == (AS_THEY_ARE, "rotation")
    for one in (plain, aligned):
        first, last = one.loss.values[0].point, one.loss.values[-1].point
        assert first == pytest.approx(last, abs=1e-5), "both ends are the same function"
    assert plain.loss.height[0] > 0.05
    assert plain.loss.height[1] > 0, "significantly"
    assert aligned.loss.height[0] < 1e-4
    assert plain.score.height[0] > aligned.score.height[0] == pytest.approx(0, abs=1e-9)


def test_the_command_leaves_ordinary_records_a_table_and_a_picture(
    room: Path, tmp_path: Path, capsys: Any
) -> None:
    out = tmp_path / "out"
    asked = ["barrier", str(room / "e0"), str(room / "e1"), "--tasks", MOODS.name, "--points", "3"]
    asked += [
        "--premerge",
        "rotation",
        "--dtype",
        "float32",
        "--device",
        "cpu",
        "--output-path",
        str(out),
    ]
    assert main(asked) == 0
    printed = capsys.readouterr().out
    assert "barrier of the loss" in printed
    assert "rotation" in printed
    names = {"barrier.csv", "barrier.md", "barrier.png", "barrier.svg", "records"}
    assert {one.name for one in out.iterdir()} == names, "merges are gone"
    frame = harness.read_records(out / "records")
    merged = frame[frame.role == "merged"]
    assert {*merged.method} == {
        f"{before}average:weights={w}{after}"
        for before, after in (("", ""), ("rotation[", "]"))
        for w in ("1.0:0.0", "0.5:0.5", "0.0:1.0")
    }
    assert {*frame.protocol} == {"current"}
    with (out / "barrier.csv").open() as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == 6
    facts = {json.loads(one)["loss"] for one in merged.facts}
    assert {round(float(row["loss"]), 6) for row in rows} == {round(one, 6) for one in facts}
    before = {path: path.stat().st_mtime_ns for path in (out / "records").rglob("*.json")}
    assert main(asked) == 0
    assert before == {path: path.stat().st_mtime_ns for path in (out / "records").rglob("*.json")}
    for name in sorted(names - {"records"}):  # what somebody else put there stays
        ours = (out / name).read_bytes()
        (out / name).write_text("precious")
        if name == "barrier.png":  # a picture that has no other half
            (out / "barrier.svg").rename(tmp_path / "barrier.svg")
        capsys.readouterr()
        assert main(asked) == 2
        assert f"{name} exists and this program did not write it" in capsys.readouterr().err
        assert (out / name).read_text() == "precious"
        (out / name).write_bytes(ours)
        if name == "barrier.png":
            (tmp_path / "barrier.svg").rename(out / "barrier.svg")


def test_mistakes_are_a_line_and_leave_nothing(room: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    three = model(tmp_path / "three", ["x", "y", "z"], near=room / "base")
    with mistake(LabelMismatch, "heads of", "three have different labels; expected experts of one"):
        along(room, "e0", str(three), out, points=3)
    with mistake(BadOption, "--points is 2, expected 3"):
        along(room, "e0", "e1", out, points=2)
    with mistake(BadOption, "found 1; name two"):
        harness.barrier(Recipe(experts=("a",)), Run(model="", output=str(out)))
    with mistake(UnknownName, "toy/mods"):
        harness.barrier(
            Recipe(experts=(str(room / "e0"), str(room / "e1"))),
            Run(model="", tasks=("toy/mods",), output=str(out)),
        )
    with mistake(BadOption, "does not say its task", "--tasks"):
        harness.barrier(
            Recipe(experts=(str(room / "moved"), str(room / "e1"))),
            Run(model="", output=str(out)),
        )
    with mistake(harness.HarnessError, "dare", "base"):
        along(room, "e0", "e1", out, "dare", points=3)
    assert not out.exists()


def test_a_line_lacks_an_end_or_a_loss(room: Path, tmp_path: Path) -> None:
    along(room, "e0", "e1", tmp_path / "out", points=3)
    records = read_records([tmp_path / "out" / "records"])
    merged = [one for one in records if one.role == "merged"]
    (line,) = lines_between(records)
    assert line.loss.places == (0, 0.5, 1)
    with mistake(MissingScores, "has the places", "expected 0, 1 and one or more between"):
        lines_between([one for one in merged if one.recipe.merger.options["weights"][1] < 1])
    with mistake(MissingScores, "keeps no loss", "expected new ones"):
        lines_between([one.model_copy(update={"loss_resamples": None}) for one in merged])
    with mistake(MissingScores, "make them with harness barrier"):
        lines_between([one for one in records if one.role != "merged"])
