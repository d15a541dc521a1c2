"""`init` looks at all of a file of columns, however large."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqpipe.commands.init.template import init_yaml
from seqpipe.errors import DataError


def _csv(rows: int) -> str:
    return "text,label\n" + "".join(f"a text of some words {number},first\n" for number in range(rows))


def test_the_last_row_decides_as_much_as_the_first(tmp_path: Path) -> None:
    data = tmp_path / "a.csv"
    data.write_text(_csv(30_000) + "the last,second\n")
    text = init_yaml(data, tmp_path / "a.yaml").read_text()
    assert "# Labels: first 30,000, second 1" in text
    data.write_text(_csv(30_000) + "the last, second\n")
    data.write_text(_csv(30_000) + "the last\n")
    with pytest.raises(DataError, match=r"a\.csv:30002: one cell in this row, but 2 in the others"):
        init_yaml(data, tmp_path / "b.yaml")
    data.write_bytes(_csv(30_000).encode() + b"the l\xe4st,second\n")
    with pytest.raises(DataError, match=r"a\.csv:30002: this line is not UTF-8"):
        init_yaml(data, tmp_path / "b.yaml")


def test_pieces_of_a_large_file_stand_for_all_of_it(tmp_path: Path) -> None:
    data = tmp_path / "a.conll"
    data.write_text("in O\nBern B-city\nit O\nrains O\n\n" * 150_000 + "my O\nname B-name\n\n" * 150_000)
    text = init_yaml(data, tmp_path / "a.yaml").read_text()
    line = text.splitlines()[0]
    assert "about " in line
    records = int(line.split("about ")[1].split()[0].replace(",", ""))
    assert 250_000 < records < 350_000
    assert "city 1" in text
    assert "name 1" in text
