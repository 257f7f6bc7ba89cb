"""The demo: what it makes and prints, with models that learn next to nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from harness import TASKS
from harness import demo as module
from harness.cli import main
from harness.errors import OutputExists
from harness.evaluation.run import Run
from harness.training.finetune import finetune
from harness.training.miniature import make_base, make_image_base
from tests.mistakes import refused


def run(out: Path, width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo in seconds: hardly any training, one merger."""
    monkeypatch.setattr(module, "make_base", partial(make_base, steps=3))
    monkeypatch.setattr(module, "make_image_base", partial(make_image_base, steps=3))
    monkeypatch.setattr(module, "finetune", partial(finetune, epochs=0.02))
    monkeypatch.setattr(module, "Run", partial(Run, shots=(5,), draws=2, limit=60))
    monkeypatch.setattr(module, "MERGERS", ("average",))
    monkeypatch.setattr("harness.cli.demo.width", lambda: width)
    assert main(["demo", "--out", str(out)]) == 0


def test_it_shows_a_task_of_each_kind_in_eighty_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    with monkeypatch.context() as stopped:
        stopped.setattr(module, "_train_and_evaluate", interrupted_in(out / "records"))
        stopped.setattr(module, "make_base", lambda _: None)
        stopped.setattr(module, "make_image_base", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            module.demo(out)
    run(out, 80, monkeypatch)
    assert not (out / "records" / "old.json").exists()
    printed, told = capsys.readouterr()
    assert told.splitlines()
    lines = [line for line in printed.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 80
    settings = (*module.SETTINGS, module.IMAGES)
    assert sum("average:" in line for line in lines) == len(settings)
    assert told.count("fine-tuning") == 7
    board = (out / "board" / "board.md").read_text()
    names = [name for setting in settings for name in setting.experts]
    tasks = {f"embedded/{name.partition('-')[0]}" for name in names}
    assert all(task in board for task in tasks)
    assert {TASKS[task].kind for task in tasks} == {
        *("classification", "regression", "multilabel", "tagging")
    }
    assert "| average " in board


def test_without_pillow_there_are_no_images_and_it_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    monkeypatch.setattr(module, "_train_and_evaluate", interrupted_in(tmp_path / "records"))
    monkeypatch.setattr(module, "make_base", lambda _: None)
    monkeypatch.setattr(module, "make_image_base", lambda _: pytest.fail("images are read"))
    with pytest.raises(KeyboardInterrupt):
        module.demo(tmp_path / "demo")
    told = capsys.readouterr().err
    assert "no images" in told
    assert "Pillow" in told


def interrupted_in(records: Path) -> Callable[..., None]:
    """What leaves a record and is stopped."""

    def stop(*_: object) -> None:
        records.mkdir()
        (records / "old.json").write_text("{}")
        raise KeyboardInterrupt

    return stop


def test_what_a_user_put_into_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "_train_and_evaluate", interrupted_in(tmp_path / "demo" / "records")
    )
    monkeypatch.setattr(module, "make_base", lambda _: None)
    monkeypatch.setattr(module, "make_image_base", lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        module.demo(tmp_path / "demo")
    (tmp_path / "demo" / "experts").mkdir()
    (tmp_path / "demo" / "experts" / "mine.txt").write_text("mine")
    refused(["demo", "--out", str(tmp_path / "demo")], OutputExists, "experts/mine.txt")
    assert (tmp_path / "demo" / "experts" / "mine.txt").read_text() == "mine"


def test_it_leaves_a_folder_of_others_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(("width", "shown"), [(None, 100), (240, 100), (80, 80)])
def test_it_is_never_wider_than_a_page_and_says_how_long_it_takes(
    width: int | None,
    shown: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    widths = []
    monkeypatch.setattr(module, "_make", lambda out, width: widths.append(width))
    module.demo(tmp_path / "demo", width)
    assert widths == [shown]
    assert "a minute or two" in capsys.readouterr().err
