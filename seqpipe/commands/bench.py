"""`seqpipe bench`: speed and memory of a bundle in this process: one by one, in batches, by threads, by stage."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqpipe.commands.options import AnswerOptions, BundlePath, DecodeOptions, parse_decode_options, with_options
from seqpipe.console import text_table
from seqpipe.errors import DataError, EnvError, UsageError
from seqpipe.runtime.first_answer import memory

if TYPE_CHECKING:
    from seqpipe.api.model import Model
    from seqpipe.features.document import Record

DEFAULT_BATCH_SIZES, DEFAULT_THREADS = "1,8,32,128", "1,4,16"
MOST_INPUTS = 1000  # inputs that are used, and repeated until the time is over
MOST_STARTS = 5
# Each measurement's share of the time, and the warm-up's share of each measurement.
START_PART, ONE_BY_ONE_PART, BATCHES_PART, THREADS_PART, STAGES_PART = 0.15, 0.25, 0.25, 0.2, 0.15
WARM_UP = 0.1
PERCENTILES = {"p50_ms": "p50 ms", "p90_ms": "p90 ms", "p99_ms": "p99 ms", "max_ms": "max ms"}
STARTS = {
    "python_s": "start Python",
    "load_s": "import seqpipe, open the bundle",
    "answer_s": "first answer",
    "total_s": "together",
}
STAGES = {"features_ms": "features", "run_ms": "run of the graph", "answer_ms": "answer"}


@with_options(AnswerOptions)
def bench(
    output: AnswerOptions,
    bundle: BundlePath,
    input: Annotated[
        Path | None, typer.Option("--input", "-i", help="File of inputs; default: the golden examples of the bundle.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="text, jsonl or conll; default: by the file extension.")
    ] = "auto",
    seconds: Annotated[float, typer.Option(min=1, help="Time for all measurements together.")] = 20.0,
    clients: Annotated[str, typer.Option(metavar="NUMBERS", help="Threads that share the model.")] = DEFAULT_THREADS,
    batches: Annotated[str, typer.Option(metavar="NUMBERS", help="Batch sizes.")] = DEFAULT_BATCH_SIZES,
    options: DecodeOptions = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of parallel runs; default: one per core.")] = None,
) -> None:
    """Measure the speed and memory of a bundle. Needs no PyTorch."""
    numbers = []
    for flag, text in (("--batches", batches), ("--clients", clients)):
        items = [item.strip() for item in text.split(",")]
        if not all(item.isdecimal() and int(item) for item in items):
            raise UsageError(f"{flag} {text}: must be whole numbers from 1, separated by commas")
        numbers.append([int(item) for item in items])

    from seqpipe import load

    model = load(bundle, output.device, threads)
    decode_options = parse_decode_options(options or [], {}, model.predictor.options)
    records = bundle_inputs(model, input, form)
    settings = f"{model.device}, {model.predictor.workers} at once, {len(records):,} inputs"
    output.console.say(f"{bundle}: {settings}, about {seconds:g} seconds")
    result = Benchmark(model, records, decode_options).measure(bundle, numbers[0], numbers[1], seconds)
    if not output.as_json:
        typer.echo(format_tables(result))
    output.print(result)


def bundle_inputs(model: Model, source: Path | None, form: str) -> list[Record]:
    """Return the first records of a file, or the golden examples; DataError for an invalid record."""
    from seqpipe.batch.files import input_format, read_inputs
    from seqpipe.runtime.predictor import raise_error

    if source is None:
        examples: list[Any] = [example.record for example in model.manifest.golden]
        if not examples:
            raise UsageError("the bundle has no golden examples; pass a file of inputs: --input FILE")
        return examples
    form = input_format(model, form, source)
    records: list[Record] = []
    for record, where in itertools.islice(read_inputs(model, source, form), MOST_INPUTS):
        records.append({**raise_error(record), "where": where})
    if not records:
        raise DataError(f"{source}: has no input")
    return records


def latencies(seconds: Sequence[float]) -> dict[str, float]:
    """Return the count and percentiles in ms of at least one latency; each was measured (nearest rank)."""
    import numpy as np

    ms = np.percentile(np.asarray(seconds) * 1000, (50, 90, 99, 100), method="inverted_cdf")
    percentiles = {key: round(float(value), 3) for key, value in zip(PERCENTILES, ms, strict=True)}
    return {"count": len(seconds), **percentiles}


@dataclass(frozen=True)
class Benchmark:
    """A model, and the inputs and decode options that it is measured with."""

    model: Model
    records: Sequence[Record]
    options: Mapping[str, Any]

    def measure(self, bundle: Path, sizes: Sequence[int], threads: Sequence[int], seconds: float) -> dict[str, Any]:
        """Return all measurements; DataError for an input that cannot be answered."""
        self.model.predictor.docs([self.model.record(record) for record in self.records])
        self.model(self.records[0], **self.options)
        return {
            "bundle": str(bundle),
            "sha256": self.model.sha256,
            "device": self.model.device,
            "threads": self.model.predictor.workers,
            "inputs": len(self.records),
            "options": self.options,
            "seconds": seconds,
            "start": self.time_start(bundle, seconds * START_PART),
            "one_by_one": self.time_singles(seconds * ONE_BY_ONE_PART),
            "batches": self.time_batches(sizes, seconds * BATCHES_PART),
            "clients": self.time_threads(threads, seconds * THREADS_PART),
            "stages": self.time_stages(seconds * STAGES_PART),
            "memory": memory(),
        }

    def time_start(self, bundle: Path, seconds: float) -> dict[str, Any]:
        """Measure the seconds from process start to the first answer, and the memory then: medians of several runs."""
        inputs = json.dumps(self.records[0]), json.dumps(self.options)
        arguments = [str(bundle), self.model.device, str(self.model.predictor.workers), *inputs]
        command = [sys.executable, "-m", "seqpipe.runtime.first_answer", *arguments]
        starts: list[dict[str, Any]] = []
        end = time.perf_counter() + seconds
        while not starts or (len(starts) < MOST_STARTS and time.perf_counter() < end):
            clock = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                line = process.stdout.readline()
                total = time.perf_counter() - clock
                _, errors = process.communicate()
            if process.returncode:
                raise EnvError(f"{bundle}: a new process returned no answer:\n{errors.strip()}")
            times, held = json.loads(line)
            times = {"python_s": total - sum(times.values()), **times, "total_s": total}
            starts.append({name: round(value, 4) for name, value in times.items()} | {"memory": held})
        median = sorted(starts, key=itemgetter("total_s"))[(len(starts) - 1) // 2]
        return {"processes": len(starts), **median}

    def time_singles(self, seconds: float) -> dict[str, Any]:
        """Measure the latency of single inputs, one after the other."""
        taken = _time_calls(self._single_calls(), seconds)
        return {"per_second": round(len(taken) / sum(taken), 2), **latencies(taken)}

    def time_batches(self, sizes: Sequence[int], seconds: float) -> list[dict[str, Any]]:
        """Measure inputs per second in lists of each size."""
        rows = []
        for size in sizes:
            endless = itertools.cycle(self.records)
            lists = ([record, *itertools.islice(endless, size - 1)] for record in endless)
            taken = _time_calls((partial(self.model, texts, **self.options) for texts in lists), seconds / len(sizes))
            rows.append({"size": size, "per_second": round(size * len(taken) / sum(taken), 2)})
        return rows

    def time_threads(self, numbers: Sequence[int], seconds: float) -> list[dict[str, Any]]:
        """Measure inputs per second and latency with this many threads, each of which calls the model without pause."""
        rows = []
        for number in numbers:
            with ThreadPoolExecutor(number) as pool:
                calls = [self._single_calls(i % len(self.records)) for i in range(number)]
                parts = list(pool.map(_time_calls, calls, itertools.repeat(seconds / len(numbers))))
            taken = [each for part in parts for each in part]
            rate = sum(len(part) / sum(part) for part in parts)
            rows.append({"clients": number, "per_second": round(rate, 2), **latencies(taken)})
        return rows

    def time_stages(self, seconds: float) -> dict[str, Any]:
        """Measure milliseconds per input for features, the run of the graph, and the answer."""
        from seqpipe.runtime.decode_options import resolve_options
        from seqpipe.runtime.predictor import RUN_ROWS, batches

        predictor, records = self.model.predictor, [self.model.record(record) for record in self.records]
        decoding = resolve_options(predictor.options, self.options, predictor.kind)
        calls: list[list[float]] = []  # the number of inputs of each call, and the seconds of its stages

        def work(rows: Sequence[int]) -> None:
            clocks = [time.perf_counter()]
            docs = predictor.docs([self.model.record(self.records[i]) for i in rows])
            feeds = predictor.featurizer.collate(docs) | decoding.of(docs)
            clocks.append(time.perf_counter())
            decision = predictor.run(feeds)
            clocks.append(time.perf_counter())
            predictor.read(docs, decision, decoding)
            clocks.append(time.perf_counter())
            calls.append([len(rows), *(end - start for start, end in itertools.pairwise(clocks))])

        lengths = [predictor.kind.text_length(doc) for doc in predictor.docs(records)]
        positions = [i for i, length in enumerate(lengths) if length]
        if not positions:
            return {}
        repeated = positions * -(-RUN_ROWS // len(positions))
        groups = {
            "one_by_one": [[i] for i in positions],
            "in_batches": [[repeated[j] for j in batch] for batch in batches([lengths[i] for i in repeated])],
        }
        stages: dict[str, Any] = {}
        for name, parts in groups.items():
            taken = _time_calls((partial(work, part) for part in itertools.cycle(parts)), seconds / len(groups))
            count, *sums = map(sum, zip(*calls[-len(taken) :], strict=True))  # without those of the warm-up
            stages[name] = {key: round(1000 * each / count, 4) for key, each in zip(STAGES, sums, strict=True)}
        return stages

    def _single_calls(self, first: int = 0) -> Iterator[Callable[[], object]]:
        """Yield calls for single inputs without end, from the one at this place."""
        for record in itertools.islice(itertools.cycle(self.records), first, None):
            yield partial(self.model, record, **self.options)


def _time_calls(calls: Iterator[Callable[[], object]], seconds: float) -> list[float]:
    """Return the seconds of each call after the warm-up; of at least one call."""
    start = time.perf_counter()
    taken: list[float] = []
    for call in calls:
        clock = time.perf_counter()
        call()
        end = time.perf_counter()
        if clock - start > seconds * WARM_UP:
            taken.append(end - clock)
        if end - start > seconds and taken:
            break
    return taken


def format_tables(result: Mapping[str, Any]) -> str:
    """Return the results as tables for a person."""

    def rates(name: str, row: Mapping[str, Any]) -> list[str]:
        return [name, f"{row['per_second']:,.1f}", *(f"{row[key]:,.2f}" for key in PERCENTILES if key in row)]

    start, stages = result["start"], result["stages"]
    cold_start = [[f"cold start (median of {start['processes']})", "s"]]
    cold_start += [[name, f"{start[key]:.3f}"] for key, name in STARTS.items()]
    speeds = ["inputs/s", *PERCENTILES.values()]
    drawn = [
        cold_start,
        [["one by one", *speeds], rates("", result["one_by_one"])],
        [["batch size", "inputs/s"], *(rates(str(row["size"]), row) for row in result["batches"])],
        [["threads", *speeds], *(rates(str(row["clients"]), row) for row in result["clients"])],
    ]
    if stages:
        rows = [[name, *(f"{stage[key]:.3f}" for stage in stages.values())] for key, name in STAGES.items()]
        drawn.append([["ms an input", *(key.replace("_", " ") for key in stages)], *rows])
    memories = {"after the first answer": start["memory"], "after all measurements": result["memory"]}
    rows = [[name, f"{m['resident_mib']:,.0f}", f"{m['peak_mib']:,.0f}"] for name, m in memories.items() if m]
    if rows:
        drawn.append([["memory", "resident MiB", "peak MiB"], *rows])
    return "\n\n".join("\n".join(text_table(table, numbers=True)) for table in drawn)
