"""One writer for a run folder: an advisory lock that the operating system releases when its holder ends."""

from __future__ import annotations

import errno
import glob
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from seqpipe.config.run_layout import LOCK, LOCK_HOLDER, RUN_FILES, STATE
from seqpipe.errors import EnvError, UsageError
from seqpipe.files import explain_disk_errors, json_bytes, make_folder, remove_partial_files, write

LOCK_VARIABLE = "SEQPIPE_LOCK"
_RETRY_SECONDS, _RETRY_PAUSE = 0.5, 0.02  # to retry, if the holder ends or has not written its name
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Lock a run folder, created if missing, until the block ends, and clean up after a killed holder.

    `SEQPIPE_LOCK=off` disables the lock, for file systems without locks.

    Raises:
        UsageError: if another process holds the lock.
        EnvError: if the folder cannot be written, or its file system has no locks.
    """
    is_off = os.environ.get(LOCK_VARIABLE) == "off"
    make_folder(folder)
    with nullcontext() if is_off else _acquire(folder):
        remove_partial_files(folder, RUN_FILES)
        yield


@contextmanager
def lock_around(path: Path) -> Iterator[None]:
    """Lock the run folder that contains `path` until the block ends; a path outside of runs needs no lock."""
    path = Path(os.path.realpath(path))  # a link stays, and the file that it leads to is replaced
    place = path.parent
    folder = next((parent for parent in (place, *place.parents) if (parent / STATE).is_file()), None)
    if folder is None:
        yield
    else:
        with run_lock(folder):
            remove_partial_files(place, [glob.escape(path.name)])
            yield


def _acquire(folder: Path) -> FileLock:
    """Lock a folder, and write this process beside the lock; return the lock, which a context releases."""
    while True:
        make_folder(folder)
        with suppress(FileNotFoundError), ExitStack() as unless_same:
            before = folder.stat()
            lock = _lock(folder)
            unless_same.callback(lock.release)
            # Before the lock was taken the folder may have been moved aside. Then it is on a file that nobody else
            # uses, and the next round opens that of the new folder.
            if os.path.samestat(before, folder.stat()):
                write(folder / LOCK_HOLDER, json_bytes({"pid": os.getpid(), "host": socket.gethostname()}))
                unless_same.pop_all()
                return lock


def _lock(folder: Path) -> FileLock:
    path = folder / LOCK
    lock = FileLock(path, _RETRY_SECONDS, poll_interval=_RETRY_PAUSE, fallback_to_soft=False)
    try:
        with explain_disk_errors(path):
            lock.acquire()
    except Timeout:
        raise UsageError(
            f"{folder}: {_holder(folder)} is writing to this run; wait until it ends, stop it, or choose another "
            "folder (name: in the YAML, --output of `export` and `vectors`)"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise EnvError(
            f"{path}: this file system has no locks ({error.strerror}), so two processes could write to one run; "
            f"make `runs` a link to a folder on another disk, or mount this one with locks. {LOCK_VARIABLE}=off "
            "disables locking: then make sure that a run has only one writer"
        ) from error
    return lock


def _holder(folder: Path) -> str:
    """Return the holder of a lock, for a message."""
    try:
        holder = json.loads((folder / LOCK_HOLDER).read_bytes())
        return f"process {int(holder['pid'])} on {holder['host']}"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"
