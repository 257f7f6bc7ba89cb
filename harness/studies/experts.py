"""A study -> its experts, and the sets of them that are merged."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, combinations, product
from math import comb
from pathlib import Path
from typing import Any
from zlib import crc32

from harness.checkpoints.provenance import recorded_tasks
from harness.data.groups import expanded
from harness.data.parts import PARTS
from harness.data.splits import parse_task
from harness.hyperparameters import USUAL, unfit
from harness.registry import YAML
from harness.studies.study import MAX_COMBINATIONS, Sets, Study
from harness.text import counted, hint, last_part
from harness.training.finetune import finetune

SAID_ELSEWHERE = {"base", "task", "tasks", "out", "seed", "head_seed", "data_dir", "overrides"}
SAID_ELSEWHERE |= {"force", "progress", "device", "part"}
"""Parameters of `finetune` that the axes of a study, or its command, set: they are no flags."""


@dataclass(frozen=True)
class Expert:
    """One expert: its folder or Hub id and, if the study trains it, the arguments of `finetune`."""

    place: str
    task: str = ""
    seed: int = 0
    request: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ExpertSet:
    """Experts of one base that are merged together.

    `has_unrecorded`: some existing folder does not record exactly one task. `recorded_tasks`: how
    many tasks the existing folders record.
    """

    name: str
    base: str
    members: tuple[Expert, ...]
    has_unrecorded: bool = False
    recorded_tasks: int = 0

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of the experts, each once; none for given folders that record theirs."""
        return tuple(dict.fromkeys(expert.task for expert in self.members if expert.task))

    @property
    def says_no_task(self) -> bool:
        """Whether folders are given and none of those that exist records a task."""
        return self.has_unrecorded and not self.recorded_tasks


def slug(text: str) -> str:
    """A text as the name of a folder."""
    return re.sub(r"[^\w.+]+", "-", text).strip("-.")


def leaf(source: str) -> str:
    """The last part of a path, a Hub id or the name of a task, as the name of a folder."""
    return slug(last_part(source).removesuffix(YAML[0]).removesuffix(YAML[1]))


def relative(source: str, folder: Path) -> str:
    """A full path made relative to the study's folder; a Hub id, or a name, as it is."""
    return os.path.relpath(source, folder.resolve()) if os.path.isabs(source) else source


def sets_of(study: Study, folder: Path, data_dir: str | None) -> Iterator[ExpertSet]:
    """All sets of experts of a study, base by base. Raises BadRecipe for fields that do not fit."""
    experts = study.experts
    if "tasks" in study.merge and not experts.folders:
        raise study.fault("merge has tasks, and the experts have their own; leave tasks out")
    if bool(experts.folders) == bool(experts.tasks):
        found = "both tasks and folders" if experts.tasks else "neither tasks nor folders"
        raise study.fault(f"experts has {found}; expected one of the two")
    yield from _given(study, folder) if experts.folders else _trained(study, folder, data_dir)


def _given(study: Study, folder: Path) -> Iterator[ExpertSet]:
    """The sets of experts that exist."""
    if study.sets != Sets():
        raise study.fault(
            "sets is for experts that the study trains, and experts has folders, each of which "
            "is one set; leave sets out"
        )
    if len(study.base) > 1:
        raise study.fault("experts in folders have one base; found several")
    base = relative(study.base[0], folder) if study.base else ""
    said = tuple(study.merge.get("tasks", ()))
    for name, places in study.experts.folders.items():
        if len(said) not in (0, 1, len(places)):
            raise study.fault(
                f"merge has {counted(len(said), 'task')} for {counted(len(places), 'expert')} of "
                f"{name}; expected one for all, or one for each"
            )
        tasks = said * len(places) if len(said) == 1 else said or ("",) * len(places)
        records = [recorded_tasks(Path(place)) for place in places if os.path.isdir(place)]
        records = [] if said else records
        unrecorded, count = any(len(names) != 1 for names in records), len({*chain(*records)})
        existing = tuple(Expert(relative(p, folder), t) for p, t in zip(places, tasks, strict=True))
        yield ExpertSet(name, base, existing, unrecorded, count)


def _trained(study: Study, folder: Path, data_dir: str | None) -> Iterator[ExpertSet]:
    """The sets of experts that the study trains, of every base."""
    experts = study.experts
    if not study.base:
        raise study.fault("names no base to fine-tune; expected one: --base")
    if study.sets.by == "partition" and not experts.partition:
        raise study.fault(
            f"sets.by is partition, and experts are not partitioned; expected experts.partition: "
            f"{len(PARTS)}"
        )
    tasks = expanded(experts.tasks, data_dir)
    _check(study, tasks)
    for source in study.base:
        base = relative(source, folder)
        home = f"{experts.called}/{leaf(base)}" if experts.called else leaf(base)
        groups: dict[str, list[Expert]] = {}
        for seed, task in product(experts.seeds, tasks):
            called = {"task": leaf(task), "partition": f"{leaf(task)}/seed-{seed}"}
            members = groups.setdefault(called.get(study.sets.by, f"seed-{seed}"), [])
            for part in PARTS if experts.partition else ("",):
                members.append(_expert(study, base, home, task, seed, part))
        place = f"{home}/{study.sets.called}" if study.sets.called else home
        for name, members in groups.items():
            yield from _chosen(study, ExpertSet(f"{place}/{name}", base, tuple(members)))


def _chosen(study: Study, group: ExpertSet) -> Iterator[ExpertSet]:
    """The sets of a group of experts: all of it, every `choose` of them, or sets that `grow`."""
    size, members, grow = study.sets.at_once, group.members, study.sets.grow
    if grow and (size or study.sets.disjoint or study.sets.by == "partition"):
        raise study.fault(
            "sets.grow is for sets by seed or by task; leave out choose, disjoint, pairs and "
            "partition"
        )
    found = f"{group.name} has {counted(len(members), 'expert')}"
    if size is not None and size > len(members):
        raise study.fault(f"sets.choose is {size}, and {found}; expected at most as many")
    if study.sets.disjoint and size is None:
        raise study.fault(
            "sets.disjoint is true without a size of sets; expected sets.choose, or sets.by: pairs"
        )
    if study.sets.disjoint and size and len(members) % size:
        raise study.fault(
            f"sets of {size} are disjoint, and {found}; expected a multiple of {size}"
        )
    chosen: Iterable[tuple[Expert, ...]]
    if grow and len(members) > 1:
        # the name of the full set has its order, too: another study may have another order
        chosen = (members[:count] for count in range(2, len(members) + 1))
    elif size is None:
        yield group
        return
    elif study.sets.disjoint:
        chosen = (members[first : first + size] for first in range(0, len(members), size))
    elif (count := comb(len(members), size)) > MAX_COMBINATIONS:
        raise study.fault(
            f"sets of {size} experts of {group.name} number {count:,}; expected "
            f"{MAX_COMBINATIONS:,} at most"
        )
    else:
        chosen = combinations(members, size)
    for subset in chosen:
        called = "+".join(
            str(expert.seed) if study.sets.by == "task" else leaf(expert.task) for expert in subset
        )
        yield ExpertSet(f"{group.name}/{called}", group.base, subset)


def _check(study: Study, tasks: Sequence[str]) -> None:
    """Raise a HarnessError for an unknown task, for one that is listed twice, which would count
    twice in a merge, and for a flag that `finetune` does not accept."""
    experts = study.experts
    for field, values in (("tasks", tasks), ("seeds", experts.seeds)):
        if twice := [value for value in values if values.count(value) > 1]:
            raise study.fault(f"experts.{field} has {twice[0]} twice, expected it once")
    if extra := experts.by_task.keys() - {*tasks}:
        raise study.fault(
            f"experts.by_task names {min(extra)}; expected tasks of the study: {', '.join(tasks)}"
        )
    valid = {*inspect.signature(finetune).parameters, *asdict(USUAL)} - SAID_ELSEWHERE
    for task in tasks:
        named, split = parse_task(task)
        if "@" in task:
            raise study.fault(
                f"experts are trained on {named}, found '@{split}'; name the task without a split"
            )
        flags = {**experts.finetune, **experts.by_task.get(task, {})}
        if unknown := flags.keys() - valid:
            names = ", ".join(sorted(valid))
            raise study.fault(f"finetune has no option '{min(unknown)}'; known: {names}")
        for name, value in flags.items():
            if name in asdict(USUAL) and (expected := unfit(name, value)):
                raise study.fault(f"{name} is {value}, expected {expected}")


def check_excluded(study: Study, folder: Path, data_dir: str | None) -> None:
    """Raise BadRecipe for a base or a set in `exclude` that the study lacks."""
    named = [(key, rule[key]) for rule in study.exclude for key in ("base", "set") if key in rule]
    sets = [*sets_of(study, folder, data_dir)] if named else []
    for key, value in named:
        names = [group.base if key == "base" else group.name for group in sets]
        if value not in (*names, *map(leaf, names)):
            near = hint(value, {*map(leaf, names)})
            raise study.fault(
                f"exclude names the {key} '{value}', which the study does not have; {near}"
            )


def _expert(study: Study, base: str, home: str, task: str, seed: int, part: str) -> Expert:
    """The expert of a task, a seed and a part ('': all rows), which the study trains."""
    experts = study.experts
    place = f"experts/{home}/{leaf(task)}-{seed}" + (f"-part-{part[0]}" if part else "")
    flags = study.limited({**experts.finetune, **experts.by_task.get(task, {})}, "limit")
    head_seeds = {"seed": seed, "same": 0, "own": crc32(f"{task} {seed} {part}".encode())}
    head = {"head_seed": head_seeds[experts.head_seed]} if experts.head_seed != "seed" else {}
    request = {"base": base, "task": task, "seed": seed, **head, **flags}
    return Expert(place, task, seed, request | ({"part": part} if part else {}))
