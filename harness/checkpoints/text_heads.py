"""Shell: heads made of texts that name the classes (CLIP, arXiv:2103.00020), and the completion of
experts that were saved without a head or without the projection of images.

CLIP's row for a class is exp(logit_scale) times the mean of the embeddings of its texts, where each
embedding and then the mean are scaled to length 1, as in FusionBench (arXiv:2406.03280) and the
code of task vectors (arXiv:2212.04089).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch.nn.functional import normalize

from harness import weights
from harness.checkpoints.bases import encoder_digests, is_base
from harness.checkpoints.build import HEAD_KEYS, TEXT_HEAD, check_tensors, config_with_labels
from harness.checkpoints.families.generic import family_of
from harness.checkpoints.layout import (
    IMAGE_FILES,
    VOCABULARY_FILES,
    WEIGHTS_FILE,
    bad_value,
    files_in,
    read_config,
)
from harness.checkpoints.network import text_tower, using_transformers
from harness.checkpoints.open import check_counts, labels_of, open_checkpoint
from harness.checkpoints.processor import processor_digest
from harness.checkpoints.provenance import changed_error
from harness.checkpoints.tokenizer import open_tokenizer, using_tokenizer
from harness.checkpoints.verbalizer import check_classes, under_words, verbalizer_of, word_head
from harness.checkpoints.weight_files import open_weights
from harness.errors import BadOption, BadRecipe, BrokenCheckpoint, MissingHead
from harness.files import read_json
from harness.folders import FILES, Layout, check_output, new_folder
from harness.presets import PRESETS, PresetName
from harness.registry import TASKS
from harness.types import Checkpoint, StateDict, Task
from harness.values import one_name, one_or_more

HEAD_LAYOUT = Layout("a head", "config.json")
CLASS = "{class}"
"""The placeholder of a template for the name of a class."""


def heads(
    base: str | Path,
    task: str | Path,
    *,
    out: str | Path,
    family: Literal["clip", "verbalizer"] = "clip",
    templates: Sequence[str] = (),
    words: Sequence[str] = (),
    prefix: str = "",
    preset: PresetName | None = None,
    allow_pickle: bool = False,
    force: bool = False,
) -> Checkpoint:
    """Make a head for a task from the texts that a whole CLIP reads, or from the words that a T5
    answers with; write it to the folder `out` and return it.

    For `clip`, `templates` have {class} for the name of a class; by default they are the task's. A
    `verbalizer` has one template, with {text} for a row and {pair} for its second text, `words` for
    the labels in their order, by default their names, and a `prefix` of all answers; a `preset` has
    defaults of template and prefix. The template of a multilabel task has {label} for the label
    that it asks about. Raises BrokenCheckpoint for a base that reads no texts, or generates none.
    """
    templates, words, task = one_or_more(templates), one_or_more(words), one_name(task, "task")
    options = {"preset": preset, "prefix": prefix, "word": words}
    if family == "clip" and any(options.values()):
        flag = next(name for name, value in options.items() if value)
        raise BadOption(f"--{flag} is an option of `harness heads verbalizer`; leave it out")
    if preset is not None:
        if (question := PRESETS[preset].question) is None:
            presets = ", ".join(name for name, other in PRESETS.items() if other.question)
            raise BadOption(
                f"--preset {preset} has no template for a verbalizer, expected one of {presets}"
            )
        templates, prefix = templates or [question[0]], prefix or question[1]
    check_output(Path(out), HEAD_LAYOUT, force=force)
    source = open_checkpoint(base, allow_pickle=allow_pickle)
    if family == "clip":
        head = text_head(source, TASKS[task], templates, allow_pickle=allow_pickle)
    else:
        head = word_head(source, TASKS[task], templates, words, prefix)
    with new_folder(Path(out), HEAD_LAYOUT, force=force) as folder:
        save_file(dict(head.weights), folder / WEIGHTS_FILE, metadata={"format": "pt"})
        HEAD_LAYOUT.write(folder, head.config)
    return head


def templates_of(task: Task) -> list[str]:
    """The templates of a task in tasks/templates.json; a plain one if there are none."""
    file = Path(import_module("harness.tasks").__path__[0]) / "templates.json"
    templates: dict[str, list[str]] = read_json(file, "templates")
    return templates.get(task.name, [f"a photo of a {CLASS}."])


def text_head(
    base: Checkpoint, task: Task, templates: Sequence[str] = (), *, allow_pickle: bool = False
) -> Checkpoint:
    """The head of a whole CLIP for a task, with the configuration of an image model under it."""
    check_classes(base, task)
    templates = [*templates] or templates_of(task)
    if nameless := [template for template in templates if CLASS not in template]:
        raise BadOption(f"the template {nameless[0]!r:.80} names no class; expected {CLASS} in it")
    config = read_config(base.path / "config.json")
    if config.get("model_type") != base.family.whole:
        raise BrokenCheckpoint(
            f"{base.source} is a {config.get('model_type')!r:.80} model; expected a whole CLIP, "
            "such as openai/clip-vit-base-patch32"
        )
    state = open_weights(base.path, allow_pickle=allow_pickle)
    own = weights.select(state, [name for name in state if name.startswith("text_")])
    texts = config.get("text_config")
    check_counts(
        texts if isinstance(texts, dict) else {}, own, f"the text encoder of {base.source}"
    )
    tower = text_tower(config, base.source)
    check_tensors(tower, own, base.source)
    if "logit_scale" not in state:
        raise BrokenCheckpoint(f"{base.source} has no tensor 'logit_scale', expected a whole CLIP")
    tower.load_state_dict({name: own[name] for name in weights.floating(own)}, strict=False)
    classes = [label.replace("_", " ") for label in task.labels]
    tower, rows = tower.float().eval(), []
    for name in classes:
        inputs = _tokens(base, tower.config, [one.replace(CLASS, name) for one in templates])
        with torch.inference_mode(), using_transformers(base.source):
            embeddings = normalize(tower(**inputs).text_embeds, dim=-1)
        rows.append(normalize(embeddings.mean(dim=0), dim=-1))
    scale = state["logit_scale"].float().exp()
    if scale.ndim or not bool(scale.isfinite()):
        raise bad_value(
            base.source, "logit_scale", state["logit_scale"].tolist(), "one finite number"
        )
    scaled = scale * torch.stack(rows)
    description = {
        "task": task.name,
        "classes": classes,
        "templates": templates,
        "base": base.source,
        "base_weights": encoder_digests(base),
        "text_weights": _digest_of_texts(state),
        "tokenizer": processor_digest(base.processor),
    }
    tensors = {f"{base.family.row.final}.weight": scaled.clone()}
    config = {**config_with_labels(base.config, task.labels), TEXT_HEAD: description}
    return replace(base, config=config, weights=tensors, labels=task.labels, tasks=(task.name,))


def _digest_of_texts(state: StateDict) -> str:
    """A hash of a whole CLIP's text encoder and scale, the same for all forms of its files."""
    names = [n for n in weights.floating(state) if n.startswith("text_") or n == "logit_scale"]
    return weights.digest(weights.each(lambda tensor: tensor, weights.select(state, names)))


def _reads_other_texts(model: Checkpoint, head: Mapping[str, Any]) -> bool:
    """Whether a model is a whole CLIP with another text encoder or scale than a head was made by.

    Heads of older releases do not say.
    """
    made_by, file = head.get("text_weights"), model.path / "config.json"
    if made_by is None or not file.is_file():
        return False
    if read_config(file).get("model_type") != model.family.whole:
        return False
    # whoever opened the model has allowed its files
    return str(made_by) != _digest_of_texts(open_weights(model.path, allow_pickle=True))


def _tokens(base: Checkpoint, config: Any, texts: Sequence[str]) -> Mapping[str, torch.Tensor]:
    """Texts as inputs of the text encoder, [texts, tokens]."""
    tokenizer = open_tokenizer(base.processor)
    limits = {"truncation": True, "max_length": config.max_position_embeddings}
    with using_tokenizer(base.processor):
        inputs = dict(tokenizer([*texts], padding=True, return_tensors="pt", **limits))
    ids, end = inputs["input_ids"], config.eos_token_id
    # older configurations have 2 as the end: then transformers takes the largest token for it
    if not isinstance(end, int):
        raise bad_value(
            base.source, "eos_token_id", end, "one number: the token at the end of a text"
        )
    if ids.max() >= config.vocab_size or (end != 2 and not (ids == end).any(dim=1).all()):
        raise BrokenCheckpoint(
            f"the tokenizer of {base.source} makes the tokens {ids[0].tolist()!r:.80} of a text, "
            f"expected numbers below {config.vocab_size}, with {end} at the end of the text"
        )
    return {name: inputs[name] for name in ("input_ids", "attention_mask")}


# Completing models that lack a head or a projection ------------------------------------------


def read_heads(folder: str | Path | None, base: Checkpoint | None) -> dict[str, Checkpoint]:
    """The heads that `heads` wrote, in a folder or below it, by task.

    Raises BrokenCheckpoint for a head that was changed, and BadRecipe if there is none, if two are
    for one task, and for a head of another base.
    """
    by_task: dict[str, Checkpoint] = {}
    for file in sorted(Path(folder).glob("**/config.json")) if folder else ():
        config = read_config(file, "the configuration of a head")
        description, files = config.get(TEXT_HEAD), config.pop(FILES, None)
        if not isinstance(description, dict) or not isinstance(files, dict):
            raise BrokenCheckpoint(
                f"{file} was not written by `harness heads`; expected a head that it wrote"
            )
        edited = [n for n, change in HEAD_LAYOUT.foreign(file.parent).items() if change == "edited"]
        if edited or WEIGHTS_FILE not in files or not file.with_name(WEIGHTS_FILE).is_file():
            raise changed_error(file.with_name((edited or [WEIGHTS_FILE])[0]), file.name)
        task = str(description.get("task"))
        if task in by_task:
            raise BadRecipe(f"{folder} has two heads for {task}; expected one")
        made_of = description.get("base_weights") or {}
        if base and (not is_base(base, made_of) or _reads_other_texts(base, description)):
            raise BadRecipe(
                f"the head {file.parent} was made from {description.get('base')}, found the base "
                f"{base.source}, whose weights differ; expected heads of this base"
            )
        family, own = family_of(config, str(file)), open_weights(file.parent)
        check_counts(config, own, str(file))
        source, labels = str(file.parent), labels_of(config, str(file))
        by_task[task] = Checkpoint(source, file.parent, config, family, own, labels, (task,))
    if folder and not by_task:
        raise BadRecipe(f"{folder} has no heads; expected some that `harness heads` wrote")
    return by_task


def with_processor(model: Checkpoint, base: Checkpoint | None) -> Checkpoint:
    """A model with the tokenizer or image processor of the base, if its folder lacks one."""
    needed = IMAGE_FILES if model.family.inputs == "image" else VOCABULARY_FILES
    if base is None or files_in(model.processor, needed):
        return model
    return replace(model, processor_folder=base.processor)


def with_missing_parts(
    model: Checkpoint, base: Checkpoint | None, task: str | None, heads: Mapping[str, Checkpoint]
) -> Checkpoint:
    """A model with what its folder lacks: the tokenizer or image processor of the base; for a CLIP
    also the projection of the base, and the head of the task; for a T5 a head of words.

    Raises BrokenCheckpoint for a CLIP without a projection, MissingHead for one without a head, and
    BadRecipe for a whole CLIP without a base that is not the one that its head was made from.
    """
    family, head = model.family, heads.get(task or "")
    model = with_processor(model, base)
    if head is not None and head.family == family and (words := verbalizer_of(head)):
        return model if model.labels is not None else under_words(model, words, head.labels or ())
    if family.whole is None:
        return model
    parts = [model.weights]
    projection = f"{family.pooler}.weight"
    if projection not in model.weights:
        if base is None or projection not in base.weights:
            raise BrokenCheckpoint(
                f"{model.source} has no tensor '{projection}', nor is there a base that has it; "
                "expected the whole CLIP that it was fine-tuned from, with --base"
            )
        parts.append(weights.select(base.weights, [projection]))
    config, labels = dict(model.config), model.labels
    if labels is None:
        if head is None:
            raise MissingHead(
                f"{model.source} has no head for {task or 'a task without a name'}; expected one "
                "in --heads-from, written by `harness heads`, and its task in --tasks"
            )
        if base is None and _reads_other_texts(model, made := head.config[TEXT_HEAD]):
            raise BadRecipe(
                f"the head {head.source} was made from {made.get('base')}, found {model.source}, "
                "whose text encoder differs; expected heads of this model, or with --base the "
                "model that the heads were made from"
            )
        parts.append(weights.select(head.weights, filter(family.is_head, head.weights)))
        config |= {key: head.config[key] for key in HEAD_KEYS if key in head.config}
        labels = head.labels
    whole = weights.union(*parts)
    config["projection_dim"] = weights.specs(whole)[projection].shape[0]
    return replace(model, config=config, weights=whole, labels=labels)
