"""Files and folders that are replaced whole or not at all."""

import errno
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from seqpipe import files
from seqpipe.errors import DataError, EnvError, UsageError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write(path, "old")
    files.write(path, "né".encode())
    assert path.read_text(encoding="utf-8") == "né"
    assert names(tmp_path) == ["a.json"]


def test_a_failure_while_writing_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "a"
    files.write(path, "old")
    with pytest.raises(ZeroDivisionError), files.writing(path) as temporary:
        temporary.write_text(f"half {1 / 0}")
    assert (path.read_text(), names(tmp_path)) == ("old", ["a"])


def test_a_folder_is_replaced_with_all_that_was_in_it(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "bundle"
    for text in ("one", "two"):
        with files.writing_folder(path) as folder:
            (folder / text).write_text(text)
    assert names(path) == ["two"]
    assert names(path.parent) == ["bundle"]


def test_a_failure_while_writing_a_folder_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    with files.writing_folder(path) as folder:
        (folder / "one").write_text("one")
    with pytest.raises(ZeroDivisionError), files.writing_folder(path) as folder:
        (folder / "two").mkdir() or 1 / 0
    assert (names(path), names(tmp_path)) == (["one"], ["bundle"])


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_permissions_are_those_of_the_umask_also_where_something_is_replaced(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        for _ in range(2):
            with files.writing_folder(tmp_path / "a") as folder:
                files.write(folder / "b", "text")
            files.write(tmp_path / "a" / "b", "text")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")]
    assert modes == [0o777 & ~mask, 0o666 & ~mask]


@pytest.mark.parametrize(("before", "after"), [(0o600, 0o600), (0o640, 0o640), (0o666, 0o644), (0o444, 0o644)])
def test_a_replaced_file_is_open_to_no_further_account(before: int, after: int, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "a").chmod(before)
    umask = os.umask(0o022)
    try:
        with files.writing(tmp_path / "a") as part:
            assert stat.S_IMODE(part.stat().st_mode) == after
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == after


def test_links_stay_and_what_they_lead_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    targets = {"link": "far/a", "chain": "link", "new": "far/new", "loop": "loop", "lost": "no/a", "folder": "far"}
    for name, target in targets.items():
        (tmp_path / name).symlink_to(target)
    for name in ("link", "chain"):  # the first one dangles
        files.write(tmp_path / name, name)
        with files.writing_folder(tmp_path / "new") as folder:
            (folder / name).touch()
    for name, problem in {"loop": "leads back to itself", "lost": "no folder", "folder": "not a regular"}.items():
        with pytest.raises((UsageError, EnvError), match=problem):
            files.write(tmp_path / name, "")
    assert (names(tmp_path / "far"), names(tmp_path / "far/new")) == (["a", "new"], ["chain"])
    assert (tmp_path / "far/a").read_text() == "chain"
    assert {name: os.readlink(tmp_path / name) for name in names(tmp_path) if name != "far"} == targets


@pytest.mark.parametrize("name", ["a" * 255, "é" * 127 + "b", "c" + "é" * 127, "字" * 85, "\U0001f600" * 63 + "def"])
def test_a_name_may_have_as_many_bytes_as_the_file_system_allows(name: str, tmp_path: Path) -> None:
    for _ in range(2):
        with files.writing_folder(tmp_path / name) as folder:
            files.write(folder / name, name)
    assert names(tmp_path) == names(tmp_path / name) == [name]
    for writer in (files.writing, files.writing_folder):  # an error before anything is computed
        with pytest.raises(EnvError, match="name is too long; shorten it"), writer(tmp_path / f"{name}x"):
            raise AssertionError


def test_the_new_file_stands_beside_the_old_one_until_it_is_done(tmp_path: Path) -> None:
    with files.writing(tmp_path / "a") as temporary:
        assert temporary.parent == tmp_path  # the same file system: a rename is one step
        assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("writer", [files.writing, files.writing_folder])
@pytest.mark.parametrize(("number", "message"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "cannot be written")])
def test_a_full_or_closed_disk_is_named_and_nothing_changes(
    writer: Callable[[Path], AbstractContextManager[Path]], number: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(EnvError, match=f"out: .*{message}"), writer(tmp_path / "out"):
        raise OSError(number, os.strerror(number))
    assert names(tmp_path) == []


def test_on_windows_folders_are_not_synced_and_files_are_opened_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, sync, synced = os.open, os.fsync, []

    def open_as_windows(path: Path, flags: int, mode: int = 0o777) -> int:
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, flags, mode)

    def sync_as_windows(handle: int) -> None:
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        synced.append(handle)
        sync(handle)

    monkeypatch.setattr(files, "_WINDOWS", True)
    monkeypatch.setattr(os, "open", open_as_windows)
    monkeypatch.setattr(os, "fsync", sync_as_windows)
    files.write(tmp_path / "a", "text")
    with files.writing_folder(tmp_path / "folder") as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "b").write_text("text")
    assert names(tmp_path) == ["a", "folder"]
    assert (tmp_path / "folder" / "inner" / "b").read_text() == "text"
    assert len(synced) == 2


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no folder .*/nowhere; create it first"):
        files.write(tmp_path / "nowhere" / "a", "")


def test_what_is_no_ordinary_file_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("pipe")  # as /dev/stdout is
    for name in ("pipe", "folder", "link"):
        with pytest.raises(UsageError, match="not a regular file"):
            files.write(tmp_path / name, "")
    assert names(tmp_path) == ["folder", "link", "pipe"]


def test_an_old_run_is_set_aside_under_the_first_free_number(tmp_path: Path) -> None:
    for expected in ("run.1", "run.2"):
        (tmp_path / "run").mkdir()
        assert files.move_aside(tmp_path / "run").name == expected
    assert names(tmp_path) == ["run.1", "run.2"]


def test_hashes_are_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc" * 100_000)
    expected = hashlib.new("sha256", b"abc" * 100_000).hexdigest()
    assert files.sha256(b"abc" * 100_000) == files.sha256_file(tmp_path / "a") == expected
    with pytest.raises(DataError, match=r"nothing: cannot be read: No such file"):
        files.sha256_file(tmp_path / "nothing")


@pytest.mark.parametrize("value", ["é你", "a\ud800", "\udfff\\u", {"\ud83d": ["\\\udc00"]}])
def test_any_text_can_be_written_as_json_and_read_again(value: object) -> None:
    data = files.json_bytes(value)
    assert json.loads(data.decode("utf-8")) == value
    assert files.json_bytes("é") == '"é"'.encode()


def test_nan_is_not_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.json_bytes(float("nan"))


def test_a_folder_that_was_moved_aside_and_not_replaced_is_put_back(tmp_path: Path) -> None:
    def torn() -> None:
        (tmp_path / ".bundle.x.old/bundle").mkdir(parents=True)
        (tmp_path / ".bundle.x.old/bundle/old").touch()
        (tmp_path / ".bundle.y.part").mkdir()

    torn()
    files.remove_partial_files(tmp_path, ["bundle"])
    assert (names(tmp_path), names(tmp_path / "bundle")) == (["bundle"], ["old"])
    (tmp_path / "bundle/old").rename(tmp_path / "bundle/new")
    torn()
    files.remove_partial_files(tmp_path, ["bundle"])
    assert (names(tmp_path), names(tmp_path / "bundle")) == (["bundle"], ["new"])


def test_only_what_is_named_is_taken_for_torn(tmp_path: Path) -> None:
    for name in (".a.json.x.part", ".b.json.x.part"):
        (tmp_path / name).touch()
    files.remove_partial_files(tmp_path, ["a.json"])
    assert names(tmp_path) == [".b.json.x.part"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1, "b": 2, "a": 1}', "the key 'a' is given twice"),
        ('[{"b": {"a": 1, "\\u0061": 2}}]', "the key 'a' is given twice"),
        ("[NaN]", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("{'a': 1}", "Expecting property name"),
        ("[1] [2]", "Extra data"),
        ("", "Expecting value"),
    ],
)
def test_json_takes_no_key_twice_and_nothing_that_is_no_json(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        files.JSON_DECODER.decode(text)


def test_a_key_given_twice_at_the_end_of_a_large_object_is_found() -> None:
    """To compare each key with each would take longer than a test may."""
    many = ", ".join(f'"{i}": {i}' for i in range(100_000))
    assert files.JSON_DECODER.decode(f"{{{many}}}")["99999"] == 99_999
    with pytest.raises(ValueError, match="the key '99999' is given twice"):
        files.JSON_DECODER.decode(f'{{{many}, "99999": 0}}')
