"""`seqpipe init`: a first YAML for a data file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqpipe.console import Console
from seqpipe.errors import UsageError


def init(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="Training data: a file in one of many formats, or a folder of texts by label."
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="The same as FILE.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The YAML to write; default: the name of FILE, or of its folder if FILE is called train or data, with "
            "the extension .yaml, in the current folder.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            help="What to learn, by the head's name, in place of what the data looks like: crf, tags, label, score, "
            "seq2seq, answer-span, pointer or lm.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", help="Column or key to learn: its name, or its number from 1."),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option("--text", help="Column or key of the text: its name, or its number from 1; twice for two texts."),
    ] = None,
) -> None:
    """Detect the format of a data file and write a commented YAML for it."""
    from seqpipe.init import init_yaml

    if (file is None) == (data is None):
        raise UsageError("name one data file: seqpipe init train.csv")
    console = Console()
    path = init_yaml(file or data or Path(), output, say=console.say, task=task, target=target, texts=text or ())
    console.say(f"wrote {path}\nnext: seqpipe check {path}")
