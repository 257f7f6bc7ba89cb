"""Shell: the experts and the base that a model was merged from. Those that its merge.json names are
checked by their digests; mergekit's configuration has names only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness import weights
from harness.checkpoints.align import check_architecture
from harness.checkpoints.bases import is_base
from harness.checkpoints.layout import MERGEKIT_FILE
from harness.checkpoints.mergekit import named_models
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.provenance import (
    EXPERT_FILE,
    MERGE_FILE,
    MergeJson,
    Origin,
    read_merge_json,
)
from harness.errors import BadRecipe, BrokenCheckpoint
from harness.labels import same
from harness.types import Checkpoint


@dataclass(frozen=True)
class Sources:
    """Where the user says that a model's experts and base are, and how checkpoints are opened.

    `other_base` accepts a base that the models were not made from.
    """

    experts: tuple[str, ...] = ()
    base: str | None = None
    other_base: bool = False
    allow_pickle: bool = False

    def open(self, source: str, base: Checkpoint | None = None) -> Checkpoint:
        """A checkpoint; an adapter is applied to `base`, by default to the user's."""
        place = base.path if base is not None else self.base
        return open_checkpoint(source, allow_pickle=self.allow_pickle, base=place)

    def open_base(self) -> Checkpoint | None:
        """The base, if the user says where it is."""
        return None if self.base is None else self.open(self.base)


@dataclass(frozen=True)
class Ingredients:
    """A model with its experts and its base. `merged` is its merge.json, if it has one, and `tasks`
    are those of the experts as recorded there."""

    model: Checkpoint
    experts: tuple[Checkpoint, ...]
    base: Checkpoint | None
    merged: MergeJson | None = None
    tasks: tuple[str | None, ...] = ()
    by_mergekit: bool = False

    @property
    def unverified(self) -> tuple[Checkpoint, ...]:
        """The model and, unless merge.json has their digests, its experts."""
        return (self.model, *(() if self.merged else self.experts))


def open_ingredients(model: str, sources: Sources) -> Ingredients:
    """A model with its experts and base: those that its folder records, or those of `sources`."""
    checkpoint = sources.open(model)
    path = checkpoint.path
    if (merged := read_merge_json(path)) is not None:
        return _as_recorded(checkpoint, merged, sources)
    kit = path / MERGEKIT_FILE
    if kit.is_file() and not (path / EXPERT_FILE).is_file():  # not fine-tuned since
        return _of_mergekit(checkpoint, kit, sources)
    experts = tuple(sources.open(source) for source in sources.experts)
    return Ingredients(checkpoint, experts, sources.open_base())


def _as_recorded(model: Checkpoint, merged: MergeJson, sources: Sources) -> Ingredients:
    """A model with the experts, tasks and base of its merge.json, at their places in `sources` or
    in the record."""
    base = sources.open_base()
    if merged.base is not None:
        if base is None:
            base = _open_recorded(merged.base, model.path, "--base", sources)
        elif not (sources.other_base or is_base(base, merged.base_weights)):
            _matched_by_digest([base], [merged.base], model.source, "--base")
    if sources.experts:
        if len(sources.experts) != len(merged.experts):
            raise BadRecipe(
                f"{model.source} was merged from {len(merged.experts)} experts, found "
                f"{len(sources.experts)} in --experts; expected every one of them"
            )
        opened = [sources.open(source, base) for source in sources.experts]
        experts = _matched_by_digest(opened, merged.experts, model.source, "--experts")
    else:
        experts = [
            _open_recorded(o, model.path, "--experts", sources, base) for o in merged.experts
        ]
    check_architecture([model, *experts, *([base] if base else [])])
    tasks = tuple(origin.task for origin in merged.experts)
    return Ingredients(model, tuple(experts), base, merged, tasks)


def _of_mergekit(model: Checkpoint, kit: Path, sources: Sources) -> Ingredients:
    """A model with the experts and base of mergekit_config.yml, unless `sources` has others.

    Raises BrokenCheckpoint for one that is not there.
    """
    named = named_models(kit)

    def open_named(source: str, flag: str) -> Checkpoint:
        try:
            return sources.open(source)
        except BrokenCheckpoint as error:
            raise BrokenCheckpoint(
                f"{error}; {kit} names this model: say where it is with {flag}"
            ) from error

    experts = [sources.open(source) for source in sources.experts]
    experts = experts or [open_named(source, "--experts") for source in named.experts]
    base = sources.open_base()
    if base is None and named.base is not None:
        base = open_named(named.base, "--base")
    return Ingredients(_with_experts_labels(model, experts), tuple(experts), base, by_mergekit=True)


def _with_experts_labels(checkpoint: Checkpoint, experts: Sequence[Checkpoint]) -> Checkpoint:
    """A model merged by mergekit, with the label names of its experts.

    mergekit copies the configuration of the base, or of any one model, and merges heads by
    position: only labels that all experts agree on say what the outputs mean. A head merged from
    heads of different labels means nothing, and counts as none.
    """
    labels = [expert.labels for expert in experts]
    if checkpoint.labels is None or not labels or labels[0] is None:
        return checkpoint
    if not all(other is not None and same(other, labels[0]) for other in labels):
        return replace(checkpoint, labels=None)
    fits = len(labels[0]) == len(checkpoint.labels)
    return replace(checkpoint, labels=labels[0]) if fits else checkpoint


def _matched_by_digest(
    opened: Sequence[Checkpoint], recorded: Sequence[Origin], merged: str, flag: str
) -> list[Checkpoint]:
    """The given checkpoints in the order in which they were merged, identified by their digests."""
    rest = [(weights.digest(model.weights), model) for model in opened]
    ordered = []
    for origin in recorded:
        index = next((i for i, (digest, _) in enumerate(rest) if digest == origin.digest), None)
        if index is None:
            choices = ", ".join(f"{model.source} ({digest[:12]})" for digest, model in rest)
            raise BadRecipe(
                f"{merged} was merged from {origin.source}, whose weights hash to "
                f"{origin.digest[:12]}, found {choices} in {flag}; expected those very weights"
            )
        ordered.append(rest.pop(index)[1])
    return ordered


def _open_recorded(
    origin: Origin, path: Path, flag: str, sources: Sources, base: Checkpoint | None = None
) -> Checkpoint:
    """A recorded checkpoint, at its full path, at its path from the folder of the merge, or on the
    Hub.

    Raises BrokenCheckpoint if none of these places has the weights that were merged.
    """
    relative = None if origin.relative is None else path / origin.relative
    # `merged/../base` is not `base` if `merged` is a link: both are tried, their digests decide
    beside = [] if relative is None else [os.path.normpath(relative), str(relative)]
    # a relative source began at the working directory of that run: from here it may be another
    recorded = [origin.source] if not beside or os.path.isabs(origin.source) else []
    existing = [place for place in (*recorded, *beside) if os.path.isdir(place)]
    if not existing and beside:
        raise BrokenCheckpoint(
            f"{path / MERGE_FILE} names {origin.source}, and {beside[0]} is not there; "
            f"expected that folder: say where it is now with {flag}"
        )
    changed = []
    for place in existing or [origin.source]:
        found = sources.open(place, base)
        now = weights.digest(found.weights)
        if now == origin.digest:
            return found
        changed.append((place, now))
    place, now = changed[0]
    raise BrokenCheckpoint(
        f"{place} has changed since it was merged into {path}: its weights hash to {now[:12]}, "
        f"expected {origin.digest[:12]}; name the right one with {flag}"
    )
