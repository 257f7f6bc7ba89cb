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
from matplotlib.lines import Line2D

import harness
from harness import Record, Run, View, protocol
from harness.checkpoints.open import open_checkpoint
from harness.cli import main
from harness.data.rows import load_rows
from harness.errors import BadData, BadRecipe, MissingScores
from harness.evaluation.predictions import read_predictions
from harness.evaluation.records import (
    Adaptation,
    DrawScore,
    Interval,
    Role,
    Source,
    predictions_of,
    read_records,
)
from harness.evaluation.resamples import estimate_of
from harness.files import write_json
from harness.passes.features import forward
from harness.registry import PROTOCOLS
from harness.reporting import figures
from harness.reporting.grid import grid
from harness.reporting.plots import drop, gains, marks, plot, protocols, ranks, shots, transforms
from harness.reporting.plots.scores import headline, scores_of
from harness.reporting.plots.tsne import balanced, clouds, draw, in_the_plane
from harness.reporting.ranking import Standings, standings
from harness.stats.estimate import minus
from harness.stats.intervals import interval
from tests.conftest import TAGS as TAG_NAMES
from tests.resampled import kept
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
    scores = scores_of(several())
    tuned = headline(scores.readings)[-1]
    mean = scores.cell("ties", tuned, "mean")
    assert mean is not None
    # 60 and 70 on one task, 70 and 80 on the other
    assert mean.values == pytest.approx([65, 75])
    assert scores.columns_of([tuned]) == (RTE, MRPC, "mean")
    assert scores.expert(scores.readings[0], "mean") == pytest.approx(85)
    part = scores_of([one for one in several() if (one.model, one.task) != ("m", MRPC)])
    assert part.cell("ties", tuned, "mean") is None
    assert part.cell("base", tuned, "mean") is not None


def test_models_of_one_method_on_one_task_are_told_apart() -> None:
    twins = [read(name, "ties", RTE, "current", 0.5) for name in ("one", "two")]
    assert scores_of(twins).rows == ("ties (one)", "ties (two)")
    apart = [read("one", "ties", RTE, "current", 0.5), read("two", "ties", MRPC, "current", 0.5)]
    assert scores_of(apart).rows == ("ties",)
    heads = [
        read("b", "base", RTE, "current", 0.5, digest=head, head=head) for head in ("own", "kept")
    ]
    assert scores_of(heads).rows == ("base (own head)", "base (kept head)")
    same = [read("b", "base", RTE, "current", 0.5, digest=digest) for digest in ("1", "2")]
    assert scores_of(same).rows == ("base (1)", "base (2)")
    for records in (twins, apart, heads, same):  # as on a board
        assert scores_of(records).rows == grid(records, by_method=True).rows


def test_the_number_of_shots_is_the_nearest_to_five_or_the_one_asked_for() -> None:
    known = scores_of([*several(), read("m", "ties", "a@b", "knn", {7: [0.1], 3: [0.2]})]).readings
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
    assert headline([*known[-2:], every], "all") == (every,)
    assert headline([*known[-2:], every]) == (known[-1],)
    threes = [one for one in known if one.shots in (3, 7)]
    assert [one.shots for one in headline(threes)] == [3]  # as near as 7, and fewer


# Protocols ---------------------------------------------------------------------------------


def test_the_gap_by_hand() -> None:
    shown = protocols.gaps(several(), ALL)
    assert shown.rows == ("dare[ties]", "ties", "base")  # the best under current first
    assert [str(one) for one in shown.readings] == [
        "current",
        "knn, 5 shots",
        "ft-classifier, 5 shots",
    ]
    rte, _, mean = shown.panels
    assert (rte.title, rte.unit, mean.title) == ("rte", "accuracy × 100", "mean of 2 tasks")
    current, _, tuned = rte.dots[1]
    assert current is not None
    assert tuned is not None
    assert (current.value, current.deviation) == (pytest.approx(60), None)
    assert tuned.value == pytest.approx(65)
    assert tuned.deviation == pytest.approx(statistics.stdev([60, 70]))
    assert rte.expert == pytest.approx(80)
    assert shown.spread == "± standard deviation over 2 draws"


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
    shown = protocols.gaps(several(), ALL)
    figure = protocols.draw(shown)
    looks = marks.CURRENT, marks.KNOWN["knn"], marks.KNOWN["ft-classifier"]
    for axes, panel in zip(figure.axes, shown.panels, strict=True):
        for at, look in enumerate(looks):
            dots = [row[at] for row in panel.dots]
            assert drawn_at(axes, look.sign) == [
                (pytest.approx(dot.value), row) for row, dot in enumerate(dots) if dot is not None
            ]
        assert axes.get_title() == panel.title
        assert axes.yaxis_inverted()
    names = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert names == [*shown.rows]
    assert signs(figure) == [
        "current",
        "knn, 5 shots",
        "ft-classifier, 5 shots",
        "gap to ft-classifier",
        "± standard deviation over 2 draws",
        "experts under current",
    ]


def test_intervals_and_the_best_constant_are_shown_where_records_have_them() -> None:
    interval = Interval(low=0.4, high=0.7, method="wilson")
    said = {"intervals": (interval,), "majority": DrawScore(value=0.45, parts={})}
    records = [one.model_copy(update=said) for one in several()]
    shown = protocols.gaps(records, ALL)
    dot = shown.panels[0].dots[0][0]
    assert dot is not None
    assert dot.interval == (40, 70)
    assert shown.panels[0].constant == 45
    named = {"95 % interval", "best constant prediction"}
    assert named <= {*signs(protocols.draw(shown))}


def test_no_interval_is_cut_off_at_the_edge_of_a_scale() -> None:
    """Those of the base on the scale are whole, too; of what is a number at the edge none is."""
    ends = {"m": (0.3, 0.99), "n": (0.4, 0.9), "b": (0.25, 0.9)}
    given = {name: Interval(low=a, high=b, method="wilson") for name, (a, b) in ends.items()}
    records = [
        one.model_copy(update={"intervals": (given[one.model],)}) if one.model in given else one
        for one in several()
    ]
    far = read("c", "base", RTE, "current", 0.01)
    said = far.model_copy(update={"intervals": (Interval(low=0, high=0.6, method="wilson"),)})
    for axes in protocols.draw(protocols.gaps([*records, said], ALL)).axes:
        low, high = axes.get_xlim()
        drawn = [path.vertices[:, 0] for one in axes.collections for path in one.get_paths()]
        assert drawn
        for x in drawn:
            assert low <= min(x) <= max(x) <= high


def test_the_legend_names_the_best_constant_where_it_is_on_the_scale() -> None:
    def named(constant: float) -> bool:
        said = {"majority": DrawScore(value=constant, parts={})}
        records = [one.model_copy(update=said) for one in several()]
        figure = protocols.draw(protocols.gaps(records, ALL))
        return "best constant prediction" in signs(figure)

    assert named(0.6)
    assert not named(0)


def test_a_gap_and_an_interval_differ_in_form() -> None:
    """An open bar and a filled one: in grey they would be one."""
    axes = protocols.draw(protocols.gaps(several(), ALL)).axes[0]
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [  # type: ignore[attr-defined]
        (pytest.approx(70), pytest.approx(5)),
        (pytest.approx(60), pytest.approx(5)),
        (pytest.approx(50), pytest.approx(5)),
    ]
    assert not any(bar.get_fill() and bar.get_facecolor()[3] for bar in axes.patches)


def test_a_mean_that_no_merge_has_is_left_out() -> None:
    part = [one for one in several() if (one.model, one.task) not in (("m", MRPC), ("n", RTE))]
    part = [one for one in part if one.role != "base"]
    assert [panel.title for panel in protocols.gaps(part, ALL).panels] == ["rte", "mrpc"]
    with pytest.raises(MissingScores, match="no merge was read on all of 2 tasks"):
        shots.curves(part, ALL)
    assert len(shots.curves(part, View(tasks=("rte",))).panels) == 1


def test_a_base_far_below_is_a_number_and_does_not_press_the_merges_together() -> None:
    far = [one for one in several() if one.role != "base"]
    far += [
        read("b", "base", task, asked, values)
        for task in (RTE, MRPC)
        for asked, values in (("current", 0.03), ("ft-classifier", {5: [0.05]}))
    ]
    axes = protocols.draw(protocols.gaps(far, ALL)).axes[0]
    assert axes.get_xlim()[0] > 50
    assert {"3", "5", "◂"} <= {text.get_text() for text in axes.texts}
    near = protocols.draw(protocols.gaps(several(), ALL)).axes[0]
    assert near.get_xlim()[0] < 50
    assert not near.texts


# Curves ------------------------------------------------------------------------------------


def test_all_shots_stand_beyond_every_number() -> None:
    """As far as the last number is from the one before: 1, 5 and where 25 would be."""
    one, five, every = shots.places_of([1, 5, "all"]).values()
    assert (one, five, every) == pytest.approx((0, np.log(5), np.log(25)))
    assert [*shots.places_of([5, "all"]).values()] == pytest.approx([np.log(5), np.log(10)])
    made = read("m", "ties", RTE, "knn", {1: [0.5], 5: [0.6]})
    whole = made.scores[0].model_copy(update={"shots": "all", "value": 0.7})
    shown = shots.curves([made.model_copy(update={"scores": (*made.scores, whole)})], ALL)
    assert [name for _, name in shown.ticks] == ["1", "5", "all"]
    ((_, points),) = shown.panels[0].curves
    assert (points[-1].x, points[-1].value) == pytest.approx((np.log(25), 70))


def test_shots_by_hand() -> None:
    shown = shots.curves(several(), ALL)
    assert [panel.title for panel in shown.panels] == ["ties", "dare[ties]", "base"]
    assert shown.ticks == ((0, "1"), (math.log(5), "5"))
    ties = shown.panels[0]
    (knn, points), (tuned, _) = ties.curves
    assert (knn, tuned) == ("knn", "ft-classifier")
    assert [point.value for point in points] == pytest.approx([60, 66])
    assert points[0].deviation == pytest.approx(statistics.stdev([55, 65]))
    assert dict(ties.levels) == {"experts": pytest.approx(85), "current": pytest.approx(65)}


def test_of_one_merge_every_task_has_a_panel() -> None:
    alone = [one for one in several() if one.model == "m"]
    shown = shots.curves(alone, ALL)
    assert [panel.title for panel in shown.panels] == ["rte", "mrpc", "mean of 2 tasks"]
    assert shown.title == "Score against shots: ties"
    figure = shots.draw(shown)
    lines = [line for line in figure.axes[0].lines if line.get_marker() in ("D", "^")]
    points = [
        point for line in lines for point in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]
    assert sorted(y for _, y in points) == pytest.approx([55, 60, 61, 65])
    for x, _ in points:  # beside its number of shots, no farther than to tell two bars apart
        assert min(abs(x - tick) for tick, _ in shown.ticks) < 0.03 * math.log(5)


def test_a_constant_far_below_does_not_press_the_curves_together() -> None:
    def drawn(constant: float) -> Any:
        said = {"majority": DrawScore(value=constant, parts={})}
        merges = [one for one in several() if one.role != "base"]
        return shots.draw(shots.curves([one.model_copy(update=said) for one in merges], ALL))

    far, near = drawn(0), drawn(0.45)
    assert far.axes[0].get_ylim()[0] > 50
    assert signs(far)[-2:] == ["experts", "current"]
    assert near.axes[0].get_ylim()[0] < 45
    assert signs(near)[-3:] == ["experts", "current", "best constant prediction"]
    looks = {(line.get_color(), line.get_linestyle()) for line in near.legends[0].get_lines()[-3:]}
    assert len({colour for colour, _ in looks}) == 2
    assert len({line for _, line in looks}) == 3


def test_a_base_far_below_has_a_scale_of_its_own_with_numbers() -> None:
    far = [one for one in several() if one.role != "base"]
    far += [read("b", "base", task, "knn", {1: [0.03], 5: [0.05]}) for task in (RTE, MRPC)]
    first, second, base = shots.draw(shots.curves(far, ALL)).axes
    assert first.get_ylim() == second.get_ylim()
    assert first.get_ylim()[0] > 50
    assert base.get_ylim()[0] < 3
    numbered = [axes.yaxis.get_tick_params()["labelleft"] for axes in (first, second, base)]
    assert numbered == [True, False, True]
    assert len({axes.get_ylim() for axes in shots.draw(shots.curves(several(), ALL)).axes}) == 1


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
    shown = transforms.curves(probed(), ALL)
    assert [name for _, name in shown.ticks] == ["affine", "similarity", "orthogonal", "scaling"]
    (panel,) = shown.panels
    curves = dict(panel.curves)
    assert [*curves] == ["probe, 5 shots", "probe:rows=test (transductive)"]
    few = curves["probe, 5 shots"]
    assert [point.x for point in few] == [0, 1, 2, 3]
    assert [point.value for point in few] == pytest.approx([56, 58, 57, 55])
    assert dict(panel.levels) == {"current": pytest.approx(40)}
    assert [
        point.value for point in transforms.curves(probed(), View(shots=1)).panels[0].curves[0][1]
    ] == [pytest.approx(20)] * 4


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
    assert gains.pairs(methods) == {
        ("ties", "dare"): "dare[ties]",
        ("dare[ties]", "p"): "p+dare[ties]",
        ("fisher+lines", "p"): "p[fisher]+lines",
        ("ties", "q+r"): "q+r[ties]",
    }
    assert gains.pairs(["dare[ties]", "average"]) == {}


def rows_of(axes: Any) -> dict[float, str]:
    """The names at the left of a panel by their places."""
    labels = axes.figure.axes[0].get_yticklabels()  # all panels share them
    names = [label.get_text().replace("\n", "") for label in labels]
    return dict(zip(axes.get_yticks().tolist(), names, strict=True))


def test_every_bar_is_named_below_its_merger() -> None:
    many = [f"rotation:layers={layer}[average]" for layer in range(9)]
    methods = ["average", *many, "ties", "dare[ties]"]
    records = [
        read(one, one, task, "current", 0.5 + at / 100)
        for at, one in enumerate(methods)
        for task in (RTE, MRPC)
    ]
    shown = gains.gains(records, ALL)
    stages = [f"rotation:layers={layer}" for layer in range(9)]
    figure = gains.draw(shown)
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
        assert axes.get_xlabel() == "gain in accuracy × 100"
        assert axes.xaxis.get_tick_params()["labelbottom"]


def test_what_changes_nothing_anywhere_is_said_and_not_drawn() -> None:
    values = {"average": 0.5, "p[average]": 0.5, "q:a=1[average]": 0.5, "r[average]": 0.6}
    read_all = [read(one, one, RTE, "current", value) for one, value in values.items()]
    figure = gains.draw(gains.gains(read_all, ALL))
    assert [*rows_of(figure.axes[0]).values()] == ["average", "r"]
    (bar,) = figure.axes[0].patches
    assert mpl.colors.same_color(bar.get_facecolor(), marks.BLUE)  # the first is not kept for them
    said = "Not drawn, as they change no score at all: p, q:a=1 before average"
    assert figure.get_supxlabel().replace("\n", " ") == said
    alone = gains.draw(gains.gains(read_all[:3], ALL))  # a picture of something all the same
    assert [*rows_of(alone.axes[0]).values()] == ["average", "p", "q:a=1"]
    assert not alone.get_supxlabel()


def test_gains_are_taken_draw_by_draw() -> None:
    with_it = read("n", "dare[ties]", RTE, "knn", {5: [0.6, 0.8]})
    without = read("m", "ties", RTE, "knn", {5: [0.5, 0.6]})
    shown = gains.gains([with_it, without], View(protocols=("knn",)))
    (((gain,),),) = (panel.gains for panel in shown.panels)
    assert gain is not None
    assert gain.value == pytest.approx(15)
    assert gain.deviation == pytest.approx(statistics.stdev([10, 20]))
    axes = gains.draw(shown).axes[0]
    (bar,) = axes.patches
    assert bar.get_width() == pytest.approx(15)  # type: ignore[attr-defined]
    assert [text.get_text() for text in axes.texts] == ["+15.0"]


@pytest.mark.parametrize(("half", "text"), [(0.06, "+10.0?"), (0.04, "+10.0")])
def test_a_gain_whose_intervals_overlap_is_not_told(half: float, text: str) -> None:
    """Without predictions, which would give it an interval of its own."""

    def ends(value: float) -> tuple[Interval, ...]:
        return (Interval(low=value - half, high=value + half, shots=None, method="wilson"),)

    made = [
        read(name, method, RTE, "current", value, intervals=ends(value))
        for name, method, value in (("n", "dare[ties]", 0.6), ("m", "ties", 0.5))
    ]
    figure = gains.draw(gains.gains(made, ALL))
    (axes,) = figure.axes
    assert [one.get_text() for one in axes.texts] == [text]
    assert (axes.patches[0].get_alpha() == 1) == (not text.endswith("?"))
    said = [one.get_text() for legend in figure.legends for one in legend.get_texts()]
    assert [one.startswith("? and pale: not significant") for one in said] == [True] * len(said)
    assert bool(said) == text.endswith("?")


def test_gains_are_under_current_eval_unless_another_is_named() -> None:
    shown = gains.gains(several(), ALL)
    assert str(shown.reading) == "current"
    assert [panel.gains for panel in shown.panels] == [((gains.Gain(pytest.approx(10)),),)] * 3
    with pytest.raises(MissingScores, match=r"shows one protocol, found current; knn, 5 shots"):
        gains.gains(several(), View(protocols=("current", "knn")))


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
    """One of them can be told from none, and the other one cannot: it is hollow."""
    folder = shared(tmp_path, ("m", "ties", 0.3), ("n", "dare[ties]", 0.1), ("o", "p[ties]", 0.29))
    shown = gains.gains(read_records([folder]), ALL)
    assert [panel.title for panel in shown.panels] == ["a", "b", "mean of 2 tasks"]
    figure = gains.draw(shown)
    for at, stage in enumerate(shown.before):
        made = harness.compare([{"dare": "n", "p": "o"}[stage], "m"], records=folder)
        assert isinstance(made, harness.Comparison)
        ends = [*(one.within for one in made.tasks), made.within]
        for axes, panel, end in zip(figure.axes, shown.panels, ends, strict=True):
            gain = panel.gains[0][at]
            assert gain is not None
            assert gain.within == pytest.approx([100 * one for one in end], abs=1e-4)
            assert gain.difference.significant == (stage == "dare")
            assert whiskers_of(axes)[at] == pytest.approx([*gain.within])
            (x, _, filled) = faces(axes)[at]
            assert (x, filled) == (pytest.approx(gain.value), stage == "dare")
            low, high = axes.get_xlim()
            assert low < gain.within[0] < gain.within[1] < high
    assert signs(figure)[-2:] == [
        "paired 95 % CI over test units and draws",
        "hollow: not significant",
    ]


def test_a_gain_of_which_nothing_is_known_is_hollow_beside_others(tmp_path: Path) -> None:
    folder = shared(tmp_path, ("m", "ties", 0.3), ("n", "dare[ties]", 0.1), ("o", "p[ties]", 0.1))
    records = [
        one.model_copy(update={"resamples": ()}) if one.model == "o" else one
        for one in read_records([folder])
    ]
    axes = gains.draw(gains.gains(records, ALL)).axes[0]
    assert [filled for _, _, filled in faces(axes)] == [True, False]
    assert len(whiskers_of(axes)) == 1


def test_a_deviation_over_draws_is_two_ticks_beside_a_whisker() -> None:
    """The spreads are two, and each has its own sign."""
    reading = scores_of(several()).readings[0]
    panel = gains.Panel("a", "gain", ((gains.Gain(10, 2, (7, 14)),),))
    figure = gains.draw(gains.Gains(("ties",), ("dare",), reading, (panel,), "± spread"))
    (bar,) = (one for one in figure.axes[0].containers if hasattr(one, "has_xerr"))
    assert [*bar[2][0].get_linewidth()] == [0]
    assert whiskers_of(figure.axes[0]) == [[7, 14]]
    assert signs(figure) == ["± spread", "paired 95 % CI over test units and draws"]
    (text,) = figure.axes[0].texts
    assert text.xy[0] == 14  # type: ignore[attr-defined]


def several_with_experts() -> list[Record]:
    """`several`, of whose merges it is known which experts they are of."""
    found = {one.task: one.digest for one in several() if one.role == "expert"}
    sources = tuple(Source(source="e", digest=digest) for digest in found.values())
    return [
        one.model_copy(update={"experts": sources}) if one.role == "merged" else one
        for one in several()
    ]


def test_the_drop_has_the_interval_of_its_rows(tmp_path: Path) -> None:
    """Of each task's own expert: drawn by plain loops over the rows."""
    shared(tmp_path, ("e", "expert", 0.05), role="expert")
    own = (Source(source="e", digest="e".ljust(32, "0")),)
    shared(tmp_path, ("m", "ties", 0.3), ("n", "average", 0.05), experts=own)
    records = read_records([tmp_path])
    shown = drop.drops(records, ALL)
    assert (shown.unit, shown.methods) == ("task", ("average", "ties"))
    for method, found in zip(shown.methods, shown.differences, strict=True):
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
    (ties,) = (one for one in shown.differences[1] if one.points == pytest.approx(
        100 * (right[1].mean() - right[0].mean()) / right[1].mean()
    ))  # fmt: skip
    assert ties.within == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=1.5)
    figure = drop.draw(shown)
    dots = faces(figure.axes[0])
    assert [filled for _, _, filled in dots] == [False, False, True, True]
    assert len({y for _, y, _ in dots}) == 4
    assert signs(figure)[:2] == [
        "paired 95 % CI over test units and draws of one task",
        "hollow: not significant",
    ]


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
    shown = drop.drops(records, ALL)
    ((none, known),) = shown.within
    assert none is None
    assert known == pytest.approx((50, 50), abs=7.1)
    assert [filled for _, _, filled in faces(drop.draw(shown).axes[0])] == [False, True]


def test_the_gap_between_protocols_has_a_whisker_below_its_row(tmp_path: Path) -> None:
    shared(tmp_path, ("m", "ties", 0.3), ("n", "average", 0.2))
    keys = tuple((5, seed) for seed in range(5))
    tuned = {"protocol": "ft-classifier", "keys": keys}
    shared(tmp_path, ("m", "ties", 0.1), ("n", "average", 0.18), **tuned)
    records = read_records([tmp_path])
    shown = protocols.gaps(records, ALL)
    assert shown.rows == ("average", "ties")
    panel = shown.panels[0]
    few, current = (
        estimate_of(one, shots)
        for asked, shots in (("ft-classifier", 5), ("current", None))
        for one in records
        if (one.model, one.task, one.protocol) == ("m", "toy/a@test", asked)
    )
    assert few is not None
    assert current is not None
    none, gap = panel.gaps
    assert none is not None
    assert gap is not None
    low, high = interval(minus(few, current))
    assert gap.within == (100 * low, 100 * high)
    assert (none.significant, gap.significant) == (False, True)
    figure = protocols.draw(shown)
    dots = [one for one in faces(figure.axes[0]) if one[1] % 1]
    assert [filled for _, _, filled in dots] == [False, True]
    start = panel.dots[1][0]
    assert start is not None
    assert dots[1][0] == pytest.approx(start.value + gap.points)
    ends = [start.value + end for end in gap.within or ()]
    assert whiskers_of(figure.axes[0])[1] == pytest.approx(ends)
    assert "paired 95 % CI over test units and draws of the gap, from current on" in signs(figure)
    harness.plot("protocols", [tmp_path], out=tmp_path / "fig")
    assert any("of the gap" in said for said in texts(tmp_path / "fig.svg"))


# Drop --------------------------------------------------------------------------------------


def of_experts(name: str, method: str, task: str, value: float, *digests: str) -> Record:
    sources = tuple(Source(source=one, digest=one) for one in digests)
    return read(name, method, task, "current", value, experts=sources)


def test_the_drop_by_hand() -> None:
    assert drop.relative_drop(0.8, 0.6) == pytest.approx(0.25)
    assert drop.relative_drop(0.5, 0.6) == pytest.approx(-0.2)
    assert drop.relative_drop(0.0, 0.6) is None
    records = [
        read("x", "expert", RTE, "current", 0.8, digest="x"),
        read("y", "expert", MRPC, "current", 0.5, digest="y"),
        read("z", "expert", MRPC, "current", -0.1, digest="z"),
        of_experts("m", "ties", RTE, 0.6, "x", "y"),
        of_experts("m", "ties", MRPC, 0.6, "x", "y"),
        of_experts("n", "ties", RTE, 0.4, "x", "z"),
        of_experts("n", "ties", MRPC, 0.6, "x", "z"),
    ]
    shown = drop.drops(records, ALL)
    # a pair is one value: (25 - 20) / 2, and 50 alone where the other expert has no positive score
    assert (shown.methods, shown.unit, shown.undefined) == (("ties",), "merge", 1)
    assert sorted(shown.drops[0]) == pytest.approx([2.5, 50])
    seen = [one.model_copy(update={"transductive": one.model == "m"}) for one in records]
    assert {*drop.drops(seen, ALL).methods} == {"ties", "ties (transductive)"}
    alone = drop.drops(records[:5], ALL)
    assert (alone.unit, sorted(alone.drops[0])) == ("task", pytest.approx([-20, 25]))


def test_the_drop_agrees_with_plain_loops_over_the_records_of_a_board() -> None:
    records = read_records([BOARDS / "ner.parquet"])
    shown = drop.drops(records, ALL)
    for method, drops in zip(shown.methods, shown.drops, strict=True):
        expected = []
        for merge in records:
            if merge.method == method and merge.protocol == "current":
                own = []
                for expert in records:
                    known = expert.role == "expert" and expert.protocol == "current"
                    if known and expert.task == merge.task:
                        top = expert.scores[0].value
                        own.append(100 * (top - merge.scores[0].value) / top)
                expected.append(sum(own) / len(own))
        assert sorted(drops) == pytest.approx(sorted(expected))
    assert [np.median(one) for one in shown.drops] == sorted(np.median(one) for one in shown.drops)


def test_boxes_are_quartiles() -> None:
    drops = (1.0, 2.0, 3.0, 10.0, 40.0)
    shown = drop.Drops(("ties",), (drops,), "merge", scores_of(several()).readings[0], 0)
    axes = drop.draw(shown).axes[0]
    (box,) = axes.patches
    assert (box.get_x(), box.get_width()) == (2, 8)  # type: ignore[attr-defined]
    assert drawn_at(axes, "o") == [(value, 0) for value in drops]
    median = next(one for one in axes.collections if one.get_linewidth() == 2)
    assert median.get_paths()[0].vertices[0, 0] == 3


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
    shown = ranks.ranks([*several(), partial], View(protocols=("current",)))
    assert (shown.methods, shown.tasks) == (("dare[ties]", "ties"), 2)
    axes = ranks.draw(shown).axes[0]
    assert [(x, rows_of(axes)[y]) for x, y in drawn_at(axes, "D")] == [
        (1, "dare[ties]"),
        (2, "ties"),
    ]
    joined = [line for line in axes.lines if line.get_marker() == "o"]
    assert [list(np.asarray(line.get_ydata())) for line in joined] == [[*rows_of(axes)]]


def test_rows_have_room_for_all_lines_of_their_names() -> None:
    """Between two names is more than between the lines of one, which are 1.2 times 9 points."""
    long = "permutation:heads=True,layers=first:3,residual=True[average]"
    assert marks.broken(long).count("\n") == 2
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
    shown = ranks.ranks(records, view)
    called = {method: model for model, method, _ in merges}
    (panel,) = shown.panels
    compared = {one.model: one for one in made.models}
    of_panel = [compared[called[one]] for one in shown.methods]
    assert panel.ranking.means == pytest.approx([one.rank for one in of_panel])
    assert [*panel.ranking.places] == [one.places for one in of_panel]
    assert [*panel.ranking.means] == sorted(panel.ranking.means)
    figure = ranks.draw(shown)
    assert "without one of the tasks" in signs(figure)
    few = "2 tasks: too few for any two to differ significantly, 7 are the fewest"
    assert figure.get_suptitle().replace("\n", " ").endswith(few)
    assert len(panel.ranking.groups) == 1


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
        assert [cloud.classes[at] for at in cloud.of] == [
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
    with marks.drawn("t", marks.Layout(1, (2, 2))) as (figure, panels):
        marks.of_rows(panels, ["ties", f"ties{sign}"])
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
    handle = mpl.lines.Line2D([], [], label="_m")
    with marks.drawn("", marks.Layout(1, (2, 2))) as (figure, _):
        marks.legend(figure, [handle])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [" _m"]


def test_series_are_told_apart_without_colour() -> None:
    for first, second in combinations((marks.CURRENT, *marks.SERIES[:6]), 2):
        assert first.colour != second.colour
        assert (first.sign, first.hollow) != (second.sign, second.hollow)
        assert first.line != second.line
    assert len({mark.hatch for mark in marks.SERIES}) == len(marks.SERIES)
    assert [*marks.marks(["knn", "x", "current"])] == ["knn", "x", "current"]
    assert marks.marks(["x", "knn"])["x"] != marks.KNOWN["knn"]


def test_panels_with_none_below_them_say_what_is_along_x() -> None:
    with marks.drawn("", marks.Layout(5, (2, 2))) as (_, panels):
        marks.units(panels, ["accuracy"] * 5)
    assert [axes.get_xlabel() for axes in panels] == ["", "", *["accuracy"] * 3]


def test_long_names_are_broken_where_their_parts_end() -> None:
    assert marks.broken("ties") == "ties"
    assert marks.broken("dare[fisher:estimator=empirical]") == "dare[fisher:\nestimator=empirical]"
    longest = marks.broken(",".join(["option=1234567890"] * 20)).split("\n")
    assert (len(longest), longest[-1]) == (3, "…")
    assert marks.broken("a\tb") == "a\\tb"


BAD: dict[str, tuple[str, list[str]]] = {
    "unknown": (
        "protcols {records}",
        ["no picture is called 'protcols'", "did you mean 'protocols'?", "known: protocols, shots"],
    ),
    "unlike any": ("nosuch {records}", ["no picture is called 'nosuch'; known: protocols, shots"]),
    "no place": ("shots {records}/nowhere", ["does not exist"]),
    "no records": ("shots", ["shots is drawn of records, found no records"]),
    "a model": ("shots {records} --model x", ["drawn of records, found a model"]),
    "no model": ("tsne", ["drawn of the features of a model, found none", "--model"]),
    "records for features": ("tsne {records} --model x", ["found records"]),
    "no such model": ("tsne --model ./nowhere", ["nowhere does not exist"]),
    "task": ("shots {records} --tasks cola", ["no record is of task 'cola'", RTE]),
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
        ["found current of 2 merges", "harness evaluate"],
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
    "no expert": ("drop {records}", ["no expert of m was read on", "--experts"]),
    "no merge": ("drop {experts}", ["found none under current"]),
    "one merge": ("ranks {alone}", ["found 1 on all of 1", "harness evaluate"]),
    "an option of a model": (
        "protocols {records} --device cpu",
        ["plot protocols has --device, which is of features of a model (tsne)"],
    ),
    "an option of records": ("tsne --model m --shots 5", ["plot tsne has --shots, which is of"]),
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
    assert kept.with_suffix(".png").is_file()


def test_a_legend_of_many_long_lines_has_room() -> None:
    """One small panel under twelve signs, one of them wider than it: nothing lies on another."""
    names = [*(f"knn:rule=vote,neighbours={count}, 3 shots" for count in range(11))]
    names += ["paired 95 % CI over test units and draws of the gap, from current on"]
    with marks.drawn("Of one task", marks.Layout(1, (2.45, 1.0))) as (figure, (axes,)):
        marks.legend(figure, [Line2D([], [], label=name) for name in names])
    figure.canvas.draw()
    (signs,) = figure.legends
    below, panel = signs.get_window_extent(), axes.get_tightbbox()
    assert panel is not None
    assert below.y1 <= panel.y0
    assert panel.height > 0.8 * figure.dpi
    assert below.x0 >= 0
    assert below.y0 >= 0
    assert below.x1 <= figure.bbox.x1
