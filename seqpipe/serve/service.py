"""One served bundle: its queue, and the worker threads that answer the queued inputs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from seqpipe.answers.answer_types import Answer
from seqpipe.answers.text import GeneratedText
from seqpipe.batch.files import json_record
from seqpipe.errors import DataError, SeqpipeError, UsageError, did_you_mean
from seqpipe.features.document import Doc, Record
from seqpipe.features.media import read_bytes
from seqpipe.features.sources import limit_media, media_features, numeric_fields
from seqpipe.runtime.decode_options import Chosen, limit_options, options_of, record_keys, resolve_options
from seqpipe.runtime.explanation import Explanation
from seqpipe.runtime.opened import OpenedBundle, check_golden, open_bundle
from seqpipe.runtime.predictor import RUN_ROWS, cores
from seqpipe.runtime.streams import prompt
from seqpipe.serve.http import HttpError, Result, call_off_loop, is_large
from seqpipe.serve.observe import current_request
from seqpipe.serve.queue import BatchQueue, Job
from seqpipe.serve.settings import Settings

_CHECK_SECONDS = 0.02  # seconds between two checks whether all requests are answered
# Tokens of a picture or sound that is decoded alone, since several at a time would multiply its memory.
_LARGE_MEDIA, _LARGE_MEDIA_LOCK = 4_096, threading.Lock()
_MAX_DECODINGS, _MAX_KEY_CHARACTERS = 64, 1_000  # size of the cache of decode options, and maximum length of its keys

_NOWHERE = Path(os.devnull)
_NOT_SPLIT = RuntimeError("an input was not tokenized before its answer")

log = logging.getLogger("seqpipe.serve")
Observer = Callable[["BatchTiming"], None]


@dataclass(frozen=True)
class BatchTiming:
    """The seconds that a batch took, for the metrics."""

    service: str  # its name
    waited: Sequence[float]  # of each of its jobs in the queue
    tokens: int  # of all its jobs, estimated
    features: float  # until the first run of the graph
    run: float  # in runs of the graph
    answer: float  # remaining time


@dataclass(slots=True)
class _Input:
    """One input of a batch: its record, and its tokenized text or the error."""

    record: Record
    decoding: Chosen
    doc: Doc | Exception = _NOT_SPLIT
    seconds: float = 0.0  # time of tokenization


class Request:
    """Pending answers of one request; used in the event loop only."""

    __slots__ = ("answers", "future", "missing", "waited")

    def __init__(self, future: asyncio.Future[list[Any]], answers: list[Any], missing: int):
        self.future, self.answers, self.missing, self.waited = future, answers, missing, 0.0

    def set(self, place: int, answer: Any, waited: float) -> None:
        """Set the answer to one of its jobs, or the exception, and the seconds that it waited."""
        self.waited = max(self.waited, waited)
        if self.future.done():
            return
        if isinstance(answer, Exception) and not isinstance(answer, DataError):
            self.future.set_exception(answer)
            return
        self.answers[place] = answer
        self.missing -= 1
        if not self.missing:
            self.future.set_result(self.answers)


class Service:
    """Answers requests with one bundle, in batches of queued inputs.

    Args:
        name: Name of the service.
        model: The bundle, opened with one thread, since the workers run in parallel.
        settings: Settings of the server.
        observers: Called with each finished batch, in the event loop.
        folder: Folder of the bundle, which errors must not reveal to clients.
    """

    def __init__(
        self,
        name: str,
        model: OpenedBundle,
        settings: Settings,
        observers: Sequence[Observer] = (),
        folder: Path = _NOWHERE,
    ):
        self.name, self.model, self._observers, self._folder = name, model, observers, folder
        self._loop = asyncio.get_running_loop()
        featurizer = model.predictor.featurizer
        self._numbers, self._media, self._active = bool(numeric_fields(featurizer)), media_features(featurizer), 0
        self.queue = BatchQueue(settings.max_waiting_tokens, settings.delay_ms / 1000, self._split)
        self._resolve_short = lru_cache(_MAX_DECODINGS)(self._resolve)
        self._close_s = settings.timeout_s
        each = settings.threads or max(1, cores() // settings.processes)
        count = 1 if model.device == "cuda" else each
        self._workers = [threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(count)]
        for worker in self._workers:
            worker.start()

    async def answer(
        self, items: Sequence[Any], options: Mapping[str, Any], *, deadline: float, documents: bool = False
    ) -> list[Answer | DataError]:
        """Return the answer to each text or record; for one that cannot be answered, the DataError.

        Raises:
            UsageError: for options that the bundle does not have; of one record (`field_options`) its DataError.
            HttpError: if the queue is full, or there was no answer before `deadline` (by `time.monotonic`).
        """
        request = Request(self._loop.create_future(), [None] * len(items), 0)
        jobs = await self._prepare(self._jobs, items, options, deadline, documents, request)
        return await self._wait_for_answers(jobs, request) if jobs else request.answers

    async def explain(self, item: Any, options: Mapping[str, Any], *, deadline: float) -> Explanation:
        """Return the answer to one input with its explanation; raises the same errors as `Model.explain`."""
        (record, read), (_, decoding) = await self._prepare(self._input, (item,), options)
        explain = partial(self.model.explain, record, method="attention", **options)
        return await self._call(explain, read, deadline, decoding)

    async def stream(self, item: Any, options: Mapping[str, Any], *, deadline: float) -> AsyncGenerator[GeneratedText]:
        """Generate the continuation of a prompt in chunks; other jobs are answered between two chunks."""
        end = object()
        self._active += 1
        try:
            (record, read), (_, decoding) = await self._prepare(self._input, (item,), options)
            start = partial(self.model.stream, record, **options)
            chunks: Iterator[GeneratedText] = await self._call(start, read, deadline, decoding)
            while (chunk := await self._call(partial(next, chunks, end), 0, deadline)) is not end:
                yield chunk
        finally:
            self._active -= 1

    def prompt(self, item: Any) -> str:
        """Return the beginning of the whole text, before the chunks of `stream`."""
        return prompt(self.model.predictor, self._record(item, 0)[0])

    async def close(self) -> None:
        """Answer all accepted requests, then end the workers; give up when the time is over."""
        end = time.monotonic() + self._close_s
        while self._active:
            await asyncio.sleep(_CHECK_SECONDS)
        self.queue.close()
        # The deadline of a request ends runs of the graph, but not a tokenizer whose pattern never ends. All workers
        # have a common deadline. No thread waits for them, since few threads are left for loading other bundles.
        while any(worker.is_alive() for worker in self._workers) and time.monotonic() < end:
            await asyncio.sleep(_CHECK_SECONDS)
        for worker in self._workers:
            if worker.is_alive():
                log.error("%s: a worker does not end; its thread is abandoned", self.name)

    async def _call(
        self, function: Callable[[], Any], size: int, deadline: float, decoding: Chosen | None = None
    ) -> Any:
        request, written = Request(self._loop.create_future(), [None], 0), decoding.written(size) if decoding else 0
        (result,) = await self._wait_for_answers([Job(None, size, deadline, function, request, 0, written)], request)
        if isinstance(result, DataError):
            raise result
        return result

    async def _wait_for_answers(self, jobs: list[Job], request: Request) -> list[Any]:
        request.missing, began, deadline = len(jobs), time.monotonic(), jobs[0].deadline
        self.queue.put(jobs)
        self._active += 1
        seconds = deadline - began

        def expire() -> None:
            late = f"no answer within {seconds:.3g} s; send fewer inputs at a time, or increase --timeout"
            request.set(0, HttpError(504, late), seconds)

        timer = self._loop.call_later(max(0.0, seconds), expire)
        try:
            return await request.future
        finally:
            timer.cancel()
            self._active -= 1
            if request.missing:
                self.queue.cancel(jobs)
            if (record := current_request()) is not None:
                waited = time.monotonic() - began if request.missing else request.waited
                record.add([job.tokens for job in jobs], waited)

    async def _prepare(
        self, function: Callable[..., Result], items: Sequence[Any], options: Mapping[str, Any], *more: Any
    ) -> Result:
        """Return what a function makes of inputs and options, in a thread if these are large."""
        self._active += 1  # the queue stays open meanwhile
        try:
            is_long = is_large(items) or len(str(options)) > _MAX_KEY_CHARACTERS
            return await call_off_loop(is_long, function, items, options, *more)
        finally:
            self._active -= 1

    def _jobs(
        self, items: Sequence[Any], options: Mapping[str, Any], deadline: float, documents: bool, request: Request
    ) -> list[Job]:
        """Return a job for each input; the answer to one that cannot be answered is the error."""
        known, has_fields = self.model.predictor.options, bool(options and record_keys(options))
        chosen = options_of({}, options, known) if has_fields else options
        key, decoding = self._decoding(chosen)
        jobs = []
        for place, item in enumerate(items):
            try:
                record, read = self._record(item, place, options)
                if has_fields:
                    chosen = options_of(record, options, known)
                    key, decoding = self._decoding(chosen)
            except (DataError, UsageError) as error:
                request.answers[place] = DataError(str(error))
                continue
            payload: Any = _Input(record, decoding)
            if documents:
                payload = partial(self.model.predictor.document, record, **chosen)
            written = decoding.written(read) * (min(read, RUN_ROWS) if documents else 1)  # for each sentence in a batch
            jobs.append(Job(None if documents else key, read, deadline, payload, request, place, written))
        return jobs

    def _input(self, items: Sequence[Any], options: Mapping[str, Any]) -> tuple[tuple[Record, int], tuple[str, Chosen]]:
        """Return the record of one input with its tokens, and the options as `_decoding` does."""
        return self._record(items[0], 0), self._decoding(options)

    def _record(self, item: Any, place: int, options: Mapping[str, Any] | None = None) -> tuple[Record, int]:
        """Return an input as a record, with the bytes of a picture or sound in place of base64, and its tokens."""
        where = f"record {place + 1}"
        record = {**json_record(item, self.model.fields, where, self._numbers), "where": where}
        record = dict(self.model.record(record, options))
        if not self._media:
            return record, estimate_tokens(record)
        tokens = estimate_tokens({name: value for name, value in record.items() if name not in self._media})
        for name in self._media.keys() & record.keys():
            at = f"{where}: field {name!r}"
            record[name] = value = read_bytes(record[name], at) if isinstance(record[name], str) else record[name]
            tokens += self._media[name].media_tokens(value, at)
        return record, tokens

    def _decoding(self, options: Mapping[str, Any]) -> tuple[str, Chosen]:
        """Return the options as JSON and as graph inputs; cached for requests with the same short options."""
        if not options:
            return "", self._resolve_short("{}")
        key = json.dumps(options, sort_keys=True)
        text = json.dumps(options)  # in their order, of which the first one that is wrong is named
        return key, self._resolve(text) if len(text) > _MAX_KEY_CHARACTERS else self._resolve_short(text)

    def _resolve(self, text: str) -> Chosen:
        predictor = self.model.predictor
        return resolve_options(predictor.options, json.loads(text), predictor.kind)

    def _split(self, jobs: Sequence[Job]) -> None:
        """Tokenize and measure the inputs of jobs; an exception becomes the answer."""
        if self._media and len(jobs) > 1:
            for job in jobs:
                self._split([job])
            return
        inputs: list[_Input] = [job.payload for job in jobs]
        is_large = bool(self._media) and jobs[0].tokens > _LARGE_MEDIA
        with _LARGE_MEDIA_LOCK if is_large else contextlib.nullcontext():
            began = time.monotonic()
            if self._media and (began > jobs[0].deadline or not jobs[0].waits):
                return  # nobody waits for what a picture or a sound would cost
            try:
                docs: Sequence[Doc | Exception] = self.model.predictor.split([each.record for each in inputs])
            except BaseException as raised:  # as in `_results`
                if len(jobs) > 1:
                    for job in jobs:
                        self._split([job])
                    return
                docs = [_error(raised)]
        seconds = (time.monotonic() - began) / len(jobs)
        for job, each, doc in zip(jobs, inputs, docs, strict=True):
            each.doc, each.seconds = doc, seconds
            job.length = self.model.predictor.kind.text_length(doc) if isinstance(doc, Doc) else 0

    def _work(self) -> None:
        times = self.model.run_times
        while jobs := self.queue.take():
            began = time.monotonic()
            results = self._results(jobs)
            ended = time.monotonic()
            self.queue.done(jobs, ended - began)
            features = times.began - began if times.count else ended - began
            waited, answer = [began - job.arrived for job in jobs], ended - began - features - times.seconds
            features += sum(job.payload.seconds for job in jobs if job.key is not None)
            batch = BatchTiming(self.name, waited, sum(job.tokens for job in jobs), features, times.seconds, answer)
            self._loop.call_soon_threadsafe(self._deliver, jobs, results, batch)

    def _results(self, jobs: Sequence[Job]) -> list[Any]:
        """Return the answer to each job, or its exception: a job that fails its batch fails alone."""
        end = max(job.deadline for job in jobs)
        self.model.run_times.restart(end)
        try:
            if jobs[0].key is None:
                return [jobs[0].payload()]
            inputs: list[_Input] = [job.payload for job in jobs]
            places = [str(each.record["where"]) for each in inputs]
            return self.model.predictor.answer_docs([each.doc for each in inputs], inputs[0].decoding, places)
        except BaseException as raised:  # libraries may raise a BaseException, which must not end a worker
            if len(jobs) == 1 or time.monotonic() >= end:
                return [_error(raised)] * len(jobs)
            return [result for job in jobs for result in self._results([job])]

    def _deliver(self, jobs: Sequence[Job], results: Sequence[Any], batch: BatchTiming) -> None:
        now = time.monotonic()
        for job, result, waited in zip(jobs, results, batch.waited, strict=True):
            if isinstance(result, Exception):
                # A run is ended at its deadline; its error may come before the timer that answers the request.
                if now >= job.deadline:
                    continue
                if isinstance(result, SeqpipeError) and (path := str(self._folder)) in str(result):
                    result = type(result)(str(result).replace(path, self.name)).with_traceback(result.__traceback__)
            job.request.set(job.place, result, waited)
        for observe in self._observers:
            observe(batch)


def _error(raised: BaseException) -> Exception:
    """Return an exception that can be sent as the answer to a request."""
    return raised if isinstance(raised, Exception) else RuntimeError(f"{type(raised).__name__}: {raised}")


def estimate_tokens(record: Record) -> int:
    """Estimate the tokens of a record before it is split: a quarter of its bytes, or one per row."""
    return sum(_size(value) for name, value in record.items() if name != "where")


def _size(value: Any) -> int:
    if isinstance(value, str):
        return (len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))) // 4 + 1
    if not isinstance(value, list):
        return 1
    return sum(_size(part) if isinstance(part, str) else 1 for part in value)


def open_model(folder: Path, settings: Settings) -> OpenedBundle:
    """Load and verify a bundle, and apply the server's limits to its options; BundleError if it is not valid."""
    model = open_bundle(folder, settings.device, threads=1, timeout=settings.timeout_s)
    check_golden(model, folder)
    limit_media(model.predictor.featurizer, settings.max_pixels, settings.max_samples)
    tokens = {name.rpartition(".")[0]: settings.max_length for name in model.manifest.options}
    limit_options(model.manifest.options, settings.max_beams, tokens)
    return model


class Catalog:
    """The services by name; used in the event loop only."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self.services: dict[str, Service] = {}  # in the order in which they were loaded
        self.observers: list[Observer] = []  # called with each finished batch

    def get(self, name: str) -> Service:
        """Return the service of this name. Use it before the next await: it may be replaced.

        Raises:
            HttpError: 404 for an unknown name.
        """
        service = self.services.get(name)
        if service is None:
            raise HttpError(404, f"no bundle {name!r}{did_you_mean(name, self.services)}; GET /v1 lists all bundles")
        if (record := current_request()) is not None:
            record.bundle = name
        return service

    def start(self, models: Mapping[str, OpenedBundle]) -> None:
        """Serve the first bundles."""
        for name, model in models.items():
            folder = self._settings.bundles[name]
            self.services[name] = Service(name, model, self._settings, self.observers, folder)

    async def load(self, name: str, folder: Path) -> Service:
        """Load, verify and serve a bundle; the old one of this name is served until then.

        Raises:
            BundleError: if it is damaged or answers differently; the old one stays.
        """
        model = await asyncio.to_thread(open_model, folder, self._settings)
        service = Service(name, model, self._settings, self.observers, folder)
        before, self.services[name] = self.services.get(name), service
        if before is not None:
            await before.close()
        return service

    async def unload(self, name: str) -> None:
        """Stop serving a bundle once its accepted requests are answered."""
        service = self.get(name)
        del self.services[name]
        await service.close()

    async def stop(self) -> None:
        """Answer accepted requests, and end all workers."""
        await asyncio.gather(*(service.close() for service in self.services.values()))
