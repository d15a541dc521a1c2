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
    graph_cache,
    load_config,
    make_console,
)
from seqpipe.console import Console
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
    config = load_config(console, file, overrides, sets, seed)
    from seqpipe.commands.runs.needs import make_needs
    from seqpipe.commands.runs.run_folder import RUNS, start_run
    from seqpipe.commands.runs.training_run import train_run
    from seqpipe.config.run_layout import STATE

    folder = RUNS / config.name
    if resume and not (folder / STATE).exists():
        raise UsageError(f"--resume: {folder} is no run yet; leave --resume out to start one")
    if make_needs(config, console, device, graph_cache(False)):
        config = load_config(Console(-1), file, overrides, sets, seed)  # what was not there could not be checked
    with start_run(config, console, fresh) as run:
        train_run(run, console, device)
        for line in run.outcome_lines():
            console.say(f"  {line}")
    console.say(f"\nnext: seqpipe evaluate {folder}, then seqpipe export {folder}")
