"""Offers the embedding `suffix` to seqpipe."""

from seqpipe.plugin import hookimpl


@hookimpl
def register_embeddings() -> dict[str, str]:
    return {"suffix": "acme_suffix.embedding:Suffix"}
