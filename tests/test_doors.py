"""The edges of the program: names, streams, signals, plug-ins and mistakes end in one line."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import harness
from harness.checking.battery import battery
from harness.cli import main
from harness.code import PREFIX, code_of
from harness.errors import (
    BadOption,
    BadRecipe,
    BrokenPlugin,
    BrokenRecord,
    CannotWrite,
    CellsFailed,
    HarnessError,
    UnknownName,
)
from harness.registry import METRICS
from harness.reporting.submission import findings
from harness.weights import each
from tests.conftest import registries_kept
from tests.mistakes import mistake, names, refused

Minis = Callable[[str], dict[str, Path]]
LONG = "x" * 300
ROOT = Path(harness.__file__).parents[1]

pytestmark = pytest.mark.usefixtures("as_found")


@pytest.fixture
def room(minis: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("base", "a", "b"):
        shutil.copytree(minis("bert")[name], tmp_path / name)
    (tmp_path / "mine").mkdir()
    (tmp_path / "t.yaml").write_text("text: text\nlabel: label\nlabels: ['no', 'yes']\nfiles: d")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/train.csv").write_text("text,label\n" + "word1,no\nword2,yes\n" * 9)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def program(*words: str, where: Path, shell: str = "", **environment: str) -> Any:
    """The program in a process of its own; `shell` is put behind its words."""
    command = f'"$PYTHON" -m harness "$@" {shell}'
    known = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable, **environment}
    return subprocess.run(
        ["bash", "-c", command, "harness", *words],
        capture_output=True,
        env=known,
        cwd=where,
        check=False,
        timeout=100,
    )


# Names -------------------------------------------------------------------------------------

AVERAGE = ("merge", "a", "b", "--merger", "average", "--out")
NAMED: dict[str, tuple[str, ...]] = {
    "merge --out": (*AVERAGE, LONG),
    "merge": ("merge", LONG, "a", "--out", "one"),
    "evaluate --model": ("evaluate", "--model", LONG),
    "evaluate --output-path": ("evaluate", "--model", "a", "--output-path", LONG),
    "evaluate --data-dir": ("evaluate", "--model", "a", "--tasks", "glue/rte", "--data-dir", LONG),
    "finetune --task": ("finetune", "--base", "base", "--task", LONG, "--out", "one"),
    "finetune --out": ("finetune", "--base", "base", "--task", "embedded/outcome", "--out", LONG),
    "compare": ("compare", LONG, "a"),
    "leaderboard": ("leaderboard", LONG, "--out", "one"),
    "leaderboard --out": ("leaderboard", "a", "--out", LONG),
    "barrier": ("barrier", LONG, "a"),
    "barrier --output-path": ("barrier", "a", "b", "--output-path", LONG),
    "inspect": ("inspect", LONG, "a"),
    "inspect --out": ("inspect", "a", "b", "--out", LONG),
    "export --out": ("export", "a", "--format", "csv", "--out", LONG),
    "plot --out": ("plot", "protocols", "a", "--out", LONG),
    "statistics --out": ("statistics", "a", "--merger", "fisher", "--out", LONG),
    "statistics --out, of a task": ("statistics", "a", "--task", "t.yaml", "--out", LONG),
    "demo --out": ("demo", "--out", LONG),
    "--plugins": ("list", "mergers", "--plugins", LONG),
    "no text": (*AVERAGE, "bad\udcff"),
    "of no text": ("merge", "a", "bad\udcff", "--out", "one"),
}


@pytest.mark.parametrize("words", NAMED.values(), ids=NAMED)
def test_a_name_that_cannot_be_is_one_line_before_work(words: tuple[str, ...], room: Path) -> None:
    before = sorted(room.rglob("*"))
    refused(words, object)
    assert sorted(room.rglob("*")) == before


def test_an_output_that_is_no_text_is_refused_before_work(room: Path) -> None:
    recipe = harness.Recipe.model_validate({"experts": ["a", "b"], "merger": "average"})
    with mistake(CannotWrite, "bad\udcff", "UTF-8"):
        harness.merge(recipe, out="bad\udcff")
    assert not [path for path in room.iterdir() if path.name.startswith((".", "bad"))]


# Streams and signals -----------------------------------------------------------------------


def test_a_locale_of_few_letters_is_one_line(room: Path) -> None:
    shutil.copytree("a", "é")
    done = program(
        "merge", "é", "b", "--merger", "average", "--out", "one", where=room,
        LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0",
    )  # fmt: skip
    assert done.returncode == 2
    assert b"LC_ALL=C.UTF-8" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("shell", "status", "told"),
    [
        ("| (exec <&-; sleep 1); exit ${PIPESTATUS[0]}", 141, b""),
        (">&-", 0, b""),
        (">&- 2>&-", 0, b""),
        ("> /dev/full", 2, b"No space left on device"),
    ],
)
def test_a_stream_that_takes_nothing_is_no_traceback(
    shell: str, status: int, told: bytes, tmp_path: Path
) -> None:
    done = program("cache", "info", where=tmp_path, shell=shell)
    assert done.returncode == status, done.stderr
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == bool(told)


def test_an_error_that_cannot_be_told_is_told_by_the_status(tmp_path: Path) -> None:
    done = program("merge", "nowhere", where=tmp_path, shell="2> /dev/full")
    assert done.returncode == 2


def test_a_folder_of_plug_ins_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "b\udcffd").mkdir()
    done = program("list", "needs", where=tmp_path, HARNESS_PLUGINS="b\udcffd")
    assert done.returncode == 0, done.stderr


def test_ctrl_c_while_libraries_are_imported_is_no_traceback(room: Path) -> None:
    code = "import sys; sys.orig_argv[1:3] = ['-m', 'harness']; import harness, runpy; "
    code += f"sys.argv[1:] = {(*AVERAGE, 'one')!r}; print(flush=True); "
    code += "runpy.run_module('harness', run_name='__main__')"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in error
    assert not (room / "one").exists()


@pytest.mark.parametrize("turned", [True, False])
def test_ctrl_c_says_how_to_go_on(
    turned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            if turned:
                raise ImportError("a library makes this of it") from None
            raise

    monkeypatch.setattr("harness.catalogue.listed", stopped, raising=False)
    monkeypatch.setattr("harness.cli.listing.width", stopped)
    assert main(["list", "mergers"]) == 130
    assert len(capsys.readouterr().err.splitlines()) == 1


# Code of others ----------------------------------------------------------------------------

ENDS = (
    "raise SystemExit(0)",
    "import sys; sys.exit('bye')",
    "class E(BaseException): ...\nraise E",
)


@pytest.mark.parametrize("ends", ENDS)
def test_a_folder_that_ends_python_is_one_line(ends: str, room: Path) -> None:
    (room / "mine" / "bad.py").write_text(ends)
    refused(["list", "mergers", "--plugins", "mine"], BrokenPlugin, "bad.py")


@pytest.mark.parametrize("ends", [*ENDS, "1 / 0", "def f(:"])
def test_an_attribute_of_a_module_that_fails_is_one_line(
    ends: str, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (room / "somebodys.py").write_text(ends)
    monkeypatch.syspath_prepend(room)
    command = ["merge", "a", "b", "--merger", "somebodys:merge", "--out", "one"]
    refused(command, UnknownName, "merger somebodys:merge")


def test_a_plug_in_that_ends_python_is_named_and_the_rest_goes_on(room: Path) -> None:
    info = room / "site" / "rude-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rude\nVersion: 1.2\n")
    plugins = [f"rude{number}" for number in range(len(ENDS))]
    entries = "".join(f"{name} = {name}\n" for name in plugins)
    (info / "entry_points.txt").write_text(f"[harness]\n{entries}")
    for name, ends in zip(plugins, ENDS, strict=True):
        (room / "site" / f"{name}.py").write_text(ends)
    code = "from harness.cli import main; import sys\nprint(main(['list', 'mergers']))\n"
    code += "sys.exit(main(['merge', 'a', 'b', '--merger', 'rude0', '--out', 'one']))"
    environment = {**os.environ, "PYTHONPATH": f"{room / 'site'}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "0" in done.stdout.splitlines()
    *warned, last = done.stderr.splitlines()
    for name in plugins:
        said = f"harness: warning: the plug-in '{name}' of rude 1.2 could not be loaded"
        assert any(line.startswith(said) for line in warned)
    names(last, "rude0 rude 1.2")


def of_numpy(tensor: torch.Tensor) -> Any:
    return tensor.numpy()


#: what a method makes of a state -> what is said of it
MADE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda state: None, "mine NoneType expected mapping"),
    "a list": (list, "mine list expected mapping"),
    "arrays": (
        lambda state: {k: v.numpy() for k, v in state.items()},
        "mine ndarray 'bert. Tensor",
    ),
    "arrays, later": (lambda state: each(of_numpy, state), "mine ndarray 'bert. torch.Tensor"),
    "a part": (
        lambda state: {k: v for k, v in state.items() if "position" not in k},
        "mine position_embeddings.weight expert 1 has; expected",
    ),
    "other shapes": (
        lambda state: each(torch.flatten, state),
        "mine position_embeddings.weight (640,) (40, 16)",
    ),
}
STAGES: dict[str, Callable[[Callable[[Any], Any]], Callable[..., Any]]] = {
    "merger": lambda make: lambda experts, base: make(experts[0]),
    "premerge": lambda make: lambda experts, base: [make(one) for one in experts],
    "postmerge": lambda make: lambda merged, experts, base: make(merged),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("case", MADE)
def test_a_method_that_makes_no_state_is_one_line(case: str, stage: str, room: Path) -> None:
    make, things = MADE[case]
    getattr(harness, stage)("mine")(STAGES[stage](make))
    flags = [] if stage == "merger" else ["--merger", "average"]
    command = ["merge", "a", "b", "--base", "base", *flags, f"--{stage}", "mine", "--out", "one"]
    refused(command, HarnessError, things)
    assert not Path("one").exists()


def test_a_pre_merging_method_that_makes_no_list_is_one_line(room: Path) -> None:
    harness.premerge("mine")(lambda experts, base: experts[0])
    command = ["merge", "a", "b", "--base", "base", "--premerge", "mine", "--out", "one"]
    refused(command, BrokenPlugin, "mine expected list")


#: what the code of a method does -> what is said of it
RAISED: dict[str, tuple[Callable[..., Any], str]] = {
    "a key that is none": (lambda experts, base: {}["missing"], "mine KeyError: 'missing'"),
    "the end of Python": (lambda experts, base: sys.exit(0), "mine SystemExit: 0"),
    "in a tensor": (
        lambda experts, base: each(lambda one: one.nothing, experts[0]),
        "mine 'bert. AttributeError nothing",
    ),
}


@pytest.mark.parametrize("case", RAISED)
def test_what_a_method_raises_is_one_line_with_its_place(case: str, room: Path) -> None:
    """`sys.exit(0)` ended a merge as a success, with nothing made."""
    make, things = RAISED[case]
    harness.merger("mine")(make)
    command = ["merge", "a", "b", "--base", "base", "--merger", "mine", "--out", "one"]
    refused(command, BrokenPlugin, things, Path(__file__).name)
    assert not Path("one").exists()


def test_what_a_protocol_adapts_to_is_one_of_three_words() -> None:
    """Records would say of any other that labels were not read, and the protocol would get them."""
    with mistake(HarnessError, "'mine'", "'labelled'", "nothing, unlabeled, labeled"):
        harness.protocol("mine", adapts="labelled")(lambda encoded: [])  # type: ignore[arg-type]


def test_a_parameter_in_the_place_of_another_is_named() -> None:
    with mistake(HarnessError, "merger 'mine' (base, experts) (experts, base)"):
        harness.merger("mine")(lambda base, experts: experts[0])
    with mistake(HarnessError, "mine (experts, merged, base) (merged, experts, base)"):
        harness.postmerge("mine")(lambda experts, merged, base: merged)


def test_a_name_of_ours_is_refused_when_it_is_taken() -> None:
    """In a process that has looked nothing up: it was accepted, and each look-up failed then."""
    code = (
        "import harness\n"
        "try:\n    harness.merger('average')(lambda experts, base: experts[0])\n"
        "except harness.HarnessError as error:\n    print(error)\n"
        "print('average' in harness.MERGERS, harness.MERGERS['average'].function.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    refusal, then = done.stdout.splitlines()
    names(refusal, "merger 'average' harness.mergers.average rename")
    assert then == "True harness.mergers.average"


def test_a_plug_in_that_fails_leaves_what_is_ours(tmp_path: Path) -> None:
    """What is ours is imported once: what a failed block undoes of it would never come back."""
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/one.py").write_text(
        "import harness\nharness.merger('x')(lambda experts, base: experts[0])\n1 / 0\n"
    )
    code = (
        "import harness\n"
        "try:\n    harness.load_plugins('bad')\n"
        "except harness.HarnessError as error:\n    print('refused')\n"
        "print('average' in harness.MERGERS, 'x' in harness.MERGERS, len(harness.TASKS) > 20)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.split() == ["refused", "True", "False", "True"]


def test_an_option_is_not_one_of_a_need_with_another_default(room: Path) -> None:
    """The need's was taken for both, without a word."""

    def mine(experts: Any, base: Any, *, gram: Any, examples: int = 3) -> Any:
        return experts[0]

    harness.merger("mine")(mine)
    command = ["merge", "a", "b", "--base", "base", "--merger", "mine", "--out", "one"]
    refused(command, BrokenPlugin, "mine 'examples' 3 'gram' 1024")


def test_two_needs_have_no_option_in_common_with_other_defaults(room: Path) -> None:
    def widths(experts: Any, *, examples: int = 3) -> list[int]:
        return [examples for _ in experts]

    def mine(experts: Any, base: Any, *, gram: Any, widths: Any) -> Any:
        return experts[0]

    harness.need("widths", rows="none")(widths)
    harness.merger("mine")(mine)
    command = ["merge", "a", "b", "--base", "base", "--merger", "mine", "--out", "one"]
    refused(command, BrokenPlugin, "gram merger mine 'examples' 1024 'widths' 3")


def test_a_protocol_that_raises_leaves_the_others(room: Path) -> None:
    harness.protocol("mine", adapts="nothing")(lambda encoded: 1 / 0)
    with pytest.raises(CellsFailed) as caught:
        harness.evaluate(harness.Run(model="a", tasks="t.yaml", protocols=["mine", "current"]))
    (line,) = caught.value.failures
    names(line, "a t@heldout10 mine ZeroDivisionError", Path(__file__).name)
    assert [one.protocol for one in caught.value.records] == ["current"]


@pytest.mark.parametrize("whose", ["no draw", "one draw", "what is none"])
def test_predictions_of_some_draws_alone_are_one_line(whose: str, room: Path) -> None:
    """Their record would be refused by all that reads records."""

    def mine(encoded: harness.Encoded) -> list[harness.Predictions]:
        draw: Any = {"one draw": encoded.draws[0], "what is none": [1]}.get(whose)
        return [harness.Predictions(encoded.test.labels, draw) for _ in encoded.draws]

    harness.protocol("mine", adapts="labeled")(mine)
    run = harness.Run(model="a", tasks="t.yaml", protocols=["mine"], shots=(1,), draws=2)
    with pytest.raises(CellsFailed) as caught:
        harness.evaluate(run)
    (line,) = caught.value.failures
    names(line, "a t@heldout10 mine encoded.draws")


def test_a_method_that_ends_python_breaks_its_properties() -> None:
    def leaves(experts: Any, base: Any) -> Any:
        sys.exit(7)

    harness.merger("mine")(leaves)
    found = battery("merger", harness.Choice("mine")).findings()
    assert any("SystemExit: 7" in str(one) for one in found)


def test_a_protocol_that_writes_to_its_features_changes_no_other(room: Path) -> None:
    """Whatever was scored after it was scored on what it had written, under the same name."""

    def rude(encoded: harness.Encoded) -> list[harness.Predictions]:
        encoded.test.x[:] = 0
        encoded.test.logits[:] = 0
        encoded.test.labels[:] = 0
        return [harness.Predictions(encoded.test.labels)]

    harness.protocol("rude", adapts="nothing")(rude)
    run = harness.Run(model="a", tasks="t.yaml", protocols=["rude", "current"], output="after")
    after = [one for one in harness.evaluate(run) if one.protocol == "current"]
    alone = harness.evaluate(run.model_copy(update={"protocols": run.protocols[1:], "output": "x"}))
    assert [one.predictions for one in after] == [one.predictions for one in alone]
    assert [one.scores for one in after] == [one.scores for one in alone]


def test_a_metric_that_writes_to_labels_changes_no_other(room: Path) -> None:
    """Or raises: that score is left out with a line."""

    def rude(predicted: Any, labels: Any) -> float:
        labels[:] = 1 - predicted
        return 0.5

    harness.metric("rude", kinds=("classification",))(rude)
    run = harness.Run(model="a", tasks="t.yaml", protocols="current", metrics=["rude", "accuracy"])
    ((both,),) = [one.scores for one in harness.evaluate(run)]
    alone = run.model_copy(update={"metrics": ("accuracy",), "output": "x"})
    ((one,),) = [record.scores for record in harness.evaluate(alone)]
    assert both.parts["accuracy"] == one.parts["accuracy"]


def forget(*packages: str) -> None:
    """As a new process: modules of plug-ins, and of these packages, are not imported."""
    for name in [*sys.modules]:
        if name.startswith(PREFIX) or name.partition(".")[0] in packages:
            sys.modules.pop(name)


def test_code_below_a_plug_in_is_its_code(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    for folder in ("lib", ".venv", "site-packages"):
        (mine / folder).mkdir(parents=True)
        (mine / folder / "helper.py").write_text("K = 1")
    (mine / "one.py").write_text(
        "import harness\nfrom .lib.helper import K\n"
        "@harness.merger('deep')\ndef deep(experts, base):\n    return experts[0]\n"
    )
    harness.load_plugins(mine)
    before = code_of(harness.MERGERS["deep"].function)
    for folder in (".venv", "site-packages"):
        (mine / folder / "helper.py").write_text("K = 2")
    forget()
    harness.load_plugins(mine)
    assert code_of(harness.MERGERS["deep"].function) == before
    (mine / "lib/helper.py").write_text("K = 2")
    assert code_of(harness.MERGERS["deep"].function) == before  # which runs
    harness.load_plugins(mine)
    assert code_of(harness.MERGERS["deep"].function) != before


def test_code_of_a_function_below_is_that_of_the_whole_folder(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "deep").mkdir(parents=True)
    (mine / "deep/made.py").write_text("def made(experts, base):\n    return experts[0]\n")
    (mine / "one.py").write_text(
        "import harness\nfrom .deep.made import made\nharness.merger('deeper')(made)\n"
    )
    with registries_kept():
        harness.load_plugins(mine)
        function = harness.MERGERS["deeper"].function
        before = code_of(function)
        assert code_of(function) == before
        (mine / "two.py").write_text("K = 1\n")
        assert code_of(function) != before


@pytest.mark.parametrize("name", ["torch.classes", "distutils.core", "no.such", "json.tool"])
def test_to_hash_code_imports_and_raises_nothing(name: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "one.py").write_text(
        "import harness\n@harness.merger('lazy')\ndef lazy(experts, base):\n"
        f"    from {name} import thing\n    return experts[0]\n"
    )
    with registries_kept():
        harness.load_plugins(mine)
        loaded = {*sys.modules}
        assert code_of(harness.MERGERS["lazy"].function)
        assert {*sys.modules} == loaded


def test_a_merge_of_other_code_is_told(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two merges of two versions of a method have one recipe, and other weights."""
    text = "import harness\nfrom harness.weights import each\n@harness.merger('own')\n"
    text += "def own(experts, base):\n    return each(lambda one: one * %s, experts[0])\n"
    run = harness.Run(model="one", tasks="t.yaml", protocols="current")
    for by in ("0.5", "0.6"):
        Path("mine/one.py").write_text(text % by)
        with registries_kept():
            harness.load_plugins("mine")
            if by == "0.5":
                recipe = harness.Recipe(experts=["a", "b"], base="base", merger="own")
                harness.merge(recipe, out="one")
                assert json.loads(Path("one/merge.json").read_text())["code"]
                harness.evaluate(run)  # without a warning, which is an error
            else:
                with pytest.warns(UserWarning, match="one was made before the code"):
                    harness.evaluate(run)
                with monkeypatch.context() as ours:  # what made it has become ours
                    ours.setattr("harness.code.is_ours", lambda function: True)
                    harness.evaluate(run)
    harness.evaluate(run)  # where no plug-in is, nothing is known of it
    Path("mine/one.py").write_text(text.replace("'own'", "'other'") % "0.6")
    with registries_kept():
        harness.load_plugins("mine")
        with pytest.warns(UserWarning, match="one was made with 'own', which no plug-in that is"):
            harness.evaluate(run)


@pytest.mark.parametrize("registered", [True, False])
def test_a_merge_by_a_function_that_was_imported_is_told_alike(
    registered: bool, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `module:function`, whether that is registered or not: who made it knows its code."""
    monkeypatch.syspath_prepend(room / "lib")
    Path("lib").mkdir()
    text = "import harness\nfrom harness.weights import each\n"
    text += "@harness.merger('imported')\n" * registered
    text += "def made(experts, base):\n    return each(lambda one: one * 0.5, experts[0])\n"
    name = f"imported_{registered}".lower()
    Path(f"lib/{name}.py").write_text(text)
    run = harness.Run(model="one", tasks="t.yaml", protocols="current")
    with registries_kept():
        recipe = harness.Recipe(experts=["a", "b"], base="base", merger=f"{name}:made")
        harness.merge(recipe, out="one")
        harness.evaluate(run)  # without a warning, which is an error
        Path(f"lib/{name}.py").write_text(text.replace("0.5", "0.6"))
        harness.evaluate(run)  # what runs is as it was
        forget(name)
        assert harness.MERGERS[f"{name}:made"]
        with pytest.warns(UserWarning, match="one was made before the code"):
            harness.evaluate(run)


def test_the_code_of_a_need_is_that_of_its_merge(room: Path) -> None:
    """In a folder of its own: the method's is the same."""
    need = "import harness\n@harness.need('halves', rows='none')\n"
    need += "def halves(experts):\n    return [%s] * len(experts)\n"
    Path("asked").mkdir()
    Path("mine/one.py").write_text(
        "import harness\nfrom harness.weights import each\n@harness.merger('asking')\n"
        "def asking(experts, base, *, halves):\n"
        "    return each(lambda one: one * halves[0], experts[0])\n"
    )
    run = harness.Run(model="one", tasks="t.yaml", protocols="current")
    codes = []
    for by in ("0.5", "0.6"):
        Path("asked/need.py").write_text(need % by)
        with registries_kept():
            harness.load_plugins("asked")
            harness.load_plugins("mine")
            recipe = harness.Recipe(
                experts=["a", "b"], base="base", merger="asking", tasks=("t.yaml",)
            )
            if codes:
                with pytest.warns(UserWarning, match="one was made before the code"):
                    harness.evaluate(run)
            harness.merge(recipe, out="one", force=True)
            codes.append(json.loads(Path("one/merge.json").read_text())["code"])
    assert len({*codes}) == 2


SCORER = """
import harness
import torch.ops  # a module whose file is not where it says
from helper import WRONG

@harness.protocol("picked", adapts="nothing")
def picked(encoded):
    return [harness.Predictions(abs(encoded.test.labels - WRONG))]
"""


def test_scores_by_code_that_changed_are_made_again_and_told_apart(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of what the plug-in imports from elsewhere, and of `module:function`."""
    monkeypatch.syspath_prepend(room / "lib")
    Path("lib").mkdir()
    for folder, asked in (("mine", ("picked", "--plugins", "mine")), ("lib", ("scorer:picked",))):
        Path(folder, "scorer.py").write_text(SCORER)
        words = ["evaluate", "--model", "a", "--tasks", "t.yaml", "--output-path", folder + "/out"]
        for wrong in (0, 1):
            Path("lib/helper.py").write_text(f"WRONG = {wrong}")
            with registries_kept():
                assert main([*words, "--protocols", *asked]) == 0
                board = ["leaderboard", folder + "/out", "--out", folder + "/board"]
                assert main([*board, *asked[1:]]) == 0
                shown = Path(folder, "board/board.csv").read_text()
                assert (",100.000000," in shown) == (not wrong)
            forget("helper", "scorer")
        files = [*Path(folder, "out").rglob("*.json")]
        codes = {json.loads(path.read_text())["settings"]["code"] for path in files}
        assert len(codes) == len(files) == 2
        if folder == "mine":
            refused(["leaderboard", "mine/out", "--out", "b"], HarnessError, "code", "--plugins")
            with registries_kept():
                harness.load_plugins("mine")
                told = [line for lines in findings(["mine/out"]).values() for line in lines]
            sys.modules.pop("helper")
            assert sum("by other code than is loaded" in line for line in told) == 1


def test_scores_of_two_codes_are_not_compared(room: Path) -> None:
    """Each model is scored once, one before and one after the protocol was mended."""
    for model, wrong in (("a", 1), ("b", 0)):
        text = SCORER.replace("from helper import WRONG", f"WRONG = {wrong}")
        Path("mine/scorer.py").write_text(text)
        words = ["evaluate", "--model", model, "--tasks", "t.yaml", "--output-path", "out"]
        with registries_kept():
            assert main([*words, "--protocols", "picked", "--plugins", "mine"]) == 0
        forget()
    loaded, board = ["--plugins", "mine"], ["leaderboard", "out", "--out", "x"]
    compare = ["compare", "a", "b", "--records", "out", "--protocol", "picked", *loaded]
    for command in (compare, board, [*board, *loaded]):
        with registries_kept():
            refused(command, BrokenRecord, "code", "--plugins")
        forget()
    codes = {*harness.read_records("out").code}
    assert len(codes) == 2


FOUND = {
    "a relative import": ("lab/__init__.py", "from .core import WRONG\n", "from lab import WRONG"),
    "of a package's own": ("lab/__init__.py", "from . import core\nWRONG = core.WRONG\n",
                           "from lab import WRONG"),
    "when it is called": ("lab/__init__.py", "", "def later():\n    from lab.core import WRONG"),
    "below, when it is called": ("lab/__init__.py", "", "def later():\n    import lab.core"),
    "of a folder without __init__": ("lab/more.py", "", "def later():\n    from lab.core import K"),
}  # fmt: skip


@pytest.mark.parametrize("how", FOUND)
def test_code_that_is_imported_in_any_way_is_its_code(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Be it relatively, or within a function: nothing is imported to find it."""
    file, text, imported = FOUND[how]
    (tmp_path / "lib/lab").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "lib" / file).write_text(text)
    core = tmp_path / "lib/lab/core.py"
    core.write_text("WRONG = 0\n")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    (tmp_path / "mine/one.py").write_text(
        f"import harness\n{imported}\n"
        "@harness.merger('by_lab')\ndef by_lab(experts, base):\n    return experts[0]\n"
    )
    with registries_kept():
        harness.load_plugins(tmp_path / "mine")
        loaded = {*sys.modules}
        before = code_of(harness.MERGERS["by_lab"].function)
        assert {*sys.modules} == loaded
        core.write_text("WRONG = 1\n")
        forget("lab")
        harness.load_plugins(tmp_path / "mine")
        assert code_of(harness.MERGERS["by_lab"].function) != before
    forget("lab")


def test_relative_imports_of_a_module_that_is_named_are_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pack/sub").mkdir(parents=True)
    for file in ("pack/__init__.py", "pack/sub/__init__.py"):
        (tmp_path / file).write_text("")
    common = tmp_path / "pack/common.py"
    common.write_text("K = 1\n")
    (tmp_path / "pack/sub/m.py").write_text("from ..common import K\ndef made():\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = code_of(importlib.import_module("pack.sub.m").made)
    common.write_text("K = 2\n")
    forget("pack")
    assert code_of(importlib.import_module("pack.sub.m").made) != before
    forget("pack")


RUNS = """
import harness, numpy as np
@harness.protocol("runs", adapts="nothing")
def runs(encoded):
    return [harness.Predictions(np.full(len(encoded.test.labels), {}.0))]
"""


@pytest.mark.parametrize("again", ["load_plugins", "reload", "cell"])
def test_a_score_is_of_the_code_that_ran(
    again: str, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is edited changes nothing until it is loaded again; then all is scored again."""
    monkeypatch.syspath_prepend(room / "mine")
    run = harness.Run(
        model="a",
        tasks="t.yaml",
        protocols="of_notebook:runs" if again == "reload" else "runs",
    )

    def scored() -> tuple[float, object]:
        (one,) = harness.evaluate(run)
        return one.scores[0].value, one.settings["code"]

    cell: dict[str, object] = {"__name__": "a_notebook"}
    with registries_kept():
        found = []
        for number in (0, 1):
            if again == "cell":
                exec(RUNS.format(number), cell)
            else:
                text = RUNS.format(number) + "#" * number  # of another size: of one second, too
                Path("mine/of_notebook.py").write_text(text)
                if number:
                    assert scored() == found[0]  # the file is not loaded again yet
            if again == "load_plugins":
                harness.load_plugins("mine")
            elif number and again == "reload":
                importlib.reload(sys.modules["of_notebook"])
            found.append(scored())
        assert found[0][0] + found[1][0] == pytest.approx(1)  # of two classes
        assert found[0][1] != found[1][1]
    forget("of_notebook")


def test_what_is_typed_is_known_by_what_it_does() -> None:
    """And by what it calls, wherever it stands in a notebook and whatever else is there."""
    text = "{}\ndef helper(x):\n    return x * {}\n"
    text += "def mine(x, scale=2):\n    return [helper(y) for y in x]"

    def typed(*said: object) -> str | None:
        cell: dict[str, object] = {"__name__": "a_notebook"}
        exec(text.format(*said), cell)
        return code_of(cell["mine"])  # type: ignore[arg-type]

    assert typed("", 3) == typed("other = 1\n# moved\n", 3) != typed("", 4)
    assert code_of(len) is None


CELLS = {
    "a method of an instance": "class C:\n    def by(self): return {}\nc = C()\n"
    "def mine(): return c.by()",
    "a method by itself": "class C:\n    def h(self): return {}\n    def m(self): return self.h()\n"
    "mine = C().m",
    "an instance": "class C:\n    def __init__(self, k): self.k = k\n    def m(self): return 1\n"
    "mine = C({}).m",
    "a second dictionary": "A = {{'x': 1}}\nB = {{'y': {}}}\ndef mine(): return A['x'] + B['y']",
    "within a dictionary": "A = {{'x': {{'y': {}}}}}\ndef mine(): return A",
    "a property": "class C:\n    @property\n    def p(self): return {}\nc = C()\n"
    "def mine(): return c.p",
    "a cached property": "from functools import cached_property as cp\nclass C:\n    @cp\n"
    "    def p(self): return {}\ndef mine(): return C().p",
    "a class's number": "class C:\n    __k__ = {}\ndef mine(): return C",
    "a function's attribute": "def g(): pass\ng.k = {}\ndef mine(): return g.k",
    "the shape of a list": "A = [[1, 2], [3]] if {} == 1 else [[1], [2, 3]]\ndef mine(): return A",
    "names of members": "class C: pass\nsetattr(C, 'a' if {} == 1 else 'b', 1)\n"
    "def mine(): return C",
    "which function": "def f(): return 1\ndef g(): return 2\nA = [f, g, f if {} == 1 else g]\n"
    "def mine(): return A",
    "a tuple in a set": "A = {{(1, 2) if {} == 1 else (2, 1)}}\ndef mine(): return A",
    "a range": "A = range({})\ndef mine(): return A",
    "parameters": "mine = (lambda x: x) if {} == 1 else (lambda *x: x)",
    "within a function": "def mine():\n    def f(): return [{} for _ in 'a']\n    return f",
    "a default": "def mine(k={}): return k",
    "a closure": "def of(k):\n    def mine(): return k\n    return mine\nmine = of({})",
    "a function of Python": "A = max if {} == 1 else min\ndef mine(): return A",
    "a pattern": "import re\nA = re.compile('a' * {})\ndef mine(): return A",
    "a named tuple": "from collections import namedtuple\nA = namedtuple('A', 'k')({})\n"
    "def mine(): return A",
    "slots": "class C:\n    __slots__ = ('k',)\nc = C()\nc.k = {}\ndef mine(): return c",
    "a partial": "from functools import partial\ndef f(k): return k\nmine = partial(f, {})",
    "a cache": "from functools import lru_cache\n@lru_cache\ndef f(): return {}\n"
    "def mine(): return f()",
}


@pytest.mark.parametrize("what", CELLS)
def test_what_is_typed_otherwise_is_other_code(what: str) -> None:
    found = []
    for number in (1, 1, 2):
        cell: dict[str, Any] = {"__name__": "a_notebook"}
        exec(CELLS[what].format(number), cell)
        cell["labels"] = object()
        found.append(code_of(cell["mine"]))
    assert found[0] == found[1] != found[2]


ANYTHING = """
import os, sys
from unittest.mock import Mock
import numpy
sys.path.insert(0, os.environ["REPOSITORY"])
deep = []
for _ in range(3000):
    deep = [deep]
def f(): return members
def g(): pass
members = {f, g}
class Odd:
    def __getattribute__(self, name): raise RuntimeError(name)
text = "def mine(x):\\n    return much, mock, lazy, f, deep, long, odd, sets, env, array"
text += ", x.labels, x.env, x.seen"
cell = {"__name__": "a_notebook", "deep": deep, "long": list(range(10**6)), "odd": object(),
        "sets": {frozenset({"a", "b"}), frozenset({"c", "d"}), f, g}, "env": os.environ,
        "much": 10**5000, "mock": Mock(spec=os), "lazy": Odd(), "f": f,
        "array": numpy.zeros(3), "labels": os.getpid(), "seen": {os.getpid()}}
exec(text, cell)
from harness.code import code_of
print(code_of(cell["mine"]))
"""


def test_what_is_typed_has_one_hash_whatever_it_names() -> None:
    """What is deep, long, of a library, or in the order of a process; no attributes."""
    root = str(Path(harness.__file__).parent.parent)
    made = set()
    for seed in ("1", "2"):
        env = {**os.environ, "REPOSITORY": root, "PYTHONHASHSEED": seed, "MORE": seed}
        words = [sys.executable, "-c", ANYTHING]
        made.add(subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout)
    assert [len(one.strip()) for one in made] == [32]


def test_a_folder_that_is_loaded_again_has_what_its_files_register(tmp_path: Path) -> None:
    """Also under other names, from another file, and as before where it fails."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / ".#one.py").symlink_to(tmp_path / "nowhere")  # as editors make them
    text = "import os, harness\nharness.load_plugins(os.path.dirname(__file__))  # while it is\n"
    text += "@harness.metric('{}', kinds=('regression',))\n"
    text += "def m(a, b):\n    return {}\n"
    with registries_kept():
        (mine / "one.py").write_text(text.format("first", 1))
        harness.load_plugins(mine)
        (mine / "one.py").write_text(text.format("first", 2) + "raise ValueError\n")
        with mistake(BrokenPlugin, "one.py", "ValueError"):
            harness.load_plugins(mine)
        again = METRICS["first"].function
        before = code_of(again)
        assert again(np.zeros(1), np.zeros(1)) == 1
        (mine / "one.py").write_text(text.format("first", 1))
        harness.load_plugins(mine)
        assert code_of(METRICS["first"].function) == before
        (mine / "one.py").unlink()
        (mine / "two.py").write_text(text.format("second", 2))
        harness.load_plugins(mine)
        assert "first" not in METRICS
        assert METRICS["second"].function(np.zeros(1), np.zeros(1)) == 2
        (mine / "two.py").rename(mine / "three.py")
        harness.load_plugins(mine)
        assert code_of(METRICS["second"].function) != before


def test_an_option_without_a_value_is_told_from_a_module(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = ["merge", "a", "b", "--base", "base", "--out", "o", "--merger"]
    refused([*merge, "ties:density"], UnknownName, "a value", "ties:density=VALUE")
    monkeypatch.syspath_prepend(room)
    Path("middle.py").write_text("def middle(experts, base):\n    return experts[0]\n")
    with registries_kept():
        for _ in range(2):  # once it is known, its module has the name of a merger
            assert main([*merge, "middle:middle", "--force"]) == 0
    sys.modules.pop("middle")


#: what a protocol makes of the labels -> what is said of it
PREDICTED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda labels: None, "NoneType list Predictions"),
    "no list": (harness.Predictions, "Predictions list Predictions"),
    "no draw": (lambda labels: [], "0 1"),
    "draws of nobody": (lambda labels: [harness.Predictions(labels)] * 2, "2 1"),
    "arrays": (lambda labels: [labels], "ndarray Predictions"),
    "a list of labels": (lambda labels: [harness.Predictions([*labels])], "list array"),
    "words": (lambda labels: [harness.Predictions(labels.astype(str))], "<U32 array"),
    "too few": (lambda labels: [harness.Predictions(labels[:1])], "(1,) (2,)"),
    "no label": (lambda labels: [harness.Predictions(labels + 7)], "8 whole 1"),
    "a share": (lambda labels: [harness.Predictions(labels * 0 + 0.5)], "0.5 whole 1"),
    "a fact in words": (lambda labels: [harness.Predictions(labels, facts={"a": "b"})], "a number"),
    "no facts": (lambda labels: [harness.Predictions(labels, facts=None)], "None a number"),
}


@pytest.mark.parametrize("case", PREDICTED)
def test_a_protocol_that_makes_no_predictions_is_one_line(case: str, room: Path) -> None:
    make, things = PREDICTED[case]
    harness.protocol("mine", adapts="nothing")(lambda encoded: make(encoded.test.labels))
    with mistake(CellsFailed, "protocol mine returned", things):
        harness.evaluate(harness.Run(model="a", tasks="t.yaml", protocols="mine"))
    assert not list(Path("records").glob("**/*.json"))


# Python ------------------------------------------------------------------------------------


def test_a_mistake_in_python_shows_the_call_and_the_line(room: Path) -> None:
    recipe = harness.Recipe.model_validate({"experts": ["a", "nowhere"], "merger": "average"})
    with pytest.raises(HarnessError) as raised:
        harness.merge(recipe, out="one")
    shown = "".join(traceback.format_exception(raised.value)).splitlines()
    assert "nowhere" in shown[-1]
    assert sum(line.startswith('  File "') for line in shown) <= 3
    assert harness.merge.__doc__


def test_verbs_go_to_other_processes() -> None:
    for name in ("merge", "evaluate", "finetune", "read_records"):
        verb = getattr(harness, name)
        assert pickle.loads(pickle.dumps(verb)) is verb


def test_what_is_no_request_is_one_line(room: Path) -> None:
    with mistake(BadRecipe, "run", "'a'", "harness.Run"):
        harness.evaluate("a")  # type: ignore[arg-type]
    with mistake(BadRecipe, "recipe", "'experts'", "harness.Recipe"):
        harness.merge({"experts": ["a"]}, out="o")  # type: ignore[arg-type]


def test_a_changed_field_is_read_as_one_that_is_given() -> None:
    run = harness.Run(model="a").but(protocols="knn", shots=np.int64(3))
    assert run == harness.Run(model="a", protocols=[harness.Choice("knn")], shots=(3,))
    with mistake(BadRecipe, "Run", "'draw'", "'draws'"):
        run.but(draw=3)


def test_a_protocol_with_a_need_is_one_line() -> None:
    """It failed after the forward pass."""
    with mistake(HarnessError, "protocol 'needy'", "'gram' without a default, expected one"):
        harness.protocol("needy")(lambda encoded, *, gram: [])


def test_a_decorator_without_a_name_is_one_line() -> None:
    with mistake(HarnessError, "merger", "function", "NAME"):
        harness.merger(lambda experts, base: experts[0])  # type: ignore[call-overload]


def test_an_interrupt_within_a_command_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the signal itself: releases of typer make a silent status of it."""

    def work(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("harness.inspecting.show.show", work)
    assert main(["show", "glue/rte"]) == 130
    assert "the same command goes on" in capsys.readouterr().err


def test_a_misspelled_field_is_named_though_it_leaves_another_out() -> None:
    with mistake(BadRecipe, "Recipe", "'expert'", "'experts'"):
        harness.Recipe(expert=["a", "b"])


def test_a_folder_is_a_path_and_one_value_a_list_of_one() -> None:
    place = Path("a")
    run = harness.Run(model=place, experts=[place, "b"], base=place, output=place, protocols="knn")
    assert run == harness.Run(
        model="a", experts=("a", "b"), base="a", output="a", protocols=[harness.Choice("knn")]
    )
    recipe = harness.Recipe(experts=place, statistics=[place], premerge="dare", data_dir=place)
    assert recipe == harness.Recipe(
        experts=["a"], statistics=["a"], premerge=[{"name": "dare"}], data_dir="a"
    )


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: harness.finetune("base", tasks="none/such", out="o"), UnknownName),
        (lambda: harness.prepare("none/such", "o"), UnknownName),
        (lambda: harness.compare("none/such", records="r"), BadOption),
    ],
)
def test_one_text_is_one_name_and_not_its_letters(
    call: Callable[[], object], kind: type[Exception], room: Path
) -> None:
    with mistake(kind, "none/such"):
        call()


@pytest.mark.parametrize(
    ("kind", "said", "things"),
    [
        (harness.Run, {"model": 3}, "Run model 3 string"),
        (harness.Run, {}, "Run model"),
        (harness.Run, {"model": "a", "limt": 3}, "Run 'limt' 'limit'"),
        (harness.Run, {"model": "a", "shots": 0.5}, "Run shots 0.5 list"),
        (harness.Run, {"model": "a", "first": True}, "Run first --limit"),
        *(
            (harness.Run, {"model": "a", name: True}, f"Run {name} True whole number")
            for name in ("draws", "seed", "limit", "train_limit")
        ),
        (harness.Run, {"model": "a", "shots": [5, True]}, "Run shots.1 True whole number"),
        *(
            (harness.Recipe, {"experts": "a", name: True}, f"Recipe {name} True whole number")
            for name in ("seed", "tune_limit", "examples_limit")
        ),
        (harness.Run, {"model": "a", "tasks": [3]}, "Run tasks.0 3 string"),
        (harness.Recipe, {"experts": None}, "Recipe experts None list"),
        (harness.Recipe, {"experts": "a", "heads": "kep"}, "Recipe heads 'kep' 'keep'"),
    ],
)
def test_what_does_not_fit_a_request_is_one_line(
    kind: Callable[..., Any], said: dict[str, Any], things: str
) -> None:
    with mistake(BadRecipe, things):
        kind(**said)
