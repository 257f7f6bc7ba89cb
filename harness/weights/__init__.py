"""Pure, lazy arithmetic on state dicts: a tensor is computed when it is asked for.

All public names of the package, for the methods here and for plug-ins: `name as name` exports one.
"""

from types import ModuleType as _Module

from harness.hashes import join_digests as join_digests
from harness.weights.anchor import Alignment as Alignment
from harness.weights.anchor import Finder as Finder
from harness.weights.anchor import alignment as alignment
from harness.weights.anchor import place_of as place_of
from harness.weights.anchor import to_anchor as to_anchor
from harness.weights.arithmetic import SCALE as SCALE
from harness.weights.arithmetic import ScaledMerge as ScaledMerge
from harness.weights.arithmetic import check_at_most_all as check_at_most_all
from harness.weights.arithmetic import check_idle as check_idle
from harness.weights.arithmetic import check_one_each as check_one_each
from harness.weights.arithmetic import check_weights as check_weights
from harness.weights.arithmetic import each as each
from harness.weights.arithmetic import each_named as each_named
from harness.weights.arithmetic import entrywise as entrywise
from harness.weights.arithmetic import factors_of as factors_of
from harness.weights.arithmetic import in_pieces as in_pieces
from harness.weights.arithmetic import mean as mean
from harness.weights.arithmetic import shares_of_mean as shares_of_mean
from harness.weights.arithmetic import task_vectors as task_vectors
from harness.weights.arithmetic import total as total
from harness.weights.arithmetic import where_shared as where_shared
from harness.weights.arithmetic import widened as widened
from harness.weights.decompositions import ALIKE as ALIKE
from harness.weights.decompositions import EPSILON as EPSILON
from harness.weights.decompositions import Decomposed as Decomposed
from harness.weights.decompositions import compact_svd as compact_svd
from harness.weights.decompositions import completed as completed
from harness.weights.decompositions import isometry as isometry
from harness.weights.decompositions import leading as leading
from harness.weights.decompositions import least_solution as least_solution
from harness.weights.decompositions import polar as polar
from harness.weights.decompositions import side_by_side as side_by_side
from harness.weights.decompositions import tell as tell
from harness.weights.digests import Observed as Observed
from harness.weights.digests import check_finite as check_finite
from harness.weights.digests import digest as digest
from harness.weights.digests import finite_digest as finite_digest
from harness.weights.digests import flat_bytes as flat_bytes
from harness.weights.digests import tensor_digest as tensor_digest
from harness.weights.election import Trim as Trim
from harness.weights.election import elected as elected
from harness.weights.election import elected_sign as elected_sign
from harness.weights.election import global_trim as global_trim
from harness.weights.election import majority_sign as majority_sign
from harness.weights.frank_wolfe import objective as objective
from harness.weights.frank_wolfe import universe as universe
from harness.weights.generators import generators_kept as generators_kept
from harness.weights.generators import seeded as seeded
from harness.weights.lazy import Lazy as Lazy
from harness.weights.lazy import Spec as Spec
from harness.weights.lazy import after as after
from harness.weights.lazy import cast as cast
from harness.weights.lazy import cast_like as cast_like
from harness.weights.lazy import check_same as check_same
from harness.weights.lazy import floating as floating
from harness.weights.lazy import joined as joined
from harness.weights.lazy import on as on
from harness.weights.lazy import renamed as renamed
from harness.weights.lazy import select as select
from harness.weights.lazy import size as size
from harness.weights.lazy import specs as specs
from harness.weights.lazy import split as split
from harness.weights.lazy import stored as stored
from harness.weights.lazy import transposed as transposed
from harness.weights.lazy import union as union
from harness.weights.matching import Overlap as Overlap
from harness.weights.matching import UnitGroup as UnitGroup
from harness.weights.matching import assignment as assignment
from harness.weights.matching import cosine as cosine
from harness.weights.matching import descent as descent
from harness.weights.matching import distance as distance
from harness.weights.matching import gainful as gainful
from harness.weights.matching import matched as matched
from harness.weights.matching import matched_units as matched_units
from harness.weights.matching import overlap as overlap
from harness.weights.matching import units_of as units_of
from harness.weights.matrices import Matrices as Matrices
from harness.weights.matrices import Others as Others
from harness.weights.matrices import Vectors as Vectors
from harness.weights.matrices import by_matrix as by_matrix
from harness.weights.matrices import is_matrix as is_matrix
from harness.weights.order import smallest_magnitude as smallest_magnitude
from harness.weights.procrustes import Generalized as Generalized
from harness.weights.procrustes import Rules as Rules
from harness.weights.procrustes import Turn as Turn
from harness.weights.procrustes import generalized as generalized
from harness.weights.procrustes import turns_to as turns_to
from harness.weights.symmetry import Axes as Axes
from harness.weights.symmetry import Layer as Layer
from harness.weights.symmetry import Member as Member
from harness.weights.symmetry import Permuted as Permuted
from harness.weights.symmetry import Symmetry as Symmetry
from harness.weights.symmetry import Turned as Turned
from harness.weights.symmetry import UnitMap as UnitMap
from harness.weights.symmetry import absorbed as absorbed
from harness.weights.symmetry import dual as dual
from harness.weights.symmetry import group_of as group_of
from harness.weights.symmetry import in_order as in_order
from harness.weights.symmetry import layer_of as layer_of
from harness.weights.symmetry import moved as moved
from harness.weights.threads import PROCESSOR as PROCESSOR
from harness.weights.threads import by_piece as by_piece
from harness.weights.threads import cores as cores
from harness.weights.threads import flat_pieces as flat_pieces
from harness.weights.threads import here as here
from harness.weights.threads import latest as latest
from harness.weights.threads import once as once
from harness.weights.threads import one_thread as one_thread
from harness.weights.threads import piece_size as piece_size
from harness.weights.threads import pieces_of as pieces_of
from harness.weights.threads import spread as spread

__all__ = [
    name
    for name, value in dict(vars()).items()
    if not name.startswith("_") and not isinstance(value, _Module)
]
