"""`seqpipe deploy`: write the files with which Triton, Docker, KServe or systemd runs a bundle."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from seqpipe.commands.options import BundlePath, Quiet, make_console

app = typer.Typer(help="Write the files with which another tool runs a bundle.", rich_markup_mode=None)

Output = Annotated[Path, typer.Option("--output", "-o", help="Folder to write; it must be new or empty.")]
Name = Annotated[str | None, typer.Option("--name", help="Name to serve the bundle as; default: the bundle's own.")]
OnCuda = Annotated[bool, typer.Option("--cuda", help="Run on an NVIDIA GPU in place of the CPU.")]
Port = Annotated[int, typer.Option("--port", "-p", min=1, max=65535, help="Port that the server listens at.")]


@app.command()
def triton(bundle: BundlePath, output: Output, name: Name = None, cuda: OnCuda = False, quiet: Quiet = False) -> None:
    """Write a model repository for NVIDIA Triton: NAME takes texts, NAME_graph takes the tensors of the graph."""
    from seqpipe.commands.deploy.triton import write_triton

    make_console(quiet).say(write_triton(bundle, output, name, cuda))


@app.command()
def docker(
    bundle: BundlePath, output: Output, name: Name = None, cuda: OnCuda = False, port: Port = 8000, quiet: Quiet = False
) -> None:
    """Write a Dockerfile, and the bundle beside it: an image that runs `seqpipe serve`."""
    from seqpipe.commands.deploy.docker import write_docker

    make_console(quiet).say(write_docker(bundle, output, name, cuda, port))


@app.command()
def kserve(
    bundle: BundlePath,
    output: Output,
    image: Annotated[str, typer.Option("--image", help="Name of the image, such as registry.example.com/ner:1.")],
    name: Name = None,
    cuda: OnCuda = False,
    port: Port = 8000,
    quiet: Quiet = False,
) -> None:
    """Write an InferenceService for KServe, the same for Kubernetes alone, and the image that they run."""
    from seqpipe.commands.deploy.kserve import write_kserve

    make_console(quiet).say(write_kserve(bundle, output, image, name, cuda, port))


@app.command()
def systemd(
    bundle: BundlePath,
    output: Output,
    name: Name = None,
    command: Annotated[
        str, typer.Option("--command", metavar="PATH", help="The command seqpipe on the machine that serves.")
    ] = "/opt/seqpipe/bin/seqpipe",
    place: Annotated[
        str | None,
        typer.Option("--place", metavar="FOLDER", help="The bundle on that machine; default: /srv/seqpipe/NAME."),
    ] = None,
    cuda: OnCuda = False,
    port: Port = 8000,
    quiet: Quiet = False,
) -> None:
    """Write a unit for systemd, and the bundle beside it."""
    from seqpipe.commands.deploy.systemd import write_systemd

    say = make_console(quiet).say
    folder = PurePosixPath(place) if place else None
    say(write_systemd(bundle, output, name, PurePosixPath(command), folder, cuda, port))
