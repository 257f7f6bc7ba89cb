"""Rows as model inputs: the cost of each row, and batches of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import mode
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from harness.checkpoints.families.family import GENERIC
from harness.checkpoints.families.t5 import DECODER
from harness.checkpoints.processor import check_inputs, open_image_processor, pixels
from harness.checkpoints.settings import PADDING
from harness.checkpoints.tokenizer import shared_tokenizer, token_ids, word_ids
from harness.checkpoints.verbalizer import prompted, verbalizer_of
from harness.data.images import StoredImage, decoded, opened
from harness.errors import BadData, BrokenCheckpoint
from harness.kinds import IGNORED, kind_of
from harness.passes.placement import Placement
from harness.readout import LAST_LINEAR, Readout, Tokens, positions
from harness.text import shortened
from harness.types import Checkpoint, Rows

Inputs: TypeAlias = "dict[str, torch.Tensor]"


ENOUGH = 1 << 13
"""Tokens of a batch that keep a GPU busy. On 2,000 rows of a corpus, 8 to 17 % of a batch of 32,768
are padding, and 3 to 7 % if it ends where rows get shorter (benchmarks/README.md, "A GPU")."""


@dataclass(frozen=True)
class Prepared:
    """Rows as model inputs.

    `costs` are the tokens of each row, 1 for an image. `columns` have an entry for each row, for a
    data set of the Trainer. `make` returns the inputs of the rows with the given numbers. `first`,
    for rows of words, is the position of each word's first token, -1 for a word that was cut off.
    With `alike` a batch has rows of one cost, as the model may read padding.
    """

    costs: Sequence[int]
    columns: Mapping[str, Sequence[Any]]
    make: Callable[[Sequence[int]], Inputs]
    first: Sequence[Sequence[int]] | None = None
    alike: bool = False

    def batch(self, picked: Sequence[int], placement: Placement) -> Inputs:
        """The inputs of some rows, [rows, ...], on the device of the model."""
        return placement.put_inputs(self.make(picked))

    def by_cost(self) -> list[int]:
        """The numbers of all rows, the row with the most tokens first."""
        return sorted(range(len(self.costs)), key=lambda row: -self.costs[row])

    def batches(self, budget: int, size: int | None = None) -> Iterator[list[int]]:
        """The rows of each batch, the longest first: `size` of them, or else one and as many more
        as keep the batch's tokens with padding, or its images, within the budget.

        Beyond `ENOUGH` tokens a batch has no row that would be padded by more than a tenth.
        """
        order, start = self.by_cost(), 0
        while start < len(order):
            longest = max(1, self.costs[order[start]])
            end = start + (size or max(1, budget // longest))
            if size is None:
                more = range(start + max(1, ENOUGH // longest), min(end, len(order)))
                shorter = (i for i in more if self.costs[order[i]] < 0.9 * longest)
                end = next(shorter, end)
            if self.alike:
                cost, rest = self.costs[order[start]], range(start, min(end, len(order)))
                end = next((i for i in rest if self.costs[order[i]] != cost), end)
            yield order[start:end]
            start = end

    def together(self, picked: Sequence[int]) -> list[list[int]]:
        """Some rows in batches that the model may read: one, or with `alike` one of each cost."""
        groups: dict[int, list[int]] = {}
        for row in picked:
            groups.setdefault(self.costs[row] if self.alike else 0, []).append(row)
        return [*groups.values()]

    def of_words(self, outputs: torch.Tensor, batch: Sequence[int]) -> torch.Tensor:
        """The outputs [words, ...] of a batch's words, each at its first token, from outputs
        [rows, tokens, ...]. Outputs for rows that are not split into words are unchanged.
        """
        if self.first is None:
            return outputs
        first = [[token for token in self.first[row] if token >= 0] for row in batch]
        lines = [line for line, tokens in enumerate(first) for _ in tokens]
        return outputs[lines, [*chain(*first)]]


def row_count(batch: Mapping[str, torch.Tensor]) -> int:
    """How many rows a batch has."""
    return len(next(iter(batch.values())))


def prepare(
    checkpoint: Checkpoint, rows: Rows, max_length: int, readout: Readout = LAST_LINEAR
) -> Prepared:
    """The rows as model inputs: tokens, cut to `max_length` and, unless the readout pads them,
    padded when a batch is made.

    Images are decoded when a batch is made; before that, only their headers are read. Raises
    BrokenCheckpoint for a tokenizer that is not the model's: it makes tokens without an embedding.
    """
    check_inputs(checkpoint, rows.task)
    if rows.images is not None:
        return _of_images(checkpoint, rows, rows.images)
    words = kind_of(rows.task).split_into_words
    texts = prompted(checkpoint, rows.texts)
    encoded = _tokenized(checkpoint, texts, max_length, None if words else readout)
    size, last = checkpoint.config.get("vocab_size"), int(encoded.flat["input_ids"].max(initial=0))
    if isinstance(size, int) and last >= size:
        raise BrokenCheckpoint(
            f"the tokenizer of {checkpoint.source} gives the token {last} for a row of "
            f"{rows.task}, and the model has embeddings for {size} tokens; expected the tokenizer "
            "that it was trained with"
        )
    if checkpoint.family.stacks and not words and texts is rows.texts:
        _check_ends(checkpoint, rows, encoded.columns["input_ids"])
    padding = int(checkpoint.config.get(PADDING) or 0)
    decoder_tokens = len(verbalizer_of(checkpoint).get(DECODER, ()))
    make = partial(_padded, encoded, padding, decoder_tokens)
    # of an architecture known by rules alone nobody has seen that it leaves padding out: ConvBERT's
    # convolutions and FNet's transforms do not; what comes after a row cannot reach a decoder's
    alike = checkpoint.family.name == GENERIC and not checkpoint.family.decoder
    return Prepared(encoded.counts.tolist(), encoded.columns, make, encoded.first, alike)


def check_positions(model: torch.nn.Module, prepared: Prepared, source: str) -> None:
    """Raise BrokenCheckpoint for rows longer than the positions that a model has: on a GPU such an
    index error makes the device unusable for the rest of the process."""
    limit, longest = positions(model), max(prepared.costs, default=0)
    if limit is not None and longest > limit:
        raise BrokenCheckpoint(
            f"{source} has positions for {limit} tokens, and a row has {longest}; expected no "
            f"longer row: --max-length {limit}"
        )


def _check_ends(checkpoint: Checkpoint, rows: Rows, encoded: Sequence[Sequence[int]]) -> None:
    """Raise BadData unless all rows have as many end tokens: a decoder's classifier reads a row at
    its last one, and transformers refuses a batch with more of them in one row than in another."""
    end = checkpoint.config.get("eos_token_id", 1)
    counts = [list(ids).count(end) for ids in encoded]
    expected = max(1, mode(counts or [1]))
    for texts, count in zip(rows.texts, counts, strict=True):
        if count != expected:
            row = shortened(" ".join(texts), 60)  # not its number: rows may be drawn
            raise BadData(
                f"the row '{row}' of {rows.task}@{rows.split} has the token {end}, which ends a "
                f"row for {checkpoint.source}, {count} times, expected {expected}: "
                + ("take it out of the text" if count else "check that its tokenizer adds it")
            )


def _of_images(checkpoint: Checkpoint, rows: Rows, image: Callable[[int], StoredImage]) -> Prepared:
    processor = open_image_processor(checkpoint.processor)
    for row in range(len(rows)):
        opened(image(row))

    def make(picked: Sequence[int]) -> Inputs:
        images = [decoded(image(row)) for row in picked]
        return {"pixel_values": pixels(processor, images, checkpoint.source)}

    return Prepared([1] * len(rows), {"pixel_values": range(len(rows))}, make)


@dataclass(frozen=True)
class _Tokenized:
    """Rows as token ids: in `columns` one list per row, in `flat` end to end, with the start and
    the number of tokens of each row.

    A batch is cut out of `flat` in one step: to convert its lists row by row keeps a GPU waiting.
    """

    columns: Tokens
    flat: Mapping[str, np.ndarray[Any, Any]]
    starts: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any]
    first: Sequence[Sequence[int]] | None


REMEMBERED = 1 << 20
"""Tokens of tokenized rows that are kept at most, in some 80 MB: one model after the other is run
on the same rows."""
_remembered: dict[tuple[Any, ...], _Tokenized] = {}


def _tokenized(
    checkpoint: Checkpoint,
    texts: Sequence[tuple[str, ...]],
    max_length: int,
    readout: Readout | None,
) -> _Tokenized:
    """Tokenized rows; the latest are kept for other models with the same tokenizer. Without a
    readout rows are tokenized word by word."""
    path = checkpoint.processor
    tokenizer = shared_tokenizer(path, words=readout is None)
    key = (tokenizer, max_length, readout and readout.tokens, tuple(texts))
    if (cached := _remembered.pop(key, None)) is not None:
        _remembered[key] = cached  # as the latest
        return cached
    first = None
    if readout is None:
        encoded, first = word_ids(tokenizer, texts, max_length, path)
    else:
        segments = [list(segment) for segment in zip(*texts, strict=True)]
        encoded = token_ids(partial(readout.tokens, tokenizer, segments, max_length), path)
    counts = np.array([len(ids) for ids in encoded["input_ids"]], dtype=np.int64)
    total = int(counts.sum())
    flat = {
        key: np.fromiter(chain.from_iterable(values), np.int64, total)
        for key, values in encoded.items()
    }
    tokenized = _Tokenized(encoded, flat, np.cumsum(counts) - counts, counts, first)
    room = REMEMBERED - total
    if room >= 0:
        while _remembered and sum(entry.counts.sum() for entry in [*_remembered.values()]) > room:
            _remembered.pop(next(iter(_remembered)), None)  # the oldest
        _remembered[key] = tokenized
    return tokenized


def _padded(rows: _Tokenized, padding: int, decoder_tokens: int, picked: Sequence[int]) -> Inputs:
    """Rows of tokens as tensors [rows, longest], padded at the end, with their mask.

    Rows of just `decoder_tokens` tokens, as many as a decoder is given, are padded by one more:
    else the model would take this mask for the decoder's.
    """
    counts, starts = rows.counts[picked], rows.starts[picked]
    longest = int(counts.max())
    offsets = np.arange(longest + (longest == decoder_tokens))
    inside = offsets < counts[:, None]
    places = (starts[:, None] + offsets)[inside]
    tensors = {}
    for key, values in rows.flat.items():
        lines = np.full(inside.shape, padding if key == "input_ids" else 0, np.int64)
        lines[inside] = values[places]
        tensors[key] = torch.from_numpy(lines)
    return tensors


def row_labels(prepared: Prepared, rows: Rows, places: Sequence[int], outputs: int) -> list[Any]:
    """The labels of every row as a loss reads them.

    One number for each row, or for each class, or for each token: -100 where no word begins.
    """
    kind = kind_of(rows.task)
    targets = kind.head_labels(rows, places, outputs)
    targets = targets.astype(np.int64 if kind.integer_labels else np.float32)
    if prepared.first is None:
        return list(targets.tolist())
    labels, unit = [], 0
    for count, first in zip(prepared.costs, prepared.first, strict=True):
        line = [IGNORED] * count
        for token in first:
            if token >= 0:
                line[token] = int(targets[unit])
            unit += 1
        labels.append(line)
    return labels


def stacked(labels: Sequence[Any], *, whole: bool) -> torch.Tensor:
    """The labels of some rows as a tensor; labels of tokens are padded with -100."""
    kind = torch.int64 if whole else torch.float32
    if not whole or not isinstance(labels[0], list):
        return torch.tensor(labels, dtype=kind)
    return pad_sequence([torch.tensor(row, dtype=kind) for row in labels], True, IGNORED)
