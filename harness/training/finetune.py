"""Shell: a base and a task (or several) -> an expert, with transformers' Trainer."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from harness import presets
from harness.checkpoints.bases import check_stay, encoder_digests, whole_base_digest
from harness.checkpoints.build import TEXT_HEAD, initialised_layers, without_progress_bars
from harness.checkpoints.layout import EXPERT_LAYOUT
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.processor import check_inputs, copy_processor
from harness.checkpoints.provenance import Part, rows_shown
from harness.checkpoints.recorded_tasks import register_tasks, task_fields
from harness.checkpoints.text_heads import read_heads, with_missing_parts
from harness.checkpoints.tokenizer import with_padding_token
from harness.checkpoints.verbalizer import as_questions, plain_config, verbalizer_of
from harness.data.apart import check_apart
from harness.data.groups import expanded
from harness.data.parts import part_named, part_of
from harness.data.rows import load_rows
from harness.data.splits import parse_task
from harness.errors import BadOption, BadRecipe, CannotWrite
from harness.files import as_cannot_write, write_json
from harness.folders import check_output, new_folder
from harness.hyperparameters import Hyperparameters, unfit
from harness.kinds import kind_of
from harness.passes.features import check_readout
from harness.passes.lengths import length_of, resolved_length, tell_of_cut
from harness.passes.placement import FULL_PRECISION, full_float32, placement
from harness.presets import PresetName, task_under_preset
from harness.readout import LAST_LINEAR, Readout
from harness.text import first_line
from harness.training.heldout import can_be_scored, scored, warn_of_best_constant
from harness.training.multi import check_shared, multi_task, save_tensors
from harness.training.resumed import (
    check_names,
    last_checkpoint,
    resumable_folder,
    saved_as_read,
    workdir_of,
)
from harness.training.single import (
    ProgressStyle,
    Training,
    arguments,
    check_bf16,
    check_weights,
    single_task,
    training_device,
    watch,
)
from harness.types import AUTO, HELD_OUT, TRAINED_ON, Checkpoint, Length, Rows, Task
from harness.values import one_name, one_or_more
from harness.weights import digest, generators_kept, join_digests, tensor_digest, union

WRITING_FAILED = ("Error while serializing", "enforce fail at inline_container")
"""Parts of the messages with which safetensors and torch report that a write failed."""
SEEDS = 2**32
"""Seeds are below this number, as numpy requires."""


def finetune(
    base: str | Path,
    task: str | Path | None = None,
    *,
    tasks: str | Path | Sequence[str | Path] = (),
    out: str | Path,
    seed: int = 0,
    head_seed: int | None = None,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    part: str | None = None,
    device: str = AUTO,
    bf16: bool = False,
    preset: PresetName | None = None,
    heads_from: str | Path | None = None,
    force: bool = False,
    progress: bool = True,
    **overrides: float | str | None,
) -> Checkpoint:
    """Fine-tune a base on `task@train90` and write the expert to `out`; returns the expert.

    Several `tasks` instead of one `task` train one encoder with a head for each task, written like
    a merge with kept heads; tasks of one label space share one head. They keep their own batch size
    and maximum length, and must agree in the other hyperparameters.

    `overrides` are fields of `Hyperparameters`; the defaults are the task's. `max_length="auto"` is
    the length that the base and the rows need. `limit`: so many rows of each split. `part`, `1/2`
    or `2/2`: only the rows of one of two parts of train90, in one of which most rows have the same
    class (`data.parts`); `limit` then takes the first rows of the part. `seed` decides the order of
    the rows, dropout and the parts. `head_seed` (default: `seed`) initialises the heads, which are
    new whatever head the base has; under a `preset` a head is trained on the features of the
    preset's readout. `heads_from`: a T5 is trained with the label words of a head in that folder,
    by the cross-entropy among these words; it is written as a T5 without a head. Training is in
    float32 on the `device`, one GPU at most; with `bf16`, products are in bfloat16 (transformers'
    mixed precision). `force` replaces an older expert in `out`. Its expert.json records tasks,
    split, part, seeds, hyperparameters, digests of base and rows, and scores on `task@heldout10`.

    A run that is interrupted, or fails after a checkpoint (a full disk), resumes when it is called
    again with the same arguments, to the same weights; one that diverged leaves nothing. Raises
    BrokenCheckpoint for a base that is not whole or not finite, NotFinite when the training
    diverges, and OutputExists for an `out` that holds the base, or that another run is writing.
    """
    task, tasks = None if task is None else one_name(task, "task"), one_or_more(tasks)
    source = with_padding_token(open_checkpoint(base))
    register_tasks([*tasks, *([task] if task else [])], [source])
    found_tasks = [task_under_preset(one, preset) for one in _tasks(task, tasks, data_dir)]
    if heads_from is not None:
        source = _under_label_words(source, found_tasks, heads_from)
    max_length = overrides.pop("max_length", None)
    length = None if max_length is None else length_of(max_length)
    found_tasks = [replace(t, finetune=_settings(t.finetune, overrides)) for t in found_tasks]
    for one in found_tasks:
        check_inputs(source, one)
    check_shared(found_tasks)
    readout, out = _readout(preset, found_tasks), Path(out)
    seeds = _seeds(seed, seed if head_seed is None else head_seed)
    where = training_device(placement(device, FULL_PRECISION, "finetune"))
    if bf16:
        check_bf16(where)
    check_stay([source], out, workdir_of(out))
    for one in found_tasks:
        if length != AUTO:
            check_readout(source, readout, length or one.finetune.max_length)
    check_output(out, EXPERT_LAYOUT, force=force)

    named_part = None if part is None else part_named(part, seed, limit)
    parts = [
        _training(source, *_rows(one, data_dir, limit, named_part), length, readout)
        for one in found_tasks
    ]
    whole_base, digests = _with_missing_layers(source, parts)
    fields = {
        **seeds,
        "bf16": bf16,
        **({"part": named_part.model_dump()} if named_part else {}),
        **({"device": where.type} if where.type != "cpu" else {}),
    }
    request = {"base": str(base), **_request(source, digests, parts, fields)}

    style = _shown(progress)
    with (
        # locked: no two runs train in one place
        new_folder(out, EXPERT_LAYOUT, force=force) as folder,
        without_progress_bars(),
        # the caller's random generators and gradient mode are restored afterwards
        generators_kept(where),
        torch.inference_mode(False),
        torch.enable_grad(),
        _full_disk_errors(out),
        resumable_folder(out, request, force=force) as workdir,
    ):
        asking, parts = _with_questions(whole_base, parts)
        settings = arguments(parts, workdir, style, seed=seed, bf16=bf16, where=where)
        trainer = _trainer(asking, parts, seeds, settings, style)
        _train(trainer, workdir)
        scores = _scores(trainer, source, parts)
        _write_model(trainer.model, source, folder)
        told = {"digest": digest(open_checkpoint(folder).weights), "scores": scores}
        EXPERT_LAYOUT.write(folder, request | task_fields(request["tasks"], out) | told)
    return open_checkpoint(out)


def _rows(
    task: Task, data_dir: str | Path | None, limit: int | None, part: Part | None
) -> tuple[Rows, Rows]:
    """The rows of a task to train on, and its held-out rows."""
    check_apart(task, data_dir)
    if part is None:
        train = load_rows(task, TRAINED_ON, folder=data_dir, limit=limit)
    else:
        train = part_of(load_rows(task, TRAINED_ON, folder=data_dir), part)
    return train, load_rows(task, HELD_OUT, folder=data_dir, limit=limit)


def _training(
    source: Checkpoint, train: Rows, heldout: Rows, length: Length | None, readout: Readout
) -> Training:
    """The training on some rows. `length` takes the place of the task's `max_length`."""
    settings = train.task.finetune
    tokens = resolved_length(length or settings.max_length, [source], (train, heldout), readout)
    if readout == LAST_LINEAR:
        tell_of_cut([source], train, tokens)
    return Training(train, heldout, replace(settings, max_length=tokens), readout)


def _under_label_words(source: Checkpoint, tasks: Sequence[Task], folder: str | Path) -> Checkpoint:
    """A text-to-text base under the label words of a task's head in `folder`.

    Raises BadRecipe for several tasks, and for a folder without such a head.
    """
    heads = read_heads(folder, source)
    head = heads.get(tasks[0].name)
    if len(tasks) > 1 or head is None or not verbalizer_of(head):
        expected = "one --task, and a head of words that a T5 answers with"
        if source.family.whole is not None:
            expected = "no --heads-from: a CLIP is trained under a head of its own texts"
        raise BadRecipe(
            f"--heads-from {folder} has heads for {', '.join(heads)}, to train on "
            f"{', '.join(map(str, tasks))}; expected {expected}"
        )
    return with_missing_parts(source, None, tasks[0].name, heads)


def _with_questions(source: Checkpoint, parts: list[Training]) -> tuple[Checkpoint, list[Training]]:
    """Base and rows for heads that ask a question for each label: one row for each question.

    Any other base and its rows are returned as they are.
    """

    def questions(rows: Rows) -> Rows:
        return as_questions(source, rows, annotated=True)[1]

    asking = [replace(p, train=questions(p.train), heldout=questions(p.heldout)) for p in parts]
    return as_questions(source, parts[0].heldout)[0], asking


def _shown(progress: bool) -> ProgressStyle:
    """How progress is shown: bars on a terminal only, as in a file each step is a line."""
    if not progress:
        return "nothing"
    return "bars" if sys.stderr.isatty() else "lines"


def _tasks(task: str | None, tasks: Sequence[str], data_dir: str | Path | None) -> list[Task]:
    """The tasks to train on.

    Raises BadRecipe unless either `task` or `tasks` is given, for a task that is named twice, and
    for a task with a split.
    """
    if (task is None) == (not tasks):
        found = f"--task {task} and --tasks {','.join(tasks)}" if tasks else "no task"
        raise BadRecipe(f"found {found} to train on; expected one --task, or several --tasks")
    found_tasks = []
    for name in expanded(tasks, data_dir) or (task or "",):
        found_task, split = parse_task(name)
        if "@" in name:
            raise BadRecipe(
                f"experts train on {found_task}@{TRAINED_ON}, found '@{split}'; name the task "
                "without a split"
            )
        if found_task in found_tasks:
            raise BadRecipe(f"--tasks names {found_task} twice; expected each task once")
        found_tasks.append(found_task)
    return found_tasks


def _readout(name: PresetName | None, tasks: Sequence[Task]) -> Readout:
    """The readout whose features the expert's head is trained on.

    Raises BadRecipe for a preset without such a readout, and for several tasks under a preset.
    """
    readout = presets.preset(name).readout
    if name is None:
        return readout
    if readout == LAST_LINEAR:
        raise BadRecipe(f"the preset '{name}' has no settings for fine-tuning; leave out --preset")
    if len(tasks) > 1:
        raise BadRecipe(f"the preset '{name}' trains an expert of one --task, found {len(tasks)}")
    return readout


def _seeds(seed: int, head_seed: int) -> dict[str, int]:
    """Both seeds by name. Raises BadOption for a seed that is no int, or out of range."""
    seeds = {"seed": seed, "head_seed": head_seed}
    for name, value in seeds.items():
        if type(value) is not int or not 0 <= value < SEEDS:
            raise BadOption(f"{name} is {value!r}, expected a whole number from 0 to {SEEDS - 1}")
    return seeds


def _with_missing_layers(
    base: Checkpoint, parts: Sequence[Training]
) -> tuple[Checkpoint, dict[str, Any]]:
    """The base with the layers that it was published without, and digests of both for expert.json.

    The base's digests seed these layers, whatever the seeds of the training: all experts of a base
    get the same ones, since experts with different ones could not be merged.
    """
    base_digests = encoder_digests(base)
    seed = int(join_digests(base_digests), 16) % SEEDS
    drawn = initialised_layers(base, seed, unit=kind_of(parts[0].task).unit)
    if not drawn:
        return base, {"base_weights": base_digests}
    digests = {name: tensor_digest(name, tensor) for name, tensor in drawn.items()}
    whole = replace(base, weights=union(drawn, base.weights))
    return whole, {"base_weights": base_digests, "drawn": digests}


def _request(
    source: Checkpoint,
    digests: Mapping[str, Any],
    parts: Sequence[Training],
    fields: Mapping[str, Any],
) -> dict[str, Any]:
    """All that decides the weights of an expert, except the name of its base.

    A run resumes an interrupted one only if these values and the name are the same.
    """
    readout, words, seen = parts[0].readout, verbalizer_of(source), rows_shown(source.path)
    return {
        "tasks": [part.task.name for part in parts],
        "base_digest": whole_base_digest(source),
        **digests,
        "split": TRAINED_ON,
        **fields,
        **({"readout": readout.name} if readout != LAST_LINEAR else {}),
        **({TEXT_HEAD: words} if words else {}),
        **_described(parts),
        **_of_labels(parts),
        **({"inherited": [*seen], "seen": seen} if seen else {}),
    }


def _described(parts: Sequence[Training]) -> dict[str, Any]:
    """Number and digest of rows, and hyperparameters; of several tasks each by task."""
    by_task: dict[str, dict[str, Any]] = {
        "rows": {part.task.name: len(part.train) for part in parts},
        "rows_digest": {part.task.name: part.train.digest for part in parts},
        "hyperparameters": {part.task.name: asdict(part.settings) for part in parts},
    }
    if len(parts) > 1:
        return by_task
    return {key: values[parts[0].task.name] for key, values in by_task.items()}


def _of_labels(parts: Sequence[Training]) -> dict[str, Any]:
    """By task: the labels that its rows annotate, if not all, and the scheme of its entity tags."""
    annotated = [(part.task, kind_of(part.task).annotated(part.train)) for part in parts]
    facts = [(part.task, kind_of(part.task).facts(part.train)) for part in parts]
    by_field = {
        "annotated": {task.name: [*labels] for task, labels in annotated if labels != task.labels},
        "schemes": {task.name: values["scheme"] for task, values in facts if "scheme" in values},
    }
    return {name: values for name, values in by_field.items() if values}


def _write_model(model: Any, source: Checkpoint, folder: Path) -> None:
    """Write the trained model as transformers reads it, with the base's own processor."""
    if verbalizer_of(source):
        # as transformers writes a T5, without the label words
        save_tensors(model, folder, source.family.bare)
        write_json(folder / "config.json", {**plain_config(source), "dtype": "float32"})
    else:
        model.save_pretrained(folder)
    # copied, as the files that transformers writes depend on the machine and on the rows
    copy_processor([source.processor], folder)


def _trainer(
    base: Checkpoint,
    parts: Sequence[Training],
    seeds: Mapping[str, int],
    settings: Any,
    style: ProgressStyle,
) -> Any:
    """The Trainer of an expert of one task, or of several."""
    from transformers import PrinterCallback

    if len(parts) == 1:
        make_trainer = single_task(base, parts[0], seeds["head_seed"])
    else:
        make_trainer = multi_task(base, parts, **seeds)
    trainer = make_trainer(args=settings, callbacks=[watch(style)])
    if style == "nothing":
        trainer.remove_callback(PrinterCallback)
    return trainer


def _train(trainer: Any, workdir: Path) -> None:
    """Train, or resume training, to the last step."""
    if last := last_checkpoint(workdir):
        check_names(last, trainer.model)
    # the Trainer prints its log to stdout, which is for results only
    with (
        redirect_stdout(sys.stderr),
        _bars_of(trainer),
        full_float32(),
        saved_as_read(trainer.model),
    ):
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    check_weights(trainer.model, trainer.state)


def _scores(trainer: Any, source: Checkpoint, parts: Sequence[Training]) -> dict[str, Any]:
    """Held-out scores by `task@split`, as expert.json has them, of the tasks that can be scored."""
    heldout = trainer.eval_dataset
    rows = [*heldout.values()] if len(parts) > 1 else [heldout]
    scores = {}
    for number, part in enumerate(parts):
        if can_be_scored(part):
            score = scored(trainer, source, part, rows[number], number)
            warn_of_best_constant(part, score)
            scores[f"{part.task}@{HELD_OUT}"] = asdict(score)
    return scores


@contextmanager
def _bars_of(trainer: Any) -> Iterator[None]:
    """Clear the Trainer's progress bars if the block raises, so that only the error is shown."""
    try:
        yield
    except BaseException:
        for callback in trainer.callback_handler.callbacks:
            for name in ("prediction_bar", "training_bar"):
                if (bar := getattr(callback, name, None)) is not None:
                    bar.leave = False
                    bar.close()
        raise


def _settings(default: Hyperparameters, overrides: Mapping[str, Any]) -> Hyperparameters:
    """The defaults with all overrides that are not None. Raises BadOption for an unfit one."""
    chosen: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    for name, value in chosen.items():
        if name not in asdict(default):
            raise BadOption(
                f"there is no hyperparameter '{name}'; known: {', '.join(asdict(default))}"
            )
        if expected := unfit(name, value):
            raise BadOption(f"{name} is {value!r:.80}, expected {expected}")
    return replace(default, **chosen)


@contextmanager
def _full_disk_errors(out: Path) -> Iterator[None]:
    """Raise CannotWrite for the errors by which safetensors and torch report a full disk."""
    with as_cannot_write(out):
        try:
            yield
        except (SafetensorError, RuntimeError) as error:
            reason = first_line(error)
            if not any(words in reason for words in WRITING_FAILED):
                raise
            raise CannotWrite(
                f"{out} cannot be written: {reason}; expected disk space for an expert and its "
                "optimizer"
            ) from error
