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
from harness.weights.line import SCALE, Line
from harness.weights.matrices import Matrices, Others, Vectors, by_matrix, is_matrix
from harness.weights.order import smallest_magnitude
from harness.weights.polar import polar
from harness.weights.solve import least_solution
from harness.weights.spectrum import compact_svd, isometry
from harness.weights.threads import by_piece, flat_pieces, once, piece_size, pieces_of, spread

__all__ = [
    "SCALE",
    "Digests",
    "Lazy",
    "Line",
    "Matrices",
    "Observed",
    "Others",
    "Spec",
    "Vectors",
    "after",
    "by_matrix",
    "by_piece",
    "cast_like",
    "check_finite",
    "check_not_all_zero",
    "check_one_each",
    "check_same",
    "compact_svd",
    "digest",
    "each",
    "each_named",
    "entrywise",
    "flat_bytes",
    "flat_pieces",
    "floating",
    "in_pieces",
    "is_matrix",
    "isometry",
    "join_digests",
    "known_digests",
    "least_solution",
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
