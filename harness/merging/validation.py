"""Shell: the score of a candidate merge on held-out rows, for tuning and selection."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from harness import weights
from harness.data.apart import check_apart
from harness.data.metrics import check_scored, finished, score
from harness.data.rows import load_rows
from harness.errors import BadRecipe
from harness.kinds import kind_of
from harness.passes.features import forward
from harness.passes.lengths import at_length
from harness.passes.placement import AUTOMATIC, Placement
from harness.readout import LAST_LINEAR, Readout
from harness.types import Checkpoint, Length, Progress, Rows, StateDict, Task

CANDIDATES = "scoring candidates"
"""The label, in the progress, of rows that candidates are scored on."""


def with_tensors(model: Checkpoint, state: StateDict) -> Checkpoint:
    """The model with tensors of a state in place of its own of the same names."""
    whole = weights.select(weights.union(state, model.weights), model.weights)
    return replace(model, weights=whole)


@dataclass(frozen=True)
class ValidationScorer:
    """The score of a candidate under Current Eval, averaged over tasks; higher is better.

    `places` are, for each task, a checkpoint that supplies the configuration and every tensor the
    candidate lacks, the task, and the split to score: never one that is reported. `progress` counts
    the rows scored, out of those for `expected` candidates. `readout` is how rows are encoded and
    where features are taken. `kept` are names of tensors that stay the checkpoint's own, whatever a
    candidate has. `max_length` is the most tokens of a row, by default each task's, and `limit` the
    most rows of each split that are scored, by default all.
    """

    places: tuple[tuple[Checkpoint, Task, str], ...]
    data_dir: str | None = None
    placement: Placement = AUTOMATIC
    expected: int = 1
    progress: Progress | None = None
    readout: Readout = LAST_LINEAR
    kept: tuple[str, ...] = ()
    max_length: Length | None = None
    limit: int | None = None

    @cached_property
    def rows(self) -> tuple[Rows, ...]:
        """The rows to score, read once. Raises BadRecipe when no task is known.

        Raises BadData for rows of which there is no score.
        """
        if not self.places:
            raise BadRecipe("no task to score candidates on; name it with --tune-on TASK@SPLIT")
        for _, task, _ in self.places:  # before any rows are read
            check_apart(task, self.data_dir)
        read = []
        for model, task, split in self.places:
            rows = load_rows(task, split, folder=self.data_dir, limit=self.limit)
            check_scored(task, rows.labels, kind_of(task).unit_counts(rows), f"{task}@{split}")
            read.append(at_length(rows, self.max_length, [model]))
        return tuple(read)

    def on(self, rows: tuple[Rows, ...]) -> ValidationScorer:
        """This scorer, on rows that another scorer of the same splits has read."""
        scorer = replace(self)
        vars(scorer)["rows"] = rows
        return scorer

    @property
    def reads(self) -> int:
        """How many rows it takes to score all expected candidates."""
        return self.expected * sum(map(len, self.rows))

    @property
    def splits(self) -> tuple[str, ...]:
        """The names `task@split` of what is scored, as recorded."""
        return tuple(f"{task}@{split}" for _, task, split in self.places)

    def __call__(self, candidate: StateDict) -> float:
        """The mean over tasks of the task's metrics."""
        total, tell = self.reads, self.progress
        step = (lambda done: tell(CANDIDATES, done, total)) if tell else None
        # each tensor is computed once, however many tasks there are
        state = {name: candidate[name] for name in candidate if name not in self.kept}
        scores = []
        for (template, task, _), rows in zip(self.places, self.rows, strict=True):
            kind = kind_of(task)
            order = kind.output_columns(task, template.labels or (), template.source)
            _, logits, seen = forward(
                replace(with_tensors(template, state), source="a candidate"),
                rows,
                max_length=rows.task.finetune.max_length,
                readout=self.readout,
                placement=self.placement,
                progress=step,
            )
            values = finished(task, kind.predicted(logits[:, order]), seen)
            scores.append(score(task, values, rows.labels, kind.unit_counts(rows)).value)
        return float(np.mean(scores))
