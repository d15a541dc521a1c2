"""Several sources, and rows of numbers, from the YAML to the bundle: arrays, limits, seeds, errors, and one answer."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gallery import gallery, several_sources, train_settings, write_pipeline
from tiny_pipelines import QUIET, build_parts, seqpipe, train_run

import seqpipe as package
from seqpipe import load as open_bundle
from seqpipe.api.model import Model
from seqpipe.batch.files import one_record
from seqpipe.config.dataflow import names_table
from seqpipe.config.loader import Config, load_config, resolved
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, DataError, SeqpipeError, UsageError
from seqpipe.export.exporter import export_bundle
from seqpipe.features.kinds.matrix import Matrix
from seqpipe.features.sources import MultiSource, NumericSource, source_from
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.datasets import examples
from seqpipe.training.evaluation import TrainedPipeline, predictor
from seqpipe.training.fit import fit_artifacts

COLOURS, THINGS = ("red", "green", "blue"), ("box", "ball", "cone")
TEXT = {"tokenizer": "words", "embedding": {"use": "lookup", "dim": 6}}
IMAGE = {"image": {"field": "pixels", "embedding": {"use": "linear", "dim": 7}}}


def records(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """A question, a note with the name of a thing, and rows of numbers that stand for a colour."""
    rows = []
    for i in range(count):
        colour, thing = i % 3, THINGS[i // 3 % 3]
        question, target = ("what", f"a {thing}") if i % 2 else ("which colour", f"a {COLOURS[colour]} one")
        pixels = [[*np.eye(3)[colour].tolist(), 7.0, i / 7 - row] for row in range(1 + i % 4)]
        rows.append({"text": question, "note": f"it is the {thing}", "pixels": pixels, "target": target})
    return rows


def pipeline(folder: Path, **changes: Any) -> Config:
    both = [{"use": "lookup", "dim": 4}, {"use": "char-cnn", "dim": 6}]
    content: dict[str, Any] = {
        "inputs": {
            "question": {**TEXT, "encoder": {"use": "gru", "hidden": 5}},
            "note": {"field": "note", **TEXT, "embedding": both},
            **IMAGE,
        },
        "head": {"use": "seq2seq", "hidden": 24, "embedding_dim": 8, "target_tokenizer": "words"},
        "train": train_settings(20, 0.02, 512),
    }
    return load_config(write_pipeline(folder, records, "several", (72, 9, 12), **content | changes))


@pytest.fixture(scope="module")
def model() -> Model:
    return package.load(gallery("sources").bundle, "cpu")


# Arrays


def test_rows_of_numbers_become_a_normalised_matrix() -> None:
    records = [{"p": [[1, 10], [3, 10]]}, {"p": [5, 10]}]
    feature = Matrix().fit(NumericSource({}, "p").docs(records))
    assert np.allclose(feature.means, [3, 10])
    assert np.allclose(feature.deviations, [np.std([1, 3, 5]), 1.0])  # a constant column is divided by 1
    source = NumericSource({"matrix": feature}, "p")
    arrays = source.collate(source.docs(records))
    assert arrays["mask"].tolist() == [[True, True], [True, False]]
    assert arrays["matrix"].dtype == np.float32
    z = 2 / np.std([1, 3, 5])
    assert np.allclose(arrays["matrix"], [[[-z, 0], [0, 0]], [[z, 0], [0, 0]]])
    assert source.axes("matrix") == ("batch_size", "sequence_length", 2)


@pytest.mark.parametrize(
    ("value", "words"),
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
def test_other_values_than_matrices_are_refused_with_their_place_and_a_fix(value: Any, words: str) -> None:
    source = NumericSource({"matrix": Matrix(means=(0.0, 0.0), deviations=(1.0, 1.0))}, "p")
    with pytest.raises(DataError, match=r"^f:7: field 'p' ") as caught:
        source.docs([{"p": value, "where": "f:7"}])
    assert words in str(caught.value)


def test_a_missing_field_is_an_error_with_those_of_the_record() -> None:
    with pytest.raises(DataError, match="the record has: q;"):
        NumericSource({}, "p").docs([{"q": 1, "where": "f:7"}])


def test_sources_of_neither_text_nor_numbers_are_refused() -> None:
    for fields, features, message in (
        ({"a": 3}, {}, "neither one name nor two"),
        ({"a": ["b", "c"]}, {"a.matrix": Matrix()}, "not a field of numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            source_from(fields, {}, features)


def test_several_sources_have_their_names_in_front_and_a_text_of_each(tmp_path: Path) -> None:
    config = pipeline(tmp_path)
    artifacts = fit_artifacts(config, records(20))
    assert isinstance(artifacts.featurizer, MultiSource)
    docs = artifacts.featurizer.docs(records(2))
    assert docs[0].text == "which colour\nit is the box\n0"
    assert [docs[0].text[a:b] for a, b in docs[0].offsets] == ["which", "colour", "it", "is", "the", "box", "0"]
    arrays = artifacts.featurizer.collate(docs)
    shapes = {"question.ids": (2, 2), "question.mask": (2, 2), "note.ids": (2, 4), "note.mask": (2, 4)}
    shapes |= {"note.chars": (2, 4, 3), "image.matrix": (2, 2, 5), "image.mask": (2, 2)}
    assert {name: array.shape for name, array in arrays.items()} == shapes
    assert artifacts.featurizer.axes("note.chars") == ("batch_size", "note_sequence_length", "note_word_length")
    assert artifacts.featurizer.manifest()["image.matrix"]["axes"] == ["batch_size", "image_sequence_length", 5]


def test_artifacts_are_saved_and_loaded(tmp_path: Path) -> None:
    artifacts = fit_artifacts(pipeline(tmp_path), records(20))
    artifacts.save(tmp_path)
    again = Artifacts.load(tmp_path)
    assert again.featurizer.manifest() == artifacts.featurizer.manifest()
    assert again.vocabularies == artifacts.vocabularies
    assert again.counts == {name: list(counts) for name, counts in artifacts.counts.items()}
    before, after = (source.collate(source.docs(records(3))) for source in (artifacts.featurizer, again.featurizer))
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_record_with_an_empty_source_is_empty(tmp_path: Path) -> None:
    featurizer = fit_artifacts(pipeline(tmp_path), records(20)).featurizer
    whole, *lacking = featurizer.docs([records(1)[0] | change for change in ({}, {"note": ""}, {"pixels": []})])
    assert len(whole) == 7
    assert [len(doc) for doc in lacking] == [0, 0]


def test_texts_of_equal_length_are_as_long_as_the_first_source(tmp_path: Path) -> None:
    head = {"use": "seq2seq", "equal_length": True, "target_tokenizer": "words"}
    config, rows = pipeline(tmp_path, head=head), [{**record, "target": record["text"]} for record in records(6)]
    artifacts = fit_artifacts(config, rows)
    assert len(examples(config, artifacts, rows)) == 6
    with pytest.raises(DataError, match="toy:1: the text has 4 tokens and its source 2; equal_length"):
        examples(config, artifacts, [{**rows[0], "target": "which colour which colour", "where": "toy:1"}])


# Configuration


def test_the_resolved_file_reads_as_the_same_pipeline(tmp_path: Path) -> None:
    config = pipeline(tmp_path)
    path = tmp_path / "again.yaml"
    path.write_text(dump(resolved(config, tmp_path)))
    assert load_config(path) == config
    assert list(config.versions) == [
        *("data.reader", "inputs.question.tokenizer", "inputs.note.tokenizer", "inputs.question.embedding"),
        *("inputs.question.encoder", "inputs.note.embedding.0", "inputs.note.embedding.1", "inputs.image.embedding"),
        *("head", "head.target_tokenizer"),
    ]


def test_the_arrays_of_one_named_source_have_no_prefix(tmp_path: Path) -> None:
    pipe, batches = build_parts(pipeline(tmp_path, inputs=IMAGE))
    batch = batches([0, 1])
    assert set(batch) == {"matrix", "mask", "target_ids", "target_mask"}
    assert torch.isfinite(pipe.loss(batch))


def test_the_table_of_names_has_a_line_for_each_source(tmp_path: Path) -> None:
    config = pipeline(tmp_path)
    table = names_table(config.inputs, config.head)
    assert "inputs.image.embedding.forward" in table
    assert any(line.startswith("sources") and "head.decide" in line for line in table.splitlines())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": "label"}, "supports one input only; use a head of tags or spans, or one with a `sources` argument"),
        ({"export": {"explain": True}}, "a pipeline of several inputs has no attention weights"),
        ({"inputs": {"a": {"field": "pixels"}}}, "asks for the x of every source, and 'a' has none; add an embedding"),
        ({"inputs": {"a": {**TEXT, "embedding": "linear"}}}, "add a source for the numbers"),
        ({"inputs": {"a": {"field": ["x", "y"], "embedding": "linear"}}}, "name the field of the numbers"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pipeline(tmp_path, **changes)
    assert any(message in problem.message for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"use": "crf"}, "rows of numbers have no words"),
        ({"use": "seq2seq", "target_tokenizer": "same"}, "same needs exactly one tokenizer of the input"),
    ],
)
def test_numbers_have_neither_words_to_tag_nor_a_tokenizer(tmp_path: Path, head: dict[str, str], message: str) -> None:
    with pytest.raises(SeqpipeError, match=message):
        fit_artifacts(pipeline(tmp_path, inputs=IMAGE, head=head), records(20))


# Bundles


def test_it_learns_from_each_source(folder: Path) -> None:
    config, rows = pipeline(folder), records(12)
    trained = predictor(train_run(config).network)
    answers = texts(trained.stream(rows))
    assert sum(answer == record["target"] for answer, record in zip(answers, rows, strict=True)) >= 10
    swapped = [{**row, "pixels": rows[(i + 1) % 12]["pixels"]} for i, row in enumerate(rows)]
    assert texts(trained.stream(swapped)) != answers


def test_a_bundle_of_several_sources_answers_one_record_as_many(model: Model) -> None:
    manifest, rows = model.manifest, several_sources(12, 3)
    assert manifest.field == {"source": "text", "rows": "numbers"}
    assert {*manifest.files} >= {"tokenizer.source.json", "target_tokenizer.json"}
    assert texts(map(model, rows)) == texts(model(rows))


def texts(answers: Iterable[Any]) -> list[str]:
    return [answer["generated_text"] for answer in answers]


def test_random_samples_depend_on_the_seed_and_all_sources(model: Model) -> None:
    rows, options = several_sources(12, 3), {"seed": 3, "temperature": 2.0}
    answers = model(rows, **options)
    assert answers == [model(record, **options) for record in rows] == model(rows[::-1], **options)[::-1]
    moved = [{**record, "numbers": (np.array(record["numbers"]) + 1e-3).tolist()} for record in rows]
    assert texts(model(moved, **options)) != texts(answers)


def test_predict_reads_lines_of_json() -> None:
    lines = "".join(f"{json.dumps(record)}\n" for record in several_sources(3, 3))
    for options, stdin, code, message in (
        ((), lines, 0, ""),
        (("--format", "text"), "what\tit is\n", 2, "give lines of JSON"),
        ((), '{"text": "a", "numbers": [1]}\n', 3, ":1: field 'numbers' has rows of 1 numbers"),
    ):
        result = seqpipe("predict", gallery("sources").bundle, "--device", "cpu", *options, stdin=stdin.encode())
        assert (result.code, message in result.err) == (code, True), result.err
        answers = [{*json.loads(line)["answer"]} for line in result.out.splitlines()]
        assert answers == ([] if code else [{"generated_text", "score", "log_score"}] * 3)


def test_a_text_alone_and_attention_are_refused_for_several_inputs(model: Model) -> None:
    with pytest.raises(UsageError, match=r"'text' and 'numbers'.*reads several sources"):
        model("what")
    with pytest.raises(UsageError, match="reads several inputs; attention weights need a single one"):
        model.explain(several_sources(1, 3)[0], method="attention")


@pytest.mark.parametrize(
    ("use", "combine"),
    [
        pytest.param("seq2seq", "hierarchy", marks=pytest.mark.long),
        ("transformer-decoder", "hierarchy"),
        pytest.param("transformer-decoder", "concatenation", marks=pytest.mark.long),
    ],
)
def test_every_way_to_combine_exports_and_answers_alike(tmp_path: Path, use: str, combine: str) -> None:
    options = {"hidden": 16, "combine": combine} | ({"layers": 1} if use.startswith("t") else {})
    config = pipeline(tmp_path, head={"use": use, **options, "target_tokenizer": "words"})
    trained = TrainedPipeline(build_parts(config)[0], config)
    model = export_bundle(trained, records(9), tmp_path / "bundle", QUIET)  # or raises ParityError
    assert model.manifest.parity["decisions"] > 200


def test_one_text_of_several_fields_is_a_line_of_them() -> None:
    record = one_record(open_bundle(gallery("span").bundle, "cpu"), "who is it\tAda lives in Oslo .\n")
    assert record == {"question": "who is it", "context": "Ada lives in Oslo ."}
