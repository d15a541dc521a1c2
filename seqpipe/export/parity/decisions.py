"""Compare the decisions of the graph with those of PyTorch, also with other decode options."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from seqpipe.answers.base import LOOSE
from seqpipe.answers.task import HeadTask
from seqpipe.answers.types import PREFIX
from seqpipe.errors import ParityError
from seqpipe.export.graph import random_batches, shortest_row, tensors_of, with_other_padding
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.features.sources import InputSource, NumericSource, TextSource, masks, sources_of
from seqpipe.features.vocabulary import SPECIALS
from seqpipe.runtime.decode_options import SEED, Known, resolve_options, sibling
from seqpipe.runtime.predictor import Run
from seqpipe.training.evaluation import option_trials
from seqpipe.training.pipeline import Pipeline

# The decode options with which a graph is compared with PyTorch, and the inputs that they become.


# Arcs that ban texts which begin with [EOS], [UNK] or the first token after the special ones, have that token twice in
# a row, or end with it: state 2 is the beginning, 1 is after that token.
_ARCS = {
    "automaton": [[2, 3, -1], [2, 1, -1], [2, 4, -1], [-1, 4, 1], [1, 4, -1], [1, 3, -1]],
    # Two texts: the first token after the special ones, once or twice.
    "trie": [[0, 0, 0], [0, 4, 1], [1, 4, 2], [1, 3, 0], [2, 3, 0]],
}


@dataclass(frozen=True)
class Trials:
    """Decode options for the comparison.

    Args:
        options: Decode options of the heads.
        declared: For each option the alternative values of others with which it has an effect
            (`seqpipe.types.TryWith`).
    """

    options: Known
    declared: Mapping[str, Sequence[Mapping[str, Any]]]

    def together(self) -> list[dict[str, Any]]:
        """Return the defaults, every size at 3, sampling with a forced prefix, and automata of one and of 3 beams."""
        every = {name: 3 for name, option in self.options.items() if option["type"] == "size"}
        needed = {name: self._declared(name)[:1] for name in every if name not in self._lengths}
        sizes = {name: 3 for name in every if not needed.get(name)}
        others: dict[str, Any] = dict.fromkeys(self._seeds, 7)
        types = {name: option["type"] for name, option in self.options.items()}
        others |= {name: [len(SPECIALS)] for name, kind in types.items() if kind in ("tokens", "texts")}
        others |= {name: value for some in needed.values() for values in some for name, value in values.items()}
        alone: list[dict[str, Any]] = []
        for kind, arcs in _ARCS.items():
            if automata := {name: arcs for name, of in types.items() if of == kind}:
                alone += [automata, sizes | automata]
        return [{}, *([sizes] if sizes else []), *([every | others] if others else []), *alone]

    def alone(self) -> dict[str, list[dict[str, Any]]]:
        """Return, by name of each decode option that is not a size, sets of options in which it is not its default.

        An option may have an effect only with other options, which it declares: each alternative is tried.
        """
        sizes = {
            name: min(3, option.get("maximum") or 3)
            for name, option in self.options.items()
            if option["type"] == "size" and not self.declared.get(name)
        }
        candidates = {}
        for name, option in self.options.items():
            if option["type"] not in ("bool", "int", "float"):
                continue
            off: dict[str, Any] = {name: _off_default(option)}
            candidates[name] = [sizes | off | dict(values) for values in self._declared(name) or [{}]]
            head = name.removesuffix(name.rpartition(".")[2])  # with its dot, if there are several
            if whole := {key: self.options[key]["default"] for key in self._lengths if key.startswith(head)}:
                candidates[name].append(candidates[name][0] | whole)  # texts that end with [EOS]
        return candidates

    def with_short_texts(self, chosen_options: Mapping[str, Any]) -> dict[str, Any]:
        """Return decode options that limit texts to few tokens, as the options declare, unless a length is set.

        A loop's step is traced once, so a fault of its graph occurs in the first steps. Real records are compared with
        the length of the options.
        """
        short = {name: min(length, self.options[name]["default"]) for name, length in self._lengths.items()}
        return short | dict(chosen_options)

    @property
    def _seeds(self) -> list[str]:
        return [sibling(name, SEED) for name, option in self.options.items() if option["type"] == "uniform"]

    @property
    def _lengths(self) -> dict[str, int]:
        """Return the sizes that declare a test value, such as lengths of texts, with that value."""
        return {
            name: values[name]
            for name, option in self.options.items()
            for values in self.declared.get(name, ())
            if option["type"] == "size" and values.keys() == {name}
        }

    def _declared(self, name: str) -> list[Mapping[str, Any]]:
        """Return the alternatives that an option declares, without those for options that the heads lack."""
        known = {*self.options, *self._seeds}
        return [values for values in self.declared.get(name, ()) if values.keys() <= known]


def _off_default(option: Mapping[str, Any]) -> Any:
    default, low, high = option["default"], option.get("minimum"), option.get("maximum")
    if option["type"] == "bool":
        return not default
    further = default + (2 if option["type"] == "int" else 4.0)
    if high is None or further <= high:
        return further
    if option["type"] == "int":
        return default - 1
    bound = high if default == low else low
    return ((bound or 0) + default) / 2


def option_inputs(feeds: Arrays, options: Known, chosen_options: Mapping[str, Any]) -> Arrays:
    """Return the options' inputs for these features; random numbers depend on the row's number."""
    lengths = np.sum([mask.sum(1) for mask in masks(feeds).values()], 0).tolist()
    docs = [Doc("", [str(row)], [], [0] * n) for row, n in enumerate(lengths)]
    return resolve_options(options, chosen_options).of(docs)


# The share of equal decisions of a graph and its quantized version.


def equal_decisions(task: HeadTask, expected: Arrays, got: Arrays, masks: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield flat bool arrays that compare two decisions by item: a tag, a label, a token of the best answer.

    Numbers are equal within the tolerance of int8. The masks of the inputs, (B, T) each, leave out padding.
    """
    stated = task.kind.decided
    for name in [name for choice in task.choices[:1] for name in choice.outputs if name in expected]:
        first, second = expected[name], got[name]
        absent = -1 if stated[name].values == "position" else 0
        if stated[name].shape == "(B, K, N)":
            width = max(first.shape[2], second.shape[2])
            first, second = (
                np.pad(array[:, 0], ((0, 0), (0, width - array.shape[2])), constant_values=absent)
                for array in (first, second)
            )
            yield (first == second)[(first != absent) | (second != absent)]
        elif stated[name].shape == "(B, K)":
            yield first[:, 0] == second[:, 0]
        else:
            real = [mask for mask in masks if mask.shape == first.shape and stated[name].shape == "(B, T)"]
            yield (first == second)[real[0]] if real else (first == second).ravel()
    for name in stated if task.kind.is_numeric else ():
        if name in expected and expected[name].dtype.kind == "f" and not stated[name].values:
            allowed = LOOSE * np.maximum(1, np.abs(expected[name]))
            yield (np.abs(expected[name] - got[name]) <= allowed).ravel()


# Generated records that are in no data set, which training and the bundle must read alike.

SCRIPTS = (
    "Latin: Straße, naïve, ŒUVRE, İstanbul, ﬁne ǅ", "Ελληνικά: Ὀδυσσεύς, λόγος ς", "Русский: Ёлка, щука", "עברית: שָׁלוֹם",
    "العربية: مُحَمَّد ١٢٣", "हिन्दी: क्षत्रिय, ज़िन्दगी", "ไทย: น้ำใจ", "中文：我在北京。", "日本語：カタカナとｶﾀｶﾅ、がが",
    "한국어: 한글과 한글",
    "Tiếng Việt: Nguyễn Ngữ", "አማርኛ፡ ሰላም", "ქართული: მხედრული", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠮷野家",
    "emoji 👩‍💻 🏳️‍🌈 👍🏽 🇨🇭 ☺️", "combining e\u0301 e\u0301\u0302\u0323 Z\u0351\u036b\u0343\u036a\u0302\u036b",
    "marks “quoted” — (nested [brackets]) … ¿qué? 50 % $1,000.00 #tag @name a_b-c/d\\e",
    "https://example.org/a?b=c&d=1 mail@example.org 2026-11-23T10:00 192.168.0.1",
    "tabs\tand\u00a0blanks\u2003of\u200ball\u3000kinds\r\nlines\n\nparagraphs. Another!  And?",
    "\ufeffbyte order mark \u202eright to left\u202c \u00ad soft \ufffd replaced \ue000 private",
    "[PAD] [UNK] [CLS] [SEP] [MASK] [BOS] [EOS] <s> </s> ▁ ## Ġ",
)  # fmt: skip
BLANK = ("", " ", "\n", "\u00a0\u3000", "\u200b", "\u0301")
MOST_NAMES = 5_000  # tokens and characters of a vocabulary that are tried
_NAMES = 20  # in a text
_LONG, _MOST = 2_000, 20_000  # letters of a word that is cut, and tokens of a text at the limit


def probe_records(source: InputSource, tokens: int, seed: int = 1) -> Iterator[Record]:
    """Yield records of many scripts, from the vocabularies, blank and of maximum length, raw and pre-tokenized."""
    draw = random.Random(seed)
    for text in _texts(source, tokens, draw):
        yield _record(source, text, draw)
        if isinstance(source, TextSource) and source.fields == ("text",) and text.strip():
            yield {**_record(source, text, draw), "words": text.split()}


def _texts(source: InputSource, tokens: int, draw: random.Random) -> Iterator[str]:
    yield from SCRIPTS
    for text in SCRIPTS[:4]:
        yield text.upper()
        yield text.lower()
    yield from BLANK
    characters = "".join(SCRIPTS)
    yield from ("".join(draw.choices(characters, k=length)) for length in (1, 2, 3, 5, 20, 21, 80, 400))
    yield "a" * _LONG
    yield from (" ".join(["a"] * length) for length in (tokens, tokens + 1) if length <= _MOST)
    # The tokens of every vocabulary, and the names of every feature.
    vocabulary: set[str] = set()
    for part in sources_of(source).values():
        if isinstance(part, TextSource):
            vocabulary.update(token for token in part.tokenizer.get_vocab() if token not in SPECIALS)
        for feature in part.features.values():
            vocabulary.update(feature.names)
    names = sorted(vocabulary)
    for i in range(0, len(names := draw.sample(names, min(len(names), MOST_NAMES))), _NAMES):
        yield " ".join(names[i : i + _NAMES])


def _record(source: InputSource, text: str, draw: random.Random) -> dict[str, Any]:
    """Return a record with this text in every text field and random numbers and column values."""
    record: dict[str, Any] = {}
    for part in sources_of(source).values():
        if isinstance(part, NumericSource):
            record[part.field] = part.feature.example_value(draw)
        else:
            record |= dict.fromkeys(part.fields, text)
    for feature in source.features.values():
        record |= feature.example_fields(draw.choice)
    return record


# Compare a pipeline in PyTorch with its graph, batch by batch, and count equal decisions.

TIE = 1e-4  # below this margin of PyTorch's own score either of two decisions counts as equal
MOST_TIES, ENOUGH = 1e-3, 1_000  # allowed share of ties, and the decisions that it needs
CLOSE, RELATIVE = 1e-4, 1e-5  # allowed differences of scores


@dataclass
class Tally:
    """Counts of compared decisions, ties and differences, and the largest difference of a score."""

    decisions: int = 0
    ties: int = 0
    different: int = 0
    worst: float = 0.0
    where: str = ""

    def check(self) -> None:
        """Raise ParityError if the graph answers differently."""
        if self.different:
            raise ParityError(
                f"{self.different} of {self.decisions} decisions differ between PyTorch and onnxruntime "
                f"({self.where}); no graph was written. "
                "If the component is yours, look for Python values fixed at export"
            )


@dataclass
class DecisionParity:
    """A pipeline in PyTorch and its graph, whose decisions are compared batch by batch.

    Args:
        pipeline: The pipeline in evaluation mode.
        torch_run: Function from features and options to a decision, in PyTorch.
        onnx_run: The same in onnxruntime.
    """

    pipeline: Pipeline
    torch_run: Run
    onnx_run: Run
    options: Known
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self.trials = Trials(self.options, option_trials(*(head.component for head in self.pipeline.head_stages)))

    def compare(self, feeds: Arrays, options: Arrays, garbage: bool = True) -> tuple[Arrays, Arrays, np.ndarray]:
        """Run both on one batch and add the differences to the tally.

        Features are padded with zeros; with `garbage` the graph also answers with other values in the padding.

        Returns:
            PyTorch's decision, the graph's, and the mask (B,) of rows that differ by a tie.
        """
        shape = _shape(feeds)
        expected = self.torch_run(feeds | options)
        got = polluted = self._run_graph(feeds | options, shape)
        if garbage:
            polluted = self._run_graph(with_other_padding(self.pipeline.artifacts, feeds) | options, shape)
        different = np.zeros(shape[0], bool)
        faults = self._faults(self.tally, feeds, expected, got, polluted)
        for rows, where in itertools.chain(faults, self._compare_alone(feeds, options, expected)):
            different |= rows
            if rows.any():
                self.tally.where = self.tally.where or f"{where}, at shape {shape}"
        self.tally.decisions += shape[0]
        self.tally.different += int(different.sum())
        return expected, got, ~(different | _equal_rows(expected, got))

    def compare_batches(
        self, batches: Iterable[Arrays], chosen: Mapping[str, Any], most_garbage: float = math.inf
    ) -> None:
        """Run both on random batches with these decode options and short texts.

        Batches of at most `most_garbage` tokens, including padding, are also run with other values in the padding.
        """
        for feeds in batches:
            inputs = option_inputs(feeds, self.options, self.trials.with_short_texts(chosen))
            self.compare(feeds, inputs, sum(mask.size for mask in masks(feeds).values()) <= most_garbage)

    def resolve_ties(self) -> None:
        """Raise ParityError if over `MOST_TIES` of at least `ENOUGH` decisions are ties; compare more if needed."""
        more = (random_batches(self.pipeline.artifacts, seed, (33,), (1, 2, 5, 9, 17)) for seed in itertools.count(2))
        batches = itertools.chain.from_iterable(more)
        while self.tally.ties and self.tally.decisions < ENOUGH:
            self.compare_batches([next(batches)], {}, most_garbage=0)
        self.tally.check()
        if self.tally.ties > MOST_TIES * self.tally.decisions:
            raise ParityError(
                f"{self.tally.ties} of {self.tally.decisions} decisions have margins under {TIE}: "
                "too many to call them equal"
            )

    def _run_graph(self, feeds: Arrays, shape: tuple[int, ...]) -> Arrays:
        try:
            return self.onnx_run(feeds)
        except Exception as error:  # onnxruntime's exceptions share no base but Exception
            raise ParityError(f"onnxruntime fails at shape {shape}, but PyTorch answers: {error}") from error

    def _faults(
        self, tally: Tally, feeds: Arrays, expected: Arrays, got: Arrays, polluted: Arrays
    ) -> Iterator[tuple[np.ndarray, str]]:
        """Yield masks of rows that differ, (B,), with the reason; record ties and the worst difference."""
        B = _shape(feeds)[0]
        misshaped = [
            name for name, array in expected.items() if not got[name].shape == polluted[name].shape == array.shape
        ]
        for name in misshaped:
            yield np.ones(B, bool), f"{name}: shape {got[name].shape}, not {expected[name].shape}"
        if misshaped:
            return
        decisions = _decision_names(expected)
        same = _equal_rows(expected, got)
        if not same.all():
            tied = margins(self.pipeline, feeds, expected, got) < TIE
            tally.ties += int((~same & tied).sum())
            yield ~same & ~tied, ", ".join(decisions)
        for name, array in expected.items():
            if name not in decisions:
                gap = np.abs(array - got[name])[same] - RELATIVE * np.abs(array[same])
                wrong = np.zeros(B, bool)
                wrong[same] = ~_rowwise(gap <= CLOSE * _error_growth(name, expected)[same])
                tally.worst = max(tally.worst, float(gap.max(initial=0.0)))
                yield wrong, f"{name} differs by {gap.max(initial=0.0):.2g}"
            leaked = ~_rowwise(np.isclose(polluted[name], got[name], rtol=0, atol=CLOSE))
            yield leaked, f"{name} depends on values in the padding"

    def _compare_alone(self, feeds: Arrays, options: Arrays, expected: Arrays) -> Iterator[tuple[np.ndarray, str]]:
        """Compare the shortest row alone, without padding: other rows must not affect its answer."""
        row, alone = shortest_row(self.pipeline.artifacts, feeds)
        if _shape(alone) == _shape(feeds):
            return
        by_row = {name: array[row : row + 1] for name, array in options.items() if array.ndim > 1 and len(array) > 1}
        got = self._run_graph(alone | options | by_row, _shape(alone))
        here = np.arange(_shape(feeds)[0]) == row
        # Values in the batch's padding are not part of the answer.
        of_row = {name: array[row : row + 1][_corner(got[name])] for name, array in expected.items()}
        for wrong, where in self._faults(Tally(), alone, of_row, got, got):  # its ties do not count as decisions
            yield here & wrong, f"{where} (a row alone, without the batch around it)"
        for name in [name for name in expected if name.startswith(PREFIX)]:
            padding = np.array(expected[name][row])
            padding[_corner(got[name])[1:]] = 0
            yield here & bool(padding.any()), f"{name} is not 0 in the padding"


def _decision_names(decision: Arrays) -> list[str]:
    return [name for name, array in decision.items() if array.dtype.kind == "i"]


def _equal_rows(expected: Arrays, got: Arrays) -> np.ndarray:
    """Return a bool for each row, (B,): True if all its decisions are equal; False for rows of another shape."""
    rows = len(next(iter(expected.values())))
    if any(got[name].shape != expected[name].shape for name in _decision_names(expected)):
        return np.zeros(rows, bool)
    equal = [_rowwise(got[name] == expected[name]) for name in _decision_names(expected)]
    return np.all(equal or [np.ones(rows, bool)], 0)


def _error_growth(name: str, decision: Arrays) -> np.ndarray:
    """Return √n for an output that sums n numbers, as errors grow with it: the score (B, K) of a text or positions."""
    head = name.removesuffix("scores")
    steps = {f"{head}tokens": 0, f"{head}pointers": -1} if name.endswith("scores") else {}  # and their padding
    lengths = [(decision[key] != padding).sum(2) for key, padding in steps.items() if key in decision]
    length = lengths[0] if lengths else np.ones_like(decision[name])
    return np.asarray(np.sqrt(np.maximum(length, 1)))


def _shape(feeds: Arrays) -> tuple[int, ...]:
    """Return the number of texts, and for each source the number of tokens of its longest text."""
    every = [*masks(feeds).values()]
    return (len(every[0]), *(mask.shape[1] for mask in every))


def _corner(array: np.ndarray) -> tuple[slice, ...]:
    return tuple(slice(0, n) for n in array.shape)


def _rowwise(equal: np.ndarray) -> np.ndarray:  # (B, …) -> (B,)
    return np.asarray(equal.all(tuple(range(1, equal.ndim))))


def margins(pipeline: Pipeline, feeds: Arrays, expected: Arrays, got: Arrays) -> np.ndarray:
    """Return the margins, (B,), by which PyTorch preferred the expected decision to the other one."""
    with torch.no_grad():
        return np.asarray(pipeline.gap(*map(tensors_of, (feeds, expected, got))))
