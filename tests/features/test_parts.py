"""Shares of a data file: which records become dev and test records."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqpipe.errors import DataError
from seqpipe.features.parts import DataPart, Role, folds, read_part, record_labels

RECORDS = [{"text": f"text {i}", "label": "rare" if i % 20 == 0 else "often"} for i in range(200)]


def split(records: list[Any], dev: float, test: float, seed: int, group: str | None = None) -> list[Role]:
    return DataPart(Path("data"), "train", dev, test, seed, group).roles(records)


def test_the_fractions_are_exact_also_for_each_label_and_the_seed_decides_which_records_they_take() -> None:
    roles = split(RECORDS, 0.1, 0.2, seed=1)
    assert Counter(roles) == {"train": 140, "dev": 20, "test": 40}
    rare = Counter(role for record, role in zip(RECORDS, roles, strict=True) if record["label"] == "rare")
    assert rare == {"train": 7, "dev": 1, "test": 2}
    assert split(RECORDS, 0.1, 0.1, seed=2) != split(RECORDS, 0.1, 0.1, seed=1)


def test_every_machine_makes_the_same_split() -> None:
    records = [{"text": f"text {i}", "label": "ab"[i % 2], "doc": i // 3} for i in range(30)]
    letters = "".join(role[:2] for role in split(records, 0.2, 0.2, seed=1))
    assert letters == "trtrdetetrtrtetrtrdetrtrtedetrtrdetrtrtetrtrtedetrtrdetrtrte"
    assert "".join(map(str, folds(records, 3, seed=1, group="doc"))) == "333111222333222111111222333333"


data_sets = st.lists(
    st.builds(
        lambda text, label, doc: {"text": f"text {text}", "label": f"label {label}", "doc": f"doc {doc}"},
        *(st.integers(0, most) for most in (60, 4, 9)),
    ),
    min_size=1,
    max_size=60,
)
several_shares = st.sampled_from([(0.1, 0.1), (0.2, 0.0), (0.0, 0.3), (0.5, 0.25), (0.15, 0.033)])


@given(data_sets, several_shares, st.integers(2, 6), st.integers(0, 9), st.sampled_from([None, "doc"]))
def test_no_group_is_divided_and_a_record_at_the_end_moves_none(
    records: list[dict[str, Any]], shares: tuple[float, float], count: int, seed: int, group: str | None
) -> None:
    roles, numbers = split(records, *shares, seed, group), folds(records, count, seed, group)
    for assigned in (roles, numbers):
        pairs = {(record[group or "text"], role) for record, role in zip(records, assigned, strict=True)}
        assert len(pairs) == len({name for name, _ in pairs})
    assert split(records[:-1], *shares, seed, group) == roles[:-1]
    assert folds(records[:-1], count, seed, group) == numbers[:-1]


@given(several_shares, st.integers(2, 6), st.integers(1, 100), st.integers(1, 4), st.integers(0, 99))
def test_shares_and_folds_are_exact_within_a_record(
    shares: tuple[float, float], count: int, records: int, labels: int, seed: int
) -> None:
    rows = [{"text": f"text {i}", "label": random.Random(seed + i).randrange(labels)} for i in range(records)]
    sizes = Counter(folds(rows, count, seed))
    assert all(abs(sizes[number] - records / count) <= 1 for number in range(1, count + 1))
    alike = [record | {"label": "one"} for record in rows]
    roles = Counter(split(alike, *shares, seed))
    assert max(abs(roles[role] - records * share) for role, share in zip(("dev", "test"), shares, strict=True)) <= 1.01


@pytest.mark.parametrize("order", ["sorted", "shuffled", "in turn"])
def test_each_label_has_its_share_in_every_order_of_the_file(order: str) -> None:
    labels = [i % 10 for i in range(1000)]
    if order == "sorted":
        labels.sort()
    if order == "shuffled":
        random.Random(1).shuffle(labels)
    records = [{"text": f"text {i}", "label": label} for i, label in enumerate(labels)]
    counts = Counter(zip(labels, split(records, 0.1, 0.2, 1), strict=True))
    assert all(abs(counts[label, "dev"] - 10) <= 2 and abs(counts[label, "test"] - 20) <= 2 for label in range(10))
    in_folds = Counter(zip(labels, folds(records, 5, 1), strict=True))
    assert {count for count in in_folds.values() if abs(count - 20) > 2} == set()


def test_documents_of_many_records_take_the_shares_too() -> None:
    records = [{"text": f"text {i}", "doc": i // 10} for i in range(2000)]
    roles = split(records, 0.1, 0.1, 1, "doc")
    assert all(len(set(roles[i : i + 10])) == 1 for i in range(0, 2000, 10))
    assert abs(roles.count("dev") - 200) <= 10
    assert abs(roles.count("test") - 200) <= 10


@pytest.mark.parametrize("record", [{"text": "a"}, {"text": "a", "doc": None}, {"text": "a", "doc": ""}])
def test_a_record_without_its_group_is_an_error_with_its_place(record: dict[str, Any]) -> None:
    records = [{"text": "b", "doc": 0, "where": "a.jsonl:1"}, record | {"where": "a.jsonl:2"}]
    with pytest.raises(DataError, match=r"^a\.jsonl:2: no field 'doc', which data\.group names; give each record"):
        split(records, 0.1, 0.1, 1, "doc")


@pytest.mark.parametrize("labels", [2, 20])
def test_a_small_file_trains_on_each_label(labels: int) -> None:
    records = [{"text": f"text {i}", "label": i % labels} for i in range(40)]
    for seed in range(5):
        roles = split(records, 0.1, 0.1, seed)
        trained = {record["label"] for record, role in zip(records, roles, strict=True) if role == "train"}
        assert trained == {*range(labels)}
        assert Counter(roles) == {"train": 32, "dev": 4, "test": 4}


ONCE = [{"label": "once"}, {"labels": ["x", "once"]}, {"tags": ["O", "B-once"]}]


@pytest.mark.parametrize("record", [*ONCE, {"spans": [{"start": 0, "end": 1, "label": "once"}]}])
def test_a_label_of_one_record_stays_in_training(record: dict[str, Any]) -> None:
    records = [{"text": f"text {i}", "label": "x"} for i in range(99)] + [{"text": "the only", **record}]
    assert record_labels(records[-1])
    assert {split(records, 0.3, 0.2, seed)[-1] for seed in range(20)} == {"train"}


class Numbers:
    """A reader of ten records."""

    left_out: list[str] | None = None

    def read(self, path: Path) -> Any:
        return iter([{"text": str(i), "where": f"{path}:{i}"} for i in range(10)])


def test_the_parts_of_a_file_are_all_of_it() -> None:
    parts = [DataPart(Path("a.txt"), role, 0.1, 0.2, 1) for role in ("train", "dev", "test")]  # type: ignore[arg-type]
    read = [[record["text"] for record in read_part(Numbers(), part)] for part in parts]
    assert [len(texts) for texts in read] == [7, 1, 2]
    assert sorted(text for texts in read for text in texts) == sorted(map(str, range(10)))
    assert str(parts[0]) == "a.txt"


def test_the_folds_of_a_file_are_all_of_it_and_dev_is_a_share_of_the_rest() -> None:
    tested: list[str] = []
    for number in range(1, 6):
        part = DataPart(Path("a.txt"), "train", 0.25, fold=(number, 5), added=(Path("b.txt"),))
        train, dev, test = (
            [record["where"] for record in read_part(Numbers(), replace(part, role=role))]
            for role in ("train", "dev", "test")
        )
        assert (len(train) + len(dev), len(test)) == (16, 4)
        assert 2 <= len(dev) <= 5
        assert len({*train, *dev, *test}) == 20
        tested += test
    assert sorted(tested) == sorted(f"{file}:{i}" for file in ("a.txt", "b.txt") for i in range(10))


def test_a_part_without_records_is_an_error() -> None:
    (empty,) = {*range(1, 12)} - {*folds([{"text": str(i)} for i in range(10)], 11, 1)}
    for part, message in (
        (DataPart(Path("a.txt"), "test", fold=(empty, 11)), "left for test; choose less than 11 folds"),
        (DataPart(Path("a.txt"), "dev", 0.01, 0.0, 1), "left for dev; data.dev needs a file"),
    ):
        with pytest.raises(DataError, match=rf"a\.txt: none of its 10 records are {message}"):
            list(read_part(Numbers(), part))
