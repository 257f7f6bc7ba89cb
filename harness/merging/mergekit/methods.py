"""Shell: `--merger mergekit:METHOD`, a method of an installed mergekit run as a subprocess."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import save_file

from harness.checkpoints.mergekit import BASELESS, ENDPOINTS
from harness.checkpoints.weight_files import open_weights
from harness.entries import Merger
from harness.errors import BadOption, BadRecipe
from harness.types import StateDict
from harness.weights import Lazy, check_same, each, specs

VARIABLE = "HARNESS_MERGEKIT"
"""The environment variable that names mergekit's environment, or its command."""
SCRIPT = "mergekit-pytorch"
"""mergekit's command for tensors by name, which knows no architecture."""


def family(method: str) -> Merger:
    """The merger `mergekit:METHOD`. Methods without a base, or between two ends, need none."""

    def merged(
        experts: Sequence[StateDict], base: StateDict, *, seed: int = 0, **parameters: Any
    ) -> StateDict:
        """mergekit's merge of the models; it runs when the first tensor is asked for.

        A list has a parameter's value for each expert, any other value is for all. Raises BadRecipe
        if mergekit is not found and, with the last line that it printed, if it fails.
        """
        for name, value in parameters.items():
            if isinstance(value, list) and len(value) != len(experts):
                problem = f"mergekit:{method} got a list of {len(value)} for {name}"
                raise BadOption(f"{problem}; expected one value for all experts, or {len(experts)}")
        command, version = installed()
        config = _config(method, len(experts), parameters)
        states = [*experts, base] if reads_base else experts
        result = cache(lambda: _run(command, config, states, seed))
        headers = specs(each(lambda tensor: tensor, *states))
        return Lazy(headers, lambda name: result()[name], {"mergekit": version})

    reads_base = method not in (*BASELESS, *ENDPOINTS)
    paper = "arXiv:2403.13257"
    return Merger(f"mergekit:{method}", merged, paper=paper, task_vectors=reads_base)


def _config(method: str, count: int, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """mergekit's configuration for the files that `_run` writes."""
    files = [_file(index) for index in range(count + 1)]
    own = {name: value for name, value in parameters.items() if isinstance(value, list)}
    by_file = [{name: value[index] for name, value in own.items()} for index in range(count)]
    models = [{"model": file, "parameters": one} for file, one in zip(files, by_file, strict=False)]
    shared = {name: value for name, value in parameters.items() if name not in own}
    base = {} if method in BASELESS else {"base_model": files[0 if method in ENDPOINTS else count]}
    return {"merge_method": method, "models": models, "parameters": shared, **base}


def _file(index: int) -> str:
    return f"model-{index}.safetensors"


def _run(
    command: Path, config: Mapping[str, Any], states: Sequence[StateDict], seed: int
) -> StateDict:
    """mergekit's result, in a temporary folder that is removed when nothing refers to it."""
    folder = Path(tempfile.mkdtemp(prefix="mergekit-"))
    try:
        for index, state in enumerate(states):
            wide = each(lambda tensor: tensor.contiguous(), state)
            save_file(dict(wide), folder / _file(index))
        (folder / "config.yml").write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
        _call(command, str(config["merge_method"]), folder, seed)
        merged = open_weights(folder / "out")
        check_same([states[0], merged], ["expert 1", "the result of mergekit"])
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    for index in range(len(states)):
        (folder / _file(index)).unlink()
    weakref.finalize(merged, shutil.rmtree, folder, ignore_errors=True)
    return merged


def _call(command: Path, method: str, folder: Path, seed: int) -> None:
    arguments = [str(command), "config.yml", "out", "--random-seed", str(seed)]
    # mergekit visits tensors in the order of a set: hashes decide which random numbers each gets
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    try:
        done = subprocess.run(
            arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise BadRecipe(
            f"{command} cannot be run: {error.strerror}; expected mergekit's"
        ) from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else f"it ended with status {done.returncode}"
        raise BadRecipe(f"mergekit:{method} failed: {reason}")


# Finding it --------------------------------------------------------------------------------


def installed() -> tuple[Path, str]:
    """mergekit's command, from HARNESS_MERGEKIT, else this environment, else the path; and its
    version, '' if that is unknown.

    Raises BadRecipe if there is none.
    """
    if named := os.environ.get(VARIABLE):
        place = Path(named).expanduser()
        folders = [place / "bin", place / "Scripts"] if place.is_dir() else [place.parent]
        what = f"{VARIABLE} is {named}, where there is no {SCRIPT}"
    else:
        on_path = shutil.which(SCRIPT)
        folders = [Path(sys.executable).parent, *([Path(on_path).parent] if on_path else [])]
        what = f"there is no {SCRIPT} beside {sys.executable} or on the PATH"
    for folder in folders:
        for name in (SCRIPT, f"{SCRIPT}.exe"):
            if (folder / name).is_file():
                return (folder / name).absolute(), _version(folder / name)
    raise BadRecipe(
        f"mergekit is not installed: {what}; install it in an environment of its own "
        f"(python -m venv DIR, DIR/bin/pip install mergekit) and set {VARIABLE}=DIR"
    )


def _version(command: Path) -> str:
    """The version of mergekit in the environment of a command; '' if unknown."""
    root = command.resolve().parents[1]
    for packages in ("lib/python*/site-packages", "Lib/site-packages"):
        for place in root.glob(f"{packages}/mergekit-*.dist-info"):
            return place.name[len("mergekit-") : -len(".dist-info")]
    return ""
