"""Parts of a data file: the shares for dev and test, and the rest for training."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from seqpipe.errors import DataError
from seqpipe.features.document import Overlaps, Record, resolve_overlaps

Role = Literal["train", "dev", "test"]
LISTED = 3  # records that were left out, in a warning


@dataclass(frozen=True)
class Part:
    """The records of a file that have one role."""

    file: Path  # also the name and path of the part
    role: Role
    dev: float  # share of all records that are dev records
    test: float
    seed: int  # decides which these are

    def __fspath__(self) -> str:
        return str(self.file)

    __str__ = __fspath__


DataPath = Path | Part


def split(records: Sequence[Record], dev: float, test: float, seed: int) -> list[Role]:
    """Return the role of each record, in their order.

    Which records are dev and test records follows from the seed and the texts, not from the order of the file. Records
    of one text have one role: a model is not to be tested on texts that it was trained on. Each label has its share of
    them, but one that training would not see stays there.
    """
    groups: dict[str, list[int]] = {}
    for i, record in enumerate(records):
        groups.setdefault(str(record.get("text") or i), []).append(i)
    labels = {text: set[str]().union(*(labels_of(records[i]) for i in numbers)) for text, numbers in groups.items()}

    def place(text: str) -> tuple[str, str]:
        digest = hashlib.blake2b(f"{seed}\0{text}".encode("utf-8", "surrogatepass"), digest_size=8)
        first = records[groups[text][0]]
        return str(first.get("label", first.get("labels", bool(labels[text])))), digest.hexdigest()

    chosen = [text for i, text in enumerate(sorted(groups, key=place)) if _is_in_share(i, dev + test)]
    counts = Counter(label for text in groups for label in labels[text])
    left = counts - Counter(label for text in chosen for label in labels[text])
    roles: list[Role] = ["train"] * len(records)
    for i, text in enumerate(chosen):
        if any(label not in left for label in labels[text]):
            left.update(labels[text])
            continue
        role: Role = "dev" if _is_in_share(i, dev / (dev + test)) else "test"
        for number in groups[text]:
            roles[number] = role
    return roles


def labels_of(record: Record) -> set[str]:
    """Return all labels of a record: of its text, its spans and its words."""
    labels = [record["label"]] if "label" in record else []
    labels += [span["label"] for span in record.get("spans") or () if isinstance(span, dict) and "label" in span]
    for listed in (record.get("labels"), record.get("tags")):
        labels += listed if isinstance(listed, list) else ()
    return {str(label) for label in labels if label != "O"}


def _is_in_share(i: int, share: float) -> bool:
    """Return whether item `i` belongs to a share of all items, evenly spread and as exact as can be."""
    return math.floor((i + 1) * share + 0.5) > math.floor(i * share + 0.5)


def read_records(
    reader: Any, source: DataPath, overlaps: Overlaps = "error", left_out: list[str] | None = None
) -> Iterator[Record]:
    """Yield the records of a file or a part of it; DataError for a part without records.

    `overlaps` selects among overlapping spans. The errors of records that cannot be read are added to `left_out`;
    without it the first one is raised.
    """
    if left_out is not None:
        reader.left_out = left_out
    if not isinstance(source, Part):
        yield from resolve_overlaps(reader.read(source), overlaps)
        return
    records = list(resolve_overlaps(reader.read(source.file), overlaps))
    roles = split(records, source.dev, source.test, source.seed)
    if source.role not in roles:
        fix = f"data.{source.role} needs a file or a greater share, or the file more records"
        raise DataError(f"{source}: none of its {len(records):,} records are left for {source.role}; {fix}")
    yield from (record for record, role in zip(records, roles, strict=True) if role == source.role)


def left_out_message(source: str, left_out: Sequence[str]) -> str:
    """Return the warning about records that were left out: how many, and the first ones."""
    count = "1 record is" if len(left_out) == 1 else f"{len(left_out):,} records are"
    more = "; …" if len(left_out) > LISTED else ""
    return f"{count} left out of {source} (bad_rows: skip): {'; '.join(left_out[:LISTED])}{more}"
