"""The recurrent decoder against PyTorch's layers and NumPy, and its hard attention on a task that needs it."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from exported_graphs import ragged_mask
from generating_heads import RECURRENT, sources, writer
from nn.test_attention import one_query
from tiny_pipelines import write_seq2seq
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.config.loader import load_config
from seqpipe.errors import DataError, UsageError
from seqpipe.nn.attention import GradientEstimator, HardAttention
from seqpipe.nn.layers import BOS_ID, EOS_ID, PAD_ID
from seqpipe.nn.search import SearchOptions
from seqpipe.nn.seq2seq_head import shift_right
from seqpipe.runs.check import build_trial
from seqpipe_plugins.heads.seq2seq import Seq2Seq

ESTIMATORS: tuple[GradientEstimator, ...] = get_args(GradientEstimator)
LETTERS, LONGEST = 8, 6
WORDS = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", *"abcdefgh"]
TARGET = torch.tensor([[5, 9, 4, 8, EOS_ID], [7, 6, EOS_ID, PAD_ID, PAD_ID]])
TARGETS = {"target_ids": TARGET, "target_mask": TARGET != PAD_ID}


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_without_attention_it_is_the_library_s_layer_and_a_linear_one(cell: Any) -> None:
    head, source = writer("fixed", cell=cell), sources(4, 2)
    parts = torch.tanh(head.bridge(source["state"])).unflatten(1, (-1, 2, 12)).permute(1, 2, 0, 3).contiguous()
    h, _ = head.rnn(head.vocabulary(shift_right(TARGET)), (parts[0], parts[1]) if cell == "lstm" else parts[0])
    assert isinstance(head.vocabulary.output, nn.Linear)
    log_p = (head.vocabulary.output(h) + head.logit_mask).log_softmax(2)
    expected = F.nll_loss(log_p[TARGET != PAD_ID], TARGET[TARGET != PAD_ID])
    assert head.loss([source], **TARGETS).item() == pytest.approx(expected.item(), rel=1e-5)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("feeding", [False, True])
@pytest.mark.parametrize(
    ("attention", "intra", "context"),
    [
        ("additive", False, "first-state"),
        ("bilinear", True, "first-state"),
        ("location", True, "first-state"),
        ("none", True, "first-state"),
        ("none", False, "every-step"),
        ("none", True, "every-step"),
    ],
)
def test_each_step_is_what_the_papers_say(attention: Any, intra: bool, context: Any, feeding: bool) -> None:
    chosen = {"attention": attention, "intra_attention": intra, "context": context, "input_feeding": feeding}
    head = writer("intra", **chosen, hidden=7)
    source, total = sources(4, 2), 0.0
    w = {name: p.detach().double().numpy() for name, p in head.named_parameters()}
    for b, n in enumerate((4, 2)):
        memory = source["x"][b, :n].double().numpy()
        h, states = np.tanh(w["bridge.weight"] @ source["state"][b].double().numpy() + w["bridge.bias"]), []
        summary = source["state"][b].double().numpy() if context == "every-step" else np.zeros(0)
        fed = np.zeros(7 if head.feeds else 0)
        words = [word for word in TARGET[b].tolist() if word != PAD_ID]
        for before, word in zip([BOS_ID, *words], words, strict=False):
            step = np.concatenate([w["vocabulary.embedding.weight"][before], fed, summary])
            i, o = (w[f"rnn.weight_{k}_l0"] @ v + w[f"rnn.bias_{k}_l0"] for k, v in (("ih", step), ("hh", h)))
            r, z = (sigmoid(i[k : k + 7] + o[k : k + 7]) for k in (0, 7))
            h = (1 - z) * np.tanh(i[14:] + r * o[14:]) + z * h
            parts = [h]
            if head.attention is not None:
                parts.append(one_query(head.attention.attentions[0], h, memory)[0])
            if intra:
                seen = np.array(states).reshape(-1, 7)
                e = np.exp(seen @ w["written.query.weight"] @ h)
                parts.append(e @ seen / e.sum() if states else np.zeros(7))
            if context == "every-step":  # Cho et al. 2014: h(t), y(t - 1) and c
                parts += [w["vocabulary.embedding.weight"][before], summary]
            readout = np.tanh(w["readout.weight"] @ np.concatenate(parts) + w["readout.bias"])
            fed = readout[: len(fed)]
            states.append(h)
            logits = w["vocabulary.output.weight"] @ readout + w["vocabulary.output.bias"]
            logits[[PAD_ID, BOS_ID]] = -1e4
            total += np.log(np.exp(logits).sum()) - logits[word]
    assert head.loss([source], **TARGETS).item() == pytest.approx(total / 8, rel=1e-5)


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        (["head.attention=location"], "head.positions"),
        (["encoder={use: self-attention, score: location}"], "encoder.longest"),
    ],
)
def test_a_text_of_more_tokens_than_positions_is_refused_with_its_place(
    chosen: list[str], count: str, tmp_path: Path
) -> None:
    path = write_seq2seq(tmp_path)
    trial = build_trial(load_config(path, [*chosen, f"{count}=6"]))
    assert trial.network.limits.tokens == 6
    with pytest.raises(DataError, match=r"train\.jsonl:\d+: [56] tokens exceed the limit of 4; split the text"):
        build_trial(load_config(path, [*chosen, f"{count}=4"]))


def test_without_a_state_it_begins_from_the_mean_of_x() -> None:
    head, source, search = writer("fixed"), sources(3, 1), SearchOptions(max_length=9)
    mean = torch.stack([source["x"][b, :n].mean(0) for b, n in enumerate((3, 1))])
    expected = head.decide([{**source, "state": mean}], options=search)["tokens"]
    for state in (None, torch.randn(2, 7)):  # not as wide as x
        assert torch.equal(head.decide([{**source, "state": state}], options=search)["tokens"], expected)


@pytest.mark.parametrize(
    ("kind", "at", "share"),
    [
        ("linear", 30, 0.7),
        ("linear", 99, 0.1),
        ("exponential", 100, np.exp(-1)),
        ("inverse-sigmoid", 0, 100 / 101),
        ("inverse-sigmoid", 100 * np.log(100), 0.5),
        ("inverse-sigmoid", 10**6, 0.1),
    ],
)
def test_the_share_of_true_tokens_falls_as_the_paper_says(kind: Any, at: float, share: float) -> None:
    head = writer("additive", scheduled_sampling=kind, sampling_steps=100, sampling_floor=0.1)
    assert float(head.teacher_share(torch.tensor(at))) == pytest.approx(share)


@pytest.mark.parametrize("kind", RECURRENT)
def test_scheduled_sampling_reads_true_tokens_or_its_own(kind: str) -> None:
    source = sources(4, 2)
    forced = writer(kind).loss([source], **TARGETS)
    true = writer(kind, scheduled_sampling="linear", sampling_steps=10**9).train()
    assert torch.allclose(true.loss([source], **TARGETS), forced, atol=1e-4)
    sampling = writer(kind, scheduled_sampling="linear", sampling_steps=1).train()
    sampling.trained += 1
    torch.manual_seed(0)
    losses = torch.stack([sampling.loss([source], **TARGETS) for _ in range(4)])
    assert len(losses.unique()) > 1  # the tokens that it reads are sampled
    assert not torch.isclose(losses, forced).any()
    assert sampling.trained == 5
    assert torch.allclose(sampling.eval().loss([source], **TARGETS), forced, atol=1e-4)
    sampling.train().loss([source], **TARGETS).backward()
    assert all(p.grad is not None for p in sampling.parameters())


# Hard attention: strings to write backward


def strings(count: int, seed: int) -> dict[str, Tensor]:
    """Random strings and themselves backward; x is letter and place, `state` the length: what stands where, no vector
    of the whole text can tell."""
    torch.manual_seed(seed)
    lengths = torch.randint(2, LONGEST + 1, (count,))
    mask = ragged_mask(*lengths.tolist(), LONGEST)[:count]
    letters = torch.where(mask, torch.randint(LETTERS, mask.shape), 0)
    eye, place = torch.eye(LETTERS), torch.eye(LONGEST + 1)
    x = torch.cat([eye[letters], place[torch.arange(LONGEST)].expand(count, -1, -1)], 2)
    backward = (lengths[:, None] - 1 - torch.arange(LONGEST)).clamp(min=0)
    target = torch.where(mask, letters.gather(1, backward) + 4, PAD_ID)
    target = torch.cat([target, torch.full((count, 1), PAD_ID)], 1).scatter(1, lengths[:, None], EOS_ID)
    state = torch.cat([torch.zeros(count, LETTERS), place[lengths]], 1)
    return {"x": torch.where(mask[..., None], x, torch.nan), "mask": mask, "state": state, "target": target}


def loss_of(head: Seq2Seq, batch: dict[str, Tensor]) -> Tensor:
    return head.loss([batch], batch["target"], batch["target"] != PAD_ID)


def build(**options: Any) -> Seq2Seq:
    return Seq2Seq((LETTERS + LONGEST + 1,), WORDS, **{"hidden": 48, "embedding_dim": 8, "units": 32, **options})


def trained(steps: int, estimator: GradientEstimator) -> Seq2Seq:
    torch.manual_seed(0)
    head = build(hard_attention=estimator, input_feeding=False)
    optimizer = torch.optim.Adam(head.parameters(), 0.01)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(head, strings(64, step)).backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
    return head.eval()


@torch.no_grad()
def accuracy(head: Seq2Seq) -> float:
    batch = strings(200, 10**6)
    tokens = head.decide([batch], options=SearchOptions(max_length=LONGEST + 1))["tokens"][:, 0]
    return (tokens == batch["target"]).all(1).float().mean().item()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_looking_at_one_letter_at_a_time_it_learns_to_write_backward(estimator: GradientEstimator) -> None:
    head, batch = trained(200, estimator), strings(50, 9)
    assert accuracy(head) > 0.95
    with torch.no_grad():
        weights = head.explain([batch], batch["target"][:, None])["attention"]
    lengths = batch["mask"].sum(1)
    inside = torch.arange(LONGEST + 1) < lengths[:, None]
    places = (lengths[:, None] - 1 - torch.arange(LONGEST + 1))[inside]
    assert torch.equal(weights.sum(2), inside.float())  # all of the weight at one position, none from the end on
    assert torch.equal(weights.amax(2), inside.float())
    assert (weights.argmax(2)[inside] == places).float().mean() > 0.95


def test_without_learning_where_to_look_it_does_not_learn_to_write_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HardAttention, "auxiliary_loss", lambda self, weights, log_p, mask: log_p.new_zeros(()))
    monkeypatch.setattr("seqpipe.nn.attention.EXPECTED", 0.0)
    assert accuracy(trained(150, "reinforce")) < 0.3


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("feeding", [False, True])
def test_the_loss_is_random_only_where_positions_are_sampled_in_training(estimator: Any, feeding: bool) -> None:
    torch.manual_seed(1)
    head, batch = build(hard_attention=estimator, input_feeding=feeding), strings(5, 0)
    losses = torch.stack([loss_of(head, batch) for _ in range(4)])
    assert len(losses.unique()) == (4 if estimator == "reinforce" else 1)
    expected = loss_of(head.eval(), batch)
    assert torch.equal(loss_of(head, batch), expected)
    tokens = batch["target"][:, None]
    assert torch.allclose(expected, -head.score([batch], tokens).sum() / (tokens > 0).sum())
    if estimator == "straight-through":
        assert torch.allclose(losses[0], expected)
    else:
        assert head.attention is not None
        assert head.attention.drawing is not None
        assert head.attention.drawing.average[1] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "none", "tie": True, "hidden": 5, "embedding_dim": 6}, "tie: without attention it needs hidden"),
        ({"attention": "none", "hard_attention": "straight-through"}, "hard_attention: attention is none; choose an"),
        (
            {"attention": "multi-head", "heads": 3, "hard_attention": "straight-through"},
            "it attends to one position and has one head, not 3; set heads: 1",
        ),
        ({"sources": (5, 6), "hard_attention": "reinforce"}, "reinforce needs one source; choose straight-through"),
        ({"context": "every-step"}, "context: with attention .additive. each step has its own context; set attention"),
        ({"attention": "concat"}, "not 'concat'; it is now called 'key-only'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Seq2Seq(**{"sources": (6,), "target_vocabulary": WORDS, **options})
    Seq2Seq((5, 6), WORDS, hard_attention="straight-through")
