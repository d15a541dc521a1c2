"""Answers to streamed texts, and incremental text generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from seqpipe.answers.answer_types import Answer
from seqpipe.answers.text import GeneratedText, Generation, held_back
from seqpipe.errors import BundleError, DataError, UsageError
from seqpipe.features.document import Doc, Record
from seqpipe.features.sources import TextSource
from seqpipe.features.splitting import Cut, TextChunks
from seqpipe.features.vocabulary import EOS, special_id
from seqpipe.runtime.decode_options import MAX_LENGTH, MIN_LENGTH, WIDTHS, Chosen, length_options, resolve_options
from seqpipe.runtime.manifest import Streaming, next_inputs
from seqpipe.runtime.predictor import BundlePredictor, Predictor
from seqpipe.runtime.session import GraphSession
from seqpipe.types import OPTION_TYPES

# Stream the continuation of a prompt, each chunk as soon as it is generated.
#
# The graph is that of whole answers: the cache that one run returns is an input of the next.

STREAM_TOKENS = 8  # tokens of a run; the first run has one, so that it is fast


def stream(predictor: Predictor, graph: GraphSession, record: Record, **options: Any) -> Iterator[GeneratedText]:
    """Yield chunks of text that together are the continuation that `model(record)` generates.

    Each has the number of tokens generated so far, the last one also the finish reason.

    Raises:
        UsageError: if the bundle is not a language model, or several answers are requested.
    """
    kind = predictor.kind
    if not kind.is_generated:
        raise UsageError("streaming needs a language-model bundle (head lm)")
    if several := [name for name in WIDTHS if options.get(name, 1) != 1]:
        raise UsageError(f"stream: only a single answer can be streamed; leave {several[0]} out")
    (doc,) = predictor.docs([record])
    decoding = resolve_options(predictor.options, options, kind) if options else predictor.defaults
    return _chunks(predictor, graph, cast(Generation, kind), doc, decoding)


def prompt(predictor: Predictor, record: Record) -> str:
    """Return the beginning of the answer to a prompt, before the chunks of `stream`."""
    (doc,) = predictor.docs([record])
    return cast(Generation, predictor.kind).prompt(doc)


def _chunks(
    predictor: Predictor, graph: GraphSession, kind: Generation, doc: Doc, decoding: Chosen
) -> Iterator[GeneratedText]:
    option_arrays = decoding.of([doc])
    least, longest = int(option_arrays[MIN_LENGTH]), len(option_arrays[MAX_LENGTH])
    most = min([longest, *(option_arrays[name].shape[2] for name in decoding.seeds)])
    stops = [name for name, option in predictor.options.items() if OPTION_TYPES[option["type"]].ends_text]
    ends = {special_id(kind.tokenizer, EOS), *(i for name in stops for i in option_arrays[name].ravel().tolist())}
    feeds = predictor.featurizer.collate([doc])
    cache: dict[str, np.ndarray] = {}
    written: list[int] = []
    sent, size = 0, 1
    while len(written) < most:
        n = min(size, most - len(written))
        options = option_arrays | length_options(max(0, least - len(written)), n)
        options |= {name: option_arrays[name][:, :, len(written) : len(written) + n] for name in decoding.seeds}
        options |= {name: arcs([doc], written) for name, arcs in decoding.automata.items()}
        decision = graph.run_with_cache(feeds | options | cache)
        tokens = [token for token in decision["tokens"][0, 0].tolist() if token]
        written += tokens
        text = kind.generated_text(written, doc, decoding.stops)
        ended = len(tokens) < n or tokens[-1] in ends or text.finish_reason == "stop" or len(written) == most
        safe = len(text) if ended else max(sent, len(text) - held_back(text, decoding.stops))
        yield GeneratedText(text[sent:safe], text.tokens, text.finish_reason if ended else "")
        if ended:
            return
        sent, size = safe, min(2 * size, STREAM_TOKENS)
        feeds = feeds | {"ids": np.array([tokens[-1:]], np.int64), "mask": np.ones((1, 1), bool)}
        cache = next_inputs(graph.cache, decision)


# Answer a streamed text: the graph's cache after one chunk is an input for the next.


class PieceStream:
    """A text that is answered while it arrives.

    `feed` takes the next chunk, a text or a list of words, and returns what it completes: the tags of its words, the
    spans that have ended, or, for other bundles, the answer to the text so far. `finish` ends the text; the next chunk
    begins another one. Together these are the answer of `model(…)` to the whole text.

    Args:
        predictor, graph: Those of a bundle.
        streaming: The bundle's description of chunks.
        fields: The record's other fields that the bundle reads.

    Attributes:
        tags: The tags of the words that the last call completed, for bundles of tags or spans (IOB2).

    Raises:
        UsageError: if the bundle does not answer streamed texts.
    """

    def __init__(
        self,
        predictor: BundlePredictor,
        graph: GraphSession,
        streaming: Streaming | None,
        fields: Mapping[str, Any] | None = None,
    ):
        source = predictor.featurizer
        if streaming is None or not isinstance(source, TextSource):
            fix = "write `export: {streaming: true}` in the YAML and run it, or export its run again"
            command = "seqpipe export RUN --set export.streaming=true"
            raise UsageError(f"this bundle answers whole texts only; {fix}: {command}")
        self._predictor, self._graph, self._source, self._fields = predictor, graph, source, dict(fields or {})
        self._cut: Cut | None = streaming.cut
        self._grows = any(entry.grows for entry in graph.cache)
        self.tags: list[str] = []
        outputs = {output.name for output in graph.session.get_outputs()}
        if lacking := {*predictor.kind.chunk_reader().outputs} - outputs:
            raise BundleError(f"the graph has no output {', '.join(sorted(lacking))}; export the bundle again")
        self._begin()

    def _begin(self) -> None:
        """Reset the text."""
        kind = self._predictor.kind
        self._is_text: bool | None = None  # whether it is fed as text or as words; None before its first chunk
        self._cache: dict[str, np.ndarray] = {}
        self._skipped, self._count = "", 0  # text read after the last word, and the number of tokens
        self._chunks, self._reader = TextChunks(self._cut or "word"), kind.chunk_reader()
        self._answer = kind.empty(False)  # to the text so far, for kinds that answer whole texts

    def feed(self, chunk: str | Sequence[str]) -> Answer:
        """Read one more chunk and return the answers that it completes.

        A word of a text is complete when white space follows it, a word of a list at once. If every character is a
        token, a text is answered character by character.

        Raises:
            DataError: if the text has too many tokens, or a number of the answer is NaN.
            UsageError: for a text after words or words after a text, and for a text that the bundle's tokenizer splits
                differently in chunks.
        """
        is_text = isinstance(chunk, str)
        if self._is_text not in (None, is_text):
            raise UsageError("a text is fed either as text or as words; call `finish` before the other")
        if is_text and self._cut is None:
            raise UsageError("this bundle's tokenizer splits a text differently in chunks; feed lists of words")
        if not is_text and self._source.fields != ("text",):
            raise UsageError(f"this bundle reads the field {self._source.fields[0]!r}, which has no words; feed text")
        self._is_text = is_text
        if isinstance(chunk, str):
            return self._read(self._chunks.feed(chunk), None)
        text = " ".join(chunk)
        return self._read(" " + text if self._count and chunk else text, list(chunk))

    def finish(self) -> Answer:
        """End the text and return its last tags or spans; for other kinds, the answer to the whole text."""
        answer = self._read(self._chunks.finish(), None)
        tags, last_answer = self.tags, self._reader.finish()
        self._begin()
        self.tags = tags
        return answer + last_answer if self._predictor.kind.tags_words else last_answer

    def _read(self, text: str, words: list[str] | None) -> Answer:
        """Read a chunk of whole words and return the answers that it completes."""
        self.tags = []
        predictor, text = self._predictor, self._skipped + text
        record = {**self._fields, self._source.fields[0]: text} | ({} if words is None else {"words": words})
        (doc,) = predictor.docs([record], within_text=self._count > 0)
        if not len(doc):
            self._skipped = text if words is None else ""  # it precedes the next word
            return [] if predictor.kind.tags_words else self._answer
        self._skipped, self._count = "", self._count + len(doc)
        if self._grows and self._count > (most := predictor.limits.tokens):
            raise DataError(f"over {most:,} tokens, the limit of this bundle's cache; call `finish` earlier")
        decision = self._graph.run_with_cache(predictor.featurizer.collate([doc]) | self._cache)
        self._cache = next_inputs(self._graph.cache, decision)
        self._answer = predictor.read_chunk(self._reader, doc, decision)
        self.tags = self._reader.tags
        return self._answer
