"""Answer kind of language models: continuations of prompts, and the perplexity of texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from seqpipe.answers.span_rules import SpanRules
from seqpipe.answers.text import END, Text, required
from seqpipe.answers.types import Answer, HeadInfo, MakeTargets, Masking, Metric, Part, ScoringRow, Targets
from seqpipe.errors import DataError, UsageError
from seqpipe.features.document import Arrays, Doc, Record, padded
from seqpipe.features.vocabulary import EOS, special_id

PAST, PRESENT = "past.", "present."  # prefixes of the names of the cache, as an input and as an output of a graph
RECORD_CONTINUES = "record_continues"  # of a record: whether its text continues in the next one
SCORE_PROMPT = "score_prompt"  # the decode option that asks for the log-probabilities of a prompt's tokens
ENOUGH = 1 << 23  # numbers of a batch's logits
PROMPTS, MOST_PROMPT = 64, 40  # prompts that answers are compared on, and the most tokens of one
JUDGED = 4096  # tokens of the windows that a model is judged in whose state is carried on
_LN2 = math.log(2)


class Generation(Text):
    """Continuation: `{"generated_text", "score"}`, the prompt and what follows; score: the probability of that.

    Args:
        tokenizer: Of the prompt and of what follows.
        adds_bos: Whether [BOS] stands before each text, so that a prompt may be empty.
        context: Tokens of the windows that long texts are judged in.
    """

    kind = "generation"
    settings = {"adds_bos": False, "context": 256, "stateful": False}
    metrics = dict.fromkeys(("perplexity", "loss", "bits_per_character"), Metric(percent=False, more_is_better=False))
    metric_packages = {}
    has_target_text = False
    is_generated = True
    scoring_options = {SCORE_PROMPT: True, "max_length": 1}
    every_token = True
    warns_of_length = False

    def __init__(self, tokenizer: Tokenizer, adds_bos: bool, context: int):
        super().__init__(tokenizer, every_token=self.every_token)
        self.adds_bos, self.context = adds_bos, context

    @property
    def drawing(self) -> dict[str, Any]:
        return {"as": "continuation"}

    @classmethod
    def create(cls, head: HeadInfo, labels: Sequence[str], tokenizer: Tokenizer | None) -> Generation:
        settings, size = head.settings, required(tokenizer).get_vocab_size()
        context = evaluation_window(settings["context"], settings["stateful"], size)
        return cls(required(tokenizer), settings["adds_bos"], context)

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> Generation:
        return cls(required(tokenizer), bool(manifest["adds_bos"]), int(manifest["context"]))

    def manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, "target": None, "adds_bos": self.adds_bos, "context": self.context}

    @property
    def is_comparable(self) -> bool:
        return False

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        """Every token of a text; of two texts those of the second."""

        def targets(record: Record, doc: Doc) -> Targets:
            prompt = doc.second or 0
            return {"target_ids": [*doc.ids, END], "target_mask": [0] * prompt + [1] * (len(doc) + 1 - prompt)}

        return targets

    def unwritable(self, records: Sequence[Record], docs: Sequence[Doc], longest: int | None) -> Iterator[str]:
        yield from ()

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        continuations = super().answers(docs, decision)
        for doc, answer in zip(docs, continuations, strict=True):
            for alternative in answer if isinstance(answer, list) else [answer]:
                alternative["generated_text"] = self.prompt(doc) + alternative["generated_text"]
        return continuations

    def prompt(self, doc: Doc) -> str:
        """The text that an answer begins with: of two the second."""
        return doc.text[_begin(doc) :]

    def decode(self, tokens: list[int], doc: Doc) -> str:
        """What follows the prompt, as text: with the blank before it, where tokens are written with blanks between."""
        prompt, kept = doc.ids[doc.second or 0 :], self.step_ids(tokens)
        before, whole = self._decoded(prompt), self._decoded([*prompt, *kept])
        return whole[len(before) :] if whole.startswith(before) else self._decoded(kept)

    def _decoded(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    def text_length(self, doc: Doc) -> int:
        """How many tokens are read of a text; where [BOS] stands before it at least that."""
        return len(doc) + self.adds_bos

    def refuse_empty(self, docs: Sequence[Doc], records: Sequence[Record], before: int) -> None:
        """DataError for the first prompt without a token, by its place, or its number from `before` + 1 on."""
        for i, (doc, record) in enumerate(zip(docs, records, strict=True), before + 1):
            if not len(doc) and not self.adds_bos:
                message = "empty prompt: this model needs at least one token"
                raise DataError.at({"where": f"record {i}", **record}, message)

    def gold(self, record: Record) -> Any:
        raise UsageError("a language model has no references to compare with; it is judged by its perplexity")

    def perplexity(
        self,
        docs: Iterable[tuple[Doc, bool]],
        run: Callable[[Arrays], Arrays],
        other_features: Callable[[Sequence[Doc]], Arrays],
    ) -> dict[str, float]:
        """Perplexity, mean loss of a token in nats and bits per character; arguments as `AnswerKind` has them."""
        total, tokens = 0.0, 0
        counted, end = _Counted(docs), special_id(self.tokenizer, EOS)
        rows = self._texts(counted, end) if self.adds_bos else self._windows(counted, end)
        most = max(1, min(32, ENOUGH // (self.tokenizer.get_vocab_size() * self.context)))
        while some := list(islice(rows, most)):
            texts = [doc for *_, doc in some if doc is not None]
            more = other_features(texts) if texts else {}
            scores = run(padded([row for row, *_ in some]) | more)["prompt_scores"]
            for (row, first, _), log_p in zip(some, scores, strict=True):
                total -= float(log_p[first:].sum(dtype=np.float64))
                tokens += len(row) - first - (not self.adds_bos)
        if not tokens:
            raise DataError("perplexity needs a text of at least two tokens")
        loss, bits = total / tokens, total / _LN2 / max(1, counted.characters)
        return {"perplexity": math.exp(min(loss, 700.0)), "loss": loss, "bits_per_character": bits}

    def scoring_rows(self, doc: Doc, part: Part | None, masking: Masking) -> list[ScoringRow]:
        """One row: the text behind [BOS] or, of a model of packed texts, behind the end of another text.

        Of a part the tokens from its start to the end of the text count: what stands before has the same probability
        in every text that begins with it.
        """
        if masking != "token":
            raise UsageError(f"masking {masking!r} is for masked language models; this one reads from left to right")
        start = part[0] if part else 0
        tokens = [i for i in range(doc.second or 0, len(doc)) if doc.offsets[i][1] > start]
        before = [] if self.adds_bos else [special_id(self.tokenizer, EOS)]
        return [ScoringRow([*before, *doc.ids], tokens)]

    def scoring_inputs(self, rows: Sequence[ScoringRow]) -> Arrays:
        return padded([row.ids for row in rows])

    def row_scores(self, rows: Sequence[ScoringRow], decision: Arrays) -> list[float]:
        scores = decision["prompt_scores"]
        return [float(scores[b, row.tokens].sum(dtype=np.float64)) for b, row in enumerate(rows)]

    def _texts(self, docs: Iterable[tuple[Doc, bool]], end: int) -> Iterator[tuple[list[int], int, Doc | None]]:
        """Each text by itself, and from which token on it is judged: of two the second."""
        return (([*doc.ids, end], doc.second or 0, doc) for doc, _ in docs)

    def _windows(self, docs: Iterable[tuple[Doc, bool]], end: int) -> Iterator[tuple[list[int], int, Doc | None]]:
        """Stretches of the one text that all are, each beginning with the last token of the one before."""
        window: list[int] = []
        for token in flowing(docs, end):
            window.append(token)
            if len(window) > self.context:
                yield window, 0, None
                window = window[-1:]
        if len(window) > 1:
            yield window, 0, None


class _Counted:
    """Texts, and how many characters they had."""

    def __init__(self, docs: Iterable[tuple[Doc, bool]]):
        self.docs, self.characters = docs, 0

    def __iter__(self) -> Iterator[tuple[Doc, bool]]:
        for doc, record_continues in self.docs:
            self.characters += len(doc.text) - _begin(doc)
            yield doc, record_continues


def _begin(doc: Doc) -> int:
    """Where the text that is continued begins: of two the second."""
    return doc.offsets[doc.second - 1][1] if doc.second else 0


def evaluation_window(context: int, stateful: bool, size: int) -> int:
    """Tokens of the windows that a model with `size` tokens is evaluated in: of a stateful one as many as fit."""
    return max(context, min(JUDGED, ENOUGH // size)) if stateful else context


def flowing(docs: Iterable[tuple[Doc, bool]], end: int) -> Iterator[int]:
    """The tokens of all texts as one, with an end between two where the first does not continue in the second."""
    record_continues = True
    for doc, more in docs:
        yield from chain([] if record_continues else [end], doc.ids)
        record_continues = more


def prompt_records(
    records: Iterable[Record], split: Callable[[Sequence[Record]], Sequence[Doc]], field: str, context: int
) -> list[Record]:
    """Beginnings of texts, of long ones stretches, of 1 up to half a context of tokens: prompts."""
    prompts: list[Record] = []
    for record in islice(records, PROMPTS):
        (doc,) = split([record])
        for start in range(doc.second or 0, len(doc), max(4 * context, len(doc) // PROMPTS + 1)):
            many = 1 + (7 * len(prompts)) % max(1, min(context // 2, MOST_PROMPT))
            last = min(start + many, len(doc)) - 1
            text = doc.text[doc.offsets[start][0] : doc.offsets[last][1]]
            prompts.append({**record, field: text, RECORD_CONTINUES: False})
            if len(prompts) == PROMPTS:
                return prompts
    return prompts
