"""A model answers in every process that gets one: forked at any moment, from a pool, pickled, copied."""

import contextlib
import copy
import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from process_cases import FORKS, NEW_PROCESSES
from process_cases import __file__ as program

import seqpipe
from seqpipe.errors import BundleError, ConfigError, InterruptedRunError, Problem, SeqpipeError

FEW, MANY = 5, 200  # tries; many take minutes
TEXT = "Anna calls Ben in New York ."


def wrong_tries(case: str, path: Path, tries: int, *more: str) -> str:
    """Output of the program; all of its processes are ended if it does not end."""
    command = [sys.executable, program, case, str(path), str(tries), *more]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        return process.communicate(timeout=60 + 30 * tries)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


LARGE = ("single", "grandchild", "sys_exit", "busy")  # a model whose texts are each answered by several threads
CASES = [
    *((function.__name__, FEW) for function in FORKS),
    *((function.__name__, 1) for function in NEW_PROCESSES),  # processes that were started anew
    *((name, 2, "large") for name in LARGE),
]
LONG = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.mark.skipif(sys.platform != "linux", reason="programs on macOS and Windows do not fork")
@pytest.mark.parametrize("case", [*CASES, *(pytest.param((f.__name__, MANY), marks=LONG) for f in FORKS)], ids=str)
def test_a_process_that_answered_and_then_forks_answers_in_the_fork(case: Any, tiny_bundle: Path) -> None:
    name, tries, *more = case
    assert wrong_tries(name, tiny_bundle, tries, *more) == "0\n"


def test_a_model_is_pickled_as_folder_hash_and_settings(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny_bundle.parent)
    model = seqpipe.load(tiny_bundle.name, "cpu", threads=3, timeout=7.0)
    data = pickle.dumps(model)
    assert len(data) < 1_000
    assert model.sha256.encode() in data
    monkeypatch.chdir("/")  # where it arrives, the current folder may be another
    for other in (pickle.loads(data), copy.deepcopy(model), copy.copy(model)):
        assert other is not model
        assert other(TEXT) == model(TEXT)
        assert (other.sha256, other.device, other.graph.workers) == (model.sha256, "cpu", 3)
        assert pickle.dumps(other) == data  # the limit of time too


def test_a_pickled_model_whose_bundle_changed_or_is_gone_names_the_cure(tiny_bundle: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    data = pickle.dumps(seqpipe.load(folder, "cpu", 1))
    cure = "opens its bundle again: keep its folder there, unchanged, or call `seqpipe.load` in each process"
    with (folder / "bundle.json").open("ab") as manifest:
        manifest.write(b" ")
    with pytest.raises(BundleError, match=f"not the bundle that .*{cure}"):
        pickle.loads(data)
    shutil.rmtree(folder)
    with pytest.raises(BundleError, match=f"no such folder.*{cure}"):
        pickle.loads(data)


def subclasses(cls: type[SeqpipeError]) -> list[type[SeqpipeError]]:
    return [cls, *(sub for direct in cls.__subclasses__() for sub in subclasses(direct))]


def test_errors_come_out_of_a_pool_of_processes_as_they_were() -> None:
    problems = [Problem("a.yaml", 3, 5, "encoder.hiden", "unknown option"), Problem("a.yaml", 1, 1, "", "empty")]
    errors = [ConfigError(problems), InterruptedRunError(15, "saved")]
    errors += [cls("message") for cls in subclasses(SeqpipeError) if cls.__init__ is Exception.__init__]
    assert len(errors) > 8
    for error in errors:
        other = pickle.loads(pickle.dumps(error))
        assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))
        assert other.exit_code == error.exit_code
