"""The loss under Current Eval: that of training, in records, on resamples and when read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import harness
from harness import Choice, Run, Task
from harness.data.rows import load_rows
from harness.errors import BrokenRecord
from harness.evaluation.bootstrap import design_of
from harness.evaluation.predictions import read_predictions
from harness.evaluation.records import Record, predictions_of, read_record, write_record
from harness.evaluation.resamples import LOSS, loss_of
from harness.kinds import KINDS
from tests.conftest import model
from tests.mistakes import mistake
from tests.toys import MOODS, TAGS, TOY, VALUE, known

TASKS_OF = {"classification": TOY, "regression": VALUE, "multilabel": MOODS, "tagging": TAGS}
_known = known(TOY, VALUE, MOODS, TAGS, scope="module")


def expert(folder: Path, task: Task) -> Path:
    base = model(folder / "base", seed=5)
    more: dict[str, Any] = {"unit": "word"} if task.kind == "tagging" else {}
    if task.kind == "multilabel":
        more["problem_type"] = "multi_label_classification"
    return model(folder / "expert", list(task.labels), seed=1, near=base, **more)


def read(folder: Path, task: Task, out: Path, **values: Any) -> Record:
    asked = {"protocols": (Choice("current"),), "device": "cpu", **values}
    found = harness.evaluate(Run(model=str(folder), tasks=(task.name,), output=str(out), **asked))
    (record,) = found
    return record


def plain_losses(folder: Path, task: Task, length: int = 64) -> list[tuple[float, int]]:
    """Of every row the sum of transformers' own loss over its labels, and their number."""
    import transformers

    unit = "Token" if task.kind == "tagging" else "Sequence"
    loader = getattr(transformers, f"AutoModelFor{unit}Classification")
    whole = loader.from_pretrained(folder).eval().double()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows, made, begin = load_rows(task, "test"), [], 0
    for row, texts in enumerate(rows.texts):
        words = task.kind == "tagging"
        given = [list(texts)] if words else [texts if len(texts) > 1 else texts[0]]
        how = {"truncation": True, "max_length": length, "return_tensors": "pt"}
        batch = tokenizer(given, is_split_into_words=words, **how)
        with torch.no_grad():
            logits = whole(**batch).logits[0]
        if task.kind == "classification":
            each = functional.cross_entropy(logits[None], torch.tensor([int(rows.labels[row])]))
            made.append((float(each), 1))
        elif task.kind == "regression":
            made.append((float((logits[0] - rows.labels[row]) ** 2), 1))
        elif task.kind == "multilabel":
            known = rows.labels[row] != -100
            truth = torch.tensor(rows.labels[row][known])
            each = functional.binary_cross_entropy_with_logits(
                logits[known], truth, reduction="sum"
            )
            made.append((float(each), int(known.sum())))
        else:
            ids = batch.word_ids(0)
            seen = [word for word in range(len(texts)) if word in ids]
            places = [ids.index(word) for word in seen]
            truth = torch.tensor(rows.labels[[begin + word for word in seen]].astype(int))
            each = functional.cross_entropy(logits[places], truth, reduction="sum")
            made.append((float(each), len(seen)))
            begin += len(texts)
    return made


def test_losses_by_hand() -> None:
    log = np.log
    of_classes = KINDS["classification"].losses(np.array([[0, log(3)]] * 2), np.array([0.0, 1.0]))
    np.testing.assert_allclose(of_classes, [log(4), log(4 / 3)])
    bits = KINDS["multilabel"].losses(np.full((1, 3), log(3)), np.array([[1.0, 0.0, -100.0]]))
    np.testing.assert_allclose(bits, [[log(4 / 3), log(4), np.nan]])
    assert KINDS["regression"].losses(np.array([[2.0]]), np.array([5.0])).tolist() == [9.0]
    far = KINDS["multilabel"].losses(np.array([[800.0, -800.0]]), np.array([[0.0, 1.0]]))
    assert far.tolist() == [[800, 800]], "and not infinite"


@pytest.mark.parametrize("kind", TASKS_OF)
def test_the_loss_of_a_record_is_that_of_transformers(kind: str, tmp_path: Path) -> None:
    task = TASKS_OF[kind]
    folder = expert(tmp_path, task)
    record = read(folder, task, tmp_path / "records")
    sums, counts = map(np.array, zip(*plain_losses(folder, task), strict=True))
    assert record.scores[0].facts[LOSS] == pytest.approx(sums.sum() / counts.sum(), abs=1e-5)

    kept = loss_of(record)
    assert kept is not None
    assert record.loss_resamples is not None
    assert record.loss_resamples.design == record.resamples[0].design, "so they are paired"
    predicted = read_predictions(record, predictions_of(record, tmp_path / "records"))
    taken = design_of(predicted).counts.astype(float)
    expected = taken @ sums / (taken @ counts)
    half = record.loss_resamples.step / 2
    np.testing.assert_allclose(kept.resamples, expected, atol=half + 1e-5)
    assert expected.std() > 10 * half, "steps are fine enough to see it"


def test_words_that_are_cut_off_have_no_loss(tmp_path: Path) -> None:
    folder = expert(tmp_path, TAGS)
    with pytest.warns(UserWarning, match="cut off"):
        record = read(folder, TAGS, tmp_path / "records", max_length=5)
    sums, counts = map(np.array, zip(*plain_losses(folder, TAGS, 5), strict=True))
    assert record.unseen
    assert record.scores[0].facts[LOSS] == pytest.approx(sums.sum() / counts.sum(), abs=1e-5)


def test_a_loss_is_of_the_head_that_a_model_came_with_alone(tmp_path: Path) -> None:
    folder = expert(tmp_path, TOY)
    chosen = tuple(map(Choice, ("current", "knn", "linear-probe")))
    asked = Run(
        model=str(folder),
        tasks=(TOY.name,),
        protocols=chosen,
        shots=(2,),
        draws=2,
        device="cpu",
        output=str(tmp_path / "records"),
    )
    for record in harness.evaluate(asked):
        own = record.protocol == "current"
        assert {LOSS in one.facts for one in record.scores} == {own}
        assert (record.loss_resamples is not None) == own


def test_the_loss_of_large_labels_has_no_bound(tmp_path: Path) -> None:
    """As of prices of houses, whose squared errors are some billions."""
    (tmp_path / "data").mkdir()
    for split, word in (("train", "a"), ("test", "b")):
        rows = [f"{word} word{i % 9} word{i % 7},{3e5 + 1e4 * i}" for i in range(30)]
        (tmp_path / "data" / f"{split}.csv").write_text("\n".join(["text,price", *rows]))
    task = tmp_path / "houses.yaml"
    task.write_text("kind: regression\ntext: text\nlabel: price\nfiles: data\n")
    asked = {"tasks": (str(task),), "protocols": (Choice("current"),), "output": tmp_path / "out"}
    harness.evaluate(Run(model=str(model(tmp_path / "model", [], seed=1)), **asked))
    (path,) = (tmp_path / "out").rglob("*.json")
    record = read_record(path)
    kept = loss_of(record)
    assert kept is not None
    labels = 3e5 + 1e4 * np.arange(30)
    assert record.scores[0].facts[LOSS] == pytest.approx((labels**2).mean(), rel=1e-3)
    assert kept.resamples.mean() == pytest.approx((labels**2).mean(), rel=0.02)
    assert kept.resamples.std() > 1e9


def test_a_frame_and_a_board_say_the_loss(tmp_path: Path) -> None:
    record = read(expert(tmp_path, TOY), TOY, tmp_path / "records")
    (facts,) = harness.read_records(tmp_path / "records").facts
    assert json.loads(facts) == {LOSS: record.scores[0].facts[LOSS]}
    harness.leaderboard([tmp_path / "records"], out=tmp_path / "board")
    assert '{""loss"": ' in (tmp_path / "board" / "board.csv").read_text()


def test_records_of_before_have_none_and_spoilt_ones_are_named(tmp_path: Path) -> None:
    record = read(expert(tmp_path, TOY), TOY, tmp_path / "records")
    ways = {
        "has a loss on resampled units that cannot be read: 'loss'": {
            "scores": tuple(one.model_copy(update={"facts": {}}) for one in record.scores)
        },
        "has a loss on other resamples than its scores": {
            "loss_resamples": record.resamples[0].model_copy(update={"design": "0" * 16})
        },
        "has a loss on resampled units that cannot be read: ?": {
            "loss_resamples": record.resamples[0].model_copy(update={"values": "?"})
        },
        "losses on resamples expected 7": {
            "loss_resamples": record.resamples[0].model_copy(update={"count": 7})
        },
    }
    for number, (said, change) in enumerate(ways.items()):
        path = tmp_path / f"{number}.json"
        write_record(path, record.model_copy(update=change))
        with mistake(BrokenRecord, str(path), said):
            read_record(path)
    none = record.model_copy(update={"loss_resamples": None, **next(iter(ways.values()))})
    write_record(tmp_path / "old.json", none)
    text = (tmp_path / "old.json").read_text()
    (tmp_path / "old.json").write_text(text.replace('"loss_resamples": null,\n', ""))
    assert "loss" not in (tmp_path / "old.json").read_text().replace("loss_", "")
    assert loss_of(read_record(tmp_path / "old.json")) is None
