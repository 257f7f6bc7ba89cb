"""`harness plot sweep`: scores over the values of one option of merges alike in all else."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harness
from harness import Choice, Recipe, Run, View
from harness.cli import main
from harness.errors import BadOption, MissingScores
from harness.evaluation.records import Record, Source
from harness.evaluation.resamples import loss_of
from harness.reporting.chosen import read_both
from harness.reporting.lines import Line, lines_of
from harness.reporting.plots import plot
from harness.reporting.plots.sweep import Sweep, draw, in_order, is_geometric, sweep, value_of
from tests.conftest import model
from tests.mistakes import mistake
from tests.resampled import read_records, resampled
from tests.toys import THREE, TOY, VALUE, known

_known = known(TOY, THREE, VALUE, scope="module")


class Room:
    """Experts of three tasks, and the records of merges that were asked for, each made once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        base = model(root / "base")
        self.experts = {
            task.name: model(root / name, list(task.labels), seed=seed, near=base)
            for seed, (name, task) in enumerate((("a", TOY), ("b", THREE), ("c", VALUE)))
        }

    def folder(self, *methods: str, experts: int = 3, seed: int = 0) -> Path:
        """Where the records of a merge are, and of its references."""
        *before, merger = map(harness.parse_choice, methods)
        out = self.root / f"{'+'.join(methods).replace(':', '-')}-{experts}-{seed}"
        if not out.exists():
            some = dict([*self.experts.items()][:experts])
            recipe = Recipe(
                experts=tuple(map(str, some.values())),
                base=str(self.root / "base"),
                merger=merger,
                premerge=tuple(before),
                heads="keep",
                tasks=tuple(some),
                seed=seed,
                drift=False,
            )
            with warnings.catch_warnings():  # one alone is said to be merged with nothing
                warnings.simplefilter("ignore" if experts == 1 else "error")
                harness.merge(recipe, out=out / "merged" / out.name)
            chosen = (Choice("current"), Choice("knn"))
            harness.evaluate(
                Run(
                    model=str(out / "merged" / out.name),
                    protocols=chosen,
                    shots=(2,),
                    draws=3,
                    output=str(out / "records"),
                    device="cpu",
                )
            )
        return out / "records"


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Room:
    return Room(tmp_path_factory.mktemp("sweep"))


def swept(places: Sequence[Path], **view: Any) -> Sweep:
    asked = View(**view)
    return sweep(read_both(places, asked), asked)


def merged(places: Sequence[Path], protocol: str) -> dict[tuple[str, str], Record]:
    found = [one for one in read_records(places) if one.role == "merged"]
    return {(one.task, one.method): one for one in found if one.protocol == protocol}


def test_points_are_the_scores_and_intervals_of_the_records(room: Room) -> None:
    places = [room.folder(f"ties:density={d}") for d in (0.4, 0.1, 0.2)]
    shown = swept(places, option="merger.density")
    assert shown.values == (0.1, 0.2, 0.4)
    *tasks, mean = shown.curves
    records = merged(places, "current")
    for task in tasks:
        for point in shown.curves[task]:
            method = "ties" if point.x == 0.2 else f"ties:density={point.x}"
            record = records[task, method]
            assert point.y == pytest.approx(100 * record.scores[0].value)
            (kept,) = record.intervals
            if "value" not in task:  # its metric goes from -1, that of the others from 0
                assert point.within == pytest.approx((100 * kept.low, 100 * kept.high))
    expected = np.mean([[point.y for point in shown.curves[task]] for task in tasks], axis=0)
    assert mean == "mean of 3 tasks"
    np.testing.assert_allclose([point.y for point in shown.curves[mean]], expected)
    for point in shown.curves[mean]:
        assert point.within[0] < point.y < point.within[1]
    assert swept(places, option="ties.density").curves == shown.curves


def test_the_loss_is_that_of_the_records_and_has_no_mean_over_kinds(room: Room) -> None:
    places = [room.folder(f"ties:density={d}") for d in (0.1, 0.2)]
    shown = swept(places, option="merger.density", loss=True)
    assert [*shown.curves] == [f"toy/{name}@test" for name in ("pairs", "three", "value")]
    for record in merged(places, "current").values():
        x = value_of(record, "merger.density")
        (point,) = (one for one in shown.curves[record.task] if one.x == x)
        kept = loss_of(record)
        assert kept is not None
        assert point.y == pytest.approx(kept.point)
        assert sum(point.within) / 2 == pytest.approx(kept.point, abs=1e-5)
    alike = swept(places, option="merger.density", loss=True, tasks=("pairs", "three"))
    assert "mean of 2 tasks" in alike.curves


def of_sets(room: Room, *seeds: int) -> list[tuple[Line, Record]]:
    """What was read of merges by two densities, once for experts of each of some seeds."""
    read = []
    known = read_both([room.folder(f"ties:density={d}") for d in (0.1, 0.2)])
    for line, one in known:
        for at, seed in enumerate(seeds if line.role == "merged" else ()):
            experts = tuple(
                e.model_copy(update={"digest": f"{e.digest} {at}", "task": task, "seed": seed})
                for e, task in zip(one.experts, room.experts, strict=True)
            )
            given = {"experts": experts, "digest": f"{one.digest} {at}"}
            scores = tuple(s.model_copy(update={"value": s.value - at / 10}) for s in one.scores)
            record = resampled(one.model_copy(update=given | {"scores": scores}))
            read += [(made, record) for made in lines_of([(line.path, record)])]
    return read


def test_sets_of_experts_are_replicates_of_a_value(room: Room) -> None:
    """Their mean, with an interval that is over three of them, too."""
    view = View(option="ties.density", tasks=("pairs",))
    one, two, three = (sweep(of_sets(room, *range(n)), view) for n in (1, 2, 3))
    task = "toy/pairs@test"
    for point, both, all_three in zip(
        *(one.curves[task] for one in (one, two, three)), strict=True
    ):
        assert both.y == pytest.approx(point.y - 5)
        assert all_three.y == pytest.approx(point.y - 10)
        low, high = both.within
        assert all_three.within[1] - all_three.within[0] > high - low
    assert three.title == f"{one.title}, 3 sets of experts"
    with mistake(MissingScores, "differ in ties.density alone, found experts on", task):
        sweep(of_sets(room, 0, 0), view)


def test_another_protocol_is_named(room: Room) -> None:
    places = [room.folder(f"ties:density={d}") for d in (0.1, 0.2)]
    shown = swept(places, option="merger.density", protocols=("knn",))
    records = merged(places, "knn")
    for task in ("toy/pairs@test", "toy/three@test"):
        values = [100 * np.mean(records[task, m].values(2)) for m in ("ties:density=0.1", "ties")]
        np.testing.assert_allclose([point.y for point in shown.curves[task]], values)


def test_experts_are_added_one_by_one(room: Room) -> None:
    places = [room.folder("average", experts=count) for count in (1, 2, 3)]
    shown = swept(places, option="experts")
    assert shown.values == (1.0, 2.0, 3.0)
    assert {name: [p.x for p in points] for name, points in shown.curves.items()} == {
        "toy/pairs@test": [1, 2, 3],
        "toy/three@test": [2, 3],
        "toy/value@test": [3],
        "mean of 3 tasks": [3],
    }
    assert shown.title == "Score against number of experts, average"


def test_each_task_may_have_merges_of_its_own_experts(room: Room) -> None:
    places = [room.folder(f"ties:density={d}") for d in (0.1, 0.2)]
    read = read_both(places, View(tasks=("pairs", "three")))
    own = [
        (line, one.model_copy(update={"experts": one.experts[:1]} if "pairs" in one.task else {}))
        for line, one in read
    ]
    shown = sweep(own, View(option="ties.density"))
    assert [*shown.curves] == ["toy/pairs@test", "toy/three@test", "mean of 2 tasks"]
    with mistake(MissingScores, "found experts on toy/pairs@test"):
        sweep([*own, *read], View(option="ties.density"))


def test_tasks_that_share_no_value_have_no_mean(room: Room) -> None:
    read = [
        one
        for density, task in ((0.1, "pairs"), (0.2, "three"))
        for one in read_both([room.folder(f"ties:density={density}")], View(tasks=(task,)))
    ]
    shown = sweep(read, View(option="ties.density"))
    assert {name: [point.x for point in points] for name, points in shown.curves.items()} == {
        "toy/pairs@test": [0.1],
        "toy/three@test": [0.2],
    }
    assert draw(shown).axes


def test_which_layers_are_aligned_is_in_the_order_of_layers(room: Room) -> None:
    asked = ("all", "first:1", "last:1")
    places = [room.folder(f"permutation:layers={one}", "average") for one in asked]
    shown = swept(places, option="permutation.layers", loss=True)
    assert shown.values == asked
    assert shown.title == "Loss against permutation.layers, permutation[average]"
    (axes,) = draw(shown).axes
    assert [one.get_text() for one in axes.get_xticklabels()] == [*asked]


def test_values_are_in_the_order_of_their_numbers() -> None:
    given = {"first:10", "all", 2.0, "first:9", "none", 0.5, "3", "12"}
    assert in_order(given) == (0.5, 2.0, "3", "12", "all", "first:9", "first:10", "none")


@pytest.mark.parametrize(
    ("values", "geometric"),
    [
        ((0.001, 0.01, 0.1, 1.0), True),
        ((128.0, 512.0, 1024.0, 4096.0), True),
        ((0.1, 0.2, 0.3, 0.4), False),
        ((0.0, 0.1, 1.0, 10.0), False),
        ((1.0, 100.0), False),
        (("all", "first:1", "first:2"), False),
        ((1.0, 10.0, 100.0, "none"), False),
    ],
)
def test_a_scale_is_logarithmic_where_values_ask_for_it(
    values: tuple[Any, ...], geometric: bool
) -> None:
    assert is_geometric(values) is geometric


def test_every_point_is_drawn_where_it_is(room: Room) -> None:
    shown = swept(
        [room.folder(f"ties:density={d}") for d in (0.01, 0.1, 1.0)], option="ties.density"
    )
    (axes,) = draw(shown).axes
    assert axes.get_xscale() == "log"
    lines = {str(line.get_label()): line for line in axes.get_lines()}
    for name, points in shown.curves.items():
        assert np.asarray(lines[name].get_xdata()).tolist() == [point.x for point in points]
        assert np.asarray(lines[name].get_ydata()).tolist() == [point.y for point in points]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("ties.density", "score × 100 (current)")


def test_the_command_draws_it(room: Room, tmp_path: Path) -> None:
    places = [str(room.folder(f"ties:density={d}")) for d in (0.1, 0.2)]
    asked = ["plot", "sweep", *places, "--option", "merger.density", "--out", str(tmp_path / "fig")]
    assert main(asked) == 0
    assert "mean of 3 tasks" in (tmp_path / "fig.svg").read_text()


def test_what_else_differs_is_named(room: Room) -> None:
    ties = [room.folder(f"ties:density={d}") for d in (0.1, 0.2)]
    with mistake(MissingScores, "differ in merger.density alone", "ties", "--models"):
        swept([*ties, room.folder("breadcrumbs:density=0.3")], option="merger.density")
    with mistake(MissingScores, "found premerge", "none and dare; choose with --models"):
        swept([*ties, room.folder("dare:drop_rate=0.5", "ties:density=0.4")], option="ties.density")
    with mistake(MissingScores, "alone, found ties.scale 0.5 and 1.0"):
        swept([*ties, room.folder("ties:density=0.4,scale=0.5")], option="ties.density")
    with mistake(MissingScores, "found experts", "--models"):
        swept([*ties, room.folder("ties:density=0.4", experts=2)], option="ties.density")
    with mistake(MissingScores, "found seed", "0", "1"):
        swept([*ties, room.folder("ties:density=0.4", seed=1)], option="ties.density")
    read = read_both(ties)
    other = (("test", "9 rows"),)
    fewer = [
        (replace(one, conditions=other) if made.model.endswith("0.1-3-0") else one, made)
        for one, made in read
    ]
    with mistake(MissingScores, "alone, found test on toy/pairs@test", "9 rows", "--models"):
        sweep(fewer, View(option="ties.density"))
    one = room.folder("ties:density=0.4,scale=0.5").parent.name
    shown = swept([*ties, room.folder("ties:density=0.4,scale=0.5")], option="ties.density",
                  models=(*(place.parent.name for place in ties),))  # fmt: skip
    assert shown.values == (0.1, 0.2)
    assert one not in shown.title


def test_other_experts_and_bases_are_named(room: Room) -> None:
    places = [room.folder(f"ties:density={d}") for d in (0.1, 0.2)]
    read = read_both(places, View(tasks=("pairs",)))
    own = [(line, one) for line, one in read if one.role == "merged"]
    some = [f"{Path(one.source).name} ({one.digest[:8]})" for one in own[0][1].experts]
    assert len(some) == 3
    fewer = [(a, one.model_copy(update={"experts": one.experts[:1]})) for a, one in own]
    task = "found experts on toy/pairs@test"
    with mistake(MissingScores, task) as found:
        sweep([*own, *fewer], View(option="ties.density"))
    assert all(one in str(found.value) for one in (*some, f"[{some[0]}]", "; choose with --models"))
    four = [own[0][1].experts[0].model_copy(update={"digest": f"{sign}" * 32}) for sign in "fg"]
    more = [
        (a, one.model_copy(update={"experts": (*one.experts, last)}))
        for a, one in own
        for last in four
    ]
    name = some[0].partition(" ")[0]
    with mistake(MissingScores, task, f"[{name} (ffffffff)", f"1 more] and [{name} (gggggggg)"):
        sweep(more, View(option="ties.density"))
    other = Source(source="hub/other", digest="0" * 32)
    given: dict[str, Any] = {"base": other.source, "base_digest": other.digest}
    moved = [(replace(a, **given), one.model_copy(update={"base": other})) for a, one in own]
    source = own[0][0].base
    with mistake(MissingScores, "found base on toy/pairs@test", "and", "--base hub/other") as found:
        sweep([*moved, *own], View(option="ties.density"))
    assert "other (00000000)" in str(found.value)
    assert str(found.value).endswith(f"--base hub/other or --base {source}")


def test_mistakes_are_a_line(room: Room, tmp_path: Path) -> None:
    ties = [room.folder(f"ties:density={d}") for d in (0.1, 0.2)]
    with mistake(BadOption, "found none", "--option merger.density"):
        swept(ties)
    with mistake(MissingScores, "values of merger.densty, found no merge whose record has it"):
        swept(ties, option="merger.densty")
    with mistake(MissingScores, "two or more values of ties.density, found 0.1"):
        swept(ties[:1], option="ties.density")
    with mistake(MissingScores, "shows one protocol", "current", "knn", "--protocols"):
        swept(ties, option="ties.density", protocols=("knn", "current"))
    with mistake(MissingScores, "under knn keeps no loss"):
        swept(ties, option="ties.density", protocols=("knn",), loss=True)
    both = room.folder("dare:drop_rate=0.5", "della:drop_rate=0.5", "average")
    with mistake(
        BadOption, "premerge.drop_rate is dare.drop_rate and della.drop_rate", "one of these"
    ):
        swept([both], option="premerge.drop_rate")
    with mistake(BadOption, "plot ranks has --option, which is for sweep only"):
        plot.plot("ranks", ties, out=tmp_path / "fig", view=View(option="ties.density"))
    without = [(line, one.model_copy(update={"recipe": None})) for line, one in read_both(ties)]
    with mistake(MissingScores, "found no merge whose record has it", "merge.json"):
        sweep(without, View(option="ties.density"))
    other = room.folder("average", experts=1)
    with mistake(MissingScores, "the larger lacks an expert of the smaller"):
        swept([*_moved(other, tmp_path), room.folder("average", experts=2)], option="experts")


def _moved(place: Path, out: Path) -> list[Path]:
    """The same records of an expert that has another hash."""
    from harness.evaluation.records import write_record

    for at, record in enumerate(read_records([place])):
        experts = tuple(one.model_copy(update={"digest": "0"}) for one in record.experts)
        made = record.model_copy(update={"experts": experts})
        write_record(out / "moved" / f"{at}.json", made)
    return [out / "moved"]
