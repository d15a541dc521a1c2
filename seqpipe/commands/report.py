"""`seqpipe report`: the report of a run, or of a bundle on a data file, as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.options import Quiet, make_console
from seqpipe.errors import UsageError


def report(
    target: Annotated[Path, typer.Argument(metavar="RUN|BUNDLE", help="Folder of a run or of a bundle.")],
    data: Annotated[Path | None, typer.Option("--data", help="Data file with references, for a bundle.")] = None,
    by: Annotated[str | None, typer.Option(metavar="FIELD", help="Also show the scores by value of a field.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="HTML file; default: RUN/report.html.")] = None,
    quiet: Quiet = False,
) -> None:
    """Write a page about a run: its training, scores, confusions, worst errors, data and bundle."""
    from seqpipe.config.run_layout import BUNDLE
    from seqpipe.pipeline.run import Run
    from seqpipe.runtime.model import Bundle

    is_bundle = (target / BUNDLE).exists()
    if is_bundle != (data is not None):
        fix = "name its data file with --data" if is_bundle else "omit --data, or name the bundle of the run"
        raise UsageError(f"{target} is {'a bundle' if is_bundle else 'a run'}: {fix}")
    written = Bundle(target).report(data, output, by) if data else Run(target).report(output, by)
    make_console(quiet).say(f"wrote {written.path}")
