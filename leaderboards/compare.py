"""Compares reproduced boards with the committed ones: `python leaderboards/compare.py FOLDER`.

Prints for every board how many lines are in both, how many in only one, and the largest difference
of a score, in points; then the first lines that are in only one, and the boards, pages and figures
that are missing or empty. Exits with 1 if there are any.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas

from harness.reporting.lines import grouped

HERE = Path(__file__).parent
ROOT = HERE.parent
KEYS = ("task", "split", "protocol", "options", "shots", "role", "model")
"""What identifies a line of a board. Not its row: which models share one depends on scores."""
PAGES = [
    Path("README.md"),
    Path("docs", "what-we-found.md"),
    *(path.relative_to(ROOT) for path in sorted(ROOT.glob("docs/papers/*.md"))),
]
SHOWN = 2
"""Lines that are printed of those in only one of the boards, for each board and direction."""


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a board."""
    return [
        {str(key): one for key, one in line.items()}
        for line in pandas.read_parquet(path).to_dict("records")
    ]


def values(path: Path) -> Mapping[tuple[Any, ...], list[float]]:
    """The scores of a board by `KEYS` of their lines, one for each set of experts.

    Empty if there is no file.
    """
    if not path.is_file():
        return {}
    frame = pandas.read_parquet(path, columns=[*KEYS, "value"])
    read = grouped(frame.itertuples(index=False, name=None), itemgetter(slice(-1)))
    return {key: [float(line[-1]) for line in of] for key, of in read.items()}


def others() -> Iterator[Path]:
    """Paths of all other committed files, relative to the folder of a reproduction."""
    for pattern in ("*/board.md", "*/index.html", "*/geometry.csv"):
        yield from (path.relative_to(HERE) for path in HERE.glob(pattern))
    yield from (path.relative_to(ROOT) for path in ROOT.glob("docs/**/*.svg"))
    yield from PAGES


def report(made: Path) -> int:
    """Print the comparison; 1 if lines or files are missing or lines are new, else 0."""
    odd = []
    row = "{:<28} {:>9} {:>9} {:>9} {:>19}"
    print(row.format("", "in both", "missing", "new", "largest difference"))
    for file in sorted(path.relative_to(HERE) for path in HERE.glob("*/board.parquet")):
        ours, theirs = values(made / file), values(HERE / file)
        here, there = (Counter({key: len(of[key]) for key in of}) for of in (ours, theirs))
        both, missing, new = here & there, there - here, here - there
        # files do not tell which set is which, so means over sets are compared
        apart = max((abs(fmean(ours[key]) - fmean(theirs[key])) for key in both), default=0.0)
        counts = (sum(each.values()) for each in (both, missing, new))
        print(row.format(str(file), *counts, f"{apart:.2f}"))
        for what, keys in (("missing", missing), ("new", new)):
            odd += [f"{what} in {file}: {' '.join(map(str, key))}" for key in sorted(keys)[:SHOWN]]
    for file in sorted(others()):
        if not (made / file).is_file() or not (made / file).stat().st_size:
            odd.append(f"missing: {file}")
    print("\n".join(odd) or "nothing is missing")
    return int(bool(odd))


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("expected the folder that pages.py wrote")
    sys.exit(report(Path(sys.argv[1])))
