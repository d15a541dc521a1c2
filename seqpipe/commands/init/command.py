"""`seqpipe init`: a first YAML for a data file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqpipe.console import Console


def init(
    data: Annotated[
        Path, typer.Option("--data", help="Your CoNLL, CoNLL-U, JSONL, CSV or TSV file with training examples.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The YAML to write; DATA's name .yaml by default.")
    ] = None,
) -> None:
    """Look at a data file and write the YAML for it, commented."""
    from seqpipe.commands.init.template import init_yaml

    path = init_yaml(data, output)
    Console().say(f"wrote {path}\nnext: seqpipe check {path}")
