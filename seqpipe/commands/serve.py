"""`seqpipe serve`: serve bundles over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.options import Device, Quiet, make_console
from seqpipe.errors import EnvError, UsageError, install_command


def serve(
    bundles: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BUNDLE | NAME=BUNDLE]...", help="Folders of bundles, with the name to serve each as."),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="Port; 0: any free one.")] = 8000,
    device: Device = "auto",
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Parallel runs of each bundle; default: one per core.")
    ] = None,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Processes that share the port.")] = 1,
    delay_ms: Annotated[
        float, typer.Option("--delay-ms", min=0, help="Time that a request waits for others to form a batch.")
    ] = 0.0,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Maximum seconds of a request.")] = 30.0,
    max_waiting_tokens: Annotated[
        int, typer.Option("--max-waiting-tokens", min=1, help="Maximum number of waiting tokens per bundle.")
    ] = 65_536,
    max_body: Annotated[int, typer.Option("--max-body", min=1, help="Maximum bytes of a request body.")] = 4 << 20,
    max_items: Annotated[int, typer.Option("--max-items", min=1, help="Maximum inputs in one request.")] = 1_024,
    max_pixels: Annotated[int, typer.Option("--max-pixels", min=1, help="Maximum pixels of a picture.")] = 20_000_000,
    max_samples: Annotated[
        int, typer.Option("--max-samples", min=1, help="Maximum samples of a sound at the bundle's rate.")
    ] = 4_800_000,
    max_length: Annotated[int, typer.Option("--max-length", min=1, help="Maximum of max_length in a request.")] = 1_000,
    max_beams: Annotated[int, typer.Option("--max-beams", min=1, help="Maximum of beams and n_best.")] = 20,
    max_connections: Annotated[
        int, typer.Option("--max-connections", min=1, help="Maximum number of connections; more wait.")
    ] = 1_000,
    read_timeout: Annotated[float, typer.Option("--read-timeout", min=0.1, help="Maximum seconds for a body.")] = 20.0,
    idle_timeout: Annotated[
        float, typer.Option("--idle-timeout", min=0.1, max=60, help="Maximum seconds until the next request's headers.")
    ] = 60.0,
    uds: Annotated[Path | None, typer.Option("--uds", help="Unix socket to listen on, not host and port.")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="File with the bearer token that clients send; default: SEQPIPE_TOKEN."),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option("--cors", metavar="ORIGIN", help="Origin whose pages may send requests; repeatable."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Host that clients may use besides localhost; repeatable."),
    ] = None,
    repository: Annotated[
        Path | None, typer.Option("--repository", help="Folder of bundles to serve, load and unload over HTTP.")
    ] = None,
    access_log: Annotated[
        bool, typer.Option("--access-log/--no-access-log", help="Log each request as JSON on standard error.")
    ] = True,
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
        raise EnvError(f"{package} is not installed: {install_command('serve')}") from error
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
        max_pixels=max_pixels,
        max_samples=max_samples,
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
