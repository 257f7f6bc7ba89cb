"""What can go wrong, each in one line that names the thing, what was found and what was expected.

HarnessError
├── UnknownName           no merger is called 'avrage'; did you mean 'average'?
├── BadOption             an option that does not exist, or a value it cannot take
├── BadRecipe             a request that does not hold together: no base, tasks without experts, ...
├── BrokenCheckpoint      a folder that is no safe, complete, finite checkpoint
├── IncompatibleWeights   experts (or the base) that cannot be merged entry by entry
├── LabelMismatch         label names of a checkpoint that are not those of the task
├── MissingHead           a protocol or a task needs a head that no checkpoint has
├── MissingTeacher        a protocol needs an expert's outputs and no expert of the task is known
├── BadData               a data set without the split, columns, labels or rows that are needed
├── BrokenRecord          a record file that cannot be read back
│   └── WrongPredictions  predictions that are not those of the record that they lie beside
├── MissingScores         records without the scores that a picture or a comparison is of
├── BrokenPlugin          somebody's methods that cannot be imported, or make something else
├── OutputExists          an output that holds something already, or that another run is writing
├── CannotWrite           an output that the system does not let us write: no space, no right
├── NotFinite             a merge, or what a model computes, that is NaN or infinite
└── CellsFailed           cells of an evaluation that could not be scored; all others are saved
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class HarnessError(Exception):
    """A mistake in the input, found before work starts, or what ends it, as a full disk does.

    The command line prints it and exits 2.
    """


class UnknownName(HarnessError):
    """A name that no registry holds."""


class BadOption(HarnessError):
    """An option that does not exist, or a value it cannot take."""


class BadRecipe(HarnessError):
    """A request whose parts do not hold together."""


class BrokenCheckpoint(HarnessError):
    """A folder that is no safe, complete, finite checkpoint."""


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
    """Predictions that are not those of the record that they lie beside."""


class MissingScores(HarnessError):
    """Records without the scores that a picture or a comparison is of."""


class OutputExists(HarnessError):
    """An output that holds something already, or that another run is writing."""


class BrokenPlugin(HarnessError):
    """A user's tasks, protocols or methods that cannot be loaded, or make something else."""


class CannotWrite(HarnessError):
    """An output that the system does not let us write."""


class NotFinite(HarnessError):
    """A merge, or what a model computes, that holds NaN or infinite entries."""


class CellsFailed(HarnessError):
    """Cells of an evaluation that could not be scored, a line for each reason.

    `records` are those of all other cells, which are saved.
    """

    def __init__(self, failures: Sequence[str], records: Sequence[Any]) -> None:
        super().__init__("; ".join(failures))
        self.failures = tuple(failures)
        self.records = tuple(records)
