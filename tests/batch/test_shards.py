"""Large and many inputs through `predict` in parts: shards, processes, kills."""

import gzip
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tiny_pipelines import command_line, run_process, seqpipe, tiers

from seqpipe import Model
from seqpipe.batch import ray_engine
from seqpipe.batch import shards as parts
from seqpipe.batch.files import predict_file
from seqpipe.batch.job import PredictJob, Shard
from seqpipe.batch.ray_engine import RayEngine
from seqpipe.batch.shards import answer_here, answer_parts, input_files, plan
from seqpipe.errors import DataError, EnvError, SkippedError, UsageError

PREDICT = command_line("predict")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MIN_PART_BYTES", 500)


def write_texts(folder: Path, count: int, bad: tuple[int, ...] = ()) -> Path:
    """Write records of 1 to 30 words; those of `bad` have no text."""
    draw, source = random.Random(7), folder / "texts.jsonl"
    words = ["Anna", "in", "Bern", "calls", "Zoë"]
    texts = (" ".join(draw.choices(words, k=draw.randint(1, 30))) for _ in range(count))
    lines = [json.dumps({"id": n, "title" if n in bad else "text": text}) for n, text in enumerate(texts)]
    source.write_text("\n".join(lines) + "\n")
    return source


def together(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.glob("part-*.jsonl")))


def in_parts(model: Model, source: Path, folder: Path, **options: Any) -> None:
    answer_parts(model, PredictJob(**options), [source], folder)


def test_parts_of_shards_in_any_order_are_the_answers_of_one_run(
    tiny: Model, tmp_path: Path, small_parts: None
) -> None:
    source = write_texts(tmp_path, 150)
    predict_file(tiny, PredictJob(), [source], tmp_path / "whole.jsonl")
    for index in (3, 1, 2):
        assert not (tmp_path / "out" / "manifest.json").exists()
        in_parts(tiny, source, tmp_path / "out", shard=Shard(index, 3))
    assert together(tmp_path / "out") == (tmp_path / "whole.jsonl").read_bytes()
    listed = json.loads((tmp_path / "out" / "manifest.json").read_text())["parts"]
    assert len(listed) > 10
    assert sum(part["records"] for part in listed) == 150
    assert {part["bundle"] for part in listed} == {tiny.sha256}


def test_lines_in_a_part_are_numbered_as_in_the_file(tiny: Model, tmp_path: Path, small_parts: None) -> None:
    source = write_texts(tmp_path, 60, bad=(0, 31, 59))
    with pytest.raises(SkippedError, match="3 of 60 inputs"):
        predict_file(tiny, PredictJob(on_error="skip"), [source], tmp_path / "whole.jsonl")
    with pytest.raises(SkippedError, match="3 of 60 inputs"):
        in_parts(tiny, source, tmp_path / "out", on_error="skip")
    assert together(tmp_path / "out") == (tmp_path / "whole.jsonl").read_bytes()
    with pytest.raises(DataError, match=r"texts\.jsonl:32: no field"):
        in_parts(tiny, source, tmp_path / "stopped", shard=Shard(2, 2))


def test_resume_answers_only_missing_or_damaged_parts_of_the_same_command(
    tiny: Model, tmp_path: Path, small_parts: None
) -> None:
    source, out = write_texts(tmp_path, 80), tmp_path / "out"
    in_parts(tiny, source, out)
    expected, times = together(out), {file: file.stat().st_mtime_ns for file in out.glob("part-*.jsonl")}
    with pytest.raises(UsageError, match="has answers already; add --resume"):
        in_parts(tiny, source, out)
    (out / "part-00002.jsonl").write_text("damaged")
    (out / "part-00003.jsonl").unlink()
    in_parts(tiny, source, out, resume=True)
    assert together(out) == expected
    changed = {file.name for file, before in times.items() if file.stat().st_mtime_ns != before}
    assert changed == {"part-00002.jsonl", "part-00003.jsonl"}
    with pytest.raises(UsageError, match=r"part-00001\.json: 'on_error' differs"):
        in_parts(tiny, source, out, resume=True, on_error="skip")
    for content in ("{", "[1]", "{}"):
        (out / "part-00001.json").write_text(content)
        with pytest.raises(DataError, match=r"part-00001\.json: damaged: .*; remove it, and continue with --resume"):
            in_parts(tiny, source, out, resume=True)


@pytest.mark.parametrize("inputs", ["a.jsonl", "a.jsonl.gz", "a.jsonl b.jsonl"])
@pytest.mark.usefixtures("small_parts")
def test_an_input_that_changed_is_named_and_no_answer_is_lost(inputs: str, tiny: Model, tmp_path: Path) -> None:
    files, text, out = [tmp_path / name for name in inputs.split()], write_texts(tmp_path, 80), tmp_path / "out"
    pack: Any = gzip.compress if inputs.endswith(".gz") else bytes
    old, new = pack(text.read_bytes()), pack(text.read_bytes()[:-4] + b'x"}\n')
    for source in reversed(files):
        source.write_bytes(old)
    time_before = source.stat().st_mtime_ns

    def answer(shard: int, engine: Any = answer_here) -> None:
        answer_parts(tiny, PredictJob(shard=Shard(shard, 2), resume=True), files, out, engine)

    changed = rf"{source}: has changed since .* in {out}/part-0000.\.json; restore it, or answer it into another folder"
    with pytest.raises(UsageError, match=changed):
        answer(1, lambda *parts: source.write_bytes(new) and answer_here(*parts))
    assert not [*out.glob("*.json")]
    answer(1)
    before = {file: file.read_bytes() for file in out.iterdir()}
    source.write_bytes(old)
    os.utime(source, ns=(time_before, time_before))
    for shard in (1, 2):
        with pytest.raises(UsageError, match=changed):
            answer(shard)
    files_left = before if len(files) > 1 else out.iterdir()  # the second of two files is answered first
    assert {file: file.read_bytes() for file in files_left} == before
    assert (out / "manifest.json").exists() == inputs.endswith(".gz")  # one part, all of which is in the first shard
    source.write_bytes(new)
    answer(2)
    assert (out / "manifest.json").exists()


def test_parts_without_hashes_and_pipes_are_refused(tiny: Model, tmp_path: Path) -> None:
    source, part = write_texts(tmp_path, 2), tmp_path / "out" / "part-00001.json"
    in_parts(tiny, source, part.parent)
    part.write_text(part.read_text().replace("source_sha256", "source_bytes"))
    with pytest.raises(UsageError, match=r"part-00001\.json: 'source_sha256' is not stated; name another folder"):
        in_parts(tiny, source, part.parent, resume=True)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe: is not a regular file, and cannot be read twice; save its content"):
        in_parts(tiny, tmp_path / "pipe", tmp_path / "piped")


def test_every_line_is_in_one_part_and_packed_files_and_tables_are_one_part_each(
    tmp_path: Path, small_parts: None
) -> None:
    source = tmp_path / "a.txt"
    source.write_text("\n".join("x" * length for length in (0, 1200, 3, 499, 500, 501, 0, 7)))
    spans = [part.span for part in plan([source], ["text"]) if part.span]
    assert [start for start, _ in spans[1:]] == [end for _, end in spans[:-1]]
    data = source.read_bytes()
    assert b"".join(data[start:end] for start, end in spans) == data
    assert all(data[end - 1 : end] == b"\n" for _, end in spans[:-1])
    source.unlink()
    for name in ("a.csv", "b.jsonl.gz", "c.txt"):
        (tmp_path / name).write_text("text\n" * 300)
    parts_of_folder = plan(input_files([str(tmp_path)]), ["csv", "jsonl", "text"])
    assert [part.sources[0].name for part in parts_of_folder] == ["a.csv", "b.jsonl.gz", *["c.txt"] * 3]


def test_a_file_that_is_missing_is_named_and_no_folder_is_left(tiny_bundle: Path, tmp_path: Path) -> None:
    write_texts(tmp_path, 1)
    command = ("predict", tiny_bundle, "-o", "out", "--shard", "1/1", "-i")
    for name, problem in (
        ("text.jsonl", "text.jsonl: there is no such file; did you mean 'texts.jsonl'?"),
        ("a.docx", "a.docx: is not in a format that is read"),
    ):
        (tmp_path / "a.docx").write_text("Anna\n")
        done = seqpipe(*command, name, folder=tmp_path)
        assert (done.code, problem in done.err) == (DataError.exit_code, True), done.err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/", "-1/2"])
def test_a_share_that_is_none_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=f"--shard {text}: must be I/N"):
        Shard.parse(text)


def test_faults_before_processes_start_are_reported_once(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("Anna\n")
    command = ("predict", tiny_bundle, "--processes", "2", "-o", "out", "-i")
    for changes, problem in ((["none-*.txt"], "there is no such file"), (["in.txt", "--option", "beems=2"], "beems")):
        done = seqpipe(*command, *changes, folder=tmp_path)
        assert (done.code, done.err.count(problem), "a process failed" in done.err) == (2, 1, False)
        assert not (tmp_path / "out").exists()
    assert run_process(*command, "in.txt", folder=tmp_path).code == 0
    again = seqpipe(*command, "in.txt", folder=tmp_path)
    assert (again.code, again.err.count("has answers already; add --resume to continue")) == (2, 1)
    (tmp_path / "in.txt").write_text("Bern\n")
    again = seqpipe(*command, "in.txt", "--resume", folder=tmp_path)
    assert (again.code, again.err.count("in.txt: has changed since it was answered")) == (2, 1)


@pytest.mark.parametrize("kills", tiers(1, 20, 900))
def test_killed_shards_go_on_where_they_were(kills: int, tiny: Model, tiny_bundle: Path, tmp_path: Path) -> None:
    source, out, draw = write_texts(tmp_path, 4000 if kills == 1 else 20_000), tmp_path / "out", random.Random(3)
    predict_file(tiny, PredictJob(), [source], tmp_path / "whole.jsonl")
    command = [*PREDICT, str(tiny_bundle), "-i", str(source), "-o", str(out), "--resume", "--device", "cpu"]
    answered = 0
    for _ in range(kills):
        shard = ["--processes", "2"] if kills == 1 else ["--shard", f"{draw.randint(1, 8)}/8"]
        killed = subprocess.Popen([*command, *shard], stderr=subprocess.DEVNULL, start_new_session=True)
        while killed.poll() is None and len([*out.glob("part-*.json")]) == answered:
            time.sleep(0.01)
        answered = len([*out.glob("part-*.json")])
        if killed.poll() is None:
            os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    assert answered
    subprocess.run([*command, "--processes", "2"], check=True, stderr=subprocess.DEVNULL)
    assert together(out) == (tmp_path / "whole.jsonl").read_bytes()
    assert json.loads((out / "manifest.json").read_text())["parts"]


SIGNALS = [
    ("one process", signal.SIGKILL, 1, "a process ended with exit code -9"),
    ("the command", signal.SIGTERM, 128 + signal.SIGTERM, ""),
    ("all", signal.SIGINT, 128 + signal.SIGINT, ""),
]


@pytest.mark.parametrize(("receiver", "number", "code", "message"), SIGNALS)
def test_a_signal_ends_all_processes_of_a_command(
    receiver: str, number: int, code: int, message: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    source, out = write_texts(tmp_path, 50_000), tmp_path / "out"
    command = [*PREDICT, str(tiny_bundle), "-i", str(source), "-o", str(out), "--processes", "2", "--device", "cpu"]
    # A shell ignores Ctrl-C in what it starts in the background, such as these tests.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    signal.signal(signal.SIGINT, handler)
    with running:
        while len([*out.glob("part-0000[12].json")]) < 2:  # one of each process
            assert running.poll() is None
            time.sleep(0.01)
        processes = ["pgrep", "--session", str(running.pid), "-f", "spawn_main"]
        children = [int(line) for line in subprocess.run(processes, capture_output=True).stdout.split()]
        if receiver == "all":
            os.killpg(running.pid, number)
        else:
            os.kill(running.pid if receiver == "the command" else children[0], number)
        error = running.communicate(timeout=60)[1]
    assert (len(children), running.returncode, message in error) == (2, code, True), error
    assert "Traceback" not in error
    assert subprocess.run(processes, capture_output=True).stdout == b""
    assert receiver == "one process" or not [*out.glob(".*")]  # half-written files
    answered = [*out.glob("part-*.json")]
    assert seqpipe(*command[3:], "--resume").code == 0
    assert len(answered) < len([*out.glob("part-*.json")])


@pytest.mark.parametrize(
    ("option", "code", "message"), [("stop", 3, "texts.jsonl:32: no field"), ("skip", 8, "3 of 60")]
)
@pytest.mark.usefixtures("small_parts")
def test_the_errors_of_processes_are_those_of_one(
    option: str, code: int, message: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    source = write_texts(tmp_path, 60, bad=(31,) if option == "stop" else (0, 31, 59))
    command = ("predict", tiny_bundle, "-i", source, "--on-error", option, "-o")
    one = seqpipe(*command, tmp_path / "one", "--shard", "1/1")
    several = seqpipe(*command, tmp_path / "several", "--processes", "2")
    assert (one.code, several.code, several.err.count(message)) == (code, code, 1), several.err
    assert one.err.replace("/one", "/several").splitlines()[-1] == several.err.splitlines()[-1]
    assert ("a process failed, and the others are stopped" in several.err) == (option == "stop")
    if option == "skip":
        assert together(tmp_path / "one") == together(tmp_path / "several")


# Ray


def test_the_engine_ray_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "has", lambda package: False)
    with pytest.raises(EnvError, match=r'--engine ray needs Ray Data: pip install "ray\[data\]>='):
        RayEngine()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_actors_of_ray_write_what_one_process_writes_though_one_is_killed(
    tiny: Model, tiny_bundle: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    source, bad = write_texts(tmp_path, 30_000), tmp_path / "bad.txt"
    in_parts(tiny, source, tmp_path / "one")
    command = [*PREDICT, str(tiny_bundle), "--engine", "ray", "--processes", "2", "-o"]
    arguments = [*command, str(tmp_path / "ray"), "-i", str(source)]
    running = subprocess.Popen(arguments, stderr=subprocess.DEVNULL, start_new_session=True)
    while not (done := [*(tmp_path / "ray").glob("part-*.json")]):
        assert running.poll() is None
        time.sleep(0.01)
    actors = ["pgrep", "--session", str(running.pid), "--newest", "-f", "^ray::.*MapWorker"]
    os.kill(int(subprocess.run(actors, capture_output=True, check=True).stdout), signal.SIGKILL)
    assert len(done) < len([*(tmp_path / "one").glob("part-*.json")])
    assert running.wait() == 0
    assert together(tmp_path / "ray") == together(tmp_path / "one")
    assert (tmp_path / "ray" / "manifest.json").read_bytes() == (tmp_path / "one" / "manifest.json").read_bytes()
    bad.write_bytes(b"Anna\n\xe9\nBern\n")
    stopped = subprocess.run([*command, str(tmp_path / "bad"), "-i", str(bad)], capture_output=True, text=True)
    assert stopped.returncode == DataError.exit_code
    assert f"{bad}:2: byte 1 is not UTF-8" in stopped.stderr
