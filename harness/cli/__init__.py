"""The command line: parse, call the library, print. Results to stdout, progress to stderr.

One file for each command, listed by `harness --help` in the order in which they stand here.
"""

from harness.cli import finetune, merge, statistics, check  # isort: skip
from harness.cli import evaluate, compare, inspect, leaderboard, plot  # isort: skip
from harness.cli import show, export, records, prepare, listing, cache, demo  # isort: skip
from harness.cli.program import main

__all__ = [
    "cache",
    "check",
    "compare",
    "demo",
    "evaluate",
    "export",
    "finetune",
    "inspect",
    "leaderboard",
    "listing",
    "main",
    "merge",
    "plot",
    "prepare",
    "records",
    "show",
    "statistics",
]
