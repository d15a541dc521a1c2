"""Inputs that are hard to read alike, for any bundle, and what a second runtime answers otherwise."""

import contextlib
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from second_runtime import Bundle, RefusedError, matches_golden
from tiny_pipelines import PEOPLE, PLACES

from seqpipe import load
from seqpipe.errors import SeqpipeError

PIECES = (
    *(*PEOPLE, *PLACES, "flew to", "met", "it rains in", "lovely", "sad", "fair", "abc", "fed", "10", "٣"),
    *("don't", "a_b", " ", " ", " ", " ", " . ", " , ", "!", "”", "。", "！」", "\n", "\r\n", "\n \n", "\u3000"),
    *("\x1c", "\x85", "Zoë", "İstanbul", "ΑΣΟΣ", "ROME", "ﬁ", "e\u0301", "\u0301", "שלום", "\u200b", "\ufeff"),
    *("你好", "「奥斯陆」", "ひらがな", "👩\u200d💻", "🇨🇭", "👍🏽", "\ud800", "\udfff", "\ufffd", "\U0010ffff"),
    *("[PAD]", "[UNK]", "Antidisestablishmentarianism", "Donaudampfschifffahrtsgesellschaft"),
    *("\x00", "a½", "x²", "ｶﾞ", "한국", "\u1112\u1161\u11ab", "\u0378", "▁", "##a", "</w>"),
)
REFUSED = "refused"


def hostile_texts(count: int, seed: int = 1, known: tuple[str, ...] = ()) -> list[str]:
    """Texts of all scripts, with what is hard about each, among words that a model knows."""
    dice = random.Random(seed)
    pieces = (*PIECES, *dice.sample(known, min(len(known), 2 * len(PIECES))))
    return ["".join(dice.choices(pieces, k=dice.randint(0, 14))) for _ in range(count)]


def hostile_records(manifest: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Records for the inputs of a bundle, by its manifest alone."""
    fields = manifest["field"] if isinstance(manifest["field"], dict) else {"": manifest["field"]}
    entries, seed = manifest["inputs"], 0
    records: list[dict[str, Any]] = [{} for _ in range(count)]
    for source, field in fields.items():
        prefix = f"{source}." if source else ""
        values = {name.removeprefix(prefix): e for name, e in entries.items() if name.startswith(prefix)}
        numeric = next((entry for entry in values.values() if "means" in entry), None)
        for name in field if isinstance(field, list) else [field]:
            seed += 1
            known = known_words(manifest, name)
            column = hostile_texts(count, seed, known) if numeric is None else hostile_numbers(numeric, count, seed)
            for record, value in zip(records, column, strict=True):
                record[name] = value
        columns = [entry for entry in values.values() if entry.get("kind") == "column"]
        for i, record in enumerate(records):
            record.update({entry["field"]: entry["values"][i % len(entry["values"])] for entry in columns})
    if manifest["answer"]["kind"] == "fill-mask":
        mask, name = manifest["answer"]["token"], manifest["field"]
        for i, record in enumerate(records):
            record[name] = (
                record[name][: 5 * (i % 7)] + (mask, f" {mask} ", mask * 2)[i % 3] + record[name][5 * (i % 7) :]
            )
    if manifest["field"] == "text" and manifest["answer"]["kind"] != "fill-mask" and not columns:
        for i, record in enumerate(records[::9]):  # also words alone, of which some are not seen
            record["words"] = [*record["text"].split(), *(["\u200b"] if i % 3 else [""])]
            if i % 2:
                del record["text"]
    return records


def known_words(manifest: Mapping[str, Any], field: str) -> tuple[str, ...]:
    """The words of the golden examples in a field, each with a blank."""
    texts = [example["record"].get(field) for example in manifest["golden"]]
    texts += [" ".join(example["record"].get("words") or ()) for example in manifest["golden"]]
    return tuple(dict.fromkeys(f"{word} " for text in texts if isinstance(text, str) for word in text.split()))


def hostile_numbers(entry: Mapping[str, Any], count: int, seed: int) -> Iterator[Any]:
    """Rows of numbers, pictures or samples, from none and one to many."""
    dice = random.Random(seed)
    for i in range(count):
        if entry["kind"] == "image":
            rows, columns = dice.choice((1, 2, 7, 28, 61)), dice.choice((1, 3, 28, 40))
            yield [[dice.choice((0, 255, dice.randrange(256))) for _ in range(columns)] for _ in range(rows)]
        elif entry["kind"] == "mel":
            yield [dice.uniform(-1, 1) / (1 + i % 5) for _ in range(dice.choice((0, 1, 160, 701, 3000, 9000)))]
        else:
            width = len(entry["means"])
            yield [
                [dice.choice((0, 1, dice.uniform(-2, 2), 1e6 * (i % 11 == 0))) for _ in range(width)]
                for _ in range(i % 13)
            ]


class Comparison:
    """The answers of seqpipe and of the second runtime to hostile records of a bundle."""

    def __init__(self, path: Path, count: int = 100):
        ours, theirs = load(path, "cpu", threads=1), Bundle(path)
        self.golden = len(theirs.manifest["golden"])
        self.failed_golden = theirs.failed_golden_examples()
        self.tokenizers = {type(tokenizer).__name__ for tokenizer in theirs.tokenizers()}
        self.records = hostile_records(theirs.manifest, count)
        self.answers: list[Any] = []
        self.differences: list[str] = []
        for record in self.records:
            answer = theirs_answer = REFUSED
            with contextlib.suppress(SeqpipeError):
                answer = ours(record)
            with contextlib.suppress(RefusedError):
                theirs_answer = theirs(record)
            self.answers.append(answer)
            if not matches_golden(theirs_answer, answer):
                self.differences.append(f"{record!a}: {answer!a} {theirs_answer!a}")
