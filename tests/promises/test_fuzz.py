"""Files of strangers, changed at random: every target answers, or raises an error of seqpipe."""

import contextlib
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fuzzing
import pytest
from fuzzing import TargetFunction, mutated, reader_examples, run_target, stored_inputs, targets
from gallery import gallery
from tiny_pipelines import tiers

NAMES = ["manifest", "tokenizer", "graph", "yaml", "init", "requests", *(f"reader-{use}" for use in reader_examples())]
Targets = dict[str, tuple[list[bytes], TargetFunction]]
COSTLY = ("manifest", "tokenizer", "yaml", "init", "requests")  # milliseconds each
SEARCHED = 3600  # seconds of the search with coverage, over all targets


@pytest.fixture(scope="module")
def bundles(tiny_bundle: Path, vector_bundle: Path) -> dict[str, Path]:
    return {"toy": tiny_bundle, "writer": gallery("generation").bundle, "vectors": vector_bundle}


@pytest.fixture(scope="module")
def found(bundles: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Targets]:
    with contextlib.ExitStack() as stack:
        yield targets(bundles, tmp_path_factory.mktemp("fuzz"), stack)


@pytest.mark.parametrize("count", tiers(60, long=5_000))
@pytest.mark.parametrize("name", NAMES)
def test_random_changes_are_answered_or_refused(name: str, count: int, found: Targets) -> None:
    seeds, run = found[name]
    inputs = [*seeds, *stored_inputs(name)]
    for data in inputs:
        run_target(run, data)
    dice = random.Random(f"{name} {count}")
    for _ in range(count if name in COSTLY else 5 * count):
        data = mutated(dice.choice(inputs), dice)
        try:
            run_target(run, data)
        except Exception as error:
            raise AssertionError(f"{name}: {data[:2000]!r}") from error


def test_a_target_that_raises_anything_else_is_found() -> None:
    def planted(data: bytes) -> None:
        raise KeyError("planted")

    with pytest.raises(KeyError):
        run_target(planted, b"x")


@pytest.mark.long
@pytest.mark.timeout(2 * SEARCHED)
@pytest.mark.parametrize("name", NAMES)
def test_a_search_with_coverage_finds_nothing(name: str, bundles: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    options = ["--bundles", *bundles.values(), "--seconds", SEARCHED // len(NAMES), "--found", tmp_path / "found"]
    command = [sys.executable, fuzzing.__file__, name, *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
