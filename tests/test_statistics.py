"""Statistics agree with independent float64 passes, see what they should and nothing else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.testing import assert_close
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
)

from harness import NEEDS, Rows, Task
from harness.checkpoints.open import open_checkpoint
from harness.data.rows import take
from harness.files import cache_dir
from harness.kinds import KINDS
from harness.kinds.information import softmax_roots
from harness.needs import gram as needed
from harness.passes import statistics
from harness.passes.fisher import BY_EXAMPLE, fisher
from harness.passes.gram import gram, linear_layers
from harness.passes.placement import CPU
from harness.passes.reading import reading_of
from harness.passes.statistics import collect, draw_rows
from harness.rng import rng
from tests.conftest import BERT_LIKE, FAMILIES, model
from tests.toys import THREE, TOY, VALUE, known

Minis = Callable[[str], dict[str, Path]]
Loud = Callable[..., Path]
EXAMPLES = 12
_toys = known(TOY, THREE, VALUE)


def rows_of(task: Task = TOY, examples: int = EXAMPLES) -> Rows:
    return draw_rows(task, examples, 0, None)


def defaults(kind: str, **changed: Any) -> dict[str, Any]:
    from harness.options import options

    known = options(NEEDS[kind].function).values()
    return {option.name: option.default for option in known} | {"examples": EXAMPLES} | changed


def collected(kind: str, folder: Path, task: Task = TOY, **changed: Any) -> statistics.Statistic:
    chosen = defaults(kind, **changed)
    rows = rows_of(task, chosen["examples"])
    return collect(NEEDS[kind], chosen, reading_of(open_checkpoint(folder), rows, CPU))


# Independent passes in float64 -------------------------------------------------------------


def exact_model(folder: Path) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(folder).double().eval()


def inputs_of(folder: Path, rows: Rows) -> Iterator[dict[str, torch.Tensor]]:
    """One row at a time, so without any padding."""
    words = AutoTokenizer.from_pretrained(folder)
    for texts in rows.texts:
        yield dict(words(*texts, return_tensors="pt"))


def reference_gram(folder: Path, rows: Rows) -> dict[str, np.ndarray[Any, Any]]:
    """The mean of x x^T over the true inputs, row by row.

    What a layer reads at its second call, DeBERTa's relative positions, counts once for a batch.
    """
    network = exact_model(folder)
    seen: dict[str, list[torch.Tensor]] = {}
    calls: set[str] = set()
    first = True

    def keep(name: str) -> Callable[..., None]:
        def hook(_: Any, args: tuple[torch.Tensor, ...]) -> None:
            if first or name not in calls:
                seen.setdefault(name, []).append(args[0].reshape(-1, args[0].shape[-1]))
            calls.add(name)

        return hook

    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(keep(name))
    with torch.no_grad():
        for inputs in inputs_of(folder, rows):
            calls.clear()
            network(**inputs)
            first = False
    found = {}
    for name, parts in seen.items():
        x = torch.cat(parts).numpy()
        found[f"{name}.weight"] = np.einsum("ri,rj->ij", x, x) / len(x)
    return found


def reference_fisher(folder: Path, rows: Rows) -> dict[str, np.ndarray[Any, Any]]:
    """p(y) (d log p(y))^2, one backward pass for every row and label."""
    network = exact_model(folder)
    totals = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    for inputs in inputs_of(folder, rows):
        for label in range(network.config.num_labels):
            network.zero_grad()
            logs = network(**inputs).logits[0].log_softmax(-1)
            logs[label].backward()
            for name, p in network.named_parameters():
                if p.grad is not None:
                    totals[name] += logs[label].detach().exp() * p.grad**2
    return {name: (total / len(rows)).numpy() for name, total in totals.items()}


def near(found: Any, expected: dict[str, np.ndarray[Any, Any]], tolerance: float) -> None:
    """Every tensor agrees, relative to its largest entry.

    Rounding alone is seen in what is zero by its nature: no softmax moves with the bias of a key.
    """
    noise = 1e-8 * max(float(np.abs(array).max()) for array in expected.values())
    for name, array in expected.items():
        scale = max(float(np.abs(array).max()), noise)
        got = found[name].double().numpy()
        np.testing.assert_allclose(got / scale, array / scale, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_gram_is_that_of_the_true_inputs(family: str, loud: Loud) -> None:
    folder = loud(family)
    expected = reference_gram(folder, rows_of())
    found = collected("gram", folder).tensors
    assert set(found) == set(expected)
    near(found, expected, 2e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_fisher_is_the_expectation_over_labels(family: str, loud: Loud) -> None:
    for which, task in (("a", TOY), ("c", THREE)):
        folder = loud(family, which)
        expected = reference_fisher(folder, rows_of(task))
        found = collected("fisher", folder, task).tensors
        assert set(found) == set(expected)
        near(found, expected, 2e-5)


def test_padding_is_counted_only_when_asked(minis: Minis) -> None:
    folder = minis("bert")["a"]
    clean = collected("gram", folder).tensors
    for size in (1, 5):
        again = collected("gram", folder, batch_size=size).tensors
        near(again, {name: clean[name].numpy() for name in clean}, 1e-6)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    padded = collected("gram", folder, padding=True).tensors
    assert not np.allclose(padded[name], clean[name], rtol=1e-3)
    alone = collected("gram", folder, padding=True, batch_size=1).tensors
    near(alone, {name: clean[name].numpy() for name in clean}, 1e-6)


def test_a_sum_is_the_mean_times_the_rows(minis: Minis) -> None:
    folder = minis("bert")["a"]
    mean, summed = collected("gram", folder), collected("gram", folder, gram_scale="sum")
    tokens = sum(inputs["input_ids"].shape[1] for inputs in inputs_of(folder, rows_of()))
    for name, count in (("bert.encoder.layer.0.output.dense.weight", tokens),
                        ("classifier.weight", EXAMPLES)):  # fmt: skip
        assert_close(summed.tensors[name], mean.tensors[name] * count)


def test_query_key_and_value_share_one_matrix(minis: Minis) -> None:
    """Where they read the same: DeBERTa's query and key read relative positions beside it."""
    for family, apart in (("bert", False), ("deberta-v2", True)):
        found = collected("gram", minis(family)["a"])
        with safe_open(found.source, "pt") as file:
            stored = list(file.keys())
        assert len([n for n in stored if ".attention.self." in n and ".0." in n]) == 1 + apart
        query, value = (
            next(n for n in found.tensors if ".0." in n and f"self.{what}" in n)
            for what in ("query", "value")
        )
        assert torch.equal(found.tensors[query], found.tensors[value]) != apart


def test_statistics_are_taken_without_dropout(minis: Minis, tmp_path: Path) -> None:
    quiet = minis("bert")["a"]
    noisy = tmp_path / "noisy"
    shutil.copytree(quiet, noisy)
    config = json.loads((noisy / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5}
    (noisy / "config.json").write_text(json.dumps(config))
    for kind in ("gram", "fisher"):
        first, second = (collected(kind, folder).tensors for folder in (quiet, noisy))
        assert all(torch.equal(first[name], second[name]) for name in first)


# The pieces --------------------------------------------------------------------------------


def test_softmax_roots_by_hand() -> None:
    root = 0.2 * 0.8
    assert_close(softmax_roots(torch.tensor([0.2, 0.8])), torch.tensor([[1.0, -1.0]]) * root**0.5)


@pytest.mark.parametrize("seed", range(5))
def test_softmax_roots_are_a_root(seed: int) -> None:
    logits = torch.randn(6, generator=torch.Generator().manual_seed(seed)) * 5
    p = logits.double().softmax(0)
    rows = softmax_roots(p)
    assert rows.shape == (5, 6)
    assert_close(rows.T @ rows, torch.diag(p) - torch.outer(p, p), atol=1e-12, rtol=0)


@pytest.mark.parametrize("p", [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.0, 0.5], [1.0, 0.0]])
def test_softmax_roots_of_a_certain_model(p: list[float]) -> None:
    found = torch.tensor(p)
    rows = softmax_roots(found)
    assert torch.isfinite(rows).all()
    assert_close(rows.T @ rows, torch.diag(found) - torch.outer(found, found))


def squares(output: Any, estimator: Any, logits: torch.Tensor, labels: torch.Tensor) -> Any:
    """The Fisher of the logits themselves: the sum of squared rows."""
    rows = list(KINDS[output].fisher_rows(estimator, logits, labels))
    return torch.stack(rows).square().sum(0) if rows else torch.zeros_like(logits)


def test_empirical_rows_are_gradients_of_the_likelihood() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 4, requires_grad=True)
    labels = torch.tensor([2])
    (grad,) = torch.autograd.grad(cross_entropy(logits, labels), logits)
    assert_close(squares("classification", "empirical", logits.detach(), labels), grad**2)
    values, targets = torch.randn(1, 1, requires_grad=True), torch.tensor([0.7])
    (grad,) = torch.autograd.grad(mse_loss(values[:, 0], targets), values)
    for estimator in ("exact", "empirical"):
        assert_close(squares("regression", estimator, values.detach(), targets), grad**2)
    given = torch.tensor([[1.0, -100.0, 0.0, 1.0]])
    loss = binary_cross_entropy_with_logits(logits[given >= 0], given[given >= 0], reduction="sum")
    (grad,) = torch.autograd.grad(loss, logits)
    assert_close(squares("multilabel", "empirical", logits.detach(), given), grad**2)


def test_mergelm_rows_are_gradients_of_the_published_sum() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 4, requires_grad=True)
    logs = logits.log_softmax(-1)
    (grad,) = torch.autograd.grad((logs.exp().detach().sqrt() * logs).sum(), logits)
    assert_close(squares("classification", "mergelm", logits.detach(), torch.zeros(3)), grad**2)
    values, targets = torch.randn(3, 1, requires_grad=True), torch.randn(3)
    (grad,) = torch.autograd.grad(mse_loss(values[:, 0], targets), values)
    assert_close(squares("regression", "mergelm", values.detach(), targets), grad**2)


def test_mergelm_sees_nothing_in_an_undecided_binary_example() -> None:
    undecided, label = torch.zeros(1, 2), torch.tensor([0])
    assert squares("classification", "mergelm", undecided, label).abs().max() < 1e-12
    assert squares("classification", "exact", undecided, label).max() == 0.25


#: estimator -> the quantity of a batch whose gradient RegMean's code squares, as it is written
PUBLISHED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "hard": lambda logits, _: -logits.log_softmax(-1).max(-1).values.mean(),
    "soft": lambda logits, _: (
        (logits.softmax(-1).detach() * -logits.log_softmax(-1)).sum(-1).mean()
    ),
    "empirical_batch": cross_entropy,
}


@pytest.mark.parametrize("estimator", PUBLISHED)
def test_rows_of_a_batch_are_gradients_of_the_published_mean(estimator: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([2, 0, 0])
    (grad,) = torch.autograd.grad(PUBLISHED[estimator](logits, labels), logits)
    assert_close(squares("classification", estimator, logits.detach(), labels), grad**2)
    tokens = torch.tensor([[-100, 2, 0], [0, -100, -100]])
    logits = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    counted = tokens != -100
    loss = PUBLISHED[estimator](logits[counted], tokens[counted])
    (grad,) = torch.autograd.grad(loss, logits)
    assert_close(squares("tagging", estimator, logits.detach(), tokens), grad**2)
    values, targets = torch.randn(3, 1, dtype=torch.float64, requires_grad=True), torch.randn(3)
    (grad,) = torch.autograd.grad(mse_loss(values[:, 0], targets.double()), values)
    assert_close(squares("regression", estimator, values.detach(), targets.double()), grad**2)


def test_rows_of_a_batch_of_label_sets() -> None:
    """`hard` takes all columns for one distribution, as the code does; the loss is the code's."""
    torch.manual_seed(0)
    logits = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[1.0, -100, 0, 1], [0, 0, 0, -100], [1, 1, 1, 1]]).double()
    known = labels >= 0
    losses = {
        "hard": PUBLISHED["hard"](logits, labels),
        "empirical_batch": binary_cross_entropy_with_logits(logits[known], labels[known]),
    }
    for estimator, loss in losses.items():
        (grad,) = torch.autograd.grad(loss, logits)
        assert_close(squares("multilabel", estimator, logits.detach(), labels), grad**2)


def test_hard_by_hand() -> None:
    """p = (3/4, 1/4) and (1/4, 3/4): (p - one-hot) / 2 is (-1/8, 1/8) and (1/8, -1/8)."""
    logits = torch.tensor([[3.0, 1.0], [1.0, 3.0]], dtype=torch.float64).log()
    expected = torch.full((2, 2), 1 / 64, dtype=torch.float64)
    for labels in (torch.tensor([0, 1]), torch.tensor([1, 1])):
        assert_close(squares("classification", "hard", logits, labels), expected)
    gold = squares("classification", "empirical_batch", logits, torch.tensor([1, 1]))
    assert_close(gold, expected * torch.tensor([[9.0], [1.0]]))


def test_soft_is_rounding() -> None:
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0])
    assert squares("classification", "soft", logits, labels).max() < 1e-12
    assert squares("classification", "hard", logits, labels).max() > 1e-4


def reference_of_batches(
    folder: Path, rows: Rows, estimator: str, size: int
) -> dict[str, np.ndarray[Any, Any]]:
    """The squared gradient of each batch, averaged over the batches; every row by itself."""
    network = exact_model(folder)
    inputs, gold = list(inputs_of(folder, rows)), torch.tensor(rows.labels).long()
    starts = range(0, len(rows), size)
    totals = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    for start in starts:
        network.zero_grad()
        logits = torch.cat([network(**one_row).logits for one_row in inputs[start : start + size]])
        PUBLISHED[estimator](logits, gold[start : start + size]).backward()
        for name, p in network.named_parameters():
            if p.grad is not None:
                totals[name] += p.grad**2 / len(starts)
    return {name: total.numpy() for name, total in totals.items()}


@pytest.mark.parametrize("estimator", ["hard", "empirical_batch"])
def test_published_estimators_are_averaged_over_batches(estimator: str, loud: Loud) -> None:
    """Of 12 rows in batches of 8 the last, of 4, counts as much as the first."""
    for family, which, task in (("bert", "a", TOY), ("roberta", "c", THREE)):
        folder = loud(family, which)
        expected = reference_of_batches(folder, rows_of(task), estimator, 8)
        found = collected("fisher", folder, task, estimator=estimator, batch_size=8).tensors
        near(found, expected, 2e-5)


@pytest.mark.parametrize("estimator", ["hard", "soft", "empirical_batch", "mergelm"])
def test_a_regression_has_but_one_published_estimator(estimator: str, tmp_path: Path) -> None:
    """The gradient of the mean squared error; 12 rows in batches of 8 are 2 steps, or 16 rows."""
    folder = model(tmp_path / "value", [])
    network, rows = exact_model(folder), rows_of(VALUE)
    with torch.no_grad():
        values = torch.stack([network(**i).logits[0, 0] for i in inputs_of(folder, rows)])
    wrong = (values - torch.tensor(rows.labels)).split(8)
    total = sum(float((2 * part.mean()) ** 2) for part in wrong)
    expected = total / (16 if estimator == "mergelm" else 2)
    found = collected("fisher", folder, VALUE, estimator=estimator, batch_size=8).tensors
    assert float(found["classifier.bias"]) == pytest.approx(expected, rel=1e-4)


def test_mergelm_counts_a_batch_that_is_never_full(loud: Loud) -> None:
    """12 rows in one batch of 16 are divided by 16, as the published code counts them."""
    whole, short = (
        collected("fisher", loud("bert"), estimator="mergelm", batch_size=size).tensors
        for size in (12, 16)
    )
    name = "classifier.weight"
    assert_close(short[name], whole[name] * 12 / 16)


def bert(kind: type[Any], outputs: int) -> Any:
    torch.manual_seed(0)
    return kind(BertConfig(**BERT_LIKE, num_labels=outputs)).eval()


def one(length: int) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.randint(5, 45, (1, length)),
        "attention_mask": torch.ones(1, length, dtype=torch.long),
    }


def test_exact_fisher_of_a_multilabel_model() -> None:
    """The expectation over all 2^3 label sets; a class without a gold label has none."""
    network = bert(BertForSequenceClassification, 3)
    examples = [(one(5), torch.tensor([[1.0, 0.0, -100.0]])), (one(4), torch.tensor([[0.0] * 3]))]
    found = fisher(network, iter(examples), KINDS["multilabel"])
    expected = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    for inputs, labels in examples:
        counted = (labels[0] != -100).nonzero()[:, 0]
        for bits in np.ndindex(*[2] * len(counted)):
            network.zero_grad()
            logits = network(**inputs).logits[0][counted]
            wanted = torch.tensor(bits, dtype=torch.float32)
            logp = -binary_cross_entropy_with_logits(logits, wanted, reduction="sum")
            logp.backward()
            for name, p in network.named_parameters():
                expected[name] += logp.detach().exp() * p.grad**2 / len(examples)
    near(found, {name: total.numpy() for name, total in expected.items()}, 1e-5)


def test_exact_fisher_of_a_tagger() -> None:
    """The expectation over all label sequences of the tokens that have a gold label."""
    network = bert(BertForTokenClassification, 2)
    inputs, labels = one(4), torch.tensor([[-100, 1, 0, -100]])
    found = fisher(network, iter([(inputs, labels)]), KINDS["tagging"])
    expected = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    for sequence in np.ndindex(2, 2):
        network.zero_grad()
        logs = network(**inputs).logits[0, 1:3].log_softmax(-1)
        logp = logs[0, sequence[0]] + logs[1, sequence[1]]
        logp.backward()
        for name, p in network.named_parameters():
            if p.grad is not None:
                expected[name] += logp.detach().exp() * p.grad**2
    near(found, {name: total.numpy() for name, total in expected.items()}, 1e-5)


class Stubborn(BertForSequenceClassification):
    """A model whose steps depend on values, as vmap has none."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        made = super().forward(*args, **kwargs)
        assert float(made.logits.detach().sum()) < 1e9
        return made


@pytest.mark.parametrize("estimator", BY_EXAMPLE)
def test_examples_of_one_length_share_their_passes(
    estimator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine of them and one alone, with words that come back and segments of their own."""
    network, stubborn = bert(BertForSequenceClassification, 3), bert(Stubborn, 3)
    examples = [(one(5 if i else 4), torch.tensor([i % 3])) for i in range(10)]
    for inputs, _ in examples[1:]:
        inputs["input_ids"][0, 1:3] = inputs["input_ids"][0, 0]
        inputs["token_type_ids"] = torch.randint(2, (1, 5))
    calls: list[Any] = []
    network.register_forward_hook(lambda *_: calls.append(None))

    def of(model: Any) -> dict[str, np.ndarray[Any, Any]]:
        calls.clear()
        found = fisher(model, iter(examples), KINDS["classification"], estimator=estimator)
        return {name: tensor.numpy() for name, tensor in found.items()}

    shared = fisher(network, iter(examples), KINDS["classification"], estimator=estimator)
    assert len(calls) == 2
    near(shared, of(stubborn), 2e-6)
    monkeypatch.setattr("harness.passes.fisher.MAX_ENTRIES", 1)
    near(shared, of(network), 2e-6)
    assert len(calls) == 10


@pytest.mark.fault
def test_squares_are_of_examples_and_not_of_batches(loud: Loud) -> None:
    """The published fault, planted: it must show."""
    folder = loud("bert")
    clean = collected("fisher", folder).tensors
    faulty = collected("fisher", folder, estimator="mergelm").tensors
    name = "bert.encoder.layer.0.output.dense.weight"
    assert np.corrcoef(clean[name].flatten(), faulty[name].flatten())[0, 1] < 0.99
    assert not torch.allclose(clean[name], faulty[name], rtol=0.05)


def test_mergelm_divides_by_whole_batches(loud: Loud) -> None:
    """A short last batch counts as a whole one: 12 rows in batches of 8 are divided by 16."""
    folder = loud("bert")
    network = exact_model(folder)
    inputs = list(inputs_of(folder, rows_of()))
    totals = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    for batch in (inputs[:8], inputs[8:]):
        network.zero_grad()
        for one_row in batch:
            logs = network(**one_row).logits[0].log_softmax(-1)
            (logs.exp().detach().sqrt() * logs).sum().backward()
        for name, p in network.named_parameters():
            totals[name] += p.grad**2 / 16
    found = collected("fisher", folder, estimator="mergelm", batch_size=8).tensors
    near(found, {name: total.numpy() for name, total in totals.items()}, 2e-5)


def test_empirical_reads_the_gold_label_by_name(loud: Loud, tmp_path: Path) -> None:
    """An expert whose outputs stand in another order is read by their names."""
    folder = loud("bert")
    swapped = tmp_path / "swapped"
    shutil.copytree(folder, swapped)
    config = json.loads((swapped / "config.json").read_text())
    config |= {"id2label": {"0": "yes", "1": "no"}, "label2id": {"yes": 0, "no": 1}}
    (swapped / "config.json").write_text(json.dumps(config))
    first = collected("fisher", folder, estimator="empirical").tensors
    other = collected("fisher", swapped, estimator="empirical").tensors
    assert not torch.allclose(first["classifier.bias"], other["classifier.bias"], rtol=1e-3)
    gold = torch.tensor(rows_of().labels)
    network = exact_model(folder)
    with torch.no_grad():
        p = torch.stack([network(**i).logits[0].softmax(-1) for i in inputs_of(folder, rows_of())])
    for found, labels in ((first, gold), (other, 1 - gold)):
        wrong = torch.nn.functional.one_hot(labels.long(), 2) - p
        assert_close(found["classifier.bias"].double(), wrong.square().mean(0), rtol=1e-4, atol=0)


def test_a_parameter_that_is_not_reached_has_no_fisher(minis: Minis) -> None:
    found = collected("fisher", minis("bert")["a"]).tensors
    words = found["bert.embeddings.word_embeddings.weight"]
    ids = {int(i) for inputs in inputs_of(minis("bert")["a"], rows_of())
           for i in inputs["input_ids"][0]}  # fmt: skip
    reached = {int(row) for row in words.abs().sum(1).nonzero()}
    assert reached == ids


def test_gram_of_a_layer_that_never_runs_is_not_there() -> None:
    network = bert(BertForSequenceClassification, 2)
    network.spare = torch.nn.Linear(3, 3)
    found, shared = gram(network, linear_layers(network), iter([one(4)]))
    assert "spare.weight" not in {**found, **shared}


# Rows --------------------------------------------------------------------------------------


def test_rows_are_drawn_by_seed_and_task_alone() -> None:
    train = statistics.load_rows(TOY, "train90")
    order = rng(0, "stats", "toy/pairs").permutation(len(train))[:EXAMPLES]
    assert rows_of().texts == take(train, [int(i) for i in order]).texts
    assert draw_rows(TOY, EXAMPLES, 1, None).texts != rows_of().texts


def test_where_there_are_fewer_rows_all_are_taken_and_it_is_said() -> None:
    assert len(draw_rows(TOY, 36, 0, None)) == 36
    with pytest.warns(UserWarning, match="toy/pairs@train90 has 36 rows, fewer than examples=37"):
        assert len(draw_rows(TOY, 37, 0, None)) == 36


def test_a_second_time_is_read_from_the_cache(
    minis: Minis, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = minis("bert")["a"]
    first = collected("gram", folder)
    monkeypatch.setattr(needed, "gram", lambda *_, **__: pytest.fail("a pass"))
    again = collected("gram", folder)
    assert all(torch.equal(first.tensors[name], again.tensors[name]) for name in first.tensors)


def test_the_cache_is_keyed_by_content(minis: Minis, tmp_path: Path) -> None:
    """Other weights, other rows, other options: other statistics."""
    first = collected("gram", minis("bert")["a"])
    twin = tmp_path / "twin"
    shutil.copytree(minis("bert")["a"], twin)
    assert collected("gram", twin).source == first.source
    others = [
        collected("gram", minis("bert")["b"]),
        collected("gram", minis("bert")["a"], examples=11),
        collected("gram", minis("bert")["a"], padding=True),
        collected("fisher", minis("bert")["a"]),
    ]
    assert len({one.source for one in (first, *others)}) == 5


def test_a_regression_has_statistics(tmp_path: Path) -> None:
    folder = model(tmp_path / "value", [])
    for kind in ("gram", "fisher"):
        found = collected(kind, folder, VALUE).tensors
        assert all(torch.isfinite(found[name]).all() for name in found)
    network = exact_model(folder)
    with torch.no_grad():
        values = torch.stack([network(**i).logits[0, 0] for i in inputs_of(folder, rows_of(VALUE))])
    wrong = 2 * (values - torch.tensor(rows_of(VALUE).labels))
    found = collected("fisher", folder, VALUE).tensors["classifier.bias"].double()
    assert_close(found[0], wrong.square().mean(), rtol=1e-4, atol=0)


def test_the_file_that_is_locked_and_synced_is_the_one_that_stays(
    minis: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one that a library put in its place, which another run could write to meanwhile."""
    synced = []
    monkeypatch.setattr("os.fsync", lambda number: synced.append(os.fstat(number).st_ino))
    collected("gram", minis("bert")["a"])
    cached = [path.stat().st_ino for path in cache_dir("statistics").glob("*.safetensors")]
    assert cached
    assert set(cached) <= set(synced)
