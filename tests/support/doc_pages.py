"""Run the code blocks of a page of the documentation in order, in a copy of the checkout.

`python tests/support/doc_pages.py [--fresh] [--long] PAGE…` runs pages; `run_page` is the same for tests.

| block | action |
|---|---|
| sh | bash -euo pipefail; folder and variables stay for the next block; `# exit code 2` at a line's end: it ends so |
| python | all of a page share one interpreter; the namespace stays |
| text, json after one of them | the expected output; `…` stands for anything, numbers in json may be 0.001 off |
| any with `title="path"` | written to that file |
| yaml, json, toml | must parse |
| other | nothing |

A comment `<!-- run: fresh -->` before a block: only with --fresh, which makes an empty environment first (without, the
environment is a layer over the running one). `<!-- run: long -->`: only with --long, for what trains at full size; a
notebook shows it as text. `<!-- run: no, because … -->`: never.
"""

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
from forked_commands import ADDRESS, write_client
from repository_scripts import ROOT
from second_runtime import matches_golden

SHELLS, OUTPUTS = ("sh", "bash"), ("text", "json")
JSON_TOLERANCE = 0.001  # of expected numbers that are not whole
COMMANDS = ("seqpipe", "pytest", "pip", "mkdocs")
FORKED = ("seqpipe", "pytest")  # of these, those that may be forks
_FENCE = re.compile(r"^ *(?P<fence>`{3,}|~{3,})(?P<info>[^`\n]*)\n", re.MULTILINE)
_BLOCK = re.compile(_FENCE.pattern + r"(?P<code>.*?)^[ \t]*(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- run: (?P<condition>fresh|long|no)\b[^\n]*-->[^\n]*\s*\Z")  # before a block
_EXIT = re.compile(r"# exit code (\d+)$", re.MULTILINE)


class PageError(AssertionError):
    """A block did not do what the page says; the message begins with the page and the line."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page, the number of its first line, and the condition of the comment before it."""

    language: str
    code: str
    line: int
    title: str = ""
    condition: str = ""


@dataclass
class Checkout:
    """A copy of the checkout in which pages run, and the variables of its environment."""

    folder: Path
    variables: dict[str, str]
    fresh: bool
    _python: subprocess.Popen[str] | None = field(default=None, repr=False)
    _groups: list[int] = field(default_factory=list, repr=False)  # of processes, of the shells so far

    @property
    def _settings(self) -> dict[str, Any]:
        """The settings of a process in the current folder."""
        return {"cwd": self.variables["PWD"], "env": self.variables, "stdout": subprocess.PIPE, "text": True}

    def shell(self, code: str) -> tuple[int, str]:
        """Run lines by bash; keep its folder and its variables for the next block."""
        state = self.folder.parent / "state"
        script = f"trap 'code=$?; {{ pwd; env -0; }} > \"{state}\"; exit $code' EXIT\nset -euo pipefail\n{code}"
        with subprocess.Popen(
            ["bash", "-c", script],
            **self._settings,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            self._groups.append(process.pid)
            output, _ = process.communicate()
        folder, _, variables = state.read_text().partition("\n")
        self.variables = dict(pair.split("=", 1) for pair in variables.split("\0") if "=" in pair) | {"PWD": folder}
        return process.returncode, output

    def python(self, code: str) -> tuple[int, str]:
        """Run lines in the page's interpreter."""
        if self._python is None:
            self._python = subprocess.Popen(["python", "-c", _INTERPRETER], **self._settings, stdin=subprocess.PIPE)
        self._python.stdin.write(json.dumps([self.variables["PWD"], code]) + "\n")
        self._python.stdin.flush()
        answer = self._python.stdout.readline()
        if not answer:
            return 1, f"the interpreter ended with code {self._python.wait()}"
        failed, output = json.loads(answer)
        return failed, output

    def close(self) -> None:
        """End the page's interpreter, and the background processes of a page that failed, such as a server."""
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
    output, failed = io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            exec(compile(code, "block", "exec"), names)
        except BaseException:
            failed = 1
            traceback.print_exc()
    print(json.dumps([failed, output.getvalue()]), flush=True)
"""


def code_blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page in order; PageError for one that never ends."""
    end = 0
    for match in _BLOCK.finditer(page):
        mark, title = _MARK.search(page, end, match.start()), re.search(r'title="([^"]*)"', match["info"])
        language, end = match["info"].strip().split(" ")[0].strip("{}."), match.end()
        line = page.count("\n", 0, match.start()) + 1
        how = mark["condition"] if mark else ""
        yield Block(language, textwrap.dedent(match["code"]), line, title[1] if title else "", how)
    if opening := _FENCE.search(page, end):
        line = page.count("\n", 0, opening.start()) + 1
        raise PageError(f"line {line}: this block never ends; close it with {opening['fence']}")


def run_page(path: Path, place: Checkout, long: bool = False) -> int:
    """Run the blocks of a page in order and return their number; PageError at the first that fails."""
    skipped = {"no", *(() if place.fresh else ("fresh",)), *(() if long else ("long",))}
    count, output, runnable = 0, None, ("python", *SHELLS)
    page = [*code_blocks(path.read_text(encoding="utf-8"))]
    try:
        for block, after in itertools.zip_longest(page, page[1:]):
            try:
                if block.condition in skipped:
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
                    compare_output(block, output)
                    output = None
                else:
                    check_syntax(block)
            except PageError as error:
                raise PageError(f"{path}:{block.line}: {error}") from None
    finally:
        place.close()
    return count


def _run(block: Block, place: Checkout) -> str:
    """The output of a block, which ends as its comment states."""
    code, output = (place.python if block.language == "python" else place.shell)(block.code)
    stated = _EXIT.search(block.code)
    expected = int(stated[1]) if stated else 0
    if code != expected:
        raise PageError(f"this block ended with code {code}, not {expected}:\n{block.code}\n{output}")
    return output


_RUN = re.compile(r"^seqpipe run (\S+\.yaml)((?: [\w.=/-]+)*)(?:  +#.*)?$", re.MULTILINE)


@contextlib.contextmanager
def shared_runs(block: Block, place: Checkout) -> Iterator[None]:
    """Share the runs of `seqpipe run` between pages with the same command: the second then has nothing to do.

    The command itself checks that the run is of the same files. Nothing is shared with a fresh environment, nor if
    `SEQPIPE_CACHE` names no folder.
    """
    folder, cache = Path(place.variables["PWD"]), place.variables.get("SEQPIPE_CACHE")
    if place.fresh or not cache or block.language not in SHELLS:
        yield
        return
    shared_folders = set()
    for yaml_path, overrides in _RUN.findall(block.code):
        content = (folder / yaml_path).read_bytes() if (folder / yaml_path).exists() else b""
        digest = hashlib.sha256(f"{yaml_path}{overrides}\n".encode() + content).hexdigest()
        shared_folders.add(Path(cache, "runs", digest))
    before = set(folder.glob("runs/*"))
    for shared in shared_folders:
        for run in shared.glob("*"):
            if folder / "runs" / run.name not in before:
                shutil.copytree(run, folder / "runs" / run.name)
    yield
    new_runs = set(folder.glob("runs/*")) - before
    if len(shared_folders) == len(new_runs) == 1 and not min(shared_folders).exists():
        (shared,), (run,) = shared_folders, new_runs
        shared.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=shared.parent))
        shutil.copytree(run, part / run.name)
        with contextlib.suppress(OSError):  # another process was there first
            part.rename(shared)


def compare_output(block: Block, output: str) -> None:
    """PageError unless the output is what the block says."""
    if block.language == "json":
        try:
            wanted, got = (json_values(text) for text in (block.code, output))
        except ValueError as error:
            raise PageError(f"not JSON: {error}:\n{output}") from error
        same = matches_golden(got, wanted, JSON_TOLERANCE)
    else:
        same = _pattern(_tidy(block.code)).fullmatch(_tidy(output)) is not None
    if not same:
        raise PageError(f"the output is not what the page says. It says:\n{block.code}\nThe output is:\n{output}")


def _pattern(expected: str) -> re.Pattern[str]:
    """The pattern of an output: `…` stands for anything in its line, or as a complete line for any lines."""
    parts = []
    for line in expected.splitlines():
        parts.append(r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n")
    return re.compile("".join(parts))


def json_values(text: str) -> list[Any]:
    """The value of one JSON document, or one of each line."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def _tidy(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


def check_syntax(block: Block) -> None:
    """PageError for data that cannot be read."""
    readers = {"yaml": yaml.safe_load, "json": json_values, "toml": tomllib.loads}
    try:
        readers.get(block.language, str)(block.code)
    except (ValueError, yaml.YAMLError) as error:
        raise PageError(f"this {block.language} cannot be read: {error}") from error


_KEPT = ("HOME", "LANG", "TMPDIR", "OMP_NUM_THREADS", "SEQPIPE_CACHE", ADDRESS)  # of the variables around a page


def make_checkout(parent: Path, fresh: bool) -> Checkout:
    """Copy the checkout into `parent`, and make an environment beside it."""
    folder, environment = parent / "seqpipe", parent / "env"
    copy_checkout(folder)
    if fresh:
        venv.create(environment, with_pip=True)
        paths = [environment / "bin"]
    else:
        make_layered_environment(environment)
        paths = [environment / "bin", Path(sys.executable).parent]
    prefixes = ("PIP_", "SSL_", "REQUESTS_")
    variables = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(prefixes)}
    if not fresh:  # the checkout's number of processes is for its complete suite
        variables |= {"PIP_NO_INDEX": "1", "PYTEST_ADDOPTS": "-n 0"}
    variables |= {"PYTHONUTF8": "1", "HF_HUB_OFFLINE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "COLUMNS": "120"}
    path = os.pathsep.join([*map(str, paths), os.environ["PATH"]])
    return Checkout(folder, variables | {"PATH": path, "VIRTUAL_ENV": str(environment), "PWD": str(folder)}, fresh)


def copy_checkout(folder: Path) -> None:
    """Copy the files of the checkout, new ones too, without those that git ignores."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def make_layered_environment(environment: Path) -> None:
    """Make an environment over the running one, whose packages it sees; its own packages stay in it."""
    venv.create(environment, with_pip=False)
    site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    below = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    lines = [f"import site; site.addsitedir({path!r})\n" for path in below]
    (site_packages / "below.pth").write_text("".join(lines))
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
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as parent:
        folder = options.place or Path(parent)
        folder.mkdir(exist_ok=True)
        place = make_checkout(folder, options.fresh)
        for page in options.pages:
            place.variables["PWD"] = str(place.folder)
            try:
                print(f"{page}: {run_page(page, place, options.long)} blocks", flush=True)
            except PageError as error:
                print(error, file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
