"""Shell: what lines say on resampled test rows, of the predictions beside their records."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

from harness.errors import BrokenRecord, WrongPredictions
from harness.evaluation.bootstrap import resampled
from harness.evaluation.predictions import Predicted, reader
from harness.evaluation.records import read_record
from harness.reporting.verdict import Sampled
from harness.types import Array64, Shots

AT_HAND = 64
"""Predictions that are held at once: each is read for several numbers of shots."""


def beside() -> Sampled:
    """Reads the predictions beside the record of a line, when and if they are asked for."""

    read = reader()

    @lru_cache(AT_HAND)
    def predicted(path: str) -> Predicted | None:
        try:
            return read(read_record(Path(path)), Path(path).with_suffix(".parquet"))
        except WrongPredictions:
            raise
        except BrokenRecord:  # of an older version, say: a board can do without
            return None

    @cache
    def there(path: str) -> bool:
        return Path(path).with_suffix(".parquet").is_file()

    @cache
    def sample(path: str, shots: Shots) -> Array64 | None:
        known = predicted(path) if there(path) else None
        return None if known is None else resampled(known, shots or None)

    return lambda line: sample(line.path, line.shots)
