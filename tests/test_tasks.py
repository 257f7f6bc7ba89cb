"""Every registered task, in a line; with the real data at hand, every one is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.tasks.textcls import question_and_answer, title_and_content

import harness
from harness import Task
from harness.data.metrics import check_metrics
from harness.data.rows import load_rows
from harness.data.sources import SUFFIXES
from harness.kinds import kind_of
from harness.labels import normal
from tests.conftest import real_folder

#: name -> (kind, classes, metrics)
CASES: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "embedded/colours": ("classification", 4, ("accuracy",)),
    "embedded/comparison": ("classification", 2, ("accuracy",)),
    "embedded/mentions": ("multilabel", 4, ("macro_f1",)),
    "embedded/names": ("tagging", 5, ("span_f1",)),
    "embedded/outcome": ("regression", 0, ("pearson", "spearman")),
    "embedded/shapes": ("classification", 4, ("accuracy",)),
    "embedded/topic": ("classification", 4, ("accuracy",)),
    "emotion/affectivetext": ("multilabel", 6, ("macro_f1",)),
    "emotion/crowdflower": ("multilabel", 12, ("macro_f1",)),
    "emotion/dailydialog": ("multilabel", 12, ("macro_f1",)),
    "emotion/electoraltweets": ("multilabel", 6, ("macro_f1",)),
    "emotion/emoint": ("multilabel", 6, ("macro_f1",)),
    "emotion/go_emotions_ekman": ("multilabel", 6, ("macro_f1",)),
    "emotion/grounded_emotions": ("multilabel", 6, ("macro_f1",)),
    "emotion/isear": ("multilabel", 12, ("macro_f1",)),
    "emotion/ssec": ("multilabel", 6, ("macro_f1",)),
    "emotion/tales-emotion": ("multilabel", 12, ("macro_f1",)),
    "emotion/tec": ("multilabel", 12, ("macro_f1",)),
    "glue/cola": ("classification", 2, ("matthews",)),
    "glue/mnli": ("classification", 3, ("accuracy",)),
    "glue/mrpc": ("classification", 2, ("accuracy", "f1")),
    "glue/qnli": ("classification", 2, ("accuracy",)),
    "glue/qqp": ("classification", 2, ("accuracy", "f1")),
    "glue/rte": ("classification", 2, ("accuracy",)),
    "glue/sst2": ("classification", 2, ("accuracy",)),
    "glue/stsb": ("regression", 0, ("pearson", "spearman")),
    "glue/wnli": ("classification", 2, ("accuracy",)),
    "ner/broad_twitter_corpus": ("tagging", 7, ("span_f1",)),
    "ner/conll2003": ("tagging", 9, ("span_f1",)),
    "ner/conll2003_plo": ("tagging", 7, ("span_f1",)),
    "ner/ncbi_disease": ("tagging", 3, ("span_f1",)),
    "ner/ontonotes5_bc": ("tagging", 7, ("span_f1",)),
    "ner/ontonotes5_bn": ("tagging", 7, ("span_f1",)),
    "ner/ontonotes5_mz": ("tagging", 7, ("span_f1",)),
    "ner/ontonotes5_nw": ("tagging", 7, ("span_f1",)),
    "ner/ontonotes5_tc": ("tagging", 7, ("span_f1",)),
    "ner/ontonotes5_wb": ("tagging", 7, ("span_f1",)),
    "ner/tweebank_ner": ("tagging", 9, ("span_f1",)),
    "ner/tweebank_plo": ("tagging", 7, ("span_f1",)),
    "ner/tweetner7": ("tagging", 15, ("span_f1",)),
    "ner/wikiann_en": ("tagging", 7, ("span_f1",)),
    "ner/wnut_17": ("tagging", 13, ("span_f1",)),
    "textcls/ag_news": ("classification", 4, ("accuracy",)),
    "textcls/amazon_review_full": ("classification", 5, ("accuracy",)),
    "textcls/dbpedia_14": ("classification", 14, ("accuracy",)),
    "textcls/yahoo_answers_topics": ("classification", 10, ("accuracy",)),
    "textcls/yelp_review_full": ("classification", 5, ("accuracy",)),
    "vision/cifar10": ("classification", 10, ("accuracy",)),
    "vision/dtd": ("classification", 47, ("accuracy",)),
    "vision/eurosat": ("classification", 10, ("accuracy",)),
    "vision/gtsrb": ("classification", 43, ("accuracy",)),
    "vision/mnist": ("classification", 10, ("accuracy",)),
    "vision/resisc45": ("classification", 45, ("accuracy",)),
    "vision/stanford_cars": ("classification", 196, ("accuracy",)),
    "vision/sun397": ("classification", 397, ("accuracy",)),
    "vision/svhn": ("classification", 10, ("accuracy",)),
}
#: rows of the reported split, where a data folder would hold all of it
ROWS = {
    "emotion/affectivetext": 1000,
    "emotion/go_emotions_ekman": 5427,
    "glue/cola": 1043,
    "glue/mrpc": 408,
    "glue/qnli": 5463,
    "glue/rte": 277,
    "glue/sst2": 872,
    "glue/stsb": 1500,
    "glue/wnli": 71,
    "ner/conll2003": 3453,
    "ner/ncbi_disease": 940,
    "ner/tweebank_ner": 1201,
    "textcls/ag_news": 7600,
    "vision/cifar10": 10000,
    "vision/mnist": 2000,
}
#: the share of the commonest label in the reported split, in percent, where it is well known
COMMONEST = {"glue/mrpc": 68.4, "glue/rte": 52.7, "glue/wnli": 56.3}


def test_every_task_is_as_its_line_says() -> None:
    found = {n: (task.kind, len(task.labels), task.metrics) for n, task in harness.TASKS.items()}
    assert found == CASES


@pytest.mark.parametrize("name", CASES)
def test_the_task_holds_together(name: str) -> None:
    task = harness.TASKS[name]
    assert task.name == name
    assert task.reported in task.splits
    assert "train" not in task.splits.values()
    check_metrics(task)
    assert len({normal(label) for label in task.labels}) == len(task.labels)
    assert bool(task.text) != bool(task.image)
    assert task.label not in task.text
    if task.source and not task.image:  # nobody has told a revision of the images for certain
        assert re.fullmatch(r"[0-9a-f]{40}", task.revision or "")
    else:
        assert task.revision is None


#: the data sets that FusionBench loads: repository, subset and column of images
VISION = {
    "cifar10": ("uoft-cs/cifar10", None, "img"),
    "dtd": ("tanganke/dtd", None, "image"),
    "eurosat": ("tanganke/eurosat", None, "image"),
    "gtsrb": ("tanganke/gtsrb", None, "image"),
    "mnist": ("ylecun/mnist", None, "image"),
    "resisc45": ("tanganke/resisc45", None, "image"),
    "stanford_cars": ("tanganke/stanford_cars", None, "image"),
    "sun397": ("tanganke/sun397", None, "image"),
    "svhn": ("ufldl-stanford/svhn", "cropped_digits", "image"),
}


def test_images_are_those_of_fusion_bench() -> None:
    found = {n.removeprefix("vision/"): t for n, t in harness.TASKS.items() if t.image and t.source}
    assert {n: (t.source, t.subset, t.image) for n, t in found.items()} == VISION
    for task in found.values():
        assert (task.splits, task.reported, task.label) == ({"test": "test"}, "test", "label")


def test_mnli_reports_the_matched_split() -> None:
    mnli = harness.TASKS["glue/mnli"]
    assert mnli.splits[mnli.reported] == "validation_matched"
    assert mnli.splits["validation_mismatched"] == "validation_mismatched"


def test_titles_stand_before_the_content() -> None:
    assert title_and_content({"title": "Good", "content": "It works."}) == ("Good It works.",)
    assert title_and_content({"title": None, "content": "It works."}) == ("It works.",)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (("Why?", "Tell me.", "Because."), "Why? Tell me. Because."),
        (("Why?", None, "Because."), "Why? Because."),
        (("Why?", "", "Because."), "Why? Because."),
    ],
)
def test_questions_stand_before_the_answer(row: Sequence[str | None], text: str) -> None:
    columns = dict(zip(("question_title", "question_content", "best_answer"), row, strict=True))
    assert question_and_answer(columns) == (text,)
    assert question_and_answer({**columns, "text": None}) == (text,)
    assert question_and_answer({**columns, "text": "joined"}) == ("joined",)


GENERATED = [name for name in CASES if name.startswith("embedded/")]


def shares(labels: np.ndarray[Any, Any]) -> list[float]:
    return list(np.unique(labels, return_counts=True)[1] / len(labels))


@pytest.mark.parametrize("name", GENERATED)
def test_generated_tasks_are_whole(name: str) -> None:
    """The same rows each time, every label among them, no text in two splits."""
    task = harness.TASKS[name]
    train, test = load_rows(task, "train"), load_rows(task, task.reported)
    assert load_rows(task, "train").digest == train.digest
    assert load_rows(task, task.reported).digest == test.digest
    for rows in (train, test):
        assert all(all(segments) for segments in rows.texts)
        if task.kind == "classification":
            assert set(rows.labels) == set(range(len(task.labels)))
            assert min(shares(rows.labels)) > 0.5 / len(task.labels)
    assert not set(train.texts) & set(test.texts)


# Real data ---------------------------------------------------------------------------------


def has(folder: Path, task: Task, split: str) -> bool:
    place = folder / (task.folder or task.name)
    return any((place / f"{split}.{suffix}").is_file() for suffix in SUFFIXES)


@pytest.mark.real
@pytest.mark.filterwarnings("ignore:.*no fair sample")
@pytest.mark.parametrize("name", [name for name in CASES if name not in GENERATED])
def test_real_rows(name: str) -> None:
    folder, task = real_folder(), harness.TASKS[name]
    if not has(folder, task, task.splits[task.reported]):
        pytest.skip(f"no {name} in {folder}")
    for split, limit in [*((split, None) for split in task.splits), ("train", 50)]:
        if not has(folder, task, task.splits.get(split, split)):
            continue  # of a few corpora there is no such part
        rows = load_rows(task, split, folder=folder, limit=limit)
        kind = kind_of(task)
        if kind.unit == "row":
            assert {len(texts) for texts in rows.texts} == {
                1 if task.read or task.image else len(task.text)
            }
        assert sum(not all(texts) for texts in rows.texts) == 0
        assert len(rows.labels) == kind.unit_counts(rows).sum()
        if split == task.reported:
            assert len(rows) == ROWS.get(name, len(rows))
            if task.kind in ("classification", "tagging"):
                assert set(rows.labels) == set(range(len(task.labels)))
            elif task.kind == "multilabel":
                assert {0, 1} <= {*rows.labels.ravel()} <= {0, 1, -100}
            else:
                assert (rows.labels.min(), rows.labels.max()) == (0, 5)
            if name in COMMONEST:
                assert 100 * max(shares(rows.labels)) == pytest.approx(COMMONEST[name], abs=0.05)
