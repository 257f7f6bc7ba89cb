"""Shell: what some mergers ask of data, computed on an expert's own rows, cached by content.

A statistic is one tensor per weight and holds no row of the data, so a file of it can be handed to
who merges without handing over the rows (RegMean, arXiv:2212.09849).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from harness import weights
from harness.checkpoints import (
    check_ready,
    classifier_on_meta,
    open_checkpoint,
    open_file,
)
from harness.data import load_rows, parse_task, take
from harness.encode import cache_dir, content_key
from harness.errors import BadData, BadOption, BadRecipe, BrokenCheckpoint, OutputExists
from harness.files import check_place, replacing
from harness.labels import columns
from harness.passes import GOLD, PASSES, Pass, check_options, linear_layers
from harness.registry import MERGERS, options, parse_choice, resolve
from harness.rng import rng
from harness.types import Checkpoint, Choice, Progress, Rows, Scalar, StateDict, Steps, Task

SPLIT = "train90"
KEY = "merging-harness"
"""Where a file's own description stands in its metadata."""


@dataclass(frozen=True)
class Statistic:
    """A statistic in a file: what it is of, and its tensors by the name of the weight.

    `digest` is that of the weights it was computed on, `task` is `name@split`, `facts` what else
    the pass found out (rows of input, say).
    """

    kind: str
    options: Mapping[str, Scalar]
    task: str
    model: str
    digest: str
    facts: Mapping[str, Any]
    tensors: StateDict
    source: str

    def described(self) -> dict[str, Any]:
        """All but the tensors, as the record of a merge holds it."""
        values = {key: getattr(self, key) for key in ("kind", "task", "model", "digest")}
        return {**values, "options": dict(self.options), **self.facts}


# Collecting --------------------------------------------------------------------------------


def drawn(task: Task, examples: int, seed: int, folder: str | Path | None) -> Rows:
    """The rows that a statistic is computed on: `examples` of `task@train90`, drawn by the seed.

    Experts of one task see the same rows. Raises BadData when there are fewer. `collect` takes the
    rows of any other draw as well, as `take(load_rows(task, SPLIT), numbers)`.
    """
    rows = load_rows(task, SPLIT, folder=folder)
    if not 0 < examples <= len(rows):
        raise BadData(
            f"{task}@{SPLIT} has {len(rows)} rows, found examples={examples}; "
            f"expected 1 to {len(rows)}: set the option examples"
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
    order = columns(task, checkpoint.labels or (), checkpoint.source)
    read = [order] if chosen.get("estimator") in GOLD else []
    key = content_key(checkpoint, rows, digest, length, kind, dict(chosen), *read)
    path = cache_dir("statistics") / f"{key}.safetensors"
    if not path.is_file():
        asked = Pass(checkpoint, rows, length, device, progress)
        tensors, shared = PASSES[kind](asked, **chosen)
        description = {
            "kind": kind,
            "options": dict(chosen),
            "task": f"{task}@{rows.split}",
            "model": checkpoint.name,
            "digest": digest,
            "facts": {"rows": rows.digest, "max_length": length},
            "shared": {name: first for name, first in shared.items() if name != first},
            "versions": {name: version(name) for name in ("merging-harness", "torch")},
        }
        write_statistic(path, tensors, description)
    elif progress:
        progress(len(rows))
    return read_statistic(path)


# Files -------------------------------------------------------------------------------------


def write_statistic(
    path: Path, tensors: Mapping[str, torch.Tensor], description: Mapping[str, Any]
) -> None:
    """Write tensors and what they are into one safetensors file, at once or not at all."""
    with replacing(path) as file:
        save_file(dict(tensors), file.name, metadata={KEY: json.dumps(description)})


def read_statistic(path: str | Path) -> Statistic:
    """Open a file that `write_statistic` wrote; tensors are read when they are asked for.

    Raises BrokenCheckpoint, naming the file, for what is not one.
    """
    tensors = open_file(Path(path))
    with safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get(KEY, "{}")
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict) or not {"kind", "options", "task", "digest"} <= said.keys():
        raise BrokenCheckpoint(
            f"{path} does not say what statistics it holds; expected a file that "
            "`harness statistics` wrote"
        )
    places = {**{name: name for name in tensors}, **said.get("shared", {})}
    kept = weights.specs(tensors)

    def read(name: str) -> torch.Tensor:
        tensor = tensors[places[name]]
        weights.check_finite(name, tensor, str(path))
        return tensor

    known = {name: kept[place] for name, place in places.items()}
    return Statistic(
        kind=str(said["kind"]),
        options=said["options"],
        task=str(said["task"]),
        model=str(said.get("model", "")),
        digest=str(said["digest"]),
        facts=said.get("facts", {}),
        tensors=weights.Lazy(known, read),
        source=str(path),
    )


def promised(kind: str, checkpoint: Checkpoint, obtain: Callable[[], Statistic]) -> StateDict:
    """The tensors that a statistic will have, by name and shape; it is obtained at the first read.

    A layer that never ran has the Gram matrix of no rows, which is zero.
    """
    known = shapes_of(kind, checkpoint)

    def read(name: str) -> torch.Tensor:
        found = obtain().tensors
        if name not in found:
            return torch.zeros(known[name].shape, dtype=known[name].dtype)
        if tuple(found[name].shape) != known[name].shape:
            raise BrokenCheckpoint(
                f"'{name}' of {obtain().source} is {tuple(found[name].shape)}, "
                f"expected {known[name].shape} as {checkpoint.source} has it"
            )
        return found[name]

    return weights.Lazy(known, read)


def shapes_of(kind: str, checkpoint: Checkpoint) -> dict[str, weights.Spec]:
    """Names and shapes of a statistic, from headers and the configuration alone."""
    if kind == "fisher":
        known = weights.specs(checkpoint.weights)
        moving = weights.floating(checkpoint.weights)
        return {name: weights.Spec(known[name].shape, torch.float32) for name in moving}
    layers = linear_layers(classifier_on_meta(checkpoint.config, checkpoint.source))
    return {
        f"{name}.weight": weights.Spec((layer.in_features,) * 2, torch.float64)
        for name, layer in layers.items()
    }


def statistic(
    expert: str | Path,
    *,
    task: str,
    out: str | Path,
    merger: str | Choice = "regmean",
    data_dir: str | Path | None = None,
    device: str = "auto",
    allow_pickle: bool = False,
    progress: Progress | None = None,
) -> Statistic:
    """What a merger asks of an expert's data, computed and written to the file `out`.

    Handing over the file instead of the data is enough to take part in a merge. Raises BadRecipe
    for a merger that asks for nothing, OutputExists for a file that holds something else.
    """
    choice = parse_choice(merger) if isinstance(merger, str) else merger
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
    check_ready(checkpoint)
    columns(found, checkpoint.labels or (), checkpoint.source)
    supply = Supply(kinds[0], chosen, [checkpoint], [found.name], (), data_dir, device)
    made = supply.obtain(0, progress)
    with replacing(path) as file, open(made.source, "rb") as source:
        shutil.copyfileobj(source, file)
    return read_statistic(path)


def _check_free(path: Path) -> None:
    """Raise OutputExists where a file of statistics cannot go, or something else lies."""
    check_place(path.absolute().parent)
    if path.exists():
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
        check_options(self.kind, self.chosen)
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
                if name != "seed" and file.options.get(name) != value:
                    raise BadOption(
                        f"{file.source} was computed with {name}={file.options.get(name)}, "
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
        of_it = [file for file in self._files if file.digest == digest]
        if not of_it:
            known = ", ".join(f"{file.source} ({file.digest[:12]})" for file in self._files)
            raise BadRecipe(
                f"no file of statistics was computed on {checkpoint.source} as it goes into the "
                f"merge: its weights hash to {digest[:12]}, found {known}; expected those of this "
                "very model, after pre-merging methods if there are any"
            )
        if self._tasks and of_it[0].task.partition("@")[0] != self._tasks[index]:
            raise BadRecipe(
                f"{of_it[0].source} was computed on {of_it[0].task}, expected rows of "
                f"{self._tasks[index]}, the task of {checkpoint.source}"
            )
        return of_it[0]


def _advance(progress: Progress, what: str, total: int, done: int) -> None:
    progress(what, done, total)
