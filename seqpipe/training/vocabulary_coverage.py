"""Tokens that the fitted vocabularies do not hold: of inputs unknown, of target texts impossible to write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seqpipe.answers.generation import Continuation
from seqpipe.answers.span_infilling import Hidden
from seqpipe.answers.targets import target_text
from seqpipe.answers.text import Text
from seqpipe.config.loader import Config
from seqpipe.features.document import Doc, Record, place_of
from seqpipe.features.vocabulary import SPECIALS, UNK
from seqpipe.training.artifacts import Artifacts, Task
from seqpipe.training.predictor import option_table

CHECKED = 1000  # records whose targets are checked before training


def unknown_share(artifacts: Artifacts, docs: Sequence[Doc]) -> float:
    """The share of tokens of all text sources that the vocabulary does not hold."""
    unknown, texts = SPECIALS.index(UNK), [part for doc in docs for part in doc.parts or (doc,) if part.rows is None]
    return sum(doc.ids.count(unknown) for doc in texts) / max(1, sum(map(len, texts)))


def unwritable(artifacts: Artifacts, task: Task, records: Sequence[Record], longest: int | None) -> Iterator[str]:
    """Report what a head that writes text can never write of these records' targets, a line each.

    Args:
        artifacts: Of the run.
        task: The head's.
        records: With their targets.
        longest: The default limit of tokens of a text, its end included.
    """
    kind, field = task.kind, task.answer.get("target") or "target"
    if not isinstance(kind, Text) or isinstance(kind, Continuation | Hidden) or not records:
        return
    texts, docs = [target_text(record, field) for record in records], artifacts.featurizer.docs(records)
    encoded = [kind.encode(text, doc, place_of(record)) for record, text, doc in zip(records, texts, docs, strict=True)]
    decoded = [kind.decode(ids, doc) for ids, doc in zip(encoded, docs, strict=True)]
    changed = [(text, result) for text, result in zip(texts, decoded, strict=True) if result != text]
    if kind.copies:
        lost = sum(ids.count(SPECIALS.index(UNK)) > 0 for ids in encoded)
        share = f"{100 * (1 - len(changed) / len(texts)):.1f} % of {len(texts):,} texts survive encoding and decoding"
        yield f"{share}; {lost:,} hold a word that neither the target vocabulary nor their source has"
    if changed:
        text, result = min(changed, key=lambda pair: len(pair[0]))
        message = f"{len(changed):,} of {len(texts):,} texts change when encoded and decoded: {text!r} as {result!r}"
        cure = "words: give it detokenize: true and a pattern that keeps together what has no blank within"
        lossless = "the target tokenizer {use: bpe, byte_level: true} loses nothing"
        yield f"{message}; {cure if kind.copies else lossless}"
    over = [len(ids) for ids in encoded if longest is not None and len(ids) >= longest]
    if over:
        message = f"{len(over):,} of {len(texts):,} texts have {longest} tokens or more, and are cut there in scores"
        yield f"{message}; a caller may give max_length={max(over) + 1}"


def unwritable_notes(config: Config, artifacts: Artifacts, records: Sequence[Record]) -> Iterator[str]:
    """Report what heads that write text cannot write of the first records, a line each."""
    for head, task in zip(config.head, artifacts.tasks, strict=True):
        longest = option_table(head).get("max_length", {}).get("default")
        yield from (f"{head.key}: {note}" for note in unwritable(artifacts, task, records[:CHECKED], longest))
