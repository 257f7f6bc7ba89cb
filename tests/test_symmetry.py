"""Hidden groups: who their members are, how alike two models are in them, and choosing layers.

That moving a group keeps the outputs of real models is in test_families.py.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from harness import weights
from harness.errors import BadOption
from harness.weights import Member, Permuted, Symmetry, Turned
from tests.mistakes import mistake

AXES = {
    "up": ("ffn.0", "width"),
    "bias": ("ffn.0",),
    "down": ("width", "ffn.0*"),
    "high": ("ffn.2", "width"),
    "top": (None, "width"),
}
SYMMETRY = Symmetry(AXES, heads=2)


def model(seed: int) -> dict[str, torch.Tensor]:
    numbers = torch.Generator().manual_seed(seed)
    shapes = {"up": (4, 3), "bias": (4,), "down": (3, 4), "high": (4, 3), "top": (2, 3)}
    return {name: torch.randn(shape, generator=numbers) for name, shape in shapes.items()}


def test_members_of_a_group_are_the_axes_that_run_over_it() -> None:
    expected = [Member("bias", 0, False), Member("down", 1, True), Member("up", 0, False)]
    assert SYMMETRY.members("ffn.0") == expected
    assert SYMMETRY.members("ffn.0", {"bias": torch.ones(1)}) == expected[:1]
    assert [one.name for one in SYMMETRY.members("width")] == ["down", "high", "top", "up"]
    assert SYMMETRY.groups == {"ffn.0", "ffn.2", "width"}


def test_members_are_of_tensors_in_one_shape() -> None:
    """A head of two classes and one of five have no rows in common; and a base has no head."""
    wider, headless = model(0) | {"top": torch.ones(5, 3)}, model(0)
    del headless["top"]
    for other in (wider, headless):
        found = SYMMETRY.members("width", model(0), other)
        assert [one.name for one in found] == ["down", "high", "up"]


def test_overlap_is_the_sum_of_inner_products_of_units() -> None:
    first, second = model(1), model(2)
    expected = np.zeros((4, 4))
    for i in range(4):
        for j in range(4):
            expected[i, j] = (
                float(first["up"][i].double() @ second["up"][j].double())
                + float(first["bias"][i]) * float(second["bias"][j])
                + float(first["down"][:, i].double() @ second["down"][:, j].double())
            )
    members = SYMMETRY.members("ffn.0")
    products = weights.overlap(first, second, members).products
    assert np.allclose(products[0], expected, atol=1e-12)
    within = weights.overlap(first, second, members, 2).products
    assert np.allclose(within[1], expected[2:, 2:], atol=1e-12)


def test_maps_by_hand() -> None:
    """Of z -> z A what is made moves by A^T, and what is read by A^-1."""
    scaled = Turned(torch.diag(torch.tensor([2.0, 4, 1, 1]))[None].double(),
                    torch.diag(torch.tensor([0.5, 0.25, 1, 1]))[None].double())  # fmt: skip
    state = {name: torch.ones_like(tensor) for name, tensor in model(0).items()}
    found = weights.moved(state, SYMMETRY, {"ffn.0": scaled}.get)
    assert found["bias"].tolist() == [2, 4, 1, 1]
    assert found["down"].tolist() == [[0.5, 0.25, 1, 1]] * 3
    assert torch.equal(found["high"], state["high"])
    turned = Permuted(torch.tensor([1, 0, 3, 2]))
    bias = {"bias": torch.arange(4.0)}
    assert weights.moved(bias, SYMMETRY, {"ffn.0": turned}.get)["bias"].tolist() == [
        1, 0, 3, 2,
    ]  # fmt: skip
    blocks = Permuted(torch.tensor([1, 0]))
    assert weights.moved(bias, SYMMETRY, {"ffn.0": blocks}.get)["bias"].tolist() == [
        2, 3, 0, 1,
    ]  # fmt: skip
    columns = torch.arange(8.0).view(2, 4)
    assert blocks(columns, 1, dual=True).tolist() == [[2, 3, 0, 1], [6, 7, 4, 5]]
    after = Permuted(torch.tensor([2, 0, 1])).then(Permuted(torch.tensor([1, 2, 0])))
    assert after.order.tolist() == [0, 1, 2]


def test_what_moves_a_group_is_found_once_when_it_is_asked_for() -> None:
    calls: list[int] = []

    def find(index: int) -> dict[str, weights.UnitMap]:
        calls.append(index)
        return {"ffn.0": Permuted(torch.tensor([3, 2, 1, 0]))}

    what = weights.alignment([model(0), model(1)], {}, SYMMETRY, "first")
    home, found = weights.to_anchor(what, {("ffn.0",): find})
    assert not calls
    assert torch.equal(found["bias"], model(1)["bias"].flip(0))
    assert torch.equal(found["up"], model(1)["up"].flip(0))
    assert torch.equal(home["bias"], model(0)["bias"])
    assert calls == [1]


def test_layers_are_chosen_by_their_numbers() -> None:
    chosen = SYMMETRY.chosen
    assert SYMMETRY.layers == (0, 2)
    assert [chosen("all"), chosen("first:1"), chosen("last:1"), chosen("2")] == [
        (0, 2), (0,), (2,), (2,),
    ]  # fmt: skip
    wrongs = ("first:3", "first:0", "last", "1", "-1", "some", "2:1", "", "first:", "9" * 5000)
    # not as anybody types them: another spelling would be another method
    for wrong in (*wrongs, "²", "first:²", "last:02", "02", "٢", "first:١", "+2", "2 ", "2\n"):
        with pytest.raises(BadOption, match=re.escape(f"'{wrong}'")):
            chosen(wrong)


def test_the_most_central_expert_is_nearest_to_the_mean() -> None:
    experts = [{"a": torch.tensor([float(value)])} for value in (0, 5, 6)]
    assert weights.place_of("central", experts) == 1
    assert weights.place_of("central", experts[1:]) == 0, "two are equally central"
    assert weights.place_of(3, experts) == 2
    assert weights.place_of("base", experts) is None
    assert weights.place_of("first", experts) == weights.place_of(1, experts) == 0
    heads = [torch.tensor([value]) for value in (0.0, 90.0, 0.0)]
    whole = [{**expert, "top": head} for expert, head in zip(experts, heads, strict=True)]
    assert weights.place_of("central", whole) == 2
    assert weights.place_of("central", whole, ("top",)) == 1, "a head does not count"
    for one_task, place in ((True, 2), (False, 1)):  # of different tasks heads are kept
        symmetry = Symmetry({}, 1, head=("top",), one_task=one_task)
        assert weights.alignment(whole, {}, symmetry, "central").place() == place
    with mistake(BadOption, "anchor 4 1 3"):
        weights.alignment(whole, {}, Symmetry({}, 1), 4)
