"""Fine-tuning: what the folder records, resuming, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import harness
from harness.checkpoints import open_checkpoint
from harness.cli import main
from harness.data import load_rows, parse_task
from harness.encode import forward
from harness.labels import predicted
from harness.metrics import score
from harness.rng import rng
from harness.weights import digest
from tests.conftest import FAST, interrupted, model

TASK = "glue/sst2"


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and a data folder whose rows differ much in length; word1 tells the class."""
    root = tmp_path_factory.mktemp("experts")
    model(root / "base", initializer_range=0.3)
    random = rng(0, "rows")
    lines = []
    for index in range(160):
        words = [f"word{n}" for n in random.integers(2, 40, size=random.integers(2, 18))]
        words = [f"word{index % 2}" if random.random() < 0.5 else word for word in words]
        # one row in five has the wrong label, so that the score is neither 0 nor 1
        label = index % 2 if index % 5 else 1 - index % 2
        lines.append(json.dumps({"sentence": " ".join(words), "label": label}))
    folder = root / "data" / TASK
    folder.mkdir(parents=True)
    for split in ("train", "validation"):
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return root


@pytest.fixture(scope="module")
def expert(room: Path) -> Path:
    out = room / "expert"
    harness.finetune(room / "base", TASK, out=out, data_dir=room / "data", **FAST)
    return out


def test_the_folder_records_how_it_was_made(room: Path, expert: Path) -> None:
    record = json.loads((expert / "expert.json").read_text())
    assert record["tasks"] == [TASK]
    assert (record["split"], record["rows"], record["seed"]) == ("train90", 144, 0)
    assert record["hyperparameters"]["learning_rate"] == 5e-3
    assert record["hyperparameters"]["warmup"] == 0.0  # the task's own, not overridden
    found = open_checkpoint(expert)
    assert found.labels == ("negative", "positive")
    assert found.tasks == (TASK,)
    assert not (room / "expert.unfinished").exists()


def test_the_recorded_score_is_that_of_the_heldout_rows(room: Path, expert: Path) -> None:
    """Grouping by length shuffles what the Trainer predicts on; the labels must go along."""
    task, _ = parse_task(TASK)
    rows = load_rows(task, "heldout10", folder=room / "data")
    _, logits = forward(open_checkpoint(expert), rows, max_length=24)
    expected = score(task, predicted(task.kind, logits), rows.labels)
    recorded = json.loads((expert / "expert.json").read_text())["scores"]
    assert recorded == {
        f"{TASK}@heldout10": {"value": expected.value, "parts": dict(expected.parts), "rows": 16}
    }
    shuffled = score(task, predicted(task.kind, logits)[::-1], rows.labels)
    assert shuffled.value != expected.value, "the rows must be able to tell an order from another"


def test_training_learns(room: Path, expert: Path) -> None:
    task, _ = parse_task(TASK)
    rows = load_rows(task, "validation", folder=room / "data")
    _, logits = forward(open_checkpoint(expert), rows, max_length=24)
    assert score(task, predicted(task.kind, logits), rows.labels).value > 0.7


def test_an_interrupted_run_resumes_to_the_same_weights(
    room: Path, expert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import Trainer

    out = room / "again"
    with interrupted():
        harness.finetune(room / "base", TASK, out=out, data_dir=room / "data", **FAST)
    assert not out.exists()
    assert list((room / "again.unfinished").glob("checkpoint-*"))
    with pytest.raises(harness.HarnessError, match="other arguments"):
        harness.finetune(room / "base", TASK, out=out, data_dir=room / "data", seed=1, **FAST)
    steps: list[int] = []
    trained = Trainer.training_step
    monkeypatch.setattr(
        Trainer,
        "training_step",
        lambda self, *a, **k: (steps.append(self.state.global_step), trained(self, *a, **k))[1],
    )
    harness.finetune(room / "base", TASK, out=out, data_dir=room / "data", **FAST)
    assert steps == list(range(18, 54)), "the second and third epoch are left to do"
    one, other = (open_checkpoint(path).weights for path in (expert, out))
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=1e-6, rtol=0)


def test_seeds_of_head_and_data_are_apart(room: Path, expert: Path) -> None:
    made = {}
    for seed, head_seed in ((0, 0), (1, 0), (0, 1)):
        out = room / f"seed{seed}{head_seed}"
        given = {**FAST, "epochs": 1, "learning_rate": 1e-9}
        made[seed, head_seed] = harness.finetune(
            room / "base", TASK, out=out, data_dir=room / "data", seed=seed,
            head_seed=head_seed, limit=32, **given,
        ).weights  # fmt: skip
    head = "classifier.weight"
    torch.testing.assert_close(made[0, 0][head], made[1, 0][head], atol=1e-6, rtol=0)
    assert float((made[0, 0][head] - made[0, 1][head]).abs().max()) > 1e-3
    assert digest(made[0, 0]) != digest(made[1, 0])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--task", "glue/sst3"], ["sst3", "did you mean 'glue/sst2'"]),
        (["--task", "glue/sst2@validation"], ["train90", "validation"]),
        (["--task", TASK, "--epochs", "0"], ["epochs", "positive"]),
        (["--task", TASK, "--learning-rate", "-1"], ["learning_rate", "positive"]),
        (["--task", TASK, "--data-dir", "nowhere"], ["nowhere", "expected"]),
        (["--task", TASK, "--base", "nowhere/at/all"], ["nowhere/at/all", "folder or a Hub id"]),
    ],
)
def test_bad_input(
    room: Path,
    tmp_path: Path,
    flags: list[str],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    given = ["finetune", "--base", str(room / "base"), "--data-dir", str(room / "data")]
    assert main([*given, "--out", str(out), *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("harness: ")
    assert error.count("\n") == 1
    assert all(word in error for word in words), error
    assert not list(tmp_path.iterdir())


def test_a_folder_of_something_else_is_left_alone(room: Path, tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(harness.HarnessError, match="not written by this program"):
        harness.finetune(room / "base", TASK, out=tmp_path, data_dir=room / "data", **FAST)
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_progress_goes_to_stderr(
    room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--epochs", "1", "--limit", "32", "--max-length", "24"]
    given = ["--base", str(room / "base"), "--data-dir", str(room / "data"), "--task", TASK]
    assert main(["finetune", *given, *flags, "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert out.startswith(f"wrote {tmp_path / 'out'}: {TASK}@heldout10 accuracy ")
