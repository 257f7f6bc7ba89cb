"""Norms and directions of the experts' task vectors, which are known before anything is merged.

    python leaderboards/geometry.py OUT

Writes OUT/NAME/geometry.csv for the boards `NAMES`, whose packs and experts are in OUT: for each
expert without its head, the norm of its task vector, and its cosine and distance to the others' in
the mean over the other experts of its set.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

import pandas

import harness
from harness.reporting.chosen import read_lines

NAMES = (
    "topics",
    "topics-minilm-l6",
    "topics-granite",
    "topics-gte",
    "topics-distilbert",
    "topics-mpnet",
)
COLUMNS = ("expert", "digest", "task", "norm", "cosine", "distance")


def geometry(out: Path, name: str) -> pandas.DataFrame:
    """A line for each expert of the merges of a board."""
    merges = (one for one in read_lines([out / f"records/{name}.parquet"]) if one.role == "merged")
    sets = {one.experts: one for one in merges}.values()
    rows = []
    for one in sets:
        places = [out / source for source, _ in one.experts]
        pairs = harness.inspect(places, base=out / one.base).pairs
        for (source, digest), (task, *_), place in zip(
            one.experts, one.trained, places, strict=True
        ):
            mine = [pair for pair in pairs if str(place) in (pair.first.source, pair.second.source)]
            norm = mine[0].whole.task_vector_norms[str(place) == mine[0].second.source]
            cosine = fmean(pair.whole.cosine or 0.0 for pair in mine)
            distance = fmean(pair.whole.distance for pair in mine)
            rows.append((Path(source).name, digest, task, norm, cosine, distance))
    return pandas.DataFrame(rows, columns=[*COLUMNS]).sort_values("expert")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "records").is_dir():
        sys.exit("expected the folder that studies were run in, with records/ in it")
    for name in NAMES:
        made = geometry(Path(sys.argv[1]), name)
        path = Path(sys.argv[1]) / name / "geometry.csv"
        made.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
        print(f"wrote {path}")
