"""Results -> a document of Every Eval Ever, schema 0.2.2 (https://github.com/evaleval)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.evaluation.resamples import CORRELATIONS
from harness.reporting.exports.results import NAMES, Result, digests
from harness.text import plain

VERSION = "0.2.2"
LIBRARY = "merging-harness"


def rendered(model: str, results: Sequence[Result], *, organization: str, at: int) -> str:
    """The document as JSON, made by an organization at a time in seconds since 1970."""
    made = document(model, results, organization=organization, at=at)
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def document(
    model: str, results: Sequence[Result], *, organization: str, at: int
) -> dict[str, Any]:
    """What was read of one model."""
    first = results[0].record
    sources = {"base": [first.base] if first.base else [], "experts": first.experts}
    details = {name: ", ".join(one.source for one in of) for name, of in sources.items() if of}
    return {
        "schema_version": VERSION,
        "evaluation_id": f"{LIBRARY}/{model}/{at}",
        "retrieved_timestamp": str(at),
        "source_metadata": {
            "source_name": LIBRARY,
            "source_type": "evaluation_run",
            "source_organization_name": plain(organization),
            "evaluator_relationship": "other",
        },
        "eval_library": {"name": LIBRARY, "version": first.versions.get(LIBRARY, "unknown")},
        "model_info": {
            "name": model,
            "id": model,
            "additional_details": _texts(
                {"method": first.method, "role": first.role, "digest": digests(results), **details}
            ),
        },
        "evaluation_results": [one for result in results for one in _results(result)],
    }


def _results(result: Result) -> list[dict[str, Any]]:
    """Every metric of a result and, of several, their mean, which the interval is of."""
    parts = result.parts
    made = [_result(result, name, value) for name, value in parts.items()]
    if len(parts) > 1:
        made.append(_result(result, f"mean({','.join(parts)})", result.value))
    if result.interval is not None:
        low, high = result.interval
        made[-1]["score_details"]["uncertainty"] = {
            "confidence_interval": {
                "lower": low,
                "upper": high,
                "confidence_level": result.line.level,
                "method": "over test rows; draws, training and model held"
                if result.line.resamples is None
                else "over test units and draws; training and model held",
            },
            "num_samples": result.line.rows,
        }
    return made


def _result(result: Result, metric: str, value: float) -> dict[str, Any]:
    line = result.line
    said = {
        "protocol": line.setting.protocol, "shots": line.shots, "draws": len(line.values),
        "options": line.options.strip("{}"), "head": line.head, "adapted": line.adapted,
        "transductive": "yes" if line.saw_the_scored else "", "note": result.note,
        "sd_over_draws": result.deviation,
    }  # fmt: skip
    return {
        "evaluation_result_id": f"{plain(line.task)}/{result.reading}/{metric}",
        "evaluation_name": f"{plain(line.task)} ({result.reading})",
        "source_data": _source(result),
        "metric_config": {
            "evaluation_description": f"{NAMES.get(metric, metric)} under {result.reading}",
            "metric_id": metric,
            "metric_name": NAMES.get(metric, metric),
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": -1 if any(name in metric for name in CORRELATIONS) else 0,
            "max_score": 1,
        },
        "score_details": {"score": value, "details": _texts(said)},
    }


def _source(result: Result) -> dict[str, Any]:
    """Where the rows come from: a revision of the Hub, or another place with their hash."""
    dataset, line = result.record.dataset, result.line
    named = {"dataset_name": result.task}
    said = {"split": line.split, "rows": line.rows, "limit": result.limit}
    details = _texts({**said, "digest": dataset.get("digest")})
    if not result.repository:
        return {**named, "source_type": "other", "additional_details": details}
    made = {**named, "source_type": "hf_dataset", "hf_repo": result.repository}
    made["hf_split"] = line.split
    if dataset.get("revision"):
        made["hf_revision"] = plain(dataset["revision"])
    return {**made, "samples_number": line.rows, "additional_details": details}


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    """Values as the texts that the schema wants, without those that say nothing."""
    return {name: plain(value) for name, value in values.items() if value not in (None, "")}
