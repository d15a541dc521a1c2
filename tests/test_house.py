"""What holds for the source as a whole, read from its syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import seqpipe
from seqpipe.config.contract import has_member, member

PACKAGE = Path(seqpipe.__file__).parent
CONTRACT = PACKAGE / "config" / "contract.py"
COMPONENTS = {"component", "embedding", "encoder", "head", "module", "reader", "stage", "tokenizer"}
MOST_MODULES = 8  # directly in the package


def member_lookups(path: Path) -> Iterator[str]:
    """Where a file looks for a member of a component by `getattr` or `hasattr`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1):
            continue
        owner, name = node.args[:2]
        of_component = (isinstance(owner, ast.Attribute) and owner.attr == "cls") or (
            isinstance(owner, ast.Name) and owner.id in COMPONENTS
        )
        of_python = isinstance(name, ast.Constant) and str(name.value).startswith("__")
        if node.func.id in ("getattr", "hasattr") and of_component and not of_python:
            yield f"{path.relative_to(PACKAGE)}:{node.lineno}"


def test_members_of_components_are_read_in_one_place() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if path != CONTRACT]
    assert [place for path in files for place in member_lookups(path)] == []
    assert len([*member_lookups(CONTRACT)]) == 2


def test_a_member_that_the_contract_does_not_list_cannot_be_looked_for() -> None:
    for look in (member, has_member):
        with pytest.raises(KeyError):
            look(object, "no_such_member")


def test_few_modules_stand_directly_in_the_package() -> None:
    assert len([*PACKAGE.glob("*.py")]) <= MOST_MODULES


def test_every_room_and_module_says_what_it_is_for() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "templates" not in path.parts:
            assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path
