"""`seqpipe check`: report the errors in a YAML, and test the export of its pipeline."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated, Any

import typer

from seqpipe.commands.options import Json, PipelineOptions, print_json, with_options


@with_options(PipelineOptions)
def check(
    options: PipelineOptions,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print which stage provides and which uses each name.")
    ] = False,
    static: Annotated[bool, typer.Option("--static", help="Check only the YAML; build and export nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Report all errors in a YAML, then build a small model, export it, run it and compare it with PyTorch."""
    from seqpipe.init.yaml import open_doubts

    console = options.make_console()
    pipeline = options.load(console)
    result: dict[str, Any] = {"file": str(options.file)}
    if explain:
        from seqpipe.config import dataflow

        result["names"] = dataflow.explained_names(pipeline.config.inputs, pipeline.config.head)
        if not as_json:
            typer.echo(dataflow.names_table(pipeline.config.inputs, pipeline.config.head))
    # Doubts of `seqpipe init` are comments of its YAML, until somebody decides: deletes the line, or changes the keys.
    result["doubtful"] = open_doubts(pipeline.config.file.read_text(encoding="utf-8", errors="replace"))
    for doubt in result["doubtful"]:
        console.say(doubt)
    checked = pipeline.check(export=not static, progress=console)
    if checked.needs:
        result["needs"] = list(checked.needs)
        console.say(f"{options.file}: ok; its export is checked once these are there")
    elif checked.export:
        result |= asdict(checked.export) | {"warnings": list(checked.warnings)}
    else:
        console.say(f"{options.file}: ok")
    if checked.needs or not static:
        plugins = (f"--plugin={plugin}" for plugin in options.plugins or [])
        arguments = [str(options.file), *(options.overrides or []), *(options.sets or []), *plugins]
        console.say(f"\nnext: {shlex.join(['seqpipe', 'run', *arguments])}")
    print_json(result, as_json)
