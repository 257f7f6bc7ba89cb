"""A Slurm of two nodes on this machine: everything of it in one folder, nothing left running."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
MEMORY = 4000
"""MiB of a node."""
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
# without cgroups: Slurm reads how much memory a job has, and kills one that has too much
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU={memory}
ReturnToService=2
MinJobAge=3600
KillWait=2
MaxArraySize=4
JobRequeue=0
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory={memory}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory={memory}
PartitionName=debug Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def until(true: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    """Wait for what is to become true. AssertionError where it does not."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not after {seconds:.0f} s: {what}"
        time.sleep(0.2)


def said(*command: object) -> str:
    """What a command prints; it must succeed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout.strip()


def tasks() -> dict[str, str]:
    """The state of every task of every array that Slurm knows, by the array and its index."""
    lines = said("squeue", "-h", "-r", "--states=all", "-o", "%i|%T").splitlines()
    return dict(line.split("|") for line in lines)


def ended() -> bool:
    """Whether nothing waits or runs."""
    return not said("squeue", "-h")


@contextmanager
def cluster() -> Iterator[None]:
    """Slurm, as every command finds it by SLURM_CONF; skips where that cannot be."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"no {', '.join(missing)}: Debian's slurm-wlm and munge are not installed")
    if os.geteuid() != 0:
        pytest.skip("not root, who alone can start a Slurm daemon that runs jobs")
    with ExitStack() as stack:
        # by itself, for a socket's path may have 107 bytes
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        folder.chmod(0o711)  # munge wants its socket in reach of everybody
        conf = folder / "slurm.conf"
        conf.write_text(CONF.format(host=_host(), ports=_ports(3), folder=folder, memory=MEMORY))
        for name in ("state", "spool.n1", "spool.n2"):
            (folder / name).mkdir()
        (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
        (folder / "munge.key").chmod(0o400)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("SLURM_CONF", str(conf))
        stack.callback(_end_all, conf)
        files = {
            "--socket": "munge.socket",
            "--key-file": "munge.key",
            "--pid-file": "munge.pid",
            "--log-file": "munge.log",
            "--seed-file": "munge.seed",
        }
        munged = [f"{flag}={folder / name}" for flag, name in files.items()]
        stack.enter_context(_daemon(folder / "munged.log", "munged", "--foreground", *munged))
        until((folder / "munge.socket").exists, "munged listens")
        stack.enter_context(_daemon(folder / "slurmctld.log", "slurmctld", "-D"))
        for node in ("n1", "n2"):
            stack.enter_context(_daemon(folder / f"{node}.log", "slurmd", "-D", "-N", node))
        until(lambda: _idle() == 2, "two nodes are idle", 60)
        yield


def _host() -> str:
    return socket.gethostname().split(".")[0]


def _ports(count: int) -> list[int]:
    """Ports of this machine that nothing listens at."""
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


@contextmanager
def _daemon(log: Path, *command: str) -> Iterator[None]:
    """A program that runs meanwhile, and what it says in a file."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()


def _idle() -> int:
    command = ["sinfo", "-h", "-N", "-o", "%T"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return found.stdout.split().count("idle")


def _end_all(conf: Path) -> None:
    """End what jobs left: every process that was started under this configuration."""
    mark = f"SLURM_CONF={conf}\0".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes() and int(path.parent.name) != os.getpid():
                os.kill(int(path.parent.name), signal.SIGKILL)


def clear() -> None:
    """No job is left and two nodes are idle."""
    said("scancel", "--user", "root")
    until(ended, "no job is left")
    for node in ("n1", "n2"):
        with suppress(AssertionError):  # it is not down
            said("scontrol", "update", f"nodename={node}", "state=resume")
    until(lambda: _idle() == 2, "two nodes are idle again")
