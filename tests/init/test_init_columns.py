"""`init` looks at all of a file of columns, however large."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from seqpipe.config.contract import build_component
from seqpipe.config.loader import load
from seqpipe.errors import DataError, OpenChoiceError, UsageError
from seqpipe.init import init_yaml


def _csv(rows: int) -> str:
    return "text,label\n" + "".join(f"a text of some words {number},first\n" for number in range(rows))


def test_the_last_row_decides_as_much_as_the_first(tmp_path: Path) -> None:
    data = tmp_path / "a.csv"
    data.write_text(_csv(30_000) + "the last,second\n")
    text = init_yaml(data, tmp_path / "a.yaml").read_text()
    assert "# Labels: first 30,000, second 1" in text
    data.write_text(_csv(30_000) + "the last, second\n")
    data.write_text(_csv(30_000) + "the last\n")
    with pytest.raises(DataError, match=r"a\.csv:30002: one cell in this row, but 2 in the others"):
        init_yaml(data, tmp_path / "b.yaml")
    data.write_bytes(_csv(30_000).encode() + b"the l\xe4st,second\n")
    text = init_yaml(data, tmp_path / "b.yaml").read_text()
    assert "encoding: cp1252" in text


@pytest.mark.parametrize(("name", "learns"), [("labels", "separated by ','"), ("notes", "use: seq2seq")])
def test_lists_that_all_differ_are_labels_where_the_column_says_so(name: str, learns: str, tmp_path: Path) -> None:
    labels = [f"{first}, {second}" for first in range(40, 60) for second in range(60, 80)]
    rows = "".join(f'a text of some words {i},"{cell}"\n' for i, cell in enumerate(labels))
    data = tmp_path / "a.csv"
    data.write_text(f"text,{name}\n{rows}")
    assert learns in init_yaml(data, tmp_path / "a.yaml").read_text()


def test_pieces_of_a_large_file_stand_for_all_of_it(tmp_path: Path) -> None:
    data = tmp_path / "a.conll"
    data.write_text("in O\nBern B-city\nit O\nrains O\n\n" * 150_000 + "my O\nname B-name\n\n" * 150_000)
    text = init_yaml(data, tmp_path / "a.yaml").read_text()
    line = text.splitlines()[2]
    assert "about " in line
    records = int(line.split("about ")[1].split()[0].replace(",", ""))
    assert 250_000 < records < 350_000
    assert "city 1" in text
    assert "name 1" in text


def test_a_fault_in_a_piece_of_a_large_file_has_its_line(tmp_path: Path) -> None:
    data = tmp_path / "a.conll"
    data.write_text("in O\nBern B-city\nit O\nrains O\n\n" * 160_000 + "my O\nname\n\n" * 1_000)
    text = init_yaml(data, tmp_path / "a.yaml").read_text()
    assert "a.conll:800002: one column in this line, but 2 in line 1; " in text
    assert "  bad_rows: skip" in text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pdf", b"%PDF-1.7\n", "is a PDF, which no reader supports; .*pdftotext"),
        ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1", "of an old Office, .* save it as CSV"),
        ("a.db", b"SQLite format 3\0", "sqlite3 -header -csv"),
        ("a.pkl", b"\x80\x04\x95\x10", "is a pickle, .*to_json"),
        ("a.csv", b"\x1f\x8b\x08\x00", "compressed with gzip, .* ends in .gz"),
        ("a.csv.bz2", b"BZh91AY", "bunzip2"),
        ("a.tar", b"\0" * 257 + b"ustar\0" + b"\0" * 700, "is an archive, .* unpack it"),
        ("a.ann", b"T1\tcity 3 7\tBern\nR1\tin Arg1:T1 Arg2:T2\nT2\tcity 8 9\tX\n", "brat's annotation .*seqpipe init"),
        ("a.xml", b"<?xml version='1.0'?>\n<a/>\n", "is XML, .*CSV or JSONL"),
    ],
)
def test_a_format_that_no_reader_takes_is_refused_with_what_to_do(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        init_yaml(tmp_path / name, tmp_path / "made.yaml")
    assert not (tmp_path / "made.yaml").exists()


@pytest.mark.parametrize(
    ("part", "message"),
    [("xl/workbook.xml", "is a spreadsheet, .* CSV"), ("word/document.xml", "is a document"), ("a.csv", "an archive")],
)
def test_a_zip_is_told_by_its_parts(part: str, message: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data", "w") as archive:
        archive.writestr(part, "text")
    with pytest.raises(DataError, match=message):
        init_yaml(tmp_path / "data", tmp_path / "made.yaml")


LABELLED = "".join(f"the dog {n} sees it\tthe cat {n} does\t{n % 2}\n" for n in range(30))
SPANS = "".join(f'{{"text": "in Bern {n}", "spans": [[3, 7, "city"]], "label": "{n % 2}"}}\n' for n in range(9))


@pytest.mark.parametrize(
    ("content", "task", "contains"),
    [
        (LABELLED, "label", ["use: label", "columns: [text, text_pair, label]", "field: [text, text_pair]"]),
        (LABELLED, "score", ["use: score", "numbers: [label]"]),
        (LABELLED, "seq2seq", ["use: seq2seq", "columns: [text, target, _]"]),
        (SPANS, "label", ["use: label"]),
        (SPANS, "crf", ["use: crf"]),
    ],
)
def test_a_task_that_is_asked_for_overrides_what_was_recognised(
    content: str, task: str, contains: list[str], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text(content)
    text = init_yaml(tmp_path / "a.txt", tmp_path / "a.yaml", task=task).read_text()
    assert [part for part in contains if part not in text] == []


WORDS, TAGS = "Ann lives in Oslo", "B-PER O O B-LOC"
ROWS = "".join(
    "".join(
        f"{n if not i else ''},{word}{n},{tag}\n"
        for i, (word, tag) in enumerate(zip(WORDS.split(), TAGS.split(), strict=True))
    )
    for n in range(20)
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.csv", "Sentence #,Word,Tag\n" + ROWS),
        ("cells.csv", "words,tags\n" + "".join(f"{WORDS} {n},{TAGS} O\n" for n in range(20))),
        (
            "lists.jsonl",
            "".join(
                json.dumps({"words": [*WORDS.split(), str(n)], "tags": [*TAGS.split(), "O"]}) + "\n" for n in range(20)
            ),
        ),
        ("words.conll", "".join(f"Ann{n} B-PER\nlives O\n\n" for n in range(20))),
    ],
)
def test_tags_of_entities_are_read_as_plain_tags_if_that_is_asked_for(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    plain = load(init_yaml(tmp_path / name, tmp_path / "plain.yaml", task="tags"))
    entities = load(init_yaml(tmp_path / name, tmp_path / "entities.yaml", task="crf"))
    assert [config.head[0].options["scheme"] for config in (plain, entities)] == ["none", "BIOES"]
    assert plain.data.reader.options["scheme"] == "none" != entities.data.reader.options["scheme"]
    (first, *_) = build_component(plain.data.reader).read(tmp_path / name)
    assert first["tags"][0] == "B-PER"


@pytest.mark.parametrize(
    ("content", "task", "message"),
    [
        (
            LABELLED,
            "labels",
            "no task is named 'labels'; did you mean 'label'.* there is: crf, tags, label, score, seq2seq",
        ),
        ("in O\nBern B-city\n\n" * 3, "label", "--task label needs texts with a label .* each; .* CoNLL.* --task crf"),
        (LABELLED, "answer-span", "--task answer-span needs questions on passages"),
        ("a good day\tx\na bad day\ty\n" * 3, "score", "--task score needs a column of numbers beside one of texts"),
        ("a good day\t1\na bad day\t2\n" * 3, "seq2seq", "--task seq2seq needs two columns of texts"),
        (SPANS, "seq2seq", "--task seq2seq needs"),
    ],
)
def test_a_task_that_the_data_is_not_for_is_refused(content: str, task: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises((DataError, UsageError), match=message):
        init_yaml(tmp_path / "a.txt", tmp_path / "a.yaml", task=task)
    assert not (tmp_path / "a.yaml").exists()


def test_a_measured_number_beside_two_texts_is_their_similarity(tmp_path: Path) -> None:
    rows = "".join(f"main\t{n / 7:.2f}\tthe dog {n} sees it\tthe cat {n} does\n" for n in range(30))
    (tmp_path / "sts.tsv").write_text(rows)
    lines: list[str] = []
    text = init_yaml(tmp_path / "sts.tsv", tmp_path / "a.yaml", lines.append).read_text()
    assert "columns: [_, label, text, text_pair], numbers: [label]" in text
    assert any(re.match("doubtful: column 2 is taken for the similarity .* --task seq2seq", line) for line in lines)
    (tmp_path / "translations.tsv").write_text(rows.replace("the cat", "кот"))
    with pytest.raises(OpenChoiceError):
        init_yaml(tmp_path / "translations.tsv", tmp_path / "b.yaml")


def test_pairs_behind_marks_are_no_plain_text(tmp_path: Path) -> None:
    lines = "".join(f"IN: walk {'and run ' * (n % 7)}left OUT: I_WALK I_LEFT {n}\n" for n in range(400))
    (tmp_path / "a.txt").write_text(lines)
    with pytest.raises(DataError, match=r"pairs of texts after IN: and OUT:; .*cat a\.txt \| sed -E"):
        init_yaml(tmp_path / "a.txt", tmp_path / "a.yaml")


def test_identifiers_in_letters_are_no_texts(tmp_path: Path) -> None:
    head = "paper_id\ttitle\n"
    (tmp_path / "a.tsv").write_text(head + "".join(f"Sk{chr(97 + n)}xYo\tOn the topic {n}\n" for n in range(20)))
    with pytest.raises(DataError, match="'paper_id' identifiers"):
        init_yaml(tmp_path / "a.tsv", tmp_path / "a.yaml")


def test_word_vectors_are_no_plain_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"word{n} {' '.join(['-0.25', '1.5e-05'] * 50)}\n" for n in range(60)))
    with pytest.raises(DataError, match="is a file of word vectors; name the file in `embedding"):
        init_yaml(tmp_path / "a.txt", tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("files", "fields"),
    [
        (("train.en", "train.ja"), "text: '*.en', target: '*.ja'"),
        (("train.tgt", "train.src"), "text: '*.src', target: '*.tgt'"),
        (("seq.in", "seq.out", "label"), "words: seq.in, tags: seq.out, label: label"),
    ],
)
def test_parallel_files_are_read_with_their_reader(files: tuple[str, ...], fields: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_text("".join(f"this is {name}, line {n}\n" for n in range(9)))
    text = init_yaml(tmp_path / files[0], tmp_path / "a.yaml").read_text()
    assert f"use: parallel, fields: {{{fields}}}" in text


def test_tables_of_two_languages_are_not_parallel(tmp_path: Path) -> None:
    for name in ("train.en", "train.ja"):
        (tmp_path / name).write_text("a good day\tpos\na bad day\tneg\n" * 9)
    assert "use: label" in init_yaml(tmp_path / "train.en", tmp_path / "a.yaml").read_text()


def test_files_of_other_lengths_are_not_parallel(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("a good day\na bad day\n" * 9)
    (tmp_path / "train.ja").write_text("a day\n")
    with pytest.raises(DataError) as caught:
        init_yaml(tmp_path / "train.en", tmp_path / "a.yaml")
    assert "parallel" not in str(caught.value)


@pytest.mark.parametrize(
    "names", [("train.en", "train.ja"), ("train_text.txt", "train_labels.txt"), ("a.in", "a.label")]
)
def test_parallel_files_of_almost_the_same_length_are_refused(names: tuple[str, str], tmp_path: Path) -> None:
    for name, number in zip(names, (20, 19), strict=True):
        (tmp_path / name).write_text("".join(f"a day at sea, the {n} of them\n" for n in range(number)))
    with pytest.raises(DataError, match=f"has 20 lines, and {names[1]} beside it 19; if they are parallel"):
        init_yaml(tmp_path / names[0], tmp_path / "a.yaml")


def test_a_word_that_begins_sentences_is_no_label(tmp_path: Path) -> None:
    words = ("one", "two", "six")
    lines = [f"{words[n % 3]} of the {words[n % 2]} boats {n}\n" for n in range(40)]
    (tmp_path / "a.txt").write_text("".join(lines))
    with pytest.raises(DataError):
        init_yaml(tmp_path / "a.txt", tmp_path / "a.yaml")


def command_of(data: Path) -> str:
    """The command that the refusal of a file ends with."""
    with pytest.raises(DataError) as caught:
        init_yaml(data, data.with_name("a.yaml"))
    return str(caught.value)[str(caught.value).index("python3 -c") :]


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


def test_the_command_for_the_binary_form_of_spacy_is_python(tmp_path: Path) -> None:
    data = tmp_path / "train.spacy"
    data.write_bytes(b"\x78\x9c\x01\xff\xfe")
    command = command_of(data)
    compile(command[command.index("'") + 1 : command.rindex("'")], "command", "exec")


@pytest.mark.long
def test_the_command_for_the_binary_form_of_spacy_writes_spans_and_labels(tmp_path: Path) -> None:
    spacy = pytest.importorskip("spacy")
    data = tmp_path / "train.spacy"
    data.write_bytes(b"\x78\x9c\x01\xff\xfe")
    command = command_of(data)
    from spacy.tokens import DocBin

    docs = DocBin(store_user_data=True)
    for n in range(12):
        doc = spacy.blank("en").make_doc(f"Ida sails to Oslo {n}")
        doc.ents = [doc.char_span(0, 3, "person")]
        doc.cats = {"calm": float(n % 2), "storm": float(n % 2 == 0)}
        docs.add(doc)
    docs.to_disk(data)
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert "person 12" in init_yaml(tmp_path / "train.jsonl", tmp_path / "b.yaml").read_text()


@pytest.mark.parametrize("name", ["columns/words-in-rows.csv", "roles/slots.csv"])
def test_a_table_of_words_and_tags_is_read_for_its_task(name: str, tmp_path: Path) -> None:
    data = Path(__file__).parents[1] / "corpus" / "init" / name
    text = init_yaml(data, tmp_path / "a.yaml", task="crf").read_text()
    assert text.partition("name:")[2].partition("tokenizer:")[0].count("words:") == 1
    assert "head: {use: crf" in text
