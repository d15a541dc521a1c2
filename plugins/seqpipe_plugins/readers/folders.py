"""Reader of folders of texts: one folder a label, one file a text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath

from seqpipe.plugin import LONGEST_LINE, DataError, UsageError, file_lines

from . import Record, check_encoding, number_lines

_FORM = "write each text as a file in the folder of its label, such as pos/17.txt, or set the reader's option `pattern`"


class Folders:
    """Reads folders of texts, one for each label: of `reviews/pos/17.txt` the label is `pos`, the text is the file.

    `data.train` names the folder of the labels' folders (`reviews`, or `reviews/train`). Files are read in the order of
    their paths; folders and files whose names begin with a dot are left out.

    Args:
        labels: The labels whose folders are read; null: all folders.
        pattern: Names of the files that are texts, with * for any characters.
        encoding: Encoding of the files, such as cp1252 or utf-16.
    """

    fields = ("text", "label", "where")
    folder = True

    def __init__(self, *, labels: list[str] | None = None, pattern: str = "*.txt", encoding: str = "utf-8"):
        if not pattern or PurePath(pattern).name != pattern:
            raise UsageError(f"folders.pattern: {pattern!r} is not a name of files; write one such as '*.txt'")
        self.labels, self.pattern, self.encoding = labels, pattern, check_encoding(encoding)

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
            texts = (file for folder in folders if folder.is_dir() for file in sorted(folder.rglob(self.pattern)))
            parts = ((file, file.relative_to(path).parts) for file in texts if file.is_file())
            files = [file for file, names in parts if not any(name.startswith(".") for name in names)]
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error
        if not files:
            problem = f"there is no file {self.pattern} in the folders of this folder"
            raise DataError(f"{path}: {problem}; name a file, or {_FORM}")
        return files

    def read(self, path: Path) -> Iterator[Record]:
        """The text of each file, one at a time; DataError names file, line and fix."""
        for file in self.files(path):
            lines: list[str] = []
            size = 0
            for number, line in number_lines(file_lines(file, self.encoding), str(file)):
                lines.append(line)
                size += len(line)
                if size > LONGEST_LINE:
                    problem = f"the text is longer than {LONGEST_LINE // 1_000_000} MB"
                    raise DataError(f"{file}:{number}: {problem}; split it")
            label = file.relative_to(path).parts[0]
            yield {"text": "\n".join(lines).strip(), "label": label, "where": f"{file}:1"}
