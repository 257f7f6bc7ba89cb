"""Worlds in which the truth is known: how often intervals hold it, and how often tests are wrong.

`make simulate` writes the table of docs/statistics.md; tests/test_stats_simulated.py runs the same
with fewer repetitions, and shows that the ways that were given up miss their level.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations

import numpy as np
from scipy.stats import norm

from harness.evaluation.bootstrap import resample_count
from harness.evaluation.resamples import to_estimate as recorded
from harness.evaluation.resamples import to_resamples
from harness.stats.estimate import Estimate, mean_of, minus, over_sets
from harness.stats.intervals import Ends, interval, median_credit, ratio, variances
from harness.stats.priors import prior_of
from harness.stats.ranks import interval_over_tasks, pairs_over_tasks, ranks, sign_flip_p
from harness.stats.tests import detectable, holm, p_value
from harness.types import Array64, Units

Random = np.random.Generator
RESAMPLES, BY_DRAW = 2000, 64
SHARE: Ends = (0.0, 1.0)
CORRELATION: Ends = (-1.0, 1.0)


COVERED = 0.93
"""Of intervals of 95 %: those that hold the truth less often are said to fall short."""
LEVEL_OF_ONE, EXCEEDED = 0.05, 0.14
"""Of one test; and how often the worst of them finds what is not there, which is said."""


@dataclass(frozen=True)
class World:
    """One case: how often `made` is true, and between which shares it should be."""

    title: str
    low: float
    high: float
    made: Callable[[Random], bool]
    old: Callable[[Random], bool] | None = None
    """The same by the way that was given up."""
    fails: bool = True
    """Whether that way, if there is one, falls out of the band."""

    def share(self, times: int, way: Callable[[Random], bool] | None = None) -> float:
        """Of so many repetitions, each of a seed of its own."""
        one = way or self.made
        return float(np.mean([one(np.random.default_rng([1, seed])) for seed in range(times)]))


# Made-up models ----------------------------------------------------------------------------


@cache
def counts(units: int, resamples: int = RESAMPLES) -> Array64:
    """How often each unit is drawn: [resamples, units]."""
    chance = np.full(units, 1 / units)
    return np.random.default_rng(units).multinomial(units, chance, resamples).astype(np.float64)


Metric = Callable[[Array64], Array64]
"""Counts [resamples, units] -> scores [resamples]."""


def read(metrics: list[Metric], units: int) -> Estimate:
    """A model whose score is a function of counts, on each draw."""
    whole = np.ones((1, units))
    each = [metric(counts(units)) for metric in metrics]
    kept = np.array([one[:BY_DRAW] for one in each]) if len(each) > 1 else np.empty((1, 0))
    values = np.array([float(metric(whole)[0]) for metric in metrics])
    return Estimate(values, np.mean(each, axis=0), kept, units)


def mean(values: Array64) -> Metric:
    """Of what each unit scores."""
    return lambda weights: weights @ values / len(values)


def means(values: Array64) -> Estimate:
    """Of values [draws, units]."""
    return read([mean(one) for one in values], values.shape[1])


def f1_of(true: Units, found: Units, place: int) -> Metric:
    """F1 of one class."""
    hit, said, is_ = (true == place) & (found == place), found == place, true == place
    both = (said.astype(np.float64) + is_).astype(np.float64)

    def f1(weights: Array64) -> Array64:
        below = weights @ both
        return np.divide(2 * weights @ hit, below, out=np.zeros_like(below), where=below > 0)

    return f1


def normal(point: float, error: float, units: int, random: Random) -> Estimate:
    """A score that is blurred by its units alone, and its resamples."""
    seen = point + random.normal(0, error)
    return Estimate(np.array([seen]), seen + error * _normal(random), np.empty((1, 0)), units)


def _normal(random: Random) -> Array64:
    return random.normal(size=200)


# Intervals of one score --------------------------------------------------------------------


def holds(truth: float, ends: Ends) -> bool:
    return ends[0] <= truth <= ends[1]


def percentiles(one: Estimate) -> Ends:
    """The way that was given up: of rows alone."""
    low, high = np.percentile(one.resamples, [2.5, 97.5])
    return float(low), float(high)


def score(
    title: str,
    made: Callable[[Random], Estimate],
    truth: float,
    bounds: Ends = SHARE,
    *,
    band: Ends = (0.93, 0.97),
    fails: bool = False,
) -> World:
    """Whether the interval of a score holds the truth, in 93 to 97 of 100."""
    return World(
        title,
        *band,
        lambda random: holds(truth, interval(made(random), bounds)),
        lambda random: holds(truth, percentiles(made(random))),
        fails,
    )


def accuracy(random: Random, rows: int, share: float) -> Estimate:
    return means((random.random((1, rows)) < share).astype(np.float64))


def macro(
    random: Random, rows: int, sizes: tuple[float, ...], found: tuple[float, ...]
) -> Estimate:
    """Macro-F1 of classes of these sizes, of which so much is found; the rest is any other."""
    true = random.choice(len(sizes), rows, p=sizes)
    hit = random.random(rows) < np.array(found)[true]
    other = (true + 1 + random.integers(len(sizes) - 1, size=rows)) % len(sizes)
    guess = np.where(hit, true, other)
    each = [f1_of(true, guess, place) for place in range(len(sizes))]
    return read([lambda weights: np.mean([f1(weights) for f1 in each], axis=0)], rows)


def macro_truth(sizes: tuple[float, ...], found: tuple[float, ...]) -> float:
    size, hit = np.array(sizes), np.array(found)
    wrong = (size * (1 - hit)).sum() - size * (1 - hit)
    said = size * hit + wrong / (len(sizes) - 1)
    return float(np.mean(2 * size * hit / (size + said)))


def spans(random: Random, per_document: int, per_unit: int) -> Estimate:
    """Span F1 of 300 sentences, whose documents are hard or easy throughout; its truth is SPAN.

    So many sentences in a row are a document, and so many are one unit of the resamples.
    """
    ease = np.repeat(random.normal(size=300 // per_document), per_document)
    share = norm.cdf(norm.ppf(SPAN) * np.sqrt(2) + ease)
    there = random.integers(0, 4, 300)
    hit = random.binomial(there, share)
    table = np.array(
        [hit, there - hit, random.binomial(1, 1.5 * (1 - SPAN), 300)], dtype=np.float64
    )
    hit, missed, odd = table.reshape(3, -1, per_unit).sum(axis=2)
    return read([lambda w: 2 * (w @ hit) / (2 * (w @ hit) + w @ missed + w @ odd)], len(hit))


SPAN = 0.8


def _holds_span(random: Random, size: int, unit: int) -> bool:
    return holds(SPAN, interval(spans(random, size, unit), SHARE))


def pearson(random: Random, rows: int, rho: float) -> Estimate:
    return correlated(random, random.normal(size=rows), rho)


def correlated(random: Random, x: Array64, rho: float) -> Estimate:
    """Pearson of values with others that know them so well."""
    y = rho * x + np.sqrt(1 - rho**2) * random.normal(size=len(x))

    def value(w: Array64) -> Array64:
        at = [w @ each / len(x) for each in (x, y, x * y, x * x, y * y)]
        above = at[2] - at[0] * at[1]
        return np.asarray(above / np.sqrt((at[3] - at[0] ** 2) * (at[4] - at[1] ** 2)))

    return read([value], len(x))


def matthews(random: Random, rows: int, cells: tuple[float, ...]) -> Estimate:
    kinds = random.choice(4, rows, p=cells)
    table = [(kinds == kind).astype(np.float64) for kind in range(4)]
    return read([lambda w: _matthews(*(w @ each for each in table))], rows)


def _matthews(hit: Array64, odd: Array64, missed: Array64, rest: Array64) -> Array64:
    below = np.sqrt((hit + odd) * (hit + missed) * (rest + odd) * (rest + missed))
    return np.divide(hit * rest - odd * missed, below, out=np.zeros_like(below), where=below > 0)


CELLS = (0.28, 0.06, 0.12, 0.54)
TWO = (0.7, 0.2, 0.1), (0.85, 0.8, 0.6)
RARE = (0.62, 0.33, 0.05), (0.85, 0.8, 0.5)


def drawn(
    random: Random, draws: int, level: float, of_draw: float, of_both: float, rows: int = 250
) -> Estimate:
    """Right or wrong on each draw: rows are hard, draws are lucky, and some rows on some draws."""
    scale = np.sqrt(1 + of_draw**2 + of_both**2)
    ease = random.normal(size=rows) + of_draw * random.normal(size=(draws, 1))
    ease = ease + of_both * random.normal(size=(draws, rows))
    return means((ease < scale * norm.ppf(level)).astype(np.float64))


def intervals() -> Iterator[World]:
    """Of one score."""
    for rows, share in ((50, 0.9), (100, 0.97), (277, 0.6), (1000, 0.99)):
        title = f"accuracy {share:.2f}, {rows} rows"
        yield score(title, partial(accuracy, rows=rows, share=share), share)
    for share in (0.995, 0.9985):
        made = partial(accuracy, rows=100, share=share)
        yield score(f"accuracy {share:g}, 100 rows", made, share, band=(0.84, 0.93))
    perfect = partial(rare, rows=200, share=0.05, found=0.95, odd=0.0)
    title = "F1, 5 % of 200 rows positive, of which 95 % are found"
    yield score(title, perfect, 2 * 0.95 / 1.95, band=(0.3, 0.93))
    for known, band in ((TWO, (0.93, 0.97)), (RARE, (0.8, 0.93))):
        yield score(
            f"macro-F1, rarest class {100 * known[0][-1]:.0f} of 100 rows",
            partial(macro, rows=100, sizes=known[0], found=known[1]),
            macro_truth(*known),
            band=band,
        )
    for rows, rho in ((50, 0.9), (250, 0.1)):
        title = f"Pearson {rho:.1f}, {rows} rows"
        yield score(title, partial(pearson, rows=rows, rho=rho), rho, CORRELATION)
    truth = float(_matthews(*(np.array([cell]) for cell in CELLS))[0])
    title = f"Matthews {truth:.2f}, 100 rows"
    yield score(title, partial(matthews, rows=100, cells=CELLS), truth, CORRELATION)
    yield score("span F1, 300 sentences", partial(spans, per_document=1, per_unit=1), SPAN)
    for size in (10, 30):
        yield World(
            f"span F1, {300 // size} documents of {size} sentences",
            0.93 if size < 30 else 0.91,
            0.97,
            partial(_holds_span, size=size, unit=size),
            partial(_holds_span, size=size, unit=1),
        )
    for draws, level, parts in (
        (5, 0.97, (0.3, 0.5)),
        (5, 0.8, (0.3, 1.0)),
        (5, 0.8, (0.0, 1.0)),
        (3, 0.8, (0.3, 0.5)),
        (10, 0.6, (0.5, 0.2)),
    ):
        made = partial(drawn, draws=draws, level=level, of_draw=parts[0], of_both=parts[1])
        title = (
            f"{draws} draws near {level:.2f}, sd {parts[0]} of draws, {parts[1]} of rows on draws"
        )
        band = (0.93, 0.97 if draws > 3 else 0.99)
        yield score(title, made, level, band=band, fails=parts[0] > 0)


# Tests of one difference -------------------------------------------------------------------


def two_alike(random: Random, rows: int, differing: int) -> Estimate:
    """Two models of which each is right on about half of so many rows, and the other is not: on the
    resamples of a record, which are more of few rows, and their kurtosis says more of them."""
    right = np.zeros((2, rows))
    right[random.integers(0, 2, differing), np.arange(differing)] = 1
    resampled = right @ counts(rows, resample_count(rows, ("accuracy",))).T / rows
    said = {"unit": "row", "units": rows, "design": ""}
    each = zip(right.mean(axis=1).tolist(), resampled, strict=True)
    kept = [([one], to_resamples([one], of, np.empty((1, 0)), **said)) for one, of in each]
    first, second = (recorded(of, one, ("accuracy",)) for one, of in kept)
    return minus(first, second)


def two_drawn(
    random: Random, draws: int, of_draw: float, of_both: float, true: float = 0.0, rows: int = 300
) -> Estimate:
    """A difference of two tuned heads: of rows, of draws, and of rows on draws."""
    values = true + random.normal(0, 0.4, rows) + random.normal(0, of_draw, (draws, 1))
    return means(values + random.normal(0, of_both, (draws, rows)))


def sets(
    random: Random, count: int, of_set: float, of_both: float, true: float = 0.0, rows: int = 300
) -> Estimate:
    """A difference of two methods on several sets of experts: of rows, sets, and rows on sets."""
    values = true + random.normal(0, 0.4, rows) + random.normal(0, of_set, (count, 1))
    values = values + random.normal(0, of_both, (count, rows))
    return over_sets({number: means(one[None]) for number, one in enumerate(values)})


SETS = ((3, 0.05, 0.2), (3, 0.01, 0.4), (3, 0.3, 0.2), (5, 0.05, 0.2))
"""How many, and the standard deviations of sets and of rows on sets."""


def by_rows(one: Estimate) -> bool:
    """The way that was given up: a bootstrap of rows says that the difference is none of chance."""
    return not holds(0.0, percentiles(one))


def f1_alike(random: Random) -> Estimate:
    """Two models of the same F1, each with mistakes of its own."""
    true = (random.random(150) < 0.3).astype(np.int64)
    found = [np.where(random.random(150) < 0.15, 1 - true, true) for _ in range(2)]
    first, second = (read([f1_of(true, each, 1)], 150) for each in found)
    return minus(first, second)


def rare(random: Random, rows: int, share: float, found: float, odd: float) -> Estimate:
    """F1 of a class of such a share, of which so much is found, and so much of the rest as well."""
    return read([f1_of(*_rare(random, rows, share, found, odd, 1), 1)], rows)


def rare_alike(random: Random, rows: int, share: float) -> Estimate:
    """Two models that find half of a rare class, each with mistakes of its own."""
    true, *found = _rare(random, rows, share, 0.5, 0.02, 2)
    first, second = (read([f1_of(true, each, 1)], rows) for each in found)
    return minus(first, second)


def _rare(
    random: Random, rows: int, share: float, found: float, odd: float, models: int
) -> list[Units]:
    """The labels, one of them positive at least, and what each model says."""
    true = (random.random(rows) < share).astype(np.int64)
    true[0] |= not true.any()
    chance = np.where(true == 1, found, odd)
    return [true, *((random.random(rows) < chance).astype(np.int64) for _ in range(models))]


def correlated_alike(random: Random, rows: int) -> Estimate:
    """Two models of the same Pearson, 0.9, each with mistakes of its own."""
    x = random.normal(size=rows)
    return minus(correlated(random, x, 0.9), correlated(random, x, 0.9))


def level(
    title: str, made: Callable[[Random], Estimate], *, fails: bool, high: float = LEVEL_OF_ONE
) -> World:
    """How often a true difference of zero is found significant: 5 of 100 at most."""
    return World(
        title,
        0.0,
        high,
        lambda random: p_value(made(random)) < 0.05,
        lambda random: by_rows(made(random)),
        fails,
    )


def tests() -> Iterator[World]:
    """How often they find what is not there."""
    for rows, differing in ((500, 4), (500, 5), (500, 8), (500, 30), (60, 16)):
        title = f"accuracy, {rows} rows of which {differing} differ"
        made = partial(two_alike, rows=rows, differing=differing)
        yield level(title, made, fails=differing < 5)
    yield level("F1, 150 rows, 30 % positive", f1_alike, fails=False)
    for rows in (100, 200, 400):
        title, made = f"F1, {rows} rows, 5 % positive", partial(rare_alike, rows=rows, share=0.05)
        yield level(title, made, fails=False, high=EXCEEDED)
    for rows in (30, 100):
        title = f"Pearson 0.9, {rows} rows"
        yield level(title, partial(correlated_alike, rows=rows), fails=False)
    for draws, of_draw, of_both in ((3, 0.05, 0.4), (3, 0.0, 1.0), (5, 0.05, 0.4), (10, 0.02, 0.0)):
        title = f"{draws} draws, sd {of_draw} of draws, {of_both} of rows on draws"
        made = partial(two_drawn, draws=draws, of_draw=of_draw, of_both=of_both)
        yield level(title, made, fails=of_draw > 0.02)
    for count, of_set, of_both in SETS:
        title = f"{count} sets of experts, sd {of_set} of sets, {of_both} of rows on sets"
        made = partial(sets, count=count, of_set=of_set, of_both=of_both)
        yield level(title, made, fails=of_set > 0.01)


# Power -------------------------------------------------------------------------------------

Z = float(norm.ppf(0.975) + norm.ppf(0.8))


def power(title: str, made: Callable[[Random, float], Estimate]) -> World:
    """How often a true difference is found that is as large as is said to be found in 80 %."""
    pilot = [made(np.random.default_rng([2, seed]), 0.0) for seed in range(400)]

    def found(size: float) -> Callable[[Random], bool]:
        return lambda random: p_value(made(random, size)) < 0.05

    normal_errors = [
        Z * np.hypot(one.resamples.std(), one.values.std(ddof=1) / np.sqrt(len(one.values)))
        if len(one.values) > 1
        else Z * one.resamples.std()
        for one in pilot
    ]
    size = float(np.mean([detectable(one) for one in pilot]))
    old = found(float(np.mean(normal_errors)))
    return World(title, 0.77, 0.83, found(size), old, len(pilot[0].values) > 1)


def powers() -> Iterator[World]:
    """Whether the smallest detectable difference is one."""

    def fixed(random: Random, true: float) -> Estimate:
        return means(true + random.choice([-1.0, 0, 0, 0, 0, 0, 0, 0, 1.0], (1, 400)))

    yield power("one fixed score, 400 rows", fixed)
    for draws in (3, 5):

        def made(random: Random, true: float, draws: int = draws) -> Estimate:
            return two_drawn(random, draws, 0.05, 0.2, true)

        yield power(f"{draws} draws", made)


# Equivalence -------------------------------------------------------------------------------


def equals() -> Iterator[World]:
    """How often two models are said to be practically equal that differ by just the margin."""

    def made(random: Random) -> bool:
        low, high = interval(two_drawn(random, 5, 0.01, 0.1, 0.1))
        return low >= -0.1 and high <= 0.1

    yield World("a true difference as large as the margin", 0.0, 0.025, made)


# Several tasks and models ------------------------------------------------------------------


def tasks_alike(random: Random, tasks: int, outlier: float) -> list[Estimate]:
    """Differences on tasks, each of which may as well favour either; one of them far more."""
    true = random.normal(0, 0.03, tasks)
    true[0] = outlier * random.choice([-1.0, 1.0])
    return [normal(one, 0.01, 300, random) for one in true]


def signs_say(random: Random, tasks: int, outlier: float) -> bool:
    """Whether the sign-flip test finds a difference."""
    points = [one.point for one in tasks_alike(random, tasks, outlier)]
    return bool(sign_flip_p(np.array(points)) < 0.05)


def tasks_held(random: Random, tasks: int, outlier: float) -> bool:
    """The way that was given up: the mean of just these tasks is found, on other rows."""
    return by_rows(mean_of(tasks_alike(random, tasks, outlier)))


def models_alike(random: Random, models: int, tasks: int, better: int = 0) -> Array64:
    """Scores of models that are alike, but for some that are better everywhere."""
    values = random.normal(size=(models, tasks)) * random.gamma(2, size=tasks)
    values[:better] += 50
    return values


def named_apart(random: Random, models: int, tasks: int, better: int) -> bool:
    """Whether any two of the models that are alike are said to differ."""
    values = models_alike(random, models, tasks, better)
    return any(first >= better for first, _ in pairs_over_tasks(values))


def ranks_of_rows(random: Random, models: int, tasks: int, better: int) -> bool:
    """The way that was given up: ranks on resampled rows, Holm over pairs, tasks held."""
    values = models_alike(random, models, tasks, better)
    noise = random.normal(0, 0.3, (*values.shape, 100))
    of_rows = ranks(values[..., None] + noise).mean(axis=1)
    errors = [of_rows[i] - of_rows[j] for i, j in combinations(range(better, models), 2)]
    return min(holm([float(2 * norm.sf(abs(one.mean()) / one.std())) for one in errors])) < 0.05


def several() -> Iterator[World]:
    """Families of claims, and means over tasks."""
    for tasks, outlier in ((6, 0.0), (9, 0.0), (9, 0.4)):
        title = f"mean over {tasks} tasks" + (", one outlier" if outlier else "")
        now = partial(signs_say, tasks=tasks, outlier=outlier)
        yield World(title, 0.0, 0.05, now, partial(tasks_held, tasks=tasks, outlier=outlier))
    for models, tasks, better in ((3, 9, 0), (6, 9, 0), (6, 12, 2)):
        of = {"models": models, "tasks": tasks, "better": better}
        title = f"any false pair of {models} models on {tasks} tasks"
        title += f", {better} of them better" if better else ""
        yield World(title, 0.0, 0.05, partial(named_apart, **of), partial(ranks_of_rows, **of))


def sets_alike(
    random: Random,
    models: int,
    count: int,
    least: float,
    largest: float,
    better: int = 0,
    erratic: float = 0.0,
    several: int = 1,
    variants: int = 1,
) -> list[Estimate]:
    """Models that are alike on sets of experts: some vary more from set to set than others, or so
    many `variants` of each score next to the same."""
    spread = np.geomspace(least, largest, models)[:, None]
    spread[-several:] = erratic or spread[-several:]
    rows = random.normal(0, 0.4, (models, 300))
    noise = spread * random.normal(size=(models, count)) + random.normal(0, 0.05, count)
    if variants > 1:
        rows, noise = (np.repeat(one[::variants], variants, axis=0) for one in (rows, noise))
        noise = noise + random.normal(0, least / 100, noise.shape)
    noise[:better] += 5
    return [
        over_sets({at: means((of + one)[None]) for at, one in enumerate(each)})
        for of, each in zip(rows, noise, strict=True)
    ]


def named_over_sets(random: Random, moderate: bool, better: int, **of: float) -> bool:
    """Whether any two of the models that are alike are said to differ, Holm over all pairs."""
    made = sets_alike(random, better=better, **of)  # type: ignore[arg-type]
    known = prior_of(made)
    assert known is not None
    pairs = list(combinations(range(len(made)), 2))
    apart = [replace(minus(made[i], made[j]), prior=known) for i, j in pairs]
    if moderate:
        p = [p_value(one) for one in apart]
    else:  # one variance for all
        whole = [variances(one)[0] + known.variance / len(one.by_set) for one in apart]
        p = [
            float(2 * norm.sf(abs(one.point) / np.sqrt(of)))
            for one, of in zip(apart, whole, strict=True)
        ]
    named = {pair for pair, one in zip(pairs, holm(p), strict=True) if one < 0.05}
    return any(first >= better for first, _ in named)


def one_over_sets(random: Random, at_random: bool, **of: float) -> bool:
    """Whether the last of models that are alike is said to differ from the first, in one test by
    itself; or two that are drawn at random."""
    made = sets_alike(random, **of)  # type: ignore[arg-type]
    first, second = random.choice(len(made), 2, replace=False) if at_random else (0, -1)
    return p_value(replace(minus(made[first], made[second]), prior=prior_of(made))) < LEVEL_OF_ONE


def of_two_sets(random: Random, **of: float) -> bool:
    """Whether a model that lacks the third set is said to differ from one of the others, which say
    how much models vary."""
    made = sets_alike(random, **of)  # type: ignore[arg-type]
    one, other = (replace(each, by_set={n: each.by_set[n] for n in (0, 1)}) for each in made[:2])
    values = [np.array([np.mean([*each.by_set.values()])]) for each in (one, other)]
    first, second = (
        replace(each, values=value, resamples=each.resamples + value - each.values)
        for each, value in zip((one, other), values, strict=True)
    )
    return p_value(replace(minus(first, second), prior=prior_of(made[1:]))) < LEVEL_OF_ONE


def behind_the_highest(random: Random, models: int, among: int) -> bool:
    """Whether any of models that are alike is said to be behind the one that scores most, Holm over
    so many tests: of all pairs, or of those with this one alone, which chance has chosen."""
    made = [means(of[None]) for of in random.normal(0, 0.4, (models, 300))]
    highest = max(made, key=lambda one: one.point)
    p = [p_value(minus(highest, one)) for one in made if one is not highest]
    return min(p) * among < 0.05


def over_sets_alike() -> Iterator[World]:
    """Families of claims over three sets of experts."""
    cases = ((6, 0.05, 0, 0.0), (12, 0.05, 0, 0.0), (12, 0.2, 0, 0.0), (12, 0.2, 3, 0.0))
    for models, largest, better, erratic in (*cases, (6, 0.05, 0, 1.0)):
        of = {"models": models, "count": 3, "least": 0.05, "largest": largest, "erratic": erratic}
        title = f"any false pair of {models} models on 3 sets of experts, sd 0.05"
        title += f" to {largest}" if largest > 0.05 else ""
        title += f", {better} of them better" if better else ""
        title += f", of one {erratic}" if erratic else ""
        yield World(
            title,
            0.0,
            0.05,
            partial(named_over_sets, moderate=True, better=better, **of),
            partial(named_over_sets, moderate=False, better=better, **of),
            fails=largest > 0.05 or erratic > 0,
        )
    for models, erratic, few in ((6, 0.3, "one"), (12, 0.15, "one"), (15, 1.0, "four")):
        of = {"models": models, "count": 3, "least": 0.05, "largest": 0.05, "erratic": erratic}
        of["several"] = 1 if few == "one" else 4
        title = f"of {models} models on 3 sets of experts, sd 0.05, of {few} {erratic}"
        random_two, that_one = (
            partial(one_over_sets, at_random=one, **of) for one in (True, False)
        )
        yield World(f"two drawn at random {title}", 0.0, LEVEL_OF_ONE, random_two)
        yield World(f"that one and another {title}", 0.0, EXCEEDED, that_one)
    for models, variants, high in ((24, 3, LEVEL_OF_ONE), (24, 6, EXCEEDED), (15, 5, EXCEEDED)):
        of = {"models": models, "count": 3, "least": 0.2, "largest": 0.2, "variants": variants}
        title = f"two of {models} models on 3 sets of experts, sd 0.2, each merger in {variants}"
        made = partial(one_over_sets, at_random=False, **of)
        yield World(f"{title} variants", 0.0, high, made)
    for models in (5, 12):
        of = {"models": models, "count": 3, "least": 0.2, "largest": 0.2}
        title = (
            f"two of {models} models on 3 sets of experts, sd 0.2, on the two sets that both have"
        )
        yield World(title, 0.0, LEVEL_OF_ONE, partial(of_two_sets, **of))
    for models in (6, 20):
        yield World(
            f"any of {models} equal models is behind the highest",
            0.0,
            0.05,
            partial(behind_the_highest, models=models, among=math.comb(models, 2)),
            partial(behind_the_highest, models=models, among=models - 1),
            fails=models > 6,
        )


def other_tasks() -> Iterator[World]:
    """The interval of a mean over tasks that are drawn anew."""
    yield World(
        "9 tasks",
        0.93,
        0.97,
        lambda random: holds(0.0, interval_over_tasks(random.normal(0, 0.03, 9)) or (0, 0)),
    )


# Ratios ------------------------------------------------------------------------------------


def parts(random: Random, loss: float, share: float) -> tuple[Estimate, Estimate]:
    """What a tuned head recovers of a loss, and the loss: rows are hard for all models alike."""
    ease = random.normal(0, 0.3, 500)
    expert, current, tuned = (
        means((0.8 - lost + ease + random.normal(0, 0.3, 500))[None])
        for lost in (0.0, loss, loss * (1 - share))
    )
    return minus(tuned, current), minus(expert, current)


ERROR = 0.3 * np.sqrt(2 / 500)
"""The standard error of a loss in `parts`."""


def _holds_half(random: Random, size: float) -> bool:
    """Whether the interval of a share that is printed holds it."""
    while (found := ratio(*parts(random, size * ERROR, 0.5))) is None:
        pass
    return holds(0.5, found.ends)


def _holds_credit(random: Random, of_set: float) -> bool:
    """Whether the interval of credit over three sets, where there is one, holds 60 % of a way of
    0.3."""
    found = None
    while found is None:
        way = sets(random, 3, of_set, 0.2, 0.3)
        found = ratio(minus(way, sets(random, 3, of_set, 0.2, 0.12)), way)
    return holds(0.6, found.ends)


def _holds_median(random: Random, of_set: float, truths: tuple[float, ...]) -> bool:
    """Whether the interval of the median credit over tasks holds it, of three sets on ways of 0.3;
    where all tasks have a credit."""
    while True:
        tuned = [sets(random, 3, of_set, 0.2, 0.3 * of) for of in truths]
        base = [sets(random, 3, 0, 0.2) for _ in truths]
        experts = [sets(random, 3, of_set, 0.2, 0.3) for _ in truths]
        if all(ratio(way, way) for way in map(minus, experts, base)):
            return holds(float(np.median(truths)), median_credit(tuned, base, experts).ends)


def ratios() -> Iterator[World]:
    """Intervals of a share, of losses that are significant, and of credit over sets."""
    for of_set in (0.01, 0.05):
        title = f"credit of three sets of experts, sd {of_set} of sets"
        yield World(title, 0.93, 0.995, partial(_holds_credit, of_set=of_set))
        for truths in ((0.6, 0.6, 0.6), (0.3, 0.6, 0.9)):
            title = f"median credit of tasks of {', '.join(map(str, truths))}, sd {of_set} of sets"
            made = partial(_holds_median, of_set=of_set, truths=truths)
            yield World(title, 0.93, 0.999, made)
    for size in (3.0, 6.0):
        title = f"share of a loss of {size:.0f} standard errors"
        yield World(title, 0.93, 0.99, partial(_holds_half, size=size))


def shares_printed(times: int, size: float) -> tuple[float, float]:
    """The median of shares that are printed, of a true 50 %: now, and by the way given up.

    That printed a share only where what is recovered was significant, too.
    """
    now, old = [], []
    for seed in range(times):
        recovered, lost = parts(np.random.default_rng([3, seed]), size * ERROR, 0.5)
        if (found := ratio(recovered, lost)) is not None:
            now.append(found.point)
            if interval(recovered)[0] > 0:
                old.append(found.point)
    return float(np.median(now)), float(np.median(old))


# Resamples ---------------------------------------------------------------------------------


def steadiness(rows: int, resamples: int) -> tuple[float, float]:
    """Points that an end moves by with other resamples, a standard deviation: now, percentiles."""
    right = (np.arange(rows) < 0.6 * rows).astype(np.float64)
    point = np.array([right.mean()])
    ends = []
    for seed in range(60):
        sample = np.random.default_rng(seed).binomial(rows, right.mean(), resamples) / rows
        one = Estimate(point, sample, np.empty((1, 0)), rows)
        ends.append((interval(one, SHARE)[0], percentiles(one)[0]))
    now, old = 100 * np.std(ends, axis=0)
    return float(now), float(old)


FAMILIES: dict[str, Callable[[], Iterator[World]]] = {
    "95 % interval of a score holds the truth": intervals,
    "a true difference of zero is found significant": tests,
    "the smallest detectable difference is found": powers,
    "a difference of the margin is called practically equal": equals,
    "several tasks, several models": several,
    "several models on three sets of experts": over_sets_alike,
    "95 % interval of a mean over other tasks holds the truth": other_tasks,
    "95 % interval of a ratio holds the truth": ratios,
}


def table(times: int) -> Iterator[str]:
    """The table of docs/statistics.md, a line at a time."""
    yield "| case | nominal | simulated | alternative, not used |"
    yield "|---|---|---|---|"
    for family, worlds in FAMILIES.items():
        yield f"| **{family}** | | | |"
        for world in worlds():
            wanted = f"{100 * world.low:.1f} to {100 * world.high:.1f} %"
            if worlds is intervals and world.low < COVERED:
                wanted = f"{100 * COVERED:.1f} to 97.0 %, which it falls short of"
            if not world.low:
                wanted = f"at most {100 * min(world.high, LEVEL_OF_ONE):.1f} %"
            if world.high == EXCEEDED:
                wanted += ", which it exceeds"
            old = "" if world.old is None else f"{100 * world.share(times, world.old):.1f} %"
            yield f"| {world.title} | {wanted} | {100 * world.share(times):.1f} % | {old} |"
    yield "| **median of the shares of a loss that are printed, of a true 50 %** | | | |"
    for size in (1.5, 2, 3, 6):
        now, old = (f"{100 * share:.0f} %" for share in shares_printed(times, size))
        yield f"| a loss of {size:g} standard errors | about 50 % | {now} | {old} |"
    yield "| **points that an end moves by with other resamples (standard deviation)** | | | |"
    for rows, resamples in ((100, 5000), (277, 2000), (1000, 2000)):
        now, old = (f"{points:.2f}" for points in steadiness(rows, resamples))
        yield f"| {rows} rows, {resamples} resamples | about 0.1 | {now} | {old} |"


if __name__ == "__main__":
    for line in table(int(sys.argv[1]) if len(sys.argv) > 1 else 4000):
        print(line, flush=True)
