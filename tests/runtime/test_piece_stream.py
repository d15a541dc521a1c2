"""Texts answered in pieces, by the Python interface and by the command, against the answers to whole texts."""

import io
import itertools
import json
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from streamed_bundles import streaming_bundle
from tiny_pipelines import command_line, environ, fail_with, seqpipe, tagged_sentences
from toy_bundles import changed_bundle

from seqpipe import Model, load
from seqpipe.batch.files import answer_chunks
from seqpipe.errors import BundleError, DataError, UsageError
from seqpipe.export.passes.int8 import in_int8
from seqpipe.runtime import bundle
from seqpipe.runtime.manifest import Limits, Streaming
from seqpipe.runtime.opened import same_answer

FORWARD = {"hidden": 6, "direction": "forward"}
HARD = ["", "  ", "Ada", " Ada\t\u00a0in  Rome .\u3000", "Dee Dee Fox met Bob Ray.", "e\u0301 Ꮎ 👩‍💻 New York"]
TEXTS = [" ".join(words) for words, _ in tagged_sentences(12, 5)] + HARD


TAGS, SPANS = {"use": "tags", "scheme": "none"}, {"use": "tags", "scheme": "IOB2"}
LABEL = {"use": "label", "pool": "mean", "target": "topic"}
LETTERS = {"use": "lookup", "dim": 6}


def transformer(hidden: int) -> dict[str, Any]:
    return {"use": "transformer", "causal": True, "heads": 2, "hidden": hidden}


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tags each word, with a cache that grows; its tokenizer leaves out what has no letters."""
    tokenizer = {"use": "words", "pattern": "[A-Za-z]+"}
    return streaming_bundle(tmp_path_factory.mktemp("tagger"), transformer(8), head=TAGS, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spans in IOB2, which end when another word shows it; `tests/export/parity` has those of BIOES."""
    return streaming_bundle(tmp_path_factory.mktemp("spans"), {"use": "gru", **FORWARD}, head=SPANS)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return streaming_bundle(tmp_path_factory.mktemp("classifier"), {"use": "lstm", **FORWARD}, head=LABEL)


def fed(model: Model, pieces: Sequence[str | list[str]]) -> list[Any]:
    """Everything that a stream makes known, of a bundle of tags or spans."""
    stream = model.open_stream()
    return [part for piece in pieces for part in stream.feed(piece)] + stream.finish()


def texts_of(output: str) -> list[list[Any]]:
    """Written parts of each text; nothing follows the last."""
    blocks: list[list[Any]] = [[]]
    for line in output.splitlines():
        blocks[-1:] = [[*blocks[-1], json.loads(line)]] if line else [blocks[-1], []]
    return blocks


def cut(whole: Any, dice: random.Random) -> list[Any]:
    """A text or a list in pieces of random sizes."""
    ends = [0]
    while ends[-1] < len(whole):
        ends.append(min(len(whole), ends[-1] + dice.choice([1, 2, 3, 7])))
    return [whole[a:b] for a, b in itertools.pairwise(ends)]


def test_tags_and_spans_of_a_text_in_any_chunks_are_those_of_the_whole(tagger: Path, spans: Path) -> None:
    dice = random.Random(0)
    for path in (tagger, spans):
        model, known = load(path), set()
        for text in TEXTS:
            whole, words = model(text), text.split()
            known |= {(part["word"], part.get("entity", part.get("entity_group"))) for part in whole}
            for _ in range(4):
                assert same_answer(fed(model, cut(text, dice)), whole, 1e-5)
            assert same_answer(fed(model, cut(words, dice)), model({"words": words}), 1e-5)
        assert len(known) >= 10
    stream = load(tagger).open_stream()
    assert [part["word"] for part in stream.feed(["Ada"])] == ["Ada"]  # a word by itself is complete
    (word,) = stream.feed(["met"])
    assert (word["start"], word["end"]) == (4, 7)


def test_chunks_in_int8_are_the_whole_in_int8(tmp_path: Path) -> None:
    path = streaming_bundle(tmp_path, transformer(128), embedding={"use": "lookup", "dim": 64}, head=SPANS)
    content, dice = bundle.read(path), random.Random(0)
    graph = in_int8(content.files["model.onnx"])
    assert len(graph) < 0.6 * len(content.files["model.onnx"])
    model = Model(bundle.BundleContent(path, content.manifest, {**content.files, "model.onnx": graph}), "cpu")
    wholes = [model(text) for text in TEXTS]
    assert sum(map(len, wholes)) >= 10
    for text, whole in zip(TEXTS, wholes, strict=True):
        assert same_answer(fed(model, cut(text, dice)), whole, 1e-5)


def test_a_word_is_complete_when_white_space_stands_behind_it(tagger: Path) -> None:
    stream = load(tagger).open_stream()
    assert stream.feed("12 - A") == []
    assert stream.feed("da") == []
    (ada,) = stream.feed(" m")
    assert (ada["word"], ada["start"], ada["end"]) == ("Ada", 5, 8)
    (met,) = stream.finish()
    assert (met["word"], met["start"], met["end"]) == ("m", 9, 10)
    assert [part["start"] for part in stream.feed("Bob ")] == [0]  # another text


def test_the_label_of_the_text_so_far_is_known_after_each_chunk(classifier: Path, tmp_path: Path) -> None:
    model = load(classifier)
    assert model.open_stream().feed("Ad") == {"label": None, "score": 0.0}
    changes = {"head": LABEL, "embedding": LETTERS, "tokenizer": {"use": "chars", "keep_spaces": False}}
    path = streaming_bundle(tmp_path, {"use": "lstm", **FORWARD}, "character", **changes)
    words = ("Ada flew to ", "Rome . ", "it rains ", "in Lima ", "and in Oslo today . ")
    for reader, chunks in ((model, words), (load(path), "\u200b  Ada  flew\tto Rome .  ")):
        stream, so_far = reader.open_stream(), ""
        for chunk in chunks:
            so_far += chunk
            assert same_answer(stream.feed(chunk), reader(so_far), 1e-5)
        assert same_answer(stream.finish(), reader(so_far), 1e-5)


def test_a_text_is_limited_where_a_cache_grows_with_it(tagger: Path, classifier: Path) -> None:
    growing, constant = load(tagger), load(classifier)
    growing.predictor.limits = constant.predictor.limits = Limits(tokens=4)
    stream = growing.open_stream()
    stream.feed("Ada met Bob in ")
    with pytest.raises(DataError, match=r"over 4 tokens, the limit of this bundle's cache; call `finish` earlier"):
        stream.feed("Rome ")
    stream.finish()
    stream.feed("Rome ")
    stream = constant.open_stream()
    for _ in range(5):
        stream.feed("Ada met Bob ")


def test_what_a_bundle_cannot_do_in_pieces_is_refused(tiny: Model, spans: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"whole texts only; write `export: {streaming: true}`"):
        tiny.open_stream()
    model = load(spans)
    with pytest.raises(UsageError, match=r"feed the chunks to `open_stream\(\)`"):
        model.stream("Ada")
    stream = model.open_stream()
    stream.feed("Ada ")
    with pytest.raises(UsageError, match="either as text or as words"):
        stream.feed(["met"])
    content = bundle.read(spans)
    cut_nowhere = content.manifest.model_copy(update={"streaming": Streaming(cut=None)})
    words_only = Model(bundle.BundleContent(spans, cut_nowhere, content.files))
    with pytest.raises(UsageError, match="feed lists of words"):
        words_only.open_stream().feed("Ada ")
    assert words_only.open_stream().feed(["Ada"]) is not None
    cache = tuple(entry for entry in content.manifest.cache if entry.input != "past.head")
    with pytest.raises(BundleError, match=r"disagree about past\.head"):
        Model(bundle.BundleContent(spans, content.manifest.model_copy(update={"cache": cache}), content.files))
    with pytest.raises(BundleError, match="streaming: must be an object"):
        load(changed_bundle(spans, tmp_path / "odd", streaming=True))


def test_the_command_writes_a_tag_before_the_next_piece_is_there(tagger: Path, tmp_path: Path) -> None:
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environ()}
    with subprocess.Popen(command_line("predict", tagger, "--stream"), cwd=tmp_path, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = []
        for piece in (b"Ada ", b"met\nBo", b"b R\xc3"):  # each is sent once the one before is answered
            process.stdin.write(piece)
            process.stdin.flush()
            lines.append(process.stdout.readline())
            if b"\n" in piece:
                assert process.stdout.readline() == b"\n"
        lines += process.communicate(b"\xa9\n")[0].splitlines()
    model = load(tagger)
    assert [json.loads(line) for line in lines if line] == model("Ada met") + model("Bob Ré")
    assert process.returncode == 0


def test_the_command_streams_spans_words_and_labels(spans: Path, classifier: Path, tmp_path: Path) -> None:
    model, texts = load(spans), [text for text in TEXTS if "\u3000" not in text]
    done = seqpipe("predict", spans, "--stream", stdin="\n".join(texts).encode())
    assert same_answer(texts_of(done.out), [*map(model, texts), []], 1e-5)
    columns = "\n\n".join("\n".join(words) for words, _ in tagged_sentences(12, 5)).encode()
    whole = seqpipe("predict", spans, "--format", "conll", stdin=columns)
    assert seqpipe("predict", spans, "--format", "conll", "--stream", stdin=columns).out == whole.out
    # A bundle's own reader of columns says where the words are.
    numbered = changed_bundle(spans, tmp_path / "numbered", reader={"use": "conll", "options": {"words": 1}})
    rows = b"".join(b"7 " + line if line.strip() else line for line in columns.splitlines(keepends=True))
    assert seqpipe("predict", numbered, "--format", "conll", "--stream", stdin=rows).out == whole.out
    assert "B-" in whole.out
    lines = seqpipe("predict", classifier, "--stream", stdin=b"Ada left\nit rains\n\nAda left").out.splitlines()
    model = load(classifier)
    expected = [model("Ada left"), model("Ada left\nit rains"), model("Ada left")]
    assert lines[2] == ""
    assert same_answer([json.loads(line) for line in lines if line], expected, 1e-5)


def test_the_end_of_a_line_is_no_character_of_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"embedding": LETTERS, "tokenizer": "chars", "head": TAGS}
    model = load(streaming_bundle(tmp_path, {"use": "lstm", **FORWARD}, "character", **changes))
    written: list[bytes] = []

    class Source(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            return self.read(1)  # as it comes

    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=Source(b"Ada\r\nBo\rb \r\n\r\nx\r")))
    answer_chunks(model, None, "text", written.append)
    assert same_answer(texts_of(b"".join(written).decode()), [model("Ada"), model("Bo\rb "), [], model("x"), []], 1e-5)


WRONG_ARGUMENTS = [
    (["--format", "jsonl"], b"", 2, "must be one of text, conll"),
    (["--output", "tags.txt"], b"", 2, "leave --output out"),
    (["--option", "n_best=2"], b"", 2, "no decode options"),
    ([], b"Ada\n\xff", 3, "standard input:2: byte 1 is not UTF-8"),
]


@pytest.mark.parametrize(("arguments", "stdin", "code", "message"), WRONG_ARGUMENTS)
def test_the_command_refuses_what_it_cannot_stream(
    arguments: list[str], stdin: bytes, code: int, message: str, classifier: Path, tmp_path: Path
) -> None:
    fail_with(code, message, "predict", classifier, "--stream", *arguments, stdin=stdin, folder=tmp_path)
