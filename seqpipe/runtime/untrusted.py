"""Verification of an untrusted bundle in a process with limits on memory and time.

It is not a sandbox: the process may read everything that the user may read.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqpipe.errors import BundleError, DataError, EnvError, SeqpipeError, UsageError

if TYPE_CHECKING:
    from seqpipe.runtime.opened import Verification

_MAX_MESSAGE_CHARACTERS = 10_000  # characters of a message; as JSON they fit into a pipe
_PIPE = 1 << 16  # bytes that a pipe holds
_KINDS: dict[int, type[SeqpipeError]] = {cls.exit_code: cls for cls in (UsageError, DataError, BundleError, EnvError)}


@dataclass(frozen=True)
class RLimits:
    """Limits of the process: GiB of address space, and seconds of both wall-clock and CPU time."""

    memory: float = 4.0
    seconds: float = 120.0


def verify_untrusted(path: Path, limits: RLimits, sha256: str | None = None) -> Verification:
    """Return the result of `runtime.verify_bundle` on the CPU, from a child process with limits.

    Raises:
        BundleError: if the bundle is refused, answers differently, or exceeds the limits.
        EnvError: if this platform cannot limit a process.
    """
    if not all(0 < limit < math.inf for limit in (limits.memory, limits.seconds)):
        raise UsageError("--memory and --timeout must be numbers above 0")
    _resource()
    numbers = int(limits.memory * 2**30), int(limits.seconds) + 1  # bytes and seconds, as the system takes them
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as answer:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(path), str(writer), *map(str, numbers), sha256 or ""],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # native code may print names from the bundle
            stderr=subprocess.DEVNULL,
            pass_fds=[writer],
            start_new_session=True,
        )
        os.close(writer)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(limits.seconds)
            late = child.returncode is None
        finally:
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        said = b"" if late else answer.read(_PIPE)
    return _result(path, limits, late, child.returncode, said)


def _resource() -> Any:
    try:
        import resource
    except ImportError as error:
        message = "this platform cannot limit the memory and time of a process (it has no setrlimit)"
        raise EnvError(f"--untrusted: {message}; verify the bundle in a container or a virtual machine") from error
    return resource


def _result(path: Path, limits: RLimits, late: bool, code: int, said: bytes) -> Verification:
    """Return the report of the child process; raise an error if it ended without one."""
    if late or code == -signal.SIGXCPU:
        raise BundleError(f"{path}: took more than {limits.seconds:g} seconds, and was ended; --timeout allows more")
    if not said:
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        problem = f"the process that opened it ended {how}: it needs more than {limits.memory:g} GiB"
        fix = "--memory allows more"
        raise BundleError(f"{path}: {problem} ({fix}), or makes onnxruntime or tokenizers crash; do not use it")
    result = json.loads(said)
    if "error" in result:
        raise _KINDS.get(result["exit_code"], BundleError)(result["error"])
    verification: Verification = result
    return verification


def _limit(memory: int, seconds: int) -> None:
    resource = _resource()
    wanted = {"RLIMIT_AS": memory, "RLIMIT_CPU": seconds, "RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0}
    for name, value in wanted.items():
        try:
            resource.setrlimit(getattr(resource, name), (value, value))
        except (AttributeError, ValueError, OSError) as error:
            message = f"this platform does not set {name} of a process to {value} ({error})"
            raise EnvError(f"--untrusted: {message}; verify the bundle in a container or a virtual machine") from error


def main(path: str, writer: str, memory: str, seconds: str, sha256: str) -> None:
    """Entry point of the child process: set the limits before importing anything that reads the bundle."""
    try:
        _limit(int(memory), int(seconds))
        from seqpipe.runtime.opened import verify_bundle

        result = dict(verify_bundle(Path(path), "cpu", threads=1, sha256=sha256 or None))
    except SeqpipeError as error:
        result = {"error": str(error)[:_MAX_MESSAGE_CHARACTERS], "exit_code": error.exit_code}
    except MemoryError:
        result = {"error": f"{path}: needs more memory than the limit; --memory allows more", "exit_code": 6}
    with os.fdopen(int(writer), "w") as answer:
        json.dump(result, answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
