"""What a stage before a merger adds, with its interval: `python leaderboards/gains.py [FOLDER]`.

Writes FOLDER/gains.csv (`leaderboards`) from the records of the study `premerge` in FOLDER/records
and the predictions beside them, which are not committed: paired, in points, at 95 %, on other test
rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import sheets

from harness import Comparison, HarnessError, compare
from harness.evaluation.records import read_records
from harness.files import write_csv
from harness.reporting.lines import stages

STAGES = ("dare", "procrustes", "procrustes+dare")
COLUMNS = ("task", "merger", "premerge", "gain", "low", "high", "p")


def rows(folder: Path) -> Iterator[dict[str, str]]:
    """A row for every task, merger and stage."""
    merges = [record for record in read_records([folder]) if record.role == "merged"]
    known = {(record.task, *stages(record.method)): record for record in merges}
    for (task, before, merger), record in sorted(known.items()):
        if before not in STAGES:
            continue
        if (task, "", merger) not in known:
            raise HarnessError(f"no record of {merger} alone on {task} in {folder}; expected one")
        places = [str(folder / one.model) for one in (record, known[task, "", merger])]
        # by their folders alone: to look for them by name, all records would be read each time
        found = compare(places, tasks=[task], records=folder / "none")
        assert isinstance(found, Comparison)
        (one,) = found.tasks
        low, high = one.within
        yield {
            "task": task.partition("@")[0],
            "merger": merger,
            "premerge": before,
            **{
                name: f"{100 * value:.4f}"
                for name, value in (("gain", one.difference), ("low", low), ("high", high))
            },
            "p": "" if one.p is None else f"{one.p:.6f}",
        }


if __name__ == "__main__":
    with sheets.folder_with("records/premerge") as place:
        write_csv(place / "gains.csv", COLUMNS, rows(place / "records" / "premerge"))
