"""Mutations of functions, found in the syntax trees of `seqpipe/` and `plugins/`: a place, an operator and new text."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = {"seqpipe": "seqpipe", "seqpipe_plugins": "plugins/seqpipe_plugins"}  # import name -> folder


@dataclass(frozen=True)
class Mutation:
    """A change of one place in one function."""

    path: str
    function: str
    operator: str
    before: str
    after: str
    start: int  # in bytes of the file
    end: int

    @property
    def key(self) -> str:
        return f"{self.path} {self.function}: {self.before} -> {self.after}"


COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


def compare(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    if isinstance(node, ast.Compare):
        changed = copy.deepcopy(node)
        changed.ops[0] = COMPARISONS[type(node.ops[0])]()
        yield node, changed


def shift(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield from ((node, ast.Constant(node.value + step)) for step in (1, -1))


def negate(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    tests = node.ifs if isinstance(node, ast.comprehension) else []
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        tests = [node.test]
    yield from ((test, ast.UnaryOp(ast.Not(), test)) for test in tests)


def drop(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Statements whose absence leaves every name there is."""
    kept = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if is_call or (isinstance(node, ast.Assign | ast.AugAssign | ast.Raise | ast.Continue | ast.Break) and not kept):
        yield node, ast.Pass()


def swap(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    if isinstance(node, ast.Call) and len(node.args) > 1:
        first, second = node.args[:2]
        if not {type(first), type(second)} & {ast.Starred} and ast.dump(first) != ast.dump(second):
            changed = copy.deepcopy(node)
            changed.args[:2] = [second, first]
            yield node, changed


Operator = Callable[[ast.AST], Iterator[tuple[ast.AST, ast.AST]]]
OPERATORS: dict[str, Operator] = {
    "comparison": compare,
    "constant ± 1": shift,
    "negated condition": negate,
    "dropped statement": drop,
    "swapped arguments": swap,
}


def sources(root: Path) -> list[Path]:
    return [path for folder in PACKAGES.values() for path in sorted((root / folder).rglob("*.py"))]


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a module with their qualified names, but for those within functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")


def within(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below, but for those in f-strings, whose places Python 3.11 does not know, and in annotations."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.JoinedStr | ast.arguments) and child is not getattr(node, "annotation", None):
            yield child
            yield from within(child)


def mutations(path: Path, root: Path) -> Iterator[Mutation]:
    """Every mutation of a file."""
    text = path.read_bytes()
    starts = [0, *(match.end() for match in re.finditer(rb"\n", text))]
    for name, function in functions(ast.parse(text)):
        for node in (node for statement in function.body for node in (statement, *within(statement))):
            for operator, changes in OPERATORS.items():
                for old, new in changes(node):
                    start = starts[old.lineno - 1] + old.col_offset  # type: ignore[attr-defined]
                    end = starts[old.end_lineno - 1] + old.end_col_offset  # type: ignore[attr-defined]
                    before, after = " ".join(ast.unparse(old).split()), ast.unparse(new)
                    yield Mutation(path.relative_to(root).as_posix(), name, operator, before, after, start, end)
