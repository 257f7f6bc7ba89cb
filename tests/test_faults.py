"""How many faults are planted: every test with the mark `fault` plants one, or one of each case."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from math import prod
from pathlib import Path

HERE = Path(__file__).parent


def planted() -> Iterator[int]:
    """Of every test that plants faults, how many."""
    for path in sorted(HERE.glob("test_*.py")):
        if "\n@pytest.mark.fault\n" not in path.read_text(encoding="utf-8"):
            continue
        for test in vars(importlib.import_module(f"tests.{path.stem}")).values():
            marks = getattr(test, "pytestmark", [])
            if any(mark.name == "fault" for mark in marks):
                cases = [mark.args[1] for mark in marks if mark.name == "parametrize"]
                yield prod(len(list(each)) for each in cases)


def test_the_number_of_planted_faults_is_that_of_contributing() -> None:
    text = (HERE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert re.findall(r"(\d+) faults", text) == [str(sum(planted()))]
