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


def _matches(merge: MergerAxis, entry: Mapping[str, str], group: ExpertSet) -> bool:
    """Whether a merge of a set matches all fields of an entry of `exclude`.

    Raises BadRecipe for an unknown field.
    """
    names = {
        "base": (group.base, leaf(group.base)),
        "set": (group.name, leaf(group.name)),
        "merger": (str(merge.merger), merge.merger.name),
        "premerge": _stage_names(merge.premerge),
        "postmerge": _stage_names(merge.postmerge),
    }
    if bad := entry.keys() - names.keys():
        raise BadRecipe(f"exclude has the field '{min(bad)}'; expected some of {', '.join(names)}")
    return all(value in names[key] for key, value in entry.items())


def _stage_names(stages: Sequence[Choice] | None) -> tuple[str, ...]:
    """The names of stages, with options and without; `none` for no stage."""
    return tuple(name for stage in stages or () for name in (str(stage), stage.name)) or (NONE,)


def steps_of(study: Study, folder: Path, data_dir: str | None = None) -> list[Step]:
    """All steps of a study whose folder is `folder`, each after those that it needs.

    Raises BadRecipe for values that fit no recipe or run, for two different steps of one name, if
    `exclude` leaves no merge, and for a field of `merge` that no merge uses.
    """
    by_name: dict[str, Step] = {}
    for step in _steps(study, folder, data_dir):
        step = replace(step, request=_with_relative_paths(folder, step.request))
        first = by_name.setdefault(step.name, step)
        if first.digest != step.digest:
            change = difference(first.request, step.request)
            raise study.fault(
                f"two different steps have the name {step.name}, with {change}; expected one step "
                "of each name"
            )
    if study.mergers is not None and not any(step.verb == "merge" for step in by_name.values()):
        raise study.fault("mergers and exclude leave no merge; expected one at least")
    merges = [step.request for step in by_name.values() if step.verb == "merge"]
    for name, value in study.merge.items():
        used = any(name in request for request in merges) or value == _default(name)
        if merges and not used:
            raise study.fault(f"merge: no merge uses {name}; leave it out")
    return list(by_name.values())


def _with_relative_paths(folder: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """A request whose full paths are made relative to the study's folder."""

    def placed(value: Any) -> Any:
        if isinstance(value, list):
            return [placed(item) for item in value]
        return relative(value, folder) if isinstance(value, str) else value

    return {name: placed(value) for name, value in request.items()}


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first field in which two requests differ, with both values, as text."""
    keys = (key for key in (*one, *other) if one.get(key) != other.get(key))
    return next((f"{key} {one.get(key)} and {other.get(key)}" for key in keys), "the same")


def _steps(study: Study, folder: Path, data_dir: str | None) -> Iterator[Step]:
    """The steps set by set; one that several sets need comes with each of them."""
    mergers = study.mergers or ()
    _check_count(study, len(study.premerge) * len(study.postmerge) * len(mergers))
    axes = product(study.premerge, study.postmerge, mergers)
    merges = [_with_stages(merger, before, after) for before, after, merger in axes]
    merges += map(_with_stages, study.include)
    _warn_of_fewer_examples(merges, study.limited(study.merge, LIMIT).get(LIMIT))
    sets = [*sets_of(study, folder, data_dir)]
    bases = dict.fromkeys(group.base for group in sets)
    by_base = {base: _layered(study, merges, base, folder) for base in bases}
    _check_mergers(study, [*merges, *(merge for pairs in by_base.values() for _, merge in pairs)])
    warn_of_left_out(study, sets, data_dir)
    for group in sets:
        if merges and len(group.members) < 2:
            found = f"{group.name} has {len(group.members)} expert"
            raise BadRecipe(f"{found}, expected more tasks or seeds (--seeds)")
        for expert in group.members:
            if expert.request:
                yield _training(expert.place, expert.request, [expert.task], data_dir)
        references = {
            name: dict(_references(study, group, study.references_of(reading), folder, data_dir))
            for name, reading in study.evaluations.items()
        }
        yield from (step for models in references.values() for step in models.values() if step)
        first: dict[str, str] = {}
        for axis, merge in by_base[group.base]:
            if any(_matches(form, rule, group) for rule in study.exclude for form in (axis, merge)):
                continue
            merging = _merge_step(study, group, merge, data_dir)
            statistics = [*_statistics(study, group, merge, data_dir)]
            yield from statistics
            yield replace(merging, needs=(*merging.needs, *(step.name for step in statistics)))
            for name, reading in study.evaluations.items():
                if reading.mergers and not (_names(axis) | _names(merge)) & {*reading.mergers}:
                    continue
                for step in evaluations(study, group, merging, name, references[name], data_dir):
                    # base, experts and references are scored once, with the first merge of a set
                    shared = step.name.replace(merging.name, group.name)
                    yield replace(step, after=(first[shared],)) if shared in first else step
                    first.setdefault(shared, step.name)


def _check_count(study: Study, merges: int) -> None:
    """Raise BadRecipe for more merges of a set than `MAX_COMBINATIONS`."""
    if merges > MAX_COMBINATIONS:
        raise study.fault(
            f"has {merges:,} merges of each set; expected {MAX_COMBINATIONS:,} at most"
        )


def _check_mergers(study: Study, merges: Sequence[MergerAxis]) -> None:
    """Raise BadRecipe if `score_on` names a merger that is none of the study's."""
    names = {name for merge in merges for name in _names(merge)}
    for board, reading in study.evaluations.items():
        if unknown := [name for name in reading.mergers if name not in names]:
            raise study.fault(
                f"score_on.{board} names the merger '{unknown[0]}', which the study does not have; "
                f"expected some of {', '.join(dict.fromkeys(map(_name, merges)))}"
            )


def _warn_of_fewer_examples(merges: Sequence[MergerAxis], limit: int | None) -> None:
    """Warn of methods whose option `examples` is above the limit."""
    chosen: list[tuple[Registry[Any], Choice]] = [(MERGERS, merge.merger) for merge in merges]
    for stage in ("premerge", "postmerge"):
        chosen += [(STAGES[stage], one) for merge in merges for one in getattr(merge, stage) or ()]
    pairs = [(registry[one.name], one) for registry, one in chosen if EXAMPLES in one.options]
    counts = {str(choice): resolved_options(entry, choice)[EXAMPLES] for entry, choice in pairs}
    if undercut := [name for name, count in counts.items() if limit and cast(int, count) > limit]:
        message = f"{limit} examples at most are shown to {few(undercut)}, which ask for more"
        warnings.warn(message, stacklevel=3)


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
    study: Study, group: ExpertSet, names: Sequence[str], folder: Path, data_dir: str | None
) -> Iterator[tuple[str, Step | None]]:
    """Folders of models that are scored beside every merge, each with the step that trains it, or
    None for a given model. `REFERENCES` other than `mtl` are made by no step."""
    for name in names:
        if name == "mtl":
            if not group.members[0].request:
                raise study.fault(
                    "the reference mtl is trained beside experts that the study trains, found "
                    "folders of experts; leave mtl out"
                )
            seed = group.members[0].seed
            place = f"experts/{group.name}-mtl"
            request = {"base": group.base, "tasks": list(group.tasks), "seed": seed}
            request |= study.limited(study.experts.finetune, "limit")
            yield place, _training(place, request, group.tasks, data_dir)
        elif name not in REFERENCES:
            yield relative(name, folder), None


# Merges ------------------------------------------------------------------------------------


def _with_stages(
    axis: MergerAxis, before: tuple[Choice, ...] = (), after: tuple[Choice, ...] = ()
) -> MergerAxis:
    """A merge with these stages before and after, unless it has stages of its own."""
    extra = {"premerge": before, "postmerge": after}
    return axis.but(**{name: stage for name, stage in extra.items() if getattr(axis, name) is None})


def _layered(
    study: Study, merges: Sequence[MergerAxis], base: str, folder: Path
) -> list[tuple[MergerAxis, MergerAxis]]:
    """Pairs of a merge as the study has it and one that it expands to: `layers=each` becomes
    `first:1`, `first:2` and so on up to the number of layers of the base."""
    pairs = []
    for merge in merges:
        stages = (merge.premerge or (), (merge.merger,), merge.postmerge or ())
        tuned = {name: one for name, one in merge.tune.items() if name.endswith(f".{OF_LAYERS}")}
        spread = [choice for choice in chain(*stages) if choice.options.get(OF_LAYERS) == EACH]
        if twice := [choice for choice in spread if f"{choice.name}.{OF_LAYERS}" in tuned]:
            raise study.fault(
                f"{twice[0]} has a merge for {EACH} layer, and layers are tuned as well; expected "
                "one of the two"
            )
        if not spread and EACH not in tuned.values():
            pairs.append((merge, merge))
            continue
        layers = [f"first:{number}" for number in range(1, _depth(study, base, folder) + 1)]
        every = {name: f"[{','.join(layers)}]" for name, one in tuned.items() if one == EACH}
        tune = {**merge.tune, **every}
        for before, (merger,), after in product(*(_with_each(stage, layers) for stage in stages)):
            variant = merge.but(merger=merger, premerge=before, postmerge=after, tune=tune)
            pairs.append((merge, variant))
    _check_count(study, len(pairs))
    return pairs


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
        [Choice(choice.name, {**choice.options, OF_LAYERS: layer}) for layer in layers]
        if choice.options.get(OF_LAYERS) == EACH
        else [choice]
        for choice in stage
    )
    return [*product(*spread)]


def _default(name: str) -> Any:
    """The default of a field of a recipe."""
    return Recipe.model_fields[name].get_default()


def _merge_step(study: Study, group: ExpertSet, merge: MergerAxis, data_dir: str | None) -> Step:
    """The step that makes a merge. Raises HarnessError for values that no recipe accepts."""
    if merge.on and not group.tasks and not group.says_no_task:
        raise study.fault(
            f"on is {merge.on}, and experts in folders say their tasks themselves; values are "
            f"chosen on the {HELD_OUT} of these: leave on out"
        )
    fields: dict[str, Any] = {
        "experts": [expert.place for expert in group.members],
        "base": group.base or None,
        "merger": merge.merger,
        "premerge": merge.premerge,
        "postmerge": merge.postmerge,
        "tune": next((f"{name}={values}" for name, values in merge.tune.items()), None),
        "tune_on": [f"{task}@{merge.on}" for task in group.tasks if merge.on],
        **study.merge,
    }
    fields = study.limited(fields, "tune_limit", LIMIT)
    recipe: Recipe = validated(Recipe, fields, f"{study.study}: merge")
    checked_recipe(recipe)
    option, tried = grid(recipe)
    # `merge` is for all merges: fields that this one has no use for get their default
    recipe = recipe.but(**{name: _default(name) for name in unused_fields(recipe)})
    if group.says_no_task and (tried or _needs_rows(recipe)):
        raise study.fault(
            f"{recipe.method} reads rows of the experts' tasks, and no folder of {group.name} says "
            "its task; leave it out, or name the tasks: merge: {tasks: [...]}"
        )
    for name in recipe.tune_on:
        unreported_split(name)
    return Step(
        f"merged/{group.name}/{_name(merge)}",
        "merge",
        recipe.model_dump(mode="json", exclude_defaults=True),
        needs=tuple(expert.place for expert in group.members if expert.request),
        base=group.base,
        about=f"{recipe.method} of {len(group.members)}" + f" by {option}" * bool(tried),
        size=_rows(recipe, group.tasks, max(len(tried), 1), data_dir),
    )


def _rows(
    recipe: Recipe, tasks: Sequence[str], candidates: int, data_dir: str | None
) -> float | None:
    """How many rows go through models for a merge; None where they cannot be counted.

    They are those that candidates are scored on and those that methods are shown, except for
    statistics that are computed before, by steps of their own.
    """
    methods = methods_of(recipe)
    scores = recipe.tune or any(
        need.rows == "shared" for entry, _ in methods for need in needs_of(entry)
    )
    splits = recipe.tune_on or [f"{task}@{HELD_OUT}" for task in tasks]
    limit = recipe.tune_limit
    scored = [rows_of(split, limit, data_dir) or limit for split in splits if scores]
    read = [pair for pair in methods if recipe.premerge or _reads(pair[0])]
    chosen = [with_examples_limit(resolved_options(*pair), recipe.examples_limit) for pair in read]
    examples = [cast(int, options[EXAMPLES]) for options in chosen if EXAMPLES in options]
    counted = [rows for rows in scored if rows is not None]
    if len(counted) < len(scored):
        return None
    return float(candidates * sum(counted) + len(recipe.experts) * sum(examples))


def _needs_rows(recipe: Recipe) -> bool:
    """Whether a method of a recipe reads rows at all."""
    return any(need.rows != "none" for entry, _ in methods_of(recipe) for need in needs_of(entry))


def _reads(entry: Method) -> bool:
    """Whether a method reads rows during the merge, beyond statistics of single experts."""
    return any(need.rows not in ("own", "none") for need in needs_of(entry))


def _statistics(
    study: Study, group: ExpertSet, merge: MergerAxis, data_dir: str | None
) -> Iterator[Step]:
    """The steps that compute a merger's statistic of each expert, once for all its merges.

    None if pre-merging methods change the experts: the statistic is then computed in the merge.
    """
    entry, preset = MERGERS[merge.merger.name], study.merge.get("preset")
    needs = [need for need in needs_of(entry) if need.rows == "own"]
    if merge.premerge or len(needs) != 1:
        return
    chosen = resolved_options(entry, faithful(merge.merger, preset))
    values = {name: chosen[name] for name in options(needs[0].function)}
    values = with_examples_limit(values, study.limited(study.merge, LIMIT).get(LIMIT))
    need = Choice(needs[0].name, unusual_of(needs[0].function, values))
    for expert in group.members:
        if not expert.request:
            continue
        request = {
            "expert": expert.place,
            "task": expert.task,
            "base": group.base,
            "need": str(need),
        }
        passed_on = ("dtype", "max_length", "heads_from", "other_tasks")
        request |= {name: study.merge[name] for name in passed_on if name in study.merge}
        name = f"statistics/{expert.place.partition('/')[2]}/{slug(str(need))}"
        examples = cast(int, values.get(EXAMPLES, 1))
        yield Step(
            name,
            "statistics",
            request,
            needs=(expert.place,),
            base=group.base,
            about=f"{need} {expert.task}",
            size=rows_of(f"{expert.task}@{TRAINED_ON}", examples, data_dir) or examples,
        )
