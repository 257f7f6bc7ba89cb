"""Runs a command: its arguments, errors, interrupts and exit status."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import typer

from harness.cli.app import app
from harness.cli.console import one_line, say
from harness.errors import BadOption, CellsFailed, HarnessError
from harness.files import check_text

ClickError: Any = typer.BadParameter.__mro__[2]
"""The root of click's errors, in the click that typer uses: newer ones carry their own copy."""

OF_THE_SHELL = ("--install-completion", "--show-completion")

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of the system when a library may not write: not a bug of this program."""
NO_NAME = (errno.ENAMETOOLONG, errno.EILSEQ)
"""Errors of the system for a name that no file can have."""
GO_ON = (
    "interrupted; the same command goes on where it can: records that were written are kept, and "
    "training resumes from its last checkpoint"
)
INTERRUPTED = 128 + signal.SIGINT
NOBODY_READS = 128 + signal.SIGPIPE if hasattr(signal, "SIGPIPE") else 1
SPINS = "1000"
"""GOMP_SPINCOUNT: how often an idle thread of torch looks for work before it sleeps. With the
default, 300,000, threads on a busy core delay all others (benchmarks/busy.py)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    0: done; 1: a test of `harness check` failed; 2: bad input, or a failed write; 3: some cells or
    steps failed, all others are saved; 130: interrupted; 141: the reader of stdout is gone.
    """
    words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    arguments = [_dashes(word) for word in words]
    _open_streams()
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when torch is imported
    with warnings.catch_warnings(), _interrupts() as interrupted:
        warnings.showwarning = _warner()
        try:
            return _printed(_run(arguments))
        except BaseException as error:
            # click raises another error from a BrokenPipeError
            if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
                _discard_output()
                return NOBODY_READS
            if not (interrupted or isinstance(error, typer.Abort | KeyboardInterrupt)):
                raise
            _print_error(GO_ON)
            return INTERRUPTED


def _run(arguments: Sequence[str]) -> int:
    """Run a command, print its error if any, and return its exit status."""
    text: object
    try:
        _check_words(arguments)
        status = _commands()(arguments, prog_name="harness", standalone_mode=False)
        if status == INTERRUPTED:  # some releases of typer return it instead of raising
            raise KeyboardInterrupt
        return status if isinstance(status, int) else 0
    except HarnessError as error:
        text, status = error, 3 if isinstance(error, CellsFailed) else 2
    except ClickError as error:
        text, status = error.format_message(), 2
    except OSError as error:
        if error.errno not in (*NO_ROOM, *NO_NAME):
            raise
        text, status = error, 2
        if error.errno in NO_NAME:
            text = f"{error.filename}: {error.strerror}; expected a shorter name, of plain letters"
        elif error.filename is None:
            _discard_output()
            text = f"the output cannot be written: {error.strerror}"
    _print_error(text)
    return status


def _print_error(text: object) -> None:
    """Print an error on one line of stderr; if that fails, only the exit status shows it."""
    _refused(lambda: say(f"harness: {one_line(text)}", sys.stderr))


def _printed(status: int) -> int:
    """Flush stdout and return `status`; if that fails, print why and return 2 for a status of 0."""
    error = _refused(sys.stdout.flush)
    if error is None:
        return status
    _print_error(f"the output cannot be printed: {error.strerror}")
    return status or 2


def _refused(write: Callable[[], object]) -> OSError | None:
    """The OSError with which `write` to a stream fails, or None; buffered output is then discarded.

    BrokenPipeError is raised.
    """
    try:
        write()
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_output()
        return error
    return None


def _discard_output() -> None:
    """Discard buffered output that cannot be written: flushing it when Python exits would raise."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
            continue
        os.dup2(null, stream.fileno())
    os.close(null)


def _open_streams() -> None:
    """Make stdout and stderr accept every text: a closed stream discards it, and an encoding
    without a character prints its escape."""
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        pass  # a file opened under the number of a closed stream would receive what is printed
    os.close(number)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (till the end)
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The Ctrl-C signals received in the block, since a library may turn the KeyboardInterrupt into
    another error."""
    seen: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield seen  # SIGINT is ignored, as in the background, or this is not the main thread
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _check_words(arguments: Sequence[str]) -> None:
    """Raise BadOption for a word after a completion flag, which typer would ignore.

    Also for a word that cannot be encoded in UTF-8, and so not be written in a record.
    """
    for word in arguments:
        check_text(word, BadOption)
    flag, word = [*arguments, ""][:2]
    if flag in OF_THE_SHELL and word and not word.startswith("-"):
        raise BadOption(
            f"{flag} is for the shell it runs in, found '{word}'; expected no name: run it in "
            "bash, zsh, fish or PowerShell"
        )


@cache
def _commands() -> Any:
    """The click command of the app, cached: typer builds it from all signatures at every call."""
    return typer.main.get_command(app)


def _dashes(word: str) -> str:
    """The word with dashes in the name of a flag: `--batch-size=8` for `--batch_size=8`."""
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") else word


def _warner() -> Callable[..., None]:
    """A function that prints each warning once. Python's own filter does not suffice: libraries
    reset it, and some warnings recur with every evaluation of a command."""
    printed = set()

    def warn(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        line = one_line(message)
        if issubclass(category, UserWarning) and line not in printed:
            printed.add(line)
            say(f"harness: warning: {line}", sys.stderr)

    return warn
