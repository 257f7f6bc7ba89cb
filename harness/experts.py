"""Shell: a base and a task (or several) -> an expert, with transformers' Trainer."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness.checkpoints import EXPERT, open_checkpoint, quiet
from harness.data import load_rows, parse_task
from harness.errors import BadOption, BadRecipe, OutputExists
from harness.files import check_output, new_folder, write_json
from harness.labels import predicted
from harness.metrics import score
from harness.multitask import check_shared, multi_task
from harness.provenance import EXPERT_FILE
from harness.trainers import Prepared, Training, single_task
from harness.types import Checkpoint, Hyperparameters, Score, Task

TRAINED_ON, SELECTED_ON = "train90", "heldout10"


def finetune(
    base: str | Path,
    task: str | None = None,
    *,
    tasks: Sequence[str] = (),
    out: str | Path,
    seed: int = 0,
    head_seed: int | None = None,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    bf16: bool = False,
    force: bool = False,
    progress: bool = True,
    **overrides: float | None,
) -> Checkpoint:
    """Fine-tune a base on `task@train90` and write the expert to `out`; returns it.

    Several `tasks` instead of one `task` train one encoder with a head for each, which are written
    as a merge with kept heads is. `overrides` are fields of `Hyperparameters`; the defaults are the
    task's; `force` replaces an older expert there. Tasks that are trained together keep their own
    batch size and maximum length and must agree in the rest. `seed` orders the data and drops
    units, `head_seed` (default: `seed`) initialises the heads. An interrupted run resumes when it
    is called again with the same arguments. The folder records tasks, split, seeds, hyperparameters
    and the scores on `task@heldout10` in expert.json.
    """
    asked = [(one, _settings(one.finetune, overrides)) for one in _asked(task, tasks)]
    check_shared({one.name: settings for one, settings in asked})
    out = Path(out)
    check_output(out, EXPERT, force=force)
    source = open_checkpoint(base)
    parts = [
        Training(
            load_rows(one, TRAINED_ON, folder=data_dir, limit=limit),
            load_rows(one, SELECTED_ON, folder=data_dir, limit=limit),
            settings,
        )
        for one, settings in asked
    ]
    request = {
        "base": str(base),
        "tasks": [part.task.name for part in parts],
        "split": TRAINED_ON,
        "seed": seed,
        "head_seed": seed if head_seed is None else head_seed,
        "bf16": bf16,
        **_described(parts),
    }
    workdir = _workdir(out, request)
    with quiet():
        if len(parts) == 1:
            prepared = single_task(source, parts[0], request, workdir, progress)
        else:
            prepared = multi_task(source, parts, request, workdir, progress)
        scores = _train(prepared, parts, workdir, progress)
        with new_folder(out, EXPERT, force=force) as folder:
            prepared.trainer.model.save_pretrained(folder)
            prepared.trainer.processing_class.save_pretrained(folder)
            record = {**request, "scores": {name: asdict(one) for name, one in scores.items()}}
            write_json(folder / EXPERT_FILE, record)
    shutil.rmtree(workdir)
    return open_checkpoint(out)


def _asked(task: str | None, tasks: Sequence[str]) -> list[Task]:
    """The tasks to train on, each once and none of them at a split."""
    if (task is None) == (not tasks):
        found = f"--task {task} and --tasks {','.join(tasks)}" if tasks else "none"
        raise BadRecipe(
            f"which task to train on: found {found}; expected one with --task, or several that "
            "share an encoder with --tasks"
        )
    found_tasks = []
    for name in tasks or (task or "",):
        found_task, split = parse_task(name)
        if "@" in name:
            raise BadRecipe(
                f"an expert is trained on {found_task}@{TRAINED_ON}, found '@{split}'; "
                "name the task alone"
            )
        if found_task in found_tasks:
            raise BadRecipe(f"--tasks names {found_task} twice; expected each task once")
        found_tasks.append(found_task)
    return found_tasks


def _described(parts: Sequence[Training]) -> dict[str, Any]:
    """Rows and hyperparameters, of the task or by task."""
    by_task: dict[str, dict[str, Any]] = {
        "rows": {part.task.name: len(part.train) for part in parts},
        "rows_digest": {part.task.name: part.train.digest for part in parts},
        "hyperparameters": {part.task.name: asdict(part.settings) for part in parts},
    }
    if len(parts) > 1:
        return by_task
    return {key: found[parts[0].task.name] for key, found in by_task.items()}


def _train(
    prepared: Prepared, parts: Sequence[Training], workdir: Path, progress: bool
) -> dict[str, Score]:
    """Train to the last step, from where an interrupted run was; the scores on held-out rows."""
    from transformers import PrinterCallback

    trainer = prepared.trainer
    if not progress:
        trainer.remove_callback(PrinterCallback)
    checkpoints = sorted(workdir.glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
    with redirect_stdout(sys.stderr):  # the Trainer prints its log; results alone go to stdout
        trainer.train(resume_from_checkpoint=str(checkpoints[-1]) if checkpoints else None)
    scores = {}
    for part, rows in zip(parts, prepared.heldout, strict=True):
        # grouping by length shuffles the rows as well: labels as the Trainer hands them back
        outputs = trainer.predict(rows)
        found = predicted(part.task.kind, outputs.predictions)
        scores[f"{part.task}@{SELECTED_ON}"] = score(part.task, found, outputs.label_ids)
    return scores


def _settings(default: Hyperparameters, overrides: Mapping[str, float | None]) -> Hyperparameters:
    given: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    for name, value in given.items():
        if name not in asdict(default):
            raise BadOption(
                f"no hyperparameter is called '{name}'; known: {', '.join(asdict(default))}"
            )
        zero_is_fine = name in ("warmup", "weight_decay")
        if value < 0 or (value == 0 and not zero_is_fine):
            raise BadOption(f"{name} is {value}, expected a positive number")
    return replace(default, **given)


def _workdir(out: Path, request: Mapping[str, Any]) -> Path:
    """The folder of the unfinished run; one left by a run with other arguments is an error."""
    workdir = out.with_name(f"{out.name}.unfinished")
    marker = workdir / "request.json"
    text = json.dumps(request, indent=2, sort_keys=True)
    if marker.is_file() and marker.read_text(encoding="utf-8") != text:
        raise OutputExists(
            f"{workdir} holds an interrupted run with other arguments (see {marker.name}); "
            "expected the same: repeat them to resume, or remove the folder to start anew"
        )
    workdir.mkdir(parents=True, exist_ok=True)
    marker.write_text(text, encoding="utf-8")
    return workdir
