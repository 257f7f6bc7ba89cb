"""`harness leaderboard`: records -> a board, or whether records may join one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.cli import flags
from harness.cli.app import app
from harness.cli.console import one_line
from harness.cli.flags import Names, flag, option, passed_on
from harness.errors import BadOption, BrokenRecord
from harness.text import counted


@app.command()
def leaderboard(
    records: list[Path] = flags.RECORDS,
    out: Path | None = option("The folder for board.* and index.html."),
    tasks: Names = flags.TASKS,
    protocols: Names = flags.PROTOCOLS,
    limit: flags.Limit = flags.LIMIT,
    train_limit: flags.Limit = flags.TRAIN_LIMIT,
    draws: int | None = flags.DRAWS,
    max_length: int | None = flags.READ_LENGTH,
    models: Names = flags.MODELS,
    base: Names = flags.BASE,
    each: bool = flag("A board for each of RECORDS, and one page over all.", "--each"),
    submit_check: bool = flag("Only say whether RECORDS may join --board.", "--submit-check"),
    board: list[Path] | None = option("With --submit-check: the records of a board."),
    plugins: list[Path] | None = flags.PLUGINS,
) -> None:
    """Make a board of records: Markdown, CSV, Parquet, LaTeX and an HTML page."""
    arguments = passed_on(locals(), "records", "submit_check", "board")
    from harness.reporting.boards.leaderboard import leaderboard as run

    if submit_check:
        if extra := [name.replace("_", "-") for name, value in arguments.items() if value]:
            raise BadOption(
                f"--submit-check reads all records, writes no board; leave out --{extra[0]}"
            )
        _print_findings(records, board or [])
        return
    if board:
        raise BadOption("--board is given alone; expected --submit-check beside it")
    if out is None:
        raise BadOption("leaderboard has no --out; expected the folder for the board")
    for path in run(records, bases=arguments.pop("base"), **arguments):
        print(f"wrote {path}")


def _print_findings(records: Sequence[Path], board: Sequence[Path]) -> None:
    """Print why records may not join a board. Raises BrokenRecord, with their number, if any may
    not."""
    from harness.reporting.submission import findings

    found = findings(records, board)
    for line in (line for lines in found.values() for line in lines):
        print(one_line(line))
    called = ", ".join(map(str, board)) or "a board of their own"
    if refused := sum(map(bool, found.values())):
        raise BrokenRecord(
            f"{refused} of {counted(len(found), 'record')} may not join {called}: see above"
        )
    print(f"{counted(len(found), 'record')} may join {called}")
