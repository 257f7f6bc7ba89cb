"""What a stage before a merger adds, with its interval: `python leaderboards/gains.py`.

Writes `leaderboards/gains.csv` from the records of the study `premerge` and the predictions beside
them, which are not committed: paired, in points, at 95 %, on other test rows.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from harness import Comparison, compare, read_records
from harness.reporting.lines import stages

HERE = Path(__file__).parent
FILE = HERE / "gains.csv"
RECORDS = HERE / "records" / "premerge"
STAGES = ("dare", "procrustes", "procrustes+dare")
COLUMNS = ("task", "merger", "premerge", "gain", "low", "high", "p")


def rows(folder: Path) -> Iterator[dict[str, str]]:
    """A row for every task, merger and stage."""
    merges = [record for record in read_records(folder) if record.role == "merged"]
    known = {(record.task, *stages(record.method)): record for record in merges}
    for (task, before, merger), record in sorted(known.items()):
        if before not in STAGES:
            continue
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
            "p": f"{one.p:.6f}",
        }


if __name__ == "__main__":
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows(RECORDS))
