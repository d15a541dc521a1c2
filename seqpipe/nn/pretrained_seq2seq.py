"""Pretrained encoder-decoders of every known family, by the `model_type` of their configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.errors import DataError
from seqpipe.features.checkpoint_tokenizer import language_tokens
from seqpipe.nn.encoder_decoder import BiasedAttention, DecoderParts, EncoderDecoderLayer, EncoderParts, Stack
from seqpipe.nn.layers import BOS_ID, EOS_ID, GatedFeedForward, RMSNorm, linear_from
from seqpipe.nn.pretrained import Seq2SeqCheckpoint, checkpoint_activation, optional_attribute, pretrained_seq2seq

__all__ = ["pretrained_decoder_parts", "pretrained_encoder_parts"]

# The encoder and the decoder of a BART, an mBART or a Marian, from a checkpoint's configuration and weights.
#
# BART (Lewis et al. 2020), mBART (Liu et al. 2020) and Marian (Junczys-Dowmunt et al. 2018) are Transformers of Vaswani
# et al. (2017) with scaled attention and biases. They differ in the place of norms, in positions and in special tokens.


class BartFamily(NamedTuple):
    """Differences between the families of BART-like models.

    Args:
        pre_norm: Whether norms precede attention and feed-forward networks, with one on top of each stack.
        embedding_norm: Whether the sum of token and position vectors is normalised.
        learned_positions: Whether position vectors are trained or sinusoidal.
        languages: Whether the special tokens around a text name its language.
        before: The special tokens before a text, if not.
    """

    pre_norm: bool
    embedding_norm: bool
    learned_positions: bool
    languages: bool
    before: Sequence[int]

    def encoder(self, checkpoint: Seq2SeqCheckpoint, dropout: float | None, language: str | None) -> EncoderParts:
        """Return the encoder; `dropout` None: the checkpoint's, `language` None: that of its tokenizer."""
        before, behind = self.before, [EOS_ID]
        if self.languages:
            before, behind = _language_tokens(checkpoint, language)
        else:
            checkpoint.refuse_language(language)
        stack, table = self._stack(checkpoint, "encoder", dropout), _table(checkpoint, "encoder")
        return EncoderParts(stack, table, before, behind, checkpoint.known, len(stack.positions) - stack.offset)

    def decoder(self, checkpoint: Seq2SeqCheckpoint, dropout: float | None, language: str | None) -> DecoderParts:
        """Return the decoder; `dropout` None: the checkpoint's, `language` None: its default first token."""
        stack, bias = self._stack(checkpoint, "decoder", dropout), checkpoint.state["final_logits_bias"][0]
        output = checkpoint.state["lm_head.weight"]
        # Without this setting, as in BART, the encoder and the decoder share one table of token vectors.
        is_shared = optional_attribute(checkpoint.config, "share_encoder_decoder_embeddings") is not False
        table = None if is_shared else _table(checkpoint, "decoder")
        tied = torch.equal(output, checkpoint.state["model.decoder.embed_tokens.weight"])
        return DecoderParts(
            stack=stack,
            table=table,
            output=None if tied else output[checkpoint.ids],
            bias=bias[checkpoint.ids] if bias.any() else None,
            scale=1.0,
            start=self._start(checkpoint, language),
            known=checkpoint.known,
            ends=checkpoint.generation.forced_eos_token_id is not None,
            positions=len(stack.positions) - stack.offset,
        )

    def _start(self, checkpoint: Seq2SeqCheckpoint, language: str | None) -> list[int]:
        """Return the tokens that start decoding: the start token, then the first token that `generate` forces."""
        first, forced = checkpoint.start_token, checkpoint.generation.forced_bos_token_id
        if language is None and first is None:
            raise DataError(f"{checkpoint.name}: it has no default first token of a text; set the head's `language`")
        if language is not None and self.languages:
            before, behind = _language_tokens(checkpoint, language)
            return [EOS_ID, *before] if before else [token for token in behind if token != EOS_ID]
        checkpoint.refuse_language(language)
        tokens = checkpoint.numbers([token for token in (first, forced) if token is not None])
        return tokens if forced is not None else [*tokens, *self.before]

    def _stack(self, checkpoint: Seq2SeqCheckpoint, side: str, dropout: float | None) -> BartStack:
        config, weights = checkpoint.config, _Weights(checkpoint.state, f"model.{side}")
        outer, inner, attended = (
            p if dropout is None else dropout
            for p in (config.dropout, config.activation_dropout, config.attention_dropout)
        )
        heads: int = getattr(config, f"{side}_attention_heads")

        def attention(at: str) -> BiasedAttention:
            both = weights.linear(f"{at}.k_proj", f"{at}.v_proj")
            query, output = weights.linear(f"{at}.q_proj"), weights.linear(f"{at}.out_proj")
            return BiasedAttention(query, both, output, heads, attended, (config.d_model // heads) ** -0.5)

        def layer(at: str) -> EncoderDecoderLayer:
            kinds = ["self_attn", "encoder_attn"] if side == "decoder" else ["self_attn"]
            norms = [weights.norm(f"{at}.{kind}_layer_norm") for kind in kinds]
            norms.append(weights.norm(f"{at}.final_layer_norm"))
            feedforward = nn.Sequential(
                weights.linear(f"{at}.fc1"),
                checkpoint_activation(config.activation_function, checkpoint.name),
                nn.Dropout(inner),
                weights.linear(f"{at}.fc2"),
            )
            attentions = [attention(f"{at}.{kind}") for kind in kinds]
            return EncoderDecoderLayer(norms, attentions, feedforward, outer, pre_norm=self.pre_norm)

        positions = checkpoint.state[f"model.{side}.embed_positions.weight"]
        return BartStack(
            (layer(f"layers.{i}") for i in range(getattr(config, f"{side}_layers"))),
            nn.Parameter(positions, requires_grad=self.learned_positions),
            len(positions) - config.max_position_embeddings,
            math.sqrt(config.d_model) if config.scale_embedding else 1.0,
            weights.norm("layernorm_embedding") if self.embedding_norm else nn.Identity(),
            weights.norm("layer_norm") if self.pre_norm else nn.Identity(),
            outer,
        )


class BartStack(Stack):
    """Layers over norm(scale · vectors + positions).

    Args:
        layers: The layers.
        positions: (P + offset, D) the position vectors; a position past the last one has the last one's.
        offset: The row of the first position (BART keeps two rows before it).
        scale: Factor of the token vectors.
        embedding_norm: The norm of the input.
        norm: The norm of the output.
        dropout: Dropout probability of the input.
    """

    def __init__(
        self,
        layers: Iterable[EncoderDecoderLayer],
        positions: nn.Parameter,
        offset: int,
        scale: float,
        embedding_norm: nn.Module,
        norm: nn.Module,
        dropout: float,
    ):
        super().__init__(layers, dropout)
        self.positions, self.offset, self.scale = positions, offset, scale
        self.embedding_norm, self.norm = embedding_norm, norm

    def enter(self, x: Tensor, places: Tensor) -> Tensor:
        rows = (places + self.offset).clamp(max=len(self.positions) - 1)
        return self.dropout(self.embedding_norm(self.scale * x + F.embedding(rows, self.positions)))

    def position_bias(self, distance: Tensor) -> float:
        return 0.0

    def leave(self, x: Tensor) -> Tensor:
        return self.norm(x)


class _Weights(NamedTuple):
    """The weights of one side of a checkpoint, as layers."""

    state: dict[str, Tensor]
    side: str

    def linear(self, *names: str) -> nn.Linear:
        parts = (torch.cat([self.state[f"{self.side}.{name}.{part}"] for name in names]) for part in ("weight", "bias"))
        return linear_from(*parts)

    def norm(self, name: str) -> nn.LayerNorm:
        state = {part: self.state[f"{self.side}.{name}.{part}"] for part in ("weight", "bias")}
        norm = nn.LayerNorm(len(state["weight"]))
        norm.load_state_dict(state)
        return norm


def _language_tokens(checkpoint: Seq2SeqCheckpoint, language: str | None) -> tuple[list[int], list[int]]:
    before, behind = language_tokens(checkpoint.name, language)
    return checkpoint.numbers(before), checkpoint.numbers(behind)


def _table(checkpoint: Seq2SeqCheckpoint, side: str) -> Tensor:
    return checkpoint.state[f"model.{side}.embed_tokens.weight"][checkpoint.ids]


BART = BartFamily(pre_norm=False, embedding_norm=True, learned_positions=True, languages=False, before=(BOS_ID,))
MBART = BartFamily(pre_norm=True, embedding_norm=True, learned_positions=True, languages=True, before=())
MARIAN = BartFamily(pre_norm=False, embedding_norm=False, learned_positions=False, languages=False, before=())


# The encoder and the decoder of a T5, from a checkpoint's configuration and weights (Raffel et al. 2020).


class Distances(nn.Module):
    """Relative position bias: a number for each head and distance, which is added to the attention scores.

    Distances are bucketed: half of the buckets have one distance each, the others are logarithmic.

    Args:
        weight: The numbers, (buckets, H).
        farthest: Distance from which all share a bucket.
        both: Whether a token also attends to later ones, which have half of the buckets.
    """

    buckets: Tensor

    def __init__(self, weight: Tensor, farthest: int, both: bool):
        super().__init__()
        self.farthest, self.weight = farthest, nn.Parameter(weight)
        count = len(weight) // 2 if both else len(weight)
        near = count // 2
        d = torch.arange(-farthest, farthest + 1)  # from the query to the key
        far = d.abs() if both else (-d).clamp(min=0)
        logarithmic = (far.float() / near).clamp(min=1).log() / math.log(farthest / near) * (count - near)
        buckets = torch.where(far < near, far, (near + logarithmic.long()).clamp(max=count - 1))
        self.register_buffer("buckets", buckets + count * (d > 0) * both, persistent=False)  # (2 farthest + 1,)

    def forward(self, distance: Tensor) -> Tensor:  # (n, m) -> (H, n, m)
        place = distance.clamp(-self.farthest, self.farthest) + self.farthest
        return F.embedding(F.embedding(place, self.buckets[:, None])[..., 0], self.weight).permute(2, 0, 1)


class T5Stack(Stack):
    """Pre-norm layers with unscaled scores and shared distances, and a final norm."""

    def __init__(self, layers: Iterable[EncoderDecoderLayer], distances: Distances, norm: RMSNorm, dropout: float):
        super().__init__(layers, dropout)
        self.distances, self.norm = distances, norm

    def enter(self, x: Tensor, places: Tensor) -> Tensor:
        return self.dropout(x)

    def position_bias(self, distance: Tensor) -> Tensor:
        return self.distances(distance)

    def leave(self, x: Tensor) -> Tensor:
        return self.dropout(self.norm(x))


class T5Family:
    """The encoder and the decoder of a T5 or an mT5."""

    def encoder(self, checkpoint: Seq2SeqCheckpoint, dropout: float | None, language: str | None) -> EncoderParts:
        """Return the encoder; `dropout` None: the checkpoint's. A text ends with the end token."""
        checkpoint.refuse_language(language)
        table = checkpoint.state["shared.weight"][checkpoint.ids]
        return EncoderParts(_stack(checkpoint, "encoder", dropout), table, (), (EOS_ID,), len(table), None)

    def decoder(self, checkpoint: Seq2SeqCheckpoint, dropout: float | None, language: str | None) -> DecoderParts:
        """Return the decoder. T5 1.0 ties the output layer to the token vectors and scales its input."""
        checkpoint.refuse_language(language)
        config, output = checkpoint.config, checkpoint.state["lm_head.weight"]
        tied = torch.equal(output, checkpoint.state["shared.weight"])
        scales = optional_attribute(config, "scale_decoder_outputs")
        return DecoderParts(
            stack=_stack(checkpoint, "decoder", dropout),
            table=None,
            output=None if tied else output[checkpoint.ids],
            bias=None,
            scale=config.d_model**-0.5 if (config.tie_word_embeddings if scales is None else scales) else 1.0,
            start=(BOS_ID,),
            known=len(checkpoint.ids),
            ends=False,
            positions=None,
        )


def _stack(checkpoint: Seq2SeqCheckpoint, side: str, dropout: float | None) -> T5Stack:
    """Return the `encoder` or the `decoder`; DataError if its activation is not supported."""
    config, state = checkpoint.config, checkpoint.state
    p = config.dropout_rate if dropout is None else dropout
    g = checkpoint_activation(config.dense_act_fn, checkpoint.name)

    def linear(*names: str) -> nn.Linear:
        return linear_from(torch.cat([state[f"{side}.{name}.weight"] for name in names]))

    def norm(name: str) -> RMSNorm:
        return RMSNorm(state[f"{side}.{name}.weight"], config.layer_norm_epsilon)

    def attention(at: str) -> BiasedAttention:
        return BiasedAttention(linear(f"{at}.q"), linear(f"{at}.k", f"{at}.v"), linear(f"{at}.o"), config.num_heads, p)

    def layer(number: int) -> EncoderDecoderLayer:
        at, kinds = f"block.{number}.layer", ["SelfAttention"]
        kinds += ["EncDecAttention"] if side == "decoder" else []
        attentions = [attention(f"{at}.{i}.{kind}") for i, kind in enumerate(kinds)]
        norms = [norm(f"{at}.{i}.layer_norm") for i in range(len(kinds) + 1)]
        inner = f"{at}.{len(kinds)}.DenseReluDense"
        if config.is_gated_act:
            gate, up = linear(f"{inner}.wi_0"), linear(f"{inner}.wi_1")
            feedforward: nn.Module = GatedFeedForward(gate, up, linear(f"{inner}.wo"), g, p)
        else:
            feedforward = nn.Sequential(linear(f"{inner}.wi"), g, nn.Dropout(p), linear(f"{inner}.wo"))
        return EncoderDecoderLayer(norms, attentions, feedforward, p)

    count = config.num_layers if side == "encoder" else config.num_decoder_layers
    weight = state[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    distances = Distances(weight, config.relative_attention_max_distance, side == "encoder")
    return T5Stack((layer(i) for i in range(count)), distances, norm("final_layer_norm"), p)


# Pretrained encoder-decoders of every known family, by the `model_type` of their configuration.

T5 = T5Family()
FAMILIES: Mapping[str, BartFamily | T5Family] = {"t5": T5, "mt5": T5, "bart": BART, "mbart": MBART, "marian": MARIAN}


def pretrained_encoder_parts(
    checkpoint: str | Path, vocabulary: Sequence[str], dropout: float | None, language: str | None
) -> EncoderParts:
    """Return the encoder of a checkpoint.

    Args:
        checkpoint: A folder, or a name on the hub.
        vocabulary: The tokens that ids stand for, those of `pretrained_tokenizer`.
        dropout: Dropout probability; None for the checkpoint's own.
        language: Language of the texts, for a multilingual checkpoint; None: that of its tokenizer.

    Raises:
        DataError, EnvError, UsageError: those of `pretrained_model`, and for an unsupported model or language.
    """
    read = pretrained_seq2seq(checkpoint, vocabulary, [*FAMILIES], "source")
    return FAMILIES[read.config.model_type].encoder(read, dropout, language)


def pretrained_decoder_parts(
    checkpoint: str | Path, vocabulary: Sequence[str], dropout: float | None, language: str | None
) -> DecoderParts:
    """Return the decoder of a checkpoint, like `pretrained_encoder_parts`; `language` is that of the output."""
    read = pretrained_seq2seq(checkpoint, vocabulary, [*FAMILIES], "target")
    return FAMILIES[read.config.model_type].decoder(read, dropout, language)
