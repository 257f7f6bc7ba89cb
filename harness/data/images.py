"""Shell: a column of images, or a folder of them by class -> bytes of one at a time, and pixels."""

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
"""What Pillow is asked to read: some others it has programs of the system run for."""
JPEG = (".jpg", ".jpeg", ".jfif", ".jpe")
SUFFIXES = (".png", *JPEG, ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""How the files of images in a folder end; hidden ones are passed over, and others are told of."""


class StoredImage(NamedTuple):
    """An image as it is stored, and what to call it where it cannot be read."""

    data: bytes
    where: str


def read_folder(task: Task, folder: Path) -> Any:
    """The images in a folder as a table: their files, and as labels the folders that they are in.

    Raises BadData for a folder without any.
    """
    import pyarrow

    parts = {path: path.relative_to(folder).parts for path in folder.rglob("*")}
    seen = sorted(p for p in parts if not any(part.startswith(".") for part in parts[p]))
    for path in seen:
        if path.is_symlink() and path.is_dir():
            raise BadData(f"{path} is a link to a folder, expected a folder: nothing follows links")
        if path.is_symlink() and not path.exists():
            raise BadData(f"{path} is a link to nothing; put the file in its place, or remove it")
    each = [path for path in seen if path.is_file()]
    files = [path for path in each if path.suffix.lower() in SUFFIXES]
    outside = [file.name for file in files if file.parent == folder]
    if others := [p for p in each if p.suffix.lower() not in SUFFIXES and p.parent != folder]:
        warnings.warn(
            f"files below {folder} are passed over: {len(others)}, {others[0].name!r:.80} first; "
            f"images end in {', '.join(SUFFIXES)}",
            stacklevel=2,
        )
    if not files or outside:
        found = f"the image {outside[0]} in no folder of a class" if outside else "no images"
        raise BadData(f"{folder} has {found}; expected CLASS/NAME, {', '.join(SUFFIXES)}")
    names = [file.relative_to(folder).as_posix() for file in files]
    classes = [name.partition("/")[0] for name in names]
    top = (path.name for path in seen if path.parent == folder and path.is_dir())
    if empty := sorted({*top} - {*classes}):
        warnings.warn(f"{folder} has no images of {few(empty)}: no class", stacklevel=2)
    return pyarrow.table({task.image: names, task.label: classes})


def image_reader(task: Task, stored: Any, where: str | Path) -> Callable[[int], StoredImage]:
    """What gives the image in a row of a table, called by its path if it has one.

    A column holds the bytes, or the paths of files below the table's folder, or both, as the
    datasets library has them. Raises BadData for another one.
    """
    import pyarrow.compute
    import pyarrow.types as of

    data = paths = None
    column = stored.column(task.image)
    kind, parts = column.type, [column]
    if of.is_struct(kind):
        fields = {kind.field(place).name for place in range(kind.num_fields)}
        named = [name for name in ("bytes", "path") if name in fields]
        parts = [pyarrow.compute.struct_field(column, name) for name in named]
    for part in parts:
        if of.is_binary(part.type) or of.is_large_binary(part.type):
            data = part
        elif of.is_string(part.type) or of.is_large_string(part.type):
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
            raise BadData(f"row {row + 1} of {where} has no image, expected its bytes or a path")
        return StoredImage(_file(root, name, f"row {row + 1} of {where}"), called)

    return read


def _file(root: Path, name: str, where: str) -> bytes:
    """The content of a file below a folder; never of another."""
    path = root / name
    try:
        if "\0" in name or not path.resolve().is_relative_to(root.resolve()):
            is_link = "\0" not in name and _lies_in(path, root)
            leads = ", which a link leads out of it" if is_link else ""
            raise BadData(
                f"{where} names the image {name!r:.80}{leads}; expected a file below {root}"
            )
        return path.read_bytes()
    except (OSError, RuntimeError) as error:  # the latter for a link to itself
        raise BadData(
            f"{where} names the image {name!r:.80}, which cannot be read: "
            f"{getattr(error, 'strerror', None) or 'it is a link to itself'}"
        ) from error


def _lies_in(path: Path, root: Path) -> bool:
    """Whether a path is below a folder, whatever its links lead to."""
    return Path(os.path.abspath(path)).is_relative_to(os.path.abspath(root))


def opened(stored: StoredImage) -> Any:
    """An image of Pillow's of which the header is read. Raises BadData, naming the row, for what is
    no image, and for one with more pixels than Pillow takes."""
    image = pillow().Image
    image.init()  # or some formats are not known yet
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image.DecompressionBombWarning)
            return image.open(io.BytesIO(stored.data), formats=FORMATS)
    except (image.DecompressionBombWarning, image.DecompressionBombError) as error:
        most = image.MAX_IMAGE_PIXELS
        raise BadData(
            f"{stored.where} has more than {most} pixels, expected fewer: make the image smaller"
        ) from error
    except Exception as error:  # Pillow has a way to fail for every field of every format
        raise _broken(stored, error) from error


def decoded(stored: StoredImage) -> Any:
    """An image of Pillow's in RGB.

    The first one of an animation, turned as its EXIF data say. A palette and CMYK are converted,
    16 bits of grey are divided by 257 (of colours Pillow drops 8), and what is behind transparent
    pixels is shown as it is stored.
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
            if image.mode == "P":  # which may say of its colours how transparent they are
                image = image.convert("RGBA")
            return image.convert("RGB")
    except Exception as error:
        raise _broken(stored, error) from error


def _broken(stored: StoredImage, error: Exception) -> BadData:
    reason = first_line(error)
    reason = "no image" if "cannot identify" in reason else reason
    return BadData(
        f"{stored.where} is no whole image ({reason:.200}); expected {', '.join(FORMATS)}"
    )


def told(stored: StoredImage) -> str:
    """What an image is, for somebody to look at."""
    image = opened(stored)
    return f"{image.width} x {image.height} {image.format}, {image.mode}, {len(stored.data)} bytes"
