"""A small checkpoint of `transformers` in place of a real one, made from a pipeline's training texts.

Its tokenizer is trained on these texts and its weights are random: a pipeline that starts from it shows the procedure,
not the scores of a real checkpoint. The files have the same bytes each time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from seqpipe.config.loader import Config
from seqpipe.files import writing_folder
from seqpipe.training.datasets import load_records
from seqpipe.training.fit import split_or_whole

NAMES = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
BERT_TOKENS = 128  # tokens of a text


def tiny_bert(folder: Path, texts: Sequence[str], pieces: int) -> int:
    """Write config.json, model.safetensors and the tokenizer's files; return the number of pieces."""
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
    from transformers.utils import logging

    tokenizer = word_pieces(texts, pieces)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=BERT_TOKENS,
    )
    with torch.random.fork_rng(devices=[]), writing_folder(folder) as part:
        torch.manual_seed(1)
        logging.disable_progress_bar()
        BertModel(config).save_pretrained(part)
        logging.enable_progress_bar()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=BERT_TOKENS, **NAMES).save_pretrained(part)
    return int(config.vocab_size)


def checkpoint_texts(config: Config, folder: Path) -> list[str]:
    """Return the training texts for the tokenizers of the checkpoint in this folder."""
    fields = [tokenizer.common_keys["field"] for tokenizer in config.tokenizers if folder in tokenizer.options.values()]
    names = [name for field in fields for name in ((field,) if isinstance(field, str) else field)]
    records = load_records(config.data.reader, config.data.train)
    texts = (split_or_whole(record, (name,), name) for record in records for name in names)
    return [text if isinstance(text, str) else " ".join(text) for text in texts]


def word_pieces(texts: Sequence[str], size: int) -> Tokenizer:
    """Return a lower-casing WordPiece tokenizer like BERT's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    letters = sorted({letter for text in texts for letter in text.lower() if not letter.isspace()})
    first = [*NAMES.values(), *letters, *(f"##{letter}" for letter in letters)]  # in the same order each time
    trainer = trainers.WordPieceTrainer(vocab_size=size, min_frequency=2, special_tokens=first, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][: len(NAMES)]  # a letter is not a special token
    tokenizer = Tokenizer.from_str(json.dumps(content))
    special = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    return tokenizer
