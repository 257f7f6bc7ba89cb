"""`python -m tests.crash`: kill commands, run them again and at once; exit 1 for any fault."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable

from tabulate import tabulate

from tests.crash.kills import CASES, Finding, campaign
from tests.fuzz.campaign import prepared
from tests.fuzz.forks import ONE_THREAD


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3, help="of four runs at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", action="append", default=[], choices=[*CASES])
    given = parser.parse_args()
    os.environ.update(ONE_THREAD)
    with prepared() as shelf:
        asked = {"seed": given.seed, "only": given.case, "rounds": given.rounds}
        return report(campaign(shelf, given.kills, **asked))


def report(findings: Iterable[Finding]) -> int:
    """Tell of every fault, and of all runs in a table; 1 for a fault."""
    started, known = time.monotonic(), []
    for finding in findings:
        known.append(finding)
        if finding.faults:
            print(finding, file=sys.stderr, flush=True)
    counts = Counter((f.case, "at once" in f.how, bool(f.faults)) for f in known)
    rows = [
        [name, *(counts[name, at_once, bad] for at_once in (False, True) for bad in (False, True))]
        for name in dict.fromkeys(finding.case for finding in known)
    ]
    headers = ["command", "kills, well", "kills, faults", "at once, well", "at once, faults"]
    print(tabulate(rows, headers, tablefmt="github"))
    print(f"{len(known)} runs disturbed in {time.monotonic() - started:.0f} s")
    return 1 if any(finding.faults for finding in known) else 0


if __name__ == "__main__":
    sys.exit(main())
