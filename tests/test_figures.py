"""Pictures: every number stands in its cell, in its colour, and can be read there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest

from harness.errors import CannotWrite
from harness.reporting.figures import COLOURS, HeatMap, heat_map, readable, save
from tests.mistakes import mistake

NUMBERS = {"up": [0.0, 0.25], "down": [0.5, 1.0], "norm": [None, -0.0001]}
UPPER = pandas.DataFrame(NUMBERS, ["0", "1"]).rename_axis("layer")
LOWER = pandas.DataFrame({"head": [7.0]}, ["outside"]).rename_axis("role", axis="columns")
SHOWN = HeatMap("Cost in $ of 模型 and $x", (UPPER, LOWER), "a unit", low=0, high=1, form=".2f")


def cells(axes: Any) -> dict[tuple[float, float], str]:
    """The text of each cell, by its place."""
    return {one.get_position(): one.get_text() for one in axes.texts}


def test_every_number_stands_in_its_cell_and_has_its_colour() -> None:
    from matplotlib import colormaps

    upper, lower, bar = heat_map(SHOWN).axes
    assert cells(upper) == {
        (0.5, 0.5): "0.00",
        (1.5, 0.5): "0.50",
        (0.5, 1.5): "0.25",
        (1.5, 1.5): "1.00",
        (2.5, 1.5): "0.00",
    }
    assert cells(lower) == {(0.5, 0.5): "7.00"}
    assert [one.get_text() for one in upper.get_xticklabels()] == ["up", "down", "norm"]
    assert [one.get_text() for one in upper.get_yticklabels()] == ["0", "1"]
    assert (upper.get_ylabel(), lower.get_xlabel(), bar.get_ylabel()) == ("layer", "role", "a unit")
    assert upper.yaxis_inverted()
    mesh = upper.collections[0]
    shown: Any = mesh.get_array()
    colours = mesh.to_rgba(shown)
    for (row, column), value in {(0, 1): 0.5, (1, 0): 0.25, (1, 1): 1.0}.items():
        assert tuple(colours[row, column]) == pytest.approx(colormaps[COLOURS](value))
    assert lower.get_xlim() == upper.get_xlim() == (0, 3)


def test_what_lies_beyond_the_scale_is_shown_at_its_end() -> None:
    from matplotlib.colorbar import Colorbar

    bar: Any = heat_map(SHOWN).axes[-1]._colorbar  # type: ignore[attr-defined]
    assert isinstance(bar, Colorbar)
    assert bar.extend == "both"
    assert (bar.vmin, bar.vmax) == (0, 1)


def test_numbers_are_read_on_every_colour() -> None:
    """Contrast of WCAG 2.1, level AA: at least 4.5 to 1."""
    from matplotlib import colormaps

    def luminance(colour: Any) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
        return float(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])

    lightness = []
    for step in range(101):
        colour = colormaps[COLOURS](step / 100)
        text = {"black": 0.0, "white": 1.0}[readable(colour)]
        light, dark = sorted((text, luminance(colour)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5
        lightness.append(luminance(colour))
    assert lightness == sorted(lightness)  # so it is read in black and white


def test_names_are_text_as_they_are_and_nothing_is_of_pixels(tmp_path: Path) -> None:
    png, svg = save(heat_map(SHOWN), tmp_path / "of.two.models")
    assert (png.name, svg.name) == ("of.two.models.png", "of.two.models.svg")
    text = svg.read_text()
    assert ">Cost in $ of 模型 and $x<" in text
    for part in ("<image", "<dc:date", "/tmp", "Matplotlib v"):
        assert part not in text
    assert b"Software\0merging-harness" in png.read_bytes()
    first = png.read_bytes(), svg.read_bytes()
    save(heat_map(SHOWN), tmp_path / "of.two.models")
    assert (png.read_bytes(), svg.read_bytes()) == first


def test_the_settings_of_the_user_have_no_say(tmp_path: Path) -> None:
    import matplotlib

    def both() -> list[bytes]:
        return [path.read_bytes() for path in save(heat_map(SHOWN), tmp_path / "x")]

    before = both()
    theirs = {"font.size": 30, "xtick.color": "red", "svg.fonttype": "path"}
    with matplotlib.rc_context(theirs):
        assert both() == before
        assert matplotlib.rcParams["font.size"] == 30


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with mistake(CannotWrite, tmp_path / "file" / "x.png"):
        save(heat_map(SHOWN), tmp_path / "file" / "x")
