"""Checks in, a report out: what was looked at, what is wrong, and how such things are usually mended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
        told = f"{self.check}: {self.state}" + (f": {self.message}" if self.message else "")
        return f"{told}\n    {self.cure}" if self.cure else told


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
        return tuple(one for one in self.findings if one.state == "failed")

    def __str__(self) -> str:
        return "\n".join([f"{self.component}: {_counted(self)}", *(f"  {one}" for one in self.failed)])


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
    """One thing to look at: it returns if all is well. `needs` are checks without which it would tell nothing new."""

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
        told = " ".join(str(error).split())[:800]
        return Finding(check.name, "failed", f"{type(error).__name__}: {told}", check.cure)
    return Finding(check.name, "ok")


def insist(report: Report) -> Report:
    """The report; AssertionError with every failed check if there is any."""
    if report.failed:
        raise AssertionError(str(report))
    return report


def table(reports: Sequence[Report]) -> str:
    """The reports as plain text: a line for each check of each component, then what failed, with the cures."""
    rows = [(report.component, one.check, one.state) for report in reports for one in report.findings]
    widths = [max([len(row[column]) for row in rows], default=0) for column in range(2)]
    lines = []
    for i, (component, check, state) in enumerate(rows):
        shown = component if i == 0 or rows[i - 1][0] != component else ""
        lines.append(f"{shown:<{widths[0]}}  {check:<{widths[1]}}  {state}")
    for report in reports:
        for one in report.findings:
            if one.state == "failed" or one.cure:
                lines += ["", f"{report.component}: {one.check}: {one.state}: {one.message}", f"  {one.cure}"]
    summary = [f"{report.component}: {_counted(report)}" for report in reports]
    return "\n".join([*lines, "", *(summary or ["nothing to check"])])


def _counted(report: Report) -> str:
    count = len(report.failed)
    looked = sum(one.state != "skipped" for one in report.findings)
    return f"{count} of {looked} checks failed" if count else f"{looked} checks, all well"
