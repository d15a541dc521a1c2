"""The recurrent decoder that looks at one position at a time, and the one that attends to what it has written."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from exported import ragged
from torch import Tensor

from seqpipe.errors import UsageError
from seqpipe.nn.attention import GradientEstimator, HardAttention
from seqpipe.nn.layers import BOS_ID, EOS_ID, PAD_ID
from seqpipe.nn.search import SearchOptions
from seqpipe_plugins.heads.seq2seq import Seq2Seq

ESTIMATORS: tuple[GradientEstimator, ...] = get_args(GradientEstimator)
LETTERS = 8
WORDS = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", *"abcdefgh"]
LONGEST = 6


def strings(count: int, seed: int) -> dict[str, Tensor]:
    """Random strings and themselves backward; x is letter and place, `state` the length: what stands where, no vector
    of the whole text can tell."""
    torch.manual_seed(seed)
    lengths = torch.randint(2, LONGEST + 1, (count,))
    mask = ragged(*lengths.tolist(), LONGEST)[:count]
    letters = torch.where(mask, torch.randint(LETTERS, mask.shape), 0)
    eye, place = torch.eye(LETTERS), torch.eye(LONGEST + 1)
    x = torch.cat([eye[letters], place[torch.arange(LONGEST)].expand(count, -1, -1)], 2)
    backward = (lengths[:, None] - 1 - torch.arange(LONGEST)).clamp(min=0)
    target = torch.where(mask, letters.gather(1, backward) + 4, PAD_ID)
    target = torch.cat([target, torch.full((count, 1), PAD_ID)], 1).scatter(1, lengths[:, None], EOS_ID)
    state = torch.cat([torch.zeros(count, LETTERS), place[lengths]], 1)
    return {"x": torch.where(mask[..., None], x, torch.nan), "mask": mask, "state": state, "target": target}


def loss_of(head: Seq2Seq, some: dict[str, Tensor]) -> Tensor:
    target = some["target"]
    return head.loss([some], target, target != PAD_ID)


def built(**options: Any) -> Seq2Seq:
    return Seq2Seq((LETTERS + LONGEST + 1,), WORDS, **{"hidden": 48, "embedding_dim": 8, "units": 32, **options})


def learned(steps: int, **options: Any) -> Seq2Seq:
    torch.manual_seed(0)
    head = built(**options)
    optimizer = torch.optim.Adam(head.parameters(), 0.01)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(head, strings(64, step)).backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
    return head.eval()


def right(head: Seq2Seq) -> float:
    some = strings(200, 10**6)
    with torch.no_grad():
        made = head.decide([some], options=SearchOptions(max_length=LONGEST + 1))["tokens"][:, 0]
    return (made == some["target"]).all(1).float().mean().item()


@pytest.mark.parametrize("trained", ESTIMATORS)
def test_looking_at_one_letter_at_a_time_it_learns_to_write_backward(trained: GradientEstimator) -> None:
    head = learned(200, hard_attention=trained, input_feeding=False)
    assert right(head) > 0.95
    some = strings(50, 9)
    with torch.no_grad():
        shown = head.explain([some], some["target"][:, None])["attention"]
    lengths = some["mask"].sum(1)
    inside = torch.arange(LONGEST + 1) < lengths[:, None]
    places = (lengths[:, None] - 1 - torch.arange(LONGEST + 1))[inside]
    assert torch.equal(shown.sum(2), inside.float())  # all of the weight at one position, none from the end on
    assert torch.equal(shown.amax(2), inside.float())
    assert (shown.argmax(2)[inside] == places).float().mean() > 0.95


def test_without_learning_where_to_look_it_does_not_learn_to_write_backward() -> None:
    class Deaf(HardAttention):
        def auxiliary_loss(self, weights: Tensor, log_p: Tensor, mask: Tensor) -> Tensor:
            return log_p.new_zeros(())

    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(HardAttention, "auxiliary_loss", Deaf.auxiliary_loss)
        patched.setattr("seqpipe.nn.attention.EXPECTED", 0.0)
        assert right(learned(150, hard_attention="reinforce", input_feeding=False)) < 0.3


@pytest.mark.parametrize("trained", ESTIMATORS)
@pytest.mark.parametrize("feeding", [False, True])
def test_the_loss_is_random_in_training_alone_and_only_where_positions_are_drawn(
    trained: GradientEstimator, feeding: bool
) -> None:
    torch.manual_seed(1)
    head, some = built(hard_attention=trained, input_feeding=feeding), strings(5, 0)
    losses = torch.stack([loss_of(head, some) for _ in range(4)])
    assert len(losses.unique()) == (4 if trained == "reinforce" else 1)
    head.eval()
    expected = loss_of(head, some)
    assert all(torch.equal(loss_of(head, some), expected) for _ in range(3))
    tokens = some["target"][:, None]
    scored = head.score([some], tokens).sum() / (tokens > 0).sum()
    assert torch.allclose(expected, -scored)
    if trained == "straight-through":
        assert torch.allclose(losses[0], expected)


@pytest.mark.parametrize("options", [{}, {"input_feeding": False}, {"scheduled_sampling": "linear"}])
def test_every_weight_learns_from_drawn_positions(options: dict[str, Any]) -> None:
    head, some = built(hard_attention="reinforce", intra_attention=True, dropout=0.2, **options), strings(8, 0)
    loss_of(head, some).backward()
    assert [name for name, p in head.named_parameters() if p.grad is None or not p.grad.any()] == []
    assert head.attention is not None
    assert head.attention.drawing is not None
    assert head.attention.drawing.average[1] > 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"attention": "none"}, "hard_attention: attention is none; choose an"),
        ({"attention": "multi-head", "heads": 3}, "it attends to one position and has one head, not 3; set heads: 1"),
    ],
)
def test_where_there_is_no_one_position_to_look_at_it_says_so(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        built(hard_attention="straight-through", **options)
    built(**options)


def test_positions_are_drawn_in_one_source_alone() -> None:
    with pytest.raises(UsageError, match="reinforce needs one source; choose straight-through"):
        Seq2Seq((5, 6), WORDS, hard_attention="reinforce")
    Seq2Seq((5, 6), WORDS, hard_attention="straight-through")


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("feeding", [False, True])
@pytest.mark.parametrize("attention", ["bilinear", "none"])
def test_attending_to_what_is_written_is_what_the_paper_says_step_by_step(feeding: bool, attention: Any) -> None:
    torch.manual_seed(2)
    head = built(attention=attention, intra_attention=True, input_feeding=feeding, hidden=7).eval()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(3)
    some, total = strings(4, 3), 0.0
    w = {name: p.detach().double().numpy() for name, p in head.named_parameters()}
    for x, mask, first, target in zip(*(some[name] for name in ("x", "mask", "state", "target")), strict=True):
        memory, words = x[mask].double().numpy(), target[target != PAD_ID].tolist()
        h, states = np.tanh(w["bridge.weight"] @ first.double().numpy() + w["bridge.bias"]), []
        fed = np.zeros(7 if head.feeds else 0)
        for before, word in zip([BOS_ID, *words], words, strict=False):
            read = np.concatenate([w["vocabulary.embedding.weight"][before], fed])
            i, o = (w[f"rnn.weight_{k}_l0"] @ v + w[f"rnn.bias_{k}_l0"] for k, v in (("ih", read), ("hh", h)))
            r, z = (sigmoid(i[k : k + 7] + o[k : k + 7]) for k in (0, 7))
            h = (1 - z) * np.tanh(i[14:] + r * o[14:]) + z * h
            parts = [h]
            for name, seen in (
                ("attention.attentions.0.key", memory),
                ("written.query", np.array(states).reshape(-1, 7)),
            ):
                if name == "attention.attentions.0.key" and attention == "none":
                    continue
                W = w[f"{name}.weight"] if name == "attention.attentions.0.key" else w[f"{name}.weight"].T
                e = np.exp(np.array([h @ W @ one for one in seen]))
                parts.append(e @ seen / e.sum() if len(seen) else np.zeros(7))
            readout = np.tanh(w["readout.weight"] @ np.concatenate(parts) + w["readout.bias"])
            fed = readout[: len(fed)]
            states.append(h)
            logits = w["vocabulary.output.weight"] @ readout + w["vocabulary.output.bias"]
            logits[[PAD_ID, BOS_ID]] = -1e4
            total += np.log(np.exp(logits).sum()) - logits[word]
    assert loss_of(head, some).item() == pytest.approx(total / int((some["target"] != PAD_ID).sum()), rel=1e-5)


def test_attending_to_what_is_written_helps_to_write_it_again() -> None:
    """A random string is to be written twice, with no source to look at: a small state forgets it."""

    def wrong(intra: bool) -> float:
        torch.manual_seed(0)
        head = built(attention="none", intra_attention=intra, hidden=24)
        optimizer = torch.optim.Adam(head.parameters(), 0.01)
        x, mask = torch.zeros(64, 1, LETTERS + LONGEST + 1), torch.ones(64, 1, dtype=torch.bool)
        given = [{"x": x, "mask": mask}]
        loss = torch.zeros(())
        for _ in range(300):
            half = torch.randint(4, 4 + LETTERS, (64, 5))
            ids = torch.cat([half, half], 1)
            optimizer.zero_grad()
            logits, _ = head.teacher_forced(head.read(given), ids, head.start(head.read(given), given, 10))
            loss = torch.nn.functional.cross_entropy(logits[:, 5:].flatten(0, 1), ids[:, 5:].flatten())
            loss.backward()
            optimizer.step()
        return loss.item()

    assert wrong(intra=True) < 0.5 * wrong(intra=False)
