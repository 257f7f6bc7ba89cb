"""Where models run and in which type: said where it matters, and float32 by default."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

import harness
from harness import Recipe, Run, weights
from harness.checkpoints.open import open_checkpoint
from harness.cli import main
from harness.data.rows import load_rows
from harness.data.splits import parse_task
from harness.errors import BadOption, BadRecipe, BrokenRecord, HarnessError, NotFinite
from harness.files import cache_dir
from harness.merging.merge import merge
from harness.merging.plan import plan
from harness.passes import placement as placements
from harness.passes.features import content_key, dropout_features, encode, final_head, forward
from harness.passes.placement import CPU, Placement, check_placement, full_float32
from harness.passes.prepared import Prepared, prepare
from harness.passes.reading import Reading
from harness.passes.statistic_file import read_statistic
from harness.readout import CLS, LAST_LINEAR, MEAN_MASKED, POOLINGS, Outputs, embedding
from harness.training.single import check_bf16
from harness.types import Checkpoint, Rows
from harness.values import validated
from harness.weights import PROCESSOR, onednn
from tests.conftest import NEWER
from tests.device.methods import CASES, run
from tests.images import colours, vit
from tests.mistakes import mistake, names, refused
from tests.t5 import t5
from tests.toys import THREE, TOY, registered

pytestmark = pytest.mark.usefixtures("toys_known")
FAMILIES = ["bert", "roberta", "distilbert", "deberta-v2", "electra"]
MODELS = [*FAMILIES, *NEWER, "vit", "t5"]
HALF = Placement(device="cpu", dtype="bfloat16")
LENGTH = 40
BOUND = {"bfloat16": 2**-4, "float16": 2**-7}
"""How far features in a half precision may be from those in float32, as a share of the largest: of
miniatures with large weights, sixteen roundings of 2**-8 and of 2**-11."""
with_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
Loud = Callable[..., Path]
Example = Callable[[str], tuple[Checkpoint, Rows]]


@pytest.fixture
def toys_known() -> Iterator[None]:
    with registered(TOY, THREE):
        yield


@pytest.fixture
def example(loud: Loud, tmp_path: Path, as_found: None) -> Example:
    """A classifier of one of `MODELS`, and rows for it."""

    def of(name: str) -> tuple[Checkpoint, Rows]:
        if name == "vit":
            pytest.importorskip("PIL.Image")
            task, _ = parse_task(str(colours(tmp_path)))
            return open_checkpoint(vit(tmp_path / "vit")), load_rows(task, "test")
        if name == "t5":
            folder = t5(tmp_path / "t5", ["no", "yes"], near=t5(tmp_path / "base"))
        else:
            folder = loud(name)
        return open_checkpoint(folder), load_rows(TOY, "test")

    return of


def far(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


# Half precision ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("name", MODELS)
def test_only_the_encoder_is_in_half_precision(name: str, dtype: Any, example: Example) -> None:
    """Outputs are those of the stored head, in float32, on the features."""
    checkpoint, rows = example(name)
    x = forward(checkpoint, rows, max_length=LENGTH, placement=CPU)[0]
    half = Placement(device="cpu", dtype=dtype)
    near, outputs, _ = forward(checkpoint, rows, max_length=LENGTH, placement=half)
    assert near.dtype == outputs.dtype == np.float32
    assert 1e-5 < far(near, x) < BOUND[dtype]
    head = final_head(checkpoint, range(outputs.shape[1]))
    assert head is not None
    np.testing.assert_allclose(near @ head.weight.T + head.bias, outputs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("readout", [MEAN_MASKED, CLS], ids=lambda one: one.name)
def test_other_readouts_take_features_in_float32(readout: Any, loud: Loud) -> None:
    checkpoint, rows = open_checkpoint(loud("bert")), load_rows(TOY, "test")
    x, near = (
        forward(checkpoint, rows, max_length=LENGTH, readout=readout, placement=one)[0]
        for one in (CPU, HALF)
    )
    assert 1e-5 < far(near, x) < BOUND["bfloat16"]
    if readout is MEAN_MASKED:
        rounded = torch.from_numpy(near).bfloat16().float().numpy()
        assert far(rounded, near) > 1e-4, "a mean over tokens is no number of 8 bits"


def test_outputs_that_overflow_are_one_line(loud: Loud, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(loud("bert"), tmp_path / "large"))
    state = load_file(folder / "model.safetensors")
    for name in ("intermediate", "output"):
        state[f"bert.encoder.layer.0.{name}.dense.weight"] *= 1e4
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    checkpoint, rows = open_checkpoint(folder), load_rows(TOY, "test")
    forward(checkpoint, rows, max_length=LENGTH, placement=CPU)
    placed = Placement(device="cpu", dtype="float16")
    with mistake(NotFinite, f"{folder} float16 NaN {TOY.name} expected --dtype float32"):
        forward(checkpoint, rows, max_length=LENGTH, placement=placed)


@pytest.mark.parametrize("mode", POOLINGS)
def test_embeddings_are_normalized_in_float32(mode: str) -> None:
    hidden = torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    outputs = Outputs(hidden[:, 0], hidden.new_empty(4, 0), (hidden,), torch.ones(4, 6).long())
    made = embedding(mode, normalized=True).features(outputs)
    assert made.double().norm(dim=1).sub(1).abs().max() < 1e-6


def test_each_precision_has_its_own_entry_of_the_cache(loud: Loud) -> None:
    checkpoint, rows = open_checkpoint(loud("bert")), load_rows(TOY, "test")
    digest = weights.digest(checkpoint.weights)
    known: dict[str, Any] = {"digest": digest, "columns": [0, 1], "max_length": LENGTH}
    plain, half = (encode(checkpoint, rows, placement=one, **known) for one in (CPU, HALF))
    again = encode(checkpoint, rows, placement=HALF, **known)
    assert np.array_equal(half.x, again.x)
    assert not np.array_equal(half.x, plain.x)
    key = content_key(checkpoint, rows, digest, LENGTH, LAST_LINEAR.name)
    assert (cache_dir("features") / f"{key}.safetensors").is_file(), "nothing is said of float32"


def test_what_is_drawn_again_is_placed_too(loud: Loud, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder that drops units is in the type of the pass."""
    checkpoint, rows = open_checkpoint(loud("bert")), load_rows(TOY, "test")
    seen, real = set(), functional.layer_norm

    def spy(given: torch.Tensor, *others: Any, **more: Any) -> torch.Tensor:
        seen.add(given.dtype)
        return real(given, *others, **more)

    monkeypatch.setattr(functional, "layer_norm", spy)
    again = dropout_features(
        checkpoint, rows, max_length=LENGTH, readout=LAST_LINEAR, placement=HALF
    )
    assert again([0, 1], 0).dtype == np.float32
    assert seen == {torch.bfloat16}


def test_what_is_drawn_again_is_the_same_in_threads(loud: Loud) -> None:
    """Units are dropped by the generator that all threads share."""
    checkpoint, rows = open_checkpoint(loud("bert")), load_rows(TOY, "test")
    config = {**checkpoint.config, "hidden_dropout_prob": 0.3}
    dropped = replace(checkpoint, config=config)
    each = [
        dropout_features(dropped, rows, max_length=LENGTH, readout=LAST_LINEAR, placement=CPU)
        for _ in range(2)
    ]
    units = range(len(rows.labels))
    expected = [each[0](units, seed) for seed in range(4)]
    assert not np.array_equal(expected[0], expected[1])
    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(lambda again: [again(units, seed) for seed in range(4)], each)]
    for made in found:
        np.testing.assert_array_equal(made, expected)


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available(),
    reason="torch itself takes oneDNN here",
)
def test_features_are_multiplied_by_onednn_and_statistics_are_not(
    loud: Loud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What merges are made of keeps its bits."""
    checkpoint, rows = open_checkpoint(loud("bert")), load_rows(TOY, "test")
    calls, real = [], onednn.linear

    def spy(*given: Any) -> torch.Tensor:
        calls.append(given[0].dtype)
        return real(*given)

    plain = Reading(checkpoint, rows, LENGTH, CPU, None)
    model, (inputs, _) = plain.model(), next(plain.batches(len(rows), as_drawn=True))
    with torch.inference_mode():
        expected = model(**inputs).logits.numpy()
    monkeypatch.setattr(onednn, "linear", spy)
    _, logits, _ = forward(checkpoint, rows, max_length=LENGTH, placement=CPU)
    assert set(calls) == {torch.float32}
    np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5)
    calls.clear()
    with torch.inference_mode():
        plain.model()(**inputs)
    forward(checkpoint, rows, max_length=LENGTH, placement=HALF)
    assert not calls


def test_a_layer_by_onednn_has_the_weight_that_it_is_given_later() -> None:
    layer = torch.nn.Linear(3, 2, bias=False)
    placements.use_onednn(layer, CPU)
    layer.weight = torch.nn.Parameter(torch.ones(2, 3))
    with torch.inference_mode():
        assert layer(torch.ones(1, 3)).tolist() == [[3.0, 3.0]]


# Batches -----------------------------------------------------------------------------------


def test_batches_keep_to_a_budget() -> None:
    costs = [3, 9, 40, 3, 7, 9, 1]
    batches = list(Prepared(costs, {}, lambda _: {}).batches(20))
    assert batches == [[2], [1, 5], [4, 0], [3, 6]]
    assert all(len(b) == 1 or len(b) * max(costs[row] for row in b) <= 20 for b in batches)
    assert list(Prepared(costs, {}, lambda _: {}).batches(20, 5)) == [[2, 1, 5, 4, 0], [3, 6]]
    assert list(Prepared([1] * 5, {}, lambda _: {}).batches(2)) == [[0, 1], [2, 3], [4]]


def test_a_large_batch_ends_where_rows_get_shorter() -> None:
    """By more than a tenth, once there are 8,192 tokens: 81 rows of 100, 163 of 50."""
    costs = [100] * 100 + [91] * 30 + [50] * 170 + [40] * 100
    found = Prepared(costs, {}, lambda _: {}).batches(2**15)
    assert [len(batch) for batch in found] == [130, 170, 100]
    few = Prepared(costs[:80] + costs[-10:], {}, lambda _: {}).batches(2**15)
    assert [len(batch) for batch in few] == [81, 9]
    assert [len(one) for one in Prepared(costs, {}, lambda _: {}).batches(2**15, 200)] == [200] * 2


@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_the_same_under_two_budgets(
    family: str, loud: Loud, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, rows = open_checkpoint(loud(family)), load_rows(TOY, "test")
    found = []
    for budget in (1, 64, 10**6):
        monkeypatch.setitem(placements.TOKENS, "cpu", budget)
        count = len(list(prepare(checkpoint, rows, LENGTH).batches(CPU.budget(images=False))))
        found.append((count, *forward(checkpoint, rows, max_length=LENGTH, placement=CPU)[:2]))
    assert found[0][0] == len(rows) > found[1][0] > found[2][0] == 1
    for _, *arrays in found[1:]:
        for one, other in zip(arrays, found[0][1:], strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)


def test_images_and_tokens_have_budgets_of_their_own() -> None:
    assert CPU.budget(images=False) == placements.TOKENS["cpu"]
    assert CPU.budget(images=True) == placements.IMAGES["cpu"]


# float32 -----------------------------------------------------------------------------------


def precisions() -> tuple[Any, ...]:
    own: Any = torch.backends
    if not hasattr(own.cudnn, "conv"):
        return (own.cuda.matmul.allow_tf32, own.cudnn.allow_tf32)
    places = (own.cuda.matmul, own.cudnn.conv, own.cudnn.rnn, own.mkldnn.matmul)
    return tuple(one.fp32_precision for one in places)


def test_a_pass_in_float32_is_one_whatever_the_program_asked(
    loud: Loud, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = functional.layer_norm

    def spy(*given: Any, **more: Any) -> torch.Tensor:
        seen.append(precisions())
        return real(*given, **more)

    checkpoint, rows = open_checkpoint(loud("bert")), load_rows(TOY, "test")
    torch.set_float32_matmul_precision("medium")
    try:
        before = precisions()
        monkeypatch.setattr(functional, "layer_norm", spy)
        forward(checkpoint, rows, max_length=LENGTH, placement=CPU)
        assert precisions() == before
        with pytest.raises(KeyError), full_float32():
            raise KeyError
        assert precisions() == before
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(seen) <= {("ieee",) * 4, (False, False)}
    assert seen


@pytest.mark.filterwarnings("ignore:.* fewer than examples")
@pytest.mark.parametrize("merging", [False, True])
def test_a_statistic_that_overflows_is_one_line(
    merging: bool, loud: Loud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the model and the type, and nothing of it is kept: not in the cache either."""
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    folder, out = Path(shutil.copytree(loud("bert"), tmp_path / "large")), tmp_path / "out"
    state = load_file(folder / "model.safetensors")
    for name in ("intermediate", "output"):
        state[f"bert.encoder.layer.0.{name}.dense.weight"] *= 1e4
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    command = ["statistics", folder, "--need", "gram", "--task", TOY.name]
    if merging:
        tasks = f"{TOY.name},{TOY.name}"
        again = shutil.copytree(folder, tmp_path / "again")
        command = ["merge", folder, again, "--merger", "regmean", "--tasks", tasks]
    for _ in range(2):
        asked = [*command, "--dtype", "float16", "--out", out]
        line = refused(asked, NotFinite, "gram float16", folder, TOY.name, "--dtype float32")
        assert "cache" not in line
    assert not out.exists()
    assert not list((tmp_path / "cache").rglob("statistics/*"))


# What is said of it ------------------------------------------------------------------------


def evaluated(loud: Loud, out: Path, *flags: str) -> int:
    command = ["evaluate", "--model", str(loud("bert")), "--tasks", TOY.name]
    command += ["--protocols", "current", "--device", "cpu", "--output-path", str(out), *flags]
    return main(command)


def test_a_record_says_its_precision_and_a_board_mixes_none(
    loud: Loud, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, half = tmp_path / "plain", tmp_path / "half"
    assert evaluated(loud, plain, "--dtype", "float32") == 0
    assert "bfloat16" not in capsys.readouterr().out
    assert evaluated(loud, half, "--dtype", "bfloat16") == 0
    assert "bfloat16" in capsys.readouterr().out
    (one,), (other,) = (list(out.rglob("*.json")) for out in (plain, half))
    assert json.loads(other.read_text())["settings"]["dtype"] == "bfloat16"
    assert json.loads(other.read_text())["settings"]["device"] == "cpu"
    assert "dtype=bfloat16" in other.name
    assert json.loads(one.read_text())["settings"].keys().isdisjoint({"dtype", "device"})
    assert main(["leaderboard", str(half), "--out", str(tmp_path / "board")]) == 0
    for name in ("board.md", "index.html", "board.tex"):
        assert "bfloat16" in (tmp_path / "board" / name).read_text(), name
    capsys.readouterr()
    with mistake(BrokenRecord, "dtype with same dtype column"):
        harness.leaderboard([plain, half], out=tmp_path / "mixed")
    (both := tmp_path / "both").mkdir()
    for path in (one, other):
        (both / path.name).write_bytes(path.read_bytes())
    name = json.loads(one.read_text())["model"]
    with mistake(BrokenRecord, "dtype with same dtype column"):
        harness.compare([name, str(plain)], records=both)


@pytest.mark.filterwarnings("default:b?float16 takes ")
@pytest.mark.parametrize("times", [8, 1.5])
def test_a_half_precision_that_is_slow_here_is_told_of_before_the_work(
    times: float,
    loud: Loud,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Training needs other products, which are slower still."""
    asked = []

    def told() -> list[str]:
        return [line for line in capsys.readouterr().err.splitlines() if "as long" in line]

    def measured(dtype: str, gradients: bool) -> float:
        asked.append((dtype, gradients))
        return 1 if dtype == "float32" else 40 if gradients else times

    monkeypatch.setattr(placements, "seconds", measured)
    folder, slow = str(loud("bert")), times > 2
    half = ["--dtype=float16", "--device=cpu"]
    reading = ["evaluate", "--model", folder, "--tasks", TOY.name, "--protocols=current", *half]
    statistics = ["statistics", folder, "--task", TOY.name, "--merger=regmean:examples=8", *half]
    training = ["finetune", "--base", folder, "--task", TOY.name, "--device=cpu", "--limit=8"]
    for command in (
        [*reading, "--output-path", str(tmp_path / "r")],
        [*statistics, "--out", str(tmp_path / "s.safetensors")],
    ):
        assert main(command) == 0
        assert len(lines := told()) == slow
        assert all(names(line, "float16 8 float32 --dtype") is None for line in lines)
    assert asked == [("float16", False), ("float32", False)] * 2
    assert main([*training, "--bf16", "--epochs=1", "--out", str(tmp_path / "e")]) == 0
    (line,) = told()
    names(line, "bfloat16 40 float32 --bf16")
    assert asked[4:] == [("bfloat16", True), ("float32", True)]


def test_of_float32_and_of_a_gpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placements, "seconds", lambda *_: pytest.fail("measured"))
    check_placement(CPU)
    monkeypatch.setattr("transformers.utils.is_torch_bf16_gpu_available", lambda: True)
    check_bf16(torch.device("mps"))


@pytest.mark.parametrize("size", ["abc", "", "-1"])
def test_a_batch_of_no_rows_is_quoted(loud: Loud, tmp_path: Path, size: str) -> None:
    with mistake(BadRecipe, f"batch_size: '{size}'") as caught:
        validated(Run, {"model": str(loud("bert")), "batch_size": size}, "evaluate")
    assert "Value" not in str(caught.value), "as pydantic has it"


def test_the_default_is_not_part_of_what_a_record_is_of(loud: Loud, tmp_path: Path) -> None:
    names = []
    for number, given in enumerate(({}, {"device": "cpu"}, {"batch_size": 3})):
        run: Any = {"model": str(loud("bert")), "tasks": (TOY.name,), "protocols": ("current",)}
        harness.evaluate(Run(**run, **given, output=str(tmp_path / str(number))))
        names.append([path.name for path in (tmp_path / str(number)).rglob("*.json")])
    assert names[0] == names[1] == names[2]


# Statistics and merges ---------------------------------------------------------------------


def test_a_statistic_says_its_precision(loud: Loud, tmp_path: Path) -> None:
    made = {}
    for dtype in ("float32", "bfloat16"):
        out = tmp_path / f"{dtype}.safetensors"
        merger = "regmean:examples=8"
        harness.statistic(
            loud("bert"), task=TOY.name, merger=merger, out=out, device="cpu", dtype=dtype
        )
        made[dtype] = read_statistic(out)
    told = {name: one.description["facts"] for name, one in made.items()}
    assert told["bfloat16"]["placement"] == {"dtype": "bfloat16", "device": "cpu"}
    assert "placement" not in told["float32"]
    for name in made["float32"].tensors:
        exactly, near = (made[dtype].tensors[name] for dtype in told)
        assert near.dtype == torch.float64
        assert 0 < float((near - exactly).abs().max() / exactly.abs().max()) < 2 * BOUND["bfloat16"]


def recipe(minis: Any, **given: Any) -> Recipe:
    experts = tuple(str(minis("bert")[name]) for name in ("a", "b"))
    asked = {"experts": experts, "base": str(minis("bert")["base"]), "tasks": (TOY.name,) * 2}
    return Recipe(**{**asked, "device": "cpu", **given})


def test_a_merge_says_in_which_precision_models_ran(minis: Any, tmp_path: Path) -> None:
    merger, said = "regmean:examples=8", {}
    for dtype in ("float32", "bfloat16"):
        merge(recipe(minis, merger=merger, dtype=dtype), out=tmp_path / dtype)
        said[dtype] = json.loads((tmp_path / dtype / "merge.json").read_text())
    assert said["bfloat16"]["dtype"] == "bfloat16"
    assert said["bfloat16"]["digest"] != said["float32"]["digest"]
    assert said["float32"].keys().isdisjoint({"dtype", "device"})
    states = [open_checkpoint(tmp_path / dtype).weights for dtype in said]
    apart = max(float((states[0][name] - states[1][name]).abs().max()) for name in states[0])
    assert apart < 0.02, "the merge in bfloat16 is another one"


def test_gradients_are_taken_in_float32(minis: Any, loud: Loud, tmp_path: Path) -> None:
    for asked in ("fisher:examples=4", "adamerging:examples=4,steps=1"):
        given = recipe(minis, merger=asked, premerge=("dare",), dtype="bfloat16")
        with mistake(BadOption, "gradients float32 --dtype bfloat16"):
            plan(given)  # before any stage is run
    command = ["statistics", minis("bert")["a"], "--task", TOY.name, "--out", tmp_path / "s"]
    refused([*command, "--need", "fisher", "--dtype", "bfloat16"], BadOption, "fisher gradients")
    with mistake(BadRecipe, "--dtype average"):
        merge(recipe(minis, dtype="bfloat16"), out=tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("command", ["evaluate", "merge", "statistics"])
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--dtype", "int8"], "dtype int8"),
        (["--device", "meta"], "device meta cuda:N"),
        (["--device", "cuda:99"], "device cuda:99 cuda:N"),
        (["--device", "toaster", "--dtype", "float16"], "device toaster float16"),
    ],
)
def test_what_cannot_be_used_is_refused_before_any_work(
    command: str, flags: list[str], says: str, minis: Any, tmp_path: Path
) -> None:
    folder, base, out = str(minis("bert")["a"]), str(minis("bert")["base"]), tmp_path / "out"
    asked = {
        "evaluate": ["--model", folder, "--tasks", TOY.name, "--output-path", str(out)],
        "merge": [folder, "--base", base, "--merger", "average", "--out", str(out)],
        "statistics": [folder, "--task", TOY.name, "--out", str(out / "s.safetensors")],
    }
    refused([command, *asked[command], *flags], (str, HarnessError), says)
    assert not out.exists()


def test_a_type_without_kernels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def linear(given: torch.Tensor, *_: object) -> torch.Tensor:
        raise RuntimeError(""""addmm_impl_cpu_" not implemented for 'Half'\nmore""")

    monkeypatch.setattr(functional, "linear", linear)
    with mistake(BadOption, "dtype float16"):
        check_placement(Placement(device="cpu", dtype="float16"))


# On a GPU ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["float32", *BOUND])
@pytest.mark.gpu
@with_gpu
def test_a_gpu_agrees_with_the_processor(name: str, dtype: Any, example: Example) -> None:
    checkpoint, rows = example(name)
    x, logits, _ = forward(checkpoint, rows, max_length=LENGTH, placement=CPU)
    there = Placement(device="cuda", dtype=dtype)
    near, outputs, _ = forward(checkpoint, rows, max_length=LENGTH, placement=there)
    bound = BOUND.get(dtype, 1e-5)
    assert max(far(near, x), far(outputs, logits)) < bound


@pytest.mark.gpu
@with_gpu
@pytest.mark.parametrize(("stage", "text"), CASES)
def test_a_method_computes_on_a_gpu_what_it_does_here(stage: str, text: str) -> None:
    pairs = zip(run(stage, text, torch.device("cuda")), run(stage, text, PROCESSOR), strict=True)
    for there, here in pairs:
        for name, tensor in here.items():
            assert there[name].device == PROCESSOR
            torch.testing.assert_close(there[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@with_gpu
def test_statistics_of_a_gpu_are_those_of_the_processor(
    loud: Loud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for need in ("gram:examples=8", "fisher:examples=4"):
        made = []
        for device in ("cpu", "cuda"):
            monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / f"{need[:4]}-{device}-cache"))
            out = tmp_path / f"{need[:4]}-{device}.safetensors"
            harness.statistic(loud("bert"), task=TOY.name, need=need, out=out, device=device)
            made.append(read_statistic(out).tensors)
        for name in made[0]:
            here, there = made[0][name], made[1][name]
            assert float((here - there).abs().max()) <= 1e-4 * float(here.abs().max()), name
