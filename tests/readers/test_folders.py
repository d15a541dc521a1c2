"""Folders of texts by label through the reader folders."""

from pathlib import Path

import pytest
from data_files import write_files

from seqpipe.config import loader as config
from seqpipe.errors import ConfigError, DataError, UsageError
from seqpipe.init import init_yaml
from seqpipe_plugins.readers.folders import Folders


def test_the_folder_of_a_text_is_its_label(tmp_path: Path) -> None:
    content = {"pos/2.txt": "good\n\nfood\n", "pos/1.txt": "gut", "neg/a/b.txt": "\ufeff难吃", "neg/x.md": "no"}
    path = write_files(tmp_path / "reviews", content | {"read.txt": "x", ".git/a.txt": "x", "neg/.a.txt": "x"})
    assert list(Folders().read(path)) == [
        {"text": "难吃", "label": "neg", "where": f"{path}/neg/a/b.txt:1"},
        {"text": "gut", "label": "pos", "where": f"{path}/pos/1.txt:1"},
        {"text": "good\n\nfood", "label": "pos", "where": f"{path}/pos/2.txt:1"},
    ]
    assert [file.name for file in Folders().files(path)] == ["b.txt", "1.txt", "2.txt"]
    assert [record["text"] for record in Folders(labels=["pos"]).read(path)] == ["gut", "good\n\nfood"]
    with pytest.raises(DataError, match="there is no folder 'good' in this folder"):
        Folders(labels=["good"]).files(path)
    assert [record["text"] for record in Folders(pattern="*.md").read(path)] == ["no"]


def test_files_of_several_patterns_are_values_of_a_field(tmp_path: Path) -> None:
    path = write_files(tmp_path / "digits", {"7/b.png": "x", "7/a.jpg": "x", "7/c.txt": "x", "2/d.png": "x"})
    reader = Folders(file="image", pattern=["*.png", "*.jpg"])
    assert list(reader.read(path)) == [
        {"image": path / name, "label": name[0], "where": f"{path}/{name}"}
        for name in ("2/d.png", "7/a.jpg", "7/b.png")
    ]
    with pytest.raises(DataError, match=r"there is no file \*.gif or \*.bmp in the folders"):
        Folders(pattern=["*.gif", "*.bmp"]).files(path)


def test_anything_but_a_folder_of_texts_is_an_error(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"a.txt": "x", "b/c.md": "x", "d/e.doc": "x"})
    (path / "d" / "e.doc").write_bytes(b"ok\n\xff\n")
    with pytest.raises(DataError, match=r"a\.txt: is a file; give the folder that contains a folder for each label"):
        list(Folders().read(path / "a.txt"))
    with pytest.raises(DataError, match="z: there is no such folder"):
        list(Folders().read(path / "z"))
    with pytest.raises(DataError, match=r"there is no file \*\.txt in the folders"):
        list(Folders().read(path))
    with pytest.raises(DataError, match=r"e\.doc:2: this line is not UTF-8"):
        list(Folders(pattern="*.doc").read(path))
    with pytest.raises(UsageError, match=r"folders.pattern: 'a/\*' is not a name"):
        Folders(pattern="a/*")


def test_a_yaml_names_the_folder_and_no_file(tmp_path: Path) -> None:
    path = write_files(tmp_path / "mail", {"spam/1.txt": "x", "ham/1.txt": "y"})
    yaml = init_yaml(path, tmp_path / "mail.yaml")
    assert config.load_config(yaml).data.train == path
    with pytest.raises(ConfigError, match="is a file, not a folder"):
        config.load_config(yaml, ["data.train=mail/spam/1.txt"])
