"""Plain text as records: the whole in pieces, paragraphs, lines."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from seqpipe.errors import DataError
from seqpipe_plugins.readers import text as reading
from seqpipe_plugins.readers.text import Text


def texts(path: Path, unit: Literal["file", "paragraph", "line"]) -> list[tuple[str, bool, str]]:
    return [(one["text"], one["record_continues"], one["where"]) for one in Text(unit=unit).read(path)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tales.txt"
    path.write_bytes("\ufeffOne.\r\nTwo.\r\n\r\n \r\nThree: 三.".encode())
    return path


def test_a_file_keeps_every_character_but_the_ends_of_its_lines(file: Path) -> None:
    assert texts(file, "file") == [("One.\nTwo.\n\n \nThree: 三.", False, f"{file}:1")]


def test_a_paragraph_is_what_stands_between_empty_lines(file: Path) -> None:
    assert texts(file, "paragraph") == [("One.\nTwo.", False, f"{file}:1"), ("Three: 三.", False, f"{file}:5")]


def test_lines_of_nothing_but_blanks_are_left_out(file: Path) -> None:
    assert [text for text, *_ in texts(file, "line")] == ["One.", "Two.", "Three: 三."]


def test_a_long_file_comes_in_pieces_that_end_with_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK", 7)
    path = tmp_path / "long.txt"
    path.write_text("abc\ndef\nghi\njkl\nm\n", encoding="utf-8")
    found = texts(path, "file")
    assert [record_continues for _, record_continues, _ in found] == [True, True, False]
    assert "".join(text for text, *_ in found) == path.read_text(encoding="utf-8")
    assert found[1][2] == f"{path}:3"


def test_a_file_of_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_bytes(b"")
    with pytest.raises(DataError, match="there is nothing in this file"):
        texts(path, "file")
