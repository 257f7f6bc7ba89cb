"""The diagonal of the Fisher information, of the shape of every parameter, in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch.func import functional_call, vjp

from harness.kinds import Kind

Estimator: TypeAlias = Literal["exact", "empirical", "mergelm", "hard", "soft", "empirical_batch"]
BY_EXAMPLE = ("exact", "empirical")
"""The estimators that square the gradients of single examples; all others those of a batch."""


def fisher(
    model: torch.nn.Module,
    examples: Iterator[tuple[Mapping[str, torch.Tensor], torch.Tensor]],
    kind: Kind,
    *,
    estimator: Estimator = "exact",
    batch_size: int = 1,
) -> dict[str, torch.Tensor]:
    """The diagonal of the Fisher information for every parameter, or a published stand-in for it.

    `examples` yields inputs and labels: of one example each, without padding, for the first two
    estimators, of one batch of at most `batch_size` each for the others.

    exact      sum over labels y of p(y) (d log p(y))^2, for every example: the definition. For a
               regression, which has no distribution of labels, the same as `empirical`.
    empirical  (d log p(y))^2 of the gold label y, for every example; (d (f - y)^2)^2 for a
               regression.

    Both are averaged over the examples. Labels of tokens, and of the classes of a multi-label row,
    are independent given the row: the information of a row is the sum of theirs, over those with a
    gold label (any but -100).

    The published codes square the gradient of a whole batch, which adds cross terms between its
    examples. These are theirs, for comparison:

    mergelm          the sum over the batch of sum_y sqrt(p(y)) log p(y), with the root held fixed.
                     Divided by the steps times the batch size, though the last batch may be short.
                     Not the Fisher information for another reason too: it has cross terms between
                     labels, and an undecided binary example adds nothing.
    hard             the mean of -log p(y) of the likeliest label y (RegMean's code).
    soft             the mean of -sum_y p(y) log p(y), with p(y) held fixed (RegMean's code). Its
                     gradient is zero, so that what comes out is rounding.
    empirical_batch  the mean loss against the gold labels (RegMean's code).

    The last three are averaged over the batches. A mean is one over the rows of the batch; of
    tokens, and of the classes of a multi-label row under `empirical_batch`, over those with a gold
    label. `hard` and `soft` take the classes of a multi-label row for one distribution, as the code
    does. Of a regression all four take the mean squared error.

    Matena & Raffel 2022, arXiv:2111.09832; RegMean, arXiv:2212.09849; MergeLM, arXiv:2311.03099.
    """
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    totals = {name: torch.zeros_like(p) for name, p in parameters.items()}
    steps = 0
    for inputs, labels in examples:
        table = _word_rows(model, parameters, inputs) if estimator in BY_EXAMPLE else None
        read = _outputs(model, parameters, inputs, table)
        given = {name: p for name, p in parameters.items() if not table or name != table.name}
        done: Any = vjp(read, given, *([table.rows] if table else []))
        logits, pull = done
        for row in kind.fisher_rows(estimator, logits.detach(), labels):
            grads = pull(row)
            for name, grad in grads[0].items():
                totals[name].addcmul_(grad, grad)
            if table:
                totals[table.name].index_add_(0, table.ids, grads[1].square())
        steps += 1
    count = max(1, steps * (batch_size if estimator == "mergelm" else 1))
    return {name: total.div_(count).cpu() for name, total in totals.items()}


@dataclass(frozen=True)
class _Words:
    """The rows of the word embedding that one example reads, which alone have a gradient.

    They are a small part of the largest parameter: with all of it in the gradient of every example
    most of the time goes into adding zeros.
    """

    name: str
    ids: torch.Tensor
    rows: torch.Tensor
    places: torch.Tensor


def _word_rows(
    model: Any,
    parameters: Mapping[str, torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
) -> _Words | None:
    table = model.get_input_embeddings().weight
    names = [name for name, p in model.named_parameters() if p is table]
    if len(names) != 1:  # frozen, or unknown to the model
        return None
    ids, places = torch.unique(inputs["input_ids"], return_inverse=True)
    return _Words(names[0], ids, parameters[names[0]][ids], places)


def _outputs(
    model: torch.nn.Module,
    parameters: Mapping[str, torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
    table: _Words | None,
) -> Callable[..., torch.Tensor]:
    """The logits as a function of the parameters (and of the rows of the word embedding)."""
    if table is None:
        return lambda given: functional_call(model, given, (), dict(inputs)).logits
    others = {key: value for key, value in inputs.items() if key != "input_ids"}

    def read(given: Mapping[str, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        known = {**given, table.name: parameters[table.name]}
        arguments = {**others, "inputs_embeds": rows[table.places]}
        logits: torch.Tensor = functional_call(model, known, (), arguments).logits
        return logits

    return read
