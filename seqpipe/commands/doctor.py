"""`seqpipe doctor`: examine this machine for running bundles."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from seqpipe.commands.options import Device, FailOn, Json, print_json
from seqpipe.errors import UsageError

_COLORS = {"ok": "green", "note": "yellow", "error": "red"}


def doctor(
    bundle: Annotated[
        Path | None, typer.Argument(metavar="[BUNDLE]", help="Folder of a bundle: show where its nodes run.")
    ] = None,
    device: Device = "auto",
    fail_on: FailOn = None,
    require: Annotated[
        Literal["cuda"] | None, typer.Option(metavar="cuda", help="Exit with 7 unless a graph runs on CUDA.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Examine this machine: onnxruntime, CUDA, telemetry, conflicting wheels, threads, where a bundle's nodes run."""
    import seqpipe.runs  # noqa: F401 (sets how threads of training wait)
    from seqpipe.runtime.environment import examine, examine_placement

    findings = examine(require is not None)
    if bundle is not None:
        findings.append(examine_placement(bundle, device, fail_on is not None))
    elif fail_on:
        raise UsageError(f"--fail-on {fail_on}: needs a bundle: seqpipe doctor BUNDLE --fail-on {fail_on}")
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            state = typer.style(f"{finding.state:<5}", fg=_COLORS[finding.state])
            color = False if os.environ.get("NO_COLOR") else None  # None: where standard output is a terminal
            typer.echo(f"{state} {finding.what}: {finding.detail}", color=color)
    if any(finding.state == "error" for finding in findings):
        raise typer.Exit(7)
