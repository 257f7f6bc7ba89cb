"""Decoders with a classification head: known by rules, and read at the last token of a row."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import harness
from harness import Choice, Recipe, Run, parse_choice
from harness.checkpoints.families.generic import family_of
from harness.checkpoints.network import new_classifier
from harness.checkpoints.open import open_checkpoint
from harness.data.rows import load_rows, take
from harness.errors import BrokenCheckpoint, IncompatibleWeights, UnknownName
from harness.needs.fisher import fisher_diagonals
from harness.passes.features import forward
from harness.passes.placement import AUTOMATIC
from harness.passes.reading import reading_of
from harness.readout import LAST_LINEAR
from tests.conftest import BERT_LIKE, DECODERS, FAST, model
from tests.mistakes import mistake
from tests.toys import TOY, known

_known = known(TOY)
CONFIG, LENGTH = "config.json", 20
TOKENIZER = Path(harness.__file__).parent / "checking/miniatures/base/tokenizer.json"
BOTH = (Choice("current"), Choice("linear-probe"))
LONG = {"first": "word1 " * 30, "second": "word2 " * 30, "label": 0}
Minis = Callable[[str], dict[str, Path]]
SIZES = {
    **BERT_LIKE,
    "pad_token_id": 0,
    "num_key_value_heads": 1,
    "head_dim": 8,
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "n_head", "n_heads", "num_heads"), 2),
    **dict.fromkeys(("n_embd", "d_model", "word_embed_proj_dim"), 16),
    **dict.fromkeys(("ffn_dim", "dff"), 24),
    "attention_types": [[["global"], 2]],
    "rotary_dim": 4,
}
OTHERS = ("bloom", "ctrl", "gemma", "gemma2", "gpt_neo", "gptj", "mistral", "mpt", "phi", "qwen2")


@pytest.mark.parametrize("name", [*DECODERS, *OTHERS])
def test_it_is_read_at_the_last_token_of_a_row(name: str) -> None:
    """That its head reads there, in a batch and alone: in float64, as transformers' outputs say."""
    config = {"model_type": name, **DECODERS.get(name, SIZES), "num_labels": 3}
    family = family_of(config)
    assert (family.name, family.decoder) == ("generic", True)
    torch.manual_seed(0)
    made: Any = new_classifier(config, name).eval().double()
    head = made.get_submodule(family.row.final)
    long, short = [5, 6, 7, 8, 9, 10, 11], [12, 13, 14]
    batch = torch.tensor([long, short + [0] * 4])
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        both = LAST_LINEAR.run(
            made, head, {"input_ids": batch, "attention_mask": (batch > 0).long()}
        )
        alone = torch.tensor([short])
        one = LAST_LINEAR.run(
            made, head, {"input_ids": alone, "attention_mask": torch.ones_like(alone)}
        )
        states = made.base_model(input_ids=alone).last_hidden_state
        read = LAST_LINEAR.features(both)
        torch.testing.assert_close(head(read), both.logits, rtol=0, atol=1e-12)
    # one kind computes its norms in float32
    torch.testing.assert_close(read[1:], LAST_LINEAR.features(one), rtol=0, atol=1e-5)
    torch.testing.assert_close(read[1], states[0, -1], rtol=0, atol=1e-5)
    assert (read[1] - states[0, 0]).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gpt2", "stored transposed"),
        ("openai-gpt", "stored transposed"),
        ("mixtral", "mixture of experts"),
        ("qwen2_moe", "mixture of experts"),
        ("gemma3", "texts and images"),
    ],
)
def test_what_is_stored_or_read_in_another_way_is_refused(name: str, reason: str) -> None:
    with mistake(UnknownName, "here", name, reason):
        family_of({"model_type": name, **({} if name == "gemma3" else SIZES)}, "here")


def test_a_row_that_ends_in_padding_is_read_where_transformers_reads_it(
    minis: Minis, tmp_path: Path
) -> None:
    """Some use a token of rows as padding, which is skipped wherever it ends a row."""
    folder = Path(shutil.copytree(minis("llama")["a"], tmp_path / "a"))
    checkpoint, rows = open_checkpoint(folder), load_rows(TOY, "test")
    before, _, _ = forward(checkpoint, rows, max_length=LENGTH)
    changed(folder, pad_token_id=3)  # [SEP], which ends every row
    x, logits, _ = forward(open_checkpoint(folder), rows, max_length=LENGTH)
    assert np.abs(x - before).max() > 1e-3
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        given = [
            tokenizer(*texts, truncation=True, max_length=LENGTH, return_tensors="pt")
            for texts in rows.texts
        ]
        expected = torch.cat([network(**one).logits for one in given])
        head = network.score.weight.numpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(x @ head.T, expected, rtol=0, atol=1e-5)


def changed(folder: Path, **values: Any) -> Path:
    """The folder, with these values in its configuration; None takes a key out."""
    config = json.loads((folder / CONFIG).read_text()) | values
    config = {key: value for key, value in config.items() if value is not None}
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", ["opt", "gpt_neo"])
def test_a_row_without_positions_is_told_before_it_is_run(name: str, tmp_path: Path) -> None:
    folder = model(tmp_path / name, ["no", "yes"], family=name, **SIZES)
    longest = replace(TOY, name="toy/long", generate=lambda split: [LONG, LONG])
    rows = load_rows(longest, "test")
    with mistake(BrokenCheckpoint, folder, "positions for 40", "a row has 50", "max-length 40"):
        forward(open_checkpoint(folder), rows, max_length=50)
    assert forward(open_checkpoint(folder), rows, max_length=40)[0].shape == (2, 16)


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8])
def test_a_published_base_may_hold_its_causal_mask(kind: torch.dtype, tmp_path: Path) -> None:
    """As files of GPT-NeoX, GPT-Neo and GPT-J do, and newer releases of transformers do not."""
    base = model(tmp_path / "base", family="gpt_neox", **DECODERS["gpt_neox"])
    file, attention = base / "model.safetensors", "layers.0.attention"
    buffers = {
        f"{attention}.bias": torch.ones(1, 1, 40, 40, dtype=kind),
        f"{attention}.masked_bias": torch.tensor(-1e9),
        f"{attention}.rotary_emb.inv_freq": torch.ones(1),
    }
    weights = load_file(file)
    save_file(weights | buffers, file)
    expert = harness.finetune(base, TOY.name, out=tmp_path / "expert", **FAST)
    assert not any("rotary" in name or "mask" in name for name in expert.weights)
    harness.finetune(base, TOY.name, out=tmp_path / "other", seed=1, **FAST)
    harness.merge(of(tmp_path / "expert", tmp_path / "other", base=base), out=tmp_path / "merged")
    assert {*open_checkpoint(tmp_path / "merged").weights} == {*expert.weights}
    save_file(weights | {f"{attention}.dense.bias": torch.ones(16, dtype=torch.int8)}, file)
    with mistake(BrokenCheckpoint, base, "int8", "no quantized weights"):
        open_checkpoint(base)


def test_a_layer_that_comes_after_the_layers_is_not_merged_on_no_inputs(tmp_path: Path) -> None:
    """RegMean++ takes what is in no layer, nor in the head, for what comes before the layers."""
    sizes = DECODERS["opt"] | {"word_embed_proj_dim": 8, "do_layer_norm_before": False}
    base = model(tmp_path / "base", family="opt", **sizes)
    experts = [
        model(tmp_path / name, ["no", "yes"], family="opt", near=base, seed=seed, **sizes)
        for seed, name in enumerate("ab", start=1)
    ]
    for merger, expected in (("regmean", nullcontext()), ("regmean_plus_plus", None)):
        recipe = of(*experts, base=base, merger=f"{merger}:examples=8", tasks=(TOY.name,) * 2)
        with expected or mistake(UnknownName, experts[0], "project_out", "after other layers"):
            harness.merge(recipe, out=tmp_path / merger)


# A padding token ---------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, -1])
def test_a_classifier_needs_a_token_that_pads(token: object, minis: Minis, tmp_path: Path) -> None:
    found = Path(shutil.copytree(minis("llama")["a"], tmp_path / "a"))
    changed(found, pad_token_id=token)
    with mistake(BrokenCheckpoint, found / CONFIG, "pad_token_id", token, "below 45"):
        run = Run(model=str(found), tasks=(TOY.name,), output=str(tmp_path / "records"))
        harness.evaluate(run)
    base = Path(shutil.copytree(minis("llama")["base"], tmp_path / "base"))
    changed(base, pad_token_id=token)
    with mistake(BrokenCheckpoint, base / CONFIG, "pad_token_id", token, "below 45"):
        harness.finetune(base, TOY.name, out=tmp_path / "expert", **FAST)
    assert {path.name for path in tmp_path.iterdir()} <= {"a", "base", "records"}


def test_a_base_may_lack_it(minis: Minis, tmp_path: Path) -> None:
    """As most are published: then it is read as the experts are."""
    folders = minis("llama")
    bare = changed(Path(shutil.copytree(folders["base"], tmp_path / "b")), pad_token_id=None)
    scores = []
    for base in (folders["base"], bare):
        merged, records = tmp_path / f"m{len(scores)}", tmp_path / f"r{len(scores)}"
        harness.merge(of(folders["a"], folders["b"], base=base, tasks=(TOY.name,) * 2), out=merged)
        assert json.loads((merged / CONFIG).read_text())["pad_token_id"] == 0
        run = Run(model=str(merged), output=str(records), protocols=BOTH, shots=(1,), draws=2)
        made = harness.evaluate(run)
        scores.append({(one.role, one.protocol): [s.value for s in one.scores] for one in made})
    assert scores[0] == scores[1]
    assert ("base", "linear-probe") in scores[0]
    other = changed(Path(shutil.copytree(folders["b"], tmp_path / "other")), pad_token_id=1)
    with mistake(IncompatibleWeights, other, "pad_token_id 1", "expected pad_token_id 0"):
        harness.merge(of(folders["a"], other, base=bare), out=tmp_path / "mixed")
    with mistake(IncompatibleWeights, changed(other, pad_token_id=None), "pad_token_id None"):
        harness.merge(of(folders["a"], other, base=bare), out=tmp_path / "mixed")


def of(*experts: Path, base: Path, merger: str = "ties", tasks: tuple[str, ...] = ()) -> Recipe:
    return Recipe(
        experts=tuple(map(str, experts)), base=str(base), merger=parse_choice(merger), tasks=tasks
    )


@pytest.mark.parametrize("name", ["opt", "gemma"])
def test_no_default_stands_for_a_token_that_the_file_lacks(name: str, tmp_path: Path) -> None:
    """Rows are padded by the file, and a default of transformers' class may be another token."""
    sizes = DECODERS.get(name, SIZES)
    folder = model(tmp_path / name, ["no", "yes"], family=name, **sizes)
    changed(folder, pad_token_id=None)
    with mistake(BrokenCheckpoint, folder / CONFIG, "pad_token_id None", "write it there"):
        harness.evaluate(Run(model=str(folder), tasks=(TOY.name,), output=str(tmp_path / "r")))


@pytest.mark.parametrize("own", [{"pad_token": "[SEP]"}, {"padding_side": "left"}])
def test_training_pads_as_an_evaluation_does(own: dict[str, str], tmp_path: Path) -> None:
    """Whatever the tokenizer says: a row would be read at another place, or at other positions."""
    states = []
    for name, settings in (("usual", {}), ("own", own)):
        base = model(tmp_path / name, family="gpt_neo", **SIZES)
        file = base / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | settings))
        expert = harness.finetune(base, TOY.name, out=tmp_path / f"{name}-expert", **FAST)
        states.append(expert.weights)
    for tensor in states[0]:
        torch.testing.assert_close(states[0][tensor], states[1][tensor], rtol=0, atol=0)


# Fisher ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "padding"), [("gemma", 0), ("biogpt", 0), ("bloom", 0), ("llama", 3)]
)
def test_fisher_is_that_of_the_outputs(name: str, padding: int, tmp_path: Path) -> None:
    """Of models that scale their embeddings, that have a derivative of their own, and that skip
    [SEP] at the end of a row as padding."""
    folder = model(tmp_path / name, ["no", "yes"], family=name, **SIZES)
    changed(folder, pad_token_id=padding)
    checkpoint, rows = open_checkpoint(folder), take(load_rows(TOY, "test"), range(4))
    found = fisher_diagonals(reading_of(checkpoint, rows, AUTOMATIC))
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    parameters = {n: p for n, p in network.named_parameters() if "embed" not in n}
    expected = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
    for texts in rows.texts:
        given = tokenizer(*texts, return_tensors="pt")
        given.pop("token_type_ids", None)
        logs = network(**given).logits[0].log_softmax(0)
        for log in logs:
            grads = torch.autograd.grad(log, [*parameters.values()], retain_graph=True)
            for name, grad in zip(parameters, grads, strict=True):
                expected[name] += log.detach().exp() * grad.square() / len(rows)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-9)


# The whole way -----------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["embedded/topic", "embedded/names"])
def test_experts_are_trained_merged_and_scored(task: str, tmp_path: Path) -> None:
    sizes = {"vocab_size": 108, "hidden_size": 32, "intermediate_size": 64}
    base = model(tmp_path / "base", family="qwen3", **sizes)
    shutil.copyfile(TOKENIZER, base / "tokenizer.json")
    experts = [tmp_path / f"expert-{seed}" for seed in (1, 2)]
    for seed, expert in enumerate(experts):
        few = {"limit": 400, "epochs": 4, "learning_rate": 5e-3, "batch_size": 16}
        harness.finetune(base, task, out=expert, seed=seed, progress=False, **few)
    harness.merge(of(*experts, base=base, merger="regmean:examples=64"), out=tmp_path / "merged")
    run = Run(
        model=str(tmp_path / "merged"), output=str(tmp_path / "r"), protocols=BOTH[:1], limit=100
    )
    score = {one.role: one.scores[0].value for one in harness.evaluate(run)}
    assert score["expert"] > 0.7
    assert score["merged"] > score["base"] + 0.2
    assert score["base"] < 0.5
