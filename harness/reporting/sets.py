"""Pure: lines -> their sets of experts: experts of the same tasks, trained with other seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from harness.hashes import joined
from harness.reporting.lines import Line, grouped


def with_set_numbers(lines: Sequence[Line]) -> list[Line]:
    """The lines with the number of their set, 0 for the first.

    A set has the experts of a merge. Sets have the same tasks, no expert in common, and training
    that differs only in seeds, as far as is known. Their experts are replicates, and so are their
    merges and ensembles by one method, and bases under heads that they taught.
    """
    numbers = _numbers(lines)
    if not numbers:
        return [*lines]
    own = [_own(line, numbers) for line in lines]
    of_model: dict[str, set[int]] = {}
    for line, own_set in zip(lines, own, strict=True):
        of_model.setdefault(line.digest, set()).update([] if own_set is None else [own_set])
    numbered = []
    for line, own_set in zip(lines, own, strict=True):
        # of a base, only the records under some protocols name the experts whose heads it has
        sets = of_model[line.digest] if own_set is None else {own_set}
        number = min(sets) if len(sets) == 1 else 0
        # an unchanged line is kept, not copied: boards look lines up by `id`
        numbered.append(line if line.set == number else replace(line, set=number))
    return numbered


def _own(line: Line, numbers: Mapping[str, int]) -> int | None:
    """The set of an expert, or of the experts whose weights, outputs or heads made a model; None
    if unknown."""
    if line.digest in numbers:
        return numbers[line.digest]
    digests = line.teachers or line.heads_of or [digest for _, digest in line.experts]
    sets = {numbers.get(digest) for digest in digests}
    return sets.pop() if len(sets) == 1 else None


def _numbers(lines: Sequence[Line]) -> dict[str, int]:
    """The number of the set of each expert and ensemble, by digest; {} if there is one set."""
    by_tasks: dict[tuple[str, ...], dict[frozenset[str], Line]] = {}
    for line in lines:
        if line.trained:
            digests = frozenset(digest for _, digest in line.experts)
            tasks = tuple(sorted(task for task, *_ in line.trained))
            by_tasks.setdefault(tasks, {}).setdefault(digests, line)
    numbers: dict[str, int] = {}
    # merges of most experts come first: merges of some of these experts make no sets of their own
    for sets in (by_tasks[tasks] for tasks in sorted(by_tasks, key=len, reverse=True)):
        every = [digest for digests in sets for digest in digests]
        seeds = {
            members: sorted(expert[:3] for expert in line.trained) for members, line in sets.items()
        }
        apart = len({*every}) == len(every) and len({*map(str, seeds.values())}) == len(sets)
        if apart and _alike(sets.values()) and not {*every} & numbers.keys():
            order = sorted(sets, key=lambda digests: str(seeds[digests]))
            numbers |= {digest: index for index, digests in enumerate(order) for digest in digests}
    if not any(numbers.values()):
        return {}
    merges = [line for line in lines if line.trained]
    return numbers | {
        ensemble: numbers[first]
        for line in merges
        for ensemble, (first, *_) in ensembles(line).items()
        if first in numbers
    }


def _alike(sets: Iterable[Line]) -> bool:
    """Whether, task by task, experts of all sets had the same training (rows, epochs, and so on);
    sets where it is unknown do not count."""
    trainings: dict[str, set[tuple[str, ...]]] = {}
    for line in sets:
        for task, experts in grouped(line.trained, lambda expert: expert[0]).items():
            known = sorted(training for *_, training in experts)
            if all(known):
                trainings.setdefault(task, set()).add(tuple(known))
    return all(len(variants) == 1 for variants in trainings.values())


def ensembles(line: Line) -> dict[str, list[str]]:
    """The digests of members by the digest of their ensemble: that of a merge's experts of each
    task, and that of all."""
    digests = [digest for _, digest in line.experts]
    own: dict[str, list[str]] = {}
    for (task, *_), digest in zip(line.trained, digests, strict=False):
        own.setdefault(task, []).append(digest)
    return {joined(group): group for group in (*own.values(), digests) if group}
