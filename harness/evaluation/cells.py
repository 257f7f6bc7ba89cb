"""The unit of an evaluation: a `Cell`, which knows the inputs of its record, and so its path."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from harness import weights
from harness.data.apart import among
from harness.data.rows import load_rows
from harness.data.shots import amount
from harness.data.sources import origin
from harness.data.splits import share_rows
from harness.errors import BadRecipe, MissingHead, MissingTeacher
from harness.evaluation.ceiling import ceilings_on, check_ceilings
from harness.evaluation.evaluated import EvaluatedModel, OpenedModel, experts_on, models_on
from harness.evaluation.records import Adaptation, LabelUse, record_path
from harness.evaluation.run import DEFAULTS, Run
from harness.evaluation.task_split import (
    ProtocolConfig,
    ShotPool,
    TaskSplit,
    configured,
    task_split,
    units_in,
)
from harness.hashes import digest_of, joined
from harness.kinds import kind_of
from harness.passes.lengths import resolved_length, tell_of_cut
from harness.presets import kind_under_preset, preset
from harness.readout import LAST_LINEAR, Readout, without_head
from harness.registry import scoring_code
from harness.types import HELD_OUT, TRAINED_ON, Choice, Encoded, Rows, Scalar

LABEL_USES: Mapping[tuple[bool, bool], LabelUse] = {
    (True, False): "chose the rows",
    (True, True): "chose the rows and were read",
    (False, False): "were not read",
    (False, True): "were read",
}
"""How the labels of drawn rows were used, by (draws are stratified, the protocol reads labels)."""


NO_SOURCES: Mapping[str, Any] = {"base": None, "experts": []}


@dataclass(frozen=True)
class Cell:
    """One unit of evaluation: a model on the rows of a task, under a protocol.

    `evaluated` is the model of this cell; `run_model` is the model of the run, which `evaluated`
    is, or is a reference of (its base, an expert, ...). `run` has the shots and draws of the
    protocol (`ProtocolConfig.drawing`). The protocol fits something to the outputs of `teachers`.
    """

    run: Run
    run_model: OpenedModel
    data: TaskSplit
    evaluated: EvaluatedModel
    teachers: tuple[EvaluatedModel, ...]
    protocol: ProtocolConfig

    def __str__(self) -> str:
        return f"{self.evaluated.name} on {self.data.name} under {self.protocol.name}"

    @property
    def applicable(self) -> bool:
        """Whether the protocol can evaluate this model.

        An ensemble has no features to adapt to, an embedding model has no head, and a protocol that
        is fitted to teachers needs one.
        """
        entry, evaluated = self.protocol.entry, self.evaluated
        if evaluated.role == "ensemble" and (self.protocol.adapts or entry.apart):
            return False
        if evaluated.pooling is not None and entry.reads_head:
            return False
        return bool(self.teachers) or not self.protocol.needs_teacher

    @property
    def with_teachers(self) -> tuple[EvaluatedModel, ...]:
        """The model and its teachers: all models that read the rows."""
        return (self.evaluated, *self.teachers)

    @property
    def pool(self) -> ShotPool | None:
        """The drawn rows that the protocol adapts to; None if it adapts to none."""
        return self.data.pools.get(self.protocol.pool_key) if self.protocol.has_draws else None

    @property
    def test_inputs(self) -> tuple[Rows, ...]:
        """The test rows as the model reads them: if `apart`, once for each of their two texts."""
        return self.data.one_text_each if self.protocol.entry.apart else (self.data.test,)

    @property
    def readout(self) -> Readout:
        """How the model of this cell reads the rows, and where its features are taken."""
        return self.readout_of(self.evaluated)

    def readout_of(self, model: EvaluatedModel) -> Readout:
        """The readout of one of the models in `with_teachers`."""
        readout = self.protocol.readout
        if model.pooling is not None:
            return model.pooling.readout if readout == LAST_LINEAR else without_head(readout)
        return preset(self.run.preset).readout if readout == LAST_LINEAR else readout

    @cached_property
    def path(self) -> Path:
        """The path of its record."""
        return record_path(Path(self.run.output), self.known_fields, self._unusual)

    @cached_property
    def known_fields(self) -> dict[str, Any]:
        """The fields of its record that are known before any forward pass."""
        data, evaluated, run = self.data, self.evaluated, self.run
        return {
            "model": evaluated.name,
            "role": evaluated.role,
            "method": evaluated.method,
            "family": evaluated.members[0].family.name,
            "recipe": evaluated.recipe,
            "digest": evaluated.digest,
            "content": joined([model.content for model in self.with_teachers]),
            "task": data.name,
            "protocol": self.protocol.name,
            "options": dict(self.protocol.options),
            "settings": self._settings,
            "metrics": list(data.task.metrics),
            "rows": len(data.test),
            "adaptation": self._adaptation,
            "dataset": {
                "digest": data.test.digest,
                **origin(data.task, run.data_dir),
                **({"drawn_from": data.drawn_from} if self.pool else {}),
                **data.dataset_facts,
            },
            "head": evaluated.head,
            "labels": run.labels,
            "preset": run.preset,
            # other models were not made of the base and the experts
            **(self.run_model.sources if evaluated.role in ("merged", "ceiling") else NO_SOURCES),
            "teachers": [teacher.digest for teacher in self.teachers],
            "heads_of": [weights.digest(owner.weights) for owner in evaluated.owners],
            "shown": list(evaluated.shown),
            "transductive": among(data.task, data.split, evaluated.shown, lambda: data.texts_digest)
            is not None,
        }

    @property
    def _settings(self) -> dict[str, Any]:
        run, data = self.run, self.data
        settings: dict[str, Any] = {
            "features": self.readout.name,
            "max_length": self.data.max_length,
            "limit": run.limit,
            # older records lack it: a limit took the first rows then
            **({"drawn": True} if data.test.is_sample else {}),
            **run.placement.recorded,
            **self.evaluated.members[0].family.recorded,
        }
        kind = kind_under_preset(data.task, run.preset)
        if kind != kind_of(data.task):
            settings["threshold"] = preset(run.preset).threshold
        if (documents := data.test.documents) is not None:  # which rows are resampled together
            settings["documents"] = digest_of(documents.tolist())
        if data.left_out:
            seeds = sorted(data.left_out)[: run.draws if self.protocol.has_draws else 1]
            settings["left_out"] = {str(seed): list(data.left_out[seed]) for seed in seeds}
        if self.pool is not None:
            shots = sorted(set(run.shots), key=amount)
            settings |= {"shots": shots, "draws": run.draws, "seed": run.seed}
            settings |= {"pool": self.pool.rows.digest}
            if run.train_limit:
                settings["train_limit"] = run.train_limit
            if not run.stratified:
                settings["stratified"] = False
        if self.protocol.transductive:
            settings |= {"seed": run.seed}
        if code := scoring_code(self.protocol.entry, data.task.metrics):
            settings["code"] = code
        return settings

    @property
    def _adaptation(self) -> Adaptation | None:
        """The data that the protocol adapts to; None if it adapts to none."""
        data, pool = self.data, self.pool
        if self.protocol.transductive:
            return Adaptation(
                split=data.name, rows=len(data.test), labels="were not read", transductive=True
            )
        if pool is None:
            return None
        reads_labels = self.protocol.entry.adapts == "labeled"
        return Adaptation(
            split=f"{data.task.name}@{TRAINED_ON}",
            rows=pool.count(self.adapts_to_sentences),
            drawn={} if self.adapts_to_sentences else pool.units,
            sentences=pool.sentences if self.adapts_to_sentences else {},
            labels=LABEL_USES[self.run.stratified, reads_labels],
        )

    @property
    def adapts_to_sentences(self) -> bool:
        """Whether it adapts to whole sentences: where words have tags, if it reads no labels."""
        return self.protocol.needs_teacher and kind_of(self.data.task).split_into_words

    def record_fields(self, encoded: Encoded) -> dict[str, Any]:
        """`known_fields` with the facts that take reading: the units to adapt to that were cut off,
        and how many test texts are in the training rows too.

        Not computed for a record that exists.
        """
        shared = {} if self.data.shared is None else {"shared_with_train": self.data.shared}
        values = {**self.known_fields, "dataset": {**self.known_fields["dataset"], **shared}}
        if (adaptation := values["adaptation"]) is None:
            return values
        pool = self.pool
        units = sum(kind_of(self.data.task).unit_counts(self.data.test))
        drawn = units_in(pool.draws, self.adapts_to_sentences) if pool else {*range(units)}
        gone = drawn - units_in(encoded.draws, self.adapts_to_sentences)
        unseen = sorted(pool.places[unit] if pool else unit for unit in gone)
        if unseen and self.protocol.has_draws and not self.adapts_to_sentences:
            warnings.warn(
                f"{adaptation.split}: of {len(drawn)} drawn words {len(unseen)} are cut off or "
                "have no token, and nothing is fitted to them; --max-length auto cuts off fewest",
                stacklevel=2,
            )
        return {**values, "adaptation": adaptation.model_copy(update={"unseen": unseen})}

    @property
    def _unusual(self) -> dict[str, Scalar]:
        """The options and settings that are not the defaults, for the name of the record."""
        length = [] if self.data.task.image else ["max_length"]  # has no effect on images
        settings = ["dtype", "labels", "limit", *length, "metrics", "preset"]
        if self.protocol.has_draws:
            settings += ["draws", "seed", "shots", "stratified", "train_limit"]
        if self.protocol.transductive:
            settings += ["seed"]
        unusual = dict(self.protocol.unusual)
        for key in settings:
            value = getattr(self.run, key)
            if value != getattr(self.protocol.drawing(DEFAULTS), key):
                value = self.data.max_length if key == "max_length" else value
                unusual[key] = "-".join(map(str, value)) if isinstance(value, tuple) else value
        return unusual


def cells_of(run: Run, model: OpenedModel, protocols: Sequence[ProtocolConfig]) -> list[Cell]:
    """All cells of a run, by task, then by model in the order of the table, then by protocol.

    With `best_single`, the cells that choose the best expert follow. Raises MissingTeacher if a
    protocol that the run names needs a teacher and has none.
    """
    check_ceilings(run, model)
    splits = [task_split(run, name, protocols) for name in model.tasks]
    with_experts, cells = [], list[Cell]()
    for split in splits:
        experts = experts_on(run, model, split.task)
        models = [*models_on(run, model, split.task, experts), *ceilings_on(run, model, split.task)]
        data = _with_length(run, split, models)
        with_experts.append((data, [expert for expert in experts if expert.pooling is None]))
        for evaluated, protocol in product(models, protocols):
            teachers = evaluated.teachers(experts) if protocol.needs_teacher else ()
            cells.append(Cell(protocol.drawing(run), model, data, evaluated, teachers, protocol))
    _check_embeddings(run, cells)
    _check_teachers(run, cells)
    choosing = _best_single_cells(run, model, with_experts) if run.best_single else ()
    return [cell for cell in [*cells, *choosing] if cell.applicable]


def _check_embeddings(run: Run, cells: Sequence[Cell]) -> None:
    """Raise BadRecipe or MissingHead for what embedding models, without a head, cannot do.

    Of protocols that are only on by default, a warning says that they are left out.
    """
    found = [cell for cell in cells if cell.evaluated.pooling is not None]
    if not found:
        return
    clause = f"{found[0].evaluated.name} is an embedding model without a head"
    if preset(run.preset).readout != LAST_LINEAR:
        raise BadRecipe(f"{clause}, and the preset '{run.preset}' reads heads; leave out --preset")
    tasks = [cell.data.task for cell in found if kind_of(cell.data.task).split_into_words]
    if tasks:
        raise BadRecipe(f"{clause}, and {tasks[0]} is tagged word by word; expected other tasks")
    names = ", ".join(dict.fromkeys(c.protocol.name for c in found if c.protocol.entry.reads_head))
    if names and run.protocols:
        raise MissingHead(
            f"{clause}, which {names} reads; expected protocols that read features: knn, "
            "linear-probe, fresh-head, probe, cosine"
        )
    if names:
        warnings.warn(f"{clause}, so it is not evaluated under {names}", stacklevel=4)


def _with_length(run: Run, data: TaskSplit, models: Sequence[EvaluatedModel]) -> TaskSplit:
    """The split with the `max_length` of all models on it; warns of rows that it cuts off."""
    members = [member for model in models for member in model.members]
    tests = data.one_text_each if data.apart else (data.test,)
    row_sets = [*tests, *(pool.rows for pool in data.pools.values())]
    readout = preset(run.preset).readout
    limits = [m.pooling.max_length for m in models if m.pooling and m.pooling.max_length]
    length = run.max_length or min([data.task.finetune.max_length, *limits])
    max_length = resolved_length(length, members, row_sets, readout)
    if readout == LAST_LINEAR:  # a preset with its own readout cuts on purpose
        for rows in tests:
            tell_of_cut(members, rows, max_length)
    return replace(data, max_length=max_length)


def _best_single_cells(
    run: Run, model: OpenedModel, splits: Sequence[tuple[TaskSplit, Sequence[EvaluatedModel]]]
) -> Iterator[Cell]:
    """The cells by which the best single expert is chosen, on tasks that have several experts.

    Each is an expert under its own head (Current Eval) on the held-out rows. Raises BadRecipe if no
    task has several experts, or if the scored split shares rows with the held-out one.
    """
    choices = [(data, experts) for data, experts in splits if len(experts) > 1]
    if not choices:
        raise BadRecipe("no task has several experts to choose from; leave out --best-single")
    for data, experts in choices:
        if share_rows(data.task, data.split, HELD_OUT):
            raise BadRecipe(
                f"--best-single chooses experts on {HELD_OUT}, which shares rows with {data.name}; "
                "expected another split in --tasks"
            )
        rows = load_rows(data.task, HELD_OUT, folder=run.data_dir, limit=run.limit)
        held_out = _with_length(run, TaskSplit(data.task, HELD_OUT, rows), experts)
        for expert in experts:
            yield Cell(run, model, held_out, expert, (), configured(Choice("current")))


def _check_teachers(run: Run, cells: Sequence[Cell]) -> None:
    """Raise MissingTeacher if a protocol that the run names needs a teacher and has none.

    Warn of cells without a teacher, which are left out, if only some tasks or models lack one.
    """
    taught = [cell for cell in cells if cell.protocol.needs_teacher]
    untaught = list(dict.fromkeys(cell.data.task.name for cell in taught if not cell.teachers))
    teaching = list(dict.fromkeys(cell.protocol.name for cell in taught))
    if untaught and run.protocols:
        raise MissingTeacher(
            f"the protocol '{teaching[0]}' needs an expert of '{untaught[0]}', found none; give "
            "--experts"
        )
    with_teacher = {cell.data.task.name for cell in taught if cell.teachers}
    if with_teacher and (without := [name for name in untaught if name not in with_teacher]):
        warnings.warn(
            f"no expert of {', '.join(without)} is known, so nothing is evaluated there under "
            f"{', '.join(teaching)}; name one with --experts",
            stacklevel=3,
        )
    for task in (name for name in untaught if name in with_teacher):
        alone = [c.evaluated.name for c in taught if c.data.task.name == task and not c.teachers]
        warnings.warn(
            f"{', '.join(dict.fromkeys(alone))} has no expert to be fitted to on {task}, so it is "
            f"not evaluated there under {', '.join(teaching)}; name one with --experts",
            stacklevel=3,
        )
