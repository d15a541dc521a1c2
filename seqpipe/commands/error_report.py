"""What a person reads about an error that ends a command."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from seqpipe.console import printable
from seqpipe.errors import ConfigError, SeqpipeError, UsageError

_ROOM = "make room, or write to another place"
_FILE = "a file stands where a folder has to be; move it, or give another path"
_PERMISSION = "this user may not do that; give another path, or change its permissions"
_CURES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.ENOTDIR: _FILE,
    errno.EEXIST: _FILE,
    errno.EISDIR: "it is a folder; name a file in it",
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: "it cannot be written to; give another path",
}


def report(error: SeqpipeError, as_json: bool = False) -> None:
    """Write an error of seqpipe to standard error; with `--json` also to standard output."""
    text = str(error)
    if as_json:
        problems = [asdict(problem) for problem in error.problems] if isinstance(error, ConfigError) else []
        _print_json(error, error.exit_code, text, problems)
    if isinstance(error, ConfigError):
        count = len(error.problems)
        text += f"\n{count} problem{'s' if count > 1 else ''}; nothing was run"
    sys.stderr.write(printable(text) + "\n")  # messages quote files, which strangers may have written


def report_command_line(error: Any, as_json: bool = False) -> None:
    """Write click's error of a command line to standard error; with `--json` also to standard output."""
    error.show()
    if as_json:
        _print_json(UsageError(), error.exit_code, error.format_message(), [])


def report_system_error(error: OSError | MemoryError, exit_code: int, as_json: bool = False) -> None:
    """Write to standard error what failed, where, and the cure; with `--json` also to standard output."""
    if isinstance(error, MemoryError):
        message = "out of memory; give shorter texts, a smaller train.batch_tokens, or fewer --threads"
    else:
        cure = _CURES.get(error.errno or 0, "seqpipe --debug shows where it happened")
        message = f"{error.filename or 'standard output or error'}: {error.strerror or error}; {cure}"
    sys.stderr.write(f"{message}\n")
    if as_json:
        _print_json(error, exit_code, message, [])


def _print_json(error: Exception, exit_code: int, message: str, problems: Sequence[Mapping[str, Any]]) -> None:
    """Write an error to standard output as one JSON object; each of the problems in a YAML also has its place."""
    content: dict[str, Any] = {"kind": type(error).__name__, "exit_code": exit_code, "message": message}
    if problems:
        content["problems"] = problems
    with contextlib.suppress(OSError):  # standard output takes nothing more, and standard error has the message
        sys.stdout.write(json.dumps({"error": content}, indent=1) + "\n")


def drop_unwritable_output() -> None:
    """Discard what standard output did not take.

    That was reported once; Python would try again at its end, and end with code 120.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
