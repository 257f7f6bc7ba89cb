"""The diagonal of the Fisher information, of the shape of every parameter, in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch.func import functional_call, vjp
from torch.nn.functional import log_softmax, one_hot

Estimator: TypeAlias = Literal["exact", "empirical", "mergelm", "hard", "soft", "empirical_batch"]
BY_EXAMPLE = ("exact", "empirical")
"""The estimators that square the gradients of single examples; all others those of a batch."""
GOLD = ("empirical", "empirical_batch")
"""The estimators that read gold labels (a regression always does)."""
Output: TypeAlias = Literal["classification", "regression", "multilabel", "tagging"]
IGNORED = -100
"""The label of a token, or of a class of a multi-label row, that nobody gave."""


def fisher(
    model: torch.nn.Module,
    examples: Iterator[tuple[Mapping[str, torch.Tensor], torch.Tensor]],
    output: Output,
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
        for row in cotangents(output, estimator, logits.detach(), labels):
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


def cotangents(
    output: Output, estimator: Estimator, logits: torch.Tensor, labels: torch.Tensor
) -> Iterator[torch.Tensor]:
    """Rows v, each of the shape of the logits, with F = sum over v of (v . d logits)^2.

    By hand: two classes, p = (0.2, 0.8): the one row is (0.4, -0.4), for 0.2 (1 - 0.2)
    (d z_0 - d z_1)^2 is what the definition comes to.
    """
    if output == "regression":
        # the mean over the batch; `exact` and `empirical` see one row at a time
        yield 2 / len(logits) * (logits - labels.view_as(logits))
        return
    known = labels != IGNORED
    if output == "multilabel" and estimator not in ("hard", "soft"):
        yield from _of_bits(estimator, logits, labels, known)
        return
    # a row's own label does not matter where it is not read; of tokens, -100 says "no label"
    counted = known if output == "tagging" else known.new_ones(logits.shape[:-1])
    if estimator == "exact":
        yield from _of_places(log_softmax(logits, -1).exp(), counted)
    else:
        yield _of_classes(estimator, logits, labels, counted)


def _of_bits(
    estimator: Estimator, logits: torch.Tensor, labels: torch.Tensor, known: torch.Tensor
) -> Iterator[torch.Tensor]:
    """The rows for classes that each hold or do not, by themselves."""
    p = logits.sigmoid()
    if estimator == "exact":
        yield from _one_by_one((p * (1 - p)).sqrt() * known)
    elif estimator == "mergelm":
        yield torch.where(known, p.sqrt() * (1 - p) - (1 - p).sqrt() * p, 0)
    else:
        share = 1 if estimator == "empirical" else known.sum().clamp(min=1)
        yield torch.where(known, (labels - p) / share, 0)


def _of_classes(
    estimator: Estimator, logits: torch.Tensor, labels: torch.Tensor, counted: torch.Tensor
) -> torch.Tensor:
    """The one row for classes of which one holds, at the places that are counted."""
    p = log_softmax(logits, -1).exp()
    weight = {"mergelm": p.sqrt(), "soft": p}.get(estimator)
    if weight is None:
        held = logits.argmax(-1) if estimator == "hard" else labels.clamp(min=0).long()
        weight = one_hot(held, logits.shape[-1]).to(p.dtype)
    # the gradient of sum_y w(y) log p(y) with w held fixed
    row = torch.where(counted[..., None], weight - p * weight.sum(-1, keepdim=True), 0)
    return row if estimator in ("empirical", "mergelm") else row / counted.sum().clamp(min=1)


def _of_places(p: torch.Tensor, counted: torch.Tensor) -> Iterator[torch.Tensor]:
    """The rows of `exact` for probabilities, place by place."""
    for place in counted.nonzero().unbind():
        for row in softmax_roots(p[tuple(place)]):
            whole = torch.zeros_like(p)
            whole[tuple(place)] = row
            yield whole


def _one_by_one(values: torch.Tensor) -> Iterator[torch.Tensor]:
    for place in values.nonzero().unbind():
        one = torch.zeros_like(values)
        one[tuple(place)] = values[tuple(place)]
        yield one


def softmax_roots(p: torch.Tensor) -> torch.Tensor:
    """Rows v, [classes - 1, classes], with sum of v v^T = diag(p) - p p^T, of probabilities p.

    That matrix is the Fisher information of the logits. Row k sets class k against the mixture of
    those after it (its Cholesky factor in closed form), so an example costs one gradient less than
    it has classes.
    """
    # what is left after class k, from the small end, where a difference from one would cancel
    left = p.double().flip(0).cumsum(0).flip(0)
    size = len(p)
    rows = torch.zeros(size - 1, size, dtype=torch.float64, device=p.device)
    for k in range(size - 1):
        if left[k] > 0 and left[k + 1] > 0:
            rows[k, k] = 1
            rows[k, k + 1 :] = -p[k + 1 :].double() / left[k + 1]
            rows[k] *= (p[k].double() * left[k + 1] / left[k]).sqrt()
    return rows.to(p.dtype)
