"""Lines -> a document of Every Eval Ever, schema 0.2.2 (https://github.com/evaleval)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.evaluation.resamples import CORRELATIONS
from harness.reporting.exports.results import NAMES, digests, filled, limit, note, parts, repository
from harness.reporting.grid import GridCell
from harness.reporting.lines import Line
from harness.text import plain

VERSION = "0.2.2"
LIBRARY = "merging-harness"


def rendered(model: str, lines: Sequence[Line], *, organization: str, seconds: int) -> str:
    """The evaluation results of a model as JSON; `seconds` is when they are exported, in seconds
    since 1970."""
    first = lines[0]
    details = {
        "method": first.method,
        "role": first.role,
        "digest": digests(lines),
        "base": first.base,
        "experts": ", ".join(source for source, _ in first.experts),
    }
    document = {
        "schema_version": VERSION,
        "evaluation_id": f"{LIBRARY}/{model}/{seconds}",
        "retrieved_timestamp": str(seconds),
        "source_metadata": {
            "source_name": LIBRARY,
            "source_type": "evaluation_run",
            "source_organization_name": plain(organization),
            "evaluator_relationship": "other",
        },
        "eval_library": {"name": LIBRARY, "version": dict(first.versions).get(LIBRARY, "unknown")},
        "model_info": {"name": model, "id": model, "additional_details": _texts(details)},
        "evaluation_results": [result for line in lines for result in _results(line)],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _results(line: Line) -> list[dict[str, Any]]:
    """A result for each metric of a line and for the mean of several; the last has the interval."""
    scores = parts(line)
    if len(scores) > 1:
        scores[f"mean({','.join(scores)})"] = GridCell(line.values).mean / 100
    results = [_result(line, name, value) for name, value in scores.items()]
    if line.interval is not None:
        low, high = line.interval
        results[-1]["score_details"]["uncertainty"] = {
            "confidence_interval": {
                "lower": low / 100,
                "upper": high / 100,
                "confidence_level": line.level,
                "method": "over test units and draws; of this very model",
            },
            "num_samples": line.rows,
        }
    return results


def _result(line: Line, metric: str, value: float) -> dict[str, Any]:
    task, under, name = plain(line.task), plain(line.setting), NAMES.get(metric, metric)
    details = {
        "protocol": line.setting.protocol, "shots": line.shots, "draws": len(line.values),
        "options": line.options.strip("{}"), "head": line.head, "adapted": line.adapted,
        "transductive": "yes" if line.saw_the_scored else "", "note": note(line),
        "sd_over_draws": GridCell(tuple(value / 100 for value in line.values)).deviation,
    }  # fmt: skip
    return {
        "evaluation_result_id": f"{task}/{under}/{metric}",
        "evaluation_name": f"{task} ({under})",
        "source_data": _source(line),
        "metric_config": {
            "evaluation_description": f"{name} under {under}",
            "metric_id": metric,
            "metric_name": name,
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": -1 if any(name in metric for name in CORRELATIONS) else 0,
            "max_score": 1,
        },
        "score_details": {"score": value, "details": _texts(details)},
    }


def _source(line: Line) -> dict[str, Any]:
    """The source of the test rows: a data set on the Hub, or another place; with their hash."""
    facts = {"split": line.split, "rows": line.rows, "limit": limit(line), "digest": line.rows_of}
    named, details = {"dataset_name": plain(line.name)}, {"additional_details": _texts(facts)}
    if not (source := repository(line)):
        return {**named, "source_type": "other", **details}
    fields = {**named, "source_type": "hf_dataset", "hf_repo": source, "hf_split": line.split}
    if line.revision:
        fields["hf_revision"] = plain(line.revision)
    return {**fields, "samples_number": line.rows, **details}


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    """The values that are not empty, as the strings that the schema requires."""
    return {name: plain(value) for name, value in filled(values).items()}
