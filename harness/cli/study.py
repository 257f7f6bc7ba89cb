"""`harness study`, `harness work`: a YAML -> experts, merges, records and boards: planned, run here
or by Slurm, with its status."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from harness.cli import flags
from harness.cli.app import app
from harness.cli.console import bars, one_line, say
from harness.cli.flags import argument, flag, option
from harness.errors import BadRecipe

if TYPE_CHECKING:
    from harness.studies.outcomes import Outcome
    from harness.studies.plan import Plan

study = typer.Typer(name="study", help="A study from one YAML: plan, run, submit, status, board.")
app.add_typer(study)

FILE = argument("The study: a YAML file, or the name of one that is shipped.")
FOLDER = argument("The study's folder, as `study run` made it.")
OUT = option("The study's folder. Default: its name.")
BASE = option("The base to fine-tune, in place of the study's; repeat for several.")
SEEDS = option("Number of seeds of every expert, in place of the study's.")
LEAST_SPREAD = 0.01
"""The smallest difference that `study status --spread` accepts, in points."""
RETRY_FAILED = flag("Run failed steps again.", "--retry-failed")
REMAKE = flag("Make merges by plug-ins again if their code changed.", "--remake-changed")
ROWS = option("Use N rows only to train, to merge and to score.")
EPOCHS = option("Number of epochs of training, in place of the study's.")


def _planned(
    file: str, given: Mapping[str, Any], before: Iterable[tuple[Plan, Path]] = ()
) -> tuple[Plan, Path]:
    """The plan of a study with the flags of a command, and its folder; `before` are plans and
    folders of the studies that the same command runs earlier."""
    from harness.studies import outcomes, plan, steps
    from harness.studies.board import check_boards, check_figures
    from harness.studies.experts import check_excluded
    from harness.studies.inputs import check_models, warn_of_downloads, with_inputs
    from harness.studies.read import read_study

    for name in ("limit", "seeds", "epochs", "jobs", "parallel"):
        if (number := given.get(name)) is not None and number < 1:
            raise BadRecipe(f"--{name} is {number}, expected a number of at least 1")
    changed = {name: given[name] for name in ("limit", "seeds", "epochs")}
    asked = read_study(file, given["out"], base=tuple(given["base"] or ()), **changed)
    folder = given["out"] or Path(asked.study)
    asked_steps = steps.steps_of(asked, folder, given["data_dir"])
    if not given["base"] and given["seeds"] is None:  # these flags may remove what `exclude` names
        check_excluded(asked, folder, given["data_dir"])
    check_models(asked_steps, folder)
    warn_of_downloads(asked_steps, folder, given["data_dir"])
    check_figures(asked, asked_steps)
    made = plan.make_plan(
        asked.study,
        with_inputs(asked_steps, folder, given["data_dir"]),
        keep_merges=asked.keep_merges,
        figures=asked.figures,
        paper=asked.paper,
    )
    beside = [one for one, of in before if of == folder]
    check_boards(made, folder, beside)
    outcomes.check_same_requests(made, beside)
    outcomes.outcomes_of(
        made, folder
    )  # refuses, before work starts, steps done with another request
    return made, folder


def _written(plan: Plan, folder: Path, given: Mapping[str, Any]) -> Path:
    """Write a plan and return its file. With --retry-failed, failed steps are forgotten, with
    --remake-changed merges by plug-ins whose code changed: both are done again."""
    from harness.studies.outcomes import forget_failed, remove_changed_merges
    from harness.studies.plan import write_plan

    path = write_plan(plan, folder)
    if given["retry_failed"]:
        forget_failed(plan, folder)
    if given["remake_changed"]:
        remove_changed_merges(plan, folder)
    return path


def _where(given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags for workers: devices, and absolute paths of data and plug-ins, since workers run in
    another folder."""
    from harness.data.sources import data_dir as local

    data = local(given["data_dir"])
    folder = None if data is None else str(data.resolve())
    plugins = [str(one.resolve()) for one in given["plugins"] or ()]
    devices = {name: given[name] for name in ("device", "merge_device")}
    return {"data_dir": folder, **devices, "plugins": plugins}


def _check_devices(device: str, merge_device: str) -> None:
    """Raise BadOption for a device that this machine lacks, on which every step would fail."""
    from harness.passes.placement import FULL_PRECISION, Placement, check_arithmetic, placement
    from harness.types import AUTO

    if device != AUTO:  # auto always works, and testing a GPU would hold memory on it
        placement(device, FULL_PRECISION, "--device")
    if merge_device != AUTO:
        check_arithmetic(Placement(device=merge_device))


def _print(plan: Plan, known: dict[str, Outcome]) -> None:
    from tabulate import tabulate

    from harness.studies.status import failures, status_table

    columns = ["steps", "all", "done", "failed", "begun", "missing", "time left, one worker"]
    print(tabulate(status_table(plan, known), columns))
    for line in failures(plan, known):
        say(one_line(line))


def _to_stderr(line: str) -> None:
    say(one_line(line), sys.stderr)


def _draw(plan: Plan, known: dict[str, Outcome], folder: Path, *, anew: bool = False) -> None:
    """Draw a study's boards and figures and, if it repeats a paper's design, the paper's tables
    with ours beside them; `anew`: also boards that are up to date."""
    from harness.studies.board import boards, figures
    from harness.studies.paper import tables

    if drawn := boards(plan, known, folder, anew=anew):
        pictures, missing = figures(plan, known, folder)
        for one in (*(f"{place}/index.html" for place in drawn), *pictures):
            print(f"wrote {one}")
        for line in missing:
            say(line)
    for one in tables(plan, known, folder):
        print(f"wrote {one}")


def _exit_unless_done(known: dict[str, Outcome]) -> None:
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
    epochs: int | None = EPOCHS,
    write: bool = flag(
        "Write the plan, and print its chunks by stage, for `harness work`.", "--write"
    ),
    data_dir: str | None = flags.DATA_DIR,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Print what a study needs: steps, cells, rows through models, bytes, time; run nothing."""
    given = locals()
    from harness.studies import outcomes, status
    from harness.studies.plan import write_plan

    made, folder = _planned(file, given)
    _print(made, outcomes.outcomes_of(made, folder))
    print(status.amounts(made, folder))
    if write:
        print(f"wrote {write_plan(made, folder)}")
        for stage, numbers in enumerate(made.levels):
            print(f"stage {stage}: chunks {numbers[0]} to {numbers[-1]}")


@study.command()
def run(
    files: list[str] = argument("Studies: YAML files, or names of those that are shipped."),
    out: Path | None = OUT,
    jobs: int = option("Number of workers at a time.", 1),
    base: list[str] | None = BASE,
    limit: int | None = ROWS,
    seeds: int | None = SEEDS,
    epochs: int | None = EPOCHS,
    retry_failed: bool = RETRY_FAILED,
    remake_changed: bool = REMAKE,
    device: str = flags.DEVICE,
    merge_device: str = flags.MERGE_DEVICE,
    data_dir: str | None = flags.DATA_DIR,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Run missing steps of a study, or of several in turn, on this machine; draw their boards."""
    given = locals()
    from harness.studies.pool import run_plan
    from harness.studies.read import reads_results

    _check_devices(device, merge_device)
    planned: dict[str, tuple[Plan, Path]] = {}
    for number, file in enumerate(files):
        if number == 0 or not reads_results(file):  # it may read results of an earlier study
            planned[file] = _planned(file, given, planned.values())
    every: dict[str, Outcome] = {}
    for file in files:
        made, folder = planned[file] if file in planned else _planned(file, given)
        path, where = _written(made, folder, given), _where(given)
        with bars() as tell:
            known = run_plan(
                made, path, folder, jobs=jobs, where=where, progress=tell, say=_to_stderr
            )
        _print(made, known)
        if any(one.records for one in known.values()):
            _draw(made, known, folder)
        every |= known
    _exit_unless_done(every)


@study.command()
def submit(
    file: str = FILE,
    header: Path = option(
        "A file with the first lines of jobs: #!/bin/bash, partition, account, modules.", ...
    ),
    out: Path | None = OUT,
    parallel: int = option("Number of workers at a time.", 16),
    base: list[str] | None = BASE,
    limit: int | None = ROWS,
    seeds: int | None = SEEDS,
    epochs: int | None = EPOCHS,
    retry_failed: bool = RETRY_FAILED,
    remake_changed: bool = REMAKE,
    device: str = flags.DEVICE,
    merge_device: str = flags.MERGE_DEVICE,
    data_dir: str | None = flags.DATA_DIR,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Submit the missing steps of a study to Slurm; print the job array of each stage."""
    given = locals()
    from harness.studies import outcomes, pool, slurm

    begin = slurm.read_header(header)
    made, folder = _planned(file, given)
    slurm.check_slurm(folder)
    path, where = _written(made, folder, given), _where(given)
    known = outcomes.outcomes_of(made, folder)
    chunks = pool.unfinished_chunks(made, known)
    for job in slurm.submitted(made, path, chunks, header=begin, parallel=parallel, where=where):
        print(job)
    if not chunks:
        _print(made, known)
        _exit_unless_done(known)


@study.command()
def status(
    folder: Path = FOLDER,
    spread: float | None = option(
        "POINTS: also print how many sets of experts make such a difference significant."
    ),
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Print which steps of a folder's studies are done, missing or failed, and what Slurm says."""
    from tabulate import tabulate

    from harness.studies import outcomes, plan, slurm
    from harness.studies.status import spreads

    if spread is not None and not LEAST_SPREAD <= spread <= 100:
        least = f"expected {LEAST_SPREAD:g} to 100"
        raise BadRecipe(f"--spread is {spread:g} points, {least}")
    every: dict[str, Outcome] = {}
    for made in plan.plans_in(folder):
        known = outcomes.outcomes_of(made, folder)
        print(f"{made.study}:")
        _print(made, known)
        found = {} if spread is None else spreads(made, known, folder, spread)
        for board, one in ((board, one) for board, of in found.items() for one in of):
            where = ", ".join(filter(None, (board, one.base, one.protocol)))
            print(
                f"{where}: differences of {one.merges} merges vary by {one.deviation:.1f} points "
                f"(median sd over {one.sets} sets of experts); a difference of {spread:g} points "
                f"would be significant with about {one.needed} sets"
            )
        every |= known
    if tasks := slurm.tasks_of(folder):
        print(tabulate(slurm.queue_table(tasks), ["Slurm", "tasks", "reason", "see logs/"]))
    _exit_unless_done(every)


@study.command()
def board(folder: Path = FOLDER, plugins: list[Path] | None = flags.PLUGINS) -> None:
    """Draw the boards of a folder's studies from what is done, and papers' tables beside ours."""
    from harness.errors import MissingScores
    from harness.studies.outcomes import outcomes_of
    from harness.studies.plan import plans_in

    def lacking(made: Plan) -> MissingScores | None:
        """Draw the boards of one study; the error if it has no scores, so that others go on."""
        try:
            _draw(made, outcomes_of(made, folder), folder, anew=True)
        except MissingScores as error:
            return error
        return None

    found = [*map(lacking, plans_in(folder))]
    if without := [one for one in found if one]:
        if len(without) == len(found):
            raise without[0]
        for one in without:
            _to_stderr(str(one))


@app.command()
def work(
    plan: Path = argument("The plan: FOLDER/plans/*.json."),
    chunk: int = option("The chunk to run, numbered from 0.", ...),
    device: str = flags.DEVICE,
    merge_device: str = flags.MERGE_DEVICE,
    data_dir: str | None = flags.DATA_DIR,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Run one chunk of a study's plan: what `study run` and a cluster's jobs call."""
    given = locals()
    from harness.studies.plan import PLANS, read_plan
    from harness.studies.work import work as run

    made = read_plan(plan)
    if not 0 <= chunk < len(made.chunks):
        raise BadRecipe(f"--chunk is {chunk}, expected a number from 0 to {len(made.chunks) - 1}")
    folder = plan.resolve().parent.parent
    if plan.resolve().parent.name != PLANS:
        raise BadRecipe(f"{plan} is not in a folder '{PLANS}'; expected FOLDER/{PLANS}/*.json")
    _check_devices(device, merge_device)
    if not run(made, chunk, folder, where=_where(given), say=print):
        raise typer.Exit(3)
