"""Makes all boards, pages and figures from the folder that the studies were run in.

    python leaderboards/pages.py OUT

Packs the records of every board in OUT/records, and writes into OUT what is committed beside this
file and in docs: boards and the page over them, geometry.csv, tables of pages, and figures by the
commands of docs/figures/README.md. Without OUT, makes the committed ones again from the committed
packs, but for geometry.csv and the two figures that read models. Exits with 3 if some could not be
made; all others are written.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.cli import main

HERE = Path(__file__).parent
ROOT = HERE.parent
MOVED = "experts/domains/*/conll2003-0"
"""The expert of the figure in the README."""
AVERAGE = "merged/topics/*/seed-0/average"
WHOLE = ("vision", "vision-one-start")
"""Packs that keep all resamples, so that a test can check some committed records completely."""
FEWER, FEWEST = 500, 200
"""Resamples that all other packs keep, and those of `SMALLEST`, as committed files have to stay
small."""
SMALLEST = ("text-", "seeds", "domains", "emotions-")
"""How the names of these packs begin."""
TSNE = "--rows 300 --tasks textcls/ag_news,textcls/dbpedia_14,textcls/yelp_review_full"


def commands_of_packs() -> Iterator[str]:
    """The commands that make what is committed from the committed packs, in the repository."""
    packs = sorted(path.relative_to(ROOT) for path in HERE.glob("records/*.parquet"))
    yield f"harness leaderboard {' '.join(map(str, packs))} --each --out leaderboards"
    yield "python leaderboards/tables.py"
    yield from plots()


def plots() -> list[str]:
    """The commands of the figures that are drawn from records."""
    figures = (ROOT / "docs/figures/README.md").read_text(encoding="utf-8")
    return re.findall(r"(?m)^    (harness plot .*)", figures)


def commands(out: Path) -> Iterator[str]:
    """The commands that make everything, in order."""
    packs = [f"{one}.parquet" for one in sorted((out / "records").iterdir()) if one.is_dir()]
    for pack in packs:
        kept = FEWEST if Path(pack).name.startswith(SMALLEST) else FEWER
        few = "" if Path(pack).stem in WHOLE else f" --resamples {kept}"
        yield f"harness records pack {pack.removesuffix('.parquet')} --out {pack}{few}"
    yield f"harness leaderboard {' '.join(packs)} --each --out {out}"
    yield f"python {HERE}/geometry.py {out}"
    yield f"python {HERE}/tables.py {out}"
    for expert in out.glob(MOVED):
        yield f"python {ROOT}/benchmarks/moved.py {expert} ner/conll2003 {out}/docs/moved"
    for merge in out.glob(AVERAGE):
        yield f"harness plot tsne --model {merge} {TSNE} --out {out}/docs/figures/tsne"
    for line in plots():
        place = "pairs" if "/pairs/" in line else "records"  # no run makes those of pairs again
        found = HERE if place == "pairs" else out
        yield line.replace(f"leaderboards/{place}/", f"{found}/{place}/").replace(
            "docs/figures/", f"{out}/docs/figures/"
        )


def do(command: str) -> int:
    """Run a command of the harness, or a script; its exit status."""
    print("+", command, flush=True)
    program, *words = shlex.split(command)
    if program == "harness":
        return main(words)
    sys.argv, status = words, None
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        status = ended.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
    return int(bool(status))


def write(out: Path | None) -> int:
    """Make everything; the exit status."""
    if out is None:
        os.chdir(ROOT)
    made = commands(out) if out else commands_of_packs()
    failed = [command for command in made if do(command)]
    for command in failed:
        print(f"failed: {command}", file=sys.stderr)
    return 3 if failed else 0


if __name__ == "__main__":
    folders = [*map(Path, sys.argv[1:])]
    if len(folders) > 1 or not all((folder / "records").is_dir() for folder in folders):
        sys.exit("expected the folder that studies were run in, with records/ in it")
    sys.exit(write(folders[0] if folders else None))
