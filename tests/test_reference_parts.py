"""What papers' own code does, by hand and against plain versions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from harness.protocols.ft_classifier import Taught, tune
from seqeval.metrics import f1_score
from seqeval.scheme import IOB2
from torch.nn.functional import kl_div, logsigmoid

import harness
from harness import Head, Record, Run, Task
from harness.data.rows import load_rows
from harness.errors import BadData, BrokenCheckpoint
from harness.evaluation.bootstrap import intervals
from harness.evaluation.records import predictions_of
from harness.evaluation.resamples import estimates_of
from harness.kinds import KINDS
from tests.conftest import model
from tests.mistakes import mistake, refused
from tests.test_undefined import expert
from tests.toys import MOODS, TAGS, THREE, known, registered

Tags = Sequence[Sequence[str]]
_known = known(TAGS, MOODS, THREE)


def evaluated(folder: Path, out: Path, *protocols: str, **values: Any) -> list[Record]:
    chosen = tuple(map(harness.parse_choice, protocols))
    run = Run(model=str(folder), output=str(out), protocols=chosen, device="cpu", **values)
    return harness.evaluate(run)


def told(record: Record, out: Path) -> dict[str, Any]:
    return {
        k: np.array(v) for k, v in pq.read_table(predictions_of(record, out)).to_pydict().items()
    }


# Scorers of entities -------------------------------------------------------------------------


def test_scorers_by_hand() -> None:
    """I- alone is an entity by default and of one word each in RegMean's code, none if strict.

    Truth: PER 0-1, LOC 3. Found: PER 0, with an I- of another type after it, and I-LOC alone.
    """
    truth = [["B-PER", "I-PER", "O", "B-LOC", "O"]]
    alone = [["B-PER", "I-PER", "O", "I-LOC", "I-LOC"]]
    other = [["B-PER", "I-LOC", "O", "B-LOC", "O"]]
    found = {
        name: [harness.METRICS[name].function(one, truth) for one in (truth, alone, other)]
        for name in ("span_f1", "span_f1_strict", "span_f1_dataless")
    }
    # alone: PER is right; LOC 3-4 is wrong, of 2 and 2; is none, of 1 and 2; is 3 and 4, of 3 and 2
    # other: PER 0 and LOC 1 are wrong beside LOC 3, of 3 and 2; LOC 0-1 is one that is wrong
    assert found["span_f1"] == pytest.approx([1, 1 / 2, 2 / 5])
    assert found["span_f1_strict"] == pytest.approx([1, 2 / 3, 2 / 4])
    assert found["span_f1_dataless"] == pytest.approx([1, 4 / 5, 2 / 4])


def plain_dataless(predicted: Tags, labels: Tags) -> float:
    """Word by word with a state, as one would write it down from what it does."""
    right = found = there = 0
    for guesses, truth in zip(predicted, labels, strict=True):
        both = []
        for tags in (guesses, truth):
            made, words = [], list(enumerate(tags))
            while words:
                place, tag = words.pop(0)
                run = [(place, tag)] if tag != "O" else []
                while run and tag.startswith("B-") and words and words[0][1].startswith("I-"):
                    run.append(words.pop(0))
                if run:
                    made.append((run[-1][1][2:], run[0][0], run[-1][0]))
            both.append(made)
        found, there = found + len(both[0]), there + len(both[1])
        right += len({*both[0]} & {*both[1]})
    return 2 * right / (found + there)


def some_tags(seed: int, *, iob2: bool = False) -> list[list[str]]:
    random = np.random.default_rng(seed)
    made = [random.choice(TAGS.labels, size).tolist() for size in random.integers(1, 12, 40)]
    for tags in made if iob2 else ():
        for place, tag in enumerate(tags):
            before = tags[place - 1] if place else "O"
            if tag[0] == "I" and before[2:] != tag[2:]:
                tags[place] = f"B{tag[1:]}"
    return made


@pytest.mark.parametrize("seed", range(4))
def test_scorers_agree_with_others(seed: int) -> None:
    truth, guesses = some_tags(seed, iob2=True), some_tags(seed + 9)
    mixed = [a if i % 2 else b for i, (a, b) in enumerate(zip(truth, some_tags(seed), strict=True))]
    for predicted in (mixed, truth):
        strict = f1_score(truth, predicted, mode="strict", scheme=IOB2)
        assert harness.METRICS["span_f1_strict"].function(predicted, truth) == strict
        for labels in (truth, guesses):
            if [*map(len, labels)] == [*map(len, predicted)]:
                dataless = harness.METRICS["span_f1_dataless"].function(predicted, labels)
                assert dataless == pytest.approx(plain_dataless(predicted, labels), abs=1e-12)


@pytest.mark.parametrize("metric", ["span_f1_strict", "span_f1_dataless"])
def test_a_scorer_is_asked_for_through_evaluate(metric: str, tmp_path: Path) -> None:
    """Its score is made again from the stored predictions, and its interval is around it."""
    folder, out = expert(tmp_path / "m", TAGS), tmp_path / "out"
    (record,) = evaluated(folder, out, "current", metrics=(metric,))
    table = told(record, out)
    both = (np.array(TAGS.labels)[table[name].astype(int)] for name in ("prediction", "label"))
    ends = np.flatnonzero(np.diff(table["row"])) + 1
    predicted, labels = ([part.tolist() for part in np.split(one, ends)] for one in both)
    plain = {
        "span_f1_strict": lambda: f1_score(labels, predicted, mode="strict", scheme=IOB2),
        "span_f1_dataless": lambda: plain_dataless(predicted, labels),
    }
    assert record.scores[0].value == pytest.approx(plain[metric](), abs=1e-12)
    estimates = estimates_of(record.resamples, record.scores, record.metrics)
    assert record.intervals == intervals(record.metrics, estimates)
    assert record.intervals[0].low <= record.scores[0].value <= record.intervals[0].high


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (
            replace(TAGS, labels=("O", "B-A", "I-A", "E-A", "S-A")),
            "tag E-A span_f1_",
        ),
        (
            replace(TAGS, labels=("O", "I-A", "I-B", "B-A")),
            "begin I- 1 of 1 IOB1 row",
        ),
    ],
)
def test_tags_that_a_scorer_cannot_read_are_one_line(task: Task, said: str, tmp_path: Path) -> None:
    rows = [{"tokens": ["word1", "word2"], "ner_tags": [0, 1]}]
    task = replace(task, name="toy/other", generate=lambda _: rows)
    with registered(task), mistake(BadData, said):
        evaluated(
            expert(tmp_path / "m", task), tmp_path / "out", "current", metrics=("span_f1_strict",)
        )
    assert not (tmp_path / "out").exists()


# The presets of RegMean and rotation ---------------------------------------------------------


@pytest.mark.parametrize("preset", ["regmean", "rotation"])
def test_a_preset_finds_entities_as_its_code_does(preset: Any, tmp_path: Path) -> None:
    folder = expert(tmp_path / "m", TAGS)
    (record,) = evaluated(folder, tmp_path / "out", preset=preset)
    assert (record.preset, record.metrics) == (preset, ("span_f1_dataless",))
    (asked,) = evaluated(folder, tmp_path / "out", preset=preset, metrics=("span_f1",))
    assert asked.metrics == ("span_f1",)


@pytest.mark.parametrize("preset", ["regmean", "rotation", "procrustes", None])
def test_a_preset_compares_logits_with_one_half(
    preset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: logits of 0.4 and 0.5 are probabilities of 0.60 and 0.62, the latter holds."""
    folder, out = expert(tmp_path / "m", MOODS, initializer_range=0.5), tmp_path / "out"
    (record,) = evaluated(folder, out, "current", preset=preset)
    threshold = 0.5 if preset in ("regmean", "rotation") else 0.0
    assert record.settings.get("threshold", 0.0) == threshold
    logits = plain_logits(folder, MOODS)
    predicted = told(record, out)["prediction"]
    np.testing.assert_array_equal(predicted, logits >= threshold)
    assert ((logits >= 0) != (logits >= 0.5)).any(), "or it could not be told"
    kind = replace(KINDS["multilabel"], threshold=threshold)  # type: ignore[type-var]
    given = np.array([[0.4, 0.5, -0.1]])
    assert kind.predicted(given).tolist() == [[float(z >= threshold) for z in given[0]]]


def plain_inputs(folder: Path, task: Task, **how: Any) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    texts = [one[0] for one in load_rows(task, "test").texts]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tokenizer, tokenizer(texts, return_tensors="pt", truncation=True, **how)


def plain_logits(folder: Path, task: Task) -> Any:
    from transformers import AutoModelForSequenceClassification

    _, inputs = plain_inputs(folder, task, padding=True)
    with torch.no_grad():
        return (
            AutoModelForSequenceClassification.from_pretrained(folder)
            .eval()(**inputs)
            .logits.numpy()
        )


# The direction of the KL -----------------------------------------------------------------------


def test_the_gradient_of_the_reverse_kl_by_hand() -> None:
    """p = (1/2, 1/2), q = (1/4, 3/4): p_j (log p_j / q_j - KL) = -+(log 3) / 4."""
    q, zero = np.array([0.25, 0.75]), np.zeros(2)
    made = KINDS["classification"].gradient(zero, q, reverse=True)
    np.testing.assert_allclose(made, [np.log(3) / 4, -np.log(3) / 4], rtol=0, atol=1e-12)
    # of one Bernoulli with q = 1/4: p (1 - p) (0 - log 1/3)
    made = KINDS["multilabel"].gradient(zero, q, reverse=True)
    np.testing.assert_allclose(made, [np.log(3) / 4, -np.log(3) / 4], rtol=0, atol=1e-12)


def plain_kl(kind: str, outputs: torch.Tensor, taught: torch.Tensor, *, reverse: bool) -> Any:
    """By torch, in either direction."""
    if kind == "multilabel":
        p = torch.stack([logsigmoid(outputs), logsigmoid(-outputs)])
        q = torch.stack([taught, 1 - taught]).log()
    else:
        p, q = outputs.log_softmax(-1), taught.log()
    return kl_div(*((q, p) if reverse else (p, q)), log_target=True, reduction="sum")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["classification", "multilabel", "tagging"])
def test_gradients_are_those_of_torch(kind: str, reverse: bool) -> None:
    random = np.random.default_rng(0)
    outputs = torch.from_numpy(3 * random.normal(size=(50, 4))).requires_grad_()
    taught = KINDS[kind].target([3 * random.normal(size=(50, 4))])
    plain_kl(kind, outputs, torch.from_numpy(taught), reverse=reverse).backward()
    made = KINDS[kind].gradient(outputs.detach().numpy(), taught, reverse=reverse)
    assert outputs.grad is not None
    np.testing.assert_allclose(made, outputs.grad.numpy(), rtol=0, atol=1e-12)
    sure = np.array([[800.0, -800, 0, 0]])
    for given in (sure, -sure):
        assert np.isfinite(
            KINDS[kind].gradient(given, KINDS[kind].target([sure]), reverse=True)
        ).all()


def test_a_head_that_equals_its_teacher_stays_in_either_direction() -> None:
    random = np.random.default_rng(1)
    x = np.column_stack([random.normal(size=(8, 5)), np.ones(8)])
    head = Head(random.normal(size=(3, 5)).astype(np.float32), np.zeros(3, dtype=np.float32))
    kind = KINDS["classification"]
    taught = kind.target([x[:, :5] @ head.weight.T.astype(float)])
    orders = [[(unit,) for unit in range(8)] * 5]
    for reverse in (False, True):
        units = Taught(x, taught, np.ones(8), reverse)
        (tuned,) = tune(head, units, orders, kind, 5e-4)
        np.testing.assert_allclose(tuned[:, :5], head.weight, rtol=0, atol=1e-12)


def test_a_head_is_tuned_by_the_reverse_kl_through_evaluate(tmp_path: Path) -> None:
    """Against torch's own KL, Adam and hidden states; the usual one is another record."""
    from tests.test_kinds import Reader

    folder = expert(tmp_path / "m", THREE, initializer_range=0.5)
    teacher = model(tmp_path / "t", list(THREE.labels), seed=5, initializer_range=0.5)
    (teacher / "expert.json").write_text(json.dumps({"tasks": [THREE.name]}))
    (folder / "expert.json").unlink()
    handed: list[Any] = []
    encoded = Reader.encoded
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reader, "encoded", lambda self, asked: handed.append(
            (asked.evaluated.role, encoded(self, asked))) or handed[-1][1])  # fmt: skip
        options = "epochs=40,learning_rate=0.01"
        records = evaluated(
            folder, out, f"ft-classifier:kl=reverse,{options}", f"ft-classifier:{options}",
            tasks=(THREE.name,), experts=(str(teacher),), shots=(4,), draws=1,
        )  # fmt: skip
    mine = [one for one in records if one.role == "merged"]
    assert [one.options["kl"] for one in mine] == ["reverse", "forward"]
    (given, _) = (one for role, one in handed if role == "merged")
    answers = []
    for record in mine:
        head = torch.nn.Linear(*given.head.weight.shape[::-1]).double()
        with torch.no_grad():
            head.weight.copy_(torch.from_numpy(given.head.weight))
            head.bias.copy_(torch.from_numpy(given.head.bias))
        adam = torch.optim.Adam(head.parameters(), lr=0.01)
        (draw,) = given.draws
        for epoch in range(40):
            for place in harness.rng.rng(0, "ftc", THREE.name, epoch).permutation(
                len(draw.examples)
            ):
                (unit,) = draw.examples[place]
                x, q = (
                    torch.from_numpy(one[unit]).double() for one in (given.pool.x, given.teacher)
                )
                adam.zero_grad()
                reverse = record.options["kl"] == "reverse"
                plain_kl("classification", head(x), q, reverse=reverse).backward()
                adam.step()
        outputs = head(torch.from_numpy(given.test.x).double()).detach().numpy()
        answers.append(outputs)
        made = told(record, out)["shots=4,seed=0"]
        np.testing.assert_array_equal(made, outputs.argmax(axis=1))
    assert np.abs(answers[0] - answers[1]).max() > 1e-2, "or the two could not be told apart"


# The mean over padding too -------------------------------------------------------------------


def test_a_mean_over_padding_too_is_that_of_transformers(tmp_path: Path) -> None:
    """Through evaluate: a nearest class mean of states that are averaged over every position."""
    from transformers import AutoModel

    folder, out = expert(tmp_path / "m", THREE, initializer_range=0.5), tmp_path / "out"
    asked = ("knn:rule=centroid,features=mean_padded", "knn:rule=centroid,features=mean_masked")
    records = evaluated(folder, out, *asked, shots=(3,), draws=2, max_length=16)
    plain = AutoModel.from_pretrained(folder).eval()

    def states(split: str) -> Any:
        task = replace(THREE, splits={"test": "test"})
        rows = load_rows(task, split)
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        texts = [one[0] for one in rows.texts]
        inputs = tokenizer(
            texts, padding="max_length", truncation=True, max_length=16, return_tensors="pt"
        )
        with torch.no_grad():
            return plain(**inputs).last_hidden_state.mean(dim=1).double().numpy()

    train, test = states("train90"), states("test")
    padded, masked = records
    assert padded.settings["features"] == padded.options["features"] == "mean_padded"
    assert padded.adaptation is not None
    other = told(masked, out)
    differs = False
    for seed, groups in padded.adaptation.drawn.items():
        means = np.stack([train[group].mean(axis=0) for group in groups])
        nearest = np.linalg.norm(test[:, None] - means, axis=2).argmin(axis=1)
        column = f"shots=3,seed={seed}"
        np.testing.assert_array_equal(told(padded, out)[column], nearest)
        differs |= bool((other[column] != nearest).any())
    assert differs, "or it would equal the mean over the tokens"


def test_a_mean_over_padding_needs_positions(tmp_path: Path) -> None:
    folder = expert(tmp_path / "m", THREE)
    command = ["evaluate", "--model", str(folder), "--output-path", str(tmp_path / "out")]
    refused(
        [*command, "--protocols", "knn:features=mean_padded", "--max-length", "41"],
        BrokenCheckpoint,
        "40 41",
    )
