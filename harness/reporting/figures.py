"""The style of all pictures, heat maps, and PNG and SVG files with the same bytes every time.

Colours of a scale are those of cividis: colour-blind readers can distinguish them, and in print
their lightness differs. Text in an SVG stays text. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.files import check_ours, write_files
from harness.text import number

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:
    Axes = Figure = Any

COLOURS = "cividis"
FONT = "DejaVu Sans"
"""This font comes with matplotlib, and is the same on all machines."""
FALLBACKS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans",
    "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "PingFang SC",
    "Hiragino Sans GB", "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic",
    "Malgun Gothic", "Arial Unicode MS",
)  # fmt: skip
"""Fonts with Chinese, Japanese and Korean characters; most machines have one or more of them."""
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": [FONT],
    "font.size": 9,
    "axes.titlesize": 10,
    "text.parse_math": False,  # a name of a model may have a $
    "svg.fonttype": "none",
    "svg.hashsalt": "harness",
    "savefig.dpi": 150,
}
CELL = (0.78, 0.30)
"""Width and height of a cell in inches, with room for a number of three digits."""
AROUND = (2.3, 1.7)
"""Inches that a picture has beside its cells (width, height): title, labels and the scale."""


@dataclass(frozen=True)
class HeatMap:
    """Panels, one below the other, that share a scale from `low` to `high` with its unit.

    A panel has numbers by row and column, NaN where there is none; its axes may have names. A
    number beyond the scale has the colour of the nearest end. Cells show their numbers in the
    format `form`.
    """

    title: str
    panels: Sequence[pandas.DataFrame]
    unit: str
    low: float
    high: float
    form: str = ".3g"


def heat_map(heat_map_data: HeatMap) -> Figure:
    """The picture of a heat map, with the number in every cell."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    heights = [len(panel) for panel in heat_map_data.panels]
    width = max(len(panel.columns) for panel in heat_map_data.panels)
    gaps = len(heights) - 1
    with styled():
        size = (AROUND[0] + CELL[0] * width, AROUND[1] + CELL[1] * (sum(heights) + 3 * gaps))
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)
        colours = ScalarMappable(Normalize(heat_map_data.low, heat_map_data.high), COLOURS)
        for axes, panel in zip(grid[:, 0], heat_map_data.panels, strict=True):
            _draw(axes, panel, colours, heat_map_data.form)
            axes.set_xlim(0, width)  # cells of one size in all panels
        bar = figure.colorbar(colours, ax=grid[:, 0].tolist(), extend=_beyond(heat_map_data))
        bar.set_label(heat_map_data.unit)
        if bar.solids is not None:
            bar.solids.set_rasterized(False)  # colours as shapes: no pixels in an SVG
            bar.solids.set_edgecolor("face")
        figure.suptitle(wrapped_title(heat_map_data.title, size[0]))
        settle(figure)
    return figure


def _draw(axes: Axes, panel: pandas.DataFrame, colours: Any, form: str) -> None:
    cells = panel.to_numpy(float)
    axes.pcolormesh(cells, norm=colours.norm, cmap=colours.cmap, edgecolors="white", linewidth=1)
    axes.set_xticks([index + 0.5 for index in range(len(panel.columns))], panel.columns)
    axes.set_yticks([index + 0.5 for index in range(len(panel))], panel.index)
    axes.tick_params(length=0)
    axes.invert_yaxis()
    axes.set_frame_on(False)
    axes.set_xlabel(panel.columns.name or "")
    axes.set_ylabel(panel.index.name or "")
    centred: Any = {"ha": "center", "va": "center", "in_layout": False}
    for (row, column), value in np.ndenumerate(cells):
        if not np.isnan(value):
            text, colour = number(value, form), readable(colours.to_rgba(value))
            axes.text(column + 0.5, row + 0.5, text, color=colour, **centred)


def matrix_map(
    title: str, values: Any, unit: str, row_label: str, column_label: str, *, step: int = 1
) -> Figure:
    """The picture of a matrix [rows, columns] too large for numbers: a pixel for each entry.

    On both axes an entry counts as `step` units. In the SVG the pixels are an image.
    """
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(5.4, 4.6), layout="constrained")
        axes = figure.subplots()
        rows, columns = (step * count for count in values.shape)
        options: Any = {
            "interpolation": "nearest",
            "aspect": "auto",
            "extent": (0, columns, rows, 0),
        }
        image = axes.imshow(values, cmap=COLOURS, **options)
        axes.set(xlabel=column_label, ylabel=row_label)
        figure.colorbar(image, ax=axes).set_label(unit)
        figure.suptitle(wrapped_title(title, 5.4))
        settle(figure)
    return figure


def readable(colour: Sequence[float]) -> str:
    """Black or white, whichever contrasts more with the colour (by relative luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if luminance > 0.179 else "white"


def _beyond(picture: HeatMap) -> Any:
    """The ends of the scale that some number lies beyond, as matplotlib's `extend`."""
    numbers = np.concatenate([panel.to_numpy(float).ravel() for panel in picture.panels])
    below, above = bool((numbers < picture.low).any()), bool((numbers > picture.high).any())
    return {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[below, above]


def settle(figure: Figure) -> None:
    """Lay a picture out once, so that all its files have the same layout."""
    _fall_back(figure)
    if engine := figure.get_layout_engine():
        engine.execute(figure)
    figure.set_layout_engine(None)


def _fall_back(figure: Figure) -> None:
    """Set an installed fallback font for texts with characters that FONT lacks.

    Other texts keep FONT, so that their bytes are the same on every machine.
    """
    from matplotlib import font_manager
    from matplotlib.text import Text

    glyphs = font_manager.get_font(font_manager.findfont(FONT)).get_charmap()
    lacking = [
        text for text in figure.findobj(Text) if {*map(ord, text.get_text())} - {*glyphs, ord("\n")}
    ]
    if lacking:
        installed = {*font_manager.fontManager.get_font_names()}
        family = [FONT, *(name for name in FALLBACKS if name in installed), "sans-serif"]
        for text in lacking:
            text.set_fontfamily(family)


def wrapped_title(text: str, inches: float) -> str:
    """A title of 10 points, broken into lines of this width."""
    return "\n".join(textwrap.wrap(text, max(24, int(inches * 12)), break_on_hyphens=False))


# Files -------------------------------------------------------------------------------------


NAME = "merging-harness"
"""The software named in the metadata of our PNG files."""
MARK = rb"<cc:Work>\s*<dc:type [^>]*>\s*<dc:format>image/svg\+xml</dc:format>\s*</cc:Work>"
"""The metadata of our SVG files, without the creator and the date that matplotlib would add."""


def check_pictures(stem: Path) -> None:
    """Raise OutputExists if `save` would overwrite a picture that the harness did not write."""
    svg, png = (stem.with_name(f"{stem.name}.{form}") for form in ("svg", "png"))
    check_ours({svg: MARK})
    if not svg.exists():  # a PNG beside an SVG of ours is ours
        check_ours({png: NAME.encode()})


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a picture as `stem`.png and `stem`.svg, both or none; returns the two paths.

    The bytes depend on the picture and the version of matplotlib alone. Raises CannotWrite.
    """
    without_date = {"png": {"Software": NAME}, "svg": {"Date": None, "Creator": None}}
    pictures: dict[Path, bytes] = {}
    for form, metadata in without_date.items():
        file = io.BytesIO()
        with styled():
            figure.savefig(file, format=form, metadata=metadata)
        pictures[stem.with_name(f"{stem.name}.{form}")] = file.getvalue()
    write_files(pictures.items())
    return [*pictures]


@contextmanager
def styled() -> Iterator[None]:
    """matplotlib's settings are ours within, whatever the user's own are."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # in the name of a model
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield
