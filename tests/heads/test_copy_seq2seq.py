"""The pointer-generator against NumPy loops and itself, in PyTorch and as a graph."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from exported import Graph, elsewhere, export, ragged
from factory import seqpipe
from torch import Tensor

from seqpipe import load
from seqpipe.errors import DataError, UsageError
from seqpipe.nn.attention import CoverageAttention
from seqpipe.nn.layers import BOS_ID, EOS_ID, LOG_ZERO, PAD_ID
from seqpipe.nn.search import SearchOptions
from seqpipe.plugin import UNK_ID
from seqpipe_plugins.heads.copy_seq2seq import CopySeq2Seq

WORDS = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", *"abcdefghijklmnop"]
V, D = len(WORDS), 6
SIZES = ("beams", "n_best", "max_length")
AXES: Any = {"x": ("b", "t"), "mask": ("b", "t"), "state": ("b",), "copy": ("b", "t"), "alpha": (), "ngram": ()}
AXES |= {name: (f"n_{name}",) for name in SIZES}
KINDS: dict[str, dict[str, Any]] = {
    "coverage": {},
    "without": {"coverage": False, "attention": "bilinear", "cell": "gru", "layers": 2, "tie": True},
}
# By what weights are multiplied. At 7 two layers with bilinear attention are chaotic: behind 25 steps the scores of
# PyTorch in float32 differ by 3e-3 from those in float64; at 2 by 1e-5.
SCALES = {"coverage": 7, "without": 2}


def writer(kind: str = "coverage", switch: float = 0.0, **options: Any) -> CopySeq2Seq:
    """An untrained head that writes various texts; `switch` makes it generate more, or copy more."""
    torch.manual_seed(3)
    head = CopySeq2Seq(D, WORDS, **{"hidden": 12, "embedding_dim": 7, "units": 9, **KINDS[kind], **options}).eval()
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            parameter.mul_(4 if "vocabulary" in name else SCALES[kind])
        assert head.switch.bias is not None
        head.switch.bias += switch
        bias = head.vocabulary.bias if head.vocabulary.output is None else head.vocabulary.output.bias
        assert bias is not None
        bias[EOS_ID] -= 1
    return head


def sources(*lengths: int, seed: int = 0, unknown: float | None = 0.5) -> dict[str, Tensor]:
    """Texts of which about so large a share of words is in no vocabulary, or just the last; words repeat."""
    torch.manual_seed(seed)
    mask = ragged(*lengths)
    x = torch.where(mask[..., None], torch.randn(*mask.shape, D), torch.nan)
    copy = torch.randint(4, 10, mask.shape)
    for row, n in zip(copy, lengths, strict=True):
        new: dict[int, int] = {}
        for t in range(n):
            if t + 1 == n if unknown is None else torch.rand(()) < unknown:
                word = int(torch.randint(0, 1 + n // 2, ()))
                row[t] = V + new.setdefault(word, len(new))
    return {"x": x, "mask": mask, "state": torch.randn(len(mask), D), "copy": torch.where(mask, copy, 0)}


def decided(head: CopySeq2Seq, alpha: Tensor, ngram: Tensor, **given: Any) -> dict[str, Tensor]:
    sizes = {name: given.pop(name).shape[0] for name in SIZES}
    made = head.decide([given], options=SearchOptions(**sizes, length_penalty=alpha, no_repeat_ngram_size=ngram))
    return made | head.explain([given], tokens=made["tokens"])


def options(beams: int, n_best: int, most: int, alpha: float = 0.0, ngram: int = 0) -> dict[str, Tensor]:
    sizes = {"beams": torch.zeros(beams), "n_best": torch.zeros(n_best), "max_length": torch.zeros(most)}
    return sizes | {"alpha": torch.tensor(alpha), "ngram": torch.tensor(ngram)}


@pytest.fixture(scope="module", params=["coverage", pytest.param("without", marks=pytest.mark.long)])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[CopySeq2Seq, Graph]:
    head, path = writer(request.param), tmp_path_factory.mktemp("copy") / "copy.onnx"
    given = sources(5, 2, 4) | options(4, 3, 7, 0.5, 3)
    return head, export(path, head, lambda **one: decided(head, **one), AXES, **given)


CASES: list[tuple[tuple[int, ...], float | None, dict[str, Tensor]]] = [
    ((4,), 0.0, options(1, 1, 9)),
    ((1,), 1.0, options(2, 1, 9)),
    ((5, 1, 2, *[7] * 27), 0.5, options(1, 1, 25)),
    ((5, 1, 2, *[9] * 27), 1.0, options(5, 5, 25)),
    ((3, 9, 1, 1), 0.0, options(5, 5, 25)),
    ((2, 6, 4), 0.3, options(4, 2, 30, 0.8)),
    ((2, 6, 4, 1), None, options(3, 2, 12)),
    ((1, 31), 0.7, options(3, 1, 20, 0.0, 2)),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_graph_writes_and_copies_the_same(pair: tuple[CopySeq2Seq, Graph], case: int) -> None:
    (head, graph), (lengths, unknown, chosen) = pair, CASES[case]
    given = sources(*lengths, seed=case, unknown=unknown) | chosen
    with torch.no_grad():
        expected = decided(head, **given)
    made = graph(**given)
    assert np.array_equal(made["tokens"], expected["tokens"].numpy())
    for name in ("scores", "attention", "generating"):
        assert np.allclose(made[name], expected[name].numpy(), rtol=1e-4, atol=1e-4)
    if len(lengths) == 30:  # the texts vary, and copied and generated words are among them
        assert len({tuple(row) for row in made["tokens"][:, 0].tolist()}) > 11
        assert (made["tokens"] >= V).any()
        assert ((made["tokens"] > EOS_ID) & (made["tokens"] < V)).any()


def by_hand(head: CopySeq2Seq, given: dict[str, Tensor], b: int, n: int, ids: list[int]) -> tuple[list[Any], float]:
    """Of one text the distribution over V + n words at each step, in loops, and the sum of the coverage loss."""
    p = {name: tensor.double().numpy() for name, tensor in head.state_dict().items()}
    x, words = given["x"][b, :n].double().numpy(), given["copy"][b, :n].tolist()

    def sigmoid(a: Any) -> Any:
        return 1 / (1 + np.exp(-a))

    def softmax(a: Any) -> Any:
        return np.exp(a - a.max()) / np.exp(a - a.max()).sum()

    h, c = np.tanh(p["bridge.weight"] @ given["state"][b].double().numpy() + p["bridge.bias"]).reshape(2, -1)
    context, covered, repeated, steps = np.zeros(D), np.zeros(n), 0.0, []
    for before in [BOS_ID, *ids[:-1]]:
        vector = p["vocabulary.embedding.weight"][before if before < V else UNK_ID]
        read = np.concatenate([vector, context])
        gates = p["rnn.weight_ih_l0"] @ read + p["rnn.bias_ih_l0"] + p["rnn.weight_hh_l0"] @ h + p["rnn.bias_hh_l0"]
        i, f, g, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        asked = p["attention.query.weight"] @ h + p["attention.query.bias"]
        w = p["attention.coverage.weight"][:, 0]
        e = [
            p["attention.v.weight"][0] @ np.tanh(asked + p["attention.key.weight"] @ x[t] + w * covered[t])
            for t in range(n)
        ]
        a = softmax(np.array(e))
        context = a @ x
        readout = np.tanh(p["readout.weight"] @ np.concatenate([h, context]) + p["readout.bias"])
        logits = p["vocabulary.output.weight"] @ readout + p["vocabulary.output.bias"]
        logits[[PAD_ID, BOS_ID]] = -np.inf
        switch = p["switch.weight"][0] @ np.concatenate([context, h, read]) + p["switch.bias"][0]
        final = np.concatenate([sigmoid(switch) * softmax(logits), np.zeros(n)])
        for word, weight in zip(words, a, strict=True):
            final[word] += sigmoid(-switch) * weight
        repeated += np.minimum(a, covered).sum()
        covered = covered + a
        steps.append(final)
    return steps, repeated


def test_each_step_is_what_the_paper_says_in_loops() -> None:
    head, lengths = writer(), (5, 3, 1, 7)
    given, ids = (
        sources(*lengths, unknown=0.6),
        [[5, V, 9, EOS_ID], [V, V, UNK_ID, EOS_ID], [4, 4, V, EOS_ID], [7, V + 1, 6, EOS_ID]],
    )
    with torch.no_grad():
        source = head.read([given])
        made, _ = head.teacher_forced(source, torch.tensor(ids), head.start(source, [given], 4))
    for b, n in enumerate(lengths):
        steps, _ = by_hand(head, given, b, n, ids[b])
        for t, expected in enumerate(steps):
            assert expected.sum() == pytest.approx(1, abs=1e-9)
            assert np.allclose(made[b, t, : V + n].exp().numpy(), expected, atol=1e-5)
            assert (made[b, t, V + n :] <= LOG_ZERO).all()  # no word stands there


def test_the_loss_is_that_of_the_words_and_of_looking_twice() -> None:
    head, given = writer(coverage_weight=0.7), sources(5, 3, unknown=0.6)
    target = torch.tensor([[5, V, 9, EOS_ID], [V, UNK_ID, EOS_ID, PAD_ID]])
    words = repeated = 0.0
    for b, n in enumerate((5, 3)):
        ids = [i for i in target[b].tolist() if i != PAD_ID]
        steps, again = by_hand(head, given, b, n, ids)
        words -= sum(np.log(step[i]) for step, i in zip(steps, ids, strict=True))
        repeated += again
    loss = head.loss([given], target_ids=target, target_mask=target != PAD_ID)
    assert loss.item() == pytest.approx(words / 7, rel=1e-4)  # in evaluation of the words alone
    garbage = torch.where(target == PAD_ID, 11, target)
    assert torch.allclose(head.loss([given], target_ids=garbage, target_mask=target != PAD_ID), loss)
    head.train()
    both = head.loss([given], target_ids=target, target_mask=target != PAD_ID)
    assert both.item() == pytest.approx((words + 0.7 * repeated) / 7, rel=1e-4)
    late = writer(coverage_weight=0.7, coverage_after=1).train()
    first, second = (late.loss([given], target_ids=target, target_mask=target != PAD_ID) for _ in range(2))
    assert (first.item(), second.item()) == (pytest.approx(loss.item()), pytest.approx(both.item()))


@pytest.mark.parametrize("kind", KINDS)
def test_the_scores_of_a_decision_are_those_of_teacher_forcing(kind: str) -> None:
    head, given = writer(kind), sources(5, 3, 1, 7, 2, 2, 6, 4)
    with torch.no_grad():
        made = head.decide([given], options=SearchOptions(beams=3, n_best=3, max_length=15))
        for k in range(3):
            scored = head.score([given], tokens=made["tokens"][:, k : k + 1])
            assert torch.allclose(scored, made["scores"][:, k], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_in_the_padding_and_who_stands_beside_changes_nothing(kind: str) -> None:
    head, given = writer(kind), sources(5, 2, 7)
    polluted = {**given, "copy": torch.where(given["mask"], given["copy"], 5)}
    with torch.no_grad():
        together = head.decide([polluted], options=SearchOptions(beams=3, n_best=2, max_length=12))
        for b, n in enumerate((5, 2, 7)):
            one = {
                name: array[b : b + 1, :n] if array.dim() > 1 and name != "state" else array[b : b + 1]
                for name, array in given.items()
            }
            alone = head.decide([one], options=SearchOptions(beams=3, n_best=2, max_length=12))
            assert torch.equal(alone["tokens"][0], together["tokens"][b])
            assert torch.allclose(alone["scores"][0], together["scores"][b], atol=1e-4)


def test_a_word_that_is_not_known_is_learned_but_never_written() -> None:
    head, given = writer(switch=5.0), sources(*[4] * 20, unknown=0.0)
    with torch.no_grad():
        assert head.vocabulary.output is not None
        head.vocabulary.output.bias[UNK_ID] += 9
        source = head.read([given])
        made, _ = head.teacher_forced(source, torch.full((20, 1), UNK_ID), head.start(source, [given], 1))
        assert (made[:, 0].argmax(1) == UNK_ID).all()
        assert not (
            head.decide([given], options=SearchOptions(beams=3, n_best=3, max_length=9))["tokens"] == UNK_ID
        ).any()


def test_where_all_words_are_copied_only_words_of_the_source_are_written() -> None:
    head, given = writer(switch=-40.0), sources(6, 3, 2, unknown=0.5)
    tokens = head.decide([given], options=SearchOptions(max_length=9))["tokens"][:, 0]
    for row, words, n in zip(tokens.tolist(), given["copy"].tolist(), (6, 3, 2), strict=True):
        assert {*row} - {EOS_ID, PAD_ID} <= {*words[:n]}


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_reaches_every_weight(kind: str) -> None:
    head, given = CopySeq2Seq(D, WORDS, **{"hidden": 6, "embedding_dim": 6, **KINDS[kind]}, dropout=0.3), sources(4, 2)
    target = torch.tensor([[5, 9, V, EOS_ID], [7, 6, EOS_ID, PAD_ID]])
    head.loss([given], target_ids=target, target_mask=target != PAD_ID).backward()
    assert [name for name, p in head.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_label_smoothing_spreads_a_share_over_the_vocabulary() -> None:
    plain, smooth, given = writer(coverage_weight=0.0), writer(coverage_weight=0.0, label_smoothing=0.1), sources(5, 3)
    target = torch.tensor([[5, V, EOS_ID], [7, 6, EOS_ID]])
    every, losses = target != PAD_ID, []
    for head in (plain.train(), smooth.train()):
        losses.append(head.loss([given], target_ids=target, target_mask=every).item())
    source = plain.read([given])
    made = plain._all(source, target, plain.start(source, [given], 3))
    log_p = plain.vocabulary.logits(made.readout, plain.logit_mask).log_softmax(2)
    even = -log_p[..., plain.logit_mask == 0].mean().item()
    assert losses[1] == pytest.approx(0.9 * losses[0] + 0.1 * even, rel=1e-4)


def test_coverage_goes_with_the_additive_score_alone() -> None:
    with pytest.raises(
        UsageError, match=r"coverage: it is a part of the score `additive`; choose that, or coverage: false"
    ):
        CopySeq2Seq(D, WORDS, attention="dot")


def test_coverage_attention_without_its_weight_is_additive_attention() -> None:
    attention, mask = CoverageAttention(4, D, units=5), ragged(3, 5)
    query, keys, covered = torch.randn(2, 3, 4), torch.randn(2, 5, D), torch.rand(2, 3, 5)
    plain, _ = attention.attend(query, attention.project(keys, mask), mask)
    assert not torch.allclose(attention.attend_covered(query, attention.project(keys, mask), mask, covered)[0], plain)
    torch.nn.init.zeros_(attention.coverage.weight)
    made, weights = attention.attend_covered(query, attention.project(keys, mask), mask, covered)
    assert torch.allclose(made, plain)
    assert (weights[0, :, 3:] == 0).all()


def test_every_tensor_is_made_where_the_features_are() -> None:
    head, given, chosen = writer(), sources(4, 2), options(3, 2, 8)
    target = torch.tensor([[5, V, EOS_ID], [7, EOS_ID, PAD_ID]])
    with elsewhere():
        made = decided(head, **given, **chosen)
        head.loss([given], target_ids=target, target_mask=target != PAD_ID).backward()
    assert {rows.device.type for rows in made.values()} == {"cpu"}


def test_a_run_copies_names_that_it_never_saw(tmp_path: Path) -> None:
    """Of a pattern that a few hundred examples teach."""
    random.seed(1)

    def name() -> str:
        return "".join(random.choice("bdfgklmnprst") + random.choice("aeiou") for _ in range(3)).title()

    for part, count in (("train", 600), ("test", 40)):
        rows = []
        for _ in range(count):
            one, other = name(), name()
            text = random.choice([f"{one} owes {other} a coffee .", f"a coffee is owed to {other} by {one} ."])
            rows.append(json.dumps({"text": text, "target": f"{one} -> {other}"}))
        (tmp_path / f"{part}.jsonl").write_text("\n".join(rows))
    use = {"use": "words", "pattern": r"\S+", "min_count": 5}
    keys = {
        "name": "debts",
        "data": {"reader": {"use": "jsonl"}, "train": "train.jsonl", "dev": "test.jsonl", "test": "test.jsonl"},
        "tokenizer": {**use},
        "embedding": {"use": "lookup", "dim": 16},
        "encoder": {"use": "lstm", "hidden": 24},
        "head": {"use": "copy-seq2seq", "hidden": 32, "embedding_dim": 16, "units": 32, "target_tokenizer": {**use}},
        "train": {"epochs": 12, "batch_size": 16, "optimizer": {"use": "adamw", "lr": 0.01}, "patience": 3},
        "export": {"explain": True},
    }
    (tmp_path / "debts.yaml").write_text(yaml.safe_dump(keys))
    assert seqpipe("run", "debts.yaml", folder=tmp_path).code == 0
    model = load(tmp_path / "runs" / "debts" / "bundle", "cpu")
    scores = model.manifest.metrics["test"]
    assert scores["exact_match"] > 0.9
    assert scores["copy_recall"] > 0.9
    found = model.explain("Zorilla owes Ärger a coffee .")
    assert found.answer["generated_text"] == "Zorilla -> Ärger"
    first, arrow, last = found.copied["head.generating"]
    assert [found.text[slice(*one.place)] for one in (first, last) if one.place] == ["Zorilla", "Ärger"]
    assert arrow.place is None
    assert arrow.generating > 0.5 > max(first.generating, last.generating)
    assert "'Zorilla' at 0" in found.table()
    # Of allowed texts the words that no vocabulary has are copied; a text with one that the source lacks is left out.
    allowed = ["Ärger -> Zorilla", "Zorilla -> Nobody"]
    assert model("Zorilla owes Ärger a coffee .", allowed=allowed)["generated_text"] == "Ärger -> Zorilla"
    with pytest.raises(
        DataError, match="allowed: each text has a word that is in neither the vocabulary nor the source"
    ):
        model("Zorilla owes Ärger a coffee .", allowed="Nobody -> Nobody")
    refused = seqpipe("candidates", "runs/debts/bundle", "test.jsonl", "-o", "few", folder=tmp_path)
    assert refused.code == 2
    assert (
        "copies words, so that the texts it can write differ with the source; give allowed with each call"
        in refused.err
    )
    assert not (tmp_path / "few").exists()


@pytest.mark.parametrize("switch", [-30.0, -12.0, 12.0, 30.0])
def test_what_is_hardly_ever_copied_or_generated_has_an_exact_probability(switch: float) -> None:
    head, given = writer(), sources(5, 3, 4, unknown=0.5)
    with torch.no_grad():
        head.switch.weight.zero_()
        head.switch.bias.fill_(switch)
        source, ids = head.read([given]), torch.tensor([[5, V, 4, EOS_ID]] * 3)
        made, _ = head.teacher_forced(source, ids, head.start(source, [given], 4))
    for b, n in enumerate((5, 3, 4)):
        steps, _ = by_hand(head, given, b, n, ids[b].tolist())
        for t, expected in enumerate(steps):
            there = expected > 1e-25
            assert np.allclose(made[b, t, : V + n].numpy()[there], np.log(expected[there]), atol=2e-5)
