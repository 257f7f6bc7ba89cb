"""The boards of a study, of the records that its plan asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.errors import BadRecipe, HarnessError, MissingScores
from harness.files import read_json, write_json
from harness.hashes import digest_of
from harness.reporting.boards.leaderboard import leaderboard
from harness.studies.outcomes import OUTCOMES, Outcome
from harness.studies.plan import LATEST, PLANS, Plan, read_plan

BOARDS = "boards"


def boards(
    plan: Plan, known: Mapping[str, Outcome], folder: Path, *, anew: bool = False
) -> list[Path]:
    """Write the board of every reading of a study into `folder`/boards; the folders.

    Of what the plan asks for alone, though more records may lie there; nothing where they were
    drawn of these very records, unless `anew`. Raises MissingScores where there is no record.
    """
    places = readings(plan, known, folder)
    if not places and any(step.verb == "evaluate" for step in plan.steps.values()):
        raise MissingScores(f"there is no record of {plan.study} in {folder}; run the study first")
    drawn = folder / OUTCOMES / BOARDS / f"{plan.study}.json"
    of = {"of": {reading: digest_of(sorted(map(str, one))) for reading, one in places.items()}}
    if not anew and drawn.is_file() and _said(drawn) == of:
        return []
    for reading, records in places.items():
        leaderboard(sorted(records), out=folder / BOARDS / reading)
    write_json(drawn, of)  # last: whoever is killed before draws them again
    return [folder / BOARDS / reading for reading in places]


def check_boards(plan: Plan, folder: Path) -> None:
    """Raise BadRecipe for a board that another study in the folder draws of its own records."""
    paths = sorted((folder / PLANS / LATEST).glob("*.json"))
    for path in (one for one in paths if one.stem != plan.study):
        if both := _boards(plan) & _boards(read_plan(path)):
            raise BadRecipe(
                f"{plan.study} and {path.stem} in {folder} both have a board '{min(both)}'; "
                "expected one each: choose another --out, or another name in score_on"
            )


def _boards(plan: Plan) -> set[str]:
    steps = plan.steps.values()
    return {Path(one.request["output"]).name for one in steps if one.verb == "evaluate"}


def readings(
    plan: Plan, known: Mapping[str, Outcome], folder: Path, base: str | None = None
) -> dict[str, set[Path]]:
    """The records of every reading, by the name of its board; those of one base, if it is said."""
    places: dict[str, set[Path]] = {}
    for name, step in plan.steps.items():
        if step.verb == "evaluate" and known[name].records and base in (None, step.base):
            reading = Path(step.request["output"]).name
            places.setdefault(reading, set()).update(folder / one for one in known[name].records)
    return places


def _said(path: Path) -> Mapping[str, object]:
    try:
        return read_json(path, "what boards are of")
    except HarnessError:
        return {}
