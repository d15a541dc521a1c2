"""Checkpoints of random weights whose answers vary: a GPT-2, a T5, and encoders with their heads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers


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
                parameter.mul_(10)
    model.save_pretrained(folder)
    never = torch.zeros(len(pieces)).index_fill(0, torch.tensor([0]), -1e4)  # ours never writes padding
    model.lm_head.register_forward_hook(lambda module, inputs, logits: logits + never)
    return fast_tokenizer, model


ENCODERS = ("albert", "bert", "deberta-v2", "distilbert", "electra", "modernbert", "mpnet", "roberta", "xlm-roberta")
# Families whose tokenizer is like that of another one.
LIKE = {
    "camembert": "xlm-roberta",
    "data2vec-text": "roberta",
    "deberta": "roberta",
    "ernie": "bert",
    "eurobert": "modernbert",
    "gte": "bert",
    "jina_embeddings_v3": "xlm-roberta",
    "luke": "roberta",
    "megatron-bert": "bert",
    "nomic_bert": "bert",
    "rembert": "albert",
    "roberta-prelayernorm": "roberta",
    "roc_bert": "bert",
    "roformer": "bert",
    "xlm-roberta-xl": "xlm-roberta",
}
_BERT, _ROBERTA = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_UNIGRAM = {
    "albert": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    "deberta-v2": ("[PAD]", "[CLS]", "[SEP]", "[UNK]"),
    "xlm-roberta": ("<s>", "<pad>", "</s>", "<unk>"),
}


def encoder(
    folder: Path,
    family: str,
    task: str,
    texts: Sequence[str],
    *,
    vocabulary: int = 400,
    longest: int = 160,
    **more: Any,
) -> Path:
    """An encoder with a head (`SequenceClassification`, …; `` for none), written to the folder with its tokenizer.

    Its tokenizer is of the family's kind, and its weights are large enough for answers to vary.
    """
    like = LIKE.get(family, family)
    tokenizer = _encoder_tokenizer(like, texts, vocabulary)
    tokenizer.model_max_length = longest
    tokenizer.save_pretrained(folder)
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 48, "max_position_embeddings": longest}
    if family == "distilbert":
        sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": longest}
    elif family in ("albert", "electra"):
        sizes["embedding_size"] = 24
    elif family == "deberta-v2":
        sizes |= {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
        sizes |= {"position_buckets": 16, "share_att_key": True, "norm_rel_ebd": "layer_norm", "type_vocab_size": 0}
    elif family == "modernbert":
        sizes |= {"num_hidden_layers": 3, "global_attn_every_n_layers": 2, "local_attention": 16}
    elif like in ("mpnet", "roberta", "xlm-roberta"):
        sizes |= {"max_position_embeddings": longest + 2, "type_vocab_size": 1}
    roles = {"pad": "pad", "bos": "cls", "eos": "sep", "cls": "cls", "sep": "sep"}
    ids = {f"{name}_token_id": getattr(tokenizer, f"{role}_token_id") for name, role in roles.items()}
    config = transformers.AutoConfig.for_model(family, vocab_size=len(tokenizer), **sizes | ids | more)
    torch.manual_seed(1)
    model_class = getattr(transformers, f"AutoModelFor{task}" if task else "AutoModel")
    model = model_class.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(10)
            elif name.endswith("bias"):
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


def _encoder_tokenizer(family: str, texts: Sequence[str], size: int) -> Any:
    if family in _UNIGRAM:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.train_from_iterator(texts, trainers.UnigramTrainer(vocab_size=size, show_progress=False))
        listed = json.loads(tokenizer.to_str())["model"]["vocab"]
        pieces = {piece: torch.tensor(score, dtype=torch.float32).item() for piece, score in listed}  # as SentencePiece
        names = _UNIGRAM[family]
        vocab = [*((name, 0.0) for name in names), *({"▁": -3.0} | pieces).items()]
        if family == "xlm-roberta":
            return transformers.XLMRobertaTokenizer(vocab=[*vocab, ("<mask>", 0.0)])
        kinds = {"albert": transformers.AlbertTokenizer, "deberta-v2": transformers.DebertaV2Tokenizer}
        return kinds[family](vocab=vocab)
    if family in ("modernbert", "roberta"):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        special = [*(_ROBERTA if family == "roberta" else _BERT)]
        letters = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=special, initial_alphabet=letters, show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer)
        model = json.loads(tokenizer.to_str())["model"]
        if family == "roberta":
            merges = [tuple(pair) for pair in model["merges"]]
            return transformers.RobertaTokenizer(vocab=model["vocab"], merges=merges)
        tokenizer.normalizer, tokenizer.decoder = normalizers.NFC(), decoders.ByteLevel()
        tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in (4, 3, 2)])
        marks = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", marks)
        names = {f"{name[1:-1].lower()}_token": name for name in _BERT}
        return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"] if family == "mpnet" else [*_BERT]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    vocab = dict(sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1]))
    kinds = {"mpnet": transformers.MPNetTokenizer, "distilbert": transformers.DistilBertTokenizer}
    kinds |= {"electra": transformers.ElectraTokenizer}
    return kinds.get(family, transformers.BertTokenizer)(vocab=vocab)
