"""What Slurm is given and what it says, by stand-ins for its commands: no Slurm is needed.

tests/slurm has the same on a real one.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cli import main
from harness.errors import BadRecipe
from harness.studies.outcomes import Outcome, outcomes_of, write_outcome
from harness.studies.plan import Plan, read_plan
from harness.studies.pool import unfinished_chunks
from harness.studies.slurm import queue_table, tasks_of
from harness.training.miniature import make_base
from tests.mistakes import names, refused

STUDY = {
    "study": "two",
    "base": "base",
    "experts": {"tasks": "embedded/topic", "seeds": [0, 1], "finetune": {"limit": 40}},
    "sets": {"by": "task"},
    "mergers": ["average", "ties"],
    "evaluate": {"limit": 24},
}
HEADER = "#!/bin/bash\n#SBATCH --partition=gpu\nmodule() { echo loaded $1; }\nmodule load cuda"
SBATCH = """
import json, pathlib, sys
room = pathlib.Path({room!r})
given = sorted(room.glob("given-*"))
(room / f"given-{{len(given)}}").write_text(json.dumps([sys.argv[1:], sys.stdin.read()]))
if len(given) == {room_for}:
    sys.exit("sbatch: error: Batch job submission failed: Job violates accounting/QOS policy")
print(f"{{70 + len(given)}};cluster")
"""
EXPERTS = ("experts/base/topic-0", "experts/base/topic-1")
MERGES = ("merged/base/topic/average", "merged/base/topic/ties")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("slurm") / "base", steps=2)


@pytest.fixture
def room(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a study of which each step is a chunk, and Slurm's commands on the PATH."""
    (tmp_path / "base").symlink_to(base)
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(STUDY))
    (tmp_path / "cluster.sh").write_text(HEADER)
    monkeypatch.setattr("harness.studies.plan.CHUNK", 1e-9)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # and no real ones
    (tmp_path / "bin").mkdir()
    sbatch(tmp_path)
    return tmp_path


def program(room: Path, name: str, text: str) -> None:
    """A command of this Python."""
    path = room / "bin" / name
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)


def sbatch(room: Path, room_for: int = -1) -> None:
    """An sbatch that keeps what it is given, and refuses all after so many arrays."""
    program(room, "sbatch", SBATCH.format(room=str(room), room_for=room_for))


def says(room: Path, name: str, text: str) -> None:
    program(room, name, f"print({text!r})")


def command(room: Path, *words: object) -> list[str]:
    given = [room / "two.yaml", "--header", room / "cluster.sh", "--out", room / "out", *words]
    return ["study", "submit", *map(str, given)]


def given(room: Path) -> list[tuple[dict[str, str], str]]:
    """What sbatch was given each time: its flags, and the script."""
    found = [json.loads(path.read_text()) for path in sorted(room.glob("given-*"))]
    return [
        ({flag: value for flag, _, value in (word.partition("=") for word in words)}, script)
        for words, script in found
    ]


def plan_of(room: Path) -> Plan:
    return read_plan(room / "out/plans/latest/two.json")


def jobs(room: Path) -> list[str]:
    found: dict[str, list[str]] = json.loads((room / "out/slurm.json").read_text())
    return found["jobs"]


def done(room: Path, *steps: str, state: Any = "done") -> None:
    """Note that steps are done, as a worker does; an expert with its folder."""
    plan, folder = plan_of(room), room / "out"
    for name in steps:
        write_outcome(
            plan.steps[name], folder, Outcome(state, plan.steps[name].request, reason="why")
        )
        if plan.steps[name].verb in ("finetune", "merge") and state == "done":
            (folder / name).mkdir(parents=True)
            marker = {"finetune": "expert.json", "merge": "merge.json"}[plan.steps[name].verb]
            (folder / name / marker).write_text("{}")


def forget(room: Path) -> None:
    for path in room.glob("given-*"):
        path.unlink()


# What Slurm is given -----------------------------------------------------------------------


def test_an_array_for_each_stage_after_the_one_before(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(room, "--parallel", 3, "--device", "cpu", "--data-dir", room)) == 0
    assert capsys.readouterr().out.split() == ["70", "71", "72", "73"]
    assert jobs(room) == ["70", "71", "72", "73"]
    found = given(room)
    assert [flags["--array"] for flags, _ in found] == ["0,1%3", "2,3%3", "4%3", "5%3"]
    after = [flags.get("--dependency") for flags, _ in found]
    assert after == [None, "afterany:70", "afterany:71", "afterany:72"]
    (path,) = (room / "out/plans").glob("*.json")
    for flags, script in found:
        assert {"--requeue", "--parsable"} <= flags.keys()
        assert flags["--open-mode"] == "append"
        assert flags["--output"] == f"{room}/out/logs/%A_%a.log"
        assert script.startswith(HEADER + "\n")
        assert shlex.split(script.splitlines()[-1]) == [
            *(sys.executable, "-m", "harness", "work", str(path)),
            *("--data-dir", str(room), "--device", "cpu", "--merge-device", "cpu"),
            *("--chunk", "$((SLURM_ARRAY_TASK_ID + 0))"),
        ]
    assert (room / "out/logs").is_dir()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Configuration data\nMaxArraySize            = 3\nMaxJobCount = 9",
         [("0,1", 0), ("2", 0), ("0", 3), ("1", 3), ("2", 3)]),
        ("MaxArraySize = 1001", [("0,1", 0), ("2,3", 0), ("4", 0), ("5", 0)]),
        ("nothing of the kind", [("0,1", 0), ("2,3", 0), ("4", 0), ("5", 0)]),
    ],
    ids=["3", "1001", "unknown"],
)  # fmt: skip
def test_more_chunks_than_an_array_has_room_for(
    room: Path, said: str, expected: list[tuple[str, int]]
) -> None:
    says(room, "scontrol", said)
    assert main(command(room)) == 0
    found = [
        (flags["--array"].partition("%")[0], int(script.rpartition("+")[2].strip(' )"\n')))
        for flags, script in given(room)
    ]
    assert found == expected
    chunks = [int(one) + first for indices, first in found for one in indices.split(",")]
    assert chunks == [*range(6)]


def test_what_is_done_or_cannot_be_done_is_not_submitted(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(room)) == 0
    done(room, *EXPERTS, MERGES[0])
    forget(room)
    assert main(command(room)) == 0
    assert [flags["--array"] for flags, _ in given(room)] == ["3%16", "4%16", "5%16"]
    done(room, MERGES[1], state="failed")
    forget(room)
    assert main(command(room)) == 0
    assert [flags["--array"] for flags, _ in given(room)] == ["4%16"]
    (last,) = [name for name in plan_of(room).steps if name.endswith("average/topic")]
    done(room, last)
    forget(room)
    capsys.readouterr()
    assert main(command(room)) == 3
    assert not given(room)
    told = capsys.readouterr().out.splitlines()
    names(next(line for line in told if line.startswith("failed:")), MERGES[1], "why")
    assert main(command(room, "--retry-failed")) == 0
    assert [flags["--array"] for flags, _ in given(room)] == ["3%16", "5%16"]


def test_a_step_that_was_begun_by_one_who_is_gone_is_left_to_do(room: Path) -> None:
    assert main(command(room)) == 0
    done(room, EXPERTS[0])
    done(room, EXPERTS[1], state="begun")
    known = outcomes_of(plan_of(room), room / "out")
    assert unfinished_chunks(plan_of(room), known)[0] == 1


def test_the_script_of_a_task_does_its_chunk(room: Path) -> None:
    """By the shell that it names; with an index that is not the chunk's number."""
    says(room, "scontrol", "MaxArraySize = 1")
    assert main(command(room, "--device", "cpu")) == 0
    flags, script = given(room)[1]
    assert flags["--array"] == "0%16"
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "0", "SLURM_CPUS_ON_NODE": "1"}
    environment = {**environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["/bin/bash"], input=script, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["loaded load", f"done: {EXPERTS[1]}"]
    known = outcomes_of(plan_of(room), room / "out")
    assert [name for name, one in known.items() if one.state == "done"] == [EXPERTS[1]]


# What Slurm says ---------------------------------------------------------------------------


SAID = """70_0|COMPLETED|None
70_1|OUT_OF_MEMORY|OutOfMemory
71_2|FAILED|NonZeroExitCode
71_3|FAILED|NonZeroExitCode
72_4|PENDING|Dependency
73_5|PENDING|Dependency
74_0|RUNNING|None
7|FAILED|NonZeroExitCode
"""


def test_what_squeue_says_is_counted_of_the_arrays_of_the_study(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(room)) == 0
    says(room, "squeue", SAID)
    table = queue_table(tasks_of(room / "out"))
    assert table == [
        ["completed", 1, "", ""],
        ["failed", 2, "NonZeroExitCode", "71_2 71_3"],
        ["out_of_memory", 1, "OutOfMemory", "70_1"],
        ["pending", 2, "Dependency", ""],
    ]
    capsys.readouterr()
    assert main(["study", "status", str(room / "out")]) == 3
    told = capsys.readouterr().out
    assert "pending              2  Dependency" in told
    many = {("FAILED", "x"): [f"70_{number}" for number in range(9)]}
    assert queue_table(many) == [["failed", 9, "x", "70_0 70_1 70_2 70_3 70_4 ..."]]


@pytest.mark.parametrize("squeue", [None, "sys.exit('slurm_load_jobs error')", "print('x')"])
def test_the_status_needs_no_slurm(
    room: Path, squeue: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(room)) == 0
    if squeue:
        program(room, "squeue", f"import sys\n{squeue}")
    capsys.readouterr()
    assert main(["study", "status", str(room / "out")]) == 3
    told = capsys.readouterr()
    assert "Slurm" not in told.out
    assert not told.err


# What is refused ---------------------------------------------------------------------------


def is_refused(room: Path, words: Sequence[object], *things: object) -> None:
    refused(command(room, *words), BadRecipe, *things)


def test_a_header_that_is_none(room: Path) -> None:
    is_refused(room, ["--header", room / "none.sh"], "none.sh", "missing")
    (room / "cluster.sh").write_text("#SBATCH --partition=gpu\n")
    is_refused(room, [], "cluster.sh", "'#SBATCH --partition=gpu'", "#!/bin/bash")
    (room / "cluster.sh").write_text("")
    is_refused(room, [], "cluster.sh", "''", "#!/bin/bash")
    assert not (room / "out").exists()


def test_no_slurm_and_no_workers(room: Path) -> None:
    is_refused(room, ["--parallel", 0], "--parallel", "0")
    (room / "bin/sbatch").unlink()
    is_refused(room, [], "sbatch", "harness work")
    assert not (room / "out").exists()


def test_an_sbatch_that_refuses_leaves_what_it_took(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sbatch(room, room_for=0)
    is_refused(room, [], "sbatch", "QOS policy")
    assert not (room / "out/slurm.json").exists()
    forget(room)
    sbatch(room, room_for=2)
    assert main(command(room)) == 2
    assert capsys.readouterr().out.split() == ["70", "71"]
    assert jobs(room) == ["70", "71"]


def test_a_study_that_is_submitted_already(room: Path) -> None:
    assert main(command(room)) == 0
    says(room, "squeue", SAID)
    before = (room / "out/slurm.json").read_bytes()
    is_refused(room, [], "2 tasks", room / "out", "scancel", "72 73")
    assert (room / "out/slurm.json").read_bytes() == before
    assert len(given(room)) == 4
    says(room, "squeue", SAID.replace("PENDING", "CANCELLED"))
    assert main(command(room)) == 0


def test_a_worker_is_given_a_plan_that_cannot_change(room: Path) -> None:
    assert (
        main(["study", "plan", str(room / "two.yaml"), "--out", str(room / "out"), "--write"]) == 0
    )
    latest = room / "out/plans/latest/two.json"
    refused(["work", latest, "--chunk", "0"], BadRecipe, "two.json", "plans")
    assert not (room / "outcomes").exists()


def test_a_plan_is_written_where_that_is_asked(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["study", "plan", str(room / "two.yaml"), "--out", str(room / "out")]
    assert main([*words, "--write"]) == 0
    (path,) = (room / "out/plans").glob("*.json")
    assert capsys.readouterr().out.splitlines()[-5:] == [
        f"wrote {path}",
        "stage 0: chunks 0 to 1",
        "stage 1: chunks 2 to 3",
        "stage 2: chunks 4 to 4",
        "stage 3: chunks 5 to 5",
    ]
