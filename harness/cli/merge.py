"""Experts -> a merged folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
from harness.cli.console import bars, say
from harness.errors import BadRecipe

if TYPE_CHECKING:
    from harness.merging.recipes import Recipe


@app.command()
def merge(
    experts: Annotated[list[str], typer.Argument(help="Folders or Hub ids, or one recipe.yaml.")],
    out: Annotated[Path, typer.Option(help="The merged folder.")],
    base: Annotated[str | None, typer.Option(help="The checkpoint they were tuned from.")] = None,
    merger: Annotated[
        str | None,
        typer.Option(help="NAME[:key=value,...]", autocompletion=names_of("mergers")),
    ] = None,
    premerge: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME[:key=value,...]; repeat for several.", autocompletion=names_of("premerge")
        ),
    ] = None,
    postmerge: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME[:key=value,...], after the merger; repeat.",
            autocompletion=names_of("postmerge"),
        ),
    ] = None,
    heads: Annotated[
        Literal["auto", "merge", "average", "keep"] | None,
        typer.Option(help="What becomes of them."),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="T1,T2,...: one each, or one for all.", autocompletion=names_of("tasks")),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="For methods that draw numbers.")] = None,
    statistics: Annotated[
        list[str] | None,
        typer.Option(help="F1,F2,...: what `harness statistics` wrote, one for each expert."),
    ] = None,
    tune: Annotated[
        str | None, typer.Option(help="OPTION=FIRST:LAST:STEP: try all, keep the best.")
    ] = None,
    tune_on: Annotated[
        str | None,
        typer.Option(help="T1@SPLIT,...: where candidates are scored. Default: @heldout10."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where statistics and candidates are run.")
    ] = None,
    no_drift: Annotated[
        bool, typer.Option("--no-drift", help="Do not run experts to see their logits move.")
    ] = False,
    other_base: Annotated[
        bool, typer.Option("--other-base", help="The experts were made from another; it is meant.")
    ] = False,
    other_tasks: Annotated[
        bool, typer.Option("--other-tasks", help="Theirs are called otherwise; these are meant.")
    ] = False,
    preset: PresetOption = None,
    max_length: MaxLength = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan by headers alone, write nothing.")
    ] = False,
    force: Force = False,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read pickles, as weights only.")
    ] = False,
    data_dir: DataDir = None,
    plugins: Plugins = None,
) -> None:
    """Merge experts into one folder that transformers loads."""
    from harness.checkpoints.provenance import MERGE_FILE
    from harness.merging.merge import merge as run
    from harness.merging.summary import forecast, summary

    flags = {
        "base": base,
        "merger": merger,
        "premerge": premerge or None,
        "postmerge": postmerge or None,
        "heads": heads,
        "tasks": listed(tasks) or None,
        "seed": seed,
        "statistics": tuple(part for given in statistics or () for part in listed(given)) or None,
        "tune": tune,
        "tune_on": listed(tune_on) or None,
        "device": device,
        "drift": False if no_drift else None,
        "other_base": other_base or None,
        "other_tasks": other_tasks or None,
        "preset": preset,
        "max_length": max_length,
        "data_dir": str(data_dir) if data_dir else None,
    }
    recipe = _recipe(experts, flags)
    if dry_run:
        plan = run(recipe, out=out, force=force, dry_run=True, allow_pickle=allow_pickle)
        for line in (*summary(plan), *forecast(plan, out)):
            say(line)
        return
    replaced = (out / MERGE_FILE).is_file()
    with bars() as advance:
        plan = run(recipe, out=out, force=force, allow_pickle=allow_pickle, progress=advance)
    for line in summary(plan):
        say(line)
    print(f"wrote {out}{', which replaces the merge that was there' if replaced else ''}")


BESIDE = ("device", "data_dir", "drift")
"""Flags that a recipe leaves to the machine it is used on."""


def _recipe(experts: Sequence[str], flags: Mapping[str, Any]) -> Recipe:
    """The recipe in the one file given in place of experts, or the one that the flags make.

    Flags may stand beside a file where it cannot say the same: a configuration of mergekit's says
    models and a method and nothing else.
    """
    from harness.merging.recipes import Recipe, recipe_and_fields
    from harness.values import validated

    given = {name: value for name, value in flags.items() if value is not None}
    if len(experts) > 1 or Path(experts[0]).suffix not in (".yaml", ".yml", ".json"):
        return validated(Recipe, {"experts": experts, **given}, "merge")
    recipe, says = recipe_and_fields(experts[0])
    if both := [name for name in given if name not in BESIDE and name in says]:
        flag = both[0].replace("_", "-")
        raise BadRecipe(
            f"--{flag} and the recipe {experts[0]} both say what to merge; "
            "expected one of them: write it into the recipe"
        )
    return validated(Recipe, {**dict(recipe), **given}, "merge")
