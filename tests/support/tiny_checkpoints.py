"""Tiny checkpoints of several families in the format of `transformers`, with random weights."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.convert_slow_tokenizer import import_protobuf

from seqpipe.features.vocabulary import SPECIALS
from seqpipe.testing.toys import ToyTokenizer, records
from seqpipe.training.tiny_bert import NAMES, word_pieces

SMALL: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 40,
}  # fmt: skip
DEBERTA: dict[str, Any] = {
    "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "position_biased_input": False,
}  # fmt: skip
ROBERTA: dict[str, Any] = SMALL | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": SMALL,
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 40},
    "electra": SMALL | {"embedding_size": 12},
    "deberta-v2": SMALL | DEBERTA,
    "roberta": ROBERTA,
    "modernbert": SMALL | {"num_hidden_layers": 3, "global_attn_every_n_layers": 2, "local_attention": 6},
    "xlm-roberta": ROBERTA,
}
BART = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>"}  # special tokens of RoBERTa, in their order


def checkpoint(folder: Path, family: str, texts: Sequence[str], most: int = 150) -> Path:
    """A checkpoint with the kind of tokenizer that the family has; `most` is the size of a WordPiece vocabulary."""
    tokenizer = _tokenizer(family, texts, most)
    tokenizer.save_pretrained(folder)
    size = len(tokenizer) + 3  # weights often hold rows that no token has
    ids: dict[str, int] = {}
    if family == "modernbert":
        roles = {"pad": "pad", "bos": "cls", "eos": "sep", "cls": "cls", "sep": "sep"}
        ids = {f"{name}_token_id": getattr(tokenizer, f"{role}_token_id") for name, role in roles.items()}
    config = transformers.AutoConfig.for_model(family, vocab_size=size, **FAMILIES[family], **ids)
    torch.manual_seed(1)
    model = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # large enough for mistakes to show
    model.save_pretrained(folder)
    return folder


def kit_vocabulary_size(folder: Path, roles: Sequence[str] = ("pad", "unk", "bos", "eos")) -> int:
    """Write a tokenizer whose tokens are the words of the conformance kit, and return the size of its vocabulary."""
    tokenizer = ToyTokenizer().train(record["text"] for record in records())
    names = {f"{role}_token": token for role, token in zip(roles, SPECIALS, strict=True)}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return tokenizer.get_vocab_size()


def kit_bert(folder: Path, task: str = "") -> Path:
    """The checkpoint of a BERT whose tokens are the words of the conformance kit, with a head for a task."""
    size = kit_vocabulary_size(folder, ("pad", "unk", "cls", "sep"))
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model("bert", vocab_size=size, **SMALL)
    model_class = getattr(transformers, f"AutoModelFor{task}" if task else "AutoModel")
    model_class.from_config(config).save_pretrained(folder)
    return folder


DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "llama": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 48, "max_position_embeddings": 64,
    },
}  # fmt: skip
END = "<|endoftext|>"


def decoder(folder: Path, family: str, texts: Sequence[str]) -> Path:
    """The checkpoint of a language model, with byte pairs; its weights are large enough for texts to vary."""
    tokenizer = _byte_pairs(texts, 400, [END])
    names = {"bos_token": END, "eos_token": END, "unk_token": END}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return _decoder(folder, family, tokenizer.get_vocab_size(), tie=False)


def kit_gpt2(folder: Path) -> Path:
    """The checkpoint of a language model whose tokens are the words of the conformance kit."""
    return _decoder(folder, "gpt2", kit_vocabulary_size(folder), tie=True)


def _decoder(folder: Path, family: str, size: int, tie: bool) -> Path:
    torch.manual_seed(1)
    settings = {"tie_word_embeddings": tie, "initializer_range": 0.3, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.AutoConfig.for_model(family, vocab_size=size, **settings, **DECODERS[family])
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def _byte_pairs(texts: Sequence[str], size: int, special: Sequence[str], normalizer: Any = None) -> Tokenizer:
    """A byte-level BPE tokenizer trained on the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    options = {"special_tokens": [*special], "initial_alphabet": letters, "show_progress": False}
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, **options))
    return tokenizer


T5: dict[str, Any] = {
    "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
}  # fmt: skip
MARKS = 8  # tokens <extra_id_0> …


def t5(folder: Path, version: str, texts: Sequence[str], **changes: Any) -> Path:
    """The checkpoint of a T5 1.0 or 1.1, whose weights are large enough for texts to vary."""
    words = Counter(" ".join(texts).split()).most_common(100)
    letters = sorted({*" ".join(texts)} - {" "})
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0)]
    pieces += [(f"▁{word}", -2.0 - 0.05 * i) for i, (word, _) in enumerate(words)]
    pieces += [(letter, -5.0 - 0.01 * i) for i, letter in enumerate(letters)]
    pieces += [(f"<extra_id_{i}>", 0.0) for i in reversed(range(MARKS))]
    transformers.T5Tokenizer(vocab=pieces, extra_ids=MARKS).save_pretrained(folder)
    return _t5(folder, version, len(pieces) + 3, 3.0, T5 | changes)


def kit_t5(folder: Path, version: str, width: int = 6) -> Path:
    """The checkpoint of a T5 whose tokens are the words of the conformance kit."""
    sizes = {"d_model": width, "d_kv": 4, "d_ff": 8, "num_heads": 2, "eos_token_id": 3}
    return _t5(folder, version, kit_vocabulary_size(folder), 1.0, T5 | sizes)


def _t5(folder: Path, version: str, size: int, scale: float, sizes: dict[str, Any]) -> Path:
    new: dict[str, Any] = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False} if version == "1.1" else {}
    torch.manual_seed(1)
    config = transformers.T5Config(vocab_size=size, decoder_start_token_id=0, **sizes, **new)
    model = transformers.T5ForConditionalGeneration(config)
    with torch.no_grad():
        if version == "1.1":
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
        for name, parameter in model.named_parameters():
            if "Attention" in name:
                parameter.mul_(scale)  # else what stands where matters little
    model.save_pretrained(folder)
    return folder


def _roberta_tokenizer(texts: Sequence[str]) -> Any:
    """Byte pairs with RoBERTa's special tokens around texts, two of them between those of a pair."""
    tokenizer = _byte_pairs(texts, 320, [*BART.values()])
    ids = {name: tokenizer.token_to_id(name) for name in BART.values()}
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", ids["</s>"]), ("<s>", ids["<s>"]))
    names = {f"{role}_token": token for role, token in (BART | {"cls": "<s>", "sep": "</s>"}).items()}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def _tokenizer(family: str, texts: Sequence[str], most: int) -> Any:
    """The tokenizer of `transformers` that checkpoints of the family have, trained on the texts."""
    if family == "xlm-roberta":
        first = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
        return transformers.XLMRobertaTokenizer(vocab=[*first, *unigram_pieces(texts), ("<mask>", 0.0)])
    if family == "deberta-v2":
        first = [(token, 0.0) for token in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")]
        return transformers.DebertaV2Tokenizer(vocab=[*first, *unigram_pieces(texts)])
    if family == "modernbert":
        return modernbert_tokenizer(texts)
    if family == "roberta":
        return _roberta_tokenizer(texts)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=word_pieces(texts, most), **NAMES)


def unigram_pieces(texts: Sequence[str]) -> list[tuple[str, float]]:
    """Pieces of a unigram model with their scores, ▁ alone among them, as SentencePiece trains them."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(texts, trainers.UnigramTrainer(vocab_size=120, show_progress=False))
    pieces = dict(map(tuple, json.loads(tokenizer.to_str())["model"]["vocab"]))
    return [*({"▁": -3.0} | pieces).items()]


def modernbert_tokenizer(texts: Sequence[str]) -> Any:
    """Byte pairs as in ModernBERT: special tokens, runs of spaces and unused tokens are added behind the vocabulary."""
    tokenizer = _byte_pairs(texts, 320, ["|||IP_ADDRESS|||", "<|padding|>"], normalizers.NFC())
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in (4, 3, 2)])
    tokenizer.add_special_tokens(["<|endoftext|>", *(NAMES[f"{name}_token"] for name in ("unk", "cls", "sep", "pad"))])
    tokenizer.add_special_tokens([AddedToken(NAMES["mask_token"], lstrip=True, normalized=False, special=True)])
    tokenizer.add_tokens([AddedToken("[unused0]", normalized=True)])
    marks = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", marks)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **NAMES)


def change_json(file: Path, **changes: Any) -> None:
    """Changes keys of a JSON file."""
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


BART_SIZES: dict[str, Any] = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64, "dropout": 0.0, "init_std": 0.3,
}  # fmt: skip
LANGUAGES = ("ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "ro_RO")  # of the mBART that `mbart` makes


def bart(folder: Path, texts: Sequence[str], **changes: Any) -> Path:
    """The checkpoint of a BART, with byte pairs; its weights are large enough for texts to vary."""
    tokenizer = _roberta_tokenizer(texts)
    tokenizer.save_pretrained(folder)
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    ids |= {"forced_bos_token_id": 0, "forced_eos_token_id": 2}
    return _bart(folder, "bart", len(tokenizer) + 3, ids, changes)


def mbart(folder: Path, texts: Sequence[str], *, version: str = "cc25", **changes: Any) -> Path:
    """The checkpoint of an mBART: `cc25` has the language behind a text, `50` before it."""
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *_pieces(texts)]
    pieces += [*((language, 0.0) for language in LANGUAGES), ("<mask>", 0.0)]
    kind = transformers.MBart50Tokenizer if version == "50" else transformers.MBartTokenizer
    tokenizer = kind(vocab=pieces, src_lang="en_XX", tgt_lang="ro_RO")
    tokenizer.save_pretrained(folder)
    target = tokenizer.convert_tokens_to_ids("ro_RO")
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "forced_eos_token_id": 2}
    starts = {"50": {"decoder_start_token_id": 2, "forced_bos_token_id": target}}
    ids |= starts.get(version, {"decoder_start_token_id": target})
    return _bart(folder, "mbart", len(tokenizer) + 3, ids, {"scale_embedding": True} | changes)


def marian(folder: Path, source: Sequence[str], target: Sequence[str], *, apart: bool = False, **changes: Any) -> Path:
    """The checkpoint of a Marian: two unigram models of SentencePiece, of different pieces, and one vocabulary.

    If `apart`, a vocabulary and a table of token vectors for each side.
    """
    folder.mkdir(parents=True)
    sides = {"source": _pieces(source), "target": _pieces(target)}
    for name, pieces in sides.items():
        sentencepiece(folder / f"{name}.spm", pieces)
    first, second = ([piece for piece, _ in pieces[:-3]] for pieces in sides.values())  # the vocabulary lacks some
    files = {"vocab": first, "target_vocab": second} if apart else {"vocab": [*first, *second]}
    sizes: dict[str, Any] = {}
    for name, pieces_of in files.items():
        tokens = ["</s>", "<unk>", ">>fra<<", *dict.fromkeys(pieces_of), "<pad>"]
        vocabulary = {token: i for i, token in enumerate(tokens)}
        (folder / f"{name}.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        sizes[name] = len(tokens)
    settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": apart}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    pad = sizes["vocab"] - 1
    ids = {"bos_token_id": None, "pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad}
    ids |= {"forced_eos_token_id": 0, "bad_words_ids": [[pad]]}
    config = {"activation_function": "swish", "scale_embedding": True, "share_encoder_decoder_embeddings": not apart}
    config |= {"decoder_vocab_size": sizes["target_vocab"]} if apart else {}
    return _bart(folder, "marian", sizes["vocab"], ids, config | changes)


def kit_bart(folder: Path, family: str, width: int = 6) -> Path:
    """The checkpoint of a BART or a Marian whose tokens are the words of the conformance kit."""
    ids: dict[str, Any] = {"bos_token_id": 2, "pad_token_id": 0, "eos_token_id": 3, "forced_eos_token_id": 3}
    start = {"bart": {"decoder_start_token_id": 3, "forced_bos_token_id": 2}, "marian": {"decoder_start_token_id": 0}}
    sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    return _bart(folder, family, kit_vocabulary_size(folder), ids | start[family], sizes | {"d_model": width})


def sentencepiece(file: Path, pieces: Sequence[tuple[str, float]], kind: int = 1) -> None:
    """A model of SentencePiece with these pieces; `kind` is 1 for unigram, 2 for BPE."""
    proto = import_protobuf().ModelProto()
    proto.trainer_spec.model_type, proto.normalizer_spec.name = kind, "identity"
    special = (("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3))
    for piece, score, type_ in (*special, *((piece, score, 1) for piece, score in pieces)):
        proto.pieces.add(piece=piece, score=score, type=type_)
    file.write_bytes(proto.SerializeToString())


def _pieces(texts: Sequence[str]) -> list[tuple[str, float]]:
    """The frequent words and all letters of texts, with scores."""
    words = Counter(" ".join(texts).split()).most_common(100)
    letters = sorted({*" ".join(texts)} - {" "})
    pieces = [("▁", -3.0), *((f"▁{word}", -2.0 - 0.05 * i) for i, (word, _) in enumerate(words) if len(word) > 1)]
    return pieces + [(letter, -8.0 - 0.01 * i) for i, letter in enumerate(letters)]


def _bart(folder: Path, family: str, size: int, ids: dict[str, Any], changes: dict[str, Any]) -> Path:
    torch.manual_seed(changes.pop("seed", 1))
    config_ids = {name: value for name, value in ids.items() if name not in ("bad_words_ids", "forced_bos_token_id")}
    config = transformers.AutoConfig.for_model(family, vocab_size=size, **BART_SIZES | config_ids | changes)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    model.generation_config = transformers.GenerationConfig(**ids)
    flips = 0.5 if config.model_type == "marian" and not config.share_encoder_decoder_embeddings else 0.1
    with torch.no_grad():  # texts are to vary, and every part of the model is to matter
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.copy_(torch.where(torch.rand_like(parameter) < flips, -1.0, 1.0))
            elif name.endswith("bias"):
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "attn" in name:
                parameter.mul_(3.0 if "encoder_attn" in name else 2.0)
            elif "shared" in name or "embed_tokens" in name:
                parameter.mul_(2.0 / parameter.norm(dim=1, keepdim=True).clamp(min=1e-3))
        if family == "marian":
            model.final_logits_bias.normal_(std=0.3)
    model.save_pretrained(folder)
    return folder
