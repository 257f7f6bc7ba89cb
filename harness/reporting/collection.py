"""Records as a person works with them: a sequence that is also a frame of pandas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

from harness.evaluation.records import Record, each_record
from harness.reporting.boards.tidy import as_frame, table
from harness.reporting.grid import named_rows
from harness.reporting.lines import lines_of

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Records(Sequence[Record]):
    """Records in a stable order, each once, and the files that they lie in."""

    records: tuple[Record, ...]
    paths: tuple[Path, ...]

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, at: int) -> Record: ...

    @overload
    def __getitem__(self, at: slice) -> Records: ...

    def __getitem__(self, at: int | slice) -> Record | Records:
        if isinstance(at, slice):
            return Records(self.records[at], self.paths[at])
        return self.records[at]

    def __repr__(self) -> str:
        tasks = len({record.task for record in self.records})
        return f"Records({len(self)} of {tasks} tasks)"

    def to_pandas(self) -> pandas.DataFrame:
        """A tidy frame: a row for every record and number of shots, scores x100.

        The columns are those of board.csv (`harness.reporting.boards.tidy`) but for its gains: what
        is compared must be of the same work, which a board checks and a frame does not.
        """
        lines = [*lines_of(zip(map(str, self.paths), self.records, strict=True))]
        return as_frame(table(lines, named_rows(lines), [line.path for line in lines]))


def read_records(*places: str | Path) -> Records:
    """All records in files and below folders. Raises BrokenRecord."""
    read = [*each_record(places)]
    return Records(tuple(record for _, record in read), tuple(path for path, _ in read))
