"""`harness evaluate`: the rows it reads, the records it leaves, and what it never does twice."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import harness
from harness import TASKS, Choice, Run
from harness.checkpoints.align import aligned_base
from harness.checkpoints.open import open_checkpoint
from harness.cli import main
from harness.data.metrics import score
from harness.data.rows import load_rows, take
from harness.data.shots import draw, scattered, selected
from harness.errors import BadOption, HarnessError, MissingScores
from harness.evaluation import run
from harness.evaluation.bootstrap import intervals, kept_resamples
from harness.evaluation.predictions import read_predictions
from harness.evaluation.records import Record, identity, predictions_of, read_record
from harness.evaluation.resamples import estimates_of
from harness.evaluation.task_split import protocols_of, task_split
from harness.files import cache_dir
from harness.labels import as_config
from harness.passes import features as encode
from harness.reporting.grid import best_single
from harness.reporting.lines import lines_of
from harness.reporting.names import BEST_SINGLE
from harness.weights import digest
from tests.conftest import WORDS, model, registries_kept
from tests.mistakes import names, refused
from tests.resampled import read_records
from tests.test_boards import evaluation_table

ENTAILMENT = ["entailment", "not_entailment"]
SHUFFLED = ["contradiction", "entailment", "neutral"]
PAIR = "glue/rte@validation"


@dataclass(frozen=True)
class Room:
    """Models and data of three tasks, a merge within one and a merge across all of them."""

    root: Path
    base: Path
    rte: tuple[Path, Path]
    mnli: Path
    stsb: Path
    same: Path
    across: Path
    data: Path


def sentence(random: np.random.Generator, near: int) -> str:
    """Three to nine words, the first of which tells the label."""
    return " ".join([WORDS[near], *random.choice(WORDS, size=random.integers(2, 9))])


def table(columns: Sequence[str], labels: Sequence[float]) -> pa.Table:
    random = np.random.default_rng(len(labels))
    texts = {column: [sentence(random, int(5 * label)) for label in labels] for column in columns}
    return pa.table({**texts, "label": list(labels)})


@pytest.fixture(scope="session")
def room(tmp_path_factory: pytest.TempPathFactory) -> Room:
    root = tmp_path_factory.mktemp("room")
    pair, data = ("sentence1", "sentence2"), root / "data" / "glue"
    for name, split, columns, labels in (
        ("rte", "train", pair, [i % 2 for i in range(40)]),
        ("rte", "validation", pair, [i % 2 for i in range(17)]),
        ("mnli", "train", ("premise", "hypothesis"), [i % 3 for i in range(60)]),
        ("mnli", "validation_matched", ("premise", "hypothesis"), [i % 3 for i in range(20)]),
        ("stsb", "train", pair, [i % 50 / 10 for i in range(100)]),
        ("stsb", "validation", pair, [i % 50 / 10 for i in range(0, 100, 7)]),
    ):
        (data / name).mkdir(parents=True, exist_ok=True)
        found = table(columns, labels)
        if name == "rte":
            lines = "".join(json.dumps(row) + "\n" for row in found.to_pylist())
            (data / name / f"{split}.jsonl").write_text(lines)
        else:
            pq.write_table(found, data / name / f"{split}.parquet")
    base = model(root / "base")
    rte = (
        model(root / "rte0", ENTAILMENT, seed=1, near=base),
        model(root / "rte1", ENTAILMENT, seed=2, near=base),
    )
    mnli = model(root / "mnli", SHUFFLED, seed=3, near=base)
    stsb = model(root / "stsb", [], seed=4, near=base)
    made = Room(root, base, rte, mnli, stsb, root / "same", root / "across", root / "data")
    command = ["merge", "--base", str(base), "--merger", "task_arithmetic"]
    one = [*map(str, rte), "--tasks", "glue/rte", "--out", str(made.same)]
    each = [*map(str, (rte[0], mnli, stsb)), "--tasks", "glue/rte,glue/mnli,glue/stsb"]
    assert main([*command, *one]) == 0
    assert main([*command, *each, "--out", str(made.across)]) == 0
    return made


class Evaluate:
    """`harness evaluate` on the data of the room; records go to `out`."""

    def __init__(self, room: Room, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.out, self._room, self._capsys = out, room, capsys

    def __call__(self, folder: Path, *flags: str) -> tuple[str, str]:
        """Standard output and standard error."""
        self._capsys.readouterr()
        found = main(self._command(folder, *flags))
        printed = self._capsys.readouterr()
        assert found == 0, printed.err
        return printed.out, printed.err

    def refused(self, folder: Path, *flags: str, naming: str) -> None:
        """One line that names these, and nothing else."""
        before = self.out.exists(), self.files()
        refused(self._command(folder, *flags), HarnessError, naming)
        assert (self.out.exists(), self.files()) == before

    def _command(self, folder: Path, *flags: str) -> list[str]:
        places = ["--data-dir", str(self._room.data), "--output-path", str(self.out)]
        return ["evaluate", "--model", str(folder), *places, *flags]

    def records(self, folder: Path, *flags: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self(folder, "--json", *flags)[0])
        return found

    def files(self) -> dict[str, bytes]:
        return {
            path.relative_to(self.out).as_posix(): path.read_bytes()
            for path in sorted(self.out.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def evaluate(room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Evaluate:
    return Evaluate(room, tmp_path / "records", capsys)


@pytest.fixture
def no_forward(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called, a forward pass is an error."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a forward pass")

    return lambda: monkeypatch.setattr(encode, "one_pass", refuse)


def roles(records: Sequence[dict[str, Any]], task: str, protocol: str) -> list[str]:
    return [r["role"] for r in records if (r["task"], r["protocol"]) == (task, protocol)]


def test_scores_do_not_depend_on_what_became_of_the_cache(
    room: Room, evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damaged entries are made again; where none can be kept that is said once."""
    flags = ("--shots", "2", "--draws", "2")
    first = evaluate.records(room.same, *flags)
    for place in (40, -5):
        for path in cache_dir("features").iterdir():
            content = bytearray(path.read_bytes())
            content[place] ^= 1
            path.write_bytes(content)
        shutil.rmtree(evaluate.out)
        assert evaluate.records(room.same, *flags) == first
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "file"))
    shutil.rmtree(evaluate.out)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        out, err = evaluate(room.same, "--json", *flags)
    assert json.loads(out) == first
    assert sum("warning" in line for line in err.splitlines()) == 1


def test_too_few_rows_of_a_class_are_all_taken(
    room: Room, evaluate: Evaluate, tmp_path: Path
) -> None:
    """And of a class without any, none: every protocol copes, and the warning is given once."""
    counts = {"entailment": 7, "neutral": 2}
    labels = [name for name, count in counts.items() for _ in range(count)]
    place = tmp_path / "data" / "glue" / "mnli"
    place.mkdir(parents=True)
    classes = ["entailment", "neutral", "contradiction"]
    train = table(("premise", "hypothesis"), [classes.index(label) for label in labels])
    pq.write_table(train, place / "train.parquet")
    shutil.copy(room.data / "glue" / "mnli" / "validation_matched.parquet", place)
    flags = ("--tasks", "glue/mnli", "--data-dir", str(tmp_path / "data"), "--json")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        out, err = evaluate(room.across, *flags, "--shots", "1,5", "--draws", "2")
    (said,) = [line for line in err.splitlines() if "warning" in line]
    names(said, "glue/mnli@train90 5 shots: 0 contradiction")
    found = json.loads(out)
    assert {r["protocol"] for r in found} == {"current", "knn", "ft-classifier"}
    for path in sorted(evaluate.out.rglob("knn-*.json")):
        kept = pq.read_table(path.with_suffix(".parquet")).to_pydict()
        predicted = {value for name, column in kept.items() if name != "label" for value in column}
        assert classes.index("contradiction") not in predicted


# Rows and records -----------------------------------------------------------------------------


def test_a_same_task_merge_is_read_with_all_its_references(room: Room, evaluate: Evaluate) -> None:
    found = evaluate.records(room.same)
    assert {r["task"] for r in found} == {PAIR}
    assert roles(found, PAIR, "current") == ["merged", "base", "expert", "expert", "ensemble"]
    for protocol in ("knn", "ft-classifier"):
        assert roles(found, PAIR, protocol) == ["merged", "base", "expert", "expert"]
    merged = next(r for r in found if r["role"] == "merged")
    assert merged["digest"] == digest(open_checkpoint(room.same).weights)
    assert merged["method"] == "task_arithmetic"
    assert merged["head"] == "own"
    assert merged["base"]["source"] == str(room.base)
    assert [expert["source"] for expert in merged["experts"]] == list(map(str, room.rte))


def test_a_merge_across_tasks_is_read_under_each_kept_head(room: Room, evaluate: Evaluate) -> None:
    found = evaluate.records(room.across)
    tasks = [PAIR, "glue/mnli@validation", "glue/stsb@validation"]
    assert list(dict.fromkeys(r["task"] for r in found)) == tasks
    for task in tasks:
        for protocol in ("current", "knn", "ft-classifier"):
            assert roles(found, task, protocol) == ["merged", "base", "expert"]
    assert {r["head"] for r in found if r["role"] == "merged"} == {"kept"}
    assert {r["model"] for r in found if r["role"] == "expert"} == {"rte0", "mnli", "stsb"}


def test_records_lie_where_their_content_says(room: Room, evaluate: Evaluate) -> None:
    found = evaluate.records(room.same)
    expected = {
        f"{r['model']}/{r['task']}/{r['protocol']}-{identity(r)[:12]}{suffix}"
        for r in found
        for suffix in (".json", ".parquet")
    }
    assert set(evaluate.files()) == expected
    assert {r["model"] for r in found} == {"same", "base", "rte0", "rte1", "ensemble"}


def test_json_is_what_was_written_without_resamples(room: Room, evaluate: Evaluate) -> None:
    found = evaluate.records(room.same, "--shots", "1", "--draws", "2")
    written = [record.model_dump(mode="json") for record in read_records([evaluate.out])]
    for one in written:
        assert len(one.pop("resamples")[0]["values"]) > 1000
        assert (one.pop("loss_resamples") is None) == (one["protocol"] != "current")
    assert Record.model_validate(found[0]).resamples == ()
    by_place = {(r["digest"], r["protocol"]): r for r in written}
    assert {(r["digest"], r["protocol"]): r for r in found} == by_place


def test_a_table_and_a_verdict_are_printed(room: Room, evaluate: Evaluate) -> None:
    out, err = evaluate(room.across, "--shots", "1,2", "--draws", "3")
    lines = out.splitlines()
    for row in ("expert of the task", "base (base)", "across (task_arithmetic)"):
        assert any(line.startswith(row) for line in lines), row
    assert "±" in out
    assert re.search(r"^across \(task_arithmetic\) .*\d \[\d+\.\d, \d+\.\d\]", out, re.M)
    assert any(line.startswith("best constant") for line in lines)
    assert "[ ]: 95 % " in out
    assert lines[-1].startswith("Verdict: ")
    assert "±: " in out
    assert "Shots shown: 2; also in the records: 1." in lines
    assert f"  harness leaderboard {evaluate.out} --out board" in lines
    assert f"records in {evaluate.out}/" in out
    assert "rte@validation" not in out
    assert re.search(r" (\d+)/\1 ", err)  # one bar, and it is full


def test_a_command_to_copy_is_quoted(room: Room, evaluate: Evaluate) -> None:
    evaluate.out = evaluate.out / "my records"
    out, _ = evaluate(room.rte[0], "--tasks", "glue/rte", "--protocols", "current")
    assert f"  harness leaderboard '{evaluate.out}' --out board" in out


def test_a_record_says_which_rows_an_adaptation_saw(room: Room, evaluate: Evaluate) -> None:
    found = evaluate.records(room.same, "--shots", "1,3", "--draws", "2", "--seed", "5")
    by_protocol = {r["protocol"]: r for r in found if r["role"] == "merged"}
    assert by_protocol["current"]["adaptation"] is None
    assert len(by_protocol["current"]["scores"]) == 1
    for protocol, read in (("knn", True), ("ft-classifier", False)):
        record = by_protocol[protocol]
        assert record["adaptation"]["split"] == "glue/rte@train90"
        assert ("were read" in record["adaptation"]["labels"]) == read
        drawn = sorted((s["shots"], s["seed"]) for s in record["scores"])
        assert drawn == [(1, 5), (1, 6), (3, 5), (3, 6)]
    tuned = {"learning_rate": 5e-4, "epochs": 5, "variant": "clean", "rows": "shots", "o_weight": 1}
    tuned["kl"] = "forward"
    assert by_protocol["ft-classifier"]["options"] == tuned
    assert len(by_protocol["ft-classifier"]["teachers"]) == 2


@pytest.mark.parametrize("merged", ["same", "across"])
def test_scores_can_be_made_again_from_the_predictions(
    merged: str, room: Room, evaluate: Evaluate
) -> None:
    evaluate(getattr(room, merged), "--shots", "1,2", "--draws", "2")
    for path in sorted(evaluate.out.rglob("*.json")):
        record = read_record(path)
        task = TASKS[record.task.partition("@")[0]]
        kept = pq.read_table(path.with_suffix(".parquet")).to_pydict()
        labels = np.array(kept.pop("label"), dtype=float)
        assert len(labels) == record.rows
        assert len(kept) == len(record.scores)
        for one in record.scores:
            name = "prediction" if one.shots is None else f"shots={one.shots},seed={one.seed}"
            again = score(task, np.array(kept[name], dtype=float), labels)
            assert (again.value, dict(again.parts)) == (one.value, one.parts)


def test_intervals_and_the_constant_prediction_are_of_the_stored_predictions(
    room: Room, evaluate: Evaluate
) -> None:
    evaluate(room.across, "--shots", "1,2", "--draws", "2")
    constants = {PAIR: 9 / 17, "glue/mnli@validation": 7 / 20, "glue/stsb@validation": 0}
    for record in read_records([evaluate.out]):
        predicted = read_predictions(record, predictions_of(record, evaluate.out))
        assert kept_resamples(predicted, record.scores) == record.resamples
        assert record.intervals == intervals(
            record.metrics, estimates_of(record.resamples, record.scores, record.metrics)
        )
        assert [one.shots for one in record.intervals] == record.shots
        for one in record.intervals:
            assert one.low <= np.mean(record.values(one.shots)) <= one.high
        assert record.majority is not None
        assert record.majority.value == pytest.approx(constants[record.task])
        assert record.majority.parts.keys() == {*record.metrics}


def test_two_models_are_compared_by_what_evaluations_left(
    room: Room, evaluate: Evaluate, no_forward: Callable[[], None], capsys: Any
) -> None:
    evaluate(room.same, "--shots", "2", "--draws", "2")
    no_forward()
    for protocol, test in (("current", "paired t test"), ("knn", "Needs more draws: 2 draws")):
        command = ["compare", "same", "base", "--protocol", protocol]
        assert main([*command, "--records", str(evaluate.out)]) == 0
        out = capsys.readouterr().out
        assert test in out
        assert out.splitlines()[-1].startswith("Verdict: ")
    (evaluate.out / "same" / PAIR).rename(evaluate.out / "moved")
    assert main([*command, "--records", str(evaluate.out)]) == 0, "wherever the files lie"
    assert capsys.readouterr().out == out


@pytest.mark.parametrize("left", ["nothing", "a part", "another's"])
def test_predictions_that_lack_are_made_anew(left: str, room: Room, evaluate: Evaluate) -> None:
    """And records stay as they are."""
    flags = ("--shots", "5", "--draws", "2")
    evaluate(room.same, *flags)
    before = evaluate.files()
    paths = sorted(evaluate.out.rglob("*.parquet"))
    other = next(p for p in paths if "base" in p.parts and "knn" in p.name).read_bytes()
    for path in paths:
        if left == "nothing":
            path.unlink()
        else:
            path.write_bytes(b"PAR1" if left == "a part" else other)
    evaluate(room.same, *flags)
    assert evaluate.files() == before


def test_predictions_that_are_others_here_are_not_taken_for_those_of_the_record(
    room: Room, evaluate: Evaluate
) -> None:
    """As where a record came from a machine that predicts otherwise: one line says so."""
    flags = ("--shots", "5", "--draws", "2", "--protocols", "current,ft-classifier")
    evaluate(room.same, *flags)
    path = next((evaluate.out / "same" / PAIR).glob("current-*.json"))
    record = json.loads(path.read_text())
    record["scores"][0]["value"] = record["scores"][0]["parts"]["accuracy"] = 9 / 17
    path.write_text(json.dumps({**record, "predictions": None}))
    path.with_suffix(".parquet").unlink()
    before = evaluate.files()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        out, err = evaluate(room.same, *flags)
    assert evaluate.files() == before
    names(" ".join(err.split()), "0.4706 0.5294 --output-path")
    assert "Verdict: " in out


def test_a_draw_can_be_made_again_from_the_record_alone(room: Room, evaluate: Evaluate) -> None:
    """The rows of every draw are in it, in the order in which fewer shots take the first."""
    records = evaluate.records(room.same, "--shots", "1,3", "--draws", "2", "--seed", "5")
    record = next(r for r in records if (r["protocol"], r["role"]) == ("knn", "merged"))
    name, split = record["adaptation"]["split"].split("@")
    rows = load_rows(TASKS[name], split, folder=room.data)
    drawn = {int(seed): groups for seed, groups in record["adaptation"]["drawn"].items()}
    pool, draws = selected(rows, drawn, (1, 3))
    assert (pool, draws) == draw(rows, (1, 3), (5, 6))
    assert record["settings"]["pool"] == take(rows, pool).digest
    for one in draws:
        for label, group in enumerate(one.rows):
            units = [pool[place] for place in group]
            assert units == drawn[one.seed][label][: one.shots]
            assert {int(rows.labels[unit]) for unit in units} == {label}


def test_a_draw_that_labels_do_not_choose(room: Room, evaluate: Evaluate) -> None:
    """`--unstratified`, through the command line: said, read back, beside what is stratified."""
    flags = ("--shots", "1,3", "--draws", "2", "--seed", "5")
    usual = evaluate.records(room.same, *flags)
    before = evaluate.files()
    records = evaluate.records(room.same, *flags, "--unstratified")
    assert evaluate.files().items() >= before.items()
    assert [r for r in records if not r["adaptation"]] == [r for r in usual if not r["adaptation"]]
    saw = {"knn": "were read", "ft-classifier": "were not read"}
    adapted = [r for r in records if r["adaptation"]]
    assert {r["adaptation"]["labels"] for r in adapted} == {*saw.values()}
    for record in adapted:
        assert record["settings"]["stratified"] is False
        assert record["adaptation"]["labels"] == saw[record["protocol"]]
        assert not record["adaptation"]["transductive"]
    assert sum(",stratified=False" in name for name in evaluate.files()) == 2 * len(adapted)
    record = next(r for r in adapted if (r["protocol"], r["role"]) == ("knn", "merged"))
    name, split = record["adaptation"]["split"].split("@")
    rows = load_rows(TASKS[name], split, folder=room.data)
    orders = {int(seed): order for seed, (order,) in record["adaptation"]["drawn"].items()}
    assert {len(order) for order in orders.values()} == {3 * len(TASKS[name].labels)}
    pool, draws = scattered(rows, orders, (1, 3))
    assert (pool, draws) == draw(rows, (1, 3), (5, 6), stratified=False)
    assert record["settings"]["pool"] == take(rows, pool).digest
    text, _ = evaluate(room.same, *flags, "--unstratified")
    assert "ft-classifier, 3 shots: adapted to rows without their labels" in text
    assert "knn, 3 shots: fitted to rows drawn without stratification, and to their labels" in text


def test_an_expert_with_its_labels_in_another_order_is_read_by_name(
    room: Room, evaluate: Evaluate, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    sorted_ = tmp_path / "sorted"
    shutil.copytree(room.mnli, sorted_)
    names = ["entailment", "neutral", "contradiction"]
    order = [SHUFFLED.index(name) for name in names]
    tensors = load_file(sorted_ / "model.safetensors")
    for name in ("classifier.weight", "classifier.bias"):
        tensors[name] = tensors[name][torch.tensor(order)].contiguous()
    save_file(tensors, sorted_ / "model.safetensors")
    config = json.loads((sorted_ / "config.json").read_text())
    config |= as_config(names)
    (sorted_ / "config.json").write_text(json.dumps(config))
    flags = ("--tasks", "glue/mnli", "--protocols", "current,knn", "--shots", "2")
    first, second = evaluate.records(room.mnli, *flags), evaluate.records(sorted_, *flags)
    assert [r["scores"] for r in first] == [r["scores"] for r in second]


# Nothing twice --------------------------------------------------------------------------------


def test_a_task_named_twice_is_one_task(room: Room, evaluate: Evaluate) -> None:
    once = evaluate.records(room.same, "--tasks", "glue/rte")
    twice = evaluate.records(room.same, "--tasks", f"glue/rte,{PAIR}")
    assert once == twice


@pytest.mark.parametrize("merged", ["same", "across"])
def test_a_second_run_does_no_forward_pass(
    merged: str, room: Room, evaluate: Evaluate, no_forward: Callable[[], None]
) -> None:
    flags = ("--shots", "1,2", "--draws", "2")
    first = evaluate.records(getattr(room, merged), *flags)
    files = evaluate.files()
    no_forward()
    assert evaluate.records(getattr(room, merged), *flags) == first
    shutil.rmtree(cache_dir("features"))
    assert evaluate.records(getattr(room, merged), *flags) == first
    assert evaluate.files() == files


def test_features_are_kept_for_other_protocols_and_other_folders(
    room: Room, evaluate: Evaluate, no_forward: Callable[[], None], tmp_path: Path
) -> None:
    first = evaluate.records(room.same, "--shots", "2", "--draws", "2")
    no_forward()
    evaluate.records(
        room.same, "--shots", "2", "--draws", "2", "--protocols", "ft-classifier:epochs=1"
    )
    evaluate.out = tmp_path / "elsewhere"
    assert evaluate.records(room.same, "--shots", "2", "--draws", "2") == first


def test_every_row_is_encoded_once_by_each_model(
    room: Room, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []
    one_pass = encode.one_pass

    def counted(checkpoint: Any, rows: Any, readouts: Any, **values: Any) -> Any:
        seen.append((digest(checkpoint.weights), rows.digest))
        return one_pass(checkpoint, rows, readouts, **values)

    monkeypatch.setattr(encode, "one_pass", counted)
    evaluate.records(room.same)
    assert len(seen) == len(set(seen)) == 4 * 2


def test_what_is_told_of_progress_is_all_rows_of_the_run_once(room: Room, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    asked = run.Run(model=str(room.same), data_dir=str(room.data), output=str(tmp_path / "records"))
    harness.evaluate(asked, progress=lambda *step: told.append(step))
    part = load_rows(TASKS["glue/rte"], "validation", folder=room.data)
    pool = len(
        {
            unit
            for draw in task_split(asked, PAIR, protocols_of(asked)).pools[False, 1].draws
            for rows in draw.rows
            for unit in rows
        }
    )
    total = 4 * (len(part) + pool)  # the merge, its base and two experts; the ensemble is theirs
    assert {in_all for _, _, in_all in told} == {total}
    assert sum(done for _, done, _ in told) == total
    assert f"same · {PAIR}" in {what for what, _, _ in told}
    told.clear()
    harness.evaluate(asked, progress=lambda *step: told.append(step))
    assert not told


@pytest.mark.parametrize(
    "flags",
    [
        ("--shots", "1"),
        ("--shots", "1,3"),
        ("--draws", "3"),
        ("--seed", "1"),
        ("--limit", "9"),
        ("--train-limit", "30"),
        ("--max-length", "8"),
        ("--protocols", "ft-classifier:epochs=1"),
    ],
)
@pytest.mark.filterwarnings("ignore:.* are cut off at ")
def test_other_settings_never_overwrite(
    flags: tuple[str, ...], room: Room, evaluate: Evaluate
) -> None:
    usual = ("--shots", "1,2", "--draws", "2", "--protocols", "ft-classifier")
    evaluate.records(room.same, *usual)
    before = evaluate.files()
    evaluate.records(room.same, *usual, *flags)
    after = evaluate.files()
    assert {name: after[name] for name in before} == before
    assert len(after) == 2 * len(before)


@pytest.mark.usefixtures("as_found")
def test_a_protocol_of_a_plug_in_whose_code_is_another_is_evaluated_anew(
    room: Room, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it scored before is another record."""
    file = tmp_path / "plug" / "always.py"
    file.parent.mkdir()
    text = """import numpy
from harness import Predictions, protocol

@protocol("always", adapts="nothing")
def always(encoded):
    return [Predictions(numpy.full(len(encoded.test.x), float(CLASS)))]
"""
    command = ["evaluate", "--model", str(room.same), "--protocols", "always", "--plugins"]
    command += [str(file.parent), "--json", "--output-path", str(tmp_path / "records")]
    command += ["--device", "cpu", "--data-dir", str(room.data)]
    scores = []
    for label in (0, 1, 1):
        file.write_text(text.replace("CLASS", str(label)))
        with registries_kept():  # as a process of its own
            assert main(command) == 0
        records = json.loads(capsys.readouterr().out)
        scores.append(next(one for one in records if one["role"] == "merged")["scores"][0]["value"])
    assert scores[0] != scores[1] == scores[2]
    merged = [*(tmp_path / "records").rglob("*always*.json")]
    assert len({path.name for path in merged if path.parts[-4] == room.same.name}) == 2


def test_a_record_of_a_merge_that_was_edited_is_told(room: Room, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(room.same, tmp_path / "edited"))
    said = json.loads((folder / "merge.json").read_text())
    (folder / "merge.json").write_text(json.dumps({**said, "method": "best"}))
    with pytest.warns(UserWarning, match=r"edited/merge.json was edited since it was written"):
        harness.evaluate(
            Run(
                model=str(folder),
                protocols=(Choice("current"),),
                data_dir=str(room.data),
                output=str(tmp_path / "records"),
            )
        )


def test_a_limit_of_training_rows_is_told(room: Room, evaluate: Evaluate, tmp_path: Path) -> None:
    """In the table, on a board, as a column of the frame, and where two of them cannot be mixed."""
    asked = ("--protocols", "knn", "--shots", "1,all", "--draws", "2", "--train-limit", "20")
    evaluate.records(room.same, *asked)
    out = tmp_path / "board"
    frame = harness.read_records(evaluate.out)
    assert {*frame["train_limit"]} == {20.0}
    harness.leaderboard(evaluate.out, out=out)
    text = (out / "index.html").read_text()
    assert "dapted to 20 training rows at most" in text or "itted to 20 training rows" in text
    assert "all rows and" not in text
    evaluate.records(room.same, *asked[:-1], "25")
    place = ["--protocols", "knn"]
    for command in (
        ["leaderboard", evaluate.out, "--out", out],
        ["plot", "shots", evaluate.out, "--out", tmp_path / "fig", *place],
        ["compare", "same", "rte0", "--records", evaluate.out, *place],
    ):
        said = "--train-limit 20 --train-limit 25"
        refused(command, HarnessError, said)
        assert main([*map(str, command), "--train-limit", "25"]) == 0
        refused([*command, "--train-limit", "30"], MissingScores, "train-limit 30 20")
        refused([*command, "--train-limit", "x"], BadOption, "--train-limit x")
    assert "25 training rows" in (out / "index.html").read_text()
    assert "20 training rows" not in (out / "index.html").read_text()


def test_records_of_two_numbers_of_draws_are_chosen_by_one(
    room: Room, evaluate: Evaluate, tmp_path: Path
) -> None:
    """What adapts to no row stays: the same folder has both, and what they are measured by."""
    for draws in ("2", "3"):
        evaluate.records(
            room.same, "--protocols", "current,knn,fresh-head", "--shots", "1,2", "--draws", draws
        )
    out = tmp_path / "board"
    for command in (
        ["leaderboard", evaluate.out, "--out", out],
        ["export", evaluate.out, "--format", "model-index", "--out", tmp_path / "cards"],
        ["plot", "shots", evaluate.out, "--out", tmp_path / "fig", "--protocols", "knn"],
        ["compare", "same", "rte0", "--records", evaluate.out, "--protocol", "knn"],
    ):
        if command[0] != "export":  # a card has a result for each
            refused(command, HarnessError, "draws --draws 2 --draws 3")
        assert main([*map(str, command), "--draws", "3"]) == 0, command
        refused([*command, "--draws", "7"], MissingScores, "draws 7 2 3")
    frame = pandas.read_parquet(out / "board.parquet")
    assert {*frame[frame.protocol == "knn"].draws} == {3}
    assert {*frame.protocol} == {"current", "knn", "fresh-head"}


def test_records_of_two_lengths_are_chosen_by_one(
    room: Room, evaluate: Evaluate, tmp_path: Path
) -> None:
    """They were a dead end: no flag chose, and both were of one model."""
    for length in ("20", "21"):
        evaluate.records(room.same, "--protocols", "current", "--max-length", length)
    out = tmp_path / "board"
    for command in (
        ["leaderboard", evaluate.out, "--out", out],
        ["compare", "same", "rte0", "--records", evaluate.out],
    ):
        refused(command, HarnessError, "max_length --max-length 20 --max-length 21")
        assert main([*map(str, command), "--max-length", "21"]) == 0
        refused([*command, "--max-length", "7"], MissingScores, "max-length 7 20 21")
    frame = pq.read_table(out / "board.parquet").to_pandas()
    assert len(frame) == len(frame.drop_duplicates(["row", "task"]))


def test_settings_that_a_protocol_does_not_read_change_nothing(
    room: Room, evaluate: Evaluate
) -> None:
    evaluate.records(room.same, "--protocols", "current")
    before = evaluate.files()
    evaluate.records(room.same, "--protocols", "current", "--shots", "1", "--draws", "2")
    assert evaluate.files() == before


@pytest.mark.parametrize("merged", ["same", "across"])
def test_the_batch_size_changes_no_prediction(
    merged: str, room: Room, evaluate: Evaluate, tmp_path: Path
) -> None:
    found = []
    for size in ("1", "7", "64"):
        evaluate.out = tmp_path / size
        shutil.rmtree(cache_dir("features"), ignore_errors=True)
        flags = ("--shots", "2", "--draws", "2", "--batch-size", size)
        evaluate.records(getattr(room, merged), *flags)
        files = sorted(evaluate.out.rglob("*.parquet"))
        tables = {path.relative_to(evaluate.out): pq.read_table(path) for path in files}
        found.append(
            {place: np.array([*table.to_pydict().values()]) for place, table in tables.items()}
        )
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for place, predicted in other.items():
            np.testing.assert_allclose(predicted, found[0][place], rtol=0, atol=1e-4)


def test_a_changed_data_set_is_scored_anew(room: Room, evaluate: Evaluate, tmp_path: Path) -> None:
    flags = ("--protocols", "current", "--data-dir")
    shutil.copytree(room.data, tmp_path / "data")
    first = evaluate.records(room.same, *flags, str(tmp_path / "data"))
    file = tmp_path / "data" / "glue" / "rte" / "validation.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    flipped = "".join(json.dumps({**row, "label": 1 - row["label"]}) + "\n" for row in rows)
    file.write_text(flipped)
    second = evaluate.records(room.same, *flags, str(tmp_path / "data"))
    for mine, yours in zip(first, second, strict=True):
        assert mine["scores"][0]["value"] == pytest.approx(1 - yours["scores"][0]["value"])
        assert mine["dataset"]["digest"] != yours["dataset"]["digest"]


# What may stand for --model -------------------------------------------------------------------


@pytest.mark.filterwarnings("default:no expert of")
def test_a_plain_classifier_needs_only_its_task(room: Room, evaluate: Evaluate) -> None:
    _, err = evaluate(room.rte[0], "--tasks", "glue/rte")
    assert "no expert of glue/rte is known, so nothing is evaluated under ft-classifier" in err
    found = evaluate.records(room.rte[0], "--tasks", "glue/rte")
    assert [(r["role"], r["protocol"]) for r in found] == [("merged", "current"), ("merged", "knn")]
    assert found[0]["method"] == "given"
    assert found[0]["base"] is None
    assert found[0]["experts"] == []


def test_a_protocol_that_needs_a_teacher_says_so_when_asked(room: Room, evaluate: Evaluate) -> None:
    flags = ("--tasks", "glue/rte", "--protocols", "current,ft-classifier")
    evaluate.refused(room.rte[0], *flags, naming="ft-classifier glue/rte --experts")


def test_a_plain_classifier_with_experts_has_references(room: Room, evaluate: Evaluate) -> None:
    given = ("--experts", ",".join(map(str, room.rte)), "--base", str(room.base))
    found = evaluate.records(room.same, *given)
    plain = room.root / "plain"
    shutil.copytree(room.same, plain, ignore=shutil.ignore_patterns("merge.json"))
    again = evaluate.records(plain, "--tasks", "glue/rte", *given)
    assert [r["scores"] for r in again] == [r["scores"] for r in found]
    assert {r["method"] for r in again if r["role"] == "merged"} == {"given"}


def test_a_mergekit_folder_is_called_by_its_method(
    room: Room, evaluate: Evaluate, tmp_path: Path
) -> None:
    kit = tmp_path / "kit"
    shutil.copytree(room.same, kit, ignore=shutil.ignore_patterns("merge.json"))
    (kit / "mergekit_config.yml").write_text("merge_method: linear\nmodels: []\n")
    experts = ("--experts", ",".join(map(str, room.rte)), "--tasks", "glue/rte")
    found = evaluate.records(kit, *experts)
    assert {r["method"] for r in found if r["role"] == "merged"} == {"mergekit:linear"}
    assert roles(found, PAIR, "ft-classifier") == ["merged", "expert", "expert"]


@pytest.mark.filterwarnings("ignore:the pooler of")
def test_an_encoder_without_a_head_is_read_under_that_of_its_expert(
    room: Room, evaluate: Evaluate
) -> None:
    flags = ("--experts", str(room.rte[0]), "--tasks", "glue/rte")
    found = evaluate.records(room.base, *flags)
    assert {(r["role"], r["head"]) for r in found} == {("merged", "expert"), ("expert", "own")}
    control = evaluate.records(room.rte[0], *flags, "--base", str(room.base))
    base = [r["scores"] for r in control if r["role"] == "base"]
    assert [r["scores"] for r in found if r["role"] == "merged"] == base


def test_a_pooler_that_the_base_lacks_is_part_of_each_head(
    room: Room, evaluate: Evaluate, tmp_path: Path
) -> None:
    """An average of other software has the mean of poolers that no head was trained on."""
    from safetensors.torch import load_file, save_file

    base, average = (Path(shutil.copytree(room.base, tmp_path / name)) for name in ("b", "average"))
    experts = room.rte[0], room.mnli
    states = [load_file(expert / "model.safetensors") for expert in experts]
    mean = {n: (states[0][n] + states[1][n]) / 2 for n in states[0] if n.startswith("bert.")}
    save_file(mean, average / "model.safetensors", metadata={"format": "pt"})
    bare = load_file(base / "model.safetensors")
    bare = {name: tensor for name, tensor in bare.items() if not name.startswith("pooler.")}
    save_file(bare, base / "model.safetensors", metadata={"format": "pt"})
    given = ["--base", str(base), "--tasks", "glue/rte,glue/mnli"]
    merge = ["merge", *map(str, experts), *given, "--merger", "average"]
    assert main([*merge, "--out", str(tmp_path / "ours")]) == 0
    given += ["--experts", ",".join(map(str, experts)), "--protocols", "current"]
    ours = evaluate(tmp_path / "ours", "--json", "--protocols", "current")
    theirs = evaluate(average, "--json", *given)
    kept, read = (
        {r["task"]: (r["digest"], r["scores"]) for r in json.loads(out) if r["role"] == "merged"}
        for out, _ in (ours, theirs)
    )
    assert read == kept
    assert "pooler" not in theirs[1]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        _, err = evaluate(average, *given[2:])
    told = [line for line in err.splitlines() if "pooler" in line]
    for line, expert in zip(told, experts, strict=True):
        names(line, average, expert, "--base")


def test_generic_labels_are_taken_by_index_only_when_told(
    room: Room, evaluate: Evaluate, tmp_path: Path
) -> None:
    nameless = model(tmp_path / "nameless", ["LABEL_0", "LABEL_1"], seed=1, near=room.base)
    flags = ("--tasks", "glue/rte", "--protocols", "current")
    evaluate.refused(nameless, *flags, naming="LABEL_0, LABEL_1 --labels by-index")
    found = evaluate.records(nameless, *flags, "--labels", "by-index")
    assert {r["labels"] for r in found} == {"by-index"}
    named = evaluate.records(room.rte[0], *flags)
    assert found[0]["scores"] == named[0]["scores"]


def test_protocols_are_asked_with_their_options(room: Room, evaluate: Evaluate) -> None:
    asked = "current,ft-classifier:epochs=2,learning_rate=1e-3,knn"
    found = evaluate.records(room.same, "--shots", "2", "--protocols", asked)
    merged = [r for r in found if r["role"] == "merged"]
    assert [r["protocol"] for r in merged] == ["current", "ft-classifier", "knn"]
    usual = {"variant": "clean", "rows": "shots", "o_weight": 1, "kl": "forward"}
    assert merged[1]["options"] == {"epochs": 2, "learning_rate": 1e-3, **usual}
    out, _ = evaluate(room.same, "--shots", "2", "--protocols", asked)
    assert "ft-classifier:epochs=2,learning_rate=0.001" in out


def test_a_split_is_part_of_the_task(room: Room, evaluate: Evaluate) -> None:
    found = evaluate.records(room.same, "--tasks", "glue/rte@heldout10")
    assert {r["task"] for r in found} == {"glue/rte@heldout10"}
    assert {r["rows"] for r in found} == {4}


def test_underscores_and_the_environment_are_accepted(
    room: Room, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HARNESS_DATA_DIR", str(room.data))
    monkeypatch.chdir(tmp_path)
    command = ["evaluate", "--model", str(room.same), "--protocols", "current", "--batch_size=4"]
    assert main([*command, "--output_path", "here"]) == 0
    assert (tmp_path / "here" / "same").is_dir()


# Experts that are no longer what was merged ---------------------------------------------------


@pytest.fixture
def moved(room: Room, tmp_path: Path) -> Path:
    """Merge and experts in another place; the old one is not there any more."""
    old, new = tmp_path / "old", tmp_path / "new"
    for name in ("base", "rte0", "rte1"):
        shutil.copytree(room.root / name, old / name)
    experts = [str(old / name) for name in ("rte0", "rte1")]
    asked = ["--base", str(old / "base"), "--tasks", "glue/rte", "--out", str(old / "merged")]
    assert main(["merge", *experts, *asked]) == 0
    old.rename(new)
    return new


def test_a_merge_that_moves_with_its_experts_finds_them(moved: Path, evaluate: Evaluate) -> None:
    found = evaluate.records(moved / "merged", "--protocols", "current")
    assert [r["role"] for r in found] == ["merged", "base", "expert", "expert", "ensemble"]


def test_a_merge_starts_its_paths_from_its_own_folder(
    moved: Path, room: Room, evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is called so where one happens to be; a link on the way is followed."""
    elsewhere = tmp_path / "elsewhere"
    for name in ("rte0", "rte1", "base"):
        model(elsewhere / name, ENTAILMENT if name != "base" else None, seed=50)
    monkeypatch.chdir(moved)
    asked = ["rte0", "rte1", "--base", "base", "--tasks", "glue/rte", "--out", "merged"]
    assert main(["merge", *asked, "--force"]) == 0
    monkeypatch.chdir(elsewhere)
    found = evaluate.records(Path("../new/merged"), "--protocols", "current")
    sources = [one["source"] for one in next(r for r in found if r["role"] == "merged")["experts"]]
    assert sources == ["../new/rte0", "../new/rte1"]
    Path("link").symlink_to("../new/merged")
    assert evaluate.records(Path("link"), "--protocols", "current")
    shutil.rmtree(moved / "rte1")
    evaluate.refused(Path("../new/merged"), naming="rte1")


def test_a_merge_behind_a_link_finds_what_lies_beside_either(
    moved: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    """The folder was moved to another disk, and a link stands where it was, beside its experts."""
    disk = tmp_path / "disk" / "deep"
    disk.mkdir(parents=True)
    (moved / "merged").rename(disk / "merged")
    (moved / "merged").symlink_to(disk / "merged")
    found = evaluate.records(moved / "merged", "--protocols", "current")
    assert [r["role"] for r in found] == ["merged", "base", "expert", "expert", "ensemble"]
    evaluate.refused(disk / "merged", naming="base --base")


def test_an_expert_that_is_gone_is_named(moved: Path, evaluate: Evaluate) -> None:
    shutil.rmtree(moved / "rte1")
    evaluate.refused(moved / "merged", naming="rte1 --experts")


def test_an_expert_that_has_changed_is_named(
    moved: Path, room: Room, evaluate: Evaluate, tmp_path: Path
) -> None:
    shutil.rmtree(moved / "rte1")
    model(moved / "rte1", ENTAILMENT, seed=77, near=room.base)
    evaluate.refused(moved / "merged", naming="rte1")
    given = ",".join(map(str, room.rte))
    assert evaluate.records(moved / "merged", "--experts", given, "--protocols", "current")


def test_a_task_given_by_its_place_is_evaluated(
    room: Room, evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "petshop.py").write_text(
        "from harness import Task\n"
        "pets = Task(name='pets', kind='classification', text=('sentence1',), label='label',\n"
        "            labels=('entailment', 'not_entailment'), metrics=('accuracy',),\n"
        "            splits={'test': 'validation'}, reported='test')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copytree(room.data / "glue" / "rte", tmp_path / "data" / "pets")
    places = ("--data-dir", str(tmp_path / "data"))
    for kept in ("_values", "_origins"):
        monkeypatch.setattr(TASKS, kept, dict(getattr(TASKS, kept)))
    asked = ("--tasks", "petshop:pets", "--protocols", "current")
    found = evaluate.records(room.rte[0], *asked, *places)
    assert {r["task"] for r in found} == {"pets@test"}


def test_the_defaults_of_a_run_are_those_of_the_command_line(
    room: Room, evaluate: Evaluate
) -> None:
    evaluate(room.same, "--protocols", "knn")
    usual = run.DEFAULTS
    before = evaluate.files()
    shots = ",".join(map(str, usual.shots))
    flags = ("--shots", shots, "--draws", str(usual.draws), "--seed", str(usual.seed))
    evaluate(room.same, "--protocols", "knn", *flags)
    assert evaluate.files() == before
    assert all("/knn-" in name for name in before)  # nothing unusual was asked


# References beside the model ------------------------------------------------------------------


@pytest.fixture(scope="session")
def mtl(room: Room) -> Path:
    """A model of two of the three tasks."""
    out = room.root / "mtl"
    data = ["--data-dir", str(room.data), "--tasks", "glue/rte,glue/mnli"]
    few = ["--learning-rate", "1e-3", "--epochs", "1", "--max-length", "24"]
    assert main(["finetune", "--base", str(room.base), *data, *few, "--out", str(out)]) == 0
    return out


def test_a_reference_is_read_on_the_tasks_it_has_a_head_for(
    room: Room, mtl: Path, evaluate: Evaluate
) -> None:
    few = ("--shots", "2", "--draws", "2")
    found = evaluate.records(room.across, *few, "--references", str(mtl))
    others = [r for r in found if r["role"] != "reference"]
    assert others == evaluate.records(room.across, *few)
    references = [r for r in found if r["role"] == "reference"]
    assert {(r["model"], r["method"], r["head"]) for r in references} == {
        ("mtl", "multi-task", "kept")
    }
    assert {r["task"] for r in references} == {PAIR, "glue/mnli@validation"}
    for task in (PAIR, "glue/mnli@validation"):
        for protocol in ("current", "knn", "ft-classifier"):
            assert roles(found, task, protocol) == ["merged", "base", "expert", "reference"]
    taught = {r["task"]: r["teachers"] for r in found if r["role"] == "merged" and r["teachers"]}
    for record in references:
        if record["protocol"] == "ft-classifier":
            assert record["teachers"] == taught[record["task"]]


def test_a_reference_is_a_row_of_table_and_board(
    room: Room, mtl: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    few = ("--shots", "2", "--draws", "2")
    out, _ = evaluate(room.across, *few, "--references", str(mtl))
    assert sum(line.startswith("mtl (multi-task) ") for line in out.splitlines()) == 1
    assert main(["leaderboard", str(evaluate.out), "--out", str(tmp_path / "board")]) == 0
    assert "| mtl (multi-task) " in (tmp_path / "board" / "board.md").read_text()


def test_other_merges_experts_and_classifiers_are_references_too(
    room: Room, mtl: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    plain = model(tmp_path / "plain", ENTAILMENT, seed=9, near=room.base)
    few = ("--protocols", "current")
    given = ",".join(map(str, (mtl, plain, room.across)))
    found = evaluate.records(room.same, *few, "--references", given)
    references = [r for r in found if r["role"] == "reference"]
    assert [(r["model"], r["method"]) for r in references] == [
        ("mtl", "multi-task"),
        ("plain", "given"),
        ("across", "task_arithmetic"),
    ]
    alone = evaluate.records(plain, *few, "--tasks", "glue/rte")
    assert alone[0]["scores"] == references[1]["scores"]
    kept = evaluate.records(room.across, *few, "--tasks", "glue/rte")
    assert kept[0]["scores"] == references[2]["scores"]


def test_a_multi_task_model_is_evaluated_against_experts(
    room: Room, mtl: Path, evaluate: Evaluate
) -> None:
    experts = ",".join(map(str, (room.rte[0], room.mnli)))
    flags = ("--tasks", "glue/rte,glue/mnli", "--experts", experts, "--base", str(room.base))
    found = evaluate.records(mtl, "--shots", "2", "--draws", "2", *flags)
    for protocol in ("current", "knn", "ft-classifier"):
        assert roles(found, PAIR, protocol) == ["reference", "base", "expert"]


def test_alone_and_beside_experts_it_leaves_records_apart(
    room: Room, mtl: Path, evaluate: Evaluate
) -> None:
    """A head is tuned to its own outputs in the one case, to those of the experts in the other."""
    few = ("--shots", "2", "--draws", "2", "--tasks", "glue/rte")
    alone = evaluate.records(mtl, *few)
    before = evaluate.files()
    evaluate.records(room.same, *few, "--references", str(mtl))
    assert {name: text for name, text in evaluate.files().items() if name in before} == before
    assert evaluate.records(mtl, *few) == alone


def test_an_expert_alone_teaches_itself_as_it_does_beside_its_merge(
    room: Room, evaluate: Evaluate, tmp_path: Path
) -> None:
    expert = tmp_path / "rte0"
    shutil.copytree(room.rte[0], expert)
    (expert / "expert.json").write_text('{"tasks": ["glue/rte"]}')
    few = ("--shots", "2", "--draws", "2")
    beside = [r for r in evaluate.records(room.same, *few) if r["model"] == "rte0"]
    assert evaluate.records(expert, *few) == beside


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("base", "base head glue/rte"),
        ("mnli", "mnli head glue/rte"),
        ("rte0", "rte0 run already"),
        ("same", "same run already"),
        ("copy/same", "same (task_arithmetic) rename"),
        ("nowhere", "nowhere folder"),
    ],
)
def test_a_reference_that_is_none_is_named(
    reference: str, words: str, room: Room, evaluate: Evaluate, tmp_path: Path
) -> None:
    shutil.copytree(room.same, tmp_path / "copy" / "same")
    place = tmp_path / reference if "copy" in reference else room.root / reference
    evaluate.refused(room.same, "--references", str(place), naming=words)


def test_a_multi_task_model_given_as_an_expert_is_told_its_place(
    room: Room, mtl: Path, evaluate: Evaluate
) -> None:
    flags = ("--tasks", "glue/rte,glue/mnli", "--experts", str(mtl))
    evaluate.refused(room.across, *flags, naming="3 1")
    plain = room.root / "plain-across"
    shutil.copytree(room.across, plain, ignore=shutil.ignore_patterns("merge.json"))
    evaluate.refused(plain, *flags, naming="mtl 2 --references")


# The best single expert -----------------------------------------------------------------------


def relabelled(room: Room, folder: Path) -> Path:
    """RTE where the second expert is always right on train, the first on validation."""
    shutil.copytree(room.data, folder)
    for split, expert in (("train", room.rte[1]), ("validation", room.rte[0])):
        rows = load_rows(TASKS["glue/rte"], split, folder=room.data)
        checkpoint = open_checkpoint(expert)
        logits = encode.forward(checkpoint, rows, max_length=128)[1]
        texts = zip(rows.texts, logits.argmax(axis=1), strict=True)
        lines = [
            json.dumps({"sentence1": one, "sentence2": two, "label": int(label)})
            for (one, two), label in texts
        ]
        (folder / "glue" / "rte" / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


def test_the_best_single_is_chosen_on_held_out_rows_and_not_on_the_reported_ones(
    room: Room, evaluate: Evaluate, tmp_path: Path
) -> None:
    data = relabelled(room, tmp_path / "data")
    flags = ("--protocols", "current", "--data-dir", str(data), "--best-single")
    evaluate(room.same, *flags)
    found = read_records([evaluate.out])
    experts = {r.model: r for r in found if r.role == "expert" and r.task == PAIR}
    held = {r.model: r for r in found if r.task == "glue/rte@heldout10"}
    value = {name: record.scores[0].value for name, record in experts.items()}
    assert held["rte1"].scores[0].value == 1 > held["rte0"].scores[0].value
    assert value["rte0"] == 1 > value["rte1"]
    assert best_single([*lines_of(("", one) for one in found)]) == {PAIR: experts["rte1"].digest}
    row = next(x for x in evaluation_table(found).splitlines() if x.startswith(BEST_SINGLE))
    assert row.split()[-1] == f"{100 * value['rte1']:.1f}"
    assert "heldout10@" not in evaluation_table(found)


def test_the_best_single_costs_a_reading_of_the_held_out_rows_alone(
    room: Room, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--shots", "2", "--draws", "2")
    first = evaluate.records(room.same, *flags)
    seen: list[tuple[str, int]] = []
    one_pass = encode.one_pass

    def counted(checkpoint: Any, rows: Any, readouts: Any, **values: Any) -> Any:
        seen.append((rows.split, len(rows)))
        return one_pass(checkpoint, rows, readouts, **values)

    monkeypatch.setattr(encode, "one_pass", counted)
    found = evaluate.records(room.same, *flags, "--best-single")
    assert seen == [("heldout10", 4)] * 2
    assert found[: len(first)] == first
    assert [(r["role"], r["task"], r["protocol"]) for r in found[len(first) :]] == [
        ("expert", "glue/rte@heldout10", "current")
    ] * 2
    shutil.rmtree(cache_dir("features"))
    assert evaluate.records(room.same, *flags, "--best-single") == found
    assert len(seen) == 2, "what was chosen is read back"


def test_the_best_single_has_a_row_under_every_protocol_and_says_what_max_is(
    room: Room, evaluate: Evaluate
) -> None:
    out, _ = evaluate(room.same, "--shots", "2", "--draws", "2", "--best-single")
    lines = out.splitlines()
    row = next(line for line in lines if line.startswith(BEST_SINGLE))
    assert any(line.split()[1:] == row.split()[3:] for line in lines if line.startswith("rte"))
    assert any("experts, max: chosen on the scored rows, an oracle." in line for line in lines)
    assert lines[-1].startswith("Verdict: ")


def test_the_best_single_is_left_out_where_it_was_not_asked_for(
    room: Room, evaluate: Evaluate
) -> None:
    out, _ = evaluate(room.same, "--protocols", "current")
    assert BEST_SINGLE not in out


@pytest.mark.parametrize(
    ("merged", "tasks", "words"),
    [
        ("across", "glue/rte", "task --best-single"),
        ("same", "glue/rte@heldout10", "glue/rte@heldout10 split"),
        ("same", "glue/rte@train", "heldout10 glue/rte@train"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(
    merged: str, tasks: str, words: str, room: Room, evaluate: Evaluate
) -> None:
    flags = ("--tasks", tasks, "--protocols", "current", "--best-single")
    evaluate.refused(getattr(room, merged), *flags, naming=words)


# Experts on one another's tasks -----------------------------------------------------------------

QNLI = "glue/qnli@validation"


@pytest.fixture(scope="session")
def shared(room: Room) -> Path:
    """A merge of experts of two tasks with the same labels, heads and all."""
    folder = room.data / "glue" / "qnli"
    folder.mkdir()
    for split, count in (("train", 50), ("validation", 19)):
        found = table(("question", "sentence"), [i % 2 for i in range(count)])
        pq.write_table(found, folder / f"{split}.parquet")
    qnli = model(room.root / "qnli", ENTAILMENT, seed=5, near=room.base)
    out = room.root / "shared"
    experts = [str(room.rte[0]), str(qnli), "--base", str(room.base)]
    uneven = ["--merger", "linear:weights=3:1", "--heads", "merge"]
    flags = ["--tasks", "glue/rte,glue/qnli", *uneven, "--out", str(out)]
    assert main(["merge", *experts, *flags]) == 0
    return out


def accuracy(folder: Path, task: str, data: Path) -> float:
    """Of an expert on a task, by a forward pass of its own."""
    name, _, split = task.partition("@")
    rows = load_rows(TASKS[name], split, folder=data)
    logits = encode.forward(open_checkpoint(folder), rows, max_length=128)[1]
    return float((logits.argmax(axis=1) == rows.labels).mean())


def test_singles_are_every_expert_on_every_task_of_its_labels(
    room: Room, shared: Path, evaluate: Evaluate
) -> None:
    found = evaluate.records(shared, "--singles", "--best-single")
    for task, own, other in ((PAIR, "rte0", "qnli"), (QNLI, "qnli", "rte0")):
        rows = ["merged", "base", "expert", "single"]
        heads = {r["role"]: r["heads_of"] for r in found if r["task"] == task}
        assert heads["base"] == [digest(open_checkpoint(room.root / own).weights)]
        assert heads["merged"] == heads["expert"] == []
        assert roles(found, task, "current") == [*rows, "ensemble"]
        assert roles(found, task, "ft-classifier") == rows
        mine = [r for r in found if r["task"] == task]
        read = {r["role"]: r for r in mine if r["protocol"] == "current"}
        assert (read["expert"]["model"], read["single"]["model"]) == (own, other)
        value = accuracy(room.root / other, task, room.data)
        assert read["single"]["scores"][0]["value"] == value
        taught = {r["role"]: r["teachers"] for r in mine if r["protocol"] == "ft-classifier"}
        assert taught["single"] == taught["expert"] == [read["expert"]["digest"]]
    held = [(r["role"], r["model"]) for r in found if r["task"].endswith("@heldout10")]
    assert held == [("expert", "rte0"), ("single", "qnli"), ("expert", "qnli"), ("single", "rte0")]


def test_singles_have_rows_of_their_own(room: Room, shared: Path, evaluate: Evaluate) -> None:
    flags = ("--singles", "--best-single", "--protocols", "current")
    out, _ = evaluate(shared, *flags)
    rows = {line.split("  ")[0]: line.split()[-3:] for line in out.splitlines()}

    def printed(values: Sequence[float]) -> list[str]:
        return [f"{100 * value:.1f}" for value in (*values, np.mean(values))]

    def read(split: str) -> dict[str, list[float]]:
        tasks = [f"glue/{task}@{split}" for task in ("rte", "qnli")]
        return {
            name: [accuracy(room.root / name, task, room.data) for task in tasks]
            for name in ("rte0", "qnli")
        }

    both, held = read("validation"), read("heldout10")
    for name, values in both.items():
        assert rows[name] == printed(values)
    assert rows["average single"] == printed(np.mean(list(both.values()), axis=0))
    assert rows["expert of the task"] == printed([both["rte0"][0], both["qnli"][1]])
    best = max(held, key=lambda name: sum(held[name]))
    assert rows[BEST_SINGLE] == rows[best]


def test_experts_stay_at_home_unless_asked_for(shared: Path, evaluate: Evaluate) -> None:
    found = evaluate.records(shared, "--protocols", "current")
    assert {r["role"] for r in found} == {"merged", "base", "expert"}
    more = evaluate.records(shared, "--protocols", "current", "--singles")
    assert [r for r in more if r["role"] in ("merged", "base", "expert")] == found


def test_experts_of_one_name_are_told_apart_by_where_they_lie(
    room: Room, shared: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    shutil.copytree(room.root / "qnli", tmp_path / "rte0")
    experts = f"{room.rte[0]},{tmp_path / 'rte0'}"
    found = evaluate.records(shared, "--singles", "--experts", experts, "--protocols", "current")
    names = {r["model"] for r in found if r["role"] in ("expert", "single")}
    assert names == {f"{room.root.name}/rte0", f"{tmp_path.name}/rte0"}


@pytest.mark.parametrize("flags", [(), ("--singles",)])
def test_out_of_domain_one_base_is_the_control_of_every_merge(
    flags: tuple[str, ...], room: Room, shared: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    """Of a task that is nobody's: under the mean of all heads, whatever became of them."""
    folder = room.data / "glue" / "wnli"
    folder.mkdir(exist_ok=True)
    labels = [i % 2 for i in range(19)]
    pq.write_table(table(("sentence1", "sentence2"), labels), folder / "validation.parquet")
    out, qnli = tmp_path / "even", room.root / "qnli"
    experts = [str(room.rte[0]), str(qnli), "--base", str(room.base), "--heads", "merge"]
    tasks = ["--tasks", "glue/rte,glue/qnli", "--merger", "average"]
    assert main(["merge", *experts, *tasks, "--out", str(out)]) == 0
    read = ("--tasks", "glue/wnli", "--protocols", "current", *flags)
    bases = [
        r for one in (shared, out) for r in evaluate.records(one, *read) if r["role"] == "base"
    ]
    assert {r["digest"] for r in bases} == {bases[0]["digest"]}
    heads = [digest(open_checkpoint(one).weights) for one in (room.rte[0], qnli)]
    assert [r["heads_of"] for r in bases] == [heads] * 2
    first, second = (open_checkpoint(one) for one in (room.rte[0], qnli))
    means = {n: (first.weights[n] + second.weights[n]) / 2 for n in first.weights}
    body = aligned_base(open_checkpoint(room.base), first).weights
    control = replace(first, weights={**means, **{n: body[n] for n in body}})
    rows = load_rows(TASKS["glue/wnli"], "validation", folder=room.data)
    logits = encode.forward(control, rows, max_length=128)[1]
    mine, theirs = np.array(first.labels), np.array(rows.task.labels)
    right = mine[logits.argmax(axis=1)] == theirs[rows.labels.astype(int)]
    expected = float(right.mean())
    assert [r["scores"][0]["value"] for r in bases] == [expected] * 2


def test_an_ensemble_of_all_stands_beside_that_of_the_task(
    room: Room, shared: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    out = tmp_path / "three"
    qnli = room.root / "qnli"
    tasks = ["--tasks", "glue/rte,glue/rte,glue/qnli", "--heads", "merge"]
    assert main(["merge", *map(str, (*room.rte, qnli)), *tasks, "--out", str(out)]) == 0
    evaluate.records(out, "--protocols", "current")
    found = evaluate.records(out, "--protocols", "current", "--singles")
    named = [(r["task"], r["method"]) for r in found if r["role"] == "ensemble"]
    assert named == [(PAIR, "ensemble"), (PAIR, "ensemble of all"), (QNLI, "ensemble of all")]
    table = evaluation_table(read_records([evaluate.out]))
    rows = {line.split("  ")[0] for line in table.splitlines()}
    assert {"logit ensemble", "logit ensemble of all"} <= rows


def test_singles_where_no_labels_are_shared_are_refused(room: Room, evaluate: Evaluate) -> None:
    evaluate.refused(room.across, "--singles", "--protocols", "current", naming="--singles")


def test_a_record_says_how_its_model_was_merged(
    room: Room, evaluate: Evaluate, tmp_path: Path
) -> None:
    """Its stages with all options, apart, and which option held-out rows chose; no other row."""
    flags = ["--base", str(room.base), "--tasks", "glue/rte", "--data-dir", str(room.data)]
    flags += ["--premerge", "dare:drop_rate=0.5", "--merger", "task_arithmetic", "--seed", "3"]
    flags += ["--tune", "scale=0.5:1:0.5", "--out", str(tmp_path / "tuned")]
    assert main(["merge", *map(str, room.rte), *flags]) == 0
    found = evaluate.records(tmp_path / "tuned", "--protocols", "current")
    for record in found:
        assert record["family"] == "bert"
        assert record["role"] == "merged" or record["recipe"] is None
    (recipe,) = (record["recipe"] for record in found if record["role"] == "merged")
    assert [one["name"] for one in recipe["premerge"]] == ["dare"]
    assert recipe["premerge"][0]["options"]["drop_rate"] == 0.5
    assert recipe["merger"]["name"] == "task_arithmetic"
    assert recipe["merger"]["options"]["scale"] == recipe["tuned"]["scale"]
    assert (recipe["tuned_on"], recipe["seed"]) == (["glue/rte@heldout10"], 3)
    assert (recipe["postmerge"], recipe["heads"]) == ([], "average")
