"""The embedded suite and the base that is made of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness.tasks.embedded import COLOURS, NOISE, THEMES, UNSAID

import harness
from harness.checking.quality import MINIATURES
from harness.checkpoints.open import open_checkpoint
from harness.data.images import StoredImage
from harness.data.rows import load_rows
from harness.errors import OutputExists
from harness.kinds import kind_of
from harness.kinds.tagging import entities
from harness.training.miniature import SUITE, make_base, make_image_base
from harness.weights import digest
from tests.toys import registered

TASKS = (
    "embedded/comparison",
    "embedded/mentions",
    "embedded/names",
    "embedded/outcome",
    "embedded/topic",
)
PICTURES = ("embedded/colours", "embedded/shapes")
SPLITS = {"train": 2000, "test": 500}

#: task@split -> digest of the rows; a change here makes every earlier score of the suite void
DIGESTS = {
    "embedded/comparison@train": "31b6b0416938782599f5cae0967d939e",
    "embedded/comparison@test": "a05475f6b9d09e5a8b60a0c755c483a5",
    "embedded/mentions@train": "0e37e7397bae36a5066f9dc7e175d7a4",
    "embedded/mentions@test": "120b4fb0cb72f3f5df4e6f8b3b25038b",
    "embedded/names@train": "414d2ae771f2ea77d0e9df21bea8d240",
    "embedded/names@test": "9186be1737af70b86c121291a8014aa5",
    "embedded/outcome@train": "74e98b89eefcb599f6b810741b45d4e5",
    "embedded/outcome@test": "3ba1fee0456f9a8a602c72dc90b70cd2",
    "embedded/topic@train": "28b328be1fa7e8884cba2d7ebfced7f0",
    "embedded/topic@test": "fcffbc80d2c2d07e16b4a5f5e6aa5406",
    "embedded/colours@train": "d962ffac36a18f8f05269f390df97523",
    "embedded/colours@test": "f81ea0b23d95235e0530012456a4500e",
    "embedded/shapes@train": "83f6ef695c9ba14b827bb7d8567d7997",
    "embedded/shapes@test": "163a05c32bd138f67a358c8581a5f274",
}


def quick_base(out: Path, seed: int = 0) -> Path:
    return make_base(out, seed=seed, steps=3)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quick_base(tmp_path_factory.mktemp("miniature") / "base")


def test_every_embedded_task_has_a_line() -> None:
    assert [name for name in harness.TASKS if name.startswith("embedded/")] == sorted(
        TASKS + PICTURES
    )


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", TASKS + PICTURES)
def test_rows_are_the_pinned_ones(name: str, split: str) -> None:
    rows = load_rows(harness.TASKS[name], split)
    assert len(rows) == SPLITS[split]
    assert rows.digest == DIGESTS[f"{name}@{split}"]


@pytest.mark.parametrize("name", TASKS)
def test_rows_have_segments_of_lower_case_words(name: str) -> None:
    task = harness.TASKS[name]
    for split in SPLITS:
        for text in load_rows(task, split).texts:
            if task.kind == "tagging":
                assert all(len(word.split()) == 1 for word in text)
            else:
                assert len(text) == len(task.text)
            assert all(word.isalpha() and word.islower() for part in text for word in part.split())


@pytest.mark.parametrize("name", TASKS)
def test_no_text_stands_in_both_splits_or_twice_in_one(name: str) -> None:
    train, test = (load_rows(harness.TASKS[name], split).texts for split in SPLITS)
    assert len({*train, *test}) == len(train) + len(test)


def test_a_sentence_is_in_the_same_split_of_every_task() -> None:
    seen: dict[str, set[str]] = {split: set() for split in SPLITS}
    for split in SPLITS:
        for name in (name for name in TASKS if len(harness.TASKS[name].text) == 1):
            rows = load_rows(harness.TASKS[name], split)
            seen[split] |= {" ".join(text) for text in rows.texts}
    assert not seen["train"] & seen["test"]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", TASKS)
def test_classes_and_bins_of_labels_are_balanced_enough(name: str, split: str) -> None:
    task = harness.TASKS[name]
    members = list(kind_of(task).groups(load_rows(task, split)).values())
    assert min(map(len, members)) > 0.4 * np.mean(list(map(len, members)))


UNDONE = ("to", "never")
"""Words before an action that is left undone."""


def spans(words: Sequence[str]) -> dict[str, int]:
    """Where the person and what something was done to begin, read off the sentence."""
    things = [
        place
        for place, word in enumerate(words)
        if word == "the" and place and words[place - 2] not in UNDONE
    ]
    assert len(things) == 1
    return {"WHO": 0, "DONE": things[0]}


def test_names_are_of_who_acts_and_of_what_it_is_done_to() -> None:
    task = harness.TASKS["embedded/names"]
    for split in SPLITS:
        rows = load_rows(task, split)
        right = found = 0
        for words, place in zip(rows.texts, np.cumsum([0, *map(len, rows.texts)]), strict=False):
            tags = [task.labels[int(tag)] for tag in rows.labels[place : place + len(words)]]
            expected = spans(words)
            tagged = {start: kind for kind, start, _ in entities(tags)}
            assert {*tagged} <= {*expected.values()}
            for start, kind in tagged.items():
                assert tags[start : start + 2] == [f"B-{kind}", f"I-{kind}"]
            assert len(tags) - tags.count("O") == 2 * len(tagged)
            right += sum(tagged.get(start) == kind for kind, start in expected.items())
            found += len(expected)
        # of labels that are drawn at random one in three is right
        assert right / found == pytest.approx(1 - 2 / 3 * NOISE, abs=0.015)


def test_mentions_are_of_people_actions_and_things() -> None:
    task = harness.TASKS["embedded/mentions"]
    words = {
        name: {*theme.people, *theme.things, *(word for act in theme.actions for word in act[:2])}
        for name, theme in THEMES.items()
    }
    for split in SPLITS:
        rows = load_rows(task, split)
        held = [[bool({*t[0].split()} & words[name]) for name in task.labels] for t in rows.texts]
        known = rows.labels != -100
        assert {*(~known).sum(axis=1)} == {0, 1}
        assert (~known).any(axis=1).mean() == pytest.approx(UNSAID, abs=0.05)
        right = (rows.labels == held)[known].mean()
        assert right == pytest.approx(1 - NOISE / 2, abs=0.015)


def pixels(image: StoredImage) -> np.ndarray[Any, Any]:
    """A picture as float [16, 16, 3], read without the library that the harness reads it with."""
    header, data = image.data[:12], image.data[12:]
    assert header == b"P6 16 16 255"
    return np.frombuffer(data[1:], np.uint8).reshape(16, 16, 3) / 255


def test_pictures_are_labelled_by_their_larger_figure() -> None:
    """By its colour, the one that most pixels are nearest to; by its shape, how full it is."""
    for name in PICTURES:
        task, rows = harness.TASKS[name], load_rows(harness.TASKS[name], "test")
        assert rows.images is not None
        inks = np.array([COLOURS[one] for one in COLOURS])
        right, full = 0, [0.0] * len(task.labels)
        for place, label in enumerate(rows.labels.astype(int)):
            seen = pixels(rows.images(place))
            bright = seen[seen.max(2) > 0.6]
            found = np.bincount(((bright[:, None] - 0.2) * inks).sum(2).argmax(1), minlength=4)
            right += int(found.argmax()) == label
            full[label] += len(bright) / list(rows.labels).count(label)
        if name == "embedded/colours":
            assert right / len(rows) > 0.85
        else:
            cross, disc, ring, square = full
            assert cross < ring < square < disc


def test_a_base_of_images_is_a_vit_that_its_seed_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModel

    pytest.importorskip("PIL.Image")
    monkeypatch.setattr("harness.training.miniature.PICTURES", PICTURES[:1])
    first, again, other = (
        make_image_base(tmp_path / str(place), seed=seed, steps=3)
        for place, seed in enumerate((0, 0, 1))
    )
    digests = [digest(open_checkpoint(one).weights) for one in (first, again, other)]
    assert digests[0] == digests[1] != digests[2]
    model = AutoModel.from_pretrained(first, add_pooling_layer=False)
    assert model(torch.zeros(1, 3, 16, 16)).last_hidden_state.shape == (1, 17, 64)


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
            texts = load_rows(task, split).texts
            if task.kind == "tagging":
                ids = tokenizer(
                    [list(words) for words in texts], is_split_into_words=True
                ).input_ids
            else:
                ids = tokenizer(*map(list, zip(*texts, strict=True))).input_ids
            assert not any(tokenizer.unk_token_id in row for row in ids)
            assert max(map(len, ids)) <= task.finetune.max_length


def test_the_seed_decides_the_weights(base: Path, tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    again, other = quick_base(tmp_path / "again"), quick_base(tmp_path / "other", seed=1)
    assert digest(open_checkpoint(again).weights) == digest(open_checkpoint(base).weights)
    assert digest(open_checkpoint(other).weights) != digest(open_checkpoint(base).weights)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_base_is_made_of_the_same_tasks_whatever_others_there_are(
    base: Path, tmp_path: Path
) -> None:
    """The miniatures and the baselines recorded with them are of this base."""
    again = replace(harness.TASKS["embedded/topic"], name="embedded/another")
    assert SUITE == ("embedded/comparison", "embedded/outcome", "embedded/topic")
    with registered(again):
        other = quick_base(tmp_path / "other")
    for name in ("model.safetensors", "tokenizer.json"):
        assert (other / name).read_bytes() == (base / name).read_bytes()
    assert (base / "tokenizer.json").read_bytes() == (
        MINIATURES / "base/tokenizer.json"
    ).read_bytes()


def test_a_base_replaces_a_base_and_nothing_else(tmp_path: Path) -> None:
    out = quick_base(tmp_path / "base")
    quick_base(out, seed=1)
    assert json.loads((out / "miniature.json").read_text(encoding="utf-8"))["seed"] == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(OutputExists):
        quick_base(tmp_path / "mine")
