"""The page of a board in a real browser, used with pointer and keys: `make test-browser`.

HARNESS_BROWSER names the environment that has Playwright; the browser is the system's Chromium.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

import harness
from harness import Record
from harness.evaluation.records import Interval
from tests.resampled import resampled
from tests.test_boards import MRPC, RTE, record, written

pytestmark = pytest.mark.browser
DRIVE = Path(__file__).with_name("drive.py")
NER = "ner/conll2003@test"
ODD = "<img src=x onerror=alert(1)>"


def interval(value: float, shots: int | None) -> tuple[Interval, ...]:
    return (Interval(low=value - 0.05, high=value + 0.05, shots=shots, method="student"),)


def small() -> list[Record]:
    """Two merges with and without DARE and one with a bad name, on three tasks of two kinds."""
    values = {"ties": 0.60, "dare[ties]": 0.65, "average": 0.55, "dare[average]": 0.50, ODD: 0.4}
    records = []
    for number, (task, metric) in enumerate(
        [(RTE, "accuracy"), (MRPC, "accuracy"), (NER, "span_f1")]
    ):
        given = {"metrics": (metric,), "dataset": {"digest": task}}
        for method, value in values.items():
            of = {**given, "method": method, "digest": f"{method}{task}"}
            shown = value + number / 10
            records += [
                record(
                    "merged", method, task, "current", shown, intervals=interval(shown, None), **of
                ),
                record("merged", method, task, "knn", {1: [0.3, 0.4], 5: [0.5, 0.6]}, **of),
                record(
                    "merged", method, task, "ft-classifier", {5: [shown + 0.1, shown + 0.12]}, **of
                ),
            ]
        records.append(record("expert", f"e{number}", task, "current", 0.9, **given))
        records.append(record("base", "b", task, "current", 0.2 + number / 10, **given))
    return records


def credited() -> list[Record]:
    """Twenty merges of an expert of each of two tasks, with all that credit takes."""
    records = []
    for task in (RTE, MRPC):
        records.append(record("expert", task, task, "current", 0.8))
        records.append(record("base", "base", task, "ft-classifier", {5: [0.3, 0.31, 0.29]}))
        for number in range(20):
            own, tuned = 0.35 + 0.02 * (number * 7 % 20), 0.4 + 0.018 * number
            given = {"method": f"merge_{number}", "digest": f"{number}{task}"}
            name = f"merge_{number}"
            drawn = {5: [tuned, tuned + 0.01, tuned - 0.01]}
            records.append(record("merged", name, task, "current", own, **given))
            records.append(record("merged", name, task, "ft-classifier", drawn, **given))
    return [*map(resampled, records)]


def large() -> list[Record]:
    """400 rows of 40 tasks and their mean."""
    return [
        record("merged", f"m{row}", f"t/{task}@test", "current",
               (row * 7 + task * 13) % 100 / 101 + row / 1e5,  # no two rows are alike
               method=f"ties:scale={row}" if row % 2 else f"dare[ties:scale={row + 1}]")
        for row in range(400)
        for task in range(40)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a board, beside that of its records."""
    root = tmp_path_factory.mktemp("board")
    harness.leaderboard([written(root / "a folder #1?", small())], out=root / "small")
    return root / "small"


@pytest.fixture(scope="module")
def facts(board: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was seen, in one run of the browser."""
    named = os.environ.get("HARNESS_BROWSER")
    chromium = shutil.which("chromium")
    if not named or not chromium:
        pytest.skip("no HARNESS_BROWSER or no chromium: make test-browser")
    out = tmp_path_factory.mktemp("large")
    records = out / "records.d"
    records.mkdir()
    for number, one in enumerate(large()):
        (records / f"{number}.json").write_text(one.model_dump_json())
    harness.leaderboard([records], out=out)
    shots = Path(os.environ.get("HARNESS_SCREENSHOTS") or out)
    shots.mkdir(exist_ok=True)
    command = [Path(named).absolute() / "bin" / "python", DRIVE, board / "index.html"]
    harness.leaderboard([written(out / "credit.d", credited())], out=out / "credit")
    command += [out / "index.html", out / "credit" / "index.html"]
    command += ["--chromium", chromium, "--shots", shots]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (shots / "facts.json").write_text(done.stdout)
    read: dict[str, Any] = json.loads(done.stdout)
    return read


def test_nothing_goes_wrong_and_nothing_is_fetched(facts: dict[str, Any], board: Path) -> None:
    assert facts["errors"] == []
    assert all(url.endswith("/index.html") and url.startswith("file:") for url in facts["requests"])


def test_the_table_as_it_opens(facts: dict[str, Any]) -> None:
    first = facts["used"]["first"]
    assert first["groups"] == ["current", "knn, 5 shots", "ft-classifier, 5 shots"]
    assert first["heads"] == ["rte", "mrpc", "conll2003", "mean"] * 3
    assert first["rows"][0] == "expert of the task"
    assert ODD in first["rows"]
    row = first["cells"][first["rows"].index("ties")]
    assert [cell.split("[")[0] for cell in row[:4]] == ["60.0", "70.0", "80.0", "70.0"]
    assert row[4] == "55.0 ±7.1"


def column(shown: dict[str, Any], at: int = 0) -> list[float]:
    return [float(row[at].split()[0]) for row in shown["cells"] if row[at]]


def test_columns_are_sorted_both_ways(facts: dict[str, Any]) -> None:
    used = facts["used"]
    down, up = column(used["descending"]), column(used["ascending"])
    assert down == sorted(column(used["first"]), reverse=True) == up[::-1]
    assert used["descending"]["sorts"][1] == "descending"
    assert used["ascending"]["sorts"][1] == "ascending"
    assert used["descending"]["sorts"].count("none") == len(used["descending"]["sorts"]) - 1
    assert used["sort keeps focus"] == "rte"
    assert used["by name"]["rows"] == sorted(used["by name"]["rows"], key=str.lower)


def test_tasks_kinds_and_rows_are_filtered(facts: dict[str, Any]) -> None:
    used = facts["used"]
    one = used["one task"]
    assert one["heads"] == ["rte", "conll2003", "mean"] * 3
    at = one["rows"].index("ties")
    assert one["cells"][at][2] == "70.0"  # the mean of 60 and 80, of the tasks that are shown
    assert used["tagging"]["heads"] == ["conll2003"] * 3
    assert {*used["dare"]["rows"]} == {"dare[ties]", "dare[average]", "expert of the task", "base"}
    assert {*used["named"]["rows"]} == {"dare[ties]", "dare[average]"}
    assert "base" not in used["merges"]["rows"]
    assert used["another setting"][1] == "knn, 1 shot"
    assert used["status"] == "7 rows, 16 columns"


def test_gains_and_intervals_are_shown_when_asked_for(facts: dict[str, Any]) -> None:
    shown = facts["used"]["gains and intervals"]
    cells = dict(zip(shown["rows"], shown["cells"], strict=True))
    assert cells["dare[ties]"][0] == "65.0 +5.0[60.0, 70.0]"
    assert cells["dare[average]"][0] == "50.0 −5.0[45.0, 55.0]"
    assert any("0.0?" in cell for cell in cells["dare[ties]"]), "two draws are too few for a test"
    assert cells["ties"][4] == "55.0"  # without the deviation, which was put away


def test_every_number_says_where_it_comes_from(facts: dict[str, Any], board: Path) -> None:
    keys = facts["keys"]
    for text in ("base on glue/rte@validation (accuracy, 100 rows), current: 20.00", "digest"):
        assert text in keys["provenance"].replace("\n", " ")
    record_file = Path(unquote(urlparse(keys["link"]).path))
    assert record_file.is_relative_to(board.parent / "a folder #1?")
    assert Record(**json.loads(record_file.read_text())).role == "base"


def test_the_keyboard_moves_in_the_table_and_out_of_it(facts: dict[str, Any]) -> None:
    keys = facts["keys"]
    assert (keys["stops"], keys["stops after"]) == (1, 1)
    assert keys["back at the first"]
    assert keys["outline"] == "solid"
    assert keys["back in the table"] == "TD"


@pytest.mark.parametrize("width", ["wide", "phone"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_can_be_read_in_both_themes_at_both_widths(
    theme: str, width: str, facts: dict[str, Any]
) -> None:
    """Contrast of WCAG 2.1, level AA: 4.5 to 1."""
    seen = facts[f"{theme} {width}"]
    assert {name: ratio for name, ratio in seen["contrast"].items() if ratio < 4.5} == {}
    assert {"td", "small", "th", "label", "button", "a"} <= {*seen["contrast"]}
    assert seen["wider"] <= 0
    assert seen["gap"] == 1


def test_the_theme_is_turned(facts: dict[str, Any]) -> None:
    light, dark = (facts[f"{theme} wide"]["back"] for theme in ("light", "dark"))
    assert light != dark
    assert (facts["light turned"], facts["dark turned"]) == (dark, light)


def test_of_a_large_board_a_part_is_drawn_until_more_is_asked_for(facts: dict[str, Any]) -> None:
    big = facts["big"]
    assert big["columns"] == 41
    assert 20 * 41 <= big["cells"] <= 2_600 < big["cells after scrolling"] < big["cells in all"]
    assert big["below the last"] == str(big["last before"] + 3)  # two rows of heads come before
    assert big["cells in all"] == 400 * 41


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("way", ["light", "dark", "no script", "print"])
def test_where_the_score_goes_is_the_first_thing_to_see(
    way: str, width: int, facts: dict[str, Any]
) -> None:
    """Bars stand above the filters, and begin on the first screen."""
    seen = facts["credit"][f"{way} {width}"]
    ends = [end for _, end, _ in seen["bars"]]
    assert len(ends) == 20
    assert sum(end < seen["height"] for end in ends) >= (18 if width == 1400 else 6)
    assert min(long for *_, long in seen["bars"]) > (400 if width == 1400 else 250)
    assert max(ends) < seen["filters"]
    assert (seen["without script"] > 0) == (way == "no script")
    assert (seen["table"] > 0) == (way != "no script")
    if way != "no script":
        assert {name: ratio for name, ratio in seen["contrast"].items() if ratio < 4.5} == {}
        assert "span" in seen["contrast"]
        assert seen["wider"] <= 0
