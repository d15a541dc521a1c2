"""`seqpipe predict`: the answers of a bundle to the texts of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.options import BundlePath, DecodeOptions, Device, parse_decode_options
from seqpipe.errors import UsageError


def predict(
    bundle: BundlePath,
    further: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="Further pictures or sounds, after --input.")
    ] = None,
    input: Annotated[
        Path | None,
        typer.Option("--input", "-i", help="Input file, or a folder of pictures or sounds; default: standard input."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file; default: standard output.")
    ] = None,
    form: Annotated[
        str,
        typer.Option("--format", help="text, jsonl, conll, csv, tsv, json, parquet, conllu; default: by the ending."),
    ] = "auto",
    field: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="NAME", help="Column or key of the text; repeated for a pair of texts."),
    ] = None,
    documents: Annotated[
        bool, typer.Option("--documents", help="Treat each text as a document, and split it into sentences.")
    ] = False,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Write answers as the input arrives: tags and labels of a bundle with export.streaming, or the "
            "tokens of a language model as they are generated.",
        ),
    ] = False,
    on_error: Annotated[
        str,
        typer.Option("--on-error", metavar="ACTION", help="stop at an invalid line, or skip: its output is the error."),
    ] = "stop",
    options: DecodeOptions = None,
    beams: Annotated[int | None, typer.Option("--beams", help="Short for --option beams=N.")] = None,
    n_best: Annotated[
        str | None, typer.Option("--n-best", metavar="N", help="Short for --option n_best=N, or all.")
    ] = None,
    device: Device = "auto",
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Number of parallel runs; default: one per core.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Maximum time of one run of the graph, in seconds.")
    ] = 600.0,
) -> None:
    """Answer texts, one per line, or pictures or sounds, with one line of JSON each, in order. Needs no PyTorch."""
    from seqpipe import load
    from seqpipe.runtime.file_io import predict_file, stream_file

    model = load(bundle, device, threads, timeout=timeout)
    items = [*([] if n_best is None else [f"n_best={n_best}"]), *(options or [])]
    decode_options = parse_decode_options(items, {"beams": beams}, model.predictor.options)
    if further and (stream or input is None):
        raise UsageError(f"{further[0]}: an input is named with --input; further ones are pictures or sounds")
    if stream and on_error != "stop":
        raise UsageError("--on-error: --stream stops at a line without an answer; use only one of the two")
    if stream:
        stream_file(model, input, output, form, decode_options)
    else:
        predict_file(model, input, output, form, documents, decode_options, on_error, field or (), further or ())
