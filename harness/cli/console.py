"""Terminal output beside results: errors in one line, progress, lines of the terminal's width."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from harness.text import plain, shortened, wrapped
from harness.types import Progress


def one_line(error: object) -> str:
    """An error or a warning without line breaks and control characters."""
    return plain(" ".join(str(error).split()))


@contextmanager
def bars() -> Iterator[Progress]:
    """One progress bar on stderr: the work, the amount done, the total, and the time left.

    The total may grow while there is work left. A bar that is full, or whose total was larger than
    the new one, is finished: the next work restarts it.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    bar = Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True))
    room = max(bar.console.width // 2 - 4, 16)

    def advance(what: str, done: int, total: int) -> None:
        description = shortened(plain(what), room)
        if not bar.tasks:
            bar.start()
            bar.add_task(description, total=total)
        elif bar.tasks[0].finished or (bar.tasks[0].total or 0) > total:
            bar.reset(bar.task_ids[0], total=total)
        bar.update(bar.task_ids[0], description=description, advance=done, total=total)

    try:
        yield advance
    except BaseException:
        bar.live.transient = True  # clears the bar, so that the error alone stays on the screen
        bar.live.stop()
        raise
    if bar.tasks:
        bar.stop()


def say(text: str, file: TextIO | None = None) -> None:
    """Print a sentence, wrapped between words if the width is known."""
    stream = file or sys.stdout
    print(wrapped(text, width(stream)), file=stream)


def width(stream: TextIO | None = None) -> int | None:
    """The columns of a terminal; None for a pipe or file, except COLUMNS, if set, for stdout.

    An error in a log stays on one line, so that scripts can search for it.
    """
    stream = stream or sys.stdout
    has_width = stream.isatty() or (stream is sys.stdout and os.environ.get("COLUMNS"))
    return shutil.get_terminal_size().columns if has_width else None
