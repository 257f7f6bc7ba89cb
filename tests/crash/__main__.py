"""`python -m tests.crash`: kill commands, run them again and at once; exit 1 for any fault."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

from tabulate import tabulate

from tests.crash.kills import CASES, campaign
from tests.fuzz.forks import ONE_THREAD


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3, help="of four runs at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", action="append", default=[], choices=[*CASES])
    given = parser.parse_args()
    os.environ.update(ONE_THREAD)
    started, findings = time.monotonic(), []
    for finding in campaign(given.kills, seed=given.seed, only=given.case, rounds=given.rounds):
        findings.append(finding)
        if finding.faults:
            print(finding, file=sys.stderr, flush=True)
    counts = Counter((f.case, "at once" in f.how, bool(f.faults)) for f in findings)
    rows = [
        [name, *(counts[name, at_once, bad] for at_once in (False, True) for bad in (False, True))]
        for name in given.case or CASES
    ]
    headers = ["command", "kills, well", "kills, faults", "at once, well", "at once, faults"]
    print(tabulate(rows, headers, tablefmt="github"))
    print(f"{len(findings)} runs disturbed in {time.monotonic() - started:.0f} s")
    return 1 if any(finding.faults for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
