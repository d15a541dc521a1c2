"""ids in, what a checkpoint of `transformers` makes of them out, to stand beside other embeddings."""

from __future__ import annotations

from typing import ClassVar

from seqpipe_plugins.encoders.pretrained import Pretrained as Encoder


class Pretrained(Encoder):
    """The output of a pretrained encoder as an embedding, to combine with others such as `char-cnn`.

    It is the encoder `pretrained` in all but its place: with `freeze: true` it gives features, else it learns on.
    """

    returns: ClassVar = {"x": ""}
