"""One pipeline in PyTorch and as a graph in, a tally of how far their answers agree out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from seqpipe.config.attention_maps import PREFIX
from seqpipe.errors import ParityError
from seqpipe.features import vocabulary
from seqpipe.features.copy import Copy
from seqpipe.features.document import Arrays, Column, Doc
from seqpipe.features.sources import MASK, Inputs, Rows, Several, mask_of, masks, together
from seqpipe.features.vocabulary import SPECIALS, UNK
from seqpipe.features.word_pieces import splits_words
from seqpipe.runtime.decode_options import DRAWING, SEED, Known, chosen
from seqpipe.runtime.predictor import Run
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.pipeline import Pipeline

TIE = 1e-4  # below this margin of PyTorch's own score either of two decisions counts as equal
MOST_TIES, ENOUGH = 1e-3, 1_000  # the share of decisions that may be ties, and of how many
CLOSE, RELATIVE = 1e-4, 1e-5  # how far scores may differ
SIZES, LENGTHS = (1, 2, 3, 7, 33), (1, 2, 5, 31, 128)
TOKENS = "sequence_length"  # what features call the axis of tokens, behind the name of one of several sources
WRITTEN = 8  # tokens of a text that is written from random input
GAPS = 0.15  # the share of gaps in a random text, where there is such a token
_APART = 17  # tokens by which the examples of several sources differ


@dataclass
class Tally:
    """Decisions compared, ties among them, decisions that differ, and the largest difference of a score."""

    decisions: int = 0
    ties: int = 0
    different: int = 0
    worst: float = 0.0
    where: str = ""

    def check(self) -> None:
        """Raises ParityError if the graph answers differently."""
        if self.different:
            raise ParityError(
                f"{self.different} of {self.decisions} decisions differ between PyTorch and onnxruntime "
                f"({self.where}); no graph was written. "
                "If the component is yours, look for Python values baked in at export"
            )

    def check_ties(self) -> None:
        """Raises ParityError if there are too many ties to call the two equal."""
        if self.ties > MOST_TIES * self.decisions:
            raise ParityError(
                f"{self.ties} of {self.decisions} decisions hang on margins under {TIE}: too many to call them equal"
            )


def trials(options: Known) -> list[dict[str, Any]]:
    """Decode options to compare under: the defaults, every size at 3, and what is drawn, with some tokens given."""
    every = {name: 3 for name, option in options.items() if option["type"] == "size"}
    sizes = {name: 3 for name in every if name.rpartition(".")[2] not in DRAWING}
    drawn = {f"{name.removesuffix('uniform')}{SEED}": 7 for name, one in options.items() if one["type"] == "uniform"}
    tokens = {name: [len(SPECIALS)] for name, option in options.items() if option["type"] == "tokens"}
    return [{}, *([sizes] if sizes else []), *([every | drawn | tokens] if drawn or tokens else [])]


def moved(options: Known) -> dict[str, list[dict[str, Any]]]:
    """By name of each decode option that is no size: decode options to compare under, in which it is off its default.

    Whether it then changes a decision depends on the others: each time some of them are given too. What is for texts
    that are drawn comes with a seed.
    """
    sizes = {
        name: min(3, option.get("maximum") or 3)
        for name, option in options.items()
        if option["type"] == "size" and name.rpartition(".")[2] not in ("max_length", *DRAWING)
    }
    found = {}
    for name in [name for name, option in options.items() if option["type"] in ("bool", "int", "float")]:
        before = name.removesuffix(name.rpartition(".")[2])
        drawn = {f"{before}{SEED}": 7} if name.removeprefix(before) in DRAWING else {}
        beside = [
            {f"{before}{other}": value} for other, value in (("length_penalty", 4.0), ("min_length", WRITTEN - 2))
        ]
        others = [{}, *(some for some in beside if options.keys() >= some.keys() and name not in some)]
        found[name] = [sizes | drawn | some | {name: _moved(options[name])} for some in others]
        if longest := options.get(f"{before}max_length"):  # texts that end by themselves
            found[name].append(found[name][0] | {f"{before}max_length": longest["default"]})
            if name == f"{before}min_length":
                found[name][-1][name] = max(1, longest["default"] - 1)
    return found


def _moved(option: Mapping[str, Any]) -> Any:
    default, low, high = option["default"], option.get("minimum"), option.get("maximum")
    if option["type"] == "bool":
        return not default
    further = default + (2 if option["type"] == "int" else 4.0)
    if high is None or further <= high:
        return further
    return default - 1 if option["type"] == "int" else ((low or 0) + default) / 2


def shortened(options: Known, chosen_options: Mapping[str, Any]) -> dict[str, Any]:
    """Decode options with texts of `WRITTEN` tokens at most, unless something else was chosen.

    A loop's step is traced once: what goes wrong in its graph does so in the first steps. Real records are compared at
    the length that the options say.
    """
    lengths = {name: option["default"] for name, option in options.items() if name.rpartition(".")[2] == "max_length"}
    return {name: min(WRITTEN, default) for name, default in lengths.items()} | dict(chosen_options)


def given_to(feeds: Arrays, options: Known, given: Mapping[str, Any]) -> Arrays:
    """The options' inputs for these features; what is drawn hangs on the row's number."""
    lengths = np.sum([mask.sum(1) for mask in masks(feeds).values()], 0).tolist()
    return chosen(options, given).of([Doc("", [str(row)], [], [0] * n) for row, n in enumerate(lengths)])


def compare(
    tally: Tally,
    pipeline: Pipeline,
    torch_run: Run,
    onnx_run: Run,
    feeds: Arrays,
    options: Arrays,
    garbage: bool = True,
) -> tuple[Arrays, Arrays, np.ndarray]:
    """Run both on one batch and add the differences to the tally.

    Features are padded with zeros; with `garbage` the graph also answers with other values in the padding.

    Returns:
        PyTorch's decision, the graph's, and of which rows, (B,), they differ by a tie.
    """
    shape = _shape(feeds)
    expected = torch_run(feeds | options)
    got = _answered(onnx_run, feeds | options, shape)
    polluted = _answered(onnx_run, pollute(pipeline.artifacts, feeds) | options, shape) if garbage else got
    different = np.zeros(shape[0], bool)
    faults = _faults(tally, pipeline, feeds, expected, got, polluted)
    for rows, where in itertools.chain(faults, _alone(pipeline, onnx_run, feeds, options, expected)):
        different |= rows
        if rows.any():
            tally.where = tally.where or f"{where}, at shape {shape}"
    tally.decisions += shape[0]
    tally.different += int(different.sum())
    return expected, got, ~(different | _decided_alike(expected, got))


def settle(tally: Tally, pipeline: Pipeline, torch_run: Run, onnx_run: Run, options: Known) -> None:
    """ParityError if a share of over `MOST_TIES` is tied, of at least `ENOUGH` decisions: more are drawn if need be."""
    more = (grid(pipeline.artifacts, seed, (33,), (1, 2, 5, 9, 17)) for seed in itertools.count(2))
    batches = itertools.chain.from_iterable(more)
    while tally.ties and tally.decisions < ENOUGH:
        feeds = next(batches)
        compare(tally, pipeline, torch_run, onnx_run, feeds, given_to(feeds, options, shortened(options, {})), False)
    tally.check()
    tally.check_ties()


def _answered(onnx_run: Run, feeds: Arrays, shape: tuple[int, ...]) -> Arrays:
    try:
        return onnx_run(feeds)
    except Exception as error:  # onnxruntime's exceptions share no base but Exception
        raise ParityError(f"onnxruntime fails at shape {shape}, where PyTorch answers: {error}") from error


def _faults(
    tally: Tally, pipeline: Pipeline, feeds: Arrays, expected: Arrays, got: Arrays, polluted: Arrays
) -> Iterator[tuple[np.ndarray, str]]:
    """Which rows of the batch differ, (B,), and in what; ties and the worst difference go to the tally."""
    B = _shape(feeds)[0]
    misshaped = [name for name, array in expected.items() if not got[name].shape == polluted[name].shape == array.shape]
    for name in misshaped:
        yield np.ones(B, bool), f"{name}: shape {got[name].shape}, not {expected[name].shape}"
    if misshaped:
        return
    decided = _decided(expected)
    same = _decided_alike(expected, got)
    if not same.all():
        tied = margins(pipeline, feeds, expected, got) < TIE
        tally.ties += int((~same & tied).sum())
        yield ~same & ~tied, ", ".join(decided)
    for name, array in expected.items():
        if name not in decided:
            gap = np.abs(array - got[name])[same] - RELATIVE * np.abs(array[same])
            wrong = np.zeros(B, bool)
            wrong[same] = ~_rowwise(gap <= CLOSE * _summed(name, expected)[same])
            tally.worst = max(tally.worst, float(gap.max(initial=0.0)))
            yield wrong, f"{name} off by {gap.max(initial=0.0):.2g}"
        leaked = ~_rowwise(np.isclose(polluted[name], got[name], rtol=0, atol=CLOSE))
        yield leaked, f"{name} changes with what stands in the padding"


def _decided(decision: Arrays) -> list[str]:
    return [name for name, array in decision.items() if array.dtype.kind == "i"]


def _decided_alike(expected: Arrays, got: Arrays) -> np.ndarray:
    """Of which rows, (B,), all that is decided is equal; False for rows of another shape."""
    rows = len(next(iter(expected.values())))
    if any(got[name].shape != expected[name].shape for name in _decided(expected)):
        return np.zeros(rows, bool)
    return np.all([_rowwise(got[name] == expected[name]) for name in _decided(expected)] or [np.ones(rows, bool)], 0)


def _summed(name: str, decision: Arrays) -> np.ndarray:
    """√n where an output adds up n numbers, since errors add up so: the score (B, K) of a text or of positions."""
    before = name.removesuffix("scores")
    steps = {f"{before}tokens": 0, f"{before}pointers": -1} if name.endswith("scores") else {}  # and their padding
    made = [(decision[key] != padding).sum(2) for key, padding in steps.items() if key in decision]
    written = made[0] if made else np.ones_like(decision[name])
    return np.asarray(np.sqrt(np.maximum(written, 1)))


def _alone(
    pipeline: Pipeline, onnx_run: Run, feeds: Arrays, options: Arrays, expected: Arrays
) -> Iterator[tuple[np.ndarray, str]]:
    """The shortest row by itself, without padding: the others must not have changed its answer."""
    row, alone = shortest(pipeline.artifacts, feeds)
    if _shape(alone) == _shape(feeds):
        return
    own = {name: array[row : row + 1] for name, array in options.items() if array.ndim > 1 and len(array) > 1}
    got = _answered(onnx_run, alone | options | own, _shape(alone))
    here = np.arange(_shape(feeds)[0]) == row
    # What stands in the batch's padding is no part of the answer.
    wanted = {name: array[row : row + 1][_corner(got[name])] for name, array in expected.items()}
    for wrong, where in _faults(Tally(), pipeline, alone, wanted, got, got):  # its ties are no further decisions
        yield here & wrong, f"{where} (a row alone, without the batch around it)"
    for name in [name for name in expected if name.startswith(PREFIX)]:
        padding = np.array(expected[name][row])
        padding[_corner(got[name])[1:]] = 0
        yield here & bool(padding.any()), f"{name} is not 0 in the padding"


def shortest(artifacts: Artifacts, feeds: Arrays) -> tuple[int, Arrays]:
    """The position of the shortest row, and that row as a batch of its own, every axis cut to what the row uses."""
    counts = {at: mask.sum(1) for at, mask in masks(feeds).items()}
    row = int(np.sum([*counts.values()], 0).argmin())
    axes = artifacts.featurizer.axes
    lengths = {name: int(counts[mask_of(name).removesuffix(MASK)][row]) for name in feeds}
    return row, {name: _cut(array[row : row + 1], axes(name), lengths[name]) for name, array in feeds.items()}


def _shape(feeds: Arrays) -> tuple[int, ...]:
    """How many texts, and how many tokens the longest of each source has."""
    every = [*masks(feeds).values()]
    return (len(every[0]), *(mask.shape[1] for mask in every))


def _cut(array: np.ndarray, axes: Sequence[str | int], tokens: int) -> np.ndarray:
    """One row (1, …) without its padding."""
    for axis, name in enumerate(axes[1:], 1):
        if isinstance(name, int):
            continue
        others = tuple(i for i in range(array.ndim) if i != axis)
        used = int(np.flatnonzero(array.any(others)).max(initial=0)) + 1
        array = array.take(range(tokens if name.endswith(TOKENS) else used), axis)
    return array


def _corner(array: np.ndarray) -> tuple[slice, ...]:
    return tuple(slice(0, n) for n in array.shape)


def _rowwise(equal: np.ndarray) -> np.ndarray:  # (B, …) -> (B,)
    return np.asarray(equal.all(tuple(range(1, equal.ndim))))


def grid(
    artifacts: Artifacts, seed: int, sizes: Sequence[int] = SIZES, lengths: Sequence[int] = LENGTHS
) -> Iterator[Arrays]:
    """Ragged batches of random words, of every size and length, the full length at least once in each."""
    random = np.random.default_rng(seed)
    for rows in sizes:
        for longest in lengths:
            counts = random.integers(1, longest + 1, rows)
            counts[0] = longest
            yield artifacts.featurizer.collate([random_doc(artifacts.featurizer, int(n), random) for n in counts])


def random_doc(source: Inputs, length: int, random: np.random.Generator, apart: bool = False) -> Doc:
    """A text of `length` random tokens with random ids, sentences of any length; of some the longest word is short.

    Of a tokenizer that splits words, some tokens continue a word. From 5 tokens on there are two sentences and two
    words: an example for export has no axis of 1. Of several sources the others have up to as many tokens, or
    `apart`, so many that no two axes of an example for export are the same.
    """
    if isinstance(source, Several):
        lengths = [
            length + _APART * i if apart or not i else int(random.integers(1, length + 1))
            for i in range(len(source.sources))
        ]
        return together([random_doc(one, n, random) for one, n in zip(source.sources.values(), lengths, strict=True)])
    if isinstance(source, Rows):
        width = next((feature.size for feature in source.features.values()), 1)
        rows = random.normal(size=(length, width)).astype(np.float32)
        return Doc("", [row.tobytes().hex() for row in rows], [], [1] * length, rows=rows)
    words, begins = _random_words(length, random), np.ones(length, bool)
    if splits_words(source.tokenizer):
        begins = random.random(length) < random.choice([0.3, 0.7, 1.0])
        begins[[0, *range(2, min(length, 4))]] = True
    ids = random.integers(1, source.tokenizer.get_vocab_size(), length).tolist()
    gap = source.tokenizer.token_to_id(vocabulary.MASK)
    if gap is not None:  # one in a large vocabulary would hardly ever come
        ids = [gap if hidden else i for i, hidden in zip(ids, random.random(length) < GAPS, strict=True)]
    for copy in (one for one in source.features.values() if isinstance(one, Copy)):
        words, ids = _some_known(copy, words, ids, random)
    text, offsets = "", []
    for word, begin in zip(words, begins, strict=True):
        text += " " * bool(begin and text)
        offsets.append((len(text), len(text) + len(word)))
        text += word
    second = int(random.integers(1, length + 1)) if source.pairs else None
    columns = {one.field: str(random.choice(one.values)) for one in source.features.values() if isinstance(one, Column)}
    if not splits_words(source.tokenizer):
        return Doc(text, words, offsets, ids, second=second, columns=columns)
    starts = np.flatnonzero(begins).tolist()
    ends = [*(start - 1 for start in starts[1:]), length - 1]
    places = [(offsets[first][0], offsets[last][1]) for first, last in zip(starts, ends, strict=True)]
    return Doc(text, words, offsets, ids, starts, places, second, columns=columns)


def _some_known(
    copy: Copy, words: list[str], ids: list[int], random: np.random.Generator
) -> tuple[list[str], list[int]]:
    """The words and ids, of which none, half or all are such as a head writes; the others it can copy alone."""
    known = random.random(len(words)) < random.choice([0.0, 0.5, 1.0])
    vocabulary = sorted(copy.learned.get_vocab())
    words = [str(random.choice(vocabulary)) if one else word for word, one in zip(words, known, strict=True)]
    unknown = SPECIALS.index(UNK)
    return words, [i if one or not copy.same else unknown for i, one in zip(ids, known, strict=True)]


def _random_words(length: int, random: np.random.Generator) -> list[str]:
    letters = [chr(c) for c in range(97, 123)] + ["é", "播", "9", "-"]
    longest = random.integers(2, 25)
    words = ["".join(random.choice(letters, random.integers(1, longest))) for _ in range(length)]
    for i in np.flatnonzero(random.random(length) < random.choice([0.0, 0.1, 0.4])):
        words[i] = "."
    if length > 4:
        words[1] = "."
    return words


def margins(pipeline: Pipeline, feeds: Arrays, one: Arrays, other: Arrays) -> np.ndarray:
    """How near PyTorch was to the other decision, (B,)."""
    tensors = ({name: torch.from_numpy(np.array(a)) for name, a in some.items()} for some in (feeds, one, other))
    with torch.no_grad():
        return np.asarray(pipeline.gap(*tensors))


def pollute(artifacts: Artifacts, feeds: Arrays) -> Arrays:
    """The same features with other ids in the padding of the tokens."""
    polluted = {}
    for name, array in feeds.items():
        if name != mask_of(name) and str(artifacts.featurizer.axes(name)[1]).endswith(TOKENS):
            array, outside = np.array(array), ~feeds[mask_of(name)]
            array[outside] = 1 if array.dtype.kind == "i" else np.nan
        polluted[name] = array
    return polluted
