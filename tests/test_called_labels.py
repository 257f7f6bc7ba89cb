"""A label is what it is called, in a list, in every kind of file and in a head; never its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import harness
from harness import Run
from harness.cli import main
from harness.errors import BadData
from tests.conftest import WORDS, model
from tests.mistakes import refused

pytestmark = pytest.mark.usefixtures("as_found")


def write(path: Path, values: list[Any], kind: Any = None) -> None:
    """A split with these values as labels; `kind` is the type of a Parquet column."""
    rows = [
        {"body": f"{path.stem[:2]} {WORDS[i]} {WORDS[-i]}", "y": v} for i, v in enumerate(values)
    ]
    if path.suffix == ".csv":
        path.write_text("body,y\n" + "".join(f"{row['body']},{row['y']}\n" for row in rows))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        columns = {"body": [row["body"] for row in rows], "y": pa.array(values, type=kind)}
        pq.write_table(pa.table(columns), path)


def described(folder: Path, said: str) -> str:
    (folder / "mine.yaml").write_text(f"text: body\nlabel: y\nfiles: .\n{said}\n")
    return str(folder / "mine.yaml")


def saying(folder: Path, labels: list[str], said: str) -> Path:
    """A classifier that says one label of every row, whatever the order of its outputs."""
    import torch
    from safetensors.torch import load_file, save_file

    model(folder, labels)
    state = load_file(folder / "model.safetensors")
    state["classifier.weight"] = torch.zeros_like(state["classifier.weight"])
    bias = torch.tensor([float(one == said) for one in labels])
    save_file(
        {**state, "classifier.bias": bias}, folder / "model.safetensors", metadata={"format": "pt"}
    )
    return folder


INT8, BOOL, F32 = pa.int8(), pa.bool_(), pa.float32()
TEXT = pa.dictionary(pa.int8(), pa.string())
#: what the description says, the values of train and of test, the ending, what a head of these
#: labels says of all rows, and of how many test rows that is right
READ: dict[str, tuple[str, list[Any], list[Any], str, Any, list[str], str, int]] = {
    "swapped": ("labels: [1, 0]", [1, 0], [1, 0, 1, 1], "csv", None, ["1", "0"], "1", 3),
    "swapped, JSON": ("labels: [1, 0]", [1, 0], [1, 0, 1, 1], "jsonl", None, ["1", "0"], "1", 3),
    "the head's order": ("labels: [1, 0]", [1, 0], [1, 0, 1, 1], "csv", None, ["0", "1"], "1", 3),
    "booleans": (
        "labels: [true, false]", [True, False], [True, False, True, True], "jsonl", None,
        ["true", "false"], "true", 3,
    ),
    "booleans, columns": (
        "labels: [true, false]", [True, False], [True, False, True, True], "parquet", BOOL,
        ["true", "false"], "true", 3,
    ),
    "booleans, written": (
        "labels: [true, false]", ["True", "False"], ["TRUE", "false", "True"], "csv", None,
        ["true", "false"], "true", 2,
    ),
    "stars": ("labels: [1, 2, 3, 4, 5]", [1, 2, 3, 4], [1, 4, 4], "csv", None, [*"12345"], "4", 2),
    "stars, small": ("labels: [1, 2, 3]", [1, 2], [1, 2, 2], "parquet", INT8, [*"123"], "2", 2),
    "stars, floats": ("labels: [1, 2, 3]", [1, 2], [1, 2, 2], "parquet", F32, [*"123"], "2", 2),
    "stars, 2.0": ("labels: [1, 2, 3]", [1, 2.0], ["1", "2.0", "2"], "csv", None, [*"123"], "2", 2),
    "text": ("labels: ['2', '1']", ["1", "2"], ["1", "2", "2"], "parquet", TEXT, [*"21"], "2", 2),
    "yes": ("labels: [yes, no]", ["yes", "no"], ["no", "yes"], "csv", None, ["yes", "no"], "no", 1),
    "codes": ("labels: [010, 8]", ["010", 8], ["8", "010", 8], "csv", None, ["010", "8"], "8", 2),
    "signs": ("labels: [1, -1]", [1, -1], [-1, 1, -1], "csv", None, ["1", "-1"], "-1", 2),
    "fractions": ("labels: [0.1, 1]", [0.1, 1], [1, 0.1], "parquet", F32, ["0.1", "1"], "0.1", 1),
    "from data": ("", [3, 1, 2, 1], [1, 3, 3], "csv", None, [*"123"], "3", 2),
    "from data, floats": ("", [3.0, 1.0], [1.0, 3.0, 3.0], "jsonl", None, ["1", "3"], "3", 2),
    "from data, large": (
        "", [1234567.0, 1234568.0], [1234568.0, 1234567.0, 1234568.0], "parquet", pa.float64(),
        ["1234567", "1234568"], "1234568", 2,
    ),
    "renamed": (
        "labels: [low, high]\nrenamed: {2: low, 1: high}", [1, 2], [2, 2, 1], "csv", None,
        ["low", "high"], "low", 2,
    ),
    "renamed booleans": (
        "labels: [ham, spam]\nrenamed: {true: spam, false: ham}", [True, False],
        [True, True, False], "jsonl", None, ["ham", "spam"], "spam", 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_a_value_is_the_label_that_it_is_called_by(case: str, tmp_path: Path) -> None:
    said, train, test, ending, kind, labels, held, right = READ[case]
    write(tmp_path / f"train.{ending}", train, kind)
    write(tmp_path / f"test.{ending}", test, kind)
    run = Run(
        model=str(saying(tmp_path / "model", labels, held)),
        tasks=(described(tmp_path, said),),
        protocols=("current",),  # type: ignore[arg-type]  # a text is read as a choice
        output=str(tmp_path / "records"),
        device="cpu",
    )
    (record,) = harness.evaluate(run)
    assert record.scores[0].parts["accuracy"] == pytest.approx(right / len(test))


REFUSED: dict[str, tuple[str, list[Any], list[Any], str, str]] = {
    "places for words": (
        "labels: [neg, pos]", ["neg", "pos"], [0, 1], "csv",
        "label 0 neg pos renamed {0 neg}",
    ),
    "places for booleans": (
        "labels: [true, false]", [True, False], [1, 0], "csv",
        "label 1 true false",
    ),
    "booleans for numbers": (
        "labels: [1, 0]", [1, 0], [True, False], "jsonl",
        "label True 1 0",
    ),
    "below": ("labels: [0, 1]", [0, 1], [-1, 1], "csv", "label -1 0 1"),
    "beside": ("labels: [0.5, 1.5]", [0.5, 1.5], [15], "csv", "label 15"),
    "between": ("labels: [1, 2]", [1, 2], [1.5], "jsonl", "label 1.5"),
    "nothing": ("", ["a", "b"], ["a", None], "jsonl", "label None a, b"),
    "an empty cell": ("", ["a", "b"], ["a", ""], "csv", "label '' a, b"),
    "no number": ("", [1.0, 0.0], [float("nan")], "parquet", "label nan"),
    "case": ("", ["Pos", "neg", "pos"], ["pos"], "csv", "labels Pos pos"),
    "lists of numbers": (
        "kind: multilabel\nlabels: [1, 0]", [[1, 0]], [[1, 0]], "jsonl",
        "labels [1, 0], names 1, 0 text",
    ),
    "lists without names": (
        "kind: multilabel", [[1, 0, 1]], [[1, 0, 0]], "jsonl",
        "labels [1, 0, 1]",
    ),
    "lists in no order": (
        "kind: multilabel", [["b"], ["a"]], [[1, 0]], "jsonl",
        "labels [1, 0], names b text",
    ),
    "places of classes as text": (
        "kind: multilabel\nlabels: [a, b]", [["b"], ["a"]], [["1", "0"]], "jsonl",
        "row 1 labels ['1', '0'] list 0 1",
    ),
    "numbers of truth": (
        "kind: regression", [True, False], [True], "jsonl", "True finite"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_label_is_one_line(case: str, tmp_path: Path) -> None:
    said, train, test, ending, expected = REFUSED[case]
    write(tmp_path / f"train.{ending}", train)
    write(tmp_path / f"test.{ending}", test)
    folder = model(tmp_path / "model", ["a", "b"] if "regression" not in said else [])
    command = ["evaluate", "--model", str(folder), "--tasks", described(tmp_path, said)]
    out = tmp_path / "records"
    refused([*command, "--protocols", "current", "--output-path", str(out)], BadData, expected)
    assert not out.exists()


def test_tags_are_read_by_name_too(tmp_path: Path) -> None:
    """Numbers among them are refused, unless it is said which tag each of them is."""
    for split in ("train", "test"):
        lines = [f"{word} {index % 2}" for index, word in enumerate(WORDS[:6])]
        (tmp_path / f"{split}.conll").write_text(
            "\n".join([split, *lines]).replace(split, f"{split} 0")
        )
    folder = model(tmp_path / "model", ["O", "B-X"], unit="word")
    said = "kind: tagging\nname: {}\nlabels: [O, B-X]\n{}"
    command = ["evaluate", "--model", str(folder), "--protocols", "current", "--device", "cpu"]
    command += ["--output-path", str(tmp_path / "records"), "--tasks"]
    refused([*command, described(tmp_path, said.format("bare", ""))], BadData, "0 B-X")
    assert (
        main([*command, described(tmp_path, said.format("told", "renamed: {1: O, 0: B-X}"))]) == 0
    )


def test_a_file_that_names_its_classes_is_read_by_its_names(tmp_path: Path) -> None:
    """Numbers stand for the names of the file's own header, whatever order the task lists."""
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"body": Value("string"), "y": ClassLabel(names=["no", "maybe", "yes"])})
    for split, values in {"train": [0, 1, 2], "test": [2, 2, 0]}.items():
        rows = [{"body": f"{split} {WORDS[i]}", "y": value} for i, value in enumerate(values)]
        Dataset.from_list(rows, features=features).to_parquet(tmp_path / f"{split}.parquet")
    run = Run(
        model=str(saying(tmp_path / "model", ["yes", "no", "maybe"], "yes")),
        tasks=(described(tmp_path, "labels: [yes, no, maybe]"),),
        protocols=("current",),  # type: ignore[arg-type]  # a text is read as a choice
        output=str(tmp_path / "records"),
        device="cpu",
    )
    (record,) = harness.evaluate(run)
    assert record.scores[0].parts["accuracy"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("wrapped", ["list", "feature"])
def test_a_header_names_what_is_in_lists(
    wrapped: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Older files write a list of classes as a list; numbers are in the header's order, too."""
    names = {"names": ["B-X", "O"], "_type": "ClassLabel"}
    column: Any = [names] if wrapped == "list" else {"feature": names, "_type": "List"}
    for split in ("train", "test"):
        table = pa.table({"body": [[split, WORDS[3]], [split, WORDS[4]]], "y": [[1, 0], [1, 1]]})
        told = {"huggingface": json.dumps({"info": {"features": {"y": column}}})}
        pq.write_table(table.replace_schema_metadata(told), tmp_path / f"{split}.parquet")
    said = described(tmp_path, "kind: tagging\nlabels: [O, B-X]")
    capsys.readouterr()
    assert main(["show", said, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"]["test"]["labels"] == {"O": 3, "B-X": 1}
