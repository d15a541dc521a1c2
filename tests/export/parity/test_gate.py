"""Whatever a bundle reads, decides or answers otherwise than PyTorch keeps it from being written."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factory import LEAN, QUIET, parts, tiny, writing
from tokenizers import Tokenizer

from seqpipe import load
from seqpipe.answers.registry import answer_from
from seqpipe.config.loader import Config
from seqpipe.config.loader import load as load_config
from seqpipe.errors import ParityError
from seqpipe.export.exporter import bundle_manifest, export, golden_examples
from seqpipe.export.graph_cache import GraphCache
from seqpipe.export.parity import gate
from seqpipe.export.parity.answers import Comparison
from seqpipe.export.parity.decisions import SCRIPTS, Trials, probe_records
from seqpipe.export.parity.gate import judge_int8, verify_parity
from seqpipe.features.document import Arrays, Record
from seqpipe.features.kinds.registry import feature_from
from seqpipe.features.kinds.text import Chars
from seqpipe.runtime import bundle
from seqpipe.runtime.decode_options import option_arrays
from seqpipe.runtime.manifest import Limits
from seqpipe.runtime.model import Model
from seqpipe.runtime.session import GraphSession
from seqpipe.training.datasets import read
from seqpipe.training.evaluation import option_table, option_trials
from seqpipe.training.pipeline import Pipeline
from seqpipe.training.trainer import Trainer


class Trained:
    """A pipeline that has learned a little, and the records that its bundle is compared on."""

    def __init__(self, folder: Path, config: Config):
        torch.set_num_threads(1)
        self.folder, self.config = folder, config
        self.pipeline: Pipeline
        self.pipeline, batches = parts(config)
        Trainer(self.pipeline, config, batches, None, folder / "checkpoints", QUIET).train()
        self.records: list[Record] = read(config.data.reader, config.data.tests["test"])

    def export(self, name: str = "bundle") -> Model:
        cache = GraphCache(self.folder / "cache")
        return export(self.pipeline, self.config, self.records, self.folder / name, QUIET, cache=cache)

    def refused(self) -> str:
        """Why a bundle that was written is refused now, as it is read and run."""
        model = load(self.folder / "bundle", "cpu")
        with pytest.raises(ParityError) as caught:
            verify_parity(Comparison(self.pipeline, self.config, model), self.records, QUIET)
        return str(caught.value)


@pytest.fixture(scope="module")
def tags(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("tags")
    made = Trained(folder, tiny(folder, "train.epochs=6"))
    made.export()
    return made


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("writer")
    made = Trained(folder, load_config(writing(folder)))
    made.export()
    return made


def test_what_is_read_and_answered_alike_is_written_and_says_on_what(tags: Trained) -> None:
    stated = load(tags.folder / "bundle", "cpu").manifest.parity
    assert stated["records"] == len(tags.records)
    assert stated["read"] == len(tags.records) + len([*probe_records(tags.pipeline.artifacts.featurizer, 1_000)])
    assert (stated["texts"], stated["records_with_options"]) == (gate.WITH_OPTIONS["texts"], len(tags.records))


def test_records_and_texts_are_also_answered_under_other_decode_options(
    writer: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    answer_both = Comparison.answer_both
    monkeypatch.setattr(
        Comparison,
        "answer_both",
        lambda self, records, **options: seen.append((len(records), options)) or answer_both(self, records, **options),
    )
    monkeypatch.setattr(gate, "WITH_OPTIONS", {"records": 5, "texts": 7})
    stated = writer.export("with_options").manifest.parity
    assert (stated["texts"], stated["records_with_options"]) == (7, 5)
    assert sum(n == 12 and bool(options) for n, options in seen) == len(
        Trials(load(writer.folder / "bundle", "cpu").predictor.options, option_trials(*writer.config.head)).together()
    )


def test_a_bundle_takes_texts_of_a_length_that_was_seen_with_a_margin_or_what_the_yaml_says(tags: Trained) -> None:
    limits = load(tags.folder / "bundle", "cpu").manifest.limits
    assert limits == Limits(tokens=1_000)
    artifacts, options = tags.pipeline.artifacts, option_table(*tags.config.head)
    assert artifacts.longest == max(
        map(len, artifacts.featurizer.docs(read(tags.config.data.reader, tags.config.data.train)))
    )
    stated = bundle_manifest(tags.pipeline, tags.config, options, {}, longest=700)
    assert stated.limits == Limits(tokens=2_800)
    assert stated.options["n_best"]["maximum"] == 100
    config = tiny(tags.folder, "train.epochs=6", "export.max_tokens=9", "export.max_beams=7")
    stated = bundle_manifest(tags.pipeline, config, options, {}, longest=700)
    assert (stated.limits, stated.options["n_best"]["maximum"]) == (Limits(tokens=9), 7)


def test_a_caller_may_ask_for_a_text_of_a_length_that_was_learned_with_a_margin(
    writer: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts, size = writer.pipeline.artifacts, {"type": "size", "minimum": 1}
    (task,) = artifacts.tasks
    records = read(writer.config.data.reader, writer.config.data.train)
    assert task.longest == max(len(record["reversed"]) for record in records)  # a character is a token
    assert writer.export("learned").manifest.options["max_length"]["maximum"] == 200

    def most(config: Config, learned: int, default: int, maximum: int | None) -> Any:
        tasks = (replace(task, longest=learned),)
        monkeypatch.setattr(writer.pipeline, "artifacts", replace(artifacts, tasks=tasks))
        options = {"max_length": {**size, "default": default, "maximum": maximum}}
        return bundle_manifest(writer.pipeline, config, options, {}, longest=700).options["max_length"]["maximum"]

    # Never more than the head itself writes, and the default in any case; without targets what is read.
    assert [most(writer.config, 60, *bounds) for bounds in ((100, None), (300, 9_999), (50, 90))] == [240, 300, 90]
    assert most(writer.config, 0, 100, None) == 2_800
    config = replace(writer.config, export=writer.config.export.model_copy(update={"max_tokens": 999}))
    assert most(config, 60, 100, 9_999) == 999


def tokenizer_with(change: Callable[[dict[str, Any]], None]) -> Callable[[bundle.BundleContent, str], Tokenizer]:
    """The runtime's tokenizer, changed."""

    def loaded(content: bundle.BundleContent, name: str) -> Tokenizer:
        made = json.loads(content.files[name])
        change(made)
        return Tokenizer.from_str(json.dumps(made))

    return loaded


def off_by_one(made: dict[str, Any]) -> None:
    """The two last words of the vocabulary change places."""
    words = sorted(made["model"]["vocab"], key=made["model"]["vocab"].get)
    last, number = words[-2:], made["model"]["vocab"]
    number[last[0]], number[last[1]] = number[last[1]], number[last[0]]


def test_an_alphabet_that_loses_letters_is_found(tags: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(manifest: Any, tokenizers: Any) -> Any:
        made = feature_from(manifest, tokenizers)
        return replace(made, alphabet=made.alphabet[:-3]) if isinstance(made, Chars) else made

    monkeypatch.setattr(bundle, "feature_from", short)
    assert "differently from training: its input 'chars' differs; no bundle was written" in tags.refused()
    with pytest.raises(ParityError, match="its input 'chars' differs") as caught:
        tags.export("refused")
    assert not (tags.folder / "refused").exists()
    at_fault = (
        "embedding.1: embedding 'char-cnn' of seqpipe-nlp: its feature 'chars' differs when read from the manifest"
    )
    assert str(caught.value).splitlines()[1:] == [f"at fault: {at_fault}"]


@pytest.mark.parametrize("change", [off_by_one, lambda made: made.update(normalizer=None)])
def test_a_tokenizer_that_is_another_is_found(
    tags: Trained, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], None]
) -> None:
    monkeypatch.setattr(bundle, "_tokenizer", tokenizer_with(change))
    assert "differently from training: its input 'ids' differs" in tags.refused()
    with pytest.raises(
        ParityError, match="\nat fault: the tokenizer of 'ids': its file splits texts differently from training"
    ):
        tags.export("refused")


def test_a_letter_that_no_record_holds_is_found_by_a_probe(tags: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(made: dict[str, Any]) -> None:
        rewritten = {"type": "Replace", "pattern": {"String": "straße"}, "content": "rome"}
        made["normalizer"] = {"type": "Sequence", "normalizers": [made["normalizer"], rewritten]}

    monkeypatch.setattr(bundle, "_tokenizer", tokenizer_with(changed))
    assert "Straße" in tags.refused()


def test_offsets_that_are_others_are_found(tags: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    from seqpipe.features import sources

    whole = sources.TextSource._to_docs

    def shifted(self: Any, *given: Any) -> Any:
        docs = whole(self, *given)
        if self is tags.pipeline.artifacts.featurizer:
            return docs
        return [replace(doc, offsets=[(a, b + 1) for a, b in doc.offsets]) for doc in docs]

    monkeypatch.setattr(sources.TextSource, "_to_docs", shifted)
    assert "the offsets of its tokens differs" in tags.refused()


def wrong_once(monkeypatch: pytest.MonkeyPatch, ids: np.ndarray, name: str = "tags") -> None:
    """The graph decides otherwise about the text of these ids, alone or in a batch, and about no other."""
    for method in ("run", "run_all"):
        right = getattr(GraphSession, method)

        def wrong(self: GraphSession, feeds: Arrays, right: Any = right) -> Arrays:
            made, width = right(self, feeds), feeds["ids"].shape[1]
            if width >= len(ids):
                here = (feeds["ids"] == np.pad(ids, (0, width - len(ids)))).all(1)
                made[name] = np.where(here[:, None], 1 - made[name] % 2, made[name])
            return made

        monkeypatch.setattr(GraphSession, method, wrong)


def test_one_wrong_record_is_found(tags: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    featurizer = tags.pipeline.artifacts.featurizer
    doc = max(featurizer.docs(tags.records), key=len)
    wrong_once(monkeypatch, featurizer.collate([doc])["ids"][0])
    assert "decisions differ between PyTorch and onnxruntime (tags" in tags.refused()


def test_answers_are_compared_not_decisions_alone(tags: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    def renaming(manifest: Any, tokenizers: Any) -> Any:
        kind = answer_from(manifest, tokenizers)
        right = kind.answers
        kind.answers = lambda docs, decision: [  # type: ignore[method-assign]
            [*row, {"entity_group": "PER", "score": 1.0, "start": 0, "end": 1}] for row in right(docs, decision)
        ]
        return kind

    monkeypatch.setattr(bundle, "answer_from", renaming)
    assert "16 of 16 records are answered differently; first" in tags.refused()


def ignore(monkeypatch: pytest.MonkeyPatch, model: Model, option: str) -> None:
    """The graph takes an option and does nothing with it."""
    default = option_arrays(model.predictor.options, {})[option]
    for method in ("run", "run_all"):
        right = getattr(GraphSession, method)
        monkeypatch.setattr(
            GraphSession, method, lambda self, feeds, right=right: right(self, feeds | {option: default})
        )


def test_every_option_that_the_graph_ignores_is_found(tags: Trained, writer: Trained) -> None:
    for made in (tags, writer):
        model = load(made.folder / "bundle", "cpu")
        for option in model.predictor.options:
            with pytest.MonkeyPatch.context() as planted:
                ignore(planted, model, option)
                with pytest.raises(ParityError):
                    verify_parity(Comparison(made.pipeline, made.config, model), made.records, QUIET)


def test_every_option_is_tried_off_its_default(writer: Trained) -> None:
    known = option_table(*writer.config.head)
    trials = Trials(known, option_trials(*writer.config.head))
    tried = {name for given in trials.together() for name in given} | {*trials.alone()}
    assert {name.replace("uniform", "seed") for name in known} == tried
    assert all(given[name] != known[name]["default"] for name, some in trials.alone().items() for given in some)
    top_p = {"type": "float", "default": 1.0, "minimum": 0.0, "maximum": 1.0}
    sampled = {"a.top_p": top_p, "a.uniform": {"type": "uniform", "default": None}}
    assert Trials(sampled, {"a.top_p": [{"a.seed": 7}]}).alone() == {"a.top_p": [{"a.seed": 7, "a.top_p": 0.5}]}
    threshold = {"type": "float", "default": -1.0, "minimum": -1.0, "maximum": 1.0}
    assert Trials({"threshold": threshold}, {}).alone() == {"threshold": [{"threshold": 0.0}]}


def test_an_option_is_tried_beside_those_that_it_declares() -> None:
    known = {
        "beams": {"type": "size", "default": 1, "minimum": 1, "maximum": 100},
        "groups": {"type": "size", "default": 1, "minimum": 1, "maximum": 100},
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
    stated = tags.export("drawn").manifest.parity
    assert (stated["records"], stated["read"] > len(tags.records)) == (5, True)
    assert gate.sample_records(tags.records) == gate.sample_records(tags.records)
    assert len({record["where"] for record in gate.sample_records(tags.records)}) == 5


def test_golden_examples_are_pytorchs_answers(tags: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    def nearly(answer: Any) -> Any:
        """The answer with other scores, near enough to be the same."""
        return [{**span, "score": span["score"] - 1e-5} for span in answer]

    ours = Comparison(tags.pipeline, tags.config, load(tags.folder / "bundle", "cpu"))
    answer_both = Comparison.answer_both

    def near(self: Comparison, records: Any, **options: Any) -> Any:
        expected, _ = answer_both(self, records, **options)
        return expected, [nearly(answer) if not options else answer for answer in expected]

    monkeypatch.setattr(Comparison, "answer_both", near)
    examples = golden_examples(ours, tags.records)
    assert any(example.answer for example in examples)
    for example in examples:
        assert [*ours.stream([example.record], **example.options)] == [example.answer]


def test_ties_among_other_texts_and_options_allow_no_other_metric(
    tags: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_both, metrics = Comparison.answer_both, iter([("f1", 1.0), ("f1", 0.5)])

    def tied(self: Comparison, records: Any, **options: Any) -> Any:
        self.ties += 1_000 * bool(options)
        return answer_both(self, records, **options)

    monkeypatch.setattr(gate, "headline", lambda scores: next(metrics))
    monkeypatch.setattr(Comparison, "answer_both", tied)
    assert "f1 is 0.500000 with onnxruntime and 1.000000 with PyTorch" in tags.refused()


def test_an_option_that_changes_no_decision_is_named(writer: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "length_penalty" not in writer.export("effect").manifest.parity["without_effect"]
    monkeypatch.setattr(gate, "_matters", lambda ours, feeds, name, chosen: name != "length_penalty")
    assert writer.export("none").manifest.parity["without_effect"] == ["length_penalty"]


def test_the_model_that_export_returns_has_the_hash_of_what_was_written(tags: Trained) -> None:
    made = tags.export("hashed")
    assert made.sha256 == load(tags.folder / "hashed", "cpu").sha256


def test_long_records_are_cut_to_golden_examples(tmp_path: Path) -> None:
    made = Trained(tmp_path, tiny(tmp_path, *LEAN, "train.epochs=1"))
    words = [record["words"] for record in made.records]
    long = [word for some in words for word in some]
    made.records = [{"text": " ".join(long), "words": long, "tags": ["O"] * len(long), "where": "long:1"}]
    (first, *_) = made.export().manifest.golden
    featurizer = made.pipeline.artifacts.featurizer
    assert 0 < len(featurizer.docs([first.record])[0]) <= 40 < len(long)
    assert load(tmp_path / "bundle", "cpu").verify() == []


def test_probes_hold_every_script_all_that_was_learned_and_both_sides_of_the_limit(tags: Trained) -> None:
    featurizer = tags.pipeline.artifacts.featurizer
    probes = [*probe_records(featurizer, 500)]
    text = " ".join(record["text"] for record in probes)
    assert set("".join(SCRIPTS)) <= set(text)
    assert {*featurizer.features["chars"].names[2:]} <= set(text)
    lengths = {len(doc) for doc in featurizer.docs(probes)}
    assert {0, 500, 501} <= lengths
    assert any("words" in record for record in probes)


def changed_in(model: Model, share: float) -> Model:
    """A model that tags that share of words otherwise, as if int8 had changed them."""
    dice, run = np.random.default_rng(1), model.run

    def other(feeds: Arrays) -> Arrays:
        made = run(feeds)
        moved_on = dice.random(made["tags"].shape) < share
        return made | {"tags": np.where(moved_on, (made["tags"] + 1) % 3, made["tags"])}

    model.graph.run = model.predictor.run = model.predictor.run_alone = other  # type: ignore[method-assign]
    return model


def test_int8_is_judged_by_a_thousand_decisions_where_records_are_few(tags: Trained) -> None:
    path = tags.folder / "bundle"
    full = load(path, "cpu")
    comparison = Comparison(tags.pipeline, tags.config, full)
    judged = judge_int8(comparison, changed_in(load(path, "cpu"), 0.005), tags.records)
    assert judged["compared"] >= 1_000
    assert 0.99 <= judged["agreement"] < 1
    with pytest.raises(ParityError, match=r"[\d,]+ of 1,\d+ decisions in int8 are those in fp32, and f1 is .* in int8"):
        judge_int8(comparison, changed_in(load(path, "cpu"), 0.03), tags.records)


def test_int8_is_judged_by_the_metric_where_records_are_many(tags: Trained) -> None:
    path = tags.folder / "bundle"
    full = load(path, "cpu")
    comparison, many = Comparison(tags.pipeline, tags.config, full), tags.records * 13
    assert "agreement" not in judge_int8(comparison, changed_in(load(path, "cpu"), 0.0), many)
    with pytest.raises(ParityError, match=r"f1 is .* in int8 and .* in fp32 on 208 records; set export\.precision"):
        judge_int8(comparison, changed_in(load(path, "cpu"), 0.05), many)
