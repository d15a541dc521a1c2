"""What the tests of `seqpipe deploy` share: how a target is written, and what its files ask of `seqpipe serve`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from factory import seqpipe

from seqpipe.commands.app import app


def deploy(kind: str, bundle: Path, output: Path, *options: str) -> str:
    """Writes the folder; what the command said."""
    done = seqpipe("deploy", kind, bundle, "-o", output, *options)
    assert done.code == 0, done.err
    assert done.err.startswith(f"wrote {output}\n\nnext:\n")
    return done.err


def check_serve(arguments: Sequence[str]) -> dict[str, object]:
    """The parameters of a command line behind `seqpipe`, as `seqpipe serve` reads them; an unknown flag raises."""
    name, *rest = arguments
    assert name == "serve"
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    with command.make_context("serve", rest) as context:
        return dict(context.params)
