"""Results -> the metadata of a model card on the Hub, whose results are its `model-index`.

Written by `huggingface_hub`; what it means is said at
https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.kinds import KINDS
from harness.reporting.exports.results import NAMES, Result, task_of

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
        task = task_of(result)
        source = task.source if task else ""
        kind = KINDS.get(result.line.kind, KINDS["classification"])
        for metric, value in result.parts.items():
            yield EvalResult(
                task_type=kind.hub_task,
                dataset_type=source or result.task,
                dataset_name=result.task,
                dataset_config=task.subset if task else None,
                dataset_split=result.line.split,
                dataset_revision=task.revision if task else None,
                metric_type=IDS.get(metric, metric),
                metric_value=round(value, 4),
                metric_name=f"{NAMES.get(metric, metric)} ({result.marked_reading})",
                metric_args={
                    "protocol": result.reading,
                    "draws": len(result.line.values),
                    **({"note": result.note} if result.note else {}),
                },
            )
