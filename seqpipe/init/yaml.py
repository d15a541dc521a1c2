"""Write a commented YAML for a data file: fill the templates of this package, which have the models and their options.

A template is YAML with three marks. A line that ends in `#? small, not dev` is written if `small` is true and `dev`
is false. `$name` is replaced by a value; if it is None, the `, key: `, `; ` or `  # ` before it is removed too. Lines
that begin with `##` explain the template and are not written.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from seqpipe.config.plugins import Plugins
from seqpipe.config.signature import construct
from seqpipe.config.yaml import dump, parse_tree
from seqpipe.errors import DataError, UsageError, did_you_mean
from seqpipe.files import write
from seqpipe.init.decide import to_json
from seqpipe.init.look import summarise
from seqpipe.init.refuse import refuse_useless
from seqpipe.init.summary import TASKS, DataSummary, head_for, load_json

DOUBTS_ABOUT = "# The doubts are about reader, split and target as written: "
EDITOR = "# yaml-language-server: $schema=schema.json\n# `seqpipe schema -o schema.json` writes that schema.\n"
MAX_COMMENT_LABELS = 12  # in a comment, at most
MIN_SPLIT_RECORDS, HELD_OUT_SHARE = 100, 0.1  # records, from which on dev and test have such a share of them
SMALL_DATA_RECORDS = 3000  # records; fewer make a smaller model, trained for longer
CHANGED = 0.02  # of the texts to write change when their tokenizer encodes and decodes them, at most
_GENERIC = {"", "train", "training", "data", "dataset"}  # names that say nothing
_SIBLINGS = {"dev": ("dev", "devel", "valid", "validation", "val"), "test": ("test", "testa", "testb")}
_VOCABULARIES = {200_000: 600, 5_000_000: 4_000}  # size of a BPE, for texts of up to so many characters
_HOLE = re.compile(r"(, \w+: |; |  # |)\$(\w+)")

# Little data is seen more often, so that it is learned at all: steps, at least.
MIN_STEPS, MIN_CHECKPOINT_STEPS, MIN_SPELLING_STEPS = 300, 200, 1_800

# Batches for a GPU, on which a step takes as long with many tokens as with few: at most so many times as large as for a
# CPU, so large that many optimiser steps are left, and that a token has enough of the memory.
MOST_GROWTH, STEPS_LEFT, TOKEN_MEMORY, PASSES = 16, 2_000, 1 << 20, 20

# Tokenizers of the texts to write: name, options, and the reason for it.
TargetTokenizer = tuple[str, dict[str, Any], str]
_WORD_TARGETS: TargetTokenizer = "words", {"detokenize": True}, "{use: chars} for names, codes, dates"
_CHAR_TARGETS: TargetTokenizer = "chars", {}, "character by character, as names, codes and dates are"
_SYMBOL_TARGETS: TargetTokenizer = "words", {"pattern": r"\S+"}, "the symbols between blanks"


def init_yaml(
    data: Path,
    output: Path | None = None,
    say: Callable[[str], None] | None = None,
    task: str | None = None,
    target: str | None = None,
    texts: Sequence[str] = (),
    show: Callable[[list[dict[str, Any]]], None] | None = None,
    checkpoint: str | None = None,
    header: bool | None = None,
) -> Path:
    """Look at `data`, `say` each line about what was seen, chosen and doubted, and write the YAML; return its path.

    `header` decides whether the first row of a table has the names of its columns; None: what it looks like.
    `show` is called with all readings of the data, the chosen one first, each with its evidence and its command.

    Raises:
        DataError: if the format of the file is unknown, or nothing can be learned from it.
        UsageError: if the YAML exists already, or the task is unknown.
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
        raise UsageError(f"{file} exists already; name another with --output, or remove it")
    summary = summarise(data, TASKS[task] if task else None, target, texts, header)
    refuse_useless(summary, data)
    summary.writer = target_tokenizer(summary)
    evidence = [*summary.reasons(), *summary.remarks(data)]
    if say:
        for line in evidence:
            say(line)
    if show:
        head = task or head_for(summary.label_kind)
        command = shlex.join(["seqpipe", "init", str(data), "--task", head])
        chosen = {"task": head, "reader": {"use": summary.use, **summary.options}, "records": summary.records}
        evidence = evidence[: len(evidence) - len(summary.doubts)]
        chosen |= to_json(summary.decision) | {"evidence": evidence, "command": command}
        doubts = [doubt for doubt in summary.doubts if doubt.options]
        show([chosen, *({"evidence": [doubt.text], "command": doubt.command(data)} for doubt in doubts)])
    run = re.sub("[^A-Za-z0-9._-]", "-", name if file.stem in _GENERIC else file.stem).lstrip("._-")
    has_dev = sibling_file(data, "dev") is not None or takes_shares(summary) or "dev" in summary.split
    fine_tuning = checkpoint_values(summary, checkpoint, file) if checkpoint is not None else None
    text = EDITOR + data_yaml(summary, data, file, run or "pipeline") + model_yaml(summary, has_dev, fine_tuning)
    if summary.doubts:
        text = text.replace("\nname:", f"\n{DOUBTS_ABOUT}{_reading_digest(text)}\nname:", 1)
    write(file, text)
    return file


def open_doubts(text: str) -> list[str]:
    """Return the doubts in the comments of a YAML, unless the reader or what is learned was changed since."""
    doubts = [line[2:] for line in text.splitlines() if line.startswith("# doubtful: ")]
    is_unchanged = not doubts or f"{DOUBTS_ABOUT}{_reading_digest(text)}" in text.splitlines()
    return doubts if is_unchanged else []


def _reading_digest(text: str) -> str:
    """Return a short hash of the keys of a YAML that its doubts are about."""
    content: Any = parse_tree(text.encode(), "").data
    data, heads = content["data"], content["head"] if isinstance(content["head"], list) else [content["head"]]
    read = {key: data.get(key) for key in ("reader", "bad_rows", "split")}
    learned = [[head.get(key) for key in ("use", "target")] if isinstance(head, dict) else head for head in heads]
    return hashlib.sha256(json.dumps([read, learned]).encode()).hexdigest()[:8]


def data_yaml(summary: DataSummary, data: Path, target: Path, name: str) -> str:
    """Return the head of a YAML: comments on what was seen, the run's name, and the files with their reader."""
    about = "about " if summary.factor != 1 else ""
    words = "" if summary.unspaced or not summary.words else f", {summary.words:,} words"
    counts = summary.labels.most_common(MAX_COMMENT_LABELS)
    labels = [f"{label if label.isprintable() else ascii(label)} {number:,}" for label, number in counts]
    more = " …" if len(summary.labels) > MAX_COMMENT_LABELS else ""
    listed = [f"{summary.label_kind}: {', '.join(labels)}{more}"] if labels else []
    files = {"train": data, "dev": sibling_file(data, "dev"), "test": sibling_file(data, "test")}
    values: dict[str, Any] = {
        "file": data.name,
        "size": f"{about}{summary.records:,} records{words}",
        "remarks": "\n# ".join([*summary.reasons(), *listed, *summary.remarks(data)]),
        "name": flow_yaml(name),
        "reader": summary.use,
        "options": "".join(f", {option}: {flow_yaml(value)}" for option, value in summary.options.items()),
        "suffix": data.suffix,
        "group": summary.group if takes_shares(summary) else "",
        "skips_bad": summary.left_out and summary.bad_rows == "skip",
        "has_bad": summary.left_out and summary.bad_rows == "error",
        "spans": summary.use in ("jsonl", "json", "parquet", "annotations") and summary.label_kind == "Entities",
    }
    values["split"] = flow_yaml(summary.split) if summary.split else None
    for role, file in files.items():
        is_split = values[f"split_{role}"] = role in summary.split
        path = os.path.relpath(file.resolve(), target.resolve().parent) if file and not is_split else None
        values[role] = flow_yaml(path) if path else None
        values[f"{role}_share"] = HELD_OUT_SHARE if takes_shares(summary) and not (path or is_split) else None
    return fill("data", values)


def takes_shares(summary: DataSummary) -> bool:
    """Return whether dev and test may be shares of the training records: there are many, and each is separate."""
    return summary.records >= MIN_SPLIT_RECORDS and summary.label_kind not in ("Continuations", "Pointers")


def model_yaml(summary: DataSummary, has_dev: bool, fine_tuning: dict[str, Any] | None = None) -> str:
    """Return the keys of the model and of its training; `fine_tuning` are the values for a checkpoint."""
    kind, scripts, number = summary.label_kind, summary.scripts, len(summary.labels)
    is_pair, entities, is_plain = len(summary.fields) > 1, summary.labels.total(), kind == "Continuations"
    form, form_reason = scripts.normalization(generates=is_plain) or (None, None)
    is_long = summary.words > 150 * summary.records and not summary.unspaced
    compares = is_pair and kind in ("Labels", "Numbers")
    writer, reason = summary.writer or target_tokenizer(summary)
    is_small = summary.characters <= min(_VOCABULARIES) if is_plain else summary.records < SMALL_DATA_RECORDS
    # With one span in 30 words, or fewer, most sentences have none.
    is_rare = kind == "Entities" and not summary.unspaced and entities < summary.words / 30
    batch = 256 if is_rare else 512 if is_small and not is_plain else 1024
    if fine_tuning:
        epochs = least_epochs(4, MIN_CHECKPOINT_STEPS, 16, summary.records)
    elif compares:
        epochs = least_epochs(12, MIN_STEPS, 32, summary.records)
    elif kind == "Labels":
        # A linear model over n-grams sees 48,000 examples in all epochs.
        usual = min(60, max(5, math.ceil(48_000 / max(1, summary.records))))
        epochs = least_epochs(15 if is_long else usual, MIN_STEPS, 32, summary.records)
    else:
        tokens = summary.words * (10 if summary.is_word else 1)  # the spelling of a word has about ten letters
        steps = MIN_SPELLING_STEPS if summary.is_word else MIN_STEPS
        epochs = least_epochs(40 if is_small else 20, steps, batch, tokens)
    seen = PASSES * summary.characters // (1 if summary.unspaced else 4) if is_plain else epochs * summary.words
    growth = 1 if is_rare or fine_tuning else batch_growth(batch, seen, gpu_memory())
    values = {
        "batch_tokens": growth * batch,
        "batch_size": growth * 8,
        "gpu": f"for the GPU of this machine; for a CPU 1/{growth} of it" if growth > 1 else None,
        "dev": has_dev,
        "calibrate": flow_yaml(True) if has_dev else None,
        "small": is_small,
        "unspaced": summary.unspaced,
        "segmented": summary.segmented,
        "spaced": not (summary.unspaced or summary.segmented),
        "form": form,
        "form_reason": form_reason,
        "fields": flow_yaml(summary.fields) if is_pair else None,
        "target": flow_yaml(summary.target),
        "writer": writer,
        "writer_reason": reason,
        "copies": "byte_level" in writer and not is_pair,
        # Ten more are special tokens, and letters that are not in the sample.
        "letters": len(scripts.letters) + 10 if summary.is_word and scripts.hangul > scripts.texts / 2 else None,
        "multi": summary.multi,
        "joint": summary.joint,
        "score": kind == "Numbers",
        "entities": f"{entities:,}" if kind == "Entities" else None,
        "words": f"{summary.words:,}",
        "rare": is_rare,
        "no_answer": flow_yaml(summary.unanswered > 0),
        "single_numbers": summary.options.get("width") == 1,
        "vocabulary": next((size for most, size in _VOCABULARIES.items() if summary.characters <= most), 8_000),
        "long": is_long,
        "two": number == 2 and not is_long and not summary.multi,
        "few": number <= 3 and not summary.multi,
        "many": number > 20 or summary.multi,
        "epochs": epochs,
        "patience": max(3 if fine_tuning else 4 if compares else 8, epochs // 5),
    }
    values |= {key: flow_yaml(value) if value is not None else None for key, value in summary.pointer.items()}
    if summary.media:
        media = {"media": flow_yaml(summary.fields[0]), "sound": summary.media == "sound"}
        return fill("media", values | media | {"writes": kind == "Texts"})
    if fine_tuning:
        return fill("checkpoint", values | fine_tuning)
    return fill("pairs" if compares else head_for(kind), values)


def least_epochs(usual: int, steps: int, batch: int, size: int) -> int:
    """Return the usual number of epochs, or up to 300 for so many steps, by the size of a batch and of the data."""
    return max(usual, min(300, math.ceil(steps / max(1, size // batch))))


def gpu_memory() -> int:
    """Return the memory of the GPU in bytes; 0 without one that PyTorch can use."""
    if shutil.which("nvidia-smi") is None:  # of its driver; it takes no second, as the import of PyTorch does
        return 0
    import torch

    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0


def batch_growth(batch: int, seen: int, memory: int) -> int:
    """Return the factor, a power of two, of a batch of tokens for a GPU, by its memory and the tokens of all epochs."""
    most = min(MOST_GROWTH, seen // (batch * STEPS_LEFT), memory // (batch * TOKEN_MEMORY))
    return 1 << max(1, most).bit_length() - 1


def target_tokenizer(summary: DataSummary) -> tuple[str, str]:
    """Return the tokenizer of the texts to write, as YAML, and the reason: the first that gives back the texts.

    Words are tried first, then characters, if the texts are words, and pieces of bytes, which write any text.
    """
    texts = summary.written
    if not texts:
        use, options, reason = _CHAR_TARGETS if summary.unspaced else _WORD_TARGETS
        return flow_yaml({"use": use, **options}), reason
    counts = Counter(symbol for text in texts for symbol in text.split())
    are_words = sum(text.count(" ") for text in texts) >= len(texts) / 2
    tries = [_WORD_TARGETS] if are_words else []
    if are_words and len(counts) <= 500 and [*counts.values()].count(1) <= CHANGED * counts.total():
        # Symbols of a closed set, such as phonemes, are not words with punctuation.
        tries.insert(0 if summary.is_word else 1, _SYMBOL_TARGETS)
    if not are_words or summary.is_word:
        tries.append(_CHAR_TARGETS)
    size = 600 if sum(map(len, texts)) <= min(_VOCABULARIES) else 4_000
    tries.append(("bpe", {"byte_level": True, "max_size": size}, "pieces of bytes, which write any text"))
    result = "", ""
    for use, options, reason in tries:
        result = flow_yaml({"use": use, **options}), reason
        tokenizer: Any = construct(Plugins().find("tokenizer", use).load(), **options).train(texts)
        changed = sum(tokenizer.decode(tokenizer.encode(text).ids) != text for text in texts)
        if changed <= CHANGED * len(texts):
            break
    return result


def checkpoint_values(summary: DataSummary, checkpoint: str, target: Path) -> dict[str, Any]:
    """Return the values for fine-tuning a checkpoint; DataError or UsageError if it cannot be an encoder."""
    kind, folder, is_wide = summary.label_kind, Path(checkpoint), True
    if kind not in ("Labels", "Entities", "Tags", "Numbers", "Answers"):
        fix = "leave --checkpoint out; for texts to write see the encoder pretrained-seq2seq (docs/tasks/pretrained.md)"
        raise UsageError(f"--checkpoint: an encoder is fine-tuned for labels, tags, numbers and answers; {fix}")
    if folder.is_dir():
        config = load_json(folder / "config.json") if (folder / "config.json").is_file() else None
        if not isinstance(config, dict):
            raise DataError(f"{folder}: no config.json in JSON; a checkpoint is a folder that save_pretrained wrote")
        name = str((config.get("architectures") or ["it"])[0])
        if config.get("is_encoder_decoder") or name.endswith(("LMHeadModel", "ForCausalLM")):
            raise DataError(f"{folder}: {name} writes text; choose the checkpoint of an encoder, as BERT")
        # From 512 units of a hidden layer on, the learning rate is that of large models.
        is_wide = (config.get("hidden_size") or config.get("dim") or 512) >= 512
        checkpoint = Path(os.path.relpath(folder.resolve(), target.resolve().parent)).as_posix()
    elif folder.is_absolute() or checkpoint.startswith("."):
        raise UsageError(f"--checkpoint: {checkpoint}: no such folder")
    kinds = {"tags": kind in ("Entities", "Tags"), "labels": kind == "Labels", "answers": kind == "Answers"}
    return {"checkpoint": flow_yaml(checkpoint), "wide": is_wide, **kinds}


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Return the text of a template with its marks replaced; KeyError for a mark without an entry in `values`."""
    text = resources.files("seqpipe.init").joinpath("templates", f"{template}.yaml").read_text(encoding="utf-8")
    # Conditions and marks are read from the template alone: values such as labels may contain `$` and `#?` too.
    lines = []
    for line in text.splitlines():
        line, _, conditions = line.partition("  #? ")
        words = filter(None, conditions.split(", "))
        is_written = all(bool(values[word.removeprefix("not ")]) != word.startswith("not ") for word in words)
        if is_written and not line.lstrip().startswith("##"):
            lines.append(_HOLE.sub(lambda hole: "" if values[hole[2]] is None else f"{hole[1]}{values[hole[2]]}", line))
    return "\n".join([*lines, ""])


def flow_yaml(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(flow_yaml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{flow_yaml(key)}: {flow_yaml(item)}' for key, item in value.items())}}}"
    text = dump({"k": value}).strip().removeprefix("k: ")
    # `dump` writes a value for its own line, where these characters need no quotes.
    is_plain = isinstance(value, str) and text == value
    return f"'{value}'" if is_plain and not {*",[]{}?:"}.isdisjoint(value) else text


def sibling_file(data: Path, role: str) -> Path | None:
    """Return the file of another role with a matching name, such as dev.tsv beside train.tsv."""
    if "train" not in data.name:
        return None
    names = (data.name.replace("training", "train").replace("train", word) for word in _SIBLINGS[role])
    return next((data.with_name(name) for name in names if data.with_name(name).exists()), None)
