"""Every example in docs/ runs, its links lead somewhere, and it names what is registered."""

from __future__ import annotations

import csv
import importlib.util
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import typer

import harness
from harness import MERGERS, METRICS, NEEDS, POSTMERGE, PREMERGE, PROTOCOLS, Choice
from harness.cli import main
from harness.cli.app import app
from harness.data.groups import groups
from harness.options import options, resolve
from harness.presets import PRESETS
from harness.ranges import choices
from harness.studies.study import Experts, Figure, MergerAxis, ScoreOn, Sets, Study
from harness.types import DERIVED, FeaturesName
from harness.values import Frozen
from tests.conftest import spare_collections

DOCS = Path(__file__).parents[1] / "docs"
#: written by `make docs`, and in no repository: nothing links to it
GENERATED = "api.md"
PAGES = sorted(path.name for path in DOCS.glob("*.md") if path.name != GENERATED)
#: of which the source distribution has one
BESIDE = [one for one in ("../README.md", "../CONTRIBUTING.md") if (DOCS / one).is_file()]
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
        # workers are processes, each of which would import torch
        command, *words = shlex.split(line.replace("--jobs 2", "--jobs 1"))
        assert command == "harness"
        assert main(words) == 0, line
        spare_collections()


INDEX = re.findall(r"^\| \[.*\]\((.*\.md)\)", (DOCS / "README.md").read_text(), flags=re.MULTILINE)
NO_EXAMPLES = {
    "methods.md",
    "what-we-found.md",
    *(f"papers/{path.name}" for path in (DOCS / "papers").glob("*.md")),
}
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
    properties = IN_A_SENTENCE.findall((DOCS / "extend.md").read_text(encoding="utf-8"))
    assert properties
    for spelled in properties:
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


def prose_of(page: str) -> str:
    """A page without its examples."""
    return BLOCK.sub("", (DOCS / page).read_text(encoding="utf-8"))


def test_commands_in_sentences_exist_with_their_flags() -> None:
    for page in (*PAGES, *BESIDE):
        for spelled in re.findall(r"`harness ([a-z-][^`]*)`", prose_of(page)):
            words = spelled.split()
            deep = 2 if words[0] in ("cache", "study") else 1
            command = [] if words[0].startswith("-") else words[:deep]
            given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
            assert given <= flags_of(command), f"{page}: {spelled}"


def anchors(file: Path) -> set[str]:
    """What the headings of a page are linked by."""
    titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def leads_somewhere(page: str, target: str) -> bool:
    """Whether a link is to a file of the repository and, in it, to a heading."""
    place, _, part = target.partition("#")
    file = (DOCS / page).parent / place if place else DOCS / page
    if not file.is_file() or file == DOCS / GENERATED:
        return False
    return not part or part in anchors(file)


def test_links_lead_somewhere() -> None:
    links = {
        (page, target)
        for page in (*PAGES, *BESIDE)
        for target in re.findall(r"\]\(([^)]+)\)", prose_of(page))
        if "://" not in target
    }
    assert links
    assert not {link for link in links if not leads_somewhere(*link)}


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


def test_every_public_name_has_its_docstring_on_the_page() -> None:
    """`make docs` writes the page of public names."""
    sections = re.split(r"^### ", script(DOCS / "api.py").page(), flags=re.MULTILINE)[1:]
    names = [section.partition("\n")[0] for section in sections]
    assert {*harness.__all__} <= {*names}
    for name, section in zip(names, sections, strict=True):
        prose = BLOCK.sub("", section.partition("\n")[2].partition("\n## ")[0])
        text = re.sub(r"^(\| |- `).*$", "", prose, flags=re.MULTILINE)
        assert re.search(r"\w{2}", text), f"{name} says nothing of itself"
        assert not re.search(r"^- `.*`: $", section, re.MULTILINE), name
    # what an author of a need calls (CONTRIBUTING)
    assert "- `batches(size: int, *, as_drawn: bool) ->" in sections[names.index("Reading")]


# The page of methods -----------------------------------------------------------------------

METHODS = DOCS / "methods.md"
PARTS = {
    "Mergers": MERGERS,
    "Pre-merging methods": PREMERGE,
    "Post-merging methods": POSTMERGE,
    "What methods need": NEEDS,
    "Protocols": PROTOCOLS,
}


def test_the_page_of_methods_has_every_name_with_its_source_and_options() -> None:
    """`make docs` writes these lines anew."""
    assert script(DOCS / "methods.py").page() == METHODS.read_text(encoding="utf-8")


def test_the_page_of_methods_notices_what_came_and_what_went() -> None:
    made = script(DOCS / "methods.py")
    for odd, registered in {"median": {**MERGERS, "median": None}, "ties": {}}.items():
        made.PARTS = {"Mergers": registered}
        with pytest.raises(ValueError, match=rf"\b{odd}\b"):
            made.page()


def part_of_methods(title: str) -> str:
    return METHODS.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].partition("\n## ")[0]


def check_option(entry: Any, option: str, value: str) -> None:
    """Raise BadOption for what neither an entry nor its needs have."""
    needed = (NEEDS[name].function for name in getattr(entry, "needs", ()))
    resolve("entry", Choice(entry.name, {option: value}), entry.function, *needed)


@pytest.mark.parametrize("title", PARTS)
def test_options_on_the_page_of_methods_exist(title: str) -> None:
    everywhere = {name for registry in PARTS.values() for name in registry}
    for section in part_of_methods(title).split("\n### ")[1:]:
        heading, _, prose = section.split("\n\n", 2)
        entry = PARTS[title][heading.split()[0]]
        for option, value in re.findall(r"`(\w+)=([^`]+)`", prose):
            check_option(entry, option, value)
        needed = (NEEDS[name].function for name in getattr(entry, "needs", ()))
        own = [one for function in (entry.function, *needed) for one in options(function).values()]
        known = {*everywhere, *DERIVED, *(one.name for one in own)}
        known.update(value for one in own for value in choices(one.schema))
        assert {*re.findall(r"`(\w+)`", prose)} <= known, heading


def test_options_of_presets_on_the_page_of_methods_exist() -> None:
    text = part_of_methods("Presets")
    assert {*re.findall(r"^\| `([\w-]+)`", text, flags=re.MULTILINE)} == {*PRESETS}
    for name, option, value in re.findall(r"`(\w+):(\w+)=([^`]+)`", text):
        check_option({**PREMERGE, **MERGERS}[name], option, value)


def test_the_page_of_methods_has_all_metrics_groups_of_tasks_and_features() -> None:
    features = get_args(FeaturesName)
    told = {"Metrics": METRICS, "Tasks and splits": groups(), "Features": features}
    for title, names in told.items():
        assert {*names} <= {*re.findall(r"`([\w-]+)`", part_of_methods(title))}


@pytest.mark.parametrize("of", [Study, Experts, Sets, MergerAxis, ScoreOn, Figure])
def test_the_page_of_studies_has_every_field(of: type[Frozen]) -> None:
    fields = (DOCS / "studies.md").read_text().partition("## Fields")[2].partition("\n## ")[0]
    said = {word for code in re.findall(r"`([^`]+)`", fields) for word in re.findall(r"\w+", code)}
    assert not of.model_fields.keys() - said


def test_what_code_cites_is_on_the_page_of_methods() -> None:
    rooms = ("harness", "tasks", "protocols", "tests")
    files = {file for room in rooms for file in (DOCS.parent / room).glob("**/*.py")}
    texts = [file.read_text("utf-8") for file in files - {Path(__file__)}]
    cited = {one for text in texts for one in re.findall(r"methods\.md#?([\w-]*)", text)}
    assert cited
    assert cited <= anchors(METHODS)


def test_one_command_makes_all_that_is_committed_of_the_packs() -> None:
    pages = DOCS.parent / "leaderboards" / "pages.py"
    if not pages.is_file():
        pytest.skip("boards are no part of the source distribution")
    said = " ".join(script(pages).commands_of_packs()).split()
    packs = {f"leaderboards/records/{path.name}" for path in pages.parent.glob("records/*.parquet")}
    assert packs <= {*said}
    figures = {f"docs/figures/{path.stem}" for path in DOCS.glob("figures/*.svg")}
    assert figures - {*said} == {"docs/figures/tsne"}, "of features, not of records"
    assert "leaderboards/tables.py" in said


def test_tables_and_claims_of_pages_are_those_of_the_boards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`python leaderboards/tables.py` writes them anew."""
    tables = DOCS.parent / "leaderboards" / "tables.py"
    if not tables.is_file():
        pytest.skip("boards are no part of the source distribution")
    monkeypatch.syspath_prepend(str(tables.parent))
    made = script(tables)
    assert len(made.PAGES) == 6
    for path in made.PAGES:
        text = path.read_text(encoding="utf-8")
        assert made.written(path) == text
        ends = text.count("<!-- / -->")
        assert ends == len(made.claims.ANCHOR.findall(text)), f"{path} has a claim that is none"
    wrong = "scores <!-- score tsv Current -->99.9<!-- / -->"
    assert made.claims.said(wrong, made.HERE) == wrong.replace("99.9", "61.5")


#: Decimals of pages that are no result of ours: of papers, of settings, and of benchmarks/moved.py.
OTHERS = {
    "what-we-found.md": {"0.3"},
    "ft-classifier.md": {"6.5", "0.7", "0.3"},
    "procrustes.md": {
        *("0.8", "1.1", "2.9", "0.3", "4.1", "79.6", "83.8", "4.2"),
    },
    "regmean.md": {
        *("38.3", "10.9", "3.0", "21.7", "30.1", "11.9", "11.2"),
        *("20.7", "22.8", "0.9", "0.1", "0.5", "0.62", "6.2"),
        *("21.3", "28.3", "38.7", "0.0", "24.4", "32.6"),
    },
    "rotation.md": {"35.87", "21.6", "76.6"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_decimal_of_a_page_is_recomputed_or_of_others(name: str) -> None:
    path = next(one for one in (DOCS / name, DOCS / "papers" / name) if one.is_file())
    text = re.sub(r"(?ms)^<!-- \S+ -->\n.*?<!-- end -->", " ", path.read_text(encoding="utf-8"))
    text = re.sub(r"<!-- [^<>]+ -->[^<>]*<!-- / -->|\]\([^)]*\)|`[^`]*`|arXiv:\S+", " ", text)
    assert {*re.findall(r"(?<![\w.])\d+\.\d+", text)} == OTHERS[name]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
