"""`harness heads`: a whole CLIP or a T5, and a task -> a head made of texts or words."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from harness.cli import flags
from harness.cli.app import app
from harness.cli.console import say
from harness.cli.flags import ALLOW_PICKLE, FORCE, PLUGINS, argument, option, passed_on


@app.command()
def heads(
    family: Literal["clip", "verbalizer"] = argument(
        "clip: a head of texts that name the classes; verbalizer: of words that a T5 answers with."
    ),
    base: str = option("The pretrained checkpoint: a whole CLIP, or a T5 that makes text.", ...),
    task: str = option("The task, as `harness list tasks` names it.", ..., of="tasks"),
    out: Path = option("The folder of the head.", ...),
    templates: list[str] | None = option(
        "clip: 'a photo of a {class}.'; repeat for several. Default: the task's. verbalizer: one, "
        "as 'review: {text}', with {pair} for a second text and, for a multi-label task, {label}. "
        "Default: '{text}'.",
        None,
        "--template",
    ),
    words: list[str] | None = option(
        "verbalizer: the T5's answer for a label, one token; repeat for all labels in their order. "
        "Default: their names or, for a multi-label task, no and yes.",
        None,
        "--word",
    ),
    prefix: str = option(
        "verbalizer: what all answers of the T5 begin with, as '<extra_id_0>'.", ""
    ),
    preset: flags.PresetFlag = flags.PRESET,
    force: bool = FORCE,
    allow_pickle: bool = ALLOW_PICKLE,
    plugins: list[Path] | None = PLUGINS,
) -> None:
    """Write a head made of texts or words for the classes, for models that have none."""
    arguments = locals()  # the parameters of `harness.heads`
    from harness.checkpoints.build import TEXT_HEAD
    from harness.checkpoints.text_heads import heads as run

    arguments |= {"templates": templates or (), "words": words or ()}
    head = run(**passed_on(arguments))
    source = head.config[TEXT_HEAD]
    texts = source["templates"] if family == "clip" else [source["template"]]
    for template in texts:
        say(template)
    for label, word in source.get("words", {}).items():
        say(f"{label}: {word}")
    print(f"wrote {out}: {len(head.labels or ())} classes, templates: {len(texts)}")
