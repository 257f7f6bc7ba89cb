"""Shell: Record <-> one atomically written JSON file."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import xxhash
from pydantic import Field, ValidationError

from harness.data.shots import amount
from harness.errors import BadOption, BrokenRecord
from harness.evaluation.faults import check_record
from harness.evaluation.packs import PREDICTED, SUFFIX, is_pack, unpacked, write_pack
from harness.evaluation.resamples import Resamples, shortened, values_of
from harness.files import check_values, json_text, parse_json, read_text, write_text
from harness.hashes import digest_of
from harness.types import Scalar, Shots
from harness.values import Frozen

DECODER = "pillow"
"""What decodes images: a record of those has its version."""
Role = Literal["merged", "base", "expert", "single", "ensemble", "ceiling", "reference"]
"""An `expert` is read on its own task, a `single` is one read on a task of another. A `ceiling` has
parts of its own for each task, and is not one model."""


Count = Annotated[int, Field(ge=0, lt=2**53)]
"""Beyond, counts are no longer told apart in a table."""


class DrawScore(Frozen):
    """The score of one prediction: of one draw, or the only one where nothing is drawn.

    `facts` are what the protocol tells of the fit behind it.
    """

    value: float
    parts: dict[str, float]
    shots: Annotated[Count, Field(gt=0)] | Literal["all"] | None = None
    seed: int | None = None
    facts: dict[str, float] = Field(default_factory=dict)


class Interval(Frozen):
    """Where the mean over the draws with so many shots would lie on other test units and draws, at
    `level`, with training and model held."""

    low: float
    high: float
    shots: Shots | None = None
    method: Literal["student"]
    level: float = Field(0.95, gt=0, lt=1)


Saw: TypeAlias = Literal[
    "chose the rows", "chose the rows and were read", "were read", "were not read"
]
"""What the labels of the rows that a protocol adapted to did."""


class Adaptation(Frozen):
    """Which data a protocol saw besides the rows it is scored on.

    `rows` are how many rows of the split all its draws have units of. `drawn` has, for the seed of
    each draw, the rows of the split by class (or bin of labels) that the largest number of shots
    took, counted from 0; fewer shots took the first of them, and `all` took every one. Of a
    tagging, it has the words by tag, counted through all rows. Where labels chose nothing, it has
    one list of all classes. A protocol that reads no label of a tagging saw whole sentences: these
    are in `sentences` instead, by shots and seed, as rows of the split, in their order; `all` are
    every one that has a word. `unseen` are units of the split among those that the model, or a
    teacher, did not see, which are left out of all of these. `transductive`: the rows that it is
    scored on are those that it saw.
    """

    split: str
    rows: Count
    drawn: dict[str, list[list[Count]]] = Field(default_factory=dict)
    sentences: dict[str, dict[str, list[int]]] = Field(default_factory=dict)
    unseen: list[int] = Field(default_factory=list)
    labels: Saw
    transductive: bool = False


class Source(Frozen):
    """Where something came from and what it held.

    An expert has its task and, where its own record says so, the seeds of its training, and a hash
    of all else that it was trained with.
    """

    source: str
    digest: str
    task: str | None = None
    seed: int | None = None
    head_seed: int | None = None
    training: str | None = None


class RecordedStage(Frozen):
    """A method of a merge with all its options."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)


class RecordedRecipe(Frozen):
    """How a merge was made, as its merge.json says.

    `code` is a hash of that of plug-ins that made it. `tuned` are options of the merger, or
    METHOD.OPTION, that a search chose by scores on the rows `tuned_on`.
    """

    premerge: tuple[RecordedStage, ...] = ()
    merger: RecordedStage
    postmerge: tuple[RecordedStage, ...] = ()
    heads: str = ""
    seed: int = 0
    preset: str | None = None
    code: str = ""
    tuned: dict[str, bool | float | str] = Field(default_factory=dict)
    tuned_on: tuple[str, ...] = ()

    @property
    def stages(self) -> list[tuple[str, RecordedStage]]:
        """All methods in order, each with its kind."""
        said = {"premerge": self.premerge, "merger": [self.merger], "postmerge": self.postmerge}
        return [(kind, stage) for kind, stages in said.items() for stage in stages]


class Record(Frozen):
    """One model on one task under one protocol, with everything needed to make it again.

    A record is written once, for what `identity` says, and never changed: another model, other
    rows, another setting or role is another record. `digest` is that of the weights, `content` that
    of all that the scores depend on besides: tokenizer, configuration, order of labels, teachers.
    `heads_of` are the experts whose heads a base has, by digest.
    `family` is that of the architecture, `recipe` how a merge of ours was made. `unseen` are the
    units that the model did not see: words that were cut off, scored as no entity. `predictions` is
    the digest of those beside it. `intervals` has one for every number of shots, and so has
    `resamples`: the scores on resampled test units; `loss_resamples` those of the loss, under
    Current Eval. `majority` the score of the best constant prediction on the same rows. `shown` are
    the rows that methods of a merge used; `transductive` means that the scored rows are among them,
    so such a score needs these very rows. Values are between 0 and 1 (or -1 and 1 for
    correlations); tables multiply them by 100.
    """

    schema_version: Literal[5] = 5
    model: str
    role: Role
    method: str
    family: str | None = None
    recipe: RecordedRecipe | None = None
    digest: str
    content: str = ""
    task: str
    protocol: str
    options: dict[str, Any]
    settings: dict[str, Any]
    metrics: tuple[str, ...] = Field(min_length=1)
    rows: Count = Field(gt=0)
    scores: tuple[DrawScore, ...] = Field(min_length=1)
    intervals: tuple[Interval, ...] = ()
    resamples: tuple[Resamples, ...] = ()
    loss_resamples: Resamples | None = None
    majority: DrawScore | None = None
    unseen: Count = 0
    predictions: str | None = None
    adaptation: Adaptation | None
    dataset: dict[str, Any]
    head: str
    labels: str
    preset: str | None = None
    base: Source | None
    experts: tuple[Source, ...]
    teachers: tuple[str, ...]
    heads_of: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    transductive: bool = False
    versions: dict[str, str]

    def values(self, shots: Shots | None) -> list[float]:
        """Values of the draws with so many shots (None where nothing is drawn)."""
        return values_of(self.scores, shots)

    @property
    def shots(self) -> list[Shots | None]:
        """The numbers of shots that were drawn, ascending; [None] where nothing is drawn."""
        return sorted({score.shots for score in self.scores}, key=amount)


LONGEST = 160
"""Bytes of a part of a path: file systems have room for 255."""
IDENTITY = (
    "digest", "content", "task", "protocol", "options", "settings", "labels", "teachers", "metrics",
    "role", "method", "head", "preset",
)  # fmt: skip


LATER: Mapping[str, Mapping[str, Scalar]] = {
    "knn": {"rule": "mean", "neighbours": 5, "o_anchors": 1, "features": "last_linear"},
    # which the fit then ended at: the same point but for what rounding moves
    "linear-probe": {"features": "last_linear", "tolerance": 1e-4},
    "probe": {"distance": "squared"},
    "ft-classifier": {"o_weight": 1.0, "rows": "shots", "kl": "forward"},
}
"""Options that came when there were records already, with what those are of."""


def identity(values: Mapping[str, Any]) -> str:
    """A hash of what a record is of: two that share it are the same, scores and all.

    Not part of it are names and places: the same rows, base and experts may be found elsewhere.
    """
    known = {key: values[key] for key in IDENTITY}
    before = LATER.get(values["protocol"], {})
    known["options"] = {k: v for k, v in values["options"].items() if (k, v) not in before.items()}
    known["dataset"] = values["dataset"].get("digest")
    known["base"] = values["base"] and values["base"]["digest"]
    known["experts"] = [expert["digest"] for expert in values["experts"]]
    return digest_of(known)


def safe(name: str) -> str:
    """A name as one part of a path, which is neither hidden, nor a way out, nor too long."""
    kept = re.sub(r"[^\w.,@=+\[\]-]+", "-", name).lstrip(".") or "-"
    if len(kept.encode()) <= LONGEST:
        return kept
    return f"{kept[: LONGEST // 4]}-{xxhash.xxh3_64_hexdigest(name.encode())}"


def record_path(out: Path, values: Mapping[str, Any], unusual: Mapping[str, Any]) -> Path:
    """`<out>/<model>/<task@split>/<protocol>-<identity, 12>.json`, a function of the content alone.

    What was asked beside the defaults follows the protocol, for who reads the names.
    """
    extra = "".join(f",{key}={unusual[key]}" for key in sorted(unusual))
    name = f"{safe(values['protocol'] + extra)}-{identity(values)[:12]}.json"
    return out / safe(values["model"]) / str(values["task"]) / name


def identity_of(record: Record) -> str:
    """The `identity` of a record."""
    return identity(
        record.model_dump(mode="json", include={*IDENTITY, "dataset", "base", "experts"})
    )


def path_of(record: Record, out: Path) -> Path:
    """Where a record lies that was written below `out`."""
    called = identity_of(record)[:12]
    return next((out / safe(record.model) / record.task).glob(f"*-{called}.json"))


def predictions_of(record: Record, out: Path) -> Path:
    """The predictions beside a record that was written below `out`."""
    return path_of(record, out).with_suffix(".parquet")


def write_record(path: Path, record: Record) -> None:
    """Write a record, atomically."""
    write_text(path, _text_of(record))


def _text_of(record: Record) -> str:
    return json_text(record.model_dump(mode="json"), indent=1, sort_keys=True)


# Reading -----------------------------------------------------------------------------------

NAMED = re.compile(r"-([0-9a-f]{12})\.json\Z")
"""How the name of a record ends: with what it is of."""


def read_record(path: Path) -> Record:
    """The record in a file. Raises BrokenRecord naming the file and what is wrong with it."""
    return record_in(read_text(path, "a record", error=BrokenRecord), path)


def record_in(text: str | bytes, path: Path) -> Record:
    """As `read_record`, of a text that lies in a file, or in a pack under its name there."""
    try:
        record = Record.model_validate_json(text, strict=True)  # a third of the time of json
    except ValidationError as error:
        said = text if isinstance(text, str) else text.decode("utf-8", "replace")
        parse_json(said, str(path), "a record", error=BrokenRecord)  # what is no JSON says so
        raise _broken(error, path) from error
    free = {"options": record.options, "settings": record.settings, "of": record.dataset}
    if record.recipe is not None:
        free["recipe"] = record.recipe.model_dump(mode="json")
    check_values(free, str(path), "a record", error=BrokenRecord)
    check_record(record, str(path))
    if (named := NAMED.search(path.name)) and not identity_of(record).startswith(named[1]):
        raise BrokenRecord(f"{path} does not match the hash in its name; remove it, and evaluate")
    return record


def _broken(error: ValidationError, path: Path) -> BrokenRecord:
    first = error.errors()[0]
    # of a union pydantic names the member as well: constrained-int
    field = ".".join(str(one) for one in first["loc"] if str(one).replace("_", "a").isalnum())
    fault = f"field '{field}': {first['msg']}"
    if first["loc"] == (field,) and first["type"] == "missing":  # some other program's file
        return BrokenRecord(f"{path} is not a record of this project, or a folder of such: {fault}")
    return BrokenRecord(f"{path}: {fault}")


def each_record(places: Iterable[str | Path]) -> Iterator[tuple[Path, Record]]:
    """All records in files, packs and below folders, in a stable order, each once, with its file.

    A record of a pack lies in `PACK/NAME`. What lies there and is no record is left out, and named
    once. Raises BrokenRecord for a place that does not exist or holds none, and for two of the same
    that say other scores.
    """
    known: dict[str, tuple[Path, tuple[float, ...]]] = {}
    named: set[tuple[str, str, tuple[str, ...]]] = set()
    others: list[Path] = []
    for path, packed in files_in(places, others):
        record = read_record(path) if packed is None else record_in(packed, path)
        values = tuple(round(one.value, 6) for one in record.scores)
        called = identity_of(record)
        other, theirs = known.setdefault(called, (path, values))
        if values != theirs:
            raise BrokenRecord(f"{path} and {other} are one cell with different scores: keep one")
        # once where it lies in a pack, too; a merge may be that of another row, with tuned options
        cell = called, record.model, (*record.recipe.tuned,) if record.recipe else ()
        if cell not in named:
            named.add(cell)
            yield path, record
    _tell_of_others(others, none=not known)


def _tell_of_others(others: Sequence[Path], *, none: bool) -> None:
    """Warn of what is no record. Raises BrokenRecord where there is none at all."""
    if others and none:
        raise BrokenRecord(f"{others[0]} holds no records; expected JSON files that evaluate wrote")
    if others:
        shown = ", ".join(map(str, others[:3])) + (", ..." if len(others) > 3 else "")
        warnings.warn(f"no records, and left out: {shown}", stacklevel=4)


def files_in(
    places: Iterable[str | Path], others: list[Path]
) -> Iterator[tuple[Path, bytes | None]]:
    """The files of records in places, each once: those of a pack with what they hold.

    What lies there and is none is added to `others`.
    """
    seen: set[str] = set()
    real = cache(os.path.realpath)
    for place in map(Path, places):
        if not os.path.exists(place):
            raise BrokenRecord(f"{place} does not exist; expected a record or a folder of them")
        files = _below(place) if place.is_dir() else [str(place)]
        for file in files:
            folder, name = os.path.split(file)
            whole = os.path.realpath(file) if os.path.islink(file) else f"{real(folder)}/{name}"
            path = Path(file)
            if whole in seen:
                continue
            seen.add(whole)
            if is_pack(path):
                yield from ((path / inside, content) for inside, content in unpacked(path))
            elif _is_meant(path):
                yield path, None
            elif path.suffix != SUFFIX or path == place:
                others.append(path)
        if not files:
            others.append(place)


FIRST_KEY = "adaptation"
"""What every record begins with, also one of which only a part is left; a tokenizer may know it."""


def _is_meant(path: Path) -> bool:
    """Whether a file is a record, be it a spoilt one: by its name, or by what it holds."""
    if NAMED.search(path.name):
        return True
    if path.suffix != ".json" or not path.is_file():  # whoever opens a pipe waits for its end
        return False
    try:
        content = path.read_bytes()
    except OSError:
        return True  # and then it cannot be read
    if f'"{FIRST_KEY}"'.encode() not in content:
        return False
    try:
        text = content.decode("utf-8", "replace")
        return FIRST_KEY in parse_json(text, str(path), "a record", error=BrokenRecord)
    except BrokenRecord:
        return True


def _below(folder: Path) -> list[str]:
    """The records of a folder and those below it, and packs, sorted by the parts of their paths."""
    files = [
        os.path.join(inside, name)
        for inside, _, names in os.walk(folder)
        for name in names
        if name.endswith(".json") or (name.endswith(SUFFIX) and _may_be_pack(name, names))
    ]
    return sorted(files, key=lambda file: file.split(os.sep))


def _may_be_pack(name: str, names: Sequence[str]) -> bool:
    """Whether a Parquet file of a folder is none of predictions, which lie beside their record."""
    return not PREDICTED.search(name) and f"{name.removesuffix(SUFFIX)}.json" not in names


FEWEST_RESAMPLES = 200
"""That a pack keeps: an end of an interval is then off by a twentieth of its half, at 1 sd."""


def pack(places: Iterable[str | Path], out: Path, resamples: int | None = None) -> int:
    """Write the records in folders and packs to one pack, atomically; how many they are.

    Each is called by its way from its folder, and is as it was byte for byte, or has the first
    `resamples` alone. Raises BrokenRecord for one that cannot be read, and where two of one name
    differ, and BadOption for fewer than `FEWEST_RESAMPLES`.
    """
    if resamples is not None and resamples < FEWEST_RESAMPLES:
        raise BadOption(f"resamples is {resamples}, expected {FEWEST_RESAMPLES} or more")

    known = [*map(Path, places)]

    def files() -> Iterator[tuple[str, bytes]]:
        others: list[Path] = []
        none = True
        for path, packed in files_in(known, others):
            none = False
            place = next(one for one in known if one in (path, *path.parents))
            content = path.read_bytes() if packed is None else packed
            record = record_in(content, path)
            if resamples is not None:
                content = _text_of(shortened(record, resamples)).encode()
            yield (path.name if path == place else path.relative_to(place).as_posix()), content
        _tell_of_others(others, none=none)

    return write_pack(out, files())
