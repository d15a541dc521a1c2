"""Heads that generate text: search, scores and losses agree, in PyTorch and as a graph; also lengths and BLEU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
from exported_graphs import ExportedGraph, export, meta_device
from generating_heads import COPYING, KINDS, SAMPLED, V, build, output_bias, rows_of, sources, writer
from tiny_pipelines import write_seq2seq
from torch import Tensor
from torch.nn import functional as F

from seqpipe.answers.metrics import text as text_metrics
from seqpipe.answers.registry import task_of
from seqpipe.config.loader import load_config
from seqpipe.errors import ConfigError, UsageError
from seqpipe.nn.layers import BOS_ID, EOS_ID, PAD_ID
from seqpipe.nn.search import SearchOptions
from seqpipe.runtime.opened import same_answer
from seqpipe.runtime.predictor import Predictor
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.datasets import load_records
from seqpipe.training.evaluation import predictor
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.network import Network
from seqpipe_plugins.heads.copy_seq2seq import CopySeq2Seq

SIZES = ("beams", "n_best", "max_length")
AXES: Any = {"x": ("b", "t"), "mask": ("b", "t"), "state": ("b",), "copy": ("b", "t")}
AXES |= {"alpha": (), "beta": (), "ngram": (), **{name: (f"n_{name}",) for name in SIZES}}
RARELY = ("dot", "intra alone", "hard", "hard intra", "copying", "plain", *SAMPLED)  # exported
TARGET = torch.tensor([[5, 9, 4, EOS_ID], [7, EOS_ID, PAD_ID, PAD_ID]])
TARGETS = {"target_ids": TARGET, "target_mask": TARGET != PAD_ID}


def options(beams: int, n_best: int, longest: int, *numbers: float) -> dict[str, Tensor]:
    """Inputs of a graph: sizes, then length penalty, coverage penalty and the length of n-grams that do not repeat."""
    sizes = zip(SIZES, (beams, n_best, longest), strict=True)
    alpha, beta, ngram = (*numbers, *(0.0, 0.0, 0)[len(numbers) :])
    penalties = {"alpha": torch.tensor(alpha), "beta": torch.tensor(beta), "ngram": torch.tensor(int(ngram))}
    return {name: torch.zeros(size) for name, size in sizes} | penalties


def decide(head: Any, alpha: Tensor, beta: Tensor, ngram: Tensor, **source: Any) -> dict[str, Tensor]:
    sizes = {name: source.pop(name).shape[0] for name in SIZES}
    search = SearchOptions(**sizes, length_penalty=alpha, coverage_penalty=beta, no_repeat_ngram_size=ngram)
    decision = head.decide([source], options=search)
    if isinstance(head, CopySeq2Seq):
        decision |= head.explain([source], tokens=decision["tokens"])
    return decision


def export_head(path: Path, head: Any) -> ExportedGraph:
    example = sources(5, 2, 4) | options(4, 3, 7, 0.5, 0.1, 3)
    return export(path, head, lambda **inputs: decide(head, **inputs), AXES, **example)


EXPORTED = [pytest.param(kind, marks=[pytest.mark.long] if kind in RARELY else []) for kind in KINDS]


@pytest.fixture(scope="module", params=EXPORTED)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, ExportedGraph]:
    head = writer(request.param)
    return request.param, head, export_head(tmp_path_factory.mktemp("writer") / "writer.onnx", head)


CASES: dict[str, tuple[tuple[int, ...], float | None, dict[str, Tensor]]] = {
    "one token": ((4,), 0.0, options(1, 1, 1)),
    "greedy": ((5, 1, 2, *[7] * 27), 0.5, options(1, 1, 25)),
    "beams": ((3, 9, 1, 1), 1.0, options(5, 5, 25)),
    "penalties": ((2, 6, 4), 0.3, options(4, 2, 30, 0.8, 0.3)),
    "more beams than tokens": ((1, 2), 0.0, options(30, 25, 6, 0.3)),
    "an unknown word at the end": ((2, 6, 4, 1), None, options(3, 2, 12)),
    "n-grams": ((1, 31), 0.7, options(3, 1, 20, 0.0, 0.0, 2)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_graph_generates_the_same_texts(pair: tuple[str, Any, ExportedGraph], case: str) -> None:
    (kind, head, graph), (lengths, unknown, search) = pair, CASES[case]
    inputs = sources(*lengths, seed=[*CASES].index(case), unknown=unknown) | search
    with torch.no_grad():
        expected = {name: array.numpy() for name, array in decide(head, **inputs).items()}
    decision = graph(**inputs)
    assert np.array_equal(decision["tokens"], expected["tokens"])
    for name in expected.keys() - {"tokens"}:
        assert np.allclose(decision[name], expected[name], rtol=1e-4, atol=1e-4)
    if case == "greedy":  # the texts vary, or the comparison proves nothing
        tokens = expected["tokens"]
        assert len({tuple(row) for row in tokens[:, 0].tolist()}) > 11
        assert len(np.unique(tokens)) >= 9
        assert (tokens >= V).any() == (kind in COPYING)


@pytest.mark.parametrize("kind", KINDS)
def test_the_scores_of_a_decision_are_those_of_teacher_forcing(kind: str) -> None:
    head, source = writer(kind), sources(5, 3, 1, 7, 2, 2, 6, 4)
    with torch.no_grad():
        decision = head.decide([source], options=SearchOptions(beams=3, n_best=3, max_length=15))
        for k in range(3):
            scored = head.score([source], tokens=decision["tokens"][:, k : k + 1])
            assert torch.allclose(scored, decision["scores"][:, k], atol=1e-4)


def test_some_texts_end_and_others_are_as_long_as_they_may_be() -> None:
    decision = writer("additive", ending=0.0).decide([sources(*[4] * 40)], options=SearchOptions(max_length=12))
    ended = (decision["tokens"][:, 0] == EOS_ID).any(1)
    assert ended.any()
    assert not ended.all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_mean_log_probability_of_true_tokens(kind: str) -> None:
    head, source = writer(kind), sources(3, 2)
    loss = head.loss([source], **TARGETS)
    assert loss.item() == pytest.approx(-head.score([source], tokens=TARGET[:, None]).sum().item() / 6, abs=1e-4)
    garbage = torch.where(TARGET == PAD_ID, 11, TARGET)
    assert torch.allclose(head.loss([source], target_ids=garbage, target_mask=TARGET != PAD_ID), loss)
    assert not torch.allclose(head.loss([source], target_ids=garbage, target_mask=garbage != PAD_ID), loss)


@pytest.mark.parametrize("kind", KINDS)
def test_neither_the_padding_nor_other_rows_change_a_decision(kind: str) -> None:
    head, source, search = writer(kind), sources(5, 2, 7), SearchOptions(beams=3, n_best=2, max_length=12)
    polluted = {**source, "copy": torch.where(source["mask"], source["copy"], 5)}
    with torch.no_grad():
        together = head.decide([polluted], options=search)
        for b in range(3):
            alone = head.decide([rows_of(source, b)], options=search)
            assert torch.equal(alone["tokens"][0], together["tokens"][b])
            assert torch.allclose(alone["scores"][0], together["scores"][b], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_never_sees_those_behind_it(kind: str) -> None:
    head, source, ids = writer(kind), sources(4, 2), torch.randint(4, V, (2, 6))
    memory = head.read([source])
    changed = torch.cat([ids[:, :3], 4 + (ids[:, 3:] - 3) % 16], 1)
    before, after = (head.teacher_forced(memory, x, head.start(memory, [source], 6))[0] for x in (ids, changed))
    assert torch.allclose(before[:, :4], after[:, :4], atol=1e-5)
    assert not torch.allclose(before[:, 4:], after[:, 4:], atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_reaches_every_weight(kind: str) -> None:
    head = build(kind, dropout=0.3)
    head.loss([sources(4, 2)], **TARGETS).backward()
    assert [name for name, p in head.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_beginnings_are_never_generated(kind: str) -> None:
    head = writer(kind, ending=-50)
    with torch.no_grad():
        output_bias(head)[[PAD_ID, BOS_ID]] += 100
        search = SearchOptions(beams=3, n_best=3, max_length=10)
        tokens = head.decide([sources(*[3] * 20)], options=search)["tokens"]
    assert not torch.isin(tokens, torch.tensor([PAD_ID, BOS_ID])).any()


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_is_made_where_the_input_is(kind: str) -> None:
    head, source = writer(kind), sources(4, 2)
    search = SearchOptions(beams=3, n_best=2, max_length=5, length_penalty=0.5)
    with meta_device():
        decision = head.decide([source], options=search)
        decision |= head.explain([source], tokens=decision["tokens"])
        head.train().loss([source], **TARGETS).backward()
    assert {rows.device.type for rows in decision.values()} == {"cpu"}


@pytest.mark.parametrize("kind", KINDS)
def test_texts_can_be_learned(kind: str) -> None:
    torch.manual_seed(0)
    head, source = build(kind, dropout=0.0), sources(2, 3)
    optimizer = torch.optim.Adam(head.parameters(), 0.03)
    for _ in range(80):
        optimizer.zero_grad()
        head.loss([source], **TARGETS).backward()
        optimizer.step()
    decision = head.eval().decide([source], options=SearchOptions(beams=2, max_length=6))
    assert torch.equal(decision["tokens"][:, 0], F.pad(TARGET, (0, 2)))


@pytest.mark.parametrize("kind", ["additive", "pre"])
def test_smoothing_spreads_over_what_can_be_generated(kind: str) -> None:
    source, target = sources(4), torch.tensor([[5, EOS_ID]])
    targets = {"target_ids": target, "target_mask": target > 0}
    plain, smooth = writer(kind, dropout=0.0), writer(kind, dropout=0.0, label_smoothing=0.3)
    assert torch.allclose(smooth.loss([source], **targets), plain.loss([source], **targets))
    memory = plain.read([source])
    logits, _ = plain.teacher_forced(memory, target, plain.start(memory, [source], max_length=2))
    even = logits.log_softmax(2)[0][:, [1, *range(3, V)]].mean()
    losses = [head.train().loss([source], **targets).item() for head in (plain, smooth)]
    assert losses[1] == pytest.approx(0.7 * losses[0] - 0.3 * even.item(), rel=1e-5)


def test_a_text_as_long_as_its_source_ends_with_it_in_the_graph(tmp_path: Path) -> None:
    head = writer("fixed", equal_length=True)
    graph = export_head(tmp_path / "equal.onnx", head)
    for lengths, beams in (((5, 1, 8, 3), 3), ((2, 30), 1)):
        inputs = sources(*lengths) | options(beams, beams, 2)
        expected = decide(head, **inputs)["tokens"]
        assert np.array_equal(graph(**inputs)["tokens"], expected.numpy())
        assert ((expected == EOS_ID).long().argmax(2) == torch.tensor(lengths)[:, None]).all()


# Pipelines with such a head


HEADS: dict[str, dict[str, Any]] = {
    "seq2seq": {"hidden": 8, "embedding_dim": 4},
    "transformer-decoder": {"heads": 2, "layers": 1, "feedforward": 8},
    "copy-seq2seq": {},
}
TEXT_TO_TEXT = {"target": "reversed", "target_tokenizer": "same"}


def fitted(folder: Path, **head: Any) -> tuple[Any, Artifacts]:
    config = load_config(write_seq2seq(folder, {"head": TEXT_TO_TEXT | head}))
    return config, fit_artifacts(config, load_records(config.data.reader, config.data.train))


def untrained(folder: Path, head: str, **options: Any) -> Predictor:
    """A pipeline of random weights that generates texts, in PyTorch."""
    config, artifacts = fitted(folder, use=head, **HEADS[head], **options)
    torch.manual_seed(1)
    return predictor(Network(config, artifacts))


@pytest.mark.parametrize("head", ["seq2seq", "transformer-decoder"])
def test_a_text_of_equal_length_is_as_long_as_its_source_sampled_too(head: str, tmp_path: Path) -> None:
    model = untrained(tmp_path, head, equal_length=True)
    texts = ["ab" * 55, "c", "", "fade"]  # the first is longer than max_length would be
    records = [{"text": text} for text in texts]
    for search in ({}, {"beams": 3}, {"seed": 4}):
        answers = model.stream(records, forbidden=["[UNK]"], **search)  # it would make the text shorter
        assert [len(answer["generated_text"]) for answer in answers] == [len(text) for text in texts]
    sampled = [*model.stream(records, seed=4, beams=2)]
    alone = [next(model.stream([record], seed=4, beams=2)) for record in records]
    assert same_answer(sampled, alone, 1e-5)
    assert len({str(texts) for texts in sampled}) == len(records)


@pytest.mark.parametrize("head", ["seq2seq", "transformer-decoder"])
def test_lengths_are_no_options_of_a_head_whose_source_determines_them(head: str, tmp_path: Path) -> None:
    model, plain = untrained(tmp_path, head, equal_length=True), untrained(tmp_path, head)
    assert {*plain.options} - {*model.options} == {"max_length", "min_length", "allowed"}
    for name in ("max_length", "min_length"):
        with pytest.raises(UsageError, match=f"no decode option '{name}'"):
            [*model.stream([{"text": "abc"}], **{name: 2})]
    assert {*untrained(tmp_path, "seq2seq").options} == {*plain.options}


@pytest.mark.parametrize("head", HEADS)
def test_the_tokenizer_of_bleu_is_part_of_the_answer_that_a_bundle_states(head: str, tmp_path: Path) -> None:
    assert "bleu_tokenize" not in fitted(tmp_path, use=head)[1].tasks[0].answer
    task = fitted(tmp_path, use=head, bleu_tokenize="none")[1].tasks[0]
    assert task.answer["bleu_tokenize"] == "none"
    counts = task_of(task.kind).counter()
    counts.add("a, b c d e (f)", "a, b c d e")
    expected = sacrebleu.corpus_bleu(["a, b c d e"], [["a, b c d e (f)"]], tokenize="none").score / 100
    assert 0 < counts.result()["bleu"] == pytest.approx(expected)


def test_a_head_that_fills_spans_states_the_tokenizer_of_bleu_too(tmp_path: Path) -> None:
    config = load_config(
        write_seq2seq(tmp_path, {"head": {"use": "transformer-decoder", "spans": 0.2, "bleu_tokenize": "char"}})
    )
    artifacts = fit_artifacts(config, load_records(config.data.reader, config.data.train))
    assert artifacts.tasks[0].answer["bleu_tokenize"] == "char"


def test_an_unknown_tokenizer_of_bleu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"head\.bleu_tokenize: .*13b"):
        fitted(tmp_path, use="seq2seq", bleu_tokenize="13b")
    monkeypatch.setattr(text_metrics, "has", lambda package: package == "sacrebleu")
    with pytest.raises(ConfigError, match=r"ja-mecab needs MeCab and its dictionary: pip install 'sacrebleu\[ja\]'"):
        fitted(tmp_path, use="seq2seq", bleu_tokenize="ja-mecab")
