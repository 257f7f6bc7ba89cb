"""What was made anew beside what is committed: `python leaderboards/compare.py FOLDER`.

Prints for every board how many of its lines are of the same thing in both, how many are in one
alone, and the largest difference of a number, in points; and then the first of those that are in
one alone, and the boards, pages and pictures that are missing or empty. Exits with 1 where there
are any.
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
"""What a line of a board is of: not its row, as which models share one, their scores decide."""
PAGES = [
    Path("README.md"),
    Path("docs", "what-we-found.md"),
    *(path.relative_to(ROOT) for path in sorted(ROOT.glob("docs/papers/*.md"))),
]
SHOWN = 2
"""Lines of a board that are named where they are in one alone."""


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a board."""
    return [
        {str(key): one for key, one in line.items()}
        for line in pandas.read_parquet(path).to_dict("records")
    ]


def values(path: Path) -> Mapping[tuple[Any, ...], list[float]]:
    """The numbers that are compared, by what they are of, one of each set of experts; none where
    there is no file."""
    read = grouped(lines(path) if path.is_file() else (), itemgetter(*KEYS))
    return {key: [float(line["value"]) for line in of] for key, of in read.items()}


def others() -> Iterator[Path]:
    """What is made beside a board's numbers, as it is called in the folder of a reproduction."""
    for pattern in ("*/board.md", "*/index.html", "*/geometry.csv"):
        yield from (path.relative_to(HERE) for path in HERE.glob(pattern))
    yield from (path.relative_to(ROOT) for path in ROOT.glob("docs/**/*.svg"))
    yield from PAGES


def report(made: Path) -> int:
    """Print the table; 1 where something is missing or too much, else 0."""
    odd = []
    row = "{:<28} {:>9} {:>9} {:>9} {:>19}"
    print(row.format("", "in both", "missing", "new", "largest difference"))
    for file in sorted(path.relative_to(HERE) for path in HERE.glob("*/board.parquet")):
        ours, theirs = values(made / file), values(HERE / file)
        here, there = (Counter({key: len(of[key]) for key in of}) for of in (ours, theirs))
        both, missing, new = here & there, there - here, here - there
        # which set is which their files do not say, so their means are compared
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
