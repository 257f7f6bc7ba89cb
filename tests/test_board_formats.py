"""What a board is in every format: the same numbers, told what they are, and text that is text."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import pandas
import pyarrow.parquet
import pytest

import harness
from harness import Record
from harness.errors import BrokenRecord
from harness.evaluation.records import (
    Adaptation,
    DrawScore,
    Interval,
    RecordedRecipe,
    RecordedStage,
    Source,
)
from harness.evaluation.resamples import estimate_of
from harness.reporting.boards.board import Board, board_of
from harness.reporting.frame import FRAME, TABLE
from harness.reporting.grid import GridCell, mean_cell
from harness.reporting.lines import lines_of
from harness.text import csv_cell, markdown, points, tex
from harness.types import Array64
from tests.mistakes import mistake, names, refused
from tests.resampled import kept, resampled
from tests.test_boards import (
    MRPC,
    RTE,
    evaluation_table,
    recipe,
    record,
    texts_of,
    two_tasks,
    written,
)

HOSTILE = "<script>alert(1)</script>|a\n\x1b[31m`*_]($%&{}\\ =1+1"


def made(records: list[Record]) -> Board:
    return board_of([*lines_of((f"{i}.json", r) for i, r in enumerate(records))])


def texts(records: list[Record]) -> dict[str, str]:
    return texts_of(made(records))


def interval(low: float, high: float, shots: int | None = None) -> tuple[Interval, ...]:
    return (Interval(low=low, high=high, shots=shots, method="student"),)


def merges(*values: float, task: str = RTE, **given: Any) -> list[Record]:
    """One merge for each value, by the methods a, b, ..."""
    return [
        record("merged", name, task, "current", value, method=name, **given)
        for name, value in zip("abcdef", values, strict=False)
    ]


# Markdown -------------------------------------------------------------------------------------


def rows_of(text: str) -> dict[str, list[str]]:
    """The rows of the first table of a Markdown text."""
    table = text[text.index("\n|") :].strip().split("\n\n")[0]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines()]
    return {
        row[0].strip(): [cell.strip() for cell in row[1:]] for row in cells if "---" not in row[1]
    }


CSV = (
    "- Each protocol at the number of shots nearest to five; all numbers and intervals are in "
    "board.csv and board.parquet."
)


def test_a_protocol_has_one_table_and_the_rest_is_in_the_csv() -> None:
    records = [
        record("merged", "m", RTE, "current", 0.6),
        record("merged", "m", RTE, "knn", {1: [0.5, 0.7], 5: [0.6, 0.7], 10: [0.8, 0.9]}),
    ]
    text = texts(records)["board.md"]
    assert re.findall(r"^## (.*)", text, re.M) == ["current", "knn, 5 shots"]
    assert rows_of(text.partition("## knn")[2])["ties"] == ["65.0 ±7.1"]
    assert CSV in text
    rows = csv.DictReader(io.StringIO(texts(records)["board.csv"]))
    assert [(row["shots"], float(row["value"])) for row in rows] == [
        ("0", 60), ("1", 60), ("5", 65), ("10", 85),
    ]  # fmt: skip


def many(protocols: int, rows: int) -> list[Record]:
    """Merges that are as good as their number, and a base, under so many protocols."""
    return [
        record(role, model, RTE, f"p{n}", row / 1000, method=model)
        for n in range(protocols)
        for row in range(rows + 1)
        for role, model in [("merged", f"m{row}") if row else ("base", "base")]
    ]  # fmt: skip


@pytest.mark.parametrize(("protocols", "rows", "left"), [(9, 10, 0), (40, 40, 36), (2, 300, 0)])
def test_a_board_of_markdown_has_200_lines_at_most(protocols: int, rows: int, left: int) -> None:
    text = texts(many(protocols, rows))["board.md"]
    assert len(text.splitlines()) <= 200
    titles = re.findall(r"^## (.*)", text, re.M)
    assert titles == sorted(f"p{n}" for n in range(protocols))[: protocols - left]
    said = " ".join(text.split())
    assert ("For want of room, without a table here: p12, p13" in said) == bool(left)
    assert ("and 24 more." in said) == bool(left)
    table = rows_of(text)
    assert ("The references and the best merges: 60 of 301 rows." in said) == (rows > 60)
    assert {"base", f"m{rows}"} <= {*table}
    assert ("m1" in table) == (rows <= 60)


def test_a_head_has_task_metric_and_rows() -> None:
    text = texts(merges(0.5, rows=1821))["board.md"]
    assert f"- Tasks: {RTE}." in text
    head, _, metric, rows, *_ = text.partition("\n|")[2].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, metric, rows)]
    assert cells == [["", "rte"], ["*metric*", "accuracy"], ["*rows*", "1,821"]]


def test_the_parts_of_a_metric_are_shown() -> None:
    scores = tuple(
        DrawScore(value=(a + f) / 2, parts={"accuracy": a, "f1": f}, shots=5, seed=seed)
        for seed, (a, f) in enumerate([(0.8, 0.6), (0.9, 0.8)])
    )
    base = record("merged", "m", MRPC, "knn", 0.5, metrics=("accuracy", "f1"))
    text = texts([resampled(base.model_copy(update={"scores": scores}))])["board.csv"]
    (row,) = csv.DictReader(io.StringIO(text))
    assert json.loads(row["parts"]) == {"accuracy": 85.0, "f1": 70.0}


def test_committed_boards_are_of_200_lines_and_none_is_long() -> None:
    for path in Path(__file__).parents[1].glob("leaderboards/*/board.md"):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        assert max(len(line) for line in lines if not line.startswith("|")) <= 120, path
        assert max(map(len, lines)) <= 260, path
        assert len(lines) <= 200, path


def test_a_row_is_no_wider_than_its_cells() -> None:
    lines = texts(merges(0.5, rows=1821))["board.md"].splitlines()
    assert lines[-5:] == [
        "|          |      rte |",
        "|:---------|---------:|",
        "| *metric* | accuracy |",
        "| *rows*   |    1,821 |",
        "| a        |     50.0 |",
    ]


def test_the_legend_says_what_is_there_and_nothing_else() -> None:
    plain = texts(merges(0.5))["board.md"].partition("##")[0]
    of = "- Test rows: 100; merges: 1; tasks: 1."
    assert plain.strip() == f"- Values are x100.\n{of}\n- Tasks: {RTE}.\n{CSV}"
    drawn = texts([record("merged", "m", RTE, "knn", {5: [0.5, 0.6]})])["board.md"]
    assert "`±`: standard deviation over draws (n - 1)" in drawn
    rows = texts(merges(0.5, 0.6, intervals=interval(0.4, 0.7)))["board.md"].partition("##")[0]
    assert "[ ]" not in rows
    assert "those that do not differ significantly from it" in " ".join(rows.split())


def test_rows_of_a_base_that_heads_tell_apart_are_explained() -> None:
    own = record("base", "b", RTE, "current", 0.5, digest="b-own")
    kept = record("base", "b", RTE, "current", 0.3, digest="b-kept", head="kept")
    assert "- `base`: " in texts([*merges(0.5), own, kept])["board.md"]
    assert "- `base`: " not in texts([*merges(0.5), own])["board.md"]


def test_how_a_protocol_adapted_is_said() -> None:
    seen = Adaptation(
        split="x@test", rows=9, labels="chose the rows and were read", transductive=True
    )
    one = record("merged", "m", RTE, "knn", {5: [0.5]}, adaptation=seen)
    files = texts([one])
    said = "itted to drawn rows and their labels; transductive: these are the scored rows"
    assert f"F{said}." in files["board.md"]
    assert data(files["index.html"])["settings"][0]["note"] == f"f{said}"
    row = next(csv.DictReader(io.StringIO(files["board.csv"])))
    assert (row["transductive"], row["adapted"]) == ("1", "chose the rows and were read")


# One number, one text ---------------------------------------------------------------------------


TIES = {
    51.949999999999996: "52.0",
    0.35: "0.4",
    0.25: "0.3",
    -0.25: "-0.3",
    52.0499994: "52.0",
    -0.04: "0.0",
    100 / 3: "33.3",
}
"""Points that are rounded by hand, where that is another way than a float's own."""


def test_points_are_rounded_as_by_hand() -> None:
    assert {value: points(value) for value in TIES} == TIES
    assert [points(value, "+") for value in (0.25, -0.25, 0.04, -0.04)] == [
        "+0.3",
        "-0.3",
        "0.0",
        "0.0",
    ]


@pytest.mark.skipif(shutil.which("node") is None, reason="no node is installed")
def test_the_page_rounds_as_all_other_formats() -> None:
    script = Path(str(harness.__file__)).parent.joinpath("reporting/boards/templates/board.js")
    tenth = re.search(r"const tenth = .*?;", script.read_text(encoding="utf-8"), re.S)
    assert tenth
    asked = f"{tenth[0]} console.log(JSON.stringify({[*TIES]}.map(tenth)))"
    done = subprocess.run(["node", "-e", asked], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [*TIES.values()]


def test_a_cell_is_one_number_in_every_format() -> None:
    records = [record("merged", "m", RTE, "knn", {5: [0.5186, 0.5204]})]
    shown = texts(records)
    assert rows_of(shown["board.md"])["ties"] == ["52.0 ±0.1"]
    assert "& 52.0" in shown["board.tex"]
    assert data(shown["index.html"])["cells"]["value"] == [51.95]
    assert "52.0 ±0.1" in evaluation_table(records)


def test_who_rounds_the_csv_gets_the_numbers_of_the_board() -> None:
    """Of 23.84996, four decimals would be 23.85."""
    shown = texts(merges(0.2384996))
    row = next(csv.DictReader(io.StringIO(shown["board.csv"])))
    assert [points(float(row["value"]))] == rows_of(shown["board.md"])["a"] == ["23.8"]


# What is best -----------------------------------------------------------------------------------


def bold(records: list[Record], column: str = RTE) -> set[str]:
    board = made(records)
    return {*board.best[board.scores.settings[0], column]}


def test_what_is_on_other_resamples_is_not_significantly_below_the_best() -> None:
    first, second = merges(0.7, 0.6)
    assert bold([first, second]) == {"a"}
    assert bold([first, resampled(second, "1" * 16)]) == {"a", "b"}


def test_what_the_best_constant_reaches_is_not_bold() -> None:
    constant = {"majority": DrawScore(value=0.6, parts={"accuracy": 0.6})}
    assert bold(merges(0.60, 0.59, **constant)) == set()
    assert bold(merges(0.61, 0.59, **constant)) == {"a"}


def right_on(name: str, places: Array64, folder: Path, **given: Any) -> None:
    """A merge that is right on these of 300 rows, in each of three draws if it draws any.

    `given` are fields of the record; of FT-Classifier Eval it is that with 5 shots.
    """
    shots = 5 if given.get("protocol") == "ft-classifier" else None
    right = np.isin(np.arange(300), places)
    share = len(places) / 300
    [one] = merges(
        share,
        rows=300,
        dataset={"digest": "d"},
        intervals=interval(share - 0.05, share + 0.05, shots),
    )
    drawn = range(3) if shots else [None]
    scores = tuple(one.scores[0].model_copy(update={"shots": shots, "seed": s}) for s in drawn)
    resamples = (kept([right] * len(scores), shots),)
    given = {"scores": scores, "method": name, "recipe": recipe(name), "digest": name * 32, **given}
    one = one.model_copy(update={"model": name, "resamples": resamples, **given})
    folder.mkdir(exist_ok=True)
    (folder / f"{name}-{one.protocol}.json").write_text(one.model_dump_json())


def test_bold_is_what_a_paired_test_leaves(tmp_path: Path) -> None:
    """`b` is right on twelve rows fewer and on no other; of `c` others are right."""
    folder = tmp_path / "records"
    right_on("a", np.arange(200), folder)
    right_on("b", np.arange(188), folder)
    right_on("c", np.arange(100, 288), folder)
    harness.leaderboard([folder], out=tmp_path)
    text = (tmp_path / "board.md").read_text()
    assert [rows_of(text)[name] for name in "abc"] == [["**66.7**"], ["62.7"], ["**62.7**"]]
    assert "paired test over test units and draws, Holm over all pairs of merges" in " ".join(
        text.split()
    )


def test_a_family_of_claims_is_a_column(tmp_path: Path) -> None:
    """What differs from the best by itself does not among nine others that may as well."""
    alone, among = tmp_path / "alone", tmp_path / "among"
    for folder in (alone, among):
        right_on("a", np.arange(200), folder)
        right_on("b", np.arange(190), folder)
    for place in range(8):
        right_on("cdefghij"[place], np.arange(100, 290 - place), among)
    bold = {}
    for folder in (alone, among):
        harness.leaderboard([folder], out=tmp_path)
        bold[folder] = rows_of((tmp_path / "board.md").read_text())["b"]
    assert bold == {alone: ["63.3"], among: ["**63.3**"]}


def test_few_draws_find_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    for name, places in (("a", np.arange(250)), ("b", np.arange(100))):
        right_on(name, places, folder, protocol="ft-classifier")
    for path in folder.glob("*.json"):
        said = json.loads(path.read_text())
        right = np.arange(300) < (250 if path.name.startswith("a") else 100)
        resamples = [kept([right] * 2, 5).model_dump(mode="json")]
        path.write_text(json.dumps({**said, "scores": said["scores"][:2], "resamples": resamples}))
    harness.leaderboard([folder], out=tmp_path)
    assert rows_of((tmp_path / "board.md").read_text())["b"] == ["**33.3 ±0.0**"]


def test_only_merges_compete_and_one_alone_is_not_the_best() -> None:
    records = [*merges(0.5, 0.4), record("expert", "e", RTE, "current", 0.9)]
    assert bold(records) == {"a"}
    assert made([*merges(0.5), *records[2:]]).best == {}


def test_the_mean_over_tasks_has_an_interval_of_its_own() -> None:
    """60 in [57, 62] and 80 in [76, 85], by hand: 70 - sqrt(9 + 16) / 2, 70 + sqrt(4 + 25) / 2."""
    cells = [GridCell((60.0,), (57.0, 62.0)), GridCell((80.0,), (76.0, 85.0))]
    assert mean_cell(cells).interval == pytest.approx((67.5, 72.6926), abs=1e-4)
    assert mean_cell([cells[0], GridCell((80.0,))]).interval is None


def test_identical_rows_are_one_that_names_both() -> None:
    """The same scores in every column; in a single one, of the same weights."""
    same = [*merges(0.5, 0.5, 0.5, 0.6), *merges(0.7, 0.7, 0.7, 0.6, task=MRPC)]
    board = made([*same, record("expert", "e", RTE, "current", 0.9)])
    assert board.scores.rows == ("expert of the task", "a = b = 1 more", "d")
    assert board.rows_of_lines[:4] == [*["a = b = 1 more"] * 3, "d"]
    for text in texts(same).values():
        assert "a = b = 1 more" in text
    said = "rows with the same score in every column are one: a = b = c."
    assert f"- `=`: {said}" in texts(same)["board.md"]
    assert {f"<b>=</b>: {said}" in texts(s)["index.html"] for s in (same, same[:4])} == {
        True,
        False,
    }
    other = [one.model_copy(update={"digest": one.model * 8}) for one in merges(0.5, 0.5)]
    assert made(other).scores.rows == ("a", "b")
    assert made(merges(0.5, 0.5, digest="c" * 32)).scores.rows == ("a = b",)
    experts = {"a": (Source(source="x", digest="x"),)}
    differs = [one.model_copy(update={"experts": experts.get(one.model, ())}) for one in same]
    assert made(differs).scores.rows == ("a", "b = c", "d")


def test_a_row_that_is_folded_has_its_gain() -> None:
    methods = ("ties", "dare[ties]", "procrustes[ties]")
    records = [
        resampled(record("merged", one, task, "current", value, method=one))
        for one in methods
        for task, value in ((RTE, 0.5 + (one != "ties") / 10), (MRPC, 0.6))
    ]
    board = made(records)
    assert board.scores.rows == ("ties", "dare[ties] = procrustes[ties]")
    assert board.counterparts == {"dare[ties] = procrustes[ties]": "ties"}
    rows = csv.DictReader(io.StringIO(texts(records)["board.csv"]))
    gains = [(row["method"], row["gain"]) for row in rows if row["task"] == "glue/rte"]
    assert gains == [("ties", ""), *((one, "10.000000") for one in methods[1:])]
    idle = [one for one in records if one.method != "procrustes[ties]"]
    same = {"method": "p[ties]", "recipe": recipe("p[ties]")}
    idle += [one.model_copy(update=same) for one in idle if one.method == "ties"]
    assert made(idle).scores.rows == ("ties = p[ties]", "dare[ties]")
    rows = csv.DictReader(io.StringIO(texts(idle)["board.csv"]))
    gains = [(row["method"], row["gain"]) for row in rows if row["task"] == "glue/rte"]
    assert gains == [("ties", ""), ("dare[ties]", "10.000000"), ("p[ties]", "0.000000")]


# Gains and shares -------------------------------------------------------------------------------


STAGES = RecordedRecipe(
    premerge=(RecordedStage(name="dare", options={"drop_rate": 0.9, "rescale": True, "seed": 3}),),
    merger=RecordedStage(name="ties", options={"density": 0.3, "scale": 0.4, "trim": "global"}),
    postmerge=(RecordedStage(name="theirs", options={"far": 2, "near": 1}),),
)
"""Of a plugin that is not loaded no defaults are known: what is none is in the merge's name."""


@pytest.mark.parametrize(
    ("recipe", "stages"),
    [
        (None, ((), "dare[ties]", ())),
        (RecordedRecipe(merger=RecordedStage(name="ties")), ((), "ties", ())),
        (STAGES, (("dare:drop_rate=0.9",), "ties:density=0.3,scale=0.4", ("theirs:far=2",))),
        (
            STAGES.model_copy(update={"tuned": {"scale": 0.4}}),
            (("dare:drop_rate=0.9",), "ties:density=0.3 (scale tuned)", ("theirs:far=2",)),
        ),
        (
            STAGES.model_copy(update={"tuned": {"dare.drop_rate": 0.9}}),
            (("dare (drop_rate tuned)",), "ties:density=0.3,scale=0.4", ("theirs:far=2",)),
        ),
    ],
)
def test_stages_are_those_of_the_recipe(
    recipe: RecordedRecipe | None, stages: tuple[object, ...]
) -> None:
    method = "dare[ties]+theirs:far=2" if recipe else "dare[ties]"
    one = record("merged", "m", RTE, "current", 0.5, method=method, recipe=recipe)
    (line,) = lines_of([("", one)])
    assert (line.premerge, line.merger, line.postmerge) == stages


@pytest.mark.usefixtures("as_found")
def test_defaults_are_those_of_the_method_that_is_defined_now() -> None:
    """One process may read records, load a plug-in, and define its method again."""
    theirs = RecordedRecipe(merger=RecordedStage(name="theirs", options={"far": 2}))

    def merger_of() -> str:
        one = record("merged", "m", RTE, "current", 0.5, method="theirs", recipe=theirs)
        (line,) = lines_of([("", one)])
        return line.merger

    def first(experts: Any, base: Any, *, far: int = 2) -> Any:
        """The base."""

    def second(experts: Any, base: Any, *, far: int = 1) -> Any:
        """The base."""

    assert merger_of() == "theirs"  # nothing is known of it
    for function, name in ((second, "theirs:far=2"), (first, "theirs"), (second, "theirs:far=2")):
        harness.merger("theirs")(function)
        assert merger_of() == name


def test_a_gain_is_over_the_same_with_fewer_stages() -> None:
    """The nearest of them that is there, of the same merger and what follows it."""
    methods = ("ties", "c[ties]", "b+c[ties]", "a+b+c[ties]", "a[ties]+d", "ties+d", "a[average]")
    over = made([record("merged", one, RTE, "current", n / 10, method=one)
                 for n, one in enumerate(methods)]).counterparts  # fmt: skip
    assert over == {
        "c[ties]": "ties",
        "b+c[ties]": "c[ties]",
        "a+b+c[ties]": "b+c[ties]",
        "a[ties]+d": "ties+d",
    }


def pairs() -> list[Record]:
    """Three experts, and TIES with and without DARE on two tasks."""
    values = {("ties", RTE): 0.6, ("dare[ties]", RTE): 0.65, ("ties", MRPC): 0.8}
    values |= {("dare[ties]", MRPC): 0.7}
    records = [
        record("merged", method, task, protocol, value, method=method)
        for (method, task), value in values.items()
        for protocol in ("current", "ft-classifier")
    ]
    return [*records, *(record("expert", f"e{i}", RTE, "current", 0.7 + i / 10) for i in range(3))]


def test_a_gain_is_over_the_same_without_the_first_method() -> None:
    board = made(pairs())
    current = board.scores.settings[0]
    gains = [one.gain.points for one in board.row("dare[ties]", current) if one and one.gain]
    assert gains == pytest.approx([5, -10, -2.5])
    assert not any(gain.mark for gain in board.gained.values())
    assert [one and one.gain for one in board.row("ties", current)] == [None, None, None]


def test_how_far_seeds_are_apart_stands_in_every_format() -> None:
    """Experts of 70, 80 and 90 points have a mean of 80 and a deviation of 10."""
    shown = texts(pairs())
    (line,) = (x for x in shown["board.md"].splitlines() if x.startswith("| experts, mean"))
    assert "80.0 (sd 10.0)" in line
    assert "`(sd)`: standard deviation over the experts of a task (n - 1)." in shown["board.md"]
    assert r"80.0 {\scriptsize(sd 10.0)}" in shown["board.tex"]
    cells = data(shown["index.html"])["cells"]
    assert [(v, sd) for v, sd in zip(cells["value"], cells["experts"], strict=True) if sd] == [
        (80, 10)
    ]


def test_a_gain_is_over_the_nearest_that_is_there() -> None:
    methods = ("ties", "procrustes+dare[ties]", "procrustes+dare[average]", "dare[average]")
    records = [record("merged", one, RTE, "current", 0.5, method=one) for one in methods]
    assert made(records).counterparts == {
        "procrustes+dare[ties]": "ties",
        "procrustes+dare[average]": "dare[average]",
    }


def test_a_gain_that_is_not_significant_is_marked_in_every_format(tmp_path: Path) -> None:
    """`dare[ties]` is right on twelve rows more and wrong on no other. `p[ties]` is on as many,
    most of them others."""
    folder = tmp_path / "records"
    right_on("ties", np.arange(200), folder)
    right_on("dare[ties]", np.arange(212), folder)
    right_on("p[ties]", np.arange(88, 300), folder)
    harness.leaderboard([folder], out=tmp_path)
    text = (tmp_path / "board.tex").read_text()
    rows = {row[0]: row[1] for row in tables(text)[0]}
    for name, mark in (("dare", ""), ("p", "?")):
        assert rows[f"{name}{{[}}ties{{]}}"].endswith(f"$_{{+4.0{mark}}}$")
    assert "?: a difference that is not significant" in text
    lines = csv.DictReader(io.StringIO((tmp_path / "board.csv").read_text()))
    found = {line["row"]: (line["gain"], line["significant"]) for line in lines}
    assert found == {"ties": ("", ""), "dare[ties]": ("4.000000", "1"),
                     "p[ties]": ("4.000000", "0")}  # fmt: skip
    table = pyarrow.parquet.read_table(tmp_path / "board.parquet").to_pylist()
    assert {row["row"]: row["significant"] for row in table} == {
        "ties": None, "dare[ties]": True, "p[ties]": False,
    }  # fmt: skip
    page = (tmp_path / "index.html").read_text()
    shown = data(page)
    names = [shown["rows"][row]["name"] for row in shown["cells"]["row"]]
    assert dict(zip(names, shown["open"], strict=True)) == {
        "ties": 0,
        "dare[ties]": 0,
        "p[ties]": 1,
    }
    assert "<b>?</b>: a difference that is not significant" in page


def test_a_share_is_that_of_a_significant_loss_and_has_its_interval(tmp_path: Path) -> None:
    """`a` is below the expert by 3 rows of 300, `b` by 30, of which a tuned head recovers 20."""
    folder = tmp_path / "records"
    right_on("e", np.arange(240), folder, role="expert", method="expert")
    right_on("a", np.append(np.arange(6, 240), [297, 298, 299]), folder)
    right_on("a", np.arange(1, 240), folder, protocol="ft-classifier")
    right_on("b", np.arange(210), folder)
    right_on("b", np.arange(230), folder, protocol="ft-classifier")
    harness.leaderboard([folder], out=tmp_path)
    text = (tmp_path / "board.md").read_text()
    shares = rows_of(text.partition("## How much")[2])
    assert shares["a"][4:] == ["1.0?", "0.7?", ""]
    assert shares["b"][4:6] == ["10.0", "6.7"]
    assert re.fullmatch(r"67 % \(95 % CI [45]\d to [78]\d %\)", shares["b"][6])
    assert "- `?`: a difference that is not significant" in text
    shown = data((tmp_path / "index.html").read_text())
    names = [row["name"] for row in shown["rows"]]
    assert [shown["gaps"][names.index(name)] for name in "ab"] == [[1], [0]]


def under_both(role: Any, model: str, current: float, tuned: float, **given: Any) -> list[Record]:
    return [
        record(role, model, RTE, "current", current, **given),
        record(role, model, RTE, "ft-classifier", tuned, **given),
    ]


def test_a_share_is_against_the_experts_that_were_merged_and_their_base() -> None:
    """A merge of two experts and one of three, each with the base under the head it has."""
    experts = {f"e{i}": 0.5 + i / 10 for i in range(3)}
    records = [
        record("expert", name, RTE, "current", v, digest=name) for name, v in experts.items()
    ]
    for head, count in (("own", 2), ("kept", 3)):
        merged = tuple(Source(source=name, digest=name) for name in [*experts][:count])
        given = {"head": head, "experts": merged}
        records += under_both("merged", f"m-{head}", 0.4, 0.45, digest=f"m-{head}", **given)
        records += under_both("base", "b", 0.2, 0.2 + count / 10, digest=f"b-{head}", **given)
    found = {share.row: share.verdict for share in made(records).shares}
    assert {row: one.experts for row, one in found.items()} == pytest.approx(
        {
            "base (own head)": 55,
            "base (kept head)": 60,
            "ties (own head)": 55,
            "ties (kept head)": 60,
        }
    )
    controls = {row: one.control for row, one in found.items()}
    assert controls == {
        "base (own head)": None,
        "base (kept head)": None,
        "ties (own head)": pytest.approx(40),
        "ties (kept head)": pytest.approx(50),
    }
    assert found["ties (kept head)"].share == "as the base"


# Tidy tables ------------------------------------------------------------------------------------


def full() -> list[Record]:
    """A record with everything, and one with nothing of it."""
    scores = tuple(
        DrawScore(value=v, parts={"accuracy": v - 0.1, "f1": v + 0.1}, shots=5, seed=i)
        for i, v in enumerate((0.5, 0.6, 0.8))
    )
    whole = record(
        "merged", "m", MRPC, "knn", 0.5,
        method="dare[ties]+lines", metrics=("accuracy", "f1"), rows=408, head="kept",
        preset="rotation",
        options={"k": 5}, intervals=interval(0.55, 0.7, 5), dataset={"digest": "d"},
        majority=DrawScore(value=0.4, parts={"accuracy": 0.4, "f1": 0.4}), digest="ab" * 16,
        adaptation=Adaptation(split="x@train90", rows=9, labels="chose the rows and were read"),
    )  # fmt: skip
    return [
        resampled(whole.model_copy(update={"scores": scores})),
        record("merged", "n", RTE, "current", 0.25),
    ]


EXPECTED = {
    "task": "glue/mrpc", "split": "validation", "kind": "classification",
    "metric": "accuracy+f1", "rows": 408, "protocol": "knn", "options": '{"k": 5}', "shots": 5,
    "row": "dare[ties]+lines", "role": "merged", "model": "m", "method": "dare[ties]+lines",
    "premerge": "dare", "merger": "ties", "postmerge": "lines", "head": "kept",
    "preset": "rotation",
    "adapted": "chose the rows and were read", "transductive": False,
    "value": 100 * (0.5 + 0.6 + 0.8) / 3, "sd": 100 * stdev((0.5, 0.6, 0.8)), "draws": 3,
    "low": 55, "high": 70, "level": 0.95, "majority": 40, "digest": "ab" * 16,
}  # fmt: skip


def test_the_table_has_a_line_for_every_record_and_number_of_shots() -> None:
    first, second = csv.DictReader(io.StringIO(texts(full())["board.csv"]))
    assert [*first] == [*TABLE]
    for name, value in EXPECTED.items():
        shown = first[name]
        assert (
            shown == value
            if isinstance(value, str)
            else float(shown) == pytest.approx(float(value), abs=1e-4)
        )
    assert json.loads(first["parts"]) == pytest.approx({"accuracy": 53.3333, "f1": 73.3333})
    assert (first["record"], second["record"]) == ("./0.json", "./1.json")
    unknown = {name for name, value in second.items() if value == ""}
    assert unknown == {
        *(
            "premerge",
            "postmerge",
            "preset",
            "adapted",
            "sd",
            "low",
            "high",
            "level",
            "majority",
            "facts",
        )
    }


def test_parquet_and_pandas_have_the_same(tmp_path: Path) -> None:
    folder = written(tmp_path / "records", full())
    harness.leaderboard([folder], out=tmp_path / "board")
    first, second = pyarrow.parquet.read_table(tmp_path / "board" / "board.parquet").to_pylist()
    assert {name: first[name] for name in EXPECTED} == pytest.approx(EXPECTED)
    assert (second["sd"], second["low"], second["majority"]) == (None, None, None)


def test_all_shots_and_what_a_fit_tells(tmp_path: Path) -> None:
    facts = {"rows_per_dimension": 0.25, "fit_error": 0.5}
    scores = tuple(
        DrawScore(value=0.5, parts={"accuracy": 0.5}, shots=shots, seed=0, facts=facts)
        for shots in (5, "all")
    )
    usual = record("merged", "m", RTE, "probe", 0.5)
    folder = written(tmp_path / "records", [resampled(usual.model_copy(update={"scores": scores}))])
    harness.leaderboard([folder], out=tmp_path)
    rows = [*csv.DictReader(io.StringIO((tmp_path / "board.csv").read_text()))]
    assert [row["shots"] for row in rows] == ["5", "all"]
    assert [json.loads(row["facts"]) for row in rows] == [facts, facts]
    frame = harness.read_records(folder)
    assert frame.shots.tolist() == [5, float("inf")]
    assert [*map(json.loads, frame.facts)] == [facts, facts]
    text = (tmp_path / "board.md").read_text()
    assert re.findall("^## (.*)", text, re.M) == ["probe, 5 shots"]
    assert "Fitted to fewer rows than features have dimensions." in text


def test_a_frame_has_a_line_for_every_draw(tmp_path: Path) -> None:
    folder = written(tmp_path / "records", full())
    frame = harness.read_records(folder, folder / "0")
    first, second = full()
    assert [*frame.columns] == [*FRAME]
    drawn = frame[frame.record == str(folder / "0" / "knn.json")]
    assert drawn.value.tolist() == pytest.approx([100 * score.value for score in first.scores])
    assert drawn.draw.tolist() == [score.seed for score in first.scores]
    parts = [{k: 100 * v for k, v in score.parts.items()} for score in first.scores]
    assert [*map(json.loads, drawn.parts)] == [pytest.approx(one, abs=1e-6) for one in parts]
    (alone,) = frame[frame.record != drawn.record.iloc[0]].to_dict("records")
    assert harness.Record(**json.loads(Path(alone["record"]).read_text())) == second
    assert (alone["shots"], alone["draw"]) == (0, second.scores[0].seed)


def test_a_frame_has_a_line_for_every_resample_that_is_asked_for(tmp_path: Path) -> None:
    one = resampled(full()[0])
    folder = written(tmp_path, [one])
    usual, more = harness.read_records(folder), harness.read_records(folder, resamples=True)
    scores = more[more["resample"] == 0].reset_index(drop=True)
    pandas.testing.assert_frame_equal(usual, scores, check_categorical=False)
    (of_record,) = one.resamples
    drawn = more[more["resample"] > 0]
    assert drawn["resample"].tolist() == [*range(1, of_record.count + 1)]
    estimate = estimate_of(one, of_record.shots)
    assert estimate is not None
    assert drawn.value.to_numpy() == pytest.approx(100 * estimate.resamples)
    assert drawn.draw.isna().all()


def test_a_frame_says_what_was_merged(tmp_path: Path) -> None:
    frame = harness.read_records(written(tmp_path, two_tasks()))
    board = harness.leaderboard([tmp_path], out=tmp_path / "board")
    table = pandas.read_csv(board[1], keep_default_na=False)
    for name in ("task", "row", "method", "premerge", "merger", "digest"):
        assert {*frame[name]} == {*table[name]}
    means = frame.groupby(["task", "row", "protocol", "shots"], observed=True).value.mean()
    assert sorted(means) == pytest.approx(sorted(table.value), abs=1e-6)


def test_a_frame_says_the_sets_of_experts_of_each_base_and_the_provenance(tmp_path: Path) -> None:
    """Two trainings of the experts of one base, and one by the first seed of another base."""
    data = {"dataset": {"digest": "d", "source": "org/rte", "revision": "abc"}}
    data |= {"versions": {"torch": "2"}, "method": "dare[ties]+lines"}
    records = []
    for base, seed in (("a", 0), ("a", 7), ("b", 0)):
        experts = tuple(
            Source(source=f"{base}-{task}", digest=f"{base}{task}{seed}", task=task, seed=seed)
            for task in ("rte", "mrpc")
        )
        experts = (experts[0].model_copy(update={"head_seed": 3}), experts[1])
        given = {"base": Source(source=base, digest=base), "experts": experts, **data}
        records.append(record("merged", f"{base}{seed}", RTE, "current", 0.5, **given))
    frame = harness.read_records(written(tmp_path, records))
    assert dict(zip(frame.model, frame["set"], strict=True)) == {"a0": 0, "a7": 1, "b0": 0}
    assert [*frame.experts_seed] == ["0 0", "7 7", "0 0"]
    assert {*frame.experts_head_seed} == {"3 ?"}
    assert {*zip(frame.premerge, frame.merger, frame.postmerge, strict=True)} == {
        ("dare", "ties", "lines")
    }
    assert {*zip(frame.source, frame.revision, frame.dataset, strict=True)} == {
        ("org/rte", "abc", "d")
    }
    assert [*map(json.loads, frame.versions)] == [{"torch": "2"}] * 3


def test_records_are_found_from_the_board(tmp_path: Path) -> None:
    written(tmp_path / "deep" / "records", full())
    out = tmp_path / "boards" / "one"
    harness.leaderboard([tmp_path / "deep" / "records"], out=out)
    files = [row["record"] for row in csv.DictReader(io.StringIO((out / "board.csv").read_text()))]
    assert files == [f"../../deep/records/{i}/{n}.json" for i, n in enumerate(("knn", "current"))]
    assert all((out / file).is_file() for file in files)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"rows": 10**20}, "'rows' less than"),
        ({"rows": -1}, "'rows' greater than 0"),
        ({"scores": []}, "'scores' at least 1"),
        ({"scores": [{"value": float("nan"), "parts": {}}]}, "score nan"),
        ({"scores": [{"value": 0.5, "parts": {"f1": float("inf")}}]}, "score inf"),
        ({"scores": [{"value": 0, "parts": {}, "facts": {"x": -math.inf}}]}, "score -inf"),
        ({"resamples": []}, "resamples evaluate"),
        ({"intervals": [{"low": -1e9, "high": 1, "method": "student"}]}, "score -1000000000.0"),
    ],
)  # fmt: skip
def test_what_no_table_can_hold_is_one_line(
    values: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({**full()[1].model_dump(mode="json"), **values}))
    for command in (["leaderboard"], ["export", "--format", "lm-eval"]):
        err = refused([*command, str(path), "--out", str(tmp_path / "out")], BrokenRecord)
        assert err.startswith(f"harness: {path}")
        names(err, says)
    assert not (tmp_path / "out").exists()


# LaTeX ------------------------------------------------------------------------------------------


def tables(text: str) -> list[list[list[str]]]:
    """The cells of every table, checked to be of one width."""
    found = []
    for body in re.findall(r"\\begin{tabular}{([lr]+)}(.*?)\\end{tabular}", text, re.S):
        columns, rows = body
        cells = [row.split(" & ") for row in re.findall(r"^(.*) \\\\$", rows, re.M)]
        assert {len(row) for row in cells if "multicolumn" not in row[1]} == {len(columns)}
        found.append(cells)
    return found


def test_latex_has_gains_and_what_they_are_over() -> None:
    text = texts(pairs())["board.tex"]
    current = {row[0]: row[1:] for row in tables(text)[0]}
    assert current["dare{[}ties{]}"] == [
        *(r"\textbf{65.0}$_{+5.0}$", r"70.0$_{-10.0}$", r"67.5$_{-2.5}$")
    ]
    assert current["ties"] == ["60.0", r"\textbf{80.0}", r"\textbf{70.0}"]
    assert [*current][1:4] == ["experts, min", "experts, mean", "experts, max"]
    assert text.count(r"\midrule") > text.count(r"\toprule")


def test_latex_has_methods_by_protocols_with_deviations() -> None:
    records = [
        record("merged", "m", RTE, "current", 0.6),
        record("merged", "m", RTE, "ft-classifier", {5: [0.7, 0.8]}),
    ]
    both = tables(texts(records)["board.tex"])[-1]
    assert both[1:] == [
        ["ties", "current", "60.0"],
        ["", "ft-classifier, 5 shots", r"75.0{\scriptsize$\pm$7.1}"],
    ]


def test_latex_has_what_lies_in_and_out_of_domain() -> None:
    records = [
        *merges(0.6, 0.7),
        *merges(0.2, 0.4, task=MRPC),
        record("expert", "e", RTE, "current", 0.9),
        record("single", "e", MRPC, "current", 0.3),
    ]
    text = texts(records)["board.tex"]
    assert r"\multicolumn{2}{c}{in-domain (1)} & \multicolumn{2}{c}{out-of-domain (1)}" in text
    rows = {row[0]: row[1:] for row in tables(text)[-1]}
    assert rows["b"] == ["70.0", "70.0", "40.0", "40.0"]
    assert "in-domain" not in texts(two_tasks())["board.tex"]


def under(text: str) -> list[str]:
    """The notes under the tables of a board.tex."""
    return re.findall(r"^\\boardnote\{(.*)\}$", text, re.M)


def test_latex_says_under_each_table_what_its_columns_and_rows_are() -> None:
    test_rows = Adaptation(split="x@test", rows=9, labels="were not read", transductive=True)
    tuned = Adaptation(split="x@train", rows=9, labels="chose the rows and were read")
    by = {"surgery": test_rows, "ft-classifier": tuned, "current": None}
    drawn = [
        record(
            "merged", "m", RTE, protocol, {5 if seen else 0: [0.5, 0.6]},
            method="average", adaptation=seen,
        )
        for protocol, seen in by.items()
    ]  # fmt: skip
    current, classifier, surgery, both, *_ = under(texts([*drawn, *pairs()])["board.tex"])
    assert "Subscripts: points gained over" in current
    assert "experts, max: chosen on the scored rows, an oracle." in current
    assert "Bold: the best merge of a column" in current
    assert "transductive" not in current + classifier
    assert "Fitted to drawn rows and their labels." in classifier
    scored = "transductive: these are the scored rows."
    assert surgery.endswith(f"Adapted to rows without their labels; {scored}")
    assert r"$\pm$: standard deviation over draws" in both
    assert "$^{a}$ fitted to drawn rows and their labels. $^{b}$ adapted to rows" in both
    lines = texts([*drawn, *pairs()])["board.tex"].splitlines()
    marked = [line.split(" & ")[1] for line in lines if "^{" in line and " & " in line]
    assert {*marked} == {"ft-classifier, 5 shots$^{a}$", "surgery, 5 shots$^{b}$"}


def test_a_latex_table_with_more_notes_than_letters_has_all_of_them() -> None:
    records = [
        record(
            "merged", "m", RTE, f"p{n}", {5: [0.5]}, settings={"train_limit": n},
            adaptation=Adaptation(split="x@train", rows=9, labels="were not read"),
        )
        for n in range(1, 30)
    ]  # fmt: skip
    text = texts(records)["board.tex"]
    marks = re.findall(r"\$\^\{(\w+)\}\$ adapted to rows", under(text)[-1])
    assert [*marks[:2], *marks[-4:]] == ["a", "b", "z", "aa", "bb", "cc"]
    assert "of 1 training row at most." in under(text)[-1]
    assert [row[1].partition("$")[2] for row in tables(text)[-1][1:]] == [
        f"^{{{mark}}}$" for mark in marks
    ]


def test_latex_tables_end_with_the_page() -> None:
    records = [
        record("merged", f"m{n}", RTE, "current", 0.5, method=f"{stage}m{n}]", digest=f"{stage}{n}")
        for stage in ("a[", "b[", "c[")
        for n in range(14)
    ]
    shown = tables(texts(records)["board.tex"])
    assert [len(rows) for rows in shown] == [1 + 28, 1 + 14]
    assert texts(records)["board.tex"].count("(continued)") == 1


def test_latex_says_where_pdflatex_is_not_enough() -> None:
    assert (
        "xelatex" in texts([record("merged", "m", RTE, "current", 0.5, method="合并")])["board.tex"]
    )
    assert "xelatex" not in texts(merges(0.5))["board.tex"]


def test_latex_is_balanced() -> None:
    text = texts([*pairs(), record("merged", HOSTILE, RTE, "knn", 0.5, method=HOSTILE)])[
        "board.tex"
    ]
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert text.count(r"\begin{") == text.count(r"\end{")
    assert (
        bare.count("$") - bare.count(r"\$") * 1 == bare.count("$_") * 2 + bare.count(r"$\pm$") * 2
    )


# The page ---------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The elements of a page, and the text of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {"script": [], "style": [], "title": []}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in self.inside and data.strip():
            self.inside[self.tags[-1][0]].append(data)


def data(text: str) -> dict[str, Any]:
    """What a page shows."""
    read: dict[str, Any] = json.loads(Page(text).inside["script"][0])
    return read


def test_a_page_needs_nothing_and_runs_only_its_own() -> None:
    text = texts(full())["index.html"]
    page = Page(text)
    assert [tag for tag, _ in page.tags if tag in ("link", "img", "iframe", "object")] == []
    assert not [
        attrs for _, attrs in page.tags if "src" in attrs or "href" in attrs or "style" in attrs
    ]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    policy = next(attrs["content"] for tag, attrs in page.tags if "http-equiv" in attrs)
    data_, script = page.inside["script"][0], page.inside["script"][-1]
    assert data_ != script
    for kind, source in (("script", script), ("style", page.inside["style"][0])):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in str(policy)
    assert str(policy).startswith("default-src 'none'")


def test_a_page_holds_the_cells_of_the_board() -> None:
    board = made(full())
    shown = data(texts_of(board)["index.html"])
    cells = shown["cells"]
    names = [shown["rows"][row]["name"] for row in cells["row"]]
    place = names.index("dare[ties]+lines")
    at = {name: cells[name][place] for name in cells}
    assert shown["tasks"][at["task"]] == {
        "name": MRPC, "short": "mrpc", "kind": "classification", "metric": "accuracy + f1",
        "rows": 408,
    }  # fmt: skip
    numbers = (at["value"], at["sd"], at["low"], at["high"])
    assert numbers == pytest.approx((63.333333, 15.275252, 55, 70), abs=1e-6)
    said = {name: shown["texts"][places[place]] for name, places in shown["records"].items()}
    assert said["parts"] == "accuracy 53.3, f1 73.3"
    assert said["draws"] == "50.0, 60.0, 80.0"
    assert (said["folder"], said["file"], said["digest"]) == (".", "0.json", "ab" * 16)
    assert {len(column) for column in (*cells.values(), *shown["records"].values())} == {
        sum(cell is not None for row in board.scores.rows for one in board.scores.settings
            for cell in board.scores.row(row, one))
    }  # fmt: skip


# Text is text -----------------------------------------------------------------------------------


def hostile() -> list[Record]:
    """Every text that a record can hold is one that means something somewhere."""
    return [
        record(
            role, HOSTILE, f"{HOSTILE}@{HOSTILE}", protocol, {5: [0.5, 0.6]},
            method=f"{HOSTILE}[ties]" if role == "merged" else HOSTILE, metrics=(HOSTILE, "f1"),
            options={HOSTILE: HOSTILE}, head=HOSTILE, digest=HOSTILE * number,
            experts=(Source(source=HOSTILE, digest=HOSTILE),),
        )
        for number, (role, protocol) in enumerate(
            [("merged", "knn"), ("merged", "knn"), ("reference", "current"), ("base", HOSTILE)], 1
        )
    ]  # fmt: skip


def test_text_of_records_does_no_harm_anywhere() -> None:
    files = texts(hostile())
    for name, text in files.items():
        assert "\x1b" not in text, name
    page = Page(files["index.html"])
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert any("<script>alert(1)" in row["name"] for row in data(files["index.html"])["rows"])
    assert "<script" not in files["board.md"]
    widths = {
        len(re.split(r"(?<!\\)(?:\\\\)*\|", line))
        for line in files["board.md"].splitlines()
        if line[:1] == "|"
    }
    assert widths == {4}
    rows = [*csv.reader(io.StringIO(files["board.csv"]))]
    assert {len(row) for row in rows} == {len(TABLE)}
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@"))]
    tables(files["board.tex"])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"),
        (r"a\|b", r"a\\\|b"),
        ("**a** `b` ~~c~~", r"\*\*a\*\* \`b\` \~\~c\~\~"),
        ("_a_ task_arithmetic", r"\_a\_ task_arithmetic"),
        ("<b> &lt;", "&lt;b&gt; &amp;lt;"),
        ("[x](y)", r"[x]\(y)"),
        ("https://x.y www.z", r"https\://x.y www\.z"),
        ("a\nb\x1b", r"a\\nb\\x1b"),
    ],
)
def test_markdown_of_a_text_is_that_text(text: str, shown: str) -> None:
    assert markdown(text) == shown


def test_the_other_formats_of_a_text() -> None:
    assert tex(r"a_b & 50% \x [#] {~^}") == (
        r"a\_b \& 50\% \textbackslash{}x {[}\#{]} \{\textasciitilde{}\textasciicircum{}\}"
    )
    assert csv_cell("=1+1") == "'=1+1"


def test_a_record_that_is_nothing_special_is_read_as_any_other(tmp_path: Path) -> None:
    """The quick way of reading refuses what the usual one does."""
    values = full()[1].model_dump(mode="json")
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    for name, odd, says in (
        ("options", {"x": deep}, "nested 64"),
        ("settings", {"x": 10**400}, "1329 bits"),
    ):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**values, name: odd}))
        with mistake(BrokenRecord, says):
            harness.read_records(path)
