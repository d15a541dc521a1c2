from pathlib import Path

import pytest
from acme_labelled.reader import FastText

from seqpipe.plugin import DataError, check_reader

RECORDS = [{"text": "a lovely soup", "label": "good"}, {"text": "stale, süß bread", "label": "not-good"}]


def test_it_keeps_the_contract_of_readers() -> None:
    check_reader(FastText, "__label__good a lovely soup\n__label__not-good stale, süß bread\n", RECORDS)


def test_another_prefix_a_byte_order_mark_blank_lines_and_carriage_returns() -> None:
    content = "\ufeff#good a lovely soup\r\n\r\n#not-good   stale, süß bread \r\n"
    check_reader(FastText, content.encode(), RECORDS, prefix="#")


BAD = [
    ("no label here", "begin the line with __label__"),
    ("__label__ no name", "begin the line with __label__"),
    ("__label__good", "no text after the label 'good'"),
    ("__label__good __label__fair soup", "a second label"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_a_bad_line_is_an_error_with_its_place(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(f"__label__good soup\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError) as error:
        list(FastText().read(path))
    assert str(error.value).startswith(f"{path}:2: ")
    assert message in str(error.value)
