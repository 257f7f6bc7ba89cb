"""Names are found, near misses are hinted at, and what registers twice or badly is named."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import harness
from harness import HarnessError, plugins, registry
from harness.entries import Merger
from harness.errors import UnknownName
from harness.registry import Registry
from tests.mistakes import mistake

ALL = {
    "mergers": harness.MERGERS,
    "premerge": harness.PREMERGE,
    "postmerge": harness.POSTMERGE,
    "protocols": harness.PROTOCOLS,
    "tasks": harness.TASKS,
    "metrics": harness.METRICS,
}


pytestmark = pytest.mark.usefixtures("as_found")


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable folder with one function or value of each kind, none of them registered."""
    (tmp_path / "somewhere.py").write_text(
        "from harness import Task\n"
        "def half(experts, base, *, share: float = 0.5): return experts[0]\n"
        "def same(experts, base): return experts\n"
        "def guess(encoded, *, label: int = 0): return []\n"
        "pets = Task(name='pets', kind='classification', text=('text',), label='label',\n"
        "            labels=('cat', 'dog'), metrics=('accuracy',), splits={'test': 'test'},\n"
        "            reported='test')\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def toy(experts: object, base: object, *, share: float = 0.5) -> object:
    return experts


# Names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "asked", "meant"),
    [
        ("mergers", "avrage", "average"),
        ("mergers", "tie", "ties"),
        ("premerge", "dara", "dare"),
        ("postmerge", "line", "lines"),
        ("protocols", "ft_classifier", "ft-classifier"),
        ("tasks", "glue/rt", "glue/rte"),
        ("metrics", "acuracy", "accuracy"),
    ],
)
def test_a_near_miss_is_hinted_at(kind: str, asked: str, meant: str) -> None:
    with mistake(UnknownName, asked, meant):
        ALL[kind][asked]


def test_a_far_miss_lists_what_is_known() -> None:
    with mistake(UnknownName, "xyzzy current"):
        harness.PROTOCOLS["xyzzy"]


def test_of_many_names_the_nearest_are_listed() -> None:
    with mistake(UnknownName, "known embedded/topic and others") as caught:
        _ = harness.TASKS["pictopics"]
    assert str(caught.value).count("/") == 11  # ten names, and the way to one's own


@pytest.mark.parametrize("kind", sorted(ALL))
def test_every_value_is_registered_under_its_own_name(kind: str) -> None:
    known = ALL[kind]
    assert len(known) > 0
    assert list(known) == sorted(known)
    assert all(known[name].name == name and name in known for name in known)


@pytest.mark.parametrize(
    ("kind", "attribute"),
    [("mergers", "half"), ("premerge", "same"), ("protocols", "guess")],
)
@pytest.mark.usefixtures("plugin")
def test_a_function_is_accepted_by_its_place(kind: str, attribute: str) -> None:
    found = ALL[kind][f"somewhere:{attribute}"]
    assert found.name == f"somewhere:{attribute}"
    assert found.function.__name__ == attribute


@pytest.mark.usefixtures("plugin")
def test_a_task_is_accepted_by_its_place() -> None:
    found = harness.TASKS["somewhere:pets"]
    assert found.labels == ("cat", "dog")
    assert harness.TASKS["pets"] is found


@pytest.mark.usefixtures("plugin")
def test_a_registered_function_keeps_its_name_when_given_by_its_place() -> None:
    assert harness.MERGERS["harness.mergers.ties:ties"] is harness.MERGERS["ties"]


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("mergers", "nowhere:half", "No module nowhere"),
        ("mergers", "somewhere:third", "attribute third"),
        ("protocols", "somewhere:number", "int function"),
        ("tasks", "somewhere:half", "function harness.Task"),
    ],
)
@pytest.mark.usefixtures("plugin")
def test_a_place_that_holds_nothing_of_use_is_an_error(kind: str, name: str, says: str) -> None:
    with mistake(UnknownName, says):
        ALL[kind][name]


def test_two_modules_with_one_name_are_both_named() -> None:
    harness.MERGERS.add(Merger("mine", toy), "first.module")
    with mistake(HarnessError, "mine first.module second.module"):
        harness.MERGERS.add(Merger("mine", toy), "second.module")
    assert harness.MERGERS["mine"].function is toy


def test_a_module_that_is_loaded_again_takes_its_own_name_again() -> None:
    harness.merger("mine")(toy)
    harness.merger("mine")(toy)
    assert harness.MERGERS["mine"].function is toy


def test_a_folder_is_scanned_when_a_name_is_first_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kennel"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name in ("rex", "bello"):
        (folder / f"{name}.py").write_text(
            "from harness.registry import Merger\n"
            f"import kennels\nkennels.DOGS.add(Merger('{name}', lambda *_: {{}}), __name__)\n"
        )
    (tmp_path / "kennels.py").write_text(
        "from harness.registry import Merger, Registry\n"
        "DOGS = Registry('dog', 'kennel', lambda name, f: Merger(name, f))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import kennels

    dogs: Registry[Merger] = kennels.DOGS
    assert not dogs._values
    assert "bello" in dogs
    assert list(dogs) == ["bello", "rex"]


def test_entry_points_of_the_group_are_imported(
    plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plugin / "declared.py").write_text(
        "from harness import merger\n"
        "@merger('third_party', paper='arXiv:0000.00000')\n"
        "def third_party(experts, base): return experts[0]\n"
    )
    asked = []

    def declared(*, group: str) -> list[EntryPoint]:
        asked.append(group)
        return [EntryPoint("anything", "declared", group)]

    monkeypatch.setattr(plugins, "entry_points", declared)
    plugins.load_all.cache_clear()
    try:
        plugins.load_all(registry.undone_by_errors)
    finally:
        plugins.load_all.cache_clear()
    assert asked == ["harness"]
    assert harness.MERGERS["third_party"].paper == "arXiv:0000.00000"


def test_a_protocol_that_reads_labels_adapts_to_no_scored_rows() -> None:
    """Its records would say that those labels were not read."""
    asked: Any = {"adapts": "labeled", "transductive": lambda **_: True}
    with pytest.raises(HarnessError, match="'odd' adapts to labels"):
        harness.protocol("odd", **asked)(lambda encoded: [])
