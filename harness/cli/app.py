"""The typer app, to which every command adds itself."""

from __future__ import annotations

import typer

from harness import __version__
from harness.cli.flags import option

app = typer.Typer(
    name="harness",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"harness {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: bool = option(
        "Print the version.", False, "--version", callback=_version, is_eager=True
    ),
) -> None:
    """Is this merge good, and if its score is low, is it the encoder or only the head?"""
