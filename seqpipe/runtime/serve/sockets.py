"""Sockets to listen on that uvicorn does not make itself: a Unix socket with permissions, and the one systemd gives."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from seqpipe.errors import UsageError

MODE = 0o660  # owner and group may connect
BACKLOG = 2048
_FIRST = 3  # file descriptor of the first socket that systemd passes


@contextmanager
def unix_socket(path: Path, mode: int = MODE) -> Iterator[socket.socket]:
    """A listening Unix socket at this path, which goes when the server ends; one that nobody listens on is replaced.

    Raises:
        UsageError: if something else is there, a server listens there already, or the path is no place for a socket.
    """
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o777 & ~mode)  # so that at no time others may connect
    try:
        listener.bind(str(path))
    except OSError as error:  # a path of over 107 bytes, a folder that is not there or not writable
        listener.close()
        raise UsageError(f"--uds: {path}: no socket can be made there: {error.strerror or error}") from error
    finally:
        os.umask(mask)
    inode = path.stat().st_ino
    try:
        listener.listen(BACKLOG)
        listener.setblocking(False)
        yield listener
    finally:
        listener.close()
        if path.exists() and path.stat().st_ino == inode:  # not that of a server that came after
            path.unlink()


def _remove_stale(path: Path) -> None:
    """Remove a socket that an ended server left behind; UsageError if what is there is something else."""
    try:
        status = path.lstat()
    except OSError:  # nothing there, or no way there, which `bind` reports
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise UsageError(f"--uds: {path}: is there and is no socket; name another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except OSError as error:
            raise UsageError(f"--uds: {path}: is there and may be in use ({error}); remove it if it is not") from error
        else:
            raise UsageError(f"--uds: {path}: another server listens there; stop it, or name another path")


def activation_socket(environment: Mapping[str, str] = os.environ) -> socket.socket | None:
    """The listening socket that systemd passed to this process (sd_listen_fds(3)); None if it passed none.

    Raises:
        UsageError: if it passed several.
    """
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return None
    count = int(environment.get("LISTEN_FDS", "0"))
    if count > 1:
        raise UsageError(f"systemd passed {count} sockets; seqpipe serve listens on one: leave one ListenStream=")
    if not count:
        return None
    listener = socket.socket(fileno=_FIRST)
    os.set_inheritable(_FIRST, False)
    listener.setblocking(False)
    return listener
