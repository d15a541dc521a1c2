"""One writer for a run folder: an advisory lock that the operating system releases when its holder ends."""

from __future__ import annotations

import glob
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from seqpipe.config.run_layout import LOCK, RUN_FILES, STATE
from seqpipe.errors import EnvError, UsageError
from seqpipe.files import explain_disk_errors, make_folder, remove_partial_files

if sys.platform == "win32":
    import msvcrt

    def _take(handle: int) -> None:
        os.lseek(handle, _BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(*error.args) from error
else:
    import fcntl

    def _take(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


VARIABLE = "SEQPIPE_LOCK"
_BYTE = 1 << 30  # the locked byte on Windows, where others cannot read it; the holder's name comes before it
_PATIENCE, _PAUSE = 0.5, 0.02  # seconds to retry, if the holder ended or has not written its name


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Lock a run folder, created if missing, until the block ends, and clean up after a killed holder.

    `SEQPIPE_LOCK=off` disables the lock, for file systems without locks.

    Raises:
        UsageError: if another process holds the lock.
        EnvError: if the folder cannot be written, or its file system has no locks.
    """
    make_folder(folder)
    handle = None if os.environ.get(VARIABLE) == "off" else _open_locked(folder)
    try:
        remove_partial_files(folder, RUN_FILES)
        yield
    finally:
        if handle is not None:
            os.close(handle)


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


def _open_locked(folder: Path) -> int:
    """Open the lock file of a folder, lock it and write this process into it; return the handle."""
    path, deadline = folder / LOCK, time.monotonic() + _PATIENCE
    while True:
        with explain_disk_errors(path):
            try:
                handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            except FileNotFoundError:  # the folder was just moved aside
                make_folder(folder)
                continue
        with ExitStack() as unless_locked:
            unless_locked.callback(os.close, handle)
            is_locked = _try_lock(handle, path)
            # Between opening and locking the folder may have been moved aside and a new one created. Then the lock is
            # on a file that nobody else uses, and the next round opens the new one.
            is_here = False
            with suppress(FileNotFoundError):
                is_here = os.path.samestat(os.fstat(handle), path.stat())
            if is_locked and is_here:
                with explain_disk_errors(path):
                    os.ftruncate(handle, 0)
                    os.lseek(handle, 0, os.SEEK_SET)
                    os.write(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
                    os.fsync(handle)  # makes it visible to others on a network file system
                unless_locked.pop_all()
                return handle
            late = time.monotonic() > deadline
            if (late or not is_locked) and (holder := _holder(path, late)):
                raise UsageError(
                    f"{folder}: {holder} is writing to this run; wait until it ends, stop it, or choose "
                    "another folder (name: in the YAML, --output of `export` and `vectors`)"
                )
        time.sleep(_PAUSE)


def _try_lock(handle: int, path: Path) -> bool:
    """Take the lock; return False if another process has it."""
    try:
        _take(handle)
    except BlockingIOError:
        return False
    except OSError as error:
        raise EnvError(
            f"{path}: this file system has no locks ({error.strerror}), so two processes could write to one run; "
            f"make `runs` a link to a folder on another disk, or mount this one with locks. {VARIABLE}=off "
            "disables locking: then make sure that a run has only one writer"
        ) from error
    return True


def _holder(path: Path, late: bool) -> str:
    """Return the holder of a lock, for a message; "" if it is not known yet and it is not too `late` to wait.

    A new holder may not have written its name yet: then the file is empty, or names an earlier holder.
    """
    try:
        holder = json.loads(path.read_bytes())
        pid, host = int(holder["pid"]), str(holder["host"])
    except (OSError, ValueError, TypeError, KeyError):
        return "another process" if late else ""
    if late or host != socket.gethostname() or _is_alive(pid):
        return f"process {pid} on {host}"
    return ""


def _is_alive(pid: int) -> bool:
    """Return whether a process of this machine runs; always True on Windows."""
    if sys.platform != "win32":
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
    return True
