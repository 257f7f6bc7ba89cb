"""Whether a split that is scored has rows that a model was trained on, told by their texts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TypeAlias

from harness.data.rows import texts_of
from harness.data.sources import TRAIN, at_hand, data_dir
from harness.errors import BadData, HarnessError
from harness.hashes import digest_of
from harness.types import DERIVED, Rows, Task

Texts: TypeAlias = "Counter[tuple[str, ...]]"
REPEATED = 0.5
"""Different texts of a train split, as a share of its rows: with fewer, texts repeat by nature."""


def check_apart(task: Task, folder: str | Path | None = None) -> None:
    """Raise BadData for two splits with the same rows, and for one that is a part of train or has
    all of it.

    Splits that are not there, or cannot be read, are left out: who reads them says so.
    """

    def same(split: str, other: str, why: str) -> BadData:
        return BadData(
            f"{task}@{split} and {task}@{other} have the same rows: {why}; expected rows of its "
            "own for every split (without a split to score, a tenth of train is held out)"
        )

    for split, stored in task.splits.items():
        if stored == TRAIN != split:
            raise same(split, TRAIN, "one is the other by another name")
    known: dict[str, Texts] = {}
    for split in dict.fromkeys((TRAIN, *task.splits)):
        texts = _texts(task, split, folder)
        for other, theirs in known.items() if texts else ():
            common = len(texts.keys() & theirs.keys())
            alias = other != TRAIN and task.splits[split] == task.splits[other]
            if (texts == theirs and not alias) or (
                other == TRAIN
                and common == min(len(texts), len(theirs))
                and len(theirs) > REPEATED * theirs.total()
            ):
                among = f"{len(texts)} texts of {split} are among the {len(theirs)} of {other}"
                raise same(split, other, f"{common} of the {among}")
        known[split] = texts


def shared_with_train(rows: Rows, folder: str | Path | None = None) -> int | None:
    """How many of the rows have a text that stands in the rows that models are trained on, too.

    Of held-out rows those are the others of the train split. None where they are not there, and of
    rows that models are trained on.
    """
    task, split, (trained_on, held_out) = rows.task, rows.split, DERIVED
    if split != held_out and task.splits.get(split, TRAIN) == TRAIN:
        return None
    known = _texts(task, trained_on if split == held_out else TRAIN, folder)
    return sum(_bare(text) in known for text in rows.texts) if known else None


def texts_digest(task: Task, split: str, folder: str | Path | None = None) -> str:
    """A hash of the texts of a split, whatever it and its task are called and in whatever order.

    Empty where they cannot be read.
    """
    try:
        return digest_of(sorted(map(_bare, texts_of(task, split, folder=folder))))
    except HarnessError:
        return ""


def _texts(task: Task, split: str, folder: str | Path | None) -> Texts:
    """The texts of a split, if they can be had; a task that makes its rows is not asked.

    The splits of a data set of the Hub are fetched together.
    """
    hub = task.source and not task.files and data_dir(folder) is None
    if task.generate or not (hub or at_hand(task, task.splits.get(split, TRAIN), folder)):
        return Counter()
    try:
        return Counter(map(_bare, texts_of(task, split, folder=folder)))
    except HarnessError:
        return Counter()


def _bare(text: tuple[str, ...]) -> tuple[str, ...]:
    """A text but for its case and for how much blank stands between and around its words."""
    return tuple(" ".join(part.casefold().split()) for part in text)
