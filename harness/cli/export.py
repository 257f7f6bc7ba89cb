"""`harness export`: records -> the formats of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from harness.cli import flags
from harness.cli.app import app
from harness.cli.flags import Names, fields_of, option


@app.command()
def export(
    records: list[Path] = flags.RECORDS,
    format: Literal["model-index", "every-eval-ever", "lm-eval", "csv"] = option(
        "The format to write.", ...
    ),
    out: Path = option("The folder to write to.", ...),
    organization: str | None = option("Who made the results: required by every-eval-ever."),
    tasks: Names = flags.TASKS,
    protocols: Names = flags.PROTOCOLS,
    limit: flags.Limit = flags.LIMIT,
    train_limit: flags.Limit = flags.TRAIN_LIMIT,
    draws: int | None = flags.DRAWS,
    max_length: int | None = flags.READ_LENGTH,
    models: Names = flags.MODELS,
    base: Names = flags.BASE,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Write records as model cards, for lm-evaluation-harness or Every Eval Ever, or as CSV."""
    arguments = {**locals(), "bases": base}  # a flag with the name of a field sets that field
    from harness.reporting.chosen import Chosen
    from harness.reporting.exports.export import export as run
    from harness.values import validated

    which = validated(Chosen, fields_of(Chosen, arguments), "export")
    for path in run(records, format=format, out=out, organization=organization, which=which):
        print(f"wrote {path}")
