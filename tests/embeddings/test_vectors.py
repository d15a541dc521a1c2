"""Vector files of every format, good and bad, through the embedding `vectors`."""

import gzip
import re
import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqpipe.errors import DataError
from seqpipe.features.vocabulary import SPECIALS, Vocabulary
from seqpipe_plugins.embeddings.vectors import Vectors, entries

WORDS = Vocabulary([*SPECIALS, "ada", "Oslo", "née", "met"], [0, 0, 0, 0, 5, 3, 1, 1])
ROWS = {"née": (1.5, -2.0, 0.25), "x": (9.0, 9.0, 9.0), "Oslo": (0.5, 0.0, -1e-3), "ada": (1.0, 2.0, 3.0)}
Rows = dict[str, Sequence[float]]


def glove(rows: Rows) -> bytes:
    return "".join(" ".join([word, *map(repr, row)]) + "\n" for word, row in rows.items()).encode()


def word2vec(rows: Rows, end: str = "\n", after: str = "") -> bytes:
    """Text with a first line; fastText's .vec has a blank before each line's end."""
    lines = [f"{len(rows)} 3", *(" ".join([word, *map(str, row)]) + after for word, row in rows.items())]
    return "".join(line + end for line in lines).encode()


def binary(rows: Rows, end: bytes = b"\n") -> bytes:
    said = f"{len(rows)} 3\n".encode()
    return said + b"".join(word.encode() + b" " + struct.pack("<3f", *row) + end for word, row in rows.items())


FORMS = {
    "glove": glove(ROWS),
    "word2vec": word2vec(ROWS),
    "fasttext": word2vec(ROWS, after=" "),
    "crlf": word2vec(ROWS, end="\r\n"),
    "bom": b"\xef\xbb\xbf" + word2vec(ROWS),
    "tabs": glove(ROWS).replace(b" ", b"\t"),
    "binary": binary(ROWS),
    "binary-without-line-ends": binary(ROWS, b""),
    "glove.gz": gzip.compress(glove(ROWS)),
    "binary.gz": gzip.compress(binary(ROWS)),
}


def write(folder: Path, content: bytes) -> Path:
    path = folder / "some.vec"
    path.write_bytes(content)
    return path


def table(embedding: Vectors, size: int = len(WORDS)) -> torch.Tensor:
    """The vectors of all ids of the vocabulary."""
    with torch.no_grad():
        return embedding.eval()(torch.arange(size)[None])["x"][0]  # (V, D)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("train", [True, False])
def test_every_format_gives_the_same_vectors(form: str, train: bool, tmp_path: Path) -> None:
    embedding = Vectors(WORDS, path=write(tmp_path, FORMS[form]), train=train)
    assert embedding.dim == 3
    vectors = table(embedding).numpy()
    for word in ("ada", "Oslo", "née"):
        assert vectors[WORDS.index(word)] == pytest.approx(np.array(ROWS[word], "f4"), abs=0)
    assert vectors.any(1).tolist() == [False, *[True] * 7]  # of the padding alone there is none


def test_a_format_may_be_stated(tmp_path: Path) -> None:
    expected = table(Vectors(WORDS, path=write(tmp_path, glove(ROWS)), missing="zero"))
    for form, name in (("glove", "glove"), ("word2vec", "word2vec"), ("word2vec-binary", "binary")):
        path = write(tmp_path, FORMS[name])
        assert torch.equal(table(Vectors(WORDS, path=path, format=form, missing="zero")), expected)  # type: ignore[arg-type]


def test_words_that_hold_blanks_are_words(tmp_path: Path) -> None:
    content = glove({"a": ROWS["x"]}) + b". . 1 2 3\nat me@x.org 1 2 3\n" + glove({"ada": ROWS["ada"]})
    assert [entry.word for entry in entries(write(tmp_path, content), lambda word: True, "auto", None)] == [
        *("a", ". .", "at me@x.org", "ada")
    ]


FOUND = [WORDS.index(word) for word in ("ada", "Oslo", "née")]
MISSING = [1, 2, 3, WORDS.index("met")]


@pytest.mark.parametrize(("train", "missing"), [(False, "trained"), (True, "zero")])
def test_words_without_a_vector_are_trained_and_with_train_all_words(train: bool, missing: Any, tmp_path: Path) -> None:
    embedding = Vectors(WORDS, path=write(tmp_path, glove(ROWS)), train=train, missing=missing)
    before = table(embedding).clone()
    embedding.train()
    optimizer = torch.optim.AdamW(embedding.parameters(), lr=0.1, weight_decay=0.3)
    embedding(torch.arange(len(WORDS))[None])["x"].sum().backward()
    optimizer.step()
    after = table(embedding)
    assert before[MISSING].any() != train
    assert (before[MISSING] != after[MISSING]).all()
    assert (before[FOUND] != after[FOUND]).all() == (before[FOUND] != after[FOUND]).any() == train
    assert not after[0].any()


@pytest.mark.parametrize("missing", ["random", "zero"])
def test_words_without_a_vector_may_stay_as_they_are(missing: Any, tmp_path: Path) -> None:
    made = Vectors(WORDS, path=write(tmp_path, glove(ROWS)), missing=missing)
    assert list(made.parameters()) == []
    assert table(made)[MISSING].any() == (missing == "random")


def test_random_vectors_are_as_large_as_the_files_and_all_are_scaled(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = {f"w{i}": random.normal(0, 0.3, 50).tolist() for i in range(200)}
    words = [*SPECIALS, *rows, *(f"other{i}" for i in range(200))]
    torch.manual_seed(0)
    x = table(Vectors(words, path=write(tmp_path, glove(rows)), scale=2.0), len(words))
    assert x[4:204].numpy() == pytest.approx(2 * np.array(list(rows.values())), abs=1e-6)
    assert x[204:].std() == pytest.approx(0.6, rel=0.05)


def test_words_of_another_case_match_on_request_and_a_vector_of_the_word_itself_goes_first(tmp_path: Path) -> None:
    rows = {"ADA": (1, 1, 1), "Ada": (2, 2, 2), "oslo": (3, 3, 3), "NÉE": (4, 4, 4), "née": (5, 5, 5)}
    path = write(tmp_path, glove(rows))
    assert table(Vectors(WORDS, path=path, case="fold", missing="zero"))[:, 0].tolist() == [0, 0, 0, 0, 1, 3, 5, 0]
    assert table(Vectors(WORDS, path=path, missing="zero"))[:, 0].tolist() == [0, 0, 0, 0, 0, 0, 5, 0]


def test_the_coverage_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path, glove(ROWS))
    message = "3 of 4 words (75.0%) have a vector in some.vec"
    assert Vectors(list(WORDS), path=path).messages() == [message]
    message += "; these are 90.0% of the known words in the training texts"
    assert Vectors(WORDS, path=path).messages() == [message]


def test_the_state_holds_every_vector_so_that_another_file_changes_nothing(tmp_path: Path) -> None:
    first = Vectors(WORDS, path=write(tmp_path, glove(ROWS)))
    other = Vectors(WORDS, path=write(tmp_path, glove(dict.fromkeys(ROWS, (7, 7, 7)))))
    other.load_state_dict(first.state_dict())
    assert torch.equal(table(first), table(other))


def test_the_first_words_of_a_file_may_be_enough(tmp_path: Path) -> None:
    cut_short = word2vec(ROWS).replace(b"4 3", b"4000000 3", 1)
    for content in (cut_short, binary(ROWS).replace(b"4 3", b"4000000 3", 1), glove(ROWS) + b"torn 1\n"):
        embedding = Vectors(WORDS, path=write(tmp_path, content), limit=3, missing="zero")
        assert table(embedding)[:, 0].tolist() == [0, 0, 0, 0, 0, 0.5, 1.5, 0]


def test_a_file_of_any_size_takes_little_memory(tmp_path: Path) -> None:
    row = " 0.125" * 100
    for content in (
        "".join(f"w{i}{row}\n" for i in range(40_000)).encode(),
        b"40000 100\n" + b"".join(b"w%d " % i + bytes(400) for i in range(40_000)),
    ):
        path = write(tmp_path, content)
        tracemalloc.start()
        Vectors([*SPECIALS, "w7", "w39999"], path=path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < len(content) / 8


BAD: list[tuple[bytes, str, str]] = [
    (b"ada 1 2 3\nmet 1 2\n", ":2: ", "2 numbers in this line, but 3 are expected (as in its first line)"),
    (b"ada 1 2 3\nmet 1 2 3 4\n", ":2: ", "4 numbers in this line, but 3"),
    (b"2 3\nada 1 2 3\nmet 1 2\n", ":3: ", "2 numbers in this line, but 3 are expected (from its first line)"),
    (b"2 4\nada 1 2 3\nmet 1 2 3\n", ":2: ", "3 numbers in this line, but 4 are expected (from its first line)"),
    (b"2 2\nada 1 2 3\nmet 1 2 3\n", ":2: ", "3 numbers in this line, but 2"),
    (b"ada\n", ":1: ", "0 numbers in this line"),
    (b"3 3\nada 1 2 3\nmet 1 2 3\n", ":1: ", "says 3 words, but 2 follow; check that it is complete, correct"),
    (b"1 3\nada 1 2 3\nmet 1 2 3\n", ":1: ", "the first line says 1 words, but 2 follow"),
    (b"ada 1 2 3\nx 1 2 3\nada 1 2 3\n", ":3: ", "the word 'ada' has a vector already (line 1); remove one of the two"),
    (b"ada 1 2 3\nmet 1 nan 3\n", ":2: ", "the vector of 'met' has NaN or infinity"),
    (b"ada 1 2 1e40\n", ":1: ", "the vector of 'ada' has NaN or infinity"),
    (b"ada 1 2 x3\n", ":1: ", "'x3' after 'ada' is not a number"),
    (b"ada 1 2 3\nn\xe9e 1 2 3\n", ":2: ", r"the word b'n\xe9e' is not UTF-8; convert the file"),
    (b"ada 1 2 3\n 1 2 3\n", ":2: ", "the word is empty"),
    (b"other 1 2 3\n", ": ", "no word of the vocabulary (4 words) is in this file; check that both have the same"),
    (b"", ": ", "this file has no vectors"),
    (b"\n\n", ": ", "this file has no vectors"),
    (b"\xba\x16\x4f\x2f" + bytes(40), ": ", "this is a fastText model (.bin)"),
    (binary(ROWS)[:-3], ": byte 69: ", "the file ends within word 4 of 4, which begins at byte 54; download it again"),
    (binary(ROWS).replace(b"4 3", b"9 3", 1), ": byte 72: ", "the file ends within word 5 of 9"),
    (binary(ROWS).replace(b"4 3", b"3 3", 1), ": byte 54: ", "the file has more than the 3 words"),
    (binary({**ROWS, "met": (1, float("nan"), 2)}), ": byte 72: ", "the vector of 'met' has NaN"),
    (binary({**ROWS, "met": (1, 2, float("inf"))}), ": byte 72: ", "the vector of 'met' has NaN or infinity"),
    (binary(ROWS).replace(b"4 3", b"5 3", 1) + b"ada " + bytes(12), ": byte 72: ", "has a vector already (byte 55)"),
    (binary(ROWS).replace("née".encode(), b"n\xe9e", 1), ": byte 4: ", "is not UTF-8"),
    (b"2 3\n" + b"\1" * 30_000, ": byte 4: ", "there is no word here"),
    (gzip.compress(glove(ROWS))[:-9], ": ", "cannot be decompressed"),
]


@pytest.mark.parametrize(("content", "place", "message"), BAD, ids=map(str, range(len(BAD))))
def test_a_bad_file_is_an_error_with_its_place(content: bytes, place: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, content)
    with pytest.raises(DataError, match=f"^{re.escape(str(path) + place)}.*{re.escape(message)}"):
        Vectors(WORDS, path=path)


@pytest.mark.parametrize("size", [1, 18, 54, 55])
def test_a_binary_file_is_read_in_any_chunks(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqpipe_plugins.embeddings.vectors.CHUNK_BYTES", size)
    read = [*entries(write(tmp_path, binary(ROWS)), lambda word: True, "auto", None)]
    expected = {word: np.array(row, "f4").tolist() for word, row in ROWS.items()}
    assert {entry.word: entry.numbers.tolist() for entry in read} == expected
    with pytest.raises(DataError, match="byte 54: the file has more than the 3 words"):
        Vectors(WORDS, path=write(tmp_path, binary(ROWS).replace(b"4 3", b"3 3", 1)))


def test_a_missing_file_is_an_error_that_says_what_needs_it(tmp_path: Path) -> None:
    message = "no such file; a run reads its vectors whenever it is built; a bundle does not need them"
    with pytest.raises(DataError, match=message):
        Vectors(WORDS, path=tmp_path / "gone.vec")
    with pytest.raises(DataError, match="cannot be read"):
        Vectors(WORDS, path=tmp_path)


def test_a_first_line_that_is_none_is_an_error_where_the_format_is_said(tmp_path: Path) -> None:
    for form in ("word2vec", "word2vec-binary"):
        with pytest.raises(DataError, match=r"some\.vec:1: the first line must have the number of words"):
            Vectors(WORDS, path=write(tmp_path, glove(ROWS)), format=form)  # type: ignore[arg-type]
