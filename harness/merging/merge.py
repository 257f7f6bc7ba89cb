"""From a recipe to a merged folder: plan, tune, meet the needs, write."""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from harness.checkpoints.bases import check_bases, check_stay
from harness.checkpoints.layout import MERGE_LAYOUT
from harness.checkpoints.provenance import check_weights_unchanged
from harness.errors import BadRecipe
from harness.folders import check_output
from harness.merging.checked import short_method
from harness.merging.initialisation import check_shared_initialisation
from harness.merging.plan import MergePlan, plan, spool_rereads
from harness.merging.providers import prepare, statistic_rows
from harness.merging.recipes import Recipe, recipe_and_fields
from harness.merging.spool import Spool
from harness.merging.tune import (
    candidates,
    choose_best,
    grid,
    scored_row_counts,
    with_shared_direction,
)
from harness.merging.write import TENSORS, write
from harness.passes.workload import Workload
from harness.text import few
from harness.types import Progress


def merge(
    recipe: Recipe | str | Path,
    *,
    out: str | Path,
    force: bool = False,
    dry_run: bool = False,
    allow_pickle: bool = False,
    progress: Progress | None = None,
) -> MergePlan:
    """Merge as the recipe (or its YAML file) says and write the folder `out`.

    `force` replaces an older merge there. Returns the plan. With `dry_run` all checks by headers
    alone are made and nothing is written. `progress` is called with what is being done, how
    much since the last call and how much in all, which may grow. Raises a HarnessError before
    anything is written, or for NaN and Inf while streaming, with no partial output left.
    """
    if not isinstance(recipe, (Recipe, str, Path)):
        raise BadRecipe(f"the recipe is {recipe!r:.80}, expected harness.Recipe(...) or its file")
    loaded = recipe if isinstance(recipe, Recipe) else recipe_and_fields(recipe)[0]
    check_output(Path(out), MERGE_LAYOUT, force=force)
    grid(loaded)  # may raise BadOption, before a file is read
    workload = Workload(progress)
    with ExitStack() as stack:

        def planned(recipe: Recipe) -> MergePlan:
            spool = stack.enter_context(Spool(Path(out)))
            return plan(recipe, allow_pickle=allow_pickle, progress=workload.tell, spool=spool)

        draft = planned(loaded)
        check_stay(draft.models, Path(out))
        tried = candidates(draft, planned)
        if len(draft.experts) == 1:
            alone = f"there is one expert, {draft.experts[0].source}, and nothing to merge it with"
            applied = f"{short_method(draft.recipe)} is applied to it alone"
            warnings.warn(f"{alone}: {applied}", stacklevel=2)
        places = [expert.path.resolve() for expert in draft.experts]
        if often := {place: n for place, n in Counter(places).items() if n > 1}:
            text = ", ".join(f"{place} is merged {n} times" for place, n in often.items())
            warnings.warn(text, stacklevel=2)
        if dry_run:
            return draft
        for expert in draft.experts:
            check_weights_unchanged(replace(expert, weights=draft.source_weights[expert.source]))
        if not loaded.other_base:
            check_bases(draft.experts, draft.stored_base)
        # work that a method asks for as it merges, such as scores of a selection, is added then
        read = statistic_rows(p for trial in (tried.values() or [draft]) for p in trial.providers)
        for what, rows in (*read.items(), *scored_row_counts(tried).items()):
            workload.plan(what, rows)
        workload.plan(TENSORS, len(draft.state))
        trials = None
        if tried:
            draft, trials = choose_best(with_shared_direction(tried), Path(out))
        prepare(draft.providers)
        check_shared_initialisation(draft)
        draft = spool_rereads(draft, stack.enter_context(Spool(Path(out))))
        written = write(draft, Path(out), workload.tell, trials=trials, force=force)
        _warn_of_copies(written)
        return written


def _warn_of_copies(written: MergePlan) -> None:
    """Warn of experts in several places whose weights are the same, by digests that are known when
    the merge has been written: such experts count more than others."""
    places: dict[str, dict[Path, str]] = {}
    for expert in written.experts:
        digest = written.source_weights[expert.source].digest()
        places.setdefault(digest, {})[expert.path.resolve()] = expert.source
    for copies in places.values():
        if len(copies) > 1:
            told = f"{few([*copies.values()])} have the same weights"
            warnings.warn(f"{told}: one model is merged {len(copies)} times", stacklevel=3)
