"""The names of a network in memory, which releases of transformers change, and those of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch

from harness.checkpoints.families.known import KNOWN

T = TypeVar("T")


def canonical(network: torch.nn.Module, named: Mapping[str, T]) -> dict[str, T]:
    """Parameters, or modules, by the names that the network's family has for them."""
    family = KNOWN.get(getattr(getattr(network, "config", None), "model_type", ""))
    return dict(named) if family is None else {family.canonical(n): v for n, v in named.items()}


def in_memory(network: torch.nn.Module, named: Mapping[str, T]) -> dict[str, T]:
    """What goes by a family's names by those of the network."""
    own = canonical(network, {name: name for name in network.state_dict()})
    return {own.get(name, name): value for name, value in named.items()}


def parameters_of(network: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters of a network by the names of its family."""
    return canonical(network, dict(network.named_parameters()))


def modules_of(network: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The modules of a network by the names of its family."""
    return canonical(network, dict(network.named_modules()))
