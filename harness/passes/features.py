"""Shell: a checkpoint and rows -> `Features`. The only forward pass, and the feature cache."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import xxhash

from harness.checkpoints.build import build_model
from harness.checkpoints.families.known import family_of
from harness.checkpoints.tokenizer import open_tokenizer, token_ids, tokenizer_digest
from harness.errors import BrokenCheckpoint, HarnessError, MissingHead, NotFinite
from harness.passes.cache import keep, recall
from harness.types import Array, Checkpoint, Features, Head, Rows, Steps

LABEL_KEYS = ("id2label", "label2id", "architectures", "transformers_version", "_name_or_path")
"""What a configuration says that the forward pass does not read."""


def encode(
    checkpoint: Checkpoint,
    rows: Rows,
    *,
    digest: str,
    columns: Sequence[int],
    max_length: int,
    batch_size: int = 32,
    device: str = "auto",
    progress: Steps | None = None,
) -> Features:
    """Features of the rows, from the cache or by one forward pass over them.

    `digest` is that of the checkpoint's weights; `columns` puts the outputs into the order of the
    task's labels. `progress` is called with the number of rows done since the last call.
    Results do not depend on the batch size beyond rounding.
    """
    key = features_key(checkpoint, rows, digest, max_length)
    path = cache_dir("features") / f"{key}.safetensors"
    found = _read(path, len(rows))
    if found is None:
        found = forward(
            checkpoint,
            rows,
            max_length=max_length,
            batch_size=batch_size,
            device=device,
            progress=progress,
        )
        _write(path, *found)
    elif progress:
        progress(len(rows))
    x, logits = found
    return Features(x, logits[:, list(columns)], rows.labels)


def features_key(checkpoint: Checkpoint, rows: Rows, digest: str, max_length: int) -> str:
    """The content that features depend on, as one hash; never a name."""
    return content_key(checkpoint, rows, digest, max_length, "last_linear")


def content_key(
    checkpoint: Checkpoint, rows: Rows, digest: str, max_length: int, *parts: object
) -> str:
    """The content that something made of a model and rows depends on, as one hash."""
    known = [model_key(checkpoint, digest), rows.digest, max_length, *parts]
    return str(xxhash.xxh3_128_hexdigest(json.dumps(known, sort_keys=True).encode()))


def model_key(checkpoint: Checkpoint, digest: str) -> str:
    """All that a model's outputs depend on beside the rows, as one hash.

    The weights, of which `digest` is the hash, the tokenizer and the configuration.
    """
    config = {k: v for k, v in checkpoint.config.items() if k not in LABEL_KEYS}
    known = [digest, tokenizer_digest(checkpoint.path), config]
    return str(xxhash.xxh3_128_hexdigest(json.dumps(known, sort_keys=True).encode()))


def cache_dir(what: str) -> Path:
    """Where features or statistics are kept: HARNESS_CACHE_DIR, else the user's cache folder."""
    given = os.environ.get("HARNESS_CACHE_DIR")
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(given) if given else Path(root) / "merging-harness") / what


def _read(path: Path, rows: int) -> tuple[Array, Array] | None:
    entry = recall(path)
    if entry is None or set(entry[0]) != {"x", "logits"}:
        return None
    x, logits = (entry[0][name].clone().numpy() for name in ("x", "logits"))
    return (x, logits) if len(x) == len(logits) == rows else None


def _write(path: Path, x: Array, logits: Array) -> None:
    keep(path, {"x": torch.from_numpy(x), "logits": torch.from_numpy(logits)}, {})


def forward(
    checkpoint: Checkpoint,
    rows: Rows,
    *,
    max_length: int,
    batch_size: int = 32,
    device: str = "auto",
    progress: Steps | None = None,
) -> tuple[Array, Array]:
    """Inputs of the final linear layer [rows, width] and its outputs [rows, outputs], float32.

    Rows of like length share a batch and are padded to the longest of it, with the attention mask;
    the model is in eval mode.
    """
    where = device_of(device)
    model = build_model(checkpoint.config, checkpoint.weights, checkpoint.source).to(where)
    final = _final_module(model, checkpoint)
    encoded = tokenize(checkpoint, rows, max_length)
    lengths = [len(ids) for ids in encoded["input_ids"]]
    order = sorted(range(len(rows)), key=lambda i: -lengths[i])
    seen: list[torch.Tensor] = []
    handle = final.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x = logits = np.empty(0, dtype=np.float32)
    try:
        with torch.inference_mode():
            for start in range(0, len(order), batch_size):
                batch = order[start : start + batch_size]
                with running(checkpoint.source):
                    outputs = model(**padded(encoded, batch, checkpoint, where)).logits
                got = seen.pop().float().cpu().numpy(), outputs.float().cpu().numpy()
                if not start:
                    x = np.empty((len(rows), got[0].shape[1]), dtype=np.float32)
                    logits = np.empty((len(rows), got[1].shape[1]), dtype=np.float32)
                x[batch], logits[batch] = got
                if progress:
                    progress(len(batch))
    finally:
        handle.remove()
    _check_outputs(checkpoint, rows, x, logits)
    return x, logits


def _check_outputs(checkpoint: Checkpoint, rows: Rows, x: Array, logits: Array) -> None:
    """Raise NotFinite for outputs that mean nothing: read as labels they would be the first."""
    odd = ~(np.isfinite(x).all(axis=1) & np.isfinite(logits).all(axis=1))
    if odd.any():
        raise NotFinite(
            f"{checkpoint.source} has NaN or infinite outputs for {odd.sum()} of {len(rows)} rows "
            f"of {rows.task}@{rows.split}; expected finite ones"
        )


def tokenize(checkpoint: Checkpoint, rows: Rows, max_length: int) -> dict[str, list[list[int]]]:
    """Token ids and the like of every row, cut to `max_length`, not padded.

    Raises BrokenCheckpoint for a tokenizer that is not the model's: tokens without an embedding.
    """
    tokenizer = open_tokenizer(checkpoint.path)
    texts = list(zip(*rows.texts, strict=True))
    encoded = token_ids(tokenizer, texts, max_length, checkpoint.path)
    known = checkpoint.config.get("vocab_size")
    last = max((max(ids, default=0) for ids in encoded["input_ids"]), default=0)
    if isinstance(known, int) and last >= known:
        raise BrokenCheckpoint(
            f"the tokenizer of {checkpoint.source} makes token {last} of a row of {rows.task}, and "
            f"the model has embeddings for {known}; expected the tokenizer it was trained with"
        )
    return encoded


@contextmanager
def running(what: str) -> Iterator[None]:
    """Whatever goes wrong in a model's forward pass as BrokenCheckpoint, in one line."""
    try:
        yield
    except HarnessError:
        raise
    # transformers' models raise many types for a configuration that does not fit itself or the
    # rows: positions for fewer tokens than a row has, numbers of heads, of chunks, ...
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise BrokenCheckpoint(
            f"{what} cannot be run ({type(error).__name__}: {reason:.300}); expected a model whose "
            "config.json fits it and has positions for the longest row: see --max-length"
        ) from error


def padded(
    encoded: dict[str, list[list[int]]],
    batch: Sequence[int],
    checkpoint: Checkpoint,
    device: torch.device,
) -> dict[str, torch.Tensor]:
    """The rows of a batch as tensors [rows, longest], padded at the end, with their mask."""
    longest = max(len(encoded["input_ids"][i]) for i in batch)
    fill = {"input_ids": int(checkpoint.config.get("pad_token_id") or 0)}
    tensors = {}
    for key, lists in encoded.items():
        tensor = torch.full((len(batch), longest), fill.get(key, 0), dtype=torch.long)
        for row, i in enumerate(batch):
            tensor[row, : len(lists[i])] = torch.tensor(lists[i], dtype=torch.long)
        tensors[key] = tensor.to(device)
    return tensors


def device_of(name: str) -> torch.device:
    """The device of a name; `auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def _final_module(model: torch.nn.Module, checkpoint: Checkpoint) -> torch.nn.Module:
    family = family_of(checkpoint.config, checkpoint.source)
    name = family.final(dict(model.named_parameters()))
    if name is None:
        raise MissingHead(f"{checkpoint.source} has no final linear layer, expected one")
    return model.get_submodule(name)


def final_head(checkpoint: Checkpoint, columns: Sequence[int]) -> Head | None:
    """The final linear layer, its rows in the order of the task's labels; None without a head."""
    family = family_of(checkpoint.config, checkpoint.source)
    if (name := family.final(checkpoint.weights)) is None:
        return None
    weight = checkpoint.weights[f"{name}.weight"].float()[list(columns)]
    bias = torch.zeros(len(weight))
    if f"{name}.bias" in checkpoint.weights:
        bias = checkpoint.weights[f"{name}.bias"].float()[list(columns)]
    return Head(weight.numpy(), bias.numpy())
