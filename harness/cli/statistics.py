"""`harness statistics`: an expert and its data -> a file to share instead of the data."""

from __future__ import annotations

from pathlib import Path

from harness.cli import flags
from harness.cli.app import app
from harness.cli.console import bars, say
from harness.cli.flags import argument, option, passed_on


@app.command()
def statistics(
    expert: str = argument("The expert: a folder or a Hub id."),
    task: str = option("The task on whose training rows they are computed.", ..., of="tasks"),
    out: Path = option("The file: FILE.safetensors.", ...),
    merger: str | None = option(
        "The merger that they are for, with its options, as regmean.", of="mergers"
    ),
    need: str | None = option("NAME[:key=value,...]: the need, in place of a merger."),
    base: str | None = option("The base, if the expert's folder lacks tensors."),
    heads_from: str | None = flags.HEADS_FROM,
    preset: flags.PresetFlag = flags.PRESET,
    max_length: str | None = flags.MAX_LENGTH,
    other_tasks: bool = flags.OTHER_TASKS,
    device: str = flags.DEVICE,
    dtype: flags.Dtype = flags.DTYPE,
    allow_pickle: bool = flags.ALLOW_PICKLE,
    data_dir: str | None = flags.DATA_DIR,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Write the statistics of an expert's data that a method needs, to share instead of data."""
    arguments = locals()  # the parameters of `harness.statistic`
    from harness.passes.statistics import statistic as run

    with bars() as advance:
        statistic = run(**passed_on(arguments), progress=advance)
    shown = ", ".join(f"{name}={value}" for name, value in statistic.header.options.items())
    say(f"{statistic.need} of {expert} on {statistic.header.task}: {shown}")
    print(f"wrote {out}: {len(statistic.tensors)} weights, {out.stat().st_size / 1e6:.1f} MB")
