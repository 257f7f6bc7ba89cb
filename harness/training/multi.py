"""Shell: a base and several tasks -> one encoder under a head for each, trained together.

Tasks of one label space, such as corpora of emotions, share one head, as in their merges.
Every batch comes from one data set and updates the encoder and the head of that data set. The order
of batches is random, each data set contributes its own number of them, and an epoch sees every row
of every data set once (docs/methods.md#tasks-and-splits).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.utils.data import ConcatDataset, DataLoader, Sampler

from harness.checkpoints.build import HEAD_KEYS
from harness.checkpoints.families.family import Family
from harness.checkpoints.layout import WEIGHTS_FILE
from harness.checkpoints.named import tensors_of
from harness.errors import BadRecipe
from harness.files import read_json, write_json
from harness.kinds import kind_of, share_label_space
from harness.labels import same
from harness.rng import rng
from harness.training.single import Training, check_reads, collator, dataset, with_new_head
from harness.types import Checkpoint, Task

SHARED = ("learning_rate", "epochs", "warmup", "weight_decay")
"""Hyperparameters that all tasks of a run share. Batch size and maximum length are each task's."""


class MultiTask(torch.nn.Module):
    """Transformers' classifiers, one for each task, that share every module but their heads.

    With `one_head` they share the head as well.
    """

    accepts_loss_kwargs = False
    """Keeps the Trainer from passing arguments for the loss to `forward`."""

    def __init__(
        self,
        family: Family,
        classifiers: Mapping[str, Any],
        losses: Sequence[Any] = (),
        *,
        one_head: bool = False,
    ) -> None:
        super().__init__()
        self.tasks = tuple(classifiers)
        self.losses = losses or [None] * len(self.tasks)
        first, *others = classifiers.values()
        self.family, self.one_head = family, one_head
        for name, module in first.named_children():
            # DeBERTa's pooler stands beside the base model
            if one_head or not self.family.is_head(f"{name}."):
                for other in others:
                    setattr(other, name, module)
        self.classifiers = torch.nn.ModuleList(classifiers.values())
        self._again = _aliases(self)

    def forward(self, task: int, labels: torch.Tensor | None = None, **inputs: torch.Tensor) -> Any:
        """The output of the classifier of one task, to which all rows of the batch belong."""
        from transformers.modeling_outputs import SequenceClassifierOutput

        loss = self.losses[task]
        output = self.classifiers[task](labels=None if loss else labels, **inputs)
        if loss and labels is not None:
            output["loss"] = loss(output["logits"], labels)
        # an encoder-decoder returns more, which the Trainer would take for predictions
        return SequenceClassifierOutput(loss=output.get("loss"), logits=output["logits"])

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]  # torch has overloads
        """The state with every shared tensor once: safetensors refuses to write it twice."""
        state = super().state_dict(*args, **kwargs)
        return {name: tensor for name, tensor in state.items() if name not in self._again}

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load each shared tensor under all of its names."""
        again = {n: state_dict[own] for n, own in self._again.items() if own in state_dict}
        return super().load_state_dict({**state_dict, **again}, *args, **kwargs)

    def save_pretrained(self, folder: Path) -> None:
        """Write the encoder, and each head under heads/<task>/, like a merge with kept heads.

        With one head, write it all as transformers writes a classifier.
        """
        classifiers: list[Any] = list(self.classifiers)
        if self.one_head:
            classifiers[0].save_pretrained(folder)
            return
        is_head = self.family.is_head
        for name, classifier in zip(self.tasks, classifiers, strict=True):
            head_folder = folder / "heads" / name
            head_folder.mkdir(parents=True)
            save_tensors(classifier, head_folder, lambda name: name if is_head(name) else None)
            classifier.config.architectures = [type(classifier).__name__]
            classifier.config.save_pretrained(head_folder)
        save_tensors(classifiers[0], folder, lambda name: None if is_head(name) else name)
        config = read_json(folder / "heads" / self.tasks[0] / "config.json", "a configuration")
        bare = {key: value for key, value in config.items() if key not in HEAD_KEYS}
        write_json(folder / "config.json", bare)


def save_tensors(model: Any, folder: Path, called: Callable[[str], str | None]) -> None:
    """Write a model's tensors as transformers does, under names from `called`; None: left out."""
    tensors = {
        stored: tensor.detach().cpu().contiguous()
        for name, tensor in tensors_of(model).items()
        if (stored := called(name)) is not None
    }
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def _aliases(model: torch.nn.Module) -> dict[str, str]:
    """The first name of each shared tensor, by its further names."""
    first: dict[int, str] = {}
    tensors = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    return {name: first[id(t)] for name, t in tensors if first.setdefault(id(t), name) != name}


class TaskBatches(Sampler[list[int]]):
    """Batches of row numbers, each of one data set: every row once, in the order of the epoch.

    Rows are numbered consecutively through all data sets. The rows of each data set are shuffled,
    and batches have rows of similar length, as for a single expert; then all batches are shuffled.
    """

    def __init__(self, lengths: Sequence[Sequence[int]], sizes: Sequence[int], seed: int) -> None:
        self.lengths, self.sizes, self.seed, self.epoch = lengths, sizes, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the Trainer before each epoch, so that a resumed epoch has the same order."""
        self.epoch = epoch

    def __len__(self) -> int:
        return sum(-(-len(own) // size) for own, size in zip(self.lengths, self.sizes, strict=True))

    def __iter__(self) -> Iterator[list[int]]:
        from transformers.trainer_pt_utils import get_length_grouped_indices

        numpy_rng = rng(self.seed, "batches", self.epoch)
        generator = torch.Generator().manual_seed(int(numpy_rng.integers(2**63)))
        starts = accumulate(map(len, self.lengths), initial=0)
        batches = []
        for start, lengths, size in zip(starts, self.lengths, self.sizes, strict=False):
            order = get_length_grouped_indices(list(lengths), size, generator=generator)
            rows = [start + index for index in order]
            batches += [rows[i : i + size] for i in range(0, len(rows), size)]
        for index in numpy_rng.permutation(len(batches)):
            yield batches[index]


def check_shared(tasks: Sequence[Task]) -> None:
    """Raise BadRecipe if tasks differ in a field of `SHARED`, or in their unit (row or word)."""
    units = {kind_of(task).unit: task for task in tasks}
    if len(units) > 1:
        shown = ", ".join(f"{task} has one for each {unit}" for unit, task in units.items())
        raise BadRecipe(
            "the tasks have no encoder in common, expected a label for each row in all, or for "
            f"each word in all: {shown}"
        )
    for field in SHARED:
        values = {task.name: getattr(task.finetune, field) for task in tasks}
        if len(set(values.values())) > 1:
            shown = ", ".join(f"{task} {value}" for task, value in values.items())
            raise BadRecipe(
                f"the tasks differ in {field} ({shown}): give --{field.replace('_', '-')}"
            )


def multi_task(
    source: Checkpoint, parts: Sequence[Training], seed: int, head_seed: int
) -> Callable[..., Any]:
    """A function from arguments and callbacks to the Trainer of one encoder with a head for each
    task, or with one head for all tasks of one label space."""
    tasks = [part.task for part in parts]
    pad = collator(source, tasks[0])

    def collate(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        bare = [{key: value for key, value in row.items() if key != "task"} for row in rows]
        return {**pad(bare), "task": rows[0]["task"]}

    tokens = [dataset(part.train, source, part.settings.max_length) for part in parts]
    lengths = [list(rows["length"]) for rows in tokens]
    train = [_numbered(rows, index) for index, rows in enumerate(tokens)]
    heldout = {
        part.task.name: _numbered(dataset(part.heldout, source, part.settings.max_length), index)
        for index, part in enumerate(parts)
    }
    model = MultiTask(
        source.family,
        {part.task.name: with_new_head(source, part.task, head_seed) for part in parts},
        [kind_of(part.task).loss for part in parts],
        one_head=share_label_space(tasks)
        and all(same(task.labels, tasks[0].labels) for task in tasks),
    )
    for rows in (*train, *heldout.values()):
        check_reads(model, rows, collate, source)
    return partial(
        _trainer_of(TaskBatches(lengths, [part.settings.batch_size for part in parts], seed)),
        model=model,
        train_dataset=ConcatDataset(train),
        eval_dataset=heldout,
        data_collator=collate,
        processing_class=getattr(pad, "tokenizer", None),
    )


def _numbered(rows: Any, task: int) -> Any:
    """The rows of a data set with the number of their task as a column, without their lengths."""
    data = rows.remove_columns("length").with_format(None).add_column("task", [task] * len(rows))
    return data.with_format(rows.format["type"], **rows.format["format_kwargs"])


def _trainer_of(batches: TaskBatches) -> Any:
    """A Trainer class that trains on these batches. Made here, as the import takes seconds."""
    from transformers import Trainer

    class BatchTrainer(Trainer):  # type: ignore[misc]  # transformers has no types
        def get_train_dataloader(self) -> Any:
            loader = DataLoader(
                self.train_dataset, batch_sampler=batches, collate_fn=self.data_collator
            )
            return self.accelerator.prepare(loader)

    return BatchTrainer
