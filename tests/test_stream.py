"""Writing a file tensor by tensor: the library's own bytes, and little in memory."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.checkpoints.stream import write_file
from harness.errors import IncompatibleWeights, NotFinite
from harness.files import file_hash
from harness.weights import Lazy, Spec, specs, tensor_digest
from tests.mistakes import mistake

pytestmark = pytest.mark.usefixtures("two_threads")

STATE = {
    "b.weight": torch.randn(3, 2, generator=torch.Generator().manual_seed(0)),
    "a": torch.tensor(1.5),
    "ids": torch.arange(3)[None],
    "half": torch.randn(3).half(),
    "bfloat": torch.randn(2, 2).bfloat16(),
    "none": torch.zeros(0, 3),
    "yes": torch.tensor([True, False, True]),
    "größe": torch.zeros(1, dtype=torch.float64),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "signed": torch.arange(-2, 3, dtype=torch.int8),
    "short": torch.arange(3, dtype=torch.int16),
    "int": torch.arange(3, dtype=torch.int32),
    "turned": torch.arange(6.0).view(2, 3).T,
}


@pytest.mark.parametrize("names", [[*STATE], [*reversed(STATE)], ["a"], ["none"], []])
def test_the_bytes_are_those_of_the_library(names: list[str], tmp_path: Path) -> None:
    state = {name: STATE[name] for name in names}
    steps: list[int] = []
    digests, whole = write_file(tmp_path / "ours", state, steps.append)
    plain = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(plain, tmp_path / "theirs", metadata={"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert digests == {name: tensor_digest(name, tensor) for name, tensor in state.items()}
    assert steps == [1] * len(names)
    assert whole == file_hash(tmp_path / "ours")
    for name, tensor in load_file(tmp_path / "ours").items():
        assert torch.equal(tensor, state[name])


def test_two_tensors_are_in_memory_at_a_time(tmp_path: Path) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def compute(name: str) -> torch.Tensor:
        nonlocal most
        gc.collect()
        tensor = torch.zeros(4)
        alive.append(weakref.ref(tensor))
        most = max(most, sum(one() is not None for one in alive))
        return tensor

    known = {f"t{i}": Spec((4,), torch.float32) for i in range(9)}
    write_file(tmp_path / "file", Lazy(known, compute), lambda done: None)
    assert len(alive) == 9
    assert most <= 2, "one being computed, one being written"


def test_what_is_not_as_announced_is_an_error(tmp_path: Path) -> None:
    state = Lazy({"w": Spec((2, 3), torch.float32)}, lambda name: torch.zeros(3, 2))
    with mistake(IncompatibleWeights, "w (3, 2)"):
        write_file(tmp_path / "file", state, lambda done: None)


def test_a_type_that_is_not_read_is_not_written(tmp_path: Path) -> None:
    with mistake(IncompatibleWeights, "w torch.complex64 I64"):
        write_file(tmp_path / "file", {"w": torch.zeros(2, dtype=torch.complex64)}, print)
    assert not (tmp_path / "file").exists()


def test_an_error_of_the_disk_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("harness.weights.finite_digest", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "file", {"only": torch.zeros(1)}, lambda done: None)


def test_an_error_while_computing_is_raised(tmp_path: Path) -> None:
    def compute(name: str) -> torch.Tensor:
        return torch.zeros(1) if name == "a" else torch.zeros(int("x"))

    known = specs({"a": torch.zeros(1), "b": torch.zeros(1)})
    with pytest.raises(ValueError, match="invalid literal"):
        write_file(tmp_path / "file", Lazy(known, compute), lambda done: None)


def test_what_overflows_a_type_is_one_line(tmp_path: Path) -> None:
    """With what to do about it, where the type is the cause."""
    state = {"big": torch.tensor([1e5]).half()}
    with mistake(NotFinite, "'big' merge infinite expected float16 65504 float32 wider"):
        write_file(tmp_path / "file", state, lambda _: None)
    with mistake(NotFinite, "'big' merge infinite expected finite") as told:
        write_file(tmp_path / "file", {"big": torch.tensor([torch.inf])}, lambda _: None)
    assert "float" not in str(told.value)
