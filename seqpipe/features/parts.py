"""Parts of a data file: the shares for dev and test, and the rest for training."""

from __future__ import annotations

import hashlib
import itertools
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Literal, TypeVar

from seqpipe.errors import DataError
from seqpipe.features.document import Overlaps, Record, resolve_overlaps

Role = Literal["train", "dev", "test"]
R = TypeVar("R")  # a role, or the number of a fold
SHARE_TOLERANCE = 1e-9  # of sums of shares
MAX_LISTED_RECORDS = 3  # records that were left out, in a warning


@dataclass(frozen=True)
class Files:
    """Several data files, whose records follow each other."""

    paths: tuple[Path, ...]

    def __str__(self) -> str:
        more = len(self.paths) - 1
        return f"{self.paths[0]} and {more:,} more file{'s' * (more > 1)}"


@dataclass(frozen=True)
class DataPart:
    """The records that have one role, of data files and those added to them."""

    file: Path | Files  # also the name of the part
    role: Role
    dev: float = 0.0  # share of the records that are dev records
    test: float = 0.0
    seed: int = 1  # decides which these are
    group: str | None = None  # field of records that stay together; None: those of one text
    fold: tuple[int, int] | None = None  # number, from 1, of the fold that is the test set, and count of folds
    added: tuple[Path, ...] = ()  # files whose records follow
    split: tuple[str, str | None, str | None] | None = None  # field that names roles; its values for dev and test

    def __str__(self) -> str:
        return str(self.file)

    def roles(self, records: Sequence[Record]) -> list[Role]:
        """Return the role of each record, in their order."""
        return [*map(self.assigner(), records)]

    def assigner(self) -> Callable[[Record], Role]:
        """Return the function that assigns roles to the records, in their order.

        The first record of each label is a training record: a model is not to be tested on labels that it cannot know.
        """
        divide = _assigner(_shares(self.dev, self.test), f"{self.seed}", self.group, "train")
        if self.split is not None:
            return _named_roles(*self.split, divide)
        if self.fold is None:
            return divide
        number, count = self.fold
        divide = _assigner(_shares(self.dev, 0.0), f"{self.seed}", self.group, "train")
        fold_of = _assigner(_folds(count), f"{self.seed} folds", self.group)
        return lambda record: "test" if fold_of(record) == number else divide(record)


def _named_roles(
    field: str, dev: str | None, test: str | None, divide: Callable[[Record], Role]
) -> Callable[[Record], Role]:
    """Return the function that assigns the role that a field names, and divides the records of other values."""
    roles: dict[Any, Role] = {dev: "dev", test: "test"}

    def assign(record: Record) -> Role:
        if record.get(field) in (None, ""):
            fix = "give each record this field, or correct the key"
            raise DataError.at(record, f"no field {field!r}, which data.split names; {fix}")
        return roles.get(record[field]) or divide(record)

    return assign


DataPath = Path | Files | DataPart


def paths_of(source: DataPath) -> tuple[Path, ...]:
    """Return the data files of a source, in the order of their records."""
    if isinstance(source, DataPart):
        return (*paths_of(source.file), *source.added)
    return source.paths if isinstance(source, Files) else (source,)


def folds(records: Sequence[Record], count: int, seed: int, group: str | None = None) -> list[int]:
    """Return the fold of each record, in their order, from 1."""
    return [*map(_assigner(_folds(count), f"{seed} folds", group), records)]


def _shares(dev: float, test: float) -> dict[Role, float]:
    shares: dict[Role, float] = {"train": 1 - dev - test, "dev": dev, "test": test}
    return {role: share for role, share in shares.items() if share}


def _folds(count: int) -> dict[int, float]:
    return dict.fromkeys(range(1, count + 1), 1 / count)


def _assigner(
    shares: Mapping[R, float], seed: str, group: str | None = None, first: R | None = None
) -> Callable[[Record], R]:
    """Return the function that assigns roles to records by minimization (Pocock and Simon 1975), with draws by key.

    The key of a record is its group, or its text; records of one key have the role of the first one. A role is drawn
    with a probability proportional to what it lacks of its share of the records so far, times what it lacks of those
    with the same label. A role that lacks more than a whole record is drawn first, so each share is exact within one
    record. Roles depend on earlier records only: a record added at the end moves no other. A record with a label that
    no record of the role `first` has gets this role.
    """
    role_of: dict[bytes, R] = {}  # by the hash of the key
    counts, counts_by_label, known = Counter[R](), defaultdict[str, Counter[R]](Counter), set[str]()
    numbers = itertools.count(1)

    def assign(record: Record) -> R:
        number = next(numbers)
        if group and record.get(group) in (None, ""):
            fix = "give each record this field, or correct the key"
            raise DataError.at(record, f"no field {group!r}, which data.group names; {fix}")
        text, labels = str(record[group] if group else record.get("text") or number), record_labels(record)
        key = hashlib.blake2b(f"{seed}\0{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        same_label = counts_by_label[str(record.get("label", record.get("labels", bool(labels))))]
        if key not in role_of and first is not None and not labels <= known:
            role_of[key] = first
        elif key not in role_of:
            lacks = {role: number * share - counts[role] for role, share in shares.items()}
            late = [role for role, lack in lacks.items() if lack > 1 + SHARE_TOLERANCE]
            alike = same_label.total() + 1
            weights = {role: max(0, lacks[role]) * max(0, alike * shares[role] - same_label[role]) for role in lacks}
            if late or max(weights.values()) < SHARE_TOLERANCE:
                weights = {role: max(0, lacks[role]) for role in late or lacks}
            bounds = [*accumulate(weights.values())]
            place = bisect_right(bounds, int.from_bytes(key) / 2**64 * bounds[-1], hi=len(bounds) - 1)
            role_of[key] = [*weights][place]
        role = role_of[key]
        counts[role] += 1
        same_label[role] += 1
        if role == first:
            known.update(labels)
        return role

    return assign


def record_labels(record: Record) -> set[str]:
    """Return all labels of a record: of its text, its spans and its words."""
    labels = [record["label"]] if "label" in record else []
    labels += [span["label"] for span in record.get("spans") or () if isinstance(span, dict) and "label" in span]
    for listed in (record.get("labels"), record.get("tags")):
        labels += listed if isinstance(listed, list) else ()
    return {str(label) for label in labels if label != "O"}


def read_part(
    reader: Any, source: DataPath, overlaps: Overlaps = "error", left_out: list[str] | None = None
) -> Iterator[Record]:
    """Yield the records of a file or a part of it; DataError for a part without records.

    `overlaps` selects among overlapping spans. The errors of records that cannot be read are added to `left_out`;
    without it the first one is raised.
    """
    if left_out is not None:
        reader.left_out = left_out
    files = chain.from_iterable(map(reader.read, paths_of(source)))
    if not isinstance(source, DataPart):
        yield from resolve_overlaps(files, overlaps)
        return
    assign, count, is_empty = source.assigner(), 0, True
    for record in resolve_overlaps(files, overlaps):
        count += 1
        if assign(record) == source.role:
            is_empty = False
            yield record
    if is_empty:
        raise no_records_left(source, count)


def no_records_left(part: DataPart, count: int) -> DataError:
    """Return the error about a part of a file with this number of records that has none of them."""
    fix = f"data.{part.role} needs a file or a greater share, or the file more records"
    if part.fold:
        fix = f"choose less than {part.fold[1]} folds, or give the file more records"
    return DataError(f"{part}: none of its {count:,} records are left for {part.role}; {fix}")


def left_out_message(source: str, left_out: Sequence[str]) -> str:
    """Return the warning about records that were left out: how many, and the first ones."""
    count = "1 record is" if len(left_out) == 1 else f"{len(left_out):,} records are"
    more = "; …" if len(left_out) > MAX_LISTED_RECORDS else ""
    return f"{count} left out of {source} (bad_rows: skip): {'; '.join(left_out[:MAX_LISTED_RECORDS])}{more}"
