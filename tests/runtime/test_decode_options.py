"""Decode options as a caller gives them, and as the graph takes them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import WhitespaceSplit

from seqpipe.answers.registry import MultiHead
from seqpipe.answers.text import Text
from seqpipe.errors import UsageError
from seqpipe.features.document import Doc
from seqpipe.features.vocabulary import word_level
from seqpipe.runtime.decode_options import option_arrays, random_numbers, resolve_options

OPTIONS: dict[str, dict[str, Any]] = {
    "beams": {"type": "size", "default": 5, "minimum": 1, "maximum": 100},
    "n_best": {"type": "size", "default": 1, "minimum": 1, "maximum": 100},
    "penalty": {"type": "float", "default": 0.5, "minimum": 0, "maximum": None},
    "steps": {"type": "int", "default": 9},
    "greedy": {"type": "bool", "default": False},
}


def test_options_become_inputs_and_a_size_the_length_of_one() -> None:
    arrays = option_arrays(OPTIONS, {"beams": 7, "penalty": 2})
    assert {name: array.shape for name, array in arrays.items()} == {
        "beams": (7,),
        "n_best": (1,),
        "penalty": (),
        "steps": (),
        "greedy": (),
    }
    assert [array.dtype for array in arrays.values()] == [np.int64, np.int64, np.float32, np.int64, np.bool_]
    assert (arrays["penalty"], arrays["steps"], arrays["greedy"]) == (2.0, 9, False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
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
    ],
)
def test_a_wrong_option_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        option_arrays(OPTIONS, given)


def test_without_options_there_are_none() -> None:
    assert option_arrays({}, {}) == {}
    with pytest.raises(UsageError, match=r"there is: none"):
        option_arrays({}, {"beams": 1})


WRITER: dict[str, dict[str, Any]] = {
    "beams": {"type": "size", "default": 1, "minimum": 1, "maximum": 100},
    "max_length": {"type": "size", "default": 20, "minimum": 1, "maximum": 100},
    "min_length": {"type": "int", "default": 0, "minimum": 0, "maximum": None},
    "prefix": {"type": "tokens", "default": None},
    "forbidden": {"type": "tokens", "default": None},
    "uniform": {"type": "uniform", "default": None},
    "temperature": {"type": "float", "default": 1.0, "minimum": 0, "maximum": None},
}


def text() -> Text:
    words = word_level([["new"] * 3 + ["york"] * 2 + ["bern"]], normalizer=NFC(), splitter=WhitespaceSplit())
    return Text(words)


def docs(*texts: str) -> list[Doc]:
    return [Doc(one, one.split(), [], []) for one in texts]


def test_tokens_are_given_as_a_text_a_list_or_ids() -> None:
    for given in ("new york", ["new", "york"], [4, 5]):
        assert resolve_options(WRITER, {"prefix": given}, text()).arrays["prefix"].tolist() == [[4, 5]]
    arrays = resolve_options(WRITER, {}).arrays
    assert arrays["prefix"].shape == arrays["forbidden"].shape == (1, 0)
    assert arrays["uniform"].shape == (1, 1, 0)


def test_tokens_of_one_of_several_heads_are_its_own() -> None:
    known = {f"title.{name}": option for name, option in WRITER.items()}
    found = resolve_options(known, {"title.forbidden": ["bern"], "title.seed": 3}, MultiHead({"title": text()}))
    assert found.arrays["title.forbidden"].tolist() == [[6]]
    assert found.of(docs("a", "b"))["title.uniform"].shape == (2, 1, 20)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"prefix": "new zurich"},
            r"prefix: 'zurich' is not a token of the target vocabulary, .*; .* \('new zurich'\)",
        ),
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
        ({"seed": -1}, "seed: must be a whole number from 0, not -1"),
        ({"seed": 1.5}, "seed: must be a whole number from 0, not 1.5"),
        ({"uniform": 3}, "uniform: samples are generated from a seed; give a whole number as seed"),
    ],
)
def test_what_cannot_be_written_so_is_told(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_options(WRITER, given, text())


@pytest.mark.parametrize(
    ("known", "value", "message"),
    [
        (
            {"type": "int", "minimum": 0},
            2**63,
            "n: 9223372036854775808 is more than the graph's numbers hold; choose a smaller",
        ),
        ({"type": "float", "minimum": 0}, 1e39, r"n: 1e\+39 is more than the graph's numbers hold"),
        ({"type": "float", "minimum": 0}, float("inf"), "n: inf is more than the graph's numbers hold"),
        (
            {"type": "float", "minimum": 5e-324, "maximum": 1, "exclusive_minimum": 0},
            0,
            "n: 0 is not above 0 and at most 1",
        ),
        (
            {"type": "float", "minimum": 5e-324, "maximum": 1, "exclusive_minimum": 0},
            1.5,
            "n: 1.5 is not above 0 and at most 1",
        ),
        ({"type": "float", "minimum": 0, "maximum": 1}, -0.5, "n: -0.5 is not between 0 and 1"),
    ],
)
def test_bounds_are_told_as_a_person_would(known: dict[str, Any], value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_options({"n": {"default": 1} | known}, {"n": value})


def test_the_unknown_token_may_be_named_and_not_written() -> None:
    for given in ([1], ["[UNK]"]):
        assert resolve_options(WRITER, {"forbidden": given}, text()).arrays["forbidden"].tolist() == [[1]]


def test_a_head_without_max_length_has_a_number_for_each_token_of_the_longest_text_and_its_end() -> None:
    known = {name: option for name, option in WRITER.items() if name not in ("max_length", "min_length")}
    some = [Doc("", ["a"], [], [4]), Doc("", ["a", "b", "c"], [], [4, 5, 6])]
    made = resolve_options(known, {"seed": 7, "beams": 2}).of(some)["uniform"]
    assert made.shape == (2, 2, 4)
    assert np.array_equal(made[0], random_numbers(7, some[0], 2, 4))
    alone = {name: known[name] for name in ("uniform",)}
    assert resolve_options(alone, {"seed": 7}).of(some)["uniform"].shape == (2, 1, 4)


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
    mixed = first.of(docs("a b", "c", "a b"))["uniform"]
    assert mixed.shape == (3, 4, 20)
    assert np.array_equal(mixed[0], mixed[2])
    assert np.array_equal(mixed[1:2], first.of(docs("c"))["uniform"])
    assert np.array_equal(
        mixed[:, :2, :9],
        resolve_options(WRITER, {"seed": 1, "beams": 2, "max_length": 9}).of(docs("a b", "c", "a b"))["uniform"],
    )
    assert not np.array_equal(mixed, second.of(docs("a b", "c", "a b"))["uniform"])
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
