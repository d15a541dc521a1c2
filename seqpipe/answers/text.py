"""Answer kind text: generated sequences, with copied words where the head copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from seqpipe.answers.base import HeadAnswer, best_of, present, probability, required_field, with_score
from seqpipe.answers.decision_checks import changed_values
from seqpipe.answers.json_schema import PROBABILITY, TEXT, Schema, obj
from seqpipe.answers.metrics.text import TextCounter, tokenizer_fault
from seqpipe.answers.option_tokens import option_tokens
from seqpipe.answers.round_trip import changed_message
from seqpipe.answers.span_rules import SpanRules
from seqpipe.answers.types import LOG_ZERO, Answer, Array, Choice, Counts, HeadInfo, MakeTargets, Metric, Targets
from seqpipe.errors import DataError
from seqpipe.features.document import Arrays, Doc, ExtendedVocabulary, Record, place_of
from seqpipe.features.encoding import encode
from seqpipe.features.vocabulary import EOS, SPECIALS, UNK, clean, special_id

END = SPECIALS.index(EOS)
TOKENS_AND_SCORES = {
    "tokens": Array("(B, K, N)", "int64", "token"),
    "scores": Array("(B, K)", "float32", "log-probability"),
}
TARGET_TOKENS = {
    "target_ids": Array("(B, N)", "int64", "token", mask="target_mask"),
    "target_mask": Array("(B, N)", "bool", mask="target_mask"),
}
_FRACTIONS = (
    *("exact_match", "token_accuracy", "bleu", "chrf", "rouge_1", "rouge_2", "rouge_l"),
    *("copy_precision", "copy_recall"),
)
_LOWER = Metric(more_is_better=False)
_PERPLEXITY = Metric(percent=False, more_is_better=False)


class Text(HeadAnswer):
    """Text: `{"generated_text", "score"}`, or a list of them, best first; score: the probability of the sequence.

    Args:
        tokenizer: Of what is written.
        target: The record's field with the reference, or a list of them.
        copies: What it may write, where words of the source may be copied that the tokenizer lacks.
        bleu_tokenize: The tokenizer of the metric BLEU; None: chosen by the letters of the references.
        every_token: Whether all tokens of the source are read, those of white space alone too.
    """

    kind = "text"
    settings = {"equal_length": False, "bleu_tokenize": None, "every_token": False}
    decided = TOKENS_AND_SCORES
    targets = TARGET_TOKENS
    metrics = {
        **dict.fromkeys(_FRACTIONS, Metric()),
        **dict.fromkeys(("character_error_rate", "wer", "per"), _LOWER),
        "perplexity": _PERPLEXITY,
    }
    metric_packages = {"sacrebleu": "bleu and chrf", "rouge_score": "ROUGE"}
    choices = (Choice(("tokens",), ranked=True),)
    needs_tokenizer = True
    has_target_text = True
    is_stepwise = True
    warns_of_length = True
    counts_tokens = True
    step_output = "tokens"

    def __init__(
        self,
        tokenizer: Tokenizer,
        target: str | None = None,
        copies: ExtendedVocabulary | None = None,
        bleu_tokenize: str | None = None,
        every_token: bool = False,
    ):
        self.tokenizer, self.target, self.copies, self.bleu_tokenize = tokenizer, target, copies, bleu_tokenize
        self.every_token = every_token
        self._end = special_id(tokenizer, EOS)

    @property
    def drawing(self) -> dict[str, Any]:
        return {"as": "text"}

    @classmethod
    def refuse_input(cls, head: HeadInfo) -> str:
        return tokenizer_fault(head.settings.get("bleu_tokenize"))

    @classmethod
    def create(cls, head: HeadInfo, labels: Sequence[str], tokenizer: Tokenizer | None) -> Text:
        writer = required(tokenizer)
        copies = ExtendedVocabulary(writer, head.same_tokenizer) if head.copies else None
        return cls(writer, head.target, copies, head.settings["bleu_tokenize"], head.settings["every_token"])

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> Text:
        writer, copies = required(tokenizer), manifest.get("copies")
        extended = ExtendedVocabulary(writer, copies["same"]) if copies else None
        return cls(
            writer, manifest["target"], extended, manifest.get("bleu_tokenize"), manifest.get("every_token", False)
        )

    def manifest(self) -> dict[str, Any]:
        copies = {"copies": {"same": self.copies.same}} if self.copies else {}
        every_token = {"every_token": True} if self.every_token else {}
        return {"kind": self.kind, "target": self.target, **copies, **every_token, **self._stated_bleu_tokenizer()}

    def _stated_bleu_tokenizer(self) -> dict[str, str]:
        return {"bleu_tokenize": self.bleu_tokenize} if self.bleu_tokenize else {}

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        field, equal_length = self.target or "target", settings["equal_length"]

        def targets(record: Record, doc: Doc) -> Targets:
            ids = self.encode(target_text(record, field), doc, place_of(record))
            first = doc.first
            if equal_length and len(ids) not in (len(first), len(first.word_offsets)):
                message = (
                    f"the text has {len(ids)} tokens and its source {len(first)}; with equal_length they have as many"
                )
                raise DataError.at(record, f"{message}: correct the record, or leave equal_length out")
            return {"target_ids": [*ids, END], "target_mask": [1] * (len(ids) + 1)}

        return targets

    def unwritable(self, records: Sequence[Record], docs: Sequence[Doc], longest: int | None) -> Iterator[str]:
        texts = [target_text(record, self.target or "target") for record in records]
        encoded = [
            self.encode(text, doc, place_of(record)) for record, text, doc in zip(records, texts, docs, strict=True)
        ]
        decoded = [self.decode(ids, doc) for ids, doc in zip(encoded, docs, strict=True)]
        changed = [(text, copy) for text, copy in zip(texts, decoded, strict=True) if copy != text]
        if self.copies:
            lost = sum(ids.count(SPECIALS.index(UNK)) > 0 for ids in encoded)
            share = 100 * (1 - len(changed) / len(texts))
            yield (
                f"{share:.1f} % of {len(texts):,} texts survive encoding and decoding; {lost:,} hold a word that "
                "neither the target vocabulary nor their source has"
            )
        if changed:
            yield changed_message(changed, len(texts), bool(self.copies))
        over = [len(ids) for ids in encoded if longest is not None and len(ids) >= longest]
        if over:
            message = (
                f"{len(over):,} of {len(texts):,} texts have {longest} tokens or more, and are cut there in scores"
            )
            yield f"{message}; a caller may give max_length={max(over) + 1}"

    def answers(self, docs: Sequence[Doc], decision: Arrays) -> list[Answer]:
        answers = []
        for doc, row, log_p in zip(docs, decision["tokens"].tolist(), decision["scores"], strict=True):
            hypotheses = [
                {"generated_text": self.decode(tokens, doc), "score": probability(np.exp(p))}
                for tokens, p in zip(row, log_p, strict=True)
                if p > LOG_ZERO or len(row) == 1
            ]
            answers.append(hypotheses if len(row) > 1 else hypotheses[0])
        return answers

    def encode(self, text: str, doc: Doc, at: str = "") -> list[int]:
        """The ids of a text that answers this one, without an end; DataError, prefixed with `at`, if there are none."""
        if self.copies:
            return self.copies.written(text, doc, at)
        return list(encode(self.tokenizer, text, at).ids)

    def decode(self, tokens: list[int], doc: Doc) -> str:
        """Token ids up to the end token, as text; copied words as they stand in the source."""
        kept = self.step_ids(tokens)
        if self.copies is None or all(token < self.tokenizer.get_vocab_size() for token in kept):
            return str(self.tokenizer.decode(kept, skip_special_tokens=False))
        words, decoder = self.tokens(tokens, doc), self.tokenizer.decoder
        return str(decoder.decode(words)) if decoder else " ".join(words)

    def tokens(self, tokens: list[int], doc: Doc) -> list[str]:
        """Token ids up to the end token, each as the vocabulary has it, or as it stands in the source."""
        kept, V = self.step_ids(tokens), self.tokenizer.get_vocab_size()
        new = self.copies.read(doc)[1] if self.copies else []
        return [new[token - V] if token >= V else str(self.tokenizer.id_to_token(token)) for token in kept]

    @property
    def unknown_words(self) -> Callable[[str], list[str]] | None:
        """Where words are copied: those of a text that the vocabulary lacks."""
        return self._unknown_words if self.copies else None

    def _unknown_words(self, text: str) -> list[str]:
        encoding = encode(self.tokenizer, clean(text))
        return [text[a:b] for (a, b), i in zip(encoding.offsets, encoding.ids, strict=True) if i <= self._end]

    def step_ids(self, ids: list[int]) -> list[int]:
        """Token ids up to the end token, without special ones."""
        before_end = ids[: ids.index(self._end)] if self._end in ids else ids
        return [token for token in before_end if token > self._end]

    def token_ids(self, option: str, value: Any) -> list[int]:
        """Tokens of the target vocabulary: of a text, which is split, or of a list of tokens or of their ids."""
        if not isinstance(value, str | list):
            return super().token_ids(option, value)
        return option_tokens(self.tokenizer, option, value)

    def counts(self, mask: np.ndarray) -> dict[str, int]:
        return {"token": self.tokenizer.get_vocab_size() + (mask.shape[1] if self.copies else 0)}

    def other_decision(self, decision: Arrays, mask: np.ndarray) -> Arrays:
        return {**decision, "tokens": (decision["tokens"] + 1) % self.tokenizer.get_vocab_size()}

    def other_target(self, name: str, targets: Arrays, mask: np.ndarray) -> np.ndarray:
        counts = {"token": self.tokenizer.get_vocab_size()}
        return changed_values(self.targets[name], targets[name], mask, counts)

    def step_names(self, ids: list[int], doc: Doc) -> list[str]:
        return self.tokens(ids, doc)

    def part_schema(self) -> Schema:
        return obj({"generated_text": TEXT, "score": PROBABILITY})

    def part_lines(self, part: Any) -> list[str]:
        return [with_score(part["generated_text"], part)]

    def empty(self, several: bool) -> Answer:
        """The empty text."""
        answer = {"generated_text": "", "score": 1.0}
        return [answer] if several else answer

    def gold(self, record: Record) -> str | list[str]:
        """The reference, or several."""
        first, *more = references(record, self.target or "target")
        return [first, *more] if more else first

    def predicted(self, answer: Answer) -> str:
        return str(best_of(answer)["generated_text"])

    def counter(self) -> Counts:
        return TextCounter(self.unknown_words, self.bleu_tokenize)

    def is_right(self, gold: Any, predicted: Any) -> bool:
        return bool(predicted in gold if isinstance(gold, list) else predicted == gold)

    def mistakes(self, gold: Any, predicted: Any) -> dict[str, Any]:
        return {"expected": gold, "got": predicted}


def required(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer of what is written; ValueError if there is none."""
    if tokenizer is None:
        raise ValueError("an answer that is text needs its target tokenizer")
    return tokenizer


def references(record: Record, field: str) -> list[str]:
    """The text of a record's field, or the texts of a list, any of which is right; DataError if there is none."""
    value = required_field(record, field)
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        message = f"field {field!r} must be a text, or a list of texts any of which is right"
        raise DataError.at(record, f"{message}, not {type(value).__name__}")
    return [clean(text) for text in texts]


def target_text(record: Record, field: str) -> str:
    """The text that a head learns to write, of several references the first; DataError if there is none."""
    present(record, field)
    return references(record, field)[0]


def text_of(record: Record, field: str) -> str:
    """The text of a record's field; DataError if it holds none."""
    text = present(record, field)
    if not isinstance(text, str):
        raise DataError.at(record, f"field {field!r} must be a text, not {type(text).__name__}")
    return clean(text)
