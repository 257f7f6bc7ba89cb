"""The diagonal of the Fisher information, of the shape of every parameter, in float32."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, Literal, TypeAlias

import torch
from torch.func import functional_call, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad

from harness.checkpoints.families.known import FAMILY_OF_TYPE
from harness.checkpoints.named import to_family_names
from harness.kinds import Kind
from harness.readout import ModelInputs

Estimator: TypeAlias = Literal["exact", "empirical", "mergelm", "hard", "soft", "empirical_batch"]
BY_EXAMPLE = ("exact", "empirical")
"""The estimators that square gradients of single examples; the others square those of a batch."""
MAX_ENTRIES = 2**22
"""Entries of gradients of single examples that are held at once: 16 MB in float32.

Examples of one length share a pass if the gradients of two or more fit. This makes a small model
several times faster, as its time depends on the number of passes. The time of a large model depends
on the entries, which stay as many, so its examples are run one by one.
"""

Example: TypeAlias = tuple[ModelInputs, torch.Tensor]
RowsOf: TypeAlias = Callable[[torch.Tensor, torch.Tensor], Iterator[torch.Tensor]]


def fisher(
    model: torch.nn.Module,
    examples: Iterator[Example],
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
    examples. Their estimators, for comparison:

    mergelm          the sum over the batch of sum_y sqrt(p(y)) log p(y), with the root held fixed.
                     Divided by the steps times the batch size, though the last batch may be short.
                     Not the Fisher information for another reason too: it has cross terms between
                     labels, and an undecided binary example adds nothing.
    hard             the mean of -log p(y) of the likeliest label y (RegMean's code).
    soft             the mean of -sum_y p(y) log p(y), with p(y) held fixed (RegMean's code). Its
                     gradient is zero, so that what comes out is rounding.
    empirical_batch  the mean loss against the gold labels (RegMean's code).

    The last three are averaged over the batches. Each mean is over the rows of the batch; for
    tokens, and for the classes of a multi-label row under `empirical_batch`, over those with a gold
    label. `hard` and `soft` treat the classes of a multi-label row as one distribution, as the code
    does. For a regression all four use the mean squared error.

    Matena & Raffel 2022, arXiv:2111.09832; RegMean, arXiv:2212.09849; MergeLM, arXiv:2311.03099.
    """
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    totals = {name: torch.zeros_like(p) for name, p in parameters.items()}
    by_example = estimator in BY_EXAMPLE
    network = _Network(model, parameters, _words(model) if by_example else None)
    rows_of = partial(kind.fisher_rows, estimator)
    steps = 0
    for alike in _alike(examples, network.together() if by_example else 1):
        for part in network.passed(alike):
            part.add_squares(rows_of, totals)
        steps += len(alike)
    count = max(1, steps * (batch_size if estimator == "mergelm" else 1))
    return to_family_names(model, {name: total.div_(count).cpu() for name, total in totals.items()})


def _alike(examples: Iterator[Example], size: int) -> Iterator[list[Example]]:
    """Lists of at most `size` examples whose tensors have the same shapes: nothing is padded."""
    waiting: dict[Hashable, list[Example]] = {}
    for inputs, labels in examples:
        shapes = (*((name, tensor.shape) for name, tensor in inputs.items()), labels.shape)
        waiting.setdefault(shapes, []).append((inputs, labels))
        if len(waiting[shapes]) == size:
            yield waiting.pop(shapes)
    yield from waiting.values()


def _words(model: Any) -> str | None:
    """The name of the word embedding's parameter; None if it is frozen, or has no name.

    None also for models of images, for decoders, and for those known by rules alone: these may need
    the word ids as such, to scale embeddings (Gemma) or to find a row's last token.
    """
    family = FAMILY_OF_TYPE.get(model.config.model_type)
    if family is None or family.decoder or family.inputs == "image":
        return None
    if hasattr(model.base_model, "decoder"):
        return None
    embeddings = model.get_input_embeddings()
    if not isinstance(embeddings, torch.nn.Embedding):
        return None
    table = embeddings.weight
    return next((n for n, p in model.named_parameters() if p is table and p.requires_grad), None)


@dataclass(frozen=True)
class _Part:
    """Examples after a forward pass: their logits, and the backward pass.

    `logits` are [examples, ...], for each example the output of a call. `pull` maps gradients by
    the logits, of that shape, to the gradients by every parameter, [examples, ...]. The gradient by
    the parameter `words` has only the rows that an example reads; their ids are `ids`,
    [examples, rows].
    """

    labels: Sequence[torch.Tensor]
    logits: torch.Tensor
    pull: Callable[[torch.Tensor], Mapping[str, torch.Tensor]]
    words: str | None
    ids: torch.Tensor

    def add_squares(self, rows_of: RowsOf, totals: Mapping[str, torch.Tensor]) -> None:
        """Pull back what `rows_of` gives for every example, and add the squares to `totals`."""
        rows = [list(rows_of(*pair)) for pair in zip(self.logits, self.labels, strict=True)]
        nothing = torch.zeros_like(self.logits[0])
        for row in zip_longest(*rows, fillvalue=nothing):
            for name, grads in self.pull(torch.stack(row)).items():
                if name == self.words:
                    totals[name].index_add_(0, self.ids.flatten(), grads.square().flatten(0, 1))
                elif len(grads) == 1:
                    totals[name].addcmul_(grads[0], grads[0])
                else:
                    # not in place: gradients by two parameters may share memory
                    totals[name].add_(grads.square().sum(0))


@dataclass(frozen=True)
class _Network:
    """A model as a function of its parameters; `words` is the name of the word embedding.

    An example reads few rows of this largest parameter, and only these have a gradient: with the
    whole table in every gradient, most of the time would go into adding zeros. So the model is
    given these rows alone, and word ids become indices into them.
    """

    model: torch.nn.Module
    parameters: Mapping[str, torch.Tensor]
    words: str | None

    def together(self) -> int:
        """How many examples may share a pass."""
        entries = sum(p.numel() for name, p in self.parameters.items() if name != self.words)
        return max(1, MAX_ENTRIES // max(1, entries))

    def passed(self, alike: Sequence[Example]) -> Iterator[_Part]:
        """The examples after the forward pass: together if possible, else one by one."""
        parts: Iterable[_Part]
        try:
            parts = [self._together(alike)] if len(alike) > 1 else map(self._alone, alike)
        except RuntimeError:
            # vmap refuses a model whose steps depend on values; any other error is raised again
            parts = map(self._alone, alike)
        yield from parts

    def _alone(self, example: Example) -> _Part:
        (inputs,), ids = self._numbered([example[0]])
        read = {**self.parameters, **self._read(ids[0])}
        tensors = {name: tensor.detach().requires_grad_() for name, tensor in read.items()}
        with torch.enable_grad():  # not vjp, which refuses functions with a gradient of their own
            logits = self._logits(inputs, tensors)

        def pull_one(row: torch.Tensor) -> Mapping[str, torch.Tensor]:
            grads = torch.autograd.grad(
                logits, [*tensors.values()], row[0], retain_graph=True, materialize_grads=True
            )
            return {name: grad[None] for name, grad in zip(tensors, grads, strict=True)}

        return _Part([example[1]], logits.detach()[None], pull_one, self.words, ids)

    def _together(self, alike: Sequence[Example]) -> _Part:
        """All examples at once by vmap, each with its own (expanded) parameters.

        Inputs that are equal in all examples are not mapped: above all a mask of ones, as models
        branch on whether a mask is all ones.
        """
        several, ids = self._numbered([inputs for inputs, _ in alike])
        first = several[0]
        common = {n: t for n, t in first.items() if all(torch.equal(t, one[n]) for one in several)}
        mapped = {n: torch.stack([one[n] for one in several]) for n in first if n not in common}
        expanded = {n: p.expand(len(alike), *p.shape) for n, p in self.parameters.items()}

        def logits_of(mapped: ModelInputs, expanded: ModelInputs) -> torch.Tensor:
            return self._logits({**common, **mapped}, expanded)

        with sdpa_kernel(SDPBackend.MATH):  # the only attention with a rule for vmap
            result: Any = vjp(partial(vmap(logits_of), mapped), {**expanded, **self._read(ids)})
        logits, pull = result
        labels = [label for _, label in alike]
        return _Part(labels, logits.detach(), lambda row: pull(row)[0], self.words, ids)

    def _numbered(self, examples: Sequence[ModelInputs]) -> tuple[list[ModelInputs], torch.Tensor]:
        """Inputs whose word ids index the rows that are read, and these rows' ids,
        [examples, rows].

        Examples with fewer words than others also read the table's first row, without effect.
        """
        if self.words is None:
            return list(examples), torch.empty(len(examples), 0)
        distinct = [torch.unique(inputs["input_ids"], return_inverse=True) for inputs in examples]
        size = max(len(ids) for ids, _ in distinct)
        ids = torch.stack([pad(ids, (0, size - len(ids))) for ids, _ in distinct])
        return [
            {**inputs, "input_ids": places}
            for inputs, (_, places) in zip(examples, distinct, strict=True)
        ], ids

    def _read(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """The rows of the word embedding with these ids, in place of the whole table."""
        return {} if self.words is None else {self.words: self.parameters[self.words][ids]}

    def _logits(self, inputs: ModelInputs, tensors: ModelInputs) -> torch.Tensor:
        """The logits for inputs as `_numbered` makes them."""
        parameters, arguments = dict(tensors), dict(inputs)
        if self.words is not None:
            parameters[self.words] = self.parameters[self.words]
            arguments["inputs_embeds"] = tensors[self.words][arguments.pop("input_ids")]
        logits: torch.Tensor = functional_call(self.model, parameters, (), arguments).logits
        return logits
