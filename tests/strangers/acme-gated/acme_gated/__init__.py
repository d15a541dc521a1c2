"""Offers the encoder `gated-conv` to seqpipe."""

from seqpipe.plugin import hookimpl


@hookimpl
def register_encoders() -> dict[str, str]:
    return {"gated-conv": "acme_gated.encoder:GatedConv"}
