from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import ragged
from factory import seqpipe, write_jsonl
from torch.nn import functional as F

from seqpipe import load as open_bundle
from seqpipe.config.yaml import dump
from seqpipe.errors import UsageError
from seqpipe.features.vocabulary import MASK, SPECIALS, Vocabulary
from seqpipe_plugins.heads.electra import Electra

WORDS = Vocabulary([*SPECIALS, *"abcdefgh", MASK])
GAP = len(WORDS) - 1


def some(**options: Any) -> Electra:
    torch.manual_seed(1)
    made = Electra(6, WORDS, generator=8, heads=2, **options)
    with torch.no_grad():
        made.table.weight.mul_(3)
    return made


def test_only_hidden_tokens_are_replaced_and_what_is_drawn_may_be_right() -> None:
    made, mask = some(share=0.5), ragged(60, 50, 40)
    ids = torch.where(mask, torch.randint(4, GAP, mask.shape, generator=torch.Generator().manual_seed(2)), 0)
    found = made.corrupt_batch(ids, mask)
    assert not (found["replaced"] & ~found["guessed"]).any()
    assert torch.equal(found["replaced"], found["ids"] != ids)
    assert found["guessed"].sum() > found["replaced"].sum() > 0
    assert not (found["guessed"] & ~mask).any()
    assert set(found["ids"][mask].tolist()) <= set(range(4, GAP))


def test_tokens_are_drawn_as_likely_as_the_generator_thinks() -> None:
    made, ids = some(share=0.001), torch.tensor([[4, 5, 6]])
    mask, counts, rows = torch.ones_like(ids, dtype=torch.bool), torch.zeros(3, len(WORDS)), torch.zeros(3)
    with torch.no_grad():
        for seed in range(3000):
            torch.manual_seed(seed)
            found = made.corrupt_batch(ids, mask)
            ((_, place),) = found["guessed"].nonzero().tolist()
            counts[place, found["ids"][0, place]] += 1
            rows[place] += 1
        for place in range(3):
            hidden = ids.clone()
            hidden[0, place] = GAP
            z = made.guess(made.generator(made.table(hidden), mask)["x"][0, place])
            p = (made.table.weight @ z + made.bias + made.logit_mask).softmax(0)
            assert torch.allclose(counts[place] / rows[place], p, atol=0.05)


def test_the_loss_is_the_guesses_and_fifty_times_the_detection() -> None:
    made, mask = some(), ragged(5, 3)
    ids = torch.where(mask, torch.randint(4, GAP, mask.shape), 0)
    found, x = made.corrupt_batch(ids, mask), torch.randn(2, 5, 6)
    told = {name: found[name] for name in ("replaced", "guessed", "guess_log_p")}
    missed = -found["guess_log_p"][found["guessed"]].mean()
    error = F.binary_cross_entropy(made.detect(x)[..., 0].sigmoid()[mask], found["replaced"][mask].float())
    assert made.loss(x, mask, **told).item() == pytest.approx((missed + 50 * error).item(), rel=1e-5)
    measured = {name: (pair[0] / pair[1]).item() for name, pair in made.measures(x, mask, **told).items()}
    assert measured["detection_perplexity"] == pytest.approx(error.item(), rel=1e-5)
    assert measured["generator_perplexity"] == pytest.approx(missed.item(), rel=1e-5)
    score = made.decide(x, mask)["score"]
    expected = [(1 - made.detect(x)[row, :n, 0].sigmoid()).mean().item() for row, n in enumerate((5, 3))]
    assert score.tolist() == pytest.approx(expected, abs=1e-6)


def test_the_generator_learns_by_its_own_guesses_alone() -> None:
    made, mask = some(), ragged(5, 3)
    ids = torch.where(mask, torch.randint(4, GAP, mask.shape), 0)
    found, x = made.corrupt_batch(ids, mask), torch.randn(2, 5, 6)
    made.loss(x, mask, found["replaced"], found["guessed"], found["guess_log_p"]).backward()
    assert made.table.weight.grad is not None
    assert made.table.weight.grad.any()
    made.zero_grad()
    made.loss(x, mask, found["replaced"], found["guessed"], found["guess_log_p"].detach()).backward()
    assert made.table.weight.grad is None


def test_a_vocabulary_without_a_mask_is_told() -> None:
    with pytest.raises(UsageError, match=r"the vocabulary has no \[MASK\]"):
        Electra(6, Vocabulary(WORDS[:-1]))


def counting(count: int, seed: int) -> list[dict[str, Any]]:
    dice = np.random.default_rng(seed)
    return [{"text": " ".join("abcdefgh"[(i + j) % 8] for j in range(7))} for i in dice.integers(0, 8, count)]


def test_a_bundle_doubts_a_text_with_a_word_that_does_not_belong(tmp_path: Path) -> None:
    for name, count, seed in (("train", 600, 1), ("dev", 100, 2), ("test", 10, 3)):
        write_jsonl(tmp_path / f"{name}.jsonl", counting(count, seed))
    content = {
        "name": "odd",
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"},
        "tokenizer": "words",
        "embedding": {"use": "lookup", "dim": 24},
        "encoder": {"use": "transformer", "layers": 1, "heads": 2, "dropout": 0.0},
        "head": {"use": "electra", "generator": 8, "heads": 2},
        "train": {"epochs": 25, "batch_tokens": 256, "optimizer": {"use": "adamw", "lr": 0.01}, "threads": 1},
    }
    (tmp_path / "odd.yaml").write_text(dump(content))
    torch.set_num_threads(1)
    done = seqpipe("run", "odd.yaml", "--device", "cpu", "--json", folder=tmp_path)
    assert done.code == 0, done.err
    last = json.loads((tmp_path / "runs/odd/checkpoints/metrics.jsonl").read_text().splitlines()[-1])["dev"]
    assert next(iter(last)) == "detection_perplexity"
    assert last["detection_recall"] > 0.3
    assert last["detection_accuracy"] > 0.9
    model = open_bundle(tmp_path / "runs/odd/bundle", "cpu")
    right, wrong = model(["a b c d e f g", "a b c h e f g"])
    assert right["score"] > wrong["score"] + 0.05
