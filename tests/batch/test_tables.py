"""Tables, JSON lists, CoNLL-U and Parquet through `predict`, and answers as tables."""

import csv
import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from gallery import gallery

from seqpipe import Model, load
from seqpipe.batch.files import predict_file
from seqpipe.batch.job import PredictJob
from seqpipe.batch.tables import reader_for
from seqpipe.errors import DataError, SkippedError, UsageError
from seqpipe.runtime.manifest import Reader

ROWS = [{"id": "1", "text": "Anna, in\nBern"}, {"id": "2", "text": "calls"}]
CONLLU = "# sent_id = 1\n# text = Anna calls\n1\tAnna\tAnna\tPROPN\t_\t_\t2\tnsubj\t_\t_\n"
CONLLU += "2\tcalls\tcall\tVERB\t_\t_\t0\troot\t_\t_\n\n"


def predicted(
    model: Model, source: Path, names: list[str] | None = None, form: str = "auto", **options: Any
) -> list[Any]:
    target = source.parent / "out.jsonl"
    predict_file(model, PredictJob(form, names, options=options), [source], target)
    return [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]


def table(path: Path, delimiter: str = ",", names: tuple[str, ...] = ("id", "text"), encoding: str = "utf-8") -> Path:
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(names)
        writer.writerows([row.values() for row in ROWS])
    return path


def write(path: Path) -> Path:
    """The rows in the form that the file's name says."""
    name = path.name
    if name.endswith(".csv"):
        return table(path)
    if name.endswith(".tsv"):  # whose cells have no quotes
        path.write_text("id\ttext\n1\tAnna, in Bern\n2\tcalls\n", encoding="utf-8")
    elif name.endswith(".parquet"):
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(ROWS), path)
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(write(path.with_suffix("")).read_bytes()))
    elif name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(write(path.with_suffix("")), path.stem)
    else:
        path.write_text(json.dumps(ROWS), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.json", "a.parquet", "a.csv.gz", "a.json.gz", "a.csv.zip"])
def test_rows_are_written_with_the_answer_to_their_text(name: str, tiny: Model, tmp_path: Path) -> None:
    answers = predicted(tiny, write(tmp_path / name))
    expected = tiny(ROWS[0]["text"].replace("\n", " ") if name == "a.tsv" else ROWS[0]["text"])
    assert [(row["id"], row["answer"]) for row in answers] == [("1", expected), ("2", [])]


def test_conllu_is_answered_by_its_words_and_a_named_form_is_read_as_such(tiny: Model, tmp_path: Path) -> None:
    def lines(name: str, content: str, form: str = "auto") -> list[str]:
        (tmp_path / name).write_text(content, encoding="utf-8")
        predict_file(tiny, PredictJob(form), [tmp_path / name], tmp_path / "out")
        return (tmp_path / "out").read_text().splitlines()

    assert [line.split("\t")[0] for line in lines("a.conllu", CONLLU)] == ["Anna", "calls", ""]
    assert len(lines("a.txt", "text\tlabel\nAnna\tx\n", "text")) == 2
    assert len(lines("a.txt", "Anna, in Bern\n[Anna] calls\n")) == 2


def test_the_delimiter_is_that_of_the_line_with_the_column(tiny: Model, tmp_path: Path) -> None:
    for delimiter, encoding in ((";", "utf-8"), ("|", "utf-8-sig"), ("\t", "utf-8")):
        assert len(predicted(tiny, table(tmp_path / "a.csv", delimiter, encoding=encoding))) == 2


def test_a_column_is_named_by_field(tiny: Model, tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", names=("id", "body"))
    with pytest.raises(DataError, match=r"no column or key is named 'text' .there is: id, body.; name it with --field"):
        predicted(tiny, path)
    assert predicted(tiny, path, ["body"])[0]["answer"] == tiny("Anna, in\nBern")
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"body": "Anna calls"}\n')
    assert predicted(tiny, lines, ["body"])[0]["answer"] == tiny("Anna calls")
    with pytest.raises(DataError, match=r"no column or key is named 'bod'.* 'body'"):  # though it is the only key
        predicted(tiny, lines, ["bod"])
    with pytest.raises(UsageError, match="this bundle reads text; name as many columns"):
        predicted(tiny, path, ["id", "body"])
    with pytest.raises(UsageError, match="--field: names a column of a table"):
        predicted(tiny, path, ["body"], "text")
    one = tmp_path / "one.csv"
    one.write_text("body\nAnna calls\n")
    assert predicted(tiny, one)[0]["answer"] == tiny("Anna calls")


WRONG_FILES = [
    ("a.txt", "text\tlabel\nAnna\tx\n", "looks like tsv, but its name does not end so; give --format tsv"),
    ("a.dat", "id,text\n1,Anna\n", "looks like csv"),
    ("a.txt", '{"text": "Anna"}\n', "looks like jsonl"),
    ("a.txt", '[\n{"text": "Anna"}\n]', "looks like json"),
    ("a.txt", CONLLU, "looks like conllu"),
    ("a.docx", "Anna", "is not in a format that is read; give text"),
    ("a.xlsx", "PK\x03\x04", "is not in a format that is read"),
    ("a.csv", "text,label\nAnna\n", "a.csv:2: one column in this line, but 2 have names"),
    ("a.csv", 'text,label\n"Anna', "unexpected end of data"),
    ("a.json", '{"text": "Anna"}', "this is not a JSON list: a list belongs here"),
    ("a.csv.gz", "text\nAnna\n", "cannot be unpacked .Not a gzipped file"),
]


@pytest.mark.parametrize(("name", "content", "message"), WRONG_FILES)
def test_other_forms_and_faults_are_refused(name: str, content: str, message: str, tiny: Model, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        predicted(tiny, path)


@pytest.mark.parametrize("name", ["out.csv", "out.tsv", "out.parquet"])
def test_answers_are_written_as_a_table(name: str, tiny: Model, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    if name == "out.parquet":
        pytest.importorskip("pyarrow")
    predict_file(tiny, PredictJob(), [table(tmp_path / "a.csv")], tmp_path / name)
    if name == "out.parquet":
        frame = pandas.read_parquet(tmp_path / name)
    else:
        frame = pandas.read_csv(tmp_path / name, sep="\t" if "tsv" in name else ",", dtype=str)
    assert list(frame.columns) == ["id", "text", "answer"]
    assert list(frame["text"]) == [row["text"] for row in ROWS]
    assert json.loads(frame["answer"][0]) == tiny(ROWS[0]["text"])


def test_a_row_without_an_answer_has_its_error_in_the_table(tiny: Model, tmp_path: Path) -> None:
    source, target = tmp_path / "a.csv", tmp_path / "out.csv"
    source.write_text("id,text\n1,Anna\n2\n3,calls\n")
    with pytest.raises(SkippedError, match="1 of 3 inputs have no answer"):
        predict_file(tiny, PredictJob(on_error="skip"), [source], target)
    with target.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [bool(row["error"]) for row in rows] == [False, True, False]
    assert "one column in this line" in rows[1]["error"]


def test_a_frame_gets_columns_of_answers(tiny: Model) -> None:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(ROWS)
    answered = tiny.predict_table(frame)
    assert "answer" not in frame
    assert json.loads(answered["answer"][0]) == tiny("Anna, in\nBern")
    arrow = tiny.predict_table(pyarrow.Table.from_pandas(frame.rename(columns={"text": "body"})), field="body")
    assert arrow.column("answer").to_pylist() == list(answered["answer"])
    with pytest.raises(DataError, match="no column or key is named 'body'"):
        tiny.predict_table(frame, field="body")
    with pytest.raises(DataError, match="row 2: is not a text"):
        tiny.predict_table(pandas.DataFrame({"text": ["Anna", None]}))


def test_a_frame_has_a_column_of_decode_options() -> None:
    pandas, model = pytest.importorskip("pandas"), load(gallery("text").bundle, "cpu", threads=1)
    frame = pandas.DataFrame({"text": ["ab", "ab"], "start": ["d", None]})
    answered = model.predict_table(frame, option_fields={"prefix": "start"})
    assert list(answered["answer.generated_text"]) == [
        model("ab", **more)["generated_text"] for more in ({"prefix": "d"}, {})
    ]
    with pytest.raises(UsageError, match="option_fields: no column is named 'prefix'"):
        model.predict_table(frame, option_fields=["prefix"])
    with pytest.raises(DataError, match="'prefix' is a decode option and no field"):
        model.predict_table(frame.rename(columns={"start": "prefix"}))


def test_a_polars_frame_gets_columns_of_answers(tiny: Model) -> None:
    polars = pytest.importorskip("polars")
    assert tiny.predict_table(polars.DataFrame(ROWS)).columns == ["id", "text", "answer"]


def test_rows_without_an_answer_have_an_error_and_batches_of_arrow_are_read(tiny: Model) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    (batch,) = pyarrow.table({"text": ["Anna", None, "in Bern"]}).to_batches()
    answered = tiny.predict_table(batch, on_error="skip")
    assert isinstance(answered, pyarrow.RecordBatch)
    first, second, third = (error or "" for error in answered["error"].to_pylist())
    assert (first, "field 'text' must be a text, not NoneType" in second, third) == ("", True, "")
    assert json.loads(answered["answer"][2].as_py()) == tiny("in Bern")


def test_a_file_of_another_form_than_the_training_data_is_evaluated_by_its_own_reader() -> None:
    stored = Reader(use="csv", options={"text": "body", "label": "verdict", "columns": None, "numbers": []})
    assert reader_for(stored, Path("a.csv.gz")) is stored
    assert reader_for(stored, None) is stored
    assert reader_for(stored, Path("a.jsonl")).options == {"text": "body", "label": "verdict"}
    assert reader_for(stored, Path("a.conll")) is stored
    other = reader_for(Reader(use="jsonl", options={"text": None, "label": "y"}), Path("a.tsv"))
    assert (other.use, other.options) == ("tsv", {"text": None, "label": "y"})
