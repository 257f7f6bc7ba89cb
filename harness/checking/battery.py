"""The tests of `harness check` and the pytest plugin: a method in, findings out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from harness.checking.properties import PROPERTIES
from harness.checking.properties.property import (
    Broken,
    CheckedMethod,
    Property,
    StageName,
)
from harness.entries import Method, Premerge
from harness.errors import BadOption, HarnessError, UnknownName
from harness.methods import condition_holds, needs_of, own_options, reads_base, resolved_options
from harness.plugins import line_of
from harness.registry import STAGES
from harness.text import hint
from harness.types import Choice
from harness.weights import seeded

COUNTS = (3, 2, 4, 5)
"""Numbers of experts to try, in this order, until the method accepts one."""

LONGEST = 200
"""The most characters of a reason that are shown."""


@dataclass(frozen=True)
class Finding:
    """The result of checking one property. `detail` is its promise, or how it breaks."""

    name: str
    verdict: Literal["holds", "breaks by design", "breaks", "holds, declared to break"]
    detail: str

    @property
    def ok(self) -> bool:
        """Whether the property holds, or breaks by design."""
        return self.verdict in ("holds", "breaks by design")

    def __str__(self) -> str:
        """One line of `harness check`."""
        return f"{self.name:<{max(map(len, PROPERTIES))}}  {self.verdict:<16}  {self.detail}"


@dataclass(frozen=True)
class Battery:
    """A method and the properties that it is checked for.

    `breaks` are those that its author declares broken by design under the default options; with
    `explicit` options (others than the defaults) they may hold or break. `unclaimed` properties are
    not promised under the given options: they may hold or break.
    """

    method: CheckedMethod
    breaks: tuple[str, ...] = ()
    unclaimed: tuple[str, ...] = ()
    explicit: Choice | None = None

    @property
    def properties(self) -> tuple[Property, ...]:
        """The properties about methods of its stage, in order."""
        return tuple(
            checked for checked in PROPERTIES.values() if self.method.stage in checked.stages
        )

    def find(self, checked: Property) -> Finding:
        """The result of checking one property."""
        try:
            # seeded: a method that draws from the global random state fails at the same entry every
            # time, and the caller's state is untouched; a warning about options is no finding
            with seeded(0), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                remark = checked.check(self.method)
        except (Exception, SystemExit) as error:  # any failure is a finding
            return self._broken(checked, error)
        detail = f"{checked.promise}: {remark}" if remark else checked.promise
        if checked.name in self.breaks and not self.explicit:
            return Finding(checked.name, "holds, declared to break", detail + self._noted())
        if checked.name in self.breaks:
            detail += "; declared to break with the default options"
        elif checked.name in self.unclaimed:
            detail += "; not claimed"
        return Finding(checked.name, "holds", detail + self._noted())

    def findings(self) -> list[Finding]:
        """The results of checking every property of its stage."""
        return [self.find(checked) for checked in self.properties]

    def _broken(self, checked: Property, error: BaseException) -> Finding:
        declared = checked.name in (*self.breaks, *self.unclaimed)
        # a method may break a property by another result or a refusal, not by a crash
        foreseen = isinstance(error, (Broken, HarnessError))
        by_design = declared and foreseen
        options = (str(self.explicit),) if self.explicit else ()
        line = "" if foreseen else line_of(error, self.method.function)
        detail = _reason(error) + line + self._noted(*options)
        return Finding(checked.name, "breaks by design" if by_design else "breaks", detail)

    def _noted(self, *notes: str) -> str:
        """The notes in brackets, with the number of experts unless it is three."""
        experts = self.method.experts
        notes = notes if experts == COUNTS[0] else (*notes, f"{experts} experts")
        return f" ({', '.join(notes)})" if notes else ""


def _reason(error: BaseException) -> str:
    """An error in one line: Broken as it is, any other with its type."""
    text = " ".join(str(error).split())
    text = text if isinstance(error, Broken) else f"{type(error).__name__}: {text}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def ok(findings: Sequence[Finding]) -> bool:
    """Whether every property holds, or breaks by design."""
    return all(finding.ok for finding in findings)


def battery(stage: StageName, choice: Choice, entry: Method | None = None) -> Battery:
    """The battery for a method of a stage: `entry` if given, else the registered or external one.

    Raises a HarnessError for a name, an option, a need or a property that does not exist.
    """
    entry = entry or STAGES[stage][choice.name]
    _check_said(stage, entry)
    options = resolved_options(entry, choice)
    explicit = options != resolved_options(entry, Choice(choice.name))
    # toys replace what needs compute, so options of needs are checked above and then dropped
    own = Choice(choice.name, own_options(entry, options))
    base = reads_base(entry, options)
    method = CheckedMethod(stage, own, entry.function, entry.needs, reads_base=base)
    declared = (
        broken
        for condition, broken in entry.breaks_with.items()
        if condition_holds(entry, condition, options)
    )
    # a pre-merging method without `exact` need not be exact
    inexact = ("exact", "family") if isinstance(entry, Premerge) and not entry.exact else ()
    unclaimed = (*chain(*declared), *inexact)
    return Battery(_on_enough(method), entry.breaks, unclaimed, choice if explicit else None)


def _check_said(stage: StageName, entry: Method) -> None:
    """Raise a HarnessError for a need without a toy or a declared property that does not exist."""
    for need in needs_of(entry):
        if need.toy is None:
            raise HarnessError(
                f"{entry.called} '{entry.name}' needs '{need.name}', which has no toy data to test "
                f"with; expected @need('{need.name}', toy=...)"
            )
    names = [checked.name for checked in PROPERTIES.values() if stage in checked.stages]
    for name in [*entry.breaks, *chain(*entry.breaks_with.values())]:
        if name not in names:
            label = f"{entry.called} '{entry.name}'"
            raise UnknownName(
                f"{label} declares '{name}', which is no property; {hint(name, names)}"
            )


def _on_enough(method: CheckedMethod) -> CheckedMethod:
    """The method with the first of `COUNTS` that it accepts as number of experts.

    Raises its BadOption for three experts if it refuses all.
    """
    refusals: list[BadOption] = []
    for count in COUNTS:
        tried = replace(method, experts=count)
        family = tried.family()
        # any other failure is for the properties to find
        with warnings.catch_warnings(), suppress(Exception, SystemExit):
            warnings.simplefilter("ignore")
            try:
                tried(family)
            except BadOption as error:
                refusals.append(error)
                continue
        return tried
    raise refusals[0]
