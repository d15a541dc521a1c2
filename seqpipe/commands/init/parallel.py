"""Recognise parallel files, whose line n belong together: train.en beside train.ja, seq.in beside seq.out."""

from __future__ import annotations

import re
from pathlib import Path

from seqpipe.commands.init.files import open_bytes
from seqpipe.errors import DataError

_LANGUAGE = re.compile(r"\.[a-z]{2}([-_][A-Za-z]{2,4})?")
_SIDES = {".src": ".tgt", ".source": ".target", ".input": ".output"}
_WORDS, _TAGS, _LABEL = "seq.in", "seq.out", "label"


def refuse_parallel(data: Path) -> None:
    """DataError with the reader for it if a file beside this one holds what belongs to its lines."""
    if data.name in (_WORDS, _TAGS) and data.with_name(_WORDS).exists() and data.with_name(_TAGS).exists():
        label = f", label: {_LABEL}" if data.with_name(_LABEL).exists() else ""
        _refuse(
            data, data.with_name(_TAGS if data.name == _WORDS else _WORDS), f"words: {_WORDS}, tags: {_TAGS}{label}"
        )
    for other in _others(data):
        if _count_lines(other) == _count_lines(data):
            names = ("*" + data.suffix, "*" + other.suffix)
            source, target = reversed(names) if data.suffix in _SIDES.values() else names
            _refuse(data, other, f'text: "{source}", target: "{target}"')


def _others(data: Path) -> list[Path]:
    """Return the files of the same name with another language, or the other side, as extension."""
    pairs = _SIDES | {target: source for source, target in _SIDES.items()}
    if data.suffix in pairs:
        return [other for other in [data.with_suffix(pairs[data.suffix])] if other.is_file()]
    if not _LANGUAGE.fullmatch(data.suffix):
        return []
    beside = sorted(data.parent.glob("*"))
    return [
        other for other in beside if other != data and other.stem == data.stem and _LANGUAGE.fullmatch(other.suffix)
    ]


def _count_lines(data: Path) -> int:
    with open_bytes(data) as file:
        return sum(1 for _ in file)


def _refuse(data: Path, other: Path, fields: str) -> None:
    reader = f"reader: {{use: parallel, fields: {{{fields}}}}}"
    cure = f"write a YAML with `{reader}` and `train: {data.name}` under `data:` (docs/tasks/your-data.md)"
    raise DataError(f"{data}: its lines belong to those of {other.name}, as parallel files; {cure}")
