from pathlib import Path

import pytest
from readers_and_tokenizers import CONTENT, EXPECTED, READER_FAULTS, Lines

from seqpipe.testing import check_reader, report
from seqpipe.testing.report import Subject


def test_a_sound_reader_passes_every_check_with_options_too() -> None:
    result = check_reader(Lines, CONTENT, EXPECTED)
    assert {finding.state for finding in result.findings} == {"ok"}
    assert not check_reader(Lines, CONTENT.replace("\t", "|").encode(), EXPECTED, separator="|").failed


@pytest.mark.parametrize("name", READER_FAULTS)
def test_every_planted_fault_is_caught_by_its_check_and_by_no_other(name: str) -> None:
    cls, expected = READER_FAULTS[name]
    result = report(Subject("reader", cls, {}), content=CONTENT, expected=EXPECTED)
    assert {finding.check for finding in result.failed} == expected, str(result)
    assert all(finding.message and finding.fix for finding in result.failed)


def test_every_check_of_readers_has_a_planted_fault() -> None:
    names = {finding.check for finding in report(Subject("reader", Lines, {})).findings}
    assert names - {"import"} == set().union(*(expected for _, expected in READER_FAULTS.values()))


def test_too_many_and_too_few_records_are_told() -> None:
    for expected in (EXPECTED[:1], EXPECTED * 2):
        with pytest.raises(AssertionError, match=f"2 records were read, not {len(expected)}"):
            check_reader(Lines, CONTENT, expected)


def test_one_record_alone_cannot_show_whether_it_streams() -> None:
    result = check_reader(Lines, "a\tb", [{"text": "a", "label": "b"}])
    assert [(f.check, f.state) for f in result.findings if f.state != "ok"] == [("streams", "skipped")]


def test_of_bytes_that_are_no_text_no_bad_line_is_known(tmp_path: Path) -> None:
    class Latin(Lines):
        def records(self, lines, name):  # type: ignore[no-untyped-def]
            return super().records((line.decode("latin-1").encode() for line in lines), name)

    result = check_reader(
        Latin, "é\tb\nc\td\n".encode("latin-1"), [{"text": "é", "label": "b"}, {"text": "c", "label": "d"}]
    )
    assert [(f.check, f.state) for f in result.findings if f.state != "ok"] == [
        ("a bad line is a DataError", "skipped")
    ]
