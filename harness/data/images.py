"""Shell: a column of images, or a folder with a subfolder per class -> bytes and pixels of each."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.checkpoints.processor import pillow
from harness.errors import BadData
from harness.text import few, first_line
from harness.types import Task

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
"""The formats that Pillow may read: for some others it runs programs of the system."""
JPEG = (".jpg", ".jpeg", ".jfif", ".jpe")
SUFFIXES = (".png", *JPEG, ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""Endings of image files in a folder. Hidden files are skipped; other endings are warned of."""


class StoredImage(NamedTuple):
    """The stored bytes of an image, and its name in error messages."""

    data: bytes
    where: str


def read_folder(task: Task, folder: Path) -> Any:
    """An Arrow table of the images in a folder: file paths, labelled by top-level subfolder.

    Raises BadData for no images, images outside of subfolders, and links to folders or to nothing.
    """
    import pyarrow

    parts = {path: path.relative_to(folder).parts for path in folder.rglob("*")}
    visible = sorted(p for p in parts if not any(part.startswith(".") for part in parts[p]))
    for path in visible:
        if path.is_symlink() and path.is_dir():
            raise BadData(f"{path} is a link to a folder, expected a folder: no link is followed")
        if path.is_symlink() and not path.exists():
            raise BadData(f"{path} is a link to nothing; put the file in its place, or remove it")
    paths = [path for path in visible if path.is_file()]
    files = [path for path in paths if path.suffix.lower() in SUFFIXES]
    outside = [file.name for file in files if file.parent == folder]
    if others := [p for p in paths if p.suffix.lower() not in SUFFIXES and p.parent != folder]:
        warnings.warn(
            f"files below {folder} are ignored: {len(others)}, {others[0].name!r:.80} first; "
            f"expected images, whose names end in {', '.join(SUFFIXES)}",
            stacklevel=2,
        )
    if not files or outside:
        found = f"the image {outside[0]} in no folder of a class" if outside else "no images"
        raise BadData(f"{folder} has {found}; expected CLASS/NAME with {', '.join(SUFFIXES)}")
    names = [file.relative_to(folder).as_posix() for file in files]
    classes = [name.partition("/")[0] for name in names]
    top = (path.name for path in visible if path.parent == folder and path.is_dir())
    if empty := sorted({*top} - {*classes}):
        warnings.warn(f"{folder} has no images of {few(empty)}: no class of the task", stacklevel=2)
    return pyarrow.table({task.image: names, task.label: classes})


def image_reader(task: Task, stored: Any, where: str | Path) -> Callable[[int], StoredImage]:
    """A function from a row number of a table to its image, named by its path if it has one.

    The column holds bytes, or paths of files below the table's folder, or structs of both, as the
    datasets library writes them. Raises BadData for a column of another type.
    """
    import pyarrow.compute
    import pyarrow.types as types

    data = paths = None
    column = stored.column(task.image)
    kind, parts = column.type, [column]
    if types.is_struct(kind):
        fields = {kind.field(place).name for place in range(kind.num_fields)}
        names = [name for name in ("bytes", "path") if name in fields]
        parts = [pyarrow.compute.struct_field(column, name) for name in names]
    for part in parts:
        if types.is_binary(part.type) or types.is_large_binary(part.type):
            data = part
        elif types.is_string(part.type) or types.is_large_string(part.type):
            paths = part
    if data is None and paths is None:
        raise BadData(
            f"{where} has {str(kind)[:40]} in '{task.image}', expected images: bytes or paths"
        )
    root = None
    if isinstance(where, Path):
        root = where if where.is_dir() else where.parent

    def read(row: int) -> StoredImage:
        content = None if data is None else data[row].as_py()
        name = None if paths is None else paths[row].as_py()
        called = f"{name!r:.80}" if name else ""
        if content is not None:
            return StoredImage(bytes(content), called)
        if name is None or root is None:
            raise BadData(
                f"row {row + 1} of {where} has no image, expected its bytes or a path in a folder"
            )
        return StoredImage(_file(root, name, f"row {row + 1} of {where}"), called)

    return read


def _file(root: Path, name: str, where: str) -> bytes:
    """The content of a file below `root`. Raises BadData for a path that leads out of it."""
    path = root / name
    try:
        if "\0" in name or not path.resolve().is_relative_to(root.resolve()):
            # below it if links are not followed
            is_below = Path(os.path.abspath(path)).is_relative_to(os.path.abspath(root))
            is_link = is_below and "\0" not in name
            leads = ", where a link leads out of the folder" if is_link else ""
            raise BadData(
                f"{where} names the image {name!r:.80}{leads}; expected a file below {root}"
            )
        return path.read_bytes()
    except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself
        raise BadData(
            f"{where} names the image {name!r:.80}, which cannot be read: "
            f"{getattr(error, 'strerror', None) or 'it is a link to itself'}"
        ) from error


def opened(stored: StoredImage) -> Any:
    """A Pillow image of which only the header has been read.

    Raises BadData, naming the row, for bytes that are no image or have too many pixels for Pillow.
    """
    image = pillow().Image
    image.init()  # else some formats are not registered yet
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image.DecompressionBombWarning)
            return image.open(io.BytesIO(stored.data), formats=FORMATS)
    except (image.DecompressionBombWarning, image.DecompressionBombError) as error:
        most = image.MAX_IMAGE_PIXELS
        raise BadData(
            f"{stored.where} has more than {most} pixels, expected fewer: make the image smaller"
        ) from error
    except Exception as error:  # Pillow raises many types, by format
        raise _broken(stored, error) from error


def decoded(stored: StoredImage) -> Any:
    """A Pillow image in RGB.

    The first frame of an animation, rotated as its EXIF data say. Palettes and CMYK are converted,
    16-bit grey is divided by 257 (of 16-bit colours Pillow drops 8 bits), and transparent pixels
    keep their stored colour.
    Raises BadData, naming the row, for a file that is broken or ends too early.
    """
    image = opened(stored)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image.load()
            image = pillow().ImageOps.exif_transpose(image)
            if image.mode == "I" or image.mode.startswith("I;16"):
                eight = np.asarray(image).astype(np.float64) / 257
                image = pillow().Image.fromarray(eight.round().clip(0, 255).astype(np.uint8))
            if image.mode == "F":
                raise ValueError("numbers that are no colours")
            if image.mode == "P":  # a palette may have transparent colours
                image = image.convert("RGBA")
            return image.convert("RGB")
    except Exception as error:
        raise _broken(stored, error) from error


def _broken(stored: StoredImage, error: Exception) -> BadData:
    reason = first_line(error)
    reason = "no image" if "cannot identify" in reason else reason
    return BadData(
        f"{stored.where} is no whole image ({reason:.200}); expected one in {', '.join(FORMATS)}"
    )


def told(stored: StoredImage) -> str:
    """Size, format, mode and number of bytes of an image, as text to print."""
    image = opened(stored)
    return f"{image.width} x {image.height} {image.format}, {image.mode}, {len(stored.data)} bytes"
