"""Errors and output that every part shares."""

from __future__ import annotations

from seqpipe.console import text_table
from seqpipe.errors import DataError


def test_an_error_of_a_record_begins_with_the_records_place() -> None:
    assert str(DataError.at({"where": "a.jsonl:3"}, "no field 'text'")) == "a.jsonl:3: no field 'text'"
    assert str(DataError.at({"text": "x"}, "no label")) == "record: no label"


def test_the_columns_of_a_table_are_as_wide_as_their_widest_cell_on_a_terminal() -> None:
    rows = [("", "f1"), ("播放", "9.5"), ("PER", "100")]
    assert text_table(rows) == ["      f1", "播放  9.5", "PER   100"]
    assert text_table(rows, numbers=True) == ["       f1", "播放  9.5", "PER   100"]
    assert text_table([]) == []
