"""Data files that tests write, for readers and for `init`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seqpipe.config.loader import Config, load_config
from seqpipe.errors import DataError
from seqpipe.init import init_yaml


def write_files(folder: Path, files: dict[str, str]) -> Path:
    """Writes files, and the folders that their names have, into a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def init_config(folder: Path, content: str, name: str, **options: Any) -> Config:
    """The checked configuration that `init` writes for a file of this content."""
    write_files(folder, {name: content})
    (folder / "init.yaml").unlink(missing_ok=True)
    return load_config(init_yaml(folder / name, folder / "init.yaml", **options))


@contextlib.contextmanager
def data_error(place: str, message: str) -> Iterator[None]:
    """Expects an error that begins with this place, and contains the message."""
    with pytest.raises(DataError) as caught:
        yield
    assert str(caught.value).startswith(f"{place}: ")
    assert message in str(caught.value)
