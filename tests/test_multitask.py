"""Multi-task training: one encoder, a head for each task, batches of one data set."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import harness
from harness import TASKS
from harness.checkpoints.open import open_checkpoint
from harness.cli import main
from harness.data.rows import load_rows
from harness.errors import HarnessError, MissingHead, OutputExists
from harness.evaluation.resolve import resolve_model
from harness.passes.features import forward
from harness.reporting.table import PARTS
from harness.rng import rng
from harness.training.multi import MultiTask, TaskBatches
from harness.training.single import with_new_head
from harness.weights import digest, specs
from tests.conftest import FAMILIES, FAST, interrupted, is_head, model
from tests.mistakes import mistake, refused

SST2, RTE, STSB = "glue/sst2", "glue/rte", "glue/stsb"
ALL = (SST2, RTE, STSB)
ROWS = {SST2: 160, RTE: 90, STSB: 200}


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, and data of three tasks where the first word tells the label."""
    root = tmp_path_factory.mktemp("multitask")
    model(root / "base", initializer_range=0.3)
    random = rng(0, "rows")
    pair = ("sentence1", "sentence2")
    for task, columns, labels in ((SST2, ("sentence",), 2), (RTE, pair, 2), (STSB, pair, 5)):
        folder = root / "data" / task
        folder.mkdir(parents=True)
        for split in ("train", "validation"):
            rows = [
                {**{c: words(random, i % labels) for c in columns}, "label": i % labels}
                for i in range(ROWS[task])
            ]
            (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return root


def words(random: np.random.Generator, first: int) -> str:
    rest = random.integers(5, 40, size=random.integers(1, 9))
    return " ".join(f"word{n}" for n in [first, *rest])


def trained(room: Path, name: str, *tasks: str, **given: Any) -> Path:
    out = room / name
    harness.finetune(
        room / "base", tasks=tasks or ALL, out=out, data_dir=room / "data", **{**FAST, **given}
    )
    return out


@pytest.fixture(scope="module")
def mtl(room: Path) -> Path:
    return trained(room, "mtl")


@pytest.fixture
def shared(minis: Callable[[str], dict[str, Path]], request: pytest.FixtureRequest) -> MultiTask:
    return together(minis(request.param)["base"])


def together(base: Path, *tasks: str, seed: int = 3) -> MultiTask:
    source = open_checkpoint(base)
    return MultiTask(
        source.family, {name: with_new_head(source, TASKS[name], seed) for name in tasks or ALL}
    )


def batch(labels: torch.Tensor) -> dict[str, torch.Tensor]:
    ids = torch.tensor([[2, 7, 9, 3], [2, 8, 3, 0]])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


# The model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", FAMILIES, indirect=True)
def test_a_batch_moves_the_encoder_and_the_head_of_its_task_alone(shared: MultiTask) -> None:
    optimizer = torch.optim.AdamW(shared.parameters(), lr=1e-2, weight_decay=0.1)
    labels = [torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([0.5, 2.0])]
    for task, own in enumerate(labels):
        before = {name: tensor.clone() for name, tensor in shared.state_dict().items()}
        optimizer.zero_grad()
        shared(task, **batch(own)).loss.backward()
        optimizer.step()
        moved = {n for n, tensor in shared.state_dict().items() if not tensor.equal(before[n])}
        heads = {name.split(".")[1] for name in moved if is_head(bare(name))}
        assert heads == {str(task)}
        assert any(not is_head(bare(name)) for name in moved)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_head_is_moved_by_batches_of_every_task(
    family: str, minis: Callable[[str], dict[str, Path]], tmp_path: Path
) -> None:
    """And written once, with the encoder, as transformers writes a classifier."""
    source = open_checkpoint(minis(family)["base"])
    pair = {name: with_new_head(source, TASKS[name], 3) for name in (SST2, RTE)}
    shared = MultiTask(source.family, pair, one_head=True)
    optimizer = torch.optim.SGD(shared.parameters(), lr=1e-2)
    for task in range(2):
        before = {name: tensor.clone() for name, tensor in shared.state_dict().items()}
        optimizer.zero_grad()
        shared(task, **batch(torch.tensor([0, 1]))).loss.backward()
        optimizer.step()
        moved = {n for n, tensor in shared.state_dict().items() if not tensor.equal(before[n])}
        assert {name.split(".")[1] for name in moved if is_head(bare(name))} == {"0"}
    shared.save_pretrained(tmp_path)
    assert not (tmp_path / "heads").exists()
    known = dict(pair[RTE].named_parameters())
    for name, tensor in open_checkpoint(tmp_path).weights.items():
        assert torch.as_tensor(tensor).equal(known[name]), name


def bare(name: str) -> str:
    """`classifiers.0.bert.x` as the classifier calls it."""
    return name.split(".", 2)[2]


@pytest.mark.parametrize("shared", FAMILIES, indirect=True)
def test_there_is_one_encoder(shared: MultiTask) -> None:
    """In memory, and in the state dict, which safetensors would not write otherwise."""
    whole = [dict(one.named_parameters()) for one in shared.classifiers]
    for name in whole[0]:
        together = {id(parameters[name]) for parameters in whole}
        assert len(together) == (len(ALL) if is_head(name) else 1), name
    kept = [bare(name) for name in shared.state_dict() if not is_head(bare(name))]
    assert len(kept) == len(set(kept))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_state_dict_comes_back(family: str, minis: Callable[[str], dict[str, Path]]) -> None:
    base = minis(family)["base"]
    one, other = together(base, seed=1), together(base, seed=2)
    other.load_state_dict(one.state_dict())
    for task in range(len(ALL)):
        for mine, yours in zip(
            one.classifiers[task].parameters(), other.classifiers[task].parameters(), strict=True
        ):
            assert mine.equal(yours)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_head_starts_as_that_of_an_expert(
    family: str, minis: Callable[[str], dict[str, Path]]
) -> None:
    base = minis(family)["base"]
    for index, name in enumerate(ALL):
        alone = with_new_head(open_checkpoint(base), TASKS[name], 3).state_dict()
        inside = together(base).classifiers[index].state_dict()
        assert all(inside[key].equal(alone[key]) for key in alone if is_head(key))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_written_reads_as_what_was_trained(
    family: str, minis: Callable[[str], dict[str, Path]], room: Path, tmp_path: Path
) -> None:
    base = minis(family)["base"]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    model = together(base).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    found = resolve_model(harness.Run(model=str(tmp_path), tasks=ALL))
    for index, name in enumerate(ALL):
        rows = load_rows(TASKS[name], "validation", folder=room / "data", limit=6)
        checkpoint, head = found.with_head_for(TASKS[name])
        assert head == "kept"
        _, logits, _ = forward(checkpoint, rows, max_length=24)
        columns = [list(column) for column in zip(*rows.texts, strict=True)]
        inputs = dict(tokenizer(*columns, padding=True, return_tensors="pt"))
        with torch.inference_mode():
            expected = model(index, **inputs).logits.numpy()
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)


# The batches ----------------------------------------------------------------------------------

SIZES = ((40, 8), (13, 8), (3, 5), (1, 1))


def batches(seed: int = 0, epoch: int = 0) -> list[list[int]]:
    lengths = [rng(1, count).integers(3, 30, size=count).tolist() for count, _ in SIZES]
    sampler = TaskBatches(lengths, [size for _, size in SIZES], seed)
    sampler.set_epoch(epoch)
    found = list(sampler)
    assert len(found) == len(sampler)
    return found


def data_set(row: int) -> int:
    ends = np.cumsum([count for count, _ in SIZES])
    return int(np.searchsorted(ends, row, side="right"))


def test_an_epoch_sees_every_row_once() -> None:
    seen = sorted(row for rows in batches() for row in rows)
    assert seen == list(range(sum(count for count, _ in SIZES)))


def test_a_batch_is_of_one_data_set_which_gives_its_own_number() -> None:
    origins = [{data_set(row) for row in rows} for rows in batches()]
    assert all(len(origin) == 1 for origin in origins)
    order = [origin.pop() for origin in origins]
    assert [order.count(index) for index in range(len(SIZES))] == [5, 2, 1, 1]
    assert order != sorted(order), "the order of the batches is random"
    assert all(len(rows) <= SIZES[i][1] for i, rows in zip(order, batches(), strict=True))


def test_seed_and_epoch_decide_the_order() -> None:
    assert batches(1, 2) == batches(1, 2)
    assert batches(1, 2) != batches(1, 3)
    assert batches(1, 2) != batches(2, 2)


def test_rows_are_shuffled_within_their_data_set() -> None:
    of_first = [row for rows in batches() for row in rows if data_set(row) == 0]
    assert of_first != sorted(of_first)
    together = {frozenset(rows) for rows in batches()}
    assert together != {frozenset(rows) for rows in batches(epoch=1)}


# The training ---------------------------------------------------------------------------------


def test_the_folder_has_an_encoder_and_a_head_for_each_task(mtl: Path) -> None:
    encoder = load_file(mtl / "model.safetensors")
    assert not any(map(is_head, encoder))
    for name in ALL:
        head = load_file(mtl / "heads" / name / "model.safetensors")
        assert all(map(is_head, head))
        assert specs(open_checkpoint(mtl / "heads" / name).weights)
    config = json.loads((mtl / "config.json").read_text())
    assert not config.keys() & {"id2label", "label2id", "problem_type"}
    assert not (mtl.parent / "mtl.unfinished").exists()


def test_the_encoder_loads_with_transformers_as_a_base_does(mtl: Path) -> None:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(mtl)
    assert model.embeddings.word_embeddings.weight.equal(
        load_file(mtl / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    )


def test_the_record_has_every_task(mtl: Path) -> None:
    record = json.loads((mtl / "expert.json").read_text())
    assert record["tasks"] == list(ALL)
    assert record["rows"] == {SST2: 144, RTE: 81, STSB: 180}
    assert {h["batch_size"] for h in record["hyperparameters"].values()} == {8}
    assert list(record["scores"]) == [f"{name}@heldout10" for name in ALL]


def test_every_task_is_learned(mtl: Path) -> None:
    scores = json.loads((mtl / "expert.json").read_text())["scores"]
    assert all(score["value"] > 0.8 for score in scores.values()), scores


def test_an_interrupted_run_resumes_to_the_same_bytes(room: Path, mtl: Path) -> None:
    with interrupted():
        trained(room, "again")
    assert not (room / "again").exists()
    with mistake(OutputExists, "again.unfinished --force"):
        trained(room, "again", SST2, RTE)
    out = trained(room, "again")
    for file in sorted(mtl.rglob("*.safetensors")):
        assert (out / file.relative_to(mtl)).read_bytes() == file.read_bytes()


def test_seeds_are_honoured(room: Path) -> None:
    few: dict[str, Any] = {"epochs": 1, "limit": 16}
    first, again = (trained(room, name, SST2, RTE, **few) for name in ("first", "second"))
    other = trained(room, "other", SST2, RTE, seed=1, head_seed=0, **few)
    heads = trained(room, "heads", SST2, RTE, head_seed=1, **few)
    digests = [digest(open_checkpoint(out).weights) for out in (first, again, other, heads)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_one_task_is_an_expert(room: Path) -> None:
    few: dict[str, Any] = {**FAST, "epochs": 1, "limit": 16, "data_dir": room / "data"}
    one = trained(room, "one", RTE, epochs=1, limit=16)
    harness.finetune(room / "base", RTE, out=room / "plain", **few)
    assert {p.relative_to(one) for p in one.rglob("*")} == {
        p.relative_to(room / "plain") for p in (room / "plain").rglob("*")
    }
    for name in ("model.safetensors", "expert.json", "config.json"):
        assert (one / name).read_bytes() == (room / "plain" / name).read_bytes()


@pytest.mark.filterwarnings("ignore:.* are cut off at ")
def test_tasks_keep_their_own_batch_size_and_length(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = replace(TASKS[RTE], finetune=replace(TASKS[RTE].finetune, batch_size=5, max_length=7))
    monkeypatch.setattr(TASKS, "_values", {**TASKS._values, RTE: odd})
    seen = set()
    forward = MultiTask.forward

    @wraps(forward)  # the Trainer looks at the signature
    def watched(self: MultiTask, task: int, **inputs: Any) -> Any:
        if self.training:
            seen.add((task, *inputs["input_ids"].shape))
        return forward(self, task, **inputs)

    monkeypatch.setattr(MultiTask, "forward", watched)
    few: dict[str, Any] = {**FAST, "epochs": 1, "limit": 30}
    usual = {key: value for key, value in few.items() if key not in ("batch_size", "max_length")}
    harness.finetune(
        room / "base", tasks=[SST2, RTE], out=tmp_path / "out", data_dir=room / "data", **usual
    )
    assert {rows for task, rows, _ in seen if task == 0} == {30}
    assert {rows for task, rows, _ in seen if task == 1} == {5}
    assert {length for task, _, length in seen if task == 1} == {7}
    recorded = json.loads((tmp_path / "out" / "expert.json").read_text())["hyperparameters"]
    assert (recorded[SST2]["batch_size"], recorded[RTE]["batch_size"]) == (32, 5)


# Read -----------------------------------------------------------------------------------------


def evaluated(room: Path, folder: Path, out: Path, *flags: str) -> list[str]:
    places = ["--data-dir", str(room / "data"), "--output-path", str(out)]
    usual = ["--shots", "2", "--draws", "2", "--max-length", "24"]
    return ["evaluate", "--model", str(folder), *places, *usual, *flags]


def test_it_is_evaluated_with_no_further_flag(
    room: Path, mtl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*evaluated(room, mtl, tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = [(r["task"], r["protocol"]) for r in found]
    assert len(rows) == len(set(rows)) == 9
    assert {task for task, _ in rows} == {f"{name}@validation" for name in ALL}
    assert {protocol for _, protocol in rows} == {"current", "knn", "ft-classifier"}
    assert {(r["role"], r["method"], r["head"]) for r in found} == {
        ("reference", "multi-task", "kept")
    }
    current = [r["scores"][0]["value"] for r in found if r["protocol"] == "current"]
    assert min(current) > 0.8
    assert main(evaluated(room, mtl, tmp_path)) == 0
    out = capsys.readouterr().out
    table, parts = out.split(PARTS)
    for shown in (table, parts):
        assert sum(line.startswith("mtl (multi-task) ") for line in shown.splitlines()) == 1
    assert "Verdict" not in out


def test_alone_it_teaches_itself(
    room: Path, mtl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an expert does: a head tuned to its own outputs stays what it was."""
    assert main([*evaluated(room, mtl, tmp_path, "--tasks", SST2), "--json"]) == 0
    found = {r["protocol"]: r for r in json.loads(capsys.readouterr().out)}
    tuned = found["ft-classifier"]
    assert tuned["teachers"] == [tuned["digest"]]
    assert {s["value"] for s in tuned["scores"]} == {found["current"]["scores"][0]["value"]}


# Refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tasks", "glue/sst2,glue/rt"], ["glue/rt", "glue/rte"]),
        (["--tasks", "glue/sst2,glue/rte,glue/sst2"], ["glue/sst2 twice", "once"]),
        (["--tasks", "glue/sst2,glue/rte@validation"], ["train90", "validation"]),
        (["--task", SST2, "--tasks", "glue/rte,glue/stsb"], ["--task glue/sst2", "--tasks"]),
        (["--task", SST2, "--tasks", SST2], ["--task glue/sst2", "--tasks glue/sst2"]),
        ([], ["found no task", "--task", "--tasks"]),
        (["--tasks", ","], ["found no task"]),
        (
            ["--tasks", "glue/cola,glue/rte"],
            ["learning_rate (glue/cola 2e-05, glue/rte 5e-05)", "give --learning-rate"],
        ),
        (["--tasks", "glue/sst2,glue/rte", "--epochs", "0"], ["epochs", "positive"]),
        (
            ["--tasks", "glue/sst2,glue/mrpc", "--learning-rate", "1e-3"],
            ["data glue/mrpc", "expected"],
        ),
    ],
)
def test_bad_input(
    room: Path,
    tmp_path: Path,
    flags: list[str],
    words: list[str],
) -> None:
    given = ["finetune", "--base", str(room / "base"), "--data-dir", str(room / "data")]
    refused([*given, "--out", str(tmp_path / "out"), *flags], HarnessError, *words)
    assert not list(tmp_path.iterdir())


def test_tasks_that_differ_in_their_learning_rate_are_trained_with_a_given_one(
    room: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    flags = ["--tasks", "glue/sst2,glue/rte", "--limit", "16", "--learning-rate", "1e-3"]
    given = ["--base", str(room / "base"), "--data-dir", str(room / "data"), "--out", str(out)]
    assert main(["finetune", *given, *flags, "--epochs", "1", "--max-length", "24"]) == 0
    assert (out / "heads" / SST2).is_dir()


def test_it_is_no_expert_of_a_merge(room: Path, mtl: Path, tmp_path: Path) -> None:
    refused(["merge", str(mtl), str(mtl), "--out", str(tmp_path / "merged")], MissingHead)
    assert not list(tmp_path.iterdir())
