"""A toy bundle whose answers a person can check by eye: a table says which tag each known word has.

Anna and Ben are persons, Bern is a city, New York too. An unknown word is a person if it begins with a capital A to Z.
The best tag of a word has the probability SURE (GUESS for an unknown word), and words do not depend on each other.
"""

import atexit
import gc
import importlib
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
import toy_bundles
from forked_commands import Forks
from skipped import lacking_packages
from toy_bundles import AXES, BOOL, FLOAT, INT64, node

from seqpipe import Model, load
from seqpipe.plugin import Chars
from seqpipe.runtime import session
from seqpipe_plugins.tokenizers.words import WordsTokenizer

collect_ignore = ["strangers"]  # packages with tests of their own, which run where they are installed
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # tests import onnxruntime themselves
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may ask the hub
os.environ.setdefault("SEQPIPE_REPORT", "off")  # a second a run; tests/report switches it on
os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers with several threads each would fight for the cores
if "PYTEST_XDIST_WORKER" not in os.environ or "SEQPIPE_CACHE" not in os.environ:  # workers share their controller's
    cache = os.environ.get("SEQPIPE_CACHE") or platformdirs.user_cache_dir("seqpipe")
    os.environ["SEQPIPE_GALLERY"] = os.path.join(cache, "gallery")  # of tests/support/gallery.py, for later runs too
    os.environ["SEQPIPE_CACHE"] = tempfile.mkdtemp(prefix="seqpipe-cache-")
    controller, folder_at_start = os.getpid(), os.environ["SEQPIPE_CACHE"]
    # A fork, which has this function too, leaves the folder to its parent.
    atexit.register(lambda: os.getpid() == controller and shutil.rmtree(folder_at_start, ignore_errors=True))

gc.set_threshold(50_000, 20, 50)  # as the command does
START, LEFT_OUT = time.monotonic(), "left out for lack of time"

# Files whose tests share no fixture of a module and take long: each test goes to whichever worker is free. Tests of any
# other file stay together. Long ones come first, so that no worker is left with one at the end.
APART = (
    "tests/documentation/test_docs.py",
    "tests/promises/test_signals.py",
    "tests/test_contracts.py",
    "tests/test_pipelines.py",
)
LONG = (*APART, "tests/promises/test_crash.py", "tests/test_gallery.py", "tests/test_bundle_format.py")

SURE, GUESS = 0.97, 0.85
LABELS = ("O", "B-person", "B-city", "I-city")
TAG_OF = {"Anna": "B-person", "Ben": "B-person", "Bern": "B-city", "New": "B-city", "York": "I-city"}
WORDS = ["Anna", "Ben", "Bern", "New", "York", "calls", "in", "meets", ".", "你", "好"]
ALPHABET = Chars(longest=6, alphabet="ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")

Build = Callable[..., Path]
Install = Callable[..., None]


# What a test with one of these markers needs, and a command that succeeds where it may be used.
PROGRAMS = {
    "curl": ("curl", "curl", "--version"),
    "chromium": ("Chromium", "chromium", "--version"),
    "strace": ("strace, and the right to trace", "strace", "-o", os.devnull, "true"),
    "systemd": ("systemd-analyze", "systemd-analyze", "--version"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("seqpipe")
    group.addoption("--changed", type=Path, metavar="FILE", help="a path a line: run the tests that depend on one")
    group.addoption("--minutes", type=float, default=math.inf, help="no test begins later; those left out are named")


def depends_on(item: pytest.Item, paths: Sequence[str]) -> bool:
    """Return if a test is marked `nightly` with a pattern, as of the shell, that one of these paths matches."""
    patterns = [pattern for marker in item.iter_markers("nightly") for pattern in marker.args]
    return any(fnmatch(path, pattern) for path in paths for pattern in patterns)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for marker, (what, *command) in PROGRAMS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and (shutil.which(command[0]) is None or subprocess.run(command, capture_output=True).returncode):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=f"needs {what}"))
    if changed := config.getoption("--changed"):
        paths = changed.read_text(encoding="utf-8").splitlines()
        config.hook.pytest_deselected(items=[item for item in items if not depends_on(item, paths)])
        items[:] = [item for item in items if depends_on(item, paths)]
    items.sort(key=lambda item: item.nodeid.partition("::")[0] not in LONG)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() - START > 60 * item.config.getoption("--minutes"):
        pytest.skip(LEFT_OUT)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """Name the tests left out and the packages that skipped tests need, and keep why each was skipped for `.ci/run`."""
    yield
    reasons = {
        report.nodeid: str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
    }
    if cache := getattr(terminalreporter.config, "cache", None):
        cache.set("seqpipe/skipped", reasons)
    for test, reason in reasons.items():
        if reason == LEFT_OUT:
            terminalreporter.write_line(f"{LEFT_OUT}: {test}")
    if packages := lacking_packages(reasons.values()):
        terminalreporter.write_line(f"skipped for lack of packages: {', '.join(packages)}")
        terminalreporter.write_line('to run these tests too: pip install -c constraints.txt -e ".[dev]"')


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return nodeid if file in APART else file

    return Scheduling(config, log)


def log_table(vocabulary: list[str]) -> np.ndarray:
    """(V + 1, L): log-probabilities of the tags of each id; the last row is for unknown words with a capital."""
    best = [LABELS.index(TAG_OF.get(token, "O")) for token in vocabulary] + [1]
    sure = np.array([GUESS if token == "[UNK]" else SURE for token in vocabulary] + [GUESS])
    table = np.repeat((1 - sure)[:, None] / (len(LABELS) - 1), len(LABELS), 1)
    table[np.arange(len(best)), best] = sure
    return np.log(table).astype(np.float32)


def graph(vocabulary: list[str], leaks: bool = False) -> bytes:
    """The toy's graph; one that `leaks` lets the length of the longest text in a batch count."""
    capital = np.array([False, False, *map(str.isupper, ALPHABET.alphabet)])
    constants = {
        "table": log_table(vocabulary),
        "capital": capital,
        "unknown": np.array(1),
        "virtual": np.array(len(vocabulary)),
        "first": np.array(0),
        "outside": np.eye(len(LABELS), dtype=np.float32)[0],
        "last": np.array([2]),
        "step": np.array(1),
        "leak": np.array(0.01 if leaks else 0, np.float32),
        "bias": np.array(0, np.float32),  # a decode option: added to the evidence for O
    }
    nodes = [
        node("Gather", ["chars", "first"], ["letter"], axis=2),  # (B, T)
        node("Gather", ["capital", "letter"], ["capitalised"]),
        node("Equal", ["ids", "unknown"], ["is_unknown"]),
        node("And", ["capitalised", "is_unknown"], ["name"]),
        node("Where", ["name", "virtual", "ids"], ["row"]),
        node("Gather", ["table", "row"], ["evidence"]),  # (B, T, L)
        node("Mul", ["outside", "bias"], ["shift"]),
        node("Add", ["evidence", "shift"], ["shifted"]),
        node("LogSoftmax", ["shifted"], ["logs"], axis=-1),
        node("ArgMax", ["logs"], ["best"], axis=-1, keepdims=0),
        node("Cast", ["mask"], ["whole"], to=INT64),
        node("Cast", ["mask"], ["real"], to=FLOAT),
        node("Mul", ["best", "whole"], ["tags"]),
        node("ReduceMax", ["logs", "last"], ["highest"], keepdims=0),
        node("Shape", ["ids"], ["length"], start=1, end=2),
        node("Cast", ["length"], ["long"], to=FLOAT),
        node("Mul", ["long", "leak"], ["leaked"]),
        node("Sub", ["highest", "leaked"], ["log"]),
        node("Exp", ["log"], ["probability"]),
        node("Mul", ["probability", "real"], ["scores"]),
        node("CumSum", ["log", "step"], ["until"]),
        node("CumSum", ["log", "step"], ["before"], exclusive=1),
        node("Neg", ["before"], ["unopened"]),
        node("Mul", ["unopened", "real"], ["opens"]),
        node("Mul", ["until", "real"], ["closes"]),
    ]
    inputs = {"ids": (INT64, AXES), "mask": (BOOL, AXES), "chars": (INT64, [*AXES, "word_length"]), "bias": (FLOAT, [])}
    outputs = {"tags": (INT64, AXES), **dict.fromkeys(("scores", "opens", "closes"), (FLOAT, AXES))}
    return toy_bundles.onnx_model(nodes, inputs, outputs, constants)


def manifest(kind: str = "spans") -> dict[str, Any]:
    city = {"entity_group": "city", "score": round(SURE**2, 6), "word": "New York", "start": 9, "end": 17}
    anna = {"entity_group": "person", "score": SURE, "word": "Anna", "start": 0, "end": 4}
    golden = [{"record": {"text": "Anna in\r\nNew York"}, "answer": [anna, city]}] if kind == "spans" else []
    answer = {"kind": kind, "labels": list(LABELS), "target": None}
    inputs = {
        "ids": {"axes": AXES, "dtype": "int64"},
        "mask": toy_bundles.MASK,
        "chars": {**ALPHABET.manifest(), "axes": list(ALPHABET.axes), "dtype": "int64"},
    }
    changes: dict[str, Any] = {
        "outputs": ["tags", "scores", "opens", "closes"],
        "options": {"bias": {"type": "float", "default": 0.0, "minimum": -20, "maximum": 20}},
        "answer": answer | {"scheme": "IOB2"} if kind == "spans" else answer,
        "limits": {"tokens": 1000},
        "reader": {"use": "conll", "options": {}},
        "golden": golden,
    }
    return toy_bundles.toy_manifest("toy", kind, inputs, **changes)


@pytest.fixture(scope="session")
def build() -> Build:
    """Writes a toy bundle: `build(path, kind="tags", leaks=True)`."""

    def toy(path: Path, kind: str = "spans", leaks: bool = False) -> Path:
        tokenizer = WordsTokenizer().train([WORDS])
        vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
        files = {"model.onnx": graph(vocabulary, leaks), "tokenizer.json": tokenizer.to_str().encode()}
        toy_bundles.write_bundle(path, files, manifest(kind))
        return path

    return toy


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the test stands."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def tiny_bundle(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy bundle that answers with spans. Tests that change it take a copy."""
    return build(tmp_path_factory.mktemp("toys") / "bundle")


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the toy bundle."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


@pytest.fixture(scope="session")
def tiny(tiny_bundle: Path) -> Model:
    """The toy bundle, open, on one core."""
    return load(tiny_bundle, "cpu", threads=1)


@pytest.fixture(scope="session")
def tiny_tagger(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A toy that answers with a tag a word."""
    return load(build(tmp_path_factory.mktemp("toys") / "tagger", kind="tags"), "cpu", threads=1)


@pytest.fixture
def opened_sessions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of threads of each session of onnxruntime that is opened from now on."""
    opened: list[int] = []
    open_session = session.open_session

    def recorded(*arguments: Any, threads: int = 1) -> Any:
        opened.append(threads)
        return open_session(*arguments, threads=threads)

    monkeypatch.setattr(session, "open_session", recorded)
    return opened


@pytest.fixture(scope="session")
def slow_bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy, whose run takes the longer the greater `bias` is, and which explains."""
    return toy_bundles.write_slow_bundle(tiny_bundle, tmp_path_factory.mktemp("slow") / "bundle")


@pytest.fixture(scope="session")
def writer_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model without training."""
    from nn.test_kv_cache import bundled

    folder = tmp_path_factory.mktemp("writer")
    bundled(folder)
    return folder / "bundle"


@pytest.fixture(scope="session")
def vector_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that answers with two numbers, the sum of what each word has."""
    return toy_bundles.write_vector_bundle(tmp_path_factory.mktemp("vectors") / "bundle")


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """The process in which commands are forked, for clients in an environment with its variables."""
    with Forks() as forks:
        yield forks


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a distribution with a plugin on the path: `install("seqpipe-toy", "code of its module")`."""
    modules = set(sys.modules)
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def toy(distribution: str, code: str, version: str = "1.0", entry: str | None = "") -> None:
        module = distribution.replace("-", "_")
        info = site / f"{module}-{version}.dist-info"
        info.mkdir()
        (site / f"{module}.py").write_text(code, encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        if entry is not None:
            (info / "entry_points.txt").write_text(f"[seqpipe]\ntoy = {entry or module}\n")
        importlib.invalidate_caches()

    yield toy
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(site):
            del sys.modules[name]
