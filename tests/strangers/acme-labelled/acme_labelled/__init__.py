"""Offers the reader `labelled-lines` to seqpipe."""

from seqpipe.plugin import hookimpl


@hookimpl
def register_readers() -> dict[str, str]:
    return {"labelled-lines": "acme_labelled.reader:FastText"}
