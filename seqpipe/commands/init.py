"""`seqpipe init`: a first YAML for a data file."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from seqpipe.commands.options import Json, print_json
from seqpipe.console import Console
from seqpipe.errors import OpenChoiceError, UsageError


def init(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Training data: a file, or a folder of texts by label.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The same as FILE.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="YAML to write; default: here, named as FILE or its folder.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Head to use: crf, tags, label, score, seq2seq, answer-span, pointer or lm; default: as detected."
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Transformers checkpoint to fine-tune: a folder, or a name on the hub."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Column or key to learn: its name, or its number from 1.")] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="Column or key of the text: name, or number from 1; twice for two texts.")
    ] = None,
    header: Annotated[Literal["yes", "no"] | None, typer.Option(help="Whether a table's first row has names.")] = None,
    as_json: Json = False,
) -> None:
    """Detect the format of a data file and write a commented YAML for it."""
    from seqpipe.init import init_yaml

    source = file or data
    if source is None or (file and data):
        raise UsageError("name one data file: seqpipe init train.csv")
    console, readings = Console(), list[dict[str, Any]]()
    write = partial(init_yaml, source, output, console.say, show=readings.extend, checkpoint=checkpoint)
    try:
        path = write(task, target, text or (), header=header and header == "yes")
    except OpenChoiceError as error:
        if as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        console.say(str(error))
        choices = {str(number): options for number, options in enumerate(error.readings, 1)}
        answer = ""
        while answer.strip() not in choices:
            console.say(f"number of the choice, 1 to {len(choices)}:")
            if not (answer := sys.stdin.readline()):
                raise
        options = choices[answer.strip()]
        values = dict(zip(options[::2], options[1::2], strict=True))
        texts = [values["--text"]] if "--text" in values else text or ()
        path = write(values.get("--task", task), values.get("--target", target), texts)
    console.say(f"wrote {path}\nnext: seqpipe run {shlex.quote(str(path))}")
    print_json({"file": str(path), "readings": readings}, as_json)
