"""Show some answers of a bundle, each text and answer in a line or two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seqpipe.console import Console, text_width
from seqpipe.runtime.model import Model

EXAMPLES = 4  # answers that are shown
INPUT, ANSWER = 160, 220  # columns of a text and of an answer with its score
LINES = 4  # of an answer that stands below each other
SLACK = 20  # characters in which a cut looks for a blank


def print_answers(model: Model, console: Console) -> None:
    """Print the first golden examples that are answered without options."""
    console.say("\nanswers of the bundle:")
    examples = [example for example in model.manifest.golden if not example.options]
    for example in examples[:EXAMPLES]:
        console.say(f"  {_shown_inputs(example.record, example.answer)}")
        for line in shown_lines(model.predictor.kind.lines(example.answer)):
            console.say(f"    {line}")


def _shown_inputs(record: str | Mapping[str, Any], answer: Any) -> str:
    """The texts of a record; of several the spans of an answer lie in the last, so that one is cut around them."""
    if isinstance(record, str):
        record = {"text": record}
    texts = [value if isinstance(value, str) else str(value) for name, value in record.items() if name != "words"]
    *before, last = texts or [" ".join(record.get("words", []))]
    start = min(_starts(answer), default=0)
    return " | ".join([*(excerpt(text, INPUT) for text in before), excerpt(last, INPUT, start)])


def _starts(answer: Any) -> Iterator[int]:
    """Where the spans of an answer start."""
    if isinstance(answer, Mapping):
        if isinstance(start := answer.get("start"), int) and answer.get("end") != start:
            yield start
        answer = list(answer.values())
    if isinstance(answer, list):
        for part in answer:
            yield from _starts(part)


def shown_lines(lines: Sequence[str]) -> list[str]:
    """The lines of an answer; more than `LINES` are joined to one, as far as that has room for them."""
    if len(lines) <= LINES:
        return [excerpt(line, ANSWER) for line in lines]
    joined, count = excerpt(lines[0], ANSWER), 1
    while count < len(lines) and text_width(f"{joined}; {lines[count]}") <= ANSWER:
        joined, count = f"{joined}; {lines[count]}", count + 1
    return [joined if count == len(lines) else f"{joined}; … and {len(lines) - count} more"]


def excerpt(text: str, columns: int, start: int = 0) -> str:
    """A text on one line; of a long one as much as fits, from shortly before `start`, cut at blanks."""
    if text_width(text) <= columns:
        return " ".join(text.split())
    room = int(columns * len(text) / text_width(text))  # characters
    begin = 0 if start < room // 2 else min(start - room // 4, len(text) - room)
    end = begin + room
    if begin and (blank := text.find(" ", begin, min(begin + SLACK, start))) >= 0:
        begin = blank
    if end < len(text) and (blank := text.rfind(" ", end - SLACK, end + 1)) >= 0:
        end = blank
    before, after = "… " if begin else "", " …" if end < len(text) else ""
    return before + " ".join(text[begin:end].split()) + after
