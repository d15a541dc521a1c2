"""Parquet tables through the reader parquet."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from seqpipe.config.signature import construct
from seqpipe.errors import DataError, EnvError
from seqpipe.init import init_yaml
from seqpipe_plugins.readers.parquet import Datasets, Parquet

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def table(folder: Path, columns: dict[str, list[Any]], features: dict[str, Any] | None = None) -> Path:
    content = pa.table(columns)
    if features:
        content = content.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(content, folder / "data.parquet", row_group_size=2)
    return folder / "data.parquet"


def test_rows_are_records(tmp_path: Path) -> None:
    columns = {"text": ["a", "好", "c"], "label": ["x", "y", "x"], "n": [1, 2, 3]}
    path = table(tmp_path, columns)
    assert list(construct(Parquet).read(path)) == [
        {"text": text, "label": label, "n": n, "where": f"{path}:{n}"}
        for text, label, n in zip(*columns.values(), strict=True)
    ]


def test_numbers_become_the_names_that_the_file_states(tmp_path: Path) -> None:
    tags = {"feature": {"names": ["O", "B-city"], "_type": "ClassLabel"}, "_type": "Sequence"}
    features = {"tokens": {"_type": "Sequence"}, "ner_tags": tags, "kind": {"names": ["q", "s"], "_type": "ClassLabel"}}
    path = table(tmp_path, {"tokens": [["in", "Bern"]], "ner_tags": [[0, 1]], "kind": [1]}, features)
    (record,) = construct(Parquet, words="tokens", tags="ner_tags", label="kind").read(path)
    assert (record["text"], record["tags"], record["label"]) == ("in Bern", ["O", "B-city"], "s")


def test_nested_columns_have_dotted_names(tmp_path: Path) -> None:
    path = table(tmp_path, {"user": [{"says": "hi", "id": 1}], "labels": [["a", "b"]]})
    (record,) = construct(Parquet, text="user.says").read(path)
    assert (record["text"], record["labels"], record["user.id"]) == ("hi", ["a", "b"], 1)


def test_a_file_that_is_not_a_table_is_an_error(tmp_path: Path) -> None:
    path = table(tmp_path, {"text": ["a", None]})
    with pytest.raises(DataError, match=r"data\.parquet:2: `text` is null"):
        list(construct(Parquet).read(path))
    path = table(tmp_path, {"text": pa.array([], pa.string())})
    with pytest.raises(DataError, match="there is no row in this file"):
        list(construct(Parquet).read(path))
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"cannot be read after row 0 .*; is it a Parquet file, and whole\?"):
        list(construct(Parquet).read(path))
    with pytest.raises(DataError, match="cannot be read after row 0"):
        list(construct(Parquet).read(tmp_path / "none.parquet"))


def test_without_pyarrow_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path, {"text": ["a"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EnvError, match=r'Parquet needs pyarrow: pip install "pyarrow>='):
        list(construct(Parquet).read(path))


def saved(folder: Path, rows: list[dict[str, Any]], features: dict[str, Any]) -> Path:
    """A folder as `save_to_disk` of the library datasets writes it, in two files."""
    folder.mkdir()
    for number, part in enumerate((rows[:2], rows[2:])):
        content = pa.Table.from_pylist(part)
        content = content.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        with pa.ipc.new_stream(str(folder / f"data-0000{number}-of-00002.arrow"), content.schema) as writer:
            writer.write_table(content)
    (folder / "state.json").write_text("{}")
    return folder


@pytest.mark.parametrize("is_old", [True, False])
def test_a_folder_of_datasets_is_read_with_the_names_of_its_numbers(is_old: bool, tmp_path: Path) -> None:
    names = {"names": ["O", "B-town"], "_type": "ClassLabel"}
    features = {"label": {"names": ["calm", "storm"]}, "ner_tags": [names] if is_old else {"feature": names}}
    rows = [{"tokens": ["to", f"town{i}"], "ner_tags": [0, 1], "label": i % 2} for i in range(5)]
    folder = saved(tmp_path / "train", rows, features)
    records = list(construct(Datasets, words="tokens", tags="ner_tags").read(folder))
    assert [record["label"] for record in records] == ["calm", "storm", "calm", "storm", "calm"]
    assert (records[0]["tags"], records[4]["where"]) == (["O", "B-town"], f"{folder}:5")
    single = sorted(folder.glob("*.arrow"))[0]
    assert len(list(construct(Parquet, words="tokens", tags="ner_tags").read(single))) == 2
    text = init_yaml(tmp_path, tmp_path / "a.yaml").read_text()
    assert "{use: datasets, words: tokens, tags: ner_tags" in text
    (folder / "data-00000-of-00002.arrow").write_bytes(b"damaged")
    with pytest.raises(DataError, match="cannot be read after row 0"):
        list(construct(Datasets, words="tokens", tags="ner_tags").read(folder))
