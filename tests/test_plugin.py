"""The doors for authors of components, `seqpipe.plugin` and `seqpipe.nn`: what they offer, and what they import."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from seqpipe import nn, plugin

ROOT = Path(__file__).parents[1]
MOST_NAMES = 120
SUBJECTS = {name: importlib.import_module(f"seqpipe.nn.{name}") for name in nn.__all__}
IMPORTS = [
    node
    for node in ast.walk(ast.parse(inspect.getsource(plugin)))
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith("seqpipe.")
]


def test_every_name_is_listed_once_and_is_what_its_module_has() -> None:
    assert sorted(plugin.__all__) == dir(plugin) == sorted(alias.name for node in IMPORTS for alias in node.names)
    for node in IMPORTS:
        for alias in node.names:
            value = getattr(plugin, alias.name)
            assert value is getattr(sys.modules[str(node.module)], alias.name)
            assert alias.asname is None


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_subject_lists_what_it_defines_and_documents(subject: str) -> None:
    module = SUBJECTS[subject]
    assert f"`{subject}`" in str(nn.__doc__)
    assert module.__doc__
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__module__ == module.__name__, name
            assert value.__doc__, name


def test_both_doors_are_short_and_no_name_is_offered_twice() -> None:
    names = Counter([*plugin.__all__, *(name for module in SUBJECTS.values() for name in module.__all__)])
    assert set(names.values()) == {1}
    assert len(plugin.__all__) + len(nn.__all__) <= MOST_NAMES


def test_every_name_is_used_by_a_component_or_explained_to_authors() -> None:
    files = [
        path
        for folder in ("plugins", "tests/strangers", "docs/plugins")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md")
    ]
    assert len(files) > 80
    words = {word for path in files for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    names = {*plugin.__all__, *(name for module in SUBJECTS.values() for name in module.__all__)}
    assert names - words == set()
    assert "merged_batch" not in words  # a function of the core


def test_a_name_that_is_not_offered_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'seqpipe\.plugin' has no attribute 'Atention'"):
        plugin.Atention  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("name", "place"), [("Attention", "seqpipe.nn.attention"), ("scan", "seqpipe.nn.loops"), ("crf", "seqpipe.nn")]
)
def test_the_error_for_a_building_block_names_its_module(name: str, place: str) -> None:
    with pytest.raises(ImportError, match=rf"^{name} is a building block of {place}: from {place} import {name}$"):
        exec(f"from seqpipe.plugin import {name}")
    exec(f"from {place} import {name}")


def test_a_name_is_imported_without_the_others() -> None:
    code = "from seqpipe.plugin import Chars, hookimpl\nimport sys, seqpipe.nn\nprint(*sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "seqpipe.features.kinds.text" in modules
    assert not {"seqpipe.nn.layers", "seqpipe.testing", "seqpipe.runtime.opened", "torch"} & {*modules}
    code = "import sys, seqpipe.plugin\nprint(*sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "pydantic", "tokenizers", "torch"} & {*modules}
