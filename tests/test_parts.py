"""Parts of a task's rows, of which one has most of a class: drawn, trained on, read by needs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import harness
from harness import TASKS
from harness.checkpoints.provenance import Part, read_expert_json
from harness.cli import main
from harness.data.parts import PARTS, halves, part_of
from harness.data.rows import load_rows, take
from harness.errors import BadData, BadOption
from harness.passes.statistic_file import read_statistic
from harness.passes.statistics import draw_rows, statistic
from harness.rng import rng
from harness.training.miniature import make_base
from tests.mistakes import mistake, refused

TASK = "embedded/topic"


def by_hand(classes: list[int], draws: np.random.Generator) -> tuple[list[int], list[int]]:
    """The same rule in lists and loops."""
    kinds = sorted({*classes})
    key = kinds[int(draws.integers(len(kinds)))]
    mine = [row for row, one in enumerate(classes) if one == key]
    rest = [row for row, one in enumerate(classes) if one != key]
    draws.shuffle(mine)
    draws.shuffle(rest)
    cut = len(mine) * 8 // 10
    a, b = mine[:cut], mine[cut:] + rest
    movable = [*rest]
    while len(b) - len(a) >= 2:
        row = movable.pop(0)
        b.remove(row)
        a.append(row)
    return a, b


def key_of(classes: np.ndarray, seed: int) -> int:
    """The class that is drawn first of all."""
    kinds = np.unique(classes)
    return int(kinds[rng(seed, "draws").integers(len(kinds))])


@pytest.mark.parametrize("seed", range(40))
def test_two_parts_share_no_row_and_the_first_has_most_of_a_class(seed: int) -> None:
    shape = rng(seed, "shape")
    count = int(shape.integers(20, 400))
    classes = shape.integers(int(shape.integers(2, 6)), size=count)
    if seed % 3 == 0:  # one class of nearly all rows: the first part stays the larger one
        classes = np.where(shape.random(count) < 0.9, 0, classes)
    a, b = halves(classes, rng(seed, "draws"))
    assert sorted([*a, *b]) == [*range(count)]
    key = key_of(classes, seed)
    assert sum(classes[a] == key) == int(0.8 * sum(classes == key))
    assert len(b) - len(a) in (0, 1) or len(a) > len(b)


@pytest.mark.parametrize("seed", range(20))
def test_parts_are_those_of_a_plain_version(seed: int) -> None:
    """As sets, the key class told by the draw: within a class the order of draws is another's."""
    classes = rng(seed, "shape").integers(3, size=90)
    found = [{*map(int, one)} for one in halves(classes, rng(seed, "draws"))]
    plain = by_hand(classes.tolist(), rng(seed, "draws"))
    for ours, theirs in zip(found, plain, strict=True):
        mine, other = np.bincount(classes[[*ours]]), np.bincount(classes[theirs])
        assert len(ours) == len(theirs)
        assert mine.sum() == other.sum()
    key = key_of(classes, seed)
    assert sum(classes[row] == key for row in found[0]) == sum(classes[r] == key for r in plain[0])


def test_a_case_by_hand() -> None:
    """10 rows of the key class of 40: 8 and 12 others in A, 2 and 18 others in B."""
    classes = np.array([1] * 10 + [0] * 30)
    seed = next(s for s in range(50) if rng(s).choice(np.unique(classes)) == 1)
    a, b = halves(classes, rng(seed))
    assert (np.bincount(classes[a]).tolist(), np.bincount(classes[b]).tolist()) == (
        [12, 8],
        [18, 2],
    )
    # and where most rows are of it, nothing moves: 32 of 40 stay beside 8 and 0
    turned = next(s for s in range(50) if rng(s).choice(np.array([0, 1])) == 0)
    a, b = halves(np.array([0] * 40 + [1] * 4), rng(turned))
    assert (len(a), len(b)) == (32, 12)


def test_the_first_rows_of_a_part_are_of_all_of_it() -> None:
    classes = np.array([0, 1] * 200)
    a, _ = halves(classes, rng(3))
    whole, few = (np.mean(classes[one] == classes[a[0]]) for one in (a, a[:100]))
    assert abs(whole - few) < 0.15
    assert [*a] != sorted(a)


def test_what_has_no_classes_is_not_parted() -> None:
    part = Part(number=1, seed=0)
    with mistake(BadData, "multilabel"):
        part_of(load_rows(TASKS["embedded/mentions"], "train90"), part)
    similar = load_rows(TASKS["embedded/outcome"], "train90")
    halves_of = [part_of(similar, Part(number=number, seed=0)) for number in (1, 2)]
    middle = (similar.labels.min() + similar.labels.max()) / 2
    assert max(np.mean(one.labels > middle) for one in halves_of) > np.mean(similar.labels > middle)
    rows = load_rows(TASKS[TASK], "train90")
    alone = take(rows, np.flatnonzero(rows.labels == 0).tolist())
    with pytest.raises(BadData, match="one class"):
        part_of(alone, part)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("parts") / "base", steps=2)


def test_an_expert_is_trained_on_its_part_and_its_statistics_are_of_it(
    base: Path, tmp_path: Path
) -> None:
    """Through the pipe: the rows of the folders, of Gram matrices, and of a merge."""
    rows = load_rows(TASKS[TASK], "train90")
    for number, part in enumerate(PARTS, start=1):
        command = ["finetune", "--base", base, "--task", TASK, "--part", part, "--limit", "30"]
        out = tmp_path / str(number)
        assert main([*map(str, command), "--epochs", "1", "--seed", "4", "--out", str(out)]) == 0
        said = read_expert_json(out)
        wanted = part_of(rows, Part(number=number, seed=4, limit=30))
        assert said is not None
        assert (said.part, said.rows, said.rows_digest) == (
            Part(number=number, seed=4, limit=30), 30, wanted.digest,
        )  # fmt: skip
        made = statistic(out, task=TASK, need="gram:examples=16", out=tmp_path / f"{number}.st")
        mine = draw_rows(TASKS[TASK], 16, 0, None, part=said.part)
        assert {*mine.texts} <= {*wanted.texts}
        assert made.header.facts.rows == mine.digest
        assert read_statistic(tmp_path / f"{number}.st").header.facts.rows == mine.digest
    recipe = harness.Recipe(
        experts=(str(tmp_path / "1"), str(tmp_path / "2")), base=str(base),
        merger=harness.parse_choice("regmean:examples=16"),
    )  # fmt: skip
    harness.merge(recipe, out=tmp_path / "merged")
    merged = json.loads((tmp_path / "merged/merge.json").read_text())
    rows_of = [one["rows"] for one in merged["statistics"]]
    parts = (Part(number=n, seed=4, limit=30) for n in (1, 2))
    assert rows_of == [draw_rows(TASKS[TASK], 16, 0, None, part=one).digest for one in parts]
    assert len({*rows_of}) == 2


def test_a_part_that_is_none_is_one_line(base: Path, tmp_path: Path) -> None:
    words = ["finetune", "--base", base, "--task", TASK, "--out", tmp_path / "x", "--part", "3/2"]
    refused(words, BadOption, "--part", "3/2", "1/2")
    assert not (tmp_path / "x").exists()
