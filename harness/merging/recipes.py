"""What was asked of a merge: its recipe, as a value and as YAML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from harness.errors import BadRecipe
from harness.files import read_yaml
from harness.presets import PresetName
from harness.registry import MERGERS, POSTMERGE, PREMERGE, TASKS
from harness.types import Choice
from harness.values import Chosen, Frozen, validated

Heads = Literal["auto", "merge", "average", "keep"]


class Recipe(Frozen):
    """A merge: which checkpoints, by which methods, and what becomes of the heads.

    `drift`: whether experts are run on rows of their tasks to tell how far pre-merging methods move
    their logits.
    """

    experts: tuple[str, ...]
    base: str | None = None
    merger: Chosen = Choice("average")
    premerge: tuple[Chosen, ...] = ()
    postmerge: tuple[Chosen, ...] = ()
    heads: Heads = "auto"
    tasks: tuple[str, ...] = ()
    seed: int = 0
    statistics: tuple[str, ...] = ()
    tune: str | None = None
    tune_on: tuple[str, ...] = ()
    data_dir: str | None = None
    device: str = "auto"
    drift: bool = True
    preset: PresetName | None = None

    @property
    def method(self) -> str:
        """The method as the papers print it: `procrustes+dare[ties]+lines`."""
        return printed(self.premerge, self.merger, self.postmerge)


def printed(before: Sequence[Choice], merger: Choice, after: Sequence[Choice]) -> str:
    """The stages of a merge as the papers print them."""
    first = "+".join(map(str, before))
    return "+".join([f"{first}[{merger}]" if first else str(merger), *map(str, after)])


def read_recipe(path: str | Path) -> Recipe:
    """The recipe in a YAML (or JSON) file. Raises BadRecipe naming the file and the field."""
    return recipe_and_fields(path)[0]


def recipe_and_fields(path: str | Path) -> tuple[Recipe, frozenset[str]]:
    """The recipe in a file, and the fields that a file of its kind can say.

    Raises BadRecipe naming the file and the field. Names in it are registered ones: no file makes
    the harness import code.
    """
    values = read_yaml(Path(path), "a recipe: experts, merger, ...", error=BadRecipe)
    if values.keys() & {"merge_method", "slices", "modules"}:
        from harness.merging.mergekit.recipe import recipe_of

        return recipe_of(values, path), frozenset({"experts", "base", "merger"})
    recipe: Recipe = validated(Recipe, values, str(path))
    MERGERS.check_name(recipe.merger.name, str(path))
    for choice in recipe.premerge:
        PREMERGE.check_name(choice.name, str(path))
    for choice in recipe.postmerge:
        POSTMERGE.check_name(choice.name, str(path))
    for task in (*recipe.tasks, *recipe.tune_on):
        TASKS.check_name(task.partition("@")[0], str(path))
    return recipe, frozenset(Recipe.model_fields)
