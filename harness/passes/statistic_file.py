"""Shell: a statistic in a file: its description, and the checks before it is used."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from harness import weights
from harness.code import code_of
from harness.errors import BrokenCheckpoint
from harness.passes.cache import SEAL, is_whole, read_sealed
from harness.registry import NEEDS
from harness.types import Checkpoint, Need, StateDict
from harness.values import reason


class Facts(BaseModel):
    """Facts about the pass: the digest of its rows, their maximum length, and the weights that no
    row reached.

    `placement` is the half precision that it ran in, with the kind of device; empty for float32.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    rows: str = ""
    max_length: int = 0
    not_run: tuple[str, ...] = Field(default=(), alias="not run")
    placement: dict[str, str] = {}


class StatisticDescription(BaseModel):
    """The description of the tensors in a file, as JSON.

    `need`, which is written as "kind", is the name of the need they meet; `digest` is the hash of
    the weights they were computed on, `task` is `name@split`; `shared` maps each weight that shares
    another's tensor to that one; `code` is the hash of a plug-in's code if that computed them.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    need: str = Field(alias="kind")
    options: dict[str, str | bool | int | FiniteFloat | list[FiniteFloat] | None]
    task: str
    digest: str
    model: str = ""
    facts: Facts = Facts.model_construct()
    shared: dict[str, str] = {}
    versions: dict[str, str] = {}
    code: str = ""

    def written(self, exclude: set[str] | None = None) -> dict[str, Any]:
        """The description as JSON, without placement and code if these are empty, as in older
        files."""
        values = self.model_dump(mode="json", by_alias=True, exclude=exclude)
        if not self.code:
            del values["code"]
        if not self.facts.placement:
            del values["facts"]["placement"]
        return values

    def recorded(self) -> dict[str, Any]:
        """The description as the record of a merge holds it."""
        values = self.written({"shared", "versions"})
        return {**values.pop("facts"), **values}


@dataclass(frozen=True)
class Statistic:
    """A statistic: its description, its tensors as they are stored, and the file they are in.

    `header` is the parsed description, `description` the one in the file, with its seal.
    """

    header: StatisticDescription
    stored: StateDict
    source: str
    description: Mapping[str, Any] = field(default_factory=dict)

    @property
    def need(self) -> str:
        """The need that it meets, by name."""
        return self.header.need

    @property
    def tensors(self) -> StateDict:
        """The tensor of each weight, by name; one that is not finite raises BrokenCheckpoint."""
        places = {**{name: name for name in self.stored}, **self.header.shared}
        specs = weights.specs(self.stored)

        def read(name: str) -> torch.Tensor:
            tensor = self.stored[places[name]]
            weights.check_finite(name, tensor, self.source)
            return tensor

        return weights.Lazy({name: specs[place] for name, place in places.items()}, read)


# Files -------------------------------------------------------------------------------------


def read_statistic(path: str | Path) -> Statistic:
    """Open a file that `harness statistics` wrote; tensors are read when they are asked for.

    Raises BrokenCheckpoint, naming the file, for any other file.
    """
    return parse_statistic(Path(path), *read_sealed(Path(path)))


def parse_statistic(path: Path, tensors: StateDict, description: Mapping[str, Any]) -> Statistic:
    """The statistic of a file with these tensors and this description. Raises BrokenCheckpoint."""
    what = "a file that `harness statistics` wrote"
    if not description:
        raise BrokenCheckpoint(f"{path} does not say what statistics it holds; expected {what}")
    try:
        # as JSON, where strict mode takes a list for a tuple
        parsed = StatisticDescription.model_validate_json(json.dumps(description))
    except ValidationError as error:
        raise BrokenCheckpoint(
            f"{path}: {reason(error, StatisticDescription)}; expected {what}"
        ) from error
    for name, place in parsed.shared.items():
        if place not in tensors or name in tensors:
            raise BrokenCheckpoint(
                f"{path} says that '{name}' shares the tensor of '{place}', which is missing, or "
                f"has one itself; expected {what}"
            )
    return Statistic(parsed, tensors, str(path), description)


# Checks ------------------------------------------------------------------------------------


def check_statistic(statistic: Statistic, checkpoint: Checkpoint) -> None:
    """Raise BrokenCheckpoint, naming file and tensor, unless the statistic fits the checkpoint.

    Every tensor must be there, or be listed as not reached by any row; have the shape and type of
    the need's `shapes`; be finite; and pass the need's `fault`. Not all may be zero, and the file
    must be as it was written, by the code that is loaded. Warns of a file that does not say which
    code that was. Raises UnknownName for a need that is not registered.
    """
    need = NEEDS.from_file(statistic.need, statistic.source)
    code = code_of(need.function) or ""
    if code and not statistic.header.code:
        warnings.warn(
            f"{statistic.source} does not say which code of the need '{need.name}' computed it, as "
            "older files do not: make it again if that code has changed",
            stacklevel=2,
        )
    elif statistic.header.code != code:
        raise BrokenCheckpoint(
            f"{statistic.source} was computed by other code of the need '{need.name}' than is "
            "loaded; make it again with `harness statistics`"
        )
    expected, tensors = shapes_of(need, checkpoint), statistic.tensors
    have = weights.specs(tensors)
    for name, spec in expected.items():
        if name not in have and name not in statistic.header.facts.not_run:
            raise BrokenCheckpoint(
                f"{statistic.source} has no '{name}' and does not say that no input reached it; "
                f"expected statistics of all of {checkpoint.source}"
            )
        if name in have and have[name] != spec:
            raise BrokenCheckpoint(
                f"'{name}' of {statistic.source} is {have[name].dtype} {have[name].shape}, "
                f"expected {spec.dtype} {spec.shape} as {checkpoint.source} has it"
            )
    holds = False
    for name in statistic.stored:
        tensor = tensors[name]
        if need.fault and (fault := need.fault(tensor)):
            raise BrokenCheckpoint(f"'{name}' of {statistic.source} {fault}")
        holds = holds or bool(tensor.any())
    if not holds:
        raise BrokenCheckpoint(f"{statistic.source} holds only zeros, expected statistics of rows")
    if SEAL in statistic.description and not is_whole(statistic.stored, statistic.description):
        raise BrokenCheckpoint(
            f"{statistic.source} was changed since it was written; make it again with "
            "`harness statistics`"
        )


def shapes_of(need: Need, checkpoint: Checkpoint) -> dict[str, weights.Spec]:
    """Names, shapes and types of a statistic's tensors, by headers and configuration alone."""
    return dict(need.shapes(checkpoint)) if need.shapes else {}
