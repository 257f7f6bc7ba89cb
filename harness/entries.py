"""What is registered of a method, a protocol or a metric: its function, and what it says of it."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from harness.errors import HarnessError
from harness.options import misplaced, needs
from harness.types import FeaturesName, KindName

MetricFn: TypeAlias = Callable[[Any, Any], float]
ALL_KINDS: tuple[KindName, ...] = typing.get_args(KindName)
"""Every kind of task."""

BreaksWith: TypeAlias = Mapping[str, Sequence[str]]
"""The properties that a method may break with an option.

Keys: `NAME=VALUE` means that value, `NAME=several` any list, and `NAME` every value but the
default (`methods.is_said`).
"""

Claim: TypeAlias = bool | tuple[str, ...]
"""Whether a method does something: always, never, or with one of these options."""


@dataclass(frozen=True)
class Entry:
    """A function that is registered by a name; `paper` is where it is from.

    Raises HarnessError for one with options that takes other things before them than it is `given`.
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
    """A method of any stage of a merge, and what its stages share."""

    given: ClassVar[tuple[str, ...]] = ("experts", "base")
    breaks: tuple[str, ...] = ()
    breaks_with: BreaksWith = field(default_factory=dict, hash=False)

    @property
    def needs(self) -> tuple[str, ...]:
        """The needs it has, by name: keyword-only parameters without a default."""
        return needs(self.function)


@dataclass(frozen=True, kw_only=True)
class Merger(Method):
    """A merging method.

    `breaks`: the properties that it breaks by design with its default options (`harness check`);
    `breaks_with`: those it may break with others. `task_vectors`: it subtracts the base, so it
    needs one. `by_label`: a row of a head has no weight where an expert's data have no row with
    its label; of all other methods the harness leaves such rows out.
    """

    called = "merger"
    task_vectors: bool = True
    by_label: bool = False


@dataclass(frozen=True, kw_only=True)
class Premerge(Method):
    """A pre-merging method. `exact`: every expert computes the same function afterwards.

    `breaks`: the properties that it breaks by design with its default options (`harness check`);
    `breaks_with`: those it may break with others, `exact` and `family` where these cost exactness.
    `costly`: a tensor takes long to compute, and that of one expert as long as that of all; the
    harness keeps what it made on disk while the merge lasts. `reads_base`: whether it is given the
    base, or with which options alone, as in `breaks_with`; else it is given an empty one.
    `reads_norms`: whether it is of models with norms before their layers alone, likewise.
    """

    called = "pre-merging method"
    exact: bool = False
    costly: bool = False
    reads_base: Claim = True
    reads_norms: Claim = False


@dataclass(frozen=True, kw_only=True)
class Postmerge(Method):
    """A post-merging method: what is merged, the experts as they entered the merger, and the base.

    `breaks`: the properties that it breaks by design with its default options (`harness check`);
    `breaks_with`: those it may break with others. `rereads`: whether it reads what was merged more
    than once, or with which options alone, as in `breaks_with`; the harness then keeps that on disk
    while the merge lasts.
    """

    called = "post-merging method"
    given = ("merged", "experts", "base")
    rereads: Claim = False


@dataclass(frozen=True, kw_only=True)
class EvaluationProtocol(Entry):
    """A way to predict labels from features.

    `adapts`: what it sees of the drawn rows: nothing, their text ('unlabeled'), or their labels.
    `all_rows`: these are all there are, once, whatever shots and draws a run asks for.
    `check` is called with the options before any forward pass, and raises BadOption for what no
    range of one option can say. `transductive`: whether these options adapt to the test rows
    themselves, in place of drawn ones; never to their labels. `by_default`: it is used where no
    protocols are named. `of_tags` are the options about words outside entities, for tags alone;
    `outside`: how many times as many of those words these options draw as of any other tag.
    `features`, of a protocol without a head: where these options take features, `last_linear`,
    `cls`, `mean_masked` or `mean_padded`. `reads_head`: it is of no embedding model. `apart`: each
    of the two texts of a row is read by itself, and `x` has the features of the one before those of
    the other, [rows, 2 width].
    """

    called = "protocol"
    given = ("encoded",)
    adapts: Literal["nothing", "unlabeled", "labeled"] = "labeled"
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
        if self.transductive and self.adapts == "labeled":
            raise HarnessError(
                f"{self.called} '{self.name}' adapts to labels and may adapt to scored rows, whose "
                "labels none may read; expected adapts='unlabeled'"
            )


@dataclass(frozen=True, kw_only=True)
class Metric(Entry):
    """A number of two arrays, `function(predicted, labels)`.

    `kinds` are the kinds of task it is fit for, `classes` the only number of classes, if there is
    one. `undefined` says of true labels, as `function` reads them, what they lack for any
    prediction to have a score, if anything: "no entity". `prefixes` are those of tags that it
    reads, where these are not all.
    """

    called = "metric"
    kinds: tuple[KindName, ...] = ALL_KINDS
    classes: int | None = None
    undefined: Callable[[Any], str | None] | None = None
    prefixes: str = ""
