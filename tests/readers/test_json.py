"""Lists of objects in a JSON file, nested objects and renamed keys, through the readers json and jsonl."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from seqpipe.config.signature import construct
from seqpipe.errors import DataError, UsageError
from seqpipe_plugins.readers.json import Json, Jsonl

ITEMS = [{"text": "in Bern", "label": "city"}, {"text": "你好", "label": "greeting"}]


def read(content: Any, folder: Path, **options: Any) -> list[dict[str, Any]]:
    path = folder / "data.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return list(construct(Json, **options).read(path))


LISTS = [
    (ITEMS, {}),
    ({"version": 1, "data": ITEMS, "more": [1, {}]}, {"list": "data"}),
    ({"a": {"c": {"b": [1]}, "b": ITEMS}}, {"list": "a.b"}),
]


@pytest.mark.parametrize(("content", "options"), LISTS)
def test_a_list_is_read_wherever_it_is(content: Any, options: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    first, second = read(content, tmp_path, **options)
    assert first == {**ITEMS[0], "where": f"{path}:1"}
    assert second == {**ITEMS[1], "where": f"{path}:1 (item 2)"}


def test_lines_are_counted_and_gzip_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "data.json.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + json.dumps(ITEMS, indent=1).encode()))
    assert [record["where"] for record in construct(Json).read(path)] == [f"{path}:2", f"{path}:6"]


def test_nested_keys_have_dotted_names(tmp_path: Path) -> None:
    item = {"user": {"says": {"text": "hi"}, "id": 3}, "meta": {"intent": "greet", "label": "x"}, "label": "y"}
    options = {"text": "user.says.text", "label": "meta.intent"}
    (record,) = read([item], tmp_path, **options)
    assert record["text"] == "hi"
    assert (record["label"], record["source_label"], record["meta.label"], record["user.id"]) == ("greet", "y", "x", 3)
    assert "user.says.text" not in record
    (line,) = construct(Jsonl, **options).records([json.dumps(item)], str(tmp_path / "data.json"))
    assert line == record


BAD = [
    (b"", {}, r":1: this is not a JSON list: a list belongs here; write a list of objects"),
    (b"[]", {}, r"there is no record in this file"),
    (b"[1]", {}, r":1: this item of the list is not an object"),
    (b'[{"text": "a"},\n{"text": "b"}\n{"text": "c"}]', {}, r":3: .*a comma or \] belongs here"),
    (b'[{"text": "a"},\n{"text": 1}]', {}, r":2: `text` is a number; it must be a string"),
    (b'[{"text": "a"},\n{"text": "b", "text": "c"}]', {}, r":2: the key 'text' is given twice"),
    (b'[{"text": "a"},\n{"text": NaN}]', {}, r":2: NaN is not JSON; write null or a number"),
    (b'[{"text": "a"},\n{"text": "b"', {}, r"this is not JSON .*is the file whole"),
    (b'[{"text": "a"}]\n[]', {}, r":2: there is text after the end of the JSON"),
    (b'[{"text": "a"},\n{"text": "\xff"}]', {}, r":2: this is not UTF-8"),
    (b"[" * 100_000, {}, r"nested too deep"),
    (b'{"data": []}', {}, r":1: this is not a JSON list: a list belongs here; .* for a list below a key"),
    (b'{"data": []}', {"list": "date"}, r"no key 'date' in this object"),
    (b'[{"text": "a", "intent": "x"}]', {"label": "intend"}, r"there is no key `intend`; did you mean 'intent'"),
]


@pytest.mark.parametrize(("content", "options", "message"), BAD)
def test_a_file_without_records_is_an_error(content: bytes, options: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read(content, tmp_path, **options)


def test_a_key_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match=r"json.list: 'a\.\.b' is not a key"):
        construct(Json, list="a..b")
