"""`harness finetune`: a base and one or several tasks -> an expert."""

from __future__ import annotations

from pathlib import Path

from harness.cli import flags
from harness.cli.app import app
from harness.cli.flags import Names, flag, option, passed_on, several
from harness.text import points


@app.command()
def finetune(
    base: str = option("The pretrained checkpoint: a folder or a Hub id.", ...),
    out: Path = option("The expert's folder.", ...),
    task: str | None = option("The task, as `harness list tasks` names it.", of="tasks"),
    tasks: Names = several("T1,T2,...: one encoder, a head for each label space.", of="tasks"),
    seed: int = option("Seed of the order of the data and of dropout.", 0),
    head_seed: int | None = option("Seed of the head's first weights. Default: --seed."),
    learning_rate: float | None = option("Default: the task's."),
    epochs: float | None = option("Default: the task's."),
    batch_size: int | None = option("Default: the task's."),
    warmup: float | None = option("Warmup, as a share of the steps. Default: the task's."),
    weight_decay: float | None = option("Default: the task's."),
    max_length: str | None = flags.MAX_LENGTH,
    heads_from: str | None = flags.HEADS_FROM,
    limit: int | None = option("Use N rows of each split."),
    part: str | None = option(
        "1/2 or 2/2: one of two parts of the rows; 1/2 has most rows of one class."
    ),
    device: str = flags.DEVICE,
    bf16: bool = flag("Train in mixed bfloat16: weights stay float32.", "--bf16"),
    preset: flags.PresetFlag = flags.PRESET,
    force: bool = flags.FORCE,
    data_dir: str | None = flags.DATA_DIR,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Fine-tune a base on a task, or on several together; an interrupted run resumes when it is
    repeated."""
    arguments = locals()  # the parameters of `harness.finetune`
    from harness.checkpoints.provenance import EXPERT_FILE
    from harness.files import read_json
    from harness.training.finetune import finetune as run

    run(**passed_on(arguments))
    record = read_json(out / EXPERT_FILE, "what was just written")
    if not record["scores"]:
        print(f"wrote {out}")
    for split, score in record["scores"].items():
        parts = ", ".join(f"{name} {points(100 * value)}" for name, value in score["parts"].items())
        print(f"wrote {out}: {split} {parts} ({score['rows']} rows)")
    scored = {split.partition("@")[0] for split in record["scores"]}
    for name in (name for name in record["tasks"] if name not in scored):
        print(f"wrote {out}: {name}@heldout10 has no rows to score, so there is no score")
