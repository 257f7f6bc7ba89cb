"""What a maximum length cuts off is said with what is lost; `auto` is the length that is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import harness
from harness import Run
from harness.cli import main
from harness.errors import BadOption, HarnessError
from harness.passes.statistic_file import read_statistic
from tests.conftest import TAGS as LABELS
from tests.conftest import WORDS, model
from tests.mistakes import names, refused
from tests.toys import THREE, TOY, registered

pytestmark = [
    pytest.mark.usefixtures("as_found"),
    pytest.mark.filterwarnings("default:.* are cut off at "),  # as they are told, not as errors
]
TAGGED = [
    # words beyond the third are cut off at five tokens: an entity, a half, none
    ("a b c d e f", "O O O B-PER O O"),
    ("a b c d", "O O B-LOC I-LOC"),
    ("a b c d e", "B-PER O O O O"),
    ("a", "B-PER"),
]


@pytest.fixture
def tagging(tmp_path: Path) -> str:
    """A task of words, and a model that reads it."""
    (tmp_path / "data").mkdir()
    for split in ("train", "test"):
        lines = [zip(words.split(), tags.split(), strict=True) for words, tags in TAGGED]
        text = "\n\n".join("\n".join(map(" ".join, line)) for line in lines)
        (tmp_path / f"data/{split}.conll").write_text(text.replace("a ", f"{split} "))
    labels = ", ".join(LABELS)
    (tmp_path / "mine.yaml").write_text(
        f"kind: tagging\ntext: words\nlabel: tags\nlabels: [{labels}]\nfiles: data\n"
    )
    model(tmp_path / "tagger", LABELS, unit="word")
    return str(tmp_path / "mine.yaml")


@pytest.fixture
def classes() -> Iterator[None]:
    with registered(TOY, THREE):
        yield


def settings(out: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text())["settings"] for file in sorted(out.rglob("*.json"))]


def evaluated(folder: Path, task: str, out: Path, *flags: str) -> int:
    command = ["evaluate", "--model", str(folder), "--tasks", task, "--protocols", "current"]
    return main([*command, "--device", "cpu", "--output-path", str(out), *flags])


def test_entities_that_are_cut_off_are_counted_and_told(
    tagging: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "records"
    capsys.readouterr()
    assert evaluated(tmp_path / "tagger", tagging, out, "--max-length", "5") == 0
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "cut off" in line)
    assert "mine@test: 6 words are cut off at 5 tokens" in line
    assert "2 of 4 gold entities (50.0%)" in line
    assert "the longest row has 8: see --max-length auto" in line
    assert evaluated(tmp_path / "tagger", tagging, out, "--max-length", "auto") == 0
    assert "cut off" not in capsys.readouterr().err
    assert {one["max_length"] for one in settings(out)} == {5, 8}


def test_rows_that_are_cut_off_are_counted_and_told(
    minis: Any, classes: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.data.rows import load_rows

    lengths = [sum(len(text.split()) for text in row) + 3 for row in load_rows(TOY, "test").texts]
    cut = sum(length > 12 for length in lengths)
    assert 0 < cut < len(lengths)
    assert evaluated(minis("bert")["a"], TOY.name, tmp_path / "r", "--max-length", "12") == 0
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "cut off" in line)
    names(line, f"{cut} of {len(lengths)} ({cut / len(lengths):.1%}) 12 {max(lengths)}")
    assert evaluated(minis("bert")["a"], TOY.name, tmp_path / "r") == 0, "128, the task's"
    assert "cut off" not in capsys.readouterr().err


def test_auto_is_the_number_that_it_comes_to(minis: Any, classes: None, tmp_path: Path) -> None:
    """In values, in what is kept and where records lie."""
    folder = str(minis("bert")["a"])
    usual: dict[str, Any] = {"model": folder, "tasks": (TOY.name,), "device": "cpu", "draws": 1}
    usual |= {"shots": (2,), "base": str(minis("bert")["base"])}
    usual |= {"protocols": ("current", "knn")}
    auto = harness.evaluate(Run(**usual, max_length="auto", output=str(tmp_path / "auto")))
    number = auto[0].settings["max_length"]
    assert 3 < number < 40
    given = harness.evaluate(Run(**usual, max_length=number, output=str(tmp_path / "given")))
    assert given == auto
    names = [
        sorted(path.name for path in (tmp_path / o).rglob("*.json")) for o in ("auto", "given")
    ]
    assert names[0] == names[1]
    plain = harness.evaluate(Run(**usual, output=str(tmp_path / "plain")))
    assert [r.scores for r in plain] == [r.scores for r in auto], "nothing is cut off by either"


@pytest.mark.parametrize(("family", "able"), [("bert", 40), ("roberta", 39)])
def test_auto_is_no_more_than_the_model_can(
    family: str, able: int, minis: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """RoBERTa's first positions are those of padding."""
    for split in ("train", "test"):
        rows = [{"body": " ".join(WORDS[:5] * 12), "y": "no"}, {"body": split, "y": "yes"}]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "long.yaml").write_text("text: body\nlabel: y\nfiles: .\n")
    task, out = str(tmp_path / "long.yaml"), tmp_path / "records"
    assert evaluated(minis(family)["a"], task, out, "--max-length", "auto") == 0
    assert [one["max_length"] for one in settings(out)] == [able]
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "cut off" in line)
    names(line, f"1 of 2 (50.0%) {able} 62")
    assert evaluated(minis(family)["a"], task, tmp_path / "more", "--max-length", "50") == 2
    (line,) = capsys.readouterr().err.splitlines()
    names(line, f"long@test 50 {able} --max-length {able} auto")


def test_an_expert_is_trained_at_the_length_it_needs(
    minis: Any, tagging: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for length in ("auto", "8", "5"):
        command = ["finetune", "--base", str(minis("bert")["base"]), "--task", tagging]
        command += ["--epochs", "1", "--max-length", length, "--out", str(tmp_path / length)]
        assert main(command) == 0
        told = "words are cut off at 5 tokens" in capsys.readouterr().err
        assert told == (length == "5")
    records = [json.loads((tmp_path / one / "expert.json").read_text()) for one in ("auto", "8")]
    assert records[0] == records[1]
    assert records[0]["hyperparameters"]["max_length"] == 8
    weights = [(tmp_path / one / "model.safetensors").read_bytes() for one in ("auto", "8")]
    assert weights[0] == weights[1]


def test_statistics_and_merges_are_of_rows_at_the_length_that_is_asked_for(
    minis: Any, classes: None, tmp_path: Path
) -> None:
    experts = [str(minis("bert")[name]) for name in "ab"]
    files = []
    for place, expert in enumerate(experts):
        files.append(str(tmp_path / f"{place}.safetensors"))
        command = ["statistics", expert, "--task", TOY.name, "--out", files[-1]]
        assert main([*command, "--merger", "regmean:examples=8", "--max-length", "auto"]) == 0
    numbers = {read_statistic(file).header.facts.max_length for file in files}
    assert len(numbers) == 1
    (number,) = numbers
    assert number < 40
    merge = ["merge", *experts, "--merger", "regmean:examples=8", "--tasks", TOY.name]
    for out, flags in {
        "files": ["--statistics", ",".join(files)],
        "auto": ["--max-length", "auto"],
        "given": ["--max-length", str(number)],
        "short": ["--max-length", "4"],
    }.items():
        assert main([*merge, "--out", str(tmp_path / out), *flags]) == 0
    made = {out: (tmp_path / out / "model.safetensors").read_bytes() for out in
            ("files", "auto", "given", "short")}  # fmt: skip
    assert made["files"] == made["auto"] == made["given"] != made["short"]
    said = json.loads((tmp_path / "auto" / "merge.json").read_text())
    assert said["max_length"] == {f"{TOY.name}@train90": number}
    tuned = [*merge[:3], "--base", str(minis("bert")["base"]), "--merger", "task_arithmetic"]
    tuned += ["--tasks", TOY.name, "--tune", "scale=0.5:1:0.5", "--max-length", "auto"]
    assert main([*tuned, "--out", str(tmp_path / "tuned")]) == 0
    said = json.loads((tmp_path / "tuned" / "merge.json").read_text())
    assert 3 < said["max_length"][f"{TOY.name}@heldout10"] < 40


@pytest.mark.parametrize(
    "length", ["0", "-3", "2.5", "1e9", "99999999999", "automatic", "true", ""]
)
def test_another_length_is_one_line(length: str, minis: Any, classes: None, tmp_path: Path) -> None:
    expert, out = str(minis("bert")["a"]), str(tmp_path / "out.safetensors")
    commands = [
        ["evaluate", "--model", expert, "--tasks", TOY.name, "--output-path", out],
        ["finetune", "--base", expert, "--task", TOY.name, "--out", out],
        ["statistics", expert, "--task", TOY.name, "--out", out],
        ["merge", expert, expert, "--tasks", TOY.name, "--out", out],
    ]
    for command in commands:
        refused([*command, "--max-length", length], HarnessError, "max_length 0")
    assert not list(tmp_path.iterdir())


def test_a_preset_reads_one_length(minis: Any, classes: None, tmp_path: Path) -> None:
    command = ["finetune", "--base", str(minis("bert")["base"]), "--task", TOY.name]
    command += ["--out", str(tmp_path / "x"), "--max-length", "auto"]
    refused([*command, "--preset", "ft-classifier"], BadOption, "--preset")
