"""Features: the same whatever the batch, those of plain transformers, and cached by content."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save, save_file

from harness import Checkpoint, Rows, Task, weights
from harness.checkpoints.build import build_model
from harness.checkpoints.network import new_classifier
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.tokenizer import shared_tokenizer
from harness.errors import BrokenCheckpoint, NotFinite
from harness.files import cache_dir
from harness.kinds import kind_of
from harness.passes import prepared
from harness.passes.entropy import entropies
from harness.passes.features import (
    RUN_BY,
    content_key,
    dropout_features,
    encode,
    final_head,
    forward,
    one_pass,
    releases,
)
from harness.passes.placement import CPU
from harness.passes.reading import Readings
from harness.readout import CLS, LAST_LINEAR, MEAN_MASKED
from tests.conftest import DECODERS
from tests.mistakes import mistake

Minis = Callable[[str], dict[str, Path]]
Loud = Callable[[str], Path]
ENCODERS = ["bert", "roberta", "distilbert", "deberta-v2", "electra"]
FAMILIES = [*ENCODERS, *DECODERS]
MAX_LENGTH = 20

SINGLE = Task(
    name="toy/single",
    kind="classification",
    text=("text",),
    label="label",
    labels=("no", "yes"),
    metrics=("accuracy",),
    splits={"test": "test"},
    reported="test",
)
PAIR = replace(SINGLE, name="toy/pair", text=("text", "other"))


def words(random: np.random.Generator, count: int) -> str:
    return " ".join(f"word{i}" for i in random.integers(40, size=count))


def toy(task: Task = SINGLE, count: int = 7) -> Rows:
    """Rows of unlike lengths; the longest is cut to MAX_LENGTH."""
    random = np.random.default_rng(5)
    lengths = [3, 1, 30, 9, 3, 14, 6][:count]
    texts = tuple(tuple(words(random, length) for _ in task.text) for length in lengths)
    return Rows(task, "test", texts, np.arange(count) % 2.0, f"{task.name} {count}")


def picked(rows: Rows, order: list[int]) -> Rows:
    texts = tuple(rows.texts[i] for i in order)
    return Rows(rows.task, rows.split, texts, rows.labels[order], f"{rows.digest} {order}")


def run(checkpoint: Checkpoint, rows: Rows, batch_size: int = 32) -> tuple[Any, Any]:
    x, logits, seen = forward(
        checkpoint, rows, max_length=MAX_LENGTH, batch_size=batch_size, placement=CPU
    )
    assert seen.all()
    return x, logits


def encoded(checkpoint: Checkpoint, rows: Rows, order: tuple[int, ...] = (0, 1)) -> Any:
    digest = weights.digest(checkpoint.weights)
    return encode(
        checkpoint, rows, digest=digest, columns=order, max_length=MAX_LENGTH, placement=CPU
    )


def close(first: Any, second: Any) -> None:
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ENCODERS)
def test_padding_would_show_without_the_mask(loud: Loud, family: str) -> None:
    """What the comparisons below would miss in a model that hardly reads its words."""
    checkpoint = open_checkpoint(loud(family))
    model = build_model(checkpoint.config, checkpoint.weights, checkpoint.source)
    ids = torch.tensor([[2, 10, 11, 3, 0, 0, 0, 0]])
    with torch.no_grad():
        short = model(input_ids=ids[:, :4]).logits
        masked = model(input_ids=ids, attention_mask=(ids > 0).long()).logits
        bare = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    close(masked, short)
    assert (bare - short).abs().max() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_features_do_not_depend_on_the_batch(loud: Loud, family: str) -> None:
    checkpoint, rows = open_checkpoint(loud(family)), toy()
    x, logits = run(checkpoint, rows)
    assert x.shape == (len(rows), 16)
    assert logits.shape == (len(rows), 2)
    assert x.dtype == logits.dtype == np.float32
    assert np.ptp(x, axis=0).max() > 0.1
    for batch_size in (1, 3):
        for one, other in zip(run(checkpoint, rows, batch_size), (x, logits), strict=True):
            close(one, other)


@pytest.mark.parametrize("family", ["convbert", "fnet"])
def test_rows_are_not_padded_for_a_model_that_may_read_padding(loud: Loud, family: str) -> None:
    """As these do; each row of a batch is as long as the others."""
    checkpoint, rows = open_checkpoint(loud(family)), toy()
    model = build_model(checkpoint.config, checkpoint.weights, checkpoint.source)
    ids = torch.tensor([[2, 10, 11, 3, 0, 0, 0, 0]])
    with torch.no_grad():
        short = model(input_ids=ids[:, :4]).logits
        mask = {} if family == "fnet" else {"attention_mask": (ids > 0).long()}
        assert (model(input_ids=ids, **mask).logits - short).abs().max() > 1e-3
    x, logits = run(checkpoint, rows)
    for batch_size in (1, 3):
        for one, other in zip(run(checkpoint, rows, batch_size), (x, logits), strict=True):
            close(one, other)
    alone = [run(checkpoint, picked(rows, [place])) for place in range(len(rows))]
    close(np.stack([features[0] for features, _ in alone]), x)

    still = {key: 0.0 for key in checkpoint.config if "dropout" in key}
    again = dropout_features(
        replace(checkpoint, config=checkpoint.config | still),
        rows,
        max_length=MAX_LENGTH,
        readout=LAST_LINEAR,
        placement=CPU,
    )
    close(again([5, 0, 2, 1], seed=1), x[[5, 0, 2, 1]])

    long = replace(SINGLE, finetune=replace(SINGLE.finetune, max_length=MAX_LENGTH))
    readings = Readings((checkpoint,), lambda _: replace(rows, task=long), CPU)
    (loss,) = entropies(readings, 1, len(rows))
    each = torch.tensor(np.stack([outputs[0] for _, outputs in alone])).double().softmax(-1)
    value, gradient = loss(checkpoint.weights)
    assert value == pytest.approx(-(each * each.log()).sum(-1).mean().item(), abs=1e-5)
    assert gradient


@pytest.mark.parametrize("task", [SINGLE, PAIR], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_features_do_not_depend_on_order_or_padding(loud: Loud, family: str, task: Task) -> None:
    checkpoint, rows = open_checkpoint(loud(family)), toy(task)
    x, logits = run(checkpoint, rows)
    order = [4, 0, 6, 2, 5, 1, 3]
    moved = run(checkpoint, picked(rows, order))
    close(moved[0], x[order])
    close(moved[1], logits[order])
    short = run(checkpoint, picked(rows, [1, 0, 4]))  # without the longer ones beside them
    close(short[0], x[[1, 0, 4]])
    close(short[1], logits[[1, 0, 4]])


@pytest.mark.parametrize("task", [SINGLE, PAIR], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_hidden_states_are_those_of_transformers(
    loud: Loud, family: str, task: Task
) -> None:
    """Row by row, without padding: outputs, the mean over all tokens, and the first of them."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    path, rows = loud(family), toy(task)
    tokenizer = AutoTokenizer.from_pretrained(path)
    plain = AutoModelForSequenceClassification.from_pretrained(path).eval()
    expected: dict[str, list[Any]] = {"logits": [], "mean_masked": [], "cls": []}
    with torch.no_grad():
        for texts in rows.texts:
            inputs = tokenizer(*texts, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
            states = plain.base_model(**inputs).last_hidden_state[0].double()
            expected["logits"].append(plain(**inputs).logits[0].numpy())
            expected["mean_masked"].append(states.mean(dim=0).numpy())
            expected["cls"].append(states[0].numpy())
    checkpoint = open_checkpoint(path)
    usual, outputs = run(checkpoint, rows)
    close(outputs, np.stack(expected["logits"]))
    both = [CLS, MEAN_MASKED]
    several = one_pass(checkpoint, rows, both, max_length=MAX_LENGTH, placement=CPU)[0]
    for readout in (MEAN_MASKED, CLS):
        x, logits, seen = forward(
            checkpoint, rows, max_length=MAX_LENGTH, readout=readout, placement=CPU
        )
        assert seen.all()
        np.testing.assert_array_equal(several[readout == MEAN_MASKED], x)
        close(x, np.stack(expected[readout.name]))
        assert np.abs(x - usual).max() > 0.1, "other features than those under the head"
        close(logits, np.stack(expected["logits"]))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_final_head_reads_the_logits_off_the_features(
    minis: Minis, family: str, order: tuple[int, ...]
) -> None:
    checkpoint = open_checkpoint(minis(family)["c"])
    features = encoded(checkpoint, toy(), order)
    head = final_head(checkpoint, order)
    assert head is not None
    assert head.weight.shape == (3, 16)
    close(features.x @ head.weight.T + head.bias, features.logits)


def test_an_encoder_has_no_final_head(minis: Minis) -> None:
    assert final_head(open_checkpoint(minis("bert")["base"]), [0]) is None


def test_label_columns_follow_the_names(minis: Minis) -> None:
    checkpoint = open_checkpoint(minis("bert")["a"])
    turned = replace(SINGLE, labels=("Yes", "No"))
    order = tuple(
        kind_of(turned).output_columns(turned, checkpoint.labels or (), checkpoint.source)
    )
    assert order == (1, 0)
    straight = encoded(checkpoint, toy())
    features = encoded(checkpoint, replace(toy(), task=turned), order)
    assert np.array_equal(features.logits, straight.logits[:, ::-1])
    assert np.array_equal(features.x, straight.x)
    assert np.array_equal(features.labels, toy().labels)


def test_progress_counts_every_row_once(minis: Minis) -> None:
    checkpoint, rows = open_checkpoint(minis("bert")["a"]), toy()
    for _ in ("computed", "from the cache"):
        done: list[int] = []
        encode(
            checkpoint, rows, digest="d", columns=[0, 1], max_length=MAX_LENGTH, batch_size=3,
            placement=CPU, progress=done.append,
        )  # fmt: skip
        assert sum(done) == len(rows)


def test_what_is_read_beside_changes_no_outcome(minis: Minis) -> None:
    """Features that are infinite are refused to who reads them, and to nobody else."""
    checkpoint, rows = open_checkpoint(minis("bert")["a"]), toy()
    odd = replace(CLS, name="odd", features=lambda outputs: outputs.under / 0)

    def read(**given: Any) -> Any:
        return encode(
            checkpoint, rows, digest="d", columns=[0, 1], max_length=MAX_LENGTH, placement=CPU,
            **given,
        )  # fmt: skip

    assert np.isfinite(read(beside=(odd, MEAN_MASKED)).x).all()
    assert len([*cache_dir("features").iterdir()]) == 2
    with mistake(NotFinite, "NaN 7 of 7 rows of"):
        read(readout=odd, beside=(MEAN_MASKED,))


# Cache -------------------------------------------------------------------------------------


def no_forward(*_: object, **__: object) -> None:
    raise AssertionError("a forward pass")


def test_second_call_reads_the_cache(minis: Minis, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(minis("bert")["a"])
    first = encoded(checkpoint, toy())
    monkeypatch.setattr("harness.passes.features.one_pass", no_forward)
    second = encoded(checkpoint, toy(), (1, 0))
    assert np.array_equal(first.x, second.x)
    assert np.array_equal(first.logits[:, ::-1], second.logits)
    with pytest.raises(AssertionError, match="a forward pass"):
        encoded(checkpoint, toy(count=5))
    assert [path.suffix for path in cache_dir("features").iterdir()] == [".safetensors"]


def key(path: Path, rows: Rows, max_length: int = MAX_LENGTH) -> str:
    checkpoint = open_checkpoint(path)
    return content_key(
        checkpoint, rows, weights.digest(checkpoint.weights), max_length, "last_linear"
    )


def rewrite(path: Path, **changes: Any) -> None:
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, **changes}))


@pytest.fixture
def original(minis: Minis, tmp_path: Path) -> Path:
    return Path(shutil.copytree(minis("bert")["a"], tmp_path / "original"))


def test_key_does_not_follow_names(original: Path, tmp_path: Path) -> None:
    elsewhere = Path(shutil.copytree(original, tmp_path / "elsewhere"))
    rewrite(
        elsewhere / "config.json",
        id2label={"0": "bad", "1": "good"},
        label2id={"bad": 0, "good": 1},
        _name_or_path="elsewhere",
    )
    assert key(elsewhere, toy()) == key(original, toy())


@pytest.mark.parametrize("name", RUN_BY)
def test_features_of_another_release_are_not_taken_from_the_cache(
    name: str, minis: Minis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record names the releases that run: its features are not those of an earlier one."""
    checkpoint = open_checkpoint(minis("bert")["a"])
    encoded(checkpoint, toy())
    monkeypatch.setattr("harness.passes.features.one_pass", no_forward)
    release = dict(zip(RUN_BY, releases(), strict=True))
    monkeypatch.setattr(
        "harness.passes.features.releases",
        lambda: tuple({**release, name: f"{release[name]}.post1"}.values()),
    )
    with pytest.raises(AssertionError, match="a forward pass"):
        encoded(checkpoint, toy())


def test_a_release_is_the_same_for_every_machine() -> None:
    assert not [one for one in releases() if "+" in one]
    assert torch.__version__.startswith(releases()[RUN_BY.index("torch")])


def test_key_follows_what_features_depend_on(original: Path, tmp_path: Path) -> None:
    def changed(name: str, change: Callable[[Path], None]) -> str:
        folder = Path(shutil.copytree(original, tmp_path / name))
        change(folder)
        return key(folder, toy())

    def nudge(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        name = sorted(state)[0]
        state[name].view(-1)[0] += 1
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})

    def retoken(folder: Path) -> None:
        text = (folder / "tokenizer.json").read_text()
        (folder / "tokenizer.json").write_text(text.replace("word39", "word40"))

    keys = [
        key(original, toy()),
        key(original, toy(count=6)),
        key(original, toy(PAIR)),
        key(original, toy(), max_length=MAX_LENGTH + 1),
        changed("weights", nudge),
        changed("tokenizer", retoken),
        changed("config", lambda folder: rewrite(folder / "config.json", layer_norm_eps=1e-3)),
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("kept", [0, 2, 40, 0.5, 0.95])
def test_a_truncated_cache_file_is_made_again(
    minis: Minis, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(minis("bert")["a"])
    first = encoded(checkpoint, toy())
    (path,) = cache_dir("features").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if kept < 1 else int(kept)])
    again = encoded(checkpoint, toy())
    assert np.array_equal(first.x, again.x)
    assert np.array_equal(first.logits, again.logits)
    monkeypatch.setattr("harness.passes.features.one_pass", no_forward)
    assert np.array_equal(encoded(checkpoint, toy()).x, first.x)


def test_a_damaged_cache_file_is_made_again(minis: Minis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any byte, another entry's content, other shapes, other formats, and what claims terabytes."""
    checkpoint = open_checkpoint(minis("bert")["a"])
    first = encoded(checkpoint, toy())
    (path,) = cache_dir("features").iterdir()
    whole, tensors = path.read_bytes(), load_file(path)
    encoded(checkpoint, toy(count=5))
    (other,) = set(cache_dir("features").iterdir()) - {path}
    claims = {"x": {"dtype": "F32", "shape": [10**13], "data_offsets": [0, 4 * 10**13]}}
    bomb = json.dumps(claims).encode()
    pickled, plain = BytesIO(), BytesIO()
    np.save(pickled, np.array([{}], dtype=object), allow_pickle=True)
    np.savez(plain, x=first.x, logits=first.logits)
    damaged = [
        other.read_bytes(),
        len(bomb).to_bytes(8, "little") + bomb,
        pickled.getvalue(),
        plain.getvalue(),
        save({name: tensor[:3] for name, tensor in tensors.items()}),
        save({name: tensor + 1 for name, tensor in tensors.items()}),
    ]
    damaged += [
        whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :]
        for place in np.random.default_rng(0).integers(0, len(whole), 30).tolist()
    ]
    for content in damaged:
        path.write_bytes(content)
        again = encoded(checkpoint, toy())
        assert np.array_equal(first.x, again.x)
        assert np.array_equal(first.logits, again.logits)
        assert path.read_bytes() == whole


def test_features_do_not_need_a_cache(
    minis: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = encoded(open_checkpoint(minis("bert")["a"]), toy())
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"file/features cannot be written.*HARNESS_CACHE_DIR"):
        again = encoded(open_checkpoint(minis("bert")["a"]), toy())
    assert np.array_equal(first.x, again.x)


# Models ------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_build_model_gives_exactly_the_weights(minis: Minis, family: str) -> None:
    checkpoint = open_checkpoint(minis(family)["a"])
    model = build_model(checkpoint.config, checkpoint.weights, checkpoint.source)
    assert not model.training
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, checkpoint.weights[name]), name


def test_build_model_draws_nothing_and_keeps_what_is_tied() -> None:
    """A BART has one table of embeddings under three names."""
    small = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "vocab_size": 30}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    inner = {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 20}
    config = {"model_type": "bart", **small, **heads, **inner, "num_labels": 3}
    plain = new_classifier(config, "a BART").eval()
    state = {name: tensor.detach() for name, tensor in plain.named_parameters()}
    before = torch.get_rng_state()
    model = build_model(config, state, "a BART")
    assert torch.equal(torch.get_rng_state(), before)
    ids = torch.tensor([[0, 5, 6, 2], [0, 7, 8, 2]])
    with torch.inference_mode():
        found, expected = (one(input_ids=ids).logits for one in (model, plain))
    assert torch.equal(found, expected)


def test_build_model_refuses_a_missing_tensor(minis: Minis) -> None:
    checkpoint = open_checkpoint(minis("bert")["a"])
    for gone in ("classifier.weight", "bert.encoder.layer.0.output.dense.bias"):
        kept = weights.select(checkpoint.weights, [n for n in checkpoint.weights if n != gone])
        with mistake(BrokenCheckpoint, "here", gone):
            build_model(checkpoint.config, kept, "here")


def test_build_model_refuses_a_tensor_too_many(minis: Minis) -> None:
    checkpoint = open_checkpoint(minis("bert")["a"])
    more = weights.union(checkpoint.weights, {"bert.adapter.weight": torch.zeros(2)})
    with mistake(BrokenCheckpoint, "here bert.adapter.weight"):
        build_model(checkpoint.config, more, "here")


def test_build_model_refuses_another_shape(minis: Minis) -> None:
    """An expert of three labels under a configuration of two."""
    two, three = (open_checkpoint(minis("bert")[name]) for name in "ac")
    with mistake(BrokenCheckpoint, "here classifier.weight (3, 16) (2, 16)"):
        build_model(two.config, three.weights, "here")


def test_a_token_without_an_embedding_is_one_line(original: Path) -> None:
    """A tokenizer of another model: of a row's words some have numbers that the model knows."""
    place = original / "tokenizer.json"
    place.write_text(place.read_text().replace('"word3": 8', '"word3": 99'))
    rows = replace(toy(), texts=(("word3 word4",),) * 7)
    with mistake(BrokenCheckpoint, "99 45"):
        run(open_checkpoint(original), rows)


def test_a_row_of_more_tokens_than_positions_is_one_line(minis: Minis) -> None:
    rows = replace(toy(), texts=((words(np.random.default_rng(0), 60),),) * 7)
    with mistake(BrokenCheckpoint, "40 50 --max-length 40"):
        forward(open_checkpoint(minis("bert")["a"]), rows, max_length=50, placement=CPU)


def test_a_tokenizer_that_cannot_read_a_row_is_one_line(original: Path) -> None:
    place = original / "tokenizer.json"
    found = json.loads(place.read_text())
    found["model"] = {**found["model"], "type": "WordPiece", "vocab": {"[CLS]": 2, "[SEP]": 3}}
    found["model"] |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    found["added_tokens"] = []
    place.write_text(json.dumps(found))
    with mistake(BrokenCheckpoint, original, "WordPiece"):
        run(open_checkpoint(original), toy())


def test_folders_with_the_same_files_share_a_tokenizer(original: Path, tmp_path: Path) -> None:
    """And no others: neither what it reads nor of what class it is may differ."""
    twin, other, kind = (shutil.copytree(original, tmp_path / name) for name in "abc")
    shared = shared_tokenizer(original)
    assert shared_tokenizer(twin) is shared
    assert shared_tokenizer(original, words=True) is not shared
    words = (other / "tokenizer.json").read_text(encoding="utf-8").replace("word1", "odd1")
    (other / "tokenizer.json").write_text(words, encoding="utf-8")
    assert "odd1" in shared_tokenizer(other).get_vocab()
    assert "odd1" not in shared.get_vocab()
    config = json.loads((kind / "config.json").read_text(encoding="utf-8"))
    (kind / "config.json").write_text(json.dumps({**config, "model_type": "roberta"}))
    assert shared_tokenizer(kind) is not shared
    (twin / "tokenizer.json").unlink()
    with mistake(BrokenCheckpoint, twin, "tokenizer.json"):
        shared_tokenizer(twin)


def test_rows_are_tokenized_once_for_all_models_of_a_tokenizer(
    original: Path, minis: Minis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another length, with other texts, and where there is no room, they are again."""
    monkeypatch.setattr(prepared, "_remembered", {})
    seen: list[int] = []
    real = prepared.token_ids

    def counted(*args: Any) -> Any:
        encoded = real(*args)
        seen.append(len(encoded["input_ids"]))
        return encoded

    monkeypatch.setattr(prepared, "token_ids", counted)
    one, other = open_checkpoint(original), open_checkpoint(minis("bert")["b"])
    rows = toy()
    for model in (one, other, one):
        prepared.prepare(model, rows, MAX_LENGTH)
    prepared.prepare(one, replace(rows, texts=(*rows.texts,)), MAX_LENGTH)
    assert seen == [7]
    prepared.prepare(one, rows, 9)
    prepared.prepare(one, picked(rows, [1, 0]), MAX_LENGTH)
    assert seen == [7, 7, 2]
    monkeypatch.setattr(prepared, "REMEMBERED", 20)
    prepared.prepare(one, picked(rows, [1, 3]), MAX_LENGTH)  # 14 tokens, the last ones left
    prepared.prepare(one, picked(rows, [1, 3]), MAX_LENGTH)
    prepared.prepare(one, rows, MAX_LENGTH)  # more than there is room for
    prepared.prepare(one, rows, MAX_LENGTH)
    assert seen == [7, 7, 2, 2, 7, 7]


def test_rows_through_an_encoder_are_refused(minis: Minis) -> None:
    base = open_checkpoint(minis("bert")["base"])
    with mistake(BrokenCheckpoint, base.path, "BertForSequenceClassification"):
        run(base, toy())


@pytest.mark.parametrize("gone", [["tokenizer.json"], ["tokenizer.json", "tokenizer_config.json"]])
def test_a_folder_without_tokenizer_is_refused(original: Path, gone: list[str]) -> None:
    """transformers makes up one that knows no word."""
    for name in gone:
        (original / name).unlink()
    with mistake(BrokenCheckpoint, original, "tokenizer.json"):
        run(open_checkpoint(original), toy())
