"""`seqpipe export`: from a trained run to a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.options import NoCache, Quiet, RunFolder, graph_cache, make_console
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
    from seqpipe.commands.runs.held_out import held_out_records
    from seqpipe.commands.runs.run_folder import load_trained, open_run
    from seqpipe.commands.runs.run_lock import lock_around
    from seqpipe.export.exporter import export as export_bundle
    from seqpipe.runtime.bundle import refuse_other

    for item in sets or []:
        if not item.startswith("export."):
            raise UsageError(f"--set {item}: the run is trained; only keys of `export` can change, as export.opset=20")
    console = make_console(quiet)
    path = output or folder / "bundle"
    refuse_other(path)
    cache = graph_cache(no_cache)
    with lock_around(path):
        run = open_run(folder, console, sets=sets or [])
        pipeline, records = load_trained(run), held_out_records(run)
        export_bundle(pipeline, run.config, records, path, console, run.scores, cache, run.outcome)
    console.say(f"\nnext: seqpipe predict {path}")
