"""The properties of pre-merging methods, mergers and post-merging methods.

Each is a function that raises Broken, run on toys of `harness.checking.toys`: it needs no data and
no network. `calls` and `sizes` call only the method; `folders` and `families` run it inside a merge
of the harness.
"""

from __future__ import annotations

from harness.checking.properties import calls, families, folders, sizes
from harness.checking.properties.property import PROPERTIES

__all__ = ["PROPERTIES", "calls", "families", "folders", "sizes"]
