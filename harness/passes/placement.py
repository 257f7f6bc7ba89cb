"""The device and the type that models run in: results of a forward pass depend on both."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from harness.errors import BadOption
from harness.process import shared
from harness.text import first_line
from harness.types import AUTO, Array, Need
from harness.values import Frozen, validated

if TYPE_CHECKING:  # `Run` and `Recipe` import this module, and must import fast
    import torch

DType: TypeAlias = Literal["float32", "bfloat16", "float16"]
AnyModule = TypeVar("AnyModule", bound="torch.nn.Module")
FULL_PRECISION: DType = "float32"
TOKENS = {"cpu": 1024, "cuda": 2**15}
"""Tokens of a batch, padding included: what fits the cache of a core, or what keeps a GPU busy."""
IMAGES = {"cpu": 8, "cuda": 256}
"""Images of a batch."""
SLOWER = 2
"""A half precision that takes more than so many times as long as float32 is warned of."""


class Placement(Frozen):
    """The device that models run on, by torch's name for it (`auto`: the GPU if there is one), and
    the type of their weights.

    Features and outputs are float32 whatever the type, and so is everything computed from them.
    """

    device: str = AUTO
    dtype: DType = FULL_PRECISION

    @property
    def where(self) -> torch.device:
        """The device."""
        import torch

        if self.device == AUTO:
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    @property
    def recorded(self) -> dict[str, str]:
        """What cache keys and records hold: in float32 nothing, as devices agree to rounding.

        In a half precision its name and the kind of device: each kind rounds in its own way.
        """
        half = {"dtype": self.dtype, "device": self.where.type}
        return {} if self.dtype == FULL_PRECISION else half

    @property
    def advice(self) -> str:
        """What to do about results that are not finite, to end a message; '' in float32."""
        return f"; try --dtype {FULL_PRECISION}" if self.recorded else ""

    @property
    def parts(self) -> tuple[dict[str, str], ...]:
        """What a placement adds to a cache key."""
        return (self.recorded,) if self.recorded else ()

    def put(self, model: AnyModule, head: torch.nn.Module | None = None) -> AnyModule:
        """The model on the device, its weights in the type; a `head` stays in float32."""
        placed = model.to(self.where)
        if self.recorded:
            in_float32 = {id(parameter) for parameter in head.parameters()} if head else set()
            for parameter in placed.parameters():
                if id(parameter) not in in_float32:
                    parameter.data = parameter.data.to(self._type)
            if head:
                head.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
        return placed

    def put_inputs(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """A model's inputs on the device; pixels in the type.

        A GPU copies asynchronously, from pinned memory.
        """
        device, placed, queued = self.where, {}, self._queues
        for key, tensor in inputs.items():
            pinned = tensor.pin_memory() if queued else tensor
            moved = pinned.to(device, non_blocking=queued)
            placed[key] = moved.to(self._type) if moved.is_floating_point() else moved
        return placed

    def fetch(self, tensors: Sequence[torch.Tensor]) -> Callable[[], list[Array]]:
        """A function that waits until the device has the tensors and returns float32 arrays.

        Before it is called, the next batch can be made and queued.
        """
        import torch

        copies = [tensor.float().to("cpu", non_blocking=self._queues) for tensor in tensors]
        event: Any = None
        if self._queues:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no type for it
            event.record(torch.cuda.current_stream(self.where))

        def wait() -> list[Array]:
            if event:
                event.synchronize()
            return [tensor.numpy() for tensor in copies]

        return wait

    def check(self, need: Need) -> None:
        """Raise BadOption for gradients in a half precision, where small ones are lost."""
        if need.gradients and self.recorded:
            raise BadOption(
                f"need '{need.name}' computes gradients, in float32 only; leave out --dtype "
                f"{self.dtype}"
            )

    @property
    def _queues(self) -> bool:
        """Whether the device copies asynchronously, and an event marks the end of a copy."""
        return self.where.type == "cuda"

    @property
    def _type(self) -> torch.dtype:
        import torch

        made: torch.dtype = getattr(torch, self.dtype)
        return made

    def budget(self, *, images: bool) -> int:
        """The number of tokens, padding included, or of images that a batch may have."""
        most = IMAGES if images else TOKENS
        return most.get(self.where.type, most["cpu"])


AUTOMATIC, CPU = Placement(), Placement(device="cpu")


def placement(device: str, dtype: str, what: str) -> Placement:
    """The placement that was asked for. Raises BadRecipe or BadOption, before any model is made."""
    placed = validated(Placement, {"device": device, "dtype": dtype}, what)
    check_placement(placed)
    return placed


def check_placement(placement: Placement) -> None:
    """Raise BadOption for a device or a type that torch cannot use: an encoder's layers are tried.

    Warns of a half precision that is slow on this processor.
    """
    import torch
    from torch.nn import functional

    try:
        ones = torch.ones(1, 2, 2, 2, device=placement.where, dtype=placement._type)
        output = functional.scaled_dot_product_attention(ones, ones, ones)
        output = functional.layer_norm(functional.linear(functional.gelu(output), ones[0, 0]), (2,))
        functional.conv2d(output, ones).sum().item()
    except (RuntimeError, AssertionError) as error:
        half = "" if placement.dtype == FULL_PRECISION else f" with dtype {placement.dtype}"
        raise _unusable(f"device is '{placement.device}'{half}", error) from error
    if placement.where.type == "cpu":
        warn_if_slow(placement.dtype, "--dtype")


def check_arithmetic(placement: Placement) -> None:
    """Raise BadOption for a device that methods cannot compute on: a small inverse is tried.

    This also makes torch load its decompositions for a GPU, which fails if the first ones are
    started by several threads at once.
    """
    import torch

    try:
        torch.linalg.inv(torch.ones(1, 1, device=placement.where, dtype=torch.float64)).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise _unusable(f"merge_device is '{placement.device}'", error) from error


def _unusable(what: str, error: Exception) -> BadOption:
    reason = first_line(error)
    return BadOption(
        f"{what}, which torch cannot use here ({reason:.80}); expected auto, cpu, or cuda:N of a "
        "GPU on this machine"
    )


def warn_if_slow(dtype: DType, flag: str, *, gradients: bool = False) -> None:
    """Warn of a half precision, set by `flag`, that the processor has no instructions for."""
    if dtype == FULL_PRECISION:
        return
    times = seconds(dtype, gradients) / seconds(FULL_PRECISION, gradients)
    if times > SLOWER:
        warnings.warn(
            f"{dtype} takes {times:.0f} times as long as {FULL_PRECISION} on this processor, "
            f"as a small layer shows: leave out {flag}, or use a GPU",
            stacklevel=3,
        )


def seconds(dtype: DType, gradients: bool) -> float:
    """The time of a layer of 256 units on 32 rows, or of the gradient by its input: the least of
    ten runs, in one thread, which need not wait for a core that another program uses.

    Without instructions the layer takes 8 times as long as in float32, the gradient 50 times: 3 ms.
    """
    import torch

    from harness.weights.threads import one_thread

    inputs, weight = (torch.ones(n, 256, dtype=getattr(torch, dtype)) for n in (32, 256))
    times = []
    with one_thread():
        for _ in range(10):  # the first run also warms up
            start = perf_counter()
            inputs @ (weight if gradients else weight.mT)
            times.append(perf_counter() - start)
    return min(times)


def use_onednn(model: torch.nn.Module, placement: Placement) -> None:
    """Speed up the linear layers of a model that runs without gradients, on a processor in float32.

    See `weights.onednn`.
    """
    import torch

    from harness.weights import onednn

    if onednn.IS_AVAILABLE and placement.where.type == "cpu" and placement.dtype == FULL_PRECISION:
        for one in model.modules():
            if isinstance(one, torch.nn.Linear) and type(one).forward is torch.nn.Linear.forward:
                one.forward = partial(_by_onednn, one)  # type: ignore[method-assign]  # of this layer


def _by_onednn(layer: torch.nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    """The layer with the weight and bias that it has when it is called."""
    from harness.weights import onednn

    return onednn.linear(inputs, layer.weight, layer.bias)


@shared
@contextmanager
def full_float32() -> Iterator[None]:
    """A context that computes products of float32 in float32, however torch is configured.

    By default torch computes convolutions in TF32 on a GPU, whose fraction has 10 bits.
    """
    import torch

    own: Any = torch.backends
    value: bool | str
    places, name, value = [own.cuda.matmul, own.cudnn], "allow_tf32", False
    if hasattr(own.cudnn, "conv"):  # since torch 2.9, which refuses a mix with the older names
        name, value = "fp32_precision", "ieee"
        places = [own.cuda.matmul, own.cudnn.conv, own.cudnn.rnn, own.mkldnn.matmul]
    before = [getattr(place, name) for place in places]
    try:
        for place in places:
            setattr(place, name, value)
        yield
    finally:
        for place, earlier in zip(places, before, strict=True):
            setattr(place, name, earlier)
