"""Hashes of values, and of several hashes, which identify weights and models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import xxhash


def digest_of(value: object) -> str:
    """A hash of a JSON value, whatever the order of keys."""
    return str(xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True).encode()))


def join_digests(parts: Mapping[str, str]) -> str:
    """One hash of named hashes, whatever their order."""
    text = "\n".join(f"{name} {parts[name]}" for name in sorted(parts))
    return str(xxhash.xxh3_128_hexdigest(text.encode()))


def joined(parts: Sequence[str]) -> str:
    """One hash of several without names, whatever their order; a single hash is returned as is."""
    if len(parts) == 1:
        return parts[0]
    return join_digests({str(number): part for number, part in enumerate(sorted(parts))})
