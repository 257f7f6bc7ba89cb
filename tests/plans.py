"""A plan that was written is what its commands read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.cli import main
from harness.errors import BadRecipe
from harness.studies.plan import make_plan, read_plan, write_plan
from harness.studies.step import Step
from tests.mistakes import refused


def read_back(name: str, steps: Sequence[Step], folder: Path) -> None:
    """AssertionError unless the plan of these steps comes back, and all commands take it."""
    made = make_plan(name, steps)
    path = write_plan(made, folder)
    assert read_plan(path) == made
    beyond = str(len(made.chunks))
    refused(["work", path, "--chunk", beyond], BadRecipe, "--chunk", beyond)
    assert main(["study", "status", str(folder)]) == 3  # nothing is done
