"""Pure: lines -> the lines of each base, where records have several bases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from harness.evaluation.records import safe_name
from harness.reporting.lines import Line
from harness.reporting.sets import ensembles
from harness.text import last_part


def by_base(lines: Sequence[Line], *, always: bool = False) -> dict[str, list[Line]]:
    """The lines by base, under names that folders may have; all under "" if there is one base.

    Bases that share no task are columns of one board and stay together under "". With `always`
    they are separated, and a single base has its name, too.

    To a base belong the merges made from it, their experts, the models that these teach, and lines
    that belong to no base. Bases whose merges share an expert count as one, and so do those of one
    source: without its pooler a base has another digest.
    """
    parents: dict[str, str] = {}

    def first(key: str) -> str:
        """The root of a group of connected digests and sources (union-find)."""
        while (parent := parents.setdefault(key, key)) != key:
            parents[key] = key = parents[parent]
        return key

    # a reference connects no bases: experts of several may teach it
    for line in lines:
        if line.role != "reference":
            for one, other in pairwise(_base_links(line)):
                parents[first(other)] = first(one)
    sources = {first(one.base_digest): one.base for one in lines if one.base_digest}
    tasks = {(first(one.base_digest), one.task) for one in lines if one.base_digest}
    if not always and len(tasks) == len({task for _, task in tasks}):
        return {"": [*lines]}
    digests = {first(one.base_digest): one.base_digest for one in lines if one.base_digest}
    names = dict(zip(sources, _names(sources.values(), digests.values()), strict=True))
    groups: dict[str, list[Line]] = {name: [] for name in names.values()}
    for line in lines:
        mine = {names[root] for link in _base_links(line) if (root := first(link)) in names}
        for name in mine or groups:
            groups[name].append(line)
    return groups


def base_options(lines: Iterable[Line]) -> str:
    """The options that choose one of several bases, `--base one or --base two`; '' for one."""
    sources = dict.fromkeys({line.base_digest: line.base for line in lines if line.base}.values())
    return " or ".join(f"--base {source}" for source in sources) if len(sources) > 1 else ""


def _base_links(line: Line) -> list[str]:
    """All that connects a line to a base: digests, and the base's source."""
    experts = (digest for _, digest in line.experts)
    by_ensemble = ensembles(line) if line.trained else ()
    links = (line.digest, line.base_digest, line.base, *line.teachers, *line.heads_of)
    return [link for link in (*links, *experts, *by_ensemble) if link]


def _names(sources: Iterable[str], digests: Iterable[str]) -> list[str]:
    """The last parts of sources, with a digest where two are equal or one is empty."""
    names = [safe_name(last_part(source)).lstrip(".") for source in sources]
    pairs = zip(names, digests, strict=True)
    return [n if n and names.count(n) == 1 else f"{n or 'base'}-{d[:8]}" for n, d in pairs]
