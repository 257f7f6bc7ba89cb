"""A model -> its table, its verdict and its records."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from harness.cli.app import (
    DataDir,
    Json,
    MaxLength,
    Plugins,
    PresetOption,
    app,
    listed,
    methods,
    names_of,
    shots_of,
)
from harness.cli.console import bars, say, width
from harness.errors import CellsFailed
from harness.text import plain

if TYPE_CHECKING:
    from harness.evaluation.records import Record


@app.command()
def evaluate(
    model: Annotated[str, typer.Option(help="A folder that merge wrote, or any HF classifier.")],
    experts: Annotated[
        str | None, typer.Option(help="E1,E2,...: the experts, where the folder does not say.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="The base, where the folder does not say.")
    ] = None,
    other_base: Annotated[
        bool, typer.Option("--other-base", help="The models were made from another; it is meant.")
    ] = False,
    references: Annotated[
        str | None, typer.Option(help="R1,R2,...: other models to read on the same tasks.")
    ] = None,
    ceilings: Annotated[
        str | None, typer.Option(help="emr,tall:threshold=0.4: masks for each task, as references.")
    ] = None,
    best_single: Annotated[
        bool, typer.Option("--best-single", help="Also choose one of several experts on heldout10.")
    ] = False,
    singles: Annotated[
        bool, typer.Option("--singles", help="Also read each expert on tasks with its labels.")
    ] = False,
    tasks: Annotated[
        str | None, typer.Option(help="T1,T2@split,...", autocompletion=names_of("tasks"))
    ] = None,
    protocols: Annotated[
        str | None,
        typer.Option(
            help="P1,P2:key=value,...; default: current,knn,ft-classifier.",
            autocompletion=names_of("protocols"),
        ),
    ] = None,
    shots: Annotated[
        str, typer.Option(help="Rows per class that a protocol adapts on; all: each.")
    ] = "1,5,10",
    metrics: Annotated[
        str | None,
        typer.Option(
            help="M1,M2,...: instead of those of the tasks.", autocompletion=names_of("metrics")
        ),
    ] = None,
    preset: PresetOption = None,
    draws: Annotated[int, typer.Option(help="Draws of those rows.")] = 5,
    seed: Annotated[int, typer.Option(help="The first draw's seed.")] = 0,
    unstratified: Annotated[
        bool, typer.Option("--unstratified", help="Draw them whatever their labels.")
    ] = False,
    labels: Annotated[
        Literal["by-name", "by-index"], typer.Option(help="by-index: trust the order of LABEL_n.")
    ] = "by-name",
    limit: Annotated[int | None, typer.Option(help="Score the first N rows only.")] = None,
    max_length: MaxLength = None,
    batch_size: Annotated[int, typer.Option(help="Rows per forward pass.")] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    output_path: Annotated[Path, typer.Option(help="Where records are written.")] = Path("records"),
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read pickles, as weights only.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
    plugins: Plugins = None,
) -> None:
    """Evaluate a model and its references under the protocols; print the table and a verdict."""
    given = locals()  # a flag of a field's name is that field
    from harness.evaluation.evaluate import evaluate as run
    from harness.evaluation.run import Run
    from harness.reporting.table import shared_texts
    from harness.values import validated

    values = {
        **{name: value for name, value in given.items() if name in Run.model_fields},
        "experts": listed(experts),
        "references": listed(references),
        "ceilings": methods(ceilings),
        "tasks": listed(tasks),
        "protocols": methods(protocols),
        "metrics": listed(metrics),
        "shots": shots_of("--shots", shots),
        "stratified": not unstratified,
        "data_dir": str(data_dir) if data_dir else None,
        "output": str(output_path),
    }
    asked = validated(Run, values, "evaluate")
    with bars() as advance:
        try:
            records, failed = run(asked, progress=advance), None
        except CellsFailed as error:
            records, failed = list(error.records), error
    for line in shared_texts(records):
        say(f"harness: {plain(line)}", sys.stderr)
    if as_json:
        print(json.dumps([record.model_dump(mode="json") for record in records], sort_keys=True))
    elif records:
        print_evaluation(records, output_path)
    if failed is not None:
        raise failed


def print_evaluation(records: Sequence[Record], out: Path) -> None:
    """The table, what is to be said of it, and the verdicts of a run."""
    from harness.reporting.basis import bases, left_open
    from harness.reporting.lines import lines_of
    from harness.reporting.table import (
        PARTS,
        evaluation_table,
        legend,
        other_shots,
        parts_table,
        protocols_saw,
    )
    from harness.reporting.verdict import verdicts

    table = evaluation_table(records, width())
    print(f"{table}\n")
    if parts := parts_table(records, width()):
        print(f"{PARTS}\n\n{parts}\n")
    every = [*lines_of(("", one) for one in records)]
    said = (*other_shots(records), *protocols_saw(records), *left_open(every))
    for line in (legend(table), *said):
        say(plain(line))
    say(f"{len(records)} records in {out}/. All numbers of shots as a board:")
    print(f"  harness leaderboard {out} --out board")
    for one in (*verdicts(every), *bases(every)):
        say(f"Verdict: {plain(one)}")
