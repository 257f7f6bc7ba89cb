"""Properties of methods: those we ship have theirs, and every test of one catches a fault."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

import harness
from harness import Choice, StateDict, parse_choice, weights
from harness.checking import toys
from harness.checking.battery import Battery, Finding, battery, ok
from harness.checking.properties import PROPERTIES
from harness.checking.properties.calls import LiveTensors
from harness.checking.properties.compare import alike
from harness.checking.properties.property import Broken, StageName
from harness.entries import BreaksWith, Merger, Premerge
from harness.errors import BadOption, HarnessError, UnknownName
from tests import faults
from tests.mistakes import mistake, names

MERGER_PROPERTIES, PREMERGE_PROPERTIES = (
    [checked.name for checked in PROPERTIES.values() if stage in checked.stages]
    for stage in ("merger", "premerge")
)


def lines(findings: Sequence[Finding]) -> str:
    return "\n".join(map(str, findings))


def named(function: Any) -> str:
    return f"tests.faults:{function.__name__}"


def one(found: Battery, checked: str) -> Finding:
    return found.find(PROPERTIES[checked])


def merger(
    function: faults.Merge, breaks: tuple[str, ...] = (), **options: harness.types.Scalar
) -> Battery:
    name = named(function)
    return battery("merger", Choice(name, options), Merger(name, function, breaks=breaks))


def premerge(
    function: faults.Move, breaks: tuple[str, ...] = (), *, exact: bool = False
) -> Battery:
    name = named(function)
    return battery("premerge", Choice(name), Premerge(name, function, exact=exact, breaks=breaks))


# What we ship ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", harness.MERGERS)
def test_every_merger_of_ours_keeps_the_properties(name: str) -> None:
    findings = battery("merger", Choice(name)).findings()
    assert ok(findings), lines(findings)


@pytest.mark.parametrize("name", harness.PREMERGE)
def test_every_pre_merging_method_of_ours_keeps_the_properties(name: str) -> None:
    findings = battery("premerge", Choice(name)).findings()
    assert ok(findings), lines(findings)


#: options of ours, and the properties that break with them
MERGER_OPTIONS = {
    "adamerging:by=task,initial=1.0": {"copies"},
    "adamerging:density=0.5": {"copies"},
    "actmat:matrices=all": set(),
    "average:weights=0.5:0.375:0.125": {"order"},
    "breadcrumbs:density=1.0,gamma=0.0,scale=0.333333333": set(),
    "breadcrumbs:density=0.5,per=row": {"copies"},
    "consensus:threshold=0.5,agree=1,scale=1.0": {"copies"},
    "consensus:threshold=0.4,agree=3,scale=0.333333333": set(),
    "iso:variant=common_and_task": {"copies"},
    "iso:combine=mean,matrices=linear,others=zero": {"copies"},
    "linear:weights=1:2:5": {"order"},
    "linear:weights=1:1:1": set(),
    "linear:weights=1:2:5,normalize=false": {"order", "copies", "zero"},
    "regmean:off_diagonal=0": set(),
    "regmean:weights=0.5:0.375:0.125": {"order"},
    "regmean_plus_plus:off_diagonal=0": set(),
    "regmean_plus_plus:weights=0.5:0.375:0.125": {"order"},
    "slerp:t=0.25": {"order"},
    "soup:select=uniform": set(),
    "task_arithmetic:scale=0.333333333": set(),
    "task_arithmetic:weights=0.5:-1.0:0.25": {"order", "copies"},
    "tsv:keep=1.0": set(),
    "tsv:at_least=1,matrices=linear": {"copies"},
    "ties:density=1.0": set(),
    "ties:density=0.3,convention=original": {"copies"},
    "ties:density=0.4,trim=tensor": {"copies"},
    "ties:density=1.0,trim=tensor,combine=max": set(),
    "ties:density=1.0,combine=sum": {"copies"},
    "ties:density=1.0,combine=sum,scale=0.333333333": set(),
    "wudi:matrices=all,others=mean": set(),
    "wudi:solver=adam,steps=3": {"copies"},
}
PREMERGE_OPTIONS = {
    "activation_matching:pearson=true": set(),
    "activation_matching:anchor=2": {"order"},
    "dare:drop_rate=0.9,seed=7,rescale=false": {"order", "copies", "tied", "exact", "family"},
    "dare:drop_rate=0.0": set(),
    "dare:drop_rate=1.0": {"copies", "exact", "family"},
    "dare:on=weights": {"order", "copies", "zero", "tied", "exact", "family"},
    "dare:strategy=magnitude": {"copies", "exact", "family"},
    "dare:strategy=magnitude,on=weights": {"copies", "zero", "exact", "family"},
    "permutation:heads=true,cycle_consistent=true": set(),
    "permutation:heads=true,residual=true": set(),
    "rotation:anchor=1": {"order"},
    "rotation:layers=last:1,parts=attention,proper=true,scaling=true": set(),
    "procrustes:reference=base": {"copies", "exact", "family"},
    "procrustes:reference=random_per_matrix,matrix_set=all_2d": {
        "order",
        "tied",
        "exact",
        "family",
    },
    "procrustes:variant=fixed_reference,orientation=out": {"order", "exact", "family"},
    "procrustes:orientation=out,rotate_bias=true,layers=last:1": {"order", "exact", "family"},
}


@pytest.mark.parametrize("text", MERGER_OPTIONS)
def test_options_of_mergers_of_ours(text: str) -> None:
    findings = battery("merger", parse_choice(text)).findings()
    broken = {f.name for f in findings if f.verdict != "holds"}
    assert (broken, ok(findings)) == (MERGER_OPTIONS[text], True), lines(findings)


@pytest.mark.parametrize("text", PREMERGE_OPTIONS)
def test_options_of_pre_merging_methods_of_ours(text: str) -> None:
    findings = battery("premerge", parse_choice(text)).findings()
    broken = {f.name for f in findings if f.verdict != "holds"}
    assert (broken, ok(findings)) == (PREMERGE_OPTIONS[text], True), lines(findings)


#: of options with further properties that break with them: one of these
BROKEN_BY: list[tuple[StageName, str, str]] = [
    ("merger", "actmat:scale=0.3", "copies"),
    ("merger", "average:weights=1:1:1", "zero"),
    ("merger", "fisher:weights=1:2:5", "order"),
    ("merger", "regmean:weights=1:1:1", "copies"),
    ("merger", "ties:density=0.1:0.5:0.9", "order"),
    ("merger", "ties:density=1.0,weights=1:2:5", "order"),
    ("premerge", "dare:on=weights", "zero"),
    ("premerge", "rotation:anchor=base", "copies"),
]


@pytest.mark.parametrize(("stage", "text", "checked"), BROKEN_BY, ids=lambda value: value)
def test_an_option_of_ours_breaks_what_is_said_of_it(
    stage: StageName, text: str, checked: str
) -> None:
    finding = one(battery(stage, parse_choice(text)), checked)
    assert finding.verdict == "breaks by design", finding


def test_a_layer_of_a_model_without_layers_is_none() -> None:
    """The toys of the property of size have no layers, and so nothing to match in them."""
    for name in ("activation_matching", "permutation"):
        finding = one(battery("premerge", parse_choice(f"{name}:layers=1")), "large")
        assert finding.verdict == "holds", finding


# Planted faults: a property that catches nothing promises nothing -------------------------------


@pytest.mark.fault
@pytest.mark.parametrize("fault", faults.WRONG_MERGERS, ids=lambda fault: fault.__name__)
def test_a_wrong_merger_is_caught(fault: faults.Merge) -> None:
    finding = one(merger(fault), faults.WRONG_MERGERS[fault])
    assert finding.verdict == "breaks", finding


@pytest.mark.fault
@pytest.mark.parametrize("fault", faults.WRONG_PREMERGE, ids=lambda fault: fault.__name__)
def test_a_wrong_pre_merging_method_is_caught(fault: faults.Move) -> None:
    checked = faults.WRONG_PREMERGE[fault]
    finding = one(premerge(fault, exact=checked in ("exact", "family")), checked)
    assert finding.verdict == "breaks", finding


SIZES = [1000, 1 << 12, 1 << 17, 10**6]
PICKED = [faults.first_piece, faults.whole_pieces]


@pytest.mark.fault
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("which", PICKED, ids=lambda which: which.__name__)
def test_a_fault_at_the_border_of_a_piece_of_any_size_is_caught(size: int, which: Any) -> None:
    """Whatever constant of its own a method works by: of a merger and of one that draws."""

    def mean(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.stack(tensors).mean(0)

    def merged(experts: Sequence[StateDict], base: StateDict) -> StateDict:
        def fn(origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
            return faults.in_own_pieces(mean, origin, tuned, which, size)

        return weights.each(fn, base, *experts)

    def moved(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
        def fn(name: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return faults.dropped_at_random(name, a - b, which, size) + b

        return [weights.each_named(fn, expert, base) for expert in experts]

    found = battery("merger", Choice("merged"), Merger("merged", merged))
    assert one(found, "large").verdict == "breaks"
    found = battery("premerge", Choice("moved"), Premerge("moved", moved))
    assert one(found, "large").verdict == "breaks"


def test_what_draws_for_all_of_a_tensor_keeps_the_property_of_size() -> None:
    for drop_rate in (0.01, 0.9):
        for name in ("dare", "della"):
            window = ",epsilon=0.0" if name == "della" else ""
            found = battery("premerge", parse_choice(f"{name}:drop_rate={drop_rate}{window}"))
            assert one(found, "large").verdict == "holds", one(found, "large")
    found = battery("premerge", parse_choice("della:drop_rate=0.5,epsilon=1.0"))
    assert one(found, "large").verdict == "holds"


def test_harness_check_refuses_a_wrong_merger() -> None:
    findings = battery("merger", Choice(named(faults.first_expert))).findings()
    assert [finding.name for finding in findings] == MERGER_PROPERTIES
    assert [finding.name for finding in findings if not finding.ok] == ["order", "errors"]
    assert not ok(findings)


def test_harness_check_refuses_a_wrong_pre_merging_method() -> None:
    findings = battery("premerge", Choice(named(faults.masks_by_name))).findings()
    assert [finding.name for finding in findings] == PREMERGE_PROPERTIES
    assert [finding.name for finding in findings if not finding.ok] == ["copies", "tied"]
    assert not ok(findings)


def test_every_property_catches_something() -> None:
    assert {*faults.WRONG_MERGERS.values()} == {*MERGER_PROPERTIES}
    assert {*faults.WRONG_PREMERGE.values()} == {*PREMERGE_PROPERTIES}


@pytest.mark.parametrize(
    "function",
    [faults.right, faults.right_with_gram, faults.right_with_fisher, faults.right_with_score],
    ids=lambda function: function.__name__,
)
def test_what_is_right_keeps_every_property(function: faults.Merge) -> None:
    findings = battery("merger", Choice(named(function))).findings()
    assert [f.verdict for f in findings] == ["holds"] * len(MERGER_PROPERTIES), lines(findings)


def test_a_pre_merging_method_that_does_nothing_keeps_every_property() -> None:
    findings = battery("premerge", Choice(named(faults.untouched))).findings()
    assert [f.verdict for f in findings] == ["holds"] * len(PREMERGE_PROPERTIES), lines(findings)


@pytest.mark.parametrize(
    ("fault", "checked", "reason"),
    [
        (faults.lost_tensor, "shapes", "'bert.embeddings.LayerNorm.bias' is missing"),
        (faults.flattened, "shapes", "'bert.embeddings.word_embeddings.weight' is float32 (88,)"),
        (faults.in_place_sum, "inputs", "after merging, expert 1: 'bert.embeddings.word_emb"),
        (faults.alias, "inputs", "after writing to the output, base: 'bert.embeddings.LayerN"),
        (faults.running_mean, "order", "with experts in order 3, 2, 1, 'bert.embeddings"),
        (faults.no_length, "zero", "weight' at [0, 0] is nan, expected "),
        (faults.nothing_but_nan, "order", "' at [0, 0] is nan, expected a number"),
        (faults.by_position, "bytes", "with the tensors of the inputs in another order, 'bert"),
        (faults.global_noise, "bytes", "run again, 'bert"),
        (faults.seeded_once, "bytes", "asked for its tensors backwards, 'bert"),
        (faults.norm_of_pieces, "bytes", "worked on in pieces of 17 entries, 'bert"),
        (faults.eager, "memory", "138 tensors are read when the function is called, expected"),
        (faults.kept_outputs, "memory", "_embeddings.weight' is asked for again and nothing is re"),
        (faults.whole_vectors, "memory", "alive at 'bert.embeddings.word_embeddings.weight', exp"),
        (faults.half_sums, "half", "from float16, 'bert.embeddings.word_embeddings.weight' at ["),
        (faults.kept_embeddings, "tied", "untied from 'bert.embeddings.word_embeddings.weight': "),
        (faults.own_positions, "buffers", "'bert.embeddings.position_ids'"),
        (
            faults.unnamed_error,
            "errors",
            "NaN: the error does not name 'bert.encoder.layer.0.output.dense.weight",
        ),
        (
            faults.skipped_shapes,
            "errors",
            "called with another shape of 'bert.encoder.layer.0.output.dense.wei",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_reason_names_the_tensor_in_one_line(
    fault: faults.Merge, checked: str, reason: str
) -> None:
    finding = one(merger(fault), checked)
    assert reason in finding.detail
    assert "\n" not in str(finding)
    assert str(finding).startswith(f"{checked:<7}  breaks ")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda experts: None, "returned a NoneType, expected a mapping from names to tensors"),
        (lambda experts: [experts[0]], "returned a list, expected a mapping"),
        (lambda experts: dict.fromkeys(experts[0], 0.5), "is a float, expected a torch.Tensor"),
        (lambda experts: {n: t.numpy() for n, t in experts[0].items()}, "' is a ndarray, expected"),
    ],
)
def test_what_is_no_model_is_named(made: Any, reason: str) -> None:
    found = battery("merger", Choice("m"), Merger("m", lambda experts, base: made(experts)))
    assert reason in one(found, "shapes").detail


@pytest.mark.parametrize("returned", [None, {}, ["layer"]])
def test_what_is_no_list_of_experts_is_named(returned: Any) -> None:
    found = battery("premerge", Choice("m"), Premerge("m", lambda experts, base: returned))
    kind = type(returned).__name__
    assert f"returned a {kind}, expected a list of experts" in one(found, "shapes").detail


def test_an_infinity_in_both_is_no_difference() -> None:
    have, want = (torch.tensor([torch.inf, last]) for last in (1.0, 2.0))
    with mistake(Broken, "'x' at [1] is 1, expected 2"):
        alike({"x": have}, {"x": want}, tolerance=1e-6)


@pytest.mark.fault
def test_an_error_that_is_caught_and_forgotten_is_found_at_nan_too() -> None:
    def swallowing(experts: Sequence[StateDict], base: StateDict) -> StateDict:
        def fn(name: str, *tensors: torch.Tensor) -> torch.Tensor:
            return torch.stack(tensors).mean(0)

        def guarded(state: StateDict) -> StateDict:
            def read(name: str) -> torch.Tensor:
                try:
                    return state[name]
                except harness.HarnessError:
                    return base[name]

            return weights.Lazy(weights.specs(base), read)

        return weights.each_named(fn, *map(guarded, experts))

    found = battery("merger", Choice("average"), Merger("average", swallowing))
    names(one(found, "errors").detail, "NaN bert.encoder.layer.0.output.dense.weight")


@pytest.mark.fault
def test_a_pipeline_that_merges_what_is_damaged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def merge(recipe: harness.Recipe, *, out: Path) -> None:
        shutil.copytree(recipe.experts[0], out)

    monkeypatch.setattr("harness.checking.properties.folders.merge", merge)
    finding = one(merger(faults.right), "errors")
    assert finding.verdict == "breaks"
    names(finding.detail, "missing bert.encoder.layer.0.output.dense.weight")


@pytest.mark.fault
def test_an_error_that_leaves_something_behind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def merge(recipe: harness.Recipe, *, out: Path) -> None:
        shutil.copytree(recipe.experts[0], out)
        raise harness.HarnessError("'bert.encoder.layer.0.output.dense.weight' is missing")

    monkeypatch.setattr("harness.checking.properties.folders.merge", merge)
    names(one(merger(faults.right), "errors").detail, "left out")


# Properties that a method says it breaks ---------------------------------------------------------


def scaled(experts: Sequence[StateDict], base: StateDict, *, scale: float = 1.0) -> StateDict:
    """Task arithmetic; at 1/3, with three experts, it is the mean."""
    vectors = weights.task_vectors(experts, base)
    return weights.each(lambda b, *v: b + scale * sum(v), base, *vectors)


def said(breaks: tuple[str, ...], **options: harness.types.Scalar) -> Finding:
    found = battery("merger", Choice("scaled", options), Merger("scaled", scaled, breaks=breaks))
    return one(found, "copies")


def test_a_property_that_is_said_to_break_must_break() -> None:
    assert (said(("copies",)).verdict, said(("copies",)).ok) == ("breaks by design", True)
    assert (said(()).verdict, said(()).ok) == ("breaks", False)
    finding = one(merger(faults.right, ("copies",)), "copies")
    assert (finding.verdict, finding.ok) == ("holds, declared to break", False)


def test_with_other_options_a_property_may_hold_that_is_said_to_break() -> None:
    finding = said(("copies",), scale=1 / 3)
    assert (finding.verdict, finding.ok) == ("holds", True)
    assert finding.detail.endswith("; declared to break with the default options")
    assert said(("copies",), scale=0.5).verdict == "breaks by design"


def test_with_other_options_a_property_may_break_that_is_said_to_hold_and_they_are_printed() -> (
    None
):
    finding = said((), scale=0.5)
    assert not finding.ok
    assert finding.detail.endswith(" (scaled:scale=0.5)")
    finding = one(battery("merger", parse_choice("average:weights=0.5:0.3:0.2")), "order")
    assert finding.ok, "of which it is said"
    assert finding.detail.endswith(" (average:weights=0.5:0.3:0.2)")


def test_options_that_are_the_defaults_are_the_defaults() -> None:
    assert said(("copies",), scale=1.0).verdict == "breaks by design"
    found = battery("merger", Choice("right"), Merger("right", faults.right, breaks=("copies",)))
    assert found.explicit is None


def said_with(breaks_with: BreaksWith, **options: harness.types.Scalar) -> Finding:
    """Of task arithmetic that is said to keep the property with its default, the mean."""

    def third(experts: Sequence[StateDict], base: StateDict, *, scale: float = 1 / 3) -> StateDict:
        return scaled(experts, base, scale=scale)

    found = battery(
        "merger", Choice("third", options), Merger("third", third, breaks_with=breaks_with)
    )
    return one(found, "copies")


def test_a_property_may_break_with_an_option_of_which_it_is_said() -> None:
    told = {"scale": ("order", "copies")}
    assert (said_with(told, scale=0.5).verdict, said_with(told).verdict) == (
        "breaks by design",
        "holds",
    )
    assert said_with({}, scale=0.5).verdict == "breaks"
    assert said_with({"scale": ("order",)}, scale=0.5).verdict == "breaks"
    finding = said_with(told, scale=0.33333333)
    assert (finding.verdict, finding.detail.endswith("; not claimed")) == ("holds", True)


def test_a_property_may_break_with_one_value_of_an_option() -> None:
    told = {"scale=0.5": ("copies",)}
    assert said_with(told, scale=0.5).verdict == "breaks by design"
    assert said_with(told, scale=0.25).verdict == "breaks"


def test_what_is_said_of_an_option_is_said_of_one_it_has() -> None:
    with mistake(UnknownName, "scal scale"):
        said_with({"scal": ("copies",)})
    with mistake(BadOption, "scale third"):
        said_with({"scale=much": ("copies",)})


@pytest.mark.parametrize("name", ["copy", "idempotent", "exact"])
def test_only_a_property_can_be_said_to_break(name: str) -> None:
    for said in ({"breaks": (name,)}, {"breaks_with": {"scale": (name,)}}):
        with mistake(UnknownName, name):
            battery("merger", Choice("scaled"), Merger("scaled", scaled, **said))  # type: ignore[arg-type]  # one of two


def test_what_is_said_to_read_no_base_is_given_none() -> None:
    """So that a base is not asked for in vain, and a method that reads one is found out."""

    def near(
        experts: Sequence[StateDict], base: StateDict, *, to: str = "first"
    ) -> list[StateDict]:
        origin = base if to == "base" else experts[0]
        return [weights.each_named(lambda name, w: w + 0 * origin[name], e) for e in experts]

    for reads_base, to, verdict in (
        (False, "first", "holds"),
        (("to=base",), "base", "holds"),
        (False, "base", "breaks"),
        (("to=first",), "base", "breaks"),
    ):
        found = battery(
            "premerge", Choice("near", {"to": to}), Premerge("near", near, reads_base=reads_base)
        )
        assert one(found, "shapes").verdict == verdict


def test_a_crash_is_no_way_to_break_a_property_rightly() -> None:
    def function(experts: Sequence[StateDict], base: StateDict) -> StateDict:
        raise ZeroDivisionError("of nothing")

    entry = Merger("average", function, breaks=("copies",))
    finding = one(battery("merger", Choice("average"), entry), "copies")
    assert finding.verdict == "breaks"
    assert finding.detail.startswith(f"ZeroDivisionError: of nothing ({__file__}:")


# Exactness ---------------------------------------------------------------------------------


def test_exact_is_a_claim_that_is_proved() -> None:
    finding = one(premerge(faults.turned_units, exact=True), "exact")
    assert finding.verdict == "holds"
    assert "with 18 tensors changed" in finding.detail
    assert "not claimed" not in finding.detail


def test_exact_moves_the_head_as_well_on_the_way_through_the_pipe() -> None:
    finding = one(premerge(faults.turned_pooler, exact=True), "exact")
    assert finding.verdict == "holds", finding


def test_what_is_not_said_to_be_exact_need_not_be_and_may() -> None:
    finding = one(premerge(faults.rotated_queries), "exact")
    assert (finding.verdict, finding.ok) == ("breaks by design", True)
    finding = one(premerge(faults.turned_units), "exact")
    assert finding.ok
    assert finding.detail.endswith("; not claimed")


def test_exact_that_is_said_to_break_must_break() -> None:
    assert one(premerge(faults.rotated_queries, ("exact",)), "exact").ok
    assert not one(premerge(faults.turned_units, ("exact",)), "exact").ok


# How many experts --------------------------------------------------------------------------


def test_a_merger_of_two_is_tried_with_two_and_that_is_said() -> None:
    findings = battery("merger", Choice(named(faults.right_pair))).findings()
    assert ok(findings)
    assert all(finding.detail.endswith(" (2 experts)") for finding in findings)


def test_one_weight_each_is_tried_with_as_many_experts() -> None:
    assert battery("merger", parse_choice("average:weights=0.1:0.2:0.3:0.4")).method.experts == 4
    finding = one(battery("merger", parse_choice("average:weights=0.9:0.1")), "order")
    assert finding.detail.endswith(" (average:weights=0.9:0.1, 2 experts)")


def test_a_value_that_no_number_of_experts_makes_good_is_bad_input() -> None:
    with mistake(BadOption, "density ties 7 0"):
        battery("merger", parse_choice("ties:density=7")).findings()


@pytest.mark.parametrize(
    ("stage", "text", "named"),
    [
        ("merger", "avrage", "avrage average"),
        ("merger", "tests.faults:nothing", "tests.faults:nothing"),
        ("merger", "ties:densty=1", "densty density"),
        ("premerge", "dare:seed=x", "seed x whole number"),
    ],
)
def test_bad_input_is_one_error(stage: StageName, text: str, named: str) -> None:
    with mistake(HarnessError, named):
        battery(stage, parse_choice(text))


def test_a_need_that_nobody_knows_is_named() -> None:
    def function(
        experts: Sequence[StateDict], base: StateDict, *, horoscope: StateDict
    ) -> StateDict:
        return base

    with mistake(UnknownName, "horoscope fisher"):
        battery("merger", Choice("toy"), Merger("toy", function))


def test_options_of_a_statistic_are_checked_and_change_no_property() -> None:
    assert ok(battery("merger", parse_choice("fisher:examples=64,estimator=empirical")).findings())
    with mistake(BadOption, "examples"):
        battery("merger", parse_choice("regmean:exampels=64")).findings()


def test_a_method_that_fails_outright_breaks_properties_and_not_the_battery() -> None:
    def function(experts: Sequence[StateDict], base: StateDict) -> StateDict:
        raise ZeroDivisionError("x" * 500 + "\n")

    finding = one(battery("merger", Choice("average"), Merger("average", function)), "shapes")
    assert finding.verdict == "breaks"
    assert finding.detail.startswith("ZeroDivisionError: xxx")
    told, _, where = finding.detail.rpartition(" (")
    assert told.endswith("...")
    assert len(told) <= 200
    assert where.startswith(f"{__file__}:")


# Toys --------------------------------------------------------------------------------------


def test_toys_of_needs_are_what_the_harness_gives() -> None:
    shapes = {**toys.NETWORK, **toys.ODD}
    needs = toys.needed(["gram", "fisher", "score"], shapes, 3)
    assert len(needs["gram"]) == len(needs["fisher"]) == 3
    for gram in needs["gram"]:
        assert {len(shapes[name]) for name in gram} == {2}
        assert {tensor.dtype for tensor in gram.values()} == {torch.float64}
        for name, tensor in gram.items():
            assert tensor.shape == (shapes[name][1],) * 2
            torch.testing.assert_close(tensor, tensor.T, rtol=1e-12, atol=0)
            assert torch.linalg.eigvalsh(tensor)[0] > 0
    for fisher in needs["fisher"]:
        assert {name: tuple(tensor.shape) for name, tensor in fisher.items()} == shapes
        assert all((tensor >= 0).all() for tensor in fisher.values())
    first, second = needs["gram"][:2]
    assert not any(torch.equal(first[name], second[name]) for name in first)
    first, second, third = (toys.model(seed, shapes) for seed in (1, 2, 3))
    for trials in (
        ([first, second], [first], [second], [third]),
        ([first, second], [first, second, third]),
    ):
        scores = [needs["score"](weights.mean(trial)) for trial in trials]
        assert scores == sorted(scores, reverse=True)


def test_an_expert_keeps_what_belongs_to_it_in_another_order() -> None:
    family = toys.family(3, ["gram", "score"])
    turned = family.ordered([2, 0, 1])
    assert [turned.experts.index(expert) for expert in family.experts[2:]] == [0]
    assert turned.needs["gram"][0] is family.needs["gram"][2]
    assert turned.needs["score"] is family.needs["score"]


def test_toys_are_made_fresh() -> None:
    first, second = toys.family(3, ["fisher"]), toys.family(3, ["fisher"])
    for states in zip(
        [first.base, *first.experts, *first.needs["fisher"]],
        [second.base, *second.experts, *second.needs["fisher"]],
        strict=True,
    ):
        assert weights.digest(states[0]) == weights.digest(states[1])
        assert not any(states[0][n].data_ptr() == states[1][n].data_ptr() for n in ("odd.bias",))


def test_a_tensor_lives_as_long_as_a_view_of_it() -> None:
    watch = LiveTensors()
    state = watch.state({"a": torch.ones(4, 3), "scalar": torch.tensor(1.0)})
    row = state["a"][0].detach()
    array = state["scalar"].numpy()
    assert (watch.reads, watch.alive) == (2, 2)
    del row
    assert watch.alive == 1
    del array
    assert (watch.alive, watch.most) == (0, 2)


# It leaves nothing behind ------------------------------------------------------------------


def world() -> tuple[object, ...]:
    """What a method may change for everybody."""
    numbers = np.random.get_state()[1].tolist()  # noqa: NPY002  (the global state is what is asked)
    return weights.piece_size(), random.getstate(), numbers


def test_the_battery_leaves_the_world_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = world()
    numbers, known = torch.get_rng_state(), list(harness.MERGERS)
    battery("merger", Choice(named(faults.global_noise))).findings()
    battery("merger", Choice(named(faults.swallowed))).findings()
    assert world() == before
    assert torch.equal(numbers, torch.get_rng_state())
    assert list(harness.MERGERS) == known
    assert not list(tmp_path.iterdir())


def test_a_warning_of_a_method_is_no_finding() -> None:
    def function(experts: Sequence[StateDict], base: StateDict) -> StateDict:
        warnings.warn("think of it", stacklevel=2)
        return faults.right(experts, base)

    assert one(battery("merger", Choice("toy"), Merger("toy", function)), "shapes").ok


# The pytest plugin -------------------------------------------------------------------------

MEDIAN = """
import torch
from harness import weights

def median(experts, base):
    return weights.each(lambda *t: torch.stack(t).median(dim=0).values, *experts)

def last(experts, base, *, twice: bool = False):
    return weights.each(torch.clone, experts[-1])
"""


# no answer needs asserts told in detail, and pytest would rewrite those of the whole library
PLAIN = ["-p", "no:cacheprovider", "--assert=plain", "--import-mode=importlib", "-W", "error"]

Plugged: TypeAlias = "Callable[..., tuple[int, str, str]]"


@pytest.fixture
def plugged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Plugged:
    """Runs pytest in the folder of the test, in this process, which has imported torch."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        status = pytest.main([*PLAIN, *arguments])
        return (int(status), *capsys.readouterr())

    return run


def test_the_plugin_runs_the_properties_with_no_test_file(tmp_path: Path) -> None:
    (tmp_path / "median.py").write_text(MEDIAN)
    flags = ["-v", "--merger=median:median", "--merger=median:last:twice=true", "-k", "order"]
    command = [sys.executable, "-m", "pytest", *PLAIN, *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "merger median:median[order] PASSED" in done.stdout
    assert "merger median:last:twice=true[order] FAILED" in done.stdout
    assert sum(line.startswith("order  ") for line in done.stdout.splitlines()) == 1
    others = 2 * (len(MERGER_PROPERTIES) - 1)
    assert f"1 failed, 1 passed, {others} deselected" in done.stdout


def test_the_plugin_adds_properties_to_other_tests(tmp_path: Path, plugged: Plugged) -> None:
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    flags = ("--merger", "average", "--premerge", "dare:drop_rate=0.0", "-k", "own or shapes")
    status, out, err = plugged("-q", *flags)
    assert status == 0, out + err
    others = len(MERGER_PROPERTIES) + len(PREMERGE_PROPERTIES) - 2
    assert f"3 passed, {others} deselected" in out


def test_the_plugin_says_a_wrong_name_in_one_line(plugged: Plugged) -> None:
    status, out, err = plugged("--merger", "avrage")
    assert status == 4
    names(err.strip(), "ERROR: --merger avrage: avrage average")
    assert "Traceback" not in out + err


def test_the_plugin_costs_nothing_where_no_flag_is_given(tmp_path: Path) -> None:
    code = (
        "import sys, pytest; status = pytest.main(['--collect-only', '-q']);"
        "assert status == 5, status; assert 'harness.pytest_plugin' in sys.modules;"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    heavy = {"torch", "numpy", "transformers", "datasets", "safetensors", "yaml", "pydantic"}
    assert not heavy & set(done.stdout.split())
