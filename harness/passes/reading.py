"""An expert and the rows that it is run on: what the function of a need is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from harness import weights
from harness.checkpoints.build import classifier_of
from harness.checkpoints.verbalizer import as_questions
from harness.files import cache_dir
from harness.kinds import kind_of
from harness.passes.features import content_key
from harness.passes.placement import AUTOMATIC, Placement
from harness.passes.prepared import Inputs, Prepared, check_positions, prepare, row_labels, stacked
from harness.types import Checkpoint, Progress, Rows, Steps


@dataclass(frozen=True)
class Reading:
    """An expert and the rows that it is run on.

    `progress`, if given, is called with the number of rows done since the last call.
    """

    checkpoint: Checkpoint
    rows: Rows
    max_length: int
    placement: Placement
    progress: Steps | None

    def model(self) -> torch.nn.Module:
        """The expert in eval mode, without dropout, on its device. An embedding model is made as a
        classifier, of which only `base_model` may be run."""
        model = classifier_of(self.checkpoint, kind_of(self.rows.task).unit, self.placement.where)
        check_positions(model, self.prepared, self.checkpoint.source)
        return self.placement.put(model)

    def entry(self, digest: str, *made_of: object) -> Path:
        """The cache file of a result of this reading, by all that the result depends on.

        `digest` is the hash of the expert's weights; `made_of` is, say, a need with its options.
        """
        parts = (*made_of, *self.placement.parts)
        key = content_key(self.checkpoint, self.rows, digest, self.max_length, *parts)
        return cache_dir("statistics") / f"{key}.safetensors"

    @property
    def embeds(self) -> bool:
        """Whether the expert is an embedding model: it has no outputs, and rows have no labels."""
        return self.checkpoint.pooling is not None

    @property
    def places(self) -> list[int]:
        """For each label of the task, the index of the expert's output for it."""
        if self.embeds:
            return []
        task, checkpoint = self.rows.task, self.checkpoint
        return kind_of(task).output_columns(task, checkpoint.labels or (), checkpoint.source)

    def batches(self, size: int, *, as_drawn: bool) -> Iterator[tuple[Inputs, torch.Tensor]]:
        """Inputs and labels of `size` rows each, as drawn or by length, which pads less."""
        kind, device = kind_of(self.rows.task), self.placement.where
        outputs = max(1, len(self.checkpoint.labels or ()))
        labels = row_labels(self.prepared, self.rows, self.places, outputs)
        for picked, inputs in self._batches(size, as_drawn=as_drawn):
            yield inputs, stacked([labels[i] for i in picked], whole=kind.integer_labels).to(device)

    def inputs(self, size: int, *, as_drawn: bool = False) -> Iterator[Inputs]:
        """Inputs of `size` rows each, without labels, in the order of the draw or by length."""
        return (inputs for _, inputs in self._batches(size, as_drawn=as_drawn))

    @cached_property
    def prepared(self) -> Prepared:
        """The rows as inputs of the expert."""
        return prepare(self.checkpoint, self.rows, self.max_length)

    def _batches(self, size: int, *, as_drawn: bool) -> Iterator[tuple[list[int], Inputs]]:
        """The numbers of `size` rows each, with their inputs."""
        order = [*range(len(self.rows))]
        drawn = (order[start : start + size] for start in range(0, len(order), size))
        for picked in drawn if as_drawn else self.prepared.batches(1, size):
            yield picked, self.prepared.batch(picked, self.placement)
            if self.progress:
                self.progress(len(picked))


def reading_of(
    checkpoint: Checkpoint, rows: Rows, placement: Placement, progress: Steps | None = None
) -> Reading:
    """The reading of an expert, rows cut to the task's maximum length and an embedding model's own.

    For a model that is asked about every label, the rows are the questions that have an answer, and
    there is no progress."""
    checkpoint, questions = as_questions(checkpoint, rows, annotated=True)
    rows, progress = questions, progress if questions is rows else None
    length, pooling = rows.task.finetune.max_length, checkpoint.pooling
    if pooling is not None:
        length = min(length, pooling.max_length or length)
    return Reading(checkpoint, rows, length, placement, progress)


@dataclass(frozen=True)
class Readings:
    """All experts as they enter a method, and the rows that each is run on, not loaded yet.

    `rows` is a function of the place of an expert. `progress`, if given, is called by the need for
    the rows that it has read.
    """

    checkpoints: tuple[Checkpoint, ...]
    rows: Callable[[int], Rows]
    placement: Placement = AUTOMATIC
    progress: Progress | None = None

    def __len__(self) -> int:
        return len(self.checkpoints)

    def of(self, place: int) -> Reading:
        """The reading of one expert."""
        return reading_of(self.checkpoints[place], self.rows(place), self.placement)

    @cached_property
    def digests(self) -> list[str]:
        """The hash of each expert's weights."""
        return [weights.digest(checkpoint.weights) for checkpoint in self.checkpoints]

    def steps(self, what: str, total: int) -> Steps | None:
        """The progress of `total` rows; None if nothing shows it."""
        progress = self.progress
        return (lambda done: progress(what, done, total)) if progress else None
