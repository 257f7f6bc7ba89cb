"""Statistics hold their level in worlds in which the truth is known: `make simulate`, in short."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from tests.simulations import FAMILIES, World, shares_printed, steadiness

TIMES = 200
WORLDS = [*chain(*(worlds() for worlds in FAMILIES.values()))]


def far(share: float, world: World) -> bool:
    """Whether a share is out of the band by more than chance in so many repetitions explains."""
    chance = [3 * np.sqrt(end * (1 - end) / TIMES) for end in (world.low, world.high)]
    return not world.low - chance[0] <= share <= world.high + chance[1]


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.title)
def test_what_is_promised_is_held(world: World) -> None:
    assert not far(world.share(TIMES), world)


@pytest.mark.parametrize(
    "world", [one for one in WORLDS if one.old and one.fails], ids=lambda world: world.title
)
def test_the_way_that_was_given_up_does_not_hold_it(world: World) -> None:
    assert far(world.share(TIMES, world.old), world)


def test_a_share_of_a_loss_is_not_chosen_for_being_large() -> None:
    """Of a true half, the way given up printed seven tenths or more."""
    now, old = shares_printed(TIMES, 2)
    assert 0.4 < now < 0.6
    assert old > 0.7


def test_an_end_does_not_hang_on_the_resamples() -> None:
    now, old = steadiness(277, 2000)
    assert now < 0.11
    assert old > 0.15
