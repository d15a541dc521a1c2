"""`seqpipe serve`: serve bundles over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.options import Device, Quiet, make_console
from seqpipe.errors import EnvError, UsageError

_Bundles = Annotated[
    list[str] | None,
    typer.Argument(metavar="[BUNDLE | NAME=BUNDLE]...", help="Folders of bundles, with the name to serve each as."),
]
_Host = Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0: all.")]
_Port = Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="Port; 0: any free one.")]
_Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Parallel runs of each bundle; default: one per core.")
]
_Processes = Annotated[int, typer.Option("--processes", min=1, help="Processes that share the port.")]
_Delay = Annotated[
    float, typer.Option("--delay-ms", min=0, help="Time that a request waits for others to form a batch.")
]
_Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Maximum time of a request, in seconds.")]
_WaitingTokens = Annotated[
    int, typer.Option("--max-waiting-tokens", min=1, help="Maximum number of waiting tokens per bundle.")
]
_Body = Annotated[int, typer.Option("--max-body", min=1, help="Maximum size of a request body, in bytes.")]
_Items = Annotated[int, typer.Option("--max-items", min=1, help="Maximum number of inputs in one request.")]
_Length = Annotated[int, typer.Option("--max-length", min=1, help="Maximum of max_length in a request.")]
_Beams = Annotated[int, typer.Option("--max-beams", min=1, help="Maximum of beams and n_best in a request.")]
_Connections = Annotated[
    int, typer.Option("--max-connections", min=1, help="Maximum number of connections; more wait.")
]
_Read = Annotated[float, typer.Option("--read-timeout", min=0.1, help="Maximum time to send a body, in seconds.")]
_Idle = Annotated[
    float, typer.Option("--idle-timeout", min=0.1, max=60, help="Maximum time until the next request's headers, in s.")
]
_Uds = Annotated[Path | None, typer.Option("--uds", help="Unix socket to listen on, instead of host and port.")]
_TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", help="File with the bearer token that clients send; default: SEQPIPE_TOKEN."),
]
_Cors = Annotated[
    list[str] | None, typer.Option("--cors", metavar="ORIGIN", help="Origin whose pages may send requests; repeatable.")
]
_Hosts = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", help="Host name that clients may use besides localhost; repeatable."),
]
_Repository = Annotated[
    Path | None,
    typer.Option("--repository", help="Folder of bundles: all are served, and can be loaded and unloaded over HTTP."),
]
_AccessLog = Annotated[
    bool, typer.Option("--access-log/--no-access-log", help="Log each request as a line of JSON on standard error.")
]


def serve(
    bundles: _Bundles = None,
    host: _Host = "127.0.0.1",
    port: _Port = 8000,
    device: Device = "auto",
    threads: _Threads = None,
    processes: _Processes = 1,
    delay_ms: _Delay = 0.0,
    timeout: _Timeout = 30.0,
    max_waiting_tokens: _WaitingTokens = 65_536,
    max_body: _Body = 4 << 20,
    max_items: _Items = 1_024,
    max_length: _Length = 1_000,
    max_beams: _Beams = 20,
    max_connections: _Connections = 1_000,
    read_timeout: _Read = 20.0,
    idle_timeout: _Idle = 60.0,
    uds: _Uds = None,
    token_file: _TokenFile = None,
    cors: _Cors = None,
    allow_host: _Hosts = None,
    repository: _Repository = None,
    access_log: _AccessLog = True,
    quiet: Quiet = False,
) -> None:
    """Answer requests over HTTP, in batches. Needs no PyTorch."""
    if os.name == "nt":
        raise EnvError("seqpipe serve needs Linux or macOS; on Windows run it in the Windows Subsystem for Linux")
    try:
        from seqpipe.serve.auth import check_hosts, check_origins, read_token
        from seqpipe.serve.repository import bundles as repository_bundles
        from seqpipe.serve.server import serve as run_server
        from seqpipe.serve.settings import Settings, bundles_by_name
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "seqpipe":
            raise
        raise EnvError(f"{package} is not installed: pip install 'seqpipe-nlp[serve]'") from error
    if not bundles and repository is None:
        raise UsageError("name at least one bundle, or --repository FOLDER: seqpipe serve runs/NAME/bundle")
    settings = Settings(
        bundles={**(repository_bundles(repository) if repository else {}), **bundles_by_name(bundles or [])},
        host=host,
        port=port,
        device=device,
        threads=threads,
        processes=processes,
        delay_ms=delay_ms,
        timeout_s=timeout,
        max_waiting_tokens=max_waiting_tokens,
        max_body_bytes=max_body,
        max_items=max_items,
        max_length=max_length,
        max_beams=max_beams,
        max_connections=max_connections,
        read_s=read_timeout,
        idle_s=idle_timeout,
        uds=uds,
        token=read_token(token_file),
        cors=check_origins(cors or ()),
        hosts=check_hosts(allow_host or ()),
        repository=repository,
        access_log=access_log,
    )
    run_server(settings, make_console(quiet))
