"""The overhead of a study, and whether its predicted price is right.

python benchmarks/studies.py [--cells 10000] [--repeats 3] [--prices] [--base DIR]

Plans a study of so many cells, and runs one of a tenth as many whose steps are all done, after all
imports. With `--prices`, three small studies are run to learn how long steps take; then each is
priced with other seeds, and run with these, by one worker.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.remove(str(Path(__file__).resolve().parent))  # it has an evaluate.py

import yaml
from tabulate import tabulate

from harness.studies.outcomes import Outcome, outcomes_of, write_outcome
from harness.studies.plan import Plan, make_plan, write_plan
from harness.studies.pool import run_plan
from harness.studies.read import read_study
from harness.studies.status import price_of
from harness.studies.steps import steps_of
from harness.training.miniature import make_base

TASKS = [f"embedded/{name}" for name in ("topic", "comparison", "mentions", "names", "outcome")]
PROTOCOLS = [
    *("current", "knn", "ft-classifier", "linear-probe", "probe"),
    *("knn:rule=vote", "knn:rule=centroid", "probe:rows=test"),
]
MARKERS = {"finetune": "expert.json", "merge": "merge.json"}
RECORDS = 4 * len(PROTOCOLS)
"""Records of an evaluation step: merge, expert, base and ensemble under every protocol."""
WHERE = {"data_dir": None, "device": "cpu"}
SMALL: dict[str, dict[str, Any]] = {
    "seeds of one task": {
        "experts": {"tasks": TASKS[0], "seeds": [0, 1, 2]},
        "sets": {"by": "task"},
        "mergers": ["average", "ties", "regmean:examples=256", "wudi"],
    },
    "five tasks": {
        "experts": {"tasks": TASKS},
        "mergers": ["average", "task_arithmetic", "ties"],
        "premerge": ["none", "dare"],
    },
    "words": {
        "experts": {"tasks": TASKS[3], "seeds": [0, 1]},
        "sets": {"by": "task"},
        "mergers": ["average", "fisher:examples=128"],
        "premerge": ["none", "rotation"],
        "protocols": PROTOCOLS[:4],
    },
}


def plan(said: dict[str, Any], folder: Path) -> Plan:
    """The plan of a study, given the content of its YAML file."""
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(said))
    return make_plan(said["study"], steps_of(read_study(file), folder / said["study"]))


def grid(cells: int, base: Path) -> dict[str, Any]:
    """A study of about `cells` cells: merges on five tasks under eight protocols."""
    many = max(cells // (len(TASKS) * len(PROTOCOLS)), 1)
    densities = ",".join(f"{(number + 1) / (many + 1):.5f}" for number in range(many))
    return {
        "study": "grid",
        "base": str(base),
        "experts": {"tasks": TASKS},
        "mergers": [f"ties:density=[{densities}]"],
        "protocols": PROTOCOLS,
    }


def finish(made: Plan, folder: Path) -> None:
    """Write the files that a run of a plan leaves, all empty, and settle its steps as done."""
    for step in made.steps.values():
        records = []
        if step.verb == "evaluate":
            records = [f"{step.name}/{number}.json" for number in range(RECORDS)]
        for name in [*records, *(f"{step.name}/{MARKERS[v]}" for v in MARKERS if v == step.verb)]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        write_outcome(step, folder, Outcome("done", step.request, records=tuple(records)))


def seconds(work: Any, repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def prices(folder: Path, base: Path) -> list[list[Any]]:
    """A row for every small study: its price, the seconds it took, and the length of its chunks."""
    rows = []
    for number, (name, said) in enumerate(SMALL.items()):
        asked = {"study": f"small-{number}", "base": str(base), "protocols": PROTOCOLS, **said}
        asked["evaluate"] = {"limit": 400}
        for shift in (0, 10):
            seeds = [shift + one for one in said["experts"].get("seeds", [0])]
            experts = {**said["experts"], "seeds": seeds}
            made = plan({**asked, "experts": experts, "study": f"small-{number}-{shift}"}, folder)
            out = folder / made.study
            price = price_of(made, [*made.steps])[0].seconds
            begun = time.perf_counter()
            known = run_plan(made, write_plan(made, out), out, where=WHERE, say=lambda line: None)
            took = time.perf_counter() - begun
            if any(one.state != "done" for one in known.values()):
                raise SystemExit(f"{name}: a step was not done")
        lengths = [price_of(made, one.steps)[0].seconds for one in made.chunks]
        ratio, mean = price / took, statistics.mean(lengths)
        rows.append([name, len(made.steps), price, took, ratio, len(lengths), mean])
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prices", action="store_true")
    parser.add_argument("--base", type=Path, help="default: a miniature")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["HARNESS_CACHE_DIR"] = str(folder / "cache")
        base = given.base or make_base(folder / "base")
        large = grid(given.cells, base)
        made = plan(large, folder)
        took = seconds(lambda: plan(large, folder), given.repeats)
        print(f"planning {made.cells} cells ({len(made.steps)} steps): {took:.2f} s")
        many = len(made.steps) / len(made.chunks)
        print(f"nothing is timed: {len(made.chunks)} chunks of {many:.1f} steps in the mean")
        small = plan(grid(given.cells // 10, base), folder)
        out = folder / "grid"
        path = write_plan(small, out)
        finish(small, out)
        took = seconds(lambda: outcomes_of(small, out), given.repeats)
        print(f"a run of {small.cells} cells that are done looks at them in {took:.2f} s")
        asked = {"where": WHERE, "say": print}
        took = seconds(lambda: run_plan(small, path, out, **asked), given.repeats)
        print(f"and ends after {took:.2f} s")
        if given.prices:
            head = ["study", "steps", "price in s", "took", "ratio", "chunks", "mean s of a chunk"]
            print(tabulate(prices(folder, base), head, tablefmt="github", floatfmt=".2f"))
