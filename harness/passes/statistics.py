"""Shell: statistics that methods need, computed on an expert's own rows and cached by content.

A statistic is one tensor per weight and holds no row of the data, so its file can be given to
whoever merges, without the rows (RegMean, arXiv:2212.09849).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import torch

from harness import weights
from harness.checkpoints.align import under_prefix
from harness.checkpoints.build import check_ready
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.processor import check_inputs
from harness.checkpoints.provenance import Part, check_weights_unchanged, read_expert_json
from harness.checkpoints.recorded_tasks import register_tasks
from harness.checkpoints.text_heads import read_heads, with_missing_parts
from harness.code import code_of
from harness.data.claims import check_claim
from harness.data.parts import part_of
from harness.data.rows import load_rows, take
from harness.data.splits import parse_task
from harness.entries import Merger
from harness.errors import BadRecipe, BrokenCheckpoint, IncompatibleWeights, NotFinite, OutputExists
from harness.files import check_name, check_place, version
from harness.functions import file_of
from harness.kinds import kind_of
from harness.methods import needs_of, resolved_options
from harness.options import options, parse_choice, resolve
from harness.passes.cache import keep, recall, write_sealed
from harness.passes.lengths import at_length, length_of
from harness.passes.placement import FULL_PRECISION, DType, placement
from harness.passes.reading import Reading, reading_of
from harness.passes.statistic_file import (
    Facts,
    Statistic,
    StatisticDescription,
    parse_statistic,
    read_statistic,
    shapes_of,
)
from harness.plugins import calling
from harness.presets import PresetName, faithful
from harness.registry import MERGERS, NEEDS
from harness.rng import rng
from harness.text import counted
from harness.types import (
    AUTO,
    TRAINED_ON,
    Checkpoint,
    Choice,
    Length,
    Need,
    Progress,
    Rows,
    Scalar,
    StateDict,
    Steps,
    Task,
)

# Collecting --------------------------------------------------------------------------------


def draw_rows(
    task: Task,
    examples: int,
    seed: int,
    folder: str | Path | None,
    split: str = TRAINED_ON,
    part: Part | None = None,
) -> Rows:
    """The rows that a statistic is computed on: `examples` of `task@train90`, drawn by the seed.

    Experts of one task get the same rows, except for experts trained on a `part` of the rows, which
    get rows of that part. If there are fewer than `examples`, all are taken, with a warning.
    `collect` takes the rows of any other draw as well: `take(load_rows(task, "train90"), numbers)`.
    """
    rows = load_rows(task, split, folder=folder)
    rows = rows if part is None else part_of(rows, part)
    if examples > len(rows):
        warnings.warn(
            f"{task}@{split} has {counted(len(rows), 'row')}, fewer than examples={examples}: all "
            "are taken",
            stacklevel=2,
        )
    order = rng(seed, "stats", task.name).permutation(len(rows))
    return take(rows, [int(i) for i in order[:examples]])


def rows_for_options(
    chosen: Mapping[str, Scalar], task: Task, folder: str | Path | None, part: Part | None = None
) -> Rows:
    """The rows that the options of a need select, `examples` and `seed` among them.

    They are from the task's reported split if an option `rows` is `test`; else from the `part` of
    the training rows that the expert was trained on, or from all of them.
    """
    examples, seed = (cast(int, chosen[key]) for key in ("examples", "seed"))
    split = task.reported if chosen.get("rows") == "test" else TRAINED_ON
    return draw_rows(task, examples, seed, folder, split, part if split == TRAINED_ON else None)


def part_seen(checkpoint: Checkpoint) -> Part | None:
    """The part of its task's rows that an expert was trained on; None: all, or not recorded."""
    record = read_expert_json(checkpoint.path)
    return None if record is None else record.part


def progress_label(need: Need, checkpoint: Checkpoint) -> str:
    """The label, in the progress, of the rows that a need reads of an expert."""
    return f"{need.name} of {checkpoint.name}"


def steps(
    progress: Progress | None, need: Need, checkpoint: Checkpoint, rows: Rows
) -> Steps | None:
    """The progress of the rows that a need reads of an expert; None without `progress`."""
    label = progress_label(need, checkpoint)
    return (lambda done: progress(label, done, len(rows))) if progress else None


def collect(need: Need, chosen: Mapping[str, Scalar], reading: Reading) -> Statistic:
    """A statistic of an expert on its drawn rows, from the cache or by a pass over them.

    `chosen` are all options of the need. Raises IncompatibleWeights for tensors that are not what
    its shapes promise, NotFinite for NaN or Inf.
    """
    digest = weights.digest(reading.checkpoint.weights)
    path = _entry(need, chosen, reading, digest)
    recalled = _recalled(path) if path else None
    if recalled is not None:
        if reading.progress:
            reading.progress(len(reading.rows))
        return recalled
    computed = _computed(need, chosen, reading, digest)
    was_kept = path is not None and keep(path, computed.stored, computed.header.written())
    return (_recalled(path) if path and was_kept else None) or computed


def _entry(need: Need, chosen: Mapping[str, Scalar], reading: Reading, digest: str) -> Path | None:
    """The cache file of a statistic, by all that it depends on; None if that cannot be hashed."""
    if file_of(need.function) is None:  # typed code: its hash leaves values out
        return None
    code = list(filter(None, [code_of(need.function)]))
    return reading.entry(digest, need.name, dict(chosen), list(reading.places), *code)


def _recalled(path: Path) -> Statistic | None:
    """A statistic from the cache, its tensors still on disk; None if it is missing or damaged."""
    entry = recall(path)
    try:
        return None if entry is None else parse_statistic(path, *entry)
    except BrokenCheckpoint:
        return None


def _computed(need: Need, chosen: Mapping[str, Scalar], reading: Reading, digest: str) -> Statistic:
    """A statistic by a pass over the rows."""
    with calling(f"need {need.name}", need.function):
        result = need.function(reading, **chosen)
    tensors, shared = result if isinstance(result, tuple) else (result, {})
    tensors = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    if broken := [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]:
        raise NotFinite(
            f"need '{need.name}', computed in {reading.placement.dtype}, has NaN or infinite "
            f"entries in '{broken[0]}' of {reading.checkpoint.source} on "
            f"{reading.rows.task}{reading.placement.advice}"
        )
    shared = {name: first for name, first in shared.items() if name != first}
    missed = _missed(need, reading.checkpoint, tensors, shared)
    description = describe(need, chosen, reading, digest)
    facts = description.facts.model_copy(update={"not_run": missed})
    description = description.model_copy(update={"shared": shared, "facts": facts})
    return Statistic(description, tensors, f"{need.name} of {reading.checkpoint.source}")


def describe(
    need: Need, chosen: Mapping[str, Scalar], reading: Reading, digest: str
) -> StatisticDescription:
    """The description of a met need: its options, rows and model, with the weights' `digest`."""
    rows, recorded = reading.rows, reading.placement.recorded
    return StatisticDescription(
        kind=need.name,
        options=dict(chosen),
        task=f"{rows.task}@{rows.split}",
        digest=digest,
        model=reading.checkpoint.name,
        facts=Facts(rows=rows.digest, max_length=reading.max_length, placement=recorded),
        versions={name: version(name) for name in ("merging-harness", "torch")},
        code=code_of(need.function) or "",
    )


def _missed(
    need: Need, checkpoint: Checkpoint, tensors: StateDict, shared: Mapping[str, str]
) -> tuple[str, ...]:
    """The names that the need promises and did not make.

    Raises IncompatibleWeights for a tensor of another shape or type, and if none was made.
    """
    promised, made = shapes_of(need, checkpoint), weights.specs(tensors)
    reached = {**made, **{name: made[place] for name, place in shared.items()}}
    for name, spec in promised.items():
        if (have := reached.get(name, spec)) != spec:
            raise IncompatibleWeights(
                f"need '{need.name}' makes '{name}' of {checkpoint.source} {have.dtype} "
                f"{have.shape}, expected {spec.dtype} {spec.shape} as its shapes say"
            )
    if not promised.keys() & reached.keys():
        raise IncompatibleWeights(
            f"need '{need.name}' makes none of the tensors of {checkpoint.source} that its shapes "
            f"promise: {', '.join(promised) or 'none'}; found {', '.join(reached) or 'nothing'}"
        )
    return tuple(name for name in promised if name not in reached)


def lazy_statistic(
    need: Need, checkpoint: Checkpoint, obtain: Callable[[], Statistic]
) -> StateDict:
    """The lazy tensors of a statistic, which is obtained when the first of them is read.

    A tensor that no row reached is zero, such as the Gram matrix of a layer that never ran.
    """
    specs = shapes_of(need, checkpoint)

    def read(name: str) -> torch.Tensor:
        tensors = obtain().tensors
        if name not in tensors:
            return torch.zeros(specs[name].shape, dtype=specs[name].dtype)
        return tensors[name]

    return weights.Lazy(specs, read)


def statistic(
    expert: str | Path,
    *,
    task: str,
    out: str | Path | None = None,
    merger: str | Choice | None = None,
    need: str | Choice | None = None,
    preset: PresetName | None = None,
    max_length: Length | None = None,
    other_tasks: bool = False,
    base: str | Path | None = None,
    heads_from: str | Path | None = None,
    data_dir: str | Path | None = None,
    device: str = AUTO,
    dtype: DType = FULL_PRECISION,
    allow_pickle: bool = False,
    progress: Progress | None = None,
) -> Statistic:
    """Write an expert's statistics for a merger (default: `regmean`) or a need to the file `out`.

    Without `out` they are kept in the cache alone, where a merge on this machine finds them.
    Rows are cut to `max_length` tokens, by default the task's; `auto`: nothing that the expert can
    encode is cut off. The file can be shared instead of the data. `base` and the folder
    `heads_from` supply what the expert's folder may lack. Raises BadRecipe for a merger without
    statistics and, without `other_tasks`, for a task that the expert was not trained on,
    BrokenCheckpoint for an expert that was changed since it was written, OutputExists if `out` is a
    file that holds something else.
    """
    placed = placement(device, dtype, "statistics")
    entry, chosen = _asked(merger, need, preset)
    placed.check(entry)
    length = None if max_length is None else length_of(max_length)
    checkpoint = open_checkpoint(expert, allow_pickle=allow_pickle, base=base)
    check_weights_unchanged(checkpoint)
    register_tasks([task], [checkpoint])
    parsed, split = parse_task(task)
    opened = None if base is None else open_checkpoint(base, allow_pickle=allow_pickle)
    checkpoint = with_missing_parts(checkpoint, opened, parsed.name, read_heads(heads_from, opened))
    if "@" in task and split != TRAINED_ON:
        raise BadRecipe(
            f"statistics are computed on {parsed}@{TRAINED_ON}, found '@{split}'; name the task "
            "without a split"
        )
    if out is not None:
        _check_free(Path(out))
    check_inputs(checkpoint, parsed)
    check_ready(checkpoint, unit=kind_of(parsed).unit)
    if entry.embeds and checkpoint.pooling is not None:
        checkpoint = under_prefix(checkpoint)
    elif checkpoint.labels is None:
        raise BadRecipe(f"{expert} has no head; expected a fine-tuned classifier of {parsed}")
    else:
        kind_of(parsed).output_columns(parsed, checkpoint.labels, checkpoint.source)
    if not other_tasks:
        check_claim(checkpoint, parsed, data_dir, flag="--task")
    if entry.check:
        entry.check(chosen)
    drawn = rows_for_options(chosen, parsed, data_dir, part_seen(checkpoint))
    rows = at_length(drawn, length, [checkpoint])
    step = steps(progress, entry, checkpoint, rows)
    computed = collect(entry, chosen, reading_of(checkpoint, rows, placed, step))
    if out is None:
        return computed
    write_sealed(Path(out), computed.stored, computed.header.written())
    return read_statistic(Path(out))


def _asked(
    merger: str | Choice | None, need: str | Choice | None, preset: PresetName | None
) -> tuple[Need, dict[str, Scalar]]:
    """The need that is asked for, by its own name or that of a merger, and all its options."""
    if need is not None:
        if merger is not None or preset is not None:
            other = "a merger" if merger is not None else "a preset of mergers"
            raise BadRecipe(
                f"a need and {other} are both given, and each says what to compute; expected one"
            )
        choice = parse_choice(need) if isinstance(need, str) else need
        needed = NEEDS[choice.name]
        if needed.rows != "own":
            names = " or ".join(name for name, one in NEEDS.items() if one.rows == "own")
            raise BadRecipe(
                f"{needed.name} is not a statistic of a single expert; expected {names}"
            )
        return needed, resolve("need", choice, needed.function)
    choice = parse_choice(merger) if isinstance(merger, str) else merger or Choice("regmean")
    entry = MERGERS[choice.name]
    statistics = _statistics_of(entry)
    if not statistics:
        needing = " or ".join(name for name, one in MERGERS.items() if _statistics_of(one))
        raise BadRecipe(f"{entry.name} needs no statistics; expected {needing}")
    if len(statistics) > 1:
        named = " or ".join(one.name for one in statistics)
        raise BadRecipe(f"{entry.name} needs several statistics; name one: --need {named}")
    chosen = resolved_options(entry, faithful(choice, preset))
    return statistics[0], {name: chosen[name] for name in options(statistics[0].function)}


def _statistics_of(entry: Merger) -> list[Need]:
    return [need for need in needs_of(entry) if need.rows == "own"]


def _check_free(path: Path) -> None:
    """Raise OutputExists or CannotWrite unless a file of statistics can be written or replaced."""
    check_name(path)
    check_place(path.absolute().parent)
    if os.path.lexists(path):
        try:
            read_statistic(path)
        except BrokenCheckpoint as error:
            raise OutputExists(
                f"{path} exists and is no file of statistics: choose another --out"
            ) from error
