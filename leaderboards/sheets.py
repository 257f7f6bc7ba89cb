"""What the scripts beside this one share: a folder of records and boards, and csv files in it."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import HarnessError

HERE = Path(__file__).parent


def lines(path: Path) -> list[dict[str, str]]:
    """The lines of a csv."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@contextmanager
def folder_with(*names: str) -> Iterator[Path]:
    """The folder that the command line names, else that of what is committed.

    Ends in one line, with 2, where one of `names` is not in it, and for an error of the harness.
    """
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    try:
        if missing := ", ".join(name for name in names if not (place / name).exists()):
            raise HarnessError(
                f"{place} has no {missing}; expected what the studies and pages.py write"
            )
        yield place
    except HarnessError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)
