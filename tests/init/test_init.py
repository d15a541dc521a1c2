"""Data files of many kinds through `init`: the YAML that it writes is checked, and its reader reads the file."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pretrained import checkpoint, decoder

from seqpipe.config import loader as config
from seqpipe.config import yaml
from seqpipe.config.signature import construct
from seqpipe.errors import DataError, UsageError
from seqpipe.init import init_yaml
from seqpipe.init.summary import DataSummary
from seqpipe.init.yaml import model_yaml

SENTENCES = [
    (["Anna", "Meier", "calls", "Bern"], [("person", 0, 2), ("city", 3, 4)]),
    (["New", "York", "is", "far"], [("city", 0, 2)]),
    (["Ben", "Bern", "Zug"], [("person", 0, 1), ("city", 1, 2), ("city", 2, 3)]),
    (["it", "rains"], []),
]
Tagger = Callable[[int, int, str], list[str]]


def iob2(start: int, end: int, label: str) -> list[str]:
    return [f"B-{label}", *[f"I-{label}"] * (end - start - 1)]


def bioes(start: int, end: int, label: str) -> list[str]:
    return [f"S-{label}"] if end - start == 1 else [f"B-{label}", *[f"I-{label}"] * (end - start - 2), f"E-{label}"]


def bilou(start: int, end: int, label: str) -> list[str]:
    return [{"S": "U", "E": "L"}.get(tag[0], tag[0]) + tag[1:] for tag in bioes(start, end, label)]


def iob1(start: int, end: int, label: str) -> list[str]:
    return [f"B-{label}" if start == 2 else f"I-{label}", *[f"I-{label}"] * (end - start - 1)]  # Zug touches Bern


def conll(line: Callable[[str, str], str], tagger: Tagger = iob2) -> str:
    text = ""
    for words, spans in SENTENCES:
        tags = ["O"] * len(words)
        for label, start, end in spans:
            tags[start:end] = tagger(start, end, label)
        text += "".join(line(word, tag) + "\n" for word, tag in zip(words, tags, strict=True)) + "\n"
    return text


def initialised(folder: Path, content: str, name: str = "train.conll") -> config.Config:
    """The checked configuration that init writes for a file of this content."""
    data = folder / name
    data.write_text(content, encoding="utf-8")
    return config.load(init_yaml(data, folder / "made.yaml"))


def read(made: config.Config) -> list[dict[str, Any]]:
    reader = made.data.reader
    return list(construct(reader.cls, **reader.options).read(made.data.train))


def changed(made: config.Config) -> dict[str, Any]:
    """The reader's options that the YAML states."""
    written: Any = yaml.parse(made.file.read_bytes(), str(made.file)).data
    return {name: value for name, value in written["data"]["reader"].items() if name != "use"}


@pytest.mark.parametrize(
    ("tagger", "options"),
    [(iob2, {}), (bioes, {"scheme": "BIOES"}), (bilou, {"scheme": "BILOU"}), (iob1, {"scheme": "IOB1"})],
)
@pytest.mark.parametrize("line", ["{0} {1}", "{0}\t{1}", "{0} NN {1}"])
def test_the_scheme_of_a_column_file_is_found(
    line: str, tagger: Tagger, options: dict[str, Any], tmp_path: Path
) -> None:
    made = initialised(tmp_path, conll(line.format, tagger))
    assert changed(made) == options
    assert [record["tags"] for record in read(made)][2] == ["B-person", "B-city", "B-city"]
    assert made.inputs[0].tokenizer.use == "words"
    assert made.head[0].options["scheme"] == "BIOES"


def test_the_first_line_names_the_schema_to_editors(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("Ada\tB-PER\nleft\tO\n\n" * 20)
    lines = init_yaml(tmp_path / "train.tsv", tmp_path / "made.yaml").read_text().splitlines()
    assert lines[0] == "# yaml-language-server: $schema=schema.json"
    assert "seqpipe schema -o schema.json" in lines[1]


def test_tags_in_a_middle_column_are_found(tmp_path: Path) -> None:
    made = initialised(tmp_path, conll(lambda word, tag: f"{word}\t{tag}\tnoun\t3"))
    assert changed(made) == {"tags": 1}
    assert read(made)[0]["tags"] == ["B-person", "I-person", "O", "B-city"]


def test_plain_tags_are_taken_as_they_stand(tmp_path: Path) -> None:
    made = initialised(tmp_path, "the DET\ndog NOUN\nbarks VERB\n\ncats NOUN\n\n")
    assert changed(made) == {"scheme": "none"}
    assert made.head[0].options["scheme"] == "none"
    assert "# Tags: NOUN 2, DET 1, VERB 1" in made.file.read_text(encoding="utf-8")


def test_ill_formed_tags_are_repaired_and_the_file_says_so(tmp_path: Path) -> None:
    content = conll("{0} {1}".format) * 5 + "is O\nBern I-city\n\n" * 2 + "in O\nZug I-city\n\n"
    made = initialised(tmp_path, content)
    assert changed(made) == {"ill_formed": "repair"}
    assert "# Note: 3 sentences break IOB2's rules" in made.file.read_text(encoding="utf-8")
    assert read(made)[-1]["tags"] == ["O", "B-city"]


CHARACTERS = "科技全球经济新闻中心想告诉诸葛欣然一会儿见在北京上海"


def glued(dice: random.Random, digits: bool = True) -> str:
    """A file like Weibo's: a character, the position in its word glued on, and a tag."""
    text = ""
    for _ in range(60):
        for _ in range(dice.randint(2, 12)):
            word = "".join(dice.choices(CHARACTERS, k=dice.randint(1, 3))) if dice.random() < 0.95 else "7，"
            tag = dice.choice(("O", "O", "O", "PER.NAM"))
            for place, character in enumerate(word):
                prefix = "O" if tag == "O" else f"{'I' if place else 'B'}-{tag}"
                text += f"{character}{place if digits else ''}\t{prefix}\n"
        text += "\n"
    return text


def test_positions_glued_to_characters_are_taken_off(tmp_path: Path) -> None:
    made = initialised(tmp_path, glued(random.Random(1)))
    assert changed(made) == {"pattern": "^(.)", "joiner": ""}
    assert made.inputs[0].tokenizer.use == "chars"
    records = read(made)
    assert all(len(word) == 1 for record in records for word in record["words"])
    assert all(record["text"] == "".join(record["words"]) for record in records)
    assert {word for record in records for word in record["words"]} <= {*CHARACTERS, "7", "，"}


def test_characters_with_nothing_glued_on_are_only_joined(tmp_path: Path) -> None:
    made = initialised(tmp_path, glued(random.Random(1), digits=False))
    assert changed(made) == {"joiner": ""}
    assert made.inputs[0].tokenizer.use == "chars"


def test_words_that_end_in_digits_now_and_then_are_words(tmp_path: Path) -> None:
    made = initialised(tmp_path, conll("{0} {1}".format) + "A1 O\nB2 O\n\n")
    assert changed(made) == {}
    assert made.inputs[0].tokenizer.use == "words"


def jsonl(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def test_texts_with_spans_are_found(tmp_path: Path) -> None:
    spans = [{"start": 3, "end": 7, "label": "city"}]
    content = jsonl({"text": "in Bern", "spans": spans}, {"text": "你", "spans": []}, {"text": "a"})
    made = initialised(tmp_path, "\ufeff" + content)
    assert (made.data.reader.use, changed(made), made.inputs[0].tokenizer.use) == ("jsonl", {}, "words")
    assert made.data.misaligned == "error"
    assert "# Entities: city 1" in made.file.read_text(encoding="utf-8")


def test_chinese_texts_are_taken_character_by_character(tmp_path: Path) -> None:
    spans = [{"start": 1, "end": 3, "label": "city"}]
    made = initialised(tmp_path, jsonl({"text": "在北京", "spans": spans}, {"text": "ok", "spans": []}, {"text": "好"}))
    assert made.inputs[0].tokenizer.use == "chars"


@pytest.mark.parametrize("labels", [["sad", "glad", "sad"], [10, 2, 10], ["-", "1: [x", "-"]])
def test_texts_with_a_label_get_the_head_for_it(labels: list[Any], tmp_path: Path) -> None:
    records = [{"text": f"a {label} day", "label": label, "spans": []} for label in labels]
    made = initialised(tmp_path, jsonl(*records))
    assert (made.data.reader.use, changed(made), made.inputs[0].tokenizer.use) == ("jsonl", {}, "words")
    assert (made.head[0].use, made.head[0].common_keys["target"]) == ("label", None)
    text = made.file.read_text(encoding="utf-8")
    assert "# Saw: JSON Lines with the keys text, label, spans.\n# Chose: key 'label' has 2 values in 3 rec" in text
    assert f"# Labels: {labels[0]} 2, {labels[1]} 1\n# Note: texts with one label each.\n" in text
    assert "misaligned" not in text


def test_words_or_chinese_characters_with_a_label_get_the_head_for_it_too(tmp_path: Path) -> None:
    made = initialised(tmp_path, jsonl({"words": ["a", "day"], "label": "x"}, {"words": ["b"], "label": "y"}))
    assert (made.head[0].use, made.inputs[0].tokenizer.use) == ("label", "words")
    (tmp_path / "made.yaml").unlink()
    made = initialised(tmp_path, jsonl({"text": "好天气", "label": "x"}, {"text": "不好", "label": "y"}))
    assert (made.head[0].use, made.inputs[0].tokenizer.use) == ("label", "chars")


def test_spans_are_learned_where_a_text_has_a_label_beside_them(tmp_path: Path) -> None:
    made = initialised(tmp_path, jsonl({"text": "in Bern", "spans": [[3, 7, "city"]], "label": "travel"}) * 2)
    assert made.head[0].use == "crf"


def test_a_label_of_several_lines_cannot_break_out_of_its_comment(tmp_path: Path) -> None:
    label = "a\nname: b\u2028c\ud800"
    data = tmp_path / "train.jsonl"
    data.write_text(
        "".join(json.dumps({"text": f"x {n}", "label": name}) + "\n" for n, name in enumerate((label, label, "y")))
    )
    made = config.load(init_yaml(data, tmp_path / "made.yaml"))
    assert f"# Labels: {label!a} 2, y 1\n" in made.file.read_text(encoding="utf-8")
    assert made.name == "made"


@pytest.mark.parametrize(
    ("words", "tags", "options"),
    [
        (["in", "Bern"], ["O", "B-city"], {}),
        (["in", "Bern"], ["O", "S-city"], {"scheme": "BIOES"}),
        (["in", "Bern"], ["ADP", "PROPN"], {"scheme": "none"}),
        (["在", "京"], ["O", "B-city"], {"joiner": ""}),
    ],
)
def test_words_in_json_are_looked_at_like_columns(
    words: list[str], tags: list[str], options: dict[str, Any], tmp_path: Path
) -> None:
    made = initialised(tmp_path, jsonl({"words": words, "tags": tags}) * 2)
    assert changed(made) == options
    assert read(made)[0]["text"] == ("" if "joiner" in options else " ").join(words)


REVIEWS = [("good food", "pos"), ("a, b; c", "neg"), ("very bad food", "neg"), ("I liked it", "pos")] * 3


def table(sign: str, head: str, order: tuple[int, ...] = (0, 1)) -> str:
    """Rows of REVIEWS with their columns in this order; column 2 is a number of its own."""
    text = head + "\n" * bool(head)
    for number, row in enumerate(REVIEWS):
        cells = [(*row, str(number))[i] for i in order]
        text += sign.join(f'"{cell}"' if sign != "\t" and sign in cell else cell for cell in cells) + "\n"
    return text


@pytest.mark.parametrize(
    ("name", "content", "use", "options"),
    [
        ("a.csv", table(",", "text,label"), "csv", {}),
        ("a.csv", table(",", "label,text", (1, 0)), "csv", {}),
        ("a.csv", table(",", "id,review,stars", (2, 0, 1)), "csv", {"text": "review", "label": "stars"}),
        ("a.csv", table(";", "text;label"), "csv", {"delimiter": ";"}),
        ("a.csv", table(",", ""), "csv", {"columns": ["text", "label"]}),
        ("a.tsv", table("\t", "text\tlabel"), "tsv", {}),
        ("a.tsv", table("\t", "", (1, 2, 0)), "tsv", {"columns": ["label", "_", "text"]}),
        ("a.csv", table("\t", "text\tlabel"), "tsv", {}),
        ("a.txt", table(",", "text,label"), "csv", {}),
    ],
)
def test_a_table_is_found_with_its_text_and_its_label(
    name: str, content: str, use: str, options: dict[str, Any], tmp_path: Path
) -> None:
    made = initialised(tmp_path, content, name)
    assert (made.data.reader.use, changed(made), made.head[0].use) == (use, options, "label")
    assert [(record["text"], record["label"]) for record in read(made)] == REVIEWS
    assert "# Labels: pos 6, neg 6\n" in made.file.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["classes", "genres"])
def test_a_plural_name_is_that_of_several_labels_even_if_they_are_in_one_list(name: str, tmp_path: Path) -> None:
    rows = "".join(f"a text of some words {n}\tx{n % 3},y{n % 3}\n" for n in range(9)) + "another text\tx1\n" * 9
    made = initialised(tmp_path, f"text\t{name}\n{rows}", "a.tsv")
    assert changed(made) == {"labels": name, "separator": ","}


DATES = [(f"the {day}th of May, {1990 + day}", f"{1990 + day}-05-{day:02}") for day in range(4, 20)]


def pairs(sign: str, head: str = "", swapped: bool = False) -> str:
    rows = [row[::-1] if swapped else row for row in DATES]
    lines = [sign.join(f'"{cell}"' if sign in cell else cell for cell in row) for row in rows]
    return "\n".join([*([head] if head else []), *lines]) + "\n"


@pytest.mark.parametrize(
    ("name", "content", "options", "target"),
    [
        ("a.tsv", pairs("\t"), {"columns": ["text", "target"]}, "target"),
        ("a.csv", pairs(","), {"columns": ["text", "target"]}, "target"),
        ("a.csv", pairs(";", "text;target"), {"delimiter": ";"}, "target"),
        ("a.csv", pairs(",", "spoken,iso"), {"text": "spoken"}, "iso"),
        ("a.tsv", pairs("\t", "target\ttext", swapped=True), {}, "target"),
        ("a.tsv", pairs("\t", "input\ttext"), {"text": "input"}, "source_text"),
        ("a.jsonl", jsonl(*({"text": text, "target": date} for text, date in DATES)), {}, "target"),
    ],
)
def test_pairs_of_texts_are_for_writing(
    name: str, content: str, options: dict[str, Any], target: str, tmp_path: Path
) -> None:
    made = initialised(tmp_path, content, name)
    assert (changed(made), made.head[0].use, made.head[0].common_keys["target"]) == (options, "seq2seq", target)
    assert made.head[0].options["attention"] == "additive"
    assert [(record["text"], record[target]) for record in read(made)] == DATES


def test_chinese_pairs_are_written_character_by_character(tmp_path: Path) -> None:
    lines = ["床前明月光\t疑是地上霜", "举头望明月\t低头思故乡", "白日依山尽\t黄河入海流", "欲穷千里目\t更上一层楼"]
    content = "\n".join(lines)
    made = initialised(tmp_path, content, "a.tsv")
    assert (made.inputs[0].tokenizer.use, made.head[0].use) == ("chars", "seq2seq")
    assert "target_tokenizer: {use: chars}" in made.file.read_text(encoding="utf-8")


def test_sentences_are_written_word_by_word(tmp_path: Path) -> None:
    content = "".join(f"the dog sees cat {n}.\tder Hund sieht Katze {n}.\n" for n in range(9))
    made = initialised(tmp_path, content, "a.tsv")
    assert (made.inputs[0].tokenizer.use, made.head[0].use) == ("words", "seq2seq")
    assert not made.inputs[0].tokenizer.options["fold_digits"]
    assert "target_tokenizer: {use: words, detokenize: true}" in made.file.read_text(encoding="utf-8")


def test_names_of_rows_are_no_texts_to_write(tmp_path: Path) -> None:
    content = "".join(f"u-{number},the {number}th{' of May' * (number % 3)}\n" for number in range(9))
    with pytest.raises(
        DataError, match="nothing to learn in it: the columns are 1 identifiers or row numbers, 2 texts"
    ):
        initialised(tmp_path, content, "a.csv")


def test_a_record_without_its_text_to_write_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r":2: no 'target' in this object; write one in every object"):
        initialised(tmp_path, jsonl({"text": "a", "target": "b"}, {"text": "c"}), "a.jsonl")


PRICES = [(f"{count} nights, {'a good' if count % 3 else 'a bad'} room", count * 37.5) for count in range(2, 30)]
QUOTED = [(f'"{text}"', price) for text, price in PRICES]


@pytest.mark.parametrize(
    ("name", "content", "options", "target"),
    [
        ("a.csv", "text,price\n" + "".join(f"{t},{n}\n" for t, n in QUOTED), {"numbers": ["price"]}, "price"),
        (
            "a.csv",
            "".join(f"{i},{t},{n}\n" for i, (t, n) in enumerate(QUOTED)),
            {"columns": ["_", "text", "label"], "numbers": ["label"]},
            "label",
        ),
        (
            "a.tsv",
            "room\twhere\n" + "".join(f"{t}\t{n}\n" for t, n in PRICES),
            {"text": "room", "numbers": ["where"]},
            "source_where",
        ),
        ("a.jsonl", jsonl(*({"text": t, "label": n} for t, n in PRICES)), {}, "label"),
        ("a.jsonl", jsonl(*({"text": t, "score": n} for t, n in PRICES)), {}, "score"),
    ],
)
def test_texts_with_many_different_numbers_are_for_regression(
    name: str, content: str, options: dict[str, Any], target: str, tmp_path: Path
) -> None:
    made = initialised(tmp_path, content, name)
    assert (changed(made), made.head[0].use, made.head[0].common_keys["target"]) == (options, "score", target)
    assert [(record["text"], record[target]) for record in read(made)] == PRICES
    assert f"{target!r}, 75 to 1087.5" in made.file.read_text(encoding="utf-8")


def test_few_numbers_are_labels(tmp_path: Path) -> None:
    content = "text,stars\n" + "".join(f'"{text}",{number % 5}\n' for number, (text, _) in enumerate(PRICES))
    assert initialised(tmp_path, content, "a.csv").head[0].use == "label"


def test_a_record_without_its_number_is_an_error(tmp_path: Path) -> None:
    content = jsonl(*({"text": text, "score": price} for text, price in PRICES), {"text": "a room"})
    with pytest.raises(DataError, match=f":{len(PRICES) + 1}: no 'score' in this object"):
        initialised(tmp_path, content, "a.jsonl")


def squad(version: str = "", indent: int | None = None, context: str = "The bus to Lima leaves at ten.") -> str:
    """Two questions on a passage; with a version 2, one of them has no answer."""
    start = context.index("Lima")
    asked = {"id": "1", "question": "Where to?", "answers": [{"text": "Lima", "answer_start": start}]}
    other = {"id": "2", "question": "Who?", "answers": [], "is_impossible": True} if version else {**asked, "id": "2"}
    articles = [{"title": "a", "paragraphs": [{"context": context, "qas": [asked, other]}]}]
    return json.dumps({**({"version": version} if version else {}), "data": articles}, indent=indent)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("version", ["", "v2.0"])
def test_questions_on_passages_are_found(version: str, indent: int | None, tmp_path: Path) -> None:
    made = initialised(tmp_path, squad(version, indent), "a.json")
    assert (made.data.reader.use, changed(made), made.head[0].use) == ("squad", {}, "answer-span")
    assert made.head[0].options["no_answer"] == bool(version)
    assert made.inputs[0].tokenizer.use == "words"
    assert [record["question"] for record in read(made)] == ["Where to?", "Who?" if version else "Where to?"]
    text = made.file.read_text(encoding="utf-8")
    assert f"questions on passages, {1 if version else 0} without an answer" in text


def test_chinese_passages_are_read_character_by_character(tmp_path: Path) -> None:
    made = initialised(tmp_path, squad(context="去Lima的公交车"), "a.json")
    assert (made.inputs[0].tokenizer.use, made.head[0].use) == ("chars", "answer-span")


def test_a_text_that_quotes_squad_is_no_squad(tmp_path: Path) -> None:
    quote = '{"data": [{"paragraphs": []}]}'
    made = initialised(tmp_path, jsonl({"text": quote, "label": "x"}, {"text": "a", "label": "y"}), "a.jsonl")
    assert (made.data.reader.use, made.head[0].use) == ("jsonl", "label")


CONLLU = "# text = a b\n1\ta\t_\t{0}\tX\t_\t_\tdet\t_\t_\n2\tb\t_\t{0}\tY\t_\t_\troot\t_\t_\n\n"


@pytest.mark.parametrize("name", ["a.conllu", "a.txt", "a.conllu.gz"])
@pytest.mark.parametrize(("upos", "options"), [("NOUN", {}), ("_", {"tags": "xpos"})])
def test_universal_dependencies_are_found(name: str, upos: str, options: dict[str, Any], tmp_path: Path) -> None:
    content = (CONLLU.format(upos) * 2 + CONLLU.format(upos).replace("NOUN", "DET")).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    made = config.load(init_yaml(tmp_path / name, tmp_path / "made.yaml"))
    assert (made.data.reader.use, changed(made), made.head[0].use) == ("conllu", options, "crf")
    assert made.head[0].options["scheme"] == "none"
    assert len(read(made)) == 3


def test_universal_dependencies_without_tags_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="words without tags: no column of upos, xpos, deprel is filled"):
        initialised(tmp_path, CONLLU.format("_").replace("\tX", "\t_").replace("det", "_"), "a.conllu")


@pytest.mark.parametrize(
    ("names", "dev", "test"),
    [
        (("train.conll", "dev.conll", "test.conll"), "dev.conll", "test.conll"),
        (("eng.train", "eng.testa"), None, "eng.testa"),
        (("my-training.tsv", "my-validation.tsv"), "my-validation.tsv", None),
        (("data.conll", "dev.conll"), None, None),
    ],
)
def test_files_named_alike_become_dev_and_test(
    names: tuple[str, ...], dev: str | None, test: str | None, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).write_text(conll("{0} {1}".format))
    made = config.load(init_yaml(tmp_path / names[0], tmp_path / "made.yaml"))
    assert made.data.dev == (tmp_path / dev if dev else None)
    assert list(made.data.tests.values()) == ([tmp_path / test] if test else [])


@pytest.mark.parametrize("stem", ["2024", "1e5", "null", "_x", "été à", "-", "a" * 150])
def test_any_file_name_gives_a_yaml_that_is_valid(stem: str, tmp_path: Path) -> None:
    folder = tmp_path / "a folder: #1, [x]" / ("long " * 30)
    folder.mkdir(parents=True)
    (folder / f"{stem}.conll").write_text(conll("{0} {1}".format))
    made = config.load(init_yaml(folder / f"{stem}.conll", tmp_path / f"{stem}.yaml"))
    assert made.data.train == folder / f"{stem}.conll"


def test_the_yaml_is_named_after_the_data_or_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ner").mkdir()
    for name in ("train.conll", "small.conll"):
        (tmp_path / "ner" / name).write_text(conll("{0} {1}".format))
    assert init_yaml(Path("ner/train.conll")) == Path("ner.yaml")
    assert init_yaml(Path("ner/small.conll")) == Path("small.yaml")
    with pytest.raises(UsageError, match=r"small\.yaml exists already; name another with --output"):
        init_yaml(Path("ner/small.conll"))


@pytest.mark.parametrize("place", ["pets/train.conll", "pets/data.conll", "pets/data/train.conll.gz"])
def test_a_name_that_says_nothing_is_never_used(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content = conll("{0} {1}".format).encode()
    Path(place).parent.mkdir(parents=True)
    Path(place).write_bytes(gzip.compress(content) if place.endswith(".gz") else content)
    made = init_yaml(Path(place))
    assert (made, config.load(made).name) == (Path("pets.yaml"), "pets")
    assert config.load(init_yaml(Path(place), Path("train.yaml"))).name == "pets"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; give the file with your training examples"),
        (b"\n \n\n", "is empty"),
        (b"# only\n# comments\n", "neither JSONL nor CoNLL: most lines have 0 column"),
        (b"one\ntwo\nthree\n", r"most lines have 1 column \(3 of 3\)"),
        (b"Once upon a time\nthere was\na king\n", "neither JSONL nor CoNLL"),
        (
            b'{"text": "a"}\n',
            "nothing to learn in it: .*give texts with a key of labels",
        ),
        (b'{"text": "a", "label": "x"}\n{"text": "b"}\n', ":2: no 'label' in this object"),
        (b'{"text": "a"}\n{"text": "b", "label": 1}\n', ":1: no 'label' in this object"),
        (b'{"text": "a b", "label": 0.5}\n{"text": "b c", "label": 1.0}\n', "has few numbers with a fraction"),
        (b'{"text": "a", "label": ["x", "y"]}\n', "one JSON object without a list of objects"),
        (b'{"text": "a"}\n{"text": "b", "spans": [[0, 9, "x"]]}\n', ":2: span 1: 0 to 9"),
        (b'{"text": "a b", "labels": ["x"]}\n{"text": "b c"}\n', ":2: no 'labels' in this object"),
        (b'{"words": ["a"], "label": "x"}\n{"words": ["b"]}\n', ":2: no 'label' in this object"),
        (
            b'{"question": "a", "context": "b", "answers": []}\n{"question": "a", "answers": []}\n',
            ":2: no 'context' in this object",
        ),
        (b'{"question": "a", "context": "b", "answers": "b"}\n' * 2, ":1: field 'answers' is str; write"),
        (
            b"text\tlabel\tmore\n" + b"a b\tx\nb b\ty\nc b\tx\n" * 9,
            ":1: the first line has 3 cells, but the rows have 2",
        ),
        (b'{"text": \n', ":1"),
        (b"a O\n\xff\xfe O\n", ":2: this line is not UTF-8"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", r"is binary data \(a picture\)"),
    ],
)
def test_a_file_of_no_known_form_is_an_error(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(content)
    with pytest.raises(DataError, match=message):
        init_yaml(tmp_path / "data", tmp_path / "made.yaml")
    assert not (tmp_path / "made.yaml").exists()


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('text,label\n"good food,a\nbad,b\nnice,a\n', 2),
        ('text;label\n"good food;a\nbad;b\nnice;a\n', 2),
        ('text,label\n"long ' + "word " * 30_000 + "\n", 2),
    ],
)
def test_the_line_in_which_a_quote_opens_is_named(content: str, line: int, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"train\.csv:{line}: a quote opens in this line and is not closed; close it"):
        initialised(tmp_path, content, "train.csv")
    assert not (tmp_path / "made.yaml").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a", "label": "x"}\n', "there is one record in it; give a file with many examples"),
        ("in O\nBern B-city\n", "one record in it; .*; an empty line ends each sentence"),
        ('{"text": "a", "label": "x"}\n' * 3, "every text has the same label, 'x'; give examples of at least two"),
        ("a X\nb X\n\n" * 3, "every word has the same label, 'X'"),
        ("in O\nBern O\n\n" * 3, "no record has a span; mark what is to be found"),
        ('{"text": "in Bern", "spans": []}\n' * 3, "nothing to learn in it"),
        ("1\tO\n2\tB-city\n\n" * 3, "words of every record count 1 2 3 …; remove the column of numbers"),
        ('{"words": ["1", "2"], "tags": ["O", "B-x"]}\n' * 3, "count 1 2 3 …; write the words themselves"),
    ],
)
def test_data_that_teaches_nothing_is_refused(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        initialised(tmp_path, content, "train.txt")
    assert not (tmp_path / "made.yaml").exists()


@pytest.mark.parametrize("name", ["train.csv", "train.tsv"])
def test_a_table_of_one_line_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train\.[ct]sv: has one line; give a table with many rows"):
        initialised(tmp_path, "sentence,kind\n", name)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing: there is no such file"):
        init_yaml(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"there is no file \*\.txt in the folders of this folder"):
        init_yaml(tmp_path)


def test_a_parquet_table_is_looked_at_like_json(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = {"review": ["good food", "cold soup", "fine wine", "bad bread"] * 3, "stars": [2, 1, 2, 1] * 3}
    parquet.write_table(pa.table(rows), tmp_path / "reviews.parquet")
    made = config.load(init_yaml(tmp_path / "reviews.parquet", tmp_path / "made.yaml"))
    assert (made.data.reader.use, made.head[0].use) == ("parquet", "label")
    assert changed(made) == {"text": "review", "label": "stars"}
    assert [record["label"] for record in read(made)][:2] == [2, 1]


@pytest.mark.parametrize(
    ("change", "tokens"),
    [
        ({}, 512),
        ({"records": 3000}, 1024),
        ({"words": 120}, 512),
        ({"words": 121}, 256),
        ({"records": 9000, "words": 300_000}, 256),
        ({"words": 121, "unspaced": True}, 512),
        ({"words": 121, "label_kind": "Tags"}, 512),
    ],
)
def test_rare_entities_get_smaller_batches(change: dict[str, Any], tokens: int) -> None:
    summary = DataSummary("conll", records=20, words=60, labels=Counter({"person": 3, "city": 1}))
    assert f"  batch_tokens: {tokens}  # padded" in model_yaml(replace(summary, **change), has_dev=False)


@pytest.mark.parametrize(
    ("kind", "words", "memory", "line"),
    [
        ("Tags", 9_000_000, 0, "batch_tokens: 1024  # padded tokens a batch"),
        ("Tags", 9_000_000, 80 << 30, "batch_tokens: 16384  # padded tokens a batch; for the GPU of this machine; "),
        ("Tags", 9_000_000, 6 << 30, "batch_tokens: 4096  # padded tokens a batch; "),  # little memory
        ("Tags", 300_000, 80 << 30, "batch_tokens: 2048  # padded tokens a batch; "),  # few steps would be left
        ("Tags", 90_000, 80 << 30, "batch_tokens: 1024  # padded tokens a batch"),
        ("Continuations", 9_000_000, 80 << 30, "batch_size: 128  # for the GPU of this machine; for a CPU 1/16 of it"),
        ("Continuations", 9_000_000, 0, "batch_size: 8"),
    ],
)
def test_a_gpu_gets_larger_batches_by_its_memory_and_the_data(
    kind: str, words: int, memory: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqpipe.init.yaml.gpu_memory", lambda: memory)
    summary = DataSummary("conll", label_kind=kind, records=9000, words=words, characters=5 * words)
    lines = model_yaml(summary, has_dev=False).splitlines()
    (written,) = (text for text in lines if text.startswith("  batch_"))
    assert written.startswith(f"  {line}")
    assert ("GPU" in written) == ("; " in line or "GPU" in line)


def test_the_yaml_says_why_batches_are_small(tmp_path: Path) -> None:
    sentence = "".join(f"word{n}\tO\n" for n in range(40))
    made = initialised(tmp_path, f"Bern\tB-city\n{sentence}\n" * 4)
    assert made.train.batch_tokens == 256
    line = "  batch_tokens: 256  # padded tokens a batch; few, because entities are rare: 4 in 164 words"
    assert line in made.file.read_text().splitlines()


@pytest.mark.parametrize("key", [None, "data.all"])
def test_a_large_json_list_is_sampled(key: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqpipe.init.summary.WHOLE", 1_000)
    monkeypatch.setattr("seqpipe.init.summary.OBJECTS", 100)
    items = [{"text": f"a day {number}", "label": "yn"[number % 3 > 0], "more": ["x"]} for number in range(1_000)]
    content = json.dumps({"data": {"all": items}} if key else items)
    made = initialised(tmp_path, content, "a.json")
    assert changed(made) == ({"list": key} if key else {})
    text = made.file.read_text(encoding="utf-8")
    assert "about 1,000 records" in text
    assert "# Labels: n 6" in text
    (tmp_path / "made.yaml").unlink()
    bad = content[:-9] + '"x}' + content[-9:]
    with pytest.raises(DataError, match=r"a\.json:1:.*this is not JSON"):
        initialised(tmp_path, bad, "a.json")


def test_a_large_file_of_an_annotation_tool_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqpipe.init.objects.WHOLE", 1_000)
    monkeypatch.setattr("seqpipe.init.objects.OBJECTS", 100)
    values: list[dict[str, Any]] = [{"choices": ["yn"[number % 3 > 0]]} for number in range(1_000)]
    items = [{"data": {"text": "a day"}, "annotations": [{"result": [{"value": value}]}]} for value in values]
    for content in (json.dumps(items), "\n".join(map(json.dumps, items))):
        made = initialised(tmp_path, content, "a.json")
        assert "about 1,001 records" in made.file.read_text(encoding="utf-8")
        made.file.unlink()
    values[550] |= {"start": 2, "end": 9, "labels": ["time"]}
    with pytest.raises(DataError, match=r"a\.json:552: .*is empty or not within the text"):
        initialised(tmp_path, json.dumps(items).replace('{"data"', '\n{"data"'), "a.json")


def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.csv")
    with pytest.raises(DataError, match=r"train\.csv: is a pipe or a device, .* make a file of it first"):
        init_yaml(tmp_path / "train.csv", tmp_path / "new.yaml")


FILES = {
    "mood.csv": ("text,label\n" + "a fine film,good\nan awful one,bad\n" * 20, ["label"], []),
    "kinds.jsonl": ('{"text": "a b", "labels": ["x"]}\n{"text": "c", "labels": ["x", "y"]}\n' * 10, ["label"], []),
    "train.conll": ("Ada\tB-PER\nmet\tO\nBob\tB-PER\n\n" * 20, ["crf"], ["words"]),
    "length.csv": ("text,length\n" + "".join(f"a text of {i},{i % 7}.5\n" for i in range(40)), ["score"], []),
}


@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_is_named_once_and_fine_tuned_on_any_task_of_an_encoder(name: str, tmp_path: Path) -> None:
    content, heads, further = FILES[name]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_text(content, encoding="utf-8")
    folder = checkpoint(tmp_path / "my-bert", "bert", ["a fine film, an awful one, Ada met Bob"] * 4)
    path = init_yaml(tmp_path / "data" / name, tmp_path / "new.yaml", checkpoint=str(folder))
    text = path.read_text(encoding="utf-8")
    assert text.count("my-bert") == 1
    made = config.load(path)
    assert [head.use for head in made.head] == heads
    (source,) = made.inputs
    assert [stage.use for stage in source.encoder] == ["pretrained", *further]
    assert source.tokenizer is not None
    assert source.encoder[0].options["checkpoint"] == source.tokenizer.options["checkpoint"] == folder
    assert made.train.epochs >= 40


def test_a_checkpoint_that_cannot_be_fine_tuned_for_the_data_is_refused(tmp_path: Path) -> None:
    data, out = tmp_path / "train.tsv", tmp_path / "new.yaml"
    data.write_text("".join(f"word {i} is read\tand another {i} written\n" for i in range(30)), encoding="utf-8")
    with pytest.raises(UsageError, match="for labels, tags, numbers and answers; leave --checkpoint out"):
        init_yaml(data, out, task="seq2seq", checkpoint="my-bert")
    data = tmp_path / "mood.csv"
    data.write_text(FILES["mood.csv"][0], encoding="utf-8")
    with pytest.raises(UsageError, match="no such folder"):
        init_yaml(data, out, checkpoint=str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no config\.json"):
        init_yaml(data, out, checkpoint=str(tmp_path / "empty"))
    folder = decoder(tmp_path / "gpt2", "gpt2", ["a b c"])
    with pytest.raises(DataError, match="GPT2LMHeadModel writes text; choose the checkpoint of an encoder"):
        init_yaml(data, out, checkpoint=str(folder))
    assert not out.exists()
