"""Shell: a base and rows -> transformers' Trainer, ready to train an expert of one task."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch.nn.functional import cross_entropy, mse_loss

from harness.checkpoints.build import (
    TEXT_HEAD,
    build_model,
    check_decoder,
    config_with_labels,
    encoder_of,
)
from harness.checkpoints.families.family import Family
from harness.checkpoints.network import classifier_on_meta, one_line_errors, without_warnings
from harness.checkpoints.settings import PADDING
from harness.checkpoints.text_heads import text_head
from harness.checkpoints.tokenizer import open_tokenizer
from harness.checkpoints.verbalizer import verbalizer_of
from harness.data.metrics import evaluation_module
from harness.errors import BadData, BadOption, NotFinite
from harness.hyperparameters import Hyperparameters
from harness.kinds import IGNORED, kind_of
from harness.passes.features import final_module
from harness.passes.placement import Placement, warn_if_slow
from harness.passes.prepared import Prepared, prepare, row_labels
from harness.readout import LAST_LINEAR, Readout
from harness.types import AUTO, Array64, Checkpoint, Rows, Task
from harness.weights import transposed

CHECK_EVERY = 100
"""Training steps between two checks that all weights are finite."""


ProgressStyle: TypeAlias = Literal["bars", "lines", "nothing"]
"""How a training shows its progress: bars on a terminal, a line for each tenth in a log."""


@dataclass(frozen=True)
class Training:
    """One task of a training: rows to train on, held-out rows, hyperparameters and readout."""

    train: Rows
    heldout: Rows
    settings: Hyperparameters
    readout: Readout = LAST_LINEAR

    @property
    def task(self) -> Task:
        return self.train.task


def single_task(source: Checkpoint, part: Training, head_seed: int) -> Callable[..., Any]:
    """A function from arguments and callbacks to the Trainer of an expert, with a new head."""
    from transformers import Trainer

    model = with_new_head(source, part.task, head_seed)
    if part.readout != LAST_LINEAR:
        model = ReadAs(model, part.readout, source.family)
    train, heldout = (
        dataset(rows, source, part.settings.max_length, part.readout)
        for rows in (part.train, part.heldout)
    )
    collate = collator(source, part.task)
    for rows in (train, heldout):
        check_reads(model, rows.remove_columns("length"), collate, source)
    return partial(
        Trainer,
        model=model,
        train_dataset=train,
        eval_dataset=heldout,
        data_collator=collate,
        processing_class=getattr(collate, "tokenizer", None),
        compute_loss_func=loss_of(part.task),
        compute_metrics=scores_of(part.task),
        # an encoder-decoder also returns the output of its encoder
        preprocess_logits_for_metrics=lambda out, _: out[0] if type(out) is tuple else out,
    )


def supervised(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of outputs [rows, classes]; for real-valued labels the mean squared error."""
    if labels.is_floating_point():
        return mse_loss(outputs[:, 0], labels)
    return cross_entropy(outputs, labels)


class ReadAs(torch.nn.Module):
    """A transformers classifier whose logits are computed through a readout."""

    def __init__(self, classifier: Any, readout: Readout, family: Family) -> None:
        super().__init__()
        self.classifier, self.readout, self.family = classifier, readout, family

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        labels: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """The logits and, with labels, the loss."""
        final = final_module(self.classifier, self.family, "the expert")
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        logits = self.readout.run(self.classifier, final, inputs).logits
        if labels is None:
            return {"logits": logits}
        return {"loss": supervised(logits, labels), "logits": logits}

    def save_pretrained(self, folder: Path) -> None:
        """Write the classifier, as transformers does."""
        self.classifier.save_pretrained(folder)


def with_new_head(source: Checkpoint, task: Task, seed: int) -> Any:
    """The base under a head for the task that the seed initialises, whatever head it came with.

    Two families get no new head. A CLIP keeps its head made of the task's texts; neither that nor
    the projection is trained. A T5 under label words is trained as it is, with its lm_head.

    Raises BrokenCheckpoint for a base without a whole encoder.
    """
    from transformers import set_seed

    if verbalizer_of(source):
        return build_model(source.config, source.weights, source.source)
    kind, encoder = kind_of(task), encoder_of(source, unit=kind_of(task).unit)
    config = config_with_labels(encoder.config, task.labels or ("value",))
    config["problem_type"] = kind.problem_type
    # transformers' own class, whose matrices are as in a file
    state = dict(transposed(encoder.weights, source.family.is_transposed))
    fixed = source.family.whole is not None
    if fixed:
        head = text_head(source, task)
        state |= head.weights
        config[TEXT_HEAD] = head.config[TEXT_HEAD]
    planned: Any = classifier_on_meta(config, source.source, unit=kind.unit)
    check_decoder(source, planned, kind.unit)
    set_seed(seed)
    what = f"{source.source} cannot be loaded"
    # without warnings, as a new head is intended
    with one_line_errors(what, "expected an encoder in float32"), without_warnings():
        # from tensors, since from_pretrained on the folder would read a head in it
        model = type(planned).from_pretrained(
            None, config=copy.deepcopy(planned.config), state_dict=state, dtype=torch.float32
        )
    for name, parameter in model.named_parameters() if fixed else ():
        parameter.requires_grad_(name.startswith(source.family.prefix))
    return model


def check_reads(
    model: Any, rows: Any, collate: Callable[[Sequence[Any]], Mapping[str, Any]], source: Checkpoint
) -> None:
    """Raise BrokenCheckpoint if the model fails on inputs that its own processor makes of the rows.

    Tried are the row with the most tokens, which may exceed the model's positions, and that with
    the highest token id, which may have no embedding. The tokenizer may have no padding token.
    """
    picked, what = [0], "an image"
    if "input_ids" in rows.column_names:
        tokens = list(rows["input_ids"])
        counts, ids = [len(row) for row in tokens], [max(row, default=0) for row in tokens]
        picked = [int(np.argmax(counts)), int(np.argmax(ids))]
        what = f"a row of {max(counts)} tokens with ids up to {max(ids)}"
    what = f"{source.source} cannot read {what}"
    with one_line_errors(what, "see its config.json and --max-length"), torch.no_grad():
        model.eval()(**collate([rows[index] for index in picked]))


def arguments(
    parts: Sequence[Training],
    workdir: Path,
    progress_style: ProgressStyle,
    *,
    seed: int,
    bf16: bool,
    where: torch.device,
) -> Any:
    """The Trainer's arguments, by which it trains on the one device `where`."""
    from transformers import TrainingArguments

    settings = parts[0].settings
    batches = sum(-(-len(part.train) // part.settings.batch_size) for part in parts)  # per epoch
    args = TrainingArguments(
        output_dir=str(workdir),
        seed=seed,
        learning_rate=settings.learning_rate,
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=2 * settings.batch_size,
        warmup_steps=round(settings.warmup * batches * settings.epochs),
        weight_decay=settings.weight_decay,
        lr_scheduler_type="linear",
        # the data sets of several tasks have no unused columns
        remove_unused_columns=len(parts) == 1,
        train_sampling_strategy="random" if parts[0].task.image else "group_by_length",
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        logging_strategy="epoch",
        logging_nan_inf_filter=False,  # log a NaN loss, not an average without it
        report_to="none",
        disable_tqdm=progress_style != "bars",
        bf16=bf16,
        use_cpu=where.type == "cpu",
        dataloader_pin_memory=False,
    )
    if where.type == "cuda":
        # by default the Trainer takes the first GPU or, with a batch for each, all GPUs
        torch.cuda.set_device(where)
        args.distributed_state.device = args.__dict__["_setup_devices"] = where
        args._n_gpu = 1
    return args


def training_device(placement: Placement) -> torch.device:
    """The device of a training: one GPU if there are several; with `auto`, also that of a Mac."""
    if placement.device == AUTO and torch.backends.mps.is_available():
        return torch.device("mps")
    found = placement.where
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


def check_bf16(where: torch.device) -> None:
    """Raise BadOption for a GPU without bfloat16; warn of a CPU on which it is slow."""
    from transformers.utils import is_torch_bf16_gpu_available

    if where.type == "cpu":
        warn_if_slow("bfloat16", "--bf16", gradients=True)
    elif not is_torch_bf16_gpu_available():
        raise BadOption("--bf16 needs a GPU with bfloat16, and this one has none; leave it out")


# Divergence --------------------------------------------------------------------------------


def watch(progress_style: ProgressStyle) -> Any:
    """A callback of the Trainer that raises NotFinite when the loss or the weights are not finite.

    It checks weights every `CHECK_EVERY` steps and before each evaluation, whose metrics would
    fail. If `progress_style` is "lines", it prints ten times how many steps are done.
    """
    from transformers import TrainerCallback

    class Watch(TrainerCallback):  # type: ignore[misc]  # transformers has no types
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            done, steps = state.global_step, state.max_steps
            if done % CHECK_EVERY == 0:
                check_weights(kwargs["model"], state)
            if progress_style == "lines" and 10 * done // steps > 10 * (done - 1) // steps:
                print(f"trained {done} of {steps} steps ({100 * done // steps} %)", flush=True)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            check_weights(kwargs["model"], state)

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            for name, value in kwargs["logs"].items():
                if (name == "loss" or name.endswith("_loss")) and not np.isfinite(value):
                    raise _diverged(f"the {name} is {value}", state)

    return Watch()


def check_weights(model: torch.nn.Module, state: Any) -> None:
    """Raise NotFinite, naming the tensor and the step, for weights that are NaN or infinite."""
    for name, tensor in model.named_parameters():
        if not torch.isfinite(tensor).all():
            raise _diverged(f"'{name}' has NaN or infinite entries", state)


def predictions(task: Task, outputs: Any) -> Array64:
    """Predicted labels from the Trainer's outputs for rows; for words, of those the model saw.

    Raises NotFinite for outputs that are NaN or infinite.
    """
    kind = kind_of(task)
    logits = kind.labelled(outputs.predictions, outputs.label_ids)
    if not np.isfinite(logits).all():
        raise NotFinite(
            f"outputs for {task} are NaN or infinite; nothing is written: try a lower "
            "--learning-rate"
        )
    return kind.predicted(logits)


def scores_of(task: Task) -> Callable[[Any], dict[str, float]]:
    """A function that computes the task's metrics of held-out rows for the Trainer's log.

    For words, on those that the model saw.
    """
    metric, kind = evaluation_module(task), kind_of(task)

    def scores(outputs: Any) -> dict[str, float]:
        label_ids = outputs.label_ids
        predicted, labels = predictions(task, outputs), kind.labelled(label_ids, label_ids)
        units = (label_ids != IGNORED).sum(axis=1) if kind.split_into_words else None
        try:
            return dict(metric.compute(predictions=predicted, references=labels, units=units))
        except BadData:  # a metric is undefined on these rows: the log lacks them
            return {}

    return scores


def loss_of(task: Task) -> Callable[..., Any] | None:
    """The loss, as the Trainer calls it, of a kind whose loss transformers lacks; else None."""
    own = kind_of(task).loss
    return None if own is None else lambda outputs, labels, **_: own(outputs["logits"], labels)


def collator(source: Checkpoint, task: Task) -> Any:
    """The collator that makes batches: it pads inputs, and labels of tokens with -100.

    It pads as an evaluation does: at the end and, for a decoder, with its configuration's token, by
    which its classifier finds the last token of a row. The tokenizer may name another, or none.
    """
    from transformers import (
        DataCollatorForTokenClassification,
        DataCollatorWithPadding,
        default_data_collator,
    )

    if task.image:
        return default_data_collator
    words = kind_of(task).split_into_words
    tokenizer = open_tokenizer(source.processor, words=words)
    tokenizer.padding_side = "right"
    padding = source.config.get(PADDING)
    if source.family.decoder and padding is not None:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(padding)
    return (DataCollatorForTokenClassification if words else DataCollatorWithPadding)(tokenizer)


def _diverged(what: str, state: Any) -> NotFinite:
    return NotFinite(
        f"the training diverged: {what} at step {state.global_step} of {state.max_steps}, expected "
        "finite numbers; nothing is written: try a lower --learning-rate"
    )


# Rows --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageTransform:
    """A transform of a `datasets.Dataset`: row numbers become pixels when a batch is asked for.

    The datasets library copies and hashes transforms: copies share the images, and `digest` stands
    for them in the hash.
    """

    prepared: Prepared
    digest: str

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch with pixels in place of row numbers."""
        columns = [name for name in self.prepared.columns if name in batch]
        return {**batch, **{name: self.prepared.make(batch[name])[name] for name in columns}}

    def __deepcopy__(self, memo: object) -> ImageTransform:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (self.digest,)


def dataset(rows: Rows, source: Checkpoint, max_length: int, readout: Readout = LAST_LINEAR) -> Any:
    """The rows as a `datasets.Dataset`: model inputs such as token ids, labels and lengths.

    An image is stored as the number of its row, and loaded when a batch is asked for.
    """
    from datasets import Dataset

    prepared = prepare(source, rows, max_length, readout)
    count = kind_of(rows.task).output_count(rows.task)
    labels = row_labels(prepared, rows, range(count), count)
    data = Dataset.from_dict({**prepared.columns, "labels": labels, "length": prepared.costs})
    if not rows.task.image:
        return data
    return data.with_transform(ImageTransform(prepared, rows.digest))
