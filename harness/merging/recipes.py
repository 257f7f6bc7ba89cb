"""The recipe of a merge, as a value and as YAML."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from harness.entries import Method
from harness.errors import BadRecipe
from harness.files import read_yaml
from harness.methods import needs_of
from harness.options import options
from harness.passes.placement import CPU, FULL_PRECISION, DType, Placement
from harness.presets import PresetName
from harness.registry import STAGES, TASKS, YAML, Registry
from harness.types import AUTO, Choice, Scalar
from harness.values import Chosen, PositiveWhole, Request, Tokens, Whole, validated

EXAMPLES, LIMIT = "examples", "examples_limit"
"""The option of a need for how many rows of an expert it reads, and the field of a recipe that
limits this number."""
Heads = Literal["auto", "merge", "average", "keep", "none"]


class Recipe(Request):
    """A merge: which checkpoints, by which methods, and what is done with the heads.

    `drift`: whether experts are run on rows of their tasks to measure how far pre-merging methods
    move their logits. `heads_from`: a folder of heads for experts that have none, as
    `harness heads` writes them. `max_length`: tokens of a row, by default the task's. `other_base`
    and `other_tasks` accept a base, or tasks, other than those that experts record. `tune_limit`:
    candidates are scored on at most that many rows of each split. `examples_limit`: no need reads
    more rows of an expert, whatever its option `examples` says. Models run on `device`, and methods
    compute on `merge_device`.
    """

    experts: tuple[str, ...]
    base: str | None = None
    merger: Chosen = Choice("average")
    premerge: tuple[Chosen, ...] = ()
    postmerge: tuple[Chosen, ...] = ()
    heads: Heads = "auto"
    heads_from: str | None = None
    tasks: tuple[str, ...] = ()
    seed: Whole = 0
    statistics: tuple[str, ...] = ()
    tune: str | None = None
    tune_on: tuple[str, ...] = ()
    tune_limit: PositiveWhole | None = None
    examples_limit: PositiveWhole | None = None
    data_dir: str | None = None
    device: str = AUTO
    dtype: DType = FULL_PRECISION
    merge_device: str = CPU.device
    drift: bool = True
    other_base: bool = False
    other_tasks: bool = False
    preset: PresetName | None = None
    max_length: Tokens | None = None

    @property
    def placement(self) -> Placement:
        """Where models run."""
        return Placement(device=self.device, dtype=self.dtype)

    @property
    def arithmetic(self) -> Placement:
        """Where methods compute."""
        return Placement(device=self.merge_device)

    @property
    def method(self) -> str:
        """The method as the papers print it: `procrustes+dare[ties]+lines`."""
        first = "+".join(map(str, self.premerge))
        merger = f"{first}[{self.merger}]" if first else str(self.merger)
        return "+".join([merger, *map(str, self.postmerge)])


def _choices(recipe: Recipe) -> list[tuple[Registry[Any], Choice]]:
    """The choices of all stages in order, each with the registry that its name is in."""
    chosen = {"premerge": recipe.premerge, "merger": [recipe.merger], "postmerge": recipe.postmerge}
    return [(STAGES[stage], choice) for stage, choices in chosen.items() for choice in choices]


def methods_of(recipe: Recipe) -> list[tuple[Method, Choice]]:
    """The methods of all stages in order, each with its choice of options."""
    return [(registry[choice.name], choice) for registry, choice in _choices(recipe)]


def unused_fields(recipe: Recipe) -> dict[str, str]:
    """The fields that are set although no stage uses them, each with the reason."""
    needs = [need for entry, _ in methods_of(recipe) for need in needs_of(entry)]
    rows = {need.rows for need in needs}
    unused: dict[str, str] = {}
    if recipe.tune is None and "shared" not in rows:
        given = [name for name in ("tune_on", "tune_limit") if getattr(recipe, name)]
        unused = dict.fromkeys(given, "no option is tuned, and no merge is scored")
    if recipe.examples_limit and not any(EXAMPLES in options(need.function) for need in needs):
        unused[LIMIT] = "it reads no examples"
    if recipe.placement.recorded and recipe.tune is None and rows <= {"none"}:
        unused["dtype"] = "it runs no model"
    return unused


def with_examples_limit(chosen: Mapping[str, Scalar], limit: int | None) -> dict[str, Scalar]:
    """All options of a need, with at most `limit` examples."""
    if limit and EXAMPLES in chosen:
        return {**chosen, EXAMPLES: min(cast(int, chosen[EXAMPLES]), limit)}
    return dict(chosen)


def with_choices(recipe: Recipe, fn: Callable[[Method, Choice], Choice]) -> Recipe:
    """The recipe with the choice of every stage replaced by what `fn` makes of it."""
    first, choices = len(recipe.premerge), tuple(fn(*method) for method in methods_of(recipe))
    after = choices[first + 1 :]
    return recipe.but(premerge=choices[:first], merger=choices[first], postmerge=after)


def recipe_and_fields(path: str | Path) -> tuple[Recipe, frozenset[str]]:
    """The recipe in a YAML (or JSON) file, its paths relative to the file's folder, and the fields
    that such a file can set.

    Raises BadRecipe naming the file and the field. Names in it must be registered: no file makes
    the harness import code.
    """
    values = read_yaml(Path(path), "a recipe: experts, merger, ...", error=BadRecipe)
    if values.keys() & {"merge_method", "slices", "modules"}:
        from harness.merging.mergekit.recipe import recipe_of

        return recipe_of(values, path), frozenset({"experts", "base", "merger"})
    recipe: Recipe = validated(Recipe, values, str(path))
    for registry, choice in _choices(recipe):
        registry.check_name(choice.name, str(path))
    for task in (*recipe.tasks, *recipe.tune_on):
        TASKS.check_name(task.partition("@")[0], str(path))
    return _from_its_place(recipe, Path(path)), frozenset(Recipe.model_fields)


# Paths -------------------------------------------------------------------------------------


def _from_its_place(recipe: Recipe, file: Path) -> Recipe:
    """The recipe of a file with its paths relative to the file's folder, not the working directory.

    Models may be Hub ids as well. Raises BadRecipe for one that exists only from the working
    directory.
    """

    def placed(path: str) -> str:
        return str(file.parent / path)

    def model(source: str) -> str:
        beside = placed(source)
        if os.path.exists(beside):
            return beside
        if os.path.exists(source):
            relative = os.path.relpath(source, file.parent)
            raise BadRecipe(f"{file} names {source}, expected its path from the recipe: {relative}")
        return os.path.join(file.parent, source) if source.startswith(".") else source

    def task(name: str) -> str:
        return placed(name) if name.partition("@")[0].endswith(YAML) else name

    return recipe.but(
        experts=tuple(map(model, recipe.experts)),
        base=None if recipe.base is None else model(recipe.base),
        tasks=tuple(map(task, recipe.tasks)),
        tune_on=tuple(map(task, recipe.tune_on)),
        statistics=tuple(map(placed, recipe.statistics)),
        heads_from=None if recipe.heads_from is None else placed(recipe.heads_from),
        data_dir=None if recipe.data_dir is None else placed(recipe.data_dir),
    )
