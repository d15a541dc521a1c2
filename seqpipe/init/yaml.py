"""Write a commented YAML for a data file: fill the templates of this package, which hold the models and their options.

A template is YAML with three marks. A line that ends in `#? small, not dev` is written where `small` holds and `dev`
does not. `$name` is replaced by a value; one without a value takes with it the `, key: `, `; ` or `  # ` in front of
it. Lines that begin with `##` explain the template and are not written.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from seqpipe.config.plugins import Plugins
from seqpipe.config.signature import construct
from seqpipe.config.yaml import dump
from seqpipe.errors import DataError, UsageError, did_you_mean
from seqpipe.files import write
from seqpipe.init.look import TASKS, summarise
from seqpipe.init.refuse import refuse_useless
from seqpipe.init.summary import DataSummary

EDITOR = "# yaml-language-server: $schema=schema.json\n# `seqpipe schema -o schema.json` writes that schema.\n"
LABELS = 12  # that a comment lists
SPLIT, SHARE = 100, 0.1  # records, from which on dev and test take such a share of them
SMALL = 3000  # records: fewer make a smaller model, trained for longer
SYMBOLS = 500  # different ones of texts that are written symbol by symbol, at most
CHANGED = 0.02  # of the texts to write may not be given back by their tokenizer
RARE = 1 / 30  # spans a word; fewer leave most sentences without any
_GENERIC = {"", "train", "training", "data", "dataset"}  # names that say nothing
_SIBLINGS = {"dev": ("dev", "devel", "valid", "validation", "val"), "test": ("test", "testa", "testb")}
_TEMPLATES = {
    "Entities": "tagging",
    "Tags": "tagging",
    "Labels": "label",
    "Numbers": "score",
    "Texts": "seq2seq",
    "Answers": "answer-span",
    "Pointers": "pointer",
    "Continuations": "language-model",
}
_VOCABULARIES = {200_000: 600, 5_000_000: 4_000}  # characters of a text, and the size of a BPE for up to so many
_HOLE = re.compile(r"(, \w+: |; |  # |)\$(\w+)")
_CONDITIONS = re.compile(r"  #\? ([\w, ]+)$")


STEPS = 200  # that a checkpoint is fine-tuned for, at least
WIDE = 512  # units of a hidden layer: from there on the lower learning rate of large models

# The training of a linear model over n-grams, for labels of whole texts.
EXAMPLES = 48_000  # that are seen in all, within the bounds of epochs
FEWEST_EPOCHS, MOST_EPOCHS, EPOCHS_OF_LONG_TEXTS = 5, 60, 15
LONG_TEXT = 150  # words on average
FEW, MANY = 3, 20  # labels


def init_yaml(
    data: Path,
    output: Path | None = None,
    say: Callable[[str], None] | None = None,
    task: str | None = None,
    target: str | None = None,
    texts: Sequence[str] = (),
    show: Callable[[list[dict[str, Any]]], None] | None = None,
    checkpoint: str | None = None,
) -> Path:
    """Look at `data`, `say` what was seen and chosen, and write the YAML; return its path.

    Args:
        data: A data file, or a folder of texts by label.
        output: The YAML; None: the name of the file in the current folder.
        say: Called with each line about what was seen, chosen and doubted.
        task: The head to learn with, in place of what the data looks like.
        target: The column or key to learn.
        texts: The columns or keys of the text, one or two.
        show: Called with all readings of the file, the chosen one first, each with its evidence and its command.
        checkpoint: A checkpoint to fine-tune, as a folder or by its name on the hub.

    Raises:
        DataError: if the file is of no known format, or nothing can be learned from it.
        UsageError: if the YAML is there already, or there is no such task.
    """
    if task and task not in TASKS:
        raise UsageError(f"--task: no task is named {task!r}{did_you_mean(task, TASKS)}; there is: {', '.join(TASKS)}")
    data = next((data / name for name in ("train", "training") if (data / name).is_dir()), data)
    path = data.resolve()
    stem = path.with_suffix("").stem if path.suffix == ".gz" else path.stem
    names = (stem, *(folder.name for folder in path.parents))
    name = next((name for name in names if name not in _GENERIC), "pipeline")
    file = output or Path(f"{name}.yaml")
    if file.exists():
        raise UsageError(f"{file} is there already; name another with --output, or remove it")
    summary = summarise(data, TASKS[task] if task else None, target, texts)
    refuse_useless(summary, data)
    summary.writer = target_tokenizer(summary)
    remarks = [*summary.reasons(), *summary.remarks(), *summary.doubtful(data)]
    if say:
        for line in remarks:
            say(line)
    if show:
        head = next(task.head for task in TASKS.values() if summary.label_kind in task.kinds)
        command = shlex.join(["seqpipe", "init", str(data), "--task", task or head])
        evidence = [*summary.reasons(), *summary.remarks()]
        chosen = {"task": task or head, "reader": {"use": summary.use, **summary.options}, "records": summary.records}
        others = [
            {"evidence": [doubt.text], "command": doubt.command(data).removeprefix(": ")}
            for doubt in summary.doubts
            if doubt.options
        ]
        show([{**chosen, "evidence": evidence, "command": command}, *others])
    run = re.sub("[^A-Za-z0-9._-]", "-", name if file.stem in _GENERIC else file.stem).lstrip("._-")
    has_dev = sibling(data, "dev") is not None or takes_shares(summary)
    content = data_yaml(summary, data, file, run or "pipeline")
    if checkpoint is None:
        content += model_yaml(summary, has_dev)
    else:
        content += checkpoint_yaml(summary, checkpoint, file, has_dev)
    write(file, f"{EDITOR}{content}")
    return file


def data_yaml(summary: DataSummary, data: Path, target: Path, name: str) -> str:
    """Return the head of a YAML: comments on what was seen, the run's name, and the files with their reader."""
    about = "about " if summary.factor != 1 else ""
    words = "" if summary.unspaced or not summary.words else f", {summary.words:,} words"
    labels = [
        f"{label if label.isprintable() else ascii(label)} {count:,}"
        for label, count in summary.labels.most_common(LABELS)
    ]
    more = " …" if len(summary.labels) > LABELS else ""
    listed = [f"{summary.label_kind}: {', '.join(labels)}{more}"] if labels else []
    folder = target.resolve().parent
    files = {"train": data, "dev": sibling(data, "dev"), "test": sibling(data, "test")}
    values = {
        "file": data.name,
        "size": f"{about}{summary.records:,} records{words}",
        "remarks": "\n# ".join([*summary.reasons(), *listed, *summary.remarks(), *summary.doubtful(data)]),
        "name": flow(name),
        "reader": summary.use,
        "options": "".join(f", {option}: {flow(value)}" for option, value in summary.options.items()),
        "suffix": data.suffix,
        "skips_bad": summary.left_out and summary.bad_rows == "skip",
        "has_bad": summary.left_out and summary.bad_rows == "error",
        "spans": summary.use in ("jsonl", "json", "parquet", "annotations") and summary.label_kind == "Entities",
    }
    values |= {role: flow(os.path.relpath(file.resolve(), folder)) if file else None for role, file in files.items()}
    for role in ("dev", "test"):
        values[f"{role}_share"] = flow(SHARE) if takes_shares(summary) and not files[role] else None
    return fill("data", values)


def takes_shares(summary: DataSummary) -> bool:
    """Return whether records of the training data may become dev and test records: there are many, one by one."""
    return summary.records >= SPLIT and summary.label_kind not in ("Continuations", "Pointers")


def model_yaml(summary: DataSummary, has_dev: bool) -> str:
    """Return the keys of the model and of its training."""
    is_pair, entities = len(summary.fields) > 1, sum(summary.labels.values())
    is_plain = summary.label_kind == "Continuations"
    normalization = summary.scripts.normalization(generates=is_plain)
    is_long = summary.words > LONG_TEXT * summary.records and not summary.unspaced
    compares = is_pair and summary.label_kind in ("Labels", "Numbers")
    name = "pairs" if compares else _TEMPLATES[summary.label_kind]
    writer, reason = summary.writer or target_tokenizer(summary)
    values = {
        "dev": has_dev,
        "small": summary.characters <= min(_VOCABULARIES) if is_plain else summary.records < SMALL,
        "unspaced": summary.unspaced,
        "segmented": summary.segmented,
        "spaced": not (summary.unspaced or summary.segmented),
        "form": normalization[0] if normalization else None,
        "form_reason": normalization[1] if normalization else None,
        "fields": flow(summary.fields) if is_pair else None,
        "target": flow(summary.target),
        "writer": writer,
        "writer_reason": reason,
        "multi": summary.multi,
        "joint": summary.joint,
        "score": summary.label_kind == "Numbers",
        "entities": f"{entities:,}" if summary.label_kind == "Entities" else None,
        "words": f"{summary.words:,}",
        "rare": summary.label_kind == "Entities" and not summary.unspaced and entities < RARE * summary.words,
        "no_answer": flow(summary.unanswered > 0),
        "single_numbers": summary.options.get("width") == 1,
        "vocabulary": next((size for most, size in _VOCABULARIES.items() if summary.characters <= most), 8_000),
    }
    values |= {key: flow(value) if value is not None else None for key, value in summary.pointer.items()}
    number = len(summary.labels)
    epochs = min(MOST_EPOCHS, max(FEWEST_EPOCHS, math.ceil(EXAMPLES / max(1, summary.records))))
    values |= {
        "long": is_long,
        "two": number == 2 and not is_long and not summary.multi,
        "few": number <= FEW and not summary.multi,
        "many": number > MANY or summary.multi,
        "epochs": EPOCHS_OF_LONG_TEXTS if is_long else epochs,
    }
    return fill(name, values)


def target_tokenizer(summary: DataSummary) -> tuple[str, str]:
    """Return the tokenizer of the texts to write, as YAML, and the reason: one that gives back the texts of the data.

    Words are tried first, then characters, of one word, and pieces of bytes, which write any text.
    """
    texts = summary.written
    words: tuple[dict[str, Any], str]
    words = {"use": "words", "detokenize": True}, "{use: chars} for names, codes, dates"
    chars: tuple[dict[str, Any], str] = {"use": "chars"}, "character by character, as names, codes and dates are"
    if not texts:
        options, reason = chars if summary.unspaced else words
        return flow(options), reason
    counts = Counter(symbol for text in texts for symbol in text.split())
    once = sum(1 for number in counts.values() if number == 1)
    tries: list[tuple[dict[str, Any], str]] = []
    if sum(text.count(" ") for text in texts) >= len(texts) / 2:
        tries.append(words)
        if len(counts) <= SYMBOLS and once <= CHANGED * counts.total():
            # Symbols of a closed set, such as phonemes, are no words with punctuation.
            symbols = {"use": "words", "pattern": r"\S+"}, "the symbols between blanks"
            tries.insert(0 if summary.is_word else 1, symbols)
    if not tries or summary.is_word:
        tries.append(chars)
    size = 600 if sum(map(len, texts)) <= min(_VOCABULARIES) else 4_000
    tries.append(({"use": "bpe", "byte_level": True, "max_size": size}, "pieces of bytes, which write any text"))
    shares = []
    for options, reason in tries:
        component = {name: value for name, value in options.items() if name != "use"}
        tokenizer: Any = construct(Plugins().find("tokenizer", options["use"]).load(), **component).train(texts)
        shares.append(sum(tokenizer.decode(tokenizer.encode(text).ids) != text for text in texts) / len(texts))
        if shares[-1] <= CHANGED:
            return flow(options), reason
    share = f"{min(shares):.0%} of the texts to write change when they are encoded and decoded"
    summary.doubt(f"{share}: no answer can be equal to them; write the data so")
    options, reason = tries[shares.index(min(shares))]
    return flow(options), reason


def checkpoint_yaml(summary: DataSummary, checkpoint: str, target: Path, has_dev: bool) -> str:
    """Return the keys of a model that fine-tunes a checkpoint; DataError or UsageError if it cannot be an encoder."""
    kind, folder = summary.label_kind, Path(checkpoint)
    if kind not in ("Labels", "Entities", "Tags", "Numbers", "Answers"):
        fix = "leave --checkpoint out; for texts to write see the encoder pretrained-seq2seq (docs/tasks/pretrained.md)"
        raise UsageError(f"--checkpoint: an encoder is fine-tuned for labels, tags, numbers and answers; {fix}")
    wide = True
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise DataError(f"{folder}: no config.json; a checkpoint is a folder that save_pretrained wrote")
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"{folder / 'config.json'}: not JSON: {error}; get the checkpoint again") from error
        name = str((config.get("architectures") or ["it"])[0])
        if config.get("is_encoder_decoder") or name.endswith(("LMHeadModel", "ForCausalLM")):
            raise DataError(f"{folder}: {name} writes text; choose the checkpoint of an encoder, as BERT")
        wide = (config.get("hidden_size") or config.get("dim") or WIDE) >= WIDE
        checkpoint = Path(os.path.relpath(folder.resolve(), target.resolve().parent)).as_posix()
    elif folder.is_absolute() or checkpoint.startswith("."):
        raise UsageError(f"--checkpoint: {checkpoint}: no such folder")
    values = {
        "checkpoint": flow(checkpoint),
        "fields": flow(summary.fields) if len(summary.fields) > 1 else None,
        "wide": wide,
        "tags": kind in ("Entities", "Tags"),
        "entities": kind == "Entities",
        "labels": kind == "Labels",
        "numbers": kind == "Numbers",
        "answers": kind == "Answers",
        "multi": summary.multi,
        "target": flow(summary.target),
        "no_answer": flow(summary.unanswered > 0),
        "epochs": min(MOST_EPOCHS, max(4, math.ceil(STEPS * 16 / max(1, summary.records)))),
        "dev": has_dev,
    }
    return fill("checkpoint", values)


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Return the text of a template with its marks replaced; KeyError for a mark without an entry in `values`."""
    text = resources.files("seqpipe.init").joinpath("templates", f"{template}.yaml").read_text(encoding="utf-8")
    # Conditions and marks are read from the template alone: values such as labels may hold `$` and `#?` themselves.
    lines = []
    for line in text.splitlines():
        conditions = _CONDITIONS.search(line)
        if conditions:
            line = line[: conditions.start()]
        words = conditions[1].split(", ") if conditions else []
        if line.lstrip().startswith("##") or any(
            bool(values[word.removeprefix("not ")]) == word.startswith("not ") for word in words
        ):
            continue
        lines.append(_HOLE.sub(lambda hole: "" if values[hole[2]] is None else f"{hole[1]}{values[hole[2]]}", line))
    return "\n".join([*lines, ""])


def flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{flow(key)}: {flow(item)}' for key, item in value.items())}}}"
    text = dump({"k": value}).strip().removeprefix("k: ")
    # `dump` writes for a line of its own, where these signs need no quotes.
    is_plain = isinstance(value, str) and text == value
    return f"'{value}'" if is_plain and not {*",[]{}?:"}.isdisjoint(value) else text


def sibling(data: Path, role: str) -> Path | None:
    """Return the file of another role that is named alike, as dev.tsv beside train.tsv."""
    if "train" not in data.name:
        return None
    names = (data.name.replace("training", "train").replace("train", word) for word in _SIBLINGS[role])
    return next((data.with_name(name) for name in names if data.with_name(name).exists()), None)
