"""The rows of a run: the test rows of each task, its draws, and the protocols that read them."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.data.apart import shared_with_train, texts_digest
from harness.data.metrics import check_metrics, check_scored, score
from harness.data.rows import load_rows, take, units_of
from harness.data.shots import amount, draw, left_out
from harness.data.splits import parse_task, share_rows
from harness.entries import EvaluationProtocol
from harness.errors import BadOption, BadRecipe
from harness.evaluation.predictions import Predicted, left_for
from harness.evaluation.records import DrawScore
from harness.evaluation.run import Run
from harness.kinds import kind_of
from harness.options import options, resolve
from harness.presets import faithful, metrics_of, preset, task_under_preset
from harness.readout import FEATURE_READOUTS, LAST_LINEAR, Readout
from harness.registry import METRICS, PROTOCOLS
from harness.types import ALL, TRAINED_ON, Choice, Draw, Predictions, Rows, Scalar, Task, Units


@dataclass(frozen=True)
class ProtocolConfig:
    """A protocol with all its options."""

    entry: EvaluationProtocol
    options: dict[str, Scalar]

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def adapts(self) -> bool:
        return self.entry.adapts != "nothing"

    @property
    def needs_teacher(self) -> bool:
        """Whether something is fitted to the outputs of teachers."""
        return self.entry.adapts == "unlabeled"

    @property
    def transductive(self) -> bool:
        """Whether it adapts to the test rows themselves."""
        function = self.entry.transductive
        return self.adapts and function is not None and function(**self.options)

    @property
    def has_draws(self) -> bool:
        """Whether it adapts to rows that are drawn from the pool."""
        return self.adapts and not self.transductive

    def drawing(self, run: Run) -> Run:
        """The run with the shots and draws that this protocol uses."""
        changes = {"shots": (ALL,), "draws": 1, "stratified": True}
        return run.model_copy(update=changes) if self.entry.all_rows else run

    @property
    def pool_key(self) -> tuple[bool, int]:
        """The key in `TaskSplit.pools` of the pool that it adapts to."""
        return self.entry.all_rows, self.outside_ratio

    @property
    def outside_ratio(self) -> int:
        """How many times as many words outside entities (O) are drawn as words of any other tag."""
        function = self.entry.outside
        return 1 if function is None else function(**self.options)

    @property
    def readout(self) -> Readout:
        """Where its features are taken, unless a preset has another readout."""
        function = self.entry.features
        return LAST_LINEAR if function is None else FEATURE_READOUTS[function(**self.options)]

    @cached_property
    def unusual(self) -> dict[str, Scalar]:
        """The options whose values are not the defaults."""
        return unusual_of(self.entry.function, self.options)


def unusual_of(function: Callable[..., Any], chosen: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The chosen options of a function whose values are not the defaults."""
    by_name = options(function)
    return {name: value for name, value in chosen.items() if value != by_name[name].default}


@dataclass(frozen=True)
class ShotPool:
    """All rows of the training split that have a unit in any draw, and the draws.

    `numbers` are the numbers of the rows in the split, `places` those of their units.
    """

    rows: Rows
    draws: tuple[Draw, ...]
    numbers: tuple[int, ...]
    places: tuple[int, ...]

    @cached_property
    def units(self) -> dict[str, list[list[int]]]:
        """By seed, the units that the largest number of shots took: a list for each class.

        Units are numbered in the split. In draws that are not stratified, there is one list, in
        the order of the draw. `all` shots, which took every unit, do not count.
        """
        most = max((draw.shots for draw in self.draws if draw.shots != ALL), default=0)
        return {
            str(draw.seed): [
                [self.places[row] for row in rows]
                for rows in ((draw.order,) if draw.order else draw.rows)
            ]
            for draw in self.draws
            if draw.shots == most
        }

    @cached_property
    def sentences(self) -> dict[str, dict[str, list[int]]]:
        """By number of shots and seed, the sentences that a head is tuned on: rows of the split.

        Fewer shots need not take the first of more. `all` shots are left out.
        """
        by_shots: dict[str, dict[str, list[int]]] = {}
        for drawn in self.draws:
            if drawn.shots != ALL:
                rows = self._rows([example[0] for example in drawn.examples])
                by_shots.setdefault(str(drawn.shots), {})[str(drawn.seed)] = rows
        return by_shots

    def count(self, sentences: bool) -> int:
        """How many rows have a unit in any draw: in its `sentences`, or else in its drawn units."""
        return len({*self._rows([*units_in(self.draws, sentences)])})

    def _rows(self, units: Sequence[int]) -> list[int]:
        """The row of the split that each unit of the pool belongs to."""
        row_of = np.repeat(self.numbers, kind_of(self.rows.task).unit_counts(self.rows))
        return [int(row_of[unit]) for unit in units]


def units_in(draws: Sequence[Draw], sentences: bool) -> set[int]:
    """All units of the draws: those of their `sentences`, or else the drawn units."""
    return {
        unit
        for draw in draws
        for part in (draw.examples if sentences else draw.rows)
        for unit in part
    }


MAJORITIES: dict[object, DrawScore] = {}
"""The scores of the best constant predictions, by labels and metrics. They are kept because a study
scores the same rows many times, and a multi-label task of twelve classes has thirteen candidates,
each with twelve F1 scores."""


@dataclass(frozen=True)
class TaskSplit:
    """A task of a run: its test rows, and the rows that are drawn to adapt to.

    The key of a pool says whether it has all rows, and how many times as many words outside
    entities it has as words of any other tag (mostly 1). `drawn_from` is the digest of all rows
    that pools are drawn from. `left_out` has, by the seed of a draw, the test rows that are not
    scored. `data_dir` is the folder of local data, `max_length` the number of tokens that are read
    of a row. `apart`: all protocols read each of the two texts of a row by itself.
    """

    task: Task
    split: str
    test: Rows
    pools: Mapping[tuple[bool, int], ShotPool] = field(default_factory=dict)
    drawn_from: str = ""
    left_out: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    data_dir: str | None = None
    max_length: int = 0
    apart: bool = False

    def __post_init__(self) -> None:
        """Raise BadData if the scored labels leave a metric undefined."""
        for seed in self.left_out or (0,):
            scored, units = self._scored(seed)
            check_scored(self.task, self.test.labels[scored], units, self.name)

    @cached_property
    def shared(self) -> int | None:
        """How many test rows have a text that is also in the training rows; None if not known."""
        return shared_with_train(self.test, self.data_dir)

    @cached_property
    def texts_digest(self) -> str:
        """A hash of all texts of the split, by the columns that the task has without a preset."""
        return texts_digest(*parse_task(self.name), self.data_dir)

    @property
    def dataset_facts(self) -> dict[str, Any]:
        """What a record states about the test rows, besides their origin and digest."""
        unfair = {name: [*shares] for name, shares in self.test.skewed_labels.items()}
        return {**kind_of(self.task).facts(self.test), **({"unfair": unfair} if unfair else {})}

    @cached_property
    def one_text_each(self) -> tuple[Rows, ...]:
        """The test rows with their first text alone, and with their second text alone."""
        texts = zip(*self.test.texts, strict=True)
        return tuple(
            replace(self.test, texts=(*zip(column),), digest=f"{self.test.digest} text {place}")
            for place, column in enumerate(texts)
        )

    @cached_property
    def majority(self) -> DrawScore:
        """The score of the best constant prediction on the test rows."""
        scored, units = self._scored(None)
        hasher = hashlib.blake2b()
        for part in (scored, units, self.test.labels):
            hasher.update(repr((part.shape, part.dtype)).encode() + part.tobytes())
        metrics = tuple((name, METRICS[name].function) for name in self.task.metrics)
        key = (self.task.kind, self.task.labels, metrics, hasher.digest())
        if key not in MAJORITIES:
            constants = kind_of(self.task).constants(self.task, self.test.labels)
            scores = (self.score(Predictions(constant)) for constant in constants)
            MAJORITIES[key] = max(scores, key=lambda score: score.value)
        return MAJORITIES[key]

    def score(self, prediction: Predictions) -> DrawScore:
        """The score of the predictions of one draw on the rows that are scored for its seed."""
        drawn = prediction.draw
        scored, units = self._scored(drawn.seed if drawn else None)
        result = score(self.task, prediction.values[scored], self.test.labels[scored], units)
        return DrawScore(
            value=result.value,
            parts=dict(result.parts),
            shots=drawn.shots if drawn else None,
            seed=drawn.seed if drawn else None,
            facts=dict(prediction.facts),
        )

    def predicted(self, predictions: Sequence[Predictions]) -> Predicted:
        """The predictions of all draws with the labels and units of the test rows."""
        draws = [prediction.draw for prediction in predictions]
        keys = [(draw.shots, draw.seed) if draw else (None, None) for draw in draws]
        return Predicted(
            task=self.task,
            digest=self.test.digest,
            units=kind_of(self.task).unit_counts(self.test),
            labels=self.test.labels,
            values=dict(zip(keys, (prediction.values for prediction in predictions), strict=True)),
            left_out=self.left_out,
            documents=self.test.documents,
        )

    def _scored(self, seed: int | None) -> tuple[npt.NDArray[np.bool_], Units]:
        """A mask of the units that are scored for this seed, and the units of each scored row.

        None is the seed of predictions without a draw.
        """
        units = kind_of(self.task).unit_counts(self.test)
        rows = np.ones(len(self.test), dtype=np.bool_)
        rows[[*left_for(self.left_out, seed)]] = False
        return np.repeat(rows, units), units[rows]

    @property
    def name(self) -> str:
        return f"{self.task.name}@{self.split}"


REPORTED_DESIGN_EFFECT = 2
"""Kish's design effect from which on repeated inputs are warned of: 2 is that of every row twice.
Published test splits have 1.4 or less."""
MOST_DRAWS = 1000
"""The most draws of a run: the mean over more draws is no more precise in practice."""


def protocols_of(run: Run) -> list[ProtocolConfig]:
    """The protocols of a run with their options checked.

    If the run names none: those of its preset or, without any, those that are on by default.
    """
    usual = tuple(name for name, entry in PROTOCOLS.items() if entry.by_default)
    names = preset(run.preset).protocols or usual
    chosen = run.protocols or tuple(Choice(name) for name in names)
    if run.draws < 1 or not run.shots or min(map(amount, run.shots)) < 1:
        raise BadRecipe(f"shots are {run.shots} with {run.draws} draws; expected 1 or more of each")
    if run.draws > MOST_DRAWS:
        raise BadRecipe(f"draws is {run.draws:,}, expected {MOST_DRAWS:,} at most")
    protocols = [configured(faithful(choice, run.preset)) for choice in chosen]
    for protocol in protocols:
        if LAST_LINEAR not in (protocol.readout, readout := preset(run.preset).readout):
            raise BadOption(
                f"{protocol.name} has {protocol.readout.option}, and the preset '{run.preset}' "
                f"reads '{readout.name}' of every model; leave out one of them"
            )
        if protocol.outside_ratio != 1 and not run.stratified:
            raise BadOption(
                f"{protocol.name} draws {protocol.outside_ratio} times as many words outside "
                "entities, and unstratified draws ignore labels; leave out the option or "
                "--unstratified"
            )
    return protocols


def configured(choice: Choice) -> ProtocolConfig:
    """The protocol of a choice with all its options, which are checked."""
    entry = PROTOCOLS[choice.name]
    options = resolve("protocol", choice, entry.function)
    if entry.check is not None:
        entry.check(**options)
    return ProtocolConfig(entry, options)


def task_split(run: Run, name: str, protocols: Sequence[ProtocolConfig]) -> TaskSplit:
    """The rows of a task and, if a protocol adapts to drawn rows, the draws from `train90`.

    Raises BadOption for a protocol with an option about tags if the task has none, an option about
    whole rows if it is of words, or a need of two texts if rows have others; BadRecipe if the
    scored split shares rows with `train90`.
    """
    task, split = parse_task(name)
    task = task_under_preset(task, run.preset)
    if metrics := run.metrics or metrics_of(task, run.preset):
        task = replace(task, metrics=tuple(metrics))
        check_metrics(task)
    for protocol in protocols:
        _check_units(protocol, task)
    run_preset = preset(run.preset)
    test = load_rows(task, split, folder=run.data_dir, limit=run.limit, first=run.first)
    _warn_of_copies(test)
    for protocol in protocols:
        _check_texts(protocol, test)
    seeds = range(run.seed, run.seed + run.draws)
    excluded = left_out(test, run_preset.test_batch, seeds) if run_preset.test_batch else {}
    if not any(protocol.has_draws for protocol in protocols):
        apart = all(protocol.entry.apart for protocol in protocols)
        return TaskSplit(task, split, test, left_out=excluded, data_dir=run.data_dir, apart=apart)
    if share_rows(task, split, TRAINED_ON):
        raise BadRecipe(
            f"shots are drawn from {task}@{TRAINED_ON}, which shares rows with the scored split "
            f"{split}; expected another"
        )
    train = load_rows(task, TRAINED_ON, folder=run.data_dir, limit=run.train_limit)
    pools = {}
    for protocol in {p.pool_key: p for p in protocols if p.has_draws}.values():
        drawing = protocol.drawing(run)
        shots = sorted(set(drawing.shots), key=amount)
        pool, draws = draw(
            train,
            shots,
            seeds,
            run_preset.reserved,
            protocol.outside_ratio,
            stratified=drawing.stratified,
        )
        places = tuple(units_of(train, pool).tolist())
        pools[protocol.pool_key] = ShotPool(take(train, pool), tuple(draws), tuple(pool), places)
    return TaskSplit(task, split, test, pools, train.digest, excluded, run.data_dir)


def _warn_of_copies(test: Rows) -> None:
    """Warn of test rows with many equal inputs."""
    copies = Counter(test.texts)
    if (design := sum(many**2 for many in copies.values()) / len(test)) >= REPORTED_DESIGN_EFFECT:
        warnings.warn(
            f"{test.task}@{test.split} has {len(test)} rows and {len(copies)} different inputs, "
            f"one of them {max(copies.values())} times: intervals take each row for an observation "
            f"of its own, and are up to {sqrt(design):.1f} times too narrow",
            stacklevel=3,
        )


def _check_texts(protocol: ProtocolConfig, test: Rows) -> None:
    """Raise BadOption for a protocol that compares two texts, and rows that have others."""
    task, texts = test.task, max(map(len, test.texts))
    if protocol.entry.apart and (task.labels or texts != 2):
        content = "images" if task.image else "one text" if texts == 1 else f"{texts} texts"
        raise BadOption(
            f"{protocol.name} says how alike two texts are, and {task} is a {task.kind} of "
            f"{content}; expected a regression of two texts, as glue/stsb"
        )


def _check_units(protocol: ProtocolConfig, task: Task) -> None:
    """Raise BadOption for an option of a protocol that the units of the task do not fit."""
    if protocol.readout != LAST_LINEAR and kind_of(task).split_into_words:
        raise BadOption(
            f"{protocol.name} has {protocol.readout.option}, features of whole rows, and {task} "
            "has labels of words; leave it out"
        )
    if kind_of(task).outside(task) is not None:
        return
    for option in protocol.entry.of_tags:
        if option in protocol.unusual:
            raise BadOption(
                f"{option}={protocol.options[option]} is for words outside entities, {task} has "
                "none; leave it out"
            )
