"""What a reader of records believes: nothing that the record, or what lies beside it, gainsays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.cli import main
from harness.errors import BrokenRecord, WrongPredictions
from harness.evaluation.predictions import read_predictions
from harness.evaluation.records import Adaptation, read_record
from tests.mistakes import mistake, refused
from tests.test_compare import read_once

TASK = "toy/a"
SHOTS = [(5, 0), (5, 1)]
ADAPTED = Adaptation(
    split="toy/a@train90",
    rows=90,
    drawn={"0": [[1, 2], [3]], "1": [[4, 5], [6]]},
    labels="chose the rows and were read",
)
SETTINGS = {"limit": None, "max_length": 128, "features": "last_linear", "seed": 0, "draws": 2}
SETTINGS |= {"shots": [5], "pool": "a hash"}


def source(model: str) -> dict[str, str]:
    return {"source": f"models/{model}", "digest": model.ljust(32, "0")}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An expert, its base and two merges, read twice, with their predictions."""
    folder = tmp_path_factory.mktemp("written")
    roles = {"expert": "expert", "base": "base", "good": "merged", "fair": "merged"}
    for seed, (model, role) in enumerate(roles.items()):
        method = f"dare[{model}]" if role == "merged" else role
        about: dict[str, Any] = {"role": role, "method": method, "seed": seed}
        about |= {"majority": {"value": 0.5, "parts": {"accuracy": 0.5}}}
        if role == "merged":
            about |= {"base": source("base"), "experts": [source("expert")], "shown": ["toy/b@dev"]}
        read_once(folder, model, TASK, 0.1 * seed, **about)
        about |= {"protocol": "ft-classifier", "keys": SHOTS, "adaptation": ADAPTED}
        about |= {"settings": SETTINGS, "options": {"epochs": 5}, "teachers": ["expert"]}
        read_once(folder, model, TASK, 0.1 * seed, **about)
    return folder


@pytest.fixture
def records(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "records"))


def of(records: Path, model: str, protocol: str = "current") -> Path:
    return next((records / model).rglob(f"{protocol}-*.json"))


def change(path: Path, **fields: Any) -> Path:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return path


def doors(records: Path, out: Path) -> Iterator[list[str]]:
    """Every command that reads records."""
    place = str(records)
    yield ["leaderboard", place, f"--out={out}/board"]
    yield ["compare", "good", "fair", f"--records={place}"]
    yield ["compare", "good", "fair", "base", f"--records={place}", "--protocol=ft-classifier"]
    for what in ("protocols", "shots", "gains", "drop", "ranks"):
        yield ["plot", what, place, f"--out={out}/{what}"]
    for form in ("model-index", "lm-eval", "csv"):
        yield ["export", place, f"--format={form}", f"--out={out}/{form}"]
    every = ["--format=every-eval-ever", "--organization=us", f"--out={out}/every"]
    yield ["export", place, *every]


# Predictions ----------------------------------------------------------------------------------


def of_another(records: Path, path: Path) -> None:
    shutil.copy(of(records, "good").with_suffix(".parquet"), path)


def reversed_rows(records: Path, path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.take([*reversed(range(len(table)))]), path)


def fewer_rows(records: Path, path: Path) -> None:
    pq.write_table(pq.read_table(path).slice(0, 150), path)


def words_elsewhere(row: int) -> Callable[[Path, Path], None]:
    """Predictions of words whose first is of a row that is none of the record's."""

    def spoil(records: Path, path: Path) -> None:
        table = pq.read_table(path)
        rows = [row, *([0] * (len(table) - 1))]
        about = json.loads(table.schema.metadata[b"harness"])
        metadata = {b"harness": json.dumps({**about, "kind": "tagging"}).encode()}
        table = table.append_column("row", pa.array(rows, pa.int64()))
        pq.write_table(table.replace_schema_metadata(metadata), path)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "known"),
    [
        (words_elsewhere(-1), True),
        (words_elsewhere(10**12), True),
        (of_another, True),
        (reversed_rows, True),
        (fewer_rows, True),
        (of_another, False),
        (fewer_rows, False),
    ],
)
def test_predictions_are_those_of_their_record(
    spoil: Callable[[Path, Path], None],
    known: bool,
    records: Path,
) -> None:
    """Also of a record that was made before it had their digest."""
    if not known:
        for path in records.rglob("*.json"):
            change(path, predictions=None)
    path = of(records, "fair").with_suffix(".parquet")
    spoil(records, path)
    with mistake(WrongPredictions, path):
        read_predictions(read_record(of(records, "fair")), path)


def test_what_was_written_anew_by_another_library_is_the_same(records: Path) -> None:
    """The digest is of what a file says, not of its bytes."""
    for path in records.rglob("*.parquet"):
        before = path.read_bytes()
        pq.write_table(pq.read_table(path), path, compression="gzip", row_group_size=7)
        assert path.read_bytes() != before
        assert read_predictions(read_record(path.with_suffix(".json")), path)


# Records --------------------------------------------------------------------------------------

ODD: list[Any] = [
    None, True, -1, 0, 2**70, 1.5, 97.3, -1e9, float("nan"), "", "x" * 400, "../../x", [], {},
    [[-1]], {"x": 1}, "\ud800",
]  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a record, of lists their first."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value[:1])
    for key, inside in pairs:
        yield (*at, key)
        if isinstance(inside, dict | list):
            yield from places(inside, (*at, key))


def spoilt(record: Any, at: tuple[Any, ...], odd: Any) -> Any:
    """A record with something else in a place."""
    (key, *rest), copy = at, record.copy()
    copy[key] = spoilt(copy[key], tuple(rest), odd) if rest else odd
    return copy


@pytest.mark.parametrize("door", range(12))
def test_any_field_of_a_record_may_be_anything(
    door: int, records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is refused in one line or taken for what it says, by every command."""
    command = [*doors(records, tmp_path / "out")][door]
    for protocol in ("current", "ft-classifier"):
        path = of(records, "good", protocol)
        record = json.loads(path.read_text())
        path.rename(path.with_name("aside"))
        mutants = [(at, odd) for at in places(record) for odd in ODD]
        slow = 90 if command[0] == "plot" else 36  # a picture takes its time
        for at, odd in mutants[door::slow]:
            path.with_name("mutant.json").write_text(json.dumps(spoilt(record, at, odd)))
            capsys.readouterr()
            status = main(command)
            err = capsys.readouterr().err
            assert status in (0, 2), (at, odd)
            assert err.count("\n") == status / 2, (at, odd, err)
        path.with_name("mutant.json").unlink()
        path.with_name("aside").rename(path)


def score(value: float, **given: Any) -> dict[str, Any]:
    return {"value": value, "parts": {"accuracy": value}, **given}


def ends(low: float, high: float, **given: Any) -> list[dict[str, Any]]:
    return [{"low": low, "high": high, "method": "student", **given}]


UNTRUE = {
    "a score of 100": ({"scores": [score(97.3)]}, "accuracy 97.3; expected 0 to 1"),
    "below the least": ({"scores": [score(-0.1)]}, "accuracy -0.1; expected 0 to 1"),
    "a constant of 100": ({"majority": score(50.0)}, "accuracy 50; expected 0 to 1"),
    "a mean of nothing": ({"scores": [score(0.9) | {"value": 0.8}]}, "expected 0.9, the mean of"),
    "another metric": ({"scores": [{"value": 0.9, "parts": {"f1": 0.9}}]}, "scores of f1, exp"),
    "no metric": ({"scores": [{"value": 0.9, "parts": {}}]}, "scores of nothing, expected"),
    "one draw twice": (
        {"scores": [score(0.7, shots=5, seed=0), score(0.6, shots=5, seed=0)]},
        "two scores of one draw",
    ),
    "no shots": ({"scores": [score(0.7, shots=0, seed=0)]}, "field 'scores.0.shots"),
    "no rows": ({"rows": 0}, "field 'rows': Input should be greater than 0"),
    "true rows": ({"rows": True}, "field 'rows'"),
    "more than its limit": ({"settings": {"limit": 50}}, "200 rows under the limit 50"),
    "a limit in words": ({"settings": {"limit": "x"}}, "200 rows under the limit 'x'"),
    "a limit of true": ({"settings": {"limit": True}}, "200 rows under the limit True"),
    "rows drawn without a limit": ({"settings": {"drawn": True}}, "settings.drawn"),
    "left out of nowhere": ({"settings": {"left_out": {"0": [200]}}}, "settings.left_out"),
    "left out, no list": ({"settings": {"left_out": {"0": 2}}}, "settings.left_out"),
    "unseen": ({"unseen": -1}, "field 'unseen': Input should be greater"),
    "ends the wrong way": ({"intervals": ends(0.9, 0.7)}, "has the interval 0.9 to 0.7"),
    "ends elsewhere": ({"intervals": ends(0.1, 0.7)}, "has the interval 0.1 to 0.7"),
    "ends of 100": ({"intervals": ends(0.2, 97)}, "has the interval 0.2 to 97"),
    "no level": ({"intervals": ends(0.7, 0.9, level=95)}, "field 'intervals.0.level'"),
    "ends of no score": ({"intervals": ends(0.7, 0.9, shots=5)}, "an interval without a score"),
    "draws without rows": ({"settings": SETTINGS}, "settings of draws and no adaptation"),
    "rows without draws": (
        {"adaptation": ADAPTED.model_dump(mode="json")},
        "an adaptation to drawn rows and scores without shots",
    ),
}


@pytest.mark.parametrize(("fields", "says"), UNTRUE.values(), ids=UNTRUE)
def test_no_evaluation_says_so(
    fields: dict[str, Any],
    says: str,
    records: Path,
    tmp_path: Path,
) -> None:
    path = of(records, "good")
    change(path, **fields).rename(path.with_name("copy.json"))
    for command in doors(records, tmp_path / "out"):
        assert says in refused(command, BrokenRecord)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "fields", [{"digest": "0" * 32}, {"task": "toy/b@test"}, {"method": "ties"}, {"role": "base"}]
)
def test_a_record_is_what_its_name_says(
    fields: dict[str, Any], records: Path, tmp_path: Path
) -> None:
    path = change(of(records, "good"), **fields)
    for command in doors(records, tmp_path / "out"):
        refused(command, BrokenRecord, path)


def test_two_records_of_the_same_say_the_same(records: Path, tmp_path: Path) -> None:
    """A copy is one record; one with another score is one too many."""
    path = of(records, "good")
    copy = Path(shutil.copy(path, records))
    board = ["leaderboard", str(records), f"--out={tmp_path}/board"]
    assert main(board) == 0
    change(copy, scores=[score(0.7)])
    for command in doors(records, tmp_path / "out"):
        said = refused(command, BrokenRecord)
        assert str(copy) in said
        assert str(path) in said
