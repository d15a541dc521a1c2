"""A page of the documentation in, its code blocks run in order in a copy of the checkout, what went wrong out.

`python tests/support/documents.py [--fresh] [--long] PAGE…` runs pages; `run_page` is the same for tests. How a block
is taken:

| block | what is done |
|---|---|
| sh | bash -euo pipefail; folder and variables stay for the next block; `# exit code 2` at a line's end: it ends so |
| python | all of a page share one interpreter; the namespace stays |
| text, json after one of them | what it must have printed; `…` stands for anything, numbers in json may be 0.001 off |
| any with `title="path"` | written to that file |
| yaml, json, toml | must parse |
| other | nothing |

A comment `<!-- run: fresh -->` before a block: only with --fresh, which makes an empty environment first (without, the
environment is a layer over the running one). `<!-- run: long -->`: only with --long, for what trains at full size; a
notebook shows it as text. `<!-- run: no, because … -->`: never.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import tomllib
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from forks import ADDRESS, write_client

ROOT = Path(__file__).resolve().parents[2]
SHELLS, OUTPUTS = ("sh", "bash"), ("text", "json")
CLOSE = 0.001  # how far a number of expected JSON may be off
COMMANDS = ("seqpipe", "pytest", "pip", "mkdocs")
FORKED = ("seqpipe", "pytest")  # of these, those that may be forks
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`\n]*)$")
_MARK = re.compile(r"<!-- run: (?P<how>fresh|long|no)\b[^\n]*-->")
_EXIT = re.compile(r"# exit code (\d+)$", re.MULTILINE)


class PageError(AssertionError):
    """A block that did not do what the page says; the message begins with the page and the line."""


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its title, the line its fence stands in, and how the page says to run it."""

    language: str
    code: str
    line: int
    title: str = ""
    how: str = ""


@dataclass
class Place:
    """Where a page runs: a folder that is a copy of the checkout, and the variables of its environment."""

    folder: Path
    variables: dict[str, str]
    fresh: bool
    _python: subprocess.Popen[str] | None = field(default=None, repr=False)
    _groups: list[int] = field(default_factory=list, repr=False)  # of processes, of the shells so far

    def shell(self, code: str) -> tuple[int, str]:
        """Runs lines by bash; where it stands and its variables are kept for the next block."""
        state = self.folder.parent / "state"
        script = f"trap 'code=$?; {{ pwd; env -0; }} > \"{state}\"; exit $code' EXIT\nset -euo pipefail\n{code}"
        with subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.variables["PWD"],
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as done:
            self._groups.append(done.pid)
            output, _ = done.communicate()
        where, _, rest = state.read_text().partition("\n")
        self.variables = dict(pair.split("=", 1) for pair in rest.split("\0") if "=" in pair) | {"PWD": where}
        return done.returncode, output

    def python(self, code: str) -> tuple[int, str]:
        """Runs lines in the page's interpreter."""
        if self._python is None:
            self._python = subprocess.Popen(
                ["python", "-c", _INTERPRETER],
                cwd=self.variables["PWD"],
                env=self.variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps([self.variables["PWD"], code]) + "\n")
        self._python.stdin.flush()
        answer = self._python.stdout.readline()
        if not answer:
            return 1, f"the interpreter ended with code {self._python.wait()}"
        failed, output = json.loads(answer)
        return failed, output

    def close(self) -> None:
        """Ends the page's interpreter, and what a page that failed has left in the background, such as a server."""
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self._groups.clear()
        if self._python is not None:
            self._python.communicate()
            self._python = None


_INTERPRETER = """
import contextlib, io, json, os, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    folder, code = json.loads(line)
    os.chdir(folder)
    said, failed = io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            exec(compile(code, "block", "exec"), names)
        except BaseException:
            failed = 1
            traceback.print_exc()
    print(json.dumps([failed, said.getvalue()]), flush=True)
"""


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page in order; PageError for one that never ends."""
    lines = page.splitlines()
    number, how = 0, ""
    while number < len(lines):
        line, opening = lines[number], _FENCE.match(lines[number])
        number += 1
        if opening is None:
            mark = _MARK.search(line)
            how = mark["how"] if mark else how if not line.strip() else ""
            continue
        start, body = number, []
        while number < len(lines) and lines[number].strip() != opening["fence"]:
            body.append(lines[number])
            number += 1
        if number == len(lines):
            raise PageError(f"line {start}: this block never ends; close it with {opening['fence']}")
        number += 1
        info = opening["info"].strip()
        title = re.search(r'title="([^"]*)"', info)
        code = textwrap.dedent("\n".join(body)) + "\n"
        yield Block(info.split(" ")[0].strip("{}."), code, start, title[1] if title else "", how)
        how = ""


def run_page(path: Path, place: Place, long: bool = False) -> int:
    """Runs a page's blocks in order and says how many; PageError at the first that does not do what the page says."""
    skipped = {"no", *(() if place.fresh else ("fresh",)), *(() if long else ("long",))}
    count, output, runnable = 0, None, ("python", *SHELLS)
    page = [*blocks(path.read_text(encoding="utf-8"))]
    try:
        for block, after in itertools.zip_longest(page, page[1:]):
            try:
                if block.how in skipped:
                    output = None
                    continue
                if block.title:
                    target = Path(place.variables["PWD"], block.title)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(block.code, encoding="utf-8")
                elif block.language in runnable:
                    silent = after is None or bool(after.title) or after.language not in OUTPUTS
                    with shared_runs(block, place) if silent else contextlib.nullcontext():
                        output = _run(block, place)
                    count += 1
                elif block.language in OUTPUTS and output is not None:
                    compare(block, output)
                    output = None
                else:
                    parse(block)
            except PageError as error:
                raise PageError(f"{path}:{block.line}: {error}") from None
    finally:
        place.close()
    return count


def _run(block: Block, place: Place) -> str:
    code, output = (place.python if block.language == "python" else place.shell)(block.code)
    said = _EXIT.search(block.code)
    expected = int(said[1]) if said else 0
    if code != expected:
        raise PageError(f"this block ended with code {code}, not {expected}:\n{block.code}\n{output}")
    return output


_RUN = re.compile(r"^seqpipe run (\S+\.yaml)((?: [\w.=/-]+)*)(?:  +#.*)?$", re.MULTILINE)


@contextlib.contextmanager
def shared_runs(block: Block, place: Place) -> Iterator[None]:
    """Lets a page find what `seqpipe run` made for another one, where both typed the same: it then has nothing to do.

    Whether the run was made from the same files is looked at by the command itself. No page finds anything in an
    environment of its own, nor where `SEQPIPE_CACHE` names no folder.
    """
    folder, cache = Path(place.variables["PWD"]), place.variables.get("SEQPIPE_CACHE")
    if place.fresh or not cache or block.language not in SHELLS:
        yield
        return
    known = {}
    for found in _RUN.finditer(block.code):
        content = (folder / found[1]).read_bytes() if (folder / found[1]).exists() else b""
        typed = hashlib.sha256(f"{found[1]}{found[2]}\n".encode() + content).hexdigest()
        known[typed] = Path(cache, "runs", typed)
    before = set(folder.glob("runs/*"))
    for shared in known.values():
        for run in shared.glob("*"):
            if folder / "runs" / run.name not in before:
                shutil.copytree(run, folder / "runs" / run.name)
    yield
    made = set(folder.glob("runs/*")) - before
    if len(known) == len(made) == 1 and not next(iter(known.values())).exists():
        (shared,), (run,) = known.values(), made
        shared.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=shared.parent))
        shutil.copytree(run, part / run.name)
        with contextlib.suppress(OSError):  # another process was there first
            part.rename(shared)


def compare(block: Block, output: str) -> None:
    """PageError unless the output is what the block says."""
    if block.language == "json":
        try:
            wanted, got = ([json.loads(line) for line in _documents(text)] for text in (block.code, output))
        except ValueError as error:
            raise PageError(f"not JSON: {error}:\n{output}") from error
        same = close(wanted, got)
    else:
        same = _pattern(_tidy(block.code)).fullmatch(_tidy(output)) is not None
    if not same:
        raise PageError(f"the output is not what the page says. It says:\n{block.code}\nThe output is:\n{output}")


def _pattern(expected: str) -> re.Pattern[str]:
    """`…` in a line stands for anything in that line; as a line of its own for any lines, or none."""
    parts = []
    for line in expected.splitlines():
        parts.append(r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n")
    return re.compile("".join(parts))


def _documents(text: str) -> list[str]:
    """One JSON document, or one a line."""
    try:
        json.loads(text)
    except ValueError:
        return [line for line in text.splitlines() if line.strip()]
    return [text]


def close(wanted: Any, got: Any) -> bool:
    """Equal but for numbers that are not whole, which may differ a little."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        return wanted.keys() == got.keys() and all(close(wanted[key], got[key]) for key in wanted)
    if isinstance(wanted, list) and isinstance(got, list):
        return len(wanted) == len(got) and all(map(close, wanted, got))
    if isinstance(wanted, float) and isinstance(got, float):
        return abs(wanted - got) <= CLOSE
    return bool(type(wanted) is type(got) and wanted == got)


def _tidy(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


def parse(block: Block) -> None:
    """PageError for data that cannot be read."""
    readers = {"yaml": yaml.safe_load, "json": lambda text: [*map(json.loads, _documents(text))], "toml": tomllib.loads}
    try:
        readers.get(block.language, str)(block.code)
    except (ValueError, yaml.YAMLError) as error:
        raise PageError(f"this {block.language} cannot be read: {error}") from error


# Where pages run


_KEPT = ("HOME", "LANG", "TMPDIR", "OMP_NUM_THREADS", "SEQPIPE_CACHE", ADDRESS)  # of the variables around a page


def make_place(parent: Path, fresh: bool) -> Place:
    """A copy of the checkout in `parent`, and an environment of its own beside it."""
    folder, environment = parent / "seqpipe", parent / "env"
    copy_checkout(folder)
    if fresh:
        venv.create(environment, with_pip=True)
        paths = [environment / "bin"]
    else:
        layer(environment)
        paths = [environment / "bin", Path(sys.executable).parent]
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    pip = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_"))}
    # Where everything is installed, the checkout's own setting of processes is for its whole suite.
    offline = {} if fresh else {"PIP_NO_INDEX": "1", "PYTEST_ADDOPTS": "-n 0"}
    return Place(
        folder,
        {
            **kept,
            **pip,
            **offline,
            "PATH": os.pathsep.join([*map(str, paths), *os.environ["PATH"].split(os.pathsep)]),
            "VIRTUAL_ENV": str(environment),
            "PWD": str(folder),
            "PYTHONUTF8": "1",
            "HF_HUB_OFFLINE": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "COLUMNS": "120",
        },
        fresh,
    )


def copy_checkout(folder: Path) -> None:
    """The files of the checkout, new ones too, without what git ignores."""
    asked = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def layer(environment: Path) -> None:
    """An environment over the running one: it sees everything installed there, and what is installed stays in it."""
    venv.create(environment, with_pip=False)
    mine = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    below = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (mine / "below.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in sorted(below)))
    (environment / "real").mkdir()
    for name in COMMANDS:
        command = environment / ("real" if name in FORKED else "bin") / name
        command.write_text(_COMMAND.format(python=environment / "bin" / "python", name=name))
        command.chmod(0o755)
    for name in FORKED:
        write_client(environment / "bin" / name, environment / "real" / name, environment)


_COMMAND = """#!{python}
import sys
from importlib.metadata import entry_points
if __name__ == "__main__":  # as pip writes it: processes that are spawned import this file
    if sys.argv[:2] == [sys.argv[0], "install"] and "{name}" == "pip":
        sys.argv.insert(2, "--no-build-isolation")  # what builds packages is in the environment below
    sys.exit(entry_points(group="console_scripts")["{name}"].load()())
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Runs the code blocks of pages, one page after another in one place.")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--fresh", action="store_true", help="in an environment that is empty at first")
    parser.add_argument("--long", action="store_true", help="with the blocks that train at full size")
    parser.add_argument("--place", type=Path, help="a folder for the checkout's copy and the environment; it is kept")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as parent:
        folder = given.place or Path(parent)
        folder.mkdir(exist_ok=True)
        place = make_place(folder, given.fresh)
        for page in given.pages:
            place.variables["PWD"] = str(place.folder)
            try:
                print(f"{page}: {run_page(page, place, given.long)} blocks", flush=True)
            except PageError as error:
                print(error, file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
