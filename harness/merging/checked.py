"""A recipe with every option filled in, and the checks of it that read no weights."""

from __future__ import annotations

from itertools import count

from harness.checkpoints.families.family import Family
from harness.checkpoints.families.known import FAMILIES
from harness.entries import Method
from harness.errors import BadOption, BadRecipe
from harness.merging.recipes import Recipe, methods_of, with_choices
from harness.methods import reads_base, reads_norms, resolved_options
from harness.options import options
from harness.presets import faithful
from harness.types import Choice


def checked_recipe(recipe: Recipe) -> Recipe:
    """The recipe with all options filled in, after the checks that need no file."""
    recipe = _filled(recipe)
    if not recipe.experts:
        raise BadRecipe("no experts to merge; expected at least one folder or Hub id")
    for entry, choice in methods_of(recipe) if recipe.base is None else ():
        if reads_base(entry, choice.options):
            raise BadRecipe(
                f"{_without_defaults(entry, choice)} reads the base, and none is given; name it "
                "with --base"
            )
    return recipe


def check_family(recipe: Recipe, family: Family) -> None:
    """Raise BadOption for a method that, with its options, does not work on this family."""
    for entry, choice in methods_of(recipe):
        if reads_norms(entry, choice.options) and not family.readers:
            suitable = ", ".join(one.name for one in FAMILIES if one.readers)
            raise BadOption(
                f"{_without_defaults(entry, choice)} works only on {suitable}, whose norms all "
                f"come before layers that can absorb them, found {family.name}; expected such "
                "models, or other options"
            )


def _filled(recipe: Recipe) -> Recipe:
    """The recipe with every option filled in. A method that draws numbers gets the recipe's seed,
    its next occurrence the next seed: else two stages of `dare` would drop the same entries."""
    seeded = [(entry, choice) for entry, choice in methods_of(recipe) if "seed" in choice.options]
    used = {(choice.name, resolved_options(entry, choice)["seed"]) for entry, choice in seeded}

    def filled(entry: Method, choice: Choice) -> Choice:
        chosen = resolved_options(entry, faithful(choice, recipe.preset))
        if "seed" in chosen and "seed" not in choice.options:
            own = "seed" in options(entry.function)  # else the seed only draws a need's rows
            free = (seed for seed in count(recipe.seed) if (choice.name, seed) not in used)
            chosen["seed"] = next(free) if own else recipe.seed
            used.add((choice.name, chosen["seed"]))
        return Choice(choice.name, chosen)

    return with_choices(recipe, filled)


def short_method(recipe: Recipe) -> str:
    """The method as the papers print it, `dare[ties]+lines`, with options that are not defaults."""
    return with_choices(recipe, _without_defaults).method


def _without_defaults(entry: Method, choice: Choice) -> Choice:
    default = resolved_options(entry, Choice(choice.name))
    changed = {k: v for k, v in choice.options.items() if v != default.get(k) and k != "seed"}
    return Choice(choice.name, changed)
