"""Shell: a folder or a Hub id -> `Checkpoint`; a merge -> a folder. safetensors only."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open

from harness.errors import BrokenCheckpoint, IncompatibleWeights
from harness.files import LARGEST, Layout, read_json, read_text
from harness.provenance import EXPERT_FILE, MERGE_FILE, recorded_tasks
from harness.types import Checkpoint, StateDict
from harness.weights import Lazy, Spec, floating, specs, union

HEAD = re.compile(r".*(classifier|pre_classifier|classification_head)\.")
"""What the reference repositories call a head. The BERT and DeBERTa poolers are encoder."""
OF_THE_HEAD = ("id2label", "label2id", "problem_type", "num_labels", "architectures")
"""What a configuration says of the head alone."""

LAYERS = re.compile(r"(^|_)n?_?(layers?|groups?|group_num|blocks?|experts)$")
"""Numbers of a configuration that say how many layers a model has, or parts of layers."""

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
MERGEKIT_FILE = "mergekit_config.yml"
VOCABULARY_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spm.model",
    "sentencepiece.bpe.model",
    "spiece.model",
)
TOKENIZER_FILES = (
    *VOCABULARY_FILES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
)
MODEL_FILES = (
    SINGLE,
    INDEX,
    "model-*-of-*.safetensors",
    "config.json",
    "README.md",
    *TOKENIZER_FILES,
    f"heads/*/{SINGLE}",
    "heads/*/config.json",
)
"""Patterns of all that a folder of a model holds that this program writes."""
MERGE = Layout("a merge", MERGE_FILE, (MERGE_FILE, *MODEL_FILES))
EXPERT = Layout("an expert", EXPERT_FILE, (EXPERT_FILE, *MODEL_FILES))
DTYPES = {
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""By safetensors' names, in the order in which it lays tensors out in a file."""


def is_head(name: str) -> bool:
    """Whether a tensor of this name belongs to the head."""
    return HEAD.match(name) is not None


def open_checkpoint(
    source: str | Path, *, revision: str | None = None, allow_pickle: bool = False
) -> Checkpoint:
    """Open a Hugging Face folder or Hub id; headers are read, tensors only when asked for.

    Raises BrokenCheckpoint, naming file and cause, for what is not a complete, safe checkpoint.
    """
    path = Path(source) if os.path.exists(source) else _download(str(source), revision)
    config = read_json(path / "config.json", "a configuration")
    refuse_code(config, path / "config.json")
    check_files(path)
    if not isinstance(config.get("model_type"), str):
        raise BrokenCheckpoint(f"{path / 'config.json'} has no model_type, expected its name")
    weights = open_weights(path, allow_pickle=allow_pickle)
    check_counts(config, weights, str(path / "config.json"))
    has_head = any(is_head(name) for name in weights)
    return Checkpoint(
        source=str(source),
        path=path,
        config=config,
        weights=weights,
        labels=labels_of(config, str(path / "config.json")) if has_head else None,
        tasks=recorded_tasks(path),
    )


def check_counts(config: Mapping[str, Any], state: StateDict, where: str) -> None:
    """Raise BrokenCheckpoint for more layers or labels than the weights can have.

    A model of a thousand million layers would never be built, be it without a weight.
    """
    known = specs(state)
    widest = max((max(spec.shape, default=0) for spec in known.values()), default=0)
    for key, value in config.items():
        most = len(known) if LAYERS.search(key) else widest if key == "num_labels" else None
        number = isinstance(value, int | float)
        if most is not None and number and not value <= max(most, 1000):
            raise BrokenCheckpoint(
                f"{where} has the {key} {value!r:.40}, expected at most {most} as its weights have "
                f"{len(known)} tensors, of a width of {widest} at most"
            )


def labels_of(config: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Label names in the order of the outputs; none for regression.

    A configuration without names stands for transformers' default, two generic ones.
    """
    names = config.get("id2label")
    try:
        ordered = {int(index): str(name) for index, name in (names or {}).items()}
        count = int(config.get("num_labels") or len(ordered) or 2)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BrokenCheckpoint(
            f"{where} has the id2label {names!r:.200}, expected a name for each of 0, 1, ..."
        ) from error
    if config.get("problem_type") == "regression" or count == 1:
        return ()
    return tuple(ordered.get(index, f"LABEL_{index}") for index in range(count))


def _download(source: str, revision: str | None) -> Path:
    if source.count("/") > 1 or source.startswith((".", "/", "~")):
        raise BrokenCheckpoint(f"{source} does not exist; expected a folder or a Hub id")
    from huggingface_hub import snapshot_download

    patterns = [*MODEL_FILES, "*.safetensors", MERGE_FILE, EXPERT_FILE, MERGEKIT_FILE]
    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the Hub client raises a different type for each way to fail
        raise BrokenCheckpoint(
            f"'{source}' is no local folder and could not be fetched from the Hub "
            f"({type(error).__name__}); expected a folder with {SINGLE} and config.json"
        ) from error


def open_weights(path: Path, *, allow_pickle: bool = False) -> StateDict:
    """The lazy state dict of a folder: one safetensors file, or shards with their index."""
    if (path / SINGLE).is_file():
        return open_file(path / SINGLE)
    if (path / INDEX).is_file():
        placed = read_json(path / INDEX, "a shard index").get("weight_map")
        if not isinstance(placed, dict) or not placed:
            raise BrokenCheckpoint(f"{path / INDEX} has no weight_map, expected names and shards")
        shards = sorted(set(map(str, placed.values())))
        if outside := [shard for shard in shards if Path(shard).name != shard]:
            raise BrokenCheckpoint(
                f"{path / INDEX} names the shard {outside[0]}, expected a file beside it"
            )
        state = union(*(open_file(path / shard) for shard in shards))
        for name, shard in placed.items():
            if name not in state:
                raise BrokenCheckpoint(
                    f"{path / shard} has no tensor '{name}', which {INDEX} lists"
                )
        return state
    pickles = [name for name in PICKLES if (path / name).is_file()]
    if pickles and allow_pickle:
        return _open_pickle(path / pickles[0])
    if pickles:
        raise BrokenCheckpoint(
            f"{path} holds a pickle ({pickles[0]}), which can run code when read; expected "
            f"{SINGLE}: convert it, or read its tensors only with --allow-pickle"
        )
    raise BrokenCheckpoint(f"{path} holds no weights; expected {SINGLE} or {INDEX}")


def open_file(path: Path) -> StateDict:
    """The lazy state dict of one safetensors file. Raises BrokenCheckpoint, naming it."""
    if os.path.exists(path) and not path.is_file():  # whoever opens a pipe waits for its other end
        raise BrokenCheckpoint(f"{path} is no file, expected a safetensors file")
    try:
        handle: Any = safe_open(path, framework="pt")
        found = {}
        names = handle.keys()
        for name in names:
            part = handle.get_slice(name)
            kind = part.get_dtype()
            if kind not in DTYPES:
                raise BrokenCheckpoint(f"'{name}' of {path} is {kind}, expected float or integer")
            found[name] = Spec(tuple(part.get_shape()), DTYPES[kind])
    except FileNotFoundError:
        raise BrokenCheckpoint(f"{path} is missing; expected a safetensors file") from None
    except (SafetensorError, OSError, MemoryError) as error:  # memory: the file is mapped whole
        raise BrokenCheckpoint(f"{path} cannot be read as safetensors: {error}") from error
    return _modern(Lazy(found, handle.get_tensor))


def _open_pickle(path: Path) -> StateDict:
    if path.suffix == ".json":
        raise BrokenCheckpoint(f"{path}: sharded pickles are not read; convert to safetensors")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch raises many types for a broken or unsafe pickle
        raise BrokenCheckpoint(f"{path} cannot be read as weights only: {error}") from error
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in state.items()
    ):
        raise BrokenCheckpoint(f"{path} holds no tensors by name, expected a state dict")
    return _modern(state)


def _modern(state: StateDict) -> StateDict:
    """LayerNorm's gamma and beta of TensorFlow days under the names transformers loads them by."""
    renamed = {
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
            "LayerNorm.beta", "LayerNorm.bias"
        ): name
        for name in state
    }
    found = specs(state)
    return Lazy({new: found[old] for new, old in renamed.items()}, lambda new: state[renamed[new]])


def aligned_base(base: Checkpoint, expert: Checkpoint) -> Checkpoint:
    """The base under the names of the expert.

    A pretrained encoder is stored with or without the prefix of the model class ('bert.'), and
    with a pretraining head or none; tensors the expert has no place for are left out.
    Raises IncompatibleWeights when an encoder tensor of the expert is missing from the base.
    """
    found = specs(base.weights)
    place: dict[str, str] = {}
    for name in expert.weights:
        bare = name.partition(".")[2]
        for candidate in (name, bare):
            if candidate in found:
                place[name] = candidate
                break
    weights = Lazy(
        {new: found[old] for new, old in place.items()}, lambda new: base.weights[place[new]]
    )
    return replace(base, weights=weights)


def new_in_experts(base: Checkpoint | None, expert: Checkpoint) -> list[str]:
    """Names of the expert's tensors that no pretraining has seen: the head, and a pooler that the
    base was published without (DeBERTa-v3).

    Raises IncompatibleWeights for any other tensor that the base lacks.
    """
    fresh = []
    for name in expert.weights:
        if is_head(name):
            fresh.append(name)
        elif base and name not in base.weights and weights_take_part(expert, name):
            if not _is_pooler(name):
                raise IncompatibleWeights(
                    f"the base {base.source} has no tensor '{name}', which {expert.source} has; "
                    "expected the checkpoint that the experts were fine-tuned from"
                )
            fresh.append(name)
    return fresh


def _is_pooler(name: str) -> bool:
    return ".pooler." in name or name.startswith("pooler.")


def encoder_of(base: Checkpoint) -> Checkpoint:
    """The base without a head, under the names of transformers' classifier.

    Left-over tensors of pretraining are left out, and it may have no pooler. Raises
    BrokenCheckpoint, naming it, for any other tensor of the encoder that is missing or of another
    shape or kind: transformers would make it up at random.
    """
    config = {key: value for key, value in base.config.items() if key not in OF_THE_HEAD}
    model = classifier_on_meta(config, base.source)
    wanted = {name: tensor for name, tensor in model.state_dict().items() if not is_head(name)}
    encoder = aligned_base(base, replace(base, weights=wanted))
    known = specs(encoder.weights)
    for name, spec in specs(wanted).items():
        if name not in known:
            if _is_pooler(name):
                continue
            raise BrokenCheckpoint(
                f"{base.source} has no tensor '{name}', expected a whole encoder to train on"
            )
        same_kind = known[name].dtype.is_floating_point == spec.dtype.is_floating_point
        if known[name].shape != spec.shape or not same_kind:
            raise BrokenCheckpoint(
                f"{base.source}: '{name}' is {known[name].shape} of {known[name].dtype}, "
                f"expected {spec.shape} of {spec.dtype} as config.json says"
            )
    return replace(encoder, config=config, labels=None)


def weights_take_part(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a tensor is a parameter, as far as its type tells."""
    return specs(checkpoint.weights)[name].dtype.is_floating_point


def build_model(config: Mapping[str, Any], state: StateDict, what: str) -> torch.nn.Module:
    """A transformers sequence classifier with exactly these weights, in eval mode, in float32.

    Raises BrokenCheckpoint when a tensor of the model is missing, left over or of another shape:
    nothing is ever newly initialised.
    """
    check_counts(config, state, what)
    model = _classifier(config, what)
    _check_tensors(model, state, what)
    tensors = {name: state[name] for name in floating(state)}
    model.load_state_dict(tensors, strict=False)
    return model.float().eval()


@contextmanager
def quiet() -> Iterator[None]:
    """Without the bars that transformers draws while it loads and writes a file."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def _silent() -> Iterator[None]:
    """Without the warnings that transformers logs, whole configurations among them."""
    from transformers.utils import logging

    said = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(said)


def refuse_code(config: Mapping[str, Any], where: Path) -> None:
    """Raise BrokenCheckpoint for a configuration that names code of its own (`auto_map`)."""
    if config.get("auto_map"):
        raise BrokenCheckpoint(
            f"{where} names code of its own (auto_map), and no code of a checkpoint is ever run; "
            "expected a model and a tokenizer that transformers has itself"
        )


def check_tokenizer(path: Path) -> None:
    """Raise BrokenCheckpoint without a vocabulary: transformers would make up an empty one."""
    check_files(path)
    if not any((path / name).is_file() for name in VOCABULARY_FILES):
        raise BrokenCheckpoint(
            f"{path} has no tokenizer; expected its vocabulary beside the weights: "
            f"{', '.join(VOCABULARY_FILES)}"
        )


def check_ready(checkpoint: Checkpoint) -> None:
    """Raise BrokenCheckpoint for a checkpoint that could not be run, without reading a tensor."""
    check_tokenizer(checkpoint.path)
    if (digest := tokenizer_digest(checkpoint.path)) not in _OPENED:
        open_tokenizer(checkpoint.path)
        _OPENED.add(digest)
    check_counts(checkpoint.config, checkpoint.weights, checkpoint.source)
    model = classifier_on_meta(checkpoint.config, checkpoint.source)
    _check_tensors(model, checkpoint.weights, checkpoint.source)


def classifier_on_meta(config: Mapping[str, Any], what: str) -> torch.nn.Module:
    """The classifier of a configuration with no weights in memory: its modules and shapes."""
    with torch.device("meta"):
        return _classifier(config, what)


def _classifier(config: Mapping[str, Any], what: str) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    left_out = ("model_type", "dtype", "torch_dtype")
    values = {key: value for key, value in config.items() if key not in left_out}
    try:
        with _silent():
            settings = AutoConfig.for_model(config["model_type"], **values)
            model: torch.nn.Module = AutoModelForSequenceClassification.from_config(settings)
    except Exception as error:  # transformers raises many types for values it cannot use
        reason = " ".join(str(error).split()).partition(". ")[0]
        raise BrokenCheckpoint(
            f"{what}: no classifier can be made from its config.json: {reason}"
        ) from error
    return model


def _check_tensors(model: torch.nn.Module, state: StateDict, what: str) -> None:
    known = specs(state)
    found = {name: known[name].shape for name in floating(state)}
    kind, expected = type(model).__name__, {n: tuple(p.shape) for n, p in model.named_parameters()}
    for name, shape in expected.items():
        if name not in found:
            raise BrokenCheckpoint(f"{what} has no tensor '{name}', expected those of {kind}")
        if found[name] != shape:
            raise BrokenCheckpoint(
                f"{what}: '{name}' is {found[name]}, expected {shape} as config.json says"
            )
    buffers = {name for name, _ in model.named_buffers()}
    for name in found:
        if name not in expected and name not in buffers:
            raise BrokenCheckpoint(
                f"{what} has an unknown tensor '{name}', expected those of {kind}"
            )


# Tokenizers --------------------------------------------------------------------------------


def open_tokenizer(path: Path) -> Any:
    """The tokenizer in a folder, as transformers makes it, without any code of the folder's own.

    Raises BrokenCheckpoint in one line for whatever it cannot make.
    """
    from transformers import AutoTokenizer

    check_tokenizer(path)
    with _using_tokenizer(path):
        tokenizer = AutoTokenizer.from_pretrained(
            path, trust_remote_code=False, local_files_only=True
        )
        last = max(tokenizer.get_vocab().values(), default=0)
    if last > LAST_TOKEN:
        raise BrokenCheckpoint(
            f"{path} has a tokenizer with the token {last}, expected {LAST_TOKEN} at most"
        )
    return tokenizer


LAST_TOKEN = 2**24
"""The largest number of a token. Whoever writes a tokenizer counts up to it; the largest
vocabularies have 2**20 tokens."""
_OPENED: set[str] = set()
"""Tokenizers that could be opened, by content: one and the same lies in many folders."""


def tokenizer_digest(path: Path) -> str:
    """A hash of the tokenizer's files."""
    state = xxhash.xxh3_128()
    for name in TOKENIZER_FILES:
        if (path / name).is_file():
            state.update(name.encode())
            state.update((path / name).read_bytes())
    return str(state.hexdigest())


def token_ids(
    texts: Sequence[Sequence[str]],
    tokens: Callable[[Sequence[list[str]]], dict[str, list[list[int]]]],
    path: Path,
) -> dict[str, list[list[int]]]:
    """Token ids, mask and the like of rows, as a tokenizer makes them.

    `texts` are the first segments of all rows and, for pairs, the second ones; `path` is where the
    tokenizer was. Raises BrokenCheckpoint in one line for whatever it cannot do with them.
    """
    segments = [list(segment) for segment in texts]
    with _using_tokenizer(path):
        encoded = tokens(segments)
    if not {"input_ids", "attention_mask"} <= encoded.keys():
        raise BrokenCheckpoint(
            f"the tokenizer of {path} makes {', '.join(encoded) or 'nothing'} of a row, expected "
            "input_ids and attention_mask"
        )
    return encoded


@contextmanager
def _using_tokenizer(path: Path) -> Iterator[None]:
    """Whatever goes wrong in a tokenizer as BrokenCheckpoint, in one line."""
    try:
        with _unheard():
            yield
    # every file and every field has a way to fail of its own, some of them a panic of Rust code,
    # which is no Exception
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BrokenCheckpoint(
            f"{path} has no tokenizer that can be read ({reason:.300}); expected its files beside "
            "the weights"
        ) from error


@contextmanager
def _unheard() -> Iterator[None]:
    """What is written to stderr is lost where the block fails, and comes after it where not.

    Rust code that panics prints a trace by itself, beside the error that it raises.
    """
    try:
        shown = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    with tempfile.TemporaryFile() as kept:
        sys.stderr.flush()
        os.dup2(kept.fileno(), 2)
        try:
            yield
            sys.stderr.flush()
        finally:
            os.dup2(shown, 2)
            os.close(shown)
        kept.seek(0)
        sys.stderr.write(kept.read().decode("utf-8", "replace"))


def check_files(folder: Path) -> None:
    """Raise BrokenCheckpoint for a tokenizer with code, and for a file of it that is none, is too
    large, or is a link to outside of the checkpoint.

    What a link points to would be copied into every merge. The files of a Hub snapshot are links
    into the store beside it.
    """
    settings = folder / "tokenizer_config.json"
    if settings.is_file():
        refuse_code(read_json(settings, "a tokenizer's configuration"), settings)
    root = folder.resolve()
    root = root.parents[1] if root.parent.name == "snapshots" else root
    for path in (folder / name for name in TOKENIZER_FILES if os.path.lexists(folder / name)):
        place = Path(os.path.realpath(path))  # of a link to itself, too
        if path.is_symlink() and not place.is_relative_to(root):
            raise BrokenCheckpoint(
                f"{path} is a link to {place}, outside of the checkpoint; expected the file itself"
            )
        if not place.is_file() or place.stat().st_size > LARGEST:
            raise BrokenCheckpoint(f"{path} is no file of at most {LARGEST} bytes, expected one")


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files, as they are."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def vocabulary(path: Path) -> dict[str, int] | None:
    """Tokens and their ids, from the tokenizer's own files; None where none of them is there."""
    if (path / "tokenizer.json").is_file():
        model = read_json(path / "tokenizer.json", "a tokenizer").get("model")
        words = model.get("vocab") if isinstance(model, dict) else None
        if isinstance(words, list):
            return _tokens({token: i for i, token in enumerate(map(_first, words))}, path)
        if words is not None:
            return _tokens(words, path)
    if (path / "vocab.txt").is_file():
        lines = read_text(path / "vocab.txt", "a vocabulary").splitlines()
        return {word: index for index, word in enumerate(lines)}
    if (path / "vocab.json").is_file():
        return _tokens(read_json(path / "vocab.json", "a vocabulary"), path)
    return None


def _first(entry: object) -> str:
    """The token of an entry of a vocabulary that is a list: token and score."""
    return str(entry[0]) if isinstance(entry, list) and entry else str(entry)


def _tokens(words: object, path: Path) -> dict[str, int]:
    """Tokens with their numbers. Raises BrokenCheckpoint for what is not that."""
    if not isinstance(words, dict):
        raise BrokenCheckpoint(f"{path} has the vocabulary {words!r:.80}, expected tokens")
    for token, index in words.items():
        if not isinstance(index, int):
            raise BrokenCheckpoint(
                f"{path} has the token {token!r:.80} with {index!r:.80} for a number, expected a "
                "whole one"
            )
    return words
