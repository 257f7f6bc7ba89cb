"""A whole CLIP and a task -> the head that texts make."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from harness.cli import flags
from harness.cli.app import app
from harness.cli.console import say
from harness.cli.flags import argument, option, passed_on


@app.command()
def heads(
    family: Literal["clip"] = argument("Whose heads are made of texts."),
    base: str = option("The pretrained checkpoint, with its encoder of texts.", ...),
    task: str = option("The task, as `harness list tasks` names it.", ..., of="tasks"),
    out: Path = option("The folder of the head.", ...),
    templates: list[str] | None = option(
        "'a photo of a {class}.'; repeat for several. Default: the task's.", None, "--template"
    ),
    force: bool = flags.FORCE,
    allow_pickle: bool = flags.ALLOW_PICKLE,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Write the head that texts with the names of the classes make, for models that have none."""
    given = locals()  # which are those of `harness.heads`
    from harness.checkpoints.build import TEXT_HEAD
    from harness.checkpoints.text_heads import heads as run

    made_of = run(**{**passed_on(given, "family"), "templates": templates or ()}).config[TEXT_HEAD]
    classes, texts = made_of["classes"], made_of["templates"]
    for template in texts:
        say(template)
    print(f"wrote {out}: {len(classes)} classes, templates: {len(texts)}")
