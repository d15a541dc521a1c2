"""`seqpipe doctor`: whether bundles run on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from seqpipe.commands.options import Json, print_json
from seqpipe.errors import UsageError


def doctor(
    require: Annotated[
        str | None,
        typer.Option("--require", metavar="cuda", help="Exit with 7 unless a graph runs on CUDA."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Examine this machine: onnxruntime and its providers, CUDA, telemetry, conflicting wheels, threads."""
    from seqpipe.runtime.environment import examine

    if require not in (None, "cuda"):
        raise UsageError(f"--require {require}: must be cuda")
    findings = examine(require is not None)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            typer.echo(f"{finding.state:<5} {finding.what}: {finding.detail}")
    if any(finding.state == "error" for finding in findings):
        raise typer.Exit(7)
