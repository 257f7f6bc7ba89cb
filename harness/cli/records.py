"""`harness records`: packing records into one file, to share or commit, and unpacking."""

from __future__ import annotations

from pathlib import Path

import typer

from harness.cli.app import app
from harness.cli.flags import argument, option
from harness.text import counted

records = typer.Typer(name="records", help="Many records as one Parquet file, and back.")
app.add_typer(records)


@records.command()
def pack(
    folders: list[Path] = argument("Folders of records, or packs."),
    out: Path = option("The file to write, ending in .parquet.", ...),
    resamples: int | None = option("Keep only the first N resamples, for a smaller file.", None),
) -> None:
    """Pack records into one file, which every command reads like a folder of them."""
    from harness.evaluation.records import pack as run

    print(f"packed {counted(run(folders, out, resamples), 'record')} in {out}")


@records.command()
def unpack(
    file: Path = argument("A pack of records."), out: Path = option("The folder to write to.", ...)
) -> None:
    """Write the files of a pack, byte for byte as they were packed."""
    from harness.evaluation.packs import unpack as run

    print(f"unpacked {counted(len(run(file, out)), 'record')} to {out}")
