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
└── OutputExists          an output folder that holds something this program did not write
"""


class HarnessError(Exception):
    """A mistake in the input, found before work starts. The command line prints it and exits 2."""


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


class OutputExists(HarnessError):
    """An output folder that holds something this program did not write."""
