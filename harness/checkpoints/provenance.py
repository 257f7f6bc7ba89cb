"""How a folder's model was made: its expert.json or merge.json. What can be checked in them is
checked, not believed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from harness.errors import BrokenCheckpoint
from harness.files import MAX_FILE_BYTES, file_hash, read_json
from harness.hashes import digest_of
from harness.registry import TASKS, YAML
from harness.types import Checkpoint, is_task_name
from harness.values import validated
from harness.weights import digest

MERGE_FILE, EXPERT_FILE = "merge.json", "expert.json"

R = TypeVar("R", "MergeJson", "ExpertJson")


class FolderRecord(BaseModel):
    """The keys of a JSON file that are read; all others are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Origin(FolderRecord):
    """Where a checkpoint was when it was merged, and the digest of its weights.

    `relative` is its path from the merged folder; None for a Hub id.
    """

    source: str
    digest: str
    relative: str | None = None
    task: str | None = None


class RecordedPath(FolderRecord):
    """Where a file was: relative to the folder whose record names it, and as a full path."""

    relative: str
    path: str


class ShownRows(FolderRecord):
    """Rows that a method was shown: `task` is `name@split`, compared as text, never looked up."""

    task: str


class MethodRecord(FolderRecord):
    """The statistics that a method was given beside weights."""

    statistics: list[ShownRows] = Field(default_factory=list)


class Staged(MethodRecord):
    """A method of a merge with all its options."""

    name: str = ""
    options: dict[str, Any] = Field(default_factory=dict)


class Tuned(FolderRecord):
    """An option chosen on the held-out rows `on`: `tune` is its name with the values tried."""

    tune: str
    chosen: bool | float | str
    on: list[str] = Field(default_factory=list)


class MadeRecord(FolderRecord):
    """The keys that merge.json and expert.json share.

    `digest` is that of the weights, `base_weights` those of the base's encoder
    (`bases.encoder_digests`). For tasks that are not registered by name, `spelled` is what to type
    for them, and `described` where their descriptions were. `inherited` are the rows that its
    experts and base were shown (`rows_shown`), `seen` the digests of the texts of these rows and of
    its own, by `name@split`: they identify rows that another task has under another name.
    """

    digest: str = ""
    tasks: list[str] = Field(default_factory=list)
    spelled: dict[str, str] = Field(default_factory=dict)
    described: dict[str, RecordedPath] = Field(default_factory=dict)
    base_weights: dict[str, str] = Field(default_factory=dict)
    inherited: list[str] = Field(default_factory=list)
    seen: dict[str, str] = Field(default_factory=dict)


class MergeJson(MadeRecord, MethodRecord):
    """The keys of merge.json.

    `head_digests` are those of kept heads by task, `files` the hashes of all files by path; a file
    without `digest` or `files` is refused. `code` is a hash of the code of plug-ins among the
    `methods`, in their order. `scored_on` are rows that candidates were scored on. With
    `other_base`, experts made from other bases were accepted.
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
        """(stage, name) of each method, in the order in which they ran."""
        merger = [self.merger] if self.merger else []
        stages = {"premerge": self.premerge, "merger": merger, "postmerge": self.postmerge}
        return [(stage, method.name) for stage, methods in stages.items() for method in methods]

    @property
    def shown(self) -> tuple[str, ...]:
        """The rows that statistics of its methods were made from, as `name@split`, each once."""
        methods: tuple[MethodRecord, ...] = (*self.premerge, self, *self.postmerge)
        return tuple(dict.fromkeys(rows.task for method in methods for rows in method.statistics))


class Part(FolderRecord):
    """One of the two parts into which a seed splits a task's rows; at most `limit` rows of it."""

    number: int
    seed: int
    limit: int | None = None


class ExpertJson(MadeRecord):
    """The keys of expert.json.

    `readout` names the features that the head was trained on. `annotated` are the labels that
    training rows have any annotation for, by task, if not all. `files` are the hashes of all files
    by path; None in a file that a user wrote, which may say `tasks` alone. `base_digest` is of all
    that the training read of the base (`bases.whole_base_digest`), `base_weights` of its encoder
    alone. `drawn` are the digests of tensors that the base lacks, as they were initialised. `seed`
    ordered the rows, `head_seed` initialised the head. `rows` and `rows_digest` are the number and
    hash of the training rows, by task if there are several; they are the first rows, or those of
    `part`. `schemes` are the tagging schemes of their entities (IOB2, say), by task.
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
        """A hash of rows and hyperparameters, the same for experts that differ in seeds alone; None
        if the file has no hyperparameters. A value of 0 counts as absent."""
        if not self.hyperparameters:
            return None
        part = self.part and (self.part.number, self.part.limit)  # its rows differ by seed
        rows = part or (self.rows, self.rows_digest)
        # one epoch is written 1 by a study and 1.0 by a command
        values = {
            name: float(value) if isinstance(value, int) else value
            for name, value in self.hyperparameters.items()
            if value
        }
        return digest_of([rows, values, self.readout, self.bf16])


def read_merge_json(folder: Path) -> MergeJson | None:
    """The merge.json of a folder; None if it has none.

    Raises BrokenCheckpoint for one without the digest of its weights or the hashes of its files.
    """
    record = _read(MergeJson, folder / MERGE_FILE, "a record of a merge")
    for name in ("digest", "files"):
        if record is not None and not getattr(record, name):
            raise BrokenCheckpoint(
                f"{folder / MERGE_FILE} is not complete: it has no {name}, which this version "
                f"needs; merge again, or remove {MERGE_FILE} to use the folder as a plain model"
            )
    return record


def read_expert_json(folder: Path) -> ExpertJson | None:
    """The expert.json of a folder; None if it has none."""
    return _read(ExpertJson, folder / EXPERT_FILE, "a record of a fine-tuning")


def records_in(folder: Path) -> dict[str, ExpertJson | MergeJson]:
    """The records in a folder of how its model was made, by file name, expert.json first."""
    records = {EXPERT_FILE: read_expert_json(folder), MERGE_FILE: read_merge_json(folder)}
    return {marker: record for marker, record in records.items() if record is not None}


def first_record_in(folder: Path) -> ExpertJson | MergeJson | None:
    """The first of `records_in`; None if the folder has neither file."""
    return next(iter(records_in(folder).values()), None)


def rows_shown(*folders: Path) -> dict[str, str]:
    """The digests of the texts of rows, by `name@split`, that the models in folders, or the models
    that these were made from, were shown or tuned on; '' if not recorded. A merge or an expert made
    from such a model counts as having seen these rows."""
    digests: dict[str, str] = {}
    for record in (one for folder in folders for one in records_in(folder).values()):
        own = [*record.shown, *record.scored_on] if isinstance(record, MergeJson) else []
        rows = (*own, *record.inherited)
        digests |= {row: record.seen.get(row) or digests.get(row, "") for row in rows}
    return digests


def recorded_tasks(folder: Path) -> tuple[str, ...]:
    """The task ids in the folder's expert.json or merge.json; none without these."""
    record = first_record_in(folder)
    return tuple(record.tasks) if record else ()


def check_files_unchanged(folder: Path, names: Iterable[str]) -> None:
    """Raise BrokenCheckpoint if a file of these names, or a configuration, of a kept head or a
    pooling, say, differs from its hash in expert.json or merge.json. A folder without such hashes
    is not checked.
    """
    present = [path.relative_to(folder).as_posix() for path in folder.glob("heads/**/config.json")]
    for marker, record in records_in(folder).items():
        if record.files is None:
            continue
        listed = [name for name in record.files if name.endswith("config.json")]
        for name in dict.fromkeys((*names, *present, *listed)):
            if file_hash(folder / name, MAX_FILE_BYTES) != record.files.get(name):
                raise changed_error(folder / name, marker)


def changed_error(path: Path, marker: str) -> BrokenCheckpoint:
    """The error for a file that is not as its folder's `marker` (merge.json, say) lists it."""
    return BrokenCheckpoint(
        f"{path} has changed since {marker} listed it: it was edited, added or removed; make "
        f"the model again, or remove {marker} to use the folder as a plain model"
    )


def check_weights_unchanged(model: Checkpoint) -> None:
    """Raise BrokenCheckpoint unless a model's weights hash to the digest in its expert.json or
    merge.json. They may be in other files. If that lists no files, nothing is read.
    """
    for marker, record in records_in(model.path).items():
        if record.files is not None and (now := digest(model.weights)) != record.digest:
            verb = "merged" if isinstance(record, MergeJson) else "trained"
            raise BrokenCheckpoint(
                f"{model.source} has changed since it was {verb}: its weights hash to {now[:12]}, "
                f"expected {record.digest[:12] or 'a digest'} as its {marker} says; make it again, "
                f"or remove {marker} to use it as a plain model"
            )


def _read(kind: type[R], path: Path, what: str) -> R | None:
    """The record in a file, if there is one. Raises BrokenCheckpoint for odd values or names."""
    if not path.is_file():
        return None
    record: R = validated(kind, read_json(path, what), str(path), BrokenCheckpoint)
    tasks = [*record.tasks]
    if isinstance(record, MergeJson):
        tasks += [origin.task for origin in record.experts if origin.task is not None]
        tasks += [name.partition("@")[0] for name in record.scored_on]
    for task in tasks:
        TASKS.check_name(task, str(path))
        if not is_task_name(task) or task.endswith(YAML):
            raise BrokenCheckpoint(
                f"{path} names the task {task!r:.80}, expected letters, digits and . + - _, in "
                "parts joined by /"
            )
    return record
