"""`python -m tests.crash.sample`: a few mutants and a few kills; exit 1 for any fault.

What costs most is what both begin with, the imports and the shelf: it is made once for the two.
"""

from __future__ import annotations

import os
import sys
from itertools import chain

from tests.crash import __main__ as crash
from tests.crash import kills
from tests.fuzz import __main__ as fuzz
from tests.fuzz import campaign, forks

MUTANTS, KILLS, OF_STUDIES = 252, 16, 4


def main() -> int:
    os.environ.update(forks.ONE_THREAD)
    jobs = os.cpu_count() or 1
    with campaign.prepared() as shelf:
        spoilt = fuzz.report(campaign.campaign(shelf, range(MUTANTS), seed=0, jobs=jobs))
        shared: dict[str, kills.Reference] = {}
        every = kills.campaign(shelf, KILLS, seed=0, known=shared)
        study = ("study run",)
        studies = kills.campaign(shelf, OF_STUDIES, seed=0, only=study, rounds=0, known=shared)
        killed = crash.report(chain(every, studies))
    return spoilt or killed


if __name__ == "__main__":
    sys.exit(main())
