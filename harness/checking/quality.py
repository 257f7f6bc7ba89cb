"""How good a merger is on the embedded suite, compared with `average` and with its baseline.

The experts of the folder `miniatures` were made once and are kept, so that scores depend on the
machine only through the rounding of a forward pass. Every comparison is paired: both mergers are
evaluated with the same draws of shots, the differences are averaged over the tasks of a setting
for each draw, and the interval is Student's t over the draws. Current Eval draws nothing: there,
ten parts of the test rows are paired instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

import numpy as np
from scipy.stats import sem, t
from tabulate import tabulate

from harness.checkpoints.open import open_checkpoint
from harness.code import code_of
from harness.data.metrics import score
from harness.data.rows import load_rows, units_of
from harness.data.splits import parse_task
from harness.errors import BadOption, BrokenRecord
from harness.evaluation.evaluate import evaluate
from harness.evaluation.predictions import read_predictions
from harness.evaluation.records import Record, predictions_of, safe_name
from harness.evaluation.run import DEFAULTS, Run
from harness.files import check_place, read_json, write_json
from harness.kinds import kind_of
from harness.merging.checked import short_method
from harness.merging.merge import merge
from harness.merging.recipes import Recipe
from harness.methods import needs_of, resolved_options
from harness.passes.workload import Workload
from harness.registry import MERGERS, PROTOCOLS, TASKS
from harness.reporting.lines import HEADLINE_SHOTS, PROTOCOL_ORDER
from harness.text import points
from harness.types import TRAINED_ON, Choice, Progress, Scalar
from harness.values import Frozen, validated
from harness.weights import digest, join_digests

MINIATURES = Path(__file__).parent / "miniatures"
SETTINGS = {
    "different tasks": ("topic", "comparison", "outcome"),
    "same task": ("outcome", "outcome-1"),
}
"""The experts that are merged. Heads are kept in the first setting, merged or averaged in the
second. The second uses outcome, whose scores have the most room: experts of the same classification
task agree on nearly all rows.
"""
BASELINES = Path("tests/baselines")
REFERENCE = Choice("average")
BOTH = "merge", "evaluate"
"""The two steps in every setting."""
PARTS = 10
"""Parts of the test rows, compared in place of draws under Current Eval."""
LEVEL = 0.95
FLOOR = 0.005
"""Smaller differences from a baseline count as none: rounding elsewhere may flip a few rows."""
DIGITS = 6
STEPS = 100
"""Steps of the progress bar for each merge and each evaluation, which alone know their work."""
AGAIN = "restore the baseline, or record it again with --record"
DEVICE = "cpu"
"""The device on which the baselines were recorded, also on a machine with a GPU."""

ExpertsBySetting: TypeAlias = Mapping[str, tuple[str, ...]]
"""The names of the experts of each setting."""
Against: TypeAlias = Literal["average", "baseline"]
Scores: TypeAlias = dict[str, dict[str, tuple[float, ...]]]
"""By protocol and task: a score for each draw or, if nothing is drawn, part of the test rows."""


class Quality(Frozen):
    """A merger's options and scores in each setting, and why settings are left out.

    `fixture` is a hash of the experts, rows and draws.
    """

    merger: str
    options: dict[str, Scalar]
    fixture: str
    scores: dict[str, Scores]
    left_out: dict[str, str]


@dataclass(frozen=True)
class MergerDifference:
    """A merger minus another under one protocol, averaged over tasks and draws, and its interval.

    Differences are between -1 and 1; tables multiply them by 100.
    """

    setting: str
    against: Against
    protocol: str
    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> Literal["better", "same", "worse"]:
        """Same if the interval contains zero, or a difference from a baseline is below `FLOOR`."""
        small = self.against == "baseline" and abs(self.difference) < FLOOR
        if small or self.low <= 0 <= self.high:
            return "same"
        return "better" if self.difference > 0 else "worse"


@dataclass(frozen=True)
class Report:
    """All comparisons of a merger, and notes to print below them."""

    comparisons: tuple[MergerDifference, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is worse than the recorded baseline; worse than `average` is fine."""
        return not any(c.against == "baseline" and c.verdict == "worse" for c in self.comparisons)

    def __str__(self) -> str:
        headers = ("setting", "against", "protocol", "difference", "interval", "verdict")
        rows = []
        for c in self.comparisons:
            # prints zero without a sign
            mean, low, high = (points(100 * value, "+") for value in (c.difference, c.low, c.high))
            rows.append((c.setting, c.against, c.protocol, mean, f"[{low}, {high}]", c.verdict))
        align = ("left", "left", "left", "right", "right", "left")
        table = tabulate(rows, headers, tablefmt="simple", disable_numparse=True, colalign=align)
        legend = (
            f"In points, the mean over tasks with {HEADLINE_SHOTS} shots; {LEVEL:.0%} intervals "
            f"over draws, or {PARTS} parts of the test rows\nwhere nothing is drawn. "
            f"A difference from a baseline of less than {points(100 * FLOOR)} is 'same'."
        )
        return "\n".join([table, "", legend, *self.notes])


def quality(
    choice: Choice,
    *,
    baselines: Path = BASELINES,
    record: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Compare a merger with `average` and with `baselines`/NAME.json, or `record` that file.

    Each choice of options has its own file, named as in tables; a missing file is no failure.
    Raises BadOption if the defaults, or the settings that the merger takes, are no longer those
    recorded, BrokenRecord for a file that cannot be read or was recorded with other experts.
    """
    path = baselines / f"{safe_name(_name(choice))}.json"
    if record:
        check_place(baselines.absolute())
    baseline = None if record or not path.is_file() else read_baseline(path)
    if baseline is not None:
        _check_fresh(baseline, choice, path)
    settings = settings_for(choice)
    workload = Workload(progress)
    for part in ("measured", "reference"):
        workload.plan(part, 2 * STEPS * len(settings))
    with TemporaryDirectory() as folder:
        measured = measure(choice, Path(folder), workload.within("", "measured"), settings)
        if baseline is not None:
            _check_settings(measured, baseline, path)
        reference = measure(REFERENCE, Path(folder), workload.within("", "reference"), settings)
    if record:
        write_json(path, measured.model_dump(mode="json"), indent=1, sort_keys=True)
    comparisons: list[MergerDifference] = []
    for setting, scores in measured.scores.items():
        comparisons += compare(setting, "average", scores, reference.scores[setting])
        if baseline is not None and setting in baseline.scores:
            comparisons += compare(setting, "baseline", scores, baseline.scores[setting])
    return Report(tuple(comparisons), tuple(_notes(measured, baseline, path, record)))


# Measuring ---------------------------------------------------------------------------------


def settings_for(choice: Choice) -> ExpertsBySetting:
    """The settings, without experts of tasks whose kind a need of the merger does not support."""
    needs = needs_of(MERGERS[choice.name])

    def read(name: str) -> bool:
        (task,) = open_checkpoint(MINIATURES / name).tasks
        return all(TASKS[task].kind in need.kinds for need in needs)

    return {setting: tuple(filter(read, experts)) for setting, experts in SETTINGS.items()}


def measure(
    choice: Choice,
    folder: Path,
    progress: Progress | None = None,
    settings: ExpertsBySetting | None = None,
) -> Quality:
    """Merge the miniature experts in each setting, and evaluate the merges under every protocol.

    Merges and records are written below `folder`, which several mergers may share. A setting is
    left out if the merger refuses its experts with BadOption, or fewer than two remain; if all are
    left out, the first BadOption is raised. `settings` default to those of the merger.
    """
    merger = _asked(choice)
    scores: dict[str, Scores] = {}
    refused: dict[str, BadOption] = {}
    settings = settings or settings_for(choice)
    workload = Workload(progress)
    for setting, part in product(settings, BOTH):
        workload.plan((setting, part), STEPS)
    for setting, experts in settings.items():
        out = folder / safe_name(setting) / safe_name(_name(choice))
        base, *sources = (str(MINIATURES / name) for name in ("base", *experts))
        recipe = Recipe(experts=tuple(sources), base=base, merger=merger, device=DEVICE)
        merging, reading = (workload.within(setting, (setting, part)) for part in BOTH)
        try:
            if len(experts) < 2:
                raise BadOption(
                    f"{choice.name} can merge {len(experts)} of its experts, expected 2 or more"
                )
            merge(recipe, out=out, force=True, progress=merging)
        except BadOption as error:
            refused[setting] = error
        else:
            workload.finish(setting, (setting, BOTH[0]))
            scores[setting] = _scores(out, folder / "records", reading)
        for part in BOTH:
            workload.finish(setting, (setting, part))
    if not scores:
        raise next(iter(refused.values()))
    return Quality(
        merger=merger.name,
        options=dict(merger.options),
        fixture=fixture(),
        scores=scores,
        left_out={setting: str(error) for setting, error in refused.items()},
    )


def _asked(choice: Choice) -> Choice:
    """The choice with all options, defaults included."""
    return Choice(choice.name, resolved_options(MERGERS[choice.name], choice))


def _name(choice: Choice) -> str:
    """The merger with its non-default options, as tables name it."""
    return short_method(Recipe(experts=(), merger=_asked(choice)))


def _scores(merged: Path, records: Path, progress: Progress | None) -> Scores:
    """The scores of a merge on its tasks, under the default protocols of the harness."""
    usual = [protocol for protocol in PROTOCOLS.values() if protocol.by_default]
    # a user's protocols may not fit the embedded tasks
    ours = tuple(Choice(protocol.name) for protocol in usual if code_of(protocol.function) == "")
    fields = {"protocols": ours, "shots": (HEADLINE_SHOTS,), "device": DEVICE}
    run = Run(model=str(merged), output=str(records)).but(**fields)
    scores: Scores = {}
    for record in evaluate(run, progress=progress):
        if record.role == "merged":
            values = record.values(HEADLINE_SHOTS) or _by_part(record, records)
            rounded = tuple(round(value, DIGITS) for value in values)
            scores.setdefault(record.protocol, {})[record.task] = rounded
    return scores


def _by_part(record: Record, records: Path) -> list[float]:
    """The score on each of `PARTS` equal parts of the test rows, in order."""
    read = read_predictions(record, predictions_of(record, records))
    labels, predicted = read.labels, read.values[None, None]
    test = load_rows(*parse_task(record.task))
    units = kind_of(test.task).unit_counts(test)
    split = [rows.tolist() for rows in np.array_split(range(len(test)), PARTS)]
    parts = [(units_of(test, rows), units[rows]) for rows in split]
    return [score(test.task, predicted[u], labels[u], counts).value for u, counts in parts]


@cache
def fixture() -> str:
    """A hash of what every measurement shares: settings, weights of the miniatures, rows, draws."""
    names = ("base", *dict.fromkeys(name for experts in SETTINGS.values() for name in experts))
    opened = {name: open_checkpoint(MINIATURES / name) for name in names}
    digests = {name: digest(checkpoint.weights) for name, checkpoint in opened.items()}
    for name in {task for checkpoint in opened.values() for task in checkpoint.tasks}:
        task = TASKS[name]
        for split in (TRAINED_ON, task.reported):
            digests[f"{name}@{split}"] = load_rows(task, split).digest
    digests |= {setting: " ".join(experts) for setting, experts in SETTINGS.items()}
    digests["draws"] = (
        f"{HEADLINE_SHOTS} shots, {DEFAULTS.draws} from {DEFAULTS.seed}; {PARTS} parts"
    )
    return join_digests(digests)


# Comparing ---------------------------------------------------------------------------------


def compare(
    setting: str, against: Against, mine: Scores, other: Scores
) -> Iterator[MergerDifference]:
    """The difference of two mergers in a setting, under each protocol that both have scores for.

    Raises BrokenRecord unless they have the same tasks and draws.
    """
    shared = [protocol for protocol in mine if protocol in other]
    for protocol in sorted(shared, key=lambda name: (*PROTOCOL_ORDER, name).index(name)):
        pair = other[protocol], mine[protocol]
        counts, expected = ({task: len(scores[task]) for task in scores} for scores in pair)
        if counts != expected:
            place = f"{against}, {setting}, {protocol}"
            raise BrokenRecord(f"{place}: scores by task: {counts}, expected {expected}; {AGAIN}")
        paired = [np.subtract(values, other[protocol][t]) for t, values in mine[protocol].items()]
        yield MergerDifference(
            setting, against, protocol, *interval(np.mean(paired, axis=0).tolist())
        )


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """The mean of paired differences, and the lower and upper end of its Student's t interval.

    By hand: (0, 1, 2) has mean 1, standard error 1 / sqrt(3) and t 4.303, so 1 -+ 2.484.
    """
    mean = float(np.mean(differences))
    half = float(t.ppf((1 + LEVEL) / 2, len(differences) - 1) * sem(differences))
    return mean, mean - half, mean + half


def _notes(
    measured: Quality, baseline: Quality | None, path: Path, recorded: bool
) -> Iterator[str]:
    for setting, why in measured.left_out.items():
        yield f"{setting}: left out: {why}."
    if recorded:
        yield f"Recorded {path}."
    elif baseline is None:
        yield f"No baseline at {path}: record one with --record."
    else:
        mine, theirs = ({*chain(*result.scores.values())} for result in (measured, baseline))
        for name in sorted(mine ^ theirs):
            yield f"Only one of {path} and this evaluation has the protocol '{name}': not compared."


# Baselines ---------------------------------------------------------------------------------


def read_baseline(path: Path) -> Quality:
    """The recorded baseline of a merger. Raises BrokenRecord naming the file and the fault."""
    fields = read_json(path, "a baseline", error=BrokenRecord)
    return validated(Quality, fields, str(path), BrokenRecord)


def _check_fresh(baseline: Quality, choice: Choice, path: Path) -> None:
    """Raise unless a baseline has these options and today's experts, rows and draws."""
    current = _asked(choice).options
    for name in sorted({*current, *baseline.options}):
        old, new = (str(options.get(name, "absent")) for options in (baseline.options, current))
        if old != new:
            raise BadOption(f"{path} was recorded with {name} {old}, expected {new}; {AGAIN}")
    if baseline.fixture != fixture():
        raise BrokenRecord(
            f"{path} was recorded with other experts, rows or draws ({baseline.fixture[:12]}), "
            f"expected today's ({fixture()[:12]}); {AGAIN}"
        )


def _check_settings(measured: Quality, baseline: Quality, path: Path) -> None:
    """Raise BadOption if the merger now refuses a setting that its baseline has scores for."""
    for setting in baseline.scores:
        if setting not in measured.scores:
            raise BadOption(
                f"{path} has scores for '{setting}', which is left out now: "
                f"{measured.left_out.get(setting, 'no such setting')}; expected it to be merged"
            )
