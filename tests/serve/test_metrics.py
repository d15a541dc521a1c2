"""Metrics as the parser of Prometheus reads them."""

import os
import subprocess
import sys
from pathlib import Path

from serving import metric_value

from seqpipe.serve.metrics import Metrics, Waiting
from seqpipe.serve.observe import EndedRequest, RequestRecord
from seqpipe.serve.service import BatchTiming


def test_requests_are_counted_by_bundle_and_code() -> None:
    metrics = Metrics()
    for status, seconds in ((200, 0.004), (200, 0.4), (422, 0.001)):
        metrics.requests([EndedRequest({}, RequestRecord("a", "ner", 2, 30, seconds / 2, status), seconds)])
    metrics.requests([EndedRequest({}, RequestRecord("b", status=404), 0.001)])
    page, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    for bundle, code, count in (("ner", "200", 2), ("ner", "422", 1), ("", "404", 1)):
        assert metric_value(page, "seqpipe_requests_total", bundle=bundle, code=code) == count
    for name, expected in (("items_total", 6), ("tokens_total", 90), ("request_seconds_count", 3)):
        assert metric_value(page, f"seqpipe_{name}", bundle="ner") == expected
    assert metric_value(page, "seqpipe_request_seconds_bucket", bundle="ner", le="0.005") == 2
    assert metric_value(page, "seqpipe_queue_seconds_sum", bundle="ner") == 0.2025
    assert metric_value(page, "seqpipe_request_seconds_count", bundle="") is None


def test_a_batch_is_split_by_stage() -> None:
    metrics = Metrics()
    for items in (1, 8):
        metrics.batch(BatchTiming("ner", [0.0] * items, 64, 0.001, 0.02, 0.0002))
    page, _ = metrics.render()
    assert metric_value(page, "seqpipe_batch_items_bucket", bundle="ner", le="4.0") == 1
    assert metric_value(page, "seqpipe_batch_items_sum", bundle="ner") == 9
    assert metric_value(page, "seqpipe_batch_seconds_sum", bundle="ner", stage="run") == 0.04
    assert metric_value(page, "seqpipe_batch_seconds_bucket", bundle="ner", stage="answer", le="0.00025") == 2
    assert metric_value(page, "seqpipe_batch_tokens_total", bundle="ner") == 128


def test_a_bundle_that_is_gone_has_an_empty_queue() -> None:
    metrics = Metrics()
    metrics.refresh({"ner": Waiting(3, 40, 1.5), "dates": Waiting(1, 9, 0.5)})
    metrics.refresh({"dates": Waiting(2, 18, 0.75)})
    page, _ = metrics.render()
    for name, expected in (("items", 2), ("tokens", 18), ("oldest_seconds", 0.75)):
        assert metric_value(page, f"seqpipe_queue_{name}", bundle="dates") == expected
        assert metric_value(page, f"seqpipe_queue_{name}", bundle="ner") == 0


def test_loads_are_counted_and_dated() -> None:
    metrics = Metrics()
    metrics.load("ner", "loaded")
    metrics.load("ner", "refused")
    loaded = metric_value(metrics.render()[0], "seqpipe_bundle_loaded_timestamp_seconds", bundle="ner")
    assert loaded is not None
    assert loaded > 1.7e9
    metrics.load("ner", "unloaded")
    page, _ = metrics.render()
    for result in ("loaded", "refused", "unloaded"):
        assert metric_value(page, "seqpipe_bundle_loads_total", bundle="ner", result=result) == 1
    assert metric_value(page, "seqpipe_bundle_loaded_timestamp_seconds", bundle="ner") == 0


def test_openmetrics_is_given_to_who_asks_for_it() -> None:
    page, content_type = Metrics().render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert page.endswith(b"# EOF\n")


PROCESS = """
from seqpipe.serve.metrics import Metrics, Waiting
import sys
metrics = Metrics()
metrics.refresh({"ner": Waiting(3, 40, float(sys.argv[1]))})
print(metrics.render()[0].decode())
"""


def test_the_queues_of_several_processes_are_added_and_the_oldest_request_is_that_of_all(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for seconds in ("2.5", "0.5"):
        command = [sys.executable, "-c", PROCESS, seconds]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    page = done.stdout.encode()
    assert metric_value(page, "seqpipe_queue_items", bundle="ner") == 6
    assert metric_value(page, "seqpipe_queue_oldest_seconds", bundle="ner") == 2.5
