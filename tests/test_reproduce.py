"""The studies that make the committed boards, and the scripts beside them.

What the studies themselves make is tried whole, on made-up rows, by `make test-studies`.
"""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pandas
import pytest

from harness.studies.read import read_study
from harness.studies.step import Step
from harness.studies.steps import leaf, steps_of
from harness.training.miniature import make_base
from tests.mistakes import names
from tests.plans import read_back

ROOT = Path(__file__).parents[1]
BOARDS = ROOT / "leaderboards"
STUDIES = sorted((BOARDS / "studies").glob("*.yaml"))

if not STUDIES:
    pytest.skip("boards are no part of the source distribution", allow_module_level=True)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of studies with what those that train from scratch find there."""
    out = tmp_path_factory.mktemp("studies") / "out"
    base = make_base(out / "bases/all-MiniLM-L6-v2", steps=1)
    for number, seed in enumerate((0, 1, 2, 2, 3, 3)):
        for place in (f"bases/vit-{number}", f"experts/vit-{number}/cifar10-{seed}"):
            shutil.copytree(base, out / place)
        (out / place / "expert.json").write_text(json.dumps({"tasks": ["vision/cifar10"]}))
    for name in (*(f"bert-{n}" for n in range(12)), *(f"pretrained-{n}" for n in range(6))):
        shutil.copytree(base, out / f"bases/{name}")
        pair = int(name.partition("-")[2]) // 2
        for seed in (2 * pair, 2 * pair + 1):
            place = f"experts/{name}/dbpedia_14-{seed}"
            shutil.copytree(base, out / place)
            (out / place / "expert.json").write_text(json.dumps({"tasks": ["textcls/dbpedia_14"]}))
    for name in ("vehicles", "animals", "digits"):
        said = {"text": "text", "label": "label", "labels": ["no", "yes"], "files": name}
        (out / "tasks" / name).mkdir(parents=True)
        (out / "tasks" / f"{name}.yaml").write_text(json.dumps(said))
        (out / "tasks" / name / "train.csv").write_text("text,label\n" + "a,no\nb,yes\n" * 9)
    return out


def steps(file: Path, bases: Path) -> list[Step]:
    scratch = file.stem.startswith(("vision", "text-"))
    base = () if scratch else (str(bases / "bases/all-MiniLM-L6-v2"),)
    return steps_of(read_study(file, bases, base=base), bases)


@pytest.mark.usefixtures("as_found")
@pytest.mark.parametrize("file", STUDIES, ids=lambda path: path.stem)
def test_a_study_is_planned_and_makes_the_rows_of_its_committed_boards(
    file: Path, bases: Path, tmp_path: Path
) -> None:
    """Every merge on every task, of every board that it has; and its plan is read back."""
    made = steps(file, bases)
    read_back(file.stem, made, tmp_path)
    scored: dict[str, set[tuple[str, str]]] = {}
    for step in made:
        if step.verb == "evaluate":
            board, merge = Path(step.request["output"]).name, leaf(step.request["model"])
            # experts that are given say their task themselves
            own = "textcls/dbpedia_14" if file.stem.startswith("text-") else "vision/cifar10"
            for task in step.request.get("tasks", [own]):
                scored.setdefault(board, set()).add((leaf(task), merge))
    for board, asked in scored.items():
        frame = pandas.read_parquet(BOARDS / board / "board.parquet")
        merges = frame[frame.role == "merged"]
        assert {(leaf(t), m) for t, m in zip(merges.task, merges.model, strict=True)} == asked


def test_every_committed_board_has_a_study() -> None:
    texts = " ".join(path.read_text() for path in STUDIES)
    for path in BOARDS.glob("*/board.parquet"):
        assert f" {path.parent.name}\n" in texts or f"  {path.parent.name}:" in texts


def test_made_up_rows_are_of_every_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BOARDS)
    lanes = runpy.run_path(str(BOARDS / "toy.py"))["LANES"]
    assert sorted(chain(*lanes)) == sorted(path.stem for path in STUDIES)


# The scripts beside it ---------------------------------------------------------------------


Runner = Callable[..., tuple[int, str]]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    """A script beside it, with arguments: its exit status, and all that it said."""
    monkeypatch.syspath_prepend(BOARDS)

    def run(name: str, *given: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", [name, *map(str, given)])
        status: object = 0
        try:
            runpy.run_path(str(BOARDS / name), run_name="__main__")
        except SystemExit as ended:
            status = ended.code
        said = "".join(capsys.readouterr())
        return (status, said) if isinstance(status, int) else (1, f"{said}{status}\n")

    return run


def test_what_is_missing_is_one_line(ran: Runner, tmp_path: Path) -> None:
    status, said = ran("tables.py", tmp_path)
    assert status
    names(said.removesuffix("\n"), "protocols.parquet")
    assert not any(tmp_path.iterdir())


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder as a reproduction leaves it, of what is committed."""
    csvs = [*BOARDS.glob("*/*.csv"), *BOARDS.glob("*/board.*"), *BOARDS.glob("*/index.html")]
    pictures = [*ROOT.glob("docs/**/*.svg")]
    pages = [ROOT / "README.md", ROOT / "docs/what-we-found.md", *ROOT.glob("docs/papers/*.md")]
    for top, paths in ((BOARDS, csvs), (ROOT, [*pictures, *pages])):
        for path in paths:
            place = tmp_path / path.relative_to(top)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
    return tmp_path


def test_the_same_lines_are_not_apart(ran: Runner, copied: Path) -> None:
    status, said = ran("compare.py", copied)
    assert status == 0
    *table, last = said.splitlines()
    assert last == "nothing is missing"
    assert all(line.split()[2:] == ["0", "0", "0.00"] for line in table[1:])


def test_how_far_numbers_are_apart(ran: Runner, copied: Path) -> None:
    board = copied / "protocols" / "board.parquet"
    frame = pandas.read_parquet(board)
    frame.loc[0, "value"] += 2.5
    frame.to_parquet(board)
    status, said = ran("compare.py", copied)
    assert status == 0
    (line,) = (one for one in said.splitlines() if one.startswith("protocols/"))
    assert line.split()[-1] == "2.50"


@pytest.mark.parametrize("spoilt", ["a line", "a board", "a picture", "a line too many"])
def test_what_a_reproduction_skipped_is_named(ran: Runner, copied: Path, spoilt: str) -> None:
    board = copied / "domains" / "board.parquet"
    frame = pandas.read_parquet(board)
    if spoilt == "a board":
        shutil.rmtree(board.parent)
    elif spoilt == "a picture":
        (copied / "docs" / "moved.svg").write_text("")
    else:
        more = frame.tail(1).assign(task="nor/more")
        frame = frame[:-1] if spoilt == "a line" else pandas.concat([frame, more])
        frame.to_parquet(board)
    status, said = ran("compare.py", copied)
    assert status == 1
    expected = {
        "a line": "missing in domains/board.parquet: ",
        "a board": "missing: domains/board.md",
        "a picture": "missing: docs/moved.svg",
        "a line too many": "new in domains/board.parquet: ",
    }
    assert expected[spoilt] in said
