"""Prometheus metrics of the server, observed once a request or once a batch; `docs/deploy/operation.md` lists them."""

from __future__ import annotations

import os
import time
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, values
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector

from seqpipe.serve.observe import EndedRequest
from seqpipe.serve.service import BatchTiming

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # the folder that several processes share
BATCH_STAGES = ("features", "run", "answer")
_BUNDLE = ("bundle",)
_REQUEST_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_STAGE_SECONDS = (0.0001, 0.00025, *_REQUEST_SECONDS[:-2])
_ITEMS = (1, 2, 4, 8, 16, 32, 64)


class Waiting(NamedTuple):
    """Size of a queue: items, their tokens, and the seconds that the oldest has waited."""

    items: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Metrics:
    """All metrics of one process; with the variable PROMETHEUS_MULTIPROC_DIR each process reports those of all."""

    def __init__(self) -> None:
        if SHARED in os.environ:  # prometheus_client reads the variable only when it is imported
            values.ValueClass = values.get_value_class()
        registry = self.registry = CollectorRegistry()
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        self._requests = counter("seqpipe_requests", "Requests by bundle and HTTP status.", ("bundle", "code"))
        self._items = counter("seqpipe_items", "Inputs of requests.", _BUNDLE)
        self._tokens = counter("seqpipe_tokens", "Tokens of requests, estimated.", _BUNDLE)
        text = "From the head of a request to the end of its response."
        self._request_seconds = histogram("seqpipe_request_seconds", text, _BUNDLE, buckets=_REQUEST_SECONDS)
        text = "How long a request waited for a worker."
        self._queue_seconds = histogram("seqpipe_queue_seconds", text, _BUNDLE, buckets=_REQUEST_SECONDS)
        self._batch_items = histogram("seqpipe_batch_items", "Inputs of a batch.", _BUNDLE, buckets=_ITEMS)
        text = "Time of a batch by stage: features, run, answer."
        self._stage_seconds = histogram("seqpipe_batch_seconds", text, ("bundle", "stage"), buckets=_STAGE_SECONDS)
        self._batch_tokens = counter("seqpipe_batch_tokens", "Tokens of batches, estimated.", _BUNDLE)
        self._queue = {
            "items": self._gauge("seqpipe_queue_items", "Inputs that wait for a worker."),
            "tokens": self._gauge("seqpipe_queue_tokens", "Tokens of the inputs that wait for a worker."),
            "seconds": self._gauge("seqpipe_queue_oldest_seconds", "Age of the oldest input that waits.", "livemax"),
        }
        text = "Bundles loaded, unloaded or refused."
        self._loads = counter("seqpipe_bundle_loads", text, ("bundle", "result"))
        self._loaded_at = self._gauge(
            "seqpipe_bundle_loaded_timestamp_seconds", "Time when the current version was loaded; 0: unloaded.", "max"
        )
        self._watched: set[str] = set()
        self._of: Callable[..., Any] = cache(lambda metric, *labels: metric.labels(*labels))  # metric of a bundle
        if SHARED not in os.environ:
            ProcessCollector(registry=registry)

    def _gauge(self, name: str, text: str, mode: str = "livesum") -> Gauge:
        return Gauge(name, text, _BUNDLE, registry=self.registry, multiprocess_mode=mode)  # type: ignore[arg-type]

    def requests(self, ended: Sequence[EndedRequest]) -> None:
        """Observe requests that have ended."""
        for (bundle, status), count in Tally(
            (request.record.bundle, request.record.status) for request in ended
        ).items():
            self._of(self._requests, bundle, status).inc(count)
        for bundle in {request.record.bundle for request in ended} - {""}:
            for metric in (self._batch_items, self._batch_tokens):
                self._of(metric, bundle)  # begins at 0, also if all requests are refused
            answered = [request for request in ended if request.record.bundle == bundle]
            self._of(self._items, bundle).inc(sum(request.record.items for request in answered))
            self._of(self._tokens, bundle).inc(sum(request.record.tokens for request in answered))
            for request in answered:
                self._of(self._request_seconds, bundle).observe(request.seconds)
                self._of(self._queue_seconds, bundle).observe(request.record.queued)

    def batch(self, batch: BatchTiming) -> None:
        """Observe a batch that is done."""
        self._of(self._batch_items, batch.service).observe(len(batch.waited))
        self._of(self._batch_tokens, batch.service).inc(batch.tokens)
        for stage in BATCH_STAGES:
            self._of(self._stage_seconds, batch.service, stage).observe(getattr(batch, stage))

    def load(self, bundle: str, result: str) -> None:
        """Count a bundle that was `loaded`, `unloaded` or `refused`."""
        self._loads.labels(bundle, result).inc()
        if result != "refused":
            self._loaded_at.labels(bundle).set(time.time() if result == "loaded" else 0)

    def refresh(self, waiting: Mapping[str, Waiting]) -> None:
        """Set the current queue sizes of this process; a bundle that is not named has an empty queue."""
        self._watched |= waiting.keys()
        for bundle in self._watched:
            for name, value in waiting.get(bundle, Waiting())._asdict().items():
                self._queue[name].labels(bundle).set(value)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the metrics of all processes in Prometheus' format, and the content type."""
        encode, content_type = choose_encoder(accept)
        registry = self.registry
        if SHARED in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return encode(registry), content_type
