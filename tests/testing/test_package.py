import json
import sys
from collections.abc import Callable

import pytest
from tiny_pipelines import seqpipe

from seqpipe.errors import UsageError
from seqpipe.testing import Report, check_package, table

Install = Callable[..., None]

CODE = """
from typing import Annotated
from pydantic import Field
from seqpipe.plugin import hookimpl
from readers_and_tokenizers import Blanks, Lines, Unfolds

class Counted(Blanks):
    def __init__(self, *, least: Annotated[int, Field(ge=1, examples=[2])]):
        super().__init__(min_count=least)

class Asked(Blanks):
    def __init__(self, *, least: int):
        super().__init__(min_count=least)

@hookimpl
def register_tokenizers():
    return {"sound": Blanks, "unfolds": Unfolds, "counted": Counted, "asked": Asked, "gone": "seqpipe_kit:Gone"}

@hookimpl
def register_readers():
    return {"lines": Lines}
"""


def by_name(reports: list[Report]) -> dict[str, dict[str, str]]:
    return {report.component: {f.check: f.state for f in report.findings} for report in reports}


def test_every_component_of_a_package_has_a_report(install: Install) -> None:
    install("seqpipe-kit", CODE)
    reports = check_package("Seqpipe_Kit", {})
    states = by_name(reports)
    tokenizers = [f"tokenizer {name}" for name in ("asked", "counted", "gone", "sound", "unfolds")]
    assert list(states) == ["entry point toy", "reader lines", *tokenizers]
    for name in ("entry point toy", "tokenizer sound", "tokenizer counted"):
        assert set(states[name].values()) == {"ok"}
    unfolds = states["tokenizer unfolds"]
    assert unfolds["offsets point at the text"] == unfolds["words and whole text agree"] == "failed"
    assert states["tokenizer gone"] == {"loads": "failed"}
    assert states["tokenizer asked"] == {"options to check it with": "skipped"}
    assert states["reader lines"]["expected records"] == "skipped"
    shown = table(reports)
    for part in (
        "'least' has no default",
        "Give --set asked.least=VALUE, or add Field(examples=[…]) to its annotation",
        "tokenizer unfolds: 2 of 10 checks failed",
        "A normalizer that maps one code point",
        "check_reader(YourReader, content, expected)",
    ):
        assert part in shown


@pytest.mark.parametrize("setting", ["least", "asked.least"])
def test_settings_give_the_options_that_have_no_default(install: Install, setting: str) -> None:
    install("seqpipe-kit", CODE)
    assert set(by_name(check_package("seqpipe-kit", {setting: 1}))["tokenizer asked"].values()) == {"ok"}


@pytest.mark.parametrize(("tokenizer", "code", "state"), [("Blanks", 0, "ok"), ("Unfolds", 5, "failed")])
def test_the_exit_code_of_the_command_says_if_a_check_failed(
    tokenizer: str, code: int, state: str, install: Install
) -> None:
    lines = CODE.splitlines(keepends=True)[1:5]
    register = f"@hookimpl\ndef register_tokenizers():\n    return {{'own': {tokenizer}}}\n"
    install("seqpipe-kit", "".join(lines) + register)
    checked = seqpipe("plugins", "check", "seqpipe-kit", "--json")
    states = {finding["state"] for report in json.loads(checked.out) for finding in report["findings"]}
    assert (checked.code, state in states) == (code, True)


def test_settings_that_fit_nothing_are_errors(install: Install) -> None:
    install("seqpipe-kit", CODE)
    for setting, message in (
        ("askd.least", r"askd\.least: .* no component of that name; did you mean 'asked'"),
        ("nowhere", "nowhere: no component of seqpipe-kit has this option"),
    ):
        with pytest.raises(UsageError, match=message):
            check_package("seqpipe-kit", {setting: 1})
    states = by_name(check_package("seqpipe-kit", {"sound.least": 1}))["tokenizer sound"]
    assert states["options round-trip"] == "failed"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise RuntimeError('not today')", "RuntimeError: not today"),
        (f"import torch\n{CODE}", "seqpipe_faulty imports torch"),
    ],
)
def test_a_package_that_cannot_be_imported_or_imports_torch_has_a_report(
    install: Install, code: str, message: str
) -> None:
    install("seqpipe-faulty", code)
    assert [finding.message for finding in check_package("seqpipe-faulty", {})[0].failed] == [message]


def test_a_missing_package_is_an_error_and_imports_nothing(install: Install) -> None:
    install("seqpipe-kit", CODE)
    with pytest.raises(UsageError, match=r"no installed distribution 'seqpipe-kid'.*did you mean 'seqpipe-kit'"):
        check_package("seqpipe-kid", {})
    assert "seqpipe_kit" not in sys.modules
