"""Shell: the folder of an embedding model, as sentence-transformers writes it: an encoder without a
head, and files that say how its last hidden states become the embedding of a row."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.checkpoints.families.family import Family
from harness.checkpoints.layout import MODULES, PROMPTS, SENTENCE_CONFIG, bad_value, check_link
from harness.errors import IncompatibleWeights
from harness.files import parse_objects, read_json, read_text
from harness.hyperparameters import MOST_TOKENS
from harness.readout import POOLINGS, Readout, embedding
from harness.types import Checkpoint

STEPS = ["Transformer", "Pooling", "Normalize"]
"""The modules of an embedding model that are supported, in order; the last is optional."""
TOKENIZER = "tokenizer_config.json"
OLDER = "pooling_mode_"
"""The start of keys in files of older releases: one for each way of pooling, true or false. Newer
releases name the way under `pooling_mode`."""
ELSEWHERE = (
    *("tokenizer_args", "config_args"),
    *("processor_kwargs", "config_kwargs", "processing_kwargs"),
)
"""Keys under which sentence-transformers, by older names or newer ones, takes settings that change
the tokenizer's or the encoder's own."""


@dataclass(frozen=True)
class Pooling:
    """How the last hidden states of a row become its embedding.

    `mode` is one of `readout.POOLINGS`; if `normalized`, an embedding has length 1. `max_length` is
    the most tokens that are read of a row, None if the folder does not say. `files` are the paths,
    in the folder, of the files that say all this.
    """

    mode: str
    normalized: bool
    max_length: int | None
    files: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.mode}, {'normalized' if self.normalized else 'not normalized'}"

    @property
    def readout(self) -> Readout:
        """The readout whose features are its embeddings."""
        return embedding(self.mode, normalized=self.normalized)


def read_pooling(folder: Path, family: Family) -> Pooling | None:
    """The pooling in the files of a model's folder; None without modules.json.

    Raises BrokenCheckpoint for modules, a pooling or prompts that are not supported, and for files
    outside of the folder. Classes that the files name are compared as text, never imported.
    """
    if not (folder / MODULES).is_file():
        return None
    if family.stacks:
        raise bad_value(folder, "model_type", family.name, "an embedding model without a decoder")
    places = _places(folder)
    beside = [path.name for path in sorted(folder.glob(SENTENCE_CONFIG)) if path.is_file()]
    own = [f"{place}/config.json" for place in places]
    candidates = (MODULES, PROMPTS, *beside, *own)
    files = [name for name in candidates if name == own[0] or (folder / name).is_file()]
    for name in files:
        check_link(folder / name, folder)
    reads = [*files[1:], *([TOKENIZER] if (folder / TOKENIZER).is_file() else [])]
    contents = {name: read_json(folder / name, "a JSON object") for name in reads}
    for name in beside:
        if contents[name].get("do_lower_case"):
            raise bad_value(
                folder / name, "do_lower_case", True, "false: case is left to the tokenizer"
            )
        for key in filter(contents[name].get, ELSEWHERE):
            expected = "none: write it into the tokenizer's or the encoder's own configuration"
            raise bad_value(folder / name, key, contents[name][key], expected)
    options = contents.get(PROMPTS, {})
    default, prompts = options.get("default_prompt_name"), options.get("prompts") or {}
    if not isinstance(prompts, dict) or not (default is None or prompts.get(str(default)) == ""):
        unread = "none by default: rows are read without a prompt"
        raise bad_value(folder / PROMPTS, "prompts", [default, prompts], unread)
    if (size := options.get("truncate_dim")) is not None:
        raise bad_value(folder / PROMPTS, "truncate_dim", size, "none: embeddings are read whole")
    mode = _mode(contents.get(own[0], {}), folder / own[0])
    return Pooling(mode, len(places) > 1, _length(folder, contents), tuple(files))


def _places(folder: Path) -> list[str]:
    """The folders, within a model's, of its modules after the first."""
    file, what = folder / MODULES, "a list of modules"
    check_link(file, folder)
    modules = parse_objects(read_text(file, what), str(file), what)
    kinds, paths = ([str(module.get(key)) for module in modules] for key in ("type", "path"))
    steps = [re.sub(r"^sentence_transformers\..*\.", "", kind) for kind in kinds]
    if steps not in (STEPS, STEPS[:2]):
        raise bad_value(
            file,
            "modules",
            ", ".join(steps),
            f"{', '.join(STEPS)} of sentence-transformers, the last of them if needed",
        )
    for path, pattern in zip(paths, ["", *[r"\w[\w.-]*"] * 2], strict=False):
        if not re.fullmatch(pattern, path):
            raise bad_value(
                file, "path", path, "'' for the first module, the names of folders for the others"
            )
    return paths[1:]


def _length(folder: Path, contents: Mapping[str, Any]) -> int | None:
    """The most tokens read of a row; newer releases leave it to the tokenizer's configuration."""
    for name in contents:
        length = contents[name].get("model_max_length" if name == TOKENIZER else "max_seq_length")
        if length is None:
            continue
        if type(length) not in (int, float) or length < 1:
            raise bad_value(folder / name, "length", length, "a positive number of tokens")
        if length <= MOST_TOKENS:  # transformers writes 1e30 for no limit
            return int(length)
    return None


def _mode(config: dict[str, Any], file: Path) -> str:
    """The one way of pooling that a configuration names, as newer or older releases write it."""
    older = []
    for key in (key for key in config if key.startswith(OLDER)):
        if not isinstance(config[key], bool):
            raise bad_value(file, key, config[key], "true or false")
        if config[key]:
            older.append(re.sub("(?<!sqrt_len)_tokens?$", "", key[len(OLDER) :]))
    modes = config.get("pooling_mode") or older
    modes = [modes] if isinstance(modes, str) else modes
    if older and modes != older:
        raise bad_value(file, "pooling", [modes, older], "one way of pooling, not two")
    if modes not in [[mode] for mode in POOLINGS]:
        raise bad_value(file, "pooling", modes, f"one of {', '.join(POOLINGS)}")
    return str(modes[0])


def check_poolings(models: Sequence[Checkpoint]) -> Pooling | None:
    """The pooling that all models have; None unless all are embedding models.

    Raises IncompatibleWeights, naming two models, if these pool differently, or if one says nothing
    of a pooling and has no head either.
    """
    poolings = [model.pooling for model in models]
    if None in poolings:
        bare = next((m for m in models if m.labels is None and m.pooling is None), None)
        whole = next((m for m in models if m.pooling is not None), None)
        if bare and whole:
            raise IncompatibleWeights(
                f"{bare.source} has neither a head nor {MODULES}, expected {MODULES} and the "
                f"pooling that it names, as {whole.source} has: copy the whole folder"
            )
        return None
    for model, own in zip(models, poolings, strict=True):
        if str(own) != str(poolings[0]):
            raise IncompatibleWeights(
                f"the embeddings of {model.source} are {own}, expected {poolings[0]} as those of "
                f"{models[0].source}: models that pool differently cannot be merged"
            )
    lengths = {model.pooling.max_length: model.source for model in models if model.pooling}
    if len(lengths) > 1:
        limits = ", ".join(f"{source} {length or 'any'}" for length, source in lengths.items())
        warnings.warn(
            f"the models read different numbers of tokens of a row ({limits}): their merge gets "
            "the number of the first, and an evaluation of them all reads the fewest",
            stacklevel=2,
        )
    return poolings[0]


def copy_modules(model: Checkpoint, target: Path) -> None:
    """Copy, unchanged, the files that make a folder one of an embedding model or CrossEncoder."""
    pooling = model.pooling
    for name in pooling.files if pooling else _of_cross_encoder(model.path):
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(model.path / name, target / name)


def _of_cross_encoder(folder: Path) -> list[str]:
    """Files that say what function a CrossEncoder applies to outputs, and how it reads rows."""
    if not (folder / PROMPTS).is_file():  # older releases write it into config.json
        return []
    check_link(folder / PROMPTS, folder)
    if read_json(folder / PROMPTS, "a JSON object").get("model_type") != "CrossEncoder":
        return []
    names = [MODULES, PROMPTS, *(path.name for path in sorted(folder.glob(SENTENCE_CONFIG)))]
    files = [name for name in names if (folder / name).is_file()]
    for name in files:
        check_link(folder / name, folder)
    return files
