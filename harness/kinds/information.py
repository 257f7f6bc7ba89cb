"""Fisher information of logits under the likelihood of the labels: rows v (`Kind.fisher_rows`).

By hand: two classes with p = (0.2, 0.8) have by definition 0.2 (1 - 0.2) (d z_0 - d z_1)^2, so the
one row of `exact` is (0.4, -0.4).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.functional import log_softmax, one_hot


def of_bits(
    estimator: str, logits: torch.Tensor, labels: torch.Tensor, annotated: torch.Tensor
) -> Iterator[torch.Tensor]:
    """The rows for independent classes that each hold or not, over those that are `annotated`."""
    p = logits.sigmoid()
    if estimator == "exact":
        yield from _one_by_one((p * (1 - p)).sqrt() * annotated)
    elif estimator == "mergelm":
        yield torch.where(annotated, p.sqrt() * (1 - p) - (1 - p).sqrt() * p, 0)
    else:
        share = 1 if estimator == "empirical" else annotated.sum().clamp(min=1)
        yield torch.where(annotated, (labels - p) / share, 0)


def of_classes(
    estimator: str, logits: torch.Tensor, labels: torch.Tensor, counted: torch.Tensor
) -> torch.Tensor:
    """The one row, by an estimator other than `exact`, for classes of which one holds.

    Only the places that are `counted` have entries.
    """
    p = log_softmax(logits, -1).exp()
    weight = {"mergelm": p.sqrt(), "soft": p}.get(estimator)
    if weight is None:
        classes = logits.argmax(-1) if estimator == "hard" else labels.clamp(min=0).long()
        weight = one_hot(classes, logits.shape[-1]).to(p.dtype)
    # the gradient of sum_y w(y) log p(y), with w held fixed
    row = torch.where(counted[..., None], weight - p * weight.sum(-1, keepdim=True), 0)
    return row if estimator in ("empirical", "mergelm") else row / counted.sum().clamp(min=1)


def of_places(logits: torch.Tensor, counted: torch.Tensor) -> Iterator[torch.Tensor]:
    """The rows of `exact` for classes of which one holds: each counted place has its own."""
    p = log_softmax(logits, -1).exp()
    for place, rows in zip(counted.nonzero().tolist(), softmax_roots(p[counted]), strict=True):
        for row in rows:
            padded = torch.zeros_like(p)
            padded[tuple(place)] = row
            yield padded


def _one_by_one(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """For each entry other than 0, the values with all other entries set to 0."""
    for place in values.nonzero().unbind():
        single = torch.zeros_like(values)
        single[tuple(place)] = values[tuple(place)]
        yield single


def softmax_roots(p: torch.Tensor) -> torch.Tensor:
    """Rows v, [..., classes - 1, classes], with sum of v v^T = diag(p) - p p^T.

    That matrix is the Fisher information of the logits with probabilities p. The rows are its
    Cholesky factor in closed form: row k sets class k against the mixture of the classes after it.
    So an example takes one gradient less than there are classes.
    """
    # the sum of p from class k on, added up from the end: 1 - (a sum) would cancel
    tail = p.double().flip(-1).cumsum(-1).flip(-1)
    here, after = tail[..., :-1, None], tail[..., 1:, None]
    size = p.shape[-1]
    diagonal = torch.eye(size - 1, size, dtype=torch.bool, device=p.device)
    later = torch.ones(size - 1, size, dtype=torch.bool, device=p.device).triu(1)
    mixed = torch.where(later, -p.double()[..., None, :] / after, diagonal.double())
    rows = mixed * (p.double()[..., :-1, None] * after / here).sqrt()
    return torch.where((here > 0) & (after > 0), rows, 0).to(p.dtype)
