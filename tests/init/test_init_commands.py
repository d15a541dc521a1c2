"""Every command that `init` prints for the heads, the corpus and the cases runs, and writes what it says."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from data_files import write_files
from test_init_heads import HEADS

from seqpipe.errors import SeqpipeError
from seqpipe.init import init_yaml

CORPUS = Path(__file__).parents[1] / "corpus" / "init"
CASES = Path(__file__).parents[2].parent / "shared" / "cases"
SHELL = re.compile(r"`((?:jq|awk|sed|cat|zcat|python3) [^`]*)`")
MAX_BYTES = 1_000_000


def folders(tmp_path: Path) -> Iterator[tuple[str, Path, str]]:
    """A name, a folder and a file in it, of the heads, the corpus and the cases."""
    for head in HEADS:
        yield head["name"], write_files(tmp_path / head["name"], head["files"]), head["file"]
    sources = [
        *CORPUS.glob("*/*"),
        *CASES.glob("t4-files-*/*"),
        *CASES.glob("t4-reports-*/*"),
        *CASES.glob("files-*/*"),
    ]
    for source in sources:
        is_data = source.is_file() and source.suffix not in (".py", ".md", ".yaml", ".sh") and source.name != "README"
        if is_data and source.stat().st_size < MAX_BYTES:
            folder = tmp_path / source.parent.name
            if not folder.exists():
                shutil.copytree(source.parent, folder)
            yield f"{source.parent.name}/{source.name}", folder, source.name


def printed(file: str) -> list[str]:
    """The messages of `init` for a file: what it says, or the error."""
    messages: list[str] = []
    try:
        init_yaml(Path(file), Path("made.yaml"), messages.append)
    except SeqpipeError as error:
        messages.append(str(error))
    Path("made.yaml").unlink(missing_ok=True)
    return messages


def run_init(command: str) -> str:
    """Run a command `seqpipe init FILE --option value …` in this process; return its error, or nothing."""
    _, _, file, *arguments = shlex.split(command)
    values: dict[str, list[str]] = {}
    for option, value in zip(arguments[::2], arguments[1::2], strict=True):
        values.setdefault(option, []).append(value)
    header = values["--header"][0] == "yes" if "--header" in values else None
    task, target = (values.get(option, [None])[0] for option in ("--task", "--target"))
    try:
        init_yaml(
            Path(file), Path("made.yaml"), task=task, target=target, texts=values.get("--text", []), header=header
        )
    except SeqpipeError as error:
        return str(error)
    finally:
        Path("made.yaml").unlink(missing_ok=True)
    return ""


def test_every_printed_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures, tried = [], 0
    for name, folder, file in folders(tmp_path):
        monkeypatch.chdir(folder)
        text = "\n".join(printed(file))
        commands = [match[0] for match in re.finditer(r"seqpipe init [^\n`]*--\w+ [^\n`;]*", text)]
        for command in commands:
            tried += 1
            if problem := run_init(command):
                failures.append(f"{name}: {command}: {problem[:200]}")
        for command in SHELL.findall(text):
            tried += 1
            modules = re.findall(r"import (\w+)", command)
            if shutil.which(command.split()[0]) is None or not all(map(find_spec, modules)):
                continue
            done = subprocess.run(command, shell=True, capture_output=True, text=True)
            is_empty = " > " in command and not Path(shlex.split(command)[-1]).stat().st_size
            if done.returncode or is_empty:
                failures.append(f"{name}: {command}: {done.stderr[:200]}")
    assert tried > 100
    assert "\n".join(failures) == ""
