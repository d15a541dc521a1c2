"""Somebody's data file in, a commented YAML for it out, by looking at the file."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqpipe.errors import DataError, UsageError
from seqpipe.files import write
from seqpipe.plugins import Plugins
from seqpipe.schemes import SCHEMES, belongs, strict_problem
from seqpipe.yaml import dump

SENTENCES = 20_000  # looked at
_SIBLINGS = {"dev": ("dev", "devel", "valid", "validation", "val"), "test": ("test", "testa", "testb")}
_WIDE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


@dataclass
class Look:
    """What a data file is like: the reader that takes it, and what there is in it."""

    use: str
    options: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    records: int = 0
    words: int = 0
    wide: bool = False
    labels: Counter[str] = field(default_factory=Counter)
    plain_tags: bool = False


def init_yaml(data: Path, output: Path | None = None) -> Path:
    """Looks at `data` and writes the YAML; DataError if the file is of no known form, UsageError if the YAML is there already."""
    target = output or Path(
        f"{data.stem if data.stem not in ('train', 'training') else data.resolve().parent.name}.yaml"
    )
    if target.exists():
        raise UsageError(f"{target} is there already; name another with --output, or remove it")
    look = _jsonl(data) if _is_json(data) else _conll(data)
    write(target, _yaml(look, data, target))
    return target


def _is_json(data: Path) -> bool:
    try:
        with data.open("rb") as file:
            first = next((line for line in itertools.islice(file, 1000) if line.strip()), b"")
    except OSError as error:
        raise DataError(f"{data}: cannot be read: {error.strerror}") from error
    if not first:
        raise DataError(f"{data}: is empty; give the file with your training examples")
    return first.lstrip(b"\xef\xbb\xbf \t").startswith(b"{")


def _jsonl(data: Path) -> Look:
    look = Look("jsonl")
    lengths = Counter[bool]()
    for record in _records(look, data):
        look.records += 1
        look.wide |= bool(_WIDE.search(record["text"][:200]))
        look.words += len(record.get("words") or record["text"].split())
        for span in record.get("spans") or []:
            look.labels[span["label"]] += 1
        lengths["words" in record] += 1
        _count_tags(look, record.get("tags") or [])
    if not look.labels:
        raise DataError(f"{data}: no spans and no tags in it; a line needs text and spans, or words and tags")
    look.notes.append("records with words already split" if lengths[True] else "texts with character spans")
    return look


def _conll(data: Path) -> Look:
    look = Look("conll", _columns(data))
    schemes = [*SCHEMES[1:], SCHEMES[0]]  # IOB2 first: most files are
    tags = [list(r["tags"]) for r in _records(Look("conll", {**look.options, "scheme": "none"}), data)]
    distinct = {tag for sentence in tags for tag in sentence}
    fitting = [s for s in schemes if all(belongs(tag, s) for tag in distinct)] if "O" in distinct else []
    if not fitting:
        look.options["scheme"], look.plain_tags = "none", True
    else:
        faults = {s: sum(strict_problem(sentence, s) is not None for sentence in tags) for s in fitting}
        best = min(fitting, key=lambda s: faults[s])
        if best != "IOB2":
            look.options["scheme"] = best
        if faults[best]:
            look.options["ill_formed"] = "repair"
            look.notes.append(
                f"{faults[best]} sentences break {best}'s rules; they are repaired as conlleval would read them"
            )
    singles = 0
    for record in _records(look, data):
        look.records += 1
        look.words += len(record["words"])
        singles += sum(len(word) == 1 and bool(_WIDE.match(word)) for word in record["words"])
        _count_tags(look, record["tags"])
    if singles > look.words / 2:
        look.wide, look.options["joiner"] = True, ""
    return look


def _columns(data: Path) -> dict[str, Any]:
    """The reader's separator and tag column: the last column whose cells look like tags."""
    rows: list[list[str]] = []
    with data.open(encoding="utf-8-sig", errors="replace") as file:
        for line in itertools.islice(file, 5000):
            if line.strip() and not line.startswith(("# ", "-DOCSTART-")):
                rows.append(line.rstrip("\r\n").split("\t") if "\t" in line else line.split())
    widths = Counter(map(len, rows))
    width, count = widths.most_common(1)[0]
    if width < 2 or count < 0.9 * len(rows):
        raise DataError(
            f"{data}: neither JSONL nor CoNLL: most lines have {width} column{'s' if width > 1 else ''} "
            f"({count} of {len(rows)}); CoNLL has a word and its tag on a line, and a blank line after each sentence"
        )
    cells = [[row[i] for row in rows if len(row) == width] for i in range(width)]
    shaped = [i for i in range(1, width) if all(re.fullmatch(r"O|[BIESLU](-.+)?", cell) for cell in cells[i])]
    tag = shaped[-1] if shaped else width - 1
    return {} if tag == width - 1 else {"tags": tag}


def _count_tags(look: Look, tags: Sequence[str]) -> None:
    for tag in tags:
        if look.plain_tags:
            look.labels[tag] += 1
        elif tag.startswith("B-"):
            look.labels[tag[2:]] += 1


def _records(look: Look, data: Path) -> Iterator[dict[str, Any]]:
    reader: Any = Plugins().find("reader", look.use).load()(**look.options)
    return itertools.islice(reader.read(data), SENTENCES)


def _sibling(data: Path, role: str) -> Path | None:
    """train.tsv beside dev.tsv: the file of another role that is named alike."""
    if "train" not in data.name:
        return None
    names = (data.name.replace("training", "train").replace("train", word) for word in _SIBLINGS[role])
    return next((data.with_name(name) for name in names if data.with_name(name).exists()), None)


def _yaml(look: Look, data: Path, target: Path) -> str:
    def seen(path: Path) -> str:
        return os.path.relpath(path.resolve(), target.resolve().parent)

    def flow(value: Any) -> str:
        return (
            dump([value]).strip().removeprefix("- ")
            if not isinstance(value, str)
            else dump({"k": value}).strip().removeprefix("k: ")
        )

    small = look.records < 3000
    reader = "".join(f", {key}: {flow(value)}" for key, value in look.options.items())
    common = ", ".join(f"{label} {count:,}" for label, count in look.labels.most_common(12))
    lines = [
        f"# Made by `seqpipe init` from {data.name}: {look.records:,} records, {look.words:,} words.",
        f"# {'Tags' if look.plain_tags else 'Entities'}: {common}{' …' if len(look.labels) > 12 else ''}",
        *(f"# Note: {note}." for note in look.notes),
        f"name: {re.sub('[^A-Za-z0-9._-]', '-', target.stem)}",
        "data:",
        f"  reader: {{use: {look.use}{reader}}}  # seqpipe plugins show {look.use}",
        f"  train: {flow(seen(data))}",
    ]
    for role in ("dev", "test"):
        found = _sibling(data, role)
        meaning = "the best epoch is chosen by it" if role == "dev" else "scores are reported on it"
        lines.append(
            f"  {role}: {flow(seen(found))}"
            if found
            else f"  # {role}: {role}{data.suffix}  # {meaning}; none was found beside {data.name}"
        )
    if look.use == "jsonl" and not look.plain_tags:
        lines.append("  misaligned: error  # a span that cuts a word: error, widen or skip")
    lines += [
        "tokenizer: " + ("{use: chars}" if look.wide else "{use: words, lowercase: true, fold_digits: true}"),
        "embedding:  # what each token is turned into; the parts are concatenated",
        "  - {use: lookup, dim: 100, dropout: 0.3, " + ("word_dropout: 0.05}" if look.wide else "rare_dropout: 0.3}"),
        *(
            []
            if look.wide
            else ["  - {use: char-cnn, dim: 60, widths: [2, 3, 4], dropout: 0.3}  # spelling: prefixes, suffixes, case"]
        ),
        f"encoder: {{use: lstm, hidden: {128 if small else 200}}}  # units in each direction",
        f"head: {{use: crf, scheme: {'none' if look.plain_tags else 'BIOES'}, dropout: 0.5}}",
        "train:",
        f"  epochs: {40 if small else 20}",
        f"  batch_tokens: {512 if small else 1024}  # padded tokens a batch",
        "  optimizer: {use: adamw, lr: 0.003}",
        "  schedule: {use: linear, warmup_ratio: 0.1}",
        "  average: 0.99  # the moving average of the weights is what ships",
        "  patience: 8  # epochs without a better dev score before it stops",
        "  seed: 1",
    ]
    return "\n".join(lines) + "\n"
