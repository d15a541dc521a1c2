"""JSON lines, good and bad, through the jsonl reader."""

import json
from pathlib import Path
from typing import Any

import pytest
from data_files import data_error

from seqpipe.config.signature import construct
from seqpipe_plugins.readers.json import Jsonl


def read(content: str | bytes, folder: Path, **options: Any) -> list[dict[str, Any]]:
    path = folder / "data.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(construct(Jsonl, **options).read(path))


def record_of(item: object, **options: Any) -> dict[str, Any]:
    """The record of one object, without `where`."""
    (record,) = construct(Jsonl, **options).records([json.dumps(item)], "x")
    assert record.pop("where") == "x:1"
    return record


PER = {"start": 0, "end": 4, "label": "PER"}


SPAN_FORMS = [
    PER,
    [0, 4, "PER"],
    {"start": 0, "end": 4, "entity_group": "PER", "score": 0.9, "word": "John"},
    {"start": 0, "end": 4, "entity": "PER", "word": "john"},
    {"start": 0, "end": 4, "type": "PER", "text": "John"},
    {"start": 0, "end": 4, "entity": "PER", "value": "John"},
]


@pytest.mark.parametrize("span", SPAN_FORMS)
def test_a_text_has_spans_in_any_usual_form(span: object) -> None:
    assert record_of({"text": "John runs", "spans": [span]}) == {"text": "John runs", "spans": [PER]}


TAGGED = {"words": ["a", "b", "c"], "tags": ["B-X", "L-X", "U-Y"]}
TAGS_OF_X_AND_Y = {"text": "a b c", "words": ["a", "b", "c"], "tags": ["B-X", "I-X", "B-Y"]}
META = {"text": "a", "id": 7, "meta": {"x": [1, None]}, "document": "d"}
ORDERED = [{"start": 0, "end": 3, "label": "A"}, {"start": 3, "end": 6, "label": "B"}]


OBJECTS = [
    # Offsets count code points; spans are put in order and may touch.
    ({"text": "😀é日 John", "spans": [[4, 8, "P"]]}, {}, {"spans": [{"start": 4, "end": 8, "label": "P"}]}),
    ({"text": "abcdef", "spans": [[3, 6, "B"], [0, 3, "A"]]}, {}, {"spans": ORDERED}),
    # Words have tags in any scheme.
    (TAGGED, {"scheme": "BILOU"}, TAGS_OF_X_AND_Y),
    (TAGGED | {"tags": ["I-X", "I-X", "B-Y"]}, {"ill_formed": "repair"}, TAGS_OF_X_AND_Y),
    (TAGGED | {"tags": [*"NVN"]}, {"scheme": "none", "joiner": ""}, {"text": "abc", "tags": [*"NVN"]}),
    ({"words": ["a", "b"], "labels": ["O", "O"]}, {"tags": "labels"}, {"text": "a b", "tags": ["O", "O"]}),
    # Texts and words may stand alone.
    *(({"text": text}, {}, {}) for text in ("a", "", "\ud800 \x00")),
    ({"text": "a", "spans": []}, {}, {"spans": []}),
    ({"words": ["a", "b"]}, {}, {"text": "a b", "words": ["a", "b"]}),
    # Options name the keys; other keys are kept as fields.
    ({"w": ["a"], "t": ["B-X"]}, {"words": "w", "tags": "t"}, {"text": "a", "words": ["a"], "tags": ["B-X"]}),
    ({"t": "John", "s": [[0, 4, "PER"]]}, {"text": "t", "spans": "s"}, {"text": "John", "spans": [PER]}),
    (META, {}, META | {"meta.x": [1, None]}),
    ({"a": "x", "b": {"c": "y"}}, {"text": None}, {"a": "x", "b": {"c": "y"}, "b.c": "y"}),
    ({"text": "a", "topics": ["x", "y"]}, {"labels": "topics"}, {"topics": ["x", "y"], "labels": ["x", "y"]}),
    *(({"text": "a", "labels": labels}, {}, {"labels": labels}) for labels in ([], ["x"], ["x", "y"], "x", 3)),
    # Keys named like common fields do not replace them.
    ({"text": "a", "where": "b"}, {}, {"source_where": "b"}),
    ({"words": ["a", "."], "text": "a."}, {}, {"text": "a .", "words": ["a", "."], "source_text": "a."}),
    ({"text": "a", "tags": ["news"]}, {"tags": "ner"}, {"source_tags": ["news"]}),
]


@pytest.mark.parametrize(("item", "options", "record"), OBJECTS)
def test_an_object_is_a_record(item: dict, options: dict, record: dict) -> None:
    common = {key: value for key, value in item.items() if key in ("text", "words")}
    assert record_of(item, **options) == common | record


def spans(*spans: object, text: str = "John runs") -> str:
    return json.dumps({"text": text, "spans": spans})


def words(tags: object, words: object = ("a", "b")) -> str:
    return json.dumps({"words": words, "tags": tags})


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ('{"text": "a"\n', {}, "1:13", "this is not JSON (Expecting ',' delimiter)"),
    ('{"text": "a"}{"text": "b"}\n', {}, "1:14", "write one object a line"),
    ('{"text": "a\tb"}\n', {}, "1:12", "Invalid control character"),
    ('[\n{"text": "a"}\n]\n', {}, "1:2", "the reader `json` reads a list"),
    ('[{"text": "a"}]\n', {}, "1", "this line is a list; write one object a line; the reader"),
    ("\n\n3\n", {}, "3", "this line is a number"),
    ('{"text": "a", "text": "b"}\n', {}, "1", "the key 'text' is given twice; keep one"),
    ('{"text": "a", "score": NaN}\n', {}, "1", "NaN is not JSON"),
    ('{"text": "a", "n": ' + "9" * 5000 + "}\n", {}, "1", "a number has 5000 digits; write it as a string"),
    ('{"text": ' + "[" * 200_000 + "\n", {}, "1", "nested too deep"),
    ('\n{"txt": "a"}\n', {}, "2", "neither `text` nor `words` is a key here; did you mean 'txt'? (keys: txt)"),
    ("{}\n", {}, "1", "(keys: none); name them with the reader's options `text` and `words`"),
    ("{}\n", {}, "1", "or set `text: null` if there are two"),
    ('{"text": "a"}\n', {"text": "body"}, "1", "neither `body` nor `words`"),
    ('{"text": ["a"]}\n', {}, "1", "`text` is a list; it must be a string"),
    ('{"text": 3}\n', {}, "1", "`text` is a number"),
    ('{"text": "a", "tags": ["O"]}\n', {}, "1", "`tags` belong to words, and there are none in this line; give `"),
    ('{"text": "a", "labels": ["x", ""]}\n', {}, "1", "item 2 of `labels` is an empty string"),
    ('{"text": "a", "labels": [1]}\n', {}, "1", "item 1 of `labels` is a number; write a string"),
    ('{"text": "a", "labels": ["x", "y", "x"]}\n', {}, "1", "`labels` has 'x' twice; write each label once"),
    ('{"text": "a", "topics": ["x", "x"]}\n', {"labels": "topics"}, "1", "`labels` has 'x' twice"),
    ('{"words": ["a", "b"], "labels": ["O", "O"]}\n', {}, "1", "set the reader's option `tags: labels`"),
    ('{"words": ["a"], "spans": []}\n', {}, "1", "this line is split into words; give the words `tags`"),
    ('{"words": "a b"}\n', {}, "1", "`words` is a string; it must be a list of strings"),
    ('{"words": ["a", ""]}\n', {}, "1", "item 2 of `words` is an empty string"),
    (words(["O"]), {}, "1", "1 tags for 2 words; give one tag a word"),
    (words([None, "O"]), {}, "1", "item 1 of `tags` is null"),
    (words(None), {}, "1", "`tags` is null"),
    (words(["O", "I-X"]), {}, "1", "tag 2: 'I-X' cannot follow 'O' in IOB2; the sentence is well-formed IOB1"),
    (words(["O", "NOUN"]), {}, "1", "tag 2: 'NOUN' is not a tag of IOB2; `scheme: none`"),
    (words(["O", " O"]), {"scheme": "none"}, "1", "the tag ' O' is empty or has blanks around it"),
    ('{"text": "a", "spans": {}}\n', {}, "1", "`spans` is an object; it must be a list"),
    (spans(3), {}, "1", 'span 1 is a number; write {"start": 0, "end": 5, "label": "PER"}'),
    (spans([0, 4]), {}, "1", "span 1 has null or missing as `label`"),
    (spans(PER, {"start": 5, "label": "X"}), {}, "1", "span 2 has null or missing as `end`"),
    (spans(["0", 4, "X"]), {}, "1", "span 1 has a string as `start`; it must be a whole number"),
    (spans({"start": 0.0, "end": 4, "label": "X"}), {}, "1", "span 1 has a number as `start`"),
    (spans([True, 4, "X"]), {}, "1", "span 1 has a boolean as `start`"),
    (spans([0, 4, ""]), {}, "1", "span 1 has an empty string as `label`; write a string with something in it"),
    (spans([4, 4, "X"]), {}, "1", "span 1: 4 to 4 is empty or not within the text's 9 code points"),
    (spans([-1, 4, "X"]), {}, "1", "-1 to 4 is empty or not within"),
    (spans([5, 10, "X"]), {}, "1", "not within the text's 9 code points (9 UTF-16 units, 9 UTF-8 bytes); correct"),
    (spans([2, 6, "X"], text="日本の人"), {}, "1", "4 code points (4 UTF-16 units, 12 UTF-8 bytes)"),
    (spans([2, 4, "X"], text="😀ab"), {}, "1", "3 code points (4 UTF-16 units, 6 UTF-8 bytes)"),
    (spans({**PER, "text": "runs"}), {}, "1", "0 to 4 is 'John', not 'runs'; offsets must count code points"),
    (spans({"start": 2, "end": 4, "label": "X", "word": "ab"}, text="😀abc"), {}, "1", "2 to 4 is 'bc', not 'ab'"),
]


@pytest.mark.parametrize(("text", "options", "place", "message"), BAD, ids=range(len(BAD)))
def test_a_bad_line_is_an_error(text: str, options: dict, place: str, message: str, tmp_path: Path) -> None:
    with data_error(f"{tmp_path / 'data.jsonl'}:{place}", message):
        read(text, tmp_path, **options)
