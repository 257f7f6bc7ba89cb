"""Toy state dicts for tests of methods: made fresh, so that one test cannot poison the next."""

from __future__ import annotations

import torch
from hypothesis import settings
from torch.testing import assert_close

from harness import StateDict

SHAPES = {"scale": (), "bias": (5,), "weight": (4, 3), "none": (0, 3), "patch": (2, 2, 2)}
EXPERTS = 3

few = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def model(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Random tensors of all shapes that matter: a scalar, an empty one, one to three axes."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()
    }


def models(dtype: torch.dtype = torch.float32) -> tuple[list[StateDict], StateDict]:
    """Experts and their base."""
    return [model(seed, dtype) for seed in range(1, EXPERTS + 1)], model(0, dtype)


def close(found: StateDict, expected: StateDict) -> None:
    """All tensors agree to 1e-6; a failure names the tensor."""
    for name in expected:
        assert_close(found[name], expected[name], atol=1e-6, rtol=1e-6, msg=lambda m, n=name: n + m)
