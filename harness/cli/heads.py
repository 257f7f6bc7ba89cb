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
        "Texts that name the classes, of a whole CLIP, or words that a T5 answers with."
    ),
    base: str = option("The pretrained checkpoint: a whole CLIP, or a T5 that makes text.", ...),
    task: str = option("The task, as `harness list tasks` names it.", ..., of="tasks"),
    out: Path = option("The folder of the head.", ...),
    templates: list[str] | None = option(
        "'a photo of a {class}.'; repeat for several. Default: the task's. Of a verbalizer one: "
        "'review: {text}', with {pair} for a second text and, where each label holds or not, "
        "{label}. Default: '{text}'.",
        None,
        "--template",
    ),
    words: list[str] | None = option(
        "What a T5 answers for a label, one token; repeat for all labels in their order. Default: "
        "their names; no and yes, where each holds or not.",
        None,
        "--word",
    ),
    prefix: str = option("What all answers of a T5 begin with: '<extra_id_0>'.", ""),
    preset: flags.PresetFlag = flags.PRESET,
    force: bool = FORCE,
    allow_pickle: bool = ALLOW_PICKLE,
    plugins: list[Path] | None = PLUGINS,
) -> None:
    """Write a head made of texts or words for the classes, for models that have none."""
    given = locals()  # the parameters of `harness.heads`
    from harness.checkpoints.build import TEXT_HEAD
    from harness.checkpoints.text_heads import heads as run

    given |= {"templates": templates or (), "words": words or ()}
    head = run(**passed_on(given))
    made_of = head.config[TEXT_HEAD]
    texts = made_of["templates"] if family == "clip" else [made_of["template"]]
    for template in texts:
        say(template)
    for label, word in made_of.get("words", {}).items():
        say(f"{label}: {word}")
    print(f"wrote {out}: {len(head.labels or ())} classes, templates: {len(texts)}")
