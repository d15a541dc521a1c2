"""`kill -9` at any moment tears nothing: the next run ends bit-equal; a full disk leaves the old artefact."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from promises.test_resume import assert_equal
from tiny_pipelines import QUIET, CommandResult, ForkedCommand, kill_at, seqpipe, tiers, write_tagger

from seqpipe.config.loader import load_config
from seqpipe.runs.full_run import RunOptions, run_all
from seqpipe.runtime import bundle
from seqpipe.training import checkpoint

SETTINGS: dict[str, Any] = {
    "embedding": {"use": "lookup", "dim": 8, "dropout": 0.2},
    "head": {"use": "tags", "dropout": 0.3},
    "train": {"epochs": 3, "batch_tokens": 48, "threads": 1, "checkpoint_steps": 1, "average": 0.9, "accumulate": 2},
}


def killed(child: ForkedCommand) -> bool:
    """Return True if a command was killed before its end."""
    code = child.end()
    assert code in (0, -signal.SIGKILL), child.told.read_text()
    return code != 0


def finished(folder: Path, *arguments: str, kill: tuple[str, float] | None = None) -> CommandResult:
    child = ForkedCommand(folder, *arguments, kill=kill)
    return CommandResult(child.end(), "", child.told.read_text())


def state(folder: Path) -> dict[str, Any]:
    return checkpoint.load(folder / "runs" / "tiny" / "checkpoints" / "last.ckpt")


def assert_same_training(expected: Path, folder: Path) -> None:
    for part in ("weights", "average", "optimizer"):
        assert_equal(state(expected)[part], state(folder)[part], part)


def assert_whole(run: Path) -> None:
    """Whatever the files of a run name is there: best weights by name and hash, and a fingerprint what it is of."""
    if (run / "run.json").exists():
        assert (run / "pipeline.yaml").exists()
    checkpoints = run / "checkpoints"
    if (checkpoints / "last.ckpt").exists():
        assert {"learned.json", "tokenizer.json"} <= {*os.listdir(run)}
        progress = checkpoint.load(checkpoints / "last.ckpt")["progress"]
        assert len(progress["history"]) == progress["epoch"]
        assert not progress["done"] or progress["best_file"]
        if progress["best_file"]:
            checkpoint.load_weights(checkpoints / progress["best_file"], progress["best_sha256"])
    if (run / "bundle").exists():
        bundle.read(run / "bundle")
        assert (run / "metrics.json").exists()


class Calls:
    """Looks at a folder before every call that opens, renames or removes a file in it: what a kill there leaves."""

    def __init__(self, folder: Path):
        self.folder, self.moments = str(folder), 0
        self.look: Callable[[], None] | None = None
        sys.addaudithook(self)  # it cannot be removed; without `look` it does nothing

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.look and event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"):
            place = os.path.abspath(os.fsdecode(arguments[0])) if isinstance(arguments[0], (str, Path)) else ""
            if place.startswith(self.folder):
                look, self.look = self.look, None
                look()
                self.look, self.moments = look, self.moments + 1


@pytest.mark.parametrize("dev", [True, False])
def test_whatever_a_run_names_is_there_at_every_call_that_changes_a_file(tmp_path: Path, dev: bool) -> None:
    path = write_tagger(tmp_path, SETTINGS)
    changes = ["embedding={use: lookup, dim: 8}", "train.epochs=4", *([] if dev else ["data.dev=null"])]
    config, run = load_config(path, changes), tmp_path / "runs/tiny"
    best: set[str] = set()

    def look() -> None:
        assert_whole(run)
        best.update(path.name for path in run.glob("checkpoints/best-*"))

    calls = Calls(run)
    with contextlib.chdir(tmp_path):
        calls.look = look
        run_all(config, QUIET, RunOptions("cpu"))
        calls.look = None
    assert calls.moments > 100
    assert len(best) > 1  # weights were replaced by better ones


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a training that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_tagger(folder, SETTINGS)
    done = finished(folder, "train", "tiny.yaml")
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment whose TMPDIR is on another file system than the run."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield {"TMPDIR": folder}


INSIDE = ("write_bytes", "replace", "fsync", "write_bytes")  # half-way through a write, before a rename or a sync


@pytest.mark.parametrize("counts", tiers((2, 8), long=(100, 40), seconds=1200), ids=str)
def test_after_kills_at_random_moments_training_ends_bit_equal(
    counts: tuple[int, int], tmp_path: Path, undisturbed: Path, elsewhere: dict[str, str]
) -> None:
    write_tagger(tmp_path, SETTINGS)
    run, dice, before = tmp_path / "runs/tiny", random.Random(7), 0
    seconds = sum(row["seconds"] for row in state(undisturbed)["progress"]["history"])
    anywhere, inside = counts
    kills = ["training"] * anywhere + [INSIDE[i % len(INSIDE)] for i in range(inside)]
    dice.shuffle(kills)
    while kills:
        when = dice.uniform(0, seconds) if kills[-1] == "training" else dice.randint(1, 30)
        child = ForkedCommand(tmp_path, "train", "tiny.yaml", "-q", kill=(kills[-1], when), environment=elsewhere)
        interrupted = killed(child)
        assert_whole(run)  # never torn
        last = run / "checkpoints/last.ckpt"
        progress = state(tmp_path)["progress"] if last.exists() else {"step": 0, "done": False}
        lost = before + child.steps - progress["step"]
        assert 0 <= lost <= SETTINGS["train"]["checkpoint_steps"]
        before = progress["step"]
        if progress["done"]:
            assert_same_training(undisturbed, tmp_path)
            shutil.rmtree(run)
            before = 0
        elif interrupted:
            kills.pop()
    assert finished(tmp_path, "train", "tiny.yaml").code == 0
    assert_same_training(undisturbed, tmp_path)
    assert not list(run.rglob(".*.part"))


@pytest.mark.parametrize("kills", tiers(0, long=50, seconds=1200))
def test_killed_while_exporting_the_bundle_is_absent_or_whole(
    kills: int, tmp_path: Path, undisturbed: Path, elsewhere: dict[str, str]
) -> None:
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "runs/tiny/bundle"

    def export(kill: tuple[str, float] | None = None) -> ForkedCommand:
        return ForkedCommand(tmp_path, "export", "runs/tiny", "-q", kill=kill, environment=elsewhere)

    assert killed(export(("write_bytes", 2)))
    assert not path.exists()
    assert os.listdir(elsewhere["TMPDIR"])  # it was there that the kill came
    begin = time.monotonic()
    assert not killed(export())
    seconds = time.monotonic() - begin
    dice = random.Random(8)
    while kills:
        if dice.random() < 0.5:
            shutil.rmtree(path, ignore_errors=True)
        how = dice.choice(("seconds", *INSIDE))
        done = not killed(export((how, dice.uniform(0, seconds) if how == "seconds" else dice.randint(1, 12))))
        if done or path.exists():
            bundle.read(path)
        kills -= not done
    assert not killed(export())
    assert seqpipe("verify", path).code == 0
    whole, copy, rewrites = bundle.read(path), path.with_name("copy"), 0
    for how, most in (("write_bytes", 4), ("fsync", 8), ("replace", 3)):
        for when in range(1, most + 1):
            writer = ForkedCommand.server.Process(target=rewrite, args=(whole, copy, how, when))
            writer.start()
            writer.join()
            rewrites += writer.exitcode == -signal.SIGKILL
            assert not copy.exists() or bundle.read(copy).files == whole.files
    assert rewrites >= 10


def rewrite(whole: bundle.BundleContent, path: Path, how: str, when: float) -> None:
    """Writes a bundle, again and again replacing itself, and is killed at it."""
    kill_at(how, when)
    for _ in range(2):
        bundle.write_bundle(path, whole.files, whole.manifest)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system that is soon full."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a small disk: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_on_a_full_disk_the_checkpoint_stays_and_the_error_says_so(tmp_path: Path, undisturbed: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        for path in undisturbed.iterdir():
            if path.is_file():
                shutil.copy(path, disk)
        fine = finished(disk, "train", "tiny.yaml", "train.epochs=1", "name=first")
        assert fine.code == 0, fine.err
        kept = (disk / "runs/first/checkpoints/last.ckpt").read_bytes()
        with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"\0" * 4096)
        full = finished(disk, "train", "tiny.yaml")
        assert (full.code, "Traceback" in full.err) == (7, False), full.err
        assert "the disk is full; what was there is unchanged. Free some space and try again" in full.err
        assert (disk / "runs/first/checkpoints/last.ckpt").read_bytes() == kept
        (disk / "filler").unlink()
        assert finished(disk, "train", "tiny.yaml").code == 0
        assert_same_training(undisturbed, disk)


def test_a_file_that_may_not_grow_leaves_the_old_one_and_a_clear_error(tmp_path: Path, undisturbed: Path) -> None:
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    last = tmp_path / "runs/tiny/checkpoints/last.ckpt"
    kept = last.read_bytes()

    result = finished(tmp_path, "export", "runs/tiny", "-q", kill=("limit", 4096))
    assert (result.code, "Traceback" in result.err) == (7, False), result.err
    assert last.read_bytes() == kept
    assert not (tmp_path / "runs/tiny/bundle").exists()
    assert not [name for name in os.listdir(tmp_path / "runs/tiny") if name.endswith(".part")]
