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
    """The settings of one server."""

    bundles: Mapping[str, Path] = field(default_factory=dict)  # the folder of each bundle by its served name
    host: str = "127.0.0.1"  # address to listen on
    port: int = 8000  # 0: any free one
    uds: Path | None = None  # path of a Unix socket to listen on, instead of host and port
    token: str | None = None  # the bearer token that clients have to send; None: no token
    cors: tuple[str, ...] = ()  # origins whose pages may send requests; *: any
    # Host names that clients may use, besides loopback ones; empty: any, unless it is bound to loopback.
    hosts: tuple[str, ...] = ()
    access_log: bool = True  # whether each request is a line on standard error
    repository: Path | None = None  # folder of bundles that can be loaded while it runs; None: no loading
    device: str = "auto"  # as in `seqpipe.load`
    threads: int | None = None  # parallel runs of one bundle on a CPU; None: one per core, divided among the processes
    processes: int = 1  # that share the port
    delay_ms: float = 0.0  # time that the oldest request waits for others to form a batch
    timeout_s: float = 30.0  # maximum time of a request, from its first byte to its answer
    max_waiting_tokens: int = 65_536  # (estimated) of one bundle, read and generated
    max_body_bytes: int = 4 << 20
    max_items: int = 1_024  # inputs in a request
    max_pixels: int = 20_000_000  # of a picture
    max_samples: int = 4_800_000  # of a sound after resampling; five minutes at 16,000 a second
    max_length: int = 1_000  # maximum of the decode option `max_length` in a request
    max_beams: int = 20  # the same for `beams` and `n_best`
    max_header_bytes: int = 32 << 10  # approximate maximum size of the first line and the headers of a request
    max_connections: int = 1_000  # of a process; more wait to be accepted
    read_s: float = 20.0  # maximum time to send the body of a request
    idle_s: float = 60.0  # maximum time of a connection without complete headers

    @property
    def write_s(self) -> float:
        """Maximum time in which a client reads nothing of a response."""
        return min(self.read_s, self.idle_s)


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
