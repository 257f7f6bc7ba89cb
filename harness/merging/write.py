"""Shell: a plan -> a folder that plain transformers loads, with its record and model card."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml

from harness import weights
from harness.checkpoints.bases import ENCODER, POOLER, encoder_digests, recorded_base
from harness.checkpoints.build import HEAD_KEYS
from harness.checkpoints.layout import MERGE_LAYOUT, SHARD_INDEX, WEIGHTS_FILE
from harness.checkpoints.pooling import copy_modules
from harness.checkpoints.processor import copy_processor
from harness.checkpoints.provenance import MERGE_FILE, rows_shown
from harness.checkpoints.recorded_tasks import task_fields
from harness.checkpoints.stream import write_file
from harness.checkpoints.verbalizer import plain_config, verbalizer_of
from harness.data.apart import texts_digest
from harness.data.splits import parse_task
from harness.errors import BrokenCheckpoint
from harness.files import version, write_json, write_text
from harness.folders import new_folder
from harness.merging.checked import short_method
from harness.merging.plan import MergePlan
from harness.merging.premerge_report import measure_premerge, watched
from harness.merging.stages import Stage, state_report
from harness.methods import code_of_methods
from harness.registry import TASKS
from harness.text import markdown, plain
from harness.types import Checkpoint, Choice, Progress, StateDict

if TYPE_CHECKING:
    from huggingface_hub import StateDictSplit

SHARD_BYTES = 5 * 10**9
DTYPES = ("dtype", "torch_dtype")
"""The key for the type of the weights in config.json, and the one before transformers 5."""
TENSORS = "merging tensors"
"""The label, in the progress, of tensors that are computed and written."""


def write(
    plan: MergePlan,
    out: Path,
    progress: Progress,
    *,
    trials: Mapping[str, Any] | None = None,
    force: bool = False,
) -> MergePlan:
    """Stream a plan to a folder that plain transformers loads; `trials` go into its record.

    Returns the plan with what its pre-merging stages did, which is measured at the end.
    """
    with new_folder(out, MERGE_LAYOUT, force=force) as folder:
        merged, squares = watched(plan.state, plan.steps)
        if plan.recipe.heads == "none":  # the names of a bare encoder
            bare = plan.experts[0].family.bare
            merged = weights.renamed(merged, {bare(name): name for name in merged})
        hashes: dict[str, str] = {}
        digest = _write_weights(merged, folder, progress, hashes, plan)
        digests: dict[str, Any] = {"digest": digest}
        first = plan.experts[0]
        copy_processor([model.processor for model in plan.models], folder)
        if first.pooling or plan.recipe.heads not in ("keep", "none"):
            copy_modules(first, folder)
        if plan.kept_tasks and (head_digests := _write_heads(plan, folder, hashes)):
            digests["head_digests"] = head_digests
        plan = replace(plan, premerge_reports=measure_premerge(plan, squares))
        write_json(folder / "config.json", _config(plan) | _dtype_fields(plan))
        write_text(folder / "README.md", _card(plan))
        MERGE_LAYOUT.write(folder, _record(plan, out, digests, trials), hashes)
    return plan


def _write_weights(
    state: StateDict,
    folder: Path,
    progress: Progress,
    hashes: dict[str, str],
    plan: MergePlan,
) -> str:
    """Write the weights; returns their digest, and adds the hash of every file to `hashes`."""
    split, spelled, family = shards(state), _spelled(plan), plan.experts[0].family

    def step(done: int) -> None:
        progress(TENSORS, done, len(state))

    digests: dict[str, str] = {}
    for file, names in split.filename_to_tensors.items():
        part = weights.select(state, names)
        transposed = [*filter(family.is_transposed, names)]
        written, hashes[file] = write_file(
            folder / file, part, step, spelled=spelled, transposed=transposed
        )
        digests |= written
    if split.is_sharded:
        placed = {spelled.get(name, name): file for name, file in split.tensor_to_filename.items()}
        index = {"metadata": split.metadata, "weight_map": placed}
        write_json(folder / SHARD_INDEX, index)
    return weights.join_digests(digests)


def _spelled(plan: MergePlan) -> Mapping[str, str]:
    """The names of tensors in the merge's files: those in the base's files, if a base is given."""
    family, like = plan.experts[0].family, plan.stored_base or plan.experts[0]
    if plan.recipe.heads == "none":
        return {family.bare(n): family.bare(o) for n, o in like.stored_names.items()}
    if like.stored_names and not any(name.startswith(family.prefix) for name in like.weights):
        return {family.prefix + n: family.prefix + o for n, o in like.stored_names.items()}
    return like.stored_names


def shards(state: StateDict) -> StateDictSplit:
    """The files that a state is split into, and which tensors go into each."""
    from huggingface_hub import split_state_dict_into_shards_factory

    return split_state_dict_into_shards_factory(
        weights.specs(state),
        get_storage_size=lambda spec: spec.bytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=SHARD_BYTES,
    )


def _write_heads(plan: MergePlan, folder: Path, hashes: dict[str, str]) -> dict[str, str]:
    """Write every expert's head and configuration under heads/<task>/; their digests, by task.

    For models that answer with words, only the configuration: their answers are rows of the merge's
    own output layer. The hash of every file goes into `hashes`, by its path.
    """
    digests: dict[str, str] = {}
    for expert, top, task in zip(plan.experts, plan.head_states, plan.tasks, strict=True):
        place = folder / "heads" / task
        place.mkdir(parents=True, exist_ok=True)
        write_json(place / "config.json", expert.config)
        if plan.recipe.heads != "keep":
            continue
        head = weights.cast_like(top, expert.weights)
        file = place / WEIGHTS_FILE
        written, whole = write_file(file, head, lambda _: None, f"the head of {task}")
        digests[task] = weights.join_digests(written)
        hashes[f"heads/{task}/{WEIGHTS_FILE}"] = whole
    return digests


def _config(plan: MergePlan) -> dict[str, Any]:
    """The merge's config.json: the first expert's, without fields of its head if heads are kept."""
    config = dict(plan.experts[0].config)
    if verbalizer_of(plan.experts[0]):
        return plain_config(plan.experts[0])
    if plan.recipe.heads == "keep":
        config = {key: value for key, value in config.items() if key not in HEAD_KEYS}
        if plan.base is not None and "architectures" in plan.base.config:
            config["architectures"] = plan.base.config["architectures"]
    return config


def _dtype_fields(plan: MergePlan) -> dict[str, str]:
    """The widest type of the weights, if the first expert's config names one: models load in it."""
    specs = weights.specs(plan.state)
    kinds = (specs[name].dtype for name in weights.floating(plan.state))
    widest = str(reduce(torch.promote_types, kinds)).removeprefix("torch.")
    return {key: widest for key in DTYPES if plan.experts[0].config.get(key)}


def _record(
    plan: MergePlan, out: Path, digests: Mapping[str, Any], trials: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The content of merge.json."""

    def origin(checkpoint: Checkpoint) -> dict[str, str]:
        source = checkpoint.source
        fields = {"source": source, "digest": plan.source_weights[source].digest()}
        if checkpoint.path.is_dir() and Path(source).exists():
            fields["relative"] = os.path.relpath(checkpoint.path, out)
        return fields

    recipe, tried = plan.recipe, bool(trials or plan.report)
    inherited = rows_shown(*(model.path for model in plan.models))
    measured = (report.recorded() for report in plan.premerge_reports)
    stages = [stage for stage in plan.stages if tried or stage is not plan.merger_stage]
    devices = [stage.device for stage in plan.stages]  # methods of mergekit run on the processor
    record = {
        "method": short_method(recipe),
        "code": code_of_methods(stage.entry for stage in plan.stages),
        **digests,
        "tasks": list(dict.fromkeys(plan.tasks)),
        "base": origin(plan.base) if plan.base else None,
        "base_weights": _base_weights(plan),
        "experts": [
            {**origin(expert), **({"task": plan.tasks[i]} if plan.tasks else {})}
            for i, expert in enumerate(plan.experts)
        ],
        "premerge": [
            _without_empty(_chosen(choice) | _needed([step.stage]) | fields)
            for choice, step, fields in zip(recipe.premerge, plan.steps, measured, strict=True)
        ],
        "merger": _chosen(recipe.merger),
        "postmerge": [
            _without_empty(_chosen(choice) | _needed([stage]) | {"report": state_report(state)})
            for choice, stage, state in zip(
                recipe.postmerge, plan.postmerge_stages, plan.postmerged, strict=True
            )
        ],
        "heads": recipe.heads,
        "kept": _kept(plan),
        **plan.experts[0].family.recorded,
        "projection": _projection(plan),
        "seed": recipe.seed,
        "preset": recipe.preset,
        **({"max_length": _lengths(plan)} if recipe.max_length else {}),
        **recipe.placement.recorded,
        "merge_device": next((d.type for d in devices if not weights.here(d)), ""),
        "other_base": recipe.other_base,
        "other_tasks": recipe.other_tasks,
        **task_fields(plan.tasks, out),
        "statistics": plan.merger_stage.statistics(),
        "scored_on": _needed(stages)["scored_on"],
        "inherited": [*inherited],
        "seen": inherited | _seen(plan, stages),
        "tune_limit": recipe.tune_limit,
        "examples_limit": recipe.examples_limit,
        "tuned": dict(trials or {}),
        "report": dict(plan.report),
        "versions": {name: version(name) for name in VERSIONS},
    }
    return _without_empty(record)


VERSIONS = ("merging-harness", "torch", "safetensors")
ALWAYS = ("tasks", "base", "premerge", "options", "postmerge", "seed", "seconds", "max_length")
"""The fields that a record has even if they are empty; all others are then left out."""


def _without_empty(record: dict[str, Any]) -> dict[str, Any]:
    """The record without empty fields, except for those in `ALWAYS`."""
    return {name: value for name, value in record.items() if value or name in ALWAYS}


def _chosen(choice: Choice) -> dict[str, Any]:
    return {"name": choice.name, "options": dict(choice.options)}


def _needed(stages: Sequence[Stage]) -> dict[str, Any]:
    """What methods were given beside weights: statistics, and splits to score candidates on."""
    splits = [split for stage in stages if stage.scorer for split in stage.scorer.splits]
    statistics = [statistic for stage in stages for statistic in stage.statistics()]
    return {"statistics": statistics, "scored_on": list(dict.fromkeys(splits))}


def _seen(plan: MergePlan, tried: Sequence[Stage]) -> dict[str, str]:
    """The digests of texts that the merge has read, by `name@split`: of reported splits, and of
    splits that the stages `tried` scored candidates on; not of training rows, which no evaluation
    scores."""
    read = [statistic["task"] for statistic in _needed(plan.stages)["statistics"]]
    # a task that an expert's folder names may be unknown here if none of its rows are read
    reported = {f"{task}@{TASKS[task].reported}" for task in plan.tasks if task in TASKS}
    names = (*_needed(tried)["scored_on"], *reported.intersection(read))
    digests = {name: texts_digest(*parse_task(name), plan.recipe.data_dir) for name in names}
    return {name: digest for name, digest in digests.items() if digest}


def _kept(plan: MergePlan) -> dict[str, list[str]]:
    """The tensors beside its head that each task keeps its own of: a pooler that not all have."""
    if plan.recipe.heads != "keep":
        return {}
    tops, is_head = zip(plan.tasks, plan.head_states, strict=True), plan.experts[0].family.is_head
    by_task = {task: [*filterfalse(is_head, top)] for task, top in tops}
    return {task: names for task, names in by_task.items() if names}


def _projection(plan: MergePlan) -> str:
    """Whose projection a merge of CLIP has: `base` if all experts have the base's, else `own`; ''
    for families whose folders always hold all of a model."""
    family = plan.experts[0].family
    if family.whole is None:
        return ""
    states = (model.weights for model in plan.models)
    parts = [weights.select(state, filter(family.is_pooler, state)) for state in states]
    return "base" if plan.base and len({*map(weights.digest, parts)}) == 1 else "own"


def _base_weights(plan: MergePlan) -> Mapping[str, str]:
    """The digests of the encoder of the base, given or recorded alike by all experts; else none."""
    if plan.stored_base is not None:
        try:
            return encoder_digests(plan.stored_base)
        except BrokenCheckpoint:  # the base may lack tensors, as the experts may
            return {}
    bases = [recorded_base(expert) for expert in plan.experts]
    digests = [base.digests if base else {} for base in bases]
    first = {part: digests[0][part] for part in (ENCODER, POOLER) if part in digests[0]}
    return first if all(first.items() <= one.items() for one in digests) else {}


def _lengths(plan: MergePlan) -> dict[str, int]:
    """The maximum length that rows were read at, by `name@split`."""
    validated = [rows for stage in plan.stages if stage.scorer for rows in stage.scorer.rows]
    read = _needed(plan.stages)["statistics"]
    lengths = {str(statistic["task"]): int(statistic["max_length"]) for statistic in read}
    scored = {f"{rows.task}@{rows.split}": rows.task.finetune.max_length for rows in validated}
    return lengths | scored


def _card(plan: MergePlan) -> str:
    """A model card with the metadata by which the Hub shows merges."""
    recipe = plan.recipe
    models = [plan.base.source] if plan.base else [e.source for e in plan.experts]
    metadata: dict[str, Any] = {
        "base_model": models,
        "base_model_relation": "merge",
        "library_name": "sentence-transformers" if plan.experts[0].pooling else "transformers",
        "tags": ["merge"],
    }
    if plan.experts[0].family.inputs == "image":
        metadata["pipeline_tag"] = "image-classification"
    header = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True).strip()
    text = f"Merged with `{plain(recipe.method)}`; heads: {recipe.heads}."
    tasks = plan.tasks or ("",) * len(plan.experts)
    rows = zip((expert.source for expert in plan.experts), tasks, strict=True)
    table = ["| expert | task |", "|---|---|"]
    table += [f"| {markdown(source)} | {markdown(task)} |" for source, task in rows]
    # no seconds: a card is the same whenever it is written
    runs = list(zip(plan.recipe.premerge, plan.premerge_reports, strict=True))
    changed = [f"- {markdown(choice.name)}: {', '.join(report.changes)}" for choice, report in runs]
    parts = [f"---\n{header}\n---", f"# {markdown(short_method(recipe))}", text, "\n".join(table)]
    parts += ["\n".join(changed)] if any(report.changes for _, report in runs) else []
    return "\n\n".join([*parts, f"All options, seeds and content hashes are in `{MERGE_FILE}`.\n"])
