"""The texts of `assistant-en` to `tiny-bert`, and others likewise: checkpoints of `transformers` in place of real ones.

Their tokenizers learned their pieces from these texts, their weights are random: they know nothing, and pipelines that
start from them show the way, not what a real one reaches. The same bytes each time.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

HERE = Path(__file__).parent
NAMES = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
LONGEST = 128


def checkpoint(folder: Path, texts: Sequence[str], size: int = 1000, width: int = 64, layers: int = 2) -> None:
    """Writes config.json, model.safetensors and the tokenizer's files."""
    tokenizer = pieces(texts, size)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=LONGEST, **NAMES).save_pretrained(folder)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=LONGEST,
    )
    torch.manual_seed(1)
    BertModel(config).save_pretrained(folder)
    print(f"wrote {folder}: {config.vocab_size:,} pieces, {layers} layers, {width} wide, of random weights")


def pieces(texts: Sequence[str], size: int) -> Tokenizer:
    """A lower-casing WordPiece tokenizer as BERT has it."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    letters = sorted({letter for text in texts for letter in text.lower() if not letter.isspace()})
    first = [*NAMES.values(), *letters, *(f"##{letter}" for letter in letters)]  # in an order of their own each time
    trainer = trainers.WordPieceTrainer(vocab_size=size, min_frequency=2, special_tokens=first, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][: len(NAMES)]  # a letter is no special token
    tokenizer = Tokenizer.from_str(json.dumps(content))
    special = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    return tokenizer


def sentences(path: Path) -> list[str]:
    """The words of each sentence of a file in columns, joined by blanks."""
    blocks = path.read_text(encoding="utf-8").split("\n\n")
    rows = ([line for line in block.splitlines() if line and not line.startswith("# ")] for block in blocks)
    return [" ".join(line.split("\t")[0] for line in lines) for lines in rows if lines]


def cells(path: Path) -> list[str]:
    """The texts of a table of pairs, all but its last column."""
    with path.open(encoding="utf-8", newline="") as file:
        return [text for row in list(csv.reader(file))[1:] for text in row[:-1]]


def passages(path: Path) -> list[str]:
    """The passages and the questions of a file in the JSON of SQuAD."""
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    found = [one for article in articles for one in article["paragraphs"]]
    return [one["context"] for one in found] + [qa["question"] for one in found for qa in one["qas"]]


if __name__ == "__main__":
    checkpoint(HERE / "tiny-bert", sentences(HERE / "assistant-en" / "train.conll"))
    checkpoint(HERE / "tiny-bert-pairs", cells(HERE / "pairs" / "train.csv"))
    checkpoint(HERE / "tiny-bert-questions", passages(HERE / "questions" / "train.json"), size=350)
