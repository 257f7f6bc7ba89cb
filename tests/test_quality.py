"""Quality: every merger against its recorded baseline, and that a planted worse one is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_rel

import harness
from harness import Choice, Run, StateDict, parse_choice, weights
from harness.checking import quality as module
from harness.checking.quality import (
    MINIATURES,
    SETTINGS,
    MergerDifference,
    Report,
    interval,
    measure,
    quality,
    read_baseline,
    settings_for,
)
from harness.data.rows import load_rows
from harness.entries import Merger
from harness.errors import BadOption, BrokenRecord, OutputExists, UnknownName
from tests.mistakes import mistake, names

BASELINES = Path(__file__).parent / "baselines"
PROTOCOLS = ("current", "knn", "ft-classifier")
EXPERTS = sorted({name for experts in SETTINGS.values() for name in experts})
AVERAGE = Choice("average")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Any, Any]]:
    """A folder for features, merges and records, and what was measured so far."""
    return tmp_path_factory.mktemp("quality"), {}


@pytest.fixture(autouse=True)
def _measured_once(
    _own_cache: None, shared: tuple[Path, dict[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, known = shared
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(folder / "cache"))

    def measured(choice: Choice, _: Path, progress: Any = None, settings: Any = None) -> Any:
        key = str(choice), harness.MERGERS[choice.name].function, str(settings)
        if key not in known:
            known[key] = measure(choice, folder, progress, settings)
        return known[key]

    monkeypatch.setattr(module, "measure", measured)


Plant = Callable[..., Choice]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Registers a function as the merger `planted` for one test; again, to replace it."""
    assert "planted" not in harness.MERGERS
    for kept in ("_values", "_origins"):
        monkeypatch.setattr(harness.MERGERS, kept, dict(getattr(harness.MERGERS, kept)))

    def planted(function: Callable[..., StateDict], *, task_vectors: bool = True) -> Choice:
        harness.MERGERS.add(Merger("planted", function, task_vectors=task_vectors), "a test")
        return Choice("planted")

    return planted


def average(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.mean(experts)


def halved(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """The average with its last layer at half of what it should be."""
    return weights.each_named(
        lambda name, tensor: tensor / 2 if ".layer.1." in name else tensor, weights.mean(experts)
    )


def ties(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return harness.MERGERS["ties"].function(experts, base)


def reversed_ties(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """TIES with the sign of the merged task vector wrong."""
    return weights.each(lambda origin, end: 2 * origin - end, base, ties(experts, base))


def of_two(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    if len(experts) != 2:
        raise BadOption(f"of_two got {len(experts)} experts, expected exactly 2")
    return weights.mean(experts)


def verdicts(report: Report, against: str) -> set[str]:
    return {c.verdict for c in report.comparisons if c.against == against}


# Every merger ------------------------------------------------------------------------------


def test_every_merger_has_a_baseline() -> None:
    ours = {
        name
        for name, entry in harness.MERGERS.items()
        if entry.function.__module__.startswith("harness.mergers.")
    }
    recorded = {path.stem for path in BASELINES.glob("*.json")}
    assert recorded == ours, "record it: harness check merger NAME --record"


@pytest.mark.parametrize("name", sorted(path.stem for path in BASELINES.glob("*.json")))
def test_a_merger_is_not_worse_than_its_baseline(name: str) -> None:
    report = quality(Choice(name), baselines=BASELINES)
    assert "baseline" in {c.against for c in report.comparisons}
    assert report.ok, str(report)


# Planted mergers ---------------------------------------------------------------------------


def test_a_merger_that_is_average_is_the_same(plant: Plant, tmp_path: Path) -> None:
    report = quality(plant(average), baselines=tmp_path)
    assert [(c.setting, c.protocol) for c in report.comparisons] == [
        (setting, protocol) for setting in SETTINGS for protocol in PROTOCOLS
    ]
    assert {(c.difference, c.low, c.high, c.verdict) for c in report.comparisons} == {
        (0, 0, 0, "same")
    }


@pytest.mark.fault
def test_a_planted_worse_merger_is_found_and_fails(plant: Plant, tmp_path: Path) -> None:
    quality(plant(average), baselines=tmp_path, record=True)
    report = quality(plant(halved), baselines=tmp_path)
    assert verdicts(report, "average") == verdicts(report, "baseline") == {"worse"}
    assert not report.ok


@pytest.mark.fault
def test_a_planted_sign_error_is_found_and_fails(plant: Plant, tmp_path: Path) -> None:
    quality(plant(ties), baselines=tmp_path, record=True)
    report = quality(plant(reversed_ties), baselines=tmp_path)
    for c in report.comparisons:
        assert c.verdict == "worse" or c.protocol == "knn"  # neighbours outlive a mirrored vector
    assert not report.ok


def test_a_better_merger_is_found_and_passes(plant: Plant, tmp_path: Path) -> None:
    quality(plant(halved), baselines=tmp_path, record=True)
    report = quality(plant(average), baselines=tmp_path)
    assert verdicts(report, "baseline") == {"better"}
    assert report.ok


def test_a_merger_below_average_passes_without_a_baseline(plant: Plant, tmp_path: Path) -> None:
    report = quality(plant(halved), baselines=tmp_path)
    assert verdicts(report, "average") == {"worse"}
    assert report.ok


def test_a_merger_can_stand_above_average(tmp_path: Path) -> None:
    report = quality(Choice("task_arithmetic"), baselines=tmp_path)
    assert report.comparisons[0].setting == "different tasks"
    assert report.comparisons[0].verdict == "better"


def test_a_setting_that_a_merger_refuses_is_left_out_and_said(plant: Plant, tmp_path: Path) -> None:
    report = quality(plant(of_two), baselines=tmp_path, record=True)
    assert {c.setting for c in report.comparisons} == {"same task"}
    ((setting, why),) = read_baseline(tmp_path / "planted.json").left_out.items()
    assert setting == "different tasks"
    names(why, "of_two 3 2")
    assert why in str(report)
    assert quality(plant(of_two), baselines=tmp_path).ok


def test_a_setting_that_a_merger_no_longer_takes_is_an_error(plant: Plant, tmp_path: Path) -> None:
    quality(plant(average), baselines=tmp_path, record=True)
    with mistake(BadOption, "different tasks of_two 3"):
        quality(plant(of_two), baselines=tmp_path)


def test_what_fits_no_setting_is_the_mergers_own_error(tmp_path: Path) -> None:
    with mistake(BadOption, "density ties 2"):
        quality(parse_choice("ties:density=2"), baselines=tmp_path)
    with mistake(UnknownName, "average"):
        quality(Choice("avrage"), baselines=tmp_path)


# Words, and several classes ----------------------------------------------------------------

KINDS = {"words": ("names", "names-1"), "classes": ("mentions", "mentions-1")}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two experts of tags of words and two of several classes, of a sixth of the usual training."""
    root = tmp_path_factory.mktemp("others")
    base = Path(shutil.copytree(MINIATURES / "base", root / "base"))
    for name in (name for experts in KINDS.values() for name in experts):
        task, _, seed = name.partition("-")
        harness.finetune(
            base,
            f"embedded/{task}",
            out=root / name,
            seed=int(seed or 0),
            learning_rate=2e-3,
            epochs=1,
            limit=1000,
            batch_size=16 if task == "mentions" else 32,
            progress=False,
        )
    return root


@pytest.fixture
def _of_other_kinds(others: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "SETTINGS", KINDS)
    monkeypatch.setattr(module, "MINIATURES", others)
    monkeypatch.setattr(module, "measure", measure)
    module.fixture.cache_clear()
    yield
    module.fixture.cache_clear()


def rows_one_off(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """The average, but every row of a head is that of the label before."""
    return weights.each_named(
        lambda name, tensor: tensor.roll(1, 0) if name.startswith("classifier.") else tensor,
        weights.mean(experts),
    )


@pytest.mark.usefixtures("_of_other_kinds")
def test_parts_are_of_rows_whatever_has_labels(tmp_path: Path) -> None:
    found = measure(AVERAGE, tmp_path)
    for setting, experts in KINDS.items():
        task = f"embedded/{experts[0]}@test"
        assert {protocol: {*tasks} for protocol, tasks in found.scores[setting].items()} == {
            protocol: {task} for protocol in PROTOCOLS
        }
        values = found.scores[setting]["current"][task]
        first = Run(
            model=str(tmp_path / setting / "average"),
            output=str(tmp_path / "first"),
            protocols=(Choice("current"),),
            limit=50,
            first=True,
        )
        (record,) = (r for r in harness.evaluate(first) if r.role == "merged")
        assert len(values) == 10
        assert values[0] == pytest.approx(record.scores[0].value, abs=1e-6)
        assert 0.2 < min(values) < max(values) < 1


@pytest.mark.fault
@pytest.mark.usefixtures("_of_other_kinds")
def test_rows_of_a_head_that_are_one_off_are_found_of_every_kind(
    plant: Plant, tmp_path: Path
) -> None:
    # heads have no task vectors: who merges those is not asked for heads
    report = quality(plant(rows_one_off, task_vectors=False), baselines=tmp_path)
    verdict = {(c.setting, c.protocol): c.verdict for c in report.comparisons}
    assert {verdict[setting, "current"] for setting in KINDS} == {"worse"}, str(report)


# Baselines ---------------------------------------------------------------------------------


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """The baseline of average, in a folder of its own."""
    quality(AVERAGE, baselines=tmp_path / "mine", record=True)
    return tmp_path / "mine" / "average.json"


def test_a_missing_baseline_is_no_failure(tmp_path: Path) -> None:
    report = quality(AVERAGE, baselines=tmp_path / "none")
    assert report.ok
    said = f"No baseline at {tmp_path / 'none' / 'average.json'}: record one with --record."
    assert str(report).splitlines()[-1] == said
    assert not (tmp_path / "none").exists()


def test_a_baseline_is_what_was_measured(recorded: Path, tmp_path: Path) -> None:
    assert read_baseline(recorded) == measure(AVERAGE, tmp_path / "again")
    report = quality(AVERAGE, baselines=recorded.parent)
    assert verdicts(report, "baseline") == {"same"}
    text = recorded.read_text(encoding="utf-8")
    quality(AVERAGE, baselines=recorded.parent, record=True)
    assert recorded.read_text(encoding="utf-8") == text
    assert len(text.splitlines()) < 50


def test_options_have_a_baseline_of_their_own(tmp_path: Path) -> None:
    choice = parse_choice("task_arithmetic:scale=0.4")
    quality(choice, baselines=tmp_path, record=True)
    assert [path.name for path in tmp_path.iterdir()] == ["task_arithmetic-scale=0.4.json"]
    assert read_baseline(next(tmp_path.iterdir())).options == {"scale": 0.4, "weights": None}
    defaults = quality(parse_choice("task_arithmetic:scale=0.3"), baselines=tmp_path)
    assert f"{tmp_path / 'task_arithmetic.json'}" in str(defaults)


def test_other_options_or_experts_make_a_baseline_stale(recorded: Path) -> None:
    changed(recorded, lambda values: values["options"].update(weights=[1.0, 0.0]))
    with mistake(BadOption, "weights [1.0, 0.0] None --record"):
        quality(AVERAGE, baselines=recorded.parent)
    changed(recorded, lambda values: values["options"].update(weights=None, scale=1.0))
    with mistake(BadOption, "scale 1.0 absent"):
        quality(AVERAGE, baselines=recorded.parent)
    changed(recorded, lambda values: values.update(options={"weights": None}, fixture="f" * 32))
    with mistake(BrokenRecord, "ffffffffffff --record"):
        quality(AVERAGE, baselines=recorded.parent)
    quality(AVERAGE, baselines=recorded.parent, record=True)
    assert quality(AVERAGE, baselines=recorded.parent).ok


def cut(values: dict[str, Any]) -> None:
    values["scores"]["same task"]["knn"]["embedded/outcome@test"].pop()


def drop(values: dict[str, Any]) -> None:
    del values["scores"]["different tasks"]["knn"]["embedded/topic@test"]


@pytest.mark.parametrize("change", [cut, drop])
def test_a_baseline_of_other_draws_or_tasks_is_not_compared(
    recorded: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    changed(recorded, change)
    with mistake(BrokenRecord, "knn --record"):
        quality(AVERAGE, baselines=recorded.parent)


def test_a_protocol_that_only_one_side_has_is_said(recorded: Path) -> None:
    def without_knn(values: dict[str, Any]) -> None:
        for setting in ("different tasks", "same task"):
            values["scores"][setting].pop("knn")

    changed(recorded, without_knn)
    report = quality(AVERAGE, baselines=recorded.parent)
    assert {c.protocol for c in report.comparisons if c.against == "baseline"} == {
        "current",
        "ft-classifier",
    }
    names(report.notes[-1], "knn")


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "baseline"), ("[]", "list"), ("{}", "merger")],
)
def test_a_broken_baseline_is_named(recorded: Path, text: str, said: str) -> None:
    recorded.write_text(text, encoding="utf-8")
    with mistake(BrokenRecord, "average.json", said):
        quality(AVERAGE, baselines=recorded.parent)


def test_a_place_for_baselines_is_checked_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with mistake(OutputExists, tmp_path / "file"):
        quality(AVERAGE, baselines=tmp_path / "file", record=True)


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.004, "same"), (0.006, "worse"), (-0.006, "better")]
)
def test_a_difference_below_half_a_point_is_rounding(
    recorded: Path, shift: float, verdict: str
) -> None:
    def moved(values: dict[str, Any]) -> None:
        tasks = values["scores"]["same task"]["current"]
        tasks.update({task: [score + shift for score in found] for task, found in tasks.items()})

    changed(recorded, moved)
    report = quality(AVERAGE, baselines=recorded.parent)
    found = {(c.setting, c.protocol): c for c in report.comparisons if c.against == "baseline"}
    assert found["same task", "current"].verdict == verdict
    assert found["same task", "current"].difference == pytest.approx(-shift)
    assert report.ok == (verdict != "worse")


# Arithmetic --------------------------------------------------------------------------------


def test_the_interval_is_students_by_hand() -> None:
    assert interval([0, 1, 2]) == pytest.approx((1, 1 - 2.484138, 1 + 2.484138), abs=1e-5)
    assert interval([0.25] * 5) == (0.25, 0.25, 0.25)


def test_the_interval_is_scipys() -> None:
    mine, other = [0.91, 0.93, 0.9, 0.95, 0.94], [0.9, 0.95, 0.86, 0.9, 0.91]
    expected = ttest_rel(mine, other).confidence_interval(0.95)
    _, *ends = interval([a - b for a, b in zip(mine, other, strict=True)])
    assert ends == pytest.approx([expected.low, expected.high])


def of(difference: float, low: float, high: float, against: Any = "average") -> MergerDifference:
    return MergerDifference("same task", against, "knn", difference, low, high)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (of(0.02, 0.01, 0.03), "better"),
        (of(0.02, -0.01, 0.05), "same"),
        (of(-0.02, -0.03, -0.01), "worse"),
        (of(-0.02, -0.04, 0.0), "same"),
        (of(0.0, 0.0, 0.0), "same"),
        (of(-0.004, -0.005, -0.003), "worse"),
        (of(-0.004, -0.005, -0.003, "baseline"), "same"),
        (of(-0.006, -0.007, -0.005, "baseline"), "worse"),
        (of(0.006, 0.005, 0.007, "baseline"), "better"),
    ],
)
def test_the_verdict_is_that_of_the_interval(found: MergerDifference, verdict: str) -> None:
    assert found.verdict == verdict


def test_a_report_is_a_table_in_points() -> None:
    report = Report((of(0.012, 0.003, 0.021), of(-0.0004, -0.0004, 0, "baseline")), ("A note.",))
    assert str(report) == (
        "setting    against    protocol      difference      interval  verdict\n"
        "---------  ---------  ----------  ------------  ------------  ---------\n"
        "same task  average    knn                 +1.2  [+0.3, +2.1]  better\n"
        "same task  baseline   knn                  0.0    [0.0, 0.0]  same\n"
        "\n"
        "In points, the mean over tasks with 5 shots; 95% intervals over draws, "
        "or 10 parts of the test rows\n"
        "where nothing is drawn. A difference from a baseline of less than 0.5 is 'same'.\n"
        "A note."
    )


def test_progress_is_told_by_setting_of_one_total(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    choice = parse_choice("task_arithmetic:scale=0.35")
    measure(choice, tmp_path, lambda *step: told.append(step))
    assert {what.partition(" · ")[0] for what, _, _ in told} == set(SETTINGS)
    assert {total for _, _, total in told} == {400}, "a merge and an evaluation in two settings"
    assert sum(done for _, done, _ in told) == 400


def test_a_check_has_one_bar_for_both_mergers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever either says of its own total, and however often that grows."""
    real = module.measure
    told: list[tuple[str, int, int]] = []

    def telling(choice: Choice, folder: Path, progress: Any, settings: Any) -> Any:
        for step in (("a", 1, 4), ("a", 1, 8), ("b", 6, 8)):
            progress(*step)
        return real(choice, folder, None, settings)

    monkeypatch.setattr(module, "measure", telling)
    quality(AVERAGE, baselines=tmp_path, progress=lambda *step: told.append(step))
    # a quarter of 400, a quarter still, all of it: once for the merger and once for the reference
    assert told == 2 * [("a", 100, 800), ("b", 300, 800)]


def test_a_setting_that_is_refused_counts_as_done(tmp_path: Path, plant: Plant) -> None:
    """The bar is full at the end though nothing was evaluated there."""

    def of_three(experts: Sequence[StateDict], base: StateDict) -> StateDict:
        if len(experts) < 3:
            raise BadOption("two are too few")
        return average(experts, base)

    told: list[tuple[str, int, int]] = []
    made = measure(plant(of_three), tmp_path, lambda *step: told.append(step))
    assert [*made.left_out] == ["same task"]
    assert {total for _, _, total in told} == {400}
    assert sum(done for _, done, _ in told) == 400


# The miniatures ----------------------------------------------------------------------------


def test_every_miniature_is_merged_in_some_setting() -> None:
    folders = {path.name for path in MINIATURES.iterdir() if path.is_dir()}
    assert folders == {"base", *EXPERTS}


@pytest.mark.parametrize("name", EXPERTS)
def test_an_expert_is_what_finetune_makes_of_the_suite_of_today(name: str) -> None:
    made = json.loads((MINIATURES / name / "expert.json").read_text(encoding="utf-8"))
    task = harness.TASKS[made["tasks"][0]]
    assert made["base"] == "base"
    assert made["rows_digest"] == load_rows(task, made["split"]).digest
    for option, value in made["hyperparameters"].items():
        assert getattr(task.finetune, option) == value


def test_the_miniatures_are_small_and_name_no_place() -> None:
    files = [path for path in MINIATURES.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2_500_000
    for path in files:
        if path.suffix == ".json":
            assert "_name_or_path" not in path.read_text(encoding="utf-8")


def test_readings_of_a_measurement_are_complete(tmp_path: Path) -> None:
    found = module.measure(AVERAGE, tmp_path, None, settings_for(AVERAGE))
    for setting, experts in SETTINGS.items():
        tasks = {f"embedded/{name.partition('-')[0]}@test" for name in experts}
        assert set(found.scores[setting]) == set(PROTOCOLS)
        for protocol, scores in found.scores[setting].items():
            assert set(scores) == tasks
            assert {len(values) for values in scores.values()} == {
                10 if protocol == "current" else 5
            }


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    """No planted merger is left behind."""
    before = set(harness.MERGERS)
    yield
    assert set(harness.MERGERS) == before
