"""`seqpipe export`: from a trained run to a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.options import NoCache, Quiet, RunFolder, make_console
from seqpipe.errors import UsageError


def export(
    folder: RunFolder,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the bundle; default: RUN/bundle.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override of a key of `export`, such as export.explain=true."),
    ] = None,
    no_cache: NoCache = False,
    quiet: Quiet = False,
) -> None:
    """Export a trained run to a bundle, and compare its answers with PyTorch's."""
    from seqpipe.export.graph_cache import default_cache
    from seqpipe.pipeline.full_run import export_run

    for item in sets or []:
        if not item.startswith("export."):
            raise UsageError(f"--set {item}: the run is trained; only keys of `export` can change, as export.opset=20")
    console = make_console(quiet)
    path = export_run(folder, output, sets or [], console, None if no_cache else default_cache())
    console.say(f"\nnext: seqpipe predict {path}")
