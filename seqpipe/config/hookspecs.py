"""The hooks a plugin may implement: each returns a table from `use:` names to components, and does nothing else.

A component is a class, or the string "package.module:Class", imported when it is first used (so that listing plugins
imports no torch). All hooks are called once, when the plugins are first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

import pluggy

hookspec = pluggy.HookspecMarker("seqpipe")
hookimpl = pluggy.HookimplMarker("seqpipe")

Table = Mapping[str, "type | str"]


@hookspec
def register_readers() -> Table:
    """Readers: a data file becomes records. Called for `reader: {use: …}` of a YAML, `predict` or `evaluate`."""
    return {}


@hookspec
def register_tokenizers() -> Table:
    """Tokenizers: texts become a `tokenizers.Tokenizer`. Called for `tokenizer:` and `target_tokenizer:`."""
    return {}


@hookspec
def register_embeddings() -> Table:
    """Embeddings: features become x (B, T, D). Called for `embedding:`."""
    return {}


@hookspec
def register_encoders() -> Table:
    """Encoders: x and mask become x (B, T, D'). Called for `encoder:`."""
    return {}


@hookspec
def register_heads() -> Table:
    """Heads: the encoders' outputs become a loss and a decision. Called for `head:`."""
    return {}
