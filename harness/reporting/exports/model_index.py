"""Lines -> a model card of the Hub: its metadata, the `model-index`, and the verdict as text.

The metadata are written by `huggingface_hub` and documented at
https://github.com/huggingface/hub-docs/blob/main/modelcard.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.evaluation.records import IMAGE_LIBRARY
from harness.kinds import KINDS
from harness.reporting.exports.results import (
    NAMES,
    filled,
    limit,
    note,
    parts,
    repository,
    setting_text,
)
from harness.reporting.lines import Line
from harness.text import markdown, plain

IMAGES = "image-classification"
IDS = {"matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
IDS |= {"macro_f1": "f1", "micro_f1": "f1", "span_f1": "f1"}
"""The Hub's names of metrics, where they differ from ours."""


def rendered(model: str, lines: Sequence[Line], verdicts: Sequence[object] = ()) -> str:
    """The text of a README.md: the metadata and a line for each verdict, nothing else."""
    from huggingface_hub import ModelCardData

    card = ModelCardData(model_name=model, eval_results=[*_results(lines)])
    text = "".join(f"\nVerdict: {markdown(verdict)}\n" for verdict in verdicts)
    return f"---\n{card.to_yaml()}\n---\n{text}"


def _results(lines: Sequence[Line]) -> Iterator[object]:
    from huggingface_hub import EvalResult

    from harness.registry import TASKS

    for line in lines:
        source, name, scores = repository(line), plain(line.name), parts(line)
        # only registered tasks are looked up: the name in a record must not import anything
        task = TASKS[line.name] if source and line.name in TASKS else None
        local = "" if source else plain(line.source)
        rows = {"rows": line.rows, "limit": limit(line), "source": local}
        ends = {}
        if line.interval is not None and len(scores) == 1:
            ends = {"interval": [round(end / 100, 4) for end in line.interval], "level": line.level}
        fit = {"protocol": plain(line.setting), "draws": len(line.values), **ends}
        kind = KINDS.get(line.kind, KINDS["classification"])
        hub_task = IMAGES if IMAGE_LIBRARY in dict(line.versions) else kind.hub_task
        for metric, value in scores.items():
            yield EvalResult(
                task_type=hub_task,
                dataset_type=source or name,
                dataset_name=name,
                dataset_config=task.subset if task else None,
                dataset_split=line.split,
                dataset_revision=plain(line.revision) or None,
                dataset_args=filled({**rows, "digest": plain(line.rows_of)}),
                metric_type=IDS.get(metric, metric),
                metric_value=round(value, 4),
                metric_name=f"{NAMES.get(metric, metric)} ({setting_text(line)})",
                metric_args=filled({**fit, "note": note(line)}),
            )
