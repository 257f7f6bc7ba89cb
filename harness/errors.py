"""Errors, each one line that names the thing, what was found and what was expected.

HarnessError
├── UnknownName           no merger is called 'avrage'; did you mean 'average'?
├── BadOption             an option that does not exist, or a value it cannot take
├── BadRecipe             a request that is inconsistent: no base, tasks without experts, ...
├── BrokenCheckpoint      a folder that is not a safe, complete, finite checkpoint
├── IncompatibleWeights   experts (or the base) that cannot be merged entry by entry
├── LabelMismatch         label names of a checkpoint that are not those of the task
├── MissingHead           a protocol or a task needs a head that no checkpoint has
├── MissingTeacher        a protocol needs an expert's outputs and no expert of the task is known
├── BadData               a data set without the split, columns, labels or rows that are needed
├── BrokenRecord          a record file that cannot be read back
│   └── WrongPredictions  predictions that do not belong to the record beside them
├── MissingScores         records without the scores that a figure or a comparison requires
├── BrokenPlugin          a plug-in that cannot be imported, raises, or returns something invalid
├── OutputExists          an output that already exists, or that another run is writing
├── CannotWrite           an output that the system does not let us write: no space, no permission
├── NotFinite             a merge, or what a model computes, that is NaN or infinite
└── CellsFailed           cells of an evaluation that could not be scored; all others are saved
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class HarnessError(Exception):
    """A mistake in the input, usually found before work starts, or a fault such as a full disk.

    The command line prints it and exits 2.
    """


class UnknownName(HarnessError):
    """A name that no registry holds."""


class BadOption(HarnessError):
    """An option that does not exist, or a value it cannot take."""


class BadRecipe(HarnessError):
    """A request whose parts are inconsistent."""


class BrokenCheckpoint(HarnessError):
    """A folder that is not a safe, complete, finite checkpoint."""


class IncompatibleWeights(HarnessError):
    """Tensors that differ in name, shape or kind between models to be merged."""


class LabelMismatch(HarnessError):
    """Labels of a checkpoint that do not match the task's by name."""


class MissingHead(HarnessError):
    """A head is needed and there is none; a newly initialised one is never used."""


class MissingTeacher(HarnessError):
    """The outputs of an expert are needed and no expert of the task is known."""


class BadData(HarnessError):
    """A data set that lacks the split, columns, labels or rows that are needed."""


class BrokenRecord(HarnessError):
    """A record file that cannot be read back."""


class WrongPredictions(BrokenRecord):
    """Predictions that do not belong to the record beside them."""


class MissingScores(HarnessError):
    """Records without the scores that a figure or a comparison requires."""


class OutputExists(HarnessError):
    """An output that already exists, or that another run is writing."""


class BrokenPlugin(HarnessError):
    """A plug-in that cannot be imported, raises an error or returns something invalid."""


class CannotWrite(HarnessError):
    """An output that the system does not let us write."""


class NotFinite(HarnessError):
    """A merge, or what a model computes, that holds NaN or infinite entries."""


class CellsFailed(HarnessError):
    """Cells of an evaluation that could not be scored: `failures`, a line for each reason.

    `records` are those of all other cells, which are saved. The command line exits 3.
    """

    def __init__(self, failures: Sequence[str], records: Sequence[Any]) -> None:
        super().__init__("; ".join(failures))
        self.failures = tuple(failures)
        self.records = tuple(records)
