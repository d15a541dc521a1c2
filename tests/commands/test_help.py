"""The help of every command has examples that can be typed, fits the terminal, and cuts nothing."""

import contextlib
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import Install
from tiny_pipelines import run_process, seqpipe, succeed

from seqpipe.commands.app import app
from seqpipe.commands.help import command_examples

Complete = Callable[..., str]
ROOT: Any = typer.main.get_command(app)


def paths(command: Any = ROOT, path: str = "") -> Iterator[str]:
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from paths(child, f"{path} {name}".strip())


PATHS = [*paths()]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path or "seqpipe")
def test_a_help_has_examples_and_plain_words_within_80_columns(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = succeed(*path.split(), "--help")
    assert f"\nExamples:\n  seqpipe {path}".rstrip() in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    cut = [line for line in done.out.splitlines() if line.endswith("...") and "[KEY=VALUE]..." not in line]
    assert [line for line in cut if not line.startswith(("Usage", "  ["))] == []
    assert re.findall(r"<\w+( \w+)?>|\[\[|\{\w+\}|x>=", done.out) == []
    assert all(len(line) < 80 or " " in line for line in done.out.splitlines())


def test_arguments_and_options_stand_in_their_own_sections() -> None:
    head, arguments, options = re.split(r"\n(?:Arguments|Options):\n", seqpipe("run", "--help").out)
    assert head.startswith("Usage: seqpipe run FILE [KEY=VALUE]... [OPTIONS]\n")
    assert re.findall(r"^  (\S+)", arguments, re.M) == ["FILE", "[KEY=VALUE]..."]
    assert {name[:1] for name in re.findall(r"^  (\S+)", options, re.M)} == {"-"}


def test_every_word_of_a_long_text_stays_whole() -> None:
    assert "answer-span" in seqpipe("init", "--help").out
    assert "where a bundle's nodes run." in " ".join(seqpipe("--help").out.split())


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> Complete:
    def run_completion(shell: str, line: str, word: int) -> str:
        variables = {"_SEQPIPE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line, "COMP_WORDS": line}
        variables |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "COMP_CWORD": str(word)}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        done = succeed()
        return done.out

    return run_completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("seqpipe pre", {"predict"}),
        ("seqpipe run x.yaml train.patie", {"train.patience="}),
        ("seqpipe check x.yaml encoder=lst", {"encoder=lstm"}),
        ("seqpipe train x.yaml encoder.0.use=lst", {"encoder.0.use=lstm"}),
        ("seqpipe run x.yaml nothing=lst", set()),
        ("seqpipe plugins sho", {"show"}),
    ],
)
def test_a_shell_completes_keys_and_components(shell: str, line: str, offered: set[str], complete: Complete) -> None:
    words = re.findall(r"[\w.=-]+", complete(shell, line, len(line.split()) - 1))
    assert {word for word in words if word.startswith(line.split()[-1])} == offered


def test_bash_parts_an_override_at_its_equals_sign(complete: Complete) -> None:
    assert complete("bash", "seqpipe run x.yaml encoder = lst", 5) == "lstm\n"


COUNTED = """
import pathlib
with pathlib.Path(__file__).with_suffix(".imported").open("a") as file:
    file.write("x")
from seqpipe.plugin import hookimpl

@hookimpl
def register_encoders():
    return {"acme-fast": "torch:nn"}
"""


def test_components_are_completed_from_a_cache_until_an_installation_changes(install: Install, tmp_path: Path) -> None:
    install("acme-counted", COUNTED)
    site, module, imported = (tmp_path / "site" / name for name in (".", "acme_counted.py", "acme_counted.imported"))
    variables = {"PYTHONPATH": str(site), "SEQPIPE_CACHE": str(tmp_path / "cache")}
    variables["PYTHONDONTWRITEBYTECODE"] = "1"  # a module edited within a second, of the same size, looks compiled
    completion = {"_SEQPIPE_COMPLETE": "complete_bash", "COMP_WORDS": "seqpipe run x.yaml encoder = acme-"}

    def completed(**more: str) -> tuple[str, int]:
        done = run_process(folder=tmp_path, **variables, **completion, COMP_CWORD="5", **more)
        assert (done.code, done.err) == (0, "")
        return done.out, len(imported.read_text())

    assert completed() == completed() == ("acme-fast\n", 1)
    (cache,) = (tmp_path / "cache").iterdir()
    for count, damaged in enumerate((b"{", b"[]", b'{"key": []}'), 2):
        cache.write_bytes(damaged)
        assert completed() == ("acme-fast\n", count)
    metadata = (site / "acme_counted-1.0.dist-info").rename(site / "acme_counted-1.1.dist-info") / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.0", "1.1"))
    module.write_text(COUNTED.replace("acme-fast", "acme-faster"))
    assert completed() == completed() == ("acme-faster\n", 5)
    module.write_text(COUNTED.replace("acme-fast", "acme-edited"))
    assert completed() == ("acme-faster\n", 5)  # the version is the same, so this takes a listing
    assert "acme-edited" in run_process("plugins", folder=tmp_path, **variables).out
    assert completed() == ("acme-edited\n", 6)
    assert completed(SEQPIPE_PLUGINS="off") == ("\n", 6)


def test_bash_puts_no_blank_behind_a_key_and_one_behind_a_value(tmp_path: Path) -> None:
    script = run_process("--show-completion", "bash", folder=tmp_path, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert script.code == 0, script.err
    (tmp_path / "seqpipe").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m seqpipe "$@"\n')
    (tmp_path / "seqpipe").chmod(0o755)
    (tmp_path / "completion").write_text(script.out)
    ours, theirs = pty.openpty()
    streams: Any = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "cwd": tmp_path, "start_new_session": True}
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PS1": "", "TERM": "dumb"}
    with subprocess.Popen(["bash", "--norc", "--noprofile", "-i"], env=variables, **streams) as bash:
        os.close(theirs)
        os.write(ours, b"source ./completion\n")
        for word in ("train.patie\t3", "encoder.use=lst\t8", "head=cr\t9"):
            os.write(ours, f"seqpipe run x.yaml {word}\x01echo \n".encode())  # Ctrl-A: to the start of the line
        os.write(ours, b"exit\n")
        written = b""
        with contextlib.suppress(OSError):
            while block := os.read(ours, 4096):
                written += block
        bash.wait(60)
    os.close(ours)
    prefix, text = "seqpipe run x.yaml ", written.decode().replace("\a", "")
    printed = [line for line in text.splitlines() if line.startswith(prefix) and not re.search(r"echo|\t", line)]
    words = dict.fromkeys(line.removeprefix(prefix) for line in printed)
    assert [*words] == ["train.patience=3", "encoder.use=lstm 8", "head=crf 9"]


def test_the_commands_stand_in_groups() -> None:
    out = seqpipe("--help").out
    groups = ("Everyday", "Evaluation", "Data", "Deploy", "Extend", "Research", "Options")
    places = [out.index(f"\n{group}:\n") for group in groups]
    assert places == sorted(places)
    assert places[0] < out.index("  run ") < places[1]
    assert places[1] < out.index("  merge ") < places[2]
    assert places[3] < out.index("  deploy ") < places[4] < out.index("  plugins ") < places[5]


@pytest.mark.parametrize("example", sorted({example for path in PATHS for example in command_examples(path)}))
def test_an_example_is_a_command_line_that_is_understood(example: str) -> None:
    command, arguments = ROOT, shlex.split(example)[1:]
    while arguments and arguments[0] in getattr(command, "commands", {}):
        command = command.commands[arguments.pop(0)]
    with command.make_context("seqpipe", arguments, resilient_parsing=False) as context:
        assert context.params is not None
