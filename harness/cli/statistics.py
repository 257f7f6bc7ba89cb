"""An expert and its data -> a file to hand over instead of the data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.app import DataDir, MaxLength, Plugins, PresetOption, app, names_of
from harness.cli.console import bars, say


@app.command()
def statistics(
    expert: Annotated[str, typer.Argument(help="The expert: a folder or a Hub id.")],
    task: Annotated[
        str,
        typer.Option(
            help="The task whose training rows it is run on.", autocompletion=names_of("tasks")
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file: FILE.safetensors.")],
    merger: Annotated[
        str | None,
        typer.Option(
            help="Which merger they are for, with its options: regmean.",
            autocompletion=names_of("mergers"),
        ),
    ] = None,
    need: Annotated[
        str | None, typer.Option(help="NAME[:key=value,...]: a need by itself, of any method.")
    ] = None,
    preset: PresetOption = None,
    max_length: MaxLength = None,
    other_tasks: Annotated[
        bool, typer.Option("--other-tasks", help="The expert's is called otherwise; this is meant.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read pickles, as weights only.")
    ] = False,
    data_dir: DataDir = None,
    plugins: Plugins = None,
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
            max_length=max_length,  # type: ignore[arg-type]  # text, which is parsed there
            other_tasks=other_tasks,
            data_dir=data_dir,
            device=device,
            allow_pickle=allow_pickle,
            progress=advance,
        )
    shown = ", ".join(f"{name}={value}" for name, value in statistic.options.items())
    say(f"{statistic.need} of {expert} on {statistic.task}: {shown}")
    print(f"wrote {out}: {len(statistic.tensors)} weights, {out.stat().st_size / 1e6:.1f} MB")
