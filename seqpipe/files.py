"""Read files, packed ones too, and write files and folders to a temporary path that is synced, then renamed."""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import gzip
import hashlib
import importlib
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import IO, Any

from seqpipe.console import text_table
from seqpipe.errors import (
    LFS_FIX,
    LFS_POINTER,
    DataError,
    EnvError,
    SeqpipeError,
    UsageError,
    did_you_mean,
    install_command,
)

_SURROGATE = re.compile("[\ud800-\udfff]")
_WINDOWS = os.name == "nt"
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    item = dict(pairs)
    if len(item) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice[:100]!r} is given twice; keep one")
    return item


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON; write null or a number")


def _integer(digits: str) -> int:
    if len(digits) > 1_000:
        raise ValueError(f"a number has {len(digits)} digits; write it as a string")
    return int(digits)


JSON_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_integer
)  # Decodes JSON; ValueError for NaN and for duplicate keys of an object.


PACKED = (".gz", ".zst", ".zip")
LONGEST_LINE = 10_000_000  # bytes of a file in UTF-8, characters of others


def _open_unpacked(path: Path) -> Any:
    """Open a file, which is unpacked while it is read."""
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX")]
            if len(names) != 1:
                raise DataError(f"{path}: contains {len(names)} files; unpack it, and name one of them")
            try:
                return archive.open(names[0])  # keeps the archive's file open
            except RuntimeError as error:
                raise DataError(f"{path}: cannot be unpacked: {error}; unpack it yourself") from error
    if path.suffix != ".zst":
        return path.open("rb")
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.open(path)
    try:
        import pyarrow
    except ImportError as error:
        raise EnvError(f"{path}: Zstandard needs pyarrow: {install_command('parquet')}, or unpack it first") from error
    path.open("rb").close()  # a missing file is Python's error
    return io.BufferedReader(pyarrow.input_stream(str(path), "zstd"))


def match_files(text: str, root: Path, folders: bool = False) -> list[Path]:
    """Return the files that a path names, relative to `root`: itself, the matches of a pattern, the files of a folder.

    With `folders` they are folders, which are read as a whole. Matches are sorted; files whose names begin with "." or
    "_" are left out of a folder. UsageError if nothing matches, or if a folder has files of several kinds.
    """
    path = Path(os.path.abspath(root / text))
    if not os.path.exists(path) and any(sign in text for sign in "*?["):
        names = glob.glob(text, root_dir=root, recursive=True)
        matches = [Path(os.path.abspath(root / name)) for name in names]
        matches = sorted(match for match in matches if match.is_dir() == folders)
        if not matches:
            kind = "folder" if folders else "file"
            fix = "correct the pattern, whose * is any part of a name, and ** any folders"
            raise UsageError(f"no {kind} matches {text!r} (looked for {path}); {fix}")
        return matches
    if folders or not os.path.isdir(path):
        return [path]
    entries = sorted(entry for entry in path.iterdir() if entry.is_file() and entry.name[0] not in "._")
    endings = sorted({entry.with_suffix("").suffix if entry.suffix in PACKED else entry.suffix for entry in entries})
    if len(endings) != 1:
        kinds = f"with files of several kinds ({', '.join(endings)})" if entries else "without data files"
        fix = f"name files, or a pattern such as {text.rstrip('/')}/*{endings[0] if entries else '.jsonl'}"
        raise UsageError(f"{text!r} is a folder {kinds} ({path}); {fix}")
    return entries


@contextlib.contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, unpacked if its name ends in .gz, .zst or .zip; DataError if it cannot be read, now or later."""
    path = Path(path)
    try:
        if path.is_file():  # a pipe is read once
            with path.open("rb") as file:
                if file.read(len(LFS_POINTER)) == LFS_POINTER:
                    raise DataError(f"{path}: {LFS_FIX}")
        with _open_unpacked(path) as file:
            yield file
    except FileNotFoundError as error:
        hint = f" (nor a folder {path.parent})"
        if path.parent.is_dir():
            hint = did_you_mean(path.name, (entry.name for entry in path.parent.iterdir()))
        raise DataError(f"{path}: there is no such file{hint}") from error
    except IsADirectoryError as error:
        raise DataError(f"{path}: this is a folder; name a file in it") from error
    except (gzip.BadGzipFile, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
        fix = "`gzip -t`, `zstd -t` or `unzip -t` tells whether the file is whole"
        raise DataError(f"{path}: cannot be unpacked ({error}); {fix}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def file_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a file with their ends; DataError for a line that is too long, or not in the encoding."""
    if encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
        yield from _utf8_lines(path)
        return
    number = 0
    with open_file(path) as file:
        source = io.TextIOWrapper(file, encoding, newline="\n")
        try:
            while line := source.readline(LONGEST_LINE + 1):
                number += 1
                _check_length(line, path, number)
                yield line
        except UnicodeError as error:
            problem = f"the file is not {encoding} in this line or after it ({error})"
            raise DataError(f"{path}:{number + 1}: {problem}; correct the reader's option `encoding`") from error


def _utf8_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file in UTF-8, which are decoded many at a time, or each by itself to find an error."""
    number, head = 0, b""
    with open_file(path) as file:
        source: Any = file
        while block := source.read1(1 << 12):
            if not block.endswith(b"\n"):
                block += source.readline(LONGEST_LINE + 1)
            head = head or block[:2]
            lines: Iterable[str] = ()
            if len(block) <= LONGEST_LINE:
                with contextlib.suppress(UnicodeDecodeError):
                    lines = io.StringIO(block.decode("utf-8"), newline="\n")
            if lines:
                yield from lines
                number += block.count(b"\n")
                continue
            one_by_one = io.BytesIO(block)
            while line := one_by_one.readline(LONGEST_LINE + 1):
                number += 1
                _check_length(line, path, number)
                try:
                    yield line.decode("utf-8")
                except UnicodeDecodeError as error:
                    byte = f"byte {line[error.start]:#04x} at place {error.start + 1}"
                    fix = encoding_fix(head + block, ", or set the reader's option `encoding`")
                    raise DataError(f"{path}:{number}: this line is not UTF-8 ({byte}); {fix}") from error


def _check_length(line: str | bytes, path: Path, number: int) -> None:
    if len(line) > LONGEST_LINE:
        problem = f"this line is longer than {LONGEST_LINE // 1_000_000} MB"
        raise DataError(f"{path}:{number}: {problem}; is it a text file with an example a line?")


def encoding_fix(data: bytes, alternative: str = "") -> str:
    """Return the fix for bytes that are not all UTF-8; `alternative`: another one, if they are text in no UTF."""
    if data.startswith(b"\x1f\x8b"):
        return "it is compressed with gzip: unpack it, or give it a name that ends in .gz"
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin1"
    text = data.decode("utf-8", "replace")
    others, faults = sum(character > "\x7f" for character in text), text.count("\ufffd")
    if encoding == "latin1" and others >= 2 * faults:  # few bytes of another encoding are such characters by chance
        return "other characters are UTF-8: write this one again, or leave it out with `iconv -c -f utf-8 -t utf-8`"
    return f"convert it: iconv -f {encoding} -t utf-8{alternative}"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def json_bytes(value: Any, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return JSON as UTF-8; lone surrogates, which UTF-8 lacks, are escaped. `default`: as in json.dumps."""
    if indent is None and default is None:
        text = _encode(value)
    else:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, default=default)
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode()


def null_non_finite(value: Any) -> Any:
    """Replace every NaN and infinite number in a value by None (null), since JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: null_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [null_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file of any size; DataError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def is_whole(path: Path) -> bool:
    """Return whether a file has the content of which `write_sha256` wrote the sha256 beside it."""
    digest = path.with_suffix(".sha256")
    return path.exists() and digest.exists() and digest.read_text() == sha256_file(path)


def write_sha256(path: Path) -> None:
    """Write the sha256 of a file beside it."""
    write(path.with_suffix(".sha256"), sha256_file(path))


def input_sha256(path: Path) -> str:
    """Return the sha256 of an input file as it is stored; a file is hashed again only after its status has changed.

    Raises:
        UsageError: if it is not a regular file, such as a pipe, which can be read only once.
        DataError: if it is missing, or cannot be read.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: is not a regular file, and cannot be read twice; save its content to a file")
    with open_file(path):  # which names a file that is missing or cannot be unpacked
        status = path.stat()
    return _input_sha256(path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@functools.cache
def _input_sha256(path: Path, *status: int) -> str:
    return sha256_file(path)


def write(path: Path, data: bytes | str) -> None:
    """Replace a file atomically and durably; the old content stays if the disk is full."""
    with writing(path) as temporary:
        temporary.write_bytes(data if isinstance(data, bytes) else data.encode())


def refuse_overwriting(output: Path, inputs: Iterable[Path]) -> None:
    """Raise UsageError for an output that is one of the input files, by whatever name."""
    with explain_disk_errors(output):
        if any(output.exists() and path.exists() and output.samefile(path) for path in inputs):
            raise UsageError(f"{output}: is an input, which would be lost; name another file")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which replaces it if the block succeeds and is removed otherwise.

    A link stays, and the file that it leads to is replaced. The permissions are those of the umask, and nobody gets
    some that the replaced file did not give.

    Raises:
        UsageError: if `path` is in no folder, or is not a regular file.
        EnvError: if the disk is full, the folder is not writable, the name is too long or a link leads to itself.
    """
    with explain_disk_errors(path):
        if path.exists() and not path.is_file():
            raise UsageError(f"{path}: is not a regular file; name another path")
        path = _link_target(path)
        if not path.parent.is_dir():
            raise UsageError(f"{path}: there is no folder {path.parent}; create it first")
        with _temporary_path(path, lambda part: part.touch(exist_ok=False)) as temporary:
            if path.exists():
                temporary.chmod(temporary.stat().st_mode & (path.stat().st_mode | stat.S_IRUSR | stat.S_IWUSR))
            yield temporary
            _sync(temporary)
            temporary.replace(path)
            _sync(path.parent)


@contextlib.contextmanager
def writing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`, which replaces it if the block succeeds and is removed otherwise.

    An existing folder is moved aside first and removed last: at any moment one of the two is complete. Links,
    permissions and EnvError are as of `writing`.
    """
    with explain_disk_errors(path):
        path = _link_target(path)
        make_folder(path.parent)
        with _temporary_path(path, lambda part: part.mkdir()) as temporary:
            yield temporary
            for file in temporary.rglob("*"):
                _sync(file)
            _sync(temporary)
            if path.exists():
                old = Path(tempfile.mkdtemp(prefix=f"{_temporary_stem(path)}.", suffix=".old", dir=path.parent))
                path.replace(old / path.name)
                temporary.replace(path)
                shutil.rmtree(old)
            else:
                temporary.replace(path)
            _sync(path.parent)


def _link_target(path: Path) -> Path:
    """Return what a link leads to, or the path itself; OSError if its name is too long or a link leads to itself."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.stat()
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _temporary_stem(path: Path) -> str:
    """Return the beginning of the names of temporary paths for `path`, which leaves room for their ends."""
    return "." + path.name.encode("utf-8", "ignore")[:200].decode("utf-8", "ignore")


@contextlib.contextmanager
def _temporary_path(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """Create a unique temporary path for the replacement of `path`; it is removed when the block ends.

    A writer locks its own, until it ends; temporary paths of killed writers of `path` are removed.
    """
    stem = _temporary_stem(path)
    for partial in path.parent.glob(f"{glob.escape(stem)}.*.part"):
        with contextlib.suppress(OSError), locked(partial, wait=False) as is_locked:
            if is_locked:
                _remove(partial)
    while True:
        temporary = path.with_name(f"{stem}.{secrets.token_hex(8)}.part")
        try:  # a signal may arrive as soon as it exists
            make(temporary)
            with locked(temporary, wait=True):
                if temporary.exists():  # no other writer removed it before it was locked
                    yield temporary
                    return
        finally:
            _remove(temporary)


@contextlib.contextmanager
def locked(path: Path, wait: bool) -> Iterator[bool]:
    """Lock a file or folder; False if another process has the lock, or if the system or the file system has none."""
    if _WINDOWS or sys.platform == "win32":  # Windows neither renames nor removes open files
        yield False
        return
    import fcntl

    handle = os.open(path, os.O_RDONLY)
    try:
        is_locked = False
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            is_locked = True
        yield is_locked
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Return the folder of the cache: `$SEQPIPE_CACHE`, otherwise the user's cache folder."""
    import platformdirs  # of the extra `train`

    return Path(os.environ.get("SEQPIPE_CACHE") or platformdirs.user_cache_dir("seqpipe", appauthor=False))


def download(url: str) -> list[Path]:
    """Return local copies of a remote file, or of those that a pattern with * matches, which fsspec reads.

    A copy is in the cache, and made once for the size, date and ETag that the server states: all passes over the data
    read the same bytes, their hash is that of the run, and an interrupted run resumes without the server. Raises
    EnvError without fsspec or its package for the protocol, and DataError for a file that cannot be read.
    """
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(url)
        names = sorted(system.glob(path)) if "*" in path else [path]
        copies = []
        for name in names:
            stated = repr(sorted(system.info(name).items(), key=str))
            folder = cache_folder() / "remote" / sha256(f"{url}\0{name}\0{stated}".encode())[:32]
            copies.append(folder / Path(name).name)
            if not copies[-1].exists():
                make_folder(folder)
                with writing(copies[-1]) as temporary, system.open(name, "rb") as file, temporary.open("wb") as copy:
                    shutil.copyfileobj(file, copy)
    except ImportError as error:
        fix = f"install its package, such as s3fs or gcsfs; for fsspec itself {install_command('remote')}"
        raise EnvError(f"{url}: cannot be read ({error}): {fix}") from error
    except SeqpipeError:
        raise
    except Exception as error:  # each protocol has exceptions of its own
        problem = f"{type(error).__name__}: {error}".rstrip(": ")
        raise DataError(f"{url}: cannot be read ({problem}); correct the address, or your access to it") from error
    if not copies:
        raise DataError(f"{url}: no file matches this pattern; correct it")
    return copies


def make_folder(path: Path) -> None:
    """Create a folder and its parents, if they do not exist."""
    with explain_disk_errors(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            file = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
            what = "a link to a folder that does not exist" if file.is_symlink() else "a file, where a folder is needed"
            raise UsageError(f"{file}: is {what}; move it, or work in another folder") from error


def remove_partial_files(folder: Path, names: Sequence[str] = ("*",)) -> None:
    """Remove the temporary files of a process that was killed while it wrote such files in a folder.

    A folder that it had moved aside but not replaced is restored. No other process may be writing them.
    """
    with explain_disk_errors(folder):
        for name in names:
            for aside in folder.glob(f".{name}.*.old"):
                for kept in aside.iterdir():
                    if not (folder / kept.name).exists():
                        kept.rename(folder / kept.name)
                shutil.rmtree(aside)
            for partial in folder.glob(f".{name}.*.part"):
                _remove(partial)


def read_json(path: Path) -> Any:
    """Return the content of a JSON file of a run; DataError if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: damaged: {error}; run with --fresh to move the run aside and start anew") from error


def move_aside(path: Path) -> Path:
    """Move a folder to the first free `path.N`, and return that path."""
    number = 1
    while (target := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    with explain_disk_errors(path):
        path.rename(target)
    return target


def _sync(path: Path) -> None:
    """Wait until a file or folder is on the disk. Windows syncs only files, and only those open for writing."""
    if _WINDOWS and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if _WINDOWS else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Raise EnvError with a fix if a disk is full, or a path is not writable, too long or a link to itself."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = "the disk is full; what was there is unchanged. Free some space and try again"
        elif error.errno == errno.EFBIG:
            fix = "Raise the limit of the size of a file (`ulimit -f unlimited`), or write to a file system that allows"
            message = f"cannot grow: {error.strerror}; what was there is unchanged. {fix} larger ones"
        elif error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            message = f"cannot be written: {error.strerror}; make its folder writable, or write somewhere else"
        elif error.errno == errno.ENAMETOOLONG:
            message = "this name is too long; shorten it: most file systems allow 255 bytes"
        elif error.errno == errno.ELOOP:
            message = "this link leads back to itself; remove it, or name another path"
        else:
            raise
        raise EnvError(f"{path}: {message}") from error


MOST_ROWS, LARGEST_CELL = 20, 200  # rows of a table in a notebook, letters of a cell


class Rows(list[dict[str, Any]]):
    """A list of dicts that converts to a table of pandas or Arrow, if the library is installed."""

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a column for each key; EnvError without pandas."""
        return _table_library("pandas").DataFrame([*self])

    def _cells(self) -> list[list[str]]:
        """Return the names and the first rows as text: numbers with four digits, other values as JSON."""
        cells = [list(dict.fromkeys(name for row in self for name in row))]
        for row in self[:MOST_ROWS]:
            cells.append([])
            for value in (row.get(name, "") for name in cells[0]):
                text = f"{value:.4g}" if isinstance(value, float) else value
                text = text if isinstance(text, str) else json_bytes(text, default=str).decode()
                text = text if len(text) <= LARGEST_CELL else text[:LARGEST_CELL] + "…"
                cells[-1].append(text.encode("utf-8", "replace").decode())
        return cells

    def __str__(self) -> str:
        more = [f"… and {len(self) - MOST_ROWS:,} more rows"] if len(self) > MOST_ROWS else []
        return "\n".join([*text_table(self._cells()), *more]) if self else "no rows"

    def to_html(self) -> str:
        """Return the first rows as an HTML table: numbers with four digits, other values as JSON."""
        names, *rows = self._cells()
        lines = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
        for row in rows:
            lines += "</tr><tr>" + "".join(f'<td dir="auto">{escape(cell)}</td>' for cell in row)
        more = f"<p>… and {len(self) - MOST_ROWS:,} more rows</p>" if len(self) > MOST_ROWS else ""
        return f'<div style="overflow-x: auto"><table><tr>{lines}</tr></table></div>{more}'

    _repr_html_ = to_html  # what a notebook shows

    def to_arrow(self) -> Any:
        """Return a pyarrow Table with a column for each key; EnvError without pyarrow."""
        return _table_library("pyarrow").Table.from_pylist([*self])


def _table_library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EnvError(f"this table needs {name}: pip install {name}") from error
