"""Where the score goes: credit, places, what Current Eval turns round; from records to a board."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harness
from harness.evaluation.records import Record
from harness.reporting.boards.credit import Credits, Scored, ranked
from harness.reporting.boards.credit_table import view
from harness.reporting.lines import Setting
from harness.rng import rng
from harness.stats.estimate import Estimate
from tests.resampled import resampled
from tests.test_boards import record
from tests.test_boards import written as stored

TUNED = Setting(2, "ft-classifier", 5)
TASKS = ("own/one@test", "own/two@test")
LEFT_OUT = "Not evaluated under both heads on all tasks, and left out: ties."


def estimate(point: float, seed: int = 0, error: float = 0.002) -> Estimate:
    """A score with a standard error; that of one seed moves alike on every resample."""
    noise = rng(seed, "noise").standard_normal(2000)
    return Estimate(np.array([point]), point + error * noise, np.empty((1, 0)), 2000)


def scored(current: float, tuned: float, seed: int = 0, base: float = 25.1) -> Scored:
    points = (base, current, tuned, 72.8)
    return Scored(*([estimate(one / 100, 4 * seed + at)] for at, one in enumerate(points)))


def both(one: Scored, other: Scored) -> Scored:
    """One merge on two tasks."""
    return Scored(
        *([*first, *second] for first, second in zip(each(one), each(other), strict=True))
    )


def each(one: Scored) -> list[Sequence[Estimate]]:
    return [one.base, one.current, one.tuned, one.experts]


def of(rows: dict[str, Scored], **given: Any) -> Credits:
    tasks = TASKS[: len(next(iter(rows.values())).tuned)]
    return ranked(rows, setting=TUNED, tasks=tasks, **given)


# Arithmetic -------------------------------------------------------------------------------------


def test_the_parts_by_hand() -> None:
    """Five topics on MiniLM: a merge with less under its own heads has more credit."""
    found = of({"iso": scored(51.0, 57.1), "ties": scored(47.0, 65.6, 1)})
    ties, iso = found.merges
    assert (ties.name, iso.name) == ("ties", "iso")
    parts = (ties.base, ties.tuned, ties.experts, ties.head)
    assert parts == pytest.approx((25.1, 65.6, 72.8, 18.6))
    assert [round(100 * one.credit.point) for one in (ties, iso) if one.credit] == [85, 67]
    assert (found.pairs, found.reversed) == (1, 1)
    assert (ties.place, ties.current_place, ties.too_low, ties.too_high) == ((1, 1), (2, 2), 1, 0)
    assert (iso.place, iso.current_place, iso.too_low, iso.too_high) == ((2, 2), (1, 1), 0, 1)
    assert len(found.finding) == 3


def test_the_base_has_none_and_the_experts_have_all() -> None:
    rows = {"base": scored(10, 25.1), "experts": scored(72.8, 72.8), "more": scored(75, 80)}
    more, experts, base = of(rows).merges
    assert [one.credit and one.credit.point for one in (experts, base)] == pytest.approx([1, 0])
    assert more.credit is not None
    assert more.credit.point > 1


def test_the_interval_is_that_of_the_ratio_on_resamples() -> None:
    """An independent way: percentiles of the ratio itself, base and experts resampled as well."""
    one = scored(47.0, 65.6)
    (merge,) = of({"m": one}).merges
    b, t, e = (x.resamples for (x,) in (one.base, one.tuned, one.experts))
    low, high = np.percentile((t - b) / (e - b), [2.5, 97.5])
    assert merge.credit is not None
    assert merge.credit.ends == pytest.approx((low, high), abs=0.002)
    wide = Scored(*([Estimate(x.values, x.values + 9 * (x.resamples - x.values), x.by_draw, 2000)]
                    for (x,) in each(one)))  # fmt: skip
    (wider,) = of({"m": wide}).merges
    assert wider.credit is not None
    assert wider.credit.ends[0] < low < high < wider.credit.ends[1]


def test_several_tasks_are_a_ratio_of_means_not_a_mean_of_ratios() -> None:
    (merge,) = of({"m": both(scored(40, 60, base=20.0), scored(40, 60, 1, base=50.0))}).merges
    known = [one.point for one in merge.by_task if one]
    assert known == pytest.approx([40 / 52.8, 10 / 22.8])
    assert merge.credit is not None
    assert merge.credit.point == pytest.approx(50 / 75.6)
    assert merge.range == pytest.approx((known[1], known[0]))


def test_credit_is_refused_where_the_experts_are_not_above_the_base() -> None:
    found = of({"m": scored(40, 60, base=72.7)})
    assert found.merges[0].credit is None
    assert "not significantly above" in found.finding[0]


@pytest.mark.parametrize(
    ("constants", "by_task", "has_term"),
    [
        ((0.1, 0.1, 0.1), "54 to 76 %", False),
        ((0.1, 0.1, 0.8), "54 to 76 % (2 of 3 tasks)", True),
        ((0.8, 0.1, 0.8), "54 % (1 of 3 tasks)", True),
        ((0.74, 0.74, 0.74), "– (0 of 3 tasks)", True),
    ],
)
def test_a_range_says_of_how_many_tasks_it_is(
    constants: tuple[float, ...], by_task: str, has_term: bool
) -> None:
    """Credits of 76 %, 54 % and 1 % by hand, which each needs experts above the constant."""
    three = [scored(40, tuned, at, base=20.0) for at, tuned in enumerate((60.1, 48.5, 20.5))]
    if by_task == "54 to 76 %":
        three[2] = scored(40, 50, 2, base=20.0)
    columns = zip(*map(each, three), strict=True)
    merge = Scored(*([one for (one,) in column] for column in columns))
    found = ranked({"m": merge}, setting=TUNED, tasks=("a", "b", "c"), constants=constants)
    shown = view(found, "")
    assert shown["bars"][0]["range"] == by_task
    assert ("–" in dict(shown["terms"])) == has_term
    # a table without cells of tasks says it in words, unless its range is a sign
    terms = dict(view(found, "", leaves=False)["terms"])
    assert ("–" in terms) == by_task.startswith("–")
    assert ("Undefined" in terms) == (has_term and "–" not in terms)


@pytest.mark.parametrize(("constant", "defined"), [(0.6, True), (0.727, False), (None, True)])
def test_credit_is_refused_where_the_experts_are_not_above_the_constant(
    constant: float | None, defined: bool
) -> None:
    found = of({"m": scored(40, 60)}, constants=[constant])
    assert (found.merges[0].credit is not None) == defined


def test_what_saw_the_scored_rows_is_out_of_competition() -> None:
    rows = {"cheat": scored(60, 70), "ties": scored(47, 65.6, 1), "iso": scored(51, 57, 2)}
    found = of(rows, transductive=["cheat"])
    assert [(one.name, one.place) for one in found.merges] == [
        ("cheat", None), ("ties", (1, 1)), ("iso", (2, 2)),
    ]  # fmt: skip
    assert found.finding[0].startswith("ties has the most credit")


def test_a_difference_by_chance_is_a_place_for_both() -> None:
    found = of({"a": scored(50, 60.0), "b": scored(50, 60.2, 1), "c": scored(50, 40, 2)})
    assert [one.place for one in found.merges] == [(1, 2), (1, 2), (3, 3)]
    assert "not significantly behind" in found.finding[0]


def test_metrics_without_a_common_scale_have_a_median_and_no_order() -> None:
    found = of({"m": both(scored(40, 60), scored(40, 50, 1))}, several_metrics=True)
    (merge,) = found.merges
    assert merge.credit is not None
    known = [one.point for one in merge.by_task if one]
    assert merge.credit.point == pytest.approx(sum(known) / 2)
    low, high = merge.credit.ends
    assert low < merge.credit.point < high
    assert merge.ends is None  # a median is no place among the mean scores
    assert (merge.place, found.pairs) == (None, 0)


def test_the_interval_of_a_median_is_that_of_the_median_on_resamples() -> None:
    """An independent way: percentiles of the median of the ratios themselves."""
    tasks = [scored(40, tuned, seed) for seed, tuned in enumerate((40, 60, 61))]
    columns = zip(*map(each, tasks), strict=True)
    one = Scored(*([first, second, third] for (first,), (second,), (third,) in columns))
    found = ranked({"m": one}, setting=TUNED, tasks=["a", "b", "c"], several_metrics=True)
    credit = found.merges[0].credit
    ways = [
        (t.resamples - b.resamples) / (e.resamples - b.resamples)
        for b, t, e in zip(one.base, one.tuned, one.experts, strict=True)
    ]
    low, high = np.percentile(np.median(ways, axis=0), [2.5, 97.5])
    assert credit is not None
    assert credit.point == pytest.approx(34.9 / 47.7)
    assert credit.ends == pytest.approx((low, high), abs=0.002)


# From records to a board ------------------------------------------------------------------------


def records(draws: int = 3) -> list[Record]:
    made = []
    for task in TASKS:
        experts = {"head": "own"}
        made.append(record("expert", task, task, "current", 0.8, **experts))
        drawn = {5: [0.3, 0.31, 0.29][:draws]}
        made.append(record("base", "base", task, "ft-classifier", drawn))
        for method, own, tuned in (("ties", 0.5, 0.7), ("<b>|x_[y](z)", 0.6, 0.5)):
            made.append(record("merged", method, task, "current", own, method=method))
            drawn = {5: [tuned, tuned + 0.01, tuned - 0.01][:draws]}
            made.append(record("merged", method, task, "ft-classifier", drawn, method=method))
    return made


def board(folder: Path, some: list[Record]) -> dict[str, str]:
    harness.leaderboard([stored(folder / "records", some)], out=folder / "board")
    return {name: (folder / "board" / name).read_text() for name in ("board.md", "index.html")}


def test_a_board_begins_with_where_the_score_goes(tmp_path: Path) -> None:
    made = board(tmp_path, [*map(resampled, records())])
    assert made["board.md"].startswith("# Where the score goes\n")
    lines = [line for line in made["board.md"].splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line[1:].split(" | ")] for line in lines]
    assert rows[1][:6] == ["1", "ties", "30.0", "50.0", "70.0", "80.0"]
    assert rows[1][6].startswith("80 % (95 % CI ")
    assert rows[2][:5] == ["2", r"&lt;b&gt;\|x\_[y]\(z)", "30.0", "60.0", "50.0 ‡"]
    page = made["index.html"].partition("<script")[0]
    assert page.index("Where the score goes") < page.index("What the numbers are")
    assert "base 30.0, Current Eval 50.0, tuned head 70.0, experts 80.0" in page
    assert page.count('<small class="narrow">by task 80 %</small>') == 1
    assert "<b>|x" not in page
    assert "style=" not in page  # which the policy of the page forbids


@pytest.mark.parametrize("how", ["a task", "a head"])
def test_a_merge_that_lacks_a_score_is_named(how: str, tmp_path: Path) -> None:
    """On the board, and in the picture: what is said of the others is not said of it."""
    lacks = ("ties", TASKS[1]) if how == "a task" else ("ties", "ft-classifier")
    some = [r for r in records() if lacks not in ((r.model, r.task), (r.model, r.protocol))]
    made = board(tmp_path, [*map(resampled, some)])
    for text in made.values():
        assert LEFT_OUT in " ".join(text.split())
    harness.plot("credit", [tmp_path / "records"], out=tmp_path / "drawn.svg")
    assert LEFT_OUT in (tmp_path / "drawn.svg").read_text()
    whole = board(tmp_path / "whole", [*map(resampled, records())])
    assert "left out" not in "".join(whole.values())


def test_the_sign_of_no_credit_is_explained_where_it_is_shown(tmp_path: Path) -> None:
    """On the page, which has a cell for each task; Markdown has how many tasks are left."""
    low = {"scores": record("expert", TASKS[1], TASKS[1], "current", 0.3).scores}
    some = [
        one.model_copy(update=low if (one.role, one.task) == ("expert", TASKS[1]) else {})
        for one in records()
    ]
    made = board(tmp_path, [*map(resampled, some)])
    assert "(1 of 2 tasks)" in made["board.md"]
    assert "- **Undefined**: where the experts are not" in made["board.md"]
    assert "–" not in made["board.md"]
    assert "<b>–</b>: undefined, as" in made["index.html"]


def test_bars_add_up_to_the_axis() -> None:
    found = of({"ties": scored(47.0, 65.6), "own": scored(70, 60, 1)}, constants=[0.001])
    shown = view(found, "")
    for one in shown["bars"]:
        ends = [x + width for _, x, width in one["rects"]]
        starts = [x for _, x, _ in one["rects"]]
        assert starts[1:] == pytest.approx(ends[:-1], abs=0.02)
        assert (starts[0], ends[-1]) == pytest.approx((0, 100), abs=0.02)
    assert [look for look, *_ in shown["bars"][1]["rects"]] == ["base", "own", "own", "lost"]


@pytest.mark.parametrize(
    ("current", "tuned", "constant", "bar", "tick"),
    [
        (30, 40, 10, {"base": [20], "own": [20], "tuned": [20], "lost": [40]}, None),
        (40, 30, 10, {"base": [20], "own": [20, 20], "lost": [40]}, 40),
        (30, 15, 10, {"base": [10], "lost": [10, 60], "own": [20]}, 10),
        (30, 40, 30, {"own": [25], "tuned": [25], "lost": [50]}, None),
    ],
)
def test_a_bar_by_hand(
    current: float, tuned: float, constant: float, bar: dict[str, list[float]], tick: float | None
) -> None:
    """From the constant at 10, or the base at 20 if that is lower, to the experts at 60."""
    scores = (20, current, tuned, 60)
    one = Scored(*([estimate(score / 100, at)] for at, score in enumerate(scores)))
    shown = view(of({"m": one}, constants=[constant / 100]), "")
    (only,) = shown["bars"]
    widths: dict[str, list[float]] = {}
    for look, _, width in only["rects"]:
        widths.setdefault(look, []).append(width)
    assert widths == {look: pytest.approx(of) for look, of in bar.items()}
    assert only["tick"] == tick
    assert {*shown["keys"]} == {*bar, *(["tick"] if tick else [])}
    assert any("tick" in term for term, _ in shown["terms"]) == (tick is not None)


def test_options_stand_behind_the_stages_that_have_them() -> None:
    name = "rotation:residual=True+dare[fisher:examples=256,seed=1]+lines"
    (bar,) = view(of({name: scored(47.0, 65.6)}, constants=[0.001]), "")["bars"]
    said = ["".join(bar[part]).replace("\N{ZERO WIDTH SPACE}", "") for part in ("name", "options")]
    options = "rotation residual=True, fisher examples=256,seed=1"
    assert said == ["rotation+dare[fisher]+lines", options]
    name = "permutation[fisher:examples=256] = fisher:examples=256"  # one row, as scores are one
    (bar,) = view(of({name: scored(47.0, 65.6)}, constants=[0.001]), "")["bars"]
    said = ["".join(bar[part]).replace("\N{ZERO WIDTH SPACE}", "") for part in ("name", "options")]
    assert said == ["permutation[fisher] = fisher", "examples=256"]
    assert bar["called"] == name


@pytest.mark.parametrize("lacks", ["design", "base", "experts", "draws"])
def test_without_what_it_is_measured_by_there_is_no_credit(lacks: str, tmp_path: Path) -> None:
    whole = [*map(resampled, records())]
    if lacks == "draws":
        whole = [*map(resampled, records(draws=2))]
    elif lacks == "design":
        whole[0] = resampled(records()[0], "1" * 16)
    else:
        role = {"base": "base", "experts": "expert"}[lacks]
        whole = [one for one in whole if one.role != role]
    made = board(tmp_path, whole)
    assert "Where the score goes" not in made["board.md"] + made["index.html"]
