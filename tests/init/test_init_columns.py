"""`init` on large files, on formats that no reader supports, and with a task that is asked for."""

import io
import json
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from data_files import init_config, write_files

from seqpipe.config.contract import build_component
from seqpipe.errors import DataError, OpenChoiceError, UsageError
from seqpipe.init import init_yaml


def init_text(folder: Path, content: str, name: str, **options: Any) -> str:
    """The YAML that `init` writes for a file of this content."""
    return init_config(folder, content, name, **options).file.read_text()


def refusal(data: Path, **options: Any) -> str:
    """The message with which `init` refuses a file."""
    with pytest.raises((DataError, UsageError)) as caught:
        init_yaml(data, data.with_name("refused.yaml"), **options)
    assert not data.with_name("refused.yaml").exists()
    return str(caught.value)


def test_the_last_row_is_as_important_as_the_first(tmp_path: Path) -> None:
    rows = "text,label\n" + "".join(f"a text of some words {number},first\n" for number in range(9_999)) + "one,third\n"
    assert "# Labels: first 9,999, third 1, second 1" in init_text(tmp_path, rows + "the last,second\n", "a.csv")
    data = tmp_path / "a.csv"
    data.write_text(rows + "the last\n")
    text = init_yaml(data, tmp_path / "c.yaml").read_text()
    assert "leaves such records out: " in text
    assert "a.csv:10002: one column in this line, but 2 have names" in text
    data.write_bytes(rows.encode() + b"the l\xe4st,second\n")
    assert "encoding: cp1252" in init_yaml(data, tmp_path / "b.yaml").read_text()


def test_lists_that_all_differ_are_labels_if_their_parts_recur(tmp_path: Path) -> None:
    labels = [f"{first}, {second}" for first in range(40, 60) for second in range(60, 80)]
    rows = "".join(f'a text of some words {i},"{cell}"\n' for i, cell in enumerate(labels))
    assert "separated by ','" in init_text(tmp_path, f"text,labels\n{rows}", "a.csv")


def test_parts_of_a_large_file_represent_all_of_it(tmp_path: Path) -> None:
    content = "in O\nBern B-city\nit O\nrains O\n\n" * 90_000 + "my O\nname B-name\n\n" * 90_000
    text = init_text(tmp_path, content, "a.conll")
    (records,) = re.findall("about ([0-9,]+) ", text.splitlines()[2])
    assert 150_000 < int(records.replace(",", "")) < 210_000
    assert {name for name, _ in re.findall("(city|name) ([0-9,]{5,})", text)} == {"city", "name"}


def test_a_fault_in_a_part_of_a_large_file_has_its_line(tmp_path: Path) -> None:
    content = "in O\nBern B-city\nit O\nrains O\n\n" * 130_000 + "my O\nname\n\n" * 1_000
    text = init_text(tmp_path, content, "a.conll")
    assert "a.conll:650002: one column in this line, but 2 in line 1; " in text
    assert "  bad_rows: skip" in text


def zip_of(part: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(part, "text")
    return content.getvalue()


LABELLED = "".join(f"the dog {n} sees it\tthe cat {n} does\t{n % 2}\n" for n in range(30))
SPANS = "".join(f'{{"text": "in Bern {n}", "spans": [[3, 7, "city"]], "label": "{n % 2}"}}\n' for n in range(9))


CHOSEN_TASKS = [
    (LABELLED, "label", ["use: label", "columns: [text, text_pair, label]", "field: [text, text_pair]"]),
    (LABELLED, "score", ["use: score", "numbers: [label]"]),
    (LABELLED, "seq2seq", ["use: seq2seq", "columns: [text, target, _]"]),
    (SPANS, "label", ["use: label"]),
    (SPANS, "crf", ["use: crf"]),
]


@pytest.mark.parametrize(("content", "task", "contains"), CHOSEN_TASKS)
def test_the_option_task_overrides_recognition(content: str, task: str, contains: list[str], tmp_path: Path) -> None:
    text = init_text(tmp_path, content, "a.txt", task=task)
    assert [part for part in contains if part not in text] == []


WORDS, TAGS = "Ann lives in Oslo", "B-PER O O B-LOC"
PAIRS = [*zip(WORDS.split(), TAGS.split(), strict=True)]
ROWS = [f"{n if not i else ''},{word}{n},{tag}\n" for n in range(20) for i, (word, tag) in enumerate(PAIRS)]
LISTS = [json.dumps({"words": [*WORDS.split(), str(n)], "tags": [*TAGS.split(), "O"]}) + "\n" for n in range(20)]


TAGGED_FILES = [
    ("rows.csv", "Sentence #,Word,Tag\n" + "".join(ROWS)),
    ("cells.csv", "words,tags\n" + "".join(f"{WORDS} {n},{TAGS} O\n" for n in range(20))),
    ("lists.jsonl", "".join(LISTS)),
    ("words.conll", "".join(f"Ann{n} B-PER\nlives O\n\n" for n in range(20))),
]


@pytest.mark.parametrize(("name", "content"), TAGGED_FILES)
def test_tags_of_entities_are_read_as_plain_tags_for_the_task_tags(name: str, content: str, tmp_path: Path) -> None:
    entities = init_config(tmp_path, content, name, task="crf")
    plain = init_config(tmp_path, content, name, task="tags")
    assert [config.head[0].options["scheme"] for config in (plain, entities)] == ["none", "BIOES"]
    assert plain.data.reader.options["scheme"] == "none" != entities.data.reader.options["scheme"]
    (first, *_) = build_component(plain.data.reader).read(tmp_path / name)
    assert first["tags"][0] == "B-PER"


def test_a_measured_number_beside_two_texts_is_their_similarity(tmp_path: Path) -> None:
    rows = "".join(f"main\t{n / 7:.2f}\tthe dog {n} sees it\tthe cat {n} does\n" for n in range(30))
    text = init_text(tmp_path, rows, "sts.tsv")
    assert "columns: [_, label, text, text_pair], numbers: [label]" in text
    with pytest.raises(OpenChoiceError):
        init_text(tmp_path, rows.replace("the cat", "кот"), "translations.tsv")


LETTERS = [*map(chr, range(97, 117))]
VECTORS = [f"word{n} {' '.join(['-0.25', '1.5e-05'] * 50)}\n" for n in range(60)]
MARKED_PAIRS = [f"IN: walk {'and run ' * (n % 7)}left OUT: I_WALK I_LEFT {n}\n" for n in range(400)]


NO_LABELS = [f"{LETTERS[n % 3]} of the {LETTERS[n % 2]} boats {n}\n" for n in range(40)]
FORMATS = [
    ("a.pdf", b"%PDF-1.7\n", "is a PDF, which no reader supports; .*pdftotext"),
    ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1", "of an old Office, .* save it as CSV"),
    ("a.db", b"SQLite format 3\0", "sqlite3 -header -csv"),
    ("a.pkl", b"\x80\x04\x95\x10", "is a pickle, .*to_json"),
    ("a.csv", b"\x1f\x8b\x08\x00", "compressed with gzip, .* ends in .gz"),
    ("a.csv.bz2", b"BZh91AY", "bunzip2"),
    ("a.tar", b"\0" * 257 + b"ustar\0" + b"\0" * 700, "is an archive, .* unpack it"),
    ("a.ann", b"T1\tcity 3 7\tBern\nR1\tin Arg1:T1 Arg2:T2\nT2\tcity 8 9\tX\n", "brat's annotation .*seqpipe init"),
    ("a.xml", b"<?xml version='1.0'?>\n<a/>\n", "is XML, .*CSV or JSONL"),
    ("data", zip_of("xl/workbook.xml"), "is a spreadsheet, .* CSV"),
    ("data", zip_of("word/document.xml"), "is a document"),
    ("data", zip_of("a.csv"), "an archive"),
    ("a.txt", "".join(MARKED_PAIRS).encode(), r"pairs of texts after IN: and OUT:; .*cat .*a\.txt \| sed -E"),
    ("a.txt", "".join(VECTORS).encode(), "is a file of word vectors; name the file in `embedding"),
    ("a.txt", "".join(NO_LABELS).encode(), ""),
    ("a.csv", b"version https://git-lfs.github.com/spec/v1\nsize 9\n", "a pointer of Git LFS, .*git lfs pull"),
    ("a.csv", b"text,label\n" + b"a day,x\nok,y\n" * 9 + b"n\0,x\n", r"a\.csv:20: this line has a NUL byte, and no"),
    ("a.csv", b"text,label\n" + b"a\0 good day,x\nok,y\n" * 9, r"a\.csv:2: .* NUL byte, as 8 more lines have"),
    ("a.csv", bytes(range(256)) * 9, "is binary data, which no reader supports"),
    ("a.tsv", "好天\tx\n坏天\ty\n".encode() * 9 + b"\xed\tx\n\xff\ty\n", r"a\.tsv:19: .*byte 0xed .*: 2\); .*iconv -c"),
]
TASKS = [
    (LABELLED, "labels", "no task is named 'labels'; did you mean 'label'.* there is: crf, tags, label, score, seq2"),
    (
        "in O\nBern B-city\n\n" * 3,
        "label",
        "--task label needs texts with a label .* each; .* words with tags of entities, for --task crf",
    ),
    (LABELLED, "answer-span", "--task answer-span needs questions on passages"),
    (
        "a good day\tx\na bad day\ty\n" * 3,
        "score",
        "--task score needs texts with a number each, and the columns are: ",
    ),
    ("a good day\t1\na bad day\t2\n" * 3, "seq2seq", "--task seq2seq needs pairs of texts, and the columns are: "),
    (SPANS, "seq2seq", "--task seq2seq needs"),
]
REFUSED = [(*row, None) for row in FORMATS]
REFUSED += [("a.txt", text.encode(), message, task) for text, task, message in TASKS]


@pytest.mark.parametrize(("name", "content", "message", "task"), REFUSED, ids=range(len(REFUSED)))
def test_a_format_without_a_reader_or_for_another_task_is_refused(
    name: str, content: bytes, message: str, task: str | None, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    assert re.search(message, refusal(tmp_path / name, task=task))


PARALLEL = [
    (("train.tgt", "train.src"), "text: '*.src', target: '*.tgt'"),
    (("seq.in", "seq.out", "label"), "words: seq.in, tags: seq.out, label: label"),
]


@pytest.mark.parametrize(("files", "fields"), PARALLEL)
def test_parallel_files_are_read_with_their_reader(files: tuple[str, ...], fields: str, tmp_path: Path) -> None:
    write_files(tmp_path, {name: "".join(f"this is {name}, line {n}\n" for n in range(9)) for name in files})
    text = init_yaml(tmp_path / files[0], tmp_path / "a.yaml").read_text()
    assert f"use: parallel, fields: {{{fields}}}" in text


def test_tables_of_two_languages_and_files_of_other_lengths_are_not_parallel(tmp_path: Path) -> None:
    rows = "a good day\tpos\na bad day\tneg\n" * 9
    write_files(tmp_path, {"train.ja": rows})
    assert "use: label" in init_text(tmp_path, rows, "train.en")
    write_files(tmp_path, {"train.en": "a good day\na bad day\n" * 9, "train.ja": "a day\n"})
    assert "parallel" not in refusal(tmp_path / "train.en")


@pytest.mark.parametrize(
    "names", [("train.en", "train.ja"), ("train_text.txt", "train_labels.txt"), ("a.in", "a.label")]
)
def test_parallel_files_of_almost_the_same_length_are_refused(names: tuple[str, str], tmp_path: Path) -> None:
    lines = [f"a day at sea, the {n} of them\n" for n in range(20)]
    write_files(tmp_path, {names[0]: "".join(lines), names[1]: "".join(lines[1:])})
    assert f"has 20 lines, and {names[1]} beside it 19; if they are parallel" in refusal(tmp_path / names[0])


def command_of(data: Path) -> str:
    """The command at the end of the refusal of a file."""
    message = refusal(data)
    return message[message.index("python3 -c") :]


def test_the_command_for_m2_writes_the_pairs_of_texts(tmp_path: Path) -> None:
    data = tmp_path / "edits.m2"
    blocks = []
    for n in range(20):
        edits = "A 1 2|||R:VERB:SVA|||sail|||REQUIRED|||-NONE-|||0\nA 3 3|||M:PREP|||from port|||REQUIRED|||-NONE-|||0"
        blocks.append(f"S boats sails away {n}\n{edits}\nA 0 1|||X|||ships|||REQUIRED|||-NONE-|||1")
    blocks.append("S all is well\nA -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||0")
    data.write_text("\n\n".join(blocks) + "\n\n")
    subprocess.run(command_of(data), shell=True, check=True, cwd=tmp_path)
    lines = (tmp_path / "edits.tsv").read_text().splitlines()
    assert lines[0] == "boats sails away 0\tboats sail away from port 0"
    assert (len(lines), lines[-1]) == (21, "all is well\tall is well")
    assert "use: seq2seq" in init_yaml(tmp_path / "edits.tsv", tmp_path / "b.yaml").read_text()


def spacy_command(folder: Path) -> str:
    (folder / "train.spacy").write_bytes(b"\x78\x9c\x01\xff\xfe")
    return command_of(folder / "train.spacy")


def test_the_command_for_the_binary_form_of_spacy_is_python(tmp_path: Path) -> None:
    command = spacy_command(tmp_path)
    compile(command[command.index("'") + 1 : command.rindex("'")], "command", "exec")


@pytest.mark.long
def test_the_command_for_the_binary_form_of_spacy_writes_spans_and_labels(tmp_path: Path) -> None:
    spacy = pytest.importorskip("spacy")
    command = spacy_command(tmp_path)
    from spacy.tokens import DocBin

    docs = DocBin(store_user_data=True)
    for n in range(12):
        doc = spacy.blank("en").make_doc(f"Ida sails to Oslo {n}")
        doc.ents = [doc.char_span(0, 3, "person")]
        doc.cats = {"calm": float(n % 2), "storm": float(n % 2 == 0)}
        docs.add(doc)
    docs.to_disk(tmp_path / "train.spacy")
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert "person 12" in init_yaml(tmp_path / "train.jsonl", tmp_path / "b.yaml").read_text()
