"""Miniature models of each family, made from a configuration: nothing is downloaded."""

from __future__ import annotations

import gc
import importlib
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest

from harness import MERGERS, METRICS, NEEDS, POSTMERGE, PREMERGE, PROTOCOLS, TASKS
from harness.code import PREFIX, SIBLING_PACKAGES
from harness.plugins import import_all

# A miniature takes several times as long on threads that wait for one another; torch reads this
# when it is imported. Tests of what threads do take the fixture `two_threads`.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# of two threads, one spins while another process has its core; torch reads this, too
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # transformers asks, too
os.environ["TOKENIZERS_PARALLELISM"] = "false"
REAL_DATA = "HARNESS_REAL_DATA"
"""Where the folder of real data is kept for the tests of it: to all others no task has rows that
they did not make. A variable, for processes of xdist have it from the one that starts them."""
if "HARNESS_DATA_DIR" in os.environ:
    os.environ[REAL_DATA] = os.environ.pop("HARNESS_DATA_DIR")

# A shell has what runs in its background ignore Ctrl-C, and so would the commands that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Processes that run tests side by side are told the width of the terminal; output has none here.
os.environ.pop("COLUMNS", None)

# No test cuts the power; that files are synced is asked in test_statistics.py.
os.fsync = lambda _: None

for package in SIBLING_PACKAGES:  # found by path, so that tests can import from them
    import_all(package)
for taker in ("harness.merging.validation", "harness.training.heldout"):
    # they take `forward` by name, and must have it before a test puts another in its place
    importlib.import_module(taker)


imported = 0
"""How many modules were imported when it was last said that they stay."""
begun = 0
"""How many tests have begun in this process."""


def pytest_runtest_setup() -> None:
    global begun
    begun += 1
    spare_collections(anyway=begun % 100 == 0)


def spare_collections(*, anyway: bool = False) -> None:
    """Of what has been imported or is kept: every training asks for one, and so does every step of
    a study.

    A test that imports most of what it uses by itself, and then has many of them, calls this, too.
    """
    global imported
    if anyway or len(sys.modules) > imported + 50:
        gc.collect()
        gc.freeze()
        imported = len(sys.modules)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads for what works on pieces of tensors."""
    import torch  # not above: what is set there is read when it is imported

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def two_threads() -> Iterator[None]:
    with threads(2):
        yield


WORDS = [f"word{i}" for i in range(40)]
SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 45}
BERT_LIKE = {**SIZE, "intermediate_size": 24, "max_position_embeddings": 40}
TOKENS = {"pad": 0, "bos": 2, "cls": 2, "eos": 3, "sep": 3}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": BERT_LIKE,
    "roberta": {**BERT_LIKE, "pad_token_id": 0},
    "distilbert": {
        "dim": 16,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 24,
        "vocab_size": 45,
        "max_position_embeddings": 40,
    },
    "deberta-v2": {
        **BERT_LIKE,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "pooler_hidden_size": 16,
    },
    "electra": {**BERT_LIKE, "embedding_size": 16},
}
NEWER: dict[str, dict[str, Any]] = {
    "albert": {**BERT_LIKE, "embedding_size": 8},
    "modernbert": {
        **BERT_LIKE,
        "num_hidden_layers": 4,
        "sliding_window": 2,
        **{f"{token}_token_id": place for token, place in TOKENS.items()},
    },
    "mpnet": {**BERT_LIKE, "pad_token_id": 0},
}
"""Further families. Tests that know the names of BERT, or train, go through those above alone: the
laws of all are proved on `VARIANTS`."""
ROBERTAS = dict.fromkeys(("xlm-roberta", "camembert"), FAMILIES["roberta"])
"""Model types of RoBERTa's family, by transformers' classes of their own."""
DECODERS: dict[str, dict[str, Any]] = {
    "llama": {**BERT_LIKE, "pad_token_id": 0},
    "qwen3": {**BERT_LIKE, "pad_token_id": 0, "num_key_value_heads": 1, "head_dim": 8},
    "gpt_neox": {**BERT_LIKE, "pad_token_id": 0},
    "opt": {
        "hidden_size": 16,
        "word_embed_proj_dim": 16,
        "ffn_dim": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 45,
        "max_position_embeddings": 40,
        "pad_token_id": 0,
    },
    "gpt2": {
        **dict.fromkeys(("n_layer", "n_head"), 2),
        "n_embd": 16,
        "n_inner": 24,
        "n_positions": 40,
        "vocab_size": 45,
        **{f"{token}_token_id": place for token, place in TOKENS.items()},
    },
}
"""Decoders: all but GPT-2 are known by rules."""
HEADS = ("classifier.", "pre_classifier.")
"""What the names of these families' heads start with."""
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
"""Labels of words."""
FAST: dict[str, Any] = {
    "learning_rate": 5e-3,
    "epochs": 3,
    "batch_size": 8,
    "max_length": 24,
    "progress": False,
}
"""Settings under which a miniature learns in a second."""


@contextmanager
def interrupted(by: type[BaseException] = KeyboardInterrupt) -> Iterator[None]:
    """Training that stops after its first checkpoint, like Ctrl-C unless by another error."""
    from transformers import Trainer

    saved = Trainer._save_checkpoint

    def save_and_stop(self: Any, *args: Any, **kwargs: Any) -> None:
        saved(self, *args, **kwargs)
        raise by

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_save_checkpoint", save_and_stop)
        with pytest.raises(by):
            yield


@contextmanager
def trained_steps() -> Iterator[list[int]]:
    """The steps of the Trainer, as it does them."""
    from transformers import Trainer

    steps: list[int] = []
    trained = Trainer.training_step

    def counted(self: Any, *args: Any, **given: Any) -> Any:
        steps.append(self.state.global_step)
        return trained(self, *args, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "training_step", counted)
        yield steps


def resumes(train: Callable[[Path], object], place: Path) -> None:
    """Raise AssertionError where a training that stops after its first epoch, of several, and is
    given again comes to other weights than one that does not stop."""
    train(place / "whole")
    with interrupted():
        train(place / "cut")
    with trained_steps() as steps:
        train(place / "cut")
    assert min(steps) > 0, "or it began anew"
    files = [path.relative_to(place / "whole") for path in (place / "whole").rglob("*.safetensors")]
    assert files
    for file in files:
        assert (place / "cut" / file).read_bytes() == (place / "whole" / file).read_bytes()


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """A system that lets nobody write more than so many bytes into a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def is_head(name: str) -> bool:
    """Whether a tensor of a miniature is of its head."""
    return name.startswith(HEADS)


def tokenizer(folder: Path) -> None:
    """A word-level tokenizer of 45 tokens with BERT's special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocab = {word: index for index, word in enumerate([*specials, *WORDS])}
    words = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=40,
    ).save_pretrained(folder)


def model(
    folder: Path,
    labels: list[str] | None = None,
    *,
    family: str = "bert",
    seed: int = 0,
    near: Path | None = None,
    unit: Literal["row", "word"] = "row",
    **config: Any,
) -> Path:
    """A random miniature written to `folder`: a classifier with labels, else a bare encoder.

    It is a classifier of rows, or of words. With `near`, the encoder is that of another folder plus
    a little noise, as after fine-tuning; a pooler that this has not is one draw for all.
    """
    import torch
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
    )

    units = {"row": AutoModelForSequenceClassification, "word": AutoModelForTokenClassification}
    torch.manual_seed(seed)
    known = {**FAMILIES, **NEWER, **ROBERTAS, **DECODERS}
    settings = {**known.get(family, BERT_LIKE), **config}
    if labels is None:
        made = AutoModel.from_config(AutoConfig.for_model(family, **settings))
    else:
        names = dict(enumerate(labels)) or {0: "value"}
        if not labels:
            settings["problem_type"] = "regression"
        made = units[unit].from_config(
            AutoConfig.for_model(
                family,
                **settings,
                id2label=names,
                label2id={v: k for k, v in names.items()},
                num_labels=len(names),
            )
        )
    with torch.no_grad():
        if near is not None:
            encoder = AutoModel.from_pretrained(near)
            getattr(made, made.base_model_prefix).load_state_dict(
                encoder.state_dict(), strict=False
            )
            if hasattr(made, "pooler"):  # DeBERTa's, which no encoder has
                one = torch.Generator().manual_seed(3)
                torch.nn.init.normal_(made.pooler.dense.weight, std=0.03, generator=one)
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    made.save_pretrained(folder)
    tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def minis(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Path]]:
    """base and three experts of a family, two of one task and one of another; made once."""
    made: dict[str, dict[str, Path]] = {}

    def of(family: str) -> dict[str, Path]:
        if family not in made:
            root = tmp_path_factory.mktemp(family)
            base = model(root / "base", family=family)
            made[family] = {
                "base": base,
                "a": model(root / "a", ["no", "yes"], family=family, seed=1, near=base),
                "b": model(root / "b", ["no", "yes"], family=family, seed=2, near=base),
                "c": model(root / "c", ["x", "y", "z"], family=family, seed=3, near=base),
            }
        return made[family]

    return of


@pytest.fixture(scope="session")
def taggers(
    minis: Callable[[str], dict[str, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, Path]]:
    """The base of a family with three taggers, two of one task and one of another; made once."""
    made: dict[str, dict[str, Path]] = {}

    def of(family: str) -> dict[str, Path]:
        if family not in made:
            root, base = tmp_path_factory.mktemp(f"{family}-taggers"), minis(family)["base"]
            made[family] = {"base": base}
            for seed, (name, labels) in enumerate(
                {"a": TAGS, "b": TAGS, "c": ["noun", "verb"]}.items(), start=1
            ):
                made[family][name] = model(
                    root / name, labels, family=family, seed=seed, near=base, unit="word"
                )
        return made[family]

    return of


@pytest.fixture(scope="session")
def loud(
    minis: Callable[[str], dict[str, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """A miniature whose weights are large enough for the words of a row to show in its features."""
    from safetensors.torch import load_file, save_file

    made: dict[tuple[str, str], Path] = {}

    def of(family: str, which: str = "a") -> Path:
        if (family, which) not in made:
            folder = tmp_path_factory.mktemp("loud") / f"{family}-{which}"
            made[family, which] = Path(shutil.copytree(minis(family)[which], folder))
            state = load_file(folder / "model.safetensors")
            louder = {
                name: tensor * (8 if tensor.ndim == 2 else 1) for name, tensor in state.items()
            }
            save_file(louder, folder / "model.safetensors", metadata={"format": "pt"})
        return made[family, which]

    return of


@pytest.fixture(scope="session", autouse=True)
def _caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Path]]:
    """Folders, one after another; pytest would read through all there are to number the next.

    What lives longer than a test has one of its own, and not the user's.
    """
    root = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_CACHE_DIR", str(root / "shared"))
        yield (root / str(number) for number in count())


@pytest.fixture(autouse=True)
def _own_cache(_caches: Iterator[Path]) -> Iterator[None]:
    """Features of the tests are cached apart from the user's, and no test has another's tokens."""
    cache = next(_caches)
    cache.mkdir()
    importlib.import_module("harness.passes.prepared")._remembered.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_CACHE_DIR", str(cache))
        yield
    shutil.rmtree(cache, ignore_errors=True)


@contextmanager
def registries_kept() -> Iterator[None]:
    """What is registered within, by itself or by a folder of a user, is gone after it."""
    with pytest.MonkeyPatch.context() as patch:
        for known in (MERGERS, METRICS, NEEDS, POSTMERGE, PREMERGE, PROTOCOLS, TASKS):
            len(known)  # our own are registered before the copies are made
            for kept in ("_values", "_origins", "_asked"):
                patch.setattr(known, kept, dict(getattr(known, kept)))
        before = set(sys.modules)
        yield
        for name in set(sys.modules) - before:
            if name.startswith(PREFIX):
                del sys.modules[name]


@pytest.fixture
def as_found() -> Iterator[None]:
    """What a test registers is gone when it ends; of a module's fixture see `registries_kept`."""
    with registries_kept():
        yield


def real_folder() -> Path:
    """HARNESS_DATA_DIR, else shared/data beside the repository; skips where there is neither."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get(REAL_DATA) or beside)
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; say where it is with HARNESS_DATA_DIR")
    return folder
