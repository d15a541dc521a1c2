"""`seqpipe serve`: serve bundles over HTTP."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.options import Quiet, make_console, with_options
from seqpipe.errors import EnvError, UsageError, install_command
from seqpipe.serve.settings import Settings


@with_options(Settings)
def serve(
    settings: Settings,
    bundles: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BUNDLE | NAME=BUNDLE]...", help="Folders of bundles, with the name to serve each as."),
    ] = None,
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
    quiet: Quiet = False,
) -> None:
    """Answer requests over HTTP, in batches. Needs no PyTorch."""
    if os.name == "nt":
        raise EnvError("seqpipe serve needs Linux or macOS; on Windows run it in the Windows Subsystem for Linux")
    try:
        from seqpipe.serve.auth import check_hosts, check_origins, read_token
        from seqpipe.serve.repository import bundles as repository_bundles
        from seqpipe.serve.repository import bundles_by_name
        from seqpipe.serve.server import run_server
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "seqpipe":
            raise
        raise EnvError(f"{package} is not installed: {install_command('serve')}") from error
    folder = settings.repository
    if not bundles and folder is None:
        raise UsageError("name at least one bundle, or --repository FOLDER: seqpipe serve runs/NAME/bundle")
    served = {**(repository_bundles(folder) if folder else {}), **bundles_by_name(bundles or [])}
    token, origins, hosts = read_token(token_file), check_origins(cors or ()), check_hosts(allow_host or ())
    run_server(replace(settings, bundles=served, token=token, cors=origins, hosts=hosts), make_console(quiet))
