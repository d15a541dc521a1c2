"""Pretrained encoder-decoders of every known family, by the `model_type` of their configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from seqpipe.nn import bart, t5
from seqpipe.nn.encoder_decoder import DecoderParts, EncoderParts
from seqpipe.nn.pretrained import Seq2SeqCheckpoint, pretrained_seq2seq


class Family(Protocol):
    """What makes an encoder and a decoder of a checkpoint: a module or an object."""

    def encoder(self, checkpoint: Seq2SeqCheckpoint, dropout: float | None, language: str | None) -> EncoderParts: ...

    def decoder(self, checkpoint: Seq2SeqCheckpoint, dropout: float | None, language: str | None) -> DecoderParts: ...


FAMILIES: Mapping[str, Family] = {"t5": t5, "mt5": t5, "bart": bart.BART, "mbart": bart.MBART, "marian": bart.MARIAN}


def encoder_parts(
    checkpoint: str | Path, vocabulary: Sequence[str], dropout: float | None, language: str | None
) -> EncoderParts:
    """The encoder of a checkpoint.

    Args:
        checkpoint: A folder, or a name on the hub.
        vocabulary: The tokens that ids stand for, those of `pretrained_tokenizer`.
        dropout: Dropout probability; None for the checkpoint's own.
        language: Of the texts, of a checkpoint of several languages; None for that of its tokenizer.

    Raises:
        DataError, EnvError, UsageError: as `pretrained_model` does, and for a model of another kind or language.
    """
    read = pretrained_seq2seq(checkpoint, vocabulary, [*FAMILIES], "source")
    return FAMILIES[read.config.model_type].encoder(read, dropout, language)


def decoder_parts(
    checkpoint: str | Path, vocabulary: Sequence[str], dropout: float | None, language: str | None
) -> DecoderParts:
    """The decoder of a checkpoint, as `encoder_parts`; `language` is what it writes."""
    read = pretrained_seq2seq(checkpoint, vocabulary, [*FAMILIES], "target")
    return FAMILIES[read.config.model_type].decoder(read, dropout, language)
