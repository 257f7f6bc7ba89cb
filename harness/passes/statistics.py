"""Shell: what some mergers ask of data, computed on an expert's own rows, cached by content.

A statistic is one tensor per weight and holds no row of the data, so a file of it can be handed to
who merges without handing over the rows (RegMean, arXiv:2212.09849).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch

from harness import weights
from harness.checkpoints.build import check_ready
from harness.checkpoints.open import open_checkpoint
from harness.data.rows import load_rows, take
from harness.data.splits import parse_task
from harness.errors import BadOption, BadRecipe, BrokenCheckpoint, OutputExists
from harness.files import cache_dir, check_place
from harness.kinds import kind_of
from harness.options import options, parse_choice, resolve
from harness.passes.cache import keep, recall
from harness.passes.features import content_key
from harness.passes.fisher import GOLD
from harness.passes.statistic_file import (
    Facts,
    Said,
    Statistic,
    check_statistic,
    described,
    opened,
    read_statistic,
    shapes_of,
    write_statistic,
)
from harness.passes.sums import PASSES, Pass, warn_of_nothing
from harness.presets import PresetName, faithful
from harness.registry import MERGERS
from harness.rng import rng
from harness.types import Checkpoint, Choice, Progress, Rows, Scalar, StateDict, Steps, Task

SPLIT = "train90"

# Collecting --------------------------------------------------------------------------------


def drawn(task: Task, examples: int, seed: int, folder: str | Path | None) -> Rows:
    """The rows that a statistic is computed on: `examples` of `task@train90`, drawn by the seed.

    Experts of one task see the same rows. Where there are fewer, all are taken, with a warning.
    `collect` takes the rows of any other draw as well, as `take(load_rows(task, SPLIT), numbers)`.
    """
    rows = load_rows(task, SPLIT, folder=folder)
    if examples > len(rows):
        warnings.warn(
            f"{task}@{SPLIT} has {len(rows)} rows, fewer than examples={examples}: all are taken",
            stacklevel=2,
        )
    order = rng(seed, "stats", task.name).permutation(len(rows))
    return take(rows, [int(i) for i in order[:examples]])


def collect(
    kind: str,
    chosen: Mapping[str, Scalar],
    checkpoint: Checkpoint,
    rows: Rows,
    *,
    device: str = "auto",
    progress: Steps | None = None,
) -> Statistic:
    """A statistic of a checkpoint with a head on drawn rows, from the cache or by a pass over them.

    `chosen` are all options of the pass.
    """
    task, digest = rows.task, weights.digest(checkpoint.weights)
    length = task.finetune.max_length
    # which output a gold label stands for is not part of the content where no label is read
    order = kind_of(task).columns(task, checkpoint.labels or (), checkpoint.source)
    read = [order] if chosen.get("estimator") in GOLD else []
    key = content_key(checkpoint, rows, digest, length, kind, dict(chosen), *read)
    path = cache_dir("statistics") / f"{key}.safetensors"
    found = _recalled(path)
    if found is not None:
        if progress:
            progress(len(rows))
        return found
    made = _computed(kind, chosen, Pass(checkpoint, rows, length, device, progress), digest)
    kept = keep(path, made.stored, described(made.said))
    return (_recalled(path) if kept else None) or made


def _recalled(path: Path) -> Statistic | None:
    """A statistic in the cache, its tensors on disk; None where there is none that is whole."""
    entry = recall(path)
    try:
        return None if entry is None else opened(path, *entry)
    except BrokenCheckpoint:
        return None


def _computed(kind: str, chosen: Mapping[str, Scalar], asked: Pass, digest: str) -> Statistic:
    """A statistic by a pass over the rows."""
    tensors, shared = PASSES[kind](asked, **chosen)
    shared = {name: first for name, first in shared.items() if name != first}
    reached = {*tensors, *shared}
    missed = [name for name in shapes_of(kind, asked.checkpoint) if name not in reached]
    facts = {"rows": asked.rows.digest, "max_length": asked.max_length, "not run": tuple(missed)}
    said = Said(
        kind=kind,
        options=dict(chosen),
        task=f"{asked.rows.task}@{asked.rows.split}",
        digest=digest,
        model=asked.checkpoint.name,
        facts=Facts.model_validate(facts),
        shared=shared,
        versions={name: version(name) for name in ("merging-harness", "torch")},
    )
    return Statistic(said, tensors, f"{kind} of {asked.checkpoint.source}")


def promised(kind: str, checkpoint: Checkpoint, obtain: Callable[[], Statistic]) -> StateDict:
    """The tensors that a statistic will have, by name and shape; it is obtained at the first read.

    A layer that never ran has the Gram matrix of no rows, which is zero.
    """
    known = shapes_of(kind, checkpoint)

    def read(name: str) -> torch.Tensor:
        found = obtain().tensors
        if name not in found:
            return torch.zeros(known[name].shape, dtype=known[name].dtype)
        return found[name]

    return weights.Lazy(known, read)


def statistic(
    expert: str | Path,
    *,
    task: str,
    out: str | Path,
    merger: str | Choice = "regmean",
    preset: PresetName | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    allow_pickle: bool = False,
    progress: Progress | None = None,
) -> Statistic:
    """What a merger asks of an expert's data, computed and written to the file `out`.

    Handing over the file instead of the data is enough to take part in a merge. Raises BadRecipe
    for a merger that asks for nothing, OutputExists for a file that holds something else.
    """
    choice = faithful(parse_choice(merger) if isinstance(merger, str) else merger, preset)
    entry = MERGERS[choice.name]
    kinds = [need for need in entry.needs if need in PASSES]
    if len(kinds) != 1:
        needing = [name for name, one in MERGERS.items() if set(one.needs) & set(PASSES)]
        raise BadRecipe(f"{entry.name} needs no statistics; expected {' or '.join(needing)}")
    found, split = parse_task(task)
    if "@" in task and split != SPLIT:
        raise BadRecipe(f"statistics are computed on {found}@{SPLIT}, found '@{split}'")
    function = PASSES[kinds[0]]
    chosen = resolve("merger", choice, entry.function, function)
    chosen = {name: chosen[name] for name in options(function)}
    path = Path(out)
    _check_free(path)
    checkpoint = open_checkpoint(expert, allow_pickle=allow_pickle)
    check_ready(checkpoint, unit=kind_of(found).unit)
    kind_of(found).columns(found, checkpoint.labels or (), checkpoint.source)
    supply = Supply(kinds[0], chosen, [checkpoint], [found.name], (), data_dir, device)
    write_statistic(path, supply.obtain(0, progress))
    return read_statistic(path)


def _check_free(path: Path) -> None:
    """Raise OutputExists where a file of statistics cannot go, or something else lies."""
    check_place(path.absolute().parent)
    if os.path.lexists(path):
        try:
            read_statistic(path)
        except BrokenCheckpoint as error:
            raise OutputExists(
                f"{path} exists and is no file of statistics; expected a new file: choose another "
                "--out or move it away"
            ) from error


class Supply:
    """One statistic of every expert: from files, else from the cache, else by a pass.

    `chosen` are all options of the pass, `checkpoints` the experts as they go into the merge, with
    heads. Nothing but headers is read before `prepare` or the first tensor is asked for.
    """

    def __init__(
        self,
        kind: str,
        chosen: Mapping[str, Scalar],
        checkpoints: Sequence[Checkpoint],
        tasks: Sequence[str],
        files: Sequence[str] = (),
        data_dir: str | Path | None = None,
        device: str = "auto",
    ) -> None:
        self.kind = kind
        self.chosen = chosen
        self._checkpoints = checkpoints
        self._tasks = tasks
        self._files = [read_statistic(file) for file in files]
        self._data_dir = data_dir
        self._device = device
        self._found: dict[int, Statistic] = {}
        self._rows: dict[str, Rows] = {}
        self._check()

    def promises(self) -> list[StateDict]:
        """The tensors of every expert's statistic, lazily."""
        return [
            promised(self.kind, checkpoint, partial(self.obtain, index))
            for index, checkpoint in enumerate(self._checkpoints)
        ]

    def prepare(self, progress: Progress | None = None) -> None:
        """Obtain all: rows are read and checked for every expert before the first pass."""
        if not self._files:
            for task in self._tasks:
                self._drawn(task)
        for index in range(len(self._checkpoints)):
            self.obtain(index, progress)

    def described(self) -> list[dict[str, Any]]:
        """What was obtained, for the record."""
        return [self._found[index].described() for index in sorted(self._found)]

    def obtain(self, index: int, progress: Progress | None = None) -> Statistic:
        """The statistic of one expert."""
        if index not in self._found:
            self._found[index] = (
                self._from_files(index) if self._files else self._collected(index, progress)
            )
        return self._found[index]

    def _check(self) -> None:
        warn_of_nothing(self.chosen)
        count, given = len(self._checkpoints), len(self._files)
        if not given and len(self._tasks) != count:
            raise BadRecipe(
                f"{self.kind} statistics are computed on each expert's own task; name it with "
                "--tasks, or give files with --statistics"
            )
        for file in self._files:
            if file.kind != self.kind:
                raise BadRecipe(f"{file.source} holds {file.kind} statistics, expected {self.kind}")
            for name, value in self.chosen.items():
                given_value = file.options.get(name)
                if name != "seed" and given_value != value:
                    raise BadOption(
                        f"{file.source} was computed with {name}={given_value}, "
                        f"expected {value}: give that option, or another file"
                    )
        if given and given != count:
            raise BadRecipe(f"{given} files of statistics for {count} experts; expected one each")

    def _drawn(self, name: str) -> Rows:
        """The rows of a task, read once for all experts of it."""
        if name not in self._rows:
            examples, seed = (cast(int, self.chosen[key]) for key in ("examples", "seed"))
            self._rows[name] = drawn(parse_task(name)[0], examples, seed, self._data_dir)
        return self._rows[name]

    def _collected(self, index: int, progress: Progress | None) -> Statistic:
        rows, checkpoint = self._drawn(self._tasks[index]), self._checkpoints[index]
        what = f"{self.kind} of {checkpoint.name}"
        step = partial(_advance, progress, what, len(rows)) if progress else None
        return collect(self.kind, self.chosen, checkpoint, rows, device=self._device, progress=step)

    def _from_files(self, index: int) -> Statistic:
        checkpoint = self._checkpoints[index]
        digest = weights.digest(checkpoint.weights)
        of_it = [file for file in self._files if file.said.digest == digest]
        if not of_it:
            known = ", ".join(f"{file.source} ({file.said.digest[:12]})" for file in self._files)
            raise BadRecipe(
                f"no file of statistics was computed on {checkpoint.source} as it goes into the "
                f"merge: its weights hash to {digest[:12]}, found {known}; expected those of this "
                "very model, after pre-merging methods if there are any"
            )
        # as text: a name in a file is never looked up, which could import what it names
        task, _, split = of_it[0].task.partition("@")
        if split != SPLIT or (self._tasks and task != self._tasks[index]):
            wanted = f"{self._tasks[index]}@{SPLIT}" if self._tasks else f"a task's @{SPLIT}"
            raise BadRecipe(
                f"{of_it[0].source} was computed on {of_it[0].task}, expected rows of "
                f"{wanted}, on which {checkpoint.source} was trained"
            )
        check_statistic(of_it[0], checkpoint)
        return of_it[0]


def _advance(progress: Progress, what: str, total: int, done: int) -> None:
    progress(what, done, total)
