"""Properties of a whole merge, from folders to a folder, by the method."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from harness import weights
from harness.checking import toys
from harness.checking.properties.compare import alike, all_alike, copied, dtype_name, same_names
from harness.checking.properties.property import Broken, CheckedMethod, checks
from harness.checking.toys import Tensors, ToyExperts
from harness.checkpoints.build import build_model
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.weight_files import open_weights
from harness.errors import BrokenCheckpoint, HarnessError
from harness.merging.merge import merge
from harness.merging.recipes import Recipe
from harness.registry import TASKS
from harness.types import Choice, StateDict

DRIFT = 1e-4
"""The most that float32 outputs may move, relative to the largest, and count as unchanged."""


def merged(
    method: CheckedMethod, family: ToyExperts, head: str | None = None, **said: Any
) -> Tensors:
    """The tensors of a merge from folders to a folder, with the kept `head` of a task if given.

    A pre-merging method comes before the average, a post-merging method after it. Raises Broken
    if an error of the harness leaves files behind.
    """
    with tempfile.TemporaryDirectory(prefix="harness-check-") as place:
        root, out = Path(place), Path(place) / "out"
        base, experts = written(root, family.base, family.experts)
        before = sorted(root.iterdir())
        try:
            _merge(method, recipe_of(method, base, experts, **said), out)
        except HarnessError:
            if leftovers := sorted(set(root.iterdir()) - set(before)):
                raise Broken(f"an error left {leftovers[0].name} behind") from None
            raise
        heads = open_weights(out / "heads" / head) if head else {}
        return copied(weights.union(open_checkpoint(out).weights, heads))


def written(
    root: Path,
    base: StateDict,
    experts: Sequence[StateDict],
    config: Mapping[str, Any] | None = None,
) -> tuple[Path, list[Path]]:
    """Write base and experts, and return their folders."""
    named = {f"expert-{place}": state for place, state in enumerate(experts, start=1)}
    folders = [toys.write(root / name, state, config) for name, state in named.items()]
    return toys.write(root / "base", base, config), folders


def recipe_of(method: CheckedMethod, base: Path, experts: Sequence[Path], **said: Any) -> Recipe:
    """The recipe of a merge by the method; the merger is `average` unless this or `said` is one."""
    chosen = method.choice if method.stage == "merger" else (method.choice,)
    fields: dict[str, Any] = {"merger": Choice("average"), method.stage: chosen, **said}
    nowhere = str(base.parent)  # a folder without data
    return Recipe(experts=tuple(map(str, experts)), base=str(base), data_dir=nowhere, **fields)


def only(place: int, experts: int) -> Choice:
    """An average that gives all experts but one the weight 0."""
    return Choice("average", {"weights": [float(index == place) for index in range(experts)]})


def _merge(method: CheckedMethod, recipe: Recipe, out: Path) -> None:
    """Merge as a user does, but with toys for needs.

    Real needs would take data and the forward passes of a real model.
    """
    state = open_checkpoint(recipe.experts[0]).weights
    headers = weights.specs(state)
    sizes = {name: headers[name].shape for name in weights.floating(state)}
    with toys.handed_out(method.needs, sizes, len(recipe.experts)):
        merge(recipe, out=out)


def in_type(dtype: torch.dtype, state: StateDict) -> Tensors:
    """The tensors, floating-point ones in this type."""
    return {
        name: state[name].to(dtype) if state[name].is_floating_point() else state[name]
        for name in state
    }


@checks("half")
def half(method: CheckedMethod) -> None:
    """Half precision in, half precision out, float32 inside.

    Experts in float16 or bfloat16 give what their float32 copies give, cast once.
    """
    for dtype in (torch.float16, torch.bfloat16):
        low = method.family().each(partial(in_type, dtype))
        wide = low.each(partial(in_type, torch.float32))
        mixed = ToyExperts(low.experts, wide.base, low.needs)
        template = low.experts[0]
        expected = [copied(weights.cast_like(state, template)) for state in method(wide)]
        for label, family in (("", low), (" over a float32 base", mixed)):
            states = [weights.cast_like(state, template) for state in method(family)]
            all_alike(method, states, expected, when=f"from {dtype_name(dtype)}{label}, ")
    low = method.family(toys.NETWORK).each(partial(in_type, torch.bfloat16))
    wide = low.each(partial(in_type, torch.float32))
    alike(merged(method, low), in_type(torch.bfloat16, merged(method, wide)))


@checks("tied")
def tied(method: CheckedMethod) -> None:
    """Tied tensors stay tied through save and load: one tensor under two names is still one.

    transformers writes such a tensor once, and nothing can part it; other tools write both, and
    transformers unties what it reads as two that differ.
    """
    shapes = {**toys.NETWORK, toys.TIED[1]: toys.NETWORK[toys.TIED[0]]}
    family = method.family(shapes).each(toys.with_tied)
    first, second = toys.TIED
    state = merged(method, family)
    alike({second: state[second]}, {second: state[first]}, where=f"untied from '{first}': ")


@checks("buffers")
def buffers(method: CheckedMethod) -> None:
    """Integer buffers are untouched: the merged model has the base's."""
    family = method.family(toys.NETWORK)
    counts = torch.arange(10)[None]
    old = {**family.base, toys.BUFFER: counts}
    new = [{**expert, toys.BUFFER: counts + i + 1} for i, expert in enumerate(family.experts)]
    state = merged(method, ToyExperts(new, old, family.needs))
    alike({n: state[n] for n in state if n == toys.BUFFER}, {toys.BUFFER: counts})


@checks("exact", "premerge")
def exact(method: CheckedMethod) -> str:
    """The outputs of a network do not move, head and all, on the way from folder to folder.

    Each expert is merged by itself, by weights that are 0 for the others, once with its head merged
    and once with it kept.
    """
    family = method.family(toys.NETWORK)
    largest, touched = 0.0, 0
    logits = [outputs(expert) for expert in family.experts]
    for heads in ("merge", "keep"):
        for place, old in enumerate(family.experts):
            after = alone(method, family, place, heads)
            same_names(after, old)
            moved = gap(logits[place], outputs(after))
            if not moved <= DRIFT:
                label = f"expert {place + 1} (heads: {heads})"
                raise Broken(f"outputs of {label} change by {moved:.2g} of the largest")
            largest = max(largest, moved)
            touched += sum(not torch.equal(after[name], old[name]) for name in old)
    return f"by {largest:.1g} of the largest at most, with {touched // 2} tensors changed"


@checks("heads", "premerge")
def unlike_heads(method: CheckedMethod) -> None:
    """Experts whose heads differ in size are taken, and keep their heads' size.

    Experts of different tasks have such heads: a pre-merging method gets whole models, and a base
    without a head.
    """
    family = method.family(toys.NETWORK)
    *others, last = family.experts
    head = {name: last[name] for name in last if name.startswith("classifier.")}
    wider = {name: torch.cat([tensor, tensor[:1]]) for name, tensor in head.items()}
    unlike = replace(family, experts=[*others, {**last, **wider}])
    for place, old in enumerate(unlike.experts):
        after = alone(method, unlike, place, "keep")
        for name, tensor in old.items():
            have, want = tuple(after[name].shape), tuple(tensor.shape)
            if have != want:
                raise Broken(f"expert {place + 1}: '{name}' is {have}, expected {want}")


def alone(
    method: CheckedMethod, family: ToyExperts, place: int, heads: Literal["merge", "keep"]
) -> Tensors:
    """One expert after the method: the merge in which all other experts have weight 0."""
    # tasks whose rows are missing, so that nothing is measured on a toy
    tasks = [name for name, task in TASKS.items() if not task.generate][: method.experts]
    fields: dict[str, Any] = (
        {"tasks": tuple(tasks), "head": tasks[place]} if heads == "keep" else {}
    )
    return merged(method, family, merger=only(place, method.experts), heads=heads, **fields)


def outputs(state: StateDict) -> torch.Tensor:
    """The network's logits with these weights on rows of different lengths, [rows, classes]."""
    network = build_model(toys.labelled(toys.CONFIG, 2), state, "the toy")
    with torch.inference_mode():
        logits: torch.Tensor = network(**toys.inputs()).logits
    return logits


def gap(before: torch.Tensor, after: torch.Tensor) -> float:
    """The largest change of an output, relative to the largest output."""
    return float((after - before).abs().max() / before.abs().max())


WRONG, EXTRA = "bert.encoder.layer.0.output.dense.weight", "bert.extra.weight"
"""The damaged, and the added, tensor of the last expert; nothing reads them before the method."""


@checks("errors")
def errors(method: CheckedMethod) -> None:
    """Missing or extra tensors, other shapes and NaN are errors that name the tensor.

    They leave no files behind. The function does not swallow an error raised while it reads a
    tensor. A merger called from Python refuses a tensor of another shape.
    """
    for damage in DAMAGES:
        name = EXTRA if damage == "an extra tensor" else WRONG
        try:
            merged(method, _damaged(method, damage, name))
        except HarnessError as error:
            if name not in str(error):
                raise Broken(f"{damage}: the error does not name '{name}': {error}") from None
        else:
            raise Broken(f"{damage}: '{name}' of the last expert is merged without an error")
    family = _damaged(method, "NaN")
    *others, last = family.experts
    watched = weights.Observed(last, "the last expert")  # checks every tensor as it is read
    message = f"NaN in '{WRONG}' of the last expert raises no error, or the tensor is never read"
    _refused(method, replace(family, experts=[*others, watched]), BrokenCheckpoint, message)
    if method.stage == "merger":
        message = f"called with another shape of '{WRONG}' in the last expert, it raises no error"
        # torch raises many types for shapes that do not fit
        _refused(method, _damaged(method, "another shape"), Exception, message)


def _with_entry(value: float, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().index_fill(0, torch.tensor(3), value).view_as(tensor)


DAMAGES: Mapping[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "a missing tensor": lambda _: None,
    "an extra tensor": torch.clone,
    "another shape": lambda tensor: torch.cat([tensor, tensor[:1]]),
    "NaN": partial(_with_entry, float("nan")),
    "an infinite entry": partial(_with_entry, float("inf")),
}
"""Kinds of damage, and the damaged tensor made from the right one; None: no tensor."""


def _damaged(method: CheckedMethod, damage: str, name: str = WRONG) -> ToyExperts:
    """Toys whose last expert has a damaged tensor `name`."""
    family = method.family(toys.NETWORK)
    *others, last = family.experts
    tensor = DAMAGES[damage](last[WRONG])
    rest = {key: last[key] for key in last if key != name}
    damaged = rest if tensor is None else {**rest, name: tensor}
    return replace(family, experts=[*others, damaged])


def _refused(method: CheckedMethod, family: ToyExperts, by: type[Exception], message: str) -> None:
    """Raise Broken with this `message` unless the method raises an error of type `by`."""
    try:
        for state in method(family):
            copied(state)
    except by:
        return
    raise Broken(message)
