"""A server for the tests of all protocols, and the models that it serves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from gallery import gallery
from serving import Server

from seqpipe import Model, load


@pytest.fixture(scope="session")
def letters_bundle() -> Path:
    """The bundle `lm` of a language model of letters."""
    return gallery("generation").bundle


@pytest.fixture(scope="session")
def server(tiny_bundle: Path, vector_bundle: Path, slow_bundle: Path, letters_bundle: Path) -> Iterator[Server]:
    limits = ("--max-items", "9", "--max-body", "100000")
    with Server(tiny_bundle, vector_bundle, slow_bundle, letters_bundle, *limits) as running:
        yield running


@pytest.fixture(scope="session")
def slow(slow_bundle: Path) -> Model:
    return load(slow_bundle, "cpu", threads=1)


@pytest.fixture(scope="session")
def vectors(vector_bundle: Path) -> Model:
    return load(vector_bundle, "cpu", threads=1)


@pytest.fixture(scope="session")
def lm(letters_bundle: Path) -> Model:
    return load(letters_bundle, "cpu", threads=1)
