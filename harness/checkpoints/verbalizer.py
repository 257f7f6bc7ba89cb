"""Shell: heads of a model of text to text, made of words that it may answer with: a verbalizer
(Schick and Schütze 2021, arXiv:2001.07676), and the prompt that rows are read in.

A class's row is that of the model's own `lm_head` for the one token of its word or, where that is
tied, of the table of tokens. Nothing is generated: the decoder is given the token that it starts at
and a prefix, and what it says at the last of these is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.checkpoints.bases import encoder_digests
from harness.checkpoints.build import TEXT_HEAD, encoder_of, labelled
from harness.checkpoints.families.t5 import DECODER, is_scaled
from harness.checkpoints.layout import odd
from harness.checkpoints.network import configuration
from harness.checkpoints.processor import processor_digest
from harness.checkpoints.tokenizer import open_tokenizer, using_tokenizer
from harness.errors import BadData, BadOption, BadRecipe, BrokenCheckpoint
from harness.types import Checkpoint, Task
from harness.weights import Lazy, Spec, specs, union

OUTPUTS = "lm_head.weight"
SEGMENT = re.compile(r"\{(text|pair)\}")
"""What stands in a template for the first and the second text of a row."""
WORDS, TEMPLATE, PREFIX = "words", "template", "prefix"


def word_head(
    base: Checkpoint, task: Task, templates: Sequence[str], words: Sequence[str], prefix: str
) -> Checkpoint:
    """The head alone, with the base's own rows, its configuration that of a model under it.

    `words` are those of the labels in order, by default their names. Raises BrokenCheckpoint for a
    base that makes no text, and BadOption for words that are not told apart by one token each.
    """
    words = [*words] or [label.replace("_", " ") for label in task.labels]
    template, *more = [*templates] or ["{text}"]
    if more or "{text}" not in template:
        raise BadOption(
            f"--template is {', '.join(map(repr, [template, *more])):.80}, expected one, with "
            "{text} for the text of a row and {pair} for its second, if it has one"
        )
    if len(words) != len(task.labels):
        raise BadOption(
            f"--word names {len(words)} words, expected one for each of {len(task.labels)} labels, "
            f"in their order: {', '.join(task.labels):.200}"
        )
    said = {
        "task": task.name,
        WORDS: dict(zip(task.labels, words, strict=True)),
        TEMPLATE: template,
        PREFIX: prefix,
        "base": base.source,
        "base_weights": encoder_digests(base),
        "tokenizer": processor_digest(base.processor),
    }
    whole = under_words(base, said, task.labels)
    tensors = {n: whole.weights[n] for n in whole.weights if base.family.is_head(n)}
    return replace(whole, weights=tensors, tasks=(task.name,))


def words_of(model: Checkpoint) -> Mapping[str, Any]:
    """What the configuration of a model says of a head of words; of any other model, nothing.

    Raises BrokenCheckpoint where that is not what is written there.
    """
    said = model.config.get(TEXT_HEAD)
    if not isinstance(said, dict) or WORDS not in said:
        return {}
    kinds: dict[str, type] = {WORDS: dict, TEMPLATE: str, PREFIX: str, DECODER: list}
    for key, kind in kinds.items():
        if not isinstance(value := said.get(key), kind):
            raise odd(
                model.path / "config.json", f"{TEXT_HEAD} with {key}", value, f"a {kind.__name__}"
            )
    return said


def under_words(model: Checkpoint, said: Mapping[str, Any], labels: Sequence[str]) -> Checkpoint:
    """A model of text to text under its own rows for the words of a head, which are not read."""
    family = model.family
    if not family.stacks or model.labels is not None:
        raise BrokenCheckpoint(
            f"{model.source} makes no text, expected a T5ForConditionalGeneration"
        )
    tables = (OUTPUTS, family.words, family.bare(family.words))
    name = next(one for one in tables if one in model.weights)
    if name != OUTPUTS and not is_scaled(configuration(model.config, model.source)):
        raise BrokenCheckpoint(
            f"{model.source} has no tensor '{OUTPUTS}', and its config.json ties that to no table; "
            "expected a whole T5ForConditionalGeneration: a LoRA adapter, merged into its base"
        )
    encoder, known = encoder_of(model), specs(model.weights)[name]
    prefix, rows = _tokens(model, said, labels, known.shape[0])
    start = model.config.get("decoder_start_token_id") or model.config.get("pad_token_id") or 0
    config = labelled(encoder.config, labels)
    config[TEXT_HEAD] = {**said, DECODER: [start, *prefix]}
    head = Lazy(
        {f"{family.tops[-1].final}.weight": Spec((len(rows), *known.shape[1:]), known.dtype)},
        lambda _: model.weights[name][rows],
    )
    whole = union(encoder.weights, head)
    return replace(encoder, config=config, weights=whole, labels=tuple(labels))


def _tokens(
    model: Checkpoint, said: Mapping[str, Any], labels: Sequence[str], count: int
) -> tuple[list[int], list[int]]:
    """The tokens of the prefix, and that of every label's word after it."""
    tokenizer, prefix = open_tokenizer(model.processor), said[PREFIX]
    words = {label: str(said[WORDS].get(label, "")) for label in labels}
    answers = [f"{prefix} {word}".strip() for word in words.values()]
    with using_tokenizer(model.processor):
        before, *read = (
            list(tokenizer(one, add_special_tokens=False)["input_ids"])
            for one in (prefix, *answers)
        )
        pieces = [tokenizer.convert_ids_to_tokens(one) for one in read]
    found: dict[int, str] = {}
    for label, ids, shown in zip(labels, read, pieces, strict=True):
        word, last = words[label], ids[-1] if ids else -1
        fault = None
        if ids[:-1] != before or last == tokenizer.unk_token_id or not 0 <= last < count:
            fault = (
                f"is {' '.join(shown[len(before) :])!r:.80} to {model.source}, expected one token"
            )
        elif last in found:
            fault = (
                f"is the token {shown[-1]!r:.40} as {found[last]!r:.40} is, expected one of its own"
            )
        if fault:
            raise BadOption(
                f"the word {word!r:.40} of the label {label!r:.40} {fault}; name other words with "
                "--word, one for each label in their order"
            )
        found[last] = word
    return before, [*found]


def prompted(model: Checkpoint, texts: Sequence[tuple[str, ...]]) -> Sequence[tuple[str, ...]]:
    """Rows in the prompt of a head of words; as they are, for any other model.

    Raises BadData where rows have not the texts that the prompt asks for.
    """
    template = words_of(model).get(TEMPLATE)
    if template is None:
        return texts
    named = {*SEGMENT.findall(template)}
    if any(len(row) != len(named) for row in texts):
        raise BadData(
            f"the template {template!r:.80} of the head of {model.source} asks for "
            f"{' and '.join(sorted(named))}, found rows of {len(texts[0])} texts; expected "
            "{text} and, where rows have a second, {pair}: see `harness heads verbalizer`"
        )

    def filled(row: tuple[str, ...]) -> str:
        return SEGMENT.sub(lambda found: row[found[1] == "pair"], template)

    return [(filled(row),) for row in texts]


def check_asked_alike(models: Sequence[Checkpoint]) -> None:
    """Raise BadRecipe for models that one head is to be of, and that are asked otherwise."""
    first = words_of(models[0])
    for model in models[1:]:
        said = words_of(model)
        for key in (TEMPLATE, PREFIX):
            if said.get(key) != first.get(key):
                raise BadRecipe(
                    f"{model.source} is asked with the {key} {said.get(key)!r:.80}, expected "
                    f"{first.get(key)!r:.80} as {models[0].source}; or use --heads keep"
                )
