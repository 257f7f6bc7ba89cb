"""`harness barrier`: two models -> the loss barrier between them."""

from __future__ import annotations

from pathlib import Path

from harness.cli import flags
from harness.cli.app import app
from harness.cli.console import bars
from harness.cli.flags import Names, argument, fields_of, option, several


@app.command()
def barrier(
    experts: list[str] = argument("Two folders or Hub ids, of one architecture.", metavar="A B"),
    tasks: Names = several("T1,T2@split,...; default: the tasks in the record of A.", of="tasks"),
    premerge: list[str] | None = option(
        "An alignment to try first, NAME[:key=value,...]; repeat for several.", of="premerge"
    ),
    points: int = option("Number of merges along the line, both ends included.", 11),
    base: str | None = option("The base, for alignments and models that need it."),
    heads_from: str | None = flags.HEADS_FROM,
    seed: int = option("Seed of methods that draw random numbers.", 0),
    limit: int | None = flags.ROWS,
    first: bool = flags.FIRST,
    device: str = flags.DEVICE,
    dtype: flags.Dtype = flags.DTYPE,
    output: Path = option(
        "The folder for records, table and picture.", Path("barrier"), "--output-path"
    ),
    allow_pickle: bool = flags.ALLOW_PICKLE,
    data_dir: str | None = flags.DATA_DIR,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Loss and score along the straight line between two models, also after alignments."""
    arguments = {**locals(), "output": str(output)}
    from harness.evaluation.run import Run
    from harness.inspecting.barrier import barrier as run
    from harness.merging.recipes import Recipe
    from harness.options import parse_choice
    from harness.reporting.barrier import table
    from harness.values import validated

    names = ("experts", "base", "heads_from", "seed", "device", "data_dir")
    recipe = validated(Recipe, {name: arguments[name] for name in names}, "barrier")
    fields = {**fields_of(Run, arguments), "model": "", "experts": (), "base": None}
    request = validated(Run, fields, "barrier")
    alignments = [parse_choice(text) for text in premerge or ()]
    with bars() as advance:
        lines = run(recipe, request, alignments=alignments, points=points, progress=advance)
    print(table(lines))
    print(f"\nwrote {output}: barrier.png, .svg, .csv, .md, and records")
