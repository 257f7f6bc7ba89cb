"""Networks whose outputs depend on every parameter, and moves that keep them: of all families."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from harness import weights
from harness.checking.toys import exact_norms
from harness.checkpoints.families.family import Unit
from harness.checkpoints.families.generic import family_of
from harness.checkpoints.families.known import FAMILY_OF_TYPE
from harness.checkpoints.families.symmetry import axes_of, joined_parts, split_parts
from harness.checkpoints.named import parameters_of, to_memory_names
from harness.checkpoints.network import new_classifier
from harness.weights import Axes, Symmetry, Turned
from tests.conftest import BERT_LIKE, DECODERS, FAMILIES, NEWER, ROBERTAS

#: a configuration of every model type of every family, and those that lead to further tensors
VARIANTS: dict[str, dict[str, Any]] = {
    **{
        name: {"model_type": name, **settings}
        for name, settings in {**FAMILIES, **NEWER, **ROBERTAS}.items()
    },
    "electra, narrow": {"model_type": "electra", **BERT_LIKE, "embedding_size": 8},
    "deberta, apart": {
        "model_type": "deberta-v2",
        **FAMILIES["deberta-v2"],
        "share_att_key": False,
        "conv_kernel_size": 3,
        "embedding_size": 8,
        "type_vocab_size": 2,
    },
    "modernbert, biases": {
        "model_type": "modernbert",
        **NEWER["modernbert"],
        "num_hidden_layers": 2,
        **{f"{what}_bias": True for what in ("attention", "mlp", "norm", "classifier")},
    },
    "clip": {
        "model_type": "clip_vision_model",
        **{key: BERT_LIKE[key] for key in BERT_LIKE.keys() - {"vocab_size"}},
        "projection_dim": 12,
        "image_size": 8,
        "patch_size": 4,
    },
    **{
        name: {
            "model_type": name.partition(",")[0],
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 24,
            "num_layers": 2,
            "num_heads": 2,
            "vocab_size": 45,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 16,
            "feed_forward_proj": kind,
            "eos_token_id": 3,
            "decoder_start_token_id": 0,
        }
        for name, kind in (("t5", "relu"), ("t5, gated", "gated-gelu"), ("mt5", "gated-gelu"))
    },
    **{
        name: {
            "model_type": "t5",
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 24,
            "num_layers": 2,
            "num_heads": 2,
            "vocab_size": 45,
            "text_head": {"decoder": [0, 4], "answers": [5, 9, 7], "tied": tied},
        }
        for name, tied in (("t5, words", False), ("t5, tied words", True))
    },
    "gpt2": {"model_type": "gpt2", **DECODERS["gpt2"]},
    "vit": {
        "model_type": "vit",
        **{key: BERT_LIKE[key] for key in BERT_LIKE.keys() - {"vocab_size"}},
        "image_size": 8,
        "patch_size": 4,
    },
}
UNITS: tuple[Unit, ...] = ("row", "word")
every_variant = pytest.mark.parametrize("variant", VARIANTS)
every_unit = pytest.mark.parametrize("unit", UNITS)


def config(variant: str) -> dict[str, Any]:
    return {**VARIANTS[variant], "num_labels": 3}


Tensors = dict[str, torch.Tensor]
Moves = Mapping[str, torch.Tensor]
IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
IDS = torch.tensor([[2, 10, 11, 30, 3, 0, 0], [2, 12, 40, 7, 21, 9, 3], [2, 5, 3, 0, 0, 0, 0]])
SIZES = {"width": 16, "embedding": 8, "pooled": 16, "ffn": 24}
HEADS, SIZE = 2, 8


def check_unit(variant: str, unit: Unit) -> None:
    """Skip the test where a family has no classifiers of a unit: an image has no words."""
    if unit == "word" and family_of(config(variant)).word is None:
        pytest.skip("no words")


def loud(variant: str, unit: Unit, seed: int = 0) -> torch.nn.Module:
    """A classifier in float64, whose outputs depend on every one of its parameters."""
    check_unit(variant, unit)
    torch.manual_seed(seed)
    made = exact_norms(new_classifier(config(variant), variant, unit).double().eval())
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return made


def logits(made: torch.nn.Module, state: Tensors) -> torch.Tensor:
    """What a network says with these weights, in their type throughout.

    Some networks compute a part in float32, whatever their weights are.
    """
    inputs = {"input_ids": IDS, "attention_mask": (IDS > 0).long()}
    if made.main_input_name == "pixel_values":
        inputs = {"pixel_values": IMAGES}
    own = to_memory_names(
        made, joined_parts(FAMILY_OF_TYPE[made.config.model_type], state, parameters_of(made))
    )
    narrow = torch.Tensor.float

    def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.dtype == torch.float64 else narrow(tensor)

    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", as_it_is)
        found: torch.Tensor = torch.func.functional_call(made, own, kwargs=inputs).logits
    return found if found.ndim == 2 else found[IDS > 0]


def permutation(size: int, *seeds: int) -> torch.Tensor:
    """A matrix that leaves no place as it is."""
    order = np.random.default_rng(seeds).permutation(size)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    matrix[order, np.roll(order, 1)] = 1
    return matrix


def rotations(*seeds: int) -> torch.Tensor:
    """An orthogonal map within each head."""
    random = np.random.default_rng(seeds)
    blocks = [np.linalg.qr(random.normal(size=(SIZE, SIZE)))[0] for _ in range(HEADS)]
    return torch.block_diag(*map(torch.from_numpy, blocks))


def invertible(*seeds: int) -> torch.Tensor:
    """A map within each head that keeps no length and no angle."""
    random = np.random.default_rng(seeds)
    blocks = [np.diag(random.uniform(0.5, 2, SIZE)) + np.triu(random.normal(size=(SIZE, SIZE)) / 4)
              for _ in range(HEADS)]  # fmt: skip
    return torch.block_diag(*map(torch.from_numpy, blocks))


def heads(*seeds: int) -> torch.Tensor:
    """Heads in another order, each as it is."""
    return torch.kron(permutation(HEADS, *seeds), torch.eye(SIZE, dtype=torch.float64))


#: of one stack, of two, and a decoder's attention to its encoder, each with a seed
LAYERS = [
    *((str(layer), layer) for layer in (0, 1, 2, 3)),
    *((f"{stack}.{layer}", layer) for stack in ("encoder", "decoder") for layer in (0, 1)),
    *((f"decoder.{layer}.cross", layer) for layer in (0, 1)),
]
MOVES: dict[str, Moves] = {
    "units": {f"ffn.{layer}": permutation(SIZES["ffn"], seed) for layer, seed in LAYERS},
    "heads": {
        **{f"{kind}.{at}": heads(seed) for kind in ("qk", "rope", "vo") for at, seed in LAYERS},
        **{f"heads{stack}": permutation(HEADS, 0) for stack in ("", ".encoder", ".decoder")},
    },
    "within heads": {
        f"{group}.{layer}": rotations(seed, place)
        for place, group in enumerate(("qk", "vo"))
        for layer, seed in LAYERS
    },
    "within heads, undone in the dual": {
        f"{group}.{layer}": invertible(seed, place)
        for place, group in enumerate(("qk", "vo"))
        for layer, seed in LAYERS
    },
    "width": {name: permutation(SIZES[name], 7) for name in ("width", "embedding", "pooled")},
}


def moved(state: Tensors, axes: Axes, moves: Moves) -> Tensors:
    """The state with every axis of the groups mapped."""
    maps = {group: Turned(one[None], one.inverse()[None]) for group, one in moves.items()}
    return dict(weights.moved(state, Symmetry(axes, HEADS), maps.get))


def moved_folder(folder: Path, out: Path, variant: str, moves: Moves) -> Path:
    """A folder of the same classifier of rows with its groups mapped, in the same type."""
    state = load_file(folder / "model.safetensors")
    wide = {name: tensor.double() for name, tensor in state.items()}
    there = moved(wide, symmetry_of(variant, "row", wide).axes, moves)
    shutil.copytree(folder, out)
    narrow = {name: tensor.to(state[name].dtype).contiguous() for name, tensor in there.items()}
    save_file(narrow, out / "model.safetensors", metadata={"format": "pt"})
    return out


def tensors(made: torch.nn.Module) -> Tensors:
    """The parameters of a network as the table of its family has them."""
    state = {name: parameter.detach() for name, parameter in parameters_of(made).items()}
    return dict(split_parts(FAMILY_OF_TYPE[made.config.model_type], state))


def network(variant: str, unit: Unit = "row", seed: int = 0) -> tuple[torch.nn.Module, Tensors]:
    """A loud classifier and its tensors."""
    made = loud(variant, unit, seed)
    return made, tensors(made)


def symmetry_of(variant: str, unit: Unit, state: Tensors) -> Symmetry:
    """What the table of the family says of these tensors."""
    return Symmetry(axes_of(family_of(config(variant)), state, unit), HEADS)


def far(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> float:
    """The largest difference of any entry."""
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def apart(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> float:
    """||first - second|| over all tensors."""
    return sum(float((first[n] - second[n]).double().square().sum()) for n in first) ** 0.5


def check_exact(
    method: Callable[..., list[Any]], variant: str, unit: Unit, options: Mapping[str, Any]
) -> None:
    """Raise AssertionError where a method moves outputs, or the anchor, or nothing."""
    made, state = network(variant, unit)
    _, anchor = network(variant, unit, seed=1)
    symmetry = symmetry_of(variant, unit, state)
    found, same = method([state, anchor], symmetry, anchor=2, **options)
    assert far(state, found) > 0.1
    assert far(anchor, same) == 0
    torch.testing.assert_close(logits(made, dict(found)), logits(made, state), rtol=0, atol=1e-10)
