"""What a folder says of its own making: expert.json and merge.json, read as values and believed in
nothing that can be checked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from harness.errors import BrokenCheckpoint
from harness.files import LARGEST, file_hash, read_json
from harness.hashes import digest_of
from harness.registry import TASKS, YAML
from harness.types import Checkpoint, is_task_name
from harness.values import validated
from harness.weights import digest

MERGE_FILE, EXPERT_FILE = "merge.json", "expert.json"

R = TypeVar("R", "Merged", "Trained")


class FolderRecord(BaseModel):
    """What a file says, as far as it is read; what else stands there is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Origin(FolderRecord):
    """Where a checkpoint was when it was merged, and what it held.

    `relative` is the way to it from the merged folder, where it was a folder itself.
    """

    source: str
    digest: str
    relative: str | None = None
    task: str | None = None


class RecordedPath(FolderRecord):
    """Where a file was: the way to it from the folder that names it, and its full path."""

    relative: str
    path: str


class ShownRows(FolderRecord):
    """Whose rows a method was shown: `name@split`. A name that is compared, and never looked up."""

    task: str


class MethodRecord(FolderRecord):
    """What a method was given beside weights."""

    statistics: list[ShownRows] = Field(default_factory=list)


class Staged(MethodRecord):
    """A method of a merge with all its options."""

    name: str = ""
    options: dict[str, Any] = Field(default_factory=dict)


class Tuned(FolderRecord):
    """An option that held-out rows chose: `tune` is its name with what was tried."""

    tune: str
    chosen: bool | float | str
    on: list[str] = Field(default_factory=list)


class MadeRecord(FolderRecord):
    """What both merge.json and expert.json say.

    `digest` is that of the weights, `base_weights` are those of the base's encoder
    (`bases.encoder_digests`). `spelled` are tasks that are not registered by name: what to type for
    them; `described` is where the descriptions of such tasks were. `inherited` are the rows that
    what it was made of was shown (`rows_shown`), `seen` the digests of the texts of these and of
    its own, by `name@split`: they tell rows that another task has under another name.
    """

    digest: str = ""
    tasks: list[str] = Field(default_factory=list)
    spelled: dict[str, str] = Field(default_factory=dict)
    described: dict[str, RecordedPath] = Field(default_factory=dict)
    base_weights: dict[str, str] = Field(default_factory=dict)
    inherited: list[str] = Field(default_factory=list)
    seen: dict[str, str] = Field(default_factory=dict)


class Merged(MadeRecord, MethodRecord):
    """What merge.json says.

    `head_digests` are those of kept heads by task, `files` the hashes of all files by path; what
    says no digest or no files is refused. `code` is a hash of that of plug-ins that made it, in the
    order of `methods`. `scored_on` are rows that candidates were scored on.
    `other_base` says that experts were made from another base.
    """

    method: str = "merged"
    code: str = ""
    files: dict[str, str] = Field(default_factory=dict)
    base: Origin | None = None
    experts: list[Origin] = Field(default_factory=list)
    head_digests: dict[str, str] = Field(default_factory=dict)
    scored_on: list[str] = Field(default_factory=list)
    premerge: list[Staged] = Field(default_factory=list)
    merger: Staged | None = None
    postmerge: list[Staged] = Field(default_factory=list)
    heads: str = ""
    seed: int = 0
    preset: str | None = None
    tuned: Tuned | None = None
    other_base: bool = False

    @property
    def methods(self) -> list[tuple[str, str]]:
        """The stage and name of each of its methods, in their order."""
        merger = [self.merger] if self.merger else []
        stages = {"premerge": self.premerge, "merger": merger, "postmerge": self.postmerge}
        return [(stage, one.name) for stage, of in stages.items() for one in of]

    @property
    def shown(self) -> tuple[str, ...]:
        """The rows that its methods were shown, whatever for, as `name@split`, each once."""
        methods: tuple[MethodRecord, ...] = (*self.premerge, self, *self.postmerge)
        return tuple(dict.fromkeys(one.task for method in methods for one in method.statistics))


class Part(FolderRecord):
    """One of the two parts of a task's rows that a seed draws, at most `limit` rows of it."""

    number: int
    seed: int
    limit: int | None = None


class Trained(MadeRecord):
    """What expert.json says.

    `readout` are the features that the head was trained on, `annotated` the labels that its rows
    said anything of, by task, where those are not all of them. `files` are the hashes of all files
    by path, if it lists them: one that a user wrote says nothing but tasks. `base_digest` is of all
    that the training read of the base, `base_weights` of its encoder alone. `drawn` are the
    digests of tensors that the base lacks, as they were drawn. `seed` ordered the rows, `head_seed`
    drew the head. `rows` of this digest were trained on, of each task where there are several;
    `part` says which, where these are not the first. `schemes` are how entities are written in
    them, by task.
    """

    files: dict[str, str] | None = None
    base: str = "its base"
    base_digest: str | None = None
    drawn: dict[str, str] = Field(default_factory=dict)
    rows: int | dict[str, int] = 0
    rows_digest: str | dict[str, str] = ""
    part: Part | None = None
    seed: int | None = None
    head_seed: int | None = None
    readout: Literal["last_linear", "mean_all"] = "last_linear"
    annotated: dict[str, list[str]] = Field(default_factory=dict)
    schemes: dict[str, str] = Field(default_factory=dict)
    hyperparameters: dict[str, Any] | None = None
    bf16: bool = False

    @property
    def training(self) -> str | None:
        """A hash of rows and hyperparameters, which experts have in common that differ by their
        seeds alone; None where the file does not say them. What is 0 counts as not said."""
        if not self.hyperparameters:
            return None
        part = self.part and (self.part.number, self.part.limit)  # whose rows a seed draws
        rows = part or (self.rows, self.rows_digest)
        # one epoch is 1 in a study and 1.0 in a command
        given = {
            name: float(of) if isinstance(of, int) else of
            for name, of in self.hyperparameters.items()
            if of
        }
        return digest_of([rows, given, self.readout, self.bf16])


def merged_by(folder: Path) -> Merged | None:
    """What the folder of a merge says; None if it is none of ours.

    Raises BrokenCheckpoint for what does not say what its weights and its files hash to.
    """
    said = _read(Merged, folder / MERGE_FILE, "a record of a merge")
    for name in ("digest", "files"):
        if said is not None and not getattr(said, name):
            raise BrokenCheckpoint(
                f"{folder / MERGE_FILE} is not complete: it has no {name}, as no merge of this "
                f"version; merge again, or remove {MERGE_FILE} to use it as a plain model"
            )
    return said


def trained_by(folder: Path) -> Trained | None:
    """What the folder of an expert says; None if it is none of ours."""
    return _read(Trained, folder / EXPERT_FILE, "a record of a fine-tuning")


def records_in(folder: Path) -> dict[str, Trained | Merged]:
    """What a folder says of how its model was made, by the file that says it: training first."""
    read = {EXPERT_FILE: trained_by(folder), MERGE_FILE: merged_by(folder)}
    return {marker: said for marker, said in read.items() if said is not None}


def recorded_by(folder: Path) -> Trained | Merged | None:
    """The first of `records_in`; None if the folder is none of ours."""
    return next(iter(records_in(folder).values()), None)


def rows_shown(*folders: Path) -> dict[str, str]:
    """The rows that models in folders, or what they were made of, were shown or tuned on, as
    `name@split`, with the digests of their texts, empty where nobody says: whoever takes one for an
    expert, a base or a reference has seen them, too."""
    found: dict[str, str] = {}
    for said in (one for folder in folders for one in records_in(folder).values()):
        own = [*said.shown, *said.scored_on] if isinstance(said, Merged) else []
        rows = (*own, *said.inherited)
        found |= {row: said.seen.get(row) or found.get(row, "") for row in rows}
    return found


def recorded_tasks(folder: Path) -> tuple[str, ...]:
    """Task ids that a fine-tuning or a merge of ours left in the folder."""
    said = recorded_by(folder)
    return tuple(said.tasks) if said else ()


def check_listed(folder: Path, names: Iterable[str]) -> None:
    """Raise BrokenCheckpoint where a file of these names is not as it was written.

    Neither may be the configuration of a kept head; if the folder's own record lists files.
    """
    there = [path.relative_to(folder).as_posix() for path in folder.glob("heads/**/config.json")]
    for marker, said in records_in(folder).items():
        if said.files is None:
            continue
        kept = [n for n in said.files if n.startswith("heads/") and n.endswith("/config.json")]
        for name in dict.fromkeys((*names, *there, *kept)):
            if file_hash(folder / name, LARGEST) != said.files.get(name):
                raise changed(folder / name, marker)


def changed(path: Path, marker: str) -> BrokenCheckpoint:
    """What is said of a file that is not as its folder's record lists it."""
    return BrokenCheckpoint(
        f"{path} has changed since {marker} listed it: it was edited, added or removed; make "
        f"the model again, or remove {marker} to use the folder as a plain model"
    )


def check_unchanged(model: Checkpoint) -> None:
    """Raise BrokenCheckpoint unless a model's weights are those that its folder's record speaks of.

    They may lie in other files. Of a folder whose record lists no files nothing is read.
    """
    for marker, said in records_in(model.path).items():
        if said.files is not None and (now := digest(model.weights)) != said.digest:
            made = "merged" if isinstance(said, Merged) else "trained"
            raise BrokenCheckpoint(
                f"{model.source} has changed since it was {made}: its weights hash to {now[:12]}, "
                f"expected {said.digest[:12] or 'a digest'} as its {marker} says; make it again, "
                f"or remove {marker} to use it as a plain model"
            )


def _read(kind: type[R], path: Path, what: str) -> R | None:
    if not path.is_file():
        return None
    said: R = validated(kind, read_json(path, what), str(path), BrokenCheckpoint)
    named = [*said.tasks]
    if isinstance(said, Merged):
        named += [origin.task for origin in said.experts if origin.task is not None]
        named += [name.partition("@")[0] for name in said.scored_on]
    for task in named:
        TASKS.check_name(task, str(path))
        if not is_task_name(task) or task.endswith(YAML):
            raise BrokenCheckpoint(
                f"{path} names the task {task!r:.80}, expected letters, digits and . + - _, in "
                "parts joined by /"
            )
    return said
