"""What chance makes of scores: cases by hand, properties, and agreement with libraries."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.stats import norm, permutation_test, t

from harness.stats.estimate import (
    Estimate,
    Prior,
    average,
    mean_of,
    minus,
    over_sets,
    variance,
)
from harness.stats.intervals import (
    credit,
    degrees,
    half_width,
    interval,
    moderated,
    ratio,
    student,
    variances,
)
from harness.stats.priors import prior, prior_of
from harness.stats.ranks import (
    fewest_tasks,
    friedman,
    interval_over_tasks,
    leave_one_out,
    pairs_over_tasks,
    places,
    ranks,
    sign_flip_p,
    tie_groups,
    win_rates,
)
from harness.stats.tests import detectable, holm, outcome, p_value, sets_needed, units_needed
from harness.types import Array64
from tests.simulations import two_alike

NONE = np.empty((1, 0))
SHARE = (0.0, 1.0)
CORRELATION = (-1.0, 1.0)


def normal(count: int = 1000, seed: int = 0) -> Array64:
    """Numbers whose mean is 0 and whose deviation is 1, exactly."""
    values = np.random.default_rng(seed).normal(size=count)
    return np.asarray((values - values.mean()) / values.std(ddof=1))


def fixed(point: float, error: float, units: int = 10**6, seed: int = 0) -> Estimate:
    """A score of one draw with this standard error over units."""
    return Estimate(np.array([point]), point + error * normal(seed=seed), NONE, units)


def of_draws(values: list[float], error: float, units: int = 10**6) -> Estimate:
    """Scores of draws that units move all alike."""
    draws = np.array(values)
    of_rows = error * normal()
    by_draw = draws[:, None] + of_rows[:64]
    return Estimate(draws, draws.mean() + of_rows, by_draw, units)


# Estimates ---------------------------------------------------------------------------------


def test_a_difference_is_on_the_same_resamples_and_the_same_draws() -> None:
    first = Estimate(
        np.array([0.5, 0.7]), np.array([0.5, 0.6, 0.7]), np.array([[0.4, 0.5], [0.6, 0.7]]), 9
    )
    second = Estimate(np.array([0.4]), np.array([0.3, 0.4]), NONE, 8)
    found = minus(first, second)
    assert found.point == pytest.approx(0.2)
    assert found.values == pytest.approx([0.1, 0.3])
    assert found.resamples == pytest.approx([0.2, 0.2])
    assert found.by_draw == pytest.approx(np.array([[0.1, 0.1], [0.3, 0.3]]))
    assert found.units == 8


def test_a_mean_is_one_of_every_draw_and_of_the_units_of_all() -> None:
    tasks = [fixed(1.0, 0.1, 100), fixed(3.0, 0.1 * math.sqrt(3), 100)]
    found = mean_of(tasks)
    assert found.point == 2
    assert found.units == 160
    assert found.resamples == pytest.approx((tasks[0].resamples + tasks[1].resamples) / 2)


def test_a_mean_over_tasks_of_unlike_draws_is_that_of_their_means() -> None:
    """Three draws of five are paired with those of another task; the score is of all five."""
    five, three = of_draws([0.1, 0.1, 0.1, 0.6, 0.6], 1e-4), of_draws([0.1, 0.2, 0.3], 1e-4)
    found = mean_of([five, three])
    assert found.point == pytest.approx((0.3 + 0.2) / 2)
    assert found.values == pytest.approx([0.2, 0.25, 0.3])
    low, high = interval(found)
    assert low < 0.25 < high


@pytest.mark.parametrize("count", [1, 2, 3, 9, 64, 129, 2000])
def test_means_and_variances_are_those_of_numpy_to_the_bit(count: int) -> None:
    for values in np.random.default_rng(count).normal(0.7, 0.1, (20, count)):
        assert average(values) == values.mean()
        assert variance(values, unbiased=False) == values.var()
        assert count == 1 or variance(values) == values.var(ddof=1)


# Intervals ---------------------------------------------------------------------------------


def test_students_t_is_that_of_scipy_to_the_bit() -> None:
    for tail, freedom in product((1e-6, 0.005, 0.025, 0.05, 0.2), (1, 1.5, 2, 29, 1820.3)):
        assert student(tail, freedom) == t.isf(tail, freedom)


def test_what_units_do_to_single_draws_is_counted_once() -> None:
    """Units that move each draw by itself, as far as in the spread of the draws, add nothing."""
    random = np.random.default_rng(0)
    by_draw = random.normal(size=(4, 4000))
    one = Estimate(by_draw[:, 0], by_draw.mean(axis=0), by_draw, 10**6)
    of_units, of_draws, _ = variances(one)
    assert of_units < 0.02
    assert of_draws == pytest.approx(one.values.var(ddof=1) / 4)
    assert one.resamples.var() == pytest.approx(0.25, rel=0.1), "what was added before"


def of_sets(*points: float, error: float = 0.0) -> Estimate:
    noise = error * normal(seed=1)
    return over_sets({
        number: Estimate(np.array([point]), point + noise, NONE, 500)
        for number, point in enumerate(points)
    })  # fmt: skip


def test_an_interval_of_sets_of_experts_by_hand() -> None:
    """Sets of 0, 3 and 6 have a variance of 9 and a mean with an error of root 3; t of 4.303."""
    one = of_sets(0.0, 3.0, 6.0, error=1.0)
    assert (one.point, one.units) == (3.0, 500)
    assert half_width(one) == pytest.approx(math.hypot(1.965, 4.303 * math.sqrt(3)), rel=0.05)
    assert p_value(one) == pytest.approx(2 * t.sf(3 / math.sqrt(3), 2), abs=0.1)
    assert half_width(of_sets(0.0, 6.0, error=1.0)) < 2.2, "of two sets, these very ones are meant"


def test_variances_over_sets_are_drawn_towards_those_of_all_models() -> None:
    """By hand: 3 degrees of freedom of a variance of 7, and 2 of its own of 2, are 5 of 5; its own
    of 9 stays."""
    assert moderated(2.0, 3, Prior(7.0, 3.0)) == (5.0, 5.0)
    assert moderated(9.0, 3, Prior(7.0, 3.0)) == (9.0, 5.0)
    assert moderated(9.0, 3, None) == (9.0, 2)


def test_an_interval_ends_where_a_test_says_so_whatever_is_known_of_sets() -> None:
    one = of_sets(0.03, 0.05, 0.04, error=1e-3)
    for told in (None, Prior(1e-3, 4.0), Prior(1e-6, 4.0), Prior(0.05, 2.0)):
        known = replace(one, prior=told)
        p = p_value(known)
        assert half_width(known, tail=p / 2) == pytest.approx(known.point, rel=1e-4)
        assert (p < 0.05) == (interval(known)[0] > 0)


def test_what_all_models_say_of_sets_is_found_again() -> None:
    """Alike models have one variance; whether each model or set is high or low is none of it."""
    random = np.random.default_rng(0)
    noise = random.normal(0, 0.1, (400, 3))
    alike = prior(noise + 5 * random.normal(size=(400, 1)) + random.normal(size=3))
    assert alike.variance == pytest.approx(2 * 0.01, rel=0.1)
    assert 100 < alike.degrees <= 399
    # variances that are 3 x 0.01 / chi-square of 3 degrees: Smyth's world
    variances = 3 * 0.01 / random.chisquare(3, size=(4000, 1))
    apart = prior(random.normal(size=(4000, 3)) * np.sqrt(variances))
    assert apart.degrees == pytest.approx(3 / 2, rel=0.25)
    assert prior(np.ones((4, 3))) == Prior(0.0, 3.0)


def test_merges_that_vary_much_do_not_hide_what_steady_ones_show() -> None:
    """One of eleven steady merges is ahead by five of their deviations; four others vary twenty
    times as much over sets, as a merge that fails on one of them does."""
    random = np.random.default_rng(0)
    spread = np.array([0.01] * 11 + [0.2] * 4)[:, None]
    scores = spread * random.normal(size=(15, 6)) + random.normal(0, 0.05, 6)
    scores[0] += 0.05
    models = [of_sets(*each, error=1e-4) for each in scores.tolist()]
    known = prior_of(models)
    assert p_value(replace(minus(models[0], models[1]), prior=known)) < 0.05
    assert p_value(replace(minus(models[0], models[-1]), prior=known)) > 0.05


def test_a_family_over_three_sets_is_significant_together_and_not_alone() -> None:
    """Twelve merges on three sets, one of them better by five deviations of a difference."""
    random = np.random.default_rng(3)
    scores = random.normal(0, 0.01, (12, 3)) + random.normal(0, 0.05, 3)
    scores[0] += 0.1
    models = [of_sets(*each, error=1e-4) for each in scores.tolist()]
    first = [minus(models[0], one) for one in models[1:]]
    alone = holm([p_value(one) for one in first])
    known = prior_of(models)
    together = holm([p_value(replace(one, prior=known)) for one in first])
    assert max(together) < 0.01
    assert sum(p < 0.05 for p in alone) < 6
    assert prior_of([of_sets(0.1, 0.2)] * 4) is None, "two sets"
    assert prior_of(models[:3]) is None, "too few to know what they have in common"
    assert prior_of(models[:4]) is not None


def test_differences_and_means_pair_sets_by_number() -> None:
    """A method that is 1 better on every set is so without a spread, in whatever order they are."""
    first, second = of_sets(0.0, 3.0, 6.0), of_sets(1.0, 4.0, 7.0)
    turned = over_sets({
        number: Estimate(np.array([value]), value + 0 * normal(seed=1), NONE, 500)
        for number, value in reversed([*enumerate((1.0, 4.0, 7.0))])
    })  # fmt: skip
    for other in (second, turned):
        assert variances(minus(other, first))[2] == 0
        assert dict(minus(other, first).by_set) == {0: 1.0, 1: 1.0, 2: 1.0}
    alone = Estimate(np.array([2.0]), 2.0 + 0 * normal(seed=1), NONE, 500)
    assert dict(minus(first, alone).by_set) == {0: -2.0, 1: 1.0, 2: 4.0}
    assert dict(mean_of([first, of_sets(2.0, 1.0)]).by_set) == {0: 1.0, 1: 2.0}


def test_an_interval_of_units_and_draws_by_hand() -> None:
    """An error of 3 of units; draws 0 and 8, whose mean has one of 4, and a t of 12.7."""
    one = of_draws([0.0, 8.0], 3.0)
    assert half_width(one) == pytest.approx(math.hypot(1.96 * 3, 12.706 * 4), rel=1e-3)
    low, high = interval(one)
    assert (low + high) / 2 == pytest.approx(4)
    assert high - low == pytest.approx(2 * half_width(one))


def test_few_units_have_students_t() -> None:
    assert half_width(fixed(0.5, 0.1, 5), difference=False) == pytest.approx(
        t.ppf(0.975, 4) * 0.1 * math.sqrt(5 / 4)
    )
    assert interval(fixed(0.5, 0.0, 1), SHARE) == SHARE
    assert p_value(fixed(0.5, 0.1, 1)) == 1


@pytest.mark.parametrize("bounds", [SHARE, CORRELATION])
@pytest.mark.parametrize("error", [0.0, 0.001, 0.1, 10.0])
@pytest.mark.parametrize("point", [-1.0, 0.0, 0.3, 1.0])
def test_an_interval_stays_within_its_bounds(
    bounds: tuple[float, float], error: float, point: float
) -> None:
    low, high = interval(fixed(max(point, bounds[0]), error, 50), bounds)
    assert bounds[0] <= low < high <= bounds[1]
    assert low <= max(point, bounds[0]) <= high


def test_the_interval_of_an_accuracy_is_wilsons() -> None:
    """83 of 100 rows right: by scipy from 0.744 to 0.891."""
    one = fixed(0.83, math.sqrt(0.83 * 0.17 / 100), 100)
    assert interval(one, SHARE) == pytest.approx((0.744, 0.891), abs=0.003)
    every = interval(fixed(1.0, 0.0, 100), SHARE)
    assert every == pytest.approx((0.963, 1.0), abs=0.001)


# One difference ----------------------------------------------------------------------------


@pytest.mark.parametrize("draws", [[0.03], [0.03, 0.01, 0.05], [0.01, 0.06, 0.02, 0.0, 0.02]])
@pytest.mark.parametrize("error", [0.002, 0.01, 0.03])
def test_a_p_value_of_the_level_has_an_interval_that_ends_at_zero(
    draws: list[float], error: float
) -> None:
    one = of_draws(draws, error, 200)
    p = p_value(one)
    assert half_width(one, tail=p / 2) == pytest.approx(one.point, rel=1e-4)


def test_two_models_that_differ_in_few_rows_are_told_by_these_few() -> None:
    """5 to the good of the first and 2 to the bad of 500: seven rows."""
    values = np.zeros(500)
    values[:7] = [1, 1, 1, 1, 1, -1, -1]
    error = values.std() / math.sqrt(500)
    one = fixed(values.mean(), error, 500)
    assert degrees(one, difference=True)[0] == 6
    assert degrees(one, difference=False)[0] == 499
    five = fixed(0.01, math.sqrt(5 / 500 - 0.01**2) / math.sqrt(500), 500)
    assert p_value(five) > 0.05, "exact: 2 / 2^5 = 0.0625"


def test_rows_that_differ_are_counted_however_many_resamples_there_are() -> None:
    """Of 60 rows 16, as a record keeps them: their kurtosis would be that of thirty."""
    one = two_alike(np.random.default_rng(0), 60, 16)
    assert degrees(one, difference=True)[0] == 15
    assert degrees(replace(one, counted=False), difference=True)[0] > 20
    three = over_sets({0: one, 1: one, 2: one})
    assert not three.counted, "a part of a set's score is less than one of a row"


def test_a_unit_may_change_a_score_by_less_than_its_part() -> None:
    """Of a correlation: an error of 0.003 on 500 rows would be that of two rows, all else right.

    With one degree of freedom the interval would be six times as wide.
    """
    one = Estimate(np.array([0.01]), 0.01 + 0.003 * normal(4000), NONE, 500)
    assert degrees(one, difference=True)[0] >= 9
    assert half_width(one) < 1.2 * 1.96 * 0.003
    tails = t.rvs(3, size=4000, random_state=0)
    few = Estimate(one.values, 0.01 + 0.003 * tails / tails.std(), NONE, 500)
    assert degrees(few, difference=True)[0] == 1, "resamples with long tails are of few units"


def test_no_difference_is_none_and_one_of_every_row_is_a_sign_test() -> None:
    assert p_value(fixed(0.0, 0.0, 10)) == 1
    assert p_value(fixed(1.0, 0.0, 4)) == pytest.approx(2 / 2**4)
    for units in (2, 4, 5, 6, 10, 100):  # the interval leaves out zero where the test does
        low, high = interval(one := fixed(1.0, 0.0, units))
        assert (low > 0) == (p_value(one) < 0.05)
        assert low < 1 < high, "of so few units, others may be otherwise"
    assert p_value(of_draws([0.1, 0.1, 0.1], 0.0, 10)) == pytest.approx(2 / 2**10)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm([0.5, 0.9]) == (1.0, 1.0)
    assert holm([0.02]) == (0.02,)
    assert holm([]) == ()


def test_holm_rejects_step_by_step() -> None:
    """The smallest against a / n, the next against a / (n - 1), until one is not rejected."""
    random = np.random.default_rng(0)
    for _ in range(50):
        values = random.random(6) ** 3
        left, rejected = sorted(values), set()
        while left and left[0] <= 0.05 / len(left):
            rejected.add(left.pop(0))
        assert {v for v, p in zip(values, holm(values), strict=True) if p <= 0.05} == rejected


@pytest.mark.parametrize(
    ("difference", "p", "ends", "margin", "said"),
    [
        (0.02, 0.01, (0.01, 0.03), None, "better"),
        (-0.02, 0.01, (-0.03, -0.01), None, "worse"),
        (0.02, 0.2, (-0.01, 0.05), None, "cannot tell"),
        (0.02, None, (-0.3, 0.3), 0.5, "needs more draws"),
        (0.002, 0.01, (0.001, 0.003), 0.01, "practically equal"),
        (0.002, 0.6, (-0.009, 0.011), 0.01, "cannot tell"),
    ],
)
def test_outcomes(
    difference: float,
    p: float | None,
    ends: tuple[float, float],
    margin: float | None,
    said: str,
) -> None:
    assert outcome(difference, p, ends, margin) == said


def test_the_smallest_detectable_difference_by_hand() -> None:
    assert detectable(fixed(0.02, 0.01, 10**4)) == pytest.approx(
        0.01 * (norm.ppf(0.975) + norm.ppf(0.8)), rel=0.01
    )
    assert detectable(fixed(0.0, 0.0)) == math.inf, "how far units differ is not known"


def test_no_unit_that_differs_is_no_certainty() -> None:
    """By hand: of 30 rows that two models answer alike, a share q of others may differ.

    (1 - q)^30 is 2.5 % for q = 0.1157.
    """
    assert interval(fixed(0.0, 0.0, 30)) == pytest.approx((-0.1157, 0.1157), abs=1e-4)
    assert p_value(fixed(0.0, 0.0, 30)) == 1


def test_the_units_that_a_difference_needs() -> None:
    """A quarter of them for one that is twice as large as what is found; none for draws' part."""
    one = fixed(0.02, 0.01, 10**4)
    size = detectable(one)
    assert units_needed(fixed(size, 0.01, 10**4), 100) == pytest.approx(100, abs=2)
    assert units_needed(fixed(2 * size, 0.01, 10**4), 100) == pytest.approx(25, abs=1)
    assert units_needed(fixed(0.0, 0.01), 100) is None
    assert units_needed(of_draws([0.06, -0.04, 0.01], 0.01), 100) is None


# Ratios ------------------------------------------------------------------------------------


def test_a_ratio_of_certain_numbers_is_certain() -> None:
    assert ratio(fixed(1.0, 0.0), fixed(2.0, 0.0)) == ratio(fixed(3.0, 0.0), fixed(6.0, 0.0))
    found = ratio(fixed(1.0, 0.0), fixed(2.0, 0.0))
    assert found is not None
    assert (found.point, found.ends) == (0.5, (0.5, 0.5))


def test_an_interval_without_an_end_is_none() -> None:
    """What is below is just significant by its own many units, and not by the few of what is above:
    no share is ruled out."""
    below = fixed(1.0, 0.495, units=40_000, seed=1)
    above = fixed(0.9, 0.6, units=40_000, seed=2)
    found = ratio(above, below)
    assert found is not None
    assert all(map(math.isfinite, found.ends))
    assert ratio(replace(above, units=30), below) is None


def test_fiellers_interval_by_the_quadratic() -> None:
    above, below = fixed(1.0, 0.2, seed=1), fixed(2.0, 0.3, seed=2)
    found = ratio(above, below)
    assert found is not None
    cov = np.cov(above.resamples, below.resamples) * norm.ppf(0.975) ** 2
    roots = np.roots([4 - cov[1, 1], -2 * (2 - cov[0, 1]), 1 - cov[0, 0]])
    assert found.ends == pytest.approx(sorted(roots), rel=1e-3)


def test_nothing_is_divided_by_what_may_be_nothing() -> None:
    assert ratio(fixed(1.0, 0.1), fixed(0.1, 0.1)) is None
    assert ratio(fixed(1.0, 0.1), fixed(-2.0, 0.1)) is None


def test_credit_is_of_the_means_over_tasks() -> None:
    """Topics: from 25.1 to 72.8, and 65.6 with a tuned head: 85 %."""
    tuned, base, experts = (fixed(value, 0.005) for value in (0.656, 0.251, 0.728))
    found = credit([tuned], [base], [experts])
    assert found is not None
    assert found.point == pytest.approx(0.849, abs=1e-3)
    other = credit([tuned, fixed(0.9, 0.01)], [base, fixed(0.4, 0.01)], [experts, fixed(0.9, 0.01)])
    assert other is not None
    assert other.point == pytest.approx((0.405 + 0.5) / (0.477 + 0.5), abs=1e-3)
    assert credit([tuned], [base], [base]) is None


# Several tasks -----------------------------------------------------------------------------


def test_signs_are_flipped_as_scipy_does() -> None:
    values = np.random.default_rng(0).normal(0.5, 1, size=(4, 7))
    for row, p in zip(values, sign_flip_p(values), strict=True):
        known = permutation_test(
            (row,),
            lambda x, axis: x.mean(axis),
            permutation_type="samples",
            n_resamples=np.inf,
            vectorized=True,
        )
        assert p == pytest.approx(known.pvalue)


def test_signs_of_many_tasks_are_drawn() -> None:
    values = np.random.default_rng(0).normal(0.3, 1, size=20)
    drawn = float(sign_flip_p(values))
    assert drawn == float(sign_flip_p(values))
    assert drawn == pytest.approx(
        2 * norm.sf(abs(values.sum()) / (values @ values) ** 0.5), abs=0.03
    )


def test_five_tasks_say_nothing_of_others() -> None:
    assert float(sign_flip_p(np.full(5, 0.1))) == 1 / 16
    assert interval_over_tasks(np.full(5, 0.1)) is None
    assert interval_over_tasks(np.arange(6.0)) == (0, 5)


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_over_tasks_is_that_of_the_test(seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=9)
    ends = interval_over_tasks(values)
    assert ends is not None
    for end, out in zip(ends, (-1e-4, 1e-4), strict=True):
        assert (
            float(sign_flip_p(values - end - out)) <= 0.05 < float(sign_flip_p(values - end + out))
        )


def test_the_task_that_decides_is_named() -> None:
    ends, deciding = leave_one_out(np.array([0.01, -0.02, -0.01, 0.3]))
    assert ends == pytest.approx(((0.01 - 0.02 - 0.01) / 3, 0.1), abs=1e-6)
    assert deciding == [3]
    assert leave_one_out(np.full(8, 0.1))[1] == []
    against = np.array([0.1, 0.11, 0.12, 0.1, 0.1, 0.1, -0.3])
    assert leave_one_out(against)[1] == [6], "significant without it, of the same sign with it"


def test_ranks_and_wins_by_hand() -> None:
    values = np.array([[0.9, 0.5], [0.8, 0.7], [0.7, 0.5]])
    assert ranks(values).tolist() == [[1, 2.5], [2, 1], [3, 2.5]]
    assert win_rates(values).tolist() == [2.5 / 4, 3 / 4, 0.5 / 4]


def test_models_that_are_the_same_are_not_told_apart() -> None:
    """Nor are those that are one rank apart everywhere, on too few tasks."""
    assert friedman(np.zeros((3, 8))) == 1
    assert pairs_over_tasks(np.zeros((3, 8))) == set()
    always = np.arange(4.0)[:, None] + np.zeros(8)
    assert friedman(always[:, :5]) < 0.05
    assert pairs_over_tasks(always[:, :5]) == set()
    assert pairs_over_tasks(always) == {(i, j) for i, j in product(range(4), range(4)) if i < j}


def test_how_alike_orders_are_by_counting() -> None:
    """Of two tasks and eight models, of three and four: as often by chance as the p-value says."""
    random = np.random.default_rng(0)
    for models, tasks in ((8, 2), (5, 3), (8, 5)):
        found = [friedman(random.normal(size=(models, tasks))) for _ in range(1000)]
        for level in (0.05, 0.2):
            assert np.mean(np.array(found) < level) == pytest.approx(level, rel=0.35)
    once = np.arange(8.0)[:, None]
    assert friedman(np.repeat(once, 2, axis=1)) < 0.001, "one order of 40,320"
    assert friedman(np.repeat(once, 3, axis=1)) == pytest.approx(40320.0**-2)
    assert friedman(once) == 1
    one_ahead = np.array([1.0] + [0.0] * 19)[:, None]
    assert friedman(np.repeat(one_ahead, 2, axis=1)) == pytest.approx(1 / 20), "all others tie"
    assert friedman(np.array([[1.0, 1], [2, 2], [3, 3]])) == pytest.approx(0.369, abs=0.001)


@pytest.mark.parametrize("models", [2, 3, 4, 6, 30, 58, 80])
def test_fewer_tasks_than_that_can_tell_nobody_apart(models: int) -> None:
    few = fewest_tasks(models)
    always = np.arange(float(models))[:, None] + np.zeros(few)
    assert pairs_over_tasks(always)
    assert not pairs_over_tasks(always[:, 1:])


def test_models_that_cannot_be_told_apart_are_joined() -> None:
    known = {(0, 2), (0, 3), (1, 3), (2, 3)}
    assert tie_groups([3, 2, 1, 0], known) == [(3,), (2, 1), (1, 0)]
    assert tie_groups([3, 2, 1, 0], ()) == [(3, 2, 1, 0)]
    assert tie_groups([0, 1, 2], {(0, 1)}) == [(0,), (1, 2)]
    assert places([3, 2, 1, 0], known) == [(3, 4), (2, 4), (2, 3), (1, 1)]


# What it would take ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deviation", "pairs"), [(1.0, 10), (2.0, 34), (0.5, 5), (5.0, 199), (0.001, 2)]
)
def test_sets_that_a_difference_of_one_takes(deviation: float, pairs: int) -> None:
    """G*Power 3.1, two-sided, 5 %, power 80 %: 10 pairs at d = 1, 34 at 0.5, 199 at 0.2."""
    assert sets_needed(deviation, 1.0) == pairs
    assert sets_needed(2 * deviation, 2.0) == pairs


def test_so_many_sets_find_the_difference_four_times_in_five() -> None:
    from scipy.stats import ttest_1samp

    pairs = sets_needed(1.5, 1.0)
    drawn = np.random.default_rng(0).normal(1.0, 1.5, size=(4000, pairs))
    found = (ttest_1samp(drawn, 0.0, axis=1).pvalue < 0.05).mean()
    assert found == pytest.approx(0.8, abs=0.03)
