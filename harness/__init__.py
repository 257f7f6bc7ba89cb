"""merging-harness: is this merge good, and if its score is low, is it the encoder or the head?

Data types and registries are imported at once, the functions of the API on first access, so that
`import harness` stays light. `name as name` marks a public name.
"""

import os
import signal
import sys

if (
    (  # run as the program: Ctrl-C during imports ends it at once, without a library's traceback
        os.path.basename((sys.argv or [""])[0]) == "harness"
        or sys.orig_argv[1:3] == ["-m", "harness"]
    )
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import functools
import importlib
from collections.abc import Callable
from types import ModuleType as _Module
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError as HarnessError
from harness.hyperparameters import Hyperparameters as Hyperparameters
from harness.options import parse_choice as parse_choice
from harness.registry import MERGERS as MERGERS
from harness.registry import METRICS as METRICS
from harness.registry import NEEDS as NEEDS
from harness.registry import POSTMERGE as POSTMERGE
from harness.registry import PREMERGE as PREMERGE
from harness.registry import PROTOCOLS as PROTOCOLS
from harness.registry import TASKS as TASKS
from harness.registry import load_plugins as load_plugins
from harness.registry import merger as merger
from harness.registry import metric as metric
from harness.registry import need as need
from harness.registry import postmerge as postmerge
from harness.registry import premerge as premerge
from harness.registry import protocol as protocol
from harness.registry import task as task
from harness.types import Checkpoint as Checkpoint
from harness.types import Choice as Choice
from harness.types import Draw as Draw
from harness.types import Encoded as Encoded
from harness.types import Features as Features
from harness.types import Head as Head
from harness.types import Need as Need
from harness.types import Predictions as Predictions
from harness.types import Row as Row
from harness.types import Rows as Rows
from harness.types import Score as Score
from harness.types import StateDict as StateDict
from harness.types import Task as Task
from harness.types import Teacher as Teacher

if TYPE_CHECKING:
    from harness.checkpoints.text_heads import heads as heads
    from harness.data.prepare import prepare as prepare
    from harness.evaluation.evaluate import evaluate as evaluate
    from harness.evaluation.records import Record as Record
    from harness.evaluation.run import Run as Run
    from harness.inspecting.barrier import barrier as barrier
    from harness.inspecting.inspect import inspect as inspect
    from harness.inspecting.inspection import Inspection as Inspection
    from harness.merging.merge import merge as merge
    from harness.merging.recipes import Recipe as Recipe
    from harness.merging.validation import ValidationScorer as ValidationScorer
    from harness.passes.reading import Reading as Reading
    from harness.passes.statistics import statistic as statistic
    from harness.reporting.boards.leaderboard import leaderboard as leaderboard
    from harness.reporting.compare import compare as compare
    from harness.reporting.comparison import Comparison as Comparison
    from harness.reporting.comparison import Ranking as Ranking
    from harness.reporting.frame import read_records as read_records
    from harness.reporting.plots.plot import plot as plot
    from harness.reporting.plots.scores import View as View
    from harness.training.finetune import finetune as finetune

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
    "barrier": "harness.inspecting.barrier",
    "compare": "harness.reporting.compare",
    "evaluate": "harness.evaluation.evaluate",
    "finetune": "harness.training.finetune",
    "heads": "harness.checkpoints.text_heads",
    "inspect": "harness.inspecting.inspect",
    "leaderboard": "harness.reporting.boards.leaderboard",
    "merge": "harness.merging.merge",
    "plot": "harness.reporting.plots.plot",
    "prepare": "harness.data.prepare",
    "read_records": "harness.reporting.frame",
    "statistic": "harness.passes.statistics",
}

__version__ = "0.2.0"

__all__ = sorted(
    name
    for name, value in {**vars(), **_LAZY}.items()
    if name not in ("Any", "Callable", "TYPE_CHECKING")
    if not (name.startswith("_") or isinstance(value, _Module))
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        found = getattr(importlib.import_module(_LAZY[name]), name)
        return found if isinstance(found, type) else _door(found)
    raise AttributeError(f"module 'harness' has no attribute '{name}'")


@functools.cache
def _door(verb: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the API that runs with torch's own settings, and raises a HarnessError without
    the frames of our code and without its cause.

    The function in its own module keeps both.
    """
    import harness.process  # what `from` imports here is public

    @functools.wraps(verb)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            with harness.process.as_torch_starts():
                return verb(*args, **kwargs)
        except HarnessError as error:
            mistake = error.with_traceback(None)
        raise mistake from None

    called.__module__, called.__qualname__ = __name__, verb.__name__  # so that pickle finds it
    return called
