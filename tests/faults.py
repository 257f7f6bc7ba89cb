"""Wrong mergers and pre-merging methods, as a real author could have written them.

Each breaks the property beside it in `WRONG_MERGERS` or `WRONG_PREMERGE`; nothing here is
registered, and `tests.faults:NAME` is how the battery finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

from harness import StateDict, weights
from harness.errors import BadOption, IncompatibleWeights
from harness.rng import rng

Merge: TypeAlias = Callable[..., StateDict]
Move: TypeAlias = Callable[..., Sequence[StateDict]]
Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def around(place: Any, name: str, wrong: Callable[..., Any]) -> Plant:
    """Puts `wrong`, which is given what was there before its arguments, in the place of a name."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = getattr(place, name)
        patch.setattr(place, name, lambda *given, **asked: wrong(right, *given, **asked))

    return plant


# What is right -----------------------------------------------------------------------------


def right(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.each(lambda *t: torch.stack(t).mean(0), *experts)


def right_pair(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    if len(experts) != 2:
        raise BadOption(f"got {len(experts)} experts, expected exactly 2")
    return weights.mean(experts)


def right_with_gram(
    experts: Sequence[StateDict], base: StateDict, *, gram: Sequence[StateDict]
) -> StateDict:
    """Linear layers that agree best with the experts' on their own inputs; the mean of the rest."""
    solved = {name for name in experts[0] if all(name in one for one in gram)}

    def fn(name: str, *tensors: torch.Tensor) -> torch.Tensor:
        if name not in solved:
            return torch.stack(tensors).mean(0)
        products = [one[name] for one in gram]
        right = sum(g @ t.double().T for g, t in zip(products, tensors, strict=True))
        return torch.linalg.solve(sum(products), right).T.float()

    return weights.each_named(fn, *experts)


def right_with_fisher(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    fisher: Sequence[StateDict],
    floor: float = 1e-6,
) -> StateDict:
    def fn(*tensors: torch.Tensor) -> torch.Tensor:
        models, shares = tensors[: len(experts)], tensors[len(experts) :]
        shares = [share + floor for share in shares]
        return sum(m * s for m, s in zip(models, shares, strict=True)) / sum(shares)

    return weights.entrywise(fn, *experts, *fisher)


def right_with_score(
    experts: Sequence[StateDict], base: StateDict, *, score: Callable[[StateDict], float]
) -> StateDict:
    """The mean of the two experts of the highest score."""

    @cache
    def best() -> StateDict:
        return weights.mean(sorted(experts, key=score)[-2:])

    return weights.Lazy(weights.specs(weights.mean(experts)), lambda name: best()[name])


def untouched(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    return [weights.each(torch.clone, expert) for expert in experts]


def turned_units(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """Exact: the units between the two feed-forward layers are listed backwards."""

    def fn(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if ".intermediate.dense." in name:
            return tensor.flip(0)
        if name.endswith(".output.dense.weight") and ".attention." not in name:
            return tensor.flip(1)
        return tensor.clone()

    return [weights.each_named(fn, expert) for expert in experts]


# Mergers that are wrong --------------------------------------------------------------------


def lost_tensor(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Merges what has two axes, and forgets the rest."""
    merged = right(experts, base)
    return weights.select(merged, [name for name in merged if len(base[name].shape) == 2])


def flattened(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return {name: tensor.flatten() for name, tensor in right(experts, base).items()}


def dropped_row(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Loses the last row of a head: the last tag of words, the last of several classes."""
    merged = right(experts, base)
    heads = {name: merged[name][:-1] for name in merged if name.startswith("classifier.")}
    return {**merged, **heads}


def forgotten_row(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Merges all rows of a head but the last, which stays as it was."""

    def fn(name: str, origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
        merged = torch.stack(tuned).mean(0)
        if name.startswith("classifier."):
            merged[-1] = origin[-1]
        return merged

    return weights.each_named(fn, base, *experts)


def rows_one_off(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Every row of a head is that of the label before."""
    return weights.each_named(
        lambda name, tensor: (
            tensor.roll(1, 0) if name.startswith("classifier.") else tensor.clone()
        ),
        right(experts, base),
    )


def float64_leak(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    merged = right(experts, base)
    known = {name: spec._replace(dtype=torch.float64) for name, spec in weights.specs(base).items()}
    return weights.Lazy(known, lambda name: merged[name].double())


def wrong_header(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Computes in float64 and does not say so."""
    return weights.each(lambda *t: torch.stack(t).double().mean(0), *experts)


def in_place_sum(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Accumulates into the first expert."""

    def add(*tensors: torch.Tensor) -> torch.Tensor:
        for tensor in tensors[1:]:
            tensors[0].add_(tensor)
        return tensors[0] / len(tensors)

    return weights.each(add, *experts)


def written_base(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.each(lambda b, *t: b.copy_(torch.stack(t).mean(0)).clone(), base, *experts)


def alias(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Returns the base's own tensors where no expert has moved."""
    merged = right(experts, base)

    def fn(name: str, origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
        return origin if name.endswith("LayerNorm.bias") else merged[name]

    return weights.each_named(fn, base, *experts)


def first_expert(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.each(torch.clone, experts[0])


def running_mean(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Halves at every step, so that the last expert weighs most."""
    merged = experts[0]
    for expert in experts[1:]:
        merged = weights.mean([merged, expert])
    return weights.each(torch.clone, merged)


def summed(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """The sum of the task vectors, not said to leave what copies agree on."""
    return weights.each(
        lambda b, *t: b + weights.total(t), base, *weights.task_vectors(experts, base)
    )


def forgotten_base(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.mean(weights.task_vectors(experts, base))


def no_length(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Task vectors scaled to one length: 0 / 0 for an expert that did not move."""

    def fn(origin: torch.Tensor, *vectors: torch.Tensor) -> torch.Tensor:
        lengths = [vector.norm() for vector in vectors]
        mean = sum(lengths) / len(lengths)
        units = [vector / length * mean for vector, length in zip(vectors, lengths, strict=True)]
        return origin + sum(units) / len(units)

    return weights.each(fn, base, *weights.task_vectors(experts, base))


def nothing_but_nan(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """A mean that divides zero by zero."""

    def fn(origin: torch.Tensor, *vectors: torch.Tensor) -> torch.Tensor:
        nothing = torch.zeros_like(origin)
        return origin + torch.stack(vectors).sum(0) * (nothing / nothing)

    return weights.each(fn, base, *weights.task_vectors(experts, base))


def by_position(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Takes the tensors of all models to stand in one order."""
    vectors = [torch.cat([tensor.flatten() for tensor in e.values()]) for e in experts]
    pieces = torch.stack(vectors).mean(0).split([tensor.numel() for tensor in base.values()])
    pairs = zip(base, pieces, strict=True)
    return {name: piece.view(base[name].shape).clone() for name, piece in pairs}


def global_noise(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.each(
        lambda tensor: tensor + torch.rand_like(tensor) * 1e-7, right(experts, base)
    )


def seeded_once(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """One generator for all tensors: what each draws depends on which were asked for before."""
    numbers = torch.Generator().manual_seed(0)

    def fn(tensor: torch.Tensor) -> torch.Tensor:
        return tensor + torch.rand(tensor.shape, generator=numbers) * 1e-7

    return weights.each(fn, right(experts, base))


def norm_of_pieces(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Takes a sum over what `entrywise` hands it for one over the tensor."""

    def fn(*pieces: torch.Tensor) -> torch.Tensor:
        shares = [piece.abs().sum() for piece in pieces]
        weighted = [piece * share for piece, share in zip(pieces, shares, strict=True)]
        return sum(weighted) / sum(shares)

    return weights.entrywise(fn, *experts)


OWN = 1 << 16
"""A size of pieces of the author's own."""


def scaled_twice(experts: Sequence[StateDict], base: StateDict, *, scale: float = 1.0) -> StateDict:
    """base + scale * direction, of which the direction has the scale in it as well."""
    middle = weights.mean(experts)
    direction = weights.each(lambda merged, origin: (merged - origin) * scale, middle, base)
    return weights.ScaledMerge(base, direction, scale)


def half_scaled(experts: Sequence[StateDict], base: StateDict, *, scale: float = 2.0) -> StateDict:
    """base + scale / 2 * direction: half of what is asked for."""
    (direction,) = weights.task_vectors([weights.mean(experts)], base)
    return weights.ScaledMerge(base, direction, scale / 2)


def in_own_pieces(
    fn: Callable[..., torch.Tensor],
    origin: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    which: Callable[[int], slice],
    size: int = OWN,
) -> torch.Tensor:
    """`fn` of those pieces that `which` picks of so many; what it forgets is the origin's."""
    split = [torch.split(tensor.reshape(-1), size) for tensor in tensors]
    result = origin.clone()
    pieces = list(zip(torch.split(result.view(-1), size), *split, strict=True))
    for out, *given in pieces[which(len(pieces))]:
        out.copy_(fn(*given))
    return result


def first_piece(count: int) -> slice:
    return slice(0, 1)


def whole_pieces(count: int) -> slice:
    """All but the last, which is a short one where there are several."""
    return slice(0, max(1, count - 1))


def first_piece_alone(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Does the first piece and forgets to go on."""

    def fn(origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
        return in_own_pieces(lambda *t: torch.stack(t).mean(0), origin, tuned, first_piece)

    return weights.each(fn, base, *experts)


def last_piece_dropped(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    def fn(origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
        return in_own_pieces(lambda *t: torch.stack(t).mean(0), origin, tuned, whole_pieces)

    return weights.each(fn, base, *experts)


def length_of_a_piece(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Goes the less far the further the experts have, which is read off their first entries."""

    def fn(origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
        vectors = torch.stack([tensor - origin for tensor in tuned])
        far = vectors.flatten(1)[:, :OWN].abs().mean() if origin.numel() else 0.0
        return origin + vectors.mean(0) / (1 + far)

    return weights.each(fn, base, *experts)


def eager(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Everything at once."""
    return dict(right(experts, base))


def kept_outputs(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    merged = right(experts, base)
    return weights.Lazy(weights.specs(merged), cache(lambda name: merged[name]))


def whole_vectors(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Looks at all of every expert at once, as published codes flatten a model to one vector."""

    @cache
    def lengths() -> list[torch.Tensor]:
        models = [dict(expert) for expert in experts]
        return [torch.stack([t.norm() for t in model.values()]).norm() for model in models]

    def fn(*tensors: torch.Tensor) -> torch.Tensor:
        shares = [length / sum(lengths()) for length in lengths()]
        return sum(tensor * share for tensor, share in zip(tensors, shares, strict=True))

    return weights.each(fn, *experts)


def half_sums(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Accumulates in the type of the file."""
    merged = weights.mean(experts)
    return weights.Lazy(
        weights.specs(merged),
        lambda name: (sum(expert[name] for expert in experts) / len(experts)).float(),
    )


def kept_embeddings(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Leaves the embeddings of words alone, by a name of theirs."""
    merged = right(experts, base)
    return weights.Lazy(
        weights.specs(merged),
        lambda name: base[name].float().clone() if "word_embeddings" in name else merged[name],
    )


def own_positions(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Fills in the position ids that its author's model class has, counted as RoBERTa's."""
    merged = right(experts, base)
    if not any("position_embeddings" in name for name in base):
        return merged
    return {**merged, "bert.embeddings.position_ids": torch.arange(2, 12)[None]}


def skipped_shapes(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Keeps the base's where shapes differ."""

    def compute(name: str) -> torch.Tensor:
        tensors = [expert[name].float() for expert in experts]
        if any(tensor.shape != base[name].shape for tensor in tensors):
            return base[name].float().clone()
        return torch.stack(tensors).mean(0)

    return weights.Lazy(weights.specs(weights.mean(experts)), compute)


def swallowed(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Keeps the base's where anything goes wrong."""
    merged = right(experts, base)

    def compute(name: str) -> torch.Tensor:
        try:
            return merged[name]
        except Exception:
            return base[name].float().clone()

    return weights.Lazy(weights.specs(merged), compute)


def unnamed_error(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Says that something went wrong, and not where."""
    merged = right(experts, base)

    def compute(name: str) -> torch.Tensor:
        try:
            return merged[name]
        except Exception as error:
            raise IncompatibleWeights("these models cannot be merged") from error

    return weights.Lazy(weights.specs(merged), compute)


def first_gram(
    experts: Sequence[StateDict], base: StateDict, *, gram: Sequence[StateDict]
) -> StateDict:
    """Mixes up which inputs are whose: the first expert gets those of the second."""
    return right_with_gram(experts, base, gram=[*gram[1:], gram[1]])


def eager_fisher(
    experts: Sequence[StateDict], base: StateDict, *, fisher: Sequence[StateDict]
) -> StateDict:
    return right_with_fisher(experts, base, fisher=[dict(one) for one in fisher])


def scaled_in_place(
    experts: Sequence[StateDict], base: StateDict, *, fisher: Sequence[StateDict]
) -> StateDict:
    """Normalises the statistics where they are."""

    def fn(*tensors: torch.Tensor) -> torch.Tensor:
        shares = [t.add_(1e-6) for t in tensors[len(experts) :]]
        return sum(m * s for m, s in zip(tensors, shares, strict=False)) / sum(shares)

    return weights.each(fn, *experts, *fisher)


#: a wrong merger -> the property that must catch it
WRONG_MERGERS: dict[Merge, str] = {
    lost_tensor: "shapes",
    flattened: "shapes",
    dropped_row: "shapes",
    float64_leak: "shapes",
    wrong_header: "shapes",
    in_place_sum: "inputs",
    written_base: "inputs",
    alias: "inputs",
    scaled_in_place: "inputs",
    first_expert: "order",
    running_mean: "order",
    first_gram: "order",
    summed: "copies",
    forgotten_row: "copies",
    rows_one_off: "copies",
    forgotten_base: "zero",
    no_length: "zero",
    scaled_twice: "scale",
    half_scaled: "scale",
    by_position: "bytes",
    global_noise: "bytes",
    seeded_once: "bytes",
    norm_of_pieces: "bytes",
    first_piece_alone: "large",
    last_piece_dropped: "large",
    length_of_a_piece: "large",
    eager: "memory",
    kept_outputs: "memory",
    whole_vectors: "memory",
    eager_fisher: "memory",
    half_sums: "half",
    kept_embeddings: "tied",
    own_positions: "buffers",
    skipped_shapes: "errors",
    swallowed: "errors",
    unnamed_error: "errors",
}

# Pre-merging methods that are wrong --------------------------------------------------------


def halved(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """Half of every task vector: it moves copies of one model, and does not say so."""
    return [weights.mean([expert, base]) for expert in experts]


def lost_expert(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """The first was the reference, and is not given back."""
    return untouched(experts[1:], base)


def moved_float64(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    return [weights.each(lambda a: a.double(), expert) for expert in experts]


def moved_in_place(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    return [weights.each(lambda a, b: a.add_(b) / 2, expert, base) for expert in experts]


def handed_through(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    return [weights.select(expert, list(expert)) for expert in experts]


def to_the_first(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """Half-way to the first expert, whichever that is."""
    return [weights.mean([expert, experts[0]]) for expert in experts]


def task_vectors(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """Forgets to add the base again."""
    return weights.task_vectors(experts, base)


def masks_in_file_order(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """Masks drawn one after the other, in the order in which tensors stand in the file."""

    def masked(expert: StateDict) -> StateDict:
        numbers = np.random.default_rng(0)
        shapes = {name: spec.shape for name, spec in weights.specs(expert).items()}
        keep = {n: torch.tensor(numbers.random(shape) > 0.5) for n, shape in shapes.items()}
        return weights.each_named(lambda n, a, b: (a - b) * keep[n] + b, expert, base)

    return [masked(expert) for expert in experts]


def masks_on_access(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    numbers = np.random.default_rng(0)

    def mask(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a - b) * torch.tensor(numbers.random(a.shape) > 0.5) + b

    return [weights.each(mask, expert, base) for expert in experts]


def dropped_at_random(
    name: str, vector: torch.Tensor, which: Callable[[int], slice], size: int = OWN
) -> torch.Tensor:
    """DARE of the pieces that are picked; of the others nothing is dropped."""
    numbers = rng(0, name)

    def fn(piece: torch.Tensor) -> torch.Tensor:
        return piece * 2 * torch.from_numpy(numbers.random(len(piece)) > 0.5)

    return in_own_pieces(fn, vector, [vector], which, size)


def masks_of_the_first_piece(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    def fn(name: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return dropped_at_random(name, a - b, first_piece) + b

    return [weights.each_named(fn, expert, base) for expert in experts]


def masks_of_whole_pieces(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    def fn(name: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return dropped_at_random(name, a - b, whole_pieces) + b

    return [weights.each_named(fn, expert, base) for expert in experts]


def moved_at_once(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    return [dict(state) for state in untouched(experts, base)]


def kept_experts(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """Every expert is read whole when the first tensor of one is asked for."""

    @cache
    def whole() -> list[dict[str, torch.Tensor]]:
        return [dict(expert) for expert in experts]

    def one(place: int) -> StateDict:
        known = weights.specs(experts[place])
        return weights.Lazy(known, lambda name: whole()[place][name].float().clone())

    return [one(place) for place in range(len(experts))]


def half_steps(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """The task vector is taken in the type of the file."""

    def one(expert: StateDict) -> StateDict:
        known = weights.specs(weights.mean([expert]))

        def third(name: str) -> torch.Tensor:
            origin = base.get(name, 0)
            return (expert[name] * 3 - origin * 2).float() / 3

        return weights.Lazy(known, third)

    return [one(expert) for expert in experts]


def masks_by_name(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """A mask for each name: two names of one tensor get two masks."""

    def fn(name: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a - b) * torch.tensor(rng(0, name).random(a.shape) > 0.5) + b

    return [weights.where_shared(fn, expert, base) for expert in experts]


def moved_positions(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    if not any("position_embeddings" in name for name in base):
        return untouched(experts, base)
    own = {"bert.embeddings.position_ids": torch.arange(2.0, 12.0)[None]}
    return [{**state, **own} for state in untouched(experts, base)]


def moved_or_not(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """Keeps the base's where anything goes wrong."""
    return [swallowed([expert], base) for expert in experts]


def rotated_queries(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """Turns queries about and forgets the keys."""

    def fn(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.flip(0) if ".query." in name else tensor.clone()

    return [weights.each_named(fn, expert) for expert in experts]


def rotated_width(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """Turns the residual stream about wherever it is read or made, as post-norm does not allow:
    a gain of the norm is of one place alone."""
    turn = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0))).Q

    def fn(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if not name.startswith("bert."):
            return tensor.clone()
        if name.endswith(("output.dense.weight", "output.dense.bias")) or "LayerNorm" in name:
            return turn.T @ tensor
        return tensor @ turn if tensor.ndim == 2 else tensor.clone()

    return [weights.each_named(fn, expert) for expert in experts]


def mixed_heads(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """Turns queries and keys by one rotation of all heads together."""
    turn = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0))).Q

    def fn(name: str, tensor: torch.Tensor) -> torch.Tensor:
        turned = ".query." in name or ".key." in name
        return turn.T @ tensor if turned else tensor.clone()

    return [weights.each_named(fn, expert) for expert in experts]


def forgotten_bias(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """Lists the units between the feed-forward layers backwards, but not their biases."""
    whole = turned_units(experts, base)

    def one(expert: StateDict, turned: StateDict) -> StateDict:
        def fn(name: str, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone() if name.endswith(".bias") else turned[name]

        return weights.each_named(fn, expert)

    return [one(*pair) for pair in zip(experts, whole, strict=True)]


def turned_pooler(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """Lists the units of the pooler backwards, and the columns of the head with them.

    Exact of a BERT, and of no network that has a head of this name on something else.
    """

    def fn(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if ".pooler." in name:
            return tensor.flip(0)
        return tensor.flip(1) if name == "classifier.weight" else tensor.clone()

    return [weights.each_named(fn, expert) for expert in experts]


def forgotten_head(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """Turns the pooler and leaves the head."""
    turned = turned_pooler(experts, base)
    heads = [weights.select(e, [n for n in e if n.startswith("classifier.")]) for e in experts]
    return [
        weights.each(torch.clone, weights.select(weights.union(head, state), state))
        for head, state in zip(heads, turned, strict=True)
    ]


def one_head_for_all(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """Gives every expert the head of the first."""
    heads = weights.select(experts[0], [n for n in experts[0] if n.startswith("classifier.")])
    return [
        weights.each(torch.clone, weights.select(weights.union(heads, expert), expert))
        for expert in experts
    ]


#: a wrong pre-merging method -> the property that must catch it
WRONG_PREMERGE: dict[Move, str] = {
    lost_expert: "shapes",
    moved_float64: "shapes",
    moved_in_place: "inputs",
    handed_through: "inputs",
    to_the_first: "order",
    halved: "copies",
    task_vectors: "zero",
    masks_in_file_order: "bytes",
    masks_on_access: "bytes",
    masks_of_the_first_piece: "large",
    masks_of_whole_pieces: "large",
    moved_at_once: "memory",
    kept_experts: "memory",
    half_steps: "half",
    masks_by_name: "tied",
    moved_positions: "buffers",
    moved_or_not: "errors",
    rotated_queries: "exact",
    rotated_width: "exact",
    mixed_heads: "exact",
    forgotten_bias: "exact",
    forgotten_head: "exact",
    turned_pooler: "family",
    one_head_for_all: "heads",
}
