"""Shell: what a caller may have set for torch as a whole, undone within a call of the API."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


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
    dtype = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if torch.empty(0).device.type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
