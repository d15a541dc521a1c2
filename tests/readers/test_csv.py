"""Tables, good and bad, through the csv and tsv readers."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from data_files import data_error

from seqpipe.config.signature import construct
from seqpipe.errors import DataError, UsageError
from seqpipe_plugins.readers.csv import Csv, Tsv


def read(content: str | bytes, folder: Path, cls: type[Csv] | type[Tsv] = Csv, **options: Any) -> list[dict[str, Any]]:
    path = folder / "data.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(construct(cls, **options).read(path))


def bare(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "where"} for record in records]


TWO = [{"text": "good, very", "label": "pos"}, {"text": 'a "b"', "label": "neg"}]


DIALECTS = [
    ('text,label\n"good, very",pos\n"a ""b""",neg\n', {}),
    ('\ufefftext,label\r\n"good, very",pos\r\n\r\n"a ""b""",neg', {}),
    ('label,text\npos,"good, very"\nneg,"a ""b"""\n', {}),
    ('label;text\npos;good, very\nneg;"a ""b"""\n', {"delimiter": ";"}),
    ("label,text\npos,'good, very'\nneg,a \"b\"\n", {"quote": "'"}),
    ('"good, very",pos\n"a ""b""",neg\n', {"columns": ["text", "label"]}),
    ('"good, very",pos,7\n"a ""b""",neg,8\n', {"columns": ["text", "label", "_"]}),
    ('review,mark\n"good, very",pos\n"a ""b""",neg\n', {"text": "review", "label": "mark"}),
    (',text,label\n0,"good, very",pos\n1,"a ""b""",neg\n', {}),
]


@pytest.mark.parametrize(("text", "options"), DIALECTS)
def test_a_table_of_any_dialect_gives_the_same_records(text: str, options: dict[str, Any], tmp_path: Path) -> None:
    assert bare(read(text, tmp_path, **options)) == TWO


@pytest.mark.parametrize("options", [{}, {"quote": '"'}])
def test_quotes_mean_nothing_in_tsv_unless_it_says_so(options: dict[str, Any], tmp_path: Path) -> None:
    quoted = '"a ""b"""' if options else 'a "b"'
    assert bare(read(f"text\tlabel\ngood, very\tpos\n{quoted}\tneg\n", tmp_path, Tsv, **options)) == TWO


def test_a_quoted_cell_goes_over_lines_and_where_is_the_first(tmp_path: Path) -> None:
    records = read('text\n"a\r\n\r\nb"\n\nc\n', tmp_path)
    assert [record["text"] for record in records] == ["a\n\nb", "c"]
    assert [record["where"] for record in records] == [f"{tmp_path / 'data.csv'}:{line}" for line in (2, 6)]


def test_every_named_column_is_a_field_and_none_replaces_a_common_field(tmp_path: Path) -> None:
    (record,) = bare(read("body,text,where,label,kind,words\na,b,c,d,e,f\n", tmp_path, text="body", label="kind"))
    sources = {"source_text": "b", "source_where": "c", "source_label": "d", "source_words": "f"}
    assert record == {"text": "a", "label": "e", **sources}


def test_labels_of_one_cell_are_split_and_numbers_read(tmp_path: Path) -> None:
    text = "text,tags,stars\na,x; y,4.5\nb,z,-1e2\n"
    records = bare(read(text, tmp_path, labels="tags", separator=";", numbers=["stars"]))
    assert records == [{"text": "a", "labels": ["x", "y"], "stars": 4.5}, {"text": "b", "labels": ["z"], "stars": -100}]


def test_a_file_whose_name_ends_in_gz_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "data.csv.gz"
    path.write_bytes(gzip.compress(b"text\na\n"))
    assert list(construct(Csv).read(path)) == [{"text": "a", "where": f"{path}:2"}]
    whole = path.read_bytes()
    for torn in (whole[:-9], whole[:12] + b"\0" + whole[13:], b"text\na\n"):
        path.write_bytes(torn)
        with pytest.raises(DataError, match=r"data\.csv\.gz: cannot be unpacked"):
            list(construct(Csv).read(path))


BAD: list[tuple[str, dict[str, Any], int, str]] = [
    ("body,label\na,b\n", {}, 1, "no column is named 'text' (there is: body, label); set `text`, or name the columns"),
    ("txt,label\na,b\n", {}, 1, "no column is named 'text'; did you mean 'txt'? (there is: txt, label)"),
    ("text\na\n", {"numbers": ["stars"]}, 1, "no column is named 'stars' (there is: text); set `numbers`"),
    ("text,b,b\n", {}, 1, "two columns are named 'b'"),
    ("text,b\na,b\n\nc\n", {}, 4, "one column in this line, but 2 have names: text, b; quote a text that contains ','"),
    ("text,b\nc,d,e\n", {"quote": None}, 2, "look at `delimiter` and `quote`"),
    ("c,d\n", {"columns": ["text"]}, 1, "2 columns in this line, but 1 have names: text"),
    ('text\na\n"b\nc\n', {}, 3, "(unexpected end of data); a quote opens in it and is not closed as it should be; wri"),
    ('text\n"b"c\n', {}, 2, "this row cannot be read (',' expected after '\"')"),
    ("text,y\na,\n", {"label": "y"}, 2, "the label in column 'y' is empty; write one, or remove the row"),
    ("text,y\na,x|\n", {"labels": "y"}, 2, "of the labels 'x|' one is empty; write each once"),
    ("text,y\na,x|x\n", {"labels": "y"}, 2, "of the labels 'x|x' one is given twice"),
    ("text,y\na,4\nb,four\n", {"numbers": ["y"]}, 3, "'four' in column 'y' is not a number"),
    ("text,y\na,nan\n", {"numbers": ["y"]}, 2, "'nan' in column 'y' is not a number"),
    ("text,y\na b,O\n", {"words": "text", "tags": "y"}, 2, "1 tags for 2 words"),
    ("text,y\na,1\nb,2\n", {"indicators": ["y"]}, 3, "'2' in column 'y' is neither 0 nor 1"),
]


@pytest.mark.parametrize(("text", "options", "line", "message"), BAD)
def test_a_bad_row_is_an_error(text: str, options: dict, line: int, message: str, tmp_path: Path) -> None:
    with data_error(f"{tmp_path / 'data.csv'}:{line}", message):
        read(text, tmp_path, **options)


def test_a_file_with_only_a_row_of_names_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.csv: there is nothing in this file"):
        read("text,label\n", tmp_path)


WRONG_OPTIONS = [
    ({"delimiter": ""}, r"csv\.delimiter: '' must be one character"),
    ({"delimiter": "||"}, r"csv\.delimiter: '\|\|' must be one character"),
    ({"quote": "\n"}, r"csv\.quote: "),
    ({"separator": ""}, r"csv\.separator: an empty string separates nothing"),
    ({"columns": ["a", "a"]}, r"csv\.columns: two columns are named 'a'"),
    ({"columns": ["txt"]}, r"csv\.text: no column is named 'text'; did you mean 'txt'\? \(there is: txt\)"),
    ({"columns": ["text"], "label": "label"}, r"csv\.label: no column is named 'label'"),
    ({"words": "word", "sentence": "number"}, r"csv\.sentence: it divides words with tags; name the columns"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_OPTIONS)
def test_wrong_options_are_refused_before_any_file(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        construct(Csv, **options)


def test_a_quote_that_is_never_closed_does_not_take_the_file_into_memory() -> None:
    lines = (line for line in ["text\n", '"open\n', *["x" * 1_000_000] * 30])
    with pytest.raises(DataError, match=r"x:2: this row cannot be read \(field larger than field limit"):
        list(construct(Csv).records(lines, "x"))


def test_columns_of_zero_and_one_are_labels(tmp_path: Path) -> None:
    records = read("text,rude,spam\na,1,0\nb,TRUE,true\nc,0.0,no\n", tmp_path, indicators=["rude", "spam"])
    assert [record["labels"] for record in records] == [["rude"], ["rude", "spam"], []]


def test_an_empty_cell_of_several_labels_is_a_text_without_labels(tmp_path: Path) -> None:
    records = read("text\tlabels\na\tx|y\nb\t\n", tmp_path, Tsv, labels="labels")
    assert [record["labels"] for record in records] == [["x", "y"], []]


def test_words_and_tags_of_two_columns_are_read(tmp_path: Path) -> None:
    text = "text,slots\nto  Oslo now,O B_city O\n"
    (record,) = bare(read(text, tmp_path, words="text", tags="slots", tag_format="B_PER"))
    assert record == {"text": "to Oslo now", "words": ["to", "Oslo", "now"], "tags": ["O", "B-city", "O"]}


def test_rows_that_cannot_be_read_are_left_out_with_their_places(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,label\na,x\nb\nc,\n"d\ne",y\n')
    reader = construct(Csv, label="label")
    reader.left_out = []
    assert [record["text"] for record in reader.read(path)] == ["a", "d\ne"]
    assert [error.partition(": ")[0] for error in reader.left_out] == [f"{path}:3", f"{path}:4"]


@pytest.mark.parametrize("numbers", [["s 1", "", "s 2", ""], ["1", "1", "2", "2"]], ids=["first-row", "every-row"])
def test_rows_of_one_word_and_its_tag_are_joined_to_sentences(numbers: list[str], tmp_path: Path) -> None:
    rows = zip(numbers, ["Ada", "left", "New", "York"], ["B-per", "O", "B-town", "I-town"], strict=True)
    text = "number,word,pos,tag\n" + "".join(f"{number},{word},X,{tag}\n" for number, word, tag in rows)
    path = tmp_path / "data.csv"
    assert read(text, tmp_path, words="word", tags="tag", sentence="number") == [
        {"text": "Ada left", "words": ["Ada", "left"], "tags": ["B-per", "O"], "where": f"{path}:2"},
        {"text": "New York", "words": ["New", "York"], "tags": ["B-town", "I-town"], "where": f"{path}:4"},
    ]


def test_a_column_names_files_beside_the_table(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"x")
    path = tmp_path / "data.csv"
    path.write_text("image,class\na.png,x\nc.png,y\nb.png,y\na.png,z\n")
    reader = construct(Csv, text=None, label="class", files=["image"])
    with pytest.raises(DataError, match=r"data\.csv:3: there is no file .*c\.png, which 'image' names; names are rel"):
        list(reader.read(path))
    assert reader.files(path) == [path, tmp_path / "a.png", tmp_path / "b.png"]
    reader.left_out = []
    assert [record["image"].name for record in reader.read(path)] == ["a.png", "b.png", "a.png"]
    assert "c.png" in reader.left_out[0]
    with pytest.raises(DataError, match="no column is named 'picture'"):
        list(construct(Csv, text=None, files=["picture"]).read(path))
