"""Small turns: passes without a decomposition are those with one, and it is known when they are no
use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import polar as scipy_polar

import harness
from harness import weights
from harness.weights import Rules, Symmetry, generalized, onednn, small_turns
from harness.weights import procrustes as passes
from harness.weights.decompositions import polar_by_squares
from harness.weights.small_turns import Frame, frame_of, small_turn
from tests.test_procrustes import plain

Array = np.ndarray[Any, Any]
SIZE = 192
CLOSE = 1e-10


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each small turn that was tried came to an end."""
    ended: list[bool] = []
    whole = passes.small_turn

    def watched(products: torch.Tensor, frame: Frame, close: float) -> Any:
        turn = whole(products, frame, close)
        ended.append(turn is not None)
        return turn

    monkeypatch.setattr(passes, "small_turn", watched)
    return ended


def falling(shape: tuple[int, int], power: float, least: float | None = None) -> Array:
    """A matrix whose singular values fall as a power of their rank, the last nine to `least`."""
    numbers = np.random.default_rng(0)
    left, right = (np.linalg.qr(numbers.normal(size=(side, min(shape))))[0] for side in shape)
    values = np.arange(1.0, min(shape) + 1) ** -power
    if least is not None:
        values[-9:] = np.linspace(values[-10], least, 9)
    return np.asarray(left * values @ right.T)


def experts(base: Array, far: float) -> list[Array]:
    """Four, of which each is so far from the base, in entries of the base's size."""
    numbers = np.random.default_rng(1)
    scale = far * float(np.linalg.norm(base)) / base.size**0.5
    return [base + scale * numbers.normal(size=base.shape) for _ in range(4)]


def deficient(shape: tuple[int, int]) -> list[Array]:
    matrices = experts(falling(shape, 0.5), 0.01)
    for one in matrices:
        one[:, -3:] = 0
    return matrices


KINDS: dict[str, tuple[Callable[[tuple[int, int]], list[Array]], bool]] = {
    "near": (lambda shape: experts(falling(shape, 0.5), 0.01), True),
    "far": (lambda shape: experts(falling(shape, 0.5), 0.2), True),
    "ill-conditioned": (lambda shape: experts(falling(shape, 0.7, 1e-6), 0.003), True),
    "hardly different": (lambda shape: experts(falling(shape, 0.5), 1e-5), True),
    "unlike": (lambda shape: experts(falling(shape, 0.0), 3.0), None),
    "all too steep": (lambda shape: experts(falling(shape, 2.0), 0.001), False),
    "of less than full rank": (deficient, False),
    "too small for float32": (lambda shape: experts(1e-9 * falling(shape, 0.5), 0.01), False),
}
"""Matrices, and whether small turns do for them; None: for what rounding leaves, perhaps."""


def agree(matrices: Sequence[Array], rules: Rules, *, turns: bool = False) -> None:
    """The passes are those of plain loops that decompose everything, to 1e-10 of the norm."""
    expected, done = plain(matrices, [matrices[0]], max_iter=rules.max_iter, tol=rules.tol)
    given = [torch.from_numpy(one) for one in matrices]
    found = generalized(given, (0,), rules, turns=turns)
    assert found.iterations == done
    assert found.turned is not None
    for matrix, turned, wanted in zip(matrices, found.turned, expected, strict=True):
        within = CLOSE * np.linalg.norm(matrix)
        assert np.linalg.norm(turned.numpy() - matrix @ wanted) < within
    assert len(found.turns) == turns * len(matrices)
    for matrix, turn, turned in zip(given, found.turns, found.turned, strict=False):
        assert float((turn(matrix) - turned).norm()) < CLOSE * float(matrix.norm())


@pytest.mark.parametrize("kind", KINDS)
def test_passes_are_those_of_decompositions(kind: str, tried: list[bool]) -> None:
    make, small = KINDS[kind]
    agree(make((SIZE, SIZE)), Rules(max_iter=6, tol=0))
    if small is not None:
        assert tried if small else not any(tried)
        assert all(tried) or not small


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("shape", [(2 * SIZE, SIZE), (SIZE, 2 * SIZE)], ids=str)
def test_so_they_are_of_long_and_wide_matrices(
    shape: tuple[int, int], turns: bool, tried: list[bool]
) -> None:
    """With turns for other rows and without."""
    agree(experts(falling(shape, 0.5), 0.01), Rules(max_iter=4), turns=turns)
    assert tried
    assert all(tried)


def test_through_the_door_of_methods(tried: list[bool]) -> None:
    """The record says the passes, and sums of squares, of plain loops."""
    matrices = experts(falling((SIZE, SIZE), 0.5), 0.01)
    name = "classifier.weight"
    known = Symmetry({name: (None, "width")}, 1, (), (name,))
    states = [{name: torch.from_numpy(one)} for one in matrices]
    found = harness.PREMERGE["procrustes"].function(states, {}, symmetry=known, max_iter=3)
    expected, done = plain(matrices, [matrices[0]], max_iter=3)
    moved = [matrix @ turn for matrix, turn in zip(matrices, expected, strict=True)]
    for state, wanted in zip(found, moved, strict=True):
        assert state[name].numpy() == pytest.approx(wanted, abs=CLOSE)
    assert found[0].report["iterations"] == {name: done}
    for when, those in (("before", matrices), ("after", moved)):
        squares = sum(float(np.sum((one - np.mean(those, 0)) ** 2)) for one in those)
        assert found[0].report[when] == {name: pytest.approx(squares, rel=1e-9)}
    assert all(tried)


# One at a time -----------------------------------------------------------------------------


def products(angle: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Of diagonal R and P = R T^T for a turn T of the first two columns by an angle; and T."""
    values = torch.linspace(2, 1, SIZE, dtype=torch.float64)
    turn = torch.eye(SIZE, dtype=torch.float64)
    cosine, sine = np.cos(angle), np.sin(angle)
    turn[:2, :2] = torch.tensor([[cosine, -sine], [sine, cosine]])
    return turn @ torch.diag(values**2), turn


def test_a_turn_by_hand() -> None:
    """What was turned by an angle is turned back by it, and nothing else is."""
    straight, _ = products(0.0)
    turned, turn = products(1e-3)
    frame = frame_of(straight)
    assert frame is not None
    found = small_turn(turned, frame, 1e-12)
    assert found is not None
    np.testing.assert_allclose(found[0].numpy() + np.eye(SIZE), turn.numpy(), atol=1e-13)


@pytest.mark.parametrize("far", [1e-7, 1e-5, 1e-3, 5e-3])
def test_a_turn_is_that_of_scipy(far: float) -> None:
    """Orthogonal to rounding, in whichever precision it comes."""
    matrices = [torch.from_numpy(one) for one in experts(falling((SIZE, SIZE), 0.5), far)]
    matrix, reference = matrices[0], torch.stack(matrices).mean(0)
    frame = frame_of(matrix.mT @ matrix)
    assert frame is not None
    found = small_turn(matrix.mT @ reference, frame, 1e-12)
    assert found is not None
    assert (found[0].dtype == torch.float32) is (far == 1e-7)
    turn = found[0].double() + torch.eye(SIZE, dtype=torch.float64)
    expected, _ = scipy_polar((matrix.mT @ reference).numpy())
    np.testing.assert_allclose((matrix @ turn).numpy(), matrix.numpy() @ expected, atol=3e-12)
    np.testing.assert_allclose((turn.mT @ turn).numpy(), np.eye(SIZE), atol=1e-12)


@pytest.mark.parametrize("steep", [0.0, 3.0, 9.0, None])
def test_a_factor_by_squares_is_that_of_scipy(steep: float | None) -> None:
    """And it has what H = Q^T M has for eigenvalues; of less than full rank it is that of ours."""
    numbers = torch.Generator().manual_seed(1)
    left, right = (
        torch.linalg.qr(torch.randn(SIZE, SIZE, generator=numbers, dtype=torch.float64)).Q
        for _ in range(2)
    )
    values = torch.logspace(0, -(steep or 0.0), SIZE, dtype=torch.float64)
    if steep is None:
        values[-9:] = 0
    matrix = left * values @ right.mT
    found, known, vectors = polar_by_squares(matrix)
    by_scipy = torch.from_numpy(scipy_polar(matrix.numpy())[0])
    expected = weights.polar(matrix) if steep is None else by_scipy
    within = {"rtol": 0, "atol": 1e-11 * float(matrix.norm())}
    torch.testing.assert_close(found @ vectors * known @ vectors.mT, matrix, **within)
    torch.testing.assert_close(matrix.mT @ found, matrix.mT @ expected, **within)
    eye = torch.eye(SIZE, dtype=torch.float64)
    torch.testing.assert_close(found.mT @ found, eye, rtol=0, atol=1e-11)


def test_products_in_float32_are_those_of_torch() -> None:
    one, other = (
        torch.from_numpy(one).float() for one in experts(falling((SIZE, 24), 0.5), 0.1)[:2]
    )
    for left, right in ((one, other.mT), (one.mT, other), (one.mT.double(), other.double())):
        torch.testing.assert_close(onednn.product(left, right), left @ right)


def test_frames_that_do_not_fit_are_refused() -> None:
    """Large turns, directions of something else, a null space; narrow matrices have no frame."""
    straight, _ = products(0.0)
    frame = frame_of(straight)
    assert frame is not None
    assert small_turn(products(1.0)[0], frame, CLOSE) is None
    numbers = torch.Generator().manual_seed(0)
    other = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=numbers, dtype=torch.float64)).Q
    steep = other @ torch.diag(torch.logspace(0, -5, SIZE, dtype=torch.float64)) @ other.mT
    assert small_turn(steep + 1e-3 * torch.triu(steep), frame, CLOSE) is None
    empty = straight.clone()
    empty[-1] = 0
    assert small_turn(empty, frame, CLOSE) is None
    assert frame_of(straight[:9, :9]) is None
    assert small_turns.NARROWEST > 9
