"""The same numbers as mergekit, and its methods under our evaluation: with the real package.

Run by `make test-mergekit`; HARNESS_MERGEKIT names the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from harness.cli import main
from tests.conftest import FAMILIES, model

pytestmark = [
    pytest.mark.mergekit,
    pytest.mark.filterwarnings("ignore:.*gamma .* takes no entry"),
]

LABELS = ["entailment", "not_entailment"]
DRIVER = Path(__file__).with_name("driver.py")


def python() -> Path:
    """The interpreter of mergekit's environment."""
    named = os.environ.get("HARNESS_MERGEKIT")
    if not named:
        pytest.skip("HARNESS_MERGEKIT names no environment: make test-mergekit")
    return Path(named).absolute() / "bin" / "python"


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """base and three experts of every family, all with a head of the same labels."""
    root = tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        start = model(root / family / "encoder", family=family)
        for seed, name in enumerate(("base", "a", "b", "c")):
            model(root / family / name, LABELS, family=family, seed=seed + 1, near=start)
    return root


Entry = dict[str, Any]
Setting = Callable[[Path], Entry]


def models(room: Path, names: Iterable[str], **each: Sequence[float]) -> list[Entry]:
    return [
        {"model": str(room / name), "parameters": {key: each[key][i] for key in each}}
        for i, name in enumerate(names)
    ]


def with_base(method: str, shared: Entry | None = None, **each: Sequence[float]) -> Setting:
    """A merge of three experts with a base."""
    return lambda room: {
        "merge_method": method,
        "base_model": str(room / "base"),
        "models": models(room, "abc", **each),
        "parameters": shared or {},
    }


def linear(shared: Entry | None = None, **each: Sequence[float]) -> Setting:
    made = with_base("linear", shared, **each)
    return lambda room: {k: v for k, v in made(room).items() if k != "base_model"}


def slerp(t: float) -> Setting:
    return lambda room: {
        "merge_method": "slerp",
        "base_model": str(room / "a"),
        "models": models(room, "ab"),
        "parameters": {"t": t},
    }


UNEVEN = [1.0, 0.5, 0.25]
SETTINGS: dict[str, Setting] = {
    "linear": linear(weight=UNEVEN),
    "linear, as given": linear({"weight": 0.5, "normalize": False}),
    "linear, with a base": with_base("linear", {"weight": 2}),
    "task_arithmetic": with_base("task_arithmetic", {"lambda": 0.7}, weight=UNEVEN),
    "task_arithmetic, normalized": with_base("task_arithmetic", {"weight": 3, "normalize": True}),
    **{f"ties, density {d}": with_base("ties", {"weight": 1, "density": d}) for d in (0.1, 0.5, 1)},
    "ties, uneven": with_base("ties", {"lambda": 0.8}, weight=UNEVEN, density=[0.2, 0.5, 0.9]),
    "ties, a sum": with_base("ties", {"normalize": False, "density": 0.3}, weight=[1, -0.5, 2]),
    "ties, an int8 mask": with_base("ties", {"weight": 0.5, "density": 0.3, "int8_mask": True}),
    **{f"slerp, t {t}": slerp(t) for t in (0.0, 0.3, 0.5, 1.0)},
    "breadcrumbs": with_base("breadcrumbs", {"weight": 0.4, "density": 0.8, "gamma": 0.05}),
    "breadcrumbs, normalized": with_base(
        "breadcrumbs", {"weight": 0.4, "density": 0.5, "normalize": True}
    ),
    "breadcrumbs of few entries": with_base(
        "breadcrumbs", {"weight": 0.4, "density": 0.9, "gamma": 0.01}
    ),
    "breadcrumbs without gamma": with_base(
        "breadcrumbs", {"weight": 0.4, "density": 0.07, "gamma": 0}
    ),
    "ties of few entries": with_base("ties", {"weight": 1, "density": 0.01}),
    "a base among the models": lambda room: {
        **with_base("ties", {"weight": 1, "density": 0.5})(room),
        "models": models(room, ("base", "a", "b")),
    },
    "the tokenizer of the base": lambda room: {
        **linear({"weight": 1})(room),
        "base_model": str(room / "base"),
        "tokenizer_source": "base",
    },
    "all tokens": lambda room: {
        **with_base("task_arithmetic", {"weight": 1})(room),
        "tokenizer": {"source": "union"},
    },
    "types": lambda room: {
        **linear({"weight": 1})(room),
        "dtype": "float32",
        "out_dtype": "float32",
    },
}  # fmt: skip


@pytest.fixture(scope="session")
def made(families: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Folders that mergekit wrote, by family and setting; the configuration lies beside each."""
    root = tmp_path_factory.mktemp("made")
    found = {}
    for family in FAMILIES:
        for index, (name, setting) in enumerate(SETTINGS.items()):
            folder = root / f"{family}-{index}"
            folder.with_suffix(".yml").write_text(yaml.safe_dump(setting(families / family)))
            found[family, name] = folder
    mergekit(found.values())
    return found


def mergekit(folders: Iterable[Path]) -> None:
    """Run mergekit on the configuration beside each folder."""
    pairs = [f"{folder.with_suffix('.yml')}={folder}" for folder in folders]
    command = [str(python()), str(DRIVER), *pairs]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def agree(ours: Path, theirs: Path) -> None:
    mine, other = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    assert mine.keys() == other.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == other[name].dtype, name
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", list(SETTINGS))
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_numbers_are_mergekits(
    family: str, name: str, made: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    theirs = made[family, name]
    assert main(["merge", str(theirs.with_suffix(".yml")), "--out", str(tmp_path / "ours")]) == 0
    agree(tmp_path / "ours", theirs)


def on_a_grid(folder: Path, names: Sequence[str]) -> None:
    """Round every weight, so that sums of task vectors are often exactly 0."""
    for name in names:
        path = folder / name / "model.safetensors"
        rounded = {k: (v * 50).round() / 64 for k, v in load_file(path).items()}
        save_file(rounded, path, metadata={"format": "pt"})


def test_entries_that_sum_to_0_are_mergekits(tmp_path: Path) -> None:
    start = model(tmp_path / "encoder")
    for seed, name in enumerate(("base", "a", "b", "c")):
        model(tmp_path / name, LABELS, seed=seed + 1, near=start)
    on_a_grid(tmp_path, ("base", "a", "b", "c"))
    config = {**with_base("ties", {"weight": 1})(tmp_path), "models": models(tmp_path, "ab")}
    (tmp_path / "kit.yml").write_text(yaml.safe_dump(config))
    mergekit([tmp_path / "kit"])
    assert main(["merge", str(tmp_path / "kit.yml"), "--out", str(tmp_path / "ours")]) == 0
    agree(tmp_path / "ours", tmp_path / "kit")


@pytest.mark.parametrize("wide", [True, False])
def test_half_precision_is_rounded_as_mergekit_does(wide: bool, tmp_path: Path) -> None:
    start = model(tmp_path / "encoder")
    for seed, name in enumerate(("base", "a", "b", "c")):
        path = model(tmp_path / name, LABELS, seed=seed + 1, near=start) / "model.safetensors"
        halved = {k: v.to(torch.bfloat16) for k, v in load_file(path).items()}
        save_file(halved, path, metadata={"format": "pt"})
    weight = [0.9, 0.6, 0.35]
    setting = with_base("ties", {"density": 1}, weight=weight) if wide else linear(weight=weight)
    types = {"dtype": "float32", "out_dtype": "bfloat16"} if wide else {}
    (tmp_path / "kit.yml").write_text(yaml.safe_dump({**setting(tmp_path), **types}))
    mergekit([tmp_path / "kit"])
    assert main(["merge", str(tmp_path / "kit.yml"), "--out", str(tmp_path / "ours")]) == 0
    mine, other = (load_file(tmp_path / n / "model.safetensors") for n in ("ours", "kit"))
    differ = 0
    for name in mine:
        torch.testing.assert_close(mine[name], other[name], rtol=2**-7, atol=1e-6)
        differ += int((mine[name] != other[name]).sum())
    # float32 sums in another order can fall on either side of what is rounded
    assert differ < 0.002 * sum(tensor.numel() for tensor in mine.values())


# Evaluation -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen rows of RTE's form."""
    root = tmp_path_factory.mktemp("data")
    folder = root / "glue" / "rte"
    folder.mkdir(parents=True)
    for split, word in (("train", "word3"), ("validation", "word4")):
        rows = (
            {"sentence1": f"word{i} {word}", "sentence2": f"word{2 * i}", "label": i % 2}
            for i in range(16)
        )
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


@pytest.fixture
def evaluated(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[Entry]]:
    """`harness evaluate --tasks glue/rte` of a folder: its records."""

    def run(folder: Path) -> list[Entry]:
        capsys.readouterr()
        flags = ["--tasks", "glue/rte", "--shots", "1", "--draws", "2", "--json"]
        places = ["--data-dir", str(data), "--output-path", str(tmp_path / "records")]
        status = main(["evaluate", "--model", str(folder), *flags, *places])
        printed = capsys.readouterr()
        assert status == 0, printed.err
        found: list[Entry] = json.loads(printed.out)
        return found

    return run


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_folder_of_mergekits_is_evaluated(
    family: str, made: dict[tuple[str, str], Path], evaluated: Callable[..., list[Entry]]
) -> None:
    found = evaluated(made[family, "ties, density 0.5"])
    roles = [r["role"] for r in found if r["protocol"] == "current"]
    assert roles == ["merged", "base", "expert", "expert", "expert", "ensemble"]
    assert found[0]["method"] == "mergekit:ties"
    assert {r["head"] for r in found if r["role"] == "merged"} == {"own"}


@pytest.mark.parametrize(
    "merger",
    ["sce:select_topk=0.5", "della:weight=1,density=0.5,epsilon=0.1", "karcher", "ram"],
)
def test_a_method_that_we_have_not_is_evaluated(
    merger: str, families: Path, tmp_path: Path, evaluated: Callable[..., list[Entry]]
) -> None:
    room = families / "bert"
    experts = [str(room / name) for name in "abc"]
    flags = ["--base", str(room / "encoder"), "--merger", f"mergekit:{merger}", "--seed", "3"]
    for out in ("one", "two"):
        places = ["--tasks", "glue/rte", "--out", str(tmp_path / out)]
        assert main(["merge", *experts, *flags, *places]) == 0
    one, two = (json.loads((tmp_path / n / "merge.json").read_text()) for n in ("one", "two"))
    assert one["digest"] == two["digest"]
    assert one["report"] == {"mergekit": "0.1.5"}
    found = evaluated(tmp_path / "one")
    assert found[0]["method"] == one["method"]
    assert {r["protocol"] for r in found} == {"current", "knn", "ft-classifier"}


@pytest.mark.parametrize("merger", ["ties:density=0.4", "linear"])
def test_a_method_that_both_have_is_the_same(merger: str, families: Path, tmp_path: Path) -> None:
    room = families / "roberta"
    name = merger.partition(":")[0]
    ours = {"ties": "ties:density=0.4,trim=tensor,undecided=positive", "linear": "linear"}[name]
    kit = f"mergekit:{merger}{',' if ':' in merger else ':'}weight=1"
    common = [str(room / "a"), str(room / "b"), "--base", str(room / "encoder")]
    assert main(["merge", *common, "--merger", ours, "--out", str(tmp_path / "ours")]) == 0
    assert main(["merge", *common, "--merger", kit, "--out", str(tmp_path / "kit")]) == 0
    agree(tmp_path / "ours", tmp_path / "kit")


@pytest.mark.filterwarnings("ignore:there is one expert")
def test_a_failure_of_mergekits_is_one_line(
    families: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    room = families / "bert"
    flags = ["--base", str(room / "encoder"), "--merger", "mergekit:ties"]
    assert main(["merge", str(room / "a"), *flags, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(
        "harness: mergekit:ties failed: RuntimeError: Missing required parameter"
    )
    assert not (tmp_path / "out").exists()
