"""Words that no vocabulary holds: their numbers, the texts that are written with them, and what is refused."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from factory import seqpipe, write_jsonl

from seqpipe.answers.metrics.text import TextCounter
from seqpipe.answers.registry import head_answer_from, task_of
from seqpipe.answers.text import TargetCensus, Text
from seqpipe.config.loader import load
from seqpipe.config.yaml import dump
from seqpipe.errors import ConfigError, DataError
from seqpipe.features.document import ExtendedVocabulary, Record
from seqpipe.features.kinds.registry import feature_from
from seqpipe.features.kinds.text import Copy
from seqpipe.features.sources import TextSource
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.datasets import examples, read
from seqpipe.training.fit import fit_artifacts
from seqpipe_plugins.tokenizers.words import Words

PATTERN = r"\w+(?:[-.,]\w+)*|[^\w\s]"
SOURCE = Words(pattern=PATTERN).train(["the sum is due from , ."])
TARGET = Words(pattern=PATTERN, lowercase=True, detokenize=True).train(["pay the sum to : ."])
V = TARGET.get_vocab_size()
COPY = Copy(file="target_tokenizer.json", tokenizer=TARGET)
VOCABULARY = ExtendedVocabulary(TARGET, same=False)


def doc(text: str):  # type: ignore[no-untyped-def]
    return TextSource(SOURCE, {}).docs([{"text": text}])[0]


def test_words_that_the_vocabulary_lacks_are_numbered_as_they_come() -> None:
    ids, new = VOCABULARY.read(doc("The sum is 3,200 from Ada , Bo and Ada ."))
    the, total, dot = (TARGET.token_to_id(token) for token in ("the", "sum", "."))
    assert new == ["is", "3,200", "from", "Ada", ",", "Bo", "and"]
    assert ids == [the, total, V, V + 1, V + 2, V + 3, V + 4, V + 5, V + 6, V + 3, dot]
    arrays = TextSource(SOURCE, {"copy": COPY}).collate([doc("Bo"), doc("the Cy Bo")])
    assert arrays["copy"].tolist() == [[V, 0, 0], [the, V, V + 1]]


def test_with_one_tokenizer_a_token_keeps_its_id_and_the_unknown_get_their_own() -> None:
    same = ExtendedVocabulary(SOURCE, same=True)
    size, (due,) = SOURCE.get_vocab_size(), SOURCE.encode("due").ids
    assert same.read(doc("Ada due Bo Ada")) == ([size, due, size + 1, size], ["Ada", "Bo"])


def test_what_looks_like_a_special_token_is_a_word() -> None:
    odd = TextSource(SOURCE, {}).docs([{"words": ["[EOS]", "[PAD]", "[EOS]", "[UNK]"]}])[0]
    for vocabulary in (VOCABULARY, ExtendedVocabulary(TARGET, same=True)):
        ids, new = vocabulary.read(odd)
        assert (ids, new) == ([V, V + 1, V, V + 2], ["[EOS]", "[PAD]", "[UNK]"])


def test_a_text_is_written_with_the_words_of_its_source_and_read_back() -> None:
    kind, source = Text(TARGET, copies=VOCABULARY), doc("the sum of 3,200 is due from Ada Ruß , XY-12")
    text = "pay Ada Ruß 3,200: the sum."
    ids = kind.encode(text, source)
    assert [i - V if i >= V else None for i in ids] == [None, 5, 6, 1, None, None, None, None]
    assert kind.decode(ids, source) == text
    assert kind.tokens(ids, source) == ["pay", "Ada", "Ruß", "3,200", ":", "the", "sum", "."]
    # written the same comes first, then what the tokenizer makes the same; what is nowhere is unknown
    for written, expected in (("BO", V + 1), ("Bo", V), ("bo", V), ("Cy", 1)):
        assert kind.encode(written, doc("Bo BO")) == [expected]
    decision = {"tokens": np.array([[ids]]), "scores": np.log([[0.5]])}
    assert kind.answers([source], decision) == [{"generated_text": text, "score": 0.5}]


def test_a_bundle_and_a_run_describe_it_as_data() -> None:
    made = feature_from(COPY.manifest(), {"target_tokenizer.json": TARGET})
    assert made == COPY
    assert made.array([doc("Ada")], 1).tolist() == [[V]]
    kind = Text(TARGET, "summary", VOCABULARY)
    again = head_answer_from(kind.manifest(), TARGET)
    assert kind.manifest() == {"kind": "text", "target": "summary", "copies": {"same": False}} == again.manifest()
    with pytest.raises(KeyError):
        feature_from(COPY.manifest(), {})


def test_a_row_is_numbered_by_itself_whatever_stands_beside_it() -> None:
    texts = ["Ada is due", "the sum", "Bo Ada Bo", "is Cy , the Cy"]
    together = TextSource(SOURCE, {"copy": COPY}).collate([doc(text) for text in texts])
    for row, text in zip(together["copy"], texts, strict=True):
        alone = TextSource(SOURCE, {"copy": COPY}).collate([doc(text)])["copy"][0]
        assert row[: len(alone)].tolist() == alone.tolist()
        assert not row[len(alone) :].any()


RECORDS = [
    {"text": f"{name} owes {sum_} CHF .", "target": f"{sum_} from {name}"} for name, sum_ in (("Ada", 7), ("Bo", 8)) * 4
]


def copying(folder: Path, *overrides: str, **changes: object) -> Artifacts:
    write_jsonl(folder / "train.jsonl", RECORDS)
    keys = {
        "name": "debts",
        "data": {"reader": "jsonl", "train": "train.jsonl"},
        "tokenizer": {"use": "words", "min_count": 5},
        "embedding": {"use": "lookup", "dim": 8},
        "encoder": {"use": "lstm", "hidden": 8},
        "head": {"use": "copy-seq2seq", "hidden": 8, "target_tokenizer": {"use": "words", "min_count": 5}},
    }
    (folder / "debts.yaml").write_text(dump({**keys, **changes}))
    config = load(folder / "debts.yaml", overrides)
    return fit_artifacts(config, read(config.data.reader, config.data.train))


def test_what_is_learned_is_kept_with_the_run(tmp_path: Path) -> None:
    artifacts = copying(tmp_path)
    artifacts.save(tmp_path)
    again = Artifacts.load(tmp_path)
    docs = artifacts.featurizer.docs(RECORDS)
    assert np.array_equal(again.featurizer.collate(docs)["copy"], artifacts.featurizer.collate(docs)["copy"])
    config, V = load(tmp_path / "debts.yaml"), len(again.tasks[0].target_vocabulary or ())
    made = examples(config, again, RECORDS)
    assert [one.targets["target_ids"] for one in made[:2]] == [[V + 2, 4, V, 3]] * 2  # Ada, owes, 7, CHF, .
    assert artifacts.tasks[0].kind.manifest()["copies"] == {"same": False}


def unwritable(artifacts: Artifacts, records: Sequence[Record]) -> list[str]:
    kind = artifacts.tasks[0].kind
    assert isinstance(kind, Text)
    census = TargetCensus(kind, 100)
    for record, doc in zip(records, artifacts.featurizer.docs(records), strict=True):
        census.add(record, kind.encode(record["target"], doc), doc)
    return [*census.messages()]


def test_check_tells_the_share_of_targets_that_survive(tmp_path: Path) -> None:
    artifacts = copying(tmp_path)
    assert unwritable(artifacts, RECORDS) == [
        "100.0 % of 8 texts survive encoding and decoding; 0 have a word that is in neither the target "
        "vocabulary nor the source"
    ]
    worse = [*RECORDS[:2], {"text": "Cy", "target": "from Dora"}, {"text": "x", "target": "from, x"}]
    first, second = unwritable(artifacts, worse)
    assert first.startswith("50.0 % of 4 texts survive encoding and decoding; 2 have a word")
    assert "texts (50.0%) change when encoded and decoded: 'from, x' as 'from x'" in second
    assert "set detokenize: true" in second
    done = seqpipe("check", "debts.yaml", folder=tmp_path)
    assert done.code == 0
    assert "100.0 % of 8 texts survive" in done.err


def test_tokenizers_that_split_words_copy_only_where_they_are_one(tmp_path: Path) -> None:
    told = r"head: .*it copies whole tokens, but one of the two tokenizers splits words: write target_tokenizer: same"
    for override in ("tokenizer={use: bpe}", "head.target_tokenizer={use: bpe}"):
        with pytest.raises(ConfigError, match=told):
            copying(tmp_path, override)
    artifacts = copying(tmp_path, "tokenizer={use: bpe, byte_level: true, max_size: 300}", "head.target_tokenizer=same")
    (kind,) = (task.kind for task in artifacts.tasks)
    assert isinstance(kind, Text)
    (source,) = artifacts.featurizer.docs([{"text": "Zoë owes 9"}])
    assert kind.decode(kind.encode(" Zoë", source), source) == " Zoë"


def test_behind_an_encoder_that_makes_other_rows_there_is_nothing_to_copy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="after the encoder 'words' there are no tokens to copy; delete that encoder"):
        copying(tmp_path, "encoder=[words, {use: lstm, hidden: 8}]")


def test_several_inputs_and_numbers_are_refused_with_a_cure(tmp_path: Path) -> None:
    word = {"tokenizer": "words", "embedding": {"use": "lookup", "dim": 8}}
    two = {"a": {"field": "text", **word}, "b": {"field": "target", **word}}
    gone = dict.fromkeys(("tokenizer", "embedding", "encoder"))
    with pytest.raises(ConfigError, match="it supports one input only; use a head of tags or spans"):
        copying(tmp_path, inputs=two, **gone)
    with pytest.raises(ConfigError, match="feature 'copy' needs a text, and this source has no tokenizer"):
        copying(tmp_path, inputs={"n": {"field": "numbers", "embedding": {"use": "linear"}}}, **gone)


def test_references_are_a_text_or_several_and_nothing_else() -> None:
    kind = Text(TARGET)
    assert task_of(kind).gold({"target": "a"}) == task_of(kind).gold({"target": ["a"]}) == "a"
    assert task_of(kind).gold({"target": ["a", "b"]}) == ["a", "b"]
    for given in ([], ["a", 3], 7, None):
        with pytest.raises(DataError, match="x:3: field 'target' must be a text, or a list of texts any of which is"):
            task_of(kind).gold({"target": given, "where": "x:3"})


def test_rouge_is_that_of_the_package_and_of_references_the_best() -> None:
    from rouge_score.rouge_scorer import RougeScorer

    pairs = [
        ("the cat sat on the mat", "the cats sat"),
        (["police killed the gunman", "the gunman died"], "gunman kills police"),
    ]
    counts, scorer = TextCounter(), RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    for gold, predicted in pairs:
        counts.add(gold, predicted)
    expected = {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}
    for gold, predicted in pairs:
        each = [scorer.score(one, predicted) for one in ([gold] if isinstance(gold, str) else gold)]
        for name in expected:
            expected[name] += max(one[name].fmeasure for one in each) / 2
    made = counts.result()
    assert [made[name] for name in ("rouge_1", "rouge_2", "rouge_l")] == pytest.approx([*expected.values()])
    assert 0 < made["rouge_2"] < made["rouge_l"] <= made["rouge_1"] < 1


def test_rouge_of_chinese_is_by_characters() -> None:
    counts = TextCounter()
    counts.add("床前明月光", "床前看月光")
    assert counts.result()["rouge_1"] == pytest.approx(0.8)
    assert counts.result()["rouge_2"] == pytest.approx(0.5)


def test_several_references_count_each_metric_against_the_right_one() -> None:
    counts = TextCounter()
    counts.add(["pay Ada", "owe Bo 7"], "owe Bo 7")
    counts.add("pay Ada", "pay Bo")
    made = counts.result()
    assert made["exact_match"] == 0.5
    assert made["token_accuracy"] == pytest.approx(4 / 5)
    assert made["character_error_rate"] == pytest.approx(3 / 15)


def test_copy_precision_and_recall_are_of_words_that_the_vocabulary_lacks() -> None:
    kind = Text(TARGET, copies=VOCABULARY)
    assert task_of(Text(TARGET)).unknown_words is None
    assert task_of(kind).unknown_words is not None
    assert task_of(kind).unknown_words("pay Ada the 3,200 .") == ["Ada", "3,200"]
    counts = TextCounter(task_of(kind).unknown_words)
    counts.add("pay Ada 3,200 to Ada", "pay Ada 99")  # of Ada, Ada and 3,200 one is written, of two that are written
    counts.add("the sum", "the sum Zed")
    made = counts.result()
    assert made["copy_precision"] == pytest.approx(1 / 3)
    assert made["copy_recall"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("text", ["Keller & Sons (AB-12): 3,200 CHF, due 3 May.", "“Now!” he said; [a] {b} 50%", "a"])
def test_words_are_joined_as_english_is_written(text: str) -> None:
    tokenizer = Words(pattern=PATTERN, detokenize=True).train([text])
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
