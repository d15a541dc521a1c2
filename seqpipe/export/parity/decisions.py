"""Compare the decisions of the graph with those of PyTorch, also with other decode options."""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from seqpipe.answers.base import LOOSE
from seqpipe.answers.task import HeadTask
from seqpipe.answers.types import EXPLAIN_PREFIX
from seqpipe.errors import ParityError
from seqpipe.export.graph import random_batches, shortest_row, tensors_of, with_other_padding
from seqpipe.export.tracing.settings import temporarily
from seqpipe.features.document import Arrays, Doc, Record
from seqpipe.features.sources import InputSource, NumericSource, TextSource, masks, sources_of
from seqpipe.features.vocabulary import SPECIALS
from seqpipe.runtime.decode_options import Known, caller_options, resolve_options
from seqpipe.runtime.predictor import Run, chunks
from seqpipe.training.evaluation import decide, option_trials
from seqpipe.training.network import HeadStage, Network
from seqpipe.types import OPTION_TYPES

# The decode options with which a graph is compared with PyTorch, and the inputs that they become.


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
        types = {name: OPTION_TYPES[option["type"]] for name, option in self.options.items()}
        every = {name: 3 for name, option_type in types.items() if option_type.is_size}
        needed = {name: self._declared(name)[:1] for name in every if name not in self._lengths}
        sizes = {name: 3 for name in every if not needed.get(name)}
        others: dict[str, Any] = dict.fromkeys(self._seeds, 7)
        others |= {name: [len(SPECIALS)] for name, of in types.items() if of.read and not of.trial}
        others |= {name: value for trials in needed.values() for values in trials for name, value in values.items()}
        alone: list[dict[str, Any]] = []
        for option_type in OPTION_TYPES.values():
            if automata := {name: of.trial for name, of in types.items() if of is option_type and of.trial}:
                alone += [automata, sizes | automata]
        return [{}, *([sizes] if sizes else []), *([every | others] if others else []), *alone]

    def alone(self) -> dict[str, list[dict[str, Any]]]:
        """Return, by name of each decode option that is not a size, sets of options in which it is not its default.

        An option may have an effect only with other options, which it declares: each alternative is tried.
        """
        sizes = {
            name: min(3, option.get("maximum") or 3)
            for name, option in self.options.items()
            if OPTION_TYPES[option["type"]].is_size and not self.declared.get(name)
        }
        candidates = {}
        for name, option in self.options.items():
            if not OPTION_TYPES[option["type"]].is_scalar:
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
        return [name for name in caller_options(self.options) if name not in self.options]

    @property
    def _lengths(self) -> dict[str, int]:
        """Return the sizes that declare a test value, such as lengths of texts, with that value."""
        return {
            name: values[name]
            for name, option in self.options.items()
            for values in self.declared.get(name, ())
            if OPTION_TYPES[option["type"]].is_size and values.keys() == {name}
        }

    def _declared(self, name: str) -> list[Mapping[str, Any]]:
        """Return the alternatives that an option declares, without those for options that the heads lack."""
        known = {*self.options, *self._seeds}
        return [values for values in self.declared.get(name, ()) if values.keys() <= known]


def _off_default(option: Mapping[str, Any]) -> Any:
    default, low, high = option["default"], option.get("minimum"), option.get("maximum")
    step = OPTION_TYPES[option["type"]].step
    if step is None:
        return not default
    if high is None or default + step <= high:
        return default + step
    if isinstance(step, int):
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
_LONG_WORD_CHARS, _MAX_PROBE_TOKENS = 2_000, 20_000  # letters of a word that is cut, and tokens of a text at the limit


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
    yield "a" * _LONG_WORD_CHARS
    yield from (" ".join(["a"] * length) for length in (tokens, tokens + 1) if length <= _MAX_PROBE_TOKENS)
    # The tokens of every vocabulary, and the names of every feature.
    vocabulary: set[str] = set()
    for part in sources_of(source).values():
        if isinstance(part, TextSource):
            vocabulary.update(token for token in part.tokenizer.get_vocab() if token not in SPECIALS)
        for feature in part.features.values():
            vocabulary.update(feature.names)
    names = draw.sample(sorted(vocabulary), min(len(vocabulary), MOST_NAMES))
    yield from map(" ".join, chunks(names, _NAMES))


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


# The judge of a graph: the same pipeline in float64, which shows the errors of float32 itself.

OWN = 4  # the error that a graph may have, in errors of PyTorch's float32 for the same output and row
NOISY = 6  # copies in float32 whose errors are measured besides: one error may be near 0 by chance
FAR = 20  # the error of PyTorch, in errors between these copies, above which it is none of rounding
HARMLESS_ERROR = 1e-4  # the error of PyTorch that hides no fault which matters, so that no copies are asked


class Judge:
    """Copies of a pipeline, made when they are first needed: one in float64, one in float32 with other roundings.

    Args:
        pipeline: The pipeline in evaluation mode.
        options: Decode options of its heads.

    Attributes:
        fault: Why a component gives no float64; "" if each did so far.
    """

    def __init__(self, network: Network, options: Known):
        self.network, self.options, self.fault = network, options, ""
        self._copies: dict[torch.dtype, Network] = {}

    def decide(self, inputs: Arrays, explain: bool = False) -> Arrays:
        """Return the decision about features and options in float64; without outputs that are less precise."""
        decision = self.compute(lambda network: decide(network, in_float64(inputs), self.options, explain)) or {}
        if imprecise := [name for name, array in decision.items() if array.dtype in (np.float32, np.float16)]:
            self.fault = self.fault or f"{', '.join(imprecise)} is {decision[imprecise[0]].dtype}, not float64"
        return {name: array for name, array in decision.items() if name not in imprecise}

    def noisily(self, compute: Callable[[Network], Any]) -> list[Any]:
        """Return what a function computes of `NOISY` copies in float32; each weight is one rounding away, or the same.

        The differences are samples of float32's own errors (Parker 1997, Monte Carlo arithmetic).
        """
        computed = []
        try:
            copied = self._copy(torch.float32)
            for seed in range(NOISY):
                random = torch.Generator().manual_seed(seed)
                for weight, noisy in zip(self.network.parameters(), copied.parameters(), strict=True):
                    if weight.is_floating_point():
                        noise = torch.rand(weight.shape, generator=random) * 2 - 1
                        noisy.data = weight.detach() * (1 + torch.finfo(torch.float32).eps * noise)
                with torch.no_grad():
                    computed.append(compute(copied))
        except Exception as error:  # a plugin may raise any exception
            self.fault = self.fault or _shortened(error)
        return computed

    def compute(self, compute: Callable[[Network], Any]) -> Any:
        """Return what a function computes of the copy in float64, by default also its new tensors; None if it fails."""
        try:
            with torch.no_grad(), temporarily(torch.get_default_dtype, torch.set_default_dtype, torch.float64):
                return compute(self._copy(torch.float64))
        except Exception as error:  # a plugin may raise any exception
            self.fault = self.fault or _shortened(error)
            return None

    def _copy(self, dtype: torch.dtype) -> Network:
        """Return the copy of this type, which shares what was learned from data, such as tokenizers."""
        if dtype not in self._copies:
            learned = self.network.artifacts
            self._copies[dtype] = copy.deepcopy(self.network, {id(learned): learned}).to(dtype)
        return self._copies[dtype]


def _shortened(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).removesuffix(' (--debug shows where)')}"


def in_float64(arrays: Arrays) -> Arrays:
    """Return the arrays with their numbers in float64."""
    return {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in arrays.items()}


def own_error(expected: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return float32's own error in each row, (B,), relative to numbers above 1."""
    gap = np.abs(expected - reference) / np.maximum(1, np.abs(reference))
    return np.asarray(gap.reshape(len(gap), -1).max(1, initial=0.0))


def by_row(values: np.ndarray, array: np.ndarray) -> np.ndarray:  # (B,) -> (B, 1, …) as of the array
    return values.reshape(-1, *[1] * (array.ndim - 1))


# Compare a pipeline in PyTorch with its graph, batch by batch, and count equal decisions.

TIE_MARGIN = 1e-4  # margin, times √n for scores of n terms, below which either of two decisions counts as right
MAX_TIE_SHARE, MIN_DECISIONS = 1e-3, 1_000  # allowed share of ties, and the decisions that it needs
MAX_GAP, MAX_RELATIVE_GAP = 2e-5, 1e-6  # difference of a score, and relative to it, above which float64 judges
SCORE_ATOL, SCORE_RTOL = 1e-4, 1e-5  # allowed differences of scores, the first times √n, where float64 is no reference
EQUAL_VECTORS = (
    ". All tokens of a text have the same vector, as after the encoder bag, so that decisions about them tie by "
    "construction; use an encoder that tells tokens apart"
)
IN_PADDING, ROW_ALONE = " (with other values in the padding)", " (a row alone, without the batch around it)"


@dataclass
class Tally:
    """Counts of compared decisions, and the first of those that differ.

    Attributes:
        decisions: Compared rows.
        ties: Rows whose decisions are equally good.
        different: Rows that differ.
        rounded: Rows with scores beyond `MAX_GAP`, but as near to float64 as PyTorch's float32.
        worst: Largest difference of a score from PyTorch's.
        where: Place of the first difference.
        evidence: Arrays of its batch: the inputs, both outputs and margins, by names for a file.
        outputs: Names of the outputs that differ in it.
    """

    decisions: int = 0
    ties: int = 0
    different: int = 0
    rounded: int = 0
    worst: float = 0.0
    where: str = ""
    evidence: Arrays = field(default_factory=dict)
    outputs: Sequence[str] = ()

    def check(self) -> None:
        """Raise ParityError, with the evidence, if the graph answers differently."""
        if self.different:
            error = ParityError(
                f"{self.different} of {self.decisions} decisions differ between PyTorch and onnxruntime "
                f"({self.where}); no graph was written"
            )
            error.evidence, error.outputs = self.evidence, self.outputs
            raise error


@dataclass
class ParityCase:
    """A batch of features and options, PyTorch's decision about it, and the judge's decisions when they are needed.

    For a row alone, `whole` is the batch around it, and `of_row` takes the row of a decision about that.
    """

    judge: Judge
    feeds: Arrays
    options: Arrays
    expected: Arrays
    whole: ParityCase | None = None
    select_row: Callable[[Arrays], Arrays] = dict

    @cached_property
    def reference(self) -> Arrays:
        """The decision in float64; it lacks what a component does not compute in float64."""
        return self._comparable(self.whole.reference if self.whole else self.judge.decide(*self._inputs))

    @cached_property
    def noisy(self) -> list[Arrays]:
        """Decisions in float32 with other roundings."""
        options, (inputs, explain) = self.judge.options, self._inputs
        again = partial(decide, inputs=inputs, options=options, explain=explain)
        every = self.whole.noisy if self.whole else self.judge.noisily(again)
        return [self._comparable(decision) for decision in every]

    def exact_margins(self, got: Arrays) -> np.ndarray | None:
        """Return the margins of each head (H, B), in float64, to another decision; None if a component fails."""
        feeds, expected = in_float64(self.feeds), self.expected
        margins_of: np.ndarray | None = self.judge.compute(lambda network: margins(network, feeds, expected, got))
        return margins_of

    def spread(self, name: str) -> np.ndarray:
        """Return the largest difference, (B,), of an output with other roundings that decide equally."""
        decisions = [self.expected, *(decision for decision in self.noisy if name in decision)]
        same = [_equal_rows(self.expected, decision) for decision in decisions]
        gaps = [own_error(decision[name], self.expected[name]) for decision in decisions]
        return np.asarray(np.max(np.where(same, gaps, 0.0), 0))

    @property
    def _inputs(self) -> tuple[Arrays, bool]:
        return self.feeds | self.options, any(name.startswith(EXPLAIN_PREFIX) for name in self.expected)

    def _comparable(self, decision: Arrays) -> Arrays:
        cut = self.select_row(decision)
        return {name: array for name, array in cut.items() if array.shape == self.expected[name].shape}


@dataclass
class DecisionParity:
    """A pipeline in PyTorch and its graph, whose decisions are compared batch by batch.

    Args:
        pipeline: The pipeline in evaluation mode.
        torch_run: Function from features and options to a decision, in PyTorch.
        onnx_run: The same in onnxruntime.
    """

    network: Network
    torch_run: Run
    onnx_run: Run
    options: Known
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self.trials = Trials(self.options, option_trials(self.network))
        self.judge = Judge(self.network, self.options)

    def compare(self, feeds: Arrays, options: Arrays, garbage: bool = True) -> tuple[Arrays, Arrays, np.ndarray]:
        """Run both on one batch and add the differences to the tally.

        Features are padded with zeros; with `garbage` the graph also answers with other values in the padding.

        Returns:
            PyTorch's decision, the graph's, and the mask (B,) of rows that differ by a tie or by float32's own error.
        """
        batch = self.batch(feeds, options)
        expected, got = batch.expected, self._run_graph(feeds | options)
        row, alone = shortest_row(self.network.artifacts, feeds)
        every, padding_faults = np.ones(_shape(feeds)[0], bool), list[ParityFault]()
        compared = [(batch, got, self.tally, every, "")]  # ties of the others do not count
        if garbage:
            polluted = self._run_graph(with_other_padding(self.network.artifacts, feeds) | options)
            compared.append((batch, polluted, Tally(), every, IN_PADDING))
        if _shape(alone) != _shape(feeds):
            per_row = {name: array for name, array in options.items() if array.ndim > 1 and len(array) > 1}
            chosen = options | {name: array[row : row + 1] for name, array in per_row.items()}
            got_alone = self._run_graph(alone | chosen)

            def select_row(decision: Arrays) -> Arrays:  # values in the batch's padding are not part of the answer
                return {name: array[row : row + 1][_corner(got_alone[name])] for name, array in decision.items()}

            single = ParityCase(self.judge, alone, chosen, select_row(expected), batch, select_row)
            compared.append((single, got_alone, Tally(), np.arange(len(every)) == row, ROW_ALONE))
            for name in [name for name in expected if name.startswith(EXPLAIN_PREFIX)]:
                padding = np.array(expected[name][row : row + 1])
                padding[_corner(got_alone[name])] = 0
                nonzero = padding.any(keepdims=True).reshape(1)
                padding_faults.append(ParityFault(nonzero, ~nonzero & False, f"{name} is not 0 in the padding", [name]))
        different, loose = np.zeros((2, len(every)), bool)
        for compared_batch, answer, tally, rows, how in compared:
            for fault in (*self._faults(tally, compared_batch, answer), *(padding_faults if how == ROW_ALONE else ())):
                different |= rows & fault.wrong
                loose |= rows & fault.loose
                if fault.wrong.any():
                    self.refuse(compared_batch, answer, fault, f"{how}, at shape {_shape(feeds)}")
        self.tally.decisions += len(different)
        self.tally.different += int(different.sum())
        return expected, got, loose & ~different

    def compare_batches(
        self, batches: Iterable[Arrays], chosen: Mapping[str, Any], most_garbage: float = math.inf
    ) -> None:
        """Run both on random batches with these decode options and short texts.

        Batches of at most `most_garbage` tokens, including padding, are also run with other values in the padding.
        """
        for feeds in batches:
            inputs = option_inputs(feeds, self.options, self.trials.with_short_texts(chosen))
            self.compare(feeds, inputs, sum(mask.size for mask in masks(feeds).values()) <= most_garbage)

    def batch(self, feeds: Arrays, options: Arrays, expected: Arrays | None = None) -> ParityCase:
        """Return a batch with PyTorch's decision, or a given one."""
        return ParityCase(self.judge, feeds, options, self.torch_run(feeds | options) if expected is None else expected)

    def resolve_ties(self, seed: int = 1) -> None:
        """Raise ParityError if over `MAX_TIE_SHARE` of `MIN_DECISIONS` or more tie; compare more if needed."""
        learned = self.network.artifacts
        more = (random_batches(learned, number, (33,), (1, 2, 5, 9, 17)) for number in itertools.count(seed + 1))
        batches = itertools.chain.from_iterable(more)
        while self.tally.ties and self.tally.decisions < MIN_DECISIONS:
            self.compare_batches([next(batches)], {}, most_garbage=0)
        self.tally.check()
        if self.tally.ties > MAX_TIE_SHARE * self.tally.decisions:
            equal = has_equal_vectors(self.network, next(random_batches(learned, seed, (3,), (9,))))
            raise ParityError(
                f"{self.tally.ties} of {self.tally.decisions} decisions have margins under {TIE_MARGIN} times the root "
                f"of the terms of their scores: too many to call them equal{equal * EQUAL_VECTORS}"
            )

    def ties(self, batch: ParityCase, got: Arrays) -> np.ndarray:
        """Return the rows (B,) whose decisions are equally good: by the margins of each head, or by float64's search.

        A margin may be `TIE` times √n, for a score that sums n terms, and `OWN` times its own error in float32.
        """
        heads = self.network.head_stages
        allowed = TIE_MARGIN * np.stack([growth(head, batch.feeds, batch.expected) for head in heads])
        single = margins(self.network, batch.feeds, batch.expected, got)
        exact, same = batch.exact_margins(got), _equal_rows(batch.expected, got)
        exact = single if exact is None else exact
        with np.errstate(invalid="ignore"):  # an infinite margin is no tie
            error = np.abs(single - exact)
            if not ((tied := (exact < allowed + OWN * error).all(0)) | same).all():
                noisy = self.judge.noisily(lambda network: margins(network, batch.feeds, batch.expected, got))
                error = np.max([error, *(np.abs(single - other) for other in noisy)], 0)
                tied = (exact < allowed + OWN * error).all(0)
        if (tied | same).all():
            return np.asarray(tied)
        return tied | _equal_rows({name: got[name] for name in _decision_names(got)}, batch.reference)

    def numbers(self, tally: Tally, batch: ParityCase, got: Arrays, rows: np.ndarray) -> Iterator[ParityFault]:
        """Yield the numbers that differ from PyTorch's in some rows, (B,) bool; count what float64 shows right."""
        for name, expected in batch.expected.items():
            if name in _decision_names(batch.expected):
                continue
            size, gap = np.abs(expected), np.abs(expected - got[name])
            allowed = MAX_GAP + MAX_RELATIVE_GAP * size
            tally.worst = max(tally.worst, float((gap - MAX_RELATIVE_GAP * size)[rows].max(initial=0.0)))
            if (beyond := rows & ~_rowwise(gap <= allowed)).any():
                # The bound is fixed without a reference, with one that decides otherwise, or with one that computes
                # something else, as with an epsilon of the type: PyTorch is then farther than roundings explain.
                reference, scale = batch.reference.get(name, np.full_like(gap, np.nan)), OWN * np.maximum(1, size)
                same, error = _equal_rows(batch.expected, batch.reference), own_error(expected, reference)
                exact = np.abs(got[name] - reference)
                right = same & (error <= HARMLESS_ERROR) & _rowwise(exact <= allowed + scale * by_row(error, gap))
                if (beyond & ~right).any():
                    spread = batch.spread(name)
                    same &= error <= FAR * spread + MAX_GAP
                    near_exact = exact <= allowed + scale * by_row(np.maximum(error, spread), gap)
                    head = next(head for head in self.network.head_stages if name.startswith(head.prefix))
                    grown = by_row(SCORE_ATOL * growth(head, batch.feeds, batch.expected), gap)
                    near = gap <= grown + SCORE_RTOL * size + scale * by_row(spread, gap)
                    right |= _rowwise(np.where(by_row(same, gap), near_exact, near))
                tally.rounded += int((beyond & right & same).sum())
                what = f"{name} differs by {gap[rows].max(initial=0.0):.2g}"
                yield ParityFault(beyond & ~right, beyond & right, what, [name])

    def add(self, batch: ParityCase, got: Arrays, fault: ParityFault) -> None:
        """Add a comparison of all rows of a batch to the tally."""
        self.tally.decisions += len(fault.wrong)
        self.tally.ties += int(fault.loose.sum())
        self.tally.different += int(fault.wrong.sum())
        if fault.wrong.any():
            self.refuse(batch, got, fault)

    def refuse(self, batch: ParityCase, got: Arrays, fault: ParityFault, where: str = "") -> None:
        """Keep the first difference, with all that shows it."""
        tally = self.tally
        if tally.where:
            return
        unjudged = f"; not judged by float64, in which a component fails: {self.judge.fault}"
        tally.where, tally.outputs = fault.what + where + unjudged * bool(self.judge.fault), fault.names
        parts = {"input": batch.feeds | batch.options, "pytorch": batch.expected, "onnxruntime": got}
        parts |= {"float64": batch.reference, "rows": {"different": np.flatnonzero(fault.wrong)}}
        if all(got[name].shape == array.shape for name, array in batch.expected.items()):
            parts["margin"] = {"float32": margins(self.network, batch.feeds, batch.expected, got)}
            parts["margin"] |= {} if (exact := batch.exact_margins(got)) is None else {"float64": exact}
        tally.evidence = {f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()}

    def _run_graph(self, feeds: Arrays) -> Arrays:
        try:
            return self.onnx_run(feeds)
        except Exception as error:  # onnxruntime's exceptions share no base but Exception
            shape = _shape({name: feeds[name] for name in self.network.artifacts.featurizer.manifest()})
            raise ParityError(f"onnxruntime fails at shape {shape}, but PyTorch answers: {error}") from error

    def _faults(self, tally: Tally, batch: ParityCase, got: Arrays) -> Iterator[ParityFault]:
        """Yield what differs; count ties, and the largest difference of a score."""
        expected = batch.expected
        every = np.ones(len(next(iter(expected.values()))), bool)
        if misshaped := [name for name, array in expected.items() if got[name].shape != array.shape]:
            shapes = (f"{name}: shape {got[name].shape}, not {expected[name].shape}" for name in misshaped)
            yield ParityFault(every, ~every, "; ".join(shapes), misshaped)
            return
        same = _equal_rows(expected, got)
        if not same.all():
            tied = self.ties(batch, got)
            tally.ties += int((~same & tied).sum())
            names = [name for name in _decision_names(expected) if (got[name] != expected[name]).any()]
            yield ParityFault(~same & ~tied, ~same & tied, ", ".join(names), names)
        yield from self.numbers(tally, batch, got, same)


class ParityFault(NamedTuple):
    """A difference of a graph from PyTorch, in outputs of these names."""

    wrong: np.ndarray  # rows, (B,) bool
    loose: np.ndarray  # rows that differ too, by a tie or by float32's own error
    what: str
    names: Sequence[str]


def growth(head: HeadStage, feeds: Arrays, decision: Arrays) -> np.ndarray:
    """Return √n in each row, (B,), for the n terms that outputs of a head sum at most: errors grow with it."""
    decided, n = head.task.kind.decided, np.ones(_shape(feeds)[0])
    sums = {array.sums for array in decided.values()}
    if "T" in sums:
        n = np.sum([mask.sum(1) for mask in masks(feeds).values()], 0)
    if "N" in sums:
        steps, array = next((name, array) for name, array in decided.items() if array.shape == "(B, K, N)")
        absent = -1 if array.values == "position" else 0
        n = np.maximum(n, (decision[head.prefix + steps] != absent).sum(2).max(1, initial=0))
    return np.asarray(np.sqrt(np.maximum(n, 1)))


def has_equal_vectors(network: Network, feeds: Arrays) -> bool:
    """Return whether each text has the same vector at all its tokens, in every source that heads read."""
    with torch.no_grad():
        sources = network(tensors_of(feeds))["sources"]
    return not any(((one["x"] - one["x"][:, :1]) * one["mask"][..., None]).any() for one in sources)


def _decision_names(decision: Arrays) -> list[str]:
    return [name for name, array in decision.items() if array.dtype.kind == "i"]


def _equal_rows(expected: Arrays, got: Arrays) -> np.ndarray:
    """Return a bool for each row, (B,): True if all its decisions are equal; False for rows of another shape."""
    rows = len(next(iter(expected.values())))
    if any(name not in got or got[name].shape != expected[name].shape for name in _decision_names(expected)):
        return np.zeros(rows, bool)
    equal = [_rowwise(got[name] == expected[name]) for name in _decision_names(expected)]
    return np.all(equal or [np.ones(rows, bool)], 0)


def _shape(feeds: Arrays) -> tuple[int, ...]:
    """Return the number of texts, and for each source the number of tokens of its longest text."""
    every = [*masks(feeds).values()]
    return (len(every[0]), *(mask.shape[1] for mask in every))


def _corner(array: np.ndarray) -> tuple[slice, ...]:
    return tuple(slice(0, n) for n in array.shape)


def _rowwise(equal: np.ndarray) -> np.ndarray:  # (B, …) -> (B,)
    return np.asarray(equal.all(tuple(range(1, equal.ndim))))


def margins(network: Network, feeds: Arrays, expected: Arrays, got: Arrays) -> np.ndarray:
    """Return the margins (H, B) by which each head prefers the expected decision to the other one."""
    with torch.no_grad():
        return np.asarray(network.gaps(*map(tensors_of, (feeds, expected, got))))
