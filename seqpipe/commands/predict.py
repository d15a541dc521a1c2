"""`seqpipe predict`: the answers of a bundle to the texts of a file; `seqpipe score`: the scores of given answers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from seqpipe.batch.job import PredictJob
from seqpipe.commands.options import BundlePath, DecodeOptions, Device, parse_decode_options, with_options
from seqpipe.errors import UsageError


@with_options(PredictJob)
def predict(
    job: PredictJob,
    bundle: BundlePath,
    further: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="Texts to answer; after --input further input files."),
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input", "-i", metavar="FILE", help="Input file, pattern or folder; default: standard input; repeatable."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Output file, or folder of the parts of several inputs; default: standard output."
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Write answers as the input arrives: tags and labels of a bundle with export.streaming, or the "
            "tokens of a language model as they are generated.",
        ),
    ] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Number of processes that answer parts of the input.")
    ] = None,
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(metavar="NAME", help="Engine of the processes: local, or ray: actors of Ray Data."),
    ] = "local",
    options: DecodeOptions = None,
    option_field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=FIELD]",
            help="Decode option that each record has itself, in the column or key NAME or FIELD; repeatable.",
        ),
    ] = None,
    beams: Annotated[int | None, typer.Option(help="Short for --option beams=N.")] = None,
    n_best: Annotated[str | None, typer.Option(metavar="N", help="Short for --option n_best=N, or all.")] = None,
    device: Device = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="Number of parallel runs; default: one per core.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Maximum time of one run of the graph, in seconds.")] = 600.0,
) -> None:
    """Answer texts, one per line, or pictures or sounds, with one line of JSON each, in order. Needs no PyTorch."""
    from seqpipe import load
    from seqpipe.batch.files import answer_texts, inputs_are_media, predict_file, stream_file
    from seqpipe.batch.ray_engine import RayEngine
    from seqpipe.batch.shards import Engine, answer_here, answer_in_processes, answer_parts, input_files
    from seqpipe.runtime.decode_options import BEAMS, field_options
    from seqpipe.runtime.predictor import cores

    inputs, count = [*(input or []), *(further or [])], processes or 1
    items = [*([] if n_best is None else [f"n_best={n_best}"]), *(options or [])]
    if further and not input:
        if output or stream or processes or option_field or engine != "local" or job != PredictJob():
            fix = "for other options than those of decoding, give a file of the texts with --input"
            raise UsageError(f"texts in the command are answered on standard output; {fix}")
        model = load(bundle, device, threads, timeout=timeout)
        answer_texts(model, further, parse_decode_options(items, {BEAMS: beams}, model.predictor.options))
        return
    answer: Engine = answer_here
    if engine == "ray":
        answer, threads = RayEngine(processes, threads or 1), threads or 1
    elif count > 1:
        answer, threads = partial(answer_in_processes, count), threads or max(1, cores() // count)
    in_parts = bool(job.shard or job.resume or answer is not answer_here or (output and output.is_dir()))
    if in_parts and not (inputs and output and not stream):
        raise UsageError("inputs in parts are answered into a folder: name both, such as -i 'in/*.jsonl' -o out")
    model = load(bundle, device, threads, timeout=timeout)
    known = model.predictor.options
    decode_options = field_options(option_field or (), parse_decode_options(items, {BEAMS: beams}, known), known)
    job = replace(job, options=decode_options, media=inputs_are_media(model, inputs, job.form))
    files = input_files(inputs, job.media)
    several = len(files) > 1 and not job.media
    if several and (stream or not output):
        raise UsageError(f"--input: names {len(files)} files; name a folder for their answers with --output")
    if stream and output:
        raise UsageError("--stream: answers go to standard output; leave --output out")
    if stream and job.on_error != "stop":
        raise UsageError("--on-error: --stream stops at a line without an answer; use only one of the two")
    if stream:
        stream_file(model, job, next(iter(files), None))
    elif output and (in_parts or several):
        answer_parts(model, job, files, output, answer)
    else:
        predict_file(model, job, files, output)


def score(
    bundle: BundlePath,
    input: Annotated[
        Path | None, typer.Option("--input", "-i", metavar="FILE", help="Input file; default: standard input.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column or key of the text to score; default: as in training.")
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="NAME", help="Column or key of the input; repeated for a pair of texts."),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="text, jsonl, csv, tsv, json, parquet; default: by the ending.")
    ] = "auto",
    token_scores: Annotated[
        bool, typer.Option("--token-scores", help="Also print the log-probability of each token.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Score texts as answers to inputs, input and text with a tab between them; prints JSON lines. Needs no PyTorch."""
    from seqpipe import load
    from seqpipe.batch.files import score_file

    model = load(bundle, device)
    field = target or getattr(model.predictor.kind, "target", None) or "target"
    score_file(model, input, form, names or (), field, token_scores)
