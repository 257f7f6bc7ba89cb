"""What was made anew beside what is committed: `python leaderboards/compare.py FOLDER`.

Prints for every csv how many of its lines are of the same thing in both, how many are in one alone,
and the largest difference of a number, in points; and then the first of those that are in one
alone, and the boards, pages and pictures that are missing or empty. Exits with 1 where there are
any.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

import sheets

from harness.evaluation.records import LATER

ROOT = sheets.HERE.parent
KEYS = {
    # not by row: which models share one, their scores decide
    "board.csv": ("task", "split", "protocol", "options", "shots", "role", "model"),
    "gains.csv": ("task", "merger", "premerge"),
}
"""What a line is of, by the name of the file."""
VALUES = {"board.csv": "value", "gains.csv": "gain"}
PAGES = [
    Path("README.md"),
    Path("docs", "what-we-found.md"),
    *(path.relative_to(ROOT) for path in sorted(ROOT.glob("docs/papers/*.md"))),
]
SHOWN = 2
"""Lines of a csv that are named where they are in one alone."""


def values(path: Path) -> Mapping[tuple[str, ...], float]:
    """The numbers that are compared, by what they are of; none where there is no file.

    Of several sets of experts their mean.
    """
    made: dict[tuple[str, ...], list[float]] = {}
    for line in sheets.lines(path) if path.is_file() else ():
        if "options" in line:  # those that a protocol got later are in no older record
            options = {**LATER.get(line["protocol"], {}), **json.loads(line["options"])}
            options.pop("tolerance", None)  # the boards' probes ended earlier: the same column
            line["options"] = json.dumps(options, sort_keys=True)
        key = tuple(line[name] for name in KEYS[path.name])
        made.setdefault(key, []).append(float(line[VALUES[path.name]]))
    return {key: fmean(of) for key, of in made.items()}


def others() -> Iterator[Path]:
    """What is made beside csv files, as it is called in the folder of a reproduction."""
    for pattern in ("*/board.md", "*/board.tex", "*/index.html"):
        yield from (path.relative_to(sheets.HERE) for path in sheets.HERE.glob(pattern))
    for pattern in ("docs/**/*.svg", "docs/**/*.png"):
        yield from (path.relative_to(ROOT) for path in ROOT.glob(pattern))
    yield from PAGES


def report(made: Path) -> int:
    """Print the table; 1 where something is missing or too much, else 0."""
    odd = []
    row = "{:<28} {:>9} {:>9} {:>9} {:>19}"
    print(row.format("", "in both", "missing", "new", "largest difference"))
    for file in sorted(
        path.relative_to(sheets.HERE) for n in KEYS for path in sheets.HERE.rglob(n)
    ):
        ours, theirs = values(made / file), values(sheets.HERE / file)
        both, missing, new = ours.keys() & theirs, theirs.keys() - ours, ours.keys() - theirs
        apart = max((abs(ours[key] - theirs[key]) for key in both), default=0.0)
        print(row.format(str(file), len(both), len(missing), len(new), f"{apart:.2f}"))
        for what, keys in (("missing", missing), ("new", new)):
            odd += [f"{what} in {file}: {' '.join(key)}" for key in sorted(keys)[:SHOWN]]
    for file in sorted(others()):
        if not (made / file).is_file() or not (made / file).stat().st_size:
            odd.append(f"missing: {file}")
    print("\n".join(odd) or "nothing is missing")
    return int(bool(odd))


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("expected the folder that pages.py wrote")
    sys.exit(report(Path(sys.argv[1])))
