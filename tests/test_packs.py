"""Packs: many records in one Parquet, byte for byte, read like the folder that they were."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest

from harness.cli import main
from harness.errors import BrokenRecord, HarnessError
from harness.evaluation.packs import ABOUT, PACK, unpack, unpacked
from harness.evaluation.records import each_record, pack
from harness.evaluation.resamples import STEP, estimate_of
from harness.files import write_json
from harness.stats.intervals import interval
from tests.mistakes import mistake, refused
from tests.resampled import read_records
from tests.test_believed import change, doors, written

__all__ = ["written"]

ROOT = Path(__file__).parent.parent


@pytest.fixture
def records(written: Path, tmp_path: Path) -> Path:
    """A folder of records, with predictions beside them; some keep resamples, in shots of two."""
    folder = Path(shutil.copytree(written, tmp_path / "records"))
    below = -np.random.default_rng(0).integers(100, size=2000).astype(np.int8)
    values, by_draw = (base64.b64encode(one.tobytes()).decode() for one in (below, below[:128]))
    kept: dict[str, Any] = {"shots": 5, "unit": "row", "units": 200, "count": 2000, "step": STEP}
    kept |= {"design": "0" * 16, "values": values, "by_draw": by_draw}
    for path in sorted(folder.rglob("ft-classifier-*.json"))[:2]:
        write_json(change(path, resamples=[kept]), json.loads(path.read_text()), indent=1)
    return folder


@pytest.fixture
def packed(records: Path, tmp_path: Path) -> Path:
    assert main(["records", "pack", str(records), "--out", str(tmp_path / "pack.parquet")]) == 0
    return tmp_path / "pack.parquet"


def contents(folder: Path) -> dict[str, bytes]:
    files = sorted(folder.rglob("*.json"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


# Byte for byte --------------------------------------------------------------------------------


def test_what_is_unpacked_is_what_was_packed(records: Path, packed: Path, tmp_path: Path) -> None:
    """Also of records that somebody spaced and ordered in another way."""
    odd = next(records.rglob("current-*.json"))
    odd.write_text(json.dumps(json.loads(odd.read_text()), indent=7) + "\n\n", newline="\r\n")
    spaced = next(records.rglob("ft-classifier-*.json"))
    spaced.write_text(spaced.read_text().replace('"values": "', '"values":  "'))
    pack([records], packed)
    command = ["records", "unpack", str(packed), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert contents(tmp_path / "out") == contents(records)
    assert main(command) == 0, "what is there already stays"


def test_one_record_is_one(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, out = str(next(records.rglob("*.json"))), str(tmp_path / "one.parquet")
    assert main(["records", "pack", one, "--out", out]) == 0
    assert main(["records", "unpack", out, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert f"packed 1 record in {out}\n" in said
    assert f"unpacked 1 record to {tmp_path / 'out'}\n" in said


def test_resamples_are_kept_as_bytes(records: Path, packed: Path) -> None:
    """So that they compress: in base64 they do not."""
    numbers = [one for row in pq.read_table(packed)["numbers"].to_pylist() for one in row]
    assert {2 * 64, 2000} <= {*map(len, numbers)}
    texts = b"".join(pq.read_table(packed)["text"].to_pylist())
    assert len(texts) < sum(map(len, contents(records).values())) - 2 * 2600


def test_a_pack_of_packs_is_that_of_their_folders(
    records: Path, packed: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again.parquet"
    assert pack([packed, records], again) == len(contents(records))
    assert again.read_bytes() == packed.read_bytes()


def test_a_record_of_two_places_is_packed_once(records: Path, tmp_path: Path) -> None:
    """A folder within another, in either order: else it would be read twice, under two names."""
    within = next(path for path in sorted(records.iterdir()) if path.is_dir())
    for places in ([records, within], [within, records]):
        assert pack(places, tmp_path / "pack.parquet") == len(contents(records))
        assert len([*each_record([tmp_path / "pack.parquet"])]) == len(contents(records))


def test_two_records_of_one_name_are_not_packed(records: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(records, tmp_path / "other"))
    path = next(other.rglob("*.json"))
    path.write_text(path.read_text() + "\n")
    with mistake(BrokenRecord, path.name):
        pack([records, other], tmp_path / "both.parquet")
    assert not (tmp_path / "both.parquet").exists()


# Reading --------------------------------------------------------------------------------------


def said(places: Sequence[Path]) -> list[Any]:
    return [(path.name, record) for path, record in each_record(places)]


def test_records_are_read_from_packs_as_from_folders(
    records: Path, packed: Path, tmp_path: Path
) -> None:
    """In the same order; alone, in a folder, or some in packs and some not."""
    known = said([records])
    assert len(known) == 8
    assert said([packed]) == known
    assert any(5 in record.shots for _, record in said([packed]))
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(packed, folder)
    assert said([folder]) == said([folder, folder / "pack.parquet"]) == known
    mixed = tmp_path / "mixed"
    for model in ("base", "expert"):
        shutil.copytree(records / model, mixed / model)
    pack([records / "fair", records / "good"], mixed / "merges.parquet")
    assert sorted(map(repr, said([mixed]))) == sorted(map(repr, known))


def test_every_command_reads_a_pack(
    records: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what it makes of the folder, but for where records lie."""
    for path in records.rglob("*.parquet"):
        path.unlink()
    made = []
    for place in (records, packed):
        out = tmp_path / f"of-{place.stem}"
        status = [main(command) for command in doors(place, out)]
        capsys.readouterr()
        texts = {
            path.relative_to(out).as_posix(): path.read_text()
            for path in sorted(out.rglob("*"))
            if path.suffix in {".md", ".tex", ".svg"}  # a csv says where records lie
        }
        made.append((status, texts))
    (status, texts), (again, others) = made
    assert again == status
    assert others.keys() == texts.keys()
    assert [name for name in texts if texts[name] != others[name]] == []
    assert status.count(0) >= 6
    assert "board/board.md" in texts


def test_predictions_are_no_pack(records: Path) -> None:
    """Nor is a table of somebody's beside them, nor predictions under another name."""
    known = said([records])
    pq.write_table(pyarrow.table({"mine": [1]}), records / "mine.parquet")
    odd = next(records.rglob("current-*.json"))
    for path in (odd, odd.with_suffix(".parquet")):
        path.rename(path.with_name(f"renamed{path.suffix}"))
    assert sorted(map(repr, (one for _, one in said([records])))) == sorted(
        map(repr, (one for _, one in known))
    )
    with mistake(BrokenRecord, "mine.parquet"):
        read_records([records / "mine.parquet"])


def test_a_record_in_a_folder_and_in_a_pack_of_it_is_read_once(
    records: Path, packed: Path, tmp_path: Path
) -> None:
    assert len(read_records([records, packed])) == len(read_records([records]))
    out = ["--format", "csv", "--out", str(tmp_path / "out")]
    assert main(["export", str(packed), str(records), *out]) == 0
    lines = (tmp_path / "out" / "records.csv").read_text().splitlines()
    assert len(lines) == len({*lines})


def test_the_committed_records_are_packs() -> None:
    """Of records that every reader believes; a few of each, for all of them are boards' to read."""
    packs = sorted((ROOT / "leaderboards" / "records").iterdir())
    assert [path.suffix for path in packs] == [".parquet"] * 36
    for path in packs:
        for name, text in unpacked(path):
            assert name.count("/") in (2, 3)  # a task may be in no group
            assert b'"source": "/' not in text, f"{path} names a folder of some machine"


MADE = ("board.csv", "board.tex")
"""What is written beside a committed board, and not kept."""


@pytest.mark.parametrize(
    ("folders", "most"), [(["leaderboards/records"], 13), (["leaderboards", "docs/figures"], 20)]
)
def test_the_committed_data_stay_small(folders: list[str], most: float) -> None:
    """In MB. Whoever clones the repository has all that they ever were."""
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    kept = [
        path
        for path in files
        if path.name not in MADE
        and not (path.suffix == ".png" and path.with_suffix(".svg") in files)
    ]
    size = sum(path.stat().st_size for path in kept) / 1e6
    assert 1 < size < most, f"{' and '.join(folders)} have {size:.1f} MB, expected under {most}"


# Damage, and names that lead elsewhere --------------------------------------------------------


def packs(names: Sequence[Any], **columns: Any) -> pyarrow.Table:
    """A pack as somebody may write one."""
    usual = {"name": names, "text": [b"{}"] * len(names), "numbers": [[]] * len(names)}
    kinds = {"text": pyarrow.binary(), "numbers": pyarrow.list_(pyarrow.binary())}
    made = {
        name: pyarrow.array(values, kinds.get(name, pyarrow.string()))
        if isinstance(values, list)
        else values
        for name, values in {**usual, **columns}.items()
    }
    return pyarrow.table(made).replace_schema_metadata({ABOUT: PACK})


NAMES = [
    "../out.json",
    "a/../../out.json",
    "/tmp/out.json",
    "C:/out.json",
    "a\\..\\out.json",
    "a//b.json",
    "./a.json",
    "a/b.py",
    "a/.json/..",
    "a\n.json",
    "a\0.json",
    "",
    None,
]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_out_of_the_folder(name: str | None, tmp_path: Path) -> None:
    path = tmp_path / "in" / "pack.parquet"
    path.parent.mkdir()
    pq.write_table(packs([name]), path)
    for command in (["unpack", str(path)], ["pack", str(path)]):
        out = tmp_path / "to" / f"{command[0]}.parquet"
        refused(["records", *command, "--out", out], BrokenRecord, path)
    assert [one.name for one in tmp_path.rglob("*") if one.is_file()] == ["pack.parquet"]


def faults() -> Iterator[tuple[str, Any]]:
    yield "two files of one name", packs(["a.json", "a.json"])
    yield "not in the order of their names", packs(["b.json", "a.json"])
    yield "other columns", packs(["a.json"], more=["x"])
    yield "other columns", packs(["a.json"], text=pyarrow.array([1]))
    yield "a.json has no text, or other resamples", packs(["a.json"], numbers=[[b"1"]])
    yield "a.json has no text", packs(["a.json"], text=[None])
    yield "or other resamples", packs(["a.json"], numbers=[[None]])
    yield "holds no records", packs([])
    yield "other resamples", packs(["a.json"], text=[b'{"values": ""}'], numbers=[[b"1", b"2"]])
    yield "is not a record of `harness evaluate`", packs(["a.json"])
    yield "cannot be read as a record", packs(["a.json"], text=[b"\xff"])
    yield "cannot be read as a record", packs(["a.json"], text=[b"{"])


@pytest.mark.parametrize(("fault", "table"), [*faults()])
def test_a_damaged_pack_is_refused_in_one_line(fault: str, table: Any, tmp_path: Path) -> None:
    path = tmp_path / "pack.parquet"
    pq.write_table(table, path)
    command = ["leaderboard", path, "--out", tmp_path / "board"]
    assert fault in refused(command, BrokenRecord, path)
    assert not (tmp_path / "board").exists()


def test_any_byte_may_be_another(packed: Path) -> None:
    """One line, or the very same records; whatever is cut off."""
    whole = packed.read_bytes()
    known = said([packed])
    random, refused = np.random.default_rng(0), []
    for at in [*random.integers(len(whole), size=60), *(-1 - random.integers(600, size=60))]:
        spoilt = bytearray(whole)
        spoilt[at] ^= 1 << int(random.integers(8))
        packed.write_bytes(bytes(spoilt) if at % 3 else whole[:at])
        found = []
        try:
            found = said([packed])
        except BrokenRecord as error:
            refused.append(str(error))
        assert not found or [name for name, _ in found] == [name for name, _ in known]
    assert len(refused) > 60
    assert not any("\n" in line for line in refused)


def test_nothing_is_written_over(
    records: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither what somebody else wrote, nor where a link leads."""
    foreign = tmp_path / "foreign.parquet"
    foreign.write_text("mine")
    assert main(["records", "pack", str(records), "--out", str(foreign)]) == 2
    assert foreign.read_text() == "mine"
    assert main(["records", "pack", str(records), "--out", str(tmp_path / "pack.zip")]) == 2
    out = tmp_path / "out"
    (name, *_) = contents(records)
    for make in ("file", "link"):
        shutil.rmtree(out, ignore_errors=True)
        (out / name).parent.mkdir(parents=True)
        if make == "link":
            (out / name).symlink_to(foreign)
        else:
            (out / name).write_text("mine")
        assert main(["records", "unpack", str(packed), "--out", str(out)]) == 2
        assert len(contents(out)) == 1, "all or nothing"
        assert foreign.read_text() == "mine"
    shutil.rmtree(out)
    out.mkdir()
    (out / name.partition("/")[0]).symlink_to(tmp_path)
    assert main(["records", "unpack", str(packed), "--out", str(out)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 5
    assert [one.name for one in out.rglob("*") if one.is_file() and not one.is_symlink()] == []


def test_a_pack_of_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with mistake(BrokenRecord, tmp_path / "empty"):
        pack([tmp_path / "empty"], tmp_path / "pack.parquet")
    assert not (tmp_path / "pack.parquet").exists()


def test_many_records_are_several_groups(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not all of them are in memory at once."""
    from harness.evaluation import packs as module

    monkeypatch.setattr(module, "GROUP", 3)
    pack([written], tmp_path / "pack.parquet")
    assert pq.ParquetFile(tmp_path / "pack.parquet").num_row_groups == 3
    assert said([tmp_path / "pack.parquet"]) == said([written])
    assert len(unpack(tmp_path / "pack.parquet", tmp_path / "out")) == 8


# Fewer resamples ------------------------------------------------------------------------------


def test_a_pack_of_fewer_resamples_has_the_first_ones(records: Path, tmp_path: Path) -> None:
    """Scores stay, pairs with longer records too, and a by-hand interval is nearly the same."""
    small = tmp_path / "small.parquet"
    assert main(["records", "pack", str(records), "--out", str(small), "--resamples", "300"]) == 0
    before = {one.digest + one.protocol: one for one in read_records([records])}
    for one in read_records([small]):
        whole = before[one.digest + one.protocol]
        assert one.model_copy(update={"resamples": whole.resamples}) == whole
        for shots in one.shots:
            kept, known = estimate_of(one, shots), estimate_of(whole, shots)
            assert kept.resamples.tolist() == known.resamples[:300].tolist()
            assert kept.by_draw.tolist() == known.by_draw.tolist()
            half = [one - two for one, two in zip(interval(known), interval(kept), strict=True)]
            assert max(map(abs, half)) <= 0.2 * (interval(known)[1] - interval(known)[0])


def test_too_few_resamples_are_refused(records: Path, tmp_path: Path) -> None:
    place = tmp_path / "small.parquet"
    command = ["records", "pack", records, "--out", place, "--resamples", 10]
    refused(command, HarnessError, "resamples 10 200")
    assert not place.exists()
