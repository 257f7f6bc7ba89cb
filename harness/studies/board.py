"""The boards of a study, of the records that its plan asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.errors import MissingScores
from harness.reporting.boards.leaderboard import leaderboard
from harness.studies.outcomes import Outcome
from harness.studies.plan import Plan

BOARDS = "boards"


def boards(plan: Plan, known: Mapping[str, Outcome], folder: Path) -> list[Path]:
    """Write the board of every reading of a study into `folder`/boards; the folders.

    Of what the plan asks for alone, though more records may lie there. Raises MissingScores where
    there is none.
    """
    places: dict[str, set[Path]] = {}
    for name, step in plan.steps.items():
        if step.verb == "evaluate" and known[name].records:
            reading = Path(step.request["output"]).name
            places.setdefault(reading, set()).update(folder / one for one in known[name].records)
    if not places and any(step.verb == "evaluate" for step in plan.steps.values()):
        raise MissingScores(f"there is no record of {plan.study} in {folder}; run the study first")
    for reading, records in places.items():
        leaderboard(sorted(records), out=folder / BOARDS / reading)
    return [folder / BOARDS / reading for reading in places]
