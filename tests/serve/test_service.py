"""A service in an event loop: what a batch that fails does, streams that nobody reads, and its end."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from seqpipe import Model
from seqpipe.errors import BundleError
from seqpipe.serve.service import Batch, Service
from seqpipe.serve.settings import Settings

FAULTS: dict[str, Callable[[], BaseException]] = {
    "an error of the graph": lambda: BundleError("the graph has failed"),
    "an error of a library": lambda: ValueError("of the wrong shape"),
    "what is no Exception": lambda: KeyboardInterrupt("a panic"),
}


def served(model: Model, use: Callable[[Service], Coroutine[Any, Any, Any]], **settings: Any) -> Any:
    """What comes of a service, which is closed then."""

    async def main() -> Any:
        service = Service("toy", model, Settings(threads=1, **settings))
        try:
            return await use(service)
        finally:
            await service.close()

    return asyncio.run(main())


def later() -> float:
    return time.monotonic() + 30


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
        await asyncio.sleep(0.1)
        return pieces

    assert served(tiny, use) == ["0", "1", "2"]
    assert next(count) <= 4


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


def test_every_batch_is_told_of_with_its_times(tiny: Model) -> None:
    told: list[Batch] = []

    async def main() -> None:
        service = Service("toy", tiny, Settings(threads=1), [told.append])
        await service.answer(["Anna in Bern", "", "Ben"], {}, deadline=later())
        await service.answer(["Anna. Ben."], {}, deadline=later(), documents=True)
        await service.close()

    began = time.monotonic()
    asyncio.run(main())
    seconds = time.monotonic() - began
    assert [(batch.service, len(batch.waited)) for batch in told] == [("toy", 3), ("toy", 1)]
    for batch in told:
        assert all(0 <= part < seconds for part in (*batch.waited, batch.features, batch.run, batch.answer))
        assert batch.run > 0
        assert batch.tokens > 0
