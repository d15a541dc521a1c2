"""Checkpoints in the format of `transformers`, made on the spot: tiny, of random weights, of several families."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from seqpipe.testing.toys import ToyTokenizer, records
from seqpipe.vocabulary import SPECIALS

_PATH = Path(__file__).parent.parent / "pipelines" / "data" / "make_checkpoint.py"
_SPEC = importlib.util.spec_from_file_location("make_checkpoint", _PATH)
assert _SPEC
assert _SPEC.loader
make_checkpoint = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make_checkpoint)

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": SMALL,
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 40},
    "electra": SMALL | {"embedding_size": 12},
    "deberta-v2": SMALL
    | {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "position_biased_input": False,
    },
    "roberta": SMALL | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1},
    "xlm-roberta": SMALL | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1},
}
BART = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>"}  # special tokens of RoBERTa, in their order


def checkpoint(folder: Path, family: str, texts: Sequence[str], most: int = 150) -> Path:
    """A checkpoint with the kind of tokenizer that the family has; `most` is the size of a WordPiece vocabulary."""
    names: dict[str, str] = make_checkpoint.NAMES
    if family == "roberta":
        tokenizer, names = _byte_level(texts), _of_roberta()
    elif family == "xlm-roberta":
        tokenizer, names = _unigram(texts), _of_roberta()
    else:
        tokenizer = make_checkpoint.pieces(texts, most)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    size = tokenizer.get_vocab_size() + 3  # weights often hold rows that no token has
    config = transformers.AutoConfig.for_model(family, vocab_size=size, **FAMILIES[family])
    torch.manual_seed(1)
    model = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # large enough for mistakes to show
    model.save_pretrained(folder)
    return folder


def of_the_kit(folder: Path) -> Path:
    """A checkpoint whose tokens are the words of the conformance kit."""
    tokenizer = ToyTokenizer().train(record["text"] for record in records())
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIALS, strict=True))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model("bert", vocab_size=tokenizer.get_vocab_size(), **SMALL)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder


DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "llama": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    },
}
END = "<|endoftext|>"


def decoder(folder: Path, family: str, texts: Sequence[str], scale: float = 0.3) -> Path:
    """The checkpoint of a model that writes, with byte pairs; its weights are large enough for texts to vary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[END], initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return _writing(folder, family, tokenizer, {"bos_token": END, "eos_token": END, "unk_token": END}, scale)


def decoder_of_the_kit(folder: Path) -> Path:
    """The checkpoint of a model that writes, whose tokens are the words of the conformance kit."""
    tokenizer = ToyTokenizer().train(record["text"] for record in records())
    roles = ("pad_token", "unk_token", "bos_token", "eos_token")
    return _writing(folder, "gpt2", tokenizer, dict(zip(roles, SPECIALS, strict=True)), 0.3, tie=True)


def _writing(
    folder: Path, family: str, tokenizer: Tokenizer, names: dict[str, str], scale: float, tie: bool = False
) -> Path:
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(
        family,
        vocab_size=tokenizer.get_vocab_size(),
        tie_word_embeddings=tie,
        initializer_range=scale,
        bos_token_id=0,
        eos_token_id=0,
        **DECODERS[family],
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def _of_roberta() -> dict[str, str]:
    return {f"{name}_token": token for name, token in (BART | {"cls": "<s>", "sep": "</s>"}).items()}


def _byte_level(texts: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=[*BART.values()], initial_alphabet=letters, show_progress=False
    )
    return _between_marks(tokenizer, texts, trainer)


def _unigram(texts: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=[*BART.values()], unk_token="<unk>", show_progress=False
    )
    return _between_marks(tokenizer, texts, trainer)


def _between_marks(tokenizer: Tokenizer, texts: Sequence[str], trainer: Any) -> Tokenizer:
    """Trained, with RoBERTa's special tokens around texts, two of them between those of a pair."""
    tokenizer.train_from_iterator(texts, trainer)
    ids = {name: tokenizer.token_to_id(name) for name in BART.values()}
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", ids["</s>"]), ("<s>", ids["<s>"]))
    return tokenizer


def rewrite(file: Path, **changes: Any) -> None:
    """Changes keys of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
