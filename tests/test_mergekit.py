"""mergekit's YAML, its folders and its methods, without mergekit: see tests/mergekit for that."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from harness import MERGERS, Recipe, merge, parse_choice
from harness.checkpoints.mergekit import named_models
from harness.cli import main
from harness.errors import BadOption, HarnessError
from harness.merging.recipes import recipe_and_fields
from harness.options import resolve
from tests.conftest import model
from tests.mistakes import mistake, names, refused

Array = np.ndarray[Any, Any]

ENTAILMENT = ["entailment", "not_entailment"]
PARAPHRASE = ["not_equivalent", "equivalent"]

#: A mergekit of one method, the mean with weights, that leaves its configuration and seeds behind
STAND_IN = """#!{python}
import json, os, sys
import yaml
from safetensors.numpy import load_file, save_file
config = yaml.safe_load(open(sys.argv[1]))
if config["merge_method"] == "broken":
    print("Traceback (most recent call last):", file=sys.stderr)
    sys.exit("RuntimeError: Unimplemented merge method broken")
given = config["parameters"]
weights = [m["parameters"].get("weight", given.get("weight", 1)) for m in config["models"]]
models = [load_file(m["model"]) for m in config["models"]]
base = load_file(config["base_model"]) if "base_model" in config else None
os.makedirs(sys.argv[2])
merged = {{
    name: sum(w * (m[name] - (base[name] if base else 0)) for w, m in zip(weights, models))
    + (base[name] if base else 0)
    for name in models[0]
}}
if config["merge_method"] == "forgetful":
    merged.popitem()
save_file(merged, sys.argv[2] + "/model.safetensors")
seen = dict(config, seed=sys.argv[4], hashes=os.environ["PYTHONHASHSEED"], folder=os.getcwd())
json.dump(seen, open({log!r}, "w"))
"""


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with a head, three experts with its labels, one with others; never changed."""
    root = tmp_path_factory.mktemp("shelf")
    start = model(root / "encoder")
    model(root / "base", ENTAILMENT, seed=9, near=start)
    for seed, name in enumerate("abc", start=1):
        model(root / name, ENTAILMENT, seed=seed, near=start)
    model(root / "odd", PARAPHRASE, seed=4, near=start)
    return root


class Bench:
    """A scratch folder for configurations, with the models of the shelf."""

    def __init__(self, shelf: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._shelf, self.root, self._capsys = shelf, root, capsys

    def __getitem__(self, name: str) -> str:
        return str(self._shelf / name)

    def wrote(self, **config: Any) -> Path:
        path = self.root / "config.yml"
        path.write_text(yaml.safe_dump(config))
        return path

    def models(self, *names: str, **each: Sequence[float]) -> list[dict[str, Any]]:
        """Entries of `models`, with a value for each of every parameter."""
        return [
            {"model": self[name], "parameters": {key: each[key][i] for key in each}}
            for i, name in enumerate(names)
        ]

    def half(self, name: str) -> str:
        """A copy of a model in bfloat16."""
        folder = self.root / f"half-{name}"
        shutil.copytree(self[name], folder)
        tensors = load_file(folder / "model.safetensors")
        halved = {key: tensor.to(torch.bfloat16) for key, tensor in tensors.items()}
        save_file(halved, folder / "model.safetensors")
        return str(folder)

    def refused(self, *arguments: str) -> str:
        """The one line that a command ends with, with nothing written."""
        line = refused(arguments, HarnessError)
        assert not (self.root / "out").exists()
        return line


@pytest.fixture
def bench(shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(shelf, tmp_path, capsys)


def tensors(folder: str | Path) -> dict[str, torch.Tensor]:
    return load_file(Path(folder) / "model.safetensors")


# A configuration as a recipe ------------------------------------------------------------------

#: method -> parameters of each model, parameters of all, the merger that gives the same numbers
TRANSLATIONS: dict[str, tuple[str, dict[str, list[float]], dict[str, Any], str]] = {
    "linear": ("linear", {"weight": [1, 3]}, {}, "linear:normalize=True,weights=1.0:3.0"),
    "linear as given": (
        "linear",
        {},
        {"weight": 0.5, "normalize": False},
        "linear:normalize=False,weights=0.5:0.5",
    ),
    "task arithmetic": (
        "task_arithmetic",
        {"weight": [0.5, 0.25]},
        {"lambda": 2},
        "task_arithmetic:weights=1.0:0.5",
    ),
    "a mean of task vectors": (
        "task_arithmetic",
        {"weight": [3, 1]},
        {"normalize": True, "density": 0.1, "int8_mask": True},
        "task_arithmetic:weights=0.75:0.25",
    ),
    "weights that sum to 0 are not divided": (
        "task_arithmetic",
        {"weight": [1, -1]},
        {"normalize": True},
        "task_arithmetic:weights=1.0:-1.0",
    ),
    "ties": (
        "ties",
        {"weight": [1, 0.5], "density": [0.2, 7]},
        {"lambda": "8e-1", "int8_mask": True},
        "ties:combine=mean,density=0.2:1.0,scale=0.8,trim=tensor,undecided=positive,"
        "weights=1.0:0.5",
    ),
    "a sum by ties": (
        "ties",
        {},
        {"weight": 1, "normalize": False},
        "ties:combine=sum,density=1.0:1.0,scale=1.0,trim=tensor,undecided=positive,weights=1.0:1.0",
    ),
    "breadcrumbs": (
        "breadcrumbs",
        {"weight": [0.5, 0.5]},
        {"density": 0.75, "gamma": 0.05, "lambda": 0.5},
        "breadcrumbs:density=0.75,gamma=0.05,scale=0.25",
    ),
    "a mean of breadcrumbs": (
        "breadcrumbs",
        {},
        {"weight": 3, "normalize": True, "density": 1},
        "breadcrumbs:density=1.0,gamma=0.0,scale=0.5",
    ),
}


@pytest.mark.filterwarnings("ignore:.*gamma 0.05 takes no entry")
@pytest.mark.parametrize("case", sorted(TRANSLATIONS))
def test_a_configuration_is_a_recipe(case: str, bench: Bench) -> None:
    method, each, shared, merger = TRANSLATIONS[case]
    base = {} if method == "linear" else {"base_model": bench["base"]}
    models = bench.models("a", "b", **each)
    found = recipe_and_fields(
        bench.wrote(merge_method=method, models=models, parameters=shared, **base)
    )[0]
    assert str(found.merger) == merger
    assert found.experts == (bench["a"], bench["b"])
    assert found.base == (bench["base"] if base else None)
    assert found.heads == "merge"


def test_slerp_starts_at_its_base(bench: Bench) -> None:
    given = {"merge_method": "slerp", "base_model": bench["a"], "parameters": {"t": 0.25}}
    for models in (bench.models("b"), bench.models("a", "b")):
        found = recipe_and_fields(bench.wrote(models=models, **given))[0]
        assert (found.experts, found.base) == ((bench["a"], bench["b"]), None)
        assert str(found.merger) == "slerp:t=0.25"


def test_a_base_among_the_models_is_no_expert(bench: Bench) -> None:
    given = {"merge_method": "ties", "base_model": bench["base"], "parameters": {"weight": 1}}
    listed = recipe_and_fields(bench.wrote(models=bench.models("base", "a", "b"), **given))[0]
    assert listed == recipe_and_fields(bench.wrote(models=bench.models("a", "b"), **given))[0]


def test_a_base_of_a_linear_merge_is_one_more_model(bench: Bench) -> None:
    given = {"merge_method": "linear", "base_model": bench["base"], "parameters": {"weight": 1}}
    found = recipe_and_fields(bench.wrote(models=bench.models("a", "b"), **given))[0]
    assert (found.experts, found.base) == ((bench["a"], bench["b"], bench["base"]), None)


@pytest.mark.parametrize(
    "extra",
    [
        {"tokenizer_source": "base"},
        {"tokenizer": {"source": "union"}},
        {"chat_template": None},
        {"dtype": "float32"},
        {"dtype": "float32", "out_dtype": "torch.float32"},
    ],
)
def test_what_changes_no_number_is_let_through(extra: dict[str, Any], bench: Bench) -> None:
    models = bench.models("a", "b", weight=[1, 1])
    plain = recipe_and_fields(bench.wrote(merge_method="linear", models=models))[0]
    assert recipe_and_fields(bench.wrote(merge_method="linear", models=models, **extra))[0] == plain


def test_half_precision_is_merged_where_mergekit_rounds_as_we_do(bench: Bench) -> None:
    models = [{"model": bench.half(name), "parameters": {"weight": 1}} for name in "ab"]
    wide = {"dtype": "float32", "out_dtype": "bfloat16"}
    for method, given in (("linear", {}), ("linear", wide), ("task_arithmetic", wide)):
        base = {"base_model": bench.half("base")} if method != "linear" else {}
        assert recipe_and_fields(bench.wrote(merge_method=method, models=models, **given, **base))[
            0
        ]


def reference(
    experts: Sequence[str], base: str, densities: Sequence[float], given: Array
) -> dict[str, Array]:
    """mergekit's ties in numpy: trimmed by tensor, + where a sum is 0, a weighted mean."""
    start, merged = tensors(base), {}
    for name, origin in start.items():
        vectors = [(tensors(expert)[name] - origin).double().numpy().ravel() for expert in experts]
        for vector, density in zip(vectors, densities, strict=True):
            kept = max(1, int(density * vector.size))
            vector[np.argsort(-abs(vector), kind="stable")[kept:]] = 0
        parts = np.stack(vectors) * given[:, None]
        sign = np.where(parts.sum(0) >= 0, 1, -1)
        agrees = np.sign(parts) == sign
        divisor = (agrees * given[:, None]).sum(0)
        mean = (parts * agrees).sum(0) / np.where(divisor == 0, 1, divisor)
        merged[name] = origin.numpy() + mean.reshape(origin.shape)
    return merged


FEW = {"weight": 1, "density": 0.9, "gamma": 0.01}
"""Of tensors with fewer than 100 entries, gamma takes none."""


@pytest.mark.filterwarnings("default:.*takes no entry")
def test_breadcrumbs_of_few_entries_are_mergekits(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0.1.5's, which keeps int(0.9 n) of n entries, and not that of older ones, which drops all."""
    given = {"merge_method": "breadcrumbs", "base_model": bench["base"], "parameters": FEW}
    config = bench.wrote(models=bench.models("a", "b"), **given)
    assert main(["merge", str(config), "--out", str(tmp_path / "out")]) == 0
    sources = (tmp_path / "out", bench["base"], bench["a"], bench["b"])
    found, start, *tuned = (tensors(source) for source in sources)
    few = 0
    for name, origin in start.items():
        expected, size = origin.numpy().ravel(), origin.numel()
        stay = int(0.9 * size)
        below = size - stay - int(0.01 * size)
        for expert in tuned:
            vector = (expert[name] - origin).numpy().ravel()
            places = np.argsort(abs(vector), kind="stable")[below : below + stay]
            expected = expected + np.isin(np.arange(size), places) * vector
        few += size < 100
        np.testing.assert_allclose(found[name].numpy().ravel(), expected, atol=1e-6)
    said = [line for line in capsys.readouterr().err.splitlines() if "takes no entry" in line]
    assert len(said) == 1
    names(said[0], f"gamma 0.01 {few} 0.1.5")


def test_breadcrumbs_of_whole_task_vectors_warn_of_nothing(bench: Bench) -> None:
    given = {"merge_method": "breadcrumbs", "base_model": bench["base"]}
    models = bench.models("a", "b", weight=[1, 1])
    assert recipe_and_fields(bench.wrote(models=models, **given))[0].merger.options["density"] == 1


def test_ties_with_weights_and_densities_is_mergekits(bench: Bench, tmp_path: Path) -> None:
    models = bench.models("a", "b", "c", weight=[1, 0.5, -0.25], density=[0.2, 0.5, 1])
    config = bench.wrote(merge_method="ties", base_model=bench["base"], models=models)
    assert main(["merge", str(config), "--out", str(tmp_path / "out")]) == 0
    expected = reference(
        [bench[name] for name in "abc"], bench["base"], [0.2, 0.5, 1], np.array([1, 0.5, -0.25])
    )
    found = tensors(tmp_path / "out")
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        np.testing.assert_allclose(tensor.numpy(), expected[name], rtol=0, atol=1e-6)


def test_entries_that_sum_to_0_elect_plus() -> None:
    ties = MERGERS["ties"].function
    experts = [{"w": torch.tensor([2.0, -3.0, 5.0])}, {"w": torch.tensor([-2.0, 3.0, 0.0])}]
    base = {"w": torch.zeros(3)}
    assert ties(experts, base, density=1.0, undecided="positive")["w"].tolist() == [2, 3, 5]
    assert ties(experts, base, density=1.0)["w"].tolist() == [2, 3, 5]
    minus = [{name: -state[name] for name in state} for state in experts]
    assert ties(minus, base, density=1.0, undecided="positive")["w"].tolist() == [2, 3, -5]
    assert ties(minus, base, density=1.0)["w"].tolist() == [-2, -3, -5]


@pytest.mark.parametrize("option", ["weights", "density"])
def test_ties_takes_one_value_for_each_expert(option: str) -> None:
    experts, base = [{"w": torch.ones(2)}] * 2, {"w": torch.zeros(2)}
    with mistake(BadOption, "ties 3 2"):
        MERGERS["ties"].function(experts, base, **{option: [0.5, 0.5, 0.5]})


# What is refused ------------------------------------------------------------------------------

Config = Callable[[Bench], dict[str, Any]]


def of(method: str, *names: str, each: dict[str, list[Any]] | None = None, **more: Any) -> Config:
    """A configuration with a base, where the method takes one."""

    def made(bench: Bench) -> dict[str, Any]:
        models = bench.models(*(names or ("a", "b")), **(each or {}))
        base = {} if method == "linear" else {"base_model": bench["base"]}
        found = {"merge_method": method, **base, "models": models, **more}
        return {key: value for key, value in found.items() if value is not None}

    return made


ONE = {"weight": 1}
REFUSED: dict[str, tuple[Config, list[str]]] = {
    "slices of layers": (
        lambda b: {
            "merge_method": "passthrough",
            "slices": [{"sources": [{"model": b["a"], "layer_range": [0, 1]}]}],
        },
        ["slices supported", "run mergekit itself"],
    ),
    "modules": (of("linear", modules={"encoder": {}}), ["modules supported"]),
    "a chat template": (of("linear", chat_template="auto"), ["chat_template supported"]),
    "another tokenizer": (
        of("linear", tokenizer_source="org/name"),
        ["tokenizer_source supported"],
    ),
    "tokens": (
        of("linear", tokenizer={"source": "base", "tokens": {}}),
        ["tokenizer supported"],
    ),
    "no method": (lambda b: {"modules": {}, "models": []}, ["modules supported"]),
    "method is no text": (of("linear", merge_method=3), ["merge_method is 3 valid string"]),
    "random masks": (
        of("dare_ties", parameters=ONE),
        ["merge_method dare_ties equivalent", "--merger mergekit:dare_ties"],
    ),
    "not ours": (of("sce"), ["merge_method sce equivalent", "linear"]),
    "no models": (of("linear", models=[]), ["models: at least 1 item"]),
    "a model without name": (of("linear", models=[{}]), ["models.0 entry {} FOLDER"]),
    "a model with more": (
        lambda b: {"merge_method": "linear", "models": [{"model": b["a"], "layer_range": [0, 1]}]},
        ["layer_range supported", "run mergekit itself"],
    ),
    "one model twice": (of("linear", "a", "a", parameters=ONE), ["models has", "/a twice"]),
    "an adapter": (
        of("linear", models=[{"model": "org/name+org/lora"}], parameters=ONE),
        ["org/name+org/lora names adapter"],
    ),
    "a revision": (
        of("linear", models=[{"model": "org/name@main"}], parameters=ONE),
        ["org/name@main names revision"],
    ),
    "parameters are no mapping": (of("linear", parameters=[1]), ["parameters [1]"]),
    "no weight": (of("ties"), ["/a weight mergekit requires"]),
    "a value by layer": (
        of("ties", parameters={"weight": [0, 1]}),
        ["parameter weight [0, 1]", "expected number"],
    ),
    "a value by filter": (
        of("slerp", "a", parameters={"t": [{"filter": "mlp", "value": 0.5}]}),
        ["parameter t [{", "filter number"],
    ),
    "no number": (of("linear", parameters={"weight": "much"}), ["weight much"]),
    "no flag": (
        of("linear", parameters={"weight": 1, "normalize": 1}),
        ["normalize 1 true false"],
    ),
    "a slip": (
        of("ties", parameters={"weight": 1, "densty": 0.5}),
        ["parameter densty ties", "density"],
    ),
    "a parameter where it is not read": (
        of("ties", each={"lambda": [1, 1]}, parameters=ONE),
        ["parameter lambda", "ties"],
    ),
    "a rescaled trim": (
        of("ties", parameters={"weight": 1, "rescale": True}),
        ["parameter rescale true"],
    ),
    "no base": (of("ties", base_model=None, parameters=ONE), ["ties base_model"]),
    "nothing but a base": (of("ties", "base", parameters=ONE), ["base"]),
    "slerp of three": (of("slerp", parameters={"t": 0.5}), ["slerp 2 base"]),
    "slerp without t": (of("slerp", "a"), ["slerp t"]),
    "uneven breadcrumbs": (
        of("breadcrumbs", each={"weight": [1, 2]}),
        ["parameter weight differs (1, 2)"],
    ),
    "too much of both": (
        of("breadcrumbs", parameters={"weight": 1, "density": 0.9, "gamma": 0.2}),
        ["density 0.9 gamma 0.2 at most 1 together"],
    ),
    "computed in another type": (
        of("task_arithmetic", parameters=ONE, dtype="bfloat16"),
        ["mergekit computes bfloat16 writes bfloat16", "dtype float32"],
    ),
    "written in another type": (
        of("linear", parameters=ONE, out_dtype="float16"),
        ["writes float16", "out_dtype: float32"],
    ),
    "an unknown type": (of("linear", parameters=ONE, dtype="tiny"), ["dtype tiny"]),
    "half precision": (
        lambda b: of("ties", models=[{"model": b.half("a")}], parameters=ONE)(b)
        | {"base_model": b.half("base")},
        ["mergekit computes bfloat16", "out_dtype: bfloat16"],
    ),
    "mixed types": (
        lambda b: of("ties", models=[{"model": b.half("a")}], parameters=ONE)(b),
        ["bfloat16", "float32", "type"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_has_no_equal_is_refused_by_name(case: str, bench: Bench) -> None:
    config, words = REFUSED[case]
    path = bench.wrote(**config(bench))
    said = bench.refused("merge", str(path), "--out", str(bench.root / "out"))
    names(said, path)
    for word in words:
        names(said, word)


def test_a_head_of_other_labels_is_refused_as_ever(bench: Bench) -> None:
    path = bench.wrote(merge_method="linear", models=bench.models("a", "odd", weight=[1, 1]))
    names(bench.refused("merge", str(path), "--out", str(bench.root / "out")), "odd labels")


def test_a_model_that_is_not_there_is_named(bench: Bench) -> None:
    models = [{"model": str(bench.root / "gone"), "parameters": ONE}, *bench.models("a")]
    path = bench.wrote(merge_method="linear", models=models, parameters=ONE)
    said = bench.refused("merge", str(path), "--out", str(bench.root / "out"))
    names(said, bench.root / "gone")


# An installed mergekit ------------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with a mergekit of our own; returns where it tells what it was asked."""
    log, command = tmp_path / "asked.json", tmp_path / "env" / "bin" / "mergekit-pytorch"
    command.parent.mkdir(parents=True)
    command.write_text(STAND_IN.format(python=sys.executable, log=str(log)))
    command.chmod(0o755)
    known = tmp_path / "env" / "lib" / "python3" / "site-packages" / "mergekit-9.8.dist-info"
    known.mkdir(parents=True)
    monkeypatch.setenv("HARNESS_MERGEKIT", str(tmp_path / "env"))
    return log


@pytest.fixture
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for temporary files, which must be empty in the end."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    yield place
    assert not list(place.iterdir())


def asked(log: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(log.read_text())
    return found


def test_options_of_a_mergekit_method_are_free() -> None:
    choice = parse_choice("mergekit:sce:select_topk=0.5,int8_mask=true,weight=1:0.5,kind=x,n=3")
    found = resolve("merger", choice, MERGERS["mergekit:sce"].function)
    assert found == {
        "seed": 0, "select_topk": 0.5, "int8_mask": True, "weight": [1.0, 0.5], "kind": "x", "n": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("method", "reads_base"),
    [("ties", True), ("della", True), ("sce", True), ("linear", False), ("slerp", False)],
)
def test_methods_that_subtract_a_base_need_one(method: str, reads_base: bool) -> None:
    found = MERGERS[f"mergekit:{method}"]
    assert (found.name, found.task_vectors) == (f"mergekit:{method}", reads_base)
    assert f"mergekit:{method}" not in set(MERGERS)


def test_a_mergekit_method_merges(
    bench: Bench, stand_in: Path, nothing_left: Path, tmp_path: Path
) -> None:
    merger = "mergekit:task_arithmetic:weight=0.5:0.25,normalize=false"
    experts = [bench["a"], bench["b"], "--base", bench["encoder"], "--seed", "7"]
    assert main(["merge", *experts, "--merger", merger, "--out", str(tmp_path / "kit")]) == 0
    a, b, start = (tensors(bench[name]) for name in ("a", "b", "encoder"))
    for name, tensor in tensors(tmp_path / "kit").items():
        if name.startswith("classifier"):
            expected = (a[name] + b[name]) / 2
        else:
            origin = start[name.removeprefix("bert.")]
            expected = origin + 0.5 * (a[name] - origin) + 0.25 * (b[name] - origin)
        torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-6)
    seen = asked(stand_in)
    assert seen.pop("folder").startswith(str(nothing_left))
    assert seen == {
        "merge_method": "task_arithmetic",
        "models": [
            {"model": "model-0.safetensors", "parameters": {"weight": 0.5}},
            {"model": "model-1.safetensors", "parameters": {"weight": 0.25}},
        ],
        "base_model": "model-2.safetensors",
        "parameters": {"normalize": False},
        "seed": "7",
        "hashes": "0",
    }
    record = json.loads((tmp_path / "kit" / "merge.json").read_text())
    assert record["method"] == "mergekit:task_arithmetic:normalize=False,weight=0.5:0.25"
    assert record["merger"]["options"]["weight"] == [0.5, 0.25]
    assert record["report"] == {"mergekit": "9.8"}


def test_a_method_between_two_ends_starts_at_the_first_expert(
    bench: Bench, stand_in: Path, tmp_path: Path
) -> None:
    flags = ["--merger", "mergekit:slerp:t=0.5", "--out", str(tmp_path / "kit")]
    assert main(["merge", bench["a"], bench["b"], *flags]) == 0
    seen = asked(stand_in)
    assert seen["base_model"] == "model-0.safetensors"
    assert [entry["model"] for entry in seen["models"]] == [
        "model-0.safetensors",
        "model-1.safetensors",
    ]
    assert json.loads((tmp_path / "kit" / "merge.json").read_text())["heads"] == "merge"


@pytest.mark.filterwarnings("ignore:there is one expert")
def test_half_precision_reaches_mergekit_in_single(
    bench: Bench, stand_in: Path, nothing_left: Path, tmp_path: Path
) -> None:
    recipe = Recipe(experts=(bench.half("a"),), merger="mergekit:linear:weight=1")
    merge(recipe, out=tmp_path / "kit")
    given = tensors(bench.root / "half-a")
    assert all(torch.equal(given[k], v) for k, v in tensors(tmp_path / "kit").items())


@pytest.mark.filterwarnings("ignore:there is one expert")
def test_a_dry_run_runs_nothing(bench: Bench, stand_in: Path, tmp_path: Path) -> None:
    recipe = Recipe(experts=(bench["a"],), merger="mergekit:linear:weight=1")
    merge(recipe, out=tmp_path / "kit", dry_run=True)
    assert not stand_in.exists()


@pytest.mark.parametrize(
    ("merger", "words"),
    [
        ("broken", "mergekit:broken RuntimeError: Unimplemented merge method broken"),
        ("forgetful", "mergekit tensor"),
        ("linear:weight=1:2:3", "mergekit:linear 3 weight 2"),
    ],
)
def test_a_failure_of_mergekit_is_one_line(
    merger: str, words: str, bench: Bench, stand_in: Path, nothing_left: Path
) -> None:
    flags = ["--base", bench["base"], "--merger", f"mergekit:{merger}"]
    out = bench.root / "out"
    names(bench.refused("merge", bench["a"], bench["b"], *flags, "--out", str(out)), words)


@pytest.mark.parametrize("named", ["", "nowhere"])
def test_without_mergekit_it_says_what_to_do(
    named: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_MERGEKIT", named)
    monkeypatch.setenv("PATH", str(bench.root))
    monkeypatch.setattr(sys, "executable", str(bench.root / "python"))
    flags = ["--merger", "mergekit:linear", "--out", str(bench.root / "out"), "--dry-run"]
    said = bench.refused("merge", bench["a"], bench["b"], *flags)
    names(said, "HARNESS_MERGEKIT nowhere" if named else "beside")
    names(said, "HARNESS_MERGEKIT=DIR")


def test_a_mergekit_that_cannot_be_run_is_one_line(
    bench: Bench, stand_in: Path, tmp_path: Path, nothing_left: Path
) -> None:
    command = tmp_path / "env" / "bin" / "mergekit-pytorch"
    command.write_text("#!/no/such/interpreter\n")
    flags = ["--merger", "mergekit:linear:weight=1", "--out", str(bench.root / "out")]
    said = bench.refused("merge", bench["a"], bench["b"], *flags)
    names(said, command, "cannot be run")


@pytest.mark.filterwarnings("ignore:there is one expert")
def test_mergekit_is_found_by_its_python_and_on_the_path(
    bench: Bench, stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "env" / "bin"
    recipe = Recipe(experts=(bench["a"],), merger="mergekit:linear:weight=1")
    monkeypatch.setenv("HARNESS_MERGEKIT", str(place / "python"))
    merge(recipe, out=tmp_path / "one", dry_run=True)
    monkeypatch.delenv("HARNESS_MERGEKIT")
    monkeypatch.setenv("PATH", str(place), prepend=os.pathsep)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    merge(recipe, out=tmp_path / "two", dry_run=True)


# A folder that mergekit wrote -----------------------------------------------------------------


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen rows of two tasks."""
    root = tmp_path_factory.mktemp("data")
    for task in ("rte", "mrpc"):
        folder = root / "glue" / task
        folder.mkdir(parents=True)
        for split, third in (("train", "word3"), ("validation", "word4")):
            rows = [
                {"sentence1": f"word{i} {third}", "sentence2": f"word{2 * i}", "label": i % 2}
                for i in range(14)
            ]
            (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return root


class Kit:
    """A folder as mergekit writes it: weights, a tokenizer, the base's configuration, its own."""

    def __init__(self, bench: Bench, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._bench, self._data, self._capsys = bench, data, capsys
        self.folder = bench.root / "kit"

    def write(self, *names: str, **config: Any) -> None:
        experts = tuple(self._bench[name] for name in names)
        merge(Recipe(experts=experts, heads="merge"), out=self.folder)
        (self.folder / "merge.json").unlink()
        settings = json.loads((self.folder / "config.json").read_text())
        settings["id2label"] = {"0": "LABEL_0", "1": "LABEL_1"}
        (self.folder / "config.json").write_text(json.dumps(settings))
        (self.folder / "mergekit_config.yml").write_text(yaml.safe_dump(config))

    def evaluate(self, *flags: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        places = ["--data-dir", str(self._data), "--output-path", str(self._bench.root / "records")]
        asked = ["--model", str(self.folder), "--protocols", "current", "--json"]
        status = main(["evaluate", *asked, *places, *flags])
        printed = self._capsys.readouterr()
        return status, printed.out, printed.err

    def records(self, *flags: str) -> list[dict[str, Any]]:
        status, out, err = self.evaluate(*flags)
        assert status == 0, err
        found: list[dict[str, Any]] = json.loads(out)
        return found


@pytest.fixture
def kit(bench: Bench, data: Path, capsys: pytest.CaptureFixture[str]) -> Kit:
    return Kit(bench, data, capsys)


def rows(found: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(r["task"].partition("@")[0], r["role"], r["head"]) for r in found]


def test_a_folder_of_mergekits_needs_no_flag_but_the_task(bench: Bench, kit: Kit) -> None:
    models = bench.models("a", "b", weight=[1, 1])
    kit.write("a", "b", merge_method="ties", base_model=bench["base"], models=models)
    found = kit.records("--tasks", "glue/rte")
    assert [(r["role"], r["head"]) for r in found] == [
        ("merged", "own"),
        ("base", "own"),
        ("expert", "own"),
        ("expert", "own"),
        ("ensemble", "own"),
    ]
    assert found[0]["method"] == "mergekit:ties"
    assert [r["model"] for r in found if r["role"] == "expert"] == ["a", "b"]


def test_the_outputs_have_the_names_that_the_experts_give_them(bench: Bench, kit: Kit) -> None:
    kit.write("a", "b", merge_method="linear", models=bench.models("a", "b"))
    mine = kit.records("--tasks", "glue/rte")[0]["scores"]
    settings = json.loads((kit.folder / "config.json").read_text())
    settings["id2label"] = dict(enumerate(ENTAILMENT))
    (kit.folder / "mergekit_config.yml").unlink()
    (kit.folder / "config.json").write_text(json.dumps(settings))
    assert kit.records("--tasks", "glue/rte")[0]["scores"] == mine


def copied(source: str, target: Path, task: str) -> str:
    """A copy of an expert that says what it was tuned on."""
    shutil.copytree(source, target)
    (target / "expert.json").write_text(json.dumps({"tasks": [task], "scores": {}}))
    return str(target)


@pytest.mark.filterwarnings("ignore:the pooler of")
def test_experts_say_their_tasks(bench: Bench, kit: Kit, tmp_path: Path) -> None:
    one = copied(bench["a"], tmp_path / "one", "glue/rte")
    other = copied(bench["odd"], tmp_path / "other", "glue/mrpc")
    models = [{"model": one}, {"model": other}]
    kit.write("a", "b", merge_method="karcher", models=models)
    expected = [
        ("glue/mrpc", "merged", "expert"),
        ("glue/mrpc", "expert", "own"),
        ("glue/rte", "merged", "expert"),
        ("glue/rte", "expert", "own"),
    ]
    for tasks in ("glue/mrpc,glue/rte", "glue/rte,glue/mrpc"):
        assert sorted(set(rows(kit.records("--tasks", tasks)))) == sorted(expected)


@pytest.mark.filterwarnings("ignore:the pooler of")
def test_tasks_are_those_of_the_models_in_order(bench: Bench, kit: Kit) -> None:
    kit.write("a", "b", merge_method="linear", models=bench.models("a", "odd"))
    found = kit.records("--tasks", "glue/rte,glue/mrpc")
    named = {r["task"].partition("@")[0]: r["model"] for r in found if r["role"] == "expert"}
    assert named == {"glue/rte": "a", "glue/mrpc": "odd"}
    assert {r["head"] for r in found if r["role"] == "merged"} == {"expert"}


def test_what_is_given_goes_before_what_is_named(bench: Bench, kit: Kit) -> None:
    gone = str(bench.root / "gone")
    models = [{"model": gone}, {"model": f"{gone}-too"}]
    kit.write("a", "b", merge_method="ties", base_model=f"{gone}-base", models=models)
    status, _, said = kit.evaluate("--tasks", "glue/rte", "--base", bench["base"])
    assert status == 2
    names(said.strip(), gone, kit.folder / "mergekit_config.yml", "--experts")
    status, _, said = kit.evaluate("--tasks", "glue/rte", "--experts", bench["a"])
    assert status == 2
    assert "--base" in said
    found = kit.records("--tasks", "glue/rte", "--experts", bench["a"], "--base", bench["base"])
    assert [r["model"] for r in found if r["role"] == "expert"] == ["a"]


#: configuration -> experts and base
NAMED: dict[str, tuple[dict[str, Any], tuple[str, ...], str | None]] = {
    "a base among the models": (
        {"merge_method": "ties", "base_model": "o/m", "models": [{"model": "o/m"}, {"model": "x"}]},
        ("x",),
        "o/m",
    ),
    "a base that is merged": (
        {"merge_method": "linear", "base_model": "x", "models": [{"model": "x"}, {"model": "y"}]},
        ("x", "y"),
        None,
    ),
    "two ends": (
        {"merge_method": "slerp", "base_model": "x", "models": [{"model": "y"}]},
        ("x", "y"),
        None,
    ),
    "slices": (
        {
            "merge_method": "ties",
            "base_model": "o/m",
            "slices": [
                {"sources": [{"model": "x"}, {"model": {"model": {"path": "y"}}}]},
                {"sources": [{"model": "y"}, {"model": "x"}]},
            ],
        },
        ("x", "y"),
        "o/m",
    ),
    "modules": (
        {"merge_method": "sce", "base_model": "b", "modules": {"m": {"models": [{"model": "x"}]}}},
        ("x",),
        "b",
    ),
}


@pytest.mark.parametrize("case", sorted(NAMED))
def test_a_folder_says_what_it_was_made_of(case: str, tmp_path: Path) -> None:
    config, experts, base = NAMED[case]
    (tmp_path / "mergekit_config.yml").write_text(yaml.safe_dump(config))
    found = named_models(tmp_path / "mergekit_config.yml")
    assert (found.method, found.experts, found.base) == (config["merge_method"], experts, base)


@pytest.mark.parametrize(
    "text",
    [
        "merge_method: [",
        "3",
        "models: []",
        "merge_method: x\nmodels: 3",
        "merge_method: x\nmodels: [3]",
        "merge_method: x\nmodels: [{model: 3}]",
        "merge_method: x\nslices: [{}]",
        "merge_method: x\nmodules: [x]",
        "merge_method: !!python/object/apply:os.system [exit]\nmodels: []",
    ],
)
def test_a_broken_configuration_is_one_line(text: str, bench: Bench, kit: Kit) -> None:
    kit.write("a", "b")
    (kit.folder / "mergekit_config.yml").write_text(text)
    status, _, said = kit.evaluate("--tasks", "glue/rte")
    assert (status, said.count("\n")) == (2, 1)
    assert str(kit.folder / "mergekit_config.yml") in said
