"""A folder of bundles that can be loaded while a server runs, by name and version, never by path."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seqpipe.errors import UsageError, did_you_mean
from seqpipe.runtime import bundle
from seqpipe.serve.http import HttpError
from seqpipe.serve.settings import check_name

_VERSION = re.compile(r"v?[0-9]{1,18}([._-][0-9]{1,18}){0,7}")


@dataclass(frozen=True)
class Location:
    """A bundle in the repository: its folder, and its version, "" for a bundle without version folders."""

    folder: Path
    version: str


def bundles(folder: Path) -> Mapping[str, Path]:
    """Return the newest version of every bundle of a repository, by name.

    Raises:
        UsageError: if the folder does not exist, or a bundle has an invalid name.
    """
    if not folder.is_dir():
        raise UsageError(f"--repository: {folder}: no such folder; create it, with a folder NAME for each bundle")
    try:
        return {name: locate_bundle(folder.resolve(), name).folder for name in names(folder)}
    except HttpError as error:
        raise UsageError(f"--repository: {folder}: {error.message}") from error


def bundles_by_name(items: Sequence[str]) -> Mapping[str, Path]:
    """Return the folder of each bundle by its name, from command-line arguments FOLDER or NAME=FOLDER.

    Raises:
        UsageError: for a name that cannot be part of an address, is reserved, or occurs twice.
    """
    bundles: dict[str, Path] = {}
    for item in items:
        name, equals, folder = item.partition("=")
        path = Path(folder if equals and not Path(item).is_dir() else item)
        name = name if path == Path(folder) and equals else bundle.read_manifest(path)[0].name
        check_name(name)
        if name in bundles:
            raise UsageError(f"{item}: the name {name!r} is given twice; write NAME={path} with another name")
        bundles[name] = path
    return bundles


def names(folder: Path) -> list[str]:
    """Return the names in a repository: folders with a bundle, or with versions of one."""
    folders = [
        entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink() and entry.name[0] != "."
    ]
    return sorted(entry.name for entry in folders if (entry / bundle.MANIFEST).exists() or versions(entry))


def versions(folder: Path) -> list[str]:
    """Return the versions of one bundle, oldest first: folders with numeric names (3, v3, 1.10, 2026-11-23)."""
    present = [entry.name for entry in folder.iterdir() if _VERSION.fullmatch(entry.name)]
    return sorted(present, key=lambda version: ([int(number) for number in re.findall("[0-9]+", version)], version))


def locate_bundle(root: Path, name: str, version: str | None = None) -> Location:
    """Return the location of a bundle: the given version, or the newest.

    Raises:
        UsageError: for an invalid name.
        HttpError: 404 if there is no such bundle or version, 422 for a link.
    """
    check_name(name)
    folder = root / name
    if not _is_folder(folder):
        raise HttpError(404, f"the repository has no bundle {name!r}{did_you_mean(name, names(root))}")
    present = versions(folder)
    if version is None and ((folder / bundle.MANIFEST).exists() or not present):
        return Location(folder, "")
    if version is not None and version not in present:
        there = ", ".join(present) or "none"
        raise HttpError(404, f"{name!r} has no version {version!r}; there is: {there}")
    chosen = present[-1] if version is None else version
    if not _is_folder(folder / chosen):
        raise HttpError(422, f"{name}/{chosen}: not a folder")
    return Location(folder / chosen, chosen)


def _is_folder(path: Path) -> bool:
    """Return whether this is a folder; HttpError for a link, which might point outside of the repository."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    if stat.S_ISLNK(mode):
        raise HttpError(422, f"{path.name}: is a link, which a repository may not contain; copy the bundle there")
    return stat.S_ISDIR(mode)
