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
    told = (one for one in FAMILIES if any(name.startswith(one.prefix) for name in expert))
    return next(told, BERT)


def toy_symmetry(experts: Sequence[StateDict]) -> Symmetry:
    """The symmetry of toys with two attention heads; tensors outside of the family's table stay."""
    family = toy_family(experts[0])
    table, seen = {**family.axes, **family.row.axes}, split_parts(family, experts[0])
    names = [n for n in seen if in_any_layer(n) in table]
    axes = dict(axes_of(family, select(seen, names)) if names else {})
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
    each = []
    for expert in experts:
        unit: Unit = "row" if expert.labels is None else unit_of(expert)
        made = axes_of(family, expert.weights, unit)
        if expert.labels is None:  # no head: it outputs the hidden states, whose order stays
            made = {n: tuple(None if a == WIDTH else a for a in axes) for n, axes in made.items()}
            encoder_of(expert)
        else:
            check_whole(expert, unit=unit)
        each.append(made)
    known = {name: axes for one in each for name, axes in one.items()}
    head = tuple(filter(family.is_head, known))
    odd = {name for name in head if any(one.get(name, known[name]) != known[name] for one in each)}
    own = tuple({name: one[name] for name in odd & one.keys()} for one in each) if odd else ()
    axes = {name: groups for name, groups in known.items() if name not in odd}
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
