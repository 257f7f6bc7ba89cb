"""Records of several bases: a board for each, and one page over them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import harness
from harness.cli import main
from harness.errors import BrokenRecord, MissingScores
from harness.evaluation.records import Record, Source
from harness.hashes import joined
from harness.reporting.bases import by_base
from harness.reporting.boards.board import board_of
from harness.reporting.boards.over import BoardCredits, board_credits, credits_over_boards
from harness.reporting.chosen import Chosen, chosen_lines, read_lines
from harness.reporting.lines import lines_of
from harness.stats.intervals import Ratio
from harness.stats.ranks import concordance
from tests.mistakes import mistake, refused
from tests.resampled import resampled
from tests.test_sets import study

ONE, TWO = ("hub/one", "1" * 32), ("hub/two", "2" * 32)


def of(base: tuple[str, str], *, better: float = 0.1) -> list[Record]:
    """A study of three sets from a base; digests are its own."""
    made = []
    for at in range(3):
        for record in study(at, shift=at / 50, better=better):
            mine = {"digest": f"{base[0]}{record.digest}"}
            mine["teachers"] = tuple(f"{base[0]}{one}" for one in record.teachers)
            mine["experts"] = tuple(
                one.model_copy(update={"digest": f"{base[0]}{one.digest}"})
                for one in record.experts
            )
            if record.role == "merged":
                mine["base"] = Source(source=base[0], digest=base[1])
            made.append(resampled(record.model_copy(update=mine)))
    return made


def stored(folder: Path, *studies: list[Record]) -> Path:
    folder.mkdir(parents=True)
    for number, one in enumerate(record for records in studies for record in records):
        (folder / f"{number}.json").write_text(one.model_dump_json())
    return folder


def test_records_of_a_base_stay_together() -> None:
    first, second = of(ONE), of(TWO)
    mixed = [record for pair in zip(first, second, strict=True) for record in pair]
    lines = [*lines_of(("", record) for record in mixed)]
    made = by_base(lines)
    assert [*made] == ["one", "two"]
    for known, records in zip(made.values(), (first, second), strict=True):
        assert [one.digest for one in known] == [one.digest for one in records]
    assert [*by_base([*lines_of(("", record) for record in first)])] == [""]


def test_bases_of_other_tasks_are_on_one_board() -> None:
    """As those of texts and of images."""
    renamed = [one.model_copy(update={"task": f"other/{one.task}"}) for one in of(TWO)]
    assert [*by_base([*lines_of(("", one) for one in [*of(ONE), *renamed])])] == [""]


def test_what_belongs_to_no_base_stands_beside_each() -> None:
    """A reference under a tuned head is taught by the experts of both: it does not join them."""
    first, second = of(ONE), of(TWO)
    taught = {t: one for records in (first, second) for one in records for t in one.teachers}
    reference = first[0].model_copy(
        update={"role": "reference", "digest": "other", "teachers": tuple(taught)}
    )
    alone = reference.model_copy(update={"digest": "alone", "teachers": ()})
    made = by_base([*lines_of(("", one) for one in [*first, *second, reference, alone])])
    assert [*made] == ["one", "two"]
    assert all({"other", "alone"} <= {one.digest for one in known} for known in made.values())


def test_an_ensemble_is_of_the_base_of_its_experts() -> None:
    """Its record names no experts: its hash is that of theirs, of all here."""
    first, second = of(ONE), of(TWO)
    merge = next(one for one in second if one.role == "merged")
    ensemble = second[0].model_copy(
        update={"role": "ensemble", "digest": joined([one.digest for one in merge.experts])}
    )
    made = by_base([*lines_of(("", one) for one in [*first, *second, ensemble])])
    assert [sum(one.role == "ensemble" for one in known) for known in made.values()] == [0, 1]


def test_bases_of_one_name_are_told_by_their_digests() -> None:
    same = [of(("a/base", "1" * 32)), of(("b/base", "2" * 32))]
    lines = [*lines_of(("", record) for records in same for record in records)]
    assert [*by_base(lines)] == ["base-11111111", "base-22222222"]


def test_a_name_of_a_base_is_no_way_out_of_the_folder() -> None:
    evil = [of(("a/..", "1" * 32)), of(("b/.hidden", "2" * 32))]
    lines = [*lines_of(("", record) for records in evil for record in records)]
    assert all(not name.startswith(".") and "/" not in name for name in by_base(lines))


def test_records_of_two_bases_are_two_boards_and_a_page_over_them(tmp_path: Path) -> None:
    records = stored(tmp_path / "records", of(ONE), of(TWO, better=-0.1))
    single = stored(tmp_path / "single", of(ONE))
    out = tmp_path / "board"
    harness.leaderboard([single], out=out)
    assert (out / "board.md").is_file()
    written = harness.leaderboard([records], out=out)
    assert {one.relative_to(out).as_posix() for one in written} >= {
        *("index.html", "one/board.md", "two/index.html")
    }
    assert not (out / "board.md").exists(), "the board of before is of other records"
    page = (out / "index.html").read_text()
    assert '<a href="one/index.html">one</a>' in page
    for name, base in (("one", ONE), ("two", TWO)):
        text = (out / name / "board.md").read_text()
        assert "sets of experts: 3" in text
        assert f"Base: {base[0].rpartition('/')[2]}" in text
    harness.leaderboard([single], out=out)  # and back: index.html is ours
    assert "<title>Board: " in (out / "index.html").read_text()


@pytest.mark.parametrize("one", ["two", "hub/two"])
def test_a_base_is_chosen_by_name_or_source(one: str, tmp_path: Path) -> None:
    """In every command that refuses a mixture, which says so."""
    records = stored(tmp_path / "records", of(ONE), of(TWO, better=-0.1))
    compare = ["compare", "average-0", "ties-0", f"--records={records}"]
    plot = ["plot", "protocols", records, f"--out={tmp_path}/fig"]
    refused(compare, BrokenRecord, "'average-0' names two models", "--base hub/one --base hub/two")
    refused(plot, BrokenRecord, "two sets of experts", "--base hub/one --base hub/two")
    board = ["leaderboard", records, f"--out={tmp_path}/board"]
    csv = ["export", records, "--format=csv", f"--out={tmp_path}/csv"]
    for command in (compare, plot, board, csv):
        refused([*command, "--base=odd"], MissingScores, "base 'odd', expected one two")
        assert main([*map(str, command), f"--base={one}"]) == 0
    assert "Base: two" in (tmp_path / "board" / "board.md").read_text()
    second = [record.digest for record in of(TWO)]
    kept = read_lines([records], Chosen(bases=(one,)))
    assert sorted({line.digest for line in kept}) == sorted({*second})
    assert len(read_lines([records], Chosen(bases=("one", one)))) == len(read_lines([records]))


def test_a_base_of_other_tasks_is_chosen_too() -> None:
    renamed = [one.model_copy(update={"task": f"other/{one.task}"}) for one in of(TWO)]
    lines = [*lines_of(("", one) for one in [*of(ONE), *renamed])]
    kept = chosen_lines(lines, Chosen(bases=("two",)))
    assert {line.task for line in kept} == {one.task for one in renamed}


def test_two_boards_of_one_name_are_refused(tmp_path: Path) -> None:
    both = stored(tmp_path / "a" / "x", of(ONE), of(TWO))
    alone = stored(tmp_path / "b" / "x-one", of(ONE))
    with mistake(harness.HarnessError, "x-one"):
        harness.leaderboard([both, alone], out=tmp_path / "board", each=True)
    assert not (tmp_path / "board").exists()


def test_credits_of_boards_are_in_one_table() -> None:
    boards = {}
    for name, better in (("first", 0.1), ("second", -0.1), ("third", 0.1)):
        made = board_of(
            [*lines_of((f"{at}", one) for at, one in enumerate(of(ONE, better=better)))]
        )
        boards[name] = board_credits(made)
    found = credits_over_boards(boards)
    (only,) = found["groups"]
    rows = only["rows"]
    assert only["heads"] == ["first", "second", "third"]
    assert only["common"] == "first, second, third"
    assert [name for name, _ in rows] == ["ties", "average"]  # places 0, 1, 0 and 1, 0, 1
    for (_, cells), merge in zip(rows, ("ties", "average"), strict=True):
        for (text, *_), known in zip(cells, boards.values(), strict=True):
            assert text == f"{100 * known.credit[merge].point:.0f}"
    assert not found["finding"], "they are of one base and the same tasks"
    assert credits_over_boards({"first": boards["first"]}) == {}


def credited(work: str, **credit: float) -> BoardCredits:
    """In percent, the most first."""
    return BoardCredits(
        (work, frozenset()),
        {name: Ratio(value / 100, (0.0, 1.0)) for name, value in credit.items()},
    )


def test_merges_are_ordered_on_the_boards_that_they_have_in_common() -> None:
    """Two boards of x are one: there b is before c, on y and z behind; d is first on z alone."""
    boards = {
        "x": credited("x", a=80, b=70, c=60),
        "y": credited("y", a=80, c=70, b=60),
        "z": credited("z", d=90, a=80, c=30, b=20),
        "x2": credited("x", a=70, b=60, c=50, d=40, e=30, f=20),
        "w": credited("w", e=20, f=10),
    }
    found = credits_over_boards(boards)
    groups = [(one["common"], [name for name, _ in one["rows"]]) for one in found["groups"]]
    assert groups == [
        ("x, y, z, x2", ["a", "c", "b"]), ("x2, w", ["e", "f"]), ("z, x2", ["d"])
    ]  # fmt: skip
    assert [one["heads"] for one in found["groups"]] == [
        ["x", "y", "z", "x2"], ["x2", "w"], ["z", "x2"]
    ]  # fmt: skip
    first, agree = found["finding"]
    assert first == (
        "a has the most credit on 2 of its 3 boards, those of one base and the same tasks counted "
        "once."
    )
    assert agree.startswith(
        "On x2, y, z the orders of 3 mergers alone agree no more than by chance: Kendall's W is "
        "0.78 ("
    )
    twice = {  # a merge behind a stage that changes nothing is no second witness
        name: of._replace(
            credit={"dare[a]": of.credit["a"], **of.credit}, staged=frozenset({"dare[a]"})
        )
        for name, of in boards.items()
        if "a" in of.credit
    }
    assert credits_over_boards(twice)["finding"][1] == agree
    found = credits_over_boards({name: of for name, of in boards.items() if name != "x"})
    assert found["finding"][0] == "a has the most credit on 2 of its 3 boards."
    many = {f"{name}-{n}": of for n in range(2) for name, of in boards.items() if "a" in of.credit}
    assert credits_over_boards(many)["groups"][0]["common"] == "8 boards"


def test_rows_that_are_one_are_apart_in_the_table() -> None:
    """Of many, a board names two and says how many more; here each has its credit."""
    alike = [one for one in of(ONE) if one.method != "ties"]
    for name in ("a", "b", "c", "d"):
        alike += [
            one.model_copy(update={"method": name, "model": name, "digest": f"{name}{one.digest}"})
            for one in of(ONE)
            if one.method == "average"
        ]
    board = board_of([*lines_of((f"{at}", one) for at, one in enumerate(alike))])
    assert any("more" in one for one in board.scores.rows)
    assert {*board_credits(board).credit} == {"average", "a", "b", "c", "d"}


def test_concordance_by_hand_and_at_its_ends() -> None:
    assert concordance(np.array([[3.0, 3], [2, 1], [1, 2]])) == pytest.approx(0.75)
    same = np.arange(5.0)[:, None] * np.ones((1, 4))
    assert concordance(same) == pytest.approx(1)
    assert concordance(np.array([[1.0, 3], [2, 2], [3, 1]])) == pytest.approx(0)
    assert concordance(np.ones((3, 2))) == 0
