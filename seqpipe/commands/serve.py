"""`seqpipe serve`: bundles behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.options import Device, Quiet, make_console
from seqpipe.errors import EnvError, UsageError

MaxWaitingTokens = Annotated[
    int, typer.Option("--max-waiting-tokens", min=1, help="Tokens that may wait for each bundle; more get 429.")
]
MaxBody = Annotated[int, typer.Option("--max-body", min=1, help="Largest request body, in bytes.")]
MaxItems = Annotated[int, typer.Option("--max-items", min=1, help="Most inputs in one request.")]
MaxConnections = Annotated[int, typer.Option("--max-connections", min=1, help="Most connections at a time.")]
ReadTimeout = Annotated[
    float, typer.Option("--read-timeout", min=0.1, help="Seconds to send a request, or to read a response, in.")
]
IdleTimeout = Annotated[
    float, typer.Option("--idle-timeout", min=1, help="Seconds that a connection without a request is kept.")
]
DelayMs = Annotated[
    float, typer.Option("--delay-ms", min=0, help="Time a request waits for others to form a batch with.")
]
Uds = Annotated[Path | None, typer.Option("--uds", help="Unix socket to listen at, in place of host and port.")]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", help="File with the bearer token that clients send; default: SEQPIPE_TOKEN."),
]
Cors = Annotated[
    list[str] | None, typer.Option("--cors", metavar="ORIGIN", help="Origin whose pages may call; repeatable.")
]
RepositoryFolder = Annotated[
    Path | None,
    typer.Option("--repository", help="Folder of bundles: all are served, and may be loaded and unloaded by HTTP."),
]
AccessLog = Annotated[
    bool, typer.Option("--access-log/--no-access-log", help="Log each request as a line of JSON on standard error.")
]


def serve(
    bundles: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BUNDLE | NAME=BUNDLE]...", help="Folders of bundles, with the name to serve each as."),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen at; 0.0.0.0: every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="Port; 0: any that is free.")] = 8000,
    device: Device = "auto",
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Parallel runs of each bundle; default: one per core.")
    ] = None,
    delay_ms: DelayMs = 0.0,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Maximum time of a request, in seconds.")] = 30.0,
    max_waiting_tokens: MaxWaitingTokens = 65_536,
    max_body: MaxBody = 4 << 20,
    max_items: MaxItems = 1_024,
    max_connections: MaxConnections = 1_000,
    read_timeout: ReadTimeout = 20.0,
    idle_timeout: IdleTimeout = 75.0,
    uds: Uds = None,
    token_file: TokenFile = None,
    cors: Cors = None,
    repository: RepositoryFolder = None,
    access_log: AccessLog = True,
    quiet: Quiet = False,
) -> None:
    """Answer requests over HTTP, in batches. Needs no PyTorch."""
    try:
        from seqpipe.runtime.serve.auth import read_token
        from seqpipe.runtime.serve.catalog import named
        from seqpipe.runtime.serve.repository import bundles as stored
        from seqpipe.runtime.serve.server import serve as run_server
        from seqpipe.runtime.serve.settings import Settings
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("seqpipe"):
            raise
        raise EnvError(f"{error.name} is not installed: pip install 'seqpipe-nlp[serve]'") from error
    if not bundles and repository is None:
        raise UsageError("name at least one bundle, or --repository FOLDER: seqpipe serve runs/NAME/bundle")
    settings = Settings(
        bundles={**(stored(repository) if repository else {}), **named(bundles or [])},
        host=host,
        port=port,
        device=device,
        threads=threads,
        delay_ms=delay_ms,
        timeout_s=timeout,
        max_waiting_tokens=max_waiting_tokens,
        max_body_bytes=max_body,
        max_items=max_items,
        max_connections=max_connections,
        read_s=read_timeout,
        idle_s=idle_timeout,
        uds=uds,
        token=read_token(token_file),
        cors=tuple(cors or ()),
        repository=repository,
        access_log=access_log,
    )
    run_server(settings, make_console(quiet))
