"""Models of `transformers` from checkpoints, with the word vectors in the order of our ids."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from seqpipe.errors import DataError, UsageError
from seqpipe.features.checkpoint_tokenizer import LACKING, SIDES, Side, is_folder, pretrained_tokenizer, reading, where
from seqpipe.features.vocabulary import SPECIALS, vocabulary_of
from seqpipe.nn.constants import BOS, UNK

_DROPOUTS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "mlp_dropout",
    "embedding_dropout",
)
_ROBERTA_POSITIONS = "create_position_ids_from_inputs_embeds"
_SEQ2SEQ = "pretrained-seq2seq"
_USES = (
    "the encoder pretrained takes BERT-family encoders, pretrained-decoder GPT-2 and Llama, and pretrained-seq2seq, "
    "an encoder and a head, T5, BART, mBART and Marian"
)
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")


def pretrained_model(
    checkpoint: str | Path, vocabulary: Sequence[str], *, depth: int | None = None, dropout: float | None = None
) -> tuple[Any, int]:
    """The checkpoint's model (`transformers.AutoModel`) in fp32, its word vectors in the order of the vocabulary.

    And how many separators it has between two texts.

    Args:
        checkpoint: A folder, or a name on the hub.
        vocabulary: The tokens that ids stand for, those of `pretrained_tokenizer`.
        depth: How many of its layers are kept, counted from below; None for all.
        dropout: Every dropout of it; None for its own.

    Raises:
        DataError: The folder holds no such model, or only a pickled one, or one of another vocabulary.
        EnvError: It is a name on the hub, and the hub cannot be reached or has no such checkpoint.
        UsageError: The vocabulary is not the checkpoint's.
    """
    from transformers import AutoConfig, AutoModel

    tokenizer, ids, separators = pretrained_tokenizer(checkpoint)
    if tuple(vocabulary) != vocabulary_of(tokenizer):
        cure = f"set tokenizer: {{use: pretrained, checkpoint: {checkpoint}}}"
        raise UsageError(f"pretrained.checkpoint: the tokens are not those of {checkpoint}; {cure}")
    _refuse_pickles(checkpoint)
    with reading(checkpoint, "config"):
        config = AutoConfig.from_pretrained(**where(checkpoint), trust_remote_code=False)
    if optional_attribute(config, "is_encoder_decoder"):
        raise DataError(f"{checkpoint}: {config.model_type} has an encoder and a decoder; {_USES}")
    if depth is not None:
        if depth > config.num_hidden_layers:
            raise UsageError(f"pretrained.depth: {checkpoint} has {config.num_hidden_layers} layers, not {depth}")
        config.num_hidden_layers = depth
    for name in _DROPOUTS:
        if dropout is not None and isinstance(optional_attribute(config, name), int | float):
            setattr(config, name, dropout)
    with reading(checkpoint, "weights"):
        model, report = AutoModel.from_pretrained(
            **where(checkpoint),
            config=config,
            trust_remote_code=False,
            use_safetensors=True,
            attn_implementation="eager",
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # they are reported below
            output_loading_info=True,
        )
    lacking = sorted(name for name in report["missing_keys"] if "pooler" not in name)
    if lacking or report["mismatched_keys"]:
        problem = f"the weights lack {lacking[0]}" if lacking else "the weights have other shapes than config.json says"
        raise DataError(f"{checkpoint}: {problem}; get the checkpoint again")
    if optional_attribute(model, "pooler") is not None:
        model.pooler = None  # it reads the first token, as a head may
    table = model.get_input_embeddings()
    _refuse_other_tokens(checkpoint, ids, table.weight)
    table.weight = torch.nn.Parameter(table.weight.detach()[ids])
    table.num_embeddings, table.padding_idx = len(ids), None
    return model, separators


def pretrained_decoder(
    checkpoint: str | Path, vocabulary: Sequence[str], families: Sequence[str]
) -> tuple[Any, dict[str, torch.Tensor], list[int]]:
    """The configuration and the weights in fp32 of a checkpoint that writes texts, and of each of our ids its own.

    Args:
        checkpoint: A folder, or a name on the hub.
        vocabulary: The tokens that ids stand for, those of `pretrained_tokenizer`.
        families: The kinds of model (`model_type`) that are known.

    Raises:
        DataError, EnvError, UsageError: as `pretrained_model` does, and for a model of another kind.
    """
    model, ids = _writer(checkpoint, vocabulary, families, "pretrained-decoder")
    return model.config, model.state_dict(), ids


class Seq2SeqCheckpoint(NamedTuple):
    """A checkpoint that reads a text and writes another.

    Args:
        name: The folder, or its name on the hub.
        config: Its configuration.
        generation: Its configuration of `generate`.
        state: Its weights in fp32, by their names in `transformers`.
        ids: Of each of our ids its own.
    """

    name: str
    config: Any
    generation: Any
    state: dict[str, torch.Tensor]
    ids: list[int]

    @property
    def known(self) -> int:
        """How many tokens the model knows; those behind them have the vector of the unknown one."""
        return len(self.ids) - self.ids[len(SPECIALS) :].count(self.ids[UNK])

    @property
    def start_token(self) -> int | None:
        """Its id of what it begins to write with."""
        return _start_token(self.config, self.generation)

    def numbers(self, tokens: Sequence[int]) -> list[int]:
        """Our ids of its tokens; DataError for one that the tokenizer lacks."""
        if lacking := [token for token in tokens if token not in self.ids]:
            raise DataError(
                f"{self.name}: its tokenizer lacks the special token {lacking[0]}; get the checkpoint again"
            )
        return [self.ids.index(token) for token in tokens]

    def refuse_language(self, language: str | None) -> None:
        """UsageError for a language: of a checkpoint whose special tokens name none."""
        if language is not None:
            problem = f"{self.name} ({self.config.model_type}) has no special tokens for languages"
            raise UsageError(f"{_SEQ2SEQ}.language: {problem}; leave `language` out")


def pretrained_seq2seq(
    checkpoint: str | Path, vocabulary: Sequence[str], families: Sequence[str], side: Side
) -> Seq2SeqCheckpoint:
    """As `pretrained_decoder`, of one that reads a text and writes another; [BOS] is what it begins to write with.

    `side` is whose tokens the vocabulary has, where the tokenizers of both texts differ.
    """
    model, ids = _writer(checkpoint, vocabulary, families, _SEQ2SEQ, side)
    config, generation = model.config, model.generation_config
    if ids[BOS] == LACKING:
        start = _start_token(config, generation)
        ids[BOS] = config.pad_token_id if start is None else start
    if LACKING in ids:
        raise DataError(f"{checkpoint}: its tokenizer lacks the token {vocabulary[ids.index(LACKING)]}; choose another")
    return Seq2SeqCheckpoint(str(checkpoint), config, generation, model.state_dict(), ids)


def _start_token(config: Any, generation: Any) -> int | None:
    start: int | None = generation.decoder_start_token_id
    return optional_attribute(config, "decoder_start_token_id") if start is None else start


def _writer(
    checkpoint: str | Path, vocabulary: Sequence[str], families: Sequence[str], use: str, side: Side = "source"
) -> tuple[Any, list[int]]:
    """The model, and of each of our ids its own."""
    import transformers

    tokenizer, ids, _ = pretrained_tokenizer(checkpoint, side)
    if tuple(vocabulary) != vocabulary_of(tokenizer):
        cure = f"set tokenizer: {{use: pretrained, checkpoint: {checkpoint}}}"
        if use == _SEQ2SEQ:
            cure += f", and of the head target_tokenizer: {_target_tokenizer(checkpoint)}"
        raise UsageError(f"{use}.checkpoint: the tokens are not those of {checkpoint}; {cure}")
    _refuse_pickles(checkpoint)
    with reading(checkpoint, "config"):
        config = transformers.AutoConfig.from_pretrained(**where(checkpoint), trust_remote_code=False)
    if config.model_type not in families:
        problem = f"{config.model_type} is none of the models that {use} knows ({', '.join(families)})"
        raise DataError(f"{checkpoint}: {problem}; {_USES}")
    model_class = transformers.AutoModelForSeq2SeqLM if use == _SEQ2SEQ else transformers.AutoModelForCausalLM
    with reading(checkpoint, "weights"):
        model, report = model_class.from_pretrained(
            **where(checkpoint),
            config=config,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # they are reported below
            output_loading_info=True,
        )
    if lacking := sorted(report["missing_keys"]):
        raise DataError(f"{checkpoint}: the weights lack {lacking[0]}; get the checkpoint again")
    if report["mismatched_keys"]:
        raise DataError(f"{checkpoint}: the weights have other shapes than config.json says; get the checkpoint again")
    _refuse_other_tokens(checkpoint, ids, model.get_input_embeddings().weight)
    return model, ids


def _target_tokenizer(checkpoint: str | Path) -> str:
    """What the head's `target_tokenizer` has to be."""
    source, target = (vocabulary_of(pretrained_tokenizer(checkpoint, side).tokenizer) for side in SIDES)
    return "same" if source == target else f"{{use: pretrained, checkpoint: {checkpoint}, side: target}}"


def optional_attribute(owner: Any, name: str) -> Any:
    """An attribute of a model of `transformers` or of its configuration; None where models of this kind lack it."""
    return getattr(owner, name, None)


def longest(model: Any) -> int | None:
    """How many tokens the model can read, special ones included; None if there is no limit."""
    most: int | None = optional_attribute(model.config, "max_position_embeddings")
    if most is not None and optional_attribute(optional_attribute(model, "embeddings"), _ROBERTA_POSITIONS) is not None:
        most -= model.config.pad_token_id + 1  # positions of RoBERTa-like models begin after the padding's
    return most


def tells_texts_apart(model: Any) -> bool:
    """Whether the model takes, of each token of a pair, to which of the two texts it belongs."""
    types = optional_attribute(model.config, "type_vocab_size")
    return (types or 0) > 1 and "token_type_ids" in inspect.signature(model.forward).parameters


def _refuse_other_tokens(checkpoint: str | Path, ids: Sequence[int], table: torch.Tensor) -> None:
    if max(ids) >= len(table):
        problem = f"the tokenizer has {max(ids) + 1:,} tokens, the weights vectors of {len(table):,}"
        raise DataError(f"{checkpoint}: {problem}; the two belong to different checkpoints")


def _refuse_pickles(checkpoint: str | Path) -> None:
    """DataError for a folder without weights, or with pickled weights: loading these could run any program."""
    if not is_folder(checkpoint) or any(Path(checkpoint).glob("*.safetensors")):
        return
    pickled = sorted(path.name for pattern in _PICKLED for path in Path(checkpoint).glob(pattern))
    if not pickled:
        raise DataError(f"{checkpoint}: holds no weights (model.safetensors); get the whole checkpoint")
    cure = "load it where you trust it, and write it again with save_pretrained, which makes model.safetensors"
    raise DataError(f"{checkpoint}: its weights are pickled ({pickled[0]}), which could run any program; {cure}")
