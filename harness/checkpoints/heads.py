"""Shell: the heads that a merge kept, and an encoder under the head of another model."""

from __future__ import annotations

import warnings
from dataclasses import replace

from harness import weights
from harness.checkpoints.align import aligned_base, new_in_experts
from harness.checkpoints.families.generic import family_of
from harness.checkpoints.layout import WEIGHTS_FILE, read_config
from harness.checkpoints.open import check_counts, labels_of
from harness.checkpoints.provenance import MERGE_FILE, MergeJson, changed_error, read_expert_json
from harness.checkpoints.settings import check_settings
from harness.checkpoints.verbalizer import under_words, verbalizer_of
from harness.checkpoints.weight_files import open_weights
from harness.errors import BrokenCheckpoint
from harness.types import Checkpoint, StateDict


def kept_heads(checkpoint: Checkpoint, merged: MergeJson | None) -> dict[str, Checkpoint]:
    """The checkpoint's encoder under each head in heads/<task>/, by task; a text-to-text model
    under each head of words there.

    Raises BrokenCheckpoint for a head whose digest is not that in merge.json.
    """
    heads = checkpoint.path / "heads"
    kept = {}
    for config in sorted(heads.glob("**/config.json")):
        task = config.parent.relative_to(heads).as_posix()
        settings = read_config(config)
        if words := verbalizer_of(replace(checkpoint, path=config.parent, config=settings)):
            check_counts(settings, checkpoint.weights, str(config))
            kept[task] = under_words(checkpoint, words, labels_of(settings, str(config)))
            continue
        head = open_weights(config.parent)
        if merged is not None and weights.digest(head) != merged.head_digests.get(task):
            raise changed_error(config.with_name(WEIGHTS_FILE), MERGE_FILE)
        for name in sorted(head.keys() & checkpoint.weights.keys()):
            pair = (weights.select(state, [name]) for state in (head, checkpoint.weights))
            if len(set(map(weights.digest, pair))) > 1:
                raise BrokenCheckpoint(
                    f"{config.parent} has the tensor '{name}', which differs from that of "
                    f"{checkpoint.source}; expected only tensors of the head"
                )
        whole = weights.union(checkpoint.weights, head)
        check_counts(settings, whole, str(config))
        kept[task] = replace(
            checkpoint,
            config=settings,
            family=family_of(settings, str(config.parent)),
            weights=whole,
            labels=labels_of(settings, str(config)),
        )
        check_settings([checkpoint, replace(kept[task], source=str(config.parent))])
    return kept


def without_head(model: Checkpoint) -> StateDict:
    """The tensors of a model's encoder."""
    is_head = model.family.is_head
    return weights.select(model.weights, [name for name in model.weights if not is_head(name)])


def with_head(encoder: Checkpoint, expert: Checkpoint, base: Checkpoint | None) -> Checkpoint:
    """The encoder of one checkpoint under the head of another.

    A pooler that the base was published without counts as part of the head, as where heads are
    kept. Where no base is known, the encoder's own pooler is read, with a warning if it is not the
    one that the head was trained on.
    """
    body, fresh = aligned_base(encoder, expert).weights, new_in_experts(base, expert)
    record = read_expert_json(expert.path)
    if base is None and not (record and record.readout == "mean_all"):  # mean_all reads no pooler
        _tell_of_pooler(encoder, body, expert)
    body = weights.select(body, [name for name in body if name not in fresh])
    whole = weights.select(weights.union(body, expert.weights), list(expert.weights))
    return replace(encoder, config=expert.config, weights=whole, labels=expert.labels)


def _tell_of_pooler(encoder: Checkpoint, body: StateDict, expert: Checkpoint) -> None:
    """Warn of a pooler that is not the one that an expert's head was trained on."""
    poolers = [name for name in body if expert.family.is_pooler(name)]
    digests = [weights.digest(weights.select(state, poolers)) for state in (body, expert.weights)]
    if digests[0] != digests[1]:
        warnings.warn(
            f"the pooler of {encoder.source} differs from that of {expert.source}, which the head "
            "was trained on; give the --base: if the base has no pooler, each head keeps its own",
            stacklevel=4,
        )
