"""Settings of a server: its bundles and their names, its address, and its limits."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seqpipe.errors import UsageError
from seqpipe.runtime import bundle

RESERVED = ("chat", "completions", "embeddings", "files", "models")  # below /v1, these belong to OpenAI's protocol
SHUTDOWN_NOTICE = signal.SIGUSR1  # announces to a process of the server that it will be stopped
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Settings:
    """The settings of one server.

    Attributes:
        bundles: The folder of each bundle by its served name.
        host: The address to listen on.
        port: The port; 0: any free one.
        uds: The path of a Unix socket to listen on, instead of host and port.
        token: The bearer token that clients have to send; None: no token.
        cors: The origins whose pages may send requests; *: any.
        hosts: The host names that clients may use, besides loopback ones; empty: any, unless it is bound to loopback.
        access_log: Whether each request is a line on standard error.
        repository: The folder of bundles that can be loaded while it runs; None: no loading.
        device: As in `seqpipe.load`.
        threads: Parallel runs of one bundle on a CPU; None: one per core, divided among the processes.
        processes: Processes that share the port.
        delay_ms: Time that the oldest request waits for others to form a batch.
        timeout_s: Maximum time of a request, from its first byte to its answer.
        max_waiting_tokens: Maximum number of waiting tokens (estimated) of one bundle, read and generated.
        max_body_bytes: Maximum size of a request body.
        max_items: Maximum number of inputs in a request.
        max_length: Maximum of the decode option `max_length` in a request.
        max_beams: The same for `beams` and `n_best`.
        max_header_bytes: Approximate maximum size of the first line and the headers of a request.
        max_connections: Maximum number of connections of a process; more wait to be accepted.
        read_s: Maximum time to send the body of a request.
        idle_s: Maximum time of a connection without complete headers.
    """

    bundles: Mapping[str, Path] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None
    token: str | None = None
    cors: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    access_log: bool = True
    repository: Path | None = None
    device: str = "auto"
    threads: int | None = None
    processes: int = 1
    delay_ms: float = 0.0
    timeout_s: float = 30.0
    max_waiting_tokens: int = 65_536
    max_body_bytes: int = 4 << 20
    max_items: int = 1_024
    max_length: int = 1_000
    max_beams: int = 20
    max_header_bytes: int = 32 << 10
    max_connections: int = 1_000
    read_s: float = 20.0
    idle_s: float = 60.0


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


def check_name(name: str) -> None:
    """Raise UsageError for an invalid bundle name."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be a name in an address: letters, digits, . _ and -; write NAME=FOLDER")
    if name in RESERVED:
        raise UsageError(f"the name {name!r} is reserved for the OpenAI protocol; write NAME=FOLDER with another name")
