"""Shell: a checkpoint and rows -> `Features`, by a forward pass or from the feature cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import numpy as np
import torch

from harness.checkpoints.build import UNREAD_KEYS, classifier_of
from harness.checkpoints.families.family import Family
from harness.checkpoints.families.t5 import OUTPUTS
from harness.checkpoints.named import modules_of, parameters_of
from harness.checkpoints.network import classifier_on_meta, one_line_errors
from harness.checkpoints.processor import pillow, processor_digest
from harness.checkpoints.tokenizer import shared_tokenizer
from harness.checkpoints.verbalizer import as_questions, head_of, verbalizer_of
from harness.errors import BrokenCheckpoint, MissingHead, NotFinite
from harness.files import cache_dir
from harness.hashes import digest_of
from harness.kinds import kind_of
from harness.passes.cache import keep, recall
from harness.passes.placement import AUTOMATIC, Placement, full_float32, use_onednn
from harness.passes.prepared import check_positions, prepare
from harness.readout import LAST_LINEAR, Readout
from harness.types import Array, Checkpoint, DropoutFeatures, Features, Head, Rows, Steps
from harness.weights import seeded

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Unpack

Seen: TypeAlias = "npt.NDArray[np.bool_]"
FeatureArrays: TypeAlias = tuple[Array, Array, Seen]
Read: TypeAlias = tuple[int, "list[int]", "list[Array]"]


class PassOptions(TypedDict, total=False):
    """Options of a forward pass: the rows of a batch (None: as many as a budget of tokens allows),
    device and type, and `progress`, called with the number of rows done since the last call."""

    batch_size: int | None
    placement: Placement
    progress: Steps | None


def encode(
    checkpoint: Checkpoint,
    rows: Rows,
    *,
    digest: str,
    columns: Sequence[int],
    max_length: int,
    readout: Readout = LAST_LINEAR,
    beside: Sequence[Readout] = (),
    **how: Unpack[PassOptions],
) -> Features:
    """Features of the rows, from the cache or by one forward pass over them.

    `digest` is the hash of the checkpoint's weights; `columns` puts the outputs into the order of
    the task's labels. Features by those readouts `beside` that share the forward pass are cached as
    well. `progress` is called with the number of rows done since the last call. Results do not
    depend on the batch size beyond rounding.
    """

    placement = how.get("placement", AUTOMATIC)

    def place(which: Readout) -> Path:
        key = content_key(checkpoint, rows, digest, max_length, which.name, *placement.parts)
        return cache_dir("features") / f"{key}.safetensors"

    arrays = _read(place(readout), int(kind_of(rows.task).unit_counts(rows).sum()))
    others = [other for other in beside if other != readout and other.pass_key == readout.pass_key]
    missing = [] if arrays else [readout]
    missing += [other for other in others if not place(other).is_file()]
    if missing:
        features, logits, seen = one_pass(checkpoint, rows, missing, max_length=max_length, **how)
        for which, x in zip(missing, features, strict=True):
            if which == readout:
                _check_outputs(checkpoint, rows, x, logits, placement)
            if _finite(x, logits).all():  # else they are of a readout beside: refused when read
                _write(place(which), x, logits, seen)
        arrays = arrays or (features[0], logits, seen)
    elif progress := how.get("progress"):
        progress(len(rows))
    assert arrays, "read back, or made just now"
    x, logits, seen = arrays
    return Features(x, logits[:, list(columns)], rows.labels, None if seen.all() else seen)


def content_key(
    checkpoint: Checkpoint, rows: Rows, digest: str, max_length: int, *parts: object
) -> str:
    """A hash of all content that a result of a model on rows depends on; no name is part of it.

    For features, `parts` are the name of the readout and, in half precision, the placement. The
    releases of `RUN_BY` are included, as another release may compute something else.
    """
    content = [model_key(checkpoint, digest), rows.digest, max_length, *releases(), *parts]
    content += ["word"] if kind_of(rows.task).split_into_words else []  # read word by word
    return digest_of(content)


RUN_BY = ("merging-harness", "torch", "transformers", "tokenizers")
"""The packages that compute features from rows and weights."""


@cache
def releases() -> tuple[str, ...]:
    """The releases of `RUN_BY`, without the part that names the machine they are built for."""
    return tuple(version(name).partition("+")[0] for name in RUN_BY)


def model_key(checkpoint: Checkpoint, digest: str) -> str:
    """A hash of all that a model's outputs depend on, except for the rows.

    These are the weights (`digest` is their hash), the tokenizer and the configuration; for images
    the image processor, and the release of the library that decodes them.
    """
    config = {k: v for k, v in checkpoint.config.items() if k not in UNREAD_KEYS}
    content = [digest, processor_digest(checkpoint.processor), config]
    if checkpoint.family.inputs == "image":
        content.append(pillow().__version__)
    return digest_of(content)


def _read(path: Path, units: int) -> FeatureArrays | None:
    """Features, outputs and seen units from the cache; None if missing, damaged or too few."""
    entry = recall(path)
    if entry is None or not {"x", "logits"} <= {*entry[0]} <= {"x", "logits", "seen"}:
        return None
    x, logits = (entry[0][name].clone().numpy() for name in ("x", "logits"))
    seen = np.ones(len(x), dtype=bool)
    if "seen" in entry[0]:
        seen = entry[0]["seen"].clone().numpy().astype(bool)
    return (x, logits, seen) if len(x) == len(logits) == len(seen) == units else None


def _write(path: Path, x: Array, logits: Array, seen: Seen) -> None:
    tensors = {"x": torch.from_numpy(x), "logits": torch.from_numpy(logits)}
    if not seen.all():
        tensors["seen"] = torch.from_numpy(seen.astype(np.uint8))
    keep(path, tensors, {})


def forward(
    checkpoint: Checkpoint,
    rows: Rows,
    *,
    max_length: int,
    readout: Readout = LAST_LINEAR,
    **how: Unpack[PassOptions],
) -> FeatureArrays:
    """Features of the rows by one readout [units, width], outputs, and which units were seen.

    See `one_pass`. Raises NotFinite for outputs that are NaN or infinite.
    """
    (x,), logits, seen = one_pass(checkpoint, rows, [readout], max_length=max_length, **how)
    _check_outputs(checkpoint, rows, x, logits, how.get("placement", AUTOMATIC))
    return x, logits, seen


def one_pass(
    checkpoint: Checkpoint,
    rows: Rows,
    readouts: Sequence[Readout],
    *,
    max_length: int,
    batch_size: int | None = None,
    placement: Placement = AUTOMATIC,
    progress: Steps | None = None,
) -> tuple[list[Array], Array, Seen]:
    """Features by each readout [units, width], outputs, and which units were seen.

    The readouts share one forward pass, so they must all put rows before the model in the same way.
    All arrays are float32. A word is read at its first token; a word that was cut off is zero. Rows
    of like length share a batch and are padded to its longest row, with the attention mask, unless
    the readout pads otherwise; the model is in eval mode. Without a `batch_size` the batches depend
    on the rows and the kind of device alone, so that results repeat exactly. For a model that is
    asked several questions about a row, its features are those of all questions, one after another.
    """
    answering, questions = as_questions(checkpoint, rows)
    if questions is not rows:
        options: PassOptions = {"batch_size": batch_size, "placement": placement}
        parts, answers, _ = one_pass(
            answering, questions, readouts, max_length=max_length, **options
        )
        if progress:
            progress(len(rows))
        *features, logits = (
            a.reshape(len(rows), -1) for a in (*parts, answers[:, 1] - answers[:, 0])
        )
        return features, logits, np.ones(len(rows), dtype=bool)
    ready = _Ready(checkpoint, rows, max_length, readouts, placement)
    count = ready.units[-1].stop
    arrays: list[Array] = []
    seen = np.zeros(count, dtype=bool)
    batches = ready.rows.batches(placement.budget(images=rows.images is not None), batch_size)
    for done, places, parts in ready.each(batches):
        if not arrays:
            arrays = [np.zeros((count, part.shape[1]), dtype=np.float32) for part in parts]
        for array, part in zip(arrays, parts, strict=True):
            array[places] = part
        seen[places] = True
        if progress:
            progress(done)
    *features, logits = arrays
    return features, logits, seen


def dropout_features(
    checkpoint: Checkpoint, rows: Rows, *, max_length: int, readout: Readout, placement: Placement
) -> DropoutFeatures:
    """A function that computes features of some units again, with dropout in the encoder.

    Its result depends on the units and the seed alone, on one kind of device.
    """
    answering, questions = as_questions(checkpoint, rows)
    if questions is not rows:
        answered = dropout_features(
            answering, questions, max_length=max_length, readout=readout, placement=placement
        )
        count = len(questions) // len(rows)

        def answers(units: Sequence[int], seed: int) -> Array:
            questions = [unit * count + place for unit in units for place in range(count)]
            return answered(questions, seed).reshape(len(units), -1)

        return answers
    ready, device = _Ready(checkpoint, rows, max_length, [readout], placement), placement.where
    ready.model.base_model.train()
    row_of = {unit: row for row, units in enumerate(ready.units) for unit in units}

    def again(units: Sequence[int], seed: int) -> Array:
        picked = [row_of[unit] for unit in units]
        picked = list(dict.fromkeys(picked)) if ready.rows.first else picked
        # not the user's batch size: dropout is drawn batch by batch
        starts = range(0, len(picked), DROPOUT_BATCH)
        batches = [ready.rows.together(picked[start : start + DROPOUT_BATCH]) for start in starts]
        with seeded(seed, device):
            results = [*ready.each(chain(*batches))]
        x = np.concatenate([x for _, _, (x, _) in results])
        if ready.rows.first is None:  # a row may come several times
            run = [row for batch in chain(*batches) for row in batch]
            x[np.argsort(picked, kind="stable")] = x[np.argsort(run, kind="stable")]
            return x
        place = {unit: i for i, unit in enumerate(chain(*(shown for _, shown, _ in results)))}
        return x[[place[unit] for unit in units]]

    return again


DROPOUT_BATCH = 32
"""Rows of a batch that is run with dropout."""


class _Ready:
    """A model on its device, in eval mode, with the rows as its inputs.

    `units` are the numbers of each row's units, counted through all rows.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        rows: Rows,
        max_length: int,
        readouts: Sequence[Readout],
        placement: Placement,
    ) -> None:
        kind, source, self.placement = kind_of(rows.task), checkpoint.source, placement
        model, self._final = classifier_of(checkpoint, kind.unit, placement.where), None
        if checkpoint.pooling is None:
            self._final = final_module(model, checkpoint.family, source)
        self.model: Any = placement.put(model, self._final)
        use_onednn(self.model, placement)
        self.rows = prepare(checkpoint, rows, max_length, readouts[0])
        check_positions(self.model, self.rows, source)
        counts = kind.unit_counts(rows)
        self.units = [*map(range, np.cumsum(counts) - counts, np.cumsum(counts))]
        self._source, self._readouts = source, readouts

    def each(self, batches: Iterable[Sequence[int]]) -> Iterator[Read]:
        """For each batch: its number of rows, the units that they show, and, as arrays, the units'
        features by each readout and their outputs.

        On a GPU the next batch is queued before the results of this one are waited for.
        """
        wait: Callable[[], Read] | None = None
        for batch in batches:
            before, wait = wait, self._begun(batch)
            if before:
                yield before()
        if wait:
            yield wait()

    def _begun(self, batch: Sequence[int]) -> Callable[[], Read]:
        """Begin a batch: a function that waits for its results."""
        with torch.inference_mode(), forward_errors(self._source):
            inputs = self.rows.batch(batch, self.placement)
            outputs = self._readouts[0].run(self.model, self._final, inputs)
            parts = [*(readout.features(outputs) for readout in self._readouts), outputs.logits]
            units = [unit for row in batch for unit in self.units[row]]
            if (places := self.rows.first) is not None:
                parts = [self.rows.of_words(part, batch) for part in parts]
                first = [token for row in batch for token in places[row]]
                units = [unit for unit, token in zip(units, first, strict=True) if token >= 0]
            arrays = self.placement.fetch(parts)

        def wait() -> Read:
            with forward_errors(self._source):
                return len(batch), units, arrays()

        return wait


def check_readout(checkpoint: Checkpoint, readout: Readout, max_length: int) -> None:
    """Raise BrokenCheckpoint if the readout does not fit the model; no tensor is read."""
    if readout.fault is None:
        return
    source, of_images = checkpoint.source, checkpoint.family.inputs == "image"
    model = classifier_on_meta(checkpoint.config, source)
    final = final_module(model, checkpoint.family, source)
    tokenizer = None if of_images else shared_tokenizer(checkpoint.processor)
    if of_images and readout.pass_key != LAST_LINEAR.pass_key:
        fault: str | None = "is a model of images, which are not padded, expected one of text"
    else:
        fault = readout.fault(model, final, tokenizer, max_length)
    if fault:
        raise BrokenCheckpoint(
            f"{source} {fault}, for features '{readout.name}'; leave out {readout.option}"
        )


def _finite(x: Array, logits: Array) -> Seen:
    """Which units have finite features and outputs, [units]."""
    return np.asarray(np.isfinite(x).all(axis=1) & np.isfinite(logits).all(axis=1))


def _check_outputs(
    checkpoint: Checkpoint, rows: Rows, x: Array, logits: Array, placement: Placement
) -> None:
    """Raise NotFinite for NaN or Inf, which would be predicted as the first label."""
    broken = ~_finite(x, logits)
    if broken.any():
        units = f"{broken.sum()} of {len(broken)} {kind_of(rows.task).unit}s"
        raise NotFinite(
            f"{checkpoint.source}, run in {placement.dtype}, has NaN or infinite outputs for "
            f"{units} of {rows.task}@{rows.split}; expected finite ones{placement.advice}"
        )


@contextmanager
def forward_errors(what: str) -> Iterator[None]:
    """A context for forward passes: products of float32 in float32, and any error as
    BrokenCheckpoint, in one line."""
    # transformers' models raise many types of error for a configuration that does not fit itself or
    # the rows: positions for fewer tokens than a row has, numbers of heads, of chunks, ...
    fits = "a config.json that fits the weights, positions for the longest row (--max-length)"
    memory = "enough memory (--batch-size)"
    with (
        one_line_errors(f"{what} cannot be run", f"expected {fits}, and {memory}"),
        full_float32(),
    ):
        yield


def final_module(model: torch.nn.Module, family: Family, source: str) -> torch.nn.Module:
    """The final linear layer of a classifier. Raises MissingHead where there is none."""
    final = modules_of(model).get(family.final(parameters_of(model)) or OUTPUTS)
    if final is None:
        raise MissingHead(f"{source} has no final linear layer, expected one")
    return final


def final_head(checkpoint: Checkpoint, columns: Sequence[int]) -> Head | None:
    """The final linear layer, its rows in the order of the task's labels; None without a head."""
    family = checkpoint.family
    if verbalizer_of(checkpoint):
        rows = head_of(checkpoint)[list(columns)]
        return Head(rows.numpy(), torch.zeros(len(rows)).numpy())
    if (name := family.final(checkpoint.weights)) is None:
        return None
    weight = checkpoint.weights[f"{name}.weight"].float()[list(columns)]
    bias = torch.zeros(len(weight))
    if f"{name}.bias" in checkpoint.weights:
        bias = checkpoint.weights[f"{name}.bias"].float()[list(columns)]
    return Head(weight.numpy(), bias.numpy())
