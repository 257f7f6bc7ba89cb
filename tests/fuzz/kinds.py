"""What is spoiled, how, and which commands read it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import SimpleNamespace

from tests.fuzz import formats as f
from tests.fuzz import mutations as m
from tests.fuzz.shelf import BASELINE

OUT = "out"
"""The folder in which every command of a mutant writes, and nowhere else."""


@dataclass(frozen=True)
class Command:
    """Arguments of the command line, and what stands below OUT when it has done its work.

    `done` are the statuses that say so. `before` is called first, in the same process.
    """

    argv: tuple[str, ...]
    complete: Callable[[Path], bool]
    done: tuple[int, ...] = (0,)
    before: Callable[[], None] | None = None


@dataclass(frozen=True)
class Door:
    """A file and a command that reads it."""

    file: str
    command: Command


@dataclass(frozen=True)
class Kind:
    """A kind of file: how it is spoiled beside what spoils any, and by which doors it is read."""

    spoils: Sequence[m.Spoil]
    doors: Sequence[Door]


@dataclass(frozen=True)
class Mutant:
    """One spoiled file and the command that is to read it."""

    number: int
    kind: str
    how: str
    door: Door
    spoil: Callable[[Path], None]

    def __str__(self) -> str:
        return f"{self.number:5} {self.kind}, {self.how}: {' '.join(self.door.command.argv)}"


# Commands ----------------------------------------------------------------------------------


def _folder(*files: str) -> Callable[[Path], bool]:
    return lambda out: all((out / "made" / name).is_file() for name in files)


def _records(out: Path) -> bool:
    """Every record reads and has its predictions beside it."""
    records = sorted((out / "made").rglob("*.json"))
    predictions = sorted((out / "made").rglob("*.parquet"))
    for record in records:
        json.loads(record.read_text(encoding="utf-8"))
    return bool(records) and [p.with_suffix(".json") for p in predictions] == records


def _to(out: str, *argv: str) -> tuple[str, ...]:
    return (*argv, out, f"{OUT}/made")


MERGED = _folder("config.json", "model.safetensors", "merge.json", "README.md")
DATA = ("--data-dir", "data")
FEW = ("--shots", "1", "--draws", "1", "--output-path", f"{OUT}/made")


def merge(*argv: str) -> Command:
    return Command(_to("--out", "merge", *argv), MERGED)


def evaluate(model: str, *argv: str, data: str = "data") -> Command:
    rest = argv or ("--protocols", "current,knn")
    return Command(("evaluate", "--model", model, "--data-dir", data, *FEW, *rest), _records)


def tuned(*argv: str, data: str = "data", task: str = "glue/rte") -> Command:
    small = ("--epochs", "1", "--limit", "12", "--batch-size", "4", "--data-dir", data)
    asked = ("finetune", "--task", task, *small, *argv)
    return Command(_to("--out", *asked), _folder("expert.json", "model.safetensors", "config.json"))


AVERAGE = merge("a", "b")
TIES = merge("a", "b", "--base", "base", "--merger", "ties")
KEEP = merge("a", "c", "--base", "base", "--merger", "task_arithmetic", "--heads", "keep")
REGMEAN = merge(
    "a", "b", "--merger", "regmean:examples=8", "--statistics", "a.stats.safetensors,"
    "b.stats.safetensors", *DATA
)  # fmt: skip
SEARCH = merge(
    "a", "b", "--base", "base", "--merger", "task_arithmetic", "--tune", "scale=0.5:1:0.5", *DATA
)
EXPERT = evaluate("a")
MERGE = evaluate("merged")
WHOLE = evaluate("merged", "--protocols", "current,knn,ft-classifier:epochs=1", "--base", "base")
KEPT = evaluate("kept")
SEVERAL = evaluate("several")
LORA = evaluate("lora", "--tasks", "glue/rte", "--protocols", "current")
LORAS = merge("lora", "a", "--tasks", "glue/rte")
PAIRS = evaluate("a", "--tasks", "own/pairs.yaml", "--protocols", "current,knn")
TAGGED = evaluate("tagger", "--tasks", "own/tags.yaml", "--protocols", "current,knn")
KIT = evaluate("kit", "--tasks", "glue/rte", "--protocols", "current")
BESIDE = evaluate("a", "--references", "several", "--tasks", "glue/rte", "--protocols", "current")
TUNED = tuned("--base", "base")
STATISTICS = Command(
    (
        *("statistics", "a", "--task", "glue/rte", "--merger", "regmean:examples=8", *DATA),
        *("--out", f"{OUT}/made.safetensors"),
    ),
    lambda out: (out / "made.safetensors").is_file(),
)
FISHER = Command(
    tuple(part.replace("regmean", "fisher") for part in STATISTICS.argv), STATISTICS.complete
)
BOARD = Command(_to("--out", "leaderboard", "records"), _folder("board.md", "board.csv"))


def _measured() -> None:
    """A merger that has every property, so that only its recorded baseline is in doubt."""
    from harness.checking import battery, quality

    recorded = quality.read_baseline(BASELINE)
    vars(quality)["measure"] = lambda *_: recorded
    vars(battery)["battery"] = lambda *_: SimpleNamespace(properties=())


CHECK = Command(
    ("check", "merger", "average", "--baselines", "baselines"), lambda _: True, (0, 1), _measured
)
RECIPE, KIT_RECIPE = merge("recipe.yaml"), merge("kit.yaml")
STUDY = Command(
    _to("--out", "study", "run", "study.yaml", "--device", "cpu", *DATA),
    lambda out: (out / "made/plans").is_dir() and (out / "made/outcomes").is_dir(),
    done=(0, 3),
)
PLANNED = Command(
    _to("--out", "study", "plan", "study.yaml", *DATA), lambda out: not (out / "made").exists()
)
READS = {kind: evaluate("a", data=kind) for kind in ("data", "data-jsonl", "data-csv")}
PAIRS_TRAIN, TAGS_TRAIN = (
    tuned("--base", "base", task=f"own/{one}.yaml") for one in ("pairs", "tags")
)
TRAINS = {kind: tuned("--base", "base", data=kind) for kind in READS}


# Kinds -------------------------------------------------------------------------------------


def _doors(*doors: tuple[str, Sequence[Command]]) -> tuple[Door, ...]:
    return tuple(Door(file, command) for file, commands in doors for command in commands)


def _rows(kind: str, suffix: str) -> tuple[Door, ...]:
    place = f"{kind}/glue/rte"
    return _doors(
        (f"{place}/validation.{suffix}", [READS[kind]] * 3),
        (f"{place}/train.{suffix}", [READS[kind], READS[kind], TRAINS[kind]]),
    )


EXPERT_READ = (AVERAGE, AVERAGE, TIES, EXPERT, EXPERT, MERGE, STATISTICS, FISHER)
TOKENIZER_READ = (AVERAGE, EXPERT, EXPERT, MERGE, STATISTICS, FISHER)

KINDS: Mapping[str, Kind] = {
    "config.json": Kind(
        (*m.JSON, f.config_field, f.config_field, f.config_field),
        _doors(("a/config.json", EXPERT_READ), ("base/config.json", (TIES, WHOLE, TUNED)),
               ("merged/config.json", (MERGE,))),
    ),
    "heads/config.json": Kind(
        (*m.JSON, f.config_field, f.config_field),
        _doors(("several/heads/glue/rte/config.json", (SEVERAL, SEVERAL, BESIDE)),
               ("kept/heads/glue/rte/config.json", (KEPT,))),
    ),
    "tokenizer.json": Kind(
        (*m.JSON, f.tokenizer_part, f.tokenizer_part, f.tokenizer_part, f.tokenizer_ids),
        _doors(("a/tokenizer.json", TOKENIZER_READ), ("base/tokenizer.json", (TUNED, TIES))),
    ),
    "tokenizer_config.json": Kind(
        m.JSON,
        _doors(("a/tokenizer_config.json", TOKENIZER_READ),
               ("words/tokenizer_config.json", (evaluate("words"),) * 3),
               ("base/tokenizer_config.json", (TUNED,))),
    ),
    "vocab.txt": Kind(
        (f.vocabulary_line, f.vocabulary_line, f.vocabulary_line),
        _doors(("words/vocab.txt",
                (evaluate("words"), evaluate("words"), merge("words", "same-words")))),
    ),
    "special_tokens_map.json": Kind(
        m.JSON,
        _doors(("words/special_tokens_map.json", (evaluate("words"),)),
               ("words/added_tokens.json", (evaluate("words"),))),
    ),
    "model.safetensors": Kind(
        f.SAFETENSORS,
        _doors(("a/model.safetensors", (*EXPERT_READ, KEEP)),
               ("base/model.safetensors", (TIES, WHOLE, TUNED)),
               ("merged/model.safetensors", (MERGE,)), ("kept/model.safetensors", (KEPT,)),
               ("several/heads/glue/rte/model.safetensors", (SEVERAL,)),
               ("sharded/model-00001-of-00002.safetensors", (merge("sharded", "b"),))),
    ),
    "safetensors.index.json": Kind(
        m.JSON,
        _doors(("sharded/model.safetensors.index.json",
                (merge("sharded", "b"), evaluate("sharded")))),
    ),
    "expert.json": Kind(
        m.JSON, _doors(("a/expert.json", (AVERAGE, EXPERT, MERGE, KEEP, SEARCH)))
    ),
    "merge.json": Kind(
        m.JSON,
        _doors(("merged/merge.json", (MERGE, MERGE, merge("merged", "a"))),
               ("kept/merge.json", (KEPT,))),
    ),
    "mergekit_config.yml": Kind(m.YAML, _doors(("kit/mergekit_config.yml", (KIT,)))),
    "recipe.yaml": Kind(m.YAML, _doors(("recipe.yaml", (RECIPE,)))),
    "study.yaml": Kind(m.YAML, _doors(("study.yaml", (PLANNED, STUDY)))),
    "mergekit recipe": Kind(m.YAML, _doors(("kit.yaml", (KIT_RECIPE,)))),
    "record": Kind(m.JSON, _doors(("records/@record", (BOARD, BOARD)))),
    "baseline": Kind(m.JSON, _doors(("baselines/average.json", (CHECK,)))),
    "parquet": Kind(f.PARQUET, _rows("data", "parquet")),
    "jsonl": Kind(f.JSONL, _rows("data-jsonl", "jsonl")),
    "csv": Kind(f.CSV, _rows("data-csv", "csv")),
    "task.yaml": Kind(
        m.YAML,
        _doors(("own/pairs.yaml", (PAIRS, PAIRS, PAIRS_TRAIN)),
               ("own/tags.yaml", (TAGGED, TAGGED, TAGS_TRAIN))),
    ),
    "conll": Kind(
        f.CONLL,
        _doors(("own/test.conll", (TAGGED,)), ("own/train.conll", (TAGGED, TAGS_TRAIN))),
    ),
    "own jsonl": Kind(
        f.JSONL,
        _doors(("own/test.jsonl", (PAIRS,)), ("own/train.jsonl", (PAIRS, PAIRS_TRAIN))),
    ),
    "adapter_config.json": Kind(m.JSON, _doors(("lora/adapter_config.json", (LORA, LORAS)))),
    "adapter": Kind(f.SAFETENSORS, _doors(("lora/adapter_model.safetensors", (LORA, LORAS)))),
    "statistics": Kind(
        (*f.SAFETENSORS[:4], f.description, f.description, f.description, f.description),
        _doors(("a.stats.safetensors", (REGMEAN,))),
    ),
}  # fmt: skip


def mutant(seed: int, number: int, only: Sequence[str] = ()) -> Mutant:
    """The mutant of this number: the same for one seed, however many are made."""
    names = list(only or KINDS)
    name = names[number % len(names)]
    random = Random(f"{seed}/{name}/{number}")
    kind = KINDS[name]
    door = random.choice(kind.doors)
    if random.random() < 0.04:
        place = random.choice(m.PLACES)
        return Mutant(number, name, place.__name__, door, place)
    spoil = random.choice(kind.spoils if random.random() < 0.65 else m.ANY)
    return Mutant(number, name, spoil.__name__, door, _rewriting(spoil, random))


def _rewriting(spoil: m.Spoil, random: Random) -> Callable[[Path], None]:
    """The spoiling of a file, which takes the place of the old one: that may be shared."""

    def rewrite(path: Path) -> None:
        content = spoil(path.read_bytes(), random)
        path.unlink()
        path.write_bytes(content)

    return rewrite
