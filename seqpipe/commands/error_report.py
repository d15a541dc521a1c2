"""What a person reads about an error that ends a command."""

from __future__ import annotations

import errno
import os
import sys

from seqpipe.console import printable
from seqpipe.errors import ConfigError, SeqpipeError

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


def report(error: SeqpipeError) -> None:
    """Write an error of seqpipe to standard error."""
    text = str(error)
    if isinstance(error, ConfigError):
        count = len(error.problems)
        text += f"\n{count} problem{'s' if count > 1 else ''}; nothing was run"
    sys.stderr.write(printable(text) + "\n")  # messages quote files, which strangers may have written


def report_system_error(error: OSError | MemoryError) -> None:
    """Write to standard error what failed, where, and the cure."""
    if isinstance(error, MemoryError):
        message = "out of memory; give shorter texts, a smaller train.batch_tokens, or fewer --threads"
    else:
        cure = _CURES.get(error.errno or 0, "seqpipe --debug shows where it happened")
        message = f"{error.filename or 'standard output or error'}: {error.strerror or error}; {cure}"
    sys.stderr.write(f"{message}\n")


def drop_unwritable_output() -> None:
    """Discard what standard output did not take.

    That was reported once; Python would try again at its end, and end with code 120.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
