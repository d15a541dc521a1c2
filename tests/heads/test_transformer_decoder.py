"""The Transformer's decoder against `transformers`' own generation with the same weights."""

from typing import Any

import numpy as np
import pytest
import torch
from exported_graphs import ragged_mask
from torch import Tensor
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel

from seqpipe.nn.layers import BOS_ID, EOS_ID, PAD_ID
from seqpipe.nn.search import SearchOptions
from seqpipe_plugins.heads.transformer_decoder import TransformerDecoder

V, D = 60, 32
WORDS = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", *map(str, range(4, V))]
SIZES = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
SIZES |= {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64}
IDS = {"pad_token_id": PAD_ID, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "decoder_start_token_id": BOS_ID}


@pytest.fixture(scope="module")
def model() -> Any:
    """A small MarianMT whose outputs vary: untied, its weights made larger."""
    torch.manual_seed(0)
    settings = {"activation_function": "silu", "scale_embedding": True, "tie_word_embeddings": False}
    settings |= {"forced_eos_token_id": None, "attn_implementation": "eager", **SIZES, **IDS}
    model = MarianMTModel(MarianConfig(vocab_size=V, decoder_vocab_size=V, d_model=D, **settings)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "positions" not in name:
                parameter.mul_(40 if "lm_head" in name else 70 if "embed" in name or "shared" in name else 12)
        model.final_logits_bias[0, [PAD_ID, BOS_ID]] = -1e4
    return model


def copied(model: Any) -> TransformerDecoder:
    """The same weights in a head of ours."""
    options: dict[str, Any] = {"norm": "post", "activation": "silu", "positions": "learned", "longest": 64}
    head: Any = TransformerDecoder((D,), WORDS, layers=2, feedforward=48, tie=False, **options).eval()
    decoder = model.model.decoder
    pairs = [
        (head.vocabulary.embedding.weight, decoder.embed_tokens.weight),
        (head.positions.table, decoder.embed_positions.weight),
        (head.vocabulary.output.weight, model.lm_head.weight),
        (head.vocabulary.output.bias, model.final_logits_bias[0]),
    ]
    modules = []
    for mine, their in zip(head.layers, decoder.layers, strict=True):
        for ours, attention in ((mine.itself, their.self_attn), (mine.source.attentions[0], their.encoder_attn)):
            pairs += [(ours.key.weight, attention.k_proj.weight)]  # a bias of the keys changes no weight
            modules += [(ours.query, attention.q_proj), (ours.value, attention.v_proj)]
            modules += [(ours.output, attention.out_proj)]
        norms = (their.self_attn_layer_norm, their.encoder_attn_layer_norm, their.final_layer_norm)
        modules += [*zip(mine.norms, norms, strict=True)]
        modules += [(mine.feedforward[0], their.fc1), (mine.feedforward[3], their.fc2)]
    for ours, module in modules:
        pairs += [(ours.weight, module.weight), (ours.bias, module.bias)]
    with torch.no_grad():
        for mine, their in pairs:
            mine.copy_(their)
    return head


def sources(count: int, seed: int) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(seed)
    mask = ragged_mask(*random.integers(1, 12, count).tolist())
    ids = torch.from_numpy(random.integers(4, V, tuple(mask.shape)))
    return torch.where(mask, ids, PAD_ID), mask


def generated(model: Any, ids: Tensor, mask: Tensor, beams: int, longest: int) -> Tensor:
    """The tokens that `transformers` generates behind the first, filled up with [PAD]."""
    search = {"num_beams": beams, "length_penalty": 0.0, "early_stopping": "never", "do_sample": False}
    with torch.no_grad():
        tokens = model.generate(input_ids=ids, attention_mask=mask.long(), max_new_tokens=longest, **search)[:, 1:]
    tokens = F.pad(tokens, (0, longest - tokens.shape[1]))
    ended = (tokens == EOS_ID).long().cumsum(1) - (tokens == EOS_ID).long() > 0  # where [PAD] is 0 it fills with [EOS]
    return torch.where(ended, PAD_ID, tokens)


def decided(model: Any, head: TransformerDecoder, ids: Tensor, mask: Tensor, beams: int, longest: int) -> Tensor:
    with torch.no_grad():
        x = model.model.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        source = {"x": torch.where(mask[..., None], x, torch.nan), "mask": mask}
        return head.decide([source], options=SearchOptions(beams=beams, max_length=longest))["tokens"][:, 0]


@pytest.mark.parametrize("beams", [1, 4])
def test_it_writes_what_transformers_generates(model: Any, beams: int) -> None:
    head, (ids, mask) = copied(model), sources(200, beams)
    expected = generated(model, ids, mask, beams, 20)
    assert torch.equal(decided(model, head, ids, mask, beams, 20), expected)
    assert len(expected.unique()) > 30  # the texts vary, or the comparison proves nothing
    assert len({tuple(row) for row in expected.tolist()}) > 50


@pytest.mark.parametrize("fault", ["position", "rows", "padding"])
def test_planted_faults_are_seen(model: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head: Any = copied(model)
    ids, mask = sources(60, 4)
    at, step, read = head.positions.at, head.step, head.read

    def swapped(source: Any, tokens: Tensor, state: Any) -> Any:
        logits, after, attention = step(source, tokens, state)
        return logits, (*(cache.flip(0) for cache in after[:-1]), after[-1]), attention

    def blind(sources: Any) -> Any:
        return read([{"x": torch.nan_to_num(one["x"]), "mask": torch.ones_like(one["mask"])} for one in sources])

    target, name, wrong = {
        "position": (head.positions, "at", lambda t: at(t + 1)),
        "rows": (head, "step", swapped),
        "padding": (head, "read", blind),
    }[fault]
    monkeypatch.setattr(target, name, wrong)
    assert not torch.equal(decided(model, head, ids, mask, 4, 20), generated(model, ids, mask, 4, 20))
