"""seqpipe's own protocol: the answers of `predict`, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Server, at_once

from seqpipe import Model

TEXTS = ["Anna meets Ben in New York .", "", "Bern", "Anna calls 你好", "Ben"]


@pytest.fixture(scope="module")
def server(tiny_bundle: Path) -> Iterator[Server]:
    with Server(tiny_bundle, "--max-items", "5") as running:
        yield running


def test_the_answers_are_those_of_the_model(server: Server, tiny: Model) -> None:
    expected = tiny(TEXTS)
    assert server.post("/v1/toy", {"inputs": TEXTS}).json == {"answers": expected}
    replies = at_once([lambda text=text: server.post("/v1/toy", {"inputs": text}) for text in TEXTS * 4])
    assert [reply.json for reply in replies] == [{"answer": answer} for answer in expected * 4]
    assert {reply.status for reply in replies} == {200}
