"""Results -> the metadata of a model card on the Hub, whose results are its `model-index`.

Written by `huggingface_hub`; what it means is said at
https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.kinds import KINDS
from harness.reporting.exports.results import NAMES, Result, task_of
from harness.text import plain

IDS = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
IDS |= {"macro_f1": "f1", "micro_f1": "f1", "span_f1": "f1"}
"""What the Hub calls a metric that we call otherwise."""


def rendered(model: str, results: Sequence[Result]) -> str:
    """A README.md that holds the metadata and nothing else."""
    from huggingface_hub import ModelCardData

    card = ModelCardData(model_name=model, eval_results=[*_results(results)])
    return f"---\n{card.to_yaml()}\n---\n"


def _results(results: Sequence[Result]) -> Iterator[object]:
    from huggingface_hub import EvalResult

    for result in results:
        task = task_of(result) if result.repository else None
        line, dataset = result.line, result.record.dataset
        kind = KINDS.get(line.kind, KINDS["classification"])
        for metric, value in result.parts.items():
            yield EvalResult(
                task_type=kind.hub_task,
                dataset_type=result.repository or result.task,
                dataset_name=result.task,
                dataset_config=task.subset if task else None,
                dataset_split=line.split,
                dataset_revision=dataset.get("revision") and plain(dataset["revision"]),
                dataset_args=_said(
                    {
                        "rows": line.rows,
                        "limit": result.limit,
                        "source": None if result.repository else plain(dataset.get("source")),
                        "digest": plain(dataset.get("digest")),
                    }
                ),
                metric_type=IDS.get(metric, metric),
                metric_value=round(value, 4),
                metric_name=f"{NAMES.get(metric, metric)} ({result.marked_reading})",
                metric_args=_said(
                    {
                        "protocol": result.reading,
                        "draws": len(line.values),
                        **(_interval(result) if len(result.parts) == 1 else {}),
                        "note": result.note,
                    }
                ),
            )


def _interval(result: Result) -> dict[str, object]:
    """Where the value would lie on other test rows."""
    if result.interval is None:
        return {}
    ends = [round(end, 4) for end in result.interval]
    return {"interval": ends, "level": result.line.level}


def _said(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value not in (None, "", "None")}
