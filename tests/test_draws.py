"""A record names what its protocol saw: each prediction is made again of that and of features."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import harness
from harness import Draw, Encoded, Features, Record, Rows, Run, Teacher
from harness.checkpoints.open import open_checkpoint
from harness.data.rows import load_rows, units_of
from harness.evaluation.records import predictions_of
from harness.kinds import kind_of
from harness.passes.features import encode, final_head
from harness.rng import rng
from harness.types import Shots
from tests.conftest import model
from tests.test_probing import TASKS
from tests.toys import known

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* was fitted to fewer rows than features have"),
    pytest.mark.filterwarnings("ignore:.* are cut off (at|or have no token)"),
]

LENGTH = {"tagging": 8}
"""Six words: some are cut off."""
PROTOCOLS = (
    "knn",
    "knn:rule=centroid",
    "linear-probe",
    "fresh-head",
    "ft-classifier:epochs=2,learning_rate=0.01",
    "probe:transform=scaling",
    "surgery:steps=20,learning_rate=0.1,rank=2",
)
ON_TEST = tuple(
    f"{one}{',' if ':' in one else ':'}rows=test" for one in PROTOCOLS if "knn" not in one
)[2:]
_known = known(*TASKS.values(), scope="module")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and an expert of each kind, of which one has learned nothing of the other."""
    root = tmp_path_factory.mktemp("draws")
    for kind, task in TASKS.items():
        unit: Any = "word" if kind == "tagging" else "row"
        sizes = {"initializer_range": 0.5, "unit": unit}
        if kind == "multilabel":
            sizes["problem_type"] = "multi_label_classification"
        for seed, name in ((1, kind), (2, f"{kind}-merged")):
            folder = model(root / name, list(task.labels), seed=seed, **sizes)
        (root / kind / "expert.json").write_text(json.dumps({"tasks": [task.name]}))
        assert not (folder / "expert.json").exists()
    return root


def evaluated(
    room: Path, kind: str, out: Path, *protocols: str, **values: Any
) -> Iterator[tuple[Record, Mapping[str, Any]]]:
    """Records of the model, with its predictions by draw."""
    asked: dict[str, Any] = {"shots": (1, 3, "all"), "draws": 2, "seed": 4, **values}
    records = harness.evaluate(
        Run(
            model=str(room / f"{kind}-merged"),
            tasks=(TASKS[kind].name,),
            experts=(str(room / kind),),
            protocols=tuple(map(harness.parse_choice, protocols)),
            output=str(out),
            max_length=LENGTH.get(kind, 24),
            device="cpu",
            **asked,
        )
    )
    for record in records:
        if record.role == "merged":
            table = pq.read_table(predictions_of(record, out)).to_pydict()
            yield record, {name: np.array(one, dtype=float) for name, one in table.items()}


# What a reader of docs/records.md does -------------------------------------------------------


def groups_of(rows: Rows) -> list[list[int]]:
    return [one.tolist() for one in kind_of(rows.task).groups(rows).values()]


def by_class(record: Mapping[str, Any], rows: Rows, shots: Shots, seed: int) -> list[list[int]]:
    """What was drawn of each class."""
    groups, task = groups_of(rows), rows.task
    lists = record["adaptation"]["drawn"].get(str(seed))
    if record["settings"].get("stratified") is False:
        if shots == "all":
            members = sorted({unit for group in groups for unit in group})
            order = rng(seed, "fewshot", task.name).permutation(members).tolist()
        else:
            order = lists[0][: shots * len(groups)]
        return [order]
    if shots == "all":
        return [
            rng(seed, "fewshot", task.name, place).permutation(members).tolist()
            for place, members in enumerate(groups)
        ]
    times = [shots] * len(groups)
    if task.kind == "tagging":
        times[task.labels.index("O")] *= record["options"].get("o_anchors", 1)
    return [part[:count] for part, count in zip(lists, times, strict=True)]


def draw_of(record: Mapping[str, Any], rows: Rows, shots: Shots, seed: int) -> Draw:
    """A draw, of units of the split."""
    saw, kind = record["adaptation"], kind_of(rows.task)
    gone = {*saw["unseen"]}
    reads_labels = record["protocol"] in ("knn", "linear-probe", "fresh-head")
    if kind.unit == "word" and not reads_labels:
        if shots == "all":
            sentences = kind.examples(rows, [], seed, len(rows.labels))
        else:
            numbers = saw["sentences"][str(shots)][str(seed)]
            sentences = [units_of(rows, [number]).tolist() for number in numbers]
        examples = [[unit for unit in one if unit not in gone] for one in sentences]
        return Draw(shots, seed, (), tuple(map(tuple, examples)))
    parts = by_class(record, rows, shots, seed)
    each = dict.fromkeys(unit for part in parts for unit in part)
    if len(parts) == 1:
        parts = [[unit for unit in parts[0] if unit in group] for group in groups_of(rows)]
    kept = tuple(tuple(unit for unit in part if unit not in gone) for part in parts)
    return Draw(shots, seed, kept, tuple((unit,) for unit in each))


def features(folder: Path, rows: Rows, length: int) -> Features:
    checkpoint = open_checkpoint(folder)
    columns = kind_of(rows.task).output_columns(rows.task, checkpoint.labels or (), "here")
    return encode(checkpoint, rows, digest=folder.name, columns=columns, max_length=length)


def again(room: Path, record: Record, train: Rows, test: Rows) -> dict[str, Any]:
    """Predictions of every draw, of what the JSON of a record says and of features."""
    said = json.loads(record.model_dump_json())
    kind, length = train.task.kind, said["settings"]["max_length"]
    merged, expert = room / f"{kind}-merged", room / kind
    pool_rows = test if said["adaptation"]["transductive"] else train
    read = features(merged, test, length)
    pool, taught = (features(folder, pool_rows, length) for folder in (merged, expert))
    columns = list(range(read.logits.shape[1]))
    heads = [final_head(open_checkpoint(folder), columns) for folder in (merged, expert)]
    assert all(heads)
    labels = kind_of(train.task)
    outputs = taught.x.astype(float) @ heads[1].weight.T.astype(float) + heads[1].bias
    if said["adaptation"]["transductive"]:
        gone = {*said["adaptation"]["unseen"]}
        sentences = [units_of(test, [row]).tolist() for row in range(len(test))]
        examples = [[unit for unit in one if unit not in gone] for one in sentences]
        draws = [Draw("all", said["settings"]["seed"], (), tuple(map(tuple, examples)))]
    else:
        draws = [draw_of(said, train, one["shots"], one["seed"]) for one in said["scores"]]
    encoded = Encoded(
        train.task.name, labels, labels.output_count(train.task), read, heads[0], pool,
        tuple(draws), labels.target([outputs]), teachers=(Teacher(taught.x, heads[1]),),
        outside=labels.outside(train.task),
    )  # fmt: skip
    made = harness.PROTOCOLS[said["protocol"]].function(encoded, **said["options"])
    names = ["prediction"]
    if not said["adaptation"]["transductive"]:
        names = [f"shots={one['shots']},seed={one['seed']}" for one in said["scores"]]
    cut = np.ones(len(read.x), dtype=bool) if read.seen is None else read.seen
    unseen = float(labels.outside(train.task) or 0)
    return {
        name: one.values if one.values.ndim > 1 else np.where(cut, one.values, unseen)
        for name, one in zip(names, made, strict=True)
    }


Check = Callable[..., None]


@pytest.fixture
def check(room: Path, tmp_path: Path) -> Check:
    def made_again(kind: str, *protocols: str, **values: Any) -> None:
        train = load_rows(TASKS[kind], "train90", limit=values.get("train_limit"))
        test = load_rows(TASKS[kind], "test")
        found = [*evaluated(room, kind, tmp_path, *protocols, **values)]
        assert len(found) == len(protocols)
        for record, told in found:
            for name, values_again in again(room, record, train, test).items():
                np.testing.assert_allclose(
                    values_again, told[name], rtol=0, atol=2e-4, err_msg=f"{record.protocol} {name}"
                )

    return made_again


@pytest.mark.parametrize("kind", TASKS)
def test_a_prediction_is_made_again_of_the_record_and_features(kind: str, check: Check) -> None:
    check(kind, *PROTOCOLS, *(["knn:o_anchors=2"] if kind == "tagging" else []))


@pytest.mark.parametrize("kind", TASKS)
def test_also_where_labels_choose_nothing(kind: str, check: Check) -> None:
    check(kind, "knn", "linear-probe", PROTOCOLS[4], shots=(1, 3), stratified=False)


@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_also_where_few_training_rows_take_part(kind: str, check: Check) -> None:
    check(kind, *PROTOCOLS, shots=(1, "all"), train_limit=30)


def test_all_shots_are_all_of_the_training_rows_that_take_part(room: Path, tmp_path: Path) -> None:
    """So is what a head of all rows is trained on, and a whole evaluation lies beside it."""
    for limit, wanted in ((30, 30), (None, len(load_rows(TASKS["classification"], "train90")))):
        asked = evaluated(
            room, "classification", tmp_path, "knn", "fresh-head",
            shots=(1, "all"), train_limit=limit,
        )  # fmt: skip
        found = [record for record, _ in asked]
        assert [one.adaptation and one.adaptation.rows for one in found] == [wanted, wanted]
        assert [one.settings.get("train_limit") for one in found] == [limit, limit]


@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_also_of_the_test_rows(kind: str, check: Check) -> None:
    check(kind, *ON_TEST)


def test_records_beside_one_another_say_what_each_protocol_saw(room: Path, tmp_path: Path) -> None:
    """Words of some sentences for those that read labels, whole sentences for those that do not."""
    found = evaluated(room, "tagging", tmp_path, "knn", "ft-classifier:epochs=1", shots=(1,))
    knn, tuned = (record.adaptation for record, _ in found)
    assert knn is not None
    assert tuned is not None
    train = load_rows(TASKS["tagging"], "train90")
    row_of = np.repeat(np.arange(len(train)), kind_of(train.task).unit_counts(train))
    words = {unit for groups in knn.drawn.values() for group in groups for unit in group}
    assert knn.rows == len({row_of[word] for word in words})
    assert knn.sentences == tuned.drawn == {}
    read = {row for rows in tuned.sentences["1"].values() for row in rows}
    assert tuned.rows == len(read)
    assert read != {row_of[word] for word in words}
    cut = {unit for row in read for unit in units_of(train, [row])[6:].tolist()}
    assert set(tuned.unseen) == cut
    assert set(knn.unseen) == {word for word in words if word not in units_seen(train)}


def units_seen(rows: Rows) -> set[int]:
    """The words of rows of which six are read."""
    return {unit for row in range(len(rows)) for unit in units_of(rows, [row])[:6].tolist()}
