"""AdaMerging: against float64 models of one's own, and which rows it is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.func import functional_call
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

import harness
from harness import Choice, Reading, Recipe, Run, StateDict, cli, merge
from harness.checkpoints.open import open_checkpoint
from harness.data.rows import load_rows
from harness.errors import BadOption, BadRecipe
from harness.kinds import kind_of
from harness.passes.entropy import entropies
from harness.passes.placement import CPU
from harness.passes.reading import Readings
from harness.passes.statistics import draw_rows
from harness.reporting.grid import grid
from tests.conftest import FAST, is_head, model
from tests.mistakes import mistake
from tests.toys import MOODS, TAGS, THREE, TOY, VALUE, known, pairs, registered

Minis = Callable[[str], dict[str, Path]]
Loud = Callable[..., Path]
Shares = dict[str, list[float]]
STEPS, SIZE, EXAMPLES, RATE = 4, 5, 12, 0.05
ADA = harness.MERGERS["adamerging"].function
OPTIONS: dict[str, Any] = {
    "steps": STEPS,
    "batch_size": SIZE,
    "examples": EXAMPLES,
    "learning_rate": RATE,
}
_toys = known(TOY, THREE, VALUE, MOODS, TAGS)


def asked(
    folders: Sequence[Path], base: Path, tasks: Sequence[harness.Task], **options: Any
) -> Recipe:
    return Recipe(
        experts=tuple(map(str, folders)),
        base=str(base),
        merger=Choice("adamerging", {**OPTIONS, **options}),
        tasks=tuple(task.name for task in tasks),
        device="cpu",
    )


def report_of(out: Path) -> Any:
    return json.loads((out / "merge.json").read_text())["report"]


# An independent one ------------------------------------------------------------------------


def shown(folder: Path, task: harness.Task, words: bool) -> Iterator[tuple[Any, Any]]:
    """Row by row: the tokens, and where its words begin."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for texts in draw_rows(task, EXAMPLES, 0, None).texts:
        if not words:
            yield tokenizer(*texts, return_tensors="pt"), [0]
            continue
        encoded = tokenizer(list(texts), is_split_into_words=True, return_tensors="pt")
        numbers = encoded.word_ids()
        first = [i for i, n in enumerate(numbers) if n is not None and n not in numbers[:i]]
        yield encoded, first


def entropy(logits: torch.Tensor, task: harness.Task) -> torch.Tensor:
    """Of one unit, straight from the definition."""
    if task.kind == "multilabel":
        p = logits.sigmoid()
        return -(p * p.log() + (1 - p) * (1 - p).log()).sum()
    p = logits.softmax(-1)
    return -(p * p.log()).sum()


def plus_plus(
    vectors: Mapping[str, list[torch.Tensor]], density: float
) -> dict[str, list[torch.Tensor]]:
    """What TIES keeps of flat task vectors: by sorting each, and then by the sum of all."""
    flat = torch.stack(
        [torch.cat([t.flatten() for t in of]) for of in zip(*vectors.values(), strict=True)]
    )
    count = flat.shape[1]
    for line in flat:
        line[line.abs().argsort()[: count - int(count * density) - 1]] = 0
    signs = flat.sum(0).sign()
    assert bool(((signs == 0) == (flat == 0).all(0)).all())
    flat = torch.where(flat.sign() == signs, flat, 0)
    sizes = [of[0].numel() for of in vectors.values()]
    parts = zip(vectors.items(), flat.split(sizes, dim=1), strict=True)
    return {
        name: [line.view_as(t) for line, t in zip(lines, of, strict=True)]
        for (name, of), lines in parts
    }


class Loop:
    """A copy of the model for every task, and coefficients that torch itself differentiates."""

    def __init__(
        self,
        folders: Sequence[Path],
        base: Path,
        tasks: Sequence[harness.Task],
        by: str,
        density: float | None = None,
    ) -> None:
        states = [load_file(folder / "model.safetensors") for folder in folders]
        origin = open_checkpoint(base).weights
        prefix = next(name.partition(".")[0] for name in states[0] if not is_head(name))
        self.origin = {f"{prefix}.{n}": origin[n].double() for n in origin}
        self.origin = {n: t for n, t in self.origin.items() if n in states[0]}
        self.vectors = {n: [s[n].double() - t for s in states] for n, t in self.origin.items()}
        if density is not None:
            self.vectors = plus_plus(self.vectors, density)
        self.by, self.tasks = by, [t for i, t in enumerate(tasks) if t not in tasks[:i]]
        heads = [{n: t.double() for n, t in s.items() if n not in self.origin} for s in states]
        if len(self.tasks) == 1:  # one head for all, which is the mean
            heads = [{n: sum(h[n] for h in heads) / len(heads) for n in heads[0]}]
        self.heads = heads
        words = self.tasks[0].kind == "tagging"
        made = AutoModelForTokenClassification if words else AutoModelForSequenceClassification
        self.networks = [made.from_pretrained(f).double().eval() for f in folders]
        self.rows = [list(shown(f, t, words)) for f, t in zip(folders, self.tasks, strict=False)]
        groups = list(self.origin) if by == "layer" else ["all"]
        self.free = {
            g: torch.full((len(folders),), 0.3, dtype=torch.float64, requires_grad=True)
            for g in groups
        }

    def weights(self) -> dict[str, torch.Tensor]:
        merged = {}
        for name, origin in self.origin.items():
            shares = self.free[name if self.by == "layer" else "all"].clamp(0, 1)
            merged[name] = origin + sum(
                share * vector for share, vector in zip(shares, self.vectors[name], strict=True)
            )
        return merged

    def loss(self, step: int) -> torch.Tensor:
        merged, total = self.weights(), torch.zeros((), dtype=torch.float64)
        parts = zip(self.tasks, self.heads, self.networks, self.rows, strict=False)
        for task, head, network, rows in parts:
            each = []
            for place in range(step * SIZE, (step + 1) * SIZE):
                inputs, first = rows[place % len(rows)]
                logits = functional_call(network, {**merged, **head}, (), dict(inputs)).logits[0]
                lines = logits[first] if task.kind == "tagging" else [logits]
                each += [entropy(line, task) for line in lines]
            total = total + sum(each) / len(each)
        return total

    def run(self) -> list[float]:
        """All steps; the losses."""
        adam = torch.optim.Adam(list(self.free.values()), lr=RATE)
        losses = []
        for step in range(STEPS):
            loss = self.loss(step)
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses.append(loss.item())
        return losses

    @property
    def shares(self) -> dict[str, list[float]]:
        return {name: free.clamp(0, 1).tolist() for name, free in self.free.items()}


def experts_of(
    task: harness.Task, minis: Minis, root: Path, seeds: Sequence[int] = (1, 2)
) -> list[Path]:
    """Experts whose outputs are no near tie, so that the descent has somewhere to go."""
    unit: Any = "word" if task.kind == "tagging" else "row"
    multi = {"problem_type": "multi_label_classification"} if task is MOODS else {}
    folders = []
    for seed in seeds:
        folder = model(
            root / f"{task.name.replace('/', '-')}-{seed}", list(task.labels), seed=seed,
            near=minis("bert")["base"], unit=unit, **multi,
        )  # fmt: skip
        state = load_file(folder / "model.safetensors")
        far = torch.Generator().manual_seed(seed)
        moved = {
            n: t + (1.0 if is_head(n) else 0.1) * torch.randn(t.shape, generator=far)
            for n, t in state.items()
        }
        save_file(moved, folder / "model.safetensors", metadata={"format": "pt"})
        folders.append(folder)
    return folders


def alike(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("task", [TOY, MOODS, TAGS], ids=lambda task: task.kind)
@pytest.mark.parametrize("by", ["task", "layer"])
def test_coefficients_agree_with_a_plain_loop(
    task: harness.Task, by: str, minis: Minis, tmp_path: Path
) -> None:
    """From text to the merged folder, of every kind: one head, the mean, reads both experts."""
    folders, base = experts_of(task, minis, tmp_path), minis("bert")["base"]
    merge(asked(folders, base, [task, task], by=by), out=tmp_path / "m")
    loop = Loop(folders, base, [task, task], by)
    losses = loop.run()
    report = report_of(tmp_path / "m")
    alike(report["losses"], [losses[0], losses[-1]])
    if by == "task":
        alike(report["coefficients"], loop.shares["all"])
    else:
        assert report["coefficients"].keys() == loop.shares.keys()
        for name, shares in loop.shares.items():
            # no share: what every output is alike in, as the bias of all keys, is only rounding
            if "key.bias" not in name:
                alike(report["coefficients"][name], shares)
    merged = load_file(tmp_path / "m" / "model.safetensors")
    for name, tensor in loop.weights().items():
        if "key.bias" not in name:
            alike(merged[name].double().numpy(), tensor.detach().numpy())


@pytest.mark.parametrize("by", ["task", "layer"])
def test_plus_plus_agrees_with_a_plain_loop(by: str, minis: Minis, tmp_path: Path) -> None:
    """Task vectors of what TIES trims to and elects, from text to the folder."""
    folders, base = experts_of(TOY, minis, tmp_path), minis("bert")["base"]
    merge(asked(folders, base, [TOY, TOY], by=by, density=0.2), out=tmp_path / "m")
    loop = Loop(folders, base, [TOY, TOY], by, density=0.2)
    losses = loop.run()
    report = report_of(tmp_path / "m")
    alike(report["losses"], [losses[0], losses[-1]])
    if by == "task":
        alike(report["coefficients"], loop.shares["all"])
    merged = load_file(tmp_path / "m" / "model.safetensors")
    for name, tensor in loop.weights().items():
        if "key.bias" not in name:
            alike(merged[name].double().numpy(), tensor.detach().numpy())
    record = json.loads((tmp_path / "m" / "merge.json").read_text())
    assert record["merger"]["options"]["density"] == 0.2
    assert "density=0.2" in record["method"]


def test_every_task_is_read_through_its_own_head(minis: Minis, tmp_path: Path) -> None:
    """Of different tasks, whose heads are kept, the losses add up."""
    folders = [*experts_of(TOY, minis, tmp_path, [1]), *experts_of(THREE, minis, tmp_path, [2])]
    base = minis("bert")["base"]
    merge(asked(folders, base, [TOY, THREE], by="task"), out=tmp_path / "m")
    loop = Loop(folders, base, [TOY, THREE], "task")
    losses = loop.run()
    alike(report_of(tmp_path / "m")["coefficients"], loop.shares["all"])
    alike(report_of(tmp_path / "m")["losses"], [losses[0], losses[-1]])


# The gradient, by differences --------------------------------------------------------------


def readings(folders: Sequence[Path], task: harness.Task) -> Readings:
    checkpoints = tuple(open_checkpoint(folder) for folder in folders)
    return Readings(checkpoints, lambda place: draw_rows(task, EXAMPLES, 0, None), CPU)


def moved(states: Sequence[StateDict], base: StateDict, shares: Shares) -> dict[str, torch.Tensor]:
    first, second = states
    return {
        n: base[n] + shares[n][0] * (first[n] - base[n]) + shares[n][1] * (second[n] - base[n])
        for n in base
    }


@pytest.mark.parametrize("task", [TOY, MOODS, TAGS], ids=lambda task: task.kind)
def test_a_layers_gradient_is_what_differences_say(
    task: harness.Task, minis: Minis, tmp_path: Path
) -> None:
    folders = experts_of(task, minis, tmp_path)
    (loss,) = entropies(readings(folders, task), 1, SIZE)
    states = [load_file(folder / "model.safetensors") for folder in folders]
    states = [{n: t for n, t in s.items() if not is_head(n)} for s in states]
    origin = open_checkpoint(minis("bert")["base"]).weights
    base = {n: origin[n.partition(".")[2]] for n in states[0] if n.partition(".")[2] in origin}
    shares = {name: [0.3, 0.3] for name in base}
    _, gradient = loss(moved(states, base, shares))
    layer = "bert.encoder.layer.1.output.dense"
    for name in ("bert.embeddings.word_embeddings.weight", f"{layer}.bias"):
        slope = float((gradient[name] * (states[1][name] - base[name])).sum())
        above, below = (
            loss(moved(states, base, {**shares, name: [0.3, 0.3 + step]}))[0]
            for step in (0.01, -0.01)
        )
        assert slope == pytest.approx((above - below) / 0.02, rel=0.02, abs=1e-4)


def test_words_that_were_cut_off_count_for_nothing(minis: Minis, tmp_path: Path) -> None:
    (folder,) = experts_of(TAGS, minis, tmp_path, [1])
    short = replace(TAGS, finetune=replace(TAGS.finetune, max_length=5))
    rows = replace(draw_rows(TAGS, EXAMPLES, 0, None), task=short)
    (loss,) = entropies(Readings((open_checkpoint(folder),), lambda _: rows, CPU), 1, EXAMPLES)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network, each = AutoModelForTokenClassification.from_pretrained(folder).eval(), []
    for words in rows.texts:
        cut = {"truncation": True, "max_length": 5, "return_tensors": "pt"}
        logits = network(**tokenizer(list(words), is_split_into_words=True, **cut)).logits[0]
        each += [entropy(line, TAGS).item() for line in logits[1:-1]]
    assert len(each) < sum(map(len, rows.texts))
    value = loss(load_file(folder / "model.safetensors"))[0]
    assert value == pytest.approx(np.mean(each), rel=1e-5)


def test_the_entropy_falls(minis: Minis, tmp_path: Path) -> None:
    """On the same rows, which every step reads: what a descent is for, and a climb is not."""
    folders, base = experts_of(TOY, minis, tmp_path), minis("bert")["base"]
    every = {"batch_size": EXAMPLES, "steps": 12, "learning_rate": 0.02}
    merge(asked(folders, base, [TOY, TOY], **every), out=tmp_path / "m")
    first, last = report_of(tmp_path / "m")["losses"]
    assert last < first - 0.01


# By hand -----------------------------------------------------------------------------------


def one(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([value])}


def half_square(state: StateDict) -> tuple[float, StateDict]:
    return float(state["w"].square().sum()) / 2, {"w": state["w"]}


def test_the_case_by_hand() -> None:
    merged = ADA([one(1), one(-2)], one(0), unlabeled=(half_square,), by="task")
    assert float(merged["w"]) == pytest.approx(0.301 - 2 * 0.299)
    assert merged.report["coefficients"] == pytest.approx([0.301, 0.299])
    assert merged.report["losses"] == pytest.approx([0.045, 0.045])


def half_squares(state: StateDict) -> tuple[float, StateDict]:
    return sum(float(t.square().sum()) for t in state.values()) / 2, state


def test_plus_plus_by_hand() -> None:
    """Vectors of five entries in two tensors, of which three stay of each: (3, -1 | 2, 0, 0) and
    (-2, 4 | 0, -3, 0). Elected are (+, + | +, -, 0): 3 and 2 of the first, 4 and -3 of the second.
    At c = 0.3 the merge is (0.9, 1.2 | 0.6, -0.9, 0), each entry one expert's alone, so that both
    slopes are above 0 and a step of Adam takes 0.001 off both."""
    first = {"a": torch.tensor([[3.0], [-1.0]]), "b": torch.tensor([2.0, 0.5, 0.1])}
    second = {"a": torch.tensor([[-2.0], [4.0]]), "b": torch.tensor([0.5, -3.0, 0.1])}
    base = {name: torch.zeros_like(tensor) for name, tensor in first.items()}
    merged = ADA([first, second], base, unlabeled=(half_squares,), by="task", density=0.4)
    assert merged["a"].flatten().tolist() == pytest.approx([3 * 0.299, 4 * 0.299])
    assert merged["b"].tolist() == pytest.approx([2 * 0.299, -3 * 0.299, 0])
    assert merged.report["losses"][0] == pytest.approx((0.81 + 1.44 + 0.36 + 0.81) / 2)
    assert merged.report["coefficients"] == pytest.approx([0.299, 0.299])
    whole = ADA([one(1), one(-2)], one(0), unlabeled=(half_square,), by="task", density=1.0)
    assert float(whole["w"]) == pytest.approx(-2 * 0.299)
    assert whole.report["coefficients"] == pytest.approx([0.3, 0.299])


def downhill(slope: float) -> Callable[[StateDict], tuple[float, StateDict]]:
    return lambda state: (slope * float(state["w"]), {"w": torch.tensor([slope])})


def test_coefficients_stay_between_nothing_and_all() -> None:
    merged = ADA([one(1), one(-2)], one(0), unlabeled=(downhill(-1),) * 2, learning_rate=0.5)
    assert float(merged["w"]) == 1
    assert merged.report["coefficients"] == {"w": [1.0, 0.0]}


def test_what_was_cut_has_no_gradient() -> None:
    """As in the authors' code: what has gone below nothing does not come back."""
    there_and_back = (downhill(-1), *[downhill(1)] * 9)
    merged = ADA([one(1), one(-2)], one(0), unlabeled=there_and_back, learning_rate=0.5)
    assert float(merged["w"]) == 0
    assert merged.report["coefficients"] == {"w": [0.0, 0.0]}


def test_what_no_loss_depends_on_keeps_the_coefficients_it_began_with() -> None:
    merged = ADA([one(1)], one(0), unlabeled=(lambda state: (0.5, {}),), initial=0.25)
    assert float(merged["w"]) == 0.25


@pytest.mark.parametrize(
    ("kind", "outputs", "expected"),
    [
        (TOY, [[0.0, 0.0]], np.log(2)),
        (MOODS, [[0.0, 0.0, 100.0]], 2 * np.log(2)),
        (TAGS, [[0.0] * 5], np.log(5)),
    ],
)
def test_entropies_by_hand(kind: harness.Task, outputs: Any, expected: float) -> None:
    assert float(kind_of(kind).entropy(torch.tensor(outputs))) == pytest.approx(expected)


# Which rows --------------------------------------------------------------------------------


def test_the_record_says_which_rows_were_shown(minis: Minis, tmp_path: Path) -> None:
    folders, base = experts_of(TOY, minis, tmp_path), minis("bert")["base"]
    merge(asked(folders, base, [TOY, TOY]), out=tmp_path / "m")
    first, second = json.loads((tmp_path / "m" / "merge.json").read_text())["statistics"]
    assert first["kind"] == second["kind"] == "unlabeled"
    assert first["task"] == second["task"] == "toy/pairs@train90"
    assert first["rows"] == draw_rows(TOY, EXAMPLES, 0, None).digest
    assert first["options"]["rows"] == "train"


def records_of(out: Path, tmp_path: Path) -> Mapping[str, Any]:
    run = Run(
        model=str(out), tasks=("toy/pairs",), protocols=(Choice("current"),), device="cpu",
        output=str(tmp_path / "records"),
    )  # fmt: skip
    return {record.role: record for record in harness.evaluate(run)}


def test_reported_rows_make_a_score_transductive(minis: Minis, tmp_path: Path) -> None:
    """In merge.json, in the record, in the table: from one end to the other."""
    folders, base = experts_of(TOY, minis, tmp_path), minis("bert")["base"]
    known = {}
    for rows in ("train", "test"):
        merge(asked(folders, base, [TOY, TOY], rows=rows), out=tmp_path / rows)
        records = records_of(tmp_path / rows, tmp_path)
        known[rows] = records["merged"]
        assert not records["base"].transductive
        assert not records["base"].shown
    given = json.loads((tmp_path / "test" / "merge.json").read_text())["statistics"][0]
    assert given["task"] == "toy/pairs@test"
    assert given["rows"] == draw_rows(TOY, EXAMPLES, 0, None, "test").digest
    assert given["rows"] != draw_rows(TOY, EXAMPLES, 0, None).digest
    assert (known["test"].shown, known["test"].transductive) == (("toy/pairs@test",), True)
    assert (known["train"].shown, known["train"].transductive) == (("toy/pairs@train90",), False)
    names = [name for name in grid([known["test"]], by_method=True).rows if "transd" in name]
    assert len(names) == 1
    assert names[0].endswith(" (transductive)")
    assert not any("transd" in name for name in grid([known["train"]], by_method=True).rows)


def test_what_is_made_of_a_merge_has_seen_what_it_saw(minis: Minis, tmp_path: Path) -> None:
    """As an expert of another merge, as a reference, as a base, and two merges later."""
    folders, base = experts_of(TOY, minis, tmp_path), minis("bert")["base"]
    merge(asked(folders, base, [TOY, TOY], rows="test"), out=tmp_path / "saw")
    saw, plain = str(tmp_path / "saw"), str(folders[0])
    for name, of in (("again", (saw, plain)), ("later", (str(tmp_path / "again"), plain))):
        merge(Recipe(experts=of, base=str(base), tasks=(TOY.name,) * 2), out=tmp_path / name)
    said = json.loads((tmp_path / "later" / "merge.json").read_text())
    assert said["inherited"] == ["toy/pairs@test"]

    def marks(model: str, **others: Any) -> dict[str, bool]:
        run = Run(
            model=model, tasks=(TOY.name,), protocols=(Choice("current"),), device="cpu",
            output=str(tmp_path / "records"), **others,
        )  # fmt: skip
        return {one.model: one.transductive for one in harness.evaluate(run)}

    found = marks(str(tmp_path / "later"))
    assert found["later"] is True
    assert (found["again"], found[Path(plain).name]) == (True, False)  # its experts
    assert marks(plain, references=(saw,))["saw"] is True
    over = marks(plain, base=saw, other_base=True)
    assert (over[Path(plain).name], over["saw"]) == (False, True)
    harness.finetune(saw, TOY.name, out=tmp_path / "trained", **FAST)
    assert marks(str(tmp_path / "trained"))["trained"] is True


def test_rows_are_known_by_their_texts_whatever_their_task_is_called(
    minis: Minis, tmp_path: Path
) -> None:
    """In another order, with other labels; of what the merge was made into as well."""
    folders, base = experts_of(TOY, minis, tmp_path), minis("bert")["base"]
    merge(asked(folders, base, [TOY, TOY], rows="test"), out=tmp_path / "saw")
    of = (str(tmp_path / "saw"), str(folders[0]))
    merge(Recipe(experts=of, base=str(base), tasks=(TOY.name,) * 2), out=tmp_path / "again")

    def turned(split: str) -> list[dict[str, Any]]:
        return [{**row, "label": 1 - row["label"]} for row in pairs(split)[::-1]]

    marks = []
    with registered(replace(TOY, name="mine/turned", generate=turned)):
        for name in ("saw", "again"):
            run = Run(
                model=str(tmp_path / name), tasks=("mine/turned",), singles=True, device="cpu",
                protocols=(Choice("current"),), output=str(tmp_path / "records"),
            )  # fmt: skip
            marks += [one for one in harness.evaluate(run) if one.role == "merged"]
    assert [(one.shown, one.transductive) for one in marks] == [(("toy/pairs@test",), True)] * 2


def test_test_rows_are_those_that_are_scored(minis: Minis, tmp_path: Path) -> None:
    folders, base = experts_of(TOY, minis, tmp_path), minis("bert")["base"]
    merge(asked(folders, base, [TOY, TOY], rows="test"), out=tmp_path / "m")
    report, rows = report_of(tmp_path / "m"), draw_rows(TOY, EXAMPLES, 0, None, "test")
    assert set(rows.texts) <= set(load_rows(TOY, "test").texts)
    loop = Loop(folders, base, [TOY, TOY], "layer")
    assert abs(report["losses"][0] - loop.loss(0).item()) > 1e-5  # other rows


def test_every_step_shares_one_network_of_a_task(
    minis: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    plain = Reading.model
    monkeypatch.setattr(
        Reading, "model", lambda self: made.append(self.rows.task.name) or plain(self)
    )
    folders = [*experts_of(TOY, minis, tmp_path, [1]), *experts_of(THREE, minis, tmp_path, [2])]
    merge(asked(folders, minis("bert")["base"], [TOY, THREE]), out=tmp_path / "m")
    assert made == ["toy/pairs", "toy/three"]


def test_no_label_is_read(minis: Minis, tmp_path: Path) -> None:
    """Other gold labels on the same rows: the same merge."""
    folders, base = experts_of(TOY, minis, tmp_path), minis("bert")["base"]
    merge(asked(folders, base, [TOY, TOY]), out=tmp_path / "m")
    (loss,) = entropies(readings(folders, TOY), 1, SIZE)
    other = Readings(
        tuple(open_checkpoint(folder) for folder in folders),
        lambda place: _mislabelled(),
        CPU,
    )
    (again,) = entropies(other, 1, SIZE)
    state = load_file(folders[0] / "model.safetensors")
    assert loss(state)[0] == again(state)[0]


def _mislabelled() -> harness.Rows:
    rows = draw_rows(TOY, EXAMPLES, 0, None)
    return replace(rows, labels=1 - rows.labels)


# What is refused ---------------------------------------------------------------------------


def test_a_regression_is_refused_before_anything_is_read(
    minis: Minis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [
        model(tmp_path / str(seed), [], seed=seed, near=minis("bert")["base"]) for seed in (1, 2)
    ]
    with mistake(BadRecipe, "unlabeled toy/value"):
        merge(asked(folders, minis("bert")["base"], [VALUE, VALUE]), out=tmp_path / "m")
    capsys.readouterr()
    code = cli.main([
        "merge", "--experts", ",".join(map(str, folders)), "--base", str(minis("bert")["base"]),
        "--merger", "adamerging", "--tasks", "toy/value", "--out", str(tmp_path / "m"),
    ])  # fmt: skip
    assert code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    "option", ["rows=validation", "steps=0", "initial=1.5", "by=model", "density=0", "density=1.5"]
)
def test_options_have_ranges(option: str, minis: Minis, tmp_path: Path) -> None:
    folders, base = experts_of(TOY, minis, tmp_path, [1]), minis("bert")["base"]
    name, _, value = option.partition("=")
    with mistake(BadOption, name, "adamerging"):
        merge(asked(folders, base, [TOY], **{name: value}), out=tmp_path / "m")


def test_the_tasks_must_be_known(minis: Minis, tmp_path: Path) -> None:
    folders, base = experts_of(TOY, minis, tmp_path), minis("bert")["base"]
    recipe = asked(folders, base, [TOY]).model_copy(update={"tasks": ()})
    with mistake(BadRecipe, "--tasks"):
        merge(recipe, out=tmp_path / "m")
