"""Scripts of benchmarks that no other test runs, as small as they can be."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks are no part of the source distribution", allow_module_level=True)


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_a_script_says_what_it_measures(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So all that it imports is there."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
    assert "usage" in capsys.readouterr().out


def test_polar_factors_of_four_ways_agree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr(sys, "argv", ["polar.py", "--width", "16", "--repeats", "1"])
    runpy.run_path(str(BENCHMARKS / "polar.py"), run_name="__main__")
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) == 8
    assert all(float(row[5]) < 1e-10 for row in rows)


def test_every_protocol_is_timed_or_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = runpy.run_path(str(BENCHMARKS / "evaluate.py"), run_name="measured")
    known = {choice.name for choice in script["CHOICES"]}
    assert {*known, *script["LEFT_OUT"]} == {*script["PROTOCOLS"]}
