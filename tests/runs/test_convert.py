"""Converted checkpoints answer as `transformers` does: every family and task, any text, in PyTorch and as bundles."""

import json
import os
import pickle
import re
import shutil
import struct
import sys
import types
import warnings
from collections.abc import Callable
from itertools import combinations_with_replacement, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from repository_scripts import benchmark_script
from safetensors.numpy import save_file
from second_runtime import Bundle as SecondRuntime
from tiny_checkpoints import change_json, decoder, t5
from tiny_pipelines import QUIET, seqpipe, succeed

from seqpipe import load as open_bundle
from seqpipe.errors import DataError, ParityError, SeqpipeError
from seqpipe.export.parity.decisions import SCRIPTS
from seqpipe.features.document import Doc, first_tokens
from seqpipe.runs.convert import compare_with_reference, convert_checkpoint, load_checkpoint
from seqpipe.training.evaluation import predictor

random_checkpoints = benchmark_script("random_checkpoints")
FAMILIES = random_checkpoints.ENCODERS
LIKE_BERT = ("distilbert", "electra")  # in their tokenizers
OTHER_TOKENIZERS = [pytest.param(name, marks=[pytest.mark.long] * (name in LIKE_BERT)) for name in FAMILIES]
# CamemBERT stands for the families that are like others.
ALL_FAMILIES = [
    *FAMILIES,
    *(pytest.param(name, marks=[pytest.mark.long] * (name != "camembert")) for name in random_checkpoints.LIKE),
]
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
SINGLE, SEVERAL = {"num_labels": 3}, {"num_labels": 4, "problem_type": "multi_label_classification"}
TAGGING = {"id2label": dict(enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]))}
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes a checkpoint once: a family, the task of its head, and keys of its configuration."""
    folders: dict[str, Path] = {}

    def write(family: str, task: str = "", **config: Any) -> Path:
        key = json.dumps([family, task, config])
        if key not in folders:
            folder = tmp_path_factory.mktemp("checkpoint") / family
            folders[key] = random_checkpoints.encoder(folder, family, task, TEXTS * 2, **config)
        return folders[key]

    return write


def answers(folder: Path, inputs: list[Any], decoding: Any = None, **options: Any) -> list[Any]:
    """The answers of the pipeline in PyTorch, by the code of a deployment."""
    pipeline, _ = load_checkpoint(folder, **options)
    records = [{"text": text} if isinstance(text, str) else text for text in inputs]
    return [*predictor(pipeline.network).stream(records, **(decoding or {}))]


def references(kind: str, folder: Path, texts: list[Any], **options: Any) -> list[Any]:
    """The answers of the pipeline of `transformers`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [transformers.pipeline(kind, str(folder), device="cpu")(text, **options) for text in texts]


def assert_labels(answered: list[Any], expected: list[Any], threshold: float = 0.0) -> None:
    assert len(answered) == len(expected) > 4
    for labels, scores in zip(answered, expected, strict=True):
        scores = {score["label"]: score["score"] for score in scores if score["score"] >= threshold}
        assert {label["label"]: label["score"] for label in labels} == pytest.approx(scores, abs=CLOSE)
    assert len({tuple(label["label"] for label in labels) for labels in answered}) > 1


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_labels_and_their_scores_are_those_of_transformers(make: Make, family: str) -> None:
    folder = make(family, "SequenceClassification", **SINGLE)
    expected = references("text-classification", folder, TEXTS, top_k=None, truncation=True)
    assert_labels(answers(folder, TEXTS, {"n_best": 3}), expected)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_labels_of_pairs_are_those_of_transformers(make: Make, tmp_path: Path, family: str) -> None:
    folder = make(family, "SequenceClassification", **SINGLE)
    # transformers reads a text with the pair "" as a single text.
    records = [{"text": a, "text_pair": b} for a, b in pairwise(TEXTS) if b and len(a + b) < 300]
    convert_checkpoint(folder, tmp_path / "bundle", QUIET, pairs=True)
    answered: Any = open_bundle(tmp_path / "bundle", "cpu")(records, n_best=3)
    assert_labels(answered, references("text-classification", folder, records, top_k=None))
    assert "--pairs needs" in refusal(make(family, "QuestionAnswering"), tmp_path / "none", pairs=True)


def test_several_labels_are_those_of_probability_a_half(make: Make) -> None:
    folder = make("electra", "SequenceClassification", **SEVERAL)
    expected = references("text-classification", folder, TEXTS, top_k=None, truncation=True)
    assert_labels(answers(folder, TEXTS), expected, 0.5)


def test_a_score_is_the_logit(make: Make) -> None:
    folder = make("distilbert", "SequenceClassification", num_labels=1, problem_type="regression")
    expected = [score["score"] for (score,) in references("text-classification", folder, TEXTS, truncation=True)]
    assert [answer["score"] for answer in answers(folder, TEXTS)] == pytest.approx(expected, abs=CLOSE)


def places(entities: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(entity["entity_group"], entity["start"], entity["end"]) for entity in entities]


@pytest.mark.parametrize("aggregation", ["simple", "first"])
@pytest.mark.parametrize("family", OTHER_TOKENIZERS)
def test_spans_have_the_labels_and_offsets_of_transformers(make: Make, family: str, aggregation: Any) -> None:
    folder = make(family, "TokenClassification", **TAGGING)
    expected = references("token-classification", folder, TEXTS, aggregation_strategy=aggregation)
    answered = answers(folder, TEXTS, aggregation=aggregation)
    assert [places(spans) for spans in answered] == [places(entities) for entities in expected]
    for text, spans in zip(TEXTS, answered, strict=True):
        assert all(span["word"] == text[span["start"] : span["end"]] for span in spans)
    assert len({label for spans in answered for label, *_ in places(spans)}) == 2


def test_plain_labels_are_joined_as_transformers_joins_them(make: Make) -> None:
    # Many labels, since training WordPiece breaks ties at random, and with it varies which of them are answers.
    labels = ["O", "NOUN", "I-X", "B-X", "VERB", "ADJ", "ADV", "PRON", "DET", "NUM", "PART", "CONJ"]
    folder = make("bert", "TokenClassification", id2label=dict(enumerate(labels)))
    expected = references("token-classification", folder, TEXTS, aggregation_strategy="simple")
    answered = [places(spans) for spans in answers(folder, TEXTS)]
    assert answered == [places(entities) for entities in expected]
    assert len({label for spans in answered for label, *_ in spans}) > 2


def test_words_are_read_as_the_text_that_blanks_make_of_them(make: Make) -> None:
    folder = make("roberta", "TokenClassification", **TAGGING)
    for text in ("Ada met Bob", "Ada met " * 200 + "Bob"):
        of_text, of_words = answers(folder, [text, {"words": text.split()}])
        assert of_text == of_words


def states_of(folder: Path, texts: list[str]) -> list[Any]:
    """The last hidden states of texts, by `transformers`."""
    tokenizer, model = (auto.from_pretrained(folder) for auto in (transformers.AutoTokenizer, transformers.AutoModel))
    encodings = [tokenizer(text, truncation=True, return_tensors="pt") for text in texts]
    with torch.no_grad():
        return [model.eval()(**encoding).last_hidden_state[0] for encoding in encodings]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_vectors_are_the_pooled_states(make: Make, family: str, pooling: Any) -> None:
    folder = make(family)
    states = states_of(folder, TEXTS)
    expected = [rows.mean(0) if pooling == "mean" else rows[0] for rows in states]
    for answer, vector in zip(answers(folder, TEXTS, pooling=pooling), expected, strict=True):
        assert np.allclose(answer["vector"], vector.numpy(), atol=CLOSE)


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
            texts = (record["question"], record["context"])
            encoding = tokenizer(*texts, return_tensors="pt", return_offsets_mapping=True)
            offsets = encoding.pop("offset_mapping")[0].tolist()
            inside = [i for i, part in enumerate(encoding.sequence_ids(0)) if part == 1]
            with torch.no_grad():
                outputs = model(**encoding)
            kept = [*([0] if no_answer else []), *inside]
            starts, ends = (logits[0, kept].log_softmax(0).tolist() for logits in (outputs[0], outputs[1]))
            pairs = combinations_with_replacement(range(len(kept)), 2)
            spans = {(i, j): starts[i] + ends[j] for i, j in pairs if kept[i] and j < i + 30}
            first, last = max(spans, key=spans.__getitem__)
            text = record["context"][offsets[kept[first]][0] : offsets[kept[last]][1]]
            log_p = spans[first, last]
            if no_answer and starts[0] + ends[0] > log_p:
                log_p, text = starts[0] + ends[0], ""
            assert got["score"] == pytest.approx(np.exp(log_p), abs=CLOSE)
            assert got["answer"] == record["context"][got["start"] : got["end"]] == text.rstrip()


BUNDLES = [
    ("SequenceClassification", SINGLE, {}),
    ("TokenClassification", TAGGING, {}),
    ("TokenClassification", TAGGING, {"aggregation": "first"}),
    ("", {}, {"pooling": "mean"}),
    ("QuestionAnswering", {}, {}),
]
COMMIT = zip(
    ("modernbert", "bert", "albert", "mpnet"), BUNDLES[1:], strict=True
)  # the test of the command has the first
LONG = [pytest.param(family, bundle, marks=pytest.mark.long) for family in FAMILIES for bundle in BUNDLES]


@pytest.mark.parametrize(("family", "bundle"), [*COMMIT, *LONG])
def test_a_bundle_answers_as_the_pipeline_and_is_verified(make: Make, tmp_path: Path, family: str, bundle: Any) -> None:
    task, config, options = bundle
    folder, path = make(family, task, **config), tmp_path / "bundle"
    inputs: list[Any] = PASSAGES if task == "QuestionAnswering" else TEXTS
    convert_checkpoint(folder, path, QUIET, **options)
    model, second = open_bundle(path, "cpu"), SecondRuntime(path)
    assert len(model.manifest.golden) > 4
    assert model.manifest.parity["decisions"] > 100
    for record, answer, expected in zip(inputs, model(inputs), answers(folder, inputs, **options), strict=True):
        assert same(answer, expected), record
        assert same(second(record), answer), record
    model.verify()
    manifest = (path / "bundle.json").read_text()
    assert "transformers" not in manifest
    assert str(folder) not in manifest


def same(ours: Any, expected: Any) -> bool:
    """Return if two answers are equal, but for the last digits of numbers."""
    if isinstance(ours, dict):
        return ours.keys() == expected.keys() and all(same(ours[key], expected[key]) for key in ours)
    if isinstance(ours, list):
        return len(ours) == len(expected) and all(map(same, ours, expected))
    return bool(ours == (pytest.approx(expected, abs=CLOSE) if isinstance(expected, float) else expected))


def test_the_command_makes_a_bundle_that_predicts(make: Make, tmp_path: Path) -> None:
    folder = make("bert", "SequenceClassification", **SINGLE)
    (tmp_path / "texts.txt").write_text("a fine film\n\nan awful one, really\n", encoding="utf-8")
    done = succeed("convert", folder, "-o", "bundle", "--texts", "texts.txt", folder=tmp_path)
    assert "tokens and logits of transformers on 2 texts" in done.err
    golden = open_bundle(tmp_path / "bundle").manifest.golden
    assert [example.record for example in golden] == [{"text": "a fine film"}, {"text": "an awful one, really"}]
    assert seqpipe("verify", "bundle", folder=tmp_path).code == 0
    answered = seqpipe("predict", "bundle", "--format", "jsonl", stdin=b'{"text": ""}\n', folder=tmp_path)
    (expected,) = references("text-classification", folder, [""])
    assert json.loads(answered.out)["answer"]["label"] == expected[0]["label"]


def test_words_of_a_conll_file_have_the_tag_of_the_span_over_their_beginning(make: Make, tmp_path: Path) -> None:
    folder = make("electra", "TokenClassification", **TAGGING)
    convert_checkpoint(folder, tmp_path / "bundle", QUIET)
    text = "Angela Merkel met Emmanuel Macron in Paris"
    done = succeed("predict", tmp_path / "bundle", "--format", "conll", stdin="\n".join(text.split()).encode())
    (spans,) = references("token-classification", folder, [text], aggregation_strategy="simple")
    assert any(text[span["start"] - 1 : span["start"]].isalpha() for span in spans)
    kinds = {i: span["entity_group"] for span in spans for i in range(span["start"], span["end"])}
    tags = [line.split("\t")[1] for line in done.out.splitlines() if line]
    assert [tag[2:] or "O" for tag in tags] == [kinds.get(word.start(), "O") for word in re.finditer(r"\S+", text)]


def refusal(folder: Path, output: Path, **options: Any) -> str:
    with pytest.raises(SeqpipeError) as caught:
        convert_checkpoint(folder, output, QUIET, **options)
    assert not output.exists()
    return str(caught.value)


def test_a_damaged_checkpoint_is_refused_with_the_reason(make: Make, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    assert "no such folder" in refusal(tmp_path / "none", out)
    (tmp_path / "empty").mkdir()
    assert "no config.json" in refusal(tmp_path / "empty", out)
    assert "has no head" in refusal(make("bert"), out)
    labels = {"id2label": {0: "a", 1: "b", 2: "a"}, "label2id": {"a": 0, "b": 1}}
    for number, (file, changes, message) in enumerate(
        [
            ("config.json", {"model_type": "zebra"}, "architecture"),
            ("config.json", labels, "the label 'a' occurs twice"),
            ("config.json", {"problem_type": "regression"}, "3 numbers a text"),
            ("tokenizer_config.json", {"truncation_side": "left"}, "cuts long texts at the left"),
        ]
    ):
        copy = shutil.copytree(make("bert", "SequenceClassification", **SINGLE), tmp_path / str(number))
        change_json(copy / file, **changes)
        assert message in refusal(copy, out)
    copy = shutil.copytree(make("bert", "SequenceClassification", **SINGLE), tmp_path / "copy")
    weights = copy / "model.safetensors"
    shutil.copy(make("bert") / "model.safetensors", weights)
    assert "the weights lack classifier" in refusal(copy, out)
    weights.rename(copy / "pytorch_model.bin")
    assert "pickled (pytorch_model.bin)" in refusal(copy, out)
    (copy / "pytorch_model.bin").unlink()
    assert "has no weights" in refusal(copy, out)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (copy / file).unlink()
    assert "tokenizer" in refusal(copy, out)


def copy_of(make: Make, tmp_path: Path, family: str = "bert") -> Path:
    folder = shutil.copytree(make(family, "SequenceClassification", **SINGLE), tmp_path / "checkpoint")
    (folder / "1_Pooling").mkdir()
    return folder


JSON_FILES = ["config", "tokenizer", "tokenizer_config", "special_tokens_map", "added_tokens", "generation_config"]
JSON_FILES += ["model.safetensors.index", "modules"]
SENTENCE_FILES = ["sentence_bert_config", "1_Pooling/config", "config_sentence_transformers"]
MODULES = [{"type": "models.Transformer", "path": ""}, {"type": "models.Pooling", "path": "1_Pooling"}]


@pytest.mark.parametrize("name", JSON_FILES + SENTENCE_FILES)
def test_a_json_file_of_another_form_is_refused_by_its_name(make: Make, tmp_path: Path, name: str) -> None:
    folder = copy_of(make, tmp_path)
    if name in SENTENCE_FILES:
        (folder / "modules.json").write_text(json.dumps(MODULES))
    for text in ("[1]", "null", "7", '"x"', "{", "[" * 200_000, '{"a":' * 200_000, '{"a": "\udcff"}'):
        (folder / f"{name}.json").write_bytes(text.encode(errors="surrogateescape"))
        assert f"{name}.json: " in refusal(folder, tmp_path / "bundle"), text[:10]


LONGER = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1_000}
WRONG_VALUES = [
    ("config.json", "architectures", 7, ": Input should be a valid array, not 7"),
    ("config.json", "architectures", [7], ".0: Input should be a valid string"),
    ("config.json", "id2label", ["a", "b"], ": Input should be an object"),
    ("config.json", "id2label", {"a": "b"}, ".a: String should match"),
    ("config.json", "id2label", {"0": "a", "2": "b"}, ": number the labels 0, 1, 2"),
    ("config.json", "num_labels", 10**9, ": 1,000,000,000 is not between -1 and "),
    ("config.json", "vocab_size", 10**12, ": 1,000,000,000,000 is not between -1 and "),
    ("config.json", "num_hidden_layers", 10**9, ": 1,000,000,000 is not between 0 and 100, the limits for these"),
    ("config.json", "num_hidden_layers", -1, ": -1 is not between 0 and 100"),
    ("config.json", "max_position_embeddings", 10**11, ": 100,000,000,000 is not between -1 and 16,777,216"),
    ("config.json", "hidden_size", {"vocab_size": 10**12}, ""),
    ("tokenizer.json", "model", {"vocab": {"a": 4 * 10**9}}, ".vocab.a: Input should be less than 10000000"),
    ("tokenizer.json", "normalizer", {"type": "Sequence", "normalizers": [LONGER] * 4}, "times longer in encoding"),
    ("tokenizer_config.json", "model_max_length", -5, ": Input should be greater than or equal to 3, not -5"),
]


@pytest.mark.parametrize(("file", "key", "value", "message"), WRONG_VALUES, ids=range(len(WRONG_VALUES)))
def test_a_wrong_value_of_a_checkpoint_is_refused_by_file_and_key(
    make: Make, tmp_path: Path, file: str, key: str, value: Any, message: str
) -> None:
    # transformers ignores the normalizer in the file of a BERT
    folder = copy_of(make, tmp_path, "modernbert" if key == "normalizer" else "bert")
    change_json(folder / file, **{key: value})
    place = {"normalizer": "", "hidden_size": "vocab_size"}.get(key, key)
    assert re.search(f"{file}: {place}.*{re.escape(message)}", refusal(folder, tmp_path / "bundle"))


def test_nothing_outside_of_its_folder_is_read(make: Make, tmp_path: Path) -> None:
    folder, other = copy_of(make, tmp_path), make("bert")
    (folder / "link").symlink_to(other)
    for path in ("../checkpoint/../other", str(other), "link", "1_Pooling/../.."):
        (folder / "modules.json").write_text(json.dumps([MODULES[0] | {"path": path}, MODULES[1]]))
        assert f"modules.json: 0.path: {path!r} is not in the folder" in refusal(folder, tmp_path / "bundle")
    (folder / "modules.json").unlink()
    for path in ("../model.safetensors", "/etc/model.safetensors", "pytorch_model.bin", "a\\b.safetensors"):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": path}}))
        assert "index.json: weight_map.w: " in refusal(folder, tmp_path / "bundle")
    (folder / "model.safetensors.index.json").unlink()
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")
    assert "tokenizer.json: is not a regular file" in refusal(folder, tmp_path / "bundle")


class Planted:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("loaded"),)


def test_no_pickle_is_opened(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = copy_of(make, tmp_path)
    for name in ("pytorch_model.bin", "training_args.bin", "model.pt", "head.pkl", "vocab.pkl"):
        (folder / name).write_bytes(pickle.dumps(Planted()))
    (folder / "tf_model.h5").write_bytes(b"version https://git-lfs.github.com/spec/v1\nsize 9\n")
    load_checkpoint(folder)
    weights = (folder / "model.safetensors").rename(folder / "other.safetensors")
    refusal(folder, tmp_path / "bundle")
    weights.unlink()
    assert "its weights are pickled" in refusal(folder, tmp_path / "bundle")
    assert not Path("loaded").exists()
    pickle.loads((folder / "head.pkl").read_bytes())
    assert Path("loaded").exists()


HEADERS = [
    (b"", "is cut short"),
    (struct.pack("<Q", 2**40) + b"{}", "header too large"),
    (struct.pack("<Q", 6) + b"[1, 2]", "invalid JSON in header"),
    ({"shape": [10**9, 10**9], "data_offsets": [0, 8]}, "overflow computing buffer size"),
    ({"shape": [2], "data_offsets": [0, 10**12]}, "cut short or damaged"),
    ({"shape": [2], "data_offsets": [8, 0]}, "cut short or damaged"),
    ({"shape": [-1], "data_offsets": [0, 8]}, "invalid value: integer `-1`"),
    (b"version https://git-lfs.github.com/spec/v1\nsize 9\n", "is a pointer of Git LFS, not the file itself"),
]


@pytest.mark.parametrize(("content", "message"), HEADERS, ids=range(len(HEADERS)))
def test_weights_with_a_false_header_are_refused(make: Make, tmp_path: Path, content: Any, message: str) -> None:
    folder = copy_of(make, tmp_path)
    if isinstance(content, dict):
        header = json.dumps({"a": {"dtype": "F32", **content}}).encode()
        content = struct.pack("<Q", len(header)) + header + bytes(8)
    (folder / "model.safetensors").write_bytes(content)
    assert re.search(f"model.safetensors: .*{re.escape(message)}", refusal(folder, tmp_path / "bundle"))


def other_model(folder: Path, config: Any, task: str = "SequenceClassification") -> Path:
    """A folder of a BERT whose model, of random weights, is replaced."""
    auto = getattr(transformers, f"AutoModelFor{task}") if task else transformers.AutoModel
    auto.from_config(config).save_pretrained(folder)
    return folder


SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
OTHER_MODELS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "xlnet": (
        lambda: transformers.XLNetConfig(vocab_size=400, d_model=32, n_layer=1, n_head=2, d_inner=48),
        "SequenceClassification",
        "xlnet is not a BERT-family encoder",
    ),
    "qwen2": (
        lambda: transformers.Qwen2Config(vocab_size=400, num_key_value_heads=2, **SIZES),
        "CausalLM",
        "qwen2 is not a BERT-family encoder; the encoder pretrained takes",
    ),
    "bart": (
        lambda: transformers.BartConfig(vocab_size=400, d_model=32, encoder_layers=1, decoder_layers=1),
        "SequenceClassification",
        "bart has an encoder and a decoder",
    ),
    "vit": (lambda: transformers.ViTConfig(**SIZES), "", "vit reads no texts"),
    "layoutlm": (
        lambda: transformers.LayoutLMConfig(vocab_size=400, **SIZES),
        "TokenClassification",
        "layoutlm reads bbox too",
    ),
}


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_a_checkpoint_of_another_architecture_is_refused_before_its_weights_are_read(
    make: Make, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, task, message = OTHER_MODELS[name]
    folder = shutil.copytree(make("bert", "SequenceClassification", **SINGLE), tmp_path / name)
    other_model(folder, config(), task)

    def refuse(*arguments: Any, **more: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", refuse)
    assert message in refusal(folder, tmp_path / "bundle")


def test_a_checkpoint_that_writes_text_is_refused_with_the_way_to_use_it(tmp_path: Path) -> None:
    assert "pretrained-decoder" in refusal(decoder(tmp_path / "gpt2", "gpt2", TEXTS), tmp_path / "bundle")
    assert "pretrained-seq2seq" in refusal(t5(tmp_path / "t5", "1.1", TEXTS), tmp_path / "bundle")


def test_what_is_no_checkpoint_is_refused_as_what_it_is(make: Make, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert "is a file, not the folder" in refusal(tmp_path / "model.gguf", tmp_path / "bundle")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "merge_and_unload" in refusal(tmp_path, tmp_path / "bundle")


def setfit(folder: Path, labels: Any = None, **more: Any) -> Path:
    """A folder as SetFit writes it, with a BERT of random weights; its classifier is a pickle."""
    random_checkpoints.encoder(folder, "bert", "", TEXTS)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (folder / "config_setfit.json").write_text(json.dumps({"labels": labels, **more}))
    (folder / "model_head.pkl").write_bytes(pickle.dumps({"coef": 1}))
    return folder


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("labels", [["bad", "good"], ["a", "b", "c"], None])
def test_a_classifier_of_setfit_answers_with_the_labels_of_its_logits(
    tmp_path: Path, labels: Any, normalizes: bool
) -> None:
    folder = setfit(tmp_path / "setfit", labels, normalize_embeddings=normalizes)
    names, draw = labels or ["0", "1"], np.random.default_rng(3)
    rows = 1 if len(names) == 2 else len(names)  # scikit-learn has one row for two classes
    weight, bias = draw.normal(size=(rows, 32)), draw.normal(size=rows)
    if labels:
        save_file({"weight": weight, "bias": bias}, folder / "model_head.safetensors")
    else:
        content = {"weight": weight.tolist(), "bias": bias.tolist()}
        (folder / "model_head.json").write_text(json.dumps(content))
    vectors = np.stack([rows.mean(0).numpy() for rows in states_of(folder, TEXTS)])
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalizes else vectors
    z = vectors @ weight.T + bias
    z = np.concatenate([np.zeros_like(z), z], 1) if rows == 1 else z
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    for answer, row in zip(answers(folder, TEXTS), p, strict=True):
        assert (answer["label"], answer["score"]) == (names[row.argmax()], pytest.approx(row.max(), abs=CLOSE))


def test_a_folder_of_setfit_says_how_to_write_its_classifier(tmp_path: Path) -> None:
    folder = setfit(tmp_path / "setfit", ["bad", "good"])
    message = refusal(folder, tmp_path / "bundle")
    assert "model_head.pkl is a pickle, which is not read" in message
    head = type("LogisticRegression", (), {"coef_": np.ones((1, 32)), "intercept_": np.zeros(1)})
    module: Any = types.ModuleType("setfit")
    module.SetFitModel = type(
        "SetFitModel", (), {"from_pretrained": lambda path: types.SimpleNamespace(model_head=head)}
    )
    # The lines of the message are run as they are, beside a stand-in for SetFit.
    lines = message[message.index("import setfit") :].splitlines()[:3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "setfit", module)
        exec("\n".join(lines), {})
    assert {answer["label"] for answer in answers(folder, TEXTS)} <= {"bad", "good"}
    assert "vector" in answers(folder, TEXTS[:1], pooling="mean")[0]
    (folder / "config_setfit.json").write_text(json.dumps({"labels": ["a", "b", "c"]}))
    assert "for the 3 labels" in refusal(folder, tmp_path / "bundle")
    save_file({"weight": np.ones((3, 8)), "bias": np.ones(3)}, folder / "model_head.safetensors")
    assert "is for vectors of 8 numbers, not 32" in refusal(folder, tmp_path / "bundle")


def test_built_in_pairs_longer_than_the_checkpoint_reads_are_left_out(tmp_path: Path) -> None:
    folder = random_checkpoints.encoder(
        tmp_path / "short", "bert", "SequenceClassification", TEXTS, longest=48, **SINGLE
    )
    convert_checkpoint(folder, tmp_path / "bundle", QUIET, pairs=True)
    assert (tmp_path / "bundle" / "model.onnx").is_file()


def test_other_logits_than_those_of_transformers_are_an_error(make: Make) -> None:
    pipeline, reference = load_checkpoint(make("bert", "SequenceClassification", **SINGLE))
    records = [{"text": text} for text in TEXTS]
    assert compare_with_reference(pipeline.network, reference, records)[0] == len(records)
    with torch.no_grad():
        reference.model.classifier.bias.add_(0.01)
    with pytest.raises(ParityError, match="logits differ by"):
        compare_with_reference(pipeline.network, reference, records)
    with pytest.raises(ParityError, match="has other tokens"):
        compare_with_reference(pipeline.network, reference._replace(ids=reference.ids[::-1]), records)


def test_texts_of_a_file_are_records(make: Make, tmp_path: Path) -> None:
    folder, out = make("bert", "QuestionAnswering"), tmp_path / "bundle"
    file = tmp_path / "texts.jsonl"
    file.write_text('{"question": "Who?"}\n', encoding="utf-8")
    assert "texts.jsonl:1: no field 'context'; the record has: question; rename" in refusal(folder, out, texts=file)
    file.write_text("\n", encoding="utf-8")
    assert "has no text" in refusal(folder, out, texts=file)


def test_a_document_cut_in_a_word_ends_with_the_last_token() -> None:
    doc = Doc("ab cd", ["a", "b", "c", "d"], [(0, 1), (1, 2), (3, 4), (4, 5)], [4, 5, 6, 7], [0, 2], [(0, 2), (3, 5)])
    cut = first_tokens(doc, 3)
    assert (cut.ids, cut.starts, cut.places) == ([4, 5, 6], [0, 2], [(0, 2), (3, 4)])
    assert first_tokens(doc, 4) == doc
