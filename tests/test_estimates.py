"""What rows, draws and tasks leave of a difference: cases by hand, laws, and what is promised."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import t, ttest_1samp, ttest_ind_from_stats

from harness.evaluation.estimates import (
    Estimate,
    apart,
    bootstrap_p,
    detectable,
    ends,
    error,
    estimate,
    mean_of,
    minus,
    over_tasks,
    p_over_tasks,
    p_value,
    ranks,
    rows_needed,
    tie_groups,
    widened,
    win_rates,
    within,
)
from harness.types import Array64

ONE = np.zeros(1)


def of_rows(point: float, spread: float, count: int = 1000) -> Estimate:
    """Whose resamples are those of a normal, exactly, and which nothing was drawn for."""
    normal = np.random.default_rng(0).normal(size=count)
    normal = (normal - normal.mean()) / normal.std(ddof=1)
    return Estimate(point, point + spread * normal, np.array([point]))


# Rows and draws --------------------------------------------------------------------------------


def test_a_difference_is_on_the_same_resamples_and_the_same_draws() -> None:
    first = estimate([0.5, 0.7], np.array([0.5, 0.6, 0.7]))
    second = estimate([0.4], np.array([0.3, 0.4]))
    found = minus(first, second)
    assert found.point == pytest.approx(0.2)
    assert found.rows == pytest.approx([0.2, 0.2])
    assert found.draws == pytest.approx([0.1, 0.3])


def test_a_mean_over_tasks_is_one_of_every_draw() -> None:
    one, two = estimate([1.0, 3.0], np.array([1.0, 3.0])), estimate([5.0], np.array([4.0, 6.0]))
    found = mean_of([one, two])
    assert found.point == 3.5
    assert found.rows.tolist() == [2.5, 4.5]
    assert found.draws.tolist() == [3.0, 4.0]


def test_the_spread_of_draws_widens_an_interval_by_hand() -> None:
    low, high = widened(2.0, (-1.0, 6.0), np.array([1.0, 3.0]))
    assert low == pytest.approx(2 - (9 + 12.7062**2) ** 0.5, abs=1e-3)
    assert high == pytest.approx(2 + (16 + 12.7062**2) ** 0.5, abs=1e-3)


def test_one_draw_leaves_the_interval_of_the_rows() -> None:
    one = of_rows(0.1, 0.02)
    assert within(one) == ends(one.rows)
    assert widened(0.1, (0.0, 0.3), ONE) == (0.0, 0.3)


def test_the_error_of_rows_and_draws_by_hand() -> None:
    """3 of rows, and 4 of draws 0 and 8: 5 together."""
    one = Estimate(4.0, of_rows(4.0, 3.0).rows, np.array([0.0, 8.0]))
    assert error(one) == pytest.approx(5)
    assert p_value(one) == pytest.approx(2 * t.sf(4 / 5, 625 / 256))


def test_the_test_of_rows_and_draws_is_welchs() -> None:
    """Of so many draws against a number that rows alone blur, whose degrees are without end."""
    draws = np.array([0.01, 0.03, 0.02, 0.06, 0.01])
    one = Estimate(float(draws.mean()), of_rows(0.0, 0.01).rows, draws)
    many = 10**9
    sizes = (draws.mean(), draws.std(ddof=1), len(draws), 0.0, 0.01 * many**0.5, many)
    expected = ttest_ind_from_stats(*sizes, equal_var=False)
    assert p_value(one) == pytest.approx(expected.pvalue, rel=1e-6)


def test_without_a_spread_of_draws_rows_alone_are_asked() -> None:
    one = of_rows(0.03, 0.02)
    same = Estimate(0.03, one.rows, np.full(5, 0.03))
    assert p_value(one) == p_value(same) == bootstrap_p(one.rows)
    assert within(one) == within(same)


def missed(made: Callable[[np.random.Generator], bool], times: int = 2000) -> float:
    return float(np.mean([made(np.random.default_rng(seed)) for seed in range(times)]))


def test_an_interval_over_rows_and_draws_holds_what_it_promises() -> None:
    """Of five draws; where a bootstrap of the rows alone misses far more often."""

    def made(random: np.random.Generator, *, alone: bool = False) -> bool:
        draws = random.normal(0, 2, size=5) + random.normal(0, 1)
        rows = draws.mean() + random.normal(0, 1, size=200)
        one = Estimate(float(draws.mean()), rows, draws)
        low, high = ends(rows) if alone else within(one)
        return not low <= 0 <= high

    assert 0.02 <= missed(made) <= 0.07
    assert missed(lambda random: made(random, alone=True)) > 0.1


def test_a_test_of_rows_and_draws_rejects_at_its_level() -> None:
    def made(random: np.random.Generator) -> bool:
        draws = random.normal(0, 2, size=5) + random.normal(0, 1)
        rows = draws.mean() + random.normal(0, 1, size=200)
        return p_value(Estimate(float(draws.mean()), rows, draws)) < 0.05

    assert 0.02 <= missed(made) <= 0.07


# Tasks -----------------------------------------------------------------------------------------


def test_a_single_task_is_held() -> None:
    one = of_rows(0.1, 0.02)
    assert over_tasks([one]) == within(one)
    assert p_over_tasks([one]) == p_value(one)


def test_two_tasks_by_hand() -> None:
    tasks = [of_rows(point, 0.1) for point in (1.0, 3.0)]
    assert over_tasks(tasks) == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-3)
    assert p_over_tasks(tasks) == pytest.approx(ttest_1samp([1.0, 3.0], 0).pvalue)


def test_tasks_that_happen_to_be_alike_say_no_more_than_their_rows() -> None:
    tasks = [of_rows(point, 0.5) for point in (1.0, 1.001)]
    assert over_tasks(tasks) == within(mean_of(tasks))
    assert p_over_tasks(tasks) == p_value(mean_of(tasks))
    same = [of_rows(1.0, 0.5)] * 3
    assert over_tasks(same) == within(mean_of(same))


def tasks_of(random: np.random.Generator, count: int, differ: float) -> list[Estimate]:
    """Differences whose true mean over all tasks is zero: of tasks, and of rows by 0.5."""
    true = random.normal(0, differ, size=count) if differ else np.zeros(count)
    seen = true + random.normal(0, 0.5, size=count)
    return [Estimate(x, x + random.normal(0, 0.5, size=200), np.array([x])) for x in seen]


@pytest.mark.parametrize("count", [2, 3, 5, 9])
@pytest.mark.parametrize("differ", [0.0, 3.0])
def test_an_interval_over_tasks_misses_no_more_than_it_promises(count: int, differ: float) -> None:
    def made(random: np.random.Generator) -> bool:
        low, high = over_tasks(tasks_of(random, count, differ))
        return not low <= 0 <= high

    share = missed(made)
    assert share <= 0.07
    assert share >= (0.03 if differ else 0.005), "no wider than it has to be"


@pytest.mark.parametrize("count", [2, 5])
def test_models_of_the_same_worth_on_tasks_that_differ_are_rarely_told_apart(count: int) -> None:
    """Of three, any two, as often as is promised: few tasks are no sample to resample."""

    def made(random: np.random.Generator) -> bool:
        return bool(apart([tasks_of(random, count, 2.0) for _ in range(3)]))

    assert missed(made, 600) <= 0.07


# What it would take ----------------------------------------------------------------------------


def test_the_smallest_difference_by_hand() -> None:
    assert detectable(of_rows(0.0, 0.01)) == pytest.approx(0.01 * (1.959964 + 0.841621))


def test_the_rows_that_a_difference_needs() -> None:
    """Twice the difference is shown by a quarter of the rows; one like the error by 7.85 times."""
    assert rows_needed([of_rows(0.01, 0.01)], 100) == 785
    assert rows_needed([of_rows(-0.02, 0.01)], 100) == 197
    assert rows_needed([of_rows(0.0, 0.01)], 100) is None


def test_no_number_of_rows_shows_what_differs_from_task_to_task_or_draw_to_draw() -> None:
    tasks = [of_rows(point, 0.001) for point in (0.2, -0.1, 0.05)]
    assert rows_needed(tasks, 100) is None
    drawn = Estimate(0.01, of_rows(0.01, 0.01).rows, np.array([0.06, -0.04]))
    assert rows_needed([drawn], 100) is None


def test_tasks_that_differ_by_their_rows_alone_need_more_rows() -> None:
    """Nine tasks of one true difference: mostly a number is said, and about the right one."""
    said = []
    for seed in range(200):
        random = np.random.default_rng(seed)
        points = 0.02 + random.normal(0, 0.03, size=9)
        tasks = [Estimate(x, x + random.normal(0, 0.03, size=300), np.array([x])) for x in points]
        said.append(rows_needed(tasks, 900))
    known = [one for one in said if one is not None]
    assert len(known) > 120
    # (t 0.975 + t 0.8 of 8 degrees = 3.195) x 0.01 / 0.02, squared: 2.55 times as many
    assert 0.4 * 2300 < np.median(known) < 2.5 * 2300


# Several models --------------------------------------------------------------------------------


def test_ranks_and_wins_by_hand() -> None:
    values = np.array([[0.9, 0.5], [0.8, 0.7], [0.7, 0.5]])
    assert ranks(values).tolist() == [[1, 2.5], [2, 1], [3, 2.5]]
    assert win_rates(values).tolist() == [2.5 / 4, 3 / 4, 0.5 / 4]


def one_task(samples: Array64) -> list[list[Estimate]]:
    return [[Estimate(float(one.mean()), one, ONE)] for one in samples]


def test_models_that_cannot_be_told_apart_are_joined() -> None:
    noise = np.random.default_rng(0).normal(size=(4, 1000))
    known = apart(one_task(np.array([[0.0], [1.5], [3.0], [30.0]]) + 0.5 * noise))
    assert known == {(0, 2), (0, 3), (1, 3), (2, 3)}
    assert tie_groups([3, 2, 1, 0], known) == [(3,), (2, 1), (1, 0)]
    assert tie_groups([3, 2, 1, 0], ()) == [(3, 2, 1, 0)]
    assert tie_groups([0, 1, 2], {(0, 1)}) == [(0,), (1, 2)]
