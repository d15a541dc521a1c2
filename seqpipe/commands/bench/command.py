"""The options of `seqpipe bench`, and the order of its measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from seqpipe.console import Console
from seqpipe.errors import UsageError

if TYPE_CHECKING:
    from seqpipe.runtime.model import Model

# Parts of the time of each measurement of a bundle.
START, ONE_BY_ONE, BATCHES, THREADS, STAGES = 0.15, 0.25, 0.25, 0.2, 0.15


def bench(
    bundle: BundlePath,
    input: Annotated[
        Path | None, typer.Option("--input", "-i", help="File of inputs; default: the golden examples of the bundle.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="text, jsonl or conll; default: by the file extension.")
    ] = "auto",
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Time for all measurements together.")] = 20.0,
    batches: Annotated[str, typer.Option("--batches", metavar="SIZES", help="Batch sizes.")] = "1,8,32,128",
    clients: Annotated[
        str, typer.Option("--clients", metavar="NUMBERS", help="Concurrent clients, each a thread.")
    ] = "1,4,16",
    options: DecodeOptions = None,
    device: Device = "auto",
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Number of parallel runs; default: one per core.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure latency, throughput, start-up, memory and the time of each stage of a bundle. Needs no PyTorch."""
    from seqpipe import load
    from seqpipe.commands.bench.tables import bundle_tables

    model = load(bundle, device, threads)
    decode_options = parse_decode_options(options or [], {}, model.manifest["options"])
    result = _bundle_result(
        bundle,
        model,
        (input, form),
        decode_options,
        seconds,
        (_numbers(batches, "--batches"), _numbers(clients, "--clients")),
        make_console(quiet),
    )
    if not as_json:
        typer.echo(bundle_tables(result))
    print_json(result, as_json)


def _bundle_result(
    bundle: Path,
    model: Model,
    source: tuple[Path | None, str],
    options: dict[str, Any],
    seconds: float,
    sizes: tuple[Sequence[int], Sequence[int]],
    console: Console,
) -> dict[str, Any]:
    from seqpipe.commands.bench import in_process
    from seqpipe.commands.bench.inputs import bundle_inputs
    from seqpipe.commands.bench.memory import memory

    records = bundle_inputs(model, *source)
    model.predictor.docs([model.record(record) for record in records])  # an invalid input is an error before the rest
    model(records[0], **options)
    settings = f"{model.device}, {model.predictor.workers} at once, {len(records):,} inputs"
    console.say(f"{bundle}: {settings}, about {seconds:g} seconds")
    return {
        "bundle": str(bundle),
        "sha256": model.sha256,
        "device": model.device,
        "threads": model.predictor.workers,
        "inputs": len(records),
        "options": options,
        "seconds": seconds,
        "start": in_process.start_up(bundle, model, records[0], options, seconds * START),
        "one_by_one": in_process.one_by_one(model, records, options, seconds * ONE_BY_ONE),
        "batches": in_process.in_batches(model, records, options, sizes[0], seconds * BATCHES),
        "clients": in_process.from_threads(model, records, options, sizes[1], seconds * THREADS),
        "stages": in_process.by_stage(model, records, options, seconds * STAGES),
        "memory": memory(),
    }


def _numbers(text: str, flag: str) -> list[int]:
    """Whole numbers from 1, separated by commas."""
    items = [item.strip() for item in text.split(",")]
    if not all(item.isdecimal() and int(item) for item in items):
        raise UsageError(f"{flag} {text}: must be whole numbers from 1, separated by commas")
    return [int(item) for item in items]
