"""The recurrent decoder against PyTorch's layers and itself, in PyTorch and as a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import Graph, elsewhere, export, ragged
from torch import Tensor, nn
from torch.nn import functional as F

from seqpipe.errors import UsageError
from seqpipe.nn.layers import BOS_ID, EOS_ID, PAD_ID
from seqpipe.nn.search import SearchOptions
from seqpipe.nn.seq2seq_head import shift_right
from seqpipe_plugins.heads.seq2seq import Seq2Seq

WORDS = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", *"abcdefghijklmnop"]
D = 6
SIZES = ("beams", "n_best", "max_length")
AXES: Any = {"x": ("b", "t"), "mask": ("b", "t"), "state": ("b",), "alpha": (), "beta": (), "ngram": ()}
AXES |= {name: (f"n_{name}",) for name in SIZES}
KINDS: dict[str, dict[str, Any]] = {
    "fixed": {"attention": "none", "layers": 2},
    "additive": {"cell": "lstm"},
    "dot": {"attention": "dot", "hidden": 6, "embedding_dim": 6, "input_feeding": False, "layers": 2, "tie": True},
    "multi-head": {"attention": "multi-head", "heads": 3, "cell": "rnn", "layers": 2},
    "bilinear": {"attention": "bilinear", "cell": "lstm", "layers": 2, "input_feeding": False},
    "written": {"intra_attention": True},
    "written-alone": {"attention": "none", "intra_attention": True, "layers": 2},
    "hard": {"hard_attention": "straight-through", "attention": "bilinear", "input_feeding": False},
    "hard-written": {"hard_attention": "straight-through", "intra_attention": True, "cell": "lstm", "layers": 2},
}
RARELY = ("dot", "written-alone", "hard-written")  # exported


def writer(kind: str = "additive", ending: float = 1.0, **options: Any) -> Seq2Seq:
    """An untrained head that writes various texts and ends some of them."""
    torch.manual_seed(3)
    head = Seq2Seq((D,), WORDS, **{"hidden": 12, "embedding_dim": 7, **KINDS[kind], **options}).eval()
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            parameter.mul_(
                9 if kind == "additive" and "vocabulary" not in name else 4
            )  # so that what is read makes a difference
        bias = head.vocabulary.bias if head.vocabulary.output is None else head.vocabulary.output.bias
        bias[EOS_ID] += ending
    return head


def sources(*lengths: int, seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    mask = ragged(*lengths)
    x = torch.where(mask[..., None], torch.randn(*mask.shape, D), torch.nan)
    return {"x": x, "mask": mask, "state": torch.randn(len(mask), D)}


def decided(head: Seq2Seq, alpha: Tensor, beta: Tensor, ngram: Tensor, **given: Any) -> dict[str, Tensor]:
    sizes = {name: given.pop(name).shape[0] for name in SIZES}
    chosen = {name: given.pop(name) for name in [*given] if name not in ("x", "mask", "state")}
    return head.decide(
        [given],
        options=SearchOptions(
            **sizes, **chosen, length_penalty=alpha, coverage_penalty=beta, no_repeat_ngram_size=ngram
        ),
    )


def options(
    beams: int, n_best: int, most: int, alpha: float = 0.0, beta: float = 0.0, ngram: int = 0
) -> dict[str, Tensor]:
    sizes = {"beams": torch.zeros(beams), "n_best": torch.zeros(n_best), "max_length": torch.zeros(most)}
    return sizes | {"alpha": torch.tensor(alpha), "beta": torch.tensor(beta), "ngram": torch.tensor(ngram)}


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=[pytest.mark.long] if kind in RARELY else []) for kind in KINDS],
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Seq2Seq, Graph]:
    head, path = writer(request.param), tmp_path_factory.mktemp("seq2seq") / "seq2seq.onnx"
    given = sources(5, 2, 4) | options(4, 3, 7, 0.5, 0.1, 3)
    return head, export(path, head, lambda **one: decided(head, **one), AXES, **given)


CASES = [
    ((4,), options(1, 1, 1)),
    ((5, 1, 2, *[7] * 27), options(1, 1, 25)),
    ((3, 9, 1, 1), options(5, 5, 25)),
    ((2, 6, 4), options(4, 2, 30, 0.8, 0.3)),
    ((1, 2), options(30, 25, 6, 0.3)),
    ((1, 31), options(3, 1, 20, 0.0, 0.0, 2)),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_graph_writes_the_same_texts(pair: tuple[Seq2Seq, Graph], case: int) -> None:
    (head, graph), (lengths, chosen) = pair, CASES[case]
    given = sources(*lengths, seed=case) | chosen
    with torch.no_grad():
        expected = decided(head, **given)
    made = graph(**given)
    assert np.array_equal(made["tokens"], expected["tokens"].numpy())
    assert np.allclose(made["scores"], expected["scores"].numpy(), rtol=1e-4, atol=1e-4)
    if len(lengths) == 30:  # the texts vary, or the comparison proves nothing
        assert len({tuple(row) for row in made["tokens"][:, 0].tolist()}) > 11
        assert len(np.unique(made["tokens"])) > 9


@pytest.mark.parametrize("kind", KINDS)
def test_the_scores_of_a_decision_are_those_of_teacher_forcing(kind: str) -> None:
    head, given = writer(kind), sources(5, 3, 1, 7, 2, 2, 6, 4)
    with torch.no_grad():
        made = head.decide([given], options=SearchOptions(beams=3, n_best=3, max_length=15))
        for k in range(3):
            scored = head.score([given], tokens=made["tokens"][:, k : k + 1])
            assert torch.allclose(scored, made["scores"][:, k], atol=1e-4)


def test_texts_end_and_some_do_not() -> None:
    made = writer(ending=0.0).decide([sources(*[4] * 40)], options=SearchOptions(max_length=12))
    ended = (made["tokens"][:, 0] == EOS_ID).any(1)
    assert ended.any()
    assert not ended.all()  # a text that reaches the longest counts without its end


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_mean_log_probability_of_true_tokens(kind: str) -> None:
    head, given = writer(kind), sources(3, 2)
    target = torch.tensor([[5, 9, 4, EOS_ID], [7, EOS_ID, PAD_ID, PAD_ID]])
    loss = head.loss([given], target_ids=target, target_mask=target != PAD_ID)
    assert loss.item() == pytest.approx(-head.score([given], tokens=target[:, None]).sum().item() / 6, abs=1e-4)
    garbage = torch.where(target == PAD_ID, 11, target)
    assert torch.allclose(head.loss([given], target_ids=garbage, target_mask=target != PAD_ID), loss)
    assert not torch.allclose(head.loss([given], target_ids=garbage, target_mask=garbage != PAD_ID), loss)


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_without_attention_it_is_the_library_s_layer_and_a_linear_one(cell: Any) -> None:
    head, given = writer("fixed", cell=cell), sources(4, 2)
    target = torch.tensor([[5, 9, 4, EOS_ID], [7, 6, EOS_ID, PAD_ID]])
    parts = torch.tanh(head.bridge(given["state"])).unflatten(1, (-1, 2, 12)).permute(1, 2, 0, 3).contiguous()
    first = (parts[0], parts[1]) if cell == "lstm" else parts[0]
    h, _ = head.rnn(head.vocabulary(shift_right(target)), first)
    assert isinstance(head.vocabulary.output, nn.Linear)
    log_p = (head.vocabulary.output(h) + head.logit_mask).log_softmax(2)
    expected = F.nll_loss(log_p[target != PAD_ID], target[target != PAD_ID])
    assert head.loss([given], target_ids=target, target_mask=target != PAD_ID).item() == pytest.approx(
        expected.item(), rel=1e-5
    )


def test_input_feeding_is_what_the_paper_says_step_by_step() -> None:
    head, given = writer(cell="gru"), sources(4, 2)
    target, total = torch.tensor([[5, 9, EOS_ID], [7, 6, EOS_ID]]), 0.0
    for b, n in enumerate((4, 2)):
        memory, h = given["x"][b, :n], torch.tanh(head.bridge(given["state"][b]))
        fed = torch.zeros(12)
        for t, before in enumerate((BOS_ID, *target[b, :-1].tolist())):
            step = torch.cat([head.vocabulary.embedding.weight[before], fed])
            _, state = head.rnn(step[None, None], h[None, None])
            h = state[0, 0]
            assert head.attention is not None
            assert head.readout is not None
            assert head.attention.attentions[0].v is not None
            keys = head.attention.attentions[0].key(memory)
            weights = torch.softmax(
                head.attention.attentions[0].v(torch.tanh(head.attention.attentions[0].query(h) + keys))[:, 0], 0
            )
            fed = torch.tanh(head.readout(torch.cat([h, weights @ memory])))
            total -= head.vocabulary.logits(fed, head.logit_mask).log_softmax(0)[target[b, t]].item()
    loss = head.loss([given], target_ids=target, target_mask=target != PAD_ID)
    assert loss.item() == pytest.approx(total / 6, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_in_the_padding_and_who_stands_beside_changes_nothing(kind: str) -> None:
    head, given = writer(kind), sources(5, 2, 7)
    together = head.decide([given], options=SearchOptions(beams=3, n_best=2, max_length=12))
    for b, n in enumerate((5, 2, 7)):
        one = {"x": given["x"][b : b + 1, :n], "mask": given["mask"][b : b + 1, :n], "state": given["state"][b : b + 1]}
        alone = head.decide([one], options=SearchOptions(beams=3, n_best=2, max_length=12))
        assert torch.equal(alone["tokens"][0], together["tokens"][b])
        assert torch.allclose(alone["scores"][0], together["scores"][b], atol=1e-4)


def test_without_a_state_it_begins_from_the_mean_of_x() -> None:
    head, given = writer("fixed"), sources(3, 1)
    mean = torch.stack([given["x"][b, :n].mean(0) for b, n in enumerate((3, 1))])
    expected = head.decide([{**given, "state": mean}], options=SearchOptions(max_length=9))
    for state in (None, torch.randn(2, D + 1)):
        assert torch.equal(
            head.decide([{**given, "state": state}], options=SearchOptions(max_length=9))["tokens"], expected["tokens"]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_reaches_every_weight(kind: str) -> None:
    head, given = Seq2Seq((D,), WORDS, **{"hidden": 6, "embedding_dim": 6, **KINDS[kind]}, dropout=0.3), sources(4, 2)
    target = torch.tensor([[5, 9, 4, EOS_ID], [7, 6, EOS_ID, PAD_ID]])
    head.loss([given], target_ids=target, target_mask=target != PAD_ID).backward()
    assert [name for name, p in head.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_smoothing_spreads_over_what_can_be_written() -> None:
    given, target = sources(4), torch.tensor([[5, EOS_ID]])
    learned = {"target_ids": target, "target_mask": target > 0}
    losses = [writer(label_smoothing=s).train().loss([given], **learned).item() for s in (0, 0.3)]
    assert writer(label_smoothing=0.3).loss([given], **learned).item() == pytest.approx(losses[0], rel=1e-5)
    head = writer()
    source = head.read([given])
    logits, _ = head.teacher_forced(source, target, head.start(source, [given], max_length=2))
    log_p = logits.log_softmax(2)[0][:, [1, *range(3, len(WORDS))]]
    assert losses[1] == pytest.approx(0.7 * losses[0] - 0.3 * log_p.mean().item(), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_beginnings_are_never_written(kind: str) -> None:
    head = writer(kind, ending=-50)
    with torch.no_grad():
        bias = head.vocabulary.bias if head.vocabulary.output is None else head.vocabulary.output.bias
        bias[[PAD_ID, BOS_ID]] += 100
        tokens = head.decide([sources(*[3] * 20)], options=SearchOptions(beams=3, n_best=3, max_length=10))["tokens"]
    assert not torch.isin(tokens, torch.tensor([PAD_ID, BOS_ID])).any()


def test_everything_is_made_where_the_input_is() -> None:
    head, given, target = writer(), sources(3, 1), torch.tensor([[5, EOS_ID], [7, EOS_ID]])
    with elsewhere():
        made = head.decide([given], options=SearchOptions(beams=3, n_best=2, max_length=5, length_penalty=0.5))
        head.loss([given], target_ids=target, target_mask=target != PAD_ID).backward()
    assert {rows.device.type for rows in made.values()} == {"cpu"}


@pytest.mark.parametrize("kind", KINDS)
def test_texts_can_be_learned(kind: str) -> None:
    torch.manual_seed(0)
    head = Seq2Seq((D,), WORDS, **{"hidden": 24, "embedding_dim": 8, **KINDS[kind]})
    given, target = sources(2, 3), torch.tensor([[5, 9, 4, EOS_ID], [7, EOS_ID, PAD_ID, PAD_ID]])
    optimizer = torch.optim.Adam(head.parameters(), 0.02)
    for _ in range(80):
        optimizer.zero_grad()
        head.loss([given], target_ids=target, target_mask=target != PAD_ID).backward()
        optimizer.step()
    made = head.decide([given], options=SearchOptions(beams=2, max_length=6))
    assert torch.equal(made["tokens"][:, 0], F.pad(target, (0, 2)))


def test_tied_without_attention_both_widths_are_equal() -> None:
    with pytest.raises(UsageError, match="tie: without attention it needs hidden"):
        Seq2Seq((D,), WORDS, attention="none", tie=True, hidden=5, embedding_dim=6)


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
    head = writer(scheduled_sampling=kind, sampling_steps=100, sampling_floor=0.1)
    assert float(head.teacher_share(torch.tensor(at))) == pytest.approx(share)


@pytest.mark.parametrize("kind", KINDS)
def test_scheduled_sampling_reads_true_tokens_or_its_own(kind: str) -> None:
    given, target = sources(4, 2), torch.tensor([[5, 9, 4, 8, EOS_ID], [7, 6, EOS_ID, PAD_ID, PAD_ID]])
    learned = {"target_ids": target, "target_mask": target != PAD_ID}
    forced = writer(kind).loss([given], **learned)
    true = writer(kind, scheduled_sampling="linear", sampling_steps=10**9).train()
    assert torch.allclose(true.loss([given], **learned), forced, atol=1e-4)
    own = writer(kind, scheduled_sampling="linear", sampling_steps=1).train()
    own.trained += 1
    torch.manual_seed(0)
    losses = torch.stack([own.loss([given], **learned) for _ in range(4)])
    assert len(losses.unique()) > 1  # what it reads is drawn
    assert not torch.isclose(losses, forced).any()
    assert own.trained == 5
    own.eval()
    assert torch.allclose(own.loss([given], **learned), forced, atol=1e-4)
    own.train().loss([given], **learned).backward()
    assert all(p.grad is not None for p in own.parameters())


def test_a_text_as_long_as_its_source_ends_with_it(tmp_path: Path) -> None:
    head, given = writer("fixed", equal_length=True), sources(5, 1, 8, 3)
    graph = export(tmp_path / "equal.onnx", head, lambda **one: decided(head, **one), AXES, **given, **options(4, 3, 7))
    for lengths, beams in (((5, 1, 8, 3), 3), ((2, 30), 1)):
        given = sources(*lengths) | options(beams, beams, 2)
        expected = decided(head, **given)["tokens"]
        assert np.array_equal(graph(**given)["tokens"], expected.numpy())
        assert ((expected == EOS_ID).long().argmax(2) == torch.tensor(lengths)[:, None]).all()
