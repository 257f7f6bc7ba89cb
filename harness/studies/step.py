"""A step of a study: one verb with its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from harness.hashes import digest_of

Verb = Literal["finetune", "statistics", "merge", "evaluate"]
VERBS: tuple[Verb, ...] = get_args(Verb)

TASK_FIELDS = ("task", "tasks", "tune_on")
"""Fields of a request that name tasks."""


@dataclass(frozen=True)
class Step:
    """One piece of work: a verb with its arguments (`request`), paths from the study's folder.

    `needs` are the steps whose results it reads; `after` are others that it waits for, which make
    records that it would make as well. `inputs` are hashes of what it reads and no step makes, by
    name. `cells`: how many scores of merges it makes, task x protocol. Its time is estimated by
    `base`, `about` (what it does, in words) and `size` (rows that it reads; None: not counted). The
    name of an expert or merge is its folder.
    """

    name: str
    verb: Verb
    request: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    cells: int = 0
    base: str = ""
    about: str = ""
    size: float | None = 1.0

    @cached_property
    def digest(self) -> str:
        """A hash of verb and request; requests of steps that it needs are no part of it."""
        return digest_of([self.verb, self.request])

    @property
    def board(self) -> str:
        """The board of the records that an evaluation makes."""
        return Path(self.request["output"]).name

    def asked(self, *fields: str) -> list[Any]:
        """All values of these fields of the request, each of which has one value or a list."""
        values = map(self.request.get, fields)
        listed = (value if isinstance(value, list) else [value] for value in values)
        return [one for several in listed for one in several if one]
