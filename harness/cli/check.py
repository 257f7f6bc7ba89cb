"""`harness check`: a method -> whether it has its properties, and a merger's quality."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from harness.cli.app import app
from harness.cli.console import bars
from harness.cli.flags import PLUGINS, argument, flag, option
from harness.errors import BadOption


@app.command()
def check(
    stage: Literal["merger", "premerge", "postmerge"] = argument("The kind of method."),
    name: str = argument("NAME or module:function[:key=value,...]"),
    baselines: Path = option(
        "The folder with the recorded scores of mergers.", Path("tests/baselines")
    ),
    record: bool = flag("Record the merger's scores in --baselines.", "--record"),
    plugins: list[Path] | None = PLUGINS,
) -> int:
    """Test the properties of a method and, of a merger, its quality; exit 1 if a test fails."""
    from harness.checking.battery import battery, ok
    from harness.options import parse_choice

    if record and stage != "merger":
        raise BadOption(f"--record is for mergers, found a {stage} method; leave it out")
    choice = parse_choice(name)
    tests = battery(stage, choice)
    findings = []
    for checked in tests.properties:
        findings.append(tests.find(checked))
        print(findings[-1], flush=True)
    if stage != "merger" or not ok(findings):
        return 0 if ok(findings) else 1
    from harness.checking.quality import quality

    with bars() as advance:
        report = quality(choice, baselines=baselines, record=record, progress=advance)
    print(f"\n{report}")
    return 0 if report.ok else 1
