"""Offers the head `relations` to seqpipe."""

from seqpipe.plugin import hookimpl


@hookimpl
def register_heads() -> dict[str, str]:
    return {"relations": "acme_relations.head:Relations"}
