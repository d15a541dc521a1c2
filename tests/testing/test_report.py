from collections.abc import Callable

import pytest

from seqpipe.testing import Finding, Report, table
from seqpipe.testing.report import Check, FaultError, NotApplicableError, require_success, run_checks


def raising(error: Exception) -> Callable[[], None]:
    def check() -> None:
        raise error

    return check


FAULT = raising(FaultError("it leaks", "Mask it"))
CHECKS = [
    Check("sound", lambda: None, ""),
    Check("leaks", FAULT, ""),
    Check("stumbles", raising(KeyError("x")), "Look at x"),
    Check("skips", raising(NotApplicableError("there is nothing", "Give something")), ""),
    Check("after", FAULT, "", ("sound", "leaks")),
]


def test_faults_exceptions_and_skipped_checks_differ() -> None:
    assert run_checks("encoder toy", CHECKS) == Report(
        "encoder toy",
        (
            Finding("sound", "ok"),
            Finding("leaks", "failed", "it leaks", "Mask it"),
            Finding("stumbles", "failed", "KeyError: 'x'", "Look at x"),
            Finding("skips", "skipped", "there is nothing", "Give something"),
            Finding("after", "skipped", "it needs the check 'leaks' to pass"),
        ),
    )


def test_the_table_has_a_line_a_check_then_what_failed_and_the_count() -> None:
    shown = table([run_checks("encoder toy", CHECKS), run_checks("head toy", CHECKS[:1])])
    states, *findings = shown.split("\n\n")
    assert states.splitlines() == [
        "encoder toy  sound     ok",
        "             leaks     failed",
        "             stumbles  failed",
        "             skips     skipped",
        "             after     skipped",
        "head toy     sound     ok",
    ]
    assert [finding.strip() for finding in findings] == [
        "encoder toy: leaks: failed: it leaks\n  Mask it",
        "encoder toy: stumbles: failed: KeyError: 'x'\n  Look at x",
        "encoder toy: skips: skipped: there is nothing\n  Give something",
        "encoder toy: 2 of 3 checks failed\nhead toy: all 1 checks passed",
    ]
    assert table([]).strip() == "nothing to check"


def test_insisting_raises_only_if_a_check_failed() -> None:
    sound = run_checks("head toy", [CHECKS[0], CHECKS[3]])
    assert require_success(sound) is sound
    with pytest.raises(AssertionError, match=r"leaks: failed: it leaks\n +Mask it"):
        require_success(run_checks("head toy", CHECKS))
