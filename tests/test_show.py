"""What a task holds, printed before anybody trains; and files as people have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.cli import main
from harness.errors import BadData, BadOption, UnknownName
from tests.conftest import model
from tests.mistakes import names, refused

pytestmark = pytest.mark.usefixtures("as_found")
TAGS = "kind: tagging\ntext: words\nlabel: tags\nfiles: ."
CLASSES = "text: body\nlabel: mood\nfiles: ."


def described(folder: Path, said: str) -> str:
    (folder / "mine.yaml").write_text(said)
    return str(folder / "mine.yaml")


def shown(task: str, capsys: pytest.CaptureFixture[str], *flags: str) -> Any:
    capsys.readouterr()
    assert main(["show", task, "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def classes(folder: Path, *splits: str, ending: str = "csv") -> None:
    for split in splits:
        rows = [f"{split} word{i} word{i},{['bad', 'good'][i % 3 > 0]}\n" for i in range(6)]
        (folder / f"{split}.{ending}").write_text("body,mood\n" + "".join(rows))


def test_a_task_is_shown_as_it_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classes(tmp_path, "train", "test")
    (tmp_path / "test.csv").write_text("body,mood\ntrain word0 word0,bad\nword1,good\n")
    task, base = described(tmp_path, CLASSES), str(model(tmp_path / "base"))
    words = shown(task, capsys)
    assert words["labels"] == ["bad", "good"]
    train, test = words["splits"]["train"], words["splits"]["test"]
    assert (train["rows"], test["rows"]) == (6, 2)
    assert train["labels"] == {"bad": 2, "good": 4}
    assert train["lengths"] == {"unit": "words", "median": 3, "95 %": 3, "longest": 3}
    assert (train["shared_with_train"], test["shared_with_train"]) == (None, 1)
    assert test["examples"][1] == {"texts": ["word1"], "labels": ["good"]}
    tokens = shown(task, capsys, "--base", base, "--max-length", "4")["splits"]["train"]
    assert tokens["lengths"]["longest"] == 5
    assert tokens["cut_off"] == {"lost": 6, "count": 6, "words": 0, "longest": 5}
    assert shown(task, capsys, "--model", base, "--max-length", "auto")["max_length"] == 5
    assert main(["show", task, "--model", base, "--max-length", "4"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    names(said, "train: 6 of 6 (100.0%) 4 test: 1")


def test_a_label_is_shown_to_the_letter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where all of them look like numbers."""
    (tmp_path / "train.csv").write_text("body,mood\na,007\nb,1.50\n")
    assert main(["show", described(tmp_path, CLASSES)]) == 0
    assert {"007", "1.50"} <= {
        line.split()[0] for line in capsys.readouterr().out.split("\n") if line
    }


def test_what_is_shown_is_what_is_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = "embedded/names"
    told = shown(task, capsys)["splits"]
    assert told["test"]["rows"] == 500
    assert told["test"]["labels"].keys() == {*harness.TASKS[task].labels}
    assert shown("embedded/mentions", capsys)["splits"]["train"]["rows"] == 2000
    assert shown("embedded/outcome", capsys)["splits"]["train"]["labels"].keys() >= {"mean"}


def test_several_tasks_are_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of each what is shown of it alone; labels that no row has are not counted."""
    classes(tmp_path, "train", "test")
    first = described(tmp_path, CLASSES)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.txt").write_text("a O\nb B-X\nc I-X\n\nd O\n\ne O\n")
    said = f"name: tags\nlabels: [O, B-X, I-X, B-Y]\n{TAGS.replace('.', 'other')}"
    (tmp_path / "tags.yaml").write_text(said)
    names = f"{first},{tmp_path}/tags.yaml,embedded/outcome"
    several = shown(names, capsys)
    assert several == [shown(name, capsys) for name in names.split(",")]
    assert several[1]["splits"]["train"]["units"] == 5
    assert main(["show", names]) == 0
    heading, _, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[2:5] == ["train", "test", "labels"]
    assert [" ".join(line.split()) for line in lines[:3]] == [
        "mine classification 6 6 2 good 66.7% words 3 3 3",
        "tags tagging 3 3 O 60.0% words 1 3 3",
        "embedded/outcome regression 2000 500 words 11 12 12",
    ]


def test_a_group_is_its_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that are there, and one alone as well."""
    (tmp_path / "glue" / "sst2").mkdir(parents=True)
    for split in ("train", "validation"):
        text = f"sentence,label\n{split} b,0\n{split} d,1\n"
        (tmp_path / "glue" / "sst2" / f"{split}.csv").write_text(text)
    where = ["--data-dir", str(tmp_path)]
    assert [one["task"] for one in shown("glue", capsys, *where)] == ["glue/sst2"]
    assert shown("glue/sst2", capsys, *where)["task"] == "glue/sst2"
    refused(["show", "ner", *where], BadData, "ner", tmp_path)
    refused(["show", "glue/sst2,glue/rtx", *where], UnknownName, "glue/rtx")


def test_texts_that_repeat_and_labels_without_a_row_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classes(tmp_path, "train")
    (tmp_path / "test.csv").write_text("body,mood\nWord1  one,good\nword2,good\nword1 one,good\n")
    task = described(tmp_path, CLASSES)
    counts = {split: one["repeated_texts"] for split, one in shown(task, capsys)["splits"].items()}
    assert counts == {"train": 0, "test": 1}
    assert main(["show", task]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("test: ")][:2] == [
        "test: 1 text repeats an earlier one", "test: nothing is labelled bad",
    ]  # fmt: skip


def test_texts_that_are_empty_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a split that has any; a row of words is one text."""
    rows = [{"body": text, "mood": "good"} for text in (None, " ", "word1")]
    rows += [{"body": "word2", "mood": "bad"}]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "test.csv").write_text("body,mood\n,bad\nword3,good\n")
    classes(tmp_path, "dev")
    task = described(tmp_path, CLASSES)
    splits = shown(task, capsys)["splits"]
    counts = {split: one["empty_texts"] for split, one in splits.items()}
    assert counts == {"train": 2, "test": 1, "validation": 0}
    assert main(["show", task]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.endswith("empty")]
    assert lines == ["train: 2 texts are empty", "test: 1 text is empty"]
    (tmp_path / "words").mkdir()
    tagged = [{"words": ["a", ""], "tags": ["B-X", "O"]}, {"words": [""], "tags": ["O"]}]
    (tmp_path / "words" / "train.jsonl").write_text("\n".join(map(json.dumps, tagged)))
    task = described(tmp_path / "words", TAGS)
    assert shown(task, capsys)["splits"]["train"]["empty_texts"] == 1


@pytest.mark.filterwarnings("ignore:.*mine.xlsx is no file")  # the error follows
def test_what_cannot_be_shown_is_one_line(tmp_path: Path) -> None:
    classes(tmp_path, "train")
    task = described(tmp_path, CLASSES)
    refused(["show", f"{task}@train90"], BadOption, "splits")
    refused(["show", task, "--max-length", "4"], BadOption, "--model")
    refused(["show", "glue/rtx"], UnknownName, "glue/rtx glue/rte")
    refused(["show", "glue/rte", "--data-dir", tmp_path], BadData, "glue/rte", tmp_path)
    (tmp_path / "mine.xlsx").write_text("")
    table = described(tmp_path, CLASSES.replace("files: .", "files: {train: mine.xlsx}"))
    refused(["show", table], BadData, ".xlsx .parquet .jsonl .json .csv .tsv .conll .txt")
    (tmp_path / "mine.xlsx").unlink()
    refused(["show", table], BadData, "mine.xlsx train")
    (tmp_path / "test.csv").write_bytes((tmp_path / "train.csv").read_bytes())
    refused(["show", described(tmp_path, CLASSES)], BadData, "same rows")


# Files as people have them -----------------------------------------------------------------


@pytest.mark.parametrize("ending", ["conll", "txt"])
@pytest.mark.parametrize(
    "text",
    {
        "plain": "New B-LOC\nYork I-LOC\n\nto O\n",
        "no last line end": "New B-LOC\nYork I-LOC\n\nto O",
        "Windows": "New B-LOC\r\nYork I-LOC\r\n\r\nto O\r\n",
        "a mark of byte order": "\ufeffNew B-LOC\nYork I-LOC\n\nto O\n",
        "documents": "-DOCSTART- -X- O O\n\nNew B-LOC\nYork I-LOC\n\n-DOCSTART- O\nto O\n",
        "tabs": "New\tNNP\tB-LOC\nYork\tNNP\tI-LOC\n\t\nto\tTO\tO\n",
        "comments": "# id = 1 en\nNew B-LOC\nYork I-LOC\n\n# text\tof two\nto O\n",
        "blanks": "New   B-LOC \nYork  I-LOC\n \n\n\nto O\n",
    }.items(),
    ids=lambda one: one[0],
)
def test_tag_files_are_read_alike(
    ending: str, text: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"train.{ending}").write_bytes(text[1].encode())
    train = shown(described(tmp_path, TAGS), capsys)["splits"]["train"]
    assert [one["texts"] for one in train["examples"]] == [["New", "York"], ["to"]]
    assert train["labels"] == {"O": 1, "B-LOC": 1, "I-LOC": 1}


def test_a_word_may_have_any_sign_but_those_between_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No-break spaces and the line ends of other alphabets part neither columns nor lines."""
    words = ["100\u00a0000", "a\u2028b", "c\u0085d", "New York"]
    lines = "".join(f"{word}\tO\n" for word in words)
    (tmp_path / "train.txt").write_text(f"{lines}x\tB-X\n", encoding="utf-8")
    train = shown(described(tmp_path, TAGS), capsys)["splits"]["train"]
    assert train["examples"][0]["texts"] == [*words, "x"]


BROKEN: dict[str, tuple[bytes, str]] = {
    "UTF-16": ("New B-LOC\n".encode("utf-16"), "words tags"),
    "UTF-16 without a mark": ("N O\n".encode("utf-16-le"), "text UTF-8"),
    "no letters": (b"a\0b O\nx B-X\n", "text UTF-8"),
    "a tab in a word": (b"New\tYork\tB-LOC\nx\tO\n", "line 2"),
    "a column more": (b"a O\nb x B-X\n", "3 columns 2 line 1"),
    "no tag": (b"a O\nb\n", "b word tag"),
    "a long line": (b"a" * 10_000_000 + b" O\nb B-X\n", "letters long"),
    "swapped": (b"".join(b"O word%d\n" % i for i in range(300)), "O B-TYPE"),
    "nothing": (b"\n\n", "rows labels"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_tag_file_is_one_line(case: str, tmp_path: Path) -> None:
    content, said = BROKEN[case]
    (tmp_path / "train.txt").write_bytes(content)
    assert len(refused(["show", described(tmp_path, TAGS)], BadData, said)) < 1000


def test_words_and_tags_are_no_classes(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a O\nb B-X\n")
    refused(["show", described(tmp_path, CLASSES)], BadData, "words and tags mine .csv")


@pytest.mark.parametrize("name", ["dev", "valid", "val"])
def test_validation_may_be_called_otherwise(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a folder of one's own and in one of published data."""
    classes(tmp_path, "train", name)
    for said in (CLASSES, CLASSES.replace("files: .", "files: '{split}.csv'")):
        task = described(tmp_path, said)
        assert [*shown(task, capsys)["splits"]] == ["train", "validation"]
        assert shown(task, capsys)["reported"] == "validation"
    place = tmp_path / "data" / "glue" / "sst2"
    place.mkdir(parents=True)
    for split in ("train", name):
        (place / f"{split}.csv").write_text(f"sentence,label\n{split} one,0\n{split} two,1\n")
    told = shown("glue/sst2", capsys, "--data-dir", str(tmp_path / "data"))
    assert told["splits"]["validation"]["rows"] == 2
    for folder, task in ((place, "glue/sst2"), (tmp_path, described(tmp_path, CLASSES))):
        other = "dev" if name == "val" else "val"
        (folder / f"{other}.csv").write_bytes((folder / f"{name}.csv").read_bytes())
        refused(["show", task, "--data-dir", tmp_path / "data"], BadData, "validation")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_folder_may_have_an_accent_in_locale_c(ending: str, tmp_path: Path) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    folder = tmp_path / "donn\u00e9es"
    folder.mkdir()
    classes(folder, "train")
    table = pyarrow.csv.read_csv(str(folder / "train.csv"))
    if ending == "parquet":
        pyarrow.parquet.write_table(table, str(folder / "train.parquet"))
    task = described(folder, CLASSES.replace("files: .", f"files: train.{ending}"))
    command = [sys.executable, "-m", "harness", "show", Path(task).name]
    known = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, env=known, cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


HYPER = {
    "batch_size": [".inf", ".nan", "-1", "0", "1e9", "2.5", "four", "99999999999", "true"],
    "max_length": [".inf", "inf", "0", "1e9", "2.5", "-8"],
    "epochs": ["inf", "nan", "0", "-1", "1e9"],
    "learning_rate": ["inf", "nan", "0", "-1e-5", "fast"],
    "warmup": ["-0.1", "2", "nan"],
    "weight_decay": ["inf", "-1", "nan"],
}


@pytest.mark.parametrize("field", HYPER)
def test_a_hyperparameter_out_of_range_is_one_line(
    field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classes(tmp_path, "train")
    for value in HYPER[field]:
        task = described(tmp_path, f"{CLASSES}\nfinetune: {{{field}: {value}}}")
        refused(["show", task], BadData, field)
    for value in ("1", "1.0"):
        good = described(tmp_path, f"{CLASSES}\nname: n{value[1:]}\nfinetune: {{{field}: {value}}}")
        assert shown(good, capsys)["splits"]["train"]["rows"] == 6
