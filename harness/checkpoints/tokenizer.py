"""Shell: the tokenizer in a folder, opened and used without any code of its own."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.checkpoints.layout import VOCABULARY_FILES, bad_value, check_files, files_in
from harness.checkpoints.network import one_line_errors, without_warnings
from harness.checkpoints.processor import processor_digest
from harness.checkpoints.settings import PADDING
from harness.errors import BrokenCheckpoint
from harness.files import read_json
from harness.types import Checkpoint


def open_tokenizer(path: Path, *, words: bool = False) -> Any:
    """The tokenizer in a folder, as transformers makes it, without any code of the folder's own.

    With `words`, one for rows that are split into words already: a byte-level one then puts a space
    before each. Raises BrokenCheckpoint, in one line, if transformers fails.
    """
    from transformers import AutoTokenizer

    check_files(path)
    if not files_in(path, VOCABULARY_FILES):  # transformers would make up an empty one
        raise BrokenCheckpoint(
            f"{path} has no tokenizer; expected one of {', '.join(VOCABULARY_FILES)}"
        )
    _check_last(path, _written(path / "tokenizer.json"))
    # transformers reads config.json as well, and logs what is odd there
    with using_tokenizer(path), without_warnings():
        options = {"trust_remote_code": False, "local_files_only": True}
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
        if words and getattr(tokenizer, "add_prefix_space", None) is False:
            tokenizer = AutoTokenizer.from_pretrained(path, **options, add_prefix_space=True)
        tokens = tokenizer.get_vocab().values()
    _check_last(path, tokens)
    return tokenizer


def _check_last(path: Path, tokens: Iterable[object]) -> None:
    last = max((token for token in tokens if isinstance(token, int)), default=0)
    if last > LAST_TOKEN:
        raise bad_value(path, "tokenizer with the largest token", last, f"at most {LAST_TOKEN}")


def _written(file: Path) -> list[object]:
    """The tokens that tokenizer.json has numbers for; none if all of its numbers are short.

    Older releases of transformers write a tokenizer when they open it.
    """
    if not file.is_file() or not re.search(rb":\s*\d{8}", file.read_bytes()):
        return []
    content = read_json(file, "a tokenizer")
    model, added = content.get("model"), content.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    tokens = [*vocabulary.values()] if isinstance(vocabulary, dict) else []
    added = added if isinstance(added, list) else []
    return tokens + [one.get("id") for one in added if isinstance(one, dict)]


def shared_tokenizer(path: Path, *, words: bool = False) -> Any:
    """`open_tokenizer`, with one cached object for all folders of the same files: never change it.

    The latest few are cached, as the rows of every task go through the same tokenizer.
    """
    config = path / "config.json"  # it may name the tokenizer's class
    key = (processor_digest(path), config.read_bytes() if config.is_file() else b"", words)
    tokenizer = _SHARED.get(key)
    if tokenizer is None:
        tokenizer = open_tokenizer(path, words=words)
        while len(_SHARED) >= REMEMBERED:
            _SHARED.pop(next(iter(_SHARED)), None)  # the oldest, if no other thread has done so
        _SHARED[key] = tokenizer
    return tokenizer


REMEMBERED = 8
_SHARED: dict[tuple[str, bytes, bool], Any] = {}

_alone = threading.RLock()
"""Held while stderr is held back: a second thread would take the first one's buffer for stderr, and
put that back in the end."""

LAST_TOKEN = 2**24
"""The largest token id that is allowed: to write a tokenizer, a library counts up to its last id.
The largest vocabularies have 2**20 tokens."""


def with_padding_token(model: Checkpoint) -> Checkpoint:
    """A decoder whose configuration names no padding token, as most are published, with one of its
    tokenizer's: the one that pads, else the one that ends a text. Others are returned as they are.

    A token that the model has no embedding for is not taken, nor one that the tokenizer puts at the
    end of rows: a row is read at its last token that is not the padding token.
    """
    if not model.family.decoder or model.config.get(PADDING) is not None:
        return model
    tokenizer, size = shared_tokenizer(model.processor), model.config.get("vocab_size")
    last = token_ids(lambda: tokenizer(["a"]), model.processor)["input_ids"][0][-1:]
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None and token not in last and isinstance(size, int) and token < size:
            return replace(model, config={**model.config, PADDING: token})
    return model


def word_ids(
    tokenizer: Any, rows: Sequence[Sequence[str]], max_length: int, path: Path
) -> tuple[dict[str, list[list[int]]], list[list[int]]]:
    """Token ids, mask and the like of rows of words, and the place of each word's first token.

    The place is -1 for a word that was cut off or has no token. Raises BrokenCheckpoint, in one
    line, for a tokenizer that does not say which word a token is of.
    """
    options = {"is_split_into_words": True, "truncation": True, "max_length": max_length}
    with using_tokenizer(path):
        encoded = tokenizer([list(words) for words in rows], **options)
        if not getattr(encoded, "is_fast", False):
            raise BrokenCheckpoint(
                f"the tokenizer of {path} does not say which word a token belongs to; expected a "
                "fast tokenizer: tokenizer.json"
            )
        places = []
        for number, words in enumerate(rows):
            tokens = [*enumerate(encoded.word_ids(number))]
            first = {word: place for place, word in reversed(tokens)}
            places.append([first.get(word, -1) for word in range(len(words))])
    return _checked(dict(encoded), path), places


def token_ids(
    encode: Callable[[], dict[str, list[list[int]]]], path: Path
) -> dict[str, list[list[int]]]:
    """Token ids, mask and the like of rows, as `encode` has them made by the tokenizer in a folder.

    Raises BrokenCheckpoint, in one line, if the tokenizer fails.
    """
    with using_tokenizer(path):
        encoded = encode()
    return _checked(encoded, path)


def _checked(encoded: dict[str, list[list[int]]], path: Path) -> dict[str, list[list[int]]]:
    """What a tokenizer made. Raises BrokenCheckpoint unless it has ids and a mask."""
    if not {"input_ids", "attention_mask"} <= encoded.keys():
        raise BrokenCheckpoint(
            f"the tokenizer of {path} makes {', '.join(encoded) or 'nothing'} of a row, expected "
            "input_ids and attention_mask"
        )
    return encoded


@contextmanager
def using_tokenizer(path: Path) -> Iterator[None]:
    """Turns whatever a tokenizer raises in the block into a BrokenCheckpoint of one line."""
    what = f"{path} has no tokenizer that can be read"
    with one_line_errors(what, "expected its files beside the weights"), _alone, _unheard():
        yield


@contextmanager
def _unheard() -> Iterator[None]:
    """Holds back what the block writes to stderr: printed after it, or dropped if it fails.

    Rust code that panics prints a trace by itself, beside the error that it raises.
    """
    try:
        stderr = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    with tempfile.TemporaryFile() as buffer:
        sys.stderr.flush()
        os.dup2(buffer.fileno(), 2)
        try:
            yield
            sys.stderr.flush()
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        buffer.seek(0)
        sys.stderr.write(buffer.read().decode("utf-8", "replace"))
