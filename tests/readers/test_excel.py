"""A spreadsheet through the reader excel."""

from pathlib import Path

import pytest

from seqpipe.config.signature import construct
from seqpipe.errors import DataError
from seqpipe_plugins.readers.excel import Excel

pytest.importorskip("python_calamine")
SHEET = Path(__file__).parents[1] / "corpus" / "init" / "encodings" / "sheet.xlsx"


def test_a_sheet_gives_its_rows() -> None:
    records = list(construct(Excel, numbers=["n"]).read(SHEET))
    assert len(records) == 24
    fields = {"text": "en stille båt 1 kom inn, og lå", "label": "storm", "n": 1.0}
    assert records[1] == fields | {"where": f"{SHEET}:3"}


def test_a_missing_sheet_and_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no sheet is named 'x' .there is: havn."):
        list(construct(Excel, sheet="x").read(SHEET))
    other = tmp_path / "a.xlsx"
    for content in (b"", b"PK\x03\x04 cut", b"text,label\na,b\n"):
        other.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read as a spreadsheet"):
            list(construct(Excel).read(other))
    with pytest.raises(DataError, match="cannot be read"):
        list(construct(Excel).read(tmp_path / "none.xlsx"))
