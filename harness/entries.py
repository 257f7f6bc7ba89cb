"""What is registered of a method, a protocol or a metric: its function, and what it says of it."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from harness.options import needs
from harness.types import KindName, Predictions, StateDict

MetricFn: TypeAlias = Callable[[Any, Any], float]
ALL_KINDS: tuple[KindName, ...] = typing.get_args(KindName)
"""Every kind of task."""


@dataclass(frozen=True)
class Merger:
    """A merging method.

    `task_vectors`: it subtracts the base, so it needs one. `breaks`: the laws of
    `harness check merger` that it rightly breaks with its default options. `by_label`: a row of a
    head counts for nothing where an expert's data said nothing of its label; of all other methods
    the harness leaves such rows out.
    """

    called: ClassVar[str] = "merger"
    name: str
    function: Callable[..., StateDict]
    paper: str = ""
    task_vectors: bool = True
    breaks: tuple[str, ...] = ()
    by_label: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        """The needs it has, by name: keyword-only parameters without a default."""
        return needs(self.function)


@dataclass(frozen=True)
class Premerge:
    """A pre-merging method. `exact`: every expert computes the same function afterwards, but with
    options whose names are in `inexact` and that are not the defaults.

    `breaks`: the laws of `harness check premerge` that it rightly breaks with its default options.
    `costly`: a tensor takes long to compute, and that of one expert as long as that of all; the
    harness keeps what it made on disk while the merge lasts.
    """

    called: ClassVar[str] = "pre-merging method"
    name: str
    function: Callable[..., Sequence[StateDict]]
    paper: str = ""
    exact: bool = False
    breaks: tuple[str, ...] = ()
    costly: bool = False
    inexact: tuple[str, ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """The needs it has, by name: keyword-only parameters without a default."""
        return needs(self.function)


@dataclass(frozen=True)
class Postmerge:
    """A post-merging method: what is merged, the experts as they entered the merger, and the base.

    `breaks`: the laws of `harness check postmerge` that it rightly breaks with its default options.
    """

    called: ClassVar[str] = "post-merging method"
    name: str
    function: Callable[..., StateDict]
    paper: str = ""
    breaks: tuple[str, ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """The needs it has, by name: keyword-only parameters without a default."""
        return needs(self.function)


Method: TypeAlias = Merger | Premerge | Postmerge
"""A method of any stage of a merge."""


@dataclass(frozen=True)
class EvaluationProtocol:
    """A way to read labels off features.

    `adapts`: what it sees of the drawn rows: nothing, their text ('unlabeled'), or their labels.
    `check` is called with the options before any forward pass, and raises BadOption for what no
    range of one option can say. `transductive` says of the options whether it adapts to the test
    rows themselves, in place of drawn ones. `by_default`: it is read where nobody names protocols.
    """

    name: str
    function: Callable[..., Sequence[Predictions]]
    paper: str = ""
    adapts: Literal["nothing", "unlabeled", "labeled"] = "labeled"
    check: Callable[..., None] | None = None
    transductive: Callable[..., bool] | None = None
    by_default: bool = True


@dataclass(frozen=True)
class Metric:
    """A number of two arrays, `function(predicted, labels)`.

    `kinds` are the kinds of task it is fit for, `classes` the only number of classes, if there is
    one.
    """

    name: str
    function: MetricFn
    paper: str = ""
    kinds: tuple[KindName, ...] = ALL_KINDS
    classes: int | None = None
