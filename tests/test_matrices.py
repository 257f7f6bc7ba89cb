"""Which tensors are matrices of a layer, in all architectures."""

from __future__ import annotations

import pytest
import torch

from harness.checkpoints.network import classifier_on_meta
from harness.weights import is_matrix
from tests.conftest import BERT_LIKE, DECODERS
from tests.symmetries import VARIANTS

CONFIGS = VARIANTS | {
    name: {"model_type": name, **DECODERS.get(name, BERT_LIKE)}
    for name in (*DECODERS, *("bloom", "ctrl", "gptj", "mpt", "openai-gpt"))
}


@pytest.mark.parametrize("name", CONFIGS)
def test_no_table_of_embeddings_is_a_matrix_of_a_layer(name: str) -> None:
    tables, layers = set[str](), set[str]()
    for called, module in classifier_on_meta(CONFIGS[name], name).named_modules():
        if isinstance(module, torch.nn.Embedding):
            tables.add(f"{called}.weight")
        if isinstance(module, torch.nn.Linear):
            layers.add(f"{called}.weight")
    assert tables or name in ("vit", "dino", "deit")
    assert not [table for table in tables if is_matrix(table, (8, 4), "linear")]
    assert all(is_matrix(table, (8, 4), "all") for table in tables)
    assert all(is_matrix(layer, (8, 4), "linear") for layer in layers)
