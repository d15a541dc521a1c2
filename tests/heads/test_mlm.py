from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import ragged
from factory import seqpipe, write_jsonl
from pretrained import checkpoint

from seqpipe import load as open_bundle
from seqpipe.config.loader import load
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, UsageError
from seqpipe.features.vocabulary import MASK, SPECIALS, Vocabulary
from seqpipe.nn.corruption import BatchRandom, choose_tokens, guessable_tokens, replace_second_texts, word_starts
from seqpipe.runtime.evaluate import evaluate
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.datasets import collate, examples
from seqpipe.training.evaluation import dev_measures, predictor
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.pipeline import Pipeline
from seqpipe_plugins.heads.mlm import MaskedLM

WORDS = Vocabulary([*SPECIALS, *"abcdefgh", MASK])
GAP = len(WORDS) - 1
PLACES = {"Oslo": "Norway", "Rome": "Italy", "Lima": "Peru", "Cairo": "Egypt"}


def texts(count: int, seed: int) -> list[dict[str, Any]]:
    """What a city is in can be told by the city, and the other way round."""
    dice = np.random.default_rng(seed)
    cities = [str(city) for city in dice.choice(sorted(PLACES), count)]
    return [{"text": f"the city of {city} is in {PLACES[city]} ."} for city in cities]


def masked(folder: Path, **changes: Any) -> Path:
    for name, count, seed in (("train", 200, 1), ("dev", 20, 2), ("test", 30, 3)):
        write_jsonl(folder / f"{name}.jsonl", texts(count, seed))
    content: dict[str, Any] = {
        "name": "gaps",
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"},
        "tokenizer": {"use": "words", "lowercase": True},
        "embedding": {"use": "lookup", "dim": 24},
        "encoder": {"use": "transformer", "layers": 1, "heads": 2, "dropout": 0.0},
        "head": {"use": "mlm", "tie": True},
        "train": {"epochs": 25, "batch_tokens": 256, "optimizer": {"use": "adamw", "lr": 0.01}, "threads": 1},
    }
    path = folder / "gaps.yaml"
    path.write_text(dump(content | changes))
    return path


# What is hidden


def test_tokens_are_chosen_by_their_share_and_never_padding_or_special_ones() -> None:
    mask = ragged(400, 300, 200)
    ids = torch.randint(1, len(WORDS), mask.shape, generator=torch.Generator().manual_seed(1))
    candidates = guessable_tokens(ids, mask, GAP)
    assert torch.equal(candidates, mask & (ids > 3) & (ids != GAP))
    found = choose_tokens(candidates, mask, mask, 0.3, BatchRandom(False, ids.device))
    assert not (found & ~candidates).any()
    assert found.sum() / candidates.sum() == pytest.approx(0.3, abs=0.03)


def test_a_short_text_has_one_gap_at_least_and_one_without_a_word_none() -> None:
    ids = torch.tensor([[4, 0, 0], [1, 1, 1], [5, 6, 0]])
    mask = ids > 0
    for _ in range(20):
        found = choose_tokens(guessable_tokens(ids, mask, GAP), mask, mask, 0.01, BatchRandom(True, ids.device))
        assert found.sum(1).tolist() == [1, 0, 1]


def test_the_pieces_of_a_word_are_chosen_together_and_of_an_unknown_one_none() -> None:
    mask = ragged(9, 7)
    pieces = torch.tensor([[1, 3, 4, 7], [1, 2, 6, 0]])
    begins = word_starts(mask, pieces)
    assert begins.nonzero()[:, 1].tolist() == [0, 2, 3, 6, 0, 1, 5]
    ids = torch.full(mask.shape, 5)
    ids[0, 1] = 1  # a piece that is unknown
    counts = torch.zeros(mask.shape)
    for seed in range(300):
        torch.manual_seed(seed)
        found = choose_tokens(guessable_tokens(ids, mask, GAP), mask, begins, 0.4, BatchRandom(True, ids.device))
        for row, a, b in ((0, 3, 6), (0, 6, 9), (1, 1, 5), (1, 5, 7)):
            assert found[row, a:b].all() or not found[row, a:b].any()
        counts += found
    assert not counts[0, :2].any()
    assert counts[1, 0] / 300 == pytest.approx(0.4 + 0.6**3 / 3, abs=0.06)  # one in any case


def test_of_chosen_tokens_most_become_gaps_some_others_and_the_rest_stay() -> None:
    made = MaskedLM(4, WORDS, share=0.5, masked=0.6, random=0.3)
    ids = torch.randint(4, GAP, (50, 60), generator=torch.Generator().manual_seed(1))
    found = made.corrupt_batch(ids, torch.ones_like(ids, dtype=torch.bool))
    hidden, seen = found["target_mask"], found["ids"]
    assert torch.equal(found["target_ids"], ids)
    assert torch.equal(seen[~hidden], ids[~hidden])
    inside = seen[hidden]
    assert (inside == GAP).float().mean() == pytest.approx(0.6, abs=0.04)
    assert (inside == ids[hidden]).float().mean() == pytest.approx(0.1 + 0.3 / 8, abs=0.04)
    assert set(inside.tolist()) == {*range(4, 12), GAP}


def test_half_of_the_pairs_get_the_second_text_of_another_row() -> None:
    rows = [[4, 5, 3, 6], [7, 3, 8, 9, 10], [4, 3, 11]]
    ids = torch.tensor([row + [0] * (5 - len(row)) for row in rows])
    segments = torch.tensor([[1, 1, 1, 2, 0], [1, 1, 2, 2, 2], [1, 1, 2, 0, 0]])
    seconds, seen = [[6], [8, 9, 10], [11]], set()
    for seed in range(40):
        torch.manual_seed(seed)
        pairs = replace_second_texts(ids, ids > 0, segments, ids > 0, BatchRandom(True, ids.device))
        for row, (whole, real) in enumerate(zip(pairs.ids, pairs.mask, strict=True)):
            given = whole[real].tolist()
            assert not whole[~real].any()
            cut = given.index(3) + 1
            assert given[:cut] == rows[row][:cut]
            assert (given[cut:] == seconds[row]) == bool(pairs.follows[row])
            assert given[cut:] in seconds
            assert pairs.segments[row].tolist() == [1] * cut + [2] * len(given[cut:]) + [0] * int((~real).sum())
            seen.add((row, seconds.index(given[cut:])))
    assert len(seen) == 9
    one = replace_second_texts(ids[:1], ids[:1] > 0, segments[:1], ids[:1] > 0, BatchRandom(True, ids.device))
    assert one.follows.all()


# What is learned and decided


def by_hand(made: MaskedLM, x: torch.Tensor) -> np.ndarray:
    """Log-probabilities of a vector, in NumPy: dense, GELU, layer norm, decoder, special tokens left out."""
    dense, norm = made.dense[0], made.norm
    z = x.detach().double().numpy() @ dense.weight.detach().double().numpy().T + dense.bias.detach().double().numpy()
    z = z * 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
    z = (z - z.mean()) / np.sqrt(z.var() + norm.eps)
    z = z * norm.weight.detach().double().numpy() + norm.bias.detach().double().numpy()
    assert made.decoder is not None
    logits = made.decoder.weight.detach().double().numpy() @ z + made.bias.detach().double().numpy()
    logits[[0, 1, 2, 3, GAP]] = -np.inf
    return np.asarray(logits - np.log(np.exp(logits).sum()))


def some(seed: int = 1) -> tuple[MaskedLM, torch.Tensor]:
    torch.manual_seed(seed)
    made = MaskedLM(6, WORDS).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter))
    return made, torch.randn(2, 5, 6)


def test_the_loss_is_the_mean_cross_entropy_of_what_was_hidden() -> None:
    made, x = some()
    ids, hidden = torch.randint(4, GAP, (2, 5)), torch.tensor([[1, 0, 0, 1, 0], [0, 1, 0, 0, 0]]) > 0
    expected = [-by_hand(made, x[b, t])[ids[b, t]] for b, t in hidden.nonzero().tolist()]
    assert made.loss(x, hidden, ids, hidden).item() == pytest.approx(np.mean(expected), abs=1e-5)
    measured = made.measures(x, hidden, ids, hidden)["perplexity"].tolist()
    assert measured == pytest.approx([np.sum(expected), 3], abs=1e-4)
    nothing = made.loss(x, hidden, ids, torch.zeros_like(hidden))
    nothing.backward()
    assert nothing.item() == 0


def test_the_fillings_are_those_of_the_greatest_products_of_probabilities() -> None:
    made, x = some(2)
    ids = torch.tensor([[4, GAP, 5, GAP, GAP], [6, GAP, 7, 0, 0]])
    mask = ragged(5, 3)
    decision = made.decide(x, mask, ids, n_best=9)
    for row, gaps in enumerate(([1, 3, 4], [1])):
        log_p = [by_hand(made, x[row, t]) for t in gaps]
        fillings = itertools.product(range(4, GAP), repeat=len(gaps))
        every = [(sum(p[i] for p, i in zip(log_p, at, strict=True)), at) for at in fillings]
        best = sorted(every, reverse=True)[:9]
        found = decision["tokens"][row, : len(best)]
        assert [tuple(one) for one in found[:, gaps].tolist()] == [at for _, at in best]
        assert decision["scores"][row, : len(best)].tolist() == pytest.approx([p for p, _ in best], abs=1e-5)
        others = [t for t in range(int(mask[row].sum())) if t not in gaps]
        assert (found[:, others] == ids[row, others]).all()
        assert (decision["scores"][row, len(best) :] < -1e8).all()
    assert torch.allclose(made.score(x, mask, ids, decision["tokens"]), decision["scores"][:, 0], atol=1e-5)


def test_a_table_of_another_width_or_none_is_told() -> None:
    made, hidden = MaskedLM(6, WORDS, tie=True), torch.ones(1, 2, dtype=torch.bool)
    for table, told in ((None, "no embedding gives one"), (torch.zeros(13, 5), "5 wide, and x 6")):
        with pytest.raises(UsageError, match=told):
            made.loss(torch.zeros(1, 2, 6), hidden, torch.ones(1, 2, dtype=torch.int64), hidden, table)


# From data to a bundle's answers


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("gaps")
    torch.set_num_threads(1)
    masked(folder)
    done = seqpipe("run", "gaps.yaml", "--device", "cpu", "--json", folder=folder)
    assert done.code == 0, done.err
    return folder, json.loads(done.out)


def test_a_bundle_fills_gaps_and_leaves_the_rest_as_it_is(finished: tuple[Path, dict[str, Any]]) -> None:
    model = open_bundle(finished[0] / finished[1]["bundle"], "cpu")
    one = model("The CITY of  Rome is in [MASK] .")
    assert (one["generated_text"], one["words"]) == ("The CITY of  Rome is in italy .", ["italy"])
    assert one["score"] > 0.5
    several = model("the [MASK] of Lima is in [MASK]", n_best=3)
    assert several[0]["words"] == ["city", "peru"]
    assert [answer["score"] for answer in several] == sorted((a["score"] for a in several), reverse=True)
    assert model("Qwxyz") == {"generated_text": "Qwxyz", "score": 1.0, "words": []}
    assert model("") == {"generated_text": "", "score": 1.0, "words": []}
    assert model({"words": ["the", "city", "of", "Rome", "is", "in", "[MASK]", "."]})["words"] == ["italy"]


def test_both_sides_judge_themselves_by_the_same_gaps(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, result = finished
    scored = seqpipe("evaluate", folder / result["bundle"], "--device", "cpu", "--json")
    assert json.loads(scored.out) == result["scores"]
    assert 0.6 < result["scores"]["test"]["masked_accuracy"] <= 1
    parity = json.loads((folder / result["bundle"] / "bundle.json").read_text())["parity"]
    assert parity["pytorch"] == parity["onnxruntime"] == result["scores"]["test"]["masked_accuracy"]


def test_both_sides_are_scored_on_minimal_pairs_and_list_the_wrong_preferences(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    folder, result = finished
    start = "the city of {} is in {} ."
    pairs = [
        *(
            {"sentence_good": start.format(a, PLACES[a]), "sentence_bad": start.format(a, PLACES[b])}
            for a, b in itertools.permutations(PLACES, 2)
        ),
        {"text": "the city of Rome is in [MASK] .", "alternatives": ["Peru", "Italy", "Norway"], "answer": 1},
        {"sentence_good": "the city of Rome is in Peru .", "sentence_bad": "the city of Rome is in Atlantis ."},
    ]
    write_jsonl(folder / "pairs.jsonl", pairs)
    sides = []
    for target in ("runs/gaps", result["bundle"]):
        done = seqpipe(
            *("evaluate", target, "--pairs", "pairs.jsonl", "--device", "cpu", "--json", "--errors", "wrong.jsonl"),
            folder=folder,
        )
        assert done.code == 0, done.err
        assert "1 of 14 have words that the model does not know, such as 'Atlantis'" in done.err
        wrong = [json.loads(line) for line in (folder / "wrong.jsonl").read_text().splitlines()]
        sides.append((json.loads(done.out)["pairs.jsonl"], wrong))
    (ours, ours_wrong), (theirs, theirs_wrong) = sides
    assert ours["accuracy"] == theirs["accuracy"] == 1 - len(ours_wrong) / 14
    assert ours["mean_difference"] == pytest.approx(theirs["mean_difference"], abs=1e-4)
    assert ours["accuracy"] >= 12 / 14
    assert ours["ties"] == 1
    assert [line["where"] for line in ours_wrong] == [line["where"] for line in theirs_wrong]
    assert all({"scores", "difference", "sentence_good"} <= line.keys() for line in ours_wrong)
    for flags, message in (
        (["--pairs", "pairs.jsonl", "--raw"], "decodes nothing; omit --data, --raw"),
        (["--normalize", "token"], "need --pairs; add a file of pairs"),
    ):
        done = seqpipe("evaluate", result["bundle"], *flags, folder=folder)
        assert done.code == 2
        assert message in done.err


def test_its_golden_examples_have_the_gaps_that_were_filled(finished: tuple[Path, dict[str, Any]]) -> None:
    model = open_bundle(finished[0] / finished[1]["bundle"], "cpu")
    golden = model.manifest.golden
    assert golden[-1].options == {"n_best": 3}
    for example in golden[:-1]:
        assert example.record["text"].count(MASK) == len(example.answer["words"]) > 0
    assert model.verify() == []


def test_the_dev_scores_hold_a_perplexity_that_falls(finished: tuple[Path, dict[str, Any]]) -> None:
    lines = (finished[0] / "runs/gaps/checkpoints/metrics.jsonl").read_text().splitlines()
    found = [json.loads(line)["dev"]["perplexity"] for line in lines]
    assert found[-1] < 2.5 < found[0]


def test_dev_is_measured_by_the_same_gaps_whenever_it_is(tmp_path: Path) -> None:
    config = load(masked(tmp_path))
    records = texts(30, 5)
    artifacts = fit_artifacts(config, records)
    torch.manual_seed(1)
    pipeline, batch = Pipeline(config, artifacts), collate(artifacts, examples(config, artifacts, records))
    assert dev_measures(pipeline, [batch]) == dev_measures(pipeline, [batch])
    with torch.no_grad():
        torch.manual_seed(2)
        one, other = pipeline.loss(batch), pipeline.loss(batch)
    assert one != other


def test_the_mask_is_the_last_token_and_no_text_of_the_data_has_a_target(tmp_path: Path) -> None:
    config = load(masked(tmp_path))
    artifacts = fit_artifacts(config, texts(30, 1))
    assert artifacts.vocabulary[-1] == MASK
    artifacts.save(tmp_path)
    again = Artifacts.load(tmp_path)
    assert again.vocabulary == artifacts.vocabulary
    (doc,) = again.featurizer.docs([{"text": "in[MASK] ."}])
    assert doc.words == ["in", MASK, "."]
    assert doc.ids[1] == len(artifacts.vocabulary) - 1
    assert again.kind.manifest() == artifacts.kind.manifest()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"embedding": [{"use": "lookup", "dim": 8}, {"use": "char-cnn"}]},
            "its feature 'chars' is of the uncorrupted text",
        ),
        ({"encoder": [{"use": "transformer"}, {"use": "words"}]}, "it replaces the rows of tokens"),
        ({"head": [{"use": "mlm"}, {"use": "vector"}]}, "make it the only head, on one source"),
    ],
)
def test_what_would_show_the_hidden_words_is_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load(masked(tmp_path, **changes))


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ({"use": "mlm", "masked": 0.8, "random": 0.3}, "sum to more than 1"),
        ({"use": "mlm", "next_sentence": True}, "it needs two texts; set tokenizer.field"),
        ({"use": "mlm", "tie": True}, "24 wide, and x 32"),
    ],
)
def test_options_that_do_not_go_together_are_told_by_check(tmp_path: Path, head: dict[str, Any], told: str) -> None:
    encoder = {"use": "transformer", "hidden": 32, "heads": 2}
    done = seqpipe("check", masked(tmp_path, head=head, encoder=encoder))
    assert done.code == 2
    assert told in done.err


def test_pairs_of_texts_learn_which_belong_together(tmp_path: Path) -> None:
    path = masked(
        tmp_path,
        tokenizer={"use": "words", "field": ["text", "more"]},
        embedding={"use": "lookup", "dim": 24},
        encoder={"use": "lstm", "hidden": 64},
        head={"use": "mlm", "next_sentence": True, "share": 0.05, "pool": "max"},
        train={"epochs": 25, "batch_tokens": 256, "optimizer": {"use": "adamw", "lr": 0.005}, "threads": 1},
    )
    for name in ("train", "dev", "test"):
        records = texts(600 if name == "train" else 200, len(name))
        halves = [one["text"].split(" is ") for one in records]
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": a, "more": f"it is {b}"} for a, b in halves])
    torch.set_num_threads(1)
    done = seqpipe("run", path, "--device", "cpu", "--json", folder=tmp_path)
    assert done.code == 0, done.err
    last = json.loads((tmp_path / "runs/gaps/checkpoints/metrics.jsonl").read_text().splitlines()[-1])["dev"]
    assert last["next_sentence_accuracy"] > 0.7  # of four cities a quarter of the other second texts is the same
    model = open_bundle(tmp_path / json.loads(done.out)["bundle"], "cpu")
    answer = model({"text": "the city of Rome", "more": "it [MASK] in Italy ."})
    assert answer["generated_text"] == "the city of Rome\nit is in Italy ."


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_checkpoint_goes_on_with_its_own_mask(tmp_path: Path, family: str) -> None:
    sentences = [record["text"] for record in texts(20, 1)]
    made = checkpoint(tmp_path / "checkpoint", family, sentences, most=200)
    settings = json.loads((made / "tokenizer_config.json").read_text())
    config = load(
        masked(
            tmp_path,
            tokenizer={"use": "pretrained", "checkpoint": str(made)},
            embedding=None,
            encoder={"use": "pretrained", "checkpoint": str(made)},
            head={"use": "mlm"},
        )
    )
    artifacts = fit_artifacts(config, texts(20, 1))
    if settings.get("mask_token") is None:
        assert artifacts.vocabulary[-1] == MASK
        return
    assert artifacts.vocabulary.count(MASK) == 1
    pipeline = Pipeline(config, artifacts)
    records = texts(6, 3)
    assert evaluate(predictor(pipeline, config), records)[""]["masked_accuracy"] >= 0
