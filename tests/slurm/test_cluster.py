"""A study as arrays of a real Slurm: whatever happens, its records are those of a run here."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from harness.cli import main
from harness.studies.outcomes import outcomes_of
from harness.studies.plan import read_plan
from harness.training.miniature import make_base
from tests.slurm.nodes import clear, cluster, ended, said, tasks, until

pytestmark = pytest.mark.slurm

STUDY = {
    "study": "two",
    "base": "base",
    "experts": {
        "tasks": "embedded/topic",
        "seeds": [0, 1],
        "finetune": {"epochs": 1, "limit": 40},
    },
    "sets": {"by": "task"},
    "mergers": ["average", "held"],
    "protocols": ["current", "knn"],
    "evaluate": {"limit": 24, "draws": 2, "shots": [1]},
}
HELD = '''
import os
import time
from pathlib import Path

from harness import merger
from harness.mergers.average import average


@merger("held", task_vectors=False)
def held(experts, base):
    """The mean, when nothing holds it: it says who waits, and takes memory where that is asked."""
    hold, taken = Path(os.environ.get("HELD", "/nowhere")), []
    while hold.exists():
        if hold.read_text() == "more":
            taken.append(b"x" * 2**26)
        hold.with_suffix(".new").write_text(str(os.getpid()))
        hold.with_suffix(".new").replace(hold.with_suffix(".pid"))  # whoever reads it has all of it
        time.sleep(0.1)
    return average(experts, base)
'''
AVERAGE, HOLDING = "merged/base/topic/average", "merged/base/topic/held"


@dataclass(frozen=True)
class Room:
    """A folder with a study in it."""

    path: Path

    @property
    def out(self) -> Path:
        return self.path / "out"

    @property
    def states(self) -> dict[str, str]:
        known = outcomes_of(read_plan(self.out / "plans/latest/two.json"), self.out)
        return {name: one.state for name, one in known.items()}

    @property
    def records(self) -> dict[str, bytes]:
        found = sorted((self.out / "records").rglob("*.json"))
        return {path.relative_to(self.out).as_posix(): path.read_bytes() for path in found}

    def times(self) -> dict[str, int]:
        """When each step that is done was."""
        return {
            name: (self.out / "outcomes" / f"{name}.json").stat().st_mtime_ns
            for name, state in self.states.items()
            if state == "done"
        }

    def command(self, verb: str, *more: object) -> int:
        words = [verb, self.path / "two.yaml", "--out", self.out, "--device", "cpu"]
        words += ["--plugins", self.path / "mine", *more]
        return main(["study", *map(str, words)])

    def submit(self, *header: str) -> list[str]:
        """Submit what is missing; the numbers of the arrays."""
        (self.path / "cluster.sh").write_text("\n".join(["#!/bin/bash", *header]))
        assert self.command("submit", "--header", self.path / "cluster.sh", "--parallel", 2) == 0
        return list(json.loads((self.out / "slurm.json").read_text())["jobs"])


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    with cluster():
        yield


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Room:
    """The study, done in this process."""
    room = Room(tmp_path_factory.mktemp("serial"))
    make_base(room.path / "base", steps=2)
    (room.path / "mine").mkdir()
    (room.path / "mine" / "held.py").write_text(HELD)
    (room.path / "two.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        assert room.command("run") == 0
    assert len(room.records) == 11
    return room


@pytest.fixture
def room(
    slurm: None, serial: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Room]:
    """The same study in a folder of its own, with nothing done; each of its steps is a chunk."""
    monkeypatch.setattr("harness.studies.plan.CHUNK", 1e-9)
    monkeypatch.setenv("HELD", str(tmp_path / "held"))
    shutil.copytree(serial.path / "base", tmp_path / "base")
    (tmp_path / "mine").symlink_to(serial.path / "mine")  # this process loads a plug-in once
    shutil.copy(serial.path / "two.yaml", tmp_path)
    yield Room(tmp_path)
    clear()


@pytest.fixture
def trained(room: Room, serial: Room) -> Room:
    """The study with its experts made."""
    shutil.copytree(serial.out / "experts", room.out / "experts")
    shutil.copytree(serial.out / "outcomes/experts", room.out / "outcomes/experts")
    return room


def running() -> int:
    return [*tasks().values()].count("RUNNING")


def held(room: Room) -> int:
    """Wait until one merge is done and the other one is in the middle; the process that waits."""
    pid = room.path / "held.pid"
    until(lambda: pid.exists() and pid.read_text(), "the merge is held")
    until(lambda: room.states[AVERAGE] == "done", "the other merge is done")
    assert room.states[HOLDING] == "begun"
    return int(pid.read_text())


def mended(room: Room, serial: Room) -> None:
    """`study run` does what is missing and no more, and all is as if nothing had been."""
    (room.path / "held").unlink(missing_ok=True)
    before, missing = room.times(), [n for n, one in room.states.items() if one != "done"]
    assert before
    assert missing
    assert room.command("run") == 0
    after = room.times()
    assert {name for name, time in after.items() if before.get(name) != time} == {*missing}
    assert room.records == serial.records


def status(room: Room, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    main(["study", "status", str(room.out)])
    return capsys.readouterr().out


def test_the_arrays_make_the_records_of_a_run_here(
    room: Room, serial: Room, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = room.submit("#SBATCH --mem=1500")
    assert capsys.readouterr().out.split() == jobs
    assert len(jobs) == 4  # experts, merges, the first that is scored, the other
    assert "pending" in status(room, capsys)
    assert room.command("submit", "--header", room.path / "cluster.sh") == 2  # they wait
    until(ended, "all has ended", 300)
    assert {*room.states.values()} == {"done"}
    assert room.records == serial.records
    told = status(room, capsys)
    assert re.search(r"^completed +6\s*$", told, flags=re.MULTILINE), told
    # chunks 4 and 5, of which Slurm has no index here (MaxArraySize), are 0 and 1
    assert {f"{jobs[2]}_0", f"{jobs[3]}_1"} < {*tasks()}
    before = room.times()
    assert room.command("submit", "--header", room.path / "cluster.sh") == 0  # nothing is left
    assert json.loads((room.out / "slurm.json").read_text())["jobs"] == jobs
    assert room.times() == before


def test_what_is_cancelled_in_the_middle(trained: Room, serial: Room) -> None:
    (trained.path / "held").touch()
    jobs = trained.submit()
    pid = held(trained)
    said("scancel", *jobs)
    until(ended, "all is cancelled")
    until(lambda: not Path(f"/proc/{pid}").exists(), "the worker is gone")
    assert trained.states[HOLDING] == "begun"
    mended(trained, serial)


def test_a_worker_that_is_killed(
    trained: Room, serial: Room, capsys: pytest.CaptureFixture[str]
) -> None:
    (trained.path / "held").touch()
    jobs = trained.submit()
    os.kill(held(trained), signal.SIGKILL)
    until(ended, "all has ended")
    told = status(trained, capsys)
    line = rf"^failed +2 +NonZeroExitCode +{jobs[0]}_\d+ {jobs[2]}_\d+$"
    assert re.search(line, told, flags=re.MULTILINE), told
    assert trained.states[HOLDING] == "begun"
    assert trained.states[f"records/two/{AVERAGE}/topic"] == "done"
    assert trained.states[f"records/two/{HOLDING}/topic"] == "missing"
    mended(trained, serial)


def test_a_node_that_goes_down(trained: Room, serial: Room) -> None:
    """Its task is done again by the other node, and what waits for it goes on waiting."""
    (trained.path / "held").touch()
    jobs = trained.submit()
    pid = held(trained)
    until(lambda: running() == 1, "Slurm knows that the other one ended")
    (task,) = (one for one, state in tasks().items() if state == "RUNNING")
    node = said("squeue", "-h", "-j", task, "-o", "%N")
    said("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    until(lambda: tasks()[task] == "PENDING", "it waits for another node")
    (trained.path / "held").unlink()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the worker is gone")
    assert tasks()[task] == "PENDING"
    said("scontrol", "update", f"JobId={task}", "StartTime=now")  # it would be in two minutes
    until(ended, "all has ended")
    assert {state for one, state in tasks().items() if one.split("_")[0] in jobs} == {"COMPLETED"}
    assert {*trained.states.values()} == {"done"}
    assert trained.records == serial.records


def test_a_task_out_of_memory(
    trained: Room, serial: Room, capsys: pytest.CaptureFixture[str]
) -> None:
    (trained.path / "held").write_text("more")
    jobs = trained.submit("#SBATCH --mem=1200")
    until(ended, "all has ended")
    assert trained.states[HOLDING] == "begun"
    told = status(trained, capsys)
    # a Slurm with cgroups would say OUT_OF_MEMORY; this one says why in the log
    assert re.search(rf"^failed +1 +\w+ +{jobs[0]}_\d+$", told, flags=re.MULTILINE), told
    log = "\n".join(path.read_text() for path in (trained.out / "logs").iterdir())
    assert "exceeded memory limit" in log
    mended(trained, serial)
