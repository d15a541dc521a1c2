"""The JSON of SQuAD, good and bad, through the reader squad."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from seqpipe.errors import DataError
from seqpipe.init import init_yaml
from seqpipe_plugins.readers.squad import Squad

CONTEXT = "😀 Ada met Bo in Oslo."
ANSWERS = [{"text": "Ada", "answer_start": 2}, {"text": "Bo", "answer_start": 10}]
QA = {"id": "7", "question": "Who?", "answers": ANSWERS}


def squad(*qas: Any, **more: Any) -> dict[str, Any]:
    return {"data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": list(qas)}]}]} | more


def read(content: Any, folder: Path) -> list[dict[str, Any]]:
    path = folder / "data.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return list(Squad().read(path))


def test_versions_one_and_two_are_read(tmp_path: Path) -> None:
    impossible = {**QA, "id": "8", "is_impossible": True, "answers": [], "plausible_answers": ANSWERS}
    first, second = read(squad(QA, impossible, version="v2.0"), tmp_path)
    place = f"{tmp_path}/data.json:1 (question '7')"
    answers = {"text": ["Ada", "Bo"], "answer_start": [2, 10]}
    assert first == {"question": "Who?", "context": CONTEXT, "answers": answers, "id": "7", "where": place}
    assert second["answers"] == {"text": [], "answer_start": []}
    with gzip.open(tmp_path / "data.json.gz", "wt") as file:
        json.dump({"version": "1.1"} | squad(QA), file)
    assert [record["id"] for record in Squad().read(tmp_path / "data.json.gz")] == ["7"]


def test_articles_larger_than_what_is_read_at_once_are_whole_and_have_their_lines(tmp_path: Path) -> None:
    sizes = enumerate((10, 200_000, 5, 70_000))
    articles = [squad({**QA, "id": str(i), "more": "é" * size})["data"][0] for i, size in sizes]
    lines = ",\n".join(json.dumps(article, ensure_ascii=False) for article in articles)
    records = read(f'\ufeff{{"data": [\n{lines}\n]}}'.encode(), tmp_path)
    assert [record["id"] for record in records] == ["0", "1", "2", "3"]
    assert [record["where"].split(" ")[0].rsplit(":")[-1] for record in records] == ["2", "3", "4", "5"]


MISPLACED = {"text": "Ada", "answer_start": 3}
BAD = [
    (b"", r"data.json:1: this is not JSON of SQuAD: an object belongs here; write \{"),
    (b'{"data"\n: 3}', r"data.json:2: .* a list belongs here"),
    (b'{"version": "1"}', r"data.json:1: there is no key 'data' in this object"),
    (b'{"data": []}', r"data.json: there is no question in this file; write"),
    (b'{"data": [\n{"paragraphs": [}]}', r"data.json:2: this is not JSON \(Expecting value\); is the file whole\?"),
    (b'{"data": [{"paragraphs": []}', r"data.json:1: .* a comma or \] belongs here"),
    (b'{"data": [{"paragraphs": []},]}', r"there is nothing between the comma and \]; leave the comma out"),
    (b'{"data": []}\n x', r"data.json:2: there is text after the end of the JSON"),
    (b'{"data": [\n"\xff"]}', r"data.json:2: this is not UTF-8; convert the file"),
    ({"data": [3]}, r"data.json:1: there is no list `paragraphs` where one belongs"),
    ({"data": [{"paragraphs": [{"qas": []}]}]}, r"there is no text `context` where one belongs"),
    ({"data": [{"paragraphs": [{"context": "a", "qas": [4]}]}]}, r"there is no text `question` where one belongs"),
    (squad({**QA, "answers": None}), r"data.json:1 \(question '7'\): no field 'answers' with the answers"),
    (squad({**QA, "answers": [MISPLACED]}), r"question '7'\): the answer 'Ada' is not at 3"),
    (b'{"data": ' + b"[" * 100_000, r"data.json:1: "),
]


@pytest.mark.parametrize(("content", "message"), BAD, ids=range(len(BAD)))
def test_bad_files_are_refused_with_their_place_and_the_fix(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(content, tmp_path)


@pytest.mark.parametrize(("offsets", "shift"), [("utf-16", 1), ("bytes", 3), ("one-based", 1)])
def test_starts_in_other_units_are_distinguished_from_wrong_ones(offsets: str, shift: int, tmp_path: Path) -> None:
    context = CONTEXT if offsets != "one-based" else CONTEXT[2:]
    start = context.index("Ada")
    qas = [{"question": "Who?", "answers": [{"text": "Ada", "answer_start": start + shift}]}]
    paragraphs = [{"context": f"{context} {i}", "qas": qas} for i in range(20)]
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    message = f"20 of 20 spans do not fit .*; 20 of 20 do if .*; set data.offsets: {offsets}"
    with pytest.raises(DataError, match=message):
        list(Squad().read(path))
    assert f"{{use: squad, offsets: {offsets}}}" in init_yaml(path, tmp_path / "a.yaml").read_text()
    assert [record["answers"]["answer_start"] for record in Squad(offsets=offsets).read(path)] == [[start]] * 20  # type: ignore[arg-type]


def test_questions_with_wrong_starts_are_counted_and_may_be_left_out(tmp_path: Path) -> None:
    wrong = {**QA, "id": "8", "answers": [{"text": "Ada", "answer_start": 5}]}
    path = tmp_path / "data.json"
    path.write_text(json.dumps(squad(QA, wrong, QA)))
    with pytest.raises(DataError, match=r"question '8'.*1 of 3 spans do not fit .*; `bad_rows: skip`"):
        list(Squad().read(path))
    reader = Squad()
    reader.left_out = []
    assert len(list(reader.read(path))) == 2
    assert "the answer 'Ada' is not at 5" in reader.left_out[0]
