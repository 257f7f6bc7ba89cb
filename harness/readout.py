"""How rows are encoded for a model, and where its features are taken (docs/methods.md#features)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    import torch

Tokens: TypeAlias = "dict[str, list[list[int]]]"
ModelInputs: TypeAlias = "Mapping[str, torch.Tensor]"


@dataclass(frozen=True)
class Outputs:
    """The results of one forward pass over a batch, from which features are taken.

    `under` is the input of the final linear layer, [rows, width] or [rows, tokens, width], and
    `logits` its output; `encoder` is the encoder's output, None if it was not called; `mask`
    [rows, tokens] is the attention mask, None if all tokens are attended to.
    """

    under: torch.Tensor
    logits: torch.Tensor
    encoder: Any
    mask: torch.Tensor | None


@dataclass(frozen=True)
class Readout:
    """How rows are encoded for a classifier of transformers, and where its features are taken.

    `tokens(tokenizer, text columns, maximum length)` returns ids and mask of every row.
    `run(classifier, final linear layer, inputs)` makes one forward pass over a batch, and
    `features` returns its features [rows, width]. Readouts with the same `tokens` and `run` share
    a pass. `fault(classifier, final layer, tokenizer, maximum length)` returns why the readout does
    not support these, or None; `option` is the option that requests the readout, for error
    messages.
    """

    name: str
    tokens: Callable[[Any, Sequence[list[str]], int], Tokens]
    run: Callable[[Any, Any, ModelInputs], Outputs]
    features: Callable[[Outputs], torch.Tensor]
    fault: Callable[[Any, Any, Any, int], str | None] | None = None
    option: str = ""

    @property
    def pass_key(self) -> tuple[object, object]:
        """The identity of the forward pass: readouts with the same `pass_key` share one."""
        return self.tokens, self.run


def _as_the_tokenizer_does(tokenizer: Any, texts: Sequence[list[str]], max_length: int) -> Tokens:
    return dict(tokenizer(*texts, truncation=True, max_length=max_length))


def _classified(classifier: Any, final: Any, inputs: ModelInputs) -> Outputs:
    """The classifier's own forward pass: its head on its encoder."""
    under: list[torch.Tensor] = []
    encoder: list[Any] = [None]
    handles = [
        final.register_forward_pre_hook(lambda _, args: under.append(args[0])),
        classifier.base_model.register_forward_hook(lambda *call: encoder.append(call[-1])),
    ]
    try:
        logits = classifier(**inputs).logits
    finally:
        for handle in handles:
            handle.remove()
    read = under.pop()
    if read.ndim > logits.ndim:  # a decoder's head reads every token, and its last output counts
        padding = classifier.config.get_text_config().pad_token_id  # as transformers tells it
        read = _at_last(read, inputs["input_ids"] != padding)
    return Outputs(read, logits, encoder.pop(), inputs.get("attention_mask"))


def _at_last(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The states [rows, width] at the last position of each row that is in the mask."""
    last = (mask.long().cumsum(dim=1) * mask).argmax(dim=1)
    return hidden[range(len(hidden)), last]


def _wide(hidden: torch.Tensor) -> torch.Tensor:
    """Hidden states in float32 for sums over positions; a wider type is kept."""
    return hidden if hidden.dtype.itemsize >= 4 else hidden.float()


def _mean_of_attended(outputs: Outputs) -> torch.Tensor:
    """The mean of the last hidden states over the positions in the mask."""
    hidden = _wide(outputs.encoder[0])
    if outputs.mask is None:
        return hidden.mean(dim=1)
    mask = outputs.mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * mask).sum(dim=1) / mask.sum(dim=1)


def _mean_of_all(outputs: Outputs) -> torch.Tensor:
    """The mean of the last hidden states over all positions, including padding."""
    return _wide(outputs.encoder[0]).mean(dim=1)


def _first(outputs: Outputs) -> torch.Tensor:
    """The last hidden state of the first position ([CLS] if the tokenizer has it)."""
    return cast("torch.Tensor", outputs.encoder[0][:, 0])


def _last(outputs: Outputs) -> torch.Tensor:
    """The last hidden state of the last position in the mask."""
    return _at_last(outputs.encoder[0], cast("torch.Tensor", outputs.mask))


def _largest(outputs: Outputs) -> torch.Tensor:
    """The maximum of the last hidden states over the positions in the mask."""
    away = cast("torch.Tensor", outputs.mask).unsqueeze(-1) == 0
    return cast("torch.Tensor", outputs.encoder[0].masked_fill(away, float("-inf")).amax(dim=1))


def _mean_by_root(outputs: Outputs) -> torch.Tensor:
    """The sum of the last hidden states over the positions in the mask, divided by the square root
    of their number."""
    mean, mask = _mean_of_attended(outputs), cast("torch.Tensor", outputs.mask)
    return mean * mask.sum(dim=1, keepdim=True).to(mean.dtype).sqrt()


def _weighted_mean(outputs: Outputs) -> torch.Tensor:
    """The mean of the last hidden states over the positions in the mask, by weights 1, 2, 3, ...

    SGPT, arXiv:2202.08904.
    """
    hidden, mask = _wide(outputs.encoder[0]), cast("torch.Tensor", outputs.mask)
    weights = (mask * mask.cumsum(dim=1)).unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)


def _no_encoder(classifier: Any, *_: object) -> str | None:
    """The fault of a model that is not an encoder under a head."""
    if classifier.config.is_encoder_decoder or classifier.base_model is classifier:
        return "has no encoder under a head, expected one"
    return None


def _filled_up(tokenizer: Any, texts: Sequence[list[str]], max_length: int) -> Tokens:
    """As `_as_the_tokenizer_does`, with every row padded to `max_length`."""
    return dict(tokenizer(*texts, truncation=True, max_length=max_length, padding="max_length"))


def _no_room(classifier: Any, final: Any, tokenizer: Any, max_length: int) -> str | None:
    if tokenizer.pad_token_id is None:
        return "has a tokenizer without pad_token, expected one"
    return _too_short(classifier, max_length) or _no_encoder(classifier)


def _too_short(classifier: Any, max_length: int) -> str | None:
    count = positions(classifier)
    if count is not None and count < max_length:
        return f"has {count} positions, expected {max_length} or more"
    return None


def _two_halves(tokenizer: Any, texts: Sequence[list[str]], max_length: int) -> Tokens:
    """[CLS] first half [SEP] second half [SEP] of the last text, padded to `max_length`.

    All positions, including padding, are attended to and belong to the first segment.
    """
    special = 3
    encoded = tokenizer(texts[-1], add_special_tokens=False, truncation=False, verbose=False)
    rows = []
    for ids in encoded["input_ids"]:
        cut = ids[: max_length - special]
        half = len(cut) // 2
        first, second = cut[:half], cut[half:]
        row = [tokenizer.cls_token_id, *first, tokenizer.sep_token_id]
        row += [*second, tokenizer.sep_token_id]
        rows.append(row + [tokenizer.pad_token_id] * (max_length - len(row)))
    return {"input_ids": rows, "attention_mask": [[1] * max_length] * len(rows)}


def _headless(classifier: Any, final: Any, inputs: ModelInputs) -> Outputs:
    """The final layer applied to the mean of the last hidden states over all positions; all other
    layers of the head are skipped."""
    encoder = classifier.base_model(**inputs)
    under = _wide(encoder.last_hidden_state).mean(dim=1)
    return Outputs(under, final(under), encoder, inputs.get("attention_mask"))


def _unfit_for_the_mean(classifier: Any, final: Any, tokenizer: Any, max_length: int) -> str | None:
    tokens = ("cls_token", "sep_token", "pad_token")
    missing = [token for token in tokens if getattr(tokenizer, f"{token}_id") is None]
    width = getattr(classifier.config, "hidden_size", None)
    if missing:
        return f"has a tokenizer without {', '.join(missing)}, expected {', '.join(tokens)}"
    if fault := _no_encoder(classifier):
        return fault
    if final.in_features != width:
        return f"has a final layer of width {final.in_features}, expected {width} as hidden states"
    if max_length < 4:
        return f"is asked to read {max_length} tokens of a row, expected 4 or more"
    return _too_short(classifier, max_length)


POSITIONS = ("position_embeddings", "embed_positions", "positions_embed", "wpe", "pos_encoding")
"""What transformers' models call their tables of positions."""


def positions(classifier: Any) -> int | None:
    """The number of tokens for which a model has position embeddings; None without such a table.

    The first positions are reserved for padding in RoBERTa, and never used in OPT (`offset`). GPT-J
    and CTRL compute their table: a buffer [positions, columns].
    """
    modules = [m for name, m in classifier.named_modules() if name.endswith(POSITIONS)]
    tables = [table for table in modules if hasattr(table, "num_embeddings")]
    skipped = [0 if table.padding_idx is None else table.padding_idx + 1 for table in tables]
    counts = [
        table.num_embeddings - getattr(table, "offset", skip)
        for table, skip in zip(tables, skipped, strict=True)
    ]
    counts += [len(one) for name, one in classifier.named_buffers() if name.endswith(POSITIONS)]
    return min(counts, default=None)


LAST_LINEAR = Readout("last_linear", _as_the_tokenizer_does, _classified, attrgetter("under"))
"""The model's own forward pass: features are the input of the final layer of its head."""
MEAN_ALL = Readout(
    "mean_all", _two_halves, _headless, attrgetter("under"), _unfit_for_the_mean, "--preset"
)
"""The readout of FT-Classifier's published script."""
MEAN_MASKED = Readout(
    "mean_masked",
    _as_the_tokenizer_does,
    _classified,
    _mean_of_attended,
    _no_encoder,
    "features=mean_masked",
)
"""The mean over a row's tokens, as in sentence encoders; no head is applied to these features."""
CLS = Readout("cls", _as_the_tokenizer_does, _classified, _first, _no_encoder, "features=cls")
"""The encoder's output for the first token, before any pooler; no head is applied to it."""
MEAN_PADDED = Readout(
    "mean_padded", _filled_up, _classified, _mean_of_all, _no_room, "features=mean_padded"
)
"""The mean over all `max_length` positions of a row, including padding, which attention masks."""

POOLINGS: Mapping[str, Callable[[Outputs], torch.Tensor]] = {
    "mean": _mean_of_attended,
    "cls": _first,
    "max": _largest,
    "mean_sqrt_len_tokens": _mean_by_root,
    "lasttoken": _last,
    "weightedmean": _weighted_mean,
}
"""Poolings of the last hidden states, by their names in sentence-transformers."""
POOLED = "pooled:"
"""Prefix of the name of an embedding model's readout, whose features are its own embeddings."""


def _without_head(classifier: Any, final: Any, inputs: ModelInputs) -> Outputs:
    """The encoder's forward pass without a head; the logits are empty, [rows, 0]."""
    encoder = classifier.base_model(**inputs)
    hidden = encoder[0]
    mask = inputs.get("attention_mask", hidden.new_ones(hidden.shape[:2]))
    return Outputs(hidden, hidden.new_empty((len(hidden), 0)), encoder, mask)


@cache  # `pooled` is a new function each time, and equal readouts must compare equal
def embedding(mode: str, *, normalized: bool) -> Readout:
    """The readout of an embedding model: one of `POOLINGS`, then unit length if `normalized`."""

    def pooled(outputs: Outputs) -> torch.Tensor:
        rows = _wide(POOLINGS[mode](outputs))
        return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12) if normalized else rows

    name = f"{POOLED}{mode}{',normalized' if normalized else ''}"
    return Readout(name, _as_the_tokenizer_does, _without_head, pooled)


def without_head(readout: Readout) -> Readout:
    """A readout of the encoder with the same features, for a model without a head."""
    return replace(readout, run=_without_head)


FEATURE_READOUTS = {one.name: one for one in (LAST_LINEAR, MEAN_MASKED, CLS, MEAN_PADDED)}
"""The readouts that the option `features` of a protocol selects, by name."""
