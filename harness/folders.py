"""Shell: a folder of ours, told by what it lists, takes the place of another in one step."""

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
from harness.files import check_name, check_place, file_hash, made, read_json, saying, write_json
from harness.hashes import digest_of
from harness.unfinished import is_unfinished

FILES = "files"
"""The key under which a folder's marker lists all files in it, with a hash of each."""


@dataclass(frozen=True)
class Layout:
    """What a kind of folder of ours is: what one says of it, and its marker.

    That is a JSON object beside which nothing is ours but what it lists, as it was written, and
    what is called as in the pattern `more`.
    """

    what: str
    marker: str
    more: str = "(?!)"

    def write(
        self, folder: Path, said: Mapping[str, Any], known: Mapping[str, str] | None = None
    ) -> None:
        """Write the marker, last of all: what it says, and a hash of every file by its path.

        `known` are hashes of files that need not be read again.
        """
        inside = [name for name in self._inside(folder) if name != self.marker]
        hashes = {name: (known or {}).get(name) or file_hash(folder / name) for name in inside}
        hashes |= {self.marker: digest_of([said, hashes])}
        write_json(folder / self.marker, {**said, FILES: hashes})

    def said(self, folder: Path) -> dict[str, Any]:
        """What the marker of a folder says."""
        return read_json(folder / self.marker, f"a record of {self.what}", error=OutputExists)

    def is_edited(self, folder: Path) -> bool:
        """Whether somebody changed the marker of a folder since it was written, if it says that."""
        said = self.said(folder) if (folder / self.marker).is_file() else {}
        hashes = said.pop(FILES, None)
        if not isinstance(hashes, dict):
            return False
        return bool(hashes.pop(self.marker, None) != digest_of([said, hashes]))

    def foreign(self, folder: Path) -> dict[str, str]:
        """What stands in a folder and was not written so by us, by its path: foreign, or edited.

        Raises OutputExists where the marker does not say what was.
        """
        marker = folder / self.marker
        said = self.said(folder)
        hashes = said.pop(FILES, None)
        if not isinstance(hashes, dict):
            raise OutputExists(
                f"{marker} does not list '{FILES}', as older versions did not; move {folder} away, "
                "or choose another output"
            )
        edited = self.is_edited(folder) or marker.is_symlink()
        odd = {self.marker: "edited"} if edited else {}
        for name in self._inside(folder):
            path = folder / name
            if name == self.marker:
                continue
            if name not in hashes:
                odd[name] = "foreign"
            elif path.is_symlink() or file_hash(path) != hashes[name]:
                odd[name] = "edited"
        return odd

    def _inside(self, folder: Path) -> list[str]:
        """What the marker should list, itself too: all that is no folder, by its path there.

        Not what is left of its being written; no link is followed.
        """
        found = []
        for place, folders, files in os.walk(folder):
            links = [name for name in folders if os.path.islink(os.path.join(place, name))]
            found += [Path(place, name).relative_to(folder).as_posix() for name in (*files, *links)]
        mine = (name for name in sorted(found) if not re.fullmatch(self.more, name))
        return [name for name in mine if not self.begun(folder / name)]

    def begun(self, path: Path) -> bool:
        """Whether a path is what a killed run left of the marker."""
        return is_unfinished(path, path.with_name(self.marker))


def check_output(out: Path, layout: Layout, *, force: bool = False) -> None:
    """Raise OutputExists unless `out` is free, empty, or with `force` an older one of the kind.

    Nothing that this program did not write is ever replaced.
    """
    place = Path(os.path.realpath(out))
    check_name(place)
    check_place(place.parent)
    if place == Path.cwd() or place in Path.cwd().parents:
        raise OutputExists(f"{out} is the folder you are in, expected one of its own: name another")
    if place.is_mount():
        raise OutputExists(f"{out} is a mount point, expected a folder below it: name another")
    if not os.path.lexists(place):
        return
    if not place.is_dir():
        raise OutputExists(f"{place} is a file, expected a folder: choose another output")
    with saying(out):
        if all(layout.begun(path) for path in place.iterdir()):
            return
    if not (place / layout.marker).is_file():
        raise OutputExists(
            f"{out} exists and has no {layout.marker} of this program; expected a new or empty "
            "folder: choose another --out"
        )
    with saying(out):
        odd = layout.foreign(place)
    if odd:
        names = [name if why == "foreign" else f"{name} ({why})" for name, why in odd.items()]
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise OutputExists(
            f"{out} holds {layout.what} and beside it {shown}, expected nothing but what "
            f"{layout.marker} lists: move it away, or choose another --out"
        )
    if not force:
        raise OutputExists(f"{out} holds {layout.what} already; choose another --out, or --force")


@contextmanager
def new_folder(out: Path, layout: Layout, *, force: bool = False) -> Iterator[Path]:
    """A folder that takes the place of `out` when the block succeeds; until then nothing changes.

    Whoever is stopped leaves the old folder or the new one. Raises OutputExists as `check_output`
    does, and while another run writes the same folder; CannotWrite where there is no room.
    """
    place = Path(os.path.realpath(out))
    check_output(out, layout, force=force)
    with saying(out), made(place.parent):
        with unfinished.turn(place.parent):
            if unfinished.is_written(place):
                raise OutputExists(f"another run is writing {out}; wait for it, or choose another")
            partial, number = unfinished.new(place, unfinished.make_folder)
        try:
            unfinished.tidy(place)
            yield partial
            check_output(out, layout, force=force)  # it may have been written meanwhile
            _swap(partial, place)
        finally:
            unfinished.take_away(partial)
            if number >= 0:
                os.close(number)


def _swap(new: Path, old: Path) -> None:
    """Give a folder the place of another, if there is one, which goes where the new one was."""
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
    """Exchange two folders in one step; False where the system cannot."""
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
