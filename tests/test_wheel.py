"""What is installed: `harness` and nothing else of ours, whatever a working directory holds."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOOK = (
    "import sys, harness\n"
    "print(harness.__file__)\n"
    "print(len(harness.TASKS), len(harness.PROTOCOLS), len(harness.MERGERS))\n"
    "print(*(sys.modules[f'harness.{name}'].__file__ for name in ('tasks', 'protocols')))\n"
)
PAGE = ("board.css", "board.js", "index.html.jinja", "board.md.jinja", "board.tex.jinja")
"""What the page of a board is made of, beside code."""
STUDIES = ("harness/studies/designs", "harness/studies/papers")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the files here."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def test_a_wheel_holds_one_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    roots = {name.partition("/")[0] for name in names}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"harness"}
    assert {"harness/tasks/glue.py", "harness/protocols/knn.py"} <= {*names}
    page = {f"harness/reporting/boards/templates/{name}" for name in PAGE}
    assert {*page, "harness/reporting/sentences.jinja"} <= {*names}
    ours = (path for name in STUDIES for path in (ROOT / name).glob("*.yaml"))
    shipped = {path.relative_to(ROOT).as_posix() for path in ours}
    assert {f"{STUDIES[0]}/procrustes-1.yaml", f"{STUDIES[1]}/procrustes-1.yaml"} <= shipped
    assert shipped <= {*names}


@pytest.mark.parametrize("installed", ["wheel", "editable"])
def test_files_of_our_names_in_a_working_directory_change_nothing(
    installed: str, wheel: Path, tmp_path: Path
) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    (work / "tasks.py").write_text("raise SystemExit('imported')")
    (work / "protocols").mkdir()
    (work / "protocols" / "__init__.py").write_text("raise SystemExit('imported')")
    if installed == "wheel":
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    where = site if installed == "wheel" else ROOT
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(where)},
        capture_output=True,
        text=True,
        check=True,
    )
    package, counts, shelves = done.stdout.splitlines()
    assert Path(package).is_relative_to(where)
    assert all(int(count) >= 3 for count in counts.split())
    inside = where / "harness" if installed == "wheel" else where
    assert {*map(Path, shelves.split())} == {
        inside / name / "__init__.py" for name in ("tasks", "protocols")
    }
