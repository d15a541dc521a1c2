"""Reader of parallel files, one line of each a record: one file a field, as in SNIPS and translation data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

from pydantic import Field

from seqpipe.plugin import DataError, UsageError, file_lines

from . import DEFAULT_TAGS, Record, TagSpec, check_encoding, number_lines


def files_beside(path: Path, names: Mapping[str, str], option: str) -> list[Path]:
    """Return the files of these names that belong to one of them, in their order; DataError if one is missing."""
    path = Path(path)
    for template in names.values():
        before, star, after = template.partition("*")
        if path.name == template or (
            star and path.name.startswith(before) and path.name[len(before) :].endswith(after)
        ):
            stem = path.name[len(before) : len(path.name) - len(after)]
            break
    else:
        listed = ", ".join(names.values())
        raise DataError(f"{path}: is none of the files of `{option}` ({listed}); name one of them in `data`")
    files = [path.with_name(file.replace("*", stem)) for file in names.values()]
    for key, file in zip(names, files, strict=True):
        if not file.is_file():
            raise DataError(f"{path}: there is no file {file} beside it for `{key}`; correct `{option}`")
    return files


class Parallel:
    """Reads parallel files, one for each field: line n of all files is record n.

    `data.train` (dev, test) names one of the files; the others are in the same folder. In the names, `*` is the part
    that differs between train, dev and test: `{text: "*.en", target: "*.de"}` reads dev.en and dev.de for `dev:
    dev.en`. The fields `words` and `tags` are split at white space; all others are whole lines.

    Args:
        fields: The file of each field, such as {words: seq.in, tags: seq.out, label: label}.
        joiner: Text between two words; "" for Chinese characters.
        encoding: Encoding of the files, such as cp1252 or utf-16.
    """

    fields = ("text", "words", "tags", "label", "where")

    def __init__(
        self,
        *,
        fields: Annotated[dict[str, str], Field(min_length=1)],
        tagging: TagSpec = DEFAULT_TAGS,
        joiner: str = " ",
        encoding: str = "utf-8",
    ):
        for name in ("spans", "where"):
            if name in fields:
                raise UsageError(f"parallel.fields: {name!r} cannot be read from lines of text; leave it out")
        if "words" in fields and "text" in fields:
            raise UsageError("parallel.fields: a record is `words` or `text`; give another name to one of the two")
        if "tags" in fields and "words" not in fields:
            raise UsageError("parallel.fields: `tags` belong to words; name the file of the `words` too")
        for name, file in fields.items():
            if Path(file).name != file or file.count("*") > 1:
                raise UsageError(f"parallel.fields: {name}: {file!r} is not a file's name with at most one *")
        self.names, self.encoding = dict(fields), check_encoding(encoding)
        self.tagging, self.joiner = tagging, joiner

    def files(self, path: Path) -> list[Path]:
        """Every file that belongs to this one, in the order of the fields; DataError if one is not there."""
        return files_beside(path, self.names, "fields")

    def read(self, path: Path) -> Iterator[Record]:
        """The records of the file and its siblings, one at a time; DataError names file, line and fix."""
        files = self.files(path)
        sources = [number_lines(file_lines(file, self.encoding), str(file)) for file in files]
        number = 0
        for number, row in enumerate(zip_longest(*sources), 1):
            if None in row:
                # The file that ends first, and how many lines each has.
                unread = (sum(1 for _ in source) for source in sources)
                counts = [number - 1 if line is None else number + more for line, more in zip(row, unread, strict=True)]
                line_counts = ", ".join(f"{file.name} {n:,}" for file, n in zip(files, counts, strict=True))
                problem = f"there is no such line, the others are longer; lines: {line_counts}"
                fix = "give all files the same number of lines"
                raise DataError(f"{files[row.index(None)]}:{number}: {problem}; {fix}")
            record: Record = {field: line for field, (_, line) in zip(self.names, row, strict=True)}
            places = {field: f"{file}:{number}" for field, file in zip(self.names, files, strict=True)}
            if "label" in record:
                record["label"] = record["label"].strip()
                if not record["label"]:
                    raise DataError(f"{places['label']}: the label is empty; write one in every line")
            if "words" in record:
                words = record["words"].split()
                if not words:
                    raise DataError(f"{places['words']}: there is no word in this line; remove line and siblings")
                record |= {"text": self.joiner.join(words), "words": words}
                if "tags" in record:
                    hint = f" (the words are {places['words']})"
                    record["tags"] = self.tagging.of_words(words, record["tags"].split(), places["tags"], hint)
            yield {**record, "where": f"{path}:{number}"}
        if not number:
            raise DataError(f"{path}: there is nothing in this file; give one with at least one example")
