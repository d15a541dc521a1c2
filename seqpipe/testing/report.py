"""Checks and their report: what is wrong with a component, and the usual cure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from seqpipe.console import text_table

State = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True)
class Finding:
    """What one check found: its name, how it ended, and, where it did not end well, what is wrong and the usual cure.

    Attributes:
        check: The check's name, such as `padding invariance`.
        state: `ok`, `failed`, or `skipped` where there was nothing to look at; the message says why.
        message: What is wrong; empty if nothing is.
        cure: How such things are usually mended.
    """

    check: str
    state: State
    message: str = ""
    cure: str = ""

    def __str__(self) -> str:
        text = f"{self.check}: {self.state}" + (f": {self.message}" if self.message else "")
        return f"{text}\n    {self.cure}" if self.cure else text


@dataclass(frozen=True)
class Report:
    """All findings about one component.

    Attributes:
        component: Whose they are, such as `encoder gated-conv`.
        findings: One a check, in the order of looking.
    """

    component: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings of the checks that failed."""
        return tuple(finding for finding in self.findings if finding.state == "failed")

    def __str__(self) -> str:
        return "\n".join([f"{self.component}: {_counted(self)}", *(f"  {finding}" for finding in self.failed)])


class FaultError(Exception):
    """A check's verdict: what is wrong, and the usual cure."""

    def __init__(self, message: str, cure: str):
        self.message, self.cure = message, cure
        super().__init__(message)


class NotApplicableError(Exception):
    """A check has nothing to look at; the message says why, the cure how it would have."""

    def __init__(self, message: str, cure: str = ""):
        self.message, self.cure = message, cure
        super().__init__(message)


class Check(NamedTuple):
    """One check: `run` returns if all is well. It is skipped where one of the checks in `needs` did not pass."""

    name: str
    run: Callable[[], None]
    cure: str  # where it ends with an exception that is no verdict
    needs: tuple[str, ...] = ()


def inspected(component: str, checks: Iterable[Check]) -> Report:
    """Runs the checks in order; one that needs another that did not end well is skipped."""
    findings: dict[str, Finding] = {}
    for check in checks:
        missing = next((name for name in check.needs if name in findings and findings[name].state != "ok"), None)
        if missing:
            findings[check.name] = Finding(check.name, "skipped", f"it needs '{missing}'")
        else:
            findings[check.name] = _finding(check)
    return Report(component, tuple(findings.values()))


def _finding(check: Check) -> Finding:
    try:
        check.run()
    except FaultError as fault:
        return Finding(check.name, "failed", fault.message, fault.cure)
    except NotApplicableError as skipped:
        return Finding(check.name, "skipped", skipped.message, skipped.cure)
    except Exception as error:  # a component may raise anything at all
        message = " ".join(str(error).split())[:800]
        return Finding(check.name, "failed", f"{type(error).__name__}: {message}", check.cure)
    return Finding(check.name, "ok")


def insist(report: Report) -> Report:
    """The report; AssertionError with every failed check if there is any."""
    if report.failed:
        raise AssertionError(str(report))
    return report


def table(reports: Sequence[Report]) -> str:
    """The reports as plain text: a line for each check of each component, then what failed, with the cures."""
    rows = [
        ("" if i else report.component, finding.check, finding.state)
        for report in reports
        for i, finding in enumerate(report.findings)
    ]
    lines = text_table(rows)
    for report in reports:
        for finding in report.findings:
            if finding.state == "failed" or finding.cure:
                lines += [
                    "",
                    f"{report.component}: {finding.check}: {finding.state}: {finding.message}",
                    f"  {finding.cure}",
                ]
    summary = [f"{report.component}: {_counted(report)}" for report in reports]
    return "\n".join([*lines, "", *(summary or ["nothing to check"])])


def _counted(report: Report) -> str:
    count = len(report.failed)
    checks = sum(finding.state != "skipped" for finding in report.findings)
    return f"{count} of {checks} checks failed" if count else f"{checks} checks, all well"
