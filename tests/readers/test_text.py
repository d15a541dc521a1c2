"""Plain text as records: the whole in parts, paragraphs, lines."""

from pathlib import Path
from typing import Literal

import pytest

from seqpipe.errors import DataError
from seqpipe_plugins.readers import text as reading
from seqpipe_plugins.readers.text import TextReader


def texts(path: Path, unit: Literal["file", "paragraph", "line"]) -> list[tuple[str, bool, str]]:
    records = TextReader(unit=unit).read(path)
    return [(record["text"], record["record_continues"], record["where"]) for record in records]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tales.txt"
    path.write_bytes("\ufeffOne.\r\nTwo.\r\n\r\n \r\nThree: 三.".encode())
    return path


def test_a_file_a_paragraph_or_a_line_is_a_record(file: Path) -> None:
    assert texts(file, "file") == [("One.\nTwo.\n\n \nThree: 三.", False, f"{file}:1")]
    assert texts(file, "paragraph") == [("One.\nTwo.", False, f"{file}:1"), ("Three: 三.", False, f"{file}:5")]
    assert [text for text, *_ in texts(file, "line")] == ["One.", "Two.", "Three: 三."]


def test_a_long_file_comes_in_parts_that_end_with_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_CHARACTERS", 7)
    path = tmp_path / "long.txt"
    path.write_text("abc\ndef\nghi\njkl\nm\n", encoding="utf-8")
    parts = texts(path, "file")
    assert [record_continues for _, record_continues, _ in parts] == [True, True, False]
    assert "".join(text for text, *_ in parts) == path.read_text(encoding="utf-8")
    assert parts[1][2] == f"{path}:3"


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_bytes(b"")
    with pytest.raises(DataError, match="there is nothing in this file"):
        texts(path, "file")
