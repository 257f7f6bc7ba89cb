"""`harness compare`: records of models -> whether they differ, and by how much."""

from __future__ import annotations

import json
from pathlib import Path

from harness.cli import flags
from harness.cli.app import app
from harness.cli.console import width
from harness.cli.flags import Names, argument, one_shots_of, option, passed_on, several


@app.command()
def compare(
    names: list[str] | None = argument(
        "Models by name, or folders of records: two or more.", None, metavar="MODELS"
    ),
    tasks: Names = several("T1,T2@split,...; default: all that they share.", of="tasks"),
    protocol: str = option(
        "P or P:key=value,...", "current", "--protocol", "--protocols", of="protocols"
    ),
    shots: str | None = option("Rows per class, or all. Default: the number nearest to 5."),
    limit: flags.Limit = flags.LIMIT,
    train_limit: flags.Limit = flags.TRAIN_LIMIT,
    draws: int | None = flags.DRAWS,
    max_length: int | None = flags.READ_LENGTH,
    models: Names = several("M1,M2,...: the same as MODELS."),
    base: Names = flags.BASE,
    records: Path = option("The folder of records that evaluate wrote.", Path("records")),
    margin: float | None = option("Two models are practically equal within so many points."),
    as_json: bool = flags.JSON,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Compare two models, or rank several, by paired tests on the same test rows."""
    arguments = locals()  # the parameters of `harness.compare`
    from harness.reporting.compare import compare as run

    result = run(
        [*(names or ()), *models],
        shots=one_shots_of(shots),
        bases=base,
        **passed_on(arguments, "names", "models", "shots", "base", "as_json"),
    )
    print(json.dumps(result.as_json(), sort_keys=True) if as_json else result.report(width()))
