"""Pipelines that train without an error and learn nothing are refused or noted, at the keys that are at fault."""

from pathlib import Path
from typing import Any

import pytest
from tiny_pipelines import labelled_texts, untrained, write_pipeline

from seqpipe.config.loader import Config, load_config
from seqpipe.errors import ConfigError

GRU = {"use": "gru", "hidden": 4}
Stages = dict[str, Any]


def classifier(folder: Path, **changes: Any) -> Config:
    """The checked pipeline of a classifier of texts with other stages."""
    stages = {"tokenizer": "words", "encoder": GRU, "head": "label", **changes}
    return load_config(write_pipeline(folder, labelled_texts, "topics", (9, 3, 3), **stages))


def lookup(**options: Any) -> Stages:
    return {"use": "lookup", "dim": 4, **options}


LEAKS = [
    ({"embedding": lookup(column="label")}, "embedding.column"),
    ({"embedding": [lookup(), lookup(column="label")]}, "embedding.1.column"),
    ({"encoder": {**GRU, "initial_state": {"column": "label"}}}, "encoder.initial_state.column"),
    ({"tokenizer": {"use": "words", "field": ["text", "label"]}}, "tokenizer"),
    ({"head": {"use": "label", "target": "text"}}, "tokenizer"),
    ({"embedding": lookup(column="mood"), "head": {"use": "label", "target": "mood"}}, "embedding.column"),
    ({"embedding": lookup(column="labels"), "head": {"use": "label", "multi": True}}, "embedding.column"),
    ({"embedding": lookup(column="score"), "head": "score"}, "embedding.column"),
    ({"embedding": lookup(column="tags"), "head": "crf"}, "embedding.column"),
    ({"embedding": lookup(column="spans"), "head": "crf"}, "embedding.column"),
    (
        {"embedding": lookup(column="target"), "head": {"use": "seq2seq", "target_tokenizer": "same"}},
        "embedding.column",
    ),
    ({"embedding": lookup(column="b"), "head": ["label", {"use": "score", "target": "b"}]}, "embedding.column"),
    (
        {
            "tokenizer": {"use": "words", "field": ["text", "target"]},
            "head": {"use": "seq2seq", "target_tokenizer": "same"},
        },
        "tokenizer",
    ),
]
SOUND = [
    {"embedding": lookup(column="mood")},
    {"encoder": {**GRU, "initial_state": {"column": "mood"}}},
    {"tokenizer": {"use": "words", "field": ["text", "mood"]}},
    {"tokenizer": {"use": "words", "field": ["label", "text"]}, "head": {"use": "mlm"}},  # it has no target
    {"embedding": lookup(column="label"), "head": {"use": "label", "target": "mood"}},
    {"head": {"use": "seq2seq", "target": "text", "target_tokenizer": "same"}},  # an autoencoder
    {"embedding": {"use": "ngrams", "weighting": "nb"}, "encoder": "bag"},  # labels only weigh n-grams
]


@pytest.mark.parametrize(("changes", "key"), LEAKS, ids=[f"{key}-{i}" for i, (_, key) in enumerate(LEAKS)])
def test_a_field_that_a_head_predicts_is_no_input(tmp_path: Path, changes: Stages, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        classifier(tmp_path, **changes)
    problem = error.value.problems[0]
    assert problem.key == key
    assert problem.line > 1
    assert "line " in problem.message.partition("which head")[2]  # the other place


@pytest.mark.parametrize("changes", SOUND, ids=str)
def test_other_fields_and_a_text_that_is_written_again_are_inputs(tmp_path: Path, changes: Stages) -> None:
    assert classifier(tmp_path, **changes).notes == []


ROWLESS = [(encoder, head) for encoder in ("pyramid", "subsample", "lenet", "resnet") for head in ("crf", "tags")]


@pytest.mark.parametrize(("encoder", "head"), [*ROWLESS, ("sentences", "crf")])
def test_an_answer_for_each_word_needs_a_row_for_each_word(tmp_path: Path, encoder: str, head: str) -> None:
    message = rf"head: .*'{head}'.*: the encoder '{encoder}' \(encoder, line \d+\) replaces the words with other rows"
    with pytest.raises(ConfigError, match=message):
        classifier(tmp_path, encoder={"use": encoder}, head=head)
    with pytest.raises(ConfigError, match=r"'pyramid' \(encoder\.0, line"):
        classifier(tmp_path, encoder=["pyramid", GRU], head=head)


def test_a_bag_of_words_has_no_vector_of_a_word_and_so_no_tags(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'bag' \(encoder, line \d+\) gives all words of a text one vector"):
        classifier(tmp_path, encoder="bag", head="crf")
    assert classifier(tmp_path, encoder="bag", head="label").notes == []
    assert classifier(tmp_path, encoder=["bag", GRU], head="crf").notes == []
    assert classifier(tmp_path, encoder=["words", GRU], head="crf").notes == []


def test_an_encoder_whose_output_no_stage_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"encoder: .*'lstm'.*: head 'skip-gram' reads none of what it returns"):
        classifier(tmp_path, encoder="lstm", head="skip-gram")
    assert classifier(tmp_path, encoder=[], head="skip-gram").notes == []


ONE_TOKEN = [
    ({**GRU, "direction": "backward"}, "last"),
    ({**GRU, "direction": "forward"}, "first"),
    ({"use": "transformer", "causal": True, "heads": 2}, "first"),
    ({"use": "self-attention", "causal": True}, "first"),
    ({"use": "conv", "causal": True}, "first"),
    ([], "first"),
    ([], "last"),
]
WHOLE_TEXT = [
    (GRU, "first"),
    ({**GRU, "direction": "backward"}, "first"),
    ({**GRU, "direction": "forward"}, "last"),
    ([{"use": "conv", "causal": True}, {**GRU, "direction": "backward"}], "first"),
    ("cnn", "first"),
    ("bag", "last"),
    ([], "max"),
]


@pytest.mark.parametrize(("encoder", "pool"), ONE_TOKEN, ids=str)
def test_a_pooling_that_reads_one_word_only_is_noted(tmp_path: Path, encoder: Any, pool: str) -> None:
    (note,) = classifier(tmp_path, encoder=encoder, head={"use": "label", "pool": pool}).notes
    assert f"head: head 'label' of seqpipe-nlp: it reads only the {pool} token of a text" in note


@pytest.mark.parametrize(("encoder", "pool"), WHOLE_TEXT, ids=str)
def test_a_pooling_of_a_vector_that_depends_on_the_text_is_not_noted(tmp_path: Path, encoder: Any, pool: str) -> None:
    assert classifier(tmp_path, encoder=encoder, head={"use": "label", "pool": pool}).notes == []


SWITCHED_OFF = [
    ({"encoder": {**GRU, "dropout": 0.1}}, "dropout: it is between two layers, and layers is 1"),
    ({"encoder": {**GRU, "direction": "forward", "merge": "sum"}}, "merge: direction: forward has one state to merge"),
    ({"head": {"use": "label", "score": "bilinear"}}, "score: pool: max has no attention weights"),
    ({"head": {"use": "vector", "score": "bilinear"}}, "score: pool: mean has no attention weights"),
    ({"encoder": {"use": "bag", "activation": "tanh"}}, "activation: it is of the hidden layers"),
    ({"encoder": {**GRU, "freeze": True, "lr": 0.1}}, "encoder.lr: freeze: true switches it off"),
    ({"encoder": {"use": "bag", "lr": 0.1}}, "lr: it has no weights; delete lr"),
    ({"encoder": {"use": "words", "freeze": True}}, "freeze: it has no weights; delete freeze"),
]
SWITCHED_ON = [
    {"encoder": {"use": "bag", "activation": "tanh", "hidden": 4, "lr": 0.1}},
    {"encoder": {**GRU, "dropout": 0.1, "layers": 2}},
    {"encoder": {**GRU, "merge": "sum"}},
    {"head": {"use": "label", "pool": "attention", "score": "bilinear"}},
]


@pytest.mark.parametrize(("changes", "message"), SWITCHED_OFF, ids=str)
def test_an_option_that_another_one_switches_off_is_refused(tmp_path: Path, changes: Stages, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        untrained(classifier(tmp_path, **changes))


@pytest.mark.parametrize("changes", SWITCHED_ON, ids=str)
def test_an_option_is_built_with_the_one_that_it_needs(tmp_path: Path, changes: Stages) -> None:
    assert untrained(classifier(tmp_path, **changes))


def test_frozen_weights_that_nothing_has_learned_are_noted(tmp_path: Path) -> None:
    (note,) = classifier(tmp_path, encoder={**GRU, "freeze": True}).notes
    assert "encoder: encoder 'gru' of seqpipe-nlp: freeze: its weights are random and stay so" in note
    (tmp_path / "vectors.txt").write_text("good 1 2\nbad 3 4\n")
    stored = {"use": "vectors", "path": "vectors.txt", "freeze": True}
    assert classifier(tmp_path, embedding=stored).notes == []


@pytest.mark.parametrize("encoder", ["lenet", "resnet", "subsample"])
def test_an_encoder_of_pictures_on_vectors_of_words_is_noted(tmp_path: Path, encoder: str) -> None:
    (note,) = classifier(tmp_path, encoder=encoder).notes
    assert f"encoder: encoder '{encoder}' of seqpipe-nlp: it compares neighbouring columns" in note
    source = {"field": "image", "embedding": {"use": "image", "height": 8, "width": 8}, "encoder": encoder}
    assert classifier(tmp_path, tokenizer=None, encoder=None, inputs={"image": source}).notes == []


@pytest.mark.parametrize("encoder", ["gru", "lstm", "rnn"])
def test_a_misspelt_option_of_an_encoder_is_named_before_what_depends_on_it(tmp_path: Path, encoder: str) -> None:
    for head in ("label", "crf"):
        with pytest.raises(ConfigError, match="has no such option; did you mean 'hidden'") as error:
            classifier(tmp_path, encoder={"use": encoder, "hiden": 3}, head=head)
        assert len(error.value.problems) == 1
