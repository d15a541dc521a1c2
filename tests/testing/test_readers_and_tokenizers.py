"""The kit's checks of readers and tokenizers: sound ones pass, and each planted fault is caught."""

from pathlib import Path
from typing import Any

import pytest
from readers_and_tokenizers import CONTENT, EXPECTED, READER_FAULTS, TOKENIZER_FAULTS, Blanks, Lines

from seqpipe.testing import check_reader, check_tokenizer
from seqpipe.testing.package import check_component
from seqpipe.testing.report import ROUND_TRIP, UNKNOWN, Subject

FAULTS = {"reader": READER_FAULTS, "tokenizer": TOKENIZER_FAULTS}
RECORDS: dict[str, dict[str, Any]] = {"reader": {"content": CONTENT, "expected": EXPECTED}, "tokenizer": {}}
PLANTED = [(kind, name) for kind, faults in FAULTS.items() for name in faults]


def test_sound_components_pass_every_check_with_options_too() -> None:
    for options in ({}, {"min_count": 3}):
        assert {finding.state for finding in check_tokenizer(Blanks, **options).findings} == {"ok"}
    assert {finding.state for finding in check_reader(Lines, CONTENT, EXPECTED).findings} == {"ok"}
    assert not check_reader(Lines, CONTENT.replace("\t", "|").encode(), EXPECTED, separator="|").failed


@pytest.mark.parametrize(("kind", "name"), PLANTED)
def test_every_planted_fault_is_caught_by_its_check_and_by_no_other(kind: str, name: str) -> None:
    cls, expected = FAULTS[kind][name]
    result = check_component(Subject(kind, cls, {}), **RECORDS[kind])
    assert {finding.check for finding in result.failed} == expected, str(result)
    assert all(finding.message and finding.fix for finding in result.failed)


@pytest.mark.parametrize(
    ("kind", "cls", "others"), [("reader", Lines, {"import"}), ("tokenizer", Blanks, {ROUND_TRIP, UNKNOWN, "import"})]
)
def test_every_check_has_a_planted_fault(kind: str, cls: type, others: set[str]) -> None:
    names = {finding.check for finding in check_component(Subject(kind, cls, {})).findings}
    assert names - others == set().union(*(expected for _, expected in FAULTS[kind].values()))


def test_too_many_and_too_few_records_are_an_error() -> None:
    for expected in (EXPECTED[:1], EXPECTED * 2):
        with pytest.raises(AssertionError, match=f"2 records were read, not {len(expected)}"):
            check_reader(Lines, CONTENT, expected)


def test_checks_that_the_content_does_not_allow_are_skipped(tmp_path: Path) -> None:
    class Latin(Lines):
        def records(self, lines, name):  # type: ignore[no-untyped-def]
            return super().records((line.decode("latin-1").encode() for line in lines), name)

    pair = [{"text": "é", "label": "b"}, {"text": "c", "label": "d"}]
    for cls, content, expected, check in (
        (Lines, "a\tb", [{"text": "a", "label": "b"}], "streams"),
        (Latin, "é\tb\nc\td\n".encode("latin-1"), pair, "a bad line is a DataError"),  # bytes that are no UTF-8
    ):
        findings = check_reader(cls, content, expected).findings
        assert [(f.check, f.state) for f in findings if f.state != "ok"] == [(check, "skipped")]
