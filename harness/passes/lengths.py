"""Shell: the tokens of rows, what a maximum length cuts off, and the length that rows need."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.checkpoints.network import classifier_on_meta
from harness.checkpoints.processor import processor_digest
from harness.checkpoints.verbalizer import as_questions
from harness.errors import BadOption, BrokenCheckpoint
from harness.hyperparameters import MOST_TOKENS
from harness.kinds import kind_of
from harness.passes.prepared import prepare
from harness.readout import LAST_LINEAR, Readout, positions
from harness.types import AUTO, Checkpoint, Length, Rows
from harness.values import tokens


@dataclass(frozen=True)
class Cut:
    """What a maximum length cuts off: `lost` of `count` rows or, for tags, of gold entities.

    `words` is the number of words that are cut off, for tags. `longest` is the number of tokens of
    the longest row.
    """

    lost: int
    count: int
    words: int
    longest: int

    @property
    def share(self) -> float:
        """The share of rows or entities that are lost."""
        return self.lost / self.count if self.count else 0.0


def length_of(value: object) -> Length:
    """A maximum length from a value that a user gave. Raises BadOption."""
    try:
        return tokens(value)
    except ValueError as error:
        raise BadOption(f"max_length: {error}") from error


def token_counts(checkpoint: Checkpoint, rows: Rows) -> Sequence[int]:
    """The number of tokens of each row, without truncation."""
    return prepare(*as_questions(checkpoint, rows), MOST_TOKENS).costs


def token_limit(checkpoint: Checkpoint) -> int:
    """How many tokens a model can read."""
    limit = positions(classifier_on_meta(checkpoint.config, checkpoint.source))
    configured = checkpoint.config.get("max_position_embeddings")
    limit = limit or (configured if isinstance(configured, int) and configured > 0 else MOST_TOKENS)
    pooling = checkpoint.pooling
    return min(limit, pooling.max_length or limit) if pooling else limit


def resolved_length(
    length: Length,
    checkpoints: Sequence[Checkpoint],
    several: Iterable[Rows],
    readout: Readout = LAST_LINEAR,
) -> int:
    """The maximum length as a number; `auto`: the longest row's, at most what every model can read.

    It means nothing for images. Raises BadOption for `auto` if the readout pads rows to one length.
    """
    several = list(several)
    if several[0].task.image:
        return several[0].task.finetune.max_length
    if length != AUTO:
        return length
    if readout != LAST_LINEAR:
        raise BadOption(
            f"max_length is {AUTO}, and features '{readout.name}' need the same number of tokens "
            f"in every row; expected a number, or leave out {readout.option}"
        )
    longest = max(
        max(token_counts(o, rows)) for rows in several for o in _by_tokenizer(checkpoints)
    )
    return min(longest, *map(token_limit, checkpoints))


def at_length(rows: Rows, length: Length | None, checkpoints: Sequence[Checkpoint]) -> Rows:
    """The rows with the length asked for as their task's maximum; None: the task's own."""
    if length is None:
        return rows
    number = resolved_length(length, checkpoints, [rows])
    return replace(
        rows, task=replace(rows.task, finetune=replace(rows.task.finetune, max_length=number))
    )


def cut_off(checkpoint: Checkpoint, rows: Rows, max_length: int) -> Cut:
    """What a maximum length cuts off of rows, by the model's tokenizer."""
    checkpoint, rows = as_questions(checkpoint, rows)
    kind = kind_of(rows.task)
    whole = prepare(checkpoint, rows, MOST_TOKENS)
    lengths = np.array(whole.costs)
    units = np.repeat(lengths > max_length, kind.unit_counts(rows))
    words = 0
    if whole.first is not None and units.any():
        cut = prepare(checkpoint, rows, max_length).first or ()
        before = np.array([place for row in whole.first for place in row])
        units = (before >= 0) & (np.array([place for row in cut for place in row]) < 0)
        words = int(units.sum())
    parts = kind.parts(rows)
    lost = sum(bool(units[part.start : part.stop].any()) for part in parts)
    return Cut(lost, len(parts), words, int(lengths.max()))


def tell_of_cut(checkpoints: Sequence[Checkpoint], rows: Rows, max_length: int) -> None:
    """Warn of what a maximum length cuts off of rows, by the tokenizer that loses most.

    Raises BrokenCheckpoint for rows of more tokens than a model has positions for.
    """
    if rows.task.image:
        return
    cuts = [cut_off(checkpoint, rows, max_length) for checkpoint in _by_tokenizer(checkpoints)]
    worst = max(cuts, key=lambda cut: (cut.lost, cut.words))
    for checkpoint, cut in zip(_by_tokenizer(checkpoints), cuts, strict=True):
        limit = positions(classifier_on_meta(checkpoint.config, checkpoint.source))
        if limit is not None and (longest := min(cut.longest, max_length)) > limit:
            raise BrokenCheckpoint(
                f"{rows.task}@{rows.split} has a row of {longest} tokens, and {checkpoint.source} "
                f"has positions for {limit}; expected --max-length {limit}, or auto"
            )
    able = min(map(token_limit, checkpoints))
    if phrase := cut_phrase(worst, max_length):
        advice = "see --max-length auto" if able > max_length else "the model takes no more"
        warnings.warn(
            f"{rows.task}@{rows.split}: {phrase}; the longest row has {worst.longest}: {advice}",
            stacklevel=2,
        )


def cut_phrase(cut: Cut, max_length: int) -> str:
    """What is cut off, as a phrase; empty if nothing is."""
    lost = f"{cut.lost} of {cut.count}"
    if cut.words:
        return (
            f"{cut.words} words are cut off at {max_length} tokens, and with them {lost} gold "
            f"entities ({cut.share:.1%}), which count as not found"
        )
    return f"{lost} rows ({cut.share:.1%}) are cut off at {max_length} tokens" if cut.lost else ""


def _by_tokenizer(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """One checkpoint for each distinct tokenizer."""
    return list({processor_digest(one.processor): one for one in checkpoints}.values())
