"""`seqpipe explain`: the attention weights of a model over a text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.options import (
    BundlePath,
    DecodeOptions,
    Device,
    Json,
    Quiet,
    make_console,
    parse_decode_options,
    print_json,
)
from seqpipe.errors import DataError


def explain(
    bundle: BundlePath,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text; - reads standard input.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file with the extension .html or .json.")
    ] = None,
    options: DecodeOptions = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show the attention weights of a model for a text, as a heat map or a table. Needs no PyTorch."""
    from seqpipe import load
    from seqpipe.explain.html import check_ending, draw
    from seqpipe.features.vocabulary import replace_surrogates
    from seqpipe.files import encoding_fix
    from seqpipe.runtime.file_io import one_record

    if output:
        check_ending(output)
    model = load(bundle, device, threads=1)
    decode_options = parse_decode_options(options or [], {}, model.predictor.options)
    if text == "-":
        data = sys.stdin.buffer.read()
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            fix = encoding_fix(data)
            raise DataError(f"standard input: byte {error.start + 1} is not UTF-8; {fix}") from error
    explanation = model.explain(one_record(model, text), **decode_options)
    if output:
        draw(explanation, output, {"Model": model.manifest.name, "SHA-256": model.sha256[:12]})
        make_console(quiet).say(f"wrote {output}")
    elif not as_json:
        typer.echo(replace_surrogates(explanation.table()))
    print_json(explanation.data(), as_json)
