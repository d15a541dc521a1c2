"""YAML is read as written, with its places, and nothing dangerous or surprising gets through."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seqpipe.config import yaml
from seqpipe.config.yaml import Spot, dump, format_value, parse_tree, scalar
from seqpipe.errors import ConfigError


def read(text: str | bytes) -> object:
    return parse_tree(text if isinstance(text, bytes) else text.encode(), "f.yaml").data


def messages_of(text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value)


WORDS = {"true": True, "False": False, "null": None, "~": None, "'3'": "3", '"true"': "true"}
WHOLE_NUMBERS = {"3": 3, "-3": -3, "+3": 3, "0": 0, "0x1F": 31, "0o17": 15, "9223372036854775807": 2**63 - 1}
FRACTIONS = {"1e-3": 0.001, "1.e-3": 0.001, "1E3": 1000.0, ".5": 0.5, "-.5": -0.5, "3.": 3.0, "0.10": 0.1}
INFINITIES = {".inf": math.inf, "-.Inf": -math.inf}
TRUTH_VALUES_OF_YAML_1_1 = ["no", "off", "Yes", "on", "y"]
NUMBERS_OF_YAML_1_1 = ["1_000", "12:30:45", "0b101", "2020-01-01", "1.2.3", "=", "e3", "."]
TEXTS = {text: text for text in TRUTH_VALUES_OF_YAML_1_1 + NUMBERS_OF_YAML_1_1}


@pytest.mark.parametrize(("text", "value"), (WORDS | WHOLE_NUMBERS | FRACTIONS | INFINITIES | TEXTS).items())
def test_words_and_numbers_mean_what_yaml_1_2_says(text: str, value: object) -> None:
    values = read(f"[{text}, x]")
    assert values == [value, "x"]
    assert type(values[0]) is type(value)


def test_nan_is_a_number() -> None:
    assert math.isnan(scalar(".nan"))


def test_every_key_and_value_has_its_place() -> None:
    tree = parse_tree(b"train:\n  lr: 3\nembedding:\n- {use: a, dim: 5}\n- b\n", "f.yaml")
    assert tree.keys[("train", "lr")] == Spot("f.yaml", 2, 3)
    assert tree.values[("train", "lr")] == Spot("f.yaml", 2, 7)
    assert tree.keys[("embedding", 0, "dim")] == Spot("f.yaml", 4, 12)
    assert tree.values[("embedding", 0, "dim")] == Spot("f.yaml", 4, 17)
    assert tree.values[("embedding", 1)] == Spot("f.yaml", 5, 3)
    assert tree.values[()] == Spot("f.yaml", 1, 1)
    assert tree.spot(("train", "nothing")) == Spot("f.yaml", 1, 1)


def test_places_count_code_points_and_every_kind_of_line_end_and_no_byte_order_mark() -> None:
    tree = parse_tree("\ufeffa: 'é😀'\r\nb: {é: 1, x: 2}\r\n".encode(), "f")
    assert (tree.keys[("a",)], tree.keys[("b", "x")]) == (Spot("f", 1, 1), Spot("f", 2, 11))
    assert tree.data == {"a": "é😀", "b": {"é": 1, "x": 2}}


def test_block_text_and_explicit_keys_are_read() -> None:
    assert read("a: |\n  x\n  y\nb: >\n  x\n  y\n? c\n: z\n") == {"a": "x\ny\n", "b": "x y\n", "c": "z"}
    assert read("%YAML 1.2\n---\na: 1\n...\n") == {"a": 1}


def test_all_problems_are_reported_at_once() -> None:
    text = "a: 012\nb: !x 3\nc: &q 4\nd: *q\ne: 1\ne: 2\n1: 3\n? [a]\n: !y 3\n<<: 4\n"
    assert [line.split(": ")[0] for line in messages_of(text).splitlines()] == [
        f"f.yaml:{place}" for place in ("1:4", "2:4", "3:4", "4:4", "6:1", "7:1", "8:3", "9:3", "10:1")
    ]


def test_problems_before_a_syntax_error_are_reported_with_it() -> None:
    problems = messages_of("a: 012\na: 1\nb: [\n").splitlines()
    assert len(problems) == 3
    assert "a bracket still open" in problems[-1]


def test_the_first_of_two_equal_keys_counts() -> None:
    tree, problems = yaml.read_tree(b"a: {x: 1}\na: {x: 2, y: 3}\n", "f")
    assert tree.data == {"a": {"x": 1}}
    assert tree.values[("a", "x")] == Spot("f", 1, 8)
    assert [p.line for p in problems] == [2]


HOSTILE = [
    *(opening * 30_000 for opening in ("[", "{", "- ", "? ", "[a,", "{a: ", "a: [", "[{")),
    *("".join(f"{' ' * depth}a:\n" for depth in range(1000)), "&a [*a, *a]\n", "!!set {a}\n"),
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:6])
@pytest.mark.timeout(60)  # PyYAML's own composer takes a minute, or the process down
def test_a_hostile_file_ends_in_a_problem(text: str) -> None:
    messages_of(text)


def test_forty_deep_is_read_and_forty_one_is_not() -> None:
    for opening, closing in (("[", "]"), ("{a: ", "}")):
        read(opening * 40 + "1" + closing * 40)
        assert "40 deep" in messages_of(opening * 41 + "1" + closing * 41)
    read("- " * 40 + "1")
    assert "40 deep" in messages_of("- " * 41 + "1")


def test_a_million_bytes_and_fifty_thousand_values_are_the_limits() -> None:
    read("a: 1\n#" + "x" * 999_994)
    assert "at most 1,000,000" in messages_of("a: 1\n#" + "x" * 999_995)
    assert "more than 50,000 values" in messages_of("[" + "1," * 60_000 + "]")


OVERRIDES = {"3": 3, "": None, "null": None, "1e-3": 0.001, "[1, 2]": [1, 2]}
MAPPINGS = {"{use: crf, n: [1]}": {"use": "crf", "n": [1]}}
PLAIN_TEXTS = {text: text for text in ("x", "no", "a/b.txt", "C:\\x", "é")}
QUOTED_TEXTS = {"'[1]'": "[1]", "' '": " ", '"\\t"': "\t", "''": ""}


@pytest.mark.parametrize(("text", "value"), (OVERRIDES | MAPPINGS | PLAIN_TEXTS | QUOTED_TEXTS).items())
def test_the_value_of_an_override_is_yaml(text: str, value: object) -> None:
    assert scalar(text) == value


@pytest.mark.parametrize(
    "text", ["a: b", "- a", "-", "#", "\t", "*a", "&a b", "!x y", "[", "'", "012", "a\n---\nb", "\x00", "\udcff", "@a"]
)
def test_text_that_is_not_one_value_is_refused_without_a_place(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scalar(text, "--set a=b")
    assert {(p.file, p.line, p.column) for p in caught.value.problems} == {("--set a=b", 0, 0)}


def test_a_blank_is_not_a_value() -> None:
    with pytest.raises(ConfigError, match="the file is empty"):
        scalar(" ")


AMBIGUOUS = ["1e-3", "0o17", "no", "~", "012", "=", "<<", "'", '"', "-", "%a", "1_0", ".inf", "0x1"]
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [*AMBIGUOUS, "", " ", ": ", "# x", "? x", "\x85", "\u2028", "\ufeff"]
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(plain.filter(lambda value: isinstance(value, (list, dict))))
@example(["1e-3", "0o17", 1e-05, 1e20, -0.0, "\ufeff", "a" * 300, "x y " * 60])
@example({"<<": 1, "~": 2, "1": 3, "true": 4})
def test_what_is_dumped_is_read_as_the_same(value: object) -> None:
    assert repr(read(dump(value))) == repr(value)


def test_a_list_that_occurs_twice_is_dumped_twice() -> None:
    shared = [1]
    assert read(dump({"a": shared, "b": shared})) == {"a": [1], "b": [1]}


def test_values_are_shown_short() -> None:
    values = {"null": None, "true": True, "3": 3, "'x'": "x", "[1, a]": [1, "a"], "{a: 1}": {"a": 1}, ".inf": math.inf}
    assert [format_value(value) for value in values.values()] == [*values]
    assert format_value(0.001) == "0.001"
    assert format_value("x" * 100) == f"'{'x' * 56}…'"
    assert (format_value(["x" * 100]), format_value({"a": list(range(100))})) == ("a list", "a mapping")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | st.text("[]{}:,-?&*!|>'\"%@` \t\n#ab01.~<=\\", max_size=60).map(str.encode))
def test_any_bytes_are_a_tree_or_problems(data: bytes) -> None:
    try:
        parse_tree(data, "f")
    except ConfigError as error:
        problems = error.problems
    else:
        return
    assert problems
    assert all(p.line >= 1 and p.column >= 1 and p.message for p in problems)
