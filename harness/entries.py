"""Registry entries of methods, protocols and metrics: a function, and what its author declares."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from harness.errors import HarnessError
from harness.options import misplaced, needs
from harness.types import FeaturesName, KindName

MetricFn: TypeAlias = Callable[[Any, Any], float]

BreaksWith: TypeAlias = Mapping[str, Sequence[str]]
"""The properties that a method may break, by the option with which it may.

Keys: `NAME=VALUE` is this value of the option, `NAME=several` any list, `NAME` every value but the
default (`methods.condition_holds`).
"""

Adapts: TypeAlias = Literal["nothing", "unlabeled", "labeled"]
"""What a protocol uses of the rows that it is given to adapt to."""

Claim: TypeAlias = bool | tuple[str, ...]
"""Whether a method does something: always, never, or with one of these options (as in
`BreaksWith`)."""


@dataclass(frozen=True)
class Entry:
    """A function registered under a name; `paper` is its source.

    `called` is the kind of entry in messages, `given` the positional parameters that the function
    must have. Raises HarnessError for a function with others.
    """

    called: ClassVar[str]
    given: ClassVar[tuple[str, ...]] = ()
    name: str
    function: Callable[..., Any]
    _: KW_ONLY
    paper: str = ""

    def __post_init__(self) -> None:
        if self.given and (fault := misplaced(self.function, self.given)):
            raise HarnessError(f"{self.called} '{self.name}' {fault}")


@dataclass(frozen=True, kw_only=True)
class Method(Entry):
    """A method of any stage of a merge."""

    given: ClassVar[tuple[str, ...]] = ("experts", "base")
    breaks: tuple[str, ...] = ()
    breaks_with: BreaksWith = field(default_factory=dict, hash=False)

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of its needs: its keyword-only parameters without a default."""
        return needs(self.function)


@dataclass(frozen=True, kw_only=True)
class Merger(Method):
    """A merging method.

    `breaks`: the properties that it breaks by design with its default options (`harness check`);
    `breaks_with`: those it may break with others. `task_vectors`: it subtracts the base, so it
    needs one. `by_label`: it gives a row of a head no weight if the expert's data lack the row's
    label; for all other mergers the harness leaves such rows of heads out.
    """

    called = "merger"
    task_vectors: bool = True
    by_label: bool = False


@dataclass(frozen=True, kw_only=True)
class Premerge(Method):
    """A pre-merging method. `exact`: every expert computes the same function afterwards.

    `breaks`: the properties that it breaks by design with its default options (`harness check`);
    `breaks_with`: those it may break with others; `exact` and `family` if these cost exactness.
    `costly`: a tensor takes long to compute, for one expert as long as for all; the harness keeps
    the results on disk until the merge is done. `reads_base`: whether it receives the base, or the
    options with which it does, as in `breaks_with`; otherwise it receives an empty base.
    `reads_norms`: likewise, whether it requires models with a norm before each layer.
    """

    called = "pre-merging method"
    exact: bool = False
    costly: bool = False
    reads_base: Claim = True
    reads_norms: Claim = False


@dataclass(frozen=True, kw_only=True)
class Postmerge(Method):
    """A post-merging method: it receives the merge, the experts as they entered the merger, and the
    base.

    `breaks`: the properties that it breaks by design with its default options (`harness check`);
    `breaks_with`: those it may break with others. `rereads`: whether it reads the merged tensors
    more than once, or the options with which it does, as in `breaks_with`; the harness then keeps
    them on disk until the merge is done.
    """

    called = "post-merging method"
    given = ("merged", "experts", "base")
    rereads: Claim = False


@dataclass(frozen=True, kw_only=True)
class EvaluationProtocol(Entry):
    """A way to predict labels from features.

    `adapts`: what it reads of the drawn rows: nothing, their text ('unlabeled'), or also their
    labels. `all_rows`: it always uses all training rows, once, regardless of shots and draws.
    `check`, `transductive`, `outside` and `features` are called with the options. `check` raises
    BadOption, before any forward pass, for combinations that the ranges allow. `transductive`
    returns whether it adapts to the test rows (never to their labels) instead of drawn rows.
    `by_default`: it is used if no protocols are named. `of_tags` are options about words outside
    entities, for tagging alone; `outside` returns how many such words are drawn for each word of
    any other tag. `features`, of a protocol without a head, returns where features are taken:
    `last_linear`, `cls`, `mean_masked` or `mean_padded`. `reads_head`: it does not support
    embedding models. `apart`: the two texts of a row are encoded separately, and `x`
    [rows, 2 width] holds the features of the first, then of the second.
    """

    called = "protocol"
    given = ("encoded",)
    adapts: Adapts = "labeled"
    all_rows: bool = False
    check: Callable[..., None] | None = None
    transductive: Callable[..., bool] | None = None
    by_default: bool = True
    of_tags: tuple[str, ...] = ()
    outside: Callable[..., int] | None = None
    features: Callable[..., FeaturesName] | None = None
    reads_head: bool = False
    apart: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adapts not in (known := typing.get_args(Adapts)):  # records would say otherwise
            raise HarnessError(
                f"{self.called} '{self.name}' has adapts={self.adapts!r}, expected "
                f"{', '.join(known)}"
            )
        if asked := needs(self.function):
            raise HarnessError(
                f"{self.called} '{self.name}' has '{asked[0]}' without a default, expected one: "
                "only methods of merging have needs"
            )
        if self.transductive and self.adapts == "labeled":
            raise HarnessError(
                f"{self.called} '{self.name}' adapts to labels and may adapt to scored rows, whose "
                "labels no protocol may read; expected adapts='unlabeled'"
            )


@dataclass(frozen=True, kw_only=True)
class Metric(Entry):
    """A metric, `function(predicted, labels)` of two arrays.

    `kinds` are the supported kinds of task, `classes` the required number of classes, if any.
    `undefined` returns why the score is undefined for these true labels whatever is predicted ("no
    entity"), or None. `prefixes` are the prefixes of tags that it supports, if not all.
    """

    called = "metric"
    kinds: tuple[KindName, ...] = typing.get_args(KindName)
    classes: int | None = None
    undefined: Callable[[Any], str | None] | None = None
    prefixes: str = ""
