"""Offers the reader `fasttext` to seqpipe."""

from seqpipe import hookimpl


@hookimpl
def register_readers() -> dict[str, str]:
    return {"fasttext": "acme_labelled.reader:FastText"}
