"""What a probe tells through the public door: a turn that was planted in an expert comes undone."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from harness.protocols import probe as probe_module
from safetensors.torch import load_file, save_file

import harness
from harness import PROTOCOLS, Encoded, Predictions, Record, Row, Run, Task
from harness.checkpoints.open import open_checkpoint
from harness.cli import main
from harness.cli.evaluate import print_evaluation
from harness.data.rows import load_rows
from harness.errors import BadOption, CellsFailed, MissingTeacher
from harness.evaluation.records import each_record, identity, predictions_of
from harness.passes import features
from harness.reporting.boards.board import board_of
from harness.reporting.lines import Setting, lines_of
from harness.reporting.verdict import Basis, basis_verdicts, left_open, verdicts
from harness.stats.intervals import Ratio
from harness.types import Progress
from tests.conftest import WORDS, model
from tests.faults import Plant, around
from tests.mistakes import mistake, names, refused
from tests.resampled import kept, lines
from tests.test_boards import record as scored
from tests.toys import MOODS, TAGS, TOY, VALUE, known, registered

Edit: TypeAlias = Callable[[dict[str, torch.Tensor]], None]
SIZES = {"train": 100, "test": 60}
WIDTH = 16


def rows_of(task: Task) -> Callable[[str], Sequence[Row]]:
    """Random rows of a task; words of a tagging in sentences of up to nine."""

    def made(split: str) -> list[dict[str, Any]]:
        random = np.random.default_rng([len(split), len(task.kind)])
        rows = []
        for index in range(SIZES[split]):
            words = random.choice(WORDS, random.integers(2, 10)).tolist()
            row: dict[str, Any] = {name: " ".join(words) for name in task.text}
            row |= {"label": index % 2, "score": float(random.normal())}
            tags = [(index + i) % 5 for i in range(len(words))]
            tags[0] -= tags[0] in (2, 4)  # no entity begins with I-
            row |= {"tokens": words, "ner_tags": tags}
            rows.append({**row, "moods": random.integers(0, 2, 3).tolist()})
        return rows

    return made


TASKS = {
    task.kind: replace(task, name=f"turned/{task.kind}", generate=rows_of(task))
    for task in (TOY, VALUE, MOODS, TAGS)
}


def turned(kind: str) -> Edit:
    """A change of basis of the features: an orthogonal map of what the head reads.

    tanh is odd, so that units of a pooler may be moved and turned over; of words, those of the last
    normalisation may be turned over.
    """
    random = np.random.default_rng(4)
    order = torch.from_numpy(random.permutation(WIDTH))
    signs = torch.from_numpy(random.choice([-1.0, 1.0], WIDTH)).float()

    def edit(state: dict[str, torch.Tensor]) -> None:
        if kind == "tagging":
            for name in ("weight", "bias"):
                state[f"bert.encoder.layer.1.output.LayerNorm.{name}"] *= signs
        else:
            for name in ("weight", "bias"):
                key = f"bert.pooler.dense.{name}"
                moved = state[key][order]
                state[key] = moved * (signs[:, None] if moved.ndim == 2 else signs)

    return edit


_known = known(*TASKS.values(), scope="module")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An expert of each kind, and the same one in another basis with its own head."""
    root = tmp_path_factory.mktemp("probing")
    for kind, task in TASKS.items():
        unit: Any = "word" if kind == "tagging" else "row"
        sizes = {"initializer_range": 0.5, "unit": unit}
        if kind == "multilabel":
            sizes["problem_type"] = "multi_label_classification"
        for seed, name in ((1, kind), (2, f"{kind}-2")):
            folder = model(root / name, list(task.labels), seed=seed, **sizes)
            (folder / "expert.json").write_text(json.dumps({"tasks": [task.name]}))
            edited(folder, undecided(folder, task))
        edited(Path(shutil.copytree(root / kind, root / f"{kind}-turned")), turned(kind))
        (root / f"{kind}-turned" / "expert.json").unlink()
    return root


def edited(folder: Path, edit: Edit) -> None:
    state = load_file(folder / "model.safetensors")
    edit(state)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def undecided(folder: Path, task: Task) -> Edit:
    """A bias of the head with which it does not call all rows the same."""
    rows = load_rows(task, "test")
    _, logits, _ = features.forward(open_checkpoint(folder), rows, max_length=24)

    def edit(state: dict[str, torch.Tensor]) -> None:
        state["classifier.bias"] -= torch.from_numpy(np.median(logits, axis=0))

    return edit


def read(
    room: Path,
    kind: str,
    out: Path,
    *protocols: str,
    progress: Progress | None = None,
    **values: Any,
) -> list[Record]:
    usual: dict[str, Any] = {
        "experts": (str(room / kind),),
        "shots": ("all",),
        "draws": 2,
        "max_length": 24,
        "device": "cpu",
    }
    return harness.evaluate(
        Run(
            model=str(room / f"{kind}-turned"),
            tasks=(TASKS[kind].name,),
            protocols=tuple(harness.parse_choice(one) for one in protocols),
            output=str(out),
            **{**usual, **values},
        ),
        progress=progress,
    )


def predictions(record: Record, out: Path) -> Mapping[str, Any]:
    table = pq.read_table(predictions_of(record, out))
    return {
        name: np.array(table[name].to_pylist(), dtype=float)
        for name in table.column_names
        if name != "label"
    }


def one(records: Sequence[Record], role: str, **options: Any) -> Record:
    (found,) = [
        r
        for r in records
        if r.role == role and all(r.options.get(key) == value for key, value in options.items())
    ]
    return found


UNDONE = ("orthogonal", "euclidean", "similarity", "linear", "invertible", "affine")


def test_every_transform_is_tried() -> None:
    assert {*UNDONE, "scaling"} == set(probe_module.CLOSED)


def undone(room: Path, kind: str, out: Path) -> None:
    """The turned expert is read as the expert under every map that a turn is one of."""
    names = [f"probe:transform={name}" for name in (*UNDONE, "scaling")]
    records = read(room, kind, out, *names, "current")
    current = [record for record in records if record.protocol == "current"]
    merged, expert = (predictions(one(current, role), out) for role in ("merged", "expert"))
    probes = [record for record in records if record.protocol == "probe"]
    for name in UNDONE:
        record = one(probes, "merged", transform=name)
        values = predictions(record, out)["shots=all,seed=0"]
        np.testing.assert_allclose(values, expert["prediction"], rtol=0, atol=2e-4)
        (score,) = record.scores
        assert score.facts["fit_error"] < 1e-8
        assert score.facts["orthogonality"] < 1e-3
        assert score.facts["rows_per_dimension"] > 1
    scaled = one(probes, "merged", transform="scaling")
    apart = np.abs(predictions(scaled, out)["shots=all,seed=0"] - expert["prediction"])
    assert (apart > 1e-2).mean() > 0.1
    assert scaled.scores[0].facts["fit_error"] > 0.1
    assert (np.abs(merged["prediction"] - expert["prediction"]) > 1e-2).mean() > 0.1
    for name in (*UNDONE, "scaling"):  # an expert is its own teacher
        values = predictions(one(probes, "expert", transform=name), out)["shots=all,seed=0"]
        np.testing.assert_allclose(values, expert["prediction"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", TASKS)
def test_a_planted_turn_comes_undone(kind: str, room: Path, tmp_path: Path) -> None:
    undone(room, kind, tmp_path)


FAULTS: dict[str, Plant] = {
    "features are not mapped": around(
        probe_module.ProbeMap,
        "outputs",
        lambda right, own, x, teacher: right(replace(own, a=np.eye(WIDTH)), x, teacher),
    ),
    "the map is the one back": around(
        probe_module, "_turn", lambda right, x, y: np.asarray(right(x, y)).T
    ),
    "rows of model and expert are not the same": around(
        probe_module, "_turn", lambda right, x, y: right(x, np.roll(y, 1, axis=0))
    ),
}


@pytest.mark.fault
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(
    fault: str, room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAULTS[fault](monkeypatch)
    with pytest.raises(AssertionError):
        undone(room, "classification", tmp_path)


@pytest.mark.parametrize("kind", TASKS)
def test_of_several_experts_outputs_are_averaged(kind: str, room: Path, tmp_path: Path) -> None:
    """As the ensemble has it: maps that fit all exactly give its predictions."""
    experts = (str(room / kind), str(room / f"{kind}-2"))
    records = read(room, kind, tmp_path, "probe:transform=affine,rows=test", experts=experts,
                   limit=16)  # fmt: skip
    (ensemble,) = read(room, kind, tmp_path, "current", experts=experts, limit=16)[-1:]
    assert ensemble.role == "ensemble"
    values = predictions(one(records, "merged"), tmp_path)["prediction"]
    expected = predictions(ensemble, tmp_path)["prediction"]
    if kind == "tagging":  # more words than dimensions: no longer exact
        assert one(records, "merged").scores[0].facts["fit_error"] > 1e-3
    else:
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-4)


# Transductive -------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["probe", "surgery", "ft-classifier"])
def test_a_fit_to_the_test_rows_says_so(protocol: str, room: Path, tmp_path: Path) -> None:
    """And reads no training split: there may be none."""
    kind = "classification"

    def test_only(split: str) -> Sequence[Row]:
        assert split == "test"
        return rows_of(TASKS[kind])(split)

    steps = ",steps=20" if protocol == "surgery" else ""
    with registered(replace(TASKS[kind], generate=test_only)):
        records = read(room, kind, tmp_path, f"{protocol}:rows=test{steps}", "current")
    record = next(r for r in records if (r.role, r.protocol) == ("merged", protocol))
    assert record.adaptation is not None
    assert record.adaptation.model_dump() == {
        "split": "turned/classification@test",
        "rows": SIZES["test"],
        "drawn": {},
        "sentences": {},
        "unseen": [],
        "labels": "were not read",
        "transductive": True,
    }
    (score,) = record.scores
    assert (score.shots, score.seed) == (None, None)
    if protocol != "ft-classifier":  # which maps nothing
        assert score.facts["rows_per_dimension"] == SIZES["test"] / WIDTH
    assert record.settings["seed"] == 0
    assert not {"shots", "draws", "pool"} & {*record.settings}
    assert all("rows=test" in str(one.setting) for one in lines([record]))
    assert record == read(room, kind, tmp_path, f"{protocol}:rows=test{steps}")[0]
    assert all(
        "probe:rows=test (transductive) scores" in str(one)
        for one in basis_verdicts(lines(records))
    )
    assert len(basis_verdicts(lines(records))) == (protocol == "probe")


def test_a_head_tuned_on_the_scored_rows_bears_no_verdict(room: Path, tmp_path: Path) -> None:
    """Nor the gap that boards show; one tuned on drawn rows does, beside it."""
    alone = read(room, "classification", tmp_path, "current", "ft-classifier:rows=test")
    assert not verdicts(lines(alone))
    both = read(
        room, "classification", tmp_path, "current", "ft-classifier:rows=test", "ft-classifier"
    )
    (verdict,) = verdicts(lines(both))
    assert verdict.setting.protocol == "ft-classifier"
    only, beside = (board_of([*lines_of(("", r) for r in records)]) for records in (alone, both))
    assert not only.gaps
    assert beside.gaps
    known = only.scores.of_setting
    assert [known[one].saw_the_scored for one in only.scores.settings] == [False, True]


def test_fewer_rows_than_dimensions_are_warned_of_once(room: Path, tmp_path: Path) -> None:
    """However many models and draws there are."""
    expected = (
        r"probe was fitted to fewer rows .* on turned/regression@test to 0.31 rows per dimension"
    )
    with pytest.warns(UserWarning, match=expected) as told:
        read(room, "regression", tmp_path, "probe", "probe:transform=affine", shots=(1,))
    assert len(told) == 1


def test_with_drawn_rows_it_is_not_transductive(room: Path, tmp_path: Path) -> None:
    record = one(read(room, "classification", tmp_path, "probe", shots=(9,)), "merged")
    assert record.adaptation is not None
    assert not record.adaptation.transductive
    assert record.adaptation.labels == "chose the rows"
    assert [score.seed for score in record.scores] == [0, 1]


@pytest.mark.filterwarnings("ignore:.* are cut off at ")
def test_words_that_were_cut_off_are_fitted_to_by_nobody(room: Path, tmp_path: Path) -> None:
    """Seven tokens hold five words."""
    rows = rows_of(TASKS["tagging"])("test")
    seen = sum(min(5, len(row["tokens"])) for row in rows)
    records = read(room, "tagging", tmp_path, "probe:rows=test", max_length=7)
    record = one(records, "merged")
    assert record.unseen == sum(len(row["tokens"]) for row in rows) - seen > 0
    assert record.scores[0].facts["rows_per_dimension"] == seen / WIDTH
    assert record.scores[0].facts["fit_error"] < 1e-8


# The pipeline -------------------------------------------------------------------------------


def test_no_row_is_encoded_twice(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str]] = []
    one_pass = features.one_pass

    def counted(checkpoint: Any, rows: Any, readouts: Any, **values: Any) -> Any:
        seen.append((checkpoint.source, rows.digest))
        return one_pass(checkpoint, rows, readouts, **values)

    monkeypatch.setattr(features, "one_pass", counted)
    names = ("current", "knn", "knn:rule=vote", "linear-probe", "ft-classifier", "probe",
             "probe:rows=test", "surgery:steps=5", "surgery:steps=5,rows=test")  # fmt: skip
    experts = (str(room / "multilabel"), str(room / "multilabel-2"))
    read(room, "multilabel", tmp_path, *names, experts=experts, shots=(8,))
    assert len(seen) == len({*seen}) == 3 * 2


def test_hidden_states_come_of_the_pass_that_the_head_reads(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one run each row goes through each model once; in a later run, once more."""
    seen: list[tuple[str, str]] = []
    read_as: set[frozenset[str]] = set()
    one_pass = features.one_pass

    def counted(checkpoint: Any, rows: Any, readouts: Any, **values: Any) -> Any:
        seen.append((checkpoint.source, rows.digest))
        read_as.add(frozenset(one.name for one in readouts))
        return one_pass(checkpoint, rows, readouts, **values)

    monkeypatch.setattr(features, "one_pass", counted)
    names = ("knn:features=cls", "current", "ft-classifier", "knn", "linear-probe:features=cls")
    told: list[tuple[int, int]] = []

    def tell(_: str, done: int, total: int) -> None:
        told.append((done, total))

    read(room, "classification", tmp_path / "at once", *names, shots=(4,), progress=tell)
    rows = 2 * len({digest for _, digest in seen})  # a merge and its expert
    assert len(seen) == len({*seen}) == rows == 4
    assert read_as == {frozenset(("cls", "last_linear"))}
    assert {total for _, total in told} == {sum(done for done, _ in told)}
    seen.clear()
    read_as.clear()
    told.clear()
    more = ("current", "knn:features=mean_masked", "knn:features=cls")
    read(room, "classification", tmp_path / "later", *more, shots=(4,), progress=tell)
    assert len(seen) == len({*seen}) == rows
    assert read_as == {frozenset(("mean_masked",))}
    assert {total for _, total in told} == {sum(done for done, _ in told)}


def test_where_nobody_names_protocols_three_are_read(
    room: Path, tmp_path: Path, as_found: None
) -> None:
    """And those that somebody brings, unless they say otherwise."""
    records = read(room, "classification", tmp_path, shots=(2,))
    assert {r.protocol for r in records} == {"current", "knn", "ft-classifier"}

    @harness.protocol("mine", adapts="nothing")
    def mine(encoded: Encoded) -> list[Predictions]:
        return [Predictions(np.zeros(len(encoded.test)))]

    @harness.protocol("asked", adapts="nothing", by_default=False)
    def asked(encoded: Encoded) -> list[Predictions]:
        return [Predictions(np.zeros(len(encoded.test)))]

    records = read(room, "classification", tmp_path, shots=(2,))
    assert {r.protocol for r in records} == {"current", "knn", "ft-classifier", "mine"}


def test_the_command_line_names_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--help"]) == 0
    usual = {name for name, one in PROTOCOLS.items() if one.by_default}
    said = "".join(capsys.readouterr().out.split())
    assert usual == {"current", "knn", "ft-classifier"}
    assert "default:current,knn,ft-classifier." in said


def test_facts_that_mean_nothing_fail_the_cell(room: Path, tmp_path: Path, as_found: None) -> None:
    @harness.protocol("odd", adapts="nothing")
    def odd(encoded: Encoded) -> list[Predictions]:
        return [Predictions(np.zeros(len(encoded.test)), facts={"share": float("nan")})]

    with pytest.raises(CellsFailed) as failed:
        read(room, "classification", tmp_path, "odd")
    names(failed.value.failures[0], "share nan")


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        ("probe:transform=turn", "turn orthogonal euclidean"),
        ("probe:steps=3", "probe steps=3 fit=closed fit=gradient"),
        ("probe:penalty=-1,fit=gradient", "-1 0"),
        ("probe:rows=train", "train shots test"),
        ("surgery:rank=0", "0 1"),
        ("linear-probe:penalty=0", "0 0"),
        ("probe:distance=l1", "probe distance=l1 fit=closed fit=gradient"),
        ("probe:distance=l2,fit=gradient", "l2 squared l1"),
        ("knn:features=mean", "mean last_linear mean_masked cls"),
        ("current:features=cls", "protocol current option features"),
        ("knn:neighbours=3", "knn neighbours=3 rule=mean rule=vote"),
        ("knn:rule=most", "most mean vote centroid"),
    ],
)
def test_a_bad_option_is_one_line(
    protocol: str,
    expected: str,
    room: Path,
    tmp_path: Path,
) -> None:
    command = ["evaluate", "--model", str(room / "classification-turned"), "--tasks"]
    command += [TASKS["classification"].name, "--output-path", str(tmp_path / "out")]
    refused([*command, "--protocols", protocol], BadOption, expected)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("protocol", ["probe", "surgery", "probe:rows=test"])
def test_without_an_expert_nobody_teaches(protocol: str, room: Path, tmp_path: Path) -> None:
    with mistake(MissingTeacher, "expert --experts"):
        read(room, "classification", tmp_path, protocol, experts=())


# Shots --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TASKS)
def test_all_shots_are_every_row_once(kind: str, room: Path, tmp_path: Path) -> None:
    """One draw, with nothing left to chance; those of fewer shots stay what they were, but for the
    rounding of features, which on some processors goes by the rows that share a batch.
    """
    names = ("knn", "linear-probe", "ft-classifier:epochs=1")
    few = read(room, kind, tmp_path / "few", *names, shots=(2,))
    both = read(room, kind, tmp_path / "both", *names, shots=("all", 2))
    for less, more in zip(few, both, strict=True):
        if less.role == "ensemble":
            continue
        assert more.shots == [2, "all"]
        assert more.settings["shots"] == [2, "all"]
        first = more.scores[: len(less.scores)]
        drawn = [(score.shots, score.seed) for score in less.scores]
        assert [(score.shots, score.seed) for score in first] == drawn
        values = [score.value for score in less.scores]
        assert [score.value for score in first] == pytest.approx(values, abs=1e-6)
        (whole,) = [score for score in more.scores if score.shots == "all"]
        assert whole.seed == 0
        assert less.adaptation is not None
        assert more.adaptation is not None
        assert more.adaptation.drawn == less.adaptation.drawn
        assert more.adaptation.rows == SIZES["train"] - SIZES["train"] // 10
    alone = read(room, kind, tmp_path / "alone", "knn", shots=("all",))
    assert alone[0].adaptation is not None
    assert alone[0].adaptation.drawn == {}
    assert [score.value for score in alone[0].scores] == [both[0].scores[-1].value]


def fitted_to_all(folder: Path, task: Task) -> Any:
    """Predictions by scikit-learn of a head that is fitted to all of train90, in float64."""
    from sklearn.linear_model import LogisticRegression, Ridge

    both = [load_rows(task, split) for split in ("train90", "test")]
    (x, _, seen), (test, *_) = (
        features.forward(open_checkpoint(folder), rows, max_length=24) for rows in both
    )
    assert seen is None or seen.all()
    x, test, labels = x.astype(float), test.astype(float), both[0].labels
    mean, size = x.mean(axis=0), ((x - x.mean(axis=0)) ** 2).mean() ** 0.5
    x, test = (x - mean) / size, (test - mean) / size
    if task.kind == "regression":
        return Ridge(alpha=1.0).fit(x, labels).predict(test)
    heads = labels.T if task.kind == "multilabel" else [labels]
    fits = [LogisticRegression(tol=1e-9, max_iter=10**4).fit(x, one).predict(test) for one in heads]
    return np.stack(fits, axis=1) if task.kind == "multilabel" else fits[0]


@pytest.mark.parametrize("kind", TASKS)
def test_a_fresh_head_is_trained_on_all_rows_whatever_is_drawn(
    kind: str, room: Path, tmp_path: Path
) -> None:
    """Through evaluate, of the merge and of the base as its control: beside other protocols its
    record is the one that it is alone, and theirs are, too.
    """
    base = {"base": str(room / f"{kind}-2"), "other_base": True}
    few = read(room, kind, tmp_path, "knn", "fresh-head", shots=(1,), draws=3, **base)
    fresh = [record for record in few if record.protocol == "fresh-head"]
    assert [r.role for r in fresh] == ["merged", "base", "expert"]
    for record, name in zip(fresh, (f"{kind}-turned", f"{kind}-2", kind), strict=True):
        (whole,) = record.scores
        assert (whole.shots, whole.seed) == ("all", 0)
        assert record.settings["shots"] == ["all"]
        assert record.adaptation is not None
        assert record.adaptation.rows == SIZES["train"] - SIZES["train"] // 10
        told = predictions(record, tmp_path)["shots=all,seed=0"]
        expected = fitted_to_all(room / name, TASKS[kind])
        assert len(np.unique(told)) > 1
        if kind == "regression":
            np.testing.assert_allclose(told, expected, rtol=0, atol=1e-5)
        else:
            assert (told == expected).mean() > 0.99

    def none(*_: object) -> None:
        raise AssertionError("a forward pass, and the record is there")

    for asked in ({"shots": (2, 5)}, {"draws": 1}, {"stratified": False, "shots": (1,)}):
        assert read(room, kind, tmp_path, "fresh-head", progress=none, **base, **asked) == fresh
    alone = read(room, kind, tmp_path / "alone", "knn", shots=(1,), draws=3, **base)
    assert [r for r in few if r.protocol == "knn"] == alone


def test_a_curve_of_shots_is_shown(
    room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", "--model", str(room / "classification-turned"), "--tasks"]
    command += [TASKS["classification"].name, "--output-path", str(tmp_path / "out")]
    assert main([*command, "--protocols", "knn", "--shots", "1,all,4", "--max-length", "24"]) == 0
    assert "4 shots" in capsys.readouterr().out
    assert main(["leaderboard", str(tmp_path / "out"), "--out", str(tmp_path / "board")]) == 0
    with (tmp_path / "board" / "board.csv").open() as file:
        lines = [*csv.DictReader(file)]
    mine = [line for line in lines if line["row"] == lines[0]["row"]]
    assert [line["shots"] for line in mine] == ["1", "4", "all"]
    refused([*command, "--shots", "1,,5"], BadOption, "--shots 1,,5")
    refused([*command, "--shots", "1,most"], BadOption, "--shots 1,most")


# Where features are taken ------------------------------------------------------------------


def test_hidden_states_are_read_under_no_pooler(room: Path, tmp_path: Path) -> None:
    """Through evaluate: an expert whose pooler was turned has the hidden states it had.

    What is read beside it changes no record, and says where its features are from.
    """
    asked = ("knn:features=mean_masked", "linear-probe:features=cls")
    usual = ("current", "knn", "linear-probe")
    alone = read(room, "classification", tmp_path / "alone", *usual)
    beside = read(room, "classification", tmp_path, usual[0], asked[0], *usual[1:], asked[1])
    more = [r for r in beside if r.settings["features"] != "last_linear"]
    assert [r for r in beside if r not in more] == alone
    assert {(r.protocol, r.settings["features"], r.options["features"]) for r in more} == {
        ("knn", "mean_masked", "mean_masked"),
        ("linear-probe", "cls", "cls"),
    }
    for name in ("knn", "linear-probe"):
        turned, expert = (
            predictions(one([r for r in more if r.protocol == name], role), tmp_path)
            for role in ("merged", "expert")
        )
        assert turned.keys() == expert.keys()
        for key in turned:
            np.testing.assert_array_equal(turned[key], expert[key])
    (under, over) = (
        predictions(one([r for r in records if r.protocol == "knn"], "merged"), tmp_path)
        for records in (more, [r for r in beside if r not in more])
    )
    assert any((under[key] != over[key]).any() for key in under), "other features, other answers"


def test_a_nearest_class_of_hidden_states_against_plain_code(room: Path, tmp_path: Path) -> None:
    """Through evaluate, from transformers' own hidden states of the rows that the record names."""
    from transformers import AutoModel, AutoTokenizer

    record = one(
        read(
            room, "classification", tmp_path, "knn:rule=centroid,features=mean_masked", shots=(3,)
        ),
        "merged",
    )
    folder = room / "classification-turned"
    plain = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def states(rows: Any) -> Any:
        inputs = (
            tokenizer(*texts, truncation=True, max_length=24, return_tensors="pt")
            for texts in rows.texts
        )
        with torch.no_grad():
            read = [plain(**one).last_hidden_state[0].mean(dim=0).numpy() for one in inputs]
        return np.stack(read).astype(np.float64)

    task = TASKS["classification"]
    train, test = (states(load_rows(task, split)) for split in ("train90", "test"))
    assert record.adaptation is not None
    for seed, groups in record.adaptation.drawn.items():
        means = np.stack([train[list(group)].mean(axis=0) for group in groups])
        nearest = np.linalg.norm(test[:, None] - means, axis=2).argmin(axis=1)
        told = predictions(record, tmp_path)
        column = told[f"shots=3,seed={seed}"]
        np.testing.assert_array_equal(column, nearest)


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("tagging", (), "features rows turned/tagging"),
        (
            "classification",
            ("--preset", "ft-classifier"),
            "knn features=cls preset ft-classifier mean_all",
        ),
    ],
)
def test_features_that_cannot_be_had_are_one_line(
    kind: str,
    more: tuple[str, ...],
    expected: str,
    room: Path,
    tmp_path: Path,
) -> None:
    command = ["evaluate", "--model", str(room / f"{kind}-turned"), "--tasks", TASKS[kind].name]
    command += ["--output-path", str(tmp_path / "out"), "--protocols", "knn:features=cls", *more]
    refused(command, BadOption, expected)
    assert not (tmp_path / "out").exists()


# Records of before ---------------------------------------------------------------------------


def test_a_record_of_before_an_option_is_that_of_its_default(room: Path, tmp_path: Path) -> None:
    (record,) = read(room, "classification", tmp_path, "knn", experts=(), shots=(2,))
    values = record.model_dump(mode="json")
    options = {"rule": "mean", "neighbours": 5, "o_anchors": 1, "features": "last_linear"}
    assert values["options"] == options
    before = {**values, "options": {}}
    assert identity(before) == identity(values)
    assert identity({**values, "options": {**options, "rule": "vote"}}) != identity(values)
    assert identity({**values, "options": {**options, "o_anchors": 2}}) != identity(values)
    tuned = {**values, "protocol": "ft-classifier", "options": {"epochs": 5}}
    for weight, same in ((1.0, True), (2.0, False)):
        other = {**tuned, "options": {"epochs": 5, "o_weight": weight}}
        assert (identity(other) == identity(tuned)) == same
    assert identity({**before, "protocol": "mine"}) != identity({**values, "protocol": "mine"})
    both = ([line.setting for line in lines([one])] for one in (Record(**before), record))
    assert next(both) == next(both)


def test_committed_records_lie_where_they_would_be_written() -> None:
    """Their names end in their identity; what stands there is read back, not computed again."""
    root = Path(harness.__file__).parent.parent / "leaderboards" / "records"
    found = [
        (path, one)
        for path, one in each_record([root / "domains.parquet"])
        if one.protocol == "knn"
    ]
    assert found
    for path, record in found[:3]:
        assert Path(path).stem.endswith(identity(record.model_dump(mode="json"))[:12])
    assert record.options["o_anchors"] == 1


# What is said of it ---------------------------------------------------------------------------


def basis(current: float, turned_to: float, control: float | None = None, **more: Any) -> str:
    reading = Setting(3, "probe", more.pop("shots", 5))
    known = {"within": (79.0 - current, 81.0 - current), **more}
    return str(Basis(80.0, current, turned_to, reading, 1, control=control, **known))


def test_the_sentence_of_the_orthogonal_probe() -> None:
    assert basis(60, 80, 50) == (
        "probe, 5 shots scores 80.0 (base: 50.0): a rotation of the features recovers 20.0 of the "
        "20.0 points lost under Current Eval (60.0, experts 80.0; 95 % CI -21.0 to -19.0)."
    )
    assert "recovers all of the 20.0 points lost under Current Eval (60.0" in basis(60, 85, 50)
    assert "no significant loss under Current Eval (79.4, experts 80.0;" in basis(79.4, 80)
    assert (
        "no loss under Current Eval (90.0, experts 80.0; 95 % CI +9.0 to +11.0), so none"
        in basis(90, 80)
    )
    assert "no evidence about the merge." in basis(60, 80, 80)
    assert "no evidence about the merge" not in basis(60, 59, 80)
    assert "may be chance." in basis(60, 80, determined=False)
    assert basis(60, 80, shots="all").startswith("probe, all shots scores")
    test_rows = Setting(3, "probe:rows=test", 0)
    assert "probe:rows=test (transductive) scores" in str(
        Basis(80, 60, 70, test_rows, 2, (18.0, 22.0), transductive=True)
    )
    assert str(Basis(80, 60, 70, test_rows, 2, (18.0, 22.0))).startswith(
        "averaged over 2 tasks, probe:rows=test scores 70.0: a rotation"
    )


def spread(share: tuple[float, float, float] | None, above: Any = None) -> dict[str, Any]:
    """Of a loss of 20 points, with its share."""
    known = share and Ratio(share[0], share[1:])
    return {"within": (18.0, 22.0), "ratio": known or None, "above_control": above}


@pytest.mark.parametrize(
    ("share", "determined", "says"),
    [
        (
            (0.5, 0.4, 0.6),
            True,
            "50 % (95 % CI 40 to 60 %) of the loss is a change of basis, the",
        ),
        ((0.5, 0.4, 0.6), False, "is a change of basis, or more. The map was fitted to fewer rows"),
        ((0.9, 0.7, 1.1), True, ": 90 % (95 % CI 70 to 110 %) of the loss is a change of basis."),
        (None, True, "(60.0, experts 80.0; 95 % CI -22.0 to -18.0)."),
    ],
)
def test_the_share_of_a_rotation_has_its_interval(share: Any, determined: bool, says: str) -> None:
    found = basis(60, 70, **spread(share), determined=determined)
    assert says in found


def test_a_rotation_that_loses_more_recovers_nothing() -> None:
    found = basis(60, 55, **spread((-0.25, -1.0, 0.5)))
    assert "a rotation of the features recovers none of the 20.0 points lost under" in found
    assert "change of basis" not in found


@pytest.mark.parametrize(
    ("control", "above", "nothing"),
    [(80.0, (-1, 1), True), (79.0, (-1, 3), True), (70.0, (8, 12), False)],
)
def test_a_base_that_turns_as_well_takes_the_rotation_for_nothing(
    control: float, above: tuple[float, float], nothing: bool
) -> None:
    found = basis(60, 80, control, **spread((1.0, 0.9, 1.1), above))
    assert ("not significantly above the base under the same" in found) == nothing


def right_on(role: Any, protocol: str, places: Sequence[int], **given: Any) -> Record:
    """A model that is right on these of 300 rows, on each of three draws if any."""
    shots = None if protocol == "current" else 5
    right = np.isin(np.arange(300), places).astype(float)
    values = {shots or 0: [right.mean()] * (3 if shots else 1)}
    resamples = kept([right] * len(values[shots or 0]), shots)
    options = {"transform": "orthogonal"} if shots else {}
    more = {"options": options, "resamples": (resamples,), "rows": 300, **given}
    return scored(role, role, TOY.name, protocol, values, **more)


def test_the_interval_is_of_differences_on_the_same_rows() -> None:
    """Of 300 rows the experts are right on 240 and the merge on 180 of these: 20 points, whose
    deviation is that of 60 rows in 300, and not that of two scores on rows of their own (3.7).
    Turned, it is right where the experts are, and on no row of a resample any different."""
    records = [
        right_on("expert", "current", range(240)),
        right_on("merged", "current", range(180)),
        right_on("merged", "probe", range(240)),
        right_on("base", "probe", range(90, 240)),
    ]
    (found,) = basis_verdicts(lines(records))
    reach = 2 * 100 * np.sqrt(0.2 * 0.8 / 300)
    assert found.within == pytest.approx((20 - reach, 20 + reach), abs=0.5)
    assert found.ratio == Ratio(1.0, (1.0, 1.0))
    reach = 2 * 100 * np.sqrt(0.3 * 0.7 / 300)
    assert found.above_control == pytest.approx((30 - reach, 30 + reach), abs=0.5)
    other = right_on("expert", "current", range(240), resamples=(kept([ONES], None, "1" * 16),))
    assert basis_verdicts(lines([other, *records[1:]])) == [], "of other resamples"


ONES = np.ones(300)


def test_three_rows_are_no_loss() -> None:
    records = [
        right_on("expert", "current", range(240)),
        right_on("merged", "current", [*range(6, 240), 297, 298, 299]),
        right_on("merged", "probe", range(240)),
    ]
    (found,) = basis_verdicts(lines(records))
    assert "no significant loss under Current Eval" in str(found)


@pytest.mark.filterwarnings("ignore:probe was fitted to fewer rows")
def test_the_sentence_is_of_the_records(
    room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = read(room, "classification", tmp_path, "probe", "current", "probe:transform=scaling",
                   shots=("all", 1))  # fmt: skip
    (every,) = basis_verdicts(lines(records))
    assert every.setting.shots == "all"
    by_role = {(r.role, r.protocol): r for r in records if r.options.get("transform") != "scaling"}
    assert every.experts == 100 * by_role["expert", "current"].scores[0].value
    assert every.current == 100 * by_role["merged", "current"].scores[0].value
    assert every.adapted == 100 * by_role["merged", "probe"].scores[-1].value == every.experts
    assert every.determined
    (few,) = basis_verdicts(lines([r.model_copy(update={"scores": r.scores[:1]}) for r in records]))
    assert (few.setting.shots, few.determined) == (1, False)
    (line,) = [line for line in left_open(lines(records)) if "scaling" not in line]
    names(line, "probe, 1 shot: classification 0.12")
    assert basis_verdicts(lines([r for r in records if r.protocol != "current"])) == []
    low, high = every.within
    assert low <= every.loss <= high
    print_evaluation(records, tmp_path)
    assert f"Verdict: {every}\n" in capsys.readouterr().out
