"""Families of text from rows to scores: what transformers computes is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import harness
from harness import Run
from harness.checkpoints.open import open_checkpoint
from harness.data.rows import load_rows
from harness.passes.features import forward
from harness.passes.placement import CPU
from harness.passes.prepared import prepare
from tests.conftest import FAMILIES, FAST, NEWER, ROBERTAS, resumes
from tests.toys import TAGS, THREE, TOY, known

Minis = Callable[[str], dict[str, Path]]
every_family = pytest.mark.parametrize("family", NEWER)
_tasks = known(TOY, THREE, TAGS)


@pytest.mark.parametrize("unit", ["row", "word"])
@pytest.mark.parametrize("family", [*FAMILIES, *NEWER, *ROBERTAS])
def test_features_are_those_of_transformers(
    loud: Callable[[str], Path], taggers: Minis, family: str, unit: str
) -> None:
    """Row by row, without padding and in float64, is what the final layer is given."""
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    auto = AutoModelForSequenceClassification if unit == "row" else AutoModelForTokenClassification
    checkpoint = open_checkpoint(loud(family) if unit == "row" else taggers(family)["a"])
    rows = load_rows(TOY if unit == "row" else TAGS, "test", limit=10)
    plain = auto.from_pretrained(checkpoint.path).double().eval()
    top = checkpoint.family.row if unit == "row" else checkpoint.family.word
    assert top is not None
    given: list[torch.Tensor] = []
    final = plain.get_submodule(top.final)
    final.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0][0]))
    ready = prepare(checkpoint, rows, 64)
    firsts = ready.first or [None] * len(ready.columns["input_ids"])
    expected = []
    with torch.no_grad():
        for ids, first in zip(ready.columns["input_ids"], firsts, strict=True):
            plain(input_ids=torch.tensor([ids]))
            features = given.pop()
            expected.append(features[None] if first is None else features[[*first]])
    wanted = torch.cat(expected).numpy()
    assert np.ptp(wanted, axis=0).max() > 1e-3
    for size in (1, 4):
        x, *_ = forward(checkpoint, rows, max_length=64, batch_size=size, placement=CPU)
        np.testing.assert_allclose(x, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@every_family
def test_an_interrupted_run_resumes(minis: Minis, family: str, tmp_path: Path) -> None:
    base, few = minis(family)["base"], {**FAST, "epochs": 2, "limit": 16}
    resumes(lambda out: harness.finetune(base, "toy/three", out=out, **few), tmp_path)


@every_family
def test_an_expert_is_tuned_merged_and_scored(minis: Minis, family: str, tmp_path: Path) -> None:
    """Copies that are moved on the way, or counted, score as they do."""
    base, expert, out = str(minis(family)["base"]), tmp_path / "expert", tmp_path / "merged"
    harness.finetune(base, "toy/three", out=expert, **{**FAST, "epochs": 1})
    recipe: dict[str, Any] = {"experts": [str(expert)] * 2, "base": base, "merger": "average"}
    recipe["premerge"] = ["permutation:heads=true", "rotation"]
    harness.merge(harness.Recipe.model_validate(recipe), out=out)
    asked = {
        "model": str(out),
        "protocols": ["current", "knn"],
        "output": str(tmp_path / "records"),
    }
    found = harness.evaluate(Run.model_validate(asked))
    scores = {
        (record.role, record.protocol, one.shots, one.seed): one.value
        for record in found
        for one in record.scores
    }
    assert {protocol for _, protocol, *_ in scores} == {"current", "knn"}
    for (role, *which), value in scores.items():
        if role == "expert":
            assert scores[("merged", *which)] == pytest.approx(value)  # type: ignore[index]
