"""The properties of methods before, in and after a merge: each has a function that raises Broken.

A property is about toys of `harness.checking.toys`, so it needs no data and no network. `calls` and
`sizes` are about the function alone; `folders` and `families` are about what the harness does
around it, and go through `harness.merge` itself.
"""

from __future__ import annotations

from harness.checking.properties import calls, families, folders, sizes
from harness.checking.properties.property import PROPERTIES

__all__ = ["PROPERTIES", "calls", "families", "folders", "sizes"]
