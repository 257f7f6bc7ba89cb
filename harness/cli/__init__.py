"""The command line: parse, call the library, print. Results to stdout, progress to stderr.

One file for each command, listed by `harness --help` in the order in which they stand here.
"""

from importlib import import_module

from harness.cli.program import main

for command in (
    *("finetune", "heads", "merge", "statistics", "check"),
    *("evaluate", "compare", "barrier", "inspect", "leaderboard", "plot", "study"),
    *("show", "export", "records", "prepare", "listing", "cache", "demo"),
):
    import_module(f"harness.cli.{command}")

__all__ = ["main"]
