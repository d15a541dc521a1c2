"""Offers the head `biaffine-parser` and the reader `dependencies` to seqpipe."""

from seqpipe.plugin import hookimpl


@hookimpl
def register_heads() -> dict[str, str]:
    return {"biaffine-parser": "acme_parser.head:BiaffineParser"}


@hookimpl
def register_readers() -> dict[str, str]:
    return {"dependencies": "acme_parser.reader:Dependencies"}
