"""Which base a model was made from, as its folder records it, compared with a given base."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch

from harness.checkpoints.align import aligned_base
from harness.checkpoints.build import UNREAD_KEYS, encoder_of
from harness.checkpoints.layout import ADAPTER_FILE, is_adapter
from harness.checkpoints.open import local_folder, open_checkpoint
from harness.checkpoints.processor import processor_digest
from harness.checkpoints.provenance import ExpertJson, first_record_in
from harness.errors import BadRecipe, BrokenCheckpoint, OutputExists
from harness.files import read_json
from harness.hashes import digest_of
from harness.types import Checkpoint
from harness.weights import Observed, cosine, digest, each, floating, join_digests, select, specs

ENCODER, POOLER, READ, STORED = "encoder", "pooler", "read", "stored"
"""Keys of the digests of a base: of its encoder without the pooler, of the pooler, of all that a
training reads of it, and of its tensors as they are stored."""


def encoder_digests(base: Checkpoint) -> dict[str, str]:
    """Hashes of the encoder of a base and, separately, of its pooler, if it has one.

    They are the same in every form that the base is published in: with heads or without, under the
    prefix of a classifier or not, and in half precision or widened from it.
    """
    encoder, family = encoder_of(base).weights, base.family
    names = floating(encoder)
    if any(specs(encoder)[name].dtype != torch.float32 for name in names):
        encoder = each(lambda tensor: tensor, select(encoder, names))
    poolers = [name for name in names if family.is_pooler(name)]
    parts = {ENCODER: [name for name in names if name not in poolers], POOLER: poolers}
    return {part: digest(select(encoder, own)) for part, own in parts.items() if own}


def whole_base_digest(base: Checkpoint) -> str:
    """A hash of all that a training reads of a base: encoder, configuration and tokenizer.

    Raises BrokenCheckpoint for an encoder that is not whole or not finite.
    """
    encoder = encoder_of(base)
    config = {key: value for key, value in encoder.config.items() if key not in UNREAD_KEYS}
    parts = {
        "weights": Observed(encoder.weights, base.source).digest(),
        "config": digest_of(config),
        "tokenizer": processor_digest(base.processor),
    }
    return join_digests(parts)


@dataclass(frozen=True)
class RecordedBase:
    """The base that `model` was made from, as its folder records it: its name and digests."""

    model: str
    base: str
    digests: Mapping[str, str]


def recorded_base(model: Checkpoint) -> RecordedBase | None:
    """The base that the folder of an expert, merge or adapter records; None if it records none.

    An adapter has no digests: those of the base that it names are computed, if that can be opened.
    """
    record = first_record_in(model.path)
    if isinstance(record, ExpertJson):
        read = {READ: record.base_digest} if record.base_digest else {}
        digests, name = {**read, **record.base_weights}, record.base
    elif record is not None:
        stored = {STORED: record.base.digest} if record.base else {}
        digests = {**stored, **record.base_weights}
        name = record.base.source if record.base else "the base of its experts"
    elif is_adapter(model.path):
        try:
            if (place := _named(model)) is None:
                return None
            digests, name = encoder_digests(open_checkpoint(place)), str(place)
        except BrokenCheckpoint:  # the adapter may have been opened on another base
            return None
    else:
        return None
    return RecordedBase(model.source, name, digests) if digests else None


def _named(adapter: Checkpoint) -> Path | None:
    """The folder of the base that an adapter names, here or in the Hub's cache; else None."""
    config = read_json(adapter.path / ADAPTER_FILE, "the configuration of an adapter")
    name = str(config.get("base_model_name_or_path"))
    folder = adapter.path / name
    return folder if folder.is_dir() else local_folder(name, config.get("revision"))


def check_stay(models: Iterable[Checkpoint], out: Path, *others: Path) -> None:
    """Raise OutputExists where a new folder `out` would replace a model, a file that it links to,
    or the base that it names as an adapter. `others` are folders that go when `out` is made."""
    taken = [Path(os.path.realpath(folder)) for folder in (out, *others)]
    for model in models:
        named = None
        with suppress(BrokenCheckpoint):  # the adapter may have been opened on another base
            named = _named(model) if is_adapter(model.path) else None
        links = filter(Path.is_symlink, model.path.iterdir())
        for path in filter(None, (model.path, named, *links)):
            place = Path(os.path.realpath(path))
            if any(place.is_relative_to(folder) for folder in taken):
                raise OutputExists(
                    f"{out} would replace {place}, which belongs to {model.source}: choose another "
                    "--out"
                )


def is_base(base: Checkpoint, digests: Mapping[str, str]) -> bool:
    """Whether a base has the recorded digests `digests`; False if there are none."""
    return bool(digests) and _first_difference(digests, _digests(base)) is None


def check_bases(
    models: Sequence[Checkpoint], base: Checkpoint | None = None, *, read: bool = True
) -> None:
    """Raise BadRecipe, naming both, for a model that was made from another base than `base` or,
    without that, than the first model that records its base.

    A model whose folder records no base passes, with a warning if its weights are not at all like
    those of the base. Unless weights are to be `read`, adapters are skipped.
    """
    looked_at = [model for model in models if read or not is_adapter(model.path)]
    pairs = [(model, recorded_base(model)) for model in looked_at]
    recorded = [record for _, record in pairs if record is not None]
    if base is not None:  # an adapter holds its base
        others = [model for model, record in pairs if record is None and not is_adapter(model.path)]
        _warn_if_apart(others, base)
    if not recorded:
        return
    lookup = recorded[0].digests.get if base is None else _digests(base)
    for record in recorded:
        if (pair := _first_difference(record.digests, lookup)) is None:
            continue
        other = base.source if base else f"{recorded[0].base} of {recorded[0].model}"
        raise BadRecipe(
            f"{record.model} was made from the base {record.base} ({pair[0][:12]}), found {other} "
            f"({pair[1][:12]}); expected the same weights, or --other-base to accept others"
        )


def of_two_bases(models: Iterable[Checkpoint]) -> tuple[RecordedBase, RecordedBase] | None:
    """The bases of the first model that records one and of the first that records another."""
    recorded = [record for model in models if (record := recorded_base(model)) is not None]
    for record in recorded[1:]:
        if _first_difference(record.digests, recorded[0].digests.get) is not None:
            return recorded[0], record
    return None


MIN_COSINE = 0.1
"""A cosine of two matrices below this is that of different pretrainings, about 0; fine-tuning
leaves it about 1."""


def _warn_if_apart(models: Sequence[Checkpoint], base: Checkpoint) -> None:
    """Warn of models whose first square matrix has nothing in common with the base's."""
    for model in models:
        origin = aligned_base(base, model).weights
        headers, own = specs(origin), specs(model.weights)
        square = (n for n in floating(origin) if _square(headers[n].shape, own[n].shape))
        if (name := next(square, None)) is None:
            continue
        found = cosine(model.weights, origin, name)
        if found < MIN_COSINE:
            warnings.warn(
                f"{model.source} has nothing in common with the base {base.source}: the cosine of "
                f"their '{name}' is {found:.2f}; expected the base that it was fine-tuned from",
                stacklevel=2,
            )


def _square(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether both shapes are of one square matrix: one of attention, as a rule."""
    return shape == other and len(shape) == 2 and shape[0] == shape[1]


def _digests(base: Checkpoint) -> Callable[[str], str | None]:
    """A function from a key (`ENCODER`, ...) to that digest of a base, computed when asked for."""
    encoder = cache(partial(encoder_digests, base))

    def lookup(key: str) -> str | None:
        if key == READ:
            return whole_base_digest(base)
        return digest(base.weights) if key == STORED else encoder().get(key)

    return lookup


def _first_difference(
    recorded: Mapping[str, str], lookup: Callable[[str], str | None]
) -> tuple[str, str] | None:
    """The first recorded and known digest of one key that differ; None if all agree.

    Only those of encoder and pooler count if they are known, as others depend on the form that the
    base is stored in.
    """
    for keys in ((ENCODER, POOLER), (READ,), (STORED,)):
        pairs = [(recorded[key], now) for key in keys if key in recorded and (now := lookup(key))]
        if pairs:
            return next((pair for pair in pairs if pair[0] != pair[1]), None)
    return None
