"""Shell: output folders with a marker that lists their files, each replaced in one step."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import unfinished
from harness.errors import OutputExists
from harness.files import (
    as_cannot_write,
    check_name,
    check_place,
    file_hash,
    new_parents,
    read_json,
    write_json,
)
from harness.hashes import digest_of
from harness.unfinished import is_unfinished

FILES = "files"
"""The key under which the marker of a folder lists the files in it, with their hashes."""


@dataclass(frozen=True)
class Layout:
    """A kind of output folder: `what` it is called in messages, and the name of its marker.

    The marker is a JSON file that lists the files of the folder with their hashes. Only these
    files, unchanged, and those that match the pattern `more` count as written by this program.
    """

    what: str
    marker: str
    more: str = "(?!)"

    def write(
        self, folder: Path, fields: Mapping[str, Any], digests: Mapping[str, str] | None = None
    ) -> None:
        """Write the marker, after all other files: the fields `fields`, and a hash of every file.

        `digests` are hashes, by path, of files that need not be read again.
        """
        inside = [name for name in self._inside(folder) if name != self.marker]
        hashes = {name: (digests or {}).get(name) or file_hash(folder / name) for name in inside}
        hashes |= {self.marker: digest_of([fields, hashes])}
        write_json(folder / self.marker, {**fields, FILES: hashes})

    def read_marker(self, folder: Path) -> dict[str, Any]:
        """The contents of the marker of a folder. Raises OutputExists if it cannot be read."""
        return read_json(folder / self.marker, f"a record of {self.what}", error=OutputExists)

    def is_edited(self, folder: Path) -> bool:
        """Whether the marker of a folder was changed since it was written; False if it lists no
        hashes."""
        fields = self.read_marker(folder) if (folder / self.marker).is_file() else {}
        hashes = fields.pop(FILES, None)
        if not isinstance(hashes, dict):
            return False
        return bool(hashes.pop(self.marker, None) != digest_of([fields, hashes]))

    def foreign(self, folder: Path) -> dict[str, str]:
        """Paths in a folder that are not as this program wrote them, as "foreign" or "edited".

        Raises OutputExists for a marker that lists no files.
        """
        marker = folder / self.marker
        fields = self.read_marker(folder)
        hashes = fields.pop(FILES, None)
        if not isinstance(hashes, dict):
            raise OutputExists(
                f"{marker} does not list '{FILES}': an older version wrote it, say; move {folder} "
                "away, or choose another output"
            )
        edited = self.is_edited(folder) or marker.is_symlink()
        faults = {self.marker: "edited"} if edited else {}
        for name in self._inside(folder):
            path = folder / name
            if name == self.marker:
                continue
            if name not in hashes:
                faults[name] = "foreign"
            elif path.is_symlink() or file_hash(path) != hashes[name]:
                faults[name] = "edited"
        return faults

    def _inside(self, folder: Path) -> list[str]:
        """The relative paths that the marker should list: all files and links, and the marker.

        Without what a killed run left of the marker; links are not followed.
        """
        found = []
        for place, folders, files in os.walk(folder):
            links = [name for name in folders if os.path.islink(os.path.join(place, name))]
            found += [Path(place, name).relative_to(folder).as_posix() for name in (*files, *links)]
        listed = (name for name in sorted(found) if not re.fullmatch(self.more, name))
        return [name for name in listed if not self.is_unfinished_marker(folder / name)]

    def is_unfinished_marker(self, path: Path) -> bool:
        """Whether a path is an unfinished marker, left by a killed run."""
        return is_unfinished(path, path.with_name(self.marker))


def check_output(out: Path, layout: Layout, *, force: bool = False) -> None:
    """Raise OutputExists unless `out` is new, empty or, with `force`, an older folder of `layout`.

    Nothing that this program did not write is ever replaced.
    """
    place = Path(os.path.realpath(out))
    check_name(place)
    check_place(place.parent)
    if place == Path.cwd() or place in Path.cwd().parents:
        raise OutputExists(
            f"{out} is or contains the folder you are in, expected another folder: name another"
        )
    if place.is_mount():
        raise OutputExists(f"{out} is a mount point, expected a folder below it: name another")
    if not os.path.lexists(place):
        return
    if not place.is_dir():
        raise OutputExists(f"{place} is a file, expected a folder: choose another output")
    with as_cannot_write(out):
        if all(layout.is_unfinished_marker(path) for path in place.iterdir()):
            return
    if not (place / layout.marker).is_file():
        raise OutputExists(
            f"{out} exists and has no {layout.marker} of this program; expected a new or empty "
            "folder: choose another --out"
        )
    with as_cannot_write(out):
        faults = layout.foreign(place)
    if faults:
        names = [name if why == "foreign" else f"{name} ({why})" for name, why in faults.items()]
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise OutputExists(
            f"{out} holds {layout.what} and beside it {shown}, expected nothing but what "
            f"{layout.marker} lists: move the rest away, or choose another --out"
        )
    if not force:
        raise OutputExists(
            f"{out} holds {layout.what} already; choose another --out, or --force to replace it"
        )


@contextmanager
def new_folder(out: Path, layout: Layout, *, force: bool = False) -> Iterator[Path]:
    """A new folder that replaces `out` when the block succeeds; until then `out` stays as it is.

    A run that is stopped leaves either the old folder or the new one. Raises OutputExists as
    `check_output` does, and while another run writes the same folder; CannotWrite without space.
    """
    place = Path(os.path.realpath(out))
    check_output(out, layout, force=force)
    with as_cannot_write(out), new_parents(place.parent):
        with unfinished.folder_lock(place.parent):
            if unfinished.is_written(place):
                raise OutputExists(f"another run is writing {out}; wait for it, or choose another")
            partial, number = unfinished.new(place, unfinished.make_folder)
        try:
            unfinished.tidy(place)
            yield partial
            check_output(out, layout, force=force)  # another run may have written it meanwhile
            _swap(partial, place)
        finally:
            unfinished.remove_path(partial)
            if number >= 0:
                os.close(number)


def _swap(new: Path, old: Path) -> None:
    """Move the folder `new` to `old`; a non-empty old folder moves to `new`, or is removed."""
    if not old.exists() or not any(old.iterdir()):
        new.replace(old)  # an empty folder is replaced at once
    elif not _exchange(new, old):
        aside = old.with_name(f".{old.name}.{secrets.token_hex(8)}.old")
        old.replace(aside)
        try:
            new.replace(old)
        except OSError:
            aside.replace(old)
            raise
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders atomically; False if the system does not support it."""
    try:
        rename: Callable[..., int] = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of Linux
    if rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(second))
