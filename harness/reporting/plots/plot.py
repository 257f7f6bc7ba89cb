"""Shell: the name of a picture, and records or a model -> the picture in two files."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, get_args

from harness.errors import BadOption, BadRecipe, UnknownName
from harness.evaluation.run import Run
from harness.files import check_place
from harness.reporting.chosen import read_lines
from harness.reporting.figures import Figure, check_pictures, save
from harness.reporting.plots.scores import View
from harness.types import Progress

Picture = Literal["credit", "protocols", "shots", "transforms", "gains", "drop", "ranks"]
"""Pictures of lines; a sweep needs the whole records, which have the recipes of merges."""
OF_RECORDS = (*get_args(Picture), "sweep")
OF_FEATURES = "tsne"
FORMS = (".png", ".svg")


def plot(
    what: str,
    records: str | Path | Sequence[str | Path] = (),
    *,
    out: str | Path,
    view: View | None = None,
    run: Run | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Draw a picture of records, or of a run's features, as PNG and SVG; returns both paths.

    `what` is one of credit, protocols, shots, transforms, gains, drop, ranks and sweep, of records
    in files and folders; or tsne, of the model, the experts and the tasks of a run. `out` is a path
    without an ending, or with one of the two. Raises MissingScores where records lack what a
    picture shows; nothing is written before the picture is complete.
    """
    check_what(what)
    records = [records] if isinstance(records, str | Path) else records
    stem = stem_of(Path(out))
    check_place(stem.absolute().parent)
    check_pictures(stem)
    view = View() if view is None else view
    if what == OF_FEATURES:
        return save(_of_run(records, run, view, progress), stem)
    if run is not None or not records:
        found = "a model" if run is not None else "none"
        raise BadRecipe(f"plot {what} needs records alone, found {found}; name files or folders")
    if what != "sweep" and (view.option or view.loss):
        raise BadOption(
            f"plot {what} has --{'loss' if view.loss else 'option'}, which is for sweep only"
        )
    module = importlib.import_module(f"{__package__}.{what}")
    read = records if what == "sweep" else read_lines(records, view)
    return save(module.picture(read, view), stem)


def check_what(what: str) -> None:
    """Raise UnknownName, with all known names, unless a picture has this name."""
    names = (*OF_RECORDS, OF_FEATURES)
    if what not in names:
        near = "".join(f" did you mean '{name}'?" for name in get_close_matches(what, names, n=1))
        raise UnknownName(f"no picture is called '{what}';{near} known: {', '.join(names)}")


OTHERS = (".pdf", ".eps", ".ps", ".jpg", ".jpeg", ".gif", ".tif", ".tiff", ".webp")
"""Endings of picture formats that are not supported."""


def stem_of(out: Path) -> Path:
    """The path of both files without an ending. Raises BadOption for that of another format."""
    if out.suffix.lower() in OTHERS:
        raise BadOption(f"plot writes PNG and SVG, found {out}; expected a name without an ending")
    return out.with_suffix("") if out.suffix.lower() in FORMS else out


def _of_run(
    records: Sequence[str | Path], run: Run | None, view: View, progress: Progress | None
) -> Figure:
    from harness.reporting.plots.tsne import clouds, draw

    if records or run is None:
        found = "records" if records else "none"
        raise BadRecipe(
            f"plot {OF_FEATURES} needs a model alone, found {found}; name it with --model"
        )
    return draw(clouds(run, view.rows, progress))
