"""Shell: a task -> facts of its splits: rows, labels, lengths, cut-offs, shared texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.processor import check_image_processor, check_inputs
from harness.data.apart import check_apart, repeated, shared_with_train
from harness.data.images import decoded, told
from harness.data.rows import load_rows, take
from harness.data.sources import TRAIN, at_hand, origin
from harness.data.splits import parse_task
from harness.errors import BadData, BadOption
from harness.kinds import kind_of
from harness.passes.lengths import cut_off, cut_phrase, length_of, resolved_length, token_counts
from harness.text import MAX_NAMES, counted, few, number, plain, shortened
from harness.types import Checkpoint, Length, Rows, Task

EXAMPLES = 2
"""The number of rows of each split that are shown as examples."""
LENGTHS = ("median", "95 %", "longest")


def show(
    task: str,
    *,
    model: str | Path | None = None,
    max_length: Length | None = None,
    data_dir: str | Path | None = None,
) -> dict[str, Any]:
    """The facts of a task for JSON: every split with its rows, labels, lengths and two examples.

    Lengths are in words or, with a `model` (or its base), in tokens of the model, with how much
    `max_length` (by default the task's) cuts off. Raises BadData for data that cannot be read, and
    for splits with the same rows.
    """
    parsed, _ = parse_task(task)
    if "@" in task:
        raise BadOption(f"a task is shown with all its splits, found '{task}'; name the task alone")
    length = parsed.finetune.max_length if max_length is None else length_of(max_length)
    if parsed.image and max_length is not None:
        raise BadOption("max_length is in tokens, and images have none; leave it out")
    if model is None and max_length is not None:
        raise BadOption("max_length is in tokens of a model; name it with --model, or leave it out")
    checkpoint = None if model is None else open_checkpoint(model)
    if checkpoint:
        check_inputs(checkpoint, parsed)
        if parsed.image:
            check_image_processor(checkpoint)
    rows = _splits(parsed, data_dir)
    check_apart(parsed, data_dir)
    longest = resolved_length(length, [checkpoint], rows.values()) if checkpoint else None
    return {
        "task": parsed.name,
        "kind": parsed.kind,
        "metrics": list(parsed.metrics),
        "labels": list(parsed.labels),
        "reported": parsed.reported,
        **origin(parsed, data_dir),
        "model": str(model) if model is not None else None,
        "max_length": longest,
        "splits": {
            split: _told(part, checkpoint, longest, shared_with_train(part, data_dir))
            for split, part in rows.items()
        },
    }


def _splits(task: Task, folder: str | Path | None) -> dict[str, Rows]:
    """The available splits of a task, train first. Raises BadData if there is none."""
    names = dict.fromkeys((TRAIN, *task.splits))
    available = [
        s for s in names if task.source or at_hand(task, task.splits.get(s, TRAIN), folder)
    ]
    return {split: load_rows(task, split, folder=folder) for split in available or [task.reported]}


def _told(
    rows: Rows, checkpoint: Checkpoint | None, longest: int | None, shared: int | None
) -> dict[str, Any]:
    """The facts of one split; `shared` is how many of its rows have a text of the training rows."""
    text = checkpoint if rows.images is None else None
    words = [sum(len(text.split()) for text in texts) for texts in rows.texts]
    lengths = token_counts(text, rows) if text else words
    cut = cut_off(text, rows, longest) if text and longest else None
    whole = kind_of(rows.task).split_into_words
    texts = [[" ".join(parts)] if whole else parts for parts in rows.texts]
    return {
        "rows": len(rows),
        "units": int(kind_of(rows.task).unit_counts(rows).sum()),
        "labels": dict(kind_of(rows.task).label_summary(rows)),
        "lengths": {
            "unit": "tokens" if text else "words" if rows.images is None else "images",
            "median": float(np.median(lengths)),
            "95 %": float(np.quantile(lengths, 0.95)),
            "longest": int(max(lengths)),
        },
        "cut_off": asdict(cut) if cut else None,
        "cut_off_in_words": cut_phrase(cut, longest) if cut and longest else "",
        "shared_with_train": shared,
        "repeated_texts": repeated(rows),
        "empty_texts": sum(not text.strip() for row in texts for text in row),
        "broken_images": _broken(rows),
        "digest": rows.digest,
        "examples": [_example(take(rows, [row])) for row in range(min(EXAMPLES, len(rows)))],
    }


def _example(row: Rows) -> dict[str, Any]:
    """The texts (or words, or image) of a row and its labels by name."""
    labels = kind_of(row.task).named(row.task, row.labels)
    if row.images is None:
        return {"texts": [*row.texts[0]], "labels": labels}
    try:
        return {"texts": [told(row.images(0))], "labels": labels}
    except BadData as error:
        return {"texts": [str(error)], "labels": labels}


def _broken(rows: Rows) -> list[str]:
    """The error of each image that cannot be read: training would stop at the first."""
    image = rows.images
    if image is None:
        return []

    def wrong(row: int) -> str:
        try:
            decoded(image(row))
        except BadData as error:
            return str(error)
        return ""

    return [message for row in range(len(rows)) if (message := wrong(row))]


# In words ----------------------------------------------------------------------------------


def report(result: Mapping[str, Any]) -> str:
    """The result of `show` as text for a terminal."""
    splits: Mapping[str, Any] = result["splits"]
    about = f"{result['task']}: {result['kind']} by {', '.join(result['metrics'])}"
    lines = [f"{about}, reported on {result['reported']}", "", _table(splits), ""]
    lines += [_labels(splits), ""]
    for split, facts in splits.items():
        lines += [f"{split}: {warning}" for warning in _odd(facts, result["labels"])]
    for split, facts in splits.items():
        for example in facts["examples"]:
            texts = " | ".join(example["texts"])
            lines += ["", f"{split}: {shortened(texts, 200)}", f"  -> {_said(example['labels'])}"]
    return "\n".join(plain(line) if "\n" not in line else line for line in lines)


def _odd(facts: Mapping[str, Any], labels: Sequence[str]) -> Iterator[str]:
    """Warnings on a split, to be read before training or scoring on it."""
    noun = "image" if facts["lengths"]["unit"] == "images" else "text"
    if facts["cut_off_in_words"]:
        yield facts["cut_off_in_words"]
    if shared := facts["shared_with_train"]:
        yield f"{shared} {noun}{' is' if shared == 1 else 's are'} also in training rows"
    if again := facts["repeated_texts"]:
        yield f"{again} {noun}{' repeats' if again == 1 else 's repeat'} an earlier one"
    if empty := facts["empty_texts"]:
        yield f"{empty} {noun}{' is' if empty == 1 else 's are'} empty"
    yield from facts["broken_images"][:MAX_NAMES]
    if (more := len(facts["broken_images"]) - MAX_NAMES) > 0:
        yield f"{counted(more, 'other image')} cannot be read"
    if lacking := [name for name in labels if not facts["labels"].get(name)]:
        yield f"nothing is labelled {few([plain(name) for name in lacking])}"


def overview(several: Sequence[Mapping[str, Any]]) -> str:
    """The results of `show` for several tasks as a table, a line each.

    The number of labels that occur, the most frequent label and lengths are of the first split.
    """
    names = [*dict.fromkeys(split for shown in several for split in shown["splits"])]
    headers = ["task", "kind", *names, "labels", "most frequent", "unit", *LENGTHS]
    lines = [[*map(plain, _line(shown, names))] for shown in several]
    table = tabulate(lines, headers, tablefmt="simple", disable_numparse=True)
    return f"{table}\n\nLabels and lengths are of train or, without it, of the next split."


def _line(shown: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    splits = shown["splits"]
    rows = [str(splits[name]["rows"]) if name in splits else "" for name in names]
    first = next(iter(splits.values()))
    counts = {name: first["labels"][name] for name in shown["labels"] if first["labels"][name]}
    most = max(counts, key=lambda name: counts[name], default="")
    share = f" {counts[most] / first['units']:.1%}" if most else ""
    labels = [str(len(counts) or ""), shortened(most, 24) + share]
    unit = first["lengths"]["unit"]
    lengths = [number(first["lengths"][key], ".0f") for key in LENGTHS if unit != "images"]
    return [shown["task"], shown["kind"], *rows, *labels, unit, *lengths]


def _table(splits: Mapping[str, Any]) -> str:
    unit = next(iter(splits.values()))["lengths"]["unit"]
    keys = () if unit == "images" else LENGTHS
    rows = []
    for split, facts in splits.items():
        lengths = (number(facts["lengths"][key], ".0f") for key in keys)
        rows.append([plain(split), facts["rows"], *lengths])
    headers = ["split", "rows", *(f"{unit}, {key}" for key in keys[:1]), *keys[1:]]
    return str(tabulate(rows, headers, tablefmt="simple"))


def _labels(splits: Mapping[str, Any]) -> str:
    names = dict.fromkeys(name for facts in splits.values() for name in facts["labels"])
    rows = [
        [plain(shortened(name, 40)), *(_count(facts["labels"][name]) for facts in splits.values())]
        for name in names
    ]
    heads = ["labels", *map(plain, splits)]  # a label such as 007 is no number
    return str(tabulate(rows, heads, tablefmt="simple", disable_numparse=[0]))


def _count(value: float) -> str:
    return number(value, ".0f" if float(value).is_integer() else ".4g")


def _said(labels: Sequence[str] | Mapping[str, Any]) -> str:
    if isinstance(labels, Mapping):
        return ", ".join(name for name, holds in labels.items() if holds) or "none holds"
    return shortened(" ".join(map(str, labels)), 200)
