"""`seqpipe evaluate`: the scores of a run or a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.options import Device, Json, Quiet, make_console, print_json


def evaluate(
    target: Annotated[Path, typer.Argument(metavar="RUN|BUNDLE", help="A run's folder or a bundle's.")],
    data: Annotated[Path | None, typer.Option("--data", help="Another file than the run's test sets.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Also score from the text alone, which is what deployment sees.")
    ] = False,
    by: Annotated[
        str | None, typer.Option("--by", metavar="FIELD", help="Split the scores by a field of the records.")
    ] = None,
    errors: Annotated[
        Path | None, typer.Option("--errors", metavar="FILE", help="List what went wrong, as JSONL.")
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score a run (PyTorch) or a bundle (onnxruntime) on its test sets or on a file."""
    from seqpipe.commands.scoring import score_target

    console = make_console(quiet)
    result = score_target(target, console, data=data, raw=raw, by=by, errors=errors, device=device)
    if errors:
        console.say(f"\nwhat went wrong is listed in {errors}")
    print_json(result, as_json)
