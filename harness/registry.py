"""Names: giving them, finding them, near misses, plug-ins."""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import pkgutil
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

from harness.errors import BadOption, HarnessError, UnknownName
from harness.types import Array64, Choice, Encoded, Kind, Predictions, Scalar, StateDict, Task

P = ParamSpec("P")

MergeFn: TypeAlias = Callable[Concatenate[Sequence[StateDict], StateDict, P], StateDict]
PremergeFn: TypeAlias = Callable[
    Concatenate[Sequence[StateDict], StateDict, P], Sequence[StateDict]
]
ProtocolFn: TypeAlias = Callable[Concatenate[Encoded, P], Sequence[Predictions]]
MetricFn: TypeAlias = Callable[[Array64, Array64], float]
KINDS: tuple[Kind, ...] = typing.get_args(Kind)
"""Every kind of task."""


@dataclass(frozen=True)
class Merger:
    """A merging method.

    `task_vectors`: it subtracts the base, so it needs one. `breaks`: the laws of
    `harness check merger` that it rightly breaks with its default options.
    """

    name: str
    function: Callable[..., StateDict]
    paper: str = ""
    task_vectors: bool = True
    breaks: tuple[str, ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """What the harness hands it beside the weights: keyword-only parameters with no default."""
        return needs(self.function)


@dataclass(frozen=True)
class Premerge:
    """A pre-merging method. `exact`: every expert computes the same function afterwards.

    `breaks`: the laws of `harness check premerge` that it rightly breaks with its default options.
    """

    name: str
    function: Callable[..., Sequence[StateDict]]
    paper: str = ""
    exact: bool = False
    breaks: tuple[str, ...] = ()


@dataclass(frozen=True)
class EvaluationProtocol:
    """A way to read labels off features.

    `adapts`: what it sees of the drawn rows: nothing, their text ('unlabeled'), or their labels.
    `check` is called with the options before any forward pass and raises BadOption.
    """

    name: str
    function: Callable[..., Sequence[Predictions]]
    paper: str = ""
    adapts: Literal["nothing", "unlabeled", "labeled"] = "labeled"
    check: Callable[..., None] | None = None


@dataclass(frozen=True)
class Metric:
    """A number of two arrays, `function(predicted, labels)`.

    `kinds` are the kinds of task it is fit for, `classes` the only number of classes, if there is
    one.
    """

    name: str
    function: MetricFn
    paper: str = ""
    kinds: tuple[Kind, ...] = KINDS
    classes: int | None = None


class Named(Protocol):
    """What a registry holds: anything frozen with a name."""

    @property
    def name(self) -> str: ...


V = TypeVar("V", bound=Named)


class Registry(Mapping[str, V], Generic[V]):
    """Registered values by name. Looking up scans `package` and the entry points once.

    `module:attribute` is accepted wherever somebody types a name; one that stands in a file goes
    through `from_file`, which imports nothing. `families` are prefixes `PREFIX:NAME` with the
    `module:function` that makes a value of NAME.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        adopt: Callable[[str, Any], V],
        families: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self._package = package
        self._adopt = adopt
        self._families = families or {}
        self._values: dict[str, V] = {}
        self._origins: dict[str, str] = {}
        self._spelled: dict[str, str] = {}
        self._scanned = False

    def add(self, value: V, origin: str) -> V:
        """Register a value; a name taken by another module is an error that names both."""
        taken = self._origins.get(value.name)
        if taken is not None and taken != origin:
            raise HarnessError(
                f"{self.kind} '{value.name}' is registered twice, by {taken} and by {origin}; "
                "rename one of them"
            )
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
        if colon and module not in self._families:
            raise UnknownName(
                f"{where} names the {self.kind} '{name}', and no name in a file imports code; "
                f"expected a registered {self.kind}: type this one on the command line"
            )

    def holds(self, value: V) -> bool:
        """Whether this very value is registered already."""
        return self._values.get(value.name) == value

    def spelled(self, name: str) -> str | None:
        """The `module:attribute` that a registered value was asked for by, if it was."""
        return self._spelled.get(name)

    @contextmanager
    def undone_by_errors(self) -> Iterator[None]:
        """What is registered in the block stays only if the block succeeds."""
        before = dict(self._values), dict(self._origins)
        try:
            yield
        except BaseException:
            self._values, self._origins = before
            raise

    def __getitem__(self, name: str) -> V:
        self._scan()
        if name in self._values:
            return self._values[name]
        if ":" in name:
            return self._import(name)
        near = difflib.get_close_matches(name, self._values, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(self))}"
        raise UnknownName("; ".join([f"no {self.kind} is called '{name}'", hint, *BROKEN]))

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
                import_all(self._package)
                load_plugins()
            except BaseException:
                self._scanned = False  # the next look-up must fail too, not find half of the names
                raise

    def _import(self, name: str) -> V:
        module, _, attribute = name.partition(":")
        if module in self._families:
            place, _, function = self._families[module].partition(":")
            made: V = getattr(importlib.import_module(place), function)(attribute)
            return made
        with _registering(module):
            found = _attribute(self.kind, name)
        for value in self._values.values():
            if found is value or getattr(value, "function", None) is found:
                self._spelled[value.name] = name
                return value
        adopted = self._adopt(name, found)
        self._spelled[adopted.name] = name
        return adopted if adopted.name == name else self.add(adopted, module)


def _attribute(kind: str, name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownName(
            f"no {kind} at '{name}': {error}; expected an importable module:attribute"
        ) from error


_registrar: ContextVar[str] = ContextVar("registrar", default="this program")
"""Whose import registers tasks just now."""


@contextmanager
def _registering(name: str) -> Iterator[None]:
    token = _registrar.set(name)
    try:
        yield
    finally:
        _registrar.reset(token)


@cache
def import_all(package: str) -> None:
    """Import a module, and those of its folder if it is a package: that runs their decorators."""
    with _registering(package):
        root = importlib.import_module(package)
    _check_ours(package, root)
    for module in pkgutil.iter_modules(getattr(root, "__path__", [])):
        with _registering(f"{package}.{module.name}"):
            importlib.import_module(f"{package}.{module.name}")


def _check_ours(package: str, root: types.ModuleType) -> None:
    """Raise HarnessError if a module of a user hides one of our two packages of a common name."""
    if package not in ("tasks", "protocols"):
        return
    expected = Path(__file__).resolve().parents[1] / package / "__init__.py"
    found = Path(root.__file__ or "").resolve()
    if found != expected:
        raise HarnessError(
            f"another module named '{package}' hides the harness's own: found {found}, expected "
            f"{expected}; rename it, or run from another folder"
        )


BROKEN: list[str] = []
"""Plug-ins that could not be loaded, a line for each: whose, and why."""


@cache
def load_plugins() -> None:
    """Import what other distributions declare in the entry-point group `harness`.

    One that fails is left out, with a warning that names it: what does not need it goes on.
    """
    for entry in entry_points(group="harness"):
        if broken := _loaded(entry):
            BROKEN.append(broken)
            warnings.warn(broken, stacklevel=2)


def _loaded(entry: EntryPoint) -> str | None:
    """Import a plug-in; what went wrong, if it did, and then nothing of it stays registered."""
    whose = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
    try:
        with ExitStack() as stack:
            for registry in (MERGERS, PREMERGE, PROTOCOLS, METRICS, TASKS):
                stack.enter_context(registry.undone_by_errors())
            stack.enter_context(_registering(f"{entry.value} of {whose}"))
            entry.load()
    except Exception as error:  # anybody's code, which may fail in any way
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return f"the plug-in '{entry.name}' of {whose} could not be loaded ({reason})"
    return None


def _callable(kind: str, name: str, found: object) -> Callable[..., Any]:
    if not callable(found):
        raise UnknownName(f"{kind} '{name}' is a {type(found).__name__}, expected a function")
    return found


def _task(name: str, found: object) -> Task:
    if not isinstance(found, Task):
        raise UnknownName(f"task '{name}' is a {type(found).__name__}, expected a harness.Task")
    return found


MERGERS: Registry[Merger] = Registry(
    "merger",
    "harness.mergers",
    lambda name, f: Merger(name, _callable("merger", name, f)),
    families={"mergekit": "harness.merging.mergekit.methods:family"},
)
PREMERGE: Registry[Premerge] = Registry(
    "pre-merging method",
    "harness.premergers",
    lambda name, f: Premerge(name, _callable("pre-merging method", name, f)),
)
PROTOCOLS: Registry[EvaluationProtocol] = Registry(
    "protocol",
    "protocols",
    lambda name, f: EvaluationProtocol(name, _callable("protocol", name, f)),
)
METRICS: Registry[Metric] = Registry(
    "metric", "harness.data.metrics", lambda name, f: Metric(name, _callable("metric", name, f))
)
TASKS: Registry[Task] = Registry("task", "tasks", _task)


def merger(
    name: str, *, paper: str = "", task_vectors: bool = True, breaks: tuple[str, ...] = ()
) -> Callable[[MergeFn[P]], MergeFn[P]]:
    """Register a merging method under a name."""

    def register(function: MergeFn[P]) -> MergeFn[P]:
        MERGERS.add(Merger(name, function, paper, task_vectors, breaks), function.__module__)
        return function

    return register


def premerge(
    name: str, *, paper: str = "", exact: bool = False, breaks: tuple[str, ...] = ()
) -> Callable[[PremergeFn[P]], PremergeFn[P]]:
    """Register a pre-merging method under a name."""

    def register(function: PremergeFn[P]) -> PremergeFn[P]:
        PREMERGE.add(Premerge(name, function, paper, exact, breaks), function.__module__)
        return function

    return register


def protocol(
    name: str,
    *,
    paper: str = "",
    adapts: Literal["nothing", "unlabeled", "labeled"] = "labeled",
    check: Callable[..., None] | None = None,
) -> Callable[[ProtocolFn[P]], ProtocolFn[P]]:
    """Register an evaluation protocol under a name."""

    def register(function: ProtocolFn[P]) -> ProtocolFn[P]:
        entry = EvaluationProtocol(name, function, paper, adapts, check)
        PROTOCOLS.add(entry, function.__module__)
        return function

    return register


def metric(
    name: str, *, paper: str = "", kinds: tuple[Kind, ...] = KINDS, classes: int | None = None
) -> Callable[[MetricFn], MetricFn]:
    """Register a metric under a name, for some kinds of task or one number of classes alone."""

    def register(function: MetricFn) -> MetricFn:
        METRICS.add(Metric(name, function, paper, kinds, classes), function.__module__)
        return function

    return register


def task(value: Task) -> Task:
    """Register a task under its own name and return it; a name is taken once."""
    if TASKS.holds(value):
        return value
    return TASKS.add(value, _registrar.get())


# Options -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """A keyword-only parameter with a default: its name, type and default."""

    name: str
    annotation: Any
    default: Scalar


def options(function: Callable[..., Any]) -> dict[str, Option]:
    """The options of a registered function, in the order it declares them."""
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    found = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty:
            kind = parameter.annotation
            # postponed annotations are text; only those of options are needed, and can be read
            kind = eval(kind, scope) if isinstance(kind, str) else kind
            found[parameter.name] = Option(parameter.name, kind, parameter.default)
    return found


def needs(function: Callable[..., Any]) -> tuple[str, ...]:
    """The keyword-only parameters without a default, which the harness and not the user gives."""
    return tuple(
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    )


FREE = int | float | bool | list[float] | str | None
"""What an option may be that the function does not declare; text is read in this order."""


def _takes_anything(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def resolve(kind: str, choice: Choice, *functions: Callable[..., Any]) -> dict[str, Scalar]:
    """All options of a choice including defaults, each checked against its type.

    The options are those of all the functions together; one that takes any keyword takes any
    option, as given. Raises BadOption with the near miss for an unknown name, and for a value of
    another type.
    """
    known = {name: option for function in functions for name, option in options(function).items()}
    if any(_takes_anything(function) for function in functions):
        known |= {name: Option(name, FREE, None) for name in choice.options if name not in known}
    for name in choice.options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known) or 'none'}"
            raise BadOption(f"{kind} '{choice.name}' has no option '{name}'; {hint}")
    return {
        name: _coerce(f"option '{name}' of {kind} '{choice.name}'", choice.options[name], option)
        if name in choice.options
        else option.default
        for name, option in known.items()
    }


def parse_choice(text: str) -> Choice:
    """Read `NAME`, `NAME:key=value,...` or `module:function[:key=value,...]`."""
    parts = text.split(":")
    name, rest = parts[0], parts[1:]
    if rest and "=" not in rest[0]:
        name, rest = f"{name}:{rest[0]}", rest[1:]
    found: dict[str, Scalar] = {}
    for pair in filter(None, ":".join(rest).split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise BadOption(
                f"'{text}': '{pair}' is no option, expected NAME or NAME:key=value,key=value"
            )
        found[key.strip()] = value.strip()
    return Choice(name, found)


def _coerce(what: str, value: Scalar, option: Option) -> Scalar:
    kinds = typing.get_args(option.annotation) if _is_union(option.annotation) else ()
    for kind in kinds or (option.annotation,):
        coerced, fits = _as(kind, value)
        if fits:
            return coerced
    raise BadOption(f"{what} is {value!r}, expected {_spell(option.annotation)}")


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _spell(annotation: Any) -> str:
    if _is_union(annotation):
        return " or ".join(_spell(kind) for kind in typing.get_args(annotation))
    if typing.get_origin(annotation) is Literal:
        return " or ".join(repr(value) for value in typing.get_args(annotation))
    if typing.get_origin(annotation) is list:
        return "numbers separated by ':'"
    spelled = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}
    return spelled.get(annotation, "nothing" if annotation is type(None) else str(annotation))


def _as(kind: Any, value: Scalar) -> tuple[Scalar, bool]:
    """The value as the kind, and whether it fits. Text (from a command line) is parsed."""
    if kind is type(None):
        return None, value is None or str(value).lower() == "none"
    if typing.get_origin(kind) is Literal:
        return value, value in typing.get_args(kind)
    if typing.get_origin(kind) is list:
        items = value.split(":") if isinstance(value, str) else value
        if not isinstance(items, list):
            return None, False
        numbers = [_as(float, item) for item in items]
        return [float(n) for n, _ in numbers if isinstance(n, float)], all(f for _, f in numbers)
    if kind is bool:
        spelled = {"true": True, "false": False}.get(str(value).lower())
        return spelled, spelled is not None
    if kind is str:
        return value, isinstance(value, str)
    if isinstance(value, bool):
        return None, False
    try:
        number = kind(value)
        whole = not (kind is int and isinstance(value, float) and value % 1)
        return number, whole and math.isfinite(number)
    except (TypeError, ValueError, OverflowError):
        return None, False
