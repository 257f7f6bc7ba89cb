"""Shell: heads of a text-to-text model, made of words that it may answer with: a verbalizer
(Schick and Schütze 2021, arXiv:2001.07676), and the prompt that rows are put into.

A class's row of the head is the row of the model's own `lm_head` (if tied, of its token table) for
the one token of the class's word. Nothing is generated: the decoder is given its start token and a
prefix, and its outputs at the last of these are read. A model under a head of words keeps its whole
`lm_head`, so that a merge of such models generates text. For a multilabel task, one question is
asked for each label (RegMean, arXiv:2212.09849): a row's features are those of all questions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from harness.checkpoints.bases import encoder_digests
from harness.checkpoints.build import HEAD_KEYS, TEXT_HEAD, config_with_labels, encoder_of
from harness.checkpoints.families.t5 import ANSWERS, DECODER, OUTPUTS, TIED, is_scaled
from harness.checkpoints.layout import bad_value
from harness.checkpoints.network import configuration
from harness.checkpoints.processor import check_inputs, processor_digest
from harness.checkpoints.settings import PADDING
from harness.checkpoints.tokenizer import open_tokenizer, using_tokenizer
from harness.errors import BadData, BadOption, BadRecipe, BrokenCheckpoint
from harness.hashes import digest_of
from harness.kinds import IGNORED, kind_of
from harness.text import counted
from harness.types import Checkpoint, Rows, Task
from harness.weights import select, specs, union

LM_HEAD = f"{OUTPUTS}.weight"
SEGMENT = re.compile(r"\{(text|pair|label)\}")
"""Placeholders of a template: the first and the second text of a row, and the label asked about."""
LABEL, HOLDS = "{label}", ("no", "yes")
"""A template with `LABEL` asks whether a label holds; the answers are `HOLDS`, in this order."""
WORDS, TEMPLATE, PREFIX = "words", "template", "prefix"
"""Keys of the description of a head of words, which is under `TEXT_HEAD` in a configuration."""


def word_head(
    base: Checkpoint, task: Task, templates: Sequence[str], words: Sequence[str], prefix: str
) -> Checkpoint:
    """The head alone: rows of the base's own outputs, and the configuration of a model under it.

    `words` are those of the labels in order, by default their names; for a multilabel task, those
    of no and yes. Raises BrokenCheckpoint for a base that generates no text, and BadOption for
    words that are not one token each, all different.
    """
    check_classes(base, task, several=True)
    template, *more = [*templates] or ["{text}"]
    if more or "{text}" not in template:
        raise BadOption(
            f"--template is {', '.join(map(repr, [template, *more])):.80}, expected one "
            "template, with {text} for the text of a row and {pair} for its second text, if any"
        )
    per_label = kind_of(task).list_labels
    if per_label != (LABEL in template):
        raise BadOption(
            f"--template is {template!r:.80}, and {task} is a {task.kind} task; expected "
            f"{LABEL} in it for multilabel, which asks a question for each label, and for no other"
        )
    answers = HOLDS if per_label else task.labels
    words = [*words] or [label.replace("_", " ") for label in answers]
    if len(words) != len(answers):
        raise BadOption(
            f"--word names {counted(len(words), 'word')}, expected one for each of {len(answers)} "
            f"{'answers' if per_label else 'labels'}, in their order: {', '.join(answers):.200}"
        )
    description = {
        "task": task.name,
        WORDS: dict(zip(answers, words, strict=True)),
        TEMPLATE: template,
        PREFIX: prefix,
        "base": base.source,
        "base_weights": encoder_digests(base),
        "tokenizer": processor_digest(base.processor),
    }
    whole = under_words(base, description, task.labels)
    return replace(whole, weights={LM_HEAD: answer_rows(whole)}, tasks=(task.name,))


def check_classes(base: Checkpoint, task: Task, *, several: bool = False) -> None:
    """Raise BadRecipe unless the base can read the task's rows, and these have one class each or,
    with `several`, several labels."""
    check_inputs(base, task)
    kind = kind_of(task)
    if (
        not (kind.integer_labels or (several and kind.list_labels))
        or kind.split_into_words
        or not task.labels
    ):
        raise BadRecipe(f"{task} is a {task.kind} task, expected a task with classes")


def verbalizer_of(model: Checkpoint) -> Mapping[str, Any]:
    """The description of a model's head of words in its configuration; empty if it has none.

    Raises BrokenCheckpoint for values of other types than are written there.
    """
    description = model.config.get(TEXT_HEAD)
    if not isinstance(description, dict) or WORDS not in description:
        return {}
    kinds: dict[str, type] = {WORDS: dict, TEMPLATE: str, PREFIX: str, DECODER: list, ANSWERS: list}
    for key, kind in kinds.items():
        if not isinstance(value := description.get(key), kind):
            raise bad_value(
                model.path / "config.json", f"{TEXT_HEAD}.{key}", value, f"a {kind.__name__}"
            )
    return description


def under_words(
    model: Checkpoint, description: Mapping[str, Any], labels: Sequence[str]
) -> Checkpoint:
    """A text-to-text model as a classifier under the head of words that `description` describes;
    the head's rows are those of the model's own outputs.

    It keeps all tensors that transformers reads. Raises BrokenCheckpoint for any other model.
    """
    family = model.family
    if not family.stacks or model.labels is not None:
        raise BrokenCheckpoint(
            f"{model.source} generates no text, expected a T5ForConditionalGeneration"
        )
    tied = LM_HEAD not in model.weights
    if tied and not is_scaled(configuration(model.config, model.source)):
        raise BrokenCheckpoint(
            f"{model.source} has no tensor '{LM_HEAD}', and its config.json (tie_word_embeddings, "
            "scale_decoder_outputs) is not that of T5 1.0, which needs none; expected a whole "
            "T5ForConditionalGeneration, or an adapter with the task type SEQ_2_SEQ_LM; outputs "
            f"that are the token embeddings are to be stored as '{LM_HEAD}' as well"
        )
    encoder = encoder_of(model)
    whole = union(encoder.weights, {} if tied else select(model.weights, [LM_HEAD]))
    count = specs(whole)[family.token_embeddings if tied else LM_HEAD].shape[0]
    prefix, answers = _tokens(
        model, description, HOLDS if LABEL in description[TEMPLATE] else labels, count
    )
    start = model.config.get("decoder_start_token_id") or model.config.get(PADDING) or 0
    config = config_with_labels(encoder.config, labels)
    config |= {key: model.config[key] for key in ("architectures",) if key in model.config}
    config[TEXT_HEAD] = {**description, DECODER: [start, *prefix], ANSWERS: answers, TIED: tied}
    return replace(encoder, config=config, weights=whole, labels=tuple(labels))


def plain_config(model: Checkpoint) -> dict[str, Any]:
    """The configuration of a text-to-text model without its head of words."""
    dropped = {*HEAD_KEYS} - {"architectures"}
    return {key: value for key, value in model.config.items() if key not in dropped}


def answer_rows(model: Checkpoint) -> torch.Tensor:
    """The output rows of a model for the words of its head, [words, width]."""
    head = verbalizer_of(model)
    return model.weights[model.family.token_embeddings if head[TIED] else LM_HEAD][head[ANSWERS]]


def head_of(model: Checkpoint) -> torch.Tensor:
    """The head's rows by label, [labels, features]: those of its words; where a question is asked
    for each label, the row of yes minus that of no, on the features of the label's question."""
    rows = answer_rows(model).float()
    if LABEL not in verbalizer_of(model)[TEMPLATE]:
        return rows
    return torch.kron(torch.eye(len(model.labels or ())), rows[1:] - rows[:1])


def _tokens(
    model: Checkpoint, description: Mapping[str, Any], labels: Sequence[str], count: int
) -> tuple[list[int], list[int]]:
    """The tokens of the prefix, and the one token of each label's word after it."""
    tokenizer, prefix = open_tokenizer(model.processor), description[PREFIX]
    words = {label: str(description[WORDS].get(label, "")) for label in labels}
    answers = [f"{prefix} {word}".strip() for word in words.values()]
    with using_tokenizer(model.processor):
        prefix_ids, *answer_ids = (
            list(tokenizer(text, add_special_tokens=False)["input_ids"])
            for text in (prefix, *answers)
        )
        pieces = [tokenizer.convert_ids_to_tokens(ids) for ids in answer_ids]
    word_of: dict[int, str] = {}
    for label, ids, tokens in zip(labels, answer_ids, pieces, strict=True):
        word, last = words[label], ids[-1] if ids else -1
        fault = None
        if ids[:-1] != prefix_ids or last == tokenizer.unk_token_id or not 0 <= last < count:
            fault = (
                f"is read as {' '.join(tokens[len(prefix_ids) :])!r:.80} by {model.source}, "
                "expected one token"
            )
        elif last in word_of:
            fault = (
                f"is the token {tokens[-1]!r:.40}, and so is {word_of[last]!r:.40}, expected a "
                "token of its own"
            )
        if fault:
            raise BadOption(
                f"the word {word!r:.40} of the label {label!r:.40} {fault}; name other words with "
                "--word, one for each label in their order"
            )
        word_of[last] = word
    return prefix_ids, [*word_of]


def prompted(
    model: Checkpoint, texts: Sequence[tuple[str, ...]], labels: Sequence[str] = ("",)
) -> Sequence[tuple[str, ...]]:
    """Rows put into the template of a head of words, each once for every one of `labels`; for other
    models the rows unchanged.

    Raises BadData where rows do not have the texts that the template asks for.
    """
    template = verbalizer_of(model).get(TEMPLATE)
    if template is None:
        return texts
    segments = {*SEGMENT.findall(template)} - {"label"}
    if any(len(row) != len(segments) for row in texts):
        raise BadData(
            f"the template {template!r:.80} of the head of {model.source} asks for "
            f"{' and '.join(sorted(segments))}, found rows of {len(texts[0])} "
            f"text{'s' * (len(texts[0]) > 1)}; expected "
            "{text} and, where rows have a second, {pair}: see `harness heads verbalizer`"
        )

    def filled(row: tuple[str, ...], label: str) -> str:
        parts = {"text": row[0], "pair": row[-1], "label": label.replace("_", " ")}
        return SEGMENT.sub(lambda found: parts[found[1]], template)

    return [(filled(row, label),) for row in texts for label in labels]


def as_questions(
    model: Checkpoint, rows: Rows, *, annotated: bool = False
) -> tuple[Checkpoint, Rows]:
    """A model whose template asks about every label, as a classifier of no and yes, and a row for
    each question, in the order of the model's labels; any other model and its rows unchanged.

    With `annotated`, only the questions whose answer is annotated.
    """
    description, labels = verbalizer_of(model), model.labels or ()
    if LABEL not in description.get(TEMPLATE, ""):
        return model, rows
    kind, texts = kind_of(rows.task), prompted(model, rows.texts, labels)
    columns = kind.output_columns(rows.task, labels, model.source)
    holds = kind.head_labels(rows, columns, len(labels)).reshape(-1)
    indices = [index for index, label in enumerate(holds) if label != IGNORED or not annotated]
    questions = replace(
        rows,
        task=replace(rows.task, kind="classification", labels=HOLDS, metrics=("f1",)),
        texts=tuple(texts[index] for index in indices),
        labels=holds[indices],
        documents=None,
        digest=digest_of([rows.digest, description[TEMPLATE], labels, annotated]),
    )
    config = {**model.config, TEXT_HEAD: {**description, TEMPLATE: "{text}"}}
    return replace(model, config=config, labels=HOLDS), questions
