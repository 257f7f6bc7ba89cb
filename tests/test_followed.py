"""A task of one's own is found again from the folders of its experts and of their merges."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import harness
from harness import TASKS, Recipe, Run
from harness.cli import main
from harness.data.sources import SUFFIXES
from harness.errors import BadRecipe, UnknownName
from tests.conftest import FAST, model
from tests.mistakes import mistake, refused
from tests.test_own_tasks import FIVE_LINES, described, written

pytestmark = [
    pytest.mark.usefixtures("as_found"),
    pytest.mark.filterwarnings("ignore:.* was edited since it was written"),  # by these tests
]
LINES = FIVE_LINES["classification"][0]
KEPT = ("_values", "_origins", "_asked", "hints")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base, a task in a file and two experts of it, given as one would type it."""
    root = tmp_path_factory.mktemp("trained") / "work"
    written(root / "data", "train", "test")
    described(root, LINES, "tweets")
    base = model(root / "base")
    with pytest.MonkeyPatch.context() as patch:
        len(TASKS)
        for kept in KEPT:
            patch.setattr(TASKS, kept, dict(getattr(TASKS, kept)))
        patch.chdir(root)
        for seed in (0, 1):
            harness.finetune(
                base, "./tweets.yaml", out=f"e{seed}", **{**FAST, "epochs": 1, "seed": seed}
            )
    return root


@pytest.fixture
def room(trained: Path, tmp_path: Path) -> Path:
    """All of that somewhere else, with nothing left where it was; as in the next process."""
    moved = Path(shutil.copytree(trained, tmp_path / "moved"))
    away(moved, trained)
    return moved


def away(moved: Path, trained: Path) -> None:
    """Full paths that lead to a place that is not there."""
    for seed in (0, 1):
        edit(moved / f"e{seed}", lambda said: said["described"]["tweets"].update(path="/gone.yaml"))
    assert trained.name not in (moved / "e0" / "expert.json").read_text().replace("work/base", "")


def edit(folder: Path, change: Any, name: str = "expert.json") -> None:
    said = json.loads((folder / name).read_text())
    change(said)
    (folder / name).write_text(json.dumps(said))


def forget() -> None:
    """As in the next process."""
    for kept in KEPT:
        getattr(TASKS, kept).pop("tweets", None)


def merged(room: Path, *flags: str) -> int:
    forget()
    experts = [str(room / "e0"), str(room / "e1")]
    return main(["merge", *experts, "--base", str(room / "base"), "--out", str(room / "m"), *flags])


def test_a_merge_without_a_base_says_which_to_give(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one that all experts name, quoted; it is not opened because a file names it."""
    (room / "my base").symlink_to(room / "base")
    for seed in (0, 1):
        edit(room / f"e{seed}", lambda said: said.update(base=str(room / "my base")))
    forget()
    command = ["merge", str(room / "e0"), str(room / "e1"), "--merger", "average", "--dry-run"]
    assert main([*command, "--out", str(room / "m")]) == 0
    assert f"give --base '{room / 'my base'}'\n" in capsys.readouterr().out
    edit(room / "e0", lambda said: said.update(base="another"))
    assert main([*command, "--out", str(room / "m")]) == 0
    assert "give --base BASE\n" in capsys.readouterr().out


def barrier(room: Path) -> int:
    forget()
    ends, place = [str(room / "e0"), str(room / "e1")], str(room / "barrier")
    return main(["barrier", *ends, "--points", "3", "--output-path", place])


def test_a_barrier_finds_the_task_of_its_experts(room: Path) -> None:
    assert barrier(room) == 0


def evaluated(room: Path, name: str, *flags: str) -> int:
    forget()
    where = ["--output-path", str(room / "records"), "--protocols", "current", "--device", "cpu"]
    return main(["evaluate", "--model", str(room / name), *where, *flags])


def test_what_experts_say_is_followed_to_the_board(room: Path) -> None:
    assert merged(room, "--merger", "regmean:examples=8", "--device", "cpu") == 0
    said = json.loads((room / "m" / "merge.json").read_text())
    assert said["tasks"] == ["tweets"]
    assert said["described"]["tweets"]["relative"] == os.path.join("..", "tweets.yaml")
    assert evaluated(room, "m") == 0
    forget()
    assert main(["leaderboard", str(room / "records"), "--out", str(room / "board")]) == 0
    assert "tweets@test" in (room / "board" / "board.md").read_text()
    assert evaluated(room, "e0", "--tasks", "tweets@heldout10", "--limit", "3") == 0


def test_a_pair_of_folders_that_moves_again_is_followed(room: Path, tmp_path: Path) -> None:
    assert merged(room) == 0
    there = room.rename(tmp_path / "elsewhere" if room.parent == tmp_path else tmp_path / "x")
    assert evaluated(there, "m") == 0
    link = tmp_path / "link"
    link.symlink_to(there / "m", target_is_directory=True)
    assert evaluated(tmp_path, "link", "--output-path", str(tmp_path / "other")) == 0


def test_the_full_path_is_the_second_try(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "e0", tmp_path / "alone")
    assert evaluated(tmp_path, "alone") == 0


def test_a_folder_from_before_places_were_recorded_has_what_was_typed(room: Path) -> None:
    def old(said: dict[str, Any]) -> None:
        del said["described"]
        said["spelled"]["tweets"] = "../tweets.yaml"

    edit(room / "e0", old)
    assert evaluated(room, "e0") == 0


def test_what_is_typed_wins(room: Path, tmp_path: Path) -> None:
    written(tmp_path / "new" / "data", "train", "test")
    for suffix in SUFFIXES:
        for path in (tmp_path / "new" / "data").glob(f"test.{suffix}"):
            path.write_text("\n".join(path.read_text().splitlines()[:5]))
    moved = described(tmp_path / "new", LINES, "tweets")
    assert evaluated(room, "e0", "--tasks", moved) == 0
    (record,) = [json.loads(one.read_text()) for one in (room / "records").rglob("*.json")]
    assert record["rows"] == 5


def test_a_task_that_has_another_name_by_now_is_known_by_its_rows(room: Path) -> None:
    (room / "tweets.yaml").rename(room / "posts.yaml")
    typed = ["--tasks", str(room / "posts.yaml")]
    assert merged(room, *typed) == 0
    assert merged(room, "--force", "--dry-run", "--tasks", "embedded/topic") == 2
    assert evaluated(room, "m", *typed) == 0
    experts = [json.loads(one.read_text()) for one in (room / "records").rglob("*.json")]
    assert sum(one["role"] == "expert" for one in experts) == 2


def test_kept_heads_of_a_task_that_has_another_name_by_now(room: Path) -> None:
    topic = harness.finetune(
        room / "base", "embedded/topic", out=room / "t", **{**FAST, "epochs": 1, "limit": 16}
    )
    both = [str(room / "e0"), topic.source, "--base", str(room / "base"), "--out", str(room / "m")]
    assert main(["merge", *both]) == 0
    (room / "tweets.yaml").rename(room / "posts.yaml")
    assert evaluated(room, "m", "--tasks", str(room / "posts.yaml")) == 0


def test_what_is_not_there_is_one_short_line(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (room / "tweets.yaml").unlink()
    assert merged(room) == 0, "no row is read"
    for code, name in (
        (merged(room, "--force", "--merger", "regmean:examples=8"), "e0/expert.json"),
        (evaluated(room, "m"), "m/merge.json"),
        (evaluated(room, "e0"), "e0/expert.json"),
    ):
        assert code == 2, name
    lines = [one for one in capsys.readouterr().err.splitlines() if one.startswith("harness: ")]
    assert len(lines) == 3
    for line in lines:
        assert "type --tasks" in line
        assert "embedded/" not in line


def test_two_descriptions_of_one_task_are_not_chosen_between(room: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(room, tmp_path / "other"))
    experts = [str(room / "e0"), str(other / "e1")]
    command = ["merge", *experts, "--base", str(room / "base"), "--out", str(room / "m")]
    refused(command, BadRecipe, "tweets")
    assert main([*command, "--tasks", str(room / "tweets.yaml")]) == 0
    with mistake(BadRecipe, "tweets"):
        harness.evaluate(
            Run(
                model=str(room / "e0"),
                tasks=(str(room / "tweets.yaml"), str(other / "tweets.yaml")),
                output=str(room / "records"),
            )
        )


def test_an_expert_is_trained_further_on_its_own_task(room: Path) -> None:
    forget()
    made = harness.finetune(room / "e0", "tweets", out=room / "further", **{**FAST, "epochs": 1})
    assert made.tasks == ("tweets",)


def test_statistics_find_it_too(room: Path) -> None:
    forget()
    out = room / "gram.safetensors"
    command = ["statistics", str(room / "e0"), "--task", "tweets", "--merger", "regmean:examples=4"]
    assert main([*command, "--out", str(out), "--device", "cpu"]) == 0


# What a folder may not do --------------------------------------------------------------------


def test_a_name_of_a_module_is_told_and_never_imported(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (room / "payload.py").write_text("open('ran', 'w')\n")
    monkeypatch.chdir(room)
    monkeypatch.syspath_prepend(room)
    for typed in ("payload:TASK", "payload:TASK.yaml"):
        edit(room / "e0", lambda said, typed=typed: said.update(spelled={"tweets": typed}))
        edit(room / "e0", lambda said: said.pop("described", None))
        refused(lambda: evaluated(room, "e0"), UnknownName, "--tasks")
    assert not (room / "ran").exists()


def test_a_folder_takes_no_name_that_is_not_its_task(room: Path) -> None:
    """Neither a registered one, nor one that is typed, by a file that describes another task."""
    (room / "trap.yaml").write_text(f"name: posts\n{LINES}")
    posts = described(room, LINES.replace("files: data", "files: data/test.jsonl"), "posts")
    edit(room / "e0", lambda said: said["described"]["tweets"].update(relative="../trap.yaml"))
    assert evaluated(room, "e0", "--tasks", posts) == 0
    assert harness.TASKS["posts"].files["train"].endswith("test.jsonl")
    refused(lambda: evaluated(room, "e0"), UnknownName, "trap.yaml posts")
    (room / "trap.yaml").write_text(f"name: embedded/topic\n{LINES}")
    edit(room / "e0", lambda said: said.update(tasks=["embedded/topic"]))
    assert not harness.TASKS["embedded/topic"].files


@pytest.mark.parametrize("what", ["pipe", "folder", "no yaml"])
def test_only_a_plain_file_that_ends_in_yaml_is_followed(what: str, room: Path) -> None:
    odd = room / ("odd.yaml" if what != "no yaml" else "odd.txt")
    {
        "pipe": lambda: os.mkfifo(odd),
        "folder": odd.mkdir,
        "no yaml": lambda: shutil.copy(room / "tweets.yaml", odd),
    }[what]()
    edit(room / "e0", lambda said: said["described"]["tweets"].update(relative=f"../{odd.name}"))
    forget()
    with mistake(UnknownName, "--tasks"):
        harness.evaluate(Run(model=str(room / "e0"), output=str(room / "records")))


def test_a_model_of_the_hub_names_no_file_here(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.checkpoints.open._download", lambda *_: room / "e0")
    forget()
    with mistake(UnknownName, "--tasks"):
        harness.evaluate(Run(model="some/model", output=str(room / "records")))


def test_recipes_are_followed_from_python(room: Path) -> None:
    forget()
    experts = (str(room / "e0"), str(room / "e1"))
    recipe = Recipe(experts=experts, merger="regmean:examples=8", device="cpu")
    assert harness.merge(recipe, out=room / "m").tasks == ("tweets", "tweets")
