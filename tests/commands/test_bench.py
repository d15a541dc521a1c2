"""`seqpipe bench` of a bundle: its numbers against a clock that the test holds, its inputs, its errors."""

import json
import mmap
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from tiny_pipelines import fail_with, seqpipe, succeed

from seqpipe import Model, load
from seqpipe.commands import bench
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Arrays
from seqpipe.runtime.first_answer import memory

RUN = 0.01  # seconds of a run of the graph
RECORDS = [{"text": "Anna in Bern"}, {"text": "Ben"}]


def at_each_run(model: Model, function: Any) -> Model:
    """The model, with a function that is called at each run of its graph."""
    run = model.predictor.run

    def run_with(feeds: Arrays) -> Arrays:
        function()
        return run(feeds)

    model.predictor.run = model.predictor.run_alone = run_with
    return model


@pytest.fixture
def timed(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """The toy bundle, for a clock that only runs of its graph advance."""
    runs: list[float] = []
    monkeypatch.setattr("time.perf_counter", lambda: sum(runs))
    return at_each_run(load(tiny_bundle, "cpu", threads=1), lambda: runs.append(RUN))


def test_percentiles_are_latencies_that_were_measured() -> None:
    latency = bench.latencies([n / 1000 for n in range(1, 101)])
    assert latency == {"count": 100, "p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "max_ms": 100.0}
    assert bench.latencies([0.25]) == {"count": 1} | dict.fromkeys(bench.PERCENTILES, 250.0)


def test_a_result_has_every_measurement(tiny_bundle: Path) -> None:
    options = ["--seconds", "1", "--batches", "1,64", "--clients", "2", "--threads", "1", "--json"]
    done = succeed("bench", tiny_bundle, *options)
    result = json.loads(done.out)
    start, one_by_one = result["start"], result["one_by_one"]
    assert result["inputs"] == 1
    assert start["total_s"] == pytest.approx(start["python_s"] + start["load_s"] + start["answer_s"], abs=0.001)
    assert one_by_one["p50_ms"] <= one_by_one["p99_ms"] <= one_by_one["max_ms"]
    assert [row["size"] for row in result["batches"]] == [1, 64]
    assert [row["clients"] for row in result["clients"]] == [2]
    assert {*result["stages"]} == {"one_by_one", "in_batches"}
    assert all(ms > 0 for stage in result["stages"].values() for ms in stage.values())


def test_a_table_is_printed_for_people(tiny_bundle: Path) -> None:
    printed = succeed("bench", tiny_bundle, "--seconds", "1", "--batches", "8", "--clients", "1")
    headings = ("cold start", "one by one", "batch size", "threads", "ms an input", "together")
    assert [heading for heading in headings if heading not in printed.out] == []
    assert "cpu" in printed.err


def test_latency_batches_and_stages_are_those_of_the_clock(timed: Model) -> None:
    single = bench.Benchmark(timed, RECORDS, {}).time_singles(0.2)
    assert [single[name] for name in ("per_second", *bench.PERCENTILES)] == pytest.approx([1 / RUN, *[RUN * 1000] * 4])
    batches = bench.Benchmark(timed, RECORDS, {}).time_batches((1, 64), 0.4)
    assert [row["per_second"] for row in batches] == pytest.approx([1 / RUN, 32 / RUN])  # 64 texts are two runs
    stages = bench.Benchmark(timed, RECORDS, {}).time_stages(0.4)
    assert stages["one_by_one"] == {"features_ms": 0, "run_ms": pytest.approx(RUN * 1000), "answer_ms": 0}
    assert 0 < stages["in_batches"]["run_ms"] < RUN * 1000 / 10


def test_threads_call_the_model_beside_each_other(tiny_bundle: Path) -> None:
    barrier, waited = threading.Barrier(4), set[int]()

    def wait_for_others() -> None:  # in the first run of each thread
        if threading.get_ident() not in waited:
            waited.add(threading.get_ident())
            barrier.wait(60)

    model = at_each_run(load(tiny_bundle, "cpu", threads=4), wait_for_others)
    (row,) = bench.Benchmark(model, RECORDS, {}).time_threads((4,), 0.2)
    assert (row["clients"], len(waited), row["count"] >= 4) == (4, 4, True)
    assert row["per_second"] > 0


def test_an_error_in_a_thread_is_not_lost(tiny: Model) -> None:
    with pytest.raises(UsageError, match="n_bst"):
        bench.Benchmark(tiny, RECORDS, {"n_bst": 1}).time_threads((2,), 0.1)


def test_texts_without_tokens_are_answered_but_have_no_stages(tiny: Model) -> None:
    assert bench.Benchmark(tiny, [{"text": ""}], {}).time_singles(0.01)["count"] > 0
    assert bench.Benchmark(tiny, [{"text": ""}], {}).time_stages(0.01) == {}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_sees_what_is_held_and_what_was_held() -> None:
    before: Any = memory()
    with mmap.mmap(-1, 64 << 20) as held:  # the allocator may keep what is freed
        held.write(b"x" * len(held))
        while_held: Any = memory()
    after: Any = memory()
    assert while_held["resident_mib"] > before["resident_mib"] + 50
    assert after["peak_mib"] + 1 > while_held["resident_mib"] > after["resident_mib"] + 50


FILES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "a.txt": ("Anna\nBen in Bern\n", [{"text": "Anna"}, {"text": "Ben in Bern"}]),
    "a.jsonl": ('{"words": ["Anna"], "text": "Anna"}\n"Ben"\n', [{"words": ["Anna"], "text": "Anna"}, {"text": "Ben"}]),
    "long.txt": ("Anna\n" * (bench.MOST_INPUTS + 5), [{"text": "Anna"}] * bench.MOST_INPUTS),
}


@pytest.mark.parametrize("name", FILES)
def test_inputs_of_a_file_are_read_as_predict_reads_them(tiny: Model, tmp_path: Path, name: str) -> None:
    content, expected = FILES[name]
    path = tmp_path / name
    path.write_text(content)
    records = [{**record, "where": f"{path}:{number}"} for number, record in enumerate(expected, 1)]
    assert bench.bundle_inputs(tiny, path, "auto") == records


def test_without_a_file_the_golden_examples_are_the_inputs(tiny: Model, tiny_tagger: Model) -> None:
    assert bench.bundle_inputs(tiny, None, "auto") == [{"text": "Anna in\r\nNew York"}]
    with pytest.raises(UsageError, match="--input FILE"):  # it has none
        bench.bundle_inputs(tiny_tagger, None, "auto")


@pytest.mark.parametrize(
    ("content", "message"), [("Anna\n" + "Anna " * 1001, r"a\.txt:2: .*1,?001"), ("", r"a\.txt: has no input")]
)
def test_an_input_that_has_no_answer_is_named(tiny_bundle: Path, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.txt").write_text(content)
    failed = seqpipe("bench", tiny_bundle, "--input", "a.txt", folder=tmp_path)
    assert (failed.code, bool(re.search(message, failed.err))) == (DataError.exit_code, True)


@pytest.mark.parametrize(("option", "value"), [("batches", "0"), ("clients", "8,x"), ("clients", "")])
def test_a_list_that_is_no_list_of_numbers_is_refused(tiny_bundle: Path, option: str, value: str) -> None:
    message = f"--{option} {value}: must be whole numbers from 1"
    fail_with(UsageError.exit_code, message, "bench", tiny_bundle, f"--{option}={value}")
