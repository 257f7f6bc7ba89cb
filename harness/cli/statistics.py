"""An expert and its data -> a file to hand over instead of the data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import flags
from harness.cli.app import app
from harness.cli.console import bars, say
from harness.cli.flags import option, tokens_of


@app.command()
def statistics(
    expert: Annotated[str, typer.Argument(help="The expert: a folder or a Hub id.")],
    task: Annotated[str, option("The task whose training rows it is run on.", of="tasks")],
    out: Annotated[Path, option("The file: FILE.safetensors.")],
    merger: Annotated[
        str | None, option("Which merger they are for, with its options: regmean.", of="mergers")
    ] = None,
    need: Annotated[
        str | None, option("NAME[:key=value,...]: a need by itself, of any method.")
    ] = None,
    preset: flags.PresetOption = None,
    max_length: flags.MaxLength = None,
    other_tasks: flags.OtherTasks = False,
    device: flags.Device = "auto",
    allow_pickle: flags.AllowPickle = False,
    data_dir: flags.DataDir = None,
    plugins: flags.Plugins = None,
) -> None:
    """Write what a method asks of an expert's data, to hand over instead of the data."""
    from harness.passes.statistics import statistic as run

    with bars() as advance:
        statistic = run(
            expert,
            task=task,
            out=out,
            merger=merger,
            need=need,
            preset=preset,
            max_length=tokens_of(max_length),
            other_tasks=other_tasks,
            data_dir=data_dir,
            device=device,
            allow_pickle=allow_pickle,
            progress=advance,
        )
    shown = ", ".join(f"{name}={value}" for name, value in statistic.options.items())
    say(f"{statistic.need} of {expert} on {statistic.task}: {shown}")
    print(f"wrote {out}: {len(statistic.tensors)} weights, {out.stat().st_size / 1e6:.1f} MB")
