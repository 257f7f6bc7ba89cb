"""What a step takes on this machine, from how long others took here."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from statistics import median

from harness.errors import HarnessError
from harness.files import cache_dir, parse_json, saying
from harness.hashes import digest_of
from harness.studies.steps import Step

KEPT = 25
"""How many of the last times are regarded of one kind of step."""
READ = 2**22
"""How many of the last bytes are read: some ten thousand steps."""


def price(step: Step) -> float | None:
    """Seconds that a step takes, by those most like it; None where none was timed here."""
    path = _path()
    known = _rates(path, path.stat().st_size) if path.is_file() else {}
    for kind in _kinds(step):
        if kind in known:
            return median(known[kind][-KEPT:]) * _size(step)
    return None


def paid(step: Step, seconds: float) -> None:
    """Remember how long a step took: one line, which a run that is killed writes or does not."""
    path = _path()
    line = json.dumps({"kinds": [*_kinds(step)], "rate": seconds / _size(step)}).encode() + b"\n"
    with saying(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            file.write(line)


def _kinds(step: Step) -> Iterator[tuple[str, ...]]:
    """What a step is like, from most to least; of rows that nobody counted, the same alone."""
    first = "later" if step.after else "first"
    if step.size is None:
        asked = (str(step.request.get(name)) for name in ("limit", "epochs"))
        yield step.verb, step.base, step.about, first, *asked
        return
    yield step.verb, step.base, step.about, first
    yield step.verb, step.base, first
    yield step.verb, step.base


def _size(step: Step) -> float:
    return max(step.size or 1.0, 1.0)


def _path() -> Path:
    return cache_dir("times") / f"{digest_of('times')}.jsonl"


@cache
def _rates(path: Path, size: int) -> Mapping[tuple[str, ...], list[float]]:
    """Seconds for each unit of size by kind of step, as the file says that has so many bytes."""
    found = defaultdict[tuple[str, ...], list[float]](list)
    with path.open("rb") as file:
        file.seek(max(size - READ, 0))
        lines = file.read(READ).splitlines()
    for line in lines:
        # one may be broken, as any of a cache
        with suppress(HarnessError, ValueError, TypeError, KeyError):
            said = parse_json(line.decode(), "a line", "the time of a step")
            rate = float(said["rate"])
            for kind in [tuple(map(str, kind)) for kind in said["kinds"]]:
                found[kind].append(rate)
    return dict(found)
