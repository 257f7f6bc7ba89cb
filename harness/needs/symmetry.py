"""The hidden groups of the experts' architecture, for methods that permute or turn units."""

from __future__ import annotations

from collections.abc import Sequence

from harness.checkpoints.build import check_whole, encoder_of, unit_of
from harness.checkpoints.families.bert import BERT
from harness.checkpoints.families.family import WIDTH, Family, Unit
from harness.checkpoints.families.known import FAMILIES
from harness.checkpoints.families.symmetry import axes_of, in_any_layer, readers_of, split_parts
from harness.checkpoints.settings import attention_head_count
from harness.data.splits import parse_task
from harness.kinds import share_label_space
from harness.labels import same
from harness.registry import need
from harness.types import Checkpoint, StateDict
from harness.weights import Symmetry, select

TABLE = BERT.token_embeddings
SECOND = "bert.shared_embeddings.weight"
"""Another name for the same table, from tools other than transformers, which never writes it."""


def toy_family(expert: StateDict) -> Family:
    """The family of a toy expert, by the names of its tensors."""
    families = (f for f in FAMILIES if any(in_any_layer(name) in f.axes for name in expert))
    return next(families, BERT)


def toy_symmetry(experts: Sequence[StateDict]) -> Symmetry:
    """The symmetry of toys with two attention heads; tensors outside of the family's table stay."""
    family = toy_family(experts[0])
    table, tensors = {**family.axes, **family.row.axes}, split_parts(family, experts[0])
    names = [n for n in tensors if in_any_layer(n) in table]
    axes = dict(axes_of(family, select(tensors, names)) if names else {})
    words = (TABLE, SECOND) if SECOND in experts[0] else (TABLE,)
    axes |= {name: axes[TABLE] for name in words if TABLE in axes}
    return Symmetry(axes, 2, words, tuple(filter(family.is_head, names)))


@need("symmetry", rows="none", toy=toy_symmetry)
def symmetry(experts: Sequence[Checkpoint]) -> Symmetry:
    """The hidden group that each axis of each parameter runs over, from the family's table.

    Raises UnknownName for an architecture without a family, IncompatibleWeights for a parameter
    that is not in the table, and BrokenCheckpoint for a missing one, without which its groups would
    be moved.
    """
    first = experts[0]
    family = first.family
    tables = []
    for expert in experts:
        unit: Unit = "row" if expert.labels is None else unit_of(expert)
        table = axes_of(family, expert.weights, unit)
        if expert.labels is None:  # no head: it outputs the hidden states, whose order stays
            table = {n: tuple(None if a == WIDTH else a for a in axes) for n, axes in table.items()}
            encoder_of(expert)
        else:
            check_whole(expert, unit=unit)
        tables.append(table)
    named = {name: axes for table in tables for name, axes in table.items()}
    head = tuple(filter(family.is_head, named))
    mixed = {name for name in head if any(t.get(name, named[name]) != named[name] for t in tables)}
    own = tuple({name: t[name] for name in mixed & t.keys()} for t in tables) if mixed else ()
    axes = {name: groups for name, groups in named.items() if name not in mixed}
    return Symmetry(
        axes,
        attention_head_count(first),
        (family.token_embeddings,),
        head,
        _one_task(experts),
        own,
        readers_of(family, axes),
        str(first.config["model_type"]),
    )


def _one_task(experts: Sequence[Checkpoint]) -> bool:
    """Whether the outputs of all experts mean the same: those of one task, or of one label space.

    Of experts whose task is not known, only the names of the labels are compared.
    """
    first = experts[0].labels or ()
    tasks = [task for expert in experts for task in expert.tasks]
    alike = all(same(expert.labels or (), first) for expert in experts)
    return alike and (
        len(set(tasks)) <= 1 or share_label_space(parse_task(task)[0] for task in tasks)
    )
