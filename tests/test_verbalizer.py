"""Heads of words: what a T5 of text to text says of a label's word, without any text made."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import harness
from harness.checking.toys import exact_norms
from harness.checkpoints import families, verbalizer
from harness.checkpoints.build import TEXT_HEAD, build_model
from harness.checkpoints.heads import kept_heads
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.text_heads import read_heads, with_missing_parts
from harness.checkpoints.tokenizer import open_tokenizer
from harness.checkpoints.verbalizer import under_words, verbalizer_of
from harness.cli import main
from harness.data.metrics import score
from harness.data.rows import load_rows
from harness.errors import BadData, BadOption, BadRecipe, BrokenCheckpoint, MissingHead
from harness.passes import prepared
from harness.passes.features import dropout_features, final_head, forward
from harness.passes.gram import gram, linear_layers
from harness.passes.placement import CPU, Placement
from harness.passes.prepared import prepare
from harness.passes.reading import Reading, Readings, reading_of
from harness.passes.statistics import draw_rows
from harness.readout import LAST_LINEAR
from harness.types import Checkpoint
from tests.faults import Plant, around
from tests.mistakes import mistake, refused
from tests.resampled import read_records
from tests.t5 import FILE, t5
from tests.toys import MOODS, TAGS, THREE, TOY, VALUE, known, registered

PROMPT, PREFIX = "word1 {text} word2 {pair}", "<extra_id_0>"
WORDS = ["--word", "word3", "--word", "word4"]
ASKED = "word1 {label} word2 {text}"
pytestmark = pytest.mark.filterwarnings("ignore:.* was fitted to fewer rows")
_tasks = known(TOY, THREE, MOODS, TAGS, VALUE)


def run(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


def like(base: Path, out: Path, seed: int) -> Path:
    """A model of text to text near another, every tensor of it moved: the table, too."""
    shutil.copytree(base, out)
    generator = torch.Generator().manual_seed(seed)
    state = {
        name: tensor + torch.randn(tensor.shape, generator=generator) * 0.3
        for name, tensor in load_file(base / FILE).items()
    }
    save_file(state, out / FILE, metadata={"format": "pt"})
    return out


@pytest.fixture(scope="module", params=["v1.0", "v1.1", "mT5"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base as it is published, experts of two tasks, and a head for each."""
    root = tmp_path_factory.mktemp("words")
    kind: Any = "MT5" if request.param == "mT5" else "T5"
    base = t5(root / "base", gated=request.param != "v1.0", kind=kind)
    for seed, name in enumerate("ab", start=1):
        like(base, root / name, seed)
    with registered(TOY, THREE, MOODS):
        start = ["heads", "verbalizer", "--base", base, "--task"]
        run(*start, TOY.name, "--template", PROMPT, *WORDS, "--prefix", PREFIX,
            "--out", root / "heads" / "pairs")  # fmt: skip
        words = ["--word", "word5", "--word", "word6", "--word", "word7"]
        run(*start, THREE.name, *words, "--out", root / "heads" / "three")
        run(*start, MOODS.name, "--template", ASKED, *WORDS, "--prefix", PREFIX,
            "--out", root / "heads" / "moods")  # fmt: skip
    return root


def under(made: Path, folder: Path, task: harness.Task = TOY) -> Checkpoint:
    return with_missing_parts(
        open_checkpoint(folder), None, task.name, read_heads(made / "heads", None)
    )


def said_by_t5(folder: Path, task: harness.Task = TOY, split: str = "test") -> np.ndarray[Any, Any]:
    """What transformers' own model says first, of every word of a label: [rows, labels], float64.

    Row by row, without padding, as its own generation has it. Where a question is asked of each
    label, yes less no.
    """
    return _said_by_t5(folder, (folder / FILE).read_bytes(), task.name, split)


@cache  # of the experts and the base, which every merger is asked to be beside
def _said_by_t5(folder: Path, _: bytes, name: str, split: str) -> np.ndarray[Any, Any]:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    task, words = harness.TASKS[name], AutoTokenizer.from_pretrained(folder)
    model: Any = exact_norms(AutoModelForSeq2SeqLM.from_pretrained(folder).double().eval())
    answers = ["word5", "word6", "word7"] if task is THREE else ["word3", "word4"]
    start = [0, *([words.convert_tokens_to_ids(PREFIX)] if task is not THREE else [])]
    texts = [row[0] for row in load_rows(task, split).texts]
    if task is TOY:
        texts = ["word1 {} word2 {}".format(*row) for row in load_rows(task, split).texts]
    if task is MOODS:
        texts = [f"word1 {label} word2 {text}" for text in texts for label in MOODS.labels]
    logits = []
    for text in texts:
        given = {**words(text, return_tensors="pt"), "decoder_input_ids": torch.tensor([start])}
        with torch.no_grad():
            said = model(**given).logits[0, -1]
        how = {"max_new_tokens": 1, "return_dict_in_generate": True, "output_logits": True}
        generated = model.generate(**given, **how, do_sample=False).logits[0][0]
        torch.testing.assert_close(generated, said.float())  # which it rounds to
        logits.append(said[words.convert_tokens_to_ids([f"▁{a}" for a in answers])])
    said = torch.stack(logits).numpy()
    return said if task is not MOODS else (said[:, 1] - said[:, 0]).reshape(-1, len(MOODS.labels))


# One model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [TOY, THREE], ids=["a prompt and a prefix", "the row alone"])
def test_logits_are_those_of_the_first_step_of_decoding(made: Path, task: harness.Task) -> None:
    """In float64, of an expert whose own table is not that of the base."""
    one, rows = under(made, made / "a", task), load_rows(task, "test")
    network: Any = exact_norms(build_model(one.config, one.weights, "it").double())
    with torch.no_grad():
        found = network(**prepare(one, rows, 128).batch(range(len(rows)), CPU)).logits
    expected = said_by_t5(made / "a", task)
    assert expected.std(axis=0).min() > 1e-3
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())
    x, logits, _ = forward(one, rows, max_length=128, placement=CPU)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    head = final_head(one, range(len(task.labels)))
    assert head is not None
    np.testing.assert_allclose(x @ head.weight.T, logits, rtol=0, atol=1e-4)


FAULTS: dict[str, Plant] = {
    "outputs of a tied table alone are scaled": around(
        families.t5, "is_scaled", lambda right, config: not right(config)
    ),
    "answers are read before the prefix": around(
        verbalizer, "_tokens", lambda right, *given: ([], right(*given)[1])
    ),
    "rows of other tokens": around(
        verbalizer,
        "_tokens",
        lambda right, *given: (right(*given)[0], [one + 1 for one in right(*given)[1]]),
    ),
    "padding is attended to": around(
        prepared,
        "_padded",
        lambda right, *given: {
            n: t.clamp(min=n == "attention_mask") for n, t in right(*given).items()
        },
    ),
}


@pytest.mark.fault
@pytest.mark.parametrize("plant", FAULTS.values(), ids=FAULTS)
def test_a_fault_of_reading_shows(made: Path, plant: Plant, monkeypatch: Any) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="Not equal"):
        test_logits_are_those_of_the_first_step_of_decoding(made, TOY)


def test_by_hand_a_word_says_what_its_row_has_of_the_last_token(tmp_path: Path) -> None:
    """Without attention and feed-forward layers the decoder's last state is the token that it was
    given, over its root mean square: (3, 4, 0, ...) in 16 places over 5/4 is (2.4, 3.2, 0, ...).
    The root of 16 makes that (0.6, 0.8), and rows (1, 0, ...) and (1, 1, ...) say 0.6 and 1.4."""
    base = t5(tmp_path / "base", gated=False)
    words = open_tokenizer(base)
    state = load_file(base / FILE)
    for name, tensor in state.items():
        tensor.fill_(float(name.endswith("layer_norm.weight")))
    for word, row in ((PREFIX, [3, 4]), ("▁word3", [1, 0]), ("▁word4", [1, 1])):
        place = words.convert_tokens_to_ids(word)
        state["shared.weight"][place, :2] = torch.tensor(row, dtype=torch.float32)
    save_file(state, base / FILE, metadata={"format": "pt"})
    head = ["heads", "verbalizer", "--base", base, "--task", TOY.name, "--template", PROMPT]
    run(*head, *WORDS, "--prefix", PREFIX, "--out", tmp_path / "heads" / "pairs")
    rows = load_rows(TOY, "test", limit=2)
    x, logits, _ = forward(under(tmp_path, base), rows, max_length=128, placement=CPU)
    np.testing.assert_allclose(x[:, :2], [[0.6, 0.8]] * 2, rtol=0, atol=1e-6)
    np.testing.assert_allclose(logits, [[0.6, 1.4]] * 2, rtol=0, atol=1e-6)


def test_features_do_not_depend_on_the_rows_beside(made: Path) -> None:
    for task in (TOY, MOODS):
        one, rows = under(made, made / "a", task), load_rows(task, "test")
        alone, _, _ = forward(one, rows, max_length=128, placement=CPU, batch_size=1)
        for size in (3, len(rows)):
            x, _, _ = forward(one, rows, max_length=128, placement=CPU, batch_size=size)
            np.testing.assert_allclose(x, alone, rtol=0, atol=2e-5 * np.abs(alone).max())


def test_a_half_precision_rounds_and_no_more(made: Path) -> None:
    """Rows of a tied table are in it, those of an lm_head in float32."""
    one, rows = under(made, made / "a"), load_rows(TOY, "test")
    half = Placement(device="cpu", dtype="bfloat16")
    _, found, _ = forward(one, rows, max_length=128, placement=half)
    _, exact, _ = forward(one, rows, max_length=128, placement=CPU)
    np.testing.assert_allclose(found, exact, rtol=0, atol=0.2 * np.abs(exact).max())
    assert (found != exact).any()


def test_what_a_head_says_is_recorded(made: Path) -> None:
    said = json.loads((made / "heads" / "pairs" / "config.json").read_text())[TEXT_HEAD]
    assert said["words"] == {"no": "word3", "yes": "word4"}
    assert (said["template"], said["prefix"]) == (PROMPT, PREFIX)
    assert len(said["decoder"]) == 2


def test_a_row_that_says_what_a_template_says_is_read_as_it_is(made: Path) -> None:
    one = under(made, made / "a")
    rows = replace(load_rows(TOY, "test", limit=2), texts=(("{pair}", "{text}"), ("word9", "")))
    read = prepare(one, rows, 128)
    plain = prepare(under(made, made / "a", THREE), replace(rows, texts=(
        ("word1 {pair} word2 {text}",), ("word1 word9 word2 ",))), 128)  # fmt: skip
    assert read.columns == plain.columns


def test_a_question_for_each_label_is_a_linear_head_on_all_of_them(made: Path) -> None:
    one, rows = under(made, made / "a", MOODS), load_rows(MOODS, "test")
    x, logits, seen = forward(one, rows, max_length=128, placement=CPU)
    expected = said_by_t5(made / "a", MOODS)
    assert seen.all()
    assert x.shape == (len(rows), 3 * 16)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    # these miniatures drop nothing
    again = dropout_features(one, rows, max_length=128, readout=LAST_LINEAR, placement=CPU)(
        [2, 0], 0
    )
    np.testing.assert_allclose(again, x[[2, 0]], rtol=0, atol=1e-4)
    head = final_head(one, [2, 0, 1])
    assert head is not None
    np.testing.assert_allclose(x @ head.weight.T, logits[:, [2, 0, 1]], rtol=0, atol=1e-4)


def test_what_nobody_answered_is_not_asked(made: Path) -> None:
    """Statistics are of the questions that have an answer, each a row of its own."""
    one, rows = under(made, made / "a", MOODS), load_rows(MOODS, "train90")
    assert 0 < (rows.labels == -100).sum() < rows.labels.size
    reading = reading_of(one, rows, CPU)
    assert len(reading.rows) == (rows.labels != -100).sum()
    answers = torch.cat([labels for _, labels in reading.batches(4, as_drawn=True)])
    assert answers.tolist() == rows.labels[rows.labels != -100].tolist()
    first = [place for place, label in enumerate(rows.labels[0]) if label != -100]
    expected = [f"word1 {MOODS.labels[place]} word2 {rows.texts[0][0]}" for place in first]
    assert [text for (text,) in reading.rows.texts[: len(first)]] == expected


# Through the doors ----------------------------------------------------------------------------


def mean(folders: list[Path], out: Path) -> Path:
    """A plain mean of two models of text to text, in transformers' own form."""
    shutil.copytree(folders[0], out)
    states = [load_file(folder / FILE) for folder in folders]
    state = {name: sum(one[name] for one in states) / len(states) for name in states[0]}
    save_file(state, out / FILE, metadata={"format": "pt"})
    return out


def states_of(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a model as transformers' class of text to text reads them."""
    from transformers import AutoModelForSeq2SeqLM

    loaded: Any = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    model, told = loaded
    assert not {*told["missing_keys"], *told["unexpected_keys"]}
    return dict(model.state_dict())


def accuracy(folder: Path, task: harness.Task, split: str = "test") -> float:
    labels, said = load_rows(task, split).labels, said_by_t5(folder, task, split)
    if task is MOODS:
        return score(task, (said >= 0) * 1.0, labels, np.ones(len(labels), dtype=int)).value
    return float(np.mean(said.argmax(axis=1) == labels))


PROTOCOLS = "current,knn,ft-classifier,linear-probe,probe,surgery"


def test_a_merge_says_what_the_mean_of_the_models_says(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two experts of one task share a head, which is merged: rows of the merged table."""
    experts, plain = [made / "a", made / "b"], mean([made / "a", made / "b"], tmp_path / "mean")
    given = ["--base", made / "base", "--heads-from", made / "heads", "--tasks", TOY.name]
    command = ["merge", *experts, *given, "--merger", "average", "--out", tmp_path / "m"]
    run(*command, "--dry-run")
    assert f" heads/{TOY.name}/, " in capsys.readouterr().out
    run(*command)
    assert (tmp_path / "m" / "heads" / TOY.name / "config.json").is_file()
    found = under(made, tmp_path / "m")
    torch.testing.assert_close(states_of(tmp_path / "m"), states_of(plain))
    expected = said_by_t5(plain)
    np.testing.assert_allclose(said_by_t5(tmp_path / "m"), expected, rtol=0, atol=1e-4)
    _, logits, _ = forward(found, load_rows(TOY, "test"), max_length=128, placement=CPU)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    protocols = PROTOCOLS if "MT5" in (made / "a" / "config.json").read_text() else "current,knn"
    run("evaluate", "--model", tmp_path / "m", "--protocols", protocols, "--shots", 2,
        "--output-path", tmp_path / "r")  # fmt: skip
    records = read_records([tmp_path / "r"])
    assert {one.protocol for one in records} == {*protocols.split(",")}
    current = {one.model: one.scores[0].value for one in records if one.protocol == "current"}
    for name, folder in (("m", plain), ("a", made / "a"), ("b", made / "b")):
        assert current[name] == pytest.approx(accuracy(folder, TOY)), name


MERGERS = ("ties", "fisher:examples=8", "regmean:examples=8", "regmean_plus_plus:examples=8",
           "adamerging:examples=8,steps=2")  # fmt: skip


@pytest.mark.parametrize("merger", MERGERS)
def test_experts_of_two_tasks_keep_their_words_and_prompts(
    made: Path, merger: str, tmp_path: Path
) -> None:
    given = ["--base", made / "base", "--heads-from", made / "heads"]
    tasks = ["--tasks", f"{TOY.name},{THREE.name}"]
    run(
        "merge", made / "a", made / "b", *given, *tasks, "--merger", merger, "--out", tmp_path / "m"
    )
    run("evaluate", "--model", tmp_path / "m", "--protocols", "current", "--output-path",
        tmp_path / "r")  # fmt: skip
    records = read_records([tmp_path / "r"])
    scores = {(one.task.partition("@")[0], one.role): one.scores[0].value for one in records}
    for task, name in ((TOY, "a"), (THREE, "b")):
        models = {"expert": made / name, "merged": tmp_path / "m", "base": made / "base"}
        for role, folder in models.items():
            assert scores[task.name, role] == pytest.approx(accuracy(folder, task)), role


def test_a_kept_head_of_words_that_claims_a_billion_labels(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made / "a", tmp_path / "a"))
    said = json.loads((made / "heads" / "pairs" / "config.json").read_text())
    file = folder / "heads" / TOY.name / "config.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(said))
    assert kept_heads(open_checkpoint(folder), None)[TOY.name].labels == TOY.labels
    file.write_text(json.dumps({**said, "num_labels": 10**9}))
    with mistake(BrokenCheckpoint, file, "num_labels 1000000000"):
        kept_heads(open_checkpoint(folder), None)


def test_an_expert_is_read_alone_and_its_statistics_are_of_its_words(
    made: Path, tmp_path: Path
) -> None:
    given = ["--heads-from", made / "heads"]
    run("evaluate", "--model", made / "b", *given, "--tasks", TOY.name, "--protocols", "current",
        "--output-path", tmp_path / "r")  # fmt: skip
    (record,) = read_records([tmp_path / "r"])
    assert record.scores[0].value == pytest.approx(accuracy(made / "b", TOY))
    run("statistics", made / "b", *given, "--task", TOY.name, "--merger", "regmean:examples=4",
        "--out", tmp_path / "gram.safetensors")  # fmt: skip
    grams = load_file(tmp_path / "gram.safetensors")
    name = "lm_head.weight"
    assert (name in grams) is (name in load_file(made / "b" / FILE))  # a tied one is embeddings
    if name not in grams:
        return
    rows = draw_rows(TOY, 4, 0, None)
    x, _, _ = forward(under(made, made / "b"), rows, max_length=128, placement=CPU)
    torch.testing.assert_close(
        grams[name],
        torch.from_numpy(x.T @ x / len(x)).double(),
        rtol=1e-4,
        atol=1e-6,
    )


def test_an_expert_is_trained_by_its_words(made: Path, tmp_path: Path) -> None:
    expert, how = tmp_path / "x", ["--epochs", 2, "--learning-rate", 3e-3]
    train = ["finetune", "--base", made / "base", "--heads-from", made / "heads", "--out", expert]
    run(*train, "--task", THREE.name, *how)
    record = json.loads((expert / "expert.json").read_text())
    assert [*record["text_head"]["words"].values()] == ["word5", "word6", "word7"]
    (scored,) = record["scores"].values()
    assert scored["value"] == pytest.approx(accuracy(expert, THREE, "heldout10"))
    assert loss(expert) < loss(made / "base")
    before, after = states_of(made / "base"), states_of(expert)
    if "lm_head.weight" in load_file(expert / FILE):  # the rows of the three words, and no others
        assert (before["lm_head.weight"] != after["lm_head.weight"]).any(dim=1).sum() == 3
    else:
        assert torch.equal(after["lm_head.weight"], after["shared.weight"])
    run("merge", expert, expert, "--base", made / "base", "--heads-from", made / "heads",
        "--merger", "task_arithmetic:scale=0.5", "--out", tmp_path / "m")  # fmt: skip
    torch.testing.assert_close(states_of(tmp_path / "m"), after)
    run("evaluate", "--model", tmp_path / "m", "--protocols", "current", "--output-path",
        tmp_path / "r")  # fmt: skip
    records = [one for one in read_records([tmp_path / "r"]) if one.role in ("merged", "expert")]
    values = [one.scores[0].value for one in records]
    assert values == pytest.approx([accuracy(expert, THREE)] * len(values))
    refused([*train, "--task", "toy/tags"], BadRecipe, made / "heads", "toy/tags", "words")


@pytest.mark.parametrize("made", ["v1.1"], indirect=True)
def test_experts_that_are_asked_of_every_label_are_trained_merged_and_read(
    made: Path, tmp_path: Path
) -> None:
    given = ["--base", made / "base", "--heads-from", made / "heads"]
    few = ["--epochs", 1, "--limit", 40]
    run("finetune", *given, "--task", MOODS.name, *few, "--out", tmp_path / "x")
    record = json.loads((tmp_path / "x" / "expert.json").read_text())
    assert record["text_head"]["template"] == ASKED
    assert record["rows"] == 40, "not one for each question"
    for merger in ("regmean:examples=4", "fisher:examples=4", "adamerging:examples=4,steps=2"):
        out = tmp_path / merger.partition(":")[0]
        run("merge", tmp_path / "x", made / "a", *given, "--merger", merger, "--tasks", MOODS.name,
            "--out", out)  # fmt: skip
        expected, rows = said_by_t5(out, MOODS), load_rows(MOODS, "test")
        _, logits, _ = forward(under(made, out, MOODS), rows, max_length=128, placement=CPU)
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    run("evaluate", "--model", out, "--shots", 2, "--draws", 1, "--protocols",
        "current,knn,linear-probe,ft-classifier:variant=paper",
        "--output-path", tmp_path / "r")  # fmt: skip
    records = read_records([tmp_path / "r"])
    scores = {(one.protocol, one.model): one.scores[0].value for one in records}
    assert len({protocol for protocol, _ in scores}) == 4
    for folder in (out, made / "base", tmp_path / "x"):
        assert scores["current", folder.name] == pytest.approx(accuracy(folder, MOODS))


@pytest.mark.parametrize("made", ["v1.1"], indirect=True)
def test_a_study_trains_experts_by_words_from_beside_its_file(made: Path, tmp_path: Path) -> None:
    (made / "words.yaml").write_text(
        "study: words\nbase: base\nmergers: [average]\nmerge: {heads_from: heads}\n"
        "protocols: [current]\n"
        f"experts: {{tasks: [{TOY.name}, {THREE.name}], "
        "finetune: {heads_from: heads, epochs: 1}}"
    )
    run("study", "run", made / "words.yaml", "--out", tmp_path / "out", "--device", "cpu")
    (merge,) = (tmp_path / "out/merged").rglob("average")
    records = read_records([tmp_path / "out/records"])
    scores = {one.task.partition("@")[0]: one for one in records if one.role == "merged"}
    for task in (TOY, THREE):
        assert scores[task.name].scores[0].value == pytest.approx(accuracy(merge, task))


def loss(folder: Path) -> float:
    """The cross entropy of what it was trained on."""
    rows = load_rows(THREE, "train90")
    logits = torch.from_numpy(said_by_t5(folder, THREE, "train90"))
    return float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(rows.labels).long()))


def test_a_merge_of_copies_says_what_they_say(made: Path, tmp_path: Path) -> None:
    """Brought together by moves of the decoder's stream, which the words' rows follow."""
    given = ["--heads-from", made / "heads", "--tasks", TOY.name]
    run("merge", made / "a", made / "a", *given, "--premerge", "ot_fusion", "--merger", "average",
        "--out", tmp_path / "m")  # fmt: skip
    rows = load_rows(TOY, "test")
    (_, found, _), (_, own, _) = (
        forward(one, rows, max_length=128, placement=CPU)
        for one in (under(made, tmp_path / "m"), under(made, made / "a"))
    )
    np.testing.assert_allclose(found, own, rtol=0, atol=1e-3 * np.abs(own).max())


def test_the_mask_of_rows_is_none_of_a_decoder_of_as_many_tokens(made: Path) -> None:
    said = {"words": {"x": "word5", "y": "word6", "z": "word7"}, "template": "{text}"}
    said["prefix"] = " ".join(f"<extra_id_{place}>" for place in range(3))
    one = under_words(open_checkpoint(made / "a"), said, THREE.labels)
    assert len(one.config[TEXT_HEAD]["decoder"]) == 4
    texts = (("word1 word2 word3",), ("word4",))
    rows = replace(load_rows(THREE, "test", limit=2), texts=texts)
    network = build_model(one.config, one.weights, "it")
    reading = Reading(one, rows, 128, CPU, None)
    both, alone = (gram(network, linear_layers(network), reading.inputs(n))[0] for n in (2, 1))
    assert [*next(reading.inputs(2))["attention_mask"].sum(dim=1)] == [4, 2]
    for name in alone:
        torch.testing.assert_close(both[name], alone[name], rtol=1e-4, atol=1e-5)


# What is refused ------------------------------------------------------------------------------


def test_bad_input_is_one_line(made: Path, tmp_path: Path) -> None:
    base, out = made / "base", tmp_path / "out"
    head = ["heads", "verbalizer", "--base", base, "--out", out, "--task"]
    # default words are the names of the labels, here of several letters each
    refused([*head, TOY.name], BadOption, "word 'no' label 'no'", base, "one token", "--word")
    refused([*head, TOY.name, "--word", "word1", "--word", "word1"], BadOption, "word 'word1'",
            "label 'yes'", "of its own", "--word")  # fmt: skip
    refused([*head, TOY.name, "--word", "word1", "--word", "☃"], BadOption, "☃", "one token")
    refused([*head, TOY.name, "--word", "word1"], BadOption, "1", "2 labels", "no, yes")
    refused([*head, TOY.name, *WORDS, "--template", "what?"], BadOption, "what?", "{text}")
    with mistake(BadOption, "'what?'", "{text}"):
        harness.heads(base, TOY.name, out=out, family="verbalizer", templates="what?")
    with mistake(BadOption, "1 word", "2 labels"):
        harness.heads(base, TOY.name, out=out, family="verbalizer", words="word1")
    refused([*head, TOY.name, *WORDS, "--template", "{text}", "--template", "{text}."], BadOption,
            "--template", "expected one")  # fmt: skip
    refused([*head, TAGS.name], BadRecipe, TAGS, "tagging", "classes")
    refused([*head, VALUE.name], BadRecipe, VALUE, "regression", "classes")
    labels = t5(tmp_path / "labels", ["no", "yes"])
    refused(["heads", "verbalizer", "--base", labels, "--out", out, "--task", TOY.name, *WORDS],
            BrokenCheckpoint, labels, "T5ForConditionalGeneration")  # fmt: skip
    refused(["heads", "clip", "--base", base, "--out", out, "--task", TOY.name, *WORDS],
            BadOption, "--word", "verbalizer")  # fmt: skip
    refused(["heads", "clip", "--base", base, "--out", out, "--task", TOY.name],
            BrokenCheckpoint, base, "CLIP")  # fmt: skip
    refused(["merge", made / "a", made / "b", "--base", base, "--tasks", TOY.name, "--out", out],
            MissingHead, made / "a", "--heads-from")  # fmt: skip
    assert not out.exists()


@pytest.mark.parametrize(("key", "value"), [("words", 5), ("template", None), ("prefix", [1]),
                                           ("decoder", "0")])  # fmt: skip
def test_a_configuration_that_says_something_else_is_one_line(
    made: Path, key: str, value: object, tmp_path: Path
) -> None:
    run("merge", made / "a", made / "b", "--heads-from", made / "heads", "--tasks", TOY.name,
        "--merger", "average", "--out", tmp_path / "m")  # fmt: skip
    file = tmp_path / "m" / "heads" / TOY.name / "config.json"
    config = json.loads(file.read_text())
    config[TEXT_HEAD][key] = value
    file.write_text(json.dumps(config))
    (tmp_path / "m" / "merge.json").unlink()
    refused(["evaluate", "--model", tmp_path / "m", "--tasks", TOY.name, "--protocols", "current",
             "--output-path", tmp_path / "r"],
            BrokenCheckpoint, file, "text_head", key, "expected")  # fmt: skip


def test_questions_that_do_not_fit_are_one_line(made: Path, tmp_path: Path) -> None:
    head = ["heads", "verbalizer", "--base", made / "base", "--out", tmp_path / "out", "--task"]
    refused([*head, MOODS.name, *WORDS], BadOption, "--template '{text}'", MOODS.name, "{label}")
    refused([*head, TOY.name, *WORDS, "--template", ASKED], BadOption, ASKED, TOY.name,
            "classification")  # fmt: skip
    refused([*head, MOODS.name, "--word", "word1", "--template", ASKED], BadOption, "1",
            "2 answers", "no, yes")  # fmt: skip
    refused([*head, MOODS.name, "--preset", "procrustes"], BadOption, "procrustes", "regmean")
    refused(["heads", "clip", *head[2:], MOODS.name, "--preset", "regmean"], BadOption, "--preset")
    refused([*head, TAGS.name, "--template", ASKED], BadRecipe, TAGS.name, "tagging", "classes")
    # the question of RegMean's code
    run(*head, MOODS.name, "--preset", "regmean", *WORDS)
    said = json.loads((tmp_path / "out" / "config.json").read_text())[TEXT_HEAD]
    assert said["template"] == "does the sentence express {label}? <extra_id_0> {text}"
    assert (said["prefix"], said["words"]) == ("<extra_id_0>", {"no": "word3", "yes": "word4"})


def test_rows_that_a_template_does_not_fit_are_refused(made: Path, tmp_path: Path) -> None:
    heads = tmp_path / "heads"
    run("heads", "verbalizer", "--base", made / "base", "--task", TOY.name, *WORDS, "--out", heads)
    refused(["evaluate", "--model", made / "a", "--heads-from", heads, "--tasks", TOY.name,
             "--protocols", "current", "--output-path", tmp_path / "r"],
            BadData, "{text}", "2 texts", "{pair}")  # fmt: skip


def test_heads_are_no_policy_of_models_that_answer_in_words(made: Path, tmp_path: Path) -> None:
    merge = ["merge", made / "a", made / "b", "--heads-from", made / "heads", "--merger", "average",
             "--tasks", TOY.name, "--out", tmp_path / "m", "--heads"]  # fmt: skip
    for policy in ("keep", "merge", "average"):
        refused([*merge, policy], BadRecipe, made / "a", "lm_head", "--heads")


def test_models_that_make_text_are_merged_without_a_task(made: Path, tmp_path: Path) -> None:
    plain = mean([made / "a", made / "b"], tmp_path / "mean")
    merge = ["merge", made / "a", made / "b", "--heads", "none", "--out", tmp_path / "m"]
    refused([*merge, "--merger", "regmean"], BadRecipe, "gram", made / "a", "weights alone")
    run(*merge, "--merger", "average")
    torch.testing.assert_close(states_of(tmp_path / "m"), states_of(plain))
    assert json.loads((tmp_path / "m" / "config.json").read_text())["architectures"]


def test_outputs_that_are_tied_to_no_table_must_be_there(made: Path, tmp_path: Path) -> None:
    """As those that an adapter leaves to its base."""
    one = under(made, made / "a")
    said = one.config[TEXT_HEAD]
    lacking = open_checkpoint(made / "a")
    state = {n: lacking.weights[n] for n in lacking.weights if n != "lm_head.weight"}
    lacking = replace(lacking, weights=state)
    if len(state) < len(open_checkpoint(made / "a").weights):
        with mistake(BrokenCheckpoint, made / "a", "adapter", "'lm_head.weight' as well"):
            under_words(lacking, said, TOY.labels)
        tied = replace(lacking, weights={**state, "lm_head.weight": state["shared.weight"]})
        found = under_words(tied, said, TOY.labels)
        assert torch.equal(found.weights["lm_head.weight"], state["shared.weight"])
    else:
        assert under_words(lacking, said, TOY.labels).labels == TOY.labels


def test_each_stack_has_the_tokens_that_it_saw(made: Path) -> None:
    """An encoder sees the rows, a decoder the words that come before an answer."""
    rows = draw_rows(TOY, 10, 0, None)
    pair = tuple(under(made, made / name) for name in "ab")
    readings = Readings(pair, lambda _: rows, CPU)
    given = harness.NEEDS["activations"].function(readings, examples=10, seed=0, batch_size=4)
    batches = list(readings.of(0).inputs(4))
    tokens = sum(int(one["attention_mask"].sum()) for one in batches)
    answers = len(rows) * len(verbalizer_of(pair[0])["decoder"])
    assert tokens != answers
    for group, count in (("ffn.encoder.0", tokens), ("ffn.decoder.0", answers)):
        assert given[0].products(given[1], group).count == count
        products = given[0].products(given[0], group)
        first = products.sums[0] / count
        covariance = products.inner / count - torch.outer(first, first)
        assert torch.linalg.eigvalsh(covariance)[0] > -1e-6 * covariance.trace()
