"""`harness merge`: experts -> a merged folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.cli import flags
from harness.cli.app import app
from harness.cli.console import bars, say
from harness.cli.flags import Names, argument, fields_of, flag, listed, option, several
from harness.errors import BadRecipe

if TYPE_CHECKING:
    from harness.merging.recipes import Recipe

Stages = list[str] | None


@app.command()
def merge(
    experts: list[str] = argument("Folders or Hub ids, or one recipe.yaml."),
    out: Path = option("The merged folder.", ...),
    base: str | None = option("The checkpoint that the experts were fine-tuned from."),
    merger: str | None = option("NAME[:key=value,...]. Default: average.", of="mergers"),
    premerge: Stages = option("NAME[:key=value,...]; repeat for several.", of="premerge"),
    postmerge: Stages = option(
        "NAME[:key=value,...], after the merger; repeat for several.", of="postmerge"
    ),
    heads: Literal["auto", "merge", "average", "keep", "none"] | None = option(
        "What to do with the experts' heads."
    ),
    heads_from: str | None = flags.HEADS_FROM,
    tasks: Names = several("T1,T2,...: the task of each expert, or one for all.", of="tasks"),
    seed: int | None = option("Seed of methods that draw random numbers."),
    statistics: list[str] | None = option(
        "F1,F2,...: what `harness statistics` wrote, one for each expert."
    ),
    tune: str | None = option("[METHOD.]OPTION=FIRST:LAST:STEP or =[A,B]: try all, keep the best."),
    tune_on: Names = several("T1@SPLIT,...: where candidates are scored. Default: @heldout10."),
    tune_limit: int | None = option("Score candidates on N rows of each split."),
    examples_limit: int | None = option("Let methods read N rows of each expert at most."),
    device: str | None = option("Where statistics are computed and candidates scored."),
    dtype: flags.Dtype | None = option("Number type that models run in there. Default: float32."),
    merge_device: str | None = option("Where methods compute: cpu (default), cuda, ..."),
    no_drift: bool = flag("Skip measuring how far the experts' logits move.", "--no-drift"),
    other_base: bool = flags.OTHER_BASE,
    other_tasks: bool = flags.OTHER_TASKS,
    preset: flags.PresetFlag = flags.PRESET,
    max_length: str | None = flags.MAX_LENGTH,
    dry_run: bool = flag("Print the plan; read headers only, write nothing.", "--dry-run"),
    force: bool = flags.FORCE,
    allow_pickle: bool = flags.ALLOW_PICKLE,
    data_dir: str | None = flags.DATA_DIR,
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Merge experts into one folder that transformers loads."""
    arguments = locals()  # a flag with the name of a field sets that field
    from harness.checkpoints.provenance import MERGE_FILE
    from harness.merging.merge import merge as run
    from harness.merging.recipes import Recipe
    from harness.merging.summary import forecast, summary

    fields = {
        **fields_of(Recipe, arguments),
        "experts": None,
        "statistics": [part for files in statistics or () for part in listed(files)],
        "drift": False if no_drift else None,
        "other_base": other_base or None,
        "other_tasks": other_tasks or None,
    }
    recipe = _recipe(experts, fields)
    replaced = (out / MERGE_FILE).is_file()
    settings: dict[str, Any] = {"force": force, "dry_run": dry_run, "allow_pickle": allow_pickle}
    with bars() as advance:
        plan = run(recipe, out=out, **settings, progress=advance)
    for line in (*summary(plan), *(forecast(plan, out) if dry_run else ())):
        say(line)
    if not dry_run:
        print(f"wrote {out}{', which replaces the merge that was there' if replaced else ''}")


MACHINE_FLAGS = ("device", "dtype", "merge_device", "data_dir", "drift")
"""Flags that depend on the machine, and so may be given even if a recipe file sets them."""


def _recipe(experts: Sequence[str], fields: Mapping[str, Any]) -> Recipe:
    """The recipe in the file that is given in place of experts, or else the recipe of the flags.

    Beside a file, flags may set only fields that its format lacks (mergekit's has models and a
    method alone) and those in MACHINE_FLAGS.
    """
    from harness.merging.recipes import Recipe, recipe_and_fields
    from harness.values import validated

    present = {name: value for name, value in fields.items() if value not in (None, (), [])}
    if len(experts) > 1 or Path(experts[0]).suffix not in (".yaml", ".yml", ".json"):
        return validated(Recipe, {"experts": experts, **present}, "merge")
    recipe, in_file = recipe_and_fields(experts[0])
    if twice := [name for name in present if name not in MACHINE_FLAGS and name in in_file]:
        called = twice[0].replace("_", "-")
        raise BadRecipe(f"--{called} is given, and {experts[0]} sets it too; leave out one of them")
    return validated(Recipe, {**dict(recipe), **present}, "merge")
