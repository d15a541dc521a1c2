"""The test files nearest to a function, by their names, their imports and the words they use."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from mutation_operators import PACKAGES, Mutation, sources

SLOW = (
    "test_docs.py",
    "test_gallery.py",
    "test_pipelines.py",
    "test_bundle_format.py",
    "test_contracts.py",
    "test_crash.py",
)
FILES = 12  # test files of a mutation
USERS = 3  # that only use the name of its module as a word, at most before those of the modules that import it


def module_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    if parts[0] == "plugins":
        parts = parts[1:]
    return ".".join(part for part in parts if part != "__init__")


@cache
def imports(path: Path, root: Path) -> frozenset[str]:
    """Modules of ours that a file imports, also within functions and, of plugins, those that it imports names from."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            level = node.level - (path.stem == "__init__")
            above = module_of(path, root).split(".")[: -level or None] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return frozenset(name for name in names if name.split(".")[0] in PACKAGES)


def nearest_tests(mutation: Mutation, root: Path) -> list[str]:
    """The test files nearest to a mutation, the nearest first."""
    tests = [path for path in sorted((root / "tests").rglob("test_*.py")) if "strangers" not in path.parts]
    modules = {module_of(path, root): path for path in sources(root)}
    names = [name.strip("_") for name in reversed(mutation.function.split("."))]  # the method, then its class
    word = re.compile(rf"\b{Path(mutation.path).stem.replace('_', '[-_]')}\b")
    nearest: dict[Path, None] = {}
    # initial_state of InitialState
    class_stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", mutation.function.split(".")[0]).lower()
    ring, seen, users = [module_of(root / mutation.path, root)], set[str](), list[Path]()
    while ring and len(nearest) < FILES:
        seen |= {*ring}
        stems = {f"test_{name}.py" for name in (class_stem, *(module.rpartition(".")[2] for module in ring))}
        named = [path for path in tests if path.name in stems]
        named.sort(key=lambda path: path.parent.name not in mutation.path)
        importing = [path for path in tests if imports(path, root) & {*ring}]
        importing.sort(key=lambda path: (*_unnamed(path, names), len(imports(path, root))))
        if len(seen) == 1:
            uses = {path: len(word.findall(path.read_text(encoding="utf-8"))) for path in tests}
            users = sorted((path for path in tests if uses[path]), key=lambda path: -uses[path])
            importing += users[:USERS]
        nearest |= dict.fromkeys(path for path in [*named, *importing] if path.name not in SLOW)
        ring = [module for module, path in modules.items() if imports(path, root) & {*ring} and module not in seen]
    nearest |= dict.fromkeys(path for path in users if path.name not in SLOW)
    return [path.relative_to(root).as_posix() for path in [*nearest][:FILES]]


def _unnamed(path: Path, names: Sequence[str]) -> list[bool]:
    """Of each of these names whether a file does not use it."""
    text = path.read_text(encoding="utf-8")
    return [not re.search(rf"\b_?{re.escape(name)}\b", text) for name in names]
