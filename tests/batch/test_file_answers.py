"""Files and standard input through `predict`, by hand and by the command itself."""

import gzip
import json
import os
import pty
import re
import resource
import select
import signal
import subprocess
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from gallery import gallery
from tiny_pipelines import command_line, run_process, seqpipe
from tokenizers import Regex, Tokenizer, pre_tokenizers
from toy_bundles import changed_bundle

from seqpipe import Model, load
from seqpipe.batch.files import predict_file, read_lines
from seqpipe.batch.job import PredictJob
from seqpipe.errors import DataError, EnvError, SeqpipeError, SkippedError, UsageError

COMMAND = command_line("predict")
LONG = "a " * 1001


def predicted(model: Model, folder: Path, name: str, content: str | bytes, form: str = "auto", **options: Any) -> str:
    source, target = folder / name, folder / "out"
    source.write_bytes(content if isinstance(content, bytes) else content.encode())
    documents, on_error = options.pop("documents", False), options.pop("on_error", "stop")
    job = PredictJob(form, documents=documents, on_error=on_error, options=options)
    predict_file(model, job, [source], target)
    return target.read_bytes().decode()


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def words(answer: list[dict[str, Any]]) -> list[str]:
    return [span["word"] for span in answer]


def test_text_gives_a_line_of_json_a_line(tiny: Model, tmp_path: Path) -> None:
    out = predicted(tiny, tmp_path, "a.txt", "Anna calls\r\n\nZoë in Bern")
    assert [words(answer) for answer in lines(out)] == [["Anna"], [], ["Zoë", "Bern"]]
    assert "Zoë" in out
    assert predicted(tiny, tmp_path, "a.txt", "Anna", bias=10.0) == "[]\n"
    long = lines(predicted(tiny, tmp_path, "a.txt", "Anna\n" + " " * 900_000 + "Bern\n\nBen"))  # read in many blocks
    assert [words(answer) for answer in long] == [["Anna"], ["Bern"], [], ["Ben"]]


def test_jsonl_is_given_back_whole_with_the_answer(tiny: Model, tmp_path: Path) -> None:
    records = [
        {"text": "in Bern", "id": 7, "where": "my own"},
        {"words": ["Anna", "calls"], "tags": ["O", "O"]},
        {"text": "", "note": "你"},
        {"text": "Anna \ud800"},
    ]
    out = predicted(tiny, tmp_path, "a.jsonl", "\n".join(map(json.dumps, records)) + '\n\n"Ben"\n')
    rows = lines(out)
    assert [words(row.pop("answer")) for row in rows] == [["Bern"], ["Anna"], [], ["Anna"], ["Ben"]]
    assert rows == [*records, {"text": "Ben"}]
    assert "\\ud800" in out
    assert "你" in out


def test_conll_gives_the_words_with_their_tags(tiny: Model, tiny_tagger: Model, tmp_path: Path) -> None:
    source = "# id = 1\nAnna O\nin O\nNew O\nYork O\n\ncalls X\n"
    expected = "Anna\tB-person\nin\tO\nNew\tB-city\nYork\tI-city\n\ncalls\tO\n\n"
    assert predicted(tiny, tmp_path, "a.conll", source) == expected
    assert predicted(tiny_tagger, tmp_path, "a.conll", source) == expected
    assert predicted(tiny, tmp_path, "a.txt", "Anna\nin\n\nBern\n", "conll") == SHORT_CONLL  # without tags


SHORT_CONLL = "Anna\tB-person\nin\tO\n\nBern\tB-city\n\n"


def test_conll_is_read_by_the_options_of_a_reader_of_conll(tiny_bundle: Path, tmp_path: Path) -> None:
    for reader, source in (
        ({"use": "conll", "options": {"words": 1}}, "1 Anna O\n2 in O\n\n1 Bern O\n"),
        ({"use": "jsonl", "options": {"words": "tokens"}}, "Anna O\nin O\n\nBern O\n"),
    ):
        model = load(changed_bundle(tiny_bundle, tmp_path / "bundle", reader=reader), "cpu")
        assert predicted(model, tmp_path, "a.conll", source) == SHORT_CONLL


def test_documents_are_taken_whole_and_one_without_an_answer_is_skipped_alone(tiny: Model, tmp_path: Path) -> None:
    content = json.dumps({"text": "Anna calls.\nBen in Bern."}) + "\n" + json.dumps({"text": ""})
    first, second = lines(predicted(tiny, tmp_path, "a.jsonl", content, documents=True))
    assert [(span["word"], span["start"]) for span in first["answer"]] == [("Anna", 0), ("Ben", 12), ("Bern", 19)]
    assert second["answer"] == []
    with pytest.raises(SkippedError, match="1 of 3 inputs"):
        predicted(tiny, tmp_path, "a.txt", f"Anna. Bern.\n{LONG}\nBen.\n", documents=True, on_error="skip")
    first, broken, last = lines((tmp_path / "out").read_text())
    assert (words(first), words(last)) == (["Anna", "Bern"], ["Ben"])
    assert "a.txt:2: 1,001 tokens" in broken["error"]


BAD_INPUTS = [
    ("a.txt", b"Anna\n\xe9t\xe9\n", r"a\.txt:2: byte 1 is not UTF-8; convert it: iconv"),
    (
        "a.txt",
        "Zoë\n".encode() + b"Zo\xc3\xab \xff\n",
        r"a\.txt:2: .*: write this one again, or leave it out with `iconv -c",
    ),
    (
        "a.txt",
        b"version https://git-lfs.github.com/spec/v1\nsize 9\n",
        r"a\.txt: is a pointer of Git LFS, not",
    ),
    ("a.jsonl", b"version https://git-lfs.github.com/spec/v1\nsize 9\n", r"a\.jsonl: is a pointer of Git LFS"),
    ("a.txt", "Anna\n".encode("utf-16"), r"a\.txt:1: byte 1 is not UTF-8; convert it: iconv -f utf-16"),
    ("a.txt", gzip.compress(b"Anna\n", mtime=0), r":1: byte 2 is not UTF-8; it is compressed with gzip: unpack it"),
    ("a.txt", "a\n" + "a " * 1001, r"a\.txt:2: 1,001 tokens exceed the limit"),
    ("a.jsonl", '{"text": "a"}\nnot json\n', r"a\.jsonl:2: not JSON: .*; use --format text"),
    ("a.jsonl", "[1]", r"a\.jsonl:1: must be an object with `text` or `words`, not list"),
    ("a.jsonl", '{"title": "x"}', r"a\.jsonl:1: no field 'text'; the record has"),
    ("a.jsonl", '\n{"words": "x"}', r"a\.jsonl:2: 'words' must be a list of strings"),
    ("a.jsonl", '{"words": ["x"], "text": "y"}', r"a\.jsonl:1: word 'x' is not in the text"),
    ("a.jsonl", '{"text": "x", "score": NaN}', r"a\.jsonl:1: not JSON: NaN is not JSON"),
    ("a.jsonl", '{"a":' * 99_999, r"a\.jsonl:1: nested too deeply|a\.jsonl:1: not JSON"),
    ("a.jsonl", "[" * 99_999, r"a\.jsonl:1: nested too deeply"),
    ("a.jsonl", '{"text": "a", "text": "b"}', r"a\.jsonl:1: not JSON: the key 'text' is given twice; keep one"),
    ("a.jsonl", '{"text": "", "more": [{"a": 1, "a": 1}]}', r"a\.jsonl:1: not JSON: the key 'a' is given twice"),
    ("a.conll", "Anna O\nBern\n", r"a\.conll:2: "),
]


def test_a_table_that_cannot_be_written_is_named_before_anything_is_answered(tiny: Model, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("not json")
    for name, message in (("a" * 300 + ".csv", "this name is too long"), ("none/a.csv", "there is no folder")):
        with pytest.raises(SeqpipeError, match=message):
            predict_file(tiny, PredictJob(), [tmp_path / "a.jsonl"], tmp_path / name)


def test_an_input_is_never_replaced_by_its_answers(tiny: Model, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Anna\n")
    (tmp_path / "link").symlink_to("a.txt")
    os.link(tmp_path / "a.txt", tmp_path / "hard")
    for name in ("a.txt", "link", "hard"):
        with pytest.raises(UsageError, match="is an input, which would be lost"):
            predict_file(tiny, PredictJob(), [tmp_path / "a.txt"], tmp_path / name)
    assert (tmp_path / "a.txt").read_text() == "Anna\n"


@pytest.mark.parametrize(("name", "content", "message"), BAD_INPUTS)
def test_a_bad_line_is_named_and_nothing_is_written(
    name: str, content: str | bytes, message: str, tiny: Model, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("old")
    with pytest.raises(DataError, match=message):
        predicted(tiny, tmp_path, name, content)
    assert (tmp_path / "out").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["out", name])


WRONG_OPTIONS = [
    ("xml", {}, "--format xml: must be one of text, jsonl, conll"),
    ("conll", {"documents": True}, "--format conll: .* one answer a sentence"),
    ("conll", {"n_best": 2}, "--format conll: .* one answer a sentence"),
    ("conll", {"n_best": "two"}, "--format conll: .* one answer a sentence"),
    ("text", {"beams": 2}, "no decode option 'beams'"),
    ("conll", {"on_error": "skip"}, "--on-error skip: .*lines of text"),
]


@pytest.mark.parametrize(("form", "options", "message"), WRONG_OPTIONS)
def test_options_that_cannot_be_met_are_refused(
    form: str, options: dict[str, Any], message: str, tiny: Model, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        predicted(tiny, tmp_path, "a", "Anna\n", form, **options)


def test_a_missing_file_or_folder_is_named(tiny: Model, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing: there is no such file"):
        predict_file(tiny, PredictJob(), [tmp_path / "nothing"], None)
    with pytest.raises(UsageError, match=r"there is no folder .*/nowhere"):
        predict_file(tiny, PredictJob(), [Path(__file__)], tmp_path / "nowhere" / "out")


def test_the_command_reads_and_writes_utf_8_whatever_the_terminal_says(tiny_bundle: Path, tmp_path: Path) -> None:
    text = "Anna\nZoë in Bern\n".encode()
    done = run_process("predict", tiny_bundle, folder=tmp_path, stdin=text, PYTHONIOENCODING="ascii")
    assert (done.code, done.err) == (0, "")
    assert [words(answer) for answer in lines(done.out)] == [["Anna"], ["Zoë", "Bern"]]


def test_texts_in_the_command_are_answered_and_files_are_not_taken_for_texts(tiny_bundle: Path, tmp_path: Path) -> None:
    done = seqpipe("predict", str(tiny_bundle), "Anna calls", "Bern", folder=tmp_path)
    assert [words(answer) for answer in lines(done.out)] == [["Anna"], ["Bern"]]
    (tmp_path / "texts.txt").write_text("Anna\n")
    refused = seqpipe("predict", str(tiny_bundle), "texts.txt", folder=tmp_path)
    assert (refused.code, "texts.txt: is a file, not a text; name it with --input" in refused.err) == (2, True)
    for option in (["--output", "out.jsonl"], ["--documents"], ["--on-error", "skip"], ["--option-field", "bias"]):
        both = seqpipe("predict", str(tiny_bundle), "Anna", *option, folder=tmp_path)
        assert (both.code, "give a file of the texts with --input" in both.err) == (2, True), option


def test_who_types_is_answered_at_once(tiny_bundle: Path) -> None:
    ours, theirs = pty.openpty()
    pipe: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, str(tiny_bundle)], stdin=theirs, **pipe) as process:
        assert process.stdout is not None
        for text, expected in (("in Bern", ["Bern"]), ("Anna", ["Anna"])):
            os.write(ours, f"{text}\n".encode())
            assert words(json.loads(process.stdout.readline())) == expected
        os.write(ours, b"\x04")  # end of input
        assert process.wait(120) == 0
    os.close(theirs)
    os.close(ours)


EVIL = r"([a-z0-9]+[.-]?)+@[a-z]+|\w+"
BAD_LINES = {
    "not UTF-8": (b"\xe9t\xe9", "byte 1 is not UTF-8"),
    "too long": (LONG.encode(), "1,001 tokens exceed the limit"),
    "panics": (b"a" * 60, "the tokenizer cannot split 'a{40}'… .60 characters.: Onig"),
}


ROWS = [("ab", "d", 3), ("ab", "", None), ("cdf", "c", None)]
TABLES = {
    "rows.jsonl": "".join(json.dumps({"text": text, "start": start, "n": n}) + "\n" for text, start, n in ROWS),
    "rows.csv": "text,start,n\n" + "".join(f"{text},{start},{'' if n is None else n}\n" for text, start, n in ROWS),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("more", [[], ["-o", "parts", "--processes", "2"], ["--field", "text", "--threads", "2"]])
def test_a_column_has_a_decode_option_of_each_record(name: str, more: list[str], folder: Path) -> None:
    path, model = gallery("text").bundle, load(gallery("text").bundle, "cpu", threads=1)
    Path(name).write_text(TABLES[name])
    Path("parts").mkdir()
    fields = ["--option-field", "prefix=start", "--option-field=min_length=n"]
    done = seqpipe("predict", path, "-i", name, *fields, "--option", "prefix=f", *more)
    assert done.code == 0, done.err
    out = done.out if "-o" not in more else "".join(file.read_text() for file in sorted(Path("parts").glob("*.jsonl")))
    expected = [model("ab", prefix="d", min_length=3), model("ab", prefix="f"), model("cdf", prefix="c")]
    assert [line["answer"] for line in lines(out)] == expected
    for wrong, message in (
        (["--option-field", "prefx"], "no decode option 'prefx'; did you mean 'prefix'?"),
        (["--option-field", "prefix=start", "--format", "text"], "--option-field: names a column of a table or a key"),
    ):
        assert message in seqpipe("predict", path, "-i", name, *wrong).err
    Path(name).write_text(TABLES[name].replace("start", "prefix"))
    refused = seqpipe("predict", path, "-i", name)
    assert (refused.code, "'prefix' is a decode option and no field" in refused.err) == (DataError.exit_code, True)
    Path(name).write_text(TABLES[name].replace("start", "begin"))
    if name == "rows.csv":
        assert "no column is named 'start'" in seqpipe("predict", path, "-i", name, *fields).err


@pytest.fixture(scope="module")
def fragile_bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy with a pattern that the library panics at."""
    tokenizer = Tokenizer.from_file(str(tiny_bundle / "tokenizer.json"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(EVIL), "removed", invert=True)
    files = {"tokenizer.json": tokenizer.to_str().encode()}
    return changed_bundle(tiny_bundle, tmp_path_factory.mktemp("fragile") / "bundle", files)


@pytest.mark.parametrize("bad", BAD_LINES)
@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_bad_line_costs_no_other_its_answer_if_skipped_and_none_before_it_if_not(
    bad: str, threads: str, fragile_bundle: Path
) -> None:
    line, message = BAD_LINES[bad]
    content = b"Anna\n" * 1500 + line + b"\n" + b"Bern\n" * 1500 + line
    done = seqpipe("predict", fragile_bundle, "--threads", threads, "--on-error", "skip", stdin=content)
    answers = lines(done.out)
    errors = {number: answer["error"] for number, answer in enumerate(answers, 1) if isinstance(answer, dict)}
    assert (done.code, len(answers), [*errors]) == (SkippedError.exit_code, 3002, [1501, 3002])
    assert all(re.match(f"standard input:{number}: {message}", error) for number, error in errors.items())
    assert "2 of 3,002 inputs have no answer" in done.err
    assert [words(answer) for answer in answers if isinstance(answer, list)] == [["Anna"]] * 1500 + [["Bern"]] * 1500
    stopped = seqpipe("predict", fragile_bundle, "--threads", threads, stdin=content)
    assert stopped.code == DataError.exit_code
    assert [words(answer) for answer in lines(stopped.out)] == [["Anna"]] * 1500
    assert re.search(f"^standard input:1501: {message}", stopped.err, re.MULTILINE)
    assert "Traceback" not in done.err + stopped.err


def test_skipped_records_of_json_keep_their_fields(tiny: Model, tmp_path: Path) -> None:
    content = '{"text": "Anna"}\nno json\n{"id": 7}\n{"words": 5}\n{"text": "Bern", "id": 8}\n'
    with pytest.raises(SkippedError, match=r"a\.jsonl: 3 of 5 inputs have no answer"):
        predicted(tiny, tmp_path, "a.jsonl", content, on_error="skip")
    first, broken, lacking, wrong, last = lines((tmp_path / "out").read_text())
    assert (words(first["answer"]), words(last["answer"]), last["id"]) == (["Anna"], ["Bern"], 8)
    assert broken.keys() == {"answer"}
    assert "a.jsonl:2: not JSON" in broken["answer"]["error"]
    assert (lacking["id"], wrong["words"]) == (7, 5)
    assert "a.jsonl:3: no field 'text'; the record has: id" in lacking["answer"]["error"]
    assert "'words' must be a list" in wrong["answer"]["error"]


PIPED = [
    ("text", ["Anna\n", "in Bern\nBen\nsom", "e\n"], [1, 2, 1]),
    ("jsonl", ['{"text": "Anna"}\n', '\n"Ben"\n'], [1, 1]),
    ("conll", ["Anna\tO\n\nin", "\tO\nBern O\n\n"], [2, 3]),  # the first sentence comes before the second is whole
]


@pytest.mark.parametrize(("form", "chunks", "counts"), PIPED)
def test_a_pipe_that_stays_open_gets_each_answer_when_its_input_runs_dry(
    form: str, chunks: list[str], counts: list[int], tiny_bundle: Path
) -> None:
    with subprocess.Popen(
        [*COMMAND, str(tiny_bundle), "--format", form], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for text, count in zip(chunks, counts, strict=True):
            process.stdin.write(text.encode())
            for _ in range(count):
                assert select.select([process.stdout], [], [], 120)[0]
                assert process.stdout.readline().endswith(b"\n")
        process.stdin.close()
        assert process.wait(120) == 0


# Signals, full disks and killed writers


def test_a_full_standard_output_is_reported_with_a_cure(tiny_bundle: Path) -> None:
    for arguments in (["predict", str(tiny_bundle)], ["schema"]):
        command = [*COMMAND[:-1], *arguments]
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(command, input=b"Anna\n" * 9, stdout=full, stderr=subprocess.PIPE, timeout=120)
        assert done.returncode == EnvError.exit_code
        message = r"standard output.*No space left on device; free some space, or .*\n"
        assert re.fullmatch(message, done.stderr.decode()), done.stderr


def test_sigterm_leaves_nothing_behind(tiny_bundle: Path, tmp_path: Path) -> None:
    command = [*COMMAND, str(tiny_bundle), "-o", str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"Anna\n" * 5000)
        process.stdin.flush()
        while not list(tmp_path.glob(".out.*.part")):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_is_removed_by_the_next_one(tiny_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out[1].jsonl"
    command = [*COMMAND, str(tiny_bundle), "-o", str(out)]

    def start() -> tuple[subprocess.Popen[bytes], Path]:
        before = {*tmp_path.iterdir()}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        while not (new := {*tmp_path.glob(".out*.part")} - before):
            time.sleep(0.01)
        return process, new.pop()

    killed, torn = start()
    killed.kill()
    killed.communicate(timeout=120)
    assert torn.exists()
    alive, kept = start()
    assert (torn.exists(), kept.exists()) == (False, True)
    (tmp_path / ".out.jsonl.0123456789abcdef.part").write_text("of another target")
    done = seqpipe("predict", tiny_bundle, "-o", out, "--device", "cpu", stdin=b"Anna\n")
    assert (done.code, kept.exists(), out.exists()) == (0, True, True)
    alive.communicate(b"Anna\nBen\n", timeout=120)
    assert (alive.returncode, len(out.read_text().splitlines())) == (0, 2)
    assert {path.name for path in tmp_path.iterdir()} == {out.name, ".out.jsonl.0123456789abcdef.part"}


def test_a_file_that_may_not_grow_is_named(tiny: Model, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        message = "out: cannot grow: File too large; what was there is unchanged. Raise"
        with pytest.raises(EnvError, match=message):
            predicted(tiny, tmp_path, "a.txt", "Anna in Bern\n" * 3000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "out").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "out"]


# Texts that are too long to be split


def test_a_text_of_too_many_characters_is_refused_before_it_is_split(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def split(records: Any) -> Any:
        raise AssertionError("was split")

    text = "a " * 600_000
    assert tiny("Anna")
    monkeypatch.setattr(tiny.predictor.featurizer, "docs", split)
    message = "1,200,000 characters exceed the limit of 1,000,000; split the text"
    for call in (lambda: tiny(text), lambda: tiny([text]), lambda: next(iter(tiny.predictor.stream([{"text": text}])))):
        with pytest.raises(DataError, match=f"^record 1: {message}"):
            call()
    with pytest.raises(DataError, match=rf"a\.txt:1: {message}"):
        predicted(tiny, tmp_path, "a.txt", text)
    with pytest.raises(DataError, match=r"^x:3: 1,000,001 words exceed the limit of [\d,]+; split the text"):
        tiny({"words": ["a"] * 1_000_001, "where": "x:3"})


def test_a_line_of_too_many_bytes_is_never_held(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes(b"Anna\n" + b"a" * 50_000_000 + b"\nBen")
    tracemalloc.start()
    lines = [line for line, _ in read_lines(path)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (lines[0], lines[2]) == ("Anna", "Ben")
    assert str(lines[1]) == f"{path}:2: this line has more than 10 MB; split the text"
    assert peak < 30_000_000
