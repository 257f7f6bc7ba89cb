"""The command line: parse, call the library, print. Results go to stdout, progress to stderr.

There is one file for each command; `harness --help` lists them in the order of this file.
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
