"""Shell: a folder of a merge, held to what its merge.json says of the weights in it and of its
experts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness import weights
from harness.checkpoints.bases import is_base
from harness.checkpoints.layout import SINGLE, refuse_code
from harness.checkpoints.open import check_counts, labels_of, open_checkpoint, open_weights
from harness.checkpoints.provenance import MERGE_FILE, Merged, Origin, changed
from harness.checkpoints.settings import check_settings
from harness.errors import BadRecipe, BrokenCheckpoint
from harness.evaluation.run import Run
from harness.files import read_json
from harness.types import Checkpoint


def opened_for(run: Run, source: str, base: Checkpoint | None = None) -> Checkpoint:
    """A checkpoint that a run names, opened as the run allows; an adapter, with the run's base."""
    of = base.path if base is not None else run.base
    return open_checkpoint(source, allow_pickle=run.allow_pickle, base=of)


def ingredients_of(
    run: Run, path: Path, merged: Merged
) -> tuple[tuple[Checkpoint, ...], list[str | None], Checkpoint | None]:
    """Experts, their tasks and the base that merge.json names, wherever they are now."""
    base = None
    if run.base is not None:
        base = opened_for(run, run.base)
        known = run.other_base or is_base(base, merged.base_weights)
        if merged.base is not None and not known:
            _in_order([base], [merged.base], run.model, "--base")
    elif merged.base is not None:
        base = _place(merged.base, path, "--base", run)
    if run.experts:
        if len(run.experts) != len(merged.experts):
            raise BadRecipe(
                f"{run.model} was merged from {len(merged.experts)} experts, found "
                f"{len(run.experts)} in --experts; expected one for each"
            )
        given = [opened_for(run, source, base) for source in run.experts]
        experts = _in_order(given, merged.experts, run.model, "--experts")
    else:
        experts = [_place(origin, path, "--experts", run, base) for origin in merged.experts]
    return tuple(experts), [origin.task for origin in merged.experts], base


def _in_order(
    given: Sequence[Checkpoint], recorded: Sequence[Origin], merged: str, flag: str
) -> list[Checkpoint]:
    """The given checkpoints in the order in which they were merged, told by what they hold."""
    left = [(weights.digest(one.weights), one) for one in given]
    ordered = []
    for origin in recorded:
        place = next((i for i, (known, _) in enumerate(left) if known == origin.digest), None)
        if place is None:
            shown = ", ".join(f"{one.source} ({known[:12]})" for known, one in left)
            raise BadRecipe(
                f"{merged} was merged from {origin.source}, whose weights hash to "
                f"{origin.digest[:12]}, found {shown} in {flag}; expected those very weights"
            )
        ordered.append(left.pop(place)[1])
    return ordered


def _place(
    origin: Origin, path: Path, flag: str, run: Run, base: Checkpoint | None = None
) -> Checkpoint:
    """A recorded checkpoint, where it is now: by its full path, by the way to it from the folder of
    the merge, or on the Hub.

    Raises BrokenCheckpoint when it is gone or nothing there holds the weights that were merged.
    """
    beside = _ways(path / origin.relative) if origin.relative is not None else []
    # a shorter path started from where somebody was then, and may be another model from here
    known = [origin.source] if not beside or os.path.isabs(origin.source) else []
    there = [place for place in (*known, *beside) if os.path.isdir(place)]
    if not there and beside:
        raise BrokenCheckpoint(
            f"{path / MERGE_FILE} names {origin.source}, which is not there; expected that folder: "
            f"say where it is with {flag}"
        )
    changed = []
    for place in there or [origin.source]:
        opened = opened_for(run, place, base)
        now = weights.digest(opened.weights)
        if now == origin.digest:
            return opened
        changed.append((place, now))
    place, now = changed[0]
    raise BrokenCheckpoint(
        f"{place} has changed since it was merged into {path}: its weights hash to {now[:12]}, "
        f"expected {origin.digest[:12]}; name the right one with {flag}"
    )


def _ways(path: Path) -> list[str]:
    """`merged/../base` as `base`; where `merged` is a link, these may be two folders: both.

    What they hold decides between them.
    """
    short = os.path.normpath(path)
    there = os.path.isdir(short) and os.path.isdir(path)
    return [short] if there and os.path.samefile(short, path) else [str(path), short]


def kept_heads(checkpoint: Checkpoint, merged: Merged | None) -> dict[str, Checkpoint]:
    """The encoder under each head of heads/<task>/.

    Raises BrokenCheckpoint for a head that is not the one merge.json speaks of.
    """
    heads = checkpoint.path / "heads"
    kept = {}
    for config in sorted(heads.glob("**/config.json")):
        task = config.parent.relative_to(heads).as_posix()
        head = open_weights(config.parent)
        if merged is not None and weights.digest(head) != merged.head_digests.get(task):
            raise changed(config.with_name(SINGLE), MERGE_FILE)
        for name in sorted(head.keys() & checkpoint.weights.keys()):
            pair = (weights.select(one, [name]) for one in (head, checkpoint.weights))
            if len(set(map(weights.digest, pair))) > 1:
                raise BrokenCheckpoint(
                    f"{config.parent} has the tensor '{name}', and {checkpoint.source} has another "
                    "of that name; expected the head alone"
                )
        settings = read_json(config, "a configuration")
        refuse_code(settings, config)
        whole = weights.union(checkpoint.weights, head)
        check_counts(settings, whole, str(config))
        kept[task] = replace(
            checkpoint,
            config=settings,
            weights=whole,
            labels=labels_of(settings, str(config)),
        )
        check_settings([checkpoint, replace(kept[task], source=str(config.parent))])
    return kept
