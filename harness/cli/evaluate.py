"""`harness evaluate`: a model -> its table, its verdict and its records."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal

from harness.cli import flags
from harness.cli.app import app
from harness.cli.console import bars, say, width
from harness.cli.flags import Names, chosen, fields_of, flag, option, several, shots_of
from harness.errors import CellsFailed
from harness.text import counted, plain

if TYPE_CHECKING:
    from harness.evaluation.records import Record


@app.command()
def evaluate(
    model: str = option("A folder that merge wrote, or any HF classifier.", ...),
    experts: Names = several("The experts, if the folder does not name them."),
    base: str | None = option("The base, if the folder does not name it."),
    other_base: bool = flags.OTHER_BASE,
    heads_from: str | None = flags.HEADS_FROM,
    references: Names = several("Other models to evaluate on the same tasks."),
    ceilings: Names = chosen("emr,tall:threshold=0.4: references with masks for each task."),
    best_single: bool = flag("Add the expert that scores best on heldout10.", "--best-single"),
    singles: bool = flag("Also evaluate each expert on every task with its labels.", "--singles"),
    tasks: Names = several("T1,T2@split,...; default: those of the folder.", of="tasks"),
    protocols: Names = chosen(
        "P1,P2:key=value,...; default: current,knn,ft-classifier.", of="protocols"
    ),
    shots: str = option("Rows per class that a protocol adapts to, or all.", "1,5,10"),
    metrics: Names = several("Metrics, instead of the tasks' own.", of="metrics"),
    preset: flags.PresetFlag = flags.PRESET,
    draws: int = option("Number of draws of rows for each number of shots.", 5),
    seed: int = option("Seed of the first draw; others follow.", 0),
    unstratified: bool = flag("Draw rows regardless of their labels.", "--unstratified"),
    labels: Literal["by-name", "by-index"] = option(
        "by-index: LABEL_n of the model is label n of the task.", "by-name"
    ),
    limit: int | None = flags.ROWS,
    first: bool = flags.FIRST,
    train_limit: int | None = option("Draw shots, also `all`, from N training rows only."),
    max_length: str | None = flags.MAX_LENGTH,
    batch_size: str = option(
        "Rows per forward pass; auto: as many as a budget of tokens or images allows.", "auto"
    ),
    device: str = flags.DEVICE,
    dtype: flags.Dtype = flags.DTYPE,
    output: Path = option("The folder for records.", Path("records"), "--output-path"),
    allow_pickle: bool = flags.ALLOW_PICKLE,
    data_dir: str | None = flags.DATA_DIR,
    as_json: bool = flags.flag("Print the records as JSON, without resamples.", "--json"),
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Evaluate a model and its references under the protocols; print the table and a verdict."""
    arguments = locals()  # a flag with the name of a field sets that field
    from harness.evaluation.evaluate import evaluate as run
    from harness.evaluation.run import Run
    from harness.reporting.table import shared_texts
    from harness.values import validated

    parsed = {"shots": shots_of(shots), "stratified": not unstratified, "output": str(output)}
    request = validated(Run, {**fields_of(Run, arguments), **parsed}, "evaluate")
    with bars() as advance:
        try:
            records, failed = run(request, progress=advance), None
        except CellsFailed as error:
            records, failed = list(error.records), error
    for line in shared_texts(records):
        say(f"harness: {plain(line)}", sys.stderr)
    if as_json:
        left_out = {"resamples", "loss_resamples"}  # about 70 KB a record, kept in its file
        shown = [record.model_dump(mode="json", exclude=left_out) for record in records]
        print(json.dumps(shown, sort_keys=True))
    elif records:
        print_evaluation(records, output)
    if failed is not None:
        raise failed


def print_evaluation(records: Sequence[Record], out: Path) -> None:
    """Print the table of a run, the notes below it, and the verdicts."""
    from harness.reporting import table as tables
    from harness.reporting import verdict
    from harness.reporting.grid import grid_of_lines
    from harness.reporting.lines import lines_of

    lines = [*lines_of(("", record) for record in records)]
    scores = grid_of_lines(lines, by_method=False)
    table = tables.evaluation_table(scores, width())
    print(f"{table}\n")
    if parts := tables.parts_table(scores, width()):
        print(f"{tables.PARTS}\n\n{parts}\n")
    notes = (*tables.other_shots(scores), *tables.protocols_saw(scores), *verdict.left_open(lines))
    for line in (tables.legend(table), *notes):
        say(plain(line))
    say(f"{counted(len(records), 'record')} in {out}/. All numbers of shots as a board:")
    print(f"  harness leaderboard {quote(str(out))} --out board")
    for text in (*verdict.verdicts(lines), *verdict.basis_verdicts(lines)):
        say(f"Verdict: {plain(text)}")
