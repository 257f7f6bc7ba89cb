"""`harness plot`: records or a model -> a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from harness.cli import flags
from harness.cli.app import app
from harness.cli.console import bars
from harness.cli.flags import Names, argument, chosen, flag, option, several
from harness.errors import BadOption


def _pictures(incomplete: str) -> list[str]:
    from harness.reporting.plots.plot import OF_FEATURES, OF_RECORDS

    return [name for name in (*OF_RECORDS, OF_FEATURES) if name.startswith(incomplete)]


OF_A_MODEL = ("experts", "rows", "seed", "preset", "device", "data_dir")
"""Options of the figure of features (tsne) alone."""
OF_SCORES = (
    *("protocols", "shots", "limit", "train_limit", "draws", "max_length", "models", "base"),
    *("option", "loss"),
)
"""Options of figures of records alone."""


def _check_flags(context: typer.Context, what: str, strangers: Sequence[str]) -> None:
    """Raise BadOption for an option that was given and that this figure does not have."""
    for name in strangers:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            called = f"--{name.replace('_', '-')}"
            group = "features of a model (tsne)" if name in OF_A_MODEL else "records"
            raise BadOption(f"plot {what} has {called}, which is for {group} only; leave it out")


@app.command()
def plot(
    context: typer.Context,
    what: str = typer.Argument(
        help="credit, protocols, shots, transforms, gains, drop, ranks, sweep or tsne.",
        autocompletion=_pictures,
    ),
    out: Path = option("FIG, for FIG.png and FIG.svg.", ...),
    records: list[Path] | None = argument("Record files, or folders of them; tsne: none.", None),
    tasks: Names = flags.TASKS,
    protocols: Names = chosen(
        "P1,P2:key=value,...; default: those that the figure needs.", of="protocols"
    ),
    shots: str | None = option("Rows per class, or all. Default: the number nearest to 5."),
    limit: flags.Limit = flags.LIMIT,
    train_limit: flags.Limit = flags.TRAIN_LIMIT,
    draws: int | None = flags.DRAWS,
    max_length: int | None = flags.READ_LENGTH,
    models: Names = flags.MODELS,
    base: Names = flags.BASE,
    option: str = option("sweep: what varies, METHOD.OPTION, merger.OPTION or experts.", ""),
    loss: bool = flag("sweep: draw the loss instead of the score.", "--loss"),
    model: str | None = option("tsne: a folder that merge wrote, or any HF classifier."),
    experts: Names = several("tsne: the experts, if the folder does not name them."),
    rows: int = option("tsne: number of rows of each task, by class.", 500),
    seed: int = option("tsne: seed of the drawn rows and of the layout.", 0),
    preset: flags.PresetFlag = flags.PRESET,
    device: str = option("tsne: auto, cpu, cuda, ...", "auto"),
    data_dir: str | None = flags.DATA_DIR,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Draw scores of records, or a model's features (tsne), as PNG and SVG."""
    arguments = {**locals(), "bases": base}  # a flag with the name of a field sets that field
    from harness.evaluation.run import Run
    from harness.reporting.plots.plot import OF_FEATURES
    from harness.reporting.plots.plot import plot as run_plot
    from harness.reporting.plots.scores import View
    from harness.values import validated

    _check_flags(context, what, OF_SCORES if what == OF_FEATURES else OF_A_MODEL)
    drawn = flags.one_shots_of(shots)
    run = None
    if model is not None:
        run_fields = {name: value for name, value in arguments.items() if name not in OF_SCORES}
        run = validated(Run, flags.fields_of(Run, run_fields), "plot")
    with bars() as advance:
        view = validated(View, {**flags.fields_of(View, arguments), "shots": drawn}, "plot")
        paths = run_plot(what, records or (), out=out, view=view, run=run, progress=advance)
    for path in paths:
        print(f"wrote {path}")
