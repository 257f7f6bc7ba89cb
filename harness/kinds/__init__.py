"""Kinds of labels, one file each, with all that depends on the kind."""

from collections.abc import Iterable

from harness.errors import BadData
from harness.kinds.classification import Classification
from harness.kinds.kind import IGNORED, Kind, Rule
from harness.kinds.multilabel import Multilabel
from harness.kinds.regression import Regression
from harness.kinds.tagging import Tagging
from harness.types import Task

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (Classification(), Regression(), Multilabel(), Tagging())
}


def kind_of(task: Task) -> Kind:
    """The kind of a task."""
    return KINDS[task.kind]


def share_label_space(tasks: Iterable[Task]) -> bool:
    """Whether equal labels mean the same in all tasks: true of tags and of multi-label classes.

    Equal labels of classifications may answer different questions (yes, no).
    """
    return all(kind_of(task).list_labels for task in tasks)


def check_labels(task: Task) -> None:
    """Raise BadData if the labels of a task do not fit its kind."""
    if fault := kind_of(task).fault(task):
        raise BadData(f"task '{task.name}' has {fault}")


__all__ = [
    "IGNORED",
    "KINDS",
    "Kind",
    "Multilabel",
    "Rule",
    "check_labels",
    "kind_of",
    "share_label_space",
]
