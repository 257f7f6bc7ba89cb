"""Names: giving them, finding them, near misses."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, overload

from harness import plugins
from harness.code import PREFIX, code_of_plugins, keep
from harness.entries import Entry, EvaluationProtocol, Merger, Metric, MetricFn, Postmerge, Premerge
from harness.errors import HarnessError, UnknownName
from harness.text import hint
from harness.types import Encoded, Need, Predictions, StateDict, Task

P = ParamSpec("P")
Q = ParamSpec("Q")
MergeFn: TypeAlias = Callable[Concatenate[Sequence[StateDict], StateDict, P], StateDict]
PremergeFn: TypeAlias = Callable[
    Concatenate[Sequence[StateDict], StateDict, P], Sequence[StateDict]
]
PostmergeFn: TypeAlias = Callable[
    Concatenate[StateDict, Sequence[StateDict], StateDict, P], StateDict
]
ProtocolFn: TypeAlias = Callable[Concatenate[Encoded, P], Sequence[Predictions]]
YAML = (".yaml", ".yml")


V = TypeVar("V", bound=Entry | Need | Task)
E = TypeVar("E", bound=Entry)
F = TypeVar("F", bound=Callable[..., Any])
Making: TypeAlias = Callable[Concatenate[str, Any, Q], V]
"""What makes an entry of a name, a function, and what is said of it."""
Naming: TypeAlias = Callable[Concatenate[str, Q], Callable[[F], F]]
"""A decorator for a name and what is said: it hands the function back."""


@dataclass(eq=False, repr=False)
class Registry(Mapping[str, V], Generic[V]):
    """Registered values by name. Looking up scans `package` and the entry points once.

    `module:attribute` is accepted wherever somebody types a name; one that stands in a file goes
    through `from_file`, which imports nothing. `families` are prefixes `PREFIX:NAME` with the
    `module:function` that makes a value of NAME; `files`, that of what a file describes.
    """

    kind: str
    package: str
    adopt: Callable[[str, Any], V]
    families: Mapping[str, str] = field(default_factory=dict)
    files: str = ""
    hints: dict[str, str] = field(default_factory=dict)  # for who asks for a name not known
    _values: dict[str, V] = field(default_factory=dict)
    _origins: dict[str, str] = field(default_factory=dict)
    _asked: dict[str, V] = field(default_factory=dict)  # by `module:attribute`, or file
    _scanned: bool = False

    def add(self, value: V, origin: str) -> V:
        """Register a value; a name taken by another module is an error that names both."""
        if not origin.startswith(f"{self.package.partition('.')[0]}."):
            plugins.import_all(self.package)  # else a name of ours is found to be taken too late
        taken = self._origins.get(value.name)
        if taken is not None and taken != origin:
            where = f"by {taken} and by {origin}"
            raise HarnessError(f"{self.kind} '{value.name}' is registered {where}; rename one")
        self._values[value.name] = value
        self._origins[value.name] = origin
        return value

    def from_file(self, name: str, where: str) -> V:
        """The value of a name that stands in a file, which never makes the harness import code."""
        self.check_name(name, where)
        return self[name]

    def check_name(self, name: str, where: str) -> None:
        """Raise UnknownName for a name in a file that would have to be imported."""
        module, colon, _ = name.partition(":")
        if colon and module not in self.families:
            raise UnknownName(
                f"{where} names the {self.kind} '{name}', which no file may import; expected a "
                "registered one: type this on the command line"
            )

    def holds(self, value: V) -> bool:
        """Whether this very value is registered already."""
        return self._values.get(value.name) == value

    @property
    def has_others(self) -> bool:
        """Whether something was registered by others than this program, or will be."""
        ours = all(origin.startswith("harness.") for origin in self._origins.values())
        return not ours or plugins.others_declared()

    def spelled(self, name: str) -> str | None:
        """The `module:attribute` or file that a value was asked for by, if it was."""
        asked = reversed(self._asked.items())  # what was typed last
        return next((text for text, one in asked if one.name == name), None)

    def loaded(self, name: str) -> V | None:
        """The value of a name, or of the `module:attribute` that somebody asked for it by; None
        without one. Nothing is imported."""
        self._scan()
        return self._asked.get(name) or self._values.get(name)

    @contextmanager
    def undone_by_errors(self) -> Iterator[None]:
        """What is registered in the block stays only if the block succeeds."""
        before = dict(self._values), dict(self._origins), dict(self._asked)
        try:
            yield
        except BaseException:
            self._values, self._origins, self._asked = before
            raise

    def drop(self, folder: str) -> None:
        """Forget what Python files of a folder registered."""
        for name, origin in [*self._origins.items()]:
            if origin.endswith(".py") and os.path.dirname(origin) == folder:
                gone = self._values.pop(name)
                del self._origins[name]
                self._asked = {text: one for text, one in self._asked.items() if one is not gone}

    @contextmanager
    def standing_in(self, values: Sequence[V]) -> Iterator[None]:
        """In the block, these values are found by their names whatever is registered."""
        self._scan()
        before = self._values
        self._values = {**before, **{value.name: value for value in values}}
        try:
            yield
        finally:
            self._values = before

    def __getitem__(self, name: str) -> V:
        self._scan()
        if name in self._values:
            return self._values[name]
        if self.files and name.endswith(YAML):
            return self._read(name)
        if ":" in name:
            return self._import(name)
        if name in self.hints:
            raise UnknownName(f"no {self.kind} is called '{name}' here: {self.hints[name]}")
        for stage, other in STAGES.items():
            if other is not self and self in STAGES.values() and name in other:
                raise UnknownName(
                    f"'{name}' is a {other.kind}, no {self.kind}; say --{stage} {name}"
                )
        how = "named by its file, as in ./mine.yaml" if self.files else "known by --plugins FOLDER"
        known = hint(name, sorted(self), f"one of your own is {how}; ")
        raise UnknownName("; ".join([f"no {self.kind} is called '{name}'", known, *plugins.BROKEN]))

    def __contains__(self, name: object) -> bool:
        self._scan()
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        self._scan()
        return iter(sorted(self._values))

    def __len__(self) -> int:
        self._scan()
        return len(self._values)

    def _scan(self) -> None:
        if not self._scanned:
            self._scanned = True
            try:
                plugins.import_all(self.package)
                plugins.load_all(undone_by_errors)
            except BaseException:
                self._scanned = False  # the next look-up must fail too, not find half of the names
                raise

    def _read(self, name: str) -> V:
        """The value that a file describes, registered under its own name."""
        value = self.adopt(name, resolve_name(self.files)(name))
        taken = self._origins.get(value.name)
        if taken is not None and not taken.endswith(YAML):
            thing = f"{self.kind} '{value.name}'"
            raise HarnessError(f"{name} describes the {thing}, registered by {taken}; rename it")
        self._origins.pop(value.name, None)
        self._asked = {text: one for text, one in self._asked.items() if one.name != value.name}
        self._asked[name] = self.add(value, name)
        return value

    def _import(self, name: str) -> V:
        module, _, attribute = name.partition(":")
        if module in self.families:
            made: V = resolve_name(self.families[module])(attribute)
            return made
        try:
            with plugins.registering(module):
                target = plugins.attribute_of(self.kind, name)
        except UnknownName as error:
            if module not in self._values:
                raise
            raise UnknownName(f"{error}, or a value: {name}=VALUE") from error
        for value in self._values.values():
            if target is value or getattr(value, "function", None) is target:
                self._asked.pop(name, None)
                self._asked[name] = value
                return value
        adopted = self.adopt(name, target)
        self._asked.pop(name, None)
        self._asked[name] = adopted if adopted.name == name else self.add(adopted, module)
        return adopted


@contextmanager
def undone_by_errors(folder: str = "") -> Iterator[None]:
    """What is registered in the block, anywhere, stays only if the block succeeds; what is ours,
    and would be imported once within it, is there before. What files of the folder registered is
    gone."""
    with ExitStack() as stack:
        for registry in REGISTRIES.values():
            plugins.import_all(registry.package)
        for registry in REGISTRIES.values():
            stack.enter_context(registry.undone_by_errors())
            if folder:
                registry.drop(folder)
        yield


def load_plugins(folder: str | Path) -> None:
    """Import every Python file of a folder: what they register is known from now on.

    A folder that was loaded is loaded again where a file of it is another, new or gone; what it had
    registered is forgotten. Raises BrokenPlugin, naming the file, for one that cannot be imported:
    then all is as it was before.
    """
    plugins.load_folder(folder, undo=undone_by_errors)


def _origin(function: Callable[..., Any]) -> str:
    """Who registers a function: the module that it is of, or the file of a user's folder."""
    module = function.__module__
    return plugins.registrar() if module.startswith(PREFIX) else module


def _check_labels(value: Task) -> None:
    from harness.kinds import check_labels  # brings numpy, which `import harness` does not

    check_labels(value)


def _task(name: str, target: object) -> Task:
    if not isinstance(target, Task):
        raise UnknownName(f"task '{name}' is a {type(target).__name__}, expected a harness.Task")
    _check_labels(target)
    return target


def _need(name: str, target: object) -> Need:
    found = type(target).__name__
    raise UnknownName(f"need '{name}' is a {found}, expected a function under `@need`")


def _of(entry: type[E], package: str, **more: Any) -> Registry[E]:
    """The registry of functions of a package, each held with what is said of it."""

    def adopted(name: str, target: object) -> E:
        if not callable(target):
            found = type(target).__name__
            raise UnknownName(f"{entry.called} '{name}' is a {found}, expected a function")
        return entry(name, target)

    return Registry(entry.called, package, adopted, **more)


MERGERS = _of(
    Merger, "harness.mergers", families={"mergekit": "harness.merging.mergekit.methods:family"}
)
PREMERGE = _of(Premerge, "harness.premergers")
POSTMERGE = _of(Postmerge, "harness.postmergers")
NEEDS: Registry[Need] = Registry("need", "harness.needs", _need)
PROTOCOLS = _of(EvaluationProtocol, "harness.protocols")
METRICS = _of(Metric, "harness.data.metrics")
TASKS: Registry[Task] = Registry(
    "task", "harness.tasks", _task, files="harness.data.own:task_of_file"
)
STAGES: Mapping[str, Registry[Any]] = {
    "premerge": PREMERGE,
    "merger": MERGERS,
    "postmerge": POSTMERGE,
}
"""The methods of each stage of a merge, by what a recipe calls it."""
REGISTRIES: Mapping[str, Registry[Any]] = {
    "mergers": MERGERS,
    "premerge": PREMERGE,
    "postmerge": POSTMERGE,
    "needs": NEEDS,
    "tasks": TASKS,
    "protocols": PROTOCOLS,
    "metrics": METRICS,
}
"""All of them, by what `harness list` calls them."""


@overload
def _adding(registry: Registry[Merger], entry: Making[Q, Merger]) -> Naming[Q, MergeFn[P]]: ...
@overload
def _adding(
    registry: Registry[Premerge], entry: Making[Q, Premerge]
) -> Naming[Q, PremergeFn[P]]: ...
@overload
def _adding(
    registry: Registry[Postmerge], entry: Making[Q, Postmerge]
) -> Naming[Q, PostmergeFn[P]]: ...
@overload
def _adding(
    registry: Registry[EvaluationProtocol], entry: Making[Q, EvaluationProtocol]
) -> Naming[Q, ProtocolFn[P]]: ...
@overload
def _adding(registry: Registry[Metric], entry: Making[Q, Metric]) -> Naming[Q, MetricFn]: ...
@overload
def _adding(registry: Registry[Need], entry: Making[Q, Need]) -> Naming[Q, F]: ...
def _adding(registry: Registry[Any], entry: Callable[..., Any]) -> Any:
    """A decorator that registers a function by a name, and by what an entry says of one."""

    def named(name: str, **said: Any) -> Callable[[F], F]:
        if not isinstance(name, str):
            raise HarnessError(f"a {registry.kind} is {name!r:.80}, expected @...('NAME') above it")

        def register(function: F) -> F:
            keep(function)
            registry.add(entry(name, function, **said), _origin(function))
            return function

        return register

    own = inspect.signature(entry)
    said = [parameter for name, parameter in own.parameters.items() if name != "function"]
    named.__dict__["__signature__"] = own.replace(parameters=said, return_annotation=own.empty)
    named.__doc__ = f"Register a {registry.kind} under a name.\n\n{inspect.getdoc(entry)}"
    return named


merger = _adding(MERGERS, Merger)
premerge = _adding(PREMERGE, Premerge)
postmerge = _adding(POSTMERGE, Postmerge)
need = _adding(NEEDS, Need)
protocol = _adding(PROTOCOLS, EvaluationProtocol)
metric = _adding(METRICS, Metric)


def scoring_code(scored_by: EvaluationProtocol, metrics: Sequence[str]) -> str:
    """A hash of somebody else's code that makes a score: of a protocol and of metrics by name."""
    used = [METRICS[name].function for name in metrics]
    return code_of_plugins([scored_by.function, *used])


def task(value: Task) -> Task:
    """Register a task under its own name and return it; a name is taken once.

    Raises BadData for labels that do not fit its kind.
    """
    _check_labels(value)
    if TASKS.holds(value):
        return value
    return TASKS.add(value, plugins.registrar())
