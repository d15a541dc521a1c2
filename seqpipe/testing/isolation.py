"""Checks of the time that a component's module takes to import, and of the files and addresses that its code uses."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from seqpipe.testing.report import Check, FaultError, NotApplicableError, Subject

IMPORT, ACCESS = "import", "no file or network access"
MOST_SECONDS = 1.0
TRIES = 3  # another process may have used the cores

_LATER = "Import slow modules inside the function that needs them, and do no work at module level"
_LIGHT = (
    "Readers, tokenizers and the module of the entry point are used where PyTorch is not installed: keep them in "
    "modules "
    'without torch, and offer components that need it as "package.module:Class"'
)
_LOCAL = (
    "Take a file as an option or ship it with the package (importlib.resources); data comes from the reader, learned "
    "values are in the weights. A component downloads nothing: download before the run"
)
_MODULE = "Delete the print, or use logging: standard output is for answers"

_SHARED = (
    "numpy tokenizers pydantic pluggy "
    "seqpipe.features.document seqpipe.features.vocabulary seqpipe.answers.tagging_schemes seqpipe.config.signature"
)
_TORCH = "torch seqpipe.nn.crf seqpipe.nn.loops seqpipe.nn.recurrent seqpipe.nn.search"
# Imports the module on each line of standard input in its own fork, so that none sees the imports of another.
_CODE = """
import contextlib, importlib, io, json, os, sys, tempfile, time

def clock():  # without the time in which this thread was ready and a busy machine had no processor for it
    waited = 0
    if os.path.exists("/proc/thread-self/schedstat"):
        with open("/proc/thread-self/schedstat") as file:
            waited = int(file.read().split()[1])
    return time.perf_counter() - waited / 1e9

def measure_import(name):
    printed, began, message = io.StringIO(), clock(), ""
    with contextlib.redirect_stdout(printed):
        try:
            importlib.import_module(name)
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
    return [clock() - began, "torch" in sys.modules, printed.getvalue(), message]

before, sys.path[:] = json.loads(sys.argv[1])
for module in before.split():
    importlib.import_module(module)
for line in sys.stdin:
    if not hasattr(os, "fork"):
        name, sys.path[:] = json.loads(line)
        print(json.dumps(measure_import(name)))
        break
    with tempfile.TemporaryFile("w+") as result, tempfile.TemporaryFile("w+") as output:
        if not (fork := os.fork()):
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            name, sys.path[:] = json.loads(line)
            json.dump(measure_import(name), result)
            result.flush()
            os._exit(0)
        _, status = os.waitpid(fork, 0)
        result.seek(0)
        output.seek(0)
        end = f"Python ended with code {os.waitstatus_to_exitcode(status)}: {output.read()[-400:].strip()}"
        print(result.read() or json.dumps([0.0, False, "", end]), flush=True)
"""


def import_check(subject: Subject) -> Check:
    """Return the check that the class's module is imported quickly, silently, and without torch where it must be."""
    needs_torch = subject.kind in ("embedding", "encoder", "head")
    return Check(IMPORT, lambda: check_import(subject.cls.__module__, needs_torch), _LATER)


def check_import(module: str, needs_torch: bool) -> None:
    """Check the import of a module in a new Python process, with torch already imported if the module may need it."""
    if module == "__main__":
        raise NotApplicableError("the class is defined in __main__, which no other Python process can import")
    seconds, torch, printed, error = _imported(module, needs_torch)
    if error:
        raise FaultError(
            f"{module} cannot be imported in a new Python: {error}", "Correct the cause that the message names"
        )
    if torch and not needs_torch:
        raise FaultError(f"{module} imports torch", _LIGHT)
    if seconds > MOST_SECONDS:
        beyond = " beyond torch" if needs_torch else ""
        raise FaultError(f"{module} takes {seconds:.1f} s to import{beyond}; the limit is {MOST_SECONDS:.0f} s", _LATER)
    if printed:
        raise FaultError(f"{module} prints when it is imported: {printed[:80]!r}", _MODULE)


@lru_cache
def _imported(module: str, needs_torch: bool) -> tuple[float, bool, str, str]:
    """Return the least seconds, whether torch was imported, the output, and the error."""
    best = _import(module, needs_torch)
    for _ in range(TRIES - 1):
        if best[0] > MOST_SECONDS and (needs_torch or not best[1]):  # an import of torch fails anyway
            best = min(best, _import(module, needs_torch))
    return best


def _import(module: str, needs_torch: bool) -> tuple[float, bool, str, str]:
    process = _importer(needs_torch)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([module, sys.path]) + "\n")
    process.stdin.flush()
    seconds, torch, printed, error = json.loads(process.stdout.readline())
    if os.name == "nt":  # Windows cannot fork
        process.communicate()
        _importer.cache_clear()
    return seconds, torch, printed.strip(), error


@lru_cache
def _importer(needs_torch: bool) -> subprocess.Popen[str]:
    """A Python process that has imported the modules every component may use; it lives as long as this process."""
    arguments = json.dumps([f"{_SHARED} {_TORCH}" if needs_torch else _SHARED, sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", _CODE, arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.communicate)
    return process


# Python reports files, addresses and processes to audit hooks. A hook cannot be removed, so there is a single one, and
# it listens only while a component is watched.

_NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.bind", "socket.sendto")
_PROCESS = ("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.startfile")
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree", "shutil.copyfile")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CODE_ENDINGS = (".py", ".pyc", ".pyd", ".so", ".dylib", ".dll")


class _Watch:
    """The files and addresses that the code of one package touches while it is watched."""

    def __init__(self, subject: Subject, allowed: tuple[Path, ...]):
        top = subject.cls.__module__.partition(".")[0]
        self.package, self.actions = top, dict[str, None]()
        places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        self.allowed = [Path(p).resolve() for p in (*places, sys.prefix, sys.base_prefix, "/dev", "/proc", "/sys")]
        file = getattr(sys.modules.get(top), "__file__", None)
        if file and Path(file).name == "__init__.py":
            self.allowed.append(Path(file).resolve().parent)
        self.allowed += [path.resolve() for path in allowed]

    def action(self, event: str, args: tuple[Any, ...]) -> str:
        if event == "open":
            return self.open_action(*args[:3])
        if event in ("os.listdir", "os.scandir"):
            return "" if args[0] is None or self.is_allowed(args[0]) else f"lists the folder {args[0]}"
        if event in _NETWORK:
            return f"uses the network ({event} {args[1:] if event.startswith('socket.c') else args})"
        if event in _PROCESS:
            return f"starts a process ({args[0]})"
        return f"changes files ({event} {args[0]})" if event in _CHANGES else ""

    def open_action(self, path: Any, mode: Any, flags: Any) -> str:
        if isinstance(path, int):
            return ""
        text = os.fsdecode(path)
        writes = any(sign in mode for sign in "wax+") if isinstance(mode, str) else bool((flags or 0) & _WRITES)
        if writes:
            return "" if "__pycache__" in text or text == os.devnull else f"writes the file {text}"
        return "" if text.endswith(_CODE_ENDINGS) or self.is_allowed(text) else f"reads the file {text}"

    def is_allowed(self, path: Any) -> bool:
        resolved = Path(os.path.realpath(os.fsdecode(path)))
        return any(resolved.is_relative_to(place) for place in self.allowed)

    def is_in_package(self) -> bool:
        """Return whether the package's code runs: it is in the stack above this module, and not importing a module."""
        frame: Any = sys._getframe(1)
        is_package = False
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if name == __name__ and frame.f_code.co_name == "watched_call":
                return is_package
            if name.startswith(("importlib._bootstrap", "_frozen_importlib")):
                return is_package
            is_package = is_package or name.partition(".")[0] == self.package
            frame = frame.f_back
        return is_package


_watch: _Watch | None = None
_hooked = False


def _hook(event: str, args: tuple[Any, ...]) -> None:
    global _watch
    watch = _watch
    if watch is not None and event.startswith(("open", "os.", "socket.", "subprocess.", "shutil.")):
        _watch = None  # files that this hook itself opens are not watched
        try:
            action = watch.action(event, args)
            if action and watch.is_in_package():
                watch.actions[action] = None
        finally:
            _watch = watch


def watched_call(subject: Subject, work: Callable[[], Any], *allowed: Path) -> None:
    """Does the work; FaultError if the component's code uses the network, or a file outside its package and options."""
    global _watch, _hooked
    options = [Path(value) for value in subject.chosen.values() if isinstance(value, (str, Path))]
    watch = _Watch(subject, (*allowed, *(path for path in options if path.exists())))
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    _watch = watch
    try:
        work()
    finally:
        _watch = None
    if watch.actions:
        raise FaultError("; ".join(list(watch.actions)[:5]), _LOCAL)


def access_check(subject: Subject, work: Callable[[], Any], *needs: str) -> Check:
    """Return the check that the work uses no other files and no network."""
    return Check(ACCESS, lambda: watched_call(subject, work), _LOCAL, needs)
