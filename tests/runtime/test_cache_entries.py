"""Entries of the cache: what a bundle states is read again, and what is none is refused."""

import json
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from seqpipe.runtime.manifest import CacheEntry, next_inputs

ENTRIES = (
    CacheEntry.of("past.ids", "present.ids"),
    CacheEntry.of("past.0", "present.0", (4, 16)),
    CacheEntry.of("past.1", "present.1", (2, 8), grows=False),
)


def test_what_is_stated_is_read_again() -> None:
    stated = [json.loads(entry.model_dump_json()) for entry in ENTRIES]
    assert tuple(map(CacheEntry.model_validate, stated)) == ENTRIES
    assert [entry.slot for entry in ENTRIES] == [(), (4, 16), (2, 8)]
    names, axes = {"input": "past.ids", "output": "present.ids"}, ["past_batch_size", "past_length"]
    assert stated[0] == {**names, "axes": axes, "dtype": "int64", "grows": True}
    assert (stated[2]["axes"], stated[2]["dtype"]) == (["past_batch_size", "past_state", 2, 8], "float32")


def test_outputs_become_the_inputs_of_the_next_run() -> None:
    outputs = {"tokens": np.array([7]), **{entry.output: np.array([n]) for n, entry in enumerate(ENTRIES)}}
    assert next_inputs(ENTRIES, outputs) == {"past.ids": 0, "past.0": 1, "past.1": 2}


WRONG_KEYS = [
    *({"input": 1}, {"output": ["present.0"]}, {"axes": "axes"}, {"axes": ["past_batch_size"]}, {"axes": 3}),
    *({"dtype": "int64"}, {"grows": 1}, {"grows": "no"}, {"axes": ["past_batch_size", "past_state", 4, 16]}),
    *("input", "output", "axes", "dtype", "grows"),
]


@pytest.mark.parametrize("change", WRONG_KEYS, ids=str)
def test_an_entry_with_a_wrong_or_missing_key_is_refused(change: dict[str, Any] | str) -> None:
    entry = json.loads(ENTRIES[1].model_dump_json())
    assert CacheEntry.model_validate(entry) == ENTRIES[1]
    if isinstance(change, str):
        del entry[change]
    else:
        entry |= change
    with pytest.raises(ValidationError):
        CacheEntry.model_validate(entry)
