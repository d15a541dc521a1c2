"""Decode options as a caller gives them, as the graph takes them, and as JSON Schema describes them."""

import contextlib
import hashlib
from typing import Annotated, Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import WhitespaceSplit

from seqpipe.answers.registry import MultiHead
from seqpipe.answers.text import Text
from seqpipe.commands.options import parse_decode_options
from seqpipe.config.contract import decode_options
from seqpipe.errors import UsageError
from seqpipe.export.graph import example_options
from seqpipe.export.parity.decisions import Trials
from seqpipe.features.document import Doc
from seqpipe.features.vocabulary import word_level
from seqpipe.runtime.decode_options import (
    describe_options,
    option_arrays,
    option_schemas,
    options_of,
    random_numbers,
    resolve_options,
)
from seqpipe.types import OPTION_TYPES, OptionType, Size

SIZE = {"type": "size", "minimum": 1, "maximum": 100}
FLOAT = {"type": "float", "minimum": 0, "maximum": None}
PROBABILITY = {"type": "float", "minimum": 5e-324, "maximum": 1, "exclusive_minimum": 0}
UNIFORM = {"type": "uniform", "default": None}
OPTIONS: dict[str, dict[str, Any]] = {
    "beams": {**SIZE, "default": 5},
    "n_best": {**SIZE, "default": 1},
    "penalty": {**FLOAT, "default": 0.5},
    "steps": {"type": "int", "default": 9, "minimum": None, "maximum": None},
    "greedy": {"type": "bool", "default": False, "minimum": None, "maximum": None},
    "max_length": {**SIZE, "default": 20, "maximum": None},
    "top_p": {**PROBABILITY, "default": 1.0},
}
KNOWN = {**OPTIONS, "uniform": UNIFORM, "many.uniform": UNIFORM}
WRITER: dict[str, dict[str, Any]] = {
    "beams": {**SIZE, "default": 1},
    "max_length": {**SIZE, "default": 20},
    "min_length": {"type": "int", "default": 0, "minimum": 0, "maximum": None},
    "prefix": {"type": "tokens", "default": None},
    "forbidden": {"type": "tokens", "default": None},
    "uniform": UNIFORM,
    "temperature": {**FLOAT, "default": 1.0},
}
TEXT = Text(word_level([["new"] * 3 + ["york"] * 2 + ["bern"]], normalizer=NFC(), splitter=WhitespaceSplit()))


def test_options_become_inputs_and_a_size_the_length_of_one() -> None:
    arrays = option_arrays(OPTIONS, {"beams": 7, "penalty": 2})
    assert [*arrays] == [*OPTIONS]
    assert [array.shape for array in arrays.values()] == [(7,), (1,), (), (), (), (20,), ()]
    dtypes = [np.int64, np.int64, np.float32, np.int64, np.bool_, np.int64, np.float32]
    assert [array.dtype for array in arrays.values()] == dtypes
    assert (arrays["penalty"], arrays["steps"], arrays["greedy"]) == (2.0, 9, False)


WRONG_OPTIONS = [
    ({"beam": 3}, r"no decode option 'beam'; did you mean 'beams'\? \(there is: beams, n_best, penalty"),
    ({"beams": 0}, "beams: 0 is not between 1 and 100"),
    ({"beams": 101}, "beams: 101 is not between"),
    ({"beams": 2.0}, "beams: must be int, not 2.0"),
    ({"beams": True}, "beams: must be int, not True"),
    ({"beams": "3"}, "beams: must be int, not '3'"),
    ({"penalty": float("nan")}, "penalty: nan is not at least 0"),
    ({"penalty": False}, "penalty: must be float, not False"),
    ({"greedy": 1}, "greedy: must be bool, not 1"),
    ({"n_best": 6}, "n_best: 6 answers need as many beams; beams is 5"),
]


@pytest.mark.parametrize(("values", "message"), WRONG_OPTIONS)
def test_a_wrong_option_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        option_arrays(OPTIONS, values)


def test_without_options_there_are_none() -> None:
    assert option_arrays({}, {}) == {}
    with pytest.raises(UsageError, match=r"there is: none"):
        option_arrays({}, {"beams": 1})


def docs(*texts: str) -> list[Doc]:
    return [Doc(text, text.split(), [], []) for text in texts]


def test_tokens_are_a_text_a_list_or_ids() -> None:
    for tokens in ("new york", ["new", "york"], [4, 5]):
        assert resolve_options(WRITER, {"prefix": tokens}, TEXT).arrays["prefix"].tolist() == [[4, 5]]
    for tokens in ([1], ["[UNK]"]):  # the unknown token may be named, not written
        assert resolve_options(WRITER, {"forbidden": tokens}, TEXT).arrays["forbidden"].tolist() == [[1]]
    arrays = resolve_options(WRITER, {}).arrays
    assert arrays["prefix"].shape == arrays["forbidden"].shape == (1, 0)
    assert arrays["uniform"].shape == (1, 1, 0)


def test_tokens_of_one_of_several_heads_are_its_own() -> None:
    known = {f"title.{name}": option for name, option in WRITER.items()}
    resolved = resolve_options(known, {"title.forbidden": ["bern"], "title.seed": 3}, MultiHead({"title": TEXT}))
    assert resolved.arrays["title.forbidden"].tolist() == [[6]]
    assert resolved.of(docs("a", "b"))["title.uniform"].shape == (2, 1, 20)


IMPOSSIBLE_OPTIONS = [
    ({"prefix": "new zurich"}, r"prefix: 'zurich' is not a token of the target vocabulary, .* \('new zurich'\)"),
    ({"prefix": "\ud800"}, r"prefix: '\\ud800' is not a token of the target vocabulary"),
    ({"prefix": [4, 7]}, "prefix: 7 is not a token of the target vocabulary, which has 7; choose others"),
    ({"prefix": [-1]}, "prefix: -1 is not a token"),
    ({"prefix": [True]}, "prefix: True is not a token"),
    ({"prefix": ["new", "[EOS]"]}, r"prefix: '\[EOS\]' cannot occur in a text; leave it out"),
    ({"forbidden": [0]}, "forbidden: 0 cannot occur in a text"),
    ({"forbidden": ["zurich"]}, "forbidden: 'zurich' is not a token of the target vocabulary"),
    ({"prefix": 3}, "prefix: must be a text, a list of tokens, or a list of their ids, not 3"),
    ({"prefix": "new york", "max_length": 2}, "prefix: 2 tokens leave nothing to generate of max_length 2"),
    ({"min_length": 20}, "min_length: 20 tokens and an end exceed max_length 20"),
    ({"min_length": -1}, "min_length: -1 is not at least 0"),
    ({"beams": 0}, "beams: 0 is not between 1 and 100"),
    ({"temperature": 0.5}, "temperature: it has an effect only with sampling: give seed too"),
    ({"seed": -1}, "seed: -1 is not at least 0"),
    ({"seed": 1.5}, "seed: must be int, not 1.5"),
    ({"uniform": 3}, r"no decode option 'uniform' \(there is: .*seed"),
]


@pytest.mark.parametrize(("values", "message"), IMPOSSIBLE_OPTIONS)
def test_options_that_no_text_can_meet_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_options(WRITER, values, TEXT)


OUT_OF_BOUNDS = [
    ({"type": "int", "minimum": 0}, 2**63, "n: 9223372036854775808 is more than the graph's numbers hold"),
    (FLOAT, 1e39, r"n: 1e\+39 is more than the graph's numbers hold"),
    (FLOAT, float("inf"), "n: inf is more than the graph's numbers hold"),
    (PROBABILITY, 0, "n: 0 is not above 0 and at most 1"),
    (PROBABILITY, 1.5, "n: 1.5 is not above 0 and at most 1"),
    ({**FLOAT, "maximum": 1}, -0.5, "n: -0.5 is not between 0 and 1"),
]


@pytest.mark.parametrize(("known", "value", "message"), OUT_OF_BOUNDS)
def test_messages_state_bounds_in_words(known: dict[str, Any], value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_options({"n": {"default": 1} | known}, {"n": value})


def test_a_head_without_max_length_has_a_number_for_each_token_of_the_longest_text_and_its_end() -> None:
    known = {name: option for name, option in WRITER.items() if name not in ("max_length", "min_length")}
    texts = [Doc("", ["a"], [], [4]), Doc("", ["a", "b", "c"], [], [4, 5, 6])]
    samples = resolve_options(known, {"seed": 7, "beams": 2}).of(texts)["uniform"]
    assert samples.shape == (2, 2, 4)
    assert np.array_equal(samples[0], random_numbers(7, texts[0], 2, 4))
    assert resolve_options({"uniform": UNIFORM}, {"seed": 7}).of(texts)["uniform"].shape == (2, 1, 4)


def test_random_numbers_are_those_of_the_page() -> None:
    (doc,) = docs("Wake me")
    made = random_numbers(7, doc, 3, 21)
    assert made.dtype == np.float32
    for k, t in ((0, 0), (2, 7), (1, 8), (2, 20)):
        digest = hashlib.sha256(f"7 {k} {t // 8}\nWake\nme".encode()).digest()
        word = int.from_bytes(digest[4 * (t % 8) : 4 * (t % 8) + 4], "little")
        assert made[k, t] == (word >> 8) / 2**24


def test_random_numbers_hang_on_the_seed_and_the_text_alone() -> None:
    first, second = (resolve_options(WRITER, {"seed": seed, "beams": 4}) for seed in (1, 2))
    texts = docs("a b", "c", "a b")
    mixed = first.of(texts)["uniform"]
    assert mixed.shape == (3, 4, 20)
    assert np.array_equal(mixed[0], mixed[2])
    assert np.array_equal(mixed[1:2], first.of(docs("c"))["uniform"])
    fewer = resolve_options(WRITER, {"seed": 1, "beams": 2, "max_length": 9}).of(texts)["uniform"]
    assert np.array_equal(mixed[:, :2, :9], fewer)
    assert not np.array_equal(mixed, second.of(texts)["uniform"])
    assert len(np.unique(mixed[:2])) == mixed[:2].size


def test_random_numbers_are_even_and_below_one() -> None:
    many = np.stack([random_numbers(0, doc, 10, 100) for doc in docs(*map(str, range(40)))])
    assert many.min() >= 0
    assert many.max() < 1
    assert np.abs(np.histogram(many, 10, (0, 1))[0] / many.size - 0.1).max() < 0.01


def test_the_tokens_that_may_be_written_are_those_of_all_beams_and_heads() -> None:
    size = {"type": "size", "minimum": 1, "maximum": 1_000}

    def written(values: dict[str, int], **defaults: int) -> list[int]:
        known = {name.replace("__", "."): {**size, "default": default} for name, default in defaults.items()}
        return [resolve_options(known, values).written(read) for read in (0, 7)]

    assert written({}, bias=3) == [0, 0]
    assert written({}, n_best=1) == [0, 0]
    assert written({"n_best": 4}, n_best=1) == [0, 21]  # of a head whose answers are as long as their sources
    assert written({"beams": 4}, beams=1) == [0, 21]
    assert written({}, max_length=100) == [100, 100]
    assert written({"beams": 5, "n_best": 2}, max_length=100, beams=1, n_best=1) == [500, 500]
    assert written({"a.beams": 5, "b.n_best": 2}, a__max_length=100, a__beams=1, b__n_best=1) == [500, 507]


# JSON Schema


VALUES = (0, 1, 2, 100, 101, -1, 1_000_000, 1_000_001, 0.0, 0.5, 1.0, 1.5, -0.5, True, False, "a", [1])


def test_every_option_has_a_schema_and_random_numbers_that_of_their_seed() -> None:
    schemas = option_schemas(KNOWN)
    assert [*schemas] == [*OPTIONS, "seed", "many.seed"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
        assert Draft202012Validator(schema).is_valid(schema["default"])
    assert schemas["top_p"]["exclusiveMinimum"] == 0


def test_a_description_reaches_callers_with_the_form_of_the_value() -> None:
    known = {
        "beams": {**KNOWN["beams"], "description": "Beam size."},
        "stop": {"type": "texts", "default": None, "description": "Texts before which the answer ends."},
        "uniform": {**UNIFORM, "description": "Random numbers."},
        "n_best": {"type": "ranking", "default": 1, "minimum": 1, "maximum": 3},
    }
    schemas, options = option_schemas(known), describe_options(known)
    assert schemas["beams"]["description"] == options["beams"]["description"] == "Beam size."
    assert options["stop"]["description"] == "Texts before which the answer ends. A text, or a list of texts."
    assert options["seed"]["description"].startswith("Random seed")
    assert (options["n_best"]["const"], "description" in options["n_best"]) == ("all", False)


@pytest.mark.parametrize("name", [*OPTIONS, "seed"])
def test_a_schema_allows_just_the_values_that_its_option_does(name: str) -> None:
    schema = Draft202012Validator(option_schemas(KNOWN)[name])
    allowed = []
    for value in VALUES:
        with contextlib.suppress(UsageError):
            resolve_options(KNOWN, {"seed": 1, "beams": 100, name: value})
            allowed.append(value)
    # JSON Schema counts 1.0 among the integers, options do not.
    whole = {"beams", "n_best", "max_length", "steps", "seed"}
    fitting = [value for value in VALUES if schema.is_valid(value) and not (name in whole and type(value) is float)]
    assert [repr(value) for value in fitting] == [repr(value) for value in allowed]
    assert 0 < len(allowed) < len(VALUES)


def test_tokens_are_a_text_a_list_or_nothing_in_a_schema() -> None:
    schema = Draft202012Validator(option_schemas({"stop": {"type": "tokens", "default": None}})["stop"])
    assert [schema.is_valid(value) for value in ("a b", ["a", 7], None, 3, [1.5])] == [True, True, True, False, False]


def test_a_new_type_of_options_is_an_entry_of_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    # Texts whose tokens the answer kind gives as in the table; at most as many as a text has.
    endings = OptionType(
        "endings",
        {"type": "string"},
        axes=("rows", "endings"),
        read=lambda kind, name, texts, least, longest: kind.token_ids(name, " ".join(texts))[:longest],
    )
    monkeypatch.setitem(OPTION_TYPES, "endings", endings)

    class Head:
        def decide(self, *, end: Annotated[Any, endings] = None, max_length: Size = 3) -> None: ...

    known = {name: option.manifest() for name, option in decode_options(Head).items()}
    assert known["end"] == {"type": "endings", "default": None, "minimum": None, "maximum": None}
    assert resolve_options(known, {"end": ["new", "york"]}, TEXT).arrays["end"].tolist() == [[4, 5]]
    assert resolve_options(known, {"end": ["new", "york"], "max_length": 1}, TEXT).arrays["end"].tolist() == [[4]]
    assert resolve_options(known, {}, TEXT).arrays["end"].shape == option_arrays(known, {})["end"].shape == (1, 0)
    assert option_schemas(known)["end"] == {"type": "string", "default": None}
    assert describe_options(known)["end"]["type"] == "endings"
    assert options_of({"end": "7"}, {"end": {"field": "end"}}, known) == {"end": "7"}
    assert parse_decode_options(["end=7", "max_length=7"], {}, known) == {"end": "7", "max_length": 7}
    arrays, axes = example_options(known)
    assert (arrays["end"].ndim, axes[0]) == (2, {0: "end_rows", 1: "end_endings"})
    assert {"end": [4], "max_length": 3} in Trials(known, {}).together()
