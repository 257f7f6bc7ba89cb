"""What other programs read: valid by their own schemas, with the numbers of the records."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard

from harness import Record
from harness.cli import main
from harness.errors import BadOption, BrokenRecord, OutputExists
from harness.evaluation.records import Adaptation, DrawScore, Interval, Source
from harness.reporting.frame import TABLE
from harness.reporting.verdict import verdicts
from tests.formats import Card, EvalResults, EveryEvalEver
from tests.mistakes import refused
from tests.resampled import kept, lines, resampled
from tests.test_board_formats import HOSTILE, hostile
from tests.test_boards import MRPC, RTE, record, written

LEADERBOARDS = Path(__file__).parent.parent / "leaderboards" / "records"
ASKED = {
    "model-index": ("README.md", []),
    "every-eval-ever": ("every_eval_ever.json", ["--organization", "A lab"]),
    "lm-eval": ("results.json", []),
}
HUB = {"source": "nyu-mll/glue", "revision": "bcdc", "digest": "d"}


def one_model() -> list[Record]:
    """A merge on two tasks: one metric with an interval, two metrics over draws."""
    ends = (Interval(low=0.5, high=0.7, shots=None, method="student"),)
    own = {"experts": (Source(source="e/mrpc", digest="e" * 32),)}
    rte = record("merged", "m", RTE, "current", 0.6, rows=277, dataset=HUB, intervals=ends, **own)
    both = tuple(
        DrawScore(value=(a + f) / 2, parts={"accuracy": a, "f1": f}, shots=5, seed=seed)
        for seed, (a, f) in enumerate([(0.8, 0.6), (0.9, 0.8)])
    )
    mrpc = record("merged", "m", MRPC, "knn", 0.5, rows=408, metrics=("accuracy", "f1"))
    made = {"scores": both, "dataset": {"source": "local folder"}, **own}
    return [rte, resampled(mrpc.model_copy(update=made))]


def exported(records: list[Record], format: str, tmp_path: Path) -> dict[str, str]:
    """The files of an export by their path."""
    folder, out = written(tmp_path / "records", records), tmp_path / "out"
    flags = ASKED.get(format, ("", []))[1]
    command = ["export", str(folder), "--format", format, "--out", str(out), *flags]
    assert main(command) == 0
    return {path.relative_to(out).as_posix(): path.read_text() for path in out.rglob("*.*")}


def card(text: str) -> dict[str, Any]:
    """The metadata of a model card."""
    assert text.startswith("---\n")
    read: dict[str, Any] = yaml.safe_load(text.split("\n---\n")[0])
    return read


def check(format: str, text: str) -> None:
    """Raise what pydantic says of a text that is not as the format has it."""
    if format == "model-index":
        Card(**card(text))
    else:
        kinds = {"lm-eval": EvalResults, "every-eval-ever": EveryEvalEver}
        kinds[format](**json.loads(text))


@pytest.mark.parametrize("format", ASKED)
def test_an_export_is_valid(format: str, tmp_path: Path) -> None:
    files = exported(one_model(), format, tmp_path)
    name, _ = ASKED[format]
    assert [*files] == [f"m/{name}"]
    check(format, files[f"m/{name}"])


@pytest.mark.parametrize("format", ASKED)
def test_text_of_records_is_text_in_every_export(format: str, tmp_path: Path) -> None:
    files = exported(hostile(), format, tmp_path)
    assert len(files) == 4  # models of one name, told apart
    for path, text in files.items():
        check(format, text)
        assert "\x1b" not in text
        assert len(Path(path).parts) == 2


@pytest.mark.parametrize("format", ASKED)
def test_real_records_are_valid(format: str, tmp_path: Path) -> None:
    pack, merge = (
        str(LEADERBOARDS / "protocols.parquet"),
        ["--models", "dare-ties", "--tasks", "textcls/ag_news"],
    )
    command = ["export", pack, *merge, "--format", format, "--out", str(tmp_path)]
    assert main([*command, *ASKED[format][1]]) == 0
    check(format, (tmp_path / "dare-ties" / ASKED[format][0]).read_text())


@pytest.mark.parametrize("format", [*ASKED, "csv"])
def test_an_export_takes_the_place_of_an_export_alone(format: str, tmp_path: Path) -> None:
    """A card that somebody wrote, with our metadata or without, stays what it is."""
    (text,) = exported(one_model(), format, tmp_path).values()
    (path,) = (tmp_path / "out").rglob("*.*")
    flags = ASKED.get(format, ("", []))[1]
    command = ["export", str(tmp_path / "records"), "--format", format, *flags]
    command += ["--out", str(tmp_path / "out")]
    assert main(command) == 0
    foreign = ["precious", *([f"{text}\nprecious\n"] if format == "model-index" else [])]
    for theirs in foreign:
        path.write_text(theirs)
        refused(command, OutputExists, path)
        assert path.read_text() == theirs


def test_a_card_has_every_metric_under_every_protocol(tmp_path: Path) -> None:
    text = exported(one_model(), "model-index", tmp_path)["m/README.md"]
    results = ModelCard(text).data.eval_results
    assert results is not None
    found = {(r.dataset_name, r.metric_name): (r.metric_type, r.metric_value) for r in results}
    assert found == {
        ("glue/rte", "Accuracy (current)"): ("accuracy", 0.6),
        ("glue/mrpc", "Accuracy (knn, 5 shots)"): ("accuracy", 0.85),
        ("glue/mrpc", "F1 (knn, 5 shots)"): ("f1", 0.7),
    }
    by_task = {result.dataset_name: result for result in results}
    where = ("dataset_type", "dataset_config", "dataset_split", "dataset_revision", "dataset_args")
    assert {name: tuple(getattr(one, key) for key in where) for name, one in by_task.items()} == {
        "glue/rte": ("nyu-mll/glue", "rte", "validation", "bcdc", {"rows": 277, "digest": "d"}),
        "glue/mrpc": (
            "glue/mrpc", None, "validation", None, {"rows": 408, "source": "local folder"}
        ),
    }  # fmt: skip
    args = by_task["glue/rte"].metric_args
    assert args == {"protocol": "current", "draws": 1, "interval": [0.5, 0.7], "level": 0.95}


def test_a_card_of_a_merge_has_its_verdict(tmp_path: Path) -> None:
    """As text, in the words of `evaluate`; a card that somebody wrote on is theirs."""
    records = [
        record("expert", "e/mrpc", RTE, "current", 0.9, digest="e" * 32),
        record("merged", "m", RTE, "current", 0.6),
        record("merged", "m", RTE, "ft-classifier", {5: [0.8] * 3}),
        record("base", "base", RTE, "ft-classifier", {5: [0.5] * 3}),
    ]
    files = exported(records, "model-index", tmp_path)
    (one,) = verdicts(lines(records))
    assert files["m/README.md"].endswith(f"\n---\n\nVerdict: {one}\n")
    assert "Under a tuned head the base scores 50.0 of the experts' 90.0 points" in str(one)
    assert not [name for name, text in files.items() if "Verdict" in text and name[0] != "m"]
    check("model-index", files["m/README.md"])
    command = ["export", str(tmp_path / "records"), "--format", "model-index"]
    command += ["--out", str(tmp_path / "out")]
    assert main(command) == 0
    path = tmp_path / "out" / "m" / "README.md"
    path.write_text(f"{files['m/README.md']}\nprecious\n")
    refused(command, OutputExists, path)
    others = [
        record("expert", "e/mrpc", RTE, "current", 0.9, digest="f" * 32, rows=9),
        *records,
    ]
    plain = exported(others, "model-index", tmp_path / "others")["m/README.md"]
    assert plain.endswith("\n---\n"), "no verdict by experts of two sets, and no error"


def test_a_limit_is_no_full_test_set(tmp_path: Path) -> None:
    """The first 200 of a set that may be larger, and 100 of which there are no more."""
    records = [
        record("merged", "m", task, "current", 0.6, rows=rows, settings={"limit": 200})
        for task, rows in ((RTE, 200), (MRPC, 100))
    ]
    text = exported(records, "model-index", tmp_path)["m/README.md"]
    results = ModelCard(text).data.eval_results or []
    assert [one.dataset_args["limit"] for one in results if "limit" in one.dataset_args] == [200]
    made = json.loads(exported(records, "lm-eval", tmp_path / "l")["m/results.json"])
    assert made["n-samples"] == {MRPC: {"original": 100, "effective": 100}}
    assert [made["configs"][task].get("limit") for task in (RTE, MRPC)] == ["200", None]
    text = exported(records, "every-eval-ever", tmp_path / "e")["m/every_eval_ever.json"]
    sources = [one.source_data for one in EveryEvalEver(**json.loads(text)).evaluation_results]
    assert [(one.additional_details or {}).get("limit") for one in sources] == ["200", None]


def test_every_eval_ever_has_scores_intervals_and_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    text = exported(one_model(), "every-eval-ever", tmp_path)["m/every_eval_ever.json"]
    made = EveryEvalEver(**json.loads(text))
    assert made.retrieved_timestamp == "1700000000"
    assert made.source_metadata.source_organization_name == "A lab"
    by_metric = {one.metric_config.metric_id: one for one in made.evaluation_results}
    scores = {name: one.score_details.score for name, one in by_metric.items()}
    assert scores == pytest.approx({"accuracy": 0.85, "f1": 0.7, "mean(accuracy,f1)": 0.775})
    first = made.evaluation_results[0]
    assert first.source_data.model_dump(include={"hf_repo", "hf_revision", "samples_number"}) == {
        "hf_repo": "nyu-mll/glue",
        "hf_revision": "bcdc",
        "samples_number": 277,
    }
    uncertainty = first.score_details.uncertainty
    assert uncertainty is not None
    ends = uncertainty.confidence_interval
    assert (ends.lower, ends.upper, ends.confidence_level) == pytest.approx((0.5, 0.7, 0.95))
    assert by_metric["f1"].source_data.source_type == "other"
    assert made.model_info.additional_details["experts"] == "e/mrpc"


def test_lm_eval_has_the_standard_error_that_resamples_have(tmp_path: Path) -> None:
    """Of 400 rows, 300 of them right: the root of 0.75 x 0.25 / 399, whatever an interval says."""
    right = np.arange(400) < 300
    given = {"rows": 400, "resamples": (kept([right]),), "schema_version": 5}
    one = record("merged", "m", RTE, "current", 0.75, **given)
    made = json.loads(exported([one], "lm-eval", tmp_path)["m/results.json"])["results"][RTE]
    assert made["accuracy_stderr,current"] == pytest.approx((0.75 * 0.25 / 399) ** 0.5, rel=0.03)


def test_lm_eval_has_the_protocol_for_a_filter(tmp_path: Path) -> None:
    made = json.loads(exported(one_model(), "lm-eval", tmp_path)["m/results.json"])
    rte, mrpc = made["results"][RTE], made["results"][MRPC]
    assert rte["accuracy,current"] == pytest.approx(0.6)
    assert rte["accuracy_stderr,current"] == pytest.approx(0.01, rel=0.05)
    assert mrpc["accuracy,knn-5-shots"] == pytest.approx(0.85)
    assert mrpc["f1,knn-5-shots"] == pytest.approx(0.7)
    assert not [key for key in mrpc if "stderr" in key]  # of a mean of two, each has none
    assert made["n-samples"][MRPC] == {"original": 408, "effective": 408}


def merge_of(task: str, experts: str, digest: str, **given: Any) -> Record:
    """A model `m` that was merged of experts of one letter each."""
    sources = tuple(Source(source=f"experts/{one}", digest=one * 32) for one in experts)
    protocol = given.pop("protocol", "current")
    given = {"role": "merged", "experts": sources, "digest": digest * 32, **given}
    return record(given.pop("role"), "m", task, protocol, 0.5, **given)


@pytest.mark.parametrize("format", ASKED)
def test_no_file_is_of_two_models(format: str, tmp_path: Path) -> None:
    """Two merges of one name, one of them on two tasks under the heads of its experts."""
    records = [
        merge_of(RTE, "ab", "1"),
        merge_of(MRPC, "ab", "2"),
        merge_of("glue/cola", "cd", "3"),
    ]
    files = exported(records, format, tmp_path)
    names = ("rte", "mrpc", "cola")
    tasks = {
        path.partition("/")[0]: [name for name in names if f"glue/{name}" in text]
        for path, text in files.items()
    }
    assert tasks == {"m-a-+-b-": ["rte", "mrpc"], "m-c-+-d-": ["cola"]}


def test_a_model_that_was_evaluated_on_other_rows_is_not_one_result(tmp_path: Path) -> None:
    one = merge_of(RTE, "ab", "1")
    other = one.model_copy(update={"dataset": {**one.dataset, "digest": "f" * 32}})
    folder = written(tmp_path / "records", [one, other])
    command = ["export", str(folder), "--format", "lm-eval", "--out", str(tmp_path / "out")]
    refused(command, BrokenRecord, "rte", "expected the same test in a column")


@pytest.mark.parametrize(
    ("second", "files"),
    [
        (merge_of(RTE, "ab", "1", protocol="knn"), {"m"}),
        (merge_of(RTE, "ab", "2", protocol="knn"), {"m-11111111-", "m-22222222-"}),
        (merge_of(MRPC, "", "2"), {"m-11111111-", "m-22222222-"}),
        (merge_of(MRPC, "ab", "2", method="average"), {"m-11111111-", "m-22222222-"}),
        (merge_of(RTE, "", "1", role="reference"), {"m"}),
    ],
)  # fmt: skip
def test_a_model_is_what_was_merged_and_one_digest_of_a_task(
    second: Record, files: set[str], tmp_path: Path
) -> None:
    made = exported([merge_of(RTE, "ab", "1"), second], "lm-eval", tmp_path)
    assert {path.partition("/")[0] for path in made} == files


def test_what_saw_the_scored_rows_is_marked(tmp_path: Path) -> None:
    """A protocol that was fitted to the test rows, and a model that was made with them."""
    seen = Adaptation(split="x@test", rows=9, labels="were not read", transductive=True)
    adapted = record("merged", "m", RTE, "surgery", {5: [0.5]}, adaptation=seen)
    shown = record("merged", "m", MRPC, "current", 0.5, transductive=True)
    texts = {one: exported([adapted, shown], one, tmp_path / one) for one in ASKED}
    note = "adapted to rows without their labels; transductive: these are the scored rows"
    made = "transductive: the model was made with the scored rows"
    [index] = card(texts["model-index"]["m/README.md"])["model-index"]
    metrics = [metric for result in index["results"] for metric in result["metrics"]]
    assert [(m["name"], m["args"]["note"]) for m in metrics] == [
        ("Accuracy (surgery, 5 shots, transductive)", note),
        ("Accuracy (current, transductive)", made),
    ]
    harness = json.loads(texts["lm-eval"]["m/results.json"])
    assert "accuracy,surgery-5-shots-transductive" in harness["results"][RTE]
    assert harness["configs"][RTE]["note,surgery-5-shots-transductive"] == note
    assert harness["configs"][MRPC]["note,current-transductive"] == made
    every = json.loads(texts["every-eval-ever"]["m/every_eval_ever.json"])["evaluation_results"]
    details = [one["score_details"]["details"] for one in every]
    assert [(one["transductive"], one["note"]) for one in details] == [
        ("yes", note),
        ("yes", made),
    ]


def test_csv_is_the_tidy_table(tmp_path: Path) -> None:
    files = exported(one_model(), "csv", tmp_path)
    rows = [*csv.DictReader(io.StringIO(files["records.csv"]))]
    assert [*rows[0]] == [*TABLE]
    assert [(row["task"], float(row["value"])) for row in rows] == [
        ("glue/rte", 60),
        ("glue/mrpc", 77.5),
    ]
    assert all(Path(row["record"]).is_file() for row in rows)


def test_an_ensemble_and_a_ceiling_are_no_models(tmp_path: Path) -> None:
    records = [*one_model(), record("ensemble", "ensemble", RTE, "current", 0.9)]
    records.append(record("ceiling", "emr", RTE, "current", 0.9))
    assert [*exported(records, "lm-eval", tmp_path)] == ["m/results.json"]


def test_names_that_are_one_folder_are_two(tmp_path: Path) -> None:
    pair = [record("merged", name, RTE, "current", 0.5) for name in ("a b", "a-b")]
    assert {*exported(pair, "lm-eval", tmp_path)} == {"a-b/results.json", "a-b-/results.json"}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--format", "every-eval-ever"], "organization missing"),
        (["--format", "csv", "--organization", "x"], "organization x"),
        (["--format", "every-eval-ever", "--organization", ""], "organization ''"),
        (["--format", "every-eval-ever", "--organization", " "], "organization ' '"),
        (["--format", "bibtex"], "bibtex"),
        (["--format", "csv", "--max-length", "0"], "max_length is 0, greater than 0"),
    ],
)
def test_what_does_not_fit_is_one_line(flags: list[str], says: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "records", one_model())
    refused(["export", str(folder), *flags, "--out", str(tmp_path / "out")], object, says)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("date", ["today", "9" * 5000])
def test_a_date_that_is_none_is_one_line(
    date: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", date)
    folder = written(tmp_path / "records", one_model())
    flags = ["--format", "every-eval-ever", "--organization", "us", "--out", str(tmp_path / "out")]
    said = refused(["export", str(folder), *flags], BadOption, "SOURCE_DATE_EPOCH", date[:80], 1970)
    assert len(said) < 200


@pytest.mark.parametrize("format", [one for one in (*ASKED, "csv") if one != "every-eval-ever"])
def test_an_export_without_a_date_needs_none(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "today")
    assert len(exported(one_model(), format, tmp_path)) == 1


def test_more_models_are_exported_than_files_may_be_open(tmp_path: Path) -> None:
    """Some systems let a program open 256, and all files of an export are made before any."""
    many = [record("merged", f"m{number}", RTE, "current", 0.5) for number in range(120)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 110, hard))
    try:
        assert len(exported(many, "lm-eval", tmp_path)) == 120
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_hostile_text_is_what_it_was(tmp_path: Path) -> None:
    """Nothing is lost of it but that it could do anything."""
    files = exported(hostile(), "lm-eval", tmp_path)
    names = {json.loads(text)["model_name"] for text in files.values()}
    shown = HOSTILE.replace("\n", "\\n").replace("\x1b", "\\x1b")
    assert all(name.startswith(shown) for name in names)
