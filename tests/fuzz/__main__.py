"""`python -m tests.fuzz`: make mutants, run them, print the table; exit 1 if one has a fault."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.fuzz.campaign import FAULTS, Outcome, campaign, cause, prepared, table
from tests.fuzz.forks import ONE_THREAD


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first mutant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kind", action="append", default=[], help="only this kind; repeat")
    parser.add_argument("--keep", type=Path, help="a folder for the set-ups of faults")
    parser.add_argument("--log", type=Path, help="a file for what was said of every mutant")
    given = parser.parse_args()
    os.environ.update(ONE_THREAD)
    numbers = range(given.first, given.first + given.count)
    asked = {"seed": given.seed, "jobs": given.jobs, "only": given.kind, "keep": given.keep}
    with prepared() as shelf:
        return report(campaign(shelf, numbers, **asked), given.log)


def report(outcomes: Iterable[Outcome], log: Path | None = None) -> int:
    """Tell of every mutant in a file, or of faults alone, and of all in a table; 1 for a fault."""
    started, known = time.monotonic(), []
    file = log.open("w", encoding="utf-8", errors="replace") if log else None
    for outcome in outcomes:
        known.append(outcome)
        said = f"{outcome.verdict:9} {outcome.seconds:5.1f} s {outcome.mutant}\n{outcome.said}\n"
        if file is not None:
            print(said, file=file, flush=True)
        if outcome.verdict in FAULTS and file is None:
            print(said, file=sys.stderr, flush=True)
    print(table(known))
    faults = Counter(cause(outcome) for outcome in known if outcome.verdict in FAULTS)
    for what, count in faults.most_common():
        print(f"{count:5} {what}")
    print(f"{len(known)} mutants in {time.monotonic() - started:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
