"""Shell: records -> files in the format of another program."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from harness.errors import BadOption, BrokenRecord
from harness.evaluation.records import safe_name
from harness.files import check_below, check_ours, check_place, write_files
from harness.reporting.chosen import EVERYTHING, Chosen, read_lines
from harness.reporting.exports import every_eval_ever, lm_eval, model_index
from harness.reporting.exports.results import by_model
from harness.reporting.frame import as_csv, table
from harness.reporting.grid import board_row_names
from harness.reporting.lines import Line
from harness.reporting.verdict import experts_and_bases, verdicts_on
from harness.text import is_whole_number, plain

Format: TypeAlias = Literal["model-index", "every-eval-ever", "lm-eval", "csv"]
Writer: TypeAlias = Callable[[str, Sequence[Line]], str]

MARKS = {
    "records.csv": rb"\Atask,split,kind,metric,rows,protocol,",
    # a card with any other text is not overwritten
    "README.md": rb"\A---\nmodel-index:\n[^\0]*\n---\n(\nVerdict: [^\n\0]*\n)*\Z",
    "every_eval_ever.json": rb'"name": "merging-harness"',
    "results.json": rb'"model_source": "merging-harness"',
}
"""For each file of an export, a pattern that identifies it as one: only such files are replaced."""


def export(
    places: Sequence[str | Path],
    *,
    format: Format,
    out: str | Path,
    organization: str | None = None,
    which: Chosen = EVERYTHING,
) -> list[Path]:
    """Write the records in files and folders, or `which` of them, in a format; returns the paths.

    `csv` is one tidy table, out/records.csv; all others have a folder for each model: README.md
    (`model-index`, with the verdict on a merge), every_eval_ever.json (which names an
    `organization`), results.json (`lm-eval`). A merge under the heads of several tasks is one
    model; if its records do not say what it was merged of, it is one model for each head. Raises
    BadOption and BrokenRecord, and OutputExists for files of another origin at these paths, before
    anything is written.
    """
    folder = Path(out)
    check_place(folder.absolute())
    named = organization is not None
    if named != (format == "every-eval-ever") or (named and not plain(organization).strip()):
        found = "is missing" if organization is None else f"is '{organization}'"
        raise BadOption(
            f"the organization {found}; expected who made the results, for every-eval-ever, and "
            "none for another format"
        )
    lines = read_lines(places, which)
    if format == "csv":
        frame = table(lines, board_row_names(lines), [line.path for line in lines])
        texts = {"records.csv": as_csv(frame)}
    else:
        texts = _documents(lines, format, organization or "")
    files = {folder / name: text for name, text in texts.items()}
    check_below(folder, files)
    check_ours({path: MARKS[path.name] for path in files})
    write_files(files.items())
    return [*files]


def _documents(lines: Sequence[Line], format: Format, organization: str) -> dict[str, str]:
    name, write = _writer(lines, format, organization)
    texts: dict[str, str] = {}
    for model, model_lines in by_model(lines):
        folder = safe_name(model)
        while f"{folder}/{name}" in texts:  # another name with the same safe form
            folder += "-"
        texts[f"{folder}/{name}"] = write(model, model_lines)
    return texts


def _writer(lines: Sequence[Line], format: Format, organization: str) -> tuple[str, Writer]:
    """The name of a format's file, and the function that writes it for one model of `lines`."""
    if format == "model-index":
        return "README.md", partial(_card, experts_and_bases(lines))
    if format == "lm-eval":
        return "results.json", lm_eval.rendered
    write = partial(every_eval_ever.rendered, organization=organization, seconds=_now())
    return "every_eval_ever.json", write


def _card(against: Mapping[str, Sequence[Line]], model: str, lines: Sequence[Line]) -> str:
    """The card of a model, with its verdicts if it is a merge that has any."""
    merged = [line for line in lines if line.role == "merged"]
    try:
        verdicts = verdicts_on(merged, against)
    except BrokenRecord:  # its experts are not comparable: scores without a verdict
        verdicts = []
    return model_index.rendered(model, lines, verdicts)


def _now() -> int:
    """SOURCE_DATE_EPOCH, for reproducible files, or else the time now; in seconds since 1970."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch and not is_whole_number(epoch):
        raise BadOption(
            f"SOURCE_DATE_EPOCH is '{epoch:.80}', expected seconds since 1970, or nothing"
        )
    return int(epoch or time.time())
