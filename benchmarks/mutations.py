"""Do the tests notice a fault? Mutations drawn by a seed from the syntax trees, each against the tests nearest to it.

    python benchmarks/mutations.py                       40 mutations of seed 1, a Markdown table on standard output
    python benchmarks/mutations.py --seed 2 --count 10   others
    python benchmarks/mutations.py --list                which they are and which tests are nearest, without running any

A mutation is a function of `seqpipe/` or `plugins/`, an operator and a change of text: it is found by names, not by
line, and a change elsewhere draws the same ones. The tests run in a scratch copy of the checkout, with `-x`, in the
order of their nearness: files named after the module, those that import it, those that use its name as a word (as YAMLs
do), then those of the modules that import it. A mutation is caught if a test fails that passes without it; tests that
did not end within the limit caught nothing.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"seqpipe": "seqpipe", "plugins": "seqpipe_plugins"}  # folder -> import name
SLOW = ("test_docs.py", "test_pipelines.py", "test_deploy_docs.py", "test_contracts.py", "test_crash.py")
FILES = 8  # test files of a mutation
TEST_SECONDS = 60  # of one test: it takes less without a mutation
EQUIVALENT = {  # mutations that change no behaviour, by their key, with the reason
    "plugins/heads/crf.py CRF.decide: torch.where(real, found.tag_p, 0.0).transpose(0, 1) -> "
    "torch.where(real, found.tag_p, 0.0).transpose(1, 0)": "two axes swapped are the same two axes",
}


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


@dataclass(frozen=True)
class Outcome:
    """What became of a mutation: `caught` and the test that caught it, `survived`, or `equivalent` and why."""

    mutation: Mutation
    name: str
    detail: str
    seconds: float = 0.0


# -- operators: each gives what may stand for a node

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


# -- what may be mutated, and what is


def sources(root: Path) -> list[Path]:
    return [path for folder in PACKAGES for path in sorted((root / folder).rglob("*.py"))]


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


def drawn(root: Path, seed: int, count: int) -> list[Mutation]:
    """As many mutations of each operator, one of a function at most; a hash of names and texts draws them."""
    by_function: dict[tuple[str, str, str], list[Mutation]] = {}
    for path in sources(root):
        for mutation in mutations(path, root):
            by_function.setdefault((mutation.operator, mutation.path, mutation.function), []).append(mutation)

    def rank(*names: str) -> str:
        return hashlib.sha256("\n".join([str(seed), *names]).encode()).hexdigest()

    found: list[Mutation] = []
    for number, operator in enumerate(OPERATORS):
        places = sorted((key for key in by_function if key[0] == operator), key=lambda key: rank(*key))
        share = count // len(OPERATORS) + (number < count % len(OPERATORS))
        found += [min(by_function[key], key=lambda one: rank(one.key)) for key in places[:share]]
    return found


# -- which tests are nearest


def module_of(path: Path, root: Path) -> str:
    folder, *rest = path.relative_to(root).with_suffix("").parts
    return ".".join([PACKAGES.get(folder, folder), *(part for part in rest if part != "__init__")])


@cache
def imports(path: Path) -> frozenset[str]:
    """Modules of ours that a file imports, also within functions and, of plugins, those that it imports names from."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(name for name in found if name.split(".")[0] in PACKAGES.values())


def nearest_tests(mutation: Mutation, root: Path) -> list[str]:
    """The test files nearest to a mutation, the nearest first."""
    tests = [path for path in sorted((root / "tests").rglob("test_*.py")) if "strangers" not in path.parts]
    modules = {module_of(path, root): path for path in sources(root)}
    names = [name.strip("_") for name in reversed(mutation.function.split("."))]  # the method, then its class
    word = re.compile(rf"\b{Path(mutation.path).stem.replace('_', '[-_]')}\b")
    found: dict[Path, None] = {}
    ring, seen = [module_of(root / mutation.path, root)], set[str]()
    while ring and len(found) < FILES:
        seen |= {*ring}
        stems = {f"test_{module.rpartition('.')[2]}.py" for module in ring}
        named = [path for path in tests if path.name in stems]
        named.sort(key=lambda path: path.parent.name not in mutation.path)
        importing = [path for path in tests if imports(path) & {*ring}]
        importing.sort(key=lambda path: (*_unnamed(path, names), len(imports(path))))
        if len(seen) == 1:
            uses = {path: len(word.findall(path.read_text(encoding="utf-8"))) for path in tests}
            importing += sorted((path for path in tests if uses[path]), key=lambda path: -uses[path])
        found |= dict.fromkeys(path for path in [*named, *importing] if path.name not in SLOW)
        ring = [module for module, path in modules.items() if imports(path) & {*ring} and module not in seen]
    return [path.relative_to(root).as_posix() for path in [*found][:FILES]]


def _unnamed(path: Path, names: Sequence[str]) -> list[bool]:
    """Of each of these names whether a file does not use it."""
    text = path.read_text(encoding="utf-8")
    return [not re.search(rf"\b_?{re.escape(name)}\b", text) for name in names]


# -- running


def scratch(folder: Path) -> Path:
    """A copy of what git tracks or would, under which `seqpipe_plugins` can be imported too."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    for name in listed.stdout.decode().split("\0")[:-1]:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "seqpipe_plugins").symlink_to("plugins")
    return folder


def run_tests(root: Path, tests: Sequence[str], limit: float, *options: str) -> tuple[int | None, str]:
    """The exit code, None if the time is up, and what was printed."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "--tb=no", "-rfE"]
    command += [f"--timeout={TEST_SECONDS}", *options, *tests]
    environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            command, cwd=root, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        file.seek(0)
        return code, file.read().decode(errors="replace")


def failed_tests(output: str) -> list[str]:
    """The ids of tests that failed, or of files that could not be collected."""
    return [match[1] for match in re.finditer(r"^(?:FAILED|ERROR) (\S+(?:\[.*?\])?)(?: - |$)", output, re.MULTILINE)]


def tried(mutation: Mutation, root: Path, limit: float) -> Outcome:
    """The outcome of one mutation, which is taken back."""
    if mutation.key in EQUIVALENT:
        return Outcome(mutation, "equivalent", EQUIVALENT[mutation.key])
    path, clock = root / mutation.path, time.monotonic()
    text, tests = path.read_bytes(), nearest_tests(mutation, root)
    try:
        path.write_bytes(text[: mutation.start] + mutation.after.encode() + text[mutation.end :])
        code, output = run_tests(root, tests, limit, "-x")
    finally:
        path.write_bytes(text)
    seconds = time.monotonic() - clock
    if code is None:
        return Outcome(mutation, "survived", f"no failure within {limit:.0f} s: {', '.join(tests)}", seconds)
    if code == 0:
        return Outcome(mutation, "survived", ", ".join(tests), seconds)
    if failed := failed_tests(output):
        return Outcome(mutation, "caught", failed[0], seconds)
    return Outcome(mutation, "caught", "no test could be collected", seconds)


def confirmed(outcomes: Sequence[Outcome], root: Path) -> list[Outcome]:
    """The same with what failed without a mutation too no longer caught."""
    caught = sorted({one.detail for one in outcomes if one.name == "caught"})
    tests, files = [one for one in caught if "::" in one], [one for one in caught if one.endswith(".py")]
    red: set[str] = set()
    for chosen, options in ((tests, []), (files, ["--collect-only"])):
        code, output = run_tests(root, chosen, 600, *options) if chosen else (0, "")
        if code is None:
            raise SystemExit("the tests that failed did not end in 10 minutes without a mutation; run fewer at a time")
        red |= {*failed_tests(output)}
    return [
        Outcome(one.mutation, "survived", f"{one.detail} fails without it too", one.seconds)
        if one.detail in red
        else one
        for one in outcomes
    ]


def row(number: int, one: Outcome) -> str:
    where = f"`{one.mutation.path}` `{one.mutation.function}`"
    change = f"`{shortened(one.mutation.before)}` → `{shortened(one.mutation.after)}`".replace("|", "\\|")
    detail = one.detail.removeprefix("tests/") if one.name == "caught" else one.detail
    return f"| {number} | {where} | {one.mutation.operator} | {change} | {one.name} | {detail} |"


def shortened(code: str) -> str:
    code = " ".join(code.split())
    return code if len(code) <= 70 else f"{code[:34]} … {code[-34:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--limit", type=float, default=150, help="seconds of tests for a mutation")
    parser.add_argument("--only", type=int, nargs="+", default=(), help="numbers of the table")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    chosen = [*enumerate(drawn(ROOT, given.seed, given.count), 1)]
    chosen = [one for one in chosen if not given.only or one[0] in given.only]
    if given.list:
        for number, mutation in chosen:
            print(f"{number}. {mutation.operator}: {mutation.key}\n   {' '.join(nearest_tests(mutation, ROOT))}")
        return
    with tempfile.TemporaryDirectory(prefix="seqpipe-mutations-") as folder:
        root = scratch(Path(folder))
        outcomes = []
        for number, mutation in chosen:
            outcomes.append(tried(mutation, root, given.limit))
            print(f"{number}: {outcomes[-1].name}, {outcomes[-1].seconds:.0f} s, {mutation.key}", file=sys.stderr)
        outcomes = confirmed(outcomes, root)
    print("| | function | operator | change | outcome | by, or nearest tests |\n|---|---|---|---|---|---|")
    for (number, _), outcome in zip(chosen, outcomes, strict=True):
        print(row(number, outcome))
    names = [outcome.name for outcome in outcomes]
    counts = ", ".join(f"{names.count(name)} {name}" for name in ("caught", "survived", "equivalent"))
    print(f"\nSeed {given.seed}: {counts}; {sum(one.seconds for one in outcomes) / 60:.0f} minutes.")


if __name__ == "__main__":
    main()
