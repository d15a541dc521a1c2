"""The keys of `data` name a file, a list of files, a pattern or a folder; records come from all of them, in order."""

import gzip
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tiny_pipelines import write_classifier

from seqpipe.api.pipeline import Pipeline
from seqpipe.batch.shards import input_files
from seqpipe.config import yaml
from seqpipe.config.loader import Config, load_config, resolved
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, DataError, EnvError
from seqpipe.features.parts import Files
from seqpipe.files import sha256_file
from seqpipe.runs.run_folder import fingerprint
from seqpipe.training.data_forms import data_form

NAMES = ("a.jsonl", "b.jsonl.gz", "c.jsonl")


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A YAML beside the folder `shards`, which has the records of train.jsonl in three files."""
    path = write_classifier(tmp_path, {"head": "label"})
    (tmp_path / "shards").mkdir()
    lines = (tmp_path / "train.jsonl").read_bytes().splitlines(keepends=True)
    for number, name in enumerate(NAMES):
        content = b"".join(lines[number * 7 : (number + 1) * 7 if number < 2 else None])
        (tmp_path / "shards" / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (tmp_path / "shards/_SUCCESS").touch()
    return path


def records(config: Config, role: str = "train") -> list[dict[str, Any]]:
    return [*data_form(config).read(getattr(config.data, role))]


def texts(config: Config, role: str = "train") -> list[Any]:
    return [(record["text"], record["label"]) for record in records(config, role)]


@pytest.mark.parametrize(
    "files", ["shards/*.jsonl*", "shards", "[shards/a.jsonl, 'shards/[bc].*']", "'**/[abc].json*'"]
)
def test_every_form_has_the_records_of_all_files_in_order(shards: Path, files: str) -> None:
    config = load_config(shards, [f"data.train={files}"])
    paths = [shards.parent / "shards" / name for name in NAMES]
    assert config.data.train == Files(tuple(paths))
    assert texts(config) == texts(load_config(shards))
    places = [records(config)[i]["where"] for i in (6, 7, 14)]
    assert places == [f"{paths[0]}:7", f"{paths[1]}:1", f"{paths[2]}:1"]
    assert fingerprint(config)["data"]["train"] == [sha256_file(path) for path in paths]
    run = shards.parent / "runs" / "again"
    run.mkdir(parents=True)
    (run / "pipeline.yaml").write_text(dump(resolved(config, run)))
    assert load_config(run / "pipeline.yaml").data == config.data


def test_shares_and_folds_divide_the_records_of_all_files(shards: Path) -> None:
    divided = ["data.dev=0.2", "data.fold=[1, 3]", "data.test=null"]
    config, whole = load_config(shards, [*divided, "data.train=shards"]), load_config(shards, divided)
    for role in ("train", "dev"):
        assert texts(config, role) == texts(whole, role)


def test_a_list_is_a_set_by_name_too_and_other_keys_have_the_same_forms(shards: Path) -> None:
    config = load_config(shards, ["data.test={new: shards, old: test.jsonl}", "data.add=['shards/[ab]*', dev.jsonl]"])
    assert [str(path).count("more") for path in config.data.tests.values()] == [1, 0]
    assert len(records(config)) == len(records(load_config(shards))) + 14 + len(records(load_config(shards), "dev"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("shards/*.csv", "no file matches 'shards/*.csv'"),
        (".", "is a folder with files of several kinds (.jsonl, .yaml)"),
        ("empty", "is a folder without data files"),
        ("[shards/a.jsonl, shards]", "is named twice; name it once"),
        ("[]", "a path or a list of paths"),
    ],
)
def test_a_form_without_files_is_refused_with_its_cure(shards: Path, files: str, message: str) -> None:
    (shards.parent / "empty").mkdir()
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(shards, [f"data.train={files}"])


def test_files_that_are_read_together_are_named_once(tmp_path: Path) -> None:
    reader = {"use": "lines", "labels": {"a": "a.*", "b": "b.*"}}
    path = write_classifier(tmp_path, {"head": "label", "data": {"reader": reader, "train": "*.txt"}})
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("a text\n")
    with pytest.raises(ConfigError, match=r"b\.txt is read together with \S+a\.txt"):
        load_config(path)


@pytest.fixture
def memory(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A remote file system with the files of `shards`."""
    monkeypatch.setenv("SEQPIPE_CACHE", str(tmp_path / "cache"))
    system = fsspec.filesystem("memory")
    for path in (shards.parent / "shards").glob("*json*"):
        system.pipe(f"/bucket/{path.name}", path.read_bytes())
    yield system
    system.rm("/bucket", recursive=True)


def test_remote_files_are_copied_once(shards: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    local, keys = load_config(shards, ["data.train=shards"]), {"data.train": "memory://bucket/*.jsonl*"}
    config = Pipeline(shards, keys).config
    assert texts(config) == texts(local)
    assert fingerprint(config)["data"] == fingerprint(local)["data"]
    with monkeypatch.context() as patch:  # no byte is read again
        patch.setattr(type(memory), "open", None)
        assert Pipeline(shards, keys).config.data.train == config.data.train
        with pytest.raises(DataError, match=r"a\.jsonl: cannot be read \(FileNotFoundError"):
            load_config(shards, ["data.train=[memory://nowhere/a.jsonl]"])
    dev = shards.parent / "dev.jsonl"
    tests: Any = load_config(shards, [f"data.test={{far: '{dev.as_uri()}'}}"]).data.tests
    assert tests["far"].read_bytes() == dev.read_bytes()
    memory.pipe("/bucket/a.jsonl", b'{"text": "new", "label": "good"}\n')
    assert texts(Pipeline(shards, {"data.train": "memory://bucket/a.jsonl"}).config) == [("new", "good")]
    assert input_files(["memory://bucket/a.jsonl"])[0].read_text().count("new") == 1


def test_a_url_in_a_yaml_opens_no_connection(shards: Path, memory: Any) -> None:
    content = shards.read_text().replace("train: train.jsonl", "train: [memory://bucket/a.jsonl]")
    shards.write_text(content)
    cure = r"data\.train\.0: no URL of a YAML is opened.*name it on the command line, data\.train\.0=memory://"
    with pytest.raises(ConfigError, match=cure):
        load_config(shards, ["data.dev=memory://bucket/c.jsonl"])
    with pytest.raises(ConfigError, match="no URL of a YAML is opened"):
        Pipeline(yaml.parse_tree(content.encode(), "x").data)


def test_an_unknown_protocol_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(EnvError, match=r'its package, such as s3fs or gcsfs; .* pip install "fsspec>='):
        input_files(["s3://bucket/a.jsonl"])
