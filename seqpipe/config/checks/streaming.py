"""The checks of `export.streaming`: one text, one head, and stages in which no token depends on a later one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seqpipe.config.checks.language_model import causal_cure
from seqpipe.config.component import Component, Input, describe
from seqpipe.config.contract import is_language_model_head, member
from seqpipe.config.schema import Export
from seqpipe.config.yaml import Tree
from seqpipe.errors import Problem

_WHERE = ("export", "streaming")


def streaming_problems(
    inputs: Sequence[Input], heads: Sequence[Component], export: Export, tree: Tree
) -> list[Problem]:
    """What prevents a pipeline from answering in pieces, each at its stage or at the key."""
    problems = [tree.problem(_WHERE, message) for message in _of_the_whole(inputs, heads, export)]
    if problems:
        return problems
    return [stage.problem(f"{describe(stage)}: {message}") for stage, message in _of_stages(inputs[0], heads[0])]


def _of_the_whole(inputs: Sequence[Input], heads: Sequence[Component], export: Export) -> Iterator[str]:
    if any(map(is_language_model_head, heads)):
        yield "a language model streams without it; delete it"
    if len(heads) > 1:
        yield "a pipeline that answers in pieces has one head; train one for each answer, or delete it"
    if len(inputs) > 1 or inputs[0].tokenizer is None or inputs[0].pairs:
        yield "only a single text can be read in pieces; delete it"
    if export.explain:
        yield "attention weights are of whole texts; delete explain, or this"


def _of_stages(source: Input, head: Component) -> Iterator[tuple[Component, str]]:
    for stage in source.embedding:
        if not member(stage.cls, "tokenwise"):
            yield stage, "it knows whole texts only, and export.streaming reads pieces; choose lookup"
    for stage in source.encoder:
        if not member(stage.cls, "tokenwise") and (cure := causal_cure(stage)):
            message = "a token depends on later ones, which export.streaming cannot wait for"
            yield stage, f"{message}; {cure}"
    problem = member(head.cls, "streaming_problem")
    if problem is None:
        yield head, "it answers for whole texts only, and export.streaming reads pieces; use tags or label"
    elif head.options and (message := problem(dict(head.options))):
        yield head, f"export.streaming reads pieces: {message}"
