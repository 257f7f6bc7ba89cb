"""The laws of methods before, in and after a merge: each a function that raises Broken.

A law is about toys of `harness.checking.toys`, so it needs no data and no network. `calls` and
`sizes` are about the function alone; `folders` and `families` are about what the harness does
around it, and go through `harness.merge` itself.
"""

from __future__ import annotations

from harness.checking.laws import calls, families, folders, sizes
from harness.checking.laws.law import LAWS, Broken, Law, Method, StageName, global_seed

__all__ = [
    "LAWS",
    "Broken",
    "Law",
    "Method",
    "StageName",
    "calls",
    "families",
    "folders",
    "global_seed",
    "sizes",
]
