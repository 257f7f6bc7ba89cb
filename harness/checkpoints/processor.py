"""Shell: a model's processor, which turns rows into its inputs: a tokenizer or image processor."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from harness.checkpoints.families.family import GENERIC
from harness.checkpoints.layout import (
    IMAGE_FILES,
    PROCESSOR_FILES,
    bad_value,
    check_files,
    files_in,
    has_processor,
)
from harness.checkpoints.network import one_line_errors, without_warnings
from harness.errors import BadRecipe, BrokenCheckpoint, IncompatibleWeights
from harness.types import Checkpoint, Task

RGB = 3
"""Channels of an image as it is decoded."""
LARGEST_SIDE = 4096
"""The most pixels that a side of a model's input image may have."""
NO_PROCESSING = (
    *("image_processor_type", "feature_extractor_type", "processor_class", "data_format"),
    *("input_data_format", "device", "disable_grouping", "return_tensors"),
    # by now a size is two sides, and every image is RGB before it comes here
    *("default_to_square", "do_convert_rgb"),
)
"""Keys of an image processor's configuration that do not change the pixels."""
STEPS = {
    "do_resize": ("size", "resample"),
    "do_center_crop": ("crop_size",),
    "do_rescale": ("rescale_factor",),
    "do_normalize": ("image_mean", "image_std"),
}
"""The keys of each step, which mean nothing where the step is not done."""


def processor_digest(path: Path) -> str:
    """A hash of the files of the tokenizer or the image processor in a folder."""
    state = xxhash.xxh3_128()
    for name in files_in(path, PROCESSOR_FILES):
        state.update(name.encode() + (path / name).read_bytes())
    return str(state.hexdigest())


def copy_processor(sources: Sequence[Path], target: Path) -> None:
    """Copy the files of a tokenizer or image processor, unchanged, from the first folder that has
    one; if none has, whatever the first folder has of them."""
    source = next(filter(has_processor, sources), sources[0])
    for name in files_in(source, PROCESSOR_FILES):
        shutil.copyfile(source / name, target / name)


def check_inputs(model: Checkpoint, task: Task) -> None:
    """Raise BadRecipe for a text model on a task of images, and the other way round."""
    reads_images, of_images = model.family.inputs == "image", bool(task.image)
    if reads_images != of_images:
        found, wanted = (("text", "images")[images] for images in (reads_images, of_images))
        raise BadRecipe(
            f"{model.source} is a model of {found}, and the rows of {task} are {wanted}; "
            f"expected a model of {wanted}, or a task of {found}"
        )


def pillow() -> Any:
    """Pillow, which decodes images. Raises BadRecipe where it is not installed."""
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError as error:
        raise BadRecipe(
            "images are read with Pillow, which is not installed; install it: "
            "pip install 'merging-harness[vision]'"
        ) from error
    return PIL


def open_image_processor(path: Path) -> Any:
    """The image processor in a folder, as transformers makes it for Pillow, without any code of the
    folder's own. Raises BrokenCheckpoint, in one line, if transformers fails."""
    pillow()
    check_files(path)
    if not files_in(path, IMAGE_FILES):
        raise BrokenCheckpoint(
            f"{path} has no image processor; expected {IMAGE_FILES[0]}: copy that of its base"
        )
    # releases 5.4 to 5.17 export it at the top only where torchvision is installed
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    what = f"{path} has no image processor that can be read"
    with one_line_errors(what, f"fix {IMAGE_FILES[0]}"), without_warnings():
        options: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
        # the default is torchvision where that is installed, whose pixels differ; older releases
        # have `use_fast` in place of `backend`
        options |= {"backend": "pil", "use_fast": False}
        processor = AutoImageProcessor.from_pretrained(path, **options)
        config = processor.to_dict()
    sides = [side for key in ("size", "crop_size") for side in (config.get(key) or {}).values()]
    if big := [side for side in sides if not isinstance(side, int) or side > LARGEST_SIDE]:
        raise bad_value(path, "side of an image", big[0], f"at most {LARGEST_SIDE} pixels")
    return processor


def pixels(processor: Any, images: Sequence[Any], source: object) -> torch.Tensor:
    """Images as a model reads them, [images, channels, height, width].

    Raises BrokenCheckpoint, naming `source`, for a processor that cannot make that.
    """
    what = f"the image processor of {source} cannot be used"
    with one_line_errors(what, "expected one that makes all images the same size"):
        tensor: torch.Tensor = processor(images=list(images), return_tensors="pt")["pixel_values"]
    return tensor


def check_image_processor(model: Checkpoint) -> None:
    """Raise BrokenCheckpoint unless the processor makes finite pixels of the model's input size."""
    if (channels := model.config.get("num_channels", RGB)) != RGB:
        raise BrokenCheckpoint(
            f"{model.source} reads images of {channels} channels, as its config.json says; "
            f"expected {RGB}: images are read as RGB"
        )
    gray = pillow().Image.new("RGB", (3, 5), (128, 128, 128))
    with np.errstate(all="ignore"):
        batch = pixels(open_image_processor(model.processor), [gray], model.source)
    if not bool(batch.isfinite().all()):
        raise BrokenCheckpoint(
            f"the image processor of {model.source} makes infinite numbers or NaN of a gray image; "
            f"expected finite numbers: no 0 in image_std of its {IMAGE_FILES[0]}"
        )
    shape, size = batch.shape[1:], model.config.get("image_size")
    sides = list(size) if isinstance(size, list) else [size or shape[1], size or shape[2]]
    if model.family.name == GENERIC:  # some take other sizes than they say: dinov2
        sides = [*shape[1:]]
    if [*shape] != [RGB, *sides]:
        raise BrokenCheckpoint(
            f"the image processor of {model.source} makes {[*shape]} of an image of 3 x 5 pixels, "
            f"config.json says {[RGB, *sides]}; set its size to a height and a width, or crop_size"
        )


def check_images_alike(models: Sequence[Checkpoint]) -> None:
    """Raise IncompatibleWeights, naming two models, unless all make the same pixels of an image."""
    having = [model for model in models if files_in(model.processor, IMAGE_FILES)]
    for first, other in pairwise(having):
        if processor_digest(first.processor) == processor_digest(other.processor):
            continue
        pair = [open_image_processor(m.processor) for m in (first, other)]
        expected, found = map(_pixel_settings, pair)
        for key in sorted({*expected, *found}):
            if found.get(key) != expected.get(key):
                raise IncompatibleWeights(
                    f"the image processor of {other.source} has {key} {found.get(key)!r:.80}, "
                    f"expected {expected.get(key)!r:.80} as {first.source} has: take models with "
                    "one image processor"
                )
        # a processor may do more than its keys say, or less
        probe = pillow().Image.fromarray(np.arange(5 * 7 * RGB, dtype=np.uint8).reshape(5, 7, RGB))
        images = [pixels(p, [probe], m.source) for p, m in zip(pair, (first, other), strict=True)]
        if not torch.equal(*images):
            raise IncompatibleWeights(
                f"the image processor of {other.source} makes other pixels of an image than that "
                f"of {first.source}; take models with one image processor"
            )


def _pixel_settings(processor: Any) -> dict[str, Any]:
    """The settings that change the pixels: of the others, releases of transformers write different
    defaults."""
    items = processor.to_dict().items()
    settings = {key: value for key, value in items if value is not None and value is not False}
    idle = {key for step, keys in STEPS.items() if step not in settings for key in keys}
    return {key: value for key, value in settings.items() if key not in {*NO_PROCESSING, *idle}}
