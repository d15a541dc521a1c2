"""Column files, good and bad, through the conll reader."""

from pathlib import Path
from typing import Any

import pytest
from data_files import data_error

from seqpipe.config.signature import construct
from seqpipe.errors import DataError, UsageError
from seqpipe_plugins.readers import conll
from seqpipe_plugins.readers.conll import Conll


def read(content: str | bytes, folder: Path, **options: Any) -> list[dict[str, Any]]:
    path = folder / "data.conll"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(construct(Conll, **options).read(path))


def test_words_and_tags_become_records_with_their_places(tmp_path: Path) -> None:
    first, second = read("John\tB-PER\nSmith\tI-PER\n\nruns\tO\n", tmp_path)
    path = tmp_path / "data.conll"
    words, tags = ["John", "Smith"], ["B-PER", "I-PER"]
    assert first == {"text": "John Smith", "words": words, "tags": tags, "where": f"{path}:1"}
    assert second == {"text": "runs", "words": ["runs"], "tags": ["O"], "where": f"{path}:4"}


SENTENCES = [(["a", "b"], ["B-X", "I-X"]), (["c"], ["O"])]


SPACINGS = [
    "a\tB-X\nb\tI-X\n\nc\tO\n\n",
    "a\tB-X\nb\tI-X\n\nc\tO",
    "\ufeffa\tB-X\nb\tI-X\n\nc\tO\n",
    "a\tB-X\r\nb\tI-X\r\n\r\nc\tO\r\n",
    "\n\n\na B-X\nb   I-X\n \t \n\n\u3000\n  c\t O  \n\n\n",
]


@pytest.mark.parametrize("text", SPACINGS)
def test_line_ends_blank_lines_and_a_byte_order_mark_change_nothing(text: str, tmp_path: Path) -> None:
    assert [(record["words"], record["tags"]) for record in read(text, tmp_path)] == SENTENCES


LAYOUTS = [
    ({"words": 1, "tags": 2}, "1 a B-X\n2 b I-X\n\n1 c O\n"),
    ({"words": -2, "tags": -3}, "1 B-X a _\n2 I-X b _\n\n1 O c _\n"),
    ({"words": "FORM", "tags": "NER", "columns": ["NER", "FORM"]}, "B-X a\nI-X b\n\nO c\n"),
    ({"words": "form", "tags": "ner"}, "# columns: ner form\nB-X a\nI-X b\n\nO c\n"),
    ({"words": "FORM", "tags": "NER"}, "# global.columns = ID FORM NER\n1 a B-X\n2 b I-X\n\n1 c O\n"),
    ({"separator": ","}, "a,B-X\nb,I-X\n\nc,O\n"),
    ({"separator": " ||| "}, "a ||| B-X\nb ||| I-X\n\nc ||| O\n"),
    ({"scheme": "IOB1"}, "a I-X\nb I-X\n\nc O\n"),
    ({"scheme": "BIOES"}, "a B-X\nb E-X\n\nc O\n"),
    ({"scheme": "BILOU"}, "a B-X\nb L-X\n\nc O\n"),
    ({"ill_formed": "repair"}, "a I-X\nb I-X\n\nc O\n"),
    ({"pattern": "^(.)"}, "a0 B-X\nb12 I-X\n\nc0 O\n"),
    ({"pattern": "[a-z]"}, "0a B-X\n12b I-X\n\n0c O\n"),
    ({"skip": "[0-9]+[-.]", "words": 1}, "1-2 ab O\n1 a B-X\n2 b I-X\n2.1 z O\n\n1 c O\n"),
    ({"document": None}, "a B-X\nb I-X\n\nc O\n"),
    ({"document": "<doc>"}, "<doc> 7\na B-X\nb I-X\n<doc>\nc O\n"),
]


@pytest.mark.parametrize(("options", "text"), LAYOUTS)
def test_columns_schemes_and_patterns_give_the_same_words(options: dict, text: str, tmp_path: Path) -> None:
    assert [(record["words"], record["tags"]) for record in read(text, tmp_path, **options)] == SENTENCES


IO_TAGS = ["B-PER", "I-PER", "O", "B-LOC", "B-PER"]
UNUSUAL = [
    ({"separator": "tab"}, "New York\tB-X\n \tO\n", "words", ["New York", " "]),
    ({"separator": "\t"}, "New York\tB-X\n \tO\n", "words", ["New York", " "]),
    ({"joiner": ""}, "10\u00a0000 O\n\u3000 O\n", "text", "10\u00a0000\u3000"),  # not blanks: parts of words
    ({"scheme": "none"}, "a NOUN\nb I-odd\n", "tags", ["NOUN", "I-odd"]),
    ({"scheme": "BILOU"}, "a U-PER-x\nb U-PER.NAM\n", "tags", ["B-PER-x", "B-PER.NAM"]),
    ({}, "# O\ntag O\n# O\n\n# O\n", "words", ["#", "tag", "#"]),  # a word, as it has a tag
    ({}, "#\tO\ntag\tO\n", "words", ["#", "tag"]),
    ({}, "# a remark\n# newdoc\n# id = O\ntag O\n", "words", ["tag"]),
    ({"comment": None, "scheme": "none"}, "# O\ntag O\n", "words", ["#", "tag"]),
    ({"scheme": "IO", "outside": "_"}, "Ida PER\nHolm PER\nin _\nOslo LOC\nOtto PER\n", "tags", IO_TAGS),
    ({"scheme": "IOE2", "ill_formed": "repair"}, "Ida I-PER\nHolm I-PER\nin O\n", "tags", IO_TAGS[:3]),
    ({"scheme": "BMES", "joiner": ""}, "小\tB\n学\tE\n生\tS\n", "tags", ["B-_", "I-_", "B-_"]),
    ({"comment": "%"}, "% remark\n# B\ntag O\n", "words", ["#", "tag"]),
]


@pytest.mark.parametrize(("options", "text", "key", "value"), UNUSUAL)
def test_unusual_words_and_tags_are_kept(options: dict, text: str, key: str, value: Any, tmp_path: Path) -> None:
    assert read(text, tmp_path, **options)[0][key] == value


def test_a_file_without_tags_gives_records_without_tags(tmp_path: Path) -> None:
    first, second = read("a\nb\n\n#remark\nc\n", tmp_path, tags=None, comment="#")
    assert set(first) == {"text", "words", "where"}
    assert second["words"] == ["c"]


def test_comments_and_named_columns_become_fields(tmp_path: Path) -> None:
    text = "# id = s1\n# a remark\n# text = a  b\n1 a DET B-X _\n2 b NOUN I-X _\n\n1 c X O _\n"
    first, second = read(text, tmp_path, columns=["n", "form", "pos", "ner", "_"], words="form", tags="ner")
    fields = {"id": "s1", "source_text": "a  b", "n": ["1", "2"], "pos": ["DET", "NOUN"]}
    place = f"{tmp_path / 'data.conll'}:4"
    assert first == fields | {"text": "a b", "words": ["a", "b"], "tags": ["B-X", "I-X"], "where": place}
    assert "id" not in second
    assert set(read("# global.columns = A B\na O\n", tmp_path)[0]) == {"text", "words", "tags", "where"}
    assert second["pos"] == ["X"]


def test_columns_named_like_common_fields_do_not_replace_them(tmp_path: Path) -> None:
    record = read("a z O\n", tmp_path, columns=["x", "text", "where"])[0]
    assert (record["text"], record["source_text"]) == ("a", ["z"])
    assert record["where"].endswith("data.conll:1")


def test_documents_are_numbered(tmp_path: Path) -> None:
    text = "-DOCSTART- -X- O\n\na NN O\n\nb NN O\n-DOCSTART- -X- O\nc NN O\n"
    assert [record["document"] for record in read(text, tmp_path)] == [1, 1, 2]
    assert "document" not in read("a O\n", tmp_path)[0]


BAD: list[tuple[str, dict[str, Any], int, str]] = [
    ("a O\nb\n", {}, 2, "one column in this line, but 2 in line 1"),
    ("a O\n\nNew York O\n", {}, 3, "3 columns in this line, but 2 in line 1; `separator: tab` if words contain blanks"),
    ("a O\n# in the middle\nb O\n", {}, 2, "4 columns in this line, but 2 in line 1"),
    ("a O\n", {"tags": 5}, 1, "no column 5 for `tags` (2 columns in this line)"),
    ("a O\n", {"words": 2}, 1, "set `words` to 0 … 1"),
    ("a\nb\n", {}, 1, "words and tags are the same column (one column in this line); `tags: null`"),
    ("a O\n", {"tags": 0}, 1, "look at `separator`"),
    ("a O\n", {"words": "form"}, 1, "the columns of this file have no names; name them in `columns`"),
    ("# columns: word tag\na O\n", {"words": "wort"}, 2, "'wort'; did you mean 'word'? (there is: word, tag)"),
    ("# columns: a b b\na O O\n", {}, 1, "two columns are named 'b'"),
    ("# columns: a b c\na O\n", {}, 2, "2 columns in this line, but 3 have names: a, b, c"),
    ("a O\n", {"columns": ["x"]}, 1, "2 columns in this line, but 1 have names"),
    ("\n\na O\nb X-PER\n", {}, 4, "'X-PER' is not a tag of IOB2; `scheme: none` reads plain tags"),
    ("a O\nb S-X\n", {}, 2, "'S-X' is not a tag of IOB2; the sentence is well-formed BIOES: set `scheme: BIOES`"),
    ("a O\nb U-X\n", {}, 2, "set `scheme: BILOU`"),
    ("a O\nb B-\n", {}, 2, "'B-' is not a tag of IOB2"),
    ("a X-PER\n", {"ill_formed": "repair"}, 1, "'X-PER' is not a tag of IOB2"),
    ("a O\nb I-X\n", {}, 2, "'I-X' cannot follow 'O' in IOB2; the sentence is well-formed IOB1: set `scheme: IOB1`"),
    ("a I-X\n", {}, 1, "'I-X' cannot begin a sentence in IOB2"),
    ("a B-X\nb I-Y\n", {}, 2, "`ill_formed: repair`"),
    ("a B-X\nb O\n", {"scheme": "IOB1"}, 1, "set `scheme: IOB2`"),
    ("a B-X\nb O\n", {"scheme": "BIOES"}, 2, "'O' cannot follow 'B-X' in BIOES"),
    ("a O\nb B-X\n\nc O\n", {"scheme": "BIOES"}, 2, "'B-X' cannot end a sentence in BIOES"),
    ("a U-X\nb L-X\n", {"scheme": "BILOU"}, 2, "'L-X' cannot follow 'U-X' in BILOU"),
    ("小\tB\n学\tS\n", {"scheme": "BMES"}, 2, "'S' cannot follow 'B' in BMES"),
    ("a I-P\nb I-P\nc O\n", {"scheme": "IOE2"}, 2, "'I-P' cannot be followed by 'O' in IOE2; `ill_formed: repair`"),
    ("Ida b-PER\nin o\n", {"tag_format": "b-PER"}, 2, "'o' is not a tag of IOB2; "),
    ("Ida b-PER\nin o\n", {"tag_format": "b-PER"}, 2, "bad_rows: skip"),
    ("1-2 ab O\n1 a O\n2 b I-X\n", {"words": 1, "skip": "[0-9]+-"}, 3, "'I-X' cannot follow 'O'"),
    ("a\tO\nb\tB-X \n", {"separator": "tab"}, 2, "the tag 'B-X ' is empty or has blanks around it"),
    ("a\tO\nb\t\n", {"separator": "tab"}, 2, "the tag '' is empty"),
    ("a\t\n", {"separator": "tab", "scheme": "none"}, 1, "the tag '' is empty"),
    ("a\tO\n\tO\n", {"separator": "tab"}, 2, "the word is empty"),
    ("a0 O\n0 O\n", {"pattern": "[a-z]"}, 2, "the pattern '[a-z]' finds no word in '0'"),
    ("a NN\n\n# NN\nb NN\n", {"scheme": "none"}, 3, "this line can be a comment or a word; set `comment: null`"),
]


@pytest.mark.parametrize(("text", "options", "line", "message"), BAD)
def test_a_bad_line_is_an_error(text: str, options: dict, line: int, message: str, tmp_path: Path) -> None:
    with data_error(f"{tmp_path / 'data.conll'}:{line}", message):
        read(text, tmp_path, **options)


@pytest.mark.parametrize("text", ["\n \n\n", "# id = 1\n", "-DOCSTART- O\n\n"])
def test_a_file_without_a_sentence_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.conll: there is nothing in this file"):
        read(text, tmp_path)


WRONG_OPTIONS = [
    ({"pattern": "("}, r"conll\.pattern: '\(' is not a regular expression"),
    ({"skip": "["}, r"conll\.skip: "),
    ({"pattern": "(a)(b)"}, "has 2 groups; one at most"),
    ({"tag_format": "X-PER"}, "tag_format: 'X-PER' must be like 'B-PER'"),
    ({"separator": ""}, r"conll\.separator: an empty string"),
    ({"comment": ""}, r"conll\.comment: an empty string"),
    ({"document": ""}, r"conll\.document: an empty string"),
    ({"columns": ["word", "tag"], "words": "words"}, r"conll\.words: .*did you mean 'word'"),
    ({"columns": ["word", "tag"], "tags": "ner"}, r"conll\.tags: no column is named 'ner'"),
    ({"columns": ["a", "a"]}, r"conll\.columns: two columns are named 'a'"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_OPTIONS)
def test_wrong_options_are_refused_before_any_file(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        construct(Conll, **options)


@pytest.mark.parametrize("option", ["skip", "pattern"])
def test_a_slow_pattern_is_an_error_with_its_line(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conll, "MATCH_SECONDS", 0.1)  # without the limit it takes years
    message = rf"data\.conll:2: the pattern '\(a\|aa\)\+\$' of `{option}` takes over 0\.1 s for 'aaa.*…'; .*x\+\+"
    with pytest.raises(DataError, match=message):
        read("a O\n" + "a" * 200 + "! O\n", tmp_path, **{option: "(a|aa)+$"})


@pytest.mark.parametrize("pattern", [r"(?:a|bc)+$", r"(?:a++|b?+c)+$", r"(?:(?>x|xy)|z)+$", r"([0-9]{3})+$"])
def test_a_pattern_without_ambiguity_is_fast(pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conll, "MATCH_SECONDS", 60)
    lines = "".join(f"{part * 300}! O\n" for part in ("a", "bc", "b", "xy", "x", "z", "1"))
    assert len(read(lines, tmp_path, skip=pattern)[0]["words"]) > 0


def test_a_file_without_empty_lines_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqpipe_plugins.readers.LONGEST_SENTENCE", 5)
    with pytest.raises(DataError, match=r"x:6: a sentence of over 5 lines; put an empty line after each sentence"):
        list(Conll().records(["a O\n"] * 9, "x"))
    assert len(list(Conll().records(["a O\n"] * 5, "x"))) == 1


SPELLINGS = [
    ({"scheme": "BMES"}, ["B-PER", "M-PER", "E-PER", "O", "S-LOC", "S-LOC"]),
    ({"scheme": "IOE1"}, ["I-PER", "I-PER", "I-PER", "O", "E-LOC", "I-LOC"]),
    ({"scheme": "IOE2"}, ["I-PER", "I-PER", "E-PER", "O", "E-LOC", "E-LOC"]),
    ({"tag_format": "PER_b", "outside": "other"}, ["PER_b", "PER_i", "PER_i", "other", "LOC_b", "LOC_b"]),
    ({"tag_format": "b-PER"}, ["b-PER", "i-PER", "i-PER", "O", "b-LOC", "b-LOC"]),
    ({"tag_format": "BPER", "scheme": "BILOU"}, ["BPER", "IPER", "LPER", "O", "ULOC", "ULOC"]),
]


@pytest.mark.parametrize(("options", "tags"), SPELLINGS)
def test_schemes_and_spellings_of_tags_give_the_same_spans(options: dict, tags: list[str], tmp_path: Path) -> None:
    (record,) = read("".join(f"w{i} {tag}\n" for i, tag in enumerate(tags)), tmp_path, **options)
    assert record["tags"] == ["B-PER", "I-PER", "I-PER", "O", "B-LOC", "B-LOC"]


def test_sentences_that_cannot_be_read_are_left_out_with_their_places() -> None:
    reader = Conll()
    reader.left_out = []
    text = "Ida B-PER\n\nis o\n\nin\nOslo B-LOC\n\nhere O\n"
    assert [record["text"] for record in reader.records(text.splitlines(keepends=True), "a")] == ["Ida", "here"]
    assert [error.partition(": ")[0] for error in reader.left_out] == ["a:3", "a:5"]
