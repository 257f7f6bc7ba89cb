"""A base and a task, or several -> an expert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from harness.cli import flags
from harness.cli.app import app
from harness.cli.flags import Names, option, several
from harness.text import points


@app.command()
def finetune(
    base: Annotated[str, option("The pretrained checkpoint: a folder or a Hub id.")],
    out: Annotated[Path, option("The expert's folder.")],
    task: Annotated[
        str | None, option("The task, as `harness list tasks` names it.", of="tasks")
    ] = None,
    tasks: Annotated[
        Names, several("T1,T2,...: one encoder for all, a head for each.", of="tasks")
    ] = (),
    seed: Annotated[int, option("Orders the data, drops units.")] = 0,
    head_seed: Annotated[int | None, option("Initialises the head (default: the seed).")] = None,
    learning_rate: Annotated[float | None, option("Default: the task's.")] = None,
    epochs: Annotated[float | None, option("Default: the task's.")] = None,
    batch_size: Annotated[int | None, option("Default: the task's.")] = None,
    warmup: Annotated[float | None, option("Share of the steps.")] = None,
    weight_decay: Annotated[float | None, option("Default: the task's.")] = None,
    max_length: flags.MaxLength = None,
    limit: Annotated[int | None, option("Use the first N rows of each split.")] = None,
    bf16: Annotated[bool, option("Train in mixed bfloat16.", "--bf16")] = False,
    preset: flags.PresetOption = None,
    force: flags.Force = False,
    data_dir: flags.DataDir = None,
    plugins: flags.Plugins = None,
) -> None:
    """Fine-tune a base on a task, or on several together; an interrupted run resumes when it is
    called again."""
    given: dict[str, Any] = locals()  # which are those of `harness.finetune`
    from harness.checkpoints.provenance import EXPERT_FILE
    from harness.files import read_json
    from harness.training.finetune import finetune as run

    run(**{name: value for name, value in given.items() if name != "plugins"})
    record = read_json(out / EXPERT_FILE, "what was just written")
    if not record["scores"]:
        print(f"wrote {out}")
    for split, score in record["scores"].items():
        parts = ", ".join(f"{name} {points(100 * value)}" for name, value in score["parts"].items())
        print(f"wrote {out}: {split} {parts} ({score['rows']} rows)")
    scored = {split.partition("@")[0] for split in record["scores"]}
    for name in (name for name in record["tasks"] if name not in scored):
        print(f"wrote {out}: {name}@heldout10 leaves nothing to score, so there is no score")
