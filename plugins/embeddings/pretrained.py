"""A checkpoint of `transformers` as an embedding, to be concatenated with others."""

from __future__ import annotations

from typing import ClassVar

from seqpipe_plugins.encoders.pretrained import Pretrained as Encoder


class Pretrained(Encoder):
    """The vectors of a pretrained encoder as an embedding, joined with others such as `char-cnn` (Peters et al. 2018).

    It is the encoder `pretrained` in all but its place: with `freeze: true` it gives features, else it learns on.
    """

    returns: ClassVar = {"x": ""}
