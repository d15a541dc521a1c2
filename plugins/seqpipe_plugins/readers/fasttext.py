"""Reader of fastText's training files: labels that begin with `__label__`, and a text, in each line."""

from __future__ import annotations

from seqpipe.plugin import DataError, UsageError

from . import LineReader, Record, parse_number


class FastText(LineReader):
    """Reads fastText's files (Joulin et al. 2017), one record a line: `__label__a __label__b the text`.

    Words with the prefix are labels, wherever they are in the line; blank lines are skipped.

    Args:
        multi: Whether a text has any number of labels, which become the field `labels`; else it has one, `label`.
        prefix: What the words that are labels begin with.
        numbers: Whether labels are numbers, as of regression; the field `label` is a number then.
    """

    fields = ("text", "label", "labels", "where")

    def __init__(
        self, *, multi: bool = False, prefix: str = "__label__", numbers: bool = False, encoding: str = "utf-8"
    ):
        super().__init__(encoding=encoding)
        if not prefix or prefix.split() != [prefix]:
            raise UsageError(f"fasttext.prefix: {prefix!r} must be characters without blanks, such as '__label__'")
        if multi and numbers:
            raise UsageError("fasttext.numbers: a number is one for each text; leave out `multi`")
        self.multi, self.prefix, self.numbers = multi, prefix, numbers

    def parse(self, line: str, where: str) -> Record:
        labels: list[str] = []
        text = line.strip()
        while text.startswith(self.prefix):  # the text keeps its blanks
            label, *more = text.split(maxsplit=1)
            labels.append(label)
            text = more[0] if more else ""
        if self.prefix in text:
            words = text.split()
            labels += [word for word in words if word.startswith(self.prefix)]
            text = " ".join(word for word in words if not word.startswith(self.prefix))
        labels = list(dict.fromkeys(label.removeprefix(self.prefix).strip() for label in labels))
        if "" in labels:
            raise DataError(f"{where}: a label is missing after {self.prefix!r}; write one without blanks")
        if self.multi:
            return {"text": text, "labels": labels}
        if len(labels) != 1:
            count = f"{len(labels)} labels" if labels else f"no word that begins with {self.prefix!r}"
            fix = "set the reader's option `multi: true`" if labels else "label each line"
            raise DataError(f"{where}: this line has {count}; {fix}")
        if not self.numbers:
            return {"text": text, "label": labels[0]}
        number = parse_number(labels[0], f"{where}: the label {labels[0]!r}", "leave out `numbers`")
        return {"text": text, "label": number}
