"""ids in, what a checkpoint of `transformers` makes of them out, to stand beside other embeddings."""

from __future__ import annotations

from typing import ClassVar

from seqpipe_plugins.encoders.pretrained import Pretrained as Encoder


class Pretrained(Encoder):
    """The output of a pretrained encoder as an embedding, to combine with others such as `char-cnn`.

    It equals the encoder `pretrained` (Peters et al. 2018). With `freeze: true` it provides features; otherwise it is
    fine-tuned.
    """

    returns: ClassVar = {"x": ""}
