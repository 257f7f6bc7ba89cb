"""A process that goes on, such as a notebook: what a caller has set does not change a result."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import harness
from harness.checkpoints.network import without_warnings
from harness.evaluation.records import read_record
from harness.merging.merge import merge
from harness.process import as_torch_starts, shared

ROOT = Path(harness.__file__).parents[1]
EMBEDDED = Path(harness.__file__).parent / "checking" / "miniatures"

pytestmark = pytest.mark.usefixtures("as_found")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "float16": lambda: default_dtype(torch.float16),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference mode": torch.inference_mode,
    "device": lambda: torch.device("meta"),
}


def results(where: Path) -> tuple[list[float], bytes]:
    """Scores of an expert, and a merge by a method that takes gradients; nothing is cached yet."""
    run = harness.Run(
        model=str(EMBEDDED / "outcome"),
        tasks=["embedded/outcome"],
        protocols=["current", "knn"],
        draws=1,
        shots=5,
        limit=20,
        output=str(where / "records"),
    )
    scores = [score.value for record in harness.evaluate(run) for score in record.scores]
    experts = [EMBEDDED / "comparison", EMBEDDED / "outcome"]
    recipe = harness.Recipe(experts=experts, merger="fisher", examples_limit=10)
    harness.merge(recipe, out=where / "merged")
    return scores, (where / "merged" / "model.safetensors").read_bytes()


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A folder of a name, with a cache of its own."""

    def made(name: str) -> Path:
        monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / name / "cache"))
        return tmp_path / name

    return made


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_a_caller_has_set_for_torch_changes_no_result(
    setting: str, fresh: Callable[[str], Path]
) -> None:
    expected = results(fresh("plain"))
    with SETTINGS[setting]():
        before = torch.get_default_dtype(), torch.empty(0).device, torch.is_inference_mode_enabled()
        found = results(fresh("set"))
        after = torch.get_default_dtype(), torch.empty(0).device, torch.is_inference_mode_enabled()
    assert found == expected
    assert after == before


def test_a_callers_type_is_kept_where_a_call_fails(tmp_path: Path) -> None:
    with default_dtype(torch.float16):
        with pytest.raises(harness.HarnessError):
            harness.merge(harness.Recipe(experts=["none"]), out=tmp_path / "out")
        assert torch.get_default_dtype() == torch.float16
    assert harness.merge.__wrapped__ is merge  # type: ignore[attr-defined]  # of functools.wraps


# Threads -----------------------------------------------------------------------------------

IN_THREADS = """
import os
import threading
from pathlib import Path

import harness
from transformers.utils import logging

PLACE = Path(harness.__file__).parent / "checking" / "miniatures"
EXPERTS = [PLACE / "comparison", PLACE / "outcome"]
MERGERS = ["average", "ties", "task_arithmetic", "tsv"]


def state():
    return os.fstat(2).st_ino, logging.get_verbosity(), logging.is_progress_bar_enabled()


def work(merger):
    harness.merge(harness.Recipe(experts=EXPERTS, base=PLACE / "base", merger=merger), out=merger)
    settings = {"protocols": ["current"], "limit": 20}
    harness.evaluate(harness.Run(model=merger, output=f"{merger}-records", **settings))


before, threads = state(), [threading.Thread(target=work, args=(name,)) for name in MERGERS]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert state() == before, (before, state())
assert all(list(Path(f"{name}-records").rglob("*.json")) for name in MERGERS)
"""


def test_threads_merge_and_evaluate_from_the_first_call_on(tmp_path: Path) -> None:
    """The first look-up imports all methods; stderr, and what transformers logs, stay."""
    (tmp_path / "script.py").write_text(IN_THREADS)
    command = [sys.executable, "script.py"]
    known = {**os.environ, "PYTHONPATH": str(ROOT), "HARNESS_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        command, cwd=tmp_path, env=known, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_the_last_thread_restores_what_the_first_found() -> None:
    inside: list[str] = []

    @shared
    @contextmanager
    def setting() -> Iterator[None]:
        inside.append("in")
        yield
        inside.append("out")

    first, second = setting(), setting()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert inside == ["in"]
    second.__exit__(None, None, None)
    assert inside == ["in", "out"]
    with setting():
        assert inside == ["in", "out", "in"]


def test_a_call_of_another_thread_that_ends_does_not_bring_the_callers_type_back() -> None:
    with default_dtype(torch.float64):
        first, second = as_torch_starts(), as_torch_starts()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float32
        second.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float64


def test_an_interrupt_leaves_what_transformers_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes where all loggers are told of the new level."""
    logging = pytest.importorskip("transformers.utils.logging")
    before, set_verbosity = logging.get_verbosity(), logging.set_verbosity

    def interrupted(level: int) -> None:
        set_verbosity(level)
        if level != before:
            raise KeyboardInterrupt

    monkeypatch.setattr(logging, "set_verbosity", interrupted)
    with pytest.raises(KeyboardInterrupt), without_warnings():
        pass
    assert logging.get_verbosity() == before
    monkeypatch.undo()
    with without_warnings():
        assert logging.get_verbosity() == logging.CRITICAL
    assert logging.get_verbosity() == before


# What is typed -----------------------------------------------------------------------------


def test_names_may_be_paths_and_come_from_a_generator(tmp_path: Path) -> None:
    experts = (EMBEDDED / name for name in ("comparison", "outcome"))
    recipe = harness.Recipe(experts=experts)
    assert recipe.experts == tuple(str(EMBEDDED / name) for name in ("comparison", "outcome"))
    found = harness.inspect((path for path in recipe.experts), base=EMBEDDED / "base")
    assert len(found.models) == 2
    (tmp_path / "t.yaml").write_text("text: text\nlabel: label\nlabels: from data\nfiles: t.csv")
    rows = "".join(f"{i} is {word},{word}\n" for i in range(20) for word in ("odd", "even"))
    (tmp_path / "t.csv").write_text(f"text,label\n{rows}")
    options = {"epochs": 1, "limit": 8, "progress": False}
    with pytest.warns(UserWarning, match="no more than the best constant"):
        expert = harness.finetune(
            EMBEDDED / "base", tmp_path / "t.yaml", out=tmp_path / "e", **options
        )
    assert expert.tasks == ("t",)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda out: harness.inspect(str(EMBEDDED / "outcome")), "found 1; expected two or more"),
        (
            lambda out: harness.finetune(EMBEDDED / "base", ["embedded/outcome"], out=out),
            r"task is \['embedded/outcome'\], expected one name or path",
        ),
        (
            lambda out: harness.heads(EMBEDDED / "base", ["embedded/outcome"], out=out),
            r"task is \['embedded/outcome'\], expected one name or path",
        ),
        (
            lambda out: harness.finetune(
                EMBEDDED / "base", "embedded/outcome", out=out, epochs=np.int64(1)
            ),
            r"epochs is np.int64\(1\), expected a number",
        ),
        (lambda out: harness.compare([Path("a"), Path("a")]), "a, a cannot be compared"),
    ],
)
def test_other_types_end_in_one_line(
    call: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(harness.HarnessError, match=message):
        call(tmp_path / "out")


def test_records_are_short_in_a_cell(fresh: Callable[[str], Path]) -> None:
    """Without the resamples, which are tens of thousands of characters of each record."""
    where = fresh("cell")
    results(where)
    records = [read_record(path) for path in (where / "records").rglob("*.json")]
    assert records
    assert all(len(repr(record)) < 4000 < len(record.model_dump_json()) for record in records)
