"""The architectures that have a file of their own, by what config.json calls them."""

from __future__ import annotations

from collections.abc import Mapping

from harness.checkpoints.families.bert import BERT
from harness.checkpoints.families.clip import CLIP
from harness.checkpoints.families.deberta import DEBERTA
from harness.checkpoints.families.distilbert import DISTILBERT
from harness.checkpoints.families.electra import ELECTRA
from harness.checkpoints.families.family import Family
from harness.checkpoints.families.roberta import ROBERTA
from harness.checkpoints.families.t5 import T5
from harness.checkpoints.families.vit import VIT

FAMILIES = (BERT, ROBERTA, DISTILBERT, DEBERTA, ELECTRA, VIT, CLIP, T5)
KNOWN: Mapping[str, Family] = {name: one for one in FAMILIES for name in one.model_types}
WHOLE: Mapping[str, Family] = {one.whole: one for one in FAMILIES if one.whole is not None}
