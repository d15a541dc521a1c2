"""Heads of well-known data sets: whether each is read, asked about or refused, by which reading, and with which roles.

`heads.jsonl.gz` has a head on each line, made up in the form of its data set: `files` with their content, the `file`
that is given to `init`, and the `verdict`, `reading` and `roles` that are right.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from data_files import write_files

from seqpipe.init.evidence import Request
from seqpipe.init.look import decision_on

LINES = gzip.decompress(Path(__file__).with_name("heads.jsonl.gz").read_bytes()).decode().splitlines()
HEADS: list[dict[str, Any]] = [json.loads(line) for line in LINES]


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head["name"])
def test_a_head_is_read_as_what_it_is(head: dict[str, Any], tmp_path: Path) -> None:
    write_files(tmp_path, head["files"])
    _, decision = decision_on(tmp_path / head["file"], Request())
    best = decision.best
    assert (decision.verdict, best.name, best.roles) == (head["verdict"], head["reading"], head["roles"])


def test_what_stays_unused_is_named_with_a_reason_or_left_out_aloud(tmp_path: Path) -> None:
    for number, head in enumerate(HEADS):
        folder = tmp_path / str(number)
        write_files(folder, head["files"])
        _, decision = decision_on(folder / head["file"], Request())
        if decision.best.frame and "*" not in decision.best.unused:
            fields = {field.name for field in decision.best.frame.fields}
            assert fields == decision.best.roles.keys() | decision.unused.keys(), head["name"]
