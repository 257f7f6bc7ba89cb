"""What a terminal is shown beside results: one line of an error, progress, tables of its width."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.text import plain
from harness.types import Progress


def one_line(error: object) -> str:
    """An error or a warning without line breaks and control characters."""
    return plain(" ".join(str(error).split()))


@contextmanager
def bars() -> Iterator[Progress]:
    """A progress bar on stderr for everything that is counted under a name of its own."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    shown = Bars(*columns, TimeRemainingColumn(), console=Console(stderr=True))
    known: dict[str, Any] = {}

    def advance(what: str, done: int, total: int) -> None:
        if not known:
            shown.start()
        if what not in known:
            known[what] = shown.add_task(plain(what), total=total)
        # what is told again was read from the cache: an expert teaches several models
        if not shown.tasks[known[what]].finished:
            shown.advance(known[what], done)

    try:
        yield advance
    except BaseException:
        shown.live.transient = True  # the error alone stays on the screen
        shown.live.stop()
        raise
    if known:
        shown.stop()


def width() -> int | None:
    """Columns of the terminal; None where stdout is a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
