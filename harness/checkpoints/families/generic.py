"""A configuration -> the family of its architecture: a known one, or one derived from names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from harness.checkpoints.families.deberta import RELATIVE
from harness.checkpoints.families.family import GENERIC, SETTINGS, Family, Top, Unit
from harness.checkpoints.families.known import FAMILY_OF_TYPE
from harness.checkpoints.network import Conv1DAsLinear, classifier_on_meta, is_image_type
from harness.errors import BrokenCheckpoint, UnknownName

_BY_RULES: dict[str, Family] = {}
"""A cache of derived families by model_type: to derive one, its classifier is built."""


def family_of(config: Mapping[str, Any], what: str = "the model") -> Family:
    """The family of a configuration's model_type: a known one, else what `generic` derives.

    Raises UnknownName, naming `what`, for an architecture without either, and BrokenCheckpoint for
    a configuration that names none or that no classifier can be made from.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise BrokenCheckpoint(f"{what} has no model_type in its config.json, expected a name")
    if (family := FAMILY_OF_TYPE.get(model_type) or _BY_RULES.get(model_type)) is not None:
        return family
    if (derived := generic(config, what)) is None:
        raise UnknownName(
            f"{what} has the architecture {model_type!r:.80}, expected one of "
            f"{', '.join(FAMILY_OF_TYPE)}, or an architecture that transformers has a single "
            "classifier for, of text or images, with a head called classifier, classification_head "
            "or score that has one final linear layer, and with one prefix before all other names"
        )
    return _BY_RULES.setdefault(model_type, derived)


# Without a file of its own ------------------------------------------------------------------

HEAD = re.compile(r"classifier|pre_classifier|classification_head|score")
"""Names of the modules of heads in the reference repositories; `score` is that of decoders."""
HIDDEN = re.compile(r".*\.dense|pre_classifier")
"""A linear layer of a head that is not its final one."""


def generic(config: Mapping[str, Any], what: str) -> Family | None:
    """The family of an architecture, derived from module names; None where these do not suffice.

    They suffice where modules named like a head have one final linear layer, and all else but a
    pooler is below the encoder's prefix. The family has no table of axes.

    Raises BrokenCheckpoint, naming `what`, for a configuration that no classifier can be made from,
    and UnknownName for an architecture that cannot be merged.
    """
    from transformers.models.auto import modeling_auto as auto

    if (model := _on_meta(config, what, "row")) is None:
        return None
    kind = config["model_type"]
    if (reason := _unfit(kind, model)) is not None:
        raise UnknownName(f"{what} has the architecture {kind!r:.80}, {reason}")
    if (row := _top(model)) is None:
        return None
    writes, fills = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    prefix, of_words = f"{model.base_model_prefix}.", _on_meta(config, what, "word")
    modules = dict(model.named_modules())
    family = Family(
        name=GENERIC,
        model_types=(kind,),
        prefix=prefix,
        row=row,
        word=_top(of_words) if of_words is not None else None,
        pooler=next((name for name in modules if name.rpartition(".")[2] == "pooler"), None),
        settings={**SETTINGS, **RELATIVE},
        inputs="image" if is_image_type(kind) else "text",
        decoder=kind in writes and kind not in fills,
        transposed=tuple(
            {n.rpartition(".")[2]: None for n, m in modules.items() if type(m) is Conv1DAsLinear}
        ),
    )
    rest = [name for name, _ in model.named_parameters() if not family.is_head(name)]
    one_encoder = all(name.startswith(prefix) or family.is_pooler(name) for name in rest)
    return family if one_encoder else None


def _unfit(kind: str, model: Any) -> str | None:
    """Why an architecture cannot be merged, and what was expected; None if it can."""
    modules = dict(model.named_modules())
    if kind == "funnel":  # it takes the mean of two tokens, and the minimum of their masks
        return "which pools padding with tokens, so that features depend on the batch of a row"
    if type(model.config)().is_encoder_decoder:  # by default, whatever this configuration says
        return "an encoder-decoder; expected an encoder, a decoder, or t5 or mt5"
    if any(name.endswith(".experts") for name in modules):
        return "a mixture of experts, which a file and a classifier name differently"
    if getattr(model.config, "vision_config", None) is not None:
        return "which reads texts and images at once; expected a model of one of them"
    if is_image_type(kind) and model.main_input_name != "pixel_values":
        return "which reads images as tokens; expected a model of pixels"
    norm = torch.nn.modules.batchnorm._BatchNorm
    if any(isinstance(module, norm) for module in modules.values()):
        return "with batch normalisation, whose running statistics cannot be merged as weights are"
    return None


def _on_meta(config: Mapping[str, Any], what: str, unit: Unit) -> torch.nn.Module | None:
    """The classifier without weights; None where transformers has none for the architecture."""
    from transformers.models.auto import modeling_auto as auto

    kind = config["model_type"]
    if unit == "word":
        known = kind in auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES
    else:
        texts = auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
        known = kind in texts or is_image_type(kind)
    return classifier_on_meta(config, what, unit=unit) if known else None


def _top(model: torch.nn.Module) -> Top | None:
    """The modules named like a head, if they have exactly one final linear layer; else None."""
    modules = tuple(name for name, _ in model.named_children() if HEAD.fullmatch(name))
    final = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and name.partition(".")[0] in modules
        and not HIDDEN.fullmatch(name)
    ]
    return Top(modules, final[0]) if len(final) == 1 else None
