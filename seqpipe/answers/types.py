"""Values that describe an answer kind: arrays, metrics, choices, and what is known of a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from seqpipe.errors import DataError
from seqpipe.features.document import Doc, Record

Answer = Any  # as each kind's docstring has it; a list of alternatives when more than one is asked for
Scores = dict[str, Any]
Target = list[Any] | int | float | tuple[float, ...]  # for each token (or each pair of them); for the record; a row
Targets = dict[str, Target]  # by name
MakeTargets = Callable[[Record, Doc], Targets | None]  # None of a record that is to be skipped

WHOLE_TEXT, EACH_WORD, PASSAGE = "text", "words", "passage"  # what a decision is about
LOG_ZERO = -1e8  # a log-probability of this or less stands for what does not exist


Part = tuple[int, int]  # of a text: start and end
Masking = Literal["token", "word"]


class ScoringRow(NamedTuple):
    """One row of a batch that gives log-probabilities of tokens of a text.

    Args:
        ids: The tokens that the graph reads.
        tokens: The positions in the text of those whose log-probabilities add up.
        filling: Of a masked language model, the tokens of the gaps, in order.
    """

    ids: list[int]
    tokens: list[int]
    filling: list[int] = []


@dataclass(frozen=True)
class Array:
    """A tensor that `decide` returns or that `loss` takes: its shape in letters, its dtype, and what its numbers are.

    Args:
        shape: Such as "(B, T)": B texts, T tokens, L labels, V tokens of the vocabulary, K alternatives, N steps.
        dtype: `int64`, `float32` or `bool`.
        values: What its numbers are: `label`, `token`, `flag`, `position`, `probability`, `log-probability`, or "".
        required: Whether every `decide` returns it.
        mask: The target that says which numbers are real.
    """

    shape: str
    dtype: str
    values: str = ""
    required: bool = True
    mask: str = "mask"


@dataclass(frozen=True)
class Metric:
    """How a score is read: whether it is a fraction shown in per cent, and whether more of it is better."""

    percent: bool = True
    more_is_better: bool = True


@dataclass(frozen=True)
class Choice:
    """Outputs that are decided together, for telling a tie from an error (`seqpipe.training.pipeline`).

    Args:
        outputs: Their names.
        ranked: Whether axis 1 holds alternatives, the best first.
        scored_as: The output under whose name the head's `score` takes an alternative; "": its own.
    """

    outputs: tuple[str, ...]
    ranked: bool = False
    scored_as: str = ""


@dataclass(frozen=True)
class HeadInfo:
    """What an answer kind may know of its head and inputs when it is fitted to the training records.

    Args:
        settings: What the head's `answer_settings` states, completed by the kind's defaults.
        target: The record field of the reference, if the YAML names one.
        self_supervised: Whether the head learns from the text itself.
        same_tokenizer: Whether it writes with the tokenizer of its input.
        copies: Whether it copies words of its input.
        fields: The record fields of the first input's texts.
        rows: What the rows of x are: an axis of `seqpipe.config.checks`.
        numbers: The record field of the first input's rows of numbers; None where it is a text.
        candidates: The records of `data.candidates`, or those of training where there is no such file.
        old_labels: The labels of the run that the head is initialised from.
    """

    settings: Mapping[str, Any]
    target: str | None = None
    self_supervised: bool = False
    same_tokenizer: bool = False
    copies: bool = False
    fields: tuple[str, ...] = ("text",)
    rows: str = ""
    numbers: str | None = None
    candidates: Sequence[Record] = ()
    old_labels: Sequence[str] = field(default=())


class Counts(Protocol):
    """Counts scores record by record."""

    def add(self, gold: Any, predicted: Any, /) -> None: ...

    def result(self) -> Scores: ...


class UnseenLabelError(DataError):
    """A record has a label that no training record has."""
