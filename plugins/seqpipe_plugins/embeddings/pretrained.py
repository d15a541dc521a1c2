"""A checkpoint of `transformers` as an embedding, to be concatenated with others."""

from __future__ import annotations

from typing import ClassVar

from seqpipe_plugins.encoders.pretrained import PretrainedEncoder as Encoder


class PretrainedEmbedding(Encoder):
    """The output of a pretrained encoder as an embedding, to combine with others such as `char-cnn`.

    It equals the encoder `pretrained` (Peters et al. 2018). With `freeze: true` it provides features; otherwise it is
    fine-tuned.
    """

    returns: ClassVar = {"x": ""}
