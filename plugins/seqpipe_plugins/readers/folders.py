"""Reader of folders of texts, pictures or sounds: one folder a label, one file a record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from seqpipe.plugin import LONGEST_LINE, DataError, UsageError, file_lines

from . import Record, check_encoding, number_lines

_FORM = "write each text as a file in the folder of its label, such as pos/17.txt, or set the reader's option `pattern`"


class Folders:
    """Reads folders of texts, one for each label: of `reviews/pos/17.txt` the label is `pos`, the text is the file.

    `data.train` names the folder of the labels' folders (`reviews`, or `reviews/train`). Files are read in the order of
    their paths; folders and files whose names begin with a dot are left out. Of pictures and sounds the record has the
    file itself, which the input's feature reads: `{use: folders, file: image, pattern: ["*.png", "*.jpg"]}`.

    Args:
        labels: The labels whose folders are read; null: all folders.
        pattern: Names of the files that are read, with * for any characters; or a list of them.
        file: Field of the record that is the file itself, such as a picture; null: the field `text` is its content.
        encoding: Encoding of the files of texts, such as cp1252 or utf-16.
    """

    fields = ("text", "label", "where")
    folder = True

    def __init__(
        self,
        *,
        labels: list[str] | None = None,
        pattern: str | list[str] = "*.txt",
        file: str | None = None,
        encoding: str = "utf-8",
    ):
        self.patterns: Sequence[str] = [pattern] if isinstance(pattern, str) else pattern
        for name in self.patterns or [""]:
            if not name or PurePath(name).name != name:
                raise UsageError(f"folders.pattern: {name!r} is not a name of files; write one such as '*.txt'")
        self.labels, self.file, self.encoding = labels, file, check_encoding(encoding)

    def files(self, path: Path) -> list[Path]:
        """Every file that is read; DataError if there is none."""
        path = Path(path)
        try:
            if not path.is_dir():
                state = "is a file" if path.exists() else "there is no such folder"
                raise DataError(f"{path}: {state}; give the folder that contains a folder for each label")
            for label in self.labels or ():
                if not (path / label).is_dir():
                    fix = "correct the reader's option `labels`"
                    raise DataError(f"{path}: there is no folder {label!r} in this folder; {fix}")
            folders = sorted(path.iterdir()) if self.labels is None else [path / label for label in self.labels]
            named = (
                {file for pattern in self.patterns for file in folder.rglob(pattern)}
                for folder in folders
                if folder.is_dir()
            )
            parts = ((file, file.relative_to(path).parts) for hits in named for file in sorted(hits) if file.is_file())
            files = [file for file, names in parts if not any(name.startswith(".") for name in names)]
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error
        if not files:
            problem = f"there is no file {' or '.join(self.patterns)} in the folders of this folder"
            raise DataError(f"{path}: {problem}; name a file, or {_FORM}")
        return files

    def read(self, path: Path) -> Iterator[Record]:
        """The text of each file, or the file itself, one at a time; DataError names file, line and fix."""
        for file in self.files(path):
            label = file.relative_to(path).parts[0]
            if self.file is not None:
                yield {self.file: file, "label": label, "where": str(file)}
                continue
            lines: list[str] = []
            size = 0
            for number, line in number_lines(file_lines(file, self.encoding), str(file)):
                lines.append(line)
                size += len(line)
                if size > LONGEST_LINE:
                    problem = f"the text is longer than {LONGEST_LINE // 1_000_000} MB"
                    raise DataError(f"{file}:{number}: {problem}; split it")
            yield {"text": "\n".join(lines).strip(), "label": label, "where": f"{file}:1"}
