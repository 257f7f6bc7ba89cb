"""Statistics in files: as good as the data, and believed no further than they can be checked."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from harness.checkpoints.open import open_checkpoint
from harness.cli import main
from harness.errors import HarnessError, UnknownName
from harness.files import cache_dir
from harness.needs import gram
from harness.passes import statistics
from harness.passes.cache import KEY
from harness.passes.statistic_file import check_statistic, read_statistic
from harness.weights import digest
from tests.conftest import FAMILIES
from tests.mistakes import names, refused
from tests.test_statistics import Loud, Minis, collected, reference_of_batches, rows_of
from tests.toys import THREE, TOY, known, pairs, registered

_toys = known(TOY, THREE)


# Files, instead of data --------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(loud: Loud, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Gram matrices and Fisher diagonals of two experts of one task."""
    root = tmp_path_factory.mktemp("files")
    found = {}
    with registered(TOY), pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_CACHE_DIR", str(root / "cache"))
        for which in ("a", "b"):
            for merger, name in (("regmean", which), ("fisher", f"{which}-fisher")):
                found[name] = str(root / f"{name}.safetensors")
                asked = ["--merger", f"{merger}:examples=8", "--out", found[name]]
                where = ["--task", "toy/pairs", "--device", "cpu"]
                assert main(["statistics", str(loud("bert", which)), *where, *asked]) == 0
    return found


def merged(loud: Loud, out: Path, *flags: str, merger: str = "regmean:examples=8") -> int:
    experts = [str(loud("bert", which)) for which in ("a", "b")]
    where = ["--tasks", "toy/pairs", "--device", "cpu", "--out", str(out)]
    return main(["merge", *experts, "--merger", merger, *where, *flags])


def test_files_are_as_good_as_the_data(
    loud: Loud, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert merged(loud, tmp_path / "data") == 0
    monkeypatch.setattr(statistics, "load_rows", lambda *_, **__: pytest.fail("data read"))
    both = ["--statistics", files["b"], "--statistics", files["a"]]
    assert merged(loud, tmp_path / "files", *both) == 0
    assert merged(loud, tmp_path / "list", "--statistics", f"{files['a']},{files['b']}") == 0
    digests = {
        json.loads((tmp_path / name / "merge.json").read_text())["digest"]
        for name in ("data", "files", "list")
    }
    assert len(digests) == 1


@pytest.mark.filterwarnings("default:.* was computed on other rows")
def test_a_file_of_other_rows_than_there_are_is_told(
    loud: Loud, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where there are none, or a file does not say its rows, nothing is."""
    train, made = tmp_path / "train.jsonl", [*pairs("train")]
    task = replace(TOY, name="toy/filed", generate=None, files={"train": str(train)})

    def told(rows: list[Any]) -> list[str]:
        train.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        files = f"{tmp_path / 'a'},{tmp_path / 'b'}"
        flags = ["--statistics", files, "--tasks", "toy/filed"]
        capsys.readouterr()
        assert merged(loud, tmp_path / "out", *flags, "--force") == 0
        err = capsys.readouterr().err.splitlines()
        return [line for line in err if "other rows" in line]

    with registered(task):
        train.write_text("".join(f"{json.dumps(row)}\n" for row in made))
        for which in ("a", "b"):
            asked = ["--merger", "regmean:examples=8,seed=1", "--out", str(tmp_path / which)]
            where = ["--task", "toy/filed", "--device", "cpu"]
            assert main(["statistics", str(loud("bert", which)), *where, *asked]) == 0
        assert not told(made)
        found = told(made[::-1])
        assert len(found) == 2
        for line, which in zip(found, ("a", "b"), strict=True):
            names(line, tmp_path / which, "toy/filed@train90", "statistics")
        assert not told([])


def test_a_record_says_what_the_statistics_are_of(
    loud: Loud, files: dict[str, str], tmp_path: Path
) -> None:
    assert merged(loud, tmp_path / "out", "--statistics", f"{files['a']},{files['b']}") == 0
    record = json.loads((tmp_path / "out" / "merge.json").read_text())
    first = record["statistics"][0]
    assert first["kind"] == "gram"
    assert first["task"] == "toy/pairs@train90"
    assert first["options"]["examples"] == 8
    assert first["digest"] == record["experts"][0]["digest"]
    assert set(record["report"]["condition"]) >= {"classifier.weight"}


def test_a_file_holds_no_row(loud: Loud, files: dict[str, str]) -> None:
    content = b"".join(Path(file).read_bytes() for file in files.values())
    for texts in rows_of(TOY, 8).texts:
        for text in texts:
            assert len(text) < 12 or text.encode() not in content


def test_statistics_are_taken_on_what_dare_left(loud: Loud, minis: Minis, tmp_path: Path) -> None:
    base = ["--base", str(minis("bert")["base"])]
    assert merged(loud, tmp_path / "plain", *base) == 0
    assert merged(loud, tmp_path / "dare", *base, "--premerge", "dare") == 0
    plain, dropped = (
        json.loads((tmp_path / name / "merge.json").read_text()) for name in ("plain", "dare")
    )
    assert plain["statistics"][0]["digest"] == plain["experts"][0]["digest"]
    assert dropped["statistics"][0]["digest"] != dropped["experts"][0]["digest"]


BAD: dict[str, tuple[list[str], list[str]]] = {
    "of another model": (["{a},{a}"], ["b digest statistics"]),
    "one for two": (["{a}"], ["1 file of statistics 2 experts"]),
    "another kind": (["{a-fisher},{a}"], ["fisher statistics gram"]),
    "not there": (["{a},nowhere.safetensors"], ["nowhere.safetensors missing"]),
    "no statistics": (["{a},{weights}"], ["statistics"]),
    "after dare": (["{a},{b}", "--base", "{base}", "--premerge", "dare"], ["pre-merging methods"]),
    "another task": (["{a},{b}", "--tasks", "toy/twin"], ["toy/pairs@train90 toy/twin"]),
    "other options": (["{a},{b}", "--merger", "regmean:examples=9"], ["examples=8", "9"]),
    "needs none": (["{a},{b}", "--merger", "average"], ["average statistics"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_files_that_do_not_fit(
    case: str,
    loud: Loud,
    minis: Minis,
    files: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags, said = BAD[case]
    weights = str(loud("bert") / "model.safetensors")
    places = {**files, "base": str(minis("bert")["base"]), "weights": weights}
    filled = [flag.format(**places) for flag in flags]
    with registered(TOY, replace(TOY, name="toy/twin")):
        refused(
            lambda: merged(loud, tmp_path / "out", "--statistics", *filled), HarnessError, *said
        )
    assert not (tmp_path / "out").exists()


ASKED: dict[str, tuple[list[str], str]] = {
    "no rows": (
        ["--merger", "fisher:examples=0"],
        "examples merger fisher 0",
    ),
    "needs none": (["--merger", "ties"], "ties statistics"),
    "a near miss": (["--merger", "regmean:exmples=8"], "examples"),
    "another type": (["--merger", "fisher:estimator=guess"], "exact empirical"),
    "no batch": (
        ["--merger", "regmean:batch_size=0"],
        "batch_size merger regmean 0",
    ),
    "another split": (["--task", "toy/pairs@test"], "toy/pairs@train90 @test"),
    "other labels": (["--task", "toy/three"], "toy/three expects x, y, z"),
    "in the way": (["--out", "{weights}"], "no file of statistics --out"),
}


@pytest.mark.parametrize("case", ASKED)
def test_statistics_that_cannot_be_had(case: str, loud: Loud, tmp_path: Path) -> None:
    flags, said = ASKED[case]
    kept = tmp_path / "weights.safetensors"
    shutil.copyfile(loud("bert") / "model.safetensors", kept)
    filled = [flag.format(weights=kept) for flag in flags]
    asked = ["statistics", str(loud("bert")), "--task", "toy/pairs"]
    refused([*asked, "--out", str(tmp_path / "out.safetensors"), *filled], HarnessError, said)
    assert [path.name for path in tmp_path.iterdir()] == ["weights.safetensors"]


def test_merging_takes_all_rows_where_there_are_fewer_than_asked_for(
    loud: Loud, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert merged(loud, tmp_path / "all", merger="fisher:examples=36") == 0
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert merged(loud, tmp_path / "more", merger="fisher:examples=37") == 0
    names(capsys.readouterr().err.splitlines()[0], "36 examples=37")
    digests = {digest(open_checkpoint(tmp_path / name).weights) for name in ("all", "more")}
    assert len(digests) == 1


def test_a_merger_that_asks_for_something_unknown(loud: Loud, tmp_path: Path) -> None:
    refused(
        lambda: merged(loud, tmp_path / "out", merger="tests.test_statistic_files:asks_too_much"),
        UnknownName,
        "entropy",
    )


def asks_too_much(experts: Any, base: Any, *, entropy: Any) -> Any:
    return experts[0]


# Published estimators, from the command line ---------------------------------------------


def test_a_merge_by_published_estimators(
    loud: Loud, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line to the weights, against float64."""
    folders = [loud("bert", which) for which in ("a", "b")]
    given = [reference_of_batches(folder, rows_of(TOY, 8), "hard", 4) for folder in folders]
    asked = "examples=8,batch_size=4,normalize=none,floor=1e-10"
    assert merged(loud, tmp_path / "hard", merger=f"fisher:estimator=hard,{asked}") == 0
    name = "bert.encoder.layer.0.output.dense.weight"
    thetas = [open_checkpoint(folder).weights[name].double().numpy() for folder in folders]
    shares = [one[name] + 1e-10 for one in given]
    expected = sum(t * s for t, s in zip(thetas, shares, strict=True)) / sum(shares)
    found = open_checkpoint(tmp_path / "hard").weights[name].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert "warning" not in capsys.readouterr().err
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert merged(loud, tmp_path / "soft", merger=f"fisher:estimator=soft,{asked}") == 0
    assert "harness: warning: the estimator 'soft' has a gradient" in capsys.readouterr().err


# Files of others ---------------------------------------------------------------------------

Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors, dict[str, Any]], Any]
QUERY = "bert.encoder.layer.0.attention.self.query.weight"
DENSE = "bert.encoder.layer.1.output.dense.weight"
HEAD = "classifier.bias"


def rewritten(source: str, out: Path, change: Change, *, seal: bool = False) -> str:
    """A copy of a file with other tensors, or another description; as a forger would write it."""
    tensors, said = load_file(source), description(Path(source))
    if not seal:
        del said["seal"]
    text = change(tensors, said)
    save_file(tensors, out, metadata={KEY: text if isinstance(text, str) else json.dumps(said)})
    return str(out)


def description(path: Path) -> dict[str, Any]:
    with safe_open(path, "pt") as file:
        said: dict[str, Any] = json.loads(file.metadata()[KEY])
    return said


def half(tensors: Tensors, said: dict[str, Any]) -> None:
    for name in [name for name in tensors if ".layer.1." in name]:
        del tensors[name]
    said["shared"] = {n: first for n, first in said["shared"].items() if ".layer.1." not in n}


def put(name: str, fn: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda tensors, _: tensors.update({name: fn(tensors[name]).contiguous()})


def one_entry(
    value: float, row: int = 0, column: int = 1
) -> Callable[[torch.Tensor], torch.Tensor]:
    def fn(tensor: torch.Tensor) -> torch.Tensor:
        tensor[row, column] = value
        return tensor

    return fn


def both(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: one_entry(value, 1, 0)(one_entry(value)(tensor))


def say(**changes: Any) -> Change:
    return lambda _, said: said.update(changes)


def nested(depth: int) -> Change:
    return lambda *_: '{"facts": ' + '{"a": ' * depth + "1" + "}" * depth + "}"


#: what is done to the Gram matrices of the first expert -> what is said
GRAMS: dict[str, tuple[Change, list[str]]] = {
    "half the layers": (half, ["bert.encoder.layer.1", "statistics"]),
    "one layer": (lambda t, _: t.pop(DENSE), [f"has no '{DENSE}'"]),
    "other shape": (put(DENSE, lambda t: t[:5, :5]), [f"'{DENSE}'", "torch.float64 (5, 5)"]),
    "not square": (put(DENSE, lambda t: t[:5]), [f"'{DENSE}'", "(5, 24)", "(24, 24)"]),
    "other type": (put(DENSE, torch.Tensor.float), [f"'{DENSE}'", "torch.float32", "float64"]),
    "whole numbers": (put(DENSE, lambda t: t.long()), [f"'{DENSE}'", "torch.int64"]),
    "booleans": (put(DENSE, lambda t: t > 0), [f"'{DENSE}'", "torch.bool"]),
    "NaN": (put(DENSE, one_entry(float("nan"))), [f"'{DENSE}'", "NaN"]),
    "infinite": (put(DENSE, one_entry(float("inf"))), [f"'{DENSE}'", "infinite"]),
    "zeros": (put(DENSE, torch.zeros_like), [f"'{DENSE}'", "zeros diagonal"]),
    "not symmetric": (put(DENSE, lambda t: t.triu()), [f"'{DENSE}'", "symmetric"]),
    "negative": (put(DENSE, torch.neg), [f"'{DENSE}'", "diagonal sums"]),
    "indefinite": (put(DENSE, both(1e6)), [f"'{DENSE}'", "diagonal"]),
    "noise": (put(DENSE, lambda t: 1 - 2 * torch.eye(24).double()), [f"'{DENSE}'", "-1 on"]),
    "shared with none": (
        lambda _, said: said["shared"].update({"x": "nowhere"}),
        ["x tensor nowhere"],
    ),
    "shared and there": (
        lambda _, said: said["shared"].update({DENSE: QUERY}),
        [f"'{DENSE}' shares the tensor of", "itself"],
    ),
}  # fmt: skip
#: what is done to the Fisher of the first expert -> what is said
FISHERS: dict[str, tuple[Change, list[str]]] = {
    "negative": (put(HEAD, torch.neg), [f"'{HEAD}'", "entry -", "squares"]),
    "missing": (lambda t, _: t.pop(HEAD), [f"has no '{HEAD}'"]),
    "NaN": (put(HEAD, lambda t: t * torch.nan), [f"'{HEAD}'", "NaN"]),
    "doubles": (put(HEAD, torch.Tensor.double), [f"'{HEAD}'", "float64", "torch.float32"]),
    "zeros": (
        lambda t, _: t.update({n: torch.zeros_like(v) for n, v in t.items()}),
        ["zeros"],
    ),
}
#: what the file of the first expert says of itself -> what is said of that
CLAIMS: dict[str, tuple[Change, list[str]]] = {
    "kind": (say(kind=7), ["kind", "string"]),
    "options": (say(options=[1]), ["options"]),
    "an option": (say(options={"examples": {"a": 1}}), ["options.examples"]),
    "no options": (say(options={}), ["does not record examples"]),
    "NaN": (say(options={"examples": float("nan")}), ["options.examples"]),
    "task": (say(task=None), ["task", "string"]),
    "digest": (say(digest=["x"]), ["digest", "string"]),
    "shared": (say(shared={"a": 1}), ["shared.a", "string"]),
    "facts": (say(facts="none"), ["facts"]),
    "not run": (say(facts={"not run": "bert"}), ["facts.not run"]),
    "no task": (lambda _, said: said.pop("task") and None, ["task", "required"]),
    "surrogate": (say(model="\ud800"), ["Unicode"]),
    "deep": (nested(100), ["nested"]),
    "very deep": (nested(100_000), ["cannot be read as"]),
    "a list": (lambda *_: "[]", ["list"]),
    "no JSON": (lambda *_: "{", ["cannot be read as"]),
    "code": (say(task="os:system@train90"), ["os:system@train90", "toy/pairs"]),
    "reported rows": (say(task="toy/pairs@test"), ["toy/pairs@test", "toy/pairs@train90"]),
}


def forged(
    change: Change, kind: str, said: list[str], loud: Loud, files: dict[str, str], tmp_path: Path,
    *, seal: bool = False,
) -> None:  # fmt: skip
    """A merge with a changed file of the first expert ends in one line, with nothing written."""
    merger = {"": "regmean", "-fisher": "fisher"}[kind]
    file = rewritten(files[f"a{kind}"], tmp_path / "forged.safetensors", change, seal=seal)
    flags = ("--statistics", f"{file},{files[f'b{kind}']}")
    asked = f"{merger}:examples=8"
    error = refused(lambda: merged(loud, tmp_path / "out", *flags, merger=asked), HarnessError)
    names(error, *said)
    names(error, "forged.safetensors")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize("case", GRAMS)
def test_a_gram_matrix_that_is_none(
    case: str, seal: bool, loud: Loud, files: dict[str, str], tmp_path: Path,
) -> None:  # fmt: skip
    forged(*GRAMS[case][:1], "", GRAMS[case][1], loud, files, tmp_path, seal=seal)


@pytest.mark.parametrize("case", FISHERS)
def test_a_fisher_diagonal_that_is_none(
    case: str, loud: Loud, files: dict[str, str], tmp_path: Path
) -> None:
    forged(FISHERS[case][0], "-fisher", FISHERS[case][1], loud, files, tmp_path)


@pytest.mark.parametrize("case", CLAIMS)
def test_a_description_that_is_none(
    case: str, loud: Loud, files: dict[str, str], tmp_path: Path
) -> None:
    forged(CLAIMS[case][0], "", CLAIMS[case][1], loud, files, tmp_path)


@pytest.mark.parametrize("kind", ["gram", "fisher"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_pass_finds_is_believed(family: str, kind: str, minis: Minis) -> None:
    folder = minis(family)["a"]
    check_statistic(collected(kind, folder), open_checkpoint(folder))


def test_a_file_that_was_changed_since_is_refused_by_its_seal(
    loud: Loud, files: dict[str, str], tmp_path: Path
) -> None:
    """What could be statistics, but are not those that were written."""
    twice = put(DENSE, lambda t: 2 * t)
    forged(twice, "", ["written"], loud, files, tmp_path, seal=True)


def test_a_weight_that_was_never_reached_is_said_to_be(
    loud: Loud,
    files: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It keeps the mean; without the word and without the matrix a file is not whole."""

    whole = gram.gram

    def missing(*given: Any, **options: Any) -> Any:
        tensors, shared = whole(*given, **options)
        return {name: tensor for name, tensor in tensors.items() if name != DENSE}, shared

    monkeypatch.setattr(gram, "gram", missing)
    out = str(tmp_path / "lazy.safetensors")
    where = ["--task", "toy/pairs", "--device", "cpu", "--merger", "regmean:examples=8"]
    assert main(["statistics", str(loud("bert", "a")), *where, "--out", out]) == 0
    assert merged(loud, tmp_path / "merge", "--statistics", f"{out},{files['b']}") == 0
    record = json.loads((tmp_path / "merge" / "merge.json").read_text())
    assert record["statistics"][0]["not run"] == [DENSE]
    silent = say(facts={})
    forged(silent, "", [f"has no '{DENSE}'"], loud, {**files, "a": out}, tmp_path)


def test_a_file_cannot_say_who_it_is_in_the_record(
    loud: Loud, files: dict[str, str], tmp_path: Path
) -> None:
    """Facts stand beside kind, task and digest in the record, and never in their place."""
    forged = rewritten(
        files["a"],
        tmp_path / "forged.safetensors",
        lambda _, said: said["facts"].update({"digest": "x", "kind": "y"}),
    )
    assert merged(loud, tmp_path / "out", "--statistics", f"{forged},{files['b']}") == 0
    record = json.loads((tmp_path / "out" / "merge.json").read_text())
    assert record["statistics"][0]["digest"] == record["experts"][0]["digest"]
    assert record["statistics"][0]["kind"] == "gram"


# The cache ---------------------------------------------------------------------------------


def entries() -> list[Path]:
    return sorted(cache_dir("statistics").iterdir())


def test_a_damaged_entry_of_the_cache_is_made_again(loud: Loud, tmp_path: Path) -> None:
    """Whichever byte is another: the header, what is said, a matrix."""
    assert merged(loud, tmp_path / "first") == 0
    first = (tmp_path / "first" / "model.safetensors").read_bytes()
    path, whole = entries()[0], entries()[0].read_bytes()
    numbers = np.random.default_rng(0)
    places = [0, 8, 9, *numbers.integers(9, 3000, 4), *numbers.integers(0, len(whole), 6)]
    for count, place in enumerate(map(int, places)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        assert merged(loud, tmp_path / str(count)) == 0
        assert (tmp_path / str(count) / "model.safetensors").read_bytes() == first, place
        assert path.read_bytes() == whole, place


def test_many_kinds_of_damage_to_an_entry(loud: Loud) -> None:
    """Cut short, of another key, with other tensors, and a header that claims ten terabytes."""
    first = collected("gram", loud("bert"))
    (path,) = entries()
    whole, other = path.read_bytes(), load_file(path)
    bomb = {"x": {"dtype": "F64", "shape": [10**6, 10**6], "data_offsets": [0, 8 * 10**12]}}
    header = json.dumps(bomb).encode()
    said = description(path)

    def saved(tensors: Tensors, said: dict[str, str]) -> bytes:
        save_file(tensors, path, metadata={KEY: json.dumps(said)})
        return path.read_bytes()

    damaged = [
        *(whole[:length] for length in (0, 4, 100, len(whole) // 2, len(whole) - 1)),
        whole + b"x",
        len(header).to_bytes(8, "little") + header,
        saved({**other, DENSE: other[DENSE][:3]}, said),
        saved({**other, DENSE: other[DENSE] * 2}, said),
        saved(other, {**said, "entry": "another"}),
        saved(other, {}),
    ]
    for content in damaged:
        path.write_bytes(content)
        again = collected("gram", loud("bert"))
        assert all(torch.equal(first.tensors[name], again.tensors[name]) for name in again.tensors)
        assert path.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_not_the_end(
    loud: Loud, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert merged(loud, tmp_path / "kept") == 0
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(in_the_way))
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert merged(loud, tmp_path / "not-kept") == 0
        flags = ["--task", "toy/pairs", "--device", "cpu", "--merger", "regmean:examples=8"]
        out = str(tmp_path / "out.safetensors")
        assert main(["statistics", str(loud("bert")), *flags, "--out", out]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(said) == 1
    names(said[0], in_the_way / "statistics", "HARNESS_CACHE_DIR")
    one, other = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("kept", "not-kept")
    )
    assert one == other
    assert read_statistic(out).need == "gram"
