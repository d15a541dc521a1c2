"""A run folder has one writer: the second is refused, naming the first; one that was killed is not in the way."""

import errno
import fcntl
import json
import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from gallery import gallery
from tiny_pipelines import QUIET, SMALL_TAGGER, ForkedCommand, begin_run, fail_with, load_tagger, seqpipe, write_tagger

from seqpipe import Pipeline, files
from seqpipe.errors import EnvError, UsageError
from seqpipe.runs import lock
from seqpipe.runs.lock import lock_around, run_lock
from seqpipe.runs.run_folder import start_run

NAMED = f"process {{pid}} on {socket.gethostname()} is writing to this run"


def refuse_second_writer(run: Path, message: str = NAMED.format(pid=os.getpid())) -> None:
    with pytest.raises(UsageError, match=message), run_lock(run):
        pass


def contents(folder: Path) -> dict[Path, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in files if not path.name.startswith(".lock")}


@pytest.mark.parametrize(
    "command",
    [
        "train tiny.yaml",
        "train tiny.yaml --fresh",
        "train tiny.yaml --resume",
        "run tiny.yaml",
        "run tiny.yaml --fresh",
        "run tiny.yaml train.epochs=9",
        "export runs/tiny",
        "export runs/tiny -o runs/tiny/other",
        "vectors runs/tiny",
        "vectors runs/tiny -o runs/tiny/words.vec",
    ],
)
def test_the_second_writer_is_refused_at_once_and_nothing_changes(command: str, tmp_path: Path) -> None:
    example = gallery("spans").copy(tmp_path)
    with run_lock(example.run):
        before = contents(tmp_path)
        result = fail_with(2, "runs/tiny: " + NAMED.format(pid=os.getpid()), *command.split(), folder=tmp_path)
        assert "wait until it ends, stop it, or choose another folder" in result.err
        assert contents(tmp_path) == before
        assert os.listdir(tmp_path / "runs") == ["tiny"]


@pytest.mark.parametrize("command", ["evaluate RUN -q", "vectors RUN -o a.vec", "export RUN -o bundle -q"])
def test_who_only_reads_a_run_needs_no_lock(command: str, tmp_path: Path) -> None:
    run = gallery("label").copy(tmp_path).run
    with run_lock(run):
        assert seqpipe(*command.replace("RUN", str(run)).split(), folder=tmp_path).code == 0


def test_a_training_names_itself_and_a_killed_one_is_not_in_the_way(tmp_path: Path) -> None:
    write_tagger(tmp_path, {"head": "tags", "train": {"epochs": 100_000, "batch_tokens": 48, "threads": 1}})
    trainer = ForkedCommand(tmp_path, "train", "tiny.yaml")
    trainer.wait_for("epoch   1/")
    fail_with(2, NAMED.format(pid=trainer.process.pid), "train", "tiny.yaml", folder=tmp_path)
    os.kill(trainer.process.pid or 0, signal.SIGKILL)
    trainer.end()
    trainer = ForkedCommand(tmp_path, "train", "tiny.yaml", "--resume")
    trainer.wait_for("resuming from epoch")
    assert json.loads((tmp_path / "runs/tiny/.lock-holder.json").read_text())["pid"] == trainer.process.pid
    os.kill(trainer.process.pid or 0, signal.SIGTERM)
    assert trainer.end() == 143


def test_every_seed_is_a_run_with_a_lock_of_its_own(folder: Path) -> None:
    pipeline = Pipeline(write_tagger(folder), SMALL_TAGGER)
    with run_lock(folder / "runs/tiny-seed2"), pytest.raises(UsageError, match="tiny-seed2: process"):
        pipeline.run_seeds(2, device="cpu")
    assert (folder / "runs/tiny-seed1/run.json").exists()
    with run_lock(folder / "runs/tiny-seed1"):
        pass


def test_the_lock_ends_with_the_block_also_after_an_error(folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), run_lock(folder / "run"):
            _ = 1 / 0


def test_a_fresh_run_has_the_lock_of_its_new_folder(folder: Path) -> None:
    config = load_tagger(folder, *SMALL_TAGGER)
    begin_run(config)
    with start_run(config, QUIET, fresh=True) as run:
        assert (folder / "runs/tiny.1/run.json").exists()
        refuse_second_writer(run.folder)


@pytest.mark.parametrize("is_new", [False, True], ids=["moved", "moved and new"])
def test_a_folder_moved_aside_is_not_locked(is_new: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acquire, run = lock._lock, folder / "run"
    run.mkdir()

    def move_first(locked: Path) -> Any:
        if not (folder / "run.1").exists():
            files.move_aside(run)
            if is_new:  # another process replaces the run, and has finished already
                run.mkdir()
                (run / ".lock").touch()
        return acquire(locked)

    monkeypatch.setattr(lock, "_lock", move_first)
    with run_lock(run):
        assert json.loads((run / ".lock-holder.json").read_text())["pid"] == os.getpid()
        monkeypatch.undo()
        refuse_second_writer(run)
        with run_lock(folder / "run.1"):
            pass


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"pid": "x", "host": "a"}', '{"pid": 1}'])
def test_a_writer_without_a_name_is_another_process(content: str | None, folder: Path) -> None:
    (folder / "run").mkdir()
    if content is not None:
        (folder / "run/.lock-holder.json").write_text(content)
    with (folder / "run/.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refuse_second_writer(folder / "run", "run: another process is writing to this run")


def test_a_writer_that_ends_at_once_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as first:
        first.enter_context(run_lock(folder / "run"))
        monkeypatch.setattr("time.sleep", lambda pause: first.close())
        with run_lock(folder / "run"):
            pass


def test_a_run_is_locked_for_all_that_is_written_below_it_and_nothing_else_is(folder: Path) -> None:
    run = begin_run(load_tagger(folder, *SMALL_TAGGER)).folder.resolve()
    (folder / "link").symlink_to(run)
    (run / "deeper").mkdir()
    (folder / "vectors.vec").symlink_to(run / "vectors.vec")
    paths = [path / "bundle" for path in (run, run / "deeper", folder / "link", folder / "runs/tiny")]
    for path in (*paths, folder / "vectors.vec"):
        with lock_around(path):
            refuse_second_writer(run)
    with lock_around(folder / "elsewhere" / "bundle"), run_lock(run):
        assert not (folder / ".lock").exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_an_error(number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(handle: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", without)
    with pytest.raises(EnvError, match=r"\.lock: this file system has no locks .*SEQPIPE_LOCK=off"), run_lock(folder):
        pass
    monkeypatch.setenv("SEQPIPE_LOCK", "off")
    with run_lock(folder / "run"), run_lock(folder / "run"):
        assert (folder / "run").is_dir()


def test_what_another_process_writes_into_a_run_is_not_taken_for_torn(folder: Path) -> None:
    config = load_tagger(folder, *SMALL_TAGGER)
    run = begin_run(config).folder
    with files.writing(run / "predictions.jsonl") as temporary:  # as `predict -o` does, without a lock
        temporary.write_text("one")
        (run / ".learned.json.abc.part").write_text("{")
        (run / ".bundle.abc.part").mkdir()
        begin_run(config)
    assert (run / "predictions.jsonl").read_text() == "one"
    assert not list(run.glob(".*.part"))


def test_the_next_export_removes_what_a_killed_one_left_beside_its_output(folder: Path) -> None:
    run = begin_run(load_tagger(folder, *SMALL_TAGGER)).folder
    left, others = (run / f".{name}.0123456789abcdef.part" for name in ("other[1]", "other"))
    left.mkdir()
    others.mkdir()
    with lock_around(run / "other[1]"):
        assert (left.exists(), others.exists()) == (False, True)
