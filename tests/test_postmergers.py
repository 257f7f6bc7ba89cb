"""Post-merging methods: the stage after the merger, LiNeS and singular value calibration."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import yaml
from safetensors.torch import load_file

import harness
from harness import Choice, Recipe, StateDict, merge, parse_choice, weights
from harness.catalogue import catalogue
from harness.checking.battery import battery, ok
from harness.checking.properties import PROPERTIES
from harness.cli import main
from harness.entries import Postmerge
from harness.errors import BadOption, BadRecipe, HarnessError, IncompatibleWeights, UnknownName
from tests.mistakes import mistake, refused
from tests.toys import TOY, registered

Minis = Callable[[str], dict[str, Path]]
Loud = Callable[..., Path]
Matrix = npt.NDArray[np.float64]

LAYERS = {
    "bert.embeddings.word_embeddings.weight": (7, 4),
    "bert.encoder.layer.0.dense.weight": (4, 6),
    "bert.encoder.layer.0.dense.bias": (4,),
    "bert.encoder.layer.1.dense.weight": (6, 4),
    "bert.encoder.layer.2.LayerNorm.weight": (4,),
    "bert.encoder.layer.2.dense.weight": (3, 3),
    "bert.pooler.dense.weight": (4, 4),
    "classifier.weight": (2, 4),
}
HEAD = "classifier.weight"


def states(count: int = 3, dtype: torch.dtype = torch.float64) -> tuple[list[StateDict], StateDict]:
    """Experts with a head and a base without one."""
    made = []
    for seed in range(count + 1):
        numbers = torch.Generator().manual_seed(seed)
        made.append(
            {
                name: torch.randn(shape, generator=numbers, dtype=torch.float64).to(dtype)
                for name, shape in LAYERS.items()
            }
        )
    base = {name: tensor for name, tensor in made[0].items() if name != HEAD}
    return list(made[1:]), base


def post(name: str, **options: Any) -> Callable[..., StateDict]:
    function = harness.POSTMERGE[name].function
    return lambda *given: function(*given, **options)


def summed(experts: Sequence[StateDict], base: StateDict, scale: float) -> StateDict:
    """Task arithmetic, the head averaged."""
    return {
        name: base[name] + scale * sum(e[name] - base[name] for e in experts)
        if name in base
        else sum(e[name] for e in experts) / len(experts)
        for name in experts[0]
    }


# LiNeS -------------------------------------------------------------------------------------


def plain_lines(
    merged: StateDict,
    experts: Sequence[StateDict],
    base: StateDict,
    alpha: float | None,
    beta: float,
) -> dict[str, Matrix]:
    """Entry by entry, with the factor of each layer written out."""
    vectors = [{n: (e[n] - base[n]).double().numpy() for n in base} for e in experts]
    joined = {n: (merged[n] - base[n]).double().numpy() for n in base}
    if alpha is None:
        whole = sum(np.abs(sum(v[n] for v in vectors)).sum() for n in base)
        alpha = whole / sum(np.abs(joined[n]).sum() for n in base) / len(experts)
    factors = {"layer.0": alpha, "layer.1": alpha + beta / 2, "layer.2": alpha + beta}
    found = {HEAD: merged[HEAD].double().numpy()}
    for name in base:
        factor = next((f for key, f in factors.items() if key in name), alpha)
        found[name] = base[name].double().numpy() + factor * joined[name]
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize(("alpha", "beta"), [(None, 1.0), (None, 0.4), (0.0, 1.0), (0.25, -0.5)])
def test_lines_agrees_with_numpy(
    alpha: float | None, beta: float, scale: float, dtype: torch.dtype
) -> None:
    experts, base = states(dtype=dtype)
    wide = [{n: t.double() for n, t in e.items()} for e in experts]
    origin = {n: t.double() for n, t in base.items()}
    merged = summed(wide, origin, scale)
    given = {} if alpha is None else {"alpha": alpha}
    found = post("lines", beta=beta, **given)(merged, experts, base)
    expected = plain_lines(merged, wide, origin, alpha, beta)
    for name in found:
        np.testing.assert_allclose(found[name].numpy(), expected[name], rtol=1e-6, atol=1e-6)


def test_lines_by_hand() -> None:
    """The case of its docstring; a tensor of no layer is scaled as the first."""
    base = {"a.0.w": torch.zeros(1), "a.1.w": torch.zeros(1), "e": torch.zeros(1)}
    tensors = [{"a.0.w": 2.0, "a.1.w": 1.0, "e": 0.0}, {"a.0.w": 4.0, "a.1.w": 3.0, "e": 0.0}]
    experts = [{n: torch.tensor([v]) for n, v in one.items()} for one in tensors]
    found = post("lines")(weights.mean(experts), experts, base)
    assert {n: float(found[n]) for n in found} == {"a.0.w": 3.0, "a.1.w": 4.0, "e": 0.0}
    assert found.report == {"alpha": 1.0}
    plain = post("lines")(summed(experts, base, 1.0), experts, base)
    _ = plain["e"]
    assert plain.report == {"alpha": 0.5}  # 1 / n after the plain sum
    moved = {**base, "e": torch.ones(1)}
    assert float(post("lines", alpha=0.25)(moved, experts, base)["e"]) == 0.25


def test_lines_of_one_layer_and_of_no_change() -> None:
    base = {"a.0.w": torch.zeros(2)}
    one = {"a.0.w": torch.ones(2)}
    found = post("lines", alpha=0.5)(one, [one], base)
    assert torch.equal(found["a.0.w"], torch.full((2,), 0.5))
    assert torch.equal(post("lines")(base, [one], base)["a.0.w"], torch.zeros(2))


# Singular value calibration ----------------------------------------------------------------


def plain_svc(
    merged: StateDict, experts: Sequence[StateDict], base: StateDict, alpha: float, floor: str
) -> dict[str, Matrix]:
    """One singular vector of one matrix after the other, with scipy."""
    import scipy.linalg

    found = {}
    for name in merged:
        found[name] = merged[name].double().numpy()
        if name not in base or merged[name].ndim != 2 or "embedding" in name:
            continue
        origin = base[name].double().numpy()
        left, values, right = scipy.linalg.svd(found[name] - origin, full_matrices=False)
        total = np.zeros_like(origin)
        for u, value, v in zip(left.T, values, right, strict=True):
            shares = []
            for expert in experts:
                own = u @ (expert[name].double().numpy() - origin)
                shares.append((value * v) @ own / (own @ own))
            if floor == "each":
                gamma = len(shares) / sum(max(alpha, share) for share in shares)
            else:
                gamma = 1 / max(alpha, np.mean(shares)) if min(shares) > 0 else 1.0
            total += gamma * value * np.outer(u, v)
        found[name] = origin + total
    return found


@pytest.mark.parametrize("floor", ["each", "mean"])
@pytest.mark.parametrize("alpha", [1.0, 1 / 3, 0.1])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_svc_agrees_with_scipy(scale: float, alpha: float, floor: str) -> None:
    experts, base = states()
    near = {name: sum(e[name] for e in experts) / 3 for name in experts[0]}
    # of one direction in common, so that some shares are positive for all
    experts = [{n: e[n] + 3 * near[n] for n in e} for e in experts]
    merged = summed(experts, base, scale)
    found = post("svc", alpha=alpha, floor=floor)(merged, experts, base)
    expected = plain_svc(merged, experts, base, alpha, floor)
    changed = 0
    for name in found:
        np.testing.assert_allclose(found[name].numpy(), expected[name], rtol=1e-9, atol=1e-9)
        changed += not torch.equal(found[name], merged[name])
    assert changed == 4


def test_svc_by_hand() -> None:
    """The case of its docstring, over a base that is not zero."""
    base = {"w": torch.tensor([[5.0, 1.0], [0.0, 2.0]])}
    tasks = [torch.diag(torch.tensor(d)) for d in ([3.0, 0.0], [1.0, 2.0])]
    experts = [{"w": base["w"] + task} for task in tasks]
    merged = {"w": base["w"] + torch.diag(torch.tensor([4.0, 2.0]))}
    found = post("svc")(merged, experts, base)["w"] - base["w"]
    torch.testing.assert_close(found, torch.diag(torch.tensor([1.5, 2.0])))
    code = post("svc", floor="mean")(merged, experts, base)["w"] - base["w"]
    torch.testing.assert_close(code, torch.diag(torch.tensor([1.5, 2.0])))  # the 0 is not positive


def test_svc_never_makes_a_singular_value_larger_at_one() -> None:
    experts, base = states()
    merged = summed(experts, base, 1.0)
    found = post("svc")(merged, experts, base)
    for name in ("bert.encoder.layer.0.dense.weight", "bert.pooler.dense.weight"):
        before, after = (
            torch.linalg.svdvals(state[name] - base[name]) for state in (merged, found)
        )
        assert (after <= before.max() + 1e-12).all()
        assert after.sum() < before.sum()


# The stage ---------------------------------------------------------------------------------


def halved(
    merged: StateDict, experts: Sequence[StateDict], base: StateDict, *, share: float = 0.5
) -> StateDict:
    """Half of what was merged."""
    return weights.where_shared(lambda _, w, b: b + (w - b) * share, merged, base)


def to_first(merged: StateDict, experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Half way to the first expert."""
    return weights.each(lambda a, b: (a + b) / 2, merged, experts[0])


@pytest.fixture(autouse=True)
def _methods(as_found: None) -> Iterator[None]:
    harness.postmerge("halved", paper="nowhere")(halved)
    harness.postmerge("to_first")(to_first)
    with registered(TOY):
        yield


def recipe(found: dict[str, Path], **more: Any) -> Recipe:
    values: dict[str, Any] = {"merger": "ties", **more}
    return Recipe(experts=(str(found["a"]), str(found["b"])), base=str(found["base"]), **values)


def tensors(folder: Path | str) -> dict[str, torch.Tensor]:
    return load_file(Path(folder) / "model.safetensors")


def encoders(
    found: dict[str, Path],
) -> tuple[list[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    base = {f"bert.{name}": tensor for name, tensor in tensors(found["base"]).items()}
    return [tensors(found[name]) for name in ("a", "b")], base


@pytest.mark.parametrize("heads", ["merge", "average", "keep"])
def test_methods_after_the_merger_run_in_order(heads: str, minis: Minis, tmp_path: Path) -> None:
    """On what is merged, the experts that entered the merger, and the base; heads that are none of
    it stay what they are."""
    found = minis("bert")
    kept = {"tasks": ("toy/pairs", "glue/rte")} if heads == "keep" else {}
    asked = {"merger": "average", "heads": heads, **kept}
    merge(recipe(found, **asked), out=tmp_path / "plain")
    merge(recipe(found, postmerge=("halved", "to_first"), **asked), out=tmp_path / "out")
    plain, out = tensors(tmp_path / "plain"), tensors(tmp_path / "out")
    (first, _), base = encoders(found)
    assert out.keys() == plain.keys()
    for name, tensor in plain.items():
        middle = base[name] + (tensor - base[name]) / 2 if name in base else tensor
        expected = (middle + first[name]) / 2 if name in base or heads == "merge" else tensor
        torch.testing.assert_close(out[name], expected, rtol=1e-6, atol=1e-6)
    other = tmp_path / "turned"
    merge(recipe(found, postmerge=("to_first", "halved"), **asked), out=other)
    assert any(not torch.equal(tensors(other)[name], out[name]) for name in out)


def test_experts_are_those_that_enter_the_merger(minis: Minis, tmp_path: Path) -> None:
    found = minis("bert")
    asked = recipe(
        found, premerge=("dare:drop_rate=0.5",), postmerge=("to_first",), merger="average"
    )
    merge(asked, out=tmp_path / "out")
    experts, base = encoders(found)
    dropped = harness.PREMERGE["dare"].function(experts, base, drop_rate=0.5, seed=0)
    out = tensors(tmp_path / "out")
    for name in base:
        if name in out:
            expected = (3 * dropped[0][name] + dropped[1][name]) / 4
            torch.testing.assert_close(out[name], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "deberta-v2", "electra"])
@pytest.mark.parametrize("name", ["lines:beta=0.5", "svc:alpha=0.3"])
def test_ours_on_folders_of_each_family(
    name: str, family: str, minis: Minis, tmp_path: Path
) -> None:
    """What stands in the folder is the function of what stands in the folder without it."""
    found = minis(family)
    asked = {"merger": "task_arithmetic:scale=0.7", "heads": "average"}
    merge(recipe(found, **asked), out=tmp_path / "plain")
    done = merge(recipe(found, postmerge=(name,), **asked), out=tmp_path / "out")
    plain, out = tensors(tmp_path / "plain"), tensors(tmp_path / "out")
    choice = parse_choice(name)
    base = {n: done.base_state[n] for n in done.base_state}
    experts = [{n: e[n] for n in base} for e in map(tensors, (found["a"], found["b"]))]
    body = {n: plain[n] for n in base}
    options = done.recipe.postmerge[0].options
    expected = harness.POSTMERGE[choice.name].function(body, experts, base, **options)
    moved = 0
    for tensor_name, tensor in plain.items():
        want = expected[tensor_name] if tensor_name in base else tensor
        torch.testing.assert_close(out[tensor_name], want, rtol=1e-4, atol=1e-6)
        moved += not torch.allclose(out[tensor_name], tensor, rtol=1e-4, atol=1e-6)
    assert moved >= (10 if name.startswith("svc") else 20)


def test_candidates_are_scored_after_it(minis: Minis, tmp_path: Path, loud: Loud) -> None:
    """A method that turns every candidate into the same one makes them all score alike."""
    found = {**minis("bert"), **{which: loud("bert", which) for which in ("a", "b")}}

    @harness.postmerge("always_base")
    def always(merged: StateDict, experts: Sequence[StateDict], base: StateDict) -> StateDict:
        return weights.where_shared(lambda _, w, b: b.clone(), merged, base)

    def scores(*postmerge: str) -> list[float]:
        asked = recipe(
            found,
            merger="task_arithmetic",
            tasks=("toy/pairs",),
            tune="scale=0.2:3.0:1.4",
            postmerge=postmerge,
        )
        merge(asked, out=tmp_path / "out", force=True)
        record = json.loads((tmp_path / "out" / "merge.json").read_text())
        return [trial["score"] for trial in record["tuned"]["trials"]]

    made = []

    @harness.postmerge("counted")
    def counted(merged: StateDict, experts: Sequence[StateDict], base: StateDict) -> StateDict:
        made.append(merged)
        return halved(merged, experts, base)

    assert len(set(scores("always_base"))) == 1
    scores("counted")
    assert len(made) == 1 + 3  # for the plan, and for every candidate


def test_merge_json_and_the_name_of_the_method(minis: Minis, tmp_path: Path) -> None:
    asked = recipe(
        minis("bert"), premerge=("dare",), postmerge=("lines:beta=0.5", "svc:alpha=1.0"), seed=3
    )
    done = merge(asked, out=tmp_path / "out")
    assert asked.method == "dare[ties]+lines:beta=0.5+svc:alpha=1.0"
    record = json.loads((tmp_path / "out" / "merge.json").read_text())
    assert record["method"] == "dare[ties]+lines:beta=0.5+svc"
    lines, svc = record["postmerge"]
    assert lines["options"] == {"alpha": "norms", "beta": 0.5}
    assert 0 < lines["report"]["alpha"] < 10
    assert svc == {"name": "svc", "options": {"alpha": 1.0, "floor": "each"}}
    assert "report" not in record
    assert "dare[ties]+lines:beta=0.5+svc" in (tmp_path / "out" / "README.md").read_text()
    merge(recipe(minis("bert")), out=tmp_path / "plain")
    assert json.loads((tmp_path / "plain" / "merge.json").read_text())["postmerge"] == []
    assert done.report == {}


def test_flags_and_a_recipe_file_say_the_same(
    minis: Minis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = minis("bert")
    experts, base = [str(found[name]) for name in ("a", "b")], str(found["base"])
    flags = ["--base", base, "--postmerge", "lines:beta=0.5", "--postmerge", "svc"]
    assert main(["merge", *experts, *flags, "--out", str(tmp_path / "flags")]) == 0
    assert "method   average+lines:beta=0.5+svc\n" in capsys.readouterr().out
    (tmp_path / "recipe.yaml").write_text(
        yaml.safe_dump(
            {"experts": experts, "base": base, "postmerge": [{"name": "lines", "beta": 0.5}, "svc"]}
        )
    )
    both = ["merge", str(tmp_path / "recipe.yaml"), "--out"]
    assert main([*both, str(tmp_path / "file")]) == 0
    name = "model.safetensors"
    assert (tmp_path / "file" / name).read_bytes() == (tmp_path / "flags" / name).read_bytes()
    refused([*both, str(tmp_path / "no"), "--postmerge", "svc"], BadRecipe, "--postmerge")


def test_what_it_needs_is_met_on_the_experts_that_enter_the_merger(
    minis: Minis, tmp_path: Path
) -> None:
    @harness.postmerge("by_gram")
    def by_gram(
        merged: StateDict, experts: Sequence[StateDict], base: StateDict, *, gram: Any
    ) -> StateDict:
        """Linear layers nearer to the base, by how much their inputs are."""

        def fn(name: str, weight: torch.Tensor, origin: torch.Tensor) -> torch.Tensor:
            share = 1 / (1 + gram[0][name].trace().float()) if name in gram[0] else 1.0
            return origin + (weight - origin) * share

        return weights.where_shared(fn, merged, base)

    asked = recipe(
        minis("bert"), premerge=("dare",), postmerge=("by_gram:examples=4",), tasks=("toy/pairs",)
    )
    merge(asked, out=tmp_path / "out")
    record = json.loads((tmp_path / "out" / "merge.json").read_text())
    (stage,) = record["postmerge"]
    assert stage["options"]["examples"] == 4
    assert [one["kind"] for one in stage["statistics"]] == ["gram", "gram"]
    # of the experts that DARE has changed
    assert stage["statistics"][0]["digest"] != record["experts"][0]["digest"]


# What goes wrong ---------------------------------------------------------------------------


def test_no_base_is_refused(minis: Minis, tmp_path: Path) -> None:
    asked = recipe(minis("bert"), merger="average", postmerge=("lines",))
    with mistake(BadRecipe, "lines --base"):
        merge(asked.model_copy(update={"base": None}), out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("line", "no post-merging method is called 'line'; did you mean 'lines'"),
        ("lines:alpa=1", "has no option 'alpa'; did you mean 'alpha'"),
        ("lines:alpha=-1", "option 'alpha' of post-merging method 'lines' is -1"),
        ("svc:alpha=0", "option 'alpha' of post-merging method 'svc' is 0"),
    ],
)
def test_bad_input_is_one_line_before_work_starts(
    name: str, said: str, minis: Minis, tmp_path: Path
) -> None:
    found = minis("bert")
    command = ["merge", str(found["a"]), str(found["b"]), "--base", str(found["base"])]
    command += ["--postmerge", name, "--out", str(tmp_path / "out")]
    assert said in refused(command, HarnessError)
    assert not list(tmp_path.iterdir())


def test_one_that_loses_a_tensor_is_refused(minis: Minis, tmp_path: Path) -> None:
    @harness.postmerge("loses")
    def loses(merged: StateDict, experts: Sequence[StateDict], base: StateDict) -> StateDict:
        return weights.select(merged, list(merged)[1:])

    with mistake(IncompatibleWeights, "loses bert.embeddings.LayerNorm.bias"):
        merge(recipe(minis("bert"), postmerge=("loses",)), out=tmp_path / "out")


def test_a_name_in_a_recipe_imports_nothing(minis: Minis, tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"experts": ["/nowhere"], "postmerge": ["payload:x"]}))
    with mistake(UnknownName, "payload:x"):
        merge(path, out=tmp_path / "out")


# Properties, lists and plug-ins ------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in harness.POSTMERGE if n in ("lines", "svc")])
def test_every_post_merging_method_of_ours_keeps_the_properties(name: str) -> None:
    findings = battery("postmerge", Choice(name)).findings()
    assert ok(findings), "\n".join(map(str, findings))


def test_all_of_ours_are_checked() -> None:
    assert {*harness.POSTMERGE} - {"halved", "to_first"} == {"lines", "svc"}


OPTIONS = {
    "lines:alpha=0.0": {"copies"},
    "lines:alpha=1.0,beta=0.0": set(),
    "svc:floor=mean": set(),
    "svc:alpha=0.1": set(),
}


@pytest.mark.parametrize("text", OPTIONS)
def test_options_of_ours(text: str) -> None:
    found = {
        f.name for f in battery("postmerge", parse_choice(text)).findings() if f.verdict != "holds"
    }
    assert found == OPTIONS[text]


def lost(merged: StateDict, experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.select(merged, list(merged)[1:])


def at_once(merged: StateDict, experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return {name: merged[name].clone() for name in merged}


def the_first(merged: StateDict, experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.each(torch.clone, experts[0])


def noisy(merged: StateDict, experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.each(lambda w: w + 1e-3 * torch.randn(w.shape), merged)


def written_to(merged: StateDict, experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.each(lambda w, b: b.add_(w).mul_(0.5), merged, base)


def by_first_piece(merged: StateDict, experts: Sequence[StateDict], base: StateDict) -> StateDict:
    def fn(w: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        flat = w.clone().reshape(-1)
        flat[:1000] = e.reshape(-1)[:1000]
        return flat.view(w.shape)

    return weights.each(fn, merged, experts[0])


WRONG = {
    lost: "shapes",
    at_once: "memory",
    the_first: "order",
    noisy: "bytes",
    written_to: "inputs",
    by_first_piece: "large",
}


@pytest.mark.fault
@pytest.mark.parametrize("fault", WRONG, ids=lambda fault: fault.__name__)
def test_a_wrong_one_is_caught(fault: Callable[..., StateDict]) -> None:
    entry = Postmerge("wrong", fault)
    finding = battery("postmerge", Choice("wrong"), entry).find(PROPERTIES[WRONG[fault]])
    assert finding.verdict == "breaks", finding


def test_the_properties_are_those_of_mergers() -> None:
    properties = {
        stage: [checked.name for checked in PROPERTIES.values() if stage in checked.stages]
        for stage in ("merger", "postmerge")
    }
    assert {*properties["merger"]} - {*properties["postmerge"]} <= {"scale"}  # of a sum of vectors
    assert {*properties["postmerge"]} <= {*properties["merger"]}
    assert {"shapes", "inputs", "order", "bytes", "memory", "errors"} <= {*properties["postmerge"]}


def test_check_and_list_know_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "postmerge", "lines:alpha=1.0,beta=0.0"]) == 0
    assert "memory   holds" in capsys.readouterr().out
    refused(["check", "postmerge", "lines", "--record"], BadOption, "--record")
    assert main(["list", "postmerge"]) == 0
    assert "lines" in capsys.readouterr().out
    listed = {entry["name"]: entry for entry in catalogue("postmerge")}
    assert listed["lines"]["paper"] == "arXiv:2410.17146"
    assert listed["halved"]["options"]["share"]["default"] == 0.5
    with mistake(UnknownName, "exact"):
        battery("postmerge", Choice("wrong"), Postmerge("wrong", halved, breaks=("exact",)))
    assert battery("postmerge", Choice("svc")).method.stage == "postmerge"


def test_a_folder_of_a_user_brings_one(
    minis: Minis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "mine.py").write_text(
        "from harness import postmerge, weights\n\n\n"
        '@postmerge("thirds")\n'
        "def thirds(merged, experts, base):\n"
        '    """A third of what was merged."""\n'
        "    return weights.where_shared(lambda n, w, b: b + (w - b) / 3, merged, base)\n"
    )
    found = minis("bert")
    command = ["merge", str(found["a"]), str(found["b"]), "--base", str(found["base"])]
    command += ["--plugins", str(folder), "--postmerge", "thirds", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    (first, second), base = encoders(found)
    name = "bert.encoder.layer.1.output.dense.weight"
    expected = base[name] + ((first[name] + second[name]) / 2 - base[name]) / 3
    torch.testing.assert_close(tensors(tmp_path / "out")[name], expected)
    assert main(["check", "postmerge", "thirds", "--plugins", str(folder)]) == 1
    assert "copies   breaks" in capsys.readouterr().out
