"""Whether a scored split has rows that a model was trained on, recognised by their texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from harness.data.rows import texts_of
from harness.data.sources import TRAIN, at_hand, data_dir
from harness.data.splits import share_rows
from harness.errors import BadData, HarnessError
from harness.hashes import digest_of
from harness.types import DERIVED, Rows, Task

Texts: TypeAlias = "Counter[tuple[str, ...]]"
REPEATED = 0.5
"""With a smaller share of different texts among the rows of train, texts repeat by nature."""


def check_apart(task: Task, folder: str | Path | None = None) -> None:
    """Raise BadData for two splits with the same rows, or one that contains train or lies in it.

    Missing or unreadable splits are skipped: reading them raises its own error.
    """

    def same(split: str, other: str, why: str) -> BadData:
        return BadData(
            f"{task}@{split} and {task}@{other} have the same rows: {why}; expected other rows "
            "in every split (without a split to score, a tenth of train is held out)"
        )

    for split, stored in task.splits.items():
        if stored == TRAIN != split:
            raise same(split, TRAIN, "both are read from one stored split")
    seen: dict[str, Texts] = {}
    for split in dict.fromkeys((TRAIN, *task.splits)):
        exact = _texts(task, split, folder)
        folded = Counter(map(_fold, exact.elements()))
        for other, theirs in seen.items() if exact else ():
            # a scored split may differ from another in case alone, but not from train
            texts = folded if other == TRAIN else exact
            common = len(texts.keys() & theirs.keys())
            alias = other != TRAIN and task.splits[split] == task.splits[other]
            if (texts == theirs and not alias) or (
                other == TRAIN
                and common == min(len(texts), len(theirs))
                and len(theirs) > REPEATED * theirs.total()
            ):
                what = "images" if task.image else "texts"
                counts = f"{len(texts)} {what} of {split} are among the {len(theirs)} of {other}"
                raise same(split, other, f"{common} of the {counts}")
        seen[split] = folded if split == TRAIN else exact


def shared_with_train(rows: Rows, folder: str | Path | None = None) -> int | None:
    """How many of the rows have a text that rows for training have, too.

    For held-out rows these are the other rows of the train split. None if rows for training are
    missing, or `rows` are such rows themselves.
    """
    task, split, (trained_on, held_out) = rows.task, rows.split, DERIVED
    if split != held_out and task.splits.get(split, TRAIN) == TRAIN:
        return None
    seen = {*map(_fold, _texts(task, trained_on if split == held_out else TRAIN, folder))}
    return sum(_fold(_bare(text)) in seen for text in rows.texts) if seen else None


def repeated(rows: Rows) -> int:
    """How many rows have the text of an earlier row, ignoring case and whitespace."""
    return len(rows) - len({_fold(_bare(text)) for text in rows.texts})


def among(
    task: Task, split: str, shown: Mapping[str, str], digest: Callable[[], str]
) -> str | None:
    """Which of the rows that a model was shown are those of a split, under whatever name.

    `shown` maps `name@split` to its `texts_digest`, empty if unknown. Names are compared first:
    `digest`, which computes that of the split, reads all of its rows.
    """
    for rows in shown:
        name, _, other = rows.partition("@")
        if name == task.name and share_rows(task, split, other):
            return rows
    by_hash = {value: rows for rows, value in shown.items() if value}
    return by_hash.get(digest()) if by_hash else None


def texts_digest(task: Task, split: str, folder: str | Path | None = None) -> str:
    """A hash of the texts of a split, the same for other names of it and for any order of rows.

    Empty if they cannot be read.
    """
    try:
        digests = [digest_of(_fold(_bare(text))) for text in texts_of(task, split, folder=folder)]
    except HarnessError:
        return ""
    return digest_of([len(digests), sum(int(digest, 16) for digest in digests)])


def _texts(task: Task, split: str, folder: str | Path | None) -> Texts:
    """The counted texts of a split; none if it cannot be read, or the task generates its rows.

    A split on the Hub may be downloaded: the splits of a data set are fetched together.
    """
    hub = task.source and not task.files and data_dir(folder) is None
    if task.generate or not (hub or at_hand(task, task.splits.get(split, TRAIN), folder)):
        return Counter()
    try:
        return Counter(map(_bare, texts_of(task, split, folder=folder)))
    except HarnessError:
        return Counter()


def _bare(text: tuple[str, ...]) -> tuple[str, ...]:
    """A text with single blanks between its words and none around it."""
    return tuple(" ".join(part.split()) for part in text)


def _fold(text: tuple[str, ...]) -> tuple[str, ...]:
    """A text with its case folded."""
    return tuple(part.casefold() for part in text)
