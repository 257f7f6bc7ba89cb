"""Shell: what some mergers ask of data, computed on an expert's own rows, cached by content.

A statistic is one tensor per weight and holds no row of the data, so a file of it can be handed to
who merges without handing over the rows (RegMean, arXiv:2212.09849).

`gram`    inner products of the inputs of every linear layer, [in, in] in float64
`fisher`  the diagonal of the Fisher information, of the shape of every parameter, in float32
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.func import functional_call, vjp
from torch.nn.functional import log_softmax, one_hot

from harness import weights
from harness.checkpoints import (
    build_model,
    check_place,
    check_ready,
    classifier_on_meta,
    open_checkpoint,
)
from harness.data import load_rows, parse_task, take
from harness.encode import cache_dir, content_key, device_of, padded, tokenize
from harness.errors import BadData, BadOption, BadRecipe, BrokenCheckpoint
from harness.labels import columns
from harness.registry import MERGERS, options, parse_choice, resolve
from harness.rng import rng
from harness.types import Checkpoint, Choice, Rows, Scalar, StateDict, Task

SPLIT = "train90"
KEY = "merging-harness"
"""Where a file's own description stands in its metadata."""

Estimator: TypeAlias = Literal["exact", "empirical", "mergelm"]
Output: TypeAlias = Literal["classification", "regression", "multilabel", "tagging"]
IGNORED = -100
"""The label of a token, or of a class of a multi-label row, that nobody gave."""


@dataclass(frozen=True)
class Statistic:
    """A statistic in a file: what it is of, and its tensors by the name of the weight.

    `digest` is that of the weights it was computed on, `task` is `name@split`, `facts` what else
    the pass found out (rows of input, say).
    """

    kind: str
    options: Mapping[str, Scalar]
    task: str
    model: str
    digest: str
    facts: Mapping[str, Any]
    tensors: StateDict
    source: str

    def described(self) -> dict[str, Any]:
        """All but the tensors, as the record of a merge holds it."""
        values = {key: getattr(self, key) for key in ("kind", "task", "model", "digest")}
        return {**values, "options": dict(self.options), **self.facts}


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
    names = {module: name for name, module in model.named_modules() if _linear(module)}
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


def _linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear)


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
) -> dict[str, torch.Tensor]:
    """The diagonal of the Fisher information for every parameter, averaged over the examples.

    `examples` yields inputs and labels: of one example each, without padding, or of one batch each
    for `mergelm`.

    exact      sum over labels y of p(y) (d log p(y))^2, for every example: the definition. For a
               regression, which has no distribution of labels, the same as `empirical`.
    empirical  (d log p(y))^2 of the gold label y, for every example; (d (f - y)^2)^2 for a
               regression.
    mergelm    the published code's: the gradient of sum_y sqrt(p(y)) log p(y), with the root held
               fixed, summed over a batch and only then squared. Not the Fisher information: it has
               cross terms between examples and between labels, and an undecided binary example
               adds nothing. For comparison only.

    Labels of tokens, and of the classes of a multi-label row, are independent given the row: the
    information of a row is the sum of theirs, over those with a gold label (any but -100).
    Matena & Raffel 2022, arXiv:2111.09832.
    """
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    totals = {name: torch.zeros_like(p) for name, p in parameters.items()}
    sizes = []
    for inputs, labels in examples:
        table = None if estimator == "mergelm" else _word_rows(model, parameters, inputs)
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
        sizes.append(len(logits))
    # a short last batch counts as a whole one, as in the published code
    count = max(1, len(sizes) * max(sizes, default=1))
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
    model: torch.nn.Module,
    parameters: Mapping[str, torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
) -> _Words | None:
    embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
    names = [name for name, p in model.named_parameters() if p is embedding.weight]
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
        scale = 2 / len(logits) if estimator == "mergelm" else 2
        yield scale * (logits - labels.view_as(logits))
        return
    known = labels != IGNORED
    if output == "multilabel":
        p = logits.sigmoid()
        if estimator == "empirical":
            yield torch.where(known, labels - p, 0)
        elif estimator == "mergelm":
            roots = p.sqrt(), (1 - p).sqrt()
            yield torch.where(known, roots[0] * (1 - p) - roots[1] * p, 0)
        else:
            yield from _one_by_one((p * (1 - p)).sqrt() * known)
        return
    p = log_softmax(logits, -1).exp()
    # a row's own label does not matter where it is not read; of tokens, -100 says "no label"
    counted = known if output == "tagging" else torch.ones_like(known)
    if estimator == "empirical":
        gold = one_hot(labels.clamp(min=0).long(), logits.shape[-1])
        yield torch.where(counted[..., None], gold - p, 0)
    elif estimator == "mergelm":
        root = p.sqrt()
        yield torch.where(counted[..., None], root - p * root.sum(-1, keepdim=True), 0)
    else:
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
Progress: TypeAlias = Callable[[int], None]


@dataclass(frozen=True)
class Pass:
    """An expert and the rows it is to see, ready to run."""

    checkpoint: Checkpoint
    rows: Rows
    max_length: int
    device: str
    progress: Progress | None

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
    return gram(asked.model(), read, padding=padding, scale=gram_scale)


def fisher_pass(
    asked: Pass,
    *,
    examples: int = 1024,
    seed: int = 0,
    estimator: Estimator = "exact",
    batch_size: int = 16,
) -> Found:
    """The Fisher diagonal over `examples` rows; see `fisher`. Only `mergelm` has batches."""
    size = batch_size if estimator == "mergelm" else 1
    read = asked.batches(size, as_drawn=True)
    return fisher(asked.model(), read, asked.rows.task.kind, estimator=estimator), {}


PASSES: Mapping[str, Callable[..., Found]] = {"gram": gram_pass, "fisher": fisher_pass}
"""What a merger can ask for by a keyword of this name; the options are those of the pass."""


def drawn(task: Task, examples: Scalar, seed: Scalar, folder: str | Path | None) -> Rows:
    """The rows that a statistic is computed on: `examples` of `task@train90`, drawn by the seed.

    Experts of one task see the same rows. Raises BadData when there are fewer.
    """
    rows = load_rows(task, SPLIT, folder=folder)
    count = int(examples or 0)  # type: ignore[arg-type]
    if not 0 < count <= len(rows):
        raise BadData(
            f"{task}@{SPLIT} has {len(rows)} rows, found examples={count}; "
            f"expected 1 to {len(rows)}: set the option examples"
        )
    order = rng(int(seed or 0), "stats", task.name).permutation(len(rows))  # type: ignore[arg-type]
    return take(rows, [int(i) for i in order[:count]])


def collect(
    kind: str,
    chosen: Mapping[str, Scalar],
    checkpoint: Checkpoint,
    rows: Rows,
    *,
    device: str = "auto",
    max_length: int | None = None,
    progress: Progress | None = None,
) -> Statistic:
    """A statistic of a checkpoint with a head on drawn rows, from the cache or by a pass over them.

    `chosen` are all options of the pass.
    """
    task, digest = rows.task, weights.digest(checkpoint.weights)
    length = max_length or task.finetune.max_length
    # which output a gold label stands for is not part of the content where no label is read
    order = columns(task, checkpoint.labels or (), checkpoint.source)
    read = [order] if chosen.get("estimator") == "empirical" else []
    key = content_key(checkpoint, rows, digest, length, kind, dict(chosen), *read)
    path = cache_dir("statistics") / f"{key}.safetensors"
    if not path.is_file():
        asked = Pass(checkpoint, rows, length, device, progress)
        tensors, shared = PASSES[kind](asked, **chosen)
        description = {
            "kind": kind,
            "options": dict(chosen),
            "task": f"{task}@{rows.split}",
            "model": checkpoint.name,
            "digest": digest,
            "facts": {"rows": rows.digest, "max_length": length},
            "shared": {name: first for name, first in shared.items() if name != first},
            "versions": {name: version(name) for name in ("merging-harness", "torch")},
        }
        write_statistic(path, tensors, description)
    elif progress:
        progress(len(rows))
    return read_statistic(path)


# Files -------------------------------------------------------------------------------------


def write_statistic(
    path: Path, tensors: Mapping[str, torch.Tensor], description: Mapping[str, Any]
) -> None:
    """Write tensors and what they are into one safetensors file, at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".partial", delete=False) as file:
        partial = Path(file.name)
    try:
        save_file(dict(tensors), partial, metadata={KEY: json.dumps(description)})
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_statistic(path: str | Path) -> Statistic:
    """Open a file that `write_statistic` wrote; tensors are read when they are asked for.

    Raises BrokenCheckpoint, naming the file, for what is not one.
    """
    try:
        handle: Any = safe_open(path, framework="pt")
        said = json.loads((handle.metadata() or {}).get(KEY, "{}"))
        shapes = {name: tuple(handle.get_slice(name).get_shape()) for name in handle.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise BrokenCheckpoint(f"{path} does not exist; expected a file of statistics") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise BrokenCheckpoint(f"{path} cannot be read as safetensors: {error}") from error
    if not isinstance(said, dict) or not {"kind", "options", "task", "digest"} <= said.keys():
        raise BrokenCheckpoint(
            f"{path} does not say what statistics it holds; expected a file that "
            "`harness statistics` wrote"
        )
    places = {**{name: name for name in shapes}, **said.get("shared", {})}
    dtype = torch.float64 if said["kind"] == "gram" else torch.float32

    def read(name: str) -> torch.Tensor:
        tensor: torch.Tensor = handle.get_tensor(places[name])
        weights.check_finite(name, tensor, str(path))
        return tensor

    known = {name: weights.Spec(shapes[place], dtype) for name, place in places.items()}
    return Statistic(
        kind=str(said["kind"]),
        options=said["options"],
        task=str(said["task"]),
        model=str(said.get("model", "")),
        digest=str(said["digest"]),
        facts=said.get("facts", {}),
        tensors=weights.Lazy(known, read),
        source=str(path),
    )


def promised(kind: str, checkpoint: Checkpoint, obtain: Callable[[], Statistic]) -> StateDict:
    """The tensors that a statistic will have, by name and shape; it is obtained at the first read.

    A layer that never ran has the Gram matrix of no rows, which is zero.
    """
    known = shapes_of(kind, checkpoint)

    def read(name: str) -> torch.Tensor:
        found = obtain().tensors
        if name not in found:
            return torch.zeros(known[name].shape, dtype=known[name].dtype)
        if tuple(found[name].shape) != known[name].shape:
            raise BrokenCheckpoint(
                f"'{name}' of {obtain().source} is {tuple(found[name].shape)}, "
                f"expected {known[name].shape} as {checkpoint.source} has it"
            )
        return found[name]

    return weights.Lazy(known, read)


def shapes_of(kind: str, checkpoint: Checkpoint) -> dict[str, weights.Spec]:
    """Names and shapes of a statistic, from headers and the configuration alone."""
    if kind == "fisher":
        known = weights.specs(checkpoint.weights)
        moving = weights.floating(checkpoint.weights)
        return {name: weights.Spec(known[name].shape, torch.float32) for name in moving}
    model = classifier_on_meta(checkpoint.config, checkpoint.source)
    widths = {n: m.in_features for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    return {
        f"{name}.weight": weights.Spec((width, width), torch.float64)
        for name, width in widths.items()
    }


def statistic(
    expert: str | Path,
    *,
    task: str,
    out: str | Path,
    merger: str | Choice = "regmean",
    data_dir: str | Path | None = None,
    device: str = "auto",
    allow_pickle: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Statistic:
    """What a merger asks of an expert's data, computed and written to the file `out`.

    Handing over the file instead of the data is enough to take part in a merge. Raises BadRecipe
    for a merger that asks for nothing, OutputExists for a file that holds something else.
    """
    choice = parse_choice(merger) if isinstance(merger, str) else merger
    entry = MERGERS[choice.name]
    kinds = [need for need in entry.needs if need in PASSES]
    if len(kinds) != 1:
        needing = [name for name, one in MERGERS.items() if set(one.needs) & set(PASSES)]
        raise BadRecipe(f"{entry.name} needs no statistics; expected {' or '.join(needing)}")
    found, split = parse_task(task)
    if "@" in task and split != SPLIT:
        raise BadRecipe(f"statistics are computed on {found}@{SPLIT}, found '@{split}'")
    function = PASSES[kinds[0]]
    chosen = resolve("merger", choice, entry.function, function)
    chosen = {name: chosen[name] for name in options(function)}
    path = Path(out)
    check_place(path.absolute().parent)
    if path.exists():
        read_statistic(path)
    checkpoint = open_checkpoint(expert, allow_pickle=allow_pickle)
    check_ready(checkpoint)
    columns(found, checkpoint.labels or (), checkpoint.source)
    supply = Supply(kinds[0], chosen, [checkpoint], [found.name], (), data_dir, device)
    made = supply.obtain(0, progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    shutil.copyfile(made.source, partial)
    partial.replace(path)
    return read_statistic(path)


class Supply:
    """One statistic of every expert: from files, else from the cache, else by a pass.

    `chosen` are all options of the pass, `checkpoints` the experts as they go into the merge, with
    heads. Nothing but headers is read before `prepare` or the first tensor is asked for.
    """

    def __init__(
        self,
        kind: str,
        chosen: Mapping[str, Scalar],
        checkpoints: Sequence[Checkpoint],
        tasks: Sequence[str],
        files: Sequence[str] = (),
        data_dir: str | Path | None = None,
        device: str = "auto",
    ) -> None:
        self.kind = kind
        self.chosen = chosen
        self._checkpoints = checkpoints
        self._tasks = tasks
        self._files = [read_statistic(file) for file in files]
        self._data_dir = data_dir
        self._device = device
        self._found: dict[int, Statistic] = {}
        self._check()

    def promises(self) -> list[StateDict]:
        """The tensors of every expert's statistic, lazily."""
        return [
            promised(self.kind, checkpoint, partial(self.obtain, index))
            for index, checkpoint in enumerate(self._checkpoints)
        ]

    def prepare(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        """Obtain all: rows are read and checked for every expert before the first pass."""
        if not self._files:
            for index in range(len(self._checkpoints)):
                self._rows(index)
        for index in range(len(self._checkpoints)):
            self.obtain(index, progress)

    def described(self) -> list[dict[str, Any]]:
        """What was obtained, for the record."""
        return [self._found[index].described() for index in sorted(self._found)]

    def obtain(
        self, index: int, progress: Callable[[str, int, int], None] | None = None
    ) -> Statistic:
        """The statistic of one expert."""
        if index not in self._found:
            self._found[index] = (
                self._from_files(index) if self._files else self._collected(index, progress)
            )
        return self._found[index]

    def _check(self) -> None:
        count, given = len(self._checkpoints), len(self._files)
        if not given and len(self._tasks) != count:
            raise BadRecipe(
                f"{self.kind} statistics are computed on each expert's own task; name it with "
                "--tasks, or give files with --statistics"
            )
        for file in self._files:
            if file.kind != self.kind:
                raise BadRecipe(f"{file.source} holds {file.kind} statistics, expected {self.kind}")
            for name, value in self.chosen.items():
                if name != "seed" and file.options.get(name) != value:
                    raise BadOption(
                        f"{file.source} was computed with {name}={file.options.get(name)}, "
                        f"expected {value}: give that option, or another file"
                    )
        if given and given != count:
            raise BadRecipe(f"{given} files of statistics for {count} experts; expected one each")

    def _rows(self, index: int) -> Rows:
        task, _ = parse_task(self._tasks[index])
        return drawn(task, self.chosen["examples"], self.chosen["seed"], self._data_dir)

    def _collected(self, index: int, progress: Callable[[str, int, int], None] | None) -> Statistic:
        rows, checkpoint = self._rows(index), self._checkpoints[index]
        what = f"{self.kind} of {checkpoint.name}"
        step = partial(_advance, progress, what, len(rows)) if progress else None
        return collect(self.kind, self.chosen, checkpoint, rows, device=self._device, progress=step)

    def _from_files(self, index: int) -> Statistic:
        checkpoint = self._checkpoints[index]
        digest = weights.digest(checkpoint.weights)
        of_it = [file for file in self._files if file.digest == digest]
        if not of_it:
            known = ", ".join(f"{file.source} ({file.digest[:12]})" for file in self._files)
            raise BadRecipe(
                f"no file of statistics was computed on {checkpoint.source} as it goes into the "
                f"merge: its weights hash to {digest[:12]}, found {known}; expected those of this "
                "very model, after pre-merging methods if there are any"
            )
        if self._tasks and of_it[0].task.partition("@")[0] != self._tasks[index]:
            raise BadRecipe(
                f"{of_it[0].source} was computed on {of_it[0].task}, expected rows of "
                f"{self._tasks[index]}, the task of {checkpoint.source}"
            )
        return of_it[0]


def _advance(progress: Callable[[str, int, int], None], what: str, total: int, done: int) -> None:
    progress(what, done, total)
