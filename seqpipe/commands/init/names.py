"""Names of a table's columns."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seqpipe.commands.init.profile import NUMBER, Column

USUAL = {"label", "labels", "intent", "class", "category", "sentiment", "topic", "target", "polarity", "标签", "类别"}
MEASURED = {"score", "rating", "stars", "grade", "price", "similarity", "value"}
SOURCES = {"text", "source", "src", "input", "question", "document", "article", "body", "文本", "内容"}
TARGETS = {"target", "tgt", "output", "answer", "response", "summary", "translation", "headline"}
SECOND = {"text_pair", "sentence2", "hypothesis", "question2", "text2", "text_b", "sentence_b", "context"}
KEYS = {"id", "uid", "guid", "index", "idx", "date", "time", "timestamp", "url", "user", "author", "split", "fold"}
OTHERS = {"sentence", "review", "comment", "utterance", "tweet", "message", "content", "title", "premise", "sentence1"}
LANGUAGES = {"en", "de", "fr", "es", "it", "pt", "nl", "ru", "zh", "ja", "ko", "ar", "tr", "pl", "english", "german"}
_KNOWN = USUAL | MEASURED | SOURCES | TARGETS | SECOND | KEYS | OTHERS
_NAME = re.compile(r"[A-Za-z_][\w .-]{0,39}")
_NAME_ALONE = re.compile(r"[A-Za-z_][\w-]*")


def has_names(columns: Sequence[Column]) -> bool:
    """Return whether the first row names the columns: its cells are no values of theirs, and like names."""
    head = [column.first.strip().lower() for column in columns]
    if len({*head}) < len(head):
        return False
    if any(NUMBER.fullmatch(name) for name in head):
        return False
    known = sum(name in _KNOWN for name in head)
    if known == len(head) or {*head} <= LANGUAGES:
        return True
    if any(column.first in column.values for column in columns if column.first.strip()):
        return False
    if any(column.is_numeric for column in columns):
        return all(len(name.split()) <= 5 for name in head)
    if known:
        return all(len(name.split()) <= 3 for name in head)
    return all(_NAME.fullmatch(name) and " " not in name for name in head) and any(map(_is_unlike_name, columns))


def _is_unlike_name(column: Column) -> bool:
    """Return whether the column's cells are no names, so that one would stand out."""
    return column.share(_NAME_ALONE.fullmatch) < 0.1
