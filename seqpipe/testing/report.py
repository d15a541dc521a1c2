"""Checks and their report: what is wrong with a component, and the usual fix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from seqpipe.config import yaml
from seqpipe.config.contract import misspelt_members
from seqpipe.config.signature import options_model, validate_model, values
from seqpipe.config.yaml import dump, plain
from seqpipe.console import text_table
from seqpipe.errors import PluginError

State = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True)
class Finding:
    """Result of one check: its name, its state and, unless it passed, what is wrong and the usual fix.

    Attributes:
        check: The check's name, such as `padding invariance`.
        state: `ok`, `failed`, or `skipped` if the check does not apply; the message says why.
        message: What is wrong; empty if it passed.
        fix: The usual fix.
    """

    check: str
    state: State
    message: str = ""
    fix: str = ""

    def __str__(self) -> str:
        text = f"{self.check}: {self.state}" + (f": {self.message}" if self.message else "")
        return f"{text}\n  {self.fix}" if self.fix else text


@dataclass(frozen=True)
class Report:
    """All findings about one component.

    Attributes:
        component: Kind and name, such as `encoder gated-conv`.
        findings: One per check, in the order of the checks.
    """

    component: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings of the checks that failed."""
        return tuple(finding for finding in self.findings if finding.state == "failed")

    def __str__(self) -> str:
        return "\n".join([f"{self.component}: {_summarize(self)}", *(f"  {finding}" for finding in self.failed)])


class FaultError(Exception):
    """A failed check: what is wrong, and the fix if it is another than the usual one of the check."""

    def __init__(self, message: str, fix: str = ""):
        self.message, self.fix = message, fix
        super().__init__(message)


class NotApplicableError(FaultError):
    """A check does not apply; the message says why, the fix how to make it apply."""


class Check(NamedTuple):
    """One check: `run` raises if it fails. It is skipped if a check in `needs` did not pass."""

    name: str
    run: Callable[[], object]
    fix: str  # the usual one
    needs: tuple[str, ...] = ()


def run_checks(component: str, checks: Iterable[Check]) -> Report:
    """Runs the checks in order; skips those that need a check that did not pass."""
    findings: dict[str, Finding] = {}
    for check in checks:
        missing = next((name for name in check.needs if name in findings and findings[name].state != "ok"), None)
        finding = Finding(check.name, "ok")
        try:
            if missing:
                raise NotApplicableError(f"it needs the check '{missing}' to pass")
            check.run()
        except NotApplicableError as skipped:
            finding = Finding(check.name, "skipped", skipped.message, skipped.fix)
        except FaultError as fault:
            finding = Finding(check.name, "failed", fault.message, fault.fix or check.fix)
        except Exception as error:  # a component may raise any exception
            message = " ".join(str(error).split())[:800]
            finding = Finding(check.name, "failed", f"{type(error).__name__}: {message}", check.fix)
        findings[check.name] = finding
    return Report(component, tuple(findings.values()))


def require_success(report: Report) -> Report:
    """Return the report; AssertionError with every failed check if there is one."""
    if report.failed:
        raise AssertionError(str(report))
    return report


def table(reports: Sequence[Report]) -> str:
    """Format the reports: a line for each check of each component, then the failures with their fixes."""
    rows = [
        ("" if i else report.component, finding.check, finding.state)
        for report in reports
        for i, finding in enumerate(report.findings)
    ]
    lines = text_table(rows)
    for report in reports:
        for finding in report.findings:
            if finding.state == "failed" or finding.fix:
                lines += ["", f"{report.component}: {finding}"]
    summary = [f"{report.component}: {_summarize(report)}" for report in reports]
    return "\n".join([*lines, "", *(summary or ["nothing to check"])])


def _summarize(report: Report) -> str:
    count = len(report.failed)
    checks = sum(finding.state != "skipped" for finding in report.findings)
    return f"{count} of {checks} checks failed" if count else f"all {checks} checks passed"


# The checks that every kind of component shares: options that YAML can represent, and correctly spelt members.

ROUND_TRIP, UNKNOWN, MEMBERS = "options round-trip", "unknown option refused", "members are spelt correctly"
_SIGNATURE = (
    "Parameters that the pipeline wires in are positional (dim, vocabulary, sizes, labels, target_vocabulary); options "
    "follow a '*', each with a type and, if it is optional, a default: def __init__(self, dim, *, hidden: int = 8)"
)
_MEMBERS = "Correct the name; start the names of members outside the contract with an underscore"
_PLAIN = (
    "Give the option a type of plain YAML data (int, float, bool, str, Path, a list or tuple of them, a dict, "
    "Literal, or … | None) and convert it in the constructor, not in the type"
)


@dataclass(frozen=True)
class Subject:
    """A component under test: a class of one of the five kinds, and its options."""

    kind: str
    cls: type
    options: Mapping[str, Any]

    @property
    def chosen(self) -> dict[str, Any]:
        """The options as the component gets them from a YAML, with every default."""
        return _read(self, plain(dict(self.options)))


def option_checks(subject: Subject) -> list[Check]:
    def round_trip() -> None:
        """Write the options into the resolved YAML of a run, read them back and compare."""
        first = subject.chosen
        second = _read(subject, yaml.parse_tree(dump(plain(first)).encode(), "options").data or {})
        for name, value in first.items():
            if value != second[name] or type(value) is not type(second[name]):
                again = f"{second[name]!r} when read from the YAML that a run saves"
                raise FaultError(f"option {name!r} is {value!r} at first, and {again}")

    def unknown_refused() -> None:
        name = "no_such_option"
        try:
            _, mistakes = validate_model(options_model(subject.cls), {**plain(dict(subject.options)), name: 1})
        except PluginError as error:
            raise FaultError(str(error), _SIGNATURE) from error
        if not any(mistake.kind == "unknown" and mistake.where == (name,) for mistake in mistakes):
            raise FaultError(f"the unknown option {name!r} is accepted, and so would a misspelt one be")

    return [Check(ROUND_TRIP, round_trip, _PLAIN), Check(UNKNOWN, unknown_refused, _SIGNATURE)]


def member_check(subject: Subject) -> Check:
    """Return the check of a class's own members, for kinds with optional members."""

    def check_spelling() -> None:
        """A misspelt member has no effect, and nothing else would report it."""
        if misspelt := misspelt_members(subject.cls, subject.kind):
            raise FaultError("; ".join(f"{name!r} is not read; {right!r} is" for name, right in misspelt))

    return Check(MEMBERS, check_spelling, _MEMBERS)


def _read(subject: Subject, options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        instance, mistakes = validate_model(options_model(subject.cls), options)
    except PluginError as error:
        raise FaultError(str(error), _SIGNATURE) from error
    if instance is None:
        words = {"unknown": "there is no such option", "missing": "it is required and was not given"}
        mistake_texts = [f"{'.'.join(map(str, m.where))}: {words.get(m.kind, m.message)}" for m in mistakes]
        raise FaultError(
            f"these options do not fit: {'; '.join(mistake_texts)}",
            "Give the component's own options by keyword, as a YAML would",
        )
    return values(instance)
