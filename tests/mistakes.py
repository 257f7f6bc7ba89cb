"""What a mistake is told by: the type of an error, and one line that names what it is of.

How the line puts it is free but for its order: the thing, what was found, what was expected, what
to do. tests/test_bad_input.py has the whole line of one mistake of each type.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

import pytest

from harness.cli import main, program


def names(line: str, *things: object) -> None:
    """AssertionError unless it is one line and names the things in this order, each as a whole."""
    assert "\n" not in line
    at = 0
    for thing in map(str, things):
        before, after = (r"(?<!\w)" * thing[:1].isalnum(), r"(?!\w)" * thing[-1:].isalnum())
        found = re.compile(before + re.escape(thing) + after).search(line, at)
        assert found, f"{thing!r} is not named after {line[:at]!r} of {line!r}"
        at = found.end()


@contextmanager
def mistake(kind: type[Exception], *things: object) -> Iterator[pytest.ExceptionInfo[Any]]:
    """The block raises an error of this very type, whose line names the things."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.type is kind
    names(str(caught.value), *things)


def refused(words: Sequence[object], kind: type, *things: object, status: int = 2) -> str:
    """The line of the command with these words, which ends with an error of this very type.

    The type is str where typer refuses a word.
    """
    told: list[object] = []
    tell = program._tell

    def listen(said: object) -> None:
        told.append(said)
        tell(said)

    out, err = io.StringIO(), io.StringIO()
    with patch.object(program, "_tell", listen), redirect_stdout(out), redirect_stderr(err):
        found = main([str(word) for word in words])
    assert found == status, err.getvalue()
    assert [type(said) for said in told] == [kind], told
    assert not out.getvalue()
    (line,) = [one for one in err.getvalue().splitlines() if "harness: warning: " not in one]
    assert line.startswith("harness: ")
    names(line, *things)
    return line
