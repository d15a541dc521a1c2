"""seqpipe's own components, through the same door as everybody's: a folder for each YAML key, a file for each `use`."""

from __future__ import annotations

from seqpipe import hookimpl


@hookimpl
def register_readers() -> dict[str, str]:
    return {
        "conll": "seqpipe_plugins.readers.conll:Conll",
        "jsonl": "seqpipe_plugins.readers.jsonl:Jsonl",
    }


@hookimpl
def register_tokenizers() -> dict[str, str]:
    return {
        "chars": "seqpipe_plugins.tokenizers.chars:Chars",
        "words": "seqpipe_plugins.tokenizers.words:Words",
    }


@hookimpl
def register_embeddings() -> dict[str, str]:
    return {
        "char-cnn": "seqpipe_plugins.embeddings.char_cnn:CharCNN",
        "lookup": "seqpipe_plugins.embeddings.lookup:Lookup",
    }


@hookimpl
def register_encoders() -> dict[str, str]:
    return {
        "gru": "seqpipe_plugins.encoders.gru:GRU",
        "lstm": "seqpipe_plugins.encoders.lstm:LSTM",
        "rnn": "seqpipe_plugins.encoders.rnn:RNN",
    }


@hookimpl
def register_heads() -> dict[str, str]:
    return {
        "crf": "seqpipe_plugins.heads.crf:CRF",
        "label": "seqpipe_plugins.heads.label:Label",
        "seq2seq": "seqpipe_plugins.heads.seq2seq:Seq2Seq",
        "tags": "seqpipe_plugins.heads.tags:Tags",
    }
