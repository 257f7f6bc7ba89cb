"""`harness demo`: every step once, in a minute or two."""

from __future__ import annotations

from pathlib import Path

from harness.cli.app import app
from harness.cli.console import width
from harness.cli.flags import option


@app.command()
def demo(out: Path = option("Where everything is written.", Path("demo"))) -> None:
    """Make two bases and seven experts, merge and evaluate them, print tables and verdicts."""
    from harness.demo import demo as run

    run(out, width())
