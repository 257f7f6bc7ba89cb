"""What `make` installs: the same versions on every Python, by a pip that can."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical

ROOT = Path(__file__).parents[1]
CUDA = re.compile("nvidia|cuda|triton")
"""What a build of torch for CUDA brings along, where there is no other."""

makes = pytest.mark.skipif(
    not (ROOT / "Makefile").is_file() or shutil.which("make") is None, reason="no make here"
)


def made(*given: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *given]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@makes
def test_pip_comes_first(tmp_path: Path) -> None:
    """The one of Python 3.10 cannot build a dependency that has no wheel."""
    done = made("--dry-run", "install-test", f"VENV={tmp_path}")
    installs = [line for line in done.stdout.splitlines() if " pip install" in line]
    assert installs[0].endswith("--upgrade pip")
    assert all("PIP_CONSTRAINT=constraints.txt" in line for line in installs)
    assert "--editable '.[test]'" in installs[-1]


@makes
def test_pythons_that_do_not_run_are_named_and_passed_over(tmp_path: Path) -> None:
    (tmp_path / "python3.98").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "python3.98").chmod(0o755)
    done = made("test-pythons", f"PYTHONS={tmp_path}/python3.98 python3.99")
    assert done.returncode  # none was tried, so nothing was found to work
    assert "python3.98 is not here" in done.stdout
    assert "python3.99 is not here" in done.stdout
    assert "tried: none; failed: none" in done.stdout


@makes
def test_a_python_that_fails_is_named_and_the_next_is_tried(tmp_path: Path) -> None:
    for name in ("python3.97", "python3.98"):
        (tmp_path / name).write_text('#!/bin/sh\n[ "$1" = -c ]\n')  # runs, but makes no environment
        (tmp_path / name).chmod(0o755)
    both = f"{tmp_path}/python3.97 {tmp_path}/python3.98"
    done = made("test-pythons", f"PYTHONS={both}")
    assert done.returncode
    assert f"tried: {both}; failed: {both}" in done.stdout


def needed(name: str, extras: frozenset[str], seen: set[str]) -> Iterator[str]:
    """What a distribution needs, all the way down."""
    if canonical(name) in seen:
        return
    seen.add(canonical(name))
    yield canonical(name)
    try:
        found = distribution(name).requires or []
    except PackageNotFoundError:
        return
    for requirement in map(Requirement, found):
        marker = requirement.marker
        asked = [{"extra": extra} for extra in ("", *extras)]
        if marker is None or any(map(marker.evaluate, asked)):
            yield from needed(requirement.name, frozenset(requirement.extras), seen)


def test_every_version_is_pinned() -> None:
    constraints = ROOT / "constraints.txt"
    pinned = {}
    for line in constraints.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            one = Requirement(line)
            if one.marker is None or one.marker.evaluate():
                assert canonical(one.name) not in pinned, f"{one.name} is pinned twice"
                pinned[canonical(one.name)] = one
    wanted = {*needed("merging-harness", frozenset({"test"}), set())} - {"merging-harness"}
    free = sorted(name for name in wanted - pinned.keys() if not CUDA.match(name))
    assert not free, f"{', '.join(free)}: no version in constraints.txt"
    assert len(wanted) > 80
    assert "pip" in pinned
