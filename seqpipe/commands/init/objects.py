"""Find out what the objects of a JSON or Parquet file hold: texts, labels, words with tags, spans, numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqpipe.commands.init.choice import LIST_CURE, find_roles
from seqpipe.commands.init.label_lists import separator_of
from seqpipe.commands.init.names import MEASURED, USUAL
from seqpipe.commands.init.object_fields import Field
from seqpipe.commands.init.profile import Column
from seqpipe.commands.init.roles import Roles, Task
from seqpipe.errors import DataError

_WORDS = ("words", "tokens", "tokens_list", "sentence", "text")
_TAGS = ("tags", "ner_tags", "labels", "ner", "slots", "pos", "upos", "pos_tags", "bio", "iob")
_SPANS = ("spans", "entities", "ents", "label", "labels", "annotations", "slots")
_LABELS = ("labels", "label", "topics", "categories", "genres", "intents", "emotions", "classes", "tags", "keywords")
_SPAN_LABELS = {"label", "entity_group", "entity", "type"}
_NEEDED = {"text", "score"} | USUAL  # in every object, or in none


def find_words(fields: Mapping[str, Field], data: Path) -> dict[str, Any] | None:
    """Return the reader's options for words with tags; None if there are none.

    Raises:
        DataError: if the tags are numbers.
    """
    lists = [key for key, stats in fields.items() if stats.is_list_of("texts")]
    words = _first_of(_WORDS, lists)
    if words is None:
        return None
    size = len(fields[words].example)
    tags = _first_of(_TAGS, [key for key in lists if key != words and len(fields[key].example) == size])
    if tags is None:
        numbers = _first_of(_TAGS, [key for key, stats in fields.items() if stats.is_list_of("numbers")])
        if numbers and len(fields[numbers].example) == size:
            cure = "replace them by their names, such as O and B-city, which the data set's page lists"
            raise DataError(f"{data}: the tags {numbers!r} of the words {words!r} are numbers; {cure}")
        return None
    return {key: name for key, name in (("words", words), ("tags", tags)) if key != name}


def find_spans(fields: Mapping[str, Field], data: Path) -> dict[str, Any] | None:
    """Return the reader's options for texts with spans; None if there are none.

    Raises:
        DataError: if the spans have another form than the reader's.
    """
    lists = [key for key, stats in fields.items() if stats.is_list_of("objects") or stats.is_list_of("mixed lists")]
    spans = _first_of(_SPANS, lists)
    if spans is None:
        return None
    (first, *_) = fields[spans].example
    form = '{"start": 0, "end": 5, "label": "PER"} or [0, 5, "PER"]'
    if isinstance(first, list):
        fits = len(first) == 3 and [type(part) for part in first] == [int, int, str]
    else:
        fits = {"start", "end"} <= first.keys() and not _SPAN_LABELS.isdisjoint(first)
    if not fits:
        raise DataError(f"{data}: the items of {spans!r} are like {first!r}, a form that is not read; write {form}")
    texts = [key for key, stats in fields.items() if stats.is_scalar and stats.kinds["text"] and stats.column.is_spaced]
    text = "text" if "text" in fields else max(texts, key=lambda key: fields[key].column.characters, default=None)
    if text is None:
        return None
    return {key: name for key, name in (("text", text), ("spans", spans)) if key != name}


def find_labels(fields: Mapping[str, Field], data: Path) -> tuple[dict[str, Any], bool] | None:
    """Return the reader's options for texts with a list of labels, or for words with one label; None for others.

    The second value says whether a text has several labels.

    Raises:
        DataError: if no key is that of the texts, or several may be.
    """
    lists = [key for key, stats in fields.items() if stats.is_list_of("texts")]
    several = _first_of(_LABELS, lists)
    if several is not None:
        text = find_text(fields, data)
        return {key: name for key, name in (("text", text), ("labels", several)) if key != name}, True
    words = _first_of(_WORDS, lists)
    labels = [key for key, stats in fields.items() if stats.is_scalar and _last(key) in USUAL]
    if words is None or len(labels) != 1:
        return None
    return {key: name for key, name in (("words", words), ("label", labels[0])) if key != name}, False


def is_answers(fields: Mapping[str, Field]) -> bool:
    """Return whether the objects are questions on passages, as in SQuAD's tables."""
    return {"question", "context"} <= fields.keys() and not {"answers", "answers.text"}.isdisjoint(fields)


def find_text(fields: Mapping[str, Field], data: Path) -> str:
    """Return the key of the one text; DataError if there is none, or several."""
    columns = {key: stats.column for key, stats in fields.items() if stats.is_scalar}
    texts = [key for key, column in columns.items() if column.is_text and column.is_spaced and not column.is_key]
    if "text" in columns or len(texts) == 1:
        return "text" if "text" in columns else texts[0]
    problem = f"{len(texts)} keys hold texts ({', '.join(texts)})" if texts else "no key holds texts"
    raise DataError(f"{data}: {problem}; name the key of the text 'text'")


def choose_roles(fields: Mapping[str, Field], data: Path, task: Task | None) -> Roles:
    """Return which keys are the text and what is learned, as in a table.

    Raises:
        DataError: if there is nothing to learn, or the keys leave a choice open.
    """
    stats = {key: each for key, each in fields.items() if each.is_scalar and not _is_id(key, each)}
    if not stats:
        seen = ", ".join(f"{key!r} {' or '.join(sorted(each.kinds))}" for key, each in fields.items())
        raise DataError(
            f"{data}: nothing to learn in it: its keys hold {seen}; give a text and its label in each object"
        )
    longest = max((each.column.characters for each in stats.values() if not each.column.is_key), default=0)
    _refuse_listed_texts(fields, longest, data)
    for key, each in stats.items():
        if _last(key) in _NEEDED:
            _check_missing(key, each)
    names, last = list(stats), [_last(key) for key in stats]
    columns = [each.column for each in stats.values()]
    for column, name, short in zip(columns, names, last, strict=True):
        column.first = short if last.count(short) == 1 else name
    roles = (_stated(columns) if task is None else None) or find_roles(columns, True, task, str(data), must=True)
    assert roles is not None  # `must`
    roles.names = names
    roles.why = roles.why.replace("column ", "key ").replace(" rows", " records")
    text, target = names[roles.texts[0]], names[roles.target]
    _refuse_several(roles, data)
    roles.options = {} if text == "text" else {"text": text}
    if roles.learns == "Labels" and target != "label":
        roles.options["label"] = target
    for key in (target, *(names[i] for i in roles.texts)):
        _check_missing(key, stats[key])
    _check_numbers(roles, stats[target], f"{data}: {target!r}")
    return roles


def _refuse_several(roles: Roles, data: Path) -> None:
    """DataError if a text holds several labels, which the reader would take as one."""
    target = roles.columns[roles.target]
    separator = roles.separator or separator_of(target, target.first.strip().lower())
    if roles.learns == "Labels" and separator:
        title = roles.title.replace("column", "key")
        raise DataError(f"{data}: {title} holds labels separated by {separator!r}; {LIST_CURE}")


def _is_id(key: str, values: Field) -> bool:
    """Return whether a key names the objects, as paper_id does."""
    return _last(key).endswith(("_id", "-id")) and not values.column.is_repeated


def _refuse_listed_texts(fields: Mapping[str, Field], characters: int, data: Path) -> None:
    """DataError if a list of texts, such as of sentences, holds more than every text."""
    listed = {key: stats.listed for key, stats in fields.items() if stats.listed > 1.2 * characters}
    if listed:
        key = max(listed, key=lambda key: listed[key])
        cure = f"make one text of each list that is meant, for instance with `jq -c '.{key} |= join(\" \")'`"
        raise DataError(f"{data}: {key!r} is a list of texts, and longer than the other texts; {cure}")


def _check_missing(key: str, values: Field) -> None:
    """DataError if some objects have the key and some have not."""
    if values.missing_at and values.kinds.total() > values.kinds["missing"]:
        raise DataError(
            f"{values.missing_at}: no {key!r} in this object; write one in every object, or leave it out of all"
        )


def _check_numbers(roles: Roles, target: Field, where: str) -> None:
    """DataError for numbers that are written as texts, or labels that are fractions."""
    if roles.learns == "Numbers" and {*target.kinds} != {"number"}:
        raise DataError(
            f"{where} holds numbers written as texts, or none; write a number without quotes in each object"
        )
    if roles.learns == "Labels" and target.kinds["number"] and any("." in value for value in target.column.values):
        raise DataError(f"{where} holds few numbers with a fraction; to learn labels, write them as texts")


def _stated(columns: list[Column]) -> Roles | None:
    """Return the roles of one text with a key that is named as labels are, though few of its values repeat."""
    names = [column.first.lower() for column in columns]
    labels = [i for i, name in enumerate(names) if name in USUAL - MEASURED - {"target"}]
    texts = [i for i, column in enumerate(columns) if column.is_text and not column.is_key and i not in labels]
    if len(labels) != 1 or len(texts) != 1:
        return None
    label = columns[labels[0]]
    is_long = sum(len(value.split()) > 4 for value in label.values) > len(label.values) / 2
    if label.is_measured or label.is_repeated or label.empty or is_long:
        return None
    why = f"key {label.first!r} has {len(label.values):,} values in {label.cells:,} records"
    return Roles(columns, names, "Labels", texts, labels[0], [], why)


def _last(key: str) -> str:
    """Return the last part of a dotted name, in lower case."""
    return key.rpartition(".")[2].lower()


def _first_of(names: Sequence[str], keys: Sequence[str]) -> str | None:
    """Return the key whose last part comes first in `names`; None if none has one of them."""
    last = {_last(key): key for key in reversed(keys)}
    return next((last[name] for name in names if name in last), None)
