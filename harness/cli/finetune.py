"""A base and a task, or several -> an expert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.app import (
    DataDir,
    Force,
    MaxLength,
    Plugins,
    PresetOption,
    app,
    listed,
    names_of,
)
from harness.text import points


@app.command()
def finetune(
    base: Annotated[str, typer.Option(help="The pretrained checkpoint: a folder or a Hub id.")],
    out: Annotated[Path, typer.Option(help="The expert's folder.")],
    task: Annotated[
        str | None,
        typer.Option(
            help="The task, as `harness list tasks` names it.", autocompletion=names_of("tasks")
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="T1,T2,...: one encoder for all, a head for each.",
            autocompletion=names_of("tasks"),
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Orders the data, drops units.")] = 0,
    head_seed: Annotated[
        int | None, typer.Option(help="Initialises the head (default: the seed).")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Default: the task's.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Default: the task's.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Default: the task's.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Share of the steps.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Default: the task's.")] = None,
    max_length: MaxLength = None,
    limit: Annotated[int | None, typer.Option(help="Use the first N rows of each split.")] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Train in mixed bfloat16.")] = False,
    preset: PresetOption = None,
    force: Force = False,
    data_dir: DataDir = None,
    plugins: Plugins = None,
) -> None:
    """Fine-tune a base on a task, or on several together; an interrupted run resumes when it is
    called again."""
    from harness.checkpoints.provenance import EXPERT_FILE
    from harness.files import read_json
    from harness.training.finetune import finetune as run

    overrides: dict[str, Any] = {
        "learning_rate": learning_rate,
        "epochs": epochs,
        "batch_size": batch_size,
        "warmup": warmup,
        "weight_decay": weight_decay,
        "max_length": max_length,
    }
    run(
        base,
        task,
        tasks=listed(tasks),
        out=out,
        seed=seed,
        head_seed=head_seed,
        data_dir=data_dir,
        limit=limit,
        bf16=bf16,
        preset=preset,
        force=force,
        **overrides,
    )
    record = read_json(out / EXPERT_FILE, "what was just written")
    if not record["scores"]:
        print(f"wrote {out}")
    for split, score in record["scores"].items():
        parts = ", ".join(f"{name} {points(100 * value)}" for name, value in score["parts"].items())
        print(f"wrote {out}: {split} {parts} ({score['rows']} rows)")
    scored = {split.partition("@")[0] for split in record["scores"]}
    for name in (name for name in record["tasks"] if name not in scored):
        print(f"wrote {out}: {name}@heldout10 leaves nothing to score, so there is no score")
