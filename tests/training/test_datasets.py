"""Batches: their order follows from seed and epoch alone, they keep the budget, and hold what the model asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factory import tiny, write_jsonl, writing
from hypothesis import given
from hypothesis import strategies as st

from seqpipe.config.loader import Config, load
from seqpipe.errors import ConfigError, DataError
from seqpipe.features.document import Doc
from seqpipe.training.artifacts import Artifacts
from seqpipe.training.datasets import Batches, Example, collate, examples, read, unseen_labels
from seqpipe.training.fit import fit_artifacts


def prepared(config: Config) -> tuple[Artifacts, list[Example]]:
    records = read(config.data.reader, config.data.train)
    artifacts = fit_artifacts(config, records)
    return artifacts, examples(config, artifacts, records)


def lengths_only(lengths: list[int]) -> list[Example]:
    return [Example(Doc("", ["w"] * n, [(0, 0)] * n, [4] * n), {"tags": [0] * n}) for n in lengths]


def order(lengths: list[int], tokens: int, most: int | None, seed: int, epoch: int) -> list[list[int]]:
    artifacts: Any = None  # the order asks nothing of what was learned
    return Batches(artifacts, lengths_only(lengths), tokens, most, seed).order(epoch)


many = st.lists(st.integers(1, 40), min_size=1, max_size=80)


@given(many, st.integers(1, 100), st.none() | st.integers(1, 5), st.integers(0, 3), st.integers(0, 3))
def test_every_example_comes_once_and_no_batch_is_over_the_budget(
    lengths: list[int], tokens: int, most: int | None, seed: int, epoch: int
) -> None:
    batches = order(lengths, tokens, most, seed, epoch)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= tokens
        assert len(batch) <= (most or len(lengths))


def test_the_order_is_a_function_of_seed_and_epoch_whatever_ran_before() -> None:
    lengths = [1 + i * 7 % 30 for i in range(200)]
    artifacts: Any = None
    batches = Batches(artifacts, lengths_only(lengths), 100, None, 5)
    forward = [batches.order(epoch) for epoch in range(4)]
    torch.manual_seed(99)
    assert [batches.order(epoch) for epoch in reversed(range(4))] == forward[::-1]
    assert Batches(artifacts, lengths_only(lengths), 100, None, 5).order(2) == forward[2]
    assert forward[0] != forward[1]
    assert order(lengths, 100, None, 6, 0) != forward[0]


def test_like_lengths_stand_together() -> None:
    lengths = [1 + i * 7 % 30 for i in range(400)]
    batches = order(lengths, 120, None, 1, 0)
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    assert padded < 1.15 * sum(lengths)


def test_short_and_long_batches_come_in_no_order() -> None:
    lengths = [1 + i * 7 % 30 for i in range(400)]
    means = [sum(lengths[i] for i in batch) / len(batch) for batch in order(lengths, 120, None, 1, 0)]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.3


def test_a_batch_of_tags_is_padded_with_zeros(tmp_path: Path) -> None:
    artifacts, data = prepared(tiny(tmp_path))
    some = sorted(data, key=len_of)[:: len(data) // 4]
    batch = collate(artifacts, some)
    B, T = len(some), max(map(len_of, some))
    assert (batch["ids"].shape, batch["ids"].dtype) == ((B, T), torch.int64)
    assert (batch["mask"].shape, batch["mask"].dtype) == ((B, T), torch.bool)
    assert (batch["tags"].shape, batch["tags"].dtype) == ((B, T), torch.int64)
    assert batch["chars"].shape[:2] == (B, T)
    assert batch["mask"].sum(1).tolist() == [len_of(example) for example in some]
    for name in ("ids", "tags", "chars"):
        assert not batch[name][~batch["mask"]].any()
    assert [row[mask].tolist() for row, mask in zip(batch["tags"], batch["mask"], strict=True)] == [
        example.targets["tags"] for example in some
    ]


def len_of(example: Example) -> int:
    return len(example.doc)


def test_a_batch_of_texts_ends_each_target_and_has_its_mask(tmp_path: Path) -> None:
    yaml = writing(tmp_path)
    write_jsonl(tmp_path / "train.jsonl", [{"text": "ab", "reversed": "ba"}, {"text": "a", "reversed": "a"}])
    batch = collate(*prepared(load(yaml)))
    a, b = 4, 5
    assert batch["target_ids"].tolist() == [[b, a, 3], [a, 3, 0]]
    assert batch["target_mask"].tolist() == [[True, True, True], [True, True, False]]


def test_empty_texts_are_left_out_and_nothing_else_is(tmp_path: Path) -> None:
    yaml = writing(tmp_path)
    write_jsonl(tmp_path / "train.jsonl", [{"text": "", "reversed": ""}, {"text": "ab", "reversed": "ba"}])
    assert [example.doc.text for example in prepared(load(yaml))[1]] == ["ab"]
    write_jsonl(tmp_path / "train.jsonl", [{"text": " ", "reversed": ""}])
    with pytest.raises(DataError):
        prepared(load(yaml, ["tokenizer.keep_spaces=false"]))


def spans(tmp_path: Path, misaligned: str, *places: tuple[int, int, str]) -> list[str]:
    """The tags of `Adas cat` when these spans of it are given."""
    listed = [{"start": a, "end": b, "label": label} for a, b, label in places]
    whole = {
        "text": "Rome is Rome",
        "spans": [{"start": 0, "end": 4, "label": "LOC"}, {"start": 8, "end": 12, "label": "PER"}],
    }
    yaml = writing(tmp_path, {"tokenizer": "words", "head": {"use": "crf", "scheme": "IOB2"}})
    write_jsonl(tmp_path / "train.jsonl", [{"text": "Adas cat", "spans": listed}, whole])
    artifacts, data = prepared(load(yaml, [f"data.misaligned={misaligned}"]))
    return [artifacts.tasks[0].labels[tag] for tag in data[0].targets["tags"]]


def test_a_span_that_cuts_a_word_is_an_error_widened_or_skipped(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"train\.jsonl:1: span 'Ada' \(PER\) cuts a word of \['Adas'\]; set data\.misaligned"
    ):
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
            [
                "2 of 5 spans begin or end within a word or token, and are widened (data.misaligned: widen); "
                "the first: train.jsonl:1",
                "1 of 5 spans cover no word or token, and are skipped (data.misaligned: widen); "
                "the first: train.jsonl:2",
            ],
        ),
        (
            "skip",
            [
                "3 of 5 spans begin or end within a word or token, and are skipped (data.misaligned: skip); "
                "the first: train.jsonl:1"
            ],
        ),
    ],
)
def test_the_spans_that_are_widened_or_skipped_are_counted(
    tmp_path: Path, misaligned: str, expected: list[str]
) -> None:
    yaml = writing(tmp_path, {"tokenizer": "words", "head": {"use": "crf", "scheme": "IOB2"}})
    records = [
        {"text": "Adas cat", "spans": [[0, 3, "PER"], [5, 8, "LOC"]]},
        {"text": "Rome is Rome", "spans": [[0, 4, "LOC"], [4, 5, "PER"], [9, 12, "PER"]]},
    ]
    write_jsonl(tmp_path / "train.jsonl", records)
    config, warnings = load(yaml, [f"data.misaligned={misaligned}"]), list[str]()
    read_records = read(config.data.reader, config.data.train)
    examples(config, fit_artifacts(config, read_records), read_records, warn=warnings.append)
    assert [line.replace(f"{tmp_path}/", "") for line in warnings] == expected


def test_a_span_over_white_space_alone_has_no_word_to_widen_to(tmp_path: Path) -> None:
    assert spans(tmp_path, "widen", (4, 5, "PER")) == ["O", "O"]
    with pytest.raises(DataError, match=r"the span 4-5, .*, covers no word or token; correct or remove the span"):
        spans(tmp_path, "error", (4, 5, "PER"))


def test_two_spans_widened_to_one_word_are_an_error_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train\.jsonl:1: the span .* overlaps .*; correct or remove one"):
        spans(tmp_path, "widen", (0, 2, "PER"), (2, 4, "LOC"))


def test_spans_that_overlap_once_widened_follow_the_rule_and_are_counted(tmp_path: Path) -> None:
    yaml = writing(tmp_path, {"tokenizer": "words", "head": {"use": "crf", "scheme": "IOB2"}})
    records = [{"text": "Adas cat", "spans": [[0, 2, "PER"], [2, 8, "LOC"]]}]
    write_jsonl(tmp_path / "train.jsonl", records)
    for rule, expected in (("first", ["B-PER", "O"]), ("longest", ["B-LOC", "I-LOC"])):
        config, warnings = load(yaml, ["data.misaligned=widen", f"data.overlaps={rule}"]), list[str]()
        read_records = read(config.data.reader, config.data.train)
        artifacts = fit_artifacts(config, read_records)
        (example,) = examples(config, artifacts, read_records, warn=warnings.append)
        assert [artifacts.tasks[0].labels[tag] for tag in example.targets["tags"]] == expected
        message = f"1 of 2 spans overlap others after widening, and are dropped (data.overlaps: {rule}); the first: "
        assert warnings[-1].startswith(message)


def test_only_the_first_records_are_read_when_no_more_are_asked_for(tmp_path: Path) -> None:
    yaml = writing(tmp_path)
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write("not JSON\n")
    reader = load(yaml).data.reader
    assert len(read(reader, tmp_path / "train.jsonl", 40)) == 40
    with pytest.raises(DataError, match=r"train\.jsonl:41"):
        read(reader, tmp_path / "train.jsonl")


def test_labels_that_training_never_saw_are_named_once(tmp_path: Path) -> None:
    artifacts, _ = prepared(tiny(tmp_path))
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
    yaml = writing(tmp_path, {"tokenizer": "words", "head": {"use": "crf", "scheme": "IOB2"}})
    mark = "at sea, " if offsets in ("inclusive", "one-based") else "🦀 "
    records = []
    for n in range(20):
        text = f"{mark}Ida sails to Oslo on day {n}"
        place = text.index("Ida")
        spans = [(place, place + 3, "PER"), (place + 13, place + 17, "LOC")]
        moved = [(*SHIFTS[offsets](text, start, end), label) for start, end, label in spans]
        records.append(
            {"text": text, "spans": [dict(zip(("start", "end", "label"), span, strict=True)) for span in moved]}
        )
    write_jsonl(tmp_path / "train.jsonl", records)
    cure = f"40 of 40 spans do not fit their texts as they stand; .*; set data.offsets: {offsets}"
    with pytest.raises(DataError, match=cure):
        prepared(load(yaml))
    artifacts, data = prepared(load(yaml, [f"data.offsets={offsets}"]))
    tags = [artifacts.tasks[0].labels[tag] for tag in data[0].targets["tags"]]
    assert [tag for tag in tags if tag != "O"] == ["B-PER", "B-LOC"]


def test_offsets_are_for_readers_of_spans_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    (tmp_path / "a.csv").write_text("text,label\na,b\n")
    path.write_text(
        "data: {reader: {use: csv}, train: a.csv, offsets: bytes}\n"
        "tokenizer: {use: words}\nembedding: {use: lookup, dim: 2}\nhead: {use: label, pool: mean}\n"
    )
    with pytest.raises(ConfigError, match="the reader 'csv' reads no offsets of spans; delete it"):
        load(path)


def test_one_wrong_span_keeps_its_own_message(tmp_path: Path) -> None:
    yaml = writing(tmp_path, {"tokenizer": "words", "head": {"use": "crf", "scheme": "IOB2"}})
    records = [{"text": f"Ida sails {n}", "spans": [{"start": 0, "end": 3, "label": "PER"}]} for n in range(20)]
    records[7]["spans"] = [{"start": 1, "end": 4, "label": "PER"}]
    write_jsonl(tmp_path / "train.jsonl", records)
    with pytest.raises(DataError, match=r"train\.jsonl:8: span 'da ' \(PER\) cuts a word"):
        prepared(load(yaml))


def test_widening_spans_that_all_count_otherwise_is_warned_of(tmp_path: Path) -> None:
    yaml = writing(tmp_path, {"tokenizer": "words", "head": {"use": "crf", "scheme": "IOB2"}})
    records = [{"text": f"Ida sails {n}", "spans": [{"start": 0, "end": 2, "label": "PER"}]} for n in range(20)]
    write_jsonl(tmp_path / "train.jsonl", records)
    config, warnings = load(yaml, ["data.misaligned=widen"]), list[str]()
    artifacts, _ = prepared(config)
    examples(config, artifacts, read(config.data.reader, config.data.train), warn=warnings.append)
    assert any("20 of 20 spans do not fit" in line and "set data.offsets: inclusive" in line for line in warnings)
