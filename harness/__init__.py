"""merging-harness: is this merge good, and if its score is low, is it the encoder or the head?

The nouns and registries load at once; a verb is imported when it is first asked for, so that
`import harness` stays light.
"""

import os
import signal
import sys

if (
    (  # run as the program: until it begins, Ctrl-C ends it at once, and not in a library's import
        os.path.basename((sys.argv or [""])[0]) == "harness"
        or sys.orig_argv[1:3] == ["-m", "harness"]
    )
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError
from harness.options import parse_choice
from harness.registry import (
    MERGERS,
    METRICS,
    NEEDS,
    POSTMERGE,
    PREMERGE,
    PROTOCOLS,
    TASKS,
    load_plugins,
    merger,
    metric,
    need,
    postmerge,
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
    Need,
    Predictions,
    Row,
    Rows,
    Score,
    StateDict,
    Task,
    Teacher,
)

if TYPE_CHECKING:
    from harness.data.prepare import prepare
    from harness.evaluation.evaluate import evaluate
    from harness.evaluation.records import Record
    from harness.evaluation.run import Run
    from harness.inspecting.inspect import inspect
    from harness.inspecting.inspection import Inspection
    from harness.merging.merge import merge
    from harness.merging.recipes import Recipe
    from harness.merging.validation import ValidationScorer
    from harness.passes.reading import Reading
    from harness.passes.statistics import statistic
    from harness.reporting.boards.leaderboard import leaderboard
    from harness.reporting.compare import compare
    from harness.reporting.comparison import Comparison, Ranking
    from harness.reporting.frame import read_records
    from harness.reporting.plots.plot import plot
    from harness.reporting.plots.scores import View
    from harness.training.finetune import finetune

_LAZY = {
    "Comparison": "harness.reporting.comparison",
    "Inspection": "harness.inspecting.inspection",
    "ValidationScorer": "harness.merging.validation",
    "Ranking": "harness.reporting.comparison",
    "Reading": "harness.passes.reading",
    "Recipe": "harness.merging.recipes",
    "Record": "harness.evaluation.records",
    "Run": "harness.evaluation.run",
    "View": "harness.reporting.plots.scores",
    "compare": "harness.reporting.compare",
    "evaluate": "harness.evaluation.evaluate",
    "finetune": "harness.training.finetune",
    "inspect": "harness.inspecting.inspect",
    "leaderboard": "harness.reporting.boards.leaderboard",
    "merge": "harness.merging.merge",
    "plot": "harness.reporting.plots.plot",
    "prepare": "harness.data.prepare",
    "read_records": "harness.reporting.frame",
    "statistic": "harness.passes.statistics",
}

__version__ = "0.1.0"

__all__ = [
    "MERGERS",
    "METRICS",
    "NEEDS",
    "POSTMERGE",
    "PREMERGE",
    "PROTOCOLS",
    "TASKS",
    "Checkpoint",
    "Choice",
    "Comparison",
    "Draw",
    "Encoded",
    "Features",
    "HarnessError",
    "Head",
    "Hyperparameters",
    "Inspection",
    "Need",
    "Predictions",
    "Ranking",
    "Reading",
    "Recipe",
    "Record",
    "Row",
    "Rows",
    "Run",
    "Score",
    "StateDict",
    "Task",
    "Teacher",
    "ValidationScorer",
    "View",
    "compare",
    "evaluate",
    "finetune",
    "inspect",
    "leaderboard",
    "load_plugins",
    "merge",
    "merger",
    "metric",
    "need",
    "parse_choice",
    "plot",
    "postmerge",
    "premerge",
    "prepare",
    "protocol",
    "read_records",
    "statistic",
    "task",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        found = getattr(importlib.import_module(_LAZY[name]), name)
        return found if isinstance(found, type) else _door(found)
    raise AttributeError(f"module 'harness' has no attribute '{name}'")


@functools.cache
def _door(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb, which shows who calls it of a mistake in the input its one line, and not our code.

    Whoever wants the frames and the cause calls it by the module that it stands in.
    """

    @functools.wraps(verb)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return verb(*args, **kwargs)
        except HarnessError as error:
            mistake = error.with_traceback(None)
        raise mistake from None

    return called
