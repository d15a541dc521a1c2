"""How fast a bundle answers in this process: one by one, in batches, to several threads, and in which stage."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from seqpipe.commands.bench.latency import Latency
from seqpipe.commands.bench.memory import memory
from seqpipe.errors import EnvError
from seqpipe.features.document import Record
from seqpipe.runtime.decode_options import chosen
from seqpipe.runtime.model import Model
from seqpipe.runtime.predictor import ROWS, batches

MOST_STARTS = 5
START, ONE_BY_ONE, BATCHES, THREADS, STAGES = 0.15, 0.25, 0.25, 0.2, 0.15  # parts of the time of all measurements
WARM_UP = 0.1  # the part of each measurement's time that passes before anything counts
Call = Callable[[], object]


def measure(
    bundle: Path,
    model: Model,
    records: Sequence[Record],
    options: Mapping[str, Any],
    sizes: Sequence[int],
    threads: Sequence[int],
    seconds: float,
) -> dict[str, Any]:
    """All measurements; DataError for an input that cannot be answered."""
    model.predictor.docs([model.record(record) for record in records])
    model(records[0], **options)
    return {
        "bundle": str(bundle),
        "sha256": model.sha256,
        "device": model.device,
        "threads": model.predictor.workers,
        "inputs": len(records),
        "options": options,
        "seconds": seconds,
        "start": start_up(bundle, model, records[0], options, seconds * START),
        "one_by_one": one_by_one(model, records, options, seconds * ONE_BY_ONE),
        "batches": in_batches(model, records, options, sizes, seconds * BATCHES),
        "clients": from_threads(model, records, options, threads, seconds * THREADS),
        "stages": by_stage(model, records, options, seconds * STAGES),
        "memory": memory(),
    }


def start_up(bundle: Path, model: Model, record: Record, options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Seconds from the start of a Python process to its first answer, and its memory then: the median of some."""
    end = time.perf_counter() + seconds
    starts = [_start(bundle, model, record, options)]
    while len(starts) < MOST_STARTS and time.perf_counter() < end:
        starts.append(_start(bundle, model, record, options))
    median = sorted(starts, key=itemgetter("total_s"))[(len(starts) - 1) // 2]
    return {"processes": len(starts), **median}


def _start(bundle: Path, model: Model, record: Record, options: Mapping[str, Any]) -> dict[str, Any]:
    threads = str(model.predictor.workers)
    arguments = [str(bundle), model.device, threads, json.dumps(record), json.dumps(options)]
    command = [sys.executable, "-m", "seqpipe.commands.bench.first_answer", *arguments]
    clock = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        total = time.perf_counter() - clock
        _, errors = process.communicate()
    if process.returncode:
        raise EnvError(f"{bundle}: a new process gave no answer:\n{errors.strip()}")
    times, held = json.loads(line)
    times = {"python_s": total - sum(times.values()), **times, "total_s": total}
    return {name: round(value, 4) for name, value in times.items()} | {"memory": held}


def one_by_one(model: Model, records: Sequence[Record], options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Latency of single inputs, one after the other."""
    taken = _timed(_singles(model, records, options), seconds)
    return {"per_second": round(len(taken) / sum(taken), 2), **Latency.of(taken).data()}


def in_batches(
    model: Model, records: Sequence[Record], options: Mapping[str, Any], sizes: Sequence[int], seconds: float
) -> list[dict[str, Any]]:
    """Inputs a second in lists of each size."""
    rows = []
    for size in sizes:
        taken = _timed(_lists(model, records, options, size), seconds / len(sizes))
        rows.append({"size": size, "per_second": round(size * len(taken) / sum(taken), 2)})
    return rows


def from_threads(
    model: Model, records: Sequence[Record], options: Mapping[str, Any], numbers: Sequence[int], seconds: float
) -> list[dict[str, Any]]:
    """Inputs a second and latency, where each of so many threads calls the model again as soon as it has an answer."""
    rows = []
    for number in numbers:
        with ThreadPoolExecutor(number) as pool:
            rotated = [[*records[i % len(records) :], *records[: i % len(records)]] for i in range(number)]
            calls = [_singles(model, some, options) for some in rotated]
            parts = list(pool.map(_timed, calls, itertools.repeat(seconds / len(numbers))))
        taken = [each for part in parts for each in part]
        rate = sum(len(part) / sum(part) for part in parts)
        rows.append({"clients": number, "per_second": round(rate, 2), **Latency.of(taken).data()})
    return rows


def by_stage(model: Model, records: Sequence[Record], options: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Milliseconds an input for its features, the run of the graph, and the answer; inputs without text need none."""
    predictor = model.predictor
    decoding = chosen(predictor.options, options, predictor.kind)

    def work(some: Sequence[Record]) -> list[float]:
        clocks = [time.perf_counter()]
        docs = predictor.docs([model.record(record) for record in some])
        feeds = predictor.featurizer.collate(docs) | decoding.of(docs)
        clocks.append(time.perf_counter())
        decision = predictor.run(feeds)
        clocks.append(time.perf_counter())
        predictor.read(docs, decision)
        clocks.append(time.perf_counter())
        return [end - start for start, end in itertools.pairwise(clocks)]

    lengths = [predictor.kind.text_length(doc) for doc in predictor.docs([model.record(record) for record in records])]
    positions = [i for i, length in enumerate(lengths) if length]
    repeated = positions * -(-ROWS // max(1, len(positions)))
    groups = {
        "one_by_one": [[i] for i in positions],
        "in_batches": [[repeated[j] for j in batch] for batch in batches([lengths[i] for i in repeated])],
    }
    stages: dict[str, Any] = {}
    for name, parts in groups.items():
        if parts:
            stages[name] = _stage_times(work, [[records[i] for i in part] for part in parts], seconds / len(groups))
    return stages


def _stage_times(
    work: Callable[[Sequence[Record]], list[float]], parts: Sequence[Sequence[Record]], seconds: float
) -> dict[str, float]:
    start = time.perf_counter()
    sums, count = [0.0, 0.0, 0.0], 0
    for some in itertools.cycle(parts):
        times, passed = work(some), time.perf_counter() - start
        if passed > seconds * WARM_UP:
            sums, count = [total + each for total, each in zip(sums, times, strict=True)], count + len(some)
        if passed > seconds and count:
            break
    ms = [round(1000 * each / count, 4) for each in sums]
    return dict(zip(("features_ms", "run_ms", "answer_ms"), ms, strict=True))


def _singles(model: Model, records: Sequence[Record], options: Mapping[str, Any]) -> Iterator[Call]:
    for record in itertools.cycle(records):
        yield partial(model, record, **options)


def _lists(model: Model, records: Sequence[Record], options: Mapping[str, Any], size: int) -> Iterator[Call]:
    endless = itertools.cycle(records)
    while True:
        some = list(itertools.islice(endless, size))
        yield partial(model, some, **options)


def _timed(calls: Iterator[Call], seconds: float) -> list[float]:
    """Seconds of each call, the warm-up left out; of one call at least."""
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
