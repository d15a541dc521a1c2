"""A pretrained decoder as a causal encoder: GPT-2 and Llama-like models, fine-tuned or frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.nn.incremental import KVCacheEncoder
from seqpipe.nn.layers import MASKED_LOGIT, GatedFeedForward, Modules, RMSNorm, linear_from
from seqpipe.nn.pretrained import checkpoint_activation, layer_decay_factor, optional_attribute, pretrained_decoder
from seqpipe.plugin import NO_CHECKPOINT_ID, Checkpoint, DataError, Probability


class PretrainedDecoder(KVCacheEncoder):
    """A pretrained causal decoder (GPT-2, Llama, Mistral), for the head `lm`.

    GPT-2 (Radford et al. 2019): learned positions, layer norm before each sublayer. Llama (Touvron et al. 2023) and
    Mistral: rotary position embeddings (Su et al. 2021), RMS norm (Zhang and Sennrich 2019), gated feed-forward
    networks (Shazeer 2020), and grouped-query attention (Ainslie et al. 2023). `table` (V, D) is the weight matrix of
    the output layer, and `table_bias` (V,) a large negative number for tokens that the checkpoint lacks.

    Args:
        checkpoint: A folder written by `save_pretrained`, or a name on the hub; the same as for the tokenizer.
        dropout: Dropout probability of the input, the attention weights and the output of each sublayer; null: that of
            the checkpoint.
        layer_decay: Factor of the learning rate from each layer to the one below it (Howard and Ruder 2018).
    """

    length_cost: ClassVar = "quadratic"
    returns: ClassVar = {"x": "", "table": "(V, D) float32", "table_bias": "(V,) float32"}
    rows: ClassVar = dict.fromkeys(("words.weight", "output", "lacking"), ("vocabulary",))
    layers: Modules[PreNormLayer]
    lacking: Tensor

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        checkpoint: Checkpoint,
        dropout: Probability | None = None,
        layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0,
    ):
        super().__init__()
        config, state, ids = pretrained_decoder(checkpoint, vocabulary)
        make = (_GPT2 if config.model_type == "gpt2" else _Llama)(config, state, checkpoint)
        self.dim, self.groups, self.head_dim = make.dim, make.groups, make.dim_of_head
        self.max_length: int = config.max_position_embeddings
        self.layer_decay = layer_decay
        dropout_p = make.dropout if dropout is None else dropout
        at = torch.tensor([max(i, 0) for i in ids])
        real = torch.tensor(ids) != NO_CHECKPOINT_ID
        self.register_buffer("lacking", torch.where(real, 0.0, MASKED_LOGIT))  # (V,)
        self.words = nn.Embedding.from_pretrained(state[make.words][at] * real[:, None], freeze=False)
        output = state.get("lm_head.weight", state[make.words])
        tied = config.tie_word_embeddings
        self.output = None if tied else nn.Parameter(output[at] * real[:, None])
        self.positions = nn.Parameter(state[make.positions]) if make.positions else None
        self.dropout = nn.Dropout(dropout_p)
        self.layers = Modules(make.layer(i, dropout_p) for i in range(config.num_hidden_layers))
        self.norm = make.norm(make.last_norm)

    @staticmethod
    def causal_fix(options: Mapping[str, Any]) -> str:
        return ""

    def learning_rate_factor(self, name: str) -> float:
        """Return the factor of the learning rate of a parameter."""
        return layer_decay_factor(name, self.layer_decay, len(self.layers), is_on_top=name.startswith("norm"))

    def embed(self, ids: Tensor) -> dict[str, Tensor]:  # (B, T) -> (B, T, D), (V, D), (V,)
        """Return token vectors without positions, and the weights of the output layer."""
        table = self.words.weight if self.output is None else self.output
        return {"x": self.words(ids), "table": table, "table_bias": self.lacking}

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:  # (B, T) twice -> (B, T, D), (V, D), (V,)
        outputs, places = self.embed(ids), torch.arange(ids.shape[1], device=ids.device)[None]
        x = self.dropout(self.enter(outputs["x"], places))
        for layer in self.layers:
            x = layer.fused_forward(x, places)
        return outputs | {"x": torch.where(mask[..., None], self.leave(x), 0.0)}

    def enter(self, x: Tensor, places: Tensor) -> Tensor:
        return x if self.positions is None else x + F.embedding(places.clamp(max=self.max_length - 1), self.positions)

    def leave(self, x: Tensor) -> Tensor:
        return self.norm(x)


class PreNormLayer(nn.Module):
    """A pre-norm residual layer of attention and a feed-forward network."""

    rotary: Tensor | None
    scales: Tensor

    def __init__(
        self,
        norms: tuple[nn.Module, nn.Module],
        joined: nn.Linear,  # queries, keys and values, concatenated
        mix: nn.Linear,
        feedforward: nn.Module,
        sizes: tuple[int, int, int],  # H, G, d
        rotary: Tensor | None,  # (d / 2,) radians a position
        dropout: float,
    ):
        super().__init__()
        self.norms, self.joined, self.mix, self.feedforward = nn.ModuleList(norms), joined, mix, feedforward
        self.heads, self.groups, self.each = sizes
        self.attention_dropout, self.dropout = dropout, nn.Dropout(dropout)
        self.register_buffer("rotary", rotary, persistent=False)
        scales = torch.ones(joined.out_features)
        scales[: self.heads * self.each] = self.each**-0.5  # of the queries
        self.register_buffer("scales", scales, persistent=False)

    def project_qkv(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # With a factor of the queries alone onnxruntime computes the scores of one token 2.5 times slower.
        each = self.joined(self.norms[0](x)) * self.scales
        if x.dim() == 3:
            each = each.unflatten(2, (-1, self.each)).transpose(1, 2)  # (B, H + 2 G, n, d)
        else:
            each = each.unflatten(1, (-1, 1, self.each))  # (B, H + 2 G, 1, d)
        queries, keys, values = each.split([self.heads, self.groups, self.groups], 1)
        if self.rotary is not None:
            angles = places.reshape(places.shape[0], 1, -1, 1) * self.rotary  # (B, 1, n, d / 2)
            cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
            # Each pair of numbers is rotated by its angle; a pair is half a width apart, as in the weights of
            # `transformers`, not adjacent as in the paper. A quarter turn of (a, b) is (-b, a).
            halves = [part.chunk(2, -1) for part in (queries, keys)]
            quarter = [torch.cat([-second, first], -1) for first, second in halves]
            queries, keys = queries * cos + quarter[0] * sin, keys * cos + quarter[1] * sin
        return queries, keys, values

    def output(self, x: Tensor, context: Tensor) -> Tensor:
        x = x + self.dropout(self.mix(context))
        return x + self.dropout(self.feedforward(self.norms[1](x)))

    def fused_forward(self, x: Tensor, places: Tensor) -> Tensor:
        """Run the whole layer over consecutive tokens with PyTorch's fused kernel."""
        queries, keys, values = self.project_qkv(x, places)
        dropout = self.attention_dropout if self.training else 0.0
        grouped = self.groups != self.heads
        context = F.scaled_dot_product_attention(
            queries, keys, values, dropout_p=dropout, is_causal=True, scale=1.0, enable_gqa=grouped
        )
        return self.output(x, context.transpose(1, 2).flatten(2))


class _GPT2:
    """Layers of a GPT-2 from its weights."""

    words, positions, last_norm = "transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f"

    def __init__(self, config: Any, state: Mapping[str, Tensor], checkpoint: object):
        if config.scale_attn_by_inverse_layer_idx or not config.scale_attn_weights:
            raise DataError(f"{checkpoint}: its scaling of attention is not supported; choose another")
        self.config, self.state = config, state
        self.dim, self.groups = config.n_embd, config.n_head
        self.dim_of_head = self.dim // config.n_head
        self.dropout: float = config.resid_pdrop
        self.activation = checkpoint_activation(config.activation_function, checkpoint)

    def norm(self, name: str) -> nn.Module:
        norm = nn.LayerNorm(self.dim, self.config.layer_norm_epsilon)
        norm.load_state_dict({part: self.state[f"{name}.{part}"] for part in ("weight", "bias")})
        return norm

    def layer(self, i: int, dropout: float) -> PreNormLayer:
        at = f"transformer.h.{i}"

        def linear(name: str) -> nn.Linear:
            weight, bias = self.state[f"{at}.{name}.weight"].T.contiguous(), self.state[f"{at}.{name}.bias"]
            return linear_from(weight, bias)

        feedforward = nn.Sequential(linear("mlp.c_fc"), self.activation, linear("mlp.c_proj"))
        norms = self.norm(f"{at}.ln_1"), self.norm(f"{at}.ln_2")
        sizes = self.groups, self.groups, self.dim_of_head
        return PreNormLayer(norms, linear("attn.c_attn"), linear("attn.c_proj"), feedforward, sizes, None, dropout)


class _Llama:
    """Layers of a Llama or a Mistral from its weights."""

    words, positions, last_norm = "model.embed_tokens.weight", "", "model.norm"

    def __init__(self, config: Any, state: Mapping[str, Tensor], checkpoint: object):
        rope = config.rope_parameters
        window = optional_attribute(config, "sliding_window")
        if (
            rope["rope_type"] != "default"
            or (window or config.max_position_embeddings) < config.max_position_embeddings
        ):
            problem = f"positions of the type {rope['rope_type']}" if not window else f"a window of {window} tokens"
            raise DataError(f"{checkpoint}: it has {problem}, which is not supported; choose another checkpoint")
        self.config, self.state = config, state
        self.dim, self.groups = config.hidden_size, config.num_key_value_heads
        self.dim_of_head = optional_attribute(config, "head_dim") or self.dim // config.num_attention_heads
        self.dropout = float(config.attention_dropout)
        self.activation = checkpoint_activation(config.hidden_act, checkpoint)
        d = self.dim_of_head
        self.rotary = rope["rope_theta"] ** (-torch.arange(0, d, 2, dtype=torch.float64) / d).float()

    def norm(self, name: str) -> nn.Module:
        return RMSNorm(self.state[f"{name}.weight"], self.config.rms_norm_eps)

    def layer(self, i: int, dropout: float) -> PreNormLayer:
        at = f"model.layers.{i}"

        def linear(*names: str) -> nn.Linear:
            weights = torch.cat([self.state[f"{at}.{name}.weight"] for name in names])
            if f"{at}.{names[0]}.bias" not in self.state:
                return linear_from(weights)
            return linear_from(weights, torch.cat([self.state[f"{at}.{name}.bias"] for name in names]))

        gate, up, down = (linear(f"mlp.{name}_proj") for name in ("gate", "up", "down"))
        feedforward = GatedFeedForward(gate, up, down, self.activation)
        norms = self.norm(f"{at}.input_layernorm"), self.norm(f"{at}.post_attention_layernorm")
        sizes = self.config.num_attention_heads, self.groups, self.dim_of_head
        joined = linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        return PreNormLayer(norms, joined, linear("self_attn.o_proj"), feedforward, sizes, self.rotary, dropout)
