"""JSON lines, good and bad, through the jsonl reader."""

import json
from pathlib import Path
from typing import Any

import pytest

from seqpipe.config.signature import construct
from seqpipe.errors import DataError
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


@pytest.mark.parametrize(
    "span",
    [
        PER,
        [0, 4, "PER"],
        {"start": 0, "end": 4, "entity_group": "PER", "score": 0.9, "word": "John"},
        {"start": 0, "end": 4, "entity": "PER", "word": "john"},
        {"start": 0, "end": 4, "type": "PER", "text": "John"},
    ],
)
def test_a_text_has_spans_in_any_usual_form(span: object) -> None:
    assert record_of({"text": "John runs", "spans": [span]}) == {"text": "John runs", "spans": [PER]}


def test_offsets_count_code_points() -> None:
    text = "😀é日 John"
    assert record_of({"text": text, "spans": [[4, 8, "PER"]]})["spans"] == [{"start": 4, "end": 8, "label": "PER"}]


def test_spans_are_put_in_order_and_may_touch() -> None:
    spans = record_of({"text": "abcdef", "spans": [[3, 6, "B"], [0, 3, "A"]]})["spans"]
    assert [span["label"] for span in spans] == ["A", "B"]


def test_words_have_tags_in_any_scheme() -> None:
    item = {"words": ["a", "b", "c"], "tags": ["B-X", "L-X", "U-Y"]}
    expected = {"text": "a b c", "words": ["a", "b", "c"], "tags": ["B-X", "I-X", "B-Y"]}
    assert record_of(item, scheme="BILOU") == expected
    assert record_of({**item, "tags": ["I-X", "I-X", "B-Y"]}, ill_formed="repair") == expected
    plain = {"text": "abc", "words": ["a", "b", "c"], "tags": ["N", "V", "N"]}
    assert record_of({**item, "tags": ["N", "V", "N"]}, scheme="none", joiner="") == plain


@pytest.mark.parametrize("item", [{"text": "a"}, {"text": ""}, {"text": "a", "spans": []}, {"text": "\ud800 \x00"}])
def test_a_text_may_stand_alrecord_of(item: dict[str, Any]) -> None:
    assert record_of(item) == item


def test_words_may_stand_alone() -> None:
    assert record_of({"words": ["a", "b"]}) == {"text": "a b", "words": ["a", "b"]}


def test_the_keys_have_the_names_that_the_options_give() -> None:
    tokens = {"tokens": ["a"], "ner_tags": ["B-X"]}
    assert record_of(tokens, words="tokens", tags="ner_tags") == {"text": "a", "words": ["a"], "tags": ["B-X"]}
    sentence = {"sentence": "John", "entities": [[0, 4, "PER"]]}
    assert record_of(sentence, text="sentence", spans="entities") == {"text": "John", "spans": [PER]}


def test_every_other_key_is_kept_as_a_field() -> None:
    item = {"text": "a", "id": 7, "meta": {"x": [1, None]}, "document": "d"}
    assert record_of(item) == {**item, "meta.x": [1, None]}


def test_several_labels_are_kept_as_they_stand() -> None:
    for labels in ([], ["x"], ["x", "y"], "x", 3):
        assert record_of({"text": "a", "labels": labels}) == {"text": "a", "labels": labels}
    assert record_of({"words": ["a", "b"], "labels": ["O", "O"]}, tags="labels")["tags"] == ["O", "O"]


def test_keys_named_like_common_fields_do_not_replace_them() -> None:
    assert record_of({"text": "a", "where": "here"}) == {"text": "a", "source_where": "here"}
    assert record_of({"words": ["a", "."], "text": "a."}) == {"text": "a .", "words": ["a", "."], "source_text": "a."}
    assert record_of({"text": "a", "tags": ["news"]}, tags="ner") == {"text": "a", "source_tags": ["news"]}


@pytest.mark.parametrize(
    "text", ['\ufeff{"text": "a"}\r\n\r\n  {"text": "b"}  ', '{"text": "a"}\n\n \n{"text": "b"}\n']
)
def test_line_ends_blank_lines_and_a_byte_order_mark_change_nothing(text: str, tmp_path: Path) -> None:
    assert [record["text"] for record in read(text, tmp_path)] == ["a", "b"]


def spans(*spans: object, text: str = "John runs") -> str:
    return json.dumps({"text": text, "spans": spans})


def words(tags: object, words: object = ("a", "b")) -> str:
    return json.dumps({"words": words, "tags": tags})


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ('{"text": "a"\n', {}, "1:13:", "this is not JSON (Expecting ',' delimiter)"),
    ('{"text": "a"}{"text": "b"}\n', {}, "1:14:", "write one object a line"),
    ('{"text": "a\tb"}\n', {}, "1:12:", "Invalid control character"),
    ('[\n{"text": "a"}\n]\n', {}, "1:2:", "the reader `json` reads a list"),
    ('[{"text": "a"}]\n', {}, "1:", "this line is a list; write one object a line; the reader"),
    ("\n\n3\n", {}, "3:", "this line is a number"),
    ('{"text": "a", "text": "b"}\n', {}, "1:", "the key 'text' is given twice; keep one"),
    ('{"text": "a", "score": NaN}\n', {}, "1:", "NaN is not JSON"),
    ('{"text": "a", "n": ' + "9" * 5000 + "}\n", {}, "1:", "a number has 5000 digits; write it as a string"),
    ('{"text": ' + "[" * 200_000 + "\n", {}, "1:", "nested too deep"),
    ('\n{"txt": "a"}\n', {}, "2:", "neither `text` nor `words` is a key here; did you mean 'txt'? (keys: txt)"),
    ("{}\n", {}, "1:", "(keys: none); name them with the reader's options `text` and `words`"),
    ("{}\n", {}, "1:", "or set `text: null` if there are two"),
    ('{"text": "a"}\n', {"text": "body"}, "1:", "neither `body` nor `words`"),
    ('{"text": ["a"]}\n', {}, "1:", "`text` is a list; it must be a string"),
    ('{"text": 3}\n', {}, "1:", "`text` is a number"),
    ('{"text": "a", "tags": ["O"]}\n', {}, "1:", "`tags` belong to words, and there are none in this line; give `"),
    ('{"text": "a", "labels": ["x", ""]}\n', {}, "1:", "item 2 of `labels` is an empty string"),
    ('{"text": "a", "labels": [1]}\n', {}, "1:", "item 1 of `labels` is a number; write a string"),
    ('{"text": "a", "labels": ["x", "y", "x"]}\n', {}, "1:", "`labels` has 'x' twice; write each label once"),
    ('{"words": ["a", "b"], "labels": ["O", "O"]}\n', {}, "1:", "set the reader's option `tags: labels`"),
    ('{"words": ["a"], "spans": []}\n', {}, "1:", "this line is split into words; give the words `tags`"),
    ('{"words": "a b"}\n', {}, "1:", "`words` is a string; it must be a list of strings"),
    ('{"words": ["a", ""]}\n', {}, "1:", "item 2 of `words` is an empty string"),
    (words(["O"]), {}, "1:", "2 `words` but 1 `tags`; give one tag a word"),
    (words([None, "O"]), {}, "1:", "item 1 of `tags` is null"),
    (words(None), {}, "1:", "`tags` is null"),
    (words(["O", "I-X"]), {}, "1:", "tag 2: 'I-X' cannot follow 'O' in IOB2; the sentence is well-formed IOB1"),
    (words(["O", "NOUN"]), {}, "1:", "tag 2: 'NOUN' is not a tag of IOB2; `scheme: none`"),
    (words(["O", " O"]), {"scheme": "none"}, "1:", "the tag ' O' is empty or has blanks around it"),
    ('{"text": "a", "spans": {}}\n', {}, "1:", "`spans` is an object; it must be a list"),
    (spans(3), {}, "1:", 'span 1 is a number; write {"start": 0, "end": 5, "label": "PER"}'),
    (spans([0, 4]), {}, "1:", "span 1 has null or missing as `label`"),
    (spans(PER, {"start": 5, "label": "X"}), {}, "1:", "span 2 has null or missing as `end`"),
    (spans(["0", 4, "X"]), {}, "1:", "span 1 has a string as `start`; it must be a whole number"),
    (spans({"start": 0.0, "end": 4, "label": "X"}), {}, "1:", "span 1 has a number as `start`"),
    (spans([True, 4, "X"]), {}, "1:", "span 1 has a boolean as `start`"),
    (spans(["X", "0", 4]), {}, "1:", "span 1 has a string as `start`"),
    (spans([0, 4, ""]), {}, "1:", "span 1 has an empty string as `label`; write a string with something in it"),
    (spans([4, 4, "X"]), {}, "1:", "span 1: 4 to 4 is empty or not within the text's 9 code points"),
    (spans([-1, 4, "X"]), {}, "1:", "-1 to 4 is empty or not within"),
    (spans([5, 10, "X"]), {}, "1:", "not within the text's 9 code points (9 UTF-16 units, 9 UTF-8 bytes); correct"),
    (spans([2, 6, "X"], text="日本の人"), {}, "1:", "4 code points (4 UTF-16 units, 12 UTF-8 bytes)"),
    (spans([2, 4, "X"], text="😀ab"), {}, "1:", "3 code points (4 UTF-16 units, 6 UTF-8 bytes)"),
    (spans({**PER, "text": "runs"}), {}, "1:", "0 to 4 is 'John', not 'runs'; offsets must count code points"),
    (spans({"start": 2, "end": 4, "label": "X", "word": "ab"}, text="😀abc"), {}, "1:", "2 to 4 is 'bc', not 'ab'"),
]


@pytest.mark.parametrize(("text", "options", "place", "message"), BAD, ids=range(len(BAD)))
def test_a_bad_line_is_an_error(text: str, options: dict, place: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(text, tmp_path, **options)
    assert str(caught.value).startswith(f"{tmp_path / 'data.jsonl'}:{place} ")
    assert message in str(caught.value)
