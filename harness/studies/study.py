"""The content of a study's YAML as a frozen value: lists are axes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, product
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from harness.errors import BadRecipe
from harness.options import parse_choice
from harness.reporting.plots.plot import Picture
from harness.types import Choice
from harness.values import Chosen, Frozen, PositiveWhole, Whole

NONE = "none"
"""In an axis of stages: no stage."""
REFERENCES = ("base", "ensemble", "mtl", "best-single", "singles")
"""Words for models that are scored beside merges; base and ensemble always are."""
MAX_COMBINATIONS = 100_000
"""The most merges of a set of experts, and the most sets: more are taken for a mistake."""
OF_LAYERS = "layers"
"""The option of methods that act on some layers only."""
EACH = "each"
"""Its value in a study for one merge each of the first layer, the first two, ..., all layers."""
OF_EXPERTS = "experts"
"""In place of a task in `score_on`: those that the experts were trained on."""


def _bounded(entries: Iterable[object]) -> list[object]:
    """The entries of an axis. Raises ValueError for more than `MAX_COMBINATIONS`, before all are
    made."""
    found = list(islice(entries, MAX_COMBINATIONS + 1))
    if len(found) > MAX_COMBINATIONS:
        raise ValueError(
            f"more than {MAX_COMBINATIONS:,} entries, expected fewer values of options"
        )
    return found


def as_list(value: object) -> list[object]:
    """A list as it is; any other value as a list of one."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _stages(value: object) -> list[object]:
    """The methods of a stage in order, from `none`, one method, or a list of methods."""
    return [] if value in (NONE, None) else as_list(value)


def _each(value: object) -> Iterator[object]:
    """The texts that a text with `key=[a,b]` expands to, one for each value; else the value."""
    if not isinstance(value, str) or (found := re.search(r"=\[([^\[\]]*)\]", value)) is None:
        yield value
        return
    before, after = value[: found.start()], value[found.end() :]
    for item in found[1].split(","):
        yield from _each(f"{before}={item.strip()}{after}")


def _spread(value: object) -> object:
    """The entries of an axis of mergers, each with one value of every option."""
    return _bounded(entry for item in as_list(value) for entry in _entries(item))


def _entries(item: object) -> Iterator[object]:
    """The entries that an entry of an axis of mergers expands to."""
    entry = dict(item) if isinstance(item, Mapping) and "merger" in item else {"merger": item}
    axes = {key: _spread_stages([entry[key]]) for key in ("premerge", "postmerge") if key in entry}
    for merger in (merger for text in as_list(entry["merger"]) for merger in _each(text)):
        for stages in product(*axes.values()):
            yield {**entry, "merger": merger, **dict(zip(axes, stages, strict=True))}


def _spread_stages(value: object) -> list[object]:
    """The entries of an axis of stages, each with one value of every option."""
    stages = ([_bounded(_each(method)) for method in _stages(item)] for item in as_list(value))
    return _bounded(list(chain) for methods in stages for chain in product(*methods))


def _name(value: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*", value):
        raise ValueError(f"{value!r} is no name of letters, digits, '.', '_' and '-'")
    return value


Flags = Mapping[str, Any]


def _flags_without(*fields: str) -> AfterValidator:
    """A validator of flags: none of `fields`, which are set elsewhere, and limits above 0."""

    def check(flags: Flags) -> Flags:
        if taken := [name for name in flags if name in fields]:
            raise ValueError(
                f"'{taken[0]}' is set by other fields of a study, or by its command; leave it out"
            )
        _check_positive(flags, "limit", "train_limit", "tune_limit", "examples_limit")
        return flags

    return AfterValidator(check)


def _check_positive(flags: Flags, *names: str, kinds: tuple[type, ...] = (int,)) -> None:
    """Raise ValueError for one of these flags that is no number above 0."""
    for name in names:
        value = flags.get(name)
        if value is not None and not (type(value) in kinds and value > 0):
            whole = "whole " * (float not in kinds)
            raise ValueError(f"{name} is {value!r}, expected a {whole}number above 0")


def _of_training(flags: Flags) -> Flags:
    """Flags of `harness finetune`. Raises ValueError for a bad value of those that a plan reads."""
    _check_positive(flags, "limit")
    _check_positive(flags, "epochs", kinds=(int, float))
    if not isinstance(flags.get("heads_from", ""), str):
        raise ValueError(f"heads_from is {flags['heads_from']!r}, expected a folder")
    return flags


OR_TASKS = BeforeValidator(lambda value: value if isinstance(value, Mapping) else {"tasks": value})
"""A validator by which a value that is no mapping becomes the value of `tasks`."""
Name = Annotated[str, AfterValidator(_name)]
Names = Annotated[tuple[str, ...], BeforeValidator(as_list)]
Seeds = Annotated[tuple[Annotated[Whole, Field(ge=0, lt=2**32)], ...], BeforeValidator(as_list)]
Stages = Annotated[tuple[Chosen, ...], BeforeValidator(_stages)]
OfTraining = Annotated[Flags, AfterValidator(_of_training)]
SHARED = ("experts", "base", "data_dir", "device")
"""Fields of merges and runs that other fields of a study, or its command, set."""
OfMerges = Annotated[
    Flags,
    _flags_without(
        *SHARED, "merge_device", "merger", "premerge", "postmerge", "statistics", "tune", "tune_on"
    ),
]
OfRuns = Annotated[
    Flags, _flags_without(*SHARED, "tasks", "model", "protocols", "references", "output")
]


class Experts(Frozen):
    """Experts that the study trains, every task with every seed, or folders by set.

    `finetune` are flags of `harness finetune`, `by_task` others for single tasks. `head_seed`: the
    seed of new heads is that of the training (`seed`), by which heads of as many classes start
    alike, one for all experts (`same`), or another for each (`own`). `partition`: an expert for
    each of so many parts of a task's rows (`finetune --part`). `called`: a name in the experts'
    folders; studies in one folder share experts of the same name.
    """

    tasks: Names = ()
    seeds: Seeds = (0,)
    head_seed: Literal["seed", "same", "own"] = "seed"
    finetune: OfTraining = Field(default_factory=dict)
    by_task: Mapping[str, OfTraining] = Field(default_factory=dict)
    partition: Literal[2] | None = None
    folders: Mapping[Name, Names] = Field(default_factory=dict)
    called: Name | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Experts:
        fields = sorted(self.model_fields_set - {"folders"})
        if self.folders and fields:
            raise ValueError(
                f"{fields[0]} is for experts that the study trains; leave it out beside folders"
            )
        return self


class Sets(Frozen):
    """Which experts are merged together.

    `by`: all experts of one `seed`, of one `task`, or of the parts of one task and seed
    (`partition`), or all `pairs` of one seed. `choose`: every combination of so many of these; if
    `disjoint`, consecutive ones, so that no expert is in two sets. `grow`: the first two, the first
    three, and so on to all. `called`: a name in the folders of the merges, which keeps them apart
    from other merges of the same and further experts.
    """

    by: Literal["seed", "task", "pairs", "partition"] = "seed"
    choose: PositiveWhole | None = None
    disjoint: bool = False
    grow: bool = False
    called: Name | None = None

    @property
    def at_once(self) -> int | None:
        """How many experts of a group are merged at a time; None: all."""
        return 2 if self.by == "pairs" and self.choose is None else self.choose


def _grid(value: object) -> object:
    """Values to try, in the syntax of `harness merge --tune`."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else value


class MergerAxis(Frozen):
    """A merger with settings of its own: stages in place of the study's, and an option (its own or
    METHOD.OPTION) to `tune` `on` a split."""

    merger: Chosen
    premerge: Stages | None = None
    postmerge: Stages | None = None
    tune: Mapping[str, Annotated[str, BeforeValidator(_grid)]] = Field(
        default_factory=dict, max_length=1
    )
    on: str | None = None

    @model_validator(mode="after")
    def _of_choices(self) -> MergerAxis:
        if self.on and not self.tune:
            raise ValueError(f"on is {self.on}, and nothing is tuned there; expected tune as well")
        return self


class ScoreOn(Frozen):
    """An evaluation of merges: on the experts' tasks or on others, with fields of a run.

    `protocols` and `references` replace those of the study. `mergers`: only merges by these.
    `board`: the board of its records, by default that of the evaluation's own name.
    """

    tasks: Names = (OF_EXPERTS,)
    protocols: Names = ()
    mergers: Names = ()
    references: Names | None = None
    evaluate: OfRuns = Field(default_factory=dict)
    board: Name | None = None


class Figure(Frozen):
    """A picture: a `sweep` of scores, or of the loss, over the values of one option that merges
    differ in, `METHOD.OPTION`, or over the number of their `experts`; or a `plot` of each board.

    It shows the `protocols` that are named, or else its own choice.
    """

    sweep: str = ""
    loss: bool = False
    plot: Picture | None = None
    protocols: Names = ()

    @model_validator(mode="after")
    def _one_picture(self) -> Figure:
        if bool(self.sweep) == (self.plot is not None) or (self.loss and not self.sweep):
            raise ValueError("expected one of sweep (with or without loss) and plot")
        return self


Mergers = Annotated[tuple[MergerAxis, ...], BeforeValidator(_spread)]
Axis = Annotated[tuple[Stages, ...], BeforeValidator(_spread_stages)]


class Study(Frozen):
    """Bases, their experts, how these are merged, and how the merges are evaluated.

    Without `mergers` and `include` experts are trained, and nothing is merged. `merge` and
    `evaluate` are fields of every recipe and run. `include` adds merges that are no product of the
    axes; `exclude` removes those that match all fields of an entry. `limit`: so many rows at most,
    to train on, to show to methods, to tune options on and to score, whatever the other fields say.
    `keep_merges`: whether merged folders stay after their evaluation. `paper`: the design whose
    printed numbers are compared with this study's, by default that of its name.
    """

    study: Name
    paper: Name | None = None
    base: Names = ()
    experts: Annotated[Experts, OR_TASKS]
    sets: Sets = Sets()
    mergers: Mergers | None = None
    premerge: Axis = ((),)
    postmerge: Axis = ((),)
    include: Mergers = ()
    exclude: tuple[Mapping[str, str], ...] = ()
    merge: OfMerges = Field(default_factory=dict)
    protocols: Names = ()
    evaluate: OfRuns = Field(default_factory=dict)
    references: Names = ()
    score_on: Mapping[Name, Annotated[ScoreOn, OR_TASKS]] = Field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    limit: PositiveWhole | None = None
    keep_merges: bool = True

    @property
    def evaluations(self) -> Mapping[str, ScoreOn]:
        """The evaluations of merges by name; without `score_on` one, named as the study."""
        return self.score_on or {self.study: ScoreOn()}

    def fault(self, what: str) -> BadRecipe:
        """An error that says what is wrong with the study."""
        return BadRecipe(f"{self.study}: {what}")

    def limited(self, flags: Flags, *names: str) -> dict[str, Any]:
        """Flags in which the named limits are no higher than the study's `limit`, if it has one."""
        limits = {n: min(flags.get(n) or self.limit, self.limit) for n in names if self.limit}
        return {**flags, **limits}

    def references_of(self, reading: ScoreOn) -> Names:
        """The references of an evaluation: its own, or else the study's."""
        return self.references if reading.references is None else reading.references


def choice_of(text: str) -> Choice:
    """A method with its options, whose values may be lists in brackets: `knn:shots=[1,5]`."""
    spelled = re.sub(r"\[([^\]]*)\]", lambda found: found[1].replace(",", ":"), text)
    return parse_choice(spelled)
