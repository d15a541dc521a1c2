"""`seqpipe check`: the mistakes in a YAML, and whether its pipeline exports."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqpipe.commands.options import (
    Json,
    NoCache,
    Overrides,
    Quiet,
    Sets,
    Verbose,
    YamlFile,
    graph_cache,
    load_config,
    make_console,
    print_json,
)

if TYPE_CHECKING:
    from seqpipe.config.loader import Config
    from seqpipe.console import Console


def check(
    file: YamlFile,
    overrides: Overrides = None,
    sets: Sets = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print which stage provides and which uses each name.")
    ] = False,
    static: Annotated[bool, typer.Option("--static", help="Check only the YAML; build and export nothing.")] = False,
    no_cache: NoCache = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Report all errors in a YAML, then build a small model, export it, run it and compare it with PyTorch."""
    console = make_console(quiet, verbose)
    config = load_config(console, file, overrides, sets, None)
    result: dict[str, Any] = {"file": str(file)}
    if explain:
        from seqpipe.config import dataflow

        result["names"] = dataflow.explained_names(config.inputs, config.head)
        if not as_json:
            typer.echo(dataflow.explain(config.inputs, config.head))
    needs = _report_needs(config, console) if config.needs else []
    if needs:
        result["needs"] = needs
        console.say(f"{file}: ok; its export is checked once these are there")
    elif static:
        console.say(f"{file}: ok")
    else:
        from seqpipe.commands.trial_export import check_export

        result |= check_export(config, console, graph_cache(no_cache))
    if needs or not static:
        console.say(f"\nnext: {shlex.join(['seqpipe', 'run', str(file), *(overrides or []), *(sets or [])])}")
    print_json(result, as_json)


def _report_needs(config: Config, console: Console) -> list[str]:
    """Print what `seqpipe run` would make before this pipeline; return the folders."""
    from seqpipe.commands.runs.needs import missing_needs
    from seqpipe.config.init_from import relative_path

    missing = missing_needs(config)
    for step in missing:
        console.say(f"needs {step}")
    return [relative_path(step.need.path) for step in missing]
