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
    file: str, options: Mapping[str, Any], before: Iterable[tuple[Plan, Path]] = ()
) -> tuple[Plan, Path]:
    """The plan of a study with the flags of a command, and its folder; `before` are plans and
    folders of the studies that the same command runs earlier."""
    from harness.studies import outcomes, plan, steps
    from harness.studies.board import check_boards, check_figures
    from harness.studies.experts import check_excluded
    from harness.studies.inputs import check_models, warn_of_downloads, with_inputs
    from harness.studies.read import read_study

    for name in ("limit", "seeds", "epochs", "jobs", "parallel"):
        if (number := options.get(name)) is not None and number < 1:
            raise BadRecipe(f"--{name} is {number}, expected a number of at least 1")
    changed = {name: options[name] for name in ("limit", "seeds", "epochs")}
    design = read_study(file, options["out"], base=tuple(options["base"] or ()), **changed)
    folder = options["out"] or Path(design.study)
    design_steps = steps.steps_of(design, folder, options["data_dir"])
    if not options["base"] and options["seeds"] is None:  # these may remove what `exclude` names
        check_excluded(design, folder, options["data_dir"])
    check_models(design_steps, folder)
    warn_of_downloads(design_steps, folder, options["data_dir"])
    check_figures(design, design_steps)
    study_plan = plan.make_plan(
        design.study,
        with_inputs(design_steps, folder, options["data_dir"]),
        keep_merges=design.keep_merges,
        figures=design.figures,
        paper=design.paper,
    )
    earlier = [one for one, place in before if place == folder and one.study != design.study]
    check_boards(study_plan, folder, earlier)
    outcomes.check_same_requests(study_plan, earlier)
    # refuses, before work starts, steps done with another request, and what was made again by hand
    outcomes.check_made(study_plan, outcomes.outcomes_of(study_plan, folder), folder)
    return study_plan, folder


def _written(plan: Plan, folder: Path, options: Mapping[str, Any]) -> Path:
    """Write a plan and return its file. With --retry-failed, failed steps are forgotten, with
    --remake-changed merges by plug-ins whose code changed: both are done again."""
    from harness.studies.outcomes import forget_failed, remove_changed_merges
    from harness.studies.plan import write_plan

    path = write_plan(plan, folder)
    if options["retry_failed"]:
        forget_failed(plan, folder)
    if options["remake_changed"]:
        remove_changed_merges(plan, folder)
    return path


def _where(options: Mapping[str, Any]) -> dict[str, Any]:
    """The flags for workers: devices, and absolute paths of data and plug-ins, since workers run in
    another folder."""
    from harness.data.sources import data_dir as local

    data = local(options["data_dir"])
    folder = None if data is None else str(data.resolve())
    plugins = [str(path.resolve()) for path in options["plugins"] or ()]
    devices = {name: options[name] for name in ("device", "merge_device")}
    return {"data_dir": folder, **devices, "plugins": plugins}


def _check_devices(device: str, merge_device: str) -> None:
    """Raise BadOption for a device that this machine lacks, on which every step would fail."""
    from harness.passes.placement import FULL_PRECISION, Placement, check_arithmetic, placement
    from harness.types import AUTO

    if device != AUTO:  # auto always works, and testing a GPU would hold memory on it
        placement(device, FULL_PRECISION, "--device")
    if merge_device != AUTO:
        check_arithmetic(Placement(device=merge_device))


def _print(plan: Plan, outcomes: dict[str, Outcome]) -> None:
    from tabulate import tabulate

    from harness.studies.status import failures, status_table

    columns = ["steps", "all", "done", "failed", "begun", "missing", "time left, one worker"]
    print(tabulate(status_table(plan, outcomes), columns))
    for line in failures(plan, outcomes):
        say(one_line(line))


def _to_stderr(line: str) -> None:
    say(one_line(line), sys.stderr)


def _draw(plan: Plan, outcomes: dict[str, Outcome], folder: Path, *, anew: bool = False) -> None:
    """Draw a study's boards and figures and, if it repeats a paper's design, the paper's tables
    with ours beside them; `anew`: also boards that are up to date."""
    from harness.studies.board import boards, figures
    from harness.studies.paper import tables

    if drawn := boards(plan, outcomes, folder, anew=anew):
        pictures, missing = figures(plan, outcomes, folder)
        for file in (*(f"{place}/index.html" for place in drawn), *pictures):
            print(f"wrote {file}")
        for line in missing:
            say(line)
    for file in tables(plan, outcomes, folder):
        print(f"wrote {file}")


def _exit_unless_done(outcomes: dict[str, Outcome]) -> None:
    """Exit with 3 unless every step is done."""
    if any(outcome.state != "done" for outcome in outcomes.values()):
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
    options = locals()
    from harness.studies import outcomes, status
    from harness.studies.plan import write_plan

    plan, folder = _planned(file, options)
    _print(plan, outcomes.outcomes_of(plan, folder))
    print(status.amounts(plan, folder))
    if write:
        print(f"wrote {write_plan(plan, folder)}")
        for stage, numbers in enumerate(plan.levels):
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
    options = locals()
    from harness.studies.pool import run_plan
    from harness.studies.read import reads_results

    _check_devices(device, merge_device)
    planned: dict[str, tuple[Plan, Path]] = {}
    for number, file in enumerate(files):
        if number == 0 or not reads_results(file):  # it may read results of an earlier study
            planned[file] = _planned(file, options, planned.values())
    all_outcomes: dict[str, Outcome] = {}
    for file in files:
        plan, folder = planned[file] if file in planned else _planned(file, options)
        path, settings = _written(plan, folder, options), _where(options)
        with bars() as advance:
            outcomes = run_plan(
                plan, path, folder, jobs=jobs, where=settings, progress=advance, say=_to_stderr
            )
        _print(plan, outcomes)
        if any(outcome.records for outcome in outcomes.values()):
            _draw(plan, outcomes, folder)
        all_outcomes |= outcomes
    _exit_unless_done(all_outcomes)


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
    options = locals()
    from harness.studies import outcomes, pool, slurm

    lines = slurm.read_header(header)
    plan, folder = _planned(file, options)
    slurm.check_slurm(folder)
    path, settings = _written(plan, folder, options), _where(options)
    results = outcomes.outcomes_of(plan, folder)
    chunks = pool.unfinished_chunks(plan, results)
    for job in slurm.submitted(plan, path, chunks, header=lines, parallel=parallel, where=settings):
        print(job)
    if not chunks:
        _print(plan, results)
        _exit_unless_done(results)


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
        raise BadRecipe(f"--spread is {spread:g} points, expected {LEAST_SPREAD:g} to 100")
    all_outcomes: dict[str, Outcome] = {}
    for study_plan in plan.plans_in(folder):
        results = outcomes.outcomes_of(study_plan, folder)
        print(f"{study_plan.study}:")
        _print(study_plan, results)
        by_board = {} if spread is None else spreads(study_plan, results, folder, spread)
        for board, diff in ((board, diff) for board, diffs in by_board.items() for diff in diffs):
            title = ", ".join(filter(None, (board, diff.base, diff.protocol)))
            print(
                f"{title}: differences of {diff.merges} merges vary by {diff.deviation:.1f} points "
                f"(median sd over {diff.sets} sets of experts); a difference of {spread:g} points "
                f"would be significant with about {diff.needed} sets"
            )
        all_outcomes |= results
    if tasks := slurm.tasks_of(folder):
        print(tabulate(slurm.queue_table(tasks), ["Slurm", "tasks", "reason", "see logs/"]))
    _exit_unless_done(all_outcomes)


@study.command()
def board(folder: Path = FOLDER, plugins: list[Path] | None = flags.PLUGINS) -> None:
    """Draw the boards of a folder's studies from what is done, and papers' tables beside ours."""
    from harness.errors import MissingScores
    from harness.studies.outcomes import outcomes_of
    from harness.studies.plan import plans_in

    plans, missing = plans_in(folder), list[MissingScores]()
    for plan in plans:
        outcomes = outcomes_of(plan, folder)
        try:
            _draw(plan, outcomes, folder, anew=True)
        except MissingScores as error:  # of one study: others go on
            missing.append(error)
    if len(missing) == len(plans):
        raise missing[0]
    for lacking in missing:
        _to_stderr(str(lacking))


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
    options = locals()
    from harness.studies.plan import PLANS, read_plan
    from harness.studies.work import work as run

    study_plan = read_plan(plan)
    if not 0 <= chunk < len(study_plan.chunks):
        raise BadRecipe(
            f"--chunk is {chunk}, expected a number from 0 to {len(study_plan.chunks) - 1}"
        )
    folder = plan.resolve().parent.parent
    if plan.resolve().parent.name != PLANS:
        raise BadRecipe(f"{plan} is not in a folder '{PLANS}'; expected FOLDER/{PLANS}/*.json")
    _check_devices(device, merge_device)
    if not run(study_plan, chunk, folder, where=_where(options), say=print):
        raise typer.Exit(3)
