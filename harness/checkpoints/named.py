"""A network's names in memory, which vary with transformers' release -> its family's, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch

from harness.checkpoints.families.known import FAMILY_OF_TYPE

T = TypeVar("T")


def to_family_names(network: torch.nn.Module, named: Mapping[str, T]) -> dict[str, T]:
    """Parameters, or modules, by the names that the network's family has for them.

    For a family without a file of its own, these are the names that transformers writes.
    """
    family = FAMILY_OF_TYPE.get(getattr(getattr(network, "config", None), "model_type", ""))
    if family is not None:
        return {family.canonical(name): value for name, value in named.items()}
    written = _written(network)
    return {written.get(name, name): value for name, value in named.items()}


_WRITTEN: WeakKeyDictionary[torch.nn.Module, dict[str, str]] = WeakKeyDictionary()


def _written(network: torch.nn.Module) -> dict[str, str]:
    """The names that transformers writes for tensors, and for modules with weights, by their names
    in memory; they differ in some releases.
    """
    if network not in _WRITTEN:
        from transformers.core_model_loading import revert_weight_conversion

        own = network.state_dict(keep_vars=True)
        places = {id(tensor): name for name, tensor in own.items()}
        saved = revert_weight_conversion(network, own)
        names = {places[id(tensor)]: name for name, tensor in saved.items() if id(tensor) in places}
        modules = {n.removesuffix(".weight"): names[n].removesuffix(".weight") for n in names}
        _WRITTEN[network] = {**modules, **names}
    return _WRITTEN[network]


def to_memory_names(network: torch.nn.Module, named: Mapping[str, T]) -> dict[str, T]:
    """Values by the family's names -> by the network's names in memory: undoes
    `to_family_names`."""
    own = to_family_names(network, {name: name for name in network.state_dict()})
    return {own.get(name, name): value for name, value in named.items()}


def tensors_of(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a network by the names of its family."""
    return to_family_names(network, network.state_dict())


def parameters_of(network: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters of a network by the names of its family."""
    return to_family_names(network, dict(network.named_parameters()))


def modules_of(network: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The modules of a network by the names of its family."""
    return to_family_names(network, dict(network.named_modules()))
