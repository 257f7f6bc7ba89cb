"""Matrix products in float32 by oneDNN, where torch would use MKL.

MKL takes twice as long on AMD processors. In half precision, and on ARM, torch uses oneDNN by
itself.
"""

from __future__ import annotations

import platform

import torch

from harness.weights.threads import here

# a private name of torch, which may change
IS_AVAILABLE = platform.machine() in ("x86_64", "AMD64") and hasattr(
    torch.ops.mkldnn, "_linear_pointwise"
)


def linear(
    given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """given @ weight^T + bias, in float32 on a processor; only if `IS_AVAILABLE`."""
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(given, weight, bias, "none", [], "")
    return result


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left @ right, of one type."""
    taken = IS_AVAILABLE and here(left.device) and left.dtype == torch.float32
    return linear(left, right.mT) if taken else left @ right
