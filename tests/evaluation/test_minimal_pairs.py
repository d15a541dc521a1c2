"""Log-probabilities of texts and minimal pairs, against sums over logits by hand, in PyTorch and onnxruntime."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tiny_pipelines import build_parts, write_yaml
from torch.nn import functional as F

from seqpipe.api.model import Model
from seqpipe.config.loader import load_config
from seqpipe.errors import DataError, UsageError
from seqpipe.evaluation.text_scores import (
    SCORE_TIE,
    Item,
    ScoredText,
    item_of,
    pair_scores,
    read_items,
    score_items,
    text_scores,
    wrong_preferences,
)
from seqpipe.export.exporter import bundle_files, bundle_manifest
from seqpipe.export.graph import to_onnx
from seqpipe.runtime import bundle
from seqpipe.runtime.predictor import Predictor
from seqpipe.training.evaluation import TrainedPipeline, predictor
from seqpipe.training.network import Network

DATA = Path(__file__).parents[2] / "pipelines" / "data" / "minimal-pairs"
BOS, EOS, UNK = 2, 3, 1
LM: dict[str, Any] = {
    "encoder": {"use": "lstm", "hidden": 12, "direction": "forward"},
    "head": {"use": "lm", "packed": False, "tie": False},
}
MLM: dict[str, Any] = {
    "tokenizer": {"use": "wordpiece", "max_size": 60, "lowercase": True},
    "encoder": {"use": "transformer", "layers": 1, "heads": 2, "dropout": 0.0},
    "head": {"use": "mlm", "tie": True},
}


class Peer(NamedTuple):
    """An untrained model in PyTorch, and its bundle."""

    network: Network
    ours: Predictor
    model: Model

    def docs(self, text: str) -> Any:
        return self.ours.featurizer.docs([{"text": text}])[0]

    def scores(self, texts: list[str], **options: Any) -> list[float]:
        return [score.log_p for score in text_scores(self.ours, [ScoredText({"text": t}) for t in texts], **options)]


def peer(folder: Path, export: bool = True, **changes: Any) -> Peer:
    data = {"reader": {"use": "text", "unit": "line"}, "train": str(DATA / "en.train.txt")}
    content = {"data": data, "tokenizer": "words", "embedding": {"use": "lookup", "dim": 12}}
    config = load_config(write_yaml(folder, "pairs", **content | changes))
    network = build_parts(config)[0].eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)  # large enough for mistakes to show
    model: Any = None
    if export:
        pipeline = TrainedPipeline(network, config)
        files, manifest = bundle_files(pipeline, to_onnx(pipeline)), bundle_manifest(pipeline)
        model = Model(bundle.BundleContent(config.file, manifest, files), "cpu", 1)
    return Peer(network, predictor(network), model)


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Peer:
    return peer(tmp_path_factory.mktemp("causal"), **LM)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Peer:
    return peer(tmp_path_factory.mktemp("masked"), **MLM)


def items(count: int = 30) -> list[Item]:
    """Pairs, and alternatives, of each phenomenon."""
    pairs = [*read_items(DATA / "en.jsonl")]
    return pairs[:: len(pairs) // count]


def log_p(peer: Peer, ids: list[int]) -> torch.Tensor:
    """Log-probabilities (T, V) at each token, by the stages one by one."""
    tokens, head = torch.tensor([ids]), peer.network.head
    with torch.no_grad():
        names = peer.network({"ids": tokens, "mask": torch.ones_like(tokens, dtype=torch.bool)})
        if hasattr(head, "dense"):  # a masked language model
            logits = F.linear(head.norm(head.dense(names["x"])), names["table"], head.bias)
        else:
            logits = F.linear(names["x"], head.output.weight, head.output.bias)
        return (logits + head.logit_mask).log_softmax(2)[0]


def causal_by_hand(peer: Peer, ids: list[int], first: int = BOS) -> float:
    return sum(float(row[i]) for row, i in zip(log_p(peer, [first, *ids]), ids, strict=False))


def masked_by_hand(peer: Peer, doc: Any, gaps: Callable[[int], list[int]]) -> float:
    total = 0.0
    for i, number in enumerate(doc.ids):
        hidden = [gap_id(peer) if j in gaps(i) else other for j, other in enumerate(doc.ids)]
        total += float(log_p(peer, hidden)[i, number]) if number != UNK else 0.0
    return total


def gap_id(peer: Peer) -> int:
    number: int = peer.ours.featurizer.tokenizer.token_to_id("[MASK]")
    return number


def test_the_score_of_a_causal_model_is_the_sum_over_its_logits(causal: Peer, tmp_path: Path) -> None:
    texts = [text for item in items() for text in item.texts]
    expected = [causal_by_hand(causal, causal.docs(text).ids) for text in texts]
    assert causal.scores(texts) == pytest.approx(expected, abs=1e-4)
    assert causal.model.log_probability(texts) == pytest.approx(expected, abs=1e-4)
    assert causal.model.log_probability(texts[3]) == pytest.approx(expected[3], abs=1e-4)
    assert len({round(value, 3) for value in expected}) > 50
    # A model of packed texts reads the end of another text first.
    packed = peer(tmp_path, export=False, **LM | {"head": {"use": "lm", "tie": False, "context": 8}})
    text = "the kings near the girl sleep ."
    assert packed.scores([text]) == pytest.approx([causal_by_hand(packed, packed.docs(text).ids, EOS)], abs=1e-4)


def test_the_score_of_a_masked_model_is_the_pseudo_log_likelihood(masked: Peer) -> None:
    texts = [text for item in items(12) for text in item.texts] + ["the kings zzz ."]
    expected = [masked_by_hand(masked, masked.docs(text), lambda i: [i]) for text in texts]
    assert masked.scores(texts) == pytest.approx(expected, abs=1e-4)
    assert masked.model.log_probability(texts) == pytest.approx(expected, abs=1e-4)
    text = "the princesses admire themselves ."
    doc = masked.docs(text)
    ends = {i: end for a, end in zip(doc.starts, [*doc.starts[1:], len(doc)], strict=True) for i in range(a, end)}
    assert len(doc.starts) < len(doc)  # a word has several tokens; masking of words hides the rest of a word too
    by_word = masked_by_hand(masked, doc, lambda i: [*range(i, ends[i])])
    assert masked.scores([text], masking="word") == pytest.approx([by_word], abs=1e-4)
    assert masked.model.log_probability(text, masking="word") == pytest.approx(by_word, abs=1e-4)
    assert abs(by_word - masked.scores([text])[0]) > 0.01


def test_alternatives_fill_the_gap_of_a_masked_model_all_their_tokens_masked_at_once(masked: Peer) -> None:
    item = item_of({"text": "the kings see [MASK] .", "alternatives": ["themselves", "a king"], "answer": 0})
    (judged,) = score_items(masked.ours, [item])
    for text, (start, end), score in zip(item.texts, item.parts, judged.scores, strict=True):
        doc = masked.docs(text)
        inside = [i for i, (a, b) in enumerate(doc.offsets) if a >= start and b <= end]
        rows = log_p(masked, [gap_id(masked) if i in inside else number for i, number in enumerate(doc.ids)])
        assert len(inside) > 1
        assert score == pytest.approx(sum(float(rows[i, doc.ids[i]]) for i in inside), abs=1e-4)


def test_of_a_causal_model_alternatives_count_from_where_they_begin(causal: Peer) -> None:
    text, words = "the king waits because [MASK] is late .", ["he", "she"]
    item = item_of({"text": text, "alternatives": words, "answer": 0})
    (judged,), (by_token,) = score_items(causal.ours, [item]), score_items(causal.ours, [item], normalize="token")
    whole = causal.scores([text.replace("[MASK]", word) for word in words])
    assert judged.difference == pytest.approx(whole[0] - whole[1], abs=1e-4)
    assert judged.scores[0] == pytest.approx(whole[0] - causal.scores(["the king waits because"])[0], abs=1e-4)
    assert by_token.scores == pytest.approx([score / 4 for score in judged.scores])
    continued = item_of({"text": "the king ", "alternatives": ["waits", "wait"], "answer": 0})
    whole = causal.scores(["the king waits", "the king wait"])
    assert score_items(causal.ours, [continued])[0].difference == pytest.approx(whole[0] - whole[1], abs=1e-4)


@pytest.mark.parametrize("name", ["causal", "masked"])
def test_pairs_have_the_scores_of_pytorch_in_any_batch(name: str, request: pytest.FixtureRequest) -> None:
    sides: Peer = request.getfixturevalue(name)
    pairs, model = items(60), sides.model.predictor
    for pair, expected, result in zip(pairs, score_items(sides.ours, pairs), score_items(model, pairs), strict=True):
        assert expected.scores == pytest.approx(result.scores, abs=1e-4)
        assert result.scores == pytest.approx(score_items(model, [pair])[0].scores, abs=1e-5)


def test_a_filling_that_is_given_has_its_own_probability_and_others_stay_as_they_were(masked: Peer) -> None:
    text = "the kings [MASK] [MASK] ."
    free = masked.model(text)
    best = [masked.ours.featurizer.tokenizer.token_to_id(word) for word in free["words"]]
    forced = masked.model(text, filling=best)
    assert forced["score"] == pytest.approx(free["score"], abs=1e-5)
    assert forced["generated_text"] == free["generated_text"]
    other = masked.model(text, filling=["the", "the"], n_best=2)
    assert [answer["words"] for answer in other] == [["the", "the"]]
    assert other[0]["score"] < free["score"]
    with pytest.raises(UsageError, match="filling: 'qqqq' is not a token"):
        masked.model(text, filling=["qqqq"])


def test_a_masked_model_does_not_prefer_a_text_for_its_unknown_words(masked: Peer) -> None:
    for good, bad, comparable in (
        ("the kings sleep .", "the kings 龍龍 sleep .", False),
        ("the kings see 龍 .", "the king see 龍 .", True),
        ("the kings see 龍 .", "the kings see 虎 .", False),
    ):
        (judged,) = score_items(masked.ours, [item_of({"sentence_good": good, "sentence_bad": bad})])
        assert judged.unknown
        assert judged.is_comparable is comparable
        assert (abs(judged.difference) > SCORE_TIE) is comparable
    choice = item_of({"text": "the kings see [MASK] .", "alternatives": ["themselves", "龍"], "answer": 0})
    assert not score_items(masked.ours, [choice])[0].is_comparable


def test_scores_by_group_count_ties_and_say_what_chance_is(causal: Peer) -> None:
    same = {"sentence_good": "the zzz sleeps .", "sentence_bad": "the yyy sleeps .", "UID": "unknown"}
    pairs = [*items(), item_of(same)]
    judged = score_items(causal.ours, pairs)
    scores = pair_scores(judged)
    groups = scores["groups"]
    assert groups["unknown"] == {"accuracy": 0.0, "chance": 0.5, "mean_difference": 0.0, "ties": 1, "items": 1}
    assert groups["pronoun_gender"]["chance"] == pytest.approx(1 / 3)
    right = sum(result.difference > SCORE_TIE for result in judged)
    assert scores["accuracy"] == right / len(pairs)
    assert sum(group["items"] for group in groups.values()) == scores["items"] == len(pairs)
    assert len(wrong_preferences(judged)) == len(pairs) - right
    assert judged[-1].unknown == ("zzz", "yyy")
    terms = {"agreement", "reference", "polarity", "selection"}
    assert set(pair_scores(judged[:-1], "linguistics_term")["groups"]) == terms
    with pytest.raises(DataError, match="no field 'linguistics_term' to split by"):
        pair_scores(judged, "linguistics_term")


WRONG_PAIRS = [
    ({"sentence_good": "a"}, "needs 'sentence_good' and 'sentence_bad', or 'alternatives'"),
    ({"sentence_good": "a", "sentence_bad": "a"}, "are the same text 'a'; a pair has two"),
    ({"sentence_good": "a", "sentence_bad": " "}, "must be texts that are not empty"),
    ({"sentence_good": "a", "sentence_bad": 3}, "must be texts that are not empty"),
    ({"alternatives": "ab", "answer": 0}, "'alternatives' must be a list of texts, not str"),
    ({"alternatives": ["a"], "answer": 0}, "two or more texts that differ"),
    ({"alternatives": ["a", "b", "a"], "answer": 0}, "two or more texts that differ"),
    ({"alternatives": ["a", "b"], "answer": 2}, "'answer' must be the position of the right one, 0 to 1, not 2"),
    ({"alternatives": ["a", "b"], "answer": True}, "0 to 1, not True"),
    ({"text": "[MASK] [MASK]", "alternatives": ["a", "b"], "answer": 0}, "with \\[MASK\\] at most once"),
]


@pytest.mark.parametrize(("record", "message"), WRONG_PAIRS)
def test_what_is_no_pair_is_refused_with_its_place(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"sentence_good": "x", "sentence_bad": "y"}\n\n' + json.dumps(record))
    with pytest.raises(DataError, match=f"pairs.jsonl:3: .*{message}"):
        [*read_items(path)]


def test_files_of_pairs_are_objects_or_tables_and_files_without_pairs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    for content, message in (("\n", "this file has no pairs"), ("a, b", ":1: this is not JSON"), ("[1]", "not list")):
        path.write_text(content)
        with pytest.raises(DataError, match=message):
            [*read_items(path)]
    with pytest.raises(DataError, match="there is no such file"):
        [*read_items(tmp_path / "absent.jsonl")]
    table = tmp_path / "pairs.tsv"
    table.write_text("sentence_good\tsentence_bad\tUID\nthe king sleeps .\tthe king sleep .\tagreement\n")
    (item,) = read_items(table)
    assert item.texts == ("the king sleeps .", "the king sleep .")
    assert item.record["UID"] == "agreement"


def test_texts_and_models_without_a_score_are_refused(masked: Peer, causal: Peer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"contains \[MASK\]; a text to score must have no gap"):
        masked.scores(["the [MASK] sleeps ."])
    with pytest.raises(DataError, match="has no token"):
        causal.scores([""])
    with pytest.raises(UsageError, match="'word' is for masked language models"):
        causal.scores(["the king sleeps ."], masking="word")
    encoder = {"use": "transformer", "causal": True, "layers": 1, "heads": 2, "positions": "learned", "longest": 4}
    short = peer(tmp_path, export=False, **LM | {"encoder": encoder})
    with pytest.raises(DataError, match=r"pairs\.jsonl:7: 6 tokens exceed the limit of"):
        [*text_scores(short.ours, [ScoredText({"text": "the king and the king .", "where": "pairs.jsonl:7"})])]
    electra = peer(tmp_path, export=False, encoder=MLM["encoder"], head={"use": "electra"})
    message = "answers of kind score give no probability of a text: use a model whose only head is a causal or"
    with pytest.raises(UsageError, match=message):
        score_items(electra.ours, items(2))


def test_words_of_a_continuation_are_explained_by_their_log_probability(causal: Peer) -> None:
    prompt, model = "the king near the girls", causal.model
    explanation = model.explain(prompt, max_length=4, faithfulness=False)
    written = explanation.answer["generated_text"].removeprefix(prompt).split()
    assert [part.label for part in explanation.attentions] == written

    def scores(prompt: str) -> list[float]:
        texts = [" ".join([prompt, *written[:n]]) for n in range(len(written) + 1)]
        return np.diff(model.log_probability(texts)).tolist()

    for i, (start, end) in enumerate(explanation.attentions[0].places):
        rest = " ".join((prompt[:start] + prompt[end:]).split())
        drops = np.subtract(scores(prompt), scores(rest))
        assert [part.weights[i] for part in explanation.attentions] == pytest.approx(drops.tolist(), abs=1e-3)
