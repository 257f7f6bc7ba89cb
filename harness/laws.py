"""The laws of merging and pre-merging methods: each a function that raises Broken.

A law is about toys of `harness.toys`, so it needs no data and no network. What the harness does
around a method (types, buffers, files, refusals) is tried through `harness.merge` itself.
"""

from __future__ import annotations

import inspect
import random
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from safetensors.torch import save_file

from harness import toys, weights
from harness.checkpoints import SINGLE, build_model, new_folder, open_checkpoint
from harness.errors import BrokenCheckpoint, HarnessError
from harness.merging import merge
from harness.recipes import Recipe
from harness.toys import Family, Tensors
from harness.types import Choice, StateDict

Kind: TypeAlias = Literal["merger", "premerge"]

ROUNDING = 1e-6
"""How far apart, relative to max(1, size), two orders of the same float32 sum may come out."""

DRIFT = 1e-4
"""How far the outputs of a float32 network may move, relative to the largest, and be the same."""


class Broken(AssertionError):
    """What a law found, naming the tensor."""


@dataclass(frozen=True)
class Method:
    """A merger or a pre-merging method as the laws see it: with all its options, on n experts."""

    kind: Kind
    choice: Choice
    function: Callable[..., Any]
    needs: tuple[str, ...] = ()
    experts: int = 3

    def __call__(self, family: Family) -> list[StateDict]:
        """The merged model alone, or every expert after the pre-merging method."""
        found = self.function(family.experts, family.base, **self.choice.options, **family.needs)
        return [found] if self.kind == "merger" else list(found)

    def family(self, shapes: toys.Shapes | None = None) -> Family:
        """Fresh toys for it."""
        return toys.family(self.experts, self.needs, shapes)


@dataclass(frozen=True)
class Law:
    """A promise, and the function that raises Broken, naming the tensor, where it is not kept.

    `check` may return a remark.
    """

    name: str
    check: Callable[[Method], str | None]
    kinds: tuple[Kind, ...]

    @property
    def promise(self) -> str:
        """The promise in one line: the docstring of its function, as far as the first full stop."""
        text = " ".join((inspect.getdoc(self.check) or "").split())
        return text.partition(". ")[0].rstrip(".")


LAWS: dict[str, Law] = {}
"""Every law by its name, in the order in which they are tried."""


def law(
    name: str, *kinds: Kind
) -> Callable[[Callable[[Method], str | None]], Callable[[Method], str | None]]:
    """Add a law, about both kinds of method unless `kinds` says which."""

    def add(check: Callable[[Method], str | None]) -> Callable[[Method], str | None]:
        LAWS[name] = Law(name, check, kinds or ("merger", "premerge"))
        return check

    return add


# Comparing ---------------------------------------------------------------------------------


def same_names(found: StateDict, expected: StateDict) -> None:
    """Raise Broken for a tensor that is missing or extra."""
    if missing := sorted(set(expected) - set(found)):
        raise Broken(f"'{missing[0]}' is missing")
    if extra := sorted(set(found) - set(expected)):
        raise Broken(f"'{extra[0]}' is there, which no input has")


def alike(found: StateDict, expected: StateDict, *, tolerance: float = 0.0) -> None:
    """Raise Broken where a tensor differs: in a bit, or by more than a tolerance that is given."""
    same_names(found, expected)
    for name in expected:
        have, want = found[name], expected[name]
        if have.shape != want.shape:
            raise Broken(f"'{name}' is {tuple(have.shape)}, expected {tuple(want.shape)}")
        if tolerance:
            _near(name, have, want, tolerance)
        elif weights.tensor_digest(name, have) != weights.tensor_digest(name, want):
            if have.dtype != want.dtype:
                raise Broken(f"'{name}' is {_type(have.dtype)}, expected {_type(want.dtype)}")
            raise Broken(_worst(name, have, want))


def _near(name: str, have: torch.Tensor, want: torch.Tensor, tolerance: float) -> None:
    near = torch.isclose(have.double(), want.double(), rtol=tolerance, atol=tolerance)
    if not near.all():
        raise Broken(_worst(name, have, want))


def _worst(name: str, have: torch.Tensor, want: torch.Tensor) -> str:
    """The entry that is furthest off, NaN before all."""
    gap = (have.double() - want.double()).abs().nan_to_num(nan=torch.inf).flatten()
    place = int(gap.argmax())
    at = [int(i) for i in np.unravel_index(place, tuple(have.shape))]
    index = f" at {at}" if at else ""
    return f"'{name}'{index} is {have.flatten()[place]:.9g}, expected {want.flatten()[place]:.9g}"


def _type(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _copied(state: StateDict) -> Tensors:
    return {name: state[name].clone() for name in state}


def alike_at(where: str, found: StateDict, expected: StateDict, *, tolerance: float = 0.0) -> None:
    """As `alike`, saying where."""
    try:
        alike(found, expected, tolerance=tolerance)
    except Broken as broken:
        raise Broken(f"{where}{broken}") from None


def _called(place: int, method: Method) -> str:
    return "" if method.kind == "merger" else f"expert {place + 1}: "


def all_alike(
    method: Method,
    found: Sequence[StateDict],
    expected: Sequence[StateDict],
    *,
    tolerance: float = 0.0,
    when: str = "",
) -> None:
    """Raise Broken, saying when and in which result, where one of several states differs."""
    if len(found) != len(expected):
        raise Broken(f"{when}{len(found)} experts come out, expected {len(expected)}")
    for place, (have, want) in enumerate(zip(found, expected, strict=True)):
        alike_at(f"{when}{_called(place, method)}", have, want, tolerance=tolerance)


# Laws of the function ----------------------------------------------------------------------


@law("shapes")
def shapes(method: Method) -> None:
    """Names, shapes and types are kept; the headers of a lazy result tell the truth."""
    family = method.family()
    found = method(family)
    expected = weights.specs(family.base)
    if len(found) != (1 if method.kind == "merger" else method.experts):
        raise Broken(f"{len(found)} experts come out of {method.experts}")
    for place, state in enumerate(found):
        same_names(state, family.base)
        told = weights.specs(state)
        for name, spec in expected.items():
            made = weights.Spec(tuple(state[name].shape), state[name].dtype)
            for what, have in (("", made), (" by its header", told[name])):
                if have != spec:
                    raise Broken(
                        f"{_called(place, method)}'{name}' is {_spec(have)}{what}, "
                        f"expected {_spec(spec)}"
                    )


def _spec(spec: weights.Spec) -> str:
    return f"{_type(spec.dtype)} {tuple(spec.shape)}"


@law("inputs")
def inputs(method: Method) -> None:
    """The inputs are untouched, and writing to the output does not reach them."""
    family, before = method.family(), method.family()
    found = method(family)
    for state in found:
        _copied(state)
    _same_inputs(method, family, before, "after merging, ")
    for state in found:
        for name in state:
            state[name].fill_(7)
    _same_inputs(method, family, before, "after writing to the output, ")


def _same_inputs(method: Method, family: Family, before: Family, when: str) -> None:
    given = [("base", family.base, before.base)]
    for place, pair in enumerate(zip(family.experts, before.experts, strict=True)):
        given.append((f"expert {place + 1}", *pair))
    for need in method.needs:
        if isinstance(family.needs[need], list):
            pairs = zip(family.needs[need], before.needs[need], strict=True)
            given += [(f"the {need} of expert {i + 1}", *pair) for i, pair in enumerate(pairs)]
    for called, state, old in given:
        alike_at(f"{when}{called}: ", state, old)


@law("order")
def order(method: Method) -> None:
    """The order of the experts does not matter.

    A merge is the same; what a pre-merging method makes of an expert moves with it.
    """
    expected = [_copied(state) for state in method(method.family())]
    count = range(method.experts)
    for places in (list(reversed(count)), [*count[1:], 0]):
        found = method(method.family().ordered(places))
        wanted = expected if method.kind == "merger" else [expected[place] for place in places]
        shown = ", ".join(str(place + 1) for place in places)
        all_alike(
            method, found, wanted, tolerance=ROUNDING, when=f"with experts in order {shown}, "
        )


@law("copies")
def copies(method: Method) -> None:
    """Copies of one model give that model."""
    family = method.family()
    one = family.experts[0]
    found = method(Family([_copied(one) for _ in family.experts], family.base, family.needs))
    all_alike(method, found, [one] * len(found), tolerance=ROUNDING)


@law("zero")
def zero(method: Method) -> None:
    """Zero task vectors, experts that equal the base, give the base."""
    family = method.family()
    found = method(
        Family([_copied(family.base) for _ in family.experts], family.base, family.needs)
    )
    all_alike(method, found, [family.base] * len(found), tolerance=ROUNDING)


@law("bytes")
def same_bytes(method: Method) -> None:
    """The same seed gives the same bytes.

    Whatever the global random state, the order of the tensors in the files, the order in which
    they are asked for, and the size of the pieces that are worked on.
    """
    with global_seed(1):
        expected = [_copied(state) for state in method(method.family())]
    check = partial(all_alike, method, expected=expected)
    with global_seed(2):
        check(found=method(method.family()), when="run again, ")
    backwards = [_read_backwards(state) for state in reversed(method(method.family()))]
    check(found=backwards[::-1], when="asked for its tensors backwards, ")
    shuffled = method.family().every(partial(_shuffled, random.Random(0)))
    check(found=method(shuffled), when="with the tensors of the inputs in another order, ")
    with _pieces(17):
        check(found=method(method.family()), when="worked on in pieces of 17 entries, ")


def _read_backwards(state: StateDict) -> Tensors:
    return {name: state[name].clone() for name in reversed(list(state))}


def _shuffled(numbers: random.Random, state: StateDict) -> StateDict:
    return {name: state[name] for name in numbers.sample(list(state), len(state))}


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """With the global generators at this seed, and afterwards as they were."""
    python, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng([]):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)  # noqa: NPY002


@contextmanager
def _pieces(size: int) -> Iterator[None]:
    whole, weights.PIECE = weights.PIECE, size
    try:
        yield
    finally:
        weights.PIECE = whole


@law("memory")
def memory(method: Method) -> None:
    """Memory stays inside the streaming bound.

    Nothing is read when the function is called, inputs are let go as each output is made, and no
    output is kept. What is counted are tensors of the inputs that are alive at one time: for a
    merger one of each input and two in passing; for a pre-merging method four of each, since a
    symmetry of a layer moves two weights and their biases together. An output that is asked for
    again is made anew from its inputs: where nothing is read, it was kept.
    """
    watch = Watch()
    family = method.family().every(watch.state)
    found = method(family)
    for state in found:
        weights.specs(state)
    if watch.reads:
        raise Broken(f"{watch.reads} tensors are read when the function is called, expected none")
    bound = watch.states + 2 if method.kind == "merger" else 4 * watch.states
    for again in (False, True):
        for name in found[0]:
            before = watch.reads
            for state in found:
                state[name]
            if again and watch.reads == before:
                raise Broken(f"'{name}' is asked for again and nothing is read: it was kept")
            if watch.most > bound:
                raise Broken(
                    f"{watch.most} tensors of {watch.states} inputs are alive at '{name}', "
                    f"expected at most {bound}"
                )


class Watch:
    """Counts the tensors that are read from its states and are still alive."""

    def __init__(self) -> None:
        self.states = self.reads = self.alive = self.most = 0

    def state(self, state: StateDict) -> StateDict:
        """The state, watched; of every tensor a new copy, as from a file."""
        self.states += 1
        return weights.Lazy(weights.specs(state), lambda name: self._read(state[name]))

    def _read(self, tensor: torch.Tensor) -> torch.Tensor:
        # the array lives as long as the storage does, whatever views are taken of the tensor
        array = np.array(tensor.numpy())
        weakref.finalize(array, self._let_go)
        self.reads += 1
        self.alive += 1
        self.most = max(self.most, self.alive)
        return torch.from_numpy(array)

    def _let_go(self) -> None:
        self.alive -= 1


# Laws of the way from folder to folder -----------------------------------------------------


def merged(method: Method, family: Family) -> Tensors:
    """The tensors of the folder that comes of merging folders.

    A pre-merging method comes before the average. Raises Broken where an error of the harness
    leaves something behind.
    """
    with tempfile.TemporaryDirectory(prefix="harness-check-") as place:
        root = Path(place)
        base = toys.write(root / "base", family.base)
        experts = [
            toys.write(root / f"expert-{i + 1}", expert) for i, expert in enumerate(family.experts)
        ]
        there = sorted(root.iterdir())
        try:
            if method.needs:
                _merge_by_hand(method, experts, base, root / "out")
            else:
                merge(_recipe(method, experts, base), out=root / "out")
        except HarnessError:
            if left := sorted(set(root.iterdir()) - set(there)):
                raise Broken(f"an error left {left[0].name} behind") from None
            raise
        return _copied(open_checkpoint(root / "out").weights)


def _recipe(method: Method, experts: Sequence[Path], base: Path) -> Recipe:
    merger = method.kind == "merger"
    return Recipe(
        experts=tuple(map(str, experts)),
        base=str(base),
        merger=method.choice if merger else Choice("average"),
        premerge=() if merger else (method.choice,),
    )


def _merge_by_hand(method: Method, experts: Sequence[Path], base: Path, out: Path) -> None:
    """Compose, cast, write, as `harness.merge` does, for a method that needs statistics.

    They are toys here: those of data would take the forward passes of a real model.
    """
    folders = (*experts, base)
    read = [_observed(open_checkpoint(folder).weights, folder.name) for folder in folders]
    states = [state for state, _ in read]
    weights.check_same(states, [folder.name for folder in folders])
    first, origin = states[0], states[-1]
    moving = weights.floating(first)
    parts = [weights.select(state, moving) for state in states]
    sizes = {name: spec.shape for name, spec in weights.specs(parts[0]).items()}
    needs = toys.needed(method.needs, sizes, len(experts))
    found = method(Family(parts[:-1], parts[-1], needs))
    whole = weights.union(
        weights.cast_like(found[0] if method.kind == "merger" else weights.mean(found), first),
        weights.select(origin, [name for name in origin if name not in set(moving)]),
    )
    with new_folder(out, SINGLE) as folder:
        tensors = {name: whole[name].contiguous() for name in whole}
        for _, observed in read:
            observed.digest()
        save_file(tensors, folder / SINGLE)
        (folder / "config.json").write_bytes((experts[0] / "config.json").read_bytes())


def _observed(state: StateDict, called: str) -> tuple[StateDict, weights.Observed]:
    """The state, still lazy, with what checks every tensor of it as it is read."""
    observed = weights.Observed(state, called)
    return weights.Lazy(weights.specs(state), observed.__getitem__), observed


def _cast(dtype: torch.dtype, state: StateDict) -> Tensors:
    return {
        name: state[name].to(dtype) if state[name].is_floating_point() else state[name]
        for name in state
    }


@law("half")
def half(method: Method) -> None:
    """Half precision in, half precision out, float32 inside.

    Experts in float16 or bfloat16 give what their float32 copies give, cast once.
    """
    for dtype in (torch.float16, torch.bfloat16):
        low = method.family().each(partial(_cast, dtype))
        wide = low.each(partial(_cast, torch.float32))
        mixed = Family(low.experts, wide.base, low.needs)
        template = low.experts[0]
        expected = [_copied(weights.cast_like(state, template)) for state in method(wide)]
        for called, given in (("", low), (" over a float32 base", mixed)):
            found = [weights.cast_like(state, template) for state in method(given)]
            all_alike(method, found, expected, when=f"from {_type(dtype)}{called}, ")
    low = method.family(toys.NETWORK).each(partial(_cast, torch.bfloat16))
    wide = low.each(partial(_cast, torch.float32))
    alike(merged(method, low), _cast(torch.bfloat16, merged(method, wide)))


@law("tied")
def tied(method: Method) -> None:
    """Tied tensors stay tied through save and load: one tensor under two names is still one.

    transformers writes such a tensor once, and nothing can part it; other tools write both, and
    transformers unties what it reads as two that differ.
    """
    shapes = {**toys.NETWORK, toys.TIED[1]: toys.NETWORK[toys.TIED[0]]}
    family = method.family(shapes).each(_tie)
    first, second = toys.TIED
    found = merged(method, family)
    alike_at(f"untied from '{first}': ", {second: found[second]}, {second: found[first]})


def _tie(state: StateDict) -> Tensors:
    first, second = toys.TIED
    return {**state, second: state[first].clone()}


@law("buffers")
def buffers(method: Method) -> None:
    """Integer buffers are untouched: the merged model has the base's."""
    family = method.family(toys.NETWORK)
    counts = torch.arange(10)[None]
    old = {**family.base, toys.BUFFER: counts}
    new = [{**expert, toys.BUFFER: counts + i + 1} for i, expert in enumerate(family.experts)]
    found = merged(method, Family(new, old, family.needs))
    if toys.BUFFER not in found:
        raise Broken(f"'{toys.BUFFER}' is missing")
    alike({toys.BUFFER: found[toys.BUFFER]}, {toys.BUFFER: counts})


WRONG = "bert.pooler.dense.weight"
"""The tensor that is wrong in the last expert."""


@law("errors")
def errors(method: Method) -> None:
    """Missing or extra tensors, other shapes and NaN are errors that name the tensor.

    They leave nothing behind; and the function neither swallows what is found while it reads a
    tensor nor, called from Python, makes do with a tensor of another shape.
    """
    for what, damage in DAMAGES.items():
        family = method.family(toys.NETWORK)
        name = damage(last := dict(family.experts[-1]))
        damaged = Family([*family.experts[:-1], last], family.base, family.needs)
        try:
            merged(method, damaged)
        except HarnessError as error:
            if name not in str(error):
                raise Broken(f"{what}: the error does not name '{name}': {error}") from None
        else:
            raise Broken(f"{what}: '{name}' of the last expert is merged without an error")
    _not_swallowed(method)
    if method.kind == "merger":
        _not_made_do(method)


def _no_tensor(state: Tensors) -> str:
    del state[WRONG]
    return WRONG


def _new_tensor(state: Tensors) -> str:
    state["bert.extra.weight"] = torch.zeros(2)
    return "bert.extra.weight"


def _other_shape(state: Tensors) -> str:
    state[WRONG] = torch.zeros(state[WRONG].shape[0] + 1, *state[WRONG].shape[1:])
    return WRONG


def _entry(value: float, state: Tensors) -> str:
    state[WRONG] = state[WRONG].clone()
    state[WRONG].view(-1)[3] = value
    return WRONG


DAMAGES: Mapping[str, Callable[[Tensors], str]] = {
    "a missing tensor": _no_tensor,
    "an extra tensor": _new_tensor,
    "another shape": _other_shape,
    "NaN": partial(_entry, float("nan")),
    "an infinite entry": partial(_entry, float("inf")),
}
"""What can be wrong with an expert: each damages it and returns the name of the tensor."""


def _not_swallowed(method: Method) -> None:
    """An error that is found while a tensor is read must come out of the method."""
    family = method.family(toys.NETWORK)
    _entry(float("nan"), last := dict(family.experts[-1]))
    watched, _ = _observed(last, "the last expert")
    try:
        for state in method(Family([*family.experts[:-1], watched], family.base, family.needs)):
            _copied(state)
    except BrokenCheckpoint:
        return
    raise Broken(f"NaN in '{WRONG}' of the last expert is swallowed, or the tensor never read")


def _not_made_do(method: Method) -> None:
    """Called from Python with a tensor of another shape, a merger must not merge all the others."""
    family = method.family(toys.NETWORK)
    _other_shape(last := dict(family.experts[-1]))
    try:
        for state in method(Family([*family.experts[:-1], last], family.base, family.needs)):
            _copied(state)
    except Exception:  # torch raises many types for shapes that do not fit
        return
    raise Broken(f"called with another shape of '{WRONG}' in the last expert, it makes do")


# Laws of pre-merging methods ---------------------------------------------------------------


@law("exact", "premerge")
def exact(method: Method) -> str:
    """The outputs of a network do not move."""
    family = method.family(toys.NETWORK)
    largest, touched = 0.0, 0
    for place, (old, new) in enumerate(zip(family.experts, method(family), strict=True)):
        after = _copied(weights.cast_like(new, old))
        same_names(after, old)
        before = outputs(old)
        moved = float((outputs(after) - before).abs().max() / before.abs().max())
        if not moved <= DRIFT:
            raise Broken(f"outputs of expert {place + 1} move by {moved:.2g} of the largest")
        largest = max(largest, moved)
        touched += sum(not torch.equal(after[name], old[name]) for name in old)
    return f"by {largest:.1g} of the largest at most, with {touched} tensors changed"


def outputs(state: StateDict) -> torch.Tensor:
    """What the network of these weights says to rows of different lengths, [rows, classes]."""
    network = build_model(toys.CONFIG, state, "the toy")
    numbers = torch.Generator().manual_seed(0)
    ids = torch.randint(5, len(toys.WORDS), (6, 8), generator=numbers)
    mask = (torch.arange(8) < torch.tensor([8, 8, 5, 3, 2, 1])[:, None]).long()
    with torch.inference_mode():
        logits: torch.Tensor = network(input_ids=ids, attention_mask=mask).logits
    return logits
