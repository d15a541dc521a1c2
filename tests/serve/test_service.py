"""A service in an event loop: what a batch that fails does, streams that nobody reads, and its end."""

import asyncio
import itertools
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from media_bundles import IMAGE, in_base64, png, write_media_bundle

from seqpipe import Model, load
from seqpipe.errors import BundleError, DataError, SeqpipeError
from seqpipe.features.sources import limit_media
from seqpipe.files import json_bytes
from seqpipe.runtime.decode_options import resolve_options
from seqpipe.serve.http import MAX_LOOP_ANSWERS, HttpError, call_off_loop, decode_json, encode_json
from seqpipe.serve.service import BatchTiming, Service, estimate_tokens
from seqpipe.serve.settings import Settings

FAULTS: dict[str, Callable[[], BaseException]] = {
    "an error of the graph": lambda: BundleError("the graph has failed"),
    "an error of a library": lambda: ValueError("of the wrong shape"),
    "what is no Exception": lambda: KeyboardInterrupt("a panic"),
}


def served(model: Model, use: Callable[[Service], Coroutine[Any, Any, Any]], threads: int = 1, **more: Any) -> Any:
    """Result of a call of a service, which is then closed."""

    async def main() -> Any:
        service = Service("toy", model, Settings(threads=threads), **more)
        try:
            return await use(service)
        finally:
            await service.close()

    return asyncio.run(main())


def later() -> float:
    return time.monotonic() + 120


@pytest.mark.parametrize("step", ["split", "answer_docs"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_fails_a_batch_fails_alone(tiny: Model, monkeypatch: pytest.MonkeyPatch, fault: str, step: str) -> None:
    whole = getattr(tiny.predictor, step)
    sizes = []

    def fragile(inputs: Sequence[Any], *more: Any) -> Any:
        sizes.append(len(inputs))
        if any((each["text"] if step == "split" else each.text) == "bad" for each in inputs):
            raise FAULTS[fault]()
        return whole(inputs, *more)

    monkeypatch.setattr(tiny.predictor, step, fragile)

    async def use(service: Service) -> list[Any]:
        texts = ["Anna"] * 5 + ["bad"] + ["Anna"] * 5
        asked = [service.answer([text], {}, deadline=later()) for text in texts]
        return await asyncio.gather(*asked, return_exceptions=True)

    *good, bad = sorted(served(tiny, use), key=lambda result: isinstance(result, Exception))
    assert good == [[tiny("Anna")]] * 10
    assert isinstance(bad, type(FAULTS[fault]()) if fault != "what is no Exception" else RuntimeError)
    assert max(sizes) > 1


def test_an_error_after_the_deadline_is_that_of_the_deadline(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is busy until after the deadline, and finds the error of the run before the timer."""

    async def use(service: Service) -> Any:
        loop, deadline = asyncio.get_running_loop(), time.monotonic() + 0.5

        def fail_late(*arguments: Any) -> Any:
            loop.call_soon_threadsafe(lambda: time.sleep(max(0, deadline + 0.1 - time.monotonic())))
            raise BundleError("the run was ended")

        monkeypatch.setattr(tiny.predictor, "answer_docs", fail_late)
        (result,) = await asyncio.gather(service.answer(["Anna"], {}, deadline=deadline), return_exceptions=True)
        return result

    assert isinstance(served(tiny, use), HttpError)


def test_long_options_are_resolved_in_a_thread_and_a_long_list_is_encoded_in_parts(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop answers others meanwhile: `threads` has what ran outside of it, `sizes` the parts of JSON."""
    threads, sizes = [], []

    def resolve(known: Any, options: Any, kind: Any) -> Any:
        threads.append(threading.current_thread() is not threading.main_thread())
        return resolve_options(known, {}, kind)

    def encode(value: Any) -> bytes:
        sizes.append(len(value))
        return json_bytes(value)

    monkeypatch.setattr("seqpipe.serve.service.resolve_options", resolve)
    monkeypatch.setattr("seqpipe.serve.http.json_bytes", encode)
    for options in ({"x": "short"}, {"x": "long" * 1_000}):
        served(tiny, lambda service, options=options: service.answer(["Anna"], options, deadline=later()))
    assert threads == [False, True]
    content = {"name": ["a", {"b": [[1.5] * 100] * 100}], "é": {}, "empty": []}
    assert encode_json(content) == json_bytes(content)
    assert max(sizes) <= MAX_LOOP_ANSWERS


def test_many_inputs_are_checked_in_a_thread(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, record, answer = set(), tiny.record, tiny("Anna")

    def checked(*arguments: Any) -> Any:
        threads.add(threading.current_thread() is not threading.main_thread())
        return record(*arguments)

    monkeypatch.setattr(tiny, "record", checked)
    for count in (1, MAX_LOOP_ANSWERS + 1):
        threads.clear()
        answers = served(tiny, lambda service, n=count: service.answer(["Anna"] * n, {}, deadline=later()))
        assert (threads, answers) == ({count > 1}, [answer] * count)


@pytest.mark.parametrize(
    ("most", "more"),
    [(b"[" + b"[]," * 399_998 + b"{}]", b"[]"), (json.dumps(dict.fromkeys(range(10_000))).encode(), b'"":0')],
    ids=["lists", "keys"],
)
def test_a_body_of_too_many_values_is_refused(most: bytes, more: bytes) -> None:
    assert len(decode_json(most)) in (399_999, 10_000)
    with pytest.raises(HttpError, match=r"400,000 lists and objects|10,001 keys") as refused:
        decode_json(most[:-1] + b"," + more + most[-1:])
    assert refused.value.status == 413


def test_other_threads_may_run_between_two_numbers_of_a_body() -> None:
    """They may where Python calls a function of its own."""
    calls = Counter[str]()
    sys.setprofile(lambda frame, event, argument: calls.update([event]))
    try:
        assert decode_json(b"[" + b"0.5,1," * 1_000 + b"0]") == [0.5, 1] * 1_000 + [0]
    finally:
        sys.setprofile(None)
    assert calls["call"] > 2_000


def test_threads_take_shorter_turns_as_long_as_one_of_two_large_calls_is_running() -> None:
    usual, may_end = sys.getswitchinterval(), threading.Event()

    async def use() -> list[float]:
        first = asyncio.create_task(call_off_loop(True, may_end.wait, 60))
        await asyncio.sleep(0)
        intervals = [await call_off_loop(True, sys.getswitchinterval), sys.getswitchinterval()]
        may_end.set()
        await first
        return [*intervals, await call_off_loop(False, sys.getswitchinterval)]

    assert asyncio.run(use()) == [pytest.approx(0.001)] * 2 + [usual]


def test_a_stream_that_nobody_reads_stops(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    count = itertools.count()

    def endless(record: Any) -> Iterator[str]:
        while True:
            yield str(next(count))

    monkeypatch.setattr(tiny, "stream", endless)

    async def use(service: Service) -> list[str]:
        pieces = []
        stream = service.stream("Anna", {}, deadline=later())
        async for piece in stream:
            pieces.append(piece)
            if len(pieces) == 3:
                break
        await stream.aclose()
        return pieces

    assert served(tiny, use) == ["0", "1", "2"]  # ends, as `close` waits for the streams that go on
    assert next(count) <= 4


@pytest.mark.parametrize("kind", [DataError, BundleError])
def test_no_error_names_a_folder(tiny: Model, monkeypatch: pytest.MonkeyPatch, kind: type[SeqpipeError]) -> None:
    folder = Path("/srv/bundles/toy/3")

    def failing(*_: Any, **__: Any) -> Any:
        raise kind(f"record 1: {folder}: the graph needs more memory; {folder}/model.onnx")

    monkeypatch.setattr(tiny.predictor, "answer_docs", failing)
    monkeypatch.setattr(tiny, "explain", failing)

    async def use(service: Service) -> list[Any]:
        answer = service.answer(["Anna"], {}, deadline=later())
        return await asyncio.gather(answer, service.explain("Anna", {}, deadline=later()), return_exceptions=True)

    for answer in served(tiny, use, folder=folder):
        error = answer[0] if isinstance(answer, list) else answer
        assert (type(error), str(error)) == (kind, "record 1: toy: the graph needs more memory; toy/model.onnx")


@pytest.fixture
def pictures(tmp_path: Path) -> Model:
    return load(write_media_bundle(tmp_path, IMAGE), "cpu", threads=1)


def test_a_picture_that_nobody_waits_for_is_not_decoded(pictures: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, entered, may_end = [], threading.Event(), threading.Event()
    split = pictures.predictor.split

    def counted(records: Sequence[Any]) -> Any:
        decoded.append(len(records))
        entered.set()
        assert may_end.wait(60)
        return split(records)

    monkeypatch.setattr(pictures.predictor, "split", counted)
    small, large = (in_base64(png(side, side, bytes((side + 1) * side))) for side in (8, 2_000))

    async def use(service: Service) -> Any:
        first = asyncio.create_task(service.answer([small], {}, deadline=later()))
        assert await asyncio.to_thread(entered.wait, 60)
        late = [asyncio.create_task(service.answer([large] * 3, {}, deadline=time.monotonic() + 0.1)) for _ in range(2)]
        gone = [asyncio.create_task(service.answer([small] * 9, {}, deadline=later())) for _ in range(9)]
        await asyncio.gather(*late, return_exceptions=True)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        last = asyncio.create_task(service.answer([small], {}, deadline=later()))
        may_end.set()
        return await first, await last, service.queue.tokens

    first, last, tokens = served(pictures, use)
    assert first == last == [pictures({"it": small})]
    assert (decoded, tokens) == ([1, 1], 0)


def test_pictures_wait_with_their_pixels_and_the_first_is_answered_before_the_last_is_decoded(
    pictures: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    for name in ("split", "answer_docs"):
        method = getattr(pictures.predictor, name)
        monkeypatch.setattr(
            pictures.predictor, name, lambda *args, name=name, method=method: steps.append(name) or method(*args)
        )
    data = in_base64(png(2_000, 2_000, bytes(2_001 * 2_000)))

    async def use(service: Service) -> Any:
        with pytest.raises(HttpError, match="about 78,140 tokens in one request; at most 65,536"):
            await service.answer([data] * 20, {}, deadline=later())
        return await service.answer([data] * 16, {}, deadline=later())

    assert len(served(pictures, use)) == 16
    assert steps.count("split") == 16
    assert steps.index("answer_docs") <= 6

    async def refused(service: Service) -> Any:
        limit_media(pictures.predictor.featurizer, 10**6, 0)
        return await service.answer([data, [[0, 255]]], {}, deadline=later())

    error, answer = served(pictures, refused)
    assert "record 1: field 'it' is a picture of 2,000 x 2,000 pixels, and at most 1,000,000 are read" in str(error)
    assert set(answer) == {"vector"}


def test_large_pictures_are_decoded_one_at_a_time(pictures: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    split, changed = pictures.predictor.split, threading.Condition()
    running, most = 0, 0

    def counted(records: Sequence[Any]) -> Any:
        nonlocal running, most
        with changed:
            running += 1
            most = max(most, running)
            changed.notify_all()
            changed.wait_for(lambda: most > 1, timeout=0.5)
        result = split(records)
        with changed:
            running -= 1
        return result

    monkeypatch.setattr(pictures.predictor, "split", counted)
    data = in_base64(png(2_200, 2_200, bytes(2_201 * 2_200)))  # a worker takes some of the twelve, the other the next

    async def use(service: Service) -> Any:
        return await asyncio.gather(*(service.answer([data], {}, deadline=later()) for _ in range(12)))

    assert len(served(pictures, use, threads=2)) == 12
    assert most == 1


def test_long_words_count_as_texts_do() -> None:
    assert estimate_tokens({"text": "a" * 4_000}) == 1_001
    assert estimate_tokens({"words": ["a" * 4_000, "b"]}) == 1_002
    assert estimate_tokens({"rows": [[0.5] * 9] * 7, "where": "record 1"}) == 7


def test_a_service_that_is_closed_answers_what_it_has_accepted(tiny: Model) -> None:
    async def use(service: Service) -> list[Any]:
        asked = [asyncio.create_task(service.answer(["Anna"], {}, deadline=later())) for _ in range(50)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(service.close())
        answers = await asyncio.gather(*asked)
        await closing
        return answers

    assert served(tiny, use) == [[tiny("Anna")]] * 50
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("toy-")]


def test_every_batch_is_reported_with_its_times(tiny: Model) -> None:
    batches: list[BatchTiming] = []

    async def use(service: Service) -> None:
        await service.answer(["Anna in Bern", "", "Ben"], {}, deadline=later())
        await service.answer(["Anna. Ben."], {}, deadline=later(), documents=True)

    began = time.monotonic()
    served(tiny, use, observers=[batches.append])
    seconds = time.monotonic() - began
    assert [(batch.service, len(batch.waited)) for batch in batches] == [("toy", 3), ("toy", 1)]
    for batch in batches:
        assert all(0 <= part < seconds for part in (*batch.waited, batch.features, batch.run, batch.answer))
        assert batch.run > 0
        assert batch.tokens > 0
