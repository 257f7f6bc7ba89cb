"""Every method on a device that is not the processor's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from harness.entries import Merger
from harness.errors import BrokenPlugin
from harness.merging.stages import Stage
from harness.types import StateDict
from harness.weights import PROCESSOR, Rules, each, generalized, least_solution, pieces_of
from harness.weights.small_turns import NARROWEST
from tests.device.methods import CASES, run
from tests.device.standin import DEVICE, counted

pytestmark = pytest.mark.device


def test_a_method_that_mixes_devices_fails_as_on_a_gpu() -> None:
    def mixed(experts: Sequence[StateDict], base: StateDict) -> StateDict:
        return each(lambda tensor: tensor + torch.zeros(tensor.shape), experts[0])

    made = Stage(Merger("mixed", mixed), {}, device=DEVICE).run([{"a": torch.ones(2)}], {})
    with pytest.raises(BrokenPlugin, match="on standin and on the processor"):
        _ = made["a"]


@pytest.mark.parametrize("text", ["ties", "tsv", "procrustes", "dare", "fisher"])
def test_so_do_several_threads_on_pieces(text: str, two_threads: None) -> None:
    stage = next(stage for stage, one in CASES if one == text)
    with pieces_of(4), counted() as done:
        found = run(stage, text, DEVICE)
    expected = run(stage, text, PROCESSOR)
    assert done.total() > len(expected[0])
    for there, here in zip(found, expected, strict=True):
        for name, tensor in here.items():
            torch.testing.assert_close(there[name], tensor, rtol=1e-5, atol=1e-6)


def test_small_turns_are_found_on_the_device() -> None:
    """Of matrices that are wide enough for them."""
    numbers = torch.Generator().manual_seed(0)
    base = torch.randn(NARROWEST, NARROWEST, generator=numbers).double()
    noise = (torch.randn(base.shape, generator=numbers).double() for _ in range(3))
    matrices = [base + 0.01 * one for one in noise]
    made = [
        generalized([one.to(where) for one in matrices], (0,), Rules(), turns=False)
        for where in (PROCESSOR, DEVICE)
    ]
    assert made[0].iterations == made[1].iterations > 2
    for here, there in zip(made[0].turned or (), made[1].turned or (), strict=True):
        assert there.device == DEVICE
        torch.testing.assert_close(there.cpu(), here, rtol=1e-8, atol=1e-10)


def test_what_has_no_cholesky_factor_is_solved_as_on_the_processor() -> None:
    left, right = torch.ones(2, 2).double(), torch.ones(2, 1).double()
    here = least_solution(left, right)
    there = least_solution(left.to(DEVICE), right.to(DEVICE))
    torch.testing.assert_close(there[0].cpu(), here[0])
    assert here[2] == there[2] == 1


@pytest.mark.parametrize(("stage", "text"), CASES)
def test_a_method_computes_on_the_device_what_it_does_here(stage: str, text: str) -> None:
    expected = run(stage, text, PROCESSOR)
    with counted() as done:
        found = run(stage, text, DEVICE)
    assert done.total() > len(expected[0])
    for there, here in zip(found, expected, strict=True):
        assert there.keys() == here.keys()
        for name, tensor in here.items():
            assert there[name].device == PROCESSOR
            torch.testing.assert_close(there[name], tensor, rtol=1e-5, atol=1e-6)
