"""`seqpipe bench` of a bundle: its numbers against clocks that the test holds, its inputs, its errors."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from seqpipe import Model, load
from seqpipe.commands.bench import (
    MOST_INPUTS,
    PERCENTILES,
    bench,
    bundle_inputs,
    latencies,
    time_singles,
    time_stages,
    time_threads,
)
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Arrays
from seqpipe.runtime.first_answer import memory

SLEEP = 0.01  # seconds of a slow run
RECORDS = [{"text": "Anna in Bern"}, {"text": "Ben"}]


@pytest.fixture
def slow(tiny_bundle: Path) -> Model:
    """The toy bundle, each run of its graph SLEEP seconds longer."""
    model = load(tiny_bundle, "cpu", threads=1)
    run = model.predictor.run

    def wait(feeds: Arrays) -> Arrays:
        time.sleep(SLEEP)
        return run(feeds)

    model.predictor.run = model.predictor.run_alone = wait
    return model


def test_percentiles_are_latencies_that_were_measured() -> None:
    latency = latencies([n / 1000 for n in range(1, 101)])
    assert latency == {"count": 100, "p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "max_ms": 100.0}
    assert latencies([0.25]) == {"count": 1} | dict.fromkeys(PERCENTILES, 250.0)


def test_a_result_has_every_measurement_and_takes_about_the_time_it_may(tiny_bundle: Path) -> None:
    clock = time.monotonic()
    options = ["--seconds", "1", "--batches", "1,64", "--clients", "2", "--threads", "1", "--json"]
    command = [sys.executable, "-m", "seqpipe", "bench", str(tiny_bundle), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - clock < 60
    result = json.loads(done.stdout)
    assert result["inputs"] == 1
    assert result["start"]["total_s"] == pytest.approx(
        sum(result["start"][part] for part in ("python_s", "load_s", "answer_s")), abs=0.001
    )
    assert result["one_by_one"]["p50_ms"] <= result["one_by_one"]["p99_ms"] <= result["one_by_one"]["max_ms"]
    assert [row["size"] for row in result["batches"]] == [1, 64]
    assert result["batches"][1]["per_second"] > 2 * result["batches"][0]["per_second"]
    assert [row["clients"] for row in result["clients"]] == [2]
    assert {*result["stages"]} == {"one_by_one", "in_batches"}
    assert all(ms > 0 for stage in result["stages"].values() for ms in stage.values())


def test_a_table_is_printed_for_people(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench(tiny_bundle, seconds=0.5, batches="8", clients="1")
    printed = capsys.readouterr()
    for heading in ("cold start", "one by one", "batch size", "threads", "ms an input", "together"):
        assert heading in printed.out
    assert "cpu" in printed.err


def test_latency_and_stages_see_where_the_time_goes(slow: Model) -> None:
    one = time_singles(slow, RECORDS, {}, 0.2)
    assert SLEEP * 1000 <= one["p50_ms"] < 3 * SLEEP * 1000
    assert one["per_second"] <= 1 / SLEEP
    stages = time_stages(slow, RECORDS, {}, 0.4)
    assert stages["one_by_one"]["run_ms"] >= SLEEP * 1000 > 10 * stages["one_by_one"]["features_ms"]
    assert stages["in_batches"]["run_ms"] < stages["one_by_one"]["run_ms"] / 10


def test_threads_wait_beside_each_other(slow: Model) -> None:
    alone, together = time_threads(slow, RECORDS, {}, (1, 4), 0.6)
    assert together["per_second"] > 2 * alone["per_second"]
    assert together["count"] > 2 * alone["count"]


def test_an_error_in_a_thread_is_not_lost(tiny: Model) -> None:
    with pytest.raises(UsageError, match="n_bst"):
        time_threads(tiny, RECORDS, {"n_bst": 1}, (2,), 0.1)


def test_texts_without_tokens_are_answered_but_have_no_stages(tiny: Model) -> None:
    assert time_singles(tiny, [{"text": ""}], {}, 0.01)["count"] > 0
    assert time_stages(tiny, [{"text": ""}], {}, 0.01) == {}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_sees_what_is_held_and_what_was_held() -> None:
    before = memory()
    assert before is not None
    with mmap.mmap(-1, 64 << 20) as held:  # the allocator may keep what is freed
        held.write(b"x" * len(held))
        while_held = memory()
    after = memory()
    assert while_held is not None
    assert after is not None
    assert while_held["resident_mib"] > before["resident_mib"] + 50
    assert after["peak_mib"] + 1 > while_held["resident_mib"] > after["resident_mib"] + 50


FILES: dict[str, tuple[str, Sequence[Mapping[str, Any]]]] = {
    "a.txt": ("Anna\nBen in Bern\n", [{"text": "Anna"}, {"text": "Ben in Bern"}]),
    "a.jsonl": ('{"words": ["Anna"], "text": "Anna"}\n"Ben"\n', [{"words": ["Anna"], "text": "Anna"}, {"text": "Ben"}]),
    "long.txt": ("Anna\n" * (MOST_INPUTS + 5), [{"text": "Anna"}] * MOST_INPUTS),
}


@pytest.mark.parametrize("name", FILES)
def test_inputs_of_a_file_are_read_as_predict_reads_them(tiny: Model, tmp_path: Path, name: str) -> None:
    content, expected = FILES[name]
    (tmp_path / name).write_text(content)
    records = bundle_inputs(tiny, tmp_path / name, "auto")
    assert [{key: value for key, value in record.items() if key != "where"} for record in records] == expected
    assert records[1]["where"] == f"{tmp_path / name}:2"


def test_without_a_file_the_golden_examples_are_the_inputs(tiny: Model) -> None:
    assert bundle_inputs(tiny, None, "auto") == [{"text": "Anna in\r\nNew York"}]


def test_a_bundle_without_golden_examples_needs_a_file(tiny_tagger: Model) -> None:
    with pytest.raises(UsageError, match="--input FILE"):
        bundle_inputs(tiny_tagger, None, "auto")


def too_long(path: Path) -> None:
    path.write_text("Anna\n" + "Anna " * 1001)


def empty(path: Path) -> None:
    path.write_text("")


@pytest.mark.parametrize(
    ("write", "message"), [(too_long, r"a\.txt:2: .*1,?001"), (empty, r"a\.txt: has no input")], ids=["long", "empty"]
)
def test_an_input_that_cannot_be_answered_is_named(
    tiny_bundle: Path, tmp_path: Path, write: Callable[[Path], None], message: str
) -> None:
    write(tmp_path / "a.txt")
    with pytest.raises(DataError, match=message):
        bench(tiny_bundle, tmp_path / "a.txt", seconds=1)


@pytest.mark.parametrize(("option", "value"), [("batches", "0"), ("clients", "8,x"), ("clients", "")])
def test_a_list_that_is_no_list_of_numbers_is_refused(tiny_bundle: Path, option: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"--{option} {value}: must be whole numbers from 1"):
        bench(tiny_bundle, **{option: value})
