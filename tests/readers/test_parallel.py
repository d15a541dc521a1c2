"""Files that go line by line together, good and bad, and plain lines."""

import gzip
from pathlib import Path

import pytest
from data_files import data_error

from seqpipe.config.signature import construct
from seqpipe.errors import DataError, UsageError
from seqpipe_plugins.readers.lines import Lines
from seqpipe_plugins.readers.parallel import Parallel

SNIPS = {"words": "seq.in", "tags": "seq.out", "label": "label"}


def write(folder: Path, **files: str) -> Path:
    """The files of SNIPS' layout; the path of the first."""
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content, encoding="utf-8")
    return folder / next(iter(files)).replace("_", ".")


def test_line_n_of_each_file_makes_record_n(tmp_path: Path) -> None:
    path = write(tmp_path, seq_in="play  jazz \ngo\n", seq_out="O B-style\nO \n", label="Play\n Go\n")
    words = ["play", "jazz"]
    assert list(Parallel(fields=SNIPS).read(path)) == [
        {"text": "play jazz", "words": words, "tags": ["O", "B-style"], "label": "Play", "where": f"{path}:1"},
        {"text": "go", "words": ["go"], "tags": ["O"], "label": "Go", "where": f"{path}:2"},
    ]


def test_any_of_the_files_may_be_named_and_all_belong_to_it(tmp_path: Path) -> None:
    write(tmp_path, seq_in="a\n", seq_out="O\n", label="x\n")
    reader = Parallel(fields=SNIPS)
    for name in SNIPS.values():
        assert reader.files(tmp_path / name) == [tmp_path / file for file in SNIPS.values()]
        assert next(reader.read(tmp_path / name))["where"] == f"{tmp_path / name}:1"


def test_a_star_matches_the_part_that_differs_between_train_and_dev(tmp_path: Path) -> None:
    write(tmp_path, train_en="a b\n\n", train_de="c d\n\n", dev_en="e\n", dev_de="f\n")
    reader = Parallel(fields={"text": "*.en", "target": "*.de"})
    assert [record["target"] for record in reader.read(tmp_path / "train.en")] == ["c d", ""]
    assert reader.files(tmp_path / "dev.de") == [tmp_path / "dev.en", tmp_path / "dev.de"]


def test_plain_tags_other_schemes_and_packed_files_are_read(tmp_path: Path) -> None:
    write(tmp_path, seq_in="\ufeff播 放\r\n", seq_out="S-X E-Y\n", label="x\n")
    (tmp_path / "in.gz").write_bytes(gzip.compress((tmp_path / "seq.in").read_bytes()))
    reader = construct(Parallel, fields={**SNIPS, "words": "in.gz"}, scheme="none", joiner="")
    (record,) = reader.read(tmp_path / "in.gz")
    assert (record["text"], record["tags"]) == ("播放", ["S-X", "E-Y"])
    (record,) = construct(Parallel, fields=SNIPS, scheme="BIOES", ill_formed="repair").read(tmp_path / "seq.in")
    assert record["tags"] == ["B-X", "B-Y"]


BAD: list[tuple[dict[str, str], str, int, str]] = [
    ({"seq_out": "O O\nO O O\nO\n"}, "seq.out", 2, "3 tags for 1 words; give one tag a word (the words are "),
    ({"seq_out": "O O\n"}, "seq.out", 2, "there is no such line, the others are longer; lines: seq.in 3, seq.out 1"),
    ({"label": "x\ny\nz\nz\nz\n"}, "seq.in", 4, "lines: seq.in 3, seq.out 3, label 5; give all files the same"),
    ({"seq_out": "O O\nX\nO\n"}, "seq.out", 2, "tag 1: 'X' is not a tag of IOB2"),
    ({"label": "x\n \nz\n"}, "label", 2, "the label is empty"),
    ({"seq_in": "a b\n\nc\n"}, "seq.in", 2, "there is no word in this line"),
]


@pytest.mark.parametrize(("files", "name", "line", "message"), BAD)
def test_a_bad_line_is_an_error_with_its_file(files: dict, name: str, line: int, message: str, tmp_path: Path) -> None:
    good = {"seq_in": "a b\nc\nd\n", "seq_out": "O O\nO\nO\n", "label": "x\ny\nz\n"}
    path = write(tmp_path, **{**good, **files})
    with data_error(f"{tmp_path / name}:{line}", message):
        list(Parallel(fields=SNIPS).read(path))


def test_a_sibling_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, seq_in="a\n", label="x\n")
    with pytest.raises(DataError, match=r"seq\.in: there is no file .*seq\.out beside it for `tags`; correct `fields`"):
        Parallel(fields=SNIPS).files(path)
    other = write(tmp_path, other="a\n")
    with pytest.raises(DataError, match=r"other: is none of the files of `fields` \(seq\.in, seq\.out, label\)"):
        next(Parallel(fields=SNIPS).read(other))


def test_files_without_a_line_are_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, seq_in="", seq_out="", label="")
    with pytest.raises(DataError, match=r"seq\.in: there is nothing in this file"):
        list(Parallel(fields=SNIPS).read(path))


WRONG_FIELDS = [
    ({"text": "a", "spans": "b"}, r"parallel\.fields: 'spans' cannot be read"),
    ({"text": "a", "words": "b"}, "a record is `words` or `text`"),
    ({"text": "a", "tags": "b"}, "`tags` belong to words"),
    ({"text": "../a"}, r"text: '\.\./a' is not a file's name"),
    ({"text": "*.*"}, "is not a file's name with at most one"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG_FIELDS)
def test_wrong_fields_are_refused_before_any_file(fields: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Parallel(fields=fields)


def test_lines_are_texts_as_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_bytes("\ufeff a  b\r\n \n\nc".encode())
    assert list(Lines().read(path)) == [{"text": " a  b", "where": f"{path}:1"}, {"text": "c", "where": f"{path}:4"}]
