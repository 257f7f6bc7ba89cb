"""Lines -> the results file of lm-evaluation-harness, version 0.4.13 (its `result_schema.py`).

Keys of metrics are `metric,filter`; the protocol takes the place of the filter.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from harness.reporting.exports.results import digests, limit, note, parts, setting_text
from harness.reporting.lines import Line, grouped
from harness.stats.intervals import variances
from harness.text import plain


def rendered(model: str, lines: Sequence[Line]) -> str:
    """The scores of a model by task, as JSON."""
    tasks = grouped(lines, lambda line: f"{plain(line.name)}@{line.split}")
    first = {task: group[0] for task, group in tasks.items()}
    document = {
        "results": {task: _metrics(task, group) for task, group in tasks.items()},
        "group_subtasks": {task: [] for task in tasks},
        "configs": {task: _config(task, group) for task, group in tasks.items()},
        "versions": {task: line.rows_of for task, line in first.items()},
        "n-shot": dict.fromkeys(tasks, 0),
        "higher_is_better": {
            task: dict.fromkeys((metric for line in group for metric in parts(line)), True)
            for task, group in tasks.items()
        },
        "n-samples": {
            task: {"original": line.rows, "effective": line.rows}
            for task, line in first.items()
            if limit(line) is None  # under a limit the number of all rows is unknown
        },
        "config": {"model": "merging-harness", "model_args": {"digest": digests(lines)}},
        "model_source": "merging-harness",
        "model_name": model,
        "model_name_sanitized": re.sub(r"\W", "_", model),
        "transformers_version": dict(lines[0].versions).get("transformers", "unknown"),
    }
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _metrics(task: str, lines: Sequence[Line]) -> dict[str, Any]:
    """The metrics of a task; for a single metric also its standard error over test units and draws,
    where known."""
    metrics: dict[str, Any] = {"name": task, "alias": task, "sample_len": lines[0].rows}
    for line in lines:
        scores, error = parts(line), math.sqrt(sum(variances(line.estimate)))
        metrics |= {f"{metric},{_filter(line)}": value for metric, value in scores.items()}
        if len(scores) == 1 and math.isfinite(error):
            metrics[f"{next(iter(scores))}_stderr,{_filter(line)}"] = error
    return metrics


def _filter(line: Line) -> str:
    return setting_text(line).replace(", ", "-").replace(" ", "-").replace(",", "-")


def _config(task: str, lines: Sequence[Line]) -> dict[str, str | bool | None]:
    """The source of the test rows, and a note on the rows that each filter adapted to."""
    first = lines[0]
    limited = {} if (most := limit(first)) is None else {"limit": str(most)}
    notes = {f"note,{_filter(line)}": text for line in lines if (text := note(line))}
    source = {"task": task, "dataset_path": first.source, "test_split": first.split}
    return {**source, **limited, **notes}
