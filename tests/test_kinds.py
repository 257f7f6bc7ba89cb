"""Tags of words, and several classes of a row: from data to scores, against plain versions."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias, get_args

import numpy as np
import pyarrow.parquet as pq
import pytest
import sklearn.metrics as sklearn
import torch
from harness.protocols.ft_classifier import ft_classifier, tune
from scipy.special import expit, softmax
from torch.nn.functional import binary_cross_entropy_with_logits

import harness
from harness import Draw, Encoded, Recipe, Rows, Run, Task
from harness.cli import main
from harness.data import metrics
from harness.data.metrics import score
from harness.data.rows import load_rows, take, units_of
from harness.data.shots import draw
from harness.data.splits import parse_task
from harness.errors import BadData, BadOption, BadRecipe, LabelMismatch
from harness.evaluation.cells import Cell
from harness.evaluation.reader import Reader
from harness.evaluation.records import predictions_of
from harness.evaluation.task_split import TaskSplit
from harness.kinds import KINDS, information, kind_of, multilabel
from harness.kinds.multilabel import Multilabel, known_cross_entropy
from harness.kinds.tagging import Tagging, entities, scheme, seen_cross_entropy
from harness.passes import features, prepared
from harness.rng import rng
from harness.training import single
from harness.types import KindName
from tests.conftest import FAST, WORDS, model
from tests.faults import Plant, around
from tests.mistakes import mistake, names
from tests.toys import MOODS, TAGS, known, registered
from tests.toys import TOY as PAIRS

Notice: TypeAlias = Callable[[Path, Path], None]

KIND_TASKS = {"tagging": TAGS, "multilabel": MOODS}


def rows_with(task: Task, *rows: dict[str, Any]) -> Rows:
    """Rows of the task in every split."""
    return load_rows(replace(task, generate=lambda _: rows), "test")


def sentence(*tags: Any) -> dict[str, Any]:
    return {"tokens": WORDS[: len(tags)], "ner_tags": list(tags)}


def test_every_kind_has_a_file() -> None:
    assert set(KINDS) == set(get_args(KindName))
    assert all(kind.name == name for name, kind in KINDS.items())


# Reading -----------------------------------------------------------------------------------


def test_tags_are_names_or_indices() -> None:
    rows = rows_with(TAGS, sentence("O", "B-PER"), sentence(0, 1, 2))
    assert rows.labels.tolist() == [0, 1, 0, 1, 2]
    assert rows.texts == (tuple(WORDS[:2]), tuple(WORDS[:3]))
    assert kind_of(TAGS).unit_counts(rows).tolist() == [2, 3]
    assert units_of(rows, [1, 0]).tolist() == [2, 3, 4, 0, 1]
    assert take(rows, [1]).labels.tolist() == [0, 1, 2]


def test_other_names_of_tags_are_those_of_the_task() -> None:
    task = replace(TAGS, renamed={"B-MISC": "O", "I-MISC": "O", "B-PERSON": "B-PER"})
    assert rows_with(task, sentence("B-MISC", "I-MISC", "B-PERSON")).labels.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"tokens": ["a", "b"], "ner_tags": ["O"]}, "tags 2 words"),
        ({"tokens": ["a"], "ner_tags": "O"}, "tags O 1 words"),
        ({"tokens": ["a"], "ner_tags": ["B-FOO"]}, "label B-FOO O"),
        ({"tokens": ["a"], "ner_tags": [9]}, "label 9"),
        ({"tokens": "a b", "ner_tags": [0, 0]}, "list of words .jsonl"),
        ({"tokens": None, "ner_tags": []}, "test"),
    ],
)
def test_bad_tags_are_one_line(row: dict[str, Any], said: str) -> None:
    with mistake(BadData, said):
        rows_with(TAGS, row)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"labels": ("B-PER", "I-PER")}, "O B-TYPE"),
        ({"labels": ("O", "PER")}, "PER O B-TYPE"),
        ({"labels": ("O",)}, "O B-TYPE"),
        ({"text": ("tokens", "more")}, "lists of words"),
        ({"metrics": ("accuracy",)}, "accuracy span_f1"),
    ],
)
def test_a_task_of_tags_is_checked(changes: dict[str, Any], said: str) -> None:
    with registered(), mistake(BadData, said):
        parse_task(harness.task(replace(TAGS, name="toy/other", **changes)).name)


def moods(*values: Any) -> dict[str, Any]:
    return {"first": "word1", "moods": list(values)}


def test_classes_hold_do_not_or_are_not_known() -> None:
    rows = rows_with(MOODS, moods(1, 0, -100), moods(0.1, 0.2, None), moods("sad"), moods())
    expected = [[1, 0, -100], [0, 1, -100], [0, 1, 0], [0, 0, 0]]
    assert rows.labels.tolist() == expected


def test_classes_in_columns() -> None:
    task = replace(MOODS, label="")
    rows = rows_with(task, {"first": "word1", "glad": 1, "sad": None, "odd": 0})
    assert rows.labels.tolist() == [[1, -100, 0]]
    with mistake(BadData, "odd"):
        rows_with(task, {"first": "word1", "glad": 1, "sad": 0})


@pytest.mark.parametrize("values", [(1, 0), ("mad",), (1, 0, 2), (1, 0, "x"), (1, 0, float("nan"))])
def test_bad_classes_are_one_line(values: Sequence[Any]) -> None:
    with mistake(BadData, "toy/moods@test 0, 1 or -100"):
        rows_with(MOODS, moods(*values))


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_files_with_lists_are_read(suffix: str, tmp_path: Path) -> None:
    import pyarrow as pa

    for task in KIND_TASKS.values():
        assert task.generate is not None
        rows = [dict(row) for row in task.generate("test")]
        place = tmp_path / task.name / f"test.{suffix}"
        place.parent.mkdir(parents=True, exist_ok=True)
        if suffix == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), place)
        else:
            place.write_text("\n".join(map(json.dumps, rows)))
        read = load_rows(replace(task, generate=None), "test", folder=tmp_path)
        made = load_rows(task, "test")
        assert (read.texts, read.labels.tolist()) == (made.texts, made.labels.tolist())


def test_a_header_names_the_tags_that_a_file_numbers(tmp_path: Path) -> None:
    import pyarrow as pa

    names = ["O", "B-MISC", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    feature = {"feature": {"names": names, "_type": "ClassLabel"}, "_type": "List"}
    said = {"info": {"features": {"ner_tags": feature}}}
    table = pa.Table.from_pylist([{"tokens": WORDS[:3], "ner_tags": [1, 2, 4]}])
    place = tmp_path / TAGS.name / "test.parquet"
    place.parent.mkdir(parents=True)
    pq.write_table(table.replace_schema_metadata({b"huggingface": json.dumps(said)}), place)
    task = replace(TAGS, generate=None, renamed={"B-MISC": "O"})
    rows = load_rows(task, "test", folder=tmp_path)
    assert [TAGS.labels[int(tag)] for tag in rows.labels] == ["O", "B-PER", "B-LOC"]
    for other in (replace(task, renamed={}), replace(task, renamed={"B-X": "O"})):
        with mistake(LabelMismatch, "B-MISC"):
            load_rows(other, "test", folder=tmp_path)


def test_a_corpus_is_read_from_the_file_of_all(tmp_path: Path) -> None:
    """As their script writes it: what a corpus does not annotate is null or missing."""
    lines = [
        {"source": "tec", "text": f"word{i}", "emotions": {"joy": i % 2, "love": None}, "id": i}
        for i in range(200)
    ]
    lines.append({"source": "isear", "text": "other", "emotions": {"joy": 1}, "split": "test"})
    for line in lines:
        line.setdefault("split", None)
    place = tmp_path / "emotion" / "unified-dataset.jsonl"
    place.parent.mkdir()
    place.write_text("\n".join(map(json.dumps, lines)))
    task = harness.TASKS["emotion/tec"]
    counts = {}
    for split in ("train", "validation", "test"):
        rows = load_rows(task, split, folder=tmp_path)
        counts[split] = len(rows)
        joy = rows.labels[:, task.labels.index("joy")]
        assert joy.tolist() == [int(text[4:]) % 2 for (text,) in rows.texts]
        assert (rows.labels[:, task.labels.index("love")] == -100).all()
        assert (rows.labels[:, task.labels.index("anger")] == -100).all()
    assert sum(counts.values()) == 200
    assert counts["train"] > 140
    assert len(load_rows(harness.TASKS["emotion/isear"], "test", folder=tmp_path)) == 1
    place.write_text('{"text": "no source"}')
    with mistake(BadData, "unified-dataset.jsonl"):
        load_rows(task, "test", folder=tmp_path)


# Scores ------------------------------------------------------------------------------------

IOB = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
BIOES = ("O", *(f"{prefix}-{kind}" for kind in ("PER", "LOC") for prefix in "BIES"))
#: scheme, gold, guesses, F1: entities that agree in both ends and the type, counted by hand
SPANS = {
    # gold PER(0-1), LOC(3); found PER(0-1), LOC(3): all
    "all": (IOB, "B-PER I-PER O B-LOC", "B-PER I-PER O B-LOC", 1.0),
    # gold two; found PER(0), LOC(3): one of two, one of two: precision 1/2, recall 1/2
    "a border": (IOB, "B-PER I-PER O B-LOC", "B-PER O O B-LOC", 0.5),
    # gold PER(0-1); found PER(0-1) and LOC(2): precision 1/2, recall 1
    "one more": (IOB, "B-PER I-PER O", "B-PER I-PER B-LOC", 2 / 3),
    "nothing": (IOB, "B-PER I-PER O", "O O O", 0.0),
    # two people side by side, found as one
    "side by side": (IOB, "B-PER B-PER", "B-PER I-PER", 0.0),
    # IOB1 writes I- where an entity begins, B- only right after one of the type:
    # gold PER(0-1), PER(2), found PER(0-1), PER(2)
    "IOB1": (IOB, "I-PER I-PER B-PER O", "I-PER I-PER B-PER O", 1.0),
    # an I- with nothing before it begins one, in either
    "I begins": (IOB, "O B-LOC I-LOC", "O I-LOC I-LOC", 1.0),
    # BIOES: gold PER(0), LOC(1-3); found PER(0), LOC(1-2)
    "BIOES": (BIOES, "S-PER B-LOC I-LOC E-LOC", "S-PER B-LOC E-LOC O", 0.5),
}


@pytest.mark.parametrize("name", SPANS)
def test_span_f1_by_hand(name: str) -> None:
    labels, gold, guesses, expected = SPANS[name]
    task = replace(TAGS, labels=labels)
    truth, found = (
        np.array([float(labels.index(tag)) for tag in tags.split()]) for tags in (gold, guesses)
    )
    assert score(task, found, truth, np.array([len(truth)])).value == pytest.approx(expected)


def test_entities_end_with_their_sentence() -> None:
    """PER(0) and PER(1) in two sentences are not PER(0-1) in one."""
    truth, found = np.array([1.0, 2.0]), np.array([1.0, 1.0])
    assert score(TAGS, found, truth, np.array([2])).value == 0
    assert score(TAGS, found, truth, np.array([1, 1])).value == 1


def test_the_scheme_of_rows() -> None:
    assert scheme(rows_with(TAGS, sentence("O", "B-PER", "I-PER"))) == "IOB2"
    assert scheme(rows_with(TAGS, sentence("I-PER", "B-PER"))) == "IOB1"
    assert scheme(rows_with(replace(TAGS, labels=BIOES), sentence("S-PER", "O"))) == "BIOES"
    assert scheme(rows_with(TAGS, sentence("O"))) == "IOB2"
    assert entities(["B-PER", "I-PER", "B-PER", "O", "I-LOC", "I-PER"]) == [
        *(("PER", 0, 1), ("PER", 2, 2), ("LOC", 4, 4), ("PER", 5, 5))
    ]


@pytest.mark.parametrize(
    ("most", "stray", "scheme_"), [("B-PER", "I-LOC", "IOB2"), ("I-PER", "B-LOC", "IOB1")]
)
def test_a_stray_tag_does_not_decide_the_scheme(most: str, stray: str, scheme_: str) -> None:
    """A B- right after an entity of its type fits both."""
    rows = [sentence(most, "B-PER", "O", most), sentence(most, "O", stray), sentence("O")]
    with pytest.warns(UserWarning, match="scheme") as told:
        assert scheme(rows_with(TAGS, *rows)) == scheme_
    (line,) = (str(one.message) for one in told)
    other = {"IOB1": "IOB2", "IOB2": "IOB1"}[scheme_]
    names(line, f"{TAGS}@test 1 of 5 {other} {WORDS[2]}/{stray} {scheme_}")


@pytest.mark.parametrize("seed", range(3))
def test_macro_f1_of_classes_agrees_with_scikit_learn(seed: int) -> None:
    numbers = np.random.default_rng(seed)
    truth = numbers.integers(0, 2, (50, 3)).astype(float)
    found = np.where(numbers.random(truth.shape) < 0.7, truth, 1 - truth)
    expected = sklearn.f1_score(truth, found, average="macro")
    assert score(MOODS, found, truth).value == pytest.approx(expected)
    # a class nobody has counts for nothing, rows that say nothing of a class neither
    absent = truth.copy()
    absent[:, 2] = 0
    expected = sklearn.f1_score(absent[:, :2], found[:, :2], average="macro")
    assert score(MOODS, found, absent).value == pytest.approx(expected)
    unsaid = truth.copy()
    unsaid[:20, 0] = -100
    each = [sklearn.f1_score(truth[20:, 0], found[20:, 0])]
    each += [sklearn.f1_score(truth[:, place], found[:, place]) for place in (1, 2)]
    assert score(MOODS, found, unsaid).value == pytest.approx(np.mean(each))


# What reads nothing ------------------------------------------------------------------------


def best_constant(task: Task, labels: Any) -> float:
    """As a record has it."""
    column = np.asarray(labels, dtype=np.float64)
    rows = replace(load_rows(task, "test"), labels=column, texts=(("word1",),) * len(column))
    return TaskSplit(task, "test", rows).majority.value


def test_the_best_constant_is_that_of_the_metric() -> None:
    """Of four rows one holds: accuracy is best served by no, accuracy and F1 together by yes."""
    pairs = replace(PAIRS, metrics=("accuracy",))
    assert best_constant(pairs, [1, 0, 0, 0]) == 0.75
    both = replace(PAIRS, metrics=("accuracy", "f1"))
    # no: 3/4 and 0; yes: 1/4 and 2 x 1/4 / (1 + 1/4)
    assert best_constant(both, [1, 0, 0, 0]) == pytest.approx(max(3 / 8, (0.25 + 0.4) / 2))
    assert best_constant(both, [1, 1, 0, 0, 0]) == pytest.approx((0.4 + 0.8 / 1.4) / 2)


def test_the_best_constant_of_the_same_rows_is_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As every model of a study asks for it; rows that are left out make others of them."""
    asked: list[int] = []

    def counted(task: Task, predicted: Any, labels: Any, units: Any) -> Any:
        asked.append(len(labels))
        return score(task, predicted, labels, units)

    monkeypatch.setattr("harness.evaluation.task_split.score", counted)
    labels = [1, 1, 0, 1, 0, 0, 0]
    assert best_constant(PAIRS, labels) == best_constant(PAIRS, labels)
    assert asked == [7, 7]  # of two classes, once
    rows = replace(
        load_rows(PAIRS, "test"), labels=np.asarray(labels, float), texts=(("word1",),) * 7
    )
    _ = TaskSplit(PAIRS, "test", rows, left_out={0: (6,)}).majority
    assert asked[2:] == [6, 6]


def test_the_best_constant_of_classes_says_what_f1_rewards() -> None:
    """Each class of a quarter of the rows is worth 0.4 to who says it always, and 0 otherwise."""
    labels = np.zeros((4, 3))
    labels[0] = 1
    assert best_constant(MOODS, labels) == pytest.approx(0.4)
    labels[1:, 2] = -100  # nobody said: of those that say, all have it
    assert best_constant(MOODS, labels) == pytest.approx((0.4 + 0.4 + 1) / 3)
    every = list(product((0.0, 1.0), repeat=3))
    labels = np.random.default_rng(3).integers(2, size=(30, 3)).astype(float)
    for metric in ("macro_f1", "micro_f1"):
        task = replace(MOODS, metrics=(metric,))
        scores = [score(task, np.tile(one, (30, 1)), labels).value for one in every]
        assert best_constant(task, labels) == pytest.approx(max(scores))


# Draws -------------------------------------------------------------------------------------


def test_sentences_are_drawn_until_every_type_is_covered() -> None:
    rows = load_rows(TAGS, "train")
    _, draws = draw(rows, (1, 3), (0, 1))
    pool, _ = draw(rows, (1, 3), (0, 1))
    held = take(rows, pool)
    for one in draws:
        tags = [TAGS.labels[int(label)] for label in held.labels]
        for place, group in enumerate(one.rows):
            assert {held.labels[unit] for unit in group} <= {place}
            assert len(group) == one.shots
        found = [[tags[unit] for unit in example] for example in one.examples]
        kinds = [kind for example in found for kind, _, _ in entities(example)]
        assert all(kinds.count(kind) >= one.shots for kind in ("PER", "LOC"))
        without = [example for example in found if set(example) == {"O"}]
        assert len(without) == one.shots
        assert len({*one.examples}) == len(one.examples)
        lengths = kind_of(TAGS).unit_counts(held)
        assert {len(example) for example in one.examples} <= {*lengths.tolist()}


def test_more_shots_hold_the_examples_of_fewer() -> None:
    rows = load_rows(TAGS, "train")
    _, (few, many) = draw(rows, (1, 4), (0,))
    assert {*few.examples} < {*many.examples}


def test_more_words_of_no_entity_are_drawn_and_no_more_of_others() -> None:
    rows, outside = load_rows(TAGS, "train"), TAGS.labels.index("O")
    kinds = kind_of(TAGS)
    taken = {}
    for times in (1, 3):
        pool, draws = draw(rows, (1, 2), (0, 1), outside=times)
        units = units_of(rows, pool).tolist()
        taken[times] = [[[units[unit] for unit in group] for group in one.rows] for one in draws]
        assert [one.shots for one in draws] == [1, 1, 2, 2]
        assert kinds.unit_counts(take(rows, pool)).sum() == len(units)
    for few, many, shots in zip(taken[1], taken[3], (1, 1, 2, 2), strict=True):
        assert len(many[outside]) == 3 * shots
        assert {rows.labels[unit] for unit in many[outside]} == {outside}
        assert many[outside][:shots] == few[outside], "the first are those of any other draw"
        assert [*many[:outside], *many[outside + 1 :]] == [*few[:outside], *few[outside + 1 :]]


def test_rows_are_drawn_with_a_class_and_without_it() -> None:
    rows = load_rows(MOODS, "train")
    pool, (one,) = draw(rows, (2,), (0,))
    held = take(rows, pool)
    for place, group in enumerate(one.rows):
        assert {held.labels[row, place // 2] for row in group} == {float(1 - place % 2)}
    assert [example[0] for example in one.examples] == [*dict.fromkeys(sum(one.rows, ()))]


# The pipeline ------------------------------------------------------------------------------


_known = known(TAGS, MOODS, scope="module")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, two experts of each kind, and a merge of each pair."""
    root = tmp_path_factory.mktemp("kinds")
    model(root / "base")
    for kind, task in KIND_TASKS.items():
        for seed in (0, 1):
            settings = {**FAST, "epochs": 8, "seed": seed}
            harness.finetune(root / "base", task.name, out=root / f"{kind}-{seed}", **settings)
        experts = tuple(str(root / f"{kind}-{seed}") for seed in (0, 1))
        harness.merge(Recipe(experts=experts, base=str(root / "base")), out=root / f"{kind}-merged")
    return root


def classifier(folder: Path, kind: str) -> Any:
    import transformers

    unit = "Token" if kind == "tagging" else "Sequence"
    return getattr(transformers, f"AutoModelFor{unit}Classification").from_pretrained(folder).eval()


def plain_features(folder: Path, rows: Rows, kind: str) -> tuple[Any, Any]:
    """Features and logits of every unit in float64, a row at a time, by transformers alone."""
    from transformers import AutoTokenizer

    tokenizer, whole = AutoTokenizer.from_pretrained(folder), classifier(folder, kind).double()
    seen: list[Any] = []
    whole.classifier.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    xs, outputs = [], []
    for texts in rows.texts:
        words = kind == "tagging"
        given = list(texts) if words else texts[0]
        batch = tokenizer([given], is_split_into_words=words, return_tensors="pt")
        with torch.no_grad():
            logits = whole(**batch).logits
        places = [0]
        if words:
            ids = batch.word_ids(0)
            logits, x = logits[0], seen.pop()[0]
            places = [ids.index(word) for word in range(len(texts))]
        else:
            x = seen.pop()
        xs.append(x[places].numpy())
        outputs.append(logits[places].numpy())
    return np.concatenate(xs), np.concatenate(outputs)


def handed_to(room: Path, kind: str, protocol: str, tmp_path: Path, **values: Any) -> Encoded:
    """What a protocol was handed of the merged model."""
    handed: list[Encoded] = []
    encoded = Reader.encoded

    def spy(self: Reader, cell: Cell) -> Encoded:
        made = encoded(self, cell)
        if cell.evaluated.role == "merged":
            handed.append(made)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reader, "encoded", spy)
        chosen = (harness.parse_choice(protocol),)
        harness.evaluate(run(room, kind, tmp_path, protocols=chosen, **values))
    (one,) = handed
    return one


def run(room: Path, kind: str, out: Path, **values: Any) -> Run:
    settings = {"shots": (2,), "draws": 2, "device": "cpu", **values}
    return Run(model=str(room / f"{kind}-merged"), output=str(out / "records"), **settings)


@pytest.mark.parametrize("kind", KIND_TASKS)
def test_experts_learn(kind: str, room: Path) -> None:
    said = json.loads((room / f"{kind}-0" / "expert.json").read_text())
    (value,) = (one["value"] for one in said["scores"].values())
    assert value > 0.4, said["scores"]


@pytest.mark.parametrize("kind", KIND_TASKS)
def test_what_training_says_is_what_evaluation_reads(kind: str, room: Path, tmp_path: Path) -> None:
    said = json.loads((room / f"{kind}-0" / "expert.json").read_text())["scores"]
    task = f"{KIND_TASKS[kind].name}@heldout10"
    (record,) = harness.evaluate(
        Run(
            model=str(room / f"{kind}-0"),
            tasks=(task,),
            protocols=(harness.Choice("current"),),
            max_length=FAST["max_length"],
            output=str(tmp_path / "records"),
            device="cpu",
        )
    )
    assert record.scores[0].value == pytest.approx(said[task]["value"], abs=1e-6)


@pytest.mark.parametrize("kind", KIND_TASKS)
def test_features_are_those_of_transformers(kind: str, room: Path, tmp_path: Path) -> None:
    handed = handed_to(room, kind, "current", tmp_path)
    rows = load_rows(KIND_TASKS[kind], "test")
    x, logits = plain_features(room / f"{kind}-merged", rows, kind)
    np.testing.assert_allclose(handed.test.x, x, rtol=0, atol=1e-5)
    np.testing.assert_allclose(handed.test.logits, logits, rtol=0, atol=1e-5)
    assert handed.test.seen is None


def plain_nearest(handed: Encoded, drawn: Draw, kind: str) -> Any:
    """KNN in plain loops: for each unit, the mean distance to the anchors of each group."""
    assert handed.pool is not None
    made = []
    for z in handed.test.x.astype(np.float64):
        means = [
            np.mean([np.sqrt(((z - handed.pool.x[unit]) ** 2).sum()) for unit in group])
            if group
            else np.inf
            for group in drawn.rows
        ]
        if kind == "tagging":
            made.append(means.index(min(means)))
        else:
            made.append([float(a <= b) for a, b in zip(means[::2], means[1::2], strict=True)])
    return np.array(made, dtype=float)


def plain_tuned(
    handed: Encoded, drawn: Draw, task: Task, kind: str, o_weight: float = 1
) -> torch.nn.Linear:
    """FT-Classifier in plain torch, float64, an example at a time."""
    assert handed.head is not None
    assert handed.pool is not None
    assert handed.teacher is not None
    head = torch.nn.Linear(*handed.head.weight.shape[::-1]).double()
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(handed.head.weight))
        head.bias.copy_(torch.from_numpy(handed.head.bias))
    adam = torch.optim.Adam(head.parameters(), lr=5e-4)
    x, taught = torch.from_numpy(handed.pool.x).double(), torch.from_numpy(handed.teacher)
    for epoch in range(5):
        for place in rng(drawn.seed, "ftc", task.name, epoch).permutation(len(drawn.examples)):
            losses, weights = [], []
            for unit in drawn.examples[place]:
                outputs, q = head(x[unit]), taught[unit]
                outside = kind == "tagging" and task.labels[int(q.argmax())] == "O"
                weights.append(o_weight if outside else 1)
                if kind == "tagging":
                    losses.append((q * (q.log() - outputs.log_softmax(-1))).sum())
                else:
                    losses.append(binary_cross_entropy_with_logits(outputs, q, reduction="sum"))
            adam.zero_grad()
            mean = sum(w * one for w, one in zip(weights, losses, strict=True)) / sum(weights)
            torch.as_tensor(mean).backward()
            adam.step()
    return head


@pytest.mark.parametrize("kind", KIND_TASKS)
def test_knn_agrees_with_plain_loops(kind: str, room: Path, tmp_path: Path) -> None:
    handed = handed_to(room, kind, "knn", tmp_path)
    found = harness.PROTOCOLS["knn"].function(handed)
    for one, drawn in zip(found, handed.draws, strict=True):
        assert one.values.tolist() == plain_nearest(handed, drawn, kind).tolist()


@pytest.mark.parametrize("kind", KIND_TASKS)
def test_ft_classifier_agrees_with_plain_torch(kind: str, room: Path, tmp_path: Path) -> None:
    handed, task = handed_to(room, kind, "ft-classifier", tmp_path), KIND_TASKS[kind]
    outputs = [
        plain_features(room / f"{kind}-{seed}", pool_rows(task, handed), kind)[1] for seed in (0, 1)
    ]
    each = softmax(outputs, axis=-1) if kind == "tagging" else expit(np.array(outputs))
    np.testing.assert_allclose(handed.teacher, np.mean(each, axis=0), rtol=0, atol=1e-5)
    found = harness.PROTOCOLS["ft-classifier"].function(handed)
    x = torch.from_numpy(handed.test.x).double()
    for one, drawn in zip(found, handed.draws, strict=True):
        logits = plain_tuned(handed, drawn, task, kind)(x).detach().numpy()
        expected = logits.argmax(axis=1) if kind == "tagging" else logits >= 0
        assert one.values.tolist() == expected.astype(float).tolist()


@pytest.mark.parametrize("kind", KIND_TASKS)
def test_a_head_tuned_on_the_test_rows_agrees_with_plain_torch(
    kind: str, room: Path, tmp_path: Path
) -> None:
    """`rows=test`, through evaluate: every row, or sentence, is seen in every epoch."""
    handed, task = handed_to(room, kind, "ft-classifier:rows=test", tmp_path), KIND_TASKS[kind]
    assert handed.pool is handed.test
    (every,) = handed.draws
    rows = load_rows(task, "test")
    ends = np.cumsum([len(texts) if kind == "tagging" else 1 for texts in rows.texts])
    assert [one[-1] + 1 for one in every.examples] == ends.tolist()
    assert sorted(unit for one in every.examples for unit in one) == [*range(ends[-1])]
    logits = plain_tuned(handed, every, task, kind)(torch.from_numpy(handed.test.x).double())
    values = logits.detach().numpy()
    expected = values.argmax(axis=1) if kind == "tagging" else values >= 0
    (path,) = (tmp_path / "records" / f"{kind}-merged").rglob("*.parquet")
    table = pq.read_table(path)
    assert table["prediction"].to_pylist() == expected.astype(int).tolist()


def pool_rows(task: Task, handed: Encoded) -> Rows:
    """The rows of the pool once more, from the task."""
    train = load_rows(task, "train90")
    pool, _ = draw(train, (2,), range(2))
    rows = take(train, pool)
    assert handed.pool is not None
    assert rows.labels.tolist() == handed.pool.labels.tolist()
    return rows


def test_more_words_of_no_entity_are_anchors(room: Path, tmp_path: Path) -> None:
    """`o_anchors`, through evaluate: drawn, recorded, read, and no matter to anybody else."""
    outside = TAGS.labels.index("O")
    handed = handed_to(room, "tagging", "knn:o_anchors=3", tmp_path / "spied")
    assert handed.outside == outside
    for one, drawn in zip(
        harness.PROTOCOLS["knn"].function(handed, o_anchors=3), handed.draws, strict=True
    ):
        sizes = [len(group) for group in drawn.rows]
        assert sizes == [6 if place == outside else 2 for place in range(len(TAGS.labels))]
        assert one.values.tolist() == plain_nearest(handed, drawn, "tagging").tolist()
    alone = harness.evaluate(run(room, "tagging", tmp_path / "alone", protocols=("knn",)))
    beside = ("knn", "knn:o_anchors=3", "ft-classifier")
    asked = run(room, "tagging", tmp_path / "beside", protocols=beside)
    records = harness.evaluate(asked)
    usual, more = (
        [r for r in records if r.protocol == "knn" and r.options["o_anchors"] == times]
        for times in (1, 3)
    )
    assert usual == alone, "what is read beside it changes no record"
    for few, many in zip(usual, more, strict=True):
        assert few.adaptation is not None
        assert many.adaptation is not None
        assert few.settings["pool"] != many.settings["pool"]
        for seed, groups in few.adaptation.drawn.items():
            wide = many.adaptation.drawn[seed]
            assert wide[outside][:2] == groups[outside]
            assert [len(group) for group in wide] == sizes
    assert all(",o_anchors=3," in predictions_of(r, Path(asked.output)).name for r in more)


def test_words_of_no_entity_are_no_more_where_labels_choose_nothing(
    room: Path, tmp_path: Path
) -> None:
    said = "knn 3 words unstratified"
    asked = (harness.parse_choice("knn:o_anchors=3"),)
    with mistake(BadOption, said):
        harness.evaluate(run(room, "tagging", tmp_path, protocols=asked, stratified=False))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("kind", KIND_TASKS)
def test_every_protocol_reads_what_labels_did_not_choose(
    kind: str, room: Path, tmp_path: Path
) -> None:
    """Through evaluate, against plain code on what was drawn."""
    for name in ("knn", "ft-classifier"):
        handed = handed_to(room, kind, name, tmp_path / name, stratified=False)
        task = KIND_TASKS[kind]
        train = load_rows(task, "train90")
        pool, draws = draw(train, (2,), range(2), stratified=False)
        assert handed.draws == tuple(draws)
        assert handed.pool is not None
        assert handed.pool.labels.tolist() == take(train, pool).labels.tolist()
        made = harness.PROTOCOLS[name].function(handed)
        for one, drawn in zip(made, handed.draws, strict=True):
            if name == "knn":
                assert one.values.tolist() == plain_nearest(handed, drawn, kind).tolist()
            else:
                head = plain_tuned(handed, drawn, task, kind, 1.0)
                logits = head(torch.from_numpy(handed.test.x).double()).detach().numpy()
                values = logits.argmax(axis=1) if kind == "tagging" else logits >= 0
                assert one.values.tolist() == values.tolist()


@pytest.mark.parametrize("weight", [0.25, 4.0])
def test_words_of_no_entity_weigh_less_or_more(weight: float, room: Path, tmp_path: Path) -> None:
    """`o_weight`, through evaluate, against plain torch."""
    handed = handed_to(room, "tagging", f"ft-classifier:o_weight={weight}", tmp_path)
    tuned = harness.PROTOCOLS["ft-classifier"].function
    rate = {"learning_rate": 5e-4}
    x = torch.from_numpy(handed.test.x).double()
    for one, drawn in zip(tuned(handed, o_weight=weight, **rate), handed.draws, strict=True):
        head = plain_tuned(handed, drawn, TAGS, "tagging", weight)
        assert one.values.tolist() == head(x).argmax(dim=1).tolist()
    asked = run(room, "tagging", tmp_path, protocols=(f"ft-classifier:o_weight={weight}",))
    (record,) = (r for r in harness.evaluate(asked) if r.role == "merged")
    expected = [
        score(
            TAGS, one.values, handed.test.labels, kind_of(TAGS).unit_counts(load_rows(TAGS, "test"))
        )
        for one in tuned(handed, o_weight=weight)
    ]
    assert [one.value for one in record.scores] == [one.value for one in expected]


def test_the_weight_of_a_word_by_hand() -> None:
    """A sentence of two words that the head takes for O and for an entity as soon as not.

    The expert is sure that the first is O and the second not, so they pull the bias apart by as
    much, and it stays; weighed less, O gives way, by a full step of Adam; weighed more, it gains.
    """
    taught = np.array([[1.0, 0.0], [0.0, 1.0]])
    one = Draw(1, 0, ((0,), (1,)), ((0, 1),))
    nothing = np.zeros((2, 1), dtype=np.float32)
    pool = features.Features(nothing, np.zeros((2, 2), dtype=np.float32), np.zeros(2))
    head = harness.Head(np.zeros((2, 1), dtype=np.float32), np.zeros(2, dtype=np.float32))
    encoded = Encoded(
        "toy", KINDS["tagging"], 2, pool, head, pool, (one,), taught, outside=0
    )  # fmt: skip
    seen: list[Any] = []

    def keep(*given: Any) -> Any:
        seen.append(tune(*given)[0, :, 1].tolist())
        return tune(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.protocols.ft_classifier.tune", keep)
        for weight in (1, 0.5, 2):
            ft_classifier(encoded, epochs=1, learning_rate=0.25, o_weight=weight)
        ft_classifier(replace(encoded, outside=None), epochs=1, learning_rate=0.25, o_weight=2)
    # Adam's first step is the learning rate, but for a part of 1e-7: 1e-8 beside the gradient
    still, less, more, unknown = seen
    assert still == unknown == [0, 0]
    assert less == pytest.approx([-0.25, 0.25], abs=1e-6)
    assert more == pytest.approx([0.25, -0.25], abs=1e-6)


@pytest.mark.parametrize("option", ["knn:o_anchors=2", "ft-classifier:o_weight=0.5"])
def test_words_of_no_entity_are_spoken_of_where_there_are_some(
    option: str, room: Path, tmp_path: Path
) -> None:
    said = f"{option.partition(':')[2]} words outside entities toy/moods none"
    with mistake(BadOption, said):
        harness.evaluate(run(room, "multilabel", tmp_path, protocols=(option,)))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("kind", KIND_TASKS)
def test_scores_come_from_the_stored_predictions(kind: str, room: Path, tmp_path: Path) -> None:
    task, asked = KIND_TASKS[kind], run(room, kind, tmp_path)
    records = harness.evaluate(asked)
    rows = load_rows(task, "test")
    units = kind_of(task).unit_counts(rows)
    assert {record.protocol for record in records} == {"current", "knn", "ft-classifier"}
    roles = {record.role for record in records}
    assert roles == {"merged", "base", "expert", "ensemble"}
    schemes = {record.dataset.get("scheme") for record in records}
    assert schemes == {"IOB2" if kind == "tagging" else None}
    for record in records:
        table = pq.read_table(predictions_of(record, Path(asked.output)))
        if kind == "tagging":
            assert np.bincount(table["row"]).tolist() == units.tolist()
            table = table.drop_columns("row")
        labels, *columns = (np.array(column.to_pylist(), dtype=float) for column in table.columns)
        assert labels.tolist() == rows.labels.tolist()
        values = [score(task, column, labels, units).value for column in columns]
        assert values == [one.value for one in record.scores]
    assert harness.evaluate(asked) == records
    written = harness.leaderboard([asked.output], out=tmp_path)
    assert "toy" in "".join(one.read_text() for one in written if one.suffix != ".parquet")


def test_words_that_are_cut_off_are_no_entities_and_are_counted(room: Path, tmp_path: Path) -> None:
    """Five tokens hold three words."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        records = harness.evaluate(run(room, "tagging", tmp_path, max_length=5))
    cut_off, *drawn = [str(one.message) for one in told]
    assert "52 words are cut off at 5 tokens" in cut_off, "once, whatever is read"
    # for each protocol and model, in one line
    assert len({*drawn}) == 1
    assert re.search(r"of \d+ drawn words \d+ are cut off or have no token", drawn[0])
    rows = load_rows(TAGS, "test")
    places = [place for words in rows.texts for place in range(len(words))]
    cut = np.array(places) >= 3
    assert cut.any()
    for record in records:
        assert record.unseen == cut.sum()
        table = pq.read_table(predictions_of(record, tmp_path / "records"))
        for name in table.drop_columns(["label", "row"]).column_names:
            assert set(np.array(table[name])[cut]) == {0.0}


def test_where_no_drawn_word_is_seen_nothing_is_found(room: Path, tmp_path: Path) -> None:
    """Two tokens hold no word, and no class has one to be near to."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        records = harness.evaluate(run(room, "tagging", tmp_path, max_length=2))
    assert "of 20 drawn words 20 are cut off" in str(told[-1].message)
    assert {one.value for record in records for one in record.scores} == {0.0}


def test_a_word_is_read_at_its_first_piece(tmp_path: Path) -> None:
    """Of a tokenizer that makes several tokens of a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word", *(f"##{i}" for i in range(10))]
    made = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    model(tmp_path / "base")
    PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]", model_max_length=40,
    ).save_pretrained(tmp_path / "base")  # fmt: skip
    out = tmp_path / "tagging-merged"
    harness.finetune(tmp_path / "base", TAGS.name, out=out, **{**FAST, "max_length": 40})
    handed: list[Encoded] = []
    with pytest.MonkeyPatch.context() as patch:
        encoded = Reader.encoded
        patch.setattr(
            Reader, "encoded", lambda self, cell: handed.append(encoded(self, cell)) or handed[-1]
        )
        harness.evaluate(run(tmp_path, "tagging", tmp_path, protocols=(harness.Choice("current"),)))
    x, logits = plain_features(out, load_rows(TAGS, "test"), "tagging")
    np.testing.assert_allclose(handed[0].test.x, x, rtol=0, atol=1e-5)
    np.testing.assert_allclose(handed[0].test.logits, logits, rtol=0, atol=1e-5)


# Training and statistics -------------------------------------------------------------------


def test_the_loss_of_classes_leaves_out_what_nobody_said() -> None:
    outputs = torch.randn(4, 3, requires_grad=True)
    labels = torch.tensor([[1, 0, -100], [0, -100, -100], [1, 1, 0], [-100, -100, -100.0]])
    known = labels != -100
    expected = binary_cross_entropy_with_logits(outputs[known], labels[known])
    torch.testing.assert_close(known_cross_entropy(outputs, labels), expected)
    (gradient,) = torch.autograd.grad(known_cross_entropy(outputs, labels), outputs)
    assert (gradient[~known] == 0).all()


def test_the_loss_of_tags_is_that_of_transformers_and_of_no_word_0() -> None:
    """Sentences without a word that makes a token may fill a batch: the mean of none is NaN."""
    outputs = torch.randn(2, 3, 4, requires_grad=True)
    labels = torch.tensor([[1, -100, 3], [-100, 0, -100]])
    expected = torch.nn.CrossEntropyLoss()(outputs.view(-1, 4), labels.view(-1))
    assert torch.equal(seen_cross_entropy(outputs, labels), expected)
    nothing = seen_cross_entropy(outputs, torch.full((2, 3), -100))
    (gradient,) = torch.autograd.grad(nothing, outputs)
    assert float(nothing.detach()) == 0
    assert (gradient == 0).all()


def test_sentences_without_words_do_not_end_a_training(tmp_path: Path) -> None:
    rows = [{"words": [f"word{n % 9}", "word3"], "tags": ["O", "B-X"]} for n in range(40)]
    rows += [{"words": [], "tags": []}] * 6
    for split, of in (("train", rows), ("test", [{"words": ["word7"], "tags": ["B-X"]}])):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, of)))
    task = replace(
        TAGS, name="toy/empty", text=("words",), label="tags", labels=("O", "B-X"),
        generate=None, splits={"train": "train", "test": "test"},
        files={split: str(tmp_path / f"{split}.jsonl") for split in ("train", "test")},
    )  # fmt: skip
    with registered(task):
        model(tmp_path / "base")
        harness.finetune(
            tmp_path / "base", task.name, out=tmp_path / "out", epochs=1, batch_size=2,
            progress=False,
        )  # fmt: skip
    assert (tmp_path / "out/expert.json").is_file()


@pytest.mark.parametrize("task", [TAGS, MOODS])
def test_tasks_of_this_kind_train_together(task: Task, tmp_path: Path) -> None:
    model(tmp_path / "base")
    again, other = replace(task, name="toy/again"), PAIRS if task is MOODS else None
    names = [one.name for one in (task, again, other) if one]
    with registered(task, again, PAIRS):
        out = tmp_path / "both"
        harness.finetune(tmp_path / "base", tasks=names, out=out, **{**FAST, "epochs": 1})
        records = harness.evaluate(
            Run(model=str(out), output=str(tmp_path / "records"), device="cpu", shots=(1,), draws=1)
        )
    assert {record.task.partition("@")[0] for record in records} == {*names}


def test_rows_and_words_do_not_train_together(tmp_path: Path) -> None:
    model(tmp_path / "base")
    with mistake(BadRecipe, "toy/tags word toy/moods row"):
        harness.finetune(tmp_path / "base", tasks=[TAGS.name, MOODS.name], out=tmp_path / "both")
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize("merger", ["fisher:examples=2", "regmean:examples=8", "ties", "soup"])
@pytest.mark.parametrize("kind", KIND_TASKS)
def test_mergers_that_read_data_merge_every_kind(
    kind: str, merger: str, room: Path, tmp_path: Path
) -> None:
    command = ["merge", *(str(room / f"{kind}-{seed}") for seed in (0, 1)), "--base"]
    command += [str(room / "base"), "--merger", merger, "--out", str(tmp_path / "m")]
    assert main(command) == 0
    asked = Run(model=str(tmp_path / "m"), output=str(tmp_path / "records"), device="cpu")
    records = harness.evaluate(asked.model_copy(update={"protocols": (harness.Choice("current"),)}))
    merged = next(record for record in records if record.role == "merged")
    alone = [record.scores[0].value for record in records if record.role == "expert"]
    assert merged.scores[0].value > min(alone) / 3


@pytest.mark.parametrize("kind", KIND_TASKS)
def test_fisher_information_agrees_with_autograd(kind: str, room: Path, tmp_path: Path) -> None:
    """The sum over units and labels of p(y) (d log p(y))^2, an example at a time, in float64."""
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    task, folder, count = KIND_TASKS[kind], room / f"{kind}-0", 2
    out = tmp_path / "fisher.safetensors"
    merger = f"fisher:examples={count}"
    command = ["statistics", str(folder), "--task", task.name, "--merger", merger]
    assert main([*command, "--out", str(out), "--device", "cpu"]) == 0
    train = load_rows(task, "train90")
    order = rng(0, "stats", task.name).permutation(len(train))[:count]
    whole, tokenizer = classifier(folder, kind).double(), AutoTokenizer.from_pretrained(folder)
    parameters = dict(whole.named_parameters())
    totals = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for row in order:
        words = kind == "tagging"
        texts = list(train.texts[row]) if words else train.texts[row][0]
        batch = tokenizer([texts], is_split_into_words=words, return_tensors="pt")
        logits = whole(**batch).logits[0]
        terms: list[tuple[Any, Any]] = []
        if words:
            ids = batch.word_ids(0)
            for word in range(len(texts)):
                logs = logits[ids.index(word)].log_softmax(-1)
                terms += [(log.exp().detach(), log) for log in logs]
        else:
            for place, said in enumerate(train.labels[row]):
                if said != -100:
                    for sign in (1, -1):
                        log = torch.nn.functional.logsigmoid(sign * logits[place])
                        terms.append((log.exp().detach(), log))
        for p, log in terms:
            grads = torch.autograd.grad(log, list(parameters.values()), retain_graph=True)
            for name, grad in zip(parameters, grads, strict=True):
                totals[name] += p * grad**2 / count
    found = load_file(out)
    names = [name for name in totals if name in found]
    assert len(names) == len(totals)
    for name in names:
        np.testing.assert_allclose(found[name].double(), totals[name], rtol=1e-3, atol=1e-9)


# Heads -------------------------------------------------------------------------------------


def test_a_head_with_more_classes_is_read_on_fewer(room: Path, tmp_path: Path) -> None:
    fewer = replace(MOODS, name="toy/fewer", labels=("sad", "glad"))
    rows = [{**row, "moods": row["moods"][:2][::-1]} for row in MOODS.generate("test")]  # type: ignore[misc]
    with registered(replace(fewer, generate=lambda _: rows)):
        (record,) = harness.evaluate(
            Run(
                model=str(room / "multilabel-0"),
                tasks=("toy/fewer",),
                protocols=(harness.Choice("current"),),
                output=str(tmp_path / "records"),
                device="cpu",
            )
        )
    assert record.scores[0].value > 0.4


def test_a_sequence_classifier_is_no_tagger(tmp_path: Path) -> None:
    folder = model(tmp_path / "a", list(TAGS.labels))
    command = ["evaluate", "--model", str(folder), "--tasks", TAGS.name, "--device", "cpu"]
    assert main([*command, "--output-path", str(tmp_path / "records")]) == 2
    assert not (tmp_path / "records").exists()


def test_the_published_script_has_no_words(room: Path, tmp_path: Path) -> None:
    with mistake(BadRecipe, "toy/tags word ft-classifier --preset"):
        harness.evaluate(run(room, "tagging", tmp_path, preset="ft-classifier"))


@pytest.mark.parametrize("kind", KIND_TASKS)
def test_a_head_is_tuned_while_the_encoder_drops_units(
    kind: str, room: Path, tmp_path: Path
) -> None:
    choices = tuple(harness.parse_choice(f"ft-classifier:variant={v}") for v in ("clean", "paper"))
    records = harness.evaluate(run(room, kind, tmp_path, protocols=choices))
    values = {record.options["variant"]: record.scores for record in records if record.teachers}
    assert set(values) == {"clean", "paper"}


# Planted faults ----------------------------------------------------------------------------


def at_tokens(move: Callable[[int], int]) -> Plant:
    """Reads words at other tokens."""

    def wrong(right: Any, *given: Any) -> Any:
        encoded, first = right(*given)
        return encoded, [[p if p < 0 else move(p) for p in line] for line in first]

    return around(prepared, "word_ids", wrong)


def trained(kind: str, out: Path) -> None:
    """An expert of today's code, which the room may not have."""
    task, settings = KIND_TASKS[kind], {**FAST, "epochs": 8}
    harness.finetune(model(out / "base"), task.name, out=out / f"{kind}-0", **settings)
    test_experts_learn(kind, out)
    test_what_training_says_is_what_evaluation_reads(kind, out, out)


def best_alone(_: Any, kind: Any, outputs: Any) -> Any:
    return np.eye(outputs.shape[1])[outputs.argmax(axis=1)]


def absent_or_unsaid(right: Any, kind: Any, rows: Rows) -> Any:
    return right(kind, replace(rows, labels=rows.labels.clip(min=0)))


def all_counted(right: Any, *given: Any) -> Any:
    return right(*given[:-1], torch.ones_like(given[-1]))


#: a fault -> how it is planted, and the test that must notice it
FAULTS: dict[str, tuple[Plant, Notice]] = {
    "tags are read one word off": (
        around(Tagging, "read", lambda right, *given: np.roll(right(*given), 1)),
        lambda room, out: test_tags_are_names_or_indices(),
    ),
    "tags are learnt one token off": (
        around(
            single, "row_labels", lambda right, *given: [[-100, *x[:-1]] for x in right(*given)]
        ),
        lambda room, out: trained("tagging", out),
    ),
    "words are read one token off": (
        at_tokens(lambda place: place + 1),
        lambda room, out: test_features_are_those_of_transformers("tagging", room, out),
    ),
    "words are read where a row is": (
        at_tokens(lambda place: 0),
        lambda room, out: test_features_are_those_of_transformers("tagging", room, out),
    ),
    "entities go on in the next sentence": (
        around(
            Tagging, "for_metrics", lambda right, *given: right(*given[:-1], given[-1].sum()[None])
        ),
        lambda room, out: test_entities_end_with_their_sentence(),
    ),
    "words that are cut off are entities": (
        around(Tagging, "unseen", lambda right, *given: 1.0),
        test_words_that_are_cut_off_are_no_entities_and_are_counted,
    ),
    "words of an entity are drawn more often": (
        around(Tagging, "outside", lambda right, *given: right(*given) + 1),
        lambda room, out: test_more_words_of_no_entity_are_drawn_and_no_more_of_others(),
    ),
    "words of an entity weigh more": (
        around(Tagging, "outside", lambda right, *given: right(*given) + 1),
        lambda room, out: test_words_of_no_entity_weigh_less_or_more(4.0, room, out),
    ),
    "tokens without a word inform": (
        around(information, "of_places", all_counted),
        lambda room, out: test_fisher_information_agrees_with_autograd("tagging", room, out),
    ),
    "what nobody said is absent, where it is learnt": (
        around(
            single, "row_labels", lambda right, *given: np.clip(right(*given), 0, None).tolist()
        ),
        lambda room, out: trained("multilabel", out),
    ),
    "what nobody said is absent, in the loss": (
        lambda patch: patch.setattr(multilabel, "IGNORED", -1),
        lambda room, out: test_the_loss_of_classes_leaves_out_what_nobody_said(),
    ),
    "what nobody said is absent, in the score": (
        around(metrics, "_mean_f1", lambda right, p, labels: right(p, labels.clip(min=0))),
        lambda room, out: test_macro_f1_of_classes_agrees_with_scikit_learn(0),
    ),
    "what nobody said is absent, in a draw": (
        around(Multilabel, "groups", absent_or_unsaid),
        lambda room, out: test_rows_are_drawn_with_a_class_and_without_it(),
    ),
    "what nobody said informs": (
        around(information, "of_bits", all_counted),
        lambda room, out: test_fisher_information_agrees_with_autograd("multilabel", room, out),
    ),
    "one class alone holds": (
        around(Multilabel, "_predicted", best_alone),
        lambda room, out: test_ft_classifier_agrees_with_plain_torch("multilabel", room, out),
    ),
    "classes are taught as if one held": (
        around(Multilabel, "target", lambda right, kind, read: softmax(read, axis=-1).mean(0)),
        lambda room, out: test_ft_classifier_agrees_with_plain_torch("multilabel", room, out),
    ),
}


@pytest.mark.fault
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.filterwarnings("ignore:.* are cut off (at|or have no token)")
def test_a_planted_fault_is_noticed(
    fault: str, room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, notice = FAULTS[fault]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        notice(room, tmp_path)


def corpora(room: Path, tmp_path: Path) -> list[str]:
    """Two experts of one label space: the second one's rows say nothing of the last class."""
    for name in ("first", "second"):
        shutil.copytree(room / f"multilabel-{name == 'second':d}", tmp_path / name)
        said = json.loads((tmp_path / name / "expert.json").read_text())
        said["tasks"] = [f"toy/{name}"]
        if name == "second":
            said["annotated"] = {"toy/second": ["glad", "sad"]}
        (tmp_path / name / "expert.json").write_text(json.dumps(said))
    return [str(tmp_path / name) for name in ("first", "second")]


@pytest.mark.parametrize("merger", ["average", "regmean:examples=8", "task_arithmetic", "ties"])
def test_a_class_an_expert_never_saw_stays_out_of_the_merge(
    merger: str, room: Path, tmp_path: Path
) -> None:
    """Corpora of one label space share a head, whose rows are of those who know the class."""
    from safetensors.torch import load_file

    experts = corpora(room, tmp_path)
    tasks = [replace(MOODS, name=f"toy/{name}") for name in ("first", "second")]
    with registered(*tasks):
        recipe = Recipe(experts=tuple(experts), base=str(room / "base"), merger=merger)
        plan = harness.merge(recipe, out=tmp_path / "m")
    assert plan.recipe.heads in ("merge", "average")
    merged = load_file(tmp_path / "m" / "model.safetensors")
    first, second = (load_file(Path(expert) / "model.safetensors") for expert in experts)
    for name in ("classifier.weight", "classifier.bias"):
        both = (first[name] + second[name]) / 2
        torch.testing.assert_close(merged[name][:2], both[:2])
        torch.testing.assert_close(merged[name][2], first[name][2])
        assert not torch.equal(first[name][2], both[2])


def test_where_all_is_annotated_the_merger_has_the_head(room: Path, tmp_path: Path) -> None:
    """The planted other case: without the record of it, a row is merged like the rest."""
    from safetensors.torch import load_file

    experts = corpora(room, tmp_path)
    said = json.loads((tmp_path / "second" / "expert.json").read_text())
    del said["annotated"]
    (tmp_path / "second" / "expert.json").write_text(json.dumps(said))
    tasks = [replace(MOODS, name=f"toy/{name}") for name in ("first", "second")]
    with registered(*tasks):
        harness.merge(Recipe(experts=tuple(experts)), out=tmp_path / "m")
    merged = load_file(tmp_path / "m" / "model.safetensors")
    first, second = (load_file(Path(expert) / "model.safetensors") for expert in experts)
    both = (first["classifier.weight"] + second["classifier.weight"]) / 2
    torch.testing.assert_close(merged["classifier.weight"], both)


def test_an_expert_records_what_its_rows_say(tmp_path: Path) -> None:
    rows = [{**row, "moods": [*row["moods"][:2], -100]} for row in MOODS.generate("train")]  # type: ignore[misc]
    model(tmp_path / "base")
    with registered(replace(MOODS, name="toy/partly", generate=lambda _: rows)):
        harness.finetune(
            tmp_path / "base", "toy/partly", out=tmp_path / "e", **{**FAST, "epochs": 1}
        )
    said = json.loads((tmp_path / "e" / "expert.json").read_text())
    assert said["annotated"] == {"toy/partly": ["glad", "sad"]}


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
def test_the_head_of_tags_has_a_gram_matrix(
    family: str, taggers: Callable[[str], dict[str, Path]], tmp_path: Path
) -> None:
    """Of families whose classifiers of rows have another head, too."""
    from safetensors.torch import load_file

    folder, out = taggers(family)["a"], tmp_path / "gram.safetensors"
    labels = json.loads((folder / "config.json").read_text())["id2label"]
    task = replace(
        TAGS, name="toy/tagged", labels=tuple(labels[str(i)] for i in range(len(labels)))
    )
    rows = [{"tokens": row["tokens"], "ner_tags": [0] * len(row["tokens"])} for row in sample()]
    with registered(replace(task, generate=lambda _: rows)):
        command = ["statistics", str(folder), "--task", task.name, "--merger", "regmean:examples=4"]
        assert main([*command, "--out", str(out), "--device", "cpu"]) == 0
    heads = {name for name in load_file(out) if name.startswith("classifier")}
    assert heads == {"classifier.weight"}


def sample() -> Sequence[Any]:
    assert TAGS.generate is not None
    return TAGS.generate("train")
