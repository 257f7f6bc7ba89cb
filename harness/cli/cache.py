"""`harness cache`: the size of the cache, and clearing it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from harness.cli.app import app
from harness.cli.flags import JSON, flag, option
from harness.errors import BadOption

if TYPE_CHECKING:
    from harness.caches import CachedFile

cache = typer.Typer(name="cache", help="The cache of earlier runs: its size, and how to clear it.")
app.add_typer(cache)


@cache.command()
def info(as_json: bool = JSON) -> None:
    """Print where the cache is and how much of each kind it holds."""
    from tabulate import tabulate

    from harness.caches import KINDS, LARGE, entries, limit
    from harness.files import cache_dir

    found, rows, sizes = [*entries()], [], {}
    for kind, what in KINDS.items():
        of_kind = [entry for entry in found if entry.kind == kind]
        size, oldest = _bytes(of_kind), max((entry.age for entry in of_kind), default=0.0)
        sizes[kind] = {"entries": len(of_kind), "bytes": size}
        rows.append([kind, len(of_kind), f"{size / 1e6:.1f}", f"{oldest:.0f}", what])
    if as_json:
        print(json.dumps({"folder": str(cache_dir("")), "kinds": sizes}))
        return
    headers = ["", "entries", "MB", "oldest, days", "what it is"]
    table = tabulate(rows, headers, tablefmt="simple", disable_numparse=True)
    print(f"{cache_dir('')} (set HARNESS_CACHE_DIR for another place)\n\n{table}\n")
    print(
        f"in all {_size(found)}; of {' and '.join(LARGE)} at most {limit():g} GB (HARNESS_CACHE_GB)"
    )


@cache.command()
def clear(
    all_: bool = flag("Delete every entry.", "--all"),
    older_than: float | None = option(
        "Delete entries that were last used this many days ago or earlier.", min=0
    ),
) -> None:
    """Delete entries of the cache; later commands compute again what they need."""
    from harness.caches import cleared

    if all_ == (older_than is not None) or not (older_than or 0) >= 0:  # NaN is no age
        raise BadOption(
            "cache clear has neither or both of its options; expected --all or --older-than"
        )
    print(f"cleared {_size(cleared(older_than or 0))}")


def _bytes(entries: Sequence[CachedFile]) -> int:
    return sum(entry.bytes for entry in entries)


def _size(entries: Sequence[CachedFile]) -> str:
    called = "entry" if len(entries) == 1 else "entries"
    return f"{len(entries)} {called}, {_bytes(entries) / 1e6:.1f} MB"
