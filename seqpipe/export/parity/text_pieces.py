"""Find where a text may be cut into pieces that its tokenizer splits as it splits the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from seqpipe.features.document import Doc, Record
from seqpipe.features.raw_text import with_raw_text
from seqpipe.features.sources import TextSource
from seqpipe.features.splitting import CUTS, Cut, smallest_pieces

Token = tuple[int, int, int]  # id, start, end


def possible_cut(source: TextSource, records: Sequence[Record]) -> Cut | None:
    """What texts such as these may be cut behind; None where only words can be streamed."""
    return next((cut for cut in CUTS if split_otherwise(source, records, cut) is None), None)


def split_otherwise(source: TextSource, records: Iterable[Record], cut: Cut) -> str | None:
    """The first text whose tokens in pieces are not those of the whole; None if there is none."""
    known: dict[str, Doc] = {}  # each piece, split once
    for record in records:
        raw = {name: value for name, value in with_raw_text(record).items() if name != "words"}
        text = source.text(raw)
        (whole,) = source.docs([raw])
        pieces = [*smallest_pieces(text, cut)]
        new = [piece for piece in dict.fromkeys(pieces) if piece not in known]
        known |= zip(new, source.docs([{**raw, source.fields[0]: piece} for piece in new]), strict=True)
        docs = [known[piece] for piece in pieces]
        if _tokens([whole]) != _tokens(docs) or _words([whole]) != _words(docs):
            return text
    return None


def _tokens(docs: Iterable[Doc]) -> list[Token]:
    return [
        (i, start + shift, end + shift)
        for doc, shift in _placed(docs)
        for i, (start, end) in zip(doc.ids, doc.offsets, strict=True)
    ]


def _words(docs: Iterable[Doc]) -> list[tuple[int, int]]:
    return [(start + shift, end + shift) for doc, shift in _placed(docs) for start, end in doc.word_offsets]


def _placed(docs: Iterable[Doc]) -> Iterator[tuple[Doc, int]]:
    """Each piece, and where it stands in the text."""
    length = 0
    for doc in docs:
        yield doc, length
        length += len(doc.text)
