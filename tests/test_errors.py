"""Errors and output that every part shares."""

import re
import shlex

import pytest
from packaging.requirements import Requirement
from repository_scripts import PROJECT, ROOT

from seqpipe.console import text_table
from seqpipe.errors import DataError, did_you_mean, install_command


def test_an_error_of_a_record_begins_with_the_records_place() -> None:
    assert str(DataError.at({"where": "a.jsonl:3"}, "no field 'text'")) == "a.jsonl:3: no field 'text'"
    assert str(DataError.at({"text": "x"}, "no label")) == "record: no label"


def test_a_huge_name_is_compared_with_none_and_no_name_with_huge_ones() -> None:
    assert did_you_mean("hiden", ["x" * 10**7, "hidden"]) == "; did you mean 'hidden'?"
    assert did_you_mean("x" * 10**7, ["x" * 10**7, "hidden"]) == did_you_mean("hidden", ["hidde" * 100]) == ""


def test_the_columns_of_a_table_are_as_wide_as_their_widest_cell_on_a_terminal() -> None:
    rows = [("", "f1"), ("播放", "9.5"), ("PER", "100")]
    assert text_table(rows) == ["      f1", "播放  9.5", "PER   100"]
    assert text_table(rows, numbers=True) == ["       f1", "播放  9.5", "PER   100"]
    assert text_table([]) == []


EXTRAS = PROJECT["optional-dependencies"]


def packages(command: str) -> set[Requirement]:
    pip, install, *names = shlex.split(command)
    assert (pip, install) == ("pip", "install")
    return {*map(Requirement, names)}


def needed(extra: str) -> set[Requirement]:
    """The requirements of an extra in pyproject.toml, with those of the extras that it names."""
    requirements = set(map(Requirement, EXTRAS[extra]))
    nested = {requirement for requirement in requirements if requirement.name == "seqpipe-nlp"}
    return (requirements - nested).union(*(needed(name) for requirement in nested for name in requirement.extras))


@pytest.mark.parametrize("extra", sorted({*EXTRAS} - {"dev", "test"}))
def test_the_command_to_install_an_extra_names_its_packages(extra: str) -> None:
    command = install_command(extra)
    assert packages(command) == needed(extra)
    assert re.fullmatch(r'pip install( "[\w<>=.,\[\]-]+")+', command)  # the same text in sh, cmd and PowerShell


def test_the_command_to_install_extras_is_one_for_all_of_them() -> None:
    assert install_command("parquet") == 'pip install "pyarrow>=21"'
    assert install_command("gpu") == 'pip install "onnxruntime-gpu[cuda,cudnn]>=1.23"'
    assert packages(install_command("cpu", "serve")) == needed("cpu") | needed("serve")
    assert {"sacrebleu", "torch"} <= {requirement.name for requirement in packages(install_command("train"))}


def test_a_source_tree_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.distributions", lambda **_: [])
    assert install_command("cpu", "serve") == f'pip install "{ROOT}[cpu,serve]"'
