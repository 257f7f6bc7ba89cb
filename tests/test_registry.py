"""Names are found, near misses are hinted at, options are read and checked against their types."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import harness
from harness import Choice, HarnessError, parse_choice, plugins, registry
from harness.errors import BadOption, UnknownName
from harness.options import resolve
from harness.registry import Merger, Registry

ALL = {
    "mergers": harness.MERGERS,
    "premerge": harness.PREMERGE,
    "protocols": harness.PROTOCOLS,
    "tasks": harness.TASKS,
    "metrics": harness.METRICS,
}


@pytest.fixture(autouse=True)
def _as_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone when it ends."""
    for known in ALL.values():
        len(known)
        monkeypatch.setattr(known, "_values", dict(known._values))
        monkeypatch.setattr(known, "_origins", dict(known._origins))


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


def toy(
    experts: object,
    base: object,
    *,
    share: float = 0.5,
    count: int = 3,
    loud: bool = False,
    mode: Literal["soft", "hard"] = "soft",
    weights: list[float] | None = None,
    note: str = "",
) -> object:
    return experts


def read(text: str) -> dict[str, Any]:
    return resolve("toy", parse_choice(text), toy)


# Names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "asked", "meant"),
    [
        ("mergers", "avrage", "average"),
        ("mergers", "tie", "ties"),
        ("premerge", "dara", "dare"),
        ("protocols", "ft_classifier", "ft-classifier"),
        ("tasks", "glue/rt", "glue/rte"),
        ("metrics", "acuracy", "accuracy"),
    ],
)
def test_a_near_miss_is_hinted_at(kind: str, asked: str, meant: str) -> None:
    with pytest.raises(UnknownName, match=f"'{asked}'; did you mean '{meant}'"):
        ALL[kind][asked]


def test_a_far_miss_lists_what_is_known() -> None:
    with pytest.raises(UnknownName, match=r"no protocol is called 'xyzzy'; known: .*current"):
        harness.PROTOCOLS["xyzzy"]


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
        ("mergers", "nowhere:half", "No module named 'nowhere'"),
        ("mergers", "somewhere:third", "no attribute 'third'"),
        ("protocols", "somewhere:number", "is a int, expected a function"),
        ("tasks", "somewhere:half", "is a function, expected a harness.Task"),
    ],
)
@pytest.mark.usefixtures("plugin")
def test_a_place_that_holds_nothing_of_use_is_an_error(kind: str, name: str, says: str) -> None:
    with pytest.raises(UnknownName, match=says):
        ALL[kind][name]


def test_two_modules_with_one_name_are_both_named() -> None:
    harness.MERGERS.add(Merger("mine", toy), "first.module")
    with pytest.raises(HarnessError, match=r"'mine' .* first\.module and by second\.module"):
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
            f"import kennels\nkennels.DOGS.add(Merger('{name}', len), __name__)\n"
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


# Options -----------------------------------------------------------------------------------


def test_a_choice_is_read_with_its_options() -> None:
    assert parse_choice("ties:density=0.2,trim=tensor") == Choice(
        "ties", {"density": "0.2", "trim": "tensor"}
    )
    assert parse_choice("average:weights=0.5:0.5") == Choice("average", {"weights": "0.5:0.5"})
    assert parse_choice("ties") == Choice("ties")
    assert parse_choice("a.b:c") == Choice("a.b:c")
    assert parse_choice("a.b:c:share=1,weights=1:2") == Choice(
        "a.b:c", {"share": "1", "weights": "1:2"}
    )


@pytest.mark.parametrize("text", ["ties:density=1,trim", "ties:density=1,=2", "ties:a:b"])
def test_what_is_no_option_is_named(text: str) -> None:
    with pytest.raises(BadOption, match="expected NAME or NAME:key=value"):
        parse_choice(text)


def test_defaults_are_filled_in() -> None:
    assert read("toy") == {
        "share": 0.5,
        "count": 3,
        "loud": False,
        "mode": "soft",
        "weights": None,
        "note": "",
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("share=0.25", 0.25),
        ("share=1", 1.0),
        ("share=1e-3", 1e-3),
        ("count=12", 12),
        ("loud=true", True),
        ("loud=False", False),
        ("mode=hard", "hard"),
        ("weights=0.5:0.5", [0.5, 0.5]),
        ("weights=2", [2.0]),
        ("weights=none", None),
        ("note=anything at all", "anything at all"),
    ],
)
def test_text_becomes_the_type_of_the_option(text: str, value: object) -> None:
    found = read(f"toy:{text}")[text.partition("=")[0]]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("share=much", "option 'share' of toy 'toy' is 'much', expected a number"),
        ("share=nan", "expected a number"),
        ("share=inf", "expected a number"),
        ("count=1.5", "'1.5', expected a whole number"),
        ("count=true", "expected a whole number"),
        ("loud=perhaps", "expected true or false"),
        ("mode=medium", "'medium', expected 'soft' or 'hard'"),
        ("weights=a:b", "expected numbers separated by ':' or nothing"),
        ("weights=0.5:nan", "expected numbers"),
    ],
)
def test_a_value_of_another_type_is_refused(text: str, expected: str) -> None:
    with pytest.raises(BadOption, match=expected):
        read(f"toy:{text}")


@pytest.mark.parametrize(
    ("options", "fits"),
    [
        ({"share": 1}, True),
        ({"share": True}, False),
        ({"share": None}, False),
        ({"count": 2}, True),
        ({"count": 2.5}, False),
        ({"count": True}, False),
        ({"loud": True}, True),
        ({"loud": 1}, False),
        ({"weights": [1, 0.5]}, True),
        ({"weights": ["a"]}, False),
        ({"weights": None}, True),
        ({"note": 3}, False),
    ],
)
def test_values_from_a_recipe_are_checked_alike(options: dict[str, Any], fits: bool) -> None:
    choice = Choice("toy", options)
    if fits:
        name, value = next(iter(options.items()))
        assert resolve("toy", choice, toy)[name] == value
    else:
        with pytest.raises(BadOption):
            resolve("toy", choice, toy)


def test_an_unknown_option_has_its_near_miss() -> None:
    with pytest.raises(BadOption, match="toy 'toy' has no option 'shares'; did you mean 'share'"):
        read("toy:shares=1")
    with pytest.raises(BadOption, match="has no option 'xyzzy'; known: share, count, "):
        read("toy:xyzzy=1")
    with pytest.raises(BadOption, match="no option 'density'; known: none"):
        resolve("toy", parse_choice("toy:density=1"), lambda experts, base: experts)


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "share": NUMBERS,
            "count": st.integers(),
            "loud": st.booleans(),
            "mode": st.sampled_from(["soft", "hard"]),
            "weights": st.none() | st.lists(NUMBERS, min_size=1, max_size=4),
        },
    )
)
def test_a_printed_choice_reads_back(options: dict[str, Any]) -> None:
    choice = Choice("toy", options)
    assert resolve("toy", parse_choice(str(choice)), toy) == resolve("toy", choice, toy)
    assert str(parse_choice(str(choice))) == str(choice)


@pytest.mark.parametrize("kind", ["mergers", "premerge", "protocols"])
def test_all_defaults_have_the_type_they_declare(kind: str) -> None:
    for entry in ALL[kind].values():
        default = resolve(kind, Choice(entry.name), entry.function)
        assert resolve(kind, Choice(entry.name, default), entry.function) == default
