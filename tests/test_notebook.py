"""A process that goes on, such as a notebook: what a caller has set does not change a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import harness
from harness.merging.merge import merge

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
