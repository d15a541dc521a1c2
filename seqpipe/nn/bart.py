"""The encoder and the decoder of a BART, an mBART or a Marian, from a checkpoint's configuration and weights.

BART (Lewis et al. 2020), mBART (Liu et al. 2020) and Marian (Junczys-Dowmunt et al. 2018) are Transformers of Vaswani
et al. (2017), their attention scaled and with biases. They differ in where norms stand, in positions and in special
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.errors import DataError
from seqpipe.features.checkpoint_tokenizer import language_tokens
from seqpipe.nn.constants import BOS, EOS
from seqpipe.nn.encoder_decoder import Attention, DecoderParts, EncoderParts, Layer, Stack
from seqpipe.nn.feedforward import linear_of
from seqpipe.nn.pretrained import Seq2SeqCheckpoint, optional_attribute

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu_new": lambda: nn.GELU("tanh"),
    "silu": nn.SiLU,
    "swish": nn.SiLU,
}


class Family(NamedTuple):
    """How a family differs from the others.

    Args:
        pre_norm: Whether norms stand before attention and feed-forward networks, and one on top of each stack.
        embedding_norm: Whether there is a norm of the sum of token and position vectors.
        learned_positions: Whether position vectors are trained; else they are sinusoids.
        languages: Whether the special tokens around a text name its language.
        before: The special tokens before a text, where they do not.
    """

    pre_norm: bool
    embedding_norm: bool
    learned_positions: bool
    languages: bool
    before: Sequence[int]

    def encoder(self, checkpoint: Seq2SeqCheckpoint, dropout: float | None, language: str | None) -> EncoderParts:
        """The encoder; `dropout` is null for the checkpoint's own, `language` for that of its tokenizer."""
        before, behind = self.before, [EOS]
        if self.languages:
            before, behind = _language_tokens(checkpoint, language)
        else:
            checkpoint.refuse_language(language)
        stack, table = self._stack(checkpoint, "encoder", dropout), _table(checkpoint, "encoder")
        return EncoderParts(stack, table, before, behind, checkpoint.known, len(stack.positions) - stack.offset)

    def decoder(self, checkpoint: Seq2SeqCheckpoint, dropout: float | None, language: str | None) -> DecoderParts:
        """The decoder; `dropout` is null for the checkpoint's own, `language` for what it begins texts with."""
        stack, bias = self._stack(checkpoint, "decoder", dropout), checkpoint.state["final_logits_bias"][0]
        output, table = checkpoint.state["lm_head.weight"], _own_table(checkpoint)
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
        """What a decoder begins with: its start token, then what `generate` of `transformers` forces to be first."""
        first, forced = checkpoint.start_token, checkpoint.generation.forced_bos_token_id
        if language is None and first is None:
            raise DataError(f"{checkpoint.name}: it does not say what a text begins with; set the head's `language`")
        if language is not None and self.languages:
            before, behind = _language_tokens(checkpoint, language)
            return [EOS, *before] if before else [token for token in behind if token != EOS]
        checkpoint.refuse_language(language)
        tokens = checkpoint.numbers([token for token in (first, forced) if token is not None])
        return tokens if forced is not None else [*tokens, *self.before]

    def _stack(self, checkpoint: Seq2SeqCheckpoint, side: str, dropout: float | None) -> BartStack:
        config, weights = checkpoint.config, _Weights(checkpoint.state, f"model.{side}")
        if config.activation_function not in _ACTIVATIONS:
            problem = f"its activation {config.activation_function!r} is not known here ({', '.join(_ACTIVATIONS)})"
            raise DataError(f"{checkpoint.name}: {problem}; choose another checkpoint")
        outer, inner, attended = (
            p if dropout is None else dropout
            for p in (config.dropout, config.activation_dropout, config.attention_dropout)
        )
        heads: int = getattr(config, f"{side}_attention_heads")

        def attention(at: str) -> Attention:
            both = weights.linear(f"{at}.k_proj", f"{at}.v_proj")
            scale = (config.d_model // heads) ** -0.5
            return Attention(
                weights.linear(f"{at}.q_proj"), both, weights.linear(f"{at}.out_proj"), heads, attended, scale
            )

        def layer(at: str) -> Layer:
            kinds = ["self_attn", "encoder_attn"] if side == "decoder" else ["self_attn"]
            norms = [weights.norm(f"{at}.{kind}_layer_norm") for kind in kinds]
            norms.append(weights.norm(f"{at}.final_layer_norm"))
            feedforward = nn.Sequential(
                weights.linear(f"{at}.fc1"),
                _ACTIVATIONS[config.activation_function](),
                nn.Dropout(inner),
                weights.linear(f"{at}.fc2"),
            )
            attentions = [attention(f"{at}.{kind}") for kind in kinds]
            return Layer(norms, attentions, feedforward, outer, pre_norm=self.pre_norm)

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
        layers: Iterable[Layer],
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
        entered: Tensor = self.dropout(self.embedding_norm(self.scale * x + F.embedding(rows, self.positions)))
        return entered

    def position_bias(self, distance: Tensor) -> float:
        return 0.0

    def leave(self, x: Tensor) -> Tensor:
        left: Tensor = self.norm(x)
        return left


class _Weights(NamedTuple):
    """The weights of one side of a checkpoint, as layers."""

    state: dict[str, Tensor]
    side: str

    def linear(self, *names: str) -> nn.Linear:
        parts = (torch.cat([self.state[f"{self.side}.{name}.{part}"] for name in names]) for part in ("weight", "bias"))
        return linear_of(*parts)

    def norm(self, name: str) -> nn.LayerNorm:
        state = {part: self.state[f"{self.side}.{name}.{part}"] for part in ("weight", "bias")}
        norm = nn.LayerNorm(len(state["weight"]))
        norm.load_state_dict(state)
        return norm


def _language_tokens(checkpoint: Seq2SeqCheckpoint, language: str | None) -> tuple[list[int], list[int]]:
    before, behind = language_tokens(checkpoint.name, language)
    return checkpoint.numbers(before), checkpoint.numbers(behind)


def _shares_tables(checkpoint: Seq2SeqCheckpoint) -> bool:
    """Whether the encoder and the decoder have one table of token vectors."""
    return optional_attribute(checkpoint.config, "share_encoder_decoder_embeddings") is not False


def _table(checkpoint: Seq2SeqCheckpoint, side: str) -> Tensor:
    return checkpoint.state[f"model.{side}.embed_tokens.weight"][checkpoint.ids]


def _own_table(checkpoint: Seq2SeqCheckpoint) -> Tensor | None:
    return None if _shares_tables(checkpoint) else _table(checkpoint, "decoder")


BART = Family(pre_norm=False, embedding_norm=True, learned_positions=True, languages=False, before=(BOS,))
MBART = Family(pre_norm=True, embedding_norm=True, learned_positions=True, languages=True, before=())
MARIAN = Family(pre_norm=False, embedding_norm=False, learned_positions=False, languages=False, before=())
