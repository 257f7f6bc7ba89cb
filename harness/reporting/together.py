"""Shell: files that are written together: all of them, or none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from harness.files import replacing


@contextmanager
def together(paths: Iterable[Path]) -> Iterator[list[BinaryIO]]:
    """Files that take the places of these paths when the block succeeds, and all are on the disk.

    Raises CannotWrite, and leaves what was there, where there is no room for the last of them.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(replacing(path)) for path in paths]
        yield files
        for file in files:
            file.flush()
            os.fsync(file.fileno())
