"""Do the tests notice a fault? Mutations drawn by a seed from the syntax trees, each against the tests nearest to it.

    python benchmarks/mutations.py                       40 mutations of seed 1, a Markdown table on standard output
    python benchmarks/mutations.py --seed 2 --count 10   others
    python benchmarks/mutations.py --list                which they are and which tests are nearest, without running any
    python benchmarks/mutations.py --minutes 25          those that can be begun in this time, in a random order
    python benchmarks/mutations.py --json FILE           the outcomes as JSON too
    python benchmarks/mutations.py --since COMMIT        drawn from the lines that changed since this commit
    python benchmarks/mutations.py --keys FILE           those with these keys, a line each, as --list prints them;
                                                         stored_mutations.txt has those of seeds 1, 41 and 42

A mutation is a function of `seqpipe/` or `plugins/`, an operator and a change of text: it is found by names, not by
line, and a change elsewhere draws the same ones. The tests run in a scratch copy of the checkout, with `-x`, in the
order of their nearness: files named after the module, those that import it, those that use its name as a word (as YAMLs
do), then those of the modules that import it. A mutation is caught if a test fails that passes three times without it;
tests that did not end within the limit caught nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import common
from mutation_operators import OPERATORS, PACKAGES, Mutation, mutations, sources
from nearest_tests import nearest_tests

ROOT = Path(__file__).resolve().parent.parent
CONFIRMATIONS = 3  # runs of a test without the mutation that it caught
TEST_SECONDS = 60  # of one test: it takes less without a mutation
EQUIVALENT = {  # mutations that change no behaviour, by their key, with the reason
    "seqpipe/answers/text.py Generation.decode: 0 -> -1": "a decoder looks at one token before another at most",
    "seqpipe/answers/text.py GenerationTask.create: "
    "raise ValueError('a language model needs its tokenizer') -> pass": "no caller comes without one",
    "seqpipe/config/yaml.py format_value: 1000 -> 999": "no text of so many characters comes here",
    "seqpipe/training/fit.py _fit_source: 0 -> 1": "data without records is refused before",
    "seqpipe/training/datasets.py ExampleMaker.messages: 0 -> 1": "read of heads that write texts only, which set it",
    "plugins/seqpipe_plugins/heads/tags.py Tags.decide: 0.0 -> -1.0": "sums of padding, which is masked in each output",
    "plugins/seqpipe_plugins/readers/text.py Text.records: 0 -> 1": "the number is replaced before it is read",
    "plugins/seqpipe_plugins/heads/crf.py CRF.decide: torch.where(real, found.tag_p, 0.0).transpose(0, 1) -> "
    "torch.where(real, found.tag_p, 0.0).transpose(1, 0)": "two axes swapped are the same two axes",
}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a mutation: `caught` and the test that caught it, `survived`, or `equivalent` and why."""

    mutation: Mutation
    name: str
    detail: str
    seconds: float = 0.0


def changed_lines(commit: str) -> dict[str, set[int]]:
    """The numbers of the lines of each file that this commit did not have, moved files taken for the same."""
    command = ["git", "diff", "--unified=0", "--find-renames", "-l0", "--no-color", "--no-ext-diff", "--dst-prefix=b/"]
    command += [commit, "--", *PACKAGES.values()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines: dict[str, set[int]] = {}
    path = ""
    for line in done.stdout.split("\n"):
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, length = int(hunk[1]), int(hunk[2] or 1)
            lines.setdefault(path, set()).update(range(first, first + length))
    return lines


def draw(root: Path, seed: int, count: int, changed: Mapping[str, set[int]] | None = None) -> list[Mutation]:
    """As many mutations of each operator, one of a function at most; a hash of names and texts draws them.

    `changed`: the lines of each file that they may begin in, all if None.
    """
    by_function: dict[tuple[str, str, str], list[Mutation]] = {}
    for path in sources(root):
        text = path.read_bytes()
        for mutation in mutations(path, root):
            line = text.count(b"\n", 0, mutation.start) + 1
            if changed is None or line in changed.get(mutation.path, ()):
                by_function.setdefault((mutation.operator, mutation.path, mutation.function), []).append(mutation)

    def rank(*names: str) -> str:
        return hashlib.sha256("\n".join([str(seed), *names]).encode()).hexdigest()

    drawn: list[Mutation] = []
    for number, operator in enumerate(OPERATORS):
        places = sorted((key for key in by_function if key[0] == operator), key=lambda key: rank(*key))
        share = count // len(OPERATORS) + (number < count % len(OPERATORS))
        drawn += [min(by_function[key], key=lambda mutation: rank(mutation.key)) for key in places[:share]]
    return drawn


def named(root: Path, keys: Sequence[str]) -> list[Mutation]:
    """The mutations with these keys, the first of each; the keys of others are errors."""
    first: dict[str, Mutation] = {}
    for path in sources(root):
        for mutation in mutations(path, root):
            first.setdefault(mutation.key, mutation)
    if unknown := [key for key in keys if key not in first]:
        raise SystemExit("no mutation of these sources has the key:\n" + "\n".join(unknown))
    return [first[key] for key in keys]


def scratch(folder: Path) -> Path:
    """A copy of what git tracks or would, of which both packages can be imported."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    for name in listed.stdout.decode().split("\0")[:-1]:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def run_tests(root: Path, tests: Sequence[str], limit: float, *options: str) -> tuple[int | None, str]:
    """The exit code, None if the time is up, and what was printed."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "--tb=no", "-rfE"]
    command += [f"--timeout={TEST_SECONDS}", *options, *tests]
    environment: Mapping[str, str] = {
        **os.environ,
        "PYTHONPATH": f"{root}{os.pathsep}{root / 'plugins'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
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


def try_mutation(mutation: Mutation, root: Path, limit: float) -> Outcome:
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


def confirm(outcomes: Sequence[Outcome], root: Path) -> list[Outcome]:
    """The same outcomes, where a test that fails without a mutation too caught nothing."""
    caught = sorted({outcome.detail for outcome in outcomes if outcome.name == "caught"})
    tests, files = [name for name in caught if "::" in name], [name for name in caught if name.endswith(".py")]
    red: set[str] = set()
    for chosen, options in (*[(tests, [])] * CONFIRMATIONS, (files, ["--collect-only"])):
        code, output = run_tests(root, chosen, 600, *options) if chosen else (0, "")
        if code is None:
            raise SystemExit("the tests that failed did not end in 10 minutes without a mutation; run fewer at a time")
        red |= {*failed_tests(output)}
    return [
        replace(outcome, name="survived", detail=f"{outcome.detail} fails without it too")
        if outcome.detail in red
        else outcome
        for outcome in outcomes
    ]


def cells(outcome: Outcome) -> list[str]:
    where = f"`{outcome.mutation.path}` `{outcome.mutation.function}`"
    change = f"`{shortened(outcome.mutation.before)}` → `{shortened(outcome.mutation.after)}`"
    detail = outcome.detail.removeprefix("tests/") if outcome.name == "caught" else outcome.detail
    return [where, outcome.mutation.operator, change, outcome.name, detail]


def as_json(number: int, outcome: Outcome) -> dict[str, Any]:
    mutation = outcome.mutation
    place = {"number": number, "path": mutation.path, "function": mutation.function, "operator": mutation.operator}
    change = {"before": mutation.before, "after": mutation.after}
    return {**place, **change, "outcome": outcome.name, "detail": outcome.detail, "seconds": round(outcome.seconds)}


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
    parser.add_argument("--minutes", type=float, default=math.inf, help="no mutation is begun later than this")
    parser.add_argument("--json", type=Path, help="file for the outcomes")
    parser.add_argument("--since", metavar="COMMIT", help="draw from the lines that changed since this commit")
    parser.add_argument("--keys", type=Path, help="file with the keys of mutations to try in place of a draw")
    arguments = parser.parse_args()
    changed = changed_lines(arguments.since) if arguments.since else None
    chosen = [*enumerate(draw(ROOT, arguments.seed, arguments.count, changed), 1)]
    if arguments.keys:
        chosen = [*enumerate(named(ROOT, arguments.keys.read_text(encoding="utf-8").splitlines()), 1)]
    chosen = [(number, mutation) for number, mutation in chosen if not arguments.only or number in arguments.only]
    if arguments.list:
        for number, mutation in chosen:
            print(f"{number}. {mutation.operator}: {mutation.key}\n   {' '.join(nearest_tests(mutation, ROOT))}")
        return
    with tempfile.TemporaryDirectory(prefix="seqpipe-mutations-") as folder:
        root = scratch(Path(folder))
        outcomes, clock = [], time.monotonic()
        if arguments.minutes < math.inf:  # the order drawn goes by operator, of which the last would be left out
            random.Random(arguments.seed).shuffle(chosen)
        for number, mutation in chosen:
            if time.monotonic() - clock > 60 * arguments.minutes:
                break
            outcomes.append(try_mutation(mutation, root, arguments.limit))
            print(f"{number}: {outcomes[-1].name}, {outcomes[-1].seconds:.0f} s, {mutation.key}", file=sys.stderr)
        outcomes = confirm(outcomes, root)
    chosen, drawn = chosen[: len(outcomes)], len(chosen)
    if arguments.json:
        arguments.json.write_text(
            json.dumps([as_json(n, o) for (n, _), o in zip(chosen, outcomes, strict=True)], indent=1)
        )
    columns = ("function", "operator", "change", "outcome", "by")  # or the nearest tests
    table = common.Table("mutations", f"seed{arguments.seed}", "number", *columns)
    for (number, _), outcome in zip(chosen, outcomes, strict=True):
        table.row(number, *cells(outcome))
    names = [outcome.name for outcome in outcomes]
    counts = ", ".join(f"{names.count(name)} {name}" for name in ("caught", "survived", "equivalent"))
    begun = f"{len(outcomes)}" + (f" of {drawn} begun" if len(outcomes) < drawn else " mutations")
    figures = {name: names.count(name) for name in ("caught", "survived", "equivalent")}
    common.record("mutations", "summary", [{"row": f"seed {arguments.seed}, {begun}", "figures": figures}])
    minutes = sum(outcome.seconds for outcome in outcomes) / 60
    print(f"\nSeed {arguments.seed}, {len(outcomes)} of {drawn}: {counts}; {minutes:.0f} minutes.")


if __name__ == "__main__":
    main()
