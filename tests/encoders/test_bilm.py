"""Two language models whose states never meet, and the mean of their layers by learned weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_graphs import ragged_mask
from tiny_pipelines import seqpipe, succeed, train_settings, write_pipeline
from torch.nn import functional as F

from seqpipe import load as open_bundle
from seqpipe.features.vocabulary import SPECIALS, Vocabulary
from seqpipe.training.checkpoint import best, load_weights
from seqpipe_plugins.embeddings.elmo import ELMo
from seqpipe_plugins.encoders.bilm import BiLMEncoder
from seqpipe_plugins.heads.bilm import BiLMHead as Head

WORDS = Vocabulary([*SPECIALS, *"abcde"])
MASK = ragged_mask(6, 4, 1)
X = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("residual", [True, False])
def test_the_layers_of_each_direction_are_lstms_on_top_of_each_other(residual: bool) -> None:
    torch.manual_seed(2)
    encoder = BiLMEncoder(4, {}, hidden=4, layers=2, residual=residual).eval()
    output = encoder(X[..., :4], MASK)
    for row, length in enumerate((6, 4, 1)):
        x = X[row, :length, :4]
        for way, turned in ((0, False), (1, True)):
            read, at = (x.flip(0) if turned else x), slice(4 * way, 4 * way + 4)
            for depth in range(2):
                states, _ = encoder.ways[way][depth](read[None])  # type: ignore[index]
                read = states[0] + read if depth and residual else states[0]
                states = read.flip(0) if turned else read
                assert torch.allclose(output["layers"][row, :length, depth + 1, at], states, atol=1e-6)
            assert torch.allclose(output[("forwards", "backwards")[way]][row, :length], states, atol=1e-6)
        assert torch.equal(output["layers"][row, :length, 0], torch.cat([x, x], 1))
    assert torch.equal(output["x"], torch.cat([output["forwards"], output["backwards"]], 2))


def test_the_loss_and_the_answer_are_log_probabilities_of_both_directions() -> None:
    torch.manual_seed(3)
    head = Head(6, WORDS).eval()
    with torch.no_grad():
        head.edges.normal_()
    forwards, backwards = torch.randn(3, 6, 3), torch.randn(3, 6, 3)
    ids = torch.randint(4, len(WORDS), (3, 6))
    log_p: list[list[float]] = [[], [], []]
    for row, length in enumerate((6, 4, 1)):
        for t in range(length):
            before = forwards[row, t - 1] if t else head.edges[0]
            for h in (before, backwards[row, t + 1] if t + 1 < length else head.edges[1]):
                logits = head.output.weight @ h + head.output.bias
                logits[[0, 2]] = -np.inf
                log_p[row].append(logits.log_softmax(0)[ids[row, t]].item())
    score = head.decide(forwards, backwards, MASK, ids)["score"]
    assert score.tolist() == pytest.approx([np.mean(row) for row in log_p], abs=1e-5)
    every = [p for row in log_p for p in row]
    assert head.loss(forwards, backwards, MASK, ids).item() == pytest.approx(-np.mean(every), abs=1e-5)
    measures = head.measures(forwards, backwards, MASK, ids)
    for i, name in enumerate(("forward_perplexity", "backward_perplexity")):
        assert measures[name].tolist() == pytest.approx([-sum(every[i::2]), 11], abs=1e-4)


@pytest.mark.parametrize("layer_norm", [True, False])
def test_the_mix_is_a_mean_by_softmax_times_a_number_of_the_layers_of_a_bilm(layer_norm: bool) -> None:
    torch.manual_seed(4)
    elmo, chars = ELMo({"chars": 9}, dim=5, hidden=4, layer_norm=layer_norm).eval(), torch.randint(2, 9, (3, 6, 4))
    elmo.weights.data = torch.tensor([0.5, -1.0, 2.0])
    elmo.scale.data.fill_(1.7)
    layers = elmo.model(elmo.chars(chars), MASK)["layers"].detach()
    shares = np.exp([0.5, -1.0, 2.0]) / np.exp([0.5, -1.0, 2.0]).sum()
    rows = F.layer_norm(layers, (8,)) if layer_norm else layers
    expected = 1.7 * np.einsum("j,btjd->btd", shares, rows.numpy())
    x = elmo(chars, MASK).detach().numpy()
    assert np.abs(x[MASK.numpy()] - expected[MASK.numpy()]).max() < 1e-6
    assert not x[~MASK.numpy()].any()


@pytest.mark.parametrize("train", [True, False])
def test_the_language_model_is_trained_only_with_train(train: bool) -> None:
    elmo = ELMo({"chars": 9}, dim=5, hidden=4, train=train)
    elmo(torch.randint(2, 9, (3, 6, 4)), MASK).sum().backward()
    learning = {name for name, weight in elmo.named_parameters() if weight.grad is not None}
    assert {"weights", "scale"} <= learning
    assert (learning == {"weights", "scale"}) is not train


def counting(count: int, seed: int) -> list[dict[str, Any]]:
    """Letters in their order from any first letter, which is the label: each follows from either neighbour."""
    starts = np.random.default_rng(seed).integers(0, 8, count)
    return [{"text": " ".join(("abcdefgh" * 2)[i : i + 6]), "label": "abcdefgh"[i]} for i in starts]


def test_a_strange_text_is_less_likely_in_the_bundle_and_its_layers_serve_another_task(tmp_path: Path) -> None:
    counts, train = (120, 10, 10), train_settings(12, tokens=96)
    stages: dict[str, Any] = {"embedding": {"use": "char-cnn", "dim": 12}, "encoder": {"use": "bilm", "hidden": 16}}
    write_pipeline(tmp_path, counting, "lm", counts, tokenizer="words", **stages, head="bilm", train=train)
    done = succeed("run", "lm.yaml", "--device", "cpu", "--json", folder=tmp_path)
    last = json.loads((tmp_path / "runs/lm/checkpoints/metrics.jsonl").read_text().splitlines()[-1])["dev"]
    assert next(iter(last)) == "forward_perplexity"
    assert last["forward_perplexity"] < 2 > last["backward_perplexity"]  # only the first letter is open, and the last
    model = open_bundle(tmp_path / "runs/lm/bundle", "cpu")
    assert model("c d e f g h")["score"] > -0.6 > -3 > model("c h d a g b")["score"]
    answers = model([record["text"] for record in counting(10, 3)])
    mean = json.loads(done.out)["scores"]["test"]["mean_score"]
    assert mean == pytest.approx(np.mean([answer["score"] for answer in answers]), abs=1e-5)

    elmo = {"use": "elmo", "dim": 12, "hidden": 16, "init": "runs/lm"}
    stages = {"tokenizer": {"use": "words", "init": "runs/lm"}, "head": {"use": "label", "pool": "first"}}
    embedding = [{"use": "lookup", "dim": 4}, elmo]
    write_pipeline(tmp_path, counting, "first", counts, **stages, embedding=embedding, train=train)
    done = succeed("run", "first.yaml", "--device", "cpu", "--json", folder=tmp_path)
    assert "embedding.1: starts from runs/lm (embedding and encoder): 8 of 8 chars are known there" in done.err
    assert json.loads(done.out)["scores"]["test"]["accuracy"] == 1
    old, new = (load_weights(*best(tmp_path / "runs" / name / "checkpoints")) for name in ("lm", "first"))
    kept = {"embedding.0.": "embedding.1.chars.", "encoder.0.": "embedding.1.model."}
    for before, after in kept.items():
        names = [name for name in old if name.startswith(before)]
        assert names
        assert all(torch.equal(old[name], new[after + name.removeprefix(before)]) for name in names)
    old_value = "restore the old options (hidden was 16 and is 17)"
    for changes, message in (({"hidden": 17}, old_value), ({"init": "runs/first"}, "has no embedding 'char-cnn'")):
        embedding = [{**elmo, **changes}]
        write_pipeline(tmp_path, counting, "other", counts, **stages, embedding=embedding, train=train)
        assert message in seqpipe("train", "other.yaml", folder=tmp_path).err
