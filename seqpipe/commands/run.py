"""`seqpipe run`: from a YAML to a bundle."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

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
    load_pipeline,
    make_console,
    print_json,
)


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
    pipeline = load_pipeline(console, file, overrides, sets, seed)
    if seeds:
        by_test = pipeline.run_seeds(seeds, device=device, fresh=fresh, cache=not no_cache, progress=console)
        result: dict[str, Any] = {test: asdict(scores) for test, scores in by_test.items()}
    else:
        finished = pipeline.run(device=device, fresh=fresh, cache=not no_cache, progress=console)
        result = {"run": str(finished.folder), "bundle": str(finished.bundle.path)}
        result |= {"training": finished.outcome, "scores": finished.scores}
    print_json(result, as_json)
