"""The masked language model: what is hidden and how often, losses against NumPy, fillings against all there are."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_graphs import ragged_mask
from gallery import RECIPES, Example, cities, gallery, train_settings, write_pipeline
from tiny_checkpoints import checkpoint
from tiny_pipelines import fail_with, seqpipe, succeed, write_jsonl

from seqpipe import load as open_bundle
from seqpipe.config.loader import load_config
from seqpipe.errors import UsageError
from seqpipe.evaluation.scores import score_records
from seqpipe.features.vocabulary import MASK, SPECIALS, Vocabulary
from seqpipe.nn.corruption import BatchRandom, choose_tokens, guessable_tokens, replace_second_texts, word_starts
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.datasets import collate, examples
from seqpipe.training.evaluation import dev_measures, predictor
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.network import Network
from seqpipe_plugins.heads.mlm import MaskedLM

WORDS = Vocabulary([*SPECIALS, *"abcdefgh", MASK])
GAP = len(WORDS) - 1


def masked(folder: Path, **changes: Any) -> Path:
    """Write the data and YAML of the gallery's model with changes."""
    return write_pipeline(folder, **(RECIPES["fill-mask"].content | changes))


# What is hidden


def test_tokens_are_chosen_by_their_share_and_never_padding_or_special_ones() -> None:
    mask = ragged_mask(400, 300, 200)
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
    mask = ragged_mask(9, 7)
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
    head = MaskedLM(4, WORDS, share=0.5, masked=0.6, random=0.3)
    ids = torch.randint(4, GAP, (50, 60), generator=torch.Generator().manual_seed(1))
    found = head.corrupt_batch(ids, torch.ones_like(ids, dtype=torch.bool))
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


def by_hand(head: MaskedLM, x: torch.Tensor) -> np.ndarray:
    """Log-probabilities of a vector, in NumPy: dense, GELU, layer norm, decoder, special tokens left out."""
    p = {name: parameter.detach().double().numpy() for name, parameter in head.named_parameters()}
    z = p["dense.0.weight"] @ x.detach().double().numpy() + p["dense.0.bias"]
    z = z * 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
    z = (z - z.mean()) / np.sqrt(z.var() + head.norm.eps)
    logits = p["decoder.weight"] @ (z * p["norm.weight"] + p["norm.bias"]) + p["bias"]
    logits[[0, 1, 2, 3, GAP]] = -np.inf
    return np.asarray(logits - np.log(np.exp(logits).sum()))


def random_head(seed: int = 1) -> tuple[MaskedLM, torch.Tensor]:
    torch.manual_seed(seed)
    head = MaskedLM(6, WORDS).eval()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter))
    return head, torch.randn(2, 5, 6)


def test_the_loss_is_the_mean_cross_entropy_of_what_was_hidden() -> None:
    head, x = random_head()
    ids, hidden = torch.randint(4, GAP, (2, 5)), torch.tensor([[1, 0, 0, 1, 0], [0, 1, 0, 0, 0]]) > 0
    expected = [-by_hand(head, x[b, t])[ids[b, t]] for b, t in hidden.nonzero().tolist()]
    assert head.loss(x, hidden, ids, hidden).item() == pytest.approx(np.mean(expected), abs=1e-5)
    measured = head.measures(x, hidden, ids, hidden)["perplexity"].tolist()
    assert measured == pytest.approx([np.sum(expected), 3], abs=1e-4)
    nothing = head.loss(x, hidden, ids, torch.zeros_like(hidden))
    nothing.backward()
    assert nothing.item() == 0


def test_the_fillings_are_those_of_the_greatest_products_of_probabilities() -> None:
    head, x = random_head(2)
    ids = torch.tensor([[4, GAP, 5, GAP, GAP], [6, GAP, 7, 0, 0]])
    mask = ragged_mask(5, 3)
    decision = head.decide(x, mask, ids, n_best=9)
    for row, gaps in enumerate(([1, 3, 4], [1])):
        log_p = [by_hand(head, x[row, t]) for t in gaps]
        fillings = itertools.product(range(4, GAP), repeat=len(gaps))
        every = [(sum(p[i] for p, i in zip(log_p, at, strict=True)), at) for at in fillings]
        best = sorted(every, reverse=True)[:9]
        found = decision["tokens"][row, : len(best)]
        assert [tuple(one) for one in found[:, gaps].tolist()] == [at for _, at in best]
        assert decision["scores"][row, : len(best)].tolist() == pytest.approx([p for p, _ in best], abs=1e-5)
        others = [t for t in range(int(mask[row].sum())) if t not in gaps]
        assert (found[:, others] == ids[row, others]).all()
        assert (decision["scores"][row, len(best) :] < -1e8).all()
    assert torch.allclose(head.score(x, mask, ids, decision["tokens"]), decision["scores"][:, 0], atol=1e-5)


def test_a_table_of_another_width_or_none_is_refused() -> None:
    head, hidden = MaskedLM(6, WORDS, tie=True), torch.ones(1, 2, dtype=torch.bool)
    for table, message in ((None, "no embedding gives one"), (torch.zeros(13, 5), "5 wide, and x 6")):
        with pytest.raises(UsageError, match=message):
            head.loss(torch.zeros(1, 2, 6), hidden, torch.ones(1, 2, dtype=torch.int64), hidden, table)


# From data to a bundle's answers


@pytest.fixture(scope="module")
def example() -> Example:
    return gallery("fill-mask")


def test_a_bundle_fills_gaps_and_leaves_the_rest_as_it_is(example: Example) -> None:
    model = open_bundle(example.bundle, "cpu")
    answer = model("The CITY of  Rome is in [MASK] .")
    assert (answer["generated_text"], answer["words"]) == ("The CITY of  Rome is in italy .", ["italy"])
    assert answer["score"] > 0.5
    several = model("the [MASK] of Lima is in [MASK]", n_best=3)
    assert several[0]["words"] == ["city", "peru"]
    assert [answer["score"] for answer in several] == sorted((a["score"] for a in several), reverse=True)
    for text in ("Qwxyz", ""):
        assert model(text) == {"generated_text": text, "score": 1.0, "log_score": 0.0, "words": []}
    assert model({"words": ["the", "city", "of", "Rome", "is", "in", "[MASK]", "."]})["words"] == ["italy"]
    golden = model.manifest.golden
    assert golden[-1].options == {"n_best": 3}
    for row in golden[:-1]:
        assert row.record["text"].count(MASK) == len(row.answer["words"]) > 0
    assert model.verify() == []


def test_both_sides_judge_themselves_by_the_same_gaps(example: Example) -> None:
    scored = seqpipe("evaluate", example.bundle, "--device", "cpu", "--json")
    assert json.loads(scored.out)["test"] == example.scores
    accuracy = example.scores["masked_accuracy"]
    assert 0.6 < accuracy <= 1
    parity = json.loads((example.bundle / "bundle.json").read_text())["parity"]
    assert parity["pytorch"] == parity["onnxruntime"] == accuracy
    lines = (example.run / "checkpoints/metrics.jsonl").read_text().splitlines()
    perplexities = [json.loads(line)["dev"]["perplexity"] for line in lines]
    assert perplexities[-1] < 2.5 < perplexities[0]


def test_a_run_and_its_bundle_prefer_the_same_of_minimal_pairs(example: Example, tmp_path: Path) -> None:
    places = [tuple(record["text"].split()[i] for i in (3, 6)) for record in cities(200, 1)]
    start = "the city of {} is in {} ."
    pairs: list[dict[str, Any]] = [
        {"sentence_good": start.format(*right), "sentence_bad": start.format(right[0], wrong[1])}
        for right, wrong in itertools.permutations(dict.fromkeys(places), 2)
    ]
    pairs.append({"text": "the city of Rome is in [MASK] .", "alternatives": ["Peru", "Italy", "Norway"], "answer": 1})
    pairs.append({"sentence_good": start.format("Rome", "Peru"), "sentence_bad": start.format("Rome", "Atlantis")})
    write_jsonl(tmp_path / "pairs.jsonl", pairs)
    flags = ("pairs.jsonl", "--device", "cpu", "--json", "--errors", "wrong.jsonl")
    scores, wrong = [], []
    for target in (example.run, example.bundle):
        done = seqpipe("minimal-pairs", target, *flags, folder=tmp_path)
        assert "1 of 14 have words that the model does not know, such as 'Atlantis'" in done.err
        scores.append(json.loads(done.out)["pairs.jsonl"])
        wrong.append([json.loads(line) for line in (tmp_path / "wrong.jsonl").read_text().splitlines()])
    assert scores[0]["accuracy"] == scores[1]["accuracy"] == 1 - len(wrong[0]) / 14 >= 12 / 14
    assert scores[0]["mean_difference"] == pytest.approx(scores[1]["mean_difference"], abs=1e-4)
    assert scores[0]["ties"] == 1
    assert [line["where"] for line in wrong[0]] == [line["where"] for line in wrong[1]]
    assert all({"scores", "difference", "sentence_good"} <= line.keys() for line in wrong[0])


def test_dev_is_measured_by_the_same_gaps_whenever_it_is(tmp_path: Path) -> None:
    config, records = load_config(masked(tmp_path)), cities(30, 5)
    artifacts = fit_artifacts(config, records)
    torch.manual_seed(1)
    network, batch = Network(config, artifacts), collate(artifacts, examples(config, artifacts, records))
    assert dev_measures(network, [batch]) == dev_measures(network, [batch])
    with torch.no_grad():
        assert network.loss(batch) != network.loss(batch)


def test_the_mask_is_the_last_token_and_no_text_of_the_data_has_a_target(tmp_path: Path) -> None:
    artifacts = fit_artifacts(load_config(masked(tmp_path)), cities(30, 1))
    assert artifacts.vocabulary[-1] == MASK
    artifacts.save(tmp_path)
    loaded = Artifacts.load(tmp_path)
    assert loaded.vocabulary == artifacts.vocabulary
    (doc,) = loaded.featurizer.docs([{"text": "in[MASK] ."}])
    assert doc.words == ["in", MASK, "."]
    assert doc.ids[1] == len(artifacts.vocabulary) - 1
    assert loaded.kind.manifest() == artifacts.kind.manifest()


CHARS = {"embedding": [{"use": "lookup", "dim": 8}, {"use": "char-cnn"}]}
WIDE = {"encoder": {"use": "transformer", "hidden": 32, "heads": 2}}
MISFITS: list[tuple[dict[str, Any], str]] = [
    (CHARS, "its feature 'chars' is of the uncorrupted text"),
    ({"encoder": [{"use": "transformer"}, {"use": "words"}]}, "it replaces the rows of tokens"),
    ({"head": [{"use": "mlm"}, {"use": "vector"}]}, "make it the only head, on one source"),
    ({"head": {"use": "mlm", "masked": 0.8, "random": 0.3}}, "sum to more than 1"),
    ({"head": {"use": "mlm", "next_sentence": True}}, "it needs two texts; set tokenizer.field"),
    (WIDE, "24 wide, and x 32"),
]


@pytest.mark.parametrize(("changes", "message"), MISFITS)
def test_options_that_do_not_fit_are_refused_by_check(tmp_path: Path, changes: Any, message: str) -> None:
    fail_with(2, message, "check", masked(tmp_path, **changes))


def test_pairs_of_texts_learn_which_belong_together(tmp_path: Path) -> None:
    def halves(count: int, seed: int) -> list[dict[str, Any]]:
        rows = [record["text"].split(" is ") for record in cities(count, seed)]
        return [{"text": first, "more": f"it is {second}"} for first, second in rows]

    path = masked(
        tmp_path,
        records=halves,
        counts=(600, 200, 200),
        tokenizer={"use": "words", "field": ["text", "more"]},
        encoder={"use": "lstm", "hidden": 64},
        head={"use": "mlm", "next_sentence": True, "share": 0.05, "pool": "max"},
        train=train_settings(25, 0.005, 256),
    )
    succeed("run", path, "--device", "cpu", folder=tmp_path)
    last = json.loads((tmp_path / "runs/gaps/checkpoints/metrics.jsonl").read_text().splitlines()[-1])["dev"]
    assert last["next_sentence_accuracy"] > 0.7  # of four cities a quarter of the other second texts is the same
    model = open_bundle(tmp_path / "runs/gaps/bundle", "cpu")
    answer = model({"text": "the city of Rome", "more": "it [MASK] in Italy ."})
    assert answer["generated_text"] == "the city of Rome\nit is in Italy ."


@pytest.mark.parametrize(("family", "has_mask"), [("bert", True), ("roberta", False)])
def test_a_checkpoint_keeps_its_mask_or_gets_one_at_the_end(tmp_path: Path, family: str, has_mask: bool) -> None:
    records = cities(20, 1)
    folder = checkpoint(tmp_path / "checkpoint", family, [record["text"] for record in records], most=200)
    stage = {"use": "pretrained", "checkpoint": str(folder)}
    config = load_config(masked(tmp_path, tokenizer=stage, embedding=None, encoder=stage, head={"use": "mlm"}))
    artifacts = fit_artifacts(config, records)
    assert artifacts.vocabulary.count(MASK) == 1
    assert (artifacts.vocabulary[-1] == MASK) != has_mask
    if has_mask:
        scores = score_records(predictor(Network(config, artifacts)), cities(6, 3))[""]
        assert scores["masked_accuracy"] >= 0
