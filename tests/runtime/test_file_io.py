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
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import forged
import pytest
from factory import seqpipe
from tokenizers import Regex, Tokenizer, pre_tokenizers

from seqpipe import Model, load
from seqpipe.errors import DataError, EnvError, SkippedError, UsageError
from seqpipe.runtime import bundle
from seqpipe.runtime.file_io import BLOCK, predict_file, read_lines

COMMAND = [sys.executable, "-c", "from seqpipe.commands.app import main; main()", "predict"]
ENVIRONMENT = {**os.environ, "PYTHONIOENCODING": "ascii"}  # whatever the terminal says, UTF-8 comes out


def predicted(model: Model, folder: Path, name: str, content: str | bytes, form: str = "auto", **options: Any) -> str:
    source, target = folder / name, folder / "out"
    source.write_bytes(content if isinstance(content, bytes) else content.encode())
    predict_file(model, source, target, form, options.pop("documents", False), options)
    return target.read_bytes().decode()


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def words(answer: list[dict[str, Any]]) -> list[str]:
    return [span["word"] for span in answer]


def test_text_gives_a_line_of_json_a_line(tiny: Model, tmp_path: Path) -> None:
    out = predicted(tiny, tmp_path, "a.txt", "Anna calls\r\n\nZoë in Bern")
    assert [words(answer) for answer in lines(out)] == [["Anna"], [], ["Zoë", "Bern"]]
    assert "Zoë" in out


def test_jsonl_is_given_back_whole_with_the_answer(tiny: Model, tmp_path: Path) -> None:
    records = [
        {"text": "in Bern", "id": 7, "where": "my own"},
        {"words": ["Anna", "calls"], "tags": ["O", "O"]},
        {"text": "", "note": "你"},
    ]
    out = lines(predicted(tiny, tmp_path, "a.jsonl", "\n".join(map(json.dumps, records)) + '\n\n"Ben"\n'))
    assert [words(line.pop("answer")) for line in out] == [["Bern"], ["Anna"], [], ["Ben"]]
    assert out == [*records, {"text": "Ben"}]


def test_conll_gives_the_words_with_their_tags(tiny: Model, tiny_tagger: Model, tmp_path: Path) -> None:
    source = "# id = 1\nAnna O\nin O\nNew O\nYork O\n\ncalls X\n"
    expected = "Anna\tB-person\nin\tO\nNew\tB-city\nYork\tI-city\n\ncalls\tO\n\n"
    assert predicted(tiny, tmp_path, "a.conll", source) == expected
    assert predicted(tiny_tagger, tmp_path, "a.conll", source) == expected


def test_conll_may_come_without_tags(tiny: Model, tmp_path: Path) -> None:
    out = predicted(tiny, tmp_path, "a.txt", "Anna\nin\n\nBern\n", "conll")
    assert out == "Anna\tB-person\nin\tO\n\nBern\tB-city\n\n"


@pytest.mark.parametrize(
    ("reader", "source"),
    [
        ({"use": "conll", "options": {"words": 1}}, "1 Anna O\n2 in O\n\n1 Bern O\n"),
        ({"use": "jsonl", "options": {"words": "tokens"}}, "Anna O\nin O\n\nBern O\n"),
    ],
)
def test_conll_is_read_by_the_options_of_a_reader_of_conll(
    reader: dict[str, Any], source: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    content = bundle.read(tiny_bundle)
    forged.write(tmp_path / "bundle", content.files, {**forged.plain(content.manifest), "reader": reader})
    model = load(tmp_path / "bundle", "cpu")
    assert predicted(model, tmp_path, "a.conll", source) == "Anna\tB-person\nin\tO\n\nBern\tB-city\n\n"


def test_a_lone_surrogate_is_given_back_as_json_says_it(tiny: Model, tmp_path: Path) -> None:
    out = predicted(tiny, tmp_path, "a.jsonl", '{"text": "Anna \\ud800"}\n')
    (line,) = lines(out)
    assert (line["text"], words(line["answer"])) == ("Anna \ud800", ["Anna"])
    assert "\\ud800" in out


def test_documents_are_taken_whole(tiny: Model, tmp_path: Path) -> None:
    content = json.dumps({"text": "Anna calls.\nBen in Bern."}) + "\n" + json.dumps({"text": ""})
    first, second = lines(predicted(tiny, tmp_path, "a.jsonl", content, documents=True))
    assert [(span["word"], span["start"]) for span in first["answer"]] == [("Anna", 0), ("Ben", 12), ("Bern", 19)]
    assert second["answer"] == []


def test_options_are_handed_on(tiny: Model, tmp_path: Path) -> None:
    assert predicted(tiny, tmp_path, "a.txt", "Anna", bias=10.0) == "[]\n"


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("a.txt", b"Anna\n\xe9t\xe9\n", DataError, r"a\.txt:2: byte 1 is not UTF-8; convert it: iconv"),
        ("a.txt", "Anna\n".encode("utf-16"), DataError, r"a\.txt:1: byte 1 is not UTF-8; convert it: iconv -f utf-16"),
        (
            "a.txt",
            gzip.compress(b"Anna\n", mtime=0),
            DataError,
            r"a\.txt:1: byte 2 is not UTF-8; it is compressed with gzip: unpack it",
        ),
        ("a.txt", "a\n" + "a " * 1001, DataError, r"a\.txt:2: 1,001 tokens exceed the limit"),
        ("a.jsonl", '{"text": "a"}\nnot json\n', DataError, r"a\.jsonl:2: not JSON: .*; use --format text"),
        ("a.jsonl", "[1]", DataError, r"a\.jsonl:1: must be an object with `text` or `words`, not list"),
        ("a.jsonl", '{"title": "x"}', DataError, r"a\.jsonl:1: no field 'text'; the record has"),
        ("a.jsonl", '\n{"words": "x"}', DataError, r"a\.jsonl:2: 'words' must be a list of strings"),
        ("a.jsonl", '{"words": ["x"], "text": "y"}', DataError, r"a\.jsonl:1: word 'x' is not in the text"),
        ("a.jsonl", '{"text": "x", "score": NaN}', DataError, r"a\.jsonl:1: not JSON: NaN is not JSON"),
        ("a.jsonl", '{"a":' * 99_999, DataError, r"a\.jsonl:1: nested too deeply|a\.jsonl:1: not JSON"),
        ("a.jsonl", "[" * 99_999, DataError, r"a\.jsonl:1: nested too deeply"),
        ("a.conll", "Anna O\nBern\n", DataError, r"a\.conll:2: "),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_written(
    name: str, content: str | bytes, error: type[Exception], message: str, tiny: Model, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("old")
    with pytest.raises(error, match=message):
        predicted(tiny, tmp_path, name, content)
    assert (tmp_path / "out").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["out", name])


@pytest.mark.parametrize(
    ("form", "options", "message"),
    [
        ("xml", {}, "--format xml: must be one of text, jsonl, conll"),
        ("conll", {"documents": True}, "--format conll: .* one answer a sentence"),
        ("conll", {"n_best": 2}, "--format conll: .* one answer a sentence"),
        ("conll", {"n_best": "two"}, "--format conll: .* one answer a sentence"),
        ("text", {"beams": 2}, "no decode option 'beams'"),
    ],
)
def test_a_wish_that_cannot_be_met_is_an_error(
    form: str, options: dict[str, Any], message: str, tiny: Model, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        predicted(tiny, tmp_path, "a", "Anna\n", form, **options)


def test_a_missing_file_or_folder_is_named(tiny: Model, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing: there is no such file"):
        predict_file(tiny, tmp_path / "nothing", None, "auto", False, {})
    (tmp_path / "a").write_text("Anna")
    with pytest.raises(UsageError, match=r"there is no folder .*/nowhere"):
        predict_file(tiny, tmp_path / "a", tmp_path / "nowhere" / "out", "auto", False, {})


def test_the_command_reads_standard_input_and_answers_on_standard_output(tiny_bundle: Path) -> None:
    text = "Anna\n你好 in Bern\n".encode()
    done = subprocess.run([*COMMAND, str(tiny_bundle)], input=text, capture_output=True, env=ENVIRONMENT, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert [words(answer) for answer in lines(done.stdout.decode("utf-8"))] == [["Anna"], ["Bern"]]


def test_a_bad_line_ends_the_command_after_the_good_ones_before_it(tiny_bundle: Path) -> None:
    text = "Anna\n" * 3000 + "a " * 1001 + "\n"
    done = subprocess.run(
        [*COMMAND, str(tiny_bundle), "--threads", "1"], input=text, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == DataError.exit_code
    assert done.stderr.startswith("standard input:3001: 1,001 tokens")
    assert "Traceback" not in done.stderr
    assert all(words(answer) == ["Anna"] for answer in lines(done.stdout))


def test_who_types_is_answered_at_once(tiny_bundle: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, str(tiny_bundle)], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        for text, expected in (("in Bern", ["Bern"]), ("Anna", ["Anna"])):
            os.write(ours, f"{text}\n".encode())
            assert words(json.loads(process.stdout.readline())) == expected
        os.write(ours, b"\x04")  # end of input
        assert process.wait(30) == 0
    os.close(theirs)
    os.close(ours)


# ── answers flow, and one bad line costs no other its answer ─────────────────

LONG = "a " * 1001
EVIL = r"([a-z0-9]+[.-]?)+@[a-z]+|\w+"
BAD_LINES = {
    "not UTF-8": (b"\xe9t\xe9", "byte 1 is not UTF-8"),
    "too long": (LONG.encode(), "1,001 tokens exceed the limit"),
    "panics": (b"a" * 60, "the tokenizer cannot split 'a{40}'… .60 characters.: Onig"),
}


@pytest.fixture(scope="module")
def fragile_bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy with a pattern that the library panics at."""
    made = bundle.read(tiny_bundle)
    tokenizer = Tokenizer.from_str(made.files["tokenizer.json"].decode())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(EVIL), "removed", invert=True)
    files = {**made.files, "tokenizer.json": tokenizer.to_str().encode()}
    folder = tmp_path_factory.mktemp("fragile") / "bundle"
    bundle.write(folder, files, made.manifest)
    return folder


@pytest.mark.parametrize("bad", BAD_LINES)
@pytest.mark.parametrize("threads", ["1", "2"])
def test_skipping_gives_a_bad_line_its_error_and_every_other_its_answer(
    bad: str, threads: str, fragile_bundle: Path, tmp_path: Path
) -> None:
    line, told = BAD_LINES[bad]
    content = b"Anna\n" * 1500 + line + b"\n" + b"Bern\n" * 1500 + line
    done = subprocess.run(
        [*COMMAND, str(fragile_bundle), "--threads", threads, "--on-error", "skip"],
        input=content,
        capture_output=True,
        timeout=60,
    )
    answers = lines(done.stdout.decode())
    errors = {number: answer["error"] for number, answer in enumerate(answers, 1) if isinstance(answer, dict)}
    assert (done.returncode, len(answers), [*errors]) == (SkippedError.exit_code, 3002, [1501, 3002])
    assert all(re.match(f"standard input:{number}: {told}", error) for number, error in errors.items())
    assert b"2 of 3,002 inputs have no answer" in done.stderr
    assert b"Traceback" not in done.stderr
    assert [words(answer) for answer in answers if isinstance(answer, list)] == [["Anna"]] * 1500 + [["Bern"]] * 1500


@pytest.mark.parametrize("bad", BAD_LINES)
def test_all_lines_before_a_bad_one_are_answered(bad: str, fragile_bundle: Path) -> None:
    line, told = BAD_LINES[bad]
    done = subprocess.run(
        [*COMMAND, str(fragile_bundle)], input=b"Anna\n" * 2000 + line, capture_output=True, timeout=60
    )
    assert done.returncode == DataError.exit_code
    assert [words(answer) for answer in lines(done.stdout.decode())] == [["Anna"]] * 2000
    assert re.search(f"^standard input:2001: {told}", done.stderr.decode(), re.MULTILINE)


def test_skipped_records_of_json_keep_their_fields(tiny: Model, tmp_path: Path) -> None:
    content = '{"text": "Anna"}\nno json\n{"id": 7}\n{"words": 5}\n{"text": "Bern", "id": 8}\n'
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(SkippedError, match=r"a\.jsonl: 3 of 5 inputs have no answer"):
        predict_file(tiny, tmp_path / "a.jsonl", tmp_path / "out", "auto", False, {}, "skip")
    first, broken, lacking, wrong, last = lines((tmp_path / "out").read_text())
    assert (words(first["answer"]), words(last["answer"]), last["id"]) == (["Anna"], ["Bern"], 8)
    assert broken.keys() == {"answer"}
    assert "a.jsonl:2: not JSON" in broken["answer"]["error"]
    assert (lacking["id"], wrong["words"]) == (7, 5)
    assert "a.jsonl:3: no field 'text'; the record has: id" in lacking["answer"]["error"]
    assert "'words' must be a list" in wrong["answer"]["error"]


def test_a_document_without_an_answer_is_skipped_alone(tiny: Model, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"Anna. Bern.\n{LONG}\nBen.\n")
    with pytest.raises(SkippedError, match="1 of 3 inputs"):
        predict_file(tiny, tmp_path / "a.txt", tmp_path / "out", "auto", True, {}, "skip")
    first, broken, last = lines((tmp_path / "out").read_text())
    assert (words(first), words(last)) == (["Anna", "Bern"], ["Ben"])
    assert "a.txt:2: 1,001 tokens" in broken["error"]


@pytest.mark.parametrize(
    ("form", "on_error", "message"), [("text", "go", "must be one of stop, skip"), ("conll", "skip", "lines of text")]
)
def test_what_cannot_be_skipped_is_told(form: str, on_error: str, message: str, tiny: Model, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("Anna\n")
    with pytest.raises(UsageError, match=f"--on-error {on_error}: .*{message}"):
        predict_file(tiny, tmp_path / "a", None, form, False, {}, on_error)


@pytest.mark.parametrize(
    ("form", "given", "expected"),
    [
        ("text", ["Anna\n", "in Bern\nBen\nsom", "e\n"], [1, 2, 1]),
        ("jsonl", ['{"text": "Anna"}\n', '\n"Ben"\n'], [1, 1]),
        ("conll", ["Anna\tO\n\nin", "\tO\nBern O\n\n"], [2, 3]),  # the first sentence comes before the second is whole
    ],
)
def test_a_pipe_that_stays_open_gets_each_answer_when_its_input_runs_dry(
    form: str, given: list[str], expected: list[int], tiny_bundle: Path
) -> None:
    with subprocess.Popen(
        [*COMMAND, str(tiny_bundle), "--format", form], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for text, count in zip(given, expected, strict=True):
            process.stdin.write(text.encode())
            for _ in range(count):
                assert select.select([process.stdout], [], [], 30)[0]
                assert process.stdout.readline().endswith(b"\n")
        process.stdin.close()
        assert process.wait(30) == 0


def test_a_long_line_comes_in_many_pieces(tiny: Model, tmp_path: Path) -> None:
    text = "Anna\n" + " " * 900_000 + "Bern\n\nBen"
    assert [words(answer) for answer in lines(predicted(tiny, tmp_path, "a.txt", text))] == [
        ["Anna"],
        ["Bern"],
        [],
        ["Ben"],
    ]


# ── what the machine does to it ──────────────────────────────────────────────


def test_a_full_standard_output_is_told_with_a_cure(tiny_bundle: Path) -> None:
    for arguments in (["predict", str(tiny_bundle)], ["schema"]):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [*COMMAND[:-1], *arguments], input=b"Anna\n" * 9, stdout=full, stderr=subprocess.PIPE, timeout=60
            )
        assert done.returncode == EnvError.exit_code
        told = done.stderr.decode()
        assert re.fullmatch(r"standard output.*No space left on device; free some space, or .*\n", told), told


def test_sigterm_leaves_nothing_behind(tiny_bundle: Path, tmp_path: Path) -> None:
    command = [*COMMAND, str(tiny_bundle), "-o", str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"Anna\n" * 5000)
        process.stdin.flush()
        while not list(tmp_path.glob(".out.*.part")):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_is_removed_by_the_next_one(tiny_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out[1].jsonl"
    command = [*COMMAND, str(tiny_bundle), "-o", str(out)]

    def begun() -> tuple[subprocess.Popen[bytes], Path]:
        before = {*tmp_path.iterdir()}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        while not (made := {*tmp_path.glob(".out*.part")} - before):
            time.sleep(0.01)
        return process, made.pop()

    killed, torn = begun()
    killed.kill()
    killed.communicate(timeout=30)
    assert torn.exists()
    alive, kept = begun()
    assert (torn.exists(), kept.exists()) == (False, True)
    (tmp_path / ".out.jsonl.0123456789abcdef.part").write_text("of another target")
    done = seqpipe("predict", tiny_bundle, "-o", out, "--device", "cpu", stdin=b"Anna\n")
    assert (done.code, kept.exists(), out.exists()) == (0, True, True)
    alive.communicate(b"Anna\nBen\n", timeout=60)
    assert (alive.returncode, len(out.read_text().splitlines())) == (0, 2)
    assert {path.name for path in tmp_path.iterdir()} == {out.name, ".out.jsonl.0123456789abcdef.part"}


def test_a_file_that_may_not_grow_is_named(tiny_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("old")
    done = subprocess.run(
        [*COMMAND, str(tiny_bundle), "-o", str(out)],
        input=b"Anna in Bern\n" * 3000,
        capture_output=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert done.returncode == EnvError.exit_code
    assert f"{out}: cannot grow: File too large; what was there is unchanged. Raise" in done.stderr.decode()
    assert (out.read_text(), [*tmp_path.iterdir()]) == ("old", [out])


# ── too long to be split ─────────────────────────────────────────────────────


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
    path = tmp_path / "it"
    with path.open("wb") as file:
        file.write(b"Anna\n")
        for _ in range(50_000_000 // BLOCK):
            file.write(b"a" * BLOCK)
        file.write(b"\nBen")
    tracemalloc.start()
    lines = [line for line, _ in read_lines(path)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (lines[0], lines[2]) == ("Anna", "Ben")
    assert str(lines[1]) == f"{path}:2: this line has more than 10 MB; split the text"
    assert peak < 30_000_000


@pytest.mark.parametrize("line", ['{"text": "Anna", "text": "Ben"}', '{"text": "Anna", "more": [{"a": 1, "a": 1}]}'])
def test_a_key_that_is_given_twice_is_refused(line: str, tiny: Model, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl:1: not JSON: the key '(text|a)' is given twice; keep one"):
        predicted(tiny, tmp_path, "a.jsonl", line)
