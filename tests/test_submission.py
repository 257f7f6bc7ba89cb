"""Whether records that a stranger sends may join a board: every forgery is found."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from harness.cli import main
from harness.errors import BadOption, BrokenRecord, UnknownName
from harness.evaluation.bootstrap import intervals
from harness.evaluation.packs import unpacked
from harness.evaluation.records import Record, identity_of, pack, read_record
from harness.evaluation.resamples import estimates_of
from harness.reporting.submission import findings
from tests.conftest import model, registries_kept
from tests.mistakes import names, refused
from tests.test_believed import ODD, places, spoilt
from tests.test_resamples import talks

HERE = Path(__file__).parent
RECORDS = HERE.parent / "leaderboards" / "records"
TASK = "textcls/ag_news@test"
BASE, EXPERT = "all-MiniLM-L6-v2", "ag_news-0"
SENT, UNLIKE = "regmean", "adamerging-rows-test"
Said = dict[str, Any]
Forgery = Callable[[Said], None]


@pytest.fixture(scope="module")
def committed() -> dict[str, bytes]:
    """The records of six models of a board on one task, with all resamples, by name."""
    return dict(unpacked(HERE / "submission.parquet"))


def placed(committed: dict[str, bytes], out: Path, models: Iterable[str]) -> Path:
    """The records of some models as files."""
    chosen = {*models}
    for name, content in committed.items():
        if name.split("/")[0] in chosen:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(content)
    return out


@pytest.fixture(scope="module")
def board(committed: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of the base, the expert, and two merges."""
    root = tmp_path_factory.mktemp("board")
    files = placed(committed, root / "files", [BASE, EXPERT, "average", "ties"])
    pack([files], root / "board.parquet")
    return root / "board.parquet"


@pytest.fixture
def sent(committed: dict[str, bytes], tmp_path: Path) -> Path:
    """Another merge of the same experts, which may join."""
    return placed(committed, tmp_path / "sent", [SENT])


def of(folder: Path, model: str = SENT, protocol: str = "current") -> Path:
    return next((folder / model).rglob(f"{protocol},*.json"))


def forged(path: Path, forgery: Forgery, *, tidy: bool = True) -> Path:
    """The record changed by somebody who knows this code: the hash in its name is right again.

    And, where this is `tidy`, its intervals.
    """
    said = json.loads(path.read_text())
    forgery(said)
    path.unlink()
    record = Record.model_validate_json(json.dumps(said))
    if tidy and record.resamples:
        estimates = estimates_of(record.resamples, record.scores, record.metrics)
        record = record.model_copy(update={"intervals": intervals(record.metrics, estimates)})
    start = path.name.rpartition("-")[0]
    out = path.with_name(f"{start}-{identity_of(record)[:12]}.json")
    out.write_text(json.dumps(record.model_dump(mode="json"), indent=1, sort_keys=True))
    return out


def lines(places: Path, *board: Path) -> list[str]:
    return [line for lines in findings([places], board).values() for line in lines]


# What may join -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vision", "vision-one-start"])
def test_every_committed_record_with_resamples_may_join(name: str) -> None:
    found = findings([RECORDS / f"{name}.parquet"])
    assert len(found) > 100
    assert [*found.values()] == [[]] * len(found)


def test_a_merge_of_the_same_experts_may_join(
    sent: Path, board: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written, and records that are there already may come again."""
    before = sorted(sent.parent.rglob("*"))
    command = ["leaderboard", "--submit-check", str(sent), "--board", str(board)]
    assert main(command) == 0
    assert capsys.readouterr().out == f"16 records may join {board}\n"
    assert sorted(sent.parent.rglob("*")) == before
    assert not lines(board, board)


def test_a_merge_may_join_a_board_that_keeps_the_first_resamples_alone(
    sent: Path, board: Path, tmp_path: Path
) -> None:
    """What is sent has them all, though."""
    short = tmp_path / "short.parquet"
    pack([board], short, resamples=500)
    assert not lines(sent, short)
    pack([sent], tmp_path / "sent.parquet", resamples=500)
    assert "has 500 resamples of 2000" in lines(tmp_path / "sent.parquet", short)[0]
    forged(of(sent), other_design)
    assert "as the resamples of" in lines(sent, short)[0]


def test_what_is_refused_is_said_in_a_line_each(
    sent: Path, board: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = forged(of(sent), raised, tidy=False)
    (sent / "broken-0123456789ab.json").write_text("{")
    assert main(["leaderboard", "--submit-check", str(sent), "--board", str(board)]) == 2
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) >= 2
    assert all(line.startswith(str(sent)) for line in printed.out.splitlines())
    assert str(path) in printed.out
    (line,) = printed.err.splitlines()
    names(line, 2, 17, board)


# Forgeries of one record -------------------------------------------------------------------


def raised(said: Said) -> None:
    """Five points more."""
    scored(said, lambda value: value + 0.05)


def scored(said: Said, made: Callable[[float], float]) -> None:
    for one in said["scores"]:
        one["value"] = made(one["value"])
        one["parts"] = dict.fromkeys(one["parts"], one["value"])


def lifted(said: Said) -> None:
    """A point more on every resample: 20 steps of 0.0005, with the score left."""
    for one in said["resamples"]:
        steps = np.frombuffer(base64.b64decode(one["values"]), dtype=np.int8).astype(int)
        higher = np.minimum(steps + round(0.01 / one["step"]), 127).astype(np.int8)
        one["values"] = base64.b64encode(higher.tobytes()).decode()


def fewer_resamples(said: Said) -> None:
    for one in said["resamples"]:
        one["count"] = 500
        one["values"] = base64.b64encode(base64.b64decode(one["values"])[:500]).decode()


def best_draws(said: Said) -> None:
    """The worst of five draws is left out, of the draws on resamples as well."""
    values = [one["value"] for one in said["scores"]]
    worst = values.index(min(values))
    del said["scores"][worst]
    for one in said["resamples"]:
        each = base64.b64decode(one["by_draw"])
        kept = each[: 64 * worst] + each[64 * (worst + 1) :]
        one["by_draw"] = base64.b64encode(kept).decode()


def fewer_draws(said: Said) -> None:
    best_draws(said)
    for number, one in enumerate(said["scores"]):
        one["seed"] = number
    said["settings"]["draws"] = 4


def other_seed(said: Said) -> None:
    said["settings"]["seed"] = 7
    for one in said["scores"]:
        one["seed"] += 7
    drawn = said["adaptation"]["drawn"]
    said["adaptation"]["drawn"] = {str(int(seed) + 7): rows for seed, rows in drawn.items()}


def other_rows_drawn(said: Said) -> None:
    """Five rows of a class that suit the merge."""
    said["adaptation"]["drawn"]["0"][0][:5] = [1, 2, 3, 4, 5]


def other_sentences(said: Said) -> None:
    said["adaptation"]["sentences"] = {"5": {"0": [1, 2, 3]}}


def as_drawn(said: Said) -> None:
    """A fit to the test rows as one to drawn rows, its option left as it is."""
    said["adaptation"] |= {"transductive": False, "split": "textcls/ag_news@train90"}
    said["adaptation"]["drawn"] = {"0": [[1, 2], [3]]}
    said["settings"] |= {"shots": [5], "draws": 1, "seed": 0}
    for one in [*said["scores"], *said["resamples"], *said["intervals"]]:
        one["shots"] = 5
    for one in said["scores"]:
        one["seed"] = 0


def as_drawn_by_its_options(said: Said) -> None:
    as_drawn(said)
    said["options"]["rows"] = "shots"
    said["adaptation"]["labels"] = "chose the rows"
    said["adaptation"]["split"] = TASK


def without_rows(said: Said) -> None:
    del said["options"]["transform"]


def unread(said: Said) -> None:
    said["adaptation"]["labels"] = "were not read"


def changed(**fields: Any) -> Forgery:
    """Fields changed; of those that hold others, `settings__limit`."""

    def forgery(said: Said) -> None:
        for name, value in fields.items():
            first, _, inner = name.partition("__")
            if inner:
                said[first][inner] = value
            else:
                said[first] = value

    return forgery


def other_design(said: Said) -> None:
    said["resamples"][0]["design"] = "0123456789abcdef"
    said["loss_resamples"] = None


def other_level(said: Said) -> None:
    said["intervals"][0]["level"] = 0.5


def low_loss(said: Said) -> None:
    """It lies as far below on some resamples as the score does."""
    said["loss_resamples"] = said["resamples"][0]
    said["scores"][0]["facts"]["loss"] = 1e-5


def low_constant(said: Said) -> None:
    said["majority"] |= {"value": 0.1, "parts": {"accuracy": 0.1}}


def tuned_on_test(said: Said) -> None:
    said["recipe"]["tuned"] = {"scale": 0.3}
    said["recipe"]["tuned_on"] = [TASK]


def tuned_on_nothing(said: Said) -> None:
    said["recipe"]["tuned"] = {"scale": 0.3}


def unknown_merger(said: Said) -> None:
    said["recipe"]["merger"]["name"] = "mine"


def other_teacher(said: Said) -> None:
    """A head that is tuned to a better model than the expert."""
    said["teachers"] = ["0" * 32]


def experts_of_ones_own(said: Said) -> None:
    """The merge is said to be of another expert of the task, of which there is no record."""
    for one in said["experts"]:
        one["digest"] = one["digest"][::-1]


FORGERIES: dict[str, tuple[str, Forgery, bool, str]] = {
    # name -> protocol, what is done, whether intervals are made to fit, what is said
    "score": ("current", raised, False, "has the interval "),
    "score of draws": ("knn", raised, False, "has the interval "),
    "score, intervals": ("current", raised, True, "has the standard deviation"),
    "score of no rows": ("current", lambda s: scored(s, lambda v: v + 1e-4), True, "on 2000 rows"),
    "resamples": ("current", lifted, False, "has the mean"),
    "resamples, intervals": ("current", lifted, True, "has the mean"),
    "level": ("current", other_level, False, "has the intervals "),
    "loss": ("current", low_loss, True, "expected none below zero"),
    "fewer resamples": ("current", fewer_resamples, True, "has 500 resamples of 2000"),
    "other resamples": ("current", other_design, True, "as the resamples of textcls/ag_news"),
    "no resamples": ("current", changed(resamples=[], loss_resamples=None), False, "no resamples"),
    "a draw missing": ("knn", best_draws, True, "has the draws ["),
    "shots missing": ("knn", changed(settings__shots=[1, 5]), True, "has scores of [5] shots"),
    "fewer draws": ("knn", fewer_draws, True, "has 4 as draws of"),
    "draws of another seed": ("linear-probe", other_seed, True, "has 7 as seed of"),
    "rows drawn": ("knn", other_rows_drawn, True, "as the rows drawn for"),
    "sentences drawn": ("ft-classifier", other_sentences, True, "as the sentences drawn for"),
    "limit": ("current", changed(settings__limit=5000), True, "as test of"),
    "rows": ("current", changed(dataset__digest="f" * 32), True, "as the digest of the rows"),
    "length": ("current", changed(settings__max_length=512), True, "as max_length of"),
    "type": ("current", changed(settings__dtype="bfloat16"), True, "as dtype of"),
    "best constant": ("current", low_constant, True, "as the best constant"),
    "version": (
        "current",
        changed(versions={"merging-harness": "9.9"}),
        True,
        "has 9.9",
    ),
    "no version": ("current", changed(versions={}), True, "has None as the version"),
    "fitted to test rows": ("probe", as_drawn, True, "adapted to (split"),
    "no option": ("probe", without_rows, True, "lacks the options transform of probe"),
    "rows, options": (
        "probe",
        as_drawn_by_its_options,
        True,
        "adapted to (split",
    ),
    "labels were read": ("knn", unread, True, "adapted to (split"),
    "nothing adapted": ("knn", changed(protocol="current", options={}), True, "expected None"),
    "protocol": ("current", changed(protocol="mine"), True, "is of the protocol 'mine'"),
    "shown the test rows": (
        "current",
        changed(shown=[TASK]),
        True,
        "was shown textcls/ag_news",
    ),
    "tuned on test rows": ("current", tuned_on_test, True, "was made with textcls/ag_news@test"),
    "rows it was shown": ("current", changed(shown=[]), True, "no rows were shown; expected those"),
    "tuned on nothing": ("current", tuned_on_nothing, True, "has scale tuned on no rows"),
    "no digest": ("surgery", changed(digest="mine"), True, "has the digest 'mine'"),
    "no experts": ("current", changed(experts=[]), True, "has no recipe, or no experts"),
    "another teacher": ("ft-classifier", other_teacher, True, "has no record of its control"),
    "no merger": ("current", unknown_merger, True, "has a recipe with unknown methods"),
    "no recipe": ("current", changed(recipe=None), True, "has no recipe"),
    "method": ("current", changed(method="average"), True, "is called average; expected regmean"),
    "weights": ("current", changed(digest="0" * 32), True, "as the weights of regmean"),
    "other experts": ("current", experts_of_ones_own, True, "has no record of its control"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_record_is_refused(forgery: str, sent: Path, board: Path, tmp_path: Path) -> None:
    """By someone who knows the code; all others of the folder may join."""
    protocol, change, tidy, said = FORGERIES[forgery]
    if forgery == "weights":  # which only a board that has this merge can tell
        pack([board, sent], tmp_path / "board.parquet")
        board = tmp_path / "board.parquet"
    path = forged(of(sent, protocol=protocol), change, tidy=tidy)
    found = findings([sent], [board])
    assert len(found) == 16
    assert any(said in line for line in found[path]), found[path]
    assert all(line.startswith(str(path)) and "expected" in line for line in found[path])
    assert not any(lines for other, lines in found.items() if other != path)


@pytest.mark.parametrize("forgery", [name for name in FORGERIES if "draw" in name])
def test_a_board_may_be_missing(forgery: str, sent: Path, board: Path, tmp_path: Path) -> None:
    """Records that bring their own control are held against one another: the first is believed."""
    own = tmp_path / "own"
    assert main(["records", "unpack", str(board), "--out", str(own)]) == 0
    shutil.copytree(sent / SENT, own / SENT)
    assert not lines(own)
    protocol, change, tidy, _ = FORGERIES[forgery]
    path = forged(of(own, protocol=protocol), change, tidy=tidy)
    assert [line for line in lines(own) if line.startswith(str(path))]


def test_a_metric_is_in_its_range(sent: Path, board: Path) -> None:
    path = of(sent)
    said = json.loads(path.read_text())
    scored(said, lambda value: 100 * value)
    path.write_text(json.dumps(said))
    (line,) = lines(sent, board)
    names(line, path, "accuracy", "expected", "0 to 1")


def test_the_hash_in_a_name_is_that_of_the_record(sent: Path, board: Path) -> None:
    path = of(sent)
    moved = path.rename(path.with_name("mine.json"))
    (line,) = lines(sent, board)
    names(line, moved, "no hash in its name", "expected")
    said = json.loads(moved.read_text())
    path.write_text(json.dumps({**said, "digest": "0" * 32}))
    moved.unlink()
    (line,) = lines(sent, board)
    names(line, path, "does not match the hash in its name")


# Merges that saw the scored rows -----------------------------------------------------------


@pytest.fixture
def unlike(committed: dict[str, bytes], tmp_path: Path) -> Path:
    """A merge that was made with the test rows, and says so."""
    return placed(committed, tmp_path / "unlike", [UNLIKE])


def unmarked(said: Said) -> None:
    said["transductive"] = False


def unmarked_and_not_shown(said: Said) -> None:
    unmarked(said)
    said["shown"] = [one.replace("@test", "@train90") for one in said["shown"]]


def unmarked_without_the_option(said: Said) -> None:
    unmarked_and_not_shown(said)
    del said["recipe"]["merger"]["options"]["rows"]
    said["method"] = "adamerging"


def unmarked_in_all(said: Said) -> None:
    unmarked_without_the_option(said)
    said["recipe"]["merger"]["options"]["rows"] = "train"


@pytest.mark.parametrize(
    ("forgery", "said"),
    [
        (unmarked, "was shown textcls/ag_news@test, which is scored, but has transductive false"),
        (unmarked_and_not_shown, "was made with textcls/ag_news@test, which is scored;"),
        (unmarked_without_the_option, "lacks the option rows of adamerging"),
    ],
)
def test_a_merge_made_with_the_scored_rows_is_marked(
    forgery: Forgery, said: str, unlike: Path, board: Path
) -> None:
    assert not lines(unlike, board), "marked, it may join"
    path = forged(of(unlike, UNLIKE), forgery)
    assert [line for line in lines(unlike, board) if said in line and str(path) in line]


def test_weights_that_a_board_has_as_made_with_the_scored_rows_stay_so(
    unlike: Path, board: Path, tmp_path: Path, committed: dict[str, bytes]
) -> None:
    """Of all that says it in the record itself nothing is left: only who knows them can tell."""
    pack([board, placed(committed, tmp_path / "known", [UNLIKE])], tmp_path / "board.parquet")
    for path in [*unlike.rglob("*.json")]:
        forged(path, unmarked_in_all)
    assert not lines(unlike, board)
    found = lines(unlike, tmp_path / "board.parquet")
    assert len(found) == 16
    for line in found:
        names(line, "has False", "made with the rows of textcls/ag_news@test", "expected True")


# What is left out --------------------------------------------------------------------------


@pytest.mark.parametrize("boarded", [True, False])
def test_no_merge_leaves_out_where_it_scores_low(
    boarded: bool, sent: Path, board: Path, committed: dict[str, bytes]
) -> None:
    """Held to the merges of the board, or to another that is sent."""
    if not boarded:
        placed(committed, sent, [BASE, EXPERT, "average"])
    of_board = [board] if boarded else []
    assert not lines(sent, *of_board)
    of(sent).unlink()
    (line,) = lines(sent, *of_board)
    names(line, f"{sent}/{SENT}/", SENT, "without", f"{TASK} under current", "expected")


# The control -------------------------------------------------------------------------------


def test_a_merge_comes_with_its_base_and_experts(sent: Path, board: Path) -> None:
    path = of(sent)
    found = [line for line in lines(sent) if line.startswith(str(path))]
    assert len(found) == 2
    names(found[0], path, "no record of its control", "base", "expected")
    names(found[1], path, "no record of its control", "cf4ca9f5", "expected")


def test_a_protocol_that_the_board_has_not_needs_its_control(
    sent: Path, board: Path, committed: dict[str, bytes]
) -> None:
    def other(said: Said) -> None:
        said["options"]["neighbours"] = 7

    for name in (SENT, BASE, EXPERT):
        placed(committed, sent, [name])
    for place in [*sent.rglob("knn,*.json")]:
        if json.loads(place.read_text())["options"]["rule"] == "mean":
            shutil.copy(place, sent / f"{place.parts[-4]}-{place.name}")
            forged(place, other)
    assert not lines(sent, board)
    for name, said in ((BASE, "control base"), (EXPERT, "control cf4ca9f5")):
        shutil.rmtree(sent / name)
        found = lines(sent, board)
        assert found
        assert all("knn:neighbours=7" in line for line in found)
        assert said in found[-1]


def trained_again(said: Said) -> None:
    """By other seeds: other weights of experts, of the heads under the base, of the merge."""
    said["digest"] = said["digest"][::-1]
    said["teachers"] = [one[::-1] for one in said["teachers"]]
    for one in said["experts"]:
        one |= {"digest": one["digest"][::-1], "seed": 1, "head_seed": 1}


def test_another_set_of_experts_may_join_with_its_control(
    sent: Path, board: Path, committed: dict[str, bytes]
) -> None:
    placed(committed, sent, [BASE, EXPERT])
    for path in [*sent.rglob("*.json")]:
        forged(path, trained_again)
    assert not lines(sent, board)
    shutil.rmtree(sent / EXPERT)
    assert any("control" in line for line in lines(sent, board))


@pytest.mark.parametrize("field", ["seed", "head_seed", "training"])
def test_an_expert_was_trained_once(sent: Path, board: Path, field: str) -> None:
    """By another seed its merges would be replicates of those on the board."""

    def trained_otherwise(said: Said) -> None:
        said["experts"][0][field] = "0" * 32 if field == "training" else 7

    path = forged(of(sent), trained_otherwise)
    (line,) = lines(sent, board)
    names(line, path, "the training of the expert", "expected seed")


def test_an_expert_is_of_one_task(sent: Path, tmp_path: Path, committed: dict[str, bytes]) -> None:
    """That of another task would need no record on this one; its own record says which it is of."""
    board = placed(committed, tmp_path / "control", [BASE, EXPERT])

    def of_another(said: Said) -> None:
        said["experts"][0]["task"] = "textcls/dbpedia_14"

    path = forged(of(sent), of_another)
    (line,) = lines(sent, board)
    names(line, path, "textcls/dbpedia_14", "the task of the expert", "expected", "textcls/ag_news")


def lowered(said: Said) -> None:
    scored(said, lambda value: value - 0.005)
    said["content"] = "0" * 32


def retrained(said: Said) -> None:
    said["digest"] = "0" * 32


@pytest.mark.parametrize("name", [BASE, EXPERT])
@pytest.mark.parametrize(
    ("forgery", "said"), [(lowered, "as scores of"), (retrained, "as the weights of the")]
)
def test_the_control_stays_what_it_is(
    name: str, forgery: Forgery, said: str, board: Path, tmp_path: Path, committed: dict[str, bytes]
) -> None:
    """A base with lower scores would lend credit to every merge."""
    own = placed(committed, tmp_path / "own", [name])
    assert not lines(own, board)
    path = forged(of(own, name), forgery)
    (line,) = lines(own, board)
    names(line, path, said, "expected")


# Predictions -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What `evaluate` leaves of a merge, its experts and their base, by documents."""
    root = tmp_path_factory.mktemp("evaluated")
    task, labels = str(talks(root / "data")), ["down", "up"]
    base = model(root / "base")
    experts = [str(model(root / f"m{n}", labels, seed=n, near=base)) for n in (1, 2)]
    out = ["--merger", "ties", "--out", str(root / "merge"), "--base", str(base)]
    asked = ["--output-path", str(root / "records"), "--shots", "1,all", "--draws", "3"]
    with registries_kept():
        assert main(["merge", *experts, *out, "--tasks", task]) == 0
        assert main(["evaluate", "--model", str(root / "merge"), *asked]) == 0
        yield root / "records"


def test_what_evaluate_leaves_may_join(evaluated: Path) -> None:
    found = findings([evaluated])
    assert len(found) >= 12
    assert not any(found.values())


def test_records_are_made_again_from_their_predictions(evaluated: Path, tmp_path: Path) -> None:
    """Whoever has the predictions need not believe the resamples."""
    own = Path(shutil.copytree(evaluated, tmp_path / "own"))
    path = next((own / "merge").rglob("knn*.json"))
    beside = path.with_suffix(".parquet")
    record, table = read_record(path), pq.read_table(beside)
    kept = [one.model_copy(update={"step": 1.01 * one.step}) for one in record.resamples]
    path.write_text(record.model_copy(update={"resamples": tuple(kept)}).model_dump_json())
    found = [line for line in lines(own) if "predictions give" in line]
    assert len(found) == 1
    names(found[0], path, "other resamples", "expected")
    path.write_text(record.model_dump_json())
    assert not lines(own)
    pq.write_table(table.take([*reversed(range(len(table)))]), beside)
    (line,) = lines(own)
    names(line, path, "predictions", "expected", beside)


def test_a_metric_that_is_not_loaded_is_told_of_each_record(
    evaluated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the first ended the check of all."""

    def unknown(*_: object) -> None:
        raise UnknownName("no metric is called 'theirs'")

    monkeypatch.setattr("harness.evaluation.predictions.scored", unknown)
    found = [line for line in lines(evaluated) if "scored here" in line]
    assert len(found) > 2
    names(found[0], "predictions", "'theirs'")


# Damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["current", "knn", "probe"])
def test_any_field_of_a_record_may_be_anything(protocol: str, sent: Path, board: Path) -> None:
    """Each is refused in a line or taken for what it says."""
    path = of(sent, protocol=protocol)
    whole = json.loads(path.read_text())
    shutil.rmtree(sent)
    path.parent.mkdir(parents=True)
    mutants = [(at, odd) for at in places(whole) for odd in ODD]
    for at, odd in mutants[:: len(mutants) // 60]:
        path.write_text(json.dumps(spoilt(whole, at, odd)))
        aside = path.rename(path.with_name("mutant.json"))
        assert all("\n" not in line for line in lines(sent, board)), (at, odd)
        aside.rename(path)


# Bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--out", "board"), ("--submit-check", "leave out --out")),
        (("--limit", "50"), ("--submit-check", "leave out --limit")),
        (("--each",), ("--submit-check", "leave out --each")),
        (("--models", "ties"), ("--submit-check", "leave out --models")),
        (("--board", "missing"), ("missing", "expected")),
    ],
)
def test_what_the_check_does_not_take(
    given: tuple[str, ...], told: tuple[str, ...], sent: Path
) -> None:
    kind = BrokenRecord if "--board" in given else BadOption
    refused(["leaderboard", sent, "--submit-check", *given], kind, *told)


def test_a_board_needs_a_folder_or_a_check(sent: Path, board: Path) -> None:
    refused(["leaderboard", sent], BadOption, "leaderboard", "no --out", "expected")
    given = ["leaderboard", sent, "--out", "x", "--board", board]
    refused(given, BadOption, "--board", "expected", "--submit-check")
