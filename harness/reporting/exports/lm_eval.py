"""Results -> the results file of lm-evaluation-harness, version 0.4.13 (its `result_schema.py`).

Its keys are `metric,filter`: our protocol stands in the place of the filter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from harness.reporting.exports.results import Result, digests

LEVEL_95 = 2 * 1.959964
"""Standard errors between the ends of an interval of 95 %."""


def rendered(model: str, results: Sequence[Result]) -> str:
    """The file as JSON."""
    return json.dumps(document(model, results), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def document(model: str, results: Sequence[Result]) -> dict[str, Any]:
    """The results of a model by task."""
    tasks: dict[str, list[Result]] = {}
    for result in results:
        tasks.setdefault(f"{result.task}@{result.line.split}", []).append(result)
    first = {task: read[0] for task, read in tasks.items()}
    return {
        "results": {task: _metrics(task, read) for task, read in tasks.items()},
        "group_subtasks": {task: [] for task in tasks},
        "configs": {task: _config(task, read) for task, read in tasks.items()},
        "versions": {
            task: str(one.record.dataset.get("digest", "")) for task, one in first.items()
        },
        "n-shot": dict.fromkeys(tasks, 0),
        "higher_is_better": {
            task: dict.fromkeys((metric for one in read for metric in one.parts), True)
            for task, read in tasks.items()
        },
        "n-samples": {
            task: {"original": one.line.rows, "effective": one.line.rows}
            for task, one in first.items()
            if one.limit is None  # of how many these are the first is not known
        },
        "config": {"model": "merging-harness", "model_args": {"digest": digests(results)}},
        "model_source": "merging-harness",
        "model_name": model,
        "model_name_sanitized": re.sub(r"\W", "_", model),
        "transformers_version": results[0].record.versions.get("transformers", "unknown"),
    }


def _metrics(task: str, results: Sequence[Result]) -> dict[str, Any]:
    """The metrics of a task; of one alone, the standard error, where its interval says one."""
    said: dict[str, Any] = {"name": task, "alias": task, "sample_len": results[0].line.rows}
    for result in results:
        for metric, value in result.parts.items():
            said[f"{metric},{_filter(result)}"] = value
            if result.interval is not None and len(result.parts) == 1:
                low, high = result.interval
                said[f"{metric}_stderr,{_filter(result)}"] = (high - low) / LEVEL_95
    return said


def _filter(result: Result) -> str:
    return result.marked_reading.replace(", ", "-").replace(" ", "-").replace(",", "-")


def _config(task: str, results: Sequence[Result]) -> dict[str, str | bool | None]:
    """Where the rows are from, and what each filter saw beside them."""
    first = results[0]
    return {
        "task": task,
        "dataset_path": str(first.record.dataset.get("source")),
        "test_split": first.line.split,
        **({} if first.limit is None else {"limit": str(first.limit)}),
        **{f"note,{_filter(result)}": result.note for result in results if result.note},
    }
