"""merge.json says what each pre-merging stage did: distance, drift, seconds and its own report."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import harness
from harness import Recipe, StateDict, Task, merge, weights
from harness.cli import main
from harness.data.rows import load_rows
from harness.merging import premerge_report, premerge_steps
from harness.merging.premerge_report import distance
from harness.merging.premerge_steps import LastRead, StageClock
from tests.conftest import is_head
from tests.toys import THREE, TOY, registered

Minis = Callable[[str], dict[str, Path]]
Loud = Callable[..., Path]
Tensors = dict[str, torch.Tensor]


def turned(
    experts: Sequence[StateDict], base: StateDict, *, forget_bias: bool = False
) -> list[StateDict]:
    """Experts whose feed-forward units stand in the opposite order."""

    def fn(name: str, weight: torch.Tensor) -> torch.Tensor:
        if "intermediate.dense.weight" in name:
            return weight.flip(0)
        if "intermediate.dense.bias" in name:
            return weight.clone() if forget_bias else weight.flip(0)
        inner = "output.dense.weight" in name and "attention" not in name
        return weight.flip(1) if inner else weight.clone()

    report: dict[str, Any] = {"anchor": 1, "iterations": {}}

    def one(place: int, expert: StateDict) -> StateDict:
        moved = weights.each_named(fn, expert)

        def compute(name: str) -> torch.Tensor:
            report["iterations"][name] = 2
            return moved[name]

        return weights.Lazy(weights.specs(moved), compute, report)

    return [one(place, expert) for place, expert in enumerate(experts)]


def broken(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """Said to be exact, and forgets a bias."""
    return turned(experts, base, forget_bias=True)


@pytest.fixture(autouse=True)
def _methods(as_found: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("HARNESS_DATA_DIR", raising=False)
    harness.premerge("turned", exact=True)(turned)
    harness.premerge("broken", exact=True)(broken)
    with registered(TOY, THREE):
        yield


def recipe(loud: Loud, minis: Minis, *premerge: str, **more: Any) -> Recipe:
    """Of experts whose words show in their outputs."""
    values: dict[str, Any] = {"merger": "average", "tasks": ("toy/pairs",), **more}
    experts = tuple(str(loud("bert", which)) for which in ("a", "b"))
    return Recipe(experts=experts, base=str(minis("bert")["base"]), premerge=premerge, **values)


def stages(out: Path) -> Any:
    return json.loads((out / "merge.json").read_text())["premerge"]


def loaded(folder: Path | str) -> Tensors:
    return load_file(Path(folder) / "model.safetensors")


# Distance ----------------------------------------------------------------------------------


def plain_distance(states: Sequence[StateDict]) -> float:
    """With one long vector of each expert in float64."""
    flat = [
        np.concatenate([s[n].double().numpy().ravel() for n in sorted(s) if not is_head(n)])
        for s in states
    ]
    pairs = [(i, j) for i in range(len(flat)) for j in range(i)]
    return float(np.mean([np.linalg.norm(flat[i] - flat[j]) for i, j in pairs]))


def test_the_distance_by_hand() -> None:
    states = [{"w": torch.tensor(v)} for v in ([0.0, 0.0], [3.0, 4.0], [0.0, 4.0])]
    assert distance(states) == pytest.approx(4.0, abs=1e-12)
    assert distance(states[:1]) is None
    assert distance([states[0], states[0]]) == 0.0


def test_the_distance_is_over_all_tensors_and_pieces() -> None:
    numbers = torch.Generator().manual_seed(0)
    states = [
        {
            n: torch.randn(s, generator=numbers)
            for n, s in (("a", 300_000), ("b", (7, 5)), ("c", ()))
        }
        for _ in range(4)
    ]
    assert distance(states) == pytest.approx(plain_distance(states), rel=1e-9)


@pytest.mark.parametrize("family", ["bert", "distilbert", "deberta-v2"])
def test_distances_before_and_after_each_stage(family: str, minis: Minis, tmp_path: Path) -> None:
    """Each stage begins where the one before it ends; heads, of other sizes here, do not count."""
    found = minis(family)
    asked = Recipe(
        experts=tuple(str(found[name]) for name in ("a", "b", "c")),
        base=str(found["base"]),
        premerge=("dare:drop_rate=0.3", "dare:drop_rate=0.5,seed=4"),
        merger="ties",
        tasks=("toy/pairs", "emotion/affectivetext", "toy/three"),
        heads="keep",
    )
    merge(asked, out=tmp_path / "out")
    experts, base = [loaded(found[name]) for name in ("a", "b", "c")], loaded(found["base"])
    prefix = {"bert": "bert.", "distilbert": "distilbert.", "deberta-v2": "deberta."}[family]
    whole = {prefix + name: tensor for name, tensor in base.items()}
    experts = [{n: e[n] for n in e if not is_head(n) and n in whole} for e in experts]
    dare = harness.PREMERGE["dare"].function
    first = dare(experts, whole, drop_rate=0.3, seed=0)
    second = dare(first, whole, drop_rate=0.5, seed=4)
    expected = [plain_distance(states) for states in (experts, first, second)]
    one, two = (stage["distance"] for stage in stages(tmp_path / "out"))
    assert one["before"] == pytest.approx(expected[0], rel=1e-6)
    assert one["after"] == two["before"] == pytest.approx(expected[1], rel=1e-6)
    assert two["after"] == pytest.approx(expected[2], rel=1e-6)


@pytest.mark.filterwarnings("ignore:there is one expert")
def test_one_expert_is_at_no_distance(loud: Loud, minis: Minis, tmp_path: Path) -> None:
    asked = recipe(loud, minis, "dare")
    merge(asked.model_copy(update={"experts": asked.experts[:1]}), out=tmp_path / "out")
    (stage,) = stages(tmp_path / "out")
    assert "distance" not in stage
    assert len(stage["drift"]) == 1


@pytest.mark.parametrize("way", ["as it is", "twice", "in place", "backwards", "not at all"])
def test_the_distance_is_measured_while_the_merger_reads(
    way: str, loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    """Once more only what the merger changed, read in another order, or did not read."""
    computed: list[str] = []

    @harness.premerge("shifted")
    def shifted(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
        def one(place: int, expert: StateDict) -> StateDict:
            def compute(name: str) -> torch.Tensor:
                computed.append(name)
                return expert[name] * (1 + place)

            return weights.Lazy(weights.specs(expert), compute)

        return [one(place, expert) for place, expert in enumerate(experts)]

    @harness.merger("reader", task_vectors=False)
    def reader(experts: Sequence[StateDict], base: StateDict) -> StateDict:
        def compute(name: str) -> torch.Tensor:
            if way == "not at all":
                return torch.ones(weights.specs(experts[0])[name].shape)
            parts = [expert[name] for expert in experts]
            if way == "twice":
                parts = [expert[name] for expert in experts]
            if way == "in place":
                for part in parts[1:]:
                    parts[0].add_(part)
                return parts[0].div_(len(parts))
            if way == "backwards":
                _ = [experts[0][other] for other in list(experts[0])[::-1]]
            return torch.stack(parts).mean(dim=0)

        return weights.Lazy(weights.specs(experts[0]), compute)

    out = tmp_path / "out"
    made = recipe(loud, minis, "shifted", merger="reader", heads="average", drift=False)
    merge(made, out=out)
    (stage,) = stages(out)
    before = [loaded(expert) for expert in made.experts]
    after = [before[0], {name: 2 * tensor for name, tensor in before[1].items()}]
    expected = {"before": plain_distance(before), "after": plain_distance(after)}
    assert stage["distance"] == pytest.approx(expected, rel=1e-6)
    body = [name for name in before[0] if not is_head(name)]
    times = {name: computed.count(name) for name in body}
    if way == "as it is":
        assert set(times.values()) == {2}, "each expert's tensor is computed once"


def test_what_was_given_is_there_until_it_is_changed() -> None:
    held = LastRead({"a": torch.zeros(2), "b": torch.ones(2)})
    assert held("a") is None
    given = held.state["a"]
    assert held("a") is given
    assert held("b") is None
    given.view(-1)[:1].add_(1)
    assert held("a") is None, "through a view as well"
    with torch.inference_mode():
        state = LastRead({"a": torch.zeros(2)})
        _ = state.state["a"]
    assert state("a") is None


# Drift -------------------------------------------------------------------------------------


def logits(folder: Path, state: StateDict, task: Task, count: int = 16) -> np.ndarray[Any, Any]:
    """What transformers alone says of the first training rows, one by one."""
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.load_state_dict({name: state[name] for name in state}, strict=False)
    words = AutoTokenizer.from_pretrained(folder)
    rows = load_rows(task, "train90").texts[:count]
    with torch.no_grad():
        found = [model.eval()(**words(*row, return_tensors="pt")).logits[0] for row in rows]
    return torch.stack(found).numpy()


def test_the_drift_is_what_transformers_computes(loud: Loud, minis: Minis, tmp_path: Path) -> None:
    """Of each stage the change that it makes, of each expert on its own task."""
    found = {name: loud("bert", name) for name in ("a", "c")}
    asked = Recipe(
        experts=tuple(map(str, found.values())),
        base=str(minis("bert")["base"]),
        premerge=("dare:drop_rate=0.3", "dare:drop_rate=0.5,seed=4"),
        tasks=("toy/pairs", "toy/three"),
    )
    merge(asked, out=tmp_path / "out")
    base = {f"bert.{name}": tensor for name, tensor in loaded(minis("bert")["base"]).items()}
    experts = [loaded(folder) for folder in found.values()]
    dare = harness.PREMERGE["dare"].function
    first = dare(experts, base, drop_rate=0.3, seed=0)
    second = dare(first, base, drop_rate=0.5, seed=4)
    for place, (folder, task) in enumerate(zip(found.values(), (TOY, THREE), strict=True)):
        before = logits(folder, experts[place], task)
        for stage, states in zip(stages(tmp_path / "out"), (first, second), strict=True):
            after = logits(folder, states[place], task)
            expected = np.abs(after - before).max()
            assert stage["drift"][place] == pytest.approx(expected, rel=1e-3)
            assert expected > 0.01
            before = after


def test_an_exact_method_after_one_that_is_not_moves_nothing(
    loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    merge(recipe(loud, minis, "dare", "turned"), out=tmp_path / "out")
    dropped, turned = stages(tmp_path / "out")
    assert min(dropped["drift"]) > 0.01
    assert max(turned["drift"]) < 1e-5


def test_an_exact_method_that_is_not_shows_a_large_drift(
    loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    for name in ("turned", "broken"):
        merge(recipe(loud, minis, name), out=tmp_path / name)
    (right,), (wrong,) = stages(tmp_path / "turned"), stages(tmp_path / "broken")
    assert 0 <= max(right["drift"]) < 1e-5
    assert min(wrong["drift"]) > 1e-3


def test_without_rows_there_is_no_drift(
    loud: Loud, minis: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is downloaded; an expert whose task has no rows here has none among others."""
    monkeypatch.setattr(
        "harness.data.sources.from_hub", lambda *_: pytest.fail("it goes to the Hub")
    )
    merge(recipe(loud, minis, "dare", tasks=("glue/rte",)), out=tmp_path / "hub")
    merge(recipe(loud, minis, "dare", tasks=()), out=tmp_path / "unknown")
    for name in ("hub", "unknown"):
        (stage,) = stages(tmp_path / name)
        assert "drift" not in stage
        assert stage["distance"]["after"] > 0
    asked = recipe(loud, minis, "dare", tasks=("glue/rte", "toy/pairs"), heads="keep")
    merge(asked, out=tmp_path / "one")
    (stage,) = stages(tmp_path / "one")
    assert stage["drift"][0] is None
    assert stage["drift"][1] > 0


def test_none_is_measured_where_that_is_said(
    loud: Loud, minis: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the recipe, by a file of it, or by the flag beside either; the distance is told."""

    def forward(*_: Any, **__: Any) -> Any:
        raise AssertionError("an expert is run")

    monkeypatch.setattr(premerge_report, "forward", forward)
    asked = recipe(loud, minis, "turned", drift=False)
    merge(asked, out=tmp_path / "value")
    values = {"experts": list(asked.experts), "base": asked.base, "tasks": ["toy/pairs"]}
    file, silent = tmp_path / "recipe.json", tmp_path / "silent.json"
    file.write_text(json.dumps({**values, "premerge": ["turned"]}))
    silent.write_text(json.dumps({**values, "premerge": ["turned"], "drift": False}))
    assert main(["merge", str(file), "--no-drift", "--out", str(tmp_path / "flag")]) == 0
    assert main(["merge", str(silent), "--out", str(tmp_path / "file")]) == 0
    for name in ("value", "flag", "file"):
        (stage,) = stages(tmp_path / name)
        assert "drift" not in stage
        assert stage["distance"]["before"] > 0
    with pytest.raises(AssertionError, match="an expert is run"):
        main(["merge", str(file), "--out", str(tmp_path / "run")])


def test_rows_of_a_local_folder(loud: Loud, minis: Minis, tmp_path: Path) -> None:
    task = tmp_path / "data" / "glue" / "rte"
    task.mkdir(parents=True)
    lines = [
        json.dumps(
            {"sentence1": f"word{i} word{i + 1}", "sentence2": f"word{i + 2}", "label": i % 2}
        )
        for i in range(30)
    ]
    asked = recipe(loud, minis, "dare", tasks=("glue/rte",), data_dir=str(tmp_path / "data"))
    (task / "validation.jsonl").write_text("\n".join(lines))
    merge(asked, out=tmp_path / "reported")
    assert "drift" not in stages(tmp_path / "reported")[0]  # rows that are reported stay unread
    (task / "train.jsonl").write_text("\n".join(lines))
    merge(asked, out=tmp_path / "out")
    assert min(stages(tmp_path / "out")[0]["drift"]) > 0.01
    (task / "train.jsonl").write_text("{")
    with pytest.warns(UserWarning, match="the drift of an expert is not measured: .*train.jsonl"):
        merge(asked, out=tmp_path / "unread")
    assert "drift" not in stages(tmp_path / "unread")[0]


def test_a_model_that_does_not_run_on_them_is_merged_all_the_same(
    loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    long = Task(
        name="toy/long",
        kind="classification",
        text=("first",),
        label="label",
        labels=("no", "yes"),
        metrics=("accuracy",),
        splits={"test": "test"},
        reported="test",
        generate=lambda split: [{"first": "word1 " * 90, "label": i % 2} for i in range(40)],
    )
    with registered(long), pytest.warns(UserWarning, match="not measured: .*positions for 40"):
        merge(recipe(loud, minis, "dare", tasks=("toy/long",)), out=tmp_path / "out")
    assert "drift" not in stages(tmp_path / "out")[0]


def test_nothing_is_measured_where_nothing_comes_before_the_merger(
    loud: Loud, minis: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(premerge_report, "load_rows", lambda *_, **__: pytest.fail("rows are read"))
    merge(recipe(loud, minis), out=tmp_path / "out")
    assert stages(tmp_path / "out") == []


# Report and time ---------------------------------------------------------------------------


def test_a_method_tells_of_its_work(loud: Loud, minis: Minis, tmp_path: Path) -> None:
    """When all is computed, through the states that the harness wraps, kept on disk or not."""
    harness.premerge("costly", costly=True)(turned)
    merge(recipe(loud, minis, "turned", "dare", "costly"), out=tmp_path / "out")
    first, dare, last = stages(tmp_path / "out")
    for stage in (first, last):
        assert stage["report"]["anchor"] == 1
        iterations = stage["report"]["iterations"]
        assert iterations == dict.fromkeys(sorted(loaded(loud("bert", "a"))), 2)
        assert list(iterations) == sorted(iterations)
    assert "report" not in dare


class Ticks:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    made = Ticks()
    monkeypatch.setattr(premerge_steps, "perf_counter", made)
    return made


def test_time_is_that_of_the_stage_at_work(ticks: Ticks) -> None:
    clock = StageClock()
    with clock.running(1):
        ticks.now += 1
        with clock.running(0):
            ticks.now += 10
            with clock.running(0):  # another thread, say
                ticks.now += 100
        ticks.now += 1000
    ticks.now += 10_000
    assert [clock.seconds(number) for number in (0, 1, 2)] == [110, 1001, 0]


def test_time_survives_an_error(ticks: Ticks) -> None:
    clock = StageClock()

    def fails(_: str) -> torch.Tensor:
        ticks.now += 1
        raise RuntimeError

    state = clock.timed(0, weights.Lazy({"w": weights.Spec((), torch.float32)}, fails))
    with pytest.raises(RuntimeError):
        _ = state["w"]
    ticks.now += 10
    with clock.running(1):
        ticks.now += 100
    assert [clock.seconds(number) for number in (0, 1)] == [1, 100]


def test_threads_do_not_count_twice() -> None:
    clock = StageClock()
    state = clock.timed(0, {"w": torch.zeros(3)})
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: state["w"], range(500)))
    assert not +clock._busy
    assert clock.seconds(0) > 0


def test_seconds_are_of_the_merge_alone(
    loud: Loud, minis: Minis, tmp_path: Path, ticks: Ticks
) -> None:
    """A second for each tensor of an expert, and none for what is computed to be measured."""

    def slow(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
        def fn(_: str, weight: torch.Tensor) -> torch.Tensor:
            ticks.now += 1
            return weight.clone()

        return [weights.each_named(fn, expert) for expert in experts]

    harness.premerge("slow")(slow)
    harness.premerge("kept", costly=True)(slow)
    merge(recipe(loud, minis, "slow", "dare", "kept"), out=tmp_path / "out")
    count = 2 * len(loaded(loud("bert", "a")))
    slow_, dare, kept = (stage["seconds"] for stage in stages(tmp_path / "out"))
    assert (slow_, dare, kept) == (count, 0, count)


# Where it is shown -------------------------------------------------------------------------


def test_the_card_and_the_terminal_say_it_in_short(
    loud: Loud, minis: Minis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experts = [str(loud("bert", which)) for which in ("a", "b")]
    flags = ["--base", str(minis("bert")["base"]), "--premerge", "dare", "--tasks", "toy/pairs"]
    assert main(["merge", *experts, *flags, "--out", str(tmp_path / "out")]) == 0
    (stage,) = stages(tmp_path / "out")
    line = (
        f"distance {stage['distance']['before']:.4g} to {stage['distance']['after']:.4g}, "
        "experts' logits move by {:.2g}, {:.2g}".format(*stage["drift"])
    )
    assert f"dare     {line}, " in capsys.readouterr().out
    assert f"- dare: {line}\n" in (tmp_path / "out" / "README.md").read_text()
    assert main(["merge", *experts, *flags, "--out", str(tmp_path / "no"), "--dry-run"]) == 0
    assert "distance" not in capsys.readouterr().out


def test_a_merge_that_was_measured_is_evaluated(loud: Loud, minis: Minis, tmp_path: Path) -> None:
    merge(recipe(loud, minis, "turned"), out=tmp_path / "out")
    run = harness.Run(
        model=str(tmp_path / "out"), protocols=("current",), output=str(tmp_path / "records")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        records = harness.evaluate(run)
    assert {record.method for record in records} >= {"turned[average]"}
