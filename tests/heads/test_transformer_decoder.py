"""The Transformer's decoder against `transformers`' own generation with the same weights, and against itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from exported import Graph, export, ragged
from torch import Tensor
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel

from seqpipe.nn import search as searching
from seqpipe.nn.layers import BOS_ID, EOS_ID, PAD_ID
from seqpipe.nn.search import SearchOptions
from seqpipe_plugins.heads.transformer_decoder import TransformerDecoder

V, D, SIZES = 60, 32, ("beams", "n_best", "max_length")
WORDS = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", *map(str, range(4, V))]
AXES: Any = {"x": ("b", "t"), "mask": ("b", "t"), "alpha": (), **{name: (f"n_{name}",) for name in SIZES}}


def marian(seed: int = 0) -> MarianMTModel:
    """A small MarianMT whose outputs vary: untied, its weights made larger."""
    torch.manual_seed(seed)
    config = MarianConfig(
        vocab_size=V,
        decoder_vocab_size=V,
        d_model=D,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=64,
        activation_function="silu",
        scale_embedding=True,
        tie_word_embeddings=False,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        decoder_start_token_id=BOS_ID,
        forced_eos_token_id=None,
        attn_implementation="eager",
    )
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "positions" not in name:
                parameter.mul_(40 if "lm_head" in name else 70 if "embed" in name or "shared" in name else 12)
        model.final_logits_bias[0, [PAD_ID, BOS_ID]] = -1e4
    return model


def copied(model: Any) -> TransformerDecoder:
    """The same weights in a head of ours."""
    head = TransformerDecoder(
        (D,),
        WORDS,
        layers=2,
        feedforward=48,
        norm="post",
        activation="silu",
        positions="learned",
        longest=64,
        tie=False,
    ).eval()
    theirs = model.model.decoder
    pairs: list[tuple[Any, Any]] = [
        (head.vocabulary.embedding.weight, theirs.embed_tokens.weight),
        (head.positions.table if head.positions else None, theirs.embed_positions.weight),
    ]
    assert head.vocabulary.output is not None
    pairs += [
        (head.vocabulary.output.weight, model.lm_head.weight),
        (head.vocabulary.output.bias, model.final_logits_bias[0]),
    ]
    for mine, their in zip(head.layers, theirs.layers, strict=True):
        for attention, name in ((mine.itself, "self_attn"), (mine.source.attentions[0], "encoder_attn")):
            other = getattr(their, name)
            pairs += [(attention.query.weight, other.q_proj.weight), (attention.query.bias, other.q_proj.bias)]
            pairs += [(attention.key.weight, other.k_proj.weight)]  # a bias of the keys changes no weight
            pairs += [(attention.value.weight, other.v_proj.weight), (attention.value.bias, other.v_proj.bias)]
            pairs += [(attention.output.weight, other.out_proj.weight), (attention.output.bias, other.out_proj.bias)]
        norms = (their.self_attn_layer_norm, their.encoder_attn_layer_norm, their.final_layer_norm)
        for ours, norm in zip(mine.norms, norms, strict=True):
            pairs += [(ours.weight, norm.weight), (ours.bias, norm.bias)]
        for ours, linear in ((mine.feedforward[0], their.fc1), (mine.feedforward[3], their.fc2)):
            pairs += [(ours.weight, linear.weight), (ours.bias, linear.bias)]
    with torch.no_grad():
        for mine, their in pairs:
            mine.copy_(their)
    return head


def sources(count: int, seed: int) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(seed)
    mask = ragged(*random.integers(1, 12, count).tolist())
    ids = torch.from_numpy(random.integers(4, V, tuple(mask.shape)))
    return torch.where(mask, ids, PAD_ID), mask


def generated(model: Any, ids: Tensor, mask: Tensor, beams: int, longest: int) -> Tensor:
    """What `transformers` generates: tokens behind the first, filled up with [PAD]."""
    with torch.no_grad():
        found = model.generate(
            input_ids=ids,
            attention_mask=mask.long(),
            num_beams=beams,
            max_new_tokens=longest,
            length_penalty=0.0,
            early_stopping="never",
            do_sample=False,
        )[:, 1:]
    found = F.pad(found, (0, longest - found.shape[1]))
    ended = (found == EOS_ID).long().cumsum(1) - (found == EOS_ID).long() > 0  # where [PAD] is 0 it fills up with [EOS]
    return torch.where(ended, PAD_ID, found)


@pytest.fixture(scope="module")
def model() -> Any:
    return marian()


def written(model: Any, head: TransformerDecoder, ids: Tensor, mask: Tensor, beams: int, longest: int) -> Tensor:
    with torch.no_grad():
        x = model.model.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        x = torch.where(mask[..., None], x, torch.nan)
        return head.decide([{"x": x, "mask": mask}], options=SearchOptions(beams=beams, max_length=longest))["tokens"][
            :, 0
        ]


@pytest.mark.parametrize("beams", [1, 4])
def test_it_writes_what_transformers_generates(model: Any, beams: int) -> None:
    head, (ids, mask) = copied(model), sources(200, beams)
    expected = generated(model, ids, mask, beams, 20)
    assert torch.equal(written(model, head, ids, mask, beams, 20), expected)
    assert len(expected.unique()) > 30  # the texts vary, or the comparison proves nothing
    assert len({tuple(row) for row in expected.tolist()}) > 50


@pytest.mark.parametrize("fault", ["position", "rows", "padding"])
def test_planted_faults_are_seen(model: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head, (ids, mask) = copied(model), sources(60, 4)
    expected = generated(model, ids, mask, 4, 20)
    if fault == "position":
        assert head.positions is not None
        right = head.positions.at
        monkeypatch.setattr(head.positions, "at", lambda t: right(t + 1))
    elif fault == "rows":
        step = head.step

        def swapped(source: Any, tokens: Tensor, state: Any) -> Any:
            logits, after, attention = step(source, tokens, state)
            return logits, (*(cache.flip(0) for cache in after[:-1]), after[-1]), attention

        monkeypatch.setattr(head, "step", swapped)
    else:
        read = head.read
        blind = lambda one: {"x": torch.nan_to_num(one["x"]), "mask": torch.ones_like(one["mask"])}  # noqa: E731
        monkeypatch.setattr(head, "read", lambda sources: read([blind(one) for one in sources]))
    assert not torch.equal(written(model, head, ids, mask, 4, 20), expected)


def test_one_by_one_is_together(model: Any) -> None:
    head, (ids, mask) = copied(model), sources(12, 5)
    together = written(model, head, ids, mask, 4, 20)
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = written(model, head, ids[row : row + 1, :length], mask[row : row + 1, :length], 4, 20)
        assert torch.equal(alone[0], together[row])


OPTIONS: dict[str, dict[str, Any]] = {
    "pre": {"tie": True},
    "post": {"norm": "post", "positions": "learned", "tie": False, "activation": "gelu"},
    "plain": {"positions": "none", "scale": False, "hidden": 12, "layers": 1},
}


def decoder(kind: str, **options: Any) -> TransformerDecoder:
    torch.manual_seed(1)
    head = TransformerDecoder((8,), WORDS, **OPTIONS[kind], **options).eval()
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return head


def given(*lengths: int) -> dict[str, Tensor]:
    mask = ragged(*lengths)
    return {"x": torch.where(mask[..., None], torch.randn(*mask.shape, 8), torch.nan), "mask": mask}


@pytest.mark.parametrize("kind", OPTIONS)
def test_step_by_step_is_all_at_once(kind: str) -> None:
    head, source = decoder(kind), given(5, 3, 1, 7)
    with torch.no_grad():
        made = head.decide([source], options=SearchOptions(beams=3, n_best=3, max_length=15))
        for k in range(3):
            scored = head.score([source], tokens=made["tokens"][:, k : k + 1])
            assert torch.allclose(scored, made["scores"][:, k], atol=1e-3)


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_loss_reaches_every_weight(kind: str) -> None:
    head = TransformerDecoder((8,), WORDS, **OPTIONS[kind])
    target = torch.tensor([[5, 9, 4, EOS_ID], [7, 6, EOS_ID, PAD_ID]])
    head.loss([given(4, 2)], target_ids=target, target_mask=target != PAD_ID).backward()
    assert [name for name, p in head.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_token_never_sees_those_behind_it(kind: str) -> None:
    head, source, ids = decoder(kind), given(4, 2), torch.randint(4, V, (2, 6))
    memory = head.read([source])
    before, _ = head.teacher_forced(memory, ids, ())
    after, _ = head.teacher_forced(memory, torch.cat([ids[:, :3], ids[:, 3:].flip(1)], 1), ())
    assert torch.allclose(before[:, :4], after[:, :4], atol=1e-5)
    assert not torch.allclose(before[:, 4:], after[:, 4:], atol=1e-3)


@pytest.fixture(scope="module", params=[*OPTIONS])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[TransformerDecoder, Graph]:
    head, path = decoder(request.param), tmp_path_factory.mktemp("decoder") / "decoder.onnx"
    example = given(5, 2, 4) | options(4, 3, 7, 0.5)
    return head, export(path, head, lambda **one: decided(head, **one), AXES, **example)


def options(beams: int, n_best: int, most: int, alpha: float = 0.0) -> dict[str, Tensor]:
    sizes = zip(SIZES, (beams, n_best, most), strict=True)
    return {name: torch.zeros(size) for name, size in sizes} | {"alpha": torch.tensor(alpha)}


def decided(head: TransformerDecoder, alpha: Tensor, **given: Any) -> dict[str, Tensor]:
    sizes = {name: given.pop(name).shape[0] for name in SIZES}
    return head.decide([given], options=SearchOptions(**sizes, length_penalty=alpha))


@pytest.mark.parametrize(
    ("lengths", "chosen"),
    [((4,), (1, 1, 1)), ((5, 1, 2, *[7] * 20), (1, 1, 25)), ((3, 9, 1, 1), (5, 5, 20)), ((2, 6, 4), (4, 2, 9, 0.8))],
)
def test_the_graph_writes_the_same_texts(
    pair: tuple[TransformerDecoder, Graph], lengths: tuple[int, ...], chosen: tuple[Any, ...]
) -> None:
    head, graph = pair
    torch.manual_seed(5)
    feed = given(*lengths) | options(*chosen)
    with torch.no_grad():
        expected = decided(head, **feed)
    made = graph(**feed)
    assert np.array_equal(made["tokens"], expected["tokens"].numpy())
    assert np.allclose(made["scores"], expected["scores"].numpy(), rtol=1e-4, atol=1e-4)


def test_search_is_the_one_of_every_writer() -> None:
    assert TransformerDecoder.decide.__module__ == "seqpipe.nn.seq2seq_head"
    assert searching.beam_search.__module__ == "seqpipe.nn.search"
