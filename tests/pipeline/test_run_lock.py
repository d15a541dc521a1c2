"""A run folder has one writer: the second is refused, naming the first; one that was killed is not in the way."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from factory import LEAN, QUIET, Child, begin_run, seqpipe, tagging, tiers, tiny, train_run

from seqpipe import files
from seqpipe.config.loader import load
from seqpipe.errors import EnvError, UsageError
from seqpipe.pipeline import lock
from seqpipe.pipeline.full_run import run_all, run_seeds
from seqpipe.pipeline.lock import lock_around, run_lock

FORKS = multiprocessing.get_context("forkserver")
NAMED = f"process {{pid}} on {socket.gethostname()} is writing to this run"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    with contextlib.chdir(tmp_path):
        yield tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run, not exported."""
    folder = tmp_path_factory.mktemp("trained")
    with contextlib.chdir(folder):
        train_run(tiny(folder, *LEAN, "train.epochs=1"))
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "tiny.yaml"],
        ["train", "tiny.yaml", "--fresh"],
        ["train", "tiny.yaml", "--resume"],
        ["run", "tiny.yaml"],
        ["run", "tiny.yaml", "--fresh"],
        ["run", "tiny.yaml", "train.epochs=9"],
        ["export", "runs/tiny"],
        ["export", "runs/tiny", "-o", "runs/tiny/other"],
        ["vectors", "runs/tiny"],
        ["vectors", "runs/tiny", "-o", "runs/tiny/words.vec"],
    ],
)
def test_the_second_writer_is_refused_at_once_and_nothing_changes(
    arguments: list[str], trained: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    with run_lock(tmp_path / "runs/tiny"):
        before = contents(tmp_path)
        result = seqpipe(*arguments, folder=tmp_path)
        assert result.code == 2
        assert "runs/tiny: " + NAMED.format(pid=os.getpid()) in result.err
        assert "wait until it ends, stop it, or choose another folder" in result.err
        assert contents(tmp_path) == before
        assert [path.name for path in (tmp_path / "runs").iterdir()] == ["tiny"]


def test_who_only_reads_a_run_needs_no_lock(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    with run_lock(tmp_path / "runs/tiny"):
        assert seqpipe("evaluate", "runs/tiny", "-q", folder=tmp_path).code == 0
        assert seqpipe("vectors", "runs/tiny", "-o", "words.vec", folder=tmp_path).code == 0
        assert seqpipe("export", "runs/tiny", "-o", "bundle", "-q", folder=tmp_path).code == 0


def test_a_training_names_itself_and_a_killed_one_is_not_in_the_way(tmp_path: Path) -> None:
    tagging(tmp_path, {"head": "tags", "train": {"epochs": 100_000, "batch_tokens": 48, "threads": 1}})
    trainer = Child(tmp_path, "train", "tiny.yaml")
    trainer.wait_for("epoch   2/")
    refused = seqpipe("train", "tiny.yaml", folder=tmp_path)
    assert refused.code == 2
    assert NAMED.format(pid=trainer.process.pid) in refused.err
    os.kill(trainer.process.pid or 0, signal.SIGKILL)
    trainer.end()
    trainer = Child(tmp_path, "train", "tiny.yaml", "--resume")
    trainer.wait_for("resuming from epoch")
    assert json.loads((tmp_path / "runs/tiny/.lock").read_text())["pid"] == trainer.process.pid
    os.kill(trainer.process.pid or 0, signal.SIGTERM)
    assert trainer.end() == 143


def test_every_seed_is_a_run_with_a_lock_of_its_own(here: Path) -> None:
    file = tagging(here)

    def of_seed(chosen: Any) -> Any:
        return load(file, [*LEAN, "train.epochs=1", *chosen])

    with run_lock(here / "runs/tiny-seed2"), pytest.raises(UsageError, match="tiny-seed2: process"):
        run_seeds(of_seed, lambda config: run_all(config, QUIET, "cpu"), "tiny", 2, QUIET)
    assert (here / "runs/tiny-seed1/bundle").exists()
    with run_lock(here / "runs/tiny-seed1"):
        pass


def test_the_lock_is_given_up_with_the_block_also_after_an_error(here: Path) -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), run_lock(here / "run"):
            _ = 1 / 0


def test_a_fresh_run_has_the_lock_of_its_new_folder(here: Path) -> None:
    from seqpipe.pipeline.run_folder import start_run

    config = tiny(here, *LEAN)
    begin_run(config)
    with start_run(config, QUIET, fresh=True) as run:
        assert (here / "runs/tiny.1/run.json").exists()
        with pytest.raises(UsageError, match=NAMED.format(pid=os.getpid())), run_lock(run.folder):
            pass


def test_a_run_that_is_moved_aside_meanwhile_is_not_what_is_locked(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take, folder = lock._take, here / "run"
    folder.mkdir()

    def moved_first(handle: int) -> None:
        if not (here / "run.1").exists():
            files.move_aside(folder)
        take(handle)

    monkeypatch.setattr(lock, "_take", moved_first)
    with run_lock(folder):
        assert json.loads((folder / ".lock").read_text())["pid"] == os.getpid()
        monkeypatch.undo()
        with pytest.raises(UsageError, match="is writing to this run"), run_lock(folder):
            pass
        with run_lock(here / "run.1"):
            pass


def test_of_a_folder_moved_aside_and_made_again_the_new_one_is_locked(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, folder = lock._take, here / "run"
    folder.mkdir()

    def moved_first(handle: int) -> None:
        if not (here / "run.1").exists():  # another process replaces the run, and has finished already
            files.move_aside(folder)
            folder.mkdir()
            (folder / ".lock").touch()
        take(handle)

    monkeypatch.setattr(lock, "_take", moved_first)
    with run_lock(folder):
        assert json.loads((folder / ".lock").read_text())["pid"] == os.getpid()
        monkeypatch.undo()
        with pytest.raises(UsageError, match="is writing to this run"), run_lock(folder):
            pass


def test_a_holder_that_has_not_said_its_name_yet_is_waited_for(here: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    path = here / "run/.lock"
    path.parent.mkdir()
    path.write_text(json.dumps({"pid": ended.pid, "host": socket.gethostname()}))  # of a killed process
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        told = json.dumps({"pid": os.getppid(), "host": socket.gethostname()})
        threading.Timer(0.1, path.write_text, [told]).start()
        with pytest.raises(UsageError, match=NAMED.format(pid=os.getppid())), run_lock(path.parent):
            pass
        path.write_text("")
        with pytest.raises(UsageError, match="another process is writing to this run"), run_lock(path.parent):
            pass


def test_a_run_is_locked_for_whatever_is_written_below_it_and_nothing_else_is(here: Path) -> None:
    run = begin_run(tiny(here, *LEAN)).folder.resolve()
    (here / "link").symlink_to(run)
    (run / "deeper").mkdir()
    for path in (run / "bundle", run / "deeper" / "bundle", here / "link" / "bundle", here / "runs/tiny/bundle"):
        with lock_around(path), pytest.raises(UsageError, match="is writing"), run_lock(run):
            pass
    with lock_around(here / "elsewhere" / "bundle"), run_lock(run):
        assert not (here / ".lock").exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_an_error_with_a_cure(
    number: int, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(handle: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", without)
    with pytest.raises(EnvError, match=r"\.lock: this file system has no locks .*SEQPIPE_LOCK=off"), run_lock(here):
        pass
    monkeypatch.setenv("SEQPIPE_LOCK", "off")
    with run_lock(here / "run"), run_lock(here / "run"):
        assert (here / "run").is_dir()


WINDOWS = """
import errno, fcntl, os, sys, types
from pathlib import Path

def locking(handle, mode, count):
    assert os.lseek(handle, 0, os.SEEK_CUR) == 1 << 30 and (mode, count) == (2, 1)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, "Permission denied") from None

import seqpipe.files
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
sys.modules["fcntl"] = None
sys.platform = "win32"
from seqpipe.pipeline.lock import run_lock
from seqpipe.errors import UsageError
with run_lock(Path("run")):
    try:
        with run_lock(Path("run")):
            print("two")
    except UsageError as error:
        print(error)
with run_lock(Path("run")):
    print("again")
"""


def test_windows_locks_by_its_own_call(here: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WINDOWS], capture_output=True, text=True, check=True)
    refused, again = done.stdout.splitlines()
    assert refused.startswith("run: process ")
    assert again == "again"


def test_what_another_process_writes_into_a_run_is_not_taken_for_torn(here: Path) -> None:
    config = tiny(here, *LEAN)
    folder = begin_run(config).folder
    with files.writing(folder / "predictions.jsonl") as temporary:  # as `predict -o` does, without a lock
        temporary.write_text("one")
        (folder / ".learned.json.abc.part").write_text("{")
        (folder / ".bundle.abc.part").mkdir()
        begin_run(config)
    assert (folder / "predictions.jsonl").read_text() == "one"
    assert not list(folder.glob(".*.part"))


def compete(folder: Path, delay: float, held: float, how: str) -> None:
    """Adds one to a counter, slowly and not atomically, under the lock; exits with 2 where it is refused."""
    time.sleep(delay)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(run_lock(folder))
            if how == "fresh" and (folder / "counter").exists():
                files.move_aside(folder)
                stack.enter_context(run_lock(folder))
            count = int((folder / "counter").read_text()) if (folder / "counter").exists() else 0
            time.sleep(held)
            (folder / "counter").write_text(str(count + 1))
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
    except UsageError as error:
        print(error, file=(folder.parent / f"refused-{os.getpid()}").open("w"))
        sys.exit(2)


@pytest.mark.parametrize("rounds", tiers(12, long=200, seconds=900))
def test_of_processes_that_lock_at_random_times_none_loses_anything(rounds: int, tmp_path: Path) -> None:
    FORKS.set_forkserver_preload(["seqpipe.pipeline.full_run", "seqpipe.commands.app", "test_run_lock"])
    dice, refusals = random.Random(5), 0
    for number in range(rounds):
        folder = tmp_path / str(number) / "run"
        folder.parent.mkdir()
        many = dice.choice([2, 3])
        hows = [dice.choice(["plain", "killed", "fresh"]) for _ in range(many)]
        held = dice.choice([0.002, 0.05])  # short: the writers often miss each other; long: some are refused
        writers = [FORKS.Process(target=compete, args=(folder, dice.uniform(0, 0.01), held, how)) for how in hows]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        codes = [writer.exitcode for writer in writers]
        expected = {"killed": -signal.SIGKILL}
        assert all(code in (2, expected.get(how, 0)) for code, how in zip(codes, hows, strict=True)), (hows, codes)
        done = sum(int(path.read_text()) for path in folder.parent.glob("run*/counter"))
        assert done == many - codes.count(2) > 0
        pids = {str(writer.pid) for writer in writers}
        for refused in folder.parent.glob("refused-*"):
            assert refused.read_text().split("process ")[1].split()[0] in pids
            refusals += 1
        with run_lock(folder):
            pass
    assert refusals > rounds / 10


def test_what_a_killed_export_left_beside_its_output_is_removed_by_the_next(trained: Path) -> None:
    run = next(path.parent for path in (trained / "runs").glob("*/run.json"))
    (left := run / ".other[1].0123456789abcdef.part").mkdir()
    (others := run / ".other.0123456789abcdef.part").mkdir()
    with lock_around(run / "other[1]"):
        assert (left.exists(), others.exists()) == (False, True)
    others.rmdir()
