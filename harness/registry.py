"""Registries: functions and tasks by name, how they are registered and looked up."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from threading import RLock
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
_scanning = RLock()
"""Held while names are imported: a look-up of another thread waits, one within a plug-in passes."""


V = TypeVar("V", bound=Entry | Need | Task)
E = TypeVar("E", bound=Entry)
F = TypeVar("F", bound=Callable[..., Any])
Making: TypeAlias = Callable[Concatenate[str, Any, Q], V]
"""Makes an entry from a name, a function and the entry's own fields."""
Naming: TypeAlias = Callable[Concatenate[str, Q], Callable[[F], F]]
"""Makes a decorator from a name and an entry's fields; the decorator returns the function."""


@dataclass(eq=False, repr=False)
class Registry(Mapping[str, V], Generic[V]):
    """Registered values by name. The first look-up imports `package` and the entry points.

    Where a user types a name, `module:attribute` is accepted too; a name from a file goes through
    `from_file`, which imports nothing. `families` maps a PREFIX to the `module:function` that makes
    a value for `PREFIX:NAME`; `files` is the `module:function` that makes one from a YAML file.
    """

    kind: str
    package: str
    adopt: Callable[[str, Any], V]
    families: Mapping[str, str] = field(default_factory=dict)
    files: str = ""
    hints: dict[str, str] = field(default_factory=dict)  # by unknown name: text for the error
    _values: dict[str, V] = field(default_factory=dict)
    _origins: dict[str, str] = field(default_factory=dict)
    _asked: dict[str, V] = field(default_factory=dict)  # by the typed `module:attribute` or file
    _scanned: bool = False

    def add(self, value: V, origin: str) -> V:
        """Register a value. Raises HarnessError for a name taken by another module, naming both."""
        if not origin.startswith(f"{self.package.partition('.')[0]}."):
            plugins.import_all(self.package)  # so that a clash with a name of ours is found now
        owner = self._origins.get(value.name)
        if owner is not None and owner != origin:
            where = f"by {owner} and by {origin}"
            raise HarnessError(f"{self.kind} '{value.name}' is registered {where}; rename one")
        self._values[value.name] = value
        self._origins[value.name] = origin
        return value

    def from_file(self, name: str, where: str) -> V:
        """The value of a name read from a file; no file can make the harness import code."""
        self.check_name(name, where)
        return self[name]

    def check_name(self, name: str, where: str) -> None:
        """Raise UnknownName for a name from a file that requires an import."""
        module, colon, _ = name.partition(":")
        if colon and module not in self.families:
            raise UnknownName(
                f"{where} names the {self.kind} '{name}', and no file may import code; expected a "
                "registered name: type this one on the command line"
            )

    def holds(self, value: V) -> bool:
        """Whether a value equal to this one is registered under its name."""
        return self._values.get(value.name) == value

    @property
    def has_others(self) -> bool:
        """Whether plug-ins have registered something, or will on the first look-up."""
        ours = all(origin.startswith("harness.") for origin in self._origins.values())
        return not ours or plugins.others_declared()

    def typed_name(self, name: str) -> str | None:
        """The `module:attribute` or file with which a value was looked up; None if by its name."""
        looked_up = reversed(self._asked.items())  # the latest first
        return next((text for text, entry in looked_up if entry.name == name), None)

    def loaded(self, name: str) -> V | None:
        """The value of a name, or of a `module:attribute` or file looked up before; else None.
        Unlike indexing, it imports no `module:attribute` and reads no file."""
        self._scan()
        return self._asked.get(name) or self._values.get(name)

    @contextmanager
    def undone_by_errors(self) -> Iterator[None]:
        """Undo the registrations of the block if it fails."""
        before = dict(self._values), dict(self._origins), dict(self._asked)
        try:
            yield
        except BaseException:
            self._values, self._origins, self._asked = before
            raise

    def drop(self, folder: str) -> None:
        """Remove what the Python files of a folder registered."""
        for name, origin in [*self._origins.items()]:
            if origin.endswith(".py") and os.path.dirname(origin) == folder:
                gone = self._values.pop(name)
                del self._origins[name]
                self._asked = {text: one for text, one in self._asked.items() if one is not gone}

    @contextmanager
    def overridden_by(self, values: Sequence[V]) -> Iterator[None]:
        """In the block, these values replace the registered ones of the same names."""
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
        of_stages = any(self is one for one in STAGES.values())  # `in` would compare all entries
        for stage, other in STAGES.items() if of_stages else ():
            if other is not self and name in other:
                raise UnknownName(
                    f"'{name}' is a {other.kind}, no {self.kind}; say --{stage} {name}"
                )
        way = "named by its file, as in ./mine.yaml" if self.files else "known by --plugins FOLDER"
        guess = hint(name, sorted(self), f"one of your own is {way}; ")
        raise UnknownName("; ".join([f"no {self.kind} is called '{name}'", guess, *plugins.BROKEN]))

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
        with _scanning:
            if self._scanned:
                return
            self._scanned = True
            try:
                plugins.import_all(self.package)
                plugins.load_all(undone_by_errors)
            except BaseException:
                self._scanned = False  # the next look-up fails too, rather than miss names
                raise

    def _read(self, name: str) -> V:
        """The value that a YAML file describes, registered under the name given in the file."""
        value = self.adopt(name, resolve_name(self.files)(name))
        owner = self._origins.get(value.name)
        if owner is not None and not owner.endswith(YAML):
            thing = f"{self.kind} '{value.name}'"
            raise HarnessError(f"{name} describes the {thing}, which {owner} registered; rename it")
        self._origins.pop(value.name, None)
        self._asked = {text: one for text, one in self._asked.items() if one.name != value.name}
        self._asked[name] = self.add(value, name)
        return value

    def _import(self, name: str) -> V:
        """The value for `PREFIX:NAME`, or at `module:attribute`, which is registered if new."""
        module, _, attribute = name.partition(":")
        if module in self.families:
            entry: V = resolve_name(self.families[module])(attribute)
            return entry
        try:
            with plugins.registering(module):
                target = plugins.attribute_of(self.kind, name)
        except UnknownName as error:
            if module not in self._values:
                raise
            raise UnknownName(f"{error}, or a value: {name}=VALUE") from error
        self._asked.pop(name, None)
        for value in self._values.values():
            if target is value or getattr(value, "function", None) is target:
                self._asked[name] = value
                return value
        adopted = self.adopt(name, target)
        self._asked[name] = adopted if adopted.name == name else self.add(adopted, module)
        return adopted


@contextmanager
def undone_by_errors(folder: str = "") -> Iterator[None]:
    """Undo the registrations of the block, in all registries, if it fails.

    Our own modules are imported before the block: they are imported once, so undoing would lose
    them. What files of `folder` registered earlier is removed first.
    """
    with ExitStack() as stack:
        for registry in REGISTRIES.values():
            plugins.import_all(registry.package)
        for registry in REGISTRIES.values():
            stack.enter_context(registry.undone_by_errors())
            if folder:
                registry.drop(folder)
        yield


def load_plugins(folder: str | Path) -> None:
    """Import every Python file of a folder, and so register its tasks, protocols and methods.

    A folder is loaded again if a file of it was changed, added or removed; its earlier
    registrations are then removed. Raises BrokenPlugin, naming the file, for a file that cannot be
    imported; everything is then as it was before the call.
    """
    plugins.load_folder(folder, undo=undone_by_errors)


def _origin(function: Callable[..., Any]) -> str:
    """The origin of a function: its module or, for a folder of plug-ins, its file."""
    module = function.__module__
    return plugins.registrar() if module.startswith(PREFIX) else module


def _check_labels(value: Task) -> None:
    from harness.kinds import check_labels  # imports numpy, which `import harness` must not

    check_labels(value)


def _task(name: str, target: object) -> Task:
    if not isinstance(target, Task):
        raise UnknownName(f"task '{name}' is a {type(target).__name__}, expected a harness.Task")
    _check_labels(target)
    return target


def _need(name: str, target: object) -> Need:
    found = type(target).__name__
    raise UnknownName(f"need '{name}' is a {found}, expected a function under `@need`")


def _registry_of(entry: type[E], package: str, **more: Any) -> Registry[E]:
    """A registry of the functions of a package, each wrapped in an `entry`."""

    def adopted(name: str, target: object) -> E:
        if not callable(target):
            found = type(target).__name__
            raise UnknownName(f"{entry.called} '{name}' is a {found}, expected a function")
        return entry(name, target)

    return Registry(entry.called, package, adopted, **more)


MERGERS = _registry_of(
    Merger, "harness.mergers", families={"mergekit": "harness.merging.mergekit.methods:family"}
)
PREMERGE = _registry_of(Premerge, "harness.premergers")
POSTMERGE = _registry_of(Postmerge, "harness.postmergers")
NEEDS: Registry[Need] = Registry("need", "harness.needs", _need)
PROTOCOLS = _registry_of(EvaluationProtocol, "harness.protocols")
METRICS = _registry_of(Metric, "harness.data.metrics")
TASKS: Registry[Task] = Registry(
    "task", "harness.tasks", _task, files="harness.data.own:task_of_file"
)
STAGES: Mapping[str, Registry[Any]] = {
    "premerge": PREMERGE,
    "merger": MERGERS,
    "postmerge": POSTMERGE,
}
"""The registry for each stage of a merge, by the stage's name in a recipe."""
REGISTRIES: Mapping[str, Registry[Any]] = {
    "mergers": MERGERS,
    "premerge": PREMERGE,
    "postmerge": POSTMERGE,
    "needs": NEEDS,
    "tasks": TASKS,
    "protocols": PROTOCOLS,
    "metrics": METRICS,
}
"""All registries, by their names in `harness list`."""


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
    """A decorator that registers a function under a name, with the entry's fields as keywords."""

    def named(name: str, **fields: Any) -> Callable[[F], F]:
        if not isinstance(name, str):
            raise HarnessError(
                f"the name of a {registry.kind} is {name!r:.80}, expected text: write @...('NAME')"
            )

        def register(function: F) -> F:
            keep(function)
            registry.add(entry(name, function, **fields), _origin(function))
            return function

        return register

    own = inspect.signature(entry)
    fields = [parameter for name, parameter in own.parameters.items() if name != "function"]
    named.__dict__["__signature__"] = own.replace(parameters=fields, return_annotation=own.empty)
    named.__doc__ = f"Register a {registry.kind} under a name.\n\n{inspect.getdoc(entry)}"
    return named


merger = _adding(MERGERS, Merger)
premerge = _adding(PREMERGE, Premerge)
postmerge = _adding(POSTMERGE, Postmerge)
need = _adding(NEEDS, Need)
protocol = _adding(PROTOCOLS, EvaluationProtocol)
metric = _adding(METRICS, Metric)


def scoring_code(scored_by: EvaluationProtocol, metrics: Sequence[str]) -> str:
    """A hash of the plug-ins' code that computes a score: the protocol's and the metrics'; '' if
    all are ours."""
    used = [METRICS[name].function for name in metrics]
    return code_of_plugins([scored_by.function, *used])


def task(value: Task) -> Task:
    """Register a task under its own name and return it.

    Raises BadData for labels that do not fit its kind, HarnessError for a name that is taken by
    another module.
    """
    _check_labels(value)
    if TASKS.holds(value):
        return value
    return TASKS.add(value, plugins.registrar())
