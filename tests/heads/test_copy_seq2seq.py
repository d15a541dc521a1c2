"""The pointer-generator against NumPy loops, and from data to a bundle that copies words it never saw."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from generating_heads import WORDS, D, V, sources, writer
from tiny_pipelines import seqpipe, succeed, write_pipeline
from torch import Tensor

from seqpipe import load
from seqpipe.errors import DataError, UsageError
from seqpipe.nn.layers import BOS_ID, EOS_ID, LOG_ZERO, PAD_ID, UNK_ID
from seqpipe.nn.search import SearchOptions
from seqpipe_plugins.heads.copy_seq2seq import CopySeq2Seq


def copier(switch: float = 0.0, **options: Any) -> CopySeq2Seq:
    """An untrained head with coverage; `switch` makes it generate more, or copy more."""
    head = writer("coverage", **options)
    with torch.no_grad():
        head.switch.bias += switch
    return head


def softmax(a: Any) -> Any:
    return np.exp(a - a.max()) / np.exp(a - a.max()).sum()


def sigmoid(a: Any) -> Any:
    return 1 / (1 + np.exp(-a))


def by_hand(head: CopySeq2Seq, source: dict[str, Tensor], b: int, n: int, ids: list[int]) -> tuple[list[Any], float]:
    """The distribution over V + n words at each step of one text, in loops, and the sum of the coverage loss."""
    p = {name: tensor.double().numpy() for name, tensor in head.state_dict().items()}
    x, words = source["x"][b, :n].double().numpy(), source["copy"][b, :n].tolist()
    h, c = np.tanh(p["bridge.weight"] @ source["state"][b].double().numpy() + p["bridge.bias"]).reshape(2, -1)
    context, covered, repeated, steps = np.zeros(D), np.zeros(n), 0.0, []
    for before in [BOS_ID, *ids[:-1]]:
        vector = p["vocabulary.embedding.weight"][before if before < V else UNK_ID]
        step = np.concatenate([vector, context])
        gates = p["rnn.weight_ih_l0"] @ step + p["rnn.bias_ih_l0"] + p["rnn.weight_hh_l0"] @ h + p["rnn.bias_hh_l0"]
        i, f, g, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        query = p["attention.query.weight"] @ h + p["attention.query.bias"]
        keys = x @ p["attention.key.weight"].T + covered[:, None] * p["attention.coverage.weight"][:, 0]
        a = softmax(np.tanh(query + keys) @ p["attention.v.weight"][0])
        context = a @ x
        readout = np.tanh(p["readout.weight"] @ np.concatenate([h, context]) + p["readout.bias"])
        logits = p["vocabulary.output.weight"] @ readout + p["vocabulary.output.bias"]
        logits[[PAD_ID, BOS_ID]] = -np.inf
        switch = p["switch.weight"][0] @ np.concatenate([context, h, step]) + p["switch.bias"][0]
        final = np.concatenate([sigmoid(switch) * softmax(logits), np.zeros(n)])
        for word, weight in zip(words, a, strict=True):
            final[word] += sigmoid(-switch) * weight
        repeated += np.minimum(a, covered).sum()
        covered = covered + a
        steps.append(final)
    return steps, repeated


def test_each_step_is_what_the_paper_says_in_loops() -> None:
    head, lengths = copier(), (5, 3, 1, 7)
    source = sources(*lengths, unknown=0.6)
    ids = [[5, V, 9, EOS_ID], [V, V, UNK_ID, EOS_ID], [4, 4, V, EOS_ID], [7, V + 1, 6, EOS_ID]]
    with torch.no_grad():
        memory = head.read([source])
        log_p, _ = head.teacher_forced(memory, torch.tensor(ids), head.start(memory, [source], 4))
    for b, n in enumerate(lengths):
        for t, expected in enumerate(by_hand(head, source, b, n, ids[b])[0]):
            assert expected.sum() == pytest.approx(1, abs=1e-9)
            assert np.allclose(log_p[b, t, : V + n].exp().numpy(), expected, atol=1e-5)
            assert (log_p[b, t, V + n :] <= LOG_ZERO).all()  # no word stands there


@pytest.mark.parametrize("switch", [-30.0, -12.0, 12.0, 30.0])
def test_a_word_that_is_hardly_ever_copied_or_generated_has_an_exact_probability(switch: float) -> None:
    head, source, ids = copier(), sources(5, 3, 4, unknown=0.5), [5, V, 4, EOS_ID]
    with torch.no_grad():
        head.switch.weight.zero_()
        head.switch.bias.fill_(switch)
        memory = head.read([source])
        log_p, _ = head.teacher_forced(memory, torch.tensor([ids] * 3), head.start(memory, [source], 4))
    for b, n in enumerate((5, 3, 4)):
        for t, expected in enumerate(by_hand(head, source, b, n, ids)[0]):
            possible = expected > 1e-25
            assert np.allclose(log_p[b, t, : V + n].numpy()[possible], np.log(expected[possible]), atol=2e-5)


def test_the_loss_is_that_of_the_words_and_of_looking_twice() -> None:
    head, source = copier(coverage_weight=0.7), sources(5, 3, unknown=0.6)
    target = torch.tensor([[5, V, 9, EOS_ID], [V, UNK_ID, EOS_ID, PAD_ID]])
    targets = {"target_ids": target, "target_mask": target != PAD_ID}
    words = repeated = 0.0
    for b, n in enumerate((5, 3)):
        ids = [i for i in target[b].tolist() if i != PAD_ID]
        steps, again = by_hand(head, source, b, n, ids)
        words -= sum(np.log(step[i]) for step, i in zip(steps, ids, strict=True))
        repeated += again
    loss = head.loss([source], **targets)
    assert loss.item() == pytest.approx(words / 7, rel=1e-4)  # in evaluation of the words alone
    both = head.train().loss([source], **targets)
    assert both.item() == pytest.approx((words + 0.7 * repeated) / 7, rel=1e-4)
    late = copier(coverage_weight=0.7, coverage_after=1).train()
    first, second = (late.loss([source], **targets) for _ in range(2))
    assert (first.item(), second.item()) == (pytest.approx(loss.item()), pytest.approx(both.item()))


def test_an_unknown_word_is_learned_but_never_generated() -> None:
    head, source = copier(switch=5.0), sources(*[4] * 20, unknown=0.0)
    with torch.no_grad():
        assert head.vocabulary.output is not None
        head.vocabulary.output.bias[UNK_ID] += 9
        memory = head.read([source])
        log_p, _ = head.teacher_forced(memory, torch.full((20, 1), UNK_ID), head.start(memory, [source], 1))
        assert (log_p[:, 0].argmax(1) == UNK_ID).all()
        tokens = head.decide([source], options=SearchOptions(beams=3, n_best=3, max_length=9))["tokens"]
    assert not (tokens == UNK_ID).any()


def test_label_smoothing_spreads_a_share_over_the_vocabulary() -> None:
    plain, smooth = (copier(coverage_weight=0.0, label_smoothing=share).train() for share in (0.0, 0.1))
    source, target = sources(5, 3), torch.tensor([[5, V, EOS_ID], [7, 6, EOS_ID]])
    losses = [head.loss([source], target, target != PAD_ID).item() for head in (plain, smooth)]
    memory = plain.read([source])
    step = plain._all(memory, target, plain.start(memory, [source], 3))
    log_p = plain.vocabulary.logits(step.readout, plain.logit_mask).log_softmax(2)
    even = -log_p[..., plain.logit_mask == 0].mean().item()
    assert losses[1] == pytest.approx(0.9 * losses[0] + 0.1 * even, rel=1e-4)


def test_coverage_goes_with_the_additive_score_alone() -> None:
    with pytest.raises(UsageError, match=r"coverage: it is a part of the score `additive`; .*, or coverage: false"):
        CopySeq2Seq(D, WORDS, attention="dot")


def test_a_run_copies_names_that_it_never_saw(tmp_path: Path) -> None:
    """The pattern can be learned from a few hundred examples."""
    random.seed(1)

    def name() -> str:
        return "".join(random.choice("bdfgklmnprst") + random.choice("aeiou") for _ in range(3)).title()

    def debts(count: int, seed: int) -> list[dict[str, Any]]:
        pairs = [(name(), name()) for _ in range(count)]
        forms = ("{0} owes {1} a coffee .", "a coffee is owed to {1} by {0} .")
        return [{"text": random.choice(forms).format(*pair), "target": " -> ".join(pair)} for pair in pairs]

    words = {"use": "words", "pattern": r"\S+", "min_count": 5}
    content = {
        "tokenizer": words,
        "embedding": {"use": "lookup", "dim": 16},
        "encoder": {"use": "lstm", "hidden": 24},
        "head": {"use": "copy-seq2seq", "hidden": 32, "embedding_dim": 16, "units": 32, "target_tokenizer": words},
        "train": {"epochs": 12, "batch_size": 16, "optimizer": {"use": "adamw", "lr": 0.01}, "patience": 3},
        "export": {"explain": True},
    }
    succeed("run", write_pipeline(tmp_path, debts, "debts", (600, 20, 40), **content), folder=tmp_path)
    model = load(tmp_path / "runs" / "debts" / "bundle", "cpu")
    scores = model.manifest.metrics["test"]
    assert min(scores["exact_match"], scores["copy_recall"]) > 0.9
    text = "Zorilla owes Ärger a coffee ."
    explained = model.explain(text)
    assert explained.answer["generated_text"] == "Zorilla -> Ärger"
    first, arrow, last = explained.copied["head.generating"]
    assert [explained.text[slice(*word.place)] for word in (first, last) if word.place] == ["Zorilla", "Ärger"]
    assert arrow.place is None
    assert arrow.generating > 0.5 > max(first.generating, last.generating)
    assert "'Zorilla' at 0" in explained.table()
    # Words of allowed texts that no vocabulary has are copied; a text with one that the source lacks is left out.
    allowed = ["Ärger -> Zorilla", "Zorilla -> Nobody"]
    assert model(text, allowed=allowed)["generated_text"] == "Ärger -> Zorilla"
    message = "allowed: each text has a word that is in neither the vocabulary nor the source"
    with pytest.raises(DataError, match=message):
        model(text, allowed="Nobody -> Nobody")
    refused = seqpipe("candidates", "runs/debts/bundle", "test.jsonl", "-o", "few", folder=tmp_path)
    message = "copies words, so that the texts it can write differ with the source; give allowed with each call"
    assert (refused.code, message in refused.err, (tmp_path / "few").exists()) == (2, True, False)
