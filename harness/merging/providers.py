"""How the needs of a method are met: by a statistic of each expert, or by one value for all."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, TypeAlias

from harness import weights
from harness.checkpoints.build import check_ready, unit_of
from harness.checkpoints.label_order import ordered_as, tensors_ordered_as
from harness.checkpoints.processor import check_inputs
from harness.checkpoints.provenance import Part
from harness.data.sources import TRAIN, at_hand
from harness.data.splits import parse_task
from harness.errors import BadOption, BadRecipe, HarnessError
from harness.kinds import kind_of
from harness.merging.recipes import Recipe
from harness.passes import statistics
from harness.passes.lengths import at_length
from harness.passes.reading import Readings, reading_of
from harness.passes.statistic_file import Statistic, check_statistic
from harness.plugins import calling
from harness.registry import TASKS
from harness.types import TRAINED_ON, Checkpoint, Need, Progress, Rows, Scalar, StateDict


@dataclass(frozen=True)
class ReadyProvider:
    """Meets a need of shared rows or of none, by what its function has returned."""

    need: Need
    argument: Any

    def prepare(self) -> None:
        """Nothing to do: rows are read when the method asks for what takes them."""

    def described(self) -> list[dict[str, Any]]:
        """Empty: the record has the method's options and the rows that it scores on elsewhere."""
        return []


def check_kinds(need: Need, tasks: Sequence[str]) -> None:
    """Raise BadRecipe for a task of a kind whose rows the need cannot read."""
    for name in tasks:
        task = parse_task(name)[0]
        if task.kind not in need.kinds:
            kinds = " or ".join(need.kinds)
            raise BadRecipe(
                f"{need.name} reads rows of {kinds} tasks, found {task}, a {task.kind} task"
            )


@dataclass(frozen=True)
class RowsProvider:
    """A need of rows, all its options, and the experts as they enter the method, with heads."""

    need: Need
    chosen: Mapping[str, Scalar]
    checkpoints: tuple[Checkpoint, ...]
    recipe: Recipe
    progress: Progress | None = None

    @cached_property
    def draws(self) -> Callable[[int], Rows]:
        """From an expert's place to its drawn rows, read once for each task and part."""

        @cache
        def rows(name: str, part: Part | None) -> Rows:
            drawn = statistics.rows_for_options(
                self.chosen, parse_task(name)[0], self.recipe.data_dir, part
            )
            return at_length(drawn, self.recipe.max_length, self.checkpoints)

        return lambda place: rows(
            self.recipe.tasks[place], statistics.part_seen(self.checkpoints[place])
        )


@dataclass(frozen=True)
class JointProvider(RowsProvider):
    """Meets a need of all experts at once, on rows of each expert's own task or on the same rows.

    No row is read before `prepare`, or before the method uses `argument`. Raises BadRecipe, when it
    is made, if the tasks whose rows are to be drawn are unknown.
    """

    def __post_init__(self) -> None:
        count, same = len(self.recipe.tasks), self.need.rows == "same"
        if not count or (not same and count != len(self.checkpoints)):
            whose = "the first expert's task; name it" if same else "each expert's task; name them"
            raise BadRecipe(f"{self.need.name} needs rows of {whose} with --tasks")
        check_kinds(self.need, self.recipe.tasks)

    @cached_property
    def argument(self) -> Any:
        """What the need's function returns for the readings of all experts; called once."""
        with calling(f"need {self.need.name}", self.need.function):
            return self.need.function(self._readings, **self.chosen)

    def prepare(self) -> None:
        """Read the rows and check that the experts can; models are run when the method asks."""
        for place, checkpoint in enumerate(self.checkpoints):
            rows = self._readings.rows(place)
            check_inputs(checkpoint, rows.task)
            unit = unit_of(checkpoint) if self.need.rows == "same" else kind_of(rows.task).unit
            check_ready(checkpoint, unit=unit)

    def described(self) -> list[dict[str, Any]]:
        """Which rows each expert was shown, for the record."""
        readings = self._readings
        pairs = [(readings.of(place), digest) for place, digest in enumerate(readings.digests)]
        return [statistics.describe(self.need, self.chosen, *pair).recorded() for pair in pairs]

    @cached_property
    def _readings(self) -> Readings:
        same = self.need.rows == "same"
        rows = (lambda _: self.draws(0)) if same else self.draws
        return Readings(self.checkpoints, rows, self.recipe.placement, self.progress)


@dataclass(frozen=True)
class StatisticsProvider(RowsProvider):
    """Meets a need of each expert's own rows: from files, else from the cache, else by a pass.

    `files` are those of the need. `elsewhere`: another method of the merge has the need, too, and
    files that do not fit here may be meant for it. Only headers are read before `prepare` or before
    the first tensor is asked for. Raises BadRecipe or BadOption, when it is made, for files that
    cannot fit.
    """

    files: tuple[Statistic, ...] = ()
    elsewhere: bool = False
    _statistics: dict[int, Statistic] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.files:
            self._check_tasks()
        elif not self.elsewhere:
            self._check_files()

    @property
    def argument(self) -> list[StateDict]:
        """The tensors of every expert's statistic, lazily."""
        obtained = [partial(self.obtain, index) for index in range(len(self.checkpoints))]
        promised = partial(statistics.lazy_statistic, self.need)
        return [*map(promised, self.checkpoints, obtained)]

    @property
    def obtained(self) -> list[Statistic]:
        """The statistics that were obtained so far, in the order of the experts."""
        return [self._statistics[index] for index in sorted(self._statistics)]

    def prepare(self) -> None:
        """Obtain all statistics; the rows of all experts are read, so checked, before any pass."""
        _ = self.rows
        for index in range(len(self.checkpoints)):
            self.obtain(index)

    @property
    def rows(self) -> Counter[str]:
        """The number of each expert's rows, by its label in the progress; empty with files."""
        rows: Counter[str] = Counter()
        for place, checkpoint in enumerate(() if self.files else self.checkpoints):
            rows[statistics.progress_label(self.need, checkpoint)] += len(self.draws(place))
        return rows

    def described(self) -> list[dict[str, Any]]:
        """The descriptions of the obtained statistics, for the record."""
        return [statistic.header.recorded() for statistic in self.obtained]

    def obtain(self, index: int) -> Statistic:
        """The statistic of one expert."""
        if index not in self._statistics:
            self._statistics[index] = self._from_files(index) or self._collected(index)
        return self._statistics[index]

    def _check_tasks(self) -> None:
        if len(self.recipe.tasks) != len(self.checkpoints):
            raise BadRecipe(
                f"{self.need.name} needs rows of each expert's task; expected --tasks, or "
                "--statistics"
            )
        check_kinds(self.need, self.recipe.tasks)

    def _check_files(self) -> None:
        for file in self.files:
            if option := self._odd_option(file):
                value = file.header.options.get(option)
                problem = f"{file.source} was computed with {option}={value}"
                if value is None:
                    problem = f"{file.source} does not record {option}"
                raise BadOption(
                    f"{problem}, expected {self.chosen[option]}: give the method the value of the "
                    "file, or give another file"
                )
        count, files = len(self.checkpoints), len(self.files)
        if files != count:
            plural = "s" * (files != 1)
            raise BadRecipe(
                f"found {files} file{plural} of statistics for {count} experts; expected one for "
                "each expert"
            )

    def _odd_option(self, file: Statistic) -> str | None:
        """An option, except the seed, with another value in the file than asked for, if any."""
        bad = (n for n, v in self.chosen.items() if n != "seed" and file.header.options.get(n) != v)
        return next(bad, None)

    def _collected(self, index: int) -> Statistic:
        """The statistic of one expert from the cache, else by a pass over its rows."""
        self._check_tasks()
        rows, checkpoint = self.draws(index), self.checkpoints[index]
        step = statistics.steps(self.progress, self.need, checkpoint, rows)
        reading = reading_of(checkpoint, rows, self.recipe.placement, step)
        return statistics.collect(self.need, self.chosen, reading)

    def _from_files(self, index: int) -> Statistic | None:
        """The file for one expert; None if there are no files, or none but for another method."""
        files = [file for file in self.files if self._odd_option(file) is None]
        if not files:
            return None
        checkpoint = self.checkpoints[index]
        digest = weights.digest(ordered_as(checkpoint, checkpoint.stored_labels).weights)
        fitting = next((file for file in files if file.header.digest == digest), None)
        if fitting is None:
            if self.elsewhere:
                return None
            raise BadRecipe(
                f"{checkpoint.source} has the digest {digest[:12]} as it enters the merge, found "
                f"statistics of {_listed(files)}; expected statistics of this very model, as it is "
                "after the pre-merging methods"
            )
        self._check_rows(fitting, index)
        check_statistic(fitting, checkpoint)
        self._tell_of_other_rows(fitting, index)
        return replace(fitting, stored=tensors_ordered_as(checkpoint, fitting.stored))

    def _check_rows(self, file: Statistic, index: int) -> None:
        # as text: a name in a file is never looked up, which could import what it names
        task, _, split = file.header.task.partition("@")
        tasks = self.recipe.tasks
        if split != TRAINED_ON or (tasks and task != tasks[index]):
            expected = f"{tasks[index]}@{TRAINED_ON}" if tasks else f"TASK@{TRAINED_ON}"
            trained = self.checkpoints[index].source
            raise BadRecipe(
                f"{file.source} was computed on {file.header.task}, expected {expected}, the rows "
                f"of {trained}"
            )

    def _tell_of_other_rows(self, file: Statistic, index: int) -> None:
        """Warn of a file of other rows than its task has now, if these are on this machine."""
        if not self.recipe.tasks or self.recipe.tasks[index] not in TASKS:
            return
        task, folder = TASKS[self.recipe.tasks[index]], self.recipe.data_dir
        if task.generate or not at_hand(task, TRAIN, folder):
            return
        chosen = {**self.chosen, "seed": file.header.options.get("seed")}
        part = statistics.part_seen(self.checkpoints[index])
        try:
            with warnings.catch_warnings():  # of few rows: given when the file was made
                warnings.simplefilter("ignore")
                current = statistics.rows_for_options(chosen, task, folder, part).digest
        except HarnessError:  # without rows there is nothing to compare
            return
        if file.header.facts.rows not in ("", current):
            warnings.warn(
                f"{file.source} was computed on other rows than {task}@{TRAINED_ON} has now: make "
                "it again with `harness statistics`, or give the data that it was computed on",
                stacklevel=2,
            )


Provider: TypeAlias = ReadyProvider | JointProvider | StatisticsProvider
"""What meets one need.

`argument` is the argument of the method, which reads no row before it is used; `prepare` reads
rows, or files, now; `described` returns what was prepared, for the record.
"""


def _listed(files: Sequence[Statistic]) -> str:
    return ", ".join(f"{file.source} ({file.header.digest[:12]})" for file in files)


def statistic_rows(providers: Iterable[Provider]) -> Counter[str]:
    """The number of rows that statistics read before the merge, by their label in the progress."""
    distinct = {id(p): p for p in providers if isinstance(p, StatisticsProvider)}
    return sum((p.rows for p in distinct.values()), Counter[str]())


def prepare(providers: Sequence[Provider]) -> None:
    """Prepare all providers. Raises BadRecipe for a file of statistics that none of them used."""
    for provider in providers:
        provider.prepare()
    own = [provider for provider in providers if isinstance(provider, StatisticsProvider)]
    used = {(one.need, one.header.digest) for provider in own for one in provider.obtained}
    files = {file.source: file for provider in own for file in provider.files}.values()
    if unused := [file for file in files if (file.need, file.header.digest) not in used]:
        raise BadRecipe(
            f"{_listed(unused)} belongs to no expert as it enters a method that needs "
            f"{unused[0].need}; expected statistics of these very models, by the method's options"
        )
