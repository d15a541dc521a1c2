"""The task of a head: its answer kind, labels and target tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from seqpipe.answers.registry import ANSWER_KINDS
from seqpipe.answers.types import HeadInfo
from seqpipe.config.checks.attention import axis_of
from seqpipe.config.component import Input, describe
from seqpipe.config.contract import can_copy, is_self_supervised
from seqpipe.config.head_answers import answer_kind, answer_settings
from seqpipe.config.init_from import counterpart, relative_path
from seqpipe.config.model import Component
from seqpipe.errors import ConfigError
from seqpipe.features.document import Record
from seqpipe.features.vocabulary import Vocabulary
from seqpipe.training.artifacts import Artifacts, Task
from seqpipe.training.fit_tokenizers import fit_target_tokenizer


def fit_task(
    head: Component,
    name: str,
    tokenizer: Tokenizer | None,
    source: Input,
    records: Sequence[Record],
    candidates: Sequence[Record],
) -> Task:
    """Collect a head's labels and fit its target tokenizer.

    Args:
        head: The head.
        name: Its name among several.
        tokenizer: That of the only text source.
        source: The first source.
        records: Those of training.
        candidates: The records that a head chooses from, if it does that.

    Raises:
        ConfigError: The answer cannot be made of this input.
    """
    kind, info = answer_kind(head), _head_info(head, source, candidates)
    if message := kind.refuse_input(info):
        raise ConfigError([head.problem(f"{describe(head)}: {message}")])
    labels = Vocabulary(()) if info.self_supervised else kind.collect_labels(info, records)
    writer = fit_target_tokenizer(head, tokenizer, records, info.target or "target") if kind.needs_tokenizer else None
    return Task(name, kind.create(info, labels, writer).manifest(), labels, writer)


def _head_info(head: Component, source: Input, candidates: Sequence[Record]) -> HeadInfo:
    fields = source.tokenizer.common_keys.get("field") if source.tokenizer else None
    return HeadInfo(
        answer_settings(head),
        target=head.common_keys.get("target"),
        self_supervised=is_self_supervised(head),
        same_tokenizer=head.common_keys.get("target_tokenizer") == "same",
        copies=can_copy(head),
        fields=tuple(fields) if isinstance(fields, tuple) else (fields or "text",),
        rows=axis_of(source),
        numbers=source.field if source.tokenizer is None else None,
        candidates=candidates,
        old_labels=_old_labels(head),
    )


def _old_labels(head: Component) -> Sequence[str]:
    """The labels of the run that a head starts from; ConfigError if it answers with something else."""
    folder = head.common_keys.get("init")
    if not folder:
        return ()
    task = Artifacts.load(folder).tasks[counterpart(head, folder).number]
    old_kind, kind, where = task.answer["kind"], answer_kind(head), f"the run {relative_path(folder)}"
    if old_kind != kind.kind and not (kind.needs_tokenizer and ANSWER_KINDS[old_kind].needs_tokenizer):
        cure = "give its options their old values, or delete init"
        message = f"{where} answers with {old_kind}, and this head with {kind.kind}; {cure}"
        raise ConfigError([head.problem(message)])
    if message := kind.label_conflict(task.answer, answer_settings(head), where):
        raise ConfigError([head.problem(f"{message}, or delete init")])
    return task.labels
