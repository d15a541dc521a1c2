"""`seqpipe.plugin`: the names are listed once, they exist, and each is imported alone."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from seqpipe import plugin

STUB = ast.parse(Path(plugin.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
IMPORTS = [statement for statement in STUB.body if isinstance(statement, ast.ImportFrom)]


def test_every_name_is_listed_once_and_is_what_its_module_has() -> None:
    names = Counter(alias.name for statement in IMPORTS for alias in statement.names)
    assert set(names.values()) == {1}
    assert sorted(names) == plugin.__all__ == dir(plugin)
    for statement in IMPORTS:
        for alias in statement.names:
            assert alias.asname == alias.name  # else strict type checkers take the name for a private one
            value = getattr(plugin, alias.name)
            assert value is getattr(sys.modules[str(statement.module)], alias.name)


def test_a_name_that_is_not_offered_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'seqpipe\.plugin' has no attribute 'Atention'"):
        plugin.Atention  # type: ignore[attr-defined]  # noqa: B018


def test_a_name_is_imported_without_the_others() -> None:
    code = "from seqpipe.plugin import Attention, Chars, hookimpl\nimport sys\nprint(*sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "seqpipe.nn.attention" in modules
    assert not {"seqpipe.nn.search", "seqpipe.nn.cells", "seqpipe.testing", "seqpipe.api.model"} & {*modules}
