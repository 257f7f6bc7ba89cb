"""Pictures show what records and features say, and say what their bars are."""

from __future__ import annotations

import math
import shlex
import statistics
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.font_manager import findfont, get_font

import harness
from harness import Record, Run, View, protocol
from harness.checkpoints.open import open_checkpoint
from harness.cli import main
from harness.data.rows import load_rows
from harness.errors import BadData, BadRecipe, MissingScores
from harness.evaluation.predictions import read_predictions
from harness.evaluation.records import Adaptation, DrawScore, Interval, Role, Source, predictions_of
from harness.evaluation.resamples import estimate_of
from harness.files import write_json
from harness.passes.features import forward
from harness.registry import PROTOCOLS
from harness.reporting import figures
from harness.reporting.boards.board import board_of
from harness.reporting.boards.credit import ScorePart
from harness.reporting.chosen import chosen_lines
from harness.reporting.difference import Difference
from harness.reporting.grid import Grid, grid_of_lines
from harness.reporting.lines import CURRENT, Line, lines_of
from harness.reporting.plots import (
    credit,
    curves,
    drop,
    gains,
    marks,
    plot,
    protocols,
    ranks,
    shots,
    transforms,
)
from harness.reporting.plots.scores import headline
from harness.reporting.plots.tsne import balanced, clouds, draw, in_the_plane
from harness.stats.estimate import minus
from harness.stats.intervals import interval
from harness.stats.ranks import Standings, standings
from tests import test_credit
from tests.conftest import TAGS as TAG_NAMES
from tests.resampled import kept, read_records, resampled
from tests.test_boards import MRPC, RTE, record
from tests.test_compare import read_once
from tests.toys import MOODS, TAGS, TOY, VALUE, registered

ROOT = Path(__file__).parent.parent
BOARDS = ROOT / "leaderboards" / "records"
SVG = "{http://www.w3.org/2000/svg}"
ALL = View()
Minis = Callable[[str], dict[str, Path]]
Values = float | list[float] | dict[int, list[float]]


def read(name: str, method: str, task: str, asked: str, values: Values, **given: Any) -> Record:
    """A record of a merge, or of the base or an expert where the method is called so."""
    roles: dict[str, Role] = {"base": "base", "expert": "expert"}
    role: Role = roles.get(method, "merged")
    digest = f"{name} {task}"
    return record(role, name, task, asked, values, **{"method": method, "digest": digest, **given})


def of(records: Sequence[Record], view: View = ALL) -> list[Line]:
    """The lines of records that a view is of."""
    return chosen_lines([*lines_of(("", one) for one in records)], view)


def scored(records: Sequence[Record], *protocols: str) -> Grid:
    kept = [one for one in records if not protocols or one.protocol in protocols]
    return grid_of_lines(of(kept), by_method=True)


def picture(module: Any, records: Sequence[Record], view: View = ALL) -> Any:
    return module.picture(of(records, view), view)


def several() -> list[Record]:
    """Two merges and the base on two tasks under three protocols, with an expert of each task."""
    made = []
    for task, level in ((RTE, 0.5), (MRPC, 0.6)):
        for name, method, value in (
            ("m", "ties", level + 0.1),
            ("n", "dare[ties]", level + 0.2),
            ("b", "base", level),
        ):
            few = {1: [value - 0.1, value], 5: [value, value + 0.02]}
            tuned = {1: [value, value], 5: [value, value + 0.1]}
            made += [
                read(name, method, task, "current", value),
                read(name, method, task, "knn", few),
                read(name, method, task, "ft-classifier", tuned),
            ]
        made.append(read(f"e {task[-3:]}", "expert", task, "current", level + 0.3))
    return made


def written(folder: Path, records: Sequence[Record]) -> Path:
    """A folder of records."""
    for at, one in enumerate(records):
        write_json(folder / "records" / f"{at}.json", one.model_dump(mode="json"))
    return folder / "records"


def texts(svg: Path) -> list[str]:
    """The texts of an SVG, which are text and no shapes; a long one is in several lines."""
    return ["".join(one.itertext()).strip() for one in ET.parse(svg).iter(f"{SVG}text")]


@pytest.fixture
def probing(as_found: None) -> None:
    """A probe with the options of the figure, if there is none."""
    if "probe" not in PROTOCOLS:

        @protocol("probe", adapts="unlabeled")
        def probe(
            encoded: harness.Encoded, *, transform: str = "orthogonal", rows: str = "shots"
        ) -> list[harness.Predictions]:
            """Nothing: records of it are made by hand."""
            return []


# Scores ------------------------------------------------------------------------------------


def test_a_mean_over_tasks_goes_draw_by_draw_and_needs_all_tasks() -> None:
    scores = scored(several())
    current, *_, tuned = headline(scores.settings)
    mean = scores.cell("ties", tuned, "mean")
    assert mean is not None
    # 60 and 70 on one task, 70 and 80 on the other
    assert mean.values == pytest.approx([65, 75])
    assert scores.columns_under(tuned) == [RTE, MRPC, "mean"]
    assert scores.levels("mean", "ties") == pytest.approx(
        {"experts under current": 85, "current": 65}
    )
    part = scored([one for one in several() if (one.model, one.task) != ("m", MRPC)])
    assert part.cell("ties", tuned, "mean") is None
    assert part.cell("base", tuned, "mean") is not None
    few = scored(several(), CURRENT)
    assert few.settings == (current,)


def test_of_several_experts_of_a_task_the_mean_is_shown() -> None:
    experts = [
        read(name, "expert", RTE, "current", value) for name, value in (("x", 0.6), ("y", 0.8))
    ]
    assert scored([*experts, several()[0]]).levels(RTE) == pytest.approx(
        {"experts under current": 70}
    )


def test_models_of_one_method_on_one_task_are_told_apart() -> None:
    twins = [read(name, "ties", RTE, "current", 0.5) for name in ("one", "two")]
    assert scored(twins).rows == ("ties (one)", "ties (two)")
    apart = [read("one", "ties", RTE, "current", 0.5), read("two", "ties", MRPC, "current", 0.5)]
    assert scored(apart).rows == ("ties",)
    heads = [
        read("b", "base", RTE, "current", 0.5, digest=head, head=head) for head in ("own", "kept")
    ]
    assert scored(heads).rows == ("base (own head)", "base (kept head)")
    same = [read("b", "base", RTE, "current", 0.5, digest=digest) for digest in ("1", "2")]
    assert scored(same).rows == ("base (1)", "base (2)")


def test_the_number_of_shots_is_the_nearest_to_five_or_the_one_asked_for() -> None:
    made = [*several(), read("m", "ties", "a@b", "knn", {7: [0.1], 3: [0.2]})]
    known = scored(made).settings
    assert [(one.protocol, one.shots) for one in headline(known)] == [
        ("current", 0),
        ("knn", 5),
        ("ft-classifier", 5),
    ]
    assert [one.shots for one in headline(known, 1)] == [0, 1, 1]
    with pytest.raises(MissingScores, match="no record of ft-classifier has 3 shots, found 1, 5"):
        headline(known, 3)
    with pytest.raises(MissingScores, match="no record of knn has all shots"):
        headline(known, "all")
    every = replace(known[-1], shots="all")
    assert headline([*known[-2:], every], "all") == [every]
    assert headline([*known[-2:], every]) == [known[-1]]
    fresh = replace(every, protocol="fresh-head:penalty=2")
    assert {one.shots for one in headline([*known, fresh], 1)} == {0, 1, "all"}
    threes = [one for one in known if one.shots in (3, 7)]
    assert [one.shots for one in headline(threes)] == [3]  # as near as 7, and fewer


# Protocols ---------------------------------------------------------------------------------


def drawn_at(axes: Any, sign: str) -> list[tuple[float, float]]:
    """Where signs of a kind are drawn."""
    return [
        (float(x), float(y))
        for line in axes.lines
        if line.get_marker() == sign and line.get_transform() == axes.transData
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def signs(figure: Any) -> list[str]:
    """What the legend names."""
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_every_dot_is_where_its_score_is() -> None:
    figure = picture(protocols, several())
    looks = marks.OF_CURRENT, marks.KNOWN["knn"], marks.KNOWN["ft-classifier"]
    scores = scored(several())
    known = headline(scores.settings)
    assert [axes.get_title() for axes in figure.axes] == ["rte", "mrpc", "mean of 2 tasks"]
    for axes, column in zip(figure.axes, scores.columns, strict=True):
        rows = rows_of(axes)
        assert [*rows.values()] == ["dare[ties]", "ties", "base"]  # the best under current first
        for setting, look in zip(known, looks, strict=True):
            cells = [scores.cell(row, setting, column) for row in rows.values()]
            # behind them are the dots of the gaps
            assert drawn_at(axes, look.sign)[: len(cells)] == [
                (pytest.approx(cell.mean), y) for cell, y in zip(cells, rows, strict=True) if cell
            ]
        assert axes.yaxis_inverted()
    # 60 under its experts' heads; 60 and 70 on the draws of a tuned one
    (tuned,) = (
        one for one in drawn_at(figure.axes[0], "D") if rows_of(figure.axes[0])[one[1]] == "ties"
    )
    assert tuned[0] == pytest.approx(65)
    ((low, high),) = (
        path.vertices[:, 0]
        for bars in figure.axes[0].collections
        for path in bars.get_paths()
        if path.vertices.shape == (2, 2)
        and path.vertices[0, 1] == tuned[1]
        and path.vertices[:, 0].mean() == pytest.approx(65)
    )
    assert (high - low) / 2 == pytest.approx(statistics.stdev([60, 70]))
    assert [one.get_xdata()[0] for one in figure.axes[0].lines if one.get_linestyle() == "--"] == [
        pytest.approx(80)
    ]
    assert {*signs(figure)} == {
        "current",
        "knn, 5 shots",
        "ft-classifier, 5 shots",
        "gap to ft-classifier",
        "not significant, or not tested",
        "± standard deviation over 2 draws",
        "experts under current",
    }


def test_current_eval_and_knn_differ_in_more_than_a_shade() -> None:
    assert {marks.OF_CURRENT.colour, marks.KNOWN["knn"].colour} != {marks.ORANGE, marks.VERMILION}


def with_constant(records: Sequence[Record], constant: float) -> list[Record]:
    said = {"majority": DrawScore(value=constant, parts={})}
    return [one.model_copy(update=said) for one in records]


def test_intervals_and_the_best_constant_are_shown_where_records_have_them() -> None:
    interval = Interval(low=0.4, high=0.7, method="student")
    records = [one.model_copy(update={"intervals": (interval,)}) for one in several()]
    figure = picture(protocols, with_constant(records, 0.45))
    assert {"95 % CI", "best constant"} <= {*signs(figure)}
    for axes in figure.axes:
        low, high = axes.get_xlim()
        drawn = [path.vertices[:, 0] for one in axes.collections for path in one.get_paths()]
        assert (
            any(x == pytest.approx([40, 70]) for x in drawn if len(x) == 2)
            or "mean" in axes.get_title()
        )
        assert all(low <= min(x) <= max(x) <= high for x in drawn)


@pytest.mark.parametrize("module", [protocols, shots])
@pytest.mark.parametrize(("constant", "start"), [(0.2, 20), (None, 0)])
def test_scales_begin_at_the_constant_or_at_zero(
    module: Any, constant: float | None, start: float
) -> None:
    """And all panels share one: bars and curves of one picture are of one length."""
    records = several() if constant is None else with_constant(several(), constant)
    figure = picture(module, records)
    axis = "get_xlim" if module is protocols else "get_ylim"
    limits = {getattr(axes, axis)() for axes in figure.axes}
    ((low, high),) = limits
    assert low <= start < low + 0.1 * (high - low)
    assert ("best constant" in signs(figure)) == (constant is not None)


def test_a_gap_and_an_interval_differ_in_form() -> None:
    """An open bar and a filled one: in grey they would be one."""
    axes = picture(protocols, several()).axes[0]
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [
        (pytest.approx(70), pytest.approx(5)),
        (pytest.approx(60), pytest.approx(5)),
        (pytest.approx(50), pytest.approx(5)),
    ]
    assert not any(bar.get_fill() and bar.get_facecolor()[3] for bar in axes.patches)


def test_a_mean_that_no_merge_has_is_left_out() -> None:
    part = [one for one in several() if (one.model, one.task) not in (("m", MRPC), ("n", RTE))]
    part = [one for one in part if one.role != "base"]
    titles = [axes.get_title() for axes in picture(protocols, part).axes]
    assert titles == ["rte", "mrpc"]
    with pytest.raises(MissingScores, match="no merge was evaluated on all of 2 tasks"):
        picture(shots, part)
    assert len(picture(shots, part, View(tasks=("rte",))).axes) == 1


# Curves ------------------------------------------------------------------------------------


def test_all_shots_stand_beyond_every_number() -> None:
    """As far as the last number is from the one before: 1, 5 and where 25 would be."""
    one, five, every = shots.places_of([1, 5, "all"]).values()
    assert (one, five, every) == pytest.approx((0, np.log(5), np.log(25)))
    assert [*shots.places_of([5, "all"]).values()] == pytest.approx([np.log(5), np.log(10)])
    made = read("m", "ties", RTE, "knn", {1: [0.5], 5: [0.6]})
    whole = made.scores[0].model_copy(update={"shots": "all", "value": 0.7})
    axes = picture(
        shots, [resampled(made.model_copy(update={"scores": (*made.scores, whole)}))]
    ).axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "5", "all"]
    assert drawn_at(axes, "^")[-1] == pytest.approx((np.log(25), 70))


def test_shots_by_hand() -> None:
    figure = picture(shots, several())
    first = figure.axes[0]
    assert [axes.get_title() for axes in figure.axes] == ["ties", "dare[ties]", "base"]
    ticks = zip(first.get_xticks(), first.get_xticklabels(), strict=True)
    assert [(x, label.get_text()) for x, label in ticks] == [(0, "1"), (math.log(5), "5")]
    assert [y for _, y in drawn_at(first, "^")] == pytest.approx([60, 66])
    scores = scored(several())
    known = {one: (one.protocol, float(one.shots)) for one in scores.settings if one.shots}
    points = curves.scores_along(scores, known, "ties", "mean")
    assert [*points] == ["knn", "ft-classifier"]
    x, cell = points["knn"][0]
    assert (x, cell.mean) == (1, pytest.approx(60))
    assert cell.deviation == pytest.approx(statistics.stdev([55, 65]))
    levels = {
        line.get_label(): line.get_ydata()[0]
        for line in first.lines
        if len(line.get_ydata()) == 2 and line.get_label() in marks.LEVELS
    }
    assert levels == {"experts under current": pytest.approx(85), "current": pytest.approx(65)}


def test_of_one_merge_every_task_has_a_panel() -> None:
    figure = picture(shots, [one for one in several() if one.model == "m"])
    assert [axes.get_title() for axes in figure.axes] == ["rte", "mrpc", "mean of 2 tasks"]
    assert figure.get_suptitle() == "Score against shots: ties"
    points = [point for sign in "D^" for point in drawn_at(figure.axes[0], sign)]
    assert sorted(y for _, y in points) == pytest.approx([55, 60, 61, 65])
    for x, _ in points:  # beside its number of shots, no farther than to tell two bars apart
        assert min(abs(x - tick) for tick in (0, math.log(5))) < 0.03 * math.log(5)


def probed(method: str = "ties", name: str = "m") -> list[Record]:
    """A merge under the probe with four transformations, on shots and on the test rows."""
    saw = Adaptation(split="a@b", rows=9, labels="chose the rows", transductive=True)
    made = [read(name, method, RTE, "current", 0.4)]
    for at, transform in enumerate(("scaling", "affine", "orthogonal", "similarity")):
        options = {"transform": transform, "rows": "shots"}
        few = {1: [0.2], 5: [0.5 + at / 100, 0.6 + at / 100]}
        made.append(read(name, method, RTE, "probe", few, options=options))
        options = {"transform": transform, "rows": "test"}
        made.append(read(name, method, RTE, "probe", 0.8, options=options, adaptation=saw))
    return made


@pytest.mark.usefixtures("probing")
def test_transformations_go_from_free_to_strict() -> None:
    (axes,) = picture(transforms, probed()).axes
    names = [tick.get_text() for tick in axes.get_xticklabels()]
    assert names == ["affine", "similarity", "orthogonal", "scaling"]
    assert {"probe, 5 shots", "probe:rows=test (transductive)"} <= {*signs(axes.figure)}
    few = drawn_at(axes, "D")
    assert [round(x) for x, _ in few] == [0, 1, 2, 3]
    assert [y for _, y in few] == pytest.approx([56, 58, 57, 55])
    assert "current" in signs(axes.figure)
    (axes,) = picture(transforms, probed(), View(shots=1)).axes
    assert [y for _, y in drawn_at(axes, "D")] == pytest.approx([20] * 4)


@pytest.mark.usefixtures("probing")
def test_the_probe_is_drawn_from_its_records(tmp_path: Path) -> None:
    folder = written(tmp_path, [*probed(), *probed("average", "n")])
    assert main(["plot", "transforms", str(folder), "--out", str(tmp_path / "fig")]) == 0
    assert {"affine", "orthogonal", "ties", "average", "from free to strict"} <= {
        *texts(tmp_path / "fig.svg")
    }


# Gains -------------------------------------------------------------------------------------


def test_pairs_differ_by_what_comes_first() -> None:
    methods = ["ties", "dare[ties]", "p+dare[ties]", "p[fisher]+lines", "fisher+lines", "q+r[ties]"]
    records = [read(one, one, RTE, "current", 0.5) for one in methods]
    assert [*rows_of(picture(gains, records).axes[0]).values()] == [
        *("ties", "dare", "q+r"),
        *("dare[ties]", "p"),
        *("fisher+lines", "p"),
    ]


def rows_of(axes: Any) -> dict[float, str]:
    """The names at the left of a panel by their places."""
    labels = axes.figure.axes[0].get_yticklabels()  # all panels share them
    names = [label.get_text().replace("\n", "") for label in labels]
    return dict(zip(axes.get_yticks().tolist(), names, strict=True))


def test_every_bar_is_named_below_its_merger() -> None:
    stages = [f"rotation:layers={layer}" for layer in range(9)]
    methods = ["average", *(f"{one}[average]" for one in stages), "ties", "dare[ties]"]
    records = [
        read(one, one, task, "current", 0.5 + at / 100)
        for at, one in enumerate(methods)
        for task in (RTE, MRPC)
    ]
    figure = picture(gains, records)
    assert figure.get_suptitle().endswith("(each panel on a scale of its own)")
    for axes in figure.axes:
        names = rows_of(axes)
        assert [*names.values()] == ["average", *stages, "ties", "dare"]
        bars: list[Any] = axes.patches
        beside = {
            names[min(names, key=lambda y: abs(y - bar.get_y() - bar.get_height() / 2))]
            for bar in bars
        }
        assert beside == {*stages, "dare"}
        assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in bars}) == len(bars) == 10
        assert axes.get_xlabel() == "accuracy × 100"
        assert axes.xaxis.get_tick_params().get("labelbottom", True)


@pytest.mark.parametrize("first", ["average", "p[average]"])
def test_what_changes_nothing_anywhere_is_said_and_not_drawn(first: str) -> None:
    values = {first: 0.5, "average": 0.5, "p[average]": 0.5, "q:a=1[average]": 0.5}
    read_all = []
    for one, value in {**values, "r[average]": 0.6}.items():
        resamples = (kept([np.arange(100) < 100 * value]),)
        digest = f"{value}"  # the same weights
        read_all.append(read(one, one, RTE, "current", value, resamples=resamples, digest=digest))
    figure = picture(gains, read_all)
    assert [*rows_of(figure.axes[0]).values()] == ["average", "r"]
    (bar,) = figure.axes[0].patches
    assert mpl.colors.same_color(bar.get_facecolor(), marks.BLUE)  # the first is not kept for them
    said = "Not drawn, as no score changes: p[average], q:a=1[average]"
    assert figure.get_suptitle().replace("\n", " ").endswith(said)
    found = r"found only p\[average\], q:a=1\[average\], with the same scores as without"
    with pytest.raises(MissingScores, match=found):
        picture(gains, read_all[:3])


def test_a_gain_over_too_few_draws_is_open() -> None:
    with_it = read("n", "dare[ties]", RTE, "knn", {5: [0.6, 0.8]})
    without = read("m", "ties", RTE, "knn", {5: [0.5, 0.6]})
    axes = picture(gains, [with_it, without], View(protocols=("knn",))).axes[0]
    (bar,) = axes.patches
    assert bar.get_width() == pytest.approx(15)
    (text,) = axes.texts
    assert text.get_text() == "+15.0?"
    assert {*signs(axes.figure)} == {
        "not significant, or not tested",
        "? and pale: not significant",
    }


def test_gains_are_under_current_eval_unless_another_is_named() -> None:
    figure = picture(gains, several())
    assert "under current" in figure.get_suptitle().replace("\n", " ")
    widths = [bar.get_width() for axes in figure.axes for bar in axes.patches]
    assert widths == pytest.approx([10] * 3)
    with pytest.raises(MissingScores, match=r"shows one protocol, found current; knn, 5 shots"):
        picture(gains, several(), View(protocols=("current", "knn")))


# Whiskers ----------------------------------------------------------------------------------


def shared(folder: Path, *merges: tuple[str, str, float], **given: Any) -> Path:
    """A folder of merges with their methods that are wrong on so many rows, with predictions."""
    for seed, (name, method, wrong) in enumerate(merges):
        for place, task in enumerate(("toy/a", "toy/b")):
            read_once(folder, name, task, wrong, seed=100 * place + seed, method=method, **given)
    return folder


def faces(axes: Any, sign: str = "o") -> list[tuple[float, float, bool]]:
    """Where black dots and circles are drawn, and which are filled."""
    return [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]), face == marks.BLACK)
        for line in axes.lines
        if line.get_marker() == sign
        and (face := line.get_markerfacecolor()) in ("#000000", "white")
    ]


def whiskers_of(axes: Any) -> list[list[float]]:
    """The ends of black lines along x that are one point wide."""
    return [
        path.vertices[:, 0].tolist()
        for lines in axes.collections
        if [*lines.get_linewidth()] == [1] and [*lines.get_color()[0][:3]] == [0, 0, 0]
        for path in lines.get_paths()
    ]


def test_gains_have_the_interval_that_compare_gives_them(tmp_path: Path) -> None:
    """One of them is significant, and the other one is not: it is hollow."""
    folder = shared(tmp_path, ("m", "ties", 0.3), ("n", "dare[ties]", 0.1), ("o", "p[ties]", 0.29))
    records = read_records([folder])
    figure, board = picture(gains, records), board_of(of(records))
    assert [axes.get_title() for axes in figure.axes] == ["a", "b", "mean of 2 tasks"]
    for at, (row, model) in enumerate((("dare[ties]", "n"), ("p[ties]", "o"))):
        made = harness.compare([model, "m"], records=folder)
        assert isinstance(made, harness.Comparison)
        ends = [*(one.within for one in made.tasks), made.within]
        columns = board.scores.columns
        for axes, column, end in zip(figure.axes, columns, ends, strict=True):
            gain = board.gained[row, board.scores.settings[0], column]
            assert gain.within == pytest.approx([100 * one for one in end], abs=1e-4)
            assert gain.significant == (model == "n")
            assert whiskers_of(axes)[at] == pytest.approx([*gain.within])
            (x, _, filled) = faces(axes)[at]
            assert (x, filled) == (pytest.approx(gain.points), model == "n")
            low, high = axes.get_xlim()
            assert low < gain.within[0] < gain.within[1] < high
    assert {*signs(figure)} == {
        "significant after Holm",
        "not significant, or not tested",
        "paired 95 % CI, each by itself",
        "? and pale: not significant",
    }


def test_a_gain_on_other_resamples_has_no_whisker_beside_others(tmp_path: Path) -> None:
    folder = shared(tmp_path, ("m", "ties", 0.3), ("n", "dare[ties]", 0.1), ("o", "p[ties]", 0.1))
    records = [
        resampled(one, "1" * 16) if one.model == "o" else one for one in read_records([folder])
    ]
    axes = picture(gains, records).axes[0]
    assert [filled for _, _, filled in faces(axes)] == [True, False]
    assert len(whiskers_of(axes)) == 1
    assert [text.get_text()[-1] == "?" for text in axes.texts] == [False, True]


def test_the_drop_has_the_interval_of_its_rows(tmp_path: Path) -> None:
    """Of each task's own expert: drawn by plain loops over the rows."""
    shared(tmp_path, ("e", "expert", 0.05), role="expert")
    own = (Source(source="e", digest="e".ljust(32, "0")),)
    shared(tmp_path, ("m", "ties", 0.3), ("n", "average", 0.05), experts=own)
    records = read_records([tmp_path])
    shown = drop.drops(of(records), ALL)
    assert (shown.unit, [*shown.methods]) == ("task", ["average", "ties"])
    for method, found in shown.methods.items():
        assert all(one.significant for one in found) == (method == "ties")
    merge, expert = (
        next(one for one in records if (one.model, one.task) == (name, "toy/a@test"))
        for name in "me"
    )
    read_of = [read_predictions(one, predictions_of(one, tmp_path)) for one in (merge, expert)]
    right = [one.values[None, None] == one.labels for one in read_of]
    random = np.random.default_rng(1)
    drawn = []
    for _ in range(2000):
        rows = random.integers(200, size=200)
        m, e = (one[rows].mean() for one in right)
        drawn.append(100 * (e - m) / e)
    (ties,) = (one for one in shown.methods["ties"] if one.points == pytest.approx(
        100 * (right[1].mean() - right[0].mean()) / right[1].mean()
    ))  # fmt: skip
    assert ties.within == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=1.5)
    figure = drop.draw(shown)
    dots = faces(figure.axes[0])
    assert [filled for _, _, filled in dots] == [False, False, True, True]
    assert len({y for _, y, _ in dots}) == 4
    assert {*signs(figure)} == {
        "paired 95 % CI of one task, each by itself",
        "significant after Holm",
        "not significant, or not tested",
        "median",
    }


def test_a_drop_below_an_expert_that_may_be_nothing_has_no_interval() -> None:
    """A share of what is not above 0 on all resamples is none."""

    def of_rows(right: int, rows: int) -> dict[str, Any]:
        return {"resamples": (kept([np.arange(rows) < right]),), "rows": rows}

    own = (Source(source="x", digest="x"),)
    records = [
        read("x", "expert", RTE, "current", 0.1, digest="x", **of_rows(2, 20)),
        read("m", "ties", RTE, "current", 0.05, experts=own, **of_rows(1, 20)),
        read("y", "expert", MRPC, "current", 0.8, digest="x", **of_rows(240, 300)),
        read("m", "ties", MRPC, "current", 0.4, experts=own, **of_rows(120, 300)),
    ]
    shown = drop.drops(of(records), ALL)
    none, known = shown.methods["ties"]
    assert none.within is None
    assert known.within == pytest.approx((50, 50), abs=7.1)
    assert [filled for _, _, filled in faces(drop.draw(shown).axes[0])] == [False, True]


def test_the_gap_between_protocols_has_a_whisker_below_its_row(tmp_path: Path) -> None:
    shared(tmp_path, ("m", "ties", 0.3), ("n", "average", 0.2))
    keys = tuple((5, seed) for seed in range(5))
    tuned = {"protocol": "ft-classifier", "keys": keys}
    shared(tmp_path, ("m", "ties", 0.1), ("n", "average", 0.18), **tuned)
    records = read_records([tmp_path])
    few, current = (
        estimate_of(one, shots)
        for asked, shots in (("ft-classifier", 5), ("current", None))
        for one in records
        if (one.model, one.task, one.protocol) == ("m", "toy/a@test", asked)
    )
    assert few is not None
    assert current is not None
    low, high = interval(minus(few, current))
    axes = picture(protocols, records).axes[0]
    places = {name: y for y, name in rows_of(axes).items()}
    assert [*places] == ["average", "ties"]
    none, gap = faces(axes)
    assert (none[2], gap[2]) == (False, True)
    assert gap[0] == pytest.approx(100 * few.point)
    assert 0 < gap[1] - places["ties"] < marks.height_of(["ties"])
    start = 100 * current.point
    assert whiskers_of(axes)[1] == pytest.approx([start + 100 * low, start + 100 * high])
    said = signs(axes.figure)
    assert "paired 95 % CI of the gap, from current on, each by itself" in said
    assert {"significant after Holm", "not significant, or not tested"} <= {*said}
    harness.plot("protocols", [tmp_path], out=tmp_path / "fig")
    assert any("of the gap" in said for said in texts(tmp_path / "fig.svg"))


# Credit ------------------------------------------------------------------------------------


def parts_of(axes: Any) -> dict[str, list[tuple[str, float, float]]]:
    """By row, what its bar is made of: the colour or hatch, and from where to where."""
    rows = rows_of(axes)
    parts: dict[str, list[tuple[str, float, float]]] = {name: [] for name in rows.values()}
    for bars in axes.containers:
        (bar,) = bars
        y = bar.get_y() + bar.get_height() / 2
        name = rows[min(rows, key=lambda place: abs(place - y))]
        parts[name].append((bars.get_label(), bar.get_x(), bar.get_x() + bar.get_width()))
    return parts


def test_bars_of_credit_have_an_axis_where_all_scores_are_one(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """Experts that learned nothing: they score as the base and the best constant do."""
    found = test_credit.of({"ties": test_credit.scored(33, 33)})
    merge = replace(found.merges[0], base=33.0, current=33.0, tuned=33.0, experts=33.0)
    figure = credit.draw(replace(found, merges=(merge,), constant=33.0), "")
    low, high = figure.axes[0].get_xlim()
    assert low < high
    assert not [one for one in recwarn if "xlim" in str(one.message)]


def test_the_parts_of_credit_are_where_the_scores_are() -> None:
    """A merge with both parts, one whose own heads beat the tuned one, one below its base."""
    made = test_credit.scored
    found = test_credit.of(
        {"ties": made(47, 65.6), "kept": made(70, 60, 1), "fisher": made(10, 20, 2)},
        constants=[0.05],
    )
    figure = credit.draw(found, "accuracy × 100")
    bars, numbers, moves = figure.axes
    low, _ = bars.get_xlim()
    assert low == pytest.approx(5)
    shown = {
        name: [(credit.PARTS[part]["label"], *map(pytest.approx, ends)) for part, *ends in parts]
        for name, parts in {
            "ties": [("base", 5, 25.1), ("own", 25.1, 47), ("tuned", 47, 65.6),
                     ("lost", 65.6, 72.8)],
            "kept": [("base", 5, 25.1), ("own", 25.1, 60), ("above", 60, 70), ("lost", 70, 72.8)],
            "fisher": [("base", 5, 20), ("below", 20, 25.1), ("lost", 25.1, 72.8)],
        }.items()
    }  # fmt: skip
    assert parts_of(bars) == shown
    first = found.merges[0].credit
    assert first is not None
    ends = [25.1 + (72.8 - 25.1) * end for end in first.ends]
    assert whiskers_of(bars)[0] == pytest.approx(ends, abs=0.1)
    said = [text.get_text() for text in numbers.texts]
    assert said[:4] == ["credit, %", "95 % CI", "by task", "place"]
    assert said[4:6] == ["85", f"{100 * first.ends[0]:.0f} to {100 * first.ends[1]:.0f}"]
    assert said[12] == "-11"
    assert [text.get_text() for text in moves.texts[1:4]] == ["1", "70.0", "kept ▲1"]
    assert bars.get_title(loc="left").replace("\n", " ") == " ".join(found.finding)
    assert "base 25.1, experts 72.8" in bars.get_xlabel()


def test_names_at_either_side_have_room() -> None:
    """The longest has no credit to speak of, and is first under Current Eval."""
    made, name = test_credit.scored, "procrustes[regmean:examples=256]+a_stage_after_it+another"
    short = {f"m{at}": made(40 + at, 60 - at, at) for at in range(12)}
    figure = credit.draw(test_credit.of({**short, name: made(60, 30, 12)}), "")
    figure.draw_without_rendering()
    texts = [text for axes in figure.axes for text in [*axes.texts, *axes.get_yticklabels()]]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    pairs = [(one, other) for at, one in enumerate(boxes) for other in boxes[:at]]
    assert not [1 for one, other in pairs if one.overlaps(other)]


def test_only_a_move_of_a_significant_reversal_stands_out() -> None:
    made = test_credit.scored

    def moves(second: float) -> list[str]:
        found = test_credit.of({"ties": made(47, 65.6), "iso": made(51, second, 1)})
        return [line.get_label() for line in credit.draw(found, "").axes[2].lines]

    assert [label[0] for label in moves(57.1)] == ["▲", "▼"]
    assert not [label for label in moves(65.5) if not label.startswith("_")]


def test_what_neighbours_in_a_bar_differ_in_is_seen_in_grey() -> None:
    """By lightness, about 3 to 1; or by a hatch, or as an outline."""

    def light(part: ScorePart) -> float:
        colour = mpl.colors.to_rgb(credit.PARTS[part]["color"])
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722])) + 0.05

    base, own, head = map(light, ("base", "own", "tuned"))
    assert head / own > 3
    assert base / head > 2.7
    assert all("hatch" in credit.PARTS[part] for part in ("above", "below"))
    assert credit.PARTS["lost"]["facecolor"] == "none"


def test_credit_is_drawn_from_records(tmp_path: Path) -> None:
    folder = written(tmp_path, [*map(resampled, test_credit.records())])
    assert main(["plot", "credit", str(folder), "--out", str(tmp_path / "fig")]) == 0
    said = texts(tmp_path / "fig.svg")
    assert {"Where the score goes", "ties", "80", "only a tuned head"} <= {*said}
    with pytest.raises(MissingScores, match="found no such merge"):
        harness.plot("credit", [folder], out=tmp_path / "no", view=View(shots=7))
    assert not (tmp_path / "no.png").exists()


# Drop --------------------------------------------------------------------------------------


def of_experts(name: str, method: str, task: str, value: float, *digests: str) -> Record:
    sources = tuple(Source(source=one, digest=one) for one in digests)
    return read(name, method, task, "current", value, experts=sources, digest=name)


def values(shown: drop.Drops, method: str) -> list[float]:
    return sorted(one.points for one in shown.methods[method])


def test_of_many_merges_without_a_pair_a_few_are_named() -> None:
    merges = [read(f"m{i}", f"m{i:02}", RTE, "current", i / 20) for i in range(20)]
    with pytest.raises(MissingScores, match=r"no such pair among m00, .*, m09 and 10 others; "):
        gains.picture(of(merges), ALL)


def test_the_drop_by_hand() -> None:
    records = [
        read("x", "expert", RTE, "current", 0.8, digest="x"),
        read("y", "expert", MRPC, "current", 0.5, digest="y"),
        read("z", "expert", MRPC, "current", -0.1, digest="z"),
        of_experts("m", "ties", RTE, 0.6, "x", "y"),
        of_experts("m", "ties", MRPC, 0.6, "x", "y"),
        of_experts("n", "ties", RTE, 0.4, "x", "z"),
        of_experts("n", "ties", MRPC, 0.6, "x", "z"),
    ]
    shown = drop.drops(of(records), ALL)
    # a pair is one value: (25 - 20) / 2, and 50 alone where the other expert has no positive score
    assert ([*shown.methods], shown.unit, shown.undefined) == (["ties"], "merge", 1)
    assert values(shown, "ties") == pytest.approx([2.5, 50])
    with pytest.raises(MissingScores, match=r"found only experts of 0 or less under current; .*"):
        drop.drops(of([records[2], of_experts("k", "ties", MRPC, 0.6, "z")]), ALL)
    # of two studies merges may share a name
    named = [
        one.model_copy(update={"model": "ties"}) if one.role == "merged" else one for one in records
    ]
    assert values(drop.drops(of(named), ALL), "ties") == pytest.approx([2.5, 50])
    seen = [one.model_copy(update={"transductive": one.model == "m"}) for one in records]
    assert {*drop.drops(of(seen), ALL).methods} == {"ties", "ties (transductive)"}
    alone = drop.drops(of(records[:5]), ALL)
    assert (alone.unit, values(alone, "ties")) == ("task", pytest.approx([-20, 25]))


def test_the_drop_agrees_with_plain_loops_over_the_records_of_a_board() -> None:
    records = read_records([BOARDS / "domains.parquet"])
    shown = drop.drops(of(records), ALL)
    for method in shown.methods:
        expected = []
        for merge in records:
            tuned = merge.recipe and merge.recipe.tuned
            called = "task_arithmetic (scale tuned)" if tuned else merge.method
            if called == method and merge.protocol == "current":
                own, merged = [], {one.digest for one in merge.experts}
                for expert in records:
                    known = expert.digest in merged and expert.protocol == "current"
                    if known and expert.task == merge.task:
                        top = expert.scores[0].value
                        own.append(100 * (top - merge.scores[0].value) / top)
                expected.append(sum(own) / len(own))
        assert values(shown, method) == pytest.approx(sorted(expected))
    medians = [np.median(values(shown, method)) for method in shown.methods]
    assert medians == sorted(medians)


@pytest.mark.parametrize(("count", "box"), [(4, False), (11, True)])
def test_a_box_of_quartiles_takes_ten_values(count: int, box: bool) -> None:
    """The median and every value are there in any case."""
    points = [float(value) for value in range(count)]
    differences = [Difference(one) for one in points]
    setting = scored(several()).settings[0]
    axes = drop.draw(drop.Drops({"ties": differences}, "merge", setting, 0)).axes[0]
    assert [(one.get_x(), one.get_width()) for one in axes.patches] == [(2.5, 5)] * box  # type: ignore[attr-defined]
    assert [x for x, _ in drawn_at(axes, "o")] == points
    median = next(one for one in axes.collections if one.get_linewidth() == 2)
    assert median.get_paths()[0].vertices[0, 0] == np.median(points)


@pytest.mark.parametrize(("draws", "known"), [(2, False), (3, True)])
def test_a_drop_over_fewer_than_three_draws_has_no_interval(draws: int, known: bool) -> None:
    own = (Source(source="x", digest="x"),)
    each = {5: [0.6, 0.62, 0.61][:draws]}
    made = [
        read("x", "expert", RTE, "knn", {5: [0.8, 0.82, 0.81][:draws]}, digest="x"),
        read("m", "ties", RTE, "knn", each, experts=own),
    ]
    view = View(protocols=("knn",))
    ((one,),) = drop.drops(of([*map(resampled, made)], view), view).methods.values()
    assert (one.within is not None) == known
    assert one.points == pytest.approx(25, abs=0.5)


# Ranks -------------------------------------------------------------------------------------


def ranking(scores: Any) -> Standings:
    """Of scores [models, tasks] alone."""
    return standings([f"{at:02}" for at in range(scores.shape[1])], scores)


def loops(scores: list[list[float]]) -> list[float]:
    """Mean ranks, 1 the best: a rank is one more than those above and half of the equals."""
    ranks_of = [
        [1 + sum(o > s for o in row) + (sum(o == s for o in row) - 1) / 2 for s in row]
        for row in scores
    ]
    return [sum(column) / len(column) for column in zip(*ranks_of, strict=True)]


def test_ranks_by_hand_and_by_loops() -> None:
    by_hand = ranking(np.array([[3.0, 1], [2, 2], [2, 3]]))
    assert by_hand.means == pytest.approx([2, 2.25, 1.75])
    numbers = np.random.default_rng(0).integers(5, size=(7, 6)).astype(float)
    found = ranking(numbers.T)
    assert found.means == pytest.approx(loops(numbers.tolist()))
    for mean, (low, high) in zip(found.means, found.left_out, strict=True):
        assert low <= mean <= high


def test_what_a_mean_rank_is_without_one_task() -> None:
    """Ranks 1, 1 and 2: without the last 1, without another 1.5."""
    found = ranking(np.array([[2.0, 2, 1], [1, 1, 2]]))
    assert found.left_out == ((1, 1.5), (1.5, 2))
    assert found.ties == ((0, 1),)


def test_ties_join_in_order_of_rank_those_that_are_not_apart() -> None:
    """The second is the best of four on nearly all of many tasks, the first the worst; between the
    others chance decides."""
    random = np.random.default_rng(3)
    between = random.uniform(1, 2, size=(40, 2))
    scores = np.column_stack([np.zeros(40), np.full(40, 3.0), between])
    found = ranking(scores.T)
    (tie,) = found.ties
    assert {*tie} == {2, 3}
    assert list(tie) == sorted(tie, key=lambda at: found.means[at])


def test_few_tasks_tell_nobody_apart() -> None:
    best_everywhere = np.array([[2.0, 1.0]])
    assert ranking(np.repeat(best_everywhere, 5, axis=0).T).ties == ((0, 1),)
    assert ranking(np.repeat(best_everywhere, 6, axis=0).T).ties == ()


def test_ranks_are_of_merges_on_all_tasks_and_joined_in_the_picture() -> None:
    partial = read("o", "average", RTE, "current", 0.9)
    view = View(protocols=("current",))
    methods, _ = ranks.ranks(scored([*several(), partial], "current"), view)
    assert methods == ["dare[ties]", "ties"]
    axes = picture(ranks, [*several(), partial], view).axes[0]
    assert [(x, rows_of(axes)[y]) for x, y in drawn_at(axes, "D")] == [
        (1, "dare[ties]"),
        (2, "ties"),
    ]


def test_a_bar_of_ranks_joins_some_and_where_it_would_join_all_a_sentence_says_so() -> None:
    def figure(tasks: int) -> Any:
        made = [
            read(name, name, f"own/{at:02}@test", "current", value + noise)
            for at in range(tasks)
            for name, value, noise in (
                ("average", 0.9, 0),
                ("ties", 0.5, 0.01 * (at % 2)),
                ("fisher", 0.5, 0.01 * (1 - at % 2)),
            )
        ]
        return picture(ranks, made)

    def joined(figure: Any) -> list[set[str]]:
        (axes,) = figure.axes
        rows = {round(y, 6): name for y, name in rows_of(axes).items()}
        lines = [line for line in axes.lines if line.get_label() == "no significant difference"]
        return [{rows[round(y, 6)] for y in line.get_ydata()} for line in lines]

    some, none = figure(10), figure(4)
    assert joined(some) == [{"ties", "fisher"}]
    assert some.get_suptitle() == "Mean rank over 10 tasks"
    assert joined(none) == []
    said = none.get_suptitle().replace("\n", " ")
    assert said == (
        "Mean rank over 4 tasks: no two differ significantly (7 tasks or more are needed)"
    )


def test_rows_have_room_for_all_lines_of_their_names() -> None:
    """Between two names is more than between the lines of one, which are 1.2 times 9 points."""
    long = "permutation:heads=True,layers=first:3,residual=True[average]"
    assert marks.name_in_lines(long).count("\n") == 2
    line = 1.2 * 9 / 72
    for name, lines in (("ties", 1), ("procrustes+dare[regmean:examples=256]", 2), (long, 3)):
        assert marks.height_of([name]) > line * lines + 0.05


@pytest.mark.parametrize("shots", [None, 5])
def test_ranks_are_those_that_compare_gives(shots: int | None, tmp_path: Path) -> None:
    """In whatever order tasks come."""
    asked: dict[str, Any] = {}
    if shots:
        asked = {"protocol": "ft-classifier", "keys": ((5, 0), (5, 1))}
    merges = ("good", "average", 0.05), ("fair", "ties", 0.3), ("poor", "fisher", 0.31)
    shared(tmp_path, *merges, **asked)
    name = asked.get("protocol", "current")
    made = harness.compare(["poor", "fair", "good"], records=tmp_path, protocol=name, shots=shots)
    assert isinstance(made, harness.Ranking)
    records = [*reversed(read_records([tmp_path]))]
    view = View(protocols=(name,))
    methods, rankings = ranks.ranks(scored(records, name), view)
    called = {method: model for model, method, _ in merges}
    (ranking,) = rankings.values()
    compared = {one.model: one for one in made.models}
    of_panel = [compared[called[one]] for one in methods]
    assert ranking.means == pytest.approx([one.rank for one in of_panel])
    assert [*ranking.places] == [one.places for one in of_panel]
    assert [*ranking.means] == sorted(ranking.means)
    figure = picture(ranks, records, view)
    assert "without one of the tasks" in signs(figure)
    title = figure.get_suptitle().replace("\n", " ")
    assert title.endswith("no two differ significantly (7 tasks or more are needed)")
    assert len(ranking.groups) == 1


# Features ----------------------------------------------------------------------------------


def test_rows_are_balanced_by_class_bin_and_tag() -> None:
    with registered(TOY, MOODS, TAGS, VALUE):
        pairs = balanced(load_rows(TOY, "test"), 6, 0)
        assert sorted(pairs.values()) == ["no"] * 3 + ["yes"] * 3
        assert pairs != balanced(load_rows(TOY, "test"), 6, 1)
        assert balanced(load_rows(TOY, "test"), 6, 0) == pairs
        everything = balanced(load_rows(TOY, "test"), 1000, 0)
        assert len(everything) == 12
        words = load_rows(TAGS, "test")
        tags = balanced(words, 10, 0)
        assert all(TAG_NAMES[int(words.labels[unit])] == name for unit, name in tags.items())
        assert [*tags.values()].count("O") == 2
        moods = load_rows(MOODS, "test")
        held = balanced(moods, 9, 0)
        assert all(moods.labels[unit, MOODS.labels.index(name)] == 1 for unit, name in held.items())
        assert {*balanced(load_rows(VALUE, "test"), 10, 0).values()} <= {
            f"bin {at}" for at in range(5)
        }


def test_points_that_lie_together_stay_together() -> None:
    random = np.random.default_rng(0)
    centres = np.repeat(np.array([[0.0, 50, 0], [50.0, 0, 0]]), 8, axis=0)
    x = (centres + random.normal(size=(16, 3))).astype(np.float32)
    plane = in_the_plane([x, x + 0.01], 0, "a task")
    assert plane.shape == (2, 16, 2)
    assert (plane == in_the_plane([x, x + 0.01], 0, "a task")).all()
    first, second = plane.reshape(2, 2, 8, 2).transpose(1, 0, 2, 3).reshape(2, 16, 2)
    within = max(np.linalg.norm(one - one.mean(axis=0), axis=1).max() for one in (first, second))
    assert np.linalg.norm(first.mean(axis=0) - second.mean(axis=0)) > 2 * within
    with pytest.raises(BadData, match="4 points of a task, expected 8 or more"):
        in_the_plane([x[:2], x[:2]], 0, "a task")
    with pytest.raises(BadRecipe, match="3 and 2 wide"):
        in_the_plane([x, x[:, :2]], 0, "a task")


def test_features_are_those_of_the_model_and_of_its_expert(
    minis: Minis, taggers: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layout is put aside for the first two features of each point."""
    from harness.reporting.plots import tsne

    monkeypatch.setattr(tsne, "in_the_plane", lambda x, *_: np.stack([one[:, :2] for one in x]))
    folders, words = minis("bert"), taggers("bert")
    with registered(TOY, TAGS):
        run = Run(model=str(folders["a"]), experts=(str(folders["b"]),), tasks=("toy/pairs",))
        (cloud,) = clouds(run, 8)
        rows = load_rows(TOY, "test")
        units = [*balanced(rows, 8, 0)]
        whole = [
            forward(open_checkpoint(str(folders[name])), rows, max_length=128)[0]
            for name in ("b", "a")
        ]
        assert cloud.models == ("b", "a")
        assert np.allclose(cloud.points, [x[units, :2] for x in whole], atol=1e-5)
        assert [cloud.classes[at] for at in cloud.class_numbers] == [
            TOY.labels[int(rows.labels[unit])] for unit in units
        ]
        placed = [one.get_offsets() for one in draw([cloud]).axes[0].collections]
        assert np.allclose(np.stack(placed), cloud.points)  # type: ignore[arg-type]
        out = str(tmp_path / "fig.png")
        asked = ["--model", str(words["a"]), "--experts", str(words["b"]), "--tasks", "toy/tags"]
        assert main(["plot", "tsne", *asked, "--rows", "20", "--out", out]) == 0
    assert "tags" in texts(tmp_path / "fig.svg")
    assert any("1:\u00a0O · 2:\u00a0B-PER" in text for text in texts(tmp_path / "fig.svg"))


# The verb ----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["protocols", "shots", "gains", "drop", "ranks"])
def test_a_picture_is_two_files_of_the_same_bytes_every_time(what: str, tmp_path: Path) -> None:
    made = [one for one in several() if what == "ranks" or one.task == RTE]
    own = (Source(source="e", digest=f"e {RTE[-3:]} {RTE}"),)
    records = [
        one.model_copy(update={"experts": own}) if one.role == "merged" else one for one in made
    ]
    folder = written(tmp_path, records)
    assert main(["plot", what, str(folder), "--out", str(tmp_path / "a" / "fig")]) == 0
    paths = harness.plot(what, [folder], out=tmp_path / "b" / "fig.svg")
    assert [path.name for path in paths] == ["fig.png", "fig.svg"]
    for path in paths:
        assert path.read_bytes() == (tmp_path / "a" / path.name).read_bytes()
    text = paths[1].read_text()
    assert {"ties", "dare[ties]"} & {*texts(paths[1])}
    for part in ("<image", "<dc:date", str(tmp_path)):
        assert part not in text


def test_a_view_is_of_some_tasks_and_protocols(tmp_path: Path) -> None:
    folder = written(tmp_path, several())
    asked = ["--tasks", "rte", "--protocols", "current,knn", "--shots", "1"]
    assert main(["plot", "protocols", str(folder), *asked, "--out", str(tmp_path / "fig")]) == 0
    said = texts(tmp_path / "fig.svg")
    assert "knn, 1 shot" in said
    assert not {"mrpc", "mean of 2 tasks", "ft-classifier, 5 shots"} & {*said}


def test_signs_that_our_font_lacks_are_drawn_where_a_font_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A font of matplotlib's with a sign that ours lacks stands for one with Chinese."""
    monkeypatch.setattr(figures, "FALLBACKS", ("no such font", "STIXGeneral"))
    charmaps = [
        get_font(findfont(name)).get_charmap() for name in (figures.FONT, *figures.FALLBACKS[1:])
    ]
    sign = chr(min(set(charmaps[1]) - set(charmaps[0])))
    with marks.drawn_rows("t", ["ties", f"ties{sign}"], [("", "")], 2) as (figure, panels, _):
        pass
    plainly, foreign = panels[0].get_yticklabels()
    assert plainly.get_fontfamily() == ["sans-serif"]
    assert foreign.get_fontfamily() == [figures.FONT, "STIXGeneral", "sans-serif"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.draw_without_rendering()


def test_names_do_no_harm(tmp_path: Path) -> None:
    odd = "_<script>$x\x07\n" + "y" * 400
    records = [
        read(odd, f"ties:{odd}", RTE, asked, values)
        for asked, values in (("current", 0.5), ("knn", {5: [0.5]}))
    ]
    harness.plot("protocols", [written(tmp_path, records)], out=tmp_path / "fig")
    said = " ".join(texts(tmp_path / "fig.svg"))
    assert "…" in said
    assert ET.parse(tmp_path / "fig.svg").find(f".//{SVG}script") is None
    with marks.figure_of("", [""], (2, 2)) as (figure, (axes,)):
        axes.plot([1], label=marks.legend_label("_m"))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [" _m"]


def test_series_are_told_apart_without_colour() -> None:
    for first, second in combinations((marks.OF_CURRENT, *marks.SERIES[:6]), 2):
        assert first.colour != second.colour
        assert (first.sign, first.hollow) != (second.sign, second.hollow)
        assert first.line != second.line
    assert len({mark.hatch for mark in marks.SERIES}) == len(marks.SERIES)
    assert [*marks.marks(["knn", "x", "current"])] == ["knn", "x", "current"]
    assert marks.marks(["x", "knn"])["x"] != marks.KNOWN["knn"]


def test_panels_with_none_below_them_say_what_is_along_x() -> None:
    with marks.figure_of("", ["x"] * 5, (2, 2)) as (_, panels):
        marks.along_x(panels, ["accuracy"] * 5)
    assert [axes.get_xlabel() for axes in panels] == ["", "", *["accuracy"] * 3]


def test_long_names_are_broken_where_their_parts_end() -> None:
    assert marks.name_in_lines("ties") == "ties"
    assert (
        marks.name_in_lines("dare[fisher:estimator=empirical]")
        == "dare[fisher:\nestimator=empirical]"
    )
    longest = marks.name_in_lines(",".join(["option=1234567890"] * 20)).split("\n")
    assert (len(longest), longest[-1]) == (3, "…")
    assert marks.name_in_lines("a\tb") == "a\\tb"


BAD: dict[str, tuple[str, list[str]]] = {
    "unknown": (
        "protcols {records}",
        [
            "no picture is called 'protcols'",
            "did you mean 'protocols'?",
            "known: credit, protocols",
        ],
    ),
    "unlike any": ("nosuch {records}", ["no picture is called 'nosuch'; known: credit, protocols"]),
    "no place": ("shots {records}/nowhere", ["does not exist"]),
    "no records": ("shots", ["plot shots needs records alone, found none"]),
    "a model": ("shots {records} --model x", ["needs records alone, found a model"]),
    "no model": ("tsne", ["needs a model alone, found none", "--model"]),
    "records for features": ("tsne {records} --model x", ["found records"]),
    "an option of a sweep": (
        "tsne --model x --option merger.scale",
        ["tsne has --option", "records"],
    ),
    "no such model": ("tsne --model ./nowhere", ["nowhere does not exist"]),
    "task": ("shots {records} --tasks cola", ["no record has the task 'cola'", RTE]),
    "protocol": (
        "shots {records} --protocols probe",
        ["'probe'", "expected one of current, knn, ft-classifier"],
    ),
    "shots": ("protocols {records} --shots 3", ["has 3 shots, found 1, 5", "--shots 3"]),
    "all shots": ("protocols {records} --shots all", ["has all shots, found 1, 5"]),
    "no number": (
        "protocols {records} --shots few",
        ["--shots is 'few', expected whole numbers or all"],
    ),
    "no shots": ("protocols {records} --shots 0", ["shots", "greater"]),
    "no rows": ("tsne --model x --rows 0", ["rows", "greater"]),
    "one protocol": (
        "protocols {records} --protocols current",
        ["found current; 2 merges", "harness evaluate"],
    ),
    "without current": (
        "protocols {records} --protocols knn,ft-classifier",
        ["under current and another"],
    ),
    "nothing drawn": (
        "shots {records} --protocols current",
        ["found none", "--shots 1,5,10,50"],
    ),
    "no transform": (
        "transforms {records}",
        ["'probe', found none", "probe:transform=affine"],
    ),
    "no pairs": ("gains {alone}", ["no such pair among ties", "--premerge"]),
    "no expert": ("drop {records}", ["drop shows experts of m on", "found none", "--experts"]),
    "no merge": ("drop {experts}", ["merges beside their experts under current, found none"]),
    "one merge": ("ranks {alone}", ["found 1 on all of 1", "harness evaluate"]),
    "an option of a model": (
        "protocols {records} --device cpu",
        ["plot protocols has --device, which is for features of a model (tsne) only"],
    ),
    "an option of records": (
        "tsne --model m --shots 5",
        ["plot tsne has --shots, which is for records only"],
    ),
    "shots where none are drawn": (
        "drop {records} --shots 77",
        ["drop has 77 shots, and current adapts to no drawn rows"],
    ),
    "shots of all shots": ("shots {records} --shots 5", ["shots shows every number of shots"]),
    "another form": (
        "shots {records} --out {records}/fig.pdf",
        ["plot writes PNG and SVG, found", "fig.pdf; expected a name without an ending"],
    ),
    "a file in the way": ("shots {records} --out {records}/0.json/fig", ["0.json is a file"]),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_a_mistake_is_one_line_and_leaves_nothing(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, expected = BAD[case]
    made = several()
    places = {
        "records": written(tmp_path / "some", made),
        "alone": written(tmp_path / "one", [made[0]]),
        "experts": written(tmp_path / "experts", [one for one in made if one.role == "expert"]),
    }
    filled = [one.format(**places) for one in arguments.split()]
    out = [] if "--out" in filled else ["--out", str(tmp_path / "out" / "fig")]
    before = sorted(tmp_path.rglob("*"))
    assert main(["plot", *filled, *out]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    for part in expected:
        assert part in line
    assert sorted(tmp_path.rglob("*")) == before


def test_all_pictures_are_listed() -> None:
    modules = {path.stem for path in Path(plot.__file__).parent.glob("*.py")}
    assert {*plot.OF_RECORDS, plot.OF_FEATURES} <= modules


# The committed ones ------------------------------------------------------------------------

FIGURES = ROOT / "docs" / "figures"
COMMANDS = [
    shlex.split(line)
    for line in (FIGURES / "README.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("    harness plot")
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: Path(command[-1]).name)
def test_the_committed_pictures_are_those_of_the_records(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert command[-2] == "--out"
    assert main([*command[1:-1], str(tmp_path / "fig")]) == 0
    kept = ROOT / command[-1]
    assert texts(kept.with_suffix(".svg")) == texts(tmp_path / "fig.svg")
    pinned = (
        f"matplotlib=={mpl.__version__} ; python_version >="
        in (ROOT / "constraints.txt").read_text()
    )
    if pinned:  # another version may place things otherwise
        assert kept.with_suffix(".svg").read_bytes() == (tmp_path / "fig.svg").read_bytes()
    assert (tmp_path / "fig.png").is_file()


def test_a_legend_of_many_long_lines_has_room() -> None:
    """One small panel under twelve signs, one of them wider than it: nothing lies on another."""
    names = [*(f"knn:rule=vote,neighbours={count}, 3 shots" for count in range(11))]
    names += ["paired 95 % CI of the gap, from current on, each by itself"]
    with marks.figure_of("Of one task", [""], (2.45, 1.0)) as (figure, (axes,)):
        for name in names:
            axes.plot([0], [0], label=name)
    figure.canvas.draw()
    (signs,) = figure.legends
    below, panel = signs.get_window_extent(), axes.get_tightbbox()
    assert panel is not None
    assert below.y1 <= panel.y0
    assert panel.height > 0.8 * figure.dpi
    assert below.x0 >= 0
    assert below.y0 >= 0
    assert below.x1 <= figure.bbox.x1
