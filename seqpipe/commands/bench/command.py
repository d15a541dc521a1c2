"""The options of `seqpipe bench`: of a bundle in this process, and of a server."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from seqpipe.commands.options import DecodeOptions, Device, Json, Quiet, make_console, parse_decode_options, print_json
from seqpipe.console import Console
from seqpipe.errors import EnvError, UsageError

BATCHES, THREADS = "1,8,32,128", "1,4,16"
CLIENTS, DEADLINE, SEED = "1,8,64", 1.0, 1
TOKEN = "SEQPIPE_TOKEN"  # the variable that `seqpipe serve` reads the bearer token from
BUSY = 0.9  # the part of a core from which a load generator measures itself
_OF_BUNDLES = "measures a bundle in this process; leave it out with --url"
_OF_SERVERS = "is for a server; give its address too: --url http://127.0.0.1:8000"


def bench(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Folder of a bundle; with --url, its served name.")],
    input: Annotated[
        Path | None, typer.Option("--input", "-i", help="File of inputs; default: the golden examples of the bundle.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="text, jsonl or conll; default: by the file extension.")
    ] = "auto",
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Time for all measurements together.")] = 20.0,
    clients: Annotated[
        str | None,
        typer.Option(
            "--clients", metavar="NUMBERS", help=f"Clients at once; default: {THREADS}, of a server {CLIENTS}."
        ),
    ] = None,
    batches: Annotated[
        str | None, typer.Option("--batches", metavar="NUMBERS", help=f"Batch sizes; default: {BATCHES}.")
    ] = None,
    options: DecodeOptions = None,
    device: Device = "auto",
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Number of parallel runs; default: one per core.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="http://HOST:PORT", help="Measure the server at this address.")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="NUMBERS", help="With --url: requests a second that arrive at random."),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help=f"Of the arrivals; default: {SEED}.")] = None,
    deadline: Annotated[
        float | None,
        typer.Option("--deadline", min=0, help=f"Seconds in which an answer is in time; default: {DEADLINE:g}."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the speed and memory of a bundle, or of a server under load. Needs no PyTorch."""
    console = make_console(quiet)
    if url:
        _refuse({"--batches": batches, "--threads": threads}, _OF_BUNDLES)
        usual = CLIENTS if rate is None else None
        loads = _numbers(usual if clients is None else clients, "--clients"), _rates(rate)
        limits = seconds, DEADLINE if deadline is None else deadline, SEED if seed is None else seed
        tables, result = _server(url, bundle, (input, form), options or [], loads, limits, console)
    else:
        _refuse({"--rate": rate, "--seed": seed, "--deadline": deadline}, _OF_SERVERS)
        sizes = [_numbers(BATCHES if batches is None else batches, "--batches")]
        sizes.append(_numbers(THREADS if clients is None else clients, "--clients"))
        tables, result = _bundle(Path(bundle), (device, threads), (input, form), options or [], sizes, seconds, console)
    if not as_json:
        typer.echo(tables)
    print_json(result, as_json)


def _bundle(
    path: Path,
    machine: tuple[str, int | None],
    source: tuple[Path | None, str],
    options: Sequence[str],
    sizes: Sequence[Sequence[int]],
    seconds: float,
    console: Console,
) -> tuple[str, dict[str, Any]]:
    from seqpipe import load
    from seqpipe.commands.bench.in_process import measure
    from seqpipe.commands.bench.inputs import bundle_inputs
    from seqpipe.commands.bench.tables import bundle_tables

    model = load(path, *machine)
    decode_options = parse_decode_options(options, {}, model.manifest.options)
    records = bundle_inputs(model, *source)
    settings = f"{model.device}, {model.predictor.workers} at once, {len(records):,} inputs"
    console.say(f"{path}: {settings}, about {seconds:g} seconds")
    result = measure(path, model, records, decode_options, sizes[0], sizes[1], seconds)
    return bundle_tables(result), result


def _server(
    url: str,
    name: str,
    source: tuple[Path | None, str],
    options: Sequence[str],
    loads: tuple[Sequence[int], Sequence[float]],
    limits: tuple[float, float, int],
    console: Console,
) -> tuple[str, dict[str, Any]]:
    from seqpipe.commands.bench.inputs import served_inputs
    from seqpipe.commands.bench.tables import server_tables

    try:
        from seqpipe.commands.bench.server import Server, bodies, run_loads
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("seqpipe"):
            raise
        raise EnvError(f"{error.name} is not installed: pip install 'seqpipe-nlp[serve]'") from error
    server = Server.at(url, name, os.environ.get(TOKEN))
    description = server.describe()
    inputs = served_inputs(description, *source)
    contents = bodies(inputs, parse_decode_options(options, {}, description["options"]))
    server.check(contents[0])
    seconds, deadline, seed = limits
    console.say(f"{server.url}: {len(inputs):,} inputs, about {seconds:g} seconds")
    result = run_loads(server, [server.request(body) for body in contents], *loads, seconds, deadline, seed)
    if max(row["generator_busy"] for rows in result.values() for row in rows) > BUSY:
        console.say("warning: the load generator used a whole core; the server may be faster than measured")
    result = {"url": server.url, "sha256": description["sha256"], "inputs": len(inputs), **result}
    return server_tables(result), result


def _refuse(options: dict[str, Any], reason: str) -> None:
    for flag, value in options.items():
        if value is not None:
            raise UsageError(f"{flag} {reason}")


def _numbers(text: str | None, flag: str) -> list[int]:
    """Whole numbers from 1, separated by commas."""
    items = [] if text is None else [item.strip() for item in text.split(",")]
    if not all(item.isdecimal() and int(item) for item in items):
        raise UsageError(f"{flag} {text}: must be whole numbers from 1, separated by commas")
    return [int(item) for item in items]


def _rates(text: str | None) -> list[float]:
    items = [] if text is None else [item.strip() for item in text.split(",")]
    if not all(re.fullmatch(r"\d+(\.\d+)?", item) and float(item) for item in items):
        raise UsageError(f"--rate {text}: must be numbers above 0, separated by commas")
    return [float(item) for item in items]
