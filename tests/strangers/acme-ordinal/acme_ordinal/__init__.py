"""Offers the head `ordinal` to seqpipe."""

from seqpipe.plugin import hookimpl


@hookimpl
def register_heads() -> dict[str, str]:
    return {"ordinal": "acme_ordinal.head:Ordinal"}
