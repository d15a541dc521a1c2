"""`seqpipe schema`: the JSON Schema of pipelines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.options import PluginFiles
from seqpipe.console import Console


def schema(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file; default: standard output.")
    ] = None,
    plugins: PluginFiles = None,
) -> None:
    """Print the JSON Schema of pipelines, with the components of every installed plugin, for editors."""
    from seqpipe.config.json_schema import pipeline_schema
    from seqpipe.config.plugins import Plugins
    from seqpipe.files import write

    text = json.dumps(pipeline_schema(Plugins(files=plugins or ()), Console().say), ensure_ascii=False, indent=1) + "\n"
    if output:
        write(output, text)
    else:
        typer.echo(text, nl=False)
