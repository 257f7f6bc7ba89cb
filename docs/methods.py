"""Writes the facts below each name in methods.md, from the registries: `make docs`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.options import Option, options
from harness.ranges import choices
from harness.registry import MERGERS, NEEDS, POSTMERGE, PREMERGE, PROTOCOLS, Registry
from harness.types import Scalar

PAGE = Path(__file__).with_name("methods.md")
PARTS: Mapping[str, Registry[Any]] = {
    "Mergers": MERGERS,
    "Pre-merging methods": PREMERGE,
    "Post-merging methods": POSTMERGE,
    "What methods need": NEEDS,
    "Protocols": PROTOCOLS,
}
"""The parts of the page that have a heading for each name of a registry."""
SITES = {
    "arXiv": "https://arxiv.org/abs/",
    "doi": "https://doi.org/",
    "openreview": "https://openreview.net/forum?id=",
}
PART, NAME = re.compile(r"^(?=## )", re.M), re.compile(r"^### (\S+).*\n\n(?:.+\n)+", re.M)
WIDTH = 120


def page() -> str:
    """The page, with the paragraph below each name made from the registries.

    Raises ValueError, naming them, for names without a heading, and headings without a name.
    """
    return "".join(map(_part, PART.split(PAGE.read_text(encoding="utf-8"))))


def _part(text: str) -> str:
    registry = PARTS.get(text.partition("\n")[0].removeprefix("## "))
    if registry is None:
        return text
    found = [match[1] for match in NAME.finditer(text)]
    if odd := {*found} ^ {*registry}:
        raise ValueError(f"methods.md and the registry differ in {', '.join(sorted(odd))}")
    return NAME.sub(lambda match: _said(match[0].partition("\n")[0], registry[match[1]]), text)


def _said(heading: str, entry: Any) -> str:
    """The heading of an entry, and below it its source, needs and options."""
    needed = [f"[{need}](#{need}-need)" for need in getattr(entry, "needs", ())]
    facts = [
        _source(entry.paper),
        "exact" if getattr(entry, "exact", False) else "",
        f"needs {' and '.join(needed)}" if needed else "",
        ", ".join(_option(one) for one in options(entry.function).values()) or "no options",
    ]
    line = " · ".join(filter(None, facts))
    return f"{heading}\n\n{textwrap.fill(line, WIDTH, break_on_hyphens=False)}\n"


def _source(paper: str) -> str:
    site, _, place = paper.partition(":")
    return f"[{paper}]({SITES[site]}{place})" if site in SITES else paper


def _option(one: Option) -> str:
    """`scale=0.3`, or `trim=global|tensor`: the default first."""
    others = [str(value) for value in choices(one.schema) if value != one.default]
    return f"`{one.name}={'|'.join([_spelled(one.default), *others])}`"


def _spelled(value: Scalar) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


if __name__ == "__main__":
    from harness.files import write_text

    write_text(PAGE, page())
    print(f"wrote {PAGE}")
