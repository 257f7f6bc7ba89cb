"""A YAML -> experts, merges, records and boards: planned, run here or by Slurm, and looked at."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from harness.cli import flags
from harness.cli.app import app
from harness.cli.console import bars, one_line, say
from harness.cli.flags import argument, flag, option
from harness.errors import BadRecipe

if TYPE_CHECKING:
    from harness.studies.outcomes import Outcome
    from harness.studies.plan import Plan

study = typer.Typer(name="study", help="A whole study from one YAML: plan, run, status, board.")
app.add_typer(study)

FILE = argument("The study: a YAML file, or the name of one that is shipped.")
FOLDER = argument("The study's folder, as `study run` made it.")
OUT = option("The study's folder. Default: its name.")
BASE = option("The base to fine-tune, in place of the study's; repeat for several.")
SEEDS = option("So many seeds of every expert, in place of the study's.")
ROWS = option("Train on and score the first N rows only.")


def _planned(
    file: str,
    out: Path | None,
    base: list[str] | None,
    limit: int | None,
    seeds: int | None,
    data_dir: str | None,
) -> tuple[Plan, Path]:
    """The plan of a study, and its folder."""
    from harness.studies.plan import planned
    from harness.studies.steps import steps_of
    from harness.studies.study import read_study

    for name, number in (("--limit", limit), ("--seeds", seeds)):
        if number is not None and number < 1:
            raise BadRecipe(f"{name} is {number}, expected a number of at least 1")
    asked = read_study(file, out, base=tuple(base or ()), limit=limit, seeds=seeds)
    folder = out or Path(asked.study)
    steps = steps_of(asked, folder, data_dir)
    return planned(asked.study, steps, keep_merges=asked.keep_merges, plugins=asked.plugins), folder


def _print(plan: Plan, known: dict[str, Outcome]) -> None:
    from tabulate import tabulate

    from harness.studies.status import failures, status_table

    columns = ["steps", "all", "done", "failed", "begun", "missing", "time left, one worker"]
    print(tabulate(status_table(plan, known), columns))
    for line in failures(plan, known):
        say(one_line(line))


def _to_stderr(line: str) -> None:
    say(one_line(line), sys.stderr)


def _draw(plan: Plan, known: dict[str, Outcome], folder: Path) -> None:
    """Draw a study's boards and, of a paper's design, that paper's tables with ours in them."""
    from harness.studies.board import boards
    from harness.studies.paper import tables

    for one in boards(plan, known, folder):
        print(f"wrote {one}/index.html")
    for one in tables(plan, known, folder):
        print(f"wrote {one}")


def _status(known: dict[str, Outcome]) -> None:
    """Exit with 3 unless every step is done."""
    if any(one.state != "done" for one in known.values()):
        raise typer.Exit(3)


@study.command()
def plan(
    file: str = FILE,
    out: Path | None = OUT,
    base: list[str] | None = BASE,
    limit: int | None = ROWS,
    seeds: int | None = SEEDS,
    data_dir: str | None = flags.DATA_DIR,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Say what a study takes: steps, cells, rows through models, bytes, time; do nothing."""
    from harness.studies.outcomes import states_of
    from harness.studies.status import bytes_of, passes

    made, folder = _planned(file, out, base, limit, seeds, data_dir)
    _print(made, states_of(made, folder))
    size = bytes_of(made, folder)
    print(
        f"{made.cells} cells (merge x task x protocol), {passes(made)} rows through models, "
        f"{size / 1e9:.1f} GB of models in {folder}/"
    )


@study.command()
def run(
    file: str = FILE,
    out: Path | None = OUT,
    jobs: int = option("So many workers at a time.", 1),
    base: list[str] | None = BASE,
    limit: int | None = ROWS,
    seeds: int | None = SEEDS,
    retry_failed: bool = flag("Do again what failed.", "--retry-failed"),
    device: str = flags.DEVICE,
    data_dir: str | None = flags.DATA_DIR,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Do what is missing of a study on this machine, and draw its boards."""
    from harness.studies.board import BOARDS
    from harness.studies.outcomes import forgive, states_of
    from harness.studies.plan import write_plan
    from harness.studies.pool import run_plan

    if jobs < 1:
        raise BadRecipe(f"--jobs is {jobs}, expected a number of at least 1")
    made, folder = _planned(file, out, base, limit, seeds, data_dir)
    before = states_of(made, folder)  # what was made otherwise is refused before work starts
    path = write_plan(made, folder)
    if retry_failed:
        forgive(made, folder)
    where = {"data_dir": data_dir and str(Path(data_dir).resolve()), "device": device}
    with bars() as advance:
        known = run_plan(
            made, path, folder, jobs=jobs, where=where, progress=advance, say=_to_stderr
        )
    _print(made, known)
    if known != before or not (folder / BOARDS).is_dir():
        _draw(made, known, folder)
    _status(known)


@study.command()
def status(folder: Path = FOLDER) -> None:
    """Say what of a folder's studies is there, what is missing, and what failed and why."""
    from harness.studies.outcomes import states_of
    from harness.studies.plan import plans_in

    every: dict[str, Outcome] = {}
    for made in plans_in(folder):
        known = states_of(made, folder)
        print(f"{made.study}:")
        _print(made, known)
        every |= known
    _status(every)


@study.command()
def board(folder: Path = FOLDER) -> None:
    """Draw the boards of what is there of a folder's studies, and papers' tables beside ours."""
    from harness.studies.outcomes import states_of
    from harness.studies.plan import plans_in

    for made in plans_in(folder):
        _draw(made, states_of(made, folder), folder)


@app.command()
def work(
    plan: Path = argument("The plan: FOLDER/plans/*.json."),
    chunk: int = option("Which of its chunks, from 0.", ...),
    device: str = flags.DEVICE,
    data_dir: str | None = flags.DATA_DIR,
) -> None:
    """Do one chunk of a study's plan: what `study run` and a cluster's jobs call."""
    from harness.studies.plan import read_plan
    from harness.studies.prices import started
    from harness.studies.work import work as run

    made = read_plan(plan)
    if not 0 <= chunk < len(made.chunks):
        raise BadRecipe(f"--chunk is {chunk}, expected a number from 0 to {len(made.chunks) - 1}")
    folder = plan.resolve().parent.parent
    where = {"data_dir": data_dir and str(Path(data_dir).resolve()), "device": device}
    started()
    if not run(made, chunk, folder, where=where, say=print):
        raise typer.Exit(3)
