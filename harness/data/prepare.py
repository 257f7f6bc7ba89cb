"""Shell: data sets of the Hub -> a local folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.data.groups import expanded
from harness.data.sources import TRAIN, fetched
from harness.data.splits import parse_task
from harness.errors import BadRecipe
from harness.files import replacing
from harness.values import one_or_more


def prepare(tasks: Sequence[str], folder: str | Path) -> list[Path]:
    """Fetch every split of the tasks from the Hub into `folder`, for use with no network.

    Returns the files, new and old; a file that is there is kept.
    """
    if not tasks:
        raise BadRecipe("no tasks to prepare; name some with --tasks")
    written = []
    for task, _ in [parse_task(name) for name in expanded(one_or_more(tasks))]:
        if task.generate is not None:
            continue
        for split in (TRAIN, *task.splits.values()):
            path = Path(folder) / task.name / f"{split}.parquet"
            if not path.is_file():
                table = fetched(task, split)
                with replacing(path) as file:
                    table.to_parquet(file)
            written.append(path)
    return written
