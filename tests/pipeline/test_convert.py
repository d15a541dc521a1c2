"""Converted checkpoints answer as `transformers` does: every family and task, any text, in PyTorch and as bundles."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from factory import QUIET, seqpipe
from independent import Bundle as SecondRuntime
from pretrained import decoder, rewrite, t5
from scripts import benchmark_script

from seqpipe import load as open_bundle
from seqpipe.errors import DataError, ParityError, SeqpipeError, UsageError
from seqpipe.export.parity.decisions import SCRIPTS
from seqpipe.features.document import Doc, first_tokens
from seqpipe.pipeline.convert import compare, convert, load_checkpoint
from seqpipe.training.evaluation import predictor

random_checkpoints = benchmark_script("random_checkpoints")
FAMILIES = random_checkpoints.ENCODERS
LIKE_BERT = ("distilbert", "electra")  # in their tokenizers
OTHER_TOKENIZERS = [pytest.param(name, marks=[pytest.mark.long] * (name in LIKE_BERT)) for name in FAMILIES]
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TEXTS = [
    *SCRIPTS[:-1],
    "Angela Merkel met Emmanuel Macron in Paris, on Monday.",
    "",
    "   ",
    "\n",
    " before and behind \n\n",
    "👍👍🏽 ok ☺️ 🇨🇭",
    "e\u0301te\u0301 Z\u0351\u036b naïve ﬁne ½ İstanbul",
    "word " * 300,
    "x" * 400,
    "don't, won't; can't!",
]
CLOSE = 1e-4
SINGLE, SEVERAL, NUMBER = {"num_labels": 3}, {"num_labels": 4, "problem_type": "multi_label_classification"}, 1
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes a checkpoint once: a family, the task of its head, and keys of its configuration."""
    made: dict[str, Path] = {}

    def of(family: str, task: str = "", **more: Any) -> Path:
        key = json.dumps([family, task, more])
        if key not in made:
            folder = tmp_path_factory.mktemp("checkpoint") / family
            made[key] = random_checkpoints.encoder(folder, family, task, TEXTS * 2, **more)
        return made[key]

    return of


def answers(folder: Path, inputs: list[Any], **options: Any) -> list[Any]:
    """The answers of the pipeline in PyTorch, by the code of a deployment."""
    decoding = options.pop("decoding", {})
    pipeline, config, _ = load_checkpoint(folder, **options)
    records = [{"text": text} if isinstance(text, str) else text for text in inputs]
    return [*predictor(pipeline, config).stream(records, **decoding)]


def theirs(kind: str, folder: Path, texts: list[str], **options: Any) -> list[Any]:
    """The answers of the pipeline of `transformers`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [transformers.pipeline(kind, str(folder), device="cpu")(text, **options) for text in texts]


def same_labels(ours: list[Any], expected: list[Any], threshold: float = 0.0) -> None:
    assert len(ours) == len(expected) == len(TEXTS)
    varied = set()
    for text, got, scores in zip(TEXTS, ours, expected, strict=True):
        scores = {score["label"]: score["score"] for score in scores if score["score"] >= threshold}
        assert {one["label"]: one["score"] for one in got} == pytest.approx(scores, abs=CLOSE), text
        varied.add(tuple(one["label"] for one in got))
    assert len(varied) > 1


@pytest.mark.parametrize("family", FAMILIES)
def test_labels_and_their_scores_are_those_of_transformers(make: Make, family: str) -> None:
    folder = make(family, "SequenceClassification", **SINGLE)
    expected = theirs("text-classification", folder, TEXTS, top_k=None, truncation=True)
    same_labels(answers(folder, TEXTS, decoding={"n_best": 3}), expected)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_labels_of_pairs_are_those_of_transformers(make: Make, tmp_path: Path, family: str) -> None:
    folder = make(family, "SequenceClassification", **SINGLE)
    # transformers reads a text with the pair "" as a single text.
    records = [{"text": a, "text_pair": b} for a, b in pairwise(TEXTS) if b and len(a + b) < 300]
    expected = theirs("text-classification", folder, records, top_k=None)
    convert(folder, tmp_path / "bundle", QUIET, pairs=True)
    for got, scores in zip(open_bundle(tmp_path / "bundle", "cpu")(records, n_best=3), expected, strict=True):
        assert {one["label"]: one["score"] for one in got} == pytest.approx(
            {score["label"]: score["score"] for score in scores}, abs=CLOSE
        )
    assert "--pairs needs" in refused(make(family, "QuestionAnswering"), tmp_path / "none", pairs=True)


def test_several_labels_are_those_of_probability_a_half(make: Make) -> None:
    folder = make("electra", "SequenceClassification", **SEVERAL)
    expected = theirs("text-classification", folder, TEXTS, top_k=None, truncation=True)
    same_labels(answers(folder, TEXTS), expected, 0.5)


def test_a_score_is_the_logit(make: Make) -> None:
    folder = make("distilbert", "SequenceClassification", num_labels=NUMBER, problem_type="regression")
    expected = theirs("text-classification", folder, TEXTS, truncation=True)
    for got, (score,) in zip(answers(folder, TEXTS), expected, strict=True):
        assert got["score"] == pytest.approx(score["score"], abs=CLOSE)


def places(entities: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(entity["entity_group"], entity["start"], entity["end"]) for entity in entities]


@pytest.mark.parametrize("aggregation", ["simple", "first"])
@pytest.mark.parametrize("family", OTHER_TOKENIZERS)
def test_spans_have_the_labels_and_offsets_of_transformers(make: Make, family: str, aggregation: Any) -> None:
    folder = make(family, "TokenClassification", id2label=dict(enumerate(TAGS)))
    expected = theirs("token-classification", folder, TEXTS, aggregation_strategy=aggregation)
    found = answers(folder, TEXTS, aggregation=aggregation)
    for text, ours, entities in zip(TEXTS, found, expected, strict=True):
        assert places(ours) == places(entities), text
        assert all(span["word"] == text[span["start"] : span["end"]] for span in ours)
    assert len({label for spans in found for label, *_ in places(spans)}) == 2


def test_plain_labels_are_joined_as_transformers_joins_them(make: Make) -> None:
    # Many labels, since training WordPiece breaks ties at random, and with it varies which of them are answers.
    labels = ["O", "NOUN", "I-X", "B-X", "VERB", "ADJ", "ADV", "PRON", "DET", "NUM", "PART", "CONJ"]
    folder = make("bert", "TokenClassification", id2label=dict(enumerate(labels)))
    expected = theirs("token-classification", folder, TEXTS, aggregation_strategy="simple")
    found = answers(folder, TEXTS)
    assert [places(spans) for spans in found] == [places(entities) for entities in expected]
    assert len({label for spans in found for label, *_ in places(spans)}) > 2


def test_words_are_read_as_the_text_that_blanks_make_of_them(make: Make) -> None:
    folder = make("roberta", "TokenClassification", id2label=dict(enumerate(TAGS)))
    for text in ("Ada met Bob", "Ada met " * 200 + "Bob"):
        of_text, of_words = answers(folder, [text, {"words": text.split()}])
        assert of_text == of_words


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_vectors_are_the_pooled_states(make: Make, family: str, pooling: Any) -> None:
    folder = make(family)
    tokenizer, model = (auto.from_pretrained(folder) for auto in (transformers.AutoTokenizer, transformers.AutoModel))
    for text, answer in zip(TEXTS, answers(folder, TEXTS, pooling=pooling), strict=True):
        with torch.no_grad():
            encoding = tokenizer(text, truncation=True, return_tensors="pt")
            states = model.eval()(**encoding).last_hidden_state[0]
        expected = {"mean": states.mean(0), "cls": states[0]}[pooling]
        assert np.allclose(answer["vector"], expected.numpy(), atol=CLOSE), text


def test_a_folder_of_sentence_transformers_states_its_pooling(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "sentences"
    random_checkpoints.encoder(folder, "bert", "", TEXTS)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12}))
    (folder / "1_Pooling").mkdir()
    stated = folder / "1_Pooling" / "config.json"
    stated.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}))
    cut, long = answers(folder, ["word " * 10, "word " * 300])
    assert cut == long
    assert np.linalg.norm(cut["vector"]) == pytest.approx(1)
    (plain,) = answers(make("bert"), ["word " * 2], pooling="cls")
    assert plain["vector"] != cut["vector"]
    stated.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}))
    with pytest.raises(DataError, match="pooling is cls and mean"):
        load_checkpoint(folder)
    (folder / "modules.json").write_text(json.dumps([*listed, {"path": "3", "type": "sentence_transformers.Dense"}]))
    with pytest.raises(DataError, match="the module Dense of sentence-transformers"):
        load_checkpoint(folder)


PASSAGES = [
    {"question": "Who met whom?", "context": "Angela Merkel met Emmanuel Macron in Paris on 14 July 2017."},
    {"question": "Where?", "context": " In Oslo,\n not in   Bern 👍. "},
    {"question": "Qué?", "context": "e\u0301te\u0301 Zürich naïve"},
]


@pytest.mark.parametrize("family", OTHER_TOKENIZERS)
def test_an_answer_is_the_best_span_of_the_logits_of_transformers(make: Make, family: str) -> None:
    folder = make(family, "QuestionAnswering")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    for no_answer in (False, True):
        for record, got in zip(PASSAGES, answers(folder, PASSAGES, no_answer=no_answer), strict=True):
            encoding = tokenizer(
                record["question"], record["context"], return_tensors="pt", return_offsets_mapping=True
            )
            offsets = encoding.pop("offset_mapping")[0].tolist()
            inside = [i for i, part in enumerate(encoding.sequence_ids(0)) if part == 1]
            with torch.no_grad():
                outputs = model(**encoding)
            kept = [*([0] if no_answer else []), *inside]
            starts, ends = (logits[0, kept].log_softmax(0).tolist() for logits in (outputs[0], outputs[1]))
            spans = {
                (a, b): starts[i] + ends[j]
                for i, a in enumerate(kept)
                for j, b in enumerate(kept)
                if a and i <= j < i + 30
            }
            first, last = max(spans, key=spans.__getitem__)
            log_p, text = spans[first, last], record["context"][offsets[first][0] : offsets[last][1]]
            if no_answer and starts[0] + ends[0] > log_p:
                log_p, text = starts[0] + ends[0], ""
            assert got["score"] == pytest.approx(np.exp(log_p), abs=CLOSE)
            assert got["answer"] == record["context"][got["start"] : got["end"]] == text.rstrip()


BUNDLES = [
    ("bert", "SequenceClassification", SINGLE, {}),
    ("modernbert", "TokenClassification", {"id2label": dict(enumerate(TAGS))}, {}),
    ("bert", "TokenClassification", {"id2label": dict(enumerate(TAGS))}, {"aggregation": "first"}),
    ("albert", "", {}, {"pooling": "mean"}),
    ("mpnet", "QuestionAnswering", {}, {}),
]


@pytest.mark.parametrize(
    ("family", "task", "more", "options"),
    [
        *BUNDLES[1:],  # the test of the command has the first
        *(
            pytest.param(family, task, more, options, marks=pytest.mark.long)
            for family in FAMILIES
            for _, task, more, options in BUNDLES
            if (family, task) not in [bundle[:2] for bundle in BUNDLES[1:]]
        ),
    ],
)
def test_a_bundle_answers_as_the_pipeline_does_and_is_verified(
    make: Make, tmp_path: Path, family: str, task: str, more: Any, options: Any
) -> None:
    folder, bundle = make(family, task, **more), tmp_path / "bundle"
    inputs: list[Any] = PASSAGES if task == "QuestionAnswering" else TEXTS
    convert(folder, bundle, QUIET, **options)
    model = open_bundle(bundle, "cpu")
    assert len(model.manifest.golden) > 4
    assert model.manifest.parity["decisions"] > 100
    second = SecondRuntime(bundle)
    for record, ours, expected in zip(inputs, model(inputs), answers(folder, inputs, **options), strict=True):
        assert same(ours, expected), record
        assert same(second(record), ours), record
    model.verify()
    assert "transformers" not in (bundle / "bundle.json").read_text()
    assert str(folder) not in (bundle / "bundle.json").read_text()


def same(ours: Any, expected: Any) -> bool:
    """Whether two answers are equal, but for the last digits of numbers."""
    if isinstance(ours, dict):
        return ours.keys() == expected.keys() and all(same(ours[key], expected[key]) for key in ours)
    if isinstance(ours, list):
        return len(ours) == len(expected) and all(map(same, ours, expected))
    return bool(ours == (pytest.approx(expected, abs=CLOSE) if isinstance(expected, float) else expected))


def test_the_command_makes_a_bundle_that_predicts(make: Make, tmp_path: Path) -> None:
    folder = make("bert", "SequenceClassification", **SINGLE)
    (tmp_path / "texts.txt").write_text("a fine film\n\nan awful one, really\n", encoding="utf-8")
    done = seqpipe("convert", folder, "-o", "bundle", "--texts", "texts.txt", folder=tmp_path)
    assert done.code == 0, done.err
    assert "tokens and logits of transformers on 2 texts" in done.err
    golden = open_bundle(tmp_path / "bundle").manifest.golden
    assert [example.record for example in golden] == [{"text": "a fine film"}, {"text": "an awful one, really"}]
    assert seqpipe("verify", "bundle", folder=tmp_path).code == 0
    answered = seqpipe("predict", "bundle", "--format", "jsonl", stdin=b'{"text": ""}\n', folder=tmp_path)
    (expected,) = theirs("text-classification", folder, [""])
    assert json.loads(answered.out)["answer"]["label"] == expected[0]["label"]


def test_words_of_a_conll_file_have_the_tag_of_the_span_over_their_beginning(make: Make, tmp_path: Path) -> None:
    folder = make("electra", "TokenClassification", id2label=dict(enumerate(TAGS)))
    convert(folder, tmp_path / "bundle", QUIET)
    words = ["Angela", "Merkel", "met", "Emmanuel", "Macron", "in", "Paris"]
    given = "".join(f"{word}\n" for word in words).encode()
    done = seqpipe("predict", tmp_path / "bundle", "--format", "conll", stdin=given)
    assert done.code == 0, done.err
    rows = [line.split("\t") for line in done.out.splitlines() if line]
    (spans,) = theirs("token-classification", folder, [" ".join(words)], aggregation_strategy="simple")
    assert any(" ".join(words)[span["start"] - 1 : span["start"]].isalpha() for span in spans)
    starts = [len(" ".join(words[:i])) + bool(i) for i in range(len(words))]
    covering = [[s["entity_group"] for s in spans if s["start"] <= start < s["end"]] for start in starts]
    assert [tag[2:] or "O" for _, tag in rows] == [kinds[0] if kinds else "O" for kinds in covering]


def refused(folder: Path, output: Path, **options: Any) -> str:
    with pytest.raises(SeqpipeError) as caught:
        convert(folder, output, QUIET, **options)
    assert not output.exists()
    return str(caught.value)


def test_what_cannot_be_converted_is_refused_with_the_reason(make: Make, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    assert "no such folder" in refused(tmp_path / "none", out)
    (tmp_path / "empty").mkdir()
    assert "no config.json" in refused(tmp_path / "empty", out)
    assert "has no head" in refused(make("bert"), out)

    def copy(name: str, **changes: Any) -> Path:
        folder = random_checkpoints.encoder(tmp_path / name, "bert", "SequenceClassification", TEXTS, **SINGLE)
        rewrite(folder / "config.json", **changes)
        return Path(folder)

    assert "architecture" in refused(copy("zebra", model_type="zebra"), out)
    two = {0: "a", 1: "b", 2: "a"}
    assert "the label 'a' occurs twice" in refused(copy("twice", id2label=two, label2id={"a": 0, "b": 1}), out)
    assert "3 numbers a text" in refused(copy("numbers", problem_type="regression"), out)
    left = copy("left")
    rewrite(left / "tokenizer_config.json", truncation_side="left")
    assert "cuts long texts at the left" in refused(left, out)
    bare = copy("bare")
    (bare / "model.safetensors").rename(bare / "pytorch_model.bin")
    assert "pickled (pytorch_model.bin)" in refused(bare, out)
    (bare / "pytorch_model.bin").unlink()
    assert "has no weights" in refused(bare, out)
    lost = copy("lost")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (lost / file).unlink()
    assert "tokenizer" in refused(lost, out)
    headless = copy("headless")
    make("bert").joinpath("model.safetensors").replace(headless / "model.safetensors")
    assert "the weights lack classifier" in refused(headless, out)


def test_generative_checkpoints_name_the_other_way(tmp_path: Path) -> None:
    folder = decoder(tmp_path / "gpt2", "gpt2", TEXTS)
    assert "pretrained-decoder" in refused(folder, tmp_path / "bundle")
    folder = t5(tmp_path / "t5", "1.1", TEXTS)
    assert "pretrained-seq2seq" in refused(folder, tmp_path / "bundle")


def test_a_family_that_was_never_tried_is_refused_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "roformer"
    random_checkpoints.encoder(folder, "bert", "SequenceClassification", TEXTS)
    config = transformers.RoFormerConfig(
        vocab_size=400, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48
    )
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    assert "roformer is not one of the encoders that can be converted" in refused(folder, tmp_path / "bundle")


def test_other_logits_than_those_of_transformers_are_an_error(make: Make) -> None:
    pipeline, _, reference = load_checkpoint(make("bert", "SequenceClassification", **SINGLE))
    records = [{"text": text} for text in TEXTS]
    assert compare(pipeline, reference, records)[0] == len(records)
    with torch.no_grad():
        reference.model.classifier.bias.add_(0.01)
    with pytest.raises(ParityError, match="logits differ by"):
        compare(pipeline, reference, records)
    with pytest.raises(ParityError, match="has other tokens"):
        compare(pipeline, reference._replace(ids=reference.ids[::-1]), records)


def test_texts_of_a_file_are_records(make: Make, tmp_path: Path) -> None:
    folder, out = make("bert", "QuestionAnswering"), tmp_path / "bundle"
    file = tmp_path / "texts.jsonl"
    file.write_text('{"question": "Who?"}\n', encoding="utf-8")
    assert "texts.jsonl:1: no field 'context'; the record has: question; rename" in refused(folder, out, texts=file)
    file.write_text("\n", encoding="utf-8")
    assert "has no text" in refused(folder, out, texts=file)
    with pytest.raises(UsageError, match="exists and is not a bundle"):
        convert(folder, tmp_path, QUIET)


def test_a_document_cut_in_a_word_ends_with_the_last_token() -> None:
    doc = Doc("ab cd", ["a", "b", "c", "d"], [(0, 1), (1, 2), (3, 4), (4, 5)], [4, 5, 6, 7], [0, 2], [(0, 2), (3, 5)])
    cut = first_tokens(doc, 3)
    assert (cut.ids, cut.starts, cut.places) == ([4, 5, 6], [0, 2], [(0, 2), (3, 4)])
    assert first_tokens(doc, 4) == doc


MINILM = Path(os.environ.get("SEQPIPE_MINILM", "/nowhere"))


@pytest.mark.long
@pytest.mark.skipif(not MINILM.is_dir(), reason="SEQPIPE_MINILM names no folder of all-MiniLM-L6-v2")
def test_the_real_minilm_is_a_verified_bundle(tmp_path: Path) -> None:
    convert(MINILM, tmp_path / "bundle", QUIET).verify()
    tokenizer, model = (auto.from_pretrained(MINILM) for auto in (transformers.AutoTokenizer, transformers.AutoModel))
    texts = [text for text in TEXTS if text.strip()]
    for text, answer in zip(texts, open_bundle(tmp_path / "bundle", "cpu")(texts), strict=True):
        with torch.no_grad():
            states = model(**tokenizer(text, truncation=True, max_length=256, return_tensors="pt")).last_hidden_state[0]
        expected = torch.nn.functional.normalize(states.mean(0), dim=0)
        assert np.allclose(answer["vector"], expected.numpy(), atol=CLOSE)
