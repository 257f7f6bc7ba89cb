"""The embedded suite and the base that is made of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import harness
from harness.checkpoints.open import open_checkpoint
from harness.data.rows import load_rows
from harness.errors import OutputExists
from harness.kinds import kind_of
from harness.training.miniature import make_base
from harness.weights import digest

TASKS = ("embedded/comparison", "embedded/outcome", "embedded/topic")
SEGMENTS = {"embedded/comparison": 2, "embedded/outcome": 1, "embedded/topic": 1}
SPLITS = {"train": 2000, "test": 500}

#: task@split -> digest of the rows; a change here makes every earlier score of the suite void
DIGESTS = {
    "embedded/comparison@train": "31b6b0416938782599f5cae0967d939e",
    "embedded/comparison@test": "a05475f6b9d09e5a8b60a0c755c483a5",
    "embedded/outcome@train": "74e98b89eefcb599f6b810741b45d4e5",
    "embedded/outcome@test": "3ba1fee0456f9a8a602c72dc90b70cd2",
    "embedded/topic@train": "28b328be1fa7e8884cba2d7ebfced7f0",
    "embedded/topic@test": "fcffbc80d2c2d07e16b4a5f5e6aa5406",
}


def quick_base(out: Path, seed: int = 0) -> Path:
    return make_base(out, seed=seed, steps=3)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quick_base(tmp_path_factory.mktemp("miniature") / "base")


def test_every_embedded_task_has_a_line() -> None:
    assert [name for name in harness.TASKS if name.startswith("embedded/")] == list(TASKS)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", TASKS)
def test_rows_are_the_pinned_ones(name: str, split: str) -> None:
    rows = load_rows(harness.TASKS[name], split)
    assert len(rows) == SPLITS[split]
    assert rows.digest == DIGESTS[f"{name}@{split}"]


@pytest.mark.parametrize("name", TASKS)
def test_rows_have_segments_of_lower_case_words(name: str) -> None:
    for split in SPLITS:
        for text in load_rows(harness.TASKS[name], split).texts:
            assert len(text) == SEGMENTS[name]
            assert all(word.isalpha() and word.islower() for part in text for word in part.split())


@pytest.mark.parametrize("name", TASKS)
def test_no_text_stands_in_both_splits_or_twice_in_one(name: str) -> None:
    train, test = (load_rows(harness.TASKS[name], split).texts for split in SPLITS)
    assert len({*train, *test}) == len(train) + len(test)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", TASKS)
def test_classes_and_bins_of_labels_are_balanced_enough(name: str, split: str) -> None:
    task = harness.TASKS[name]
    members = list(kind_of(task).groups(load_rows(task, split)).values())
    assert min(map(len, members)) > 0.4 * np.mean(list(map(len, members)))


def test_a_base_loads_with_transformers(base: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(base), AutoModel.from_pretrained(base)
    batch = tokenizer(["the baker"], ["nicely won"], return_tensors="pt")
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1]]
    assert model(**batch).pooler_output.shape == (1, 64)
    assert tokenizer.is_fast
    assert {name.partition(".")[0] for name in model.state_dict()} == {
        "embeddings",
        "encoder",
        "pooler",
    }


def test_a_base_knows_every_word_of_the_suite_and_cuts_none(base: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    for name in TASKS:
        task = harness.TASKS[name]
        for split in SPLITS:
            columns = zip(*load_rows(task, split).texts, strict=True)
            ids = tokenizer(*map(list, columns))["input_ids"]
            assert not any(tokenizer.unk_token_id in row for row in ids)
            assert max(map(len, ids)) <= task.finetune.max_length


def test_the_seed_decides_the_weights(base: Path, tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    again, other = quick_base(tmp_path / "again"), quick_base(tmp_path / "other", seed=1)
    assert digest(open_checkpoint(again).weights) == digest(open_checkpoint(base).weights)
    assert digest(open_checkpoint(other).weights) != digest(open_checkpoint(base).weights)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_base_replaces_a_base_and_nothing_else(tmp_path: Path) -> None:
    out = quick_base(tmp_path / "base")
    quick_base(out, seed=1)
    assert json.loads((out / "miniature.json").read_text(encoding="utf-8"))["seed"] == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(OutputExists):
        quick_base(tmp_path / "mine")
