"""Shares of a data file: which records become dev and test records."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from seqpipe.errors import DataError
from seqpipe.features.parts import Part, labels_of, read_records, split

RECORDS = [{"text": f"text {i}", "label": "rare" if i % 20 == 0 else "often"} for i in range(200)]


def test_the_shares_are_exact_and_each_label_has_its_part() -> None:
    roles = split(RECORDS, 0.1, 0.2, seed=1)
    assert Counter(roles) == {"train": 140, "dev": 20, "test": 40}
    rare = Counter(role for record, role in zip(RECORDS, roles, strict=True) if record["label"] == "rare")
    assert rare == {"train": 7, "dev": 1, "test": 2}


def test_the_order_of_the_file_does_not_matter_and_the_seed_does() -> None:
    def parts(records: list[dict[str, Any]], seed: int) -> set[tuple[str, str]]:
        return {(record["text"], role) for record, role in zip(records, split(records, 0.1, 0.1, seed), strict=True)}

    shuffled = random.Random(1).sample(RECORDS, len(RECORDS))
    assert parts(shuffled, 1) == parts(RECORDS, 1)
    assert parts(RECORDS, 2) != parts(RECORDS, 1)


def test_records_of_one_text_stay_together() -> None:
    records = [{"text": f"question {i // 4}", "label": "ab"[i % 2]} for i in range(400)]
    roles: dict[str, set[str]] = {}
    for record, role in zip(records, split(records, 0.2, 0.2, 1), strict=True):
        roles.setdefault(record["text"], set()).add(role)
    assert all(len(roles_of_text) == 1 for roles_of_text in roles.values())
    assert {role for roles_of_text in roles.values() for role in roles_of_text} == {"train", "dev", "test"}


@pytest.mark.parametrize(
    "record",
    [
        {"label": "once"},
        {"labels": ["x", "once"]},
        {"tags": ["O", "B-once"]},
        {"spans": [{"start": 0, "end": 1, "label": "once"}]},
    ],
)
def test_a_label_that_training_would_not_see_stays_there(record: dict[str, Any]) -> None:
    for seed in range(20):
        records = [{"text": f"text {i}", "label": "x"} for i in range(99)] + [{"text": "the only", **record}]
        assert labels_of(records[-1])
        assert split(records, 0.3, 0.2, seed)[-1] == "train"


class Numbers:
    """A reader of ten records."""

    left_out: list[str] | None = None

    def read(self, path: Path) -> Any:
        return iter([{"text": str(i), "where": f"{path}:{i}"} for i in range(10)])


def test_the_parts_of_a_file_are_all_of_it() -> None:
    parts = [Part(Path("a.txt"), role, 0.1, 0.2, 1) for role in ("train", "dev", "test")]  # type: ignore[arg-type]
    read = [[record["text"] for record in read_records(Numbers(), part)] for part in parts]
    assert [len(texts) for texts in read] == [7, 1, 2]
    assert sorted(text for texts in read for text in texts) == sorted(map(str, range(10)))
    assert str(parts[0]) == "a.txt"


def test_a_share_of_too_few_records_is_an_error() -> None:
    part = Part(Path("a.txt"), "dev", 0.01, 0.0, 1)
    with pytest.raises(DataError, match=r"a\.txt: none of its 10 records are left for dev; data\.dev needs a file"):
        list(read_records(Numbers(), part))
