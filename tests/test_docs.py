"""Every example in docs/ runs, and the page of public names says what the code says."""

from __future__ import annotations

import csv
import importlib.util
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from harness.cli import main
from harness.cli.app import app

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))
MINIATURES = Path(__file__).parents[1] / "harness" / "checking" / "miniatures"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|yaml))\n")
#: shown and not run: what is no example of ours
SHOWN = {"text"}

pytestmark = pytest.mark.usefixtures("as_found")


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """The examples of a page in order: the language of each, and what it says."""
    for match in BLOCK.finditer((DOCS / page).read_text(encoding="utf-8")):
        yield match[1], match[2]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what `harness demo` leaves: of its experts, two that are shipped."""
    shutil.copytree(MINIATURES / "base", tmp_path / "demo" / "base")
    for name in ("comparison", "outcome"):
        shutil.copytree(MINIATURES / name, tmp_path / "demo" / "experts" / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(language: str, text: str, names: dict[str, Any]) -> None:
    """A block of Python, or of commands."""
    if language == "python":
        exec(compile(text, "an example", "exec"), names)
        return
    assert language == "sh"
    for line in text.splitlines():
        command, *words = shlex.split(line)
        assert command == "harness"
        assert main(words) == 0, line


INDEX = re.findall(r"^\| \[.*\]\((.*\.md)\)", (DOCS / "README.md").read_text(), flags=re.MULTILINE)
NO_EXAMPLES = ("api.md", "what-we-found.md")
IN_A_SENTENCE = re.compile(r"`harness (check [^`]* --plugins mine)`")


@pytest.mark.filterwarnings("default")  # of libraries that the examples use by themselves
def test_every_example_runs_in_one_folder(desk: Path) -> None:
    """As a reader goes through the pages: files first, which are loaded once by a process."""
    for page in (page for page in INDEX if page not in NO_EXAMPLES):
        given = [one for one in blocks(page) if one[0] not in SHOWN]
        files = {named[1]: text for _, text in given if (named := FILE.match(text))}
        for name, text in files.items():
            (desk / name).parent.mkdir(exist_ok=True)
            (desk / name).write_text(text, encoding="utf-8")
        done: dict[str, Any] = {}
        steps = [(language, text) for language, text in given if text not in files.values()]
        assert steps
        for language, text in steps:
            run(language, text, done)
    laws = IN_A_SENTENCE.findall((DOCS / "extend.md").read_text(encoding="utf-8"))
    assert laws
    for spelled in laws:
        run("sh", f"harness {spelled}", {})


def flags_of(command: list[str]) -> set[str]:
    """The flags that a command of the program takes."""
    found: Any = typer.main.get_command(app)
    for word in command:
        found = found.commands.get(word) if hasattr(found, "commands") else found
        assert found is not None, f"there is no harness {' '.join(command)}"
    context = found.make_context("x", [], resilient_parsing=True)
    parameters = [*found.params, found.get_help_option(context)]
    return {flag for one in parameters if one is not None for flag in one.opts}


def test_commands_in_sentences_exist_with_their_flags() -> None:
    for page in (*PAGES, "../README.md"):
        text = BLOCK.sub("", (DOCS / page).read_text(encoding="utf-8"))
        for spelled in re.findall(r"`harness ([a-z-][^`]*)`", text):
            words = spelled.split()
            command = [] if words[0].startswith("-") else words[: 2 if words[0] == "cache" else 1]
            given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
            assert given <= flags_of(command), f"{page}: {spelled}"


def leads_somewhere(page: str, target: str) -> bool:
    place, _, part = target.partition("#")
    file = DOCS / (place or page)
    if not file.is_file():
        return False
    titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    known = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    return not part or part in known


def test_links_lead_somewhere() -> None:
    dead = [
        f"{page} links to {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)]+)\)", (DOCS / page).read_text(encoding="utf-8"))
        if not leads_somewhere(page, target)
    ]
    assert not dead


def test_the_index_names_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    assert {page for page in PAGES if f"({page})" in index} == {*PAGES} - {"README.md"}


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_public_names_is_current() -> None:
    """`make docs` writes it anew."""
    assert script(DOCS / "api.py").page() == (DOCS / "api.md").read_text(encoding="utf-8")


def test_the_tables_of_pages_are_those_of_the_boards() -> None:
    """`python leaderboards/tables.py` writes them anew."""
    tables = DOCS.parent / "leaderboards" / "tables.py"
    if not tables.is_file():
        pytest.skip("boards are no part of the source distribution")
    made = script(tables)
    assert len(made.PAGES) == 2
    for path in made.PAGES:
        assert made.written(path) == path.read_text(encoding="utf-8")


def test_gains_are_those_of_the_board() -> None:
    """`python leaderboards/gains.py` writes them, where the predictions lie."""
    leaderboards = DOCS.parent / "leaderboards"
    if not (leaderboards / "gains.csv").is_file():
        pytest.skip("not in the tree that users install")
    scores = {}
    for line in rows_of(leaderboards / "premerge" / "board.csv"):
        if line["role"] == "merged":
            scores[line["task"], line["merger"], line["premerge"]] = float(line["value"])
    lines = rows_of(leaderboards / "gains.csv")
    assert lines
    for line in lines:
        with_stage, alone = (
            scores[line["task"], line["merger"], before] for before in (line["premerge"], "")
        )
        gain = with_stage - alone
        assert float(line["gain"]) == pytest.approx(gain, abs=1e-3), line
        assert float(line["low"]) <= gain <= float(line["high"])


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
