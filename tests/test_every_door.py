"""Every command on models of images, of two stacks, and a decoder, by the command line alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.cli import main
from tests.clips import clip, expert
from tests.conftest import DECODERS, model
from tests.images import colours, vit
from tests.t5 import FILE, t5
from tests.toys import THREE, known

pytest.importorskip("PIL.Image")
pytestmark = [
    pytest.mark.usefixtures("as_found"),
    pytest.mark.filterwarnings("ignore:.*the expert scores"),
    pytest.mark.filterwarnings("ignore:.* drove the experts apart"),
]
_tasks = known(THREE)
Make = Callable[[Path], str]


def of_vit(root: Path) -> str:
    base = vit(root / "base", None)
    for seed, name in enumerate("ab", start=1):
        vit(root / name, seed=seed, near=base)
    return str(colours(root))


def of_clip(root: Path) -> str:
    base = clip(root / "base")
    for seed, name in enumerate("ab", start=1):
        expert(root / name, base, seed=seed)
    return str(colours(root))


def of_t5(root: Path) -> str:
    base = t5(root / "base")
    for seed, name in enumerate("ab", start=1):
        t5(root / name, THREE.labels, seed=seed, near=base)
    return THREE.name


def of_words(root: Path) -> str:
    """T5s that make text, as they are published."""
    base = t5(root / "base")
    state = load_file(base / FILE)
    for seed, name in enumerate("ab", start=1):
        shutil.copytree(base, root / name)
        torch.manual_seed(seed)
        near = {name: tensor + torch.randn_like(tensor) / 20 for name, tensor in state.items()}
        save_file(near, root / name / FILE, {"format": "pt"})
    return THREE.name


def of_gpt2(root: Path) -> str:
    """Models whose matrices are transposed in a file."""
    sizes = DECODERS["gpt2"]
    base = model(root / "base", family="gpt2", **sizes)
    for seed, name in enumerate("ab", start=1):
        model(root / name, [*THREE.labels], seed=seed, near=base, family="gpt2", **sizes)
    return THREE.name


MODELS: dict[str, Make] = {
    "vit": of_vit,
    "clip": of_clip,
    "t5": of_t5,
    "words": of_words,
    "gpt2": of_gpt2,
}
HEADS = {
    "clip": ["clip"],
    "words": ["verbalizer", *(f"--word=word{place}" for place in (5, 6, 7))],
}
"""What `harness heads` makes for models without a head of their own."""


@pytest.mark.parametrize("kind", MODELS)
def test_every_command_works(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> str:
        assert main([*words]) == 0, words
        return capsys.readouterr().out

    task = MODELS[kind](tmp_path)
    monkeypatch.chdir(tmp_path)
    pair = ["a", "b", "--base", "base"]
    heads = []
    if kind in HEADS:
        run("heads", *HEADS[kind], "--base", "base", "--task", task, "--out", "heads/own")
        heads = ["--heads-from", "heads"]
    trained_under = heads if kind == "words" else []  # a CLIP is given its own texts
    run("finetune", "--base", "base", "--task", task, "--limit", "20", "--epochs", "1",
        *trained_under, "--out", "tuned")  # fmt: skip
    merge = partial(run, "merge", *pair, *heads, "--tasks", task)
    merge("--merger", "average", "--out", "average")
    merge("--merger", "ties", "--premerge", "rotation", "--postmerge", "lines", "--out", "ties")
    for need in ("gram", "fisher"):
        out = f"{need}.safetensors"
        run("statistics", "a", "--base", "base", *heads, "--task", task, "--need",
            f"{need}:examples=4", "--out", out)  # fmt: skip
        assert Path(out).is_file()
    assert "embeddings" in run("inspect", *pair)
    for name in ("average", "ties"):
        said = run("evaluate", "--model", name, "--protocols", "current,knn,ft-classifier",
                   "--shots", "2", "--draws", "3", "--dtype", "bfloat16",
                   "--output-path", "records")  # fmt: skip
        assert name in said
        assert "base" in said
    assert "average" in run("compare", "average", "ties", "--records", "records")
    run("leaderboard", "records", "--out", "board")
    board = Path("board/board.md").read_text()
    assert "ties" in board
    assert "bfloat16" in board
    for what in ("credit", "protocols"):
        run("plot", what, "records", "--out", what)
        assert Path(f"{what}.svg").is_file()
    run("plot", "tsne", "--model", "average", "--rows", "9", "--out", "plane")
    run("export", "records", "--format", "model-index", "--out", "cards")
    assert [*Path("cards").rglob("README.md")]
    run("show", task, "--model", "average")
    run("barrier", *pair, *heads, "--tasks", task, "--points", "3", "--output-path", "line")
