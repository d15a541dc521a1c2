import pytest
from readers_and_tokenizers import TOKENIZER_FAULTS, Blanks

from seqpipe.testing import check_tokenizer, report
from seqpipe.testing.report import ROUND_TRIP, UNKNOWN, Subject


def test_a_sound_tokenizer_passes_every_check() -> None:
    for options in ({}, {"min_count": 3}):
        result = check_tokenizer(Blanks, **options)
        assert {finding.state for finding in result.findings} == {"ok"}


@pytest.mark.parametrize("name", TOKENIZER_FAULTS)
def test_every_planted_fault_is_caught_by_its_check_and_by_no_other(name: str) -> None:
    cls, expected = TOKENIZER_FAULTS[name]
    result = report(Subject("tokenizer", cls, {}))
    assert {finding.check for finding in result.failed} == expected, str(result)
    assert all(finding.message and finding.fix for finding in result.failed)


def test_every_check_of_tokenizers_has_a_planted_fault() -> None:
    names = {finding.check for finding in report(Subject("tokenizer", Blanks, {})).findings}
    of_all_kinds = {ROUND_TRIP, UNKNOWN, "import"}
    assert names - of_all_kinds == set().union(*(expected for _, expected in TOKENIZER_FAULTS.values()))
