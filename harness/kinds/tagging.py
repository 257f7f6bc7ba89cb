"""A tag for every word of a row: named entities, in IOB1, IOB2 or BIOES."""

from __future__ import annotations

import reprlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from harness.errors import BadData
from harness.kinds.classification import Classification
from harness.kinds.kind import IGNORED, RowName, class_indices, with_names
from harness.rng import rng
from harness.types import Array, Array64, Row, Rows, Task, Units

if TYPE_CHECKING:
    import torch

OUTSIDE = "O"
"""The tag of a word outside entities."""


def seen_cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy over the words that the model saw, as in transformers.

    For a batch without such words it is 0, where transformers has NaN.
    """
    from torch.nn.functional import cross_entropy

    if not bool((labels != IGNORED).any()):
        return 0 * outputs.sum()
    return cross_entropy(outputs.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED)


class Tagging(Classification):
    """Labels are indices of tags, [words of all rows]; a word is read at its first sub-word."""

    name: ClassVar[str] = "tagging"
    unit: ClassVar = "word"
    hub_task: ClassVar[str] = "token-classification"
    metrics: ClassVar[tuple[str, ...]] = ("span_f1",)
    placeholder_labels: ClassVar[tuple[str, ...]] = (OUTSIDE, "B-")
    list_labels: ClassVar[bool] = True

    def fault(self, task: Task) -> str | None:
        """What is wrong with the tags or columns of a task: tags are O and PREFIX-TYPE."""
        bad = [t for t in task.labels if t != OUTSIDE and not (t[:1] in "BIES" and t[1:2] == "-")]
        if OUTSIDE not in task.labels or bad or len(task.labels) < 2:
            first = (bad or list(task.labels))[:5]
            shown = ", ".join([*first, "..."] if len(bad) > len(first) else first) or "none"
            return f"the tags {shown}, expected O and B-TYPE, I-TYPE (or E-, S-) for tagging"
        if len(task.text) != 1:
            shown = ", ".join(task.text) or task.image
            return f"the columns {shown}, expected one with lists of words"
        return None

    def ordered(self, names: Sequence[str]) -> tuple[str, ...]:
        """The tags with O first."""
        return super().ordered(sorted(names, key=lambda name: name != OUTSIDE))

    def segments(self, task: Task, row: Row) -> tuple[str, ...]:
        """The words of a row."""
        words = row[task.text[0]]
        if not isinstance(words, list | tuple):
            raise TypeError(f"{type(words).__name__} instead of a list of words")
        return tuple("" if word is None else str(word) for word in words)

    def read(self, task: Task, rows: Sequence[Row], row_name: RowName) -> Array64:
        """Tags by index. A row has a list of tags, one for each word: names, or indices."""
        tags: list[Any] = []
        for place, row in with_names(rows, row_name):
            row_tags, words = row[task.label], row[task.text[0]]
            if not isinstance(row_tags, list | tuple) or len(row_tags) != len(words or ()):
                raise BadData(
                    f"{place} has the tags {reprlib.repr(row_tags)} for {len(words or ())} words, "
                    "expected a list with one for each"
                )
            tags += row_tags
        return class_indices(task, tags, row_name, [len(row[task.label]) for row in rows])

    def unit_counts(self, rows: Rows) -> Units:
        """The number of words of each row."""
        return np.array([len(words) for words in rows.texts], dtype=np.int64)

    def parts(self, rows: Rows) -> Sequence[range]:
        """The words of every gold entity."""
        found: list[range] = []
        for span, tags in zip(self._sentences(rows), tags_of(rows), strict=True):
            found += [range(span[0] + a, span[0] + b + 1) for _, a, b in entities(tags)]
        return found

    def facts(self, rows: Rows) -> Mapping[str, str]:
        """The scheme in which the entities are written."""
        return {"scheme": scheme(rows)}

    def constants(self, task: Task, labels: Array64) -> Iterator[Array64]:
        """The tag O everywhere."""
        yield np.full(len(labels), float(self.outside(task)))

    def outside(self, task: Task) -> int:
        """The index of O."""
        return task.labels.index(OUTSIDE)

    def unseen(self, task: Task) -> float:
        """O: a model finds no entity in words that were cut off."""
        return float(self.outside(task))

    def for_metrics(self, task: Task, values: Array64, units: Units | None) -> Any:
        """A list of tags for each row."""
        assert units is not None
        tags = np.array(task.labels)[values.astype(np.int64)]
        return [part.tolist() for part in np.split(tags, np.cumsum(units)[:-1])]

    def labelled(self, outputs: Array, labels: Array) -> Array:
        """The outputs at the first tokens of words, which alone are labelled."""
        return np.asarray(outputs[labels != IGNORED])

    @property
    def loss(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """The mean cross entropy over the words that the model saw."""
        return seen_cross_entropy

    def examples(
        self, rows: Rows, orders: Sequence[Sequence[int]], seed: int, shots: int
    ) -> Sequence[Sequence[int]]:
        """The words of each drawn sentence (docs/methods.md#shots).

        Of each type of entity, sentences until they have `shots` entities of it; and `shots`
        sentences without entities. `orders` is not used.
        """
        spans = self._sentences(rows)
        counts = [Counter(kind for kind, _, _ in entities(tags)) for tags in tags_of(rows)]
        chosen: dict[int, None] = {}
        for kind in sorted({kind for mentions in counts for kind in mentions}):
            order = rng(seed, "sentences", rows.task.name, kind).permutation(len(spans))
            covered = 0
            for place in order.tolist():
                if covered >= shots:
                    break
                if kind in counts[place]:
                    chosen[place] = None
                    covered += counts[place][kind]
        order = rng(seed, "sentences", rows.task.name, OUTSIDE).permutation(len(spans))
        without = [place for place in order.tolist() if not counts[place] and spans[place]]
        chosen |= dict.fromkeys(without[:shots])
        return [spans[place] for place in chosen]

    def examples_containing(self, rows: Rows, units: Sequence[int]) -> Sequence[Sequence[int]]:
        """The sentences that contain the words, each once."""
        row_of = np.repeat(np.arange(len(rows)), self.unit_counts(rows))
        spans = self._sentences(rows)
        return [spans[row] for row in dict.fromkeys(row_of[[*units]].tolist())]

    def _sentences(self, rows: Rows) -> list[tuple[int, ...]]:
        """The numbers of the words of each row."""
        ends = np.cumsum(self.unit_counts(rows)).tolist()
        return [tuple(range(a, b)) for a, b in pairwise([0, *ends])]


def tags_of(rows: Rows) -> list[list[str]]:
    """The tags of each row."""
    kind = Tagging()
    tags: list[list[str]] = kind.for_metrics(rows.task, rows.labels, kind.unit_counts(rows))
    return tags


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """The type, first word and last word of every entity of a row, as seqeval finds them."""
    from seqeval.metrics.sequence_labeling import get_entities

    found: list[tuple[str, int, int]] = get_entities([*tags])
    return found


def scheme(rows: Rows) -> str:
    """The scheme in which entities are written: IOB1, IOB2 or BIOES.

    IOB1 begins an entity with B- only right after one of its type, IOB2 every entity. Where some
    entities fit the one alone and some the other, it is that of most, with a warning.
    """
    if any(tag[0] in "ES" for tag in rows.task.labels):
        return "BIOES"
    found: dict[str, list[str]] = {"IOB2": [], "IOB1": []}
    total = 0
    for words, tags in zip(rows.texts, tags_of(rows), strict=True):
        before = ("", -1)
        for kind, start, end in entities(tags):
            begins, total = tags[start][0], total + 1
            if begins == "I" or before != (kind, start - 1):
                found["IOB1" if begins == "I" else "IOB2"].append(f"{words[start]}/{tags[start]}")
            before = (kind, end)
    most, least = sorted(found, key=lambda name: len(found[name]), reverse=True)
    if strays := found[least]:
        warnings.warn(
            f"{rows.task}@{rows.split}: {len(strays)} of {total} entities begin as in {least}, "
            f"first {strays[0]!r:.80}, and most as in {most}, which is taken for the scheme; "
            "correct their tags",
            stacklevel=3,
        )
    return most
