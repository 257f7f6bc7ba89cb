"""All settings of an evaluation, as a value."""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationInfo, field_validator

from harness.passes.placement import FULL_PRECISION, DType, Placement
from harness.presets import PresetName
from harness.types import AUTO
from harness.values import Chosen, PositiveWhole, Request, RowsAtOnce, Tokens, Whole


class Run(Request):
    """An evaluation: which model and references, on which tasks, under which protocols.

    `other_base` accepts a base that the models were not made from. `heads_from` is a folder of
    heads for models that have none, as `harness heads` writes them. `limit` is the number of rows
    drawn of each split (`data.splits.pick`), or with `first` taken from its start. `train_limit` is
    the number of training rows from which shots are drawn, and which `all` shots take.
    """

    model: str
    experts: tuple[str, ...] = ()
    base: str | None = None
    other_base: bool = False
    heads_from: str | None = None
    references: tuple[str, ...] = ()
    ceilings: tuple[Chosen, ...] = ()
    best_single: bool = False
    singles: bool = False
    tasks: tuple[str, ...] = ()
    protocols: tuple[Chosen, ...] = ()
    metrics: tuple[str, ...] = ()
    preset: PresetName | None = None
    shots: tuple[Whole | Literal["all"], ...] = (1, 5, 10)
    draws: Whole = 5
    stratified: bool = True
    seed: Whole = 0
    labels: Literal["by-name", "by-index"] = "by-name"
    limit: PositiveWhole | None = None
    train_limit: PositiveWhole | None = None
    first: bool = False
    max_length: Tokens | None = None
    data_dir: str | None = None
    output: str = "records"
    batch_size: RowsAtOnce = AUTO
    device: str = AUTO
    dtype: DType = FULL_PRECISION
    allow_pickle: bool = False

    @field_validator("first")
    @classmethod
    def _first_of_some(cls, first: bool, run: ValidationInfo) -> bool:
        if first and run.data.get("limit") is None:
            raise ValueError("it takes the first rows of a limit, found none; give --limit N")
        return first

    @property
    def placement(self) -> Placement:
        """The device that models run on, and their precision."""
        return Placement(device=self.device, dtype=self.dtype)


DEFAULTS = Run(model="")
"""A run with all defaults, to find the settings that differ."""
