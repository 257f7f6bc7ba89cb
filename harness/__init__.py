"""merging-harness: is this merge good, and if its score is low, is it the encoder or the head?

The nouns and registries load at once; a verb is imported when it is first asked for, so that
`import harness` stays light.
"""

import importlib
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError
from harness.registry import (
    MERGERS,
    METRICS,
    PREMERGE,
    PROTOCOLS,
    TASKS,
    merger,
    metric,
    parse_choice,
    premerge,
    protocol,
    task,
)
from harness.types import (
    Checkpoint,
    Choice,
    Draw,
    Encoded,
    Features,
    Head,
    Hyperparameters,
    Predictions,
    Row,
    Rows,
    Score,
    StateDict,
    Task,
)

if TYPE_CHECKING:
    from harness.boards import leaderboard
    from harness.data import prepare
    from harness.experts import finetune
    from harness.merging import merge
    from harness.recipes import Recipe, Run
    from harness.records import Record
    from harness.run import evaluate
    from harness.statistics import statistic

_LAZY = {
    "Recipe": "harness.recipes",
    "Record": "harness.records",
    "Run": "harness.recipes",
    "evaluate": "harness.run",
    "finetune": "harness.experts",
    "leaderboard": "harness.boards",
    "merge": "harness.merging",
    "prepare": "harness.data",
    "statistic": "harness.statistics",
}

__version__ = "0.1.0"

__all__ = [
    "MERGERS",
    "METRICS",
    "PREMERGE",
    "PROTOCOLS",
    "TASKS",
    "Checkpoint",
    "Choice",
    "Draw",
    "Encoded",
    "Features",
    "HarnessError",
    "Head",
    "Hyperparameters",
    "Predictions",
    "Recipe",
    "Record",
    "Row",
    "Rows",
    "Run",
    "Score",
    "StateDict",
    "Task",
    "evaluate",
    "finetune",
    "leaderboard",
    "merge",
    "merger",
    "metric",
    "parse_choice",
    "premerge",
    "prepare",
    "protocol",
    "statistic",
    "task",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'harness' has no attribute '{name}'")
