"""Reading a task from a folder or the Hub, and choosing the few shots."""

from __future__ import annotations

import csv
import errno
import io
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, Value

import harness
from harness import Rows, Task
from harness.data.formats import READERS
from harness.data.prepare import prepare
from harness.data.rows import count, load_rows, take
from harness.data.shots import draw, scattered, selected
from harness.data.splits import parse_task
from harness.errors import BadData, BadRecipe, CannotWrite, LabelMismatch, UnknownName
from harness.rng import rng
from tests.mistakes import mistake, names

TOY = Task(
    name="toy/pairs",
    kind="classification",
    text=("first", "second"),
    label="label",
    labels=("not_same", "same"),
    metrics=("accuracy",),
    splits={"validation": "dev"},
    reported="validation",
)
VALUES = replace(TOY, name="toy/values", kind="regression", labels=())
Table = list[dict[str, Any]]


def table(count: int = 4) -> Table:
    return [{"first": f"a {i}", "second": f"b {i}", "label": i % 2} for i in range(count)]


def parquet(rows: Table, path: Path, names: list[str] | None = None) -> None:
    """With class names, they stand in the file's own header."""
    features = None
    if names is not None:
        columns = {column: Value("string") for column in rows[0]}
        features = Features({**columns, "label": ClassLabel(names=names)})
    Dataset.from_list(rows, features=features).to_parquet(path)


def jsonl(rows: Table, path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_csv(rows: Table, path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


WRITERS: dict[str, Callable[[Table, Path], None]] = {
    "parquet": parquet,
    "jsonl": jsonl,
    "csv": write_csv,
}


def place(folder: Path, rows: Table, split: str = "dev", task: Task = TOY) -> Path:
    """The folder with one split of the task in it."""
    (folder / task.name).mkdir(parents=True, exist_ok=True)
    jsonl(rows, folder / task.name / f"{split}.jsonl")
    return folder


# Names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("glue/rte", "validation"),
        ("glue/rte@", "validation"),
        ("glue/rte@validation", "validation"),
        ("glue/rte@heldout10", "heldout10"),
        ("glue/rte@train90", "train90"),
        ("glue/rte@train", "train"),
        ("glue/mnli@validation_mismatched", "validation_mismatched"),
        ("textcls/ag_news", "test"),
    ],
)
def test_parse_task(text: str, split: str) -> None:
    task, found = parse_task(text)
    assert task is harness.TASKS[text.partition("@")[0]]
    assert found == split


def test_parse_task_refuses() -> None:
    with mistake(UnknownName, "glue/rtr glue/rte"):
        parse_task("glue/rtr")
    with mistake(BadData, "glue/rte dev validation train"):
        parse_task("glue/rte@dev")


# Reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", WRITERS)
def test_formats(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "toy/pairs").mkdir(parents=True)
    WRITERS[suffix](table(), tmp_path / f"toy/pairs/dev.{suffix}")
    rows = load_rows(TOY, "validation", folder=tmp_path)
    assert rows.texts == (("a 0", "b 0"), ("a 1", "b 1"), ("a 2", "b 2"), ("a 3", "b 3"))
    assert rows.labels.tolist() == [0, 1, 0, 1]
    assert rows.labels.dtype == np.float64
    assert (rows.task, rows.split) == (TOY, "validation")


class Watched(io.FileIO):
    """A file that keeps which threads it was read by."""

    threads: ClassVar[set[int]] = set()

    def read(self, size: int | None = -1, /) -> bytes:
        self.threads.add(threading.get_ident())
        return super().read(size)

    def readinto(self, buffer: Any, /) -> int:
        self.threads.add(threading.get_ident())
        return super().readinto(buffer)


@pytest.mark.parametrize("suffix", WRITERS)
def test_no_other_thread_holds_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Python that ends while a thread of Arrow's lets go of one of its files aborts (134)."""
    path = tmp_path / f"dev.{suffix}"
    WRITERS[suffix](table(), path)
    known = Path.open
    open_ = lambda self, mode="r", **more: (  # noqa: E731
        Watched(self) if mode == "rb" else known(self, mode, **more)
    )
    monkeypatch.setattr(Path, "open", open_)
    monkeypatch.setattr(Watched, "threads", set())
    assert READERS[suffix](TOY, path).num_rows == 4
    assert Watched.threads == {threading.get_ident()}


def test_the_same_rows_have_one_digest(tmp_path: Path) -> None:
    digests = []
    for suffix, writer in WRITERS.items():
        (tmp_path / suffix / "toy/pairs").mkdir(parents=True)
        writer(table(), tmp_path / suffix / f"toy/pairs/dev.{suffix}")
        digests.append(load_rows(TOY, "validation", folder=tmp_path / suffix).digest)
    assert len(set(digests)) == 1
    others = [{**row, "label": 1 - row["label"]} for row in table()]
    flipped = load_rows(TOY, "validation", folder=place(tmp_path, others))
    assert flipped.digest != digests[0]


def test_folder_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_DATA_DIR", str(place(tmp_path, table())))
    assert len(load_rows(TOY, "validation")) == 4
    with mistake(BadData, "toy/pairs", tmp_path / "elsewhere", "dev.parquet"):
        load_rows(TOY, "validation", folder=tmp_path / "elsewhere")


def test_limit_draws_rows_or_takes_the_first(tmp_path: Path) -> None:
    folder = place(tmp_path, table(50))

    def some(limit: int, *, first: bool = False) -> list[int]:
        rows = load_rows(TOY, "validation", folder=folder, limit=limit, first=first)
        assert rows.is_sample == (limit < 50 and not first)
        return [int(one.removeprefix("a ")) for one, _ in rows.texts]

    order = np.random.RandomState(0).permutation(50)
    assert some(20) == sorted(order[:20]) != [*range(20)]
    assert {*some(7)} < {*some(20)}
    assert some(20, first=True) == [*range(20)]
    assert some(50) == some(99) == some(99, first=True) == [*range(50)]


@pytest.mark.parametrize("limit", [None, 7, 99])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("reader", [load_rows, count])
def test_a_file_is_read_once(
    reader: Callable[..., Any],
    first: bool,
    limit: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, read, files = place(tmp_path, table(50)), READERS["jsonl"], list[Path]()

    def noted(task: Task, path: Path) -> Any:
        files.append(path)
        return read(task, path)

    monkeypatch.setitem(READERS, "jsonl", noted)  # type: ignore[arg-type]
    reader(TOY, "validation", folder=folder, limit=limit, first=first)
    assert len(files) == 1


def refuse_one(row: Any) -> tuple[str, ...]:
    if row["first"] == "a 41":
        raise ValueError("no text")
    return row["first"], row["second"]


@pytest.mark.parametrize(("split", "limit"), [("train90", None), ("dev", 45)])
@pytest.mark.parametrize(
    ("task", "label"),
    [(TOY, 7), (VALUES, "many"), (replace(TOY, read=refuse_one), 1)],
    ids=["no class", "no number", "no text"],
)
def test_a_row_is_named_by_its_number_in_the_file(
    task: Task, label: object, split: str, limit: int | None, tmp_path: Path
) -> None:
    """Not among those that are drawn, or cut from train."""
    rows = table(50)
    rows[41]["label"] = label
    if isinstance(label, str):
        rows = [{**row, "label": str(row["label"])} for row in rows]
    stored = "dev" if split == "dev" else "train"
    folder = place(tmp_path, rows, stored, task)
    task = replace(task, splits={"dev": "dev"}, reported="dev")
    with mistake(BadData, f"row 42 of {task}@{stored}"):
        load_rows(task, split, folder=folder, limit=limit)


@pytest.mark.parametrize("count", [10, 37])
def test_train_is_split_nine_to_one(tmp_path: Path, count: int) -> None:
    folder = place(tmp_path, table(count), "train")
    whole, most, rest = (
        load_rows(TOY, split, folder=folder).texts for split in ("train", "train90", "heldout10")
    )
    order = np.random.RandomState(0).permutation(count)
    cut = int(0.9 * count)
    assert most == tuple(whole[i] for i in order[:cut])
    assert rest == tuple(whole[i] for i in order[cut:])
    assert sorted(most + rest) == sorted(whole)


def test_label_names_for_numbers(tmp_path: Path) -> None:
    names = ["same", "Not same", "0", "1"]
    named = [{**row, "label": name} for row, name in zip(table(), names, strict=True)]
    rows = load_rows(TOY, "validation", folder=place(tmp_path, named))
    assert rows.labels.tolist() == [1, 0, 0, 1]


def test_regression_labels(tmp_path: Path) -> None:
    values = [0.5, 5.0, -1.0, 3.25]
    found = [{**row, "label": value} for row, value in zip(table(), values, strict=True)]
    rows = load_rows(VALUES, "validation", folder=place(tmp_path, found, task=VALUES))
    assert rows.labels.tolist() == values


def test_empty_texts_are_empty(tmp_path: Path) -> None:
    rows: Table = [{"first": None, "second": "", "label": 0}]
    assert load_rows(TOY, "validation", folder=place(tmp_path, rows)).texts == (("", ""),)


def test_texts_of_digits_stay(tmp_path: Path) -> None:
    """A column that the csv reader takes for numbers."""
    (tmp_path / "toy/pairs").mkdir(parents=True)
    rows: Table = [{"first": "0", "second": "7", "label": 0}]
    write_csv(rows, tmp_path / "toy/pairs/dev.csv")
    assert load_rows(TOY, "validation", folder=tmp_path).texts == (("0", "7"),)


def test_a_task_reads_rows_its_own_way(tmp_path: Path) -> None:
    joined = replace(TOY, read=lambda row: (f"{row['first']}, {row['second']}",))
    rows = load_rows(joined, "validation", folder=place(tmp_path, table(1)))
    assert rows.texts == (("a 0, b 0",),)


def test_a_task_generates_its_rows() -> None:
    asked = []

    def generate(split: str) -> Table:
        asked.append(split)
        return table(10)

    made = replace(TOY, generate=generate)
    assert len(load_rows(made, "validation")) == 10
    assert len(load_rows(made, "heldout10")) == 1
    assert asked == ["dev", "train"]


def test_class_names_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "toy/pairs").mkdir(parents=True)
    path = tmp_path / "toy/pairs/dev.parquet"
    parquet(table(), path, ["Not same", "Same"])
    assert load_rows(TOY, "validation", folder=tmp_path).labels.tolist() == [0, 1, 0, 1]
    parquet(table(), path, ["same", "not_same"])
    with mistake(LabelMismatch, "toy/pairs same, not_same not_same, same"):
        load_rows(TOY, "validation", folder=tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    with mistake(BadData, "toy/pairs dev.parquet dev.conll"):
        load_rows(TOY, "validation", folder=tmp_path)


@pytest.mark.parametrize("suffix", WRITERS)
def test_unreadable_file(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "toy/pairs").mkdir(parents=True)
    (tmp_path / f"toy/pairs/dev.{suffix}").write_bytes(b"\xff{")
    with mistake(BadData, f"dev.{suffix}"):
        load_rows(TOY, "validation", folder=tmp_path)


ROW = '{"first": "a", "second": "b", "label": 0}\n'
ODD_FILES = {
    "nested without end": ("jsonl", '{"first": ' + "[" * 20_000 + "]" * 20_000 + "}\n"),
    "numbers among texts": ("jsonl", ROW + ROW.replace('"a"', "1")),
    "an object for a text": ("jsonl", ROW.replace('"a"', '{"x": "a"}')),
    "text for a list": ("jsonl", "[1, 2]\n"),
    "a line too short": ("csv", "first,second,label\na,b,0\na,b\n"),
    "no UTF-8": ("csv", b"first,second,label\n\xff\xfe,b,0\n"),
    "a name that is no UTF-8": ("csv", b"first,\xff\xfe,label\na,b,0\n"),
    "a column twice": ("csv", "first,first,label\na,b,0\n"),
}


@pytest.mark.parametrize("name", ODD_FILES)
def test_an_odd_file_is_one_line(tmp_path: Path, name: str) -> None:
    suffix, content = ODD_FILES[name]
    path = tmp_path / f"toy/pairs/dev.{suffix}"
    path.parent.mkdir(parents=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadData) as caught:
        load_rows(TOY, "validation", folder=tmp_path)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_texts_stay_as_they_are_written(tmp_path: Path) -> None:
    """What looks like a number, a day, nothing or two lines is text where a column is one."""
    odd = ["007", "2001-01-01", "NA", "true", "two\nlines", "1e5"]
    rows: Table = [{"first": text, "second": "2001-01-01", "label": 0} for text in odd]
    for suffix, writer in WRITERS.items():
        (tmp_path / suffix / "toy/pairs").mkdir(parents=True)
        writer(rows, tmp_path / suffix / f"toy/pairs/dev.{suffix}")
        found = load_rows(TOY, "validation", folder=tmp_path / suffix)
        assert found.texts == tuple((text, "2001-01-01") for text in odd)


def test_missing_column(tmp_path: Path) -> None:
    rows: Table = [{"first": "a", "label": 0}]
    with mistake(BadData, "toy/pairs@validation second first, label first, second, label"):
        load_rows(TOY, "validation", folder=place(tmp_path, rows))


@pytest.mark.parametrize("label", [2, -1, None, "2", "similar", 0.5])
def test_unknown_label(tmp_path: Path, label: Any) -> None:
    rows: Table = [{"first": "a", "second": "b", "label": label}]
    with pytest.raises(BadData) as caught:
        load_rows(TOY, "validation", folder=place(tmp_path, rows))
    assert "toy/pairs@validation" in str(caught.value)
    assert repr(label) in str(caught.value)
    assert "not_same, same" in str(caught.value)


@pytest.mark.parametrize("label", ["high", None, float("nan"), float("inf")])
def test_regression_label_that_is_no_number(tmp_path: Path, label: Any) -> None:
    made = replace(VALUES, generate=lambda _: [{"first": "a", "second": "b", "label": label}])
    with mistake(BadData, "row 1 toy/values@validation number"):
        load_rows(made, "validation")


def test_empty_split(tmp_path: Path) -> None:
    (tmp_path / "toy/pairs").mkdir(parents=True)
    columns = {"first": pa.string(), "second": pa.string(), "label": pa.int64()}
    empty = pa.schema(list(columns.items())).empty_table()
    pq.write_table(empty, tmp_path / "toy/pairs/dev.parquet")
    with mistake(BadData, "toy/pairs@validation"):
        load_rows(TOY, "validation", folder=tmp_path)


def test_unknown_split(tmp_path: Path) -> None:
    folder = place(tmp_path, table(), "train")
    with mistake(BadData, "validaton"):
        load_rows(TOY, "validaton", folder=folder)


# Few-shot selection ------------------------------------------------------------------------


def labelled(labels: list[float], task: Task = TOY) -> Rows:
    texts = tuple((f"a {i}", f"b {i}") for i in range(len(labels)))
    return Rows(task, "train90", texts, np.array(labels, dtype=np.float64), "digest")


UNEVEN = [0.0] * 30 + [1.0] * 8


def test_draws_are_balanced() -> None:
    rows = labelled(UNEVEN)
    pool, draws = draw(rows, (1, 5), range(3))
    assert [(d.shots, d.seed) for d in draws] == [(s, seed) for s in (1, 5) for seed in range(3)]
    for drawn in draws:
        assert [len(group) for group in drawn.rows] == [drawn.shots] * 2
        for label, group in enumerate(drawn.rows):
            assert len(set(group)) == drawn.shots
            assert all(rows.labels[pool[position]] == label for position in group)


def test_the_pool_holds_each_drawn_row_once() -> None:
    pool, draws = draw(labelled(UNEVEN), (1, 5), range(4))
    assert pool == sorted(set(pool))
    used = {position for drawn in draws for group in drawn.rows for position in group}
    assert used == set(range(len(pool)))


def test_fewer_shots_are_a_prefix_of_more() -> None:
    rows = labelled(UNEVEN)
    for one, more in ((1, 5), (5, 8)):
        pool, draws = draw(rows, (more, one), (0, 1))
        by_seed = {(d.shots, d.seed): d.rows for d in draws}
        for seed in (0, 1):
            pairs = zip(by_seed[one, seed], by_seed[more, seed], strict=True)
            assert all(few == many[:one] for few, many in pairs)
        alone_pool, (alone,) = draw(rows, (one,), (1,))
        assert [[alone_pool[i] for i in group] for group in alone.rows] == [
            [pool[i] for i in group] for group in by_seed[one, 1]
        ]


def test_draws_depend_on_the_seed_and_the_task_alone() -> None:
    rows = labelled(UNEVEN)
    first = draw(rows, (5,), (3,))
    assert draw(rows, (5,), (3,)) == first
    np.random.seed(1)  # noqa: NPY002  (global state, which is not read)
    assert draw(rows, (5,), (3,)) == first
    assert draw(rows, (5,), (4,))[0] != first[0]
    assert draw(replace(rows, task=replace(TOY, name="toy/other")), (5,), (3,))[0] != first[0]


def test_regression_draws_from_equal_widths() -> None:
    """Five bins of [0, 10]: edges 2, 4, 6, 8, each in the bin above, the maximum in the last."""
    labels = [0, 1.9, 2, 3, 4, 5.9, 6, 7, 8, 10, 0.5, 1]
    pool, (drawn,) = draw(labelled(labels, VALUES), (2,), (0,))
    values = [sorted(labels[pool[i]] for i in group) for group in drawn.rows]
    assert set(values[0]) <= {0, 0.5, 1, 1.9}
    assert values[1:] == [[2, 3], [4, 5.9], [6, 7], [8, 10]]


def test_labels_on_the_edges_of_bins_are_each_in_the_bin_above() -> None:
    labels = [step / 5 for step in range(6)] * 2
    pool, (drawn,) = draw(labelled(labels, VALUES), (2,), (0,))
    values = [{labels[pool[i]] for i in group} for group in drawn.rows]
    assert values[:4] == [{0}, {0.2}, {0.4}, {0.6}]
    assert values[4] <= {0.8, 1}


def test_of_too_few_rows_all_are_taken_and_that_is_said() -> None:
    said = r"toy/pairs@train90 has too few rows for 9 shots: 8 with label 'same'; all of them are t"
    with pytest.warns(UserWarning, match=said) as told:
        pool, (one, nine) = draw(labelled(UNEVEN), (1, 9), (0,))
    assert len(told) == 1
    assert "without rows" not in str(told[0].message)
    assert [len(group) for group in one.rows] == [1, 1]
    assert [len(group) for group in nine.rows] == [9, 8]
    assert sorted(pool[place] for place in nine.rows[1]) == list(range(30, 38))


def test_a_class_or_bin_without_rows_is_drawn_empty_and_that_is_said() -> None:
    with pytest.warns(UserWarning, match="2 with label bin 0, 0 with label bin 1, ") as told:
        pool, (drawn,) = draw(labelled([0.0, 0.1, 10.0], VALUES), (3,), (0,))
    assert [len(group) for group in drawn.rows] == [2, 0, 0, 0, 1]
    assert pool == [0, 1, 2]
    assert "predicts" not in str(told[0].message)  # a number, not a bin
    with pytest.warns(UserWarning, match="a class without rows has no neighbours: KNN Eval never"):
        draw(labelled([0, 0, 0]), (1,), (0,))


def test_of_many_classes_with_too_few_rows_ten_are_named() -> None:
    classes = replace(TOY, labels=tuple(f"class {number}" for number in range(1000)))
    with pytest.warns(UserWarning, match="1 with label 'class 9' and 990 others; all") as told:
        draw(labelled([*range(1000)], classes), (2,), (0,))
    assert "class 10'" not in str(told[0].message)


def test_a_class_that_nobody_said_anything_of_is_no_class_with_too_few_rows() -> None:
    """Of three classes, with four rows, the second was not annotated and the third never holds."""
    task = replace(TOY, kind="multilabel", labels=("glad", "sad", "calm"), metrics=("macro_f1",))
    labels = np.array([[1, -100, 0], [0, -100, 0], [1, -100, 0], [0, -100, 0]], dtype=np.float64)
    rows = replace(labelled([0] * 4, task), labels=labels)
    with pytest.warns(UserWarning, match="for 2 shots: 0 with label 'calm'; all of them") as told:
        _, (drawn,) = draw(rows, (2,), (0,))
    assert "sad" not in str(told[0].message)
    assert [len(group) for group in drawn.rows] == [2, 2, 0, 0, 0, 2]


def test_a_draw_that_is_given_is_taken_as_it_is() -> None:
    """That of a published run, say: for every seed, rows of the split by class."""
    pool, draws = selected(labelled([0, 1] * 5), {7: [[9, 4, 2], [1]], 8: [[4, 5], []]}, (1, 2))
    assert pool == [1, 4, 5, 9]
    taken = {(d.shots, d.seed): [[pool[i] for i in group] for group in d.rows] for d in draws}
    assert taken == {
        (1, 7): [[9], [1]],
        (1, 8): [[4], []],
        (2, 7): [[9, 4], [1]],
        (2, 8): [[4, 5], []],
    }


def test_labels_choose_nothing_of_unstratified_draws() -> None:
    """The same rows whatever their labels: so many shots of two classes are twice as many rows."""
    random = np.random.default_rng(1)
    several = [labelled(random.permutation(UNEVEN).tolist()) for _ in range(3)]
    made = [draw(rows, (1, 5), (3, 4), stratified=False) for rows in several]
    pools = [pool for pool, _ in made]
    assert pools[0] == pools[1] == pools[2]
    for rows, (pool, draws) in zip(several, made, strict=True):
        for one in draws:
            expected = rng(one.seed, "fewshot", "toy/pairs").permutation(38)[: 2 * int(one.shots)]
            assert [pool[unit] for unit in one.order] == expected.tolist()
            assert one.examples == tuple((unit,) for unit in one.order)
            for label, group in enumerate(one.rows):
                assert group == tuple(u for u in one.order if rows.labels[pool[u]] == label)
    assert len({tuple(map(len, one.rows)) for _, draws in made for one in draws}) > 3


def test_unstratified_draws_of_each_kind() -> None:
    """By hand: a row counts for all it says of classes, and a word brings its sentence."""
    moods = replace(TOY, kind="multilabel", labels=("glad", "sad"), metrics=("macro_f1",))
    labels = np.array([[1, 0], [0, -100], [1, 1]], dtype=np.float64)
    rows = replace(labelled([0] * 3, moods), labels=labels)
    _, (one,) = scattered(rows, {0: [2, 0, 1]}, ("all",))
    assert one.rows == ((2, 0), (1,), (2,), (0,))
    _, (one,) = scattered(labelled([0.0, 10.0, 9.0, 1.0], VALUES), {0: [3, 1]}, (1,))
    assert one.rows == ((1,), (), (), (), (0,))
    tags = replace(TOY, kind="tagging", labels=("O", "B-x", "I-x"), metrics=("span_f1",))
    words = (("a", "b"), ("c",), ("d", "e", "f"))
    read = Rows(tags, "train90", words, np.array([0, 1, 0, 0, 1, 2], dtype=np.float64), "digest")
    pool, (one,) = scattered(read, {0: [4, 1, 5, 2]}, (1,))
    assert pool == [0, 2], "the third word is one too many"
    assert one.rows == ((), (3, 1), (4,))
    assert one.examples == ((2, 3, 4), (0, 1))
    assert one.order == (3, 1, 4)


def test_an_unstratified_draw_of_more_rows_than_there_are_takes_all() -> None:
    with pytest.warns(UserWarning, match="has 38 units to draw from, and 20 shots of each of 2 cl"):
        pool, (few, every) = draw(labelled(UNEVEN), (1, 20), (0,), stratified=False)
    assert pool == list(range(38))
    assert len(few.order) == 2
    assert sorted(every.order) == pool
    pool, _ = draw(labelled(UNEVEN), ("all",), (0,), reserved=2, stratified=False)
    assert pool == [*range(2, 30), *range(32, 38)]


def test_all_shots_are_one_draw_of_every_unit() -> None:
    """Of unlike classes without a warning; the other draws are what they are without it."""
    rows = labelled(UNEVEN)
    pool, draws = draw(rows, (1, "all"), (3, 4))
    assert [(d.shots, d.seed) for d in draws] == [(1, 3), (1, 4), ("all", 3)]
    every = draws[-1]
    taken = [{rows.labels[pool[unit]] for unit in group} for group in every.rows]
    assert taken == [{0.0}, {1.0}]
    assert [len({*group}) for group in every.rows] == [30, 8]
    assert sorted(unit for (unit,) in every.examples) == list(range(38))
    fewer, alone = draw(rows, (1,), (3, 4))
    for one, other in zip(alone, draws, strict=False):
        shown = [
            [[at[unit] for unit in group] for group in d.rows]
            for at, d in ((fewer, one), (pool, other))
        ]
        assert shown[0] == shown[1]
    reserved, _ = draw(rows, ("all",), (0,), reserved=1)
    assert reserved == [*range(1, 30), *range(31, 38)]


def test_take() -> None:
    rows = labelled([0, 1, 0, 1])
    some = take(rows, [3, 0])
    assert some.texts == (("a 3", "b 3"), ("a 0", "b 0"))
    assert some.labels.tolist() == [1, 0]
    assert some.digest != take(rows, [0, 3]).digest != rows.digest


# Hub ---------------------------------------------------------------------------------------

RTE = "glue/rte"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the stand-in for the Hub was asked; every split of it has four rows of RTE."""
    asked: list[tuple[Any, ...]] = []

    def load_dataset(
        source: str, subset: str | None, *, split: str, revision: str | None
    ) -> Dataset:
        asked.append((source, subset, split, revision))
        names = list(harness.TASKS[RTE].labels)
        rows = [{"sentence1": f"{split} {i}", "sentence2": "b", "label": i % 2} for i in range(4)]
        text = Value("string")
        return Dataset.from_list(
            rows,
            features=Features(
                {"sentence1": text, "sentence2": text, "label": ClassLabel(names=names)}
            ),
        )

    monkeypatch.delenv("HARNESS_DATA_DIR", raising=False)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    return asked


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.delenv("HARNESS_DATA_DIR", raising=False)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(BadData) as caught:
        load_rows(harness.TASKS[RTE], "validation")
    for part in (RTE, "nyu-mll/glue", "ConnectionError", "--data-dir", "HARNESS_DATA_DIR"):
        names(str(caught.value), part)
    assert "harness prepare" in str(caught.value)


def test_a_task_that_is_not_on_the_hub(calls: list[tuple[Any, ...]]) -> None:
    with mistake(BadData, "toy/pairs --data-dir"):
        load_rows(TOY, "validation")
    assert not calls


def test_the_hub_is_asked_for_the_pinned_revision(calls: list[tuple[Any, ...]]) -> None:
    task = harness.TASKS[RTE]
    rows = load_rows(task, "validation")
    load_rows(task, "heldout10")
    assert calls == [
        ("nyu-mll/glue", "rte", "validation", task.revision),
        ("nyu-mll/glue", "rte", "train", task.revision),
    ]
    assert rows.texts[0] == ("validation 0", "b")


def test_class_names_on_the_hub(calls: list[tuple[Any, ...]]) -> None:
    wnli = replace(harness.TASKS["glue/wnli"], source="elsewhere/wnli")
    with mistake(LabelMismatch, "entailment, not_entailment not_entailment"):
        load_rows(wnli, "validation")


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_prepare(calls: list[tuple[Any, ...]], tmp_path: Path) -> None:
    expected = [tmp_path / RTE / f"{split}.parquet" for split in ("train", "validation")]
    assert prepare([RTE], tmp_path) == expected
    assert files(tmp_path) == ["glue/rte/train.parquet", "glue/rte/validation.parquet"]
    assert len(calls) == 2
    before = [path.stat() for path in expected]
    assert prepare([RTE], tmp_path) == expected
    assert len(calls) == 2
    assert [path.stat().st_mtime_ns for path in expected] == [s.st_mtime_ns for s in before]
    from_hub = load_rows(harness.TASKS[RTE], "validation")
    from_file = load_rows(harness.TASKS[RTE], "validation", folder=tmp_path)
    assert from_file.texts == from_hub.texts
    assert from_file.digest == from_hub.digest


def test_prepared_files_keep_the_class_names(calls: list[tuple[Any, ...]], tmp_path: Path) -> None:
    prepare([RTE], tmp_path)
    turned = replace(harness.TASKS[RTE], labels=("not_entailment", "entailment"))
    with pytest.raises(LabelMismatch):
        load_rows(turned, "validation", folder=tmp_path)


def test_prepare_cut_short_leaves_no_file_to_be_read(
    calls: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_full(_: Dataset, file: BinaryIO, **__: object) -> None:
        file.write(b"PAR1")
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Dataset, "to_parquet", disk_full)
        with mistake(CannotWrite, tmp_path / "glue/rte/train.parquet", "no space"):
            prepare([RTE], tmp_path)
    assert not list(tmp_path.rglob("*.parquet"))
    prepare([RTE], tmp_path)
    assert files(tmp_path) == ["glue/rte/train.parquet", "glue/rte/validation.parquet"]


def test_prepare_refuses(calls: list[tuple[Any, ...]], tmp_path: Path) -> None:
    with mistake(BadRecipe, "--tasks"):
        prepare([], tmp_path)
    with mistake(UnknownName, "glue/rte"):
        prepare([RTE, "glue/rtr"], tmp_path)
    assert not calls  # names are checked before anything is fetched
    assert files(tmp_path) == []
