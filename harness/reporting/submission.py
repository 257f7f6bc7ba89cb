"""Shell: submitted records -> the faults that keep each of them off a board.

Nothing here proves that a score was measured: made-up predictions give consistent records. What is
found are contradictions within a record, and between a record and the board.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from math import sqrt
from pathlib import Path

import numpy as np
import xxhash

from harness.data.splits import share_rows
from harness.errors import BrokenRecord, HarnessError, UnknownName
from harness.evaluation.bootstrap import intervals, kept_resamples, resample_count
from harness.evaluation.cells import LABEL_USES
from harness.evaluation.faults import CLOSE
from harness.evaluation.packs import SUFFIX
from harness.evaluation.predictions import read_predictions
from harness.evaluation.records import (
    NAMED,
    Record,
    each_record,
    files_in,
    parse_record,
    read_record,
)
from harness.evaluation.resamples import estimates_of, loss_of
from harness.evaluation.task_split import ProtocolConfig
from harness.methods import needs_of, resolved_options
from harness.options import options
from harness.registry import PROTOCOLS, STAGES, TASKS
from harness.reporting.chosen import loaded_code
from harness.reporting.grid import SINGLES
from harness.reporting.lines import Line, lines_of
from harness.reporting.sets import with_set_numbers
from harness.reporting.stages import stages_of
from harness.text import few
from harness.types import ALL, TRAINED_ON, Choice

PROGRAM = "merging-harness"
DIGEST = re.compile("[0-9a-f]{32}")
FAR = 5.0
"""In standard errors of a value over the resamples: a larger deviation is not chance."""
MEASURED = ("merged", "reference", "ceiling", "ensemble")
"""Roles that need records of the base and of the experts beside them, as controls."""

Named = tuple[str, Record]
"""The file of a record, and the record."""


def findings(
    places: Sequence[str | Path], board: Sequence[str | Path] = ()
) -> dict[Path, list[str]]:
    """By file, the faults of a record in files, packs and folders, a line for each fault.

    Records are checked against the board and against one another. A record with an empty list may
    join. Raises BrokenRecord for places that do not exist, damaged packs and a board without
    records.
    """
    faults: dict[Path, list[str]] = {}
    others: list[Path] = []
    sent: list[Named] = []
    for path, packed in files_in(places, others):
        try:
            record = read_record(path) if packed is None else parse_record(packed, path)
        except BrokenRecord as error:
            faults[path] = [str(error)]
            continue
        code = record.settings.get("code")
        if code is not None and loaded_code(record) not in ("", code):
            faults[path] = [
                f"{path} was scored by other code than is loaded; expected the same: leave it out"
            ]
            continue
        sent.append((str(path), record))
        faults[path] = [f"{path} {fault}" for fault in _alone(record, path)]
    faults |= {path: [f"{path} is no record; expected one that evaluate wrote"] for path in others}
    on_board = [(str(path), one) for path, one in each_record(board)] if board else []
    file_faults = [*_beside(on_board, sent)]
    if not file_faults and not any(faults.values()):  # refused records would be missing, too
        file_faults = [*_incomplete(on_board, sent)]
    for name, fault in file_faults:
        if (line := f"{name} {fault}") not in faults[Path(name)]:
            faults[Path(name)].append(line)
    return faults


# A record alone ----------------------------------------------------------------------------


def _alone(record: Record, path: Path) -> Iterator[str]:
    """The faults that a record has by itself."""
    if not NAMED.search(path.name):
        yield "has no hash in its name; expected the name that evaluate gave it"
    digests = [one.digest for one in (*record.experts, record.base) if one]
    if wrong := [digest for digest in (record.digest, *digests) if not DIGEST.fullmatch(digest)]:
        yield f"has the digest '{wrong[0]}'; expected 32 hexadecimal digits"
    for faults in (_in_draws, _in_resamples, _in_marks, _in_recipe):
        yield from faults(record)
    if (predictions := path.with_suffix(SUFFIX)).is_file():
        try:
            step = min((one.step for one in record.resamples), default=None)
            expected = kept_resamples(read_predictions(record, predictions), record.scores, step)
        except BrokenRecord as error:
            yield f"has predictions beside it that do not fit its scores; expected its own: {error}"
        except UnknownName as error:  # a plug-in's metric
            yield f"has predictions beside it that cannot be scored here: {error}"
        else:
            if expected != record.resamples:
                yield "has other resamples than its predictions give; expected the same"


def _in_draws(record: Record) -> Iterator[str]:
    """A fault unless every number of shots has a score for every seed that was asked for, and
    `all` for the first seed alone."""
    config = record.settings
    if config.get("shots", [None]) != record.shots:
        yield f"has scores of {record.shots} shots; expected {config.get('shots')}, by its settings"
    for shots in record.shots if record.shots != [None] else ():
        seeds = [score.seed or 0 for score in record.scores if score.shots == shots]
        first, count = config.get("seed"), 1 if shots == ALL else config.get("draws")
        if (first, count) != (seeds[0], len(seeds)) or seeds[-1] != seeds[0] + len(seeds) - 1:
            yield f"has the draws {seeds}; expected {count}, from seed {first} on, by its settings"


def _in_resamples(record: Record) -> Iterator[str]:
    """Faults of resamples and intervals that do not follow from the scores; for accuracy, also of
    scores that are not a whole number of right rows."""
    for resamples in record.resamples:
        if resamples.count != (count := resample_count(resamples.units, record.metrics)):
            yield f"has {resamples.count} resamples of {resamples.units} units; expected {count}"
            return
    estimates = estimates_of(record.resamples, record.scores, record.metrics)
    computed = intervals(record.metrics, estimates)
    found, expected = (
        [[interval.low, interval.high, interval.level] for interval in group]
        for group in (record.intervals, computed)
    )
    if len(found) != len(expected) or not np.allclose(found, expected, rtol=0, atol=2 * CLOSE):
        yield f"has the intervals {found}; expected {expected}, of its scores and resamples"
    exact = record.metrics == ("accuracy",) and not record.settings.get("left_out")
    if (loss := loss_of(record)) is not None:
        least, kept_loss = loss.resamples.min(), record.loss_resamples
        if kept_loss and least < -kept_loss.step:
            yield f"has a loss of {least:.4f} on resamples; expected none below zero"
    for resamples, estimate in zip(record.resamples, estimates.values(), strict=True):
        mean, spread = estimate.resamples.mean(), estimate.resamples.std()
        # other metrics are not linear in rows: their mean may be off by one standard deviation
        far = spread * (FAR / sqrt(resamples.count) if exact else 1) + resamples.step
        if abs(mean - estimate.point) > far:
            yield f"has the mean {mean:.4f} on resamples; expected {estimate.point:.4f}, its score"
        likely = (
            float(np.sqrt(estimate.values * (1 - estimate.values) / resamples.units).mean())
            if exact
            else 0
        )
        far = likely * FAR / sqrt(2 * resamples.count) + resamples.step / 2
        # the mean over draws may vary less than each of them
        low = likely - far if len(estimate.values) == 1 else 0
        if exact and resamples.units == record.rows and not low <= spread <= likely + far:
            yield f"has the standard deviation {spread:.4f} on resamples; expected {likely:.4f}"
    right = np.array([score.value for score in record.scores]) * record.rows
    if exact and np.abs(right - np.rint(right)).max() > CLOSE * record.rows:
        yield f"has {right[0]:.3f} right answers on {record.rows} rows; expected whole numbers"


def _in_marks(record: Record) -> Iterator[str]:
    """Faults of what a record says about the rows that its model and its protocol saw."""
    adapted, recipe = record.adaptation, record.recipe
    seen = [*record.shown, *(recipe.tuned_on if recipe else ())]
    if any(stage.options.get("rows") == "test" for _, stage in (recipe.stages if recipe else ())):
        seen += [f"{expert.task}@{record.task.partition('@')[2]}" for expert in record.experts]
    if not record.transductive and (scored := [one for one in seen if _shared(record.task, one)]):
        yield f"was made with {scored[0]}, which is scored; expected transductive: true"
    if record.protocol not in PROTOCOLS:
        yield f"is of the protocol '{record.protocol}', not known; expected its --plugins"
        return
    entry = PROTOCOLS[record.protocol]
    chosen = record.options
    if lacking := ", ".join(sorted(options(entry.function).keys() - chosen.keys())):
        yield f"lacks the options {lacking} of {record.protocol}; expected all"
        return
    config, chose = ProtocolConfig(entry, chosen), record.settings.get("stratified") is not False
    used = LABEL_USES[config.has_draws and chose, config.has_draws and entry.adapts == "labeled"]
    split = f"{record.task.partition('@')[0]}@{TRAINED_ON}" if config.has_draws else record.task
    expected = (split, used, config.transductive) if config.adapts else None
    if (found := adapted and (adapted.split, adapted.labels, adapted.transductive)) != expected:
        yield f"adapted to (split, labels, transductive) {found}; expected {expected}"


def _shared(first: str, second: str) -> bool:
    """Whether two `name@split` share rows; for unregistered tasks, whether they are equal."""
    (name, _, split), (other, _, other_split) = first.partition("@"), second.partition("@")
    return name == other and (
        split == other_split or (name in TASKS and share_rows(TASKS[name], split, other_split))
    )


def _in_recipe(record: Record) -> Iterator[str]:
    """Faults unless a merge is named by its recipe, and says which rows its methods read."""
    recipe = record.recipe
    if record.role == "merged" and not (recipe and record.experts):
        yield "has no recipe, or no experts; expected both, to know how the merge was made"
    if recipe is None:
        return
    if recipe.tuned and not recipe.tuned_on:
        yield f"has {', '.join(recipe.tuned)} tuned on no rows; expected the rows in tuned_on"
    try:
        methods = [(STAGES[kind][stage.name], stage.options) for kind, stage in recipe.stages]
        expected = str(stages_of(recipe))
    except HarnessError as error:
        yield f"has a recipe with unknown methods; expected their plug-in in --plugins: {error}"
        return
    if record.method != expected:
        yield f"is called {record.method}; expected {expected}, by its recipe"
    for entry, chosen in methods:
        if "rows" in resolved_options(entry, Choice(entry.name)).keys() - chosen.keys():
            yield f"lacks the option rows of {entry.name}; expected all options"
        if any(one.rows not in ("none", "shared") for one in needs_of(entry)) and not record.shown:
            yield f"says that no rows were shown; expected those that {entry.name} reads"


# Beside others -----------------------------------------------------------------------------


def _beside(board: Sequence[Named], sent: Sequence[Named]) -> Iterator[tuple[str, str]]:
    """(file, fault) of submitted records that contradict the board or an earlier record, or lack
    the record of a control."""
    every = [*board, *sent]
    records, lines = dict(every), with_set_numbers([*lines_of(every)])
    board_count = sum(len(one.shots) for _, one in board)
    unmerged = [one for one in lines if one.role in ("base", *SINGLES)]
    controls = {(one.task, one.setting, key) for one in unmerged for key in (one.role, one.digest)}
    facts: dict[tuple[object, str], list[object]] = {}
    for place, line in enumerate(lines):
        record, column = records[line.path], f"{line.task} under {line.setting}"
        for subject, fact, value in _facts(record, line, column):
            values = facts.setdefault((subject, fact), [])
            if values and value not in values and place >= board_count:
                yield line.path, f"has {value} as {fact}; expected {values[0]}"
            elif not values or place < board_count:
                values.append(value)
        if place < board_count or line.role not in MEASURED:
            continue
        own = [expert.digest for expert in record.experts if expert.task == line.name]
        for control in dict.fromkeys(["base", *own, *line.teachers]):
            if (line.task, line.setting, control) not in controls:
                yield (
                    line.path,
                    f"has no record of its control {control:.8} on {column}; expected one",
                )


def _incomplete(board: Sequence[Named], sent: Sequence[Named]) -> Iterator[tuple[str, str]]:
    """(file, fault) of submitted merges that lack a cell which all merges of their tasks on the
    board, or another submitted one, have: nobody leaves out the cells with low scores."""
    own: dict[object, Line] = {}
    cells: dict[object, dict[object, set[str]]] = {}
    for group in (board, sent):
        records = dict(group)
        for line in lines_of(group):
            if line.role != "merged":
                continue
            tasks = tuple(sorted(str(expert.task) for expert in records[line.path].experts))
            preset = f" by {line.preset}" if line.preset else ""
            merge, cell = (line.model, line.made_of), f"{line.task} under {line.setting}{preset}"
            cells.setdefault(tasks, {}).setdefault(merge, set()).add(cell)
            if group is sent:
                own.setdefault(merge, line)
    for rows in cells.values():
        others = [has for row, has in rows.items() if row not in own]
        expected = {*(others and set.intersection(*others))}
        expected |= {cell for row, has in rows.items() if row in own for cell in has}
        for row, has in rows.items():
            if row in own and (lacking := few(sorted(expected - has))):
                line = own[row]
                yield (
                    line.path,
                    f"is of {line.model}, sent without {lacking}; expected these as well",
                )


def _facts(record: Record, line: Line, column: str) -> Iterator[tuple[object, str, object]]:
    """(thing, name of the fact, value): facts that are equal in all records of one thing."""
    yield "", "the version of the harness", record.versions.get(PROGRAM)
    for what, value in line.conditions:
        yield column, f"{what} of {column}", value
    rows = line.task, line.metrics, line.limit, str(record.settings.get("left_out"))
    yield rows, f"the digest of the rows of {line.task}", line.rows_of
    yield rows, f"the best constant on {line.task}", line.majority and round(line.majority, 4)
    resamples = line.resamples
    # without their number: a board may keep only the first ones, and `_in_resamples` counts them
    design = f"those of {resamples.units} {resamples.unit}s, {resamples.design}"
    yield rows, f"the resamples of {line.task}", design
    conditions = column, line.options, line.preset, line.conditions
    if (adapted := record.adaptation) and isinstance(line.shots, int):
        # fewer shots are the first of each list
        drawn = {
            seed: [one[: line.shots] for one in lists] for seed, lists in adapted.drawn.items()
        }
        for what, content in ("rows", drawn), ("sentences", adapted.sentences.get(str(line.shots))):
            text = json.dumps(content, sort_keys=True).encode()
            yield conditions, f"the {what} drawn for {column}", xxhash.xxh3_64_hexdigest(text)
    for expert in record.experts:
        yield expert.digest, f"the task of the expert {expert.digest:.8}", expert.task
        if expert.seed is not None:  # by its seeds and training it is of a set
            trained = f"seed {expert.seed}, head seed {expert.head_seed}, {expert.training}"
            yield expert.digest, f"the training of the expert {expert.digest:.8}", trained
    if line.role == "expert":
        yield line.digest, f"the task of the expert {line.digest:.8}", line.name
    if line.role in ("expert", "base"):
        owner = line.role, line.task, line.model, line.set
        yield owner, f"the weights of the {line.role} {line.model}", line.digest
    weights, scores = line.digest[:8], ", ".join(f"{one:.4f}" for one in line.values)
    outputs = conditions, line.digest, line.head, line.labels, line.teachers
    yield outputs, f"scores of {weights}", scores
    made_on = f"the answer to whether {weights} was made with the rows of {line.task}"
    yield (line.digest, line.task), made_on, line.made_on_test
    if record.recipe:
        merge = record.recipe.model_dump_json(), line.made_of, line.head, line.task
        yield merge, f"the weights of {line.method} of these experts", line.digest
