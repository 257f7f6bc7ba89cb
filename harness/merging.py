"""From a recipe to a merged folder: check by headers, compose lazily, stream to disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from harness import weights
from harness.checkpoints import (
    INDEX,
    MERGE_FILE,
    SINGLE,
    aligned_base,
    check_output,
    copy_tokenizer,
    new_folder,
    new_in_experts,
    open_checkpoint,
    vocabulary,
)
from harness.data import parse_task
from harness.errors import (
    BadRecipe,
    IncompatibleWeights,
    LabelMismatch,
    MissingHead,
    OutputExists,
)
from harness.labels import same
from harness.recipes import Recipe, read_recipe
from harness.registry import MERGERS, PREMERGE, Merger, Premerge, resolve
from harness.types import Checkpoint, Choice, Scalar, StateDict

SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True)
class Plan:
    """A checked merge that has not read a weight yet.

    `state` is the lazy merged model: encoder and head, or the encoder alone when heads are kept.
    `recipe` has every option filled in and heads decided. `fresh` are the names of head tensors.
    """

    recipe: Recipe
    base: Checkpoint | None
    experts: tuple[Checkpoint, ...]
    tasks: tuple[str, ...]
    state: StateDict
    fresh: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of the merged weights."""
        return sum(_bytes(spec) for spec in weights.specs(self.state).values())


def merge(
    recipe: Recipe | str | Path,
    *,
    out: str | Path,
    dry_run: bool = False,
    allow_pickle: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Merge as the recipe (or its YAML file) says and write the folder `out`.

    Returns the plan. With `dry_run` everything that headers can tell is checked and nothing is
    written. `progress` is called with tensors done and in all. Raises a HarnessError before
    anything is written, or for NaN and Inf while streaming, with no partial output left.
    """
    asked = recipe if isinstance(recipe, Recipe) else read_recipe(recipe)
    check_output(Path(out), MERGE_FILE)
    observed: dict[str, weights.Observed] = {}
    found = plan(asked, allow_pickle=allow_pickle, observed=observed)
    for part in (*found.experts, *([found.base] if found.base else [])):
        if part.path.resolve().is_relative_to(Path(out).resolve()):
            raise OutputExists(
                f"{out} holds {part.source}, which goes into the merge; expected another --out"
            )
    if not dry_run:
        write(found, Path(out), observed, progress or (lambda done, total: None))
    return found


def plan(
    recipe: Recipe,
    *,
    allow_pickle: bool = False,
    observed: dict[str, weights.Observed] | None = None,
) -> Plan:
    """Check a recipe by headers alone and compose the lazy merge."""
    merger = MERGERS[recipe.merger.name]
    before = [PREMERGE[choice.name] for choice in recipe.premerge]
    recipe = _filled(recipe, merger, before)
    if not recipe.experts:
        raise BadRecipe("no experts to merge; expected at least one folder or Hub id")
    if recipe.base is None and (merger.task_vectors or before):
        needs = [entry.name for entry in before] or [merger.name]
        raise BadRecipe(f"{needs[0]} works on task vectors and needs the base; give --base")

    def opened(source: str) -> Checkpoint:
        found = open_checkpoint(source, allow_pickle=allow_pickle)
        watched = weights.Observed(found.weights, source)
        if observed is not None:
            observed[source] = watched
        known = weights.specs(found.weights)
        return replace(found, weights=weights.Lazy(known, watched.__getitem__))

    experts = tuple(opened(source) for source in recipe.experts)
    base = opened(recipe.base) if recipe.base is not None else None
    _check_architecture(experts, base)
    tasks = _tasks(recipe, experts)
    if base is not None:
        base = aligned_base(base, experts[0])
    fresh = new_in_experts(base, experts[0])
    heads = _heads(recipe, experts, tasks, merger)
    state = _compose(recipe, merger, before, experts, base, fresh, heads)
    recipe = recipe.model_copy(update={"heads": heads, "tasks": tasks})
    return Plan(recipe, base, experts, tasks, state, tuple(fresh))


def _filled(recipe: Recipe, merger: Merger, before: Sequence[Premerge]) -> Recipe:
    """The recipe with every option, the seed of the recipe where a method draws numbers."""

    def filled(kind: str, choice: Choice, function: Callable[..., Any]) -> Choice:
        known: dict[str, Scalar] = resolve(kind, choice, function)
        if "seed" in known and "seed" not in choice.options:
            known["seed"] = recipe.seed
        return Choice(choice.name, known)

    return recipe.model_copy(
        update={
            "merger": filled("merger", recipe.merger, merger.function),
            "premerge": tuple(
                filled("pre-merging method", choice, entry.function)
                for choice, entry in zip(recipe.premerge, before, strict=True)
            ),
        }
    )


def _check_architecture(experts: Sequence[Checkpoint], base: Checkpoint | None) -> None:
    first = experts[0]
    for other in [*experts[1:], *([base] if base else [])]:
        found, expected = other.config.get("model_type"), first.config.get("model_type")
        if found != expected:
            raise IncompatibleWeights(
                f"{other.source} is a {found} model, expected {expected} as {first.source}"
            )
        words, mine = vocabulary(other.path), vocabulary(first.path)
        if words is not None and mine is not None and words != mine:
            raise IncompatibleWeights(
                f"the vocabulary of {other.source} ({len(words)} tokens) differs from that of "
                f"{first.source} ({len(mine)} tokens); expected the same tokenizer"
            )


def _tasks(recipe: Recipe, experts: Sequence[Checkpoint]) -> tuple[str, ...]:
    """The task of each expert: as asked, else as recorded in its folder; () if nobody knows."""
    if recipe.tasks:
        named = tuple(parse_task(name)[0].name for name in recipe.tasks)
        if len(named) not in (1, len(experts)):
            raise BadRecipe(
                f"{len(named)} tasks for {len(experts)} experts; expected one for all or one each"
            )
        return named * len(experts) if len(named) == 1 else named
    recorded = [expert.tasks for expert in experts]
    if all(len(tasks) == 1 for tasks in recorded):
        return tuple(tasks[0] for tasks in recorded)
    return ()


def _heads(
    recipe: Recipe, experts: Sequence[Checkpoint], tasks: Sequence[str], merger: Merger
) -> str:
    for expert in experts:
        if expert.labels is None:
            raise MissingHead(
                f"{expert.source} has no classification head; expected a fine-tuned classifier"
            )
    first = experts[0]
    odd = next((e for e in experts if not same(e.labels or (), first.labels or ())), None)
    different = len(set(tasks)) > 1
    if recipe.heads == "keep" or (recipe.heads == "auto" and different):
        repeated = [task for task in set(tasks) if tasks.count(task) > 1]
        if not tasks:
            raise BadRecipe("kept heads are stored by task; name one task per expert with --tasks")
        if repeated:
            raise BadRecipe(
                f"two experts of task {repeated[0]} and heads kept: which head is not defined; "
                "merge the experts of one task first"
            )
        return "keep"
    if odd is not None:
        raise LabelMismatch(
            f"{odd.source} has the labels {', '.join(odd.labels or ()) or 'none (regression)'}, "
            f"expected {', '.join(first.labels or ()) or 'none (regression)'} as {first.source}; "
            "for different tasks name one per expert with --tasks"
        )
    if recipe.heads == "auto":
        return "average" if merger.task_vectors else "merge"
    return recipe.heads


def _compose(
    recipe: Recipe,
    merger: Merger,
    before: Sequence[Premerge],
    experts: Sequence[Checkpoint],
    base: Checkpoint | None,
    fresh: Sequence[str],
    heads: str,
) -> StateDict:
    first = experts[0]
    moving = weights.floating(first.weights)
    head = [name for name in moving if name in set(fresh)]
    body = [name for name in moving if name not in set(fresh)]
    kept = [name for name in first.weights if name not in set(moving)]

    def part(checkpoint: Checkpoint, names: Sequence[str]) -> StateDict:
        present = [name for name in names if name in checkpoint.weights]
        return weights.select(checkpoint.weights, present)

    called = [expert.source for expert in experts]
    weights.check_same([_floating(expert, fresh) for expert in experts], called)
    bodies: Sequence[StateDict] = [part(expert, body) for expert in experts]
    origin: StateDict = part(base, body) if base else {}
    if base:
        weights.check_same([bodies[0], origin], [first.source, f"the base {base.source}"])
    for entry, choice in zip(before, recipe.premerge, strict=True):
        bodies = entry.function(bodies, origin, **choice.options)
    if heads != "keep":
        tops = [part(expert, head) for expert in experts]
        weights.check_same(tops, called)
    if heads == "merge":
        if merger.task_vectors and base:
            lacking = [name for name in head if name not in base.weights]
            if lacking:
                raise MissingHead(
                    f"the base {base.source} has no tensor '{lacking[0]}', so {merger.name} has "
                    "no task vector for the head; use --heads average"
                )
            origin = weights.union(origin, part(base, head))
        bodies = [weights.union(b, top) for b, top in zip(bodies, tops, strict=True)]
    merged = merger.function(bodies, origin, **recipe.merger.options)
    if heads == "average":
        merged = weights.union(merged, weights.mean(tops))
    buffers = [
        part(source, kept) for source in ([base, first] if base else [first]) if source is not None
    ]
    whole = weights.union(weights.cast_like(merged, first.weights), *buffers)
    written = [name for name in first.weights if name in weights.specs(whole)]
    return weights.select(whole, written)


def _floating(expert: Checkpoint, fresh: Sequence[str]) -> StateDict:
    """The encoder's parameters of an expert."""
    left_out = set(fresh)
    names = [name for name in weights.floating(expert.weights) if name not in left_out]
    return weights.select(expert.weights, names)


# Writing -----------------------------------------------------------------------------------


def write(
    found: Plan,
    out: Path,
    observed: Mapping[str, weights.Observed],
    progress: Callable[[int, int], None],
) -> None:
    """Stream a plan to a folder that plain transformers loads."""
    with new_folder(out, MERGE_FILE) as folder:
        digest = _write_weights(found.state, folder, progress)
        first = found.experts[0]
        copy_tokenizer(first.path, folder)
        if found.recipe.heads == "keep":
            _write_heads(found, folder)
        _write_json(folder / "config.json", _config(found))
        record = _record(found, out, digest, observed)
        _write_json(folder / MERGE_FILE, record)
        (folder / "README.md").write_text(_card(found), encoding="utf-8")


def _write_weights(state: StateDict, folder: Path, progress: Callable[[int, int], None]) -> str:
    shards = _shards(state)
    digests: dict[str, str] = {}
    placed: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {}
        for name in names:
            tensors[name] = state[name].contiguous()
            digests[name] = weights.tensor_digest(name, tensors[name])
            placed[name] = file
            progress(len(digests), len(state))
        save_file(tensors, folder / file, metadata={"format": "pt"})
    if len(shards) > 1:
        size = sum(_bytes(spec) for spec in weights.specs(state).values())
        _write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": placed})
    return weights.join_digests(digests)


def _shards(state: StateDict) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    filled = 0
    for name, spec in weights.specs(state).items():
        if shards[-1] and filled + _bytes(spec) > SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += _bytes(spec)
    return shards


def _bytes(spec: weights.Spec) -> int:
    return torch.Size(spec.shape).numel() * spec.dtype.itemsize


def _write_heads(found: Plan, folder: Path) -> None:
    """Every expert's head under heads/<task>/, with its configuration (labels, kind)."""
    for expert, task in zip(found.experts, found.tasks, strict=True):
        place = folder / "heads" / task
        place.mkdir(parents=True)
        tensors = {name: expert.weights[name].contiguous() for name in found.fresh}
        save_file(tensors, place / SINGLE, metadata={"format": "pt"})
        _write_json(place / "config.json", expert.config)


def _config(found: Plan) -> dict[str, Any]:
    config = dict(found.experts[0].config)
    if found.recipe.heads == "keep":
        for key in ("id2label", "label2id", "problem_type", "num_labels", "architectures"):
            config.pop(key, None)
        if found.base is not None and "architectures" in found.base.config:
            config["architectures"] = found.base.config["architectures"]
    return config


def _record(
    found: Plan, out: Path, digest: str, observed: Mapping[str, weights.Observed]
) -> dict[str, Any]:
    def origin(checkpoint: Checkpoint) -> dict[str, str]:
        named = {"source": checkpoint.source, "digest": observed[checkpoint.source].digest()}
        if checkpoint.path.is_dir() and Path(checkpoint.source).exists():
            named["relative"] = os.path.relpath(checkpoint.path, out)
        return named

    recipe = found.recipe
    return {
        "method": short_method(recipe),
        "digest": digest,
        "tasks": list(dict.fromkeys(found.tasks)),
        "base": origin(found.base) if found.base else None,
        "experts": [
            {**origin(expert), **({"task": found.tasks[i]} if found.tasks else {})}
            for i, expert in enumerate(found.experts)
        ],
        "premerge": [{"name": c.name, "options": dict(c.options)} for c in recipe.premerge],
        "merger": {"name": recipe.merger.name, "options": dict(recipe.merger.options)},
        "heads": recipe.heads,
        "seed": recipe.seed,
        "versions": {name: version(name) for name in ("merging-harness", "torch", "safetensors")},
    }


def short_method(recipe: Recipe) -> str:
    """The method as the papers print it, `dare[ties]`, with options that are not the default."""
    before = "+".join(str(_short(PREMERGE[c.name].function, c)) for c in recipe.premerge)
    merger = str(_short(MERGERS[recipe.merger.name].function, recipe.merger))
    return f"{before}[{merger}]" if before else merger


def _short(function: Callable[..., Any], choice: Choice) -> Choice:
    default = resolve("method", Choice(choice.name), function)
    given = {k: v for k, v in choice.options.items() if v != default[k] and k != "seed"}
    return Choice(choice.name, given)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _card(found: Plan) -> str:
    """A model card with the metadata by which the Hub shows merges."""
    recipe = found.recipe
    models = [found.base.source] if found.base else [e.source for e in found.experts]
    lines = ["---", "base_model:", *(f"- {name}" for name in models)]
    lines += ["base_model_relation: merge", "library_name: transformers", "tags:", "- merge", "---"]
    lines += [
        "",
        f"# {short_method(recipe)}",
        "",
        f"Merged with `{recipe.method}`; heads: {recipe.heads}.",
    ]
    lines += ["", "| expert | task |", "|---|---|"]
    tasks = found.tasks or ("",) * len(found.experts)
    lines += [f"| {e.source} | {t} |" for e, t in zip(found.experts, tasks, strict=True)]
    lines += ["", f"All options, seeds and content hashes are in `{MERGE_FILE}`.", ""]
    return "\n".join(lines)
