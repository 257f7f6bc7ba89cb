"""`--preset ft-classifier` reads as the published script does (docs/methods.md#presets).

`Plain` is that script once more, in plain torch, a row at a time, with a switch for each fault that
the comparison must notice.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from harness.protocols.ft_classifier import Taught, tune, visits
from safetensors.torch import load_file, save_file

import harness
from harness import Encoded, Recipe, Record, Row, Run, Task
from harness.checkpoints.network import classifier_on_meta
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.tokenizer import open_tokenizer
from harness.cli import main
from harness.data.metrics import score
from harness.data.rows import load_rows
from harness.data.shots import draw
from harness.errors import BadData, BadRecipe, BrokenCheckpoint
from harness.evaluation.cells import Cell
from harness.evaluation.reader import Reader
from harness.evaluation.records import predictions_of
from harness.kinds import KINDS
from harness.passes.features import forward
from harness.presets import task_under_preset
from harness.readout import MEAN_ALL
from harness.rng import rng
from harness.weights.threads import one_thread
from tests.conftest import WORDS, model
from tests.mistakes import mistake, names, refused
from tests.toys import registered

LENGTH, BATCH, SEEDS, SHOTS = 256, 128, 2, 3
PRESET = "ft-classifier"
WEIGHTS = "model.safetensors"
Handed: TypeAlias = "dict[tuple[str, str], Encoded]"
ROWS = {"train": 40, "test": 145}


def rows_of(split: str) -> Sequence[Row]:
    """Titles and stories; every tenth story is longer than a model can read."""
    random = np.random.default_rng(len(split))
    found = []
    for index in range(ROWS[split]):
        label = index % 2
        count = 300 if index % 10 == 9 else int(random.integers(1, 120))
        story = random.choice(WORDS[label::2] if index % 3 else WORDS, count)
        found.append({"title": f"word{index % 40}", "story": " ".join(story), "label": label})
    return found


STORIES = Task(
    name="toy/stories",
    kind="classification",
    text=("title", "story"),
    label="label",
    labels=("no", "yes"),
    metrics=("accuracy",),
    splits={"test": "test"},
    reported="test",
    read=lambda row: (f"{row['title']} {row['story']}",),
    generate=rows_of,
)
OTHER = replace(STORIES, name="toy/other", labels=("x", "y", "z"))


def stories(split: str) -> list[tuple[str, int]]:
    """The last column and the label of the rows of a split, in its order."""
    rows = load_rows(replace(STORIES, text=("story",), read=None), split)
    return [(text, int(label)) for (text,), label in zip(rows.texts, rows.labels, strict=True)]


def expert_of(folder: Path, readout: str, task: Task = STORIES) -> Path:
    """The folder with what a fine-tuning says of it."""
    said = {"tasks": [task.name], "readout": readout}
    (folder / "expert.json").write_text(json.dumps(said))
    return folder


def undecided(folder: Path) -> None:
    """Move the bias of the head so that it does not call all rows the same."""
    rows = load_rows(task_under_preset(STORIES, PRESET), "train90")
    _, logits, _ = forward(open_checkpoint(folder), rows, max_length=LENGTH, readout=MEAN_ALL)
    state = load_file(folder / WEIGHTS)
    state["classifier.bias"] -= torch.from_numpy(np.median(logits, axis=0))
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})


@pytest.fixture(scope="module", autouse=True)
def toys() -> Iterator[None]:
    """On one thread, as threads that wait for one another take long where cores are shared."""
    with registered(STORIES, OTHER), one_thread():
        yield


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, two experts whose heads read the mean of all positions, and their merge."""
    root = tmp_path_factory.mktemp("presets")
    sizes: dict[str, Any] = {"max_position_embeddings": LENGTH, "initializer_range": 0.3}
    base = model(root / "base", **sizes)
    for name, task, seed in (("a", STORIES, 1), ("c", OTHER, 2)):
        model(root / name, list(task.labels), seed=seed, near=base, **sizes)
        expert_of(root / name, "mean_all", task)
    undecided(root / "a")
    merger = "task_arithmetic"
    recipe = Recipe(
        experts=(str(root / "a"), str(root / "c")), base=str(base), merger=merger, preset=PRESET
    )
    harness.merge(recipe, out=root / "merged")
    return root


def read(folder: Path, output: Path, **values: Any) -> list[Record]:
    known = {"tasks": (STORIES.name,), "preset": PRESET, "shots": (SHOTS,), "draws": SEEDS}
    return harness.evaluate(Run(model=str(folder), output=str(output), **{**known, **values}))


@contextmanager
def spying() -> Iterator[Handed]:
    """What protocols are handed in the block, by role and protocol."""
    found: Handed = {}
    encoded = Reader.encoded

    def spy(self: Reader, cell: Cell) -> Encoded:
        key = cell.evaluated.role, cell.protocol.name
        found[key] = encoded(self, cell)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reader, "encoded", spy)
        yield found


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation of the merge wrote, and what its protocols were handed."""

    output: Path
    records: list[Record]
    handed: Handed

    def record(self, protocol: str, role: str = "merged") -> Record:
        return next(r for r in self.records if (r.protocol, r.role) == (protocol, role))

    def predictions(self, protocol: str, role: str = "merged") -> dict[str, Any]:
        table = pq.read_table(predictions_of(self.record(protocol, role), self.output))
        return {name: table[name].to_numpy() for name in table.column_names}


@pytest.fixture(scope="module")
def evaluation(room: Path, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    """The merge under the preset, the tuned head without dropout."""
    output = tmp_path_factory.mktemp("evaluation")
    path = output / "records"
    with pytest.MonkeyPatch.context() as patch, spying() as handed:
        patch.setenv("HARNESS_CACHE_DIR", str(output / "cache"))
        protocols = ("current", "knn", "ft-classifier:variant=clean")
        records = read(room / "merged", path, protocols=protocols)
    return Evaluation(path, records, handed)


@dataclass(frozen=True)
class Plain:
    """The published evaluation of one model on the stories; each switch is a fault."""

    folder: Path
    masked: bool = False
    words_only: bool = False
    swapped: bool = False
    titled: bool = False

    def ids(self, text: str) -> list[int]:
        """[CLS] first half [SEP] second half [SEP] [PAD] ..."""
        words = [5 + int(word.removeprefix("word")) for word in text.split()][: LENGTH - 3]
        half = len(words) // 2
        parts = words[:half], words[half:]
        first, second = reversed(parts) if self.swapped else parts
        row = [2, *first, 3, *second, 3]
        return row + [0] * (LENGTH - len(row))

    def features(self, texts: Sequence[str]) -> torch.Tensor:
        """The mean of the last hidden states over all positions, a row at a time."""
        from transformers import AutoModel

        encoder = AutoModel.from_pretrained(self.folder).eval()
        found = []
        for text in texts:
            ids = torch.tensor([self.ids(text)])
            given = {"attention_mask": (ids > 0).long()} if self.masked else {}
            with torch.no_grad():
                states = encoder(ids, token_type_ids=torch.zeros_like(ids), **given)
            hidden = states.last_hidden_state[0]
            found.append((hidden[ids[0] > 4] if self.words_only else hidden).mean(dim=0))
        return torch.stack(found)


def head_of(folder: Path) -> torch.nn.Linear:
    """The head of the stories: one linear layer on features."""
    state = load_file(folder / WEIGHTS)
    head = torch.nn.Linear(16, 2).double()
    with torch.no_grad():
        head.weight.copy_(state["classifier.weight"])
        head.bias.copy_(state["classifier.bias"])
    return head


def whole_batches(seed: int) -> list[int]:
    order = rng(seed, "ftc_test", STORIES.name).permutation(ROWS["test"])
    return sorted(order[: ROWS["test"] // BATCH * BATCH].tolist())


def drawn(seed: int) -> list[list[int]]:
    """Rows of the training split by class, the first of each never among them."""
    labels = [label for _, label in stories("train90")]
    members = [[row for row, own in enumerate(labels) if own == label] for label in (0, 1)]
    return [
        rng(seed, "fewshot", STORIES.name, label).permutation(own[1:])[:SHOTS].tolist()
        for label, own in enumerate(members)
    ]


@pytest.fixture(scope="module")
def plain(room: Path) -> dict[str, torch.Tensor]:
    """Features of the test rows and of the training rows, by the merge and by the expert."""
    test, train = ([text for text, _ in stories(split)] for split in ("test", "train90"))
    merged, expert = Plain(room / "merged"), Plain(room / "a")
    return {
        "test": merged.features(test).double(),
        "train": merged.features(train).double(),
        "taught": expert.features(train).double(),
    }


# The whole against the plain version ------------------------------------------------------------


def test_features_are_those_of_the_script(
    evaluation: Evaluation, plain: dict[str, torch.Tensor]
) -> None:
    """Quirks b to e: no mask, all positions, two halves, 256 tokens."""
    handed = evaluation.handed["merged", "current"]
    np.testing.assert_allclose(handed.test.x, plain["test"], rtol=0, atol=1e-5)
    assert max(len(text.split()) for text, _ in stories("test")) > LENGTH
    assert evaluation.record("current").settings["max_length"] == LENGTH


FAULTS: dict[str, dict[str, bool]] = {
    "the mask is used": {"masked": True},
    "special tokens and padding are left out of the mean": {"words_only": True},
    "halves are swapped": {"swapped": True},
}


@pytest.mark.fault
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_would_show_in_the_features(
    fault: str, room: Path, plain: dict[str, torch.Tensor]
) -> None:
    texts = [text for text, _ in stories("test")[:12]]
    other = Plain(room / "merged", **FAULTS[fault]).features(texts)
    assert (other - plain["test"][:12]).abs().amax(dim=1).median() > 1e-3


def test_current_is_the_head_on_the_mean(
    room: Path, evaluation: Evaluation, plain: dict[str, torch.Tensor]
) -> None:
    """Quirk h: the last linear layer alone, without pooler."""
    logits = head_of(room / "a")(plain["test"]).detach()
    handed = evaluation.handed["merged", "current"]
    np.testing.assert_allclose(handed.test.logits, logits, rtol=0, atol=1e-5)
    right = logits.argmax(dim=1).numpy() == [label for _, label in stories("test")]
    value = evaluation.record("current").scores[0].value
    assert value == right[whole_batches(0)].mean()
    assert value != right.mean(), "the rows must be able to tell whole batches from all rows"


def test_knn_is_that_of_the_same_features(
    evaluation: Evaluation, plain: dict[str, torch.Tensor]
) -> None:
    found = evaluation.predictions("knn")
    for seed in range(SEEDS):
        anchors = [plain["train"][rows] for rows in drawn(seed)]
        expected = [
            int(np.argmin([(own - row).norm(dim=1).mean().item() for own in anchors]))
            for row in plain["test"]
        ]
        assert found[f"shots={SHOTS},seed={seed}"].tolist() == expected


def plain_tune(room: Path, plain: dict[str, torch.Tensor], seed: int) -> torch.nn.Linear:
    """The head after five epochs of Adam, a row at a time, taught by the whole expert."""
    head, teacher = head_of(room / "a"), head_of(room / "a")
    rows = np.array([row for own in drawn(seed) for row in own])
    adam = torch.optim.Adam(head.parameters(), lr=5e-4)
    for epoch in range(5):
        for row in rows[rng(seed, "ftc", STORIES.name, epoch).permutation(len(rows))]:
            taught = torch.softmax(teacher(plain["taught"][row]), dim=0).detach()
            ours = torch.log_softmax(head(plain["train"][row]), dim=0)
            adam.zero_grad()
            (taught * (taught.log() - ours)).sum().backward()
            adam.step()
    return head


def test_the_tuned_head_is_that_of_the_script(
    room: Path, evaluation: Evaluation, plain: dict[str, torch.Tensor]
) -> None:
    handed = evaluation.handed["merged", "ft-classifier"]
    assert handed.pool is not None
    assert handed.head is not None
    assert handed.teacher is not None
    x = np.column_stack([handed.pool.x, np.ones(len(handed.pool))]).astype(np.float64)
    orders = [visits(STORIES.name, one, 5) for one in handed.draws]
    taught = Taught(x, handed.teacher, np.ones(len(x)))
    heads = tune(handed.head, taught, orders, KINDS["classification"], 5e-4)
    start = np.column_stack([handed.head.weight, handed.head.bias])
    found = evaluation.predictions("ft-classifier")
    for one, head in zip(handed.draws, heads, strict=True):
        expected = plain_tune(room, plain, one.seed)
        both = torch.column_stack([expected.weight, expected.bias]).detach()
        np.testing.assert_allclose(head, both, rtol=0, atol=1e-6)
        assert np.abs(head - start).max() > 1e-3
        labels = expected(plain["test"]).argmax(dim=1)
        assert found[f"shots={SHOTS},seed={one.seed}"].tolist() == labels.tolist()


@pytest.mark.filterwarnings("ignore:.* are cut off at ")
def test_features_of_two_readouts_are_kept_apart(room: Path, tmp_path: Path) -> None:
    """In the cache and as records: the same model and rows, at the same length."""
    expert, found = Path(shutil.copytree(room / "a", tmp_path / "a")), {}
    for preset, readout in ((PRESET, "mean_all"), (None, "last_linear")):
        expert_of(expert, readout)
        asked: dict[str, Any] = {"preset": preset, "max_length": LENGTH, "protocols": ("current",)}
        with registered(task_under_preset(STORIES, PRESET)), spying() as handed:
            (record,) = read(expert, tmp_path / "records", **asked)
        found[record.settings["features"]] = handed["expert", "current"].test.x
    assert len(list((tmp_path / "records").rglob("*.json"))) == 2
    assert np.abs(found["mean_all"] - found["last_linear"]).max() > 0.1


# Quirk by quirk ---------------------------------------------------------------------------------


def test_a_the_encoder_drops_units_while_the_head_is_tuned(
    room: Path, evaluation: Evaluation, tmp_path: Path
) -> None:
    """By default under the preset, deterministic by seed; rows are scored without dropout."""
    records = [
        read(
            room / "merged", tmp_path / name, protocols=("ft-classifier:epochs=1",), batch_size=size
        )
        for name, size in (("first", 32), ("again", 5))
    ]
    first, again = (
        [pq.read_table(predictions_of(one, tmp_path / name)) for one in found]
        for name, found in zip(("first", "again"), records, strict=True)
    )
    assert first == again
    assert {r.options["variant"] for r in records[0]} == {"paper"}
    handed = evaluation.handed["merged", "ft-classifier"]
    assert handed.pool is not None
    assert handed.with_dropout is not None
    dropped = handed.with_dropout([0] * 40, 1)
    assert np.array_equal(dropped, handed.with_dropout([0] * 40, 1))
    assert not np.array_equal(dropped, handed.with_dropout([0] * 40, 2))
    assert len(np.unique(dropped, axis=0)) == 40, "each visit drops other units"
    assert np.abs(dropped.mean(axis=0) - handed.pool.x[0]).max() < 1


def test_a_head_is_tuned_on_what_each_visit_shows(
    evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two draws of two epochs on features that are other ones each time, worked by hand."""
    handed = evaluation.handed["merged", "ft-classifier"]
    assert handed.pool is not None
    assert handed.head is not None
    assert handed.teacher is not None
    pool, seeds, heads = handed.pool.x, [], []

    def again(rows: Sequence[int], seed: int) -> Any:
        seeds.append(seed)
        return pool[list(rows)] + np.float32(len(seeds))

    def keep(*given: Any) -> Any:
        heads.extend(tune(*given))
        return np.stack(heads)

    monkeypatch.setattr("harness.protocols.ft_classifier.tune", keep)
    tuned = harness.PROTOCOLS["ft-classifier"].function
    one = replace(handed, with_dropout=again)
    found = tuned(one, epochs=2, variant="paper")
    assert len({*seeds}) == 4
    for place, drawn_rows in enumerate(handed.draws):
        order = [unit for (unit,) in visits(STORIES.name, drawn_rows, 2)]
        shift = np.repeat([1, 2], len(order) // 2)[:, None] + 2 * place
        x = np.column_stack([pool[order] + shift, np.ones(len(order))])
        steps = [[(step,) for step in range(len(order))]]
        taught = Taught(x, handed.teacher[order], np.ones(len(order)))
        (head,) = tune(handed.head, taught, steps, KINDS["classification"], 5e-4)
        np.testing.assert_allclose(heads[place], head, rtol=0, atol=1e-9)
        logits = handed.test.x @ head[:, :-1].T + head[:, -1]
        assert found[place].values.tolist() == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("rows", ["", ",rows=test"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.filterwarnings("ignore:.* are cut off at ")
def test_a_only_what_the_model_drops_is_dropped(
    dropout: float, rows: str, room: Path, tmp_path: Path
) -> None:
    """The paper's variant is there without the preset, too."""
    expert = expert_of(Path(shutil.copytree(room / "a", tmp_path / "a")), "last_linear")
    config = json.loads((expert / "config.json").read_text())
    config |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    (expert / "config.json").write_text(json.dumps(config))
    tables = []
    for variant in ("clean", "paper"):
        asked = (f"ft-classifier:variant={variant}{rows}",)
        usual: dict[str, Any] = {"preset": None, "draws": 1, "max_length": 24, "limit": 20}
        with spying() as handed:
            (record,) = read(expert, tmp_path / "out", protocols=asked, **usual)
        tables.append(pq.read_table(predictions_of(record, tmp_path / "out")))
    one = handed["expert", "ft-classifier"]
    assert one.pool is not None
    assert one.with_dropout is not None
    far = np.abs(one.with_dropout(range(len(one.pool)), 1) - one.pool.x).max()
    assert far < 1e-6 if not dropout else far > 1e-2
    assert tables[0] == tables[1] or dropout


def test_f_the_rows_left_out_are_in_the_record(evaluation: Evaluation) -> None:
    """Those of a last batch that is not full; each draw has its own. All are predicted."""
    for protocol in ("current", "knn", "ft-classifier"):
        record = evaluation.record(protocol)
        left_out = record.settings["left_out"]
        assert set(left_out) == ({"0"} if protocol == "current" else {"0", "1"})
        predictions = evaluation.predictions(protocol)
        for one in record.scores:
            seed = one.seed or 0
            out = left_out[str(seed)]
            assert len(out) == ROWS["test"] % BATCH
            kept = np.setdiff1d(np.arange(ROWS["test"]), out)
            assert kept.tolist() == whole_batches(seed)
            name = "prediction" if one.shots is None else f"shots={one.shots},seed={one.seed}"
            values, labels = predictions[name], predictions["label"]
            assert len(values) == record.rows == ROWS["test"]
            assert one.value == score(STORIES, values[kept], labels[kept]).value
    assert left_out["0"] != left_out["1"]


def test_f_less_than_a_batch_is_one_line(room: Path, tmp_path: Path) -> None:
    with mistake(BadData, "toy/stories@test 100 128"):
        read(room / "merged", tmp_path, limit=100)
    assert not any(tmp_path.iterdir())


def test_g_one_row_of_each_class_is_reserved(evaluation: Evaluation) -> None:
    record = evaluation.record("knn")
    assert record.adaptation is not None
    assert record.adaptation.drawn == {str(seed): drawn(seed) for seed in range(SEEDS)}
    rows = load_rows(STORIES, "train90")
    first = [int(np.flatnonzero(rows.labels == label)[0]) for label in (0, 1)]
    with pytest.warns(UserWarning, match="too few rows for 40 shots"):
        pool, _ = draw(rows, [40], [0], reserved=1)
    assert sorted([*pool, *first]) == list(range(len(rows)))


def test_g_a_class_of_one_row_leaves_nothing_to_draw() -> None:
    rows = load_rows(STORIES, "train", limit=2, first=True)
    with mistake(BadData, "2 1"):
        draw(rows, [1], [0], reserved=1)


def test_g_only_the_last_column_is_read(evaluation: Evaluation, room: Path) -> None:
    read_as = task_under_preset(STORIES, PRESET)
    assert read_as.text == ("story",)
    assert task_under_preset(read_as, PRESET) == read_as
    titled = [f"word{row['title'][4:]} {row['story']}" for row in rows_of("test")[:3]]
    other = Plain(room / "merged").features(titled)
    found = evaluation.handed["merged", "current"].test.x[:3]
    assert np.abs(other.numpy() - found).max() > 1e-4


@pytest.mark.parametrize(
    ("family", "head"), [("roberta", "classifier.out_proj"), ("distilbert", "classifier")]
)
def test_h_of_a_head_only_the_last_layer_is_read(family: str, head: str, tmp_path: Path) -> None:
    """RoBERTa's positions begin after that of its padding."""
    from transformers import AutoModelForSequenceClassification

    sizes = {"max_position_embeddings": LENGTH + 1, "initializer_range": 0.3}
    folder = model(tmp_path / family, ["no", "yes"], family=family, **sizes)
    rows = load_rows(task_under_preset(STORIES, PRESET), "test", limit=3)
    x, logits, _ = forward(open_checkpoint(folder), rows, max_length=LENGTH, readout=MEAN_ALL)
    classifier: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = torch.tensor([Plain(folder).ids(text) for (text,) in rows.texts])
    with torch.no_grad():
        expected = classifier.base_model(ids).last_hidden_state.mean(dim=1)
        outputs = classifier.get_submodule(head)(expected)
    np.testing.assert_allclose(x, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(logits, outputs, rtol=0, atol=1e-5)


# What cannot be read so -------------------------------------------------------------------------

UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "positions": ({"max_position_embeddings": 255}, "255 positions 256"),
    "positions of padding": (
        {"family": "roberta", "max_position_embeddings": 256},
        "255 positions 256",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_model_that_cannot_be_read_so_is_one_line(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, expected = UNFIT[case]
    folder = model(tmp_path / "model", ["no", "yes"], **config)
    monkeypatch.setattr("harness.passes.features.one_pass", None)
    capsys.readouterr()
    evaluate = ["evaluate", "--model", str(folder), "--tasks", STORIES.name]
    finetune = ["finetune", "--base", str(folder), "--task", STORIES.name]
    for command in (
        [*evaluate, "--output-path", str(tmp_path / "records")],
        [*finetune, "--out", str(tmp_path / "expert")],
    ):
        refused([*command, "--preset", PRESET], BrokenCheckpoint, folder, expected, "--preset")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_other_heads_and_models_are_said_to_be_unfit(room: Path) -> None:
    assert MEAN_ALL.fault is not None
    tokenizer = open_tokenizer(room / "a")
    config = json.loads((room / "a" / "config.json").read_text())
    bert: Any = classifier_on_meta(config, "a")
    assert MEAN_ALL.fault(bert, bert.classifier, tokenizer, LENGTH) is None
    narrow = torch.nn.Linear(8, 2)
    names(MEAN_ALL.fault(bert, narrow, tokenizer, LENGTH) or "", "8 16")
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 45}
    bart: Any = classifier_on_meta({"model_type": "bart", **sizes}, "bart")
    found = MEAN_ALL.fault(bart, bart.classification_head.out_proj, tokenizer, LENGTH)
    names(found or "", "encoder")


def test_a_tokenizer_without_special_tokens_is_one_line(room: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(room / "a", tmp_path / "a"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"cls_token": None, "sep_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with mistake(BrokenCheckpoint, "cls_token sep_token"):
        read(folder, tmp_path / "records")


def test_too_few_tokens_are_one_line(room: Path, tmp_path: Path) -> None:
    with mistake(BrokenCheckpoint, "3 4"):
        read(room / "a", tmp_path / "records", max_length=3)


# Experts ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(room: Path) -> Path:
    """An expert of the stories, by the command line."""
    out = room / "trained"
    settings = {"learning-rate": 5e-3, "epochs": 2, "batch-size": 8, "limit": 30}
    flags = [f"--{name}={value}" for name, value in settings.items()]
    command = ["finetune", "--base", str(room / "base"), "--task", STORIES.name, "--out", str(out)]
    assert main([*command, "--preset", PRESET, *flags]) == 0
    return out


def test_an_expert_s_head_is_trained_on_what_it_is_read_on(room: Path, trained: Path) -> None:
    record = json.loads((trained / "expert.json").read_text())
    assert record["readout"] == "mean_all"
    assert record["hyperparameters"]["max_length"] == LENGTH
    rows = load_rows(task_under_preset(STORIES, PRESET), "heldout10", limit=30)
    features = Plain(trained).features([text for (text,) in rows.texts]).double()
    outputs = head_of(trained)(features).argmax(dim=1)
    found = record["scores"]["toy/stories@heldout10"]["value"]
    assert found == (outputs.numpy() == rows.labels).mean()
    before, after = (load_file(room / "base" / WEIGHTS), load_file(trained / WEIGHTS))
    pooler = "pooler.dense.weight"
    assert torch.equal(before[pooler], after[f"bert.{pooler}"]), "nothing goes through it"
    word = "embeddings.word_embeddings.weight"
    assert not torch.equal(before[word], after[f"bert.{word}"])


@pytest.mark.filterwarnings("default")
def test_a_head_read_on_other_features_is_warned_of(
    room: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (record,) = read(trained, tmp_path / "records", protocols=("current",))
    assert record.settings["features"] == "mean_all"
    usual: dict[str, Any] = {"protocols": ("current",), "limit": 4, "preset": None}
    with pytest.warns(
        UserWarning, match=r"trained was trained on other .* give --preset ft-cl"
    ) as told:
        read(trained, tmp_path / "records", max_length=24, **usual)
    assert not any("on other rows" in str(one.message) for one in told), "the rows are the same"
    unknown = Path(shutil.copytree(room / "a", tmp_path / "unknown"))
    (unknown / "expert.json").unlink()
    command = ["evaluate", "--model", str(unknown), "--tasks", STORIES.name, "--preset", PRESET]
    command += ["--protocols", "current", "--output-path", str(tmp_path / "records")]
    assert main(command) == 0
    err = capsys.readouterr().err
    assert err.count("leave out --preset ft-classifier") == 1
    assert main([*command, "--model", str(room / "a")]) == 0
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"preset": "regmean"}, "preset regmean fine-tuning"),
        ({"tasks": (STORIES.name, OTHER.name)}, "expert task 2"),
    ],
)
def test_what_cannot_be_trained_so_is_one_line(
    values: dict[str, Any], expected: str, room: Path, tmp_path: Path
) -> None:
    asked = {"preset": PRESET, "tasks": (STORIES.name,), **values}
    with mistake(BadRecipe, expected):
        harness.finetune(room / "base", out=tmp_path / "out", **asked)


def test_what_is_tuned_is_scored_on_the_same_features(room: Path, tmp_path: Path) -> None:
    merger, preset, tune = "task_arithmetic", PRESET, "scale=0.7:0.7:0.1"
    experts = (str(room / "a"), str(room / "c"))
    base, tune_on = str(room / "base"), (f"{STORIES.name}@heldout10",)
    recipe = Recipe(
        experts=experts, base=base, merger=merger, preset=preset, tune=tune, tune_on=tune_on
    )
    harness.merge(recipe, out=tmp_path / "merged")
    said = json.loads((tmp_path / "merged" / "merge.json").read_text())
    (trial,) = said["tuned"]["trials"]
    rows = load_rows(task_under_preset(STORIES, PRESET), "heldout10")
    features = Plain(tmp_path / "merged").features([text for (text,) in rows.texts]).double()
    outputs = head_of(room / "a")(features).argmax(dim=1)
    assert trial["score"] == (outputs.numpy() == rows.labels).mean()


# The command line -------------------------------------------------------------------------------


def test_the_command_line_reads_so(
    room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All quirks at once, as one record of each protocol says them."""
    command = ["evaluate", "--model", str(room / "merged"), "--tasks", STORIES.name, "--json"]
    few = ["--shots", "1", "--draws", "2", "--output-path", str(tmp_path / "records")]
    assert main([*command, *few, "--preset", PRESET]) == 0
    records = json.loads(capsys.readouterr().out)
    assert {record["protocol"] for record in records} == {"current", "knn", "ft-classifier"}
    for record in records:
        settings = record["settings"]
        assert record["preset"] == PRESET
        assert (settings["features"], settings["max_length"]) == ("mean_all", LENGTH)
        assert [len(out) for out in settings["left_out"].values()].count(17) >= 1
        if record["protocol"] == "ft-classifier":
            assert record["options"]["variant"] == "paper"
        for rows in (record["adaptation"] or {"drawn": {}})["drawn"].values():
            assert all(len(of_class) == 1 for of_class in rows)
    assert main([*command[:-1], *few, "--preset", PRESET]) == 0
    assert "ft-classifier:variant=paper" in capsys.readouterr().out
    assert main(["leaderboard", str(tmp_path / "records"), "--out", str(tmp_path / "board")]) == 0
