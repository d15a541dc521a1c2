"""Answer kinds text and generation: a generated text, and the continuation of a prompt."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, islice, repeat
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from tokenizers import Tokenizer

from seqpipe.answers.answer_types import ScoredToken, TextAnswer, TextAnswers, WrittenText
from seqpipe.answers.base import HeadAnswer, best_of, float32_number
from seqpipe.answers.metrics.text import PerplexityCounter, TextCounter, tokenizer_fault
from seqpipe.answers.task import HeadInfo, HeadTask, by_record, present, required_field
from seqpipe.answers.types import (
    Array,
    Choice,
    Counts,
    MakeTargets,
    Masking,
    Metric,
    Part,
    ScoringRow,
    SpanRules,
    Targets,
)
from seqpipe.errors import DataError, UsageError, attempts
from seqpipe.features.automaton import MOST_ARCS, TextTrie, WrittenBytes, stack_arcs, text_automaton, utf8
from seqpipe.features.document import (
    Arrays,
    Doc,
    ExtendedVocabulary,
    Record,
    first_docs,
    padded,
    target_ids,
    word_offsets_of,
)
from seqpipe.features.encoding import decode, encode, text_excerpt
from seqpipe.features.vocabulary import EOS, SPECIALS, UNK, clean_texts, replace_surrogates, special_id


def option_tokens(tokenizer: Tokenizer, option: str, value: Any) -> list[int]:
    """Return the ids of these tokens of the target vocabulary.

    A list has tokens or ids, and may contain the unknown token; a text with an unknown token is refused.

    Raises:
        UsageError: if the value is neither, or if a token is not in the vocabulary, or cannot occur in a text.
    """
    if not isinstance(value, str | list):
        raise UsageError(f"{option}: must be a text, a list of tokens, or a list of their ids, not {value!r}")
    unknown, end, size = special_id(tokenizer, UNK), special_id(tokenizer, EOS), tokenizer.get_vocab_size()
    pairs = _pieces(tokenizer, value) if isinstance(value, str) else [(token, _id(tokenizer, token)) for token in value]
    for token, number in pairs:
        if number is None or not 0 <= number < size or (number == unknown and isinstance(value, str)):
            vocabulary = f"the target vocabulary, which has {size:,}; choose others ({value!r})"
            raise UsageError(f"{option}: {token!r} is not a token of {vocabulary}")
        if number <= end and number != unknown:
            raise UsageError(f"{option}: {token!r} cannot occur in a text; leave it out ({value!r})")
    return [number for _, number in pairs if number is not None]


def _pieces(tokenizer: Tokenizer, text: str) -> list[tuple[str | int, int | None]]:
    encoding = encode(tokenizer, replace_surrogates(text))
    return [(text[a:b], number) for (a, b), number in zip(encoding.offsets, encoding.ids, strict=True)]


def _id(tokenizer: Tokenizer, token: Any) -> int | None:
    if isinstance(token, str):
        return tokenizer.token_to_id(replace_surrogates(token))
    return token if type(token) is int else None


# A generated text, and stop texts.

INCOMPLETE = "\ufffd"  # the decoded bytes of an incomplete character


class GeneratedText(str):
    """A text, with the number of its generated tokens, and the reason why it ends.

    The tokens are counted up to the end of a stop text, without [EOS]. The reason is `stop` for [EOS] and stop texts,
    else `length`; empty for a part of a text that is not finished.
    """

    tokens: int
    finish_reason: str

    def __new__(cls, text: str, tokens: int = 0, finish_reason: str = "") -> GeneratedText:
        generated = super().__new__(cls, text)
        generated.tokens, generated.finish_reason = tokens, finish_reason
        return generated


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Return the text up to the first of the stop texts, and whether there is one."""
    places = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return (text[: min(places)], True) if places else (text, False)


def held_back(text: str, stops: Sequence[str]) -> int:
    """Count the characters at the end that may be the beginning of a stop text."""
    lengths = (n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
    return max(lengths, default=0)


# Texts that a target tokenizer changes when they are encoded and decoded, and the fix.

_FOLDS: dict[str, Callable[[str], str]] = {
    "lowercase": str.casefold,
    "fold_digits": lambda text: re.sub(r"\d", "0", text),
}  # options of tokenizers, and their effects on a text


def roundtrip_message(changed: Sequence[tuple[str, str]], count: int, copies: bool) -> str:
    """Return the message, with the fix, about those of `count` texts that change, each with its changed copy."""
    shortest, its_copy = min(changed, key=lambda pair: len(pair[0]))
    example = f"{text_excerpt(shortest)} as {text_excerpt(its_copy)}"
    share = f"{len(changed) / count:.1%}"
    message = f"{len(changed):,} of {count:,} texts ({share}) change when encoded and decoded: {example}"
    for option, fold in _FOLDS.items():
        if all(fold(text) == fold(copy) for text, copy in changed):
            return f"{message}; delete {option} from the target tokenizer, or change the data accordingly"
    if copies:
        fix = "set detokenize: true and a pattern that splits only at white space"
        return f"{message}; words: {fix}"
    return f"{message}; use the target tokenizer {{use: bpe, byte_level: true}}, which is lossless"


# Answer kind text: generated sequences, with copied words where the head copies.

END = SPECIALS.index(EOS)
TOKENS_AND_SCORES = {
    "tokens": Array("(B, K, N)", "int64", "token", sums="N"),
    "scores": Array("(B, K)", "float32", "log-probability", sums="N"),
}
TOKEN_SCORES, TOKEN_LOG_P = "token_scores", "token_log_p"  # the decode option for the tokens of an answer; its output
TARGET_TOKENS = {
    "target_ids": Array("(B, N)", "int64", "token", mask="target_mask"),
    "target_mask": Array("(B, N)", "bool", mask="target_mask"),
}


class Text(HeadAnswer[TextAnswers]):
    """Text: `{"generated_text", "score"}`, or a list of them, best first; score: the probability of the sequence.

    Args:
        tokenizer: The target tokenizer.
        target: The record's field with the reference, or a list of references.
        copies: The extended vocabulary, if words of the source may be copied.
        bleu_tokenize: The tokenizer of the metric BLEU; None: chosen by the letters of the references.
        every_token: Whether all tokens of the source are read, including those of white space.
    """

    kind = "text"
    hub_task = "text2text-generation"
    answer_type: Any = TextAnswer
    nothing = {"generated_text": "", "score": 1.0}
    text_key = "generated_text"
    drawing: Mapping[str, Any] = {"as": "text"}
    decided = {**TOKENS_AND_SCORES, TOKEN_LOG_P: Array("(B, K, M)", "float32", required=False)}  # M: N or 0
    needs_tokenizer = log_score = True
    manifest_defaults = {"bleu_tokenize": None, "every_token": False}
    warns_of_length = True

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
        self.end = special_id(tokenizer, EOS)

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], tokenizer: Tokenizer | None) -> Self:
        kind = super().from_manifest(manifest, tokenizer)
        if copies := manifest.get("copies"):
            kind.copies = ExtendedVocabulary(kind.tokenizer, copies["same"])
        return kind

    def manifest(self) -> dict[str, Any]:
        return super().manifest() | ({"copies": {"same": self.copies.same}} if self.copies else {})

    def answers(self, docs: Sequence[Doc], decision: Arrays, stops: Sequence[str] = ()) -> list[TextAnswers]:
        """Return the answers of a decision; texts end before the first of the stop texts."""

        def answer(doc: Doc, tokens: list[int], *scores: Any) -> WrittenText:
            *token_scores, score = scores
            written: WrittenText = {"generated_text": self.generated_text(tokens, doc, stops), "score": score}
            if token_scores:
                written["tokens"] = self.scored_tokens(tokens, token_scores[0], doc)
            return written

        is_asked = TOKEN_LOG_P in decision and decision[TOKEN_LOG_P].shape[2] > 0
        return self.ranked(docs, decision, ("tokens", TOKEN_LOG_P) if is_asked else ("tokens",), answer)

    def scored_tokens(self, tokens: Sequence[int], scores: Sequence[float], doc: Doc) -> list[ScoredToken]:
        """Return the tokens of an answer, including its end, each with its log-probability."""
        kept = [number for number in tokens if number]  # without [PAD]
        pairs = zip(self.token_names(kept, doc), scores, strict=False)
        return [{"token": name, "log_score": min(0.0, float32_number(p))} for name, p in pairs]

    def encode(
        self, texts: Sequence[str | DataError], docs: Sequence[Doc], records: Sequence[Record]
    ) -> list[list[int] | DataError]:
        """Return the ids of each target text for its source, without an end, or the error about its record."""
        return target_ids(self.copies or self.tokenizer, texts, docs, records)

    def generated_text(self, tokens: list[int], doc: Doc, stops: Sequence[str] = ()) -> GeneratedText:
        """Return the text of these tokens up to a stop text; without an end token it ends at a complete character."""
        text, ended = self.decode(tokens, doc), self.end in tokens
        if not ended and text.endswith(INCOMPLETE):
            text = text[: len(text) - self.written_bytes.count_incomplete(self.step_ids(tokens))]
        kept, stopped = cut(text, stops)
        count = len(self.step_ids(tokens))
        if stopped:
            count = bisect_left(range(count), True, key=lambda n: cut(self.decode(tokens[:n], doc), stops)[1])
        return GeneratedText(kept, count, "stop" if ended or stopped else "length")

    @property
    def writer(self) -> Text:
        return self

    @cached_property
    def written_bytes(self) -> WrittenBytes:
        """Bytes that each token of the target tokenizer decodes to."""
        return WrittenBytes(self.tokenizer)

    def decode(self, tokens: list[int], doc: Doc) -> str:
        """Return token ids up to the end token as text, with copied words as in the source."""
        kept = self.step_ids(tokens)
        if self.copies is None or all(token < self.tokenizer.get_vocab_size() for token in kept):
            return str(self.tokenizer.decode(kept, skip_special_tokens=False))
        words, decoder = self.tokens(tokens, doc), self.tokenizer.decoder
        return str(decoder.decode(words)) if decoder else " ".join(words)

    def tokens(self, tokens: list[int], doc: Doc) -> list[str]:
        """Return the tokens up to the end token, as in the vocabulary or, if copied, as in the source."""
        return self.token_names(self.step_ids(tokens), doc)

    def token_names(self, ids: Sequence[int], doc: Doc) -> list[str]:
        """Return tokens as in the vocabulary or, if copied, as in the source."""
        new, V = self.copies.read(doc)[1] if self.copies else [], self.tokenizer.get_vocab_size()
        return [new[token - V] if token >= V else str(self.tokenizer.id_to_token(token)) for token in ids]

    def step_ids(self, ids: list[int]) -> list[int]:
        """Return token ids up to the end token, without special ones."""
        before_end = ids[: ids.index(self.end)] if self.end in ids else ids
        return [token for token in before_end if token > self.end]

    def token_ids(self, option: str, value: Any) -> list[int]:
        """Return token ids of the target vocabulary from a text, which is tokenized, or a list of tokens or ids."""
        return option_tokens(self.tokenizer, option, value)

    def pieces_with(self, texts: Sequence[str]) -> list[int]:
        """Return the ids of the pieces that contain one of these texts."""
        joined, starts = self.written_bytes.joined
        wanted = {utf8(text) for text in texts}
        places = [match.start() for text in wanted for match in re.finditer(re.escape(text), joined)]
        return np.unique(np.searchsorted(starts, places, "right") - 1).tolist()

    def forbidden_arcs(self, texts: Sequence[str]) -> Callable[..., np.ndarray]:
        """Return a function of documents, and optionally of generated tokens of a single one.

        It returns the arcs of an automaton (`docs/internals/bundle-options.md`) that bans these texts.
        """
        automaton, pieces = text_automaton(self.written_bytes, tuple(texts)), self.written_bytes.pieces

        def arcs(docs: Sequence[Doc], written: Sequence[int] = ()) -> np.ndarray:
            behind = b"".join(pieces[token] for token in written)
            starts = [automaton.after(utf8(self.prompt(doc)) + behind) for doc in docs]
            copied = [self.copies.read(doc)[1] if self.copies else [] for doc in docs]
            return automaton.inputs(starts, copied)

        return arcs

    def spelling(self, text: str, doc: Doc | None = None) -> tuple[list[int], str]:
        """Return the ids of a text, with words copied from this source if there is one, and what they decode to."""
        if doc and self.copies:
            ids = self.copies.written(text, doc)
            return ids, self.decode(ids, doc)
        ids = list(encode(self.tokenizer, replace_surrogates(text)).ids)
        return ids, decode(self.tokenizer, ids)

    def is_piece(self, text: str) -> bool:
        """Return whether a text is a single piece, which decodes to it, but for the spaces around it."""
        ids, decoded = self.spelling(text)
        return len(ids) == 1 and ids[0] > self.end and decoded.strip(" ") == text.strip(" ")

    def allowed_arcs(self, option: str, texts: Sequence[str], longest: int) -> Callable[..., np.ndarray]:
        """Return a function of documents, and optionally of generated tokens of a single one.

        It returns the arcs of a trie (`docs/internals/bundle-options.md`) of these texts of less than `longest` tokens.
        """

        def trie(doc: Doc | None) -> TextTrie:
            known, size = [], 0
            for text in texts:
                ids, decoded = self.spelling(text, doc)
                if doc is None and min(ids, default=END) <= END:
                    option_tokens(self.tokenizer, option, text)  # refuses it, with the token's name
                if SPECIALS.index(UNK) in ids:
                    continue
                if decoded.strip(" ") != text.strip(" "):
                    raise UsageError(f"{option}: {text!r} is written as {decoded!r}; give it in this form")
                if len(ids) >= longest:
                    message = f"{text!r} has {len(ids)} tokens and an end, more than max_length {longest}"
                    raise UsageError(f"{option}: {message}; give max_length={len(ids) + 1}")
                known.append(ids)
                if (size := size + len(ids)) > MOST_ARCS:
                    message = f"the first {len(known):,} of {len(texts):,} texts have {size:,} tokens"
                    raise UsageError(f"{option}: {message}, over the limit of {MOST_ARCS:,}; give fewer texts")
            if not known:
                raise DataError(f"{option}: each text has a word that is in neither the vocabulary nor the source")
            return TextTrie(known, self.end)

        shared = None if self.copies else trie(None)

        def arcs(docs: Sequence[Doc], written: Sequence[int] = ()) -> np.ndarray:
            return stack_arcs([shared.inputs(shared.after(written)) if shared else trie(doc).inputs(0) for doc in docs])

        return arcs

    def prompt(self, doc: Doc) -> str:
        """Return the text that a generated text continues."""
        return ""

    def step_names(self, decision: Arrays, doc: Doc) -> list[str]:
        return self.tokens(decision["tokens"][0, 0].tolist(), doc)


class TargetCensus:
    """Counts the tokens of the longest target text and, with `decodes`, texts that cannot be generated as they are.

    `longest` is the most tokens of a generated text, with its end; None if it has no limit.
    """

    def __init__(self, kind: Text, longest: float | None, decodes: bool = True):
        self.kind, self.longest, self.decodes = kind, longest, decodes
        self.count = self.lost = self.over = self.most = 0  # `most`: tokens of the longest text
        self.changed: list[tuple[str, str]] = []  # by encoding and decoding

    def add(self, records: Sequence[Record], docs: Sequence[Doc], targets: Sequence[Targets]) -> None:
        """Count the target texts of records."""
        rows: list[list[int]] = [target["target_ids"][:-1] for target in targets]  # type: ignore[index, misc]
        self.most = max([self.most, *map(len, rows)])
        if not self.decodes:
            return
        field = self.kind.target or "target"
        texts = clean_texts([_raw_target(record, field) for record in records])
        self.count += len(texts)
        for text, ids, doc in zip(texts, rows, docs, strict=True):
            if (copy := self.kind.decode(ids, doc)) != text:
                self.changed.append((text, copy))
            self.lost += SPECIALS.index(UNK) in ids
            self.over += self.longest is not None and len(ids) >= self.longest

    def messages(self) -> Iterator[tuple[str, str]]:
        """Yield the level of a line, "warning: " or "", and a line about each sort of targets that cannot be generated.

        The level of what training cannot correct is a warning: the tokenizer changes these texts.
        """
        count = self.count
        if count and self.kind.copies:
            share = 100 * (1 - len(self.changed) / count)
            lost = f"{self.lost:,} have a word that is in neither the target vocabulary nor the source"
            yield "", f"{share:.1f} % of {count:,} texts survive encoding and decoding; {lost}"
        if self.changed:
            yield "warning: ", roundtrip_message(self.changed, count, bool(self.kind.copies))
        if self.over:
            message = f"{self.over:,} of {count:,} texts have {self.longest} tokens or more, and are cut for scores"
            yield "", f"{message}; callers may set max_length={self.most + 1}"


W = TypeVar("W", bound=Text)


class TextTask(HeadTask[TextAnswers, W]):
    """Task of the text of a record, or of several references, each of which is right."""

    kind_type: type[HeadAnswer] = Text
    target_field = "target"
    settings: ClassVar[Mapping[str, Any]] = {"equal_length": False, "bleu_tokenize": None, "every_token": False}
    targets = TARGET_TOKENS
    metrics: Mapping[str, Metric] = {
        **dict.fromkeys(("exact_match", "token_accuracy", "bleu", "chrf", "rouge_1", "rouge_2", "rouge_l"), Metric()),
        **dict.fromkeys(("copy_precision", "copy_recall"), Metric()),
        **dict.fromkeys(("character_error_rate", "wer", "per"), Metric(more_is_better=False)),
        "perplexity": Metric(percent=False, more_is_better=False),
    }
    metric_packages: ClassVar[Mapping[str, str]] = {"sacrebleu": "bleu and chrf", "rouge_score": "ROUGE"}
    choices = (Choice(("tokens",), ranked=True),)
    has_target_text = True
    is_stepwise = True
    counts_tokens = True

    @classmethod
    def refuse_input(cls, head: HeadInfo) -> str:
        return tokenizer_fault(head.settings.get("bleu_tokenize"))

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        field, equal_length = self.kind.target or self.target_field, settings["equal_length"]

        def targets(record: Record, doc: Doc, words: Sequence[Any], ids: list[int]) -> Targets:
            if equal_length and len(ids) not in (len(doc.ids), len(words)):
                message = (
                    f"the text has {len(ids)} tokens and its source {len(doc.ids)}; equal_length needs equal numbers"
                )
                raise DataError.at(record, f"{message}: correct the record, or delete equal_length")
            return {"target_ids": [*ids, END], "target_mask": [1] * (len(ids) + 1)}

        def of_chunk(records: Sequence[Record], docs: Sequence[Doc]) -> list[Targets | DataError]:
            texts, first = attempts(partial(_raw_target, field=field), records), first_docs(docs)
            return attempts(targets, records, first, word_offsets_of(first), self.kind.encode(texts, docs, records))

        return of_chunk

    def target_census(self, longest: float | None, decodes: bool) -> TargetCensus | None:
        return TargetCensus(self.kind, longest, decodes) if self.has_target_text else None

    def _unknown_words(self, text: str) -> list[str]:
        """Return the out-of-vocabulary words of a text."""
        encoding = encode(self.kind.tokenizer, replace_surrogates(text))
        return [text[a:b] for (a, b), i in zip(encoding.offsets, encoding.ids, strict=True) if i <= self.kind.end]

    def gold(self, record: Record) -> str | list[str]:
        """Return the reference, or several."""
        return self.golds([record])[0]

    def golds(self, records: Sequence[Record]) -> list[str | list[str]]:
        rows = [_raw_references(record, self.kind.target or self.target_field) for record in records]
        clean = iter(clean_texts([text for texts in rows for text in texts]))
        references = [[next(clean) for _ in texts] for texts in rows]
        return [texts if len(texts) > 1 else texts[0] for texts in references]

    def predicted(self, answer: TextAnswers) -> str:
        return best_of(answer)["generated_text"]

    def counter(self) -> Counts:
        return TextCounter(self._unknown_words if self.kind.copies else None, self.kind.bleu_tokenize)

    def is_right(self, gold: Any, predicted: Any) -> bool:
        return bool(predicted in gold if isinstance(gold, list) else predicted == gold)


def check_ends(option: str, tokens: np.ndarray) -> None:
    """Raise DataError if one of the texts (B, n, N) is only the beginning of an allowed one."""
    if ((tokens > 0).any(2) & (tokens != END).all(2)).any():
        raise DataError(f"{option}: the context has no room for an allowed text after this prompt; shorten it")


def references(record: Record, field: str) -> list[str]:
    """Return the text of a record's field, or the texts of a list, any of which is right; DataError without text."""
    return clean_texts(_raw_references(record, field))


def _raw_references(record: Record, field: str) -> list[str]:
    value = required_field(record, field)
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        message = f"field {field!r} must be a text, or a list of texts any of which is right"
        raise DataError.at(record, f"{message}, not {type(value).__name__}")
    return texts


def target_text(record: Record, field: str) -> str:
    """Return the target text of a record, the first of several references; DataError if there is none."""
    return replace_surrogates(_raw_target(record, field))


def _raw_target(record: Record, field: str) -> str:
    present(record, field)
    return _raw_references(record, field)[0]


def text_of(record: Record, field: str) -> str:
    """Return the text of a record's field; DataError if it has none."""
    text = present(record, field)
    if not isinstance(text, str):
        raise DataError.at(record, f"field {field!r} must be a text, not {type(text).__name__}")
    return replace_surrogates(text)


# Answer kind of language models: continuations of prompts, and the perplexity of texts.

PAST, PRESENT = "past.", "present."  # prefixes of the names of the cache, as an input and as an output of a graph
RECORD_CONTINUES = "record_continues"  # of a record: whether its text continues in the next one
KEEP_CACHE = "keep_cache"  # the decode option that asks for the cache of a later run
SCORE_PROMPT = "score_prompt"  # the decode option that asks for the log-probabilities of a prompt's tokens
MAX_LOGITS = 1 << 23  # maximum number of logits of a batch
COMPARED_PROMPTS, MAX_PROMPT_TOKENS = 64, 40  # prompts for the comparison of answers, and the maximum tokens of one
JUDGED = 4096  # tokens of the evaluation windows of a stateful model
# A row of tokens: the number of the text that each score is of, the first score that counts, the text if separate.
_ScoredRow = tuple[list[int], list[int], int, Doc | None]


class Generation(Text):
    """Continuation: `{"generated_text", "score"}`, the prompt and its continuation; score: the latter's probability.

    Args:
        tokenizer: Tokenizer of the prompt and the continuation.
        adds_bos: Whether [BOS] precedes each text, so that a prompt may be empty.
        context: Tokens of the windows in which long texts are evaluated.
    """

    kind = "generation"
    hub_task = "text-generation"
    answer_type = WrittenText
    drawing = {"as": "continuation"}
    is_generated = True
    scoring_options: ClassVar[Mapping[str, Any]] = {SCORE_PROMPT: True, "max_length": 1}
    every_token = True
    manifest_keys, manifest_defaults = ("adds_bos", "context"), {}
    warns_of_length = False

    def __init__(self, tokenizer: Tokenizer, adds_bos: bool, context: int):
        super().__init__(tokenizer, every_token=self.every_token)
        self.adds_bos, self.context = bool(adds_bos), int(context)

    def answers(self, docs: Sequence[Doc], decision: Arrays, stops: Sequence[str] = ()) -> list[TextAnswers]:
        continuations = super().answers(docs, decision, stops)
        for doc, answer in zip(docs, continuations, strict=True):
            for alternative in answer if isinstance(answer, list) else [answer]:
                text: Any = alternative["generated_text"]
                whole = GeneratedText(self.prompt(doc) + text, text.tokens, text.finish_reason)
                alternative["generated_text"] = whole
        return continuations

    def prompt(self, doc: Doc) -> str:
        """Return the text that an answer begins with: the second of two."""
        return doc.text[_begin(doc) :]

    def decode(self, tokens: list[int], doc: Doc) -> str:
        """Return the text after the prompt, with the space before it if tokens are joined by spaces."""
        prompt, kept = doc.ids[doc.second or 0 :], self.step_ids(tokens)
        before, whole = decode(self.tokenizer, prompt), decode(self.tokenizer, [*prompt, *kept])
        return whole[len(before) :] if whole.startswith(before) else decode(self.tokenizer, kept)

    def text_length(self, doc: Doc) -> int:
        """Return the number of tokens that are read of a text, including [BOS]."""
        return len(doc) + self.adds_bos

    @property
    def scorer(self) -> Generation:
        return self

    def scoring_rows(self, doc: Doc, part: Part | None, masking: Masking) -> list[ScoringRow]:
        """Return one row: the text after [BOS] or, for a model of packed texts, after the end of another text.

        For a part, the tokens from its start to the end of the text count: the text before it has the same probability
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


class GenerationTask(TextTask[Generation]):
    """Task of every token of a text, evaluated by perplexity."""

    kind_type = Generation
    settings = {"adds_bos": False, "context": 256, "stateful": False}
    # A target for each token that the graph reads: [BOS] and those of the text.
    targets = {name: replace(array, shape="(B, T)") for name, array in TARGET_TOKENS.items()}
    metrics = dict.fromkeys(("perplexity", "loss", "bits_per_character"), Metric(percent=False, more_is_better=False))
    metric_packages = {}
    may_be_right = False
    has_target_text = False

    @classmethod
    def create(cls, head: HeadInfo, labels: Sequence[str], tokenizer: Tokenizer | None) -> HeadAnswer:
        if tokenizer is None:
            raise ValueError("a language model needs its tokenizer")
        settings, size = head.settings, tokenizer.get_vocab_size()
        context = evaluation_window(settings["context"], settings["stateful"], size)
        return super().create(replace(head, settings={**settings, "context": context}), labels, tokenizer)

    def target_maker(self, settings: Mapping[str, Any], rules: SpanRules) -> MakeTargets:
        """Return the function whose targets are the tokens of a text, of two texts those of the second."""

        def targets(record: Record, doc: Doc) -> Targets:
            prompt = doc.second or 0
            return {"target_ids": [*doc.ids, END], "target_mask": [0] * prompt + [1] * (len(doc.ids) + 1 - prompt)}

        return by_record(targets)

    def gold(self, record: Record) -> Any:
        """Return None: the reference is the text itself."""

    def predicted(self, answer: Any) -> Any:
        return answer

    def counter(self) -> Counts:
        return PerplexityCounter()

    def losses(
        self,
        docs: Iterable[tuple[Doc, bool]],
        run: Callable[[Arrays], Arrays],
        other_features: Callable[[Sequence[Doc]], Arrays],
    ) -> Iterator[dict[str, Any]]:
        """Yield the `loss` of each text, a sum over its tokens in nats, the number of these `tokens`, and `characters`.

        `docs` are the texts, each with a flag whether it continues in the next one; `run` maps the features of a batch
        to a decision with `prompt_scores`, and `other_features` separate texts to the features besides tokens.
        """
        texts: dict[int, dict[str, Any]] = {}  # those with tokens to come, by number

        def number_texts() -> Iterator[tuple[int, Doc, bool]]:
            for number, (doc, record_continues) in enumerate(docs):
                texts[number] = {"loss": 0.0, "tokens": 0, "characters": len(doc.text) - _begin(doc)}
                yield number, doc, record_continues

        end = special_id(self.kind.tokenizer, EOS)
        rows = self._texts(number_texts(), end) if self.kind.adds_bos else self._windows(number_texts(), end)
        most = max(1, min(32, MAX_LOGITS // (self.kind.tokenizer.get_vocab_size() * self.kind.context)))
        while batch := list(islice(rows, most)):
            separate = [doc for *_, doc in batch if doc is not None]
            more = other_features(separate) if separate else {}
            scores = run(padded([row for row, *_ in batch]) | more)["prompt_scores"]
            for (_, numbers, first, _), log_p in zip(batch, scores, strict=True):
                scored = np.array(numbers[first:])
                for number in np.unique(scored).tolist():
                    is_in_text = scored == number
                    texts[number]["loss"] -= float(log_p[first:][: len(scored)][is_in_text].sum(dtype=np.float64))
                    texts[number]["tokens"] += int(is_in_text.sum())
            for number in [number for number in texts if number < numbers[-1]]:
                yield texts.pop(number)
        yield from texts.values()

    def _texts(self, docs: Iterable[tuple[int, Doc, bool]], end: int) -> Iterator[_ScoredRow]:
        """Yield each text separately, of two texts with the second as what is scored."""
        return (([*doc.ids, end], [number] * (len(doc) + 1), doc.second or 0, doc) for number, doc, _ in docs)

    def _windows(self, docs: Iterable[tuple[int, Doc, bool]], end: int) -> Iterator[_ScoredRow]:
        """Yield windows of all texts as one, each beginning with the last token of the previous window."""
        tokens, numbers, has_ended = list[int](), list[int](), False
        for number, doc, record_continues in docs:
            before = [(end, number - 1)] if has_ended else []
            for token, text_number in chain(before, zip(doc.ids, repeat(number))):
                tokens.append(token)
                numbers.append(text_number)
                if len(tokens) > self.kind.context:
                    yield tokens, numbers[1:], 0, None
                    tokens, numbers = tokens[-1:], numbers[-1:]
            has_ended = not record_continues
        if len(tokens) > 1:
            yield tokens, numbers[1:], 0, None


def _begin(doc: Doc) -> int:
    """Return the start of the text that is continued, the second of two."""
    return doc.offsets[doc.second - 1][1] if doc.second else 0


def evaluation_window(context: int, stateful: bool, size: int) -> int:
    """Return the tokens of an evaluation window for a vocabulary of `size`: for a stateful model as many as fit."""
    return max(context, min(JUDGED, MAX_LOGITS // size)) if stateful else context


def concatenate(docs: Iterable[tuple[Doc, bool]], end: int) -> Iterator[int]:
    """Yield the tokens of all texts as one, with an end token after each text that does not continue in the next."""
    record_continues = True
    for doc, more in docs:
        yield from chain([] if record_continues else [end], doc.ids)
        record_continues = more


def prompt_records(
    records: Iterable[Record], split: Callable[[Sequence[Record]], Sequence[Doc]], field: str, context: int
) -> list[Record]:
    """Return prompts: beginnings of texts, or windows of long ones, of 1 token up to half a context."""
    prompts: list[Record] = []
    for record in islice(records, COMPARED_PROMPTS):
        (doc,) = split([record])
        for start in range(doc.second or 0, len(doc), max(4 * context, len(doc) // COMPARED_PROMPTS + 1)):
            many = 1 + (7 * len(prompts)) % max(1, min(context // 2, MAX_PROMPT_TOKENS))
            last = min(start + many, len(doc)) - 1
            text = doc.text[doc.offsets[start][0] : doc.offsets[last][1]]
            prompts.append({**record, field: text, RECORD_CONTINUES: False})
            if len(prompts) == COMPARED_PROMPTS:
                return prompts
    return prompts
