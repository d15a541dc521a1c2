"""Reader of texts split into words, one sentence a line, words separated by white space."""

from __future__ import annotations

from seqpipe.plugin import DataError, UsageError

from . import LineReader, Record

LONGEST_WORD = 200  # characters; more means that the text is not split
WORD_LABEL = "word"


class Segmented(LineReader):
    """Reads word-segmented texts, such as those of the SIGHAN bakeoffs (Emerson 2005): one sentence a line.

    Words are separated by white space, full-width blanks included; empty lines are skipped. A record is the text as one
    writes it, without that white space, and its words as `spans` with the label `word`: what a model of word
    segmentation reads and answers. How the text becomes tokens is up to the tokenizer, for Latin letters and digits
    too.

    Args:
        joiner: Text between two words: none for Chinese, Japanese and Thai, " " for Vietnamese.
        syllables: What separates the syllables of a word, such as _ in Việt_Nam; in the text it is a blank. Null: a
            word contains no blank.
        tag: What separates a word and its tag, such as / in dog/NN: then a record has `words` and `tags`. Null: the
            words have no tags.
        label: What separates the words and the label of their line, such as <=>. Null: lines have no labels.
        encoding: Encoding of the file, such as cp1252 or utf-16.
    """

    fields = ("text", "spans", "label", "where")

    def __init__(
        self,
        *,
        joiner: str = "",
        syllables: str | None = None,
        tag: str | None = None,
        label: str | None = None,
        encoding: str = "utf-8",
    ):
        super().__init__(encoding=encoding)
        if syllables is not None and (not syllables or syllables.isspace()):
            raise UsageError(f"segmented.syllables: {syllables!r} cannot be within words; write _, or null")
        if tag is not None and (not tag or tag.isspace()):
            raise UsageError(f"segmented.tag: {tag!r} cannot follow words; write / or _, or null")
        if label is not None and not label.strip():
            raise UsageError(f"segmented.label: {label!r} cannot separate a label; write a sign such as <=>, or null")
        self.joiner, self.syllables, self.tag, self.label = joiner, syllables, tag, label

    def parse(self, line: str, where: str) -> Record:
        words, tags, spans, start = [], [], [], 0
        named = {}
        if self.label is not None:
            line, _, label = (part.strip() for part in line.rpartition(self.label))
            if not line or not label:
                raise DataError(f"{where}: there is no label after {self.label!r} in this line; write one")
            named = {"label": label}
        for item in line.split():
            word, tag = item, ""
            if self.tag is not None:
                word, _, tag = item.rpartition(self.tag)
                if not word or not tag:
                    raise DataError(f"{where}: {item!r} is not a word with a tag after {self.tag!r}; write both")
            word = self._word(word, where)
            words.append(word)
            tags.append(tag)
            spans.append({"start": start, "end": start + len(word), "label": WORD_LABEL})
            start += len(word) + len(self.joiner)
        text = self.joiner.join(words)
        record = {"text": text, "spans": spans} if self.tag is None else {"text": text, "words": words, "tags": tags}
        return record | named

    def _word(self, word: str, where: str) -> str:
        if len(word) > LONGEST_WORD:
            fix = "separate the words by blanks"
            raise DataError(f"{where}: {word[:20]!r}… is a word of {len(word):,} characters; {fix}")
        if self.syllables is None or not word.strip(self.syllables):  # a mark that is a word itself
            return word
        syllables = word.split(self.syllables)
        if "" in syllables:
            fix = f"write one {self.syllables!r} between two syllables"
            raise DataError(f"{where}: the word {word!r} has an empty syllable; {fix}")
        return " ".join(syllables)
