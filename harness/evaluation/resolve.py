"""Shell: what `evaluate --model` names -> a model, its references and its tasks.

Models are opened first, then the tasks are found, then the heads.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from harness.checkpoints.align import in_all, whole_base
from harness.checkpoints.bases import check_bases
from harness.checkpoints.heads import kept_heads
from harness.checkpoints.ingredients import Ingredients, Sources, open_ingredients
from harness.checkpoints.layout import EXPERT_LAYOUT, MERGE_LAYOUT, MERGEKIT_FILE
from harness.checkpoints.mergekit import named_models
from harness.checkpoints.provenance import (
    EXPERT_FILE,
    MergeJson,
    check_weights_unchanged,
    read_merge_json,
    records_in,
    rows_shown,
)
from harness.checkpoints.recorded_tasks import register_tasks
from harness.checkpoints.text_heads import read_heads, with_missing_parts, with_processor
from harness.checkpoints.verbalizer import verbalizer_of
from harness.code import code_of_plugins
from harness.data.apart import among, texts_digest
from harness.data.claims import called_in, tell_of_other_rows
from harness.data.groups import expanded
from harness.data.splits import parse_task
from harness.errors import BadRecipe, MissingHead
from harness.evaluation.evaluated import OpenedModel, recipe_of
from harness.evaluation.records import Role
from harness.evaluation.run import Run
from harness.functions import is_ours
from harness.methods import code_of_methods
from harness.registry import NEEDS, STAGES
from harness.types import Checkpoint, Task


def resolve_model(run: Run) -> OpenedModel:
    """The model with its experts and base, as given or as its folder names them, all opened.

    Its references and its tasks are found as well.
    """
    sources = Sources(run.experts, run.base, run.other_base, run.allow_pickle)
    made_of = open_ingredients(run.model, sources)
    experts, base, merged = made_of.experts, made_of.base, made_of.merged
    checkpoint = with_processor(made_of.model, base)
    references = [with_processor(sources.open(source), base) for source in run.references]
    for opened in (*made_of.unverified, *references):
        check_weights_unchanged(opened)
    _tell_of_edited([checkpoint, *experts, *references])
    _tell_of_other_code(checkpoint.source, merged)
    if base is not None and not (run.other_base or (merged and merged.other_base)):
        check_bases([*experts, checkpoint], base)
    register_tasks(run.tasks, [checkpoint], [*experts, *references])

    splits = _splits(run, checkpoint, merged)
    tasks = [*{task.name: task for task, _ in splits}.values()]
    expert_tasks = _expert_tasks(run, tasks, made_of)
    for trained, task in product((checkpoint, *experts, *references), tasks):
        tell_of_other_rows(trained, task, run.data_dir)

    heads = read_heads(run.heads_from, base)
    bare = _under_heads(_model(checkpoint, alone=not run.experts), base, tasks, heads)
    # an expert may lie here without its head, which the merge has then
    labelled = {task.name: checkpoint for task in tasks if checkpoint.labels is not None}
    all_heads = {**labelled, **heads, **bare.kept}
    pairs = zip(experts, expert_tasks, strict=True)
    experts = tuple(with_missing_parts(expert, base, task, all_heads) for expert, task in pairs)
    base = whole_base(base, in_all([*bare.kept.values()] or experts or [checkpoint]))
    models = (_under_heads(_model(reference), base, tasks, heads) for reference in references)
    reference_models = tuple(replace(reference, role="reference") for reference in models)

    renamed = {old: new for old, new in zip(made_of.tasks, expert_tasks, strict=False) if old}
    model = replace(
        bare,
        kept={renamed.get(name, name): encoder for name, encoder in bare.kept.items()},
        base=base,
        experts=experts,
        expert_tasks=expert_tasks,
        tasks=tuple(f"{task.name}@{split}" for task, split in splits),
        references=reference_models,
    )
    _check_references(model, tasks)
    return model


def _tell_of_edited(models: Sequence[Checkpoint]) -> None:
    """Warn of models whose merge.json or expert.json was edited: it is believed all the same."""
    for path in dict.fromkeys(model.path for model in models):
        for layout in (MERGE_LAYOUT, EXPERT_LAYOUT):
            if layout.is_edited(path):
                warnings.warn(
                    f"{path / layout.marker} was edited since it was written: what it says of rows "
                    "and methods is believed, and may be wrong",
                    stacklevel=3,
                )


def _tell_of_other_code(source: str, merged: MergeJson | None) -> None:
    """Warn of a merge by plug-ins whose code has changed since, or is not loaded."""
    if merged is None or not merged.code:
        return
    found = [(name, STAGES[stage].loaded(name)) for stage, name in merged.methods]
    methods = [method for _, method in found if method is not None]
    gone = [name for name, method in found if method is None]
    gone += [name for method in methods for name in method.needs if name not in NEEDS]
    if gone:
        entries = (entry for registry in STAGES.values() for entry in registry.values())
        if any(not is_ours(entry.function) for entry in entries):
            warnings.warn(
                f"{source} was made with '{gone[0]}', which no plug-in that is loaded has: its "
                "code may have changed since; load it with --plugins",
                stacklevel=3,
            )
        return
    # older merges have a hash without needs; `now` is '' if the methods are the harness's by now
    without = code_of_plugins([method.function for method in methods])
    now = code_of_methods(methods)
    if now and merged.code not in (without, now):
        warnings.warn(
            f"{source} was made before the code in the folder of its plug-in changed; merge "
            "again to use the present code",
            stacklevel=3,
        )


def _splits(run: Run, checkpoint: Checkpoint, merged: MergeJson | None) -> list[tuple[Task, str]]:
    """The tasks to evaluate with their splits: those of the run, else those the folder records.

    Raises BadRecipe if neither names any, and for rows that the model was tuned on.
    """
    names = expanded(run.tasks, run.data_dir) or checkpoint.tasks
    if not names:
        raise BadRecipe(f"{run.model} does not say its tasks; name them with --tasks")
    splits = [
        *{(task.name, split): (task, split) for task, split in map(parse_task, names)}.values()
    ]
    tuned_on = {name: merged.seen.get(name, "") for name in merged.scored_on} if merged else {}
    for task, split in splits:
        digest = partial(texts_digest, task, split, run.data_dir)
        if tuned := among(task, split, tuned_on, digest):
            what = "images" if task.image else "texts"
            same = "" if tuned.startswith(f"{task.name}@") else f", which has the same {what}"
            raise BadRecipe(
                f"{run.model} was tuned on {tuned}, rows of which are to be scored; expected "
                f"another split than {task}@{split}{same}"
            )
    return splits


def _expert_tasks(run: Run, tasks: Sequence[Task], made_of: Ingredients) -> tuple[str, ...]:
    """The task of each expert: as the merge recorded it, else as its own folder, else as the run.

    Of the recorded tasks, one that the run evaluates comes first. The run may name one task for
    all experts, or one for each in their order. An embedding model has the task ''. Raises
    BadRecipe if a task is not known, and if experts were given and none has a task of the run.
    """
    experts, names = made_of.experts, [task.name for task in tasks]
    in_order = run.tasks and len(names) == len(experts)
    from_run = names if in_order else (names if len(names) == 1 else [None]) * len(experts)
    recorded = made_of.tasks or [None] * len(experts)
    found = []
    for expert, merged, typed in zip(experts, recorded, from_run, strict=True):
        if expert.pooling is not None:
            found.append("")
            continue
        claimed = [task.name for task in tasks if called_in(expert, task, run.data_dir)]
        if len(expert.tasks) > 1:
            raise BadRecipe(
                f"the expert {expert.source} was trained on {len(expert.tasks)} tasks, expected "
                "one; name it with --references instead"
            )
        candidates = (merged, *claimed, *expert.tasks)
        named = [
            name
            for name in (*(n for n in candidates if n in names), *candidates, typed)
            if name is not None
        ]
        if not named:
            raise BadRecipe(
                f"the task of {expert.source} is not known; name that of each with --tasks"
            )
        found.append(named[0])
    by_user = any(found) and made_of.merged is None and not made_of.by_mergekit
    if by_user and not run.singles and not {*found} & {*names}:
        wrong = next(place for place, name in enumerate(found) if name)
        raise BadRecipe(
            f"{experts[wrong].source} was trained on {found[wrong]} by its own record, found "
            f"{', '.join(names)} in --tasks; to evaluate it on other tasks, use --singles or "
            "--references"
        )
    return tuple(found)


def _model(checkpoint: Checkpoint, *, alone: bool = True) -> OpenedModel:
    """A model without base and experts, in the role that its folder says, with its kept heads.

    A fine-tuned model is an `expert` only if `alone`; with experts of its own, it is their merge.
    """
    merged, kit = read_merge_json(checkpoint.path), checkpoint.path / MERGEKIT_FILE
    trained, kept = (checkpoint.path / EXPERT_FILE).is_file(), kept_heads(checkpoint, merged)
    role: Role
    if merged is not None:
        role, method = "merged", merged.method
    elif trained and (kept or len(checkpoint.tasks) > 1):
        role, method = "reference", "multi-task"
    elif trained and alone:
        role, method = "expert", "expert"
    else:
        by_kit = kit.is_file()
        role, method = "merged", f"mergekit:{named_models(kit).method}" if by_kit else "given"
    inherited = [row for record in records_in(checkpoint.path).values() for row in record.inherited]
    digests = rows_shown(checkpoint.path)
    shown = {row: digests[row] for row in (*(merged.shown if merged else ()), *inherited)}
    return OpenedModel(
        checkpoint.name, role, method, checkpoint, kept, shown=shown, recipe=recipe_of(merged)
    )


def _under_heads(
    model: OpenedModel,
    base: Checkpoint | None,
    tasks: Sequence[Task],
    heads: Mapping[str, Checkpoint],
) -> OpenedModel:
    """A model without a head, or of text to text, with the heads that are given for tasks."""
    own, named = model.checkpoint, [task.name for task in tasks if task.name in heads]
    if own.labels is not None or (model.kept and not all(map(verbalizer_of, model.kept.values()))):
        return model
    headed = {name: with_missing_parts(own, base, name, heads) for name in named}
    return replace(model, kept={**model.kept, **headed})


def _check_references(model: OpenedModel, tasks: Sequence[Task]) -> None:
    """Raise MissingHead for a reference without a head for any task, BadRecipe for one that is in
    the run already or has the name of another model."""
    others = [model.checkpoint, *model.experts, *([model.base] if model.base else [])]
    taken = {other.path.resolve() for other in others}
    names = {(model.name, model.method)}
    for reference in model.references:
        source = reference.checkpoint.source
        embeds = reference.checkpoint.pooling is not None
        if not embeds and not any(reference.has_head(task) for task in tasks):
            raise MissingHead(
                f"the reference {source} has no head for {', '.join(map(str, tasks))}; leave it out"
            )
        if reference.checkpoint.path.resolve() in taken:
            raise BadRecipe(f"the reference {source} is in the run already; leave it out")
        if (reference.name, reference.method) in names:
            raise BadRecipe(
                f"two models are called '{reference.name} ({reference.method})'; rename {source}"
            )
        taken.add(reference.checkpoint.path.resolve())
        names.add((reference.name, reference.method))
