"""The checks of what a component's module costs to import, and of the files and addresses that its code touches."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from seqpipe.testing.report import Check, FaultError, NotApplicableError, Subject

IMPORT, ACCESS = "import", "no file or network access"
MOST_SECONDS = 1.0
TRIES = 3  # another process may have had the cores

_LATER = "Import what is slow inside the function that needs it, and do no work at the head of a module"
_LIGHT = (
    "Readers, tokenizers and the module of the entry point are used where PyTorch is not installed: keep them in "
    'without torch, and offer what needs it as "package.module:Class"'
)
_LOCAL = (
    "Take what is needed as an option or ship it with the package (importlib.resources); data comes from the reader, "
    "what is learned stands in the weights. Nothing is fetched: a download is a step of its own, before the run"
)
_MODULE = "Delete the print, or use logging: standard output is for answers"

_SHARED = (
    "numpy tokenizers pydantic pluggy "
    "seqpipe.features.document seqpipe.features.vocabulary seqpipe.answers.tagging_schemes seqpipe.config.signature"
)
_TORCH = "torch seqpipe.nn.crf seqpipe.nn.loops seqpipe.nn.recurrent seqpipe.nn.search"
# Imports what is named on each line of standard input in a fork of its own: none of them has what another imported.
_CODE = """
import contextlib, importlib, io, json, os, sys, tempfile, time

def measured(name):
    printed, clock, told = io.StringIO(), time.perf_counter(), ""
    with contextlib.redirect_stdout(printed):
        try:
            importlib.import_module(name)
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
    return [time.perf_counter() - clock, "torch" in sys.modules, printed.getvalue(), told]

before, sys.path[:] = json.loads(sys.argv[1])
for one in before.split():
    importlib.import_module(one)
for line in sys.stdin:
    if not hasattr(os, "fork"):
        name, sys.path[:] = json.loads(line)
        print(json.dumps(measured(name)))
        break
    with tempfile.TemporaryFile("w+") as found, tempfile.TemporaryFile("w+") as said:
        if not (fork := os.fork()):
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            name, sys.path[:] = json.loads(line)
            json.dump(measured(name), found)
            found.flush()
            os._exit(0)
        _, status = os.waitpid(fork, 0)
        found.seek(0)
        said.seek(0)
        end = f"Python ended with code {os.waitstatus_to_exitcode(status)}: {said.read()[-400:].strip()}"
        print(found.read() or json.dumps([0.0, False, "", end]), flush=True)
"""


def import_check(subject: Subject) -> Check:
    """Return whether the class's module is imported in no time, silently, and without torch where that is promised."""
    needs_torch = subject.kind in ("embedding", "encoder", "head")
    return Check(IMPORT, lambda: check_import(subject.cls.__module__, needs_torch), _LATER)


def check_import(module: str, needs_torch: bool) -> None:
    """Imports a module in a Python of its own, where torch is there already if it may be needed."""
    if module == "__main__":
        raise NotApplicableError("the class stands in __main__, which no other Python can import")
    seconds, torch, printed, error = _imported(module, needs_torch)
    if error:
        raise FaultError(f"{module} cannot be imported in a new Python: {error}", "Mend it as the message says")
    if torch and not needs_torch:
        raise FaultError(f"{module} imports torch", _LIGHT)
    if seconds > MOST_SECONDS:
        beyond = " beyond torch" if needs_torch else ""
        raise FaultError(f"{module} takes {seconds:.1f} s to import{beyond}; {MOST_SECONDS:.0f} s is the most", _LATER)
    if printed:
        raise FaultError(f"{module} prints when it is imported: {printed[:80]!r}", _MODULE)


@lru_cache
def _imported(module: str, needs_torch: bool) -> tuple[float, bool, str, str]:
    """Seconds at best, whether torch is there then, what was printed, and the error."""
    best = _import(module, needs_torch)
    for _ in range(TRIES - 1):
        if best[0] > MOST_SECONDS and (needs_torch or not best[1]):  # torch is fault enough
            best = min(best, _import(module, needs_torch))
    return best


def _import(module: str, needs_torch: bool) -> tuple[float, bool, str, str]:
    process = _importer(needs_torch)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([module, sys.path]) + "\n")
    process.stdin.flush()
    seconds, torch, printed, error = json.loads(process.stdout.readline())
    if os.name == "nt":  # where nothing forks
        process.communicate()
        _importer.cache_clear()
    return seconds, torch, printed.strip(), error


@lru_cache
def _importer(needs_torch: bool) -> subprocess.Popen[str]:
    """A Python that has imported what every component may use; it lives as long as this process."""
    arguments = json.dumps([f"{_SHARED} {_TORCH}" if needs_torch else _SHARED, sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", _CODE, arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.communicate)
    return process


# Python reports files, addresses and processes to audit hooks. One cannot be removed again, so
# there is one, and it listens only while something is watched.

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
        self.exactly = {path.resolve() for path in allowed}
        self.allowed += [path for path in self.exactly if path.is_dir()]

    def action(self, event: str, args: tuple[Any, ...]) -> str:
        if event == "open":
            return self.opened(*args[:3])
        if event in ("os.listdir", "os.scandir"):
            return "" if args[0] is None or self.is_allowed(args[0]) else f"lists the folder {args[0]}"
        if event in _NETWORK:
            return f"reaches for the network ({event} {args[1:] if event.startswith('socket.c') else args})"
        if event in _PROCESS:
            return f"starts a process ({args[0]})"
        return f"changes files ({event} {args[0]})" if event in _CHANGES else ""

    def opened(self, path: Any, mode: Any, flags: Any) -> str:
        if isinstance(path, int):
            return ""
        text = os.fsdecode(path)
        writes = any(sign in mode for sign in "wax+") if isinstance(mode, str) else bool((flags or 0) & _WRITES)
        if writes:
            return "" if "__pycache__" in text or text == os.devnull else f"writes the file {text}"
        return "" if text.endswith(_CODE_ENDINGS) or self.is_allowed(text) else f"reads the file {text}"

    def is_allowed(self, path: Any) -> bool:
        at = Path(os.fsdecode(path)).absolute()
        resolved = Path(os.path.realpath(at))
        return resolved in self.exactly or any(resolved.is_relative_to(place) for place in self.allowed)

    def is_its_own(self) -> bool:
        """Return whether the package's code is at work: in the stack above this module, and not importing something."""
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
        _watch = None  # what this hook itself opens is not watched
        try:
            action = watch.action(event, args)
            if action and watch.is_its_own():
                watch.actions[action] = None
        finally:
            _watch = watch


@contextmanager
def _watching(watch: _Watch) -> Iterator[None]:
    global _watch, _hooked
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    _watch = watch
    try:
        yield
    finally:
        _watch = None


def watched_call(subject: Subject, work: Callable[[], Any], *allowed: Path) -> None:
    """Does the work; FaultError if the component's code touches a file that is not its own, or the network."""
    options = [Path(value) for value in subject.chosen.values() if isinstance(value, (str, Path))]
    watch = _Watch(subject, (*allowed, *(path for path in options if path.exists())))
    with _watching(watch):
        work()
    if watch.actions:
        raise FaultError("; ".join(list(watch.actions)[:5]), _LOCAL)


def access_check(subject: Subject, work: Callable[[], Any], *needs: str) -> Check:
    """Return whether the work leaves files and network alone."""
    return Check(ACCESS, lambda: watched_call(subject, work), _LOCAL, needs)
