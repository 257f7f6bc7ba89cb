"""Shell: a `Record`, the result of one cell <-> a JSON file, written atomically."""

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
from harness.evaluation.packs import SUFFIX, is_pack, unpacked, write_pack
from harness.evaluation.resamples import Resamples, scores_with_shots, with_fewer_resamples
from harness.files import check_values, json_text, parse_json, read_text, write_text
from harness.hashes import digest_of
from harness.types import Scalar, Shots
from harness.values import Frozen

IMAGE_LIBRARY = "pillow"
"""The library that decodes images; `versions` of a record on images has its release."""
Role = Literal["merged", "base", "expert", "single", "ensemble", "ceiling", "reference"]
"""What a model is in an evaluation. `expert`: an expert on its own task; `single`: an expert on a
task other than its own. `ceiling`: has parts for each task, so it is not one model."""


Count = Annotated[int, Field(ge=0, lt=2**53)]
"""A count that is exact as float64, as which a table may hold it."""


class DrawScore(Frozen):
    """The score of the predictions of one draw, or of the only ones if nothing is drawn.

    `parts` has the score by each metric, `facts` the numbers that the protocol reports of its fit.
    """

    value: float
    parts: dict[str, float]
    shots: Annotated[Count, Field(gt=0)] | Literal["all"] | None = None
    seed: int | None = None
    facts: dict[str, float] = Field(default_factory=dict)


class Interval(Frozen):
    """The confidence interval of the mean score over the draws with `shots` shots.

    It covers other test units and other draws; the model and its training are fixed.
    """

    low: float
    high: float
    shots: Shots | None = None
    method: Literal["student"]
    level: float = Field(0.95, gt=0, lt=1)


LabelUse: TypeAlias = Literal[
    "chose the rows", "chose the rows and were read", "were read", "were not read"
]
"""How the labels of the rows that a protocol adapted to were used."""


class Adaptation(Frozen):
    """The data that a protocol adapted to.

    `rows` is the number of rows of `split` that have a unit in any draw. `drawn` has, by the seed
    of a draw, a list for each class (or bin of labels): the rows of the split that the largest
    number of shots took, in the order of the draw, numbered from 0. Fewer shots took the first of
    each list; `all` shots took every row, and are not listed. For tags the lists are of words, by
    tag, numbered through all rows. If labels did not choose the rows, there is one list for all
    classes. A protocol that reads no tags adapts to whole sentences: these are in `sentences`
    instead, by shots and seed, as rows of the split in the order of the draw; `all` shots, not
    listed, took every sentence that has a word. `unseen` are the drawn units, numbered in the
    split, that the model or a teacher did not see: nothing was fitted to them, though `drawn` has
    them. `transductive`: the protocol adapted to the rows that are scored.
    """

    split: str
    rows: Count
    drawn: dict[str, list[list[Count]]] = Field(default_factory=dict)
    sentences: dict[str, dict[str, list[int]]] = Field(default_factory=dict)
    unseen: list[int] = Field(default_factory=list)
    labels: LabelUse
    transductive: bool = False


class Source(Frozen):
    """A base or an expert: where it came from, and the digest of its weights.

    An expert has its task and, if its own folder records them, the seeds of its training and, as
    `training`, a hash of the rows and hyperparameters that it was trained with.
    """

    source: str
    digest: str
    task: str | None = None
    seed: int | None = None
    head_seed: int | None = None
    training: str | None = None


class RecordedStage(Frozen):
    """One method of a merge with all its options."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)


class RecordedRecipe(Frozen):
    """How a merge was made, as its merge.json says.

    `code` is a hash of the code of the plug-ins that made it. `tuned` has the options of the
    merger, or of another method as METHOD.OPTION, that were chosen by scores on rows `tuned_on`.
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
        """All methods in order, each with the name of its stage."""
        by_kind = {"premerge": self.premerge, "merger": [self.merger], "postmerge": self.postmerge}
        return [(kind, stage) for kind, stages in by_kind.items() for stage in stages]


class Record(Frozen):
    """The result of one cell: one model on one task under one protocol, and how to reproduce it.

    A record is written once and never changed; another model, other rows, another setting or role
    give another record (`identity`). `digest` is the hash of the weights, `content` that of all
    that the scores depend on: weights, tokenizer, configuration, order of labels, teachers.
    `heads_of` are the digests of the experts whose heads the base was evaluated under. `family` is
    the architecture, `recipe` how a merge by this harness was made. `unseen` is the number of test
    units that the model did not see: words that were cut off, scored as no entity. `predictions`
    is the hash of the predictions beside the record. `intervals` has an interval for every number
    of shots, `resamples` the scores on resampled test units for every number of shots,
    `loss_resamples` the losses on them, under Current Eval. `majority` is the score of the best
    constant prediction on the same rows. `shown` are the rows that methods of the merge used;
    `transductive` means that the scored rows are among them, so that the score holds for these rows
    alone. Values are between 0 and 1 (or -1 and 1 for correlations); tables multiply them by 100.
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
        """The scores of the draws with `shots` shots (None if nothing is drawn)."""
        return scores_with_shots(self.scores, shots)

    @property
    def shots(self) -> list[Shots | None]:
        """The numbers of shots that were drawn, ascending; [None] if nothing is drawn."""
        return sorted({score.shots for score in self.scores}, key=amount)


LONGEST = 160
"""The most bytes of a name from `safe_name`; file systems allow 255 in one component of a path."""
IDENTITY = (
    "digest", "content", "task", "protocol", "options", "settings", "labels", "teachers", "metrics",
    "role", "method", "head", "preset",
)  # fmt: skip


ADDED_OPTIONS: Mapping[str, Mapping[str, Scalar]] = {
    "knn": {"rule": "mean", "neighbours": 5, "o_anchors": 1, "features": "last_linear"},
    # at this tolerance fits ended near the optimum, at a point that depends on rounding
    "linear-probe": {"features": "last_linear", "tolerance": 1e-4},
    "probe": {"distance": "squared"},
    "ft-classifier": {"o_weight": 1.0, "rows": "shots", "kl": "forward"},
}
"""Options that a protocol got after its first records, with the values that these were made with:
`identity` leaves such a value out, so that old records keep their identity."""


def identity(values: Mapping[str, Any]) -> str:
    """A hash of what determines the scores of a record, given its fields.

    Names and locations are not part of it: the same rows, base and experts may lie elsewhere.
    """
    inputs = {key: values[key] for key in IDENTITY}
    before = ADDED_OPTIONS.get(values["protocol"], {})
    inputs["options"] = {k: v for k, v in values["options"].items() if (k, v) not in before.items()}
    inputs["dataset"] = values["dataset"].get("digest")
    inputs["base"] = values["base"] and values["base"]["digest"]
    inputs["experts"] = [expert["digest"] for expert in values["experts"]]
    return digest_of(inputs)


def safe_name(name: str) -> str:
    """A name as one component of a path: not hidden, not `..`, without separators, not too long."""
    clean = re.sub(r"[^\w.,@=+\[\]-]+", "-", name).lstrip(".") or "-"
    if len(clean.encode()) <= LONGEST:
        return clean
    return f"{clean[: LONGEST // 4]}-{xxhash.xxh3_64_hexdigest(name.encode())}"


def record_path(out: Path, values: Mapping[str, Any], unusual: Mapping[str, Any]) -> Path:
    """`<out>/<model>/<task@split>/<protocol>-<identity, 12>.json`, a function of the content alone.

    The `unusual` settings, those other than the defaults, follow the protocol for human readers.
    """
    extra = "".join(f",{key}={unusual[key]}" for key in sorted(unusual))
    name = f"{safe_name(values['protocol'] + extra)}-{identity(values)[:12]}.json"
    return out / safe_name(values["model"]) / str(values["task"]) / name


def identity_of(record: Record) -> str:
    """The `identity` of a record."""
    return identity(
        record.model_dump(mode="json", include={*IDENTITY, "dataset", "base", "experts"})
    )


def written_path(record: Record, out: Path) -> Path:
    """The path of a record that was written below `out`."""
    prefix = identity_of(record)[:12]
    return next((out / safe_name(record.model) / record.task).glob(f"*-{prefix}.json"))


def predictions_of(record: Record, out: Path) -> Path:
    """The path of the predictions beside a record that was written below `out`."""
    return written_path(record, out).with_suffix(".parquet")


def write_record(path: Path, record: Record) -> None:
    """Write a record, atomically."""
    write_text(path, _text_of(record))


def _text_of(record: Record) -> str:
    return json_text(record.model_dump(mode="json"), indent=1, sort_keys=True)


# Reading -----------------------------------------------------------------------------------

NAMED = re.compile(r"-([0-9a-f]{12})\.json\Z")
"""How the file name of a record ends: with the first 12 digits of its `identity`."""


def read_record(path: Path) -> Record:
    """The record in a file. Raises BrokenRecord naming the file and what is wrong with it."""
    return parse_record(read_text(path, "a record", error=BrokenRecord), path)


def parse_record(text: str | bytes, path: Path) -> Record:
    """The record in a text that was read from `path`, a file or PACK/NAME. See `read_record`."""
    try:
        record = Record.model_validate_json(text, strict=True)  # a third of the time of json
    except ValidationError as error:
        decoded = text if isinstance(text, str) else text.decode("utf-8", "replace")
        parse_json(decoded, str(path), "a record", error=BrokenRecord)  # raises if it is no JSON
        raise _broken(error, path) from error
    free = {"options": record.options, "settings": record.settings, "of": record.dataset}
    if record.recipe is not None:
        free["recipe"] = record.recipe.model_dump(mode="json")
    check_values(free, str(path), "a record", error=BrokenRecord)
    check_record(record, str(path))
    if (named := NAMED.search(path.name)) and not identity_of(record).startswith(named[1]):
        raise BrokenRecord(
            f"{path} does not match the hash in its name; remove it, and evaluate again"
        )
    return record


def _broken(error: ValidationError, path: Path) -> BrokenRecord:
    first = error.errors()[0]
    # for a union, pydantic adds the member to the location: constrained-int
    field = ".".join(str(part) for part in first["loc"] if str(part).replace("_", "a").isalnum())
    fault = f"field '{field}': {first['msg']}"
    if first["type"] == "extra_forbidden":
        fault = f"field '{field}' is unknown to this version; read it with the one that wrote it"
    if first["loc"] == (field,) and first["type"] == "missing":  # a JSON of another program
        return BrokenRecord(
            f"{path} is not a record of `harness evaluate`, nor a folder of records: {fault}"
        )
    return BrokenRecord(f"{path}: {fault}")


def each_record(places: Iterable[str | Path]) -> Iterator[tuple[Path, Record]]:
    """All records in files, packs and below folders, in a stable order, each once, with its path.

    The path of a record in a pack is `PACK/NAME`. Files that are no records are left out, with one
    warning. Raises BrokenRecord if a place does not exist, if no place has a record, and if two
    records of one identity have different scores.
    """
    by_identity: dict[str, tuple[Path, tuple[float, ...]]] = {}
    yielded: set[tuple[str, str, tuple[str, ...]]] = set()
    others: list[Path] = []
    for path, packed in files_in(places, others):
        record = read_record(path) if packed is None else parse_record(packed, path)
        values = tuple(round(score.value, 6) for score in record.scores)
        key = identity_of(record)
        other, theirs = by_identity.setdefault(key, (path, values))
        if values != theirs:
            raise BrokenRecord(f"{path} and {other} have different scores of one cell; keep one")
        # a file and a pack may hold the same record; one cell counts as two rows of a table if it
        # has two names, or options that were tuned in one merge and given in the other
        cell = key, record.model, (*record.recipe.tuned,) if record.recipe else ()
        if cell not in yielded:
            yielded.add(cell)
            yield path, record
    _tell_of_others(others, none=not by_identity)


def _tell_of_others(others: Sequence[Path], *, none: bool) -> None:
    """Warn of files that are no records. Raises BrokenRecord if there is no record at all."""
    if others and none:
        raise BrokenRecord(f"{others[0]} holds no records; expected JSON files that evaluate wrote")
    if others:
        names = ", ".join(map(str, others[:3])) + (", ..." if len(others) > 3 else "")
        warnings.warn(f"files that are no records are left out: {names}", stacklevel=4)


def files_in(
    places: Iterable[str | Path], others: list[Path]
) -> Iterator[tuple[Path, bytes | None]]:
    """The path of every record in the places, each once; of one in a pack, with its content.

    Files that are no records, and folders and packs without files, are added to `others`.
    """
    seen: set[str] = set()
    real = cache(os.path.realpath)
    for place in map(Path, places):
        if not os.path.exists(place):
            raise BrokenRecord(f"{place} does not exist; expected a record or a folder of them")
        files = _below(place) if place.is_dir() else [str(place)]
        for file in files:
            folder, name = os.path.split(file)
            resolved = os.path.realpath(file) if os.path.islink(file) else f"{real(folder)}/{name}"
            path = Path(file)
            if resolved in seen:
                continue
            seen.add(resolved)
            if is_pack(path):
                inside = None
                for inside, content in unpacked(path):
                    yield path / inside, content
                if inside is None:
                    others.append(path)
            elif _is_meant(path):
                yield path, None
            else:
                others.append(path)
        if not files:
            others.append(place)


FIRST_KEY = "adaptation"
"""The first key of the JSON of every record, which is there even if the file was cut off. Other
files, as the vocabulary of a tokenizer, may contain the word."""


def _is_meant(path: Path) -> bool:
    """Whether a file is a record, even a damaged one, by its name or by its content."""
    if NAMED.search(path.name):
        return True
    if path.suffix != ".json" or not path.is_file():  # opening a pipe would block
        return False
    try:
        content = path.read_bytes()
    except OSError:
        return True  # so that reading it raises the error
    if f'"{FIRST_KEY}"'.encode() not in content:
        return False
    try:
        text = content.decode("utf-8", "replace")
        return FIRST_KEY in parse_json(text, str(path), "a record", error=BrokenRecord)
    except BrokenRecord:
        return True


def _below(folder: Path) -> list[str]:
    """The JSON files and packs in a folder and below it, sorted by the parts of their paths."""
    files = [
        os.path.join(inside, name)
        for inside, _, names in os.walk(folder)
        for name in names
        if name.endswith(".json")
        # the Parquet file beside a record has its predictions
        or (f"{name.removesuffix(SUFFIX)}.json" not in names and is_pack(Path(inside, name)))
    ]
    return sorted(files, key=lambda file: file.split(os.sep))


FEWEST_RESAMPLES = 200
"""The fewest resamples that a pack may keep: the standard error of an end of an interval is then a
twentieth of its half-width."""


def pack(places: Iterable[str | Path], out: Path, resamples: int | None = None) -> int:
    """Write the records in folders and packs to one pack, atomically; return how many there are.

    Each is named by its path relative to its folder. It is copied byte for byte or, if `resamples`
    is given, keeps the first `resamples` of its resamples. Raises BrokenRecord for a record that
    cannot be read and for two of one name that differ, BadOption for fewer than `FEWEST_RESAMPLES`.
    """
    if resamples is not None and resamples < FEWEST_RESAMPLES:
        raise BadOption(f"resamples is {resamples}, expected {FEWEST_RESAMPLES} or more")

    paths = [*map(Path, places)]

    def files() -> Iterator[tuple[str, bytes]]:
        others: list[Path] = []
        none = True
        for path, packed in files_in(paths, others):
            none = False
            place = next(candidate for candidate in paths if candidate in (path, *path.parents))
            content = path.read_bytes() if packed is None else packed
            record = parse_record(content, path)
            if resamples is not None:
                content = _text_of(with_fewer_resamples(record, resamples)).encode()
            yield (path.name if path == place else path.relative_to(place).as_posix()), content
        _tell_of_others(others, none=none)

    return write_pack(out, files())
