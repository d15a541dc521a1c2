"""The task of a head: its answer kind, labels and target tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from seqpipe.answers.generation import judged_in
from seqpipe.answers.pointers import SEQUENCE, Pointers
from seqpipe.answers.targets import labels_of
from seqpipe.config.attention_maps import TOKENS, WORDS
from seqpipe.config.attention_stages import axis_of
from seqpipe.config.component import Input, describe
from seqpipe.config.contract import answer_kind, can_copy, is_self_supervised, member
from seqpipe.config.corpus import corpus_settings
from seqpipe.config.init_from import counterpart, told
from seqpipe.config.loader import Component
from seqpipe.errors import ConfigError
from seqpipe.features.document import Record
from seqpipe.training.artifacts import Artifacts, Task
from seqpipe.training.fit_tokenizers import fit_target_tokenizer


def fit_task(head: Component, name: str, tokenizer: Tokenizer | None, source: Input, records: Sequence[Record]) -> Task:
    """Collect a head's labels and fit its target tokenizer; `tokenizer` is that of the only text source."""
    answer, target = answer_kind(head), head.frame.get("target")
    labels = labels_of(head, records, _old_labels(head))
    writer = fit_target_tokenizer(head, tokenizer, records, target or "target") if answer == "text" else None
    manifest = {"kind": answer, "target": target} | ({"labels": list(labels)} if labels else {})
    if is_self_supervised(head) and answer in ("score", "vector"):
        manifest["self_taught"] = True
    fields = source.tokenizer.frame.get("field") if source.tokenizer else None
    fields = [*fields] if isinstance(fields, tuple) else [fields or "text"]
    if fill_mask := member(head.cls, "fill_mask"):
        manifest["fills"] = {**fill_mask(dict(head.options)), "fields": fields}
    if is_self_supervised(head) and (span_corruption := member(head.cls, "span_corruption")):
        manifest["hides"] = {**span_corruption(dict(head.options)), "field": fields[0]}
    if answer == "label" and head.options.get("out_of_scope") is not None:
        manifest["out_of_scope"] = head.options["out_of_scope"]
    if (corpus := corpus_settings(head)) is not None:
        size = writer.get_vocab_size() if writer is not None else 1
        context = judged_in(corpus.context, corpus.stateful, size)
        manifest["continues"] = {"begins": not corpus.packed, "context": context}
    if can_copy(head):
        manifest["copies"] = {"same": head.frame.get("target_tokenizer") == "same"}
    if answer == "pointers":
        manifest = _pointing(head, source).manifest()
    return Task(name, manifest, labels, writer)


def _pointing(head: Component, source: Input) -> Pointers:
    """What a head's positions mean; ConfigError where they would be none of the source's own."""
    task, axis = head.options.get("task", SEQUENCE), axis_of(source)
    if axis not in (TOKENS, WORDS):
        cure = "leave the encoder out that makes other rows of them"
        raise ConfigError([head.problem(f"{describe(head)}: it points at tokens, words or rows of numbers; {cure}")])
    if source.tokenizer is not None and task != SEQUENCE:
        cure = "give points, inputs: {points: {field: points, embedding: {use: linear}}}, or task: sequence"
        raise ConfigError(
            [head.problem(f"{describe(head)}: task {task} is of points, and this source is a text; {cure}")]
        )
    points = source.field if source.tokenizer is None else None
    return Pointers(head.frame.get("target"), task, points, axis)


def _old_labels(head: Component) -> Sequence[str]:
    """The labels of the run that a head starts from; ConfigError if it answers with something else."""
    folder = head.frame.get("init")
    if not folder:
        return ()
    there = counterpart(head, folder)
    task = Artifacts.load(folder).tasks[there.number]
    was, kind, where = task.answer["kind"], answer_kind(head), f"the run {told(folder)}"
    scheme = there.options.get("scheme")
    if was != kind:
        cure = "give its options their old values, or delete init"
        raise ConfigError([head.problem(f"{where} answers with {was}, and this head with {kind}; {cure}")])
    if kind == "spans" and scheme != head.options.get("scheme"):
        raise ConfigError([head.problem(f"the tags of {where} are {scheme}; set scheme: {scheme}, or delete init")])
    return task.labels
