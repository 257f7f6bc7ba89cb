"""A study -> its steps: every expert, statistic, merge and evaluation that it takes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any, cast

from harness.checkpoints.open import open_checkpoint, opened_config
from harness.data.splits import parse_task
from harness.entries import Method
from harness.errors import BadRecipe
from harness.evaluation.task_split import unusual_of
from harness.merging.checked import checked_recipe
from harness.merging.recipes import (
    EXAMPLES,
    LIMIT,
    Recipe,
    methods_of,
    unused_fields,
    with_examples_limit,
)
from harness.merging.stages import unreported_split
from harness.merging.tune import grid
from harness.methods import needs_of, resolved_options
from harness.options import options
from harness.presets import faithful
from harness.registry import MERGERS, STAGES, Registry
from harness.studies.evaluations import evaluations, warn_of_left_out
from harness.studies.experts import ExpertSet, leaf, relative, sets_of, slug
from harness.studies.inputs import layers_of, place_of, rows_of
from harness.studies.step import Step
from harness.studies.study import (
    EACH,
    MAX_COMBINATIONS,
    NONE,
    OF_LAYERS,
    REFERENCES,
    MergerAxis,
    Study,
)
from harness.text import few
from harness.types import HELD_OUT, TRAINED_ON, Choice
from harness.values import validated


def _name(merge: MergerAxis) -> str:
    """The folder name of a merge: its stages with options, and what is tuned."""
    tuned = [f"tuned-{name}" + (f"-{merge.on}" if merge.on else "") for name in merge.tune]
    stages = (*(merge.premerge or ()), merge.merger, *(merge.postmerge or ()), *tuned)
    return slug("-".join(map(str, stages)))


def _names(merge: MergerAxis) -> set[str]:
    """Names by which `score_on` may select a merge: its merger, with options or not, or folder."""
    return {merge.merger.name, str(merge.merger), _name(merge)}


def _matches(merge: MergerAxis, said: Mapping[str, str], one: ExpertSet) -> bool:
    """Whether a merge of a set matches all fields of an entry of `exclude`.

    Raises BadRecipe for an unknown field.
    """
    known = {
        "base": (one.base, leaf(one.base)),
        "set": (one.name, leaf(one.name)),
        "merger": (str(merge.merger), merge.merger.name),
        "premerge": _stage_names(merge.premerge),
        "postmerge": _stage_names(merge.postmerge),
    }
    if odd := said.keys() - known.keys():
        raise BadRecipe(f"exclude has the field '{min(odd)}'; expected some of {', '.join(known)}")
    return all(value in known[key] for key, value in said.items())


def _stage_names(stages: Sequence[Choice] | None) -> tuple[str, ...]:
    """The names of stages, with options and without; `none` for no stage."""
    return tuple(name for one in stages or () for name in (str(one), one.name)) or (NONE,)


def steps_of(study: Study, folder: Path, data_dir: str | None = None) -> list[Step]:
    """All steps of a study whose folder is `folder`, each after those that it needs.

    Raises BadRecipe for values that fit no recipe or run, for two different steps of one name, if
    `exclude` leaves no merge, and for a field of `merge` that no merge uses.
    """
    made: dict[str, Step] = {}
    for step in _steps(study, folder, data_dir):
        step = replace(step, request=_with_relative_paths(folder, step.request))
        known = made.setdefault(step.name, step)
        if known.digest != step.digest:
            apart = difference(known.request, step.request)
            raise study.fault(
                f"two different steps have the name {step.name}, with {apart}; expected one step "
                "of each name"
            )
    if study.mergers is not None and not any(step.verb == "merge" for step in made.values()):
        raise study.fault("mergers and exclude leave no merge; expected one at least")
    merges = [step.request for step in made.values() if step.verb == "merge"]
    for name, value in study.merge.items():
        used = any(name in request for request in merges) or value == _default(name)
        if merges and not used:
            raise study.fault(f"merge: no merge uses {name}; leave it out")
    return list(made.values())


def _with_relative_paths(folder: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """A request whose full paths are made relative to the study's folder."""

    def placed(value: Any) -> Any:
        if isinstance(value, list):
            return [placed(one) for one in value]
        return relative(value, folder) if isinstance(value, str) else value

    return {name: placed(value) for name, value in request.items()}


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first field in which two requests differ, with both values, as text."""
    keys = (key for key in (*one, *other) if one.get(key) != other.get(key))
    return next((f"{key} {one.get(key)} and {other.get(key)}" for key in keys), "the same")


def _steps(study: Study, folder: Path, data_dir: str | None) -> Iterator[Step]:
    """The steps set by set; one that several sets need comes with each of them."""
    known = len(study.premerge) * len(study.postmerge) * len(study.mergers or ())
    if known > MAX_COMBINATIONS:
        raise study.fault(
            f"has {known:,} merges of each set; expected {MAX_COMBINATIONS:,} at most"
        )
    axes = [*product(study.premerge, study.postmerge)]
    merges = [_with_stages(axis, *stages) for stages in axes for axis in study.mergers or ()]
    merges += map(_with_stages, study.include)
    _warn_of_fewer_examples(merges, study.limited(study.merge, LIMIT).get(LIMIT))
    sets = [*sets_of(study, folder, data_dir)]
    bases = dict.fromkeys(one.base for one in sets)
    of_base = {base: _layered(study, merges, base, folder) for base in bases}
    _check_mergers(study, [*merges, *(one for pairs in of_base.values() for _, one in pairs)])
    warn_of_left_out(study, sets, data_dir)
    for one in sets:
        if merges and len(one.members) < 2:
            found = f"{one.name} has {len(one.members)} expert"
            raise BadRecipe(f"{found}, expected more tasks or seeds (--seeds)")
        for expert in one.members:
            if expert.request:
                yield _training(expert.place, expert.request, [expert.task], data_dir)
        beside = {
            name: dict(_references(study, one, study.references_of(reading), folder, data_dir))
            for name, reading in study.evaluations.items()
        }
        yield from (step for models in beside.values() for step in models.values() if step)
        first: dict[str, str] = {}
        for asked, merge in of_base[one.base]:
            if any(_matches(of, said, one) for said in study.exclude for of in (asked, merge)):
                continue
            merging = _merge_step(study, one, merge, data_dir)
            statistics = [*_statistics(study, one, merge, data_dir)]
            yield from statistics
            yield replace(merging, needs=(*merging.needs, *(step.name for step in statistics)))
            for name, reading in study.evaluations.items():
                if reading.mergers and not (_names(asked) | _names(merge)) & {*reading.mergers}:
                    continue
                for step in evaluations(study, one, merging, name, beside[name], data_dir):
                    # base, experts and references are scored once, with the first merge of a set
                    shared = step.name.replace(merging.name, one.name)
                    yield replace(step, after=(first[shared],)) if shared in first else step
                    first.setdefault(shared, step.name)


def _check_mergers(study: Study, merges: Sequence[MergerAxis]) -> None:
    """Raise BadRecipe if `score_on` names a merger that is none of the study's."""
    known = {name for merge in merges for name in _names(merge)}
    for board, reading in study.evaluations.items():
        if odd := [name for name in reading.mergers if name not in known]:
            raise study.fault(
                f"score_on.{board} names the merger '{odd[0]}', which the study does not have; "
                f"expected some of {', '.join(dict.fromkeys(map(_name, merges)))}"
            )


def _warn_of_fewer_examples(merges: Sequence[MergerAxis], limit: int | None) -> None:
    """Warn of methods whose option `examples` is above the limit."""
    chosen: list[tuple[Registry[Any], Choice]] = [(MERGERS, merge.merger) for merge in merges]
    for stage in ("premerge", "postmerge"):
        chosen += [(STAGES[stage], one) for of in merges for one in getattr(of, stage) or ()]
    said = [(registry[one.name], one) for registry, one in chosen if EXAMPLES in one.options]
    shown = {str(one): resolved_options(entry, one)[EXAMPLES] for entry, one in said}
    if undercut := [name for name, count in shown.items() if limit and cast(int, count) > limit]:
        told = f"{limit} examples at most are shown to {few(undercut)}, which ask for more"
        warnings.warn(told, stacklevel=3)


# Training ----------------------------------------------------------------------------------


def _training(
    place: str, request: Mapping[str, Any], tasks: Sequence[str], data_dir: str | None
) -> Step:
    """The step that trains an expert: its size is rows times epochs."""
    size: float | None = 0.0
    for task in tasks:
        epochs = float(request.get("epochs") or parse_task(task)[0].finetune.epochs)
        rows = rows_of(f"{task}@{TRAINED_ON}", request.get("limit"), data_dir)
        size = None if size is None or rows is None else size + epochs * rows
    return Step(place, "finetune", request, base=request["base"], about=",".join(tasks), size=size)


def _references(
    study: Study, one: ExpertSet, names: Sequence[str], folder: Path, data_dir: str | None
) -> Iterator[tuple[str, Step | None]]:
    """Folders of models that are scored beside every merge, each with the step that trains it, or
    None for a given model. `REFERENCES` other than `mtl` are made by no step."""
    for name in names:
        if name == "mtl":
            if not one.members[0].request:
                raise study.fault(
                    "the reference mtl is trained beside experts that the study trains, found "
                    "folders of experts; leave mtl out"
                )
            seed = one.members[0].seed
            place = f"experts/{one.name}-mtl"
            request = {"base": one.base, "tasks": list(one.tasks), "seed": seed}
            request |= study.limited(study.experts.finetune, "limit")
            yield place, _training(place, request, one.tasks, data_dir)
        elif name not in REFERENCES:
            yield relative(name, folder), None


# Merges ------------------------------------------------------------------------------------


def _with_stages(
    axis: MergerAxis, before: tuple[Choice, ...] = (), after: tuple[Choice, ...] = ()
) -> MergerAxis:
    """A merge with these stages before and after, unless it has stages of its own."""
    made = {"premerge": before, "postmerge": after}
    return axis.but(**{name: of for name, of in made.items() if getattr(axis, name) is None})


def _layered(
    study: Study, merges: Sequence[MergerAxis], base: str, folder: Path
) -> list[tuple[MergerAxis, MergerAxis]]:
    """Pairs of a merge as the study has it and one that it expands to: `layers=each` becomes
    `first:1`, `first:2` and so on up to the number of layers of the base."""
    made = []
    for merge in merges:
        stages = (merge.premerge or (), (merge.merger,), merge.postmerge or ())
        tuned = {name for name, of in merge.tune.items() if name.endswith(f".{OF_LAYERS}")}
        spread = [one for one in chain(*stages) if one.options.get(OF_LAYERS) == EACH]
        if both := [one for one in spread if f"{one.name}.{OF_LAYERS}" in tuned]:
            raise study.fault(
                f"{both[0]} has a merge for {EACH} layer, and layers are tuned as well; expected "
                "one of the two"
            )
        if not spread and EACH not in (merge.tune[name] for name in tuned):
            made.append((merge, merge))
            continue
        first = [f"first:{number}" for number in range(1, _depth(study, base, folder) + 1)]
        tried = f"[{','.join(first)}]"
        tune = {name: tried if of == EACH else of for name, of in merge.tune.items()}
        for before, (merger,), after in product(*(_with_each(one, first) for one in stages)):
            one = merge.but(merger=merger, premerge=before, postmerge=after, tune=tune)
            made.append((merge, one))
    if len(made) > MAX_COMBINATIONS:
        raise study.fault(
            f"has {len(made):,} merges of each set; expected {MAX_COMBINATIONS:,} at most"
        )
    return made


def _depth(study: Study, base: str, folder: Path) -> int:
    """How many layers a base has. It is fetched if need be. Raises BadRecipe for several stacks."""
    place = place_of(base, folder)
    count = layers_of(opened_config(place) or open_checkpoint(place)) if base else None
    if count is None:
        found = f"the base {base}" if base else "no base"
        raise study.fault(
            f"{OF_LAYERS}={EACH} is given with {found}; expected a base with one stack of layers"
        )
    return count


def _with_each(stage: Sequence[Choice], layers: Sequence[str]) -> list[tuple[Choice, ...]]:
    """All variants of a stage: methods with `layers=each` get every one of these layers."""
    spread = (
        [Choice(one.name, {**one.options, OF_LAYERS: of}) for of in layers]
        if one.options.get(OF_LAYERS) == EACH
        else [one]
        for one in stage
    )
    return [*product(*spread)]


def _default(name: str) -> Any:
    """The default of a field of a recipe."""
    return Recipe.model_fields[name].get_default()


def _merge_step(study: Study, one: ExpertSet, merge: MergerAxis, data_dir: str | None) -> Step:
    """The step that makes a merge. Raises HarnessError for values that no recipe accepts."""
    tuned: dict[str, Any] = {}
    for name, values in merge.tune.items():
        tuned = {"tune": f"{name}={values}"}
        if merge.on and not one.tasks:
            raise study.fault(
                f"on is {merge.on}, and experts in folders say their tasks themselves; values are "
                f"chosen on the {HELD_OUT} of these: leave on out"
            )
        if merge.on:
            tuned["tune_on"] = [f"{task}@{merge.on}" for task in one.tasks]
    said: dict[str, Any] = {
        "experts": [expert.place for expert in one.members],
        **({"base": one.base} if one.base else {}),
        "merger": merge.merger,
        "premerge": merge.premerge,
        "postmerge": merge.postmerge,
        **tuned,
        **study.merge,
    }
    said = study.limited(said, "tune_limit", LIMIT)
    recipe: Recipe = validated(Recipe, said, f"{study.study}: merge")
    checked_recipe(recipe)
    option, tried = grid(recipe)
    # `merge` is for all merges: fields that this one has no use for get their default
    recipe = recipe.but(**{name: _default(name) for name in unused_fields(recipe)})
    for name in recipe.tune_on:
        unreported_split(name)
    return Step(
        f"merged/{one.name}/{_name(merge)}",
        "merge",
        recipe.model_dump(mode="json", exclude_defaults=True),
        needs=tuple(expert.place for expert in one.members if expert.request),
        base=one.base,
        about=f"{recipe.method} of {len(one.members)}" + f" by {option}" * bool(tried),
        size=_rows(recipe, one.tasks, max(len(tried), 1), data_dir),
    )


def _rows(
    recipe: Recipe, tasks: Sequence[str], candidates: int, data_dir: str | None
) -> float | None:
    """How many rows go through models for a merge; None where they cannot be counted.

    They are those that candidates are scored on and those that methods are shown, except for
    statistics that are computed before, by steps of their own.
    """
    methods = methods_of(recipe)
    scores = recipe.tune or any(one.rows == "shared" for of, _ in methods for one in needs_of(of))
    splits = recipe.tune_on or [f"{task}@{HELD_OUT}" for task in tasks]
    limit = recipe.tune_limit
    scored = [rows_of(one, limit, data_dir) or limit for one in splits if scores]
    read = [one for one in methods if recipe.premerge or _reads(one[0])]
    chosen = [with_examples_limit(resolved_options(*one), recipe.examples_limit) for one in read]
    shown = [cast(int, options[EXAMPLES]) for options in chosen if EXAMPLES in options]
    counted = [one for one in scored if one is not None]
    if len(counted) < len(scored):
        return None
    return float(candidates * sum(counted) + len(recipe.experts) * sum(shown))


def _reads(entry: Method) -> bool:
    """Whether a method reads rows during the merge, beyond statistics of single experts."""
    return any(need.rows not in ("own", "none") for need in needs_of(entry))


def _statistics(
    study: Study, one: ExpertSet, merge: MergerAxis, data_dir: str | None
) -> Iterator[Step]:
    """The steps that compute a merger's statistic of each expert, once for all its merges.

    None if pre-merging methods change the experts: the statistic is then computed in the merge.
    """
    entry, preset = MERGERS[merge.merger.name], study.merge.get("preset")
    asked = [need for need in needs_of(entry) if need.rows == "own"]
    if merge.premerge or len(asked) != 1:
        return
    chosen = resolved_options(entry, faithful(merge.merger, preset))
    given = {name: chosen[name] for name in options(asked[0].function)}
    given = with_examples_limit(given, study.limited(study.merge, LIMIT).get(LIMIT))
    need = Choice(asked[0].name, unusual_of(asked[0].function, given))
    for expert in one.members:
        if not expert.request:
            continue
        request = {"expert": expert.place, "task": expert.task, "base": one.base, "need": str(need)}
        passed_on = ("dtype", "max_length", "heads_from", "other_tasks")
        request |= {name: study.merge[name] for name in passed_on if name in study.merge}
        name = f"statistics/{expert.place.partition('/')[2]}/{slug(str(need))}"
        known = cast(int, given.get(EXAMPLES, 1))
        yield Step(
            name,
            "statistics",
            request,
            needs=(expert.place,),
            base=one.base,
            about=f"{need} {expert.task}",
            size=rows_of(f"{expert.task}@{TRAINED_ON}", known, data_dir) or known,
        )
