"""Write a target of `seqpipe deploy`, and check the command lines of `seqpipe serve` in its files."""

from collections.abc import Sequence
from pathlib import Path

import typer
from tiny_pipelines import succeed

from seqpipe.commands.app import app


def deploy(kind: str, bundle: Path, output: Path, *options: str) -> str:
    """Write the folder, and return the messages of the command."""
    result = succeed("deploy", kind, bundle, "-o", output, *options)
    assert result.err.startswith(f"wrote {output}\n\nnext:\n")
    return result.err


def check_serve(arguments: Sequence[str]) -> dict[str, object]:
    """The parameters of a command line behind `seqpipe`, as `seqpipe serve` reads them; an unknown flag raises."""
    name, *rest = arguments
    assert name == "serve"
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    with command.make_context("serve", rest) as context:
        return dict(context.params)
