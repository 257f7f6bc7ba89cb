"""What a model says of the rows it sees: Gram matrices and Fisher information, one pass each.

`gram`    inner products of the inputs of every linear layer, [in, in] in float64
`fisher`  the diagonal of the Fisher information, of the shape of every parameter, in float32
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import torch
from torch.func import functional_call, vjp
from torch.nn.functional import log_softmax, one_hot

from harness.checkpoints.open import build_model
from harness.errors import BadOption
from harness.labels import columns
from harness.passes.features import device_of, padded, running, tokenize
from harness.types import Checkpoint, Rows, Scalar, Steps

Estimator: TypeAlias = Literal["exact", "empirical", "mergelm", "hard", "soft", "empirical_batch"]
BY_EXAMPLE = ("exact", "empirical")
"""The estimators that square the gradients of single examples; all others those of a batch."""
GOLD = ("empirical", "empirical_batch")
"""The estimators that read gold labels (a regression always does)."""
Output: TypeAlias = Literal["classification", "regression", "multilabel", "tagging"]
IGNORED = -100
"""The label of a token, or of a class of a multi-label row, that nobody gave."""


def linear_layers(model: torch.nn.Module) -> dict[str, torch.nn.Linear]:
    """The linear layers of a model by name: those whose inputs have a Gram matrix."""
    return {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}


# Gram matrices -----------------------------------------------------------------------------


def gram(
    model: torch.nn.Module,
    batches: Iterator[Mapping[str, torch.Tensor]],
    *,
    padding: bool = False,
    scale: Literal["mean", "sum"] = "mean",
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """X^T X of the inputs X of every linear layer, in float64, and which weights share one.

    The rows of X are all positions of all batches that a token stands on; `padding` counts the
    others as well, as the published code does. `mean` divides by the number of rows (both
    published codes), `sum` does not (the formula of the paper). Layers that are always given the
    same input share one matrix: the second result maps the name of each weight to the one it is
    kept under. Layers that never ran have none.

    RegMean, arXiv:2212.09849.
    """
    names = {module: name for name, module in linear_layers(model).items()}
    calls: list[tuple[str, torch.Tensor]] = []
    hooks = [
        module.register_forward_pre_hook(lambda m, args: calls.append((names[m], args[0])))
        for module in names
    ]
    groups: dict[str, str] | None = None
    sums: dict[str, torch.Tensor] = {}
    counts: dict[str, int] = {}
    try:
        with torch.inference_mode():
            for batch in batches:
                model(**batch)
                groups = groups or _shared(calls)
                mask = None if padding else batch["attention_mask"].bool()
                for name, given in calls:
                    if groups[name] == name:
                        rows = _rows(given, mask).double()
                        product = rows.T @ rows
                        sums[name] = sums[name].add_(product) if name in sums else product
                        counts[name] = counts.get(name, 0) + len(rows)
                calls.clear()
    finally:
        for hook in hooks:
            hook.remove()
    divisors = counts if scale == "mean" else dict.fromkeys(sums, 1)
    kept = {f"{name}.weight": (total / divisors[name]).cpu() for name, total in sums.items()}
    return kept, {f"{name}.weight": f"{first}.weight" for name, first in (groups or {}).items()}


def _shared(calls: Sequence[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """For every layer that ran, the first one that was given the very same tensors."""
    given: dict[str, list[int]] = {}
    for name, tensor in calls:
        given.setdefault(name, []).append(id(tensor))
    first: dict[tuple[int, ...], str] = {}
    return {name: first.setdefault(tuple(ids), name) for name, ids in given.items()}


def _rows(given: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The inputs of a layer as rows, without those of padding.

    What has not the shape of the batch has no padding: a pooled [batch, width], and DeBERTa's
    relative positions, which its query and key layers read beside the tokens.
    """
    if mask is not None and given.dim() == 3 and given.shape[:2] == mask.shape:
        return given[mask]
    return given.reshape(-1, given.shape[-1])


# Diagonal Fisher information ---------------------------------------------------------------


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


# Passes over an expert's rows --------------------------------------------------------------

Batches: TypeAlias = Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]
Found: TypeAlias = tuple[dict[str, torch.Tensor], dict[str, str]]


@dataclass(frozen=True)
class Pass:
    """An expert and the rows it is to see, ready to run."""

    checkpoint: Checkpoint
    rows: Rows
    max_length: int
    device: str
    progress: Steps | None

    def model(self) -> torch.nn.Module:
        """The expert in eval mode, without dropout, on the device."""
        where = device_of(self.device)
        state = self.checkpoint.weights
        return build_model(self.checkpoint.config, state, self.checkpoint.source).to(where)

    def batches(self, size: int, *, as_drawn: bool) -> Batches:
        """Inputs and labels of the rows, in the order of the draw or, padding less, by length."""
        where = device_of(self.device)
        encoded = tokenize(self.checkpoint, self.rows, self.max_length)
        order = list(range(len(self.rows)))
        if not as_drawn:
            order.sort(key=lambda i: -len(encoded["input_ids"][i]))
        labels = self._labels()
        for start in range(0, len(order), size):
            picked = order[start : start + size]
            yield padded(encoded, picked, self.checkpoint, where), labels[picked].to(where)
            if self.progress:
                self.progress(len(picked))

    def _labels(self) -> torch.Tensor:
        """Gold labels by the place they have in the model's outputs, or gold values."""
        gold = torch.from_numpy(self.rows.labels)
        if self.rows.task.kind == "regression":
            return gold.float()
        places = columns(self.rows.task, self.checkpoint.labels or (), self.checkpoint.source)
        return torch.tensor(places)[gold.long()]


def gram_pass(
    asked: Pass,
    *,
    examples: int = 1024,
    seed: int = 0,
    batch_size: int = 16,
    padding: bool = False,
    gram_scale: Literal["mean", "sum"] = "mean",
) -> Found:
    """Gram matrices of `examples` rows; see `gram`.

    The size of a batch matters where `padding` counts, and for DeBERTa, whose relative positions
    are read once for every batch.
    """
    read = (inputs for inputs, _ in asked.batches(batch_size, as_drawn=padding))
    model = asked.model()
    with running(asked.checkpoint.source):
        return gram(model, read, padding=padding, scale=gram_scale)


def fisher_pass(
    asked: Pass,
    *,
    examples: int = 1024,
    seed: int = 0,
    estimator: Estimator = "exact",
    batch_size: int = 16,
) -> Found:
    """The Fisher diagonal over `examples` rows; see `fisher`.

    Only the published estimators have batches, in the order of the draw.
    """
    size = 1 if estimator in BY_EXAMPLE else batch_size
    read = asked.batches(size, as_drawn=True)
    model, kind = asked.model(), asked.rows.task.kind
    with running(asked.checkpoint.source):
        return fisher(model, read, kind, estimator=estimator, batch_size=size), {}


PASSES: Mapping[str, Callable[..., Found]] = {"gram": gram_pass, "fisher": fisher_pass}
"""What a merger can ask for by a keyword of this name; the options are those of the pass."""


def check_options(kind: str, chosen: Mapping[str, Scalar]) -> None:
    """Raise BadOption for a value that a pass cannot take; warn of an estimator of nothing."""
    if cast(int, size := chosen.get("batch_size", 1)) < 1:
        raise BadOption(f"batch_size of {kind} statistics is {size}, expected at least 1")
    if chosen.get("estimator") == "soft":
        warnings.warn(
            "the estimator 'soft' has a gradient of zero and holds only rounding; expected for "
            "comparison alone",
            stacklevel=2,
        )
