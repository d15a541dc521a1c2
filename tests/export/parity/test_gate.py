"""A bundle that reads, decides or answers differently from PyTorch is not written."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiny_pipelines import QUIET
from tokenizers import Tokenizer
from trained_pipeline import Trained, trained_example

from seqpipe import Model, load
from seqpipe.answers.registry import answer_from
from seqpipe.errors import ParityError
from seqpipe.export.exporter import bundle_manifest, golden_examples
from seqpipe.export.parity import gate
from seqpipe.export.parity.answers import DualPredictor
from seqpipe.export.parity.decisions import SCRIPTS, Trials, probe_records
from seqpipe.export.parity.gate import judge_int8, verify_parity
from seqpipe.features import sources
from seqpipe.features.document import Arrays
from seqpipe.features.kinds.registry import feature_from
from seqpipe.features.kinds.text import Chars
from seqpipe.runtime import bundle
from seqpipe.runtime.decode_options import option_arrays
from seqpipe.runtime.manifest import Limits
from seqpipe.runtime.opened import same_answer
from seqpipe.runtime.session import GraphSession
from seqpipe.training import evaluation
from seqpipe.training.datasets import load_records
from seqpipe.training.evaluation import TrainedPipeline, option_table, option_trials


@pytest.fixture(scope="module")
def tags(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained_example("spans", tmp_path_factory.mktemp("tags"))


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained_example("text", tmp_path_factory.mktemp("writer"))


def refusal(trained: Trained, model: Model | None = None) -> str:
    """The reason why a bundle is refused as it is read and run now."""
    with pytest.raises(ParityError) as caught:
        verify_parity(trained.comparison(model), trained.records, QUIET)
    return str(caught.value)


def test_a_bundle_that_answers_alike_is_written_and_states_the_records_compared(tags: Trained) -> None:
    stated = load(tags.bundle, "cpu").manifest.parity
    assert stated["records"] == len(tags.records)
    assert stated["read"] == len(tags.records) + len([*probe_records(tags.network.artifacts.featurizer, 1_000)])
    assert (stated["texts"], stated["records_with_options"]) == (gate.WITH_OPTIONS["texts"], len(tags.records))


def test_records_and_texts_are_also_answered_under_other_decode_options(
    writer: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, answer_both = [], DualPredictor.answer_both

    def recorded(self: DualPredictor, records: Any, **options: Any) -> Any:
        seen.append((len(records), options))
        return answer_both(self, records, **options)

    monkeypatch.setattr(DualPredictor, "answer_both", recorded)
    monkeypatch.setattr(gate, "WITH_OPTIONS", {"records": 5, "texts": 7})
    model = writer.export("with_options")
    assert (model.manifest.parity["texts"], model.manifest.parity["records_with_options"]) == (7, 5)
    trials = Trials(model.predictor.options, option_trials(writer.network))
    assert sum(n == 12 and bool(options) for n, options in seen) == len(trials.together())
    assert model.manifest.options["max_length"]["maximum"] == 200
    assert "length_penalty" not in model.manifest.parity["without_effect"]
    monkeypatch.setattr(gate, "_matters", lambda ours, feeds, name, chosen: name != "length_penalty")
    assert writer.export("none").manifest.parity["without_effect"] == ["length_penalty"]


def test_a_bundle_takes_texts_of_a_length_that_was_seen_with_a_margin_or_what_the_yaml_says(tags: Trained) -> None:
    assert load(tags.bundle, "cpu").manifest.limits == Limits(tokens=1_000)
    artifacts = tags.network.artifacts
    docs = artifacts.featurizer.docs(load_records(tags.config.data.reader, tags.config.data.train))
    assert artifacts.longest == max(map(len, docs))
    limited = tags.changed(max_tokens=9, max_beams=7)
    for pipeline, tokens, maximum in ((tags.pipeline, 2_800, 100), (limited, 9, 7)):
        stated = bundle_manifest(pipeline, longest=700)
        assert (stated.limits, stated.options["n_best"]["maximum"]) == (Limits(tokens=tokens), maximum)


def test_a_caller_may_ask_for_a_text_of_a_length_that_was_learned_with_a_margin(
    writer: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts, size = writer.network.artifacts, {"type": "size", "minimum": 1}
    (task,) = artifacts.tasks
    records = load_records(writer.config.data.reader, writer.config.data.train)
    assert task.longest == max(len(record["reversed"]) for record in records)  # a character is a token

    def longest(pipeline: TrainedPipeline, learned: int, default: int, maximum: int | None) -> Any:
        tasks = (replace(task, longest=learned),)
        monkeypatch.setattr(writer.network, "artifacts", replace(artifacts, tasks=tasks))
        options = {"max_length": {**size, "default": default, "maximum": maximum}}
        monkeypatch.setattr(evaluation, "option_table", lambda network: options)
        return bundle_manifest(replace(pipeline), longest=700).options["max_length"]["maximum"]

    # Never more than the head itself writes, and the default in any case; without targets what is read.
    bounds: tuple[tuple[int, int | None], ...] = ((100, None), (300, 9_999), (50, 90))
    assert [longest(writer.pipeline, 60, *pair) for pair in bounds] == [240, 300, 90]
    assert longest(writer.pipeline, 0, 100, None) == 2_800
    assert longest(writer.changed(max_tokens=999), 60, 100, 9_999) == 999


def plant_tokenizer(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], Any]) -> None:
    """The runtime reads a tokenizer that is changed."""

    def loaded(content: bundle.BundleContent, name: str) -> Tokenizer:
        tokenizer = json.loads(content.files[name])
        change(tokenizer)
        return Tokenizer.from_str(json.dumps(tokenizer))

    monkeypatch.setattr(bundle, "_tokenizer", loaded)


def swap_ids(tokenizer: dict[str, Any]) -> None:
    """The two last words of the vocabulary change places."""
    ids = tokenizer["model"]["vocab"]
    first, second = sorted(ids, key=ids.get)[-2:]
    ids[first], ids[second] = ids[second], ids[first]


def rewrite_a_letter_that_no_record_has(tokenizer: dict[str, Any]) -> None:
    rewritten = {"type": "Replace", "pattern": {"String": "straße"}, "content": "rome"}
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [tokenizer["normalizer"], rewritten]}


def test_an_alphabet_that_loses_letters_is_found(tags: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(manifest: Any, tokenizers: Any) -> Any:
        feature = feature_from(manifest, tokenizers)
        return replace(feature, alphabet=feature.alphabet[:-3]) if isinstance(feature, Chars) else feature

    monkeypatch.setattr(bundle, "feature_from", short)
    assert "differently from training: its input 'chars' differs; no bundle was written" in refusal(tags)
    with pytest.raises(ParityError, match="its input 'chars' differs") as caught:
        tags.export("refused")
    assert not (tags.folder / "refused").exists()
    fault = "embedding 'char-cnn' of seqpipe-nlp: its feature 'chars' differs when read from the manifest"
    assert str(caught.value).splitlines()[1:] == [f"at fault: embedding.1: {fault}"]


@pytest.mark.parametrize("change", [swap_ids, lambda tokenizer: tokenizer.update(normalizer=None)])
def test_another_tokenizer_is_found(
    tags: Trained, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], None]
) -> None:
    plant_tokenizer(monkeypatch, change)
    assert "differently from training: its input 'ids' differs" in refusal(tags)
    fault = "at fault: the tokenizer of 'ids': its file splits texts differently from training"
    with pytest.raises(ParityError, match=f"\n{fault}"):
        tags.export("refused")


def test_a_letter_that_no_record_holds_is_found_by_a_probe(tags: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_tokenizer(monkeypatch, rewrite_a_letter_that_no_record_has)
    assert "Straße" in refusal(tags)


def test_other_offsets_are_found(tags: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    to_docs = sources.TextSource._to_docs

    def shifted(self: Any, *arguments: Any) -> Any:
        off = int(self is not tags.network.artifacts.featurizer)
        docs = to_docs(self, *arguments)
        return [replace(doc, offsets=[(a, b + off) for a, b in doc.offsets]) for doc in docs]

    monkeypatch.setattr(sources.TextSource, "_to_docs", shifted)
    assert "the offsets of its tokens differs" in refusal(tags)


def plant(monkeypatch: pytest.MonkeyPatch, change: Callable[[Arrays, Callable[[Arrays], Arrays]], Arrays]) -> None:
    """The graph's decision is changed: by its feeds and the graph as it was."""
    for method in ("run", "run_all"):
        right = getattr(GraphSession, method)
        monkeypatch.setattr(
            GraphSession, method, lambda self, feeds, right=right: change(feeds, lambda feeds: right(self, feeds))
        )


def test_one_wrong_record_is_found(tags: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    featurizer = tags.network.artifacts.featurizer
    ids = featurizer.collate([max(featurizer.docs(tags.records), key=len)])["ids"][0]

    def wrong_once(feeds: Arrays, right: Callable[[Arrays], Arrays]) -> Arrays:
        """Decide differently about the text of these ids, alone or in a batch, and about no other."""
        decision, width = right(feeds), feeds["ids"].shape[1]
        if width >= len(ids):
            same = (feeds["ids"] == np.pad(ids, (0, width - len(ids)))).all(1)
            decision["tags"] = np.where(same[:, None], 1 - decision["tags"] % 2, decision["tags"])
        return decision

    plant(monkeypatch, wrong_once)
    assert "decisions differ between PyTorch and onnxruntime (tags" in refusal(tags)


def test_answers_are_compared_not_decisions_alone(tags: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    def renaming(manifest: Any, tokenizers: Any) -> Any:
        kind = answer_from(manifest, tokenizers)
        right = kind.answers
        kind.answers = lambda docs, decision: [  # type: ignore[method-assign]
            [*row, {"entity_group": "PER", "score": 1.0, "start": 0, "end": 1}] for row in right(docs, decision)
        ]
        return kind

    monkeypatch.setattr(bundle, "answer_from", renaming)
    assert "16 of 16 records are answered differently; first" in refusal(tags)


def test_every_option_that_the_graph_ignores_is_found(
    tags: Trained, writer: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "WITH_OPTIONS", {"records": 4, "texts": 4})
    for trained in (tags, writer):
        model = load(trained.bundle, "cpu")
        for option, default in option_arrays(model.predictor.options, {}).items():
            with pytest.MonkeyPatch.context() as patch:
                plant(patch, lambda feeds, right, ignored={option: default}: right(feeds | ignored))  # type: ignore[misc]
                assert refusal(trained, model)


def test_every_option_is_tried_off_its_default(writer: Trained) -> None:
    known = option_table(writer.network)
    trials = Trials(known, option_trials(writer.network))
    tried = {name for values in trials.together() for name in values} | {*trials.alone()}
    assert {name.replace("uniform", "seed") for name in known} == tried
    alone = [(name, values) for name, trial in trials.alone().items() for values in trial]
    assert all(values[name] != known[name]["default"] for name, values in alone)
    top_p = {"type": "float", "default": 1.0, "minimum": 0.0, "maximum": 1.0}
    sampled = {"a.top_p": top_p, "a.uniform": {"type": "uniform", "default": None}}
    assert Trials(sampled, {"a.top_p": [{"a.seed": 7}]}).alone() == {"a.top_p": [{"a.seed": 7, "a.top_p": 0.5}]}
    threshold = {"type": "float", "default": -1.0, "minimum": -1.0, "maximum": 1.0}
    assert Trials({"threshold": threshold}, {}).alone() == {"threshold": [{"threshold": 0.0}]}


def test_an_option_is_tried_beside_those_that_it_declares() -> None:
    size = {"type": "size", "default": 1, "minimum": 1, "maximum": 100}
    known = {
        "beams": size,
        "groups": size,
        "length": {"type": "size", "default": 100, "minimum": 1, "maximum": None},
        "penalty": {"type": "float", "default": 0.0, "minimum": 0, "maximum": None},
    }
    declared = {
        "groups": [{"beams": 4, "groups": 2}],
        "length": [{"length": 8}],
        "penalty": [{"groups": 2}, {"beams": 5, "penalty": 0.5}, {"absent": 1}],
    }
    trials = Trials(known, declared)
    assert trials.together() == [{}, {"beams": 3, "length": 3}, {"beams": 4, "groups": 2, "length": 3}]
    assert trials.alone() == {
        "penalty": [
            {"beams": 3, "penalty": 4.0, "groups": 2},
            {"beams": 5, "penalty": 0.5},
            {"beams": 3, "penalty": 4.0, "groups": 2, "length": 100},
        ]
    }
    assert trials.with_short_texts({"beams": 2}) == {"length": 8, "beams": 2}


def test_many_records_are_read_and_a_part_of_them_that_a_seed_chooses_is_answered(
    tags: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "MOST_RECORDS", 5)
    model = tags.export("drawn")
    stated = model.manifest.parity
    assert (stated["records"], stated["read"] > len(tags.records)) == (5, True)
    assert gate.sample_records(tags.records) == gate.sample_records(tags.records)
    assert len({record["where"] for record in gate.sample_records(tags.records)}) == 5
    assert model.sha256 == load(tags.folder / "drawn", "cpu").sha256


def test_golden_examples_are_pytorchs_answers(tags: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, answer_both = tags.comparison(), DualPredictor.answer_both

    def near(self: DualPredictor, records: Any, **options: Any) -> Any:
        """The answers with scores that are near enough to be the same."""
        expected, _ = answer_both(self, records, **options)
        off = 0 if options else 1e-5
        nearly = [[span | {"score": span["score"] - off} for span in answer] if off else answer for answer in expected]
        return expected, nearly

    monkeypatch.setattr(DualPredictor, "answer_both", near)
    examples = golden_examples(ours, tags.records)
    assert any(example.answer for example in examples)
    for example in examples:
        (answer,) = ours.stream([example.record], **example.options)
        assert same_answer(answer, example.answer, 2e-6)


def test_ties_among_other_texts_and_options_allow_no_other_metric(
    tags: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_both, metrics = DualPredictor.answer_both, iter([("f1", 1.0), ("f1", 0.5)])

    def tied(self: DualPredictor, records: Any, **options: Any) -> Any:
        self.ties += 1_000 * bool(options)
        return answer_both(self, records, **options)

    monkeypatch.setattr(gate, "headline", lambda scores: next(metrics))
    monkeypatch.setattr(DualPredictor, "answer_both", tied)
    assert "f1 is 0.500000 with onnxruntime and 1.000000 with PyTorch" in refusal(tags)


def test_long_records_are_cut_to_golden_examples(tags: Trained) -> None:
    words = [word for record in tags.records for word in record["words"]]
    record = {"text": " ".join(words), "words": words, "tags": ["O"] * len(words), "where": "long:1"}
    (first, *_) = tags.export("long", [record]).manifest.golden
    assert 0 < len(tags.network.artifacts.featurizer.docs([first.record])[0]) <= 40 < len(words)
    assert load(tags.folder / "long", "cpu").verify() == []


def test_probes_hold_every_script_all_that_was_learned_and_both_sides_of_the_limit(tags: Trained) -> None:
    featurizer = tags.network.artifacts.featurizer
    probes = [*probe_records(featurizer, 500)]
    text = " ".join(record["text"] for record in probes)
    assert set("".join(SCRIPTS)) <= set(text)
    assert {*featurizer.features["chars"].names[2:]} <= set(text)
    lengths = {len(doc) for doc in featurizer.docs(probes)}
    assert {0, 500, 501} <= lengths
    assert any("words" in record for record in probes)


def changed_in(trained: Trained, share: float) -> Model:
    """A model that tags that share of words otherwise, as if int8 had changed them."""
    model, dice = load(trained.bundle, "cpu"), np.random.default_rng(1)
    run = model.run

    def changed(feeds: Arrays) -> Arrays:
        decision = run(feeds)
        moved_on = dice.random(decision["tags"].shape) < share
        return decision | {"tags": np.where(moved_on, (decision["tags"] + 1) % 3, decision["tags"])}

    model.graph.run = model.predictor.run = model.predictor.run_alone = changed  # type: ignore[method-assign]
    return model


def test_int8_is_judged_by_a_thousand_decisions_where_records_are_few(tags: Trained) -> None:
    judged = judge_int8(tags.comparison(), changed_in(tags, 0.005), tags.records)
    assert judged["compared"] >= 1_000
    assert 0.99 <= judged["agreement"] < 1
    with pytest.raises(ParityError, match=r"[\d,]+ of 1,\d+ decisions in int8 are those in fp32, and f1 is .* in int8"):
        judge_int8(tags.comparison(), changed_in(tags, 0.03), tags.records)


def test_int8_is_judged_by_the_metric_where_records_are_many(tags: Trained) -> None:
    many = tags.records * 13
    assert "agreement" not in judge_int8(tags.comparison(), changed_in(tags, 0.0), many)
    with pytest.raises(ParityError, match=r"f1 is .* in int8 and .* in fp32 on 208 records; set export\.precision"):
        judge_int8(tags.comparison(), changed_in(tags, 0.05), many)
