"""Predictions -> Score, on scikit-learn and scipy; a task's score also as an `evaluate` module."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, TypeAlias

import numpy as np

from harness.entries import Metric
from harness.errors import BadData, BrokenPlugin, NotFinite
from harness.functions import is_ours
from harness.kinds import IGNORED, check_labels, kind_of
from harness.kinds.tagging import OUTSIDE, entities
from harness.plugins import calling
from harness.registry import METRICS, metric
from harness.types import Array64, KindName, Score, Task, Units

CLASSES: tuple[KindName, ...] = ("classification",)
VALUES: tuple[KindName, ...] = ("regression",)
BITS: tuple[KindName, ...] = ("multilabel",)
TAGS: tuple[KindName, ...] = ("tagging",)
SEQEVAL = "https://github.com/chakki-works/seqeval"
DATALESS = "https://github.com/bloomberg/dataless-model-merging"


# Why true labels leave a metric undefined ---------------------------------------------------


def _no_positive(labels: Array64) -> str | None:
    return None if (labels == 1).any() else "no row of its second class"


def _none_holds(labels: Array64) -> str | None:
    if labels.ndim > 1 and not (labels == 1).any():
        return "no row that is labelled with any class"
    return None


def _constant(labels: Array64) -> str | None:
    return None if len(labels) > 1 and np.ptp(labels) > 0 else "one and the same label everywhere"


def _no_entity(labels: Sequence[Sequence[str]]) -> str | None:
    return None if any(tag != OUTSIDE for tags in labels for tag in tags) else "no entity"


def _no_iob2(labels: Sequence[Sequence[str]]) -> str | None:
    begun = [tags[place][0] for tags in labels for _, place, _ in entities(tags)]
    bad = f"entities that begin with I- ({begun.count('I')} of {len(begun)}), as in IOB1,"
    return bad if "I" in begun else _no_entity(labels)


# Metrics -----------------------------------------------------------------------------------


@metric("accuracy", kinds=CLASSES)
def accuracy(predicted: Array64, labels: Array64) -> float:
    """Share of rows whose predicted label is the true one."""
    # as scikit-learn, whose checks take a hundred times as long
    return float(np.mean(predicted == labels))


@metric("f1", kinds=CLASSES, classes=2, undefined=_no_positive)
def f1(predicted: Array64, labels: Array64) -> float:
    """F1 of the positive class, index 1; 0 when it is neither present nor predicted."""
    return _f1(predicted, labels)


@metric("macro_f1", kinds=(*CLASSES, *BITS), undefined=_none_holds)
def macro_f1(predicted: Array64, labels: Array64) -> float:
    """Plain mean of the F1 of every class that occurs or is predicted.

    For multi-label rows, [rows, classes]: of the classes that hold for any row, each over the rows
    that have a label for it (RegMean, arXiv:2212.09849).
    """
    return _f1(predicted, labels, "macro") if labels.ndim == 1 else _mean_f1(predicted, labels)


@metric("micro_f1", kinds=CLASSES)
def micro_f1(predicted: Array64, labels: Array64) -> float:
    """F1 of all classes counted together: the accuracy, as every row has exactly one class."""
    return _f1(predicted, labels, "micro")


@metric("matthews", paper="doi:10.1016/0005-2795(75)90109-9", kinds=CLASSES, undefined=_constant)
def matthews(predicted: Array64, labels: Array64) -> float:
    """Matthews correlation coefficient; 0 for constant predictions."""
    from sklearn.metrics import matthews_corrcoef

    if np.ptp(predicted) == 0 or np.ptp(labels) == 0:
        return 0.0
    return float(matthews_corrcoef(labels, predicted))


@metric("pearson", kinds=VALUES, undefined=_constant)
def pearson(predicted: Array64, labels: Array64) -> float:
    """Pearson correlation; 0 when either side is constant."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, predicted, labels)


@metric("spearman", kinds=VALUES, undefined=_constant)
def spearman(predicted: Array64, labels: Array64) -> float:
    """Spearman rank correlation; 0 when either side is constant."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, predicted, labels)


@metric("span_f1", paper=SEQEVAL, kinds=TAGS, undefined=_no_entity)
def span_f1(predicted: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> float:
    """F1 of whole entities, all types counted together; 0 where none occurs or is predicted.

    seqeval's default mode, which counts as the CoNLL script: for IOB1, IOB2 and BIOES alike.
    """
    from seqeval.metrics import f1_score

    return float(f1_score(labels, predicted, average="micro", zero_division=0))


@metric("span_f1_strict", paper=SEQEVAL, kinds=TAGS, undefined=_no_iob2, prefixes="BI")
def span_f1_strict(predicted: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> float:
    """F1 of whole entities that begin with B- and continue with I- of the same type.

    seqeval's strict mode with IOB2: a span that begins with I- is no entity.
    """
    from seqeval.metrics import f1_score
    from seqeval.scheme import IOB2

    made = f1_score(labels, predicted, average="micro", mode="strict", scheme=IOB2, zero_division=0)
    return float(made)


@metric("span_f1_dataless", paper=DATALESS, kinds=TAGS, undefined=_no_entity, prefixes="BI")
def span_f1_dataless(predicted: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> float:
    """F1 of whole entities as RegMean's published code finds them.

    An I- outside of entities is an entity of one word. An entity that begins with B- continues
    over I- of any type, and has the type of its last word.
    """
    common = total = 0
    for guesses, truth in zip(predicted, labels, strict=True):
        predicted_spans, true_spans = loose_spans(guesses), loose_spans(truth)
        common += len(predicted_spans & true_spans)
        total += len(predicted_spans) + len(true_spans)
    return 2 * common / total if total else 0.0


Span: TypeAlias = tuple[str, int, int]
"""The type of an entity, its first word, and the word after its last."""


def loose_spans(tags: Sequence[str]) -> set[Span]:
    """The entities that `span_f1_dataless` counts."""
    spans, start = set(), None
    for place, tag in enumerate([*tags, OUTSIDE]):
        if start is not None and tag[0] != "I":
            spans.add((tags[place - 1][2:], start, place))
            start = None
        if tag[0] == "B":
            start = place
        elif tag[0] == "I" and start is None:
            spans.add((tag[2:], place, place + 1))
    return spans


def strict_spans(tags: Sequence[str]) -> set[Span]:
    """The entities that `span_f1_strict` counts."""
    from seqeval.scheme import IOB2, Entities

    return {(span.tag, span.start, span.end) for span in Entities([[*tags]], IOB2).entities[0]}


def _f1(predicted: Array64, labels: Array64, average: str = "binary") -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predicted, average=average, zero_division=0))


def _mean_f1(predicted: Array64, labels: Array64) -> float:
    # not by scikit-learn: with many classes, its checks of each take most of the time
    guessed, true = (labels != IGNORED) & (predicted == 1), labels == 1
    common, total = (guessed & true).sum(axis=0), guessed.sum(axis=0) + true.sum(axis=0)
    present = true.any(axis=0)
    return float(np.mean(2 * common[present] / total[present])) if present.any() else 0.0


def _correlation(function: Any, predicted: Array64, labels: Array64) -> float:
    if len(labels) < 2 or np.ptp(predicted) == 0 or np.ptp(labels) == 0:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns of near-constant input; the value is good
        value = float(function(predicted, labels).statistic)
    return value if np.isfinite(value) else 0.0


def check_metrics(task: Task) -> None:
    """Raise BadData, before any work, for a metric that does not fit the task's labels.

    Raises UnknownName, with the near miss, for a metric that does not exist.
    """
    check_labels(task)
    for name in task.metrics:
        entry = METRICS[name]
        if task.kind not in entry.kinds:
            raise BadData(
                f"'{task}' is a {task.kind} task, not one for {name}; expected {_fit(task)}"
            )
        unscored = [tag for tag in task.labels if tag != OUTSIDE and tag[0] not in entry.prefixes]
        if entry.prefixes and unscored:
            raise BadData(
                f"task '{task}' has the tag {unscored[0]}, which {name} does not score; expected "
                f"{', '.join(f'{prefix}-TYPE' for prefix in entry.prefixes)}, or span_f1"
            )
        if entry.classes not in (None, len(task.labels)):
            instead = "use macro_f1 or micro_f1" if name == "f1" else f"expected {_fit(task)}"
            raise BadData(
                f"'{task}' has {len(task.labels)} classes, {name} is for {entry.classes}; {instead}"
            )


def check_scored(task: Task, labels: Array64, units: Units | None, where: str) -> None:
    """Raise BadData if the true labels of all units leave a metric of the task undefined.

    Predictions leave none undefined: with constant ones, a correlation is 0.
    """
    values = kind_of(task).for_metrics(task, labels, units)
    for name in task.metrics:
        entry = METRICS[name]
        fault = entry.undefined(values) if entry.undefined else None
        if fault is None and entry.undefined is None and not _is_number(entry, values):
            fault = "labels for which even right predictions have no score"
        if fault:
            rows = len(labels) if units is None else len(units)
            scored = "the one row that is" if rows == 1 else f"{rows} rows that are"
            raise BadData(
                f"{where} has {fault} in {scored} scored, "
                f"so {name} is undefined; expected other rows, or another metric in --metrics"
            )


def value_of(entry: Metric, predicted: Any, labels: Any) -> float:
    """The value of a metric, given predictions and labels in the form that it reads.

    A plug-in's metric gets copies: what it writes into them would reach the next metric. Raises
    BrokenPlugin if it returns more than 1, such as points or an error to be small.
    """
    function = entry.function
    if is_ours(function):
        return float(function(predicted, labels))
    with calling(f"metric {entry.name}", function):
        value = float(function(deepcopy(predicted), deepcopy(labels)))
        if 1 + 1e-6 < value < np.inf:
            raise BrokenPlugin(
                f"metric {entry.name} returned {value:g}, expected at most 1, and the more the "
                "better: scores are printed x100"
            )
        return value


def _is_number(entry: Metric, values: Any) -> bool:
    """Whether a metric is finite when the true labels are predicted."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(value_of(entry, values, values)))


def _fit(task: Task) -> str:
    """Names of the metrics that fit a task's labels."""
    fit = [
        name
        for name, entry in METRICS.items()
        if task.kind in entry.kinds and entry.classes in (None, len(task.labels))
    ]
    return ", ".join(fit)


def finished(task: Task, predicted: Array64, seen: Any) -> Array64:
    """Predictions, with the kind's default for units that a model did not see: `seen` [units]."""
    if seen is None or seen.all():
        return predicted
    return np.where(seen, predicted, kind_of(task).unseen(task))


def score(task: Task, predicted: Array64, labels: Array64, units: Units | None = None) -> Score:
    """The task's metrics on predictions and labels of all units; `value` is their plain mean.

    `units` is the number of units of each row, which metrics of tags need. Raises BadData if the
    labels leave a metric undefined, which is no score of 0, and NotFinite for NaN or infinity.
    """
    check_scored(task, labels, units, str(task))
    pair = [kind_of(task).for_metrics(task, values, units) for values in (predicted, labels)]
    parts = {name: value_of(METRICS[name], *pair) for name in task.metrics}
    if bad := [name for name, value in parts.items() if not np.isfinite(value)]:
        raise NotFinite(f"metric '{bad[0]}' of {task} is {parts[bad[0]]}, expected a number")
    rows = len(labels) if units is None else len(units)
    return Score(float(np.mean(list(parts.values()))), parts, rows)


def evaluation_module(task: Task) -> Any:
    """The task's score as a module of the `evaluate` library, which needs no download.

    For multi-label tasks, predictions and references are lists with a value for each class; for
    tags they are the tag index of every word, and `units` is the number of words of each row.
    """
    import evaluate
    from datasets import Features, List, Value

    feature = List(Value("float64")) if kind_of(task).positional else Value("float64")

    class TaskMetric(evaluate.Metric):  # type: ignore[misc]  # evaluate has no types
        def _info(self) -> Any:
            return evaluate.MetricInfo(
                description=f"{', '.join(task.metrics)} of {task.name}",
                citation="",
                features=Features({"predictions": feature, "references": feature}),
            )

        def _compute(
            self, predictions: Any, references: Any, units: Units | None = None
        ) -> dict[str, float]:
            result = score(task, np.asarray(predictions), np.asarray(references), units)
            return {**result.parts, "score": result.value}

    return TaskMetric(keep_in_memory=True)
