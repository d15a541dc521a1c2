"""The row of names of a table: recognised by its contrast with the rows below it, or as `--header` says."""

import json
import random
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny_pipelines import seqpipe, write_jsonl

from seqpipe import Pipeline
from seqpipe.config import loader
from seqpipe.errors import DataError
from seqpipe.init import init_yaml
from seqpipe.init.yaml import open_doubts

ENGLISH = ["my", "order", "the", "lamp", "invoice", "account", "never", "arrived", "again", "was", "broken", "please"]
CHINESE = "今天天气很好我们去公园这家餐厅的菜非常好吃快递还没有到请帮我查询怎么修改地址"


def sentences(number: int, words: Any = ENGLISH, sign: str = " ") -> list[str]:
    """Different texts of six to ten words, or characters."""
    source = random.Random(1)
    return [sign.join(source.choices(words, k=source.randint(6, 10))) for _ in range(number)]


def table(folder: Path, head: list[str] | None, *columns: list[str], sign: str = ",") -> Path:
    """Write a table, with or without a row of names."""
    rows = [*([head] if head else []), *zip(*columns, strict=True)]
    path = folder / ("a.tsv" if sign == "\t" else "a.csv")
    path.write_text("".join(sign.join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(data: Path, **options: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the YAML of a file, and the options of its reader."""
    data.with_name("init.yaml").unlink(missing_ok=True)
    yaml = init_yaml(data, data.with_name("init.yaml"), **options)
    return yaml.read_text(encoding="utf-8"), loader.load_config(yaml).data.reader.options


def cycle(values: str, number: int) -> list[str]:
    return (values.split(",") * number)[:number]


CODES = [f"T-{number}" for number in range(99)]


HEADERS = [
    ("Ticket ID,Ticket Description,Ticket Type", ",", "Bug,Refund", "Ticket Description", "Ticket Type"),
    ("Ticket-Nr.,Kurze Beschreibung,Priorität (1)", ";", "hoch,niedrig", "Kurze Beschreibung", "Priorität (1)"),
    ("工单号,问题描述,工单类型", ",", "投诉,咨询", "问题描述", "工单类型"),
    ("番号,お問い合わせ内容,種類", "\t", "苦情,質問", "お問い合わせ内容", "種類"),
    ("رقم,نص الرسالة,نوع", "|", "شكوى,سؤال", "نص الرسالة", "نوع"),
    ("#,What happened?,Is it urgent?", ",", "yes,no", "What happened?", "Is it urgent?"),
    ("🔢,💬 message [en],🏷 kind", "\t", "yes,no", "💬 message [en]", "🏷 kind"),
    ("n,x,y", ",", "yes,no", "x", "y"),
]


@pytest.mark.parametrize("rows", [8, 60])
@pytest.mark.parametrize(("names", "sign", "values", "text", "label"), HEADERS)
def test_a_header_is_recognised_in_any_script(
    names: str, sign: str, values: str, text: str, label: str, rows: int, tmp_path: Path
) -> None:
    data = table(tmp_path, names.split(","), CODES[:rows], sentences(rows), cycle(values, rows), sign=sign)
    yaml, options = read(data)
    assert (options["text"], options["label"], options["columns"]) == (text, label, None)
    assert f"{values.partition(',')[0]} {rows // 2}" in yaml
    assert "doubtful" not in yaml


def test_numbers_with_a_comma_and_dates_are_not_names(tmp_path: Path) -> None:
    dates = [f"{day:02}.03.2024" for day in range(1, 21)]
    hours = [f"{number},{number % 7}1" for number in range(20)]
    head = ["Erstellt am", "Kommentar des Kunden", "Aufwand [h]", "Team"]
    data = table(tmp_path, head, dates, sentences(20), hours, cycle("Nord,Süd", 20), sign=";")
    yaml, options = read(data)
    assert (options["text"], options["label"]) == ("Kommentar des Kunden", "Team")
    assert "4 columns named Erstellt am, Kommentar des Kunden, Aufwand [h], Team." in yaml


def test_a_name_that_is_a_value_too_is_outweighed_by_the_other_columns(tmp_path: Path) -> None:
    flags, kinds = cycle("True,False", 90), cycle("none,hate,offensive", 90)
    data = table(tmp_path, ["comments", "contains bias", "hate"], sentences(90), flags, kinds, sign="\t")
    assert read(data, target="hate")[1]["label"] == "hate"
    assert "3 columns named comments, contains bias, hate." in read(data)[0]


@pytest.mark.parametrize("rows", [2, 3, 6, 60])
@pytest.mark.parametrize("sign", [",", "\t", ";"])
def test_a_first_record_stays_a_record(rows: int, sign: str, tmp_path: Path) -> None:
    labels, texts = cycle("bug,refund", rows + 1), sentences(rows + 1)
    for columns in (
        [labels, texts],
        [texts, labels],
        [CODES[: rows + 1], texts, labels],
        [["once", *labels[1:]], texts],  # a label that no other record has, by chance
        [texts, [str(number) for number in range(rows + 1)], ["rate limit", *labels[1:]]],
        [labels, ["good food", *texts[1:]]],  # a text that is shorter than the others
        [labels, sentences(rows + 1, CHINESE, "")],
        [["投诉", *cycle("咨询,建议", rows)], sentences(rows + 1, CHINESE, "")],
    ):
        data = table(tmp_path, None, *columns, sign=sign)
        messages: list[str] = []
        try:
            init_yaml(data, tmp_path / "init.yaml", messages.append)
        except DataError as error:  # of few rows nothing may be learned
            messages.append(str(error))
        assert f"{len(columns)} columns without names" in messages[0]
        (tmp_path / "init.yaml").unlink(missing_ok=True)


def test_pairs_that_are_sorted_by_length_have_no_header(tmp_path: Path) -> None:
    texts = sorted(["go", "hi", "run", "stop", "wait", "hello", "thanks", *sentences(40)], key=len)
    data = table(tmp_path, None, texts, [f"{text} {text[:2]}" for text in texts], sign="\t")
    assert read(data)[1]["columns"] == ["text", "target"]


def test_a_doubtful_header_has_the_command_for_the_other_reading(tmp_path: Path) -> None:
    table(tmp_path, ["Ticket Description", "Ticket Type"], sentences(3), cycle("Bug,Refund", 3), sign="\t")
    done = seqpipe("init", "a.tsv", folder=tmp_path)
    (doubt,) = [line for line in done.err.splitlines() if line.startswith("doubtful: the first row")]
    assert doubt == "doubtful: the first row is read as a record. To read it as names: seqpipe init a.tsv --header yes"
    text = (tmp_path / "a.yaml").read_text()
    assert open_doubts(text) == [doubt]
    assert open_doubts(text.replace("epochs: ", "epochs: 1")) == [doubt]
    assert open_doubts(text.replace("use: tsv, ", "use: tsv, label: 2, ")) == []  # somebody has decided
    _, *arguments = shlex.split(doubt.rpartition(": ")[2])
    other = json.loads(seqpipe(*arguments, "-o", "b.yaml", "--json", folder=tmp_path).out)
    assert other["readings"][0]["records"] == 3
    assert loader.load_config(tmp_path / "b.yaml").data.reader.options["label"] == "Ticket Type"


def test_the_option_header_decides_on_the_command_line_and_in_python(tmp_path: Path) -> None:
    columns = sentences(20), cycle("bug,refund", 20)
    data = table(tmp_path, ["text", "label"], *columns)
    assert seqpipe("init", "a.csv", "--header", "no", folder=tmp_path).code == 0
    assert "# Labels: bug 10, refund 10, label 1\n" in (tmp_path / "a.yaml").read_text()
    pipeline = Pipeline.init(data, tmp_path / "b.yaml", header=False)
    assert pipeline.config.data.reader.options["columns"] == ["text", "label"]
    pipeline = Pipeline.init(table(tmp_path, None, *columns), tmp_path / "c.yaml", header=True)
    assert pipeline.config.data.reader.options["label"] == "bug"


def test_a_column_name_in_target_or_text_makes_the_first_row_a_header(tmp_path: Path) -> None:
    columns = ["bad", "fair"], ["good food", "slow waiters"], ["x", "y"]
    data = table(tmp_path, ["Mood", "Some Remark", "kind"], *(column * 3 for column in columns), sign="\t")
    assert read(data, target="Mood", texts=["Some Remark"])[1]["label"] == "Mood"
    fix = r"there is no column 'Mood' by name: give a number from 1 to 3, or .* by `--header yes`"
    with pytest.raises(DataError, match=fix):
        init_yaml(data, tmp_path / "b.yaml", target="Mood", header=False)


WRONG_HEADERS = [
    ("a.csv", "text,text,label\n" + "a good day,no,x\nbad food here,yes,y\n" * 9, "a.csv:1: two columns are named"),
    ("a.csv", "a,,label\n" + "u,a good day,x\nv,bad food here,y\n" * 9, "2 columns named a, label, and 1 without"),
    ("a.jsonl", '{"text": "a day", "label": "x"}\n{"text": "b", "label": "y"}\n', "is for tables, .* JSON Lines"),
    ("a.conll", "in O\nBern B-city\n\n" * 9, "is for tables, .* CoNLL"),
]


@pytest.mark.parametrize(("name", "content", "message"), WRONG_HEADERS)
def test_a_wrong_header_is_an_error(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        init_yaml(tmp_path / name, tmp_path / "init.yaml", header=True)
    assert not (tmp_path / "init.yaml").exists()


def test_a_label_that_occurs_once_is_doubtful_in_init_and_a_warning_in_check(tmp_path: Path) -> None:
    labels = ["bug", "refund"] * 6
    labels[4] = "bgu"
    table(tmp_path, ["text", "label"], sentences(12), labels)
    problem = "labels that occur once: 'bgu' ({}:6); a model cannot learn a label from one record"
    assert f"doubtful: {problem.format('a.csv')}" in seqpipe("init", "a.csv", folder=tmp_path).err
    warnings = json.loads(seqpipe("check", "a.yaml", "--json", folder=tmp_path).out)["warnings"]
    assert [line for line in warnings if line.startswith(f"train: {problem.format(tmp_path / 'a.csv')}")]


@pytest.mark.parametrize(("number", "is_reported"), [(9, False), (10, True)])
def test_few_records_may_have_labels_that_occur_once(number: int, is_reported: bool, tmp_path: Path) -> None:
    labels = ["bug"] * (number - 5) + ["a", "b", "c", "d", "e"]
    records = [{"text": text, "label": label} for text, label in zip(sentences(number), labels, strict=True)]
    text = read(write_jsonl(tmp_path / "a.jsonl", records))[0]
    assert ("labels that occur once: 'a' (" in text) == is_reported
    assert ("; and 2 more; a model" in text) == is_reported
