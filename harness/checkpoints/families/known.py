"""A configuration -> the family of its architecture. The list of those that have a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.checkpoints.families.bert import BERT
from harness.checkpoints.families.deberta import DEBERTA
from harness.checkpoints.families.distilbert import DISTILBERT
from harness.checkpoints.families.electra import ELECTRA
from harness.checkpoints.families.family import Family
from harness.checkpoints.families.generic import generic
from harness.checkpoints.families.roberta import ROBERTA
from harness.errors import BrokenCheckpoint, UnknownName

FAMILIES = (BERT, ROBERTA, DISTILBERT, DEBERTA, ELECTRA)
KNOWN: Mapping[str, Family] = {name: one for one in FAMILIES for name in one.model_types}
_BY_RULES: dict[str, Family] = {}
"""Families that were told by names, by model_type: to tell one, its classifier is built."""


def family_of(config: Mapping[str, Any], what: str = "the model") -> Family:
    """The family of a configuration's model_type: its own, else `generic` where names tell enough.

    Raises UnknownName, saying of `what`, for an architecture that is neither, and BrokenCheckpoint
    for a configuration that names none or that no classifier can be made from.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise BrokenCheckpoint(f"{what} has no model_type in its config.json, expected its name")
    if (family := KNOWN.get(model_type) or _BY_RULES.get(model_type)) is not None:
        return family
    if (told := generic(config, what)) is None:
        raise UnknownName(
            f"{what} is of the architecture {model_type!r:.80}, expected one of "
            f"{', '.join(KNOWN)}, or one with a single final linear layer, in a head called "
            "classifier or classification_head, and an encoder below one prefix"
        )
    return _BY_RULES.setdefault(model_type, told)
