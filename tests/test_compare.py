"""`harness compare`: models against one another, from records and stored predictions alone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import binomtest

import harness
from harness import Comparison, Ranking, Task
from harness.cli import main
from harness.data.metrics import score
from harness.errors import BrokenRecord, UnknownName
from harness.evaluation.bootstrap import kept_resamples
from harness.evaluation.predictions import DrawKey, Predicted, read_predictions, write_predictions
from harness.evaluation.records import DrawScore, Record, record_path, write_record
from harness.stats.tests import holm
from harness.types import Array64, KindName
from tests.resampled import read_records
from tests.test_boards import recipe

ONE: DrawKey = (None, None)
TAGS = ("O", "B-PER", "I-PER")


def task(name: str, kind: KindName, *metrics: str, labels: tuple[str, ...] = ("no", "yes")) -> Task:
    return Task(name, kind, ("text",), "label", labels, metrics, {"test": "test"}, "test")


TASKS = {
    "toy/a": task("toy/a", "classification", "accuracy"),
    "toy/b": task("toy/b", "classification", "accuracy", "f1"),
    "toy/c": task("toy/c", "regression", "pearson", "spearman", labels=()),
    "toy/d": task("toy/d", "tagging", "span_f1", labels=TAGS),
    "toy/e": task("toy/e", "multilabel", "macro_f1", labels=("x", "y", "z")),
}


def truth(name: str, rows: int) -> tuple[Array64, Any]:
    """Labels of all units, and how many units each row has."""
    random = np.random.default_rng(len(name) + ord(name[-1]))
    units = np.ones(rows, dtype=np.int64)
    kind = TASKS[name].kind
    if kind == "regression":
        return random.normal(size=rows), units
    if kind == "multilabel":
        return random.integers(2, size=(rows, 3)).astype(float), units
    if kind == "tagging":
        units = random.integers(1, 6, size=rows)
    return random.integers(len(TASKS[name].labels), size=units.sum()).astype(float), units


def spoilt(labels: Array64, known: Task, wrong: float, seed: int) -> Array64:
    """Predictions of which about so many are wrong."""
    random = np.random.default_rng(seed)
    if known.kind == "regression":
        return labels + 4 * wrong * random.normal(size=len(labels))
    other = (labels + 1) % (2 if known.kind == "multilabel" else len(known.labels))
    return np.where(random.random(labels.shape) < wrong, other, labels)


def read_once(
    folder: Path,
    model: str,
    name: str,
    wrong: float,
    *,
    seed: int = 0,
    rows: int = 200,
    protocol: str = "current",
    keys: Sequence[DrawKey] = (ONE,),
    values: Mapping[DrawKey, Array64] | None = None,
    **given: Any,
) -> Record:
    """Write what an evaluation of a model on a task leaves behind."""
    known = TASKS[name]
    labels, units = truth(name, rows)
    if values is None:
        values = {key: spoilt(labels, known, wrong, seed + 10 * i) for i, key in enumerate(keys)}
    made = Predicted(known, f"{name} {rows}", units, labels, dict(values))
    scores = []
    for (shots, drawn), guess in values.items():
        one = score(known, guess, labels, units)
        parts = dict.fromkeys(given["metrics"], one.value) if "metrics" in given else one.parts
        scores.append({"value": one.value, "parts": dict(parts), "shots": shots, "seed": drawn})
    usual = {
        "model": model,
        "role": "merged",
        "method": "ties",
        "digest": model.ljust(32, "0"),
        "task": f"{name}@test",
        "protocol": protocol,
        "options": {},
        "settings": {"limit": None},
        "metrics": known.metrics,
        "rows": rows,
        "scores": scores,
        "predictions": made.content,
        "adaptation": None,
        "dataset": {"digest": made.digest},
        "head": "own",
        "labels": "by-name",
        "base": None,
        "experts": (),
        "teachers": (),
        "versions": {},
    }
    kept = [DrawScore(**one) for one in scores]
    usual["resamples"] = kept_resamples(made, kept)
    known = {**usual, **given}
    if known["role"] == "merged":
        known = {"recipe": recipe(known["method"]), **known}
    record = Record(**known)
    path = record_path(folder, record.model_dump(mode="json"), {})
    write_predictions(path.with_suffix(".parquet"), made)
    write_record(path, record)
    return record


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models on five tasks: good and fair are far apart, fair and poor are not."""
    folder = tmp_path_factory.mktemp("written")
    for seed, (model, wrong) in enumerate({"good": 0.05, "fair": 0.3, "poor": 0.31}.items()):
        for place, name in enumerate(TASKS):
            read_once(folder, model, name, wrong, seed=100 * place + seed)
    return folder


@pytest.fixture
def records(written: Path, tmp_path: Path) -> Path:
    """The records, to be changed."""
    return Path(shutil.copytree(written, tmp_path / "records"))


# Predictions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_predictions_are_read_back(name: str, tmp_path: Path) -> None:
    """With all that their metrics need: neither task nor data is looked up."""
    record = read_once(tmp_path, "m", name, 0.2, protocol="knn", keys=[(1, 0), (1, 1), (5, 0)])
    read = read_predictions(record, next(tmp_path.rglob("*.parquet")))
    known = TASKS[name]
    assert (read.task.kind, read.task.labels, read.task.metrics) == (
        known.kind,
        known.labels,
        known.metrics,
    )
    labels, units = truth(name, 200)
    assert read.units.tolist() == units.tolist()
    again = [score(read.task, values, read.labels, read.units) for values in read.values.values()]
    assert [one.value for one in again] == [one.value for one in record.scores]
    assert read.labels.tolist() == labels.tolist()


def test_rows_without_words_are_rows(tmp_path: Path) -> None:
    """Also at the end, where no word says so."""
    known, labels = TASKS["toy/d"], np.array([1.0, 2.0])
    record = read_once(tmp_path, "m", "toy/d", 0.2, rows=3)
    right = DrawScore(value=1.0, parts={"span_f1": 1.0})
    record = record.model_copy(update={"scores": (right,), "predictions": None})
    path = next(tmp_path.rglob("*.parquet"))
    write_predictions(path, Predicted(known, "", np.array([0, 2, 0]), labels, {ONE: labels}))
    read = read_predictions(record, next(tmp_path.rglob("*.parquet")))
    assert read.units.tolist() == [0, 2, 0]


# Two models -----------------------------------------------------------------------------------


def two(records: Path, *names: str, **given: Any) -> Comparison:
    made = harness.compare([*names], records=records, **given)
    assert isinstance(made, Comparison)
    return made


def test_what_is_told_of_two_models(records: Path) -> None:
    made = two(records, "good", "fair")
    assert made.outcome == "cannot tell", "five tasks are too few for a claim about others"
    assert [one.task for one in made.tasks] == [f"{name}@test" for name in TASKS]
    assert [one.unit for one in made.tasks] == ["row", "row", "row", "sentence", "row"]
    by_model = {(r.model, r.task): r for r in read_records([records])}
    for one in made.tasks:
        a, b = (by_model[name, one.task].scores[0].value for name in ("good", "fair"))
        assert (one.first, one.second, one.difference) == pytest.approx((a, b, a - b), abs=1e-12)
        assert one.within[0] < one.difference < one.within[1]
        assert one.p < 0.05
        assert one.detectable is not None
        assert 0 < one.detectable < one.difference
    assert [one.adjusted for one in made.tasks] == [*holm([one.p for one in made.tasks])]
    assert made.within[0] < made.difference < made.within[1]
    assert (made.outcome_here, made.p) == ("better", pytest.approx(0, abs=1e-9))
    assert made.over_tasks is not None
    assert (made.over_tasks.p, made.over_tasks.within) == (1 / 16, None)
    other = two(records, "fair", "good")
    assert other.outcome_here == "worse"
    assert other.difference == pytest.approx(-made.difference)
    assert other.within == pytest.approx((-made.within[1], -made.within[0]), abs=2e-6)


def test_the_accuracy_of_one_prediction_is_tested_as_by_mcnemar(records: Path) -> None:
    """By the rows that one of the two alone is right on."""
    (one,) = two(records, "fair", "poor", tasks=["toy/a"]).tasks
    tables = [pq.read_table(p) for p in sorted(records.glob("*/toy/a@test/*.parquet"))]
    fair, _, poor = (np.array(table["prediction"]) == np.array(table["label"]) for table in tables)
    only = int((fair & ~poor).sum()), int((poor & ~fair).sum())
    assert one.p == one.adjusted == pytest.approx(binomtest(only[0], sum(only)).pvalue, abs=0.12)
    assert (one.p < 0.05) == (binomtest(only[0], sum(only)).pvalue < 0.05)


def test_no_significant_difference_says_what_it_would_take(records: Path) -> None:
    made = two(records, "fair", "poor")
    assert made.outcome == made.outcome_here == "cannot tell"
    assert "no significant difference between fair and poor: " in made.verdict
    one = two(records, "fair", "poor", tasks=["toy/a@test"])
    assert one.outcome == "cannot tell"
    assert one.needed is not None
    assert one.needed > 200
    assert re.search(r"a test needs about \d+ test units, found 200$", one.verdict)


def test_a_model_and_its_copy_are_equal(records: Path) -> None:
    for place, name in enumerate(TASKS):
        read_once(records, "copy", name, 0.05, seed=100 * place)
    made = two(records, "good", "copy")
    assert {one.p for one in made.tasks} == {1.0}
    assert "no difference to find" in made.verdict
    # of 0 in n rows, other rows may have up to 1 - 0.025 ** (1 / n)
    rows = len(made.tasks) * min(task.units for task in made.tasks)
    assert made.within is not None
    assert made.within[1] == pytest.approx(1 - 0.025 ** (1 / rows), abs=1e-6)
    assert two(records, "good", "copy", margin=5).outcome_here == "practically equal"
    assert two(records, "good", "copy", margin=0.1).outcome_here == "cannot tell"


def test_a_single_row_says_nothing(tmp_path: Path) -> None:
    for model, wrong in (("right", 0.0), ("wrong", 1.0)):
        read_once(tmp_path, model, "toy/a", wrong, rows=1)
    made = two(tmp_path, "right", "wrong")
    assert (made.outcome, made.p, made.within) == ("cannot tell", 1.0, (-2.0, 2.0))
    assert "1 row " in str(made)
    assert made.verdict.endswith("more test units might find such a difference")
    assert "Infinity" not in json.dumps(made.as_json())


def test_equal_within_a_margin_is_a_verdict_of_its_own(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The interval, 15 points wide or so, lies within 20; and not within 2."""
    command = ["compare", "fair", "poor", "--tasks", "toy/a", "--records", str(records)]
    assert main([*command, "--margin", "20"]) == 0
    out = capsys.readouterr().out
    assert "Verdict: fair and poor are practically equal: " in out
    assert "within the margin of 20.0)." in out
    assert two(records, "fair", "poor", tasks=["toy/a"], margin=2).outcome == "cannot tell"
    for odd in ("0", "-1", "nan"):
        assert main([*command, "--margin", odd]) == 2
        assert "margin is" in capsys.readouterr().err
    assert main(["compare", "good", *command[1:], "--margin", "1"]) == 2
    assert "for 3 models" in capsys.readouterr().err


def test_draws_are_compared_in_the_mean(tmp_path: Path) -> None:
    keys: list[DrawKey] = [(shots, seed) for shots in (1, 5) for seed in range(3)]
    keys += [(10, 0), ("all", 0)]
    adapted = {"adaptation": {"split": "t", "rows": 5, "labels": "chose the rows"}}
    for seed, (model, wrong) in enumerate({"good": 0.1, "fair": 0.3, "poor": 0.4}.items()):
        given = {"seed": seed, "protocol": "knn", "keys": keys, **adapted}
        read_once(tmp_path, model, "toy/a", wrong, **given)
    made = two(tmp_path, "good", "fair", protocol="knn")
    assert made.terms.shots == 5
    assert made.outcome == "better"
    assert "95 % CI: over test units and draws, paired" in str(made)
    assert two(tmp_path, "good", "fair", protocol="knn", shots=1).terms.shots == 1
    every = two(tmp_path, "good", "fair", protocol="knn", shots="all")
    assert str(every.terms) == "knn, all shots"
    assert every.outcome == "better"  # nothing is drawn where all rows are taken
    assert "95 % CI: over test units, paired" in str(every)
    once = two(tmp_path, "good", "fair", protocol="knn", shots=10)
    assert once.outcome == "needs more draws"
    assert "good and fair need more draws to be compared: +" in once.verdict
    assert (once.p, once.tasks[0].p, once.tasks[0].adjusted) == (None, None, None)
    assert "Needs more draws: 1 draw of shots cannot test" in str(once)
    ranked = harness.compare(["good", "fair", "poor"], protocol="knn", shots=10, records=tmp_path)
    assert isinstance(ranked, Ranking)
    assert ranked.here == ()
    assert "too few to compare" in ranked.verdict


def test_what_draws_happen_to_say_is_no_difference(tmp_path: Path) -> None:
    """The rows alone would tell; the draws of one model are far apart, and few."""
    good = {0: 0.05, 1: 0.35, 2: 0.3}
    for model, wrong in {"good": good, "fair": dict.fromkeys(good, 0.3)}.items():
        known = TASKS["toy/a"]
        labels, _ = truth("toy/a", 400)
        values = {(5, s): spoilt(labels, known, share, s) for s, share in wrong.items()}
        read_once(tmp_path, model, "toy/a", 0.1, protocol="knn", rows=400, values=values)
    made = two(tmp_path, "good", "fair", protocol="knn")
    assert made.difference > 0.05
    assert made.outcome == "cannot tell"
    assert made.within[0] < 0 < made.within[1]
    assert "test units" in made.verdict


def test_first_is_whose_mean_is_highest(tmp_path: Path) -> None:
    """`b` is far better on one task; on the others `a` is ahead of it by a hair, and of others."""
    for place, (model, wrong) in enumerate({"a": 0.2, "c": 0.202, "d": 0.203, "b": 0.204}.items()):
        for name in ("toy/a", "toy/b", "toy/d"):
            share = 0.0 if (model, name) == ("b", "toy/d") else wrong
            read_once(tmp_path, model, name, share, seed=place, rows=1000)
    made = harness.compare(["a", "b", "c", "d"], records=tmp_path)
    assert isinstance(made, Ranking)
    means = [one.score for one in made.models]
    assert means == sorted(means, reverse=True)
    assert made.models[0].model == made.leaders[0] == "b"
    assert made.models[0].rank > min(one.rank for one in made.models), "by rank it is another"


def test_a_null_comparison_rejects_at_its_level(tmp_path: Path) -> None:
    """Of two models of the same worth, about one in twenty."""
    told = 0
    for seed in range(20):
        folder = tmp_path / str(seed)
        for place, model in enumerate(("one", "other")):
            for name in ("toy/a", "toy/c"):
                apart = 10**6 * place + 100 * seed + ord(name[-1])
                read_once(folder, model, name, 0.2, seed=apart)
        told += two(folder, "one", "other").outcome_here != "cannot tell"
    assert told <= 3


def test_folders_of_records_are_compared(records: Path, tmp_path: Path) -> None:
    """Of the same model before and after, say."""
    places = [str(records / name) for name in ("good", "fair")]
    assert two(tmp_path / "nowhere", *places) == two(records, "good", "fair")
    before = tmp_path / "before" / "good"
    shutil.copytree(records / "good", before)
    same = two(tmp_path / "nowhere", str(before), places[0])
    assert (same.first, same.second) == (str(before), places[0])


# Several models -------------------------------------------------------------------------------


def test_several_models_are_ranked(records: Path) -> None:
    made = harness.compare(["poor", "good", "fair"], records=records)
    assert isinstance(made, Ranking)
    first = made.models[0]
    assert (first.model, first.rank, first.wins) == ("good", 1, 1)
    assert sum(one.rank for one in made.models) == 6
    assert {*made.here[0]} == {"good"}
    assert {*made.here[1]} == {"fair", "poor"}
    assert made.leaders == ("good",)
    assert len(made.groups) == 1
    assert {one.places for one in made.models} == {(1, 3)}
    assert made.verdict == (
        "on these tasks, good is better than all others; 5 tasks are too few for a significant "
        "difference between any two of 3 models on other tasks, expected 7 or more"
    )
    lines = str(made).splitlines()
    letters = {line.split()[0]: line.split()[-3] for line in lines[4:7]}
    assert letters == {"good": "a", "fair": "b", "poor": "b"}
    close = harness.compare(["poor", "fair", "good"], tasks=["toy/a"], records=records)
    assert "on a." in str(close)
    assert "other tasks" not in str(close)


def test_models_differ_on_other_tasks_where_there_are_enough(tmp_path: Path) -> None:
    """Of seven tasks, which are the fewest for three models."""
    for place, (model, wrong) in enumerate({"good": 0.05, "fair": 0.3, "poor": 0.5}.items()):
        for number in range(7):
            name = f"toy/a@split{number}"
            read_once(tmp_path, model, "toy/a", wrong, seed=10 * number + place, task=name)
    made = harness.compare(["poor", "fair", "good"], records=tmp_path)
    assert isinstance(made, Ranking)
    assert made.groups == made.here == (("good",), ("fair",), ("poor",))
    assert [one.places for one in made.models] == [(1, 1), (2, 2), (3, 3)]
    pair = two(tmp_path, "good", "fair")
    assert pair.outcome == "better"
    assert "(95 % CI +" in pair.verdict


# The command ----------------------------------------------------------------------------------


def test_the_command_says_all_of_it(
    records: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["compare", "good", "fair", "--records", str(records)]
    assert main(command) == 0
    out = capsys.readouterr().out
    made = two(records, "good", "fair")
    assert out == f"{made}\n"
    for said in ("paired t test, Holm over the tasks", "80 % power", "200 sentences"):
        assert said in out
    assert "Mean over 5 tasks: +" in out
    assert "Without one of them: +" in out
    verdict = out.splitlines()[-1]
    assert verdict.startswith("Verdict: on these tasks, good is better than fair: +")
    assert verdict.endswith("5 tasks are too few to claim it of other tasks, expected 6 or more.")
    assert main([*command, "--tasks", "toy/a,toy/b@test", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["outcome"], told["outcome_here"]) == ("cannot tell", "better")
    assert [one["task"] for one in told["tasks"]] == ["toy/a@test", "toy/b@test"]
    assert told["over_tasks"]["within"] is None
    monkeypatch.setattr("harness.cli.compare.width", lambda: 80)
    for more in ([], ["poor"]):
        assert main([*command[:3], *more, *command[3:]]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def changed(records: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Another record of the first model on the first task."""
    path = next(records.glob("good/toy/a@test/*.json"))
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


def drop(records: Path) -> None:
    changed(records, lambda said: said.update(resamples=[]))


def redrawn(records: Path) -> None:
    changed(records, lambda said: said["resamples"][0].update(design="0" * 16))


def other(**given: Any) -> Callable[[Path], None]:
    """Another model's record of the first task, the only one that is looked at."""
    return lambda records: (read_once(records, "odd", "toy/a", 0.1, **given), None)[1]


def twice(records: Path) -> None:
    """Two models of one name."""
    for sign in "ab":
        read_once(records, "odd", "toy/a", 0.1, digest=sign * 32)


def elsewhere(records: Path) -> None:
    """Another model of the same name on each of two tasks, as a merge for each would be."""
    for name, source in {"toy/a": "a", "toy/b": "b"}.items():
        experts = [{"source": source, "digest": source * 32}]
        read_once(records, "odd", name, 0.1, experts=experts, digest=name)


GOOD, LIMITED = ["good", "fair"], {"rows": 50, "settings": {"limit": 50, "drawn": True}}
BAD: Mapping[str, tuple[Callable[[Path], None] | None, list[str], str]] = {
    "none": (None, [], "name two"),
    "one": (None, ["good"], "good cannot be compared, expected two or more"),
    "twice": (None, ["good", "good"], "good, good cannot be compared"),
    "unknown": (None, ["good", "great"], "no records of 'great' in"),
    "known": (None, ["good", "great"], "where models are: fair, good, poor; name a model"),
    "protocol": (
        None,
        [*GOOD, "--protocol", "knn"],
        "'good': no record has the protocol 'knn', expected current",
    ),
    "no protocol": (None, [*GOOD, "--protocol", "nearest"], "no protocol is called 'nearest'"),
    "task": (
        None,
        [*GOOD, "--tasks", "toy/z"],
        "'good': no record has the task 'toy/z', expected one of toy/a@test",
    ),
    "shots": (
        None,
        [*GOOD, "--shots", "5"],
        "shots is 5, but models were evaluated with no shots",
    ),
    "limits": (
        other(**LIMITED),
        ["good", "odd"],
        "50 rows (--limit 50) toy/a 50, 'good' with 200",
    ),
    "limit": (
        other(**LIMITED),
        ["odd", "good"],
        "200 rows toy/a 200, 'odd' with 50",
    ),
    "metrics": (other(metrics=("f1",)), ["good", "odd"], "with metrics f1, 'good' with accuracy"),
    "splits": (
        other(task="toy/a@dev"),
        ["good", "odd"],
        "the models share no task under",
    ),
    "split": (
        other(task="toy/a@dev"),
        ["good", "odd", "--tasks", "toy/a"],
        "shots: 'good' on toy/a@test with no shots; 'odd' on toy/a@dev with no shots",
    ),
    "resamples": (drop, GOOD, "keeps no resamples; expected some for each number of shots, [None]"),
    "design": (redrawn, GOOD, "on toy/a@test has scores on other resampled test units"),
    "two": (
        twice,
        ["good", "odd"],
        "'odd' names two models, odd on toy/a@test and odd on toy/a@test, which differ in weights",
    ),
    "elsewhere": (
        elsewhere,
        ["good", "odd"],
        "odd on toy/a@test and odd on toy/b@test, which differ in what they were merged of",
    ),
    "models": (
        None,
        ["good", "."],
        "'.' names two models, fair on toy/a@test and good on toy/a@test, which differ in name",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_compared_is_refused_in_one_line(
    name: str,
    records: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change, arguments, says = BAD[name]
    if change is not None:
        change(records)
    monkeypatch.chdir(records)
    assert main(["compare", *arguments, "--records", str(records)]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.startswith("harness: ")
    assert printed.err.count("\n") == 1
    assert not printed.out


def test_a_task_or_a_folder_says_which_model_of_a_name_is_meant(records: Path) -> None:
    elsewhere(records)
    by_task = harness.compare(["good", "odd"], tasks=["toy/a"], records=records)
    by_folder = harness.compare(["good", str(records / "odd/toy/a@test")], records=records)
    assert [one.terms.tasks for one in (by_task, by_folder)] == [("toy/a@test",)] * 2


def test_a_model_that_saw_the_scored_rows_is_marked(records: Path) -> None:
    read_once(records, "made", "toy/a", 0.1, transductive=True)
    two = harness.compare(["made", "good"], records=records)
    assert str(two).startswith("A: made (transductive)\nB: good\n")
    assert "made (transductive)" in str(harness.compare(["made", "good", "fair"], records=records))
    seen = {"split": "x@test", "rows": 9, "labels": "were not read", "transductive": True}
    for name in ("one", "other"):
        read_once(records, name, "toy/a", 0.1, protocol="surgery", adaptation=seen)
    two = harness.compare(["one", "other"], protocol="surgery", records=records)
    assert str(two).startswith("A: one (transductive)\nB: other (transductive)\n")


def test_the_heads_of_two_tasks_are_no_two_models(records: Path) -> None:
    experts = [{"source": "e", "digest": "e" * 32}]
    for name in ("toy/a", "toy/b"):
        read_once(records, "odd", name, 0.1, experts=experts, digest=name)
    assert len(harness.compare(["good", "odd"], records=records).terms.tasks) == 2


def test_the_task_that_decides_is_named(tmp_path: Path) -> None:
    """A little worse on three, and far better on one, without which it is worse."""
    for place, model in enumerate(("odd", "plain")):
        for name in ("toy/a", "toy/b", "toy/d", "toy/e"):
            share = 0.1 if (model, name) == ("odd", "toy/e") else 0.5 if name == "toy/e" else 0.2
            more = 0.05 if model == "odd" and name != "toy/e" else 0.0
            read_once(tmp_path, model, name, share + more, seed=place)
    made = two(tmp_path, "odd", "plain")
    assert made.over_tasks is not None
    assert made.over_tasks.deciding == ("toy/e@test",)
    assert made.over_tasks.left_out[0] < 0 < made.over_tasks.left_out[1]
    assert "; e decides." in str(made)


def test_errors_are_of_their_kinds(records: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownName):
        harness.compare(["good", "great"], records=records)
    drop(records)
    with pytest.raises(BrokenRecord, match="keeps no resamples"):
        harness.compare(["good", "fair"], records=records)
    with pytest.raises(UnknownName, match="nowhere, which is no folder"):
        harness.compare(["good", "fair"], records=tmp_path / "nowhere")


def test_a_folder_of_a_model_is_none_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing is the folder of records, whatever else has the name of a model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "config.json").write_text("{}")
    with pytest.raises(UnknownName, match="no records of 'good' in nowhere, which is no folder"):
        harness.compare(["good", "fair"], records="nowhere")


def test_names_do_no_harm(tmp_path: Path) -> None:
    for model in ("\x1b[31mred", "<script>"):
        read_once(tmp_path, model, "toy/a", 0.1)
    text = str(harness.compare(["\x1b[31mred", "<script>"], records=tmp_path))
    assert "\x1b" not in text
