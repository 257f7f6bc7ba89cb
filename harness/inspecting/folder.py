"""Shell: an inspection -> a folder of JSON and heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.checkpoints.families.symmetry import ROLES
from harness.folders import Layout, new_folder
from harness.inspecting.comparison import Measure, available_measures
from harness.inspecting.inspection import Inspection, Pair, as_record, numbers_of
from harness.inspecting.units import in_squares
from harness.reporting.figures import Figure, HeatMap, heat_map, matrix_map, save
from harness.weights import Layer

if TYPE_CHECKING:
    import pandas
    import torch

INSPECTION = Layout("an inspection", "inspect.json")


def write(inspection: Inspection, out: Path, *, force: bool = False) -> None:
    """Write inspect.json, and for each measure and pair a heat map: `cosine-1-2.png` and `.svg`.

    Also for each pair a heat map of the units matched to themselves, `units-1-2`, and for each
    requested layer one of unit by unit, `units-1-2-layer-0`. Models are numbered as given.
    """
    with new_folder(out, INSPECTION, force=force) as folder:
        for pair in inspection.pairs:
            both = "-".join(numbers_of(inspection, pair))
            for measure in available_measures(with_base=inspection.base is not None):
                if (values := map_of(pair, measure)) is not None:
                    save(heat_map(values), folder / f"{measure.name}-{both}")
            if pair.units:
                save(heat_map(map_of_units(pair)), folder / f"units-{both}")
            for layer, matrix in pair.alike.items():
                picture = matrix_of_units(pair, layer, *in_squares(matrix))
                save(picture, folder / f"units-{both}-layer-{layer}")
        INSPECTION.write(folder, as_record(inspection))


def map_of_units(pair: Pair) -> HeatMap:
    """The heat map of the share of feed-forward units that are matched to themselves, by layer."""
    import pandas

    shares = {"feed-forward\nunits": [units.share for units in pair.units.values()]}
    panel = pandas.DataFrame(shares, [*map(str, pair.units)]).rename_axis("layer")
    title = f"Units matched to themselves: {pair.first.name}, {pair.second.name}"
    return HeatMap(title, (panel,), "share of a layer's units", 0.0, 1.0, ".2f")


def matrix_of_units(pair: Pair, layer: Layer, values: torch.Tensor, side: int) -> Figure:
    """The picture of all pairs of units of a layer, or of the largest in squares of `side`."""
    unit = f"cosine, the largest of {side} × {side} units" if side > 1 else "cosine"
    title = f"Feed-forward units of layer {layer}, by their weights"
    sides = (f"unit of {model.name}" for model in (pair.first, pair.second))
    return matrix_map(title, values.numpy(), unit, *sides, step=side)


def map_of(pair: Pair, measure: Measure) -> HeatMap | None:
    """The heat map of a measure: layers x roles, and below them the tensors outside of layers.

    The scale is that of the layers, as a newly initialised head is far from any other. None where
    the measure is defined nowhere, such as the cosine of a task vector that is zero.
    """
    layers = _panel(pair, measure, pair.layers).rename_axis("layer")
    outside = _panel(pair, measure, [None]).rename_axis("role of the weights", axis="columns")
    panels = [panel for panel in (layers, outside) if panel.size]
    if not panels:
        return None
    values = panels[0].stack()
    low = min([measure.low, *values])
    high = measure.high if measure.high is not None else max([low, *values])
    high = high if high > low else low + 1  # all values equal
    title = measure.title.format(first=pair.first.name, second=pair.second.name)
    return HeatMap(title, panels, measure.unit, low, high, measure.form)


def _panel(pair: Pair, measure: Measure, layers: Sequence[Layer | None]) -> pandas.DataFrame:
    """The measure by layer (None: outside of layers) and role, without roles that have no value."""
    import pandas

    values = {
        role.replace(" ", "\n"): [
            getattr(pair.sum_over([layer], role), measure.name, None) for layer in layers
        ]
        for role in ROLES
    }
    names = ["outside" if layer is None else str(layer) for layer in layers]
    return pandas.DataFrame(values, names, dtype=float).dropna(axis="columns", how="all")
