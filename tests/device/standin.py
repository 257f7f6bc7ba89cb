"""A device of its own whose tensors lie in the memory of the processor and are computed there.

It has what a GPU asks of code and nothing of its speed: tensors on two devices do not meet in an
operation, no array of numpy is made of one that is elsewhere, and what is made without a device is
made on the processor. Registered for all of a process, so tests of it run in one of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

NAME = "standin"
HERE = torch.device("cpu")
MOVES = ("_to_copy", "copy_")
INDEXED = ("index", "index_put_", "_index_put_impl_")
"""Operations whose second argument, the indices, may be the processor's."""
done: Counter[str] = Counter()
"""The operations on the device, but for moves to it and from it."""


class There(torch.Tensor):
    """A tensor on the device."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> There:
        made = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(),
            dtype=raw.dtype, device=DEVICE,
        )  # fmt: skip
        made.raw = raw
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatched(func, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, other: There) -> None:
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]  # a slot of C
        self.raw = other.raw

    def tolist(self) -> Any:
        return self.raw.tolist()

    def __repr__(self, **_: Any) -> str:
        return f"There({self.raw!r})"


def _dispatched(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operation by the processor, its results where a device would have them."""
    name = func.name().removeprefix("aten::").partition(".")[0]
    there = [one for one in tree_leaves((args, kwargs)) if isinstance(one, There)]
    known = (args[:1], args[2:]) if name in INDEXED else (args, kwargs)
    met = [one for one in tree_leaves(known) if isinstance(one, torch.Tensor) and one.dim()]
    if there and name not in MOVES and not all(isinstance(one, There) for one in met):
        raise RuntimeError(f"{func}: tensors on {NAME} and on the processor in one operation")
    on = isinstance(args[0], There) if name == "copy_" else bool(there)
    if kwargs.get("device") is not None:
        on = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": HERE}
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    given, options = tree_map(_raw, (args, kwargs))
    wrappers = {id(one.raw): one for one in there}
    done[name] += on and name not in MOVES and not name.startswith("empty")

    def placed(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        if id(one) in wrappers:
            return wrappers[id(one)]
        return There(one) if on else one

    made = func(*given, **options)
    assert all(one.shape == one.raw.shape for one in there), f"{func} resized its output"
    if name == "copy_":
        return args[0]
    return tree_map(placed, made)


def _raw(one: Any) -> Any:
    if isinstance(one, There):
        return one.raw
    return HERE if isinstance(one, torch.device) else one


backend_registration._setup_privateuseone_for_python_backend(NAME)
DEVICE = torch.device(NAME, 0)
_kernels = torch.library.Library("aten", "IMPL")


def _made(name: str) -> None:
    """Tensors are made on the device by this operation, which no tensor of it is given to."""
    base, _, overload = name.partition(".")
    func = getattr(getattr(torch.ops.aten, base), overload or "default")
    _kernels.impl(name, lambda *args, **kwargs: _dispatched(func, args, kwargs), "PrivateUse1")


# an output that is resized, as of the last two kinds, would not tell its wrapper
for _name in (
    *("empty.memory_format", "empty_strided"),
    *("eye", "eye.m"),
    *("arange", "arange.start", "arange.start_step"),
):
    _made(_name)


def _copied(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _raw(target).copy_(_raw(source))
    return target


_kernels.impl("_copy_from", _copied, "PrivateUse1")


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """In the block, the operations on the device from now on."""
    done.clear()
    yield done
