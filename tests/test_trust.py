"""What a downloaded folder cannot do, what is never lost, and what is never scored in silence."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

import harness
from harness import PREMERGE, TASKS, Choice, Recipe, Record, Run, StateDict, Task, folders, registry
from harness.checkpoints.network import classifier_on_meta, configuration
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.provenance import read_expert_json, rows_shown
from harness.cli import main
from harness.data.apart import among
from harness.entries import Premerge
from harness.errors import (
    BadData,
    BadRecipe,
    BrokenCheckpoint,
    BrokenRecord,
    CannotWrite,
    CellsFailed,
    HarnessError,
    IncompatibleWeights,
    MissingHead,
    NotFinite,
    OutputExists,
    UnknownName,
)
from harness.evaluation.records import identity_of
from harness.folders import Layout
from harness.methods import functions as functions_of
from harness.options import resolve
from harness.passes import features as encode
from harness.presets import PRESETS, PresetName, faithful
from harness.text import plain
from harness.unfinished import is_unfinished
from harness.weights import digest
from tests.conftest import model, no_file_above
from tests.mistakes import mistake, names, refused
from tests.toys import THREE, TOY, known, pairs, registered

Minis = Callable[[str], dict[str, Path]]
Loud = Callable[..., Path]
WEIGHTS = "model.safetensors"
toys = known(TOY, THREE)


@pytest.fixture(scope="module")
def shelf(loud: Loud, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, two experts of one task and one of another, in words that show; never changed."""
    root = tmp_path_factory.mktemp("shelf")
    for name in ("base", "a", "b", "c"):
        shutil.copytree(loud("bert", name), root / name)
    return root


@pytest.fixture
def room(shelf: Path, tmp_path: Path) -> Path:
    """The same in a place of its own, to be broken, with a merge of the two."""
    root = tmp_path / "room"
    shutil.copytree(shelf, root)
    harness.merge(same(root), out=root / "merged")
    return root


def same(root: Path, **values: Any) -> Recipe:
    """A merge of the two experts of one task."""
    known = {"base": str(root / "base"), "merger": "task_arithmetic", "tasks": ("toy/pairs",)}
    experts = [str(root / "a"), str(root / "b")]
    return Recipe(**{"experts": experts, **known, **values})


def across(root: Path, **values: Any) -> Recipe:
    """A merge of experts of two tasks, whose heads are kept."""
    experts = [str(root / "a"), str(root / "c")]
    return same(root, **{"experts": experts, "tasks": ("toy/pairs", "toy/three"), **values})


def read(folder: Path, **values: Any) -> list[Record]:
    """The records of a model under Current Eval, beside it."""
    known = {"output": str(folder.parent / "records"), "protocols": ("current",)}
    return harness.evaluate(Run(model=str(folder), **{**known, **values}))


def edited(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    state = load_file(path)
    change(state)
    save_file(state, path, metadata={"format": "pt"})


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# Code -----------------------------------------------------------------------------------------


PAYLOAD = "raise SystemExit('code of a download was run')\n"


@pytest.fixture
def payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module within reach whose import is what must not happen."""
    (tmp_path / "payload.py").write_text(PAYLOAD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return "payload:x"


FILES: dict[str, tuple[str, Callable[[dict[str, Any], str], Any]]] = {
    "tasks of a merge": ("merged/merge.json", lambda v, name: v.update(tasks=[name])),
    "task of an expert of a merge": (
        "merged/merge.json",
        lambda v, name: v["experts"][0].update(task=name),
    ),
    "rows that were tuned on": (
        "merged/merge.json",
        lambda v, name: v.update(scored_on=[f"{name}@test"]),
    ),
}


@pytest.mark.parametrize("place", FILES)
def test_a_name_in_a_file_imports_nothing_when_a_merge_is_read(
    place: str, room: Path, payload: str
) -> None:
    path, change = FILES[place]
    edited(room / path, lambda values: change(values, payload))
    with mistake(UnknownName, "merge.json payload:x"):
        read(room / "merged")
    assert "payload" not in sys.modules


def test_a_name_in_an_expert_imports_nothing(room: Path, payload: str) -> None:
    (room / "a" / "expert.json").write_text(json.dumps({"tasks": [payload]}))
    for action in (
        lambda: read(room / "a"),
        lambda: harness.merge(same(room, tasks=()), out=room / "again"),
        lambda: harness.merge(same(room, tune="scale=0:1:1"), out=room / "again"),
    ):
        with mistake(UnknownName, "expert.json payload:x"):
            action()
    assert "payload" not in sys.modules


@pytest.mark.parametrize("name", ["../../../evil", "/etc/evil", "a\0b", "", ".hidden", "a//b"])
def test_a_task_in_a_file_leads_nowhere(name: str, room: Path) -> None:
    for expert, task in (("a", name), ("c", "toy/three")):
        (room / expert / "expert.json").write_text(json.dumps({"tasks": [task]}))
    before = sorted(room.parent.rglob("*"))
    with mistake(BrokenCheckpoint, "a/expert.json", plain(name), "letters"):
        harness.merge(across(room, tasks=()), out=room / "again")
    assert sorted(room.parent.rglob("*")) == before


@pytest.mark.parametrize("key", ["merger", "premerge", "tasks", "tune_on"])
def test_a_name_in_a_recipe_imports_nothing(key: str, room: Path, payload: str) -> None:
    values: dict[str, Any] = {"experts": [str(room / "a"), str(room / "b")]}
    values[key] = payload if key == "merger" else [payload]
    (room / "recipe.json").write_text(json.dumps(values))
    with mistake(UnknownName, "recipe.json payload:x"):
        harness.merge(room / "recipe.json", out=room / "again")
    assert "payload" not in sys.modules


def test_a_name_in_a_record_imports_nothing(room: Path, payload: str) -> None:
    read(room / "merged", output=str(room / "records"))
    record = next((room / "records" / "merged").rglob("*.json"))
    record = record.rename(room / "record.json")  # a name that says what it is of holds it to that
    score = {"value": 0.5, "parts": {payload: 0.5}}
    of = {"protocol": payload, "metrics": [payload], "scores": [score], "majority": score}
    of |= {"intervals": [], "loss_resamples": None, "adaptation": None, "settings": {}}
    edited(record, lambda values: values.update(of))
    assert main(["leaderboard", str(record), "--out", str(room / "board")]) == 0
    assert "payload" not in sys.modules


def test_what_a_person_types_is_imported(room: Path, tmp_path: Path, payload: str) -> None:
    (tmp_path / "payload.py").write_text(
        "from harness.weights import each\n"
        "def x(experts, base):\n    return each(lambda a, *_: a, *experts)\n"
    )
    command = ["merge", str(room / "a"), str(room / "b"), "--merger", payload]
    command += ["--base", str(room / "base")]
    assert main([*command, "--out", str(room / "typed")]) == 0


def test_a_task_from_outside_is_found_again_by_what_was_typed(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meldings.py").write_text(
        "from dataclasses import replace\nfrom tests.toys import TOY\n"
        "meld = replace(TOY, name='emotion/meld')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    typed = ["--tasks", "meldings:meld"]
    command = ["merge", str(room / "a"), str(room / "b"), *typed, "--out", str(room / "meld")]
    assert main(command) == 0
    TASKS._values.pop("emotion/meld")  # as in the next process
    TASKS._asked.pop("meldings:meld")
    evaluate = ["evaluate", "--model", str(room / "meld"), "--protocols", "current"]
    evaluate += ["--output-path", str(room / "records")]
    refused(evaluate, UnknownName, "--tasks")
    assert main([*evaluate, *typed]) == 0


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("verb", ["evaluate", "merge", "finetune"])
def test_code_that_a_checkpoint_names_is_refused(
    name: str, verb: str, room: Path, payload: str
) -> None:
    where = "base" if verb == "finetune" else "a"
    classes = {"AutoConfig": "payload.C", "AutoTokenizer": ["payload.T", None]}
    edited(room / where / name, lambda values: values.update(auto_map=classes))
    shutil.copy("payload.py", room / where / "payload.py")
    out = ["--out", str(room / "out")]
    command = {
        "evaluate": ["evaluate", "--model", str(room / "a"), "--tasks", "toy/pairs"],
        "merge": ["merge", str(room / "a"), str(room / "b"), *out],
        "finetune": ["finetune", "--base", str(room / "base"), "--task", "toy/pairs", *out],
    }[verb]
    refused(command, BrokenCheckpoint, f"{where}/{name}", "auto_map")
    assert not (room / "out").exists()


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("part", ["", "vision_config"])
def test_a_kernel_that_a_configuration_names_is_never_fetched(key: str, part: str) -> None:
    """transformers gets it from the Hub, and runs it."""
    names: dict[str, Any] = {key: "kernels-community/flash-attn2"}
    said = {part: {"model_type": "clip_vision_model", **names}} if part else names
    read = configuration({"model_type": "clip" if part else "bert", **said}, "a")
    assert (read.vision_config if part else read)._attn_implementation is None
    classifier_on_meta({"model_type": "bert", "num_hidden_layers": 1, **names}, "a")


# Names ----------------------------------------------------------------------------------------

BAD_NAME = "evil\x1b[2J|<script>=1"


def test_a_name_does_no_harm_where_it_is_shown(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (room / "merged").rename(room / BAD_NAME)
    (room / "a").rename(room / f"={BAD_NAME}")
    records = ["--output-path", str(room / "records"), "--protocols", "current"]
    experts = ["--experts", f"{room}/={BAD_NAME},{room}/b"]
    capsys.readouterr()
    assert main(["evaluate", "--model", str(room / BAD_NAME), *experts, *records]) == 0
    board = ["leaderboard", str(room / "records"), "--out", str(room / "board")]

    def named(values: dict[str, Any]) -> None:
        values.update(method="=1+1|\x1b[31m<script>", task="=2+2|<script>\x1b\n@test")
        values.update(metrics=["<script>"])
        for score in (*values["scores"], values["majority"]):
            score["parts"] = {"<script>": score["value"]}

    for number, path in enumerate([*(room / "records").rglob("*.json")]):
        edited(path.rename(path.with_name(f"{number}.json")), named)
    assert main(board) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    markdown, table = ((room / "board" / f"board.{end}").read_text() for end in ("md", "csv"))
    assert "\x1b" not in markdown + table
    assert "<script>" not in markdown
    assert "'=1+1" in table
    assert "'=2+2" in table
    cells = [line.count("|") - line.count("\\|") for line in markdown.splitlines() if "|" in line]
    assert len({*cells}) <= 2  # of methods x tasks, and of shares


def test_a_name_in_a_model_card_is_data(room: Path) -> None:
    name = 'x"\n- evil: true\n---\n| a | <img src=x>'
    (room / "a").rename(room / name)
    recipe = same(room, experts=[str(room / name), str(room / "b")], base=None, merger="average")
    harness.merge(recipe, out=room / "carded")
    card = (room / "carded" / "README.md").read_text()
    metadata, _, body = card.removeprefix("---\n").partition("\n---\n")
    import yaml

    assert yaml.safe_load(metadata)["base_model"] == [str(room / name), str(room / "b")]
    assert "<img" not in body
    assert sum(line.startswith("|") for line in body.splitlines()) == 4


def test_records_stay_inside_the_output_folder(
    room: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (room / "merged" / "inner").mkdir()
    monkeypatch.chdir(room / "merged" / "inner")
    out = tmp_path / "deep" / "er" / "records"
    before = set(tmp_path.rglob("*"))
    read(Path(".."), output=str(out))
    new = set(tmp_path.rglob("*")) - before
    assert all(path.is_relative_to(out) or out.is_relative_to(path) for path in new)


def test_a_link_out_of_a_checkpoint_is_not_copied(room: Path, tmp_path: Path) -> None:
    secret = tmp_path / "id_rsa"
    secret.write_text("secret")
    (room / "a" / "vocab.txt").symlink_to(secret)
    with mistake(BrokenCheckpoint, "a/vocab.txt id_rsa"):
        harness.merge(same(room), out=room / "again")
    assert not (room / "again").exists()
    with mistake(BrokenCheckpoint, "a/vocab.txt", secret):
        read(room / "a", tasks=("toy/pairs",))


def test_a_snapshot_of_the_hub_is_made_of_links(room: Path) -> None:
    store = room / "models--me--a"
    (store / "blobs").mkdir(parents=True)
    snapshot = store / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for path in (room / "a").iterdir():
        shutil.copy(path, store / "blobs" / path.name)
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    harness.merge(same(room, experts=[str(snapshot), str(room / "b")]), out=room / "again")
    assert (room / "again" / "tokenizer.json").is_file()


# What folders say of themselves -----------------------------------------------------------------


def nudge(state: dict[str, torch.Tensor]) -> None:
    state["classifier.bias"] = state["classifier.bias"] + 1


def test_a_merge_whose_weights_were_changed_is_not_that_merge(room: Path) -> None:
    tensors(room / "merged" / WEIGHTS, nudge)
    with mistake(BrokenCheckpoint, room / "merged", "merge.json"):
        read(room / "merged")


def test_a_kept_head_that_was_changed_is_not_that_of_the_merge(room: Path) -> None:
    harness.merge(across(room), out=room / "across")
    tensors(room / "across" / "heads" / "toy" / "three" / WEIGHTS, nudge)
    with mistake(BrokenCheckpoint, "heads/toy/three/"):
        read(room / "across")


def test_a_kept_head_of_more_labels_than_weights_is_refused(room: Path) -> None:
    harness.merge(across(room), out=room / "across")
    place = room / "across" / "heads" / "toy" / "three" / "config.json"
    edited(place, lambda values: values.update(num_labels=10**9))
    (room / "across" / "merge.json").unlink()  # a folder of its own, which lists nothing
    with mistake(BrokenCheckpoint, "num_labels 1000000000"):
        read(room / "across", tasks=("toy/three",))


class Hub:
    """A stand-in for the Hub: folders by id, of which only what is asked for is fetched."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(
        self, source: str, *, revision: str | None, allow_patterns: list[str], **_: object
    ) -> str:
        from huggingface_hub.utils import filter_repo_objects

        folder, cache = self.root / source, self.root / "cache" / source
        names = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
        for name in filter_repo_objects(names, allow_patterns=allow_patterns):
            (cache / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / name, cache / name)
        return str(cache)


@pytest.fixture
def hub(room: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub(room / "hub")
    monkeypatch.setattr("huggingface_hub.snapshot_download", found)
    monkeypatch.chdir(room)
    for name in ("base", "a", "c"):
        shutil.copytree(room / name, room / "hub" / "me" / name)
    return found


def test_a_merge_on_the_hub_is_one(room: Path, hub: Hub) -> None:
    recipe = across(room, base="me/base", experts=["me/a", "me/c"])
    harness.merge(recipe, out=hub.root / "me" / "across")
    shutil.rmtree(hub.root / "cache")
    run = Run(model="me/across", output="records", shots=(1,), draws=2)
    records = harness.evaluate(run)
    merged = [record for record in records if record.role == "merged"]
    assert {record.task for record in merged} == {"toy/pairs@test", "toy/three@test"}
    assert {record.head for record in merged} == {"kept"}
    assert {record.method for record in merged} == {"task_arithmetic"}
    assert {record.role for record in records} == {"merged", "base", "expert"}


def test_an_expert_on_the_hub_is_held_to_its_digest(room: Path, hub: Hub) -> None:
    harness.merge(across(room, base="me/base", experts=["me/a", "me/c"]), out=room / "across")
    tensors(hub.root / "me" / "a" / WEIGHTS, nudge)
    shutil.rmtree(hub.root / "cache")
    with mistake(BrokenCheckpoint, "me/a"):
        read(room / "across")


def test_the_place_beside_the_merge_is_tried_where_another_folder_has_the_name(
    room: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(room)
    recipe = same(Path())
    harness.merge(recipe, out="again")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(room / "c", elsewhere / "a")  # another model of the recorded name
    monkeypatch.chdir(elsewhere)
    records = read(room / "again")
    experts = [record.digest for record in records if record.role == "expert"]
    assert experts == [digest(open_checkpoint(room / name).weights) for name in ("a", "b")]


def test_experts_given_in_another_order_keep_their_tasks(room: Path) -> None:
    harness.merge(across(room), out=room / "across")
    usual = read(room / "across", output=str(room / "one"))
    given = (str(room / "c"), str(room / "a"))
    again = read(room / "across", output=str(room / "two"), experts=given)
    shown = [[(r.model, r.role, r.task, r.scores) for r in records] for records in (usual, again)]
    assert shown[0] == shown[1]
    with mistake(BadRecipe, room / "across", room / "a", room / "b"):
        read(room / "across", experts=(str(room / "b"), str(room / "c")))


def test_a_broken_plug_in_is_named_and_the_rest_goes_on(
    room: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "site"
    info = package / "sloppy-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sloppy\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[harness]\nsloppy = sloppy\n")
    (package / "sloppy.py").write_text(
        "import harness\n@harness.merger('sloppy')\ndef sloppy(experts, base):\n    pass\n1 / 0\n"
    )
    code = "import sys\nfrom harness.cli import main\n"
    code += "print(main(['list', 'mergers']), main(sys.argv[1:]))\n"
    words = ["merge", str(room / "a"), "--merger", "sloppy", "--out", str(room / "x")]
    environment = {**os.environ, "PYTHONPATH": f"{package}:{os.getcwd()}"}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines()[-1] == "0 2"
    assert "ties" in done.stdout
    assert "sloppy" not in done.stdout
    warned, last = done.stderr.splitlines()[-2:]
    names(warned, "sloppy sloppy 1.2 ZeroDivisionError")
    names(last, "merger sloppy")
    assert "Traceback" not in done.stderr


# Nothing is lost ----------------------------------------------------------------------------------


def test_a_second_merge_replaces_only_what_the_first_wrote(room: Path) -> None:
    (room / "merged" / "notes").mkdir()
    (room / "merged" / "notes" / "diary.txt").write_text("mine")
    before = contents(room / "merged")
    for force in (False, True):
        with mistake(OutputExists, "notes/diary.txt"):
            harness.merge(same(room), out=room / "merged", force=force)
    assert contents(room / "merged") == before
    shutil.rmtree(room / "merged" / "notes")
    with mistake(OutputExists, "--force"):
        harness.merge(same(room), out=room / "merged")
    harness.merge(same(room, merger="average"), out=room / "merged", force=True)
    assert json.loads((room / "merged" / "merge.json").read_text())["method"] == "average"


def test_the_folder_one_is_in_is_no_output(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(room / "a")
    before = contents(room)
    for out in (".", "..", str(room)):
        with mistake(OutputExists, out):
            harness.merge(same(room), out=out, force=True)
    assert contents(room) == before


def test_a_link_to_a_folder_is_written_through(room: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (room / "link").symlink_to(tmp_path / "disk")
    harness.merge(same(room), out=room / "link")
    assert (room / "link").is_symlink()
    assert (tmp_path / "disk" / "merge.json").is_file()


def test_a_mount_point_is_one_line(room: Path) -> None:
    with mistake(OutputExists, "/proc"):
        harness.merge(same(room), out="/proc")


@pytest.mark.parametrize("atomic", [True, False])
def test_a_replacement_that_fails_half_way_leaves_the_old_folder(
    room: Path, atomic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(room / "merged")
    if atomic:
        monkeypatch.setattr(folders, "_exchange", failing)
    else:
        monkeypatch.setattr(folders, "_exchange", lambda new, old: False)
        replace = Path.replace

        def fails_on_the_new_one(self: Path, target: Path) -> Path:
            if is_unfinished(self):
                raise OSError("no")
            return replace(self, target)

        monkeypatch.setattr(Path, "replace", fails_on_the_new_one)
    with mistake(CannotWrite, room):
        harness.merge(same(room, merger="average"), out=room / "merged", force=True)
    assert contents(room / "merged") == before
    assert not [path.name for path in room.iterdir() if path.name.startswith(".")]


def failing(*_: object) -> bool:
    raise OSError("no")


def test_folders_are_exchanged_in_one_step_where_the_system_can(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not folders._exchange(tmp_path / "new", tmp_path / "old"):
        pytest.skip("this file system cannot exchange folders")
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["new"]


def test_a_file_system_without_locks_will_do(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "no locks here")

    monkeypatch.setattr("fcntl.flock", none)
    harness.merge(same(room), out=room / "again")
    assert read(room / "again")


def test_a_folder_of_another_run_is_refused_and_what_a_killed_one_left_goes(room: Path) -> None:
    with folders.new_folder(room / "again", Layout("a merge", "merge.json")) as made:
        with mistake(OutputExists, room / "again"):
            harness.merge(same(room), out=room / "again")
        assert made.is_dir()
        shutil.copytree(made, room / "killed")
        (room / "killed" / "half").write_text("written")
    shutil.rmtree(room / "again")
    (room / "killed").rename(made)  # as it is when a run is killed: nobody holds it
    harness.merge(same(room), out=room / "again")
    assert not made.exists()


@pytest.mark.parametrize("room_for", [0, 5000])
def test_a_full_disk_is_one_line_and_leaves_nothing(room: Path, room_for: int) -> None:
    records = [str(path) for path in (room / "records").rglob("*.json")]
    assert not records
    read(room / "merged")
    merge = ["merge", str(room / "a"), str(room / "b"), "--out", str(room / "out")]
    board = ["leaderboard", str(room / "records"), "--out", str(room / "board")]
    for command in (merge, board) if not room_for else (merge,):
        with no_file_above(room_for):
            refused(command, CannotWrite, room)
    assert not (room / "out").exists()
    assert not list((room / "board").glob("*"))
    assert not list(room.rglob(".*"))


def test_an_output_that_cannot_be_is_one_line(room: Path) -> None:
    read(room / "merged")
    (room / "file").touch()
    experts = [str(room / "a"), str(room / "b")]
    records, few = str(room / "records"), ["--merger", "regmean:examples=4"]
    for place in (str(room / "file" / "below"), "/proc/nowhere/out"):
        for command in (
            ["merge", *experts, "--out", place],
            ["leaderboard", records, "--out", place],
            ["evaluate", "--model", str(room / "merged"), "--output-path", place],
            ["finetune", "--base", str(room / "base"), "--task", "toy/pairs", "--out", place],
            ["statistics", experts[0], "--task", "toy/pairs", *few, "--out", place],
            ["barrier", *experts, "--tasks", "toy/pairs", "--output-path", place],
            ["plot", "protocols", records, "--out", place],
            ["inspect", *experts, "--out", place],
        ):
            refused(command, HarnessError)


# Nothing wrong is scored ------------------------------------------------------------------------


def turned_pooler(experts: Sequence[StateDict], base: StateDict) -> list[StateDict]:
    """Lists the pooler's units backwards, and the columns of the head: no output moves."""

    def one(expert: StateDict) -> StateDict:
        state = {name: expert[name] for name in expert}
        for name in ("bert.pooler.dense.weight", "bert.pooler.dense.bias"):
            state[name] = state[name].flip(0)
        return {**state, "classifier.weight": state["classifier.weight"].flip(1)}

    return [one(expert) for expert in experts]


@pytest.mark.parametrize("heads", ["merge", "average", "keep"])
def test_what_a_pre_merging_method_moves_in_a_head_moves_in_the_merge(
    room: Path, heads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    len(PREMERGE)
    known = dict(PREMERGE._values)
    known["turned"] = Premerge("turned", turned_pooler, exact=True)
    monkeypatch.setattr(PREMERGE, "_values", known)
    make = across if heads == "keep" else same
    predictions = {}
    for name, premerge in (("left", ()), ("turned", ("turned",))):
        recipe = make(room, heads=heads, merger="average", premerge=premerge)
        harness.merge(recipe, out=room / name)
        records = read(room / name, output=str(room / "records"))
        predictions[name] = [record.scores for record in records if record.role == "merged"]
        state = open_checkpoint(room / name).weights
        assert torch.equal(
            state["bert.pooler.dense.bias"].flip(0)
            if premerge
            else state["bert.pooler.dense.bias"],
            open_checkpoint(room / "left").weights["bert.pooler.dense.bias"],
        )
    assert predictions["left"] == predictions["turned"]


def nan_merger(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """Divides by zero."""
    return {name: experts[0][name] / 0 - experts[0][name] / 0 for name in experts[0]}


@pytest.fixture
def mergers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    len(harness.MERGERS)
    known = dict(harness.MERGERS._values)
    monkeypatch.setattr(harness.MERGERS, "_values", known)
    return known


def test_a_merge_is_finite(room: Path, mergers: dict[str, Any]) -> None:
    mergers["nan"] = registry.Merger("nan", nan_merger, task_vectors=False)
    with mistake(NotFinite, "NaN"):
        harness.merge(same(room, merger="nan", base=None), out=room / "again")
    for name in ("base", "a", "b"):
        tensors(
            room / name / WEIGHTS,
            lambda state: state.update({k: v.half() for k, v in state.items()}),
        )
    with mistake(NotFinite, "the merge infinite"):
        harness.merge(same(room, merger="task_arithmetic:scale=1e9"), out=room / "again")
    assert not (room / "again").exists()


def test_a_merger_must_make_every_tensor(room: Path, mergers: dict[str, Any]) -> None:
    def forgets(experts: Sequence[StateDict], base: StateDict) -> StateDict:
        return {name: experts[0][name] for name in list(experts[0])[1:]}

    mergers["forgets"] = registry.Merger("forgets", forgets, task_vectors=False)
    with mistake(IncompatibleWeights, "forgets bert.embeddings.LayerNorm.bias"):
        harness.merge(same(room, merger="forgets", base=None), out=room / "again")


def test_a_record_is_not_changed_by_another_run(room: Path) -> None:
    harness.merge(same(room, merger="average"), out=room / "average")
    mine = read(room / "average")
    before = contents(room / "records")
    both = read(room / "merged", references=(str(room / "average"),))
    assert {
        name: text for name, text in contents(room / "records").items() if name in before
    } == before
    (reference,) = (r for r in both if r.role == "reference")
    (merged,) = (r for r in mine if r.role == "merged")
    assert reference.scores == merged.scores
    assert read(room / "average") == mine


def test_records_are_the_same_in_any_order_of_runs(room: Path) -> None:
    harness.merge(same(room, merger="average"), out=room / "average")
    runs = [
        lambda out: read(room / "average", output=out),
        lambda out: read(room / "merged", output=out, references=(str(room / "average"),)),
    ]
    for out, order in (("one", runs), ("two", runs[::-1])):
        for run in order:
            run(str(room / out))
    assert contents(room / "one") == contents(room / "two")


CHANGES: dict[str, Callable[[Path], None]] = {
    "attention heads": lambda folder: edited(
        folder / "config.json", lambda values: values.update(num_attention_heads=4)
    ),
    "labels": lambda folder: edited(
        folder / "config.json",
        lambda values: values.update(
            id2label={"0": "yes", "1": "no"}, label2id={"yes": 0, "no": 1}
        ),
    ),
    "tokenizer": lambda folder: (
        (folder / "tokenizer.json").write_text(
            (folder / "tokenizer.json")
            .read_text()
            .replace('"[SEP]": 1', '"[SEP]": 1')
            .replace('"type": "Whitespace"', '"type": "WhitespaceSplit"')
        )
        and None
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_record_is_of_all_that_its_score_depends_on(what: str, room: Path) -> None:
    first = read(room / "a", tasks=("toy/pairs",))
    before = contents(room / "records")
    CHANGES[what](room / "a")
    second = read(room / "a", tasks=("toy/pairs",))
    assert len(contents(room / "records")) == 2 * len(before)
    assert second[0].content != first[0].content
    if what == "labels":
        assert second[0].scores[0].value == pytest.approx(1 - first[0].scores[0].value)


def test_boards_do_not_mix_other_rows(room: Path) -> None:
    harness.merge(same(room, merger="average"), out=room / "average")
    read(room / "merged")
    read(room / "average", limit=5)
    with mistake(BrokenRecord, "test 5 rows (--limit 5)"):
        harness.leaderboard([room / "records"], out=room / "board")
    assert not (room / "board").exists()


def test_a_limit_that_takes_all_rows_is_no_limit(room: Path) -> None:
    harness.merge(same(room, merger="average"), out=room / "average")
    read(room / "merged")
    read(room / "average", limit=10_000)
    harness.leaderboard([room / "records"], out=room / "board")
    assert "average" in (room / "board/board.md").read_text()


@pytest.mark.parametrize("values", [{"max_length": 4}, {"draws": 3}, {"seed": 1}])
@pytest.mark.filterwarnings("ignore:.* are cut off at ")
def test_boards_do_not_mix_other_lengths_or_draws(room: Path, values: dict[str, int]) -> None:
    few = {"protocols": ("knn",), "shots": (1,), "draws": 2}
    read(room / "a", tasks=("toy/pairs",), **few)
    read(room / "b", tasks=("toy/pairs",), **{**few, **values})
    with mistake(BrokenRecord, next(iter(values))):
        harness.leaderboard([room / "records"], out=room / "board")


def changed(split: str, which: str, by: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """The toy rows, those of one split changed by their places."""
    rows = pairs(split)
    return [{**row, **by(at)} for at, row in enumerate(rows)] if split == which else rows


OTHER_ROWS: dict[str, tuple[Task, str]] = {
    "to adapt to": (
        replace(
            TOY, generate=lambda split: changed(split, "train", lambda at: {"label": at % 3 % 2})
        ),
        "shots drawn from",
    ),
    "in documents": (
        replace(
            TOY,
            generate=lambda split: changed(split, "test", lambda at: {"of": at // 3}),
            document="of",
        ),
        "documents",
    ),
}


@pytest.mark.parametrize("what", OTHER_ROWS)
def test_nothing_mixes_other_rows_to_adapt_to_or_to_resample(
    room: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a board nor a comparison; and the same model on both has two records."""
    few = {"protocols": ("knn",), "shots": (1,), "draws": 2, "tasks": ("toy/pairs",)}
    first = read(room / "a", **few)
    other, named = OTHER_ROWS[what]
    monkeypatch.setitem(TASKS._values, TOY.name, other)
    second = [*read(room / "b", **few), *read(room / "a", **few, output=str(room / "records"))]
    assert {identity_of(one) for one in first}.isdisjoint(map(identity_of, second))
    with mistake(BrokenRecord, "evaluated with", named, "expected the same", named):
        harness.leaderboard([room / "records"], out=room / "board")
    with mistake(BrokenRecord, named):
        harness.compare(["a", "b"], protocol="knn", records=room / "records")


#: the same rows over and over -> how many are different, most copies, how much too narrow
COPIES: dict[str, tuple[Callable[[list[Any]], list[Any]], tuple[int, int, str]]] = {
    "all of them": (lambda rows: rows[:5] * 4, (5, 4, "2.0")),
    "all of them twice": (lambda rows: rows[:10] * 2, (10, 2, "1.4")),
    "one of them": (lambda rows: [*rows, *rows[:1] * 8], (12, 9, "2.1")),
}


@pytest.mark.parametrize("which", COPIES)
def test_rows_that_are_the_same_are_told(
    which: str, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat, (different, most, narrow) = COPIES[which]

    def few(split: str) -> list[dict[str, Any]]:
        return repeat([*pairs(split)]) if split == "test" else [*pairs(split)]

    monkeypatch.setitem(TASKS._values, TOY.name, replace(TOY, generate=few))
    with pytest.warns(UserWarning, match="toy/pairs@test") as said:
        read(room / "a", tasks=("toy/pairs",))
    names(str(said[0].message), f"20 {different} {most} {narrow}")


def test_few_rows_that_are_the_same_are_not_told(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(TOY, generate=lambda split: [*pairs(split), *pairs(split)[:4]])
    monkeypatch.setitem(TASKS._values, TOY.name, few)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(room / "a", tasks=("toy/pairs",))


def test_two_scores_in_one_cell_are_refused(room: Path) -> None:
    """Of records that say all the same and were made of other things, one would hide the other."""
    read(room / "a", tasks=("toy/pairs",), output=str(room / "one"))
    (path,) = (room / "one").rglob("*.json")
    said = json.loads(path.read_text())
    for score in said["scores"]:
        score["value"] = score["parts"]["accuracy"] = score["value"] + 1e-3
    said["settings"]["later"] = 1
    (other := path.with_name("current-other.json")).write_text(json.dumps(said))
    with mistake(BrokenRecord, "two scores on toy/pairs@test", "current", "expected one"):
        harness.leaderboard([path, other], out=room / "board")


def test_models_under_two_presets_are_not_compared(room: Path) -> None:
    read(room / "a", tasks=("toy/pairs",))
    read(room / "b", tasks=("toy/pairs",), preset="regmean")
    with mistake(BrokenRecord, "'b'", "preset regmean", "'a'", "none"):
        harness.compare(["a", "b"], records=room / "records")


def test_the_base_of_every_merge_is_one_control(minis: Minis, tmp_path: Path) -> None:
    found = minis("deberta-v2")
    digests = set()
    for merger in ("average", "task_arithmetic:scale=1.0", "ties"):
        recipe = Recipe(
            experts=[str(found["a"]), str(found["b"])],
            base=str(found["base"]),
            merger=merger,
            tasks=("toy/pairs",),
        )
        out = tmp_path / merger.partition(":")[0]
        harness.merge(recipe, out=out)
        digests |= {r.digest for r in read(out) if r.role == "base"}
    assert len(digests) == 1
    harness.leaderboard([tmp_path / "records"], out=tmp_path / "board")


def infinite(state: dict[str, torch.Tensor]) -> None:
    # finite weights whose outputs are not
    state["classifier.weight"] = torch.full_like(state["classifier.weight"], 3e38)
    state["bert.pooler.dense.bias"] = torch.full_like(state["bert.pooler.dense.bias"], 9.0)


def test_outputs_that_are_nan_are_no_labels(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors(room / "b" / WEIGHTS, infinite)
    (room / "merged" / "merge.json").unlink()
    evaluate = ["evaluate", "--model", str(room / "merged"), "--tasks", "toy/pairs"]
    evaluate += ["--experts", f"{room / 'a'},{room / 'b'}", "--output-path", str(room / "records")]
    capsys.readouterr()
    assert main([*evaluate, "--shots", "1", "--draws", "2"]) == 3
    err = capsys.readouterr().err
    assert "b on toy/pairs@test under current" in err
    assert err.count("12 of 12 rows") == 1, "one reason of several scores"
    saved = {(r.model, r.protocol) for r in harness_records(room / "records")}
    assert ("merged", "current") in saved
    assert ("a", "current") in saved
    assert not [one for one in saved if one[0] == "b"]
    assert ("merged", "knn") in saved  # which needs no teacher
    with pytest.raises(CellsFailed) as caught:
        harness.evaluate(
            Run(
                model=str(room / "merged"),
                tasks=("toy/pairs",),
                experts=(str(room / "a"), str(room / "b")),
                output=str(room / "again"),
                shots=(1,),
                draws=2,
            )
        )
    assert {r.model for r in caught.value.records} == {"merged", "a"}


def harness_records(folder: Path) -> list[Record]:
    from tests.resampled import read_records

    return read_records([folder])


def test_two_settings_of_a_protocol_have_a_verdict_each(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = "current,ft-classifier,ft-classifier:epochs=50,learning_rate=0.1"
    evaluate = ["evaluate", "--model", str(room / "merged"), "--protocols", settings]
    evaluate += ["--output-path", str(room / "records"), "--shots", "5", "--draws", "2"]
    assert main(evaluate) == 0
    verdicts = [line for line in capsys.readouterr().out.splitlines() if "Verdict" in line]
    assert len(verdicts) == 2
    assert "(ft-classifier:epochs=50,learning_rate=0.1)" in verdicts[1]
    harness.leaderboard([room / "records"], out=room / "board")
    text = (room / "board" / "board.md").read_text()
    shares = text.partition("## How much")[2].partition("## ")[0]
    assert shares.count("| task_arithmetic") == 2


@pytest.mark.parametrize(
    ("tuned", "reported"),
    [("train90", "train"), ("heldout10", "train"), ("train", "heldout10"), ("train", "train90")],
)
def test_rows_that_were_tuned_on_are_not_reported(room: Path, tuned: str, reported: str) -> None:
    recipe = same(room, tune="scale=0.5:1:0.5", tune_on=(f"toy/pairs@{tuned}",))
    harness.merge(recipe, out=room / "tuned")
    with mistake(BadRecipe, f"toy/pairs@{tuned}"):
        read(room / "tuned", tasks=(f"toy/pairs@{reported}",))
    assert read(room / "tuned")


def test_rows_that_were_tuned_on_are_not_reported_under_another_name(room: Path) -> None:
    from dataclasses import replace

    recipe = same(room, tune="scale=0.5:1:0.5", tune_on=("toy/pairs@heldout10",))
    harness.merge(recipe, out=room / "tuned")
    with registered(replace(TOY, name="toy/sly")):
        with mistake(BadRecipe, "toy/pairs@heldout10 toy/sly@heldout10"):
            read(room / "tuned", tasks=("toy/sly@heldout10",), singles=True)
        assert read(room / "tuned", tasks=("toy/sly",), singles=True)


def test_experts_of_a_task_that_is_not_known_here_are_merged(room: Path) -> None:
    """Nothing of its rows is asked."""
    for name in ("a", "b"):
        (room / name / "expert.json").write_text(json.dumps({"tasks": ["mine/gone"]}))
    harness.merge(same(room, tasks=()), out=room / "whole")
    assert json.loads((room / "whole/merge.json").read_text())["tasks"] == ["mine/gone"]


def test_what_one_model_does_not_say_another_one_does(room: Path) -> None:
    """Of rows that both were shown, whatever their order."""
    for name, seen in (("a", {"toy/pairs@test": "of these"}), ("b", {})):
        said = {"inherited": ["toy/pairs@test"], "seen": seen}
        (room / name / "expert.json").write_text(json.dumps(said))
    for order in ("ab", "ba"):
        assert rows_shown(*(room / name for name in order)) == {"toy/pairs@test": "of these"}


def test_texts_that_nobody_could_read_are_no_rows_in_common() -> None:
    """And names come before a look at all rows."""
    other = replace(TOY, name="toy/other")
    assert among(other, "test", {"toy/pairs@test": ""}, lambda: "") is None
    shown = {"toy/pairs@test": "of others", "toy/other@test": "of these"}
    assert among(other, "test", shown, lambda: pytest.fail("looked")) == "toy/other@test"
    assert among(other, "train", shown, lambda: "of others") == "toy/pairs@test"


def test_a_whole_number_of_epochs_is_that_of_a_fraction(room: Path) -> None:
    """A study has 3 and a command 3.0; what is 0 is not said."""
    known = {"epochs": 3, "learning_rate": 1e-4, "warmup": 0.0}
    told = []
    for given in (known, {"epochs": 3.0, "learning_rate": 1e-4}, {**known, "epochs": 2}):
        (room / "a/expert.json").write_text(json.dumps({"hyperparameters": given}))
        said = read_expert_json(room / "a")
        assert said is not None
        told.append(said.training)
    assert told[0] == told[1] != told[2]


def test_a_reported_split_by_another_name_is_not_tuned_on(room: Path) -> None:
    from dataclasses import replace

    sly = replace(TOY, name="toy/sly", splits={"test": "test", "dev": "train"})
    with registered(sly):
        recipe = same(
            room, tasks=("toy/sly",), tune="scale=0.5:1:0.5", tune_on=("toy/sly@train90",)
        )
        with mistake(BadRecipe, "toy/sly@dev"):
            harness.merge(recipe, out=room / "tuned")
        with mistake(BadRecipe, "toy/sly@train90"):
            read(room / "a", tasks=("toy/sly@dev",), protocols=("knn",))


def test_a_task_without_an_expert_takes_nothing_from_the_others(room: Path) -> None:
    harness.merge(across(room), out=room / "across")
    edited(room / "across" / "merge.json", lambda v: v["experts"].pop())
    few: dict[str, Any] = {"protocols": (), "shots": (1,), "draws": 2}
    with (
        pytest.warns(UserWarning, match="merge.json was edited since it was written"),
        pytest.warns(UserWarning, match="no expert of toy/three is known"),
    ):
        records = read(room / "across", **few)
    tuned = {r.task for r in records if r.protocol == "ft-classifier" and r.role == "merged"}
    assert tuned == {"toy/pairs@test"}


def test_an_expert_that_teaches_itself_is_not_said_to_lack(room: Path) -> None:
    """Its base is, which no expert teaches."""
    (room / "a" / "expert.json").write_text('{"tasks": ["toy/pairs"]}')
    with pytest.warns(UserWarning, match="--experts") as caught:
        records = read(room / "a", base=str(room / "base"), protocols=(), shots=(1,), draws=2)
    assert {r.role for r in records if r.protocol == "ft-classifier"} == {"expert"}
    (line,) = [str(one.message) for one in caught if "--experts" in str(one.message)]
    names(line, "base no expert toy/pairs ft-classifier")
    assert "no expert of" not in line


def test_an_output_that_cannot_be_written_is_told_before_a_model_is_read(tmp_path: Path) -> None:
    """Also where rights would allow it, as to root."""
    command = ["evaluate", "--model", tmp_path / "none", "--output-path", "/proc/records"]
    refused(command, CannotWrite, "/proc")


def test_a_record_says_which_rows_were_drawn_and_by_which_numpy(room: Path) -> None:
    from harness.data.rows import load_rows

    (record,) = read(room / "a", tasks=("toy/pairs",), protocols=("knn",), shots=(1, 3), draws=2)
    assert record.adaptation is not None
    assert set(record.adaptation.drawn) == {"0", "1"}
    labels = load_rows(TOY, "train90").labels
    for drawn in record.adaptation.drawn.values():
        assert [[int(labels[row]) for row in rows] for rows in drawn] == [[0] * 3, [1] * 3]
    assert record.versions["numpy"] == np.__version__
    assert record.versions["faiss"]


def test_predictions_can_be_read_by_others(room: Path) -> None:
    read(room / "merged")
    modes = {path.stat().st_mode & 0o777 for path in (room / "records").rglob("*.*")}
    assert modes == {0o666 & ~umask()}
    assert pq.read_table(next((room / "records").rglob("*.parquet"))).num_rows == 12


def umask() -> int:
    before = os.umask(0)
    os.umask(before)
    return before


# Labels and methods -------------------------------------------------------------------------------


def test_labels_that_differ_in_signs_are_not_one(room: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    signs = replace(THREE, name="toy/signs", labels=("C", "C++", "C#"))
    order = ["C#", "C", "C++"]
    named = model(tmp_path / "signs", order, seed=4, near=room / "base")
    with registered(signs):
        (by_name,) = read(named, tasks=("toy/signs",))
        edited(
            named / "config.json",
            lambda v: v.update(id2label={str(i): f"LABEL_{i}" for i in range(3)}),
        )
        found = encode.forward(open_checkpoint(named), _rows(signs), max_length=128)[1]
    places = [order.index(label) for label in signs.labels]
    table = pq.read_table(next((tmp_path / "records").rglob("*.parquet"))).to_pydict()
    assert table["prediction"] == found[:, places].argmax(axis=1).tolist()
    assert by_name.labels == "by-name"


def _rows(task: Any) -> Any:
    from harness.data.rows import load_rows

    return load_rows(task, "test")


def test_a_mergekit_configuration_takes_the_flags_that_it_cannot_say(room: Path) -> None:
    import yaml

    config = {
        "merge_method": "ties",
        "base_model": str(room / "base"),
        "models": [
            {"model": str(room / name), "parameters": {"weight": 1.0, "density": 0.5}}
            for name in ("a", "b")
        ],
        "dtype": "float32",
    }
    (room / "ties.yml").write_text(yaml.safe_dump(config))
    merge = ["merge", str(room / "ties.yml"), "--out", str(room / "kit")]
    refused(merge, MissingHead, "--heads")
    assert main([*merge, "--heads", "average", "--tasks", "toy/pairs"]) == 0
    refused([*merge[:2], "--merger", "ties", "--out", str(room / "x")], BadRecipe)


@pytest.mark.parametrize("preset", ["procrustes", "regmean", "rotation", "ft-classifier"])
def test_a_preset_is_what_the_papers_code_did_and_says_so(room: Path, preset: str) -> None:
    plan = harness.merge(
        same(room, preset=preset, merger="task_arithmetic"), out=room / "preset", dry_run=True
    )
    expected = 0.7 if preset == "ft-classifier" else 0.3
    assert plan.recipe.merger.options["scale"] == expected
    asked = same(room, preset=preset, merger="task_arithmetic:scale=0.5")
    assert harness.merge(asked, out=room / "preset").recipe.merger.options["scale"] == 0.5
    assert json.loads((room / "preset" / "merge.json").read_text())["preset"] == preset
    if preset != "ft-classifier":  # which reads more tokens than these models have places for
        records = read(room / "preset", preset=preset)
        assert {record.preset for record in records} == {preset}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_speaks_of_options_and_metrics_that_exist(name: PresetName) -> None:
    methods = {**harness.MERGERS, **PREMERGE}
    for method in PRESETS[name].options:
        protocols = harness.PROTOCOLS
        tuned = method in protocols
        functions = [protocols[method].function] if tuned else functions_of(methods[method])
        chosen = resolve("method", faithful(Choice(method), name), *functions)
        assert {key: chosen[key] for key in PRESETS[name].options[method]} == dict(
            PRESETS[name].options[method]
        )
    for task, metrics in PRESETS[name].metrics.items():
        assert {*metrics} <= {*TASKS[task].metrics}


def test_fisher_under_a_preset_is_that_of_its_code(room: Path) -> None:
    def options(preset: str) -> Any:
        recipe = same(room, preset=preset, merger="fisher", base=None)
        return harness.merge(recipe, out=room / "x", dry_run=True).recipe.merger.options

    assert (options("procrustes")["estimator"], options("procrustes")["floor"]) == ("mergelm", 1e-6)
    found = options("regmean")
    assert (found["estimator"], found["normalize"], found["floor"]) == ("hard", "none", 1e-10)


def test_metrics_are_asked_for(room: Path) -> None:
    usual = read(room / "merged")
    other = read(room / "merged", metrics=("matthews", "accuracy"))
    assert usual[0].metrics == ("accuracy",)
    assert other[0].metrics == ("matthews", "accuracy")
    assert other[0].scores[0].parts["accuracy"] == usual[0].scores[0].value
    with mistake(BrokenRecord, "toy/pairs@test accuracy matthews+accuracy"):
        harness.leaderboard([room / "records"], out=room / "board")
    with mistake(BadData, "toy/pairs pearson accuracy"):
        read(room / "merged", metrics=("pearson",))
    with mistake(UnknownName, "acuracy accuracy"):
        read(room / "merged", metrics=("acuracy",))


# Tasks that do not hold together ----------------------------------------------------------------

UNFIT_TASKS: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"kind": "clasification"}, "kind clasification classification"),
    "name": ({"name": "../toy"}, "name letters"),
    "one label": ({"labels": ("yes",)}, "1 label"),
    "label twice": ({"labels": ("a", "b", "a")}, "once"),
    "labels of values": ({"kind": "regression"}, "regression"),
    "no metric": ({"metrics": ()}, "metrics"),
    "metric that is no name": ({"metrics": (1,)}, "metrics (1,) names"),
    "reported split": ({"reported": "dev"}, "reported='dev test"),
    "split of every task": ({"splits": {"train90": "train"}}, "split train90"),
}


@pytest.mark.parametrize("case", UNFIT_TASKS)
def test_a_task_is_held_together_where_it_is_made(case: str) -> None:
    from dataclasses import replace

    changes, says = UNFIT_TASKS[case]
    with registered(), mistake(BadData, says):
        harness.task(replace(TOY, **{"name": "toy/unfit", **changes}))


def test_a_metric_that_cannot_measure_is_refused_before_any_pass(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    monkeypatch.setattr(encode, "one_pass", failing)
    with registered(replace(THREE, metrics=("accuracy", "f1"))):
        command = ["evaluate", "--model", room / "c", "--tasks", "toy/three"]
        refused(command, HarnessError, "f1 macro_f1 micro_f1")


def test_two_modules_cannot_register_one_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        "from dataclasses import replace\nfrom harness import task\nfrom tests.toys import TOY\n"
        "mine = task(replace(TOY, name='toy/shared', paper='{}'))\n"
    )
    for name in ("sharers_one", "sharers_two"):
        (tmp_path / f"{name}.py").write_text(lines.format(name))
    monkeypatch.syspath_prepend(tmp_path)
    assert TASKS["sharers_one:mine"].paper == "sharers_one"
    with mistake(UnknownName, "toy/shared sharers_one sharers_two"):
        _ = TASKS["sharers_two:mine"]
    assert TASKS["toy/shared"].paper == "sharers_one"
