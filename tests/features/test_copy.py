"""Words that no vocabulary holds: their numbers, the texts that are written with them, and what is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer
from tiny_pipelines import write_jsonl, write_seq2seq

from seqpipe.answers.metrics.text import TextCounter
from seqpipe.answers.registry import task_of
from seqpipe.answers.text import TargetCensus, Text, TextTask
from seqpipe.answers.types import SpanRules
from seqpipe.config.loader import load_config
from seqpipe.config.signature import construct
from seqpipe.errors import ConfigError, DataError
from seqpipe.features.document import Doc, ExtendedVocabulary, Record
from seqpipe.features.kinds.text import Copy
from seqpipe.features.sources import TextSource
from seqpipe.runs.check import build_trial
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.datasets import examples, load_records
from seqpipe.training.fit import fit_artifacts
from seqpipe_plugins.tokenizers.words import WordsTokenizer

PATTERN = r"\w+(?:[-.,]\w+)*|[^\w\s]"
SOURCE = WordsTokenizer(pattern=PATTERN).train(["the sum is due from , ."])
TARGET = construct(WordsTokenizer, pattern=PATTERN, lowercase=True, detokenize=True).train(["pay the sum to : ."])
V = TARGET.get_vocab_size()
COPY = Copy(file="target_tokenizer.json", tokenizer=TARGET)
VOCABULARY = ExtendedVocabulary(TARGET, same=False)


def doc(text: str) -> Doc:
    return TextSource(SOURCE, {}).docs([{"text": text}])[0]


def ids_of(kind: Text, text: str, source: Doc) -> Any:
    return kind.encode([text], [source], [{}])[0]


def test_words_that_the_vocabulary_lacks_are_numbered_as_they_come_in_their_row() -> None:
    ids, new = VOCABULARY.read(doc("The sum is 3,200 from Ada , Bo and Ada ."))
    the, total, dot = (TARGET.token_to_id(token) for token in ("the", "sum", "."))
    assert new == ["is", "3,200", "from", "Ada", ",", "Bo", "and"]
    assert ids == [the, total, V, V + 1, V + 2, V + 3, V + 4, V + 5, V + 6, V + 3, dot]
    arrays = TextSource(SOURCE, {"copy": COPY}).collate([doc("Bo"), doc("the Cy Bo"), doc("Bo Ada Bo")])
    assert arrays["copy"].tolist() == [[V, 0, 0], [the, V, V + 1], [V, V + 1, V]]


def test_with_one_tokenizer_a_token_keeps_its_id_and_unknown_words_are_numbered() -> None:
    size, (due,) = SOURCE.get_vocab_size(), SOURCE.encode("due").ids
    vocabulary = ExtendedVocabulary(SOURCE, same=True)
    assert vocabulary.read(doc("Ada due Bo Ada")) == ([size, due, size + 1, size], ["Ada", "Bo"])


def test_a_special_token_in_a_text_is_a_word() -> None:
    words = TextSource(SOURCE, {}).docs([{"words": ["[EOS]", "[PAD]", "[EOS]", "[UNK]"]}])[0]
    for vocabulary in (VOCABULARY, ExtendedVocabulary(TARGET, same=True)):
        assert vocabulary.read(words) == ([V, V + 1, V, V + 2], ["[EOS]", "[PAD]", "[UNK]"])


def test_a_text_is_written_with_the_words_of_its_source_and_read_back() -> None:
    kind, source = Text(TARGET, copies=VOCABULARY), doc("the sum of 3,200 is due from Ada Ruß , XY-12")
    text = "pay Ada Ruß 3,200: the sum."
    ids = ids_of(kind, text, source)
    assert [i - V if i >= V else None for i in ids] == [None, 5, 6, 1, None, None, None, None]
    assert kind.decode(ids, source) == text
    assert kind.tokens(ids, source) == ["pay", "Ada", "Ruß", "3,200", ":", "the", "sum", "."]
    # written the same comes first, then what the tokenizer makes the same; what is nowhere is unknown
    for written, expected in (("BO", V + 1), ("Bo", V), ("bo", V), ("Cy", 1)):
        assert ids_of(kind, written, doc("Bo BO")) == [expected]
    decision = {"tokens": np.array([[ids]]), "scores": np.log([[0.5]])}
    assert kind.answers([source], decision) == [
        {"generated_text": text, "score": 0.5, "log_score": pytest.approx(np.log(0.5))}
    ]


DEBTS = (("Ada", 7), ("Bo", 8))
RECORDS = [{"text": f"{name} owes {n} CHF .", "target": f"{n} from {name}"} for name, n in DEBTS * 4]


def copying(folder: Path, *overrides: str, **changes: object) -> Artifacts:
    words = {"use": "words", "min_count": 5}
    head = {"use": "copy-seq2seq", "hidden": 8, "target_tokenizer": words}
    path = write_seq2seq(folder, {"tokenizer": words, "head": head, **changes})
    for name in ("train", "dev"):
        write_jsonl(folder / f"{name}.jsonl", RECORDS)
    config = load_config(path, overrides)
    return fit_artifacts(config, load_records(config.data.reader, config.data.train))


def test_artifacts_are_saved_with_the_run(tmp_path: Path) -> None:
    artifacts = copying(tmp_path)
    artifacts.save(tmp_path)
    again = Artifacts.load(tmp_path)
    docs = artifacts.featurizer.docs(RECORDS)
    assert np.array_equal(again.featurizer.collate(docs)["copy"], artifacts.featurizer.collate(docs)["copy"])
    size = len(again.tasks[0].target_vocabulary or ())
    rows = examples(load_config(tmp_path / "backward.yaml"), again, RECORDS[:2])
    assert [row.targets["target_ids"] for row in rows] == [[size + 2, 4, size, 3]] * 2  # Ada, owes, 7, CHF, .
    assert artifacts.tasks[0].kind.manifest()["copies"] == {"same": False}


def unwritable(artifacts: Artifacts, records: Sequence[Record]) -> list[str]:
    kind = artifacts.tasks[0].kind
    assert isinstance(kind, Text)
    census = TargetCensus(kind, 100)
    docs = artifacts.featurizer.docs(records)
    census.add(records, docs, TextTask(kind).target_maker(TextTask.settings, SpanRules())(records, docs))
    return [level + message for level, message in census.messages()]


def test_check_reports_the_percentage_of_targets_that_survive(tmp_path: Path) -> None:
    artifacts = copying(tmp_path)
    worse = [*RECORDS[:2], {"text": "Cy", "target": "from Dora"}, {"text": "x", "target": "from, x"}]
    first, second = unwritable(artifacts, worse)
    assert first.startswith("50.0 % of 4 texts survive encoding and decoding; 2 have a word")
    assert "texts (50.0%) change when encoded and decoded: 'from, x' as 'from x'" in second
    assert "set detokenize: true" in second
    (message,) = build_trial(load_config(tmp_path / "backward.yaml")).messages
    assert message.startswith("head: 100.0 % of 8 texts survive encoding and decoding; 0 have a word that is in ")
    assert message.endswith(" neither the target vocabulary nor the source")


def test_tokenizers_that_split_words_copy_only_where_they_are_one(tmp_path: Path) -> None:
    message = "head: .*copies whole tokens, but one of the two tokenizers splits words: write target_tokenizer: same"
    for override in ("tokenizer={use: bpe}", "head.target_tokenizer={use: bpe}"):
        with pytest.raises(ConfigError, match=message):
            copying(tmp_path, override)
    artifacts = copying(tmp_path, "tokenizer={use: bpe, byte_level: true, max_size: 300}", "head.target_tokenizer=same")
    kind = artifacts.tasks[0].kind
    assert isinstance(kind, Text)
    (source,) = artifacts.featurizer.docs([{"text": "Zoë owes 9"}])
    assert kind.decode(ids_of(kind, " Zoë", source), source) == " Zoë"


def test_inputs_without_tokens_to_copy_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="after the encoder 'words' there are no tokens to copy; delete that encoder"):
        copying(tmp_path, "encoder=[words, {use: lstm, hidden: 8}]")
    word = {"tokenizer": "words", "embedding": {"use": "lookup", "dim": 8}}
    two = {"a": {"field": "text", **word}, "b": {"field": "target", **word}}
    numbers = {"n": {"field": "numbers", "embedding": {"use": "linear"}}}
    for inputs, message in (
        (two, "it supports one input only; use a head of tags or spans"),
        (numbers, "feature 'copy' needs a text, and this source has no tokenizer"),
    ):
        with pytest.raises(ConfigError, match=message):
            copying(tmp_path, inputs=inputs, **dict.fromkeys(("tokenizer", "embedding", "encoder")))


def test_references_are_a_text_or_several_and_nothing_else() -> None:
    task = task_of(Text(TARGET))
    assert [task.gold({"target": target}) for target in ("a", ["a"], ["a", "b"])] == ["a", "a", ["a", "b"]]
    for target in ([], ["a", 3], 7, None):
        with pytest.raises(DataError, match="x:3: field 'target' must be a text, or a list of texts any of which is"):
            task.gold({"target": target, "where": "x:3"})


def test_rouge_is_that_of_the_package_with_the_best_reference_and_by_characters_in_chinese() -> None:
    pairs = [
        (["the cat sat on the mat"], "the cats sat"),
        (["police killed the gunman", "the gunman died"], "gunman kills police"),
    ]
    counts, scorer = TextCounter(), RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    for references, predicted in pairs:
        counts.add(references, predicted)
    scores = counts.result()
    for name, rouge in (("rouge_1", "rouge1"), ("rouge_2", "rouge2"), ("rouge_l", "rougeL")):
        best = [max(scorer.score(gold, predicted)[rouge].fmeasure for gold in golds) for golds, predicted in pairs]
        assert scores[name] == pytest.approx(sum(best) / 2)
    assert 0 < scores["rouge_2"] < scores["rouge_l"] <= scores["rouge_1"] < 1
    chinese = TextCounter()
    chinese.add("床前明月光", "床前看月光")
    assert [chinese.result()[name] for name in ("rouge_1", "rouge_2")] == pytest.approx([0.8, 0.5])


def test_several_references_count_each_metric_against_the_right_one() -> None:
    counts = TextCounter()
    counts.add(["pay Ada", "owe Bo 7"], "owe Bo 7")
    counts.add("pay Ada", "pay Bo")
    names = ("exact_match", "token_accuracy", "character_error_rate")
    assert [counts.result()[name] for name in names] == pytest.approx([0.5, 4 / 5, 3 / 15])


def test_copy_precision_and_recall_are_of_words_that_the_vocabulary_lacks() -> None:
    assert task_of(Text(TARGET)).counter().unknown is None
    counts = task_of(Text(TARGET, copies=VOCABULARY)).counter()
    assert counts.unknown("pay Ada the 3,200 .") == ["Ada", "3,200"]
    counts.add("pay Ada 3,200 to Ada", "pay Ada 99")  # of Ada, Ada and 3,200 one is written, of two that are written
    counts.add("the sum", "the sum Zed")
    assert [counts.result()[name] for name in ("copy_precision", "copy_recall")] == pytest.approx([1 / 3, 1 / 3])


@pytest.mark.parametrize("text", ["Keller & Sons (AB-12): 3,200 CHF, due 3 May.", "“Now!” he said; [a] {b} 50%", "a"])
def test_words_are_joined_as_english_is_written(text: str) -> None:
    tokenizer = WordsTokenizer(pattern=PATTERN, detokenize=True).train([text])
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
