"""Pure, lazy arithmetic on state dicts: a tensor is computed when it is asked for.

The one door to the room, for methods of ours and of others.
"""

from harness.weights.arithmetic import (
    check_not_all_zero,
    check_one_each,
    each,
    each_named,
    entrywise,
    in_pieces,
    mean,
    task_vectors,
    total,
    warn_unless_one,
    where_shared,
)
from harness.weights.digests import (
    Observed,
    check_finite,
    digest,
    flat_bytes,
    join_digests,
    tensor_digest,
)
from harness.weights.lazy import (
    Digests,
    Lazy,
    Spec,
    after,
    cast_like,
    check_same,
    floating,
    known_digests,
    renamed,
    select,
    size,
    specs,
    union,
)
from harness.weights.order import smallest_magnitude
from harness.weights.polar import polar
from harness.weights.threads import by_piece, flat_pieces, once, piece_size, pieces_of, spread

__all__ = [
    "Digests",
    "Lazy",
    "Observed",
    "Spec",
    "after",
    "by_piece",
    "cast_like",
    "check_finite",
    "check_not_all_zero",
    "check_one_each",
    "check_same",
    "digest",
    "each",
    "each_named",
    "entrywise",
    "flat_bytes",
    "flat_pieces",
    "floating",
    "in_pieces",
    "join_digests",
    "known_digests",
    "mean",
    "once",
    "piece_size",
    "pieces_of",
    "polar",
    "renamed",
    "select",
    "size",
    "smallest_magnitude",
    "specs",
    "spread",
    "task_vectors",
    "tensor_digest",
    "total",
    "union",
    "warn_unless_one",
    "where_shared",
]
