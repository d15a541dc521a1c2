"""`seqpipe train`: start a run, or resume it, and train it to the end."""

from __future__ import annotations

from typing import Annotated

import typer

from seqpipe.commands.options import (
    Device,
    Fresh,
    Overrides,
    Quiet,
    Seed,
    Sets,
    Verbose,
    YamlFile,
    load_pipeline,
    make_console,
)
from seqpipe.errors import UsageError


def train(
    file: YamlFile,
    overrides: Overrides = None,
    sets: Sets = None,
    seed: Seed = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an interrupted run; an error if there is none.")
    ] = False,
    device: Device = "auto",
    fresh: Fresh = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train; start a run, or resume an interrupted one."""
    console = make_console(quiet, verbose)
    pipeline = load_pipeline(console, file, overrides, sets, seed)
    from seqpipe.config.run_layout import STATE
    from seqpipe.pipeline.run import RUNS

    folder = RUNS / pipeline.name
    if resume and not (folder / STATE).exists():
        raise UsageError(f"--resume: {folder} is no run yet; leave --resume out to start one")
    pipeline.train(device=device, fresh=fresh, progress=console)
    console.say(f"\nnext: seqpipe evaluate {folder}, then seqpipe export {folder}")
