"""The built-in components: a folder for each YAML key, a file for each `use`."""

from __future__ import annotations

from seqpipe.plugin import hookimpl


@hookimpl
def register_readers() -> dict[str, str]:
    return {
        "annotations": "seqpipe_plugins.readers.annotations:Annotations",
        "brat": "seqpipe_plugins.readers.annotations:Brat",
        "conll": "seqpipe_plugins.readers.conll:Conll",
        "conllu": "seqpipe_plugins.readers.conllu:Conllu",
        "csv": "seqpipe_plugins.readers.csv:Csv",
        "datasets": "seqpipe_plugins.readers.parquet:Datasets",
        "dialogflow": "seqpipe_plugins.readers.annotations:Dialogflow",
        "excel": "seqpipe_plugins.readers.excel:Excel",
        "fasttext": "seqpipe_plugins.readers.fasttext:FastText",
        "folders": "seqpipe_plugins.readers.folders:Folders",
        "json": "seqpipe_plugins.readers.json:Json",
        "jsonl": "seqpipe_plugins.readers.json:Jsonl",
        "lines": "seqpipe_plugins.readers.lines:Lines",
        "parallel": "seqpipe_plugins.readers.parallel:Parallel",
        "parquet": "seqpipe_plugins.readers.parquet:Parquet",
        "points": "seqpipe_plugins.readers.points:Points",
        "segmented": "seqpipe_plugins.readers.segmented:Segmented",
        "sounds": "seqpipe_plugins.readers.sounds:Sounds",
        "squad": "seqpipe_plugins.readers.squad:Squad",
        "text": "seqpipe_plugins.readers.text:TextReader",
        "tsv": "seqpipe_plugins.readers.csv:Tsv",
    }


@hookimpl
def register_tokenizers() -> dict[str, str]:
    return {
        "bpe": "seqpipe_plugins.tokenizers.bpe:BPE",
        "chars": "seqpipe_plugins.tokenizers.chars:CharsTokenizer",
        "lexicon": "seqpipe_plugins.tokenizers.lexicon:Lexicon",
        "pretrained": "seqpipe_plugins.tokenizers.pretrained:PretrainedTokenizer",
        "unigram": "seqpipe_plugins.tokenizers.unigram:Unigram",
        "wordpiece": "seqpipe_plugins.tokenizers.wordpiece:WordPiece",
        "words": "seqpipe_plugins.tokenizers.words:WordsTokenizer",
    }


@hookimpl
def register_embeddings() -> dict[str, str]:
    return {
        "char-cnn": "seqpipe_plugins.embeddings.char_cnn:CharCNN",
        "char-lstm": "seqpipe_plugins.embeddings.char_lstm:CharLSTM",
        "elmo": "seqpipe_plugins.embeddings.elmo:ELMo",
        "image": "seqpipe_plugins.embeddings.image:ImageEmbedding",
        "linear": "seqpipe_plugins.embeddings.linear:LinearEmbedding",
        "lookup": "seqpipe_plugins.embeddings.lookup:Lookup",
        "mel": "seqpipe_plugins.embeddings.mel:MelEmbedding",
        "ngrams": "seqpipe_plugins.embeddings.ngrams:NgramsEmbedding",
        "positions": "seqpipe_plugins.embeddings.positions:Positions",
        "pretrained": "seqpipe_plugins.embeddings.pretrained:PretrainedEmbedding",
        "static": "seqpipe_plugins.embeddings.static:Static",
        "vectors": "seqpipe_plugins.embeddings.vectors:Vectors",
    }


@hookimpl
def register_encoders() -> dict[str, str]:
    return {
        "bag": "seqpipe_plugins.encoders.bag:Bag",
        "bilm": "seqpipe_plugins.encoders.bilm:BiLMEncoder",
        "cnn": "seqpipe_plugins.encoders.cnn:CNN",
        "compare": "seqpipe_plugins.encoders.compare:Compare",
        "conv": "seqpipe_plugins.encoders.conv:Conv",
        "fine-tuned": "seqpipe_plugins.encoders.fine_tuned:FineTuned",
        "fine-tuned-reader": "seqpipe_plugins.encoders.fine_tuned:FineTunedReader",
        "gru": "seqpipe_plugins.encoders.gru:GRU",
        "lenet": "seqpipe_plugins.encoders.pictures:LeNet",
        "lstm": "seqpipe_plugins.encoders.lstm:LSTM",
        "nested-lstm": "seqpipe_plugins.encoders.nested_lstm:NestedLSTM",
        "pretrained": "seqpipe_plugins.encoders.pretrained:PretrainedEncoder",
        "pretrained-decoder": "seqpipe_plugins.encoders.pretrained_decoder:PretrainedDecoder",
        "pretrained-seq2seq": "seqpipe_plugins.encoders.pretrained_seq2seq:PretrainedSeq2SeqEncoder",
        "pyramid": "seqpipe_plugins.encoders.lstm:Pyramid",
        "resnet": "seqpipe_plugins.encoders.pictures:ResNet",
        "rnn": "seqpipe_plugins.encoders.rnn:RNN",
        "self-attention": "seqpipe_plugins.encoders.self_attention:SelfAttention",
        "sentences": "seqpipe_plugins.encoders.sentences:SentencesEncoder",
        "subsample": "seqpipe_plugins.encoders.conv:Subsample",
        "transformer": "seqpipe_plugins.encoders.transformer:Transformer",
        "words": "seqpipe_plugins.encoders.words:WordsEncoder",
    }


@hookimpl
def register_heads() -> dict[str, str]:
    return {
        "answer-span": "seqpipe_plugins.heads.answer_span:AnswerSpan",
        "bilm": "seqpipe_plugins.heads.bilm:BiLMHead",
        "crf": "seqpipe_plugins.heads.crf:CRF",
        "electra": "seqpipe_plugins.heads.electra:Electra",
        "label": "seqpipe_plugins.heads.label:LabelHead",
        "lm": "seqpipe_plugins.heads.lm:LM",
        "mlm": "seqpipe_plugins.heads.mlm:MaskedLM",
        "pointer": "seqpipe_plugins.heads.pointer:Pointer",
        "pretrained-seq2seq": "seqpipe_plugins.heads.pretrained_seq2seq:PretrainedSeq2SeqHead",
        "retrieval": "seqpipe_plugins.heads.retrieval:Retrieval",
        "score": "seqpipe_plugins.heads.score:ScoreHead",
        "copy-seq2seq": "seqpipe_plugins.heads.copy_seq2seq:CopySeq2Seq",
        "seq2seq": "seqpipe_plugins.heads.seq2seq:Seq2Seq",
        "skip-gram": "seqpipe_plugins.heads.skip_gram:SkipGram",
        "tags": "seqpipe_plugins.heads.tags:TagsHead",
        "transformer-decoder": "seqpipe_plugins.heads.transformer_decoder:TransformerDecoder",
        "vector": "seqpipe_plugins.heads.vector:VectorHead",
    }
