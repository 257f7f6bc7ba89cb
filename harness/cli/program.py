"""Running a command: its words, its errors, its exit status."""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import typer

from harness.cli.app import app
from harness.cli.console import one_line, say
from harness.errors import BadOption, CellsFailed, HarnessError

ClickError: Any = typer.BadParameter.__mro__[2]
"""The root of click's errors, in the click that typer uses: newer ones carry their own copy."""

OF_THE_SHELL = ("--install-completion", "--show-completion")

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
"""What the system says where it does not let a library write: no fault of this program."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status.

    0: done; 2: bad input, found before work started; 3: some cells failed, all others are saved.
    """
    given = (sys.argv[1:] if argv is None else argv) or ["--help"]
    arguments = [_dashes(word) for word in given]
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            _check_shell(arguments)
            status = _commands()(arguments, prog_name="harness", standalone_mode=False)
            return status if isinstance(status, int) else 0
        except HarnessError as error:
            say(f"harness: {one_line(error)}", sys.stderr)
            return 3 if isinstance(error, CellsFailed) else 2
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            say(f"harness: {one_line(error)}", sys.stderr)
            return 2
        except ClickError as error:
            say(f"harness: {one_line(error.format_message())}", sys.stderr)
            return 2
        except (typer.Abort, KeyboardInterrupt):
            print("harness: interrupted", file=sys.stderr)
            return 130


def _check_shell(arguments: Sequence[str]) -> None:
    """Raise BadOption for a word after a flag of typer's, which would take no notice of it."""
    flag, word = [*arguments, ""][:2]
    if flag in OF_THE_SHELL and word and not word.startswith("-"):
        raise BadOption(
            f"{flag} takes no name, found '{word}'; run it alone in the shell that it is for: "
            "bash, zsh, fish or PowerShell"
        )


@cache
def _commands() -> Any:
    """The commands with their flags, which typer would read from all signatures at every call."""
    return typer.main.get_command(app)


def _dashes(word: str) -> str:
    """`--batch_size=8` as `--batch-size=8`: both spellings are accepted."""
    flag, equals, value = word.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") else word


def _warn(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, UserWarning):
        say(f"harness: warning: {one_line(message)}", sys.stderr)
