"""The formats that `harness export` writes, as their own schemas say, to validate against.

- Every Eval Ever: `eval.schema.json`, version 0.2.2, of https://github.com/evaleval/every_eval_ever
  at 21b3d1ab3894e9b9aaceca285548accfaa71b333: what it requires and allows, without its prose. Where
  it does not forbid further properties, these models do: none is written that it does not name.
- lm-evaluation-harness: `lm_eval/result_schema.py` of its release 0.4.13.
- model-index: https://github.com/huggingface/hub-docs/blob/main/modelcard.md, as of
  huggingface_hub 2.4, which reads what is written back as well.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


Texts = dict[StrictStr, StrictStr]
Number = StrictInt | StrictFloat


# Every Eval Ever ------------------------------------------------------------------------------


class SourceMetadata(Closed):
    source_name: StrictStr | None = None
    source_type: Literal["documentation", "evaluation_run"]
    source_organization_name: StrictStr
    evaluator_relationship: Literal["first_party", "third_party", "collaborative", "other"]


class EvalLibrary(Closed):
    name: StrictStr
    version: StrictStr
    additional_details: Texts = {}


class ModelInfo(Closed):
    name: StrictStr
    id: StrictStr
    developer: StrictStr | None = None
    additional_details: Texts = {}


class HubData(Closed):
    dataset_name: StrictStr
    source_type: Literal["hf_dataset"]
    hf_repo: StrictStr
    hf_split: StrictStr | None = None
    hf_config: StrictStr | None = None
    hf_revision: StrictStr = ""
    samples_number: StrictInt | None = None
    additional_details: Texts = {}


class OtherData(Closed):
    dataset_name: StrictStr
    source_type: Literal["other"]
    source_id: StrictStr | None = None
    source_version: StrictStr | None = None
    additional_details: Texts = {}


class MetricConfig(Closed):
    """Of a continuous score both ends are required; we write no other."""

    evaluation_description: StrictStr | None = None
    metric_id: StrictStr | None = None
    metric_name: StrictStr | None = None
    lower_is_better: StrictBool
    score_type: Literal["continuous"]
    min_score: Number
    max_score: Number
    additional_details: Texts = {}


class ConfidenceInterval(Closed):
    lower: Number
    upper: Number
    confidence_level: Annotated[float, Field(ge=0, le=1)] | None = None
    method: StrictStr | None = None


class Uncertainty(Closed):
    confidence_interval: ConfidenceInterval
    num_samples: StrictInt | None = None


class ScoreDetails(Closed):
    score: Number
    details: Texts = {}
    uncertainty: Uncertainty | None = None


class EvaluationResult(Closed):
    evaluation_result_id: StrictStr | None = None
    evaluation_name: StrictStr
    source_data: Annotated[HubData | OtherData, Field(discriminator="source_type")]
    metric_config: MetricConfig
    score_details: ScoreDetails


class EveryEvalEver(Closed):
    schema_version: StrictStr
    evaluation_id: StrictStr
    retrieved_timestamp: Annotated[str, Field(pattern=r"^\d+$", strict=True)]
    source_metadata: SourceMetadata
    eval_library: EvalLibrary
    model_info: ModelInfo
    evaluation_results: list[EvaluationResult]


# lm-evaluation-harness ------------------------------------------------------------------------


class TaskMetrics(BaseModel):
    """Three named keys; every other is `metric,filter` or `metric_stderr,filter` with a number."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number]

    name: StrictStr
    alias: StrictStr
    sample_len: StrictInt


class SampleCount(Closed):
    original: StrictInt
    effective: StrictInt


class EvalConfig(Closed):
    model: StrictStr
    model_args: dict[StrictStr, StrictStr | Number] | StrictStr | None = None


class EvalResults(Closed):
    results: dict[StrictStr, TaskMetrics]
    group_subtasks: dict[StrictStr, list[StrictStr]]
    configs: dict[StrictStr, dict[StrictStr, StrictStr | StrictBool | None]]
    versions: dict[StrictStr, StrictStr | StrictFloat | None]
    n_shot: dict[StrictStr, StrictInt] = Field(alias="n-shot")
    higher_is_better: dict[StrictStr, dict[StrictStr, StrictBool | None]]
    n_samples: dict[StrictStr, SampleCount] = Field(alias="n-samples")
    config: EvalConfig
    transformers_version: StrictStr
    model_source: StrictStr
    model_name: StrictStr
    model_name_sanitized: Annotated[str, Field(pattern=r"^\w+$")]


# model-index ----------------------------------------------------------------------------------


class CardTask(Closed):
    type: Literal["text-classification", "token-classification", "image-classification"]
    name: StrictStr | None = None


class CardDataset(Closed):
    type: StrictStr
    name: StrictStr
    config: StrictStr | None = None
    split: StrictStr | None = None
    revision: StrictStr | None = None
    args: dict[StrictStr, Any] | None = None


class CardMetric(Closed):
    type: StrictStr
    value: Number
    name: StrictStr | None = None
    config: StrictStr | None = None
    args: dict[StrictStr, Any] | None = None


class CardResult(Closed):
    task: CardTask
    dataset: CardDataset
    metrics: list[CardMetric]


class CardModel(Closed):
    name: StrictStr
    results: list[CardResult]


class Card(Closed):
    model_index: list[CardModel] = Field(alias="model-index")
