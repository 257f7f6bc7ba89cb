"""A user's own data as a task, in a few lines of YAML, of every kind; and groups of tasks."""

from __future__ import annotations

import csv
import json
import unicodedata
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import harness
from harness import Run
from harness.cli import main
from harness.data.groups import expanded, groups
from harness.data.rows import load_rows
from harness.data.splits import parse_task
from harness.errors import BadData, BrokenCheckpoint, HarnessError
from harness.kinds import kind_of
from tests.conftest import FAST, WORDS, model
from tests.mistakes import mistake, refused
from tests.resampled import read_records

WORDS_OF = {"good": WORDS[2:12], "bad": WORDS[12:22], "so-so": WORDS[22:32]}


pytestmark = pytest.mark.usefixtures("as_found")


def reviews(count: int) -> list[dict[str, Any]]:
    """Rows with a label of text, one of numbers that begin at one, and two that may hold."""
    rows = []
    for index in range(count):
        label = [*WORDS_OF][index % 3]
        words = WORDS_OF[label][index % 7 : index % 7 + 3]
        rows.append(
            {
                "title": f"word{index % 40}",
                "body": " ".join(words),
                "verdict": label,
                "stars": index % 3 + 1,
                "value": index % 5 + 0.5,
                "moods": [mood for mood in ("glad", "calm") if (index % 3 > 0) == (mood == "glad")],
                "words": words,
                "tags": ["B-X", "I-X", "O"] if label == "good" else ["O", "O", "O"],
            }
        )
    return rows


def written(folder: Path, *splits: str, suffix: str = "jsonl") -> Path:
    """A folder with files of reviews."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in splits:
        path = folder / f"{split}.{suffix}"
        rows = reviews(60 if split == "train" else 18)
        rows = [{**row, "title": f"{split} {row['title']}"} for row in rows]  # texts of its own
        if suffix == "jsonl":
            path.write_text("\n".join(map(json.dumps, rows)))
        elif suffix == "csv":
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, ["title", "body", "verdict", "stars"])
                writer.writeheader()
                writer.writerows({k: row[k] for k in writer.fieldnames} for row in rows)
        else:
            lines = (zip(row["words"], row["tags"], strict=True) for row in rows)
            path.write_text("\n\n".join("\n".join(map(" _ ".join, line)) for line in lines) + "\n")
    return folder


def described(folder: Path, text: str, name: str = "mine") -> str:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return str(path)


#: kind -> five lines, what is read, the least score of an expert
FIVE_LINES: dict[str, tuple[str, tuple[str, ...]]] = {
    "classification": (
        "text: [title, body]\nlabel: verdict\nlabels: from data\nfiles: data",
        ("bad", "good", "so-so"),
    ),
    "regression": ("kind: regression\ntext: body\nlabel: value\nfiles: data", ()),
    "multilabel": ("kind: multilabel\ntext: body\nlabel: moods\nfiles: data", ("calm", "glad")),
    "tagging": ("kind: tagging\ntext: words\nlabel: tags\nfiles: data", ("O", "B-X", "I-X")),
}


@pytest.mark.parametrize("kind", FIVE_LINES)
def test_five_lines_are_a_task_from_training_to_a_board(kind: str, tmp_path: Path) -> None:
    text, labels = FIVE_LINES[kind]
    written(tmp_path / "data", "train", "test")
    spelled = described(tmp_path, text)
    base = model(tmp_path / "base")
    for seed in (0, 1):
        settings = {**FAST, "epochs": 1, "seed": seed}
        harness.finetune(base, spelled, out=tmp_path / f"e{seed}", **settings)
    task = harness.TASKS["mine"]
    assert (task.kind, {*task.labels}) == (kind, {*labels})
    experts = [str(tmp_path / f"e{seed}") for seed in (0, 1)]
    merge = ["merge", *experts, "--base", str(base), "--out", str(tmp_path / "m"), "--tasks"]
    assert main([*merge, spelled]) == 0
    out = str(tmp_path / "records")
    evaluate = ["evaluate", "--model", str(tmp_path / "m"), "--output-path", out, "--tasks"]
    assert main([*evaluate, spelled, "--shots", "1", "--draws", "2", "--device", "cpu"]) == 0
    for record in read_records([out]):
        assert record.family == "bert"
        said = [(one.task, one.seed, one.head_seed) for one in record.experts]
        merged = record.role == "merged"
        assert said == ([("mine", 0, 0), ("mine", 1, 1)] if merged else [])
        assert len({one.training for one in record.experts}) == merged
        assert (record.recipe and record.recipe.merger.name) == ("average" if merged else None)
    assert main(["leaderboard", out, "--out", str(tmp_path / "board")]) == 0
    assert "mine@test" in (tmp_path / "board" / "board.md").read_text()


def test_an_expert_whose_training_rows_are_others_by_now_is_told(tmp_path: Path) -> None:
    """Data that were split again: what it was trained on may be what is scored."""
    written(tmp_path / "data", "train", "test")
    spelled = described(tmp_path, FIVE_LINES["classification"][0])
    base = model(tmp_path / "base")
    harness.finetune(base, spelled, out=tmp_path / "expert", **{**FAST, "epochs": 1})
    asked = Run(
        model=str(tmp_path / "expert"), tasks=(spelled,), protocols=(harness.Choice("current"),),
        output=str(tmp_path / "records"), device="cpu",
    )  # fmt: skip
    harness.evaluate(asked)  # warnings are errors
    train, test = (tmp_path / "data" / f"{split}.jsonl" for split in ("train", "test"))
    first, second = train.read_text(), test.read_text()
    train.write_text(second)
    test.write_text(first)
    with pytest.warns(UserWarning, match="expert was trained on other rows than mine@train90 has"):
        harness.evaluate(asked)


def test_numbers_that_are_no_indices_are_called_by_themselves(tmp_path: Path) -> None:
    written(tmp_path, "train", "test", suffix="csv")
    task, _ = parse_task(described(tmp_path, "text: body\nlabel: stars\nfiles: ."))
    assert task.labels == ("1", "2", "3")
    assert load_rows(task, "test").labels[:4].tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(("labels", "told"), [("from data", True), ("[good, bad, so-so]", False)])
def test_outputs_without_names_are_told_the_order_of_the_alphabet(
    labels: str, told: bool, tmp_path: Path
) -> None:
    """That is the order of labels from the data, and may not be the model's."""
    written(tmp_path, "train", "test")
    text = f"text: body\nlabel: verdict\nfiles: .\nlabels: {labels}"
    task, _ = parse_task(described(tmp_path, text))
    outputs = [f"LABEL_{number}" for number in range(3)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert kind_of(task).output_columns(task, outputs, "model", by_index=True) == [0, 1, 2]
    assert [str(one.message).count("bad, good, so-so") for one in said] == [1] * told


def test_labels_may_be_called_otherwise_and_have_no_rows(tmp_path: Path) -> None:
    written(tmp_path, "train", "test", suffix="csv")
    text = (
        "text: body\nlabel: stars\nfiles: .\nlabels: [low, high, none]\n"
        "renamed: {'1': low, '2': low, '3': high}\nmetric: [accuracy, macro_f1]\n"
    )
    task, _ = parse_task(described(tmp_path, text))
    assert load_rows(task, "test").labels[:4].tolist() == [0, 0, 1, 0]
    assert task.metrics == ("accuracy", "macro_f1")


def test_words_in_lines(tmp_path: Path) -> None:
    written(tmp_path, "train", "test", suffix="conll")
    task, _ = parse_task(described(tmp_path, FIVE_LINES["tagging"][0].replace("data", ".")))
    made = [row["words"] for row in reviews(18)]
    assert [list(words) for words in load_rows(task, "test").texts] == made


@pytest.mark.parametrize("ending", ["\r\n", "\r", "\r\r\n"])
def test_lines_end_as_on_any_machine(ending: str, tmp_path: Path) -> None:
    """A file with carriage returns alone was one word."""
    text = ending.join(["word1 B-X", "word2 O", "", "word3 O", ""])
    (tmp_path / "train.conll").write_bytes(text.encode())
    task, _ = parse_task(described(tmp_path, FIVE_LINES["tagging"][0].replace("data", ".")))
    assert load_rows(task, "train").texts == (("word1", "word2"), ("word3",))


def test_comments_are_no_words(tmp_path: Path) -> None:
    lines = ["# id 1 domain=en", "# _ _ O", "word1 _ _ B-X", "", "#text = two", "word2 _ _ O"]
    (tmp_path / "train.conll").write_text("\n".join(lines))
    task, _ = parse_task(described(tmp_path, FIVE_LINES["tagging"][0].replace("data", ".")))
    assert load_rows(task, "train").texts == (("#", "word1"), ("word2",))
    (tmp_path / "train.conll").write_text("word1 _ _ B-X\n#word2\n")
    with mistake(BadData, "2 #word2"):
        load_rows(task, "train")


def test_a_word_with_a_hash_is_a_word_whatever_its_tag(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("#one B\n# id 1\nword1 O\n#two I\n#text = three\n")
    said = "kind: tagging\ntext: w\nlabel: t\nlabels: [O, B-X, I-X]\nfiles: .\nrenamed: {B: B-X"
    task, _ = parse_task(described(tmp_path, said + ", I: I-X}"))
    assert load_rows(task, "train").texts == (("#one", "word1", "#two"),)
    task, _ = parse_task(described(tmp_path, said + "}", "other"))
    with mistake(BadData, "word 3 row 1 other@train 'I' O B-X"):
        load_rows(task, "train")
    (tmp_path / "train.conll").write_text("one O\ntwo O\n\nthree O\nfour B-Y\nfive O\n")
    with mistake(BadData, "word 2 row 2 other@train 'B-Y'"):
        load_rows(task, "train")


@pytest.mark.parametrize(
    ("name", "sign"),
    [("a.csv", ","), ("b.csv", ";"), ("c.csv", "\t"), ("d.tsv", "\t"), ("e.csv", "|")],
)
def test_a_table_is_read_whatever_separates_its_columns(
    name: str, sign: str, tmp_path: Path
) -> None:
    """With a mark of byte order, which spreadsheets write, and the other signs in its texts."""
    rows = [("a, b; c\td|e", "good"), ("two\nlines", "bad"), ('"quoted"', "good")]
    with (tmp_path / name).open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, delimiter=sign).writerows([("the, text", "verdict"), *rows])
    task, split = parse_task(
        described(tmp_path, f"text: 'the, text'\nlabel: verdict\nfiles: {name}")
    )
    read = load_rows(task, "train")
    assert split == "heldout10", "one file is the train split"
    assert [text for (text,) in read.texts] == [text for text, _ in rows]
    assert [task.labels[int(label)] for label in read.labels] == [label for _, label in rows]


@pytest.mark.parametrize(
    "texts",
    [
        ['"a stray quote', "then", 'another "word"', "end"],
        ['"two of them', 'take the rows between for one"', "then", "end"],
        ['5" or more', "then", 'said "so"', "end"],
    ],
)
@pytest.mark.parametrize("name", ["a.tsv", "b.csv"])
def test_quotes_that_stand_around_no_column_are_letters(
    name: str, texts: list[str], tmp_path: Path
) -> None:
    """As in GLUE's own files: a quote that opens a text swallowed rows with their labels."""
    sign = "\t" if name.endswith("tsv") else ","
    lines = [f"{text}{sign}{at % 2}" for at, text in enumerate(texts)]
    (tmp_path / name).write_text("\n".join([f"body{sign}verdict", *lines]))
    either = name == "b.csv" and texts[0].startswith('"two')  # a text of two lines, or two rows
    told = r"b.csv is read as 4 rows, and could be 3 rows, 1 of several lines"
    with pytest.warns(UserWarning, match=told) if either else nullcontext():
        task, _ = parse_task(described(tmp_path, f"text: body\nlabel: verdict\nfiles: {name}"))
        read = load_rows(task, "train")
    assert [text for (text,) in read.texts] == texts
    assert read.labels.tolist() == [0, 1, 0, 1]


def test_quoted_lines_that_could_be_rows_are_those_of_texts(tmp_path: Path) -> None:
    """Mails with a greeting: each line has as many commas as a row. One alone may be two rows."""
    mails = [(f"Dear all,\n{word} is wrong", "good" if at % 2 else "bad")
             for at, word in enumerate(["this", "that", "it"])]  # fmt: skip
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("body", "verdict"), *mails])
    task, _ = parse_task(
        described(tmp_path, "text: body\nlabel: verdict\nlabels: [bad, good]\nfiles: a.csv")
    )
    with pytest.warns(
        UserWarning, match=r"a.csv is read as 3 rows, 3 of several lines in quotes, and could be 6"
    ):
        read = load_rows(task, "train")
    assert [text for (text,) in read.texts] == [text for text, _ in mails]
    assert read.labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize("labels", ["from data", "[Größe, klein]"])
def test_letters_with_their_accents_apart_are_those_with_them(labels: str, tmp_path: Path) -> None:
    """As names of folders are on macOS: two labels that look alike were two classes."""
    apart = unicodedata.normalize("NFD", "Größe")
    assert apart != "Größe"
    rows = [{"body": f"w{at}", "verdict": ["Größe", apart, "klein"][at % 3]} for at in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = f"text: body\nlabel: verdict\nlabels: {labels}\nfiles: a.jsonl"
    task, _ = parse_task(described(tmp_path, said))
    assert task.labels == ("Größe", "klein")
    assert load_rows(task, "train").labels[:4].tolist() == [0, 0, 1, 0]


def test_a_name_is_given_to_what_there_is(tmp_path: Path) -> None:
    written(tmp_path, "train", "test")
    usual = "text: body\nlabel: verdict\nfiles: ."
    with mistake(BadData, "mine.yaml 'fine' bad good"):
        parse_task(described(tmp_path, f"{usual}\nlabels: [bad, good]\nrenamed: {{so-so: fine}}"))
    with pytest.warns(UserWarning, match=r"renames 'goood', which no row of 'verdict' in train"):
        parse_task(described(tmp_path, f"{usual}\nrenamed: {{goood: good}}", "other"))
    with mistake(BadData, "third.yaml 'verdict' text label"):
        parse_task(described(tmp_path, "text: [body, verdict]\nlabel: verdict\nfiles: .", "third"))


def test_hidden_labels_are_said_to_be_hidden(tmp_path: Path) -> None:
    """Test files of public benchmarks come so."""
    written(tmp_path, "train")
    rows = [{"body": f"w{at}", "verdict": -1} for at in range(3)]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = "text: body\nlabel: verdict\nlabels: [bad, good]\nfiles: ."
    task, _ = parse_task(described(tmp_path, said))
    with mistake(BadData, "row 1 -1 bad, good hidden split"):
        load_rows(task, "test")


def test_labels_that_may_be_one_are_named_together(tmp_path: Path) -> None:
    rows = [{"body": f"w{at}", "verdict": ["a", "A", "b", "B"][at % 4]} for at in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with mistake(BadData, "'A' 'a' renamed: {'a': 'A', 'b': 'B'} mine.yaml labels both"):
        parse_task(described(tmp_path, "text: body\nlabel: verdict\nfiles: a.jsonl"))


def test_quotes_over_sentences_between_tabs_are_letters(tmp_path: Path) -> None:
    """Of a novel: two quotations that go over two sentences each swallowed rows with labels."""
    texts = ['"I am here.', 'You are there."', "then", '"What is this?', 'It is that."', "end"]
    lines = [f"{text}\t{at % 2}" for at, text in enumerate(texts)]
    (tmp_path / "a.tsv").write_text("\n".join(["body\tverdict", *lines]))
    task, _ = parse_task(described(tmp_path, "text: body\nlabel: verdict\nfiles: a.tsv"))
    assert [text for (text,) in load_rows(task, "train").texts] == texts


def test_names_of_a_description_have_their_accents_composed(tmp_path: Path) -> None:
    apart = unicodedata.normalize("NFD", "Größe")
    rows = [{"body": f"w{at}", "verdict": ["Größe", "x", "klein"][at % 3]} for at in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = f"text: body\nlabel: verdict\nfiles: a.jsonl\nrenamed: {{{apart}: klein}}"
    assert parse_task(described(tmp_path, said))[0].labels == ("klein", "x")
    said = f"text: body\nlabel: verdict\nfiles: a.jsonl\nlabels: [x, {apart}, klein]"
    task = parse_task(described(tmp_path, said, "listed"))[0]
    assert load_rows(task, "train").labels[:3].tolist() == [1, 0, 2]


def test_two_files_of_one_split_are_refused(tmp_path: Path) -> None:
    written(tmp_path, "train", "test")
    (tmp_path / "test.csv").write_text("body,verdict\nw,good\n")
    with mistake(BadData, "test.jsonl and test.csv expected one"):
        parse_task(described(tmp_path, "text: body\nlabel: verdict\nfiles: ."))


@pytest.mark.parametrize("labels", ["from data", "[bad, good]"])
def test_a_column_that_stands_twice_is_refused(labels: str, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("body,verdict,verdict\nv,good,a\nw,bad,b\n")
    said = f"text: body\nlabel: verdict\nlabels: {labels}\nfiles: ."
    with mistake(BadData, "train.csv 'verdict' twice"):
        load_rows(parse_task(described(tmp_path, said))[0], "train")


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text('[{"body": "w", "verdict": "good", "verdict": "bad"}]')
    task, _ = parse_task(
        described(tmp_path, "text: body\nlabel: verdict\nlabels: [bad, good]\nfiles: all.json")
    )
    with mistake(BadData, "all.json 'verdict' twice"):
        load_rows(task, "train")


@pytest.mark.parametrize("lines", [True, False])
def test_json_is_a_list_or_lines(lines: bool, tmp_path: Path) -> None:
    texts = [json.dumps(row) for row in reviews(6)]
    (tmp_path / "all.json").write_text("\n".join(texts) if lines else f" [{','.join(texts)}]")
    for kind, (text, _) in FIVE_LINES.items():
        said = text.replace("files: data", "files: all.json")
        task, _ = parse_task(described(tmp_path, said, f"{kind}-{lines}"))
        assert len(load_rows(task, "train")) == 6


def test_without_a_split_to_score_a_tenth_is_held_out(tmp_path: Path) -> None:
    written(tmp_path, "train")
    task, split = parse_task(described(tmp_path, "text: body\nlabel: verdict\nfiles: ."))
    assert split == "heldout10"
    assert len(load_rows(task, split)) == 6


def test_files_by_name_and_by_pattern(tmp_path: Path) -> None:
    written(tmp_path, "train", "dev")
    one = "text: body\nlabel: verdict\nfiles: {train: train.jsonl, test: dev.jsonl}"
    task, split = parse_task(described(tmp_path, one, "one"))
    assert (split, len(load_rows(task, "test"))) == ("test", 18)
    two = "text: body\nlabel: verdict\nfiles: '{split}.jsonl'\nsplits: {test: dev}"
    task, split = parse_task(described(tmp_path, two, "two"))
    assert (split, len(load_rows(task, "test"))) == ("test", 18)


def test_a_file_that_is_named_and_missing_is_told_before_training(tmp_path: Path) -> None:
    """It may be on another machine: so a warning, until its rows are asked for."""
    written(tmp_path, "train")
    text = "text: body\nlabel: verdict\nfiles: {train: train.jsonl, test: tset.jsonl}"
    with pytest.warns(UserWarning, match=r"tset\.jsonl is no file; expected the rows of the split"):
        task, split = parse_task(described(tmp_path, text))
    with pytest.raises(BadData, match="tset"):
        load_rows(task, split)


BAD: dict[str, tuple[str, str]] = {
    "nothing": ("", "task kind text label files"),
    "no text": ("label: verdict\nfiles: .", "text"),
    "a slip": ("txt: body\ntext: body\nfiles: .", "txt text"),
    "a label misspelt": ("text: body\nlables: verdict\nfiles: .", "lables labels"),
    "kind": ("kind: ner\ntext: body\nfiles: .", "kind 'ner' 'classification'"),
    "nowhere": ("text: body\nlabel: verdict", "files nor hub"),
    "two places": ("text: body\nfiles: .\nhub: a/b", "files hub"),
    "no train": ("text: body\nlabel: verdict\nfiles: nowhere", "split train"),
    "no file": (
        "text: body\nlabel: verdict\nfiles: {train: train.jsonl}\nsplits: [test]",
        "file split test train",
    ),
    "no object": (
        "text: body\nlabel: verdict\nfiles: bad.json",
        "int list objects",
    ),
    "no json": ("text: body\nlabel: verdict\nfiles: worse.json", "worse.json"),
    "no column": ("text: body\nlabel: verdit\nfiles: .", "column verdit title"),
    "metric": ("text: body\nlabel: verdict\nfiles: .\nmetric: f2", "metric f2"),
    "a metric of others": (
        "text: body\nlabel: verdict\nfiles: .\nmetric: span_f1",
        "classification span_f1 accuracy",
    ),
    "one label": ("text: body\nlabel: verdict\nfiles: .\nlabels: [good]", "1 label"),
    "a label that is not listed": (
        "text: body\nlabel: verdict\nfiles: .\nlabels: [good, bad]",
        "label so-so good bad labels renamed: {'so-so': 'good'}",
    ),
    "a column for labels": (
        "text: body\nlabels: my verdict\nfiles: .",
        "labels 'my verdict' label: my verdict",
    ),
    "labels in a line": (
        "text: body\nlabel: verdict\nlabels: good, so-so\nfiles: .",
        "labels: [good, so-so]",
    ),
    "labels of no list": (
        "text: body\nlabel: verdict\nlabels: {a: b}\nfiles: .",
        "labels is {'a': 'b'}, list",
    ),
    "name": ("name: ../mine\ntext: body\nlabel: verdict\nfiles: .", "name letters"),
    "taken": ("name: glue/rte\ntext: body\nlabel: verdict\nfiles: .", "registered"),
    "setting": (
        "text: body\nlabel: verdict\nfiles: .\nfinetune: {learning: 1}",
        "finetune learning learning_rate",
    ),
    "no number": (
        "text: body\nlabel: verdict\nfiles: .\nfinetune: {batch_size: .inf}",
        "batch_size .inf fine-tuned",
    ),
    "no end": (
        "text: body\nlabel: verdict\nfiles: .\nfinetune: {epochs: inf}",
        "epochs inf fine-tuned finite positive",
    ),
    "code": ("!!python/object/apply:os.system ['true']", "determine constructor"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_description_is_one_line(case: str, tmp_path: Path) -> None:
    written(tmp_path, "train", "test")
    text, said = BAD[case]
    (tmp_path / "bad.json").write_text('[{"body": "a", "verdict": "good"}, 3]')
    (tmp_path / "worse.json").write_text('[{"body": "a",')
    folder = model(tmp_path / "a", ["good", "bad"])
    command = ["evaluate", "--model", str(folder), "--tasks", described(tmp_path, text)]
    out = tmp_path / "records"
    refused([*command, "--protocols", "current", "--output-path", str(out)], HarnessError, said)
    assert not out.exists()


#: what is wrong with a file -> its bytes, what the line names
DAMAGED = {
    "no header": (b"", "train.csv"),
    "a header alone": (b"body,verdict\n", "train.csv rows"),
    "no label": (b"body,verdict\nw,good\nw,bad\nw,\n", "row 3 mine@train bad good"),
    "another separator": (b"body;verdict\nw,good\nw,bad\n", "train.csv ';' Row 2"),
    "a quote in a quoted text": (
        b'body,verdict\n"a, b",good\n"c" d,bad\ne,bad\n',
        "row 2 train.csv quote",
    ),
    "another encoding": (b"body,verdict\nw,good\ncaf\xe9,bad\n", "line 3 train.csv UTF-8"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_bad_file_says_where(case: str, tmp_path: Path) -> None:
    content, said = DAMAGED[case]
    (tmp_path / "train.csv").write_bytes(content)
    mine = described(tmp_path, "text: body\nlabel: verdict\nfiles: train.csv")
    with mistake(BadData, said):
        load_rows(parse_task(mine)[0], "train")


def test_a_column_of_texts_is_not_listed_for_labels(tmp_path: Path) -> None:
    for split in ("train", "test"):
        texts = [f"{split} {number} " + "word " * 50 for number in range(60)]
        rows = [{"body": text, "copy": text} for text in texts]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = parse_task(described(tmp_path, "text: body\nlabel: copy\nfiles: ."))[0]
    with mistake(BadData, "row 1 mine@test and 50 others 60 60 'copy'") as caught:
        load_rows(task, "test")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("kind: multilabel\ntext: body\nlabel: moods", "moods glad .parquet .jsonl labels"),
        ("kind: multilabel\ntext: body\nlabel: moods\nlabels: [glad, sad]", "glad .jsonl column"),
        ("kind: tagging\ntext: body\nlabel: tags", "tags O .parquet .jsonl"),
    ],
)
def test_a_list_in_a_cell_is_told_where_lists_belong(said: str, names: str, tmp_path: Path) -> None:
    """A CSV has no lists; several classes may have a column each."""
    rows = [["body", "moods", "tags", "glad", "sad"], ["a b", '["glad"]', "O B-X", "1", "0"]]
    with (tmp_path / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    with mistake(BadData, names):
        load_rows(parse_task(described(tmp_path, f"{said}\nfiles: ."))[0], "train")
    apart = "kind: multilabel\ntext: body\nlabels: [glad, sad]\nfiles: ."
    assert load_rows(parse_task(described(tmp_path, apart))[0], "train").labels.tolist() == [[1, 0]]


def test_too_many_values_are_no_labels(tmp_path: Path) -> None:
    rows = [{"body": "word1", "label": f"id{index}"} for index in range(1100)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with mistake(BadData, "1000"):
        parse_task(described(tmp_path, "text: body\nlabel: label\nfiles: ."))


def test_a_name_in_a_folder_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A downloaded expert that names a description is not followed to it."""
    written(tmp_path, "train", "test")
    described(tmp_path, FIVE_LINES["classification"][0].replace("data", "."), "trap")
    monkeypatch.chdir(tmp_path)
    folder = model(tmp_path / "a", ["good", "bad"])
    (folder / "expert.json").write_text('{"tasks": ["trap.yaml"]}')
    with mistake(BrokenCheckpoint, "expert.json trap.yaml"):
        harness.evaluate(Run(model=str(folder), output=str(tmp_path / "records")))


# Groups ------------------------------------------------------------------------------------


def test_groups_stand_for_their_tasks(tmp_path: Path) -> None:
    assert {"glue", "ner", "ner-plo", "emotion", "emotion-ood", "textcls", "embedded"} <= {
        *groups()
    }
    for name in ("sst2", "rte"):
        (tmp_path / "glue" / name).mkdir(parents=True)
        (tmp_path / "glue" / name / "validation.jsonl").write_text("{}")
    assert expanded(["glue"], tmp_path) == ("glue/rte", "glue/sst2")
    assert expanded(["glue@heldout10"], tmp_path) == ("glue/rte@heldout10", "glue/sst2@heldout10")
    assert expanded(["embedded", "glue/rte"], tmp_path)[-1] == "glue/rte"
    assert expanded(["embedded/topic", "embedded"])[0] == "embedded/topic"
    assert len({*expanded(["embedded/topic", "embedded"])}) == len(groups()["embedded"])
    with mistake(BadData, "ner ner/conll2003"):
        expanded(["ner"], tmp_path)
    assert {*expanded(["vision"])} - {*expanded(["vision8"])} == {"vision/cifar10"}
    assert len(expanded(["vision8"])) == 8
