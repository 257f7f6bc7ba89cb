"""Names: giving them, finding them, near misses."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
)

from harness.entries import (
    ALL_KINDS,
    BreaksWith,
    Claim,
    Entry,
    EvaluationProtocol,
    Merger,
    Metric,
    MetricFn,
    Postmerge,
    Premerge,
)
from harness.errors import HarnessError, UnknownName
from harness.plugins import (
    BROKEN,
    PREFIX,
    attribute_of,
    called,
    import_all,
    load_all,
    load_folder,
    others_declared,
    registering,
    registrar,
)
from harness.types import (
    Checkpoint,
    Encoded,
    FeaturesName,
    KindName,
    Need,
    Predictions,
    Scalar,
    StateDict,
    Task,
    Whose,
)

if TYPE_CHECKING:
    import torch

    from harness.weights.lazy import Spec

P = ParamSpec("P")
MergeFn: TypeAlias = Callable[Concatenate[Sequence[StateDict], StateDict, P], StateDict]
PremergeFn: TypeAlias = Callable[
    Concatenate[Sequence[StateDict], StateDict, P], Sequence[StateDict]
]
PostmergeFn: TypeAlias = Callable[
    Concatenate[StateDict, Sequence[StateDict], StateDict, P], StateDict
]
ProtocolFn: TypeAlias = Callable[Concatenate[Encoded, P], Sequence[Predictions]]
YAML = (".yaml", ".yml")
NOTHING: BreaksWith = MappingProxyType({})


class Named(Protocol):
    """What a registry holds: anything frozen with a name."""

    @property
    def name(self) -> str: ...


V = TypeVar("V", bound=Named)
E = TypeVar("E", bound=Entry)
F = TypeVar("F", bound=Callable[..., Any])


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
        files: str | None = None,
    ) -> None:
        self.kind = kind
        self._package = package
        self._adopt = adopt
        self._families = families or {}
        self._files = files
        self._values: dict[str, V] = {}
        self._origins: dict[str, str] = {}
        self._spelled: dict[str, str] = {}
        self.hints: dict[str, str] = {}  # what to say to who asks for a name that is not known
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

    @property
    def has_others(self) -> bool:
        """Whether something was registered by others than this program, or will be."""
        ours = all(origin.startswith("harness.") for origin in self._origins.values())
        return not ours or others_declared()

    def spelled(self, name: str) -> str | None:
        """The `module:attribute` or file that a value was asked for by, if it was."""
        return self._spelled.get(name)

    @contextmanager
    def undone_by_errors(self) -> Iterator[None]:
        """What is registered in the block stays only if the block succeeds."""
        before = dict(self._values), dict(self._origins), dict(self._spelled)
        try:
            yield
        except BaseException:
            self._values, self._origins, self._spelled = before
            raise

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
        if self._files and name.endswith(YAML):
            return self._read(name)
        if ":" in name:
            return self._import(name)
        if name in self.hints:
            raise UnknownName(f"no {self.kind} is called '{name}' here: {self.hints[name]}")
        near = difflib.get_close_matches(name, self._values, n=1)
        own = "one of your own is named by its file, as in ./mine.yaml; " if self._files else ""
        known = f"{own}known: {', '.join(sorted(self))}"
        hint = f"did you mean '{near[0]}'?" if near else known
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
                load_all(undone_by_errors)
            except BaseException:
                self._scanned = False  # the next look-up must fail too, not find half of the names
                raise

    def _read(self, name: str) -> V:
        """The value that a file describes, registered under its own name."""
        value = self._adopt(name, called(self._files or "")(name))
        taken = self._origins.get(value.name)
        if taken is not None and not taken.endswith(YAML):
            raise HarnessError(
                f"{name} describes the {self.kind} '{value.name}', which is registered by {taken}; "
                "give it another name"
            )
        self._origins.pop(value.name, None)
        self._spelled[value.name] = name
        return self.add(value, name)

    def _import(self, name: str) -> V:
        module, _, attribute = name.partition(":")
        if module in self._families:
            made: V = called(self._families[module])(attribute)
            return made
        with registering(module):
            target = attribute_of(self.kind, name)
        for value in self._values.values():
            if target is value or getattr(value, "function", None) is target:
                self._spelled[value.name] = name
                return value
        adopted = self._adopt(name, target)
        self._spelled[adopted.name] = name
        return adopted if adopted.name == name else self.add(adopted, module)


@contextmanager
def undone_by_errors() -> Iterator[None]:
    """What is registered in the block, anywhere, stays only if the block succeeds."""
    with ExitStack() as stack:
        for registry in REGISTRIES.values():
            stack.enter_context(registry.undone_by_errors())
        yield


def load_plugins(folder: str | Path) -> None:
    """Import every Python file of a folder: what they register is known from now on.

    Raises BrokenPlugin, naming the file, for one that cannot be imported, and then nothing of the
    folder is registered.
    """
    load_folder(folder, undo=undone_by_errors)


def _origin(function: Callable[..., Any]) -> str:
    """Who registers a function: the module that it is of, or the file of a user's folder."""
    module = function.__module__
    return registrar() if module.startswith(PREFIX) else module


def _check_labels(value: Task) -> None:
    from harness.kinds import check_labels  # brings numpy, which `import harness` does not

    check_labels(value)


def _task(name: str, target: object) -> Task:
    if not isinstance(target, Task):
        raise UnknownName(f"task '{name}' is a {type(target).__name__}, expected a harness.Task")
    _check_labels(target)
    return target


def _need(name: str, target: object) -> Need:
    raise UnknownName(
        f"need '{name}' is a {type(target).__name__}, expected a function that `@need` registers"
    )


def _of(entry: type[E], package: str, families: Mapping[str, str] | None = None) -> Registry[E]:
    """The registry of functions of a package, each held with what is said of it."""

    def adopted(name: str, target: object) -> E:
        if not callable(target):
            found = type(target).__name__
            raise UnknownName(f"{entry.called} '{name}' is a {found}, expected a function")
        return entry(name, target)

    return Registry(entry.called, package, adopted, families)


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


def _adding(registry: Registry[V], made: Callable[[Any], V]) -> Callable[[F], F]:
    """What registers a function by what is made of it, and gives it back."""

    def register(function: F) -> F:
        registry.add(made(function), _origin(function))
        return function

    return register


def merger(
    name: str,
    *,
    paper: str = "",
    task_vectors: bool = True,
    breaks: tuple[str, ...] = (),
    by_label: bool = False,
    breaks_with: BreaksWith = NOTHING,
) -> Callable[[MergeFn[P]], MergeFn[P]]:
    """Register a merging method under a name."""

    return _adding(
        MERGERS, lambda f: Merger(name, f, paper, breaks, breaks_with, task_vectors, by_label)
    )


def premerge(
    name: str,
    *,
    paper: str = "",
    exact: bool = False,
    breaks: tuple[str, ...] = (),
    costly: bool = False,
    breaks_with: BreaksWith = NOTHING,
    reads_base: Claim = True,
) -> Callable[[PremergeFn[P]], PremergeFn[P]]:
    """Register a pre-merging method under a name."""

    return _adding(
        PREMERGE, lambda f: Premerge(name, f, paper, breaks, breaks_with, exact, costly, reads_base)
    )


def postmerge(
    name: str,
    *,
    paper: str = "",
    breaks: tuple[str, ...] = (),
    breaks_with: BreaksWith = NOTHING,
    rereads: Claim = False,
) -> Callable[[PostmergeFn[P]], PostmergeFn[P]]:
    """Register a post-merging method under a name."""

    return _adding(POSTMERGE, lambda f: Postmerge(name, f, paper, breaks, breaks_with, rereads))


def need(
    name: str,
    *,
    paper: str = "",
    rows: Whose = "own",
    shapes: Callable[[Checkpoint], Mapping[str, Spec]] | None = None,
    fault: Callable[[torch.Tensor], str | None] | None = None,
    check: Callable[[Mapping[str, Scalar]], None] | None = None,
    toy: Callable[[Sequence[StateDict]], Any] | None = None,
    kinds: tuple[KindName, ...] = ALL_KINDS,
) -> Callable[[F], F]:
    """Register what a method may ask for by a parameter of this name; see `Need`."""

    return _adding(NEEDS, lambda f: Need(name, f, paper, rows, shapes, fault, check, toy, kinds))


def protocol(
    name: str,
    *,
    paper: str = "",
    adapts: Literal["nothing", "unlabeled", "labeled"] = "labeled",
    check: Callable[..., None] | None = None,
    transductive: Callable[..., bool] | None = None,
    by_default: bool = True,
    of_tags: tuple[str, ...] = (),
    outside: Callable[..., int] | None = None,
    features: Callable[..., FeaturesName] | None = None,
) -> Callable[[ProtocolFn[P]], ProtocolFn[P]]:
    """Register an evaluation protocol under a name."""

    return _adding(
        PROTOCOLS,
        lambda f: EvaluationProtocol(
            name, f, paper, adapts, check, transductive, by_default, of_tags, outside, features
        ),
    )


def metric(
    name: str,
    *,
    paper: str = "",
    kinds: tuple[KindName, ...] = ALL_KINDS,
    classes: int | None = None,
    undefined: Callable[[Any], str | None] | None = None,
    prefixes: str = "",
) -> Callable[[MetricFn], MetricFn]:
    """Register a metric under a name, with what `Metric` says of it."""

    return _adding(METRICS, lambda f: Metric(name, f, paper, kinds, classes, undefined, prefixes))


def task(value: Task) -> Task:
    """Register a task under its own name and return it; a name is taken once.

    Raises BadData for labels that do not fit its kind.
    """
    _check_labels(value)
    if TASKS.holds(value):
        return value
    return TASKS.add(value, registrar())
