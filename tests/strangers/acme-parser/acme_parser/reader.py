"""The dependency trees of CoNLL-U files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seqpipe.plugin import DataError, file_lines


class Dependencies:
    """Reads the words, heads and relations of CoNLL-U sentences; `heads` count from 0, null is the root.

    Ranges (1-2) and empty nodes (1.1) are skipped. The text is the words with blanks between them.
    """

    fields = ("text", "words", "heads", "relations", "where")

    def read(self, path: Path) -> Iterator[dict[str, Any]]:
        """The sentences of a UTF-8 file, one at a time."""
        rows: list[tuple[int, list[str]]] = []
        for number, line in enumerate(file_lines(path), 1):
            line = line.removeprefix("\ufeff").rstrip("\r\n")
            if not line.strip():
                if rows:
                    yield self._sentence(path, rows)
                rows = []
            elif not line.startswith("#"):
                columns = line.split("\t")
                if len(columns) != 10:
                    raise DataError(f"{path}:{number}: {len(columns)} columns; separate ten by tabs")
                if not set(columns[0]) & set("-."):
                    rows.append((number, columns))
        if rows:
            yield self._sentence(path, rows)

    def _sentence(self, path: Path, rows: list[tuple[int, list[str]]]) -> dict[str, Any]:
        words: list[str] = []
        heads: list[int | None] = []
        relations: list[str] = []
        for position, (number, columns) in enumerate(rows, 1):
            identifier, word, head, relation = columns[0], columns[1], columns[6], columns[7]
            if identifier != str(position):
                raise DataError(f"{path}:{number}: ID {identifier!r}; number the words of a sentence from 1")
            if not word.strip():
                raise DataError(f"{path}:{number}: the word is empty; write a form in the second column")
            if not (head.isascii() and head.isdigit() and int(head) <= len(rows) and int(head) != position):
                raise DataError(f"{path}:{number}: HEAD {head!r}; give the ID of another word of the sentence, or 0")
            words.append(word)
            heads.append(int(head) - 1 if head != "0" else None)
            relations.append(relation)
        where = f"{path}:{rows[0][0]}"
        if heads.count(None) != 1:
            raise DataError(f"{where}: {heads.count(None)} words have HEAD 0; a tree has one root")
        return {"text": " ".join(words), "words": words, "heads": heads, "relations": relations, "where": where}
