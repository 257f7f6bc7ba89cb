"""What a study asks, as a value: lists are axes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, product
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, model_validator

from harness.errors import BadRecipe
from harness.options import parse_choice
from harness.reporting.plots.plot import Picture
from harness.types import Choice
from harness.values import Chosen, Frozen

NONE = "none"
"""In an axis of stages: no stage."""
REFERENCES = ("base", "ensemble", "mtl", "best-single", "singles")
"""What stands beside merges by its name; base and ensemble always do."""
MOST = 100_000
"""Merges of a set of experts, and sets: more are a mistake, or somebody's who wants no plan."""
OF_LAYERS = "layers"
"""The option of methods that are of some layers alone."""
EACH = "each"
"""Its value in a study: the first layer, the first two, and so on to all that the base has."""
OF_EXPERTS = "experts"
"""In the place of tasks: those that the experts were trained on."""


def _bounded(entries: Iterable[object]) -> list[object]:
    """The entries of an axis. Raises ValueError for more than `MOST`, before all are made."""
    found = list(islice(entries, MOST + 1))
    if len(found) > MOST:
        raise ValueError(f"more than {MOST:,} entries, expected fewer values of options")
    return found


def several(value: object) -> list[object]:
    """One value as a list of one."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _stages(value: object) -> list[object]:
    """`none`, one method, or a list of methods that follow each other."""
    return [] if value in (NONE, None) else several(value)


def _each(value: object) -> Iterator[object]:
    """What `key=[a,b]` in a text stands for: a text with each value in turn."""
    if not isinstance(value, str) or (found := re.search(r"=\[([^\[\]]*)\]", value)) is None:
        yield value
        return
    before, after = value[: found.start()], value[found.end() :]
    for one in found[1].split(","):
        yield from _each(f"{before}={one.strip()}{after}")


def _spread(value: object) -> object:
    """The entries of an axis of mergers, each with one value of every option."""
    return _bounded(entry for one in several(value) for entry in _entries(one))


def _entries(one: object) -> Iterator[object]:
    said = dict(one) if isinstance(one, Mapping) and "merger" in one else {"merger": one}
    axes = {key: _spread_stages([said[key]]) for key in ("premerge", "postmerge") if key in said}
    for merger in (merger for each in several(said["merger"]) for merger in _each(each)):
        for stages in product(*axes.values()):
            yield {**said, "merger": merger, **dict(zip(axes, stages, strict=True))}


def _spread_stages(value: object) -> list[object]:
    """The entries of an axis of stages, each with one value of every option."""
    stages = ([_bounded(_each(method)) for method in _stages(one)] for one in several(value))
    return _bounded(list(chain) for methods in stages for chain in product(*methods))


def _mapping_of(key: str) -> BeforeValidator:
    """What stands alone is the value of this key."""
    return BeforeValidator(lambda value: value if isinstance(value, Mapping) else {key: value})


def _name(value: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*", value):
        raise ValueError(f"{value!r} is no name of letters, digits, '.', '_' and '-'")
    return value


Flags = Mapping[str, Any]


def _but(*fields: str) -> AfterValidator:
    """Flags that leave alone what a study says elsewhere, or its command; limits are numbers."""

    def check(flags: Flags) -> Flags:
        if said := [name for name in flags if name in fields]:
            raise ValueError(f"'{said[0]}' is said by other fields of a study, or by its command")
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
    """Flags of `harness finetune` that a plan reads. Raises ValueError for what they cannot be."""
    _check_positive(flags, "limit")
    _check_positive(flags, "epochs", kinds=(int, float))
    if not isinstance(flags.get("heads_from", ""), str):
        raise ValueError(f"heads_from is {flags['heads_from']!r}, expected a folder")
    return flags


Name = Annotated[str, AfterValidator(_name)]
Names = Annotated[tuple[str, ...], BeforeValidator(several)]
Seeds = Annotated[tuple[Annotated[int, Field(ge=0, lt=2**32)], ...], BeforeValidator(several)]
Stages = Annotated[tuple[Chosen, ...], BeforeValidator(_stages)]
OfTraining = Annotated[Flags, AfterValidator(_of_training)]
SHARED = ("experts", "base", "tasks", "data_dir", "device")
OfMerges = Annotated[
    Flags,
    _but(
        *SHARED, "merge_device", "merger", "premerge", "postmerge", "statistics", "tune", "tune_on"
    ),
]
OfRuns = Annotated[Flags, _but(*SHARED, "model", "protocols", "references", "output")]


class Experts(Frozen):
    """Experts that the study trains, every task with every seed, or folders by set.

    `finetune` are flags of `harness finetune`, `by_task` others for single tasks. `head_seed`:
    heads start from the seed of the training (`seed`: heads of as many classes alike within it),
    alike for all seeds (`same`), or each expert's apart (`own`). `partition`: an expert for each
    of so many parts of a task's rows (`finetune --part`). Studies in one folder share the experts
    of a name (`called`).
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
        said = sorted(self.model_fields_set - {"folders"})
        if self.folders and said:
            raise ValueError(
                f"{said[0]} is of experts that are trained; leave it out beside folders"
            )
        return self


class Sets(Frozen):
    """Which experts are merged: those of one seed, of one task, or of the parts of one task and
    seed; or every `choose` of them, if `disjoint` one after the other, so that none is in two; or,
    if they `grow`, the first two of them, the first three, and so on to all. What they are `called`
    keeps merges of the same experts and more of them apart."""

    by: Literal["seed", "task", "pairs", "partition"] = "seed"
    choose: PositiveInt | None = None
    disjoint: bool = False
    grow: bool = False
    called: Name | None = None

    @property
    def at_once(self) -> int | None:
        """How many experts of a group are merged at a time; None: all."""
        return 2 if self.by == "pairs" and self.choose is None else self.choose


def _grid(value: object) -> object:
    """Values that are tried, as `harness merge --tune` has them."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else value


class MergerAxis(Frozen):
    """A merger, and what belongs to it alone: `tune` an option, its own or METHOD.OPTION, on a
    split, or other stages."""

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
            raise ValueError(f"on is {self.on}, and nothing is chosen there; expected tune as well")
        return self


class ScoreOn(Frozen):
    """How merges are evaluated: on the experts' tasks or on others, by fields of a run.

    Of some mergers alone, where it names them, and beside other references than the study's. Its
    records are of the board of its name, or of another's.
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

    Of the `protocols` that are named, else of those that the picture shows by itself.
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

    Without `mergers` experts are made, and nothing else. `merge` and `evaluate` are fields of every
    recipe and run. `include` adds merges that are no
    product of the axes, `exclude` takes away those that are all that an entry names. `limit`: so
    many rows at most, to train on, to show to methods, to choose options by and to score, whatever
    the other fields say.
    `keep_merges`: whether merged folders stay when they have been evaluated. `paper`: the design
    whose numbers stand beside those of this study, by default the one of its name.
    """

    study: Name
    paper: Name | None = None
    base: Names = ()
    experts: Annotated[Experts, _mapping_of("tasks")]
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
    score_on: Mapping[Name, Annotated[ScoreOn, _mapping_of("tasks")]] = Field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    limit: PositiveInt | None = None
    keep_merges: bool = True

    @property
    def readings(self) -> Mapping[str, ScoreOn]:
        """How merges are evaluated, by the name of the board."""
        return self.score_on or {self.study: ScoreOn()}

    def fault(self, what: str) -> BadRecipe:
        """What is wrong with the study, as an error."""
        return BadRecipe(f"{self.study}: {what}")

    def limited(self, flags: Flags, *names: str) -> dict[str, Any]:
        """Flags of which these say no more rows than the study has."""
        most = {n: min(flags.get(n) or self.limit, self.limit) for n in names if self.limit}
        return {**flags, **most}

    def beside(self, reading: ScoreOn) -> Names:
        """What stands beside the merges that are read so."""
        return self.references if reading.references is None else reading.references


def choice_of(text: str) -> Choice:
    """A method with its options, where a list may stand in brackets: `knn:shots=[1,5]`."""
    spelled = re.sub(r"\[([^\]]*)\]", lambda found: found[1].replace(",", ":"), text)
    return parse_choice(spelled)
