"""Checkpoints of random weights whose texts vary: a GPT-2 and a T5."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def gpt2(folder: Path, text: Path) -> Any:
    """A GPT-2 of 5,000 tokens, written to the folder."""
    end, letters = "<|endoftext|>", pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=5000, special_tokens=[end], initial_alphabet=letters, show_progress=False)
    tokenizer.train([str(text)], trainer)
    names = {"bos_token": end, "eos_token": end, "unk_token": end}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"n_embd": 384, "n_layer": 6, "n_head": 6, "n_positions": 256, "vocab_size": 5000}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, initializer_range=0.1)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder)
    return model


def t5(folder: Path, words: Sequence[str]) -> tuple[Any, Any]:
    """A T5 1.1 of 4 layers each side, 256 wide, and its tokenizer, written to the folder."""
    names, tokenizer = ["<pad>", "</s>", "<unk>"], Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    trainer = trainers.UnigramTrainer(vocab_size=4000, special_tokens=names, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator([" ".join(words)], trainer)
    pieces = [tuple(piece) for piece in json.loads(tokenizer.to_str())["model"]["vocab"]]
    pieces += [(f"<extra_id_{i}>", 0.0) for i in reversed(range(100))]
    fast_tokenizer = transformers.T5Tokenizer(vocab=pieces)
    fast_tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"d_model": 256, "d_kv": 32, "d_ff": 512, "num_layers": 4, "num_heads": 8, "decoder_start_token_id": 0}
    new = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    config = transformers.T5Config(vocab_size=len(pieces), **sizes, **new)
    model = transformers.T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
        for name, parameter in model.named_parameters():
            if "Attention" in name:
                parameter.mul_(3)
    model.save_pretrained(folder)
    never = torch.zeros(len(pieces)).index_fill(0, torch.tensor([0]), -1e4)  # ours never writes padding
    model.lm_head.register_forward_hook(lambda module, inputs, logits: logits + never)
    return fast_tokenizer, model
