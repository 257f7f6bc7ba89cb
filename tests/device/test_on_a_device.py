"""Every method on a device that is not the processor's."""

from __future__ import annotations

import pytest
import torch

from harness.options import parse_choice
from harness.registry import STAGES
from harness.weights import PROCESSOR
from tests.device.methods import CASES, METHODS, run
from tests.device.standin import DEVICE, counted

pytestmark = pytest.mark.device


def test_no_method_is_left_out() -> None:
    for stage, texts in METHODS.items():
        assert {parse_choice(one).name for one in texts} == {*STAGES[stage]}


@pytest.mark.parametrize(("stage", "text"), CASES)
def test_a_method_computes_on_the_device_what_it_does_here(stage: str, text: str) -> None:
    expected = run(stage, text, PROCESSOR)
    with counted() as done:
        found = run(stage, text, DEVICE)
    assert sum(done.values()) > len(expected[0])
    for there, here in zip(found, expected, strict=True):
        assert there.keys() == here.keys()
        for name, tensor in here.items():
            assert there[name].device == PROCESSOR
            torch.testing.assert_close(there[name], tensor, rtol=1e-5, atol=1e-6)
