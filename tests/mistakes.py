"""What a mistake is told by: the type of an error, and one line that names what it is of.

How the line puts it is free but for its order: the thing, what was found, what was expected, what
to do. tests/test_bad_input.py has the whole line of one mistake of each type.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

import pytest

from harness.cli import main, program


def names(line: str, *things: object) -> None:
    """AssertionError unless it is one line and names the things in this order, each as a whole.

    Those of one text stand between blanks.
    """
    assert "\n" not in line
    at = 0
    for thing in " ".join(map(str, things)).split():
        before, after = (r"(?<!\w)" * thing[:1].isalnum(), r"(?!\w)" * thing[-1:].isalnum())
        found = re.compile(before + re.escape(thing) + after).search(line, at)
        assert found, f"{thing!r} is not named after {line[:at]!r} of {line!r}"
        at = found.end()


@contextmanager
def mistake(kind: type[Exception], *things: object) -> Iterator[pytest.ExceptionInfo[Any]]:
    """The block raises an error of this type, whose line names the things."""
    with pytest.raises(kind) as caught:
        yield caught
    names(str(caught.value), *things)


def refused(
    command: Sequence[object] | Callable[[], int], kind: type, *things: object, status: int = 2
) -> str:
    """The line of a command (its words, or what runs it) that ends with an error of this type.

    The type is str where typer refuses a word, or the system a name.
    """
    told: list[object] = []
    tell = program._print_error

    def listen(said: object) -> None:
        told.append(said)
        tell(said)

    out, err = io.StringIO(), io.StringIO()
    with patch.object(program, "_print_error", listen), redirect_stdout(out), redirect_stderr(err):
        found = command() if callable(command) else main([str(word) for word in command])
    assert found == status, err.getvalue()
    assert [isinstance(said, kind) for said in told] == [True], told
    assert not out.getvalue()
    on_the_way = ("harness: warning: ", "trained ", "Generating ")
    lines = [one for one in err.getvalue().splitlines() if one]
    (line,) = [one for one in lines if not one.startswith(on_the_way)]
    assert line.startswith("harness: ")
    names(line, *things)
    return line
