"""Shell: a task that a user describes in a few lines of YAML -> `Task`."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from harness.data.formats import ENDINGS, SUFFIXES
from harness.data.sources import OTHERS, TRAIN, VALIDATION, label_values, one_of, only
from harness.errors import BadData
from harness.files import KeysOnce, read_yaml
from harness.hyperparameters import USUAL, Hyperparameters
from harness.kinds import KINDS, kind_of
from harness.labels import NUMBER, comparison_key, composed, name_of_value, normal
from harness.text import few
from harness.types import HELD_OUT, KindName, Task, is_task_name
from harness.values import Frozen, validated

SPLITS = ("test", VALIDATION)
"""Names of files that are splits to score; the first that exists is the reported split."""
MOST = 1000
"""The most labels of a task: a column with more different values is no column of labels."""


NOTHING = ("", "~", "null")
"""How YAML writes no value, where every plain word is text."""


class AsWritten(KeysOnce):
    """A YAML loader that reads every plain word as text: 01, 1.0, yes and true may be labels."""


AsWritten.yaml_implicit_resolvers = {}


def _named(labels: object) -> object:
    """A list of labels in NFC. Raises ValueError for one text: a column, or names in one line."""
    if labels == "from data" or not isinstance(labels, (str, list, tuple)):
        return labels
    if not isinstance(labels, str):
        return [composed(name) if isinstance(name, str) else name for name in labels]
    write = f"labels: [{labels}]" if "," in labels else f"label: {labels}, if it is their column"
    raise ValueError(f"{labels!r:.80} is no list of names; write {write:.200}")


def _composed(renamed: dict[str, str]) -> dict[str, str]:
    return {composed(theirs): composed(ours) for theirs, ours in renamed.items()}


class Described(Frozen):
    """The fields of a YAML file that describes a task.

    A row has columns of `text` or an `image`. `files` is a folder with a file (or a folder of
    images by class) for each split, a pattern with `{split}`, a mapping from splits to files, or
    one file, which is the train split. Paths are relative to the folder of the YAML file.
    """

    name: str = ""
    kind: KindName = "classification"
    text: str | tuple[str, ...] = ()
    image: str = ""
    label: str = ""
    labels: Annotated[tuple[str, ...] | Literal["from data"], BeforeValidator(_named)] = "from data"
    document: str = ""
    renamed: Annotated[dict[str, str], AfterValidator(_composed)] = Field(default_factory=dict)
    metric: str | tuple[str, ...] = ()
    files: str | dict[str, str] = ""
    hub: str = ""
    subset: str | None = None
    revision: str | None = None
    splits: dict[str, str] | tuple[str, ...] = ()
    reported: str = ""
    finetune: dict[str, Any] = Field(default_factory=dict)


ALIKE = {"kind", "image", "document", "renamed", "subset", "revision"}
"""Fields that `Task` has under the same names."""


def task_of_file(path: str) -> Task:
    """The task that a YAML file describes.

    Its name defaults to that of the file. Without a split to score, a tenth of the train split is
    held out. Raises BadData, naming file and field, for values that do not fit.
    """
    place = Path(path)
    what = "a task: kind, text, label, files"
    written = read_yaml(place, what, error=BadData, loader=AsWritten)
    filled = {key: value for key, value in written.items() if value not in NOTHING}
    fields = validated(Described, filled, str(place), BadData)
    if bool(fields.files) == bool(fields.hub):
        sources = "both files and hub" if fields.hub else "neither files nor hub"
        raise BadData(f"{place} says {sources}, expected one of them")
    files = _files(place, fields)
    splits = _splits(place, fields, files)
    kind = KINDS[fields.kind]
    metrics = (fields.metric,) if isinstance(fields.metric, str) else fields.metric
    defaults = vars(USUAL)
    if unknown := [name for name in fields.finetune if name not in defaults]:
        raise BadData(f"{place}: finetune has no '{unknown[0]}'; known: {', '.join(defaults)}")
    name = fields.name or place.name.partition(".")[0]
    if not is_task_name(name):
        raise BadData(
            f"{place} has the name {name!r:.80} for its task, expected letters, digits and . + - "
            "_, in parts joined by /; give it another one in the file: name: NAME"
        )
    settings = {name: _number(value) for name, value in fields.finetune.items()}
    settings |= {"max_length": 1} if fields.image else {}  # an image has no number of tokens
    task = Task(
        name=name,
        text=(fields.text,) if isinstance(fields.text, str) else fields.text,
        # the label column of a folder of images; several labels may each have a column
        label=fields.label or ("label" if fields.image and not kind.list_labels else ""),
        labels=fields.labels if fields.labels != "from data" else kind.placeholder_labels,
        by_index=kind.positional and fields.labels != "from data",
        metrics=metrics or kind.metrics,
        splits=splits,
        reported=fields.reported or next(iter(splits), HELD_OUT),
        source=fields.hub,
        files=files,
        finetune=Hyperparameters(**settings),
        **fields.model_dump(include=ALIKE),
    )
    if task.label in task.text:
        raise BadData(f"{place} has '{task.label}' as text and as label, expected two columns")
    if fields.labels == "from data":
        return _with_labels(task, place)
    spelled = comparison_key(task.labels)
    names = {*map(spelled, task.labels), ""}  # renamed to "": a label that is left out
    for ours in task.renamed.values():
        if kind.placeholder_labels and spelled(ours) not in names:
            listed = few(task.labels)
            raise BadData(f"{place} renames to '{ours}', expected one of its labels {listed}")
    return task


def _number(written: Any) -> Any:
    """A number, if that is what was written, else the value as it is: a later check names it."""
    try:
        value = float(written)
    except (TypeError, ValueError):
        return written
    return int(value) if value.is_integer() else value


def _files(place: Path, fields: Described) -> dict[str, str]:
    """The file, or folder of images, of each split that has one."""
    files = fields.files
    if isinstance(files, dict):
        named = {split: place.parent / file for split, file in files.items()}
        for split, path in named.items():
            if not (path.is_file() or (fields.image and path.is_dir())):  # it may be elsewhere
                message = f"{path} is no file; expected the rows of the split '{split}' of {place}"
                warnings.warn(message, stacklevel=3)
        return {split: str(path) for split, path in named.items()}
    if not files:
        return {}
    if (place.parent / files).is_file():
        return {TRAIN: str(place.parent / files)}
    used = (TRAIN, *(fields.splits.values() if isinstance(fields.splits, dict) else fields.splits))

    def path_of(name: str) -> Path | None:
        pattern = place.parent / files.replace("{split}", name)
        tried = [pattern] if "{split}" in files else [pattern / f"{name}.{s}" for s in SUFFIXES]
        if fields.image:
            tried += [pattern if "{split}" in files else pattern / name]
        found = (file for file in tried if file.is_file() or (fields.image and file.is_dir()))
        return only([*dict.fromkeys(found)])

    names = dict.fromkeys((*used, *SPLITS, *OTHERS))
    paths = {name: str(file) for name in names if (file := path_of(name)) is not None}
    if VALIDATION not in paths:
        others = [name for name in OTHERS if name in paths and name not in used]
        if other := one_of(others, str(place)):
            paths[VALIDATION] = paths.pop(other)
    if TRAIN not in paths:
        location = files.replace("{split}", TRAIN) if "{split}" in files else Path(files, TRAIN)
        classes = f"{location} with a folder for each class, " if fields.image else ""
        raise BadData(
            f"{place} has files '{files}', where no file is of the split '{TRAIN}'; expected "
            f"{classes}a file, a folder with {TRAIN} ending in {ENDINGS}, "
            "or a pattern with {split}"
        )
    return paths


def _splits(place: Path, fields: Described, files: Mapping[str, str]) -> dict[str, str]:
    """The splits to score: a user's names -> names in the source."""
    if isinstance(fields.splits, dict):
        splits = dict(fields.splits)
    else:
        splits = {split: split for split in fields.splits or [s for s in files if s != TRAIN]}
    if files and (missing := [split for split in splits.values() if split not in files]):
        raise BadData(f"{place} has no file of the split '{missing[0]}'; found {', '.join(files)}")
    return splits


def _with_labels(task: Task, place: Path) -> Task:
    """The task with the labels that its train split has: sorted, O first.

    Raises BadData for different labels that compare as equal, and lists of other values than names.
    """
    kind = kind_of(task)
    if not kind.placeholder_labels:
        return task
    if not task.label:
        raise BadData(f"{place} names no column of labels and no labels; expected one of them")
    found: dict[str, None] = {}
    for value in label_values(task):
        entries = value if isinstance(value, list) else [value]
        by_name = not kind.positional or all(isinstance(entry, str) for entry in entries)
        if not by_name or (kind.list_labels and isinstance(value, str)):  # text, as in a CSV
            raise BadData(
                f"the column '{task.label}' of {task} has the labels {reprlib.repr(value)}, "
                f"expected lists of names (.parquet, .jsonl), or labels in {place}"
            )
        # values that are no names are refused when rows are read
        found |= dict.fromkeys(name.strip() for entry in entries if (name := name_of_value(entry)))
        if len(found) > MOST:
            raise BadData(
                f"'{task.label}' has over {MOST} labels; for numbers, write kind: regression"
            )
    source_key = comparison_key([*task.renamed])
    renamed = {source_key(theirs): ours for theirs, ours in task.renamed.items()}
    present = {*map(source_key, found)}
    if unused := [theirs for theirs in task.renamed if source_key(theirs) not in present]:
        message = f"{place} renames '{unused[0]}', which no row of '{task.label}' in {TRAIN} has"
        warnings.warn(message, stacklevel=3)
    names = {renamed.get(source_key(name), name) for name in found} - {""}
    numbers = all(map(NUMBER.fullmatch, names))
    ordered = sorted(names, key=lambda name: (Decimal(name) if numbers else 0, name))
    alike: dict[str, str] = {}
    if twins := {n: other for n in ordered if (other := alike.setdefault(normal(n), n)) != n}:
        name, other = next(iter(twins.items()))
        pairs = ", ".join(f"'{first}': '{second}'" for first, second in twins.items())
        advice = "" if kind.split_into_words else ", or labels that list both"  # tags have rules
        raise BadData(
            f"'{task.label}' has the labels '{other}' and '{name}', which may be the same; "
            f"expected renamed: {{{pairs}}} in {place}{advice}"
        )
    return replace(task, labels=kind.ordered(ordered))
