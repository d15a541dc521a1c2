"""One text of 12,000 words among 400, for each family of heads and each encoder, in a process of 3 GB.

    python benchmarks/long_texts.py                        # all families and encoders, about an hour on one core
    python benchmarks/long_texts.py crf pointer --encoders lstm bert --words 3000 --gigabytes 1

`train` must end, or `check` must name the record, its length and a fix. A line tells which of the two, the peak of the
process that ended, or the message. Figures are recorded in runs/results.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import common
import yaml
from common import write_jsonl

TEXTS, LONG, SHORT, WRITTEN = 400, 200, (5, 30), 1000  # WRITTEN: most words of a target that is no copy of the text
PIECES = 300  # of the small checkpoint
Record = dict[str, Any]

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv.pop(1)),) * 2)
from seqpipe.commands.app import main
main()
"""


class Family(NamedTuple):
    """Heads that are trained alike: the lines of their YAML, and the fields of a record of these words."""

    head: Any
    fields: Callable[[list[str]], Record]
    reader: Mapping[str, Any] = {"use": "jsonl"}
    tokenizer: Mapping[str, Any] = {}  # more options
    encoders: Mapping[str, Mapping[str, Any] | None] = {}  # more options of an encoder; None: the head cannot follow it


def text(words: list[str]) -> Record:
    return {"text": " ".join(words)}


def labelled(words: list[str]) -> Record:
    return text(words) | {"label": words[0][0]}


def tagged(words: list[str]) -> Record:
    return {"words": words, "tags": ["BI"[i % 2] + "-X" for i in range(len(words))], "label": words[0][0]}


def written(words: list[str]) -> Record:
    return text(words) | {"target": " ".join(reversed(words[:WRITTEN]))}


def question_record(words: list[str]) -> Record:
    context, at = " ".join(words), len(" ".join(words[: len(words) // 2])) + 1
    answer = words[len(words) // 2]
    return {"question": words[0], "context": context, "answers": [{"text": answer, "start": at}]}


def paired(words: list[str]) -> Record:
    half = len(words) // 2
    return {"text": " ".join(words[:half]), "text_pair": " ".join(words[half:]), "label": words[0][0]}


ONE_WAY = {"lstm": {"direction": "forward"}, "transformer": {"causal": True}, "cnn": None, "bert": None}
SAME = {"target_tokenizer": "same"}
FAMILIES = {
    "label": Family({"use": "label"}, labelled),
    "score": Family({"use": "score", "target": "value"}, lambda words: text(words) | {"value": len(words) / 100}),
    "tags": Family({"use": "tags", "scheme": "IOB2"}, tagged),
    "crf": Family({"use": "crf", "scheme": "BIOES"}, tagged),
    "answer-span": Family(
        {"use": "answer-span"}, question_record, {"use": "jsonl", "text": None}, {"field": ["question", "context"]}
    ),
    "pairs": Family({"use": "label"}, paired, tokenizer={"field": ["text", "text_pair"]}),
    "vector": Family({"use": "vector"}, labelled),
    "seq2seq": Family({"use": "seq2seq", **SAME}, written),
    "copy-seq2seq": Family({"use": "copy-seq2seq", **SAME}, written),
    "transformer-decoder": Family({"use": "transformer-decoder", **SAME}, written),
    "pointer": Family({"use": "pointer"}, lambda words: text(words) | {"pointers": [*range(min(len(words), WRITTEN))]}),
    "lm, packed": Family({"use": "lm", "context": 128}, text, encoders=ONE_WAY),
    "lm, a text at a time": Family({"use": "lm", "packed": False}, text, encoders=ONE_WAY),
    "mlm": Family({"use": "mlm"}, text, encoders={"lstm": None}),
    "label and crf": Family(
        [{"use": "label", "name": "topic"}, {"use": "crf", "name": "spans", "scheme": "BIOES"}], tagged
    ),
}
ENCODERS: dict[str, dict[str, Any]] = {
    "lstm": {"use": "lstm", "hidden": 64},
    "cnn": {"use": "cnn"},
    "transformer": {"use": "transformer"},
    "bert": {"use": "pretrained", "lr": 0.001},
}


def prepare(name: str, encoder: str, words: int, folder: Path) -> Path | None:
    """Write the data and the YAML of a family on an encoder; None if the head cannot follow it."""
    family, draw = FAMILIES[name], random.Random(1)
    options = family.encoders.get(encoder, {})
    if options is None:
        return None
    known = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(200)]
    counts = [words if i == LONG else draw.randint(*SHORT) for i in range(TEXTS)]
    write_jsonl(folder / "train.jsonl", (family.fields(draw.choices(known, k=count)) for count in counts))
    content: dict[str, Any] = {
        "name": f"long-{re.sub('[^a-z0-9]+', '-', name)}-{encoder}",
        "data": {"reader": family.reader, "train": "train.jsonl"},
        "tokenizer": {"use": "words"} | family.tokenizer,
        "embedding": {"use": "lookup", "dim": 64},
        "encoder": ENCODERS[encoder] | options,
        "head": family.head,
        "train": {"epochs": 1, "batch_tokens": 1024, "threads": 1},
    }
    if encoder == "bert":
        checkpoint = {"checkpoint": "tiny-bert"}
        content["needs"] = [{"path": "tiny-bert", "make": "tiny-bert", "pieces": PIECES}]
        content["tokenizer"] = {"use": "pretrained"} | checkpoint | family.tokenizer
        content["encoder"] = [content["encoder"] | checkpoint]
        content["encoder"] += [{"use": "words"}] if family.fields is tagged else []
        del content["embedding"]
    path = folder / "long.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


class Outcome(NamedTuple):
    code: int
    message: str  # the last line of standard error
    megabytes: float  # peak
    seconds: float


def run(command: str, path: Path, allowed: int, *overrides: str) -> Outcome:
    """Run a command of seqpipe in a process whose private memory is limited to `allowed` bytes."""
    clock = time.monotonic()
    arguments = [sys.executable, "-c", LIMITED, str(allowed), command, str(path), *overrides]
    with subprocess.Popen(
        arguments, cwd=path.parent, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        lines = process.stderr.read().strip().splitlines()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    message = lines[-1] if lines else ""
    return Outcome(process.returncode, message, usage.ru_maxrss / 1024, time.monotonic() - clock)


def names_record_and_fix(message: str, words: int) -> bool:
    """Return whether a message names the place of the long record, its length, a cause and a setting to change.

    Of two texts on a checkpoint it is about the first, which has half of the words, and says to shorten that.
    """
    place, length = f"train.jsonl:{LONG + 1}" in message, re.search(r"([\d,]+) tokens", message)
    least, fix = (words // 2, "shorten it") if "the first text has" in message else (words, "train.")
    return place and length is not None and int(length[1].replace(",", "")) >= least and fix in message


def measure(name: str, encoder: str, words: int, allowed: int, folder: Path) -> tuple[str, Outcome] | None:
    """Return the result of a family on an encoder, and the run that shows it; None if the head cannot follow it."""
    path = prepare(name, encoder, words, folder)
    if path is None:
        return None
    trained = run("train", path, allowed)
    if trained.code == 0:
        return "trained", trained
    checked = run("check", path, allowed)
    if checked.code == 3 and names_record_and_fix(checked.message, words):
        return "refused by check", checked
    return f"NEITHER: {trained.code}", trained


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("families", nargs="*", choices=[[], *FAMILIES], metavar="family")
    parser.add_argument("--encoders", nargs="+", choices=ENCODERS, default=[*ENCODERS])
    parser.add_argument("--words", type=int, default=12_000, help="of the long text")
    parser.add_argument("--gigabytes", type=float, default=3.0, help="private memory of the process")
    arguments = parser.parse_args()
    failed, columns = 0, ("result", "peak MB", "seconds", "message")
    table = common.Table("long_texts", "long_texts", "head, encoder", *columns)
    for name in arguments.families or FAMILIES:
        for encoder in arguments.encoders:
            with tempfile.TemporaryDirectory() as folder:
                measured = measure(name, encoder, arguments.words, int(arguments.gigabytes * 1e9), Path(folder))
            if measured is not None:
                result, (_, message, megabytes, seconds) = measured
                failed += result.startswith("NEITHER")
                shown = "" if result == "trained" else message.replace(folder + "/", "")
                table.row(f"{name}, {encoder}", result, f"{megabytes:,.0f}", f"{seconds:.0f}", shown)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
