"""`seqpipe predict`: the answers of a bundle to the texts of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from seqpipe.commands.options import BundlePath, DecodeOptions, Device, parse_decode_options
from seqpipe.errors import UsageError


def predict(
    bundle: BundlePath,
    further: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Further inputs, after --input.")
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
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="I/N", help="Answer the I-th of N shares, counted from 1.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="Number of processes that answer parts of the input.")
    ] = None,
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option("--engine", metavar="NAME", help="Engine of the processes: local, or ray: actors of Ray Data."),
    ] = "local",
    resume: Annotated[bool, typer.Option("--resume", help="Skip the parts that the folder --output has.")] = False,
    options: DecodeOptions = None,
    option_field: Annotated[
        list[str] | None,
        typer.Option(
            "--option-field",
            metavar="NAME[=FIELD]",
            help="Decode option that each record has itself, in the column or key NAME or FIELD; repeatable.",
        ),
    ] = None,
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
    from seqpipe.batch.files import is_media, predict_file, stream_file
    from seqpipe.batch.ray_engine import RayEngine
    from seqpipe.batch.shards import Shard, answer_here, answer_parts, input_files, run_processes
    from seqpipe.runtime.decode_options import BEAMS, field_options, options_of, resolve_options
    from seqpipe.runtime.predictor import cores

    inputs, share = [*(input or []), *(further or [])], Shard.parse(shard) if shard else Shard()
    if further and not input:
        fix = "name files with --input, and texts in standard input: echo 'a text' | seqpipe predict BUNDLE"
        raise UsageError(f"{further[0]}: is no option; {fix}")
    by_ray = RayEngine(processes, threads or 1) if engine == "ray" else None
    in_parts = bool(shard or resume or by_ray or (processes or 1) > 1 or (output and output.is_dir()))
    if in_parts and not (inputs and output and not stream):
        raise UsageError("inputs in parts are answered into a folder: name both, such as -i 'in/*.jsonl' -o out")
    in_processes = processes is not None and processes > 1 and not by_ray
    # Before processes start, this one examines bundle, options, inputs and folder, so that an error is reported once.
    model = load(bundle, "cpu" if in_processes else device, by_ray.threads if by_ray else threads, timeout=timeout)
    items = [*([] if n_best is None else [f"n_best={n_best}"]), *(options or [])]
    known = model.predictor.options
    decode_options = field_options(option_field or (), parse_decode_options(items, {BEAMS: beams}, known), known)
    media = is_media(model, inputs, form)
    files = input_files(inputs, media)
    if len(files) > 1 and not media and (stream or not output):
        raise UsageError(f"--input: names {len(files)} files; name a folder for their answers with --output")
    if stream and on_error != "stop":
        raise UsageError("--on-error: --stream stops at a line without an answer; use only one of the two")
    settings = form, documents, decode_options, on_error, field or (), share, resume, media
    if processes and in_processes and output:
        resolve_options(known, options_of({}, decode_options, known), model.predictor.kind)
        answer_parts(model, files, output, *settings, None)
        del model
        arguments = [str(bundle), *(f"--input={name}" for name in inputs), f"--output={output}", f"--format={form}"]
        arguments += [f"--field={name}" for name in field or ()]
        arguments += [*["--documents"] * documents, *["--resume"] * resume, f"--on-error={on_error}"]
        arguments += [f"--option={item}" for item in options or ()]
        arguments += [f"--option-field={item}" for item in option_field or ()]
        arguments += [f"--beams={beams}"] if beams is not None else []
        arguments += [f"--n-best={n_best}"] if n_best is not None else []
        arguments += [f"--device={device}", f"--threads={threads or max(1, cores() // processes)}"]
        run_processes([*arguments, f"--timeout={timeout}"], share, processes)
        return
    if output and (in_parts or (len(files) > 1 and not media)):
        answer_parts(model, files, output, *settings, by_ray or answer_here)
    elif stream:
        stream_file(model, files[0] if files else None, output, form, decode_options)
    else:
        source, pictures = files[0] if files else None, files if media else ()
        predict_file(model, source, output, form, documents, decode_options, on_error, field or (), pictures)
