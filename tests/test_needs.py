"""Needs: those of plug-ins, of pre-merging methods, and of several methods of one merge."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import harness
from harness import Recipe
from harness.cli import main
from harness.code import PREFIX
from harness.data.rows import load_rows
from harness.errors import (
    BadOption,
    BadRecipe,
    BrokenCheckpoint,
    BrokenPlugin,
    HarnessError,
    IncompatibleWeights,
    UnknownName,
)
from harness.passes.statistics import draw_rows
from harness.passes.workload import Workload
from tests.mistakes import mistake, names, refused
from tests.toys import THREE, TOY, registered

Loud = Callable[..., Path]
Minis = Callable[[str], dict[str, Path]]

MINE = '''\
"""Inputs of linear layers, and a pre-merging method that asks for them."""
import torch

from harness import need, premerge
from harness.options import Count, Share
from harness.weights import Spec, each_named, specs
from .loud import loudness


def shapes(checkpoint):
    return {
        name: Spec(spec.shape[1:], torch.float32)
        for name, spec in specs(checkpoint.weights).items()
        if len(spec.shape) == 2 and "embeddings" not in name
    }


def toy(experts):
    return [
        {
            name: torch.rand(spec.shape[1], generator=torch.Generator().manual_seed(place)) + 0.5
            for name, spec in specs(expert).items()
            if len(spec.shape) == 2 and name.endswith(".weight") and "embeddings" not in name
        }
        for place, expert in enumerate(experts)
    ]


@need("magnitudes", shapes=shapes, toy=toy)
def magnitudes(reading, *, examples: Count = 64, seed: int = 0):
    """How large the inputs of every linear layer are: the mean of their magnitude, [in]."""
    model, sums, counts = reading.model(), {}, {}
    calls = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda m, args, n=name: calls.append((n, args[0])))
    with torch.inference_mode():
        for inputs, _ in reading.batches(4, as_drawn=False):
            model(**inputs)
            for name, given in calls:
                seen = given[inputs["attention_mask"].bool()] if given.dim() == 3 else given
                sums[name] = sums.get(name, 0) + loudness(seen).sum(0)
                counts[name] = counts.get(name, 0) + len(seen)
            calls.clear()
    return {f"{name}.weight": total / counts[name] for name, total in sums.items()}


@premerge("by_inputs", breaks=("copies",))
def by_inputs(experts, base, *, magnitudes, least: Share = 0.0):
    """Experts whose task vectors are scaled by how large each input is, relative to the largest."""

    def one(expert, means):
        def fn(name, weight):
            if name not in means or name not in base:
                return weight.clone()
            share = (means[name] / means[name].max()).clamp(min=least)
            return base[name] + (weight - base[name]) * share

        return each_named(fn, expert)

    return [one(*pair) for pair in zip(experts, magnitudes)]


@premerge("whitened")
def whitened(experts, base, *, gram):
    """Experts as they are, where their Gram matrices have been looked at."""

    def one(expert, grams):
        return each_named(
            lambda name, weight: weight + 0 * grams[name].sum().float()
            if name in grams else weight.clone(),
            expert,
        )

    return [one(*pair) for pair in zip(experts, gram)]


@premerge("halved")
def halved(experts, base, *, gram, power: Share = 0.5):
    """Experts whose linear weights are halved."""
    return [
        each_named(lambda n, w: w / 2 if n in gram[i] else w.clone(), e)
        for i, e in enumerate(experts)
    ]
'''
OURS = ("activations", "fisher", "gram", "gram_through", "score", "symmetry", "unlabeled")
LOUD = """\
def loudness(inputs):
    return inputs.abs()
"""


@pytest.fixture(autouse=True)
def _as_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone when it ends."""
    for known in (harness.MERGERS, harness.PREMERGE, harness.NEEDS):
        len(known)
        monkeypatch.setattr(known, "_values", dict(known._values))
        monkeypatch.setattr(known, "_origins", dict(known._origins))
    with registered(TOY, THREE):
        yield
    forget()


def forget() -> None:
    """As if no folder of a user had been loaded."""
    for name in list(sys.modules):
        if name.startswith(PREFIX):
            del sys.modules[name]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A user's folder with a need, and methods that ask for it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    (folder / "loud.py").write_text(LOUD)
    return folder


def record_of(out: Path) -> Any:
    return json.loads((out / "merge.json").read_text())


def given_to(record: Any) -> list[dict[str, Any]]:
    """What the pre-merging methods were given, and not how long they took."""
    return [
        {key: stage[key] for key in ("name", "options", "statistics")}
        for stage in record["premerge"]
    ]


def recipe(loud: Loud, minis: Minis, **fields: Any) -> Recipe:
    experts = [str(loud("bert", which)) for which in ("a", "b")]
    given = {"base": str(minis("bert")["base"]), "tasks": ["toy/pairs"], "device": "cpu"}
    return Recipe.model_validate({"experts": experts, **given, **fields})


# One bar ------------------------------------------------------------------------------------


def told_of(asked: Recipe, out: Path) -> list[tuple[str, int, int]]:
    told: list[tuple[str, int, int]] = []
    harness.merge(asked, out=out, progress=lambda *step: told.append(step))
    return told


def test_what_is_told_of_progress_is_all_work_of_the_merge(
    mine: Path, loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    """The rows of two needs, of three candidates that are tuned, and the tensors, in one total."""
    harness.load_plugins(mine)
    asked = recipe(
        loud, minis, premerge=["halved:examples=8"], merger="regmean:examples=9",
        tune="off_diagonal=0.5:0.9:0.2",
    )  # fmt: skip
    told = told_of(asked, tmp_path / "out")
    tensors = len(load_file(tmp_path / "out" / "model.safetensors"))
    scored = 3 * len(load_rows(TOY, "heldout10"))
    of = Counter({what: 0 for what, _, _ in told})
    for what, done, _ in told:
        of[what] += done
    names = [Path(expert).name for expert in asked.experts]
    assert of == {
        **{f"gram of {name}": 8 + 9 for name in names},
        "scoring candidates": scored,
        "merging tensors": tensors,
    }
    assert {in_all for _, _, in_all in told} == {of.total()}
    again = told_of(asked, tmp_path / "again")  # of statistics in the cache, at once
    assert sum(done for _, done, _ in again) == of.total()


@pytest.mark.parametrize(("asked", "shown"), [(30, 8), (4, 4)])
@pytest.mark.parametrize("merger", ["regmean", "fisher"])
def test_no_method_is_shown_more_examples_than_a_limit(
    loud: Loud, minis: Minis, tmp_path: Path, merger: str, asked: int, shown: int
) -> None:
    made = []
    for examples, limit in ((asked, 8), (shown, None), (30, None)):
        out = tmp_path / f"{examples}-{limit}"
        merger_of = f"{merger}:examples={examples}"
        harness.merge(recipe(loud, minis, merger=merger_of, examples_limit=limit), out=out)
        made.append(json.loads((out / "merge.json").read_text()))
    assert made[0]["digest"] == made[1]["digest"] != made[2]["digest"]
    assert made[0]["statistics"] == made[1]["statistics"]
    assert [one.get("examples_limit") for one in made] == [8, None, None]


def test_what_a_method_asks_for_while_it_merges_adds_to_the_work(
    loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    told = told_of(recipe(loud, minis, merger="soup"), tmp_path / "out")
    tensors = len(load_file(tmp_path / "out" / "model.safetensors"))
    scored = 3 * len(load_rows(TOY, "heldout10"))
    assert {in_all for _, _, in_all in told} <= {tensors, tensors + scored}
    assert told[-1][2] == sum(done for _, done, _ in told) == tensors + scored


def test_a_part_that_is_done_again_is_told_of_once() -> None:
    told: list[tuple[str, int, int]] = []
    work = Workload(lambda *step: told.append(step))
    assert work.steps("unplanned", "u") is None
    work.plan("a", 3)
    work.plan("a", 5)  # counted already
    work.plan("b", 4)
    step = work.steps("A", "a")
    assert step is not None
    step(2)
    step(2)
    assert work.steps("A", "a") is None
    work.tell("c", 1, 2)
    work.tell("c", 1, 2)
    work.tell("c", 1, 2)
    assert told == [("A", 2, 7), ("A", 1, 7), ("c", 1, 9), ("c", 1, 9)]
    assert Workload(None).steps("A", "a") is None


def test_work_that_counts_by_itself_is_a_share_of_a_part() -> None:
    told: list[tuple[str, int, int]] = []
    work = Workload(lambda *step: told.append(step))
    work.plan("a", 10)
    work.plan("b", 10)
    tell = work.within("A", "a")
    assert tell is not None
    tell("x", 1, 2)
    tell("x", 1, 8)  # its total grew: a quarter, which is less than was told
    tell("y", 4, 8)  # three quarters, 7 of 10
    work.finish("A", "a")
    work.finish("A", "a")
    tell("y", 2, 8)
    work.finish("B", "b")
    assert told == [("A · x", 5, 20), ("A · y", 2, 20), ("A", 3, 20), ("B", 10, 20)]
    assert Workload(None).within("A", "a") is None


# A plug-in brings one ----------------------------------------------------------------------


def reference(folder: Path, examples: int) -> dict[str, torch.Tensor]:
    """The mean magnitude of the inputs of every linear layer, row by row, in float64."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).double().eval()
    words, seen = AutoTokenizer.from_pretrained(folder), dict[str, list[torch.Tensor]]()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(
                lambda _, args, name=name: seen.setdefault(name, []).append(
                    args[0].reshape(-1, args[0].shape[-1])
                )
            )
    with torch.no_grad():
        for texts in draw_rows(TOY, examples, 0, None).texts:
            model(**words(*texts, return_tensors="pt"))
    return {f"{name}.weight": torch.cat(rows).abs().mean(0) for name, rows in seen.items()}


def test_a_plugin_brings_a_need_and_a_pre_merging_method_has_it(
    mine: Path, loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    harness.load_plugins(mine)
    asked = recipe(loud, minis, premerge=["by_inputs:examples=8"], merger="average")
    harness.merge(asked, out=tmp_path / "out")
    merged, base = load_file(tmp_path / "out" / "model.safetensors"), minis("bert")["base"]
    old = load_file(base / "model.safetensors")
    name = "encoder.layer.1.output.dense.weight"
    parts = []
    for which in ("a", "b"):
        means = reference(loud("bert", which), 8)[f"bert.{name}"]
        expert = load_file(loud("bert", which) / "model.safetensors")[f"bert.{name}"].double()
        parts.append(old[name].double() + (expert - old[name].double()) * means / means.max())
    torch.testing.assert_close(
        merged[f"bert.{name}"].double(), sum(parts) / 2, rtol=1e-4, atol=1e-5
    )


def test_the_record_says_what_a_pre_merging_method_was_given(
    mine: Path, loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    """Each method has statistics of the experts as they enter it."""
    harness.load_plugins(mine)
    methods = ["by_inputs:examples=8,least=0.1", "by_inputs:examples=9"]
    asked = recipe(loud, minis, premerge=methods, merger="regmean:examples=8")
    harness.merge(asked, out=tmp_path / "out")
    record = record_of(tmp_path / "out")
    first, second = (stage["statistics"] for stage in record["premerge"])
    assert [one["kind"] for one in first] == ["magnitudes", "magnitudes"]
    assert [one["digest"] for one in first] == [one["digest"] for one in record["experts"]]
    assert first[0]["options"] == {"examples": 8, "seed": 0}
    assert second[0]["options"] == {"examples": 9, "seed": 0}
    assert first[0]["task"] == "toy/pairs@train90"
    assert first[0]["rows"] != second[0]["rows"]
    assert record["premerge"][0]["options"]["examples"] == 8
    assert [one["kind"] for one in record["statistics"]] == ["gram", "gram"]
    digests = [one[0]["digest"] for one in (first, second, record["statistics"])]
    assert len(set(digests)) == 3


def test_files_feed_a_pre_merging_method(
    mine: Path,
    loud: Loud,
    minis: Minis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From the command line, without the data; in any order, and no others."""
    mine_too = ["--plugins", str(mine), "--device", "cpu"]
    files = []
    for which in ("a", "b"):
        files.append(str(tmp_path / f"{which}.safetensors"))
        asked = ["--need", "magnitudes:examples=8", "--task", "toy/pairs", "--out", files[-1]]
        assert main(["statistics", str(loud("bert", which)), *asked, *mine_too]) == 0
    assert "magnitudes of " in capsys.readouterr().out
    experts = [str(loud("bert", which)) for which in ("a", "b")]
    flags = ["--base", str(minis("bert")["base"]), "--premerge", "by_inputs:examples=8", *mine_too]
    rows = ["merge", *experts, *flags, "--tasks", "toy/pairs", "--out", str(tmp_path / "rows")]
    assert main(rows) == 0
    monkeypatch.setattr(
        "harness.passes.statistics.load_rows", lambda *_, **__: pytest.fail("data read")
    )
    given = ["--statistics", f"{files[1]},{files[0]}", "--out", str(tmp_path / "files")]
    assert main(["merge", *experts, *flags, *given]) == 0
    found, expected = record_of(tmp_path / "files"), record_of(tmp_path / "rows")
    assert found["digest"] == expected["digest"]
    assert given_to(found) == given_to(expected)
    capsys.readouterr()
    other = [flag.replace("examples=8", "examples=9") for flag in flags]
    refused(
        ["merge", *experts, *other, *given[:2], "--out", str(tmp_path / "no")],
        BadOption,
        "examples=8 9",
    )


def test_needs_are_listed(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "needs", "--json", "--plugins", str(mine)]) == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert {*listed} == {"magnitudes", *OURS}
    assert listed["magnitudes"]["options"]["examples"]["default"] == 64
    assert listed["gram"]["paper"] == "arXiv:2212.09849"
    assert all(one["summary"] for one in listed.values())
    assert main(["list", "premerge", "--json", "--plugins", str(mine)]) == 0
    methods = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert [*methods["by_inputs"]["options"]] == ["least", "examples", "seed"]


def test_a_method_prints_without_the_defaults_of_its_needs(
    mine: Path, loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    harness.load_plugins(mine)
    asked = recipe(loud, minis, premerge=["by_inputs:examples=8"], merger="ties")
    harness.merge(asked, out=tmp_path / "out")
    assert record_of(tmp_path / "out")["method"] == "by_inputs:examples=8[ties]"


def test_a_dry_run_reads_no_row(
    mine: Path, loud: Loud, minis: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.load_plugins(mine)
    for place in ("harness.passes.statistics.load_rows", "harness.merging.validation.load_rows"):
        monkeypatch.setattr(place, lambda *_, **__: pytest.fail("data read"))
    asked = recipe(loud, minis, premerge=["by_inputs"], merger="soup")
    harness.merge(asked, out=tmp_path / "out", dry_run=True)


@contextmanager
def loud_as(mine: Path, code: str) -> Iterator[None]:
    """The user's folder, loaded with this code in one of its files."""
    (mine / "loud.py").write_text(code)
    forget()
    with pytest.MonkeyPatch.context() as patch:
        for known in (harness.PREMERGE, harness.NEEDS):
            patch.setattr(known, "_values", dict(known._values))
            patch.setattr(known, "_origins", dict(known._origins))
        harness.load_plugins(mine)
        yield


OTHERWISE = LOUD.replace("abs()", "square()")


def test_what_changed_code_computes_is_computed_anew(
    mine: Path, loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    """In whichever file of the plug-in the code stands; and what did not change is kept."""
    asked = recipe(loud, minis, premerge=["by_inputs:examples=8"])
    digests = []
    for place, code in enumerate([LOUD, LOUD, OTHERWISE]):
        with loud_as(mine, code):
            harness.merge(asked, out=tmp_path / str(place))
        digests.append(record_of(tmp_path / str(place))["digest"])
    assert digests[0] == digests[1] != digests[2]


def test_a_file_that_other_code_wrote_is_refused(
    mine: Path, loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    """As a merge of rows computes it anew: the merge would say that the new code had made it."""
    with loud_as(mine, LOUD):
        files = files_of(loud, tmp_path, "magnitudes:examples=8")
        asked = recipe(loud, minis, premerge=["by_inputs:examples=8"], statistics=files)
        harness.merge(asked, out=tmp_path / "out")
    said = mistake(BrokenCheckpoint, files[0], "'magnitudes'", "harness statistics")
    with loud_as(mine, OTHERWISE), said:
        harness.merge(asked, out=tmp_path / "other")


def test_a_file_of_before_that_names_no_code_is_told(
    mine: Path, loud: Loud, minis: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loud_as(mine, LOUD):
        with monkeypatch.context() as before:
            before.setattr("harness.passes.statistics.code_of", lambda function: None)
            files = files_of(loud, tmp_path, "magnitudes:examples=8")
        asked = recipe(loud, minis, premerge=["by_inputs:examples=8"], statistics=files)
        with pytest.warns(UserWarning, match="does not say which code of the need 'magnitudes'"):
            harness.merge(asked, out=tmp_path / "out")


# Several methods of one merge --------------------------------------------------------------


def files_of(loud: Loud, tmp_path: Path, need: str) -> list[str]:
    files = []
    for which in ("a", "b"):
        out = tmp_path / f"{which}-{need.partition(':')[0]}.safetensors"
        harness.statistic(loud("bert", which), task="toy/pairs", need=need, out=out, device="cpu")
        files.append(str(out))
    return files


def test_files_are_for_the_method_whose_experts_they_are_of(
    mine: Path, loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    """Of two methods with one need the other reads rows; a file that is of neither is refused."""
    harness.load_plugins(mine)
    files = files_of(loud, tmp_path, "gram:examples=8")
    methods = {"premerge": ["halved:examples=8"], "merger": "regmean:examples=8"}
    harness.merge(recipe(loud, minis, **methods), out=tmp_path / "rows")
    harness.merge(recipe(loud, minis, **methods, statistics=files), out=tmp_path / "files")
    found, expected = record_of(tmp_path / "files"), record_of(tmp_path / "rows")
    assert found["digest"] == expected["digest"]
    assert given_to(found) == given_to(expected)
    assert found["statistics"] == expected["statistics"]
    assert found["statistics"] != found["premerge"][0]["statistics"]
    other = harness.statistic(
        loud("bert", "c"), task="toy/three", need="gram:examples=8", out=tmp_path / "c.safetensors"
    )
    asked = recipe(loud, minis, **methods, statistics=[*files, other.source])
    with mistake(BadRecipe, "c.safetensors gram"):
        harness.merge(asked, out=tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_statistics_of_different_needs_go_where_they_belong(
    mine: Path, loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    harness.load_plugins(mine)
    methods = {"premerge": ["whitened:examples=8"], "merger": "fisher:examples=8"}
    harness.merge(recipe(loud, minis, **methods), out=tmp_path / "rows")
    files = [
        *files_of(loud, tmp_path, "fisher:examples=8"),
        *files_of(loud, tmp_path, "gram:examples=8"),
    ]
    asked = recipe(loud, minis, **methods, statistics=files)
    harness.merge(asked, out=tmp_path / "files")
    assert record_of(tmp_path / "files")["digest"] == record_of(tmp_path / "rows")["digest"]


# Shared rows, and none ---------------------------------------------------------------------


def test_a_pre_merging_method_scores_candidates(minis: Minis, tmp_path: Path) -> None:
    """Whole experts, on the rows of every task, each with the head of its own task."""
    scores: list[float] = []

    @harness.premerge("scaled")
    def scaled(experts: Any, base: Any, *, score: Any) -> Any:
        """Experts as they are, once each has a score."""

        def scored(name: str) -> torch.Tensor:
            if not scores:
                scores.extend(score(expert) for expert in experts)
            tensor: torch.Tensor = experts[0][name].clone()
            return tensor

        first = harness.weights.Lazy(harness.weights.specs(experts[0]), scored)
        return [first, *experts[1:]]

    experts = [str(minis("bert")[which]) for which in ("a", "c")]
    asked = {
        "experts": experts,
        "base": str(minis("bert")["base"]),
        "premerge": ["scaled"],
        "tasks": ["toy/pairs", "toy/three"],
        "device": "cpu",
    }
    harness.merge(Recipe.model_validate(asked), out=tmp_path / "out")
    record = record_of(tmp_path / "out")
    assert record["premerge"][0]["scored_on"] == ["toy/pairs@heldout10", "toy/three@heldout10"]
    assert record["scored_on"] == record["premerge"][0]["scored_on"]
    seen = harness.Run(model=str(tmp_path / "out"), tasks=("toy/pairs@heldout10",))
    with mistake(BadRecipe, tmp_path / "out", "toy/pairs@heldout10"):
        harness.evaluate(seen)
    assert len(scores) == 2
    on = Recipe.model_validate({**asked, "tune_on": ["toy/pairs@heldout10"]})
    harness.merge(on, out=tmp_path / "on")
    assert record_of(tmp_path / "on")["premerge"][0]["scored_on"] == ["toy/pairs@heldout10"]


def test_a_need_of_no_rows_is_made_of_the_experts(minis: Minis, tmp_path: Path) -> None:
    @harness.need("widths", rows="none")
    def widths(experts: Any, *, factor: int = 1) -> list[int]:
        """How wide the experts are."""
        return [factor * expert.config["hidden_size"] for expert in experts]

    seen = []

    @harness.merger("wide", task_vectors=False)
    def wide(experts: Any, base: Any, *, widths: Any, strict: bool = True) -> Any:
        """The first expert."""
        seen.append((widths, strict))
        return experts[0]

    experts = tuple(str(minis("bert")[which]) for which in ("a", "b"))
    asked = Recipe.model_validate({"experts": experts, "merger": "wide:factor=2"})
    harness.merge(asked, out=tmp_path / "out")
    assert seen == [([32, 32], True)]
    assert record_of(tmp_path / "out")["merger"]["options"] == {"strict": True, "factor": 2}


# The properties ----------------------------------------------------------------------------------


@pytest.mark.parametrize("drawn_by", [", generator=torch.Generator().manual_seed(place)", ""])
def test_the_properties_make_up_what_a_plugin_needs(
    drawn_by: str, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the toys are drawn without a seed."""
    seed = ", generator=torch.Generator().manual_seed(place)"
    assert seed in MINE
    (mine / "mine.py").write_text(MINE.replace(seed, drawn_by))
    assert main(["check", "premerge", "by_inputs", "--plugins", str(mine)]) == 0
    found = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines())
    assert (found["copies"], found["heads"]) == ("breaks", "holds")


def test_the_properties_find_what_is_wrong_with_given_toys(mine: Path) -> None:
    from harness.checking.battery import battery

    harness.load_plugins(mine)
    harness.PREMERGE.add(replace(harness.PREMERGE["halved"], name="exactly", exact=True), "here")
    broken = [
        one.name for one in battery("premerge", harness.Choice("exactly")).findings() if not one.ok
    ]
    assert {"exact", "copies", "zero"} <= {*broken}


def test_what_cannot_be_made_up_is_said_in_one_line(mine: Path) -> None:
    (mine / "mine.py").write_text(MINE.replace("shapes=shapes, toy=toy", "shapes=shapes"))
    command = ["check", "premerge", "by_inputs", "--plugins", mine]
    refused(command, HarnessError, "by_inputs magnitudes @need('magnitudes', toy=")


def test_a_need_may_be_decorated(mine: Path) -> None:
    """Its options are those of the function within."""
    gentle = (
        "import functools\n\ndef gentle(function):\n    @functools.wraps(function)\n"
        "    def same(*given, **options):\n        return function(*given, **options)\n"
        "    return same\n\n\n@need("
    )
    made = MINE.replace("@need(", gentle, 1).replace("def magnitudes", "@gentle\ndef magnitudes")
    (mine / "mine.py").write_text(made)
    harness.load_plugins(mine)
    assert "magnitudes" in harness.NEEDS


# What is wrong with one --------------------------------------------------------------------

#: what becomes of the plug-in's file -> what is said of it
BROKEN: dict[str, tuple[str, str, str]] = {
    "no name": ('need("magnitudes"', 'need("magni-tudes"', "name parameter"),
    "no shapes": ("shapes=shapes, toy=toy", "toy=toy", "shapes"),
    "no draw": (", seed: int = 0", "", "options examples seed"),
    "options in order": ("*, examples", "examples", "options examples seed *"),
    "whose": (
        "shapes=shapes, toy",
        'rows="mine", toy',
        "rows='mine",
    ),
    "taken": ('need("magnitudes"', 'need("gram"', "gram registered mine.py"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_need_that_cannot_be_registered(case: str, mine: Path) -> None:
    old, new, said = BROKEN[case]
    assert old in MINE
    (mine / "mine.py").write_text(MINE.replace(old, new))
    error = refused(["list", "needs", "--plugins", mine], BrokenPlugin, said)
    names(error, "mine.py")
    assert "magnitudes" not in harness.NEEDS


#: what becomes of the plug-in's file -> what is said when it is used
WRONG: dict[str, tuple[str, str, list[str]]] = {
    "another shape": ("Spec(spec.shape[1:], ", "Spec(spec.shape[:1], ",
                      ["bert.encoder.layer.0.intermediate.dense.weight", "expected"]),
    "another type": ("Spec(spec.shape[1:], torch.float32)", "Spec(spec.shape[1:], torch.float64)",
                     ["torch.float32", "torch.float64", "shapes"]),
    "other names": ('{f"{name}.weight": total', '{f"{name}.wait": total',
                    ["tensors", "classifier.wait"]),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_need_that_makes_something_else(
    case: str, mine: Path, loud: Loud, tmp_path: Path
) -> None:
    old, new, said = WRONG[case]
    assert old in MINE
    (mine / "mine.py").write_text(MINE.replace(old, new))
    asked = ["--need", "magnitudes:examples=8", "--task", "toy/pairs", "--plugins", str(mine)]
    out = tmp_path / "out.safetensors"
    command = ["statistics", loud("bert"), *asked, "--out", out]
    refused(command, IncompatibleWeights, "magnitudes", *said)
    assert not out.exists()


ASKED: dict[str, tuple[list[str], str]] = {
    "both": (["--need", "gram", "--merger", "regmean"], "merger"),
    "a preset": (["--need", "gram", "--preset", "regmean"], "preset mergers"),
    "no statistic": (["--need", "score"], "score statistic expert fisher"),
    "a near miss": (["--need", "grams"], "grams gram"),
    "an option": (["--need", "gram:estimator=hard"], "gram option estimator"),
    "no need": (["--need", "json:loads"], "json:loads function"),
}


@pytest.mark.parametrize("case", ASKED)
def test_a_need_that_cannot_be_had(case: str, loud: Loud, tmp_path: Path) -> None:
    flags, said = ASKED[case]
    asked = ["statistics", str(loud("bert")), "--task", "toy/pairs", *flags]
    refused([*asked, "--out", str(tmp_path / "out.safetensors")], HarnessError, said)


def test_a_method_on_experts_of_no_known_task_says_what_it_needs(
    mine: Path, loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    harness.load_plugins(mine)
    asked = recipe(loud, minis, premerge=["by_inputs"], tasks=[])
    with mistake(BadRecipe, "magnitudes --tasks --statistics"):
        harness.merge(asked, out=tmp_path / "out")


def test_a_pre_merging_method_that_asks_for_something_unknown(
    mine: Path, loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    (mine / "mine.py").write_text(MINE.replace("base, *, gram):", "base, *, horoscope):"))
    harness.load_plugins(mine)
    known = ", ".join(sorted({"magnitudes", *OURS}))
    with mistake(UnknownName, "whitened horoscope", known):
        harness.merge(recipe(loud, minis, premerge=["whitened"]), out=tmp_path / "out")
