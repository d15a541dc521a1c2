"""Pretrained encoders: their checkpoints, and static vectors distilled from them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from seqpipe.errors import DataError, UsageError
from seqpipe.features.checkpoint_tokenizer import (
    NO_CHECKPOINT_ID,
    SIDES,
    Side,
    is_folder,
    pretrained_tokenizer,
    reading,
    where,
)
from seqpipe.features.encoding import encode_batch
from seqpipe.features.vocabulary import MASK, SPECIALS, vocabulary_of
from seqpipe.nn.layers import BOS_ID, EOS_ID, UNK_ID

__all__ = [
    "checkpoint_activation",
    "has_segment_embeddings",
    "layer_decay_factor",
    "longest_input",
    "optional_attribute",
]
__all__ += ["pretrained_decoder", "pretrained_model"]

# Models of `transformers` from checkpoints, with the word vectors in the order of our ids.

_DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "mlp_dropout",
    "embedding_dropout",
)  # fmt: skip
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh"), partial(nn.GELU, "tanh")),
    **dict.fromkeys(("silu", "swish"), nn.SiLU),
}
_LAYER = re.compile(r"\blayers?\.(\d+)\.")
_ROBERTA_POSITIONS = "create_position_ids_from_inputs_embeds"
_SEQ2SEQ = "pretrained-seq2seq"
DECODER_FAMILIES = ("gpt2", "llama", "mistral")  # that the encoder pretrained-decoder takes
_USES = (
    "the encoder pretrained takes BERT-family encoders, pretrained-decoder GPT-2 and Llama, and pretrained-seq2seq, "
    "an encoder and a head, T5, BART, mBART and Marian"
)
_MORE_INPUTS = {"bbox", "pixel_values"}  # of models of pages and pictures
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")


def pretrained_model(
    checkpoint: str | Path,
    vocabulary: Sequence[str],
    *,
    depth: int | None = None,
    dropout: float | None = None,
    task: str | None = None,
) -> tuple[Any, int]:
    """Return the checkpoint's model (`transformers.AutoModel`) in fp32, its token vectors in the order of the
    vocabulary.

    And how many separators it has between two texts.

    Args:
        checkpoint: A folder, or a name on the hub.
        vocabulary: The tokens that ids stand for, those of `pretrained_tokenizer`.
        depth: Number of its layers to keep, from the bottom; None: all.
        dropout: All of its dropout probabilities; None: unchanged.
        task: Load it with its head for this task, such as `SequenceClassification` (`transformers.AutoModelFor…`).

    Raises:
        DataError: The folder holds no such model, or only a pickled one, or one of another vocabulary.
        EnvError: It is a name on the hub, and the hub cannot be reached or has no such checkpoint.
        UsageError: The vocabulary is not the checkpoint's.
    """
    config, ids, separators = _read_config(checkpoint, vocabulary, "pretrained")
    refuse_other_models(checkpoint, config, task)
    if depth is not None:
        if depth > config.num_hidden_layers:
            raise UsageError(f"pretrained.depth: {checkpoint} has {config.num_hidden_layers} layers, not {depth}")
        config.num_hidden_layers = depth
    for name in _DROPOUTS:
        if dropout is not None and isinstance(optional_attribute(config, name), int | float):
            setattr(config, name, dropout)
    model = _load_model(checkpoint, config, ids, task)
    if task is None and optional_attribute(model, "pooler") is not None:
        model.pooler = nn.Identity()  # heads read the first token instead; some models cannot do without
    table = model.get_input_embeddings()
    table.weight = torch.nn.Parameter(table.weight.detach()[ids])
    table.num_embeddings, table.padding_idx = len(ids), None
    return model, separators


def pretrained_decoder(
    checkpoint: str | Path, vocabulary: Sequence[str]
) -> tuple[Any, dict[str, torch.Tensor], list[int]]:
    """Return the configuration and fp32 weights of a generative checkpoint, and its id for each of our ids.

    Args:
        checkpoint: A folder, or a name on the hub.
        vocabulary: The tokens that ids stand for, those of `pretrained_tokenizer`.

    Raises:
        DataError, EnvError, UsageError: those of `pretrained_model`, and for a model not of `DECODER_FAMILIES`.
    """
    model, ids = _writer(checkpoint, vocabulary, DECODER_FAMILIES, "pretrained-decoder")
    return model.config, model.state_dict(), ids


class Seq2SeqCheckpoint(NamedTuple):
    """A sequence-to-sequence checkpoint.

    Args:
        name: The folder, or its name on the hub.
        config: Its configuration.
        generation: Its generation configuration.
        state: Its weights in fp32, by their names in `transformers`.
        ids: Its id for each of our ids.
    """

    name: str
    config: Any
    generation: Any
    state: dict[str, torch.Tensor]
    ids: list[int]

    @property
    def known(self) -> int:
        """Number of tokens that the model knows; later ids have the vector of the unknown token."""
        return len(self.ids) - self.ids[len(SPECIALS) :].count(self.ids[UNK_ID])

    @property
    def start_token(self) -> int | None:
        """The model's id of its decoder start token."""
        start: int | None = self.generation.decoder_start_token_id
        return optional_attribute(self.config, "decoder_start_token_id") if start is None else start

    def numbers(self, tokens: Sequence[int]) -> list[int]:
        """Return our ids of its tokens; DataError for one that the tokenizer lacks."""
        if lacking := [token for token in tokens if token not in self.ids]:
            raise DataError(f"{self.name}: its tokenizer lacks the special token {lacking[0]}; download it again")
        return [self.ids.index(token) for token in tokens]

    def refuse_language(self, language: str | None) -> None:
        """Raise UsageError if a language is given: the checkpoint has no language tokens."""
        if language is not None:
            problem = f"{self.name} ({self.config.model_type}) has no special tokens for languages"
            raise UsageError(f"{_SEQ2SEQ}.language: {problem}; leave `language` out")


def pretrained_seq2seq(
    checkpoint: str | Path, vocabulary: Sequence[str], families: Sequence[str], side: Side
) -> Seq2SeqCheckpoint:
    """Load a sequence-to-sequence checkpoint, like `pretrained_decoder`; [BOS] is its decoder start token.

    `side` is the side of the vocabulary, if both sides have their own tokenizers.
    """
    model, ids = _writer(checkpoint, vocabulary, families, _SEQ2SEQ, side)
    read = Seq2SeqCheckpoint(str(checkpoint), model.config, model.generation_config, model.state_dict(), ids)
    if ids[BOS_ID] == NO_CHECKPOINT_ID:
        ids[BOS_ID] = model.config.pad_token_id if read.start_token is None else read.start_token
    if NO_CHECKPOINT_ID in ids:
        lacking = vocabulary[ids.index(NO_CHECKPOINT_ID)]
        raise DataError(f"{checkpoint}: its tokenizer lacks the token {lacking}; choose another")
    return read


def _writer(
    checkpoint: str | Path, vocabulary: Sequence[str], families: Sequence[str], use: str, side: Side = "source"
) -> tuple[Any, list[int]]:
    """Return the model, and its id for each of ours."""
    config, ids, _ = _read_config(checkpoint, vocabulary, use, side)
    if config.model_type not in families:
        problem = f"{config.model_type} is not supported by {use} ({', '.join(families)})"
        raise DataError(f"{checkpoint}: {problem}; {_USES}")
    return _load_model(checkpoint, config, ids, "Seq2SeqLM" if use == _SEQ2SEQ else "CausalLM"), ids


def _read_config(
    checkpoint: str | Path, vocabulary: Sequence[str], use: str, side: Side = "source"
) -> tuple[Any, list[int], int]:
    """Return the configuration, its id for each of ours, and the number of separators between two texts."""
    from transformers import AutoConfig

    tokenizer, ids, separators = pretrained_tokenizer(checkpoint, side)
    if tuple(vocabulary) != vocabulary_of(tokenizer):
        fix = f"set tokenizer: {{use: pretrained, checkpoint: {checkpoint}}}"
        if use == _SEQ2SEQ:
            source, target = (vocabulary_of(pretrained_tokenizer(checkpoint, side).tokenizer) for side in SIDES)
            target_tokenizer = f"{{use: pretrained, checkpoint: {checkpoint}, side: target}}"
            fix += f", and of the head target_tokenizer: {'same' if source == target else target_tokenizer}"
        raise UsageError(f"{use}.checkpoint: the tokens are not those of {checkpoint}; {fix}")
    refuse_pickles(checkpoint)
    with reading(checkpoint, "config"):
        return AutoConfig.from_pretrained(**where(checkpoint), trust_remote_code=False), ids, separators


def _load_model(checkpoint: str | Path, config: Any, ids: Sequence[int], task: str | None) -> Any:
    """Return the model in fp32, with its head for a task; DataError if weights, configuration and ids do not match."""
    import transformers

    with reading(checkpoint, "weights"):
        model_class = getattr(transformers, f"AutoModelFor{task}" if task else "AutoModel")
        model, report = model_class.from_pretrained(
            **where(checkpoint),
            config=config,
            trust_remote_code=False,
            use_safetensors=True,
            attn_implementation="eager",
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # they are reported below
            output_loading_info=True,
        )
    lacking = sorted(name for name in report["missing_keys"] if task or "pooler" not in name)
    if lacking or report["mismatched_keys"]:
        problem = f"the weights lack {lacking[0]}" if lacking else "the weights have other shapes than config.json says"
        raise DataError(f"{checkpoint}: {problem}; download the checkpoint again")
    tokens = len(model.get_input_embeddings().weight)
    if max(ids) >= tokens:
        problem = f"the tokenizer has {max(ids) + 1:,} tokens, the weights vectors of {tokens:,}"
        raise DataError(f"{checkpoint}: {problem}; the two belong to different checkpoints")
    return model


def checkpoint_activation(name: str, checkpoint: object) -> nn.Module:
    """Return the activation that a checkpoint's configuration names; DataError if it is not supported."""
    if name not in _ACTIVATIONS:
        problem = f"its activation {name!r} is not supported ({', '.join(_ACTIVATIONS)})"
        raise DataError(f"{checkpoint}: {problem}; choose another checkpoint")
    return _ACTIVATIONS[name]()


def optional_attribute(owner: Any, name: str) -> Any:
    """Return an attribute of a model of `transformers` or of its configuration; None if such models lack it."""
    return getattr(owner, name, None)


def layer_decay_factor(parameter: str, decay: float, depth: int, *, is_on_top: bool) -> float:
    """Return the factor of a parameter's learning rate: `decay` for each layer above it (Howard and Ruder 2018).

    Args:
        parameter: The parameter's name. A number after `layer.` or `layers.` is that of its layer.
        decay: Factor from each layer to the one below it.
        depth: Number of layers.
        is_on_top: Whether a parameter outside of the layers stands above them.
    """
    layer = _LAYER.search(parameter)
    layers_above = depth - 1 - int(layer[1]) if layer else 0 if is_on_top else depth
    return decay**layers_above


def refuse_other_models(checkpoint: object, config: Any, task: str | None = None) -> None:
    """Raise DataError, by the configuration alone, for a model that is not a BERT-family encoder of texts.

    Such an encoder is pretrained by masked language modelling, reads vectors of tokens and a mask, and has the head of
    `task`.
    """
    import transformers

    family, kind = config.model_type, type(config)
    name = f"_FOR_{re.sub('(?<=[a-z])(?=[A-Z])', '_', task).upper()}" if task else ""
    classes: Any = getattr(transformers, f"MODEL{name}_MAPPING")
    if optional_attribute(config, "is_encoder_decoder"):
        problem = "has an encoder and a decoder"
    elif optional_attribute(config, "vocab_size") is None:
        problem = "reads no texts"
    elif kind not in transformers.MODEL_FOR_MASKED_LM_MAPPING or kind not in classes:
        problem = f"has no head for {task}" if task and kind not in classes else "is not a BERT-family encoder"
    else:
        inputs = inspect.signature(transformers.MODEL_MAPPING[kind].forward).parameters.keys()
        if {"inputs_embeds", "attention_mask"} <= inputs and _MORE_INPUTS.isdisjoint(inputs):
            return
        more = sorted(_MORE_INPUTS & inputs)
        problem = f"reads {more[0]} too" if more else "does not read vectors of tokens"
    raise DataError(f"{checkpoint}: {family} {problem}; {_USES}")


def longest_input(model: Any) -> int | None:
    """Return the maximum number of input tokens, special ones included; None if there is no limit."""
    most: int | None = optional_attribute(model.config, "max_position_embeddings")
    if most is not None and optional_attribute(optional_attribute(model, "embeddings"), _ROBERTA_POSITIONS) is not None:
        most -= model.config.pad_token_id + 1  # positions of RoBERTa-like models begin after the padding's
    return most


def has_segment_embeddings(model: Any) -> bool:
    """Return whether the model has segment embeddings (token types) for the two texts of a pair."""
    types = optional_attribute(model.config, "type_vocab_size")
    return (types or 0) > 1 and "token_type_ids" in inspect.signature(model.forward).parameters


def refuse_pickles(checkpoint: str | Path) -> None:
    """Raise DataError for a folder without weights, or with pickled ones, which could run any code when loaded."""
    if not is_folder(checkpoint) or any(Path(checkpoint).glob("*.safetensors")):
        return
    pickled = sorted(path.name for pattern in _PICKLED for path in Path(checkpoint).glob(pattern))
    if not pickled:
        raise DataError(f"{checkpoint}: has no weights (model.safetensors); download the whole checkpoint")
    fix = "load it in an environment that you trust, and save it with save_pretrained as model.safetensors"
    raise DataError(f"{checkpoint}: its weights are pickled ({pickled[0]}), which could run any program; {fix}")


# Static vectors distilled from a sentence encoder, as in Model2Vec (Tulkens and van Dongen 2024).

DISTILLED_BATCH_ROWS = 256
SIF = 1e-4  # a in a / (a + p), the weight of a word of probability p (Arora et al. 2017)
_UNUSED = re.compile(r"\[unused\d+\]")  # unused rows of BERT's table


class Distiller:
    """Distils a sentence encoder to a vector for each token of its vocabulary, or each word of a list.

    Args:
        checkpoint: A folder, or a name on the hub.
        device: Where the encoder runs.

    Raises:
        DataError: The checkpoint has no tokenizer or no weights, or is not an encoder.
        EnvError: The hub cannot be reached, or has no checkpoint of this name.
    """

    def __init__(self, checkpoint: str, device: str = "cpu"):
        self.checkpoint, self.device = checkpoint, device
        self.tokenizer = pretrained_tokenizer(checkpoint).tokenizer
        self.model, _ = pretrained_model(checkpoint, vocabulary_of(self.tokenizer))
        self.model.to(device).eval()
        self.dim: int = self.model.config.hidden_size

    def tokens(self) -> dict[str, list[int]]:
        """Return the ids of each token of the vocabulary, most frequent first, without special and unused tokens."""
        vocabulary = vocabulary_of(self.tokenizer)
        ids = {token: [i] for i, token in enumerate(vocabulary) if i >= len(SPECIALS)}
        return {token: i for token, i in ids.items() if token != MASK and not _UNUSED.fullmatch(token)}

    def words(self, words: Sequence[str]) -> dict[str, list[int]]:
        """Return the ids of the subwords of each word, without entirely unknown words."""
        encodings = encode_batch(self.tokenizer, words, lambda i: f"word {i + 1}: ")
        ids = {word: encoding.ids for word, encoding in zip(words, encodings, strict=True)}
        return {word: subwords for word, subwords in ids.items() if {*subwords} - {UNK_ID}}

    @torch.no_grad()
    def encode(self, ids: Mapping[str, Sequence[int]], tick: Callable[[int], None]) -> np.ndarray:
        """Return the vectors (N, D): the mean of the last hidden states of [CLS] subwords [SEP].

        If the encoder pools by the mean, that is the sentence vector of a text of only this word. Words longer than the
        encoder's limit are cut.
        """
        most = longest_input(self.model)
        sequences = [torch.tensor([BOS_ID, *subwords[: most and most - 2], EOS_ID]) for subwords in ids.values()]
        by_length = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        rows = np.zeros((len(sequences), self.dim), np.float32)
        for start in range(0, len(by_length), DISTILLED_BATCH_ROWS):
            batch = by_length[start : start + DISTILLED_BATCH_ROWS]
            padded = pad_sequence([sequences[i] for i in batch], batch_first=True, padding_value=-1)  # (b, t)
            padded = padded.to(self.device)
            mask = padded >= 0
            embeddings = self.model.get_input_embeddings()(padded.clamp(min=0))
            outputs: Any = self.model(inputs_embeds=embeddings, attention_mask=mask.long())
            states = torch.where(mask[..., None], outputs.last_hidden_state, 0.0)
            rows[batch] = (states.sum(1) / mask.sum(1, keepdim=True)).cpu().numpy()  # (b, D)
            tick(start + len(batch))
        return rows


def principal_components(rows: np.ndarray, dim: int) -> np.ndarray:
    """Return the rows (N, D), centred and projected on their first principal components (N, dim).

    The largest weight of a component is positive, so the signs are unique.
    """
    centred = rows.astype(np.float64) - rows.mean(0, dtype=np.float64)
    _, axes = np.linalg.eigh(centred.T @ centred)  # ascending
    axes = axes[:, ::-1][:, :dim]  # (D, dim)
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(dim)])
    return np.asarray(centred @ axes, np.float32)


def zipf_weights(count: int) -> np.ndarray:
    """Return the SIF weights (count, 1) of words, the most frequent first, whose frequencies follow Zipf's law."""
    frequencies = 1 / np.arange(2, count + 2)
    weights: np.ndarray = SIF / (SIF + frequencies / frequencies.sum())
    return weights[:, None].astype(np.float32)
