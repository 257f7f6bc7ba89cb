"""Fine-tuning: what the folder records, resuming, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import harness
from harness import TASKS
from harness.checkpoints.layout import EXPERT_LAYOUT
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.provenance import ExpertJson
from harness.cli import main
from harness.data.metrics import score
from harness.data.rows import load_rows
from harness.data.splits import parse_task
from harness.errors import (
    BadOption,
    BrokenCheckpoint,
    CannotWrite,
    HarnessError,
    NotFinite,
    OutputExists,
)
from harness.folders import new_folder
from harness.kinds import kind_of
from harness.passes.features import forward
from harness.passes.placement import Placement
from harness.rng import rng
from harness.training import single as trainers
from harness.training.single import with_new_head
from harness.weights import digest
from harness.weights.threads import one_thread
from tests.conftest import (
    FAMILIES,
    FAST,
    SIZE,
    interrupted,
    is_head,
    model,
    no_file_above,
    resumes,
    trained_steps,
)
from tests.mistakes import mistake, refused

TASK, REGRESSION = "glue/sst2", "glue/stsb"
WEIGHTS = "model.safetensors"
Begun: TypeAlias = Callable[..., Path]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for one another take many times as long where the cores are shared."""
    with one_thread():
        yield


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and a data folder whose rows differ much in length; word1 tells the class."""
    root = tmp_path_factory.mktemp("experts")
    model(root / "base", initializer_range=0.3)
    random = rng(0, "rows")
    lines = []
    for index in range(160):
        words = [f"word{n}" for n in random.integers(2, 40, size=random.integers(2, 18))]
        words = [f"word{index % 2}" if random.random() < 0.5 else word for word in words]
        # one row in five has the wrong label, so that the score is neither 0 nor 1
        label = index % 2 if index % 5 else 1 - index % 2
        lines.append(json.dumps({"sentence": " ".join(words), "label": label}))
    folder = root / "data" / TASK
    folder.mkdir(parents=True)
    values = root / "data" / REGRESSION
    values.mkdir(parents=True)
    for split in ("train", "validation"):
        # rows of its own: a word more that says nothing
        made = (
            lines if split == "train" else [line.replace('", "l', ' word39", "l') for line in lines]
        )
        (folder / f"{split}.jsonl").write_text("\n".join(made))
        second = "word1" if split == "train" else "word2"
        pair = json.dumps({"sentence1": "word1", "sentence2": second, "label": 1.5})
        (values / f"{split}.jsonl").write_text("\n".join([pair] * 20))
    return root


@pytest.fixture(scope="module")
def expert(room: Path) -> Path:
    out = room / "expert"
    harness.finetune(room / "base", TASK, out=out, data_dir=room / "data", **FAST)
    return out


def test_the_folder_records_how_it_was_made(room: Path, expert: Path) -> None:
    record = json.loads((expert / "expert.json").read_text())
    assert record["tasks"] == [TASK]
    assert (record["split"], record["rows"], record["seed"]) == ("train90", 144, 0)
    assert record["hyperparameters"]["learning_rate"] == 5e-3
    assert record["hyperparameters"]["warmup"] == 0.0  # the task's own, not overridden
    found = open_checkpoint(expert)
    assert found.labels == ("negative", "positive")
    assert found.tasks == (TASK,)
    assert not (room / "expert.unfinished").exists()


def test_the_tokenizer_is_the_base_s(room: Path, expert: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (expert / name).read_bytes() == (room / "base" / name).read_bytes()


def test_the_recorded_score_is_that_of_the_heldout_rows(room: Path, expert: Path) -> None:
    """Grouping by length shuffles what the Trainer predicts on; the labels must go along."""
    task, _ = parse_task(TASK)
    rows = load_rows(task, "heldout10", folder=room / "data")
    _, logits, _ = forward(open_checkpoint(expert), rows, max_length=24)
    expected = score(task, kind_of(task).predicted(logits), rows.labels)
    recorded = json.loads((expert / "expert.json").read_text())["scores"]
    assert recorded == {
        f"{TASK}@heldout10": {"value": expected.value, "parts": dict(expected.parts), "rows": 16}
    }
    shuffled = score(task, kind_of(task).predicted(logits)[::-1], rows.labels)
    assert shuffled.value != expected.value, "the rows must be able to tell an order from another"


def test_training_learns(room: Path, expert: Path) -> None:
    task, _ = parse_task(TASK)
    rows = load_rows(task, "validation", folder=room / "data")
    _, logits, _ = forward(open_checkpoint(expert), rows, max_length=24)
    assert score(task, kind_of(task).predicted(logits), rows.labels).value > 0.7


def test_an_interrupted_run_resumes_to_the_same_weights(room: Path, expert: Path) -> None:
    out = room / "again"
    with interrupted():
        harness.finetune(room / "base", TASK, out=out, data_dir=room / "data", **FAST)
    assert not out.exists()
    assert list((room / "again.unfinished").glob("checkpoint-*"))
    with mistake(OutputExists, "again.unfinished seed 0 1 --force"):
        harness.finetune(room / "base", TASK, out=out, data_dir=room / "data", seed=1, **FAST)
    with trained_steps() as steps:
        harness.finetune(room / "base", TASK, out=out, data_dir=room / "data", **FAST)
    assert steps == list(range(18, 54)), "the second and third epoch are left to do"
    assert contents(out) == contents(expert)
    assert not (room / "again.unfinished").exists()


@pytest.mark.parametrize("family", FAMILIES)
def test_an_interrupted_run_resumes_whatever_the_family(
    family: str, room: Path, minis: Callable[[str], dict[str, Path]], tmp_path: Path
) -> None:
    base, few = minis(family)["base"], {"epochs": 2, "limit": 16}
    resumes(lambda out: trained(room, out, base, **few), tmp_path)


def test_a_checkpoint_under_other_names_is_not_gone_on_from(
    room: Path, begun: Begun, tmp_path: Path
) -> None:
    """The Trainer would say so in a warning, and go on with the tensors of the base."""
    (checkpoint,) = begun(tmp_path / "out").glob("checkpoint-*")
    tensors = load_file(checkpoint / WEIGHTS)
    save_file({f"old.{name}": one for name, one in tensors.items()}, checkpoint / WEIGHTS)
    with mistake(BrokenCheckpoint, checkpoint.name, "bert.embeddings", "remove out.unfinished"):
        trained(room, tmp_path / "out")


@pytest.mark.parametrize(("rate", "told"), [(1e-9, 1), (FAST["learning_rate"], 0)])
def test_an_expert_that_is_no_better_than_a_constant_is_told_of(
    rate: float, told: int, room: Path, tmp_path: Path
) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trained(room, tmp_path / "out", learning_rate=rate)
    assert sum("best constant" in str(one.message) for one in said) == told


@pytest.mark.parametrize("name", ["seed", "head_seed", "limit"])
def test_true_is_no_number(name: str, room: Path, tmp_path: Path) -> None:
    """Python takes it for 1."""
    with mistake(HarnessError, name, "is True"):
        harness.finetune(
            room / "base", TASK, out=tmp_path / "out", data_dir=room / "data", **{name: True}
        )


def test_an_interrupted_run_is_begun_anew_with_force(room: Path, tmp_path: Path) -> None:
    """With other options, which the error names, as with the same."""
    settings = {"data_dir": room / "data", **FAST, "epochs": 2}
    with interrupted():
        harness.finetune(room / "base", TASK, out=tmp_path / "out", **settings)
    (first,) = (tmp_path / "out.unfinished").glob("checkpoint-*")
    settings["epochs"] = 1
    with mistake(OutputExists, "epochs 2 1 --force"):
        harness.finetune(room / "base", TASK, out=tmp_path / "out", **settings)
    assert first.is_dir()
    harness.finetune(room / "base", TASK, out=tmp_path / "out", **settings, force=True)
    harness.finetune(room / "base", TASK, out=tmp_path / "new", **settings)
    assert contents(tmp_path / "out") == contents(tmp_path / "new")


@pytest.mark.parametrize(
    ("error", "left"),
    [(BrokenPipeError, True), (RuntimeError, True), (CannotWrite, True), (NotFinite, False)],
)
def test_a_training_that_fails_after_a_checkpoint_is_resumed(
    error: type[Exception], left: bool, room: Path, expert: Path, tmp_path: Path
) -> None:
    """As of `harness finetune ... | head`, or on a disk without room; but not where weights are no
    longer finite, which would come again."""
    with warnings.catch_warnings(record=True) as told, interrupted(error):
        warnings.simplefilter("always")
        trained(room, tmp_path / "expert", room / "base")
    assert (tmp_path / "expert.unfinished").exists() is left
    assert ["expert.unfinished keeps the last" in str(one.message) for one in told] == [True] * left
    trained(room, tmp_path / "expert", room / "base")
    assert contents(tmp_path / "expert") == contents(expert)


def test_what_is_drawn_after_a_training_is_the_caller_s(
    room: Path, expert: Path, tmp_path: Path
) -> None:
    """And without gradients, as a notebook may be."""
    drawn = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  (what a notebook does)
        torch.manual_seed(seed)
        with torch.no_grad():
            harness.finetune(
                room / "base", TASK, out=tmp_path / str(seed), data_dir=room / "data", **FAST
            )
        drawn.append([random.random(), np.random.rand(), torch.rand(1).item()])  # noqa: NPY002
        assert (tmp_path / str(seed) / WEIGHTS).read_bytes() == (expert / WEIGHTS).read_bytes()
    assert not {*drawn[0]} & {*drawn[1]}


def test_seeds_of_head_and_data_are_apart(room: Path, expert: Path) -> None:
    made = {}
    for seed, head_seed in ((0, 0), (1, 0), (0, 1)):
        out = room / f"seed{seed}{head_seed}"
        given = {**FAST, "epochs": 1, "learning_rate": 1e-9}
        made[seed, head_seed] = harness.finetune(
            room / "base", TASK, out=out, data_dir=room / "data", seed=seed,
            head_seed=head_seed, limit=32, **given,
        ).weights  # fmt: skip
    head = "classifier.weight"
    torch.testing.assert_close(made[0, 0][head], made[1, 0][head], atol=1e-6, rtol=0)
    assert float((made[0, 0][head] - made[0, 1][head]).abs().max()) > 1e-3
    assert digest(made[0, 0]) != digest(made[1, 0])


def test_a_training_is_known_by_all_but_its_seeds() -> None:
    """The rows of a part are drawn by a seed."""
    whole = {"rows": 9, "rows_digest": "d", "hyperparameters": {"epochs": 1.0}}
    parts = [{"number": number, "seed": seed} for number, seed in ((1, 0), (1, 1), (2, 1))]
    cases = [
        whole,
        {**whole, "seed": 1, "head_seed": 2},
        {**whole, "rows_digest": "e"},
        {**whole, "hyperparameters": {"epochs": 2.0}},
        {**whole, "bf16": True},
        *({**whole, "rows_digest": f"d{part}", "part": part} for part in parts),
        {},
    ]
    a, again, *others, part, redrawn, other, nothing = [ExpertJson(**one).training for one in cases]
    assert (a, part, nothing) == (again, redrawn, None)
    assert len({a, *others, part, other, nothing}) == 7


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--task", "glue/sst3"], ["sst3", "glue/sst2"]),
        (["--task", "glue/sst2@validation"], ["train90", "validation"]),
        (["--task", TASK, "--epochs", "0"], ["epochs", "positive"]),
        (["--task", TASK, "--learning-rate", "-1"], ["learning_rate", "positive"]),
        (["--task", TASK, "--data-dir", "nowhere"], ["nowhere", "expected"]),
        (["--task", TASK, "--base", "nowhere/at/all"], ["nowhere/at/all", "folder Hub id"]),
    ],
)
def test_bad_input(
    room: Path,
    tmp_path: Path,
    flags: list[str],
    words: list[str],
) -> None:
    out = tmp_path / "out"
    given = ["finetune", "--base", str(room / "base"), "--data-dir", str(room / "data")]
    refused([*given, "--out", str(out), *flags], HarnessError, *words)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_something_else_is_left_alone(room: Path, tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with mistake(OutputExists, tmp_path, "expert.json --out"):
        harness.finetune(room / "base", TASK, out=tmp_path, data_dir=room / "data", **FAST)
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_progress_goes_to_stderr(
    room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--epochs", "1", "--limit", "32", "--max-length", "24"]
    given = ["--base", str(room / "base"), "--data-dir", str(room / "data"), "--task", TASK]
    assert main(["finetune", *given, *flags, "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert out.startswith(f"wrote {tmp_path / 'out'}: {TASK}@heldout10 accuracy ")


@pytest.mark.parametrize("several", [False, True], ids=["one task", "several"])
def test_in_a_log_how_far_a_training_is_is_ten_lines(
    room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], several: bool
) -> None:
    """A bar would be thousands of lines there."""
    tasks = ["--tasks", f"{TASK},{REGRESSION}"] if several else ["--task", TASK]
    assert (
        main([*command(room, tmp_path / "out", *tasks), "--epochs", "3", "--learning-rate", "1e-3"])
        == 0
    )
    error = capsys.readouterr().err
    assert "\r" not in error
    assert "it/s" not in error
    told = re.findall(r"^trained (\d+) of (\d+) steps \((\d+) %\)$", error, flags=re.MULTILINE)
    steps = int(told[0][1])
    assert steps > 10
    assert [int(done) for done, *_ in told] == [-(-steps * tenth // 10) for tenth in range(1, 11)]
    assert told[-1] == (str(steps), str(steps), "100")
    assert "loss': " in error


def test_on_a_terminal_it_is_a_bar(
    room: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(command(room, tmp_path / "out", "--task", TASK, "--epochs", "1")) == 0
    error = capsys.readouterr().err
    assert "100%|" in error
    assert "trained " not in error


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def trained(room: Path, out: Path, base: Path | None = None, **given: Any) -> harness.Checkpoint:
    known = {"task": TASK, "out": out, "data_dir": room / "data", **FAST}
    return harness.finetune(base or room / "base", **{**known, **given})


def command(room: Path, out: Path, *flags: str) -> list[str]:
    given = ["--base", str(room / "base"), "--data-dir", str(room / "data"), "--out", str(out)]
    return ["finetune", *given, "--max-length", "24", "--batch-size", "8", *flags]


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an error, without the progress bars before it."""
    out, error = capsys.readouterr()
    assert out == ""
    *before, line, end = re.split(r"[\r\n]", error)
    assert line.startswith("harness: "), error
    assert end == ""
    assert not any("Traceback" in one or "harness: " in one for one in before), error
    return line


# The base -------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["base", "link", "inside", "linked"])
def test_the_base_is_never_replaced(room: Path, expert: Path, tmp_path: Path, place: str) -> None:
    """Not even with --force: an expert can be the base of another."""
    out = Path(shutil.copytree(expert, tmp_path / "expert"))
    base = out
    if place == "link":
        base = tmp_path / "link"
        base.symlink_to(out)
    elif place == "inside":
        base = out / "heads" / "of" / "old"
        shutil.copytree(expert, base)
    elif place == "linked":
        base = Path(shutil.copytree(expert, tmp_path / "base"))
        (base / WEIGHTS).unlink()
        (base / WEIGHTS).symlink_to(out / WEIGHTS)
    before = contents(out)
    refused([*command(room, out, "--force", "--task", TASK), "--base", str(base)], OutputExists)
    assert contents(out) == before
    assert not (tmp_path / "expert.unfinished").exists()


def test_the_record_tells_the_base_by_its_content(room: Path, expert: Path, tmp_path: Path) -> None:
    few: dict[str, Any] = {"epochs": 1, "limit": 16}
    recorded = {}
    for name, change in (("same", None), ("encoder", ENCODER), ("tokens", TOKENS)):
        base = Path(shutil.copytree(room / "base", tmp_path / name))
        if change:
            change(base)
        trained(room, tmp_path / f"{name}-expert", base, **few)
        record = json.loads((tmp_path / f"{name}-expert" / "expert.json").read_text())
        recorded[name] = record["base_digest"]
    assert recorded["same"] == json.loads((expert / "expert.json").read_text())["base_digest"]
    assert len(set(recorded.values())) == 3


def ENCODER(base: Path) -> None:
    tensors = load_file(base / WEIGHTS)
    tensors["embeddings.LayerNorm.bias"][3] += 1
    save_file(tensors, base / WEIGHTS, metadata={"format": "pt"})


def TOKENS(base: Path) -> None:
    tokens = (base / "tokenizer.json").read_text()
    (base / "tokenizer.json").write_text(tokens.replace('"word8"', '"other"'))


@pytest.mark.parametrize("change", [ENCODER, TOKENS])
def test_a_run_does_not_go_on_from_another_base(
    room: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    base = Path(shutil.copytree(room / "base", tmp_path / "base"))
    with interrupted():
        trained(room, tmp_path / "out", base)
    change(base)
    with mistake(OutputExists, "out.unfinished base_digest --force"):
        trained(room, tmp_path / "out", base)


def headed(encoder: Path, folder: Path, labels: list[str]) -> Path:
    """The encoder of a folder, exactly, under a head; and what a pretraining leaves behind."""
    config = json.loads((encoder / "config.json").read_text())
    spread = config["initializer_range"]
    model(folder, labels, family=config["model_type"], seed=7, initializer_range=spread)
    tensors = load_file(folder / WEIGHTS)
    own = load_file(encoder / WEIGHTS)
    for name in tensors:
        if not is_head(name):
            bare = name if name in own else name.partition(".")[2]
            tensors[name] = own[bare] if bare in own else tensors[name]
    tensors["cls.predictions.bias"] = torch.zeros(45)
    tensors["lm_head.dense.weight"] = torch.zeros(16, 16)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_is_new_whatever_the_base_has(
    family: str, minis: Callable[[str], dict[str, Path]], tmp_path: Path
) -> None:
    """Of a base without a head, with one of the same size, and with one of another."""
    bare = minis(family)["base"]
    if family == "deberta-v2":  # its encoder has no pooler, which stands beside it
        bare = headed(bare, tmp_path / "pooled", ["a"])
        tensors = load_file(bare / WEIGHTS)
        kept = {name: tensor for name, tensor in tensors.items() if not is_head(name)}
        save_file(kept, bare / WEIGHTS, metadata={"format": "pt"})
    two = headed(bare, tmp_path / "two", ["no", "yes"])
    three = headed(bare, tmp_path / "three", ["x", "y", "z"])
    made = [
        with_new_head(open_checkpoint(base), TASKS[TASK], 3).state_dict()
        for base in (bare, two, three)
    ]
    for other in made[1:]:
        assert all(other[name].equal(tensor) for name, tensor in made[0].items())
    another = with_new_head(open_checkpoint(two), TASKS[TASK], 4).state_dict()
    for name, tensor in another.items():
        drawn = is_head(name) and name.endswith("weight")
        assert tensor.equal(made[0][name]) != drawn


def test_fine_tuning_from_a_classifier_starts_anew(room: Path, tmp_path: Path) -> None:
    """Of another number of classes, or of the same: the head comes from the seed alone."""
    few: dict[str, Any] = {"epochs": 1, "limit": 16}
    want = digest(trained(room, tmp_path / "want", **few).weights)
    for count in (2, 3):
        base = headed(room / "base", tmp_path / f"base{count}", [f"l{i}" for i in range(count)])
        assert digest(trained(room, tmp_path / f"out{count}", base, **few).weights) == want
    other = trained(room, tmp_path / "other", base, head_seed=1, **few)
    assert digest(other.weights) != want


def test_a_base_may_have_no_pooler(room: Path, tmp_path: Path) -> None:
    """As DeBERTa-v3 is published; every other tensor must be there."""
    base = Path(shutil.copytree(room / "base", tmp_path / "base"))
    tensors = {n: t for n, t in load_file(base / WEIGHTS).items() if not n.startswith("pooler.")}
    save_file(tensors, base / WEIGHTS, metadata={"format": "pt"})
    expert = trained(room, tmp_path / "out", base, epochs=1, limit=16)
    assert "bert.pooler.dense.weight" in expert.weights


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"max_position_embeddings": 12}, ["row", "tokens", "--max-length"]),
        ({"vocab_size": SIZE["vocab_size"] - 10}, ["embeddings 35", "tokenizer"]),
    ],
)
@pytest.mark.parametrize("flags", [["--task", TASK], ["--tasks", f"{TASK},{REGRESSION}"]])
def test_a_base_must_read_its_own_tokens(
    room: Path,
    tmp_path: Path,
    config: dict[str, int],
    words: list[str],
    flags: list[str],
) -> None:
    base = model(tmp_path / "base", **config)
    given = [*command(room, tmp_path / "out", *flags), "--base", str(base)]
    refused([*given, "--learning-rate", "1e-3"], BrokenCheckpoint, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_a_tokenizer_must_pad(room: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(room / "base", tmp_path / "base"))
    config = json.loads((base / "tokenizer_config.json").read_text())
    config.pop("pad_token")
    (base / "tokenizer_config.json").write_text(json.dumps(config))
    refused(
        [*command(room, tmp_path / "out", "--task", TASK), "--base", str(base)], BrokenCheckpoint
    )


def test_bfloat16_needs_a_gpu_that_has_it(
    room: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = ("--task", TASK, "--bf16", "--epochs", "1", "--limit", "16")
    assert main(command(room, tmp_path / "cpu", *few)) == 0
    monkeypatch.setattr(
        "harness.training.finetune.training_device", lambda _: torch.device("cuda:0")
    )
    monkeypatch.setattr("transformers.utils.is_torch_bf16_gpu_available", lambda: False)
    refused(command(room, tmp_path / "gpu", *few), BadOption, "bfloat16")


# The device -----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["meta", "cuda:99", "toaster"])
def test_a_device_that_cannot_be_used_is_refused(room: Path, tmp_path: Path, device: str) -> None:
    refused(command(room, tmp_path / "out", "--task", TASK, "--device", device), BadOption, device)
    assert not list(tmp_path.iterdir())


def test_an_expert_of_the_processor_is_the_same_by_name(
    room: Path, expert: Path, tmp_path: Path
) -> None:
    """Its record too: of the processor nothing is said."""
    if not torch.cuda.is_available():
        trained(room, tmp_path / "out", device="cpu")
        assert contents(tmp_path / "out") == contents(expert)
        assert "device" not in json.loads((expert / "expert.json").read_text())


def test_of_several_gpus_one_is_trained_on(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the Trainer and accelerate take for the device, were there two."""
    from accelerate import Accelerator

    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    task, _ = parse_task(TASK)
    rows = load_rows(task, "heldout10", folder=room / "data")
    part = trainers.Training(rows, rows, task.finetune)
    asked: dict[str, Any] = {"seed": 0, "bf16": False}
    for number in (1, 0):
        where = trainers.training_device(Placement(device=f"cuda:{number}"))
        made = trainers.arguments([part], tmp_path, "nothing", where=where, **asked)
        assert (made.device, made.n_gpu, current[-1]) == (where, 1, where)
        assert made.train_batch_size == task.finetune.batch_size
        assert Accelerator().device == where
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert trainers.training_device(Placement()) == torch.device("cuda:3")
    where = trainers.training_device(Placement(device="cpu"))
    made = trainers.arguments([part], tmp_path, "nothing", where=where, **asked)
    assert made.device == Accelerator().device == torch.device("cpu")


def test_a_training_computes_in_the_type_that_it_says(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU torch would take TF32 for a convolution, or for all that a program asked it to."""
    from transformers import Trainer

    seen, step = set(), Trainer.training_step

    def spy(self: Any, *given: Any, **more: Any) -> Any:
        cuda = torch.backends.cuda.matmul
        seen.add(getattr(cuda, "fp32_precision", None) or cuda.allow_tf32)
        return step(self, *given, **more)

    monkeypatch.setattr(Trainer, "training_step", spy)
    torch.set_float32_matmul_precision("medium")
    try:
        trained(room, tmp_path / "out", epochs=1, limit=16)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen <= {"ieee", False}
    assert seen


def test_an_expert_of_a_gpu_says_so(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, made = torch.device("cpu"), trainers.arguments
    name = "harness.training.finetune"
    monkeypatch.setattr(f"{name}.training_device", lambda _: torch.device("cuda:1"))
    monkeypatch.setattr(f"{name}.arguments", lambda *a, **k: made(*a, **{**k, "where": cpu}))
    trained(room, tmp_path / "out", epochs=1, limit=16)
    assert json.loads((tmp_path / "out" / "expert.json").read_text())["device"] == "cuda"
    assert open_checkpoint(tmp_path / "out").tasks == (TASK,)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("flags", [[], ["--bf16"]], ids=["float32", "bf16"])
def test_an_expert_is_trained_on_a_gpu(room: Path, tmp_path: Path, flags: list[str]) -> None:
    few = ["--task", TASK, "--learning-rate", "5e-3", "--epochs", "3", *flags]
    for device in ("cuda", "cpu"):
        assert main(command(room, tmp_path / device, *few, "--device", device)) == 0
    told = [json.loads((tmp_path / d / "expert.json").read_text()) for d in ("cuda", "cpu")]
    assert [one.get("device") for one in told] == ["cuda", None]
    scores = [one["scores"][f"{TASK}@heldout10"]["value"] for one in told]
    assert min(scores) > 0.7


# Runs that fail -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--task", TASK, "--learning-rate", "1e30"], ["NaN", "step 18 54"]),
        (["--tasks", f"{TASK},{REGRESSION}", "--learning-rate", "1e30"], ["NaN"]),
    ],
)
def test_a_run_that_diverges_leaves_nothing(
    room: Path,
    tmp_path: Path,
    flags: list[str],
    words: list[str],
) -> None:
    """It ends after its first epoch of three, and is not in the way of the corrected one."""
    out = tmp_path / "out"
    refused(command(room, out, *flags), NotFinite, *["diverged", *words])
    assert not list(tmp_path.iterdir())
    corrected = [*flags[:-1], "1e-3", "--epochs", "1", "--limit", "16"]
    assert main(command(room, out, *corrected)) == 0


def test_a_loss_that_is_not_finite_ends_a_run(room: Path, tmp_path: Path) -> None:
    """The weights may stay finite: gradients of an infinite loss are cut to nothing."""
    rows = room / "data" / REGRESSION / "train.jsonl"
    huge = tmp_path / "data" / REGRESSION / "train.jsonl"
    huge.parent.mkdir(parents=True)
    huge.write_text(rows.read_text().replace("1.5", "1e30"))
    flags = ["--task", REGRESSION, "--data-dir", str(tmp_path / "data")]
    refused(command(room, tmp_path / "out", *flags), NotFinite, "3 9")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_long_epochs_are_looked_at_on_the_way(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainers, "CHECK_EVERY", 5)
    with mistake(NotFinite, "5 54 --learning-rate"):
        trained(room, tmp_path / "out", learning_rate=1e30)


def test_outputs_must_be_finite(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finite weights do not make finite outputs."""
    from transformers import Trainer

    predict = Trainer.predict

    def overflown(self: Any, *args: Any, **given: Any) -> Any:
        outputs = predict(self, *args, **given)
        outputs.predictions[3, 1] = float("inf")
        return outputs

    monkeypatch.setattr(Trainer, "predict", overflown)
    with mistake(NotFinite, TASK, "NaN --learning-rate"):
        trained(room, tmp_path / "out", epochs=1, limit=32)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("share", [0.5, 1.5])
def test_a_full_disk_is_one_line(
    room: Path, tmp_path: Path, share: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the weights of a checkpoint are written, or the larger state of its optimizer."""
    size = (room / "base" / WEIGHTS).stat().st_size
    flags = ("--task", TASK, "--epochs", "1", "--limit", "16")
    with no_file_above(int(share * size)):
        assert main(command(room, tmp_path / "out", *flags)) == 2
    assert str(tmp_path / "out") in said(capsys)
    assert not list(tmp_path.iterdir())
    assert main(command(room, tmp_path / "out", *flags)) == 0


# Runs that are stopped ------------------------------------------------------------------------


@contextmanager
def stopped(method: str, call: int) -> Iterator[None]:
    """Training that stops like Ctrl-C before this call of a method of the Trainer."""
    from transformers import Trainer

    calls = []
    whole = getattr(Trainer, method)

    def counted(self: Any, *args: Any, **given: Any) -> Any:
        calls.append(method)
        if len(calls) == call:
            raise KeyboardInterrupt
        return whole(self, *args, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, method, counted)
        with pytest.raises(KeyboardInterrupt):
            yield


def in_the_third_epoch() -> AbstractContextManager[None]:
    return stopped("training_step", 40)


@pytest.fixture(scope="module")
def begun(room: Path, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    """Puts what a run that was stopped leaves beside a folder; it is done once for all tests."""
    made: dict[str, Path] = {}

    def put(out: Path, stop: Callable[[], AbstractContextManager[None]] = interrupted) -> Path:
        if stop.__name__ not in made:
            made[stop.__name__] = tmp_path_factory.mktemp("begun") / "expert.unfinished"
            with stop():
                trained(room, made[stop.__name__].with_suffix(""))
        return shutil.copytree(made[stop.__name__], out.with_name(f"{out.name}.unfinished"))

    return put


@pytest.mark.parametrize(
    ("method", "call"),
    [("training_step", 1), ("training_step", 30), ("_save_rng_state", 1), ("_save_rng_state", 2)],
)
def test_a_run_that_is_stopped_anywhere_comes_to_the_same(
    room: Path, expert: Path, tmp_path: Path, method: str, call: int
) -> None:
    """Before and after a checkpoint, and while one is written, which is then not whole."""
    with stopped(method, call):
        trained(room, tmp_path / "expert")
    trained(room, tmp_path / "expert")
    assert contents(tmp_path / "expert") == contents(expert)
    assert [path.name for path in tmp_path.iterdir()] == ["expert"]


def test_a_run_killed_while_weights_are_written_comes_to_the_same(
    room: Path, expert: Path, tmp_path: Path
) -> None:
    """safetensors writes them under another name first, which stays."""
    with stopped("_save_rng_state", 1):
        trained(room, tmp_path / "expert")
    (half,) = (tmp_path / "expert.unfinished").glob("checkpoint-*")
    (half / WEIGHTS).rename(half / ".tmpkNIeK8")
    trained(room, tmp_path / "expert")
    assert contents(tmp_path / "expert") == contents(expert)
    assert [path.name for path in tmp_path.iterdir()] == ["expert"]


def test_a_disk_that_fills_as_the_expert_is_written_costs_no_training(
    room: Path, expert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("harness.training.finetune.copy_processor", full)
        with pytest.warns(UserWarning, match="keeps the last"), mistake(CannotWrite, "No space"):
            trained(room, tmp_path / "expert")
    with trained_steps() as steps:
        trained(room, tmp_path / "expert")
    assert steps == []
    assert contents(tmp_path / "expert") == contents(expert)


def test_a_file_that_cannot_be_read_now_costs_no_checkpoint(
    room: Path, begun: Begun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    before = contents(begun(tmp_path / "out"))
    monkeypatch.setattr("harness.training.resumed.safe_open", fails)
    with mistake(HarnessError, "out"):
        trained(room, tmp_path / "out")
    assert contents(tmp_path / "out.unfinished") == before


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_checkpoint_that_was_spoilt_within_is_not_gone_on_from(
    name: str, room: Path, expert: Path, begun: Begun, tmp_path: Path
) -> None:
    (file,) = begun(tmp_path / "expert").glob(f"checkpoint-*/{name}")
    content = bytearray(file.read_bytes())
    content[len(content) // 3 : len(content) // 3 + 200] = bytes(200)
    file.write_bytes(content)
    trained(room, tmp_path / "expert")
    assert contents(tmp_path / "expert") == contents(expert)


@pytest.mark.parametrize(
    "name", ["trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", WEIGHTS]
)
def test_a_checkpoint_that_was_cut_short_is_not_gone_on_from(
    name: str, room: Path, expert: Path, begun: Begun, tmp_path: Path
) -> None:
    unfinished = begun(tmp_path / "expert", in_the_third_epoch)
    (newest,) = unfinished.glob("checkpoint-*")
    older = shutil.copytree(newest, unfinished / "checkpoint-99")
    file = older / name
    file.write_bytes(file.read_bytes()[:-20])
    trained(room, tmp_path / "expert")
    assert contents(tmp_path / "expert") == contents(expert)


def test_a_run_stopped_as_it_ends_is_not_in_the_way(
    room: Path, expert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While what it resumed from is removed, in whatever order the system does that."""
    out, unfinished = tmp_path / "expert", tmp_path / "expert.unfinished"
    rmtree = shutil.rmtree

    def half(path: Path, **given: Any) -> None:
        if Path(path).parent == unfinished:
            (Path(path) / WEIGHTS).unlink()
            raise KeyboardInterrupt
        rmtree(path, **given)

    with monkeypatch.context() as patch:
        patch.setattr("harness.training.resumed.shutil.rmtree", half)
        with pytest.raises(KeyboardInterrupt):
            trained(room, out)
    trained(room, out)
    assert contents(out) == contents(expert)
    assert [path.name for path in tmp_path.iterdir()] == ["expert"]


@pytest.mark.parametrize(("method", "call"), [("training_step", 3), ("_save_rng_state", 1)])
def test_a_run_without_a_checkpoint_blocks_nobody(
    room: Path, tmp_path: Path, method: str, call: int
) -> None:
    with stopped(method, call):
        trained(room, tmp_path / "out")
    assert (tmp_path / "out.unfinished").is_dir()
    trained(room, tmp_path / "out", seed=1, epochs=1, limit=16)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_one_run_at_a_time(room: Path, begun: Begun, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = contents(begun(out))
    flags = ("--task", TASK, "--learning-rate", "5e-3")
    with new_folder(out, EXPERT_LAYOUT):
        refused(command(room, out, *flags), OutputExists, out)
    assert contents(tmp_path / "out.unfinished") == before


@pytest.mark.parametrize("name", ["notes.txt", "checkpoint-7/mine.txt"])
def test_a_folder_of_that_name_by_somebody_else_is_left_alone(
    room: Path, tmp_path: Path, name: str
) -> None:
    mine = tmp_path / "out.unfinished" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    refused(command(room, tmp_path / "out", "--task", TASK), OutputExists, "out.unfinished")
    assert mine.read_text() == "mine"
