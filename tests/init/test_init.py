"""Data files of many kinds through `init`: the YAML that it writes is checked, and its reader reads the file."""

import gzip
import json
import os
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from data_files import init_config, write_files
from tiny_checkpoints import checkpoint, decoder

from seqpipe.config import yaml
from seqpipe.config.loader import Config, load_config
from seqpipe.config.signature import construct
from seqpipe.errors import DataError, UsageError
from seqpipe.init import init_yaml
from seqpipe.init.summary import DataSummary
from seqpipe.init.yaml import model_yaml

SENTENCES = ["Anna Meier calls Bern", "New York is far", "Ben Bern Zug", "it rains"]
TAGS = {
    "IOB2": ["B-person I-person O B-city", "B-city I-city O O", "B-person B-city B-city", "O O"],
    "BIOES": ["B-person E-person O S-city", "B-city E-city O O", "S-person S-city S-city", "O O"],
    "BILOU": ["B-person L-person O U-city", "B-city L-city O O", "U-person U-city U-city", "O O"],
    "IOB1": ["I-person I-person O I-city", "I-city I-city O O", "I-person I-city B-city", "O O"],
}


def conll(line: str = "{0} {1}", scheme: str = "IOB2") -> str:
    """The sentences with their tags, a line for each word."""
    text = ""
    for words, tags in zip(SENTENCES, TAGS[scheme], strict=True):
        text += "".join(line.format(*pair) + "\n" for pair in zip(words.split(), tags.split(), strict=True)) + "\n"
    return text


def jsonl(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def read(config: Config) -> list[dict[str, Any]]:
    reader = config.data.reader
    return list(construct(reader.cls, **reader.options).read(config.data.train))


def stated(config: Config) -> dict[str, Any]:
    """The reader's options that the YAML states."""
    tree: Any = yaml.parse_tree(config.file.read_bytes(), str(config.file)).data
    return {name: value for name, value in tree["data"]["reader"].items() if name != "use"}


def yaml_text(config: Config) -> str:
    return config.file.read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", TAGS)
@pytest.mark.parametrize("line", ["{0} {1}", "{0}\t{1}", "{0} NN {1}"])
def test_the_scheme_of_a_column_file_is_recognised(line: str, scheme: str, tmp_path: Path) -> None:
    config = init_config(tmp_path, conll(line, scheme), "train.conll")
    assert stated(config) == ({} if scheme == "IOB2" else {"scheme": scheme})
    assert [record["tags"] for record in read(config)][2] == ["B-person", "B-city", "B-city"]
    assert config.inputs[0].tokenizer.use == "words"
    assert config.head[0].options["scheme"] == "BIOES"
    first, second, *_ = yaml_text(config).splitlines()
    assert first == "# yaml-language-server: $schema=schema.json"
    assert "seqpipe schema -o schema.json" in second


CHARACTERS = "科技全球经济新闻中心想告诉诸葛欣然一会儿见在北京上海"


def characters_with_positions(form: str) -> str:
    """A file like Weibo's: a character, its position in its word, and a tag."""
    dice, text = random.Random(1), ""
    for _ in range(60):
        for _ in range(dice.randint(2, 12)):
            word = "".join(dice.choices(CHARACTERS, k=dice.randint(1, 3))) if dice.random() < 0.95 else "7，"
            is_entity = dice.choice((False, False, False, True))
            for position, character in enumerate(word):
                tag = f"{'I' if position else 'B'}-PER.NAM" if is_entity else "O"
                text += form.format(character, position) + f"\t{tag}\n"
        text += "\n"
    return text


@pytest.mark.parametrize(("form", "options"), [("{0}{1}", {"pattern": "^(.)", "joiner": ""}), ("{0}", {"joiner": ""})])
def test_positions_of_characters_are_removed_and_characters_joined(form: str, options: dict, tmp_path: Path) -> None:
    config = init_config(tmp_path, characters_with_positions(form), "train.conll")
    assert (stated(config), config.inputs[0].tokenizer.use) == (options, "chars")
    records = read(config)
    assert all(len(word) == 1 for record in records for word in record["words"])
    assert all(record["text"] == "".join(record["words"]) for record in records)
    assert {word for record in records for word in record["words"]} <= {*CHARACTERS, "7", "，"}


@pytest.mark.parametrize("labels", [["sad", "glad", "sad"], [10, 2, 10], ["-", "1: [x", "-"]])
def test_texts_with_a_label_get_the_head_for_it(labels: list[Any], tmp_path: Path) -> None:
    records = [{"text": f"a {label} day", "label": label, "spans": []} for label in labels]
    config = init_config(tmp_path, jsonl(*records), "train.conll")
    assert (config.data.reader.use, stated(config), config.inputs[0].tokenizer.use) == ("jsonl", {}, "words")
    assert (config.head[0].use, config.head[0].common_keys["target"]) == ("label", None)
    text = yaml_text(config)
    assert "# Saw: JSON Lines with the keys text, label, spans.\n# Chose: key 'label' has 2 values in 3 rec" in text
    assert f"# Labels: {labels[0]} 2, {labels[1]} 1\n# Note: texts with one label each.\n" in text
    assert "misaligned" not in text


def test_a_label_of_several_lines_is_one_line_of_its_comment(tmp_path: Path) -> None:
    label = "a\nname: b\u2028c\ud800"
    records = [json.dumps({"text": f"x {n}", "label": name}) for n, name in enumerate((label, label, "y"))]
    config = init_config(tmp_path, "\n".join(records), "train.jsonl")
    assert f"# Labels: {label!a} 2, y 1\n" in yaml_text(config)
    assert config.name == "init"


REVIEWS = [("good food", "pos"), ("a, b; c", "neg"), ("very bad food", "neg"), ("I liked it", "pos")] * 3
DATES = [(f"the {day}th of May, {1990 + day}", f"{1990 + day}-05-{day:02}") for day in range(4, 20)]
PRICES = [(f"{count} nights, {'a good' if count % 3 else 'a bad'} room", count * 37.5) for count in range(2, 30)]
Rows = list[tuple[str, Any]]


def table(rows: Rows, sign: str, header: str = "", order: tuple[int, ...] = (0, 1)) -> str:
    """The rows with their columns in this order; column 2 is their number."""
    lines = [header] if header else []
    for number, row in enumerate(rows):
        cells = [str((*row, number)[i]) for i in order]
        lines.append(sign.join(f'"{cell}"' if sign != "\t" and sign in cell else cell for cell in cells))
    return "\n".join(lines) + "\n"


def objects(rows: Rows, key: str) -> str:
    return jsonl(*({"text": text, key: value} for text, value in rows))


COLUMNS = ["text", "label"]
UNNAMED = {"columns": ["_", *COLUMNS], "numbers": ["label"]}
ROOMS = {"text": "room", "numbers": ["where"]}
PAIR = {"columns": ["text", "target"]}
# Rows, name, content, reader, options, and the target if it is not the label.
TABLES: list[tuple[Rows, str, str, str, dict[str, Any], str | None]] = [
    (REVIEWS, "a.csv", table(REVIEWS, ",", "text,label"), "csv", {}, None),
    (REVIEWS, "a.csv", table(REVIEWS, ",", "label,text", (1, 0)), "csv", {}, None),
    (REVIEWS, "a.csv", table(REVIEWS, ",", "id,a,b", (2, 0, 1)), "csv", {"text": "a", "label": "b"}, None),
    (REVIEWS, "a.csv", table(REVIEWS, ","), "csv", {"columns": COLUMNS}, None),
    (REVIEWS, "a.tsv", table(REVIEWS, "\t", "", (1, 2, 0)), "tsv", {"columns": ["label", "_", "text"]}, None),
    (REVIEWS, "a.csv", table(REVIEWS, "\t", "text\tlabel"), "tsv", {}, None),
    (REVIEWS, "a.txt", table(REVIEWS, ",", "text,label"), "csv", {}, None),
    (DATES, "a.tsv", table(DATES, "\t"), "tsv", PAIR, "target"),
    (DATES, "a.csv", table(DATES, ","), "csv", PAIR, "target"),
    (DATES, "a.csv", table(DATES, ",", "spoken,iso"), "csv", {"text": "spoken"}, "iso"),
    (DATES, "a.tsv", table(DATES, "\t", "target\ttext", (1, 0)), "tsv", {}, "target"),
    (DATES, "a.tsv", table(DATES, "\t", "input\ttext"), "tsv", {"text": "input"}, "source_text"),
    (DATES, "a.jsonl", objects(DATES, "target"), "jsonl", {}, "target"),
    (PRICES, "a.csv", table(PRICES, ",", "text,price"), "csv", {"numbers": ["price"]}, "price"),
    (PRICES, "a.csv", table(PRICES, ",", "", (2, 0, 1)), "csv", UNNAMED, "label"),
    (PRICES, "a.tsv", table(PRICES, "\t", "room\twhere"), "tsv", ROOMS, "source_where"),
    (PRICES, "a.jsonl", objects(PRICES, "label"), "jsonl", {}, "label"),
    (PRICES, "a.jsonl", objects(PRICES, "score"), "jsonl", {}, "score"),
]


@pytest.mark.parametrize(("rows", "name", "content", "use", "options", "target"), TABLES, ids=range(len(TABLES)))
def test_labels_texts_and_numbers_are_recognised(
    rows: Rows, name: str, content: str, use: str, options: dict[str, Any], target: str | None, tmp_path: Path
) -> None:
    config = init_config(tmp_path, content, name)
    (head,) = config.head
    assert (config.data.reader.use, stated(config)) == (use, options)
    assert [(record["text"], record[target or "label"]) for record in read(config)] == rows
    if rows is REVIEWS:
        assert head.use == "label"
        assert "# Labels: pos 6, neg 6\n" in yaml_text(config)
    else:
        assert (head.use, head.common_keys["target"]) == ("seq2seq" if rows is DATES else "score", target)
    if rows is DATES:
        assert head.options["attention"] == "additive"
    if rows is PRICES:
        assert f"{target!r}, 75 to 1087.5" in yaml_text(config)


def squad(version: str = "", indent: int | None = None, context: str = "The bus to Lima leaves at ten.") -> str:
    """Two questions on a passage; with a version 2, one of them has no answer."""
    answers = [{"text": "Lima", "answer_start": context.index("Lima")}]
    questions: list[dict[str, Any]] = [{"id": n, "question": "Where to?", "answers": answers} for n in "12"]
    if version:
        questions[1] = {"id": "2", "question": "Who?", "answers": [], "is_impossible": True}
    articles = [{"title": "a", "paragraphs": [{"context": context, "qas": questions}]}]
    return json.dumps({**({"version": version} if version else {}), "data": articles}, indent=indent)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("version", ["", "v2.0"])
def test_questions_on_passages_are_recognised(version: str, indent: int | None, tmp_path: Path) -> None:
    config = init_config(tmp_path, squad(version, indent), "a.json")
    assert (config.data.reader.use, stated(config), config.head[0].use) == ("squad", {}, "answer-span")
    assert config.head[0].options["no_answer"] == bool(version)
    assert config.inputs[0].tokenizer.use == "words"
    assert [record["question"] for record in read(config)] == ["Where to?", "Who?" if version else "Where to?"]
    assert f"questions on passages, {1 if version else 0} without an answer" in yaml_text(config)


@dataclass(frozen=True)
class Case:
    """A file, the choices of `init` for it, a part of the YAML, and a part of the first record."""

    content: str
    name: str = "train.conll"
    use: str = "jsonl"
    options: dict[str, Any] = field(default_factory=dict)
    tokenizer: str = "words"
    head: str = "crf"
    line: str = ""
    first: dict[str, Any] = field(default_factory=dict)


def tagged(words: list[str], tags: list[str]) -> str:
    return jsonl({"words": words, "tags": tags}) * 2


BERN = {"text": "in Bern", "spans": [{"start": 3, "end": 7, "label": "city"}]}
BEIJING = {"text": "在北京", "spans": [{"start": 1, "end": 3, "label": "city"}]}
NOUNS = "the DET\ndog NOUN\nbarks VERB\n\ncats NOUN\n\n"
ILL_FORMED = "in O\nZug I-city\n\n" + conll() * 5 + "is O\nBern I-city\n\n" * 2
BROKEN = "# Note: 3 sentences break IOB2's rules"
POEM = "床前明月光\t疑是地上霜\n举头望明月\t低头思故乡\n白日依山尽\t黄河入海流\n欲穷千里目\t更上一层楼\n"
TRANSLATIONS = "".join(f"the dog sees cat {n}.\tder Hund sieht Katze {n}.\n" for n in range(9))
SQUAD_AS_TEXT = jsonl({"text": '{"data": [{"paragraphs": []}]}', "label": "x"}, {"text": "a", "label": "y"})
# A plural name is that of several labels, even if they are in one list.
PLURALS, SPLIT = ["classes", "genres"], {"separator": ","}
SEVERAL = "".join(f"a text of some words {n}\tx{n % 3},y{n % 3}\n" for n in range(9)) + "another text\tx1\n" * 9
FEW_NUMBERS: Rows = [(text, number % 5) for number, (text, _) in enumerate(PRICES)]
CASES = [
    Case(conll("{0}\t{1}\tnoun\t3"), use="conll", options={"tags": 1}, first={"tags": TAGS["IOB2"][0].split()}),
    Case(NOUNS, use="conll", options={"scheme": "none"}, line="# Tags: NOUN 2, DET 1, VERB 1"),
    Case(ILL_FORMED, "a.conll", "conll", {"ill_formed": "repair"}, line=BROKEN, first={"tags": ["O", "B-city"]}),
    Case(conll() + "A1 O\nB2 O\n\n", use="conll"),  # few words end in digits
    Case("\ufeff" + jsonl(BERN, {"text": "你", "spans": []}, {"text": "a"}), line="# Entities: city 1"),
    Case(jsonl(BEIJING, {"text": "ok", "spans": []}, {"text": "好"}), tokenizer="chars"),
    Case(jsonl(BERN | {"label": "travel"}) * 2),
    Case(jsonl({"words": ["a", "day"], "label": "x"}, {"words": ["b"], "label": "y"}), head="label"),
    Case(SQUAD_AS_TEXT, "a.jsonl", head="label"),
    Case(POEM, "a.tsv", "tsv", PAIR, "chars", "seq2seq", "target_tokenizer: {use: chars}"),
    Case(TRANSLATIONS, "a.tsv", "tsv", PAIR, "words", "seq2seq", "target_tokenizer: {use: words, detokenize: true}"),
    *(Case(f"text\t{name}\n{SEVERAL}", "a.tsv", "tsv", SPLIT | {"labels": name}, head="label") for name in PLURALS),
    Case(table(FEW_NUMBERS, ",", "text,stars"), "a.csv", "csv", {"label": "stars"}, head="label"),
    Case(squad(context="去Lima的公交车"), "a.json", "squad", tokenizer="chars", head="answer-span"),
    Case(tagged(["in", "Bern"], ["O", "B-city"]), first={"text": "in Bern"}),
    Case(tagged(["in", "Bern"], ["O", "S-city"]), options={"scheme": "BIOES"}, first={"text": "in Bern"}),
    Case(tagged(["in", "Bern"], ["ADP", "PROPN"]), options={"scheme": "none"}, first={"tags": ["ADP", "PROPN"]}),
    Case(tagged(["在", "京"], ["O", "B-city"]), options={"joiner": ""}, tokenizer="chars", first={"text": "在京"}),
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_a_file_gets_its_reader_its_tokenizer_and_its_head(case: Case, tmp_path: Path) -> None:
    config = init_config(tmp_path, case.content, case.name)
    assert (config.data.reader.use, stated(config), config.data.misaligned) == (case.use, case.options, "error")
    tokenizer, (head,) = config.inputs[0].tokenizer, config.head
    assert (tokenizer.use, head.use) == (case.tokenizer, case.head)
    if head.use == "crf":
        assert head.options["scheme"] == ("none" if case.options.get("scheme") == "none" else "BIOES")
    if head.use == "seq2seq":
        assert not tokenizer.options.get("fold_digits")
    assert case.line in yaml_text(config)
    assert case.first.items() <= read(config)[0].items()


CONLLU = "# text = a b\n1\ta\t_\t{0}\tX\t_\t_\tdet\t_\t_\n2\tb\t_\t{0}\tY\t_\t_\troot\t_\t_\n\n"


@pytest.mark.parametrize("name", ["a.conllu", "a.txt", "a.conllu.gz"])
@pytest.mark.parametrize(("upos", "options"), [("NOUN", {}), ("_", {"tags": "xpos"})])
def test_universal_dependencies_are_recognised(name: str, upos: str, options: dict[str, Any], tmp_path: Path) -> None:
    content = (CONLLU.format(upos) * 2 + CONLLU.format(upos).replace("NOUN", "DET")).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    config = load_config(init_yaml(tmp_path / name, tmp_path / "init.yaml"))
    assert (config.data.reader.use, stated(config), config.head[0].use) == ("conllu", options, "crf")
    assert config.head[0].options["scheme"] == "none"
    assert len(read(config)) == 3


SPLITS = [
    (("train.conll", "dev.conll", "test.conll"), "dev.conll", "test.conll"),
    (("eng.train", "eng.testa"), None, "eng.testa"),
    (("my-training.tsv", "my-validation.tsv"), "my-validation.tsv", None),
    (("data.conll", "dev.conll"), None, None),
]


@pytest.mark.parametrize(("names", "dev", "test"), SPLITS)
def test_files_named_alike_are_dev_and_test(names: tuple, dev: str | None, test: str | None, tmp_path: Path) -> None:
    write_files(tmp_path, dict.fromkeys(names, conll()))
    data = load_config(init_yaml(tmp_path / names[0], tmp_path / "init.yaml")).data
    assert data.dev == (tmp_path / dev if dev else None)
    assert list(data.tests.values()) == ([tmp_path / test] if test else [])


@pytest.mark.parametrize("stem", ["2024", "1e5", "null", "_x", "été à", "-", "a" * 150])
def test_any_file_name_gives_a_yaml_that_is_valid(stem: str, tmp_path: Path) -> None:
    folder = tmp_path / "a folder: #1, [x]" / ("long " * 30)
    data = write_files(folder, {f"{stem}.conll": conll()}) / f"{stem}.conll"
    assert load_config(init_yaml(data, tmp_path / f"{stem}.yaml")).data.train == data


def test_the_yaml_is_named_after_the_data_or_its_folder(folder: Path) -> None:
    write_files(folder, {"ner/train.conll": conll(), "ner/small.conll": conll()})
    assert init_yaml(Path("ner/train.conll")) == Path("ner.yaml")
    assert init_yaml(Path("ner/small.conll")) == Path("small.yaml")
    with pytest.raises(UsageError, match=r"small\.yaml exists already; name another with --output"):
        init_yaml(Path("ner/small.conll"))


@pytest.mark.parametrize("place", ["pets/train.conll", "pets/data.conll", "pets/data/train.conll.gz"])
def test_a_generic_name_is_never_used(place: str, folder: Path) -> None:
    Path(place).parent.mkdir(parents=True)
    Path(place).write_bytes(gzip.compress(conll().encode()) if place.endswith(".gz") else conll().encode())
    path = init_yaml(Path(place))
    assert (path, load_config(path).name) == (Path("pets.yaml"), "pets")
    assert load_config(init_yaml(Path(place), Path("train.yaml"))).name == "pets"


OPEN_QUOTE = r"train\.csv:2: a quote opens in this line and is not closed; close it"


IDENTIFIERS = "".join(f"u-{n},the {n}th{' of May' * (n % 3)}\n" for n in range(9)).encode()
UNTAGGED = (CONLLU.format("_").replace("\tX", "\t_").replace("det", "_") * 3).encode()
WITHOUT_EXAMPLES = [
    (b"", "is empty; give the file with your training examples"),
    (b"\n \n\n", "is empty"),
    (b"# only\n# comments\n", "is plain text of 18 characters, without labels"),
    (b"one\ntwo\nthree\n", "is a list of 3 words; a language model needs at least 100"),
    (b"Once upon a time\nthere was\na king\n", "a language model needs at least 10,000; to learn labels"),
    (b'{"text": "a"}\n', "one JSON object without a list of objects; write an object on each line"),
    (b'{"text": "a", "label": "x"}\n{"text": "b"}\n', ":2: no 'label' in this object"),
    (b'{"text": "a"}\n{"text": "b", "label": 1}\n', ":1: no 'label' in this object"),
    (b'{"text": "a"}\n{"text": "b", "spans": [[0, 9, "x"]]}\n', ":2: span 1: 0 to 9"),
    (b'{"text": "a b", "labels": ["x"]}\n{"text": "b c"}\n', "every text has the same label, 'x'"),
    (b'{"words": ["a"], "label": "x"}\n{"words": ["b"]}\n', ":2: no 'label' in this object"),
    (b'{"question": "a", "context": "b", "answers": []}\n{"question": "a"}\n', "no '(context|answers)' in this object"),
    (b'{"question": "a", "context": "b", "answers": "b"}\n' * 2, ":1: field 'answers' is str; write"),
    (b'{"text": \n', r"train\.csv:2: this is not JSON"),
    (b"a O\n\xff\xfe O\n", ":2: this line is not UTF-8"),
    (b'{"text": "a", "target": "b"}\n{"text": "c"}\n', ":2: no 'target' in this object; write one in every object"),
    (objects(PRICES, "score").encode() + b'{"text": "a"}\n', ":29: no 'score' in this object"),
    (IDENTIFIERS, "nothing to learn in it: the columns are 1 identifiers, 2 "),
    (UNTAGGED, "words without tags: no column of upos, xpos, deprel is filled"),
    (b'{"text": "a", "label": "x"}\n', "one JSON object without a list of objects"),
    (b'{"text": "a", "label": "x"}\n' * 3, "every text has the same label, 'x'; give examples of at least two"),
    (b"a X\nb X\n\n" * 3, "every word has the same label, 'X'"),
    (b"in O\nBern O\n\n" * 3, "no record has a span; mark what is to be found"),
    (b'{"text": "in Bern", "spans": []}\n' * 3, "nothing to learn in it"),
    (b'{"words": ["1", "2"], "tags": ["O", "B-x"]}\n' * 3, "count 1 2 3 …; write the words themselves"),
    (b'text,label\n"good food,a\nbad,b\nnice,a\n', OPEN_QUOTE),
    (b'text;label\n"good food;a\nbad;b\nnice;a\n', OPEN_QUOTE),
    (b'text,label\n"long ' + b"word " * 30_000 + b"\n", OPEN_QUOTE),
    (b"sentence,kind\n", "is a table of one line; give a table with many rows"),
]


@pytest.mark.parametrize(("content", "message"), WITHOUT_EXAMPLES, ids=range(len(WITHOUT_EXAMPLES)))
def test_a_file_without_examples_to_learn_from_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        init_yaml(tmp_path / "train.csv", tmp_path / "init.yaml")
    assert not (tmp_path / "init.yaml").exists()


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing: there is no such file"):
        init_yaml(tmp_path / "nothing")


def test_a_parquet_table_is_treated_like_json(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = {"review": ["good food", "cold soup", "fine wine", "bad bread"] * 3, "stars": [2, 1, 2, 1] * 3}
    parquet.write_table(pa.table(rows), tmp_path / "reviews.parquet")
    config = load_config(init_yaml(tmp_path / "reviews.parquet", tmp_path / "init.yaml"))
    assert (config.data.reader.use, config.head[0].use) == ("parquet", "label")
    assert stated(config) == {"text": "review", "label": "stars"}
    assert [record["label"] for record in read(config)][:2] == [2, 1]


ENTITY_BATCHES = [
    ({}, "512  # padded"),
    ({"records": 3000}, "1024  # padded"),
    ({"words": 120}, "512  # padded"),
    ({"words": 121}, "256  # padded tokens a batch; few, because entities are rare: 4 in 121 words\n"),
    ({"records": 9000, "words": 300_000}, "256  # padded"),
    ({"words": 121, "unspaced": True}, "512  # padded"),
    ({"words": 121, "label_kind": "Tags"}, "512  # padded"),
]


@pytest.mark.parametrize(("change", "line"), ENTITY_BATCHES)
def test_rare_entities_get_smaller_batches(change: dict[str, Any], line: str) -> None:
    summary = DataSummary("conll", records=20, words=60, labels=Counter({"person": 3, "city": 1}))
    assert f"\n  batch_tokens: {line}" in model_yaml(replace(summary, **change), has_dev=False)


GPU_BATCHES = [
    ("Tags", 9_000_000, 0, "batch_tokens: 1024  # padded tokens a batch"),
    ("Tags", 9_000_000, 80 << 30, "batch_tokens: 16384  # padded tokens a batch; for the GPU of this machine; "),
    ("Tags", 9_000_000, 6 << 30, "batch_tokens: 4096  # padded tokens a batch; "),  # little memory
    ("Tags", 300_000, 80 << 30, "batch_tokens: 2048  # padded tokens a batch; "),  # few steps would be left
    ("Tags", 90_000, 80 << 30, "batch_tokens: 1024  # padded tokens a batch"),
    ("Continuations", 9_000_000, 80 << 30, "batch_size: 128  # for the GPU of this machine; for a CPU 1/16 of it"),
    ("Continuations", 9_000_000, 0, "batch_size: 8"),
]


@pytest.mark.parametrize(("kind", "words", "memory", "line"), GPU_BATCHES)
def test_gpus_get_large_batches(kind: str, words: int, memory: int, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqpipe.init.yaml.gpu_memory", lambda: memory)
    summary = DataSummary("conll", label_kind=kind, records=9000, words=words, characters=5 * words)
    lines = model_yaml(summary, has_dev=False).splitlines()
    (batch,) = (text for text in lines if text.startswith("  batch_"))
    assert batch.startswith(f"  {line}")
    assert ("GPU" in batch) == ("; " in line or "GPU" in line)


@pytest.mark.parametrize("key", [None, "data.all"])
def test_a_large_json_list_is_sampled(key: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqpipe.init.summary.WHOLE_BYTES", 1_000)
    monkeypatch.setattr("seqpipe.init.summary.OBJECTS", 100)
    items = [{"text": f"a day {number}", "label": "yn"[number % 3 > 0], "more": ["x"]} for number in range(1_000)]
    content = json.dumps({"data": {"all": items}} if key else items)
    config = init_config(tmp_path, content, "a.json")
    assert stated(config) == ({"list": key} if key else {})
    assert "about 1,000 records" in yaml_text(config)
    assert "# Labels: n 6" in yaml_text(config)
    with pytest.raises(DataError, match=r"a\.json:1:.*this is not JSON"):
        init_config(tmp_path, content[:-9] + '"x}' + content[-9:], "a.json")


def test_a_large_file_of_an_annotation_tool_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqpipe.init.objects.WHOLE_BYTES", 1_000)
    monkeypatch.setattr("seqpipe.init.objects.OBJECTS", 100)
    values: list[dict[str, Any]] = [{"choices": ["yn"[number % 3 > 0]]} for number in range(1_000)]
    items = [{"data": {"text": "a day"}, "annotations": [{"result": [{"value": value}]}]} for value in values]
    for content in (json.dumps(items), "\n".join(map(json.dumps, items))):
        config = init_config(tmp_path, content, "a.json")
        assert "about 1,001 records" in yaml_text(config)
    values[550] |= {"start": 2, "end": 9, "labels": ["time"]}
    with pytest.raises(DataError, match=r"a\.json:552: .*is empty or not within the text"):
        init_config(tmp_path, json.dumps(items).replace('{"data"', '\n{"data"'), "a.json")


def test_a_pipe_is_refused_and_never_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.csv")
    with pytest.raises(DataError, match=r"train\.csv: is a pipe or a device, .* make a file of it first"):
        init_yaml(tmp_path / "train.csv", tmp_path / "new.yaml")


FILES = {
    "mood.csv": ("text,label\n" + "a fine film,good\nan awful one,bad\n" * 20, "label", []),
    "kinds.jsonl": ('{"text": "a b", "labels": ["x"]}\n{"text": "c", "labels": ["x", "y"]}\n' * 10, "label", []),
    "train.conll": ("Ada\tB-PER\nmet\tO\nBob\tB-PER\n\n" * 20, "crf", ["words"]),
    "length.csv": ("text,length\n" + "".join(f"a text of {i},{i % 7}.5\n" for i in range(40)), "score", []),
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("bert") / "my-bert", "bert", ["a fine film, an awful one"] * 4)


@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_is_named_once_and_fine_tuned_on_any_encoder_task(name: str, bert: Path, tmp_path: Path) -> None:
    content, head, further_encoders = FILES[name]
    config = init_config(tmp_path, content, name, checkpoint=str(bert))
    assert yaml_text(config).count("my-bert") == 1
    assert [stage.use for stage in config.head] == [head]
    (source,) = config.inputs
    assert [stage.use for stage in source.encoder] == ["pretrained", *further_encoders]
    assert source.encoder[0].options["checkpoint"] == source.tokenizer.options["checkpoint"] == bert
    assert config.train.epochs >= 40


def test_a_checkpoint_that_cannot_be_fine_tuned_for_the_data_is_refused(tmp_path: Path) -> None:
    pairs = "".join(f"word {i} is read\tand another {i} written\n" for i in range(30))
    with pytest.raises(UsageError, match="for labels, tags, numbers and answers; leave --checkpoint out"):
        init_config(tmp_path, pairs, "train.tsv", task="seq2seq", checkpoint="my-bert")
    (tmp_path / "empty").mkdir()
    gpt2 = decoder(tmp_path / "gpt2", "gpt2", ["a b c"])
    for folder, error, message in (
        (tmp_path / "none", UsageError, "no such folder"),
        (tmp_path / "empty", DataError, r"no config\.json"),
        (gpt2, DataError, "GPT2LMHeadModel writes text; choose the checkpoint of an encoder"),
    ):
        with pytest.raises(error, match=message):
            init_config(tmp_path, FILES["mood.csv"][0], "mood.csv", checkpoint=str(folder))
    assert not (tmp_path / "init.yaml").exists()
