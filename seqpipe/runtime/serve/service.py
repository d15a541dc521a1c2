"""One bundle that is served: its queue, and the worker threads that answer what waits there."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from seqpipe.answers.types import Answer
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Record
from seqpipe.runtime.decode_options import Chosen, chosen
from seqpipe.runtime.explain.maps import Explanation
from seqpipe.runtime.model import Model
from seqpipe.runtime.predictor import cores
from seqpipe.runtime.serve.batch_queue import BatchQueue, Job
from seqpipe.runtime.serve.http_errors import late
from seqpipe.runtime.serve.settings import Settings

_DECODINGS = 64  # choices of decode options that are kept


class Request:
    """The answers that one request still waits for; used in the event loop alone."""

    __slots__ = ("answers", "future", "missing")

    def __init__(self, future: asyncio.Future[list[Any]], answers: list[Any], missing: int):
        self.future, self.answers, self.missing = future, answers, missing

    def set(self, place: int, answer: Any) -> None:
        """The answer to one of its jobs, or what that raised."""
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
    """Answers requests with one bundle, in batches of what waits.

    Args:
        name: What it is served under.
        model: The bundle, opened with one thread: the workers here are the others.
        settings: Of the server.
        loop: The event loop of the server, which all methods but `close` are called in.
    """

    def __init__(self, name: str, model: Model, settings: Settings, loop: asyncio.AbstractEventLoop):
        self.name, self.model, self._loop = name, model, loop
        self.queue = BatchQueue(settings.max_waiting_tokens, settings.delay_ms / 1000)
        self._decodings: OrderedDict[str, Chosen] = OrderedDict()
        count = 1 if model.device == "cuda" else settings.threads or cores()
        self._workers = [threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(count)]
        for worker in self._workers:
            worker.start()

    async def answer(
        self, items: Sequence[Any], options: Mapping[str, Any], *, deadline: float, documents: bool = False
    ) -> list[Answer | DataError]:
        """The answer to each text or record, and to one that cannot be answered the reason.

        Raises:
            UsageError: for options that the bundle does not have.
            HttpError: if too much waits, or no answer came before `deadline` (by `time.monotonic`).
        """
        key = json.dumps(options, sort_keys=True) if options else ""
        decoding = self._decoding(key, options)
        answers: list[Any] = [None] * len(items)
        request = Request(self._loop.create_future(), answers, 0)
        jobs = []
        for place, item in enumerate(items):
            try:
                record = self._record(item, place)
            except (DataError, UsageError) as error:
                answers[place] = DataError(str(error))
                continue
            if documents:
                payload: Any = partial(self.model.predictor.document, record, **options)
            else:
                payload = (record, decoding)
            jobs.append(Job(None if documents else key, tokens(record), deadline, payload, request, place))
        return await self._answered(jobs, request) if jobs else answers

    async def explain(self, item: Any, options: Mapping[str, Any], *, deadline: float) -> Explanation:
        """The answer to one input with what the model looked at; raises what `Model.explain` does."""
        record = self._record(item, 0)
        return await self._call(partial(self.model.explain, record, **options), tokens(record), deadline)

    async def stream(self, item: Any, options: Mapping[str, Any], *, deadline: float) -> AsyncIterator[str]:
        """What follows a prompt, piece by piece; each piece waits in the queue like a request."""
        record = self._record(item, 0)
        size, end = tokens(record), object()
        pieces: Iterator[str] = await self._call(partial(self.model.stream, record, **options), size, deadline)
        while (piece := await self._call(partial(next, pieces, end), 1, deadline)) is not end:
            yield piece

    def close(self, drain: bool = True) -> None:
        """Takes no more; with `drain`, returns when all that waits is answered. Not for the event loop's own thread."""
        self.queue.close()
        if drain:
            for worker in self._workers:
                worker.join()

    async def _call(self, function: Callable[[], Any], size: int, deadline: float) -> Any:
        request = Request(self._loop.create_future(), [None], 0)
        (result,) = await self._answered([Job(None, size, deadline, function, request)], request)
        if isinstance(result, DataError):
            raise result
        return result

    async def _answered(self, jobs: list[Job], request: Request) -> list[Any]:
        request.missing, began, deadline = len(jobs), time.monotonic(), jobs[0].deadline
        self.queue.put(jobs)
        timer = self._loop.call_later(max(0.0, deadline - began), self._expire, request, deadline - began)
        try:
            return await request.future
        finally:
            timer.cancel()
            if request.missing:
                self.queue.cancel(jobs)

    def _expire(self, request: Request, seconds: float) -> None:
        if not request.future.done():
            request.future.set_exception(late(seconds))

    def _record(self, item: Any, place: int) -> Record:
        record = self.model.record(item)
        return record if "where" in record else {**record, "where": f"record {place + 1}"}

    def _decoding(self, key: str, options: Mapping[str, Any]) -> Chosen:
        """The options as the graph takes them: made once for as long as requests give the same."""
        if key in self._decodings:
            self._decodings.move_to_end(key)
            return self._decodings[key]
        decoding = chosen(self.model.predictor.options, options, self.model.predictor.kind)
        self._decodings[key] = decoding
        if len(self._decodings) > _DECODINGS:
            self._decodings.popitem(last=False)
        return decoding

    def _work(self) -> None:
        while jobs := self.queue.take():
            began = time.monotonic()
            results = self._results(jobs)
            self.queue.done(jobs, time.monotonic() - began)
            self._loop.call_soon_threadsafe(_deliver, jobs, results)

    def _results(self, jobs: Sequence[Job]) -> list[Any]:
        """The answer to each job, or what it raised: one that fails a batch fails alone."""
        try:
            if jobs[0].key is None:
                return [jobs[0].payload()]
            return self.model.predictor.answer_batch([job.payload[0] for job in jobs], jobs[0].payload[1])
        except Exception as error:
            if len(jobs) == 1:
                return [error]
            return [result for job in jobs for result in self._results([job])]


def _deliver(jobs: Sequence[Job], results: Sequence[Any]) -> None:
    for job, result in zip(jobs, results, strict=True):
        job.request.set(job.place, result)


def tokens(record: Record) -> int:
    """About how many tokens a record has, before it is split: a quarter of its bytes, a token a word or row."""
    return sum(map(_size, record.values()))


def _size(value: Any) -> int:
    if isinstance(value, str):
        return (len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))) // 4 + 1
    return len(value) if isinstance(value, list) else 1
