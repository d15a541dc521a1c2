"""Commands as processes that are forked where everything is imported already: a page runs a dozen of them.

`Forks()` starts the process that forks. The command that `CLIENT` makes sends it its arguments, folder, variables and
standard streams, and ends with the exit code of the fork, which does all that the command does but Python's start and
the imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import site
import socket
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

ADDRESS = "SEQPIPE_TEST_FORKS"  # the variable that names the socket
# They import torch. (`serve` is for signals, which a client would have to pass on.)
FORKED = ("check", "distill-vectors", "evaluate", "explain", "export", "minimal-pairs", "robustness", "run", "train")
FORKED += ("vectors",)
# Not onnxruntime: it starts a thread when it is imported, and a fork would end in joining a thread that it lacks. Not
# transformers: it imports plugins of pytest, which then could not rewrite their assertions.
_IMPORTED = ("onnxscript", "torch.onnx.ops", "seqpipe.commands.app")
_IMPORTED += ("seqpipe.api.pipeline", "seqpipe.export.exporter", "seqpipe.training.trainer")
_IMPORTED += ("seqpipe.export.tracing.conversion", "torch.fx.experimental.validator", "torch.export._trace")
_MAX_REQUEST_BYTES = 1 << 20

CLIENT = """#!{python} -IS
import json, os, socket, sys
address = os.environ.get("{variable}")
if address is None or ({forked} and not {{*sys.argv[1:2]}} & {{*{forked}}}):
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect(address)
    request = [sys.argv, os.getcwd(), dict(os.environ), {environment!r}]
    socket.send_fds(server, [json.dumps(request).encode() + b"\\n"], [0, 1, 2])
    code = server.recv(100)
sys.exit(int(code or 1))
"""


def write_client(command: Path, real: Path, environment: Path) -> Path:
    """Make `command` a client; `real`, in the same environment, does what forks do not."""
    forked = FORKED if command.name == "seqpipe" else ()
    names = {"python": environment / "bin" / "python", "variable": ADDRESS, "environment": str(environment)}
    command.write_text(CLIENT.format(**names, forked=forked, real=str(real)))
    command.chmod(0o755)
    return command


class Forks:
    """The process that forks, from `with` to its end.

    Attributes:
        variables: Of an environment whose clients find it.
    """

    def __enter__(self) -> Forks:
        self._folder = tempfile.TemporaryDirectory(prefix="forks-")
        path = Path(self._folder.name, "s")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(100)
            command = [sys.executable, __file__, str(listener.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[listener.fileno()], start_new_session=True)
        self.variables = {ADDRESS: str(path)}
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()


def _serve(listener: socket.socket) -> Any:
    """Fork for each request; only a fork returns, with its request."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that report
    while True:
        connection, _ = listener.accept()
        if not os.fork():
            break
        connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listener.close()
    data, streams, _, _ = socket.recv_fds(connection, _MAX_REQUEST_BYTES, 3)
    while not data.endswith(b"\n"):
        data += connection.recv(_MAX_REQUEST_BYTES)
    if number := os.fork():
        _, status = os.waitpid(number, 0)
        connection.sendall(str(os.waitstatus_to_exitcode(status) % 256).encode())
        os._exit(0)
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    return json.loads(data)


def _become(arguments: list[str], folder: str, variables: dict[str, str], environment: str) -> None:
    """Turn this process into one that the environment's Python has started."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None
    sys.argv, sys.prefix, sys.exec_prefix = arguments, environment, environment
    sys.executable = str(Path(environment, "bin", "python"))
    site_packages = Path(environment, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
    before = sys.path[1:]  # without the folder of this file
    site.addsitedir(str(site_packages))
    added = [path for path in sys.path if path not in before]
    python_path = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [str(Path(arguments[0]).parent), *python_path, *added, *before]
    # Buffers of standard streams that this process has not used are empty; where a stream leads may have changed.
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        stream = open(number, mode, encoding="utf-8", closefd=False, buffering=1 if name == "stderr" else -1)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    import gc
    import importlib

    for module in _IMPORTED:
        importlib.import_module(module)
    gc.freeze()
    _become(*_serve(socket.socket(fileno=int(sys.argv[1]))))
    sys.exit(entry_points(group="console_scripts")[Path(sys.argv[0]).name].load()())
