"""Records -> lines: the part of a record that a board needs, one line for each number of shots.

A hundred thousand records hold gigabytes of drawn rows and single scores; their lines are small.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import fsum
from statistics import fmean
from typing import Any, TypeVar

import xxhash

from harness.data.shots import amount
from harness.evaluation.records import ADDED_OPTIONS, Record, RecordedRecipe, Role
from harness.evaluation.resamples import Resamples, to_estimate
from harness.options import resolve
from harness.passes.placement import FULL_PRECISION
from harness.readout import LAST_LINEAR, POOLED
from harness.registry import METRICS, PROTOCOLS, TASKS
from harness.reporting.stages import Stages, stages_of
from harness.stats.estimate import Estimate
from harness.text import counted
from harness.types import ALL, Choice, Scalar, Shots

T = TypeVar("T")
K = TypeVar("K")
HEADLINE_SHOTS = 5
"""The papers' number of shots."""
CURRENT = "current"
TUNED = "ft-classifier"
PROTOCOL_ORDER = (CURRENT, "knn", TUNED)
ROWS_PER_DIMENSION = "rows_per_dimension"
"""A fact of a protocol's fit: below 1, the rows do not determine it."""
_SAME = (
    "task", "metrics", "rows", "protocol", "model", "role", "head", "labels", "digest",
    "teachers", "heads_of",
)  # fmt: skip
"""Fields that a line copies unchanged from its record."""


@dataclass(frozen=True)
class Setting:
    """A group of columns: a protocol with its non-default options, and a number of shots.

    `rank` is the place of the protocol in PROTOCOL_ORDER.
    """

    rank: int
    protocol: str
    shots: Shots

    def __str__(self) -> str:
        return ", ".join(self.lines)

    @property
    def lines(self) -> list[str]:
        """The lines of text of a heading: the protocol and, if it adapts, the shots."""
        return [self.protocol, *([counted(self.shots, "shot")] if self.shots else [])]


def in_order(settings: Iterable[Setting]) -> list[Setting]:
    """Settings with Current first, then KNN, FT-Classifier and others; each by its shots."""
    return sorted(settings, key=lambda one: (one.rank, one.protocol, amount(one.shots)))


def shots_distance(shots: Shots, wanted: Shots | None) -> tuple[float, float]:
    """A sort key: the distance from the wanted number of shots (None: the papers'), then the
    smaller number.

    `all` counts as infinite. It is 0 from itself, although inf - inf is not a number.
    """
    wanted = HEADLINE_SHOTS if wanted is None else wanted
    return 0 if shots == wanted else abs(amount(shots) - amount(wanted)), amount(shots)


def headlines(settings: Iterable[Setting], wanted: Shots | None = None) -> dict[str, Setting]:
    """By protocol, in the order given, the setting whose shots are nearest to `wanted`."""
    return {
        protocol: min(group, key=lambda one: shots_distance(one.shots, wanted))
        for protocol, group in grouped(settings, lambda one: one.protocol).items()
    }


@dataclass(frozen=True, slots=True)
class Line:
    """One model on one task under one setting.

    Scores are times 100: `values` has the score of each draw, `parts` the mean of each metric over
    the draws, `interval` is the interval of the mean of `values` at `level`, `majority` the score
    of the best constant prediction. `facts` are what the protocol reports of its fits, averaged
    over draws and not scaled; `rows_per_dimension` is the least number of rows per dimension that a
    draw had, 1 where nothing is fitted. `options` has all options of the protocol as JSON.
    `identity` hashes all that the outputs depend on: lines of one name with other hashes are of
    different models. `conditions` are what must be equal in a column. `rows_of` is the hash of the
    test rows, `limit` how many were asked for; `train_limit` limits the rows that shots are drawn
    from. `adapted` says how labels of drawn rows were used, `transductive` that the protocol
    adapted to the scored rows, `made_on_test` that the model was made with them. `resamples` are
    the scores on resampled test units. `experts` are pairs of source and digest; `source` and
    `revision` are those of the test rows, `versions` those of the libraries. `method_options` are
    all options of a merge's methods, with the defaults, which names leave out. `trained` has for
    each expert, if known, the task, the seed, the seed of the head (-1: unknown) and a hash of all
    else about the training ('': unknown). `set` is the number of the set of experts
    (`with_set_numbers`).
    """

    task: str
    metrics: tuple[str, ...]
    rows: int
    protocol: str
    setting: Setting
    kind: str
    options: str
    model: str
    role: Role
    method: str
    premerge: tuple[str, ...]
    merger: str
    postmerge: tuple[str, ...]
    head: str
    labels: str
    preset: str
    digest: str
    identity: str
    rows_of: str
    limit: int | str
    source: str
    revision: str
    versions: tuple[tuple[str, str], ...]
    base: str
    base_digest: str
    experts: tuple[tuple[str, str], ...]
    trained: tuple[tuple[str, int, int, str], ...]
    teachers: tuple[str, ...]
    heads_of: tuple[str, ...]
    adapted: str
    train_limit: int | None
    transductive: bool
    made_on_test: bool
    values: tuple[float, ...]
    parts: tuple[tuple[str, float], ...]
    facts: tuple[tuple[str, float], ...]
    rows_per_dimension: float
    interval: tuple[float, float] | None
    level: float | None
    majority: float | None
    conditions: tuple[tuple[str, str], ...]
    method_options: tuple[tuple[str, str], ...]
    path: str
    resamples: Resamples
    set: int = 0

    @property
    def estimate(self) -> Estimate:
        """The score, as a fraction, on resampled test units."""
        return _estimate(self.resamples, self.values, self.metrics)

    @property
    def shots(self) -> Shots:
        """The number of shots; 0 where nothing is drawn."""
        return self.setting.shots

    @property
    def drawn(self) -> bool:
        """Whether the protocol adapts to drawn rows: some of many, not none and not all."""
        return self.shots not in (0, ALL)

    @property
    def half(self) -> str:
        """The half precision that models ran in; '' for float32."""
        return dict(self.conditions)["dtype"].replace(FULL_PRECISION, "")

    @property
    def name(self) -> str:
        """The task without its split."""
        return self.task.partition("@")[0]

    @property
    def split(self) -> str:
        """The split of the task."""
        return self.task.partition("@")[2]

    @property
    def tuned(self) -> bool:
        """Whether this is FT-Classifier Eval with a head tuned on rows that are not scored."""
        return self.protocol == TUNED and not self.transductive

    @property
    def made_of(self) -> tuple[str, ...]:
        """The method and the digests of base and experts; () where the record has none.

        Equal for one encoder under the heads of several tasks, while `digest` differs by head.
        """
        merged = (self.base_digest, *(digest for _, digest in self.experts))
        return (self.method, *merged) if any(merged) else ()

    @property
    def saw_the_scored(self) -> bool:
        """Whether the protocol adapted to the scored rows, or the model was made with them."""
        return self.transductive or self.made_on_test


@lru_cache(maxsize=2**12)
def _estimate(samples: Resamples, values: tuple[float, ...], metrics: tuple[str, ...]) -> Estimate:
    # cached: a board compares each row with many others
    return to_estimate(samples, [value / 100 for value in values], metrics)


def lines_of(records: Iterable[tuple[str, Record]]) -> Iterator[Line]:
    """The lines of (file, record) pairs; equal values are stored once, to save memory."""
    once: dict[Any, Any] = {}

    def shared(value: T) -> T:
        stored: T = once.setdefault((type(value), value), value)  # True is not 1
        return stored

    labels: dict[tuple[str, str], str] = {}
    kind = cache(kind_name)
    for path, record in records:
        options = json.dumps(record.options, sort_keys=True)
        rank = (*PROTOCOL_ORDER, record.protocol).index(record.protocol)
        key = record.protocol, options
        if key not in labels:
            labels[key] = protocol_label(record)
        fields = _fields(record) | {"path": path, "options": options}
        fields |= {"kind": kind(record.task, record.metrics)}
        fields = {name: shared(value) for name, value in fields.items()}
        for shots in record.shots:
            setting = shared(Setting(rank, labels[key], shots or 0))
            yield Line(**fields, setting=setting, **_fields_by_shots(record, shots))


def _fields(record: Record) -> dict[str, Any]:
    """The fields of a line that do not depend on the number of shots."""
    adaptation, limit = record.adaptation, record.settings.get("limit")
    return {name: getattr(record, name) for name in _SAME} | {
        **_method_names(record),
        "preset": record.preset or "",
        "identity": _identity(record),
        "rows_of": str(record.dataset.get("digest", "")),
        "limit": ALL if limit is None else int(limit),
        "source": str(record.dataset.get("source") or ""),
        "revision": str(record.dataset.get("revision") or ""),
        "versions": tuple(record.versions.items()),
        "base": record.base.source if record.base else "",
        "base_digest": record.base.digest if record.base else "",
        "experts": tuple((expert.source, expert.digest) for expert in record.experts),
        "trained": _trained(record),
        "adapted": adaptation.labels if adaptation else "",
        "train_limit": record.settings.get("train_limit"),
        "transductive": adaptation is not None and adaptation.transductive,
        "made_on_test": record.transductive,
        "conditions": tuple(conditions_of(record).items()),
        "method_options": _method_options(record.recipe),
    }


def _method_options(recipe: RecordedRecipe | None) -> tuple[tuple[str, str], ...]:
    """The options of a recipe's methods, without seeds and tuned ones, and the hash of the
    plug-ins' code. Integers are written as floats: 1 is 1.0."""
    if recipe is None:
        return ()
    omitted = {"seed", *(name.rpartition(".")[2] for name in recipe.tuned)}
    options = (
        (f"{stage.name}.{name}", str(float(value) if type(value) is int else value))
        for _, stage in recipe.stages
        for name, value in stage.options.items()
        if name not in omitted
    )
    return (*options, *([("code", recipe.code[:12])] if recipe.code else []))


def _method_names(record: Record) -> dict[str, Any]:
    """The names of the method and its stages; a tuned option is named without its value.

    So merges of several sets of experts, each tuned to another value, are of one method. By hand:
    `dare[ties:density=0.1,scale=0.4]` is `dare[ties:density=0.1] (scale tuned)`.
    """
    method, recipe = record.method, record.recipe
    stages = Stages((), method if record.role in ("merged", "reference") else "")
    if recipe is not None:
        tuned = "".join(f" ({name} tuned)" for name in recipe.tuned)
        method = f"{stages_of(recipe, recipe.tuned, method)}{tuned}" if tuned else method
        stages = stages_of(recipe, recipe.tuned, record.method, mark_tuned=True)
    return {"method": method, **stages._asdict()}


def _trained(record: Record) -> tuple[tuple[str, int, int, str], ...]:
    """`trained` of a line: task, seed, head seed and training of each expert; () unless task and
    seed are known for all."""
    trained = [
        (one.task, one.seed, -1 if one.head_seed is None else one.head_seed, one.training or "")
        for one in record.experts
        if one.task is not None and one.seed is not None
    ]
    return tuple(trained) if len(trained) == len(record.experts) else ()


def _fields_by_shots(record: Record, shots: Shots | None) -> dict[str, Any]:
    """The fields of a line that depend on the number of shots; scores times 100."""
    scores = [score for score in record.scores if score.shots == shots]
    interval = next((one for one in record.intervals if one.shots == shots), None)
    means = {n: 100 * fsum([one.parts[n] for one in scores]) / len(scores) for n in scores[0].parts}
    return {
        "values": tuple([100 * score.value for score in scores]),
        "parts": tuple(means.items()),
        "rows_per_dimension": min(score.facts.get(ROWS_PER_DIMENSION, 1.0) for score in scores),
        "facts": tuple(
            (name, fmean(score.facts[name] for score in scores if name in score.facts))
            for name in scores[0].facts
        ),
        "resamples": next(one for one in record.resamples if one.shots == shots),
        "interval": interval and (100 * interval.low, 100 * interval.high),
        "level": interval and interval.level,
        "majority": record.majority and 100 * record.majority.value,
    }


def _identity(record: Record) -> str:
    """A hash that tells models of one name apart: of weights, content, teachers and preset."""
    parts = (record.digest, record.content, *record.teachers, record.preset or "")
    return str(xxhash.xxh3_64_hexdigest(" ".join(parts).encode()))


def conditions_of(record: Record) -> dict[str, str]:
    """What must be equal for two scores to be comparable, under the names that messages use."""
    rows = f"{record.rows} rows"
    if record.settings.get("limit") == record.rows:  # a larger limit takes all rows
        option = "" if record.settings.get("drawn") else " --first"
        rows += f" (--limit {record.rows}{option})"
    if (left_out := record.settings.get("left_out")) is not None:
        rows += f" (in whole batches, shuffled by {', '.join(left_out)})"
    # embedding models have no last layer: their embeddings share a column with the input of it
    features = record.settings.get("features")
    conditions: dict[str, Any] = {
        "test": f"{rows} {str(record.dataset.get('digest', ''))[:12]}".strip(),
        "max_length": record.settings.get("max_length"),
        "features": LAST_LINEAR.name if str(features).startswith(POOLED) else features,
        "metrics": "+".join(record.metrics),
        "dtype": record.settings.get("dtype", FULL_PRECISION),
        "device": record.settings.get("device", "any"),
        "documents": str(record.settings.get("documents", "none"))[:12],
    }
    if pool := record.dataset.get("drawn_from"):  # older records lack it
        limit = record.settings.get("train_limit")
        option = f" (--train-limit {limit})" if limit else ""
        conditions |= {"shots drawn from": f"rows {str(pool)[:12]}{option}"}
    if record.adaptation is not None:
        conditions |= {key: record.settings.get(key) for key in ("draws", "seed")}
        conditions |= {"stratified": record.settings.get("stratified", True)}
    if (code := record.settings.get("code")) is not None:  # of plug-ins
        conditions |= {"code": str(code)[:12]}
    defaults = ADDED_OPTIONS.get(record.protocol, {})
    conditions |= {key: record.options.get(key, value) for key, value in defaults.items()}
    return {key: str(value) for key, value in conditions.items()}


def limit_options(*limits: int | str, option: str = "--limit") -> str:
    """The options that choose one of several limits, `--limit 50 or --limit all`; '' for one."""
    values = sorted({*map(str, limits)})
    return " or ".join(f"{option} {value}" for value in values) if len(values) > 1 else ""


def protocol_label(record: Record) -> str:
    """The protocol with its non-default options; with all where its plug-in is not loaded."""
    name, default = record.protocol, dict[str, Scalar]()
    if name in PROTOCOLS:
        default = resolve("protocol", Choice(name), PROTOCOLS[name].function)
    return str(Choice(name, {k: v for k, v in record.options.items() if v != default.get(k)}))


def kind_name(task: str, metrics: Sequence[str]) -> str:
    """The kind of a task: as registered, else the only kind that its metrics share, else ''."""
    name = task.partition("@")[0]
    if name in TASKS:
        return TASKS[name].kind
    fit = [{*METRICS[metric].kinds} for metric in metrics if metric in METRICS]
    common = set.intersection(*fit) if fit else set()
    return str(next(iter(common))) if len(common) == 1 else ""


def grouped(things: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Things by their key; groups and things keep their order."""
    groups: dict[K, list[T]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups


def tasks_by(lines: Iterable[Line]) -> dict[str, Line]:
    """The first line of every task, in the order of the tasks."""
    return {task: group[0] for task, group in grouped(lines, lambda line: line.task).items()}
