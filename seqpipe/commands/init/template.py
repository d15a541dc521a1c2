"""Somebody's data file in, a commented YAML for it out, by looking at the file."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from seqpipe.answers.base import label_of
from seqpipe.answers.tagging_schemes import SCHEMES, belongs, strict_problem
from seqpipe.commands.init.sniff import is_conllu, table_options
from seqpipe.config.plugins import Plugins
from seqpipe.config.yaml import dump
from seqpipe.errors import DataError, UsageError
from seqpipe.files import write

SENTENCES = 20_000  # looked at
LINES, BYTES = 1_000, 10_000_000  # read to find out what kind of file it is, at most
_SIBLINGS = {"dev": ("dev", "devel", "valid", "validation", "val"), "test": ("test", "testa", "testb")}
_GLUED = re.compile(r"\D\d{1,2}")  # a character and its position in the word, as in 科0 技1
_WIDE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


_HEADS = {
    "Entities": "{use: crf, scheme: BIOES, dropout: 0.5}",
    "Tags": "{use: crf, scheme: none, dropout: 0.5}",
    "Labels": "{use: label, pool: max, dropout: 0.5}  # mean, max, first or last of the text's tokens",
}
_SPELLING = "  - {use: char-cnn, dim: 60, widths: [2, 3, 4], dropout: 0.5}  # spelling: prefixes, suffixes, case"


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
    what: Literal["Entities", "Tags", "Labels"] = "Entities"  # that the labels are; Labels: one a text


def init_yaml(data: Path, output: Path | None = None) -> Path:
    """Looks at `data` and writes the YAML.

    Raises:
        DataError: if the file is of no known form.
        UsageError: if the YAML is there already.
    """
    stem = data.resolve().parent.name if data.stem in ("train", "training") else data.stem
    target = output or Path(f"{stem}.yaml")
    if target.exists():
        raise UsageError(f"{target} is there already; name another with --output, or remove it")
    lines = _first_lines(data)
    table = table_options(lines, "tsv" if ".tsv" in data.suffixes else "csv")
    if lines[0].startswith("{"):
        look = _jsonl(data)
    elif is_conllu(lines):
        look = _conllu(data)
    elif table:
        look = _table(data, *table)
    else:
        look = _conll(data)
    write(target, _yaml(look, data, target))
    return target


def _opened(data: Path) -> BinaryIO:
    return gzip.open(data, "rb") if data.suffix == ".gz" else data.open("rb")  # type: ignore[return-value]


def _first_lines(data: Path) -> list[str]:
    """The first lines without their ends; the first of them has something in it."""
    try:
        with _opened(data) as file:
            found = file.read(BYTES).decode("utf-8-sig", "replace").splitlines()[:LINES]
    except (OSError, EOFError, zlib.error) as error:
        told = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{data}: cannot be read: {told}") from error
    lines = list(itertools.dropwhile(lambda line: not line.strip(), found))
    if not lines:
        raise DataError(f"{data}: is empty; give the file with your training examples")
    return [lines[0].lstrip(), *lines[1:]]


def _jsonl(data: Path) -> Look:
    look = Look("jsonl")
    tags = [list(r["tags"]) for r in _records(Look("jsonl", {"scheme": "none"}), data) if "tags" in r]
    if tags:
        _choose_scheme(look, tags)
    _count(look, data)
    if not look.labels:
        _count_labels(look, data)
    if look.what == "Labels":
        look.notes.append("texts with one label each")
    else:
        look.notes.append("records with words already split" if tags else "texts with character spans")
    return look


def _conll(data: Path) -> Look:
    look = Look("conll", _columns(data))
    tags = [list(r["tags"]) for r in _records(Look("conll", {**look.options, "scheme": "none"}), data)]
    _choose_scheme(look, tags)
    _count(look, data)
    return look


def _conllu(data: Path) -> Look:
    """The first column of tags in which every word has one."""
    columns = dict.fromkeys(("upos", "xpos", "deprel"), True)
    for record in _records(Look("conllu", {"tags": None}), data):
        columns = {name: full and "_" not in record[name] for name, full in columns.items()}
    chosen = next((name for name, full in columns.items() if full), None)
    if chosen is None:
        raise DataError(f"{data}: words without tags: no column of {', '.join(columns)} is filled for every word")
    look = Look("conllu", {} if chosen == "upos" else {"tags": chosen}, what="Tags")
    _count(look, data)
    return look


def _table(data: Path, use: str, options: dict[str, Any]) -> Look:
    look = Look(use, options, notes=["texts with one label each"])
    _count(look, data)
    _count_labels(look, data)
    return look


def _choose_scheme(look: Look, tags: Sequence[Sequence[str]]) -> None:
    """The scheme that the tags keep, or break least."""
    distinct = {tag for sentence in tags for tag in sentence}
    schemes = [*SCHEMES[1:], SCHEMES[0]]  # IOB2 first: most files are
    fitting = [s for s in schemes if all(belongs(tag, s) for tag in distinct)] if "O" in distinct else []
    if not fitting:
        look.options["scheme"], look.what = "none", "Tags"
        return
    faults = {s: sum(strict_problem(sentence, s) is not None for sentence in tags) for s in fitting}
    best = min(fitting, key=lambda s: faults[s])
    if best != "IOB2":
        look.options["scheme"] = best
    if faults[best]:
        look.options["ill_formed"] = "repair"
        look.notes.append(f"{faults[best]} sentences break {best}'s rules; they are repaired as conlleval reads them")


def _count(look: Look, data: Path) -> None:
    """Records, words and labels; and whether it is written in characters rather than words."""
    wide_texts = wide_words = 0
    for record in _records(look, data):
        words = record.get("words") or []
        look.records += 1
        look.words += len(words or record["text"].split())
        wide_words += sum(len(word) == 1 and bool(_WIDE.match(word)) for word in words)
        wide_texts += not words and bool(_WIDE.search(record["text"][:200]))
        look.labels.update(span["label"] for span in record.get("spans") or [])
        _count_tags(look, record.get("tags") or [])
    if wide_words > look.words / 2:
        look.options["joiner"] = ""
    look.wide = look.options.get("joiner") == "" or wide_texts > look.records / 2


def _count_labels(look: Look, data: Path) -> None:
    """One label a text; DataError if there are none, or not one for every text."""
    if not any("label" in record for record in _records(look, data)):
        cure = "a line needs text and spans, or words and tags, or text and label"
        raise DataError(f"{data}: no spans and no tags in it, and no labels; {cure}")
    look.labels.update(label_of(record, "label") for record in _records(look, data))
    look.what = "Labels"


def _columns(data: Path) -> dict[str, Any]:
    """Where the reader finds words and tags: the last column whose cells look like tags."""
    rows: list[list[str]] = []
    with io.TextIOWrapper(_opened(data), "utf-8-sig", "replace") as file:
        for line in itertools.islice(file, 5000):
            if line.strip() and not line.startswith(("# ", "-DOCSTART-")):
                rows.append(line.rstrip("\r\n").split("\t") if "\t" in line else line.split())
    width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
    if width < 2 or count < 0.9 * len(rows):
        raise DataError(
            f"{data}: neither JSONL nor CoNLL: most lines have {width} column{'s' if width > 1 else ''} "
            f"({count} of {len(rows)}); CoNLL has a word and its tag on a line, and a blank line after each sentence"
        )
    cells = [[row[i] for row in rows if len(row) == width] for i in range(width)]
    shaped = [i for i in range(1, width) if all(re.fullmatch(r"O|[BIESLU](-.+)?", cell) for cell in cells[i])]
    tag = shaped[-1] if shaped else width - 1
    options: dict[str, Any] = {} if tag == width - 1 else {"tags": tag}
    glued = sum(bool(_GLUED.fullmatch(word)) for word in cells[0])
    return {**options, "pattern": "^(.)", "joiner": ""} if glued > 0.9 * count else options


def _count_tags(look: Look, tags: Sequence[str]) -> None:
    for tag in tags:
        if look.what == "Tags":
            look.labels[tag] += 1
        elif tag.startswith("B-"):
            look.labels[tag[2:]] += 1


def _records(look: Look, data: Path) -> Iterator[dict[str, Any]]:
    reader: Any = Plugins().find("reader", look.use).load()(**look.options)
    return itertools.islice(reader.read(data), SENTENCES)


def _told(label: str) -> str:
    """A label as a comment of one line may hold it."""
    return label if label.isprintable() else ascii(label)


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
        if isinstance(value, list):
            return f"[{', '.join(map(flow, value))}]"
        return dump({"k": value}).strip().removeprefix("k: ")

    small = look.records < 3000
    name = re.sub("[^A-Za-z0-9._-]", "-", target.stem).lstrip("._-")
    reader = "".join(f", {key}: {flow(value)}" for key, value in look.options.items())
    common = ", ".join(f"{_told(label)} {count:,}" for label, count in look.labels.most_common(12))
    words = "" if look.wide else f", {look.words:,} words"
    lines = [
        f"# Made by `seqpipe init` from {data.name}: {look.records:,} records{words}.",
        f"# {look.what}: {common}{' …' if len(look.labels) > 12 else ''}",
        *(f"# Note: {note}." for note in look.notes),
        f"name: {flow(name or 'pipeline')}",
        "data:",
        f"  reader: {{use: {look.use}{reader}}}  # seqpipe plugins show {look.use}",
        f"  train: {flow(seen(data))}",
    ]
    for role, meaning in (("dev", "the best epoch is chosen by it"), ("test", "scores are reported on it")):
        found = _sibling(data, role)
        none = f"  # {role}: {role}{data.suffix}  # {meaning}; none was found beside {data.name}"
        lines.append(f"  {role}: {flow(seen(found))}" if found else none)
    if look.use == "jsonl" and look.what == "Entities":
        lines.append("  misaligned: error  # a span that cuts a word: error, widen or skip")
    lines += [
        "tokenizer: " + ("{use: chars}" if look.wide else "{use: words, lowercase: true, fold_digits: true}"),
        "embedding:  # what each token is turned into; the parts are concatenated",
        "  - {use: lookup, dim: 100, dropout: 0.3, "
        + ("word_dropout: 0.1}" if look.wide else "word_dropout: 0.15, rare_dropout: 0.5}"),
        *([] if look.wide else [_SPELLING]),
        f"encoder: {{use: lstm, hidden: {128 if small else 200}}}  # units in each direction",
        f"head: {_HEADS[look.what]}",
        "train:",
        f"  epochs: {40 if small else 20}",
        f"  batch_tokens: {512 if small else 1024}  # padded tokens a batch",
        "  optimizer: {use: adamw, lr: 0.003}",
        "  schedule: {use: linear, warmup_ratio: 0.1}",
        "  average: 0.99  # the moving average of the weights is what ships",
        f"  {'' if _sibling(data, 'dev') else '# '}patience: 8  # epochs without a better dev score before it stops",
        "  seed: 1",
    ]
    return "\n".join(lines) + "\n"
