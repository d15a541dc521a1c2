"""The sockets that a server listens at."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator

from seqpipe.errors import UsageError
from seqpipe.runtime.serve.settings import Settings
from seqpipe.runtime.serve.sockets import activation_socket, unix_socket

_OTHER_FILES = 200  # descriptors that a process needs besides those of connections


@contextlib.contextmanager
def listening(settings: Settings) -> Iterator[list[socket.socket]]:
    """A socket for each process: the one that systemd passes, else a Unix socket, else at host and port."""
    with contextlib.ExitStack() as stack:
        listener = activation_socket()
        if listener is None and settings.uds is not None:
            listener = stack.enter_context(unix_socket(settings.uds))
        listeners = listen(settings) if listener is None else [listener] * settings.processes
        for each in listeners:
            stack.callback(each.close)
        yield listeners


def listen(settings: Settings) -> list[socket.socket]:
    """A socket for each process, all at the same address; UsageError if nothing can listen there.

    With several processes the system gives each a share of the connections, where it can (SO_REUSEPORT).
    """
    first = _bound(settings, settings.port)
    if settings.processes == 1:
        return [first]
    if not hasattr(socket, "SO_REUSEPORT"):
        return [first] * settings.processes
    port = first.getsockname()[1]
    first.close()  # it has shown that nobody else listens there, which those that share a port do not
    return [_bound(settings, port, shared=True) for _ in range(settings.processes)]


def address(listener: socket.socket) -> str:
    """Where a client finds it."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def allow_connections(settings: Settings) -> None:
    """Raises this process's limit of open files to what the connections need, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + _OTHER_FILES
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _bound(settings: Settings, port: int, shared: bool = False) -> socket.socket:
    place = f"{settings.host}:{port}"
    try:
        addresses = socket.getaddrinfo(settings.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        listener = socket.socket(addresses[0][0], socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"{place}: no address to listen at ({error}); give another --host") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(addresses[0][4])
    except OSError as error:
        listener.close()
        message = f"{place}: cannot be listened at ({error.strerror}); give another --host or --port"
        raise UsageError(message) from error
    return listener
