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
from transformers.pytorch_utils import Conv1D

import harness
from harness import Choice, Recipe, Run, parse_choice
from harness.checkpoints.families.generic import family_of
from harness.checkpoints.network import new_classifier
from harness.checkpoints.open import open_checkpoint
from harness.data.rows import load_rows, take
from harness.errors import BadOption, BrokenCheckpoint, IncompatibleWeights, UnknownName
from harness.needs.fisher import fisher_diagonals
from harness.passes.features import forward
from harness.passes.placement import AUTOMATIC
from harness.passes.reading import reading_of
from harness.readout import LAST_LINEAR
from harness.weights import digest, is_matrix
from tests.conftest import BERT_LIKE, DECODERS, FAST, model
from tests.mistakes import mistake
from tests.toys import TAGS, TOY, known

_known = known(TOY, TAGS)
CONFIG, WEIGHTS, LENGTH = "config.json", "model.safetensors", 20
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
OTHERS = (
    *("bloom", "ctrl", "gemma", "gemma2", "gpt_neo", "gptj", "mistral", "mpt", "openai-gpt"),
    *("phi", "qwen2"),
)


@pytest.mark.parametrize("name", [*DECODERS, *OTHERS])
def test_it_is_read_at_the_last_token_of_a_row(name: str) -> None:
    """That its head reads there, in a batch and alone: in float64, as transformers' outputs say."""
    config = {"model_type": name, **DECODERS.get(name, SIZES), "num_labels": 3}
    family = family_of(config)
    assert (family.name, family.decoder) == ("gpt2" if name == "gpt2" else "generic", True)
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
        ("imagegpt", "images as tokens"),
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


@pytest.mark.parametrize("name", ["opt", "gpt_neo", "gpt2", "openai-gpt", "gptj", "ctrl"])
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
    tokenizer_says(changed(base, pad_token_id=token), pad_token="[SEP]", eos_token="[SEP]")
    with mistake(BrokenCheckpoint, base / CONFIG, "pad_token_id", token, "below 45"):
        harness.finetune(base, TOY.name, out=tmp_path / "expert", **FAST)
    assert {path.name for path in tmp_path.iterdir()} <= {"a", "base", "records"}


@pytest.mark.parametrize(
    ("said", "token"),
    [
        ({"pad_token": "[MASK]", "eos_token": "[PAD]"}, 4),
        ({"pad_token": None, "eos_token": "[PAD]"}, 0),
        ({"pad_token": "[SEP]", "eos_token": "[MASK]"}, 4),  # [SEP] ends every row
        ({"pad_token": "[NEW]", "eos_token": "[MASK]"}, 4),  # which has no embedding
    ],
)
@pytest.mark.parametrize("task", [TOY.name, TAGS.name])
def test_a_base_that_names_none_is_trained_with_its_tokenizers(
    said: dict[str, str | None], token: int, task: str, minis: Minis, tmp_path: Path
) -> None:
    experts = []
    for name, named in (("said", None), ("named", token)):
        base = Path(shutil.copytree(minis("llama")["base"], tmp_path / name))
        tokenizer_says(changed(base, pad_token_id=named), **said)
        experts.append(harness.finetune(base, task, out=tmp_path / f"{name}-expert", **FAST))
    config = json.loads((experts[0].path / CONFIG).read_text())
    assert config["pad_token_id"] == token
    assert config == json.loads((experts[1].path / CONFIG).read_text())
    for name, tensor in experts[0].weights.items():
        torch.testing.assert_close(tensor, experts[1].weights[name], rtol=0, atol=0)


def tokenizer_says(folder: Path, **settings: str | None) -> Path:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return folder


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
        base = tokenizer_says(model(tmp_path / name, family="gpt_neo", **SIZES), **settings)
        expert = harness.finetune(base, TOY.name, out=tmp_path / f"{name}-expert", **FAST)
        states.append(expert.weights)
    for tensor in states[0]:
        torch.testing.assert_close(states[0][tensor], states[1][tensor], rtol=0, atol=0)


# Fisher ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "padding"), [("gemma", 0), ("biogpt", 0), ("bloom", 0), ("llama", 3), ("gpt2", 0)]
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
    parameters = {n: p for n, p in network.named_parameters() if is_matrix(n, (2, 2), "linear")}
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
        layer = network.get_submodule(name.rpartition(".")[0])
        own = tensor.T if isinstance(layer, Conv1D) and tensor.ndim == 2 else tensor
        torch.testing.assert_close(found[name], own, rtol=1e-4, atol=1e-9)


# Matrices that a file has transposed ----------------------------------------------------------


def small(folder: Path, seed: int = 0, near: Path | None = None, name: str = "gpt2") -> Path:
    sizes = DECODERS.get(name, SIZES)
    return model(folder, ["no", "yes"], seed=seed, family=name, near=near, **sizes)


def two(tmp_path: Path, name: str = "gpt2") -> tuple[Path, Path, Path]:
    """A base and two experts."""
    base = model(tmp_path / "base", family=name, **DECODERS.get(name, SIZES))
    return base, *(small(tmp_path / str(seed), seed, base, name) for seed in (1, 2))


@pytest.mark.parametrize("name", ["gpt2", "openai-gpt"])
def test_they_are_merged_and_written_as_they_were(name: str, tmp_path: Path) -> None:
    base, *experts = two(tmp_path, name)
    harness.merge(of(*experts, base=base, merger="average"), out=tmp_path / "merged")
    files = [load_file(one / WEIGHTS) for one in (*experts, tmp_path / "merged")]
    assert {n: t.shape for n, t in files[0].items()} == {n: t.shape for n, t in files[2].items()}
    for tensor, (one, other) in {n: (files[0][n], files[1][n]) for n in files[0]}.items():
        torch.testing.assert_close(files[2][tensor], (one + other) / 2, rtol=0, atol=1e-7)
    layer = next(n for n in files[0] if n.endswith("h.0.mlp.c_fc.weight"))
    opened = open_checkpoint(experts[0])
    torch.testing.assert_close(opened.weights[layer], files[0][layer].T, rtol=0, atol=0)
    # the digest in the record is that of the weights as they are opened, so that these are taken
    harness.merge(
        of(tmp_path / "merged", experts[0], base=base, merger="average"), out=tmp_path / "again"
    )


def test_a_model_has_one_digest_in_any_form_of_file(tmp_path: Path) -> None:
    first = small(tmp_path / "a")
    other = Path(shutil.copytree(first, tmp_path / "b"))
    torch.save(load_file(first / WEIGHTS), other / "pytorch_model.bin")
    (other / WEIGHTS).unlink()
    digests = [
        digest(open_checkpoint(one, allow_pickle=True).weights) for one in (first, other, first)
    ]
    assert len({*digests}) == 1


def test_a_file_with_them_as_linear_layers_have_them_is_told(tmp_path: Path) -> None:
    """The shapes are those in the file. The square ones cannot be told, but others beside them."""
    folder = small(tmp_path / "a")
    name = "transformer.h.1.attn.c_attn.weight"
    weights = load_file(folder / WEIGHTS)
    save_file(weights | {name: weights[name].T.contiguous()}, folder / WEIGHTS)
    with mistake(BrokenCheckpoint, name, folder, "(48, 16)", "(16, 48)", "[inputs, outputs]"):
        open_checkpoint(folder)


def test_a_tagger_of_them_is_scored_when_it_is_trained(tmp_path: Path) -> None:
    base = model(tmp_path / "base", family="gpt2", **DECODERS["gpt2"])
    expert = harness.finetune(base, TAGS.name, out=tmp_path / "expert", **FAST, limit=80)
    (recorded,) = json.loads((expert.path / "expert.json").read_text())["scores"].values()
    run = Run(model=str(expert.path), output=str(tmp_path / "r"), protocols=BOTH[:1])
    (record,) = harness.evaluate(run.but(tasks=(f"{TAGS.name}@heldout10",), limit=80))
    assert record.scores[0].value == recorded["value"] > 0


def test_regmean_reads_them_the_right_way_round(tmp_path: Path) -> None:
    """Against the formula of the paper with inputs from transformers' own Conv1D, in float64."""
    base, *experts = two(tmp_path)
    rows = load_rows(TOY, "train90")
    options = f"regmean:examples={len(rows)},off_diagonal=1.0"
    recipe = of(*experts, base=base, merger=options, tasks=(TOY.name,) * 2)
    harness.merge(recipe, out=tmp_path / "merged")
    merged = load_file(tmp_path / "merged" / WEIGHTS)
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    name = "transformer.h.0.mlp.c_proj"  # [24, 16] in the file
    grams, matrices = [], []
    for expert in experts:
        tokenizer = AutoTokenizer.from_pretrained(expert)
        network = AutoModelForSequenceClassification.from_pretrained(expert).eval().double()
        seen: list[torch.Tensor] = []
        layer = network.get_submodule(name)
        layer.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0][0]))
        with torch.no_grad():
            for texts in rows.texts:
                network(**tokenizer(*texts, return_tensors="pt"))
        inputs = torch.cat(seen)
        grams.append(inputs.T @ inputs / len(inputs))
        matrices.append(layer.weight.detach())
    total = sum(gram @ matrix for gram, matrix in zip(grams, matrices, strict=True))
    expected = torch.linalg.solve(sum(grams), total)
    found = merged[f"{name}.weight"].double()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (found - sum(matrices) / 2).abs().max() > 1e-3


def test_why_its_stream_is_not_rotated(tmp_path: Path) -> None:
    """Its norms come before layers, as a ViT's do, but nothing absorbs the bias of the last."""
    base, *experts = two(tmp_path)
    recipe = of(*experts, base=base, merger="average")
    recipe = recipe.but(premerge=(parse_choice("rotation:residual=true"),))
    with mistake(BadOption, "rotation residual", "absorb gpt2"):
        harness.merge(recipe, out=tmp_path / "merged")


def test_an_adapter_of_them_adds_its_product_turned(tmp_path: Path) -> None:
    """As peft does, which notes the layout as `fan_in_fan_out`."""
    base, folder = small(tmp_path / "base"), tmp_path / "adapter"
    folder.mkdir()
    stored = load_file(base / WEIGHTS)
    name = "transformer.h.{}.attn.c_attn"
    tensors = {"base_model.model.score.weight": torch.ones(2, 16)}
    for layer in (0, 1):
        place = f"base_model.model.{name.format(layer)}"
        tensors[f"{place}.lora_A.weight"] = torch.randn(3, 16)
        tensors[f"{place}.lora_B.weight"] = torch.randn(48, 3)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "SEQ_CLS", "r": 3, "lora_alpha": 6}
    config |= {"target_modules": ["c_attn"], "modules_to_save": ["score"], "fan_in_fan_out": True}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    opened = open_checkpoint(folder, base=base)
    for layer in (0, 1):
        place = f"base_model.model.{name.format(layer)}"
        first, second = (tensors[f"{place}.lora_{one}.weight"].double() for one in "AB")
        expected = stored[f"{name.format(layer)}.weight"].double() + 2 * (second @ first).T
        found = opened.weights[f"{name.format(layer)}.weight"]
        torch.testing.assert_close(found, expected.T, rtol=0, atol=1e-12)


def test_a_published_gpt2_is_a_base(tmp_path: Path) -> None:
    """Without a prefix, with causal masks of floats, or with the head of a language model."""
    base, *experts = two(tmp_path)
    weights = load_file(base / WEIGHTS)
    assert not any(name.startswith("transformer.") for name in weights)
    masks = {f"h.{n}.attn.bias": torch.ones(1, 1, 40, 40).tril() for n in (0, 1)}
    save_file(weights | masks, base / WEIGHTS)
    whole = Path(shutil.copytree(base, tmp_path / "whole"))
    written = {f"transformer.{name}": tensor for name, tensor in weights.items()}
    save_file(written | {"lm_head.weight": weights["wte.weight"].clone()}, whole / WEIGHTS)
    merged = []
    for number, one in enumerate((base, whole)):
        harness.merge(of(*experts, base=one, merger="ties"), out=tmp_path / f"m{number}")
        merged.append(load_file(tmp_path / f"m{number}" / WEIGHTS))
    assert merged[0].keys() == load_file(experts[0] / WEIGHTS).keys()
    for name, tensor in merged[0].items():
        torch.testing.assert_close(tensor, merged[1][name], rtol=0, atol=0)
    trained = [
        harness.finetune(one, TOY.name, out=tmp_path / f"t-{one.name}", **FAST)
        for one in (base, whole)
    ]
    for name, tensor in trained[0].weights.items():
        torch.testing.assert_close(tensor, trained[1].weights[name], rtol=0, atol=0)


# The whole way -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "task"),
    [("qwen3", "embedded/topic"), ("qwen3", "embedded/names"), ("gpt2", "embedded/topic")],
)
def test_experts_are_trained_merged_and_scored(name: str, task: str, tmp_path: Path) -> None:
    sizes = {"vocab_size": 108, "hidden_size": 32, "intermediate_size": 64}
    sizes = {"vocab_size": 108, "n_embd": 32, "n_inner": 64} if name == "gpt2" else sizes
    base = model(tmp_path / "base", family=name, **sizes)
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
