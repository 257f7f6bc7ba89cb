"""Where models run, and in which type: what a forward pass gives depends on it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from harness.errors import BadOption
from harness.text import first_line
from harness.types import AUTO, Array, Need
from harness.values import Frozen, validated

if TYPE_CHECKING:  # a run and a recipe are made of these values, and importing them is light
    import torch

DType: TypeAlias = Literal["float32", "bfloat16", "float16"]
AnyModule = TypeVar("AnyModule", bound="torch.nn.Module")
REFERENCE: DType = "float32"
TOKENS = {"cpu": 1024, "cuda": 2**15}
"""Tokens of a batch, padding included: what a core has in its cache, or what keeps a GPU busy."""
IMAGES = {"cpu": 8, "cuda": 256}
"""Images of a batch."""
SLOWER = 2
"""How many times as long a half precision takes on a processor that is warned of."""


class Placement(Frozen):
    """The device that models run on, by torch's name for it (`auto`: the GPU where there is one),
    and the type of their weights.

    Features and outputs are float32 whatever the type, and so is all that is made of them.
    """

    device: str = AUTO
    dtype: DType = REFERENCE

    @property
    def where(self) -> torch.device:
        """The device."""
        import torch

        if self.device == AUTO:
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    @property
    def recorded(self) -> dict[str, str]:
        """What keys and records say of it: in float32 nothing, as devices agree to rounding.

        Of a half precision its name and the kind of device: each kind rounds in its own way.
        """
        half = {"dtype": self.dtype, "device": self.where.type}
        return {} if self.dtype == REFERENCE else half

    @property
    def parts(self) -> tuple[dict[str, str], ...]:
        """What it adds to a key."""
        return (self.recorded,) if self.recorded else ()

    def put(self, model: AnyModule, head: torch.nn.Module | None = None) -> AnyModule:
        """The model on the device, its weights in the type; a `head` stays in float32."""
        placed = model.to(self.where)
        if self.recorded:
            kept = {id(one) for one in head.parameters()} if head else set()
            for one in placed.parameters():
                if id(one) not in kept:
                    one.data = one.data.to(self._type)
            if head:
                head.register_forward_pre_hook(lambda _, given: (given[0].float(),))
        return placed

    def put_inputs(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What a model reads, on the device; pixels in the type.

        Nobody waits for a GPU here: it copies from pages that stay where they are.
        """
        where, placed, queued = self.where, {}, self._queues
        for key, tensor in inputs.items():
            given = tensor.pin_memory() if queued else tensor
            there = given.to(where, non_blocking=queued)
            placed[key] = there.to(self._type) if there.is_floating_point() else there
        return placed

    def fetch(self, tensors: Sequence[torch.Tensor]) -> Callable[[], list[Array]]:
        """Arrays of the tensors in float32: whoever calls it waits until the device has them.

        Meanwhile the next batch is made and queued.
        """
        import torch

        here = [tensor.float().to("cpu", non_blocking=self._queues) for tensor in tensors]
        done: Any = None
        if self._queues:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no type for it
            done.record(torch.cuda.current_stream(self.where))

        def wait() -> list[Array]:
            if done:
                done.synchronize()
            return [tensor.numpy() for tensor in here]

        return wait

    def check(self, need: Need) -> None:
        """Raise BadOption for gradients in a half precision, where small ones are lost."""
        if need.gradients and self.recorded:
            raise BadOption(f"'{need.name}' takes gradients in float32: no --dtype {self.dtype}")

    @property
    def _queues(self) -> bool:
        """Whether the device copies while nobody waits, and an event says when it is done."""
        return self.where.type == "cuda"

    @property
    def _type(self) -> torch.dtype:
        import torch

        made: torch.dtype = getattr(torch, self.dtype)
        return made

    def budget(self, *, images: bool) -> int:
        """The tokens, padding included, or images that a batch may have."""
        most = IMAGES if images else TOKENS
        return most.get(self.where.type, most["cpu"])


AUTOMATIC, CPU = Placement(), Placement(device="cpu")


def placement(device: str, dtype: str, what: str) -> Placement:
    """The placement that was asked for. Raises BadRecipe or BadOption, before any model is made."""
    asked = validated(Placement, {"device": device, "dtype": dtype}, what)
    check_placement(asked)
    return asked


def check_placement(asked: Placement) -> None:
    """Raise BadOption for what torch cannot use here: the layers of an encoder are tried once.

    Warns of a half precision that is slow here.
    """
    import torch
    from torch.nn import functional

    try:
        made = torch.ones(1, 2, 2, 2, device=asked.where, dtype=asked._type)
        seen = functional.scaled_dot_product_attention(made, made, made)
        seen = functional.layer_norm(functional.linear(functional.gelu(seen), made[0, 0]), (2,))
        functional.conv2d(seen, made).sum().item()
    except (RuntimeError, AssertionError) as error:
        half = "" if asked.dtype == REFERENCE else f" with dtype {asked.dtype}"
        raise _unusable(f"device is '{asked.device}'{half}", error) from error
    if asked.where.type == "cpu":
        tell_of_slow(asked.dtype, "--dtype")


def check_arithmetic(asked: Placement) -> None:
    """Raise BadOption for a device that methods cannot compute on: a small inverse is tried.

    By one thread: torch loads its decompositions for a GPU with the first of them, and fails where
    several threads begin at once.
    """
    import torch

    try:
        torch.linalg.inv(torch.ones(1, 1, device=asked.where, dtype=torch.float64)).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise _unusable(f"merge_device is '{asked.device}'", error) from error


def _unusable(what: str, error: Exception) -> BadOption:
    reason = first_line(error)
    return BadOption(
        f"{what}, which torch cannot use here ({reason:.80}); expected auto, cpu, or cuda:N with "
        "such a GPU"
    )


def tell_of_slow(dtype: DType, flag: str, *, gradients: bool = False) -> None:
    """Warn of a half precision that the processor has no instructions for, behind a flag."""
    times = seconds(dtype, gradients) / seconds(REFERENCE, gradients) if dtype != REFERENCE else 1
    if times > SLOWER:
        warnings.warn(
            f"{dtype} takes {times:.0f} times as long as {REFERENCE} on this processor, by a small "
            f"product: leave out {flag}, or use a GPU",
            stacklevel=3,
        )


def seconds(dtype: DType, gradients: bool) -> float:
    """What a layer of 256 units takes on 32 rows, or the gradient by its input: the least of nine,
    by one thread, which waits for no other where another program holds a core.

    Without instructions the first is 8 times as long as in float32, the second 50 times: 3 ms.
    """
    import torch

    from harness.weights.threads import one_thread

    given, weight = (torch.ones(n, 256, dtype=getattr(torch, dtype)) for n in (32, 256))
    taken = []
    with one_thread():
        for _ in range(10):  # the first one prepares
            start = perf_counter()
            given @ (weight if gradients else weight.mT)
            taken.append(perf_counter() - start)
    return min(taken)


def quicken(model: torch.nn.Module, asked: Placement) -> None:
    """Make linear layers of a model without gradients faster, on a processor in float32.

    See `weights.onednn`.
    """
    import torch

    from harness.weights import onednn

    if onednn.HERE and asked.where.type == "cpu" and asked.dtype == REFERENCE:
        for one in model.modules():
            if type(one) is torch.nn.Linear:
                one.forward = partial(_by_onednn, one)  # type: ignore[method-assign]  # of this one


def _by_onednn(layer: torch.nn.Linear, given: torch.Tensor) -> torch.Tensor:
    from harness.weights import onednn

    return onednn.linear(given, layer.weight, layer.bias)


@contextmanager
def exact() -> Iterator[None]:
    """float32 products in float32, whatever the program around asked of torch.

    By default torch computes convolutions in TF32 on a GPU, whose fraction has 10 bits.
    """
    import torch

    own: Any = torch.backends
    flags: list[tuple[Any, str, Any]] = [(own.cuda.matmul, "allow_tf32", False)]
    flags += [(own.cudnn, "allow_tf32", False)]
    if hasattr(own.cudnn, "conv"):  # from torch 2.9 on, which refuses the older names beside these
        several = (own.cuda.matmul, own.cudnn.conv, own.cudnn.rnn, own.mkldnn.matmul)
        flags = [(one, "fp32_precision", "ieee") for one in several]
    before = [getattr(place, name) for place, name, _ in flags]
    try:
        for place, name, value in flags:
            setattr(place, name, value)
        yield
    finally:
        for (place, name, _), value in zip(flags, before, strict=True):
            setattr(place, name, value)
