"""`seqpipe run`: from a YAML to a bundle."""

from __future__ import annotations

from typing import Annotated

import typer

from seqpipe.commands.options import (
    Device,
    Fresh,
    Json,
    NoCache,
    Overrides,
    Quiet,
    Seed,
    Sets,
    Verbose,
    YamlFile,
    graph_cache,
    load_config,
    make_console,
    print_json,
)
from seqpipe.console import Console


def run(
    file: YamlFile,
    overrides: Overrides = None,
    sets: Sets = None,
    seed: Seed = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Train with seeds 1 to N; report mean and standard deviation.")
    ] = None,
    device: Device = "auto",
    fresh: Fresh = False,
    no_cache: NoCache = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Check, train, evaluate, export, verify, and show answers. Resumes an interrupted run."""
    console = make_console(quiet, verbose)
    config = load_config(console, file, overrides, sets, seed)
    from seqpipe.commands.runs.full_run import run_all, run_seeds
    from seqpipe.commands.runs.needs import make_needs

    cache = graph_cache(no_cache)
    if make_needs(config, console, device, cache):
        config = load_config(Console(-1), file, overrides, sets, seed)  # what was not there could not be checked
    if seeds:
        result = run_seeds(
            lambda more: load_config(Console(-1), file, overrides, [*(sets or []), *more], seed),
            config.name,
            seeds,
            console,
            device,
            fresh,
            cache,
        )
    else:
        result = run_all(config, console, device, fresh, cache)
    print_json(result, as_json)
