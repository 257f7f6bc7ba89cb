"""What was asked: the recipe of a merge and the run of an evaluation, as values and as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    PositiveInt,
    ValidationError,
)

from harness.errors import BadRecipe
from harness.files import read_yaml
from harness.presets import PresetName
from harness.registry import MERGERS, PREMERGE, TASKS, parse_choice
from harness.types import Choice

Model = TypeVar("Model", bound="Frozen")
Heads = Literal["auto", "merge", "average", "keep"]


def _choice(value: object) -> object:
    """`"ties:density=0.2"` or `{name: ties, density: 0.2}` as a Choice."""
    if isinstance(value, str):
        return parse_choice(value)
    if isinstance(value, Mapping):
        if not isinstance(value.get("name"), str):
            raise ValueError("a method is written as NAME, NAME:key=value or {name: NAME, ...}")
        options = value.get("options", {k: v for k, v in value.items() if k != "name"})
        return Choice(value["name"], dict(options))
    return value


def _written(choice: Choice) -> dict[str, Any]:
    return {"name": choice.name, **choice.options}


Method = Annotated[Choice, BeforeValidator(_choice), PlainSerializer(_written)]


class Frozen(BaseModel):
    """A value that refuses unknown fields and never changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Recipe(Frozen):
    """A merge: which checkpoints, by which methods, and what becomes of the heads."""

    experts: tuple[str, ...]
    base: str | None = None
    merger: Method = Choice("average")
    premerge: tuple[Method, ...] = ()
    heads: Heads = "auto"
    tasks: tuple[str, ...] = ()
    seed: int = 0
    statistics: tuple[str, ...] = ()
    tune: str | None = None
    tune_on: tuple[str, ...] = ()
    data_dir: str | None = None
    device: str = "auto"
    preset: PresetName | None = None

    @property
    def method(self) -> str:
        """The method as the papers print it: `procrustes+dare[ties]`."""
        before = "+".join(map(str, self.premerge))
        return f"{before}[{self.merger}]" if before else str(self.merger)


class Run(Frozen):
    """An evaluation: which model, against which references, on which tasks, read how."""

    model: str
    experts: tuple[str, ...] = ()
    base: str | None = None
    references: tuple[str, ...] = ()
    best_single: bool = False
    singles: bool = False
    tasks: tuple[str, ...] = ()
    protocols: tuple[Method, ...] = ()
    metrics: tuple[str, ...] = ()
    preset: PresetName | None = None
    shots: tuple[int, ...] = (1, 5, 10)
    draws: int = 5
    seed: int = 0
    labels: Literal["by-name", "by-index"] = "by-name"
    limit: PositiveInt | None = None
    max_length: PositiveInt | None = None
    data_dir: str | None = None
    output: str = "records"
    batch_size: PositiveInt = 32
    device: str = "auto"
    allow_pickle: bool = False


def validated(kind: type[Model], values: Mapping[str, Any], where: str) -> Model:
    """A recipe or run of the values. Raises BadRecipe, naming the field, for what does not fit."""
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the whole"
        known = ", ".join(kind.model_fields)
        hint = f"; known: {known}" if first["type"] == "extra_forbidden" else ""
        raise BadRecipe(f"{where}: {field}: {first['msg']}{hint}") from error


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
    for task in (*recipe.tasks, *recipe.tune_on):
        TASKS.check_name(task.partition("@")[0], str(path))
    return recipe, frozenset(Recipe.model_fields)
