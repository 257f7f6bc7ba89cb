"""What a record keeps of chance: scores on the same resamples of test units as every other."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score

import harness
from harness.cli import main
from harness.data.rows import load_rows
from harness.data.splits import parse_task
from harness.errors import BadData, BrokenRecord
from harness.evaluation import bootstrap
from harness.evaluation.bootstrap import design_of, kept_resamples, resampled_draws
from harness.evaluation.counting import scored
from harness.evaluation.predictions import Predicted, read_predictions
from harness.evaluation.records import DrawScore, Record, read_record
from harness.evaluation.resamples import STEP, bytes_of, estimate_of, to_estimate, to_resamples
from harness.types import Array64
from tests.conftest import WORDS, model
from tests.mistakes import mistake, refused
from tests.resampled import read_records
from tests.test_believed import change
from tests.test_compare import TASKS, read_once, spoilt, truth


def predicted(
    name: str = "toy/a", wrong: float = 0.2, draws: int = 1, rows: int = 600
) -> Predicted:
    """A model on a task, by several draws of five shots or by none."""
    labels, units = truth(name, rows)
    shots = 5 if draws > 1 else None
    values = {
        (shots, draw if shots else None): spoilt(labels, TASKS[name], wrong, 7 * draw + 1)
        for draw in range(draws)
    }
    return Predicted(TASKS[name], f"{name} {rows}", units, labels, values)


def scores(made: Predicted) -> list[DrawScore]:
    return [
        DrawScore(value=scored(made, (shots, seed)), parts={}, shots=shots, seed=seed)
        for shots, seed in made.values
    ]


def taken(made: Predicted) -> Array64:
    """How often each resample takes each row: [resamples, rows]."""
    return np.concatenate([*design_of(made).blocks()])


# What is kept ---------------------------------------------------------------------------------


OF: dict[str, Any] = {"unit": "row", "units": 9, "design": ""}


def test_by_hand() -> None:
    """Two draws that score 0.5 and 0.7 on four units, and twice on resampled ones."""
    said = to_resamples([0.5, 0.7], np.array([0.55, 0.7]), np.array([[0.5, 0.6], [0.6, 0.8]]), **OF)
    # 0.55 is 100 steps of 0.0005 below 0.6, and 0.7 is 200 above: too far for a byte
    assert said.step == 2 * STEP
    assert bytes_of(said.values).tolist() == [-50, 100]
    assert bytes_of(said.by_draw).tolist() == [0, 100, -100, 100]


def test_no_score_on_a_resample_is_beyond_the_best() -> None:
    """1 is 24.75 steps of 0.004 above 0.901, and 25 were 1.001."""
    said = to_resamples([0.901], np.array([1.0, 0.99, 0.5]), np.empty((1, 0)), **OF)
    assert said.step == 8 * STEP
    assert bytes_of(said.values).tolist() == [25, 22, -100]
    assert to_estimate(said, [0.901], ["accuracy"]).resamples.tolist() == [1, 0.989, 0.501]


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("name", TASKS)
def test_what_is_kept_is_read_back_to_half_a_step(name: str, draws: int) -> None:
    made = predicted(name, draws=draws)
    (kept,) = kept_resamples(made, scores(made))
    each = resampled_draws(made, kept.shots)
    values = [score.value for score in scores(made)]
    found = to_estimate(kept, values, made.task.metrics)
    assert found.values.tolist() == values
    np.testing.assert_allclose(found.resamples, each.mean(axis=0), atol=kept.step / 2 + 1e-9)
    assert kept.step <= each.std() / 8, "rounding is nothing beside chance"
    assert (kept.units, kept.count) == (600, len(found.resamples)) == (600, 2000)
    assert kept.unit == ("sentence" if name == "toy/d" else "row")
    if draws > 1:
        np.testing.assert_allclose(found.by_draw, each[:, :64], atol=kept.step / 2 + 1e-9)
    assert found.by_draw.shape == ((3, 64) if draws > 1 else (1, 0))


def test_the_scores_are_those_of_the_repeated_rows() -> None:
    """Of scikit-learn, on every resample, of rows that are taken as often as the design says."""
    for name, metric in {
        "toy/a": lambda true, guess: accuracy_score(true, guess),
        "toy/e": lambda true, guess: f1_score(true, guess, average="macro"),
    }.items():
        made = predicted(name, draws=3, rows=60)
        counts = taken(made)
        assert counts.sum(axis=1).tolist() == [60.0] * len(counts)
        found = resampled_draws(made, 5)
        for b in range(0, len(counts), 500):
            rows = np.repeat(np.arange(60), counts[b].astype(int))
            known = [metric(made.labels[rows], guess[rows]) for guess in made.values.values()]
            assert found[:, b] == pytest.approx(known, abs=1e-12)


def test_steps_are_small_where_two_models_may_differ_by_few_of_many_rows() -> None:
    """Of 12,000 rows; as records of before have them, they are made again in their steps."""
    made = predicted(rows=12_000)
    (kept,) = kept_resamples(made, scores(made))
    assert kept.step < STEP / 2
    (again,) = kept_resamples(made, scores(made), STEP)
    assert again.step == STEP
    near = [to_estimate(one, [0.8], ("accuracy",)).resamples for one in (kept, again)]
    np.testing.assert_allclose(near[0], near[1], atol=STEP)
    (few,) = kept_resamples(predicted(rows=9_000), scores(predicted(rows=9_000)))
    assert few.step == STEP


def test_more_resamples_of_fewer_units() -> None:
    """2,000 of 600 units or more; fewer of a metric that is asked one by one."""
    accuracy = ("accuracy",)
    counts = [bootstrap.resample_count(units, accuracy) for units in (10, 71, 277, 600, 10_000)]
    assert counts == [20_000, 16_902, 4333, 2000, 2000]
    assert bootstrap.resample_count(10, ("accuracy", "of_ones_own")) == 200


# Common random numbers ------------------------------------------------------------------------


def test_two_models_take_the_same_units() -> None:
    """The difference of what two records keep is that of their rows, on the same resamples."""
    first, second = predicted(wrong=0.1), predicted(wrong=0.3)
    kept = [kept_resamples(one, scores(one))[0] for one in (first, second)]
    assert kept[0].design == kept[1].design
    one, other = (
        to_estimate(resamples, [scores(model)[0].value], model.task.metrics).resamples
        for resamples, model in zip(kept, (first, second), strict=True)
    )
    found = one - other
    right = [(m.values[None, None] == m.labels).astype(float) for m in (first, second)]
    by_row = taken(first) @ (right[0] - right[1]) / 600
    np.testing.assert_allclose(found, by_row, atol=STEP + 1e-9)
    assert found.std() < 0.9 * (one.var() + other.var()) ** 0.5


def test_the_rows_with_their_labels_decide_alone() -> None:
    """Not what is predicted, by how many draws, nor in what order models come."""
    one, drawn = predicted(), predicted(wrong=0.5, draws=3)
    assert design_of(one).digest == design_of(drawn).digest
    others = {
        "rows": replace(one, digest="others"),
        "labels": replace(one, labels=1 - one.labels),
        "documents": replace(one, documents=np.arange(600) // 3),
    }
    assert len({design_of(other).digest for other in (one, *others.values())}) == 4
    assert design_of(one).digest == design_of(drawn).digest


def test_resamples_without_anything_to_score_are_left_out_for_every_model() -> None:
    """Of one row of ten with an entity, a third of resamples has none: the labels decide."""
    task = replace(TASKS["toy/d"], metrics=("span_f1",))
    labels, units = np.eye(10)[3], np.ones(10, dtype=np.int64)
    right = Predicted(task, "digest", units, labels, {(None, None): labels})
    wrong = replace(right, values={(None, None): np.eye(10)[4]})
    assert design_of(right).digest == design_of(wrong).digest
    assert taken(right)[:, 3].min() >= 1
    assert (resampled_draws(right, None) == 1).all()
    assert (resampled_draws(wrong, None) == 0).all()


def test_documents_are_taken_whole() -> None:
    made = predicted(rows=90)
    documents = np.repeat(np.arange(30), 3)
    made = replace(made, documents=documents)
    counts = taken(made)
    assert (counts.reshape(len(counts), 30, 3) == counts[:, ::3, None]).all()
    assert (counts[:, ::3].sum(axis=1) == 30).all()
    (kept,) = kept_resamples(made, scores(made))
    assert (kept.unit, kept.units, kept.count) == ("document", 30, 20_000)
    right = (made.values[None, None] == made.labels).astype(float)
    by_document = right.reshape(30, 3).mean(axis=1)
    found = to_estimate(kept, [scores(made)[0].value], made.task.metrics).resamples.std()
    assert found == pytest.approx(by_document.std() / 30**0.5, rel=0.05)


# No label leaks -------------------------------------------------------------------------------


def test_labels_are_not_found_from_a_record_without_them() -> None:
    """Whoever has the texts, the model and the record, but not the labels.

    Whether the model is right on each row would say the labels of a binary task. With the weights
    of the resamples, 2,000 linear equations say it at once; without the labels other weights are
    drawn, by which the same equations say nothing.
    """
    made = predicted(wrong=0.3, rows=600)
    (kept,) = kept_resamples(made, scores(made))
    said = (
        to_estimate(kept, [scores(made)[0].value], made.task.metrics).resamples
        - scores(made)[0].value
    )
    right = made.values[None, None] == made.labels

    def guessed(counts: Array64) -> Array64:
        """The rows that least squares take for right, as many as are."""
        effects = np.linalg.lstsq((counts - 1) / 600, said, rcond=None)[0]
        return effects >= np.sort(effects)[::-1][int(right.sum()) - 1]

    usual = right.mean() ** 2 + (1 - right.mean()) ** 2  # of a guess
    assert (guessed(taken(made)) == right).mean() > 0.95, "the attack works with the weights"
    for labels in (made.values[None, None], np.zeros(600), 1 - made.labels):
        mine = taken(replace(made, labels=labels))
        assert (guessed(mine) == right).mean() == pytest.approx(usual, abs=0.12)


def test_what_the_weights_are_drawn_by_stands_in_no_record(tmp_path: Path) -> None:
    made = predicted()
    seed = bootstrap._seed(made)
    (kept,) = kept_resamples(made, scores(made))
    assert seed not in kept.model_dump_json()
    assert kept.design not in seed
    known = {"shots", "unit", "units", "count", "step", "design", "values", "by_draw"}
    assert kept.model_dump().keys() == known


# Damage ---------------------------------------------------------------------------------------


@pytest.fixture
def kept_record(tmp_path: Path) -> Path:
    made = predicted(draws=3)
    values = dict(made.values)
    resamples = kept_resamples(made, scores(made))
    read_once(
        tmp_path, "one", "toy/a", 0, rows=600, values=values, protocol="knn", resamples=resamples
    )
    return next(tmp_path.rglob("*.json"))


def text(values: Sequence[int]) -> str:
    return base64.b64encode(np.array(values, dtype=np.int8).tobytes()).decode()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("values", "no base64!", "cannot be read"),
        ("values", text([1, 2, 3]), "3 and 3 x 64"),
        ("values", text([127] * 2000), "scores beyond"),
        ("by_draw", "", "2000 and 1 x 0"),
        ("by_draw", text([1, 2]), "cannot be read"),
        ("count", 1, "resamples.0.count.*greater than 1"),
        ("units", 601, "601 units"),
        ("units", 0, "resamples.0.units.*greater than 0"),
        ("step", 0.0, "resamples.0.step.*greater than 0"),
        ("step", -0.5, "resamples.0.step.*greater than 0"),
        ("step", float("nan"), "resamples.0.step.*greater than 0"),
        ("step", 1e7, "steps of 10000000.0"),
        ("design", "../weights", "design '../weights'"),
        ("shots", 10, "resamples of the shots"),
        ("shots", None, "resamples of the shots"),
        ("unit", 3, "unit"),
        ("unit", "chapter", "unit"),
        ("more", 3, "'resamples.0.more' is unknown to this version; read it with the one that"),
    ],
)
def test_damaged_resamples_are_refused_in_one_line(
    kept_record: Path, capsys: pytest.CaptureFixture[str], field: str, value: object, said: str
) -> None:
    whole = json.loads(kept_record.read_text())["resamples"]
    assert estimate_of(read_record(kept_record), 5) is not None
    if said == "scores beyond":
        whole[0]["step"] = 0.01
    change(kept_record, resamples=[{**whole[0], field: value}])
    with pytest.raises(BrokenRecord, match=said):
        read_record(kept_record)
    assert main(["leaderboard", str(kept_record.parent), "--out", "board"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(kept_record) in line


@pytest.mark.parametrize("version", [1, 2, 3, 4, 6])
def test_a_record_of_another_schema_is_refused(kept_record: Path, version: int) -> None:
    with pytest.raises(BrokenRecord, match="schema_version"):
        read_record(change(kept_record, schema_version=version))


# By documents, and from end to end ------------------------------------------------------------


def talks(folder: Path, **without: str) -> Path:
    """A task whose rows are of talks of three, as a file describes it, and its rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 60), ("test", 45)):
        rows = [
            {
                "text": f"{split} {WORDS[place % 40]} {WORDS[place * 7 % 40]}",
                "label": ["down", "up"][place * place % 7 % 2],
                "talk": f"{split} {place // 3}",
            }
            for place in range(count)
        ]
        gone = without.get(split)
        lines = (json.dumps({k: v for k, v in row.items() if k != gone}) for row in rows)
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    text = "text: text\nlabel: label\nlabels: [down, up]\nfiles: .\ndocument: talk\n"
    (folder / "talks.yaml").write_text(text)
    return folder / "talks.yaml"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("models")
    base = model(root / "base")
    labels = ["down", "up"]
    return [str(model(root / f"m{n}", labels, seed=n, near=base)) for n in (1, 2)]


def evaluated(models: Sequence[str], task: Path, out: Path, *flags: str) -> dict[str, Record]:
    for one in models:
        asked = ["evaluate", "--model", one, "--tasks", str(task), "--output-path", str(out)]
        few = ["--shots", "1,3", "--draws", "2", "--protocols", "current,knn", "--device", "cpu"]
        assert main([*asked, *few, *flags]) == 0
    return {f"{one.model} {one.protocol}": one for one in read_records([out])}


@pytest.mark.usefixtures("as_found")
def test_resamples_are_kept_by_every_evaluation(tmp_path: Path, models: list[str]) -> None:
    """Also by batches and threads of other sizes, and whatever the order of the models."""
    task = talks(tmp_path / "data")
    found = evaluated(models, task, tmp_path / "records")
    assert len(found) == 4
    for path in sorted((tmp_path / "records").rglob("*.json")):
        record = read_record(path)
        for shots, kept in zip(record.shots, record.resamples, strict=True):
            assert (kept.shots, kept.unit, kept.units) == (shots, "document", 15)
        # what lies beside it gives the very same
        beside = read_predictions(record, path.with_suffix(".parquet"))
        assert kept_resamples(beside, record.scores) == record.resamples
    assert len({kept.design for one in found.values() for kept in one.resamples}) == 1
    anew = (tmp_path / "records").rename(tmp_path / "before")
    torch.set_num_threads(2)
    other = evaluated(models[::-1], task, tmp_path / "records", "--batch-size", "3")
    torch.set_num_threads(1)
    assert {k: r.resamples for k, r in other.items()} == {k: r.resamples for k, r in found.items()}
    assert anew.exists()
    run = harness.Run(
        model=models[0],
        tasks=(str(task),),
        protocols=(harness.Choice("current"),),
        output=str(tmp_path / "here"),
        device="cpu",
    )
    (once,) = harness.evaluate(run)
    assert once.resamples == found[f"{once.model} current"].resamples


@pytest.mark.usefixtures("as_found")
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_column_of_documents_that_is_not_there_is_named(
    split: str, tmp_path: Path, models: list[str]
) -> None:
    task = talks(tmp_path / "data", **{split: "talk"})
    asked = ["evaluate", "--model", models[0], "--tasks", str(task)]
    refused([*asked, "--output-path", tmp_path / "records"], BadData, "talk")
    assert not (tmp_path / "records").exists()


@pytest.mark.parametrize("name", ["ner/conll2003", "ner/conll2003_plo"])
def test_documents_of_conll_2003_are_told_by_its_files(name: str, tmp_path: Path) -> None:
    """By a column of a table, too; most copies have none, and sentences are resampled."""
    start, sentence = "-DOCSTART- O\n\n", {"tokens": ["a"], "ner_tags": [0]}
    for suffix, text, documents in (
        ("txt", f"{start}a O\n\nb B-PER\n\n{start}c O\n", [0, 0, 1]),
        ("jsonl", "\n".join([json.dumps({**sentence, "document_id": 7})] * 2), [0, 0]),
        ("jsonl", json.dumps(sentence), None),
    ):
        place = tmp_path / suffix / "ner" / "conll2003"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"test.{suffix}").write_text(text)
        read = load_rows(harness.TASKS[name], "test", folder=tmp_path / suffix)
        assert (None if read.documents is None else read.documents.tolist()) == documents


def test_a_copy_without_dialogues_has_rows(tmp_path: Path) -> None:
    """Of a published set, as other programs hand it on; the record says that rows were drawn."""
    place = tmp_path / "emotion" / "dailydialog"
    place.mkdir(parents=True)
    row = {"text": "no", **dict.fromkeys(harness.TASKS["emotion/dailydialog"].labels, 0)}
    for dialogues, units in (({}, None), ({"dialogue_id": "a"}, [0, 0])):
        lines = [json.dumps({**row, **dialogues})] * 2
        (place / "test.jsonl").write_text("\n".join(lines))
        read = load_rows(harness.TASKS["emotion/dailydialog"], "test", folder=tmp_path)
        assert (None if read.documents is None else read.documents.tolist()) == units
    (place / "test.jsonl").unlink()  # and a table is told by the columns that it must have
    (place / "test.csv").write_text(
        "\n".join(";".join(map(str, line)) for line in (row, row.values()))
    )
    assert len(load_rows(harness.TASKS["emotion/dailydialog"], "test", folder=tmp_path)) == 1


@pytest.mark.usefixtures("as_found")
def test_documents_change_no_row(tmp_path: Path) -> None:
    """What rows without a document are of is each its own; the digest is that of the rows."""
    task, _ = parse_task(str(talks(tmp_path / "data")))
    rows = load_rows(task, "test")
    assert rows.documents is not None
    assert rows.documents.tolist() == [place // 3 for place in range(45)]
    plain = load_rows(replace(task, document=""), "test")
    assert plain.documents is None
    assert plain.digest == rows.digest
    file = tmp_path / "data" / "test.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    some = [{**line, "talk": line["talk"] if n < 6 else None} for n, line in enumerate(lines)]
    file.write_text("\n".join(map(json.dumps, some)))
    alone = load_rows(task, "test").documents
    assert alone is not None
    assert alone.tolist() == [0, 0, 0, 1, 1, 1, *range(2, 41)]
    file.write_text("\n".join(json.dumps({**line, "talk": None}) for line in lines))
    assert load_rows(task, "test").documents is None


@pytest.mark.usefixtures("as_found")
def test_documents_of_a_file_of_words_are_what_it_says(tmp_path: Path) -> None:
    """-DOCSTART- begins one."""
    sentence = "word1 O\nword2 B-X\n\n"
    start = "-DOCSTART- -X- O O\n\n"
    (tmp_path / "train.conll").write_text(sentence * 3)
    (tmp_path / "test.conll").write_text(start + sentence * 2 + start + sentence)
    text = "kind: tagging\ntext: words\nlabel: tags\nfiles: .\ndocument: document\n"
    (tmp_path / "names.yaml").write_text(text)
    task, _ = parse_task(str(tmp_path / "names.yaml"))
    documents = load_rows(task, "test").documents
    assert documents is not None
    assert documents.tolist() == [0, 0, 1]
    with mistake(BadData, "document"):
        load_rows(task, "train90")


def test_dialogues_and_articles_are_taken_whole() -> None:
    """Of the built-in tasks, these say which rows belong together."""
    named = {task.name: task.document for task in harness.TASKS.values() if task.document}
    news = dict.fromkeys(("ner/conll2003", "ner/conll2003_plo"), "document_id")
    assert named == {"emotion/dailydialog": "dialogue_id", **news}
