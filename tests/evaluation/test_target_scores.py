"""Given texts as answers to given sources: scores of the graph against teacher-forced PyTorch, and what is refused."""

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gallery import gallery
from tiny_pipelines import build_parts, seqpipe, write_yaml

from seqpipe import DataError, Model, UsageError
from seqpipe.config.loader import load_config
from seqpipe.evaluation.text_scores import target_scores
from seqpipe.export.exporter import bundle_files, bundle_manifest
from seqpipe.export.graph import to_onnx
from seqpipe.export.parity.decisions import MAX_GAP, MAX_RELATIVE_GAP
from seqpipe.runtime import bundle
from seqpipe.runtime.predictor import Predictor
from seqpipe.training.evaluation import TrainedPipeline, predictor
from seqpipe.training.network import Network

WORDS = [f"{a}{b}" for a in "bdfgk" for b in ("a", "e", "i", "o")]
END = 3
SEQ2SEQ = {"use": "seq2seq", "hidden": 12, "embedding_dim": 8, "attention": "additive", "target_tokenizer": "words"}
STACKS: dict[str, dict[str, Any]] = {
    "seq2seq": {"encoder": {"use": "gru", "hidden": 8}, "head": SEQ2SEQ},
    "copy": {
        "encoder": {"use": "gru", "hidden": 8},
        "head": {"use": "copy-seq2seq", "hidden": 12, "target_tokenizer": "words"},
    },
    "lm": {
        "encoder": {"use": "gru", "hidden": 12, "direction": "forward"},
        "head": {"use": "lm", "packed": False, "tie": False},
    },
}


class Side(NamedTuple):
    """An untrained model in PyTorch, its predictor, and its bundle."""

    network: Network
    ours: Predictor
    model: Model

    def forced(self, source: str, text: str) -> float:
        """Log-probability of a text and its end in PyTorch, with all tokens read at once."""
        (doc,) = self.ours.featurizer.docs([{"text": source}])
        kind: Any = self.ours.kind
        (ids,) = kind.encode([text], [doc], [{}])
        features = {name: torch.from_numpy(array) for name, array in self.ours.featurizer.collate([doc]).items()}
        with torch.no_grad():
            return float(self.network.score(features, {"tokens": torch.tensor([[[*ids, END]]])})[0])


@pytest.fixture(scope="module", params=STACKS)
def side(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Side:
    folder, draw = tmp_path_factory.mktemp(request.param), random.Random(3)
    rows = [{"text": " ".join(draw.choices(WORDS, k=5))} for _ in range(60)]
    if request.param != "lm":
        rows = [{**row, "target": " ".join(reversed(row["text"].split()))} for row in rows]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"reader": {"use": "jsonl"}, "train": str(folder / "train.jsonl")}
    content = {"data": data, "tokenizer": "words", "embedding": {"use": "lookup", "dim": 8}}
    config = load_config(write_yaml(folder, "scored", **content | STACKS[request.param]))
    network = build_parts(config)[0].eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3)  # so that texts differ much
    pipeline = TrainedPipeline(network, config)
    files, manifest = bundle_files(pipeline, to_onnx(pipeline)), bundle_manifest(pipeline)
    model = Model(bundle.BundleContent(config.file, manifest, files), "cpu", 1)
    return Side(network, predictor(network), model)


def long_texts(count: int, length: int = 100) -> list[str]:
    draw = random.Random(7)
    return [" ".join(draw.choices(WORDS, k=length)) for _ in range(count)]


def test_texts_of_100_tokens_are_ordered_by_log_score_as_by_teacher_forced_pytorch(side: Side) -> None:
    source, texts = "ba de fi go", long_texts(12)
    expected = [side.forced(source, text) for text in texts]
    answers = side.model.score(source, texts)
    scores = [answer["log_score"] for answer in answers]
    assert {answer["score"] for answer in answers} == {0.0}
    assert max(expected) - min(expected) > 5
    assert np.argsort(scores).tolist() == np.argsort(expected).tolist()
    for got, score in zip(scores, expected, strict=True):
        assert abs(got - score) <= MAX_GAP + MAX_RELATIVE_GAP * abs(score)
    shorter = side.forced(source, texts[0].rpartition(" ")[0])
    assert abs(shorter - expected[0]) > 1e-3  # a score that forgets a token would be seen


def test_the_scores_of_tokens_sum_to_that_of_the_text_and_each_is_that_of_a_longer_beginning(side: Side) -> None:
    source, text = "ba de fi go", "de ba ba"
    answer = side.model.score(source, text, token_scores=True)
    assert [token["token"] for token in answer["tokens"]] == [*text.split(), "[EOS]"]
    logs = [token["log_score"] for token in answer["tokens"]]
    assert sum(logs) == pytest.approx(answer["log_score"], abs=1e-5)
    assert answer["log_score"] == pytest.approx(side.forced(source, text), abs=1e-5)
    # p(text) = p(beginning without its end) p(rest): what follows the first token depends on it.
    other = side.model.score(source, "fi ba ba", token_scores=True)["tokens"]
    assert abs(other[1]["log_score"] - logs[1]) > 1e-4


def test_a_text_has_the_score_of_the_prediction_that_writes_it_and_of_the_allowed_text(side: Side) -> None:
    source, start = "ba de", "ba de" if side.ours.kind.is_generated else ""
    several = side.model(source, beams=3, n_best=3, max_length=7, token_scores=True)
    ended = [answer for answer in several if answer["tokens"][-1]["token"] == "[EOS]"]
    for answer in ended:
        text = answer["generated_text"].removeprefix(start).strip()
        scored = side.model.score(source, text, token_scores=True)
        assert scored["log_score"] == pytest.approx(answer["log_score"], abs=1e-4)
        assert [token["token"] for token in scored["tokens"]] == [token["token"] for token in answer["tokens"]]
    text = "go go fi"
    allowed = side.model(source, allowed=[text], max_length=9)
    assert side.model.score(source, text)["log_score"] == pytest.approx(allowed["log_score"], abs=1e-4)


def test_pairs_of_any_length_in_batches_are_scored_as_alone(side: Side) -> None:
    draw = random.Random(5)
    sources = [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(40)]
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(40)]
    together = side.model.score(sources, texts)
    in_pytorch = [*target_scores(side.ours, [({"text": s}, t) for s, t in zip(sources, texts, strict=True)])]
    for source, text, answer, ours in zip(sources, texts, together, in_pytorch, strict=True):
        alone = side.model.score(source, text)
        assert alone["generated_text"] == answer["generated_text"]
        assert answer["log_score"] == pytest.approx(alone["log_score"], abs=1e-4)
        assert ours["log_score"] == pytest.approx(alone["log_score"], abs=1e-4)
    assert side.model.score(sources[:2], [texts[:2], texts[2]])[0] == side.model.score(sources[0], texts[:2])


def test_what_cannot_be_scored_is_refused_with_its_place(side: Side) -> None:
    record = {"text": "ba", "where": "pairs.jsonl:4"}
    if side.ours.kind.is_generated or not side.ours.kind.parts[""].copies:
        with pytest.raises(DataError, match=r"pairs.jsonl:4: 'ba unseen' has a word that is in neither the vocabulary"):
            side.model.score(record, "ba unseen")
    else:  # which may be copied from the source
        assert side.model.score("ba unseen", "unseen ba")["generated_text"] == "unseen ba"
    with pytest.raises(UsageError, match="score: 2 inputs need a list of as many texts"):
        side.model.score(["ba", "de"], ["ba"])
    with pytest.raises(UsageError, match="score: 1 inputs need a list of as many texts"):
        side.model.score(["ba"], "ba")
    if side.ours.kind.is_generated:  # [BOS] precedes an empty prompt
        assert side.model.score("", "ba")["log_score"] < 0
    else:
        with pytest.raises(DataError, match="record: the source has no token"):
            side.model.score("", "ba")
        with pytest.raises(UsageError, match="a text, or a list of texts, is scored, not NoneType"):
            side.model.score(["abc"], [None])


def test_the_command_scores_lines_of_source_and_text(tmp_path: Path) -> None:
    path = gallery("text").bundle
    rows = [{"text": "abc", "reversed": text, "list": [text]} for text in ("cba", "abc")]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "pairs.tsv").write_text("abc\tcba\n")
    headless = seqpipe("score", path, "-i", tmp_path / "pairs.tsv")
    assert (headless.code, "has no texts to score; a table has the names of its columns" in headless.err) == (3, True)
    piped = seqpipe("score", path, "--format", "csv", stdin=b"text,reversed\nabc,cba\n")
    assert (piped.code, "name it with --input" in piped.err) == (2, True)
    result = seqpipe("score", path, "-i", tmp_path / "pairs.jsonl", "--token-scores", "--device", "cpu")
    right, wrong = (json.loads(line) for line in result.out.splitlines())
    assert (right["text"], right["reversed"], right["answer"]["generated_text"]) == ("abc", "cba", "cba")
    assert right["answer"]["log_score"] > wrong["answer"]["log_score"] + 1
    assert [token["token"] for token in right["answer"]["tokens"]] == ["c", "b", "a", "[EOS]"]
    lines = seqpipe("score", path, "--device", "cpu", stdin=b"abc\tcba\n")
    assert json.loads(lines.out)["answer"] == {key: right["answer"][key] for key in json.loads(lines.out)["answer"]}
    for options, message in (
        (
            ("--target", "other"),
            "pairs.jsonl:1: the text 'other' to score is not there (there is: text, reversed, list)",
        ),
        (("--target", "list"), "pairs.jsonl:1: the text 'list' to score is no text; name a field of texts"),
        (("--format", "conll"), "--format conll"),
    ):
        refused = seqpipe("score", path, "-i", tmp_path / "pairs.jsonl", *options)
        assert (refused.code != 0, message in refused.err) == (True, True), refused.err
    labels = seqpipe("score", gallery("label").bundle, "--device", "cpu", stdin=b"a\tb\n")
    assert (labels.code, "answers of kind 'label' are no generated texts" in labels.err) == (2, True), labels.err
