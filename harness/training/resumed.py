"""Shell: the folder of an unfinished training, from which the same command resumes."""

from __future__ import annotations

import re
import shutil
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from harness.checkpoints.layout import TOKENIZER_FILES, WEIGHTS_FILE
from harness.errors import BrokenCheckpoint, NotFinite, OutputExists
from harness.files import as_json, read_json
from harness.folders import FILES, Layout, check_output

REQUEST_FILE, STATE_FILE = "request.json", "trainer_state.json"
ARCHIVES = ("optimizer.pt", "scheduler.pt", "rng_state.pth")
"""Files of a checkpoint that torch writes, as zip archives."""
OF_A_CHECKPOINT = (
    WEIGHTS_FILE,
    "pytorch_model.bin",
    "config.json",
    *ARCHIVES,
    "training_args.bin",
    STATE_FILE,
    *TOKENIZER_FILES,
)
"""What the Trainer writes into the folder of a checkpoint."""
UNFINISHED = Layout(
    "an unfinished training",
    REQUEST_FILE,
    # safetensors writes a file under the name .tmp and some letters first
    rf"checkpoint-\d+/({'|'.join(map(re.escape, OF_A_CHECKPOINT))}|\.tmp\w+)",
)


def workdir_of(out: Path) -> Path:
    """The folder that a run resumes from: beside the output or, if that is a link, its target."""
    place = out.resolve()
    return place.with_name(f"{place.name}.unfinished")


@contextmanager
def resumable_folder(
    out: Path, request: Mapping[str, Any], *, force: bool = False
) -> Iterator[Path]:
    """The folder of an unfinished run, in which the block trains.

    It stays when the run is interrupted, and when it fails after a checkpoint, on a full disk, say.
    It is removed when the block succeeds, and when it fails with nothing to resume: before the
    first checkpoint, or with weights that are not finite, which would come again. Raises
    OutputExists if a run with other arguments left a checkpoint; with `force` that is removed.
    """
    workdir = workdir_of(out)
    _clear(workdir, request, force)
    workdir.mkdir(exist_ok=True)
    UNFINISHED.write(workdir, request)
    try:
        yield workdir
    except Exception as error:
        if isinstance(error, NotFinite) or last_checkpoint(workdir) is None:
            _remove(workdir)
        elif not isinstance(error, BrokenCheckpoint):
            warnings.warn(
                f"{workdir} keeps the last checkpoint: the same command continues from it; to "
                "start anew, remove this folder",
                stacklevel=2,
            )
        raise
    _remove(workdir)


def _clear(workdir: Path, request: Mapping[str, Any], force: bool) -> None:
    """Remove the checkpoints of an older run, except the one that this run resumes from."""
    if workdir.is_symlink():
        raise OutputExists(f"{workdir} is a link, expected the folder of a run, or none: remove it")
    check_output(workdir, UNFINISHED, force=True)
    if last := last_checkpoint(workdir):
        old = {**UNFINISHED.read_marker(workdir), FILES: None}
        for name, before, now in _differing(old, {**as_json(request), FILES: None}):
            if not force:
                raise OutputExists(
                    f"{workdir} holds an unfinished training whose {name} is {before!s:.80}, found "
                    f"{now!s:.80}; give the old value to continue it; to start anew, remove this "
                    "folder or give finetune --force"
                )
            last = None
    _remove_checkpoints(workdir, but=last)


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(name, value before, value now) of all that differs; the name is the innermost one."""
    for name in {**old, **new}:
        before, now = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _differing(before, now)
        elif before != now:
            yield name, before, now


def _remove(workdir: Path) -> None:
    """Remove what a run left, its request last: an interrupted removal can be repeated."""
    _remove_checkpoints(workdir)
    (workdir / REQUEST_FILE).unlink(missing_ok=True)
    with suppress(OSError):  # there are files of somebody else in it
        workdir.rmdir()


def _remove_checkpoints(workdir: Path, but: Path | None = None) -> None:
    for path in workdir.glob("checkpoint-*"):
        if path != but:
            (path / STATE_FILE).unlink(missing_ok=True)  # first: without it the rest is not whole
            shutil.rmtree(path)


def last_checkpoint(workdir: Path) -> Path | None:
    """The newest checkpoint that is whole, or None. It has the state file, which the Trainer writes
    last, and its other files can be read, which a power cut may have truncated."""
    steps = {path: path.name.rpartition("-")[2] for path in workdir.glob("checkpoint-*")}
    numbered = [path for path, step in steps.items() if step.isdecimal()]
    for path in sorted(numbered, key=lambda path: int(steps[path]), reverse=True):
        with suppress(BrokenCheckpoint, SafetensorError, zipfile.BadZipFile, FileNotFoundError):
            read_json(path / STATE_FILE, "the state of a training")
            with safe_open(path / WEIGHTS_FILE, framework="pt"):
                if not any(map(_spoilt, (path / name for name in ARCHIVES))):
                    return path
    return None


def _spoilt(archive: Path) -> str | None:
    """The first damaged member of a zip file that torch wrote, or None."""
    with zipfile.ZipFile(archive) as file:
        return file.testzip()


@contextmanager
def saved_as_read(model: Any) -> Iterator[None]:
    """Have the Trainer write checkpoints under the tensor names by which it reads them.

    transformers writes a ViT, say, under the names of older releases, as in experts. The Trainer
    reads checkpoints by the names of the module, and leaves tensors that it does not find as they
    were.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):  # of other modules it writes the state dict
        yield
        return
    model.save_pretrained = partial(model.save_pretrained, save_original_format=False)
    try:
        yield
    finally:
        del model.save_pretrained


def check_names(checkpoint: Path, model: Any) -> None:
    """Raise BrokenCheckpoint if a parameter of the model is not in the checkpoint: the Trainer
    would go on with that of the base."""
    with safe_open(checkpoint / WEIGHTS_FILE, framework="pt") as file:
        saved = {*file.keys()}
    for name, _ in model.named_parameters():
        if name not in saved:
            raise BrokenCheckpoint(
                f"{checkpoint} has no '{name}', expected a checkpoint that these releases of the "
                f"harness and of transformers wrote; remove {checkpoint.parent}, and train again"
            )
