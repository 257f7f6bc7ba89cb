"""What a paper's own code did where ours does otherwise, switched on by name (methods.md 4.12).

Outside a preset every method is computed as its mathematics says. A preset changes defaults; what
somebody asks for by an option stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from harness.types import Choice, Scalar

PresetName: TypeAlias = Literal["procrustes", "regmean", "rotation", "ft-classifier"]

Options: TypeAlias = "Mapping[str, Mapping[str, Scalar]]"


@dataclass(frozen=True)
class Preset:
    """Other defaults: options by method, metrics by task, protocols of an evaluation."""

    options: Options = field(default_factory=dict)
    metrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    protocols: tuple[str, ...] = ()


_BATCHES = 1000
"""RegMean's code counts batches of 16 where its settings speak of examples."""

_REGMEAN_CODE: Options = {
    "fisher": {
        "estimator": "hard",
        "examples": 16 * _BATCHES,
        "batch_size": 16,
        "floor": 1e-10,
        "normalize": "none",
    },
    # all GLUE settings of its code leave the off-diagonal entries as they are
    "regmean": {
        "off_diagonal": 1.0,
        "examples": 16 * _BATCHES,
        "batch_size": 16,
        "padding": True,
    },
}
_REGMEAN_METRICS = {
    "glue/mrpc": ("accuracy",),
    "glue/qqp": ("accuracy",),
    "glue/stsb": ("pearson",),
}

PRESETS: Mapping[PresetName, Preset] = {
    # Procrustes merging, on MergeLM's code
    "procrustes": Preset(
        options={
            "task_arithmetic": {"scale": 0.3},
            "ties": {"density": 0.2, "scale": 1.0, "trim": "global", "convention": "mergelm"},
            "fisher": {
                "estimator": "mergelm",
                "examples": 1024,
                "batch_size": 16,
                "floor": 1e-6,
                "normalize": "model",
            },
            "regmean": {
                "off_diagonal": 0.9,
                "examples": 1024,
                "batch_size": 16,
                "padding": True,
            },
            "dare": {"drop_rate": 0.5, "strategy": "random", "rescale": True},
        },
        protocols=("current",),
    ),
    # RegMean, on its own code
    "regmean": Preset(_REGMEAN_CODE, _REGMEAN_METRICS, ("current",)),
    # Rotation symmetry, on RegMean's code; its alpha is that of emotion and NER
    "rotation": Preset(
        {**_REGMEAN_CODE, "regmean": {**_REGMEAN_CODE["regmean"], "off_diagonal": 0.1}},
        _REGMEAN_METRICS,
        ("current",),
    ),
    "ft-classifier": Preset(
        options={
            "task_arithmetic": {"scale": 0.7},
            "ties": {"density": 0.2},
        },
    ),
}


def faithful(choice: Choice, name: PresetName | None) -> Choice:
    """A method with the options of a preset, but for those that somebody asked for."""
    return Choice(choice.name, {**preset(name).options.get(choice.name, {}), **choice.options})


def preset(name: PresetName | None) -> Preset:
    """The preset of a name; without one, nothing is other than the defaults."""
    return Preset() if name is None else PRESETS[name]
