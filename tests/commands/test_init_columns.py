"""Files of columns through `init`: each file of tests/corpus/init/columns has the outcome that its list expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seqpipe.commands.init.template import init_yaml
from seqpipe.config import loader as config
from seqpipe.config import yaml
from seqpipe.errors import DataError, UsageError

CORPUS = Path(__file__).parents[1] / "corpus" / "init" / "columns"
EXPECTED: dict[str, Any] = yaml.parse((CORPUS / "expected.yaml").read_bytes(), "expected.yaml").data  # type: ignore[assignment]


def test_every_file_of_the_corpus_has_an_expectation() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {"expected.yaml", *EXPECTED}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_file_of_columns_has_the_expected_outcome(name: str, tmp_path: Path) -> None:
    expected = EXPECTED[name]
    target = tmp_path / "made.yaml"
    if expected["outcome"] == "refusal":
        with pytest.raises((DataError, UsageError)) as refusal:
            init_yaml(CORPUS / name, target)
        assert not target.exists()
        written, said = "", str(refusal.value)
    else:
        made = config.load(init_yaml(CORPUS / name, target))
        written = said = target.read_text(encoding="utf-8")
        assert made.head[0].use == expected["head"]
        reader = made.data.reader
        assert list(reader.cls(**reader.options).read(made.data.train))
    assert [text for text in expected.get("contains", []) if text not in written] == []
    assert [text for text in expected.get("says", []) if text not in said] == []


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
