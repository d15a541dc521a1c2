"""Write a commented YAML for somebody's data file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from seqpipe.commands.init.batches import SMALL, batch_tokens
from seqpipe.commands.init.inspect_data import summarise
from seqpipe.commands.init.label_models import label_keys
from seqpipe.commands.init.other_formats import training_folder
from seqpipe.commands.init.other_models import language_model_keys, pointer_keys
from seqpipe.commands.init.refuse import refuse_useless
from seqpipe.commands.init.summary import DataSummary
from seqpipe.commands.init.tasks import task_of
from seqpipe.commands.init.tokenizer import tokenizer_line
from seqpipe.config.yaml import dump
from seqpipe.errors import UsageError
from seqpipe.files import write

LABELS = 12  # that a comment lists
GENERIC = {"", "train", "training", "data", "dataset"}  # names that say nothing
_SIBLINGS = {"dev": ("dev", "devel", "valid", "validation", "val"), "test": ("test", "testa", "testb")}
_HEADS = {
    "Entities": "{use: crf, scheme: BIOES, dropout: 0.5}",
    "Tags": "{use: crf, scheme: none, dropout: 0.5}",
    "Labels": "{use: label, pool: max, dropout: 0.5}  # mean, max, first or last of the text's tokens",
}
_SPELLING = "  - {use: char-cnn, dim: 60, widths: [2, 3, 4], dropout: 0.5}  # spelling: prefixes, suffixes, case"
_CHARACTERS = "  - {use: char-cnn, dim: 60, widths: [1, 2], dropout: 0.5}  # the characters of each word"


def init_yaml(
    data: Path, output: Path | None = None, say: Callable[[str], None] | None = None, task: str | None = None
) -> Path:
    """Look at `data`, `say` what was seen and chosen, and write the YAML; return its path.

    Raises:
        DataError: if the file is of no known format, or nothing can be learned from it.
        UsageError: if the YAML is there already, or there is no such task.
    """
    wanted = task_of(task) if task else None
    data = training_folder(data)
    target = output or Path(f"{_name(data)}.yaml")
    if target.exists():
        raise UsageError(f"{target} is there already; name another with --output, or remove it")
    summary = summarise(data, wanted)
    refuse_useless(summary, data)
    if say:
        for line in [*summary.reasons(), *summary.remarks()]:
            say(line)
    write(target, _yaml(summary, data, target))
    return target


def _yaml(summary: DataSummary, data: Path, target: Path) -> str:
    """Return the YAML for a data file."""
    lines = [
        *_comments(summary, data),
        f"name: {_flow(_plain(_name(data) if target.stem in GENERIC else target.stem) or 'pipeline')}",
        *_data_keys(summary, data, target),
        *_pipeline_keys(summary, has_dev=_sibling(data, "dev") is not None),
    ]
    return "\n".join(lines) + "\n"


def _name(data: Path) -> str:
    """Return the name of a data file, or of the nearest folder that says more than train or data."""
    path = data.resolve()
    stem = path.with_suffix("").stem if path.suffix == ".gz" else path.stem
    return next((name for name in (stem, *(folder.name for folder in path.parents)) if name not in GENERIC), "pipeline")


def _plain(name: str) -> str:
    """Return a name with only the characters that a run's may have."""
    return re.sub("[^A-Za-z0-9._-]", "-", name).lstrip("._-")


def _comments(summary: DataSummary, data: Path) -> Iterator[str]:
    words = "" if summary.unspaced or not summary.words else f", {summary.words:,} words"
    about = "about " if summary.sampled else ""
    yield f"# Made by `seqpipe init` from {data.name}: {about}{summary.records:,} records{words}."
    yield from (f"# {line}" for line in summary.reasons())
    labels = ", ".join(f"{_printable(label)} {count:,}" for label, count in summary.labels.most_common(LABELS))
    if labels:
        yield f"# {summary.label_kind}: {labels}{' …' if len(summary.labels) > LABELS else ''}"
    yield from (f"# {line}" for line in summary.remarks())


def _data_keys(summary: DataSummary, data: Path, target: Path) -> Iterator[str]:
    def relative(path: Path) -> str:
        return _flow(os.path.relpath(path.resolve(), target.resolve().parent))

    options = "".join(f", {key}: {_flow(value)}" for key, value in summary.options.items())
    yield "data:"
    yield f"  reader: {{use: {summary.use}{options}}}  # seqpipe plugins show {summary.use}"
    yield f"  train: {relative(data)}"
    for role, meaning in (("dev", "the best epoch is chosen by it"), ("test", "scores are reported on it")):
        sibling = _sibling(data, role)
        if sibling:
            yield f"  {role}: {relative(sibling)}"
        else:
            yield f"  # {role}: {role}{data.suffix}  # {meaning}; none was found beside {data.name}"
    if summary.use in ("jsonl", "json", "parquet") and summary.label_kind == "Entities":
        yield "  misaligned: error  # a span that cuts a word: error, widen or skip"


def _pipeline_keys(summary: DataSummary, has_dev: bool) -> Iterator[str]:
    if summary.label_kind == "Pointers":
        yield from pointer_keys(summary, _flow)
    elif summary.label_kind == "Continuations":
        yield from language_model_keys(summary)
    elif summary.label_kind == "Labels" and len(summary.fields) == 1:
        yield from label_keys(summary, has_dev)
    else:
        yield from _model_keys(summary)
        yield from _train_keys(summary, has_dev)


def _model_keys(summary: DataSummary) -> Iterator[str]:
    pair = f", field: {_flow(summary.fields)}" if len(summary.fields) > 1 else ""
    if summary.label_kind == "Answers":
        yield tokenizer_line(summary, "use: words, lowercase: true", ", field: [question, context]")
    elif summary.label_kind in ("Texts", "Numbers"):
        yield tokenizer_line(summary, "use: words, lowercase: true", pair)
    else:
        yield tokenizer_line(summary, "use: words, lowercase: true, fold_digits: true", pair)
    yield "embedding:  # what each token is turned into; the parts are concatenated"
    if summary.unspaced:
        yield "  - {use: lookup, dim: 100, dropout: 0.3, word_dropout: 0.1}"
    else:
        yield "  - {use: lookup, dim: 100, dropout: 0.3, word_dropout: 0.15, rare_dropout: 0.5}"
        yield _CHARACTERS if summary.segmented else _SPELLING
    hidden = 128 if summary.records < SMALL else 200
    yield f"encoder: {{use: lstm, hidden: {hidden}}}  # units in each direction"
    if summary.label_kind == "Answers":
        yield "# A pretrained encoder answers far better: pipelines/answer-span.yaml"
        no_answer = _flow(summary.unanswered > 0)
        yield f"head: {{use: answer-span, no_answer: {no_answer}}}  # whether a question may have no answer"
    elif summary.label_kind == "Texts":
        yield from _writing_head(summary, hidden)
    elif summary.label_kind == "Numbers":
        target = f"target: {_flow(summary.target)}"
        yield f"head: {{use: score, {target}, pool: mean, dropout: 0.3}}  # bounds: [0, 100] keeps answers within"
    elif summary.multi:
        yield "head: {use: label, multi: true, pool: max, dropout: 0.5}  # a text has any number of labels"
    else:
        yield f"head: {_HEADS[summary.label_kind]}"


def _writing_head(summary: DataSummary, hidden: int) -> Iterator[str]:
    tokens = "{use: chars}" if summary.unspaced else "{use: words, detokenize: true}"
    yield "head:"
    yield "  use: seq2seq  # copy-seq2seq copies words of the text that it never saw"
    yield f"  target: {_flow(summary.target)}  # the field of the text to write"
    yield f"  target_tokenizer: {tokens}  # how the text is written: {{use: chars}} for names, codes, dates"
    yield f"  hidden: {hidden}"
    yield "  attention: additive"
    yield "  dropout: 0.2"


def _train_keys(summary: DataSummary, has_dev: bool) -> Iterator[str]:
    is_small = summary.records < SMALL
    yield "train:"
    yield f"  epochs: {40 if is_small else 20}"
    tokens, meaning = batch_tokens(summary)
    yield f"  batch_tokens: {tokens}  # {meaning}"
    yield "  optimizer: {use: adamw, lr: 0.003}"
    yield "  schedule: {use: linear, warmup_ratio: 0.1}"
    yield "  average: 0.99  # the moving average of the weights is what ships"
    yield f"  {'' if has_dev else '# '}patience: 8  # epochs without a better dev score before it stops"
    yield "  seed: 1"


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    return dump({"k": value}).strip().removeprefix("k: ")


def _printable(label: str) -> str:
    """Return a label as a comment of one line may hold it."""
    return label if label.isprintable() else ascii(label)


def _sibling(data: Path, role: str) -> Path | None:
    """Return the file of another role that is named alike, as dev.tsv beside train.tsv."""
    if "train" not in data.name:
        return None
    names = (data.name.replace("training", "train").replace("train", word) for word in _SIBLINGS[role])
    return next((data.with_name(name) for name in names if data.with_name(name).exists()), None)
