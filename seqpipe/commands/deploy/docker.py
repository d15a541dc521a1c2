"""A Dockerfile with the bundle beside it: an image that runs `seqpipe serve`."""

from __future__ import annotations

from pathlib import Path

from seqpipe.commands.deploy.output import (
    NameRule,
    bundle_files,
    checked_bundle,
    next_steps,
    quoted,
    requirement,
    template,
    write_files,
)
from seqpipe.runtime.bundle import BundleContent

NAMES = NameRule(
    r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*", 100, "small letters and digits, with single '.', '_' or '-' between them"
)
IMAGE = "python:3.12-slim"


def write_docker(path: Path, output: Path, name: str | None, cuda: bool, port: int) -> str:
    """Writes the folder; the commands to type next."""
    content = checked_bundle(path, output, cuda)
    name = NAMES.choose(name, content, "Docker")
    write_files(output, image_files(content, name, cuda, port))
    tag = f"seqpipe-{name}"
    gpus = "--gpus all " if cuda else ""
    return next_steps(
        output,
        f"docker build -t {tag} {quoted(output)}",
        f"docker run --rm {gpus}--read-only --tmpfs /tmp -p {port}:{port} {tag}",
    )


def image_files(content: BundleContent, name: str, cuda: bool, port: int) -> dict[str, bytes | str]:
    """The files that `docker build` needs."""
    values = {
        "image": IMAGE,
        "requirement": requirement(cuda, "serve"),
        "name": name,
        "port": port,
        "device": "cuda" if cuda else "cpu",
        "gpu": template("gpu.Dockerfile") if cuda else "",
    }
    return {
        "Dockerfile": template("Dockerfile", **values),
        ".dockerignore": "*\n!bundle\n",
        **bundle_files(content, "bundle"),
    }
