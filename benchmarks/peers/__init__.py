"""What the peers share: from the command line and IOB2 files to spans, an F1, medians of seconds and one JSON."""

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

os.environ["HF_HUB_OFFLINE"] = "1"  # before a peer is imported: nothing here may fetch a file

T = TypeVar("T")
Span: TypeAlias = tuple[int, int, str]
Tried: TypeAlias = dict[str, float]
Way: TypeAlias = tuple[dict[str, float], Callable[[list[T]], object]]  # a setting and what tags a list at it
START = 320  # sentences: ten batches warm up, and take an untrained tagger from spans everywhere to few


class Sentence(NamedTuple):
    """Words and one IOB2 tag for each."""

    words: list[str]
    tags: list[str]


class Data(NamedTuple):
    """The three files of a folder."""

    train: list[Sentence]
    dev: list[Sentence]
    test: list[Sentence]


def command_line(description: str | None) -> argparse.ArgumentParser:
    """The flags that all peers share; a peer adds its own."""
    flags = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    flags.add_argument("--data", type=Path, required=True, help="folder of train.tsv, dev.tsv, test.tsv: word TAB tag")
    flags.add_argument("--train-epochs", type=int, default=1, help="0: a few batches only, to measure tagging")
    flags.add_argument("--train-limit", type=int, help="first sentences of train and dev only")
    flags.add_argument("--limit", type=int, help="first test sentences only")
    flags.add_argument("--one-by-one", type=int, help="test sentences that are also tagged singly; all without it")
    flags.add_argument("--repeats", type=int, default=3, help="timed runs after one to warm up; the median counts")
    flags.add_argument("--seed", type=int, default=1, help="of weights and batch order")
    flags.add_argument("--predictions", type=Path, help="write word TAB gold tag TAB predicted tag here")
    flags.add_argument("--out", type=Path, help="write the JSON here too; it is always printed")
    return flags


def numbers(text: str) -> list[int]:
    """'8,32' to [8, 32], for argparse."""
    return [int(part) for part in text.split(",")]


def read(path: Path, limit: int | None) -> list[Sentence]:
    """The first `limit` sentences of a file with a blank line after each."""
    lines = path.read_text(encoding="utf-8").split("\n")
    blocks = (list(block) for real, block in itertools.groupby(lines, key=lambda line: bool(line.strip())) if real)
    pairs = ([line.split("\t") for line in block] for block in itertools.islice(blocks, limit))
    return [Sentence([word for word, _ in rows], [tag for _, tag in rows]) for rows in pairs]


def read_data(arguments: argparse.Namespace) -> Data:
    """The folder of the command line, cut to its limits."""
    limits = {"train": arguments.train_limit, "dev": arguments.train_limit, "test": arguments.limit}
    return Data(**{part: read(arguments.data / f"{part}.tsv", limit) for part, limit in limits.items()})


def spans(tags: Sequence[str]) -> list[Span]:
    """IOB2 tags to (first word, word after the last, label); an I- that continues nothing opens a span."""
    entities: list[Span] = []
    for place, tag in enumerate(tags):
        kind, _, label = tag.partition("-")
        if kind == "I" and entities and entities[-1][1:] == (place, label):
            entities[-1] = (entities[-1][0], place + 1, label)
        elif kind in ("B", "I"):
            entities.append((place, place + 1, label))
    return entities


def iob2(length: int, entities: Sequence[Span]) -> list[str]:
    """Spans that do not overlap to one tag a word."""
    tags = ["O"] * length
    for start, end, label in entities:
        tags[start:end] = [f"B-{label}", *[f"I-{label}"] * (end - start - 1)]
    return tags


def span_f1(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Micro F1 of exactly matching spans, from 0 to 1."""
    pairs = [(set(spans(right)), set(spans(ours))) for right, ours in zip(gold, predicted, strict=True)]
    total = sum(len(right) + len(ours) for right, ours in pairs)
    return 2 * sum(len(right & ours) for right, ours in pairs) / total if total else 0.0


def median_seconds(prepare: Callable[[], T], work: Callable[[T], object], repeats: int) -> float:
    """Median wall clock of `work` after one run to warm up; what `prepare` makes afresh for each is not counted."""
    seconds = []
    for _ in range(repeats + 1):
        prepared = prepare()
        start = time.perf_counter()
        work(prepared)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def tagging(
    arguments: argparse.Namespace,
    test: Sequence[Sentence],
    build: Callable[[list[str]], T],
    batched: Sequence[Way[T]],
    singly: Sequence[Way[T]],
) -> dict[str, object]:
    """Every way timed on fresh objects of the peer, built outside the clock; the fastest gives the figure."""
    few = test[: arguments.one_by_one]

    def fresh(sentences: Sequence[Sentence]) -> list[T]:
        return [build(sentence.words) for sentence in sentences]

    def tried(ways: Sequence[Way[T]], sentences: Sequence[Sentence]) -> list[Tried]:
        times = (median_seconds(lambda: fresh(sentences), work, arguments.repeats) for _, work in ways)
        return [{**setting, "seconds": seconds} for (setting, _), seconds in zip(ways, times, strict=True)]

    many, single = tried(batched, test), tried(singly, few)
    tokens = size(test)["tokens"]
    return {
        "texts": len(test),
        "tokens": tokens,
        "build_seconds": median_seconds(lambda: test, fresh, arguments.repeats),
        "batched_tokens_per_s": tokens / min(way["seconds"] for way in many),
        "batched_best": min(many, key=lambda way: way["seconds"]),
        "batched_tried": many,
        "one_by_one_texts": len(few),
        "one_by_one_sentences_per_s": len(few) / min(way["seconds"] for way in single),
        "one_by_one_best": min(single, key=lambda way: way["seconds"]),
        "one_by_one_tried": single,
    }


def size(sentences: Sequence[Sentence]) -> dict[str, int]:
    """How many sentences and words."""
    return {"sentences": len(sentences), "tokens": sum(len(sentence.words) for sentence in sentences)}


def report(arguments: argparse.Namespace, distributions: Sequence[str], result: dict[str, object]) -> None:
    """Print the JSON, with versions, and write it where the command line says."""
    versions = {name: version(name) for name in distributions}
    text = json.dumps({"versions": versions, "cores": os.cpu_count(), **result}, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")


def write_predictions(path: Path, gold: Sequence[Sentence], predicted: Sequence[Sequence[str]]) -> None:
    """One line a word, a blank line after each sentence: what another scorer can check."""
    blocks = []
    for sentence, tags in zip(gold, predicted, strict=True):
        blocks.append("".join(f"{w}\t{right}\t{ours}\n" for w, right, ours in zip(*sentence, tags, strict=True)))
    path.write_text("\n".join(blocks), encoding="utf-8")
