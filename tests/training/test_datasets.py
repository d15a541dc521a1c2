"""Batches: their order follows from seed and epoch alone, they keep the budget, and hold what the model asks for."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from room_calls import calls_between_rooms
from tiny_pipelines import QUIET, labelled_texts, load_tagger, reversals, write_conll, write_jsonl, write_seq2seq

from seqpipe.config.loader import Config, load_config
from seqpipe.errors import ConfigError, DataError
from seqpipe.features.document import Doc
from seqpipe.features.mapped import FeatureStore, StoredRecords
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.data_forms import data_form
from seqpipe.training.datasets import (
    Batches,
    Example,
    TargetFacts,
    collate,
    examples,
    load_records,
    mapped_examples,
    unseen_labels,
)
from seqpipe.training.fit import fit_artifacts


def prepared(config: Config) -> tuple[Artifacts, list[Example], list[str]]:
    """The artifacts, examples and warnings of the training data."""
    records, warnings = load_records(config.data.reader, config.data.train), list[str]()
    artifacts = fit_artifacts(config, records)
    return artifacts, examples(config, artifacts, records, warn=warnings.append), warnings


def batches_of(lengths: list[int], seed: int) -> Batches:
    data = [Example(Doc("", ["w"] * n, [(0, 0)] * n, [4] * n), {"tags": [0] * n}) for n in lengths]
    return Batches(None, data, 100, None, seed)  # type: ignore[arg-type]


def test_the_order_is_a_function_of_seed_and_epoch_whatever_ran_before() -> None:
    lengths = [1 + i * 7 % 30 for i in range(200)]
    batches = batches_of(lengths, seed=5)
    forward = [batches.order(epoch) for epoch in range(4)]
    torch.manual_seed(99)
    assert [batches.order(epoch) for epoch in reversed(range(4))] == forward[::-1]
    assert batches_of(lengths, seed=5).order(2) == forward[2]
    assert forward[0] != forward[1]
    assert batches_of(lengths, seed=6).order(0) != forward[0]


@pytest.mark.parametrize("steps", [1, 3, 40])
def test_an_epoch_has_the_number_of_steps_that_is_asked_for(steps: int) -> None:
    lengths = [1 + i * 7 % 30 for i in range(60)]
    batches, whole = batches_of(lengths, seed=5), batches_of(lengths, seed=5)
    batches.epoch_batches = steps
    orders = [[*map(tuple, batches.order(epoch))] for epoch in range(3)]
    assert {len(order) for order in orders} == {steps}
    assert orders[0] == [*map(tuple, batches.order(0))] != orders[1]
    one_pass = [*map(tuple, whole.order(0))]
    assert orders[0][: len(one_pass)] == one_pass[:steps]
    # Whole passes have every text as often as each other, and the last pass, which is cut, no text twice.
    counts = Counter(row for rows in orders[0] for row in rows)
    assert len(counts) == 60 or steps < len(one_pass)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_batch_of_tags_is_padded_with_zeros(tmp_path: Path) -> None:
    artifacts, data, _ = prepared(load_tagger(tmp_path))
    some = sorted(data, key=lambda example: len(example.doc))[:: len(data) // 4]
    batch, lengths = collate(artifacts, some), [len(example.doc) for example in some]
    B, T = len(some), max(lengths)
    for name, dtype in (("ids", torch.int64), ("mask", torch.bool), ("tags", torch.int64)):
        assert (batch[name].shape, batch[name].dtype) == ((B, T), dtype)
    assert batch["chars"].shape[:2] == (B, T)
    assert batch["mask"].sum(1).tolist() == lengths
    for name in ("ids", "tags", "chars"):
        assert not batch[name][~batch["mask"]].any()
    for tags, mask, example in zip(batch["tags"], batch["mask"], some, strict=True):
        assert tags[mask].tolist() == example.targets["tags"]


def test_a_batch_of_texts_ends_each_target_and_has_its_mask(tmp_path: Path) -> None:
    yaml = write_seq2seq(tmp_path)
    write_jsonl(tmp_path / "train.jsonl", [{"text": "ab", "reversed": "ba"}, {"text": "a", "reversed": "a"}])
    batch = collate(*prepared(load_config(yaml))[:2])
    a, b = 4, 5
    assert batch["target_ids"].tolist() == [[b, a, 3], [a, 3, 0]]
    assert batch["target_mask"].tolist() == [[True, True, True], [True, True, False]]


def test_empty_texts_are_left_out_and_nothing_else_is(tmp_path: Path) -> None:
    yaml = write_seq2seq(tmp_path)
    write_jsonl(tmp_path / "train.jsonl", [{"text": "", "reversed": ""}, {"text": "ab", "reversed": "ba"}])
    assert [example.doc.text for example in prepared(load_config(yaml))[1]] == ["ab"]
    write_jsonl(tmp_path / "train.jsonl", [{"text": " ", "reversed": ""}])
    with pytest.raises(DataError):
        prepared(load_config(yaml, ["tokenizer.keep_spaces=false"]))


@pytest.mark.parametrize("features", ["memory", "mapped"])
@pytest.mark.parametrize("kind", ["tags", "label", "text"])
def test_calls_between_subpackages_are_for_chunks_of_records(
    kind: str, features: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQPIPE_FEATURES", features)
    few, many = 50, 200
    counts = []
    for count in (few, many):
        folder = tmp_path / f"{count}"
        folder.mkdir()
        if kind == "tags":
            config = load_tagger(folder)
            write_conll(folder / "train.conll", count, 1)
        else:
            head = {"head": {"use": "label"}, "tokenizer": "words"} if kind == "label" else {}
            config = load_config(write_seq2seq(folder, head))
            write_jsonl(folder / "train.jsonl", (labelled_texts if kind == "label" else reversals)(count, 1))
        form = data_form(config, FeatureStore(folder / "features", folder / "mapped", QUIET))
        records, facts = form.read(config.data.train), TargetFacts()
        make = mapped_examples if isinstance(records, StoredRecords) else examples
        assert (make is mapped_examples) == (features == "mapped")
        counts.append(calls_between_rooms(partial(make, config, form.fit(records), records, facts=facts)))
    assert counts[0] == counts[1]
    assert ("training", "features: DroppedSpans.add") in counts[0]


def tagged(folder: Path, records: list[dict[str, Any]], *overrides: str) -> tuple[list[str], list[str]]:
    """The tags of the first text, and the warnings, of a tagger of records with spans."""
    yaml = write_seq2seq(folder, {"tokenizer": "words", "head": {"use": "crf", "scheme": "IOB2"}})
    write_jsonl(folder / "train.jsonl", records)
    artifacts, data, warnings = prepared(load_config(yaml, overrides))
    return [artifacts.tasks[0].labels[tag] for tag in data[0].targets["tags"]], warnings


def spans(folder: Path, misaligned: str, *places: tuple[int, int, str]) -> list[str]:
    """The tags of `Adas cat` with these spans."""
    records = [
        {"text": "Adas cat", "spans": places},
        {"text": "Rome is Rome", "spans": [[0, 4, "LOC"], [8, 12, "PER"]]},
    ]
    return tagged(folder, records, f"data.misaligned={misaligned}")[0]


def test_a_span_that_cuts_a_word_is_an_error_widened_or_skipped(tmp_path: Path) -> None:
    message = r"train\.jsonl:1: span 'Ada' \(PER\) cuts a word of \['Adas'\]; set data\.misaligned"
    with pytest.raises(DataError, match=message):
        spans(tmp_path, "error", (0, 3, "PER"))
    assert spans(tmp_path, "widen", (0, 3, "PER")) == ["B-PER", "O"]
    assert spans(tmp_path, "widen", (2, 6, "PER")) == ["B-PER", "I-PER"]
    assert spans(tmp_path, "skip", (0, 3, "PER"), (5, 8, "LOC")) == ["O", "B-LOC"]
    for misaligned in ("error", "widen", "skip"):
        assert spans(tmp_path, misaligned, (0, 4, "PER")) == ["B-PER", "O"]


@pytest.mark.parametrize(
    ("misaligned", "expected"),
    [
        (
            "widen",
            "2 of 5 spans begin or end within a word or token, and are widened (data.misaligned: widen); "
            "the first: train.jsonl:1\n"
            "1 of 5 spans cover no word or token, and are skipped (data.misaligned: widen); the first: train.jsonl:2",
        ),
        (
            "skip",
            "3 of 5 spans begin or end within a word or token, and are skipped (data.misaligned: skip); "
            "the first: train.jsonl:1",
        ),
    ],
)
def test_the_spans_that_are_widened_or_skipped_are_counted(tmp_path: Path, misaligned: str, expected: str) -> None:
    records = [
        {"text": "Adas cat", "spans": [[0, 3, "PER"], [5, 8, "LOC"]]},
        {"text": "Rome is Rome", "spans": [[0, 4, "LOC"], [4, 5, "PER"], [9, 12, "PER"]]},
    ]
    _, warnings = tagged(tmp_path, records, f"data.misaligned={misaligned}")
    assert "\n".join(warnings).replace(f"{tmp_path}/", "") == expected


def test_a_span_over_white_space_alone_has_no_word_to_widen_to(tmp_path: Path) -> None:
    assert spans(tmp_path, "widen", (4, 5, "PER")) == ["O", "O"]
    with pytest.raises(DataError, match=r"the span 4-5, .*, covers no word or token; correct or remove the span"):
        spans(tmp_path, "error", (4, 5, "PER"))


def test_two_spans_widened_to_one_word_are_an_error_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train\.jsonl:1: the span .* overlaps .*; correct or remove one"):
        spans(tmp_path, "widen", (0, 2, "PER"), (2, 4, "LOC"))


def test_spans_that_overlap_once_widened_follow_the_rule_and_are_counted(tmp_path: Path) -> None:
    records = [{"text": "Adas cat", "spans": [[0, 2, "PER"], [2, 8, "LOC"]]}]
    for rule, expected in (("first", ["B-PER", "O"]), ("longest", ["B-LOC", "I-LOC"])):
        tags, warnings = tagged(tmp_path, records, "data.misaligned=widen", f"data.overlaps={rule}")
        assert tags == expected
        message = f"1 of 2 spans overlap others after widening, and are dropped (data.overlaps: {rule}); the first: "
        assert warnings[-1].startswith(message)


def test_only_the_first_records_are_read_when_no_more_are_asked_for(tmp_path: Path) -> None:
    yaml = write_seq2seq(tmp_path)
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write("not JSON\n")
    reader = load_config(yaml).data.reader
    assert len(load_records(reader, tmp_path / "train.jsonl", 40)) == 40
    with pytest.raises(DataError, match=r"train\.jsonl:41"):
        load_records(reader, tmp_path / "train.jsonl")


def test_labels_that_training_never_saw_are_named_once(tmp_path: Path) -> None:
    artifacts, *_ = prepared(load_tagger(tmp_path))
    record = {"words": ["a", "b"], "text": "a b", "tags": ["B-PER", "B-ORG"]}
    assert list(unseen_labels(artifacts, [record, record])) == [("ORG", record)]


SHIFTS = {
    "inclusive": lambda text, start, end: (start, end - 1),
    "utf-16": lambda text, start, end: tuple(len(text[:i].encode("utf-16-le")) // 2 for i in (start, end)),
    "bytes": lambda text, start, end: tuple(len(text[:i].encode()) for i in (start, end)),
    "one-based": lambda text, start, end: (start + 1, end + 1),
}


@pytest.mark.parametrize("offsets", SHIFTS)
def test_spans_that_all_count_otherwise_have_that_count_as_the_cure(offsets: str, tmp_path: Path) -> None:
    mark = "at sea, " if offsets in ("inclusive", "one-based") else "🦀 "
    records = []
    for n in range(20):
        text = f"{mark}Ida sails to Oslo on day {n}"
        place = text.index("Ida")
        spans = [(place, place + 3, "PER"), (place + 13, place + 17, "LOC")]
        moved = [[*SHIFTS[offsets](text, start, end), label] for start, end, label in spans]
        records.append({"text": text, "spans": moved})
    cure = f"40 of 40 spans do not fit their texts as they stand; .*; set data.offsets: {offsets}"
    with pytest.raises(DataError, match=cure):
        tagged(tmp_path, records)
    tags, _ = tagged(tmp_path, records, f"data.offsets={offsets}")
    assert [tag for tag in tags if tag != "O"] == ["B-PER", "B-LOC"]


def test_offsets_are_for_readers_of_spans_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the reader 'conll' reads no offsets of spans; delete it"):
        load_tagger(tmp_path, "data.offsets=bytes")


def test_one_wrong_span_keeps_its_own_message(tmp_path: Path) -> None:
    records = [{"text": f"Ida sails {n}", "spans": [[int(n == 7), 3 + (n == 7), "PER"]]} for n in range(20)]
    with pytest.raises(DataError, match=r"train\.jsonl:8: span 'da ' \(PER\) cuts a word"):
        tagged(tmp_path, records)


def test_widening_spans_that_all_count_otherwise_is_warned_of(tmp_path: Path) -> None:
    records = [{"text": f"Ida sails {n}", "spans": [[0, 2, "PER"]]} for n in range(20)]
    _, warnings = tagged(tmp_path, records, "data.misaligned=widen")
    assert any("20 of 20 spans do not fit" in line and "set data.offsets: inclusive" in line for line in warnings)
