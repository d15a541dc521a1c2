"""Tag schemes against seqeval, and against the set of every legal sequence, made by laying out spans."""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
from seqeval.metrics.sequence_labeling import get_entities

from seqpipe.answers import tagging_schemes as schemes
from seqpipe.answers.tagging_schemes import Scheme, Span

LABELS = ("PER", "ORG", "PER-x", "LOC.NAM")
PREFIXES = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES"}


def random_tags(scheme: str, seed: int) -> Iterator[list[str]]:
    """5,000 sequences of this scheme's tags in any order, bare prefixes among them."""
    dice = random.Random(f"{scheme} {seed}")
    choices = [f"{p}-{label}" for p in PREFIXES[scheme] for label in LABELS] + ["O"] * 4 + list(PREFIXES[scheme])
    for _ in range(5_000):
        yield dice.choices(choices, k=dice.randint(0, 12))


def seqeval_spans(tags: Sequence[str]) -> list[Span]:
    common = [{"L": "E", "U": "S", "M": "I"}.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    return [(label, first, last + 1) for label, first, last in get_entities(common)]


def disagreements(read: Callable[[Sequence[str]], list[Span]], scheme: str) -> int:
    return sum(read(tags) != seqeval_spans(tags) for tags in random_tags(scheme, seed=1))


@pytest.mark.parametrize("scheme", schemes.SCHEMES)
def test_spans_are_seqevals_for_any_tags(scheme: Scheme) -> None:
    assert disagreements(schemes.spans, scheme) == 0


READERS: dict[str, Callable[[Sequence[str]], list[Span]]] = {
    "without changes of the label": lambda tags: schemes.spans([tag[0] for tag in tags]),
    "without the last word": lambda tags: [(label, a, b - (b == len(tags))) for label, a, b in schemes.spans(tags)],
    "E and S close nothing": lambda tags: schemes.spans([{"E": "I", "S": "B"}.get(t[0], t[0]) + t[1:] for t in tags]),
}


FAULTS = [(scheme, fault) for scheme in schemes.SCHEMES for fault in READERS if fault[0] == "w"]


@pytest.mark.parametrize(("scheme", "fault"), [*FAULTS, ("BIOES", "E and S close nothing")])
def test_the_comparison_with_seqeval_detects_a_faulty_reader(scheme: Scheme, fault: str) -> None:
    assert disagreements(READERS[fault], scheme) > 500


@cache
def layouts(length: int, labels: tuple[str, ...] = ("X", "Y-z")) -> list[list[Span]]:
    """Every way to put labelled spans on so many words."""
    if length == 0:
        return [[]]
    ending_outside = list(layouts(length - 1, labels))
    ending_inside = [
        [*before, (label, start, length)]
        for start in range(length)
        for before in layouts(start, labels)
        for label in labels
    ]
    return ending_outside + ending_inside


def fitting(length: int, scheme: Scheme) -> list[list[Span]]:
    """The layouts that a scheme has tags for: of BMES those without a gap."""
    if scheme != "BMES":
        return layouts(length)
    return [layout for layout in layouts(length) if sum(end - start for _, start, end in layout) == length]


def legal(length: int, scheme: Scheme) -> set[tuple[str, ...]]:
    return {tuple(schemes.to_tags(layout, length, scheme)) for layout in fitting(length, scheme)}


@pytest.mark.parametrize("scheme", schemes.SCHEMES)
def test_spans_come_back_from_their_tags(scheme: Scheme) -> None:
    for length in range(6):
        for layout in fitting(length, scheme):
            assert schemes.from_scheme(schemes.to_tags(layout, length, scheme), scheme) == layout


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("IOB1", "I-A I-A B-A O I-B I-A B-A I-A"),
        ("IOB2", "B-A I-A B-A O B-B B-A B-A I-A"),
        ("BIOES", "B-A E-A S-A O S-B S-A B-A E-A"),
        ("BILOU", "B-A L-A U-A O U-B U-A B-A L-A"),
    ],
)
def test_tags_are_those_written_by_hand(scheme: Scheme, tags: str) -> None:
    spans = [("A", 0, 2), ("A", 2, 3), ("B", 4, 5), ("A", 5, 6), ("A", 6, 8)]
    assert schemes.to_tags(reversed(spans), 8, scheme) == tags.split()
    assert schemes.from_scheme(tags.split(), scheme) == spans
    assert schemes.strict_problem(tags.split(), scheme) is None


@pytest.mark.parametrize("span", [("A", 1, 1), ("A", 2, 1), ("A", -1, 2), ("A", 3, 5), ("A", 0, 2), ("A", 1, 3)])
def test_spans_that_cannot_be_tagged_are_refused(span: Span) -> None:
    with pytest.raises(ValueError, match=r"overlaps|empty or outside"):
        schemes.to_tags([("B", 1, 2), span], 4, "IOB2")


@pytest.mark.parametrize("scheme", schemes.SCHEMES)
def test_strict_problem_is_the_first_tag_that_no_legal_sequence_has(scheme: Scheme) -> None:
    tags = schemes.tag_set(("X", "Y-z"), scheme)
    longer = legal(6, scheme)
    prefixes = {sequence[:n] for sequence in longer for n in range(5)}
    for length in range(5):
        whole = legal(length, scheme)
        for sequence in product(tags, repeat=length):
            spans = schemes.strict_problem(sequence, scheme)
            wrong = [i for i in range(length) if sequence[: i + 1] not in prefixes]
            expected = None if sequence in whole else wrong[0] if wrong else length - 1
            assert (spans and spans[0]) == expected, (sequence, spans)


@pytest.mark.parametrize(
    ("scheme", "tags", "position", "why"),
    [
        ("IOB2", "O I-A", 1, "'I-A' cannot follow 'O' in IOB2"),
        ("IOB2", "I-A", 0, "'I-A' cannot begin a sentence in IOB2"),
        ("IOB2", "B-A I-B", 1, "'I-B' cannot follow 'B-A' in IOB2"),
        ("IOB2", "B-A E-A", 1, "'E-A' is not a tag of IOB2"),
        ("IOB2", "O B-", 1, "'B-' is not a tag of IOB2"),
        ("IOB2", "O O-A", 1, "'O-A' is not a tag of IOB2"),
        ("IOB1", "O B-A", 1, "'B-A' cannot follow 'O' in IOB1"),
        ("IOB1", "I-A B-B", 1, "'B-B' cannot follow 'I-A' in IOB1"),
        ("BIOES", "S-A B-A", 1, "'B-A' cannot end a sentence in BIOES"),
        ("BIOES", "B-A O", 1, "'O' cannot follow 'B-A' in BIOES"),
        ("BIOES", "U-A", 0, "'U-A' is not a tag of BIOES"),
        ("BILOU", "B-A L-B", 1, "'L-B' cannot follow 'B-A' in BILOU"),
        ("BILOU", "NOUN", 0, "'NOUN' is not a tag of BILOU"),
    ],
)
def test_strict_problem_says_where_and_why(scheme: Scheme, tags: str, position: int, why: str) -> None:
    assert schemes.strict_problem(tags.split(), scheme) == (position, why)


def test_ill_formed_tags_are_read_but_foreign_ones_refused() -> None:
    assert schemes.from_scheme(["I-A", "I-B", "O", "I-B"], "IOB2") == [("A", 0, 1), ("B", 1, 2), ("B", 3, 4)]
    with pytest.raises(ValueError, match="'S-A' is not a tag of IOB2"):
        schemes.from_scheme(["S-A"], "IOB2")


def test_a_word_outside_of_all_spans_has_no_tag_in_bmes() -> None:
    assert schemes.to_tags([("word", 0, 1), ("word", 1, 4)], 4, "BMES") == ["S-word", "B-word", "M-word", "E-word"]
    with pytest.raises(ValueError, match="word 1 is in no span, and BMES has no tag for it"):
        schemes.to_tags([("word", 0, 1), ("word", 2, 4)], 4, "BMES")
    assert schemes.belongs("O", "BMES")  # in files of entities
    assert schemes.strict_problem(["B", "M", "E", "S"], "BMES") is None
    assert schemes.strict_problem(["B", "S"], "BMES") == (1, "'S' cannot follow 'B' in BMES")


def test_a_tag_set_is_sorted_by_label_after_o() -> None:
    assert schemes.tag_set(["b", "a", "b"], "IOB2") == ("O", "B-a", "I-a", "B-b", "I-b")
    assert schemes.tag_set(["a"], "BIOES") == ("O", "B-a", "I-a", "E-a", "S-a")
    assert schemes.tag_set(["a"], "BILOU") == ("O", "B-a", "I-a", "L-a", "U-a")
    assert schemes.tag_set(["a"], "BMES") == ("B-a", "M-a", "E-a", "S-a")
    assert schemes.tag_set([], "IOB1") == ("O",)


@pytest.mark.parametrize("scheme", ["IOB2", "BIOES", "BMES"])
def test_the_masks_accept_exactly_the_legal_sequences(scheme: Scheme) -> None:
    tags = list(schemes.tag_set(("X", "Y-z"), scheme))
    random.Random(0).shuffle(tags)
    start, end, steps = schemes.allowed(tags)
    assert accepted(tags, start, end, steps) == legal(4, scheme)
    assert (start.shape, end.shape, steps.shape) == ((len(tags),), (len(tags),), (len(tags), len(tags)))
    assert {mask.dtype for mask in (start, end, steps, schemes.continues(tags))} == {np.dtype(bool)}


def accepted(tags: Sequence[str], start: np.ndarray, end: np.ndarray, steps: np.ndarray) -> set[tuple[str, ...]]:
    """Every sequence of four tags that the masks accept."""
    return {
        tuple(tags[i] for i in path)
        for path in product(range(len(tags)), repeat=4)
        if start[path[0]] and end[path[-1]] and all(steps[i, j] for i, j in pairwise(path))
    }


@pytest.mark.parametrize("scheme", ["IOB2", "BIOES"])
def test_a_mask_with_any_one_bit_wrong_is_detected(scheme: Scheme) -> None:
    tags = schemes.tag_set(("X", "Y-z"), scheme)
    for which, mask in enumerate(schemes.allowed(tags)):
        for bit in range(mask.size):
            masks = [mask.copy() for mask in schemes.allowed(tags)]
            masks[which].flat[bit] ^= True
            assert accepted(tags, *masks) != legal(4, scheme)


@pytest.mark.parametrize("scheme", ["IOB2", "BIOES"])
def test_continues_holds_for_the_pairs_that_stand_in_one_span(scheme: Scheme) -> None:
    tags = schemes.tag_set(("X", "Y-z"), scheme)
    pairs = set()
    for layout in layouts(5):
        sequence = schemes.to_tags(layout, 5, scheme)
        pairs |= {(sequence[i], sequence[i + 1]) for _, start, end in layout for i in range(start, end - 1)}
    mask = schemes.continues(tags)
    assert {(tags[i], tags[j]) for i, j in zip(*np.nonzero(mask), strict=True)} == pairs


def test_among_plain_tags_everything_is_allowed_and_nothing_continues() -> None:
    tags = ("NOUN", "VERB", "B-side", "O")
    assert all(mask.all() for mask in schemes.allowed(tags))
    assert not schemes.continues(tags).any()
    assert [mask.shape for mask in schemes.allowed(())] == [(0,), (0,), (0, 0)]
    assert schemes.spans(["NOUN", "VERB", "BPER", "Sx", ""]) == []
