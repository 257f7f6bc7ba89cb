"""Shell: what a process has only once: the settings of libraries, which a caller may have changed
and which its threads share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from threading import Lock


def shared(
    context: Callable[[], AbstractContextManager[None]],
) -> Callable[[], AbstractContextManager[None]]:
    """The context, entered by the first thread that is in it and left by the last.

    If each thread restored what it had found, the last would restore what the first had set.
    """
    lock, stack, inside = Lock(), ExitStack(), set[object]()

    @contextmanager
    @wraps(context)
    def entered() -> Iterator[None]:
        one = object()
        try:  # Ctrl-C may come at any point
            with lock:
                inside.add(one)
                if len(inside) == 1:
                    stack.enter_context(context())
            yield
        finally:
            with lock:
                inside.discard(one)
                if not inside:
                    stack.close()

    return entered


@contextmanager
def as_torch_starts() -> Iterator[None]:
    """A context with torch's own default type and device, without autocast or inference mode.

    A notebook may have set others. Models would then be rounded when they are made, and their
    features cached as those of float32. On exit the caller's settings are restored.
    """
    torch = sys.modules.get("torch")
    if torch is None:  # nobody has set anything
        yield
        return
    with _in_float32(), ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if torch.empty(0).device.type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@shared
@contextmanager
def _in_float32() -> Iterator[None]:
    """A context with torch's own default type, which all threads share, unlike the rest."""
    import torch

    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float32)
        yield
    finally:
        torch.set_default_dtype(before)
