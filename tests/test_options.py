"""Options are read as their types, held to their ranges before any work, and listed with them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from annotated_types import Len
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

import harness
from harness import Choice, Recipe, Run, methods, parse_choice
from harness.catalogue import rendered
from harness.cli import main
from harness.errors import BadOption, HarnessError
from harness.options import Option, options, resolve
from tests.mistakes import mistake, names, refused

REGISTRIES = {
    "merger": harness.MERGERS,
    "pre-merging method": harness.PREMERGE,
    "post-merging method": harness.POSTMERGE,
    "protocol": harness.PROTOCOLS,
}


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


# Reading -----------------------------------------------------------------------------------


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
    with mistake(BadOption, "NAME NAME:key=value"):
        parse_choice(text)


def test_the_number_of_a_layer_may_be_one_in_a_file() -> None:
    rotation = harness.PREMERGE["rotation"]
    for number in (1, "1"):
        assert (
            methods.resolved_options(rotation, Choice("rotation", {"layers": number}))["layers"]
            == "1"
        )
    for wrong in (True, 1.0, [0, 1]):
        with mistake(BadOption, "first:2 last:2 0"):
            methods.resolved_options(rotation, Choice("rotation", {"layers": wrong}))


def test_defaults_are_filled_in() -> None:
    assert read("toy") == {
        "share": 0.5,
        "count": 3,
        "loud": False,
        "mode": "soft",
        "weights": None,
        "note": "",
    }


def test_options_of_a_function_are_read_once_and_each_reader_has_a_list_of_its_own() -> None:
    first, second = options(toy), options(toy)
    assert all(first[name] is second[name] for name in first)
    first.clear()
    assert list(options(toy)) == list(second)

    def twin(*, share: int = 2) -> None: ...

    assert options(twin)["share"].read("3", "share") == 3


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
        ("share=much", "option share toy toy much"),
        ("share=nan", "expected a number"),
        ("share=inf", "expected a number"),
        ("count=1.5", "1.5"),
        ("count=true", "expected a whole number"),
        ("loud=perhaps", "true false"),
        ("mode=medium", "medium soft hard"),
        ("weights=a:b", ":"),
        ("weights=0.5:nan", "expected numbers"),
    ],
)
def test_a_value_of_another_type_is_refused(text: str, expected: str) -> None:
    with mistake(BadOption, expected):
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
    with mistake(BadOption, "toy shares share"):
        read("toy:shares=1")
    with mistake(BadOption, "xyzzy share, count"):
        read("toy:xyzzy=1")
    with mistake(BadOption, "density"):
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


# Ranges ------------------------------------------------------------------------------------


def functions(kind: str, name: str) -> tuple[Callable[..., Any], ...]:
    """Those whose options a registered method has."""
    entry: Any = REGISTRIES[kind][name]
    return (entry.function,) if kind == "protocol" else methods.functions(entry)


METHODS = [(kind, name) for kind, registry in REGISTRIES.items() for name in registry]
DECLARED = [
    (kind, name, option)
    for kind, name in METHODS
    for function in functions(kind, name)
    for option in options(function).values()
]


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_all_defaults_are_what_they_declare(kind: str, name: str) -> None:
    known = functions(kind, name)
    default = resolve(kind, Choice(name), *known)
    assert resolve(kind, Choice(name, default), *known) == default


def borders(option: Option) -> Iterator[tuple[Any, bool]]:
    """The values at and next to each limit of an option, and whether it takes them."""
    for member in option.schema.get("anyOf", [option.schema]):
        schema = member.get("items", member)
        for end, out in {"inimum": -1, "aximum": 1}.items():
            closed = f"m{end}" in schema
            limit = schema.get(f"m{end}" if closed else f"exclusiveM{end}")
            if limit is None:
                continue
            beyond, within = (step(schema, limit, way) for way in (out, -out))
            for value, fits in (limit, closed), (beyond, False), (within, True):
                yield [value, value] if "items" in member else value, fits


def step(schema: Any, limit: float, way: int) -> float:
    """The next value to a limit, above or below."""
    return limit + way if schema["type"] == "integer" else math.nextafter(limit, way * math.inf)


LIMITED = [
    pytest.param(kind, name, option, id=f"{name}:{option.name}")
    for kind, name, option in DECLARED
    if [*borders(option)]
]


def test_there_are_ranges() -> None:
    limited = {str(param.id) for param in LIMITED}
    assert {
        "ties:density",
        "breadcrumbs:gamma",
        "consensus:agree",
        "fisher:weights",
        "regmean:examples",
        "dare:drop_rate",
        "ft-classifier:epochs",
    } <= limited


@pytest.mark.parametrize(("kind", "name", "option"), LIMITED)
def test_a_range_ends_where_it_says(kind: str, name: str, option: Option) -> None:
    for value, fits in borders(option):
        asked = Choice(name, {option.name: value})
        for choice in asked, parse_choice(str(asked)):
            if fits:
                assert resolve(kind, choice, *functions(kind, name))[option.name] == value
                continue
            with pytest.raises(BadOption) as raised:
                resolve(kind, choice, *functions(kind, name))
            line = str(raised.value)
            assert line.startswith(f"option '{option.name}' of {kind} '{name}' is ")
            assert ", expected " in line
            assert "\n" not in line


OUT = [
    ("--merger", "ties:density=1.5", "1.5 0 1"),
    ("--merger", "ties:density=0", "0 0 1"),
    ("--merger", "ties:density=0.5:20", "0.5:20 0 1"),
    ("--merger", "ties:density=nan", "nan 0 1"),
    ("--merger", "ties:density=lots", "lots 0 1"),
    ("--merger", "ties:trim=half", "half global tensor"),
    ("--merger", "task_arithmetic:scale=inf", "inf"),
    ("--merger", "breadcrumbs:density=0", "0 0 1"),
    ("--merger", "breadcrumbs:gamma=-0.1", "-0.1 0 1"),
    ("--merger", "breadcrumbs:gamma=1", "1 0 1"),
    ("--merger", "consensus:threshold=-1", "-1 0"),
    ("--merger", "consensus:agree=0", "0 1"),
    ("--merger", "consensus:agree=1.5", "1.5 1"),
    ("--merger", "slerp:t=1.1", "1.1 0 1"),
    ("--merger", "slerp:t=true", "true 0 1"),
    ("--merger", "incremental:count=0", "0 1"),
    ("--merger", "fisher:floor=-1", "-1 0"),
    ("--merger", "fisher:weights=1:-1", "1:-1 0 :"),
    ("--merger", "fisher:batch_size=0", "0 1"),
    ("--merger", "regmean:off_diagonal=1.5", "1.5 0 1"),
    ("--merger", "regmean:weights=-1:2", "-1:2 0 :"),
    ("--merger", "regmean:examples=0", "0 1"),
    ("--premerge", "dare:drop_rate=-1", "-1 0 1"),
    ("--premerge", "della:epsilon=2", "2 0 1"),
    ("--protocols", "ft-classifier:epochs=0", "0 1 1000000"),
    ("--protocols", "ft-classifier:learning_rate=0", "0 0"),
    ("--protocols", "ft-classifier:learning_rate=-1e-3", "-1e-3 0"),
]


@pytest.mark.parametrize(("flag", "text", "said"), OUT)
def test_a_value_out_of_range_is_one_line_before_a_file_is_read(
    flag: str, text: str, said: str, tmp_path: Path
) -> None:
    """And for no other reason: what the arguments name is nowhere."""
    nowhere, out = str(tmp_path / "nowhere"), str(tmp_path / "out")
    merge = ["merge", nowhere, nowhere, "--base", nowhere, "--out", out]
    evaluate = ["evaluate", "--model", nowhere, "--output-path", out]
    choice = parse_choice(text)
    words = [*(evaluate if flag == "--protocols" else merge), flag, text]
    refused(words, BadOption, *choice.options, choice.name, said)
    assert not list(tmp_path.iterdir())


DENSITY = "density ties 1.5, 0 1"


def test_the_other_doors_say_the_same(tmp_path: Path) -> None:
    recipe, out = tmp_path / "recipe.yaml", str(tmp_path / "out")
    recipe.write_text("experts: [/nowhere]\nmerger: {name: ties, density: 1.5}\n")
    refused(["merge", str(recipe), "--out", out], BadOption, DENSITY)
    refused(["check", "merger", "ties:density=1.5"], BadOption, DENSITY)
    statistics = ["statistics", "/nowhere", "--task", "glue/rte", "--out", out]
    line = "off_diagonal regmean 2, 0 1"
    refused([*statistics, "--merger", "regmean:off_diagonal=2"], BadOption, line)
    refused(["check", "premerge", "dare:drop_rate=2"], BadOption, "drop_rate dare 2, 0 1")


def test_python_says_the_same(tmp_path: Path) -> None:
    ties = Choice("ties", {"density": 1.5})
    with mistake(BadOption, DENSITY):
        harness.merge(Recipe(experts=("/nowhere",), merger=ties), out=tmp_path / "out")
    asked = Choice("ft-classifier", {"epochs": 0})
    with mistake(BadOption, "epochs ft-classifier 0"):
        harness.evaluate(Run(model="/nowhere", protocols=(asked,), output=str(tmp_path / "out")))


@pytest.mark.parametrize(
    ("merger", "grid", "line"),
    [
        ("ties", "density=0:1:0.5", "density ties 0.0"),
        ("slerp", "t=0.5:1.5:0.25", "t slerp 1.25"),
        ("consensus", "agree=1:2:0.5", "agree consensus 1.5"),
        ("ties", "trim=0:1:1", "trim ties"),
    ],
)
def test_a_grid_out_of_range_is_one_line_before_a_file_is_read(
    merger: str, grid: str, line: str, tmp_path: Path
) -> None:
    command = ["merge", "/nowhere", "--base", "/nowhere", "--out", str(tmp_path / "out")]
    refused([*command, "--merger", merger, "--tune", grid], BadOption, line)


def test_what_a_protocol_checks_itself_is_checked_before_a_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness.PROTOCOLS, "_values", dict(harness.PROTOCOLS._values))
    monkeypatch.setattr(harness.PROTOCOLS, "_origins", dict(harness.PROTOCOLS._origins))

    def check(*, low: float, high: float) -> None:
        if low > high:
            raise BadOption(f"low is {low:g}, expected at most {high:g}, which is high")

    @harness.protocol("between", check=check)
    def between(
        encoded: harness.Encoded, *, low: float = 0.0, high: float = 1.0
    ) -> list[harness.Predictions]:
        return []

    asked = Choice("between", {"low": 2})
    with mistake(BadOption, "low 2 1"):
        harness.evaluate(Run(model="/nowhere", protocols=(asked,), output=str(tmp_path / "out")))


# What a plug-in may declare ----------------------------------------------------------------


def declared(annotation: Any, default: Any) -> Callable[..., Any]:
    def method(experts: Any, base: Any, *, given: Any = default) -> Any:
        return experts

    method.__annotations__["given"] = annotation
    return method


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (list[int], "1:2", [1, 2]),
        (list[str] | None, "a:b", ["a", "b"]),
        (Annotated[int, Field(ge=2)], "2", 2),
        ("int", "3", 3),
    ],
)
def test_a_plug_in_declares_as_it_likes(annotation: Any, text: str, value: Any) -> None:
    choice = Choice("mine", {"given": text})
    assert resolve("merger", choice, declared(annotation, value)) == {"given": value}


@pytest.mark.parametrize(
    ("annotation", "default", "text", "expected"),
    [
        (Annotated[int, Field(ge=2)], 2, "1", "is 1, expected a whole number of at least 2"),
        (Annotated[int, Field(multiple_of=2)], 2, "1", "expected a whole number multipleOf 2"),
        (Annotated[list[float], Len(2)], [1, 2], "1", "separated by ':', minItems 2"),
        (Annotated[str, Field(pattern="^a")], "a", "b", "is 'b', expected text pattern ^a"),
    ],
)
def test_a_limit_without_a_word_is_said_as_it_is(
    annotation: Any, default: Any, text: str, expected: str
) -> None:
    with pytest.raises(BadOption) as raised:
        resolve("merger", Choice("mine", {"given": text}), declared(annotation, default))
    assert expected in str(raised.value)


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (torch.dtype, "<class 'torch.dtype'> is no type of an option"),
        (dict[str, float] | None, "dict[str, float] is no type of an option"),
        ("Nowhere", "name 'Nowhere' is not defined"),
    ],
)
def test_what_no_option_can_be_is_named(annotation: Any, said: str) -> None:
    with pytest.raises(BadOption) as raised:
        options(declared(annotation, None))
    names(str(raised.value), "given declared.<locals>.method", said)


class Mode(Enum):
    HARD = "hard"


@pytest.mark.parametrize(
    "default", [Mode.HARD, np.float32(0.5), (0.5, 0.5), torch.ones(2), math.nan, sum]
)
def test_a_default_that_a_file_gives_back_as_another_value_is_refused(default: Any) -> None:
    """A method was called with the text 'hard' in place of its own `Mode.HARD`."""

    def method(experts, base, *, given=default):  # type: ignore[no-untyped-def]
        return experts

    with mistake(BadOption, "the default of option 'given'", "method", repr(default)[:10]):
        options(method)


def test_a_default_of_another_type_than_declared_is_refused() -> None:
    def method(experts: object, base: object, *, given: float = "soft") -> object:  # type: ignore[assignment]
        return experts

    with mistake(BadOption, "the default of option 'given' 'soft', expected a number"):
        options(method)


@pytest.mark.parametrize("called", REGISTRIES)
def test_an_option_among_what_is_given_in_order_is_refused(called: str) -> None:
    """Nobody would pass it on."""
    registry = REGISTRIES[called]
    given = next(iter(registry.values())).given

    def made(declared: str) -> Any:
        return registry.adopt("mine", eval(f"lambda {declared}: None"))

    assert made(", ".join([*given, "*", "density=1"])).name == "mine"
    assert made("*all_of_them, density=1").name == "mine"
    with mistake(HarnessError, called, "'mine' 'density'", *given, "*, density"):
        made(", ".join([*given, "density=1"]))
    with mistake(HarnessError, called, "'mine' () expected", *given):
        made("*, density=1")


def test_an_option_without_a_type_takes_anything() -> None:
    def method(experts, base, *, given=1):  # type: ignore[no-untyped-def]
        return experts

    for text, value in {"2": 2, "0.5": 0.5, "true": True, "1:2": [1, 2], "x": "x"}.items():
        assert resolve("merger", Choice("mine", {"given": text}), method) == {"given": value}


# Listing -----------------------------------------------------------------------------------


def test_ranges_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = ""
    for what in ("mergers", "premerge", "postmerge", "protocols"):
        assert main(["list", what]) == 0
        shown += capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for expected in (
        "    density=0.143 (a number above 0 and up to 1),\n",
        "    gamma=0.007 (a number of at least 0 and below 1),",
        "    density=0.2 (a number above 0 and up to 1 or several separated by ':'),\n",
        "weights=none (numbers of at least 0 separated by ':' or nothing),\n",
        "agree=2 (a whole number of at least 1)",
        "    t=0.5 (a number from 0 to 1)\n",
        "combine=mean ('mean' or 'sum' or 'max')\n",
        "rescale=true (true or false)",
        "layers=all (text as all, first:2, last:2, 0)",
        "epochs=5 (a whole number from 1 to 1000000)",
    ):
        assert expected in shown


def test_lines_of_options_end_at_commas() -> None:
    choices = {"default": "one word", "enum": ["one word", "another word", "the last word"]}
    number = {"default": 1, "minimum": 0, "type": "number"}
    entry = {
        "name": "x",
        "summary": "",
        "paper": "",
        "options": {"long_name": choices, "n": number},
    }
    assert rendered([entry], 40).splitlines()[1:] == [
        "    long_name=one word ('one word' or",
        "    'another word' or 'the last word'),",
        "    n=1 (a number of at least 0)",
    ]


def test_ranges_are_fields_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "mergers", "--json"]) == 0
    known = {entry["name"]: entry["options"] for entry in json.loads(capsys.readouterr().out)}
    density = {"default": 0.143, "type": "number", "exclusiveMinimum": 0, "maximum": 1}
    assert known["breadcrumbs"]["density"] == density
    assert known["consensus"]["agree"] == {"default": 2, "type": "integer", "minimum": 1}
    assert known["soup"]["select"]["enum"] == ["greedy", "uniform"]
    assert known["linear"]["normalize"] == {"default": True, "type": "boolean"}
