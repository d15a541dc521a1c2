"""`seqpipe predict`: the answers of a bundle to the texts of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.options import BundlePath, DecodeOptions, Device, parse_decode_options
from seqpipe.errors import UsageError


def predict(
    bundle: BundlePath,
    input: Annotated[Path | None, typer.Option("--input", "-i", help="A file; standard input by default.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; standard output by default.")] = None,
    form: Annotated[
        str, typer.Option("--format", help="text, jsonl or conll; by the file's ending if left out.")
    ] = "auto",
    documents: Annotated[
        bool, typer.Option("--documents", help="Take each text as a document and split it into sentences.")
    ] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print each text as it is generated; of a language model.")
    ] = False,
    on_error: Annotated[
        str, typer.Option("--on-error", help="stop at a line without an answer, or skip: it gets its error instead.")
    ] = "stop",
    options: DecodeOptions = None,
    beams: Annotated[int | None, typer.Option("--beams", help="Short for --option beams=N.")] = None,
    n_best: Annotated[int | None, typer.Option("--n-best", help="Short for --option n_best=N.")] = None,
    device: Device = "auto",
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Runs at once; one a core by default.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds that one run of the graph may take.")
    ] = 600.0,
) -> None:
    """Answer texts, one a line, in order, one line of JSON each. Needs no PyTorch."""
    from seqpipe import load
    from seqpipe.runtime.file_io import predict_file, stream_file

    model = load(bundle, device, threads, timeout=timeout)
    shortcuts = {"beams": beams, "n_best": n_best}
    decode_options = parse_decode_options(options or [], shortcuts, model.manifest["options"])
    if stream and on_error != "stop":
        raise UsageError("--on-error: --stream stops at a line without an answer; leave one of the two out")
    if stream:
        stream_file(model, input, output, form, decode_options)
    else:
        predict_file(model, input, output, form, documents, decode_options, on_error)
