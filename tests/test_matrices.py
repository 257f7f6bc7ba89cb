"""Which tensors are matrices of a layer, in all architectures."""

from __future__ import annotations

import pytest
import torch

from harness.checkpoints.network import classifier_on_meta
from harness.weights import is_matrix
from tests.symmetries import VARIANTS


@pytest.mark.parametrize("name", VARIANTS)
def test_no_table_of_embeddings_is_a_matrix_of_a_layer(name: str) -> None:
    tables, layers = set[str](), set[str]()
    for called, module in classifier_on_meta(VARIANTS[name], name).named_modules():
        if isinstance(module, torch.nn.Embedding):
            tables.add(f"{called}.weight")
        if isinstance(module, torch.nn.Linear):
            layers.add(f"{called}.weight")
    assert tables or name in ("vit", "dino", "deit")
    assert not [table for table in tables if is_matrix(table, (8, 4), "linear")]
    assert all(is_matrix(table, (8, 4), "all") for table in tables)
    assert all(is_matrix(layer, (8, 4), "linear") for layer in layers)
