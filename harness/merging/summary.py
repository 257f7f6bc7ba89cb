"""The printed lines on a merge: its inputs, what is done with them, and the files written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote

from harness.checkpoints.layout import MERGE_LAYOUT, PROCESSOR_FILES, SHARD_INDEX, WEIGHTS_FILE
from harness.checkpoints.provenance import MERGE_FILE, read_expert_json, read_merge_json
from harness.merging.checked import short_method
from harness.merging.plan import MergePlan
from harness.merging.stages import Stage
from harness.merging.write import shards
from harness.types import Scalar, Whose
from harness.weights import size

HEADS = {
    "merge": "merged with the encoder",
    "average": "averaged, whatever the method",
    "keep": "kept, one for each task",
    "none": "no separate heads: the models are merged whole",
}
"""What is done with heads, by the value of the recipe's `heads`."""
WHOSE: Mapping[Whose, str] = {
    "own": "each expert's own training rows",
    "each": "each expert's own training rows",
    "tasks": "rows of each expert's own task",
    "same": "training rows of the first expert's task",
    "shared": "held-out rows",
}
"""Whose rows a need reads."""


def summary(plan: MergePlan) -> list[str]:
    """Lines on the inputs of a merge, what was done with them, and what was measured."""
    heads = str(plan.recipe.heads)
    lines = [f"method   {short_method(plan.recipe)}", f"heads    {heads}: {HEADS[heads]}"]
    unknown = str(plan.experts[0].pooling or "task unknown")
    tasks = plan.tasks or (unknown,) * len(plan.experts)
    base = plan.base.source if plan.base else _no_base(plan)
    lines.append(f"base     {base}")
    lines += [f"expert   {e.source} ({t})" for e, t in zip(plan.experts, tasks, strict=True)]
    needs = {p.need.name: p.need.rows for p in plan.providers if p.need.rows != "none"}
    lines += [f"shown    {WHOSE[whose]}, for {name}" for name, whose in needs.items()]
    if plan.recipe.tune is not None and (scorer := plan.merger_stage.scorer) is not None:
        lines.append(f"tuned    {plan.recipe.tune} on {', '.join(scorer.splits)}")
    for choice, report in zip(plan.recipe.premerge, plan.premerge_reports, strict=False):
        lines.append(f"{choice.name:<8} {', '.join([*report.changes, f'{report.seconds:.1f} s'])}")
    entries, megabytes = size(plan.state) / 1e6, plan.size / 1e6
    lines.append(f"weights  {len(plan.state)} tensors, {entries:.1f} M entries, {megabytes:.1f} MB")
    return lines


def _no_base(plan: MergePlan) -> str:
    """The text for a merge without a base: which to give, if the folders of all experts name the
    same. The harness does not take it from there: a file would decide what is opened, and with a
    base other tensors count as new."""
    records = [read_expert_json(expert.path) for expert in plan.experts]
    named = {record.base if record and record.base_weights else "BASE" for record in records}
    base = quote(named.pop()) if len(named) == 1 else "BASE"
    return f"none; to see what the merge adds, give --base {base}"


def forecast(plan: MergePlan, out: Path) -> list[str]:
    """What a merge would do, for a dry run: every stage with all its options, and every file."""
    lines = [
        f"stage {number}  {stage.entry.name}, a {stage.entry.called}{_said(stage)}"
        for number, stage in enumerate(plan.stages, start=1)
    ]
    lines.append(f"would write {out}: {', '.join(_files(plan))}; only headers were read")
    if (out / MERGE_LAYOUT.marker).is_file():
        old = read_merge_json(out)
        lines.append(f"would replace the merge that is there ({old.method if old else 'unknown'})")
    return lines


def _said(stage: Stage) -> str:
    options = ", ".join(f"{name}={_shown(value)}" for name, value in stage.options.items())
    return f": {options}" if options else ""


def _shown(value: Scalar) -> str:
    return ":".join(map(str, value)) if isinstance(value, list) else str(value)


def _files(plan: MergePlan) -> list[str]:
    """The names of the files and folders in the folder of a merge."""
    split = shards(plan.state)
    first = plan.experts[0].processor
    words = [name for name in PROCESSOR_FILES if (first / name).is_file()]
    if (pooling := plan.experts[0].pooling) is not None:
        words += pooling.files
    many = [f"model-*-of-{len(split.filename_to_tensors):05}.safetensors", SHARD_INDEX]
    weights = many if split.is_sharded else [WEIGHTS_FILE]
    heads = [f"heads/{task}/" for task in dict.fromkeys(plan.kept_tasks)]
    return [*weights, "config.json", *words, *heads, MERGE_FILE, "README.md"]
