"""Settings of a server: its bundles and their names, its address, and its limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from typer import Option

from seqpipe.errors import UsageError

V1_RESERVED = ("chat", "completions", "embeddings", "files", "models")  # below /v1, these belong to OpenAI's protocol
SHUTDOWN_NOTICE = "SIGUSR1"  # the signal that announces to a process of the server that it will be stopped
# In which a client has to read something while all connections are in use, or unread responses fill the memory.
CROWDED_WRITE_SECONDS = 0.4
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Settings:
    """The settings of one server; those with an `Option` are options of `seqpipe serve`."""

    host: Annotated[str, Option("--host", help="Address to listen on; 0.0.0.0: all.")] = "127.0.0.1"
    port: Annotated[int, Option("--port", "-p", min=0, max=65535, help="Port; 0: any free one.")] = 8000
    uds: Annotated[Path | None, Option("--uds", help="Unix socket to listen on, not host and port.")] = None
    device: Annotated[str, Option("--device", help="auto, cpu, cuda or cuda:N; a missing device is an error.")] = "auto"
    threads: Annotated[
        int | None, Option("--threads", min=1, help="Parallel runs of each bundle; default: one per core.")
    ] = None
    processes: Annotated[int, Option("--processes", min=1, help="Processes that share the port.")] = 1
    delay_ms: Annotated[
        float, Option("--delay-ms", min=0, help="Time that a request waits for others to form a batch.")
    ] = 0.0
    timeout_s: Annotated[float, Option("--timeout", min=0.1, help="Maximum seconds of a request.")] = 30.0
    max_waiting_tokens: Annotated[
        int, Option("--max-waiting-tokens", min=1, help="Maximum number of waiting tokens per bundle.")
    ] = 65_536
    max_body_bytes: Annotated[int, Option("--max-body", min=1, help="Maximum bytes of a request body.")] = 4 << 20
    max_items: Annotated[int, Option("--max-items", min=1, help="Maximum inputs in one request.")] = 1_024
    max_pixels: Annotated[int, Option("--max-pixels", min=1, help="Maximum pixels of a picture.")] = 20_000_000
    max_samples: Annotated[
        int, Option("--max-samples", min=1, help="Maximum samples of a sound at the bundle's rate.")
    ] = 4_800_000  # five minutes at 16,000 a second
    max_length: Annotated[int, Option("--max-length", min=1, help="Maximum of max_length in a request.")] = 1_000
    max_beams: Annotated[int, Option("--max-beams", min=1, help="Maximum of beams and n_best.")] = 20
    max_connections: Annotated[
        int, Option("--max-connections", min=1, help="Maximum number of connections of a process; more wait.")
    ] = 1_000
    read_s: Annotated[float, Option("--read-timeout", min=0.1, help="Maximum seconds for a body.")] = 20.0
    idle_s: Annotated[
        float, Option("--idle-timeout", min=0.1, max=60, help="Maximum seconds until the next request's headers.")
    ] = 60.0
    repository: Annotated[
        Path | None, Option("--repository", help="Folder of bundles to serve, load and unload over HTTP.")
    ] = None
    access_log: Annotated[
        bool, Option("--access-log/--no-access-log", help="Log each request as JSON on standard error.")
    ] = True
    bundles: Mapping[str, Path] = field(default_factory=dict)  # the folder of each bundle by its served name
    token: str | None = None  # the bearer token that clients have to send; None: no token
    cors: tuple[str, ...] = ()  # origins whose pages may send requests; *: any
    # Host names that clients may use, besides loopback ones; empty: any, unless it is bound to loopback.
    hosts: tuple[str, ...] = ()
    max_header_bytes: int = 32 << 10  # approximate maximum size of the first line and the headers of a request

    @property
    def write_s(self) -> float:
        """Maximum time in which a client reads nothing of a response."""
        return min(self.read_s, self.idle_s)


def check_name(name: str) -> None:
    """Raise UsageError for an invalid bundle name."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be a name in an address: letters, digits, . _ and -; write NAME=FOLDER")
    if name in V1_RESERVED:
        raise UsageError(f"the name {name!r} is reserved for the OpenAI protocol; write NAME=FOLDER with another name")
