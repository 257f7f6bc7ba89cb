"""What is kept of earlier runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from harness.cli import flags
from harness.cli.app import app
from harness.cli.flags import flag, option
from harness.errors import BadOption

if TYPE_CHECKING:
    from harness.caches import CacheKind

cache = typer.Typer(name="cache", help="What is kept of earlier runs: how much, and clear it.")
app.add_typer(cache)


@cache.command()
def info(as_json: bool = flags.JSON) -> None:
    """Say where the cache is and how much of each kind is in it."""
    from harness.caches import cache_kinds
    from harness.files import cache_dir

    caches = cache_kinds()
    if as_json:
        sizes = {one.kind: {"entries": len(one.entries), "bytes": one.bytes} for one in caches}
        print(json.dumps({"folder": str(cache_dir("")), "kinds": sizes}))
        return
    print(f"{cache_dir('')} (set HARNESS_CACHE_DIR for another place)\n\n{_table(caches)}")


@cache.command()
def clear(
    all_: bool = flag("Every entry.", "--all"),
    older_than: float | None = option("Entries written so many DAYS ago or more.", min=0),
) -> None:
    """Take entries away; what is needed again is made again."""
    from harness.caches import cleared

    if all_ == (older_than is not None):
        raise BadOption("say what is to be cleared: --all, or --older-than DAYS")
    gone = cleared(older_than or 0)
    print(f"cleared {_size(gone)}")


def _size(kinds: Sequence[CacheKind]) -> str:
    entries, size = sum(len(one.entries) for one in kinds), sum(one.bytes for one in kinds)
    return f"{entries} {'entry' if entries == 1 else 'entries'}, {size / 1e6:.1f} MB"


def _table(kinds: Sequence[CacheKind]) -> str:
    from tabulate import tabulate

    from harness.caches import KINDS

    rows = [
        [one.kind, len(one.entries), f"{one.bytes / 1e6:.1f}", f"{one.oldest:.0f}", KINDS[one.kind]]
        for one in kinds
    ]
    headers = ["", "entries", "MB", "oldest, days", "what it is"]
    table = tabulate(rows, headers, tablefmt="simple", disable_numparse=True)
    return f"{table}\n\nin all {_size(kinds)}"
