"""Several sources, and rows of numbers, from the YAML to the bundle: arrays, limits, seeds, errors, and one answer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factory import QUIET, seqpipe, write_jsonl

import seqpipe as package
from seqpipe.config.dataflow import explain
from seqpipe.config.loader import Config, load, resolved
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, DataError, SeqpipeError, UsageError
from seqpipe.export.exporter import export
from seqpipe.features.document import Doc
from seqpipe.features.kinds.matrix import Matrix
from seqpipe.features.kinds.registry import feature_from
from seqpipe.features.sources import MultiSource, NumericSource, source_from
from seqpipe.runtime.model import Model
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.datasets import Batches, examples, read
from seqpipe.training.fit import fit_artifacts
from seqpipe.training.pipeline import Pipeline

COLOURS, THINGS = ("red", "green", "blue"), ("box", "ball", "cone")
TEXT = {"tokenizer": "words", "embedding": {"use": "lookup", "dim": 6}}


def records(count: int) -> list[dict[str, Any]]:
    """What is asked, a note that tells the thing, and rows of numbers that tell the colour."""
    made = []
    for i in range(count):
        colour, thing, rows = i % 3, i // 3 % 3, 1 + i % 4
        target = f"a {THINGS[thing]}" if i % 2 else f"a {COLOURS[colour]} one"
        row = [*(float(colour == one) for one in range(3)), 7.0]
        made.append(
            {"text": "what" if i % 2 else "which colour", "note": f"it is the {THINGS[thing]}"}
            | {"pixels": [[*row, i / 7 - r] for r in range(rows)], "target": target, "where": f"toy:{i + 1}"}
        )
    return made


def pipeline(folder: Path, **changes: Any) -> Config:
    for name, count in (("train", 72), ("dev", 9), ("test", 12)):
        write_jsonl(folder / f"{name}.jsonl", [{k: v for k, v in r.items() if k != "where"} for r in records(count)])
    content: dict[str, Any] = {
        "name": "several",
        "data": {"reader": "jsonl", "train": "train.jsonl", "dev": "dev.jsonl", "test": "test.jsonl"},
        "inputs": {
            "question": {**TEXT, "encoder": {"use": "gru", "hidden": 5}},
            "note": {
                "field": "note",
                **TEXT,
                "embedding": [{"use": "lookup", "dim": 4}, {"use": "char-cnn", "dim": 6}],
            },
            "image": {"field": "pixels", "embedding": {"use": "linear", "dim": 7}},
        },
        "head": {"use": "seq2seq", "hidden": 24, "embedding_dim": 8, "target_tokenizer": "words"},
        "train": {"epochs": 20, "batch_tokens": 512, "optimizer": {"use": "adamw", "lr": 0.02}, "threads": 1},
        **changes,
    }
    path = folder / "several.yaml"
    path.write_text(dump({key: one for key, one in content.items() if one is not None}))
    return load(path)


def parts(config: Config) -> tuple[Pipeline, Batches]:
    torch.manual_seed(0)
    some = read(config.data.reader, config.data.train)
    artifacts = fit_artifacts(config, some)
    return Pipeline(config, artifacts), Batches(artifacts, examples(config, artifacts, some), 512, None, 1)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of three sources, trained until it knows what each of them tells."""
    folder = tmp_path_factory.mktemp("several")
    pipeline(folder)
    done = seqpipe("run", folder / "several.yaml", "--device", "cpu", folder=folder)
    assert done.code == 0, done.err
    return folder / "runs/several/bundle"


@pytest.fixture(scope="module")
def model(several: Path) -> Model:
    return package.load(several, "cpu")


# Arrays


def test_rows_of_numbers_become_a_normalised_matrix() -> None:
    records = [{"p": [[1, 10], [3, 10]]}, {"p": [5, 10]}]
    feature = Matrix().fit(NumericSource({}, "p").docs(records))
    assert np.allclose(feature.means, [3, 10])
    assert np.allclose(feature.deviations, [np.std([1, 3, 5]), 1.0])  # a constant column is divided by 1
    made = NumericSource({"matrix": feature}, "p")
    arrays = made.collate(made.docs(records))
    assert arrays["mask"].tolist() == [[True, True], [True, False]]
    assert arrays["matrix"].dtype == np.float32
    z = 2 / np.std([1, 3, 5])
    assert np.allclose(arrays["matrix"], [[[-z, 0], [0, 0]], [[z, 0], [0, 0]]])
    assert feature_from(json.loads(json.dumps(feature.manifest()))) == feature
    assert made.axes("matrix") == ("batch_size", "sequence_length", 2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("a text", "must have rows of numbers of one length, not str; give a list of numbers"),
        ([[1, 2], [3]], "must have rows of numbers"),
        ([["a", "b"]], "must have rows of numbers"),
        ([[[1.0, 2.0]]], "must have rows of numbers"),
        ([1, float("inf")], "not finite"),
        ([1e39, 0], "not finite"),
        ([[1, 2, 3]], "has rows of 3 numbers, but the training data had 2; give 2"),
        (None, "must have rows of numbers"),
    ],
)
def test_what_is_no_matrix_is_refused_with_its_place_and_a_cure(given: Any, words: str) -> None:
    source = NumericSource({"matrix": Matrix((0.0, 0.0), (1.0, 1.0))}, "p")
    with pytest.raises(DataError, match=r"^f:7: field 'p' ") as caught:
        source.docs([{"p": given, "where": "f:7"}])
    assert words in str(caught.value)


def test_a_missing_field_is_told_with_those_that_there_are() -> None:
    with pytest.raises(DataError, match="the record has: q;"):
        NumericSource({}, "p").docs([{"q": 1, "where": "f:7"}])


def test_several_sources_have_their_names_in_front_and_a_text_of_each(tmp_path: Path) -> None:
    config = pipeline(tmp_path)
    artifacts = fit_artifacts(config, records(20))
    assert isinstance(artifacts.featurizer, MultiSource)
    docs = artifacts.featurizer.docs(records(2))
    assert docs[0].text == "which colour\nit is the box\n0"
    assert [docs[0].text[a:b] for a, b in docs[0].offsets] == ["which", "colour", "it", "is", "the", "box", "0"]
    arrays = artifacts.featurizer.collate(docs)
    assert {name: array.shape for name, array in arrays.items()} == {
        "question.ids": (2, 2),
        "question.mask": (2, 2),
        "note.ids": (2, 4),
        "note.mask": (2, 4),
        "note.chars": (2, 4, 3),
        "image.matrix": (2, 2, 5),
        "image.mask": (2, 2),
    }
    assert artifacts.featurizer.axes("note.chars") == ("batch_size", "note_sequence_length", "note_word_length")
    assert artifacts.featurizer.manifest()["image.matrix"]["axes"] == ["batch_size", "image_sequence_length", 5]


def test_what_was_learned_is_saved_and_loaded(tmp_path: Path) -> None:
    artifacts = fit_artifacts(pipeline(tmp_path), records(20))
    artifacts.save(tmp_path)
    again = Artifacts.load(tmp_path)
    assert again.featurizer.manifest() == artifacts.featurizer.manifest()
    assert again.vocabularies == artifacts.vocabularies
    assert again.counts == {name: list(counts) for name, counts in artifacts.counts.items()}
    one, other = (made.featurizer.collate(made.featurizer.docs(records(3))) for made in (artifacts, again))
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_a_record_with_an_empty_source_is_empty(tmp_path: Path) -> None:
    featurizer = fit_artifacts(pipeline(tmp_path), records(20)).featurizer
    whole, *lacking = featurizer.docs([records(1)[0] | change for change in ({}, {"note": ""}, {"pixels": []})])
    assert len(whole) == 7
    assert [len(doc) for doc in lacking] == [0, 0]


def test_texts_of_equal_length_are_as_long_as_the_first_source(tmp_path: Path) -> None:
    head = {"use": "seq2seq", "equal_length": True, "target_tokenizer": "words"}
    config, some = pipeline(tmp_path, head=head), records(6)
    some = [{**record, "target": record["text"]} for record in some]
    artifacts = fit_artifacts(config, some)
    assert len(examples(config, artifacts, some)) == 6
    with pytest.raises(DataError, match="toy:1: the text has 4 tokens and its source 2; equal_length"):
        examples(config, artifacts, [{**some[0], "target": "which colour which colour"}])


def test_a_source_that_is_neither_is_refused() -> None:
    with pytest.raises(ValueError, match="neither one name nor two"):
        source_from({"a": 3}, {}, {})
    with pytest.raises(ValueError, match="not a field of numbers"):
        source_from({"a": ["b", "c"]}, {"a.matrix": Matrix()}, {})


# Configuration


def test_the_resolved_file_reads_as_the_same_pipeline(tmp_path: Path) -> None:
    config = pipeline(tmp_path)
    path = tmp_path / "again.yaml"
    path.write_text(dump(resolved(config, tmp_path)))
    assert load(path) == config
    assert list(config.versions) == [
        *("data.reader", "inputs.question.tokenizer", "inputs.note.tokenizer", "inputs.question.embedding"),
        *("inputs.question.encoder", "inputs.note.embedding.0", "inputs.note.embedding.1", "inputs.image.embedding"),
        *("head", "head.target_tokenizer"),
    ]


def test_one_named_source_is_as_one_without_a_name(tmp_path: Path) -> None:
    config = pipeline(tmp_path, inputs={"image": {"field": "pixels", "embedding": {"use": "linear", "dim": 7}}})
    made, batches = parts(config)
    assert set(batches([0, 1])) == {"matrix", "mask", "target_ids", "target_mask"}
    assert torch.isfinite(made.loss(batches([0, 1])))


def test_the_table_of_names_tells_each_source(tmp_path: Path) -> None:
    config = pipeline(tmp_path)
    table = explain(config.inputs, config.head)
    assert "inputs.image.embedding.forward" in table
    assert any(line.startswith("sources") and "head.decide" in line for line in table.splitlines())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"head": "label"},
            "it supports one input only; use a head of tags or spans, or one with a `sources` argument",
        ),
        ({"export": {"explain": True}}, "a pipeline of several inputs has no attention weights"),
        ({"inputs": {"a": {"field": "pixels"}}}, "asks for the x of every source, and 'a' has none; add an embedding"),
        ({"inputs": {"a": {**TEXT, "embedding": "linear"}}}, "add a source for the numbers"),
        ({"inputs": {"a": {"field": "note", "embedding": "char-cnn"}}}, "this source has no tokenizer; add one"),
        ({"inputs": {"a": {"field": ["x", "y"], "embedding": "linear"}}}, "name the field of the numbers"),
    ],
)
def test_what_cannot_be_is_told_at_its_place(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pipeline(tmp_path, **changes)
    assert any(words in problem.message for problem in caught.value.problems), caught.value.problems


def test_numbers_have_no_words_to_tag_and_no_tokenizer_to_write_with(tmp_path: Path) -> None:
    inputs = {"image": {"field": "pixels", "embedding": {"use": "linear", "dim": 7}}}
    with pytest.raises(SeqpipeError, match="rows of numbers have no words"):
        fit_artifacts(pipeline(tmp_path, inputs=inputs, head={"use": "crf"}), records(20))
    head = {"use": "seq2seq", "target_tokenizer": "same"}
    with pytest.raises(ConfigError, match="same needs exactly one tokenizer of the input"):
        fit_artifacts(pipeline(tmp_path, inputs=inputs, head=head), records(20))


# Bundles


def test_it_learns_what_each_source_tells_and_answers_so_everywhere(several: Path, model: Model) -> None:
    manifest = model.manifest
    assert manifest.field == {"question": "text", "note": "note", "image": "pixels"}
    assert {*manifest.files} >= {"tokenizer.question.json", "tokenizer.note.json", "target_tokenizer.json"}
    some = records(12)
    answers = [answer["generated_text"] for answer in model(some)]
    right = sum(answer == record["target"] for answer, record in zip(answers, some, strict=True))
    assert right >= 10
    blind = [{**record, "pixels": some[(i + 1) % 12]["pixels"]} for i, record in enumerate(some)]
    assert [one["generated_text"] for one in model(blind)] != answers  # the numbers are read
    assert [one["generated_text"] for one in map(model, some)] == answers
    assert seqpipe("verify", several, "--device", "cpu").code == 0


def test_a_seed_hangs_on_all_sources(model: Model) -> None:
    some = records(12)
    drawn = model(some, seed=3, temperature=2.0)
    assert drawn == [model(record, seed=3, temperature=2.0) for record in some]
    assert drawn == model(some[::-1], seed=3, temperature=2.0)[::-1]
    moved = [{**record, "pixels": (np.array(record["pixels"]) + 1e-3).tolist()} for record in some]
    assert [one["generated_text"] for one in model(moved, seed=3, temperature=2.0)] != [
        one["generated_text"] for one in drawn
    ]


def test_predict_reads_lines_of_json(several: Path) -> None:
    lines = "".join(f"{json.dumps(record)}\n" for record in records(3))
    done = seqpipe("predict", several, "--device", "cpu", stdin=lines.encode())
    assert (done.code, len(done.out.splitlines())) == (0, 3)
    assert {"generated_text", "score"} == {*json.loads(done.out.splitlines()[0])["answer"]}
    done = seqpipe("predict", several, "--device", "cpu", "--format", "text", stdin=b"what\tit is\n")
    assert (done.code, "give lines of JSON" in done.err) == (2, True)
    done = seqpipe("predict", several, "--device", "cpu", stdin=b'{"text": "what", "note": "it", "pixels": [1]}\n')
    assert (done.code, ":1: field 'pixels' has rows of 1 numbers" in done.err) == (3, True)


def test_a_text_alone_is_no_record_of_several(model: Model) -> None:
    with pytest.raises(UsageError, match=r"'text' and 'note' and 'pixels'.*reads several sources"):
        model("what")


def test_of_several_inputs_attention_is_refused(model: Model) -> None:
    with pytest.raises(UsageError, match="reads several inputs; attention weights need a single one"):
        model.explain(records(1)[0], method="attention")


@pytest.mark.parametrize(
    ("use", "combine"),
    [
        pytest.param("seq2seq", "hierarchy", marks=pytest.mark.long),
        ("transformer-decoder", "hierarchy"),
        pytest.param("transformer-decoder", "concatenation", marks=pytest.mark.long),
    ],
)
def test_every_way_to_combine_exports_and_answers_alike(tmp_path: Path, use: str, combine: str) -> None:
    torch.set_num_threads(1)
    options = {"hidden": 16, "combine": combine} | ({"layers": 1} if use.startswith("t") else {})
    config = pipeline(tmp_path, head={"use": use, **options, "target_tokenizer": "words"})
    made, _ = parts(config)
    opened = export(made.eval(), config, records(9), tmp_path / "bundle", QUIET)  # compares, or raises ParityError
    assert opened.manifest.parity["decisions"] > 200


def test_docs_of_several_sources_know_their_parts() -> None:
    assert Doc("a", ["a"], [(0, 1)], [5]).parts == ()
