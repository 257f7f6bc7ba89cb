"""The unit of an evaluation: a `Cell`, which knows what its record is of and where it lies."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.data.rows import load_rows
from harness.data.shots import amount
from harness.data.sources import origin
from harness.data.splits import share_rows
from harness.errors import BadRecipe, MissingTeacher
from harness.evaluation.ceiling import ceilings_on, check_ceilings
from harness.evaluation.model import Model
from harness.evaluation.parts import POOL_SPLIT, Asked, Part, asked, part_of, units_in
from harness.evaluation.records import CHOICE_SPLIT, Adaptation, Saw, record_path
from harness.evaluation.run import DEFAULTS, Run
from harness.evaluation.systems import System, experts_on, joined, systems_of, teachers_of
from harness.kinds import kind_of
from harness.passes.lengths import resolved, tell_of_cut
from harness.presets import preset, read_as
from harness.readout import LAST_LINEAR, Readout
from harness.types import Choice, Encoded, Scalar

SAW: Mapping[tuple[bool, bool], Saw] = {
    (True, False): "chose the rows",
    (True, True): "chose the rows and were read",
    (False, False): "were not read",
    (False, True): "were read",
}
"""What labels of drawn rows did, by whether draws are stratified and the protocol reads them."""


@dataclass(frozen=True)
class Cell:
    """One unit of evaluation: a system on the rows of a task, read under a protocol.

    `teachers` are those whose outputs a head may be fitted to; `model` is what the run evaluates,
    which the system is or stands beside.
    """

    run: Run
    model: Model
    part: Part
    system: System
    teachers: tuple[System, ...]
    asked: Asked

    def __str__(self) -> str:
        return f"{self.system.name} on {self.part.name} under {self.asked.protocol.name}"

    @property
    def defined(self) -> bool:
        """Whether there is such a cell: no features, nothing adapts; no teacher, none teaches."""
        adapts = self.asked.adapts and self.system.role == "ensemble"
        return not adapts and (bool(self.teachers) or not self.asked.teaches)

    @property
    def systems(self) -> tuple[System, ...]:
        """All systems that the rows go through."""
        return (self.system, *self._teaching)

    @property
    def max_length(self) -> int:
        return self.part.max_length

    @property
    def readout(self) -> Readout:
        """How the rows are put before the system, and where its features are taken."""
        own = self.asked.readout
        return preset(self.run.preset).readout if own == LAST_LINEAR else own

    @cached_property
    def path(self) -> Path:
        """Where its record lies."""
        return record_path(Path(self.run.output), self.values, self._unusual)

    @cached_property
    def values(self) -> dict[str, Any]:
        """All of its record but what comes of reading: known before anything is encoded."""
        part, system, run = self.part, self.system, self.run
        return {
            "model": system.name,
            "role": system.role,
            "method": system.method,
            "digest": system.digest,
            "content": joined([one.content for one in self.systems]),
            "task": part.name,
            "protocol": self.asked.protocol.name,
            "options": dict(self.asked.options),
            "settings": self._settings,
            "metrics": list(part.task.metrics),
            "rows": len(part.test),
            "adaptation": self._adaptation,
            "dataset": {
                "digest": part.test.digest,
                **origin(part.task, run.data_dir),
                **kind_of(part.task).facts(part.test),
            },
            "head": system.head,
            "labels": run.labels,
            "preset": run.preset,
            **self._sources,
            "teachers": [teacher.digest for teacher in self._teaching],
            "shown": list(system.shown),
            "transductive": any(_seen(part, rows) for rows in system.shown),
        }

    @property
    def _teaching(self) -> tuple[System, ...]:
        """The teachers, if the protocol has any."""
        return self.teachers if self.asked.teaches else ()

    @property
    def _settings(self) -> dict[str, Any]:
        run, part = self.run, self.part
        settings: dict[str, Any] = {
            "features": self.readout.name,
            "max_length": self.max_length,
            "limit": run.limit,
            **self.system.members[0].family.recorded,
        }
        kind = read_as(part.task, run.preset)
        if kind != kind_of(part.task):
            settings["threshold"] = preset(run.preset).threshold
        if part.left_out:
            seeds = sorted(part.left_out)[: None if self.asked.draws else 1]
            settings["left_out"] = {str(seed): list(part.left_out[seed]) for seed in seeds}
        if (drawn := part.drawn_for(self.asked)) is not None:
            shots = sorted(set(run.shots), key=amount)
            settings |= {"shots": shots, "draws": run.draws, "seed": run.seed}
            settings |= {"pool": drawn.pool.digest}
            if not run.stratified:
                settings["stratified"] = False
        if self.asked.transductive:
            settings |= {"seed": run.seed}
        return settings

    @property
    def _adaptation(self) -> dict[str, Any] | None:
        """Which data the protocol sees beside the rows that it is scored on."""
        part = self.part
        if self.asked.transductive:
            return Adaptation(
                split=part.name, rows=len(part.test), labels="were not read", transductive=True
            ).model_dump(mode="json")
        if (drawn := part.drawn_for(self.asked)) is None:
            return None
        read = self.asked.protocol.adapts == "labeled"
        return Adaptation(
            split=f"{part.task.name}@{POOL_SPLIT}",
            rows=drawn.rows(self.sentences),
            drawn={} if self.sentences else drawn.units,
            sentences=drawn.sentences if self.sentences else {},
            labels=SAW[self.run.stratified, read],
        ).model_dump(mode="json")

    @property
    def sentences(self) -> bool:
        """Whether it adapts to whole sentences: of words, a protocol that reads no labels."""
        return self.asked.teaches and kind_of(self.part.task).in_sentences

    def told(self, encoded: Encoded) -> dict[str, Any]:
        """`values`, with what only reading shows: units to adapt to that were cut off, and texts
        that stand in the training rows as well, which are not read for records that are there."""
        shared = {} if self.part.shared is None else {"shared_with_train": self.part.shared}
        values = {**self.values, "dataset": {**self.values["dataset"], **shared}}
        if (saw := values["adaptation"]) is None:
            return values
        drawn = self.part.drawn_for(self.asked)
        units = sum(kind_of(self.part.task).units(self.part.test))
        asked = units_in(drawn.draws, self.sentences) if drawn else {*range(units)}
        gone = asked - units_in(encoded.draws, self.sentences)
        unseen = sorted(drawn.places[unit] if drawn else unit for unit in gone)
        return {**values, "adaptation": {**saw, "unseen": unseen}}

    @property
    def _sources(self) -> dict[str, Any]:
        """What a merge, or a ceiling, was made of; of another system nothing is said."""
        model = self.model
        if self.system.role not in ("merged", "ceiling"):
            return {"base": None, "experts": []}
        experts = zip(model.experts, model.expert_digests, strict=True)
        base = None
        if model.base is not None:
            base = {"source": model.base.source, "digest": model.base_digest}
        return {
            "base": base,
            "experts": [{"source": one.source, "digest": digest} for one, digest in experts],
        }

    @property
    def _unusual(self) -> dict[str, Scalar]:
        """What was asked beside the defaults, for the name of the record."""
        settings = ["labels", "limit", "max_length", "metrics", "preset"]
        if self.asked.draws:
            settings += ["draws", "seed", "shots", "stratified"]
        if self.asked.transductive:
            settings += ["seed"]
        unusual = dict(self.asked.unusual)
        for key in settings:
            value = getattr(self.run, key)
            if value != getattr(DEFAULTS, key):
                value = self.max_length if key == "max_length" else value
                unusual[key] = "-".join(map(str, value)) if isinstance(value, tuple) else value
        return unusual


def _seen(part: Part, shown: str) -> bool:
    """Whether rows that a merge was shown, `name@split`, are among those that are scored."""
    name, _, split = shown.partition("@")
    return name == part.task.name and share_rows(part.task, part.split, split)


def cells_of(run: Run, model: Model, protocols: Sequence[Asked]) -> list[Cell]:
    """Every cell of a run, in the order of its tasks, of the rows of a table, and of protocols.

    Raises MissingTeacher where a protocol that somebody asked for has none.
    """
    check_ceilings(run, model)
    parts = [part_of(run, name, protocols) for name in model.tasks]
    readers = []
    cells = []
    for short in parts:
        experts = experts_on(run, model, short.task)
        systems = [
            *systems_of(run, model, short.task, experts),
            *ceilings_on(run, model, short.task),
        ]
        part = _with_length(run, short, systems)
        readers.append((part, experts))
        cells += [
            Cell(run, model, part, system, tuple(teachers_of(system, experts)), asked)
            for system in systems
            for asked in protocols
        ]
    _check_teachers(run, cells)
    chosen = _choice(run, model, readers) if run.best_single else ()
    return [cell for cell in [*cells, *chosen] if cell.defined]


def _with_length(run: Run, part: Part, systems: Sequence[System]) -> Part:
    """The part with the tokens that are read of a row, by all systems; warns of what is cut off."""
    members = [member for system in systems for member in system.members]
    several = [part.test, *(drawn.pool for drawn in part.drawn.values())]
    readout = preset(run.preset).readout
    asked = run.max_length or part.task.finetune.max_length
    number = resolved(asked, members, several, readout)
    if readout == LAST_LINEAR:  # a preset's length is what it reads
        tell_of_cut(members, part.test, number)
    return replace(part, max_length=number)


def _choice(
    run: Run, model: Model, readers: Sequence[tuple[Part, Sequence[System]]]
) -> Iterator[Cell]:
    """Each expert on the rows that choose the best single one, for tasks that have several.

    It is chosen with each head as it came. Raises BadRecipe where there is nothing to choose, or
    the reported rows would choose.
    """
    several = [(part, experts) for part, experts in readers if len(experts) > 1]
    if not several:
        raise BadRecipe(
            "the best single expert is chosen among several of one task, found none with more "
            "than one; leave out --best-single"
        )
    for part, experts in several:
        if share_rows(part.task, part.split, CHOICE_SPLIT):
            raise BadRecipe(
                f"the best single expert is chosen on {part.task}@{CHOICE_SPLIT}, which "
                f"{part.name} reports; expected another split to score"
            )
        rows = load_rows(part.task, CHOICE_SPLIT, folder=run.data_dir, limit=run.limit)
        held = _with_length(run, Part(part.task, CHOICE_SPLIT, rows), experts)
        for expert in experts:
            yield Cell(run, model, held, expert, (expert,), asked(Choice("current")))


def _check_teachers(run: Run, cells: Sequence[Cell]) -> None:
    """Raise MissingTeacher where a protocol that somebody asked for has none.

    Where only some tasks go without, a warning says so.
    """
    untaught = list(dict.fromkeys(cell.part.task.name for cell in cells if not cell.teachers))
    teaching = list(dict.fromkeys(c.asked.protocol.name for c in cells if c.asked.teaches))
    if untaught and teaching and run.protocols:
        raise MissingTeacher(
            f"protocol '{teaching[0]}' needs an expert of task '{untaught[0]}' as teacher; name it "
            "with --experts"
        )
    if untaught and teaching and any(cell.teachers for cell in cells):
        warnings.warn(
            f"no expert of {', '.join(untaught)} is known, so nothing is read there by "
            f"{', '.join(teaching)}; name it with --experts",
            stacklevel=3,
        )
