"""One hash of several, as weights and models are known by."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import xxhash


def digest_of(value: object) -> str:
    """A hash of a value of JSON."""
    return str(xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True).encode()))


def join_digests(parts: Mapping[str, str]) -> str:
    """One hash of many, whatever the order they were made in."""
    text = "\n".join(f"{name} {parts[name]}" for name in sorted(parts))
    return str(xxhash.xxh3_128_hexdigest(text.encode()))


def joined(parts: Sequence[str]) -> str:
    """One hash of several without names, whatever their order; of one, itself."""
    if len(parts) == 1:
        return parts[0]
    return join_digests({str(number): part for number, part in enumerate(sorted(parts))})
