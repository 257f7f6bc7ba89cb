"""The families that have a file of their own, by model_type."""

from __future__ import annotations

from collections.abc import Mapping

from harness.checkpoints.families.albert import ALBERT
from harness.checkpoints.families.bert import BERT
from harness.checkpoints.families.clip import CLIP
from harness.checkpoints.families.deberta import DEBERTA
from harness.checkpoints.families.distilbert import DISTILBERT
from harness.checkpoints.families.electra import ELECTRA
from harness.checkpoints.families.family import Family
from harness.checkpoints.families.gpt2 import GPT2
from harness.checkpoints.families.modernbert import MODERNBERT
from harness.checkpoints.families.mpnet import MPNET
from harness.checkpoints.families.roberta import ROBERTA
from harness.checkpoints.families.t5 import T5
from harness.checkpoints.families.vit import VIT
from harness.errors import BadOption

FAMILIES = (
    *(BERT, ROBERTA, DISTILBERT, DEBERTA, ELECTRA, VIT, ALBERT, CLIP, MODERNBERT, MPNET, T5),
    GPT2,
)
FAMILY_OF_TYPE: dict[str, Family] = {name: one for one in FAMILIES for name in one.model_types}
"""All families by model_type, those of plug-ins too."""
FAMILY_OF_WHOLE: Mapping[str, Family] = {
    family.whole: family for family in FAMILIES if family.whole is not None
}
"""The family of the encoder in a larger model, by the model_type of the larger one: `clip`."""


def add_family(family: Family) -> None:
    """Make an architecture known, as a plug-in does with a family of its own.

    A plug-in that is loaded again replaces its family. Raises BadOption for a model_type that
    another family has.
    """
    for name in family.model_types:
        known = FAMILY_OF_TYPE.get(name, family)
        if known != family and (known in FAMILIES or known.name != family.name):
            raise BadOption(
                f"the model_type {name!r:.80} of the family {family.name} belongs to the family "
                f"{known.name} already; expected a model_type of its own"
            )
    FAMILY_OF_TYPE.update(dict.fromkeys(family.model_types, family))
